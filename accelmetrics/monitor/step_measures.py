"""Measures of rules about logged steps: a number per process, when the process has logged again.

Numbers are recognised by name without a tracker's prefix: ``loss``, ``train/loss``. Numbers of an evaluation are ignored. State is
separate for each process and covers a bounded number of steps.
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
"""Requirement of a rule that accepts any logged number."""
PROCESSES = 64
"""Maximum number of processes with state."""
RECENT = 64
"""Number of steps of a median, and half of the maximum number of parts of a whole run."""

T = TypeVar("T")


def about(source: StepSource) -> str:
    """Return the key of a process's findings: its rank; empty without one."""
    return "" if source[0] is None else f"rank {source[0]}"


class _PerProcess(Generic[T]):
    """State for each process that logs, up to a maximum number of processes.

    Args:
        make: Creates the state of a process.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._kept: dict[StepSource, T] = {}

    def of(self, step: Step) -> T | None:
        """Return the state of the process that logged a step; None beyond the maximum number of processes."""
        if step.source not in self._kept and len(self._kept) < PROCESSES:
            self._kept[step.source] = self._make()
        return self._kept.get(step.source)

    def numbers(self, inputs: RuleInput, names: Names) -> Iterator[tuple[str, float, T]]:
        """Yield the key and the state of the process, and the number, for each step with a finite number of this name."""
        for step in inputs.steps:
            number = logged_number(step.values, names)
            if number is not None and isfinite(number) and (kept := self.of(step)) is not None:
                yield about(step.source), number, kept


def non_finite(calm: float, norms: float) -> Measure:
    """Measure how many recent steps of a process had a loss that is NaN or infinite. The words name the last of these numbers.

    Args:
        calm: Number of finite steps in a row after which the count returns to 0.
        norms: Number of non-finite gradient norms in a row from which they count too.
    """
    # A single non-finite norm is normal: a loss scaler for half precision skips the step. With a loss of exactly 0 it counts at once,
    # because some trainers report NaN as 0.
    processes = _PerProcess(lambda: SimpleNamespace(count=0, since=0, norms=0))

    def measure(inputs: RuleInput) -> Values:
        found: dict[str, float] = {}
        for step in inputs.steps:
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
                inputs.words[about(step.source)] = f"{what} is {value}{at}"
            else:
                process.since += 1
                if process.since >= calm:
                    process.count = 0
            found[about(step.source)] = process.count
        return found

    return measure


def sustained_norm(warm_up: float, steps: float) -> Measure:
    """Measure the smallest gradient norm of a process's last steps.

    Args:
        warm_up: Number of steps at the beginning that are ignored.
        steps: Number of last steps.
    """
    processes = _PerProcess(lambda: SimpleNamespace(seen=0, last=deque[float](maxlen=int(steps))))

    def measure(inputs: RuleInput) -> Values:
        found: dict[str, float] = {}
        for key, norm, process in processes.numbers(inputs, NORM):
            process.seen += 1
            if process.seen > warm_up:
                process.last.append(norm)
                if len(process.last) == process.last.maxlen:
                    found[key] = min(process.last)
        return found

    return measure


def norm_jump(weight: float, usual: float, warm_up: float, steps: float, times: float) -> Measure:
    """Measure how far a process's gradient norm is above its moving average, in moving standard deviations.

    The result is the minimum over a few steps in a row, because one norm in fifty is far above by chance. A norm that is many times the
    average counts alone.

    Args:
        weight: Weight of the previous average in the next.
        usual: Number of deviations to which a norm is clipped before it enters the average.
        warm_up: Number of steps at the beginning without a result.
        steps: Number of steps in a row.
        times: Multiple of the average from which a single norm counts alone.
    """
    processes = _PerProcess(lambda: SimpleNamespace(seen=0, mean=0.0, variance=0.0, last=deque[float](maxlen=int(steps))))

    def measure(inputs: RuleInput) -> Values:
        found: dict[str, float] = {}
        for key, norm, process in processes.numbers(inputs, NORM):
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
                taken = min(norm, process.mean + usual * spread)  # clipped: a jump must not raise the average much
            kept = min(weight, 1 - 1 / process.seen)  # the arithmetic mean for the first steps
            process.variance = kept * (process.variance + (1 - kept) * (taken - process.mean) ** 2)
            process.mean = kept * process.mean + (1 - kept) * taken
        return found

    return measure


def loss_spike(steps: float) -> Measure:
    """Measure a process's loss as a multiple of the median of the losses before it: the highest since the last reading.

    There is no result while one of these losses is not above 0.

    Args:
        steps: Number of losses of the median.
    """
    processes = _PerProcess(lambda: deque[float](maxlen=int(steps)))

    def measure(inputs: RuleInput) -> Values:
        found: dict[str, float] = {}
        for key, loss, before in processes.numbers(inputs, LOSS):
            if len(before) == before.maxlen and min(before) > 0:
                found[key] = max(loss / median(before), found.get(key, 0.0))
            before.append(loss)
        return found

    return measure


class Thinned:
    """A series of any length as the means of a bounded number of equal parts. When there are too many parts, pairs are merged.

    Attributes:
        means: Mean of each complete part.
        size: Number of values in a part.
        count: Number of values added.
    """

    def __init__(self) -> None:
        self.means: list[float] = []
        self.size = 1
        self.count = 0
        self._sum = 0.0

    def add(self, value: float) -> bool:
        """Add a value. Return whether this completes a part."""
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
    """Measure the decline of the median loss of a process from one period to the next, in percent.

    A period is a quarter of all steps, because a loss falls more slowly the longer a run lasts. There is no result while the losses scatter
    too much.

    Args:
        least: Minimum number of steps of a period.
        unsure: Largest accepted uncertainty (two standard errors) in percent. A decline above it may have an uncertainty up to itself.
    """
    processes = _PerProcess(Thinned)

    def measure(inputs: RuleInput) -> Values:
        whole = {key: series for key, loss, series in processes.numbers(inputs, LOSS) if series.add(loss)}
        found: dict[str, float] = {}
        for key, series in whole.items():
            parts = int(max(least, series.count / 4) / series.size)
            if len(series.means) < 2 * parts:
                continue
            earlier, later = series.means[-2 * parts : -parts], series.means[-parts:]
            before = median(earlier)
            percent = 100 / max(abs(before), 1e-12)
            decline = percent * (before - median(later))
            # The standard error of a median is about a quarter larger than that of a mean.
            error = 1.25 * percent * sqrt((_variance(earlier) + _variance(later)) / parts)
            if 2 * error <= max(unsure, decline):
                found[key] = decline
        return found

    return measure


def _variance(numbers: Sequence[float]) -> float:
    """Return the population variance."""
    mean = fsum(numbers) / len(numbers)
    return fsum((number - mean) ** 2 for number in numbers) / len(numbers)


class _Pace:
    """Durations of the steps of the job's leading process: the lowest rank that logs."""

    LEAST = 3

    def __init__(self) -> None:
        self._leader: tuple[int, str] | None = None  # rank (-1 without one) and node
        self._last: Step | None = None
        self._seconds: deque[float] = deque(maxlen=RECENT)

    def take(self, inputs: RuleInput) -> Iterator[tuple[int, float]]:
        """Yield for each new record of the leader the number of steps and seconds since its previous one."""
        for step in inputs.steps:
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
        """Median duration of the last steps, in seconds; None while there are too few."""
        return median(self._seconds) if len(self._seconds) >= self.LEAST else None


