"""The processes on a card, from ``/proc``: trees of processes, and all that the kernel may say of them."""

import os
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from pytest_mock import MockerFixture

from accelmetrics import allocation
from accelmetrics.backends.amd import backend as amd
from accelmetrics.backends.amd.in_process import MOST, DriverProcesses, InProcessDriver, is_gpu, parse
from accelmetrics.backends.contract import NOT_NEEDED, Processes, ReadOptions
from accelmetrics.backends.kit import processes as holders
from accelmetrics.backends.kit.processes import AGAIN, DESCRIPTORS, FIRST_PASS, LATER_PASS, UNSEEN, NodeHolders
from accelmetrics.schemas.errors import Unavailable
from accelmetrics.schemas.identity import DeviceProcess
from accelmetrics.schemas.metric import NOTHING
from accelmetrics.schemas.selection import MetricSelection
from accelmetrics.testing import FakeClock
from tests.simulators.amdgpu import Tree, client, machines
from tests.support.readings import values

CARD, OTHER = "0000:03:00.0", "0000:c4:00.0"
RENDER, NULL = "/dev/dri/renderD128", "/dev/null"
MIB = 1024


class Watcher:
    """A table on a fake clock.

    Args:
        pools: As for the table.
        each: Seconds that looking through one process takes.
    """

    def __init__(self, pools: Mapping[str, Sequence[str]] = NOTHING, each: float = 0.0) -> None:
        self.now = 100.0
        ticks = count()
        self.table = DriverProcesses(pools, NodeHolders(is_gpu, lambda: next(ticks) * each))
        self.progress: list[Any] = []

    def look(self, address: str = CARD, later: float = 1.0) -> tuple[DeviceProcess, ...] | Unavailable:
        self.now += later
        self.progress = []
        return self.table.on(address, self.now, self.progress)


@pytest.fixture
def tree(system: Path) -> Tree:
    tree = Tree(system)
    tree.whole_machine()
    return tree


def found(watcher: Watcher, later: float = 1.0) -> tuple[DeviceProcess, ...]:
    """What is found at the next look, where there is something."""
    processes = watcher.look(later=later)
    assert not isinstance(processes, Unavailable)
    return processes


def pids(processes: Processes) -> list[int] | None:
    """The numbers of processes; None where they are not known."""
    return None if processes is None or isinstance(processes, Unavailable) else [process.pid for process in processes]


def another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the processes are another user's."""
    mine = os.geteuid()
    monkeypatch.setattr("accelmetrics.backends.kit.processes.os.geteuid", lambda: mine + 4711)


def test_memory_engines_and_kind_of_each_process(tree: Tree) -> None:
    tree.process(41, {3: (NULL, "pos: 0"), 7: (RENDER, client(CARD, 1, 512 * MIB, 9, compute=10**9))})
    tree.process(42, {5: (RENDER, client(CARD, 2, 64 * MIB, 9, gfx=10**9, compute=10**9))})
    tree.process(43, {5: (RENDER, client(OTHER, 3, 8 * MIB))})
    watcher = Watcher()
    assert watcher.look() == (
        DeviceProcess(41, "compute", 512 * 2**20, None),
        DeviceProcess(42, "compute+graphics", 64 * 2**20, None),
    )
    assert watcher.look(OTHER, 0) == (DeviceProcess(43, "", 8 * 2**20, None),)


def test_engine_time_becomes_a_share_of_the_time_between_two_looks(tree: Tree) -> None:
    tree.process(41, {7: (RENDER, client(CARD, 1, 1, compute=10**9, gfx=5))})
    watcher = Watcher()
    assert [process.utilization for process in found(watcher)] == [None]
    tree.process(41, {7: (RENDER, client(CARD, 1, 1, compute=10**9 + 300_000_000, gfx=5 + 200_000_000))})
    assert [process.utilization for process in found(watcher, later=2.0)] == [pytest.approx(25)]
    assert [process.utilization for process in found(watcher)] == [0]
    tree.process(41, {7: (RENDER, client(CARD, 1, 1, compute=9 * 10**9))})
    assert [process.utilization for process in found(watcher)] == [100]
    tree.process(41, {7: (RENDER, client(CARD, 1, 1, compute=1))})
    assert [process.utilization for process in found(watcher)] == [None]


