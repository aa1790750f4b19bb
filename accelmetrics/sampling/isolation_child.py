"""The child's side of ``isolation="process"``, and the line between both sides.

The child reads the devices in a process that may hang, crash or be killed. It lives exactly as long as its parent keeps the line open,
and leaves with ``os._exit``: no driver is shut down on the way out, and no stuck call is waited for. What else ends it, it reports.

A message is a length, then a pickle, over a socket pair. Only this package's own two processes speak on it, so pickle is as safe as
the memory they were forked from. Receiving waits in the kernel (``SO_RCVTIMEO``), one call that releases the interpreter's lock once:
beside a busy thread, each release costs a whole switch interval.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import struct
from contextlib import suppress
from typing import Any, NamedTuple

from accelmetrics.backends.guard import guarded
from accelmetrics.backends.registry import select
from accelmetrics.sampling.devices import Numbering
from accelmetrics.sampling.engine import Statistics, ThreadEngine
from accelmetrics.sampling.options import Options
from accelmetrics.sampling.sources import SHARED
from accelmetrics.schemas.errors import SourceError, UnknownNameError
from accelmetrics.schemas.reasons import Reason, Unavailable
from accelmetrics.schemas.snapshot import Snapshot

_LENGTH = struct.Struct("!I")
_CHUNK = 1 << 20


class Order(NamedTuple):
    """What a child is told when it starts.

    Attributes:
        backends: Names of registered backends, and others pickled: their code runs when the child unpickles them.
        forced: Which of them are opened whatever detection says.
        options: What to read; the watched process is named.
        numbering: The numbering that users have seen so far.
    """

    backends: tuple[str | bytes, ...]
    forced: frozenset[str]
    options: Options
    numbering: Numbering | None


class Answer(NamedTuple):
    """What a child answers.

    Attributes:
        ticket: The number of the request; 0 when the child leaves.
        snapshot: The snapshot, None when the request was refused.
        statistics: What the child has counted.
        numbering: The numbering, when it changed.
        error: Why the request was refused.
        failure: Why the child leaves.
    """

    ticket: int
    snapshot: Snapshot | None = None
    statistics: Statistics = Statistics()
    numbering: Numbering | None = None
    error: UnknownNameError | None = None
    failure: Unavailable | None = None


class Line:
    """One end of the line."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(True)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _CHUNK)
        self._end = end
        self._buffer = bytearray()

    def send(self, message: object, seconds: float | None = None) -> None:
        """Send one message whole.

        Args:
            message: The message.
            seconds: How long the other end may take nothing of it; None for ever.

        Raises:
            OSError: The other end is gone, or took nothing for so long.
        """
        body = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        self._end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(seconds))
        self._end.sendall(_LENGTH.pack(len(body)) + body)

    def receive(self, seconds: float | None) -> Any:
        """Receive the next message.

        Args:
            seconds: How long to wait for each part of it; None for ever.

        Raises:
            BlockingIOError: It did not come in time; the part that has come is kept.
            EOFError: The other end is gone.
            SourceError: The message cannot be unpickled here.
        """
        self._end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(seconds))
        while len(self._buffer) < _LENGTH.size or len(self._buffer) < (end := _LENGTH.size + _LENGTH.unpack_from(self._buffer)[0]):
            part = self._end.recv(_CHUNK)
            if not part:
                raise EOFError("the other end is gone")
            self._buffer += part
        body = bytes(self._buffer[_LENGTH.size : end])
        del self._buffer[:end]
        outcome = guarded(pickle.loads, body)
        if outcome.failure is not None:
            raise SourceError(Reason.DRIVER_ERROR, f"received what cannot be read: {outcome.failure.detail}")
        return outcome.value

    def hang_up(self) -> None:
        """End the line for both ends, and for every copy that a fork has made of them."""
        with suppress(OSError):  # the other end may have hung up before
            self._end.shutdown(socket.SHUT_RDWR)
        self.close()

    def close(self) -> None:
        """Close this copy of this end; the line lives on if a fork has made another."""
        self._end.close()


def _timeval(seconds: float | None) -> bytes:
    """A duration as the kernel takes it: zeros are for ever."""
    whole = max(0.0, seconds or 0.0)
    return struct.pack("ll", int(whole), max(1, int(whole % 1 * 1e6)) if seconds is not None else 0)


def main(descriptor: int) -> None:
    """Serve readings on the line until the parent hangs up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        line = Line(socket.socket(fileno=descriptor))
        outcome = guarded(_serve, line)
        if outcome.failure is not None:  # the parent may have hung up, and not receive it
            guarded(line.send, Answer(0, failure=outcome.failure))
    finally:
        os._exit(0)


def _serve(line: Line) -> None:
    order: Order = line.receive(None)
    backends = [item if isinstance(item, str) else pickle.loads(item) for item in order.backends]
    engine = ThreadEngine(SHARED, select(backends), order.forced, order.options, order.numbering)
    told: Numbering | None = None
    while True:
        ticket = line.receive(None)
        try:
            snapshot = engine.sample()
        except UnknownNameError as error:
            line.send(Answer(ticket, statistics=engine.statistics, error=error))
            continue
        numbering = engine.devices.numbering
        line.send(Answer(ticket, snapshot, engine.statistics, None if numbering == told else numbering))
        told = numbering
