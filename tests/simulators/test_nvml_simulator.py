"""The NVML simulator is worth what it imitates: real clients load it, and every fault a test can order really happens."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.simulators.nvml import (
    ALL_LINKS,
    NOT_AVAILABLE,
    PRODUCTS,
    Location,
    NvmlSimulator,
    Process,
    Ramp,
    Ret,
    SimulatorUnavailable,
    Threshold,
    ValueType,
    build,
)
from tests.support.waiting import HANG, wait_for

pynvml: Any = pytest.importorskip("pynvml")

try:
    build()
except SimulatorUnavailable as unavailable:
    pytest.skip(str(unavailable), allow_module_level=True)


@contextmanager
def loaded(**machine: Any) -> Iterator[NvmlSimulator]:
    """A machine that pynvml in this process sees."""
    with NvmlSimulator(**machine) as made:
        made.load()
        pynvml.nvmlInit()
        yield made


@pytest.fixture
def simulator() -> Iterator[NvmlSimulator]:
    """Four H100s, without the 20 ms that PCIe throughput takes."""
    with loaded(gpus=4) as made:
        made.set(pcie_latency_us=0)
        yield made


@pytest.fixture
def library(simulator: NvmlSimulator) -> Any:
    """The library itself, as any client may call it."""
    return ctypes.CDLL("libnvidia-ml.so.1")


@pytest.fixture
def handles(simulator: NvmlSimulator) -> list[Any]:
    return [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(4)]


def answer(call: Callable[..., Any], *arguments: Any) -> Any:
    """What a pynvml call returns, or the `Ret` it fails with."""
    try:
        return call(*arguments)
    except pynvml.NVMLError as error:
        return Ret(error.value)


def run(simulator: NvmlSimulator, program: str, **changes: str) -> subprocess.CompletedProcess[str]:
    """Runs a Python program on the simulated machine."""
    environment = os.environ | simulator.environment() | changes
    return subprocess.run(
        [sys.executable, "-c", "import pynvml as n\n" + textwrap.dedent(program)],
        env=environment, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip


# --- values ---------------------------------------------------------------------------------------------------


def test_every_gpu_has_its_own_values(simulator: NvmlSimulator, handles: list[Any]) -> None:
    """A program that mixes two GPUs up must be seen to do so."""
    reads: list[Callable[[Any], Any]] = [
        pynvml.nvmlDeviceGetUUID,
        pynvml.nvmlDeviceGetSerial,
        pynvml.nvmlDeviceGetPowerUsage,
        pynvml.nvmlDeviceGetEnforcedPowerLimit,
        pynvml.nvmlDeviceGetTotalEnergyConsumption,
        pynvml.nvmlDeviceGetMinorNumber,
        lambda handle: pynvml.nvmlDeviceGetPciInfo(handle).busId,
        lambda handle: pynvml.nvmlDeviceGetMemoryInfo(handle).used,
        lambda handle: pynvml.nvmlDeviceGetUtilizationRates(handle).gpu,
        lambda handle: pynvml.nvmlDeviceGetTemperatureV(handle, pynvml.NVML_TEMPERATURE_GPU),
        lambda handle: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
    ]
    for read in reads:
        assert len({read(handle) for handle in handles}) == len(handles)


def test_identity_has_real_shapes(simulator: NvmlSimulator, handles: list[Any]) -> None:
    uuid = pynvml.nvmlDeviceGetUUID(handles[2])
    assert uuid.startswith("GPU-") and len(uuid) == 40
    pci = pynvml.nvmlDeviceGetPciInfo(handles[2])
    assert (pci.busId, pci.busIdLegacy, pci.bus) == ("00000000:22:00.0", "0000:22:00.0", 0x22)
    for found in (
        pynvml.nvmlDeviceGetHandleByUUID(uuid),
        pynvml.nvmlDeviceGetHandleByPciBusId("00000000:22:00.0"),
        pynvml.nvmlDeviceGetHandleByPciBusId("0000:22:00.0"),
        pynvml.nvmlDeviceGetHandleBySerial(pynvml.nvmlDeviceGetSerial(handles[2])),
    ):
        assert pynvml.nvmlDeviceGetIndex(found) == 2
    assert answer(pynvml.nvmlDeviceGetHandleByUUID, "GPU-none") is Ret.NOT_FOUND
    simulator.gpu[2].set(pci_bus_id="00000001:C1:00.0")
    assert pynvml.nvmlDeviceGetPciInfo(handles[2]).domain == 1


def test_a_name_that_does_not_exist_is_an_error(simulator: NvmlSimulator) -> None:
    with pytest.raises(KeyError, match="power_mw"):
        simulator.gpu[0].set(powr_mw=1)
    with pytest.raises(KeyError, match="nvmlDeviceGetPowerUsage"):
        simulator.rule("nvmlDeviceGetPowerUsag", hang=True)
    with pytest.raises(KeyError):
        simulator.gpu[0].set(fan_speed={8: 1})
    with pytest.raises(KeyError, match="profile"):
        NvmlSimulator(profile="h101")


def test_struct_versions_and_sizes_are_the_headers(simulator: NvmlSimulator, handles: list[Any]) -> None:
    """A binding whose struct has another layout gets a version mismatch, as from the driver."""
    assert pynvml.nvmlMemory_v2 == 2 << 24 | ctypes.sizeof(pynvml.c_nvmlMemory_v2_t)
    assert answer(pynvml.nvmlDeviceGetMemoryInfo, handles[0], pynvml.nvmlMemory_v2 + 8) is Ret.ARGUMENT_VERSION_MISMATCH
    simulator.gpu[1].set(platform_slot=1, platform_tray=0, platform_host=0, platform_module=2)
    platform = pynvml.c_nvmlPlatformInfo_v2_t()
    pynvml.nvmlDeviceGetPlatformInfo(handles[1], ctypes.byref(platform))
    assert platform.moduleId == "\x02"
    fabric = pynvml.c_nvmlGpuFabricInfoV_t()
    pynvml.nvmlDeviceGetGpuFabricInfoV(handles[0], ctypes.byref(fabric))
    assert fabric.state == pynvml.NVML_GPU_FABRIC_STATE_COMPLETED


def test_ramps_move_by_reads_and_by_time(simulator: NvmlSimulator, handles: list[Any]) -> None:
    simulator.gpu[0].set(power_mw=Ramp(100, step=10), gpu_util=Ramp(98, step=1, low=0, high=101))
    assert [pynvml.nvmlDeviceGetPowerUsage(handles[0]) for _ in range(3)] == [100, 110, 120]
    assert [pynvml.nvmlDeviceGetUtilizationRates(handles[0]).gpu for _ in range(4)] == [98, 99, 100, 0]
    simulator.gpu[0].set(energy_mj=Ramp(5_000, rate=1_000_000))
    first = pynvml.nvmlDeviceGetTotalEnergyConsumption(handles[0])
    wait_for(lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(handles[0]) >= first + 20_000)


def test_scalar_calls_read_their_own_values(simulator: NvmlSimulator, handles: list[Any]) -> None:
    """Each value is set to a number of its own, so that a function wired to another's value is caught."""
    handle, gpu, n = handles[0], simulator.gpu[0], pynvml
    table: list[tuple[str, Callable[[], Any]]] = [
        ("power_limit_enforced_mw", lambda: n.nvmlDeviceGetEnforcedPowerLimit(handle)),
        ("power_limit_mw", lambda: n.nvmlDeviceGetPowerManagementLimit(handle)),
        ("power_limit_default_mw", lambda: n.nvmlDeviceGetPowerManagementDefaultLimit(handle)),
        ("power_limit_min_mw", lambda: n.nvmlDeviceGetPowerManagementLimitConstraints(handle)[0]),
        ("power_limit_max_mw", lambda: n.nvmlDeviceGetPowerManagementLimitConstraints(handle)[1]),
        ("clock_graphics", lambda: n.nvmlDeviceGetClockInfo(handle, n.NVML_CLOCK_GRAPHICS)),
        ("clock_mem", lambda: n.nvmlDeviceGetClockInfo(handle, n.NVML_CLOCK_MEM)),
        ("clock_video", lambda: n.nvmlDeviceGetClockInfo(handle, n.NVML_CLOCK_VIDEO)),
        ("max_clock_sm", lambda: n.nvmlDeviceGetMaxClockInfo(handle, n.NVML_CLOCK_SM)),
        ("encoder_util", lambda: n.nvmlDeviceGetEncoderUtilization(handle)[0]),
        ("decoder_util", lambda: n.nvmlDeviceGetDecoderUtilization(handle)[0]),
        ("jpg_util", lambda: n.nvmlDeviceGetJpgUtilization(handle)[0]),
        ("ofa_util", lambda: n.nvmlDeviceGetOfaUtilization(handle)[0]),
        ("temperature", lambda: n.nvmlDeviceGetTemperature(handle, n.NVML_TEMPERATURE_GPU)),
        ("temp_margin", lambda: n.nvmlDeviceGetMarginTemperature(handle)),
        ("pcie_gen", lambda: n.nvmlDeviceGetCurrPcieLinkGeneration(handle)),
        ("pcie_gen_max", lambda: n.nvmlDeviceGetMaxPcieLinkGeneration(handle)),
        ("pcie_width", lambda: n.nvmlDeviceGetCurrPcieLinkWidth(handle)),
        ("pcie_width_max", lambda: n.nvmlDeviceGetMaxPcieLinkWidth(handle)),
        ("pcie_speed_mbps", lambda: n.nvmlDeviceGetPcieSpeed(handle)),
        ("pcie_replay", lambda: n.nvmlDeviceGetPcieReplayCounter(handle)),
        ("pcie_tx_kbps", lambda: n.nvmlDeviceGetPcieThroughput(handle, n.NVML_PCIE_UTIL_TX_BYTES)),
        ("pcie_rx_kbps", lambda: n.nvmlDeviceGetPcieThroughput(handle, n.NVML_PCIE_UTIL_RX_BYTES)),
        ("pstate", lambda: n.nvmlDeviceGetPerformanceState(handle)),
        ("clocks_event_reasons", lambda: n.nvmlDeviceGetCurrentClocksEventReasons(handle)),
        ("clocks_event_reasons", lambda: n.nvmlDeviceGetCurrentClocksThrottleReasons(handle)),
        ("supported_clocks_event_reasons", lambda: n.nvmlDeviceGetSupportedClocksThrottleReasons(handle)),
        ("persistence_mode", lambda: n.nvmlDeviceGetPersistenceMode(handle)),
        ("compute_mode", lambda: n.nvmlDeviceGetComputeMode(handle)),
        ("display_active", lambda: n.nvmlDeviceGetDisplayActive(handle)),
        ("display_mode", lambda: n.nvmlDeviceGetDisplayMode(handle)),
        ("mig_mode", lambda: n.nvmlDeviceGetMigMode(handle)[0]),
        ("ecc_mode", lambda: n.nvmlDeviceGetEccMode(handle)[0]),
        ("ecc_pending", lambda: n.nvmlDeviceGetEccMode(handle)[1]),
        ("cores", lambda: n.nvmlDeviceGetNumGpuCores(handle)),
        ("architecture", lambda: n.nvmlDeviceGetArchitecture(handle)),
        ("brand", lambda: n.nvmlDeviceGetBrand(handle)),
        ("board_id", lambda: n.nvmlDeviceGetBoardId(handle)),
        ("cuda_minor", lambda: n.nvmlDeviceGetCudaComputeCapability(handle)[1]),
        ("numa_node", lambda: n.nvmlDeviceGetNumaNodeId(handle)),
        ("bar1_used", lambda: n.nvmlDeviceGetBAR1MemoryInfo(handle).bar1Used),
        ("remapped_uncorrectable", lambda: n.nvmlDeviceGetRemappedRows(handle)[1]),
        ("cc_unprotected_kib", lambda: n.nvmlDeviceGetConfComputeMemSizeInfo(handle).unprotectedMemSizeKib),
    ]
    for number, (name, _) in enumerate(table):
        gpu.set(**{name: 1001 + number})
    expected = {name: 1001 + number for number, (name, _) in enumerate(table)}
    assert [(name, read()) for name, read in table] == [(name, expected[name]) for name, _ in table]


