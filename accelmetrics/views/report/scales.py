"""Axes: moments to draw lines at, and the unit in which a metric is shown."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from math import ceil, floor

MOMENTS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)
"""Seconds between lines of a time axis; whole days beyond."""
DAY = 86400
BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
DECIMAL = ("", "k", "M", "G", "T")
SHOWN = {"Cel": "°C", "By": "B", "By/s": "B/s", "us": "µs", "1": ""}


def shown_unit(unit: str, largest: float) -> tuple[str, float]:
    """Return the unit in which values up to ``largest`` are best read, empty for plain numbers, and what is one of it in ``unit``."""
    if unit == "By":
        power = _power(largest, 1024.0, len(BINARY))
        return BINARY[power], 1024.0**power
    if unit in {"By/s", "J", "Hz"}:
        power = _power(largest, 1000.0, len(DECIMAL))
        return DECIMAL[power] + SHOWN.get(unit, unit), 1000.0**power
    return SHOWN.get(unit, unit), 1.0


def time_ticks(begin: float, end: float, most: int = 7) -> list[float]:
    """Return moments within a stretch of time, at whole minutes, hours or days, or seconds where it is short."""
    least = (end - begin) / most
    step = next((float(step) for step in MOMENTS if step >= least), None) or ceil(least / DAY) * float(DAY)
    return [position * step for position in range(ceil(begin / step), floor(end / step) + 1)]


def moment(seconds: float, among: Sequence[float]) -> str:
    """Return a tick of a time axis in UTC: the day where it begins or where ticks are days apart, else the time of day."""
    when = datetime.fromtimestamp(seconds, timezone.utc)
    step = among[1] - among[0] if len(among) > 1 else DAY
    if seconds % DAY == 0:
        return f"{when:%m-%d}"
    return f"{when:%H:%M}" if step >= 60 else f"{when:%H:%M:%S}"


def utc(seconds: float) -> str:
    """Return a moment in full: ``2025-01-31 12:30:05 UTC``."""
    return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%d %H:%M:%S} UTC"


def lasting(seconds: float, among: Sequence[float] = ()) -> str:
    """Return a duration, or a tick of an axis of durations: ``1:30:00``, ``45 s``."""
    if (among and max(map(abs, among)) < 60) or (not among and abs(seconds) < 60):
        return f"{seconds:.3g} s"
    sign, whole = "-" if seconds < 0 else "", round(abs(seconds))
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{sign}{hours}:{minutes:02}:{whole % 60:02}"


def plain(value: float) -> str:
    """Return a number as axes and readouts have it: up to four digits, with what stands for thousands of thousands."""
    if value and not 1e-4 <= abs(value) < 1e5:
        return f"{value:.3g}"
    text = f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return "0" if text == "-0" else text


def _power(largest: float, base: float, most: int) -> int:
    power = 0
    while power < most - 1 and largest >= base ** (power + 1):
        power += 1
    return power
