"""The line that ``accelmetrics run`` keeps below the command: ``GPU0 (GB10): 93% │ 45.2/141GB │ 27W │ 48°C``.

GB are GiB here, as every vendor's tools have them.
"""

from __future__ import annotations

import time
import unicodedata
from typing import TYPE_CHECKING

from accelmetrics.schemas.vitals import Vitals, processors, vitals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from accelmetrics.schemas.snapshot import Snapshot

GIB = 2.0**30
BETWEEN = " │ "
APART = "   "
TURN = 3.0
"""Seconds for which devices are shown, where there are more than fit."""


def live_line(snapshot: Snapshot, columns: int, now: float | None = None) -> str:
    """A snapshot within so many columns: its devices, without their names and in turns where they do not all fit.

    Where there is no device it is the host's.

    Args:
        snapshot: The reading.
        columns: How many there are.
        now: Seconds on the clock that turns are taken by.
    """
    devices = [one for one in vitals(snapshot) if one.whole]
    pages = _pages([_device(one, f"{one.label} ({one.short_name})") for one in devices] or [_host(snapshot)], columns)
    if len(pages) > 1:
        pages = _pages([_device(one, one.label) for one in devices], columns)
    moment = time.monotonic() if now is None else now
    return clipped_to(pages[int(moment / TURN) % len(pages)], columns)


def clipped_to(text: str, columns: int) -> str:
    """A text on so many columns, spaces and all."""
    if cells(text) <= columns:
        return text
    while cells(text) >= columns and len(text) > 1:
        text = text[:-1]
    return text + "…"


def cells(text: str) -> int:
    """Columns that a text takes: two for each of the wide characters of East Asia, none for what is put over another one."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(one) else 1 + (unicodedata.east_asian_width(one) in "WF") for one in text)


def _pages(texts: Sequence[str], columns: int) -> list[str]:
    pages = [texts[0]]
    for text in texts[1:]:
        if cells(pages[-1]) + len(APART) + cells(text) <= columns:
            pages[-1] += APART + text
        else:
            pages.append(text)
    return pages


def _device(one: Vitals, title: str) -> str:
    parts = [
        None if one.utilization is None else f"{one.utilization:.0f}%",
        _memory(one),
        None if one.power is None else f"{one.power:.0f}W",
        None if one.temperature is None else f"{one.temperature:.0f}°C",
    ]
    return f"{title}: {BETWEEN.join(part for part in parts if part is not None) or one.why or '-'}"


def _memory(one: Vitals) -> str | None:
    if one.memory_used is None:
        return None if one.memory_percent is None else f"{one.memory_percent:.0f}% memory"
    return f"{one.memory_used / GIB:.1f}" + (f"/{one.memory_total / GIB:.0f}" if one.memory_total else "") + "GB"


def _host(snapshot: Snapshot) -> str:
    metrics = snapshot.metrics
    measures = (
        ("CPU", processors(metrics), "%"),
        ("memory", metrics.get("memory_percent"), "%"),
        ("command", metrics.get("proc.memory.rssMB"), " MiB"),
    )
    return BETWEEN.join(f"{label} {value:.0f}{unit}" for label, value, unit in measures if value is not None)