def test_thresholds_and_ecc_counters_go_by_their_index(simulator: NvmlSimulator, handles: list[Any]) -> None:
    gpu, handle = simulator.gpu[0], handles[0]
    gpu.set(temp_threshold={Threshold.GPU_MAX: 88}, ecc_uncorrected_volatile={Location.DRAM: 7, Location.SRAM: 4})
    assert pynvml.nvmlDeviceGetTemperatureThreshold(handle, pynvml.NVML_TEMPERATURE_THRESHOLD_GPU_MAX) == 88
    kinds = (pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC)
    assert pynvml.nvmlDeviceGetMemoryErrorCounter(handle, *kinds, pynvml.NVML_MEMORY_LOCATION_DEVICE_MEMORY) == 7
    assert answer(pynvml.nvmlDeviceGetMemoryErrorCounter, handle, *kinds, pynvml.NVML_MEMORY_LOCATION_CBU) is Ret.NOT_SUPPORTED
    assert answer(pynvml.nvmlDeviceGetMemoryErrorCounter, handle, *kinds, 99) is Ret.INVALID_ARGUMENT
    assert pynvml.nvmlDeviceGetTotalEccErrors(handle, *kinds) == 11


@pytest.mark.parametrize("profile", sorted(PRODUCTS))
def test_profiles_lack_what_the_products_lack(profile: str) -> None:
    with loaded(gpus=2, profile=profile):
        handle, product = pynvml.nvmlDeviceGetHandleByIndex(1), PRODUCTS[profile]
        assert pynvml.nvmlDeviceGetName(handle) == product.name
        assert (answer(pynvml.nvmlDeviceGetMemoryInfo, handle) is Ret.NOT_SUPPORTED) == (product.memory_mib is None)
        assert (answer(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle) is Ret.NOT_SUPPORTED) == (product.limit_watts is None)
        assert (answer(pynvml.nvmlDeviceGetFanSpeed, handle) is Ret.NOT_SUPPORTED) == (product.fans == 0)
        assert (answer(pynvml.nvmlDeviceGetEccMode, handle) is Ret.NOT_SUPPORTED) == (not product.ecc)
        assert (answer(pynvml.nvmlDeviceGetNvLinkState, handle, 0) is Ret.NOT_SUPPORTED) == (product.links == 0)
        assert pynvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice == product.gpm
        temperature = pynvml.nvmlDeviceGetFieldValues(handle, [pynvml.NVML_FI_DEV_MEMORY_TEMP])[0]
        assert (temperature.nvmlReturn == Ret.NOT_SUPPORTED) == (not product.memory_temp)


