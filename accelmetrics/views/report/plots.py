"""What the pictures of a report show: lines over time, strips, curves, bars. Files of SVG and the page are drawn from the same plots.

Two runs that are compared share their axes: time is counted from each one's first step, or its beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from itertools import chain
from math import ceil, floor
from statistics import fmean, median
from typing import Literal

from accelmetrics.schemas.catalogue import match
from accelmetrics.schemas.summary import Summary
from accelmetrics.schemas.text import PREFIXES, power
from accelmetrics.views.device_view import throttle_words
from accelmetrics.views.report.run_report import Column, Mark, Plain, ReducedSeries, RunReport, StreamReport

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


MOMENTS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)
"""Seconds between lines of a time axis; whole days beyond."""
TICKS = 7
"""Of those lines, at most."""
DAY = 86400
DECIMAL = ("", "k", "M", "G", "T")
SHOWN = {"Cel": "°C", "By": "B", "By/s": "B/s", "us": "µs", "1": ""}
Axis = Literal["time", "seconds", "step"]
"""``time`` (UTC), ``seconds`` since the first step, or ``step``."""
Span = tuple[float, float, float]
"""Begin, end, and the share of that time in which something was so."""
Histogram = tuple[str, str, Sequence[float], Sequence[int]]
"""What its file is called, its heading, edges in seconds, and how often values lay between them."""


@dataclass(frozen=True)
class PlotLine:
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


@dataclass(frozen=True)
class Plot:
    """Lines over one axis.

    Attributes:
        name: What its file is called, without the ending.
        title: Its heading.
        unit: Of the values, as shown.
        axis: Of its points.
        lines: What is drawn.
        top: Where the axis ends at least; None where the values say.
        about: What the metric means.
        dense: Whether the points of a line are those of all others.
    """

    name: str
    title: str
    unit: str
    axis: Axis
    lines: Sequence[PlotLine]
    top: float | None = None
    about: str = ""
    dense: bool = True

    @property
    def heading(self) -> str:
        """The title with the unit."""
        return f"{self.title}, {self.unit}" if self.unit else self.title


@dataclass(frozen=True)
class MeasureSpread:
    """One measure of each device: what its readings came to, in a unit that is shown and what is one of that."""

    name: str
    title: str
    unit: str
    factor: float
    rows: Sequence[tuple[str, Summary]]


@dataclass(frozen=True)
class Pictures:
    """All plots of a report.

    Attributes:
        axis: Of time: ``time``, or ``seconds`` since the first step where two runs are compared.
        begin: Where that axis begins.
        end: Where it ends.
        plots: Metrics over time.
        marks: What all those mark, on that axis.
        strip: Throttling, gaps, findings and events over the same time: what each row is, its kind, and when it was so.
        by_time: What the program logged, over time.
        by_step: The same over its steps, where it said which.
        step_times: How long steps took.
        distributions: Of the measures.
        constant: Metrics that never changed, in words; there is no plot of these.
        points: How many points a line has at most.
    """

    axis: Axis
    begin: float
    end: float
    plots: Sequence[Plot]
    marks: Sequence[Mark]
    strip: Sequence[tuple[str, str, Sequence[Span]]]
    by_time: Sequence[Plot]
    by_step: Sequence[Plot]
    step_times: Sequence[Histogram]
    distributions: Sequence[MeasureSpread]
    constant: Sequence[str]
    points: int


_Shown = list[tuple[str, StreamReport, float]]
"""Streams that are drawn: the letter of the run where there are two, and from when on time is counted."""
_Group = list[tuple[str, StreamReport, float, ReducedSeries]]


def pictures(report: RunReport, other: RunReport | None = None) -> Pictures:
    """Return what is to be drawn of a run, or of two that are compared."""
    axis: Axis = "time" if other is None else "seconds"
    shown: _Shown = []
    for letter, run in (("", report),) if other is None else (("A", report), ("B", other)):
        steps = [stream.first_step for stream in run.streams if stream.first_step is not None]
        first = min(steps or [stream.begin for stream in run.streams])
        for stream in run.streams:
            shown.append((letter, stream, 0.0 if not letter else first if stream.first_step is None else stream.first_step))
    groups = _groups(shown)
    lines = sum(min(len(group), LINES) for group in groups.values())
    points = max(FEWEST, min(POINTS, CELLS // (3 * max(lines, 1))))
    width, places = _grid(shown, points)
    constant, plots = [], []
    for name, group in groups.items():
        values = {value for *_, series in group for value in chain(series.low, series.high) if value is not None}
        if len(values) == 1:
            (value,) = values
            unit, factor = shown_unit(group[0][3].unit, abs(value))
            constant.append(f"{_title(name)} {value / factor:.4g} {unit}".rstrip())
        elif values:
            plots.append(_metric_plot(name, group, axis, width, places))
    marks = list(_marks(shown))
    return Pictures(
        axis=axis,
        begin=min(stream.begin - origin for _, stream, origin in shown),
        end=max(stream.end - origin for _, stream, origin in shown),
        plots=plots,
        marks=marks,
        strip=_strip(shown, marks),
        by_time=list(_curves(shown, axis)),
        by_step=list(_curves(shown, "step")),
        step_times=list(_histograms(shown)),
        distributions=list(_distributions(groups)),
        constant=tuple(constant),
        points=points,
    )


def _named(letter: str, text: str) -> str:
    return f"{letter} {text}".strip()


def _groups(shown: _Shown) -> dict[str, _Group]:
    """Return all series by what they measure, those first that people look at first, and the machine's last."""
    found: dict[str, _Group] = {}
    for letter, stream, origin in shown:
        for series in stream.series:
            name = (series.measure or series.name) if series.device else MACHINE + series.name
            found.setdefault(name, []).append((letter, stream, origin, series))
    order = {name: position for position, name in enumerate(TITLES)}
    return dict(sorted(found.items(), key=lambda item: (item[0].startswith(MACHINE), order.get(item[0], len(order)), item[0])))


