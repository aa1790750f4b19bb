"""Energy between two moments: of a device over a window, of all devices together at any recent moment.

Energy is taken from the device's own counter where it has one, else integrated from its power.
"""

from __future__ import annotations

import operator
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from itertools import repeat
from math import isfinite

from accelmetrics.schemas.history import HistoryRow, device_columns
from accelmetrics.schemas.summary import Energy

COUNTER, DRAW = "energyJoules", "powerWatts"
EnergyReading = tuple[str, float, float]
"""What a device said of its energy and when: ``COUNTER`` with its joules, or ``DRAW`` with watts."""


class DeviceEnergy:
    """A device's energy over a window, by its own counter of joules and by its power.

    Power is joined by straight lines between its readings, the first and the last one held to the window's edges. What is read
    after the end is what the device draws then, and no part of the window; unless that had no reading.

    Args:
        begin: When the window began, on the monitor's clock.
        waits: Whether the first reading of power is known to stand from there on.
    """

    __slots__ = ("_begin", "_counted", "_counter", "_covered", "_drawn", "_held", "_joined", "_power", "_reset", "waits")

    def __init__(self, begin: float, waits: bool = True) -> None:
        self._begin = begin
        self._counter: tuple[float, float] | None = None  # moment and value of its last reading
        self._counted = self._covered = 0.0  # joules, and the seconds in which they were used
        self._reset = False  # whether the counter began anew: what was used until then is not known
        self._power: tuple[float, float] | None = None
        self.waits = waits
        # Joules, and the seconds in which they were used: between two readings, and at the edges.
        self._drawn = self._joined = self._held = 0.0

    def add(self, at: float, end: float, joined: bool, counter: float | None, power: float | None) -> None:
        """Take one reading of both; None where there is none, infinity where the one before was served again.

        Those from before the beginning, and the one after the end, tell what lies between them and the window's edges.
        """
        if counter is None or not joined:
            self._counter = None
        if power is None or not joined:
            self._power, self.waits = None, False
        if counter is not None and isfinite(counter):
            # What was used since the last reading, but only the part between the window's beginning and end.
            earlier, last = self._counter or (at, counter)
            self._counter = (at, counter)
            inside = min(at, end) - max(earlier, self._begin)
            if at > earlier and inside > 0:
                self._reset = self._reset or counter < last
                self._counted += (counter - last) * inside / (at - earlier)
                self._covered += inside
        if power is not None and at < self._begin:
            self.waits = True
        elif power is not None:
            before, fresh = self._power, isfinite(power)
            if before is None and self.waits and fresh:
                self._hold(power, min(at, end) - self._begin)
            elif before is not None and at > end:  # the last one stood until the end
                self._hold(before[1], end - before[0])
            elif before is not None and fresh:
                self._drawn += (at - before[0]) * (before[1] + power) / 2
                self._joined += at - before[0]
            if at > end:
                self._power, self.waits = None, False
            elif fresh:
                self._power, self.waits = (at, power), False

    def fold(
        self,
        rows: Sequence[HistoryRow],
        end: float,
        counters: Sequence[float] | None,
        powers: Sequence[float] | None,
        spans: Sequence[float],
    ) -> None:
        """Take readings as :meth:`add` does; of a device that always answers, those between which nothing was left out together.

        Args:
            rows: The readings.
            end: When the window ends.
            counters: Their values of the counter; None where there is none.
            powers: Likewise of the power.
            spans: The seconds between each two readings, where none was left out and all are of the window; empty otherwise.
        """
        columns = zip(counters or repeat(None), powers or repeat(None), strict=False)
        done = 0
        if spans and isfinite(sum(counters or ())) and isfinite(sum(powers or ())):
            done = len(rows)
            self.add(rows[0].at, end, rows[0].joined, *next(columns))
            at, seconds = rows[-1].at, rows[-1].at - rows[0].at
            if counters is not None:
                self._reset = self._reset or not all(map(operator.le, counters, counters[1:]))
                self._counted += counters[-1] - counters[0]
                self._covered += seconds
                self._counter = (at, counters[-1])
            if powers is not None:
                self._drawn += sum(map(operator.mul, spans, map(operator.add, powers, powers[1:]))) / 2
                self._joined += seconds
                self._power = (at, powers[-1])
        for row, (counter, power) in zip(rows[done:], columns, strict=False):
            self.add(row.at, end, row.joined, counter, power)

    def result(self) -> Energy | None:
        """Return what was used, by the counter if its readings cover as much as those of the power do; None when neither tells."""
        if self._covered > 0 and not self._reset and self._covered >= 0.99 * self._joined:
            return Energy(self._counted, "counter", self._covered)
        known = self._joined + self._held
        return Energy(self._drawn, "integrated", known) if known > 0 else None

    def following(self) -> DeviceEnergy:
        """Return the device's energy from its last reading on."""
        found = DeviceEnergy(float("-inf"), waits=False)
        found._counter, found._power = self._counter, self._power
        return found

    def _hold(self, watts: float, seconds: float) -> None:
        self._drawn += watts * seconds
        self._held += seconds


class Meter:
    """All devices' energy since the monitor began, told at any recent moment: for what the program logs."""

    KEPT = 1024

    def __init__(self) -> None:
        self._since = 0.0
        self._moments = array("d")
        self._totals = array("d")
        self._last: dict[str, EnergyReading | None] = {}  # by device, its last reading; None where that is not known

    @property
    def devices(self) -> int:
        """How many devices have ever given energy or power, 1 at least."""
        return max(1, len(self._last))

    @property
    def latest(self) -> float:
        """Until when it knows."""
        return self._moments[-1] if self._moments else float("-inf")

    def add(self, row: HistoryRow) -> None:
        """Take one reading: add up what devices have used since their last ones."""
        columns = device_columns(row.layout)
        counters, powers = columns.get(COUNTER, {}), columns.get(DRAW, {})
        readings = {device: (COUNTER, row.at, row.values[column]) for device, column in counters.items()}
        readings |= {device: (DRAW, row.at, row.values[column]) for device, column in powers.items() if device not in counters}
        fresh = {device: isfinite(value) for device, (_, _, value) in readings.items()}
        if readings and not any(fresh.values()) and row.joined and readings.keys() >= self._last.keys():
            return  # all were served again: what was used since comes with the next reading
        known = self._last if row.joined else {}
        gains = [_used(known.get(device), reading) for device, reading in readings.items()]
        lost = self._last.keys() - readings.keys()
        self._last = {
            **dict.fromkeys(self._last),
            **{device: reading if fresh[device] else known.get(device) for device, reading in readings.items()},
        }
        if lost or not gains or None in gains:
            # A device said nothing: what lies before cannot be compared with what comes.
            self._since, self._moments, self._totals = row.at, array("d", [row.at]), array("d", [0.0])
            return
        self._moments.append(row.at)
        self._totals.append(self._totals[-1] + sum(gain or 0.0 for gain in gains))
        del self._moments[: -self.KEPT], self._totals[: -self.KEPT]

    def at(self, moment: float) -> tuple[float, float] | None:
        """Return the energy at a moment between the readings that are kept; None outside, and where no device tells.

        Returns:
            Since when it is counted, which begins anew where a device said nothing, and the joules since then.
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
    """Return what a device used between two readings, None where that is not known."""
    if before is None:
        return None
    (quantity, start, first), (now, end, last) = before, after
    if not isfinite(last):
        return 0.0  # served again, beside others that were read
    if quantity != now or (now == COUNTER and last < first):
        return None
    return last - first if now == COUNTER else (last + first) / 2 * (end - start)