# --- fields, GPM, processes -----------------------------------------------------------------------------------


def field(handle: Any, *fields: Any) -> list[Any]:
    return list(pynvml.nvmlDeviceGetFieldValues(handle, list(fields)))


def test_fields_follow_the_named_values(simulator: NvmlSimulator, handles: list[Any]) -> None:
    simulator.gpu[0].set(energy_mj=2**40, memory_temp=61, power_instant_mw=None, power_mw=555_000, power_average_mw=444_000)
    energy, temperature, instant, average, unknown = field(
        handles[0],
        pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION,
        pynvml.NVML_FI_DEV_MEMORY_TEMP,
        pynvml.NVML_FI_DEV_POWER_INSTANT,
        pynvml.NVML_FI_DEV_POWER_AVERAGE,
        9999,
    )
    assert (energy.value.ullVal, energy.valueType) == (2**40, ValueType.UNSIGNED_LONG_LONG)
    assert (temperature.value.uiVal, temperature.valueType) == (61, ValueType.UNSIGNED_INT)
    assert (instant.value.uiVal, average.value.uiVal) == (555_000, 444_000)
    assert (energy.nvmlReturn, unknown.nvmlReturn) == (Ret.SUCCESS, Ret.NOT_SUPPORTED)
    assert energy.timestamp > 0


