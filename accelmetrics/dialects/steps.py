"""Counts over a training's steps, which no single record holds: how many, how long each took, and what was not finite."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from itertools import accumulate
from math import isfinite
from typing import NamedTuple

from accelmetrics.dialects.contract import Distribution, Point
from accelmetrics.schemas.record import Step, StepSource

STEPS, DURATION, NOT_FINITE = "training_steps_total", "training_step_duration_seconds", "training_nonfinite_total"
MEANINGS = {
    STEPS: "Training steps since the monitor saw the first one.",
    DURATION: "Duration of a training step.",
    NOT_FINITE: "Numbers logged under the name that were NaN or infinite.",
}
BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""Upper bounds of the durations' histogram in our own names, in seconds."""
DERIVED = ("step_seconds", "_per_second", "_per_joule", "_per_joule_of_mean_device", "nonFinite")
"""What the names of numbers end with that the monitor adds to a step: none of them is ever not finite."""


class StepCounts(NamedTuple):
    """What the steps of one process come to so far.

    Steps are counted by their own numbers, so that a program which logs every tenth step counts ten, and their duration is
    observed as often.

    Attributes:
        bounds: Upper bounds of the histogram of durations, rising, in seconds.
        observed: Steps by bucket, that of infinity last; empty before the first duration.
        seconds: The sum of the durations.
        steps: How many.
        number: That of the last step.
        not_finite: By logged name, how many numbers were NaN or infinite.
    """

    bounds: tuple[float, ...] = BUCKETS
    observed: tuple[int, ...] = ()
    seconds: float = 0.0
    steps: int = 0
    number: int | None = None
    not_finite: Mapping[str, int] = {}

    def after(self, step: Step) -> StepCounts:
        """Count a step; one that is not numbered, or with which a program begins to count anew, is one step more."""
        before, number = self.number, step.step
        advanced = 1 if before is None or number is None or number < before else number - before
        observed, seconds = self.observed, self.seconds
        duration = step.values.get("step_seconds")
        if duration is not None and isfinite(duration) and advanced:
            buckets = list(observed) or [0] * (len(self.bounds) + 1)
            buckets[bisect_left(self.bounds, duration)] += advanced
            observed, seconds = tuple(buckets), seconds + duration * advanced
        # A name that was always finite stands at 0, so that its first NaN is seen as a rise.
        odd = {
            name: self.not_finite.get(name, 0) + (not isfinite(value)) for name, value in step.values.items() if not name.endswith(DERIVED)
        }
        return StepCounts(
            self.bounds, observed, seconds, self.steps + advanced, before if number is None else number, {**self.not_finite, **odd}
        )

    def points(self, labels: Mapping[str, str]) -> Iterator[Point]:
        """Give the number of steps and, where any duration is known, their histogram."""
        if self.steps:
            yield Point(STEPS, self.steps, labels, "counter", "1", MEANINGS[STEPS])
        if self.observed:
            durations = Distribution(sum(self.observed), self.seconds, tuple(zip(self.bounds, accumulate(self.observed), strict=False)))
            yield Point(DURATION, durations.mean, labels, "histogram", "s", MEANINGS[DURATION], durations)


def source_labels(source: StepSource) -> dict[str, str]:
    """Give the labels of what a process logged; none where it has no rank."""
    rank, node = source
    return {} if rank is None else {"rank": str(rank), **({"node": node} if node else {})}


def step_points(counts: Mapping[StepSource, StepCounts]) -> Iterator[Point]:
    """Give what was counted of each process's steps, in our own names."""
    for source, counted in counts.items():
        labels = source_labels(source)
        yield from counted.points(labels)
        for name, number in counted.not_finite.items():
            yield Point(NOT_FINITE, number, {**labels, "name": name}, "counter", "1", MEANINGS[NOT_FINITE])
