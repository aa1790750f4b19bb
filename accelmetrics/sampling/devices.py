"""Which key each device has: numbers of the process, and the numbers that one sampler shows.

:class:`DeviceRegistry` numbers devices for as long as the process lives; a number is never taken back. GPUs are numbered compactly
from 0, in the fixed order of the selected backends, since several vendors share ``gpu.<i>``. A vendor's numbers are reserved when its
hardware is detected, so that one that opens late, or never, shifts no other; devices beyond the reserved numbers come after all
others. Kinds that one vendor alone makes keep its own numbers (``tpu.<i>`` is the runtime's device id), and a partition has a number
below its parent's (``gpu.0.mig.1``): the vendor's own, unless another device or partition had that before; then the next free one.

A device is recognised by its UUID, else by its PCI address, else by the vendor's number, so it keeps its key when its driver is reloaded,
when the vendor's own order changes, and while one of these cannot be read. Another UUID at the same address is another device. A TPU
that was listed while it was not in use, by its place on the bus, keeps that number when a runtime gives it another: its identity tells
the runtime's.

:class:`VisibilityFilter` shows one sampler's devices as the watched program sees them. With ``visible="renumber"`` the program's n-th
device takes the n-th of the numbers that its vendor's devices have, or n itself where one vendor alone makes the kind: for a program
on one vendor's GPUs ``gpu.0`` is its device 0, and on a mixed host no two vendors ever meet under one key, whichever opens first.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from accelmetrics.backends.kit.processes import no_process, number_here
from accelmetrics.backends.kit.system import read_once
from accelmetrics.backends.visible import Visibility, visibility
from accelmetrics.sampling.options import Options
from accelmetrics.schemas.identity import DeviceIdentity, DeviceSlot, pci_address
from accelmetrics.schemas.metric import PARTITION
from accelmetrics.schemas.named_tuple import NamedTuple

VENDOR_NUMBERED = frozenset({"tpu", "trn", "ipu"})
"""Kinds whose numbers are the vendor's own."""
PROGRAM_NUMBERED = "tpu"
"""The kind whose numbers are those of the program that holds it: the next program may give another device the same one."""
RENUMBER = "renumber"


class Numbering(NamedTuple):
    """The numbers given out so far. Never changed in place, so that an interrupt leaves the old one or the new one.

    Attributes:
        slots: The slot of every device that was ever seen, in the order in which they were.
        reserved: By backend, the numbers set aside for it.
        free: By kind, the first number that is neither given out nor set aside.
    """

    slots: tuple[DeviceSlot, ...]
    reserved: Mapping[str, range]
    free: Mapping[str, int]


NO_NUMBERS = Numbering((), {}, {})


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
            slots, free = {slot.key: slot for slot in self.numbering.slots}, dict(self.numbering.free)
            reserved = self.numbering.reserved.get(backend, range(0))
            found: dict[int, DeviceSlot] = {}
            for partitions in (False, True):
                listed = {place: device for place, device in enumerate(devices) if bool(device.parent) == partitions}
                seen = [slot for slot in slots.values() if slot.backend == backend]
                parents = {slot.identity.anchor: slot for slot in seen if not slot.identity.parent}
                parents.update({devices[place].anchor: slot for place, slot in found.items()})
                above = [parents.get(device.parent) for device in listed.values()]
                known = _recognise(tuple(listed.values()), above, [slot for slot in seen if bool(slot.identity.parent) == partitions])
                for (place, told), parent, before in zip(listed.items(), above, known, strict=True):
                    device = told if parent is None else told._replace(parent=parent.identity.anchor)
                    if before is None:
                        slot = _new_slot(backend, device, parent, slots, reserved, free)
                    else:
                        known_of = before.identity  # what cannot be read now; a name may be no more than what the PCI bus says
                        kept = {part: getattr(device, part) or getattr(known_of, part) for part in ("uuid", "pci_bus_id", "serial")}
                        name = (known_of.uuid and not device.uuid and known_of.name) or device.name
                        slot = before._replace(identity=device._replace(name=name, **kept))
                    found[place] = slots[slot.key] = slot
            self.numbering = Numbering(tuple(slots.values()), self.numbering.reserved, free)
            adopted = [found[place] for place in range(len(devices))]
            return adopted  # noqa: RET504 - an interrupt that comes after the last call in the block would leave the lock held

    def known(self, backend: str) -> list[DeviceSlot]:
        """List every device of a backend that was ever seen, whole devices first, by number."""
        slots = [slot for slot in self.numbering.slots if slot.backend == backend]
        return sorted(slots, key=lambda slot: (bool(slot.identity.parent), slot.key.rpartition(".")[0], slot.index))