def test_link_fields_take_a_link_or_all_of_them(simulator: NvmlSimulator, handles: list[Any]) -> None:
    simulator.gpu[0].set(nvlink_data_tx_kib=5)
    simulator.gpu[0].set(nvlink_data_tx_kib={3: 70})
    tx = pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX
    one, all_links, beyond, count = field(handles[0], (tx, 3), (tx, ALL_LINKS), (tx, 18), pynvml.NVML_FI_DEV_NVLINK_LINK_COUNT)
    assert one.value.ullVal == 70
    assert all_links.value.ullVal == 17 * 5 + 70
    assert beyond.nvmlReturn == Ret.INVALID_ARGUMENT
    assert count.value.uiVal == 18


def test_a_field_can_answer_anything(simulator: NvmlSimulator, handles: list[Any]) -> None:
    gpu = simulator.gpu[0]
    gpu.set_field("MEMORY_TEMP", Ret.NO_PERMISSION)
    gpu.set_field(308, 41.5, kind=ValueType.DOUBLE)
    gpu.set_field("NVML_FI_DEV_NVLINK_THROUGHPUT_RAW_TX", 9, scope=2)
    refused, precise, link = field(handles[0], pynvml.NVML_FI_DEV_MEMORY_TEMP, 308, (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_RAW_TX, 2))
    assert refused.nvmlReturn == Ret.NO_PERMISSION
    assert (precise.value.dVal, precise.valueType) == (41.5, ValueType.DOUBLE)
    assert link.value.ullVal == 9
    gpu.clear_fields()
    assert field(handles[0], pynvml.NVML_FI_DEV_MEMORY_TEMP)[0].value.uiVal == gpu.get("memory_temp")


