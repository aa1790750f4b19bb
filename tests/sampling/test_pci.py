"""What PCIe has between two devices, by the kernel's tree of devices."""

from __future__ import annotations

from pathlib import Path

import pytest

from accelmetrics.backends.kit.system import upstream
from accelmetrics.sampling.topology import path_between, rdma_cards
from accelmetrics.schemas.errors import Reason, Unavailable
from accelmetrics.schemas.topology import Nic
from tests.support.pci import numa_nodes, plug, rdma_card

HOST, PORT = "pci0000:00", "0000:00:01.0"
SWITCH = ("0000:01:00.0", "0000:02:00.0")
"""A switch's bridge up, and the one down to its first port."""


def test_words_are_those_of_the_field(root: Path) -> None:
    """One switch, two switches in a row, a host bridge, two host bridges of a node, two nodes: as ``nvidia-smi topo -m`` says it."""
    plug(root, HOST, PORT, *SWITCH, "0000:03:00.0", node=0)
    plug(root, HOST, PORT, SWITCH[0], "0000:02:01.0", "0000:04:00.0", node=0)  # at another port of the switch
    plug(root, HOST, PORT, SWITCH[0], "0000:02:02.0", "0000:05:00.0", "0000:06:00.0", "0000:07:00.0", node=0)  # behind a second switch
    plug(root, HOST, "0000:00:02.0", "0000:08:00.0", node=0)
    plug(root, "pci0000:40", "0000:40:01.0", "0000:41:00.0", node=0)
    plug(root, "pci0000:80", "0000:80:01.0", "0000:81:00.0", node=1)
    others = ("0000:04:00.0", "0000:07:00.0", "0000:08:00.0", "0000:41:00.0", "0000:81:00.0")
    assert [path_between("00000000:03:00.0", other) for other in others] == ["PIX", "PXB", "PHB", "NODE", "SYS"]
    assert [path_between(other, "0000:03:00.0") for other in others] == ["PIX", "PXB", "PHB", "NODE", "SYS"]


def test_functions_of_one_device_and_neighbours_behind_one_bridge(root: Path) -> None:
    """Nothing but one bridge is between them."""
    plug(root, HOST, PORT, "0000:03:00.0")
    plug(root, HOST, PORT, "0000:03:00.1")
    assert path_between("0000:03:00.0", "0000:03:00.1") == "PIX"


def test_a_machine_without_numa_is_one_node(root: Path) -> None:
    """Where the slots have no node and the machine has one, host bridges are all of that node."""
    plug(root, HOST, PORT, "0000:03:00.0")
    plug(root, "pci0000:40", "0000:40:01.0", "0000:41:00.0")
    unknown = path_between("0000:03:00.0", "0000:41:00.0")
    assert isinstance(unknown, Unavailable) and "NUMA" in unknown.detail
    numa_nodes(root, 1)
    assert path_between("0000:03:00.0", "0000:41:00.0") == "NODE"
    (root / "sys/devices/system/node/node1").mkdir()
    assert path_between("0000:03:00.0", "0000:41:00.0") == unknown


@pytest.mark.parametrize("other", ["", "0000:99:00.0", "not an address", "../../../devices"])
def test_unknown_has_its_reason(other: str, root: Path) -> None:
    """A device that the kernel does not show, or that has no address, is at no guessed distance."""
    plug(root, HOST, PORT, "0000:03:00.0", node=0)
    unknown = path_between("0000:03:00.0", other)
    assert isinstance(unknown, Unavailable) and unknown.reason == Reason.NOT_SUPPORTED and unknown.detail


def test_way_to_a_device_begins_at_its_host_bridge(root: Path) -> None:
    """Virtual machines put a bus below other devices: what is above the host bridge says nothing."""
    plug(root, "LNXSYSTM:00", "VMBUS:00", "pci0001:00", "0001:00:00.0")
    assert upstream("0001:00:00.0") == ("pci0001:00", "0001:00:00.0")
    assert upstream("0001:00:01.0") == ()


def test_rdma_cards_in_the_order_of_their_numbers(root: Path) -> None:
    """Each with where it is plugged in; one without an address, as of software, is listed all the same."""
    rdma_card(root, "mlx5_10", "pci0000:80", "0000:80:01.0", "0000:82:00.0", node=1)
    rdma_card(root, "mlx5_2", HOST, PORT, "0000:03:00.0", node=0)
    (root / "sys/class/infiniband/rxe0").mkdir()
    assert rdma_cards() == (Nic("mlx5_2", "0000:03:00.0", 0), Nic("mlx5_10", "0000:82:00.0", 1), Nic("rxe0"))
