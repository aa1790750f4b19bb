"""Statistics of one metric over a window, in bounded memory however long that lasts.

Values are kept as they are, each once with how often and how long it was seen, until there are too many different ones. From
then on neighbours share a cell whose width is half a percent of the value. Least, largest, last and mean stay exact.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate
from typing import NamedTuple

DISTINCT = 512
"""Different values up to which everything is exact."""
ACCURACY = 0.005
"""Relative width of a cell after that: what percentiles may be off by."""
_GROWTH = math.log1p(ACCURACY)
_LARGEST = math.log(1.7e308)
_NO_NUMBERS, _NO_COUNTS = array("d"), array("q")


class Summary(NamedTuple):
    """One metric over a window.

    Attributes:
        count: Readings. One that was served twice counts once; an absent value does not count, a measured 0 does.
        mean: Weighted by the time that each reading stands for.
        min: The least value.
        max: The largest value.
        last: The last value.
        p50: The median: a value that half of the readings do not exceed. Percentiles are of readings, by nearest rank, exact
            up to 512 different values and within 0.5 % beyond.
        p95: What 95 % of the readings do not exceed.
        p99: What 99 % of the readings do not exceed.
        seconds: The time that the readings stand for: each until the next one.
    """

    count: int  # type: ignore[assignment]  # read by name, never searched
    mean: float
    min: float
    max: float
    last: float
    p50: float
    p95: float
    p99: float
    seconds: float


class Accumulator:
    """Takes readings and tells their summary at any moment.

    Attributes:
        last: The last reading; 0 before the first.
    """

    __slots__ = ("_cells", "_coarse", "_count", "_max", "_min", "_plain", "_seconds", "_spans", "_times", "_told", "_weighted", "last")

    def __init__(self) -> None:
        self.last = 0.0
        self._told: Summary | None = None
        # Side by side, in the order of the values: 24 bytes a cell, where a dict of pairs takes ten times that. The first
        # value needs none until there is another: most metrics do not change for long.
        self._cells: array[float] = _NO_NUMBERS
        self._times: array[int] = _NO_COUNTS
        self._spans: array[float] = _NO_NUMBERS
        self._coarse = False
        self._count = 0
        self._seconds = 0.0
        self._weighted = 0.0
        self._plain = 0.0
        self._min, self._max = math.inf, -math.inf

    @property
    def count(self) -> int:
        """Readings taken."""
        return self._count

    def add(self, value: float, seconds: float, times: int = 1) -> None:
        """Take a reading that stands for so many seconds, or several equal ones that stand for them together."""
        if self._cells or not self._min == value == self._max:
            self._put_apart(value, times, seconds)
        self._count += times
        self._seconds += seconds
        self._weighted += value * seconds
        self._plain += value * times
        self.last = value
        self._told = None
        if value < self._min:  # noqa: PLR1730 - twice as quick
            self._min = value
        if value > self._max:  # noqa: PLR1730
            self._max = value

    def hold(self, seconds: float) -> None:
        """The last reading stands for so much longer; there must have been one."""
        if seconds:
            if self._cells:
                self._put(_cell(self.last) if self._coarse else self.last, 0, seconds)
            self._seconds += seconds
            self._weighted += self.last * seconds
            self._told = None

    def summary(self) -> Summary:
        """What was taken so far; there must have been a reading."""
        if self._told is None:
            self._told = self._summed_up()
        return self._told

    def _summed_up(self) -> Summary:
        mean = self._weighted / self._seconds if self._seconds > 0 else self._plain / self._count
        # The sum of equal values divided by their time may miss them by a rounding.
        mean = min(max(mean, self._min), self._max)
        p50, p95, p99 = self._percentiles((50, 95, 99))
        return Summary(self._count, mean, self._min, self._max, self.last, p50, p95, p99, self._seconds)

    def seconds_above(self, threshold: float) -> float:
        """For how long the value was above a threshold."""
        if not self._cells:
            return self._seconds if self._max > threshold else 0.0
        return sum((seconds for cell, seconds in zip(self._cells, self._spans, strict=True) if self._clipped(cell) > threshold), 0.0)

    def _percentiles(self, percents: Iterable[int]) -> list[float]:
        if not self._cells:
            return [self._max for _ in percents]
        ranks = list(accumulate(self._times))
        # In whole numbers: 0.95 times 180 is more than 171.
        places = [bisect_left(ranks, -(-percent * self._count // 100)) for percent in percents]
        return [self._clipped(self._cells[place]) for place in places]

    def _clipped(self, cell: float) -> float:
        return min(max(cell, self._min), self._max)

    def _put_apart(self, value: float, times: int, seconds: float) -> None:
        """Keep a value that is, or may be, another than the first."""
        if not self._cells and self._count:
            self._cells, self._times, self._spans = array("d", [self._max]), array("q", [self._count]), array("d", [self._seconds])
        if self._cells:
            self._put(_cell(value) if self._coarse else value, times, seconds)
        if len(self._cells) > DISTINCT and not self._coarse:
            self._coarsen()

    def _put(self, cell: float, times: int, seconds: float) -> None:
        place = bisect_left(self._cells, cell)
        if place < len(self._cells) and self._cells[place] == cell:
            self._times[place] += times
            self._spans[place] += seconds
        else:
            self._cells.insert(place, cell)
            self._times.insert(place, times)
            self._spans.insert(place, seconds)

    def _coarsen(self) -> None:
        """Put neighbours together from now on."""
        held = zip(self._cells, self._times, self._spans, strict=True)
        self._cells, self._times, self._spans = array("d"), array("q"), array("d")
        self._coarse = True
        for value, times, seconds in held:
            self._put(_cell(value), times, seconds)


def _cell(value: float) -> float:
    """The middle of the cell that a value falls into: cells grow with the value, and 0 has its own."""
    if value == 0:
        return 0.0
    step = round(math.log(abs(value)) / _GROWTH)
    return math.copysign(math.exp(min(step * _GROWTH, _LARGEST)), value)
