"""What the watched program logs about itself, and what follows from it: durations, rates, work per joule."""

from __future__ import annotations

import logging
import operator
import threading
from collections import deque
from collections.abc import Mapping
from math import isfinite
from typing import NamedTuple, SupportsFloat

from accelmetrics.backends.guard import guarded
from accelmetrics.monitor.energy import Meter, Reckoning
from accelmetrics.schemas.record import Step

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
