"""Logged training values as time series for graphs: for each program one series of each value, over all processes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import isfinite

from accelmetrics.schemas.record import STEP_NAMES, WORK, Step, logged_number
from accelmetrics.views.device_view import ValueRow

TRAINING_VALUES: Mapping[str, ValueRow] = {
    row.name: row
    for row in (
        ValueRow("loss", "loss", "1", STEP_NAMES["loss"]),
        ValueRow("step_seconds", "step", "s", ("step_seconds",)),
        ValueRow("tokens_per_second", "tokens/s", "1", ("tokens_per_second",)),
        ValueRow("tokens_per_joule", "tokens/J", "1", ("tokens_per_joule",)),
        ValueRow("learning_rate", "learning rate", "1", STEP_NAMES["learning_rate"]),
        ValueRow("grad_norm", "gradient norm", "1", STEP_NAMES["grad_norm"]),
        ValueRow("samples_per_second", "samples/s", "1", STEP_NAMES["samples_per_second"]),
        ValueRow("samples_per_joule", "samples/J", "1", ("samples_per_joule",)),
    )
}
"""Training values that graphs show, by name, the most important first. ``names`` are the names under which programs log them."""
ADDED_UP = frozenset(f"{work}_per_second" for work in WORK)
"""Rates that are summed over the processes of a program. Any other value is taken from the process that logged it."""
HOLDS, LEAST_HOLD = 10.0, 5.0
"""Time for which a rate counts in the sum: ``HOLDS`` of the process's steps, but at least ``LEAST_HOLD`` seconds.

After that the process is assumed to have ended.
"""


class TrainingSeries:
    """Conversion of logged steps into values over time. Steps must be added in the order of their time."""

    def __init__(self) -> None:
        self._rates: dict[tuple[str, str], dict[int | None, tuple[float, float]]] = {}
        """For each program and rate: by rank, the time in seconds since 1970 until which the rate counts, and the rate."""

    def add(self, steps: Iterable[Step]) -> Iterator[tuple[str, int, dict[str, float | None]]]:
        """Yield the program, the time and the values of each step. Values are named as in ``TRAINING_VALUES``.

        The program is ``Step.node``: the machine's name, or empty if unknown. A value is None if the logged number is not finite, and
        absent if the step does not have it. A rate in ``ADDED_UP`` is the sum over all processes of the program.
        """
        for step in steps:
            found: dict[str, float | None] = {}
            for name, row in TRAINING_VALUES.items():
                value = logged_number(step.values, row.names)
                if value is not None:
                    found[name] = (self._sum(step, name, value) if name in ADDED_UP else float(value)) if isfinite(value) else None
            if found:
                yield step.node, step.time_ns, found

    def _sum(self, step: Step, name: str, value: float) -> float:
        """Return the sum of a rate over all processes of the step's program."""
        seconds = step.values.get("step_seconds", 0.0)
        # A logged step time may be NaN or infinite.
        held = max(LEAST_HOLD, HOLDS * seconds) if isfinite(seconds) else LEAST_HOLD
        now = step.time_ns / 1e9
        if (step.node, name) not in self._rates:  # a new program: drop those that have ended
            running = {program: rates for program, rates in self._rates.items() if any(until >= now for until, _ in rates.values())}
            self._rates = {**running, (step.node, name): {}}
        rates = self._rates[step.node, name]
        rates[step.rank] = now + held, float(value)
        for rank in [rank for rank, (until, _) in rates.items() if until < now]:
            del rates[rank]
        return sum(rate for _, rate in rates.values())
