"""TPU devices of this machine: the chips, the programs that hold them, and the runtime's number of each device.

Chips are recognised by their PCI ids, since Google's network cards and disks have the same vendor id. No library of Google is loaded.

The runtime has device ids, the PCI bus has addresses, and without loading libtpu nothing connects the two. On a machine of a large slice
the ids may begin at 8 and have gaps. So ids and chips are matched in order, each sorted:

1. if programs hold as many devices as the runtimes report, the ids are the held devices;
2. else, if the runtimes report as many devices as there are, the ids are all devices;
3. else, if every id is below the number of devices, an id is a position;
4. else an id is a device without a known chip.

Devices that no runtime reports get the lowest free numbers, or their own position if it is free.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec

from accelmetrics.backends.contract import Detection
from accelmetrics.backends.kit import NodeHolders
from accelmetrics.backends.kit.processes import UNSEEN
from accelmetrics.backends.kit.system import PCI, exists, link_name, list_directory, pci_devices, read_text
from accelmetrics.schemas.errors import MissingDependencyError, Reason, Unavailable
from accelmetrics.schemas.identity import DeviceIdentity, DeviceProcess
from accelmetrics.schemas.named_tuple import NamedTuple

BACKEND = EXTRA = "tpu"
VENDOR = "0x1ae0"
GIB = 1024**3
REQUIRED = {"grpc": "grpcio", "google.protobuf": "protobuf"}
"""Modules needed to read the runtime, with the package that contains each."""
NO_CHIP = Unavailable(Reason.NOT_SUPPORTED, "the device's chip is not known, so neither are the processes that hold it open")

_DIGITS = re.compile(r"(\d+)$", re.ASCII)


class TpuChip(NamedTuple):
    """A PCI function that is a TPU.

    Attributes:
        generation: ``v5e``; empty for a generation that this release does not know.
        memory_gib: Memory of one device in GiB.
        devices: Number of devices, as the runtime counts them.
        cores: TensorCores of one device.
        duty_cycle_of_chip: Whether the runtime reports the duty cycle per chip rather than per device.
        address: Its PCI address.
        node: The device node through which programs hold it.
    """

    generation: str
    memory_gib: int | None
    devices: int = 1
    cores: int | None = 1
    duty_cycle_of_chip: bool = False
    address: str = ""
    node: str = ""

    @property
    def title(self) -> str:
        """Name in Google's spelling: ``TPU v5e``, ``TPU7x``."""
        return f"TPU{self.generation}" if self.generation[:1].isdigit() else f"TPU {self.generation}".rstrip()


GENERATIONS = {
    "0x0027:0x004e": TpuChip("v2", 8, devices=2, duty_cycle_of_chip=True),
    "0x0027:0x004f": TpuChip("v3", 16, devices=2, duty_cycle_of_chip=True),
    "0x005e": TpuChip("v4", 32, cores=2),
    "0x0062": TpuChip("v5p", 95, cores=2),
    "0x0063": TpuChip("v5e", 16),
    "0x006f": TpuChip("v6e", 32),
    "0x0076": TpuChip("7x", 96, devices=2),
}
"""Fixed properties of each generation, by PCI device id, and by subsystem id if two generations share a device id. The memory is that of
one device; Google states it per chip: 16 GiB for v2, 32 for v3, 95 for v5p, 192 for 7x.
"""
UNKNOWN = TpuChip("", None, cores=None)


def find_chips() -> list[TpuChip]:
    """Return the chips of this machine, in the order of their device nodes."""
    found: dict[str, TpuChip] = {}
    for address in pci_devices(VENDOR):
        device, subsystem, kind = (read_text(f"{PCI}/{address}/{name}") or "" for name in ("device", "subsystem_device", "class"))
        known = GENERATIONS.get(device) or GENERATIONS.get(f"{device}:{subsystem}")
        # Class 12 is a processing accelerator: an unknown id of it is a generation newer than this release.
        if known is not None or (kind.startswith("0x12") and device != "0x0027"):
            found[address] = known or UNKNOWN
    functions = Counter(address.rpartition(".")[0] for address in found)
    listed = []
    for position, (address, chip) in enumerate(found.items()):
        # If a chip has a PCI function for each core, each function is one device.
        devices = chip.devices if functions[address.rpartition(".")[0]] == 1 else 1
        listed.append(chip._replace(address=address, devices=devices, node=_node(address) or f"/dev/accel{position}"))
    return sorted(listed, key=lambda chip: (int(number[1]) if (number := _DIGITS.search(chip.node)) else 0, chip.address))


