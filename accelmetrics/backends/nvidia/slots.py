"""One contiguous buffer per group of calls, every call bound to its place in it.

A bound call is a ``functools.partial`` without arguments left to give, which is the cheapest way from Python into the
driver; all answers are then decoded by one ``unpack_from``.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any

from accelmetrics.backends.nvidia import fields
from accelmetrics.backends.nvidia.calls import FIELD_HEAD, Call
from accelmetrics.backends.nvidia.library import Library, NvmlFunction

Invoke = Callable[[], int]
Unpack = Callable[[], tuple[Any, ...]]
_ALIGNMENT = 8
_STRUCTURES = 256
"""How many layouts are remembered."""
# fieldId and scopeId are the first two members of nvmlFieldValue_t.
_FIELD_KEY = struct.Struct("=II")
_FIELD_SIZE = struct.calcsize(f"={FIELD_HEAD}Q")


class Slots:
    """The buffer, and what is bound to it.

    Attributes:
        calls: The calls as this driver has them, fallbacks resolved.
        bound: One per call, None where the driver has no such function.
        spans: Where each call's numbers stand in what is unpacked.
    """

    def __init__(self, library: Library, handle: Any, calls: Sequence[Call]) -> None:
        self.calls = tuple(_resolve(library, call) for call in calls)
        self._offsets = _offsets(self.calls)
        self._buffer = (ctypes.c_ulonglong * (self._offsets[-1] // _ALIGNMENT))()
        self.spans = _spans(self.calls)
        self.bound = [self._bind(library, handle, call, offset) for call, offset in zip(self.calls, self._offsets, strict=False)]

    def decoder(self, signatures: Sequence[int] = ()) -> Unpack:
        """What unpacks the whole buffer, with fields of the given types in their order; of the widest one by default."""
        return partial(_structure(self.calls, tuple(signatures)).unpack_from, self._buffer)

    def fill(self, index: int) -> None:
        """Make every number of a call's slot 1: harmless to compute with, for a call that is never made."""
        layout = layout_of(self.calls[index])
        struct.pack_into(f"={layout}", self._buffer, self._offsets[index], *[1] * count_of(self.calls[index]))

    def _bind(self, library: Library, handle: Any, call: Call, offset: int) -> Invoke | None:
        function = exported(library, call)
        if function is None:
            return None
        for number, field in enumerate(call.fields):
            _FIELD_KEY.pack_into(self._buffer, offset + number * _FIELD_SIZE, field.identifier, field.scope)
        if call.version is not None:
            ctypes.c_uint.from_buffer(self._buffer, offset).value = call.version
        arguments = (len(call.fields),) if call.fields else call.arguments
        pointers = [ctypes.byref(self._buffer, offset + place) for place in call.pointers]
        return partial(function, handle, *arguments, *pointers)


def layout_of(call: Call, signatures: Iterator[int] | None = None) -> str:
    """A call's slot as a ``struct`` format, filled up to the alignment of the next one."""
    typed = (fields.layout_of(next(signatures or iter(()), fields.UNSIGNED_LONG_LONG)) for _ in call.fields)
    layout = "".join(f"{FIELD_HEAD}{value}" for value in typed) if call.fields else call.layout
    return f"{layout}{-struct.calcsize('=' + layout) % _ALIGNMENT}x"


@lru_cache(maxsize=_STRUCTURES)
def _structure(calls: tuple[Call, ...], signatures: tuple[int, ...]) -> struct.Struct:
    """The whole buffer's layout: the devices of a machine are mostly alike, so one of them has worked it out for all."""
    remaining = iter(signatures)
    return struct.Struct("=" + "".join(layout_of(call, remaining) for call in calls))


def count_of(call: Call) -> int:
    """How many numbers a call's slot has."""
    return fields.NUMBERS * len(call.fields) if call.fields else len(call.values)


def exported(library: Library, call: Call) -> NvmlFunction | None:
    """The first of a call's functions that the driver has."""
    found = (library.function(name) for name in call.functions)
    return next((function for function in found if function is not None), None)


def _resolve(library: Library, call: Call) -> Call:
    if call.fallback is not None and exported(library, call) is None:
        return call.fallback
    return call


@lru_cache(maxsize=_STRUCTURES)
def _offsets(calls: tuple[Call, ...]) -> tuple[int, ...]:
    """Where each slot begins, and at the end where the last one ends."""
    offsets = [0]
    for call in calls:
        offsets.append(offsets[-1] + struct.calcsize("=" + layout_of(call)))
    return tuple(offsets)


def _spans(calls: Sequence[Call]) -> tuple[slice, ...]:
    spans: list[slice] = []
    for call in calls:
        start = spans[-1].stop if spans else 0
        spans.append(slice(start, start + count_of(call)))
    return tuple(spans)
