"""Time, as an object that tests replace."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Where intervals and timestamps are taken from. Waiting is always real: only measuring goes through here."""

    def monotonic(self) -> float:
        """Seconds since some fixed point, never going back."""
        ...

    def time_ns(self) -> int:
        """Nanoseconds since 1970-01-01 UTC."""
        ...


class SystemClock:
    """The machine's own clocks."""

    monotonic = staticmethod(time.monotonic)
    time_ns = staticmethod(time.time_ns)


SYSTEM_CLOCK: Clock = SystemClock()
