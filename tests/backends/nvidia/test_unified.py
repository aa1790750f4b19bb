"""GPUs without memory of their own: the host's is theirs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.backends.nvidia.machine import Consumer, write_tree
from tests.simulators.nvml import NvmlSimulator, Process, Ret

MEMINFO = "MemTotal:       1000 kB\nMemFree:         100 kB\nMemAvailable:    400 kB\nSwapTotal:      9000 kB\nSwapFree:       9000 kB\n"
MEMORY = ("memoryTotalBytes", "memoryAllocatedBytes", "memoryFreeBytes", "memoryAllocated")


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host with 1,000 KiB of memory, 400 of them available, and swap that is none of it."""
    write_tree(tmp_path, {"/proc/meminfo": MEMINFO})
    monkeypatch.setenv("ACCELMETRICS_SYSROOT", str(tmp_path))
    return tmp_path


def test_memory_is_the_hosts(host: Path, simulate: Callable[..., NvmlSimulator], consume: Callable[..., Consumer]) -> None:
    """Total, and total less what is available; swap is left out; the device says that it is unified."""
    simulate(gpus=1, profile="gb10")
    consumer = consume()
    metrics = consumer.read(0).metrics
    assert [metrics[name] for name in MEMORY] == [1000 * 1024, 600 * 1024, 400 * 1024, 60.0]
    device = consumer.driver.devices[0]
    assert (device.unified, device.memory_total_bytes) == (True, 1000 * 1024)


def test_it_is_read_at_every_reading(host: Path, simulate: Callable[..., NvmlSimulator], consume: Callable[..., Consumer]) -> None:
    """And NVML is not asked again for what it has not."""
    simulator = simulate(gpus=1, profile="gb10")
    consumer = consume()
    consumer.read(0)
    write_tree(host, {"/proc/meminfo": MEMINFO.replace("400", "700")})
    simulator.reset_calls()
    assert consumer.later(0.2).metrics["memoryAllocatedBytes"] == 300 * 1024
    assert simulator.count("nvmlDeviceGetMemoryInfo_v2") == 0


def test_a_total_of_zero_means_the_same(host: Path, simulate: Callable[..., NvmlSimulator], consume: Callable[..., Consumer]) -> None:
    """Integrated GPUs answer the call with zeros."""
    simulator = simulate(gpus=2)
    simulator.gpu[1].set(memory_total=0, memory_used=0, memory_free=0, memory_reserved=0)
    consumer = consume()
    assert [device.unified for device in consumer.identities()] == [False, True]
    assert consumer.read(1).metrics["memoryTotalBytes"] == 1000 * 1024
    assert consumer.read(0).metrics["memoryTotalBytes"] == simulator.gpu[0].get("memory_total")


def test_a_card_that_had_memory_keeps_it(host: Path, simulator: NvmlSimulator, consumer: Consumer) -> None:
    """What a card with memory of its own fails to say later is missing, not the host's."""
    consumer.read(0)
    simulator.gpu[0].set(memory_total=0, memory_used=0, memory_free=0, memory_reserved=0)
    assert consumer.read(0).reason("memoryTotalBytes") == "invalid_value"
    simulator.rule("nvmlDeviceGetMemoryInfo_v2", 0, error=Ret.NOT_SUPPORTED)
    assert consumer.read(0).reason("memoryTotalBytes") == "not_supported"


def test_a_host_that_does_not_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, simulate: Callable[..., NvmlSimulator], consume: Callable[..., Consumer]
) -> None:
    """Then the memory is missing, with the reason."""
    monkeypatch.setenv("ACCELMETRICS_SYSROOT", str(tmp_path))
    simulate(gpus=1, profile="gb10")
    consumer = consume()
    seen = consumer.read(0)
    assert {seen.reason(name) for name in MEMORY} == {"not_supported"}
    assert "/proc/meminfo" in seen.reasons["memoryTotalBytes"].detail
    assert consumer.driver.devices[0].memory_total_bytes is None


def test_the_share_of_the_watched_process(host: Path, simulate: Callable[..., NvmlSimulator], consume: Callable[..., Consumer]) -> None:
    """It is a share of the host's memory."""
    write_tree(host, {f"/proc/{os.getpid()}/status": f"PPid:\t1\nNSpid:\t{os.getpid()}\n"})
    simulator = simulate(gpus=1, profile="gb10")
    simulator.processes(0, [Process(pid=os.getpid(), used=100 * 1024)])
    assert consume().read(0).share["memoryAllocated"] == 10.0


def test_a_device_whose_memory_is_known_late(host: Path, simulate: Callable[..., NvmlSimulator], consume: Callable[..., Consumer]) -> None:
    """Nothing is decided on a question that failed: the device is asked again."""
    simulator = simulate(gpus=1, profile="gb10")
    simulator.rule("nvmlDeviceGetMemoryInfo_v2", error=Ret.TIMEOUT)
    consumer = consume()
    assert consumer.read(0).reason("memoryTotalBytes") == "timed_out"
    simulator.clear_rules()
    assert consumer.later(1.5).metrics["memoryTotalBytes"] == 1000 * 1024
    assert consumer.driver.devices[0].unified
