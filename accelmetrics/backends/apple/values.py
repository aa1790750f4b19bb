"""What the tools print, as numbers or as the reason why there is none.

The tools print 0 for what they could not read: a temperature without sensors, a clock without its table, the power of a
part whose counter is not there. Where 0 cannot be a measurement it is missing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from accelmetrics.backends.contract import Number
from accelmetrics.schemas.reasons import Reason, Unavailable

Value = Number | Unavailable
Values = dict[str, Value]
Path = tuple[str | int, ...]
Convert = Callable[[Number], Value]

SLACK = 0.001
"""By how much a ratio of single-precision numbers may exceed 1."""


def look_up(document: object, paths: Sequence[Path]) -> object:
    """The first of several places in nested dictionaries and lists that has something; None when none has."""
    for path in paths:
        found = document
        for step in path:
            found = _step(found, step)
        if found is not None:
            return found
    return None


def _step(where: object, step: str | int) -> object:
    if isinstance(step, int):
        return where[step] if isinstance(where, list) and len(where) > step else None
    return where.get(step) if isinstance(where, Mapping) else None


def number(found: object, what: str, convert: Convert) -> Value:
    """A finite number, made into a metric's value.

    Args:
        found: What stands there.
        what: What was looked for, in words.
        convert: From the printed unit to the metric's.
    """
    if found is None:
        return Unavailable(Reason.NOT_SUPPORTED, f"{what} is not given")
    if isinstance(found, bool) or not isinstance(found, (int, float)):
        return Unavailable(Reason.PARSE_ERROR, f"{what} is no number: {str(found)[:80]}")
    if abs(found) > 1e300 or math.isnan(found):
        return Unavailable(Reason.INVALID_VALUE, f"{what} is no finite number")
    return convert(found)


def within(low: float, high: float, zero: str = "", factor: float = 1.0, reason: Reason = Reason.NOT_SUPPORTED) -> Convert:
    """A conversion that lets pass what is possible.

    Args:
        low: The smallest value, in the printed unit.
        high: The largest.
        zero: Why 0 is no measurement; empty where it may be one.
        factor: What the printed number is multiplied by.
        reason: Of a 0 that is none.
    """

    def convert(printed: Number) -> Value:
        if printed == 0 and zero:
            return Unavailable(reason, zero)
        if not low <= printed <= high:
            return Unavailable(Reason.INVALID_VALUE, f"{printed}")
        return printed if factor == 1.0 else printed * factor

    return convert


def percent_of_ratio(printed: Number) -> Value:
    """A ratio from 0 to 1, in percent."""
    if not 0 <= printed <= 1 + SLACK:
        return Unavailable(Reason.INVALID_VALUE, f"a ratio of {printed}")
    return min(100.0, 100.0 * printed)


def whole(printed: Number) -> Value:
    """Bytes."""
    if printed < 0 or printed > 2**60 or printed != int(printed):
        return Unavailable(Reason.INVALID_VALUE, f"{printed} bytes")
    return int(printed)


def share(part: Value, of: Value) -> Value:
    """One amount in percent of another that holds it."""
    if isinstance(part, Unavailable):
        return part
    if isinstance(of, Unavailable):
        return of
    if not 0 <= part <= of or of == 0:
        return Unavailable(Reason.INVALID_VALUE, f"{part} of {of}")
    return 100.0 * part / of


watts = within(0, 1000)
milliwatts = within(0, 1e6, factor=0.001)
celsius = within(-50, 150, zero="0 °C is printed where no sensor was read")
