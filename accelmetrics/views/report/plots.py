"""Plots of a report: lines over time, strips, curves and bars, as data. Pictures and the page are drawn from the same plots.

Every line has its own points, because two recordings are hardly ever read at the same times. Two compared runs share their axes, with time
counted from the first step of each, or from its begin. :func:`aligned` changes the axis to the program's steps or epochs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from itertools import chain, pairwise
from math import ceil, floor, inf
from statistics import fmean, median
from typing import Literal

from accelmetrics.schemas.catalogue import match
from accelmetrics.schemas.errors import InvalidOptionError
from accelmetrics.schemas.record import STEP_NAMES, plain_name
from accelmetrics.schemas.statistics import Summary
from accelmetrics.schemas.text import PREFIXES, power
from accelmetrics.schemas.vitals import MEMORY_PERCENT, MEMORY_USED, POWER, TEMPERATURE, UTILIZATION
from accelmetrics.views.device_view import throttle_words
from accelmetrics.views.report.run_report import Column, Curve, Mark, Plain, ReducedSeries, RunReport, StreamReport
from accelmetrics.views.report.series import BUCKETS

LINES = 8
"""Largest number of lines in a plot. More devices are drawn as one band from the lowest to the highest, with their median."""
CELLS = 500_000
"""Largest number of values in all lines of a report. With more lines, each has fewer points."""
FEWEST = 100
"""Smallest number of points to which a line is reduced."""
ROWS = 24
"""Largest number of rows of the strip. With more, all devices share one row for each reason."""
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
"""Titles of metrics by their name in reports or recordings. Other metrics have their name as title."""
LOGGED_TITLES: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(STEP_NAMES["loss"], ("Loss", "")),
    **dict.fromkeys(STEP_NAMES["learning_rate"], ("Learning rate", "")),
    **dict.fromkeys(STEP_NAMES["grad_norm"], ("Gradient norm", "")),
    **dict.fromkeys(STEP_NAMES["samples_per_second"], ("Samples per second", "")),
    "samples": ("Samples in a step", ""),
    "samples_per_joule": ("Samples per joule", ""),
    "step_seconds": ("Step time", "s"),
    "tokens": ("Tokens in a step", ""),
    "tokens_per_joule": ("Tokens per joule", ""),
    "tokens_per_second": ("Tokens per second", ""),
}
"""Titles and units of logged numbers, by their name without a tracker's prefix."""
MACHINE = "machine "
"""Prefix of the names of machine-wide metrics here, since some have the same name as a device metric."""


MOMENTS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)
"""Possible seconds between the ticks of a time axis, followed by whole days."""
TICKS = 7
"""Largest number of ticks."""
DAY = 86400
DECIMAL = ("", "k", "M", "G", "T")
SHOWN = {"Cel": "°C", "By": "B", "By/s": "B/s", "us": "µs", "1": ""}
Axis = Literal["time", "seconds", "step", "epoch"]
"""``time`` (UTC), ``seconds`` since the first step, ``step``, or ``epoch``."""
ALIGNED: tuple[Axis, ...] = ("step", "epoch")
"""Axes made from logged numbers."""
Span = tuple[float, float, float, int]
"""Begin, end, the share of that time in which a condition held, and the index of the recording's clock."""
Histogram = tuple[str, str, Sequence[float], Sequence[int]]
"""File name, title, edges in seconds, and the count between each two edges."""


@dataclass(frozen=True)
class Clock:
    """The step or epoch of a program by time.

    Attributes:
        times: Times at which it is known, rising.
        places: The step or epoch at these times. It falls if the program went back to a checkpoint.
    """

    times: Sequence[float]
    places: Sequence[float]

    def at(self, moment: float) -> float | None:
        """Return the step or epoch at a time; None outside the known time, and while the program went back."""
        after = bisect_left(self.times, moment)
        if after == len(self.times):
            return None
        end, until = self.times[after], self.places[after]
        if end == moment:
            return until
        if not after or self.places[after - 1] > until:
            return None
        begin, since = self.times[after - 1], self.places[after - 1]
        return since + (until - since) * (moment - begin) / (end - begin)

    def span(self, begin: float, end: float) -> tuple[float, float] | None:
        """Return the steps or epochs of a period as far as they are known; None if none is."""
        if not self.times or end < self.times[0] or begin > self.times[-1]:
            return None
        ends = self.at(max(begin, self.times[0])), self.at(min(end, self.times[-1]))
        return None if ends[0] is None or ends[1] is None or ends[0] > ends[1] else (ends[0], ends[1])


