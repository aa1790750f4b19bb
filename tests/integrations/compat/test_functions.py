"""Each function of the binding answers with the snapshot's numbers in NVML's units, or with the code of why there is none."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from accelmetrics.integrations.compat import feed as feeds
from accelmetrics.schemas.errors import InvalidOptionError, Reason, Unavailable
from accelmetrics.schemas.identity import DeviceIdentity, DeviceProcess
from accelmetrics.schemas.snapshot import Snapshot
from tests.integrations.compat.bound import MI210, MIB, VALUES, Bound, device_functions, reading, second

Make = Callable[..., Bound]
NOT_SUPPORTED, NOT_FOUND, DRIVER_NOT_LOADED, TIMEOUT, GPU_IS_LOST = 3, 6, 9, 10, 15


@pytest.fixture
def bound() -> Iterator[Make]:
    """Makes a binding over readings, and removes those."""
    made: list[Bound] = []

    def make(first: Snapshot, everything: bool = False) -> Bound:
        made.append(Bound(first, everything))
        made[-1].nvml.nvmlInit()
        return made[-1]

    yield make
    for one in made:
        one.feed.remove()


@pytest.fixture
def mi210(bound: Make) -> Bound:
    """One accelerator that tells everything, and two processes on it."""
    processes = [DeviceProcess(41, "compute", 7 * MIB, 25.4, None), DeviceProcess(42, "", None), DeviceProcess(43, "compute+graphics", 9)]
    return bound(reading((MI210, VALUES), processes={"gpu.0": processes}))


@pytest.mark.parametrize(
    ("function", "arguments", "answer"),
    [
        ("nvmlDeviceGetName", (), "AMD Instinct MI210"),
        ("nvmlDeviceGetUUID", (), "0x8e5520cb71d2aa00"),
        ("nvmlDeviceGetSerial", (), "PCB03110"),
        ("nvmlDeviceGetVbiosVersion", (), "113-D67301-063"),
        ("nvmlDeviceGetIndex", (), 0),
        ("nvmlDeviceGetTemperature", (0,), 47),
        ("nvmlDeviceGetTemperatureV", (0,), 47),
        ("nvmlDeviceGetTemperatureThreshold", (0,), 105),
        ("nvmlDeviceGetTemperatureThreshold", (1,), 100),
        ("nvmlDeviceGetPowerUsage", (), 212_500),
        ("nvmlDeviceGetEnforcedPowerLimit", (), 300_000),
        ("nvmlDeviceGetPowerManagementLimit", (), 300_000),
        ("nvmlDeviceGetTotalEnergyConsumption", (), 5_000_000_250),
        ("nvmlDeviceGetClockInfo", (0,), 1700),
        ("nvmlDeviceGetClockInfo", (1,), 1700),
        ("nvmlDeviceGetClockInfo", (2,), 1600),
        ("nvmlDeviceGetMaxClockInfo", (1,), 1710),
        ("nvmlDeviceGetMaxClockInfo", (2,), 1610),
        ("nvmlDeviceGetFanSpeed", (), 30),
        ("nvmlDeviceGetFanSpeed_v2", (0,), 30),
        ("nvmlDeviceGetPerformanceState", (), 2),
        ("nvmlDeviceGetEncoderUtilization", (), [11, 0]),
        ("nvmlDeviceGetDecoderUtilization", (), [12, 0]),
        ("nvmlDeviceGetCurrPcieLinkGeneration", (), 3),
        ("nvmlDeviceGetCurrPcieLinkWidth", (), 8),
        ("nvmlDeviceGetMaxPcieLinkGeneration", (), 4),
        ("nvmlDeviceGetMaxPcieLinkWidth", (), 16),
        ("nvmlDeviceGetPcieThroughput", (0,), 2),
        ("nvmlDeviceGetPcieThroughput", (1,), 4),
        ("nvmlDeviceGetPcieReplayCounter", (), 5),
        ("nvmlDeviceGetCurrentClocksEventReasons", (), 0x44),
        ("nvmlDeviceGetCurrentClocksThrottleReasons", (), 0x44),
        ("nvmlDeviceGetTotalEccErrors", (0, 0), 7),
        ("nvmlDeviceGetTotalEccErrors", (1, 1), 3),
        ("nvmlDeviceGetMemoryErrorCounter", (0, 0, 2), 7),
        ("nvmlDeviceGetComputeMode", (), 0),
        ("nvmlDeviceGetArchitecture", (), 0xFFFFFFFF),
    ],
)
def test_what_a_device_answers(mi210: Bound, function: str, arguments: tuple[int, ...], answer: object) -> None:
    """In milliwatts, millijoules, KiB, whole degrees."""
    assert getattr(mi210.nvml, function)(mi210.handle(), *arguments) == answer


def test_structures(mi210: Bound) -> None:
    """Of each version: the first counts the driver's reserve as used."""
    nvml, handle = mi210.nvml, mi210.handle()
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    assert (memory.total, memory.used, memory.free) == (65520 * MIB, 16520 * MIB, 49000 * MIB)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    assert (memory.total, memory.reserved, memory.used, memory.free) == (65520 * MIB, 140 * MIB, 16380 * MIB, 49000 * MIB)
    rates = nvml.nvmlDeviceGetUtilizationRates(handle)
    assert (rates.gpu, rates.memory) == (83, 41)
    place = nvml.nvmlDeviceGetPciInfo(handle)
    assert (place.busId, place.busIdLegacy, place.domain, place.bus, place.device) == ("00000000:43:00.0", "0000:43:00.0", 0, 0x43, 0)
    assert nvml.nvmlSystemGetDriverVersion() == "6.8.5"


