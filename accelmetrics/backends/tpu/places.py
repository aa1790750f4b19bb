"""Which of the runtime's device ids is which chip.

The runtime numbers devices, the PCI bus has addresses, and nothing that may be asked without loading libtpu says which is
which: on one machine of many the ids may begin at 8 and leave gaps. So, ids and chips each in their order:

1. where as many devices are held by programs as the runtimes name, they are those;
2. else, where they name as many as there are, they are all;
3. else, where every id is below the number of devices, it is the position;
4. else an id is a device of which only the number is known.

Devices that no runtime names have the lowest numbers that are left, their own position where that is free.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from accelmetrics.backends.tpu.chips import GIB, Chip
from accelmetrics.backends.tpu.holders import Holders
from accelmetrics.schemas.identity import DeviceIdentity, DeviceProcess


class Place(NamedTuple):
    """One device.

    Attributes:
        number: The runtime's id for it, or a free number where no runtime names it.
        chip: Its chip; None where only the runtime knows the device.
    """

    number: int
    chip: Chip | None

    def identity(self) -> DeviceIdentity:
        """Who it is."""
        if self.chip is None:
            return DeviceIdentity("tpu", "google", self.number, name="TPU")
        generation = self.chip.generation
        return DeviceIdentity(
            "tpu",
            "google",
            self.number,
            name=generation.title,
            pci_bus_id=self.chip.address,
            architecture=generation.name,
            cores=generation.cores,
            memory_total_bytes=None if generation.memory_gib is None else generation.memory_gib * GIB,
            numa_node=self.chip.numa_node,
        )

    def processes(self, holders: Holders) -> tuple[DeviceProcess, ...] | None:
        """The processes that hold it; None where that cannot be told."""
        pids = holders.of(self.chip.node) if self.chip is not None else ()
        if pids or (holders.complete and self.chip is not None):
            return tuple(DeviceProcess(pid) for pid in pids)
        return None


def places(chips: Sequence[Chip], ids: Sequence[int], holders: Holders) -> tuple[Place, ...]:
    """Every device, by number.

    Args:
        chips: The chips on the PCI bus.
        ids: What the runtimes name, in order.
        holders: Who holds the chips.
    """
    devices = [chip for chip in chips for _ in range(chip.devices)]
    positions = _positions(ids, devices, holders)
    named = [Place(number, None if position is None else devices[position]) for number, position in zip(ids, positions, strict=True)]
    taken, free = set(ids), set(range(len(devices))) - set(positions)
    for position in sorted(free, key=lambda position: (position in taken, position)):
        number = position if position not in taken else next(number for number in range(len(taken) + 1) if number not in taken)
        taken.add(number)
        named.append(Place(number, devices[position]))
    return tuple(sorted(named, key=lambda place: place.number))


def _positions(ids: Sequence[int], devices: Sequence[Chip], holders: Holders) -> Sequence[int | None]:
    held = [position for position, chip in enumerate(devices) if holders.of(chip.node)]
    if len(held) == len(ids):
        return held
    if len(devices) == len(ids) or all(number < len(devices) for number in ids):
        return range(len(devices)) if len(devices) == len(ids) else ids
    return [None] * len(ids)


def chip_groups(listed: Sequence[Place], per_chip: int) -> list[list[int]]:
    """The numbers of the devices of each chip, in order."""
    groups: dict[object, list[int]] = {}
    for place in listed:
        groups.setdefault(place.chip.address if place.chip else place.number // per_chip, []).append(place.number)
    return sorted(groups.values())
