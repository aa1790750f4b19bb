"""Statistics and energy of a window, aggregated from blocks of readings in bounded memory, however long the window is.

:class:`Accumulator` has the statistics of one metric: count, extremes, time-weighted mean, percentiles, time above a threshold.

Energy is taken from a device's own counter if it has one that agrees with its power; otherwise it is integrated from power.
:func:`contradiction` alone decides whether they agree.

A reading applies until the next one of the same key, or until the window's end. The first reading applies from the window's beginning, if
the reading before the window had the key too. So a key is in one of three states, from row to row:

- Its last reading applies: its value counts for the time until the next row.
- It waits: since the window's beginning it was only served again, and its first reading will apply from the beginning.
- It is unknown: it was absent, or something was left out (a pause, a start). Its next reading applies from its own time.

The row after the window's end shows that the window was watched until then. It counts as a reading only if there was no other.
"""

from __future__ import annotations

import copy
import math
import operator
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, pairwise, repeat
from math import isfinite
from typing import Literal

from accelmetrics.schemas.catalogue import match
from accelmetrics.schemas.errors import UnknownNameError
from accelmetrics.schemas.named_tuple import NamedTuple
from accelmetrics.schemas.ring import REPEATED, Layout, Row, Served, device_columns, marked, values_of
from accelmetrics.schemas.vitals import MEMORY_PERCENT, MEMORY_USED, POWER, UTILIZATION


