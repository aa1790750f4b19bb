"""The fault matrix: every NVML return code × every function that the backend calls.

The functions are those in the simulator's own log of calls, so a call that is added to the backend fails here until it is
said which keys depend on it.
"""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest

from accelmetrics.backends.contract import Block
from accelmetrics.backends.nvidia.metrics import GPM_METRICS, LINK_COUNTS, LINK_RATIOS, METRICS, ONCE, SHARES, NvmlField
from accelmetrics.backends.nvidia.nvml import PLACES, unavailable
from accelmetrics.schemas.errors import DriverGoneError, SourceError
from tests.backends.nvidia.machine import LISTENING, OWED, Consume, Consumer, Seen, Simulate, fail, is_conditional
from tests.simulators.nvml import BLACKWELL, Location, NvmlSimulator, Process, Ret

NEW_CODE = 4242
CODES = [*(code for code in Ret if code != Ret.SUCCESS), NEW_CODE]
GONE = {Ret.UNINITIALIZED, Ret.DRIVER_NOT_LOADED, Ret.LIB_RM_VERSION_MISMATCH}
LOST = GONE | {Ret.GPU_IS_LOST}

REASONS: dict[int, str] = {
    Ret.NOT_SUPPORTED: "not_supported",
    Ret.NO_PERMISSION: "no_permission",
    Ret.TIMEOUT: "timed_out",
    Ret.LIBRARY_NOT_FOUND: "driver_unavailable",
    Ret.FUNCTION_NOT_FOUND: "not_supported",
    Ret.RESET_REQUIRED: "reset_required",
    Ret.OPERATING_SYSTEM: "no_permission",
    Ret.VGPU_ECC_NOT_SUPPORTED: "not_supported",
    Ret.FREQ_NOT_SUPPORTED: "not_supported",
    Ret.ARGUMENT_VERSION_MISMATCH: "not_supported",
    Ret.DEPRECATED: "not_supported",
    Ret.RESET_TYPE_NOT_SUPPORTED: "not_supported",
    Ret.GPU_NOT_FOUND: "device_lost",
}
"""Of the codes that speak for a call's own values; all others are driver_error."""

GPM = set(GPM_METRICS)
NO_KEYS: set[str] = set()
KEYS: dict[str, set[str]] = {
    "nvmlDeviceGetFieldValues": {*LINK_COUNTS, *LINK_RATIOS},
    "nvmlDeviceGetGpuFabricInfoV": {name for name in OWED if name.startswith("fabric")},
    "nvmlEventSetCreate": {"xidErrors"},
    "nvmlDeviceRegisterEvents": {"xidErrors"},
    **dict.fromkeys(("nvmlGpmQueryDeviceSupport", "nvmlGpmSampleAlloc", "nvmlGpmSampleGet", "nvmlGpmMetricsGet"), GPM),
    "nvmlDeviceGetComputeRunningProcesses_v3": NO_KEYS,
    "nvmlDeviceGetGraphicsRunningProcesses_v3": NO_KEYS,
    "nvmlDeviceGetMPSComputeRunningProcesses_v3": NO_KEYS,
    "nvmlDeviceGetProcessUtilization": NO_KEYS,
}
"""By call, what is missing where it fails: what stands in no row of the table, and below what follows from the rows."""
BEHIND: dict[str, set[str]] = {}
"""Calls that are made where the fields which say the same are not supported."""
for row in METRICS:
    calls, source = (KEYS, row.source) if row.otherwise is None else (BEHIND, row.otherwise.source)
    shares = {share for share, parts in SHARES.items() if row.name in parts}
    calls.setdefault(source.function, set()).update(row.names, shares)
