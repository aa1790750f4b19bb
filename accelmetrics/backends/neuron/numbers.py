"""Numbers as the tool and the driver write them, and names with their reasons."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from accelmetrics.backends.contract import Number
from accelmetrics.schemas.catalogue.neuron import HOST_MEMORY
from accelmetrics.schemas.reasons import Reason, Unavailable

Value = Number | Unavailable
"""A number, or why there is none."""
LARGEST = 2**63
"""What is at or above this was negative, or "none", before it became unsigned."""
JITTER = 5.0
"""Percent above 100 that come from the tool's period and its clock disagreeing; more is nonsense."""


class Readout(NamedTuple):
    """Values and reasons by name: what a unit comes to."""

    values: dict[str, Number]
    reasons: dict[str, Unavailable]

    def put(self, name: str, value: Value) -> None:
        """Note a value, or why it is missing."""
        if isinstance(value, Unavailable):
            self.reasons[name] = value
        else:
            self.values[name] = value


def number(raw: object, whole: bool = False) -> Value:
    """A number that may be one.

    Args:
        raw: What stands in the report.
        whole: Whether it counts something.
    """
    # Compared, never converted: an int of the report may be too large for a float. Neither infinity nor NaN is in the range.
    if isinstance(raw, bool) or not isinstance(raw, (int, float)) or not 0 <= raw < LARGEST:
        return Unavailable(Reason.INVALID_VALUE, f"the source answered {raw!r}"[:200])
    if whole and raw != int(raw):
        return Unavailable(Reason.INVALID_VALUE, f"the source answered {raw!r}, which is no count")
    return int(raw) if whole else raw


def total(values: Iterable[Value]) -> Value:
    """A sum, which is missing if one of its parts is."""
    added: Number = 0
    for value in values:
        if isinstance(value, Unavailable):
            return value
        added += value
    return added


def percent(value: Value) -> Value:
    """A share of time."""
    if isinstance(value, Unavailable) or value <= 100.0:
        return value
    return 100.0 if value <= 100.0 + JITTER else Unavailable(Reason.INVALID_VALUE, f"the source answered {value:g} %")


def failure(words: str) -> Unavailable:
    """A section's own error text as a reason."""
    return Unavailable(Reason.NO_PERMISSION if "permission denied" in words.lower() else Reason.DRIVER_ERROR, words)


def documented(readout: Readout) -> None:
    """Put the host's memory under the spelling of W&B's documentation as well."""
    for category in HOST_MEMORY:
        name, alias = f"trn.host_memory_usage.{category}", f"trn.host_total_memory_usage.{category}"
        found: Mapping[str, Value] = readout.values if name in readout.values else readout.reasons
        readout.put(alias, found[name])
