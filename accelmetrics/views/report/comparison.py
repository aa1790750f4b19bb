"""Two runs compared: each from its first step on, how much they differ, and how sure that is.

Readings that follow each other are alike, so that their number says little about how sure a mean is. Each run is divided into blocks of
equal time; how much the means of the blocks differ says what chance does. What lies between runs of the same program (another day, another
node) one run each cannot show.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from math import sqrt
from typing import Any, Literal, NamedTuple

from accelmetrics.views.report.run_report import Column, RunReport, StreamReport
from accelmetrics.views.summaries import MEASURES

BLOCKS, LEAST = 20, 8
"""Blocks that a run is divided into, and how many of them must have a value."""
SURE = 2.15
"""Standard errors on either side of a difference of means: 95 % of all cases with as few blocks, more with all."""
SLOWER = 0.1
"""Share by which intervals differ from where on that is told."""
STEP_TIME, ENERGY, THROUGHPUT, EFFICIENCY = "step_seconds", "energy_per_step_joules", "tokens_per_second", "tokens_per_joule"
UNITS = {"utilization_percent": "%", "memory_percent": "%", "memory_used_bytes": "By", "power_watts": "W", "temperature_celsius": "Cel"}

Verdict = Literal["differs", "within noise", "not known"]


class Side(NamedTuple):
    """One run's part of a comparison.

    Attributes:
        mean: From the first step to the last one.
        p25: A quarter of the readings (of the steps, of the blocks) does not exceed it.
        p75: Three quarters do not.
        p95: 95 % do not.
        error: The standard error of the mean; None where there are too few blocks.
    """

    mean: float
    p25: float
    p75: float
    p95: float
    error: float | None


class Difference(NamedTuple):
    """One quantity of both runs.

    Attributes:
        name: What: ``power_watts``, ``step_seconds``, ``energy_per_step_joules``.
        unit: Its unit.
        a: Of the first run; None where it has none.
        b: Of the second.
        delta: By how much the second mean is larger.
        percent: The same in percent of the first.
        plus_minus: By how much chance may move the difference, in 95 % of all cases; None where that is not known.
        verdict: ``within noise`` where that is no less than the difference, else ``differs``; ``not known`` without it.
    """

    name: str
    unit: str
    a: Side | None
    b: Side | None
    delta: float | None
    percent: float | None
    plus_minus: float | None
    verdict: Verdict


class Comparison(NamedTuple):
    """Two runs.

    Attributes:
        a: The first.
        b: The second.
        differences: What was compared.
        warnings: What makes them hard to compare: other hardware, drivers, intervals.
    """

    a: RunReport
    b: RunReport
    differences: tuple[Difference, ...]
    warnings: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return it as ``--format json`` prints it."""
        told = [
            {**one._asdict(), "a": None if one.a is None else one.a._asdict(), "b": None if one.b is None else one.b._asdict()}
            for one in self.differences
        ]
        return {"differences": told, "warnings": list(self.warnings), "a": self.a.document, "b": self.b.document}


def compare(a: RunReport, b: RunReport) -> Comparison:
    """Compare two reports that were made to be compared (``Wanted.compared``, with series)."""
    first, second = _quantities(a), _quantities(b)
    names = [name for name in (*MEASURES, STEP_TIME, ENERGY, THROUGHPUT, EFFICIENCY) if name in first or name in second]
    return Comparison(a, b, tuple(_difference(name, first.get(name), second.get(name)) for name in names), tuple(_warnings(a, b)))


def _difference(name: str, a: Side | None, b: Side | None) -> Difference:
    units = {**UNITS, STEP_TIME: "s", ENERGY: "J", THROUGHPUT: "/s", EFFICIENCY: "/J"}
    if a is None or b is None:
        return Difference(name, units[name], a, b, None, None, None, "not known")
    delta = b.mean - a.mean
    percent = 100 * delta / a.mean if a.mean else None
    if a.error is None or b.error is None:
        return Difference(name, units[name], a, b, delta, percent, None, "not known")
    noise = SURE * sqrt(a.error**2 + b.error**2)
    return Difference(name, units[name], a, b, delta, percent, noise, "within noise" if abs(delta) <= noise else "differs")


def _quantities(report: RunReport) -> dict[str, Side]:
    """Return what there is of a run to compare."""
    blocks = [_Blocks(stream) for stream in report.streams]
    found = {}
    for measure in MEASURES:
        each = _together((one.of_measure(measure) for one in blocks), statistics.fmean)
        cells: Counter[float] = Counter()
        for stream in report.streams:
            cells.update(dict(stream.distributions.get(measure, ())))
        if cells and any(value is not None for value in each):
            found[measure] = _side(each, sorted(cells.items()))
    power = _together((one.power() for one in blocks), sum)
    steps = _together((one.of_curve(STEP_TIME) for one in blocks), statistics.fmean)
    tokens = _together((one.of_curve(THROUGHPUT, sum) for one in blocks), sum)
    for name, each in (
        (STEP_TIME, steps),
        (ENERGY, [None if watts is None or seconds is None else watts * seconds for watts, seconds in zip(power, steps, strict=True)]),
        (THROUGHPUT, tokens),
        (EFFICIENCY, [None if not watts or rate is None else rate / watts for watts, rate in zip(power, tokens, strict=True)]),
    ):
        known = [value for value in each if value is not None]
        times = [times for stream in report.streams for times in stream.step_times]
        if known:
            found[name] = _side(each, sorted(Counter(known).items()))
        if known and name == STEP_TIME:
            found[name] = found[name]._replace(
                **{part: statistics.fmean(getattr(one, part) for one in times) for part in ("mean", "p25", "p75", "p95")}
            )
    return found


