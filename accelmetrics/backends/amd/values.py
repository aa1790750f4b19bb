"""Rules for values of AMD's cards that all sources share: memory and energy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from accelmetrics.backends.amd.gpu_metrics import TOOLS_JOULE
from accelmetrics.backends.contract import Value
from accelmetrics.backends.kit.fields import MEMORY, POWER_SHARE, Derived, Field, Row, number
from accelmetrics.schemas.errors import Reason, Unavailable

USED, TOTAL = "memory.used", "memory.total"
"""Places in a record where :func:`device_memory` puts the bytes in use and in total."""
SAME_SIZE = 0.02
"""Share by which two sizes of one pool may differ: drivers round to pages and leave out some of them."""

OF_PARTITION = frozenset(
    {
        *("gpu", "memory", "memoryReadWriteActivity", "smClock", "maxSmClock", "memoryClock", "maxMemoryClock"),
        *("memoryAllocatedBytes", "memoryTotalBytes", "memoryAllocated"),
    }
)
"""Metrics that a partition has for itself. All other values that a tool prints for a partition are the card's."""

UNDOCUMENTED_ENERGY = Unavailable(Reason.NOT_SUPPORTED, "the energy counter of cards without HBM is not documented")
"""The same reason in every source, so that it does not depend on which sources are merged."""


def memory_rows(used: str, total: str) -> tuple[Row, ...]:
    """Return the rows of memory metrics, which are the same in every source.

    Args:
        used: Where the bytes in use are read, in words.
        total: Where the total bytes are read, in words.
    """
    return Field("memoryAllocatedBytes", USED, "B", words=used), Field("memoryTotalBytes", TOTAL, "B", words=total), *MEMORY, POWER_SHARE


def of_card(*rows: Row) -> tuple[Row, ...]:
    """Mark the rows that the tools repeat for every partition of a card."""
    return tuple(row if isinstance(row, Derived) or row.metric in OF_PARTITION else row._replace(of_whole=True) for row in rows)


def card_key(uuid: str, address: str) -> str:
    """Return a key of the card that a device belongs to: partitions have the same id, and the same address without the function."""
    # The id alone is not enough: virtual machines may show two cards with one id, but never in one slot.
    return f"{uuid} {address.rpartition('.')[0]}" if uuid else ""


def compute_pools(totals: Mapping[str, Value], compute: int | None) -> tuple[str, ...]:
    """Return the pools (``vram``, ``gtt``) that a GPU uses which shares the host's memory.

    Args:
        totals: Total bytes of each pool.
        compute: Memory in bytes according to the compute driver.
    """
    # Up to Linux 6.9 compute uses only the carve-out, and since then the larger of carve-out and GTT. So the sum of
    # both is more than compute can use, and may exceed the machine's memory. The compute driver's size shows which pool
    # it is. Without this driver, a graphics program may use both.
    if compute:
        for kind, all_ in totals.items():
            if not isinstance(all_, Unavailable) and math.isclose(all_, compute, rel_tol=SAME_SIZE):
                return (kind,)
    return tuple(totals)


def device_memory(
    get: Callable[[str], object], unified: bool, used: str, total: str, unit: str = "B", compute: int | None = None
) -> dict[str, Value]:
    """Return the memory of a device: its own, or the pools of :func:`compute_pools` if it shares the host's.

    Args:
        get: Returns the value at a place of the record.
        unified: Whether the card shares the host's memory.
        used: Place of the bytes in use; ``{}`` is replaced by the pool, ``vram`` or ``gtt``.
        total: Place of the total bytes.
        unit: Unit of both.
        compute: Memory in bytes according to the compute driver, for a GPU that shares the host's.
    """
    found: dict[str, Value] = {}
    absent = Unavailable(Reason.NOT_SUPPORTED, "does not exist")
    kinds = ("vram", "gtt") if unified else ("vram",)
    places = {kind: {USED: used.format(kind), TOTAL: total.format(kind)} for kind in kinds}
    pools: dict[str, dict[str, Value]] = {
        kind: {name: number(absent if (value := get(place)) is None else value, unit, "B") for name, place in places[kind].items()}
        for kind in kinds
    }
    for kind in compute_pools({kind: pool[TOTAL] for kind, pool in pools.items()}, compute):
        pool = pools[kind]
        in_use, all_ = pool[USED], pool[TOTAL]
        # Drivers report a total of 0 for memory that they do not know.
        if all_ == 0:
            pool[TOTAL] = Unavailable(Reason.NOT_SUPPORTED, "is 0 bytes, which means that the size is unknown")
        elif not isinstance(in_use, Unavailable) and not isinstance(all_, Unavailable) and in_use > all_:
            pool[USED] = Unavailable(Reason.INVALID_VALUE, f"exceeds the total of {all_} bytes")
        for name, value in pool.items():
            before = found.get(name, 0)
            if isinstance(before, Unavailable):
                continue
            if isinstance(value, Unavailable):
                carved = "the carve-out is only a part of an APU's memory; " if name in found else ""
                found[name] = value._replace(detail=f"{carved}{places[kind][name]} {value.detail}")
            else:
                found[name] = before + value
    return found


def exact_joules(printed: object, unit: str) -> Value:
    """Return the energy in joules from the value of a ROCm tool, without the tool's rounding of the counter's unit.

    Args:
        printed: The tool's value.
        unit: Its unit.
    """
    rounded = number(printed, unit, "J")
    return rounded if isinstance(rounded, Unavailable) else rounded / TOOLS_JOULE