BEHIND_FIELDS = [row.source.symbol for row in METRICS if row.otherwise is not None and isinstance(row.source, NvmlField)]
ASKED_ONCE = {row.name for row in METRICS if row.every == ONCE and isinstance(row.source, NvmlField)}
"""Fields that do not change while the driver is open."""
WITHOUT_GPU = {"nvmlGpmSampleAlloc", "nvmlEventSetCreate"}
"""Calls that name no GPU: their rule holds for all."""
IDENTITY = {
    "nvmlDeviceGetName": "name",
    "nvmlDeviceGetUUID": "uuid",
    "nvmlDeviceGetPciInfo_v3": "pci_bus_id",
    "nvmlDeviceGetSerial": "serial",
    "nvmlDeviceGetArchitecture": "architecture",
    "nvmlDeviceGetVbiosVersion": "firmware",
    "nvmlDeviceGetNumGpuCores": "cores",
    "nvmlDeviceGetMemoryInfo_v2": "memory_total_bytes",
    "nvmlDeviceGetNumaNodeId": "numa_node",
    "nvmlDeviceGetMinorNumber": "minor_number",
    "nvmlDeviceGetBoardPartNumber": "part_number",
    "nvmlDeviceGetCudaComputeCapability": "compute_capability",
    "nvmlDeviceGetCpuAffinity": "cpu_affinity",
    "nvmlDeviceGetPlatformInfo": "chassis_serial",
}
HANDLE = "nvmlDeviceGetHandleByIndex_v2"
SYSTEM = {
    "nvmlInitWithFlags": True,
    "nvmlDeviceGetCount_v2": True,
    "nvmlSystemGetDriverVersion": False,
    "nvmlSystemGetCudaDriverVersion_v2": False,
}
"""What opening asks of the driver as a whole, and whether it can do without."""
CLOSING = {"nvmlGpmSampleFree", "nvmlEventSetFree", "nvmlShutdown", "nvmlErrorString"}


@pytest.fixture
def simulator(simulate: Simulate) -> NvmlSimulator:
    """Three H100s with all that the backend knows, fans, retired pages, C2C links and what Blackwell adds, so that every fault shows."""
    made = simulate(gpus=3)
    for gpu in made.gpu:
        gpu.set(num_fans=1, fan_speed=[40], retired_pages=[3, 1], retired_pending=0, c2c_max_bw_mbps=44_712, **BLACKWELL)
    for index in range(3):
        made.processes(index, [Process(pid=1, used=1 << 20, sm=10, mem=5), Process(pid=2, kind="G", used=1 << 20)])
    return made


def reason_of(code: int) -> str:
    return REASONS.get(code, "driver_error")


def keys_of(function: str, code: int, later: bool = False) -> set[str]:
    """What a call that fails so costs. Behind a field that was never supported is a call."""
    keys = {**KEYS, **BEHIND}.get(function, NO_KEYS)
    if function == "nvmlDeviceGetTemperatureThreshold" and reason_of(code) == "not_supported":
        return {"memoryMaxOpTemp"}  # the others follow from the margin
    if function != "nvmlDeviceGetFieldValues":
        return keys
    if later or reason_of(code) != "not_supported":
        keys = keys.union(*BEHIND.values())
    return keys - ASKED_ONCE if later else keys


def functions_called(simulator: NvmlSimulator) -> set[str]:
    return {name for name, _ in simulator.calls()} - {LISTENING}


def read_twice(consumer: Consumer, unit: int) -> Seen:
    """The second of two readings, which has GPM's metrics."""
    consumer.clock.now += 0.2
    consumer.read(unit)
    return consumer.later(0.2, unit)


def test_every_function_that_is_called_is_in_the_matrix(simulator: NvmlSimulator, consume: Consume) -> None:
    """A new call has to say which keys depend on it."""
    simulator.reset_calls()
    consumer = consume()
    for unit in range(3):
        read_twice(consumer, unit)
        consumer.later(11, unit)
    consumer.driver.close()
    assert functions_called(simulator) == {*KEYS, *IDENTITY, HANDLE, *SYSTEM, *CLOSING} - {"nvmlErrorString"}


def assert_fault(seen: Seen, healthy: Seen, function: str, code: int, later: bool = False) -> None:
    """The right reason on the right keys, everything else as it was."""
    where = f"{function} answers {code}"
    expected = keys_of(function, code, later)
    assert {name for name in seen.reasons if not is_conditional(name)} == expected, where
    assert {seen.reason(name) for name in seen.reasons} <= {reason_of(code)}, where
    fallen = expected | {name for name in healthy.metrics if is_conditional(name) and function == "nvmlDeviceGetFieldValues"}
    # A state that the batch does not give is asked for link by link.
    assert {name: value for name, value in healthy.metrics.items() if name not in fallen} == {
        name: value for name, value in seen.metrics.items() if name not in fallen
    }, where
    assert not expected & seen.metrics.keys(), where


