"""Energy between two moments: from the device's own counter where it has one, else integrated from its power."""

from __future__ import annotations

import functools
from array import array
from bisect import bisect_right
from math import isfinite
from typing import Literal, NamedTuple

from accelmetrics.sampling.rows import Layout, Row, split

COUNTER, POWER = "energyJoules", "powerWatts"

Columns = dict[str, tuple[int | None, int | None]]
"""By whole device, where its counter and its power stand in a row."""


class Energy(NamedTuple):
    """What a device used.

    Attributes:
        joules: The energy.
        source: ``counter``: the device's own counter, between whose readings the value is interpolated to the moment;
            ``integrated``: the power readings, joined by straight lines.
        seconds: The time that readings cover: less than the window's where the device gave none.
    """

    joules: float
    source: Literal["counter", "integrated"]
    seconds: float


@functools.lru_cache(maxsize=64)
def energy_columns(layout: Layout) -> Columns:
    """By whole device, where its counter and its power stand; those that have neither are not there."""
    places: dict[str, dict[str, int]] = {}
    for position, key in enumerate(layout):
        device, name = split(key)
        if device and name in {COUNTER, POWER}:
            places.setdefault(device, {})[name] = position
    return {device: (found.get(COUNTER), found.get(POWER)) for device, found in places.items()}


class Track:
    """One quantity of one device over time: a counter in joules, or a power in watts.

    Keeps the running integral at few moments only, so that it does not grow: what a window needs is its value where the
    window begins and ends.

    Args:
        counter: Whether the values count joules; else they are watts.
    """

    __slots__ = ("_at", "_counter", "_value", "broken", "covered", "total")

    def __init__(self, counter: bool) -> None:
        self._counter = counter
        self._at: float | None = None
        self._value = 0.0
        self.total = 0.0
        self.covered = 0.0
        self.broken = False

    def add(self, at: float, value: float, begin: float, end: float) -> None:
        """Take a reading; only the part of the time before it that lies between ``begin`` and ``end`` counts."""
        before, last = self._at, self._value
        self._at, self._value = at, value
        if before is None or at <= before:
            return
        low, high = max(before, begin), min(at, end)
        if high <= low:
            return
        if self._counter:
            if value < last:
                self.broken = True  # the counter began anew: what was used until then is not known
                return
            self.total += (value - last) * (high - low) / (at - before)
        else:
            self.total += (high - low) * (_between(before, last, at, value, low) + _between(before, last, at, value, high)) / 2
        self.covered += high - low

    def gap(self) -> None:
        """The value was absent, or nobody looked: what was used meanwhile is not known."""
        self._at = None


def _between(start: float, first: float, end: float, last: float, at: float) -> float:
    return first + (last - first) * (at - start) / (end - start)


class DeviceEnergy:
    """A device's energy over a window.

    Args:
        begin: When the window began, on the monitor's clock.
    """

    __slots__ = ("_begin", "_counter", "_power")

    def __init__(self, begin: float) -> None:
        self._begin = begin
        self._counter = Track(True)
        self._power = Track(False)

    def add(self, at: float, end: float, joined: bool, counter: float | None, power: float | None) -> None:
        """Take one reading of both; None where there is none."""
        for track, value in ((self._counter, counter), (self._power, power)):
            if not joined or value is None:
                track.gap()
            if value is not None and isfinite(value):  # else the reading before was served again
                track.add(at, value, self._begin, end)

    def gap(self) -> None:
        """The device gave nothing."""
        self._counter.gap()
        self._power.gap()

    def result(self) -> Energy | None:
        """What was used, by the counter if it covers as much as the power does; None when neither was read twice."""
        counter, power = self._counter, self._power
        if counter.covered > 0 and not counter.broken and counter.covered >= 0.99 * power.covered:
            return Energy(counter.total, "counter", counter.covered)
        if power.covered > 0:
            return Energy(power.total, "integrated", power.covered)
        return None


class _Level(NamedTuple):
    quantity: str
    at: float
    value: float


class Reckoning(NamedTuple):
    """All devices' energy up to a moment.

    Attributes:
        since: When the reckoning began; it begins anew where a device said nothing.
        joules: The energy since then.
    """

    since: float
    joules: float


class Meter:
    """All devices' energy since the monitor began, told at any recent moment: for what the program logs."""

    KEPT = 1024

    def __init__(self) -> None:
        self._since = 0.0
        self._moments = array("d")
        self._totals = array("d")
        self._last: dict[str, _Level | None] = {}
        self._layout: Layout = ()
        self._columns: Columns = {}

    @property
    def devices(self) -> int:
        """How many devices have ever given energy or power, 1 at least."""
        return max(1, len(self._last))

    @property
    def latest(self) -> float:
        """Until when it knows."""
        return self._moments[-1] if self._moments else float("-inf")

    def add(self, row: Row) -> None:
        """Take one reading."""
        if row.layout is not self._layout:
            self._layout, self._columns = row.layout, energy_columns(row.layout)
        values = {device: _level(row, *positions) for device, positions in self._columns.items()}
        fresh = any(isfinite(level.value) for level in values.values())
        if values and not fresh and row.joined and values.keys() >= self._last.keys():
            return  # all were served again: what was used since comes with the next reading
        gains = [self._gain(device, level, row.joined) for device, level in values.items()]
        lost = self._last.keys() - values.keys()
        self._last.update(dict.fromkeys(lost))
        if lost or not gains or None in gains:
            # A device said nothing: what lies before cannot be compared with what comes.
            self._since, self._moments, self._totals = row.at, array("d", [row.at]), array("d", [0.0])
            return
        self._moments.append(row.at)
        self._totals.append((self._totals[-1] if self._totals else 0.0) + sum(gain or 0.0 for gain in gains))
        del self._moments[: -self.KEPT], self._totals[: -self.KEPT]

    def at(self, moment: float) -> Reckoning | None:
        """The reckoning at a moment between the readings that are kept; None outside, and where no device tells."""
        moments, totals = self._moments, self._totals
        if not self._last or not moments or not moments[0] <= moment <= moments[-1]:
            return None
        after = bisect_right(moments, moment)
        if after == len(moments):
            return Reckoning(self._since, totals[-1])
        joules = _between(moments[after - 1], totals[after - 1], moments[after], totals[after], moment)
        return Reckoning(self._since, joules)

    def _gain(self, device: str, level: _Level, joined: bool) -> float | None:
        """What a device used since its last reading, None where nobody can say."""
        before = self._last.get(device)
        if not isfinite(level.value) and joined:  # served again, beside others that were read
            return 0.0 if before is not None else None
        if not isfinite(level.value):
            self._last[device] = None  # nor is it known what was used since it was read
            return None
        self._last[device] = level
        if before is None or not joined or before.quantity != level.quantity:
            return None
        if level.quantity == COUNTER:
            return level.value - before.value if level.value >= before.value else None
        return (level.value + before.value) / 2 * (level.at - before.at)


def _level(row: Row, counter: int | None, power: int | None) -> _Level:
    quantity, position = (COUNTER, counter) if counter is not None else (POWER, power)
    assert position is not None, "a device without both is not among the columns"
    return _Level(quantity, row.at, row.values[position])
