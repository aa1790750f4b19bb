"""How devices are connected: PCIe paths from the kernel, for every vendor, and links reported by drivers."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from itertools import combinations, product

from accelmetrics.backends.kit.system import PCI_ADDRESS, list_directory, pci_slot, sysroot, upstream
from accelmetrics.schemas.errors import Reason, Unavailable
from accelmetrics.schemas.identity import DeviceSlot, pci_address
from accelmetrics.schemas.topology import SWITCH, Connection, Details, Link, Nic, Topology

NODES = "/sys/devices/system/node"
INFINIBAND = "/sys/class/infiniband"
NOT_SHOWN = "the kernel shows no PCI device {}"
NO_DETAILS = Unavailable(Reason.NOT_SUPPORTED, "its driver reports neither links between devices nor selectable clocks")
NOT_COUNTED = Unavailable(Reason.NOT_SUPPORTED, "the driver does not report their number")
LEAD_ANYWHERE = Unavailable(Reason.NOT_SUPPORTED, "links are up, but the driver does not report where they lead")
Described = Mapping[str, Details | Unavailable]
"""By device key, the details that its driver gives on request."""


def connect(slots: Sequence[DeviceSlot], described: Described) -> Topology:
    """Return how devices are connected.

    A partition has the connections of its device, and is left out if that device is listed.

    Args:
        slots: The devices.
        described: The details from their drivers.
    """
    parents = {slot.identity.anchor for slot in slots if not slot.identity.parent}
    devices = [slot for slot in slots if slot.identity.parent not in parents]
    cards = rdma_cards() if devices else ()
    connections = [_connection(one, other, described) for one, other in combinations(devices, 2)]
    for device in devices:
        for card in cards:
            path = path_between(device.identity.pci_bus_id, card.pci_bus_id)
            known = {"unavailable": {"path": path}} if isinstance(path, Unavailable) else {"path": path}
            connections.append(Connection((device.key, card.name), **known))
    return Topology(tuple(connections), cards)


def _connection(one: DeviceSlot, other: DeviceSlot, described: Described) -> Connection:
    path = path_between(one.identity.pci_bus_id, other.identity.pci_bus_id)
    if isinstance(path, Unavailable):
        for near, far in ((one, other), (other, one)):
            details = described.get(near.key)
            if isinstance(details, Details):
                path = next((reported for to, reported in details.paths.items() if _leads_to(to, far)), path)
            elif details is not None and not near.identity.pci_bus_id:  # the path is unknown because the driver did not answer
                path = details
    links = _links(one, other, described)
    missing = {name: why for name, why in (("path", path), ("links", links)) if isinstance(why, Unavailable)}
    made = Connection((one.key, other.key), "" if isinstance(path, Unavailable) else path, unavailable=missing)
    if isinstance(links, Unavailable):
        return made._replace(links=None)
    if links is None:
        return made
    if links.count is None:
        missing["links"] = NOT_COUNTED
    return made._replace(link=links.kind, links=links.count, hops=links.hops, switched=links.to == SWITCH)


def _leads_to(to: str, far: DeviceSlot) -> bool:
    return bool(to) and pci_address(to) == pci_address(far.identity.pci_bus_id)


def _links(one: DeviceSlot, other: DeviceSlot, described: Described) -> Link | Unavailable | None:
    """Return the links between two devices; None if there are none, which includes devices of two vendors."""
    if one.identity.vendor != other.identity.vendor:
        return None
    both = [found if isinstance(found := described.get(slot.key, NO_DETAILS), Unavailable) else found.links for slot in (one, other)]
    for links, far in zip(both, (other, one), strict=True):  # one side's report is enough if the other device is lost
        for link in () if isinstance(links, Unavailable) else links:
            if _leads_to(link.to, far):
                return link
    near, opposite = both
    if isinstance(near, Unavailable):
        return near
    if isinstance(opposite, Unavailable):
        return opposite
    for link, end in product(near, opposite):
        if link.to == end.to == SWITCH and link.kind == end.kind:
            # Both are connected to switches: the smaller number of links bounds the connection.
            return min(link, end, key=lambda each: each.count or 0)
    return LEAD_ANYWHERE if all(any(not link.to for link in side) for side in (near, opposite)) else None


def path_between(one: str, other: str) -> str | Unavailable:
    """Return the PCIe path between two devices, or the reason why it is unknown.

    Paths are named as in :attr:`~accelmetrics.schemas.topology.Connection.path`.

    Args:
        one: PCI address of a device, in any notation.
        other: PCI address of the other device.
    """
    if not (one and other):
        return Unavailable(Reason.NOT_SUPPORTED, "a device has no PCI address")
    ways = [upstream(pci_address(each)) for each in (one, other)]
    if not all(ways):
        return Unavailable(Reason.NOT_SUPPORTED, NOT_SHOWN.format(pci_address(other if ways[0] else one)))
    common = next((place for place, names in enumerate(zip(*ways, strict=False)) if len(set(names)) > 1), min(map(len, ways)))
    if common > 1:
        # A switch is one upstream bridge and a downstream bridge per port. Two devices on ports of one switch share the upstream bridge,
        # and each has one port below it.
        return "PIX" if max(map(len, ways)) - common <= 2 else "PXB"
    if common:
        return "PHB"
    nodes = [pci_slot(each)[0] for each in (one, other)]
    if None not in nodes:
        return "NODE" if nodes[0] == nodes[1] else "SYS"
    # With a single NUMA node, all host bridges belong to it.
    if sum(re.fullmatch(r"node\d+", name) is not None for name in list_directory(NODES)) == 1:
        return "NODE"
    return Unavailable(Reason.NOT_SUPPORTED, "the kernel does not report the NUMA nodes of the host bridges")


def rdma_cards() -> tuple[Nic, ...]:
    """Return the network cards with RDMA, in the natural order of their names (``mlx5_2`` before ``mlx5_10``)."""
    found = []
    for name in list_directory(INFINIBAND):
        address = os.path.realpath(f"{sysroot()}{INFINIBAND}/{name}/device").rpartition("/")[2]
        found.append(Nic(name, address, *pci_slot(address)) if PCI_ADDRESS.fullmatch(address) else Nic(name))
    return tuple(sorted(found, key=lambda nic: [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", nic.name)]))