@dataclass(frozen=True)
class PlotLine:
    """A line of a plot: the lowest, mean and highest value at each of its points; None without a value.

    Attributes:
        label: Its name: ``gpu.0``, ``A gpu.0``, ``median of 16 devices``.
        color: Index in the palette. All lines of a device have the same color.
        dashed: Whether it belongs to the second of two runs.
        x: Positions: seconds since 1970 or since the first step, or steps.
        low: Lowest values.
        mean: Means, or medians over the devices of a band.
        high: Highest values.
        clock: Index of the clock that has its steps.
    """

    label: str
    color: int
    dashed: bool
    x: Sequence[float]
    low: Column
    mean: Column
    high: Column
    clock: int = 0


@dataclass(frozen=True)
class Plot:
    """Lines over a common axis.

    Attributes:
        name: Name of its file without the suffix.
        title: Its title.
        unit: Unit of the shown values.
        axis: Axis of the points.
        lines: The lines.
        top: Smallest end of the value axis; None to fit the values.
        about: Meaning of the metric.
        from_zero: Whether the value axis always begins at zero.
    """

    name: str
    title: str
    unit: str
    axis: Axis
    lines: Sequence[PlotLine]
    top: float | None = None
    about: str = ""
    from_zero: bool = False

    @property
    def heading(self) -> str:
        """The title with the unit."""
        return f"{self.title}, {self.unit}" if self.unit else self.title


@dataclass(frozen=True)
class MeasureSpread:
    """Distribution of a measure for each device, with the shown unit and its factor. The heading is the title with the unit."""

    name: str
    title: str
    heading: str
    factor: float
    rows: Sequence[tuple[str, Summary]]


@dataclass(frozen=True)
class Pictures:
    """All plots of a report.

    Attributes:
        axis: ``time``, ``seconds`` since the first step for two compared runs, or the axis to which they were aligned.
        begin: Begin of the axis.
        end: End of the axis.
        plots: Metrics over the axis.
        logged: Logged numbers over the axis.
        marks: Marks on the axis. Findings are marked only in plots that they concern.
        strip: Rows for throttling, gaps, findings and events: name, kind, and when the condition held.
        clocks: Steps and epochs of each process over time, if it logged them. The first clock is empty.
        step_times: Histograms of step durations.
        distributions: Distributions of the measures.
        constant: Metrics that never changed, in words. They have no plot.
    """

    axis: Axis
    begin: float
    end: float
    plots: Sequence[Plot]
    logged: Sequence[Plot]
    marks: Sequence[Mark]
    strip: Sequence[tuple[str, str, Sequence[Span]]]
    clocks: Sequence[Mapping[Axis, Clock]]
    step_times: Sequence[Histogram]
    distributions: Sequence[MeasureSpread]
    constant: Sequence[str]


@dataclass(frozen=True)
class _Shown:
    """A recording to draw.

    Attributes:
        letter: Letter of its run, if there are two.
        stream: The recording.
        origin: Origin of its time axis.
        clocks: Index of the clock of each process that logged.
        clock: Index of the recording's own clock; 0 if no process logged.
    """

    letter: str
    stream: StreamReport
    origin: float
    clocks: Mapping[str, int]
    clock: int


_Group = list[tuple[_Shown, ReducedSeries]]