class Summary(NamedTuple):
    """The statistics of a metric over a window.

    Attributes:
        count: Number of readings. A reading served twice counts once; an absent value does not count, a measured 0 does.
        mean: Mean, weighted by the time for which each reading applies.
        min: The smallest value.
        max: The largest value.
        last: The last value.
        p50: The median: the value that half of the readings do not exceed. Percentiles are over readings, by nearest rank: exact up
            to 512 different values, and within 0.5 % beyond.
        p95: The value that 95 % of the readings do not exceed.
        p99: The value that 99 % of the readings do not exceed.
        seconds: The time that the readings stand for: each one until the next.
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


class Energy(NamedTuple):
    """The energy that a device used.

    Attributes:
        joules: The energy.
        source: ``counter``: the device's own counter, interpolated between its readings; ``integrated``: the power readings,
            interpolated linearly and extended to the window's edges.
        seconds: The time that readings cover. It is less than the window's if the device gave none for a while.
        reason: Why the device's counter was not trusted: its energy and the energy by power. Empty otherwise.
    """

    joules: float
    source: Literal["counter", "integrated"]
    seconds: float
    reason: str = ""


class CrossDeviceStatistics(NamedTuple):
    """The statistics over a window of a metric's mean, maximum and sum over all selected devices.

    Attributes:
        mean: Statistics of the mean over the devices that gave a value.
        max: Statistics of the largest value.
        total: Statistics of the sum, over readings in which every device gave a value; None if there was none.
    """

    mean: Summary
    max: Summary
    total: Summary | None


DISTINCT = 512
"""Number of different values up to which percentiles are exact."""
BUCKET_WIDTH = 0.005
"""Relative width of a bucket once there are more values: the largest error of a percentile."""
MANY = 8
"""Number of readings from which on they are added together. Below that, adding each one costs less."""
RECENT = 256
"""Readings that wait to be sorted into their buckets. Sorting many at once takes a tenth of the time."""
_GROWTH = math.log1p(BUCKET_WIDTH)
_LARGEST = math.log(1.7e308)
_NO_NUMBERS, _NO_COUNTS = array("d"), array("q")


class Accumulator:
    """Statistics of one metric, in bounded memory.

    Up to 512 different values are kept, each with its count and its time. With more, neighbouring values share a bucket whose width
    is half a percent of the value. Minimum, maximum, last value and mean stay exact.

    A reading applies from its time until the next one; its value is weighted by that time.

    Args:
        waits: Whether the first reading will apply from the window's beginning.
        timed: Whether to keep the time of each value, for :meth:`seconds_above`. Without it, readings cost half as much.

    Attributes:
        count: The number of readings.
        last: The last reading; 0 before the first.
        last_applies: Whether the last reading applies until the next one.
        waits: Whether the first reading will apply from the window's beginning.
    """

    __slots__ = (
        "_buckets",
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
        "last_applies",
        "waits",
    )

    def __init__(self, waits: bool = False, timed: bool = True) -> None:
        self.count = 0
        self.last = 0.0
        # Parallel arrays in the order of the values: 24 bytes a bucket, a tenth of a dict of pairs. They are empty until there is a
        # second value, since most metrics do not change for long.
        self._buckets: array[float] = _NO_NUMBERS
        self._times: array[int] = _NO_COUNTS
        self._spans: array[float] = _NO_NUMBERS
        # Readings not yet sorted into their buckets, and the time of each.
        self._recent: array[float] = _NO_NUMBERS
        self._recent_seconds: array[float] = _NO_NUMBERS
        self._coarse = self.last_applies = False
        self.waits, self._timed = waits, timed
        self._seconds = self._weighted = self._plain = 0.0
        self._min, self._max = math.inf, -math.inf

    def __deepcopy__(self, memo: object) -> Accumulator:
        """Return an independent copy, in a tenth of the time of a generic one."""
        twin = Accumulator.__new__(Accumulator)
        for name in self.__slots__:
            setattr(twin, name, getattr(self, name))
        if self._buckets:
            twin._buckets, twin._times, twin._spans = self._buckets[:], self._times[:], self._spans[:]
            twin._recent, twin._recent_seconds = self._recent[:], self._recent_seconds[:]
        return twin

    def following(self) -> Accumulator:
        """Return new statistics that begin here: without readings, but the last reading still applies."""
        found = Accumulator(timed=self._timed)
        found.last, found.last_applies = self.last, self.last_applies
        return found

    def add(self, value: float, seconds: float, times: int = 1) -> None:
        """Add a reading that applies for this many seconds, or several equal readings that together apply for them."""
        if value != self.last and not self._buckets and (self.count or self._seconds):
            self._vary()
        if self._buckets:
            self._put(value, times, seconds)
        self.count += times
        self._seconds += seconds
        self._weighted += value * seconds
        self._plain += value * times
        self.last = value
        self._min, self._max = min(self._min, value), max(self._max, value)

    def hold(self, seconds: float) -> None:
        """Extend the time of the last reading. There must have been one."""
        if seconds:
            if self._buckets:
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
        if self.last_applies:
            self.hold(lead)
        first, packed = values[0], values.tobytes()
        if isfinite(first) and packed == packed[:8] * len(values):  # all equal: the usual case
            self.add(first, spent + age if self.waits else spent, len(values))
            self.last_applies, self.waits = True, False
        elif len(values) < MANY or not isfinite(sum(values)):
            self._add_each(values, after, age)
        else:
            self._add_all(values, after, spent, age)

    def lose(self, seconds: float = 0.0) -> None:
        """End the last reading after this many more seconds: the value is unknown until the next reading."""
        if self.last_applies:
            self.hold(seconds)
        self.last_applies = self.waits = False

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
        elif self.last_applies:
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
        if not self._buckets:
            return [self._max] * len(percents)
        self.sort_recent()
        ranks = list(accumulate(self._times))
        # Integer arithmetic: as floats, 0.95 * 180 is more than 171.
        return [self._clipped(self._buckets[bisect_left(ranks, -(-percent * self.count // 100))]) for percent in percents]

    def buckets(self) -> list[tuple[float, int]]:
        """Return the values in rising order, each with its count; within half a percent if there are many values."""
        if not self._buckets:
            return [(self._max, self.count)] if self.count else []
        self.sort_recent()
        return [(self._clipped(bucket), times) for bucket, times in zip(self._buckets, self._times, strict=True) if times]

    def seconds_above(self, threshold: float) -> float | None:
        """Return for how many seconds the value was above a threshold; None if times are not kept."""
        if not self._timed:
            return None
        if not self._buckets:
            return self._seconds if self._max > threshold else 0.0
        self.sort_recent()
        return sum((seconds for bucket, seconds in zip(self._buckets, self._spans, strict=True) if self._clipped(bucket) > threshold), 0.0)

    def sort_recent(self) -> None:
        """Sort the recent readings into their buckets. Every query does this first."""
        if self._recent:
            self._insert(self._recent, None, self._recent_seconds)
            self._recent = self._recent_seconds = _NO_NUMBERS

    def _add_each(self, values: Iterable[float], after: Iterable[float], age: float) -> None:
        """Add values one after another; some may be no readings. This is the reference that faster paths must agree with."""
        for value, seconds in zip(values, after, strict=True):
            if isfinite(value):
                self.add(value, seconds + age if self.waits else seconds)
                self.last_applies, self.waits = True, False
            elif math.isnan(value):
                self.last_applies = self.waits = False
            elif self.last_applies:
                self.hold(seconds)
            age += seconds

    def _add_all(self, values: array[float], seconds: Sequence[float], spent: float, age: float) -> None:
        """Add readings with the time of each, in a tenth of the time of adding them one by one.

        Args:
            values: The readings.
            seconds: The time of each.
            spent: The sum of ``seconds``.
            age: Seconds from the window's beginning to the first reading.
        """
        if self.waits:
            seconds, spent = [seconds[0] + age, *seconds[1:]], spent + age
        self.last_applies, self.waits = True, False
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
            self.sort_recent()

    def _vary(self) -> None:
        """Start using buckets, because a second value has come."""
        if not self._buckets:
            self._buckets, self._times, self._spans = array("d", [self.last]), array("q", [self.count]), array("d", [self._seconds])

    def _clipped(self, value: float) -> float:
        return min(max(value, self._min), self._max)

    def _put(self, value: float, times: int, seconds: float) -> None:
        """Count a value in its bucket."""
        bucket = self._bucket(value)
        position = bisect_left(self._buckets, bucket)
        if position < len(self._buckets) and self._buckets[position] == bucket:
            self._times[position] += times
            self._spans[position] += seconds
            return
        self._buckets.insert(position, bucket)
        self._times.insert(position, times)
        self._spans.insert(position, seconds)
        self._share_if_many()

    def _insert(self, values: Sequence[float], times: Iterable[int] | None, seconds: Iterable[float]) -> None:
        """Count many values in their buckets, each value once if ``times`` is None."""
        if times is None and not self._coarse and len(set(values)) > DISTINCT:  # else each value has a bucket for a moment
            self._share_buckets()
            self._insert(values, times, seconds)
            return
        buckets = list(map(self._bucket, values)) if self._coarse else values
        counts = Counter(dict(zip(self._buckets, self._times, strict=True)))
        spans = defaultdict[float, float](float, zip(self._buckets, self._spans, strict=True))
        counts.update(buckets if times is None else ())
        for bucket, number in zip(buckets, times or (), strict=False):
            counts[bucket] += number
        for bucket, spent in zip(buckets, seconds if self._timed else (), strict=False):
            spans[bucket] += spent
        order = sorted(counts)
        self._buckets = array("d", order)
        self._times, self._spans = array("q", map(counts.__getitem__, order)), array("d", map(spans.__getitem__, order))
        self._share_if_many()

    def _bucket(self, value: float) -> float:
        """Return the histogram bucket of a value: the value itself, or the midpoint of its logarithmic bucket.

        0 has its own bucket.
        """
        if not self._coarse or not value:
            return value
        # Equal steps of the logarithm make each bucket's width the same share of its value.
        return math.copysign(math.exp(min((math.log(abs(value)) + _GROWTH / 2) // _GROWTH * _GROWTH, _LARGEST)), value)

    def _share_if_many(self) -> None:
        if len(self._buckets) > DISTINCT and not self._coarse:
            self._share_buckets()

    def _share_buckets(self) -> None:
        """Make neighbouring values share buckets from now on, because there are too many values."""
        before = self._buckets, self._times, self._spans
        self._buckets, self._times, self._spans = array("d"), array("q"), array("d")
        self._coarse = True
        self._insert(*before)


# Energy

COUNTER, DRAW = "energyJoules", "powerWatts"
EnergyReading = tuple[str, float, float]
"""A device's reading of energy: ``COUNTER`` with joules, or ``DRAW`` with watts; then its time."""
ACCURACY = 1.5
"""Largest factor between counter and power with many readings. NVML states 5 % for power. The sensors of A100 and H100 measure a
quarter
of the time only, which adds tens of percent if the load repeats at the sensor's pace (arXiv 2312.02741)."""
UNSEEN = 64.0
"""Divided by the number of readings, this is added to that factor for few readings. A load may be eight times larger in the time
between
readings (H100: 120 W between kernels, 700 W in them). ``n`` readings all miss a share of ``9.2 / n`` of the time once in 10,000
cases:
``(8 - 1) * 9.2`` is 64."""
LAG = 2.0
"""Seconds by which power may follow the load, or the counter may be refreshed late: NVML's power is the mean over a second."""


