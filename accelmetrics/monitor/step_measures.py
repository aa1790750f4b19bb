"""What rules measure on what the program logs: one number of each process that logs, when it has logged anew.

Numbers are known by their names without what a tracker puts before them: ``loss``, ``train/loss``; those of an evaluation are not
meant. State is kept of each process alone, of a bounded number of steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from math import fsum, isfinite, sqrt
from typing import Generic, TypeVar

from accelmetrics.monitor.measures import Names, RuleInput, Values, WindowSums, median
from accelmetrics.schemas.record import Step, StepSource
from accelmetrics.schemas.vitals import POWER, POWER_LIMIT, UTILIZATION

LOSS: Names = ("loss", "train_loss", "training_loss")
NORM: Names = ("grad_norm", "gradient_norm", "grad-norm", "global_grad_norm")
ANY: Names = ("*",)
"""Any number will do."""
PROCESSES = 64
"""Processes of which state is kept."""
RECENT = 64
"""Steps of which a median is taken, and half of the parts that a whole run is kept in."""

T = TypeVar("T")


@lru_cache(maxsize=1024)
def plain_name(name: str) -> str:
    """Return a logged number's name without what a tracker puts before it: ``loss`` of ``train/loss``; all of ``eval/loss``."""
    head, _, last = name.rpartition("/")
    return name if head.partition("/")[0].lower() in ("eval", "val", "valid", "validation", "test") else last.lower()


def logged(step: Step, names: Names) -> float | None:
    """Return the first number of a step with one of these names; None where it has none."""
    return next((value for name, value in step.values.items() if plain_name(name) in names), None)


def about(source: StepSource) -> str:
    """Return what a finding of a process is about: its rank; empty without one."""
    return "" if source[0] is None else f"rank {source[0]}"


