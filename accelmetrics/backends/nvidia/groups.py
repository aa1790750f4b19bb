"""Calls whose answers land in one buffer, and groups of them that are read at a pace of their own.

A bound call is a ``functools.partial`` with every argument given, which is the cheapest way from Python into the driver. All
answers of a buffer are decoded by one ``unpack_from`` and checked against the table's rows.
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

from accelmetrics.backends.contract import NO_REASONS, Block, Number
from accelmetrics.backends.nvidia.metrics import ALL_ONES, LARGEST, Call, Field, Row
from accelmetrics.backends.nvidia.nvml import (
    FUNCTION_NOT_FOUND,
    NOT_SUPPORTED,
    Library,
    check_device,
    field_unavailable,
    impossible,
    unavailable,
)
from accelmetrics.schemas.errors import Reason, Unavailable

Answer = Number | Unavailable
NOTHING = Block((), ())
EARLY = 0.95
"""Values are read again after this share of their interval: readings every second that come a millisecond early find them due."""

FIELD_HEAD = "24xQ"
"""``nvmlFieldValue_t`` up to its value: type and return code as one number, its *signature*, the return code in the upper half."""
_FIELD_KEY = struct.Struct("=II")
"""Its first two members: the field's number and its scope."""
_FIELD_SIZE = struct.calcsize(f"={FIELD_HEAD}Q")
_UNSIGNED_LONG_LONG = 3
_VALUE_LAYOUTS = {0: "d", 1: "I4x", 2: "Q" if struct.calcsize("L") == 8 else "I4x", _UNSIGNED_LONG_LONG: "Q", 4: "q", 5: "i4x", 6: "H6x"}
"""``nvmlValueType_t`` to the part of ``nvmlValue_t`` that holds the value; the bytes beyond a narrow one are not defined."""
_NARROW = {"I4x": 2**32 - 2, "H6x": 2**16 - 2}
_LARGEST_VALUES = {kind: _NARROW[layout] for kind, layout in _VALUE_LAYOUTS.items() if layout in _NARROW}
"""The largest value of each narrow unsigned type: all-ones means that there is none."""
_ALIGNMENT = 8
_KEPT_LAYOUTS = 256


def largest_value(signature: int) -> int:
    """Return the largest value that a field of this type can have."""
    return _LARGEST_VALUES.get(signature & ALL_ONES, LARGEST)


def _answer_layout(call: Call, signatures: Sequence[int]) -> str:
    """Return the layout of what a call writes, filled up to the alignment of the next one."""
    # A type that is newer than the table is read like the widest one.
    fields = "".join(FIELD_HEAD + _VALUE_LAYOUTS.get(signature & ALL_ONES, "Q") for signature in signatures)
    layout = fields if call.fields else call.layout
    return f"{layout}{-struct.calcsize('=' + layout) % _ALIGNMENT}x"


class BufferLayout:
    """Which calls fill a buffer, and where the number of each row stands in it.

    Attributes:
        calls: The calls; a batch of all fields comes last.
        offsets: Where the answer of each begins, in bytes; at the end, where the last one ends.
        places: Each row and its metrics, the index of its call, and that of its number among the unpacked ones.
        signatures: Where the fields' signatures stand among these.
    """

    def __init__(self, rows: tuple[Row, ...], sources: tuple[Call | Field, ...]) -> None:
        calls = list(dict.fromkeys(source for source in sources if isinstance(source, Call)))
        fields = tuple(source for source in sources if isinstance(source, Field))
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
        self.places: list[tuple[Row, tuple[str, ...], int, int]] = []
        for row, source in zip(rows, sources, strict=True):
            if isinstance(source, Field):
                self.places.append((row, row.names, *found[source]))
            else:
                index = calls.index(source)
                self.places.append((row, row.names, index, starts[index] + source.members.index(row.member)))


# The devices of a machine are mostly alike: one of them has worked it out for all.
_buffer_layout = lru_cache(maxsize=_KEPT_LAYOUTS)(BufferLayout)


@lru_cache(maxsize=_KEPT_LAYOUTS)
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
        unpack: Unpacks the buffer with the types that the fields had last.
        signatures: Types and return codes of the fields, as they were then.
    """

    def __init__(self, library: Library, handle: Any, rows: tuple[Row, ...]) -> None:
        self.layout = _buffer_layout(rows, tuple(_source(library, row) for row in rows))
        self._buffer = (ctypes.c_ulonglong * (self.layout.offsets[-1] // _ALIGNMENT))()
        self.bound = [self._bind(library, handle, *at) for at in zip(self.layout.calls, self.layout.offsets, strict=False)]
        self.statuses = [0 if library.has(*call.functions) else FUNCTION_NOT_FOUND for call in self.layout.calls]
        self.live = [index for index, status in enumerate(self.statuses) if not status]
        batch = self.layout.calls[-1].fields
        self.signatures: tuple[int, ...] = (_UNSIGNED_LONG_LONG,) * len(batch)
        self.unpack: Callable[[], tuple[Any, ...]] = partial(structure_of(self.layout.calls, self.signatures).unpack_from, self._buffer)

    def _bind(self, library: Library, handle: Any, call: Call, offset: int) -> Callable[[], int]:
        function = library.function(*call.functions)
        if call.fields:
            for index, field in enumerate(call.fields):
                _FIELD_KEY.pack_into(self._buffer, offset + index * _FIELD_SIZE, field.identifier, field.scope)
            return partial(function, handle, len(call.fields), ctypes.byref(self._buffer, offset))
        if call.version is not None:
            ctypes.c_uint.from_buffer(self._buffer, offset).value = call.version
        pointers = [ctypes.byref(self._buffer, offset + place) for place in call.pointers]
        arguments = [getattr(library.nvml, each) if isinstance(each, str) else each for each in call.arguments]
        return partial(function, handle, *arguments, *pointers)

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

    def decode(self, raw: Sequence[Any]) -> dict[str, Answer]:
        """Decode every row from the unpacked numbers and the calls' return codes."""
        found: dict[str, Answer] = {}
        for row, names, index, place in self.layout.places:
            number, maximum, missing = raw[place], row.maximum, None
            if self.statuses[index]:
                missing = unavailable(self.statuses[index])
            elif isinstance(row.source, Field):
                signature = raw[place - 1]
                maximum = min(maximum, largest_value(signature))
                missing = field_unavailable(signature >> 32) if signature >> 32 else None
            if missing is None and not row.minimum <= number <= maximum:  # NaN is within no bounds
                missing = impossible(row.source.function)
            if missing is not None:
                found.update(dict.fromkeys(names, missing))
            elif row.flags:
                found.update((name, number >> bit & 1) for bit, name in enumerate(names))
            else:
                found.update(dict.fromkeys(names, number / row.divisor if row.divisor != 1 else number * row.factor))
        return found


