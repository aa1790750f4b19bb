"""Which number each device has, for as long as the process lives.

Numbers are given out per kind (``gpu.0``, ``tpu.0``), compactly from 0, in the fixed order of the selected backends. A
vendor's places are reserved when its hardware is detected, so that one that opens late, or never, shifts nobody; what
turns up beyond the reserved places is numbered after everything else. A device is recognised by its UUID or PCI address,
so it keeps its number when its driver is reloaded and the vendor's own order changes.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from accelmetrics.schemas.identity import DeviceIdentity


class Inventory:
    """The numbering for one selection of backends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next: dict[str, int] = {}
        self._reserved: dict[str, range] = {}
        self._index: dict[tuple[str, str], int] = {}
        self._identity: dict[tuple[str, str], DeviceIdentity] = {}

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

    def adopt(self, backend: str, devices: Sequence[DeviceIdentity]) -> list[int]:
        """Number the devices of an opened backend, in its order; those seen before keep their numbers."""
        with self._lock:
            anchors = _anchors(devices)
            self._rename(backend, devices, anchors)
            return [self._number(backend, anchor, device) for anchor, device in zip(anchors, devices, strict=True)]

    def known(self, backend: str) -> dict[int, DeviceIdentity]:
        """Every device of a backend that was ever seen, by number."""
        with self._lock:
            return {index: self._identity[entry] for entry, index in self._index.items() if entry[0] == backend}

    def export(self) -> list[tuple[str, int, DeviceIdentity]]:
        """Backend, number and identity of every device seen, for :meth:`restore` in another process."""
        with self._lock:
            return [(entry[0], index, self._identity[entry]) for entry, index in self._index.items()]

    def restore(self, seen: Sequence[tuple[str, int, DeviceIdentity]]) -> None:
        """Take over the numbering of another process."""
        with self._lock:
            for backend, index, identity in seen:
                self._index[(backend, identity.anchor)] = index
                self._identity[(backend, identity.anchor)] = identity
                self._next[identity.kind] = max(self._next.get(identity.kind, 0), index + 1)

    def _number(self, backend: str, anchor: str, device: DeviceIdentity) -> int:
        entry = (backend, anchor)
        index = self._index.get(entry)
        if index is None:
            index = self._free_place(backend, device.kind)
            self._index[entry] = index
        self._identity[entry] = device
        return index

    def _free_place(self, backend: str, kind: str) -> int:
        taken = {index for (owner, _), index in self._index.items() if owner == backend}
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
            if anchor != nameless[1] and (backend, anchor) not in self._index and nameless in self._index:
                self._index[(backend, anchor)] = self._index.pop(nameless)
                self._identity.pop(nameless, None)


def _anchors(devices: Sequence[DeviceIdentity]) -> list[str]:
    """By what each device is recognised; where two claim to be the same one, by their numbers."""
    claimed = [device.anchor for device in devices]
    return [anchor if claimed.count(anchor) == 1 else _by_number(device) for anchor, device in zip(claimed, devices, strict=True)]


def _by_number(device: DeviceIdentity) -> str:
    return device._replace(uuid="", pci_bus_id="").anchor
