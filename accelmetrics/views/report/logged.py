"""What the program logged, of one process: curves over steps and time, how long steps took, epochs."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from math import ceil, isfinite, nan

from accelmetrics.schemas.accumulator import Accumulator, BlockTimes
from accelmetrics.schemas.record import Step
from accelmetrics.views.report.run_report import Curve, Mark, Plain
from accelmetrics.views.report.series import SeriesReducer

BLOCK = 512
"""Steps that are reduced together."""
BARS = 40
"""Of a histogram, up to the 99th percentile: the last one has all longer steps."""
EPOCHS = 1000
"""Epochs that are told."""
STEP_SECONDS, EPOCH = "step_seconds", "epoch"
STEP = "\0step"
"""The column of the steps' own numbers, beside those of what was logged."""
NAMES = 200
"""Names of logged numbers that are reduced: a program may make new ones without end."""


class LoggedSteps:
    """The steps of one process, reduced while they are read.

    Attributes:
        newest_ns: The time of the latest, in nanoseconds since 1970.
        first: When the first one was logged; NaN before that.
        last: When the last one was.
    """

    def __init__(self) -> None:
        self.newest_ns = -1
        self.first = self.last = nan
        self._reducer = SeriesReducer()
        self._seconds = Accumulator(timed=False)
        self._names: set[str] = set()
        self._odd: dict[str, tuple[float, int]] = {}  # by name, when a number was not finite first, and how often
        self._pending: list[Step] = []
        self._epochs: list[tuple[float, float, float]] = []  # number, from its first to its last step
        self._fractional = False

    def add(self, step: Step) -> None:
        """Take a step."""
        if self.newest_ns < 0:
            self.first = step.time_ns / 1e9
        self._pending.append(step)
        self.newest_ns = max(self.newest_ns, step.time_ns)
        self.last = step.time_ns / 1e9
        if len(self._pending) == BLOCK:
            self.settle()

    def settle(self) -> None:
        """Reduce the steps that are still pending."""
        steps, self._pending = self._pending, []
        if not steps:
            return
        times = [step.time_ns / 1e9 for step in steps]
        columns = {STEP: array("d", [nan if step.step is None else step.step for step in steps])}
        for name in dict.fromkeys(name for step in steps for name in step.values):
            if name in self._names or len(self._names) < NAMES:
                self._names.add(name)
                columns[name] = array("d", [step.values.get(name, nan) for step in steps])
                for position, step in () if isfinite(sum(columns[name])) else enumerate(steps):
                    if not isfinite(step.values.get(name, 0)):
                        columns[name][position] = nan
                        since, number = self._odd.get(name, (times[position], 0))
                        self._odd[name] = since, number + 1
        self._reducer.add(times, columns)
        seconds = array("d", filter(isfinite, columns.get(STEP_SECONDS, ())))
        if seconds:
            nothing = [0.0] * len(seconds)
            self._seconds.fold(seconds, BlockTimes(0.0, nothing, nothing))
        for epoch, moment in zip(columns.get(EPOCH, ()), times, strict=False):
            if not isfinite(epoch):
                continue
            self._fractional = self._fractional or epoch != int(epoch)
            epoch = float(ceil(epoch)) if self._fractional else epoch  # 2.3 is part of the third  # noqa: PLW2901
            if self._epochs and self._epochs[-1][0] == epoch:
                self._epochs[-1] = (epoch, self._epochs[-1][1], moment)
            elif len(self._epochs) < EPOCHS:
                self._epochs.append((epoch, moment, moment))

    def curves(self, source: str) -> Iterator[Curve]:
        """Yield what was logged, of a process that is called so."""
        times, steps = self._reducer.begins(), self._reducer.points(STEP)[3]
        for name in self._reducer.keys:
            if name != STEP:
                columns = (steps, *self._reducer.points(name)[:3])
                known = [position for position, value in enumerate(columns[2]) if value is not None]
                moments = [times[position] for position in known]
                yield Curve(name, source, moments, *([column[position] for position in known] for column in columns))

    def step_times(self, source: str) -> Plain | None:
        """Return how long steps took, in seconds, as documents have it; None where that is not known.

        Quantiles are exact up to 512 different values and within 0.5 % beyond. ``edges`` are those of a histogram's bars, one more than
        there are of them, and ``counts`` the steps in each bar.
        """
        if not self._seconds.count:
            return None
        held = self._seconds.summary()
        p25, p75 = self._seconds.quantiles(25, 75)
        counts, width = [0] * BARS, (held.p99 - held.min) / BARS
        if width > 0:
            for value, number in self._seconds.cells():
                counts[max(0, min(BARS - 1, int((value - held.min) / width)))] += number
            edges = [*(held.min + width * bar for bar in range(BARS)), held.max]
        else:  # all are equal, but for a few
            counts, edges = [held.count], [held.min, held.max]
        return {
            "source": source,
            "count": held.count,
            "mean": held.mean,
            "min": held.min,
            "p25": p25,
            "p50": held.p50,
            "p75": p75,
            "p95": held.p95,
            "p99": held.p99,
            "max": held.max,
            "edges": edges,
            "counts": counts,
        }

    def epochs(self) -> list[Mark]:
        """Return the epochs: each from the last step of the one before."""
        found = []
        begin = self.first
        for number, first, last in self._epochs:
            found.append(Mark("epoch", f"epoch {number:g}", begin if first > begin else first, last))
            begin = last
        return found

    def events(self) -> Iterator[tuple[float, str]]:
        """Yield for each name whose numbers were not all finite when that was first, and words."""
        for name, (moment, number) in self._odd.items():
            more = f" for the first of {number} times" if number > 1 else ""
            yield moment, f"{name} was not finite{more}"
