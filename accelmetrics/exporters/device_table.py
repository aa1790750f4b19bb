"""The live table: a row for each device with bars and a short history, and a line for the host."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from accelmetrics.schemas.vitals import Vitals, vitals

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from accelmetrics.schemas.snapshot import Snapshot

BLOCKS = " ▁▂▃▄▅▆▇█"
BAR = 10
GIB = 2.0**30
HOST = (("cpu", "process cpu", "%"), ("memory_percent", "memory", "%"), ("proc.memory.rssMB", "process memory", " MiB"))
"""Of the host: the key, how it is called here, and its unit."""
HISTORY = 30
"""Readings that the short history shows."""


class Limits(NamedTuple):
    """From where on a value is drawn as hot.

    Attributes:
        temperature: Degrees Celsius.
        memory: Percent of the device's memory.
    """

    temperature: float = 80.0
    memory: float = 90.0


class Trail:
    """The last utilisations of each device."""

    def __init__(self) -> None:
        self._values: dict[str, deque[float]] = {}

    def add(self, snapshot: Snapshot) -> None:
        """Remember a reading."""
        for one in vitals(snapshot):
            if one.utilization is not None:
                self._values.setdefault(one.key, deque(maxlen=HISTORY)).append(one.utilization)

    def clear(self) -> None:
        """Forget everything."""
        self._values.clear()

    def line(self, device: str) -> str:
        """A device's history as a line of blocks."""
        return "".join(BLOCKS[min(8, int(value / 100 * 8.99))] for value in self._values.get(device, ()))


def table(snapshot: Snapshot, limits: Limits | None = None, trail: Trail | None = None) -> Table:
    """A snapshot as a table of rich's."""
    from rich import box
    from rich.table import Table

    limits = limits or Limits()
    drawn = Table(box=box.SIMPLE_HEAD, title=f"{snapshot.hostname}  {snapshot.timestamp[:19]}Z", title_justify="left", pad_edge=False)
    for heading in ("Device", "Name", "Util", "Memory", "Power", "Temp", *(["History"] if trail else [])):
        drawn.add_column(heading, no_wrap=True)
    for one in vitals(snapshot):
        history = [trail.line(one.key)] if trail else []
        drawn.add_row(one.key, one.name, *_cells(one, limits), *history)
    drawn.caption = host_line(snapshot)
    drawn.caption_justify = "left"
    return drawn


def host_line(snapshot: Snapshot) -> str:
    """What the host is at: CPU, memory, the watched process."""
    metrics = snapshot.metrics
    parts = [
        (key, label, unit)
        for key, label, unit in (
            ("cpu", "process cpu", "%"),
            ("memory_percent", "memory", "%"),
            ("proc.memory.rssMB", "process memory", " MiB"),
        )
        if key in metrics
    ]
    return "  ".join(f"{label} {metrics[key]:.1f}{unit}" for key, label, unit in parts)


def _cells(one: Vitals, limits: Limits) -> Sequence[Text | str]:
    from rich.text import Text

    if one.why:
        return (Text(one.why, style="red"), "", "", "")
    hot = one.temperature is not None and one.temperature > limits.temperature
    full = one.memory_percent is not None and one.memory_percent > limits.memory
    return (
        Text(_bar(one.utilization)),
        Text(_memory(one), style="red" if full else ""),
        Text(_power(one)),
        Text("-" if one.temperature is None else f"{one.temperature:.0f}°C", style="red" if hot else ""),
    )


def _bar(percent: float | None) -> str:
    if percent is None:
        return "-"
    filled = round(min(max(percent, 0.0), 100.0) / 100 * BAR)
    return f"{'█' * filled}{'░' * (BAR - filled)} {percent:5.1f}%"


def _memory(one: Vitals) -> str:
    amount = "" if one.memory_used is None else f" {one.memory_used / GIB:.1f}"
    whole = f"/{one.memory_total / GIB:.0f} GiB" if amount and one.memory_total else (" GiB" if amount else "")
    return _bar(one.memory_percent) + amount + whole


def _power(one: Vitals) -> str:
    if one.power is None:
        return "-"
    return f"{one.power:.0f} W" if one.power_limit is None else f"{one.power:.0f}/{one.power_limit:.0f} W"
