"""Which TPU devices are in this machine, which programs hold them, and which of the runtime's numbers is which.

Chips are known by their PCI ids. Nothing of Google's is loaded, on no machine. The vendor id alone says little: Google's
network cards and disks have it too.

The runtime numbers devices, the PCI bus has addresses, and nothing that may be asked without loading libtpu says which is
which: on one machine of many the ids may begin at 8 and leave gaps. So, ids and chips each in their order:

1. where as many devices are held by programs as the runtimes name, they are those;
2. else, where they name as many as there are, they are all;
3. else, where every id is below the number of devices, it is the position;
4. else an id is a device of which only the number is known.

Devices that no runtime names have the lowest numbers that are left, their own position where that is free.
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
"""Modules that reading the runtime takes, by the package that brings each."""
NO_CHIP = Unavailable(Reason.NOT_SUPPORTED, "which chip the device is on is not known, and so not who holds it open")

_DIGITS = re.compile(r"(\d+)$", re.ASCII)


class TpuChip(NamedTuple):
    """One PCI function that is a TPU.

    Attributes:
        generation: ``v5e``; empty for one that this release does not know.
        memory_gib: Memory of one device.
        devices: How many devices it is, in the runtime's sense.
        cores: TensorCores of one device.
        duty_cycle_of_chip: Whether the runtime reports the duty cycle per chip, not per device.
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
        """As Google writes it: ``TPU v5e``, ``TPU7x``."""
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
"""What is fixed about a generation, by PCI device id, and by subsystem too where two share it. Google gives the memory by chip: 16 GiB for
v2, 32 for v3, 95 for v5p, 192 for 7x."""
UNKNOWN = TpuChip("", None, cores=None)


def find_chips() -> list[TpuChip]:
    """Find the chips of this machine, in the order of their device nodes."""
    found: dict[str, TpuChip] = {}
    for address in pci_devices(VENDOR):
        device, subsystem, kind = (read_text(f"{PCI}/{address}/{name}") or "" for name in ("device", "subsystem_device", "class"))
        known = GENERATIONS.get(device) or GENERATIONS.get(f"{device}:{subsystem}")
        if known is not None or (kind.startswith("0x12") and device != "0x0027"):
            found[address] = known or UNKNOWN
    functions = Counter(address.rpartition(".")[0] for address in found)
    listed = []
    for position, (address, chip) in enumerate(found.items()):
        # Where each core of a chip is a PCI function of its own, the function is one device.
        devices = chip.devices if functions[address.rpartition(".")[0]] == 1 else 1
        listed.append(chip._replace(address=address, devices=devices, node=_node(address) or f"/dev/accel{position}"))
    return sorted(listed, key=lambda chip: (int(number[1]) if (number := _DIGITS.search(chip.node)) else 0, chip.address))


def _node(address: str) -> str:
    """Return ``/dev/vfio/<group>`` where the function is handed to programs through VFIO, ``/dev/accel<n>`` with Google's own driver."""
    accelerators = [name for name in list_directory(f"{PCI}/{address}/accel") if _DIGITS.search(name)]
    if accelerators:
        return f"/dev/{accelerators[0]}"
    group, driver = (link_name(f"{PCI}/{address}/{name}") for name in ("iommu_group", "driver"))
    shown = driver.startswith("vfio") or exists(f"/dev/vfio/{group}")
    return f"/dev/vfio/{group}" if group.isdecimal() and shown else ""


def detect() -> Detection:
    """Look at the PCI bus, and whether what reads the runtime is installed."""
    found = find_chips()
    if not found:
        return Detection(False, f"no TPU of Google ({VENDOR}) on the PCI bus")
    kinds = Counter(chip.title for chip in found)
    words = ", ".join(f"{count} {title} chip{'' if count == 1 else 's'}" for title, count in kinds.items())
    evidence = f"{words} on the PCI bus ({', '.join(chip.address for chip in found)})"
    advice = []
    nodes = list(dict.fromkeys(chip.node for chip in found))
    # A container that was given some of the nodes has what it asked for.
    if not any(exists(node) for node in nodes):
        evidence += f", no {', no '.join(nodes)}"
        # The nodes of VFIO go together with the directory's control node.
        flags = dict.fromkeys("--device=/dev/vfio" if node.startswith("/dev/vfio/") else f"--device={node}" for node in nodes)
        advice.append(f"in a container, start it with {' '.join(flags)} (google.com/tpu in Kubernetes)")
    for module, package in REQUIRED.items():
        there = None
        with suppress(ImportError):  # the package around it is missing
            there = find_spec(module)
        if there is None:
            evidence += f"; {package}, which reads their runtime, is not installed"
            advice.append(MissingDependencyError(package, EXTRA).advice)
    return Detection(True, evidence, sum(chip.devices for chip in found), "; ".join(dict.fromkeys(advice)))


def identity(number: int, chip: TpuChip | None) -> DeviceIdentity:
    """Return the identity of a device as the contract has it. It has no chip where only the runtime knows it."""
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
    """Return the processes that hold a device's chip, or why that is not known."""
    if chip is None:
        return NO_CHIP
    pids = holders.of(chip.node)
    return tuple(map(DeviceProcess, pids)) if pids or holders.complete else UNSEEN


def list_devices(chips: Sequence[TpuChip], ids: Sequence[int], holders: NodeHolders) -> dict[int, TpuChip | None]:
    """List every device: its chip by its number, which is the runtime's id for it, or a free one where no runtime names it.

    Args:
        chips: The chips on the PCI bus.
        ids: What the runtimes name, in order.
        holders: The processes that hold the chips.
    """
    devices = [chip for chip in chips for _ in range(chip.devices)]
    positions: Sequence[int | None] = [position for position, chip in enumerate(devices) if holders.of(chip.node)]
    if len(positions) != len(ids):
        positions = ids if all(number < len(devices) for number in ids) else [None] * len(ids)
        if len(devices) == len(ids):
            positions = range(len(devices))
    named = {number: None if position is None else devices[position] for number, position in zip(ids, positions, strict=True)}
    for position in sorted(set(range(len(devices))) - set(positions), key=lambda position: (position in named, position)):
        number = position if position not in named else next(number for number in range(len(named) + 1) if number not in named)
        named[number] = devices[position]
    return dict(sorted(named.items()))


def chip_groups(devices: Mapping[int, TpuChip | None], per_chip: int) -> list[list[int]]:
    """Group the numbers of the devices of each chip, in order."""
    groups: dict[object, list[int]] = {}
    for number, chip in devices.items():
        groups.setdefault(chip.address if chip else number // per_chip, []).append(number)
    return sorted(groups.values())