@pytest.mark.parametrize("code", CODES, ids=str)
def test_a_call_that_fails_from_the_start(simulator: NvmlSimulator, consume: Consume, code: int) -> None:
    """Each function fails on one GPU from the first reading on: reason, neighbours, recovery."""
    healthy = [read_twice(consume(), unit) for unit in range(3)]
    assert not healthy[1].reasons
    for function in KEYS:
        consumer = consume()
        gpu = None if function in WITHOUT_GPU else 1
        fail(simulator, function, gpu, code)
        if code in LOST:
            assert_unit_fails(consumer, code, function)
        else:
            assert_fault(read_twice(consumer, 1), healthy[1], function, code)
        if gpu is not None:
            assert read_twice(consumer, 0).metrics == healthy[0].metrics, function
            assert read_twice(consumer, 2).metrics == healthy[2].metrics, function
        simulator.clear_rules()
        if code not in GONE:
            # What failed in its second reading too is met at its pace.
            assert_recovery(consumer, healthy[1], function, code, 10.0)
        consumer.driver.close()


@pytest.mark.parametrize("code", CODES, ids=str)
def test_a_call_that_fails_later(simulator: NvmlSimulator, consume: Consume, code: int) -> None:
    """Each function fails once everything has been read: the old values are not served, and it recovers."""
    for function in repeated_functions(simulator, consume):
        consumer = consume()
        healthy = read_twice(consumer, 1)
        simulator.rule(function, 1, error=code)
        consumer.clock.now += 11
        if code in LOST:
            assert_unit_fails(consumer, code, function)
        else:
            assert_fault(consumer.read(1), healthy, function, code, later=True)
        simulator.clear_rules()
        if code not in GONE:
            # "Not found" is how the driver says that no process was busy: an answer, which keeps its pace.
            idle = code == Ret.NOT_FOUND and function == "nvmlDeviceGetProcessUtilization"
            assert_recovery(consumer, healthy, function, code, 1.0 if idle else 0.2, later=True)
        consumer.driver.close()


def repeated_functions(simulator: NvmlSimulator, consume: Consume) -> list[str]:
    """What is called again 11 seconds after the first readings."""
    consumer = consume()
    read_twice(consumer, 1)
    simulator.reset_calls()
    consumer.later(11, 1)
    consumer.driver.close()
    return sorted(functions_called(simulator) - CLOSING)


def assert_unit_fails(consumer: Consumer, code: int, function: str) -> None:
    """A lost GPU costs its own unit; a driver that is gone has to be opened again."""
    with pytest.raises(SourceError) as raised:
        read_twice(consumer, 1)
    expected = ("driver_unavailable", True) if code in GONE else ("device_lost", False)
    assert (raised.value.reason, isinstance(raised.value, DriverGoneError)) == expected, function


def assert_recovery(consumer: Consumer, healthy: Seen, function: str, code: int, seconds: float, later: bool = False) -> None:
    """Everything is back so many seconds later, whatever the pace of the value; only what was never supported is remembered."""
    recovered = consumer.later(seconds, 1)
    if code == Ret.NOT_SUPPORTED and not later and function not in ("nvmlGpmSampleAlloc", "nvmlGpmSampleGet", "nvmlGpmMetricsGet"):
        assert {name for name in recovered.reasons if not is_conditional(name)} == keys_of(function, code), function
        return
    if function in ("nvmlGpmQueryDeviceSupport", "nvmlGpmSampleAlloc", "nvmlGpmSampleGet") or code == Ret.GPU_IS_LOST:
        assert {str(reason.reason) for reason in recovered.reasons.values()} <= {"needs_interval"}, function
        recovered = consumer.later(0.2, 1)
    assert not recovered.reasons, function
    assert recovered.metrics == healthy.metrics, function
    assert recovered.processes == healthy.processes, function


