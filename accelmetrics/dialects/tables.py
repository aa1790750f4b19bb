"""The parts of built-in dialects: functions, and tables that map keys to names and units.

Everything else follows from the catalogue: the unit of the value, whether it is a counter, and the equivalent keys of other
device kinds and vendors. A dialect made for the GPUs of one vendor therefore covers every device as far as possible.
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

Values = Mapping[str, Number]
ComputedValue = Callable[[Values, DeviceIdentity], Number | None]


class Computed(NamedTuple):
    """A source that is computed from several keys of one device.

    Attributes:
        words: The formula, for readers.
        unit: Unit of the result.
        value: Function of a device's values by name and its identity; returns None if an input is missing.
    """

    words: str
    unit: str
    value: ComputedValue


class DialectRow(NamedTuple):
    """A row of a dialect's table.

    Attributes:
        name: Name in the dialect.
        source: The catalogue's key, ``gpu.{i}.powerWatts``, or a computed source.
        unit: The dialect's unit; empty for the catalogue's unit.
        otherwise: Equivalent keys, tried in this order, for vendors that do not report ``source``.
        whole: Whether the dialect has whole numbers only: fractions are cut off, as in the dialect's tool.
        kind: ``gauge`` or ``counter``; None for the catalogue's kind.
        meaning: A sentence of help text; empty for the catalogue's sentence.
    """

    name: str
    source: str | Computed
    unit: str = ""
    otherwise: tuple[str, ...] = ()
    whole: bool = False
    kind: Kind | None = None
    meaning: str = ""


# A row resolved for devices of one kind and vendor: the row, the metrics to try in this order (none for a computed source), their unit,
# the dialect's unit, the kind and the help text.
_Lookup = tuple[DialectRow, tuple[str, ...], str, str, Kind, str]


class DialectTable:
    """The rows of a dialect that describe devices.

    Args:
        rows: The rows, in the order in which points are yielded.
    """

    def __init__(self, rows: tuple[DialectRow, ...]) -> None:
        self._rows = rows
        # Resolved once per kind and vendor: rows and coverage do not change while the program runs.
        self._lookups: dict[tuple[str, str], list[_Lookup]] = {}

    def points(self, snapshot: Snapshot, slot: DeviceSlot, labels: Mapping[str, str] = NO_LABELS) -> Iterator[Point]:
        """Yield a point for each row that the device has a value for, in the table's order."""
        identity = slot.identity
        if (identity.kind, identity.vendor) not in self._lookups:
            self._lookups[identity.kind, identity.vendor] = [found for row in self._rows if (found := _lookup(row, identity)) is not None]
        values = snapshot.values_of(slot.key)
        for row, names, given, unit, kind, meaning in self._lookups[identity.kind, identity.vendor]:
            if isinstance(row.source, Computed):
                value = row.source.value(values, identity)
            else:
                value = next((values[name] for name in names if name in values), None)
            if value is not None:
                yield Point(row.name, convert(value, given, unit, row.whole), labels, kind, unit, meaning)


# A dialect of functions


class FunctionDialect(Dialect):
    """A stateless dialect made of functions.

    Args:
        name: See :class:`Dialect`.
        summary: See :class:`Dialect`.
        points: Returns a record as labelled series.
        flat: Returns a record as flat names and numbers; by default derived from ``points``.
        rows: Returns a row per device; without it the dialect has no table.
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
        """Return the record as labelled series."""
        return self._points(record)

    def flat(self, record: Record) -> dict[str, Number]:
        """Return the record as flat names and numbers."""
        return super().flat(record) if self._flat is None else self._flat(record)

    def rows(self, record: Record) -> Sequence[Mapping[str, str]]:
        """Return a row per device."""
        return () if self._rows is None else self._rows(record)


# Conversion, and how devices are named


def unit_of(row: DialectRow) -> str:
    """Return the unit of a row's values in the dialect."""
    return row.unit or (find(row.source).unit if isinstance(row.source, str) else row.source.unit)