def _side(blocks: Sequence[float | None], cells: Sequence[tuple[float, int]]) -> Side:
    """Return a quantity of one run: its mean and how sure it is from blocks of time, its spread from values with how often there were."""
    known = [value for value in blocks if value is not None]
    error = statistics.stdev(known) / sqrt(len(known)) if len(known) >= LEAST else None
    ranks = list(accumulate(times for _, times in cells))
    p25, p75, p95 = (cells[bisect_left(ranks, -(-percent * ranks[-1] // 100))][0] for percent in (25, 75, 95))
    return Side(statistics.fmean(known), p25, p75, p95, error)


class _Blocks:
    """A stream from its first step to its last one, or whole where it has none, in blocks of equal time."""

    def __init__(self, stream: StreamReport) -> None:
        self._stream = stream
        self._begin = stream.begin if stream.first_step is None else stream.first_step
        end = stream.end if stream.last_step is None or stream.last_step <= self._begin else stream.last_step
        self._seconds = max(end - self._begin, 1e-9) / BLOCKS

    def of_measure(self, measure: str) -> list[float | None]:
        """Return the mean of a measure over all whole devices."""
        series = [self._means(self._stream.times, one.mean) for one in self._series(measure)]
        return _together(series, statistics.fmean)

    def power(self) -> list[float | None]:
        """Return the power of all whole devices together."""
        return _together([self._means(self._stream.times, one.mean) for one in self._series("power_watts")], sum)

    def of_curve(self, name: str, combine: Callable[[Iterable[float]], float] = statistics.fmean) -> list[float | None]:
        """Return what the program logged, of all its processes."""
        return _together([self._means(one.times, one.mean) for one in self._stream.curves if one.name == name], combine)

    def _series(self, measure: str) -> list[Any]:
        return [one for one in self._stream.series if one.measure == measure and one.key.count(".") == 2]

    def _means(self, times: Sequence[float], values: Column) -> list[float | None]:
        held: list[list[float]] = [[] for _ in range(BLOCKS)]
        for moment, value in zip(times, values, strict=True):
            # A bucket is where its middle is; the last step is part of the last block.
            block = int((moment + self._stream.width / 2 - self._begin) // self._seconds)
            if value is not None and 0 <= block <= BLOCKS:
                held[min(block, BLOCKS - 1)].append(value)
        return [statistics.fmean(each) if each else None for each in held]


def _together(columns: Iterable[list[float | None]], combine: Callable[[Iterable[float]], float]) -> list[float | None]:
    """Return, by block, what several columns come to together; None where one lacks a value."""
    each = list(columns)
    whole = [column for column in each if any(value is not None for value in column)]
    if not whole:
        return [None] * BLOCKS
    return [None if None in block else combine([value for value in block if value is not None]) for block in zip(*whole, strict=True)]


def _warnings(a: RunReport, b: RunReport) -> Iterable[str]:
    """Yield what makes two runs hard to compare."""
    for what, field in (("devices", "name"), ("drivers", "driver_version"), ("runtimes", "runtime_version")):
        counts = [Counter(getattr(one.identity, field) or "unknown" for one in report.devices if one.counted) for report in (a, b)]
        if counts[0] != counts[1]:
            yield f"other {what}: {_counted(counts[0])} against {_counted(counts[1])}"
    limits = [
        Counter(f"{watts:g} W" if (watts := one["power_limit_watts"]) else "unknown" for one in report.document["devices"].values())
        for report in (a, b)
    ]
    if limits[0].keys() != limits[1].keys():
        yield f"other limits of power: {_counted(limits[0])} against {_counted(limits[1])}"
    slow, quick = (max((stream.interval for stream in report.streams), default=0.0) for report in (a, b))
    if abs(slow - quick) > SLOWER * max(slow, quick):
        yield f"other intervals: a reading every {slow:.3g} s against every {quick:.3g} s"
    for name, report in (("A", a), ("B", b)):
        if not any(stream.first_step is not None for stream in report.streams):
            yield f"{name} has no steps: it is taken from its first reading to its last"
    marks = [[(one.host, one.run_id, one.rank, one.begin) for one in report.streams] for report in (a, b)]
    if marks[0] == marks[1]:
        yield "both are of the same run"


def _counted(names: Counter[str]) -> str:
    return ", ".join(f"{number} × {name}" for name, number in sorted(names.items())) or "none"
