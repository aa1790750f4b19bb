"""Plots as pictures of SVG, the same bytes for the same plot: files of their own, and the static pictures of a page.

Everything has its colours as attributes, for files, and a class, by which a page colours it for a dark screen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple
from xml.etree.ElementTree import Element

from accelmetrics.schemas.finding import Finding
from accelmetrics.schemas.summary import Summary
from accelmetrics.schemas.text import clipped
from accelmetrics.views.report.markup import SVG, add, element, number
from accelmetrics.views.report.plots import TITLES, Histogram, Mark, MeasureSpread, Pictures, Plot, PlotLine, StripRow
from accelmetrics.views.report.run_report import Column, ReducedSeries
from accelmetrics.views.report.scales import lasting, moment, plain, shown_unit, ticks, time_ticks

PALETTE = ("#16191d", "#0072b2", "#b87a00", "#00805d", "#d55e00", "#3a97cf", "#b35c93", "#7b8591")
"""Okabe and Ito's colours, those that are pale on white darkened to 3:1."""
SEVERITY = {"critical": "#d55e00", "warning": "#e69f00", "info": "#0072b2"}
KINDS = {"throttle": "#d55e00", "silence": "#7b8591", "gap": "#7b8591", "event": "#16191d", "finding": "#b87a00"}
FONTS = "DejaVu Sans, Noto Sans, Liberation Sans, Arial, sans-serif"
INK, GRID, SHADE = "#16191d", "#e3e6ea", "#eef1f4"
WIDTH, HEIGHT = 720.0, 240.0
LEFT, RIGHT, TOP, BOTTOM = 64.0, 12.0, 34.0, 24.0
ROW = 18.0
LEGEND_ROW = 16.0
LABEL = 130.0
"""Columns of pixels for the names of rows."""
STATIC_POINTS = 500
"""Points of a line in a picture at most."""
LETTER = 6.2
"""Width of a letter of the text, about."""


class _Area(NamedTuple):
    """Where values are drawn: from values to places."""

    left: float
    right: float
    top: float
    bottom: float
    begin: float
    end: float
    low: float = 0.0
    high: float = 1.0

    def x(self, value: float) -> float:
        return self.left + (value - self.begin) / ((self.end - self.begin) or 1.0) * (self.right - self.left)

    def y(self, value: float) -> float:
        return self.bottom - (value - self.low) / ((self.high - self.low) or 1.0) * (self.bottom - self.top)


def plot_svg(plot: Plot, marks: Sequence[Mark] = (), span: tuple[float, float] | None = None) -> Element:
    """Draw lines: a band from the least to the largest value of each, and its mean.

    Args:
        plot: What to draw.
        marks: Stretches of time to mark.
        span: Where the axis begins and ends; where the lines do when left out.
    """
    lines = [_coarser(line, STATIC_POINTS) for line in plot.lines]
    values = [value for line in lines for column in (line.low, line.high) for value in column if value is not None]
    places = [place for line in lines for place in (line.x[0], line.x[-1])] or [0.0]
    begin, end = span or (min(places), max(places))
    lowest, highest = min(values, default=0.0), max(values, default=1.0)
    levels = ticks(min(lowest, 0.0) if lowest < 0 or lowest < highest / 2 or plot.top else lowest, max(highest, plot.top or highest))
    legend = _legend_rows(lines)
    height = HEIGHT + LEGEND_ROW * len(legend)
    area = _Area(LEFT, WIDTH - RIGHT, TOP, HEIGHT - BOTTOM, begin, end, levels[0], levels[-1])
    title = f"{plot.title}, {plot.unit}" if plot.unit else plot.title
    picture = _picture(height, title, _alternative(plot))
    add(picture, *_shades(area, marks), *_levels(area, levels), *_x_axis(area, plot.axis), *_findings(area, marks))
    add(picture, *(part for line in lines for part in _line(area, line)))
    for row, entries in enumerate(legend):
        for column, line in entries:
            add(picture, *_legend_entry(line, LEFT + column, HEIGHT + LEGEND_ROW * row + 6))
    return picture


def strip_svg(rows: Sequence[StripRow], axis: str, span: tuple[float, float]) -> Element:
    """Draw what was and was not over time, a row each, the darker the larger its share."""
    bottom = TOP + ROW * len(rows)
    area = _Area(LABEL, WIDTH - RIGHT, TOP, bottom, *span)
    picture = _picture(bottom + BOTTOM, "Throttling, gaps and events", ", ".join(row.label for row in rows))
    add(picture, *_x_axis(area, axis))
    for position, row in enumerate(rows):
        top = TOP + ROW * position
        add(picture, _words(row.label, LABEL - 6, top + 13, "end", room=LABEL - 6))
        add(picture, element("line", x1=LABEL, x2=WIDTH - RIGHT, y1=top + ROW, y2=top + ROW, stroke=GRID, class_="grid"))
        for begin, end, share in row.spans:
            left, right = area.x(begin), area.x(end)
            width = max(right - left, 1.5)
            opacity = f"{0.25 + 0.75 * share:.2f}"
            box = {"x": left, "y": top + 3, "width": width, "height": ROW - 6}
            add(picture, element("rect", **box, fill=KINDS[row.kind], fill_opacity=opacity, class_=f"k-{row.kind}"))
    return picture