def _lookup(row: DialectRow, identity: DeviceIdentity) -> _Lookup | None:
    if isinstance(row.source, Computed):
        return row, (), row.source.unit, row.unit or row.source.unit, row.kind or "gauge", row.meaning
    parts = (f"{identity.kind}.{{i}}", f"{ANY_KIND}.{{i}}")
    found = [metric for key in (row.source, *row.otherwise) for metric in same(key) if metric.device_part in parts]
    if not found:
        return None
    given = coverage_of(identity.backend).get("devices", NOTHING)
    names = tuple(metric.name for metric in found)
    # Metrics after one that the backend reports are never needed.
    needed = next((count for count, name in enumerate(names, 1) if name in given), None)
    first = found[0]
    return row, names[:needed], first.unit, row.unit or first.unit, row.kind or first.kind, row.meaning or first.meaning


@per_key
def same(key: str) -> tuple[Metric, ...]:
    """Return the catalogue row of a key and the equivalent rows of other device kinds: same Prometheus series, unit and kind."""
    row = find(key)
    others = (other for other in rows() if other.prometheus == row.prometheus and other.unit == row.unit and other.kind == row.kind)
    return (row, *(other for other in others if row.prometheus and other is not row and other.device_part))


def convert(value: Number, source: str, target: str, whole: bool = False) -> Number:
    """Convert a value to another unit of the same quantity. With equal units the value is unchanged, to the last bit."""
    if source != target:
        # Multiply by a whole number, then divide by another: a factor as a float would add a rounding error.
        factor = _factor(source, target)
        value = value * factor.numerator
        if factor.denominator != 1:
            value = value / factor.denominator
    # Rounding removes the floating-point error of the conversion before the value is cut to a whole number.
    return math.floor(round(value, 6)) if whole else value


@lru_cache(maxsize=64)
def _factor(source: str, target: str) -> Fraction:
    one, other = BASE_UNITS[source], BASE_UNITS[target]
    assert one.unit == other.unit, f"{source} and {target} do not measure the same thing"
    return Fraction(one.times * other.over, one.over * other.times)


def designation(slot: DeviceSlot) -> str:
    """Return a device's name in dialects made for GPUs: ``0``, or ``0.mig.1`` for a partition. Other kinds keep their key, ``tpu.0``."""
    return slot.key.removeprefix("gpu.")


def without_empty(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels that have a value."""
    return {label: value for label, value in labels.items() if value}


def answering(snapshot: Snapshot) -> list[DeviceSlot]:
    """Return the devices and partitions that have a value. A device that hangs or is lost is left out."""
    return [slot for slot in snapshot.identities if has_values(snapshot, slot.key)]


def parent_and_partition(slot: DeviceSlot) -> tuple[str, str]:
    """Return the designation of the whole device and the number of the partition (empty for a whole device)."""
    whole, _, partition = designation(slot).partition(f".{PARTITION}.")
    return whole, partition


def gpu_instance(slot: DeviceSlot) -> str:
    """Return the driver's id of a MIG instance's GPU instance, or the number in its key if the id is unknown."""
    known = slot.identity.gpu_instance_id
    return parent_and_partition(slot)[1] if known is None else str(known)


def profile(slot: DeviceSlot) -> str:
    """Return the profile of a MIG instance, ``3g.40gb``, from the end of its name, ``NVIDIA H100 80GB HBM3 MIG 3g.40gb``."""
    return slot.identity.name.rpartition(" MIG ")[2]


def xid_errors(values: Values) -> dict[int, Number]:
    """Return the number of Xid errors by code since the program began to listen."""
    if not values.get("xidErrors"):
        return {}
    return {int(name.split(".")[1]): count for name, count in values.items() if name.startswith("xid.")}


def memory_reserved(values: Values, identity: DeviceIdentity) -> Number | None:
    """Compute the memory that the driver reserves; None unless total, used and free memory are known and leave a rest."""
    total, used, free = (values.get(name) for name in ("memoryTotalBytes", "memoryAllocatedBytes", "memoryFreeBytes"))
    # With unified memory the rest belongs to the system. Where used memory includes the driver's share, the rest is 0 and says nothing.
    if total is None or used is None or free is None or identity.unified:
        return None
    return total - used - free if total > used + free else None


MEMORY_RESERVED = Computed("memoryTotalBytes - memoryAllocatedBytes - memoryFreeBytes, where that is above 0", "By", memory_reserved)
