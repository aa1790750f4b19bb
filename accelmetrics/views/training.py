"""What programs logged, as series for graphs beside the devices: one for each program, of its processes together."""

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
"""What is looked at of a training, by name, that first which is looked at most. ``names`` are those that programs log."""
ADDED_UP = frozenset(f"{work}_per_second" for work in WORK)
"""Rates that the processes of a program have together. Of the others each process has its own."""
HOLDS, LEAST_HOLD = 10.0, 5.0
"""For how long a process's rate is part of the sum: in its own steps, and in seconds at least. It may have ended."""


class TrainingSeries:
    """Turns steps into values at moments. Steps are added in the order of their time."""

    def __init__(self) -> None:
        self._rates: dict[tuple[str, str], dict[int | None, tuple[int, float]]] = {}
        """By program and rate, and by rank: until when it holds, and the rate."""

    def add(self, steps: Iterable[Step]) -> Iterator[tuple[str, int, dict[str, float | None]]]:
        """Yield of each step its program, its time, and its values by their names in ``TRAINING_VALUES``.

        The program is ``Step.node``: the machine, empty where that is not known. A value is None where the logged number is not finite, and
        is left out where the step has none. A rate in ``ADDED_UP`` is of all processes of the program.
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
        """Return a rate of all processes of a step's program."""
        seconds = step.values.get("step_seconds", 0.0)
        held = max(LEAST_HOLD, HOLDS * seconds) if isfinite(seconds) else LEAST_HOLD
        rates = self._rates.setdefault((step.node, name), {})
        rates[step.rank] = step.time_ns + int(held * 1e9), float(value)
        for rank in [rank for rank, (until, _) in rates.items() if until < step.time_ns]:
            del rates[rank]
        return sum(rate for _, rate in rates.values())
