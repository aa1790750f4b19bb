"""A GPU whose calls hang while the driver is opened, or at its first reading, costs only itself."""

from __future__ import annotations

import threading

import pytest

from accelmetrics import Sampler
from accelmetrics.backends.nvidia import NvidiaBackend, gpu
from tests.backends.nvidia.machine import Consume, Simulate
from tests.simulators.nvml import NvmlSimulator
from tests.support.threads import own_threads
from tests.support.waiting import wait_for

HANDLE = "nvmlDeviceGetHandleByIndex_v2"
AT_OPENING = [HANDLE, "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetName", "nvmlDeviceGetUUID", "nvmlDeviceGetMigMode"]
AT_FIRST_READING = [
    *("nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetSerial", "nvmlDeviceGetVbiosVersion", "nvmlDeviceGetNumaNodeId"),
    *("nvmlDeviceRegisterEvents", "nvmlDeviceGetGpuFabricInfoV"),
]


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "PATIENCE", 1.0)
    monkeypatch.setattr(gpu, "LATER_PATIENCE", 0.4)


def temperatures(simulator: NvmlSimulator, units: list[int]) -> dict[str, int]:
    return {f"gpu.{unit}.temp": int(simulator.gpu[unit].get("temperature")) for unit in units}


@pytest.mark.parametrize("function", [*AT_OPENING, *AT_FIRST_READING])
def test_a_hung_gpu_hides_no_other(simulator: NvmlSimulator, function: str) -> None:
    """The first snapshot has the others; the hung one says why it has nothing, and is back as soon as the call returns."""
    simulator.rule(function, 1, hang=True)
    with Sampler([NvidiaBackend()], timeout=2.0) as sampler:
        snapshot = sampler.sample()  # returns though the call does not
        assert {key: value for key, value in snapshot.metrics.items() if key.endswith(".temp")} == temperatures(simulator, [0, 2])
        assert {str(why.reason) for key, why in snapshot.unavailable.items() if key.startswith("gpu.1.")} == {"timed_out"}
        assert [device.key for device in snapshot.devices] == ["gpu.0", "gpu.1", "gpu.2"]
        simulator.release(function, 1)
        wait_for(lambda: "gpu.1.temp" in sampler.sample().metrics)
        snapshot = sampler.sample()
        assert {key: value for key, value in snapshot.metrics.items() if key.endswith(".temp")} == temperatures(simulator, [0, 1, 2])
        device = snapshot.device("gpu.1")
        assert (device.uuid[:4], device.cores, device.name) == ("GPU-", 16896, "NVIDIA H100 80GB HBM3")


def test_several_hung_gpus(simulate: Simulate, consume: Consume, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is waited for once, the later ones for less."""
    patience: list[float] = []

    class NotedThread(threading.Thread):
        def join(self, timeout: float | None = None) -> None:
            patience.append(timeout or 0.0)
            super().join(timeout)

    simulator = simulate(gpus=5)
    for unit in (0, 2, 4):
        simulator.rule(HANDLE, unit, hang=True)
    with monkeypatch.context() as patch:
        patch.setattr(threading, "Thread", NotedThread)
        consumer = consume()
    waits = [seconds for seconds in patience if seconds in (gpu.PATIENCE, gpu.LATER_PATIENCE)]
    assert waits == sorted(waits, reverse=True)
    assert set(waits) == {gpu.PATIENCE, gpu.LATER_PATIENCE}
    assert [bool(device.uuid) for device in consumer.driver.devices] == [False, True, False, True, False]
    for unit in (0, 2, 4):
        assert consumer.error(unit=unit).reason == "timed_out"
    assert consumer.read(3).metrics["temp"] == simulator.gpu[3].get("temperature")
    simulator.clear_rules()


def test_a_hung_gpu_is_asked_nothing_more(simulator: NvmlSimulator, consume: Consume) -> None:
    """Reading it makes no calls while one is under way; the driver is not closed beneath that one."""
    simulator.rule(HANDLE, 1, hang=True)
    consumer = consume()
    simulator.reset_calls()
    for _ in range(3):
        consumer.error(60.0, 1)
    consumer.driver.close()
    assert not [name for name, gpu in simulator.calls() if gpu == 1]
    assert simulator.count("nvmlShutdown") == 0
    simulator.clear_rules()


def test_a_driver_that_is_slow_to_open_is_waited_for(simulator: NvmlSimulator, consume: Consume) -> None:
    """What counts is that calls return, not how long they take together."""
    for function in AT_OPENING:
        simulator.rule(function, latency_us=60_000)
    assert all(device.uuid for device in consume().driver.devices)


def test_opening_leaves_no_thread(simulator: NvmlSimulator, consume: Consume) -> None:
    """The one that enumerates ends with it."""
    consume()
    assert own_threads("accelmetrics-nvidia-open") == []


def test_what_listing_does_not_need_waits_for_the_first_reading(simulator: NvmlSimulator, consume: Consume) -> None:
    """Five calls a GPU when the driver is opened."""
    simulator.reset_calls()
    consumer = consume()
    assert {name for name, gpu in simulator.calls() if gpu == 1} == set(AT_OPENING)
    simulator.reset_calls()
    consumer.read(1)
    assert {name for name, _ in simulator.calls()} & set(AT_OPENING) == {"nvmlDeviceGetMigMode"}, "for its value"
