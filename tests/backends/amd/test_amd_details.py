"""What AMD's cards tell on request: XGMI links as the compute driver shows them, and the levels of their clocks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from accelmetrics.backends.amd.in_process import InProcessDriver
from accelmetrics.schemas.errors import Reason, SourceError, Unavailable
from accelmetrics.schemas.topology import Link, SupportedClocks
from tests.simulators.amdgpu import Device, Tree, location
from tests.simulators.amdgpu.machines import PAIR, laptop, mi210_pair, mi300x, rx_7900

BUSES = (0x43, 0x83)


@pytest.fixture
def tree(root: Path) -> Tree:
    """A machine without cards."""
    return Tree(root)


def join(tree: Tree, weight: int = 15) -> None:
    """Join two accelerators by XGMI; each is joined with its processor by PCIe."""
    tree.node(0, {"simd_count": 0, "cpu_cores_count": 64})
    for number, bus in enumerate(BUSES, start=1):
        tree.node(number, {"simd_count": 416, "vendor_id": 4098, "location_id": location(bus), "domain": 0})
        links = ({"type": 2, "node_to": 0, "weight": 20}, {"type": 11, "node_to": 3 - number, "weight": weight})
        for place, link in enumerate(links):
            properties = {"version_major": 0, "node_from": number, **link, "max_bandwidth": 50000}
            text = "\n".join(f"{name} {value}" for name, value in properties.items())
            tree.write(f"/sys/class/kfd/kfd/topology/nodes/{number}/io_links/{place}/properties", text)


@pytest.mark.parametrize(("weight", "hops"), [(15, 1), (30, 2)])
def test_links(weight: int, hops: int, tree: Tree) -> None:
    """To which card, and over how many hops; how many there are the kernel does not say."""
    mi210_pair(tree)
    join(tree, weight)
    driver = InProcessDriver()
    assert driver.details(0, []).links == (Link("xgmi", PAIR[1], None, hops),)
    assert driver.details(1, []).links == (Link("xgmi", PAIR[0], None, hops),)


def test_a_machine_without_the_compute_driver(tree: Tree) -> None:
    """Whether there are links is unknown."""
    mi210_pair(tree)
    links = InProcessDriver().details(0, []).links
    assert isinstance(links, Unavailable) and links.reason == Reason.NOT_SUPPORTED and "kfd" in links.detail


def clocks_of(device: Device, files: Mapping[str, str]) -> SupportedClocks | Unavailable:
    """What a card says whose files say this."""
    device.write(files)
    return InProcessDriver().details(0, []).clocks


@pytest.mark.parametrize(
    ("shown", "levels"),
    [
        ("0: 852Mhz \n1: 991Mhz \n2: 1138Mhz *\n3: 1269Mhz ", (1269, 1138, 991, 852)),
        ("0: 500Mhz \n1: 2410Mhz *\n2: 2526Mhz ", (2526, 500)),
        ("0: 500Mhz *\n1: 2526Mhz ", (2526, 500)),
        ("S: 132Mhz *\n0: 500Mhz \n1: 2100Mhz ", (2100, 500)),
    ],
    ids=["levels", "a range with the clock of now in it", "a range at its end", "asleep"],
)
def test_levels_of_the_cores(shown: str, levels: tuple[int, ...], tree: Tree) -> None:
    """The clock of now and that of sleep are no levels to choose."""
    clocks = clocks_of(rx_7900(tree), {"pp_dpm_sclk": shown})
    assert clocks == SupportedClocks((1249, 456, 96), levels)


def test_no_levels(tree: Tree) -> None:
    """A card whose files are not there has the reason."""
    card, _ = mi210_pair(tree)
    clocks = clocks_of(card, {})
    assert isinstance(clocks, Unavailable) and clocks.reason == Reason.NOT_SUPPORTED


def test_a_sleeping_card_is_not_woken(tree: Tree) -> None:
    """It says that it sleeps."""
    laptop(tree)
    with pytest.raises(SourceError) as caught:
        InProcessDriver().details(0, [])
    assert caught.value.reason == Reason.SUSPENDED


def test_partitions_are_their_card(tree: Tree) -> None:
    """They have no links and clocks beside the card's, whose links are none between them."""
    mi300x(tree, "CPX", 2)
    driver = InProcessDriver()
    assert driver.details(0, []).links == ()
    assert driver.details(0, []).clocks == SupportedClocks((1300, 900), (2100, 500))
    part = driver.details(1, [])
    assert isinstance(part.links, Unavailable) and isinstance(part.clocks, Unavailable)
