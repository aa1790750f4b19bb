"""Statistics of one metric over a window, in bounded memory however long that lasts.

Values are kept as they are, each once with how often and how long it was seen, until there are too many different ones. From
then on neighbours share a cell whose width is half a percent of the value. Least, largest, last and mean stay exact.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

DISTINCT = 512
"""Different values up to which everything is exact."""
ACCURACY = 0.005
"""Relative width of a cell after that: what percentiles may be off by."""
_GROWTH = math.log1p(ACCURACY)


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
        seconds: The time that the readings stand for.
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
    """Takes readings and tells their summary at any moment."""

    __slots__ = ("_cells", "_count", "_last", "_max", "_min", "_plain", "_seconds", "_weighted", "_width")

    def __init__(self) -> None:
        self._cells: dict[float, list[float]] = {}
        self._width = 0.0
        self._count = 0
        self._seconds = 0.0
        self._weighted = 0.0
        self._plain = 0.0
        self._min, self._max, self._last = math.inf, -math.inf, 0.0

    @property
    def count(self) -> int:
        """Readings taken."""
        return self._count

    def add(self, value: float, seconds: float, times: int = 1) -> None:
        """Take a reading that stands for so many seconds, or several equal ones that stand for them together."""
        self._count += times
        self._seconds += seconds
        self._weighted += value * seconds
        self._plain += value * times
        self._last = value
        self._min, self._max = min(self._min, value), max(self._max, value)
        cell = _cell(value) if self._width else value
        held = self._cells.get(cell)
        if held is None:
            self._cells[cell] = [times, seconds]
            if len(self._cells) > DISTINCT and not self._width:
                self._coarsen()
        else:
            held[0] += times
            held[1] += seconds

    def summary(self) -> Summary:
        """What was taken so far; there must have been a reading."""
        mean = self._weighted / self._seconds if self._seconds > 0 else self._plain / self._count
        # The sum of equal values divided by their time may miss them by a rounding.
        mean = min(max(mean, self._min), self._max)
        p50, p95, p99 = self._percentiles((0.50, 0.95, 0.99))
        return Summary(self._count, mean, self._min, self._max, self._last, p50, p95, p99, self._seconds)

    def seconds_above(self, threshold: float) -> float:
        """For how long the value was above a threshold."""
        return sum(seconds for cell, (_, seconds) in self._cells.items() if self._clipped(cell) > threshold)

    def _percentiles(self, shares: Iterable[float]) -> Iterator[float]:
        cells = sorted(self._cells.items())
        for share in shares:
            rank, seen = math.ceil(share * self._count), 0.0
            for cell, (times, _) in cells:
                seen += times
                if seen >= rank:
                    yield self._clipped(cell)
                    break

    def _clipped(self, cell: float) -> float:
        return min(max(cell, self._min), self._max)

    def _coarsen(self) -> None:
        """Put neighbours together from now on."""
        self._width = ACCURACY
        cells: dict[float, list[float]] = {}
        for value, (times, seconds) in self._cells.items():
            held = cells.setdefault(_cell(value), [0, 0.0])
            held[0] += times
            held[1] += seconds
        self._cells = cells


def _cell(value: float) -> float:
    """The middle of the cell that a value falls into: cells grow with the value, and 0 has its own."""
    if value == 0:
        return 0.0
    step = round(math.log(abs(value)) / _GROWTH)
    return math.copysign(math.exp(step * _GROWTH), value)
