"""What built-in dialects are made of: functions, and tables in which a row says which key becomes which name, in which unit.

Everything else follows from the catalogue: the unit that the value has, whether it is a counter, and under which keys other
kinds of devices and other vendors have the same thing. So a dialect that was made for one vendor's GPUs says what it can of
every device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from accelmetrics.dialects.contract import NO_LABELS, Dialect, Number, Point
from accelmetrics.schemas.catalogue import coverage_of, find, per_key, rows
from accelmetrics.schemas.identity import DeviceIdentity, DeviceSlot
from accelmetrics.schemas.metric import ANY_KIND, BASE_UNITS, NOTHING, PARTITION, Kind, Metric
from accelmetrics.schemas.record import Record
from accelmetrics.schemas.snapshot import Snapshot, has_values

_NOISE_DIGITS = 6
"""Decimal places after which a whole number that went through floating point is itself again."""

Values = Mapping[str, Number]
ComputedValue = Callable[[Values, DeviceIdentity], Number | None]


class Computed(NamedTuple):
    """What a dialect has a name for, and what follows from several keys of one device.

    Attributes:
        words: From what, for readers.
        unit: Unit of the result.
        value: Computes it from a device's values by name; None where something is missing.
    """

    words: str
    unit: str
    value: ComputedValue


class DialectRow(NamedTuple):
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
    source: str | Computed
    unit: str = ""
    otherwise: tuple[str, ...] = ()
    whole: bool = False
    kind: Kind | None = None
    meaning: str = ""


_Lookup = tuple[DialectRow, tuple[str, ...], str, str, Kind, str]
"""Where devices of one kind and vendor have the value of a row: the metrics to try, in this order (none for what is computed), the
unit that values have there, the dialect's unit, gauge or counter, and what it means."""


class DialectTable:
    """A dialect's rows about devices.

    Args:
        rows: The rows.
    """

    def __init__(self, rows: tuple[DialectRow, ...]) -> None:
        self._rows = rows
        self._lookups: dict[tuple[str, str], list[_Lookup]] = {}

    def points(self, snapshot: Snapshot, slot: DeviceSlot, labels: Mapping[str, str] = NO_LABELS) -> Iterator[Point]:
        """Give what the table says of one device, in its order; what the device does not say is left out."""
        who = slot.identity
        if (who.kind, who.vendor) not in self._lookups:
            self._lookups[who.kind, who.vendor] = [found for row in self._rows if (found := _lookup(row, who)) is not None]
        values = snapshot.values_of(slot.key)
        for row, names, given, unit, kind, meaning in self._lookups[who.kind, who.vendor]:
            if isinstance(row.source, Computed):
                value = row.source.value(values, who)
            else:
                value = next((values[name] for name in names if name in values), None)
            if value is not None:
                yield Point(row.name, convert(value, given, unit, row.whole), labels, kind, unit, meaning)


# A dialect of functions


class FunctionDialect(Dialect):
    """A dialect that keeps nothing, made of functions.

    Args:
        name: As :class:`Dialect` has it, like the others.
        summary: Whose names these are.
        points: Gives a record as labelled series.
        flat: Gives it as flat names and numbers; as the series say, when left out.
        rows: Gives a row per device; without it there are none.
    """

    def __init__(
        self,
        name: str,
        summary: str,
        points: Callable[[Record], Iterable[Point]],
        flat: Callable[[Record], dict[str, Number]] | None = None,
        rows: Callable[[Record], Sequence[Mapping[str, str]]] | None = None,
    ) -> None:
        self.name, self.summary, self.tabular = name, summary, rows is not None
        self._points, self._flat, self._rows = points, flat, rows

    def points(self, record: Record) -> Iterable[Point]:
        """Give the record as labelled series."""
        return self._points(record)

    def flat(self, record: Record) -> dict[str, Number]:
        """Give the record as flat names and numbers."""
        return super().flat(record) if self._flat is None else self._flat(record)

    def rows(self, record: Record) -> Sequence[Mapping[str, str]]:
        """Give a row per device."""
        return () if self._rows is None else self._rows(record)


# Conversion, and how devices are named


def unit_of(row: DialectRow) -> str:
    """Give the unit that a row's values have in the dialect."""
    return row.unit or (find(row.source).unit if isinstance(row.source, str) else row.source.unit)


