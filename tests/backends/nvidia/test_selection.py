"""Calls that give nothing that is wanted are not made, whichever sampler reads the same driver too."""

from __future__ import annotations

import os

import pytest

from accelmetrics import Sampler
from accelmetrics.backends.contract import Reading
from tests.backends.nvidia.machine import Consume, Consumer, called
from tests.simulators.nvml import NvmlSimulator, Process
from tests.support.waiting import HANG

PROCESS_LISTS = {f"nvmlDeviceGet{kind}RunningProcesses_v3" for kind in ("Compute", "Graphics", "MPSCompute")}
GPM = {"nvmlGpmSampleGet", "nvmlGpmMetricsGet"}


def functions(simulator: NvmlSimulator, consumer: Consumer, seconds: float = 100.0, unit: int = 0) -> set[str]:
    """What a reading calls when everything is due."""
    before = simulator.calls()
    consumer.given(seconds, unit)
    return {name for name, _ in called(before, simulator.calls())} - {"nvmlDeviceGetMigMode", "nvmlDeviceGetGpuFabricInfoV"}


def names(reading: Reading) -> set[str]:
    return {name for block in reading.blocks for name in block.names}


@pytest.mark.parametrize(
    ("metrics", "calls"),
    [
        ("temp", {"nvmlDeviceGetTemperature"}),
        ("gpu.2.temp", {"nvmlDeviceGetTemperature"}),
        ("memoryAllocated", {"nvmlDeviceGetMemoryInfo_v2"}),
        ("powerPercent", {"nvmlDeviceGetPowerUsage", "nvmlDeviceGetEnforcedPowerLimit"}),
        ("energyJoules", {"nvmlDeviceGetFieldValues"}),
        ("throttled", {"nvmlDeviceGetCurrentClocksEventReasons"}),
        ("throttle.*,-throttle.gpuIdle", {"nvmlDeviceGetCurrentClocksEventReasons"}),
        ("smActive", GPM),
        ("process.memoryAllocatedBytes", PROCESS_LISTS),
        ("processes", PROCESS_LISTS),
        ("temp,processes", PROCESS_LISTS | {"nvmlDeviceGetTemperature"}),
        ("process.temp", PROCESS_LISTS | {"nvmlDeviceGetTemperature"}),
        ("fanSpeed,-gpu.*", set()),
        ("cpu", set()),
    ],
)
def test_only_calls_for_wanted_metrics_are_made(simulator: NvmlSimulator, consume: Consume, metrics: str, calls: set[str]) -> None:
    """With what they are computed from; the second reading of a device has all that its first one looks up behind it."""
    consumer = consume(metrics=metrics)
    consumer.given()
    assert functions(simulator, consumer) == calls
    assert functions(simulator, consumer) == calls


def test_core_takes_few_calls_a_tick(simulator: NvmlSimulator, consume: Consume) -> None:
    """Over ten seconds, once a second: about half of what everything takes; and ``standard`` takes no profiling samples."""
    costs = {}
    for metrics in ("all", "standard", "core"):
        consumer = consume(metrics=metrics)
        consumer.given()
        before = simulator.calls()
        for _ in range(10):
            consumer.given(1.0)
        counts = called(before, simulator.calls())
        costs[metrics] = sum(counts.values()) / 10
        assert bool({name for name, _ in counts} & GPM) == (metrics == "all")
    assert costs["core"] <= 8 < costs["standard"] < costs["all"]


def test_what_is_wanted_is_what_everything_has(simulator: NvmlSimulator, consume: Consume) -> None:
    """The same values, by the quick way as by the slow one."""
    simulator.processes(0, [Process(os.getpid(), used=2**30)])
    every, some = consume(), consume(metrics="core,process.powerPercent")
    for _ in range(3):
        whole, part = every.given(1.0), some.given(1.0)
        values = {name: value for block in whole.blocks for name, value in zip(block.names, block.values, strict=True)}
        found = {name: value for block in part.blocks for name, value in zip(block.names, block.values, strict=True)}
        assert found.keys() >= {"gpu", "temp", "powerWatts", "powerPercent", "energyJoules", "smClock", "memoryAllocated"}
        assert found == {name: values[name] for name in found}


def test_a_consumer_that_wants_more_has_it_at_once(simulator: NvmlSimulator, consume: Consume) -> None:
    """Devices are bound anew for it; one that wants less than others costs nothing more."""
    first = consume(metrics="temp")
    first.given()
    second = first.another(metrics="temp,encoderUtilization,smClock,smActive")
    assert names(second.given()) >= {"temp", "encoderUtilization", "smClock"}
    assert "smActive" in names(second.given(1.0))
    assert "temp" in names(first.given())
    third = first.another(metrics="smClock")
    before = simulator.calls()
    assert "smClock" in names(third.given(0.1))
    assert not {name for name, _ in called(before, simulator.calls())} & {"nvmlDeviceGetEncoderUtilization", *GPM}


def test_instances_have_what_is_wanted_of_them(simulator: NvmlSimulator, consume: Consume) -> None:
    """Keys of instances are chosen by the same names, or by their own keys."""
    simulator.partition(0, ["3g.40gb"])
    consumer = consume(metrics="gpu.0.mig.*.memoryTotalBytes")
    unit = len(consumer.driver.devices) - 1
    assert "memoryTotalBytes" in names(consumer.given(unit=unit))
    assert functions(simulator, consumer, 0.1, unit) == {"nvmlDeviceGetMemoryInfo_v2"}


def test_a_sampler_owes_what_it_was_asked_for(simulator: NvmlSimulator) -> None:
    """Nothing else is in its snapshots, nor missing from them."""
    with Sampler(["nvidia"], metrics="core,-energyJoules,fanSpeed", timeout=HANG) as sampler:
        snapshot = sampler.sample()
    found = {key.partition(".")[2].partition(".")[2] for key in (*snapshot.metrics, *snapshot.unavailable)}
    memory = {"memoryAllocated", "memoryAllocatedBytes", "memoryTotalBytes"}
    core = {"gpu", "throttled", *memory, "temp", "powerWatts", "enforcedPowerLimitWatts", "smClock"}
    assert found == core | {"fanSpeed"}
    assert not snapshot.processes
    assert {"wanted" in why.detail for why in snapshot.unlisted.values()} == {True}
    assert len(snapshot.unlisted) == len(snapshot.devices)