class _PerProcess(Generic[T]):
    """Keeps something for each process that logs, as far as there are not too many.

    Args:
        make: Makes it.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._kept: dict[StepSource, T] = {}

    def of(self, step: Step) -> T | None:
        """Return what is kept for the process that logged a step."""
        found = self._kept.get(step.source)
        if found is None and len(self._kept) < PROCESSES:
            found = self._kept[step.source] = self._make()
        return found

    def numbers(self, given: RuleInput, names: Names) -> Iterator[tuple[str, float, T]]:
        """Yield for each step with a finite number of these names what its process is called, that number, and what is kept for it."""
        for step in given.steps:
            number = logged(step, names)
            if number is not None and isfinite(number) and (kept := self.of(step)) is not None:
                yield about(step.source), number, kept


class NonFinite:
    """Gives how many of a process's last steps had a loss that is NaN or infinite.

    A gradient norm that is not finite counts from the third in a row on, since a scaler of losses in half precision skips such steps; and
    beside a loss of exactly 0, which is what trainers make of NaN.

    Args:
        calm: Finite steps after which it is over.
        norms: Norms in a row that are not finite, from which on they count.
    """

    class _Counts:
        def __init__(self) -> None:
            self.count = self.since = self.norms = 0

    def __init__(self, calm: float, norms: float) -> None:
        self._calm, self._norms = calm, norms
        self._processes = _PerProcess(self._Counts)
        self._words: dict[str, str] = {}

    def __call__(self, given: RuleInput) -> Values:
        found: dict[str, float] = {}
        for step in given.steps:
            loss, norm = logged(step, LOSS), logged(step, NORM)
            process = self._processes.of(step) if loss is not None or norm is not None else None
            if process is None:
                continue
            process.norms = process.norms + 1 if norm is not None and not isfinite(norm) else 0
            bad = loss is not None and not isfinite(loss)
            if bad or (process.norms and (loss == 0 or process.norms >= self._norms)):
                process.count, process.since = process.count + 1, 0
                what, value = ("loss", loss) if bad else ("gradient norm", norm)
                at = "" if step.step is None else f" at step {step.step}"
                self._words[about(step.source)] = f"{what} is {value}{at}"
            else:
                process.since += 1
                if process.since >= self._calm:
                    process.count = 0
            found[about(step.source)] = process.count
        return found

    def words(self, key: str) -> str:
        """Say what was not finite last."""
        return self._words.get(key, "")


class SustainedNorm:
    """Gives the least gradient norm of a process's last steps.

    Args:
        warm_up: Steps at the beginning that are passed over.
        steps: Steps of which it is the least.
    """

    class _Norms:
        def __init__(self, steps: int) -> None:
            self.seen = 0
            self.last: deque[float] = deque(maxlen=steps)

    def __init__(self, warm_up: float, steps: float) -> None:
        self._warm_up = warm_up
        self._processes = _PerProcess(lambda: self._Norms(int(steps)))

    def __call__(self, given: RuleInput) -> Values:
        found: dict[str, float] = {}
        for key, norm, process in self._processes.numbers(given, NORM):
            process.seen += 1
            if process.seen > self._warm_up:
                process.last.append(norm)
                if len(process.last) == process.last.maxlen:
                    found[key] = min(process.last)
        return found


class NormJump:
    """Gives how far a process's gradient norm is above its moving average, in its moving standard deviations.

    It is the least of a few steps in a row, since one norm in fifty is above by chance; of a single step where the norm is many times the
    average. What is above is taken into the average only as far as it is usual.

    Args:
        weight: Of the average so far, in the next.
        usual: Deviations up to which a norm is taken into the average.
        warm_up: Steps at the beginning for which nothing is given.
        steps: Steps in a row.
        times: In averages, a norm that counts alone.
    """

    class _Average:
        def __init__(self, steps: int) -> None:
            self.seen = 0
            self.mean = self.variance = 0.0
            self.last: deque[float] = deque(maxlen=steps)

    def __init__(self, weight: float, usual: float, warm_up: float, steps: float, times: float) -> None:
        self._weight, self._usual, self._warm_up, self._times = weight, usual, warm_up, times
        self._processes = _PerProcess(lambda: self._Average(int(steps)))

    def __call__(self, given: RuleInput) -> Values:
        found: dict[str, float] = {}
        for key, norm, process in self._processes.numbers(given, NORM):
            process.seen += 1
            usual = norm
            if process.seen == 1:
                process.mean = norm
            spread = max(sqrt(process.variance), 1e-3 * abs(process.mean), 1e-12)
            away = (norm - process.mean) / spread
            if process.seen > self._warm_up:
                process.last.append(away)
                lasting = min(process.last) if len(process.last) == process.last.maxlen else 0.0
                least = away if norm > self._times * process.mean else lasting
                found[key] = max(found.get(key, least), least)
                usual = min(norm, process.mean + self._usual * spread)
            weight = min(self._weight, 1 - 1 / process.seen)  # a plain mean at first
            process.variance = weight * (process.variance + (1 - weight) * (usual - process.mean) ** 2)
            process.mean = weight * process.mean + (1 - weight) * usual
        return found


class LossSpike:
    """Gives a process's loss in medians of the losses before it, the highest since the last reading; of losses above 0 alone.

    Args:
        steps: Losses of which the median is taken.
    """

    def __init__(self, steps: float) -> None:
        self._processes: _PerProcess[deque[float]] = _PerProcess(lambda: deque(maxlen=int(steps)))

    def __call__(self, given: RuleInput) -> Values:
        found: dict[str, float] = {}
        for key, loss, before in self._processes.numbers(given, LOSS):
            if len(before) == before.maxlen and min(before) > 0:
                found[key] = max(loss / median(before), found.get(key, 0.0))
            before.append(loss)
        return found


class Thinned:
    """Means of a series in a bounded number of equal parts, whatever its length: pairs are joined when there are too many.

    Attributes:
        means: The mean of each part that is whole.
        size: Numbers that a part is the mean of.
        count: Numbers that were added.
    """

    def __init__(self) -> None:
        self.means: list[float] = []
        self.size = 1
        self.count = 0
        self._sum = 0.0
        self._pending = 0

    def add(self, value: float) -> bool:
        """Add a number; return whether a part has become whole."""
        self.count += 1
        self._pending += 1
        self._sum += value
        if self._pending < self.size:
            return False
        self.means.append(self._sum / self._pending)
        self._sum, self._pending = 0.0, 0
        if len(self.means) == 2 * RECENT:
            self.means = [(one + other) / 2 for one, other in zip(self.means[::2], self.means[1::2], strict=True)]
            self.size *= 2
        return True


class LossDecline:
    """Gives by how much the median of a process's loss fell from one stretch of steps to the next, in percent of it.

    A stretch is a quarter of all steps: the longer a run, the slower its loss falls. While losses scatter so much that it may have fallen
    by more than ``unsure``, nothing is given.

    Args:
        least: Steps of a stretch at least.
        unsure: By how much it may have fallen, two standard errors included, where it is said not to fall; in percent.
    """

    def __init__(self, least: float, unsure: float) -> None:
        self._least, self._unsure = least, unsure
        self._processes = _PerProcess(Thinned)

    def __call__(self, given: RuleInput) -> Values:
        whole = {key: series for key, loss, series in self._processes.numbers(given, LOSS) if series.add(loss)}
        found: dict[str, float] = {}
        for key, series in whole.items():
            parts = int(max(self._least, series.count / 4) / series.size)
            if len(series.means) < 2 * parts:
                continue
            earlier, later = series.means[-2 * parts : -parts], series.means[-parts:]
            before = median(earlier)
            percent = 100 / max(abs(before), 1e-12)
            decline = percent * (before - median(later))
            # That of a median is a quarter larger than that of a mean.
            error = 1.25 * percent * sqrt((_variance(earlier) + _variance(later)) / parts)
            if 2 * error <= max(self._unsure, decline):
                found[key] = decline
        return found


class _Pace:
    """How long the steps of the job's leading process take: of the lowest rank that logs.

    Attributes:
        source: That process; None before the first step.
        usual: The median of the last steps, in seconds; None before there are some.
    """

    LEAST = 3

    def __init__(self) -> None:
        self.source: StepSource | None = None
        self._last: Step | None = None
        self._seconds: deque[float] = deque(maxlen=RECENT)

    def take(self, given: RuleInput) -> Iterator[tuple[int, float]]:
        """Yield for each new step how many steps it has advanced, and in how many seconds."""
        for step in given.steps:
            if self.source is None or _order(step.source) < _order(self.source):
                self.source, self._last = step.source, None
                self._seconds.clear()
            if step.source != self.source:
                continue
            before, self._last = self._last, step
            if before is None:
                continue
            advanced = step.step - before.step if step.step is not None and before.step is not None else 1
            seconds = (step.time_ns - before.time_ns) / 1e9
            if advanced > 0 and seconds > 0:
                self._seconds.append(seconds / advanced)
                yield advanced, seconds

    @property
    def usual(self) -> float | None:
        """The median of the last steps, in seconds; None while there are too few."""
        return median(self._seconds) if len(self._seconds) >= self.LEAST else None


def _order(source: StepSource) -> tuple[int, str]:
    rank, node = source
    return (-1 if rank is None else rank, node)


class Hang:
    """Gives for how long no step was logged, in times of what is allowed, for devices that are busy and draw little power; else 0.

    Devices that wait for others in a collective operation look like that.

    Args:
        load: Utilisation from which a device counts as busy, in percent.
        power: Power below which it draws little, in percent of its limit.
        least: Seconds without a step that are allowed at least.
        times: In medians of the last steps, how long is allowed.
        first: Seconds that are allowed while there are too few steps for a median.
    """

    def __init__(self, load: float, power: float, least: float, times: float, first: float) -> None:
        self._load, self._power, self._least, self._times, self._first = load, power, least, times, first
        self._pace = _Pace()
        self._since: float | None = None
        self._words = ""

    def __call__(self, given: RuleInput) -> Values:
        for _ in self._pace.take(given):
            pass
        if given.steps or (self._since is not None and not given.joined):
            self._since = given.at
        loads, powers, limits = given.values(UTILIZATION), given.values(POWER), given.values(POWER_LIMIT)
        if self._since is None:
            return {}
        waited = given.at - self._since
        if waited < self._least:
            return dict.fromkeys(loads, 0.0)
        usual = self._pace.usual
        allowed = self._first if usual is None else max(self._least, self._times * usual)
        self._words = f"no step for {waited:.0f} s"
        return {
            device: waited / allowed if load >= self._load and 100 * powers[device] < self._power * limits[device] else 0.0
            for device, load in loads.items()
            if device in powers and device in limits
        }

    def words(self, key: str) -> str:
        """Say for how long there was no step."""
        return self._words


class Goodput:
    """Gives how much of the time between steps they would have taken at their usual pace, in percent.

    Args:
        span: Seconds of the window; it is known once four fifths of it are.
    """

    PARTS = 60

    def __init__(self, span: float) -> None:
        self._span = span
        self._pace = _Pace()
        self._sums = WindowSums()

    def __call__(self, given: RuleInput) -> Values:
        for advanced, seconds in self._pace.take(given):
            usual = self._pace.usual
            if usual is not None:
                self._sums.add(given.at, min(seconds, advanced * usual), seconds, self._span / self.PARTS, self._span)
        if not given.steps or self._sums.whole < 0.8 * self._span:
            return {}
        return {"": 100 * self._sums.part / self._sums.whole}


class StepTime:
    """Gives the median duration of the last steps in percent of that of the whole run.

    Args:
        steps: Steps that are the last ones.
        least: Steps of a run from which on it is given.
    """

    def __init__(self, steps: float, least: float) -> None:
        self._least = least
        self._pace = _Pace()
        self._last: deque[float] = deque(maxlen=int(steps))
        self._all = Thinned()

    def __call__(self, given: RuleInput) -> Values:
        new = False
        for advanced, seconds in self._pace.take(given):
            new = True
            self._last.append(seconds / advanced)
            self._all.add(seconds / advanced)
        if not new or self._all.count < self._least:
            return {}
        return {"": 100 * median(self._last) / median(self._all.means)}


def _variance(numbers: Sequence[float]) -> float:
    """Return the mean square of what numbers are from their mean."""
    mean = fsum(numbers) / len(numbers)
    return fsum((number - mean) ** 2 for number in numbers) / len(numbers)