def contradiction(counted: float, drawn: float, seconds: float, readings: float, peak: float) -> str:
    """Return why an energy counter cannot be right, given the power over the same time; empty if it can.

    Args:
        counted: Joules by the counter.
        drawn: Joules by the power.
        seconds: The length of that time.
        readings: The number of evenly spaced readings of power that would be equally informative.
        peak: The largest power read, in watts.
    """
    if readings < 3:
        return ""
    # Power has an error of 5 W at any load: nvidia-smi states that for older devices, and some vendors report whole watts.
    factor, slack = ACCURACY + UNSEEN / readings, LAG * peak + 5.0 * seconds
    if counted <= drawn * factor + slack and drawn <= counted * factor + slack:
        return ""
    return f"the energy counter rose by {counted:.6g} J in {seconds:.3g} s, in which the power readings give {drawn:.6g} J"


class DeviceEnergy:
    """A device's energy over a window, by its counter of joules and by its power.

    Power is interpolated linearly between readings. The first and the last reading extend to the window's edges. Power read after the
    window's end is not part of the window, unless the window had no reading.

    Args:
        begin: When the window began, on the monitor's clock.
        waits: Whether the first reading of power is known to stand from there on.

    Attributes:
        reset: Whether the counter restarted: the energy used up to then is unknown.
        waits: Whether the first reading of power will stand from the window's beginning on.
    """

    __slots__ = (
        *("_begin", "_counted", "_counter", "_covered", "_drawn", "_held", "_joined", "_peak", "_power", "_squares"),
        *("reset", "waits"),
    )

    def __init__(self, begin: float, waits: bool = True) -> None:
        self._begin = begin
        self._counter: tuple[float, float] | None = None  # time and value of its last reading
        self._counted = self._covered = 0.0  # joules, and the seconds that they cover
        self.reset = False
        self._power: tuple[float, float] | None = None
        self.waits = waits
        # Joules, and the seconds that they cover: between readings, and at the window's edges.
        self._drawn = self._joined = self._held = 0.0
        self._squares = self._peak = 0.0  # the sum of these spans' squares, and the largest power, also just outside the window

    def add(self, at: float, end: float, joined: bool, counter: float | None, power: float | None) -> None:
        """Add one reading of both. None is a missing value; infinity is one that was served again.

        Readings before the window's beginning, and the one after its end, show what lies between them and the window's edges.
        """
        if counter is None or not joined:
            self._counter = None
        if power is None or not joined:
            self._power, self.waits = None, False
        elif isfinite(power):
            self._peak = max(self._peak, power)
        if counter is not None and isfinite(counter):
            # Of the energy used since the last reading, only the part inside the window counts.
            earlier, last = self._counter or (at, counter)
            self._counter = (at, counter)
            inside = min(at, end) - max(earlier, self._begin)
            if at > earlier and inside > 0:
                # A counter only rises, so a lower value means that it restarted.
                self.reset = self.reset or counter < last
                self._counted += (counter - last) * inside / (at - earlier)
                self._covered += inside
        if power is not None and at < self._begin:
            self.waits = True
        elif power is not None:
            before, fresh = self._power, isfinite(power)
            if before is None and self.waits and fresh:
                self._hold(power, min(at, end) - self._begin)
            elif before is not None and at > end:  # the last reading extends to the window's end
                self._hold(before[1], end - before[0])
            elif before is not None and fresh:
                self._drawn += (at - before[0]) * (before[1] + power) / 2
                self._joined += at - before[0]
                self._squares += (at - before[0]) ** 2
            if at > end:
                self._power, self.waits = None, False
            elif fresh:
                self._power, self.waits = (at, power), False

    def fold(
        self,
        moments: Sequence[float],
        joined: bool,
        end: float,
        counters: Sequence[float] | None,
        powers: Sequence[float] | None,
        spans: Sequence[float],
    ) -> None:
        """Add consecutive readings, as :meth:`add` does for each, but without a loop if there is no gap and no missing value.

        Args:
            moments: When each was taken.
            joined: Whether nothing was left out before the first one. Between the others, nothing was.
            end: When the window ends.
            counters: Values of the counter; None if there is none.
            powers: Values of the power; None if there is none.
            spans: The seconds between consecutive readings, if all are inside the window; otherwise empty.
        """
        columns = zip(counters or repeat(None), powers or repeat(None), strict=False)
        done = 0
        if spans and isfinite(sum(counters or ())) and isfinite(sum(powers or ())):
            done = len(moments)
            self.add(moments[0], end, joined, *next(columns))
            at, seconds = moments[-1], moments[-1] - moments[0]
            if counters is not None:
                self.reset = self.reset or not all(map(operator.le, counters, counters[1:]))
                self._counted += counters[-1] - counters[0]
                self._covered += seconds
                self._counter = (at, counters[-1])
            if powers is not None:
                self._drawn += sum(map(operator.mul, spans, map(operator.add, powers, powers[1:]))) / 2
                self._joined += seconds
                self._squares += sum(map(operator.mul, spans, spans))
                self._power, self._peak = (at, powers[-1]), max(self._peak, *powers)
        for place, (counter, power) in zip(range(done, len(moments)), columns, strict=False):
            self.add(moments[place], end, joined or place > 0, counter, power)

    @property
    def readings(self) -> float:
        """The number of evenly spaced readings of power that would be equally informative.

        A long silence among short spans counts for little.
        """
        return (self._joined + self._held) ** 2 / self._squares if self._squares else 0.0

    def result(self, doubt: str = "") -> Energy | None:
        """Return the energy used; None if neither counter nor power shows it.

        The counter is used if it covers as much time as power does and agrees with it.

        Args:
            doubt: A reason already known not to trust the counter.
        """
        known, counts = self._joined + self._held, self._covered > 0 and not self.reset and self._covered >= 0.99 * self._joined
        if counts and not doubt and known >= 0.95 * self._covered:
            drawn = self._drawn * self._covered / known
            doubt = contradiction(self._counted, drawn, self._covered, self.readings, self._peak)
        if counts and not doubt:
            return Energy(self._counted, "counter", self._covered)
        return Energy(self._drawn, "integrated", known, doubt) if known > 0 else None

    def following(self) -> DeviceEnergy:
        """Return the device's energy from its last reading on."""
        found = DeviceEnergy(float("-inf"), waits=False)
        found._counter, found._power, found._peak = self._counter, self._power, self._power[1] if self._power else 0.0
        return found

    def _hold(self, watts: float, seconds: float) -> None:
        self._drawn += watts * seconds
        self._held += seconds
        self._squares += seconds**2


