"""Calls that are made at every reading, and groups of them at a pace of their own.

The answers of each land in one buffer, which is decoded row by row. What is read at every reading has a shorter way: one
generated expression checks and converts. It is taken while the calls answer as they did when the rows were last decoded one by
one, and nothing that they answer is impossible. A test holds both ways equal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from itertools import compress
from typing import Any

from accelmetrics.backends.contract import NO_REASONS, Block, Number, Value
from accelmetrics.backends.kit.bounds import TIMES_LIMIT
from accelmetrics.backends.nvidia.buffer import DOUBLE, CallBuffer, largest_value
from accelmetrics.backends.nvidia.metrics import (
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
    NOT_SUPPORTED,
    Library,
    check_device,
    impossible,
)
from accelmetrics.schemas.errors import Reason, SourceError, Unavailable

Convert = Callable[[Sequence[Any], float], tuple[Number, ...] | None]
NOTHING = Block((), ())
MEMORY_NAMES = fast_names(MEMORY_ROWS)
EARLY = 0.95
"""Values are read again after this share of their interval: readings every second that come a millisecond early find them due."""

_FIELD, _CALL = 0, 1
"""The sources of a row that has both, in the order in which they are tried."""
_KEPT_MASKS = 64
_NO_FIELD = frozenset({Reason.NOT_SUPPORTED, Reason.INVALID_VALUE})
"""Why a field has no value that another look would not bring."""


def _available(row: NvmlMetric, answers: Mapping[str, Value], chosen: dict[object, int], handle: Any) -> NvmlMetric:
    """Return the row of the call that stands behind a field which the driver or the GPU does not have; else the row itself.

    The source that answers first stays: one that fails later is a reason, and not another source's number.
    """
    answer, key = answers[row.name], (handle.value, row.name)
    if not isinstance(answer, Unavailable):
        chosen.setdefault(key, _CALL if isinstance(row.source, Call) else _FIELD)
    elif row.otherwise is not None and key not in chosen and answer.reason in _NO_FIELD:
        return row.otherwise
    return row


def _single(rows: tuple[NvmlMetric, ...]) -> tuple[NvmlMetric, ...]:
    """Leave out a batch of one field which stands for a call."""
    fields = [row for row in rows if isinstance(row.source, NvmlField)]
    return tuple(row.otherwise or row for row in rows) if len(fields) == 1 else rows


class LatestValues:
    """The latest values of some metrics: the same objects while nothing about them changes.

    Attributes:
        block: The values.
        unavailable: Why the others are missing.
    """

    def __init__(self) -> None:
        self.block = NOTHING
        self.unavailable: Mapping[str, Unavailable] = NO_REASONS

    def keep(self, answers: Mapping[str, Value]) -> None:
        """Replace what differs."""
        metrics = {name: answer for name, answer in answers.items() if not isinstance(answer, Unavailable)}
        reasons = {name: answer for name, answer in answers.items() if isinstance(answer, Unavailable)}
        names, values = tuple(metrics), tuple(metrics.values())
        if names != self.block.names or values != self.block.values:
            self.block = Block(self.block.names if names == self.block.names else names, values)
        if reasons != self.unavailable:
            self.unavailable = reasons


class Paced(LatestValues):
    """Values that are read at most once per interval, and stand in between.

    Args:
        interval: Seconds between two calls; infinite for what never changes.

    Attributes:
        answers: Every value, or why it is missing, by name.
        due: When ``read`` is wanted next, in seconds on the driver's clock.
    """

    def __init__(self, interval: float) -> None:
        super().__init__()
        self.answers: Mapping[str, Value] = {}
        self.due = -math.inf
        self._interval = interval * EARLY
        self._failed = False

    def read(self, now: float, progress: list[Any]) -> bool:
        """Read now, and keep what differs. Returns: whether anything does."""
        answers = self.ask(now, progress)
        if answers is None or answers == self.answers:
            return False
        self.answers = answers
        self.keep(answers)
        return True

    def ask(self, now: float, progress: list[Any]) -> Mapping[str, Value] | None:
        """Call the driver and set ``due``. Returns: every answer, or None when all of them are as before."""
        raise NotImplementedError

    def schedule(self, now: float, failed: bool) -> None:
        """Set ``due`` after a call.

        A failure is met again at the next reading, once, since many pass by themselves; one that lasts is met once per interval, and not at
        every reading.
        """
        self.due = now + self._interval
        if failed:
            self.due = now + min(self._interval, TEN_SECONDS * EARLY) if self._failed else -math.inf
        self._failed = failed


class CallGroup(Paced):
    """Rows whose calls are made together. What the driver does not support is not asked for again.

    Args:
        library: The open library.
        handle: The device's handle.
        rows: What to read.
        interval: As in :class:`Paced`.
    """

    def __init__(self, library: Library, handle: Any, rows: tuple[NvmlMetric, ...], interval: float) -> None:
        super().__init__(interval)
        self._library = library
        self._handle = handle
        self._failing = False
        called = [row.otherwise if library.chosen.get((handle.value, row.name)) == _CALL else None for row in rows]
        self._bind(_single(tuple(row if other is None else other for row, other in zip(rows, called, strict=True))))

    def read_instead(self, rows: tuple[NvmlMetric, ...]) -> None:
        """Read other rows from the next call on, at the same pace. A function that has answered stays one that is supported."""
        before = self._buffer
        answered = {before.layout.calls[index].function for index in before.answered}
        self._bind(_single(rows))
        self._buffer.answered.update(index for index, call in enumerate(self._buffer.layout.calls) if call.function in answered)

    def _bind(self, rows: tuple[NvmlMetric, ...]) -> None:
        self._rows = rows
        self._answered: tuple[Any, ...] = ()
        self._buffer = CallBuffer(self._library, self._handle, rows)

    def ask(self, now: float, progress: list[Any]) -> Mapping[str, Value] | None:
        answers = self._call(progress)
        rows = self._rows
        if answers is not None:
            rows = tuple(_available(row, answers, self._library.chosen, self._handle) for row in rows)
        if rows != self._rows:
            self._bind(rows)
            answers = self._call(progress)
        self.schedule(now, self._failing)
        return answers

    def _call(self, progress: list[Any]) -> dict[str, Value] | None:
        """Make the calls. Returns: every answer, or None when all of them are as before."""
        buffer = self._buffer
        for index in buffer.live:
            status = buffer.statuses[index] = buffer.bound[index]()
            progress.append(status)
            # Checked at once: a lost device answers slowly, and none of the other calls would fare better.
            check_device(status, buffer.layout.calls[index].function)
        raw = buffer.numbers()
        answered = (*buffer.statuses, *raw)
        answers = None
        if answered != self._answered:
            self._answered = answered
            answers = buffer.decode(raw)
            buffer.live = [index for index in buffer.live if buffer.statuses[index] != NOT_SUPPORTED or index in buffer.answered]
            reasons = {answer.reason for answer in answers.values() if isinstance(answer, Unavailable)}
            self._failing = any(buffer.statuses[index] for index in buffer.live) or not reasons <= {Reason.NOT_SUPPORTED}
        return answers


class FastValues(LatestValues):
    """The values of one device that are read at every reading. Consumers share them: they never read at the same time.

    Args:
        library: The open library.
        handle: The device's handle.
        rows: What to read.
        called: The same where fields that stand for calls are missing.
        convert: The generated conversions of these rows and of those.
        stale: Return codes that say, when every call answers with one of them, that the handle is no longer the device's.
        stale_error: Makes the error for that.
        needed: The metrics for which calls are made; one that gives none of them is taken for one that the driver does not support.
    """

    def __init__(
        self,
        library: Library,
        handle: Any,
        rows: tuple[NvmlMetric, ...],
        called: tuple[NvmlMetric, ...],
        convert: tuple[Convert, Convert],
        stale: frozenset[int],
        stale_error: Callable[[], SourceError],
        needed: frozenset[str],
    ) -> None:
        super().__init__()
        self._library = library
        self._handle = handle
        self._called = called
        self._stale = stale
        self._stale_error = stale_error
        self._needed = needed
        self._names = fast_names(rows)
        self._left_out: frozenset[str] = frozenset()
        self._limit: Value = 1.0
        self._watts: Number = math.inf
        self._converts = convert
        used = tuple(row for row in rows if not needed.isdisjoint(row.names))
        by_call = _single(used) != used or any(library.chosen.get((handle.value, row.name)) == _CALL for row in used if row.otherwise)
        self._bind(called if by_call else rows)

    def _bind(self, rows: tuple[NvmlMetric, ...]) -> None:
        """Bind the calls that give the rows."""
        self._rows = rows
        self._convert = self._converts[rows is self._called]
        self._buffer = CallBuffer(self._library, self._handle, rows)
        places = self._buffer.layout.places
        flags, self._mask = next(((row, place) for row, _, _, place in places if row.flags), (None, 0))
        self._flags = flags.names if flags is not None else ()
        self._flag_block = lru_cache(maxsize=_KEPT_MASKS)(partial(_decode_flags, flags))
        # How the calls answered when the rows were last decoded one by one; None when the next reading has to do that again.
        self._usual: list[int] | None = None
        # Which of the converted values are given; None for all of them.
        self._given: list[bool] | None = None
        self._flagged = False
        self._calls: list[Callable[[], int]] = []
        used = {index for _, names, index, _ in places if not self._needed.isdisjoint(names)}
        self._buffer.statuses = [status if index in used else NOT_SUPPORTED for index, status in enumerate(self._buffer.statuses)]
        self._drop({index for index, status in enumerate(self._buffer.statuses) if status})

    def depend_on(self, limit: Value, left_out: frozenset[str]) -> None:
        """Set what other values of the device decide.

        Args:
            limit: The enforced power limit in watts, or why it is not known.
            left_out: Metrics that something else gives, even if this does not.
        """
        missing, missed = (answer if isinstance(answer, Unavailable) else None for answer in (limit, self._limit))
        if missing != missed or left_out != self._left_out:
            self._usual = None
        self._limit, self._left_out = limit, left_out
        self._watts = math.inf if isinstance(limit, Unavailable) else limit

    def read(self, progress: list[Any]) -> tuple[Block, Block]:
        """Read now. Returns: the values, and those of the flags."""
        start = len(progress)
        append = progress.append
        for call in self._calls:
            append(call())
        buffer = self._buffer
        raw = buffer.unpack()
        if progress[start:] == self._usual and raw[buffer.layout.signatures] == buffer.signatures:
            values = self._convert(raw, self._watts)
            if values is not None:
                if self._given is not None:
                    values = tuple(compress(values, self._given))
                return Block(self.block.names, values), self._flag_block(raw[self._mask]) if self._flagged else NOTHING
        return self._read_rows(progress[start:], progress)

    def _read_rows(self, statuses: list[int], progress: list[Any]) -> tuple[Block, Block]:
        """Decode row by row what was just read, and decide whether the next reading may take the fast way."""
        buffer = self._buffer
        for index, status in zip(buffer.live, statuses, strict=True):
            check_device(status, buffer.layout.calls[index].function)
            buffer.statuses[index] = status
        if statuses and self._stale.issuperset(statuses):
            raise self._stale_error()
        raw = buffer.numbers()
        answers = buffer.decode(raw)
        available = [_available(row, answers, self._library.chosen, self._handle) for row in self._rows]
        if any(found is not row and not self._needed.isdisjoint(row.names) for found, row in zip(available, self._rows, strict=True)):
            self._bind(self._called)
            return self.read(progress)
        buffer.settle()
        self._calls = [buffer.bound[index] for index in buffer.live]
        self._relate(answers)
        names = [name for name in self._names if name not in self._left_out]
        missing = [name for name in self._flags if isinstance(answers[name], Unavailable)]
        self.keep({name: answers[name] for name in (*names, *missing)})
        self._flagged = bool(self._flags) and not missing
        self._given = None if self.block.names == self._names else [name in self.block.names for name in self._names]
        self._drop_unsupported(raw)
        self._usual = None if self._is_doubtful(answers, raw) else [buffer.statuses[index] for index in buffer.live]
        return self.block, self._flag_block(raw[self._mask]) if self._flagged else NOTHING

    def _relate(self, answers: dict[str, Value]) -> None:
        """Compute the shares, and drop what is impossible beside another value."""
        functions = {row.name: row.source.function for row in self._rows}
        for share in (share for share in SHARES if share.name in self._names):
            part, whole = answers[share.part], self._limit if share.whole == POWER_LIMIT else answers[share.whole]
            if share.bounded and (_is_impossible(part) or _is_impossible(whole) or _exceeds(part, whole)):
                part = whole = answers[share.part] = answers[share.whole] = impossible(functions[share.part])
            if share.whole == POWER_LIMIT and not isinstance(part, Unavailable) and part > TIMES_LIMIT * self._watts:
                part = answers[share.part] = impossible(functions[share.part])
            if isinstance(part, Unavailable) or isinstance(whole, Unavailable):
                answers[share.name] = part if isinstance(part, Unavailable) else whole
            else:
                answers[share.name] = part / whole * 100
        for row in (row for row in self._rows if row.within):
            if _is_impossible(answers[row.within]) or _exceeds(answers[row.name], answers[row.within]):
                answers[row.name] = impossible(functions[row.name])

    def _is_doubtful(self, answers: dict[str, Value], raw: Sequence[Any]) -> bool:
        """Return whether a value was impossible, or of a type that the generated conversion does not know: a narrow or a real one."""
        places, statuses = self._buffer.layout.places, self._buffer.statuses
        impossible_one = any(_is_impossible(answers[name]) for _, names, _, _ in places for name in names)
        fields = [(row, raw[place - 1]) for row, _, index, place in places if isinstance(row.source, NvmlField) and not statuses[index]]
        return impossible_one or any(largest_value(signature) < row.maximum or signature == DOUBLE for row, signature in fields)

    def _drop_unsupported(self, raw: Sequence[Any]) -> None:
        """Drop the calls that the driver has never supported, and the batch of fields when it supports none of them."""
        live, statuses, answered = self._buffer.live, self._buffer.statuses, self._buffer.answered
        signatures = raw[self._buffer.layout.signatures]
        if signatures and not statuses[-1] and all(signature >> 32 == NOT_SUPPORTED for signature in signatures):
            statuses[-1] = 0 if len(statuses) - 1 in answered else NOT_SUPPORTED
        unsupported = {index for index in live if statuses[index] == NOT_SUPPORTED} - answered
        # One call is kept: a device that is lost shows in what it answers.
        if unsupported and len(unsupported) < len(live):
            self._drop(unsupported)

    def _drop(self, indices: set[int]) -> None:
        """Drop calls; their numbers become harmless to convert."""
        buffer = self._buffer
        for index in indices:
            buffer.fill(index)
        buffer.live = [index for index in buffer.live if index not in indices]
        self._calls = [buffer.bound[index] for index in buffer.live]


def _decode_flags(row: NvmlMetric | None, answer: int) -> Block:
    """Return the flags of an answer as 0 and 1."""
    return NOTHING if row is None else Block(row.names, row.bits(answer))


def _is_impossible(answer: Value) -> bool:
    return isinstance(answer, Unavailable) and answer.reason == Reason.INVALID_VALUE


def _exceeds(part: Value, whole: Value) -> bool:
    return not isinstance(part, Unavailable) and not isinstance(whole, Unavailable) and part > whole
