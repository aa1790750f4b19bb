"""Which windows of a monitor are open, and which have ended. Outlives the monitor's stops and starts, as windows may.

Without a lock, since each step is one call in C: windows are begun and ended by the program, whom a signal handler may interrupt
anywhere that uses the monitor itself, and fed by the beat, which must wait for nobody.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING
from weakref import ref

from accelmetrics.monitor.rows import Row

if TYPE_CHECKING:
    from accelmetrics.monitor.window import Window

KEPT_WINDOWS = 32
"""Windows that have ended and are still known; one of a day on eight GPUs takes up to a mebibyte or two."""


class Windows:
    """The windows of one monitor. Safe from any thread, and from signal handlers.

    Attributes:
        last: The last reading that was handed to windows, None before the first.
        silent: Whether a window waited for its last reading in vain, and none has come since.
    """

    def __init__(self) -> None:
        self.last: Row | None = None
        self.silent = False
        # Weak, as nobody can end a window that the program has lost, say by Ctrl-C in the middle of its beginning.
        self._open: dict[int, ref[Window]] = {}
        self._past: deque[Window] = deque(maxlen=KEPT_WINDOWS)

    @property
    def past(self) -> tuple[Window, ...]:
        """The last ones that have ended, in the order of their ends."""
        return tuple(self._past.copy())

    def admit(self, window: Window) -> None:
        """Hand a window readings from now on; the last one before may be among them."""
        self._open[id(window)] = ref(window)  # without a callback, which would swallow Ctrl-C

    def dismiss(self, window: Window, expected: bool) -> None:
        """A window has ended; whether one more reading is expected for it."""
        self._past.append(window)
        if not expected:
            self._open.pop(id(window), None)

    def feed(self, row: Row) -> None:
        """Hand a reading to every open window; those that it closes get no more."""
        self.last, self.silent = row, False
        for window in self._known():
            if window.feed(row):
                self._open.pop(id(window), None)

    def settle(self) -> None:
        """No reading will come for a while: what has ended waits for none. What is open goes on when one comes."""
        for window in self._known():
            if window.ended:
                self._open.pop(id(window), None)
                window.close()

    def _known(self) -> list[Window]:
        found = []
        for number, known in list(self._open.items()):
            window = known()
            if window is not None:
                found.append(window)
            elif self._open.get(number) is known:  # else another window has the number by now
                self._open.pop(number, None)
        return found
