"""How often what is read: measured on a clock that stands still until a test moves it."""

from __future__ import annotations

import os

import pytest

from tests.backends.nvidia.machine import Consumer, called
from tests.simulators.nvml import NvmlSimulator, Process, Ret

FAST = {
    *("nvmlDeviceGetUtilizationRates", "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetTemperature"),
    *("nvmlDeviceGetClockInfo", "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetFieldValues"),
}
GPM = {"nvmlGpmSampleGet", "nvmlGpmMetricsGet"}
SECOND = {
    *("nvmlDeviceGetEncoderUtilization", "nvmlDeviceGetDecoderUtilization", "nvmlDeviceGetPerformanceState"),
    "nvmlDeviceGetComputeRunningProcesses_v3",
}
EMPTY = {"nvmlDeviceGetGraphicsRunningProcesses_v3", "nvmlDeviceGetMPSComputeRunningProcesses_v3"}
"""The lists that nothing is in here."""
TEN = EMPTY | {
    *("nvmlDeviceGetCurrPcieLinkGeneration", "nvmlDeviceGetCurrPcieLinkWidth", "nvmlDeviceGetBAR1MemoryInfo", "nvmlDeviceGetMigMode"),
    *("nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetSramEccErrorStatus"),
    *("nvmlDeviceGetMarginTemperature", "nvmlDeviceGetJpgUtilization", "nvmlDeviceGetOfaUtilization"),
    *("nvmlDeviceGetPersistenceMode", "nvmlDeviceGetComputeMode"),
}
"""Some of those that are called once in ten seconds."""
WANDB_KEYS = FAST - {"nvmlDeviceGetCurrentClocksEventReasons"} | GPM


def functions(simulator: NvmlSimulator, consumer: Consumer, seconds: float) -> set[str]:
    """What a reading some time later calls."""
    before = simulator.calls()
    consumer.later(seconds)
    return {name for name, _ in called(before, simulator.calls())}


