"""What rules measure on what the program logs: one number of each process that logs, when it has logged anew.

Numbers are known by their names without what a tracker puts before them: ``loss``, ``train/loss``; those of an evaluation are not
meant. State is kept of each process alone, of a bounded number of steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from math import fsum, isfinite, sqrt
from types import SimpleNamespace
from typing import Generic, TypeVar

from accelmetrics.monitor.measures import Measure, Names, RuleInput, Values, WindowSums, median
from accelmetrics.schemas.record import STEP_NAMES, Step, StepSource, logged_number
from accelmetrics.schemas.vitals import POWER, POWER_LIMIT, UTILIZATION

LOSS: Names = STEP_NAMES["loss"]
NORM: Names = STEP_NAMES["grad_norm"]
ANY: Names = ("*",)
"""Any number will do."""
PROCESSES = 64
"""Processes of which state is kept."""
RECENT = 64
"""Steps of which a median is taken, and half of the parts that a whole run is kept in."""

T = TypeVar("T")


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
        if step.source not in self._kept and len(self._kept) < PROCESSES:
            self._kept[step.source] = self._make()
        return self._kept.get(step.source)

    def numbers(self, given: RuleInput, names: Names) -> Iterator[tuple[str, float, T]]:
        """Yield for each step with a finite number of these names what its process is called, that number, and what is kept for it."""
        for step in given.steps:
            number = logged_number(step.values, names)
            if number is not None and isfinite(number) and (kept := self.of(step)) is not None:
                yield about(step.source), number, kept


def non_finite(calm: float, norms: float) -> Measure:
    """Measure how many of a process's last steps had a loss that is NaN or infinite. The words say what was not finite last.

    A gradient norm that is not finite counts from the third in a row on, since a scaler of losses in half precision skips such steps; and
    beside a loss of exactly 0, which is what trainers make of NaN.

    Args:
        calm: Finite steps after which it is over.
        norms: Norms in a row that are not finite, from which on they count.
    """
    processes = _PerProcess(lambda: SimpleNamespace(count=0, since=0, norms=0))

    def measure(given: RuleInput) -> Values:
        found: dict[str, float] = {}
        for step in given.steps:
            loss, norm = logged_number(step.values, LOSS), logged_number(step.values, NORM)
            process = processes.of(step) if loss is not None or norm is not None else None
            if process is None:
                continue
            process.norms = process.norms + 1 if norm is not None and not isfinite(norm) else 0
            bad = loss is not None and not isfinite(loss)
            if bad or (process.norms and (loss == 0 or process.norms >= norms)):
                process.count, process.since = process.count + 1, 0
                what, value = ("loss", loss) if bad else ("gradient norm", norm)
                at = "" if step.step is None else f" at step {step.step}"
                given.words[about(step.source)] = f"{what} is {value}{at}"
            else:
                process.since += 1
                if process.since >= calm:
                    process.count = 0
            found[about(step.source)] = process.count
        return found

    return measure


def sustained_norm(warm_up: float, steps: float) -> Measure:
    """Measure the least gradient norm of a process's last steps.

    Args:
        warm_up: Steps at the beginning that are passed over.
        steps: Steps of which it is the least.
    """
    processes = _PerProcess(lambda: SimpleNamespace(seen=0, last=deque[float](maxlen=int(steps))))

    def measure(given: RuleInput) -> Values:
        found: dict[str, float] = {}
        for key, norm, process in processes.numbers(given, NORM):
            process.seen += 1
            if process.seen > warm_up:
                process.last.append(norm)
                if len(process.last) == process.last.maxlen:
                    found[key] = min(process.last)
        return found

    return measure


def norm_jump(weight: float, usual: float, warm_up: float, steps: float, times: float) -> Measure:
    """Measure how far a process's gradient norm is above its moving average, in its moving standard deviations.

    It is the least of a few steps in a row, since one norm in fifty is above by chance; of a single step where the norm is many times the
    average. What is above is taken into the average only as far as it is usual.

    Args:
        weight: Of the average so far, in the next.
        usual: Deviations up to which a norm is taken into the average.
        warm_up: Steps at the beginning for which nothing is given.
        steps: Steps in a row.
        times: In averages, a norm that counts alone.
    """
    processes = _PerProcess(lambda: SimpleNamespace(seen=0, mean=0.0, variance=0.0, last=deque[float](maxlen=int(steps))))

    def measure(given: RuleInput) -> Values:
        found: dict[str, float] = {}
        for key, norm, process in processes.numbers(given, NORM):
            process.seen += 1
            taken = norm
            if process.seen == 1:
                process.mean = norm
            spread = max(sqrt(process.variance), 1e-3 * abs(process.mean), 1e-12)
            away = (norm - process.mean) / spread
            if process.seen > warm_up:
                process.last.append(away)
                lasting = min(process.last) if len(process.last) == process.last.maxlen else 0.0
                least = away if norm > times * process.mean else lasting
                found[key] = max(found.get(key, least), least)
                taken = min(norm, process.mean + usual * spread)
            kept = min(weight, 1 - 1 / process.seen)  # a plain mean at first
            process.variance = kept * (process.variance + (1 - kept) * (taken - process.mean) ** 2)
            process.mean = kept * process.mean + (1 - kept) * taken
        return found

    return measure


def loss_spike(steps: float) -> Measure:
    """Measure a process's loss in medians of the losses before it, the highest since the last reading; of losses above 0 alone.

    Args:
        steps: Losses of which the median is taken.
    """
    processes = _PerProcess(lambda: deque[float](maxlen=int(steps)))

    def measure(given: RuleInput) -> Values:
        found: dict[str, float] = {}
        for key, loss, before in processes.numbers(given, LOSS):
            if len(before) == before.maxlen and min(before) > 0:
                found[key] = max(loss / median(before), found.get(key, 0.0))
            before.append(loss)
        return found

    return measure


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

    def add(self, value: float) -> bool:
        """Add a number; return whether a part has become whole."""
        self.count += 1
        self._sum += value
        if self.count % self.size:
            return False
        self.means.append(self._sum / self.size)
        self._sum = 0.0
        if len(self.means) == 2 * RECENT:
            self.means = [(one + other) / 2 for one, other in zip(self.means[::2], self.means[1::2], strict=True)]
            self.size *= 2
        return True


def loss_decline(least: float, unsure: float) -> Measure:
    """Measure by how much the median of a process's loss fell from one stretch of steps to the next, in percent of it.

    A stretch is a quarter of all steps: the longer a run, the slower its loss falls. While losses scatter so much that it may have fallen
    by more than ``unsure``, nothing is given.

    Args:
        least: Steps of a stretch at least.
        unsure: By how much it may have fallen, two standard errors included, where it is said not to fall; in percent.
    """
    processes = _PerProcess(Thinned)

    def measure(given: RuleInput) -> Values:
        whole = {key: series for key, loss, series in processes.numbers(given, LOSS) if series.add(loss)}
        found: dict[str, float] = {}
        for key, series in whole.items():
            parts = int(max(least, series.count / 4) / series.size)
            if len(series.means) < 2 * parts:
                continue
            earlier, later = series.means[-2 * parts : -parts], series.means[-parts:]
            before = median(earlier)
            percent = 100 / max(abs(before), 1e-12)
            decline = percent * (before - median(later))
            # That of a median is a quarter larger than that of a mean.
            error = 1.25 * percent * sqrt((_variance(earlier) + _variance(later)) / parts)
            if 2 * error <= max(unsure, decline):
                found[key] = decline
        return found

    return measure


def _variance(numbers: Sequence[float]) -> float:
    """Return the mean square of what numbers are from their mean."""
    mean = fsum(numbers) / len(numbers)
    return fsum((number - mean) ** 2 for number in numbers) / len(numbers)


class _Pace:
    """How long the steps of the job's leading process take: of the lowest rank that logs."""

    LEAST = 3

    def __init__(self) -> None:
        self._leader: tuple[int, str] | None = None  # its rank, -1 without one, and its node
        self._last: Step | None = None
        self._seconds: deque[float] = deque(maxlen=RECENT)

    def take(self, given: RuleInput) -> Iterator[tuple[int, float]]:
        """Yield for each new step how many steps it has advanced, and in how many seconds."""
        for step in given.steps:
            rank, node = step.source
            process = (-1 if rank is None else rank, node)
            if self._leader is None or process < self._leader:
                self._leader, self._last = process, None
                self._seconds.clear()
            if process != self._leader:
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


