"""What the watched program logs about itself, and what follows from it: durations, rates, work per joule."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from math import isfinite
from typing import NamedTuple, SupportsFloat

from accelmetrics.sampling.energy import Meter
from accelmetrics.schemas.record import Step

PENDING = 100_000
"""Steps that wait for the next tick at most."""
WORK = ("tokens", "samples")
"""What is counted per second and per joule."""

log = logging.getLogger("accelmetrics")


class _Logged(NamedTuple):
    at: float
    time_ns: int
    step: int | None
    values: dict[str, int | float]


class StepLog:
    """Takes what is logged, from any thread, and gives it out with the next reading."""

    def __init__(self) -> None:
        self._pending: deque[_Logged] = deque(maxlen=PENDING)
        self._last: _Logged | None = None
        self._refused: set[str] = set()

    def add(self, at: float, time_ns: int, step: int | None, values: Mapping[str, SupportsFloat | None]) -> None:
        """Note numbers; what is none, or not finite, is left out and told once."""
        numbers = {
            name: number for name, value in values.items() if value is not None and (number := self._number(name, value)) is not None
        }
        self._pending.append(_Logged(at, time_ns, step, numbers))

    def take(self, meter: Meter, devices: int, everything: bool = False) -> tuple[Step, ...]:
        """What was logged up to the last reading of the devices' energy; all of it at the end.

        Args:
            meter: The energy of all selected devices.
            devices: How many these are.
            everything: Whether steps whose energy is not known yet are given out too.
        """
        found = []
        while self._pending and (everything or self._pending[0].at <= meter.latest):
            logged = self._pending.popleft()
            found.append(Step(logged.time_ns, logged.step, {**logged.values, **self._derived(logged, meter, devices)}))
            self._last = logged
        return tuple(found)

    def _derived(self, logged: _Logged, meter: Meter, devices: int) -> dict[str, float]:
        last = self._last
        seconds = logged.at - last.at if last is not None else 0.0
        if last is None or seconds <= 0:
            return {}
        found = {}
        advanced = logged.step - last.step if logged.step is not None and last.step is not None else 1
        if advanced > 0:
            found["step_seconds"] = seconds / advanced
        joules = meter.between(last.at, logged.at)
        for name in WORK:
            if name in logged.values:
                found.update(_rates(name, logged.values[name], seconds, joules, devices))
        return found

    def _number(self, name: str, value: SupportsFloat) -> int | float | None:
        try:
            number = value if type(value) is int else float(value)
        except (TypeError, ValueError, OverflowError):
            number = float("nan")
        if isfinite(number):
            return number
        if name not in self._refused:
            self._refused.add(name)
            log.warning("monitor.log: %s is %r, which is no finite number: left out, here and from now on", name, value)
        return None


def _rates(name: str, amount: float, seconds: float, joules: float | None, devices: int) -> dict[str, float]:
    found = {f"{name}_per_second": amount / seconds}
    if joules:
        found[f"{name}_per_joule"] = amount / joules
        found[f"{name}_per_joule_of_mean_device"] = amount / (joules / devices)
    return found
