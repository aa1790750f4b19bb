"""Comparison of two runs, each from its first step on: the differences and their uncertainty.

Consecutive readings resemble each other, so their number is no measure of the uncertainty of a mean. Each run is divided into blocks of
equal time, and the scatter of the block means gives the standard error. The scatter between runs of the same program (another day,
another node) cannot be estimated from one run each.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from math import sqrt
from typing import NamedTuple

from accelmetrics.views.report.run_report import Column, Plain, RunReport, StreamReport
from accelmetrics.views.summaries import MEASURES

BLOCKS, LEAST = 20, 8
"""Blocks of a run, and the number of blocks that must have a value."""
SURE = 2.15
"""Standard errors on each side of a difference: 95 % confidence with ``LEAST`` blocks, more with ``BLOCKS``."""
SLOWER = 0.1
"""Relative difference of the reading intervals above which there is a warning."""
STEP_TIME, ENERGY, THROUGHPUT, EFFICIENCY = "step_seconds", "energy_per_step_joules", "tokens_per_second", "tokens_per_joule"
UNITS = {
    "utilization_percent": "%",
    "memory_percent": "%",
    "memory_used_bytes": "By",
    "power_watts": "W",
    "temperature_celsius": "Cel",
    STEP_TIME: "s",
    ENERGY: "J",
    THROUGHPUT: "/s",
    EFFICIENCY: "/J",
}


class Comparison(NamedTuple):
    """Two runs and their differences.

    Attributes:
        a: The first run.
        b: The second run.
        differences: The compared quantities as documents have them. ``a`` and ``b`` are None if a run lacks the quantity, else ``mean``
            from the first to the last step, ``p25``, ``p75`` and ``p95`` of the readings (of the steps, of the blocks), and ``error``, the
            standard error of the mean, None with too few blocks. ``delta`` is the second mean minus the first, ``percent`` the same in
            percent of the first, ``plus_minus`` the half width of its 95 % interval, None if unknown. ``verdict`` is ``within noise``
            if the interval includes 0, else ``differs``; ``not known`` without an interval.
        warnings: Facts that make the runs hard to compare: other hardware, drivers, intervals.
    """

    a: RunReport
    b: RunReport
    differences: list[Plain]
    warnings: list[str]

    def to_dict(self) -> Plain:
        """Return the document of ``--format json``."""
        return {"differences": self.differences, "warnings": self.warnings, "a": self.a.document, "b": self.b.document}


def compare(a: RunReport, b: RunReport) -> Comparison:
    """Compare two reports that were made with ``Wanted.compared`` and with series."""
    first, second = _quantities(a), _quantities(b)
    return Comparison(
        a,
        b,
        [_difference(name, first.get(name), second.get(name)) for name in UNITS if name in first or name in second],
        list(_warnings(a, b)),
    )


def _difference(name: str, a: Plain | None, b: Plain | None) -> Plain:
    delta = percent = noise = None
    if a is not None and b is not None:
        delta = b["mean"] - a["mean"]
        percent = 100 * delta / a["mean"] if a["mean"] else None
        if a["error"] is not None and b["error"] is not None:
            noise = SURE * sqrt(a["error"] ** 2 + b["error"] ** 2)
    verdict = "not known" if delta is None or noise is None else "within noise" if abs(delta) <= noise else "differs"
    return {"name": name, "unit": UNITS[name], "a": a, "b": b, "delta": delta, "percent": percent, "plus_minus": noise, "verdict": verdict}


def _quantities(report: RunReport) -> dict[str, Plain]:
    """Return the quantities of a run that can be compared."""
    found = {}
    for measure in MEASURES:
        cells: Counter[float] = Counter()
        for stream in report.streams:
            cells.update(dict(stream.distributions.get(measure, ())))
        each = _together((_of_measure(stream, measure, statistics.fmean) for stream in report.streams), statistics.fmean)
        if cells and any(value is not None for value in each):
            found[measure] = _side(each, cells)
    power = _together((_of_measure(stream, "power_watts", sum) for stream in report.streams), sum)
    steps = _together((_of_curve(stream, STEP_TIME, statistics.fmean) for stream in report.streams), statistics.fmean)
    tokens = _together((_of_curve(stream, THROUGHPUT, sum) for stream in report.streams), sum)
    for name, each in (
        (STEP_TIME, steps),
        (ENERGY, [None if watts is None or seconds is None else watts * seconds for watts, seconds in zip(power, steps, strict=True)]),
        (THROUGHPUT, tokens),
        (EFFICIENCY, [None if not watts or rate is None else rate / watts for watts, rate in zip(power, tokens, strict=True)]),
    ):
        if any(value is not None for value in each):
            found[name] = _side(each, Counter(value for value in each if value is not None))
    if STEP_TIME in found:
        times = [times for stream in report.streams for times in stream.step_times]
        found[STEP_TIME] |= {part: statistics.fmean(one[part] for one in times) for part in ("mean", "p25", "p75", "p95")}
    return found


def _side(blocks: Sequence[float | None], times: Counter[float]) -> Plain:
    """Return a quantity of one run: mean and standard error from blocks of time, percentiles from values with their counts."""
    known = [value for value in blocks if value is not None]
    values = sorted(times)
    ranks = list(accumulate(times[value] for value in values))
    return {
        "mean": statistics.fmean(known),
        **{f"p{percent}": values[bisect_left(ranks, -(-percent * ranks[-1] // 100))] for percent in (25, 75, 95)},
        "error": statistics.stdev(known) / sqrt(len(known)) if len(known) >= LEAST else None,
    }


Combine = Callable[[Iterable[float]], float]


def _of_measure(stream: StreamReport, measure: str, combine: Combine) -> list[float | None]:
    """Return a measure combined over all whole devices, by block."""
    return _together(
        (_blocks(stream, stream.times, one.mean) for one in stream.series if one.measure == measure and one.key.count(".") == 2),
        combine,
    )


def _of_curve(stream: StreamReport, name: str, combine: Combine) -> list[float | None]:
    """Return a logged number combined over all processes of the program, by block."""
    return _together((_blocks(stream, one.times, one.mean) for one in stream.curves if one.name == name), combine)


def _blocks(stream: StreamReport, times: Sequence[float], values: Column) -> list[float | None]:
    """Return means in blocks of equal time, from the first to the last step of a stream, or over all of it without steps."""
    begin = stream.begin if stream.first_step is None else stream.first_step
    end = stream.end if stream.last_step is None or stream.last_step <= begin else stream.last_step
    seconds = max(end - begin, 1e-9) / BLOCKS
    held: list[list[float]] = [[] for _ in range(BLOCKS)]
    for moment, value in zip(times, values, strict=True):
        # A bucket is where its middle is; the last step is part of the last block.
        block = int((moment + stream.width / 2 - begin) // seconds)
        if value is not None and 0 <= block <= BLOCKS:
            held[min(block, BLOCKS - 1)].append(value)
    return [statistics.fmean(each) if each else None for each in held]


def _together(columns: Iterable[list[float | None]], combine: Combine) -> list[float | None]:
    """Return several columns combined, by block; None if one of them lacks a value."""
    whole = [column for column in columns if any(value is not None for value in column)]
    if not whole:
        return [None] * BLOCKS
    return [None if None in block else combine([value for value in block if value is not None]) for block in zip(*whole, strict=True)]


def _warnings(a: RunReport, b: RunReport) -> Iterable[str]:
    """Yield warnings about facts that make two runs hard to compare."""
    for what, field in (("devices", "name"), ("drivers", "driver_version"), ("runtimes", "runtime_version")):
        counts = [Counter(getattr(report.devices[label], field) or "unknown" for label in report.counted) for report in (a, b)]
        if counts[0] != counts[1]:
            yield f"different {what}: {_counted(counts[0])} against {_counted(counts[1])}"
    limits = [
        Counter(f"{watts:g} W" if (watts := one["power_limit_watts"]) else "unknown" for one in report.document["devices"].values())
        for report in (a, b)
    ]
    if limits[0].keys() != limits[1].keys():
        yield f"different power limits: {_counted(limits[0])} against {_counted(limits[1])}"
    slow, quick = (max((stream.interval for stream in report.streams), default=0.0) for report in (a, b))
    if abs(slow - quick) > SLOWER * max(slow, quick):
        yield f"different intervals: a reading every {slow:.3g} s against every {quick:.3g} s"
    for name, report in (("A", a), ("B", b)):
        if not any(stream.first_step is not None for stream in report.streams):
            yield f"{name} has no steps: it is compared from its first reading to its last"
    marks = [[(one.host, one.run_id, one.rank, one.begin) for one in report.streams] for report in (a, b)]
    if marks[0] == marks[1]:
        yield "both are of the same run"


def _counted(names: Counter[str]) -> str:
    return ", ".join(f"{number} × {name}" for name, number in sorted(names.items())) or "none"
