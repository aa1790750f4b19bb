"""Units as vendors write them, and conversion between those that measure the same."""

from __future__ import annotations

import math
import re
from functools import lru_cache

from accelmetrics.backends.contract import Number

_UNITS: dict[str, tuple[str, float]] = {
    **{"1": ("1", 1), "gt/s": ("gt/s", 1)},
    **{"ratio": ("ratio", 1), "%": ("ratio", 1e-2), "permille": ("ratio", 1e-3)},
    **{"kw": ("w", 1e3), "w": ("w", 1), "mw": ("w", 1e-3), "uw": ("w", 1e-6)},
    **{"kj": ("j", 1e3), "j": ("j", 1), "mj": ("j", 1e-3), "uj": ("j", 1e-6)},
    **{"c": ("c", 1), "cel": ("c", 1), "mc": ("c", 1e-3)},
    **{"ghz": ("hz", 1e9), "mhz": ("hz", 1e6), "khz": ("hz", 1e3), "hz": ("hz", 1)},
    **{"s": ("s", 1), "ms": ("s", 1e-3), "us": ("s", 1e-6), "ns": ("s", 1e-9)},
    # Every vendor's tool that prints MB of memory means 1,048,576 bytes.
    **dict.fromkeys(("b", "by", "byte", "bytes"), ("b", 1)),
    **{f"{prefix}{unit}": ("b", 1024**power) for power, prefix in enumerate("kmgt", 1) for unit in ("b", "ib", "iby")},
    **{f"{prefix}{unit}": ("b/s", 1000**power) for power, prefix in enumerate(("", *"kmg")) for unit in ("b/s", "by/s")},
    **{f"{prefix}ib/s": ("b/s", 1024**power) for power, prefix in enumerate("kmg", 1)},
    "mbit/s": ("b/s", 125_000),
}
"""By unit in lower case: the base unit of what is measured, and how many of that it is."""
PER_SECOND = {"j": "w", "s": "ratio", "b": "b/s", "1": "1"}
"""By a counter's base unit, the unit of its rise per second."""
_SPELLINGS = str.maketrans({"°": "", "℃": "C", "µ": "u", "μ": "u"})
_MULTIPLE = re.compile(r"(\d+(?:\.\d+)?)\s*(\D.*)", re.ASCII)


def convert(value: Number, unit: str, target: str) -> Number | None:
    """Convert a number to another unit; None where that measures something else, or is unknown."""
    source, wanted = _scale(unit), _scale(target)
    if source is None or wanted is None or source[0] != wanted[0]:
        return None
    up, down = source[1] / wanted[1], wanted[1] / source[1]
    # Whole factors are exact where their fractions are not.
    return value * _exact(up) if up >= 1 else value / _exact(down)


@lru_cache(maxsize=256)
def _scale(unit: str) -> tuple[str, float] | None:
    """Return the base unit of what a unit measures, and how many of that it is; ``0.01 C`` is a hundredth of a degree."""
    plain = unit.translate(_SPELLINGS).strip().lower()
    multiple = None if plain == "1" else _MULTIPLE.fullmatch(plain)
    measured = _UNITS.get(multiple[2] if multiple else plain)
    return (measured[0], measured[1] * float(multiple[1])) if measured and multiple else measured


def _exact(factor: float) -> Number:
    return round(factor) if math.isclose(factor, round(factor), rel_tol=1e-9) else factor


def base_unit(unit: str) -> str:
    """Return the base unit of what a unit measures; one that is unknown stays what it is."""
    measured = _scale(unit)
    return unit if measured is None else measured[0]
