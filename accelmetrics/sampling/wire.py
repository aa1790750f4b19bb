"""Messages between a sampler and its child process: a length, then a pickle, over a socket pair.

Only this package's own two processes speak on it, so pickle is as safe as the memory they were forked from. Receiving
waits in the kernel (``SO_RCVTIMEO``), one call that lets go of the interpreter's lock once: beside a busy thread, each
time the lock is let go costs a whole switch interval.
"""

from __future__ import annotations

import pickle
import socket
import struct
from contextlib import ExitStack, suppress
from typing import Any

from accelmetrics.backends.guard import guarded
from accelmetrics.schemas.errors import SourceError
from accelmetrics.schemas.reasons import Reason

_LAST_STANDARD = 2
"""The descriptor of standard error."""
_LENGTH = struct.Struct("!I")
_CHUNK = 1 << 20


class Wire:
    """One end of the line."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(True)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _CHUNK)
        self._end = end
        self._buffer = bytearray()

    def send(self, message: object) -> None:
        """Send one message whole.

        Raises:
            OSError: The other end is gone.
        """
        body = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        self._end.sendall(_LENGTH.pack(len(body)) + body)

    def receive(self, seconds: float | None) -> Any:
        """The next message.

        Args:
            seconds: How long to wait for each part of it; None for ever.

        Raises:
            BlockingIOError: It did not come in time; what has come of it is kept.
            EOFError: The other end is gone.
            SourceError: What came cannot be read here.
        """
        self._end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(seconds))
        while True:
            if len(self._buffer) >= _LENGTH.size:
                end = _LENGTH.size + _LENGTH.unpack_from(self._buffer)[0]
                if len(self._buffer) >= end:
                    body = bytes(self._buffer[_LENGTH.size : end])
                    del self._buffer[:end]
                    return _unpacked(body)
            part = self._end.recv(_CHUNK)
            if not part:
                raise EOFError("the other end is gone")
            self._buffer += part

    def limit_sending(self, seconds: float) -> None:
        """Give up, with an OSError, on a message that the other end does not take for so long."""
        self._end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(seconds))

    def hang_up(self) -> None:
        """End the line for both ends, and for every copy that a fork has made of them."""
        with suppress(OSError):  # the other end may have hung up before
            self._end.shutdown(socket.SHUT_RDWR)
        self.close()

    def close(self) -> None:
        """Close this copy of this end; the line lives on if a fork has made another."""
        self._end.close()


def pair() -> tuple[socket.socket, socket.socket]:
    """The two ends of a line, neither of them where a program that runs without standard streams would have one.

    Raises:
        OSError: There are no descriptors left.
    """
    with ExitStack() as stack:
        ends = [stack.enter_context(end) for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)]
        ours, theirs = (stack.enter_context(_lifted(end)) for end in ends)
        stack.pop_all()
        return ours, theirs


def _lifted(end: socket.socket) -> socket.socket:
    if end.fileno() > _LAST_STANDARD:
        return end
    from fcntl import F_DUPFD_CLOEXEC, fcntl  # not on every platform

    with end:
        return socket.socket(fileno=fcntl(end.fileno(), F_DUPFD_CLOEXEC, _LAST_STANDARD + 1))


def _timeval(seconds: float | None) -> bytes:
    """As the kernel takes it: zeros are for ever."""
    whole = max(0.0, seconds or 0.0)
    return struct.pack("ll", int(whole), max(1, int(whole % 1 * 1e6)) if seconds is not None else 0)


def _unpacked(body: bytes) -> Any:
    outcome = guarded(pickle.loads, body)
    if outcome.failure is not None:
        raise SourceError(Reason.DRIVER_ERROR, f"received what cannot be read: {outcome.failure.detail}")
    return outcome.value
