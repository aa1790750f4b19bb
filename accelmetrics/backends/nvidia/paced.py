"""Groups of values that are read at a pace of their own, and kept in between."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from accelmetrics.backends.contract import Block, Number
from accelmetrics.backends.nvidia import fields
from accelmetrics.backends.nvidia.calls import Call, Value
from accelmetrics.backends.nvidia.errors import FUNCTION_NOT_FOUND, NOT_SUPPORTED, check_device, field_unavailable, impossible, unavailable
from accelmetrics.backends.nvidia.library import Library
from accelmetrics.backends.nvidia.slots import Slots
from accelmetrics.schemas.reasons import Reason, Unavailable

EARLY = 0.95
"""A group is due after this share of its interval: readings every second that come a millisecond early find it due."""

Answer = tuple[Value, Number | Unavailable]


class Pace:
    """When a call of its own is made again: once an interval.

    After a failure it is made at the next reading, once, since many pass by themselves; one that lasts is met once an
    interval, and not at every reading. What the driver does not support is not asked for again.

    Args:
        interval: Seconds between two calls.

    Attributes:
        due: When the call is wanted next, in seconds on the monotonic clock.
    """

    __slots__ = ("_failed", "_interval", "due")

    def __init__(self, interval: float) -> None:
        self._interval = interval * EARLY
        self._failed = False
        self.due = -math.inf

    def note(self, now: float, status: int) -> None:
        """Note the return code of a call, 0 where it went well."""
        again = status != 0 and not self._failed
        self._failed = status != 0
        self.due = -math.inf if again else now + self._interval
        if status == NOT_SUPPORTED:
            self.end()

    def end(self) -> None:
        """Never make it again."""
        self.due = math.inf


class Group:
    """Calls that are made together, at most once per interval.

    A call that failed is made again at the next reading, whatever the interval, unless the driver says that it does not
    support it: then it is not made again at all.

    Args:
        library: The open library.
        handle: The device's handle.
        calls: What to read.
        interval: Seconds between two readings; infinite for what never changes.
        patient: Fields that fail wait for the interval too; only a call that fails as a whole is made again at once.

    Attributes:
        block: The values; the same object while nothing in it changed.
        unavailable: Why the others are missing; likewise.
    """

    def __init__(self, library: Library, handle: Any, calls: Sequence[Call], interval: float, patient: bool = False) -> None:
        self._patient = patient
        self._slots = Slots(library, handle, calls)
        self._unpack = self._slots.decoder()
        self._batches = [span for call, span in zip(self._slots.calls, self._slots.spans, strict=True) if call.fields]
        self._interval = interval * EARLY
        self._statuses = [FUNCTION_NOT_FOUND if bound is None else 0 for bound in self._slots.bound]
        self._live = [index for index, bound in enumerate(self._slots.bound) if bound is not None]
        self._again: list[int] = []
        self._signatures: list[int] = []
        self._answered: tuple[Any, ...] = ()
        self._next = -math.inf
        self.block = Block((), ())
        self.unavailable: Mapping[str, Unavailable] = {}

    @property
    def due(self) -> float:
        """When it wants to be read next."""
        return -math.inf if self._again else self._next

    def read(self, now: float, steps: list[Any]) -> bool:
        """Read what is due now; says whether anything is different from before."""
        whole = now >= self._next
        if not whole and not self._again:
            return False
        for index in self._live if whole else self._again:
            self._call(index, steps)
        if whole:
            self._next = now + self._interval
        raw = self._decode()
        answered = (*self._statuses, *raw)
        if answered == self._answered:
            return False
        self._answered = answered
        return self._store([(i, answer) for i, span in enumerate(self._slots.spans) for answer in self._answers(i, raw[span])])

    def _call(self, index: int, steps: list[Any]) -> None:
        bound = self._slots.bound[index]
        assert bound is not None  # only calls that the driver has are live
        status = bound()
        steps.append(status)
        # Checked at once: a lost device answers slowly, and none of the other calls would fare better.
        check_device(status, self._slots.calls[index].function)
        self._statuses[index] = status

    def _decode(self) -> tuple[Any, ...]:
        """The buffer as numbers, the fields by the types that they came with."""
        raw = self._unpack()
        signatures = [signature for span in self._batches for signature in raw[span][:: fields.NUMBERS]]
        if signatures != self._signatures:
            self._signatures = signatures
            self._unpack = self._slots.decoder(signatures)
            raw = self._unpack()
        return raw

    def _answers(self, index: int, raw: Sequence[int]) -> Iterator[Answer]:
        call, status = self._slots.calls[index], self._statuses[index]
        if call.fields:
            for field, signature, bits in zip(call.fields, raw[::2], raw[1::2], strict=True):
                yield field.value, unavailable(status) if status else _field_answer(call, field.value, signature, bits)
            return
        for value, number in zip(call.values, raw, strict=True):
            yield value, unavailable(status) if status else _checked(call, value, number)

    def _store(self, answers: list[tuple[int, Answer]]) -> bool:
        self._live = [index for index in self._live if self._statuses[index] != NOT_SUPPORTED]
        doubtful = {i for i, (_, answer) in answers if isinstance(answer, Unavailable) and answer.reason != Reason.NOT_SUPPORTED}
        self._again = [index for index in self._live if self._statuses[index] or (index in doubtful and not self._patient)]
        reasons: dict[str, Unavailable] = {}
        metrics: dict[str, Number] = {}
        for _, (value, answer) in answers:
            target: dict[str, Any] = reasons if isinstance(answer, Unavailable) else metrics
            target.update(dict.fromkeys(value.names, answer))
        return self._replace(metrics, reasons)

    def _replace(self, metrics: dict[str, Number], reasons: dict[str, Unavailable]) -> bool:
        names, values = tuple(metrics), tuple(metrics.values())
        changed = False
        if names != self.block.names or values != self.block.values:
            self.block = Block(self.block.names if names == self.block.names else names, values)
            changed = True
        if reasons != self.unavailable:
            self.unavailable = reasons
            changed = True
        return changed

    def get(self, name: str) -> Number | Unavailable:
        """One of the group's values, or why it is missing."""
        if name in self.unavailable:
            return self.unavailable[name]
        return self.block.values[self.block.names.index(name)]


def _field_answer(call: Call, value: Value, signature: int, number: Number) -> Number | Unavailable:
    status = fields.status_of(signature)
    if status:
        return field_unavailable(status)
    return impossible(call.function) if number > fields.largest(signature) else _checked(call, value, number)


def _checked(call: Call, value: Value, number: Number) -> Number | Unavailable:
    if not value.minimum <= number <= value.maximum:
        return impossible(call.function)
    return number if value.divisor == 1 else number / value.divisor
