"""Energy between two moments, and the program's steps with the work that they did per joule.

Energy is taken from the device's own counter where it has one, else integrated from its power.
"""

from __future__ import annotations

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
from accelmetrics.monitor.history import HistoryRow, device_columns
from accelmetrics.schemas.record import Step
from accelmetrics.schemas.summary import Energy

COUNTER, DRAW = "energyJoules", "powerWatts"
PENDING = 20_000
"""Steps that wait for the next tick at most; the oldest go. A few hundred bytes each."""
KEPT_STEPS = 100
"""Steps that are still known after they were given out."""
TAKING = 1.0
"""Seconds that one ``take`` waits for another: a signal handler that stops the monitor may have interrupted that one."""
WORK = ("tokens", "samples")
"""What is counted per second and per joule."""
LARGEST_STEP = 2**63
"""What readers of files and databases take."""
LARGEST = 1.7e308

log = logging.getLogger("accelmetrics")


class DeviceEnergy:
    """A device's energy over a window, by its own counter of joules and by its power.

    Power is joined by straight lines between its readings, the first and the last one held to the window's edges. What is read
    after the end is what the device draws then, and no part of the window; unless that had no reading.

    Args:
        begin: When the window began, on the monitor's clock.
        waits: Whether the first reading of power is known to stand from there on.
    """

    __slots__ = ("_begin", "_counted", "_counter", "_covered", "_drawn", "_held", "_joined", "_power", "_reset", "_waits")

    def __init__(self, begin: float, waits: bool = True) -> None:
        self._begin = begin
        self._counter: tuple[float, float] | None = None  # moment and value of its last reading
        self._counted = self._covered = 0.0  # joules, and the seconds in which they were used
        self._reset = False  # whether the counter began anew: what was used until then is not known
        self._power: tuple[float, float] | None = None
        self._waits = waits
        # Joules, and the seconds in which they were used: between two readings, and at the edges.
        self._drawn = self._joined = self._held = 0.0

    def add(self, at: float, end: float, joined: bool, counter: float | None, power: float | None) -> None:
        """Take one reading of both; None where there is none, infinity where the one before was served again.

        Those from before the beginning, and the one after the end, tell what lies between them and the window's edges.
        """
        if counter is None or not joined:
            self._counter = None
        if power is None or not joined:
            self._power, self._waits = None, False
        if counter is not None and isfinite(counter):
            self._add_counter(at, counter, end)
        if power is not None and at < self._begin:
            self._waits = True
        elif power is not None:
            self._add_power(at, power, end)

    def result(self) -> Energy | None:
        """Return what was used, by the counter if its readings cover as much as those of the power do; None when neither tells."""
        if self._covered > 0 and not self._reset and self._covered >= 0.99 * self._joined:
            return Energy(self._counted, "counter", self._covered)
        known = self._joined + self._held
        return Energy(self._drawn, "integrated", known) if known > 0 else None

    def _add_counter(self, at: float, value: float, end: float) -> None:
        """Add what was used since the last reading, but only the part between the window's beginning and end."""
        before, last = self._counter or (at, value)
        self._counter = (at, value)
        inside = min(at, end) - max(before, self._begin)
        if at > before and inside > 0:
            self._reset = self._reset or value < last
            self._counted += (value - last) * inside / (at - before)
            self._covered += inside

    def _add_power(self, at: float, watts: float, end: float) -> None:
        """Join a reading to the last one, or to the window's beginning; the one after the end shows that the last stood until then."""
        before, fresh = self._power, isfinite(watts)
        if before is None and self._waits and fresh:
            self._hold(watts, min(at, end) - self._begin)
        elif before is not None and at > end:
            self._hold(before[1], end - before[0])
        elif before is not None and fresh:
            self._drawn += (at - before[0]) * (before[1] + watts) / 2
            self._joined += at - before[0]
        if at > end:
            self._power, self._waits = None, False
        elif fresh:
            self._power, self._waits = (at, watts), False

    def _hold(self, watts: float, seconds: float) -> None:
        self._drawn += watts * seconds
        self._held += seconds


