"""What the pictures of a report show: lines over time, strips, curves, bars. Files of SVG and the page are drawn from the same plots.

Two runs that are compared share their axes: time is counted from each one's first step, or its beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from math import floor
from statistics import median
from typing import Literal, NamedTuple

from accelmetrics.schemas.catalogue import match
from accelmetrics.schemas.summary import Summary
from accelmetrics.views.device_view import throttle_words
from accelmetrics.views.report.run_report import Column, Curve, ReducedSeries, RunReport, StepTimes, StreamReport
from accelmetrics.views.report.scales import ShownUnit, shown_unit

LINES = 8
"""Lines of one plot at most: more devices are drawn as a band from the least to the largest of them, and their median."""
POINTS = 1000
"""Points of a line at most."""
CELLS = 500_000
"""Numbers of all lines of a report at most: with more lines, each has fewer points."""
FEWEST = 100
"""Points that a line has however many there are."""
ROWS = 24
"""Rows of the strip at most: with more, all devices share one for each reason."""
TITLES = {
    "utilization_percent": "Utilisation",
    "memory_percent": "Memory used, share",
    "memory_used_bytes": "Memory used",
    "power_watts": "Power",
    "temperature_celsius": "Temperature",
    "smClock": "Clock",
    "memoryTemp": "Temperature of the memory",
    "machine cpu": "Processor time of the watched process",
    "machine memory_percent": "Memory used, of the machine",
}
"""Of metrics, by their name in reports or in recordings; others have their own name."""
MACHINE = "machine "
"""What the names of metrics begin with here that are about no device: some share their names with those of devices."""


class PlotLine(NamedTuple):
    """One line of a plot: the least, mean and largest value at each point; None where there is none.

    Attributes:
        label: What it is: ``gpu.0``, ``A gpu.0``, ``median of 16 devices``.
        color: Its number in the palette; lines of one device have one.
        dashed: Whether it belongs to the second of two runs.
        x: Where: seconds since 1970 or since the first step, or steps.
        low: Least values.
        mean: Means; medians of devices in a band.
        high: Largest values.
    """

    label: str
    color: int
    dashed: bool
    x: Sequence[float]
    low: Column
    mean: Column
    high: Column


class Mark(NamedTuple):
    """A stretch of time that a plot marks.

    Attributes:
        kind: ``gap``, ``silence``, ``window``, ``epoch``, ``finding`` or ``event``.
        label: What it is, in words.
        begin: Its beginning.
        end: Its end; that of the run while it lasts.
        severity: Of a finding.
    """

    kind: str
    label: str
    begin: float
    end: float
    severity: str = ""


class Plot(NamedTuple):
    """Lines over one axis.

    Attributes:
        name: What its file is called, without the ending.
        title: Its heading.
        unit: Of the values, as shown.
        axis: ``time`` (UTC), ``seconds`` since the first step, or ``step``.
        lines: What is drawn.
        top: Where the axis ends at least; None where the values say.
        about: What the metric means.
        dense: Whether the points of a line are those of all others.
    """

    name: str
    title: str
    unit: str
    axis: Literal["time", "seconds", "step"]
    lines: tuple[PlotLine, ...]
    top: float | None = None
    about: str = ""
    dense: bool = True


class StripRow(NamedTuple):
    """Something that was or was not, over time: begin, end and the share of that time in which it was."""

    label: str
    kind: str
    spans: tuple[tuple[float, float, float], ...]


class Histogram(NamedTuple):
    """How often values lay between edges, a column of counts for each run."""

    name: str
    title: str
    unit: str
    edges: Sequence[float]
    counts: tuple[tuple[str, Sequence[int]], ...]


class MeasureSpread(NamedTuple):
    """One measure of each device: what its readings came to."""

    name: str
    title: str
    unit: ShownUnit
    rows: tuple[tuple[str, Summary], ...]


class Pictures(NamedTuple):
    """All plots of a report.

    Attributes:
        axis: Of time: ``time``, or ``seconds`` since the first step where two runs are compared.
        begin: Where that axis begins.
        end: Where it ends.
        plots: Metrics over time.
        marks: What all those mark.
        strip: Throttling, gaps, findings and events over the same time.
        by_time: What the program logged, over time.
        by_step: The same over its steps, where it said which.
        step_times: How long steps took.
        distributions: Of the measures.
        constant: Metrics that never changed, in words; there is no plot of these.
        points: How many points a line has at most.
    """

    axis: Literal["time", "seconds"]
    begin: float
    end: float
    plots: tuple[Plot, ...]
    marks: tuple[Mark, ...]
    strip: tuple[StripRow, ...]
    by_time: tuple[Plot, ...]
    by_step: tuple[Plot, ...]
    step_times: tuple[Histogram, ...]
    distributions: tuple[MeasureSpread, ...]
    constant: tuple[str, ...]
    points: int


class _Run(NamedTuple):
    """One of the runs that are drawn: its letter where there are two, and from when each of its streams counts time."""

    letter: str
    report: RunReport
    origins: Mapping[str, float]

    def label(self, text: str) -> str:
        return f"{self.letter} {text}".strip()

    @property
    def dashed(self) -> bool:
        return self.letter == "B"


def pictures(report: RunReport, other: RunReport | None = None) -> Pictures:
    """Return what is to be drawn of a run, or of two that are compared."""
    if other is None:
        runs = [_Run("", report, {stream.label: 0.0 for stream in report.streams})]
    else:
        runs = [_Run(letter, one, _origins(one)) for letter, one in (("A", report), ("B", other))]
    axis: Literal["time", "seconds"] = "time" if other is None else "seconds"
    groups = _groups(runs)
    lines = sum(min(len(group), LINES) for group in groups.values())
    points = max(FEWEST, min(POINTS, CELLS // (3 * max(lines, 1))))
    grid = _Grid(runs, points)
    constant, plots = [], []
    for name, group in groups.items():
        values = {value for _, _, series in group for value in chain(series.low, series.high) if value is not None}
        if len(values) == 1:
            (value,) = values
            unit = shown_unit(group[0][2].unit, abs(value))
            constant.append(f"{_title(name)} {value / unit.factor:.4g} {unit.name}".rstrip())
        elif values:
            plots.append(_metric_plot(name, group, grid, axis))
    return Pictures(
        axis=axis,
        begin=min(stream.begin - run.origins[stream.label] for run in runs for stream in run.report.streams),
        end=max(stream.end - run.origins[stream.label] for run in runs for stream in run.report.streams),
        plots=tuple(plots),
        marks=tuple(_marks(runs)),
        strip=tuple(_strip(runs)),
        by_time=tuple(_curves(runs, axis)),
        by_step=tuple(_curves(runs, "step")),
        step_times=tuple(_histograms(runs)),
        distributions=tuple(_distributions(runs)),
        constant=tuple(constant),
        points=points,
    )


def _origins(report: RunReport) -> dict[str, float]:
    """Return from when each stream's time is counted: its first step, else the run's, else the run's beginning."""
    first = min((stream.first_step for stream in report.streams if stream.first_step is not None), default=None)
    begin = min(stream.begin for stream in report.streams) if first is None else first
    return {stream.label: begin if stream.first_step is None else stream.first_step for stream in report.streams}