def pictures(report: RunReport, other: RunReport | None = None) -> Pictures:
    """Return the plots over time of one run, or of two compared runs."""
    axis: Axis = "time" if other is None else "seconds"
    shown: list[_Shown] = []
    clocks: list[Mapping[Axis, Clock]] = [{}]
    for letter, run in (("", report),) if other is None else (("A", report), ("B", other)):
        first = min([stream.first_step for stream in run.streams if stream.first_step is not None] or [one.begin for one in run.streams])
        streams = []
        for stream in run.streams:
            origin = 0.0 if not letter else first if stream.first_step is None else stream.first_step
            sources = dict.fromkeys(curve.source for curve in stream.curves)
            numbers = {source: number for number, source in enumerate(sources, len(clocks))}
            clocks += [_clocks([curve for curve in stream.curves if curve.source == source], origin) for source in sources]
            streams.append((stream, origin, numbers))
        # A recording without steps uses the clock of the recording that has the first step.
        logging = [(stream.first_step or first, min(numbers.values())) for stream, _, numbers in streams if numbers]
        usual = min(logging, default=(first, 0))[1]
        shown += [_Shown(letter, stream, origin, numbers, min(numbers.values(), default=usual)) for stream, origin, numbers in streams]
    groups = _groups(shown)
    lines = sum(min(len(group), LINES) for group in groups.values())
    points = max(FEWEST, min(BUCKETS, CELLS // (3 * max(lines, 1))))
    constant, plots, names = [], [], {}
    for name, group in groups.items():
        values = {value for _, series in group for value in chain(series.low, series.high) if value is not None}
        if len(values) == 1:
            (value,) = values
            unit, factor = shown_unit(group[0][1].unit, abs(value))
            constant.append(f"{_title(name)} {value / factor:.4g} {unit}".rstrip())
        elif values:
            plots.append(_metric_plot(name, group, axis, points))
            names[plots[-1].name] = {series.name for _, series in group}
    logged = []
    for name, plot in _curves(shown, axis):
        logged.append(plot)
        names[plot.name] = {plain_name(name)}
    marks = list(_marks(shown, names))
    return Pictures(
        axis=axis,
        begin=min(one.stream.begin - one.origin for one in shown),
        end=max(one.stream.end - one.origin for one in shown),
        plots=plots,
        logged=logged,
        marks=marks,
        strip=_strip(shown, marks),
        clocks=clocks,
        step_times=list(_histograms(shown)),
        distributions=list(_distributions(groups)),
        constant=tuple(constant),
    )


# Steps and epochs in the place of time


def lacking(found: Pictures, axis: Axis) -> list[str]:
    """Return the runs that cannot be aligned to an axis: ``A``, ``B``, or an empty text for a single run."""
    runs: dict[bool, bool] = {}
    for line in (line for plot in (*found.plots, *found.logged) for line in plot.lines):
        runs[line.dashed] = runs.get(line.dashed, False) or axis in found.clocks[line.clock]
    return ["" if found.axis == "time" else "AB"[dashed] for dashed, known in runs.items() if not known]


def aligned(found: Pictures, axis: Axis) -> Pictures:
    """Return the plots over the program's steps or epochs.

    Raises:
        InvalidOptionError: A run has no logged steps or epochs.
    """
    if missing := lacking(found, axis):
        program = f"the program of {' and of '.join(missing)}" if missing[0] else "the program"
        raise InvalidOptionError(f"{program} logged no {axis}: log it with monitor.log({axis}=…), or use --align time")
    plots, logged = ([moved for plot in each if (moved := _moved(found, plot, axis)).lines] for each in (found.plots, found.logged))
    places = [place for plot in (*plots, *logged) for line in plot.lines for place in (line.x[0], line.x[-1])]

    def clock(number: int) -> Clock:
        return found.clocks[number].get(axis, Clock((), ()))

    marks, strip = [], []
    for mark in found.marks:
        ends = clock(mark.clock).span(mark.begin, max(mark.begin, mark.end))
        if ends is not None:
            marks.append(replace(mark, begin=ends[0], end=ends[1]))
    for label, kind, spans in found.strip:
        held = [(*ends, share, number) for begin, end, share, number in spans if (ends := clock(number).span(begin, end)) is not None]
        if held:
            strip.append((label, kind, held))
    return replace(
        found, axis=axis, begin=min(places, default=0.0), end=max(places, default=1.0), plots=plots, logged=logged, marks=marks, strip=strip
    )


def places_of(found: Pictures, clock: int, moments: Sequence[float], axis: Axis) -> list[float | None]:
    """Return the step or epoch at each time, by the clock with this index; None if unknown."""
    return [found.clocks[clock].get(axis, Clock((), ())).at(moment) for moment in moments]


def _moved(found: Pictures, plot: Plot, axis: Axis) -> Plot:
    """Return a plot over another axis. Of several points at one position the last is kept, and empty lines are left out."""
    lines = []
    for line in plot.lines:
        at = {place: number for number, place in enumerate(places_of(found, line.clock, line.x, axis)) if place is not None}
        if at:
            x = sorted(at)
            low, mean, high = ([column[at[place]] for place in x] for column in (line.low, line.mean, line.high))
            lines.append(replace(line, x=x, low=low, mean=mean, high=high))
    return replace(plot, axis=axis, lines=lines)


def _clocks(curves: Sequence[Curve], origin: float) -> Mapping[Axis, Clock]:
    """Return the clocks of a process from its logged numbers."""
    found: dict[Axis, Clock] = {}
    steps = {moment: step for curve in curves for moment, step in zip(curve.times, curve.steps, strict=True) if step is not None}
    if len(set(steps.values())) > 1:
        times = sorted(steps)
        found["step"] = Clock([moment - origin for moment in times], [steps[moment] for moment in times])
    epochs = next((curve for curve in curves if curve.name == "epoch"), None)
    if epochs is not None and (pairs := _epochs(epochs)):
        found["epoch"] = Clock([moment - origin for moment, _ in pairs], [place for _, place in pairs])
    return found


def _epochs(curve: Curve) -> list[tuple[float, float]]:
    """Return times with the epoch as a fraction: epoch 2 goes from 2 to 3 between the last step of epoch 1 and its own last step."""
    known = [(moment, value) for moment, value in zip(curve.times, curve.high, strict=True) if value is not None]
    if any(value != int(value) for _, value in known):
        return known
    pairs: list[tuple[float, float]] = []
    begin, usual = known[0][0], 0.0
    for position, (moment, number) in enumerate(known):
        last = position + 1 == len(known)
        if last or known[position + 1][1] != number:
            # The last one may have been left before its end: it is as long as the one before it then.
            done = min(1.0, (moment - begin) / usual) if last and usual else 1.0
            pairs += [(begin, number), (moment, number + done)] if not pairs or pairs[-1][1] != number else [(moment, number + done)]
            begin, usual = moment, moment - begin
    return pairs


def _named(letter: str, text: str) -> str:
    return f"{letter} {text}".strip()


def _groups(shown: Sequence[_Shown]) -> dict[str, _Group]:
    """Return all series grouped by metric, the most important first and machine-wide ones last."""
    found: dict[str, _Group] = {}
    for one in shown:
        for series in one.stream.series:
            name = (series.measure or series.name) if series.device else MACHINE + series.name
            found.setdefault(name, []).append((one, series))
    order = {name: position for position, name in enumerate(TITLES)}
    return dict(sorted(found.items(), key=lambda item: (item[0].startswith(MACHINE), order.get(item[0], len(order)), item[0])))


def _buckets(times: Collection[float], width: float, most: int) -> tuple[float, list[int]]:
    """Return a width, doubled until at most ``most`` buckets have a time, and the numbers of these buckets, rising."""
    while len(numbers := sorted({floor(at / width) for at in times})) > most:
        width *= 2
    return width, numbers


def _thinned(times: Sequence[float], columns: Sequence[Column], width: float, most: int) -> tuple[Sequence[float], Sequence[Column]]:
    """Return the lowest, mean and highest values of a series at ``most`` points or fewer, by merging neighbours."""
    if len(times) <= most:
        return times, columns
    width, numbers = _buckets(times, width, most)
    place_of = {number: place for place, number in enumerate(numbers)}
    places = [place_of[floor(at / width)] for at in times]
    merged = [_bucketed(places, column, fold, len(numbers)) for column, fold in zip(columns, FOLDS, strict=True)]
    return [number * width for number in numbers], merged


def _metric_plot(name: str, group: _Group, axis: Axis, points: int) -> Plot:
    """Return the plot of a metric: one line for each device, or a band for many devices."""
    lines = []
    devices = list(dict.fromkeys(series.device or one.stream.label for one, series in group))
    for one, series in group:
        device = series.device or one.stream.label
        times, (low, mean, high) = _thinned(one.stream.times, (series.low, series.mean, series.high), one.stream.width, points)
        label, color = _named(one.letter, device or "machine"), devices.index(device) % LINES
        lines.append(PlotLine(label, color, one.letter == "B", [at - one.origin for at in times], low, mean, high, one.clock))
    if len(lines) > LINES:
        lines = [
            _band(
                [line for line in lines if line.dashed is (letter == "B")],
                max(max(one.stream.interval, one.stream.width) for one, _ in group if one.letter == letter),
                points,
                letter,
            )
            for letter in sorted({one.letter for one, _ in group})
        ]
    first = group[0][1]
    unit, factor = shown_unit(first.unit, max((value for line in lines for value in line.high if value is not None), default=0.0))
    lines = [replace(line, low=_short(line.low, factor), mean=_short(line.mean, factor), high=_short(line.high, factor)) for line in lines]
    row = match(first.key)
    top = row.maximum if row is not None and row.unit == "%" else None
    return Plot(_slug(name), _title(name), unit, axis, lines, top, "" if row is None else row.meaning, first.unit == "By")


def _band(lines: Sequence[PlotLine], pace: float, points: int, letter: str) -> PlotLine:
    """Return the lowest, median and highest value over the lines of one run, at common points.

    Recordings with different times share buckets of two intervals of the slowest one, so that each device has a value in a bucket.
    """
    x = lines[0].x
    columns: list[tuple[Column, ...]] = [(line.low, line.mean, line.high) for line in lines]
    if any(line.x != x for line in lines):
        width, numbers = _buckets([at for line in lines for at in line.x], 2 * pace, points)
        # A bucket without any reading breaks the line.
        numbers = sorted({*numbers, *(one + 1 for one, following in pairwise(numbers) if following > one + 1)})
        x, place_of = [number * width for number in numbers], {number: place for place, number in enumerate(numbers)}
        columns = [
            tuple(
                _bucketed([place_of[floor(at / width)] for at in line.x], column, fold, len(x))
                for column, fold in zip(parts, FOLDS, strict=True)
            )
            for line, parts in zip(lines, columns, strict=True)
        ]
    folds: tuple[Callable[[Sequence[float]], float], ...] = (min, median, max)
    low, mean, high = (
        [fold(known) if (known := [value for value in row if value is not None]) else None for row in zip(*parts, strict=True)]
        for fold, parts in zip(folds, zip(*columns, strict=True), strict=True)
    )
    dashed = lines[0].dashed
    return PlotLine(_named(letter, f"median of {len(lines)}"), int(dashed), dashed, x, low, mean, high, lines[0].clock)


FOLDS: tuple[Callable[[Iterable[float]], float], ...] = (min, fmean, max)


def _bucketed(places: Sequence[int], column: Column, fold: Callable[[Iterable[float]], float], buckets: int) -> Column:
    """Return a column with the values of each bucket folded into one; ``places`` are the buckets of its values."""
    values: list[list[float]] = [[] for _ in range(buckets)]
    for place, value in zip(places, column, strict=True):
        if value is not None:
            values[place].append(value)
    return [fold(one) if one else None for one in values]


def _short(values: Column, factor: float = 1.0) -> list[float | None]:
    """Return values in another unit with five digits, the most that a plot can show."""
    return [None if value is None else float(f"{value / factor:.5g}") for value in values]


def _title(name: str) -> str:
    return TITLES.get(name, name.removeprefix(MACHINE))


def _slug(name: str) -> str:
    """Return a name as a file name, without characters that have a meaning to a system or a shell."""
    return "".join(one if one.isascii() and one.isalnum() else "_" for one in name).strip("_").lower()[:80] or "unnamed"


# What is marked


ABOUT: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("hot", "overheating", "near_slowdown"), TEMPERATURE),
    **dict.fromkeys(("memory_full", "leak"), (*MEMORY_PERCENT, *MEMORY_USED)),
    **dict.fromkeys(("device_lost", "idle_held", "straggler", "hang"), UTILIZATION),
    "throttled": ("smClock",),
    "stuck_counter": POWER,
    **dict.fromkeys(("non_finite", "loss_spike", "loss_not_decreasing"), STEP_NAMES["loss"]),
    **dict.fromkeys(("gradient", "gradient_jump"), STEP_NAMES["grad_norm"]),
    "slow_steps": ("step_seconds",),
    "goodput": ("tokens_per_second",),
}
"""Metrics in whose plots the findings of a rule are marked. Findings of other rules are only in the strip."""


