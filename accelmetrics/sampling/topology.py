"""How devices are connected: what the kernel shows of PCIe for devices of every vendor, and the links that their drivers tell of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

from accelmetrics.backends.kit.pci import path_between, rdma_cards
from accelmetrics.schemas.errors import Reason, Unavailable
from accelmetrics.schemas.identity import DeviceSlot, pci_address
from accelmetrics.schemas.topology import SWITCH, Connection, Details, Link, Topology

NOT_TOLD = Unavailable(Reason.NOT_SUPPORTED, "the source of its numbers tells of no links between devices, and of no clocks to choose from")
NOT_COUNTED = Unavailable(Reason.NOT_SUPPORTED, "the driver does not say how many there are")
LEAD_ANYWHERE = Unavailable(Reason.NOT_SUPPORTED, "links are up, and the driver does not say where they lead")
Described = Mapping[str, Details | Unavailable]
"""By device key, what its driver tells on request."""


def connect(slots: Sequence[DeviceSlot], described: Described) -> Topology:
    """Put together how devices are connected. A partition stands where its device does, and is left out where that is listed.

    Args:
        slots: The devices.
        described: What their drivers tell.
    """
    wholes = {slot.identity.anchor for slot in slots if not slot.identity.parent}
    devices = [slot for slot in slots if slot.identity.parent not in wholes]
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
                path = next((told for to, told in details.paths.items() if _leads_to(to, far)), path)
            elif details is not None and not near.identity.pci_bus_id:  # it is not known for the same reason
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
    """Return the links between two devices; None where there are none, as between devices of two vendors."""
    if one.identity.vendor != other.identity.vendor:
        return None
    both = [found if isinstance(found := described.get(slot.key, NOT_TOLD), Unavailable) else found.links for slot in (one, other)]
    for told, far in zip(both, (other, one), strict=True):  # what one of them tells is enough where the other one is lost
        for link in () if isinstance(told, Unavailable) else told:
            if _leads_to(link.to, far):
                return link
    sides: list[tuple[Link, ...]] = []
    for told in both:
        if isinstance(told, Unavailable):
            return told
        sides.append(told)
    for link in sides[0]:
        opposite = next((each for each in sides[1] if each.to == SWITCH and each.kind == link.kind), None)
        if link.to == SWITCH and opposite is not None:
            return min(link, opposite, key=lambda each: each.count or 0)
    return LEAD_ANYWHERE if all(any(not link.to for link in side) for side in sides) else None
