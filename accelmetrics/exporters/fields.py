"""What several exporters take from a record: numbers by device, the device's identity, text that UTF-8 can hold."""

from __future__ import annotations

from accelmetrics.dialects.health import identity_labels
from accelmetrics.schemas.identity import DeviceSlot
from accelmetrics.schemas.record import Step
from accelmetrics.schemas.snapshot import Snapshot

INT64 = 2**63
"""Whole numbers below this, and from its negative on, are 64 bits; trackers and databases have no room for others."""


def utf8(text: str) -> str:
    """Return text that UTF-8 can hold: a lone surrogate becomes the six letters of its escape, as in JSON."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


def step_tags(step: Step) -> dict[str, str]:
    """Return the process that logged a step as tags, as far as it is known."""
    tags = {"host": step.node, "rank": "" if step.rank is None else str(step.rank)}
    return {name: text for name, text in tags.items() if text}


def by_device(snapshot: Snapshot) -> list[tuple[DeviceSlot | None, dict[str, str]]]:
    """Sort a snapshot's keys by the device that they belong to.

    Returns:
        The devices in order, then None for the host and for keys of no single device. Each with its keys by the name below the
        device: ``powerWatts``, ``process.memoryAllocated``, ``torch.memoryAllocatedBytes``; the host's by the whole key. Devices
        without keys are left out.
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
    who = slot.identity
    found = {"vendor": who.vendor, "model": who.name}
    return {**identity_labels(slot), **{name: value for name, value in found.items() if value}}
