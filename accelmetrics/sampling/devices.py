"""The key of each device: its number in this process, and the number that a sampler reports it under.

:class:`DeviceRegistry` numbers devices for the lifetime of the process and never reassigns a number. All vendors share ``gpu.<i>``,
so GPUs are numbered without gaps from 0, in the fixed order of the selected backends. A vendor's numbers are reserved when its
hardware is detected. A vendor that opens late, or never, therefore shifts no other vendor's numbers; devices beyond the reserved
numbers follow after all others. A kind that only one vendor makes keeps that vendor's numbers (``tpu.<i>`` is the runtime's device
id). A partition is numbered below its parent (``gpu.0.mig.1``) by the vendor's number, or by the next free one if that is taken.

A device is recognised by its UUID, else by its PCI address, else by the vendor's number. It keeps its key when its driver is
reloaded, when the vendor's order changes, and while one of these identifiers is unreadable. A different UUID at the same address is
a different device. A TPU that was listed by its place on the bus while unused keeps that number when a runtime assigns it another
one; its identity then shows the runtime's number.

:class:`VisibilityFilter` shows one sampler's devices as the watched program sees them. With ``visible="renumber"`` the program's n-th
device takes the n-th of its vendor's numbers, or n itself for a kind that only one vendor makes. For a program on one vendor's GPUs
``gpu.0`` is its device 0, and on a mixed host two vendors never share a key, in whichever order they open.
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
"""Kinds that keep the vendor's numbers."""
PROGRAM_NUMBERED = "tpu"
"""The kind numbered by the program that holds the device. The next program may give the same number to another device."""
RENUMBER = "renumber"


class Numbering(NamedTuple):
    """The numbers assigned so far.

    Attributes:
        slots: The slot of every device ever seen, in the order of first sight.
        reserved: The numbers reserved for each backend.
        free: The first number of each kind that is neither assigned nor reserved.
    """

    # Never changed in place: an interrupt (Ctrl-C) leaves either the old numbering or the new one.
    slots: tuple[DeviceSlot, ...]
    reserved: Mapping[str, range]
    free: Mapping[str, int]


NO_NUMBERS = Numbering((), {}, {})


class DeviceRegistry:
    """The numbering of devices for one selection of backends.

    Attributes:
        numbering: The numbers assigned so far, by this process or by an earlier one.
    """

    def __init__(self, numbering: Numbering = NO_NUMBERS) -> None:
        self.numbering = numbering
        self._lock = threading.Lock()

    def reserve(self, backend: str, kind: str, count: int) -> None:
        """Reserve numbers for a backend on its first call. Call it for the backends in their order."""
        with self._lock:
            slots, reserved, free = self.numbering
            if backend not in reserved:
                end = free.get(kind, 0) + count
                self.numbering = Numbering(slots, {**reserved, backend: range(end - count, end)}, {**free, kind: end})

    def adopt(self, backend: str, devices: Sequence[DeviceIdentity]) -> list[DeviceSlot]:
        """Return the slots of an opened backend's devices, in its order. Devices seen before keep their slots."""
        with self._lock:
            slots, free = {slot.key: slot for slot in self.numbering.slots}, dict(self.numbering.free)
            reserved = self.numbering.reserved.get(backend, range(0))
            found: dict[int, DeviceSlot] = {}
            # Whole devices first: a partition's key begins with its parent's.
            for partitions in (False, True):
                listed = {place: device for place, device in enumerate(devices) if bool(device.parent) == partitions}
                seen = [slot for slot in slots.values() if slot.backend == backend]
                parents = {slot.identity.anchor: slot for slot in seen if not slot.identity.parent}
                parents.update({devices[place].anchor: slot for place, slot in found.items()})
                above = [parents.get(device.parent) for device in listed.values()]
                known = _recognise(tuple(listed.values()), above, [slot for slot in seen if bool(slot.identity.parent) == partitions])
                for (place, reported), parent, before in zip(listed.items(), above, known, strict=True):
                    device = reported if parent is None else reported._replace(parent=parent.identity.anchor)
                    if before is None:
                        slot = _new_slot(backend, device, parent, slots, reserved, free)
                    else:
                        # Identifiers that cannot be read now keep their earlier value. So does the name if the UUID is unreadable:
                        # the new name may then be only the one of the PCI bus.
                        known_of = before.identity
                        kept = {part: getattr(device, part) or getattr(known_of, part) for part in ("uuid", "pci_bus_id", "serial")}
                        name = (known_of.uuid and not device.uuid and known_of.name) or device.name
                        slot = before._replace(identity=device._replace(name=name, **kept))
                    found[place] = slots[slot.key] = slot
            self.numbering = Numbering(tuple(slots.values()), self.numbering.reserved, free)
            adopted = [found[place] for place in range(len(devices))]
            return adopted  # noqa: RET504 - an interrupt after the last call in the block would leave the lock held

    def known(self, backend: str) -> list[DeviceSlot]:
        """Return every device of a backend ever seen: whole devices first, then partitions, each by number."""
        slots = [slot for slot in self.numbering.slots if slot.backend == backend]
        return sorted(slots, key=lambda slot: (bool(slot.identity.parent), slot.key.rpartition(".")[0], slot.index))