def _node(address: str) -> str:
    """Return the device node of a chip: ``/dev/accel<n>`` with Google's driver, ``/dev/vfio/<group>`` with VFIO."""
    accelerators = [name for name in list_directory(f"{PCI}/{address}/accel") if _DIGITS.search(name)]
    if accelerators:
        return f"/dev/{accelerators[0]}"
    group, driver = (link_name(f"{PCI}/{address}/{name}") for name in ("iommu_group", "driver"))
    return f"/dev/vfio/{group}" if group.isdecimal() and (driver.startswith("vfio") or exists(f"/dev/vfio/{group}")) else ""


def detect() -> Detection:
    """Look for chips on the PCI bus, and for the packages that read the runtime."""
    found = find_chips()
    if not found:
        return Detection(False, f"no TPU of Google ({VENDOR}) on the PCI bus")
    kinds = Counter(chip.title for chip in found)
    words = ", ".join(f"{count} {title} chip{'' if count == 1 else 's'}" for title, count in kinds.items())
    evidence = f"{words} on the PCI bus ({', '.join(chip.address for chip in found)})"
    advice = []
    nodes = list(dict.fromkeys(chip.node for chip in found))
    # No advice if some nodes exist: a container may have been given only a part of the chips.
    if not any(exists(node) for node in nodes):
        evidence += f", no {', no '.join(nodes)}"
        # Programs need VFIO's control node too, so the whole directory is passed in.
        flags = dict.fromkeys("--device=/dev/vfio" if node.startswith("/dev/vfio/") else f"--device={node}" for node in nodes)
        advice.append(f"in a container, start it with {' '.join(flags)} (google.com/tpu in Kubernetes)")
    for module, package in REQUIRED.items():
        spec = None
        with suppress(ImportError):  # raised if a parent package is missing
            spec = find_spec(module)
        if spec is None:
            evidence += f"; {package}, which reads their runtime, is not installed"
            advice.append(MissingDependencyError(package, EXTRA).advice)
    return Detection(True, evidence, sum(chip.devices for chip in found), "; ".join(dict.fromkeys(advice)))


def identity(number: int, chip: TpuChip | None) -> DeviceIdentity:
    """Return the identity of a device. Without a chip it has only the runtime's number."""
    if chip is None:
        return DeviceIdentity("tpu", "google", number, name="TPU")
    return DeviceIdentity(
        "tpu",
        "google",
        number,
        name=chip.title,
        pci_bus_id=chip.address,
        architecture=chip.generation,
        cores=chip.cores,
        memory_total_bytes=None if chip.memory_gib is None else chip.memory_gib * GIB,
    )


def processes(chip: TpuChip | None, holders: NodeHolders) -> tuple[DeviceProcess, ...] | Unavailable:
    """Return the processes that hold a device's chip, or why they are unknown."""
    if chip is None:
        return NO_CHIP
    pids = holders.of(chip.node)
    return tuple(map(DeviceProcess, pids)) if pids or holders.complete else UNSEEN


def list_devices(chips: Sequence[TpuChip], ids: Sequence[int], holders: NodeHolders) -> dict[int, TpuChip | None]:
    """Return the chip of every device by device number. The module's docstring describes how ids and chips are matched.

    Args:
        chips: The chips on the PCI bus.
        ids: Device ids that the runtimes report, in order.
        holders: The processes that hold the chips.
    """
    devices = [chip for chip in chips for _ in range(chip.devices)]
    positions: Sequence[int | None] = [position for position, chip in enumerate(devices) if holders.of(chip.node)]
    if len(positions) != len(ids):
        positions = ids if all(number < len(devices) for number in ids) else [None] * len(ids)
        if len(devices) == len(ids):
            # All devices are in use, even if their holders cannot be seen.
            positions = range(len(devices))
    named = {number: None if position is None else devices[position] for number, position in zip(ids, positions, strict=True)}
    for position in sorted(set(range(len(devices))) - set(positions), key=lambda position: (position in named, position)):
        number = position if position not in named else next(number for number in range(len(named) + 1) if number not in named)
        named[number] = devices[position]
    return dict(sorted(named.items()))


def chip_groups(devices: Mapping[int, TpuChip | None], per_chip: int) -> list[list[int]]:
    """Return the device numbers of each chip, in order."""
    groups: dict[object, list[int]] = {}
    for number, chip in devices.items():
        groups.setdefault(chip.address if chip else number // per_chip, []).append(number)
    return sorted(groups.values())