def _grid(shown: _Shown, most: int) -> tuple[float, dict[int, int]]:
    """Return the points of all lines: the width of buckets over all recordings, and by number of a bucket its place among those."""
    width = max(stream.width for _, stream, _ in shown)
    while True:
        numbers = {floor((at - origin) / width) for _, stream, origin in shown for at in stream.times}
        if len(numbers) <= most:
            return width, {number: place for place, number in enumerate(sorted(numbers))}
        width *= 2


def _metric_plot(name: str, group: _Group, axis: Axis, width: float, places: Mapping[int, int]) -> Plot:
    """Return the plot of a metric: a line for each device, or bands where these are too many."""
    x = [number * width for number in places]
    lines = []
    devices = list(dict.fromkeys(series.device or stream.label for _, stream, _, series in group))
    for letter, stream, origin, series in group:
        device = series.device or stream.label
        at = [places[floor((moment - origin) / width)] for moment in stream.times]
        columns = []
        folds: tuple[tuple[Column, Callable[[Sequence[float]], float]], ...] = (series.low, min), (series.mean, fmean), (series.high, max)
        for values, fold in folds:
            held: list[list[float]] = [[] for _ in x]
            for place, value in zip(at, values, strict=True):
                if value is not None:
                    held[place].append(value)
            columns.append([fold(one) if one else None for one in held])
        lines.append(PlotLine(_named(letter, device or "machine"), devices.index(device) % LINES, letter == "B", x, *columns))
    if len(lines) > LINES:
        lines = [*_bands(lines, lettered=bool(group[0][0]))]
    unit, factor = shown_unit(group[0][3].unit, max((value for line in lines for value in line.high if value is not None), default=0.0))
    lines = [replace(line, low=_short(line.low, factor), mean=_short(line.mean, factor), high=_short(line.high, factor)) for line in lines]
    row = match(group[0][3].key)
    top = row.maximum if row is not None and row.unit == "%" else None
    return Plot(_slug(name), _title(name), unit, axis, lines, top, "" if row is None else row.meaning)


def _bands(lines: Sequence[PlotLine], lettered: bool) -> Iterator[PlotLine]:
    """Yield for each run the least, median and largest value of its lines at each point."""
    for color, letter in enumerate("AB"):
        held = [line for line in lines if line.dashed is (letter == "B")]
        if held:
            low, mean, high = (
                [fold(known) if (known := [value for value in row if value is not None]) else None for row in zip(*columns, strict=True)]
                for fold, columns in (
                    (min, [line.low for line in held]),
                    (median, [line.mean for line in held]),
                    (max, [line.high for line in held]),
                )
            )
            label = _named(letter if lettered else "", f"median of {len(held)}")
            yield PlotLine(label, color, letter == "B", held[0].x, low, mean, high)


def _short(values: Column, factor: float = 1.0) -> list[float | None]:
    """Return values in another unit, to five digits: more cannot be seen."""
    return [None if value is None else float(f"{value / factor:.5g}") for value in values]