def _marks(shown: Sequence[_Shown], names: Mapping[str, set[str]]) -> Iterator[Mark]:
    """Yield the marks of plots. Windows and epochs are those of one stream of the first run, since more would hide each other."""
    kinds = {"window", "epoch"}
    named = next((one for one in shown if one.letter != "B" and any(mark.kind in kinds for mark in one.stream.marks)), None)
    for one in shown:
        for mark in one.stream.marks:
            if (one is named or mark.kind not in kinds) and (mark.end > mark.begin or mark.kind in {"finding", "event"}):
                metrics = ABOUT.get(mark.label.partition(" ")[0], ()) if mark.kind == "finding" else ()
                yield replace(
                    mark,
                    label=_named(one.letter, mark.label),
                    begin=mark.begin - one.origin,
                    end=mark.end - one.origin,
                    plots=tuple(plot for plot, drawn in names.items() if not drawn.isdisjoint(metrics)),
                    clock=one.clock,
                )


def _strip(shown: Sequence[_Shown], marks: Sequence[Mark]) -> list[tuple[str, str, Sequence[Span]]]:
    """Return the rows of the strip: one for each device and reason of throttling, and rows for findings, silences, gaps and events."""
    found: dict[tuple[str, str], list[Span]] = {}
    # By run, device, reason and clock: by beginning, the end and the share of each span.
    throttled: dict[tuple[str, str, str, int], dict[float, tuple[float, float]]] = {}
    # If there are too many rows, all devices share one for each reason, with the largest share of any of them.
    many = sum(any(shares) for one in shown for shares in one.stream.strips.values()) > ROWS
    for one in shown:
        for (device, reason), shares in one.stream.strips.items():
            spans = throttled.setdefault((one.letter, "any device" if many else device, reason, one.clock), {})
            for at, end, share in zip(one.stream.times, _ends(one.stream), shares, strict=True):
                if share:
                    latest, largest = spans.get(at - one.origin, (-inf, 0.0))
                    spans[at - one.origin] = max(latest, end - one.origin), max(largest, share)
    for (letter, device, reason, clock), spans in throttled.items():
        if spans:
            label = " ".join(filter(None, (letter, device, throttle_words(reason))))
            found.setdefault((label, "throttle"), []).extend((*span, clock) for span in _joined(spans))
    for kind, title in (("finding", "findings"), ("silence", "device silent"), ("gap", "nothing read"), ("event", "events")):
        marked = [(mark.begin, mark.end, 1.0, mark.clock) for mark in marks if mark.kind == kind]
        if marked:
            found[title, kind] = marked
    return [(label, kind, spans) for (label, kind), spans in found.items()]