def _new_slot(
    backend: str, device: DeviceIdentity, parent: DeviceSlot | None, slots: Mapping[str, DeviceSlot], reserved: range, free: dict[str, int]
) -> DeviceSlot:
    prefix = device.kind if parent is None else f"{parent.key}.{PARTITION}"
    if parent is not None or device.kind in VENDOR_NUMBERED:
        index = device.vendor_index
        # The vendor's number may belong to an earlier device, which keeps it for the lifetime of the process.
        while f"{prefix}.{index}" in slots:
            index += 1
    else:
        used = {slot.index for slot in slots.values() if slot.backend == backend and not slot.identity.parent}
        # A device beyond the reserved numbers is numbered after those of all vendors, so that it shifts no other vendor.
        left = [number for number in reserved if number not in used]
        index = left[0] if left else free.get(device.kind, 0)
        if not left:
            free[device.kind] = index + 1
    return DeviceSlot(f"{prefix}.{index}", index, None, device, backend)


def _recognise(
    devices: Sequence[DeviceIdentity], above: Sequence[DeviceSlot | None], known: Sequence[DeviceSlot]
) -> list[DeviceSlot | None]:
    """Return, for each device, the slot of the known device that it certainly is, or None.

    UUIDs are compared first, then PCI addresses, then numbers.

    Args:
        devices: Whole devices, or partitions.
        above: For each of them, its parent's slot.
        known: The slots of known devices.
    """
    found: list[DeviceSlot | None] = [None] * len(devices)
    taken: set[str] = set()
    for mark in MARKS:
        of_known: dict[object, list[DeviceSlot]] = {}
        for slot in known:
            of_known.setdefault(mark(slot.identity, slot.key.rpartition(f".{PARTITION}.")[0]), []).append(slot)
        marks = [mark(device, "" if parent is None else parent.key) for device, parent in zip(devices, above, strict=True)]
        counts = Counter(marks)
        for place, (device, value) in enumerate(zip(devices, marks, strict=True)):
            if found[place] is not None or value is None:
                continue
            alike = [slot for slot in of_known.get(value, ()) if slot.key not in taken and _may_be(slot.identity, device)]
            # A mark shared by several devices does not identify one; their numbers do. Devices of one chip are matched by their order
            # instead if a program assigns their numbers, since these change with the program.
            if (counts[value] > 1 or len(alike) > 1) and (device.uuid or device.kind not in VENDOR_NUMBERED):
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
"""Functions of an identity and its parent's key that give a mark to recognise the device by, the most reliable first."""


def _may_be(known: DeviceIdentity, device: DeviceIdentity) -> bool:
    """Return whether two identities may be one device: no different UUID, or, if one has none, no different address."""
    if known.uuid and device.uuid:
        return known.uuid == device.uuid
    if known.pci_bus_id and device.pci_bus_id:
        return pci_address(known.pci_bus_id) == pci_address(device.pci_bus_id)
    return device.kind != PROGRAM_NUMBERED or not (known.uuid or known.pci_bus_id)


