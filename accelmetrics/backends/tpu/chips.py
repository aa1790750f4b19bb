"""Which TPU chips are in this machine: by their PCI ids. Nothing of Google's is loaded, on no machine.

The vendor id alone says little: Google's network cards and disks have it too.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from typing import NamedTuple

from accelmetrics.backends.contract import Detection
from accelmetrics.backends.kit.system import list_directory, pci_devices, read_text, system_path
from accelmetrics.schemas.errors import MissingDependencyError

BACKEND = "tpu"
EXTRA = "tpu"
VENDOR = "0x1ae0"
ACCELERATOR_CLASS = "0x12"
GIB = 1024**3

_DIGITS = re.compile(r"(\d+)$", re.ASCII)


class Generation(NamedTuple):
    """What is fixed about one generation of chips.

    Attributes:
        name: ``v5e``; empty for one that this release does not know.
        memory_gib: Memory of one device.
        devices: Devices, in the runtime's sense, on one chip.
        cores: TensorCores of one device.
        duty_cycle_of_chip: Whether the runtime tells the duty cycle of chips, not of devices.
    """

    name: str
    memory_gib: int | None
    devices: int = 1
    cores: int | None = 1
    duty_cycle_of_chip: bool = False

    @property
    def title(self) -> str:
        """As Google writes it: ``TPU v5e``, ``TPU7x``."""
        return f"TPU{self.name}" if self.name[:1].isdigit() else f"TPU {self.name}".rstrip()


SHARED_ID = "0x0027"
BY_SUBSYSTEM = {
    "0x004e": Generation("v2", 8, devices=2, duty_cycle_of_chip=True),
    "0x004f": Generation("v3", 16, devices=2, duty_cycle_of_chip=True),
}
"""v2 and v3 share a device id."""
BY_DEVICE = {
    "0x005e": Generation("v4", 32, cores=2),
    "0x0062": Generation("v5p", 95, cores=2),
    "0x0063": Generation("v5e", 16),
    "0x006f": Generation("v6e", 32),
    "0x0076": Generation("7x", 96, devices=2),
}
UNKNOWN = Generation("", None, cores=None)


class Chip(NamedTuple):
    """One PCI function that is a TPU.

    Attributes:
        address: Its PCI address.
        generation: What it is.
        devices: How many devices it is.
        node: The device node through which programs hold it.
        numa_node: NUMA node of its slot, if known.
    """

    address: str
    generation: Generation
    devices: int
    node: str
    numa_node: int | None


def chips() -> list[Chip]:
    """The chips of this machine, in the order of their device nodes."""
    found = {address: known for address in pci_devices(VENDOR) if (known := _generation(address)) is not None}
    functions = Counter(_slot(address) for address in found)
    listed = []
    for position, (address, generation) in enumerate(found.items()):
        # Where each core of a chip is a PCI function of its own, the function is one device.
        devices = generation.devices if functions[_slot(address)] == 1 else 1
        node = _node(address) or f"/dev/accel{position}"
        listed.append(Chip(address, generation, devices, node, _numa_node(address)))
    return sorted(listed, key=lambda chip: (_trailing_number(chip.node), chip.address))


def detect() -> Detection:
    """Look at the PCI bus, and whether what reads the runtime is installed."""
    found = chips()
    if not found:
        return Detection(False, f"no TPU of Google ({VENDOR}) on the PCI bus")
    kinds = Counter(chip.generation.title for chip in found)
    words = ", ".join(f"{count} {title} chip{'' if count == 1 else 's'}" for title, count in kinds.items())
    evidence = f"{words} on the PCI bus ({', '.join(chip.address for chip in found)})"
    hidden = _not_shown(found)
    advice = [pass_devices(hidden)] if hidden else []
    if hidden:
        evidence += f", no {', no '.join(hidden)}"
    if not find_spec("grpc"):
        evidence += "; grpcio, which reads their runtime, is not installed"
        advice.append(MissingDependencyError("grpcio", EXTRA).advice)
    return Detection(True, evidence, sum(chip.devices for chip in found), "; ".join(advice))


def _not_shown(found: Sequence[Chip]) -> list[str]:
    """The chips' device nodes, where this machine or container has none of them; one that was given some has what it asked for."""
    nodes = dict.fromkeys(chip.node for chip in found)
    return [] if any(system_path(node).exists() for node in nodes) else list(nodes)


def pass_devices(nodes: Iterable[str]) -> str:
    """How to start a container with these device nodes; those of VFIO go together with the directory's control node."""
    flags = dict.fromkeys("--device=/dev/vfio" if node.startswith("/dev/vfio/") else f"--device={node}" for node in nodes)
    return f"in a container, start it with {' '.join(flags)} (google.com/tpu in Kubernetes)"


def _generation(address: str) -> Generation | None:
    base = _base(address)
    device = read_text(f"{base}/device") or ""
    if device == SHARED_ID:
        return BY_SUBSYSTEM.get(read_text(f"{base}/subsystem_device") or "")
    accelerator = (read_text(f"{base}/class") or "").startswith(ACCELERATOR_CLASS)
    return BY_DEVICE.get(device) or (UNKNOWN if accelerator else None)


def _node(address: str) -> str:
    """``/dev/vfio/<group>`` where the function is handed to programs through VFIO, ``/dev/accel<n>`` with Google's own driver."""
    accelerators = [name for name in list_directory(f"{_base(address)}/accel") if _DIGITS.search(name)]
    if accelerators:
        return f"/dev/{accelerators[0]}"
    group = _link(f"{_base(address)}/iommu_group")
    bound_to_vfio = _link(f"{_base(address)}/driver").startswith("vfio")
    return f"/dev/vfio/{group}" if group.isdecimal() and (bound_to_vfio or system_path(f"/dev/vfio/{group}").exists()) else ""


def _link(path: str) -> str:
    try:
        return os.path.basename(os.readlink(system_path(path)))  # noqa: PTH115, PTH119  the name that a link ends with
    except OSError:
        return ""


def _numa_node(address: str) -> int | None:
    text = read_text(f"{_base(address)}/numa_node") or ""
    return int(text) if text.isdecimal() else None  # -1 where the machine has none


def _base(address: str) -> str:
    return f"/sys/bus/pci/devices/{address}"


def _slot(address: str) -> str:
    return address.rpartition(".")[0]


def _trailing_number(text: str) -> int:
    found = _DIGITS.search(text)
    return int(found[1]) if found else 0