class CounterJudge:
    """Finds counters that contradict their power over the latest readings, for windows and rows too short to show it.

    A counter that once did so is not trusted until it restarts, as it does when the driver is loaded again.

    Attributes:
        doubts: By device key, why its counter is not trusted.
    """

    RECENT = 256
    """Readings after which the evaluation starts over: a counter may stop after days."""

    def __init__(self) -> None:
        self.doubts: dict[str, str] = {}
        self._energy: dict[str, DeviceEnergy] = {}
        self._served: Served = {}
        self._number = 0  # of the last row

    def add(self, rows: Sequence[Row]) -> None:
        """Add readings."""
        marked_rows, self._served = marked(rows, self._served)
        for row in marked_rows:
            columns, values = device_columns(row.layout), row.values
            counters, powers = columns.get(COUNTER, {}), columns.get(DRAW, {})
            joined, self._number = row.joined and row.number in {0, self._number + 1}, row.number  # rows of a recording have number 0
            for device in {**self._energy, **counters}:
                device_energy = self._energy.get(device) or self._energy.setdefault(device, DeviceEnergy(float("-inf"), waits=False))
                counter = values[counters[device]] if device in counters else None
                device_energy.add(row.at, float("inf"), joined, counter, values[powers[device]] if device in powers else None)
        for device, device_energy in self._energy.items():
            energy = device_energy.result()
            if device_energy.reset:
                # The counter restarted, as it does when the driver is loaded again: trust it until it contradicts power
                # again.
                self.doubts.pop(device, None)
            elif energy is not None and energy.reason:
                self.doubts[device] = energy.reason
            if device_energy.reset or device_energy.readings >= self.RECENT:
                self._energy[device] = device_energy.following()


