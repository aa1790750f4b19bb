"""A snapshot's metrics sorted by the device that they belong to, for systems that keep a point or a set of tags per device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from accelmetrics.schemas.snapshot import DeviceSlot, Snapshot

MOST_WORDS = 4
"""Of a key's head that names a device: ``gpu.0.mig.1``."""


class Entry(NamedTuple):
    """One number.

    Attributes:
        name: ``powerWatts``, ``process.memoryAllocated``, ``torch.memoryAllocatedBytes``; the whole key of the host's.
        key: The key that it has in the snapshot.
        value: The number.
    """

    name: str
    key: str
    value: int | float


class Part(NamedTuple):
    """What belongs together.

    Attributes:
        place: The device; None for the host, and for what is said of all devices of a kind.
        entries: Its numbers, in the snapshot's order.
    """

    place: DeviceSlot | None
    entries: list[Entry]


def parts(snapshot: Snapshot) -> list[Part]:
    """The devices in order, each with its numbers, then the host. A part without numbers is left out."""
    found: dict[str, list[Entry]] = {place.key: [] for place in snapshot.identities}
    heads = {head: start for place in snapshot.identities for head, start in _heads(place)}
    host: list[Entry] = []
    for key, value in snapshot.metrics.items():
        device, name = _split(key, heads)
        found.get(device, host).append(Entry(name, key, value))
    devices = [Part(place, found[place.key]) for place in snapshot.identities]
    return [part for part in (*devices, Part(None, host)) if part.entries]


def identity_tags(place: DeviceSlot) -> dict[str, str]:
    """Who a device is; the first two are never empty."""
    who = place.identity
    tags = {"accelerator": place.key, "uuid": who.uuid or who.pci_bus_id or place.key, "vendor": who.vendor, "model": who.name}
    return {name: value for name, value in tags.items() if value}


def _heads(place: DeviceSlot) -> list[tuple[str, tuple[str, str]]]:
    """What keys of a device begin with, each with its key and what goes before the name."""
    heads = [(place.key, (place.key, ""))]
    if not place.identity.parent:
        heads.append((f"{place.identity.kind}.process.{place.index}", (place.key, "process.")))
    if place.key == f"gpu.{place.index}":
        heads.append((f"torch.{place.index}", (place.key, "torch.")))
    return heads


def _split(key: str, heads: Mapping[str, tuple[str, str]]) -> tuple[str, str]:
    """The device and the name below it; no device and the whole key for the host's."""
    words = key.split(".", MOST_WORDS)
    for count in range(min(MOST_WORDS, len(words) - 1), 1, -1):
        head = heads.get(".".join(words[:count]))
        if head is not None:
            return head[0], head[1] + ".".join(words[count:])
    return "", key