def histogram_svg(histogram: Histogram) -> Element:
    """Draw how often values lay between edges."""
    most = max((count for _, counts in histogram.counts for count in counts), default=1)
    levels = ticks(0.0, float(most or 1), 4)
    edges = histogram.edges
    area = _Area(LEFT, WIDTH - RIGHT, TOP, HEIGHT - BOTTOM, edges[0], edges[-1], 0.0, levels[-1])
    picture = _picture(HEIGHT, f"{histogram.title}, {histogram.unit}", f"{sum(map(sum, (c for _, c in histogram.counts)))} steps")
    add(picture, *_levels(area, levels), *_x_axis(area, "number"))
    for color, (_, counts) in enumerate(histogram.counts):
        for left, right, count in zip(edges, edges[1:], counts, strict=False):
            if count:
                x, y = area.x(left), area.y(count)
                size = {"width": max(area.x(right) - x - 0.5, 0.5), "height": area.bottom - y}
                add(picture, element("rect", x=x, y=y, **size, fill=PALETTE[color + 1], class_=f"f{color + 1}"))
    return picture


def distribution_svg(distribution: MeasureSpread) -> Element:
    """Draw what readings came to: a line from least to largest, a bar from the median to p99, marks at p95 and the mean."""
    bottom = TOP + ROW * len(distribution.rows)
    factor = distribution.unit.factor
    levels = ticks(0.0, max(held.max for _, held in distribution.rows) / factor)
    area = _Area(LABEL, WIDTH - RIGHT, TOP, bottom, levels[0], levels[-1])
    title = f"{distribution.title}, {distribution.unit.name}: least to largest, median to p99, mean"
    picture = _picture(bottom + BOTTOM, title, ", ".join(label for label, _ in distribution.rows))
    add(picture, *_x_axis(area, "number"))
    for position, (label, held) in enumerate(distribution.rows):
        middle = TOP + ROW * (position + 0.5)
        add(picture, _words(label, LABEL - 6, middle + 4, "end", room=LABEL - 6), *_box(area, held, factor, middle))
    return picture


def sparkline_svg(mean: Column, low: Column, high: Column, text: str) -> Element:
    """Draw a metric in the height of a line of text: its range, and its mean."""
    width, height, slots = 90.0, 24.0, 45
    held = [(a, b, c) for a, b, c in zip(low, mean, high, strict=True) if a is not None and b is not None and c is not None]
    lowest, highest = min((one[0] for one in held), default=0.0), max((one[2] for one in held), default=1.0)
    if lowest == highest:
        lowest, highest = lowest - 1, highest + 1
    line = _coarser(PlotLine("", 1, False, range(len(mean)), low, mean, high), slots)
    area = _Area(1, width - 1, 2, height - 2, 0, max(len(mean) - 1, 1), lowest, highest)
    picture = element("svg", element("title", text), viewBox=f"0 0 {width:.0f} {height:.0f}", class_="spark", role="img")
    add(picture, *_line(area, line))
    return picture


# Parts


def _picture(height: float, title: str, alternative: str) -> Element:
    size = {"width": number(WIDTH), "height": number(height), "viewBox": f"0 0 {number(WIDTH)} {number(height)}"}
    picture = element("svg", element("title", f"{title}: {alternative}" if alternative else title), xmlns=SVG, role="img", **size)
    picture.set("font-family", FONTS)
    picture.set("font-size", "11")
    add(picture, element("rect", width="100%", height="100%", fill="#ffffff", class_="paper"))
    add(picture, element("text", clipped(title, 100), x=8, y=18, font_size=13, font_weight="bold", fill=INK, class_="ink title"))
    return picture


def _alternative(plot: Plot) -> str:
    """Return in words what a plot shows."""
    values = [value for line in plot.lines for column in (line.low, line.high) for value in column if value is not None]
    if not values:
        return "no values"
    names = ", ".join(line.label for line in plot.lines)
    unit = f" {plot.unit}" if plot.unit else ""
    return f"{names}; from {plain(min(values))} to {plain(max(values))}{unit}"


def _words(text: str, x: float, y: float, anchor: str = "start", room: float = WIDTH) -> Element:
    return element("text", clipped(text, max(int(room / LETTER), 2)), x=x, y=y, text_anchor=anchor, fill=INK, class_="ink")


