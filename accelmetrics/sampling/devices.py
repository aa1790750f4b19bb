"""Which key each device has: numbers of the process, and the numbers that one sampler shows.

:class:`DeviceRegistry` numbers devices for as long as the process lives; a number is never taken back. GPUs are numbered compactly
from 0, in the fixed order of the selected backends, since several vendors share ``gpu.<i>``. A vendor's numbers are reserved when its
hardware is detected, so that one that opens late, or never, shifts no other; devices beyond the reserved numbers come after all
others. Kinds that one vendor alone makes keep its own numbers (``tpu.<i>`` is the runtime's device id), and a partition has a number
below its parent's (``gpu.0.mig.1``): the vendor's own, unless another device or partition had that before; then the next free one.

A device is recognised by its UUID or PCI address, so it keeps its number when its driver is reloaded and the vendor's own order
changes. For the same reason a TPU that was listed while it was not in use, by its place on the bus, keeps that number when a runtime
gives it another: its identity tells the runtime's.

:class:`VisibilityFilter` shows one sampler's devices as the watched program sees them. With ``visible="renumber"`` the program's n-th
device takes the n-th of the numbers that its vendor's devices have, or n itself where one vendor alone makes the kind: for a program
on one vendor's GPUs ``gpu.0`` is its device 0, and on a mixed host no two vendors ever meet under one key, whichever opens first.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence

from accelmetrics.backends.kit.processes import Environment, environment_of
from accelmetrics.backends.visible import Visibility, visibility
from accelmetrics.sampling.options import Options
from accelmetrics.schemas.identity import DeviceIdentity
from accelmetrics.schemas.metric import PARTITION
from accelmetrics.schemas.named_tuple import NamedTuple
from accelmetrics.schemas.snapshot import DeviceSlot

VENDOR_NUMBERED = frozenset({"tpu", "trn", "ipu"})
"""Kinds whose numbers are the vendor's own."""
RENUMBER = "renumber"


class Numbering(NamedTuple):
    """The numbers given out so far. Never changed in place, so that an interrupt leaves the old one or the new one.

    Attributes:
        slots: By backend and by what each device is recognised by, its slot.
        reserved: By backend, the numbers set aside for it.
        free: By kind, the first number that is neither given out nor set aside.
    """

    slots: Mapping[tuple[str, str], DeviceSlot]
    reserved: Mapping[str, range]
    free: Mapping[str, int]


NO_NUMBERS = Numbering({}, {}, {})


class DeviceRegistry:
    """The numbering for one selection of backends.

    Attributes:
        numbering: The numbers given out so far, here or in a process before.
    """

    def __init__(self, numbering: Numbering = NO_NUMBERS) -> None:
        self.numbering = numbering
        self._lock = threading.Lock()

    def reserve(self, backend: str, kind: str, count: int) -> None:
        """Set numbers aside for a backend, the first time it is named; call in the order of the backends."""
        with self._lock:
            slots, reserved, free = self.numbering
            if backend not in reserved:
                end = free.get(kind, 0) + count
                self.numbering = Numbering(slots, {**reserved, backend: range(end - count, end)}, {**free, kind: end})

    def adopt(self, backend: str, devices: Sequence[DeviceIdentity]) -> list[DeviceSlot]:
        """Give the devices of an opened backend their slots, in its order; those seen before keep theirs."""
        with self._lock:
            slots, free = dict(self.numbering.slots), dict(self.numbering.free)
            reserved = self.numbering.reserved.get(backend, range(0))
            anchors = _anchors(devices)
            for anchor, device in zip(anchors, devices, strict=True):
                # A device that failed at its first enumeration had no UUID then: it keeps the number that it got.
                nameless = (backend, _by_number(device))
                if (backend, anchor) not in slots and nameless in slots:
                    slots[backend, anchor] = slots.pop(nameless)
                known = slots.get((backend, anchor))
                slots[backend, anchor] = known._replace(identity=device) if known else _new_slot(backend, device, slots, reserved, free)
            self.numbering = Numbering(slots, self.numbering.reserved, free)
            found = [slots[backend, anchor] for anchor in anchors]
            assert len({slot.key for slot in found}) == len(found), "a key is one device's"
            return found

    def known(self, backend: str) -> list[DeviceSlot]:
        """List every device of a backend that was ever seen, whole devices first, by number."""
        slots = [slot for (owner, _), slot in self.numbering.slots.items() if owner == backend]
        return sorted(slots, key=lambda slot: (bool(slot.identity.parent), slot.key.rpartition(".")[0], slot.index))


