"""The live table: a row for each device with bars and a short history, and a line for the host."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from accelmetrics.schemas.vitals import Vitals, processors, vitals

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
WIDE = 200
"""Columns where nobody says how many there are."""
SPACE = 2
"""Columns between two columns."""
HOT = "bold red"


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
    """

    bar: int
    name: bool
    amount: bool


SHAPES = (Shape(10, True, True), Shape(6, True, True), Shape(6, False, True), Shape(4, False, False), Shape(0, False, False))
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
        rows: Devices that there is room for; the others are counted.
        process: Whether the watched process stands in the host's line.
    """
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    limits = limits or Limits()
    devices = vitals(snapshot)
    shown = devices if rows is None else devices[: max(1, rows)]
    shape, room = _fitting(shown, width, USUAL if trail else 0)
    drawn = Table(box=None, padding=(0, SPACE, 0, 0), pad_edge=False, header_style="bold")
    for heading in _headings(shape, bool(trail) and room >= SHORTEST):
        drawn.add_column(heading, no_wrap=True)
    for one in shown:
        history = [Text(trail.line(one.key, room))] if trail and room >= SHORTEST else []
        drawn.add_row(one.label, *([one.short_name] if shape.name else []), *_cells(one, shape, limits), *history)
    left = len(devices) - len(shown)
    return Group(
        Text(f"{snapshot.hostname}  {snapshot.timestamp[:19]}Z", style="bold", no_wrap=True, overflow="crop"),
        *([drawn] if shown else [Text("no device was found")]),
        *([Text(f"and {left} more")] if left else []),
        Text(host_line(snapshot, process), no_wrap=True, overflow="ellipsis"),
    )


def host_line(snapshot: Snapshot, process: bool = True) -> str:
    """What the host is at: its processors, its memory, the watched process."""
    metrics = snapshot.metrics
    parts = [
        ("cpu", processors(metrics), "%"),
        ("memory", metrics.get("memory_percent"), "%"),
        *((("process cpu", metrics.get("cpu"), "%"), ("process memory", metrics.get("proc.memory.rssMB"), " MiB")) if process else ()),
    ]
    return "host  " + "  ".join(f"{label} {value:.1f}{unit}" for label, value, unit in parts if value is not None)


def _headings(shape: Shape, history: bool) -> list[str]:
    return ["Device", *(["Name"] if shape.name else []), "Util", "Memory", "Power", "Temp", *(["History"] if history else [])]


def _fitting(devices: Sequence[Vitals], width: int, wanted: int) -> tuple[Shape, int]:
    """The richest shape that leaves so many columns, or else any; and the columns that it leaves."""
    rooms = [(shape, width - sum(widest + SPACE for widest in _widths(devices, shape))) for shape in SHAPES]
    fitting = [(shape, room) for shape, room in rooms if room >= wanted] or [(shape, room) for shape, room in rooms if room >= 0]
    return fitting[0] if fitting else (SHAPES[-1], 0)


def _widths(devices: Sequence[Vitals], shape: Shape) -> list[int]:
    rows = [_headings(shape, False)]
    for one in devices:
        cells = [str(cell) for cell in _cells(one, shape, Limits())]
        rows.append([one.label, *([one.short_name] if shape.name else []), *cells])
    return [max(map(len, column)) for column in zip(*rows, strict=True)]


def _cells(one: Vitals, shape: Shape, limits: Limits) -> Sequence[Text]:
    from rich.text import Text

    if one.why:
        return (Text(one.why, style="red"), Text(), Text(), Text())
    hot = one.temperature is not None and one.temperature > limits.temperature
    full = one.memory_percent is not None and one.memory_percent > limits.memory
    return (
        Text(_bar(one.utilization, shape.bar)),
        Text(_memory(one, shape), style=HOT if full else ""),
        Text(_power(one)),
        Text("-" if one.temperature is None else f"{one.temperature:.0f}°C", style=HOT if hot else ""),
    )


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