_Group = list[tuple[_Run, StreamReport, ReducedSeries]]


def _groups(runs: Sequence[_Run]) -> dict[str, _Group]:
    """Return all series by what they measure, those first that people look at first, and the machine's last."""
    found: dict[str, _Group] = {}
    for run in runs:
        for stream in run.report.streams:
            for series in stream.series:
                name = (series.measure or series.name) if series.device else MACHINE + series.name
                found.setdefault(name, []).append((run, stream, series))
    order = {name: position for position, name in enumerate(TITLES)}
    return dict(sorted(found.items(), key=lambda item: (item[0].startswith(MACHINE), order.get(item[0], len(order)), item[0])))


class _Grid:
    """The points of all lines: buckets of one width over all recordings."""

    def __init__(self, runs: Sequence[_Run], most: int) -> None:
        self._runs = [(stream, run.origins[stream.label]) for run in runs for stream in run.report.streams]
        self.width = max(stream.width for stream, _ in self._runs)
        while len(self._numbers()) > most:
            self.width *= 2
        numbers = sorted(self._numbers())
        self.x = [number * self.width for number in numbers]
        self._positions = {number: position for position, number in enumerate(numbers)}

    def _numbers(self) -> set[int]:
        return {floor((at - origin) / self.width) for stream, origin in self._runs for at in stream.times}

    def column(self, stream: StreamReport, origin: float, values: Column, how: Literal["low", "mean", "high"]) -> list[float | None]:
        """Return a series at the points of all lines."""
        found: list[list[float]] = [[] for _ in self.x]
        for at, value in zip(stream.times, values, strict=True):
            if value is not None:
                found[self._positions[floor((at - origin) / self.width)]].append(value)
        folds: dict[str, Callable[[Sequence[float]], float]] = {"low": min, "mean": _mean, "high": max}
        fold = folds[how]
        return [fold(held) if held else None for held in found]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _metric_plot(name: str, group: _Group, grid: _Grid, axis: Literal["time", "seconds"]) -> Plot:
    """Return the plot of a metric: a line for each device, or bands where these are too many."""
    row = match(group[0][2].key)
    lines = []
    devices = list(dict.fromkeys(series.device or stream.label for _, stream, series in group))
    for run, stream, series in group:
        origin, device = run.origins[stream.label], series.device or stream.label
        columns = (grid.column(stream, origin, values, how) for values, how in _parts(series))
        label = run.label(device or "machine")
        lines.append(PlotLine(label, devices.index(device) % LINES, run.dashed, grid.x, *columns))
    if len(lines) > LINES:
        lines = [*_bands(lines)]
    largest = max((value for line in lines for value in line.high if value is not None), default=0.0)
    unit = shown_unit(group[0][2].unit, largest)
    top = row.maximum if row is not None and row.unit == "%" else None
    meaning = "" if row is None else row.meaning
    shown = tuple(_scaled(line, unit.factor) for line in lines)
    return Plot(_slug(name), _title(name), unit.name, axis, shown, top, meaning)