def _ends(stream: StreamReport) -> list[float]:
    """Return the end of each bucket: the begin of the next one, unless that is too far away."""
    usual = max(stream.width, stream.interval)
    return [
        after if at < after <= at + 3 * usual else min(at + usual, max(stream.end, stream.times[-1]))
        for at, after in zip(stream.times, [*stream.times[1:], stream.end], strict=True)
    ]


def _joined(spans: Mapping[float, tuple[float, float]]) -> Iterator[tuple[float, float, float]]:
    """Yield periods with equal share, with neighbours merged."""
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


def _logged_title(name: str) -> tuple[str, str]:
    """Return the title and the unit of a logged number: ``Learning rate`` for ``lr``, ``Loss (eval)`` for ``eval/loss``."""
    head, _, last = name.rpartition("/")
    if last.lower() in LOGGED_TITLES:
        title, unit = LOGGED_TITLES[last.lower()]
        return (f"{title} ({head})" if "/" in plain_name(name) else title), unit
    words = name.removesuffix("_seconds").replace("_", " ").strip() or name
    return words[:1].upper() + words[1:], "s" if name.endswith("_seconds") else ""


def _curves(shown: Sequence[_Shown], axis: Axis) -> Iterator[tuple[str, Plot]]:
    """Yield each logged number with its plot, which has a line for each process. Epochs are marked in all of them."""
    files: dict[str, int] = {}
    titles: set[str] = set()
    for name in dict.fromkeys(curve.name for one in shown for curve in one.stream.curves if curve.name != "epoch"):
        lines: list[PlotLine] = []
        title, unit = _logged_title(name)
        if title in titles:  # two names for one quantity, such as train/loss and loss
            title = f"{title} ({name})"
        for one in shown:
            for curve in (held for held in one.stream.curves if held.name == name):
                if curve.times:
                    low, mean, high = (_short(column) for column in (curve.low, curve.mean, curve.high))
                    color = len([line for line in lines if line.dashed is (one.letter == "B")]) % LINES
                    label = _named(one.letter, curve.source or one.stream.label) or title
                    lines.append(
                        PlotLine(
                            label,
                            color,
                            one.letter == "B",
                            [moment - one.origin for moment in curve.times],
                            low,
                            mean,
                            high,
                            one.clocks[curve.source],
                        )
                    )
        if lines:
            slug = f"logged_{_slug(name)}"
            files[slug] = files.get(slug, 0) + 1
            file = slug if files[slug] == 1 else f"{slug}_{files[slug]}"
            titles.add(title)
            about = "" if title == name else f"Logged as {name}."
            yield name, Plot(file, title, unit, axis, lines[: 2 * LINES if shown[0].letter else LINES], about=about)


