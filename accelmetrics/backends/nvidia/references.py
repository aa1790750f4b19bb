"""The values that NVIDIA's own binding and command report for the same GPUs, for ``accelmetrics verify``.

Calls, structures, constants and units are those of ``pynvml`` and of ``nvidia-smi --help-query-gpu``. No code is shared with the
sampler's decoding, so that an error there shows as a difference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from ctypes import byref
from importlib import import_module
from itertools import chain
from typing import Any

from accelmetrics.backends.contract import ReadOptions, ReferenceValue
from accelmetrics.backends.kit import Command, Query
from accelmetrics.backends.nvidia import wsl_folders
from accelmetrics.backends.nvidia.metrics import METRICS, TEN_SECONDS
from accelmetrics.schemas.errors import Reason, SourceError
from accelmetrics.schemas.identity import DeviceSlot
from accelmetrics.schemas.named_tuple import NamedTuple

KIB, MIB = 1024, 2**20
KEPT = {name: 1.0 + min(row.every, TEN_SECONDS) for row in METRICS for name in row.names}
"""Seconds for which a sampler may repeat a value, by metric, plus one second, over which NVML itself takes means."""
KEPT |= dict.fromkeys(("powerPercent",), KEPT["enforcedPowerLimitWatts"])


class Row(NamedTuple):
    """A metric and its function in ``pynvml``.

    Attributes:
        name: The metric.
        function: The function; its first argument is the handle.
        arguments: The other arguments: names of constants, or numbers.
        part: The part of the answer: an attribute or a position. By default the answer itself; of a list, the number of entries.
        factor: The answer times this is in the metric's unit.
    """

    name: str
    function: str
    arguments: tuple[str | int, ...] = ()
    part: str | int = ""
    factor: float = 1


_MEMORY, _MEMORY_V2 = ("nvmlDeviceGetMemoryInfo", ()), ("nvmlDeviceGetMemoryInfo", ("nvmlMemory_v2",))
_CLOCKS = {"smClock": "SM", "memoryClock": "MEM", "graphicsClock": "GRAPHICS", "videoClock": "VIDEO"}
_MAX_CLOCKS = {"maxSmClock": "SM", "maxMemoryClock": "MEM", "maxVideoClock": "VIDEO"}
_ERRORS = {
    f"{kind}{what}{span}": (f"NVML_MEMORY_ERROR_TYPE_{kind.upper()}", f"NVML_{counter}_ECC", place)
    for kind in ("corrected", "uncorrected")
    for span, counter in (("", "VOLATILE"), ("Aggregate", "AGGREGATE"))
    for what, place in (("EccErrors", ""), ("MemoryErrors", "NVML_MEMORY_LOCATION_DEVICE_MEMORY"))
}
_ERRORS["unCorrectedMemoryErrors"] = _ERRORS["uncorrectedMemoryErrors"]
_SLOWED = ("power", "thermal", "syncBoost", "boardLimit", "lowUtilization", "reliability")
_LIMITS = {"tempLimit.shutdown": "SHUTDOWN", "tempLimit.slowdown": "SLOWDOWN", "memoryMaxOpTemp": "MEM_MAX", "maxOpTemp": "GPU_MAX"}
ROWS = (
    Row("gpu", "nvmlDeviceGetUtilizationRates", part="gpu"),
    Row("memory", "nvmlDeviceGetUtilizationRates", part="memory"),
    # Version 2 leaves the driver's reserve out of the used memory. Version 1 is read if version 2 fails.
    *(
        Row(name, function, arguments, part)
        for function, arguments in (_MEMORY_V2, _MEMORY)
        for name, part in (("memoryTotalBytes", "total"), ("memoryFreeBytes", "free"), ("memoryAllocatedBytes", "used"))
    ),
    Row("bar1UsedBytes", "nvmlDeviceGetBAR1MemoryInfo", part="bar1Used"),
    Row("temp", "nvmlDeviceGetTemperature", ("NVML_TEMPERATURE_GPU",)),
    Row("tempMargin", "nvmlDeviceGetMarginTemperature"),
    *(Row(name, "nvmlDeviceGetTemperatureThreshold", (f"NVML_TEMPERATURE_THRESHOLD_{which}",)) for name, which in _LIMITS.items()),
    Row("fanSpeed", "nvmlDeviceGetFanSpeed"),
    Row("powerWatts", "nvmlDeviceGetPowerUsage", factor=0.001),
    Row("enforcedPowerLimitWatts", "nvmlDeviceGetEnforcedPowerLimit", factor=0.001),
    Row("defaultPowerLimitWatts", "nvmlDeviceGetPowerManagementDefaultLimit", factor=0.001),
    Row("minPowerLimitWatts", "nvmlDeviceGetPowerManagementLimitConstraints", part=0, factor=0.001),
    Row("maxPowerLimitWatts", "nvmlDeviceGetPowerManagementLimitConstraints", part=1, factor=0.001),
    Row("energyJoules", "nvmlDeviceGetTotalEnergyConsumption", factor=0.001),
    *(Row(name, "nvmlDeviceGetClockInfo", (f"NVML_CLOCK_{clock}",)) for name, clock in _CLOCKS.items()),
    *(Row(name, "nvmlDeviceGetMaxClockInfo", (f"NVML_CLOCK_{clock}",)) for name, clock in _MAX_CLOCKS.items()),
    *(
        Row(f"{engine}Utilization", f"nvmlDeviceGet{call}Utilization", part=0)
        for engine, call in (("encoder", "Encoder"), ("decoder", "Decoder"), ("jpeg", "Jpg"), ("ofa", "Ofa"))
    ),
    Row("performanceState", "nvmlDeviceGetPerformanceState"),
    Row("persistenceMode", "nvmlDeviceGetPersistenceMode"),
    Row("computeMode", "nvmlDeviceGetComputeMode"),
    Row("migMode", "nvmlDeviceGetMigMode", part=0),
    Row("migModePending", "nvmlDeviceGetMigMode", part=1),
    Row("eccMode", "nvmlDeviceGetEccMode", part=0),
    Row("eccModePending", "nvmlDeviceGetEccMode", part=1),
    Row("pcieLinkGen", "nvmlDeviceGetCurrPcieLinkGeneration"),
    Row("pcieLinkWidth", "nvmlDeviceGetCurrPcieLinkWidth"),
    Row("maxPcieLinkGen", "nvmlDeviceGetMaxPcieLinkGeneration"),
    Row("maxPcieLinkWidth", "nvmlDeviceGetMaxPcieLinkWidth"),
    Row("pcieReplays", "nvmlDeviceGetPcieReplayCounter"),
    *(
        # The call for totals has no argument for the location.
        Row(name, "nvmlDeviceGetMemoryErrorCounter" if place else "nvmlDeviceGetTotalEccErrors", (kind, counter, place)[: 2 + bool(place)])
        for name, (kind, counter, place) in _ERRORS.items()
    ),
    *(
        Row(name, "nvmlDeviceGetRemappedRows", part=place)
        for place, name in enumerate(("remappedRowsCorrected", "remappedRowsUncorrected", "rowRemapPending", "rowRemapFailure"))
    ),
    Row("retiredPagesSingleBit", "nvmlDeviceGetRetiredPages", ("NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS",)),
    Row("retiredPagesDoubleBit", "nvmlDeviceGetRetiredPages", ("NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR",)),
    Row("retiredPagesPending", "nvmlDeviceGetRetiredPagesPendingStatus"),
    *(
        Row(f"violationSeconds.{why}", "nvmlDeviceGetViolationStatus", (policy,), "violationTime", 1e-9)
        for policy, why in enumerate(_SLOWED)  # in the order of NVML_PERF_POLICY_…
    ),
    Row("c2cMode", "nvmlDeviceGetC2cModeInfoV", part="isC2cEnabled"),
)
FIELDS = {
    "memoryTemp": "MEMORY_TEMP",
    "powerInstantWatts": "POWER_INSTANT",
    "pcieTxBytesTotal": "PCIE_COUNT_TX_BYTES",
    "pcieRxBytesTotal": "PCIE_COUNT_RX_BYTES",
    "recoveryAction": "GET_GPU_RECOVERY_ACTION",
    "c2cLinks": "C2C_LINK_COUNT",
}
"""The field of ``nvmlDeviceGetFieldValues``, after ``NVML_FI_DEV_``, by metric."""
TYPES = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""The member with a field's value, by its ``nvmlValueType_t``."""
REASONS = {
    "gpuIdle": "GpuIdle",
    "applicationsClocksSetting": "ApplicationsClocksSetting",
    "swPowerCap": "SwPowerCap",
    "hwSlowdown": "HwSlowdown",
    "syncBoost": "SyncBoost",
    "swThermalSlowdown": "SwThermalSlowdown",
    "hwThermalSlowdown": "HwThermalSlowdown",
    "hwPowerBrakeSlowdown": "HwPowerBrakeSlowdown",
    "displayClockSetting": "DisplayClockSetting",
}
"""End of NVML's constant (``nvmlClocksThrottleReason…``), by the end of the metric's name (``throttle.…``)."""
STATES = ("GpuIdle", "ApplicationsClocksSetting", "DisplayClockSetting")
"""Reasons that slow nothing down."""
SRAM = {
    "correctedSramErrors": "volatileCor",
    "uncorrectedSramParityErrors": "volatileUncParity",
    "uncorrectedSramSecDedErrors": "volatileUncSecDed",
    "correctedSramErrorsAggregate": "aggregateCor",
    "uncorrectedSramParityErrorsAggregate": "aggregateUncParity",
    "uncorrectedSramSecDedErrorsAggregate": "aggregateUncSecDed",
    "uncorrectedSramErrorsAggregate.l2": "aggregateUncBucketL2",
    "uncorrectedSramErrorsAggregate.sm": "aggregateUncBucketSm",
    "uncorrectedSramErrorsAggregate.microcontroller": "aggregateUncBucketMcu",
    "uncorrectedSramErrorsAggregate.pcie": "aggregateUncBucketPcie",
    "uncorrectedSramErrorsAggregate.other": "aggregateUncBucketOther",
    "sramThresholdExceeded": "bThresholdExceeded",
}
"""The member of the binding's structure of SRAM errors, by metric."""
FABRIC = {
    "degradedBandwidth": "DEGRADED_BW",
    "routeRecovery": "ROUTE_RECOVERY",
    "routeUnhealthy": "ROUTE_UNHEALTHY",
    "accessTimeoutRecovery": "ACCESS_TIMEOUT_RECOVERY",
    "incorrectConfiguration": "INCORRECT_CONFIGURATION",
}
"""The constants after ``NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_``, by the name after ``fabricHealth.``."""
FABRIC_SAFE_FROM = 550
"""The first branch of drivers that does not crash when asked about the fabric."""
LINK_ERRORS = {"nvlinkReplayErrors": "REPLAY", "nvlinkRecoveryErrors": "RECOVERY", "nvlinkCrcErrors": "CRC_FLIT"}
"""The counter after ``NVML_NVLINK_ERROR_DL_``, added up over the links, by metric."""
LINK_COUNTS = {
    "nvlinkRecoveryErrors": "LINK_RECOVERY_EVENTS",
    "nvlinkRecoverySuccesses": "LINK_RECOVERY_SUCCESSFUL_EVENTS",
    "nvlinkRecoveryFailures": "LINK_RECOVERY_FAILED_EVENTS",
    "nvlinkMalformedErrors": "MALFORMED_PACKET_ERRORS",
    "nvlinkOverrunErrors": "BUFFER_OVERRUN_ERRORS",
    "nvlinkReceiveErrors": "RCV_ERRORS",
    "nvlinkRemoteErrors": "RCV_REMOTE_ERRORS",
    "nvlinkHeaderErrors": "RCV_GENERAL_ERRORS",
    "nvlinkIntegrityErrors": "LOCAL_LINK_INTEGRITY_ERRORS",
    "nvlinkDiscardErrors": "XMIT_DISCARDS",
    "nvlinkEffectiveErrors": "EFFECTIVE_ERRORS",
    "nvlinkSymbolErrors": "SYMBOL_ERRORS",
    **{f"nvlinkFec.bin{bin_}": f"FEC_HISTORY_{bin_}" for bin_ in range(16)},
}
"""The field of NVLink 5 after ``NVML_FI_DEV_NVLINK_COUNT_``, added up over the links, by metric."""
PROFILED = {
    "grEngineActive": "GRAPHICS_UTIL",
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
"""The constant after ``NVML_GPM_METRIC_``, by metric; rates are in MiB per second."""


class NvidiaMlPy:
    """nvidia-ml-py, the binding of NVML that NVIDIA publishes.

    Args:
        options: The options with the watched process.
    """

    name = "nvidia-ml-py"

    def __init__(self, options: ReadOptions) -> None:
        self._pid = options.pid
        self._nvml: Any = None
        self._refusals: tuple[type[Exception], ...] = (AttributeError,)  # raised for a function that the binding lacks
        self._samples: dict[str, Any] = {}  # GPM samples by UUID

    def read(self, slots: Sequence[DeviceSlot]) -> Mapping[str, ReferenceValue | str]:
        if self._nvml is None:
            try:
                nvml = import_module("pynvml")
            except ImportError as error:
                raise SourceError(Reason.DRIVER_UNAVAILABLE, f"nvidia-ml-py is not installed: {error}") from error
            nvml.nvmlInit()
            self._nvml = nvml
            older_driver = getattr(nvml, "NVMLLibraryMismatchError", nvml.NVMLError)  # the driver has only an older form
            self._refusals = (AttributeError, nvml.NVMLError, older_driver)
        nvml = self._nvml
        found: dict[str, ReferenceValue | str] = {"nvidia.devices": ReferenceValue(nvml.nvmlDeviceGetCount())}
        for slot in slots:
            if not slot.identity.uuid:
                continue
            try:
                handle = nvml.nvmlDeviceGetHandleByUUID(slot.identity.uuid)
            except nvml.NVMLError as error:
                if error.value == nvml.NVML_ERROR_UNINITIALIZED:
                    self.close()  # the driver was reloaded: the next reading opens it again
                    raise
                continue
            for name, value in self._device(handle, slot.identity.uuid, bool(slot.identity.parent)):
                found[f"{slot.key}.{name}"] = value
            if not slot.identity.parent and (used := self._used_memory(handle)) is not None:
                found[f"{slot.identity.kind}.process.{slot.index}.memoryAllocatedBytes"] = ReferenceValue(used, kept=2.0)
        return found

    def close(self) -> None:
        nvml, self._nvml, self._samples = self._nvml, None, {}
        if nvml is not None:
            with suppress(nvml.NVMLError):
                nvml.nvmlShutdown()

    def _device(self, handle: Any, uuid: str, partition: bool) -> Iterator[tuple[str, ReferenceValue | str]]:
        """Yield each metric of a device with a number, or with the reason why there is none."""
        answers: dict[tuple[str, tuple[Any, ...]], Any] = {}
        values: dict[str, float | str] = {}
        for row in ROWS:
            # An earlier row of the metric has answered, and this one is its fallback.
            if isinstance(values.get(row.name), (int, float)):
                continue
            asked = row.function, row.arguments
            if asked not in answers:
                answers[asked] = self._call(row.function, handle, *row.arguments)
            values[row.name] = _part(answers[asked], row.part, row.factor)
        for name, symbol in FIELDS.items():
            values[name] = self._fields(handle, symbol)[0]
        if isinstance(watts := values["powerInstantWatts"], (int, float)):
            # The field is in mW.
            values["powerInstantWatts"] = watts / 1000
        values |= self._throttling(handle)
        for share, part, whole in (
            ("memoryAllocated", "memoryAllocatedBytes", "memoryTotalBytes"),
            ("powerPercent", "powerWatts", "enforcedPowerLimitWatts"),
        ):
            some, total = values[part], values[whole]
            if isinstance(some, (int, float)) and isinstance(total, (int, float)) and total:
                values[share] = 100 * some / total
        if not partition:
            values |= {**self._sram(handle), **self._fabric(handle), **self._links(handle)}
        for name, value in values.items():
            reported = value if isinstance(value, str) else ReferenceValue(value, kept=KEPT.get(name, 1.0 + TEN_SECONDS))
            yield name, reported._replace(over="counter") if name == "energyJoules" and isinstance(reported, ReferenceValue) else reported
        yield from self._profiled(handle, uuid, partition)

    def _call(self, function: str, handle: Any, *arguments: Any) -> Any:
        """Return a function's answer, or its error in words."""
        nvml = self._nvml
        try:
            return getattr(nvml, function)(
                handle, *(getattr(nvml, argument) if isinstance(argument, str) else argument for argument in arguments)
            )
        except self._refusals as error:
            return f"{function}: {error}"

    def _fields(self, handle: Any, symbol: str, scopes: Sequence[int] = (0,)) -> list[float | str]:
        """Return the values of a field, named without ``NVML_FI_DEV_``, for some scopes: links, or 0 for fields without scopes."""
        field = getattr(self._nvml, f"NVML_FI_DEV_{symbol}", None)
        if field is None:
            return [f"this nvidia-ml-py has no NVML_FI_DEV_{symbol}" for _ in scopes]
        answers = self._call("nvmlDeviceGetFieldValues", handle, [(field, scope) for scope in scopes])
        if isinstance(answers, str):
            return [answers for _ in scopes]
        ok, error = self._nvml.NVML_SUCCESS, self._nvml.NVMLError
        return [
            f"{symbol}: {error(answer.nvmlReturn)}" if answer.nvmlReturn != ok else float(getattr(answer.value, TYPES[answer.valueType]))
            for answer in answers
        ]

    def _structure(self, name: str, function: str, handle: Any) -> Any:
        """Return the versioned structure that a function fills, or its error in words."""
        try:
            filled = getattr(self._nvml, f"c_nvml{name}_t")()
            filled.version = getattr(self._nvml, f"nvml{name}")
            getattr(self._nvml, function)(handle, byref(filled))
        except self._refusals as error:
            return f"{function}: {error}"
        return filled

    def _throttling(self, handle: Any) -> dict[str, float | str]:
        mask = self._call("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
        if isinstance(mask, str):
            return {"throttled": mask}
        bits = {word: getattr(self._nvml, f"nvmlClocksThrottleReason{word}") for word in REASONS.values()}
        slowing = any(mask & bit for word, bit in bits.items() if word not in STATES)
        return {"throttled": int(slowing), **{f"throttle.{name}": int(bool(mask & bits[word])) for name, word in REASONS.items()}}

    def _used_memory(self, handle: Any) -> int | None:
        """Return the GPU memory of the watched process and its descendants; None if they do not use the GPU."""
        listed: dict[int, int] = {}
        for kind in ("Compute", "Graphics", "MPSCompute"):
            processes = self._call(f"nvmlDeviceGet{kind}RunningProcesses", handle)
            # Each list has all memory of a process, so the largest value counts and not the sum.
            for process in processes if not isinstance(processes, str) else ():
                listed[process.pid] = max(listed.get(process.pid, 0), process.usedGpuMemory or 0)
        import psutil

        try:
            tree = {self._pid, *(process.pid for process in psutil.Process(self._pid).children(recursive=True))} if listed else set()
        except psutil.Error:
            return None
        return sum(listed[pid] for pid in tree & listed.keys()) if tree & listed.keys() else None

    def _sram(self, handle: Any) -> dict[str, float | str]:
        status = self._structure("EccSramErrorStatus_v1", "nvmlDeviceGetSramEccErrorStatus", handle)
        return {name: status if isinstance(status, str) else getattr(status, member) for name, member in SRAM.items()}

    def _fabric(self, handle: Any) -> dict[str, float | str]:
        nvml = self._nvml
        branch = nvml.nvmlSystemGetDriverVersion().partition(".")[0]
        if not branch.isdecimal() or int(branch) < FABRIC_SAFE_FROM:
            return {}
        info = self._structure("GpuFabricInfo_v3", "nvmlDeviceGetGpuFabricInfoV", handle)
        if isinstance(info, str) or info.state == nvml.NVML_GPU_FABRIC_STATE_NOT_SUPPORTED:
            return {}
        found: dict[str, float | str] = {"fabricState": info.state, "fabricHealthMask": info.healthMask}
        if info.healthSummary != nvml.NVML_GPU_FABRIC_HEALTH_SUMMARY_NOT_SUPPORTED:
            found["fabricHealthSummary"] = info.healthSummary
        for name, symbol in FABRIC.items():
            shift, width = (getattr(nvml, f"NVML_GPU_FABRIC_HEALTH_MASK_{what}_{symbol}") for what in ("SHIFT", "WIDTH"))
            flag = info.healthMask >> shift & width
            if flag:  # 0 is not supported. A flag is 1 for true and 2 for false; the configuration is a number
                found[f"fabricHealth.{name}"] = flag if name == "incorrectConfiguration" else int(flag == 1)
        return found

    def _links(self, handle: Any) -> dict[str, float | str]:
        """Return traffic and errors of the NVLinks that are up, per link and in total."""
        nvml = self._nvml
        states = {link: self._call("nvmlDeviceGetNvLinkState", handle, link) for link in range(nvml.NVML_NVLINK_MAX_LINKS)}
        found: dict[str, float | str] = {f"nvlink.{link}.state": state for link, state in states.items() if not isinstance(state, str)}
        up = [link for link, state in states.items() if state == 1]
        if not up:
            return found
        for way in ("tx", "rx"):
            answers = dict(zip(up, self._fields(handle, f"NVLINK_THROUGHPUT_DATA_{way.upper()}", up), strict=True))
            traffic = {link: kib * KIB for link, kib in answers.items() if not isinstance(kib, str)}
            found |= {f"nvlink.{link}.{way}BytesTotal": moved for link, moved in traffic.items()}
            found[f"nvlink{way.capitalize()}BytesTotal"] = _sum([traffic.get(link, answers[link]) for link in up])
        counts = {name: self._fields(handle, f"NVLINK_COUNT_{which}", up) for name, which in LINK_COUNTS.items()}
        for name, which in LINK_ERRORS.items():
            errors = [self._call("nvmlDeviceGetNvLinkErrorCounter", handle, link, f"NVML_NVLINK_ERROR_DL_{which}") for link in up]
            if not any(isinstance(count, str) for count in errors):
                counts[name] = errors
        return found | {name: _sum(listed) for name, listed in counts.items()}

    def _profiled(self, handle: Any, uuid: str, partition: bool) -> Iterator[tuple[str, ReferenceValue | str]]:
        """Yield the means of profiling metrics since the last reading."""
        nvml = self._nvml
        whole, instance = handle, None
        try:
            if partition:
                whole, instance = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle), nvml.nvmlDeviceGetGpuInstanceId(handle)
            if not nvml.nvmlGpmQueryDeviceSupport(whole).isSupportedDevice:
                return
            sample = nvml.nvmlGpmSampleAlloc()
            if instance is None:
                nvml.nvmlGpmSampleGet(whole, sample)
            else:
                nvml.nvmlGpmMigSampleGet(whole, instance, sample)
        except self._refusals:
            return
        before, self._samples[uuid] = self._samples.get(uuid), sample
        if before is None:
            return
        asked = nvml.c_nvmlGpmMetricsGet_t()
        asked.version, asked.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, len(PROFILED)
        asked.sample1, asked.sample2 = before, sample
        for place, symbol in enumerate(PROFILED.values()):
            asked.metrics[place].metricId = getattr(nvml, f"NVML_GPM_METRIC_{symbol}")
        with suppress(nvml.NVMLError):
            nvml.nvmlGpmMetricsGet(asked)
            for answer, (name, symbol) in zip(asked.metrics, PROFILED.items(), strict=False):
                if answer.nvmlReturn == nvml.NVML_SUCCESS:
                    yield name, ReferenceValue(answer.value * (MIB if symbol.endswith("_PER_SEC") else 1), over="mean")
        with suppress(nvml.NVMLError):
            nvml.nvmlGpmSampleFree(before)


def _sum(values: Sequence[float | str]) -> float | str:
    """Return the sum of the links' values; if one has none, the reason."""
    return next((value for value in values if isinstance(value, str)), "") or sum(value for value in values if not isinstance(value, str))


def _part(answer: Any, part: str | int, factor: float) -> float | str:
    """Return a number from a function's answer; a reason is returned unchanged."""
    if isinstance(answer, str):
        return answer
    if part == "":
        return (len(answer) if isinstance(answer, list) else answer) * factor
    return float(answer[part] if isinstance(part, int) else getattr(answer, part)) * factor


class NvidiaSmi:
    """The command nvidia-smi."""

    name = "nvidia-smi"

    def __init__(self) -> None:
        install = "it comes with the driver (package nvidia-utils)"
        self._command = Command("nvidia-smi", directories=wsl_folders(), timeout=10.0, install=install)
        fields = dict.fromkeys(("uuid", "index", *chain.from_iterable(queries for queries, *_ in QUERIES)))
        self._query = Query(self._command, tuple(fields), "--query-gpu={fields}", "--format=csv,noheader,nounits")

    def read(self, slots: Sequence[DeviceSlot]) -> Mapping[str, ReferenceValue | str]:
        rows = [sample.record for sample in self._query()()]
        keys = {slot.identity.uuid: slot.key for slot in slots if slot.identity.uuid}
        # Containers of other vendors may have a stand-in of this name (T-Head PPU).
        if keys and not keys.keys() & {str(row.get("uuid")) for row in rows}:
            words = f"{self._command.find()} lists none of these GPUs: it may be another vendor's command of that name"
            raise SourceError(Reason.DRIVER_UNAVAILABLE, words)
        found: dict[str, ReferenceValue | str] = {"nvidia.devices": ReferenceValue(len(rows))}
        for row in rows:
            key = keys.get(str(row.get("uuid")))
            for queries, name, factor, step in QUERIES if key is not None else ():
                word = next((row.get(query) for query in queries if isinstance(row.get(query), str)), None)
                if word is None:  # no name of the field is known to this release
                    continue
                value = _number(str(word))
                found[f"{key}.{name}"] = (
                    f"nvidia-smi prints {word}" if value is None else ReferenceValue(value * factor, step, kept=KEPT.get(name, 1.0))
                )
        return found

    def close(self) -> None:
        """Do nothing: nothing is open."""


def _number(word: str) -> float | None:
    """Return the number for a word of the command; None if the word means that there is none."""
    if word in WORDS:
        return WORDS[word]
    with suppress(ValueError):
        return float(word.removeprefix("P"))  # pstate is printed as P0
    return None


WORDS = {
    **{"Not Active": 0.0, "Active": 1.0, "Disabled": 0.0, "Enabled": 1.0, "No": 0.0, "Yes": 1.0},
    **{"Default": 0.0, "Exclusive_Thread": 1.0, "Prohibited": 2.0, "Exclusive_Process": 3.0},
}
"""Numbers for words of the command."""


def _ecc(kind: str, span: str) -> tuple[tuple[str, ...], str]:
    """Return the fields of memory errors, without the command's ``total``, which counts the chip's SRAM as well."""
    base = f"ecc.errors.{kind}.{span}"
    return (f"{base}.dram", f"{base}.device_memory"), f"{kind}MemoryErrors{'Aggregate' if span == 'aggregate' else ''}"


QUERIES: tuple[tuple[tuple[str, ...], str, float, float], ...] = (
    *(
        # Printed in whole MiB.
        ((query,), name, MIB, MIB)
        for query, name in {
            "memory.total": "memoryTotalBytes",
            "memory.used": "memoryAllocatedBytes",
            "memory.free": "memoryFreeBytes",
        }.items()
    ),
    *(
        # Printed with two decimals.
        ((query,), name, 1, 0.01)
        for query, name in {
            "power.draw": "powerWatts",
            "power.draw.instant": "powerInstantWatts",
            "enforced.power.limit": "enforcedPowerLimitWatts",
            "power.default_limit": "defaultPowerLimitWatts",
            "power.min_limit": "minPowerLimitWatts",
            "power.max_limit": "maxPowerLimitWatts",
        }.items()
    ),
    *(
        ((query,), name, 1, 0)
        for query, name in {
            "utilization.gpu": "gpu",
            "utilization.memory": "memory",
            "utilization.encoder": "encoderUtilization",
            "utilization.decoder": "decoderUtilization",
            "utilization.jpeg": "jpegUtilization",
            "utilization.ofa": "ofaUtilization",
            "temperature.gpu": "temp",
            "temperature.gpu.tlimit": "tempMargin",
            "temperature.memory": "memoryTemp",
            "fan.speed": "fanSpeed",
            "pstate": "performanceState",
            "clocks.sm": "smClock",
            "clocks.mem": "memoryClock",
            "clocks.gr": "graphicsClock",
            "clocks.video": "videoClock",
            "clocks.max.sm": "maxSmClock",
            "clocks.max.mem": "maxMemoryClock",
            "pcie.link.gen.current": "pcieLinkGen",
            "pcie.link.width.current": "pcieLinkWidth",
            "pcie.link.gen.max": "maxPcieLinkGen",
            "pcie.link.width.max": "maxPcieLinkWidth",
            "persistence_mode": "persistenceMode",
            "compute_mode": "computeMode",
            "mig.mode.current": "migMode",
            "mig.mode.pending": "migModePending",
            "ecc.mode.current": "eccMode",
            "ecc.mode.pending": "eccModePending",
            "retired_pages.single_bit_ecc.count": "retiredPagesSingleBit",
            "retired_pages.double_bit.count": "retiredPagesDoubleBit",
            "retired_pages.pending": "retiredPagesPending",
        }.items()
    ),
    *(
        ((f"clocks_event_reasons.{theirs}", f"clocks_throttle_reasons.{theirs}"), f"throttle.{ours}", 1, 0)
        for theirs, ours in {
            "gpu_idle": "gpuIdle",
            "applications_clocks_setting": "applicationsClocksSetting",
            "sw_power_cap": "swPowerCap",
            "hw_slowdown": "hwSlowdown",
            "hw_thermal_slowdown": "hwThermalSlowdown",
            "hw_power_brake_slowdown": "hwPowerBrakeSlowdown",
            "sw_thermal_slowdown": "swThermalSlowdown",
            "sync_boost": "syncBoost",
        }.items()
    ),
    *((*_ecc(kind, span), 1, 0) for kind in ("corrected", "uncorrected") for span in ("volatile", "aggregate")),
)
"""Fields, each under its names in different releases; the metric; the factor to the metric's unit; and the rounding step of the
command.
"""
