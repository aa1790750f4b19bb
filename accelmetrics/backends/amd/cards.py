"""Facts about AMD's cards that are the same for all sources: which cards exist, and how they are partitioned.

Hygon's accelerators (DCU) have the same design, and their driver shows the same files. ``hygon.py`` reads them with the code of this
folder. Hardware is found by PCI ids and by the kernel driver's files, never by the name of a tool: another vendor has a ``rocm-smi`` too,
and a tool may be installed without a card. Nothing in this module wakes a card.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from accelmetrics.backends.contract import Detection
from accelmetrics.backends.kit.system import PCI_ADDRESS, exists, is_asleep, link_name, list_directory, pci_devices, read_text, system_path
from accelmetrics.schemas.errors import Reason, Unavailable
from accelmetrics.schemas.identity import pci_address
from accelmetrics.schemas.named_tuple import NamedTuple
from accelmetrics.schemas.text import counted
from accelmetrics.schemas.topology import Link


class Maker(NamedTuple):
    """A vendor with cards of this driver family.

    Attributes:
        name: Its name in one word.
        brand: Its name for people.
        vendor_id: PCI vendor id, as the kernel writes it.
        classes: Beginnings of the PCI classes of its cards. Its other devices have other classes.
        drivers: Kernel drivers that show these files.
    """

    name: str
    brand: str
    vendor_id: str
    classes: tuple[str, ...]
    drivers: tuple[str, ...]


DRIVER = "amdgpu"
AMD = Maker("amd", "AMD", "0x1002", ("0x03", "0x12"), (DRIVER,))
HYGON = Maker("hygon", "Hygon", "0x1d94", ("0x03", "0x0b40", "0x12"), ("hydcu", "hycu", DRIVER))
MAKERS = {maker.vendor_id: maker for maker in (AMD, HYGON)}
DRIVERS = frozenset(driver for maker in MAKERS.values() for driver in maker.drivers)
INTEGRATED_FORMAT = 2
"""Format of ``gpu_metrics``, its third byte: format 1 is for cards, 2 and later for processors with a GPU."""
PROCESSORS = frozenset(
    {
        *("9874", "98e4", "15d8", "15dd", "1636", "1638", "164c", "15e7", "163f"),  # Carrizo, Stoney, Picasso, Raven, Renoir … Van Gogh
        *("1435", "1506", "164d", "1681"),  # Van Gogh, Mendocino, Rembrandt
        *("164e", "13c0", "15bf", "15c8", "1900", "1901"),  # Raphael, Granite Ridge, Phoenix, Hawk Point
        *("150e", "1586", "1114"),  # Strix Point, Strix Halo, Krackan
    }
)
"""PCI device ids of GPUs that are part of a processor."""
NAMES = ("/usr/share/libdrm/amdgpu.ids", "/opt/amdgpu/share/libdrm/amdgpu.ids")
"""Files with market names by device and revision: ``744C, C8,     AMD Radeon RX 7900 XTX``."""
INSTINCT = {
    **{"738C": "MI100", "7408": "MI250X", "740C": "MI250X/MI250", "740F": "MI210", "74A0": "MI300A", "74A1": "MI300X"},
    **{"74A5": "MI325X", "75A0": "MI350X", "75A3": "MI355X"},
}
"""Market names of data centre cards by device, for machines without these files."""


def gpus(maker: Maker = AMD) -> list[str]:
    """Return the PCI addresses of a maker's GPUs under any driver, in order."""
    return sorted(pci_devices(maker.vendor_id, maker.classes))


def device_path(address: str) -> str:
    """Return the directory of a PCI device."""
    return f"/sys/bus/pci/devices/{address}"


def is_driven(address: str) -> bool:
    """Return whether the device has a kernel driver that shows its values."""
    return link_name(f"{device_path(address)}/driver") in DRIVERS


