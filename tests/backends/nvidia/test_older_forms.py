"""A newer form of a call that is there and fails: the older one serves, until the newer one has answered once."""

from __future__ import annotations

from typing import Any

import pytest

from tests.backends.nvidia.machine import OLDER, Consume, Consumer, Simulate, fail
from tests.simulators.nvml import NvmlSimulator, Process, Ret
from tests.support.pids import STRANGER

MEMORY = "nvmlDeviceGetMemoryInfo_v2"
USED, RESERVED = 20_000, 10_000
GIVES_WAY = [Ret.UNKNOWN, Ret.FUNCTION_NOT_FOUND, Ret.ARGUMENT_VERSION_MISMATCH, Ret.NOT_SUPPORTED, Ret.TIMEOUT, Ret.INVALID_ARGUMENT]


@pytest.fixture
def simulator(simulate: Simulate) -> NvmlSimulator:
    """Three H100s with memory in round numbers."""
    made = simulate(gpus=3)
    for gpu in made.gpu:
        gpu.set(memory_total=80_000, memory_used=USED, memory_reserved=RESERVED, memory_free=50_000)
    return made


def used(consumer: Consumer, seconds: float = 0.2) -> float | None:
    return consumer.later(seconds).metrics.get("memoryAllocatedBytes")


@pytest.mark.parametrize("code", GIVES_WAY, ids=str)
def test_the_first_form_of_the_memory_serves(simulator: NvmlSimulator, consume: Consume, code: Ret) -> None:
    """It counts the reserve. The second one is asked again, and serves from its first answer on: a failure is a reason then."""
    simulator.rule(MEMORY, 0, error=code)
    consumer = consume()
    assert [used(consumer) for _ in range(3)] == [USED + RESERVED] * 3
    assert consumer.driver.devices[0].memory_total_bytes == 80_000
    assert consumer.read(1).metrics["memoryAllocatedBytes"] == USED
    simulator.clear_rules()
    assert [used(consumer) for _ in range(2)] == [USED] * 2
    simulator.rule(MEMORY, 0, error=code)
    simulator.reset_calls()
    assert [used(consumer) for _ in range(2)] == [None] * 2
    assert simulator.count("nvmlDeviceGetMemoryInfo") == 0
    simulator.clear_rules()
    assert used(consumer) == USED


@pytest.mark.parametrize("code", [Ret.NO_PERMISSION, Ret.OPERATING_SYSTEM, Ret.GPU_NOT_FOUND], ids=str)
def test_what_an_older_form_would_answer_too(simulator: NvmlSimulator, consume: Consume, code: Ret) -> None:
    """Of no permission and of a device that is not found there is no second opinion."""
    simulator.rule(MEMORY, 0, error=code)
    consumer = consume()
    assert used(consumer) is None
    assert simulator.count("nvmlDeviceGetMemoryInfo") == 0