def test_processes(mi210: Bound) -> None:
    """One without a kind computes; memory that is not known is none."""
    nvml, handle = mi210.nvml, mi210.handle()
    for version in ("", "_v2", "_v3"):
        found = getattr(nvml, f"nvmlDeviceGetComputeRunningProcesses{version}")(handle)
        assert [(one.pid, one.usedGpuMemory, one.gpuInstanceId) for one in found] == [
            (41, 7 * MIB, 2**32 - 1),
            (42, None, 2**32 - 1),
            (43, 9, 2**32 - 1),
        ]
        graphics = getattr(nvml, f"nvmlDeviceGetGraphicsRunningProcesses{version}")(handle)
        assert [one.pid for one in graphics] == [43]
    (sample,) = nvml.nvmlDeviceGetProcessUtilization(handle, 0)
    assert (sample.pid, sample.smUtil, sample.memUtil) == (41, 25, 0)
    assert mi210.code("nvmlDeviceGetProcessUtilization", handle, sample.timeStamp) == NOT_FOUND


def test_processes_that_are_not_listed(bound: Make) -> None:
    """Are not none."""
    one = bound(reading((MI210, VALUES), (second(), VALUES), processes={"gpu.0": []}))
    assert one.nvml.nvmlDeviceGetComputeRunningProcesses(one.handle(0)) == []
    assert one.code("nvmlDeviceGetProcessUtilization", one.handle(0), 0) == NOT_FOUND
    assert one.code("nvmlDeviceGetComputeRunningProcesses", one.handle(1)) == NOT_SUPPORTED
    one.feed.write(reading((MI210, VALUES), processes={"gpu.0": [DeviceProcess(41)]}))
    assert one.code("nvmlDeviceGetProcessUtilization", one.handle(0), 0) == NOT_SUPPORTED


def test_field_values(mi210: Bound) -> None:
    """Each with its own code; those of one part of the device are not known."""
    nvml = mi210.nvml
    energy, memory, power, of_memory, link = nvml.nvmlDeviceGetFieldValues(
        mi210.handle(),
        [
            nvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION,
            nvml.NVML_FI_DEV_MEMORY_TEMP,
            (nvml.NVML_FI_DEV_POWER_AVERAGE, nvml.NVML_POWER_SCOPE_GPU),
            (nvml.NVML_FI_DEV_POWER_AVERAGE, nvml.NVML_POWER_SCOPE_MEMORY),
            nvml.NVML_FI_DEV_NVLINK_LINK_COUNT,
        ],
    )
    assert (energy.nvmlReturn, energy.valueType, energy.value.ullVal) == (0, nvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, 5_000_000_250)
    assert (memory.nvmlReturn, memory.valueType, memory.value.uiVal) == (0, nvml.NVML_VALUE_TYPE_UNSIGNED_INT, 52)
    assert (power.nvmlReturn, power.value.uiVal) == (0, 212_500)
    assert (of_memory.nvmlReturn, link.nvmlReturn) == (NOT_SUPPORTED, NOT_SUPPORTED)


