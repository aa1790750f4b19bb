"""From readings to the flat dict: keys put in front of values, reasons gathered, nothing that is not a finite number.

This is the hot path: every value of every tick comes through here. What does not change from one reading to the next
(names, blocks of values, reasons) is recognised by identity and not built again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite

from accelmetrics.backends.contract import NO_REASONS, Block, Number, Reading
from accelmetrics.sampling.boundary import fault
from accelmetrics.schemas.reasons import Reason, Unavailable

LARGEST = 1.7e308
"""What still fits a double: JSON's readers have nothing larger."""
NUMBERS = frozenset({int, float})
"""Exactly these: a bool, a Decimal or a number of NumPy's is written and compared in ways of its own."""
SILENT = Unavailable(Reason.NOT_SUPPORTED, "the backend gave neither a value nor a reason")


class _Slot:
    """What is remembered about the block that stands at one position of a unit's readings."""

    __slots__ = ("block", "keys", "names", "process")

    def __init__(self, block: Block, prefix: str) -> None:
        self.block: Block | None = None
        self.names = block.names
        self.process = block.process
        self.keys = tuple([prefix + name for name in block.names])


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

    def refresh(self, what: Reading | Unavailable, flat: dict[str, Number]) -> bool:
        """Bring this unit's part of the flat dict up to date, if nothing but values changed.

        Returns:
            Whether that was all; if not, the flat dict must be written anew with :meth:`put`.
        """
        if isinstance(what, Unavailable):
            return what == self._failure
        blocks, slots = what.blocks, self._slots
        try:
            if what.unavailable is not self._given or len(blocks) != len(slots):
                return False
            for slot, block in zip(slots, blocks):  # noqa: B905 - equally long, and this is the hottest loop there is
                if slot.block is block:
                    continue
                values = block.values
                if slot.names is not block.names or not _sound(values, len(slot.keys)):
                    return False
                slot.block = block
                flat.update(zip(slot.keys, values))  # noqa: B905 - _sound compared the lengths
        except (TypeError, AttributeError):  # what a reader gave has no such parts: ``put`` says what is wrong with it
            return False
        return True

    def put(self, what: Reading | Unavailable, flat: dict[str, Number]) -> Mapping[str, Unavailable]:
        """Add this unit's values to a flat dict that has none of them.

        Returns:
            By key, the reasons for what is missing.
        """
        if isinstance(what, Reading) and (wrong := fault(what)):
            what = Unavailable(Reason.DRIVER_ERROR, f"the backend broke its contract: {wrong}")
        self._reasons = self._fail(what) if isinstance(what, Unavailable) else self._put(what, flat)
        return self._reasons

    def _put(self, reading: Reading, flat: dict[str, Number]) -> Mapping[str, Unavailable]:
        refused: dict[str, Unavailable] = {}
        self._slots = [_Slot(block, self._process_prefix if block.process else self._prefix) for block in reading.blocks]
        for slot, block in zip(self._slots, reading.blocks, strict=True):
            if _sound(block.values, len(slot.keys)) and set(map(type, block.values)) <= NUMBERS:
                slot.block = block
                flat.update(zip(slot.keys, block.values, strict=True))
            else:
                refused.update(_sort_out(slot.keys, block.values, flat))
        self._failure = None
        self._given = None if refused else reading.unavailable
        return {**self._collect(reading), **refused}

    def _fail(self, failure: Unavailable) -> Mapping[str, Unavailable]:
        """The reasons for a unit that gave nothing at all: every key it has ever had."""
        keys = dict.fromkeys(self._prefix + name for name in self._expected)
        keys.update(dict.fromkeys(self._reasons))
        keys.update((key, None) for slot in self._slots if not slot.process for key in slot.keys)
        self._failure = failure
        self._given = None
        return dict.fromkeys(keys, failure)

    def _collect(self, reading: Reading) -> dict[str, Unavailable]:
        prefix = self._prefix
        given = {name for block in reading.blocks if not block.process for name in block.names}
        reasons = {prefix + name: why for name, why in reading.unavailable.items() if name not in given}
        for name in self._expected:
            if name not in given and name not in reading.unavailable:
                reasons[prefix + name] = SILENT
        return reasons


Entry = tuple[Shelf, Reading | Unavailable]
"""A unit's shelf, and what came of reading the unit: a reading, or the reason why there is none."""


class Page:
    """The flat dict and the reasons of one sampler, kept from reading to reading.

    As long as only values change, they are written over the old ones and the dict is copied, which costs a fraction of
    building it. Anything else (a value appears or goes, a device fails) has the whole page written anew.
    """

    def __init__(self) -> None:
        self._flat: dict[str, Number] = {}
        self._reasons: Mapping[str, Unavailable] = NO_REASONS
        self._shelves: list[Shelf] = []

    def write(self, entries: Sequence[Entry]) -> tuple[dict[str, Number], Mapping[str, Unavailable]]:
        """The flat dict, which is the caller's own, and the reasons, the same object as last time if none changed."""
        shelves = [shelf for shelf, _ in entries]
        if shelves != self._shelves or not self._refresh(entries):
            self._shelves = []  # until the page is whole again: an interrupted write is not taken for a finished one
            flat: dict[str, Number] = {}
            parts = [shelf.put(what, flat) for shelf, what in entries]
            reasons = {key: why for part in parts for key, why in part.items() if key not in flat}
            self._flat, self._reasons, self._shelves = flat, reasons, shelves
        return self._flat.copy(), self._reasons

    def _refresh(self, entries: Sequence[Entry]) -> bool:
        flat = self._flat
        return all([shelf.refresh(what, flat) for shelf, what in entries])  # noqa: C419 - a generator costs more here


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
        if isinstance(value, (int, float)) and type(value) in NUMBERS and abs(value) <= LARGEST:
            metrics[key] = value
        else:
            refused[key] = Unavailable(Reason.INVALID_VALUE, f"the source answered {value!r}")
    return refused