def gpm(samples: tuple[Any, Any], *metrics: int, version: int = 1) -> Any:
    get = pynvml.c_nvmlGpmMetricsGet_t()
    get.version, get.numMetrics = version, len(metrics)
    get.sample1, get.sample2 = samples
    for position, metric in enumerate(metrics):
        get.metrics[position].metricId = metric
    return pynvml.nvmlGpmMetricsGet(get)


def test_gpm_refuses_samples_that_do_not_belong_together(simulator: NvmlSimulator, handles: list[Any]) -> None:
    first, second = pynvml.nvmlGpmSampleAlloc(), pynvml.nvmlGpmSampleAlloc()
    pynvml.nvmlGpmSampleGet(handles[0], first)
    assert answer(gpm, (first, second), 2) is Ret.INVALID_ARGUMENT  # the second was never taken
    assert answer(gpm, (first, first), 2) is Ret.INVALID_ARGUMENT  # no time between them
    pynvml.nvmlGpmSampleGet(handles[1], second)
    assert answer(gpm, (first, second), 2) is Ret.INVALID_ARGUMENT  # two GPUs
    assert answer(lambda: gpm((first, second), 2, version=7)) is Ret.ARGUMENT_VERSION_MISMATCH
    simulator.gpu[0].set(gpm_support=0)
    assert answer(pynvml.nvmlGpmSampleGet, handles[0], first) is Ret.NOT_SUPPORTED


def test_processes_by_kind(simulator: NvmlSimulator, handles: list[Any]) -> None:
    simulator.processes(
        1, [Process(11, used=100, sm=40), Process(12, kind="G"), Process(13, kind="CG", used=300), Process(14, kind="M", mem=5)]
    )
    compute = pynvml.nvmlDeviceGetComputeRunningProcesses(handles[1])
    assert [(entry.pid, entry.usedGpuMemory) for entry in compute] == [(11, 100), (13, 300)]
    assert [entry.pid for entry in pynvml.nvmlDeviceGetGraphicsRunningProcesses(handles[1])] == [12, 13]
    assert pynvml.nvmlDeviceGetGraphicsRunningProcesses(handles[1])[0].usedGpuMemory is None
    assert [entry.pid for entry in pynvml.nvmlDeviceGetMPSComputeRunningProcesses(handles[1])] == [14]
    assert pynvml.nvmlDeviceGetComputeRunningProcesses(handles[0]) == []
    busy = pynvml.nvmlDeviceGetProcessUtilization(handles[1], 0)
    assert [(entry.pid, entry.smUtil, entry.memUtil) for entry in busy] == [(11, 40, 0), (14, 0, 5)]
    assert answer(pynvml.nvmlDeviceGetProcessUtilization, handles[0], 0) is Ret.NOT_FOUND
    assert answer(pynvml.nvmlDeviceGetProcessUtilization, handles[1], 2**63) is Ret.NOT_FOUND


def test_process_lists_say_how_much_room_they_need(simulator: NvmlSimulator, handles: list[Any], library: Any) -> None:
    simulator.processes(0, [Process(21, used=1), Process(22, used=NOT_AVAILABLE)])
    listing = library.nvmlDeviceGetComputeRunningProcesses_v3
    count = ctypes.c_uint(0)
    assert (listing(handles[0], ctypes.byref(count), None), count.value) == (Ret.INSUFFICIENT_SIZE, 2)
    count = ctypes.c_uint(1)
    room = (pynvml.c_nvmlProcessInfo_v3_t * 8)()
    assert (listing(handles[0], ctypes.byref(count), room), count.value) == (Ret.INSUFFICIENT_SIZE, 2)
    count = ctypes.c_uint(8)
    assert (listing(handles[0], ctypes.byref(count), room), count.value) == (Ret.SUCCESS, 2)
    assert (room[0].pid, room[1].usedGpuMemory) == (21, NOT_AVAILABLE)
    count = ctypes.c_uint(0)
    assert (listing(handles[1], ctypes.byref(count), None), count.value) == (Ret.SUCCESS, 0)


