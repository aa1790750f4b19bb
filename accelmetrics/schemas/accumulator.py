"""Statistics of one metric in bounded memory: count, extremes, time-weighted mean, percentiles, time above a threshold."""

from __future__ import annotations

import math
import operator
from array import array
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import accumulate
from math import isfinite

from accelmetrics.schemas.summary import Summary

DISTINCT = 512
"""Number of different values up to which percentiles are exact."""
ACCURACY = 0.005
"""Relative width of a bucket once there are more values: the largest error of a percentile."""
MANY = 8
"""Number of readings from which on they are added together. Below that, adding each one costs less."""
RECENT = 256
"""Readings that wait to be sorted into their buckets. Sorting many at once takes a tenth of the time."""
_GROWTH = math.log1p(ACCURACY)
_LARGEST = math.log(1.7e308)
_NO_NUMBERS, _NO_COUNTS = array("d"), array("q")


class Accumulator:
    """Statistics of one metric, in bounded memory.

    Up to 512 different values are kept, each with its count and its time. With more, neighbouring values share a bucket whose width
    is half a percent of the value. Minimum, maximum, last value and mean stay exact.

    A reading "stands" from its time until the next one; its value is weighted by that time.

    Args:
        waits: Whether the first reading will stand from the window's beginning on.
        timed: Whether to keep the time of each value, for :meth:`seconds_above`. Without it, readings cost half as much.

    Attributes:
        count: The number of readings.
        last: The last reading; 0 before the first.
        stands: Whether the last reading stands until the next one.
        waits: Whether the first reading will stand from the window's beginning on.
    """

    __slots__ = (
        "_cells",
        "_coarse",
        "_max",
        "_min",
        "_plain",
        "_recent",
        "_recent_seconds",
        "_seconds",
        "_spans",
        "_timed",
        "_times",
        "_weighted",
        "count",
        "last",
        "stands",
        "waits",
    )

    def __init__(self, waits: bool = False, timed: bool = True) -> None:
        self.count = 0
        self.last = 0.0
        # Parallel arrays in the order of the values: 24 bytes a bucket, a tenth of a dict of pairs. They are empty until there is a
        # second value, since most metrics do not change for long.
        self._cells: array[float] = _NO_NUMBERS
        self._times: array[int] = _NO_COUNTS
        self._spans: array[float] = _NO_NUMBERS
        # Readings not yet sorted into their buckets, and the time of each.
        self._recent: array[float] = _NO_NUMBERS
        self._recent_seconds: array[float] = _NO_NUMBERS
        self._coarse = self.stands = False
        self.waits, self._timed = waits, timed
        self._seconds = self._weighted = self._plain = 0.0
        self._min, self._max = math.inf, -math.inf

    def __deepcopy__(self, memo: object) -> Accumulator:
        """Return an independent copy, in a tenth of the time of a generic one."""
        twin = Accumulator.__new__(Accumulator)
        for name in self.__slots__:
            setattr(twin, name, getattr(self, name))
        if self._cells:
            twin._cells, twin._times, twin._spans = self._cells[:], self._times[:], self._spans[:]
            twin._recent, twin._recent_seconds = self._recent[:], self._recent_seconds[:]
        return twin

    def following(self) -> Accumulator:
        """Return new statistics that begin here: without readings, but the last reading still stands."""
        found = Accumulator(timed=self._timed)
        found.last, found.stands = self.last, self.stands
        return found

    def add(self, value: float, seconds: float, times: int = 1) -> None:
        """Add a reading that stands for this many seconds, or several equal readings that stand for them together."""
        if value != self.last and not self._cells and (self.count or self._seconds):
            self._vary()
        if self._cells:
            self._put(value, times, seconds)
        self.count += times
        self._seconds += seconds
        self._weighted += value * seconds
        self._plain += value * times
        self.last = value
        if value < self._min:  # noqa: PLR1730 - twice as quick
            self._min = value
        if value > self._max:  # noqa: PLR1730
            self._max = value

    def hold(self, seconds: float) -> None:
        """Extend the time of the last reading. There must have been one."""
        if seconds:
            if self._cells:
                self._put(self.last, 0, seconds)
            self._seconds += seconds
            self._weighted += self.last * seconds

    def fold(self, values: array[float], after: Sequence[float], spent: float, lead: float = 0.0, age: float = 0.0) -> None:
        """Add the values of consecutive rows.

        Args:
            values: The values; infinity if the last reading was served again, NaN if there was none.
            after: Seconds from each row to the next one; 0 after the last.
            spent: The sum of ``after``, passed in because it is the same for all metrics.
            lead: Seconds from the row before them to the first one; 0 if something was left out between these.
            age: Seconds from the window's beginning to the first row.
        """
        if self.stands:
            self.hold(lead)
        first, packed = values[0], values.tobytes()
        if isfinite(first) and packed == packed[:8] * len(values):  # all equal: the usual case
            self.add(first, spent + age if self.waits else spent, len(values))
            self.stands, self.waits = True, False
        elif len(values) < MANY or not isfinite(sum(values)):
            self._take_each(values, after, age)
        else:
            self._take_all(values, after, spent, age)

    def lose(self, seconds: float = 0.0) -> None:
        """End the last reading after this many more seconds: the value is unknown until the next reading."""
        if self.stands:
            self.hold(seconds)
        self.stands = self.waits = False

    def close(self, value: float, seconds: float, duration: float) -> None:
        """Add the reading after the window's end.

        It extends the last reading to the end. It is the window's only reading if there was none.

        Args:
            value: The reading.
            seconds: Seconds from the last row to the window's end.
            duration: Seconds of the whole window.
        """
        if not self.count and isfinite(value):
            self.add(value, duration if self.waits else 0.0)
        elif self.stands:
            self.hold(seconds)

    def summary(self) -> Summary:
        """Return the statistics so far. There must have been a reading."""
        only = self._max
        if only == self._min:  # the value never changed: the usual case
            return Summary(self.count, only, only, only, only, only, only, only, self._seconds)
        mean = self._weighted / self._seconds if self._seconds > 0 else self._plain / self.count
        # By rounding, the mean of nearly equal values may lie just outside of them.
        mean, (p50, p95, p99) = self._clipped(mean), self.quantiles(50, 95, 99)
        return Summary(self.count, mean, self._min, self._max, self.last, p50, p95, p99, self._seconds)

    def quantiles(self, *percents: int) -> list[float]:
        """Return, for each percentage, the smallest value that this share of the readings does not exceed.

        There must have been a reading.
        """
        if not self._cells:
            return [self._max] * len(percents)
        self.sort_in()
        ranks = list(accumulate(self._times))
        # Integer arithmetic: as floats, 0.95 * 180 is more than 171.
        return [self._clipped(self._cells[bisect_left(ranks, -(-percent * self.count // 100))]) for percent in percents]

    def cells(self) -> list[tuple[float, int]]:
        """Return the values in rising order, each with its count; within half a percent if there are many values."""
        if not self._cells:
            return [(self._max, self.count)] if self.count else []
        self.sort_in()
        return [(self._clipped(cell), times) for cell, times in zip(self._cells, self._times, strict=True) if times]

    def seconds_above(self, threshold: float) -> float | None:
        """Return for how many seconds the value was above a threshold; None if times are not kept."""
        if not self._timed:
            return None
        if not self._cells:
            return self._seconds if self._max > threshold else 0.0
        self.sort_in()
        return sum((seconds for cell, seconds in zip(self._cells, self._spans, strict=True) if self._clipped(cell) > threshold), 0.0)

    def sort_in(self) -> None:
        """Sort the recent readings into their buckets. Every query does this first."""
        if self._recent:
            self._insert(self._recent, None, self._recent_seconds)
            self._recent = self._recent_seconds = _NO_NUMBERS

    def _take_each(self, values: Iterable[float], after: Iterable[float], age: float) -> None:
        """Add values one after another; some may be no readings. This is the reference that faster paths must agree with."""
        for value, seconds in zip(values, after, strict=True):
            if isfinite(value):
                self.add(value, seconds + age if self.waits else seconds)
                self.stands, self.waits = True, False
            elif math.isnan(value):
                self.stands = self.waits = False
            elif self.stands:
                self.hold(seconds)
            age += seconds

    def _take_all(self, values: array[float], seconds: Sequence[float], spent: float, age: float) -> None:
        """Add readings with the time of each, in a tenth of the time of adding them one by one.

        Args:
            values: The readings.
            seconds: The time of each.
            spent: The sum of ``seconds``.
            age: Seconds from the window's beginning to the first reading.
        """
        if self.waits:
            seconds, spent = [seconds[0] + age, *seconds[1:]], spent + age
        self.stands, self.waits = True, False
        column = values.tolist()
        if not self.count and not self._seconds:
            self.last = column[0]
        self._vary()
        self._recent = self._recent + values
        if self._timed:
            self._recent_seconds = self._recent_seconds + array("d", seconds)
        self.count += len(column)
        self._seconds += spent
        self._weighted += sum(map(operator.mul, column, seconds))
        self._plain += sum(column)
        self.last = column[-1]
        self._min, self._max = min(self._min, *column), max(self._max, *column)
        if len(self._recent) >= RECENT:
            self.sort_in()

    def _vary(self) -> None:
        """Start using buckets, because a second value has come."""
        if not self._cells:
            self._cells, self._times, self._spans = array("d", [self.last]), array("q", [self.count]), array("d", [self._seconds])

    def _clipped(self, value: float) -> float:
        return min(max(value, self._min), self._max)

    def _put(self, value: float, times: int, seconds: float) -> None:
        """Count a value in its bucket."""
        cell = self._cell(value)
        position = bisect_left(self._cells, cell)
        if position < len(self._cells) and self._cells[position] == cell:
            self._times[position] += times
            self._spans[position] += seconds
            return
        self._cells.insert(position, cell)
        self._times.insert(position, times)
        self._spans.insert(position, seconds)
        self._share_if_many()

    def _insert(self, values: Sequence[float], times: Iterable[int] | None, seconds: Iterable[float]) -> None:
        """Count many values in their buckets, each value once if ``times`` is None."""
        if times is None and not self._coarse and len(set(values)) > DISTINCT:  # else each value has a bucket for a moment
            self._share_cells()
            self._insert(values, times, seconds)
            return
        names = list(map(self._cell, values)) if self._coarse else values
        counted, stood = Counter[float](names if times is None else ()), defaultdict[float, float](float)
        for name, number in zip(names, times or (), strict=False):
            counted[name] += number
        for name, spent in zip(names, seconds if self._timed else (), strict=False):
            stood[name] += spent
        # Few values: inserting each costs less than building the arrays again.
        if 2 * len(counted) < len(self._cells):
            for cell, number in counted.items():
                self._put(cell, number, stood[cell])  # may make values share buckets from here on
            return
        all_times, all_spans = dict(zip(self._cells, self._times, strict=True)), dict(zip(self._cells, self._spans, strict=True))
        for cell, number in counted.items():
            all_times[cell] = all_times.get(cell, 0) + number
            all_spans[cell] = all_spans.get(cell, 0.0) + stood[cell]
        self._cells = array("d", sorted(all_times))
        self._times, self._spans = array("q", map(all_times.__getitem__, self._cells)), array("d", map(all_spans.__getitem__, self._cells))
        self._share_if_many()

    def _cell(self, value: float) -> float:
        """Return the histogram bucket of a value: the value itself, or the midpoint of its logarithmic bucket.

        0 has its own bucket.
        """
        if not self._coarse or not value:
            return value
        # Equal steps of the logarithm make each bucket's width the same share of its value.
        return math.copysign(math.exp(min((math.log(abs(value)) + _GROWTH / 2) // _GROWTH * _GROWTH, _LARGEST)), value)

    def _share_if_many(self) -> None:
        if len(self._cells) > DISTINCT and not self._coarse:
            self._share_cells()

    def _share_cells(self) -> None:
        """Make neighbouring values share buckets from now on, because there are too many values."""
        held = self._cells, self._times, self._spans
        self._cells, self._times, self._spans = array("d"), array("q"), array("d")
        self._coarse = True
        self._insert(*held)
