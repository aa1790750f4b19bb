"""NVML calls bound to buffers for their answers: values of every reading, and groups with their own interval.

A bound call is a ``functools.partial`` with all arguments, the cheapest way from Python into the driver. One ``unpack_from``
decodes all answers of a buffer, and they are checked against the table's rows.

Values of every reading have a fast way: one generated expression checks and converts them. It is used while the calls return the
same codes as when the rows were last decoded one by one, and no answer is impossible. A test verifies that both ways give the same
values.
"""

from __future__ import annotations

import ctypes
import math
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from itertools import compress, islice
from typing import Any

from accelmetrics.backends.contract import NO_REASONS, TIMES_LIMIT, Block, Number, Value
from accelmetrics.backends.nvidia.metrics import (
    ALL_ONES,
    LARGEST,
    MEMORY_ROWS,
    POWER_LIMIT,
    SHARES,
    TEN_SECONDS,
    Call,
    NvmlField,
    NvmlMetric,
    fast_names,
)
from accelmetrics.backends.nvidia.nvml import (
    FUNCTION_NOT_FOUND,
    MISFIT,
    NOT_SUPPORTED,
    Forms,
    Library,
    field_unavailable,
    impossible,
    unavailable,
)
from accelmetrics.schemas.errors import Reason, SourceError, Unavailable

FIELD_HEAD = "24xQ"
"""``nvmlFieldValue_t`` up to its value. Type and return code are read as one number, the *signature*, with the code in its upper half."""
_FIELD_KEY = struct.Struct("=II")
"""The first two members of ``nvmlFieldValue_t``: the field's number and its scope."""
_FIELD_SIZE = struct.calcsize(f"={FIELD_HEAD}Q")
_DOUBLE, _UNSIGNED_LONG_LONG = 0, 3
_VALUE_LAYOUTS = {
    _DOUBLE: "d",
    1: "I4x",
    # An unsigned long has 4 bytes on Windows.
    2: "Q" if struct.calcsize("L") == 8 else "I4x",
    _UNSIGNED_LONG_LONG: "Q",
    4: "q",
    5: "i4x",
    6: "H6x",
}
"""The part of ``nvmlValue_t`` with the value, by ``nvmlValueType_t``. The bytes after a narrow value are undefined."""
_NARROW: dict[int, int] = {
    kind: 2 ** (8 * struct.calcsize(f"={layout[0]}")) - 2 for kind, layout in _VALUE_LAYOUTS.items() if layout in ("I4x", "H6x")
}
"""Largest value of each narrow unsigned type. All bits set means that there is no value."""
_ALIGNMENT = 8
_ROOM, _ROOM_OF_FIELD = 64, 24
"""Spare bytes after the known answer of a call, and of each field of a batch, for a driver that writes a longer form. If they are
written to, no number of the call is used.
"""
_UNWRITTEN, _UNFILLED = 0xC5, 0xFF
"""Fill byte of the spare bytes, and of an answer before the call. The latter is NVML's own "not available"."""
# Entries of each layout cache.
_KEPT = 256

Convert = Callable[[Sequence[Any], float], tuple[Number, ...] | None]
Derive = Callable[[Mapping[str, Value]], Mapping[str, Value]]
NOTHING = Block((), ())
MEMORY_NAMES = fast_names(MEMORY_ROWS)
EARLY = 0.95
"""Share of an interval after which values are read again, so that a reading that comes a little early still finds them due."""
_FIELD, _CALL = 0, 1
"""The sources of a row that has both, in the order of preference."""
_NO_FIELD = frozenset({Reason.NOT_SUPPORTED, Reason.INVALID_VALUE})
"""Reasons for which a field is given up, because it would not have a value later either."""


def _answer_layout(call: Call, signatures: Sequence[int]) -> str:
    """Return the layout of a call's answer with its spare bytes, padded to the alignment of the next answer."""
    # A type newer than this table is read like the widest one.
    fields = "".join(FIELD_HEAD + _VALUE_LAYOUTS.get(signature & ALL_ONES, "Q") for signature in signatures)
    layout = fields if call.fields else call.layout
    room = _ROOM + _ROOM_OF_FIELD * len(call.fields)
    return f"{layout}{-struct.calcsize('=' + layout) % _ALIGNMENT + room}x"


