"""The driver's counters, where the tool is not installed."""

from __future__ import annotations

import os
import shutil
from typing import Any

import pytest

from accelmetrics import Sampler
from accelmetrics.backends.contract import ReadOptions
from accelmetrics.backends.kit.polled import PolledReader
from accelmetrics.backends.neuron.sysfs import polled
from accelmetrics.schemas.errors import Reason, SourceError
from accelmetrics.testing import FakeClock
from tests.backends.neuron.machine import once, sampler, until
from tests.simulators.neuron import SysfsTree
from tests.support.readings import values

UTILIZATION = "neuroncore_utilization"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def reader(tree: SysfsTree, clock: FakeClock) -> PolledReader:
    """One chip with two cores, of which the first has been used."""
    tree.add_chip(0)
    tree.count(0, 0, microseconds=1_000_000, flops=500)
    return polled(clock).open().reader(ReadOptions(pid=1))


def test_utilisation_is_the_share_of_time_in_use(reader: PolledReader, tree: SysfsTree, clock: FakeClock) -> None:
    first = reader.read(0, [])
    assert first.unavailable[UTILIZATION].reason == first.unavailable["flops"].reason == Reason.NEEDS_INTERVAL
    clock.advance(2.0)
    tree.count(0, 0, microseconds=1_500_000, flops=900)
    second = values(reader.read(0, []))
    assert second[UTILIZATION] == 25.0
    assert second["flops"] == 200.0
    clock.advance(2.0)
    assert values(reader.read(0, []))[UTILIZATION] == 0.0, "an idle core that has counted before is measured at 0"


def test_counters_are_read_once_a_second_after_the_first_rate(reader: PolledReader, tree: SysfsTree, clock: FakeClock) -> None:
    reader.read(0, [])
    clock.advance(0.1)
    tree.count(0, 0, microseconds=1_050_000, flops=510)
    second = reader.read(0, [])
    assert values(second)[UTILIZATION] == pytest.approx(50.0)
    tree.count(0, 0, microseconds=1_350_000, flops=610)
    clock.advance(0.5)
    assert reader.read(0, []) is second
    clock.advance(0.5)
    third = reader.read(0, [])
    assert values(third)[UTILIZATION] == pytest.approx(30.0)
    assert values(third)["flops"] == pytest.approx(100.0)


def test_a_counter_that_has_never_counted_is_no_zero(reader: PolledReader, clock: FakeClock) -> None:
    reader.read(1, [])
    clock.advance(1.0)
    assert reader.read(1, []).unavailable[UTILIZATION].reason == Reason.NOT_IN_USE


def test_more_time_than_has_passed_is_refused(reader: PolledReader, tree: SysfsTree, clock: FakeClock) -> None:
    reader.read(0, [])
    clock.advance(1.0)
    tree.count(0, 0, microseconds=5_000_000, flops=500)
    assert reader.read(0, []).unavailable[UTILIZATION].reason == Reason.INVALID_VALUE


