"""For tests of real exporters through a monitor: a peer in trouble, what must be true meanwhile, and connections that are cut."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Literal, NamedTuple

from accelmetrics import Monitor
from accelmetrics.exporters.registry import create
from accelmetrics.schemas.record import Exporter, Record
from tests.monitor.watching import Recorder
from tests.records import host, machine
from tests.support.waiting import HANG, wait_for

INTERVAL = 0.05
READINGS = 6
"""So many are taken while the trouble lasts."""


class Trouble(NamedTuple):
    """One exporter, and what befalls its peer.

    Attributes:
        exporter: The exporter, or its string.
        begin: Makes the trouble.
        end: Ends it.
        arrived: Given every record, checks what the peer has, after the monitor has stopped.
        alive: Given the number of readings at the trouble's end, waits for a younger one to arrive.
        waits: Whether records must wait meanwhile.
        healthy: Whether records arrive before.
        gpus: How many devices a record has.
    """

    exporter: Exporter | str
    begin: Callable[[], object]
    end: Callable[[], object]
    arrived: Callable[[list[Record]], object]
    alive: Callable[[int], object] = bool
    waits: bool = True
    healthy: bool = True
    gpus: int = 8


def endure(trouble: Trouble) -> None:
    """Run a monitor through it: readings go on, the other exporter has each, and the peer what was promised."""
    recorder = Recorder()
    exporter = create(trouble.exporter) if isinstance(trouble.exporter, str) else trouble.exporter
    with Monitor(INTERVAL, [exporter, recorder], backends=[machine(trouble.gpus), host()], timeout=HANG) as monitor:
        wait_for(lambda: len(recorder.records) >= 2 and (not trouble.healthy or monitor.status.exporters[0].sent >= 2))
        trouble.begin()
        before = len(recorder.records)
        wait_for(lambda: len(recorder.records) >= before + READINGS, what="readings wait for the exporter in trouble")
        if trouble.waits:
            wait_for(lambda: monitor.status.exporters[0].queued >= READINGS // 2, what="the trouble is not what was meant")
        else:
            sent = monitor.status.exporters[0].sent
            wait_for(lambda: monitor.status.exporters[0].sent > sent, what="the trouble is not what was meant")
        trouble.end()
        trouble.alive(monitor.status.ticks)
        monitor.stop(HANG)
    status, other = monitor.status.exporters
    assert other.sent == len(recorder.records) == monitor.status.ticks
    assert (status.sent, status.failed, status.dropped, status.queued) == (other.sent, 0, 0, 0), status
    trouble.arrived(recorder.records)


Harm = Literal["kill", "cut request", "cut answer", "hold"]


class Wire:
    """A way to a server on this machine, which can be cut.

    ``kill``: connections are reset and new ones refused, as by a server that is killed. ``cut request``: half of what the client
    sends goes through, then the connection is reset. ``cut answer``: the server has everything, and its answer does not arrive.
    ``hold``: nothing goes through in either direction until the harm ends, as on a network that loses all packets.
    """

    def __init__(self, server: int) -> None:
        self._server = server
        self._harm: Harm | None = None
        self._flows = threading.Event()
        self._flows.set()
        self._ends: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._accept()

    def begin(self, harm: Harm) -> None:
        """Cut it."""
        self._harm = harm
        if harm == "hold":
            self._flows.clear()
        if harm == "kill":
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._reset(*self._ends)

    def end(self) -> None:
        """Mend it: the same port, and whatever comes anew goes through."""
        if self._harm == "kill":
            self._listener = socket.create_server(("127.0.0.1", self.port))
            self._accept()
        self._harm = None
        self._flows.set()

    def close(self) -> None:
        self._harm = None
        self._flows.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._reset(*self._ends)

    def _accept(self) -> None:
        threading.Thread(target=self._serve, args=(self._listener,), daemon=True).start()

    def _serve(self, listener: socket.socket) -> None:
        while True:
            try:
                client = listener.accept()[0]
                server = socket.create_connection(("127.0.0.1", self._server), HANG)
            except OSError:
                return
            self._ends += (client, server)
            for source, sink, answers in ((client, server, False), (server, client, True)):
                threading.Thread(target=self._pump, args=(source, sink, answers), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, answers: bool) -> None:
        with suppress(OSError):
            source.settimeout(None)
            while data := source.recv(1 << 16):
                assert self._flows.wait(2 * HANG)
                if self._harm == "cut answer" and answers:
                    break
                if self._harm == "cut request" and not answers:
                    sink.sendall(data[: len(data) // 2])
                    break
                sink.sendall(data)
        self._reset(source, sink)

    def _reset(self, *ends: socket.socket) -> None:
        for end in ends:
            with suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                end.shutdown(socket.SHUT_RD)  # wakes a reader
            end.close()