def _parts(series: ReducedSeries) -> tuple[tuple[Column, Literal["low", "mean", "high"]], ...]:
    return ((series.low, "low"), (series.mean, "mean"), (series.high, "high"))


def _bands(lines: Sequence[PlotLine]) -> Iterator[PlotLine]:
    """Yield for each run the least, median and largest value of its lines at each point."""
    for color, dashed in enumerate((False, True)):
        held = [line for line in lines if line.dashed is dashed]
        if held:
            columns = (
                _across([line.low for line in held], min),
                _across([line.mean for line in held], median),
                _across([line.high for line in held], max),
            )
            letter = held[0].label.partition(" ")[0] + " " if held[0].label[:2] in {"A ", "B "} else ""
            yield PlotLine(f"{letter}median of {len(held)}", color, dashed, held[0].x, *columns)


def _across(columns: Sequence[Column], fold: Callable[[Sequence[float]], float]) -> list[float | None]:
    return [fold(held) if (held := [value for value in row if value is not None]) else None for row in zip(*columns, strict=True)]


def _scaled(line: PlotLine, factor: float) -> PlotLine:
    return line._replace(low=_short(line.low, factor), mean=_short(line.mean, factor), high=_short(line.high, factor))


def _short(values: Column, factor: float = 1.0) -> list[float | None]:
    """Return values in another unit, to five digits: more cannot be seen."""
    return [None if value is None else float(f"{value / factor:.5g}") for value in values]


def _title(name: str) -> str:
    return TITLES.get(name, name.removeprefix(MACHINE))


def _slug(name: str) -> str:
    """Return a name as that of a file: no character of it means anything to a system or a shell."""
    return "".join(one if one.isascii() and one.isalnum() else "_" for one in name).strip("_").lower()[:80] or "unnamed"


# What is marked


