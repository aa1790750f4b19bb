"""The statistics of a window: what becomes of its readings, a block of them at a time."""

from __future__ import annotations

import functools
from array import array
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import NamedTuple

from accelmetrics.sampling.energy import DeviceEnergy, energy_columns
from accelmetrics.sampling.rows import Block, Layout, Row, split
from accelmetrics.sampling.summary import Accumulator, Summary
from accelmetrics.schemas.vitals import MEMORY_PERCENT, MEMORY_USED, POWER, UTILIZATION

AGGREGATED = frozenset((*UTILIZATION, "memory", *MEMORY_PERCENT, *MEMORY_USED, *POWER))
"""Names whose values are also taken over all devices of a reading."""


class Across(NamedTuple):
    """One metric over all devices of the selection: each reading's mean, largest value and sum, summarised over the window.

    Attributes:
        mean: Of the devices that gave a value.
        max: The largest of them.
        total: The sum, over the readings in which every device gave a value; None when there was none.
    """

    mean: Summary
    max: Summary
    total: Summary | None


class _Span(NamedTuple):
    """From when to when a row stands for, within the window, and whether the row before it was the last that could be read."""

    low: float
    high: float
    joined: bool


class Folder:
    """The statistics of a window so far.

    Attributes:
        metrics: By key.
        energy: By device key.
    """

    def __init__(self, begin: float) -> None:
        self.metrics: dict[str, Accumulator] = {}
        self.energy: dict[str, DeviceEnergy] = {}
        self._begin = begin
        self._across: dict[str, _AllDevices] = {}
        self._since: dict[str, float] = {}
        self._at: float | None = None

    def start_from(self, row: Row) -> None:
        """A reading from before the window: what lies between it and the next one is known by both."""
        self._at = row.at
        for key, positions in energy_columns(row.layout).items():
            values = [row.values[at] if at is not None else None for at in positions]
            self._feed_energy(key, row.at, self._begin, row.joined, values)

    def fold(self, block: Block, end: float) -> None:
        """Take a block of readings, of which the last may be the one that closes the window."""
        spans = self._spans(block, end)
        if self._since:  # a key that is not there any more has no time to pass on
            self._since = {key: since for key, since in self._since.items() if key in block.layout}
        seconds = sum(span.high - span.low for span in spans)
        for key, column in block.columns():
            first = column[0]
            if key not in self._since and isfinite(first) and column.count(first) == len(column):
                self._held(key).add(first, seconds, len(column))  # most metrics do not change for a while
            else:
                self._fold_column(key, column, spans)
        self._fold_energy(block, end)
        for name, members in _members(block.layout).items():
            held = self._across.setdefault(name, _AllDevices())
            held.fold({device: block.column(position) for device, position in members.items()}, spans)
        self._at = block.ats[-1]

    def across(self) -> dict[str, Across]:
        """By name, what was over all devices."""
        return {name: found for name, held in self._across.items() if (found := held.result()) is not None}

    def _spans(self, block: Block, end: float) -> list[_Span]:
        spans = []
        before = self._at
        for at, joined in zip(block.ats, block.joined, strict=True):
            known = joined and before is not None
            low = max(before, self._begin) if known and before is not None else at
            spans.append(_Span(low, max(low, min(at, end)), known))
            before = at
        return spans

    def _fold_column(self, key: str, column: array[float], spans: Sequence[_Span]) -> None:
        since = self._since.pop(key, None)
        for value, (low, high, joined) in zip(column, spans, strict=True):
            since = low if since is None or not joined else since
            if isfinite(value):
                self._held(key).add(value, high - since)
                since = None
        if since is not None:
            self._since[key] = since  # served again at the end of the block: its time goes to the next reading

    def _held(self, key: str) -> Accumulator:
        held = self.metrics.get(key)
        if held is None:
            held = self.metrics[key] = Accumulator()
        return held

    def _fold_energy(self, block: Block, end: float) -> None:
        found = energy_columns(block.layout)
        for key in self.energy.keys() - found.keys():
            self.energy[key].gap()
        for key, positions in found.items():
            columns = [block.column(position) if position is not None else None for position in positions]
            for index, at in enumerate(block.ats):
                values = [column[index] if column is not None else None for column in columns]
                self._feed_energy(key, at, end, block.joined[index], values)

    def _feed_energy(self, key: str, at: float, end: float, joined: bool, values: list[float | None]) -> None:
        held = self.energy.get(key)
        if held is None:
            held = self.energy[key] = DeviceEnergy(self._begin)
        held.add(at, end, joined, *values)


class _AllDevices:
    """One metric over all devices.

    A device that was served again stands with its last value beside one that was read; a reading in which none was read is
    none, and its time goes to the next.
    """

    def __init__(self) -> None:
        self._mean, self._most, self._total = Accumulator(), Accumulator(), Accumulator()
        self._known: set[str] = set()
        self._last: dict[str, float] = {}
        self._since: float | None = None

    def fold(self, columns: Mapping[str, array[float]], spans: Sequence[_Span]) -> None:
        self._known.update(columns)
        self._last = {device: value for device, value in self._last.items() if device in columns}
        for index, (low, high, joined) in enumerate(spans):
            if self._since is None or not joined:
                self._since = low
            found = {device: value for device, column in columns.items() if isfinite(value := column[index])}
            if found:
                self._last.update(found)
                self._add(high - self._since)
                self._since = None

    def result(self) -> Across | None:
        if not self._mean.count:
            return None
        return Across(self._mean.summary(), self._most.summary(), self._total.summary() if self._total.count else None)

    def _add(self, seconds: float) -> None:
        values = self._last.values()
        total = sum(values)
        self._mean.add(total / len(values), seconds)
        self._most.add(max(values), seconds)
        if len(values) == len(self._known):
            self._total.add(total, seconds)


@functools.lru_cache(maxsize=64)
def _members(layout: Layout) -> dict[str, dict[str, int]]:
    """By aggregated name, each device that has it and where it stands."""
    found: dict[str, dict[str, int]] = {}
    for position, key in enumerate(layout):
        device, name = split(key)
        if device and name in AGGREGATED:
            found.setdefault(name, {})[device] = position
    return found