def test_what_is_not_supported_is_asked_again_by_the_next_driver(simulator: NvmlSimulator, consume: Consume) -> None:
    """The memory of "not supported" ends with the driver, and until then the call is not made."""
    for function in KEYS.keys() - WITHOUT_GPU - {"nvmlGpmSampleGet", "nvmlGpmMetricsGet", "nvmlDeviceGetMigMode"}:
        consumer = consume()
        fail(simulator, function, 1, Ret.NOT_SUPPORTED)
        consumer.read(1)
        simulator.clear_rules()
        simulator.reset_calls()
        consumer.later(11, 1)
        assert simulator.count(function) == 0, function
        consumer.driver.close()
        assert read_twice(consume(), 1).reasons == {}, function


def test_a_batch_of_fields_that_are_all_unsupported_is_not_made(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """The batch as a whole is dropped where the GPU has none of its fields."""
    fields = ("POWER_AVERAGE", "POWER_INSTANT", "MEMORY_TEMP", "TOTAL_ENERGY_CONSUMPTION", "PCIE_COUNT_TX_BYTES", "PCIE_COUNT_RX_BYTES")
    for field in fields:
        simulator.gpu[0].set_field(field, None)
    for field in ("NVLINK_THROUGHPUT_DATA_TX", "NVLINK_THROUGHPUT_DATA_RX"):
        simulator.gpu[0].set_field(field, None, 0xFFFFFFFF)
    consumer.read(0)
    simulator.reset_calls()
    seen = consumer.later(0.2)
    assert simulator.count("nvmlDeviceGetFieldValues") == 0
    assert seen.reason("energyJoules") == "not_supported"
    assert seen.metrics["nvlinkTxBytesTotal"] == sum(simulator.gpu[0].get(f"nvlink_data_tx_kib[{link}]") for link in range(18)) * 1024
    assert seen.metrics["gpu"] == simulator.gpu[0].get("gpu_util")


@pytest.mark.parametrize("code", [code for code in CODES if code not in LOST], ids=str)
def test_one_field_of_a_batch_fails(simulator: NvmlSimulator, consumer: Consumer, code: int) -> None:
    """A field's own return code is the field's alone; a field that the driver does not know is not supported."""
    for field in ("MEMORY_TEMP", "REMAPPED_COR"):
        simulator.gpu[0].set_field(field, Ret(code) if code != NEW_CODE else Ret.UNKNOWN)
    seen = read_twice(consumer, 0)
    expected = "not_supported" if code == Ret.INVALID_ARGUMENT else reason_of(code)
    assert {name: seen.reason(name) for name in seen.reasons} == {"memoryTemp": expected, "remappedRowsCorrected": expected}
    simulator.gpu[0].clear_fields()
    assert consumer.later(0.2).metrics["memoryTemp"] == simulator.gpu[0].get("memory_temp")
    assert consumer.later(10).metrics["remappedRowsCorrected"] == simulator.gpu[0].get("remapped_correctable")


@pytest.mark.parametrize("answer", [None, Ret.INVALID_ARGUMENT], ids=["unsupported", "unknown"])
def test_behind_a_field_that_is_missing_is_its_call(simulator: NvmlSimulator, consume: Consume, answer: Ret | None) -> None:
    """Field by field, from the first reading on, with the same values; the calls whose fields are there are not made."""
    simulator.gpu[0].set(ecc_corrected_volatile={Location.DRAM: 77}, power_mw=123_000)
    healthy = consume().read(0)
    consumer = consume()
    for field in BEHIND_FIELDS[:2]:
        simulator.gpu[0].set_field(field, answer)
    simulator.reset_calls()
    seen = consumer.read(0)
    assert (seen.metrics["powerWatts"], seen.metrics["enforcedPowerLimitWatts"]) == (123.0, 700.0)
    assert (simulator.count("nvmlDeviceGetEnforcedPowerLimit"), simulator.count("nvmlDeviceGetMemoryErrorCounter")) == (1, 0)
    consumer = consume()
    for field in BEHIND_FIELDS:
        simulator.gpu[0].set_field(field, answer)
    seen = consumer.read(0)
    assert (seen.metrics, seen.reasons) == (healthy.metrics, healthy.reasons)
    simulator.reset_calls()
    assert consumer.later(0.2).metrics["powerWatts"] == 123.0
    simulator.gpu[0].clear_fields()
    assert consumer.later(11).metrics["correctedMemoryErrors"] == 77
    assert [simulator.count(function) for function in BEHIND] == [2, 1, 4, 6, 1, 0, 0], "it stays missing until the driver is reopened"


@pytest.mark.parametrize("code", [code for code in CODES if code not in LOST], ids=str)
def test_a_call_behind_a_field_that_fails(simulator: NvmlSimulator, consume: Consume, code: int) -> None:
    """As any other: reason, recovery."""
    for field in BEHIND_FIELDS:
        simulator.gpu[1].set_field(field, None)
    healthy = read_twice(consume(), 1)
    for function in BEHIND:
        consumer = consume()
        simulator.rule(function, 1, error=code)
        assert_fault(read_twice(consumer, 1), healthy, function, code)
        simulator.clear_rules()
        assert_recovery(consumer, healthy, function, code, 10.0)


@pytest.mark.parametrize("field", BEHIND_FIELDS)
def test_a_field_that_stands_for_a_call_and_fails_for_a_while(simulator: NvmlSimulator, consumer: Consumer, field: str) -> None:
    """It is asked again, as any field: the call is not made."""
    simulator.gpu[0].set_field(field, Ret.TIMEOUT)
    missing = read_twice(consumer, 0).reasons
    assert {str(reason.reason) for reason in missing.values()} == {"timed_out"}
    assert missing.keys() <= set().union(*BEHIND.values())
    simulator.gpu[0].clear_fields()
    assert not consumer.later(10).reasons
    assert [simulator.count(function) for function in BEHIND] == [0] * len(BEHIND)


def test_a_power_of_zero_is_not_believed_of_the_field(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """What the call says then is taken, unless the field has said something before."""
    for gpu in (0, 1):
        simulator.gpu[gpu].set(power_average_mw=100_000, power_mw=123_000)
    simulator.gpu[0].set_field("POWER_AVERAGE", 0)
    assert consumer.read(0).metrics["powerWatts"] == 123.0
    assert consumer.read(1).metrics["powerWatts"] == 100.0
    simulator.gpu[1].set_field("POWER_AVERAGE", 0)
    assert consumer.later(0.2, 1).reason("powerWatts") == "invalid_value"


@pytest.mark.parametrize("code", [code for code in CODES if code not in LOST], ids=str)
def test_a_list_of_processes_that_fails(simulator: NvmlSimulator, consume: Consume, code: int) -> None:
    """No process is said to be on a GPU whose processes are not known."""
    for function, expected in (
        ("nvmlDeviceGetComputeRunningProcesses_v3", None),
        ("nvmlDeviceGetGraphicsRunningProcesses_v3", {1}),
        ("nvmlDeviceGetMPSComputeRunningProcesses_v3", {1, 2}),
        ("nvmlDeviceGetProcessUtilization", {1, 2}),
    ):
        fail(simulator, function, 1, code)
        consumer = consume()
        seen = consumer.read(1)
        processes = seen.processes
        assert (None if processes is None else {process.pid for process in processes}) == expected, function
        assert seen.unlisted == (unavailable(code) if processes is None else None), function
        if function == "nvmlDeviceGetProcessUtilization":
            assert {process.utilization for process in processes or ()} == {None}
        simulator.clear_rules()
        consumer.driver.close()


@pytest.mark.parametrize("code", CODES, ids=str)
def test_a_device_that_fails_at_enumeration(simulator: NvmlSimulator, consume: Consume, code: int) -> None:
    """It keeps its place and says why at every reading; others are unharmed; it comes back."""
    fail(simulator, HANDLE, 1, code)
    consumer = consume()
    assert [device.vendor_index for device in consumer.driver.devices] == [0, 1, 2]
    error = consumer.error(unit=1)
    lost: dict[int, str] = {Ret.GPU_IS_LOST: "device_lost", **dict.fromkeys(GONE, "driver_unavailable")}
    assert error.reason == lost.get(code, reason_of(code))
    assert "NVIDIA GPU 1 cannot be opened" in str(error)
    assert not read_twice(consumer, 0).reasons
    assert not read_twice(consumer, 2).reasons
    simulator.clear_rules()
    seen = consumer.later(1.5, 1)
    assert seen.metrics["temp"] == simulator.gpu[1].get("temperature")
    assert consumer.driver.devices[1].uuid.startswith("GPU-")


@pytest.mark.parametrize("code", CODES, ids=str)
def test_a_fact_that_fails_at_enumeration(
    simulator: NvmlSimulator, consume: Consume, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each fact is optional, costs nothing else, and is asked again unless the answer is final."""
    monkeypatch.setenv("ACCELMETRICS_SYSROOT", str(tmp_path))
    if code in GONE:
        simulator.rule("nvmlDeviceGetName", 1, error=code)
        assert [bool(device.name) for device in consume().driver.devices] == [True, False, True]
        return
    whole = consume().identities()
    for function, field in IDENTITY.items():
        fail(simulator, function, 1, code)
        consumer = consume()
        found = consumer.identities()[1]
        assert getattr(found, field) in ("", None), (function, field)
        blank: dict[str, Any] = dict.fromkeys((field, *(PLACES if field == "chassis_serial" else ())), "")
        assert found._replace(**blank) == whole[1]._replace(**blank), function
        simulator.clear_rules()
        consumer.later(1.5, 1)
        refused = function == "nvmlDeviceGetPlatformInfo" and code == Ret.ARGUMENT_VERSION_MISMATCH
        final = refused or code in (Ret.NOT_SUPPORTED, Ret.FUNCTION_NOT_FOUND)
        assert (getattr(consumer.driver.devices[1], field) in ("", None)) == final, function
        consumer.driver.close()


@pytest.mark.parametrize("code", CODES, ids=str)
def test_what_opening_asks_of_the_driver(simulator: NvmlSimulator, consume: Consume, code: int) -> None:
    """Opening fails with a reason where it cannot do without the answer, and leaves nothing initialised."""
    for function, needed in SYSTEM.items():
        if code in GONE and not needed:
            continue
        fail(simulator, function, None, code)
        if needed:
            with pytest.raises(SourceError) as raised:
                consume()
            assert raised.value.reason, function
            assert raised.value.backend == "nvidia"
        else:
            assert "" in (consume().driver.devices[0].driver_version, consume().driver.devices[0].runtime_version)
        simulator.clear_rules()
    assert not read_twice(consume(), 0).reasons


def test_a_lost_gpu(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """The unit fails as a whole at every reading until the GPU is back; the others never notice."""
    healthy = [read_twice(consumer, unit) for unit in range(3)]
    simulator.lose(1)
    for _ in range(3):
        error = consumer.error(0.2, 1)
        assert error.reason == "device_lost"
        assert error.advice
        assert consumer.read(0).metrics == healthy[0].metrics
    simulator.recover(1)
    assert read_twice(consumer, 1).metrics == healthy[1].metrics


def test_a_gpu_that_needs_a_reset(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """What it no longer answers needs a reset; that is said of each value."""
    consumer.read(1)
    simulator.rule("nvmlDeviceGetUtilizationRates", 1, error=Ret.RESET_REQUIRED)
    assert consumer.later(0.2, 1).reason("gpu") == "reset_required"


def test_alternating_answers_do_not_pile_up(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """What is remembered of masks that were answered before is bounded."""

    def remembered() -> int:
        gc.collect()
        return sum(isinstance(each, Block) and "throttle.gpuIdle" in each.names for each in gc.get_objects())

    consumer.read(0)
    before = remembered()
    for mask in range(300):
        simulator.gpu[0].set(clocks_event_reasons=mask)
        assert consumer.read(0).metrics["throttle.gpuIdle"] == mask & 1
    assert remembered() - before < 100