def _histograms(shown: Sequence[_Shown]) -> Iterator[Histogram]:
    """Yield histograms of step durations: for each process, or for all together if there are many."""
    # There is nothing to draw where all steps took equally long.
    each = [(one.letter, times) for one in shown for times in one.stream.step_times if times["edges"][0] < times["edges"][-1]]
    if len(each) > LINES:
        for letter in dict.fromkeys(letter for letter, _ in each):
            of_run = [times for of, times in each if of == letter]
            title = f"Step time, {_named(letter, 'all processes')}, {len(of_run)} of them"
            yield (f"step_time_{letter}".lower().rstrip("_"), title, *_summed(of_run))
        return
    for position, (letter, times) in enumerate(each):
        source = _named(letter, times["source"])
        name = "step_time" if len(each) == 1 else f"step_time_{_slug(source) if source else position}"
        yield name, f"Step time, {source}".removesuffix(", "), times["edges"], times["counts"]


def _summed(each: Sequence[Plain]) -> tuple[list[float], list[int]]:
    """Return the edges and counts over several processes. Each of their bars is counted at its middle."""
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
    """Yield the distribution of each measure, by device."""
    for name, group in groups.items():
        rows = [
            (_named(one.letter, series.device), one.stream.summary[series.key])
            for one, series in group
            if series.device and series.key in one.stream.summary and series.measure
        ]
        if rows:
            unit, factor = shown_unit(group[0][1].unit, max(held.max for _, held in rows))
            yield MeasureSpread(f"distribution_{_slug(name)}", _title(name), f"{_title(name)}, {unit}".removesuffix(", "), factor, rows)


