"""The layouts in the tables are those of the structures that the library fills in."""

from __future__ import annotations

import ctypes
import struct
from typing import Any

import pytest

from accelmetrics.backends.nvidia import calls, gpm, links
from accelmetrics.backends.nvidia.calls import Call
from accelmetrics.backends.nvidia.errors import MEANINGS
from accelmetrics.backends.nvidia.fabric import NO_FABRIC, VERSION, WORDS, FabricInfo
from accelmetrics.backends.nvidia.processes import OldProcess
from accelmetrics.backends.nvidia.xid import XID_EVENT, EventData

pynvml: Any = pytest.importorskip("pynvml")

_TABLES = (*calls.FAST, *calls.EVERY_SECOND, *calls.EVERY_TEN_SECONDS, *calls.ONCE, calls.GPM_SUPPORT)
_ALL = [*_TABLES, *(call.fallback for call in _TABLES if call.fallback is not None)]
STRUCTURED = {call.function: call for call in _ALL if call.structure and not call.fields}
MEMBERS = {
    "nvmlDeviceGetUtilizationRates": ("gpu", "memory"),
    "nvmlDeviceGetMemoryInfo_v2": ("total", "free", "used"),
    "nvmlDeviceGetMemoryInfo": ("total", "free", "used"),
    "nvmlDeviceGetBAR1MemoryInfo": ("bar1Used",),
    "nvmlGpmQueryDeviceSupport": ("isSupportedDevice",),
}


@pytest.mark.parametrize("call", STRUCTURED.values(), ids=STRUCTURED)
def test_layouts_of_structures(call: Call) -> None:
    """Same size, and each number is the member that it is taken for."""
    structure: Any = getattr(pynvml, call.structure)
    assert struct.calcsize("=" + call.layout) == ctypes.sizeof(structure)
    filled = structure()
    for number, member in enumerate(MEMBERS[call.function], start=1000):
        setattr(filled, member, number)
    unpacked = struct.unpack_from("=" + call.layout, bytes(filled))
    assert unpacked == tuple(range(1000, 1000 + len(MEMBERS[call.function])))


def test_the_layout_of_a_field() -> None:
    """Type, return code and value stand where the batch decoder looks for them."""
    layout = struct.Struct(f"={calls.FIELD_HEAD}Q")
    assert layout.size == ctypes.sizeof(pynvml.c_nvmlFieldValue_t)
    field = pynvml.c_nvmlFieldValue_t()
    field.fieldId, field.scopeId, field.valueType, field.nvmlReturn = 7, 8, 3, 13
    field.value.ullVal = 2**40
    assert layout.unpack(bytes(field)) == (13 << 32 | 3, 2**40)
    assert struct.unpack_from("=II", bytes(field)) == (7, 8)


def test_the_layout_of_gpm_metrics() -> None:
    """Return code and value of each metric, and the two sample pointers."""
    get = pynvml.c_nvmlGpmMetricsGet_t
    metric = pynvml.c_nvmlGpmMetric_t
    assert get.metrics.offset == gpm.METRICS_OFFSET
    assert struct.calcsize("=" + gpm.METRIC_LAYOUT) == ctypes.sizeof(metric)
    assert [metric.maximum for metric in gpm.SHARES] == [100.0] * 8
    assert (metric.metricId.offset, metric.nvmlReturn.offset, metric.value.offset) == (0, 4, 8)
    assert (get.sample1.offset, get.sample2.offset) == (8, 16)


@pytest.mark.parametrize("metric", gpm.METRICS, ids=lambda metric: metric.name)
def test_numbers_of_gpm_metrics(metric: gpm.Metric) -> None:
    """Each metric's number is the one that the binding has under its name."""
    names = {
        "smActive": "SM_UTIL",
        "smOccupancy": "SM_OCCUPANCY",
        "dramActive": "DRAM_BW_UTIL",
        "pipeTensorActive": "ANY_TENSOR_UTIL",
        "pipeTensorHmmaActive": "HMMA_TENSOR_UTIL",
        "pipeFp64Active": "FP64_UTIL",
        "pipeFp32Active": "FP32_UTIL",
        "pipeFp16Active": "FP16_UTIL",
        "pcieTxBytes": "PCIE_TX_PER_SEC",
        "pcieRxBytes": "PCIE_RX_PER_SEC",
        "nvlinkTxBytes": "NVLINK_TOTAL_TX_PER_SEC",
        "nvlinkRxBytes": "NVLINK_TOTAL_RX_PER_SEC",
    }
    assert metric.identifier == getattr(pynvml, f"NVML_GPM_METRIC_{names[metric.name]}")


