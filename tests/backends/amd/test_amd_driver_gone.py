"""A kernel driver that is unloaded, or lets go of a card, while the PCI bus goes on to show the card and its link."""

from collections.abc import Callable

import pytest

from accelmetrics import Sampler
from accelmetrics.backends.amd import backend, in_process
from accelmetrics.backends.amd.in_process import RELIST, InProcessDriver
from accelmetrics.backends.contract import ReadOptions
from accelmetrics.schemas.errors import DriverGoneError, Reason, SourceError
from accelmetrics.testing import FakeClock
from tests.sampling.conftest import until
from tests.simulators.amdgpu import Device, Tree, machines
from tests.simulators.amdgpu.tables import table
from tests.support.readings import values

OPTIONS = ReadOptions(pid=1)


@pytest.fixture(autouse=True)
def _no_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")


def rx_7900(tree: Tree) -> Device:
    return machines.rx_7900(tree)


def mi300x(tree: Tree) -> Device:
    return machines.mi300x(tree, "CPX", 8)


@pytest.mark.parametrize(("build", "unit"), [(rx_7900, 0), (mi300x, 0), (mi300x, 3)])
def test_a_driver_that_is_unloaded_has_gone_though_the_bus_shows_its_card(tree: Tree, build: Callable[[Tree], Device], unit: int) -> None:
    card = build(tree)
    card.write({"current_link_speed": "16.0 GT/s PCIe", "current_link_width": 16})
    reader = backend.open().reader(OPTIONS)
    assert values(reader.read(unit, []))
    card.unbind()
    assert (card.path / "current_link_width").exists()
    with pytest.raises(DriverGoneError) as caught:
        reader.read(unit, [])
    assert caught.value.reason == Reason.DRIVER_UNAVAILABLE
    assert card.address in caught.value.message


def test_a_driver_that_is_unloaded_below_a_card_that_sleeps_has_gone_too(tree: Tree) -> None:
    card = machines.rx_7900(tree)
    card.write({"power/runtime_status": "suspended"})
    reader = backend.open().reader(OPTIONS)
    card.unbind()
    with pytest.raises(DriverGoneError):
        reader.read(0, [])


def test_a_card_of_which_only_the_link_is_left_is_no_longer_shown(tree: Tree) -> None:
    """The driver is bound, and shows nothing."""
    card = machines.rx_7900(tree)
    home = (card.path / "driver").readlink()
    reader = backend.open().reader(OPTIONS)
    card.unbind()
    (card.path / "driver").symlink_to(home)
    with pytest.raises(DriverGoneError, match="no longer shows"):
        reader.read(0, [])


def test_one_card_that_the_driver_lets_go_of_is_lost_and_comes_back(tree: Tree) -> None:
    clock = FakeClock()
    first, _ = machines.mi250(tree)
    reader = InProcessDriver(clock).reader(OPTIONS)
    assert values(reader.read(0, []))["gpu"] == 97
    first.unbind()
    for _ in range(2):
        with pytest.raises(SourceError) as caught:
            reader.read(0, [])
        assert caught.value.reason == Reason.DEVICE_LOST
        assert not isinstance(caught.value, DriverGoneError)
        assert values(reader.read(1, []))["gpu"] == 98
        clock.advance(RELIST)
    (first.path / "driver").symlink_to(tree.root / "sys/bus/pci/drivers/amdgpu")
    first.write({"gpu_busy_percent": 12, "hwmon/hwmon7/temp1_label": "edge", "hwmon/hwmon7/temp1_input": 33000})
    forget_descriptors(reader, 0)
    found = values(reader.read(0, []))
    assert (found["gpu"], found["temp"]) == (12, 33)


def forget_descriptors(reader: object, unit: int) -> None:
    """On a real machine descriptors of files that have gone answer an error; those of a tree go on to be readable."""
    for file in reader._driver.units[unit].card._kept.values():  # type: ignore[attr-defined]
        file.close()


def test_partitions_of_a_card_that_was_let_go_do_not_reopen_the_driver(tree: Tree) -> None:
    clock = FakeClock()
    machines.rx_7900(tree)
    card = machines.mi300x(tree, "CPX", 8)
    reader = InProcessDriver(clock).reader(OPTIONS)
    card.unbind()
    for number in range(2, 10):
        (tree.root / f"sys/class/kfd/kfd/topology/nodes/{number}/properties").unlink()
    clock.advance(RELIST)
    assert values(reader.read(0, []))["gpu"] == 83


