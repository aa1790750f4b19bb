"""The layouts and numbers in the tables are those of the structures and constants of NVIDIA's own binding."""

from __future__ import annotations

import ctypes
import struct
from typing import Any

import pytest

from accelmetrics.backends.nvidia import NVIDIA, calls, driver, gpm, links, metrics, nvml, processes, threads
from accelmetrics.backends.nvidia.metrics import Call, NvmlField
from accelmetrics.schemas import fabric

pynvml: Any = pytest.importorskip("pynvml")

ROWS = (*metrics.METRICS, metrics.GPM_SUPPORT, links.COUNT)
BEHIND = tuple(row.otherwise for row in ROWS if row.otherwise is not None)
CALLS = dict.fromkeys(row.source for row in (*ROWS, *BEHIND) if isinstance(row.source, Call))
STRUCTURED = {call.function: call for own in CALLS for call in (own, own.fallback) if call is not None and call.structure}
FIELDS = [
    *(row.source for row in ROWS if isinstance(row.source, NvmlField)),
    *metrics.T_LIMITS.values(),
    *(metrics.LINK_STATE, *metrics.LINK_TRAFFIC.values(), *(field for fields in metrics.LINK_COUNTS.values() for field in fields)),
    *(*metrics.LINK_COUNTS_OF_ALL.values(), *metrics.LINK_RATIOS.values()),
]


@pytest.mark.parametrize("call", STRUCTURED.values(), ids=STRUCTURED)
def test_layouts_of_structures(call: Call) -> None:
    """Same size, and each number is the member that it is taken for."""
    structure: Any = getattr(pynvml, call.structure)
    assert struct.calcsize("=" + call.layout) == ctypes.sizeof(structure)
    filled = structure()
    for number, member in enumerate(call.members, start=1000):
        setattr(filled, member, number)
    assert struct.unpack_from("=" + call.layout, bytes(filled)) == tuple(range(1000, 1000 + len(call.members)))


def test_the_layout_of_a_field() -> None:
    """Type, return code and value stand where the decoder of a batch looks for them."""
    layout = struct.Struct(f"={calls.FIELD_HEAD}Q")
    assert layout.size == ctypes.sizeof(pynvml.c_nvmlFieldValue_t)
    field = pynvml.c_nvmlFieldValue_t()
    field.fieldId, field.scopeId, field.valueType, field.nvmlReturn = 7, 8, 3, 13
    field.value.ullVal = 2**40
    assert layout.unpack(bytes(field)) == (13 << 32 | 3, 2**40)
    assert struct.unpack_from("=II", bytes(field)) == (7, 8)


@pytest.mark.parametrize("field", dict.fromkeys(FIELDS), ids=lambda field: field.symbol)
def test_numbers_of_fields(field: NvmlField) -> None:
    """Each field's number is the one that the binding has under its name."""
    assert field.identifier == getattr(pynvml, f"NVML_FI_DEV_{field.symbol}")


def test_the_most_links() -> None:
    """As many as the header has room for."""
    assert links.MOST_LINKS == pynvml.NVML_NVLINK_MAX_LINKS


def test_the_layout_of_gpm_metrics() -> None:
    """Return code and value of each metric, and the two sample pointers."""
    get, metric = pynvml.c_nvmlGpmMetricsGet_t, pynvml.c_nvmlGpmMetric_t
    assert get.metrics.offset == gpm.METRICS_OFFSET
    assert struct.calcsize("=" + gpm.METRIC_LAYOUT) == ctypes.sizeof(metric)
    assert (metric.metricId.offset, metric.nvmlReturn.offset, metric.value.offset) == (0, 4, 8)
    assert (get.sample1.offset, get.sample2.offset) == (gpm.SAMPLES_OFFSET, gpm.SAMPLES_OFFSET + 8)
    assert (get.version.offset, get.numMetrics.offset, gpm.METRICS_VERSION) == (0, 4, pynvml.NVML_GPM_METRICS_GET_VERSION)
    assert len(metrics.GPM_METRICS) <= gpm.FEWEST_METRICS <= pynvml.NVML_GPM_METRIC_MAX


@pytest.mark.parametrize(("identifier", "symbol"), metrics.GPM_METRICS.values(), ids=metrics.GPM_METRICS)
def test_numbers_of_gpm_metrics(identifier: int, symbol: str) -> None:
    """Each metric's number is the one that the binding has under its name."""
    assert identifier == getattr(pynvml, f"NVML_GPM_METRIC_{symbol}")