def test_numbers_of_fields() -> None:
    """Each field's number is the one that the binding has under its name."""
    names = {
        "memoryTemp": "MEMORY_TEMP",
        "energyJoules": "TOTAL_ENERGY_CONSUMPTION",
        "pcieTxBytesTotal": "PCIE_COUNT_TX_BYTES",
        "pcieRxBytesTotal": "PCIE_COUNT_RX_BYTES",
        "nvlinkTxBytesTotal": "NVLINK_THROUGHPUT_DATA_TX",
        "nvlinkRxBytesTotal": "NVLINK_THROUGHPUT_DATA_RX",
        "pcieReplays": "PCIE_REPLAY_COUNTER",
        "remappedRowsCorrected": "REMAPPED_COR",
        "remappedRowsUncorrected": "REMAPPED_UNC",
    }
    fields = [field for call in _ALL for field in call.fields]
    assert {field.value.names[0]: field.identifier for field in fields} == {
        name: getattr(pynvml, f"NVML_FI_DEV_{symbol}") for name, symbol in names.items()
    }


def test_versions_of_structures() -> None:
    """The number that tells the library which structure it gets."""
    assert calls.MEMORY.version == pynvml.nvmlMemory_v2
    assert calls.GPM_SUPPORT.version == pynvml.NVML_GPM_SUPPORT_VERSION


def test_bits_of_the_clocks_event_reasons() -> None:
    """Each key's bit is the binding's."""
    symbols = ("GpuIdle", "ApplicationsClocksSetting", "SwPowerCap", "SyncBoost", "SwThermalSlowdown", "DisplayClockSetting")
    for symbol in symbols:
        name = f"throttle.{symbol[0].lower()}{symbol[1:]}"
        assert 1 << calls.THROTTLE.index(name) == getattr(pynvml, f"nvmlClocksEventReason{symbol}")
    for symbol in ("HwSlowdown", "HwThermalSlowdown", "HwPowerBrakeSlowdown"):
        name = f"throttle.{symbol[0].lower()}{symbol[1:]}"
        assert 1 << calls.THROTTLE.index(name) == getattr(pynvml, f"nvmlClocksThrottleReason{symbol}")


def test_the_first_form_of_a_process() -> None:
    """Number and memory, padded to 16 bytes."""
    assert ctypes.sizeof(OldProcess) == 16
    assert OldProcess.usedGpuMemory.offset == 8


def test_the_layout_of_an_event() -> None:
    """That of the binding, where its long has 64 bits."""
    binding = pynvml.c_nvmlEventData_t
    members = ("device", "eventType", "eventData", "gpuInstanceId", "computeInstanceId")
    assert ctypes.sizeof(EventData) == ctypes.sizeof(binding) == 32
    assert [getattr(EventData, ours[0]).offset for ours in EventData._fields_] == [getattr(binding, name).offset for name in members]
    assert pynvml.nvmlEventTypeXidCriticalError == XID_EVENT


def test_the_layout_of_the_fabric() -> None:
    """Size, version and offsets; the binding reads the state's byte with the room behind it."""
    binding = pynvml.c_nvmlGpuFabricInfo_v2_t
    members = ("version", "clusterUuid", "status", "cliqueId", "state", "healthMask")
    assert ctypes.sizeof(FabricInfo) == ctypes.sizeof(binding) == VERSION & 0xFFFFFF
    assert [getattr(FabricInfo, ours[0]).offset for ours in FabricInfo._fields_] == [getattr(binding, name).offset for name in members]
    assert pynvml.nvmlGpuFabricInfo_v2 == VERSION
    states = ("NOT_SUPPORTED", "NOT_STARTED", "IN_PROGRESS", "COMPLETED")
    assert [getattr(pynvml, f"NVML_GPU_FABRIC_STATE_{name}") for name in states] == [NO_FABRIC, *WORDS]


def test_numbers_of_link_fields() -> None:
    """Each field's number is the one that the binding has under its name."""
    assert links.COUNT.identifier == pynvml.NVML_FI_DEV_NVLINK_LINK_COUNT
    assert links.STATE_FIELD == pynvml.NVML_FI_DEV_NVLINK_GET_STATE
    assert links.MOST_LINKS == pynvml.NVML_NVLINK_MAX_LINKS
    traffic = {name: field for name, (field, _) in links.TRAFFIC.items()}
    assert traffic == {"tx": pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, "rx": pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX}
    symbols = {"nvlinkCrcErrors": ("CRC", "CRC_FLIT"), "nvlinkReplayErrors": ("REPLAY",) * 2, "nvlinkRecoveryErrors": ("RECOVERY",) * 2}
    assert {
        name: (getattr(pynvml, f"NVML_FI_DEV_NVLINK_ERROR_DL_{one}"), getattr(pynvml, f"NVML_FI_DEV_NVLINK_{every}_ERROR_COUNT_TOTAL"))
        for name, (one, every) in symbols.items()
    } == links.ERRORS


def test_every_return_code_has_a_meaning() -> None:
    """Whatever the binding knows stands in the table, under the same name."""
    known = {value: name for name, value in vars(pynvml).items() if name.startswith("NVML_ERROR_") and isinstance(value, int)}
    assert len(known) > 25
    assert {code: MEANINGS[code].symbol for code in known} == known
