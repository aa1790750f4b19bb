"""How devices are connected, and the clocks they can be set to: facts read on request, not part of a reading."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from accelmetrics.schemas.errors import Reason, Unavailable
from accelmetrics.schemas.frozen import FrozenDict
from accelmetrics.schemas.named_tuple import NamedTuple

NOTHING: Mapping[Any, Any] = FrozenDict()
SWITCH = "switch"
"""The far end of links to switches, through which a device reaches every other device with links to switches."""


class Link(NamedTuple):
    """Links of one kind from a device to one far end.

    Attributes:
        kind: ``nvlink``, ``xgmi``, or a vendor's own word.
        to: PCI address of the device at the far end, in the notation of :func:`~accelmetrics.schemas.identity.pci_address`;
            ``switch`` for switches; empty if the driver does not report it.
        count: Number of links; None if the driver does not report it.
        hops: Number of links that data passes on its way; None if the driver does not report it.
    """

    kind: str
    to: str
    count: int | None = None  # type: ignore[assignment]  # read by name, never searched
    hops: int | None = None


class SupportedClocks(NamedTuple):
    """The clocks that a device can be set to, in MHz, the highest first.

    Attributes:
        memory_mhz: Clocks of its memory.
        graphics_mhz: Clocks of its cores.
        graphics_by_memory: Clocks of the cores for each clock of the memory, if the driver ties them together.
    """

    memory_mhz: tuple[int, ...] = ()
    graphics_mhz: tuple[int, ...] = ()
    graphics_by_memory: Mapping[int, tuple[int, ...]] = NOTHING


class Details(NamedTuple):
    """The details of one device that its driver gives on request: each part, or the reason why it is unknown.

    Attributes:
        links: Its links to other devices, without PCIe.
        clocks: The clocks that it can be set to.
        paths: By PCI address of another device, the PCIe path between the two, in the words of :class:`Connection`. Used if the
            kernel shows no PCI bus.
    """

    links: tuple[Link, ...] | Unavailable
    clocks: SupportedClocks | Unavailable
    paths: Mapping[str, str] = NOTHING

    @property
    def lasting(self) -> bool:
        """Whether asking again gives the same answer: only parts that the device does not have are unknown."""
        return all(part.reason == Reason.NOT_SUPPORTED for part in self if isinstance(part, Unavailable))


class Nic(NamedTuple):
    """A network card with RDMA.

    Attributes:
        name: The kernel's name for it. It is ``mlx5_0``, …
        pci_bus_id: Its PCI address; empty if unknown.
        numa_node: NUMA node of its slot; None if unknown.
        cpu_affinity: CPUs near its slot, as ranges; empty if unknown.
    """

    name: str
    pci_bus_id: str = ""
    numa_node: int | None = None
    cpu_affinity: str = ""


class Connection(NamedTuple):
    """The connection between two devices, or between a device and a network card.

    Attributes:
        between: The keys of both devices, or a device's key and the card's name.
        path: The PCIe path between them, named after its farthest part: one switch at most (PIX), several switches (PXB), a host
            bridge (PHB), several host bridges of one NUMA node (NODE), the link between NUMA nodes (SYS); empty if unknown. The words are
            those of ``nvidia-smi topo``.
        link: The kind of direct links between them; empty if there are none. It is ``nvlink``, ``xgmi``, …; also empty if unknown.
        links: Number of direct links; None if unknown.
        hops: Number of links that data passes on its way; None if unknown.
        switched: Whether the links lead through switches.
        unavailable: Under path or links, the reason why it is unknown.
    """

    between: tuple[str, str]
    path: str = ""
    link: str = ""
    links: int | None = 0
    hops: int | None = None
    switched: bool = False
    unavailable: Mapping[str, Unavailable] = NOTHING


class Topology(NamedTuple):
    """How the devices of a machine are connected with each other and with its network cards.

    Attributes:
        connections: One per pair of devices, then one per device and network card.
        nics: The network cards with RDMA.
    """

    connections: tuple[Connection, ...] = ()
    nics: tuple[Nic, ...] = ()

    def between(self, one: str, other: str) -> Connection | None:
        """Return the connection of two devices by key, or of a device and a card by its name; None if there is none."""
        return next((found for found in self.connections if found.between in ((one, other), (other, one))), None)