def _marks(runs: Sequence[_Run]) -> Iterator[Mark]:
    """Yield what plots mark. Of two runs only the first one's windows and epochs are: those of both would hide each other."""
    for run in runs:
        named = next((stream for stream in run.report.streams if any(one.kind in {"window", "epoch"} for one in stream.stretches)), None)
        for stream in run.report.streams:
            origin = run.origins[stream.label]
            for one in stream.stretches:
                if one.kind in {"window", "epoch"} and (stream is not named or run.dashed):
                    continue
                if one.end > one.begin:
                    label = {"epoch": f"epoch {one.name}", "gap": "nothing was read", "silence": f"{one.name} gave nothing"}
                    yield Mark(one.kind, run.label(label.get(one.kind, one.name)), one.begin - origin, one.end - origin)
            for finding in stream.findings:
                begin = finding.since_ns / 1e9 - origin
                end = stream.end - origin if finding.until_ns is None else finding.until_ns / 1e9 - origin
                about = " ".join(filter(None, (stream.label, finding.key)))
                yield Mark("finding", run.label(f"{finding.rule} {about}".strip()), begin, max(begin, end), finding.severity)
            for event in stream.events:
                at = event.at - origin
                yield Mark("event", run.label(f"{event.device} {event.text}".strip()), at, at)


def _strip(runs: Sequence[_Run]) -> list[StripRow]:
    """Return a row for each device's reason of throttling, and those of findings, silences, gaps and events."""
    throttled: _Reasons = {}
    for run in runs:
        for stream in run.report.streams:
            origin = run.origins[stream.label]
            for strip in stream.strips:
                spans = throttled.setdefault((run.letter, strip.device, strip.name), {})
                for at, until, share in zip(stream.times, _ends(stream), strip.share, strict=True):
                    if share:
                        spans[at - origin] = (until - origin, share)
    throttled = {key: spans for key, spans in throttled.items() if spans}
    if len(throttled) > ROWS:
        throttled = _by_reason(throttled)
    rows = []
    for (letter, device, name), spans in throttled.items():
        rows.append(StripRow(" ".join(filter(None, (letter, device, throttle_words(name)))), "throttle", tuple(_joined(spans))))
    for kind, title in (("finding", "findings"), ("silence", "device silent"), ("gap", "nothing read"), ("event", "events")):
        spans_of = tuple((mark.begin, mark.end, 1.0) for mark in _marks(runs) if mark.kind == kind)
        if spans_of:
            rows.append(StripRow(title, kind, spans_of))
    return rows


def _ends(stream: StreamReport) -> list[float]:
    """Return until when each bucket stands: the next one, where that is not too far."""
    usual = max(stream.width, stream.interval)
    following = [*stream.times[1:], stream.end]
    last = stream.times[-1:]
    return [
        after if at < after <= at + 3 * usual else min(at + usual, max(stream.end, *last))
        for at, after in zip(stream.times, following, strict=True)
    ]


_Reasons = dict[tuple[str, str, str], dict[float, tuple[float, float]]]
"""By run, device and reason of throttling: by beginning, the end and the share of each span."""


def _by_reason(rows: _Reasons) -> _Reasons:
    """Return rows of all devices together: the largest share of any of them."""
    found: _Reasons = {}
    for (letter, _, name), spans in rows.items():
        held = found.setdefault((letter, "any device", name), {})
        for begin, (end, share) in spans.items():
            before = held.get(begin, (end, 0.0))
            held[begin] = (max(end, before[0]), max(share, before[1]))
    return found


def _joined(spans: Mapping[float, tuple[float, float]]) -> Iterator[tuple[float, float, float]]:
    """Yield stretches of equal share, neighbours as one."""
    begin = end = share = 0.0
    for at, (until, value) in sorted(spans.items()):
        rounded = round(value, 2)
        if share and rounded == share and at - end < 1e-6:
            end = until
            continue
        if share:
            yield begin, end, share
        begin, end, share = at, until, rounded
    if share:
        yield begin, end, share


# What the program logged