def hang(load: float, power: float, least: float, times: float, first: float) -> Measure:
    """Measure for how long no step was logged, in times of what is allowed, for devices that are busy and draw little power; else 0.

    Devices that wait for others in a collective operation look like that. The words say for how long there was no step.

    Args:
        load: Utilisation from which a device counts as busy, in percent.
        power: Power below which it draws little, in percent of its limit.
        least: Seconds without a step that are allowed at least.
        times: In medians of the last steps, how long is allowed.
        first: Seconds that are allowed while there are too few steps for a median.
    """
    pace = _Pace()
    since: float | None = None

    def measure(given: RuleInput) -> Values:
        nonlocal since
        for _ in pace.take(given):
            pass
        if given.steps or (since is not None and not given.joined):
            since = given.at
        if since is None:
            return {}
        loads, powers, limits = given.values(UTILIZATION), given.values(POWER), given.values(POWER_LIMIT)
        waited, usual = given.at - since, pace.usual
        if waited < least:
            return dict.fromkeys(loads, 0.0)
        allowed = first if usual is None else max(least, times * usual)
        given.words.update(dict.fromkeys(loads, f"no step for {waited:.0f} s"))
        return {
            device: waited / allowed if busy >= load and 100 * powers[device] < power * limits[device] else 0.0
            for device, busy in loads.items()
            if device in powers and device in limits
        }

    return measure


def goodput(span: float) -> Measure:
    """Measure how much of the time between steps they would have taken at their usual pace, in percent.

    Args:
        span: Seconds of the window.
    """
    pace, sums = _Pace(), WindowSums(span, pieces=60)

    def measure(given: RuleInput) -> Values:
        for advanced, seconds in pace.take(given):
            usual = pace.usual
            if usual is not None:
                sums.add(given.at, min(seconds, advanced * usual), seconds)
        return {"": sums.percent} if given.steps and sums.percent is not None else {}

    return measure


def step_time(steps: float, least: float) -> Measure:
    """Measure the median duration of the last steps in percent of that of the whole run.

    Args:
        steps: Steps that are the last ones.
        least: Steps of a run from which on it is given.
    """
    pace, series = _Pace(), Thinned()
    last: deque[float] = deque(maxlen=int(steps))

    def measure(given: RuleInput) -> Values:
        new = [seconds / advanced for advanced, seconds in pace.take(given)]
        last.extend(new)
        for seconds in new:
            series.add(seconds)
        return {"": 100 * median(last) / median(series.means)} if new and series.count >= least else {}

    return measure