def hang(load: float, power: float, least: float, times: float, first: float) -> Measure:
    """Measure the time without a logged step in multiples of the allowed time, for busy devices that draw little power; else 0.

    The words contain the time without a step.

    Args:
        load: Utilisation from which a device counts as busy, in percent.
        power: Power below which a device draws little, in percent of its limit.
        least: Minimum of the allowed time, in seconds.
        times: Allowed time in multiples of the median step.
        first: Allowed time in seconds while there are too few steps for a median.
    """
    pace = _Pace()
    since: float | None = None

    def measure(inputs: RuleInput) -> Values:
        nonlocal since
        for _ in pace.take(inputs):
            pass
        if inputs.steps or (since is not None and not inputs.joined):
            since = inputs.at
        if since is None:
            return {}
        loads, powers, limits = inputs.values(UTILIZATION), inputs.values(POWER), inputs.values(POWER_LIMIT)
        waited, usual = inputs.at - since, pace.usual
        if waited < least:
            return dict.fromkeys(loads, 0.0)
        allowed = first if usual is None else max(least, times * usual)
        inputs.words.update(dict.fromkeys(loads, f"no step for {waited:.0f} s"))
        # A device that waits for others in a collective operation reports full utilisation but draws little power.
        return {
            device: waited / allowed if busy >= load and 100 * powers[device] < power * limits[device] else 0.0
            for device, busy in loads.items()
            if device in powers and device in limits
        }

    return measure


def goodput(span: float) -> Measure:
    """Measure the share of time that the steps would have taken at their usual pace, in percent.

    Args:
        span: Length of the window in seconds.
    """
    pace, sums = _Pace(), WindowSums(span, pieces=60)

    def measure(inputs: RuleInput) -> Values:
        for advanced, seconds in pace.take(inputs):
            usual = pace.usual
            if usual is not None:
                sums.add(inputs.at, min(seconds, advanced * usual), seconds)
        return {"": sums.percent} if inputs.steps and sums.percent is not None else {}

    return measure


def step_time(steps: float, least: float) -> Measure:
    """Measure the median duration of the last steps in percent of the median of the whole run.

    Args:
        steps: Number of last steps.
        least: Minimum number of steps of a run for a result.
    """
    pace, series = _Pace(), Thinned()
    last: deque[float] = deque(maxlen=int(steps))

    def measure(inputs: RuleInput) -> Values:
        new = [seconds / advanced for advanced, seconds in pace.take(inputs)]
        last.extend(new)
        for seconds in new:
            series.add(seconds)
        return {"": 100 * median(last) / median(series.means)} if new and series.count >= least else {}

    return measure
