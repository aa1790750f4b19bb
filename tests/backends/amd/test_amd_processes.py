"""The processes on a card, from ``/proc``: trees of processes, and all that the kernel may say of them."""

from pathlib import Path

import pytest
from pytest_mock import MockerFixture

from accelmetrics import allocation
from accelmetrics.backends.amd import backend as amd
from accelmetrics.backends.amd.in_process import InProcessDriver
from accelmetrics.backends.contract import NOT_NEEDED, Processes, ReadOptions
from accelmetrics.schemas.errors import Unavailable
from accelmetrics.schemas.selection import MetricSelection
from accelmetrics.testing import FakeClock
from tests.simulators.amdgpu import Tree, client, machines
from tests.support.readings import values

CARD, OTHER = "0000:03:00.0", "0000:c4:00.0"
RENDER, NULL = "/dev/dri/renderD128", "/dev/null"
MIB = 1024


@pytest.fixture
def tree(root: Path) -> Tree:
    tree = Tree(root)
    tree.whole_machine()
    return tree


def pids(processes: Processes) -> list[int] | None:
    """The numbers of processes; None where they are not known."""
    return None if processes is None or isinstance(processes, Unavailable) else [process.pid for process in processes]


@pytest.mark.parametrize(
    ("metrics", "looks"), [("all", 1), ("process.memoryAllocated", 1), ("core,processes", 1), ("processes", 1), ("core", 0), ("cpu", 0)]
)
def test_processes_are_looked_for_where_they_are_wanted(tree: Tree, mocker: MockerFixture, metrics: str, looks: int) -> None:
    """Going through all of ``/proc`` is the dearest part of a reading."""
    machines.rx_7900(tree)
    driver = InProcessDriver(FakeClock())
    look = mocker.spy(driver.processes, "on")
    reading = driver.reader(ReadOptions(1, metrics=MetricSelection(metrics))).read(0, [])
    assert look.call_count == looks
    assert (reading.processes == NOT_NEEDED) == (not looks)
    driver.close()


# All of it together


@pytest.mark.parametrize("whole", [True, False])
def test_a_card_without_processes_is_unused_only_where_all_processes_are_seen(root: Path, whole: bool) -> None:
    tree = Tree(root)
    machines.rx_7900(tree)
    machines.phoenix(tree)
    for pid in range(1000, 2500):
        (tree.root / f"proc/{pid}/fd").mkdir(parents=True)
    tree.process(50000, {7: (RENDER, client(CARD, 1, 100))})
    if whole:
        tree.whole_machine()
    made = allocation(backends=[amd.pinned("sysfs")])
    assert [device.pids for device in made.devices] == [(50000,), () if whole else None]
    kinds = [finding.kind for finding in made.findings if finding.devices == ("gpu.1",)]
    assert kinds == (["unused_device"] if whole else ["use_unknown"])


# The watched process


def test_the_watched_process_and_its_descendants_have_their_share_with_the_boards_values(tree: Tree) -> None:
    machines.rx_7900(tree)
    gib = 1024 * MIB
    tree.process(41, {}, parent=1)
    tree.process(42, {7: (RENDER, client(CARD, 1, gib, compute=0))}, parent=41)
    tree.process(43, {7: (RENDER, client(CARD, 2, 2 * gib, compute=0))}, parent=42)
    tree.process(50, {7: (RENDER, client(CARD, 3, 3 * gib))}, parent=1)
    clock = FakeClock()
    reader = InProcessDriver(clock).reader(ReadOptions(pid=41))
    first = reader.read(0, [])
    assert pids(first.processes) == [42, 43, 50]
    expected = {"memoryAllocatedBytes": 3 * 2**30, "memoryAllocated": 12.5, "temp": 51, "powerWatts": 241}
    expected |= {"enforcedPowerLimitWatts": 303, "powerPercent": 100 * 241 / 303}
    assert values(first, True) == pytest.approx(expected)
    tree.process(42, {7: (RENDER, client(CARD, 1, gib, compute=400_000_000))}, parent=41)
    clock.advance(1)
    second = reader.read(0, [])
    assert values(second, True) == pytest.approx({**expected, "gpu": 40})
    assert "gpu" in values(second, False)


def test_without_the_family_on_the_card_there_are_no_process_keys(tree: Tree) -> None:
    machines.rx_7900(tree)
    tree.process(50, {7: (RENDER, client(CARD, 3, 100))})
    reading = InProcessDriver(FakeClock()).reader(ReadOptions(pid=41)).read(0, [])
    assert values(reading, True) == {}
    assert pids(reading.processes) == [50]


def test_more_than_the_card_has_is_no_share(tree: Tree) -> None:
    machines.rx_7900(tree)
    tree.process(41, {7: (RENDER, client(CARD, 1, 25 * 1024 * MIB))})
    found = values(InProcessDriver(FakeClock()).reader(ReadOptions(pid=41)).read(0, []), True)
    assert "memoryAllocated" not in found
    assert found["memoryAllocatedBytes"] == 25 * 2**30
