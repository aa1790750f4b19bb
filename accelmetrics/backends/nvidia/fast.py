"""What is read at every reading, as cheaply as Python can.

The loop calls, one ``unpack_from`` decodes, one expression computes and one tests. Everything that follows from *which*
calls failed is looked up in the :class:`~accelmetrics.backends.nvidia.layouts.Layout` of that pattern.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from accelmetrics.backends.contract import Block, Number
from accelmetrics.backends.nvidia import fields, layouts
from accelmetrics.backends.nvidia.calls import COLDEST, FAST, FAST_FIELDS, HOTTEST, LARGEST, LARGEST_32, THROTTLE, Call
from accelmetrics.backends.nvidia.errors import FUNCTION_NOT_FOUND, INVALID_ARGUMENT, NOT_SUPPORTED, UNINITIALIZED, check_device, fail
from accelmetrics.backends.nvidia.layouts import Layout
from accelmetrics.backends.nvidia.library import Library
from accelmetrics.backends.nvidia.slots import Invoke, Slots
from accelmetrics.schemas.reasons import Unavailable

_SIGNATURES = slice(12, None, fields.NUMBERS)
"""Where types and return codes of the fields stand among the unpacked numbers."""
_MASK = 10
"""Where the clocks-event reasons stand."""
_FIELDS_CALL = FAST.index(FAST_FIELDS)
_KEPT = 64
_NO_THROTTLE = Block((), ())


class PowerLimit(NamedTuple):
    """What ``powerPercent`` is a share of: the limit in watts, or why it is not known."""

    watts: float = 1.0
    missing: Unavailable | None = None


FastReading = tuple[Layout, tuple[Number, ...], Block]
"""One reading: the layout, the values of its names, the block of the clocks-event reasons."""


class Fast:
    """The fast values of one device.

    Args:
        library: The open library.
        handle: The device's handle.
        skip: Calls that are not made, since something else gives their values.
    """

    def __init__(self, library: Library, handle: Any, skip: Iterable[Call] = ()) -> None:
        self._slots = Slots(library, handle, FAST)
        skipped = [FAST.index(call) for call in skip]
        self._skipped = frozenset(name for index in skipped for name in layouts.names_of(index))
        self._elsewhere = self._skipped
        self._fixed: dict[int, int] = {i: FUNCTION_NOT_FOUND for i, bound in enumerate(self._slots.bound) if bound is None}
        self._fixed.update(dict.fromkeys(skipped, NOT_SUPPORTED))
        self._limit = PowerLimit()
        self._layouts: dict[object, Layout] = {}
        self._throttles: dict[int, Block] = {}
        self._unpack = self._slots.decoder()
        self._select()

    def set_limit(self, limit: PowerLimit) -> None:
        """Say what ``powerPercent`` is a share of from now on."""
        if limit.missing != self._limit.missing:
            self._forget()
        self._limit = limit

    def leave_out(self, names: frozenset[str]) -> None:
        """Say which metrics something else gives, besides those of skipped calls."""
        elsewhere = self._skipped | names
        if elsewhere != self._elsewhere:
            self._elsewhere = elsewhere
            self._forget()

    def read(self, steps: list[Any]) -> FastReading:
        """Read now: the layout, the values of its names, and the block of the clocks-event reasons."""
        start = len(steps)
        append = steps.append
        for call in self._calls:
            append(call())
        raw = self._unpack()
        statuses = steps[start:]
        if statuses != self._statuses or raw[_SIGNATURES] != self._signatures:
            self._turn(statuses, raw[_SIGNATURES])
            raw = self._unpack()
        layout = self._layout
        computed = self._compute(raw)
        if computed is None or layout.narrow:
            layout, raw = self._without_impossible(layout, raw)
            computed = self._compute(raw)
            assert computed is not None  # nothing impossible is left
        throttle = self._throttles.get(raw[_MASK]) or self._flags(raw[_MASK]) if layout.throttle else _NO_THROTTLE
        return layout, layout.pick(computed), throttle

    def _compute(self, raw: tuple[Any, ...]) -> tuple[Number, ...] | None:
        """Every metric in the order of ``layouts.NAMES``, None if something that it comes from cannot be."""
        gpu, memory, total, free, used, temp, power, sm, mem, graphics, mask, state, _, hbm, _, energy, _, tx, _, rx, _, ntx, _, nrx = raw
        if not (
            (gpu <= 100 and memory <= 100 and used <= total and free <= total and 0 < total <= LARGEST and temp <= HOTTEST)
            and (power <= LARGEST_32 and sm <= LARGEST_32 and mem <= LARGEST_32 and graphics <= LARGEST_32 and mask <= LARGEST)
            and (state <= 15 and COLDEST <= hbm <= HOTTEST and 0 <= energy <= LARGEST and 0 <= tx <= LARGEST)
            and (0 <= rx <= LARGEST and 0 <= ntx <= LARGEST and 0 <= nrx <= LARGEST)
        ):
            return None
        watts = power / 1000
        return (
            gpu,
            memory,
            used / total * 100,
            used,
            total,
            free,
            temp,
            watts,
            watts / self._limit.watts * 100,
            sm,
            mem,
            graphics,
            state,
            hbm,
            energy / 1000,
            tx,
            rx,
            ntx * 1024,
            nrx * 1024,
        )

    def _flags(self, mask: int) -> Block:
        """The bits of the clocks-event reasons as 0 and 1: one block per mask, so that it stays the same object."""
        if len(self._throttles) >= _KEPT:
            self._throttles.clear()
        return self._throttles.setdefault(mask, Block(THROTTLE, tuple(mask >> bit & 1 for bit in range(len(THROTTLE)))))

    def _select(self) -> None:
        """Settle which calls are made."""
        live = [(i, bound) for i, bound in enumerate(self._slots.bound) if bound is not None and i not in self._fixed]
        self._indices = [i for i, _ in live]
        self._calls: tuple[Invoke, ...] = tuple(bound for _, bound in live)
        for index in self._fixed:
            self._slots.fill(index)
        self._forget()

    def _forget(self) -> None:
        """Take nothing for granted at the next reading."""
        self._layouts.clear()
        self._statuses: list[int] | None = None
        self._signatures: tuple[int, ...] = ()

    def _turn(self, statuses: list[int], signatures: tuple[int, ...]) -> None:
        """Turn to another pattern of answers, and remember what will not change."""
        by_call = dict(zip(self._indices, statuses, strict=True))
        for index, status in by_call.items():
            check_device(status, FAST[index].function)
        if set(statuses) == {INVALID_ARGUMENT}:
            # No single call can be at fault: the handle is from before a reload that somebody else in this process noticed.
            fail(UNINITIALIZED, "the device's handle is no longer valid")
        self._statuses, self._signatures = statuses, signatures
        self._layout = self._look_up(by_call, frozenset())
        self._unpack = self._layout.unpack
        refused = _refused(by_call, signatures)
        if refused:
            self._fixed.update(dict.fromkeys(refused, NOT_SUPPORTED))
            self._select()

    def _look_up(self, by_call: Mapping[int, int], wrong: frozenset[str]) -> Layout:
        """The layout of the present pattern, without the metrics whose values cannot be."""
        key = (*by_call.values(), *self._signatures, wrong)
        found = self._layouts.get(key)
        if found is None:
            if len(self._layouts) >= _KEPT:
                self._layouts.clear()
            found = self._layouts[key] = self._build({**by_call, **self._fixed}, wrong)
        return found

    def _build(self, statuses: Mapping[int, int], wrong: frozenset[str]) -> Layout:
        reasons = layouts.reasons_of(statuses, self._signatures, self._limit.missing)
        reasons = layouts.impossible_reasons(wrong) | reasons
        return layouts.build(self._slots.decoder(self._signatures), reasons, self._elsewhere, self._signatures)

    def _without_impossible(self, layout: Layout, raw: tuple[Any, ...]) -> tuple[Layout, tuple[Any, ...]]:
        """The layout without the metrics that cannot be, and numbers that can be computed with."""
        raw, wrong = layouts.without_impossible(raw)
        wrong = wrong.intersection((*layout.names, *(THROTTLE if layout.throttle else ())))
        if wrong:
            layout = self._look_up(dict(zip(self._indices, self._statuses or (), strict=False)), wrong)
        return layout, raw


def _refused(statuses: Mapping[int, int], signatures: Sequence[int]) -> list[int]:
    """The calls that need not be made again: the driver says that it does not support what they ask."""
    refused = [index for index, status in statuses.items() if status == NOT_SUPPORTED]
    if statuses.get(_FIELDS_CALL) == 0 and all(fields.status_of(signature) == NOT_SUPPORTED for signature in signatures):
        refused.append(_FIELDS_CALL)
    return refused
