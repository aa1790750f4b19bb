"""Readings reduced to a bounded number of points that keep the peaks: lowest, mean and highest value in buckets of equal time.

The length of a recording is unknown before its end. Buckets begin narrow, and when too many have readings, neighbours are merged in pairs.
Buckets begin at whole multiples of their width, so that the buckets of several recordings match.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from math import inf, isfinite, nan

BUCKETS = 1000
"""Largest number of buckets with readings."""
FINEST = 64
"""Initial number of buckets in a second: a power of two, so that every width is exact."""


Values = list[float | None]
"""Values by bucket; None without a value."""


class _Column:
    """The buckets of a metric, in the order of their first reading."""

    __slots__ = ("count", "high", "last", "latest", "low", "total")

    def __init__(self) -> None:
        self.low, self.high, self.total, self.last = array("d"), array("d"), array("d"), array("d")
        self.count = array("q")
        self.latest = nan

    def extend(self, slots: int) -> None:
        """Make room for ``slots`` buckets."""
        lacking = slots - len(self.count)
        for column, empty in ((self.low, inf), (self.high, -inf), (self.total, 0.0), (self.last, nan)):
            column.extend([empty] * lacking)
        self.count.extend([0] * lacking)

    def put(self, slot: int, low: float, high: float, total: float, count: int) -> None:
        """Add readings to a bucket."""
        self.low[slot] = min(self.low[slot], low)
        self.high[slot] = max(self.high[slot], high)
        self.total[slot] += total
        self.count[slot] += count
        self.last[slot] = self.latest

    def merged(self, groups: Sequence[Sequence[int]]) -> _Column:
        """Return a column with groups of buckets merged. The positions of each group are in order of time."""
        found = _Column()
        found.latest = self.latest
        found.extend(len(groups))
        for slot, members in enumerate(groups):
            for member in members:
                if self.count[member]:
                    found.low[slot] = min(found.low[slot], self.low[member])
                    found.high[slot] = max(found.high[slot], self.high[member])
                    found.total[slot] += self.total[member]
                    found.count[slot] += self.count[member]
                    found.last[slot] = self.last[member]
        return found


class SeriesReducer:
    """Columns of readings in buckets of time, with bounded memory and constant cost for each reading.

    Args:
        most: Largest number of buckets with readings.

    Attributes:
        width: Seconds of a bucket.
        columns: The buckets of each metric, by key.
    """

    def __init__(self, most: int = BUCKETS) -> None:
        self._most = most
        self.width = 1 / FINEST
        self.columns: dict[str, _Column] = {}
        self._slots: dict[int, int] = {}  # by number of the bucket, its position in columns
        self._newest = -inf

    def add(self, times: Sequence[float], columns: Mapping[str, Sequence[float]]) -> None:
        """Add readings.

        Args:
            times: Their times.
            columns: A value for each time, by key: infinity for a repeated value, NaN for none.
        """
        # Repeated values are added before buckets are merged, and the latest value of a bucket depends on the order of times.
        moments = [self._newest, *times]
        if moments == sorted(moments) and not any(inf in values for values in columns.values()):
            self._widen(times)
        self._newest = max(moments)
        # The stretches of readings that share a bucket: its position, and from where to where they stand.
        runs, end = [], 0
        for number, same in groupby(self._numbers(times)):
            begin, end = end, end + sum(1 for _ in same)
            runs.append((self._slots.setdefault(number, len(self._slots)), begin, end))
        for key, values in columns.items():
            column = self.columns.get(key)
            if column is None:
                column = self.columns[key] = _Column()
            column.extend(len(self._slots))
            first = values[0]
            if isfinite(first) and values.count(first) == len(values):  # most metrics do not change for a while
                column.latest = first
                for slot, begin, end in runs:
                    column.put(slot, first, first, first * (end - begin), end - begin)
                continue
            for slot, begin, end in runs:
                part: Sequence[float] = values[begin:end]
                total = sum(part)
                if not isfinite(total):
                    part = [value for value in part if isfinite(value)]
                    total = sum(part)
                    if not part:
                        if values[begin] == inf and not column.count[slot] and isfinite(column.latest):  # the previous value still applies
                            column.put(slot, column.latest, column.latest, column.latest, 1)
                        continue
                column.latest = part[-1]
                column.put(slot, min(part), max(part), total, len(part))
        self._widen(())

    def begins(self) -> list[float]:
        """Return the begin of each bucket with readings, rising."""
        return [number * self.width for number in sorted(self._slots)]

    def points(self, key: str) -> tuple[Values, Values, Values, Values]:
        """Return the lowest, mean, highest and last value of a column in each bucket, in the order of :meth:`begins`."""
        column = self.columns[key]
        column.extend(len(self._slots))
        order = [self._slots[number] for number in sorted(self._slots)]
        known = [slot if column.count[slot] else None for slot in order]
        low, high, last = ([None if slot is None else one[slot] for slot in known] for one in (column.low, column.high, column.last))
        # The sum of equal values divided by their number may miss them by a rounding.
        mean = [
            None if slot is None else min(max(column.total[slot] / column.count[slot], column.low[slot]), column.high[slot])
            for slot in known
        ]
        return low, mean, high, last

    def _numbers(self, times: Iterable[float]) -> Iterator[int]:
        """Yield the bucket number of each time."""
        return (int(moment / self.width // 1) for moment in times)

    def _widen(self, times: Iterable[float]) -> None:
        """If the new readings need too many buckets, double the width until half of the buckets are free."""
        numbers = self._slots.keys() | set(self._numbers(times))
        if len(numbers) <= self._most:
            return
        by = 1
        while len({number >> by for number in numbers}) > self._most // 2:
            by += 1
        groups = [(number, list(same)) for number, same in groupby(sorted(self._slots), lambda number: number >> by)]
        positions = [[self._slots[number] for number in members] for _, members in groups]
        for column in self.columns.values():
            column.extend(len(self._slots))  # the metrics of a lost device are not in every block
        self.columns = {key: column.merged(positions) for key, column in self.columns.items()}
        self._slots = {number: position for position, (number, _) in enumerate(groups)}
        self.width *= 2**by
