"""Who uses a card, from ``/proc``: trees of processes, and whatever the kernel may say of them."""

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelmetrics.backends.amd.fdinfo import MOST, parse
from accelmetrics.backends.amd.in_process import InProcessDriver
from accelmetrics.backends.amd.processes import DESCRIPTORS, NEWCOMERS, OLD, ProcessTable
from accelmetrics.backends.contract import Reading, ReadOptions
from accelmetrics.schemas.identity import DeviceProcess
from tests.simulators.amdgpu import Tree, client, machines

CARD, OTHER = "0000:03:00.0", "0000:c4:00.0"
RENDER, NULL = "/dev/dri/renderD128", "/dev/null"
MIB = 1024


class FakeClock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def time_ns(self) -> int:
        raise NotImplementedError


class Watcher:
    """A table on a fake clock."""

    def __init__(self, unified: frozenset[str] = frozenset()) -> None:
        self.now = 100.0
        self.table = ProcessTable(unified)
        self.steps: list[Any] = []

    def look(self, address: str = CARD, later: float = 1.0) -> tuple[DeviceProcess, ...]:
        self.now += later
        self.steps = []
        return self.table.on(address, self.now, self.steps)


@pytest.fixture
def tree(system: Path) -> Tree:
    return Tree(system)


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
    assert [process.utilization for process in watcher.look()] == [None]
    tree.process(41, {7: (RENDER, client(CARD, 1, 1, compute=10**9 + 300_000_000, gfx=5 + 200_000_000))})
    assert [process.utilization for process in watcher.look(later=2.0)] == [pytest.approx(25)]
    assert [process.utilization for process in watcher.look()] == [0]
    tree.process(41, {7: (RENDER, client(CARD, 1, 1, compute=9 * 10**9))})
    assert [process.utilization for process in watcher.look()] == [100]
    tree.process(41, {7: (RENDER, client(CARD, 1, 1, compute=1))})
    assert [process.utilization for process in watcher.look()] == [None]


def test_an_answer_is_kept_for_a_second(tree: Tree) -> None:
    tree.process(41, {7: (RENDER, client(CARD, 1, 1))})
    watcher = Watcher()
    first = watcher.look()
    tree.process(41, {7: (RENDER, client(CARD, 1, 2))})
    assert watcher.look(later=0.5) is first
    assert watcher.steps == []
    assert watcher.look(later=0.5) != first


def test_a_client_with_several_descriptors_is_counted_once(tree: Tree) -> None:
    same = client(CARD, 1, 100)
    tree.process(41, {7: (RENDER, same), 8: (RENDER, same), 9: ("/dev/dri/card0", client(CARD, 2, 50))})
    assert [process.memory_bytes for process in Watcher().look()] == [150 * 1024]


def test_a_client_that_was_handed_on_is_counted_with_the_first_process(tree: Tree) -> None:
    for pid in (41, 42):
        tree.process(pid, {7: (RENDER, client(CARD, 1, 100))})
    assert [(process.pid, process.memory_bytes) for process in Watcher().look()] == [(41, 100 * 1024)]


def test_an_apus_memory_is_with_the_gtt(tree: Tree) -> None:
    tree.process(41, {7: (RENDER, client(CARD, 1, 100, 900))})
    assert [process.memory_bytes for process in Watcher(frozenset({CARD})).look()] == [1000 * 1024]
    assert [process.memory_bytes for process in Watcher().look()] == [100 * 1024]


def test_a_process_that_ends_or_closes_the_device_is_no_longer_listed(tree: Tree) -> None:
    tree.process(41, {7: (RENDER, client(CARD, 1, 100))})
    watcher = Watcher()
    assert len(watcher.look()) == 1
    (tree.root / "proc/41/fdinfo/7").unlink()
    assert watcher.look() == ()


def test_others_processes_are_not_looked_through(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.process(41, {7: (RENDER, client(CARD, 1, 100))})
    mine = os.geteuid()
    monkeypatch.setattr("accelmetrics.backends.amd.processes.os.geteuid", lambda: mine + 4711)
    assert Watcher().look() == ()


def test_a_descriptor_of_something_else_is_not_read(tree: Tree) -> None:
    tree.process(41, {3: (NULL, client(CARD, 1, 100)), 4: ("socket:[12]", client(CARD, 2, 100))})
    assert Watcher().look() == ()


def test_a_pass_over_many_processes_has_a_bound_and_finds_everyone_in_time(tree: Tree) -> None:
    count = NEWCOMERS + 50
    for pid in range(1000, 1000 + count):
        tree.process(pid, {})
    watcher = Watcher()
    watcher.look()
    assert len(watcher.steps) == NEWCOMERS
    watcher.look()
    assert len(watcher.steps) <= 50 + OLD
    tree.process(1003, {7: (RENDER, client(CARD, 1, 100))})
    looks = 0
    while not watcher.look():
        assert len(watcher.steps) <= OLD
        looks += 1
        assert looks <= count / OLD + 2
    (process,) = watcher.look()
    assert process.pid == 1003


def test_a_process_with_many_descriptors_is_looked_through_up_to_a_bound(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("accelmetrics.backends.amd.processes.DESCRIPTORS", 2)
    tree.process(41, {3: (NULL, ""), 4: (NULL, ""), 5: (RENDER, client(CARD, 1, 100))})
    assert DESCRIPTORS > 2
    assert Watcher().look() == ()


def test_while_one_lane_looks_another_gets_the_last_answer(tree: Tree) -> None:
    tree.process(41, {7: (RENDER, client(CARD, 1, 100))})
    watcher = Watcher()
    first = watcher.look()
    with watcher.table._looking:
        assert watcher.look(later=5.0) is first
        assert watcher.steps == []


# The watched process


def values(reading: Reading, process: bool) -> dict[str, float]:
    blocks = [block for block in reading.blocks if block.process is process]
    return {name: value for block in blocks for name, value in zip(block.names, block.values, strict=True)}


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
    assert [process.pid for process in first.processes or ()] == [42, 43, 50]
    expected = {"memoryAllocatedBytes": 3 * 2**30, "memoryAllocated": 12.5, "temp": 51, "powerWatts": 241}
    expected |= {"enforcedPowerLimitWatts": 303, "powerPercent": 100 * 241 / 303}
    assert values(first, True) == pytest.approx(expected)
    tree.process(42, {7: (RENDER, client(CARD, 1, gib, compute=400_000_000))}, parent=41)
    clock.now += 1
    second = reader.read(0, [])
    assert values(second, True) == pytest.approx({**expected, "gpu": 40})
    assert "gpu" in values(second, False)


def test_without_the_family_on_the_card_there_are_no_process_keys(tree: Tree) -> None:
    machines.rx_7900(tree)
    tree.process(50, {7: (RENDER, client(CARD, 3, 100))})
    reading = InProcessDriver(FakeClock()).reader(ReadOptions(pid=41)).read(0, [])
    assert values(reading, True) == {}
    assert [process.pid for process in reading.processes or ()] == [50]


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
    assert found.vram == expected


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
    assert found is None or all(size is None or 0 <= size <= MOST for size in (found.vram, found.gtt))