def _new_slot(
    backend: str, device: DeviceIdentity, slots: Mapping[tuple[str, str], DeviceSlot], reserved: range, free: dict[str, int]
) -> DeviceSlot:
    parent = slots.get((backend, device.parent)) if device.parent else None
    prefix = device.kind if parent is None else f"{parent.key}.{PARTITION}"
    if parent is not None or device.kind in VENDOR_NUMBERED:
        taken = {slot.key for slot in slots.values()}
        index = device.vendor_index
        while f"{prefix}.{index}" in taken:
            index += 1
    else:
        used = {slot.index for (owner, _), slot in slots.items() if owner == backend and not slot.identity.parent}
        left = [number for number in reserved if number not in used]
        index = left[0] if left else free.get(device.kind, 0)
        if not left:
            free[device.kind] = index + 1
    return DeviceSlot(f"{prefix}.{index}", index, None, device, backend)


def _anchors(devices: Sequence[DeviceIdentity]) -> list[str]:
    """Return what each device is recognised by.

    Where two claim to be the same one, their numbers tell them apart; the devices of one chip, whose numbers are a program's and
    change with it, their order.
    """
    claimed = [device.anchor for device in devices]
    told = [
        _by_number(device) if claimed.count(device.anchor) > 1 and (device.uuid or device.kind not in VENDOR_NUMBERED) else device.anchor
        for device in devices
    ]
    return [f"{anchor}#{told[:place].count(anchor)}" if told.count(anchor) > 1 else anchor for place, anchor in enumerate(told)]


def _by_number(device: DeviceIdentity) -> str:
    return device._replace(uuid="", pci_bus_id="").anchor


class VisibilityFilter:
    """One sampler's devices of one backend, as the watched program sees them.

    The program's environment is read once: a program reads its lists when it starts. Whether a device is reported, and under which
    key, is decided when it is seen first, and kept. Nothing is read from a device.

    Attributes:
        caveat: What to know about a selection by visibility, in words; empty when nothing.
    """

    def __init__(self, options: Options) -> None:
        self.caveat = ""
        self._visible = options.visible
        # A child of ours that reads for us (isolation="process") has inherited what we had when it was started.
        self._pid = options.pid if options.watched else None
        self._known: list[DeviceSlot] = []
        self._shown: dict[str, DeviceSlot | None] = {}
        self._environment: Environment | None = None

    def show(self, known: Sequence[DeviceSlot]) -> dict[str, DeviceSlot]:
        """Decide which devices are reported.

        Args:
            known: Every device of the backend.

        Returns:
            By the registry's key, the slot under which a device is reported; no entry for one that is not.
        """
        if list(known) != self._known:
            decided = self._decide(known)
            # What was decided before stands; others are shown as far as their keys are free.
            shown = {slot.key: before._replace(identity=slot.identity) if (before := self._shown.get(slot.key)) else None for slot in known}
            taken = {slot.key for slot in shown.values() if slot is not None}
            for slot, new in zip(known, decided, strict=True):
                if slot.key not in self._shown and new is not None and new.key not in taken:
                    shown[slot.key] = new
            self._known, self._shown = list(known), shown
        reported = {key: slot for key, slot in self._shown.items() if slot is not None}
        if self._visible == RENUMBER:
            return dict(sorted(reported.items(), key=lambda entry: entry[1].index))
        return reported

    def _decide(self, known: Sequence[DeviceSlot]) -> Sequence[DeviceSlot | None]:
        if self._environment is None:
            self._environment = environment_of(os.getpid() if self._pid is None else self._pid)
        if self._environment.values is None:
            seen = Visibility((None,) * len(known), (None,) * len(known), (), (self._environment.why,))
        else:
            seen = visibility(self._environment.values, [slot.identity for slot in known])
        marked = [slot._replace(visible_index=index) for slot, index in zip(known, seen.positions, strict=True)]
        if not self._visible:
            return marked
        caveats = list(seen.caveats)
        # What cannot be told is not left out: only what is known to be hidden is.
        kept = [slot if sees is not False else None for slot, sees in zip(marked, seen.visible, strict=True)]
        if self._visible == RENUMBER:
            renumbered = _renumbered([slot for slot in kept if slot is not None], known)
            if isinstance(renumbered, str):
                caveats.append(f"the devices keep their usual numbers: {renumbered}")
            else:
                kept = [None if slot is None else renumbered[slot.key] for slot in kept]
        self.caveat = "; ".join(caveats)
        return kept


def _renumbered(kept: Sequence[DeviceSlot], known: Sequence[DeviceSlot]) -> dict[str, DeviceSlot] | str:
    """Number slots as the program does, by their usual keys; why not, in words, where not every one has such a number of its own."""
    if len({(slot.identity.kind, slot.visible_index) for slot in kept}) < len(kept) or any(slot.visible_index is None for slot in kept):
        return "the program's cannot be told"
    renumbered = {}
    for slot in kept:
        kind, position = slot.identity.kind, slot.visible_index or 0
        numbers = sorted(other.index for other in known if other.identity.kind == kind and not other.identity.parent)
        if kind not in VENDOR_NUMBERED and position >= len(numbers):
            return "the program sees more partitions than there are whole devices"
        number = position if kind in VENDOR_NUMBERED else numbers[position]
        renumbered[slot.key] = slot._replace(key=f"{kind}.{number}", index=number)
    return renumbered
