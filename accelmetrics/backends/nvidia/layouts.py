"""What follows from one pattern of answers to the fast calls: names, reasons, order. Worked out once per pattern."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from accelmetrics.backends.contract import Number
from accelmetrics.backends.nvidia import fields
from accelmetrics.backends.nvidia.calls import FAST, FAST_FIELDS, MEMORY, THROTTLE, Value
from accelmetrics.backends.nvidia.errors import field_unavailable, impossible, unavailable
from accelmetrics.backends.nvidia.slots import Unpack
from accelmetrics.schemas.reasons import Unavailable

MEMORY_NAMES = ("memoryAllocated", "memoryAllocatedBytes", "memoryTotalBytes", "memoryFreeBytes")
FIELD_NAMES = FAST_FIELDS.metrics
NAMES = (
    *("gpu", "memory", *MEMORY_NAMES, "temp", "powerWatts", "powerPercent"),
    *("smClock", "memoryClock", "graphicsClock", "performanceState", *FIELD_NAMES),
)
"""The fast metrics in the order in which they are computed; those of ``THROTTLE`` come in a block of their own."""
COUNTERS = FIELD_NAMES[1:]

_BOARD = ("temp", "powerWatts", "powerPercent")
_FUNCTIONS = {name: call.function for call in FAST for name in call.metrics} | {
    "memoryAllocated": MEMORY.function,
    "powerPercent": "nvmlDeviceGetPowerUsage",
}
_VALUES = [value for call in FAST for value in call.values]
_TOTAL, _FREE, _USED = 2, 3, 4
_WITH_POWER = {"powerWatts": ("powerWatts", "powerPercent")}

Pick = Callable[[Sequence[Number]], tuple[Number, ...]]
Reasons = dict[str, Unavailable]


class Layout(NamedTuple):
    """One pattern of answers.

    Attributes:
        unpack: Decodes the buffer with the types that the fields have.
        names: The metrics that are there.
        unavailable: Why the others are not.
        pick: Takes the values of ``names`` out of everything that was computed.
        narrow: Whether a counter is of a type whose all-ones is a small number.
        throttle: Whether the clocks-event reasons are there.
        board_names: Those of ``names`` that are repeated for the watched process.
        board: Takes their values out of the picked ones.
    """

    unpack: Unpack
    names: tuple[str, ...]
    unavailable: Mapping[str, Unavailable]
    pick: Pick
    narrow: bool
    throttle: bool
    board_names: tuple[str, ...]
    board: Pick


def build(unpack: Unpack, reasons: Reasons, elsewhere: frozenset[str], signatures: Sequence[int]) -> Layout:
    """The layout of what is not missing.

    Args:
        unpack: Decodes the buffer.
        reasons: Why metrics are missing.
        elsewhere: Metrics that something else gives.
        signatures: Types and return codes of the fields.
    """
    names = tuple(name for name in NAMES if name not in reasons and name not in elsewhere)
    types = {name: signature for name, signature in zip(FIELD_NAMES, signatures, strict=True) if name in names}
    board_names = tuple(name for name in _BOARD if name in names)
    return Layout(
        unpack,
        names,
        {name: reason for name, reason in reasons.items() if name not in elsewhere},
        picker([NAMES.index(name) for name in names], len(NAMES)),
        any(fields.largest(types[name]) < 2**63 - 1 for name in COUNTERS if name in types),
        not any(name in reasons for name in THROTTLE),
        board_names,
        picker([names.index(name) for name in board_names], len(names)),
    )


def reasons_of(statuses: Mapping[int, int], signatures: Sequence[int], limit: Unavailable | None) -> Reasons:
    """Why metrics are missing.

    Args:
        statuses: The return code of each call, by its place in ``FAST``.
        signatures: Types and return codes of the fields.
        limit: Why the power limit is missing, if it is.
    """
    reasons = {name: unavailable(status) for i, status in statuses.items() if status for name in names_of(i)}
    for name, signature in zip(FIELD_NAMES, signatures, strict=True):
        if name not in reasons and fields.status_of(signature):
            reasons[name] = field_unavailable(fields.status_of(signature))
    if "powerWatts" in reasons:
        reasons["powerPercent"] = reasons["powerWatts"]
    elif limit is not None:
        reasons["powerPercent"] = limit
    return reasons


def names_of(index: int) -> tuple[str, ...]:
    """The metrics that a call gives, those computed from it included."""
    return MEMORY_NAMES if FAST[index] is MEMORY else FAST[index].metrics


def without_impossible(raw: Sequence[Any]) -> tuple[tuple[Any, ...], frozenset[str]]:
    """The unpacked numbers with harmless ones for those that cannot be, and the metrics that fall with these.

    More memory used than there is does not say which of the two is wrong, so neither is believed.
    """
    harmless, wrong = list(raw), set[str]()
    for place, value, maximum in _bounds(raw):
        if not value.minimum <= raw[place] <= maximum:  # NaN is within no bounds
            harmless[place] = 0
            wrong.update(name for own in value.names for name in _WITH_POWER.get(own, (own,)))
    if not 0 <= harmless[_USED] <= harmless[_TOTAL] or not harmless[_TOTAL] or "memoryAllocatedBytes" in wrong:
        harmless[_TOTAL], harmless[_FREE], harmless[_USED] = 1, 0, 0
        wrong.update(MEMORY_NAMES)
    elif harmless[_FREE] > harmless[_TOTAL]:
        harmless[_FREE] = 0
        wrong.add("memoryFreeBytes")
    return tuple(harmless), frozenset(wrong)


def _bounds(raw: Sequence[Any]) -> Iterator[tuple[int, Value, int]]:
    """Each number's place, what it is, and the most that it can be: for a field, that depends on its type too."""
    for place, value in enumerate(_VALUES):
        yield place, value, value.maximum
    for number, field in enumerate(FAST_FIELDS.fields):
        place = len(_VALUES) + fields.NUMBERS * number + 1
        yield place, field.value, min(field.value.maximum, fields.largest(raw[place - 1]))


def impossible_reasons(names: frozenset[str]) -> Reasons:
    """Why they are missing then, in a fixed order."""
    return {name: impossible(_FUNCTIONS[name]) for name in (*NAMES, *THROTTLE) if name in names}


def picker(indices: Sequence[int], width: int) -> Pick:
    """Takes the values at some places, always as a tuple; all of them at no cost."""
    if list(indices) == list(range(width)):
        return tuple
    if len(indices) > 1:
        return itemgetter(*indices)
    return lambda values: tuple(values[index] for index in indices)
