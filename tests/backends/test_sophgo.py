"""Sophgo cards, from the files of their driver."""

from __future__ import annotations

from pathlib import Path

import pytest

from accelmetrics import Sampler
from accelmetrics.backends import registry
from accelmetrics.schemas.errors import Reason, SourceError
from accelmetrics.schemas.identity import DeviceIdentity
from accelmetrics.testing import FakeClock
from tests.simulators.sophgo import SophgoTree
from tests.support.pci import function
from tests.support.readings import of

GIB = 2**30
VALUES = {
    "utilization": 63,
    "temp": 51,
    "powerWatts": 17,
    "boardPowerWatts": 61,
    "smClock": 950,
    "maxSmClock": 1000,
    "fanSpeed": 45,
    "fanSpeedRpm": 2800,
    "eccMode": 1,
    "memoryTotalBytes": 16 * GIB,
    "pcieLinkGen": 3,
    "pcieLinkWidth": 8,
    "maxPcieLinkGen": 4,
    "maxPcieLinkWidth": 16,
}
OF_CARD = {"boardPowerWatts", "fanSpeed", "fanSpeedRpm"}


@pytest.fixture
def tree(root: Path) -> SophgoTree:
    """One card with two chips, and one with one."""
    made = SophgoTree(root)
    for card in range(2):
        made.card(card)
    for card, number in ((0, 0), (0, 1), (1, 2)):
        made.chip(card, number)
    return made


@pytest.fixture
def sampler(tree: SophgoTree) -> Sampler:
    del tree
    return Sampler(["sophgo"], clock=FakeClock())


def test_every_metric_and_who_a_chip_is(sampler: Sampler) -> None:
    """What belongs to a card stands on its first chip alone."""
    with sampler:
        snapshot = sampler.sample()
    assert (of(snapshot, 0), of(snapshot, 2)) == (VALUES, VALUES | {"temp": 53})
    assert set(of(snapshot, 0)) - set(of(snapshot, 1)) == OF_CARD
    assert snapshot.unavailable["npu.1.boardPowerWatts"] == (Reason.NOT_SUPPORTED, "proc reports it for the whole card, and NPU 0 has it")
    assert snapshot.devices[1].identity == DeviceIdentity(
        "npu",
        "sophgo",
        1,
        name="SC7 PRO",
        pci_bus_id="0000:0b:00.0",
        serial="HQATEV0000",
        architecture="0x1684x",
        memory_total_bytes=16 * GIB,
    )


def test_where_chips_are_not_measured_power_is_the_cards_once(sampler: Sampler, tree: SophgoTree) -> None:
    for card, number in ((0, 0), (0, 1), (1, 2)):
        tree.write(f"card{card}/bmsophon{number}/chip_power", "N/A")
    with sampler:
        snapshot = sampler.sample()
    assert [snapshot.metrics.get(f"npu.{number}.powerWatts") for number in range(3)] == [61, None, 61]


def test_utilisation_is_counted_where_it_is_switched_on(sampler: Sampler, tree: SophgoTree) -> None:
    tree.usage(0, "Please, set [Usage enable] to 1")
    tree.usage(1, "usage:0 avusage:40")
    tree.usage(2, "usage:130 avusage:40")
    with sampler:
        snapshot = sampler.sample()
    why = snapshot.unavailable["npu.0.utilization"]
    assert (why.reason, "until root writes 1" in why.detail) == (Reason.NOT_SUPPORTED, True)
    assert snapshot.metrics["npu.1.utilization"] == 0
    assert snapshot.unavailable["npu.2.utilization"].reason == Reason.INVALID_VALUE


@pytest.mark.parametrize(
    ("file", "said", "name", "reason"),
    [
        ("card0/bmsophon0/chip_temp", "N/A", "temp", Reason.NOT_SUPPORTED),
        ("card0/bmsophon0/chip_temp", "1682 not support", "temp", Reason.NOT_SUPPORTED),
        ("card0/bmsophon0/chip_temp", "51 W", "temp", Reason.PARSE_ERROR),
        ("card0/bmsophon0/chip_temp", "", "temp", Reason.NOT_SUPPORTED),
        ("card0/bmsophon0/chip_power", "0 W", "powerWatts", Reason.NOT_SUPPORTED),
        ("card0/fan_speed", "N/A", "fanSpeedRpm", Reason.NOT_SUPPORTED),
        ("card0/fan_speed", "duty  45", "fanSpeedRpm", Reason.PARSE_ERROR),
        ("card0/bmsophon0/ddr_capacity", "4g, 4g", "memoryTotalBytes", None),
        ("card0/bmsophon0/ddr_capacity", "0g, 0g, 0g, 0g, 0g", "memoryTotalBytes", Reason.NOT_SUPPORTED),
        ("card0/bmsophon0/ecc", "maybe", "eccMode", Reason.PARSE_ERROR),
        ("card0/bmsophon0/pcie_link_speed", "gen15", "pcieLinkGen", None),
    ],
)
def test_every_form_of_nothing(sampler: Sampler, tree: SophgoTree, file: str, said: str, name: str, reason: Reason | None) -> None:
    tree.write("card0/board_power", "N/A")
    tree.write(file, said)
    with sampler:
        snapshot = sampler.sample()
    assert getattr(snapshot.unavailable.get(f"npu.0.{name}"), "reason", None) == reason
    assert of(snapshot, 1)["temp"] == 52


def test_a_file_that_may_not_be_read_costs_its_value(sampler: Sampler, tree: SophgoTree) -> None:
    (tree.proc / "card0/bmsophon0/chip_temp").unlink()
    (tree.proc / "card0/bmsophon0/chip_temp").mkdir()
    with sampler:
        snapshot = sampler.sample()
    assert snapshot.unavailable["npu.0.temp"].reason == Reason.DRIVER_ERROR
    assert of(snapshot, 0)["smClock"] == 950


def test_a_chip_that_goes_is_lost_and_comes_back(tree: SophgoTree, clock: FakeClock) -> None:
    with Sampler(["sophgo"], clock=clock) as sampler:
        assert of(sampler.sample(), 0) == VALUES
        tree.remove(0, 0)
        clock.advance(1.0)
        lost = sampler.sample()
        assert lost.unavailable["npu.0.temp"].reason == Reason.DEVICE_LOST
        assert of(lost, 1)["boardPowerWatts"] == 61
        tree.chip(0, 0)
        clock.advance(1.0)
        assert of(sampler.sample(), 0) == VALUES


def test_without_its_driver_it_is_found_and_not_read(root: Path) -> None:
    backend = registry.load("sophgo")
    assert backend.detect()[:2] == (False, "no device of Sophgo (0x1e30, 0x1f1c) on the PCI bus, no /dev/bm-sophon*")
    function(root, "0000:0a:00.0", "0x1f1c", "0x1686", "0x078000")
    assert backend.detect().devices == 1
    with pytest.raises(SourceError, match="lists no NPU") as caught:
        backend.open()
    assert "modprobe bmsophon" in caught.value.advice