class Meter:
    """All devices' energy since the monitor began, at any recent time: for the steps that the program logs."""

    KEPT = 1024

    def __init__(self) -> None:
        self._since = 0.0
        self._moments = array("d")
        self._totals = array("d")
        self._last: dict[str, EnergyReading | None] = {}  # by device, its last reading; None if unknown
        self._served: Served = {}
        self._judge = CounterJudge()

    @property
    def devices(self) -> int:
        """The number of devices that have ever reported energy or power, at least 1."""
        return max(1, len(self._last))

    @property
    def latest(self) -> float:
        """The time of the latest reading."""
        return self._moments[-1] if self._moments else float("-inf")

    @property
    def pace(self) -> float:
        """Seconds between readings: the longest of the last three, since a requested reading may lie between two ticks."""
        return max((after - before for before, after in pairwise(self._moments[-4:])), default=0.0)

    def add(self, rows: Sequence[Row]) -> None:
        """Add the devices' energy since their previous readings."""
        marked_rows, self._served = marked(rows, self._served)
        self._judge.add(rows)
        for row in marked_rows:
            self._add(row)

    def _add(self, row: Row) -> None:
        columns, values, at = device_columns(row.layout), row.values, row.at
        counters, powers = columns.get(COUNTER, {}), columns.get(DRAW, {})
        counters = {device: column for device, column in counters.items() if device not in self._judge.doubts}
        readings = {device: (COUNTER, at, values[column]) for device, column in counters.items()}
        readings |= {device: (DRAW, at, values[column]) for device, column in powers.items() if device not in counters}
        fresh = {device: isfinite(value) for device, (_, _, value) in readings.items()}
        if readings and not any(fresh.values()) and row.joined and readings.keys() >= self._last.keys():
            return  # all were served again: the energy used since comes with the next reading
        known = self._last if row.joined else {}
        gains = [_used(known.get(device), reading) for device, reading in readings.items()]
        lost = self._last.keys() - readings.keys()
        self._last = {
            **dict.fromkeys(self._last),
            **{device: reading if fresh[device] else known.get(device) for device, reading in readings.items()},
        }
        if lost or not gains or None in gains:
            # A device gave no value, so totals before and after this cannot be compared: start over.
            self._since, self._moments, self._totals = at, array("d", [at]), array("d", [0.0])
            return
        self._moments.append(at)
        self._totals.append(self._totals[-1] + sum(gain or 0.0 for gain in gains))
        del self._moments[: -self.KEPT], self._totals[: -self.KEPT]

    def at(self, moment: float) -> tuple[float, float] | None:
        """Return the energy at a time between the kept readings; None outside of them, and if no device reports any.

        Returns:
            The time since when it is counted (it restarts when a device gives no value), and the joules since then.
        """
        moments, totals = self._moments, self._totals
        if not self._last or not moments or not moments[0] <= moment <= moments[-1]:
            return None
        after = bisect_right(moments, moment)
        if after == len(moments):
            return self._since, totals[-1]
        start, first = moments[after - 1], totals[after - 1]
        return self._since, first + (totals[after] - first) * (moment - start) / (moments[after] - start)


