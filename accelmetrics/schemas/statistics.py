"""Statistics and energy of a window, aggregated from blocks of readings in bounded memory, however long the window is.

Energy is taken from a device's own counter if it has one that agrees with its power; otherwise it is integrated from power.
:func:`contradiction` alone decides whether they agree.

A reading stands until the next one of the same key, or until the window's end. The first reading stands from the window's beginning
on, if the reading before the window had the key too. So a key is in one of three states, from row to row:

- Its last reading stands: its value counts for the time until the next row.
- It waits: since the window's beginning it was only served again, and its first reading will stand from the beginning on.
- It is unknown: it was absent, or something was left out (a pause, a start). Its next reading stands from its own time on.

The row after the window's end shows that the window was watched until then. It counts as a reading only if there was no other.
"""

from __future__ import annotations

import copy
import math
import operator
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise, repeat
from math import isfinite

from accelmetrics.schemas.accumulator import Accumulator
from accelmetrics.schemas.catalogue import match
from accelmetrics.schemas.errors import UnknownNameError
from accelmetrics.schemas.ring import REPEATED, Layout, Row, Served, device_columns, marked, values_of
from accelmetrics.schemas.summary import CrossDeviceStatistics, Energy, Summary
from accelmetrics.schemas.vitals import MEMORY_PERCENT, MEMORY_USED, POWER, UTILIZATION

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
    return f"the energy counter rose by {counted:.6g} J in {seconds:.3g} s, in which power says {drawn:.6g} J"


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
        taken, self._served = marked(rows, self._served)
        for row in taken:
            columns, values = device_columns(row.layout), row.values
            counters, powers = columns.get(COUNTER, {}), columns.get(DRAW, {})
            joined, self._number = row.joined and row.number in {0, self._number + 1}, row.number  # rows of a recording have number 0
            for device in {**self._energy, **counters}:
                held = self._energy.get(device) or self._energy.setdefault(device, DeviceEnergy(float("-inf"), waits=False))
                counter = values[counters[device]] if device in counters else None
                held.add(row.at, float("inf"), joined, counter, values[powers[device]] if device in powers else None)
        for device, held in self._energy.items():
            energy = held.result()
            if held.reset:
                # The counter restarted, as it does when the driver is loaded again: trust it until it contradicts power
                # again.
                self.doubts.pop(device, None)
            elif energy is not None and energy.reason:
                self.doubts[device] = energy.reason
            if held.reset or held.readings >= self.RECENT:
                self._energy[device] = held.following()


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
        taken, self._served = marked(rows, self._served)
        self._judge.add(rows)
        for row in taken:
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


# Statistics

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
        trailing: Whether a reading stands for the time since the previous one, instead of until the next one. Consecutive windows
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
        return {key: held for key, held in self._metrics.items() if held.count}

    def feed(self, rows: Iterable[Row]) -> None:
        """Add readings. They are processed when there are many, or when results are requested."""
        self._pending.extend(rows)
        if len(self._pending) >= TOGETHER:
            self.fold()

    def fold(self, rows: Iterable[Row] = (), end: float = math.inf) -> None:
        """Process readings. The last one may be the one that closes the window. Many at a time cost less."""
        block: list[Row] = []
        pending, self._pending = self._pending, []
        taken, self._served = marked([*pending, *rows], self._served)
        for row in taken:
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
        found.energy = {key: held.following() for key, held in self.energy.items()}
        found._metrics = {key: held.following() for key, held in self._metrics.items()}
        found._across = {key: held.following() for key, held in self._across.items()}
        return found

    def summary(self) -> dict[str, Summary]:
        """Return, by key, the statistics of the readings."""
        return {key: held.summary() for key, held in self.metrics.items()}

    def energy_joules(self) -> dict[str, Energy]:
        """Return the energy used, by device key."""
        self.fold()
        return {key: energy for key, held in self.energy.items() if (energy := held.result(self.doubts.get(key, ""))) is not None}

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
        held = self.metrics.get(key)
        if held is None and match(key) is None:
            raise UnknownNameError("metric of the window", key, self.metrics)
        return held.seconds_above(threshold) if held is not None else None

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
            # Here each reading stands for the time since the previous one, not until the next.
            lead, after = 0.0, [lead, *after[:-1]]
        spent = sum(after)
        if not joined:
            self._last.clear()
            for held in (*self._metrics.values(), *self._across.values()):
                held.lose()
        self._change_layout(layout, 0.0 if closing else lead)
        self._at = moments[-1]
        columns = ((key, values[place :: len(layout)]) for place, key in enumerate(layout))  # lazily: together they take mebibytes
        for series, found in ((self._metrics, columns), (self._across, self._columns_across(layout, values).items())):
            for key, column in found:
                if not self._has_across and key.endswith(COUNTED):
                    continue
                held = series.get(key) or series.setdefault(key, Accumulator(timed=self._timed(key)))
                if closing:
                    held.close(column[0], lead, end - self._begin)
                else:
                    held.fold(column, after, spent, lead, moments[0] - self._begin)

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
        inside = self._begin <= moments[0] and moments[-1] <= end
        # Only rows inside the window are added together: at its edges, a reading counts in part.
        together = inside and bool(spans) and min(spans) > 0
        counters, powers = places.get(COUNTER, {}), places.get(DRAW, {})
        for key in {**self.energy, **counters, **powers}:
            held = self.energy.get(key)
            if held is None:
                held = self.energy[key] = DeviceEnergy(self._begin, waits=self._layout is None)
            counted = values[counters[key] :: len(layout)] if key in counters else None
            drawn = values[powers[key] :: len(layout)] if key in powers else None
            held.fold(moments, joined, end, counted, drawn, spans if together else ())