def test_devices_are_found_by_what_they_are(mi210: Bound) -> None:
    """Bytes are as good as texts."""
    nvml, address = mi210.nvml, ctypes.c_void_p.from_buffer(mi210.handle()).value or 0
    found = [
        nvml.nvmlDeviceGetHandleByUUID("0x8e5520cb71d2aa00"),
        nvml.nvmlDeviceGetHandleByUUID(b"0x8e5520cb71d2aa00"),
        nvml.nvmlDeviceGetHandleByUUIDV(b"0x8e5520cb71d2aa00", nvml.NVML_UUID_TYPE_ASCII),
        nvml.nvmlDeviceGetHandleBySerial("PCB03110"),
        nvml.nvmlDeviceGetHandleByPciBusId("0000:43:00.0"),
        nvml.nvmlDeviceGetHandleByPciBusId("00000000:43:00.0"),
    ]
    assert {ctypes.c_void_p.from_buffer(handle).value for handle in found} == {address}
    assert ctypes.string_at(address, 1) == b"\0"  # memory that is there


def test_what_is_no_device(mi210: Bound) -> None:
    """Has NVML's codes."""
    assert mi210.code("nvmlDeviceGetHandleByIndex", 1) == 2
    assert mi210.code("nvmlDeviceGetHandleByUUID", "GPU-18ef") == NOT_FOUND
    assert mi210.code("nvmlDeviceGetHandleBySerial", "1") == NOT_FOUND
    assert mi210.code("nvmlDeviceGetHandleByPciBusId", "0000:44:00.0") == NOT_FOUND
    assert mi210.code("nvmlDeviceGetHandleByPciBusId", "nonsense") == 2
    assert mi210.code("nvmlDeviceGetPowerUsage", mi210.nvml.c_nvmlDevice_t()) == 2
    assert mi210.code("nvmlDeviceGetPowerUsage", None) == 2
    assert mi210.code("nvmlDeviceGetTemperature", mi210.handle(), 7) == NOT_SUPPORTED


def test_every_function_of_the_binding(mi210: Bound) -> None:
    """Gives a value, or an error of the binding's own."""
    functions, answered = dict(device_functions(mi210.nvml)), []
    for name, call in functions.items():
        try:
            call(mi210.handle())
            answered.append(name)
        except mi210.nvml.NVMLError as error:
            assert error.value in (2, NOT_SUPPORTED, NOT_FOUND), name
    assert len(functions) > 250
    assert len(answered) > 35, answered


def test_what_changes_a_device_raises(mi210: Bound) -> None:
    """Some of the binding's functions would drop the code, and seem to have succeeded."""
    handle = mi210.handle()
    assert mi210.code("nvmlDeviceSetPowerManagementLimit", handle, 1) == NOT_SUPPORTED
    assert mi210.code("nvmlDeviceSetPowerManagementLimit_v2", handle, 0, 1) == NOT_SUPPORTED
    assert mi210.code("nvmlDeviceSetClockOffsets", handle, mi210.nvml.c_nvmlClockOffset_t()) == NOT_SUPPORTED
    assert mi210.code("nvmlEventSetCreate") == NOT_SUPPORTED
    assert mi210.code("nvmlSystemGetCudaDriverVersion") == NOT_SUPPORTED
    assert mi210.code("nvmlUnitGetCount") == NOT_SUPPORTED


