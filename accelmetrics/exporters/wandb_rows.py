"""How a record becomes rows of a W&B run's history, each metric with an x axis of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from accelmetrics.schemas.record import Record, Step

SECONDS = "accelmetrics/seconds"
"""The axis of everything that is measured: seconds since the run began. ``_step``, the program's own, is left alone."""
TRAINING = "training/"
TRAINING_STEP = f"{TRAINING}step"
"""The axis of what the program logged to the monitor: its step there."""

Row = dict[str, int | float]


class Run(Protocol):
    """What is used of a W&B run."""

    @property
    def id(self) -> str:
        """Its id."""
        ...

    @property
    def start_time(self) -> float:
        """When it began, in seconds since 1970."""
        ...

    def define_metric(self, name: str, step_metric: str | None = None, *, hidden: bool | None = None, summary: str | None = None) -> Any:
        """Say how a metric is drawn and summed up."""
        ...

    def log(self, data: dict[str, Any], *, commit: bool | None = None) -> None:
        """Add to the row that is being put together, and finish it with ``commit``."""
        ...


def rows(record: Record, prefix: str) -> Iterator[tuple[int, Row]]:
    """When, in nanoseconds since 1970, and what: a row for each step of the program, and one for the snapshot."""
    for step in record.steps:
        yield step.time_ns, _training(step)
    metrics = dict(record.snapshot.metrics)
    if record.monitor is not None:
        metrics.update(record.monitor.flat())
    yield record.snapshot.time_ns, {f"{prefix}{key}": value for key, value in metrics.items()}


def _training(step: Step) -> Row:
    row: Row = {f"{TRAINING}{name}": value for name, value in step.values.items()}
    if step.step is not None:
        row[TRAINING_STEP] = step.step
    return row


class History:
    """A run's history as it is written to.

    Args:
        run: The run.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self._defined: set[str] = set()

    def log(self, time_ns: int, row: Mapping[str, int | float], commit: bool) -> None:
        """Add a row; without ``commit``, to the row that the program finishes itself."""
        placed = {**row, SECONDS: round(time_ns / 1e9 - self.run.start_time, 3)}
        for name in placed.keys() - self._defined:
            self._define(name, stepped=TRAINING_STEP in row)
        self.run.log(placed, commit=commit)

    def _define(self, name: str, stepped: bool) -> None:
        """How a metric is drawn. What is measured leaves the run's summary alone.

        One definition a name: W&B takes the names that a pattern matches for nested values. So would it a name with dots, in
        a definition though not in a row, unless they are escaped.
        """
        self._defined.add(name)
        if name in (SECONDS, TRAINING_STEP):
            self.run.define_metric(name, hidden=True, summary="none")
            return
        training = name.startswith(TRAINING)
        axis = TRAINING_STEP if training and stepped else SECONDS
        self.run.define_metric(name.replace(".", "\\."), axis, summary=None if training else "none")
