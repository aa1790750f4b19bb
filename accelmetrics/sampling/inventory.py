"""Which number each device has, for as long as the process lives.

GPUs are numbered compactly from 0, in the fixed order of the selected backends, since several vendors share ``gpu.<i>``. A
vendor's places are reserved when its hardware is detected, so that one that opens late, or never, shifts nobody; what
turns up beyond the reserved places is numbered after everything else. Kinds that one vendor alone makes keep its own
numbers (``tpu.<i>`` is the runtime's device id), and a partition has a number below its parent's (``gpu.0.mig.1``): the
vendor's own, unless another device or partition had that before, since a key never changes its device; then the next free one.

A device is recognised by its UUID or PCI address, so it keeps its number when its driver is reloaded and the vendor's own
order changes. For the same reason a TPU that was listed while nobody used it, by its place on the bus, keeps that number when
a runtime gives it another: its identity tells the runtime's.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import NamedTuple

from accelmetrics.schemas.identity import DeviceIdentity
from accelmetrics.schemas.metric import PARTITION
from accelmetrics.schemas.snapshot import DeviceSlot

VENDOR_NUMBERED = frozenset({"tpu", "trn", "ipu"})
"""Kinds whose numbers are the vendor's own."""


class Taken(NamedTuple):
    """Numbers that are not free.

    Attributes:
        kind: Of which kind of devices; empty for those set aside for a backend, which has one kind.
        numbers: The numbers.
    """

    kind: str
    numbers: range


Seen = tuple[str, DeviceSlot | Taken]
"""A backend's name and a device of its, with its place, or the numbers set aside for it; under no backend's name, all the
numbers of a kind that are set aside or given out."""


class Inventory:
    """The numbering for one selection of backends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next: dict[str, int] = {}
        self._reserved: dict[str, range] = {}
        self._places: dict[tuple[str, str], DeviceSlot] = {}

    def renew_lock(self) -> None:
        """Replace the lock, which another thread may have held when the process forked."""
        self._lock = threading.Lock()

    def reserve(self, backend: str, kind: str, count: int) -> None:
        """Set places aside for a backend, the first time it is named; call in the order of the backends."""
        with self._lock:
            if backend not in self._reserved:
                start = self._next.get(kind, 0)
                self._reserved[backend] = range(start, start + count)
                self._next[kind] = start + count

    def adopt(self, backend: str, devices: Sequence[DeviceIdentity]) -> list[DeviceSlot]:
        """Give the devices of an opened backend their places, in its order; those seen before keep theirs."""
        with self._lock:
            anchors = _anchors(devices)
            self._rename(backend, devices, anchors)
            places = [self._place(backend, anchor, device) for anchor, device in zip(anchors, devices, strict=True)]
            assert len({place.key for place in places}) == len(places), "a key is one device's"
            return places

    def known(self, backend: str) -> list[DeviceSlot]:
        """Every device of a backend that was ever seen, whole devices first, by number."""
        with self._lock:
            places = [place for (owner, _), place in self._places.items() if owner == backend]
            return sorted(places, key=lambda place: (bool(place.identity.parent), place.key.rpartition(".")[0], place[1]))

    def export(self) -> list[Seen]:
        """Every device seen and every number taken, for :meth:`restore` in another process."""
        with self._lock:
            return [
                *((entry[0], place) for entry, place in self._places.items()),
                *((backend, Taken("", numbers)) for backend, numbers in self._reserved.items()),
                *(("", Taken(kind, range(free))) for kind, free in self._next.items()),
            ]

    def restore(self, seen: Sequence[Seen]) -> None:
        """Take over the numbering of another process."""
        with self._lock:
            known: dict[str, list[DeviceSlot]] = {}
            for backend, entry in seen:
                if isinstance(entry, DeviceSlot):
                    known.setdefault(backend, []).append(entry)
                elif backend:
                    self._reserved[backend] = entry.numbers
                else:
                    self._next[entry.kind] = max(self._next.get(entry.kind, 0), len(entry.numbers))
            for backend, places in known.items():
                anchors = _anchors([place.identity for place in places])
                self._places.update({(backend, anchor): place for anchor, place in zip(anchors, places, strict=True)})

    def _place(self, backend: str, anchor: str, device: DeviceIdentity) -> DeviceSlot:
        known = self._places.get((backend, anchor))
        place = known._replace(identity=device) if known is not None else self._new_place(backend, device)._replace(listed_by=backend)
        self._places[(backend, anchor)] = place
        return place

    def _new_place(self, backend: str, device: DeviceIdentity) -> DeviceSlot:
        parent = self._places.get((backend, device.parent)) if device.parent else None
        if parent is not None:
            return self._new_partition(parent, device)
        if device.kind in VENDOR_NUMBERED:
            return self._next_free(device.kind, device)
        index = self._free_number(backend, device.kind)
        return DeviceSlot(f"{device.kind}.{index}", index, None, device)

    def _new_partition(self, parent: DeviceSlot, device: DeviceIdentity) -> DeviceSlot:
        return self._next_free(f"{parent.key}.{PARTITION}", device)

    def _next_free(self, prefix: str, device: DeviceIdentity) -> DeviceSlot:
        """A place under the vendor's number, or the next that no device ever had."""
        taken = {place.key for place in self._places.values()}
        index = device.vendor_index
        while (key := f"{prefix}.{index}") in taken:
            index += 1
        return DeviceSlot(key, index, None, device)

    def _free_number(self, backend: str, kind: str) -> int:
        taken = {place[1] for (owner, _), place in self._places.items() if owner == backend and not place.identity.parent}
        for index in self._reserved.get(backend, range(0)):
            if index not in taken:
                return index
        index = self._next.get(kind, 0)
        self._next[kind] = index + 1
        return index

    def _rename(self, backend: str, devices: Sequence[DeviceIdentity], anchors: Sequence[str]) -> None:
        """A device that failed at its first enumeration had no UUID then: it keeps the number it got all the same."""
        for anchor, device in zip(anchors, devices, strict=True):
            nameless = (backend, _by_number(device))
            if anchor != nameless[1] and (backend, anchor) not in self._places and nameless in self._places:
                self._places[(backend, anchor)] = self._places.pop(nameless)


def _anchors(devices: Sequence[DeviceIdentity]) -> list[str]:
    """By what each device is recognised.

    Where two claim to be the same one, by their numbers; the devices of one chip, whose numbers are a program's and change
    with it, by their order.
    """
    claimed = [device.anchor for device in devices]
    told = [_apart(device) if claimed.count(device.anchor) > 1 else device.anchor for device in devices]
    return [f"{anchor}#{told[:place].count(anchor)}" if told.count(anchor) > 1 else anchor for place, anchor in enumerate(told)]


def _apart(device: DeviceIdentity) -> str:
    return device.anchor if device.kind in VENDOR_NUMBERED and not device.uuid else _by_number(device)


def _by_number(device: DeviceIdentity) -> str:
    return device._replace(uuid="", pci_bus_id="").anchor