@pytest.mark.parametrize("reason", Reason)
def test_why_a_value_is_missing(bound: Make, reason: Reason) -> None:
    """Is the code that NVML has for it."""
    why = Unavailable(reason, "")
    names = ("powerWatts", "gpu", "memoryAllocatedBytes", "throttle.gpuIdle", "energyJoules")
    one = bound(reading((MI210, {"temp": 40}), missing={f"gpu.0.{name}": why for name in names}))
    expected = {
        **dict.fromkeys((Reason.NOT_SUPPORTED, Reason.NOT_IN_USE, Reason.SUSPENDED, Reason.NEEDS_INTERVAL), 3),
        **{Reason.NO_PERMISSION: 4, Reason.DRIVER_UNAVAILABLE: 9, Reason.TIMED_OUT: 10, Reason.STALE: 10},
        **{Reason.DEVICE_LOST: 15, Reason.RESET_REQUIRED: 16},
    }.get(reason, 999)
    for function in (
        *("nvmlDeviceGetPowerUsage", "nvmlDeviceGetUtilizationRates", "nvmlDeviceGetMemoryInfo"),
        *("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetTotalEnergyConsumption"),
    ):
        assert one.code(function, one.handle()) == expected, function
    assert one.nvml.nvmlDeviceGetFieldValues(one.handle(), [185])[0].nvmlReturn == expected
    assert one.nvml.nvmlDeviceGetTemperature(one.handle(), 0) == 40


def test_the_one_number_that_is_made_up(bound: Make) -> None:
    """The memory's share is 0 where it is missing: as an error it would cost the other one too."""
    rates = (one := bound(reading((MI210, {"gpu": 83})))).nvml.nvmlDeviceGetUtilizationRates(one.handle())
    assert (rates.gpu, rates.memory) == (83, 0)


def test_a_generation_is_told_with_the_throughput_alone(bound: Make) -> None:
    """Panels that find one ask for the other."""
    values = {name: value for name, value in VALUES.items() if name != "pcieRxBytes"}
    one = bound(reading((MI210, values)))
    assert one.code("nvmlDeviceGetMaxPcieLinkGeneration", one.handle()) == NOT_SUPPORTED


def test_a_device_without_a_name_or_a_uuid_can_be_told_from_others(bound: Make) -> None:
    """By its address, or its key; a text that is missing is not supported."""
    one = bound(reading((DeviceIdentity("npu", "ascend", 0), {}), (DeviceIdentity("gpu", "intel", 0, pci_bus_id="0000:03:00.0"), {})))
    names = [(one.nvml.nvmlDeviceGetName(one.handle(index)), one.nvml.nvmlDeviceGetUUID(one.handle(index))) for index in (0, 1)]
    assert names == [("ascend", "npu.0"), ("intel", "0000:03:00.0")]
    assert one.code("nvmlDeviceGetSerial", one.handle()) == NOT_SUPPORTED
    assert one.code("nvmlDeviceGetPciInfo", one.handle(0)) == NOT_SUPPORTED


def test_devices_of_other_kinds(bound: Make) -> None:
    """Are judged by the same few numbers, whatever those are called there."""
    tpu = DeviceIdentity("tpu", "google", 0, name="TPU v5e")
    values = {"dutyCycle": 12.6, "hbmCapacityUsage": 3 * MIB, "hbmCapacityTotal": 16 * MIB}
    one = bound(reading((tpu, values)))
    memory = one.nvml.nvmlDeviceGetMemoryInfo(one.handle())
    assert (memory.total, memory.used, memory.free) == (16 * MIB, 3 * MIB, 13 * MIB)
    assert one.nvml.nvmlDeviceGetUtilizationRates(one.handle()).gpu == 13


def test_partitions_are_no_devices_of_their_own(bound: Make) -> None:
    """As they are none in NVML's count."""
    one = bound(reading((MI210, VALUES), (second()._replace(parent=MI210.uuid), VALUES)))
    assert one.nvml.nvmlDeviceGetCount() == 1


def test_a_machine_without_devices(bound: Make) -> None:
    """Has no driver, for a program that asks."""
    with pytest.raises(Exception, match="Driver Not Loaded") as raised:
        bound(reading())
    assert raised.value.value == DRIVER_NOT_LOADED  # type: ignore[attr-defined]  # of the binding


def test_a_handle_stays_its_devices(bound: Make) -> None:
    """Whichever number that has; one that is gone is lost."""
    other = {**VALUES, "powerWatts": 43.0}
    one = bound(reading((MI210, VALUES), (second(), other)))
    first, last = one.handle(0), one.handle(1)
    one.feed.write(reading((second(), other), (MI210, VALUES)))
    assert [one.nvml.nvmlDeviceGetPowerUsage(handle) for handle in (first, last)] == [212_500, 43_000]
    assert [one.nvml.nvmlDeviceGetIndex(handle) for handle in (first, last)] == [1, 0]
    one.feed.write(reading((second(), other)))
    assert one.code("nvmlDeviceGetPowerUsage", first) == GPU_IS_LOST
    assert one.nvml.nvmlDeviceGetPowerUsage(last) == 43_000