def _blank(call: Call) -> bytes:
    """Return the initial bytes of a call's place in the buffer."""
    # Versioned structures start as zeros, as in every binding, because the driver reads some members.
    blank = bytearray([0 if call.version is not None else _UNFILLED]) * _size(call)
    if call.version is not None:
        blank[:4] = call.version.to_bytes(4, sys.byteorder)
    for index, field in enumerate(call.fields):
        _FIELD_KEY.pack_into(blank, index * _FIELD_SIZE, field.identifier, field.scope)
    return bytes(blank)


class BufferLayout:
    """The calls that fill a buffer, and the position of each row's number in it.

    Attributes:
        calls: The calls; a batch of all fields comes last.
        offsets: Where each answer begins, in bytes; the last entry is the end.
        blank: The buffer's bytes before the first call.
        places: For each row, the row, the index of its call, and the index of its number among the unpacked numbers.
        names: The metrics of each row in ``places``.
        signatures: The positions of the fields' signatures among the unpacked numbers.
        keys: Unpacks the field numbers from their batch.
        choices: The rows that have a field or a call as source, depending on the driver.
    """

    def __init__(self, rows: tuple[NvmlMetric, ...]) -> None:
        calls = list(dict.fromkeys(row.source for row in rows if isinstance(row.source, Call)))
        fields = tuple(row.source for row in rows if isinstance(row.source, NvmlField))
        starts, numbers = [], 0
        for call in calls:
            starts.append(numbers)
            numbers += len(call.members)
        self.signatures = slice(numbers, None, 2)
        self.calls = (*calls, Call((fields[0].function,), "", (), fields=fields)) if fields else tuple(calls)
        self.offsets = [0]
        self.blank = b""
        for call in self.calls:
            # Values of all types take 8 bytes, so any type gives the offset.
            typical = [_UNSIGNED_LONG_LONG] * len(call.fields)
            self.offsets.append(self.offsets[-1] + struct.calcsize("=" + _answer_layout(call, typical)))
            self.blank = (self.blank + _blank(call)).ljust(self.offsets[-1], bytes([_UNWRITTEN]))
        self.keys = struct.Struct("=" + f"I{_FIELD_SIZE - 4}x" * len(fields))
        self.names = [row.names for row in rows]
        self.choices = tuple([row for row in rows if row.otherwise is not None or isinstance(row.source, Call)])
        self.places: list[tuple[NvmlMetric, int, int]] = []
        order = {field: index for index, field in enumerate(fields)}
        for row in rows:
            if isinstance(row.source, NvmlField):
                self.places.append((row, len(calls), numbers + 2 * order[row.source] + 1))
            else:
                index = calls.index(row.source)
                self.places.append((row, index, starts[index] + row.source.members.index(row.member)))


# The devices of a machine are mostly of one model, so they share the layout.
_buffer_layout = lru_cache(maxsize=_KEPT)(BufferLayout)


@lru_cache(maxsize=_KEPT)
def structure_of(calls: tuple[Call, ...], signatures: tuple[int, ...]) -> struct.Struct:
    """Return the layout of a whole buffer, with fields of these types."""
    return struct.Struct("=" + "".join(_answer_layout(call, signatures) for call in calls))


