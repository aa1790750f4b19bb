"""Graphs of history in text: blocks on one row, or areas and lines with a scale. An ``x`` marks a gap without readings."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import ceil, inf, isfinite, log2, nan
from operator import itemgetter

from accelmetrics.schemas.text import BLOCKS, SCALED, block, cells, quantity
from accelmetrics.views.device_view import DeviceView, ValueRow
from accelmetrics.views.terminal.choices import Choices
from accelmetrics.views.terminal.style import AROUND, SERIES, Drawn, Line, Role, ScreenStyle, rule
from accelmetrics.views.trails import BEFORE, SPANS, TrailPoint, Trails

AREA = " .-=#"
"""ASCII characters of the top cell of an area, from empty to full."""
LEFT, RIGHT = (0x40, 0x04, 0x02, 0x01), (0x80, 0x20, 0x10, 0x08)
"""Bits of the dots of a Braille character in its left and its right column, from the bottom."""
AXIS = 9
"""Columns of a scale: numbers, unit and line."""
TICKED = 5
"""Rows below the title from which a graph has a time axis."""
LINE_MARKS = "*+ox#@%&"
"""Characters of lines on terminals without colours or Braille."""
LARGEST_POWER = 1023
"""Largest power of two that a float can hold."""
CLOCK_STEPS = (5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200)
"""Seconds between two clock times on a time axis."""
LEAST_HEIGHT = 3
"""Smallest height of a graph with its title."""


def spark(points: Sequence[TrailPoint], top: float, style: ScreenStyle) -> str:
    """Return a history on one row, on a scale from 0 to ``top``."""
    marks = style.spark
    return "".join(("x" if point.kind == "gap" else " ") if point.kind != "value" else block(point.mean, top, marks) for point in points)


def points_across(columns: int, style: ScreenStyle, axes: int = 1) -> int:
    """Return the number of points of a graph with this width and number of scales (see :func:`axes_of`)."""
    room = max(1, columns - AXIS * axes)
    return room * 2 if style.braille and not style.ascii else room


@dataclass(frozen=True)
class Series:
    """A line of a graph.

    Attributes:
        name: Name in the legend.
        points: History, the oldest point first.
        unit: Unit, as in the catalogue; empty for the unit of the graph.
        top: Upper end of its scale; None if it has no fixed one.
        own: Whether it has its own scale, from its smallest to its largest value. The legend shows that range if there is room.
        marks: Indices of points, each with a character and role to draw there on the bottom row.
    """

    name: str
    points: Sequence[TrailPoint]
    unit: str = ""
    top: float | None = None
    own: bool = False
    marks: tuple[tuple[int, tuple[str, Role]], ...] = ()


def axes_of(units: Collection[str]) -> int:
    """Return the number of scales of a graph: two for two units, else one. More than two units share a scale in percent."""
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
    """Return a graph with several lines. Its title contains the legend.

    Lines with the same unit share a scale. If there are two units, the second has its scale on the right. If there are more, each line
    is drawn in percent of its own scale, and the title says so. With ``Series.own``, the scale of each line reaches from its smallest to
    its largest value.

    Args:
        title: Title of the graph.
        series: At most ``SERIES`` lines, each with ``points_across`` points. The first is drawn on top.
        unit: Unit of lines without one, as in the catalogue.
        top: Upper end of the scale of lines without a unit; None if it has no fixed one.
        seconds: Time span of the graph.
        size: Columns and rows, including the title.
        style: Capabilities of the terminal.
        end_ns: Right edge, in nanoseconds since 1970; 0 for now.
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
    height -= height >= TICKED  # the row of the time axis
    across = max(1, columns - AXIS * len(axes))
    scales = [scale_labels(0.0, scale, its, height) for its, scale in axes.items()]
    if own:
        scales = [scale_labels(*spans[0], lines[0].unit, height) if len(lines) == 1 else {height - 1: "least", 0: "most"}]
    cells_by_row: list[dict[int, tuple[int, int]]] = [{} for _ in range(height)]  # by column: the dots, and the line on top
    # A cell has one colour. The first line is drawn last, so that it keeps its colour where lines cross.
    for number, one in reversed(list(enumerate(series))):
        low, high = spans[number]
        levels = [_level(point.mean - low, high - low, height * 4) if point.kind == "value" else -1 for point in one.points]
        for place, level in enumerate(levels):
            if level < 0:
                continue
            before = levels[place - 1] if place and levels[place - 1] >= 0 else level
            # A steep line fills all levels of this column up to the previous value, so that it has no gaps.
            reach = range(min(before + (before < level), level), max(before - (before > level), level) + 1)
            column, side = (place // 2, place % 2) if style.braille and not style.ascii else (place, 0)
            for step in reach:
                row = cells_by_row[height - 1 - step // 4]
                bits, _ = row.get(column, (0, 0))
                row[column] = bits | (LEFT, RIGHT)[side][step % 4], number
    for number, row in enumerate(cells_by_row):
        line = Line(style, columns).add(scales[0].get(number, ""), "dim", AXIS - 1, right=True).add("│", "dim")
        texts: list[tuple[str, Role]] = [(" ", "plain")] * across
        for column, (bits, owner) in row.items():
            texts[column] = chr(0x2800 + bits) if dots else LINE_MARKS[owner], series_role(owner)
        for place, mark in marks.items() if number == height - 1 else ():
            texts[place * across // max(1, len(lines[0].points))] = mark
        for role, run in groupby(texts, key=itemgetter(1)):
            line.add("".join(text for text, _ in run), role)
        # Only two units give a second scale.
        for labels in scales[1:]:
            line.add("│", "dim").add(labels.get(number, ""), "dim", AXIS - 1)
        drawn.append(line.parts())
    return [*drawn, *([time_axis(seconds, columns, style, end_ns, across)] if len(drawn) < rows else [])]


def _legend(
    title: str, lines: Sequence[Series], marks: Sequence[str], spans: Sequence[tuple[float, float]], columns: int, style: ScreenStyle
) -> list[Drawn]:
    """Return the title with name and newest value of each line.

    If there is too little room, values are left out, and then the beginnings of names. Lines with their own scale also have their range,
    and the legend may then take several rows.
    """
    dash = "-" if style.ascii else "─"
    newest = [one.points[-1] if one.points else BEFORE for one in lines]
    if spans:  # a program logs only now and then, so the newest point often has no value
        newest = [next((point for point in reversed(one.points) if point.kind == "value"), BEFORE) for one in lines]
    # Training values are not rounded: learning rates are far below 0.1.
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
    for words in (ranged or valued, valued, *(() if spans else (names, short))):  # the longest that fits
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
    """Return the smallest and the largest value of a line, with a margin if they are equal."""
    means = [point.mean for point in points if point.kind == "value"] or [0.0]
    low, high = min(means), max(means)
    margin = 0.0 if high > low else abs(high) / 10 or 1.0
    return low - margin, high + margin


def _scale_of(lines: Sequence[Series]) -> float:
    """Return the upper end of the scale that lines share: the largest of their ends if all have one, else a round number."""
    tops = [one.top for one in lines if one.top and one.top > 0]
    if len(tops) == len(lines):
        return max(tops)
    return nice(max((point.mean for one in lines for point in one.points if point.kind == "value"), default=nan), lines[0].unit)


def in_dots(number: int, style: ScreenStyle) -> bool:
    """Return whether this number of lines can be drawn in Braille. Several lines need colours to be told apart."""
    return style.braille and not style.ascii and (style.colours != "none" or number == 1)


def line_marks(number: int, style: ScreenStyle) -> str:
    """Return the characters that mark the lines in the legend, one for each line."""
    return "━" * number if in_dots(number, style) else LINE_MARKS[:number]


def series_role(number: int) -> Role:
    """Return the role (colour) of a line by its index in the graph."""
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
    """Return a graph of one history as an area, with title and scale.

    Args:
        row: The metric. The scale ends at its ``top``, or else at a round number.
        about: Subject and time span, for the title.
        points: The history, with ``points_across`` points.
        size: Columns and rows, including the title.
        style: Capabilities of the terminal.
        band: Whether the points are a band over several devices. The area then ends at the minimum, with marks at median and maximum;
            else it ends at the mean, with a mark at the maximum.
        seconds: Time span of the graph; 0 for no time axis.
        end_ns: Right edge, in nanoseconds since 1970; 0 for now.
    """
    columns, rows = size
    values = [point for point in points if point.kind == "value"]
    highest = max((point.high for point in values), default=nan)
    scale = row.top if row.top and row.top > 0 else nice(highest, row.unit)
    facts = []
    if points and points[-1].kind == "value":
        facts.append(f"{'last' if end_ns else 'now'} {quantity(round(points[-1].mean, 1), row.unit)}")
    facts.append(f"max {quantity(round(highest, 1), row.unit)}" if values else "nothing read yet")
    title = f"{row.label} {about}"
    if cells(title) + cells("  ".join(facts)) + AROUND > columns:
        facts = facts[:1]
    drawn = [rule(title, "  ".join(facts), columns, style)]
    height = rows - 1 - (seconds > 0 and rows - 1 >= TICKED)
    labels = scale_labels(0.0, scale, row.unit, height)
    lines = _braille(points, scale, height, band) if style.braille and not style.ascii else _blocks(points, scale, height, band, style)
    for number, text in enumerate(lines):
        line = Line(style, columns).add(labels.get(number, ""), "dim", AXIS - 1, right=True).add("│", "dim")
        drawn.append(line.add(text, "ok").parts())
    return [*drawn, *([time_axis(seconds, columns, style, end_ns)] if height < rows - 1 else [])]


def history_graph(trails: Trails, key: str, row: ValueRow, choices: Choices, size: tuple[int, int], style: ScreenStyle) -> list[Drawn]:
    """Return a graph of one history at the chosen time, with the time span as its title.

    Args:
        trails: The history.
        key: Key of the history, as for ``Trails.points``.
        row: The metric.
        choices: The user's choices.
        size: Columns and rows, including the title.
        style: Capabilities of the terminal.
    """
    points = trails.points(key, row.name, choices.scale, points_across(size[0], style))
    return graph(row, choices.stretch, points, size, style, seconds=SPANS[choices.scale], end_ns=choices.until_ns)


def scale_labels(low: float, high: float, unit: str, height: int) -> dict[int, str]:
    """Return the numbers of a scale by row: at the bottom, in the middle of a high graph, and at the top."""
    values = {height - 1: low, **({height // 2: (low + high) / 2} if height >= TICKED - 1 else {}), 0: high}
    return {row: axis_label(value, unit) for row, value in values.items()}


def time_axis(seconds: float, columns: int, style: ScreenStyle, end_ns: int = 0, across: int = 0) -> Drawn:
    """Return the time axis of a graph. Relative times have three to five intervals if there is room, else two; clock times are round.

    Args:
        seconds: Time span of the graph.
        columns: Width of the graph.
        style: Capabilities of the terminal.
        end_ns: Right edge, in nanoseconds since 1970, which labels the axis with clock times; 0 for now, with relative times.
        across: Columns between the scales; 0 for all to the right of the left scale.
    """
    across = across or columns - AXIS
    ticks: list[tuple[float, str]] = []  # seconds before the right edge, and the label
    if end_ns:
        end = time.localtime(end_ns / 1e9)
        step = next((step for step in CLOCK_STEPS if seconds / step <= min(5, across / (10 if step < 60 else 7))), CLOCK_STEPS[-1])
        since = (end_ns / 1e9 + end.tm_gmtoff) % step  # the time from the last round clock time to the right edge
        for number in range(int((seconds - since) / step), -1, -1):
            ago = since + number * step
            ticks.append((ago, time.strftime("%H:%M:%S" if step < 60 else "%H:%M", time.localtime(end_ns / 1e9 - ago))))
    else:
        size, unit = next((size, unit) for size, unit in ((3600.0, "h"), (60.0, "min"), (1.0, "s")) if seconds >= 2 * size or unit == "s")
        # Prefer a number of intervals that makes the labels whole numbers.
        steps = next((steps for steps in (4, 5, 3) if (seconds / size / steps).is_integer()), 4) if across >= 40 else 2
        ticks += [(seconds * step / steps, f"-{seconds * step / steps / size:g} {unit}") for step in range(steps, 0, -1)]
        ticks.append((0.0, "now"))
    line, done = Line(style, columns).add("", width=AXIS), 0
    for ago, text in ticks:
        place = round(across * (1 - ago / seconds)) - len(text) // 2
        if not end_ns:
            place = min(max(0, place), across - len(text))
        # A clock time that an edge would move away from its place is left out, so that the distances stay equal.
        if done <= place <= across - len(text):
            line.add("", width=place - done).add(text, "dim")
            done = place + len(text)
    return line.parts()


def nice(highest: float, unit: str = "") -> float:
    """Return a round number at or above a value: 1, 2 or 5 times a power of ten; for bytes a power of two."""
    if not isfinite(highest) or highest <= 0:
        return 1.0
    if unit in SCALED:
        return 2.0 ** min(LARGEST_POWER, ceil(log2(max(1.0, highest))))
    step = 10.0 ** (len(f"{highest:.0f}") - 1) if highest >= 1 else 10.0 ** -(len(f"{1 / highest:.0f}"))
    return next((size * step for size in (1, 2, 5, 10, 20, 50) if highest <= size * step < inf), highest)


def axis_label(value: float, unit: str) -> str:
    """Return a number of a scale with its unit. If it is too wide for the scale, the unit is left out or shortened."""
    words = quantity(value if value < 10 else round(value), unit).replace(".0 ", " ")
    if cells(words) < AXIS:
        return words
    short = words.partition(" ")[0] if unit not in SCALED else words.replace(" ", "").replace("iB", "")
    return short if cells(short) < AXIS else f"{value:.0e}".replace("e+0", "e")


def top_of(row: ValueRow, devices: Sequence[DeviceView]) -> float | None:
    """Return the upper end of a metric's scale: a fixed one, or the largest limit of the devices; None if there is none."""
    if row.top is not None:
        return row.top
    if row.name == "temperature_celsius":
        return 100.0
    limits = {"power_watts": "power_limit_watts", "sm_clock_mhz": "max_sm_clock_mhz", "memory_used_bytes": "memory_total_bytes"}
    limit = limits.get(row.name, "")
    return max((device.values[limit] for device in devices if limit in device.values), default=None)


def _braille(points: Sequence[TrailPoint], scale: float, height: int, band: bool) -> list[str]:
    """Return the rows of an area in Braille, with two points in a column and four levels in a row."""
    grid = [[0] * ((len(points) + 1) // 2) for _ in range(height)]
    for number, point in enumerate(points):
        if point.kind != "value":
            continue
        end, marked = (point.low, (point.mean, point.high)) if band else (point.mean, (point.high,))
        for level in (*range(_level(end, scale, height * 4) + 1), *(_level(value, scale, height * 4) for value in marked)):
            grid[height - 1 - level // 4][number // 2] |= (LEFT, RIGHT)[number % 2][level % 4]
    # Braille characters start at U+2800, and each dot is one bit of the code point.
    lines = ["".join([chr(0x2800 + cell) if cell else " " for cell in row]) for row in grid]
    gaps = {number // 2 for number, point in enumerate(points) if point.kind == "gap"}
    lines[-1] = "".join("x" if column in gaps and cell == " " else cell for column, cell in enumerate(lines[-1]))
    return lines


def _blocks(points: Sequence[TrailPoint], scale: float, height: int, band: bool, style: ScreenStyle) -> list[str]:
    """Return the rows of an area in blocks. A marked value above the area gets a mark in its cell."""
    marks = AREA if style.ascii else " " + BLOCKS
    steps = len(marks) - 1
    grid = [[" "] * len(points) for _ in range(height)]
    for column, point in enumerate(points):
        if point.kind == "gap":
            grid[-1][column] = "x"
        if point.kind != "value":
            continue
        end, marked = (point.low, (point.mean, point.high)) if band else (point.mean, (point.high,))
        filled = max(1, min(round(_share(end, scale) * height * steps), height * steps))
        for row in range(-(-filled // steps)):
            grid[height - 1 - row][column] = marks[min(steps, filled - row * steps)]
        for row in (_level(value, scale, height) for value in marked):
            if row > _level(end, scale, height) and grid[height - 1 - row][column] == " ":
                grid[height - 1 - row][column] = "'" if style.ascii else "˙"
    return ["".join(row) for row in grid]


def _level(value: float, scale: float, levels: int) -> int:
    """Return the level of a value, from 0 to ``levels - 1``."""
    return min(levels - 1, int(_share(value, scale) * levels))


def _share(value: float, scale: float) -> float:
    """Return a value as a fraction of the scale, limited to 0 to 1."""
    return min(1.0, max(0.0, value / scale))