def test_every_other_value_and_its_reason(tree: SysfsTree) -> None:
    tree.add_chip(0)
    tree.add_chip(1)
    snapshot = once()
    assert [(device.key, device.name, device.architecture, device.serial) for device in snapshot.devices] == [
        ("trn.0", "Trainium1", "NCv2", "0xabc0"),
        ("trn.1", "Trainium1", "NCv2", "0xabc0"),
        ("trn.2", "Trainium1", "NCv2", "0xabc1"),
        ("trn.3", "Trainium1", "NCv2", "0xabc1"),
    ]
    assert {key: value for key, value in snapshot.metrics.items() if key.startswith("trn.3.")} == {
        "trn.3.neuroncore_memory_usage.constants": 20_001,
        "trn.3.neuroncore_memory_usage.model_code": 20_004,
        "trn.3.neuroncore_memory_usage.model_shared_scratchpad": 20_005,
        "trn.3.neuroncore_memory_usage.runtime_memory": 20_006,
        "trn.3.neuroncore_memory_usage.tensors": 20_007,
    }
    host = {"application_memory": 3000, "constants": 3002, "dma_buffers": 3004, "tensors": 3010}
    assert {key: value for key, value in snapshot.metrics.items() if key.count(".") < 3 and not key.startswith("trn.3")} == {
        "trn.host_total_memory_usage": 30_000,
        "trn.neuron_device_total_memory_usage": 5_000_000,
        **{f"trn.host_memory_usage.{name}": value for name, value in host.items()},
        **{f"trn.host_total_memory_usage.{name}": value for name, value in host.items()},
        "trn.neuron_device_count": 2,
        "trn.neuroncore_per_device_count": 2,
    }
    assert snapshot.metrics["trn.device.1.mem_ecc_uncorrected"] == 100
    assert snapshot.metrics["trn.device.1.sram_ecc_uncorrected"] == 101
    assert snapshot.metrics["trn.device.1.mem_ecc_repairable_uncorrected"] == 102
    for key in ("trn.device.0.mem_ecc_corrected", "trn.execution_summary.completed", "trn.neuron_runtime_count"):
        assert snapshot.unavailable[key].reason == Reason.NOT_SUPPORTED
    assert snapshot.backends[0].source == "sysfs"


def test_rates_come_with_whatever_reading_is_the_second(tree: SysfsTree) -> None:
    """The counters are read when asked: a second reading is one, however soon it comes."""
    tree.add_chip(0)
    tree.count(0, 0, microseconds=1, flops=1)
    with Sampler(["neuron"]) as made:
        made.sample()
        assert made.sample().metrics["trn.0.neuroncore_utilization"] == 0.0


def test_a_watched_process_cannot_be_told_from_others(tree: SysfsTree) -> None:
    tree.add_chip(0)
    snapshot = once(pid=os.getpid())
    for key in ("trn.0.neuroncore_utilization", "trn.0.neuroncore_memory_usage.tensors", "trn.host_memory_usage.tensors"):
        assert snapshot.unavailable[key].reason == Reason.NOT_SUPPORTED
        assert "do not tell processes apart" in snapshot.unavailable[key].detail
    assert snapshot.metrics["trn.device.0.mem_ecc_uncorrected"] == 0


