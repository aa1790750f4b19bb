"""GPUs that share the host's memory: known by their product, and never by what they refuse."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from accelmetrics.backends.nvidia.nvml import unavailable
from tests.backends.nvidia.machine import Consume, Simulate, fail, write_tree
from tests.simulators.nvml import NvmlSimulator, Process, Ret

MEMINFO = "MemTotal:       1000 kB\nMemFree:         100 kB\nMemAvailable:    400 kB\nSwapTotal:      9000 kB\nSwapFree:       9000 kB\n"
MEMORY = ("memoryTotalBytes", "memoryAllocatedBytes", "memoryFreeBytes", "memoryAllocated")
CALL = "nvmlDeviceGetMemoryInfo_v2"
KIB = 1024


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host with 1,000 KiB of memory, 400 of them available, and swap that is none of it."""
    write_tree(tmp_path, {"/proc/meminfo": MEMINFO, "/proc/sys/kernel/pid_max": "4194304\n"})
    monkeypatch.setenv("ACCELMETRICS_SYSROOT", str(tmp_path))
    return tmp_path


@pytest.fixture
def simulator(host: Path, simulate: Simulate) -> NvmlSimulator:
    """One GPU that shares the host's memory."""
    return simulate(gpus=1, profile="gb10")


def test_a_device_holds_what_its_processes_hold(simulator: NvmlSimulator, consume: Consume) -> None:
    """The total is the host's, without swap. What else the host uses is not the device's, and what is free is not known."""
    simulator.processes(0, [Process(pid=5, used=100 * KIB), Process(pid=6, kind="G", used=50 * KIB)])
    consumer = consume()
    seen = consumer.read(0)
    assert [seen.metrics.get(name) for name in MEMORY] == [1000 * KIB, 150 * KIB, None, 15.0]
    assert seen.reason("memoryFreeBytes") == "not_supported"
    device = consumer.driver.devices[0]
    assert (device.unified, device.memory_total_bytes) == (True, 1000 * KIB)
    simulator.processes(0, [])
    assert consumer.later(10.0).metrics["memoryAllocatedBytes"] == 0


def test_what_a_process_holds_may_not_be_known(simulator: NvmlSimulator, consume: Consume) -> None:
    """A sum that lacks one is none."""
    simulator.processes(0, [Process(pid=5, used=100 * KIB), Process(pid=6)])
    seen = consume().read(0)
    assert seen.metrics["memoryTotalBytes"] == 1000 * KIB
    assert {seen.reason(name) for name in MEMORY[1:]} == {"not_supported"}


def test_processes_that_are_not_listed(simulator: NvmlSimulator, consume: Consume) -> None:
    """Their reason is that of the memory."""
    fail(simulator, "nvmlDeviceGetComputeRunningProcesses_v3", 0, Ret.NO_PERMISSION)
    assert consume().read(0).reasons["memoryAllocatedBytes"] == unavailable(Ret.NO_PERMISSION)


def test_what_the_driver_says_comes_first(simulator: NvmlSimulator, consume: Consume) -> None:
    """A driver that answers for such a device is believed, total and use."""
    simulator.gpu[0].set(memory_total=900 * KIB, memory_used=300 * KIB, memory_reserved=0)
    consumer = consume()
    metrics = consumer.read(0).metrics
    assert [metrics[name] for name in MEMORY] == [900 * KIB, 300 * KIB, 600 * KIB, pytest.approx(100 / 3)]
    assert consumer.driver.devices[0].memory_total_bytes == 900 * KIB


def test_it_is_read_at_every_reading(host: Path, simulator: NvmlSimulator, consume: Consume) -> None:
    """And NVML is not asked again for what it has not."""
    consumer = consume()
    consumer.read(0)
    write_tree(host, {"/proc/meminfo": MEMINFO.replace("1000", "2000")})
    simulator.reset_calls()
    assert consumer.later(0.2).metrics["memoryTotalBytes"] == 2000 * KIB
    assert simulator.count(CALL) == 0


SHARING = ["NVIDIA GB10", "NVIDIA Thor", "Orin (nvgpu)", "NVIDIA Jetson AGX Orin", "NVIDIA Tegra X2"]


@pytest.mark.parametrize(("name", "facts"), [*((name, {}) for name in SHARING), ("NVIDIA something", {"architecture": 11})])
def test_products_that_share_the_hosts_memory(simulator: NvmlSimulator, consume: Consume, name: str, facts: dict[str, Any]) -> None:
    """By their names, or by the architecture."""
    simulator.gpu[0].set(name=name, **facts)
    assert consume().identities()[0].unified


