"""What a driver fills: lists whose entries are of another length, lists that grow, structures that are longer than was known."""

from __future__ import annotations

import pytest

from accelmetrics.backends.nvidia.processes import entry_size, entry_sizes
from tests.backends.nvidia.machine import Consume, Consumer, Seen
from tests.simulators.nvml import NvmlSimulator, Process
from tests.support.pids import STRANGER

MIB = 2**20
LIST = "nvmlDeviceGetComputeRunningProcesses_v3"
SIZES = (24, 16, 32)


def crowd(count: int) -> list[Process]:
    return [Process(pid=STRANGER + number, used=(number + 1) * MIB, protected=7, sm=number % 100 + 1) for number in range(count)]


def held(seen: Seen) -> dict[int, int | None] | None:
    return None if seen.processes is None else {process.pid: process.memory_bytes for process in seen.processes}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("count", [1, 2, 3, 4, 11, 48, 60, 64, 65, 200])
def test_entries_of_every_length(simulator: NvmlSimulator, consumer: Consumer, size: int, count: int) -> None:
    """All processes are found with what they hold, whatever the length, and none is invented."""
    simulator.set(process_bytes=size)
    simulator.processes(0, crowd(count))
    for seconds in (0.0, 1.0):
        assert held(consumer.later(seconds)) == {process.pid: process.used for process in crowd(count)}


@pytest.mark.parametrize("version", ["535.54.03", "535.86.10"])
def test_the_driver_whose_entries_are_longer(simulator: NvmlSimulator, consume: Consume, version: str) -> None:
    """Under the name and the version of today's form, with graphics processes too."""
    simulator.set(driver_version=version, process_bytes=32)
    simulator.processes(0, [*crowd(60), Process(pid=1, kind="G", used=MIB)])
    found = held(consume().read(0))
    assert found == {1: MIB, **{process.pid: process.used for process in crowd(60)}}


@pytest.mark.parametrize("size", [40, 64])
def test_entries_of_no_known_length(simulator: NvmlSimulator, consumer: Consumer, size: int) -> None:
    """They have room, so that nothing is overrun, and no process is made of them."""
    simulator.set(process_bytes=size)
    simulator.processes(0, crowd(60))
    seen = consumer.read(0)
    assert seen.processes is None
    assert seen.unlisted is not None
    assert seen.unlisted.reason == "parse_error"
    simulator.set(process_bytes=0)
    assert len(held(consumer.later(1.0)) or ()) == 60


def test_lists_that_grow_between_two_calls(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """They are asked for again with more room, and not for ever."""
    simulator.processes(0, crowd(100))
    simulator.set(growing_lists=3)
    assert len(held(consumer.read(0)) or ()) == 100
    simulator.set(growing_lists=1_000_000)
    simulator.reset_calls()
    assert held(consumer.later(1.0)) is None
    assert simulator.count(LIST) <= 8
    simulator.set(growing_lists=0)
    processes = consumer.later(1.0).processes
    assert processes is not None
    assert {process.utilization is not None for process in processes} == {True}


UNFILLED = b"\xc5" * 8
FILLED = b"\x01" * 8


@pytest.mark.parametrize(
    ("words", "count", "size"),
    [
        (FILLED * 6, 2, 24),
        (FILLED * 4, 2, 16),
        (FILLED * 8, 2, 32),
        # The last members of each entry were left as they were.
        ((FILLED * 3 + UNFILLED) * 2, 2, 32),
        ((FILLED * 2 + UNFILLED * 2) + FILLED * 2, 2, 32),
        ((FILLED * 2 + UNFILLED) * 4, 4, 24),
        # A driver that clears all the room that it was given.
        (FILLED * 65 * 3, 48, 24),
        (FILLED * 65 * 4, 3, 32),
        (FILLED * 65 * 2, 3, 16),
        # Fewer entries than it says.
        (FILLED * 9, 60, 24),
        (FILLED * 10, 2, None),
        (FILLED * 7, 3, None),
        (FILLED + UNFILLED * 3 + FILLED * 2, 2, None),
    ],
)
def test_the_length_of_an_entry(words: bytes, count: int, size: int | None) -> None:
    assert entry_size(words.rstrip(b"\xc5"), count, 65, SIZES) == size


def test_the_likeliest_length() -> None:
    """By the form of the call and the driver's version, where what was filled fits several."""
    expected = {"535.54.03": 32, "535.86.10": 32, "535.104.05": 24, "535.25.01": 24, "530.30.02": 24, "": 24, "r570_00": 24}
    assert {version: entry_sizes("_v3", version)[0] for version in expected} == expected
    assert entry_sizes("", "535.54.03")[0] == 16


@pytest.mark.parametrize("excess", [8, 24])
def test_structures_that_are_longer_than_was_known(simulator: NvmlSimulator, consume: Consume, excess: int) -> None:
    """Nothing behind them is overrun, and no number of theirs is believed; all others are there."""
    healthy = consume().read(0)
    simulator.set(excess=excess)
    simulator.processes(0, [Process(pid=STRANGER, used=MIB, sm=10), Process(pid=STRANGER + 1, used=MIB, sm=20)])
    consumer = consume(metrics="all")
    consumer.read(0)
    for _ in range(2):
        seen = consumer.later(11.0)
        misfits = {name for name, reason in seen.reasons.items() if reason.reason == "parse_error"}
        # The first form of the memory call is asked too, and is of another layout as well.
        assert misfits >= {"gpu", "memoryTotalBytes", "memoryAllocated", "energyJoules", "pcieReplays", "smActive"}
        for name in ("temp", "smClock", "pcieLinkGen", "maxSmClock", "throttled"):
            assert seen.metrics[name] == healthy.metrics[name]
        assert [process.utilization for process in seen.processes or ()] == [None, None]


def test_an_answer_that_is_not_filled(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """Success without a number is no zero."""
    simulator.set(unfilled=1)
    seen = consumer.read(0)
    for name in ("performanceState", "pcieLinkGen", "pcieLinkWidth", "throttled", "throttle.gpuIdle"):
        assert seen.reason(name) == "invalid_value"
    assert consumer.driver.devices[0].cores is None
    simulator.set(unfilled=0)
    assert consumer.later(11.0).metrics["performanceState"] == simulator.gpu[0].get("pstate")
