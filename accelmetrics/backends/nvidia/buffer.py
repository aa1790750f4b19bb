"""Calls that are bound to a buffer in which their answers land, and the decoding of that buffer.

A bound call is a ``functools.partial`` with every argument given, which is the cheapest way from Python into the driver. All
answers of a buffer are decoded by one ``unpack_from`` and checked against the table's rows.
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

from accelmetrics.backends.contract import Value
from accelmetrics.backends.nvidia.metrics import ALL_ONES, LARGEST, Call, NvmlField, NvmlMetric
from accelmetrics.backends.nvidia.nvml import (
    FUNCTION_NOT_FOUND,
    MISFIT,
    Forms,
    Library,
    field_unavailable,
    impossible,
    unavailable,
)

FIELD_HEAD = "24xQ"
"""``nvmlFieldValue_t`` up to its value: type and return code as one number, its *signature*, the return code in the upper half."""
_FIELD_KEY = struct.Struct("=II")
"""Its first two members: the field's number and its scope."""
_FIELD_SIZE = struct.calcsize(f"={FIELD_HEAD}Q")
DOUBLE, _UNSIGNED_LONG_LONG = 0, 3
_VALUE_LAYOUTS = {
    DOUBLE: "d",
    1: "I4x",
    2: "Q" if struct.calcsize("L") == 8 else "I4x",
    _UNSIGNED_LONG_LONG: "Q",
    4: "q",
    5: "i4x",
    6: "H6x",
}
"""``nvmlValueType_t`` to the part of ``nvmlValue_t`` that holds the value; the bytes beyond a narrow one are not defined."""
_NARROW = {"I4x": 2**32 - 2, "H6x": 2**16 - 2}
_LARGEST_VALUES = {kind: _NARROW[layout] for kind, layout in _VALUE_LAYOUTS.items() if layout in _NARROW}
"""The largest value of each narrow unsigned type: all-ones means that there is none."""
_ALIGNMENT = 8
_ROOM, _ROOM_OF_FIELD = 64, 24
"""Bytes behind what a call, and each field of a batch, is known to write: room for a longer form. Once it is written to, no number of
the call is believed."""
_UNWRITTEN, _UNFILLED = 0xC5, 0xFF
"""What that room is filled with, and what an answer is before it is filled: NVML's own "not available"."""
_KEPT = 256


def largest_value(signature: int) -> int:
    """Return the largest value that a field of this type can have."""
    return _LARGEST_VALUES.get(signature & ALL_ONES, LARGEST)


def _answer_layout(call: Call, signatures: Sequence[int]) -> str:
    """Return the layout of what a call writes, with the room behind it, filled up to the alignment of the next one."""
    # A type that is newer than the table is read like the widest one.
    fields = "".join(FIELD_HEAD + _VALUE_LAYOUTS.get(signature & ALL_ONES, "Q") for signature in signatures)
    layout = fields if call.fields else call.layout
    room = _ROOM + _ROOM_OF_FIELD * len(call.fields)
    return f"{layout}{-struct.calcsize('=' + layout) % _ALIGNMENT + room}x"


class BufferLayout:
    """Which calls fill a buffer, and where the number of each row stands in it.

    Attributes:
        calls: The calls; a batch of all fields comes last.
        offsets: Where the answer of each begins, in bytes; at the end, where the last one ends.
        places: Each row and its metrics, the index of its call, and that of its number among the unpacked ones.
        signatures: Where the fields' signatures stand among these.
    """

    def __init__(self, rows: tuple[NvmlMetric, ...], sources: tuple[Call | NvmlField, ...]) -> None:
        calls = list(dict.fromkeys(source for source in sources if isinstance(source, Call)))
        fields = tuple(source for source in sources if isinstance(source, NvmlField))
        starts, numbers = [], 0
        for call in calls:
            starts.append(numbers)
            numbers += len(call.members)
        self.signatures = slice(numbers, None, 2)
        found = {field: (len(calls), numbers + 2 * index + 1) for index, field in enumerate(fields)}
        self.calls = (*calls, Call((fields[0].function,), "", (), fields=fields)) if fields else tuple(calls)
        self.offsets = [0]
        for call in self.calls:
            typical = [_UNSIGNED_LONG_LONG] * len(call.fields)
            self.offsets.append(self.offsets[-1] + struct.calcsize("=" + _answer_layout(call, typical)))
        self.places: list[tuple[NvmlMetric, tuple[str, ...], int, int]] = []
        for row, source in zip(rows, sources, strict=True):
            if isinstance(source, NvmlField):
                self.places.append((row, row.names, *found[source]))
            else:
                index = calls.index(source)
                self.places.append((row, row.names, index, starts[index] + source.members.index(row.member)))