def _levels(area: _Area, levels: Sequence[float]) -> Iterator[Element]:
    for level in levels:
        y = area.y(level)
        yield element("line", x1=area.left, x2=area.right, y1=y, y2=y, stroke=GRID, class_="grid")
        yield _words(plain(level), area.left - 6, y + 4, "end")


def _x_axis(area: _Area, axis: str) -> Iterator[Element]:
    yield element("line", x1=area.left, x2=area.right, y1=area.bottom, y2=area.bottom, stroke=INK, class_="axis")
    if axis in {"time", "seconds"}:
        places = time_ticks(area.begin, area.end)
        label: Callable[[float], str] = (lambda at: moment(at, places)) if axis == "time" else (lambda at: lasting(at, places))
    else:
        places, label = [at for at in ticks(area.begin, area.end, 7) if area.begin <= at <= area.end], plain
    for at in places:
        x = area.x(at)
        yield element("line", x1=x, x2=x, y1=area.top, y2=area.bottom, stroke=GRID, class_="grid")
        yield _words(label(at), x, area.bottom + 15, "middle")
    note = {"time": "UTC", "seconds": "since the first step", "step": "step"}.get(axis)
    if note:
        yield element("text", note, x=area.right, y=18, text_anchor="end", fill=INK, class_="ink", font_size=10)


def _shades(area: _Area, marks: Sequence[Mark]) -> Iterator[Element]:
    """Yield every second epoch and window, and gaps, as shades behind the lines; names where there is room."""
    named = [mark for mark in marks if mark.kind in {"window", "epoch"}]
    for position, mark in enumerate(named):
        left, right = max(area.x(mark.begin), area.left), min(area.x(mark.end), area.right)
        if right <= left:
            continue
        if position % 2 == 0:
            box = {"x": left, "y": area.top, "width": right - left, "height": area.bottom - area.top}
            yield element("rect", **box, fill=SHADE, class_="shade")
        if right - left > LETTER * 4:
            yield _words(mark.label, left + 3, area.top - 3, room=right - left)
    for mark in marks:
        if mark.kind == "gap":
            left, right = max(area.x(mark.begin), area.left), min(area.x(mark.end), area.right)
            if right - left >= 1:
                box = {"x": left, "y": area.top, "width": right - left, "height": area.bottom - area.top}
                yield element("rect", element("title", mark.label), **box, fill=GRID, fill_opacity="0.7", class_="gap")


def _findings(area: _Area, marks: Sequence[Mark]) -> Iterator[Element]:
    """Yield a bar below the upper edge for each finding, and a line where it begins."""
    for mark in marks:
        if mark.kind == "finding":
            left, right = max(area.x(mark.begin), area.left), min(area.x(mark.end), area.right)
            color = SEVERITY.get(mark.severity, INK)
            width = max(right - left, 2.0)
            bar = element("rect", element("title", mark.label), x=left, y=area.top, width=width, height=4, fill=color, class_="finding")
            yield bar
            yield element(
                "line", x1=left, x2=left, y1=area.top, y2=area.bottom, stroke=color, stroke_dasharray="2 3", class_="finding-line"
            )


def _line(area: _Area, line: PlotLine) -> Iterator[Element]:
    """Yield the band from the least to the largest values, and the mean over it."""
    color = PALETTE[line.color]
    if line.low != line.high:
        outline = "".join(_band(area, line))
        if outline:
            yield element("path", d=outline, fill=color, fill_opacity="0.16", class_=f"f{line.color}")
    dash = "6 4" if line.dashed else None
    drawn = "".join(_stroke(area, line))
    if drawn:
        style = {"fill": "none", "stroke": color, "stroke_width": "1.3", "stroke_linecap": "round", "stroke_dasharray": dash}
        yield element("path", d=drawn, **style, class_=f"s{line.color}")


def _stroke(area: _Area, line: PlotLine) -> Iterator[str]:
    """Yield the commands of a line that is broken where there are no values; a single value is a dot."""
    before = False
    for place, value in zip(line.x, line.mean, strict=True):
        if value is not None:
            yield f"{'L' if before else 'M'}{number(area.x(place))} {number(area.y(value))}{'' if before else 'h0'}"
        before = value is not None


def _band(area: _Area, line: PlotLine) -> Iterator[str]:
    """Yield the outline of each stretch with values."""
    run: list[tuple[float, float, float]] = []
    for place, low, high in [*zip(line.x, line.low, line.high, strict=True), (0.0, None, None)]:
        if low is not None and high is not None:
            run.append((area.x(place), area.y(low), area.y(high)))
            continue
        if len(run) > 1:
            there = "L".join(f"{number(x)} {number(high)}" for x, _, high in run)
            back = "L".join(f"{number(x)} {number(low)}" for x, low, _ in reversed(run))
            yield f"M{there}L{back}Z"
        run.clear()


