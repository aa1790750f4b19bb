"""The live table: a row for each device with bars and a short history, and a line for the host."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from accelmetrics.schemas.text import printable
from accelmetrics.schemas.vitals import Vitals, processors, silent_sources, vitals

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from accelmetrics.schemas.snapshot import Snapshot

BLOCKS, BAR = "▁▂▃▄▅▆▇█", "█░"
GAP = " "
"""Of the history: no value, which is not the same as 0."""
GIB = 2.0**30
KEPT = 120
"""Readings that the history holds."""
SHORTEST, USUAL = 8, 16
"""Columns below which a history says nothing, and those that bars make room for."""
WIDE = 200
"""Columns of a table whose width is not given."""
SPACE = 2
"""Columns between two columns."""
HOT = "bold red"
AROUND, LEAST = 3, 7
"""Rows that are no device's: the heading, the columns', the host's; and as many as there must be for all of them, where not every
device has a row."""


class HotLimits(NamedTuple):
    """From where on a value is drawn as hot.

    Attributes:
        temperature: Degrees Celsius.
        memory: Percent of the device's memory.
    """

    temperature: float = 80.0
    memory: float = 90.0


class Shape(NamedTuple):
    """What there is room for.

    Attributes:
        bar: Columns of a bar.
        amount: Whether memory is shown as an amount too.
        left_out: Columns that are not there.
    """

    bar: int
    amount: bool = False
    left_out: tuple[str, ...] = ("Name",)


SHAPES = (
    Shape(10, True, ()),
    Shape(6, True, ()),
    Shape(6, True),
    Shape(4),
    Shape(0),
    Shape(0, left_out=("Name", "Power")),
    Shape(0, left_out=("Name", "Power", "Temp")),
    Shape(0, left_out=("Name", "Power", "Temp", "Memory")),
)
"""The first that fits is taken."""


class Trail:
    """The last utilisations of each device."""

    def __init__(self) -> None:
        self._values: dict[str, deque[float | None]] = {}

    def add(self, snapshot: Snapshot) -> None:
        """Remember a reading: of a device that says nothing, that it said nothing."""
        for one in vitals(snapshot):
            self._values.setdefault(one.key, deque(maxlen=KEPT)).append(one.utilization)

    def clear(self) -> None:
        """Forget everything."""
        self._values.clear()

    def line(self, device: str, width: int = KEPT) -> str:
        """Draw the newest of a device's history, as blocks from 0 to 100 %."""
        newest = list(self._values.get(device, ()))[-width:]
        return "".join(GAP if value is None else block(value, 100.0) for value in newest)


def table(
    snapshot: Snapshot,
    limits: HotLimits | None = None,
    trail: Trail | None = None,
    *,
    width: int = WIDE,
    rows: int | None = None,
    process: bool = True,
) -> RenderableType:
    """Lay out a snapshot as something that rich draws.

    Args:
        snapshot: The reading.
        limits: From where on values are hot.
        trail: The history, if one is shown.
        width: Columns there are.
        rows: Rows there are. Devices that find none are counted; the heading, the host and the columns' names make room for them.
        process: Whether the watched process stands in the host's line.
    """
    from rich.console import Group
    from rich.text import Text

    devices, silent = vitals(snapshot), silent_sources(snapshot)
    around, most = _room(len(devices) + len(silent), rows)
    shown = devices[: max(1, most - len(silent))]
    told = silent[: most - len(shown)]
    left = len(devices) + len(silent) - len(shown) - len(told)
    parts: list[RenderableType] = [_drawn(shown, limits or HotLimits(), trail, width, around > 0)] if shown else []
    if around == AROUND:
        parts.insert(0, Text(_heading(snapshot, width), style="bold", no_wrap=True, overflow="crop"))
    parts += [Text(f"{status.name}  {status.status}: {status.detail}", "red", no_wrap=True, overflow="ellipsis") for status in told]
    if not devices and not silent:
        parts.append(Text("no device was found"))
    elif left and (rows is None or around + most < rows):
        parts.append(Text(f"and {left} more"))
    if around > 1:
        parts.append(Text(host_line(snapshot, process, width), no_wrap=True, overflow="ellipsis"))
    return Group(*parts)


def height(snapshot: Snapshot) -> int:
    """Count the rows that a table of this snapshot would take."""
    return AROUND + max(1, len(snapshot.identities) + len(silent_sources(snapshot)))


