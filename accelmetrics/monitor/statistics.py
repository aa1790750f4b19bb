"""The statistics of a window: what becomes of its readings, a block of them at a time, in bounded memory however long it lasts.

A reading stands until the next one of the same key, or until the window's end; the first one from the window's beginning on,
where the reading before that is known to have had the key too. So a key is in one of three states, from row to row:

- its last reading stands: the time until the next row, and the value that is there then, go on from it;
- it waits: since the window's beginning it has only been served again, and its first reading will stand from there on;
- nothing is known of it: it was absent, or something was left out (a pause, a start). Its next reading stands from its own
  moment on.

The row after the window's end shows that the window was watched until then. It counts where there was no other.
"""

from __future__ import annotations

import functools
import math
import operator
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from math import isfinite

from accelmetrics.monitor.energy import COUNTER, DRAW, DeviceEnergy
from accelmetrics.monitor.history import REPEATED, HistoryRow, Layout, device_columns
from accelmetrics.schemas.catalogue import match
from accelmetrics.schemas.errors import UnknownNameError
from accelmetrics.schemas.summary import CrossDeviceStatistics, Energy, Summary
from accelmetrics.schemas.vitals import MEMORY_PERCENT, MEMORY_USED, POWER, UTILIZATION

AGGREGATED = frozenset((*UTILIZATION, "memory", *MEMORY_PERCENT, *MEMORY_USED, *POWER))
"""Names whose values are also taken over all devices of a reading."""
COUNTED = f".{COUNTER}"
ACROSS = ("mean", "max", "total")
DISTINCT = 512
"""Different values up to which percentiles are exact."""
ACCURACY = 0.005
"""Relative width of a cell after that: what percentiles may be off by."""
MANY = 8
"""Readings from which on they are taken together: below that it costs more."""
_GROWTH = math.log1p(ACCURACY)
_LARGEST = math.log(1.7e308)
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
    """

    __slots__ = (
        "_cells",
        "_coarse",
        "_max",
        "_min",
        "_plain",
        "_seconds",
        "_spans",
        "_stands",
        "_timed",
        "_times",
        "_waits",
        "_weighted",
        "count",
        "last",
    )

    def __init__(self, waits: bool = False, timed: bool = True) -> None:
        self.count = 0
        self.last = 0.0
        # Side by side, in the order of the values: 24 bytes a cell, where a dict of pairs takes ten times that. There are none
        # until there is a second value: most metrics do not change for long.
        self._cells: array[float] = _NO_NUMBERS
        self._times: array[int] = _NO_COUNTS
        self._spans: array[float] = _NO_NUMBERS
        self._coarse = self._stands = False
        self._waits, self._timed = waits, timed
        self._seconds = self._weighted = self._plain = 0.0
        self._min, self._max = math.inf, -math.inf

    def __deepcopy__(self, memo: object) -> Accumulator:
        """Return an independent copy; a tenth of the time of a general one."""
        twin = Accumulator.__new__(Accumulator)
        for name in self.__slots__:
            setattr(twin, name, getattr(self, name))
        if self._cells:
            twin._cells, twin._times, twin._spans = self._cells[:], self._times[:], self._spans[:]
        return twin

    def following(self) -> Accumulator:
        """Return the statistics from here on: none yet, and the last reading stands where it does now."""
        found = Accumulator(timed=self._timed)
        found.last, found._stands = self.last, self._stands
        return found

    def add(self, value: float, seconds: float, times: int = 1) -> None:
        """Take a reading that stands for so many seconds, or several equal ones that stand for them together."""
        if self.count and value != self.last and not self._cells:
            self._cells, self._times, self._spans = array("d", [self.last]), array("q", [self.count]), array("d", [self._seconds])
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

    def fold(self, values: array[float], lead: float, after: Sequence[float], ages: Sequence[float]) -> None:
        """Take the values of rows between which nothing was left out.

        Args:
            values: Infinity where the last reading was served again, NaN where there was none.
            lead: Seconds from the row before them to the first one; 0 where something was left out there.
            after: Seconds from each row to the next one; 0 after the last.
            ages: Seconds from the window's beginning to each row.
        """
        if self._stands:
            self.hold(lead)
        stands, waits, first = self._stands, self._waits, values[0]
        if isfinite(first) and values.count(first) == len(values):  # most metrics do not change for a while
            self.add(first, sum(after, ages[0] if waits else 0.0), len(values))
            stands, waits = True, False
        elif len(values) >= MANY and isfinite(sum(values)):
            self._add_all(values, [after[0] + ages[0], *after[1:]] if waits else after)
            stands, waits = True, False
        else:
            for value, seconds, age in zip(values, after, ages, strict=True):
                if isfinite(value):
                    self.add(value, seconds + age if waits else seconds)
                    stands, waits = True, False
                elif math.isnan(value):
                    stands = waits = False
                elif stands:
                    self.hold(seconds)
        self._stands, self._waits = stands, waits

    def lose(self, seconds: float = 0.0) -> None:
        """End what stands, after so many seconds more: nothing is known until the next reading."""
        if self._stands:
            self.hold(seconds)
        self._stands = self._waits = False

    def close(self, value: float, seconds: float, duration: float) -> None:
        """Take the reading after the window's end: what stands did so until then, and a metric without any reading has this one.

        Args:
            value: The reading.
            seconds: From the last row to the window's end.
            duration: The whole window's.
        """
        if not self.count and isfinite(value):
            self.add(value, duration if self._waits else 0.0)
        elif self._stands:
            self.hold(seconds)

    def summary(self) -> Summary:
        """Return the statistics of what was taken so far; there must have been a reading."""
        mean = self._weighted / self._seconds if self._seconds > 0 else self._plain / self.count
        # The sum of equal values divided by their time may miss them by a rounding.
        mean = self._clipped(mean)
        p50, p95, p99 = self.quantiles(50, 95, 99)
        return Summary(self.count, mean, self._min, self._max, self.last, p50, p95, p99, self._seconds)

    def quantiles(self, *percents: int) -> list[float]:
        """Return what so many percent of the readings do not exceed; there must have been a reading."""
        if not self._cells:
            return [self._max] * len(percents)
        ranks = list(accumulate(self._times))
        # In whole numbers: 0.95 times 180 is more than 171.
        return [self._clipped(self._cells[bisect_left(ranks, -(-percent * self.count // 100))]) for percent in percents]

    def cells(self) -> list[tuple[float, int]]:
        """Return the values, rising, each with how often it was read; within half a percent where there are many."""
        if not self._cells:
            return [(self._max, self.count)] if self.count else []
        return [(self._clipped(cell), times) for cell, times in zip(self._cells, self._times, strict=True)]

    def seconds_above(self, threshold: float) -> float | None:
        """Return for how long the value was above a threshold; None where that is not kept."""
        if not self._timed:
            return None
        if not self._cells:
            return self._seconds if self._max > threshold else 0.0
        return sum((seconds for cell, seconds in zip(self._cells, self._spans, strict=True) if self._clipped(cell) > threshold), 0.0)

    def _add_all(self, values: array[float], seconds: Sequence[float]) -> None:
        """Take readings of which some differ, each of which stands for so many seconds: a tenth of the time of taking each alone."""
        if self.count and not self._cells:
            self._cells, self._times, self._spans = array("d", [self.last]), array("q", [self.count]), array("d", [self._seconds])
        times, spans = dict(zip(self._cells, self._times, strict=True)), dict(zip(self._cells, self._spans, strict=True))
        if self._timed:
            order = sorted(range(len(values)), key=values.__getitem__)
            rising = [values[position] for position in order]
            until = list(accumulate([seconds[position] for position in order], initial=0.0))
        elif self._coarse:
            rising, until = sorted(values), [0.0] * (len(values) + 1)
        else:
            rising, until = [], []
            counts = Counter(values)
            lowest, highest = min(counts), max(counts)
            for value, number in counts.items():
                times[value] = times.get(value, 0) + number
        if rising:
            lowest, highest = rising[0], rising[-1]
        begin = 0
        while begin < len(rising):
            value = cell = rising[begin]
            if self._coarse and value > 0:  # to the upper end of its cell
                step = round(math.log(value) / _GROWTH)
                cell = _middle(step)
                end = bisect_left(rising, math.exp(min((step + 0.5) * _GROWTH, _LARGEST)), begin + 1)
            else:
                cell = self._cell(value)
                end = bisect_right(rising, value, begin)
            times[cell] = times.get(cell, 0) + end - begin
            spans[cell] = spans.get(cell, 0.0) + until[end] - until[begin]
            begin = end
        cells = sorted(times)
        self._cells, self._times = array("d", cells), array("q", [times[cell] for cell in cells])
        self._spans = array("d", [spans.get(cell, 0.0) for cell in cells])
        self._bound()
        self.count += len(values)
        self._seconds += sum(seconds)
        self._weighted += sum(map(operator.mul, values, seconds))
        self._plain += sum(values)
        self.last = values[-1]
        self._min, self._max = min(self._min, lowest), max(self._max, highest)

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
        self._bound()

    def _cell(self, value: float) -> float:
        """Return what stands for a value: itself, or the middle of a cell: cells grow with the value, and 0 has its own."""
        if not self._coarse or not value:
            return value
        return math.copysign(_middle(round(math.log(abs(value)) / _GROWTH)), value)

    def _bound(self) -> None:
        """Have neighbours share cells from now on, where there are too many values."""
        if len(self._cells) > DISTINCT and not self._coarse:
            held = zip(self._cells, self._times, self._spans, strict=True)
            self._cells, self._times, self._spans = array("d"), array("q"), array("d")
            self._coarse = True
            for one in held:
                self._put(*one)


@functools.lru_cache(maxsize=4096)
def _middle(step: float) -> float:
    """Return the middle of a cell of so many steps."""
    return math.exp(min(step * _GROWTH, _LARGEST))


def _always(key: str) -> bool:
    """Return that it is kept how long each value of a metric stood."""
    del key
    return True


class WindowAggregator:
    """The statistics and the energy of a window so far, or of a recording.

    Args:
        begin: When it begins, on the clock of the rows.
        before: The last reading before that: what lies between it and the next one is known by both.
        trailing: Whether a reading stands for the time since the one before, and not until the next one. Windows that follow each
            other from reading to reading then count each reading once, and all of the time.
        across: Whether there are statistics over all devices too, and of the counters that energy is taken from.
        timed: Of which metrics it is kept how long each value stood; of all when left out.

    Attributes:
        energy: By device key.
        readings: Rows taken.
    """

    def __init__(
        self,
        begin: float,
        before: HistoryRow | None = None,
        trailing: bool = False,
        across: bool = True,
        timed: Callable[[str], bool] = _always,
    ) -> None:
        self._has_across, self._timed = across, timed
        self._members = _members if across else _no_members
        self.energy: dict[str, DeviceEnergy] = {}
        self.readings = 0
        self._trailing = trailing
        self._begin = begin
        self._at = begin  # the last row's moment
        self._layout: Layout | None = None
        self._metrics: dict[str, Accumulator] = {}
        self._across: dict[str, Accumulator] = {}  # over all devices: ``mean.powerWatts``
        self._known: dict[str, set[str]] = {}  # by name, the devices that ever had it
        self._last: dict[str, dict[str, float]] = {}  # by name, each device's last reading
        if before is not None:
            self._start_from(before)

    @property
    def metrics(self) -> Mapping[str, Accumulator]:
        """By key, the statistics of the readings."""
        return {key: held for key, held in self._metrics.items() if held.count}

    def fold(self, rows: Iterable[HistoryRow], end: float = math.inf) -> None:
        """Take readings, of which the last may be the one that closes the window; many at a time cost less."""
        block: list[HistoryRow] = []
        for row in rows:
            if row.at < self._begin:
                self._start_from(row)  # it was being taken when the window began
                continue
            if block and (row.layout != block[0].layout or not row.joined or row.at > end):
                self._fold(block, end)
                block = []
            block.append(row)
        if block:
            self._fold(block, end)

    def following(self) -> WindowAggregator:
        """Return the statistics of the next window, which begins where the last reading was taken."""
        found = WindowAggregator(self._at, None, self._trailing, self._has_across, self._timed)
        found._layout, found._known, found._last = self._layout, self._known, self._last
        found.energy = {key: held.following() for key, held in self.energy.items()}
        found._metrics = {key: held.following() for key, held in self._metrics.items()}
        found._across = {key: held.following() for key, held in self._across.items()}
        return found

    def summary(self) -> dict[str, Summary]:
        """Return, by key, the statistics of the readings."""
        return {key: held.summary() for key, held in self.metrics.items()}

    def energy_joules(self) -> dict[str, Energy]:
        """Return, by device key, the energy that it used."""
        return {key: energy for key, held in self.energy.items() if (energy := held.result()) is not None}

    def devices(self) -> dict[str, CrossDeviceStatistics]:
        """Return, by name, the metric over all devices."""
        found = {}
        for name in self._known:
            mean, largest, total = (self._across[f"{kind}.{name}"] for kind in ACROSS)
            if mean.count:
                found[name] = CrossDeviceStatistics(mean.summary(), largest.summary(), total.summary() if total.count else None)
        return found

    def seconds_above(self, key: str, threshold: float) -> float | None:
        """Return for how long a metric was above a threshold; None where it was not read, or that is not kept.

        Raises:
            UnknownNameError: It was not read, and there is no such metric.
        """
        held = self.metrics.get(key)
        if held is None and match(key) is None:
            raise UnknownNameError("metric of the window", key, self.metrics)
        return held.seconds_above(threshold) if held is not None else None

    def _start_from(self, row: HistoryRow) -> None:
        """Take a reading from before the beginning."""
        self._fold_energy([row._replace(at=min(row.at, self._begin))], self._begin)
        self._wait_for(row.layout)

    def _wait_for(self, layout: Layout) -> None:
        """Have the first readings of these keys stand from the window's beginning on."""
        self._layout = layout
        waits = not self._trailing
        self._metrics = {key: Accumulator(waits, self._timed(key)) for key in layout}
        self._across = {f"{kind}.{name}": Accumulator(waits) for name in self._members(layout) for kind in ACROSS}
        self._known = {name: set(positions) for name, positions in self._members(layout).items()}

    def _fold(self, rows: Sequence[HistoryRow], end: float) -> None:
        """Take rows of the same keys with no gap between them, or the one after the end."""
        self._fold_energy(rows, end)
        layout, joined, closing = rows[0].layout, rows[0].joined, rows[0].at > end
        if self._layout is None:  # nothing was read before: as if that had been, and had had the same keys
            self._wait_for(layout)
        moments = [row.at for row in rows]
        lead = max(0.0, min(moments[0], end) - self._at) if joined else 0.0
        after = [*(following - at for at, following in pairwise(moments)), 0.0]
        ages = [at - self._begin for at in moments]
        self.readings += len(rows)
        if self._trailing:
            lead, after = 0.0, [lead, *after[:-1]]
        if not joined:
            self._last.clear()
            for held in (*self._metrics.values(), *self._across.values()):
                held.lose()
        self._change_layout(layout, 0.0 if closing else lead)
        self._at = moments[-1]
        values = array("d")
        for row in rows:
            values.extend(row.values)
        columns = [values[position :: len(layout)] for position in range(len(layout))]
        across = self._columns_across(layout, columns)
        for series, found in ((self._metrics, zip(layout, columns, strict=True)), (self._across, across.items())):
            for key, column in found:
                if not self._has_across and key.endswith(COUNTED):
                    continue
                held = series.get(key) or series.setdefault(key, Accumulator(timed=self._timed(key)))
                if closing:
                    held.close(column[0], lead, end - self._begin)
                else:
                    held.fold(column, lead, after, ages)

    def _change_layout(self, layout: Layout, lead: float) -> None:
        """End what stands of keys that are gone, and of the metrics over all devices where a device came or went."""
        before, self._layout = self._layout or (), layout
        if layout == before:
            return
        for key in set(before).difference(layout):
            self._metrics[key].lose(lead)
        for name, devices in self._members(before).items():
            now = self._members(layout).get(name, {})
            if devices.keys() != now.keys():
                self._last[name] = {device: value for device, value in self._last.get(name, {}).items() if device in now}
                for kind in ACROSS:
                    self._across[f"{kind}.{name}"].lose(lead)

    def _columns_across(self, layout: Layout, columns: Sequence[array[float]]) -> dict[str, array[float]]:
        """Return each row's mean, largest value and sum over all devices, as columns of further keys.

        A device that was served again stands with its last value beside one that was read; a row in which none was read is no
        reading. There is no sum where a device is missing.
        """
        found: dict[str, array[float]] = {}
        for name, devices in self._members(layout).items():
            known = self._known.setdefault(name, set())
            known.update(devices)
            last = self._last.setdefault(name, {})
            mean, largest, total = (found.setdefault(f"{kind}.{name}", array("d")) for kind in ACROSS)
            for values in zip(*(columns[position] for position in devices.values()), strict=True):
                fresh = {device: value for device, value in zip(devices, values, strict=True) if isfinite(value)}
                last.update(fresh)
                added = sum(last.values())
                mean.append(added / len(last) if fresh else REPEATED)
                largest.append(max(last.values()) if fresh else REPEATED)
                total.append(REPEATED if not fresh else added if len(last) == len(known) else math.nan)
        return found

    def _fold_energy(self, rows: Sequence[HistoryRow], end: float) -> None:
        columns = device_columns(rows[0].layout)
        spans = [following.at - row.at for row, following in pairwise(rows)]
        inside = self._begin <= rows[0].at and rows[-1].at <= end
        together = inside and bool(spans) and min(spans) > 0 and all(row.joined for row in rows[1:])
        counters, powers = columns.get(COUNTER, {}), columns.get(DRAW, {})
        for key in {**self.energy, **counters, **powers}:
            counter, power = counters.get(key), powers.get(key)
            held = self.energy.get(key)
            if held is None:
                held = self.energy[key] = DeviceEnergy(self._begin, waits=self._layout is None)
            counted = None if counter is None else [row.values[counter] for row in rows]
            drawn = None if power is None else [row.values[power] for row in rows]
            held.fold(rows, end, counted, drawn, spans if together else ())


@functools.lru_cache(maxsize=64)
def _members(layout: Layout) -> dict[str, Mapping[str, int]]:
    """Return, by aggregated name, the column of each device that has it."""
    return {name: columns for name, columns in device_columns(layout).items() if name in AGGREGATED}


def _no_members(layout: Layout) -> dict[str, Mapping[str, int]]:
    """Return no name: nothing is taken over all devices."""
    del layout
    return {}