# Axes and units


def shown_unit(unit: str, largest: float) -> tuple[str, float]:
    """Return the best unit for values up to ``largest``, empty for plain numbers, and its size in ``unit``."""
    if unit == "By":
        step = power(largest, 1024.0, len(PREFIXES))
        return PREFIXES[step], 1024.0**step
    if unit in {"By/s", "J", "Hz"}:
        step = power(largest, 1000.0, len(DECIMAL))
        return DECIMAL[step] + SHOWN.get(unit, unit), 1000.0**step
    return SHOWN.get(unit, unit), 1.0


def time_ticks(begin: float, end: float) -> list[float]:
    """Return ticks of a time axis, at whole minutes, hours or days, or at seconds for a short time."""
    least = (end - begin) / TICKS
    step = next((float(step) for step in MOMENTS if step >= least), None) or ceil(least / DAY) * float(DAY)
    return [position * step for position in range(ceil(begin / step), floor(end / step) + 1)]


def moment(seconds: float, among: Sequence[float]) -> str:
    """Return the label of a tick in UTC: the day at its begin or if ticks are days apart, else the time of day."""
    when = datetime.fromtimestamp(seconds, timezone.utc)
    if seconds % DAY == 0:
        return f"{when:%m-%d}"
    return f"{when:%H:%M:%S}" if len(among) > 1 and among[1] - among[0] < 60 else f"{when:%H:%M}"


def utc(seconds: float) -> str:
    """Return a time in full: ``2025-01-31 12:30:05 UTC``."""
    return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%d %H:%M:%S} UTC"


def lasting(seconds: float, among: Sequence[float] = ()) -> str:
    """Return a duration, or a tick of an axis of durations: ``1:30:00``, ``45 s``."""
    if (among and max(map(abs, among)) < 60) or (not among and abs(seconds) < 60):
        return f"{seconds:.3g} s"
    whole = round(abs(seconds))
    return f"{'-' if seconds < 0 else ''}{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


def plain(value: float) -> str:
    """Return a number for axes and readouts: up to four digits, with a suffix for thousands and millions."""
    if value and not 1e-4 <= abs(value) < 1e5:
        return f"{value:.3g}"
    text = f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return "0" if text == "-0" else text
