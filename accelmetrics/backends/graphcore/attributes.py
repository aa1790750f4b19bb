"""What each metric is read from: attributes of an IPU, printed as text with a unit.

The same attribute is printed with a space before the unit or without (``17.8 C``, ``20MHz``). ``N/A`` is how Graphcore says
that a board has no such sensor. What stands in another unit than the documented one is not guessed at.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from accelmetrics.backends.contract import Number
from accelmetrics.backends.graphcore.library import Attributes
from accelmetrics.schemas.reasons import Reason, Unavailable

Value = Number | Unavailable

USER = "user process id"
"""The attribute that an idle IPU does not have."""

_VALUE = re.compile(r"([+-]?\d+(?:\.\d*)?(?:e[+-]?\d+)?)\s*(\D.*)?", re.IGNORECASE | re.ASCII)
_ABSENT = re.compile(r"(n/?a|none|unknown|not (available|supported)|-+)?", re.IGNORECASE | re.ASCII)
_NOT_FINITE = re.compile(r"[+-]?(nan|inf(inity)?)\b.*", re.IGNORECASE | re.ASCII)
_LONGEST = 120
"""Characters: no value is longer."""


class Attribute(NamedTuple):
    """One attribute that is a metric.

    Attributes:
        names: Under which names the value is given: what W&B's collector called it, and what W&B's documentation does.
        attribute: What Graphcore calls it.
        unit: The unit that is printed.
        low: The smallest value that is possible.
        high: The largest.
        of_program: Whether it is about the program that runs, and missing while none does.
    """

    names: tuple[str, ...]
    attribute: str
    unit: str
    low: float
    high: float
    of_program: bool = False


ATTRIBUTES = (
    Attribute(("average board temp (C)",), "average board temp", "C", -50, 200),
    Attribute(("average die temp (C)",), "average die temp", "C", -50, 200),
    Attribute(("clock (MHz)",), "clock", "MHz", 0, 10_000),
    Attribute(("ipu power (W)",), "ipu power", "W", 0, 4_000),
    Attribute(("total board power (W)",), "total board power", "W", 0, 20_000),
    Attribute(("ipu utilisation (%)",), "ipu utilisation", "%", 0, 100, of_program=True),
    Attribute(("ipu utilisation (session) (%)",), "ipu utilisation (session)", "%", 0, 100, of_program=True),
    Attribute(("link speed (GT/s)", "speed (GT/s)"), "link speed", "GT/s", 0, 1_000),
)
NAMES = tuple(name for attribute in ATTRIBUTES for name in attribute.names)


def read_attributes(attributes: Attributes) -> dict[str, Value]:
    """Every metric of one IPU under all of its names: its value, or why there is none."""
    idle = USER not in attributes
    return {name: value for row in ATTRIBUTES for value in (_read(attributes, row, idle),) for name in row.names}


def _read(attributes: Attributes, row: Attribute, idle: bool) -> Value:
    printed = attributes.get(row.attribute)
    if printed is None and idle and row.of_program:
        return Unavailable(Reason.NOT_IN_USE, f'no program runs on this IPU, and it has no "{row.attribute}"')
    if printed is None:
        return Unavailable(Reason.NOT_SUPPORTED, f'gcipuinfo gives no "{row.attribute}" for this IPU')
    return parse(printed, row.unit, row.low, row.high)


def parse(printed: object, unit: str, low: float, high: float) -> Value:
    """A number with its unit.

    Args:
        printed: What the attribute says.
        unit: The unit that it must have.
        low: The smallest value that is possible.
        high: The largest.
    """
    text = printed.strip() if isinstance(printed, str) else ""
    if not isinstance(printed, str) or len(text) > _LONGEST:
        return Unavailable(Reason.PARSE_ERROR, f"no number: {str(printed)[:_LONGEST]}")
    if _ABSENT.fullmatch(text):
        return Unavailable(Reason.NOT_SUPPORTED, text or "empty")
    if _NOT_FINITE.fullmatch(text):
        return Unavailable(Reason.INVALID_VALUE, text)
    match = _VALUE.fullmatch(text)
    if match is None or (match.group(2) or "").removeprefix("°") != unit:
        return Unavailable(Reason.PARSE_ERROR, f"no number of {unit}: {text}")
    value = _number(match.group(1))
    return value if math.isfinite(value) and low <= value <= high else Unavailable(Reason.INVALID_VALUE, text)


def _number(digits: str) -> Number:
    return int(digits) if digits.lstrip("+-").isdecimal() else float(digits)