def _room(devices: int, rows: int | None) -> tuple[int, int]:
    """Return how many rows are no device's, and how many devices are shown."""
    if rows is None:
        return AROUND, devices
    fitting = [around for around in range(AROUND, -1, -1) if around + max(1, devices) <= rows]
    if fitting:
        return fitting[0], devices
    around = AROUND if rows >= LEAST else min(1, rows // 3)
    return around, max(1, rows - around - (rows - around > 1))


def _drawn(shown: Sequence[Vitals], limits: HotLimits, trail: Trail | None, width: int, headed: bool) -> RenderableType:
    """Draw the devices in the richest shape that leaves room for a history where there is one, else in the richest that fits."""
    from rich.table import Table
    from rich.text import Text

    fitting = []
    for shape in SHAPES:
        rows = [_cells(one, shape, limits) for one in shown]
        room = width - sum(SPACE + max(len(heading), *(row[heading].cell_len for row in rows)) for heading in rows[0])
        if room >= -SPACE:  # behind the last column there need be no space
            fitting.append((shape, rows, room))
    if not fitting:
        return Text("too narrow", no_wrap=True, overflow="ellipsis")
    roomy = [found for found in fitting if trail and found[2] >= USUAL and "Power" not in found[0].left_out]
    _, rows, room = (roomy or fitting)[0]
    if trail and room >= SHORTEST:
        rows = [{**row, "History": Text(trail.line(one.key, room))} for one, row in zip(shown, rows, strict=True)]
    drawn = Table(*rows[0], box=None, padding=(0, SPACE, 0, 0), pad_edge=False, header_style="bold", show_header=headed)
    for column in drawn.columns:
        column.no_wrap = True
    for row in rows:
        drawn.add_row(*row.values())
    return drawn


def _cells(one: Vitals, shape: Shape, limits: HotLimits) -> dict[str, Text]:
    """Return a device's row by the headings of its columns; one that says nothing says why."""
    from rich.text import Text

    full = one.memory_percent is not None and one.memory_percent > limits.memory
    hot = one.temperature is not None and one.temperature > limits.temperature
    cells = {
        "Device": Text(one.label),
        "Name": Text(one.short_name),
        "Util": Text(_bar(one.utilization, shape.bar)),
        "Memory": Text(_memory(one, shape), HOT if full else ""),
        "Power": Text(_power(one)),
        "Temp": Text("-" if one.temperature is None else f"{one.temperature:.0f}°C", HOT if hot else ""),
    }
    if one.why:
        cells.update({"Util": Text(one.why, "red"), "Memory": Text(), "Power": Text(), "Temp": Text()})
    return {heading: cell for heading, cell in cells.items() if heading not in shape.left_out}


def _heading(snapshot: Snapshot, width: int) -> str:
    """Head the table with the host and the time, or as much of both as fits: the end of a number is never missing."""
    from rich.cells import cell_len

    host, moment = printable(snapshot.hostname), f"{snapshot.timestamp[:19]}Z"
    clock = moment.partition("T")[2]
    return next((text for text in (f"{host}  {moment}", f"{host}  {clock}", clock) if cell_len(text) <= width), "")


def host_line(snapshot: Snapshot, process: bool = True, width: int = WIDE) -> str:
    """Return what the host is at: its processors, its memory, the watched process; as many of them as there are columns for."""
    metrics = snapshot.metrics
    parts = [
        ("cpu", processors(metrics), "%"),
        ("memory", metrics.get("memory_percent"), "%"),
        *((("process cpu", metrics.get("cpu"), "%"), ("process memory", metrics.get("proc.memory.rssMB"), " MiB")) if process else ()),
    ]
    line = "host"
    for text in [f"  {label} {value:.1f}{unit}" for label, value, unit in parts if value is not None]:
        if len(line) + len(text) > width:
            break
        line += text
    return line


def block(value: float, top: float, marks: str = BLOCKS) -> str:
    """Return the mark of a value between 0 and ``top``: the first for the least, the last for the greatest."""
    return marks[min(len(marks) - 1, max(0, int(value / top * len(marks)))) if top > 0 else 0]


def bar(percent: float, columns: int, marks: str = BAR) -> str:
    """Return a share as a bar of so many columns, of two marks: what is full, and what is empty."""
    filled = round(min(max(percent, 0.0), 100.0) / 100 * columns)
    return marks[0] * filled + marks[1] * (columns - filled)


def _bar(percent: float | None, columns: int) -> str:
    return "-" if percent is None else bar(percent, columns) + " " * bool(columns) + f"{percent:5.1f}%"


def _memory(one: Vitals, shape: Shape) -> str:
    if one.memory_used is None or not (shape.amount or one.memory_percent is None):
        return _bar(one.memory_percent, shape.bar)
    amount = f"{one.memory_used / GIB:.1f}" + (f"/{one.memory_total / GIB:.0f}" if one.memory_total else "") + " GiB"
    return amount if one.memory_percent is None else f"{_bar(one.memory_percent, shape.bar)} {amount}"


def _power(one: Vitals) -> str:
    if one.power is None:
        return "-"
    return f"{one.power:.0f} W" if one.power_limit is None else f"{one.power:.0f}/{one.power_limit:.0f} W"
