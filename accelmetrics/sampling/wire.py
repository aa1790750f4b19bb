"""Messages between a sampler and its child process: a length, then a pickle, over a socket pair.

Only this package's own two processes speak on it, so pickle is as safe as the memory they were forked from. Receiving
waits in the kernel (``SO_RCVTIMEO``), one call that lets go of the interpreter's lock once: beside a busy thread, each
time the lock is let go costs a whole switch interval.
"""

from __future__ import annotations

import pickle
import socket
import struct
from typing import Any

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
        """
        whole = max(0.0, seconds or 0.0)
        timeval = struct.pack("ll", int(whole), max(1, int(whole % 1 * 1e6)) if seconds is not None else 0)
        self._end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)
        while True:
            if len(self._buffer) >= _LENGTH.size:
                end = _LENGTH.size + _LENGTH.unpack_from(self._buffer)[0]
                if len(self._buffer) >= end:
                    body = bytes(self._buffer[_LENGTH.size : end])
                    del self._buffer[:end]
                    return pickle.loads(body)
            part = self._end.recv(_CHUNK)
            if not part:
                raise EOFError("the other end is gone")
            self._buffer += part

    def close(self) -> None:
        """Hang up."""
        self._end.close()
