"""Which windows of a monitor are open, and which have ended. Outlives the monitor's stops and starts, as windows may."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

from accelmetrics.sampling.rows import Row

if TYPE_CHECKING:
    from accelmetrics.sampling.window import Window

KEPT_WINDOWS = 32
"""Windows that have ended and are still known; one of a day on eight GPUs takes up to a mebibyte or two."""


class Windows:
    """The windows of one monitor. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: tuple[Window, ...] = ()
        self._past: deque[Window] = deque(maxlen=KEPT_WINDOWS)
        self._last: Row | None = None

    @property
    def past(self) -> tuple[Window, ...]:
        """The last ones that have ended, in the order of their ends."""
        with self._lock:
            return tuple(self._past)

    def admit(self, window: Window) -> Row | None:
        """Hand a window readings from now on; gives the last one before."""
        with self._lock:
            self._open = (*self._open, window)
            return self._last

    def dismiss(self, window: Window, expected: bool) -> None:
        """A window has ended; whether one more reading is expected for it."""
        with self._lock:
            self._past.append(window)
            if not expected:
                self._remove(window)

    def feed(self, row: Row) -> None:
        """Hand a reading to every open window; those that it closes get no more."""
        with self._lock:
            self._last, windows = row, self._open
        closed = [window for window in windows if window.feed(row)]
        if closed:
            with self._lock:
                self._remove(*closed)

    def settle(self) -> None:
        """No reading will come for a while: what has ended waits for none. What is open goes on when one comes."""
        with self._lock:
            ended = [window for window in self._open if window.ended]
            self._remove(*ended)
        for window in ended:
            window.close()

    def _remove(self, *windows: Window) -> None:
        self._open = tuple(other for other in self._open if other not in windows)
