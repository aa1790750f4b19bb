"""The machinery of dialects that are tables: a row says which key becomes which name, in which unit.

Everything else follows from the catalogue: the unit that the value has, whether it is a counter, and under which keys other
kinds of devices and other vendors have the same thing. So a dialect that was made for one vendor's GPUs says what it can of
every device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from accelmetrics.dialects.contract import Number
from accelmetrics.schemas.catalogue import coverage_of, find, per_key, rows
from accelmetrics.schemas.identity import DeviceIdentity
from accelmetrics.schemas.metric import ANY_KIND, NOTHING, PARTITION, Kind, Metric
from accelmetrics.schemas.snapshot import DeviceSlot, Snapshot

SCALES: Mapping[str, tuple[str, Fraction]] = {
    "By": ("By", Fraction(1)),
    "MiBy": ("By", Fraction(2**20)),
    "GiBy": ("By", Fraction(2**30)),
    "By/s": ("By/s", Fraction(1)),
    "1": ("1", Fraction(1)),
    "%": ("1", Fraction(1, 100)),
    "J": ("J", Fraction(1)),
    "mJ": ("J", Fraction(1, 1000)),
    "W": ("W", Fraction(1)),
    "Cel": ("Cel", Fraction(1)),
    "MHz": ("Hz", Fraction(10**6)),
}
"""Units by name: what they measure, in which base, and how much of it one is."""

_NOISE_DIGITS = 6
"""Decimal places after which a whole number that went through floating point is itself again."""

Values = Mapping[str, Number]


class Derived(NamedTuple):
    """What a dialect has a name for and no key gives, though the keys of one device say it.

    Attributes:
        words: From what, for readers.
        unit: Unit of the result.
        value: Reckons it from a device's values by name; None where something is missing.
    """

    words: str
    unit: str
    value: Callable[[Values, DeviceIdentity], Number | None]


class Entry(NamedTuple):
    """One row of a dialect's table.

    Attributes:
        name: In the dialect.
        source: The catalogue's key, ``gpu.{i}.powerWatts``, or what it is derived from.
        unit: The dialect's unit; empty for the catalogue's own.
        otherwise: Keys for vendors that are no source of the first one, under which they have the same thing.
        whole: Whether the dialect has whole numbers only: the rest is cut off, as in its own tool.
        kind: Empty for the catalogue's own.
        meaning: One sentence; empty for the catalogue's own.
    """

    name: str
    source: str | Derived
    unit: str = ""
    otherwise: tuple[str, ...] = ()
    whole: bool = False
    kind: Kind | None = None
    meaning: str = ""


class Told(NamedTuple):
    """A value in the dialect's terms.

    Attributes:
        entry: Its row.
        value: In the dialect's unit.
        kind: ``gauge`` or ``counter``.
        unit: The dialect's unit.
        meaning: One sentence.
    """

    entry: Entry
    value: Number
    kind: Kind
    unit: str
    meaning: str


class _Way(NamedTuple):
    """How an entry is told of one vendor's devices: the names to try, and what to do with the value."""

    entry: Entry
    names: tuple[str, ...]
    source_unit: str
    unit: str
    kind: Kind
    meaning: str


class Table:
    """A dialect's rows about devices.

    Args:
        entries: The rows.
    """

    def __init__(self, entries: tuple[Entry, ...]) -> None:
        self.entries = entries
        self._ways: dict[tuple[str, str], tuple[_Way, ...]] = {}

    def told(self, snapshot: Snapshot, place: DeviceSlot) -> Iterator[Told]:
        """What the table says of one device, in its order; what the device does not say is left out."""
        who = place.identity
        ways = self._ways.get((who.kind, who.vendor))
        if ways is None:
            ways = tuple(way for entry in self.entries if (way := _way(entry, who)) is not None)
            self._ways[who.kind, who.vendor] = ways
        values = snapshot.values_of(place.key)
        for way in ways:
            value = _look_up(way, values, who)
            if value is not None:
                number = convert(value, way.source_unit, way.unit, way.entry.whole)
                yield Told(way.entry, number, way.kind, way.unit, way.meaning)


def _way(entry: Entry, who: DeviceIdentity) -> _Way | None:
    if isinstance(entry.source, Derived):
        unit = entry.unit or entry.source.unit
        return _Way(entry, (), entry.source.unit, unit, entry.kind or "gauge", entry.meaning)
    telling = _rows(entry, who)
    if not telling:
        return None
    first = telling[0]
    names = tuple(row.name for row in telling)
    return _Way(entry, names, first.unit, entry.unit or first.unit, entry.kind or first.kind, entry.meaning or first.meaning)


def _rows(entry: Entry, who: DeviceIdentity) -> list[Metric]:
    """The catalogue's rows that say this of such a device: up to the first one that its backend gives."""
    assert isinstance(entry.source, str)
    given = coverage_of(who.backend).get("devices", NOTHING)
    found: list[Metric] = []
    for key in (entry.source, *entry.otherwise):
        for row in same(key):
            if row.device_part in (f"{who.kind}.{{i}}", f"{ANY_KIND}.{{i}}"):
                found.append(row)
                if row.name in given:
                    return found
    return found


@per_key
def same(key: str) -> tuple[Metric, ...]:
    """The row of a key, and those that say the same of another kind of device: of one series, in one unit."""
    row = find(key)
    others = (other for other in rows() if other.prometheus == row.prometheus and other.unit == row.unit and other.kind == row.kind)
    return (row, *(other for other in others if row.prometheus and other is not row and other.device_part))


def _look_up(way: _Way, values: Values, who: DeviceIdentity) -> Number | None:
    if isinstance(way.entry.source, Derived):
        return way.entry.source.value(values, who) if values else None
    for name in way.names:
        if name in values:
            return values[name]
    return None


def convert(value: Number, source: str, target: str, whole: bool = False) -> Number:
    """A value in another unit of the same thing; unchanged, to the last bit, where the units are equal."""
    if source != target:
        factor = _factor(source, target)
        value = value * factor.numerator
        if factor.denominator != 1:
            value = value / factor.denominator
    return math.floor(round(value, _NOISE_DIGITS)) if whole else value


@lru_cache(maxsize=64)
def _factor(source: str, target: str) -> Fraction:
    of, one = SCALES[source]
    into, other = SCALES[target]
    assert of == into, f"{source} and {target} do not measure the same thing"
    return one / other


def designation(place: DeviceSlot) -> str:
    """What a dialect made for GPUs calls a device: its number; its whole key where it is of another kind, lest it be taken for one.

    ``0``, ``0.mig.1`` for a partition, ``tpu.0``.
    """
    return place.key.removeprefix("gpu.")


def parent_and_partition(place: DeviceSlot) -> tuple[str, str]:
    """The designation of the whole device, and the number of the partition of it that this is: ``0`` and ``1``; else empty."""
    whole, _, partition = designation(place).partition(f".{PARTITION}.")
    return whole, partition


def memory_reserved(values: Values, who: DeviceIdentity) -> Number | None:
    """What the driver keeps for itself, where it tells used memory without that: NVIDIA's, on a card with memory of its own."""
    parts = [values.get(name) for name in ("memoryTotalBytes", "memoryAllocatedBytes", "memoryFreeBytes")]
    if None in parts or who.unified:
        return None
    total, used, free = (part for part in parts if part is not None)
    return total - used - free if total > used + free else None


MEMORY_RESERVED = Derived("memoryTotalBytes - memoryAllocatedBytes - memoryFreeBytes, where that is above 0", "By", memory_reserved)