# The devices of a machine are mostly alike: one of them has worked it out for all.
_buffer_layout = lru_cache(maxsize=_KEPT)(BufferLayout)


@lru_cache(maxsize=_KEPT)
def structure_of(calls: tuple[Call, ...], signatures: tuple[int, ...]) -> struct.Struct:
    """Return the layout of a whole buffer, with fields of these types."""
    return struct.Struct("=" + "".join(_answer_layout(call, signatures) for call in calls))


class CallBuffer:
    """The calls for some rows of one device, bound to a buffer of their own.

    Args:
        library: The open library.
        handle: The device's handle.
        rows: What is read.

    Attributes:
        layout: Where everything stands.
        bound: The calls in the layout's order.
        statuses: The return code of each; before the first call, whether the driver has it.
        live: Which of them are made.
        answered: Which of them have succeeded. What such a call no longer supports it may support again.
        unpack: Unpacks the buffer with the types that the fields had last.
        signatures: Types and return codes of the fields, as they were then.
    """

    def __init__(self, library: Library, handle: Any, rows: tuple[NvmlMetric, ...]) -> None:
        self.layout = _buffer_layout(rows, tuple(row.source for row in rows))
        self._buffer = (ctypes.c_ulonglong * (self.layout.offsets[-1] // _ALIGNMENT))()
        ctypes.memset(self._buffer, _UNWRITTEN, self.layout.offsets[-1])
        self.bound = [self._bind(library, handle, *at) for at in zip(self.layout.calls, self.layout.offsets, strict=False)]
        self.statuses = [FUNCTION_NOT_FOUND if call is None else 0 for call in self.bound]
        self.live = [index for index, status in enumerate(self.statuses) if not status]
        self.answered: set[int] = set()
        batch = self.layout.calls[-1].fields
        self.signatures: tuple[int, ...] = (_UNSIGNED_LONG_LONG,) * len(batch)
        self.unpack: Callable[[], tuple[Any, ...]] = partial(structure_of(self.layout.calls, self.signatures).unpack_from, self._buffer)

    def _bind(self, library: Library, handle: Any, call: Call, offset: int) -> Any:
        """Bind a call in the forms that the driver has; None where it has none."""
        forms = _bind_forms(library, handle, call, self._buffer, offset)
        older = call.fallback
        while older is not None:
            forms += _bind_older(library, handle, older, call, self._buffer, offset)
            older = older.fallback
        if len(forms) < 2:
            return forms[0] if forms else None
        return Forms(forms, chosen=library.chosen, key=(handle.value, call.function, call.arguments))

    def settle(self) -> None:
        """Make the calls directly of which no older form is asked any more."""
        self.bound = [call.forms[0] if isinstance(call, Forms) and len(call.forms) == 1 else call for call in self.bound]

    def _fits(self, index: int) -> bool:
        """Return whether a call has filled what it was known to fill, and nothing behind it."""
        call, offset = self.layout.calls[index], self.layout.offsets[index]
        keys = [_FIELD_KEY.unpack_from(self._buffer, offset + place * _FIELD_SIZE)[0] for place in range(len(call.fields))]
        known = keys == [field.identifier for field in call.fields]
        return known and _is_unwritten(self._buffer, offset + _size(call), self.layout.offsets[index + 1])

    def fill(self, index: int) -> None:
        """Set every number of a call to 1, which is harmless to convert, for one that is never made."""
        call = self.layout.calls[index]
        count = len(call.members) + 2 * len(call.fields)
        layout = _answer_layout(call, [_UNSIGNED_LONG_LONG] * len(call.fields))
        struct.pack_into(f"={layout}", self._buffer, self.layout.offsets[index], *[1] * count)

    def numbers(self) -> tuple[Any, ...]:
        """Unpack the buffer, each field by the type that it came with."""
        raw = self.unpack()
        signatures = raw[self.layout.signatures]
        if signatures != self.signatures:
            self.signatures = signatures
            self.unpack = partial(structure_of(self.layout.calls, signatures).unpack_from, self._buffer)
            raw = self.unpack()
        return raw

    def _check(self, signatures: Sequence[int]) -> None:
        """Note which of the calls that succeeded have answered, and which have filled another layout."""
        for index in self.live:
            # What a form has filled once, it fills again.
            if self.statuses[index] or (index in self.answered and not isinstance(self.bound[index], Forms)):
                continue
            if not self._fits(index):
                self.statuses[index] = MISFIT
            elif not self.layout.calls[index].fields or any(not signature >> 32 for signature in signatures):
                self.answered.add(index)

    def decode(self, raw: Sequence[Any]) -> dict[str, Value]:
        """Decode every row from the unpacked numbers and the calls' return codes."""
        found: dict[str, Value] = {}
        self._check(raw[self.layout.signatures])
        for row, names, index, place in self.layout.places:
            number, maximum, missing = raw[place], row.maximum, None
            if self.statuses[index]:
                missing = unavailable(self.statuses[index])
            elif isinstance(row.source, NvmlField):
                signature = raw[place - 1]
                maximum = min(maximum, largest_value(signature))
                missing = field_unavailable(signature >> 32) if signature >> 32 else None
            if missing is None and isinstance(number, float):  # every field counts in whole units; NaN and infinity are none
                number = int(number) if number.is_integer() else -math.inf
            if missing is None and not row.minimum <= number <= maximum:
                missing = impossible(row.source.function)
            if missing is not None:
                found.update(dict.fromkeys(names, missing))
            elif row.flags:
                found.update(zip(names, row.bits(int(number)), strict=True))
            else:
                found.update(dict.fromkeys(names, number / row.divisor if row.divisor != 1 else number * row.factor))
        return found


def _size(call: Call) -> int:
    """Return how many bytes a call fills."""
    return len(call.fields) * _FIELD_SIZE or struct.calcsize("=" + call.layout)


def _bind_forms(library: Library, handle: Any, call: Call, buffer: Any, offset: int) -> list[Callable[[], int]]:
    """Prepare a call's place in a buffer, and bind the functions of the call that the driver has to it."""
    # Versioned structures are zero where they are not filled, as in every binding: some members are read by the driver.
    ctypes.memset(ctypes.byref(buffer, offset), 0 if call.version is not None else _UNFILLED, _size(call))
    if call.version is not None:
        ctypes.c_uint.from_buffer(buffer, offset).value = call.version
    for index, field in enumerate(call.fields):
        _FIELD_KEY.pack_into(buffer, offset + index * _FIELD_SIZE, field.identifier, field.scope)
    arguments = [number for _, number in call.arguments]
    if call.fields:
        arguments.append(len(call.fields))
    pointers = [ctypes.byref(buffer, offset + place) for place in call.pointers]
    return [partial(function, handle, *arguments, *pointers) for function in library.forms(*call.functions)]


def _bind_older(library: Library, handle: Any, older: Call, newest: Call, buffer: Any, offset: int) -> list[Callable[[], int]]:
    """Bind a form of another layout: what it fills is moved to where the newest form has it."""
    size, layout, members = _size(older), struct.Struct("=" + older.layout), struct.Struct("=" + newest.layout)
    order = [older.members.index(member) for member in newest.members]
    own = (ctypes.c_ulonglong * ((size + _ROOM) // _ALIGNMENT + 1))()
    ctypes.memset(own, _UNWRITTEN, ctypes.sizeof(own))

    def ask(form: Callable[[], int]) -> int:
        if status := form():
            return status
        if not _is_unwritten(own, size, ctypes.sizeof(own)):
            return MISFIT
        numbers = layout.unpack_from(own)
        members.pack_into(buffer, offset, *[numbers[place] for place in order])
        if newest.version is not None:
            ctypes.c_uint.from_buffer(buffer, offset).value = newest.version
        return status

    return [partial(ask, form) for form in _bind_forms(library, handle, older, own, 0)]


def _is_unwritten(buffer: Any, start: int, end: int) -> bool:
    """Return whether the driver has left the room between two places of a buffer as it was."""
    return not ctypes.string_at(ctypes.byref(buffer, start), end - start).strip(bytes([_UNWRITTEN]))
