"""Whether AMD GPUs are on this machine: by PCI ids and what the kernel driver shows, never by a tool's name.

``rocm-smi`` is the name of another vendor's tool as well, and a tool without a card is no card.
"""

from __future__ import annotations

from collections import Counter

from accelmetrics.backends.amd import sysfs
from accelmetrics.backends.amd.topology import compute_nodes
from accelmetrics.backends.contract import Detection

LOAD_DRIVER = "load the kernel driver: sudo modprobe amdgpu (if that fails, dmesg says why)"
PASS_DEVICES = "in a container, start it with --device=/dev/kfd --device=/dev/dri"
FOREIGN = {"radeon": "an old card that ROCm does not know", "vfio-pci": "passed through to a virtual machine"}
"""Drivers under which a card is none of ours, and what that means."""


def detect() -> Detection:
    """Look at the PCI bus, then at what the driver shows."""
    addresses = sysfs.gpus()
    drivers = {address: sysfs.driver_of(address) for address in addresses}
    usable = [address for address in addresses if drivers[address] not in FOREIGN]
    if usable:
        return _on_bus(usable, [drivers[address] for address in usable])
    nodes = compute_nodes()
    if nodes:
        return Detection(True, f"{_count(nodes)} in the compute driver's topology, none visible on the PCI bus", nodes, _missing_nodes())
    if addresses:
        return Detection(False, f"no AMD GPU for compute: {_foreign(list(drivers.values()))}")
    loaded = "; amdgpu is loaded without one" if sysfs.driver_loaded() else ""
    return Detection(False, f"no display or accelerator device of AMD (0x1002) or Hygon (0x1d94) on the PCI bus{loaded}")


def _on_bus(addresses: list[str], drivers: list[str]) -> Detection:
    found = f"{_counts(addresses)} on the PCI bus ({', '.join(addresses)})"
    driver = next((driver for driver in sysfs.DRIVERS if driver in drivers), sysfs.DRIVER)
    if not sysfs.driver_loaded() and not set(drivers) & set(sysfs.DRIVERS):
        return Detection(True, f"{found}, but the kernel driver amdgpu is not loaded", len(addresses), LOAD_DRIVER)
    unbound = [address for address, driver in zip(addresses, drivers, strict=True) if driver not in sysfs.DRIVERS]
    words = f"{found}, {driver} loaded" + (f", not driven by it: {', '.join(unbound)}" if unbound and len(unbound) < len(addresses) else "")
    advice = _missing_nodes()
    return Detection(True, f"{words}, no /dev/kfd and no /dev/dri" if advice else words, len(addresses), advice)


def _missing_nodes() -> str:
    return "" if sysfs.exists("/dev/kfd") or sysfs.exists("/dev/dri") else PASS_DEVICES


def _foreign(drivers: list[str]) -> str:
    return ", ".join(f"{count} bound to {driver} ({FOREIGN[driver]})" for driver, count in Counter(drivers).items())


def _counts(addresses: list[str]) -> str:
    """How many of each vendor: ``2 AMD GPUs and 1 Hygon GPU``."""
    makers = Counter(sysfs.MAKERS[sysfs.vendor_of(address)] for address in addresses)
    return " and ".join(_count(number, maker) for maker, number in sorted(makers.items()))


def _count(number: int, maker: str = "AMD") -> str:
    return f"1 {maker} GPU" if number == 1 else f"{number} {maker} GPUs"
