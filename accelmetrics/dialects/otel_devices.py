"""What OpenTelemetry's conventions want to know of a device: its attributes and its state."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from accelmetrics.schemas.reasons import IN_ORDER, Reason
from accelmetrics.schemas.snapshot import DeviceSlot, Snapshot

STATES = ("ok", "degraded", "failed")
"""Those that can be told from a reading; ``predicted_failure`` cannot."""

FAULTS = frozenset({Reason.DEVICE_LOST, Reason.RESET_REQUIRED, Reason.DRIVER_ERROR, Reason.TIMED_OUT})
"""Reasons that say something against it even while it gives other values."""


@lru_cache(maxsize=1024)
def attributes(place: DeviceSlot) -> dict[str, str]:
    """The attributes that every series of a device carries. ``hw.id`` and ``accel.device`` are never empty. Not to be changed."""
    who = place.identity
    found = {
        "hw.id": who.uuid or who.pci_bus_id or place.key,
        "hw.name": place.key,
        "hw.vendor": who.vendor,
        "hw.model": who.name,
        "hw.parent": who.parent,
        "hw.driver_version": who.driver_version,
        "accel.device": place.key,
    }
    return {name: value for name, value in found.items() if value}


def states(snapshot: Snapshot, key: str) -> Iterator[tuple[str, int]]:
    """Each state with 1 where the device is in it, else 0."""
    found = _state(snapshot, key)
    for state in STATES:
        yield state, int(state == found)


def _state(snapshot: Snapshot, key: str) -> str:
    """``failed``: it gives nothing, for a reason that is one. ``degraded``: it gives something, and a fault for the rest."""
    reasons = {why.reason for why in snapshot.reasons_of(key).values()}
    if snapshot.values_of(key):
        return "degraded" if reasons & FAULTS else "ok"
    return "failed" if reasons - IN_ORDER else "ok"