def test_versions_of_structures() -> None:
    """The number that tells the library which structure it gets."""
    assert metrics.MEMORY.version == pynvml.nvmlMemory_v2
    assert isinstance(metrics.MARGIN.source, Call)
    assert metrics.MARGIN.source.version == pynvml.nvmlMarginTemperature_v1
    assert isinstance(metrics.GPM_SUPPORT.source, Call)
    assert metrics.GPM_SUPPORT.source.version == pynvml.NVML_GPM_SUPPORT_VERSION


def test_constants() -> None:
    """Each argument that a row names has the binding's number."""
    named = [each for call in CALLS for each in call.arguments] + list(metrics.PCIE_RATES.values())
    assert {name: getattr(pynvml, name) for name, _ in named} == dict(named)


def test_bits_of_the_clocks_event_reasons() -> None:
    """Each key's bit is the binding's."""
    events = ("GpuIdle", "ApplicationsClocksSetting", "SwPowerCap", "SyncBoost", "SwThermalSlowdown", "DisplayClockSetting")
    throttles = ("HwSlowdown", "HwThermalSlowdown", "HwPowerBrakeSlowdown")
    for kind, symbols in (("Event", events), ("Throttle", throttles)):
        for symbol in symbols:
            name = f"throttle.{symbol[0].lower()}{symbol[1:]}"
            assert 1 << metrics.THROTTLE.index(name) == getattr(pynvml, f"nvmlClocks{kind}Reason{symbol}")


def test_the_layouts_of_processes() -> None:
    """Today's form is the binding's, and so are its size and that of the form with protected memory."""
    process, sample = pynvml.c_nvmlProcessInfo_v2_t, pynvml.c_nvmlProcessUtilizationSample_t
    filled = process(pid=7, usedGpuMemory=2**40, gpuInstanceId=1, computeInstanceId=2)
    assert processes.PROCESS.size == ctypes.sizeof(process) == processes.PROCESS_SIZES[0]
    assert processes.PROCESS.unpack(bytes(filled)) == (7, 2**40)
    assert ctypes.sizeof(pynvml.c_nvmlProcessDetail_v1_t) == max(processes.PROCESS_SIZES)
    filled = sample(pid=7, timeStamp=2**40, smUtil=1, memUtil=2, encUtil=3, decUtil=4)
    assert processes.SAMPLE.size == ctypes.sizeof(sample)
    assert processes.SAMPLE.unpack(bytes(filled)) == (7, 2**40, 1, 2)


def test_the_layout_of_an_event() -> None:
    """That of the binding, where its long has 64 bits."""
    binding = pynvml.c_nvmlEventData_t
    assert threads.EVENT.size == ctypes.sizeof(binding)
    assert (binding.device.offset, binding.eventType.offset, binding.eventData.offset) == (0, 8, 16)
    assert pynvml.nvmlEventTypeXidCriticalError == threads.XID_EVENT


@pytest.mark.parametrize("version", [2, 3])
def test_the_fabric(version: int) -> None:
    """The binding reads the state's byte with the room behind it."""
    binding = getattr(pynvml, f"c_nvmlGpuFabricInfo_v{version}_t")
    call = links.FABRIC if version == 3 else links.FABRIC.fallback
    assert call is not None
    filled = binding()
    numbers = {"status": 2, "cliqueId": 3, "state": 4, "healthMask": 5, **({"healthSummary": 6} if version == 3 else {})}
    for name, number in numbers.items():
        setattr(filled, name, number)
    assert struct.calcsize("=" + call.layout) == ctypes.sizeof(binding)
    assert struct.unpack("=" + call.layout, bytes(filled)) == (0, 0, *numbers.values())
    assert call.members[2:] == tuple(numbers)
    assert call.version == getattr(pynvml, f"nvmlGpuFabricInfo_v{version}")