@pytest.mark.parametrize("name", ["NVIDIA H100 NVL", "NVIDIA GeForce RTX 4090", "NVIDIA GH200 480GB", "NVIDIA GB200", "NVIDIA GB100"])
def test_a_refusal_is_no_answer(host: Path, simulate: Simulate, consume: Consume, name: str) -> None:
    """A product with memory of its own that does not say how much lacks it, whether it refuses or answers zeros."""
    simulator = simulate(gpus=2)
    for gpu in simulator.gpu:
        gpu.set(name=name)
    fail(simulator, CALL, 0, Ret.NOT_SUPPORTED)
    simulator.gpu[1].set(memory_total=0, memory_used=0, memory_free=0, memory_reserved=0)
    consumer = consume()
    assert [(device.unified, device.memory_total_bytes) for device in consumer.identities()] == [(False, None)] * 2
    for unit, reason in enumerate(("not_supported", "invalid_value")):
        seen = consumer.read(unit)
        assert {seen.reason(name) for name in MEMORY} == {reason}


def test_the_parent_of_instances_that_has_no_memory_left(host: Path, simulate: Simulate, consume: Consume) -> None:
    """Its instances have theirs."""
    simulator = simulate(gpus=1)
    simulator.partition(0, ["3g.40gb"])
    consumer = consume()
    consumer.read(1)
    fail(simulator, CALL, 0, Ret.NOT_SUPPORTED)
    parent = consume()
    assert (parent.read(0).reason("memoryTotalBytes"), parent.driver.devices[0].unified) == ("not_supported", False)


def test_a_card_that_had_memory_keeps_it(host: Path, simulate: Simulate, consume: Consume) -> None:
    """What a card with memory of its own fails to say later is missing, not the host's."""
    simulator = simulate(gpus=1)
    consumer = consume()
    consumer.read(0)
    simulator.gpu[0].set(memory_total=0, memory_used=0, memory_free=0, memory_reserved=0)
    assert consumer.read(0).reason("memoryTotalBytes") == "invalid_value"
    simulator.rule(CALL, 0, error=Ret.NOT_SUPPORTED)
    assert consumer.read(0).reason("memoryTotalBytes") == "not_supported"


def test_a_host_that_does_not_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, simulate: Simulate, consume: Consume) -> None:
    """Then the total is missing, with the reason, and what is held is not."""
    monkeypatch.setenv("ACCELMETRICS_SYSROOT", str(tmp_path))
    simulator = simulate(gpus=1, profile="gb10")
    simulator.processes(0, [Process(pid=5, used=100 * KIB)])
    consumer = consume()
    seen = consumer.read(0)
    assert {seen.reason(name) for name in ("memoryTotalBytes", "memoryAllocated")} == {"not_supported"}
    assert "/proc/meminfo" in seen.reasons["memoryTotalBytes"].detail
    assert seen.metrics["memoryAllocatedBytes"] == 100 * KIB
    assert consumer.driver.devices[0].memory_total_bytes is None


def test_the_share_of_the_watched_process(host: Path, simulate: Simulate, consume: Consume) -> None:
    """It is a share of all that the device can address."""
    write_tree(host, {f"/proc/{os.getpid()}/status": f"PPid:\t1\nNSpid:\t{os.getpid()}\n"})
    simulator = simulate(gpus=1, profile="gb10")
    simulator.processes(0, [Process(pid=os.getpid(), used=100 * KIB)])
    assert consume().read(0).share["memoryAllocated"] == 10.0


def test_memory_without_the_list_of_processes(simulator: NvmlSimulator, consume: Consume) -> None:
    """A consumer that wants the memory alone has it."""
    simulator.processes(0, [Process(pid=5, used=100 * KIB)])
    reading = consume(metrics="memoryAllocatedBytes").given()
    values = {name: value for block in reading.blocks for name, value in zip(block.names, block.values, strict=True)}
    assert values["memoryAllocatedBytes"] == 100 * KIB


def test_a_device_whose_product_is_known_late(simulator: NvmlSimulator, consume: Consume) -> None:
    """Nothing is decided on a question that failed: the device is asked again."""
    simulator.rule("nvmlDeviceGetName", error=Ret.TIMEOUT)
    consumer = consume()
    assert consumer.read(0).reason("memoryTotalBytes") == "not_supported"
    simulator.clear_rules()
    assert consumer.later(1.5).metrics["memoryTotalBytes"] == 1000 * KIB
    assert consumer.driver.devices[0].unified
