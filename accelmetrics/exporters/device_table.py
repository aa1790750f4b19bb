"""The live table: a row for each device with bars and a short history, and a line for the host."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from accelmetrics.schemas.vitals import Vitals, printable, processors, vitals

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from accelmetrics.schemas.snapshot import Snapshot

BLOCKS = "▁▂▃▄▅▆▇█"
GAP = " "
"""Of the history: no value, which is not the same as 0."""
GIB = 2.0**30
KEPT = 120
"""Readings that the history holds."""
SHORTEST, USUAL = 8, 16
"""Columns below which a history says nothing, and those that bars make room for."""
MEASURES = ("Util", "Memory", "Power", "Temp")
WIDE = 200
"""Columns of a table whose width is not given."""
SPACE = 2
"""Columns between two columns."""
HOT = "bold red"
AROUND, LEAST = 3, 7
"""Rows that are no device's: the heading, the columns', the host's; and as many as there must be for all of them, where not every
device has a row."""


class Limits(NamedTuple):
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
        name: Whether the product name is shown.
        amount: Whether memory is shown as an amount too.
        left_out: Columns that are not.
    """

    bar: int
    name: bool
    amount: bool
    left_out: tuple[str, ...] = ()


SHAPES = (
    Shape(10, True, True),
    Shape(6, True, True),
    Shape(6, False, True),
    Shape(4, False, False),
    Shape(0, False, False),
    Shape(0, False, False, ("Power",)),
    Shape(0, False, False, ("Power", "Temp")),
    Shape(0, False, False, ("Power", "Temp", "Memory")),
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
        """The newest of a device's history, as blocks from 0 to 100 %."""
        newest = list(self._values.get(device, ()))[-width:]
        return "".join(GAP if value is None else BLOCKS[min(7, max(0, int(value / 100 * 8)))] for value in newest)


def table(
    snapshot: Snapshot,
    limits: Limits | None = None,
    trail: Trail | None = None,
    *,
    width: int = WIDE,
    rows: int | None = None,
    process: bool = True,
) -> RenderableType:
    """A snapshot as something that rich draws.

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

    devices = vitals(snapshot)
    around, most = _room(len(devices), rows)
    shown = devices[:most]
    left = len(devices) - len(shown)
    parts: list[RenderableType] = [_drawn(shown, limits or Limits(), trail, width, around > 0)] if shown else []
    if around == AROUND:
        parts.insert(0, Text(_heading(snapshot, width), style="bold", no_wrap=True, overflow="crop"))
    if not devices:
        parts.append(Text("no device was found"))
    elif left and (rows is None or around + most < rows):
        parts.append(Text(f"and {left} more"))
    if around > 1:
        parts.append(Text(host_line(snapshot, process, width), no_wrap=True, overflow="ellipsis"))
    return Group(*parts)


def height(snapshot: Snapshot) -> int:
    """Rows that a table of this snapshot would take."""
    return AROUND + max(1, len(snapshot.identities))


def _room(devices: int, rows: int | None) -> tuple[int, int]:
    """How many rows are no device's, and how many devices are shown."""
    if rows is None:
        return AROUND, devices
    fitting = [around for around in range(AROUND, -1, -1) if around + max(1, devices) <= rows]
    if fitting:
        return fitting[0], devices
    around = AROUND if rows >= LEAST else min(1, rows // 3)
    return around, max(1, rows - around - (rows - around > 1))


def _drawn(shown: Sequence[Vitals], limits: Limits, trail: Trail | None, width: int, headed: bool) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    shape, room = _fitting(shown, width, USUAL if trail else 0)
    if room < 0:
        return Text("too narrow", no_wrap=True, overflow="ellipsis")
    drawn = Table(box=None, padding=(0, SPACE, 0, 0), pad_edge=False, header_style="bold", show_header=headed)
    for heading in _headings(shape, bool(trail) and room >= SHORTEST):
        drawn.add_column(heading, no_wrap=True)
    for one in shown:
        history = [Text(trail.line(one.key, room))] if trail and room >= SHORTEST else []
        drawn.add_row(one.label, *([one.short_name] if shape.name else []), *_cells(one, shape, limits), *history)
    return drawn


def _heading(snapshot: Snapshot, width: int) -> str:
    """The host and the time, or as much of both as fits: the end of a number is never missing."""
    host, moment = printable(snapshot.hostname), f"{snapshot.timestamp[:19]}Z"
    clock = moment.partition("T")[2]
    return next((text for text in (f"{host}  {moment}", f"{host}  {clock}", clock) if _columns(text) <= width), "")


def _columns(text: str) -> int:
    from rich.cells import cell_len

    return cell_len(text)


def host_line(snapshot: Snapshot, process: bool = True, width: int = WIDE) -> str:
    """What the host is at: its processors, its memory, the watched process; as many of them as there are columns for."""
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


def _headings(shape: Shape, history: bool) -> list[str]:
    measures = [heading for heading in MEASURES if heading not in shape.left_out]
    return ["Device", *(["Name"] if shape.name else []), *measures, *(["History"] if history else [])]


def _fitting(devices: Sequence[Vitals], width: int, wanted: int) -> tuple[Shape, int]:
    """The richest shape that leaves so many columns, or else any; and the columns that it leaves for one more, below 0: none fits."""
    rooms = [(shape, width - sum(widest + SPACE for widest in _widths(devices, shape))) for shape in SHAPES]
    fitting = [(shape, room) for shape, room in rooms if room >= -SPACE]  # behind the last column there need be no space
    leaving = [(shape, room) for shape, room in fitting if room >= (wanted or -SPACE) and not shape.left_out]
    for shape, room in (*leaving, *fitting):
        return shape, max(0, room)
    return SHAPES[-1], -1


def _widths(devices: Sequence[Vitals], shape: Shape) -> list[int]:
    rows = [_headings(shape, False)]
    for one in devices:
        cells = [str(cell) for cell in _cells(one, shape, Limits())]
        rows.append([one.label, *([one.short_name] if shape.name else []), *cells])
    return [max(map(_columns, column)) for column in zip(*rows, strict=True)]


def _cells(one: Vitals, shape: Shape, limits: Limits) -> Sequence[Text]:
    from rich.text import Text

    if one.why:
        return [Text(one.why, style="red"), *(Text() for heading in MEASURES[1:] if heading not in shape.left_out)]
    hot = one.temperature is not None and one.temperature > limits.temperature
    full = one.memory_percent is not None and one.memory_percent > limits.memory
    cells = (
        Text(_bar(one.utilization, shape.bar)),
        Text(_memory(one, shape), style=HOT if full else ""),
        Text(_power(one)),
        Text("-" if one.temperature is None else f"{one.temperature:.0f}°C", style=HOT if hot else ""),
    )
    return [cell for heading, cell in zip(MEASURES, cells, strict=True) if heading not in shape.left_out]


def _bar(percent: float | None, columns: int) -> str:
    if percent is None:
        return "-"
    filled = round(min(max(percent, 0.0), 100.0) / 100 * columns)
    return "█" * filled + "░" * (columns - filled) + " " * bool(columns) + f"{percent:5.1f}%"


def _memory(one: Vitals, shape: Shape) -> str:
    if one.memory_used is None or not (shape.amount or one.memory_percent is None):
        return _bar(one.memory_percent, shape.bar)
    amount = f"{one.memory_used / GIB:.1f}" + (f"/{one.memory_total / GIB:.0f}" if one.memory_total else "") + " GiB"
    return amount if one.memory_percent is None else f"{_bar(one.memory_percent, shape.bar)} {amount}"


def _power(one: Vitals) -> str:
    if one.power is None:
        return "-"
    return f"{one.power:.0f} W" if one.power_limit is None else f"{one.power:.0f}/{one.power_limit:.0f} W"