def test_the_states_and_the_health_of_the_fabric() -> None:
    """The numbers that the binding has under their names, and where they stand in the mask."""
    states = ("NOT_SUPPORTED", "NOT_STARTED", "IN_PROGRESS", "COMPLETED")
    assert [getattr(pynvml, f"NVML_GPU_FABRIC_STATE_{name}") for name in states] == [links.NO_FABRIC, *links.FABRIC_STATES]
    symbols = ("DEGRADED_BW", "ROUTE_RECOVERY", "ROUTE_UNHEALTHY", "ACCESS_TIMEOUT_RECOVERY")
    named = dict(zip(("degradedBandwidth", "routeRecovery", "routeUnhealthy", "accessTimeoutRecovery"), symbols, strict=True))
    mask = "NVML_GPU_FABRIC_HEALTH_MASK"
    assert {ours: getattr(pynvml, f"{mask}_SHIFT_{name}") for ours, name in named.items()} == metrics.FABRIC_FLAGS
    assert {getattr(pynvml, f"{mask}_{name}_{answer}") for name in named.values() for answer in ("TRUE",)} == {1}
    assert getattr(pynvml, f"{mask}_SHIFT_INCORRECT_CONFIGURATION") == metrics.FABRIC_CONFIGURATION
    assert getattr(pynvml, f"{mask}_INCORRECT_CONFIGURATION_NONE") == fabric.RIGHT
    incorrect = ("INCORRECT_SYSGUID", "INCORRECT_CHASSIS_SN", "NO_PARTITION", "INSUFFICIENT_NVLINKS", "INCOMPATIBLE_GPU_FW")
    numbers = [getattr(pynvml, f"{mask}_INCORRECT_CONFIGURATION_{name}") for name in (*incorrect, "INVALID_LOCATION", "GPU_STATE_INVALID")]
    assert list(fabric.INCORRECT) == numbers
    summaries = [getattr(pynvml, f"NVML_GPU_FABRIC_HEALTH_SUMMARY_{name}") for name in ("HEALTHY", "UNHEALTHY", "LIMITED_CAPACITY")]
    assert (summaries[1], max(summaries)) == (fabric.UNHEALTHY, links.MOST_SUMMARY)


def test_the_layout_of_the_platform() -> None:
    """Both versions have the same bytes."""
    for version, tag in zip((2, 1), nvml.PLATFORM_VERSIONS, strict=True):
        binding = getattr(pynvml, f"c_nvmlPlatformInfo_v{version}_t")
        assert (ctypes.sizeof(binding), getattr(pynvml, f"nvmlPlatformInfo_v{version}")) == (nvml.PLATFORM.size, tag)
    filled = pynvml.c_nvmlPlatformInfo_v2_t()
    for number, name in enumerate(("slotNumber", "trayIndex", "hostId", "peerType", "moduleId"), start=1):
        setattr(filled, name, number)
    assert nvml.PLATFORM.unpack(bytes(filled))[3:] == (1, 2, 3, 4, 5)


def test_the_layout_of_a_pci_address() -> None:
    """Where the address stands as text."""
    binding = pynvml.nvmlPciInfo_t
    assert ctypes.sizeof(binding) == nvml.PCI_INFO_SIZE == struct.calcsize(NVIDIA.pci)
    filled = binding(busId=b"00000001:02:03.0", domain=1, bus=2, device=3, pciDeviceId=4)
    assert struct.unpack(NVIDIA.pci, bytes(filled)) == (1, 2, 3, 4, b"00000001:02:03.0".ljust(32, b"\0"))


def test_texts_fit() -> None:
    """The longest text that NVML has."""
    sizes = {name: value for name, value in vars(pynvml).items() if name.startswith("NVML_DEVICE_") and name.endswith("_BUFFER_SIZE")}
    assert max(sizes.values()) == nvml.LONGEST_TEXT


def test_every_return_code_has_a_meaning() -> None:
    """Whatever the binding knows stands in the table, under the same name."""
    known = {value: name for name, value in vars(pynvml).items() if name.startswith("NVML_ERROR_") and isinstance(value, int)}
    assert len(known) > 25
    assert {code: nvml.MEANINGS[code][0] for code in known} == known


def test_numbers_of_what_is_told_on_request() -> None:
    """Levels of the topology, and what links lead to."""
    names = ("INTERNAL", "SINGLE", "MULTIPLE", "HOSTBRIDGE", "NODE", "SYSTEM")
    assert list(driver.LEVELS) == [getattr(pynvml, f"NVML_TOPOLOGY_{name}") for name in names]
    kinds = (driver.REMOTE_GPU, driver.REMOTE_SWITCH)
    assert kinds == (pynvml.NVML_NVLINK_DEVICE_TYPE_GPU, pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH)
