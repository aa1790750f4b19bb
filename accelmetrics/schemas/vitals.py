"""The handful of numbers that every device is judged by, whichever names its vendor's have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from accelmetrics.schemas.snapshot import Place, Snapshot

UTILIZATION = ("gpu", "dutyCycle", "tensorcoreUtilization", "neuroncore_utilization", "ipu utilisation (%)")
MEMORY_PERCENT = ("memoryAllocated", "hbmMemoryUsage")
MEMORY_USED = ("memoryAllocatedBytes", "hbmCapacityUsage")
MEMORY_TOTAL = ("memoryTotalBytes", "hbmCapacityTotal")
POWER = ("powerWatts", "ipu power (W)")
POWER_LIMIT = ("enforcedPowerLimitWatts",)
TEMPERATURE = ("temp", "average die temp (C)")


class Vitals(NamedTuple):
    """One device at one moment; None where it does not say.

    Attributes:
        key: The device's key, ``gpu.0``.
        name: The product name.
        utilization: Share of the time in which it computed, in percent.
        memory_percent: Share of its memory that is in use, in percent.
        memory_used: Bytes in use.
        memory_total: Bytes it has.
        power: Watts.
        power_limit: Watts that it may draw.
        temperature: Degrees Celsius of the chip.
        why: Why it says nothing at all, in one word; empty while it says something.
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

    @property
    def label(self) -> str:
        """``GPU0``, ``GPU0.1`` for a partition."""
        kind, _, number = self.key.partition(".")
        return kind.upper() + number.replace(".mig.", ".")


def vitals(snapshot: Snapshot) -> list[Vitals]:
    """Every device of a snapshot, in the order of their numbers."""
    return [_vitals(snapshot, place) for place in snapshot.identities]


def first(metrics: Mapping[str, float], device: str, names: tuple[str, ...]) -> float | None:
    """A device's value under the first of these names that it has."""
    return next((value for name in names if (value := metrics.get(f"{device}.{name}")) is not None), None)


def _vitals(snapshot: Snapshot, place: Place) -> Vitals:
    found = {
        "utilization": first(snapshot.metrics, place.key, UTILIZATION),
        "memory_used": first(snapshot.metrics, place.key, MEMORY_USED),
        "memory_total": first(snapshot.metrics, place.key, MEMORY_TOTAL),
        "power": first(snapshot.metrics, place.key, POWER),
        "power_limit": first(snapshot.metrics, place.key, POWER_LIMIT),
        "temperature": first(snapshot.metrics, place.key, TEMPERATURE),
    }
    used, total = found["memory_used"], found["memory_total"] or place.identity.memory_total_bytes
    percent = first(snapshot.metrics, place.key, MEMORY_PERCENT)
    if percent is None and used is not None and total:
        percent = 100.0 * used / total
    why = "" if any(value is not None for value in found.values()) else _reason(snapshot, place.key)
    name = place.identity.name or place.identity.vendor
    return Vitals(place.key, name, memory_percent=percent, why=why, **{**found, "memory_total": total})


def _reason(snapshot: Snapshot, device: str) -> str:
    reasons = (snapshot.unavailable.get(f"{device}.{name}") for name in (*UTILIZATION, *TEMPERATURE))
    return next((str(why.reason) for why in reasons if why is not None), "")
