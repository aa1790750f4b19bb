"""What all sources have in common: a *record* of what a source said, and a table of which metric is read from where in it.

A record is a mapping from a place (a printed key, a file's name, a path into a document; in lower case) to what stood there:
text, a number, or the reason why it could not be read. Rules that must not differ from source to source (what is possible,
what an APU's memory is, when a 0 is no measurement) are here, once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from accelmetrics.backends.amd.coverage import COVERAGE
from accelmetrics.backends.amd.values import Bounds, bounded, first_present, number, whole
from accelmetrics.backends.contract import NO_REASONS, Block, Number, Reading
from accelmetrics.schemas.identity import DeviceProcess
from accelmetrics.schemas.reasons import Reason, Unavailable

Value = Number | Unavailable
Values = dict[str, Value]
Record = Mapping[str, object]

PERCENT = Bounds(0, 100)
CELSIUS = Bounds(-50, 200)
"""Sensors answer 65535 or -273 when they are not there."""
WATTS = Bounds(0, 4000)
"""An all-ones register of microwatts is 4294.97 W."""
MEGAHERTZ = Bounds(0, 20_000)
BYTES = Bounds(0, 2**50)
MICROJOULES = Bounds(0, 1e19)
"""Three centuries at 1 kW; an all-ones counter times its resolution is 2.8e20."""
GENERATION = Bounds(1, 7)
COUNT = Bounds(0, 2**32 - 2)
LANES = Bounds(1, 32)

NO_POWER = "no card draws 0 W: it is what the driver says of a second die, whose package's power is on the first"
NO_LIMIT = "a cap of 0 W is what the driver says of a die without one"
NO_ENERGY = "the energy counter stays at 0"
NO_TOTAL = "a total of 0 bytes stands for memory that is unknown"


class Field(NamedTuple):
    """One metric that a source gives as such.

    Attributes:
        name: The metric.
        keys: Where it stands in the record, the preferred place first.
        bounds: What is possible, in the record's unit.
        convert: From what stands there to a number.
        zero: Why a 0 is no measurement; empty where it may be one.
        divisor: What the number is divided by.
    """

    name: str
    keys: tuple[str, ...]
    bounds: Bounds
    convert: Callable[[object], Value] = number
    zero: str = ""
    divisor: float = 1


class Pools(NamedTuple):
    """Where a source tells what is used and what there is: of the card's own memory, and of the host's that it may use (GTT)."""

    video: tuple[Field, Field]
    shared: tuple[Field, Field]


class Memory(NamedTuple):
    """A pool of memory, in bytes."""

    used: Value
    total: Value


def read_field(record: Record, field: Field, absent: str) -> Value:
    """One metric of a record.

    Args:
        record: What the source said.
        field: The metric.
        absent: What to say where the record has none of the field's places; ``{}`` stands for the first.
    """
    found = first_present(record, field.keys, field.convert)
    if found is None:
        return Unavailable(Reason.NOT_SUPPORTED, absent.format(field.keys[0]))
    value = bounded(found, field.bounds)
    if value == 0 and field.zero:
        return Unavailable(Reason.NOT_SUPPORTED, field.zero)
    return value if isinstance(value, Unavailable) or field.divisor == 1 else value / field.divisor


def pools(used: str, total: str, kinds: tuple[str, str] = ("vram", "gtt"), convert: Callable[[object], Value] = whole) -> Pools:
    """The places of both pools.

    Args:
        used: Where it stands what is used; ``{}`` stands for the pool.
        total: The same of what there is.
        kinds: What the source calls the pools.
        convert: From what stands there to bytes.
    """
    video, shared = (
        (Field("used", (used.format(kind),), BYTES, convert), Field("total", (total.format(kind),), BYTES, convert, NO_TOTAL))
        for kind in kinds
    )
    return Pools(video, shared)


def card_memory(record: Record, places: Pools, unified: bool, absent: str) -> Memory:
    """The memory that a card uses.

    Args:
        record: What the source said.
        places: Where it says it.
        unified: Whether the card shares the host's memory.
        absent: As for :func:`read_field`.
    """
    video, shared = (pool(*(read_field(record, field, absent) for field in fields)) for fields in places)
    return device_memory(video, shared, unified)


def read_card(record: Record, fields: Iterable[Field], places: Pools, unified: bool, absent: str) -> Values:
    """What every source gives: the metrics of a table, and those that are made of two of them. Arguments as above."""
    values = read_fields(record, fields, absent)
    values["powerPercent"] = share(values["powerWatts"], values["enforcedPowerLimitWatts"])
    return values | memory_values(card_memory(record, places, unified, absent))


def read_fields(record: Record, fields: Iterable[Field], absent: str) -> Values:
    """Every metric of a table."""
    return {field.name: read_field(record, field, absent) for field in fields}


def pool(used: Value, total: Value) -> Memory:
    """A pool, of which no more can be used than there is."""
    if isinstance(used, (int, float)) and isinstance(total, (int, float)) and used > total:
        used = Unavailable(Reason.INVALID_VALUE, f"{used} of {total} bytes")
    return Memory(used, total)


def device_memory(video: Memory, shared: Memory, unified: bool) -> Memory:
    """The memory that a device uses: its own; where it shares the host's, its carve-out and the GTT together."""
    if not unified:
        return video
    return Memory(_sum(video.used, shared.used), _sum(video.total, shared.total))


def _sum(carved: Value, shared: Value) -> Value:
    if isinstance(carved, Unavailable):
        return carved
    if isinstance(shared, Unavailable):
        return shared._replace(detail=f"an APU's carve-out alone is not the memory it uses, and of the GTT: {shared.detail}")
    return carved + shared


def memory_values(memory: Memory) -> Values:
    """What is told of a device's memory."""
    used, total = memory
    return {
        "memoryAllocatedBytes": used,
        "memoryTotalBytes": total,
        "memoryFreeBytes": free(memory),
        "memoryAllocated": share(used, total),
    }


def free(memory: Memory) -> Value:
    """What is left of a device's memory."""
    used, total = memory
    if isinstance(used, Unavailable):
        return used
    return total if isinstance(total, Unavailable) else total - used


def share(part: Value, of: Value) -> Value:
    """A percentage."""
    if isinstance(part, Unavailable):
        return part
    if isinstance(of, Unavailable):
        return of
    return 100 * part / of


def complete(values: Mapping[str, Value], absent: str) -> Values:
    """Every metric that this vendor owes: those that a source does not know are missing with its words."""
    missing = Unavailable(Reason.NOT_SUPPORTED, absent)
    return {**dict.fromkeys(COVERAGE.devices, missing), **values}


class Form:
    """One device's values in the form of a reading: what did not change is the same object as last time."""

    def __init__(self) -> None:
        self._names: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._reasons: Mapping[str, Unavailable] = NO_REASONS

    def reading(
        self,
        found: Mapping[str, Value],
        *,
        share: Block | None = None,
        processes: tuple[DeviceProcess, ...] | None = None,
        read_at: float | None = None,
    ) -> Reading:
        """The reading.

        Args:
            found: By metric, its value or why there is none.
            share: What the watched processes use of the device.
            processes: Who uses the device.
            read_at: When the source took the numbers; None for now.
        """
        values = {name: value for name, value in found.items() if not isinstance(value, Unavailable)}
        reasons = {name: value for name, value in found.items() if isinstance(value, Unavailable)}
        if reasons != self._reasons:
            self._reasons = reasons
        names = self._names.setdefault(tuple(values), tuple(values))
        block = Block(names, tuple(values.values()))
        return Reading((block,) if share is None else (block, share), self._reasons, processes, read_at)
