"""The statistics of a window: what becomes of its readings, a block of them at a time."""

from __future__ import annotations

import functools
from array import array
from collections.abc import Mapping
from math import isfinite, isnan
from typing import NamedTuple

from accelmetrics.sampling.energy import COUNTER, POWER, DeviceEnergy
from accelmetrics.sampling.rows import Block, Row
from accelmetrics.sampling.summary import Accumulator, Summary
from accelmetrics.schemas.metric import DEVICE_KINDS

AGGREGATED = frozenset(
    ("gpu", "dutyCycle", "tensorcoreUtilization", "memory", "memoryAllocated", "memoryAllocatedBytes", "memoryUsageBytes", "powerWatts")
)
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
        self._across: dict[str, tuple[Accumulator, Accumulator, Accumulator]] = {}
        self._devices: dict[str, set[str]] = {}
        self._since: dict[str, float] = {}
        self._at: float | None = None

    def start_from(self, row: Row) -> None:
        """The last reading before the window: what lies between it and the next one is known by both."""
        self._at = row.at
        for key, positions in _energy_columns(row.layout).items():
            self._feed_energy(key, row.at, self._begin, False, [row.values[at] if at is not None else None for at in positions])

    def fold(self, block: Block, end: float) -> None:
        """Take a block of readings, of which the last may be the one that closes the window."""
        spans = self._spans(block, end)
        for key, column in block.columns():
            self._fold_column(key, column, block, spans)
        self._fold_energy(block, end)
        for name, members in _members(block.layout).items():
            self._fold_across(name, members, block, spans)
        self._at = block.ats[-1]

    def _spans(self, block: Block, end: float) -> list[tuple[float, float]]:
        """For each row, from when to when it stands for, within the window."""
        spans = []
        before = self._at
        for at, joined in zip(block.ats, block.joined, strict=True):
            low = at if before is None or not joined else max(before, self._begin)
            spans.append((low if before is not None else self._begin, min(at, end)))
            before = at
        return spans

    def _fold_column(self, key: str, column: array[float], block: Block, spans: list[tuple[float, float]]) -> None:
        since = self._since.pop(key, None)
        first = column[0]
        if since is None and isfinite(first) and column.count(first) == len(column):
            # Most metrics do not change for a while: one cell, one addition.
            self._held(key).add(first, sum(max(high - low, 0.0) for low, high in spans), len(column))
            return
        for value, (low, high) in zip(column, spans, strict=True):
            since = low if since is None else since
            if isfinite(value):
                self._held(key).add(value, max(high - since, 0.0))
                since = None
            elif isnan(value):
                since = None
        if since is not None:
            self._since[key] = since  # served again at the end of the block: its time goes to the next reading

    def _held(self, key: str) -> Accumulator:
        held = self.metrics.get(key)
        if held is None:
            held = self.metrics[key] = Accumulator()
        return held

    def _fold_energy(self, block: Block, end: float) -> None:
        for key, positions in _energy_columns(block.layout).items():
            columns = [block.column(position) if position is not None else None for position in positions]
            for index, at in enumerate(block.ats):
                values = [column[index] if column is not None else None for column in columns]
                self._feed_energy(key, at, end, block.joined[index], values)

    def _feed_energy(self, key: str, at: float, end: float, joined: bool, values: list[float | None]) -> None:
        held = self.energy.get(key)
        if held is None:
            held = self.energy[key] = DeviceEnergy(self._begin)
        held.add(at, end, joined, *values)

    def _fold_across(self, name: str, members: Mapping[str, int], block: Block, spans: list[tuple[float, float]]) -> None:
        known = self._devices.setdefault(name, set())
        known.update(members)
        columns = [block.column(position) for position in members.values()]
        mean, most, total = self._across.setdefault(name, (Accumulator(), Accumulator(), Accumulator()))
        for index, (low, high) in enumerate(spans):
            values = [column[index] for column in columns if isfinite(column[index])]
            if values:
                mean.add(sum(values) / len(values), max(high - low, 0.0))
                most.add(max(values), max(high - low, 0.0))
            if values and len(values) == len(known):
                total.add(sum(values), max(high - low, 0.0))

    def across(self) -> dict[str, Across]:
        """By name, what was over all devices."""
        return {
            name: Across(mean.summary(), most.summary(), total.summary() if total.count else None)
            for name, (mean, most, total) in self._across.items()
            if mean.count
        }


def _split(key: str) -> tuple[str, str]:
    """Device key and name; an empty device where the key belongs to none, or to a partition."""
    kind, _, rest = key.partition(".")
    number, _, name = rest.partition(".")
    return (f"{kind}.{number}", name) if kind in DEVICE_KINDS and number.isdecimal() else ("", key)


@functools.lru_cache(maxsize=64)
def _energy_columns(layout: tuple[str, ...]) -> dict[str, tuple[int | None, int | None]]:
    """By device key, where its counter and its power stand."""
    places: dict[str, dict[str, int]] = {}
    for position, key in enumerate(layout):
        device, _, name = key.rpartition(".")
        if name in (COUNTER, POWER) and device.partition(".")[0] in DEVICE_KINDS:
            places.setdefault(device, {})[name] = position
    return {device: (found.get(COUNTER), found.get(POWER)) for device, found in places.items()}


@functools.lru_cache(maxsize=64)
def _members(layout: tuple[str, ...]) -> dict[str, dict[str, int]]:
    """By aggregated name, each device that has it and where it stands."""
    found: dict[str, dict[str, int]] = {}
    for position, key in enumerate(layout):
        device, name = _split(key)
        if device and name in AGGREGATED:
            found.setdefault(name, {})[device] = position
    return found