def _source(library: Library, row: Row) -> Call | Field:
    """Return what gives a row on this driver."""
    source = row.source
    if isinstance(source, Call) and source.fallback is not None and not library.has(*source.functions):
        return source.fallback
    return source


class Values:
    """The latest values of some metrics: the same objects while nothing about them changes.

    Attributes:
        block: The values.
        unavailable: Why the others are missing.
    """

    def __init__(self) -> None:
        self.block = NOTHING
        self.unavailable: Mapping[str, Unavailable] = NO_REASONS

    def keep(self, answers: Mapping[str, Answer]) -> bool:
        """Replace what differs. Returns: whether anything did."""
        metrics = {name: answer for name, answer in answers.items() if not isinstance(answer, Unavailable)}
        reasons = {name: answer for name, answer in answers.items() if isinstance(answer, Unavailable)}
        names, values = tuple(metrics), tuple(metrics.values())
        changed = names != self.block.names or values != self.block.values
        if changed:
            self.block = Block(self.block.names if names == self.block.names else names, values)
        if reasons != self.unavailable:
            self.unavailable = reasons
            changed = True
        return changed

    def answers(self) -> dict[str, Answer]:
        """Return every value, or why it is missing, by name."""
        return {**dict(zip(self.block.names, self.block.values, strict=True)), **self.unavailable}


class Paced(Values):
    """Values that are read at most once per interval, and stand in between.

    Args:
        interval: Seconds between two calls; infinite for what never changes.

    Attributes:
        due: When ``read`` is wanted next, in seconds on the driver's clock.
    """

    def __init__(self, interval: float) -> None:
        super().__init__()
        self.due = -math.inf
        self._interval = interval * EARLY
        self._failed = False

    def read(self, now: float, progress: list[Any]) -> bool:
        """Read if that is due. Returns: whether anything differs from before."""
        if now < self.due:
            return False
        answers = self.ask(now, progress)
        return answers is not None and self.keep(answers)

    def ask(self, now: float, progress: list[Any]) -> Mapping[str, Answer] | None:
        """Call the driver and set ``due``. Returns: every answer, or None when all of them are as before."""
        raise NotImplementedError

    def wait(self, now: float, status: int) -> None:
        """Set ``due`` after a call.

        A failure is met again at the next reading, once, since many pass by themselves; one that lasts is met once per interval, and not at
        every reading. What the driver does not support is not asked for again.
        """
        again = status != 0 and not self._failed
        self._failed = status != 0
        self.due = math.inf if status == NOT_SUPPORTED else -math.inf if again else now + self._interval


class Group(Paced):
    """Rows whose calls are made together.

    A call that failed is made again at the next reading, whatever the interval, unless the driver says that it does not support it:
    then it is not made again at all.

    Args:
        library: The open library.
        handle: The device's handle.
        rows: What to read.
        interval: As in :class:`Paced`.
        patient: Fields that fail wait for the interval too; only a call that fails as a whole is made again at once.
    """

    def __init__(self, library: Library, handle: Any, rows: tuple[Row, ...], interval: float, patient: bool = False) -> None:
        super().__init__(interval)
        self._buffer = CallBuffer(library, handle, rows)
        self._patient = patient
        self._again: list[int] = []
        self._next = -math.inf
        self._answered: tuple[Any, ...] = ()

    def ask(self, now: float, progress: list[Any]) -> Mapping[str, Answer] | None:
        buffer = self._buffer
        whole = now >= self._next
        for index in buffer.live if whole else self._again:
            status = buffer.statuses[index] = buffer.bound[index]()
            progress.append(status)
            # Checked at once: a lost device answers slowly, and none of the other calls would fare better.
            check_device(status, buffer.layout.calls[index].function)
        if whole:
            self._next = now + self._interval
        raw = buffer.numbers()
        answered = (*buffer.statuses, *raw)
        answers = None
        if answered != self._answered:
            self._answered = answered
            answers = buffer.decode(raw)
            self._plan_again(answers)
        self.due = -math.inf if self._again else self._next
        return answers

    def _plan_again(self, answers: Mapping[str, Answer]) -> None:
        """Decide which calls are made at the next reading, and which never again."""
        buffer = self._buffer
        buffer.live = [index for index in buffer.live if buffer.statuses[index] != NOT_SUPPORTED]
        failed = {index for index in buffer.live if buffer.statuses[index]}
        if not self._patient:
            for _, names, index, _ in buffer.layout.places:
                answer = answers[names[0]]
                if isinstance(answer, Unavailable) and answer.reason != Reason.NOT_SUPPORTED:
                    failed.add(index)
        self._again = [index for index in buffer.live if index in failed]
