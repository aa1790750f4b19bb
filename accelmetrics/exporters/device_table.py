"""A table of the devices: a row for each, with bars, and a line for the host; and what bars are made of."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from accelmetrics.schemas.text import GIB, of_limit, printable
from accelmetrics.schemas.vitals import FULL_MEMORY, HOT, Vitals, processors, silent_sources, vitals

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from accelmetrics.schemas.snapshot import Snapshot

BLOCKS, BAR = "▁▂▃▄▅▆▇█", "█░"
WIDE = 200
"""Columns of a table whose width is not given."""
SPACE = 2
"""Columns between two columns."""
WARNED = "bold red"


SHAPES: tuple[tuple[int, bool, tuple[str, ...]], ...] = (
    (10, True, ()),
    (6, True, ()),
    (6, True, ("Name",)),
    (4, False, ("Name",)),
    (0, False, ("Name",)),
    (0, False, ("Name", "Power")),
    (0, False, ("Name", "Power", "Temp")),
    (0, False, ("Name", "Power", "Temp", "Memory")),
)
"""Columns of a bar, whether memory is shown as an amount too, and the columns that are left out. The first that fits is taken."""


def table(snapshot: Snapshot, width: int = WIDE) -> RenderableType:
    """Lay out a snapshot as something that rich draws, in so many columns."""
    from rich.console import Group
    from rich.text import Text

    devices, silent = vitals(snapshot), silent_sources(snapshot)
    parts: list[RenderableType] = [Text(_heading(snapshot, width), style="bold", no_wrap=True, overflow="crop")]
    parts += [_drawn(devices, width)] if devices else []
    parts += [Text(f"{status.name}  {status.status}: {status.detail}", "red", no_wrap=True, overflow="ellipsis") for status in silent]
    parts += [] if devices or silent else [Text("no device was found")]
    return Group(*parts, Text(host_line(snapshot, width), no_wrap=True, overflow="ellipsis"))


def _drawn(devices: Sequence[Vitals], width: int) -> RenderableType:
    """Draw the devices in the richest shape that fits."""
    from rich.table import Table
    from rich.text import Text

    for columns, amount, left_out in SHAPES:
        rows = [_cells(one, columns, amount, left_out) for one in devices]
        taken = sum(SPACE + max(len(heading), *(row[heading].cell_len for row in rows)) for heading in rows[0])
        if taken - SPACE <= width:  # behind the last column there need be no space
            break
    else:
        return Text("too narrow", no_wrap=True, overflow="ellipsis")
    drawn = Table(*rows[0], box=None, padding=(0, SPACE, 0, 0), pad_edge=False, header_style="bold")
    for column in drawn.columns:
        column.no_wrap = True
    for row in rows:
        drawn.add_row(*row.values())
    return drawn


def _cells(one: Vitals, columns: int, amount: bool, left_out: Collection[str]) -> dict[str, Text]:
    """Return a device's row by the headings of its columns; one that says nothing says why."""
    from rich.text import Text

    memory = _bar(one.memory_percent, columns)
    if one.memory_used is not None and (amount or one.memory_percent is None):
        used = f"{of_limit(one.memory_used, one.memory_total, GIB, 1)} GiB"
        memory = used if one.memory_percent is None else f"{memory} {used}"
    full = one.memory_percent is not None and one.memory_percent > FULL_MEMORY
    hot = one.temperature is not None and one.temperature > HOT
    cells = {
        "Device": Text(one.label),
        "Name": Text(one.short_name),
        "Util": Text(_bar(one.utilization, columns)),
        "Memory": Text(memory, WARNED if full else ""),
        "Power": Text("-" if one.power is None else f"{of_limit(one.power, one.power_limit)} W"),
        "Temp": Text("-" if one.temperature is None else f"{one.temperature:.0f}°C", WARNED if hot else ""),
    }
    if one.why:
        cells.update({"Util": Text(one.why, "red"), "Memory": Text(), "Power": Text(), "Temp": Text()})
    return {heading: cell for heading, cell in cells.items() if heading not in left_out}


def _heading(snapshot: Snapshot, width: int) -> str:
    """Head the table with the host and the time, or as much of both as fits: the end of a number is never missing."""
    from rich.cells import cell_len

    host, moment = printable(snapshot.hostname), f"{snapshot.timestamp[:19]}Z"
    clock = moment.partition("T")[2]
    return next((text for text in (f"{host}  {moment}", f"{host}  {clock}", clock) if cell_len(text) <= width), "")


def host_line(snapshot: Snapshot, width: int = WIDE) -> str:
    """Return what the host is at: its processors, its memory, the watched process; as many of them as there are columns for."""
    metrics = snapshot.metrics
    parts = [
        ("cpu", processors(metrics), "%"),
        ("memory", metrics.get("memory_percent"), "%"),
        ("process cpu", metrics.get("cpu"), "%"),
        ("process memory", metrics.get("proc.memory.rssMB"), " MiB"),
    ]
    line = "host"
    for text in [f"  {label} {value:.1f}{unit}" for label, value, unit in parts if value is not None]:
        if len(line) + len(text) > width:
            break
        line += text
    return line


def block(value: float, top: float, marks: str = BLOCKS) -> str:
    """Return the mark of a value between 0 and ``top``: the first for the least, the last for the greatest."""
    return marks[min(len(marks) - 1, int(min(1.0, max(0.0, value / top)) * len(marks)))]


def bar(percent: float, columns: int, marks: str = BAR) -> str:
    """Return a share as a bar of so many columns, of two marks: what is full, and what is empty."""
    filled = round(min(max(percent, 0.0), 100.0) / 100 * columns)
    return marks[0] * filled + marks[1] * (columns - filled)


def _bar(percent: float | None, columns: int) -> str:
    return "-" if percent is None else bar(percent, columns) + " " * bool(columns) + f"{percent:5.1f}%"