def test_old_readings_are_a_driver_that_does_not_answer(mi210: Bound, monkeypatch: pytest.MonkeyPatch) -> None:
    """What writes them has ended or hangs."""
    handle = mi210.handle()
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + feeds.VALID_SECONDS + 1)
    assert mi210.code("nvmlDeviceGetPowerUsage", handle) == TIMEOUT
    assert mi210.code("nvmlDeviceGetCount") == TIMEOUT
    monkeypatch.undo()
    assert mi210.nvml.nvmlDeviceGetPowerUsage(handle) == 212_500
    mi210.feed.remove()
    assert mi210.code("nvmlDeviceGetPowerUsage", handle) == TIMEOUT


def test_energy_without_a_counter(bound: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Is the power, added up since the program began."""
    now = [time.monotonic()]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    one = bound(reading((MI210, {"powerWatts": 100.0})))
    assert one.nvml.nvmlDeviceGetTotalEnergyConsumption(one.handle()) == 0
    for watts in (300.0, 300.0):
        now[0] += 2.0
        one.feed.write(reading((MI210, {"powerWatts": watts})))
    assert one.nvml.nvmlDeviceGetTotalEnergyConsumption(one.handle()) == 1_000_000
    now[0] += 2.0
    one.feed.write(reading((MI210, {})))  # what it draws meanwhile is not known, and not made up
    assert one.nvml.nvmlDeviceGetTotalEnergyConsumption(one.handle()) == 1_000_000
    for reason, code in ((Reason.TIMED_OUT, 10), (Reason.NOT_SUPPORTED, NOT_SUPPORTED)):  # a counter that is away is not replaced
        counting = bound(reading((MI210, {"powerWatts": 100.0, "energyJoules": 5.0e6})))
        away = {"gpu.0.energyJoules": Unavailable(reason, "")}
        counting.feed.write(reading((MI210, {"powerWatts": 100.0}), missing=away))
        assert counting.code("nvmlDeviceGetTotalEnergyConsumption", counting.handle()) == code
    with_none = bound(reading((MI210, {"temp": 40})))
    assert with_none.code("nvmlDeviceGetTotalEnergyConsumption", with_none.handle()) == NOT_SUPPORTED


def test_nvidias_devices_are_not_hidden(bound: Make) -> None:
    """Without being told so; they then come first, in their own order."""
    h100 = DeviceIdentity("gpu", "nvidia", 0, name="NVIDIA H100", uuid="GPU-18ef14e9-dec6-1d7e-1284-3010c6ce98b1")
    mixed = reading((MI210, VALUES), (h100, VALUES))
    with pytest.raises(InvalidOptionError, match=r"NVIDIA devices \(gpu.1\).*--as-nvml=all"):
        bound(mixed)
    one = bound(mixed, everything=True)
    assert [one.nvml.nvmlDeviceGetName(one.handle(index)) for index in (0, 1)] == ["NVIDIA H100", "AMD Instinct MI210"]


def test_every_answer_is_one_that_a_function_asks_for() -> None:
    """No row of the table has a name that the binding does not know."""
    import pynvml

    names = {function.partition(":")[0] for function, *_ in feeds.ANSWERS} | set(feeds.CONSTANTS)
    assert {name for name in names if not hasattr(pynvml, name)} == {"memory", "field"}


def test_words_of_codes(mi210: Bound) -> None:
    """Are the library's."""
    assert mi210.nvml.nvmlErrorString(3) == "Not Supported"
    assert mi210.nvml.nvmlErrorString(12345) == "Unknown Error"


def test_the_stand_in_is_no_library_to_others(mi210: Bound) -> None:
    """Only NVML's names are its own."""
    library: Any = mi210.nvml.nvmlLib
    assert hasattr(library, "nvmlInitWithFlags")
    assert not hasattr(library, "cuInit")