def test_paces(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """Fast values at every reading, GPM at every second of ten a second, the others once a second and once in ten, statics once."""
    consumer.read(0)
    assert functions(simulator, consumer, 0.1) == FAST | GPM
    assert functions(simulator, consumer, 0.1) == FAST
    assert functions(simulator, consumer, 0.1) == FAST | GPM
    assert functions(simulator, consumer, 0.6) == FAST | GPM
    assert functions(simulator, consumer, 0.1) == FAST | SECOND
    assert functions(simulator, consumer, 0.9) == FAST | GPM
    assert functions(simulator, consumer, 0.1) == FAST | SECOND
    assert functions(simulator, consumer, 8.0) >= FAST | GPM | SECOND | TEN
    assert functions(simulator, consumer, 9.0) == FAST | GPM | SECOND
    assert functions(simulator, consumer, 1000.0) >= FAST | GPM | SECOND | TEN


def test_a_reading_a_moment_early_finds_slow_values_due(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """A monitor's ticks are never exactly a second apart."""
    consumer.read(0)
    assert functions(simulator, consumer, 0.999) >= SECOND


def test_paces_are_shared_by_consumers(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """Slow values live with the driver: a second consumer finds them read, and gets them."""
    first = consumer.read(0)
    other = consumer.another()
    before = simulator.calls()
    seen = other.later(0.1)
    assert not {name for name, _ in called(before, simulator.calls())} & (SECOND | TEN)
    assert seen.metrics["enforcedPowerLimitWatts"] == first.metrics["enforcedPowerLimitWatts"]


def test_gpus_have_paces_of_their_own(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """Reading one GPU makes no other's values fresh."""
    consumer.read(0)
    before = simulator.calls()
    consumer.later(0.5, 1)
    assert {name for name, _ in called(before, simulator.calls(), SECOND | TEN)} == SECOND | TEN


def test_slow_values_follow_at_their_pace(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """A change shows when the value is read again, and not before."""
    consumer.read(0)
    simulator.gpu[0].set(power_limit_enforced_mw=333_000, encoder_util=77, power_mw=111_000)
    seen = consumer.later(0.5)
    assert (seen.metrics["enforcedPowerLimitWatts"], seen.metrics["encoderUtilization"], seen.metrics["powerWatts"]) == (700.0, 0, 111.0)
    assert seen.metrics["powerPercent"] == pytest.approx(111 / 700 * 100)
    seen = consumer.later(0.5)
    assert (seen.metrics["enforcedPowerLimitWatts"], seen.metrics["encoderUtilization"]) == (700.0, 77)
    seen = consumer.later(9.0)
    assert seen.metrics["enforcedPowerLimitWatts"] == 333.0
    assert seen.metrics["powerPercent"] == pytest.approx(111 / 333 * 100)


def test_reasons_change_with_what_is_missing(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """A mapping that was given out is never altered afterwards."""
    consumer.read(0)
    before = consumer.later(0.2).reading.unavailable
    words = dict(before)
    simulator.rule("nvmlDeviceGetTemperature", 0, error=Ret.TIMEOUT)
    after = consumer.later(0.2).reading.unavailable
    assert "temp" in after
    assert dict(before) == words


def test_a_failed_slow_value_is_asked_again(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """At the next reading, once, and then at its pace: a value that is missing for long costs no calls at every reading."""
    bar1 = "nvmlDeviceGetBAR1MemoryInfo"
    simulator.rule(bar1, 0, error=Ret.TIMEOUT)
    consumer.read(0)
    assert bar1 in functions(simulator, consumer, 0.1)
    assert functions(simulator, consumer, 0.1) == FAST
    assert bar1 in functions(simulator, consumer, 10.0)
    simulator.clear_rules()
    assert bar1 not in functions(simulator, consumer, 0.1)
    assert "bar1UsedBytes" in consumer.later(10.0).metrics


def test_a_value_that_is_asked_once_is_asked_until_it_is_known(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """What never changes and failed twice is asked for every ten seconds."""
    simulator.rule("nvmlDeviceGetMaxPcieLinkWidth", 0, error=Ret.TIMEOUT)
    consumer.read(0)
    assert consumer.later(0.1).reason("maxPcieLinkWidth") == "timed_out"
    simulator.clear_rules()
    assert consumer.later(10.0).metrics["maxPcieLinkWidth"] == 16
    assert "nvmlDeviceGetMaxPcieLinkWidth" not in functions(simulator, consumer, 10.0)


def test_progress_is_reported_call_by_call(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """One step per call into the driver, at every pace."""
    steps: list[object] = []
    before = simulator.calls()
    consumer.read(0, steps)
    assert len(steps) == sum(called(before, simulator.calls()).values())


def test_wandb_keys_take_eleven_calls_at_one_reading_a_second(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """With GPM, the processes and what is read every ten seconds, on a GPU that nothing uses and on one that is computed on."""
    simulator.processes(1, [Process(pid=os.getpid(), used=1 << 20, sm=50)])
    for unit in (0, 1):
        consumer.read(unit)
        for _ in range(20):
            consumer.later(1.0, unit)
        before = simulator.calls()
        for _ in range(10):
            consumer.later(1.0, unit)
        counts = called(before, simulator.calls())
        lists = {"nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v3"}
        wanted = WANDB_KEYS | lists | {"nvmlDeviceGetMigMode", "nvmlDeviceGetGpuFabricInfoV"}
        assert sum(count for (name, _), count in counts.items() if name in wanted) <= 11 * 10
        assert sum(counts.values()) <= 17 * 10


def test_wandb_keys_take_nine_calls_in_steady_state(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """W&B makes 13 calls a GPU, and 3 more for GPM."""
    consumer.read(0)
    before = simulator.calls()
    seen = consumer.later(0.2)
    counts = called(before, simulator.calls())
    graphics_clock = 1  # the third clock is a key that W&B documents and does not read
    assert sum(count for (name, _), count in counts.items() if name in WANDB_KEYS) - graphics_clock <= 9
    assert sum(counts.values()) <= 12
    wandb = {"gpu", "memory", "memoryAllocated", "memoryAllocatedBytes", "temp", "powerWatts", "enforcedPowerLimitWatts", "powerPercent"}
    assert seen.metrics.keys() >= wandb | {"energyJoules", "smClock", "memoryClock", "correctedMemoryErrors", "smActive", "nvlinkRxBytes"}
