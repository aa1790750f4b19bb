"""What PCIe has between two devices, by the kernel's tree of devices: ``/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0``.

It is looked at for devices of every vendor, and calls no driver. A backend does nothing for it but give each device its PCI address.
"""

from __future__ import annotations

import os
import re

from accelmetrics.backends.kit.system import PCI, PCI_ADDRESS, list_directory, pci_slot, sysroot
from accelmetrics.schemas.errors import Reason, Unavailable
from accelmetrics.schemas.identity import pci_address
from accelmetrics.schemas.topology import Nic

NODES = "/sys/devices/system/node"
INFINIBAND = "/sys/class/infiniband"
_HOST_BRIDGE = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}", re.ASCII)
_NOT_SHOWN = "the kernel shows no PCI device {}"


def upstream(address: str) -> tuple[str, ...]:
    """Return the way to a PCI device: the host bridge, each bridge below it, the device. Empty where the kernel does not show it."""
    names = os.path.realpath(f"{sysroot()}{PCI}/{address}").split("/") if PCI_ADDRESS.fullmatch(address) else []
    start = next((place for place, name in enumerate(names) if _HOST_BRIDGE.fullmatch(name)), len(names))
    return tuple(names[start:])


def path_between(one: str, other: str) -> str | Unavailable:
    """Return what PCIe has between two devices, as :attr:`~accelmetrics.schemas.topology.Connection.path` has it, or why that is not known.

    Args:
        one: PCI address of a device, however it is written.
        other: That of the other one.
    """
    if not (one and other):
        return Unavailable(Reason.NOT_SUPPORTED, "a device has no PCI address")
    ways = [upstream(pci_address(each)) for each in (one, other)]
    if not all(ways):
        return Unavailable(Reason.NOT_SUPPORTED, _NOT_SHOWN.format(pci_address(other if ways[0] else one)))
    common = next((place for place, names in enumerate(zip(*ways, strict=False)) if len(set(names)) > 1), min(map(len, ways)))
    if common > 1:
        # A switch is a bridge up and one down for each of its ports: two devices on its ports have one port each below what they share.
        return "PIX" if max(map(len, ways)) - common <= 2 else "PXB"
    if common:
        return "PHB"
    nodes = [pci_slot(each)[0] for each in (one, other)]
    if None not in nodes:
        return "NODE" if nodes[0] == nodes[1] else "SYS"
    if sum(re.fullmatch(r"node\d+", name) is not None for name in list_directory(NODES)) == 1:
        return "NODE"
    return Unavailable(Reason.NOT_SUPPORTED, "the kernel does not say to which NUMA nodes the host bridges belong")


def rdma_cards() -> tuple[Nic, ...]:
    """List the network cards with RDMA, in the order of their names' numbers."""
    found = []
    for name in list_directory(INFINIBAND):
        address = os.path.realpath(f"{sysroot()}{INFINIBAND}/{name}/device").rpartition("/")[2]
        found.append(Nic(name, address, *pci_slot(address)) if PCI_ADDRESS.fullmatch(address) else Nic(name))
    return tuple(sorted(found, key=lambda nic: [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", nic.name)]))