def is_integrated(address: str, device: str = "") -> bool | None:
    """Return whether a GPU is part of a processor; None if that is unknown, or if asking would wake it.

    Args:
        address: Its PCI address.
        device: Its PCI device id, if a tool printed it: ``0x13c0``.
    """
    normalized = pci_address(address)
    shown = PCI_ADDRESS.fullmatch(normalized) is not None
    if (device or (read_text(f"{device_path(normalized)}/device") if shown else None) or "").lower().removeprefix("0x") in PROCESSORS:
        return True
    # Reading `gpu_metrics` wakes the card.
    if not shown or is_asleep(normalized):
        return None
    try:
        with system_path(f"{device_path(normalized)}/gpu_metrics").open("rb") as metrics:
            header = metrics.read(4)
    except OSError:
        return None
    return header[2] >= INTEGRATED_FORMAT if len(header) == 4 else None


def card_name(device: str, revision: str = "", maker: str = "AMD") -> str:
    """Return the market name of a card, else a name with its device id: ``AMD GPU (0x744c)``.

    Args:
        device: PCI device id.
        revision: PCI revision.
        maker: The vendor's name.
    """
    device, revision = (printed.removeprefix("0x").upper() for printed in (device, revision))
    for line in (line for path in NAMES for line in (read_text(path) or "").splitlines()):
        row = [part.strip() for part in line.split(",", 2)]
        if len(row) == 3 and row[2] and (row[0].upper(), row[1].upper()) == (device, revision):
            return row[2]
    if device in INSTINCT:
        return f"AMD Instinct {INSTINCT[device]}"
    return f"{maker} GPU (0x{device.lower()})" if device else f"{maker} GPU"


def counts_energy(name: str, device: str) -> bool:
    """Return whether the meaning of a card's energy counter is documented. It is for data centre cards only.

    Args:
        name: Its market name.
        device: PCI device id.
    """
    return "instinct" in name.lower() or device.upper().removeprefix("0X") in INSTINCT


# Partitions, as the compute driver shows them

NODES = "/sys/class/kfd/kfd/topology/nodes"
PARTITION_SHIFT = 28
XGMI, XGMI_WEIGHT = 11, 15
"""Type of an XGMI link in the topology (``CRAT_IOLINK_TYPE_XGMI``), and the weight of one hop."""
LOCAL_HEAPS = (1, 2)
"""Heap types of the GPU's own memory: the part that the processor can address, and the part that it cannot."""


class TopologyNode:
    """A GPU, or a partition of one, in the compute driver's topology.

    Args:
        path: Its directory.
        found: Its properties.

    Attributes:
        address: PCI address.
        vendor: PCI vendor id; 0 if the kernel does not report it.
        partition: Number of the partition; 0 for a whole GPU.
        architecture: Name that compilers use: ``gfx942``.
        memory: Its memory in bytes; None if the kernel does not report it.
    """

    def __init__(self, path: str, found: Mapping[str, int]) -> None:
        self.path = path
        location, version = found.get("location_id", 0), found.get("gfx_target_version", 0)
        self.address = f"{found.get('domain', 0):04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}.{location & 7:x}"
        self.vendor = found.get("vendor_id", 0)
        self.partition = location >> PARTITION_SHIFT
        # The version has two decimal digits each for the minor version and the stepping. Compilers write both in hexadecimal.
        self.architecture = f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}" if version >= 10000 else ""
        banks = [properties(f"{path}/mem_banks/{bank}/properties") for bank in list_directory(f"{path}/mem_banks")]
        self.memory = sum(bank.get("size_in_bytes", 0) for bank in banks if bank.get("heap_type", 0) in LOCAL_HEAPS) or None


def gpu_nodes() -> list[TopologyNode]:
    """Return the GPUs and their partitions in the kernel's order."""
    paths = [f"{NODES}/{name}" for name in sorted(filter(str.isdecimal, list_directory(NODES)), key=int)]
    found = {path: properties(f"{path}/properties") for path in paths}
    return [TopologyNode(path, values) for path, values in found.items() if values.get("simd_count")]  # others are processors