class EnergyReading(NamedTuple):
    """What a device said of its energy: joules of its counter, or watts."""

    quantity: str
    at: float
    value: float


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
        """Take one reading."""
        columns = device_columns(row.layout)
        counters, powers = columns.get(COUNTER, {}), columns.get(DRAW, {})
        readings = {device: EnergyReading(COUNTER, row.at, row.values[column]) for device, column in counters.items()}
        readings |= {device: EnergyReading(DRAW, row.at, row.values[column]) for device, column in powers.items() if device not in counters}
        again = not any(isfinite(reading.value) for reading in readings.values())
        if readings and again and row.joined and readings.keys() >= self._last.keys():
            return  # all were served again: what was used since comes with the next reading
        known = self._last if row.joined else {}
        gains = [_used(known.get(device), reading) for device, reading in readings.items()]
        lost = self._last.keys() - readings.keys()
        fresh = {device: reading if isfinite(reading.value) else known.get(device) for device, reading in readings.items()}
        self._last = {**dict.fromkeys(self._last), **fresh}
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
    if not isfinite(after.value):
        return 0.0  # served again, beside others that were read
    if before.quantity != after.quantity or (after.quantity == COUNTER and after.value < before.value):
        return None
    return after.value - before.value if after.quantity == COUNTER else (after.value + before.value) / 2 * (after.at - before.at)


class StepLog:
    """Takes what is logged, from any thread and from signal handlers, and gives it out with the next reading.

    Attributes:
        given: The last steps that were given out.
    """

    def __init__(self) -> None:
        self._pending: deque[tuple[float, Step]] = deque(maxlen=PENDING)
        self.given: deque[Step] = deque(maxlen=KEPT_STEPS)
        self._taking = threading.Lock()
        # The moment of the last one that was given out, what it was, and the energy until then.
        self._last: tuple[float, Step, tuple[float, float] | None] | None = None
        self._warned: set[str] = set()

    def add(self, at: float, time_ns: int, step: object, values: Mapping[str, SupportsFloat | None]) -> None:
        """Note numbers; what is none, or not finite, is left out and told once. Never waits, and raises nothing."""
        found = ((name, self._number(name, value)) for name, value in values.items())
        numbers = {name: number for name, number in found if number is not None}
        if len(self._pending) == PENDING:
            self._warn("", "monitor.log: %d steps wait for a reading: the oldest go", PENDING)
        self._pending.append((at, Step(time_ns, self._step(step), numbers)))

    def take(self, meter: Meter, everything: bool = False) -> tuple[Step, ...]:
        """Return what was logged up to the last reading of the devices' energy; all of it at the end.

        Args:
            meter: The energy of all selected devices.
            everything: Whether steps whose energy is not known yet are given out too.
        """
        found: list[Step] = []
        if not self._taking.acquire(timeout=TAKING):
            return ()
        try:
            while self._pending and (everything or self._pending[0][0] <= meter.latest):
                at, logged = self._pending.popleft()
                joules, before = meter.at(at), self._last
                self._last = (at, logged, joules)
                derived: dict[str, float] = {}
                if before is not None and at > before[0]:
                    used = joules[1] - before[2][1] if joules and before[2] and joules[0] == before[2][0] else 0.0
                    derived = _derived(logged, before[1], at - before[0], used, meter.devices)
                found.append(Step(logged.time_ns, logged.step, {**logged.values, **derived, **logged.values}))
            self.given.extend(found)
        finally:
            self._taking.release()
        return tuple(found)

    def _number(self, name: str, value: SupportsFloat | None) -> int | float | None:
        if value is None or (type(value) is int and abs(value) <= LARGEST):
            return value
        outcome = guarded(float, value)  # a tensor of several numbers, or of another package, may raise anything
        if isinstance(outcome.error, SystemExit):
            raise outcome.error  # of a signal handler: the program ends while it waits for the tensor
        number = outcome.value
        if number is not None and isfinite(number):
            return number
        self._warn(name, "monitor.log: %s is a %s that is no finite number: left out, here and from now on", name, type(value).__name__)
        return None

    def _step(self, step: object) -> int | None:
        if step is None:
            return None
        whole = step if isinstance(step, int) else guarded(operator.index, step).value  # type: ignore[arg-type]  # that is what is asked
        if whole is not None and -LARGEST_STEP <= whole < LARGEST_STEP:
            return int(whole)
        self._warn("step", "monitor.log: the step is a %s that is no whole number of 64 bits: left out", type(step).__name__)
        return None

    def _warn(self, mark: str, words: str, *details: object) -> None:
        if mark not in self._warned:
            self._warned.add(mark)
            log.warning(words, *details)


def _derived(logged: Step, last: Step, seconds: float, joules: float, devices: int) -> dict[str, float]:
    """Return a step's duration, its rates, and its work per joule where the joules since the last step are above 0."""
    found = {}
    advanced = logged.step - last.step if logged.step is not None and last.step is not None else 1
    if advanced > 0:
        found["step_seconds"] = seconds / advanced
    for name in WORK:
        if name in logged.values:
            amount = logged.values[name]
            found[f"{name}_per_second"] = amount / seconds
            if joules > 0:
                found[f"{name}_per_joule"] = amount / joules
                found[f"{name}_per_joule_of_mean_device"] = amount / (joules / devices)
    return {name: rate for name, rate in found.items() if isfinite(rate)}
