"""``verl``: the names that a monitor for reinforcement learning with verl logs, flat, with the device's number in them. GB are GiB.

``memory_allocated_gb`` and ``memory_reserved_gb``, and the share of the total that is allocated, are PyTorch's, of the watched
program: they are absent where it does not use PyTorch, and never the driver's figures, which count everybody's memory.
"""

from __future__ import annotations

from collections.abc import Iterator

from accelmetrics.dialects.contract import Number, Point
from accelmetrics.dialects.tables import Entry, Table, convert, designation
from accelmetrics.schemas.record import Record
from accelmetrics.schemas.snapshot import DeviceSlot, Snapshot

TABLE = (
    Entry("gpu_utilization_pct", "gpu.{i}.gpu"),
    Entry("memory_total_gb", "gpu.{i}.memoryTotalBytes", "GiBy"),
    Entry("temperature_c", "gpu.{i}.temp"),
    Entry("power_usage_w", "gpu.{i}.powerWatts"),
    Entry("graphics_clock_mhz", "gpu.{i}.graphicsClock", otherwise=("gpu.{i}.freq", "gpu.{i}.smClock")),
    Entry("memory_clock_mhz", "gpu.{i}.memoryClock"),
)
"""Behind ``gpu_0_``."""

ALLOCATOR = {"memory_allocated_gb": "memoryAllocatedBytes", "memory_reserved_gb": "memoryReservedBytes"}
"""Behind ``gpu_0_``, from ``torch.0.``."""
SHARE = "memory_utilization_pct"
"""``memory_allocated_gb`` in percent of ``memory_total_gb``."""

CPU, MEMORY_USED, MEMORY_SHARE = "cpu_utilization_pct", "system_memory_used_gb", "system_memory_utilization_pct"
_GIB = 2**30
_MIB_PER_GIB = 1024
_UNITS = {"pct": "%", "gb": "GiBy", "c": "Cel", "w": "W", "mhz": "MHz"}


class Verl:
    """Flat names without labels."""

    name = "verl"
    summary = "what a monitor for verl logs: gpu_0_gpu_utilization_pct, system_memory_used_gb"

    def __init__(self) -> None:
        self._table = Table(TABLE)

    def flat(self, record: Record) -> dict[str, Number | None]:
        """Device by device, then the machine."""
        return dict(self._pairs(record.snapshot))

    def points(self, record: Record) -> Iterator[Point]:
        """The same: the device is in the name, so that there are no labels."""
        for name, value in self._pairs(record.snapshot):
            yield Point(name, value, {}, "gauge", _UNITS[name.rpartition("_")[2]])

    def _pairs(self, snapshot: Snapshot) -> Iterator[tuple[str, Number]]:
        for place in snapshot.identities:
            head = place.key.replace(".", "_")
            for told in self._table.told(snapshot, place):
                yield f"{head}_{told.entry.name}", told.value
            for name, value in _allocated(snapshot, place):
                yield f"{head}_{name}", value
        yield from _machine(snapshot)


def _allocated(snapshot: Snapshot, place: DeviceSlot) -> Iterator[tuple[str, Number]]:
    """What PyTorch's allocator holds of a device."""
    head = f"torch.{designation(place)}"
    for name, suffix in ALLOCATOR.items():
        if (held := snapshot.metrics.get(f"{head}.{suffix}")) is not None:
            yield name, convert(held, "By", "GiBy")
    allocated = snapshot.metrics.get(f"{head}.{ALLOCATOR['memory_allocated_gb']}")
    total = snapshot.values_of(place.key).get("memoryTotalBytes")
    if allocated is not None and total:
        yield SHARE, allocated / total * 100


def _machine(snapshot: Snapshot) -> Iterator[tuple[str, Number]]:
    busy = [value for key, value in snapshot.metrics.items() if key.startswith("cpu.") and key.endswith(".cpu_percent")]
    if busy:
        yield CPU, sum(busy) / len(busy)
    used = _memory_used(snapshot)
    if used is not None:
        yield MEMORY_USED, used
    if (share := snapshot.metrics.get("memory_percent")) is not None:
        yield MEMORY_SHARE, share


def _memory_used(snapshot: Snapshot) -> float | None:
    """The machine's, or the cgroup's: from what is available and the share that is used, which are of one total."""
    if (used := snapshot.metrics.get("memory.used")) is not None:
        return used / _GIB
    available, share = snapshot.metrics.get("proc.memory.availableMB"), snapshot.metrics.get("memory_percent")
    if available is None or share is None or share >= 100:
        return None
    return available / _MIB_PER_GIB * share / (100 - share)


VERL = Verl()
