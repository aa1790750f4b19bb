"""The statistics of one metric in bounded memory: count, extremes, mean over time, percentiles, time above a threshold."""

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
"""Different values up to which percentiles are exact."""
ACCURACY = 0.005
"""Relative width of a cell after that: what percentiles may be off by."""
MANY = 8
"""Readings from which on they are taken together: below that it costs more."""
RECENT = 256
"""Readings that wait to be put into their cells: sorting many at once costs a tenth of it."""
_GROWTH = math.log1p(ACCURACY)
_LARGEST = math.log(1.7e308)
_HALF = _GROWTH / 2
_NO_NUMBERS, _NO_COUNTS = array("d"), array("q")


class Accumulator:
    """Statistics of one metric, in bounded memory.

    Values are kept as they are, each once with how often and how long it was seen, until there are too many different ones.
    From then on neighbours share a cell whose width is half a percent of the value. Least, largest, last and mean stay exact.

    Args:
        waits: Whether its first reading will stand from the window's beginning on.
        timed: Whether it is kept how long each value stood, for :meth:`seconds_above`; without it readings cost half as much.

    Attributes:
        count: Readings taken.
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
        "_seconds",
        "_spans",
        "_stood",
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
        # Side by side, in the order of the values: 24 bytes a cell, where a dict of pairs takes ten times that. There are none
        # until there is a second value: most metrics do not change for long.
        self._cells: array[float] = _NO_NUMBERS
        self._times: array[int] = _NO_COUNTS
        self._spans: array[float] = _NO_NUMBERS
        # Readings that are not in their cells yet, and how long each stood.
        self._recent: array[float] = _NO_NUMBERS
        self._stood: array[float] = _NO_NUMBERS
        self._coarse = self.stands = False
        self.waits, self._timed = waits, timed
        self._seconds = self._weighted = self._plain = 0.0
        self._min, self._max = math.inf, -math.inf

    def __deepcopy__(self, memo: object) -> Accumulator:
        """Return an independent copy; a tenth of the time of a general one."""
        twin = Accumulator.__new__(Accumulator)
        for name in self.__slots__:
            setattr(twin, name, getattr(self, name))
        if self._cells:
            twin._cells, twin._times, twin._spans = self._cells[:], self._times[:], self._spans[:]
            twin._recent, twin._stood = self._recent[:], self._stood[:]
        return twin

    def following(self) -> Accumulator:
        """Return the statistics from here on: none yet, and the last reading stands where it does now."""
        found = Accumulator(timed=self._timed)
        found.last, found.stands = self.last, self.stands
        return found

    def add(self, value: float, seconds: float, times: int = 1) -> None:
        """Take a reading that stands for so many seconds, or several equal ones that stand for them together."""
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
        """Let the last reading stand for so much longer; there must have been one."""
        if seconds:
            if self._cells:
                self._put(self.last, 0, seconds)
            self._seconds += seconds
            self._weighted += self.last * seconds

    def fold(self, values: array[float], after: Sequence[float], spent: float, lead: float = 0.0, age: float = 0.0) -> None:
        """Take the values of rows between which nothing was left out.

        Args:
            values: Infinity where the last reading was served again, NaN where there was none.
            after: Seconds from each row to the next one; 0 after the last.
            spent: The sum of these, which is the same for all metrics.
            lead: Seconds from the row before them to the first one; 0 where something was left out there.
            age: Seconds from the window's beginning to the first row.
        """
        if self.stands:
            self.hold(lead)
        first, packed = values[0], values.tobytes()
        if isfinite(first) and packed == packed[:8] * len(values):  # most metrics do not change for a while
            self.add(first, spent + age if self.waits else spent, len(values))
            self.stands, self.waits = True, False
        elif len(values) < MANY or not isfinite(sum(values)):
            self._take_each(values, after, age)
        else:
            self._take_all(values, after, spent, age)

    def lose(self, seconds: float = 0.0) -> None:
        """End what stands, after so many seconds more: nothing is known until the next reading."""
        if self.stands:
            self.hold(seconds)
        self.stands = self.waits = False

    def close(self, value: float, seconds: float, duration: float) -> None:
        """Take the reading after the window's end: what stands did so until then, and a metric without any reading has this one.

        Args:
            value: The reading.
            seconds: From the last row to the window's end.
            duration: The whole window's.
        """
        if not self.count and isfinite(value):
            self.add(value, duration if self.waits else 0.0)
        elif self.stands:
            self.hold(seconds)

    def summary(self) -> Summary:
        """Return the statistics of what was taken so far; there must have been a reading."""
        only = self._max
        if only == self._min:  # as of most metrics
            return Summary(self.count, only, only, only, only, only, only, only, self._seconds)
        mean = self._weighted / self._seconds if self._seconds > 0 else self._plain / self.count
        # The sum of equal values divided by their time may miss them by a rounding.
        mean = self._clipped(mean)
        p50, p95, p99 = self.quantiles(50, 95, 99) if self._cells else (self._max,) * 3
        return Summary(self.count, mean, self._min, self._max, self.last, p50, p95, p99, self._seconds)

    def quantiles(self, *percents: int) -> list[float]:
        """Return what so many percent of the readings do not exceed; there must have been a reading."""
        if not self._cells:
            return [self._max] * len(percents)
        self.sort_in()
        ranks = list(accumulate(self._times))
        # In whole numbers: 0.95 times 180 is more than 171.
        return [self._clipped(self._cells[bisect_left(ranks, -(-percent * self.count // 100))]) for percent in percents]

    def cells(self) -> list[tuple[float, int]]:
        """Return the values, rising, each with how often it was read; within half a percent where there are many."""
        if not self._cells:
            return [(self._max, self.count)] if self.count else []
        self.sort_in()
        return [(self._clipped(cell), times) for cell, times in zip(self._cells, self._times, strict=True) if times]

    def seconds_above(self, threshold: float) -> float | None:
        """Return for how long the value was above a threshold; None where that is not kept."""
        if not self._timed:
            return None
        if not self._cells:
            return self._seconds if self._max > threshold else 0.0
        self.sort_in()
        return sum((seconds for cell, seconds in zip(self._cells, self._spans, strict=True) if self._clipped(cell) > threshold), 0.0)

    def sort_in(self) -> None:
        """Put the recent readings into their cells; asking for anything does it too."""
        if self._recent:
            self._insert(self._recent, None, self._stood)
            self._recent = self._stood = _NO_NUMBERS

    def _take_each(self, values: Iterable[float], after: Iterable[float], age: float) -> None:
        """Take values of which some may be no readings, one after another: what all other ways of folding come to."""
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
        """Take readings, each of which stands for so many seconds: a tenth of the time of taking each alone.

        Args:
            values: The readings.
            seconds: For how long each stands.
            spent: The sum of these.
            age: The seconds from the window's beginning to the first.
        """
        if self.waits:
            seconds, spent = [seconds[0] + age, *seconds[1:]], spent + age
        self.stands, self.waits = True, False
        column = values.tolist()
        least, largest = min(column), max(column)
        if not self.count and not self._seconds:
            self.last = column[0]
        self._vary()
        self._recent = self._recent + values
        if self._timed:
            self._stood = self._stood + array("d", seconds)
        self.count += len(column)
        self._seconds += spent
        self._weighted += sum(map(operator.mul, column, seconds))
        self._plain += sum(column)
        self.last = column[-1]
        self._min, self._max = min(self._min, least), max(self._max, largest)
        if len(self._recent) >= RECENT:
            self.sort_in()

    def _vary(self) -> None:
        """Have cells from now on: the values differ."""
        if not self._cells:
            self._cells, self._times, self._spans = array("d", [self.last]), array("q", [self.count]), array("d", [self._seconds])

    def _clipped(self, value: float) -> float:
        return min(max(value, self._min), self._max)

    def _put(self, value: float, times: int, seconds: float) -> None:
        """Count a value in its cell."""
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
        """Count many values in their cells, each once where nothing else is said."""
        if times is None and not self._coarse and len(set(values)) > DISTINCT:  # they would have a cell each for a moment
            self._share_cells()
            self._insert(values, times, seconds)
            return
        names = list(map(self._cell, values)) if self._coarse else values
        counted: Counter[float] = Counter()
        stood: defaultdict[float, float] = defaultdict(float)
        if times is None:
            counted.update(names)
        else:
            for name, number in zip(names, times, strict=True):
                counted[name] += number
        if self._timed:
            for name, spent in zip(names, seconds, strict=True):
                stood[name] += spent
        if 2 * len(counted) < len(self._cells):
            for cell, number in counted.items():
                self._put(cell, number, stood[cell])  # which may have them share cells from here on
            return
        all_times, all_spans = dict(zip(self._cells, self._times, strict=True)), dict(zip(self._cells, self._spans, strict=True))
        for cell, number in counted.items():
            all_times[cell] = all_times.get(cell, 0) + number
            all_spans[cell] = all_spans.get(cell, 0.0) + stood[cell]
        order = sorted(all_times)
        self._cells = array("d", order)
        self._times, self._spans = array("q", [all_times[cell] for cell in order]), array("d", [all_spans[cell] for cell in order])
        self._share_if_many()

    def _cell(self, value: float) -> float:
        """Return what stands for a value: itself, or the middle of a cell: cells grow with the value, and 0 has its own."""
        if not self._coarse or not value:
            return value
        return math.copysign(math.exp(min((math.log(abs(value)) + _HALF) // _GROWTH * _GROWTH, _LARGEST)), value)

    def _share_if_many(self) -> None:
        if len(self._cells) > DISTINCT and not self._coarse:
            self._share_cells()

    def _share_cells(self) -> None:
        """Have neighbours share cells from now on: there are too many values."""
        held = self._cells, self._times, self._spans
        self._cells, self._times, self._spans = array("d"), array("q"), array("d")
        self._coarse = True
        self._insert(*held)
