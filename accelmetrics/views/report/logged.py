"""What the program logged, of one process: curves over steps and time, how long steps took, epochs."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from math import ceil, isfinite, nan

from accelmetrics.schemas.accumulator import Accumulator, BlockTimes
from accelmetrics.schemas.record import Step, StepSource
from accelmetrics.views.report.run_report import Curve, Event, StepTimes, Stretch
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
        count: How many there were.
        newest_ns: The time of the latest, in nanoseconds since 1970.
        first: When the first one was logged; NaN before that.
        last: When the last one was.
        not_finite: The first numbers that were not finite, by name, with when.
    """

    def __init__(self) -> None:
        self.count = 0
        self.newest_ns = -1
        self.first = self.last = nan
        self.not_finite: dict[str, float] = {}
        self._reducer = SeriesReducer()
        self._seconds = Accumulator(timed=False)
        self._counts: dict[str, int] = {}
        self._odd: dict[str, int] = {}
        self._pending: list[Step] = []
        self._epochs: list[tuple[float, float, float]] = []  # number, from its first to its last step
        self._fractional = False

    def add(self, step: Step) -> None:
        """Take a step."""
        self._pending.append(step)
        self.newest_ns = max(self.newest_ns, step.time_ns)
        if len(self._pending) == BLOCK:
            self.settle()

    def settle(self) -> None:
        """Reduce the steps that are still pending."""
        steps, self._pending = self._pending, []
        if not steps:
            return
        times = [step.time_ns / 1e9 for step in steps]
        if not self.count:
            self.first = times[0]
        self.count += len(steps)
        self.last = times[-1]
        columns = {STEP: array("d", [nan if step.step is None else step.step for step in steps])}
        for name in dict.fromkeys(name for step in steps for name in step.values):
            if name in self._counts or len(self._counts) < NAMES:
                columns[name] = self._column(name, [step.values.get(name) for step in steps], times)
        self._reducer.add(times, columns)
        seconds = array("d", filter(isfinite, columns.get(STEP_SECONDS, ())))
        if seconds:
            nothing = [0.0] * len(seconds)
            self._seconds.fold(seconds, BlockTimes(0.0, nothing, nothing))
        for epoch, moment in zip(columns.get(EPOCH, ()), times, strict=False):
            if isfinite(epoch):
                self._note_epoch(epoch, moment)

    def _column(self, name: str, values: list[int | float | None], times: list[float]) -> array[float]:
        """Return a number of each step, NaN where it was not logged or not finite; count both."""
        column = array("d", [nan if value is None else value for value in values])
        if not isfinite(sum(column)):
            for position, value in enumerate(values):
                if value is not None and not isfinite(value):
                    column[position] = nan
                    self._odd[name] = self._odd.get(name, 0) + 1
                    self.not_finite.setdefault(name, times[position])
        self._counts[name] = self._counts.get(name, 0) + len(values) - values.count(None)
        return column

    def curves(self, source: str) -> Iterator[Curve]:
        """Yield what was logged, of a process that is called so."""
        times = self._reducer.begins()
        steps = self._reducer.points(STEP).last if STEP in self._reducer.keys else [None] * len(times)
        for name in self._reducer.keys:
            if name != STEP:
                low, mean, high, last = self._reducer.points(name)
                known = [position for position, value in enumerate(mean) if value is not None]
                number, low, mean, high, last = ([one[position] for position in known] for one in (steps, low, mean, high, last))
                odd = self._odd.get(name, 0)
                moments = [times[position] for position in known]
                yield Curve(name, source, moments, number, low, mean, high, last, self._counts[name], odd)

    def step_times(self, source: str) -> StepTimes | None:
        """Return how long steps took; None where that is not known."""
        if not self._seconds.count:
            return None
        held, summary = self._seconds, self._seconds.summary()
        p25, p50, p75, p95, p99 = held.quantiles(25, 50, 75, 95, 99)
        counts, width = [0] * BARS, (p99 - summary.min) / BARS
        if width > 0:
            for value, number in held.cells():
                counts[max(0, min(BARS - 1, int((value - summary.min) / width)))] += number
            edges = [*(summary.min + width * bar for bar in range(BARS)), summary.max]
        else:  # all are equal, but for a few
            counts, edges = [summary.count], [summary.min, summary.max]
        return StepTimes(source, summary.count, summary.mean, summary.min, p25, p50, p75, p95, p99, summary.max, edges, counts)

    def epochs(self) -> list[Stretch]:
        """Return the epochs: each from the last step of the one before."""
        found = []
        begin = self.first
        for number, first, last in self._epochs:
            found.append(Stretch("epoch", f"{number:g}", begin if first > begin else first, last))
            begin = last
        return found

    def events(self) -> Iterator[Event]:
        """Yield an event for each name whose numbers were not all finite."""
        for name, moment in self.not_finite.items():
            number = self._odd[name]
            more = f" for the first of {number} times" if number > 1 else ""
            yield Event("not_finite", "", moment, f"{name} was not finite{more}")

    def _note_epoch(self, logged: float, moment: float) -> None:
        self._fractional = self._fractional or logged != int(logged)
        number = float(ceil(logged)) if self._fractional else logged
        if self._epochs and self._epochs[-1][0] == number:
            self._epochs[-1] = (number, self._epochs[-1][1], moment)
        elif len(self._epochs) < EPOCHS:
            self._epochs.append((number, moment, moment))


def source_words(source: StepSource, several: bool) -> str:
    """Return what a process is called; empty where there is only one."""
    rank, node = source
    if not several:
        return ""
    return " on ".join(filter(None, ("" if rank is None else f"rank {rank}", node)))