def xgmi_links(address: str) -> tuple[Link, ...] | Unavailable:
    """Return the XGMI links of a GPU to other GPUs, from the compute driver's topology. How many links join two GPUs is unknown."""
    nodes = gpu_nodes()
    by_number = {node.path.rpartition("/")[2]: node.address for node in nodes}
    if address not in by_number.values():
        return Unavailable(Reason.NOT_SUPPORTED, f"the compute driver does not show the GPU in {NODES}")
    found: dict[str, int] = {}
    for path in (node.path for node in nodes if node.address == address):
        for name in list_directory(f"{path}/io_links"):
            shown = properties(f"{path}/io_links/{name}/properties")
            to = by_number.get(str(shown.get("node_to", "")), "")
            # Links between partitions of one GPU are left out.
            if shown.get("type") == XGMI and to not in ("", address):
                found[to] = shown.get("weight", 0)
    # The kernel computes a link's weight as 15 for each hop (`kfd_crat.c`).
    return tuple(Link("xgmi", to, None, weight // XGMI_WEIGHT or None) for to, weight in found.items())


def compute_memory(address: str) -> int | None:
    """Return the GPU's memory in bytes according to the compute driver, the sum over its partitions; None without it."""
    return sum(node.memory or 0 for node in gpu_nodes() if node.address == pci_address(address)) or None


def properties(path: str) -> dict[str, int]:
    """Return the names and numbers of a properties file."""
    words = [line.split() for line in (read_text(path) or "").splitlines()]
    return {pair[0]: int(pair[1]) for pair in words if len(pair) == 2 and pair[1].isdecimal() and len(pair[1]) <= 20}


# Detection

LOAD_DRIVER = "load the kernel driver: sudo modprobe amdgpu (if that fails, dmesg says why)"
JOIN_GROUPS = "add the user to the video and render groups: sudo usermod -aG video,render $USER, then log in again"
PASS_DEVICES = "in a container, start it with --device=/dev/kfd --device=/dev/dri"
FOREIGN = {"radeon": "an old card that ROCm does not know", "vfio-pci": "passed through to a virtual machine"}
"""Drivers under which a card cannot be used for compute, with an explanation."""


def detect() -> Detection:
    """Look for cards on the PCI bus, and then in the driver's files."""
    drivers = {address: link_name(f"{device_path(address)}/driver") for address in gpus()}
    loaded = any(exists(f"/sys/module/{driver}") or exists(f"/sys/bus/pci/drivers/{driver}") for driver in AMD.drivers)
    advice = "" if exists("/dev/kfd") or exists("/dev/dri") else PASS_DEVICES
    usable = {address: driver for address, driver in drivers.items() if driver not in FOREIGN}
    if usable:
        found = f"{counted(len(usable), 'AMD GPU')} on the PCI bus ({', '.join(usable)})"
        if not loaded and DRIVER not in usable.values():
            return Detection(True, f"{found}, but the kernel driver amdgpu is not loaded", len(usable), LOAD_DRIVER)
        found = f"{found}, {DRIVER} loaded"
        unbound = [address for address, driver in usable.items() if driver != DRIVER]
        if unbound and len(unbound) < len(usable):
            found = f"{found}, not driven by it: {', '.join(unbound)}"
        return Detection(True, f"{found}, no /dev/kfd and no /dev/dri" if advice else found, len(usable), advice)
    # If the PCI bus is hidden (in some containers), the compute driver may still show the cards.
    nodes = sum(node.vendor == int(AMD.vendor_id, 16) for node in gpu_nodes())
    if nodes:
        return Detection(True, f"{counted(nodes, 'AMD GPU')} in the compute driver's topology, none visible on the PCI bus", nodes, advice)
    if drivers:
        bound = (f"{count} bound to {driver} ({FOREIGN[driver]})" for driver, count in Counter(drivers.values()).items())
        return Detection(False, f"no AMD GPU for compute: {', '.join(bound)}")
    words = "; amdgpu is loaded without one" if loaded else ""
    return Detection(False, f"no display or accelerator device of AMD (0x1002) on the PCI bus{words}")