def _used(before: EnergyReading | None, after: EnergyReading) -> float | None:
    """Return the energy that a device used between two readings; None if unknown."""
    if before is None:
        return None
    (quantity, start, first), (now, end, last) = before, after
    if not isfinite(last):
        return 0.0  # served again, while other devices were read
    # Counter and power do not continue each other, and a counter that fell has restarted.
    if quantity != now or (now == COUNTER and last < first):
        return None
    return last - first if now == COUNTER else (last + first) / 2 * (end - start)


# Statistics and energy of a window

AGGREGATED = frozenset((*UTILIZATION, "memory", *MEMORY_PERCENT, *MEMORY_USED, *POWER))
"""Names of metrics that are also aggregated over all devices of a reading."""
COUNTED = f".{COUNTER}"
ACROSS = ("mean", "max", "total")
TOGETHER = 256
"""Readings to collect before they are added: adding them together shares its cost."""


class WindowAggregator:
    """The statistics and the energy of a window so far, or of a recording.

    Args:
        begin: When it begins, on the rows' clock.
        before: The last one or two readings before that. They show the time between the last of them and the next reading.
        trailing: Whether a reading applies to the time since the previous one, instead of until the next one. Consecutive windows
            from reading to reading then count each reading once, and all of the time.
        across: Whether to include statistics over all devices, and of the energy counters.
        timed: Returns for which metrics the time of each value is kept. Default: for all.

    Attributes:
        energy: The energy, by device key.
        doubts: By device key, why its counter is not trusted, known from other readings.
        readings: The number of rows.
    """

    def __init__(
        self,
        begin: float,
        before: Sequence[Row] = (),
        trailing: bool = False,
        across: bool = True,
        timed: Callable[[str], bool] = bool,
    ) -> None:
        self._has_across, self._timed = across, timed
        self.energy: dict[str, DeviceEnergy] = {}
        self.doubts: Mapping[str, str] = {}
        self.readings = 0
        self._trailing = trailing
        self._begin = begin
        self._at = begin  # the last row's moment
        self._layout: Layout | None = None
        self._metrics: dict[str, Accumulator] = {}
        self._across: dict[str, Accumulator] = {}  # over all devices: ``mean.powerWatts``
        self._known: dict[str, set[str]] = {}  # by name, all devices that ever had the metric
        self._last: dict[str, dict[str, float]] = {}  # by name, each device's last reading
        self._pending: list[Row] = []
        earlier, self._served = marked(before, {})
        if earlier:
            self._start_from(earlier[-1])

    @property
    def metrics(self) -> Mapping[str, Accumulator]:
        """By key, the statistics of the readings."""
        self.fold()
        return {key: accumulator for key, accumulator in self._metrics.items() if accumulator.count}

    def feed(self, rows: Iterable[Row]) -> None:
        """Add readings. They are processed when there are many, or when results are requested."""
        self._pending.extend(rows)
        if len(self._pending) >= TOGETHER:
            self.fold()

    def fold(self, rows: Iterable[Row] = (), end: float = math.inf) -> None:
        """Process readings. The last one may be the one that closes the window. Many at a time cost less."""
        block: list[Row] = []
        pending, self._pending = self._pending, []
        marked_rows, self._served = marked([*pending, *rows], self._served)
        for row in marked_rows:
            if row.at < self._begin:
                self._start_from(row)  # its reading was in progress when the window began
                continue
            # A block is consecutive rows with the same keys. The row after the window's end is a block by itself.
            changed = block and row.header is not block[0].header and row.layout != block[0].layout
            if block and (changed or not row.joined or row.at > end):
                self._fold(block, end)
                block = []
            block.append(row)
        if block:
            self._fold(block, end)

    def following(self) -> WindowAggregator:
        """Return the statistics of the next window, which begins at the last reading."""
        found = WindowAggregator(-math.inf, (), self._trailing, self._has_across, self._timed)
        found._served = self._served
        found._at, found._layout, found._known, found._last = self._at, self._layout, copy.deepcopy(self._known), copy.deepcopy(self._last)
        found.energy = {key: used.following() for key, used in self.energy.items()}
        found._metrics = {key: accumulator.following() for key, accumulator in self._metrics.items()}
        found._across = {key: accumulator.following() for key, accumulator in self._across.items()}
        return found

    def summary(self) -> dict[str, Summary]:
        """Return, by key, the statistics of the readings."""
        return {key: accumulator.summary() for key, accumulator in self.metrics.items()}

    def energy_joules(self) -> dict[str, Energy]:
        """Return the energy used, by device key."""
        self.fold()
        return {key: energy for key, used in self.energy.items() if (energy := used.result(self.doubts.get(key, ""))) is not None}

    def devices(self) -> dict[str, CrossDeviceStatistics]:
        """Return, by name, the statistics of a metric over all devices."""
        found = {}
        for name in self._known:
            mean, largest, total = (self._across[f"{kind}.{name}"] for kind in ACROSS)
            if mean.count:
                found[name] = CrossDeviceStatistics(mean.summary(), largest.summary(), total.summary() if total.count else None)
        return found

    def seconds_above(self, key: str, threshold: float) -> float | None:
        """Return for how many seconds a metric was above a threshold; None if it was not read, or times are not kept.

        Raises:
            UnknownNameError: It was not read, and there is no such metric.
        """
        accumulator = self.metrics.get(key)
        if accumulator is None and match(key) is None:
            raise UnknownNameError("metric of the window", key, self.metrics)
        return accumulator.seconds_above(threshold) if accumulator is not None else None

    def _members(self, layout: Layout) -> Mapping[str, Mapping[str, int]]:
        """Return, for each name aggregated over devices, the column of each device that has it."""
        return {name: columns for name, columns in device_columns(layout).items() if name in AGGREGATED} if self._has_across else {}

    def _start_from(self, row: Row) -> None:
        """Process a reading from before the window's beginning."""
        self._fold_energy(row.layout, row.values, [min(row.at, self._begin)], row.joined, self._begin)
        self._wait_for(row.layout)

    def _wait_for(self, layout: Layout) -> None:
        """Make the first readings of these keys stand from the window's beginning on."""
        self._layout = layout
        waits = not self._trailing
        self._metrics = {key: Accumulator(waits, self._timed(key)) for key in layout}
        self._across = {f"{kind}.{name}": Accumulator(waits) for name in self._members(layout) for kind in ACROSS}
        self._known = {name: set(positions) for name, positions in self._members(layout).items()}

    def _fold(self, rows: Sequence[Row], end: float) -> None:
        """Process consecutive rows with the same keys, or the row after the window's end."""
        layout, joined, moments = rows[0].layout, rows[0].joined, [row.at for row in rows]
        closing = moments[0] > end
        values = values_of(rows)
        self._fold_energy(layout, values, moments, joined, end)
        if self._layout is None:  # there was no earlier reading: assume one with the same keys
            self._wait_for(layout)
        lead = max(0.0, min(moments[0], end) - self._at) if joined else 0.0
        after = [*(following - at for at, following in pairwise(moments)), 0.0]
        self.readings += len(rows)
        if self._trailing:
            # Here each reading applies to the time since the previous one, not until the next.
            lead, after = 0.0, [lead, *after[:-1]]
        spent = sum(after)
        if not joined:
            self._last.clear()
            for accumulator in (*self._metrics.values(), *self._across.values()):
                accumulator.lose()
        self._change_layout(layout, 0.0 if closing else lead)
        self._at = moments[-1]
        columns = ((key, values[place :: len(layout)]) for place, key in enumerate(layout))  # lazily: together they take mebibytes
        for series, found in ((self._metrics, columns), (self._across, self._columns_across(layout, values).items())):
            for key, column in found:
                if not self._has_across and key.endswith(COUNTED):
                    continue
                accumulator = series.get(key) or series.setdefault(key, Accumulator(timed=self._timed(key)))
                if closing:
                    accumulator.close(column[0], lead, end - self._begin)
                else:
                    accumulator.fold(column, after, spent, lead, moments[0] - self._begin)

    def _change_layout(self, layout: Layout, lead: float) -> None:
        """End the last readings of keys that are gone, and of aggregated metrics where the set of devices has changed."""
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

    def _columns_across(self, layout: Layout, values: array[float]) -> dict[str, array[float]]:
        """Return each row's mean, maximum and sum over all devices, as columns of further keys.

        If some devices were read and another one was served again, the latter counts with its last value. A row in which none was
        read is no reading. There is no sum if a device is missing.
        """
        found: dict[str, array[float]] = {}
        for name, devices in self._members(layout).items():
            known = self._known.setdefault(name, set())
            known.update(devices)
            last = self._last.setdefault(name, {})
            members = [values[place :: len(layout)] for place in devices.values()]
            if isfinite(sum(map(sum, members))):  # every device was read in every row: the usual case, without a loop over rows
                last.update(zip(devices, (column[-1] for column in members), strict=True))
                added = list(map(sum, zip(*members, strict=True)))
                found[f"mean.{name}"] = array("d", [one / len(devices) for one in added])
                found[f"max.{name}"] = array("d", map(max, zip(*members, strict=True)) if len(members) > 1 else members[0])
                found[f"total.{name}"] = array("d", added if len(devices) == len(known) else [math.nan] * len(added))
                continue
            mean, largest, total = (found.setdefault(f"{kind}.{name}", array("d")) for kind in ACROSS)
            for row in zip(*members, strict=True):
                fresh = {device: value for device, value in zip(devices, row, strict=True) if isfinite(value)}
                last.update(fresh)
                among = sum(last.values())
                mean.append(among / len(last) if fresh else REPEATED)
                largest.append(max(last.values()) if fresh else REPEATED)
                total.append(REPEATED if not fresh else among if len(last) == len(known) else math.nan)
        return found

    def _fold_energy(self, layout: Layout, values: array[float], moments: Sequence[float], joined: bool, end: float) -> None:
        places = device_columns(layout)
        spans = [following - at for at, following in pairwise(moments)]
        # Only rows inside the window are added together: at its edges, a reading counts in part.
        together = self._begin <= moments[0] and moments[-1] <= end and bool(spans) and min(spans) > 0
        counters, powers = places.get(COUNTER, {}), places.get(DRAW, {})
        for key in {**self.energy, **counters, **powers}:
            device_energy = self.energy.get(key)
            if device_energy is None:
                device_energy = self.energy[key] = DeviceEnergy(self._begin, waits=self._layout is None)
            counted = values[counters[key] :: len(layout)] if key in counters else None
            drawn = values[powers[key] :: len(layout)] if key in powers else None
            device_energy.fold(moments, joined, end, counted, drawn, spans if together else ())