def test_a_lost_gpu_is_asked_once(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """None of the older forms fares better."""
    simulator.rule(MEMORY, 0, error=Ret.GPU_IS_LOST)
    assert consumer.error().reason == "device_lost"
    assert simulator.count("nvmlDeviceGetMemoryInfo") == 0


def test_a_form_that_has_answered_stays_for_who_comes_later(simulator: NvmlSimulator, consume: Consume) -> None:
    """Calls that are bound anew since another consumer wants more keep their source."""
    some = consume(metrics="memoryAllocatedBytes")
    some.given()
    simulator.rule(MEMORY, 0, error=Ret.UNKNOWN)
    more = some.another()
    assert more.later(0.2).reason("memoryAllocatedBytes") == "driver_error"
    simulator.clear_rules()
    assert more.later(0.2).metrics["memoryAllocatedBytes"] == USED


def test_clocks_event_reasons(simulator: NvmlSimulator, consume: Consume) -> None:
    """The function's older name."""
    simulator.rule("nvmlDeviceGetCurrentClocksEventReasons", 0, error=Ret.UNKNOWN)
    assert consume().read(0).metrics["throttle.gpuIdle"] == 1


@pytest.mark.parametrize("failing", [1, 2])
@pytest.mark.parametrize("kind", ["Compute", "Graphics", "MPSCompute"])
def test_lists_of_processes(simulator: NvmlSimulator, consume: Consume, kind: str, failing: int) -> None:
    """Each in its older forms, the first of which has entries of another length."""
    newest = f"nvmlDeviceGet{kind}RunningProcesses_v3"
    for form in [newest, *OLDER[newest]][:failing]:
        simulator.rule(form, 0, error=Ret.UNKNOWN)
    table = [Process(pid=STRANGER + number, kind=kind[0], used=number + 1) for number in range(5)]
    simulator.processes(0, table)
    processes = consume().read(0).processes
    assert [(process.pid, process.memory_bytes) for process in processes or ()] == [(each.pid, each.used) for each in table]


def test_what_opening_asks(simulator: NvmlSimulator, consume: Consume) -> None:
    """The number of GPUs, their handles and addresses, CUDA's version: the same in the older forms."""
    expected = consume().identities()
    newest = [name for name in OLDER if "Count" in name or "Handle" in name or "Cuda" in name or "Pci" in name]
    for name in newest:
        simulator.rule(name, error=Ret.UNKNOWN)
    assert consume().identities() == expected
    simulator.rule("nvmlDeviceGetPciInfo_v2", error=Ret.UNKNOWN)
    assert consume().identities() == expected


def test_a_handle_of_another_gpu(simulator: NvmlSimulator, consume: Consume, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first form leaves out GPUs that it cannot open: what it gives under a number may be the next one."""
    simulator.rule("nvmlDeviceGetHandleByIndex_v2", 1, error=Ret.UNKNOWN)
    simulator.rule("nvmlDeviceGetIndex", 1, error=Ret.UNKNOWN)
    consumer = consume()
    assert "GPU 1 cannot be opened" in str(consumer.error(unit=1))
    simulator.clear_rules()
    assert consumer.later(2.0, 1).metrics["temp"] == simulator.gpu[1].get("temperature")


def test_events(simulator: NvmlSimulator, consume: Consume) -> None:
    """Xid errors come by the older call too."""
    simulator.rule("nvmlEventSetWait_v2", error=Ret.UNKNOWN)
    consumer = consume()
    assert consumer.read(0).metrics["xidErrors"] == 0
    simulator.xid(0, 79)
    simulator.wait_for("nvmlEventSetWait", count=simulator.count("nvmlEventSetWait") + 2)
    assert consumer.later(1.0).metrics["lastXid"] == 79


SOURCES: list[tuple[str, str, dict[str, Any]]] = [
    ("powerWatts", "POWER_AVERAGE", {"power_average_mw": 100_000, "power_mw": 123_000}),
    ("enforcedPowerLimitWatts", "POWER_CURRENT_LIMIT", {}),
    ("correctedMemoryErrors", "ECC_SBE_VOL_DEV", {}),
]


@pytest.mark.parametrize(("metric", "field", "values"), SOURCES, ids=[metric for metric, _, _ in SOURCES])
@pytest.mark.parametrize("answer", [None, Ret.INVALID_ARGUMENT, Ret.TIMEOUT], ids=str)
def test_a_field_that_has_answered_stays_the_source(
    simulator: NvmlSimulator, consumer: Consumer, metric: str, field: str, values: dict[str, Any], answer: Ret | None
) -> None:
    """What it fails to say later is missing for that reading: the call behind it would give another register's number."""
    simulator.gpu[0].set(**values)
    before = consumer.read(0).metrics[metric]
    simulator.gpu[0].set_field(field, answer)
    assert metric in consumer.later(11.0).reasons
    simulator.gpu[0].clear_fields()
    assert consumer.later(11.0).metrics[metric] == before


def test_a_call_that_has_answered_stays_the_source(simulator: NvmlSimulator, consume: Consume) -> None:
    """For who comes later too, when the field is there by then."""
    simulator.gpu[0].set(power_average_mw=100_000, power_mw=123_000)
    simulator.gpu[0].set_field("POWER_AVERAGE", None)
    consumer = consume(metrics="powerWatts,energyJoules")
    consumer.given()
    simulator.gpu[0].clear_fields()
    assert consumer.another().later(0.2).metrics["powerWatts"] == 123.0


def test_energy_has_one_source(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """Without its field it is missing, at once and later."""
    consumer.read(0)
    fail(simulator, "nvmlDeviceGetFieldValues", 0, Ret.UNKNOWN)
    simulator.reset_calls()
    assert consumer.later(0.2).reason("energyJoules") == "driver_error"
    assert simulator.count("nvmlDeviceGetTotalEnergyConsumption") == 0
