"""Energy between two moments: from the device's own counter where it has one, else integrated from its power."""

from __future__ import annotations

from bisect import bisect_right
from math import isfinite
from typing import Literal, NamedTuple

COUNTER, POWER = "energyJoules", "powerWatts"


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

    def add(self, at: float, value: float, begin: float, end: float, joined: bool) -> None:
        """Take a reading; only the part of the time before it that lies between ``begin`` and ``end`` counts."""
        before, last = self._at, self._value
        self._at, self._value = at, value
        if before is None or not joined or at <= before:
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
        """The value was absent: what was used meanwhile is not known."""
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
            if value is None:
                track.gap()
            elif isfinite(value):  # else the reading before was served again
                track.add(at, value, self._begin, end, joined)

    def result(self) -> Energy | None:
        """What was used, by the counter if it covers as much as the power does; None when neither was read twice."""
        counter, power = self._counter, self._power
        if counter.covered > 0 and not counter.broken and counter.covered >= 0.99 * power.covered:
            return Energy(counter.total, "counter", counter.covered)
        if power.covered > 0:
            return Energy(power.total, "integrated", power.covered)
        return None


class Meter:
    """All devices' energy since the monitor began, told at any moment since a while ago: for what the program logs."""

    KEPT = 4096

    def __init__(self) -> None:
        self._moments: list[float] = []
        self._totals: list[float] = []
        self._last: dict[str, tuple[float, float]] = {}

    def add(self, at: float, joined: bool, values: dict[str, tuple[float | None, float | None]]) -> None:
        """Take one reading: by device, its counter and its power."""
        gained, known = 0.0, bool(values)
        for key, (counter, power) in values.items():
            gain = self._gain(key, at, joined, counter, power)
            known = known and gain is not None
            gained += gain or 0.0
        self._moments.append(at)
        self._totals.append((self._totals[-1] if self._totals else 0.0) + gained)
        if not known and len(self._moments) > 1:
            self._moments, self._totals = [at], [0.0]  # a device said nothing: what lies before cannot be compared
        del self._moments[: -self.KEPT], self._totals[: -self.KEPT]

    def between(self, start: float, end: float) -> float | None:
        """Joules used between two moments, None where they lie outside what was read."""
        moments = self._moments
        if not moments or start < moments[0] or end > moments[-1] or end < start:
            return None
        return self._total_at(end) - self._total_at(start)

    @property
    def latest(self) -> float:
        """Until when it knows."""
        return self._moments[-1] if self._moments else float("-inf")

    def _total_at(self, at: float) -> float:
        after = min(bisect_right(self._moments, at), len(self._moments) - 1)
        if after == 0:
            return self._totals[0]
        return _between(self._moments[after - 1], self._totals[after - 1], self._moments[after], self._totals[after], at)

    def _gain(self, key: str, at: float, joined: bool, counter: float | None, power: float | None) -> float | None:
        """What a device used since its last reading, None where nobody can say."""
        name, value = ("counter", counter) if counter is not None else ("power", power)
        if value is None:
            self._last.pop(key, None)
            return None
        mark = f"{key}.{name}"
        before = self._last.get(mark)
        if not isfinite(value):
            return 0.0 if before else None  # served again: what was used since comes with the next reading
        self._last[mark] = (at, value)
        if before is None or not joined:
            return None
        if name == "counter":
            return value - before[1] if value >= before[1] else None
        return (value + before[1]) / 2 * (at - before[0])