class VisibilityFilter:
    """Select the devices of one backend that a sampler reports, as the watched program sees them.

    The program's environment is read once, because a program reads its device lists when it starts. Whether a device is reported, and
    under which key, is decided when the device is first seen and never changes. No device is read.

    Attributes:
        caveat: A warning about the selection by visibility, in words; empty if there is none.
    """

    def __init__(self, options: Options) -> None:
        self.caveat = ""
        self._visible = options.visible
        # Where the caller named no process, read our own environment. With isolation="process" this code runs in a child that inherited
        # the program's environment when it was started.
        self._pid = options.pid if options.watched else None
        self._known: list[DeviceSlot] = []
        self._shown: dict[str, DeviceSlot | None] = {}
        self._environment: Environment | None = None

    def show(self, known: Sequence[DeviceSlot]) -> dict[str, DeviceSlot]:
        """Return the devices to report.

        Args:
            known: Every device of the backend.

        Returns:
            The slot to report each device under, by the registry's key. Hidden devices have no entry.
        """
        if list(known) != self._known:
            # Earlier decisions are kept. A device seen for the first time is shown if its key is free.
            shown = {slot.key: before._replace(identity=slot.identity) if (before := self._shown.get(slot.key)) else None for slot in known}
            taken = {slot.key for slot in shown.values() if slot is not None}
            for slot, new in zip(known, self._decide(known), strict=True):
                if slot.key not in self._shown and new is not None and new.key not in taken:
                    shown[slot.key] = new
            self._known, self._shown = list(known), shown
        reported = {key: slot for key, slot in self._shown.items() if slot is not None}
        if self._visible == RENUMBER:
            return dict(sorted(reported.items(), key=lambda entry: entry[1].index))
        return reported

    def _decide(self, known: Sequence[DeviceSlot]) -> Sequence[DeviceSlot | None]:
        if self._environment is None:
            # Read once: a program reads its lists of devices when it starts, and later changes do not affect it.
            self._environment = environment_of(os.getpid() if self._pid is None else self._pid)
        if self._environment.values is None:
            seen = Visibility((None,) * len(known), (None,) * len(known), (), (self._environment.why,))
        else:
            seen = visibility(self._environment.values, [slot.identity for slot in known])
        marked = [slot._replace(visible_index=index) for slot, index in zip(known, seen.positions, strict=True)]
        if not self._visible:
            return marked
        caveats = list(seen.caveats)
        # Only a device known to be hidden is left out; an undecidable one is kept.
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
    """Return slots with the program's numbers, by their usual keys; or the reason, in words, why one has no number."""
    if len({(slot.identity.kind, slot.visible_index) for slot in kept}) < len(kept) or any(slot.visible_index is None for slot in kept):
        return "the program's numbers are unknown"
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
    """A process's environment, or the reason why it is unknown.

    Attributes:
        values: The variables; None if they cannot be read.
        why: The reason, in words.
        gone: Whether the reason is that there is no such process.
    """

    values: Mapping[str, str] | None
    why: str = ""
    gone: bool = False


def environment_of(pid: int) -> Environment:
    """Read the environment of a process. For this process, return its current environment.

    Args:
        pid: The process id in our own PID namespace.
    """
    if pid == os.getpid():
        return Environment(dict(os.environ))
    number = number_here(pid)
    return _gone(pid) if number is None else environment_at(number, pid)


def environment_at(number: int, pid: int) -> Environment:
    """Read the environment of a process.

    Args:
        number: Its process id in the mounted ``/proc``.
        pid: The process id to use in messages.
    """
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
        # A zombie has an empty environment and command line; a process started without variables has a command line.
        ended = not data and not read_once(f"/proc/{number}/cmdline")
    except PermissionError:
        return Environment(None, f"the environment of process {pid} may not be read: it belongs to another user")
    except (FileNotFoundError, ProcessLookupError):
        return _gone(pid)
    except OSError as error:
        return Environment(None, f"the environment of process {pid} cannot be read: {error.strerror or error}")
    return _gone(pid) if ended else Environment(parse_environment(data))


def parse_environment(data: bytes) -> dict[str, str]:
    """Parse the content of ``/proc/<pid>/environ``. The first value of a name counts, as for ``getenv``.

    Entries without a name or a ``=`` are skipped.
    """
    values: dict[str, str] = {}
    for entry in data.split(b"\0"):
        name, sign, value = entry.partition(b"=")
        if sign and name:
            values.setdefault(os.fsdecode(name), os.fsdecode(value))
    return values


def _gone(pid: int) -> Environment:
    return Environment(None, no_process(pid), gone=True)
