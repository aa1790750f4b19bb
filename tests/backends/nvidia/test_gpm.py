"""GPM: from the samples of two consecutive readings of one consumer, never by sleeping."""

from __future__ import annotations

import threading
import time

import pytest

from tests.backends.nvidia.machine import Consume, Consumer, Simulate
from tests.backends.nvidia.test_faults import GPM
from tests.simulators.nvml import NvmlSimulator, Ret

SAMPLE, METRICS, ALLOC, FREE = "nvmlGpmSampleGet", "nvmlGpmMetricsGet", "nvmlGpmSampleAlloc", "nvmlGpmSampleFree"


def test_the_first_reading_needs_an_interval(consumer: Consumer) -> None:
    """There is nothing yet to take a difference from; the second reading has all."""
    first = consumer.read(0)
    assert {name: first.reason(name) for name in GPM} == dict.fromkeys(GPM, "needs_interval")
    assert consumer.later(0.1).metrics.keys() >= GPM


def test_no_reading_sleeps(consumer: Consumer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The 100 ms between two samples are those between two readings."""
    consumer.read(1)  # begins to listen for Xid errors, on a thread whose start is waited for
    waited: list[object] = []
    here, wait = threading.current_thread(), threading.Condition.wait

    def noted_wait(condition: threading.Condition, timeout: float | None = None) -> bool:
        if threading.current_thread() is here:
            waited.append(timeout)
        return wait(condition, timeout)

    monkeypatch.setattr(time, "sleep", waited.append)
    monkeypatch.setattr(threading.Condition, "wait", noted_wait)
    consumer.read(0)
    assert "smActive" in consumer.later(0.2).metrics
    assert waited == []


def test_every_reading_takes_one_sample(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """Each sample ends one interval and begins the next."""
    consumer.read(0)
    for share in (10.0, 20.0, 30.0):
        simulator.gpu[0].set(gpm={"SM_UTIL": share})
        assert consumer.later(0.2).metrics["smActive"] == share
    assert (simulator.count(SAMPLE), simulator.count(METRICS)) == (4, 3)


def test_a_reading_too_soon_serves_the_last_values(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """Below two refreshes of NVML's counters the last values stand, the very same block."""
    consumer.read(0)
    before = consumer.later(0.2)
    simulator.gpu[0].set(gpm={"SM_UTIL": 99.0})
    soon = consumer.later(0.1)
    assert soon.metrics["smActive"] == before.metrics["smActive"]
    blocks = [next(block for block in seen.reading.blocks if "smActive" in block.names) for seen in (before, soon)]
    assert blocks[0] is blocks[1]
    assert simulator.count(SAMPLE) == 2
    assert consumer.later(0.095).metrics["smActive"] == 99.0


def test_too_soon_after_the_first_sample(consumer: Consumer) -> None:
    """Below 100 ms NVML's metrics mean nothing: the interval is still to come."""
    consumer.read(0)
    assert consumer.later(0.05).reason("smActive") == "needs_interval"
    assert "smActive" in consumer.later(0.06).metrics


def test_two_consumers_do_not_shorten_each_others_intervals(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """Each has samples of its own: what one reads in between changes nothing for the other."""
    other = consumer.another()
    consumer.read(0)
    for _ in range(5):
        consumer.clock.now += 0.03
        other.read(0)
    assert "smActive" in consumer.read(0).metrics
    assert other.read(0).metrics.keys() >= GPM
    assert simulator.count(ALLOC) == 4


@pytest.mark.parametrize("unit", [1, 3])
def test_a_consumer_that_wants_more_leaves_the_intervals_of_others_alone(simulator: NvmlSimulator, consume: Consume, unit: int) -> None:
    """The device is bound anew for it; the samples that were taken before stay good, also those of an instance."""
    simulator.partition(0, ["3g.40gb"])
    first = consume(metrics="smActive")
    first.given(unit=unit)
    first.another(metrics="smActive,memoryAllocated").given(0.2, unit)
    assert "smActive" in {name for block in first.given(unit=unit).blocks for name in block.names}


def test_gpus_have_samples_of_their_own(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """The metrics of one GPU never come from another's samples."""
    for unit in range(3):
        simulator.gpu[unit].set(gpm={"SM_UTIL": 11.0 * (unit + 1)})
        consumer.read(unit)
    consumer.clock.now += 0.2
    assert [consumer.read(unit).metrics["smActive"] for unit in range(3)] == [11.0, 22.0, 33.0]


def test_one_metric_that_fails(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """Its own return code is its reason; the other eleven stay."""
    consumer.read(0)
    simulator.gpu[0].set(gpm={"FP64_UTIL": Ret.NO_PERMISSION})
    seen = consumer.later(0.2)
    assert seen.reason("pipeFp64Active") == "no_permission"
    assert seen.metrics.keys() >= GPM - {"pipeFp64Active"}
    again = consumer.later(0.2)
    assert again.reading.unavailable is seen.reading.unavailable
    assert [new.names is old.names for new, old in zip(again.reading.blocks, seen.reading.blocks, strict=True)] == [True] * 9
    simulator.gpu[0].set(gpm={"FP64_UTIL": 5.0})
    assert consumer.later(0.2).metrics["pipeFp64Active"] == 5.0


IMPOSSIBLE = [
    *(("SM_OCCUPANCY", "smOccupancy", value) for value in (float("nan"), float("inf"), float("-inf"), -1.0, 150.0)),
    *(("PCIE_RX_PER_SEC", "pcieRxBytes", value) for value in (float("nan"), -1.0, 2.0**30)),
    ("NVLINK_TOTAL_RX_PER_SEC", "nvlinkRxBytes", 2.0**30),
]


@pytest.mark.parametrize(("metric", "name", "value"), IMPOSSIBLE)
def test_a_value_that_cannot_be(simulator: NvmlSimulator, consumer: Consumer, metric: str, name: str, value: float) -> None:
    """NaN, shares outside 0–100, negative rates and traffic that no link carries are missing, and nothing else."""
    consumer.read(0)
    simulator.gpu[0].set(gpm={metric: value})
    seen = consumer.later(0.2)
    assert {each for each in seen.reasons if seen.reason(each) == "invalid_value"} == {name}
    assert seen.metrics.keys() >= GPM - {name}


def test_a_share_rounded_above_the_whole(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """100.0002 % is 100 %."""
    consumer.read(0)
    simulator.gpu[0].set(gpm={"SM_UTIL": 100.0002})
    assert consumer.later(0.2).metrics["smActive"] == 100.0


def test_a_sample_that_fails_does_not_spoil_the_next(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """The sample before stays good, so the next reading has metrics at once."""
    consumer.read(0)
    simulator.rule(SAMPLE, 0, error=Ret.TIMEOUT)
    assert consumer.later(0.2).reason("smActive") == "timed_out"
    simulator.clear_rules()
    assert "smActive" in consumer.later(0.2).metrics


def test_a_gpu_without_gpm(simulate: Simulate, consume: Consume) -> None:
    """It says so, once, and is not sampled."""
    simulator = simulate(gpus=2, profile="a100")
    consumer = consume(metrics="all,-pcieTxBytes,-pcieRxBytes")
    consumer.given()
    assert consumer.given(0.2).unavailable["smActive"].reason == "not_supported"
    assert simulator.count(SAMPLE) == simulator.count(ALLOC) == 0
    assert simulator.calls()[("nvmlGpmQueryDeviceSupport", 0)] == 1


def test_samples_are_freed(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """Closing gives back what every consumer took."""
    other = consumer.another()
    for unit in range(3):
        consumer.read(unit)
        other.read(unit)
    assert simulator.count(ALLOC) == 12
    consumer.driver.close()
    assert simulator.count(FREE) == 12


def test_consumers_that_come_and_go_cost_no_samples(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """The samples of a consumer that is gone are lent to the next one."""
    for _ in range(10):
        passing = consumer.another()
        passing.read(0)
        assert "smActive" in passing.later(0.2).metrics
        del passing
    assert simulator.count(ALLOC) == 2


def test_half_an_allocation_is_given_back(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """When the second buffer is refused, the first is freed."""
    simulator.rule(ALLOC, error=Ret.MEMORY, after=1)
    assert consumer.read(0).reason("smActive") == "driver_error"
    assert simulator.count(FREE) == 1
    consumer.later(0.2)
    assert simulator.count("nvmlGpmQueryDeviceSupport") == 1, "whether there is GPM is known"