def _curves(runs: Sequence[_Run], axis: Literal["time", "seconds", "step"]) -> Iterator[Plot]:
    """Yield a plot for each number that was logged: a line for each process. Epochs are marked in all of them."""
    names = dict.fromkeys(curve.name for run in runs for stream in run.report.streams for curve in stream.curves if curve.name != "epoch")
    files: dict[str, int] = {}
    for name in names:
        held = [
            (run, stream, curve)
            for run in runs
            for stream in run.report.streams
            for curve in stream.curves
            if curve.name == name and any(value is not None for value in curve.mean)
        ]
        lines: list[PlotLine] = []
        for run, stream, curve in held:
            points = list(_points(curve, run.origins[stream.label], axis))
            if points:
                x, low, mean, high = zip(*points, strict=True)
                color = len([line for line in lines if line.dashed is run.dashed]) % LINES
                lines.append(PlotLine(run.label(curve.source) or name, color, run.dashed, x, _short(low), _short(mean), _short(high)))
        lines = lines[: 2 * LINES] if len(runs) > 1 else lines[:LINES]
        if lines:
            slug = f"logged_{_slug(name)}"
            files[slug] = files.get(slug, 0) + 1
            file = slug if files[slug] == 1 else f"{slug}_{files[slug]}"
            yield Plot(file, name, "", axis, tuple(lines), dense=False)


def _points(curve: Curve, origin: float, axis: str) -> Iterator[tuple[float, float | None, float | None, float | None]]:
    """Yield the points of a curve in the order of the axis, one at each place."""
    at: dict[float, tuple[float | None, float | None, float | None]] = {}
    places: Column = curve.steps if axis == "step" else [moment - origin for moment in curve.times]
    for place, *values in zip(places, curve.low, curve.mean, curve.high, strict=True):
        if place is not None:
            at[place] = (values[0], values[1], values[2])
    for place in sorted(at):
        yield (place, *at[place])


def _histograms(runs: Sequence[_Run]) -> Iterator[Histogram]:
    """Yield how long steps took: of each process, or of all together where these are many."""
    held = [(run, one) for run in runs for stream in run.report.streams for one in stream.step_times if one.count]
    if len(held) > LINES:
        for run in runs:
            if times := [one for of, one in held if of is run]:
                source = run.label("all processes")
                name = f"step_time_{run.letter}".lower().rstrip("_")
                yield Histogram(name, f"Step time, {source}, {len(times)} of them", "s", *_summed(times, source))
        return
    for position, (run, one) in enumerate(held):
        source = run.label(one.source)
        name = "step_time" if len(held) == 1 else f"step_time_{_slug(source) if source else position}"
        yield Histogram(name, "Step time" if not source else f"Step time, {source}", "s", one.edges, ((source, one.counts),))


def _summed(times: Sequence[StepTimes], source: str) -> tuple[list[float], tuple[tuple[str, list[int]]]]:
    """Return the edges and the counts of several processes together, each bar of theirs where its middle lies."""
    bars = max(len(one.counts) for one in times)
    begin, end = min(one.min for one in times), max(one.p99 for one in times)
    width = (end - begin) / bars
    if not width:
        return [begin, max(one.max for one in times)], ((source, [sum(one.count for one in times)]),)
    counts = [0] * bars
    for one in times:
        for edge, following, count in zip(one.edges, one.edges[1:], one.counts, strict=False):
            middle = edge + min(following - edge, width) / 2  # the last bar has all longer steps
            counts[min(bars - 1, int((middle - begin) / width))] += count
    edges = [*(begin + width * bar for bar in range(bars)), max(one.max for one in times)]
    return edges, ((source, counts),)


def step_times(report: RunReport) -> Iterator[StepTimes]:
    """Yield how long steps took, of each process."""
    for stream in report.streams:
        yield from stream.step_times


# Distribution


def _distributions(runs: Sequence[_Run]) -> Iterator[MeasureSpread]:
    """Yield what the readings of each measure came to, device by device."""
    for name, group in _groups(runs).items():
        rows = [
            (run.label(series.device), stream.summary[series.key])
            for run, stream, series in group
            if series.device and series.key in stream.summary and series.measure
        ]
        if rows:
            largest = max(held.max for _, held in rows)
            yield MeasureSpread(f"distribution_{_slug(name)}", _title(name), shown_unit(group[0][2].unit, largest), tuple(rows))
