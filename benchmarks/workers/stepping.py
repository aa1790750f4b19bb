"""A clock for measuring what happens at a pace without waiting for it."""

from __future__ import annotations

import time

START_NS = time.time_ns()


class SteppingClock:
    """A clock that only moves when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        """The seconds it was moved by."""
        return self.now

    def time_ns(self) -> int:
        """The same on the calendar."""
        return START_NS + int(self.now * 1e9)
