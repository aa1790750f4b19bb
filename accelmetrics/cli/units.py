"""Values as people read them."""

from __future__ import annotations

LABELS = {"1": "", "Cel": "°C", "MiBy": "MiB", "GiBy": "GiB", "us": "µs"}
"""Units that are written otherwise than the catalogue spells them."""
SCALED = {"By": "", "By/s": "/s"}
"""Units that are shown with a prefix, and what stands behind it."""
PREFIXES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def quantity(value: float, unit: str) -> str:
    """A value with its unit: ``300.2 W``, ``79.6 GiB``."""
    if unit in SCALED:
        return _scaled(value) + SCALED[unit]
    return f"{number(value)} {LABELS.get(unit, unit)}".rstrip()


def number(value: float) -> str:
    """A number: whole ones and large ones whole, others with two places, small ones with two figures."""
    if value == int(value) or abs(value) >= 10_000:
        return f"{value:.0f}"
    return f"{value:.2g}" if abs(value) < 0.1 else f"{value:.2f}".rstrip("0").rstrip(".")


def _scaled(value: float) -> str:
    step = 0
    while abs(value) >= 1024 and step < len(PREFIXES) - 1:
        value /= 1024
        step += 1
    return f"{number(round(value, 1))} {PREFIXES[step]}"


def seconds(value: float | None) -> str:
    """A duration, short."""
    if value is None:
        return "unknown"
    return f"{value * 1000:.3g} ms" if value < 1 else f"{value:.3g} s"