def _coarser(line: PlotLine, most: int) -> PlotLine:
    """Return a line with fewer points: neighbours as one, with the least, mean and largest value of them; a point of no values stays."""
    by = -(-len(line.x) // most)
    if by <= 1:
        return line
    x: list[float] = []
    low: list[float | None] = []
    mean: list[float | None] = []
    high: list[float | None] = []
    for begin in range(0, len(line.x), by):
        part = range(begin, min(begin + by, len(line.x)))
        runs: list[list[int]] = [[]]
        for place in part:
            if line.mean[place] is None:
                runs += [[place], []]
            else:
                runs[-1].append(place)
        for run in filter(None, runs):
            x.append(line.x[run[0]])
            means = [value for place in run if (value := line.mean[place]) is not None]
            mean.append(sum(means) / len(means) if means else None)
            low.append(min((value for place in run if (value := line.low[place]) is not None), default=None))
            high.append(max((value for place in run if (value := line.high[place]) is not None), default=None))
    return line._replace(x=x, low=low, mean=mean, high=high)


def _legend_rows(lines: Sequence[PlotLine]) -> list[list[tuple[float, PlotLine]]]:
    """Return where the names of lines stand: rows of places and lines; none for one line."""
    if len(lines) < 2 and not (lines and lines[0].label.startswith("median")):
        return []
    rows: list[list[tuple[float, PlotLine]]] = [[]]
    at = 0.0
    for line in lines:
        width = 30 + LETTER * min(len(line.label), 40)
        if at + width > WIDTH - LEFT - RIGHT and rows[-1]:
            rows.append([])
            at = 0.0
        rows[-1].append((at, line))
        at += width
    return rows


def _legend_entry(line: PlotLine, x: float, y: float) -> Iterator[Element]:
    dash = "6 4" if line.dashed else None
    sample = {"x1": x, "x2": x + 18, "y1": y, "y2": y, "stroke": PALETTE[line.color], "stroke_width": 2, "stroke_dasharray": dash}
    yield element("line", **sample, class_=f"s{line.color}")
    yield _words(line.label, x + 22, y + 4, room=40 * LETTER)


def _box(area: _Area, held: Summary, factor: float, y: float) -> Iterator[Element]:
    place = {name: area.x(getattr(held, name) / factor) for name in ("min", "p50", "p95", "p99", "mean", "max")}
    yield element("line", x1=place["min"], x2=place["max"], y1=y, y2=y, stroke=PALETTE[7], class_="s7")
    bar = {"x": place["p50"], "y": y - 5, "width": max(place["p99"] - place["p50"], 1.0), "height": 10}
    yield element("rect", **bar, fill=PALETTE[1], fill_opacity="0.45", class_="f1")
    yield element("line", x1=place["p95"], x2=place["p95"], y1=y - 5, y2=y + 5, stroke=PALETTE[1], stroke_width=2, class_="s1")
    yield element("circle", cx=place["mean"], cy=y, r=3, fill=PALETTE[4], class_="f4")


def files(found: Pictures) -> Iterator[tuple[str, str, Element]]:
    """Yield all pictures of a report: the name of the file without its ending, the title, the picture."""
    span = (found.begin, found.end)
    for plot in found.plots:
        yield plot.name, plot.title, plot_svg(plot, found.marks, span)
    if found.strip:
        yield "strip", "Throttling, gaps and events", strip_svg(found.strip, found.axis, span)
    steps = {plot.title: plot for plot in found.by_step}
    for plot in found.by_time:
        chosen = steps.get(plot.title)
        yield plot.name, plot.title, plot_svg(plot, found.marks, span) if chosen is None else plot_svg(chosen)
    for histogram in found.step_times:
        yield histogram.name, histogram.title, histogram_svg(histogram)
    for distribution in found.distributions:
        yield distribution.name, f"{distribution.title}: distribution", distribution_svg(distribution)


def detail_svg(series: ReducedSeries, times: Sequence[float], values: Column, finding: Finding) -> Element:
    """Draw the readings of a metric around a finding as they were taken."""
    held = max((value for value in values if value is not None), default=0.0)
    unit = shown_unit(series.unit, held)
    column = [None if value is None else value / unit.factor for value in values]
    line = PlotLine(series.device, 1, False, times, column, column, column)
    until = times[-1] if finding.until_ns is None else finding.until_ns / 1e9
    mark = Mark("finding", finding.rule, finding.since_ns / 1e9, until, finding.severity)
    return plot_svg(
        Plot("detail", f"{series.device} {TITLES.get(series.measure or series.name, series.name)}", unit.name, "time", (line,)), [mark]
    )
