"""What is read at every reading, as cheaply as Python can.

The loop calls, one ``unpack_from`` decodes, one generated expression checks and converts. That way is taken while the calls answer
as they did when the rows were last decoded one by one, and nothing that they answer is impossible. A test holds both ways equal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

from accelmetrics.backends.contract import Block, Number
from accelmetrics.backends.nvidia.groups import NOTHING, Answer, CallBuffer, Values, largest_value
from accelmetrics.backends.nvidia.metrics import MEMORY_ROWS, POWER_LIMIT, SHARES, Field, Row, fast_names
from accelmetrics.backends.nvidia.nvml import NOT_SUPPORTED, Library, check_device, impossible
from accelmetrics.schemas.errors import Reason, SourceError, Unavailable

Convert = Callable[[Sequence[Any], float], tuple[Number, ...] | None]
MEMORY_NAMES = fast_names(MEMORY_ROWS)
_KEPT_MASKS = 64


class FastValues(Values):
    """The values of one device that are read at every reading. Consumers share them: they never read at the same time.

    Args:
        library: The open library.
        handle: The device's handle.
        rows: What to read.
        convert: The generated conversion of these rows.
        stale: Return codes that say, when every call answers with one of them, that the handle is no longer the device's.
        stale_error: Makes the error for that.
    """

    def __init__(
        self,
        library: Library,
        handle: Any,
        rows: tuple[Row, ...],
        convert: Convert,
        stale: frozenset[int],
        stale_error: Callable[[], SourceError],
    ) -> None:
        super().__init__()
        self._rows = rows
        self._convert = convert
        self._stale = stale
        self._stale_error = stale_error
        self._names = fast_names(rows)
        self._left_out: frozenset[str] = frozenset()
        self._limit: Answer = 1.0
        self._watts: Number = 1.0
        self._buffer = CallBuffer(library, handle, rows)
        places = self._buffer.layout.places
        self._flags, self._mask = next(((row.flags, place) for row, _, _, place in places if row.flags), ((), 0))
        self._masks: dict[int, Block] = {}
        # How the calls answered when the rows were last decoded one by one; None when the next reading has to do that again.
        self._usual: list[int] | None = None
        self._pick: Callable[[Sequence[Number]], tuple[Number, ...]] = tuple
        self._flagged = False
        self._calls: list[Callable[[], int]] = []
        self._drop({index for index, status in enumerate(self._buffer.statuses) if status})

    def depend_on(self, limit: Answer, left_out: frozenset[str]) -> None:
        """Set what other values of the device decide.

        Args:
            limit: The enforced power limit in watts, or why it is not known.
            left_out: Metrics that something else gives, even if this does not.
        """
        missing, missed = (answer if isinstance(answer, Unavailable) else None for answer in (limit, self._limit))
        if missing != missed or left_out != self._left_out:
            self._usual = None
        self._limit, self._left_out = limit, left_out
        self._watts = 1.0 if isinstance(limit, Unavailable) else limit

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
                flags = self._masks.get(raw[self._mask]) or self._decode_flags(raw[self._mask]) if self._flagged else NOTHING
                return Block(self.block.names, self._pick(values)), flags
        return self._read_rows(progress[start:])

    def _read_rows(self, statuses: list[int]) -> tuple[Block, Block]:
        """Decode row by row what was just read, and decide whether the next reading may take the fast way."""
        buffer = self._buffer
        for index, status in zip(buffer.live, statuses, strict=True):
            check_device(status, buffer.layout.calls[index].function)
            buffer.statuses[index] = status
        if statuses and self._stale.issuperset(statuses):
            raise self._stale_error()
        raw = buffer.numbers()
        answers = buffer.decode(raw)
        self._relate(answers)
        names = [name for name in self._names if name not in self._left_out]
        missing = [name for name in self._flags if isinstance(answers[name], Unavailable)]
        self.keep({name: answers[name] for name in (*names, *missing)})
        self._flagged = bool(self._flags) and not missing
        self._pick = _picker([self._names.index(name) for name in self.block.names], len(self._names))
        self._drop_unsupported(raw)
        self._usual = None if self._is_doubtful(answers, raw) else [buffer.statuses[index] for index in buffer.live]
        return self.block, self._decode_flags(raw[self._mask]) if self._flagged else NOTHING

    def _relate(self, answers: dict[str, Answer]) -> None:
        """Compute the shares, and drop what is impossible beside another value."""
        functions = {row.name: row.source.function for row in self._rows}
        for share in (share for share in SHARES if share.name in self._names):
            part, whole = answers[share.part], self._limit if share.whole == POWER_LIMIT else answers[share.whole]
            if share.bounded and (_is_impossible(part) or _is_impossible(whole) or _exceeds(part, whole)):
                part = whole = answers[share.part] = answers[share.whole] = impossible(functions[share.part])
            if isinstance(part, Unavailable) or isinstance(whole, Unavailable):
                answers[share.name] = part if isinstance(part, Unavailable) else whole
            else:
                answers[share.name] = part / whole * 100
        for row in (row for row in self._rows if row.within):
            if _is_impossible(answers[row.within]) or _exceeds(answers[row.name], answers[row.within]):
                answers[row.name] = impossible(functions[row.name])

    def _is_doubtful(self, answers: dict[str, Answer], raw: Sequence[Any]) -> bool:
        """Return whether a value was impossible, or of a type whose all-ones the generated conversion does not know."""
        for row, names, index, place in self._buffer.layout.places:
            if any(_is_impossible(answers[name]) for name in names):
                return True
            if isinstance(row.source, Field) and not self._buffer.statuses[index] and largest_value(raw[place - 1]) < row.maximum:
                return True
        return False

    def _drop_unsupported(self, raw: Sequence[Any]) -> None:
        """Drop the calls that the driver does not support, and the batch of fields when it supports none of them."""
        live, statuses = self._buffer.live, self._buffer.statuses
        signatures = raw[self._buffer.layout.signatures]
        if signatures and not statuses[-1] and all(signature >> 32 == NOT_SUPPORTED for signature in signatures):
            statuses[-1] = NOT_SUPPORTED
        unsupported = {index for index in live if statuses[index] == NOT_SUPPORTED}
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

    def _decode_flags(self, mask: int) -> Block:
        """Return the bits of a mask as 0 and 1, in one block per mask, so that it stays the same object."""
        if len(self._masks) >= _KEPT_MASKS:
            self._masks.clear()
        return self._masks.setdefault(mask, Block(self._flags, tuple(mask >> bit & 1 for bit in range(len(self._flags)))))


def _is_impossible(answer: Answer) -> bool:
    return isinstance(answer, Unavailable) and answer.reason == Reason.INVALID_VALUE


def _exceeds(part: Answer, whole: Answer) -> bool:
    return not isinstance(part, Unavailable) and not isinstance(whole, Unavailable) and part > whole


def _picker(indices: Sequence[int], width: int) -> Callable[[Sequence[Number]], tuple[Number, ...]]:
    """Return what takes the values at some places, always as a tuple; all of them at no cost."""
    if list(indices) == list(range(width)):
        return tuple
    if len(indices) > 1:
        return itemgetter(*indices)
    return lambda values: tuple(values[index] for index in indices)