# --- faults ---------------------------------------------------------------------------------------------------


def test_a_hang_with_the_lock_held_blocks_everything(simulator: NvmlSimulator, handles: list[Any]) -> None:
    simulator.rule("nvmlDeviceGetPowerUsage", gpu=1, hang="lock")
    with ThreadPoolExecutor(2) as pool:
        stuck = pool.submit(pynvml.nvmlDeviceGetPowerUsage, handles[1])
        simulator.wait_for("nvmlDeviceGetPowerUsage", gpu=1)

        def one_that_waits() -> Future[str] | None:
            """A call of another thread, once the hanging one has taken the lock."""
            call = pool.submit(pynvml.nvmlSystemGetDriverVersion)
            return None if wait([call], 0.1).done else call

        behind = wait_for(one_that_waits)
        assert not stuck.done()
        simulator.clear_rules()
        assert stuck.result(HANG) > 0
        assert behind is not None and behind.result(HANG) == "570.124.06"


def test_a_driver_that_comes_back_is_another_one(simulator: NvmlSimulator, handles: list[Any]) -> None:
    simulator.driver_away()
    assert answer(pynvml.nvmlDeviceGetPowerUsage, handles[0]) is Ret.DRIVER_NOT_LOADED
    simulator.driver_away(Ret.UNKNOWN)
    assert answer(pynvml.nvmlDeviceGetPowerUsage, handles[0]) is Ret.UNKNOWN
    assert answer(pynvml.nvmlInit) is Ret.DRIVER_NOT_LOADED
    simulator.driver_back()
    assert answer(pynvml.nvmlDeviceGetPowerUsage, handles[0]) is Ret.UNINITIALIZED
    pynvml.nvmlShutdown()
    pynvml.nvmlInit()
    assert answer(pynvml.nvmlDeviceGetPowerUsage, handles[0]) is Ret.INVALID_ARGUMENT
    assert pynvml.nvmlDeviceGetPowerUsage(pynvml.nvmlDeviceGetHandleByIndex(0)) > 0


def test_init_counts_its_callers(simulator: NvmlSimulator, handles: list[Any]) -> None:
    pynvml.nvmlInit()
    pynvml.nvmlShutdown()
    assert pynvml.nvmlDeviceGetPowerUsage(handles[0]) > 0
    pynvml.nvmlShutdown()
    assert answer(pynvml.nvmlDeviceGetPowerUsage, handles[0]) is Ret.UNINITIALIZED
    assert answer(pynvml.nvmlShutdown) is Ret.UNINITIALIZED


def test_garbage_is_refused_not_followed(simulator: NvmlSimulator, handles: list[Any], library: Any) -> None:
    room = (ctypes.c_char * 4096)()
    for handle in (None, 1, 0xDEADBEEF, 2**64 - 1, ctypes.cast(handles[0], ctypes.c_void_p).value or 0 + 63):
        assert library.nvmlDeviceGetPowerUsage(ctypes.c_void_p(handle), None) == Ret.INVALID_ARGUMENT
    assert library.nvmlDeviceGetPowerUsage(handles[0], None) == Ret.INVALID_ARGUMENT
    assert library.nvmlGpmSampleFree(ctypes.c_void_p(0x1234)) == Ret.INVALID_ARGUMENT
    assert library.nvmlDeviceGetName(handles[0], room, 3) == Ret.INSUFFICIENT_SIZE


def test_every_stub_survives_any_argument(simulator: NvmlSimulator, handles: list[Any], library: Any) -> None:
    stubs = sorted(simulator.functions - simulator.implemented)
    for name in stubs:
        for handle in (handles[0], ctypes.c_void_p(0xDEAD)):
            assert getattr(library, name)(handle, None, ctypes.c_void_p(7), 3) == Ret.NOT_SUPPORTED
    assert simulator.stubs_called() == frozenset(stubs)


