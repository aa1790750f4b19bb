"""For tests of real exporters through a monitor: a peer in trouble, what must be true meanwhile, and connections that are cut."""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, NamedTuple

from accelmetrics import Monitor
from accelmetrics.exporters.registry import create
from accelmetrics.schemas.record import Exporter, Record
from tests.monitor.watching import Recorder
from tests.records import host, machine
from tests.sampling.conftest import until

INTERVAL = 0.1
TROUBLE = 0.6
"""Seconds that the trouble lasts: an exporter that stops the interpreter for so long is told from a busy machine."""
SLACK = 0.35
"""Seconds by which a reading may be late where another process was not held up at all."""
CONTROL = """
import os, sys, time
parent, last = os.getppid(), time.monotonic()
while os.getppid() == parent:
    time.sleep(0.01)
    now = time.monotonic()
    if now - last > 0.03:
        print(now, now - last, flush=True)
    last = now
"""


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


class Control:
    """A process beside this one that tells for how long the machine itself stood still."""

    def __init__(self, log: Path) -> None:
        self._log = log

    def longest(self, since: float) -> float:
        """The longest time for which it was held up, after a moment of ``time.monotonic``, in seconds."""
        found = [tuple(map(float, line.split())) for line in self._log.read_text().splitlines()]
        return max((gap for at, gap in found if at >= since), default=0.0)


@contextmanager
def control(folder: Path) -> Iterator[Control]:
    """The process, running."""
    log = folder / "control"
    with log.open("w") as file, subprocess.Popen([sys.executable, "-c", CONTROL], stdout=file, stdin=subprocess.DEVNULL) as process:
        try:
            yield Control(log)
        finally:
            process.kill()


def endure(trouble: Trouble, machine_itself: Control) -> None:
    """Run a monitor through it: no reading may be late, the other exporter has each, and the peer what was promised."""
    recorder = Recorder()
    exporter = create(trouble.exporter) if isinstance(trouble.exporter, str) else trouble.exporter
    monitor = Monitor(INTERVAL, [exporter, recorder], backends=[machine(trouble.gpus), host()])
    with monitor:
        until(lambda: len(recorder.records) >= 2 and (not trouble.healthy or monitor.status.exporters[0].sent >= 2))
        since, first, missed = time.monotonic(), len(recorder.records), monitor.status.missed_ticks
        trouble.begin()
        time.sleep(TROUBLE)
        during = monitor.status.exporters[0]
        trouble.end()
        trouble.alive(monitor.status.ticks)
        time.sleep(INTERVAL)
        allowed = SLACK + 2 * machine_itself.longest(since)
        late = (monitor.status.missed_ticks - missed) * INTERVAL
        began = time.monotonic()
        monitor.stop(5.0)
        assert time.monotonic() - began < 3.0 + 2 * allowed
    status, other = monitor.status.exporters
    times = [record.snapshot.time_ns / 1e9 for record in recorder.records]
    gaps = [after - before for before, after in zip(times[first - 1 :], times[first:], strict=False)]
    assert max(gaps) < INTERVAL + allowed and late <= allowed, (
        f"readings were held up: {max(gaps):.2f} s, missed {late:.2f} s, {allowed=:.2f}"
    )
    assert other.sent == len(recorder.records) == monitor.status.ticks
    assert (status.sent, status.failed, status.dropped, status.queued) == (other.sent, 0, 0, 0), status
    trouble.arrived(recorder.records)
    assert (during.queued >= TROUBLE / INTERVAL / 4) == trouble.waits, f"the trouble is not what was meant: {during}"


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
        self._ends: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._accept()

    def begin(self, harm: Harm) -> None:
        """Cut it."""
        self._harm = harm
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

    def close(self) -> None:
        self._harm = None
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
                server = socket.create_connection(("127.0.0.1", self._server), 5)
            except OSError:
                return
            self._ends += (client, server)
            for source, sink, answers in ((client, server, False), (server, client, True)):
                threading.Thread(target=self._pump, args=(source, sink, answers), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, answers: bool) -> None:
        with suppress(OSError):
            source.settimeout(None)
            while data := source.recv(1 << 16):
                while self._harm == "hold":
                    time.sleep(0.01)
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
                end.shutdown(socket.SHUT_RD)  # wakes whoever reads from it
            end.close()
