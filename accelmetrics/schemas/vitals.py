"""The few main numbers of every device, independent of the vendor's names for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import TypeVar

from accelmetrics.schemas import metric
from accelmetrics.schemas.errors import WORDS
from accelmetrics.schemas.identity import BackendStatus, DeviceSlot
from accelmetrics.schemas.named_tuple import NamedTuple
from accelmetrics.schemas.snapshot import Snapshot
from accelmetrics.schemas.text import printable

UTILIZATION, MEMORY_USED, POWER, TEMPERATURE = metric.UTILIZATION, metric.MEMORY_USED, metric.POWER, metric.TEMPERATURE
MEMORY_PERCENT = ("memoryAllocated", "hbmMemoryUsage")
MEMORY_TOTAL = ("memoryTotalBytes", "hbmCapacityTotal")
POWER_LIMIT = ("enforcedPowerLimitWatts",)
SLOWED = ("throttle.hwSlowdown", "throttle.hwThermalSlowdown", "throttle.hwPowerBrakeSlowdown", "throttle.swThermalSlowdown")
HOT, OVERHEATING, NEAR_SLOWDOWN, FULL_MEMORY, LOADED = 80, 85, 5, 90, 50
"""Limits of rules and warnings: two temperatures in degrees Celsius; kelvins below the slowdown temperature; percent of memory;
percent of
utilisation."""
EXPECTED_NAMES: Mapping[str, tuple[str, ...]] = {
    "utilization": UTILIZATION,
    "memory_percent": MEMORY_PERCENT,
    "memory_used_bytes": MEMORY_USED,
    "memory_total_bytes": MEMORY_TOTAL,
    "power_watts": POWER,
    "power_limit_watts": POWER_LIMIT,
    "temperature": TEMPERATURE,
}
"""Attributes that every device's typed view has, with their metrics. The first metric that the device gives is used."""
MEMORY_PARTS = tuple(
    f"neuroncore_memory_usage.{part}" for part in ("constants", "model_code", "model_shared_scratchpad", "runtime_memory", "tensors")
)
"""The parts of the memory in use, on devices without a sum. They are added up only if all are present."""
RECOVERY = {
    1: "reset asked for",
    2: "reboot asked for",
    3: "drain of peer-to-peer traffic asked for",
    4: "drain and reset asked for",
    5: "recovery of its IMEX domain asked for",
    6: "reset of its bus asked for",
    7: "restart of the system asked for",
}
"""The driver's request, by ``recoveryAction``."""

T = TypeVar("T")

VENDORS = frozenset({"nvidia", "amd", "apple", "intel", "google"})
"""First words of product names that are the vendor's name."""


class Vitals(NamedTuple):
    """The main numbers of a device at one moment; None for missing ones.

    Attributes:
        key: The device's key, ``gpu.0``.
        name: The product name, safe for a terminal.
        utilization: Share of the time in which it computed, in percent.
        memory_percent: Share of its memory that is in use, in percent.
        memory_used: Memory in use, in bytes.
        memory_total: Memory of the device, in bytes.
        power: Power in watts.
        power_limit: Limit of its power in watts.
        temperature: Temperature of the chip in degrees Celsius.
        why: Why there is no number at all, in one word; empty if there is one.
        whole: Whether it is a whole device, not a partition.
    """

    key: str
    name: str
    utilization: float | None
    memory_percent: float | None
    memory_used: float | None
    memory_total: float | None
    power: float | None
    power_limit: float | None
    temperature: float | None
    why: str = ""
    whole: bool = True

    @property
    def short_name(self) -> str:
        """The product name without the vendor's: ``GB10``."""
        first_word, _, rest = self.name.partition(" ")
        return rest if rest and first_word.lower() in VENDORS else self.name

    @property
    def label(self) -> str:
        """A short label: ``GPU0``; ``GPU0.1`` for a partition."""
        kind, _, number = self.key.partition(".")
        return kind.upper() + number.replace(".mig.", ".")


def vitals(snapshot: Snapshot) -> list[Vitals]:
    """Return the main numbers of every device of a snapshot, in the order of their numbers."""
    return [_of_device(snapshot, slot) for slot in snapshot.identities]


def silent_sources(snapshot: Snapshot) -> list[BackendStatus]:
    """Return the sources that do not answer and have no known device, so that nothing else represents their hardware."""
    listed = {slot.backend for slot in snapshot.identities}
    return [status for status in snapshot.backends if status.silent and status.name not in listed]


def first(metrics: Mapping[str, T], device: str, names: Sequence[str]) -> T | None:
    """Return the first entry of a device among these names; None if there is none. Entries may be values or statistics."""
    return next((value for name in names if (value := metrics.get(f"{device}.{name}")) is not None), None)


def processors(metrics: Mapping[str, float]) -> float | None:
    """Return the utilisation of all host processors together, in percent; None if unknown."""
    found = [value for key, value in metrics.items() if key.startswith("cpu.") and key.endswith(".cpu_percent")]
    return sum(found) / len(found) if found else None


def _of_device(snapshot: Snapshot, slot: DeviceSlot) -> Vitals:
    parts = [snapshot.metrics[key] for name in MEMORY_PARTS if (key := f"{slot.key}.{name}") in snapshot.metrics]
    whole = len(parts) == len(MEMORY_PARTS)
    found = {
        "utilization": first(snapshot.metrics, slot.key, UTILIZATION),
        "memory_used": sum(parts) if whole else first(snapshot.metrics, slot.key, MEMORY_USED),
        "memory_total": first(snapshot.metrics, slot.key, MEMORY_TOTAL),
        "power": first(snapshot.metrics, slot.key, POWER),
        "power_limit": first(snapshot.metrics, slot.key, POWER_LIMIT),
        "temperature": first(snapshot.metrics, slot.key, TEMPERATURE),
    }
    used, total = found["memory_used"], found["memory_total"] or slot.identity.memory_total_bytes
    percent = first(snapshot.metrics, slot.key, MEMORY_PERCENT)
    if percent is None and used is not None and total and isfinite(share := 100.0 * used / total):
        percent = share
    reasons = (snapshot.unavailable.get(f"{slot.key}.{name}") for name in (*UTILIZATION, *TEMPERATURE))
    has_no_value = all(value is None for value in found.values())
    why = next((WORDS.get(why.reason, str(why.reason)) for why in reasons if why is not None), "") if has_no_value else ""
    name = printable(slot.identity.name or slot.identity.vendor)
    return Vitals(slot.key, name, memory_percent=percent, why=why, whole=not slot.identity.parent, **{**found, "memory_total": total})
