"""Tenstorrent cards, from a tree of files as their kernel driver shows them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from accelmetrics import Sampler
from accelmetrics.backends import registry
from accelmetrics.backends.contract import SYSTEM_CLOCK
from accelmetrics.backends.visible import visibility
from accelmetrics.schemas.errors import Reason, SourceError
from accelmetrics.schemas.identity import DeviceIdentity, DeviceProcess
from accelmetrics.testing import FakeClock
from tests.simulators.tenstorrent import COUNTERS, TenstorrentTree

VALUES = {
    "temp": 47.371,
    "tempLimit.slowdown": 75,
    "powerWatts": 62,
    "enforcedPowerLimitWatts": 300,
    "powerPercent": pytest.approx(20.667, abs=1e-3),
    "smClock": 1350,
    "fanSpeedRpm": 2890,
    "pcieLinkGen": 5,
    "pcieLinkWidth": 16,
    "maxPcieLinkGen": 5,
    "maxPcieLinkWidth": 16,
}


@pytest.fixture
def tree(root: Path) -> TenstorrentTree:
    return TenstorrentTree(root)


@pytest.fixture
def sampler(tree: TenstorrentTree, clock: FakeClock) -> Iterator[Sampler]:
    """Of two cards."""
    tree.card(0)
    tree.card(1)
    with Sampler(["tenstorrent"], clock=clock) as made:
        yield made


def test_every_metric_and_who_a_card_is(sampler: Sampler, tree: TenstorrentTree) -> None:
    tree.sensor(1, "temp1_input", "51000")
    snapshot = sampler.sample()
    assert {key: value for key, value in snapshot.metrics.items() if key.startswith("npu.0.")} == {
        f"npu.0.{name}": value for name, value in VALUES.items()
    }
    assert snapshot.metrics["npu.1.temp"] == 51
    assert {why.reason for why in snapshot.unavailable.values()} == {Reason.NEEDS_INTERVAL}
    (first, _) = snapshot.devices
    assert first.identity == DeviceIdentity(
        "npu",
        "tenstorrent",
        0,
        name="p150a",
        uuid="3F1A70C2B9D40000",
        pci_bus_id="0000:81:00.0",
        serial="0000045211800000",
        architecture="blackhole",
        firmware="18.12.1.0",
        numa_node=1,
    )
    assert (first.processes, snapshot.backends[0].source, snapshot.backends[0].status) == ((), "sysfs", "ok")


def test_bytes_over_pcie_are_flits_of_both_networks_in_each_direction(sampler: Sampler, tree: TenstorrentTree, clock: FakeClock) -> None:
    tree.counter(0, "mst_rd_data_word_received1", 2**32 - 500)
    sampler.sample()
    for place, name in enumerate(COUNTERS):
        tree.counter(0, f"{name}0", 10**place)
    tree.counter(0, "mst_rd_data_word_received1", 500)
    clock.advance(0.5)
    metrics = sampler.sample().metrics
    assert metrics["npu.0.pcieRxBytes"] == 64 * (1000 + 1 + 1_000 + 10_000)
    assert metrics["npu.0.pcieTxBytes"] == 64 * (10 + 100 + 100_000)


def test_counters_that_may_have_wrapped_give_no_rate(sampler: Sampler, clock: FakeClock) -> None:
    sampler.sample()
    clock.advance(5.0)
    snapshot = sampler.sample()
    assert snapshot.unavailable["npu.0.pcieRxBytes"].reason == Reason.NEEDS_INTERVAL
    assert "may wrap within 2 s" in snapshot.unavailable["npu.0.pcieRxBytes"].detail
    clock.advance(1.0)
    assert sampler.sample().metrics["npu.0.pcieRxBytes"] == 0


@pytest.mark.parametrize(
    ("printed", "reason"),
    [
        ("", Reason.NOT_SUPPORTED),
        ("garbage", Reason.PARSE_ERROR),
        ("4294967295", Reason.INVALID_VALUE),
        ("65535000", Reason.INVALID_VALUE),
        ("-274000", Reason.INVALID_VALUE),
        ("4737\n47371", Reason.PARSE_ERROR),
    ],
)
def test_a_sensor_that_says_nothing_possible_costs_its_own_metric(
    sampler: Sampler, tree: TenstorrentTree, printed: str, reason: Reason
) -> None:
    tree.sensor(0, "temp1_input", printed)
    snapshot = sampler.sample()
    assert snapshot.unavailable["npu.0.temp"].reason == reason
    assert snapshot.metrics["npu.0.powerWatts"] == 62


def test_what_the_firmware_does_not_report_has_no_file(sampler: Sampler, tree: TenstorrentTree) -> None:
    """An older release of it, and a Grayskull, of which nothing is reported."""
    (tree.directory(0) / "tt_aiclk").unlink()
    shutil.rmtree(tree.slot(1) / "hwmon")
    shutil.rmtree(tree.directory(1) / "pcie_perf_counters")
    for name in tree.directory(1).glob("tt_*"):
        name.unlink()
    snapshot = sampler.sample()
    assert snapshot.unavailable["npu.0.smClock"] == (Reason.NOT_SUPPORTED, 'sysfs does not report "tt_aiclk"')
    assert snapshot.metrics["npu.0.temp"] == 47.371
    assert {key for key in snapshot.metrics if key.startswith("npu.1.") and "pcie" not in key.lower()} == set()
    assert [device.pci_bus_id for device in snapshot.devices] == ["0000:81:00.0", "0000:82:00.0"]


def test_who_uses_a_card(tree: TenstorrentTree) -> None:
    """A process has a line for each descriptor; 0 stands for one that is not in this PID namespace."""
    for number in range(3):
        tree.card(number)
    tree.held(0, os.getpid(), 4242, os.getpid())
    tree.held(1, 0, 4242)
    tree.held(2, 0)
    with Sampler(["tenstorrent"], clock=SYSTEM_CLOCK, pid=os.getpid()) as sampler:
        snapshot = sampler.sample()
    first, second, third = snapshot.devices
    assert first.processes == tuple(DeviceProcess(pid) for pid in sorted((os.getpid(), 4242)))
    assert second.processes == (DeviceProcess(4242),)
    assert third.processes is None
    assert snapshot.metrics["npu.process.0.powerWatts"] == 62
    assert not any(key.startswith("npu.process.1.") for key in snapshot.metrics)


def test_a_driver_that_lists_no_processes(sampler: Sampler, tree: TenstorrentTree) -> None:
    shutil.rmtree(tree.root / "proc/driver")
    first, _ = sampler.sample().devices
    assert first.processes is None


def test_a_card_that_goes_is_lost_and_comes_back_as_itself(sampler: Sampler, tree: TenstorrentTree, clock: FakeClock) -> None:
    """After a reset the driver may give it another number."""
    sampler.sample()
    tree.remove(0)
    clock.advance(1.0)
    lost = sampler.sample()
    assert lost.unavailable["npu.0.temp"].reason == Reason.DEVICE_LOST
    assert lost.metrics["npu.1.temp"] == 47.371
    shutil.rmtree(tree.root / "sys/devices")
    shutil.rmtree(tree.root / "sys/bus")
    tree.card(0)
    tree.directory(0).rename(tree.directory(7))
    clock.advance(1.0)
    again = sampler.sample()
    assert again.metrics["npu.0.temp"] == 47.371
    assert again.devices[0].identity.vendor_index == 7


def test_a_card_whose_file_hangs_costs_no_other(tree: TenstorrentTree) -> None:
    tree.card(0)
    tree.card(1)
    with Sampler(["tenstorrent"], clock=SYSTEM_CLOCK, timeout=0.5) as sampler:
        hanging = tree.slot(0) / "hwmon/hwmon4/temp1_input"
        hanging.unlink()
        os.mkfifo(hanging)
        try:
            snapshot = sampler.sample()
        finally:
            os.close(os.open(hanging, os.O_RDWR))
    assert snapshot.metrics["npu.1.temp"] == 47.371
    assert snapshot.unavailable["npu.0.temp"].reason == Reason.TIMED_OUT


def test_a_card_that_sleeps_is_not_woken(sampler: Sampler, tree: TenstorrentTree) -> None:
    tree.write(tree.slot(0) / "power/runtime_status", "suspended")
    snapshot = sampler.sample()
    assert {key for key in snapshot.metrics if key.startswith("npu.0.")} == set()


def test_without_its_driver_the_card_is_found_and_not_read(tree: TenstorrentTree) -> None:
    backend = registry.load("tenstorrent")
    assert backend.detect()[:2] == (False, "no device of Tenstorrent (0x1e52) on the PCI bus, no /dev/tenstorrent/*")
    tree.card(0, driven=False)
    found = backend.detect()
    assert (found.present, found.devices) == (True, 1)
    assert "load the kernel driver" in found.advice
    with pytest.raises(SourceError, match="sysfs lists no NPU") as caught:
        backend.open()
    assert caught.value.reason == Reason.DRIVER_UNAVAILABLE
    assert "modprobe tenstorrent" in caught.value.advice


def of(*addresses: str) -> list[DeviceIdentity]:
    return [DeviceIdentity("npu", "tenstorrent", number, pci_bus_id=address) for number, address in enumerate(addresses)]


@pytest.mark.parametrize(
    ("listed", "order"),
    [
        (None, (0, 1, 2)),
        ("", ()),
        ("2, 0", (0, 2)),
        ("0000:c1:00.0", (1,)),
        ("0000:c", (1, 2)),
        ("0000:c2:00.0,0,0", (0, 2)),
        ("3", None),
        ("-1", None),
        ("0000:ff:00.0", None),
        ("all", None),
    ],
)
def test_what_a_program_sees(listed: str | None, order: tuple[int, ...] | None) -> None:
    """Always in the order of PCI addresses."""
    environ = {} if listed is None else {"TT_VISIBLE_DEVICES": listed}
    seen = visibility(environ, of("0000:01:00.0", "0000:c1:00.0", "0000:c2:00.0"))
    assert seen.order == order
    assert bool(seen.caveats) == (order is None)


def test_a_position_counts_differently_where_the_drivers_numbers_are_not_in_the_order_of_addresses() -> None:
    devices = of("0000:c1:00.0", "0000:01:00.0")
    assert visibility({}, devices).order == (1, 0)
    assert visibility({"TT_VISIBLE_DEVICES": "0000:c1:00.0"}, devices).order == (0,)
    seen = visibility({"TT_VISIBLE_DEVICES": "0"}, devices)
    assert seen.order is None and "some releases count" in seen.caveats[0]
