"""The program's steps: taken from any thread, given out with the next reading, with rates and the work that they did per joule."""

from __future__ import annotations

import logging
import operator
import threading
from collections import deque
from collections.abc import Mapping
from math import isfinite
from typing import NamedTuple, SupportsFloat

from accelmetrics.backends.guard import guarded
from accelmetrics.monitor.energy import Meter
from accelmetrics.schemas.record import Source, Step

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


class Done(NamedTuple):
    """Work that a process did.

    Attributes:
        amount: How much.
        seconds: In which time.
        paid: How much of it is of steps whose energy is known.
        joules: And that energy.
    """

    amount: float = 0.0
    seconds: float = 0.0
    paid: float = 0.0
    joules: float = 0.0


class Rate(NamedTuple):
    """Work of all processes together.

    Attributes:
        per_second: The sum of what each did in a second.
        per_joule: Over the energy of all selected devices; None where that is not known.
    """

    per_second: float
    per_joule: float | None


Totals = Mapping[tuple[str, Source], Done]


class Work:
    """The work that steps tell of, added up for each process: ranks work side by side, so that their rates add up and not their times.

    Attributes:
        totals: By kind of work and process, what was done so far.
    """

    def __init__(self) -> None:
        self.totals: dict[tuple[str, Source], Done] = {}

    def add(self, step: Step) -> None:
        """Take a step, if it says both how much was done and how fast."""
        for name in WORK:
            amount, rate, per_joule = (step.values.get(name + more) for more in ("", "_per_second", "_per_joule"))
            if amount and rate and isfinite(amount):
                done = self.totals.get((name, step.source), Done())
                paid, joules = (amount, amount / per_joule) if per_joule else (0.0, 0.0)
                self.totals[name, step.source] = Done(
                    done.amount + amount, done.seconds + amount / rate, done.paid + paid, done.joules + joules
                )


def rates(after: Totals, before: Totals = {}) -> dict[str, Rate]:  # noqa: B006  # never changed
    """Return, by kind of work, what was done between two states of the totals; without those in which nothing was."""
    found: dict[str, list[Done]] = {}
    for key, done in after.items():
        gained = Done(*(now - then for now, then in zip(done, before.get(key, Done()), strict=True)))
        if gained.seconds > 0:
            found.setdefault(key[0], []).append(gained)
    sums = {name: Done(*map(sum, zip(*each, strict=True))) for name, each in found.items()}
    return {
        name: Rate(sum(done.amount / done.seconds for done in found[name]), total.paid / total.joules if total.joules > 0 else None)
        for name, total in sums.items()
    }


class StepLog:
    """Takes what is logged, from any thread and from signal handlers, and gives it out with the next reading.

    Attributes:
        given: The last steps that were given out.
        work: What those that were ever given out come to.
    """

    def __init__(self) -> None:
        self.work = Work()
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
                self.work.add(found[-1])
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