def test_an_answer_is_kept_for_a_second(tree: Tree) -> None:
    tree.process(41, {7: (RENDER, client(CARD, 1, 1))})
    watcher = Watcher()
    first = watcher.look()
    tree.process(41, {7: (RENDER, client(CARD, 1, 2))})
    assert watcher.look(later=0.5) is first
    assert watcher.progress == []
    assert watcher.look(later=0.5) != first


def test_a_client_with_several_descriptors_is_counted_once(tree: Tree) -> None:
    same = client(CARD, 1, 100)
    tree.process(41, {7: (RENDER, same), 8: (RENDER, same), 9: ("/dev/dri/card0", client(CARD, 2, 50))})
    assert [process.memory_bytes for process in found(Watcher())] == [150 * 1024]


def test_a_client_that_was_handed_on_is_counted_with_the_first_process(tree: Tree) -> None:
    for pid in (41, 42):
        tree.process(pid, {7: (RENDER, client(CARD, 1, 100))})
    assert [(process.pid, process.memory_bytes) for process in found(Watcher())] == [(41, 100 * 1024)]


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


def test_an_apus_memory_is_with_the_gtt(tree: Tree) -> None:
    tree.process(41, {7: (RENDER, client(CARD, 1, 100, 900))})
    assert [process.memory_bytes for process in found(Watcher({CARD: ("vram", "gtt")}))] == [1000 * 1024]
    assert [process.memory_bytes for process in found(Watcher())] == [100 * 1024]


def test_a_process_that_ends_or_closes_the_device_is_no_longer_listed(tree: Tree) -> None:
    tree.process(41, {7: (RENDER, client(CARD, 1, 100))})
    watcher = Watcher()
    assert len(found(watcher)) == 1
    (tree.root / "proc/41/fdinfo/7").unlink()
    assert watcher.look() == ()


