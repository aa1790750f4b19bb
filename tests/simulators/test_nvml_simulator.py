"""The NVML simulator is worth what it imitates: real clients load it, and what they may not do fails as with the real library.

That each value and each fault is what was ordered, the tests of NVIDIA's backend show.
"""

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
    PRODUCTS,
    NvmlSimulator,
    Ret,
    SimulatorUnavailable,
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
