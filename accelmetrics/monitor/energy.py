"""Energy between two moments, and the program's steps with the work that they did per joule.

Energy is taken from the device's own counter where it has one, else integrated from its power.
"""

from __future__ import annotations

import functools
import logging
import operator
import threading
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Mapping
from math import isfinite
from typing import NamedTuple, SupportsFloat

from accelmetrics.backends.guard import guarded
from accelmetrics.monitor.history import Layout, Row, split
from accelmetrics.schemas.record import Step
from accelmetrics.schemas.summary import Energy

COUNTER, POWER = "energyJoules", "powerWatts"
PENDING = 20_000
"""Steps that wait for the next tick at most; the oldest go. A few hundred bytes each."""
KEPT = 100
"""Steps that are still known after they were given out."""
TAKING = 1.0
"""Seconds that one ``take`` waits for another: a signal handler that stops the monitor may have interrupted that one."""
WORK = ("tokens", "samples")
"""What is counted per second and per joule."""
LARGEST_STEP = 2**63
"""What readers of files and databases take."""
LARGEST = 1.7e308

log = logging.getLogger("accelmetrics")

Columns = dict[str, tuple[int | None, int | None]]
"""By whole device, where its counter and its power stand in a row."""


@functools.lru_cache(maxsize=64)
def energy_columns(layout: Layout) -> Columns:
    """By whole device, where its counter and its power stand; those that have neither are not there."""
    places: dict[str, dict[str, int]] = {}
    for position, key in enumerate(layout):
        device, name = split(key)
        if device and name in {COUNTER, POWER}:
            places.setdefault(device, {})[name] = position
    return {device: (found.get(COUNTER), found.get(POWER)) for device, found in places.items()}


class _Counter:
    """A device's own counter of joules, over a window."""

    __slots__ = ("_at", "_value", "broken", "covered", "total")

    def __init__(self) -> None:
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
        if value < last:
            self.broken = True  # the counter began anew: what was used until then is not known
            return
        self.total += (value - last) * (high - low) / (at - before)
        self.covered += high - low

    def gap(self) -> None:
        """The value was absent, or nobody looked: what was used meanwhile is not known."""
        self._at = None


class _Draw:
    """A device's power, over a window: straight lines between its readings, the first and the last one held to the edges.

    What is read after the end is what the device draws then, and no part of the window; unless that had no reading.
    """

    __slots__ = ("_at", "_waiting", "_watts", "held", "joined", "total")

    def __init__(self) -> None:
        self._at: float | None = None
        self._watts = 0.0
        self._waiting = True
        self.total = 0.0
        self.joined = 0.0
        self.held = 0.0

    def add(self, at: float, watts: float, begin: float, end: float) -> None:
        """Take a reading, or that the one before was served again."""
        if at < begin:
            self._waiting = True  # for the first one within, which is known to stand from the beginning on
        elif at > end:
            self._close(watts, begin, end)
        elif isfinite(watts):
            if self._at is not None:
                self.total += (at - self._at) * (self._watts + watts) / 2
                self.joined += at - self._at
            elif self._waiting:
                self._hold(watts, at - begin)
            self._at, self._watts, self._waiting = at, watts, False

    def gap(self) -> None:
        """The value was absent, or nobody looked."""
        self._at, self._waiting = None, False

    def _close(self, watts: float, begin: float, end: float) -> None:
        if self._at is not None:
            self._hold(self._watts, end - self._at)
        elif self._waiting and isfinite(watts):
            self._hold(watts, end - begin)
        self.gap()

    def _hold(self, watts: float, seconds: float) -> None:
        self.total += watts * seconds
        self.held += seconds


class DeviceEnergy:
    """A device's energy over a window.

    Args:
        begin: When the window began, on the monitor's clock.
    """

    __slots__ = ("_begin", "_counter", "_power")

    def __init__(self, begin: float) -> None:
        self._begin = begin
        self._counter = _Counter()
        self._power = _Draw()

    def add(self, at: float, end: float, joined: bool, counter: float | None, power: float | None) -> None:
        """Take one reading of both; None where there is none.

        Those from before the beginning, and the one after the end, tell what lies between them and the window's edges.
        """
        if not joined:
            self.gap()
        if counter is None:
            self._counter.gap()
        elif isfinite(counter):  # else the reading before was served again
            self._counter.add(at, counter, self._begin, end)
        if power is None:
            self._power.gap()
        else:
            self._power.add(at, power, self._begin, end)

    def gap(self) -> None:
        """The device gave nothing."""
        self._counter.gap()
        self._power.gap()

    def result(self) -> Energy | None:
        """What was used, by the counter if its readings cover as much as those of the power do; None when neither tells."""
        counter, power = self._counter, self._power
        if counter.covered > 0 and not counter.broken and counter.covered >= 0.99 * power.joined:
            return Energy(counter.total, "counter", counter.covered)
        if power.joined + power.held > 0:
            return Energy(power.total, "integrated", power.joined + power.held)
        return None


