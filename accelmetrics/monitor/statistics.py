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
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence, Set as AbstractSet
from itertools import accumulate, groupby
from math import isfinite
from typing import NamedTuple

from accelmetrics.monitor.energy import DeviceEnergy, energy_columns
from accelmetrics.monitor.history import REPEATED, Layout, Row, split
from accelmetrics.schemas.catalogue import match
from accelmetrics.schemas.errors import UnknownNameError
from accelmetrics.schemas.summary import CrossDeviceStatistics, Energy, Summary
from accelmetrics.schemas.vitals import MEMORY_PERCENT, MEMORY_USED, POWER, UTILIZATION

AGGREGATED = frozenset((*UTILIZATION, "memory", *MEMORY_PERCENT, *MEMORY_USED, *POWER))
"""Names whose values are also taken over all devices of a reading."""
ACROSS = ("mean", "max", "total")
DISTINCT = 512
"""Different values up to which percentiles are exact."""
ACCURACY = 0.005
"""Relative width of a cell after that: what percentiles may be off by."""
_GROWTH = math.log1p(ACCURACY)
_LARGEST = math.log(1.7e308)
_NO_NUMBERS, _NO_COUNTS = array("d"), array("q")


class Accumulator:
    """Statistics of one metric, in bounded memory.

    Values are kept as they are, each once with how often and how long it was seen, until there are too many different ones.
    From then on neighbours share a cell whose width is half a percent of the value. Least, largest, last and mean stay exact.

    Attributes:
        count: Readings taken.
        last: The last reading; 0 before the first.
    """

    __slots__ = ("_cells", "_coarse", "_max", "_min", "_plain", "_seconds", "_spans", "_times", "_weighted", "count", "last")

    def __init__(self) -> None:
        self.count = 0
        self.last = 0.0
        # Side by side, in the order of the values: 24 bytes a cell, where a dict of pairs takes ten times that. The first
        # value needs none until there is another: most metrics do not change for long.
        self._cells: array[float] = _NO_NUMBERS
        self._times: array[int] = _NO_COUNTS
        self._spans: array[float] = _NO_NUMBERS
        self._coarse = False
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

    def add(self, value: float, seconds: float, times: int = 1) -> None:
        """Take a reading that stands for so many seconds, or several equal ones that stand for them together."""
        if self._cells or not self._min == value == self._max:
            self._put_apart(value, times, seconds)
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

    def summary(self) -> Summary:
        """Return the statistics of what was taken so far; there must have been a reading."""
        mean = self._weighted / self._seconds if self._seconds > 0 else self._plain / self.count
        # The sum of equal values divided by their time may miss them by a rounding.
        mean = self._clipped(mean)
        p50 = p95 = p99 = self._max
        if self._cells:
            ranks = list(accumulate(self._times))
            # In whole numbers: 0.95 times 180 is more than 171.
            places = [bisect_left(ranks, -(-percent * self.count // 100)) for percent in (50, 95, 99)]
            p50, p95, p99 = (self._clipped(self._cells[place]) for place in places)
        return Summary(self.count, mean, self._min, self._max, self.last, p50, p95, p99, self._seconds)

    def seconds_above(self, threshold: float) -> float:
        """Return for how long the value was above a threshold."""
        if not self._cells:
            return self._seconds if self._max > threshold else 0.0
        return sum((seconds for cell, seconds in zip(self._cells, self._spans, strict=True) if self._clipped(cell) > threshold), 0.0)

    def _clipped(self, value: float) -> float:
        return min(max(value, self._min), self._max)

    def _put_apart(self, value: float, times: int, seconds: float) -> None:
        """Keep a value that is, or may be, another than the first."""
        if not self._cells and self.count:
            self._cells, self._times, self._spans = array("d", [self._max]), array("q", [self.count]), array("d", [self._seconds])
        if self._cells:
            self._put(value, times, seconds)
        if len(self._cells) > DISTINCT and not self._coarse:
            held = zip(self._cells, self._times, self._spans, strict=True)
            self._cells, self._times, self._spans = array("d"), array("q"), array("d")
            self._coarse = True
            for one in held:
                self._put(*one)

    def _put(self, value: float, times: int, seconds: float) -> None:
        cell = value
        if self._coarse and value:  # the middle of a cell: cells grow with the value, and 0 has its own
            step = round(math.log(abs(value)) / _GROWTH)
            cell = math.copysign(math.exp(min(step * _GROWTH, _LARGEST)), value)
        place = bisect_left(self._cells, cell)
        if place < len(self._cells) and self._cells[place] == cell:
            self._times[place] += times
            self._spans[place] += seconds
        else:
            self._cells.insert(place, cell)
            self._times.insert(place, times)
            self._spans.insert(place, seconds)


class _Stretch(NamedTuple):
    """A block of rows on the window's time, in seconds. The rows within the window come first; the next one closes it.

    Attributes:
        inside: How many rows are within the window.
        lead: From the row before the block to its first one; 0 where something was left out between them.
        after: From each row within to the next one, or to the window's end; 0 where something was left out, and where the block
            has no next one.
        ages: From the window's beginning to each row within.
        joined: Of each row, whether nothing was left out before it.
        duration: The whole window's; infinite while it is open.
    """

    inside: int
    lead: float
    after: Sequence[float]
    ages: Sequence[float]
    joined: Sequence[bool]
    duration: float

    @property
    def closed(self) -> bool:
        """Whether the block has the row that closes the window."""
        return self.inside < len(self.joined)

    @property
    def tail(self) -> float:
        """From the row before to the end of the window that the first row closes; 0 where the block has others before it."""
        return 0.0 if self.inside else self.lead


class _KeyStatistics:
    """Statistics by key, and the state of each key after the last row.

    Args:
        keys: Of the row before the first one; they wait for a reading.

    Attributes:
        metrics: By key.
    """

    def __init__(self, keys: Layout) -> None:
        self.metrics: dict[str, Accumulator] = {}
        self._keys = keys
        # Of the last row's keys, those of which no reading stands: whether they wait for one since the beginning.
        self._unread = dict.fromkeys(keys, True)

    def fold(self, keys: Layout, columns: Sequence[array[float]], stretch: _Stretch, changed: AbstractSet[str] = frozenset()) -> None:
        """Take a block of rows: a column for each key, in which NaN stands for an absent value.

        Args:
            keys: In the order of the columns.
            columns: The values of all rows.
            stretch: When the rows were read.
            changed: Keys that mean something else since the block before.
        """
        if keys != self._keys or changed:
            self._arrive(set(keys), changed, stretch)
            self._keys = keys
        if not stretch.joined[0]:
            self._unread = dict.fromkeys(keys, False)
        rest = sum(stretch.after)
        for key, column in zip(keys, columns, strict=True) if stretch.inside else ():
            rows = column[: stretch.inside] if stretch.closed else column
            first, seconds = rows[0], rest
            if rows.count(first) < stretch.inside or not isfinite(first):
                self._fold_column(key, rows, stretch)
                continue
            waiting, held = self._unread.pop(key, None), self._held(key)  # most metrics do not change for a while
            if waiting:
                seconds += stretch.ages[0]
            elif waiting is None and held.last == first:
                seconds += stretch.lead
            elif waiting is None:
                held.hold(stretch.lead)
            held.add(first, seconds, stretch.inside)
        if stretch.closed:
            self._close(keys, columns, stretch)
        self._unread = self._unread or {}  # one that has been emptied keeps its room

    def _arrive(self, here: set[str], changed: AbstractSet[str], stretch: _Stretch) -> None:
        """From the row before the block to its first one: what went no longer stands, and of what came nothing is known."""
        before = set(self._keys)
        for key in (before - here) | (changed & before):
            if self._unread.pop(key, None) is None and stretch.inside:
                self.metrics[key].hold(stretch.lead)
        self._unread.update(dict.fromkeys((here - before) | changed, False))

    def _fold_column(self, key: str, column: array[float], stretch: _Stretch) -> None:
        held, waiting = self.metrics.get(key), self._unread.pop(key, None)
        stands = held is not None and waiting is None
        if stands and held is not None:
            held.hold(stretch.lead)
        for value, after, age, joined in zip(column, stretch.after, stretch.ages, stretch.joined, strict=False):
            if not joined or math.isnan(value):
                stands = waiting = False
            if isfinite(value):
                held = held or self._held(key)
                held.add(value, after + age if waiting else after)
                stands, waiting = True, False
            elif stands and held is not None:
                held.hold(after)
        if not stands:
            self._unread[key] = bool(waiting)

    def _close(self, keys: Layout, columns: Sequence[array[float]], stretch: _Stretch) -> None:
        """Take the row after the end: until then stood what did before, and what was not read in the window has this reading."""
        known = stretch.joined[stretch.inside]
        for key, column in zip(keys, columns, strict=True):
            held, value = self.metrics.get(key), column[stretch.inside]
            if held is None and isfinite(value):
                self._held(key).add(value, stretch.duration if known and self._unread[key] else 0.0)
            elif held is not None and key not in self._unread:
                held.hold(stretch.tail)

    def _held(self, key: str) -> Accumulator:
        held = self.metrics.get(key)
        if held is None:
            held = self.metrics[key] = Accumulator()
        return held


class WindowAggregator:
    """The statistics and the energy of a window so far, or of a recording.

    Args:
        begin: When it begins, on the clock of the rows.
        before: The last reading before that: what lies between it and the next one is known by both.

    Attributes:
        energy: By device key.
    """

    def __init__(self, begin: float, before: Row | None = None) -> None:
        self.energy: dict[str, DeviceEnergy] = {}
        self._begin = begin
        self._at = begin  # the last row's moment
        self._layout: Layout | None = None
        self._keys = _KeyStatistics(())
        self._across = _KeyStatistics(())
        self._known: dict[str, set[str]] = {}  # by name, the devices that ever had it
        self._last: dict[str, dict[str, float]] = {}  # by name, each device's last reading
        if before is not None:
            self._start_from(before)

    @property
    def metrics(self) -> Mapping[str, Accumulator]:
        """By key, the statistics of the readings."""
        return self._keys.metrics

    def fold(self, rows: Iterable[Row], end: float = math.inf) -> None:
        """Take readings, of which the last may be the one that closes the window; many at a time cost less."""
        for (layout, early), same in groupby(rows, lambda row: (row.layout, row.at < self._begin)):
            block = list(same)
            if early:
                self._start_from(block[-1])  # it was being taken when the window began
            else:
                self._fold(layout, block, end)

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
            mean, largest, total = (self._across.metrics.get(f"{kind}.{name}") for kind in ACROSS)
            if mean is not None and largest is not None:
                found[name] = CrossDeviceStatistics(mean.summary(), largest.summary(), total.summary() if total is not None else None)
        return found

    def seconds_above(self, key: str, threshold: float) -> float | None:
        """Return for how long a metric was above a threshold; None where it was not read.

        Raises:
            UnknownNameError: It was not read, and there is no such metric.
        """
        held = self.metrics.get(key)
        if held is None and match(key) is None:
            raise UnknownNameError("metric of the window", key, self.metrics)
        return held.seconds_above(threshold) if held is not None else None

    def _start_from(self, row: Row) -> None:
        at = min(row.at, self._begin)
        self._fold_energy(row.layout, [row._replace(at=at)], self._begin)
        self._begin_with(row.layout, at)

    def _begin_with(self, layout: Layout, at: float) -> None:
        members = _members(layout)
        self._at, self._layout = at, layout
        self._keys = _KeyStatistics(layout)
        self._across = _KeyStatistics(tuple(f"{kind}.{name}" for name in members for kind in ACROSS))
        self._known = {name: set(positions) for name, positions in members.items()}

    def _fold(self, layout: Layout, rows: Sequence[Row], end: float) -> None:
        self._fold_energy(layout, rows, end)
        if self._layout is None:  # nothing was read before: as if that had been, and had had the same keys
            self._begin_with(layout, self._begin)
        joined, inside = [row.joined for row in rows], bisect_right(rows, end, key=lambda row: row.at)
        moments = [max(self._at, self._begin), *(min(row.at, end) for row in rows[: inside + 1])]
        gaps = [(at - before) * known for before, at, known in zip(moments, moments[1:], joined, strict=False)]
        ages = [row.at - self._begin for row in rows[:inside]]
        stretch = _Stretch(inside, max(0.0, gaps[0]), [*gaps[1:], 0.0][:inside], ages, joined, end - self._begin)
        values = array("d")
        for row in rows:
            values.extend(row.values)
        columns = [values[position :: len(layout)] for position in range(len(layout))]
        self._keys.fold(layout, columns, stretch)
        self._fold_across(layout, columns, stretch)
        self._at, self._layout = rows[-1].at, layout

    def _fold_across(self, layout: Layout, columns: Sequence[array[float]], stretch: _Stretch) -> None:
        """Take one metric over all devices as further keys: each reading's mean, largest value and sum.

        A device that was served again stands with its last value beside one that was read; a row in which none was read is no
        reading. Where a device goes or comes, what stood before stands no longer.
        """
        members, before = _members(layout), _members(self._layout or ())
        derived: dict[str, array[float]] = {}
        last_of_all: dict[str, dict[str, float]] = {}
        for name, positions in members.items():
            known = self._known.setdefault(name, set())
            known.update(positions)
            last = last_of_all[name] = {device: value for device, value in self._last.get(name, {}).items() if device in positions}
            mean, largest, total = (derived.setdefault(f"{kind}.{name}", array("d")) for kind in ACROSS)
            for index, joined in enumerate(stretch.joined):
                if not joined:
                    last.clear()
                fresh = {device: value for device, position in positions.items() if isfinite(value := columns[position][index])}
                last.update(fresh)
                added = sum(last.values())
                mean.append(added / len(last) if fresh else REPEATED)
                largest.append(max(last.values()) if fresh else REPEATED)
                total.append(REPEATED if not fresh else added if len(last) == len(known) else math.nan)
        self._last = last_of_all
        changed = {f"{kind}.{name}" for name in members if members[name].keys() != before.get(name, {}).keys() for kind in ACROSS}
        self._across.fold(tuple(derived), list(derived.values()), stretch, changed)

    def _fold_energy(self, layout: Layout, rows: Sequence[Row], end: float) -> None:
        found = energy_columns(layout)
        for key in self.energy.keys() - found.keys():
            self.energy[key].gap()
        for key, (counter, power) in found.items():
            held = self.energy.get(key)
            if held is None:
                held = self.energy[key] = DeviceEnergy(self._begin)
                if self._layout is not None:
                    held.gap()  # it was not there before
            for row in rows:
                values = row.values
                held.add(row.at, end, row.joined, None if counter is None else values[counter], None if power is None else values[power])


@functools.lru_cache(maxsize=64)
def _members(layout: Layout) -> dict[str, dict[str, int]]:
    """By aggregated name, each device that has it and where it stands."""
    found: dict[str, dict[str, int]] = {}
    for position, key in enumerate(layout):
        device, name = split(key)
        if device and name in AGGREGATED:
            found.setdefault(name, {})[device] = position
    return found
