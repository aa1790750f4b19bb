"""What polls have in common: one answer serves all units and consumers, and readings that did not change keep their objects."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Generic, Protocol, TypeVar

from accelmetrics.backends.clock import Clock
from accelmetrics.backends.contract import NO_REASONS, Block, Number, Reading
from accelmetrics.backends.kit.fields import Value
from accelmetrics.schemas.identity import DeviceProcess
from accelmetrics.schemas.reasons import Unavailable


class Poll(Protocol):
    """What asking a source once came to."""

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
    """The latest poll of an open source. Any thread may ask.

    Args:
        first: The one that opening the source came to.
        clock: Where the age of a poll is taken from.
        fresh: Seconds for which a poll is served to units and consumers that have not had it.
    """

    def __init__(self, first: R, clock: Clock, fresh: float) -> None:
        self._clock = clock
        self._fresh = fresh
        self._lock = threading.Lock()
        self.latest = first

    def get(self, had: int, make: Callable[[int], R]) -> R:
        """The latest poll while it is fresh, else a new one.

        Args:
            had: Number of the poll that the caller was given last for the unit it reads now, 0 at first.
            make: Makes a poll of that number.
        """
        asked = self._clock.monotonic()
        with self._lock:
            if self.latest.number <= had or asked - self.latest.finished >= self._fresh:
                self.latest = make(self.latest.number + 1)
            return self.latest


class Form:
    """One unit's readings: names and reasons that did not change are the same objects, so that the sampler builds nothing anew."""

    def __init__(self) -> None:
        self._names: dict[bool, tuple[str, ...]] = {}
        self._reasons: Mapping[str, Unavailable] = NO_REASONS

    def reading(
        self,
        found: Mapping[str, Value],
        processes: tuple[DeviceProcess, ...] | None = None,
        read_at: float | None = None,
        used: Mapping[str, Number] | None = None,
    ) -> Reading:
        """The reading.

        Args:
            found: By metric, its value or why there is none.
            processes: The processes that use the device; None where that is not known.
            read_at: When the source took the numbers, in seconds on the monotonic clock; None for now.
            used: By metric, what the watched process uses of the device.
        """
        values = {name: value for name, value in found.items() if not isinstance(value, Unavailable)}
        reasons = {name: value for name, value in found.items() if isinstance(value, Unavailable)}
        if reasons != self._reasons:
            self._reasons = reasons
        blocks = [self._block(values, False)] if used is None else [self._block(values, False), self._block(used, True)]
        return Reading(blocks, self._reasons, processes, read_at)

    def _block(self, values: Mapping[str, Number], process: bool) -> Block:
        names = tuple(values)
        if names != self._names.get(process):
            self._names[process] = names
        return Block(self._names[process], tuple(values.values()), process)