def test_implemented_functions_survive_null_pointers(simulator: NvmlSimulator, handles: list[Any], library: Any) -> None:
    for name in sorted(simulator.implemented - {"nvmlShutdown", "nvmlErrorString"}):
        takes_a_device = "Device" in name and "HandleBy" not in name and "GetCount" not in name
        first = handles[0] if takes_a_device else None
        assert getattr(library, name)(first, None, None, None, None) in set(Ret), name


def test_everything_pynvml_looks_up_is_there(simulator: NvmlSimulator, library: Any) -> None:
    source = Path(pynvml.__file__).read_text()
    assert set(re.findall(r'_nvmlGetFunctionPointer\("(\w+)"\)', source)) <= simulator.functions
    assert all(hasattr(library, name) for name in simulator.functions)


# --- several processes, several libraries ---------------------------------------------------------------------


def test_a_simulator_is_not_in_the_process_until_it_is_loaded() -> None:
    program = """
        import ctypes
        from tests.simulators.nvml import NvmlSimulator
        with NvmlSimulator(gpus=2) as made:
            try:
                ctypes.CDLL("libnvidia-ml.so.1")
            except OSError:
                pass
            else:
                raise SystemExit("loaded early, or this machine has a driver")
            made.load()
            n.nvmlInit()
            print(n.nvmlDeviceGetCount())
    """
    if Path("/proc/driver/nvidia").exists():
        pytest.skip("platform: a real NVML library is installed")
    environment = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    done = subprocess.run(
        [sys.executable, "-c", "import pynvml as n\n" + textwrap.dedent(program)],
        env=environment | {"PYTHONPATH": os.pathsep.join(sys.path)}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stdout.strip() == "2", done.stderr


def test_an_old_driver_lacks_functions() -> None:
    hidden = ["nvmlDeviceGetMemoryInfo_v2", "nvmlGpmSampleGet"]
    with NvmlSimulator(gpus=1, hide=hidden) as made:
        program = """
            n.nvmlInit()
            handle = n.nvmlDeviceGetHandleByIndex(0)
            print(n.nvmlDeviceGetMemoryInfo(handle).total)
            try:
                n.nvmlDeviceGetMemoryInfo(handle, n.nvmlMemory_v2)
            except n.NVMLError as error:
                print(error.value)
        """
        total, code = run(made, program).stdout.split()
        assert (int(total), Ret(int(code))) == (PRODUCTS["h100"].memory_mib * 2**20, Ret.FUNCTION_NOT_FOUND)  # type: ignore[operator]
    with pytest.raises(ValueError, match="nvmlNoSuchThing"):
        build(hide=["nvmlNoSuchThing"])


# --- MIG --------------------------------------------------------------------------------------------------------


def test_a_mig_device_answers_what_it_has(simulator: NvmlSimulator, handles: list[Any]) -> None:
    first, second = simulator.partition(1, ["3g.40gb", "1g.10gb"])
    second.set(memory_used=123)
    device = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handles[1], 1)
    assert pynvml.nvmlDeviceGetName(device) == "NVIDIA H100 80GB HBM3 MIG 1g.10gb"
    memory = pynvml.nvmlDeviceGetMemoryInfo(device, pynvml.nvmlMemory_v2)
    assert (memory.total, memory.used, memory.free) == (10 << 30, 123, (10 << 30) - 123)
    assert pynvml.nvmlDeviceGetMemoryInfo(device).used == 123
    assert (pynvml.nvmlDeviceGetGpuInstanceId(device), pynvml.nvmlDeviceGetComputeInstanceId(device)) == (7, 0)
    assert [pynvml.nvmlDeviceIsMigDeviceHandle(handle).value for handle in (device, handles[1])] == [1, 0]
    assert pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByUUID(second.uuid)) == second.uuid
    assert answer(pynvml.nvmlDeviceGetHandleByUUID, "MIG-none") is Ret.NOT_FOUND
    parent = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device)
    assert pynvml.nvmlDeviceGetUUID(parent) == pynvml.nvmlDeviceGetUUID(handles[1])
    for board in (pynvml.nvmlDeviceGetPowerUsage, pynvml.nvmlDeviceGetUtilizationRates, pynvml.nvmlDeviceGetPciInfo):
        assert answer(board, device) is Ret.NOT_SUPPORTED
    assert first.memory_total == 40 << 30


