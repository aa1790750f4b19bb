"""A part gives the keys that come from one source: a file of ``/proc``, or what psutil has in its place.

The reader runs its parts in order and shares with each what earlier ones found, so that the memory limit of the cgroup is the
denominator of the process's share, and one failing part costs its own keys only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, Protocol, TypeVar

from accelmetrics.backends.contract import NO_REASONS, Block, Number
from accelmetrics.schemas.reasons import Unavailable

T = TypeVar("T")
Clock = Callable[[], float]
"""Monotonic seconds."""
SLOW_PACE = 0.95
"""Seconds for which disks, network, power and cgroups are not read again: a reading every second always finds them due."""


class Source(Generic[T]):
    """Where a part gets its numbers.

    Attributes:
        what: What is read, in words.
        read: Reads it. Raises ``OSError`` when it cannot be had and ``ValueError`` when it makes no sense.
    """

    __slots__ = ("read", "what")

    def __init__(self, what: str, read: Callable[[], T]) -> None:
        self.what = what
        self.read = read


class Moment:
    """The reading in progress, and what the parts of this reader know of the host: a part that is not due leaves what it knew.

    Attributes:
        clock: The clock, for parts that take differences: they stamp them where they read, as reads may wait.
        now: When the reading began, by that clock.
        progress: Where progress is reported, after each part and within those that may read many files.
        online: Numbers of the CPUs that are on, empty when unknown.
        memory_total: The host's memory in bytes, None when unknown.
        memory_limit: The tightest cgroup limit in bytes that is below the host's memory, None without one.
        cpu_quota: The tightest cgroup quota in CPUs, None without one.
        failed: Whether the part that is running could not be read, and is to be tried again at the next reading.
        values: Values of the part that is running, by key.
        reasons: Its missing keys.
    """

    __slots__ = ("clock", "cpu_quota", "failed", "memory_limit", "memory_total", "now", "online", "progress", "reasons", "values")

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.now = 0.0
        self.progress: list[Any] = []
        self.online: tuple[int, ...] = ()
        self.memory_total: int | None = None
        self.memory_limit: int | None = None
        self.cpu_quota: float | None = None
        self.failed = False
        self.values: dict[str, Number] = {}
        self.reasons: dict[str, Unavailable] = {}

    def begin(self, progress: list[Any]) -> None:
        """Another reading begins now."""
        self.now = self.clock()
        self.progress = progress

    def put(self, name: str, value: Number | Unavailable) -> None:
        """Note a key's value, or why it has none."""
        if isinstance(value, Unavailable):
            self.reasons[name] = value
        else:
            self.values[name] = value

    def miss(self, names: Iterable[str], why: Unavailable) -> None:
        """Note the same reason for several keys."""
        for name in names:
            self.reasons[name] = why


class Part(Protocol):
    """One group of keys."""

    def read(self, moment: Moment) -> None:
        """Put each of the part's keys into ``moment.values`` or ``moment.reasons``."""
        ...


class Sheet:
    """Runs one part and turns its keys into a block, with the same tuple and mapping as last time while they are equal.

    Args:
        part: The part.
        pace: Seconds for which a block is kept, 0 for none; rates are over the intervals really taken. The first two readings
            are taken whenever they are asked for, so that rates are there as soon as there is an interval.
    """

    __slots__ = ("_block", "_due", "_names", "_pace", "_part", "_readings", "reasons")

    def __init__(self, part: Part, pace: float = 0.0) -> None:
        self._part = part
        self._pace = pace
        self._due = 0.0
        self._readings = 0
        self._block = Block((), ())
        self._names: tuple[str, ...] = ()
        self.reasons: Mapping[str, Unavailable] = NO_REASONS

    def read(self, moment: Moment) -> Block:
        """Run the part, if it is due; its reasons are in ``reasons`` afterwards."""
        if self._readings < 2:
            self._readings += 1
        elif moment.now < self._due:
            return self._block
        self._block = self._read(moment)
        self._due = moment.now if moment.failed else moment.now + self._pace
        return self._block

    def _read(self, moment: Moment) -> Block:
        moment.failed = False
        moment.values = {}
        moment.reasons = {}
        self._part.read(moment)
        names = tuple(moment.values)
        if names != self._names:
            self._names = names
        if moment.reasons != self.reasons:
            self.reasons = moment.reasons
        return Block(self._names, tuple(moment.values.values()))