def test_a_sampler_says_so_and_has_the_card_again_when_the_driver_is_back(tree: Tree) -> None:
    card = machines.rx_7900(tree)
    with Sampler(["amd"]) as sampler:
        assert sampler.sample().metrics["gpu.0.powerWatts"] == 241
        card.unbind()
        lost = sampler.sample()
        assert lost.backends[0].status != "ok"
        assert {why.reason for why in lost.unavailable.values()} == {Reason.DRIVER_UNAVAILABLE}
        assert not lost.metrics
        (card.path / "driver").symlink_to(tree.root / "sys/bus/pci/drivers/amdgpu")
        card.write({"gpu_busy_percent": 12, "unique_id": "7d4e1f2a90b3c611"})
        until(lambda: sampler.sample().metrics.get("gpu.0.gpu") == 12)


def test_partitions_that_were_removed_leave_the_list(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """The card that is listed without them has answered for them; made again, they have their old keys."""
    monkeypatch.setattr(in_process, "RELIST", 0.0)
    machines.mi300x(tree, "CPX", 4)
    parts = [f"gpu.0.mig.{number}" for number in range(4)]
    with Sampler(["amd"], amd_source="sysfs") as sampler:
        assert [device.key for device in sampler.sample().devices] == ["gpu.0", *parts]
        nodes = tree.root / "sys/class/kfd/kfd/topology/nodes"
        kept = {node.name: (node / "properties").read_text() for node in nodes.iterdir() if (node / "properties").exists()}
        gpus = sorted((name for name, text in kept.items() if "simd_count 0" not in text), key=int)[1:]
        for name in gpus:
            (nodes / name / "properties").rename(nodes / name / "removed")
        until(lambda: sampler.sample().metrics and [device.key for device in sampler.sample().devices] == ["gpu.0"])
        snapshot = sampler.sample()
        assert snapshot.backends[0].status == "ok"
        assert not [key for key in snapshot.unavailable if ".mig." in key]
        for name in gpus:
            (nodes / name / "removed").rename(nodes / name / "properties")
        until(lambda: [device.key for device in sampler.sample().devices] == ["gpu.0", *parts])


# What is found out late


def test_new_cards_are_looked_for_whichever_units_are_read(tree: Tree) -> None:
    """A reader of the second card alone learns of a third."""
    clock = FakeClock()
    machines.mi250(tree)
    reader = InProcessDriver(clock).reader(OPTIONS)
    machines.rx_7900(tree)
    clock.advance(RELIST)
    with pytest.raises(DriverGoneError):
        reader.read(1, [])


def test_the_table_is_read_once_for_all_partitions_of_a_tick(tree: Tree) -> None:
    clock = FakeClock()
    card = machines.mi300x(tree, "CPX", 8)
    opened = InProcessDriver(clock)
    reader, other = opened.reader(OPTIONS), opened.reader(OPTIONS)
    for units in (range(9), range(1, 9)):
        progress: list[object] = []
        for unit in units:
            reader.read(unit, progress)
            if unit:
                other.read(unit, [])
            clock.advance(0.001)
        assert progress.count("gpu_metrics") == 1
        clock.advance(0.1)
    assert values(reader.read(1, []))["gpu"] == 70
    card.write({"gpu_metrics": table(1, 7, busy=[[40, 20], [10]])})
    clock.advance(0.1)
    assert values(reader.read(1, []))["gpu"] == 30


def test_who_a_card_is_is_known_in_full_once_it_wakes(tree: Tree) -> None:
    card, _ = machines.laptop(tree)
    opened = backend.open()
    reader = opened.reader(OPTIONS)
    reader.read(0, [])
    before = opened.devices
    assert before[0].memory_total_bytes is None
    assert opened.devices is before
    card.write({"power/runtime_status": "active"})
    reader.read(0, [])
    after = opened.devices
    assert (after[0].memory_total_bytes, after[0].uuid) == (8 * machines.GIB, before[0].uuid)
    assert after[1] is before[1]
    reader.read(0, [])
    assert opened.devices is after


def test_that_a_gpu_shares_the_hosts_memory_is_known_once_it_wakes(tree: Tree) -> None:
    card = machines.phoenix(tree)
    card.write({"power/runtime_status": "suspended", "device": "0x7fff"})
    opened = InProcessDriver(FakeClock())
    reader = opened.reader(OPTIONS)
    reader.read(0, [])
    assert not opened.devices[0].unified
    card.write({"power/runtime_status": "active"})
    assert values(reader.read(0, []))["memoryTotalBytes"] == 31 * machines.GIB // 2
    assert (opened.devices[0].unified, opened.devices[0].memory_total_bytes) == (True, 31 * machines.GIB // 2)
    assert opened.processes.pools == {card.address: ("vram", "gtt")}
