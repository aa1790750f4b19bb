"""Enumeration that no single GPU can hold up: places are opened one after the other on a thread of their own.

When a call into the driver has not returned for a while, the thread keeps the GPU that it is stuck with, and another one
goes on with the rest. The place says meanwhile that its call hangs; it is listed with all that is known of it once the call
returns.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from typing import Any, Protocol

from accelmetrics.backends.guard import guarded

PATIENCE, LATER_PATIENCE = 4.0, 1.0
"""Seconds without an answer to a single call after which it counts as hung, the first time and after that. Without persistence
mode a GPU that nobody uses is initialised by looking up its handle, which takes up to three seconds."""


class Openable(Protocol):
    """A place that can be opened."""

    def open(self, steps: list[Any]) -> None:
        """Find out what is needed to list the device, appending to ``steps`` after every call."""
        ...


class _Opener(threading.Thread):
    """Opens places until there are none left, or until it is disowned."""

    def __init__(self, pending: deque[Openable]) -> None:
        super().__init__(name="accelmetrics-nvidia-open", daemon=True)
        self.disowned = False
        self._pending = pending
        self._steps: list[Any] = []
        self._done = threading.Event()

    def run(self) -> None:
        while not self.disowned and self._pending:
            guarded(self._pending.popleft().open, self._steps)
        self._done.set()

    def finishes(self, patience: float) -> bool:
        """Wait until it is done, or until no call has returned for so many seconds."""
        seen = -1
        while not self._done.wait(patience):
            if len(self._steps) == seen:
                return False
            seen = len(self._steps)
        return True


def open_places(places: Iterable[Openable]) -> bool:
    """Open them all, as far as the driver answers.

    Returns:
        Whether every call has returned.
    """
    pending = deque(places)
    patience = PATIENCE
    while pending:
        opener = _Opener(pending)
        opener.start()
        if not opener.finishes(patience):
            opener.disowned = True
            patience = LATER_PATIENCE
    return patience == PATIENCE
