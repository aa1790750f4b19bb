"""History as graphs of text: a row of blocks, or an area some rows high with its scale; what was not read is an ``x``."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import ceil, inf, isfinite, log2, nan
from operator import itemgetter

from accelmetrics.schemas.text import BLOCKS, SCALED, block, cells, quantity
from accelmetrics.views.device_view import DeviceView, ValueRow
from accelmetrics.views.terminal.style import AROUND, SERIES, Drawn, Line, Role, ScreenStyle, rule
from accelmetrics.views.trails import BEFORE, TrailPoint

AREA = " .-=#"
"""What the highest cell of an area is made of in ASCII."""
LEFT, RIGHT = (0x40, 0x04, 0x02, 0x01), (0x80, 0x20, 0x10, 0x08)
"""Dots of a Braille letter, from the lowest."""
AXIS = 9
"""Columns for the numbers at the left of a graph, with their unit."""
TICKED = 5
"""Rows below a title from which on the lowest has times, and the middle a number."""
LINE_MARKS = "*+ox#@%&"
"""Of lines that neither colours nor dots can tell apart."""
LARGEST_POWER = 1023
"""Of two that is a number."""
LEAST_HEIGHT = 3
"""Rows that a graph with its title has at least."""


def spark(points: Sequence[TrailPoint], top: float, style: ScreenStyle) -> str:
    """Draw a history on one row, from 0 to ``top``."""
    marks = style.spark
    return "".join(("x" if point.kind == "gap" else " ") if point.kind != "value" else block(point.mean, top, marks) for point in points)


def points_across(columns: int, style: ScreenStyle, axes: int = 1) -> int:
    """Return how many points of time a graph has on so many columns: ``axes`` of :func:`axes_of` take some."""
    room = max(1, columns - AXIS * axes)
    return room * 2 if style.braille and not style.ascii else room


@dataclass(frozen=True)
class Series:
    """One line of a graph.

    Attributes:
        name: Its name in the legend.
        points: Its history, the oldest first.
        unit: Its unit, as in the catalogue, where lines of a graph have several.
        top: The end of its scale, if it has one.
        own: Whether its scale goes from its least value to its greatest, which the legend has where there is room.
        marks: Points with what stands there at the foot of the graph.
    """

    name: str
    points: Sequence[TrailPoint]
    unit: str = ""
    top: float | None = None
    own: bool = False
    marks: tuple[tuple[int, tuple[str, Role]], ...] = ()


def axes_of(units: Collection[str]) -> int:
    """Return how many scales stand beside the lines of a graph: one at each side for two units; more units share one in percent."""
    return 2 if len(set(units)) == 2 else 1


def line_graph(
    title: str,
    series: Sequence[Series],
    unit: str,
    top: float | None,
    seconds: float,
    size: tuple[int, int],
    style: ScreenStyle,
    end_ns: int = 0,
) -> list[Drawn]:
    """Draw several histories as lines, with a legend in the title.

    Lines of one unit share a scale. Of two units, the second has its scale at the right. With more, each line goes from 0 to 100 % of a
    scale of its own, and the title says so. With ``Series.own``, each goes from its least value to its greatest.

    Args:
        title: What all of them are.
        series: At most ``SERIES`` lines, each with as many points as ``points_across`` says. The first lies over the others.
        unit: Of lines that do not say theirs, as in the catalogue.
        top: The end of their scale, if it has one.
        seconds: The time from the left edge to the right one.
        size: Columns and rows, with the title.
        style: What the terminal can show.
        end_ns: When the right edge is, in nanoseconds since 1970; 0: now.
    """
    columns, rows = size
    lines = [one if one.unit else replace(one, unit=unit, top=top) for one in series]
    units = dict.fromkeys(one.unit for one in lines)
    own = any(one.own for one in lines)
    if own:
        spans = [_range_of(one.points) for one in lines]
        axes = {"": 0.0}
    elif len(units) > 2:
        title = f"{title}, own scales"
        spans, axes = [(0.0, _scale_of([one])) for one in lines], {"%": 100.0}
    else:
        axes = {its: _scale_of([one for one in lines if one.unit == its]) for its in units} or {unit: 1.0}
        spans = [(0.0, axes[one.unit]) for one in lines]
    dots = in_dots(len(series), style)
    marks = {place: mark for one in lines for place, mark in one.marks}
    drawn = _legend(title, lines, line_marks(len(series), style), spans if own else (), columns, style)
    height = rows - len(drawn)
    height -= height >= TICKED
    across = max(1, columns - AXIS * len(axes))
    (left, left_scale), *right = axes.items()
    cells_by_row: list[dict[int, tuple[int, int]]] = [{} for _ in range(height)]  # by column: the dots, and the line on top
    for number, one in reversed(list(enumerate(series))):
        low, high = spans[number]
        levels = [_level(point.mean - low, high - low, height * 4) if point.kind == "value" else -1 for point in one.points]
        for place, level in enumerate(levels):
            if level < 0:
                continue
            before = levels[place - 1] if place and levels[place - 1] >= 0 else level
            # A line goes up or down in one column, so that it has no gaps.
            reach = range(min(before + (before < level), level), max(before - (before > level), level) + 1)
            column, side = (place // 2, place % 2) if style.braille and not style.ascii else (place, 0)
            for step in reach:
                row = cells_by_row[height - 1 - step // 4]
                bits, _ = row.get(column, (0, 0))
                row[column] = bits | (LEFT, RIGHT)[side][step % 4], number
    for number, row in enumerate(cells_by_row):
        if own:
            line = _own_axis(Line(style, columns), number, height, lines, spans)
        else:
            line = _axis(Line(style, columns), number, height, left_scale, left)
        shown = [row.get(column, (0, -1)) for column in range(across)]
        texts: list[tuple[str, Role]] = [
            (" ", "plain") if owner < 0 else (chr(0x2800 + bits) if dots else LINE_MARKS[owner], series_role(owner))
            for bits, owner in shown
        ]
        for place, mark in marks.items() if number == height - 1 else ():
            texts[place * across // max(1, len(lines[0].points))] = mark
        for role, run in groupby(texts, key=itemgetter(1)):
            line.add("".join(text for text, _ in run), role)
        for its, scale in right:
            line.add("│", "dim").add(_scale_label(number, height, scale, its), "dim", AXIS - 1)
        drawn.append(line.parts())
    return [*drawn, *([time_axis(seconds, columns, style, end_ns, across)] if len(drawn) < rows else [])]


def _legend(
    title: str, lines: Sequence[Series], marks: Sequence[str], spans: Sequence[tuple[float, float]], columns: int, style: ScreenStyle
) -> list[Drawn]:
    """Draw the title with the name and the newest value of each line; with the range of each that has one, on two rows where it must be."""
    dash = "-" if style.ascii else "─"
    newest = [one.points[-1] if one.points else BEFORE for one in lines]
    if spans:  # of a program, which says something now and then
        newest = [next((point for point in reversed(one.points) if point.kind == "value"), BEFORE) for one in lines]
    digits = [now.mean if spans else round(now.mean, 1) for now in newest]
    names = [one.name for one in lines]
    valued = [
        f"{one.name} {quantity(value, one.unit)}" if now.kind == "value" else one.name
        for one, now, value in zip(lines, newest, digits, strict=True)
    ]
    ranged = [
        f"{word} ({quantity(low, '1')}–{quantity(high, '1')})" if now.kind == "value" else word
        for word, now, (low, high) in zip(valued, newest, spans, strict=False)
    ]
    short = [name.rpartition(".")[2] for name in names]
    legend = Line(style, columns).add(f"{dash}{dash} ", "dim").add(title, "title")
    for words in (ranged or valued, valued, *(() if spans else (names, short))):  # as much as there is room for
        if legend.fits(*(f"  {mark} {word}" for mark, word in zip(marks, words, strict=False)), f" {dash}"):
            break
    drawn: list[Drawn] = []
    for place, (mark, word) in enumerate(zip(marks, words, strict=False)):
        if spans and not drawn and not legend.fits(f"  {mark} {word}", f" {dash}"):
            drawn.append(legend.add(" ").fill(dash, "dim").parts())
            legend = Line(style, columns)
        legend.add("", width=2).add(f"{mark} {word}", series_role(place))
    return [*drawn, legend.add(" ").fill(" " if drawn else dash, "dim").parts()]


def _range_of(points: Sequence[TrailPoint]) -> tuple[float, float]:
    """Return the least and the greatest value of a line; a little more where they are the same."""
    means = [point.mean for point in points if point.kind == "value"] or [0.0]
    low, high = min(means), max(means)
    margin = 0.0 if high > low else abs(high) / 10 or 1.0
    return low - margin, high + margin


def _own_axis(line: Line, row: int, height: int, lines: Sequence[Series], spans: Sequence[tuple[float, float]]) -> Line:
    """Begin a row of a graph whose lines have their own scales: with the number that belongs there if there is one line, else in words."""
    if len(lines) == 1:
        (low, high), unit = spans[0], lines[0].unit
        shares = {height - 1: low, **({height // 2: (low + high) / 2} if height >= TICKED - 1 else {}), 0: high}
        label = quantity(shares[row], unit) if row in shares else ""
        label = label if cells(label) < AXIS else f"{shares[row]:.1e}"
    else:
        label = {height - 1: "least", 0: "most"}.get(row, "")
    return line.add(label, "dim", AXIS - 1, right=True).add("│", "dim")


def _scale_of(lines: Sequence[Series]) -> float:
    """Return the end of the scale of lines of one unit: the greatest of theirs if all have one, else a round number."""
    tops = [one.top for one in lines if one.top and one.top > 0]
    if len(tops) == len(lines):
        return max(tops)
    return nice(max((point.mean for one in lines for point in one.points if point.kind == "value"), default=nan), lines[0].unit)


def in_dots(number: int, style: ScreenStyle) -> bool:
    """Return whether so many lines are drawn in dots: they can be told apart by their colours."""
    return style.braille and not style.ascii and (style.colours != "none" or number == 1)


def line_marks(number: int, style: ScreenStyle) -> str:
    """Return what stands before the names of so many lines."""
    return "━" * number if in_dots(number, style) else LINE_MARKS[:number]


def series_role(number: int) -> Role:
    """Return the role of the line with this number."""
    roles: tuple[Role, ...] = ("s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7")
    return roles[number % SERIES]


def graph(
    row: ValueRow,
    about: str,
    points: Sequence[TrailPoint],
    size: tuple[int, int],
    style: ScreenStyle,
    band: bool = False,
    seconds: float = 0.0,
    end_ns: int = 0,
) -> list[Drawn]:
    """Draw a history with its title and scale.

    Args:
        row: The metric; its scale ends where it says, or at a round number.
        about: What it is of, and over what time.
        points: As many as ``points_across`` says.
        size: Columns and rows, with the title.
        style: What the terminal can show.
        band: Whether the points span several devices: then the area ends at the least, with marks at the median and the greatest;
            else at the mean, with a mark at the greatest.
        seconds: The time from the left edge to the right one; 0 for no axis of time.
        end_ns: When the right edge is, in nanoseconds since 1970; 0: now.
    """
    columns, rows = size
    values = [point for point in points if point.kind == "value"]
    highest = max((point.high for point in values), default=nan)
    scale = row.top if row.top and row.top > 0 else nice(highest, row.unit)
    told = (
        [f"{'last' if end_ns else 'now'} {quantity(round(points[-1].mean, 1), row.unit)}"] if points and points[-1].kind == "value" else []
    )
    told += [f"max {quantity(round(highest, 1), row.unit)}"] if values else ["nothing read yet"]
    title = f"{row.label} {about}"
    if cells(title) + cells("  ".join(told)) + AROUND > columns:
        told = told[:1]
    drawn = [rule(title, "  ".join(told), columns, style)]
    height = rows - 1 - (seconds > 0 and rows - 1 >= TICKED)
    lines = _braille(points, scale, height, band) if style.braille and not style.ascii else _blocks(points, scale, height, band, style)
    drawn += [_axis(Line(style, columns), number, height, scale, row.unit).add(text, "ok").parts() for number, text in enumerate(lines)]
    return [*drawn, *([time_axis(seconds, columns, style, end_ns)] if height < rows - 1 else [])]


def _axis(line: Line, row: int, height: int, scale: float, unit: str) -> Line:
    """Begin a row of a graph with the number of the scale that belongs there."""
    return line.add(_scale_label(row, height, scale, unit), "dim", AXIS - 1, right=True).add("│", "dim")


def _scale_label(row: int, height: int, scale: float, unit: str) -> str:
    """Return the number of a scale that belongs beside a row; empty for none."""
    shares = {height - 1: 0.0, **({height // 2: 0.5} if height >= TICKED - 1 else {}), 0: 1.0}
    return axis_label(shares[row] * scale, unit) if row in shares else ""


def time_axis(seconds: float, columns: int, style: ScreenStyle, end_ns: int = 0, across: int = 0) -> Drawn:
    """Draw the times below a graph: three to five stretches of equal length where there is room, else two.

    Args:
        seconds: The time from the left edge to the right one.
        columns: Of the graph.
        style: What the terminal can show.
        end_ns: When the right edge is, in nanoseconds since 1970: then times are those of the clock; 0: now.
        across: Columns between its scales; 0: all behind the one at the left.
    """
    across = across or columns - AXIS
    size, unit = next((size, unit) for size, unit in ((3600.0, "h"), (60.0, "min"), (1.0, "s")) if seconds >= 2 * size or unit == "s")
    steps = next((steps for steps in (4, 5, 3) if (seconds / size / steps).is_integer()), 4) if across >= 40 else 2
    line, done = Line(style, columns).add("", width=AXIS), 0
    for step in range(steps + 1):
        ago = seconds * (steps - step) / steps
        text = f"-{ago / size:g} {unit}" if step < steps else "now"
        if end_ns:
            text = time.strftime("%H:%M:%S" if seconds < 3600 else "%H:%M", time.localtime(end_ns / 1e9 - ago))
        place = min(max(0, across * step // steps - (len(text) // 2 if step else 0)), across - len(text))
        if place >= done:
            line.add("", width=place - done).add(text, "dim")
            done = place + len(text)
    return line.parts()


def nice(highest: float, unit: str = "") -> float:
    """Return a round number not below the highest value: 1, 2 or 5 times a power of ten; of bytes, a power of two."""
    if not isfinite(highest) or highest <= 0:
        return 1.0
    if unit in SCALED:
        return 2.0 ** min(LARGEST_POWER, ceil(log2(max(1.0, highest))))
    step = 10.0 ** (len(f"{highest:.0f}") - 1) if highest >= 1 else 10.0 ** -(len(f"{1 / highest:.0f}"))
    return next((size * step for size in (1, 2, 5, 10, 20, 50) if highest <= size * step < inf), highest)


def axis_label(value: float, unit: str) -> str:
    """Return a number of a scale with its unit, in as many columns as the axis has; without the unit where it has too few."""
    words = quantity(value if value < 10 else round(value), unit).replace(".0 ", " ")
    if cells(words) < AXIS:
        return words
    short = words.partition(" ")[0] if unit not in SCALED else words.replace(" ", "").replace("iB", "")
    return short if cells(short) < AXIS else f"{value:.0e}".replace("e+0", "e")


def top_of(row: ValueRow, devices: Sequence[DeviceView]) -> float | None:
    """Return where the scale of a metric ends: at the end that it has, at a limit of the devices, or nowhere."""
    if row.top is not None:
        return row.top
    limits = {"power_watts": "power_limit_watts", "sm_clock_mhz": "max_sm_clock_mhz", "memory_used_bytes": "memory_total_bytes"}
    if row.name == "temperature_celsius":
        return 100.0
    found = [device.values[limits[row.name]] for device in devices if limits.get(row.name, "") in device.values]
    return max(found, default=None)


def _drawn_values(point: TrailPoint, band: bool) -> tuple[float, tuple[float, ...]]:
    """Return where the area ends, and what has a mark."""
    return (point.low, (point.mean, point.high)) if band else (point.mean, (point.high,))


def _braille(points: Sequence[TrailPoint], scale: float, height: int, band: bool) -> list[str]:
    """Fill an area with dots, two points a column, four levels a row."""
    grid = [[0] * ((len(points) + 1) // 2) for _ in range(height)]
    for number, point in enumerate(points):
        if point.kind != "value":
            continue
        end, marked = _drawn_values(point, band)
        for level in (*range(_level(end, scale, height * 4) + 1), *(_level(value, scale, height * 4) for value in marked)):
            grid[height - 1 - level // 4][number // 2] |= (LEFT, RIGHT)[number % 2][level % 4]
    lines = ["".join([chr(0x2800 + cell) if cell else " " for cell in row]) for row in grid]
    gaps = {number // 2 for number, point in enumerate(points) if point.kind == "gap"}
    lines[-1] = "".join("x" if column in gaps and cell == " " else cell for column, cell in enumerate(lines[-1]))
    return lines


def _blocks(points: Sequence[TrailPoint], scale: float, height: int, band: bool, style: ScreenStyle) -> list[str]:
    """Fill an area with blocks; what has a mark has it in its cell, where the area does not reach there."""
    marks = AREA if style.ascii else " " + BLOCKS
    steps = len(marks) - 1
    grid = [[" "] * len(points) for _ in range(height)]
    for column, point in enumerate(points):
        if point.kind == "gap":
            grid[-1][column] = "x"
        if point.kind != "value":
            continue
        end, marked = _drawn_values(point, band)
        filled = max(1, min(round(_share(end, scale) * height * steps), height * steps))
        for row in range(-(-filled // steps)):
            grid[height - 1 - row][column] = marks[min(steps, filled - row * steps)]
        for row in (_level(value, scale, height) for value in marked):
            if row > _level(end, scale, height) and grid[height - 1 - row][column] == " ":
                grid[height - 1 - row][column] = "'" if style.ascii else "˙"
    return ["".join(row) for row in grid]


def _level(value: float, scale: float, levels: int) -> int:
    """Return on which of so many levels a value lies, from 0."""
    return min(levels - 1, int(_share(value, scale) * levels))


def _share(value: float, scale: float) -> float:
    return min(1.0, max(0.0, value / scale))