def _lookup(row: DialectRow, who: DeviceIdentity) -> _Lookup | None:
    if isinstance(row.source, Computed):
        return row, (), row.source.unit, row.unit or row.source.unit, row.kind or "gauge", row.meaning
    parts = (f"{who.kind}.{{i}}", f"{ANY_KIND}.{{i}}")
    found = [metric for key in (row.source, *row.otherwise) for metric in same(key) if metric.device_part in parts]
    if not found:
        return None
    given = coverage_of(who.backend).get("devices", NOTHING)
    names = tuple(metric.name for metric in found)
    # Those behind one that the backend gives are never needed.
    needed = next((count for count, name in enumerate(names, 1) if name in given), None)
    first = found[0]
    return row, names[:needed], first.unit, row.unit or first.unit, row.kind or first.kind, row.meaning or first.meaning


@per_key
def same(key: str) -> tuple[Metric, ...]:
    """List the row of a key, and those that mean the same on another kind of device: of one series, in one unit."""
    row = find(key)
    others = (other for other in rows() if other.prometheus == row.prometheus and other.unit == row.unit and other.kind == row.kind)
    return (row, *(other for other in others if row.prometheus and other is not row and other.device_part))


def convert(value: Number, source: str, target: str, whole: bool = False) -> Number:
    """Convert a value to another unit of the same thing; unchanged, to the last bit, where the units are equal."""
    if source != target:
        factor = _factor(source, target)
        value = value * factor.numerator
        if factor.denominator != 1:
            value = value / factor.denominator
    return math.floor(round(value, _NOISE_DIGITS)) if whole else value


@lru_cache(maxsize=64)
def _factor(source: str, target: str) -> Fraction:
    one, other = BASE_UNITS[source], BASE_UNITS[target]
    assert one.unit == other.unit, f"{source} and {target} do not measure the same thing"
    return Fraction(one.times * other.over, one.over * other.times)


def designation(slot: DeviceSlot) -> str:
    """Name a device as dialects made for GPUs do: ``0``, ``0.mig.1`` for a partition; the whole key of one of another kind, ``tpu.0``."""
    return slot.key.removeprefix("gpu.")


def without_empty(labels: Mapping[str, str]) -> dict[str, str]:
    """Leave out labels without a value."""
    return {label: value for label, value in labels.items() if value}


def answering(snapshot: Snapshot) -> list[DeviceSlot]:
    """List the devices and partitions that gave a value; of one that hangs or is lost nothing is told."""
    return [slot for slot in snapshot.identities if has_values(snapshot, slot.key)]


def parent_and_partition(slot: DeviceSlot) -> tuple[str, str]:
    """Give the designation of the whole device, and the number of the partition that this is, empty for a whole device."""
    whole, _, partition = designation(slot).partition(f".{PARTITION}.")
    return whole, partition


def gpu_instance(slot: DeviceSlot) -> str:
    """Give the driver's id of a MIG instance's GPU instance; the number in its key where that is not known."""
    known = slot.identity.gpu_instance_id
    return parent_and_partition(slot)[1] if known is None else str(known)


def profile(slot: DeviceSlot) -> str:
    """Give the profile of a MIG instance, ``3g.40gb``: it ends its name, ``NVIDIA H100 80GB HBM3 MIG 3g.40gb``."""
    return slot.identity.name.rpartition(" MIG ")[2]


def xid_errors(values: Values) -> dict[int, Number]:
    """Give by code how many Xid errors a GPU had since the program began to listen."""
    if not values.get("xidErrors"):
        return {}
    return {int(name.split(".")[1]): count for name, count in values.items() if name.startswith("xid.")}


def memory_reserved(values: Values, who: DeviceIdentity) -> Number | None:
    """Compute what the driver keeps for itself, where used memory is without that: NVIDIA's, on a card with memory of its own."""
    total, used, free = (values.get(name) for name in ("memoryTotalBytes", "memoryAllocatedBytes", "memoryFreeBytes"))
    if total is None or used is None or free is None or who.unified:
        return None
    return total - used - free if total > used + free else None


MEMORY_RESERVED = Computed("memoryTotalBytes - memoryAllocatedBytes - memoryFreeBytes, where that is above 0", "By", memory_reserved)