def test_compute_instances_share_a_gpu_instance(simulator: NvmlSimulator) -> None:
    made = simulator.partition(1, ["1c.3g.40gb", "1c.3g.40gb", "1c.3g.40gb", "1c.3g.40gb", "3g.40gb"])
    assert [(one.gpu_instance, one.compute_instance) for one in made] == [(1, 0), (1, 1), (1, 2), (2, 0), (3, 0)]
    with pytest.raises(ValueError, match="no MIG profile"):
        simulator.partition(1, ["half"])


def test_gpm_of_a_mig_device(simulator: NvmlSimulator, handles: list[Any]) -> None:
    instance = simulator.partition(1, ["3g.40gb"])[0]
    instance.set(gpm={"SM_UTIL": 12.5})
    samples = [pynvml.nvmlGpmSampleAlloc() for _ in range(3)]
    for sample in samples[:2]:
        pynvml.nvmlGpmMigSampleGet(handles[1], instance.gpu_instance, sample)
    get = pynvml.c_nvmlGpmMetricsGet_t(version=1, numMetrics=1, sample1=samples[0], sample2=samples[1])
    get.metrics[0].metricId = pynvml.NVML_GPM_METRIC_SM_UTIL
    assert pynvml.nvmlGpmMetricsGet(get).metrics[0].value == 12.5
    pynvml.nvmlGpmSampleGet(handles[1], samples[2])
    get.sample2 = samples[2]
    assert answer(pynvml.nvmlGpmMetricsGet, get) is Ret.INVALID_ARGUMENT, "samples of the whole and of a part do not mix"
    assert answer(pynvml.nvmlGpmMigSampleGet, handles[1], 99, samples[0]) is Ret.NOT_FOUND
    assert answer(pynvml.nvmlGpmMigSampleGet, handles[0], 1, samples[0]) is Ret.NOT_SUPPORTED
    instance.set(gpm=Ret.NO_PERMISSION)
    assert answer(pynvml.nvmlGpmMigSampleGet, handles[1], instance.gpu_instance, samples[0]) is Ret.NO_PERMISSION


# --- events -----------------------------------------------------------------------------------------------------


def test_events_of_registered_gpus_come_in_order(simulator: NvmlSimulator, handles: list[Any]) -> None:
    instance = simulator.partition(2, ["3g.40gb"])[0]
    simulator.xid(1, 1)
    events = pynvml.nvmlEventSetCreate()
    for handle in handles[1:3]:
        pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, events)
    simulator.xid(0, 2)
    simulator.event(1, pynvml.nvmlEventTypePState)
    simulator.xid(1, 79)
    simulator.xid(2, 43, instance)
    found = [pynvml.nvmlEventSetWait_v2(events, 1000) for _ in range(2)]
    assert [(pynvml.nvmlDeviceGetIndex(event.device), event.eventData) for event in found] == [(1, 79), (2, 43)]
    assert [event.gpuInstanceId for event in found] == [0xFFFFFFFF, instance.gpu_instance]
    assert answer(pynvml.nvmlEventSetWait_v2, events, 1) is Ret.TIMEOUT


def test_event_sets_are_made_and_freed(simulator: NvmlSimulator, handles: list[Any]) -> None:
    events = pynvml.nvmlEventSetCreate()
    assert answer(pynvml.nvmlDeviceRegisterEvents, handles[0], 1 << 40, events) is Ret.NOT_SUPPORTED
    simulator.gpu[0].set(event_types=None)
    assert answer(pynvml.nvmlDeviceRegisterEvents, handles[0], 8, events) is Ret.NOT_SUPPORTED
    pynvml.nvmlEventSetFree(events)
    assert answer(pynvml.nvmlEventSetFree, events) is Ret.INVALID_ARGUMENT
    assert answer(pynvml.nvmlEventSetWait_v2, events, 1) is Ret.INVALID_ARGUMENT


def test_more_events_than_are_kept(simulator: NvmlSimulator, handles: list[Any]) -> None:
    """The oldest are lost, as in a driver's buffer."""
    events = pynvml.nvmlEventSetCreate()
    pynvml.nvmlDeviceRegisterEvents(handles[0], 8, events)
    for code in range(300):
        simulator.xid(0, code)
    assert pynvml.nvmlEventSetWait_v2(events, 1).eventData == 300 - 256