def _title(name: str) -> str:
    return TITLES.get(name, name.removeprefix(MACHINE))


def _slug(name: str) -> str:
    """Return a name as that of a file: no character of it means anything to a system or a shell."""
    return "".join(one if one.isascii() and one.isalnum() else "_" for one in name).strip("_").lower()[:80] or "unnamed"


# What is marked


def _marks(shown: _Shown) -> Iterator[Mark]:
    """Yield what plots mark. Windows and epochs are those of one stream, and none of a second run: all of them would hide each other."""
    kinds = {"window", "epoch"}
    with_names = (stream for letter, stream, _ in shown if letter != "B" and any(mark.kind in kinds for mark in stream.marks))
    named = next(with_names, None)
    for letter, stream, origin in shown:
        for mark in stream.marks:
            if (stream is named or mark.kind not in kinds) and (mark.end > mark.begin or mark.kind in {"finding", "event"}):
                yield replace(mark, label=_named(letter, mark.label), begin=mark.begin - origin, end=mark.end - origin)


def _strip(shown: _Shown, marks: Sequence[Mark]) -> list[tuple[str, str, Sequence[Span]]]:
    """Return a row for each device's reason of throttling, and those of findings, silences, gaps and events."""
    # By run, device and reason: by beginning, the end and the share of each span.
    throttled: dict[tuple[str, str, str], dict[float, tuple[float, float]]] = {}
    for letter, stream, origin in shown:
        ends = _ends(stream)
        for (device, reason), shares in stream.strips.items():
            spans = {at - origin: (until - origin, share) for at, until, share in zip(stream.times, ends, shares, strict=True) if share}
            if spans:
                throttled.setdefault((letter, device, reason), {}).update(spans)
    if len(throttled) > ROWS:  # all devices share a row for each reason, which has the largest share of any of them
        rows = list(throttled.items())
        throttled = {}
        for (letter, _, reason), spans in rows:
            held = throttled.setdefault((letter, "any device", reason), {})
            for begin, (end, share) in spans.items():
                before = held.get(begin, (end, 0.0))
                held[begin] = (max(end, before[0]), max(share, before[1]))
    found: list[tuple[str, str, Sequence[Span]]] = []
    for (letter, device, reason), spans in throttled.items():
        found.append((" ".join(filter(None, (letter, device, throttle_words(reason)))), "throttle", list(_joined(spans))))
    for kind, title in (("finding", "findings"), ("silence", "device silent"), ("gap", "nothing read"), ("event", "events")):
        marked = [(mark.begin, mark.end, 1.0) for mark in marks if mark.kind == kind]
        if marked:
            found.append((title, kind, marked))
    return found


def _ends(stream: StreamReport) -> list[float]:
    """Return until when each bucket stands: the next one, where that is not too far."""
    usual = max(stream.width, stream.interval)
    following = [*stream.times[1:], stream.end]
    return [
        after if at < after <= at + 3 * usual else min(at + usual, max(stream.end, stream.times[-1]))
        for at, after in zip(stream.times, following, strict=True)
    ]


def _joined(spans: Mapping[float, tuple[float, float]]) -> Iterator[Span]:
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


def _curves(shown: _Shown, axis: Axis) -> Iterator[Plot]:
    """Yield a plot for each number that was logged: a line for each process. Epochs are marked in all of them."""
    files: dict[str, int] = {}
    for name in dict.fromkeys(curve.name for _, stream, _ in shown for curve in stream.curves if curve.name != "epoch"):
        lines: list[PlotLine] = []
        for letter, stream, origin in shown:
            for curve in (one for one in stream.curves if one.name == name):
                places = curve.steps if axis == "step" else [moment - origin for moment in curve.times]
                # One point at each place: the last one.
                points = {
                    place: values for place, *values in zip(places, curve.low, curve.mean, curve.high, strict=True) if place is not None
                }
                if points:
                    x = sorted(points)
                    low, mean, high = (_short([points[place][part] for place in x]) for part in range(3))
                    color = len([line for line in lines if line.dashed is (letter == "B")]) % LINES
                    lines.append(PlotLine(_named(letter, curve.source) or name, color, letter == "B", x, low, mean, high))
        if lines:
            slug = f"logged_{_slug(name)}"
            files[slug] = files.get(slug, 0) + 1
            file = slug if files[slug] == 1 else f"{slug}_{files[slug]}"
            yield Plot(file, name, "", axis, lines[: 2 * LINES if shown[0][0] else LINES], dense=False)


