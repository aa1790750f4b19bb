"""How devices are connected, and the clocks that they can be set to: facts that are asked for on request and are no part of a reading."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from accelmetrics.schemas.errors import Reason, Unavailable
from accelmetrics.schemas.frozen import FrozenDict
from accelmetrics.schemas.named_tuple import NamedTuple

NOTHING: Mapping[Any, Any] = FrozenDict()
SWITCH = "switch"
"""Far end of links that lead to switches, through which a device reaches every other one with such links."""


class Link(NamedTuple):
    """Links of one kind from a device to one far end.

    Attributes:
        kind: ``nvlink``, ``xgmi``, or a vendor's own word.
        to: PCI address of the device at the far end, as :func:`~accelmetrics.schemas.identity.pci_address` writes it; ``switch`` for
            switches; empty where the driver does not say.
        count: How many there are; None where the driver does not say.
        hops: Over how many of them data travels; None where the driver does not say.
    """

    kind: str
    to: str
    count: int | None = None  # type: ignore[assignment]  # read by name, never searched
    hops: int | None = None


class SupportedClocks(NamedTuple):
    """The clocks that a device can be set to, in MHz, the highest first.

    Attributes:
        memory_mhz: Of its memory.
        graphics_mhz: Of its cores.
        graphics_by_memory: Those of the cores that go with each one of the memory, where the driver ties them together.
    """

    memory_mhz: tuple[int, ...] = ()
    graphics_mhz: tuple[int, ...] = ()
    graphics_by_memory: Mapping[int, tuple[int, ...]] = NOTHING


class Details(NamedTuple):
    """What a driver tells of one device on request: each part, or why it is not known.

    Attributes:
        links: Its links to other devices, those of PCIe left out.
        clocks: The clocks that it can be set to.
        paths: By PCI address of another device, what PCIe has between the two, in the words of :class:`Connection`. It is used where the
            kernel shows no PCI bus.
    """

    links: tuple[Link, ...] | Unavailable
    clocks: SupportedClocks | Unavailable
    paths: Mapping[str, str] = NOTHING

    @property
    def lasting(self) -> bool:
        """Whether asking again gives the same: nothing is unknown but what the device does not have."""
        return all(part.reason == Reason.NOT_SUPPORTED for part in self if isinstance(part, Unavailable))


class Nic(NamedTuple):
    """A network card with RDMA.

    Attributes:
        name: As the kernel calls it, ``mlx5_0``.
        pci_bus_id: Its PCI address, empty when unknown.
        numa_node: NUMA node of its slot; None when unknown.
        cpu_affinity: CPUs near to its slot, as ranges; empty when unknown.
    """

    name: str
    pci_bus_id: str = ""
    numa_node: int | None = None
    cpu_affinity: str = ""


class Connection(NamedTuple):
    """What lies between two devices, or between a device and a network card.

    Attributes:
        between: The keys of both devices, or a device's key and the card's name.
        path: What PCIe has between them, in the words of ``nvidia-smi topo``: ``PIX`` (one switch at most), ``PXB`` (several switches),
            ``PHB`` (a host bridge), ``NODE`` (host bridges of one NUMA node), ``SYS`` (the link between NUMA nodes); empty when unknown.
        link: The kind of direct links between them: ``nvlink``, ``xgmi``; empty where there are none, or that is unknown.
        links: How many there are; None when unknown.
        hops: Over how many of them data travels; None when unknown.
        switched: Whether they lead through switches.
        unavailable: Why ``path`` or ``links`` is unknown, by these names.
    """

    between: tuple[str, str]
    path: str = ""
    link: str = ""
    links: int | None = 0
    hops: int | None = None
    switched: bool = False
    unavailable: Mapping[str, Unavailable] = NOTHING


class Topology(NamedTuple):
    """How the devices of a machine are connected with each other, and with its network cards.

    Attributes:
        connections: One for each pair of devices, then one for each device and card.
        nics: The network cards with RDMA.
    """

    connections: tuple[Connection, ...] = ()
    nics: tuple[Nic, ...] = ()

    def between(self, one: str, other: str) -> Connection | None:
        """Return the connection of two devices by their keys, or of a device and a card by its name; None where there is none."""
        return next((found for found in self.connections if found.between in ((one, other), (other, one))), None)
