"""Notebook output: HTML tables, escaped and of limited size, and pandas data frames."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from html import escape
from itertools import islice
from math import nan
from typing import TYPE_CHECKING, Any

from accelmetrics.schemas.errors import require
from accelmetrics.schemas.metric import device_key
from accelmetrics.schemas.snapshot import Snapshot
from accelmetrics.schemas.statistics import Energy, Summary
from accelmetrics.schemas.text import celsius, clipped, energy as energy_words, memory, percent, watts
from accelmetrics.schemas.vitals import MEMORY_USED, POWER, TEMPERATURE, UTILIZATION, first, vitals

if TYPE_CHECKING:
    import pandas

MOST_ROWS = 64
"""Most rows of a table. Further rows are only counted."""
LONGEST = 200
"""Most characters of a cell."""
NONE = "–"


def snapshot_html(snapshot: Snapshot) -> str:
    """Return a snapshot as an HTML table of its devices, followed by a table of the sources that could not be read."""
    rows = (
        (
            one.key,
            one.name,
            one.why or _cell(one.utilization, percent),
            _cell(one.memory_percent, percent) if one.memory_used is None else memory(one.memory_used, one.memory_total),
            _cell(one.power, partial(watts, limit=one.power_limit)),
            _cell(one.temperature, celsius),
        )
        for one in vitals(snapshot)
    )
    counts = f"{len(snapshot.metrics)} metrics, {len(snapshot.unavailable)} unavailable"
    head = ("device", "name", "utilization", "memory", "power", "temperature")
    text = _table(f"{snapshot.hostname} {snapshot.timestamp}: {counts}", head, rows, len(snapshot.identities))
    failed = [(status.name, status.status, status.detail) for status in snapshot.backends if status.status not in {"ok", "absent"}]
    return text + (_table("", ("source", "status", "why"), failed, len(failed)) if failed else "")


def window_html(title: str, summary: Mapping[str, Summary], energy: Mapping[str, Energy]) -> str:
    """Return a window's results as an HTML table of its devices."""
    devices = dict.fromkeys(part.device for part in map(device_key, summary) if part is not None and not part.process)
    head = ("device", "utilization mean", "memory max", "power mean", "power max", "temperature max", "energy")
    return _table(title, head, (_of_window(key, summary, energy) for key in devices), len(devices))


def frame(times: Sequence[float], columns: Mapping[str, Iterable[float | None]]) -> pandas.DataFrame:
    """Return numbers as a data frame, indexed by time (UTC, rounded to the microsecond). Missing values are NaN.

    Args:
        times: Seconds since 1970.
        columns: By name, a value for each time.

    Raises:
        MissingDependencyError: pandas is not installed.
    """
    found: Any = require("pandas", "pandas")
    index = found.to_datetime([round(moment * 1e6) for moment in times], unit="us", utc=True).rename("time")
    numbers = {name: array("d", [nan if value is None else value for value in values]) for name, values in columns.items()}
    return found.DataFrame(numbers, index=index, dtype="float64")


def _of_window(device: str, summary: Mapping[str, Summary], energy: Mapping[str, Energy]) -> tuple[str, ...]:
    utilization, held = first(summary, device, UTILIZATION), first(summary, device, MEMORY_USED)
    drawn, heat = first(summary, device, POWER), first(summary, device, TEMPERATURE)
    used = energy.get(device)
    return (
        device,
        _cell(utilization and utilization.mean, percent),
        _cell(held and held.max, memory),
        _cell(drawn and drawn.mean, watts),
        _cell(drawn and drawn.max, watts),
        _cell(heat and heat.max, celsius),
        _cell(used and used.joules, energy_words),
    )


def _cell(value: float | None, words: Callable[[float], str]) -> str:
    return NONE if value is None else words(value)


def _table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]], count: int) -> str:
    more = [(f"and {count - MOST_ROWS} more",)] if count > MOST_ROWS else []
    lines = [f"<caption>{escape(clipped(caption, LONGEST))}</caption>"] if caption else []
    for number, row in enumerate((head, *islice(rows, MOST_ROWS), *more)):
        kind = "td" if number else "th"
        lines += ["<tr>", *(f"<{kind}>{escape(clipped(cell, LONGEST))}</{kind}>" for cell in row), "</tr>"]
    return f"<table>{''.join(lines)}</table>"