def _histograms(shown: _Shown) -> Iterator[Histogram]:
    """Yield how long steps took: of each process, or of all together where these are many."""
    held = [(letter, times) for letter, stream, _ in shown for times in stream.step_times]
    if len(held) > LINES:
        for letter in dict.fromkeys(letter for letter, _ in held):
            of_run = [times for of, times in held if of == letter]
            title = f"Step time, {_named(letter, 'all processes')}, {len(of_run)} of them"
            yield (f"step_time_{letter}".lower().rstrip("_"), title, *_summed(of_run))
        return
    for position, (letter, times) in enumerate(held):
        source = _named(letter, times["source"])
        name = "step_time" if len(held) == 1 else f"step_time_{_slug(source) if source else position}"
        yield name, "Step time" if not source else f"Step time, {source}", times["edges"], times["counts"]


def _summed(each: Sequence[Plain]) -> tuple[list[float], list[int]]:
    """Return the edges and the counts of several processes together, each bar of theirs where its middle lies."""
    bars = max(len(one["counts"]) for one in each)
    begin, end, longest = min(one["min"] for one in each), max(one["p99"] for one in each), max(one["max"] for one in each)
    width = (end - begin) / bars
    if not width:
        return [begin, longest], [sum(one["count"] for one in each)]
    counts = [0] * bars
    for one in each:
        for edge, following, count in zip(one["edges"], one["edges"][1:], one["counts"], strict=False):
            middle = edge + min(following - edge, width) / 2  # the last bar has all longer steps
            counts[min(bars - 1, int((middle - begin) / width))] += count
    return [*(begin + width * bar for bar in range(bars)), longest], counts


# Distribution


def _distributions(groups: Mapping[str, _Group]) -> Iterator[MeasureSpread]:
    """Yield what the readings of each measure came to, device by device."""
    for name, group in groups.items():
        rows = [
            (_named(letter, series.device), stream.summary[series.key])
            for letter, stream, _, series in group
            if series.device and series.key in stream.summary and series.measure
        ]
        if rows:
            unit = shown_unit(group[0][3].unit, max(held.max for _, held in rows))
            yield MeasureSpread(f"distribution_{_slug(name)}", _title(name), *unit, rows)


# Axes and units


def shown_unit(unit: str, largest: float) -> tuple[str, float]:
    """Return the unit in which values up to ``largest`` are best read, empty for plain numbers, and what is one of it in ``unit``."""
    if unit == "By":
        step = power(largest, 1024.0, len(PREFIXES))
        return PREFIXES[step], 1024.0**step
    if unit in {"By/s", "J", "Hz"}:
        step = power(largest, 1000.0, len(DECIMAL))
        return DECIMAL[step] + SHOWN.get(unit, unit), 1000.0**step
    return SHOWN.get(unit, unit), 1.0


def time_ticks(begin: float, end: float) -> list[float]:
    """Return moments within a stretch of time, at whole minutes, hours or days, or seconds where it is short."""
    least = (end - begin) / TICKS
    step = next((float(step) for step in MOMENTS if step >= least), None) or ceil(least / DAY) * float(DAY)
    return [position * step for position in range(ceil(begin / step), floor(end / step) + 1)]


def moment(seconds: float, among: Sequence[float]) -> str:
    """Return a tick of a time axis in UTC: the day where it begins or where ticks are days apart, else the time of day."""
    when = datetime.fromtimestamp(seconds, timezone.utc)
    step = among[1] - among[0] if len(among) > 1 else DAY
    if seconds % DAY == 0:
        return f"{when:%m-%d}"
    return f"{when:%H:%M}" if step >= 60 else f"{when:%H:%M:%S}"


def utc(seconds: float) -> str:
    """Return a moment in full: ``2025-01-31 12:30:05 UTC``."""
    return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%d %H:%M:%S} UTC"


def lasting(seconds: float, among: Sequence[float] = ()) -> str:
    """Return a duration, or a tick of an axis of durations: ``1:30:00``, ``45 s``."""
    if (among and max(map(abs, among)) < 60) or (not among and abs(seconds) < 60):
        return f"{seconds:.3g} s"
    sign, whole = "-" if seconds < 0 else "", round(abs(seconds))
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{sign}{hours}:{minutes:02}:{whole % 60:02}"


def plain(value: float) -> str:
    """Return a number as axes and readouts have it: up to four digits, with what stands for thousands of thousands."""
    if value and not 1e-4 <= abs(value) < 1e5:
        return f"{value:.3g}"
    text = f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return "0" if text == "-0" else text
