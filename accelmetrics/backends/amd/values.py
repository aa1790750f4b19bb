"""Rules for values of AMD's cards that hold in each source: memory and energy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from accelmetrics.backends.amd.gpu_metrics import TOOLS_JOULE
from accelmetrics.backends.contract import Value
from accelmetrics.backends.kit.fields import MEMORY, POWER_SHARE, Derived, Field, Row, number
from accelmetrics.schemas.errors import Reason, Unavailable

USED, TOTAL = "memory.used", "memory.total"
"""Where :func:`device_memory` puts the bytes in a record."""
SAME_SIZE = 0.02
"""Share by which two sizes of one pool may differ: drivers round to pages and leave some out."""

OF_PARTITION = frozenset(
    {
        *("gpu", "memory", "memoryReadWriteActivity", "smClock", "maxSmClock", "memoryClock", "maxMemoryClock"),
        *("memoryAllocatedBytes", "memoryTotalBytes", "memoryAllocated"),
    }
)
"""What a partition of a card has of its own. All else that a tool prints of it is the card's."""

UNDOCUMENTED_ENERGY = Unavailable(Reason.NOT_SUPPORTED, "of a card without HBM nothing documents what the energy counter counts")
"""One answer in every source, so that it is the same whichever of them are joined."""


def memory_rows(used: str, total: str) -> tuple[Row, ...]:
    """Make the rows of memory, which are the same in every source.

    Args:
        used: Where the bytes that are used are read, in words.
        total: The same of those that there are.
    """
    return Field("memoryAllocatedBytes", USED, "B", words=used), Field("memoryTotalBytes", TOTAL, "B", words=total), *MEMORY, POWER_SHARE


def of_card(*rows: Row) -> tuple[Row, ...]:
    """Mark the rows whose values the tools repeat on every partition of a card."""
    return tuple(row if isinstance(row, Derived) or row.metric in OF_PARTITION else row._replace(of_whole=True) for row in rows)


def card_of(uuid: str, address: str) -> str:
    """Name the card that a device is a partition of, if it is one: partitions share the id, and the address but for its function.

    Two cards with one id, as virtual machines show them, are not in one slot.
    """
    return f"{uuid} {address.rpartition('.')[0]}" if uuid else ""


def compute_pools(totals: Mapping[str, Value], compute: int | None) -> tuple[str, ...]:
    """Return which kinds of memory a GPU that shares the host's memory uses.

    Up to Linux 6.9 compute has the carve-out alone, and since then the larger of carve-out and GTT. So both together are more than it can
    use, and may be more than the machine has. The kernel's compute driver says how much it is, and so which of them; where it is not
    loaded, a program (of graphics) may use both.

    Args:
        totals: By kind, the bytes that there are.
        compute: The bytes that the compute driver shows.
    """
    if compute:
        for kind, all_ in totals.items():
            if not isinstance(all_, Unavailable) and math.isclose(all_, compute, rel_tol=SAME_SIZE):
                return (kind,)
    return tuple(totals)


def device_memory(
    said: Callable[[str], object], unified: bool, used: str, total: str, unit: str = "B", compute: int | None = None
) -> dict[str, Value]:
    """Return the memory that a device uses: its own; where it shares the host's, what :func:`compute_pools` says.

    Args:
        said: Gives what stands at a place of the record.
        unified: Whether the card shares the host's memory.
        used: The place of what is used; ``{}`` stands for the kind of memory, ``vram`` or ``gtt``.
        total: The same of what there is.
        unit: What both are counted in.
        compute: The bytes that the compute driver shows, of a GPU that shares the host's memory.
    """
    found: dict[str, Value] = {}
    absent = Unavailable(Reason.NOT_SUPPORTED, "is not there")
    kinds = ("vram", "gtt") if unified else ("vram",)
    places = {kind: {USED: used.format(kind), TOTAL: total.format(kind)} for kind in kinds}
    pools: dict[str, dict[str, Value]] = {
        kind: {name: number(absent if (value := said(place)) is None else value, unit, "B") for name, place in places[kind].items()}
        for kind in kinds
    }
    for kind in compute_pools({kind: pool[TOTAL] for kind, pool in pools.items()}, compute):
        pool = pools[kind]
        in_use, all_ = pool[USED], pool[TOTAL]
        if all_ == 0:
            pool[TOTAL] = Unavailable(Reason.NOT_SUPPORTED, "a total of 0 bytes stands for memory that is unknown")
        elif not isinstance(in_use, Unavailable) and not isinstance(all_, Unavailable) and in_use > all_:
            pool[USED] = Unavailable(Reason.INVALID_VALUE, f"more than all {all_} bytes")
        for name, value in pool.items():
            before = found.get(name, 0)
            if isinstance(before, Unavailable):
                continue
            if isinstance(value, Unavailable):
                carved = "an APU's carve-out alone is not the memory it uses; " if name in found else ""
                found[name] = value._replace(detail=f"{carved}{places[kind][name]} {value.detail}")
            else:
                found[name] = before + value
    return found


def exact_joules(printed: object, unit: str) -> Value:
    """Return the energy behind what a tool of ROCm printed, which has the unit of the counter rounded.

    Args:
        printed: The energy as the tool has it.
        unit: Its unit.
    """
    rounded = number(printed, unit, "J")
    return rounded if isinstance(rounded, Unavailable) else rounded / TOOLS_JOULE
