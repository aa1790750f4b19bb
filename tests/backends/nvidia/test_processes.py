"""The processes on a device, and what the watched process and its descendants use of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from accelmetrics.backends.nvidia.nvml import unavailable
from accelmetrics.schemas.identity import DeviceProcess
from tests.backends.nvidia.machine import Consume, Consumer, Seen, Simulate, fail
from tests.simulators.nvml import NvmlSimulator, Process, Ret
from tests.support.pids import STRANGER

MIB = 2**20
SHARE = {"gpu", "memory", "memoryAllocated", "memoryAllocatedBytes", "temp", "powerWatts", "enforcedPowerLimitWatts", "powerPercent"}


@pytest.fixture
def child() -> Iterator[int]:
    """A child of this process."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        yield process.pid
        process.kill()


def test_kinds_are_merged_by_process(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """One entry per process, whichever of NVML's lists it stands in; each list has the whole of its memory."""
    simulator.processes(
        0,
        [
            Process(pid=30, kind="C", used=3 * MIB, sm=30, mem=20),
            Process(pid=20, kind="G", used=2 * MIB),
            Process(pid=10, kind="CG", used=1 * MIB, sm=7),
            Process(pid=40, kind="M", used=4 * MIB),
        ],
    )
    assert consumer.read(0).processes == (
        DeviceProcess(10, "compute+graphics", 1 * MIB, 7, 0),
        DeviceProcess(20, "graphics", 2 * MIB, None, None),
        DeviceProcess(30, "compute", 3 * MIB, 30, 20),
        DeviceProcess(40, "compute", 4 * MIB, None, None),
    )


def test_nobody_is_an_empty_list(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """Known to be none is another thing than not known; without processes no utilisation is asked for."""
    assert consumer.read(0).processes == ()
    assert simulator.count("nvmlDeviceGetProcessUtilization") == 0


def test_memory_that_the_driver_does_not_say(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """NOT_AVAILABLE is no number of bytes."""
    simulator.processes(0, [Process(pid=os.getpid())])
    seen = consumer.read(0)
    assert seen.processes == (DeviceProcess(os.getpid(), "compute", None),)
    assert "memoryAllocatedBytes" not in seen.share
    assert "memoryAllocated" not in seen.share
    assert "temp" in seen.share


def test_several_mig_instances_of_one_process_are_added_up(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """It stands in the list once per instance; of its samples the newest counts."""
    first = Process(pid=9, used=MIB, gpu_instance=1, sm=50, mem=6, timestamp_us=2)
    simulator.processes(0, [first, Process(pid=9, used=2 * MIB, gpu_instance=2, sm=40, mem=5, timestamp_us=1)])
    assert consumer.read(0).processes == (DeviceProcess(9, "compute", 3 * MIB, 50, 6),)


def test_a_size_that_is_never_sufficient(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """A driver that always wants more room gets no more."""
    fail(simulator, "nvmlDeviceGetComputeRunningProcesses_v3", 0, Ret.INSUFFICIENT_SIZE)
    consumer.read(0)
    before = simulator.count("nvmlDeviceGetComputeRunningProcesses_v3")
    assert consumer.later(1.0).processes is None
    assert simulator.count("nvmlDeviceGetComputeRunningProcesses_v3") - before == 1


def test_only_new_samples_count(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """A sample that was seen before says nothing of the second since."""
    simulator.processes(0, [Process(pid=STRANGER, used=MIB, sm=50, timestamp_us=1_000_000)])
    first = consumer.read(0).processes
    second = consumer.later(1.0).processes
    assert [process.utilization for process in (*(first or ()), *(second or ()))] == [50, None]
    simulator.processes(0, [Process(pid=STRANGER, used=MIB, sm=60, timestamp_us=2_000_000)])
    third = consumer.later(1.0).processes
    assert [process.utilization for process in third or ()] == [60]


def test_processes_are_the_same_object_while_nothing_changes(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """Between two looks, and after one that found the same."""
    simulator.processes(0, [Process(pid=STRANGER, used=MIB)])
    first = consumer.read(0).processes
    assert consumer.later(0.2).processes is first
    assert consumer.later(1.0).processes is first


def test_the_share_of_a_family(simulator: NvmlSimulator, consumer: Consumer, child: int) -> None:
    """Memory and utilisation are summed over the process and its descendants; the rest is the board's."""
    simulator.processes(
        1,
        [
            Process(pid=os.getpid(), used=1024 * MIB, sm=20, mem=10),
            Process(pid=child, kind="CG", used=512 * MIB, sm=15, mem=4),
            Process(pid=STRANGER, used=4096 * MIB, sm=60, mem=50),
        ],
    )
    seen = consumer.read(1)
    assert seen.share.keys() == SHARE
    assert (seen.share["gpu"], seen.share["memory"], seen.share["memoryAllocatedBytes"]) == (35, 14, 1536 * MIB)
    assert seen.share["memoryAllocated"] == pytest.approx(1536 * MIB / simulator.gpu[1].get("memory_total") * 100)
    for name in ("temp", "powerWatts", "enforcedPowerLimitWatts", "powerPercent"):
        assert seen.share[name] == seen.metrics[name], name
    simulator.processes(0, [Process(pid=STRANGER, used=MIB, sm=50)])
    assert consumer.read(0).share == {}, "none of them uses it"


def test_descendants_count_whatever_the_option_says(simulator: NvmlSimulator, consumer: Consumer, child: int) -> None:
    """These keys are of the process and its descendants; ``children`` is the host's option."""
    simulator.processes(0, [Process(pid=child, used=MIB)])
    assert consumer.read(0).share["memoryAllocatedBytes"] == MIB
    assert consumer.another(child).read(0).share["memoryAllocatedBytes"] == MIB
    simulator.processes(0, [Process(pid=os.getpid(), used=MIB)])
    consumer.clock.now += 1.0
    assert consumer.another(child).read(0).share == {}


def test_the_share_follows_the_board_at_every_reading(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """Its own part keeps the pace of the process lists."""
    simulator.processes(0, [Process(pid=os.getpid(), used=MIB, sm=20)])
    consumer.read(0)
    simulator.gpu[0].set(temperature=77)
    simulator.processes(0, [])
    soon = consumer.later(0.2)
    assert (soon.share["temp"], soon.share["memoryAllocatedBytes"]) == (77, MIB)
    assert consumer.later(1.0).share == {}


def test_names_of_the_share_stay_the_same_object(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """As of every block."""
    simulator.processes(0, [Process(pid=os.getpid(), used=MIB)])
    blocks = [next(block for block in consumer.later(0.2).reading.blocks if block.process) for _ in range(2)]
    assert blocks[0].names is blocks[1].names


def test_a_share_without_utilisation(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """Processes that idle have no sample: its utilisation is absent, not 0."""
    simulator.processes(0, [Process(pid=os.getpid(), used=MIB)])
    assert consumer.read(0).share.keys() == SHARE - {"gpu", "memory"}


def test_a_share_of_time_is_at_most_the_whole(simulator: NvmlSimulator, consumer: Consumer, child: int) -> None:
    """Rounded shares may add up to more than 100."""
    simulator.processes(0, [Process(pid=os.getpid(), used=MIB, sm=60, mem=1), Process(pid=child, used=MIB, sm=41, mem=1)])
    assert consumer.read(0).share["gpu"] == 100


def test_a_share_of_more_memory_than_there_is(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """It is no percentage."""
    simulator.processes(0, [Process(pid=os.getpid(), used=2**60)])
    share = consumer.read(0).share
    assert "memoryAllocated" not in share


def test_a_share_without_some_of_the_board(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """What the board does not say, the share does not say."""
    simulator.gpu[0].set_field("POWER_AVERAGE", Ret.TIMEOUT)
    simulator.processes(0, [Process(pid=os.getpid(), used=MIB)])
    assert consumer.read(0).share.keys() == {"memoryAllocated", "memoryAllocatedBytes", "temp", "enforcedPowerLimitWatts"}


@pytest.mark.parametrize("kind", ["Compute", "Graphics", "MPSCompute"])
def test_lists_that_are_not_supported(simulate: Simulate, consume: Consume, kind: str) -> None:
    """Without the compute list nothing is known; without another one, only who stands in it."""
    simulator = simulate(gpus=1)
    simulator.processes(0, [Process(pid=1, kind="C"), Process(pid=2, kind="G"), Process(pid=3, kind="M")])
    fail(simulator, f"nvmlDeviceGet{kind}RunningProcesses_v3", None, Ret.NOT_SUPPORTED)
    consumer = consume()
    seen = consumer.read(0)
    expected = {"Compute": None, "Graphics": [1, 3], "MPSCompute": [1, 2]}[kind]
    assert (None if seen.processes is None else [process.pid for process in seen.processes]) == expected
    assert seen.unlisted == (unavailable(Ret.NOT_SUPPORTED) if kind == "Compute" else None)
    assert consumer.later(1.0).unlisted == seen.unlisted
    before = simulator.count(f"nvmlDeviceGet{kind}RunningProcesses_v3")
    consumer.later(1.0)
    assert simulator.count(f"nvmlDeviceGet{kind}RunningProcesses_v3") == before


OTHERS = {"G": "nvmlDeviceGetGraphicsRunningProcesses_v3", "M": "nvmlDeviceGetMPSComputeRunningProcesses_v3"}
"""The lists beside that of computing processes, by what stands in them."""


def listed(seen: Seen) -> dict[int, str]:
    """The processes of a reading with their types."""
    return {process.pid: process.type for process in seen.processes or ()}


def asked(simulator: NvmlSimulator, consumer: Consumer, seconds: int) -> dict[str, int]:
    """How often each of the other lists is read in so many readings, one a second."""
    before = {kind: simulator.count(function) for kind, function in OTHERS.items()}
    for _ in range(seconds):
        consumer.later(1.0)
    return {kind: simulator.count(function) - before[kind] for kind, function in OTHERS.items()}


def test_lists_that_stay_empty_are_read_every_ten_seconds(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """Those of graphics and of MPS processes, beside a computing process that has been there for a while as without one."""
    consumer.read(0)
    assert asked(simulator, consumer, 30) == {"G": 3, "M": 3}
    simulator.processes(0, [Process(pid=STRANGER, used=MIB, sm=50)])
    asked(simulator, consumer, 20)
    compute = "nvmlDeviceGetComputeRunningProcesses_v3"
    before = simulator.count(compute)
    assert asked(simulator, consumer, 30) == {"G": 3, "M": 3}
    assert simulator.count(compute) - before == 30


@pytest.mark.parametrize("kind", OTHERS)
def test_a_process_of_another_list_is_late_by_ten_seconds_at_most(simulator: NvmlSimulator, consumer: Consumer, kind: str) -> None:
    """Once it is listed its list is read with the others: what it holds is as fresh, and it leaves at the next reading."""
    simulator.processes(0, [Process(pid=STRANGER, used=MIB, sm=50)])
    consumer.read(0)
    asked(simulator, consumer, 25)
    both = [Process(pid=STRANGER, used=MIB, sm=50), Process(pid=STRANGER + 1, kind=kind, used=2 * MIB)]
    simulator.processes(0, both)
    late = next(seconds for seconds in range(1, 100) if STRANGER + 1 in listed(consumer.later(1.0)))
    assert late <= 10
    assert listed(consumer.later(1.0)) == {STRANGER: "compute", STRANGER + 1: "graphics" if kind == "G" else "compute"}
    quiet = {"G": "M", "M": "G"}[kind]
    counts = asked(simulator, consumer, 30)
    assert (counts[kind], counts[quiet]) == (30, 3)
    simulator.processes(0, [both[0], Process(pid=STRANGER + 1, kind=kind, used=3 * MIB)])
    assert [process.memory_bytes for process in consumer.later(1.0).processes or ()] == [MIB, 3 * MIB]
    simulator.processes(0, both[:1])
    assert listed(consumer.later(1.0)) == {STRANGER: "compute"}
    simulator.processes(0, both)
    assert STRANGER + 1 in listed(consumer.later(5.0)), "a list that was emptied just now is watched"
    simulator.processes(0, both[:1])
    asked(simulator, consumer, 20)
    assert asked(simulator, consumer, 30) == {"G": 3, "M": 3}


@pytest.mark.parametrize("kind", OTHERS)
def test_a_process_of_another_list_alone(simulator: NvmlSimulator, consumer: Consumer, kind: str) -> None:
    """On a device on which nothing computes: its share and its utilisation come with it, and go with it."""
    consumer.read(0)
    asked(simulator, consumer, 25)
    simulator.processes(0, [Process(pid=os.getpid(), kind=kind, used=MIB, sm=30)])
    found = next(seen for seen in (consumer.later(1.0) for _ in range(10)) if seen.processes)
    assert [(process.memory_bytes, process.utilization) for process in found.processes or ()] == [(MIB, 30)]
    assert (found.share["memoryAllocatedBytes"], found.share["gpu"]) == (MIB, 30)
    simulator.processes(0, [])
    gone = consumer.later(1.0)
    assert (gone.processes, gone.share) == ((), {})


def test_a_computing_process_that_turns_up_is_looked_for_in_all_lists(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """One that computes and draws has its type at once, and one that begins to draw some seconds later too."""
    consumer.read(0)
    asked(simulator, consumer, 25)
    old, new = Process(pid=STRANGER, used=MIB), Process(pid=STRANGER + 1, kind="CG", used=MIB)
    simulator.processes(0, [old, new])
    assert listed(consumer.later(1.0)) == {STRANGER: "compute", STRANGER + 1: "compute+graphics"}
    simulator.processes(0, [old])
    asked(simulator, consumer, 25)
    simulator.processes(0, [old, Process(pid=STRANGER + 1, used=MIB)])
    asked(simulator, consumer, 5)
    simulator.processes(0, [old, new])
    assert listed(consumer.later(1.0)) == {STRANGER: "compute", STRANGER + 1: "compute+graphics"}


def test_what_computing_processes_hold_wakes_no_other_list(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """Neither other numbers of the same processes nor one that ends."""
    simulator.processes(0, [Process(pid=STRANGER + number, used=MIB) for number in range(3)])
    consumer.read(0)
    asked(simulator, consumer, 30)
    found = dict.fromkeys(OTHERS, 0)
    for second in range(20):
        simulator.processes(0, [Process(pid=STRANGER + number, used=(second + 2) * MIB) for number in range(3 if second < 10 else 2)])
        found = {kind: found[kind] + count for kind, count in asked(simulator, consumer, 1).items()}
    assert found == {"G": 2, "M": 2}


@pytest.mark.parametrize("kind", OTHERS)
def test_another_list_that_fails_is_read_until_it_answers(simulator: NvmlSimulator, consumer: Consumer, kind: str) -> None:
    """What is not known does not rest; the other lists are not read for it more often than at their pace."""
    consumer.read(0)
    asked(simulator, consumer, 25)
    simulator.rule(OTHERS[kind], 0, error=Ret.TIMEOUT)
    asked(simulator, consumer, 10)
    counts = asked(simulator, consumer, 20)
    assert (counts[kind], counts[{"G": "M", "M": "G"}[kind]]) == (20, 2)
    simulator.processes(0, [Process(pid=STRANGER, kind=kind, used=MIB)])
    assert listed(consumer.later(1.0)) == {}
    simulator.clear_rules()
    assert listed(consumer.later(1.0)) == {STRANGER: "graphics" if kind == "G" else "compute"}


def test_calls_that_are_bound_anew_have_all_lists(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """Another consumer of the same driver that wants more, and a driver that is opened by itself, wait for nothing."""
    some = Consumer(consumer.clock, metrics="processes")
    some.given()
    some.given(5.0)
    simulator.processes(0, [Process(pid=STRANGER, kind="G", used=MIB)])
    assert some.given(1.0).processes == ()
    assert some.another(metrics="processes").given(1.0).processes == ()
    assert some.another().given(1.0).processes == (DeviceProcess(STRANGER, "graphics", MIB),)
    fresh = Consumer(consumer.clock)
    assert listed(fresh.read(0)) == {STRANGER: "graphics"}
    fresh.driver.close()
    some.driver.close()