def test_local_rank_picks_a_core(tree: SysfsTree, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.add_chip(0)
    monkeypatch.setenv("LOCAL_RANK", "1")
    snapshot = once()
    assert [device.key for device in snapshot.devices] == ["trn.1"]
    assert snapshot.metrics["trn.neuron_device_total_memory_usage"] == 1_000_000


# What may be wrong


@pytest.mark.parametrize(
    ("text", "reason"),
    [("garbage", Reason.PARSE_ERROR), ("", Reason.NOT_SUPPORTED), ("-5", Reason.INVALID_VALUE), (2**64 - 5, Reason.INVALID_VALUE)],
)
def test_a_file_that_holds_no_count(reader: PolledReader, tree: SysfsTree, text: object, reason: Reason) -> None:
    tree.write("neuron0/neuron_core0/stats/memory_usage/device_mem/tensors/total", text)
    tree.write("neuron0/stats/memory_usage/host_mem/total", text)
    reading = reader.read(0, [])
    assert reading.unavailable["neuroncore_memory_usage.tensors"].reason == reason
    assert values(reading)["neuroncore_memory_usage.constants"] == 5001
    assert reader.read(2, []).unavailable["trn.host_total_memory_usage"].reason == reason


def test_a_tree_of_another_release(reader: PolledReader, tree: SysfsTree) -> None:
    """A node that was moved is missing, with its path; one part of a sum makes the sum missing."""
    shutil.rmtree(tree.neuron / "neuron0/neuron_core0/stats/memory_usage")
    why = reader.read(0, []).unavailable["neuroncore_memory_usage.tensors"]
    assert why.reason == Reason.NOT_SUPPORTED
    assert why.detail.startswith("this driver has no /neuron0/neuron_core0/stats/memory_usage/device_mem/tensors/total (neuron driver 2.31")
    assert reader.read(2, []).unavailable["trn.neuron_device_total_memory_usage"].reason == Reason.NOT_SUPPORTED


def test_a_chip_that_turns_up_has_the_cores_listed_again(tree: SysfsTree) -> None:
    """Under the next numbers; the cores that were there keep theirs."""
    tree.add_chip(0)
    with sampler() as made:
        assert [device.key for device in made.sample().devices] == ["trn.0", "trn.1"]
        tree.add_chip(1)
        snapshot = until(made, lambda seen: "trn.3.neuroncore_memory_usage.tensors" in seen.metrics)
        assert [device.key for device in snapshot.devices] == ["trn.0", "trn.1", "trn.2", "trn.3"]
        assert snapshot.metrics["trn.neuron_device_count"] == 2


def test_a_picked_core_is_not_opened_again_for_the_others(tree: SysfsTree, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.add_chip(0)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert values(polled(clock).open().reader(ReadOptions(pid=1)).read(1, []))["trn.neuron_device_count"] == 1


def test_a_driver_without_cores(tree: SysfsTree, clock: FakeClock) -> None:
    tree.write("neuron0/core_count", 2)
    with pytest.raises(SourceError) as caught:
        polled(clock).open()
    assert caught.value.reason == Reason.DRIVER_UNAVAILABLE
    assert "neuron driver 2.31 moved counters" in caught.value.message
    assert caught.value.advice == "install neuron-monitor: package aws-neuronx-tools"


def test_progress_is_reported_for_every_file(reader: PolledReader) -> None:
    progress: list[Any] = []
    reader.read(0, progress)
    assert len(progress) == 2 + 7, "the sources, and each file"


def test_nothing_is_ever_opened_for_writing(tree: SysfsTree, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counters are cleared by writing to them, and ``reset`` resets the chip."""
    tree.add_chip(0)
    flags: set[int] = set()
    opened = os.open

    def noted(path: Any, flag: int, *args: Any, **kwargs: Any) -> int:
        if str(tree.neuron) in str(path):
            flags.add(flag)
        return opened(path, flag, *args, **kwargs)

    monkeypatch.setattr(os, "open", noted)
    before = {path: path.stat().st_mtime_ns for path in tree.neuron.rglob("*") if path.is_file()}
    with Sampler(["neuron"]) as made:
        made.sample()
    assert flags == {os.O_RDONLY}
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_the_power_of_each_chip(tree: SysfsTree) -> None:
    """Where nothing was sampled, zeros stand in the file."""
    for chip in range(4):
        tree.add_chip(chip)
    tree.power(0, 10.25, 80.5, 42)
    tree.power(1, status="POWER_STATUS_NO_DATA")
    tree.power(2, status="POWER_STATUS_INVALID")
    snapshot = once()
    assert {key: value for key, value in snapshot.metrics.items() if "power" in key} == {
        "trn.device.0.power_utilization.min": 10.25,
        "trn.device.0.power_utilization.max": 80.5,
        "trn.device.0.power_utilization.avg": 42,
    }
    reasons = {key: why.reason for key, why in snapshot.unavailable.items() if key.endswith("power_utilization.avg")}
    assert reasons == {
        "trn.device.1.power_utilization.avg": Reason.NOT_SUPPORTED,
        "trn.device.2.power_utilization.avg": Reason.DRIVER_ERROR,
    }


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("POWER_STATUS_VALID,1,2", Reason.DRIVER_ERROR),
        ("POWER_STATUS_VALID,1,2,3,4,5", Reason.DRIVER_ERROR),
        ("POWER_STATUS_VALID,1,2,3,many", Reason.PARSE_ERROR),
        ("POWER_STATUS_VALID,1,2,3,101", Reason.INVALID_VALUE),
        ("12.5", Reason.DRIVER_ERROR),
    ],
)
def test_power_that_is_not_understood(tree: SysfsTree, said: str, reason: Reason) -> None:
    tree.add_chip(0)
    tree.write("neuron0/stats/power/utilization", said)
    assert once().unavailable["trn.device.0.power_utilization.avg"].reason == reason