def _between(start: float, first: float, end: float, last: float, at: float) -> float:
    return first + (last - first) * (at - start) / (end - start)


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


class _Logged(NamedTuple):
    at: float
    time_ns: int
    step: int | None
    values: dict[str, int | float]


class StepLog:
    """Takes what is logged, from any thread and from signal handlers, and gives it out with the next reading."""

    def __init__(self) -> None:
        self._pending: deque[_Logged] = deque(maxlen=PENDING)
        self._given: deque[Step] = deque(maxlen=KEPT)
        self._taking = threading.Lock()
        self._last: _Logged | None = None
        self._reckoned: Reckoning | None = None
        self._told: set[str] = set()

    @property
    def given(self) -> tuple[Step, ...]:
        """The last ones that were given out."""
        return tuple(self._given.copy())

    def add(self, at: float, time_ns: int, step: object, values: Mapping[str, SupportsFloat | None]) -> None:
        """Note numbers; what is none, or not finite, is left out and told once. Never waits, and raises nothing."""
        found = ((name, self._number(name, value)) for name, value in values.items())
        numbers = {name: number for name, number in found if number is not None}
        if len(self._pending) == PENDING:
            self._tell("", "monitor.log: %d steps wait for a reading: the oldest go", PENDING)
        self._pending.append(_Logged(at, time_ns, self._step(step), numbers))

    def take(self, meter: Meter, everything: bool = False) -> tuple[Step, ...]:
        """What was logged up to the last reading of the devices' energy; all of it at the end.

        Args:
            meter: The energy of all selected devices.
            everything: Whether steps whose energy is not known yet are given out too.
        """
        found: list[Step] = []
        if not self._taking.acquire(timeout=TAKING):
            return ()
        try:
            while self._pending and (everything or self._pending[0].at <= meter.latest):
                logged = self._pending.popleft()
                reckoned = meter.at(logged.at)
                derived = self._derived(logged, self._joules_until(reckoned), meter.devices)
                found.append(Step(logged.time_ns, logged.step, {**logged.values, **derived, **logged.values}))
                self._last, self._reckoned = logged, reckoned
            self._given.extend(found)
        finally:
            self._taking.release()
        return tuple(found)

    def _joules_until(self, reckoned: Reckoning | None) -> float | None:
        """What was used since the last step; None where that is not known."""
        last = self._reckoned
        if last is None or reckoned is None or last.since != reckoned.since:
            return None
        return reckoned.joules - last.joules

    def _derived(self, logged: _Logged, joules: float | None, devices: int) -> dict[str, float]:
        last = self._last
        seconds = logged.at - last.at if last is not None else 0.0
        if last is None or seconds <= 0:
            return {}
        found = {}
        advanced = logged.step - last.step if logged.step is not None and last.step is not None else 1
        if advanced > 0:
            found["step_seconds"] = seconds / advanced
        for name in WORK:
            if name in logged.values:
                found.update(_rates(name, logged.values[name], seconds, joules, devices))
        return found

    def _number(self, name: str, value: SupportsFloat | None) -> int | float | None:
        if value is None or (type(value) is int and abs(value) <= LARGEST):
            return value
        outcome = guarded(float, value)  # a tensor of several numbers, or of another package, may raise anything
        if isinstance(outcome.error, SystemExit):
            raise outcome.error  # of a signal handler: the program ends while it waits for the tensor
        number = outcome.value
        if number is not None and isfinite(number):
            return number
        self._tell(name, "monitor.log: %s is a %s that is no finite number: left out, here and from now on", name, type(value).__name__)
        return None

    def _step(self, step: object) -> int | None:
        if step is None:
            return None
        whole = step if isinstance(step, int) else guarded(operator.index, step).value  # type: ignore[arg-type]  # that is what is asked
        if whole is not None and -LARGEST_STEP <= whole < LARGEST_STEP:
            return int(whole)
        self._tell("step", "monitor.log: the step is a %s that is no whole number of 64 bits: left out", type(step).__name__)
        return None

    def _tell(self, mark: str, words: str, *details: object) -> None:
        if mark not in self._told:
            self._told.add(mark)
            log.warning(words, *details)


def _rates(name: str, amount: float, seconds: float, joules: float | None, devices: int) -> dict[str, float]:
    found = {f"{name}_per_second": amount / seconds}
    if joules is not None and joules > 0:
        found[f"{name}_per_joule"] = amount / joules
        found[f"{name}_per_joule_of_mean_device"] = amount / (joules / devices)
    return {name: rate for name, rate in found.items() if isfinite(rate)}