def _new_slot(
    backend: str, device: DeviceIdentity, parent: DeviceSlot | None, slots: Mapping[str, DeviceSlot], reserved: range, free: dict[str, int]
) -> DeviceSlot:
    prefix = device.kind if parent is None else f"{parent.key}.{PARTITION}"
    if parent is not None or device.kind in VENDOR_NUMBERED:
        index = device.vendor_index
        while f"{prefix}.{index}" in slots:
            index += 1
    else:
        used = {slot.index for slot in slots.values() if slot.backend == backend and not slot.identity.parent}
        left = [number for number in reserved if number not in used]
        index = left[0] if left else free.get(device.kind, 0)
        if not left:
            free[device.kind] = index + 1
    return DeviceSlot(f"{prefix}.{index}", index, None, device, backend)


def _recognise(
    devices: Sequence[DeviceIdentity], above: Sequence[DeviceSlot | None], known: Sequence[DeviceSlot]
) -> list[DeviceSlot | None]:
    """Return the slot of each device that is certain to be one seen before: by UUID first, then by address, then by number.

    Args:
        devices: Whole devices, or partitions.
        above: Of each, the device that it is a partition of.
        known: The slots of those seen before.
    """
    found: list[DeviceSlot | None] = [None] * len(devices)
    taken: set[str] = set()
    for mark in MARKS:
        of_known: dict[object, list[DeviceSlot]] = {}
        for slot in known:
            of_known.setdefault(mark(slot.identity, slot.key.rpartition(f".{PARTITION}.")[0]), []).append(slot)
        marks = [mark(device, "" if parent is None else parent.key) for device, parent in zip(devices, above, strict=True)]
        counts = Counter(marks)
        for place, (device, what) in enumerate(zip(devices, marks, strict=True)):
            if found[place] is not None or what is None:
                continue
            alike = [slot for slot in of_known.get(what, ()) if slot.key not in taken and _may_be(slot.identity, device)]
            # What several share tells none of them from the others: numbers do, and of the devices of one chip, whose numbers are a
            # program's and change with it, their order.
            if (counts[what] > 1 or len(alike) > 1) and (device.uuid or device.kind not in VENDOR_NUMBERED):
                alike = [slot for slot in alike if slot.identity.vendor_index == device.vendor_index]
            if alike:
                found[place] = alike[0]
                taken.add(alike[0].key)
    return found


MARKS: tuple[Callable[[DeviceIdentity, str], object], ...] = (
    lambda device, _: device.uuid or None,
    lambda device, parent: (device.kind, parent, pci_address(device.pci_bus_id)) if device.pci_bus_id else None,
    lambda device, parent: (device.kind, parent, device.vendor_index),
)
"""What a device is recognised by, the surest first, of its identity and its parent's key."""


def _may_be(known: DeviceIdentity, device: DeviceIdentity) -> bool:
    """Return whether nothing speaks against two identities being one device's: another UUID, or where one has none, another address."""
    if known.uuid and device.uuid:
        return known.uuid == device.uuid
    if known.pci_bus_id and device.pci_bus_id:
        return pci_address(known.pci_bus_id) == pci_address(device.pci_bus_id)
    return device.kind != PROGRAM_NUMBERED or not (known.uuid or known.pci_bus_id)


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


class Environment(NamedTuple):
    """A process's environment, or why it is not known.

    Attributes:
        values: The variables; None where they cannot be read.
        why: Why not, in words.
        gone: Whether that is since there is no such process.
    """

    values: Mapping[str, str] | None
    why: str = ""
    gone: bool = False


def environment_of(pid: int) -> Environment:
    """Read the environment of a process; this process's own is the one that it has now.

    Args:
        pid: The process, as our own PID namespace numbers it.
    """
    if pid == os.getpid():
        return Environment(dict(os.environ))
    number = number_here(pid)
    return _gone(pid) if number is None else environment_at(number, pid)


def environment_at(number: int, pid: int) -> Environment:
    """Read the environment of a process by its number in the mounted ``/proc``; messages call it ``pid``."""
    if sys.platform != "linux":
        import psutil

        try:
            return Environment(psutil.Process(pid).environ())
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            return _gone(pid)
        except (psutil.Error, OSError) as error:
            return Environment(None, f"the environment of process {pid} cannot be read: {error}")
    try:
        data = read_once(f"/proc/{number}/environ")
        ended = not data and not read_once(f"/proc/{number}/cmdline")
    except PermissionError:
        return Environment(None, f"the environment of process {pid} may not be read: it belongs to another user")
    except (FileNotFoundError, ProcessLookupError):
        return _gone(pid)
    except OSError as error:
        return Environment(None, f"the environment of process {pid} cannot be read: {error.strerror or error}")
    return _gone(pid) if ended else Environment(parse_environment(data))


def parse_environment(data: bytes) -> dict[str, str]:
    """Parse variables as the kernel keeps them: the first of a name counts, as for ``getenv``; other text is left out."""
    values: dict[str, str] = {}
    for entry in data.split(b"\0"):
        name, sign, value = entry.partition(b"=")
        if sign and name:
            values.setdefault(os.fsdecode(name), os.fsdecode(value))
    return values


def _gone(pid: int) -> Environment:
    return Environment(None, no_process(pid), gone=True)
