"""History as graphs of text: a row of blocks, or an area some rows high with its scale; what was not read is an ``x``."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, nan

from accelmetrics.schemas.text import BLOCKS, block, cells, quantity
from accelmetrics.views.device_view import DeviceView, ValueRow
from accelmetrics.views.terminal.style import AROUND, Drawn, Line, ScreenStyle, rule
from accelmetrics.views.trails import TrailPoint

AREA = " .-=#"
"""What the highest cell of an area is made of in ASCII."""
LEFT, RIGHT = (0x40, 0x04, 0x02, 0x01), (0x80, 0x20, 0x10, 0x08)
"""Dots of a Braille letter, from the lowest."""
AXIS = 6
"""Columns for the numbers at the left of a graph."""
LEAST_HEIGHT = 3
"""Rows that a graph with its title has at least."""


def spark(points: Sequence[TrailPoint], top: float, style: ScreenStyle) -> str:
    """Draw a history on one row, from 0 to ``top``."""
    marks = style.spark
    return "".join(("x" if point.kind == "gap" else " ") if point.kind != "value" else block(point.mean, top, marks) for point in points)


def points_across(columns: int, style: ScreenStyle) -> int:
    """Return how many points of time a graph has on so many columns."""
    room = max(1, columns - AXIS)
    return room * 2 if style.braille and not style.ascii else room


def graph(
    row: ValueRow,
    about: str,
    points: Sequence[TrailPoint],
    top: float | None,
    size: tuple[int, int],
    style: ScreenStyle,
    band: bool = False,
) -> list[Drawn]:
    """Draw a history with its title and scale.

    Args:
        row: The metric.
        about: What it is of, and over what time.
        points: As many as ``points_across`` says.
        top: The end of the scale, if it has one.
        size: Columns and rows, with the title.
        style: What the terminal can show.
        band: Whether the points span several devices: then the area ends at the least, with marks at the median and the greatest;
            else at the mean, with a mark at the greatest.
    """
    columns, rows = size
    values = [point for point in points if point.kind == "value"]
    highest = max((point.high for point in values), default=nan)
    scale = top if top and top > 0 else nice(highest)
    told = [f"now {quantity(round(points[-1].mean, 1), row.unit)}"] if points and points[-1].kind == "value" else []
    told += [f"max {quantity(round(highest, 1), row.unit)}"] if values else ["nothing read yet"]
    title = f"{row.label} {about}"
    if cells(title) + cells("  ".join(told)) + AROUND > columns:
        told = told[:1]
    drawn = [rule(title, "  ".join(told), columns, style)]
    height = rows - 1
    lines = _braille(points, scale, height, band) if style.braille and not style.ascii else _blocks(points, scale, height, band, style)
    labels = {height - 1: "0", 0: axis_label(scale, row.unit)}
    for number, text in enumerate(lines):
        line = Line(style, columns)
        line.add(labels.get(number, ""), "dim", AXIS - 1, right=True).add("│" if not style.ascii else "|", "dim")
        drawn.append(line.add(text, "ok").parts())
    return drawn


def nice(highest: float) -> float:
    """Return a round number not below the highest value: 1, 2 or 5 times a power of ten."""
    if not isfinite(highest) or highest <= 0:
        return 1.0
    step = 10.0 ** (len(f"{highest:.0f}") - 1) if highest >= 1 else 10.0 ** -(len(f"{1 / highest:.0f}"))
    return next((size * step for size in (1, 2, 5, 10, 20, 50) if size * step >= highest), highest)


def axis_label(value: float, unit: str) -> str:
    """Return a number of a scale in at most five columns."""
    if unit.startswith("By"):
        for prefix in ("", "K", "M", "G", "T", "P"):
            if value < 1000 or prefix == "P":
                return f"{value:.0f}{prefix}"
            value /= 1024
    if value >= 100_000:
        return f"{value:.0e}".replace("e+0", "e")
    return f"{value:.0f}" if value >= 10 or value == int(value) else f"{value:.2g}"


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
