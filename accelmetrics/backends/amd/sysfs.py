"""What the kernel knows about AMD's GPUs without asking them anything: who is there, who drives them, who sleeps.

Hygon's accelerators (DCU) are built on the same design, and their driver shows the same files.
"""

from __future__ import annotations

import os
import re

from accelmetrics.backends.amd.gpu_metrics import HEADER, integrated
from accelmetrics.backends.kit.system import pci_devices, read_text, sysroot, system_path

VENDORS = {"0x1002": "amd", "0x1d94": "hygon"}
"""By PCI vendor id. Hygon's is on its processors and bridges too, which the class of a device tells apart."""
MAKERS = {"amd": "AMD", "hygon": "Hygon"}
"""The same, as they write themselves."""
CLASSES = ("0x03", "0x12")
"""Displays and processing accelerators: not the audio functions and bridges that carry the same vendor id."""
DRIVER = "amdgpu"
DRIVERS = (DRIVER, "hydcu", "hycu")
"""The kernel drivers that show these files: AMD's, and the names that Hygon gave its own."""
ASLEEP = ("suspended", "suspending")

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)


def gpus() -> list[str]:
    """PCI addresses of the GPUs, whoever drives them, in address order."""
    return sorted(address for vendor in VENDORS for address in pci_devices(vendor, CLASSES))


def device_path(address: str) -> str:
    """Where a PCI device's files are."""
    return f"/sys/bus/pci/devices/{address}"


def vendor_of(address: str) -> str:
    """The vendor in one word."""
    return VENDORS.get(read_text(f"{device_path(address)}/vendor") or "", "amd")


def is_driven(address: str) -> bool:
    """Whether a kernel driver that shows its values drives it."""
    return driver_of(address) in DRIVERS


def is_suspended(address: str) -> bool:
    """Whether the device is powered down, so that almost any question would wake it."""
    return read_text(f"{device_path(address)}/power/runtime_status") in ASLEEP


def driver_of(address: str) -> str:
    """The kernel driver that a PCI device is bound to; empty when it is bound to none."""
    try:
        link = os.readlink(f"{sysroot()}{device_path(address)}/driver")  # noqa: PTH115  asked at every reading, and a Path costs more
    except OSError:
        return ""
    return link.rpartition("/")[2]


def driver_loaded() -> bool:
    """Whether the kernel driver is there, as a module or built in."""
    return any(exists(f"/sys/module/{driver}") or exists(f"/sys/bus/pci/drivers/{driver}") for driver in DRIVERS)


def exists(path: str) -> bool:
    """Whether a system path is there."""
    return system_path(path).exists()


def is_integrated(address: str) -> bool | None:
    """Whether the GPU at a PCI address is part of a processor; None where the kernel does not say, or would have to wake it."""
    normalized = address.lower()
    if _ADDRESS.fullmatch(normalized) is None or is_suspended(normalized):
        return None
    try:
        with system_path(f"/sys/bus/pci/devices/{normalized}/gpu_metrics").open("rb") as metrics:
            return integrated(metrics.read(HEADER.size))
    except OSError:
        return None


def numa_node(address: str) -> int | None:
    """NUMA node of the slot, None where there is one node only or it is unknown."""
    normalized = address.lower()
    printed = read_text(f"/sys/bus/pci/devices/{normalized}/numa_node") if _ADDRESS.fullmatch(normalized) else None
    return int(printed) if printed and printed.isdecimal() else None