class CallBuffer:
    """The calls for some rows of one device, bound to their own buffer.

    Args:
        library: The open library.
        handle: The device's handle.
        rows: The rows to read.

    Attributes:
        layout: The buffer's layout.
        bound: The calls in the layout's order.
        statuses: The return code of each call; before the first call, whether the driver has the function.
        live: The indices of the calls that are made.
        answered: The indices of the calls that have succeeded. If such a call becomes unsupported, it may come back.
        unpack: Unpacks the buffer with the fields' latest types.
        signatures: The fields' latest types and return codes.
    """

    def __init__(self, library: Library, handle: Any, rows: tuple[NvmlMetric, ...]) -> None:
        self.layout = _buffer_layout(rows)
        # Made of 64-bit numbers, so that the structures in it are aligned.
        self._buffer = (ctypes.c_ulonglong * (self.layout.offsets[-1] // _ALIGNMENT)).from_buffer_copy(self.layout.blank)
        self.bound: list[Any] = []
        for call, offset in zip(self.layout.calls, self.layout.offsets, strict=False):
            forms = _bind_forms(library, handle, call, self._buffer, offset)
            if call.fallback is not None:
                forms += _bind_older(library, handle, call.fallback, call, self._buffer, offset)
            if len(forms) > 1:
                forms = [Forms(forms, chosen=library.chosen, key=(handle.value, call.function, call.arguments))]
            self.bound.append(forms[0] if forms else None)
        self.statuses = [FUNCTION_NOT_FOUND if call is None else 0 for call in self.bound]
        self.live = [index for index, status in enumerate(self.statuses) if not status]
        self.answered: set[int] = set()
        self._set_types((_UNSIGNED_LONG_LONG,) * len(self.layout.calls[-1].fields))

    def _set_types(self, signatures: tuple[int, ...]) -> None:
        self.signatures = signatures
        self.unpack: Callable[[], tuple[Any, ...]] = partial(structure_of(self.layout.calls, signatures).unpack_from, self._buffer)

    def calls(self) -> list[Callable[[], int]]:
        """List the calls to make. A call with only one form left is returned without its wrapper."""
        self.bound = [call.forms[0] if isinstance(call, Forms) and len(call.forms) == 1 else call for call in self.bound]
        return [self.bound[index] for index in self.live]

    def drop(self, indices: set[int]) -> None:
        """Stop making some calls. Their numbers become 1, which converts without harm."""
        for index in indices:
            call = self.layout.calls[index]
            layout = _answer_layout(call, [_UNSIGNED_LONG_LONG] * len(call.fields))
            struct.pack_into(f"={layout}", self._buffer, self.layout.offsets[index], *[1] * (len(call.members) + 2 * len(call.fields)))
        self.live = [index for index in self.live if index not in indices]

    def numbers(self) -> tuple[Any, ...]:
        """Unpack the buffer, each field by the type that the driver returned."""
        raw = self.unpack()
        if raw[self.layout.signatures] != self.signatures:
            self._set_types(raw[self.layout.signatures])
            raw = self.unpack()
        return raw

    def decode(self, raw: Sequence[Any]) -> dict[str, Value]:
        """Decode every row from the unpacked numbers and the calls' return codes."""
        for index in self.live:
            # The layout is checked once: a form that has filled it will do so again.
            if self.statuses[index] or (index in self.answered and not isinstance(self.bound[index], Forms)):
                continue
            call, offset = self.layout.calls[index], self.layout.offsets[index]
            fits = not call.fields or self.layout.keys.unpack_from(self._buffer, offset) == tuple([each.identifier for each in call.fields])
            # Another layout: the fields' numbers have moved, or the driver wrote further than expected.
            if not fits or not _is_unwritten(self._buffer, offset + _size(call), self.layout.offsets[index + 1]):
                self.statuses[index] = MISFIT
            elif not call.fields or any(not signature >> 32 for signature in raw[self.layout.signatures]):
                self.answered.add(index)
        failures = [unavailable(status) if status else None for status in self.statuses]
        found: dict[str, Value] = {}
        for (row, index, place), names in zip(self.layout.places, self.layout.names, strict=True):
            answer: Value | None = failures[index]
            number, maximum = raw[place], row.maximum
            if answer is None and self.layout.calls[index].fields:
                signature = raw[place - 1]
                if signature >> 32:
                    answer = field_unavailable(signature >> 32)
                elif signature in _NARROW:
                    maximum = min(maximum, _NARROW[signature])
            if answer is None:
                if isinstance(number, float):  # every field counts in whole units; NaN and infinity are no values
                    number = int(number) if number.is_integer() else -math.inf
                if not row.minimum <= number <= maximum:
                    answer = impossible(row.source.function)
                elif row.flags:
                    found.update(zip(names, row.bits(int(number)), strict=True))
                    continue
                else:
                    answer = number / row.divisor if row.divisor != 1 else number * row.factor
            for name in names:
                found[name] = answer
        return found


def _size(call: Call) -> int:
    """Return how many bytes a call fills."""
    return len(call.fields) * _FIELD_SIZE or struct.calcsize("=" + call.layout)


def _bind_forms(library: Library, handle: Any, call: Call, buffer: Any, offset: int) -> list[Callable[[], int]]:
    """Bind the forms of a call that the driver has to the call's place in a buffer."""
    arguments = [number for _, number in call.arguments]
    if call.fields:
        arguments.append(len(call.fields))
    pointers = [ctypes.byref(buffer, offset + place) for place in call.pointers]
    return [partial(function, handle, *arguments, *pointers) for function in library.forms(*call.functions)]


def _bind_older(library: Library, handle: Any, older: Call, newest: Call, buffer: Any, offset: int) -> list[Callable[[], int]]:
    """Bind an older form with another layout. Its answer is moved into the layout of the newest form; members that it lacks are 0."""
    size, layout, members = _size(older), struct.Struct("=" + older.layout), struct.Struct("=" + newest.layout)
    order = [older.members.index(member) if member in older.members else None for member in newest.members]
    words = (size + _ROOM) // _ALIGNMENT + 1
    own = (ctypes.c_ulonglong * words).from_buffer_copy(_blank(older).ljust(words * _ALIGNMENT, bytes([_UNWRITTEN])))

    def ask(form: Callable[[], int]) -> int:
        if status := form():
            return status
        if not _is_unwritten(own, size, ctypes.sizeof(own)):
            return MISFIT
        numbers = layout.unpack_from(own)
        members.pack_into(buffer, offset, *[0 if place is None else numbers[place] for place in order])
        # Packing the members has cleared the version, which the newest form needs at its next call.
        if newest.version is not None:
            ctypes.c_uint.from_buffer(buffer, offset).value = newest.version
        return status

    return [partial(ask, form) for form in _bind_forms(library, handle, older, own, 0)]


def _is_unwritten(buffer: Any, start: int, end: int) -> bool:
    """Return whether the driver has left the spare bytes between two places of a buffer untouched."""
    return not ctypes.string_at(ctypes.byref(buffer, start), end - start).strip(bytes([_UNWRITTEN]))


def _current_source(row: NvmlMetric, answers: Mapping[str, Value], chosen: dict[object, int], handle: Any) -> NvmlMetric:
    """Return the row's alternative by call if the driver or the GPU lacks the field; otherwise the row itself.

    The source that answers first is kept. If it fails later, the value is missing, and no other source's number replaces it.
    """
    answer, key = answers[row.name], (handle.value, row.name)
    if not isinstance(answer, Unavailable):
        chosen.setdefault(key, _CALL if isinstance(row.source, Call) else _FIELD)
    elif row.otherwise is not None and key not in chosen and answer.reason in _NO_FIELD:
        return row.otherwise
    return row


def _without_single_field(rows: tuple[NvmlMetric, ...]) -> tuple[NvmlMetric, ...]:
    """Replace a field by its call if it would be the only field of the batch."""
    fields = list(islice((row for row in rows if isinstance(row.source, NvmlField)), 2))
    return tuple(row.otherwise or row for row in rows) if len(fields) == 1 else rows


class LatestValues:
    """The latest values of some metrics. They stay the same objects until something changes.

    Attributes:
        block: The values.
        unavailable: Why other values are missing.
    """

    def __init__(self) -> None:
        self.block = NOTHING
        self.unavailable: Mapping[str, Unavailable] = NO_REASONS

    def keep(self, answers: Mapping[str, Value]) -> None:
        """Take over the answers that changed."""
        metrics = {name: answer for name, answer in answers.items() if not isinstance(answer, Unavailable)}
        reasons = {name: answer for name, answer in answers.items() if isinstance(answer, Unavailable)}
        names, values = tuple(metrics), tuple(metrics.values())
        # Unchanged names and reasons must stay the same objects.
        if names != self.block.names or values != self.block.values:
            self.block = Block(self.block.names if names == self.block.names else names, values)
        if reasons != self.unavailable:
            self.unavailable = reasons


class Paced(LatestValues):
    """Values that are read at most once per interval, and repeated until the next call.

    Args:
        interval: Seconds between two calls; infinite for constants.

    Attributes:
        answers: Every value, or the reason why it is missing, by name.
        due: Time of the next ``read``, in seconds on the driver's clock.
    """

    def __init__(self, interval: float) -> None:
        super().__init__()
        self.answers: Mapping[str, Value] = {}
        self.due = -math.inf
        self._interval = interval * EARLY
        self._failed = False

    def read(self, now: float, progress: list[Any]) -> bool:
        """Read now, and keep changed values. Returns whether any changed."""
        answers = self.ask(now, progress)
        if answers is None or answers == self.answers:
            return False
        self.answers = answers
        self.keep(answers)
        return True

    def ask(self, now: float, progress: list[Any]) -> Mapping[str, Value] | None:
        """Call the driver and set ``due``. Returns all answers, or None if none of them changed."""
        raise NotImplementedError

    def schedule(self, now: float, failed: bool) -> None:
        """Set ``due`` after a call.

        A failed value is read again at the next reading, once, since many failures pass. If it still fails, it is read once per
        interval.
        """
        self.due = now + self._interval
        if failed:
            self.due = now + min(self._interval, TEN_SECONDS * EARLY) if self._failed else -math.inf
        self._failed = failed


class CallGroup(Paced):
    """Rows with calls that are made together. Calls that the driver does not support are dropped.

    Args:
        library: The open library.
        handle: The device's handle.
        rows: The rows to read.
        interval: As in :class:`Paced`.
        derive: Computes the values from the rows' answers; by default the answers are the values.
    """

    def __init__(self, library: Library, handle: Any, rows: tuple[NvmlMetric, ...], interval: float, derive: Derive | None = None) -> None:
        super().__init__(interval)
        self._derive = derive
        self._found: Mapping[str, Value] = {}
        self._library = library
        self._handle = handle
        self._failing = False
        self._bind(_without_single_field(rows))

    def read_instead(self, rows: tuple[NvmlMetric, ...]) -> None:
        """Read other rows from the next call on, at the same interval. A function that has answered stays supported."""
        before = self._buffer
        answered = {before.layout.calls[index].function for index in before.answered}
        self._bind(_without_single_field(rows))
        self._buffer.answered.update(index for index, call in enumerate(self._buffer.layout.calls) if call.function in answered)

    def _bind(self, rows: tuple[NvmlMetric, ...]) -> None:
        # A source that has answered for this device stays the source when its calls are bound again.
        chosen, handle = self._library.chosen, self._handle.value
        self._rows = tuple([row.otherwise if row.otherwise and chosen.get((handle, row.name)) == _CALL else row for row in rows])
        self._answered: tuple[Any, ...] = ()
        self._buffer = CallBuffer(self._library, self._handle, self._rows)

    def ask(self, now: float, progress: list[Any]) -> Mapping[str, Value] | None:
        answers = self._call(progress)
        if answers is not None:
            choices = {row.name: _current_source(row, answers, self._library.chosen, self._handle) for row in self._buffer.layout.choices}
            if tuple(choices.values()) != self._buffer.layout.choices:
                self._bind(tuple([choices.get(row.name, row) for row in self._rows]))
                answers = self._call(progress)
        self.schedule(now, self._failing)
        if self._derive is None:
            return answers
        self._found = self._found if answers is None else answers
        return self._derive(self._found)

    def _call(self, progress: list[Any]) -> dict[str, Value] | None:
        """Make the calls. Returns all answers, or None if none of them changed."""
        buffer = self._buffer
        for index in buffer.live:
            status = buffer.statuses[index] = buffer.bound[index]()
            progress.append(status)
            # Checked after each call: a lost device answers slowly, and the other calls would fail as well.
            self._library.check(status, buffer.layout.calls[index].function)
        raw = buffer.numbers()
        answered = (*buffer.statuses, *raw)
        if answered == self._answered:
            return None
        self._answered = answered
        answers = buffer.decode(raw)
        buffer.live = [index for index in buffer.live if buffer.statuses[index] != NOT_SUPPORTED or index in buffer.answered]
        reasons = {answer.reason for answer in answers.values() if isinstance(answer, Unavailable)}
        self._failing = any(buffer.statuses[index] for index in buffer.live) or not reasons <= {Reason.NOT_SUPPORTED}
        return answers


class FastValues(LatestValues):
    """The values of one device that are read at every reading. Consumers share them, because they never read at the same time.

    Args:
        library: The open library.
        handle: The device's handle.
        variants: The rows with their generated conversion; and the alternative without fields, if it differs, for drivers that lack the
            fields.
        stale: Return codes of an invalid handle. If every call returns one of them, the handle no longer belongs to the device.
        stale_error: Makes the error for that.
        needed: The metrics for which calls are made. A call that gives none of them is treated as unsupported.
    """

    def __init__(
        self,
        library: Library,
        handle: Any,
        variants: tuple[tuple[tuple[NvmlMetric, ...], Convert], ...],
        stale: frozenset[int],
        stale_error: Callable[[], SourceError],
        needed: frozenset[str],
    ) -> None:
        super().__init__()
        self._library = library
        self._handle = handle
        self._variants = variants
        self._stale = stale
        self._stale_error = stale_error
        self._needed = needed
        rows, _ = variants[0]
        self._names = fast_names(rows)
        self._left_out: frozenset[str] = frozenset()
        self._limit: Value = 1.0
        self._watts: Number = math.inf
        used = tuple(row for row in rows if not needed.isdisjoint(row.names))
        # A call that has answered for this device before stays the source, also for new consumers.
        by_call = _without_single_field(used) != used or any(
            library.chosen.get((handle.value, row.name)) == _CALL for row in used if row.otherwise
        )
        self._bind(*variants[-1 if by_call else 0])

    def _bind(self, rows: tuple[NvmlMetric, ...], convert: Convert) -> None:
        """Bind the calls for the rows."""
        self._rows, self._convert = rows, convert
        buffer = self._buffer = CallBuffer(self._library, self._handle, rows)
        flags, self._mask = next(((row, place) for row, _, place in buffer.layout.places if row.flags), (None, 0))
        self._flags = flags.names if flags is not None else ()
        self._flag_block = lru_cache(maxsize=64)(lambda answer: NOTHING if flags is None else Block(flags.names, flags.bits(answer)))
        # The return codes when the rows were last decoded one by one; None if the next reading has to do that again.
        self._usual: list[int] | None = None
        # Which of the converted values are reported; None for all of them.
        self._reported: list[bool] | None = None
        self._flagged = False
        used = {index for row, index, _ in buffer.layout.places if not self._needed.isdisjoint(row.names)}
        buffer.statuses = [status if index in used else NOT_SUPPORTED for index, status in enumerate(buffer.statuses)]
        buffer.drop({index for index, status in enumerate(buffer.statuses) if status})
        self._calls = buffer.calls()

    def depend_on(self, limit: Value, left_out: frozenset[str]) -> None:
        """Set the values that depend on other values of the device.

        Args:
            limit: The enforced power limit in watts, or why it is not known.
            left_out: Metrics that another part of the device reports. They are left out here.
        """
        missing, missed = (answer if isinstance(answer, Unavailable) else None for answer in (limit, self._limit))
        if missing != missed or left_out != self._left_out:
            self._usual = None
        self._limit, self._left_out = limit, left_out
        self._watts = math.inf if isinstance(limit, Unavailable) else limit

    def read(self, progress: list[Any]) -> tuple[Block, Block]:
        """Read now. Returns the values, and the values of the flags."""
        start = len(progress)
        append = progress.append
        for call in self._calls:
            append(call())
        buffer = self._buffer
        raw = buffer.unpack()
        # The fast way, while codes and types are as usual.
        if progress[start:] == self._usual and raw[buffer.layout.signatures] == buffer.signatures:
            values = self._convert(raw, self._watts)
            if values is not None:
                if self._reported is not None:
                    values = tuple(compress(values, self._reported))
                return Block(self.block.names, values), self._flag_block(raw[self._mask]) if self._flagged else NOTHING
        return self._read_rows(progress[start:], progress)

    def _read_rows(self, statuses: list[int], progress: list[Any]) -> tuple[Block, Block]:
        """Decode the latest answers row by row, and decide whether the next reading may take the fast way."""
        buffer = self._buffer
        places, calls = buffer.layout.places, buffer.layout.calls
        for index, status in zip(buffer.live, statuses, strict=True):
            self._library.check(status, calls[index].function)
            buffer.statuses[index] = status
        if statuses and self._stale.issuperset(statuses):
            raise self._stale_error()
        raw = buffer.numbers()
        answers = buffer.decode(raw)
        available = [_current_source(row, answers, self._library.chosen, self._handle) for row in self._rows]
        # A field is missing: everything is read again by call.
        if any(found is not row and not self._needed.isdisjoint(row.names) for found, row in zip(available, self._rows, strict=True)):
            self._bind(*self._variants[-1])
            return self.read(progress)
        self._add_shares(answers)
        # The batch has the same fields for every vendor, including some that another maker's library does not cover.
        names = [name for name in self._names if name not in self._left_out and self._library.maker.covers(name)]
        missing = [name for name in self._flags if isinstance(answers[name], Unavailable)]
        self.keep({name: answers[name] for name in (*names, *missing)})
        self._flagged = bool(self._flags) and not missing
        self._reported = None if self.block.names == self._names else [name in self.block.names for name in self._names]
        # A batch succeeds even if it supports none of its fields. It is then dropped like an unsupported call.
        batch = len(calls) - 1
        unanswered = calls[batch].fields and not buffer.statuses[batch] and batch not in buffer.answered
        if unanswered and all(signature >> 32 == NOT_SUPPORTED for signature in buffer.signatures):
            buffer.statuses[batch] = NOT_SUPPORTED
        unsupported = {index for index in buffer.live if buffer.statuses[index] == NOT_SUPPORTED} - buffer.answered
        # One call is kept, because its return code shows when the device is lost.
        if len(unsupported) < len(buffer.live):
            buffer.drop(unsupported)
        self._calls = buffer.calls()
        # The generated conversion handles neither impossible values nor fields of another type (a narrow integer, a double).
        fields = [(row, raw[at - 1]) for row, index, at in places if isinstance(row.source, NvmlField) and not buffer.statuses[index]]
        odd_type = any(_NARROW.get(signature & ALL_ONES, LARGEST) < row.maximum or signature == _DOUBLE for row, signature in fields)
        doubtful = odd_type or any(_is_impossible(answers[name]) for row, _, _ in places for name in row.names)
        self._usual = None if doubtful else [buffer.statuses[index] for index in buffer.live]
        return self.block, self._flag_block(raw[self._mask]) if self._flagged else NOTHING

    def _add_shares(self, answers: dict[str, Value]) -> None:
        """Compute the shares, and drop values that contradict another value."""
        functions = {row.name: row.source.function for row in self._rows}
        for share, (of, among) in SHARES.items():
            if share not in self._names:
                continue
            part, whole = answers[of], self._limit if among == POWER_LIMIT else answers[among]
            if among == POWER_LIMIT:
                if not isinstance(part, Unavailable) and part > TIMES_LIMIT * self._watts:
                    part = answers[of] = impossible(functions[of])
            # It is not known which of the two is wrong, so neither is reported.
            elif _is_impossible(part) or _is_impossible(whole) or _exceeds(part, whole):
                part = whole = answers[of] = answers[among] = impossible(functions[of])
            if isinstance(part, Unavailable) or isinstance(whole, Unavailable):
                answers[share] = part if isinstance(part, Unavailable) else whole
            else:
                answers[share] = part / whole * 100
        for row in (row for row in self._rows if row.within):
            if _is_impossible(answers[row.within]) or _exceeds(answers[row.name], answers[row.within]):
                answers[row.name] = impossible(functions[row.name])


def _is_impossible(answer: Value) -> bool:
    return isinstance(answer, Unavailable) and answer.reason == Reason.INVALID_VALUE


def _exceeds(part: Value, whole: Value) -> bool:
    return not isinstance(part, Unavailable) and not isinstance(whole, Unavailable) and part > whole