def test_others_processes_are_not_looked_through_and_may_be_users(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.process(41, {7: (RENDER, client(CARD, 1, 100))})
    another_user(monkeypatch)
    assert Watcher().look() is UNSEEN


def test_known_users_are_listed_beside_others_that_are_not_known(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.process(41, {7: (RENDER, client(CARD, 1, 100))})
    tree.process(42, {7: (RENDER, client(OTHER, 2, 100))})
    listing = os.listdir

    def refuse(path: str) -> list[str]:
        if path.endswith("/proc/42/fd"):
            raise PermissionError(path)
        return listing(path)

    monkeypatch.setattr("accelmetrics.backends.kit.processes.os.listdir", refuse)
    watcher = Watcher()
    assert [process.pid for process in found(watcher)] == [41]
    assert watcher.look(OTHER) is UNSEEN


@pytest.mark.parametrize("namespace", ["pid:[4026532209]", ""])
def test_a_container_does_not_know_that_a_card_is_unused(tree: Tree, namespace: str) -> None:
    """Its ``/proc`` has its own processes alone; and where ``hidepid`` hides the first one, it hides others."""
    assert Watcher().look() == ()
    if namespace:
        tree.link("/proc/1/ns/pid", namespace)
    else:
        (tree.root / "proc/1/ns/pid").unlink()
    assert Watcher().look() is UNSEEN


def test_a_descriptor_of_something_else_is_not_read(tree: Tree) -> None:
    tree.process(41, {3: (NULL, client(CARD, 1, 100)), 4: ("socket:[12]", client(CARD, 2, 100))})
    assert Watcher().look() == ()


def test_one_look_is_enough_on_a_server_with_many_processes(tree: Tree) -> None:
    """Kernel threads and others' processes come first by their numbers, and use up nothing."""
    for pid in (*range(2, 1500), 50001):
        (tree.root / f"proc/{pid}").mkdir()
    tree.process(50000, {7: (RENDER, client(CARD, 1, 100))})
    assert [process.pid for process in found(Watcher())] == [50000]
    assert Watcher().look(OTHER) == ()


def test_the_first_pass_has_a_time_bound_and_until_all_were_looked_at_none_is_no_answer(tree: Tree) -> None:
    for pid in range(1000, 1100):
        tree.process(pid, {})
    tree.process(999, {7: (RENDER, client(CARD, 1, 100))})
    watcher = Watcher(each=FIRST_PASS / 50)
    table = watcher.table
    looks = [watcher.look() for _ in range(60)]
    assert looks[0] is UNSEEN
    first = next(number for number, processes in enumerate(looks) if processes is not UNSEEN)
    assert all(processes is UNSEEN for processes in looks[:first])
    assert pids(looks[first]) == [999]
    assert table.on(OTHER, watcher.now, []) == ()
    assert LATER_PASS < FIRST_PASS


def test_a_later_pass_over_newcomers_is_shorter(tree: Tree) -> None:
    watcher = Watcher(each=LATER_PASS / 4.5)
    for pid in range(1000, 1050):
        tree.process(pid, {})
    watcher.look()
    newcomers = [pid for pid in watcher.progress if pid >= 1000]
    assert newcomers[0] == 1049  # the youngest first
    assert len(newcomers) == 5


def test_those_seen_before_are_looked_through_again_in_turn_at_a_bounded_cost(tree: Tree) -> None:
    for pid in range(1000, 1020):
        tree.process(pid, dict.fromkeys(range(AGAIN // 4 - 1), (NULL, "")))
    watcher = Watcher()
    assert watcher.look() == ()
    tree.process(1003, {7: (RENDER, client(CARD, 1, 100))})
    looks = 1
    while not watcher.look():
        assert len(watcher.progress) <= 5
        looks += 1
        assert looks <= 7
    assert [process.pid for process in found(watcher)] == [1003]


def test_a_process_with_many_descriptors_is_looked_through_up_to_a_bound(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holders, "DESCRIPTORS", 2)
    tree.process(41, {3: (NULL, ""), 4: (NULL, ""), 5: (RENDER, client(CARD, 1, 100))})
    assert DESCRIPTORS > 2
    assert Watcher().look() is UNSEEN


def test_while_one_lane_looks_another_gets_the_last_answer(tree: Tree) -> None:
    tree.process(41, {7: (RENDER, client(CARD, 1, 100))})
    watcher = Watcher()
    first = watcher.look()
    with watcher.table._looking:
        assert watcher.look(later=5.0) is first
        assert watcher.progress == []


# All of it together


@pytest.mark.parametrize("whole", [True, False])
def test_a_card_without_processes_is_unused_only_where_all_processes_are_seen(system: Path, whole: bool) -> None:
    tree = Tree(system)
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


# Text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("drm-memory-vram:\t7 KiB", 7 * 1024),
        ("drm-memory-vram:\t7 MiB", 7 * 2**20),
        ("drm-memory-vram:\t7", 7),
        ("drm-resident-vram:\t9 KiB", 9 * 1024),
        ("drm-memory-vram:\t7 KiB\ndrm-resident-vram:\t9 KiB", 7 * 1024),
        ("drm-memory-vram:\t7 furlongs", None),
        ("drm-memory-vram:\t-7 KiB", None),
        ("drm-memory-vram:\t18446744073709551615", None),
        ("", None),
    ],
)
def test_memory_is_read_in_the_unit_that_stands_beside_it(text: str, expected: int | None) -> None:
    found = parse(f"drm-pdev:\t{CARD}\ndrm-client-id:\t5\n{text}")
    assert found is not None
    assert found[2].get("vram") == expected


@pytest.mark.parametrize(
    "text", ["", "pos:\t0\nflags:\t02\n", "drm-pdev:\t0000:03:00.0", "drm-pdev: x\ndrm-client-id: 5", "drm-client-id: 5"]
)
def test_what_is_no_gpus_is_none(text: str) -> None:
    assert parse(text) is None


@given(
    st.text()
    | st.lists(st.sampled_from(["drm-pdev:\t0000:03:00.0", "drm-client-id: 5", "drm-memory-vram:", "9", "KiB", "\n", "ns"])).map("".join)
)
def test_any_text_can_be_parsed(text: str) -> None:
    found = parse(text)
    assert found is None or all(0 <= size <= MOST for size in found[2].values())
