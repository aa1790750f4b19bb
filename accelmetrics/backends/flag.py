"""An event that a signal handler may set, and that Ctrl-C in the middle of anything leaves in working order.

``threading.Event`` is neither: its methods are Python code around a lock, so that a handler which interrupts ``set`` and calls
``set`` waits for itself, and an exception in the wrong place leaves the lock taken for ever. Here each step is one call in C.
"""

from __future__ import annotations

import threading


class Flag:
    """Like ``threading.Event``, from any thread and from signal handlers."""

    def __init__(self) -> None:
        self._set = False
        self._closed = threading.Lock()  # held while the flag is not set
        self._closed.acquire()

    def is_set(self) -> bool:
        """Whether it is set."""
        return self._set

    def set(self) -> None:
        """Let those go who wait, and who will."""
        self._set = True
        self._open()

    def clear(self) -> None:
        """Have those wait who come from now on."""
        self._set = False
        self._closed.acquire(blocking=False)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until it is set, at most so long (None: for ever); whether it is. May end early where it was cleared meanwhile."""
        limit = threading.TIMEOUT_MAX if seconds is None else min(max(0.0, seconds), threading.TIMEOUT_MAX)
        try:
            if not self._set:
                self._closed.acquire(timeout=limit)
        finally:
            if self._set:
                self._open()  # for the next one who waits
        return self._set

    def _open(self) -> None:
        try:
            self._closed.release()
        except RuntimeError:
            return  # it is open already
