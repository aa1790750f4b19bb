"""From readings to the flat dict: keys put in front of values, reasons gathered, nothing that is not a finite number.

This is the hot path: every value of every tick comes through here. What does not change from one reading to the next
(names, blocks, reasons) is recognised by identity and not built again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite

from accelmetrics.backends.contract import NO_REASONS, Block, Number, Reading
from accelmetrics.schemas.reasons import Reason, Unavailable

LARGEST = 1.7e308
"""What still fits a double: JSON's readers have nothing larger."""
SILENT = Unavailable(Reason.NOT_SUPPORTED, "the backend gave neither a value nor a reason")


class _Slot:
    """What is remembered about the block that stands at one position of a unit's readings."""

    __slots__ = ("block", "keys", "merged", "names", "process")

    def __init__(self) -> None:
        self.process = False
        self.block: Block | None = None
        self.names: tuple[str, ...] | None = None
        self.keys: tuple[str, ...] = ()
        self.merged: dict[str, Number] | None = None


class Shelf:
    """Where one unit's readings are turned into keys.

    Args:
        key: The device's key (``gpu.3``); empty for the host, whose names are whole keys.
        expected: The names that the catalogue promises for this backend: what is neither given nor explained gets a reason.
    """

    def __init__(self, key: str, expected: Sequence[str]) -> None:
        kind, _, number = key.partition(".")
        self.key = key
        self._prefix = f"{key}." if key else ""
        self._process_prefix = f"{kind}.process.{number}." if key else ""
        self._expected = tuple(expected)
        self._slots: list[_Slot] = []
        self._given: Mapping[str, Unavailable] | None = None
        self._reasons: Mapping[str, Unavailable] = NO_REASONS
        self._failure: Unavailable | None = None

    def put(self, reading: Reading, metrics: dict[str, Number]) -> Mapping[str, Unavailable]:
        """Add a reading's values to the flat dict.

        Returns:
            By key, the reasons for what is missing: the same object as last time when nothing in it changed.
        """
        blocks = reading.blocks
        changed = self._failure is not None or reading.unavailable is not self._given
        if len(blocks) != len(self._slots):
            self._slots = [_Slot() for _ in blocks]
            changed = True
        refused: dict[str, Unavailable] = {}
        for slot, block in zip(self._slots, blocks):  # noqa: B905  made equal just above
            if slot.block is block:
                if slot.merged is None:
                    slot.merged = dict(zip(slot.keys, block.values, strict=True))
                metrics.update(slot.merged)
                continue
            if slot.names is not block.names:
                self._name(slot, block)
                changed = True
            values = block.values
            if _sound(values, len(slot.keys)):
                slot.block, slot.merged = block, None
                metrics.update(zip(slot.keys, values))  # noqa: B905  _sound compared the lengths
            else:
                slot.block = None
                refused.update(_sort_out(slot.keys, values, metrics))
        if changed or refused:
            self._reasons = {**self._collect(reading), **refused}
            self._given = None if refused else reading.unavailable
        return self._reasons

    def fail(self, failure: Unavailable) -> Mapping[str, Unavailable]:
        """The reasons for a unit that gave nothing at all: every key it has ever had."""
        if failure != self._failure:
            names = dict.fromkeys(self._prefix + name for name in self._expected)
            names.update(dict.fromkeys(self._reasons))
            names.update((key, None) for slot in self._slots if not slot.process for key in slot.keys)
            self._reasons = dict.fromkeys(names, failure)
            self._failure = failure
        return self._reasons

    def _name(self, slot: _Slot, block: Block) -> None:
        prefix = self._process_prefix if block.process else self._prefix
        slot.process = block.process
        slot.names = block.names
        slot.keys = tuple(prefix + name for name in block.names)
        slot.block = slot.merged = None

    def _collect(self, reading: Reading) -> dict[str, Unavailable]:
        self._failure = None
        prefix = self._prefix
        reasons = {prefix + name: why for name, why in reading.unavailable.items()}
        given = {name for block in reading.blocks if not block.process for name in block.names}
        for name in self._expected:
            if name not in given and name not in reading.unavailable:
                reasons[prefix + name] = SILENT
        return reasons


def _sound(values: Sequence[Number], count: int) -> bool:
    """Whether there are so many values and all are finite numbers: one sum tells, since inf and nan survive it."""
    try:
        return len(values) == count and isfinite(sum(values))
    except (TypeError, OverflowError):
        return False


def _sort_out(keys: Sequence[str], values: Sequence[object], metrics: dict[str, Number]) -> dict[str, Unavailable]:
    """Keep the values that are finite numbers, and say of each other one what it was."""
    refused = {}
    for position, key in enumerate(keys):
        value = values[position] if position < len(values) else None
        if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= LARGEST:
            metrics[key] = value
        else:
            refused[key] = Unavailable(Reason.INVALID_VALUE, f"the source answered {value!r}")
    return refused
