"""Sources that are asked for everything at once: one answer is a *round*, and serves every unit and every consumer.

A unit that a consumer has had from the latest round gets a new one. Units and consumers that have not had it are served it
while it is fresh; whoever asks while one is made waits for that one. What fails in the making is raised, and the round before
it stays the latest.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from accelmetrics.backends.clock import Clock
from accelmetrics.schemas.identity import DeviceProcess

Record = Mapping[str, Any]
"""What a source says of one device, as it is printed."""


class DeviceSample(NamedTuple):
    """One device as a poll found it.

    Attributes:
        record: What the source says of it; or a function that reads it, called when the device is read.
        processes: The processes that use it; None where the source cannot say.
        read_at: When the source took the numbers, on the monotonic clock; None for when the poll ended.
    """

    record: Record | Callable[[], Record]
    processes: tuple[DeviceProcess, ...] | None = None
    read_at: float | None = None


PollOnce = Callable[[], Iterable[DeviceSample]]
"""Asks the source once for all of its devices. May have a method ``close``."""
Connect = Callable[[], PollOnce]
"""Opens the source, or raises ``SourceError``."""


class Poll(Protocol):
    """What asking once came to."""

    @property
    def number(self) -> int:
        """Counted from 1."""
        ...

    @property
    def finished(self) -> float:
        """When the answer was there, in seconds on the monotonic clock."""
        ...


R = TypeVar("R", bound=Poll)


class PollCache(Generic[R]):
    """The latest round of an open source. Any thread may ask.

    Args:
        first: The one that opening the source came to.
        clock: Where the age of a round is taken from.
        fresh: Seconds for which a round is served to units and consumers that have not had it.
    """

    def __init__(self, first: R, clock: Clock, fresh: float) -> None:
        self._clock = clock
        self._fresh = fresh
        self._lock = threading.Lock()
        self.latest = first

    def get(self, had: int, make: Callable[[int], R]) -> R:
        """The latest round while it is fresh, else a new one.

        Args:
            had: Number of the round that the caller was given last for the unit it reads now, 0 at first.
            make: Makes a round of that number.
        """
        asked = self._clock.monotonic()
        with self._lock:
            if self.latest.number <= had or asked - self.latest.finished >= self._fresh:
                self.latest = make(self.latest.number + 1)
            return self.latest
