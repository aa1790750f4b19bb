"""One printed value as a number, or the reason why it is none."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from accelmetrics.backends.contract import Number
from accelmetrics.schemas.reasons import Reason, Unavailable

_NUMBER = re.compile(r"[+-]?\d+(\.\d*)?(e[+-]?\d+)?", re.IGNORECASE | re.ASCII)
_INTEGER = re.compile(r"[+-]?\d{1,30}", re.ASCII)
_MEGAHERTZ = re.compile(r"\(?\s*([+-]?\d+(?:\.\d*)?)\s*mhz\s*\)?", re.IGNORECASE | re.ASCII)
_CLOCK_LEVEL = re.compile(r"\w+\s*(\(.*mhz\s*\))", re.IGNORECASE | re.ASCII)
_ABSENT = re.compile(
    r"[\s\[\]()*-]*(n/?a\b.*|none|nan|unknown|unsupported|not (supported|available)\b.*|secondary die)?[\s\[\]()*-]*",
    re.IGNORECASE | re.ASCII,
)
GENERATIONS = {2.5: 1, 5: 2, 8: 3, 16: 4, 32: 5, 64: 6}
"""Of PCIe, by transfers per lane, in 1e9 a second."""
_LONGEST = 120
"""Characters: no value is longer, and longer ones are not worth matching."""


class Bounds(NamedTuple):
    """What is possible, both ends included. Anything else is a sentinel (65535, all ones) or a fault, never a measurement."""

    low: float
    high: float


def is_absent(value: object) -> bool:
    """Whether this is how the tool says that it has no value: ``N/A``, ``N/A (Secondary die)``, ``None``, nothing at all."""
    return value is None or (isinstance(value, str) and len(value) <= _LONGEST and _ABSENT.fullmatch(value) is not None)


def number(value: object) -> Number | Unavailable:
    """A plain number. Whole numbers stay ints. A reason stays what it is."""
    if isinstance(value, Unavailable):
        return value
    if is_absent(value):
        return Unavailable(Reason.NOT_SUPPORTED, quoted(value))
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return Unavailable(Reason.PARSE_ERROR, f"no number: {quoted(value)}")
    if isinstance(value, str):
        return _of_text(value)
    return _finite(value, value)


def _of_text(text: str) -> Number | Unavailable:
    if len(text) > _LONGEST:
        return Unavailable(Reason.PARSE_ERROR, f"no number: {quoted(text)}")
    if _INTEGER.fullmatch(text):
        return int(text)
    if _NUMBER.fullmatch(text) is None:
        return Unavailable(Reason.PARSE_ERROR, f"no number: {quoted(text)}")
    return _finite(float(text), text)


def _finite(value: Number, printed: object) -> Number | Unavailable:
    try:
        finite = math.isfinite(value)
    except OverflowError:  # an int beyond what a float holds
        finite = False
    return value if finite else Unavailable(Reason.INVALID_VALUE, quoted(printed))


def whole(value: object) -> Number | Unavailable:
    """A count: a number without a fraction."""
    found = number(value)
    if isinstance(found, float):
        return int(found) if found.is_integer() else Unavailable(Reason.PARSE_ERROR, f"no whole number: {quoted(value)}")
    return found


def rounded(factor: float) -> Callable[[object], Number | Unavailable]:
    """A conversion into another unit, in which there are no fractions."""

    def convert(value: object) -> Number | Unavailable:
        found = number(value)
        return found if isinstance(found, Unavailable) else round(found * factor)

    return convert


def pcie_generation(value: object, giga: float = 1) -> Number | Unavailable:
    """The generation of a PCIe speed.

    Args:
        value: Transfers per lane and second.
        giga: What 1e9 of them are in the value's unit.
    """
    speed = number(value)
    if isinstance(speed, Unavailable):
        return speed
    return GENERATIONS.get(speed / giga, Unavailable(Reason.INVALID_VALUE, f"a PCIe speed of {speed / giga:g} GT/s"))


def megahertz(value: object) -> Number | Unavailable:
    """A clock, printed as ``(800Mhz)``, ``800Mhz``, ``(132.Mhz)`` or ``1 (800Mhz)``; in whole MHz."""
    if is_absent(value):
        return Unavailable(Reason.NOT_SUPPORTED, quoted(value))
    text = str(value)[:_LONGEST]
    level = _CLOCK_LEVEL.fullmatch(text)
    match = _MEGAHERTZ.fullmatch(level.group(1) if level else text)
    found = _of_text(match.group(1)) if match else Unavailable(Reason.PARSE_ERROR, f"no clock: {quoted(value)}")
    return found if isinstance(found, Unavailable) else round(found)


def bounded(value: Number | Unavailable, bounds: Bounds) -> Number | Unavailable:
    """The value where it is possible."""
    if isinstance(value, Unavailable) or bounds.low <= value <= bounds.high:
        return value
    return Unavailable(Reason.INVALID_VALUE, quoted(value))


def first_present(
    card: Mapping[str, object], keys: Iterable[str], convert: Callable[[object], Number | Unavailable]
) -> Number | Unavailable | None:
    """The first of several keys that has a value; None when none is there at all.

    A key without a value (``N/A``) makes way for the next one. A value that is wrong does not: what a metric is read from
    must not change with the weather.
    """
    missing = None
    for key in keys:
        if key.lower() not in card:
            continue
        found = convert(card[key.lower()])
        if not isinstance(found, Unavailable) or found.reason != Reason.NOT_SUPPORTED:
            return found
        missing = missing or found
    return missing


def text(value: object) -> str:
    """A name or an identifier as printed; empty where the tool has none."""
    return "" if is_absent(value) or not isinstance(value, (str, int)) else str(value)


def quoted(value: object) -> str:
    """What was printed, for a reason's detail, cut to a sensible length."""
    printed = value if isinstance(value, str) else repr(value)
    return printed if len(printed) <= _LONGEST else f"{printed[:_LONGEST]}…"
