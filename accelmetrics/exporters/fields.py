"""Helpers of several exporters: numbers by device, a device's identity as tags, text that UTF-8 can encode."""

from __future__ import annotations

from accelmetrics.dialects.health import identity_labels
from accelmetrics.schemas.identity import DeviceSlot
from accelmetrics.schemas.record import Step
from accelmetrics.schemas.snapshot import Snapshot

INT64 = 2**63
"""Upper limit (exclusive) of 64-bit integers; the lower limit is ``-INT64``. Trackers and databases reject larger integers."""


def utf8(text: str) -> str:
    """Return text that UTF-8 can encode: a lone surrogate becomes a six-character escape, as in JSON."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


def step_tags(step: Step) -> dict[str, str]:
    """Return the node and rank that logged a step as tags. Unknown ones are left out."""
    tags = {"host": step.node, "rank": "" if step.rank is None else str(step.rank)}
    return {name: text for name, text in tags.items() if text}


def by_device(snapshot: Snapshot) -> list[tuple[DeviceSlot | None, dict[str, str]]]:
    """Group a snapshot's keys by device.

    Returns:
        Pairs of a device and its keys by name (``powerWatts``, ``process.memoryAllocated``, ``torch.memoryAllocatedBytes``), in device
        order. Devices without keys are left out. The last pair has None as its device and contains the keys of the host and of no
        single device, by the whole key.
    """
    rest = dict.fromkeys(snapshot.metrics)
    found: list[tuple[DeviceSlot | None, dict[str, str]]] = []
    for slot in snapshot.identities:
        parts = {"": slot.key}
        if not slot.identity.parent:
            parts["process."] = f"{slot.identity.kind}.process.{slot.index}"
        if slot.key == f"gpu.{slot.index}":
            parts["torch."] = f"torch.{slot.index}"
        keys = {group + name: f"{part}.{name}" for group, part in parts.items() for name in snapshot.values_of(part)}
        for key in keys.values():
            rest.pop(key, None)
        found.append((slot, keys))
    return [(slot, keys) for slot, keys in (*found, (None, {key: key for key in rest})) if keys]


def identity_tags(slot: DeviceSlot) -> dict[str, str]:
    """Return a device's identity as tags; ``accelerator`` and ``uuid`` are never empty."""
    found = {**identity_labels(slot), "vendor": slot.identity.vendor, "model": slot.identity.name}
    return {name: value for name, value in found.items() if value}
