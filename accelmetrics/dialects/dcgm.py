"""``dcgm``: the metrics of dcgm-exporter with its labels, so that dashboards and alerts made for it show devices of any vendor.

``DEFAULT`` has the fields of dcgm-exporter's default list (``etc/default-counters.csv`` of 4.5, including commented-out lines), each with
its source. ``docs/dialects.md`` has the reason for each one that is left out. ``BEYOND`` has fields of DCGM that are not in the list but
often in dashboards. ``HEALTH`` defines how the health verdicts are derived here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache

from accelmetrics.dialects.contract import Number, Point, series
from accelmetrics.dialects.tables import (
    MEMORY_RESERVED,
    Computed,
    DialectRow,
    DialectTable,
    FunctionDialect,
    Values,
    gpu_instance,
    parent_and_partition,
    profile,
    without_empty,
    xid_errors,
)
from accelmetrics.schemas.identity import DeviceIdentity, DeviceSlot
from accelmetrics.schemas.record import Record
from accelmetrics.schemas.snapshot import Snapshot
from accelmetrics.schemas.xid import meaning


def _last_xid(values: Values, _: DeviceIdentity) -> Number | None:
    # 0 means "no error so far", so it is reported only if errors are counted at all.
    return values.get("lastXid", 0 if values.get("xidErrors") == 0 else None)


def _used_share(values: Values, _: DeviceIdentity) -> Number | None:
    used, free = values.get("memoryAllocatedBytes"), values.get("memoryFreeBytes")
    return used / (used + free) if used is not None and free is not None and used + free else None


def _clock_reasons(values: Values, _: DeviceIdentity) -> Number | None:
    # Reasons that the device does not report count as 0, as long as it reports any.
    known = [bool(values[name]) << bit for bit, name in enumerate(_CLOCK_REASONS) if name in values]
    return sum(known) if known else None


# Metric names in the order of the bits of NVML's mask.
_CLOCK_REASONS = tuple(
    f"throttle.{reason}"
    for reason in (
        *("gpuIdle", "applicationsClocksSetting", "swPowerCap", "hwSlowdown", "syncBoost"),
        *("swThermalSlowdown", "hwThermalSlowdown", "hwPowerBrakeSlowdown", "displayClockSetting"),
    )
)
_MASK = Computed("a bit for each of throttle.…, in NVML's order", "1", _clock_reasons)
_HELD_DOWN = "Why the clocks are held down, as a mask of bits."
XID = "DCGM_FI_DEV_XID_ERRORS"


def _violation(reason: str, name: str) -> DialectRow:
    return DialectRow(f"DCGM_FI_DEV_{reason}_VIOLATION", f"gpu.{{i}}.violationSeconds.{name}", "ns", whole=True)


DEFAULT = (
    DialectRow("DCGM_FI_DEV_SM_CLOCK", "gpu.{i}.smClock", otherwise=("gpu.{i}.freq",), whole=True),
    DialectRow("DCGM_FI_DEV_MEM_CLOCK", "gpu.{i}.memoryClock", whole=True),
    DialectRow("DCGM_FI_DEV_MEMORY_TEMP", "gpu.{i}.memoryTemp", whole=True),
    DialectRow("DCGM_FI_DEV_GPU_TEMP", "gpu.{i}.temp", whole=True),
    DialectRow("DCGM_FI_DEV_POWER_USAGE", "gpu.{i}.powerWatts"),
    DialectRow("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "gpu.{i}.energyJoules", "mJ", whole=True),
    DialectRow("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "gpu.{i}.pcieReplays"),
    DialectRow("DCGM_FI_DEV_GPU_UTIL", "gpu.{i}.gpu", whole=True),
    DialectRow("DCGM_FI_DEV_MEM_COPY_UTIL", "gpu.{i}.memory", whole=True),
    DialectRow("DCGM_FI_DEV_ENC_UTIL", "gpu.{i}.encoderUtilization", whole=True),
    DialectRow("DCGM_FI_DEV_DEC_UTIL", "gpu.{i}.decoderUtilization", whole=True),
    DialectRow(
        XID,
        Computed("the code of each xid.{code}.errors, else lastXid; 0 while xidErrors is 0", "1", _last_xid),
        meaning="Code of each Xid error since the program began to listen, 0 before the first.",
    ),
    _violation("POWER", "power"),
    _violation("THERMAL", "thermal"),
    _violation("SYNC_BOOST", "syncBoost"),
    _violation("BOARD_LIMIT", "boardLimit"),
    _violation("LOW_UTIL", "lowUtilization"),
    _violation("RELIABILITY", "reliability"),
    DialectRow("DCGM_FI_DEV_FB_FREE", "gpu.{i}.memoryFreeBytes", "MiBy", whole=True),
    DialectRow("DCGM_FI_DEV_FB_USED", "gpu.{i}.memoryAllocatedBytes", "MiBy", whole=True),
    DialectRow("DCGM_FI_DEV_FB_RESERVED", MEMORY_RESERVED, "MiBy", whole=True, meaning="Memory that the driver keeps for itself."),
    DialectRow("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "gpu.{i}.correctedEccErrors"),
    DialectRow("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "gpu.{i}.uncorrectedEccErrors"),
    DialectRow("DCGM_FI_DEV_ECC_SBE_AGG_TOTAL", "gpu.{i}.correctedEccErrorsAggregate"),
    DialectRow("DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", "gpu.{i}.uncorrectedEccErrorsAggregate"),
    DialectRow("DCGM_FI_DEV_RETIRED_SBE", "gpu.{i}.retiredPagesSingleBit"),
    DialectRow("DCGM_FI_DEV_RETIRED_DBE", "gpu.{i}.retiredPagesDoubleBit"),
    DialectRow("DCGM_FI_DEV_RETIRED_PENDING", "gpu.{i}.retiredPagesPending", kind="counter"),
    DialectRow("DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", "gpu.{i}.nvlinkCrcErrors"),
    DialectRow("DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", "gpu.{i}.nvlinkReplayErrors"),
    DialectRow("DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", "gpu.{i}.nvlinkRecoveryErrors"),
    DialectRow("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "gpu.{i}.remappedRowsUncorrected"),
    DialectRow("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "gpu.{i}.remappedRowsCorrected"),
    DialectRow("DCGM_FI_DEV_ROW_REMAP_FAILURE", "gpu.{i}.rowRemapFailure"),
    DialectRow("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "gpu.{i}.grEngineActive", "1"),
    DialectRow("DCGM_FI_PROF_SM_ACTIVE", "gpu.{i}.smActive", "1"),
    DialectRow("DCGM_FI_PROF_SM_OCCUPANCY", "gpu.{i}.smOccupancy", "1"),
    DialectRow("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "gpu.{i}.pipeTensorActive", "1"),
    DialectRow("DCGM_FI_PROF_DRAM_ACTIVE", "gpu.{i}.dramActive", "1"),
    DialectRow("DCGM_FI_PROF_PIPE_FP64_ACTIVE", "gpu.{i}.pipeFp64Active", "1"),
    DialectRow("DCGM_FI_PROF_PIPE_FP32_ACTIVE", "gpu.{i}.pipeFp32Active", "1"),
    DialectRow("DCGM_FI_PROF_PIPE_FP16_ACTIVE", "gpu.{i}.pipeFp16Active", "1"),
    DialectRow("DCGM_FI_PROF_PCIE_TX_BYTES", "gpu.{i}.pcieTxBytes"),
    DialectRow("DCGM_FI_PROF_PCIE_RX_BYTES", "gpu.{i}.pcieRxBytes"),
)
"""Fields of the default list, in its order, each with its source."""

BEYOND = (
    DialectRow("DCGM_FI_DEV_FB_TOTAL", "gpu.{i}.memoryTotalBytes", "MiBy", whole=True),
    DialectRow(
        "DCGM_FI_DEV_FB_USED_PERCENT",
        Computed("memoryAllocatedBytes / (memoryAllocatedBytes + memoryFreeBytes)", "1", _used_share),
        meaning="Share of the allocatable memory that is allocated, 0 to 1.",
    ),
    DialectRow("DCGM_FI_DEV_BAR1_USED", "gpu.{i}.bar1UsedBytes", "MiBy", whole=True),
    DialectRow("DCGM_FI_DEV_ENFORCED_POWER_LIMIT", "gpu.{i}.enforcedPowerLimitWatts"),
    DialectRow("DCGM_FI_DEV_SLOWDOWN_TEMP", "gpu.{i}.tempLimit.slowdown", whole=True),
    DialectRow("DCGM_FI_DEV_SHUTDOWN_TEMP", "gpu.{i}.tempLimit.shutdown", whole=True),
    DialectRow("DCGM_FI_DEV_GPU_MAX_OP_TEMP", "gpu.{i}.maxOpTemp", whole=True),
    DialectRow("DCGM_FI_DEV_MEM_MAX_OP_TEMP", "gpu.{i}.memoryMaxOpTemp", whole=True),
    DialectRow("DCGM_FI_DEV_GPU_TEMP_LIMIT", "gpu.{i}.tempMargin", whole=True),
    DialectRow("DCGM_FI_DEV_POWER_USAGE_INSTANT", "gpu.{i}.powerInstantWatts"),
    DialectRow("DCGM_FI_DEV_POWER_MGMT_LIMIT_MIN", "gpu.{i}.minPowerLimitWatts"),
    DialectRow("DCGM_FI_DEV_POWER_MGMT_LIMIT_MAX", "gpu.{i}.maxPowerLimitWatts"),
    DialectRow("DCGM_FI_DEV_POWER_MGMT_LIMIT_DEF", "gpu.{i}.defaultPowerLimitWatts"),
    DialectRow("DCGM_FI_DEV_ECC_CURRENT", "gpu.{i}.eccMode"),
    DialectRow("DCGM_FI_DEV_ECC_PENDING", "gpu.{i}.eccModePending"),
    DialectRow("DCGM_FI_DEV_MIG_MODE", "gpu.{i}.migMode"),
    DialectRow("DCGM_FI_DEV_COMPUTE_MODE", "gpu.{i}.computeMode"),
    DialectRow("DCGM_FI_DEV_PERSISTENCE_MODE", "gpu.{i}.persistenceMode"),
    DialectRow("DCGM_FI_DEV_VIDEO_CLOCK", "gpu.{i}.videoClock", whole=True),
    DialectRow("DCGM_FI_DEV_MAX_VIDEO_CLOCK", "gpu.{i}.maxVideoClock", whole=True),
    DialectRow("DCGM_FI_DEV_FAN_SPEED", "gpu.{i}.fanSpeed", whole=True),
    DialectRow("DCGM_FI_DEV_ROW_REMAP_PENDING", "gpu.{i}.rowRemapPending"),
    DialectRow("DCGM_FI_DEV_GET_GPU_RECOVERY_ACTION", "gpu.{i}.recoveryAction"),
    DialectRow("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", _MASK, meaning=_HELD_DOWN),
    DialectRow("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", _MASK, meaning=_HELD_DOWN),
    DialectRow("DCGM_FI_DEV_PSTATE", "gpu.{i}.performanceState"),
    DialectRow("DCGM_FI_DEV_MAX_SM_CLOCK", "gpu.{i}.maxSmClock", whole=True),
    DialectRow("DCGM_FI_DEV_MAX_MEM_CLOCK", "gpu.{i}.maxMemoryClock", whole=True),
    DialectRow("DCGM_FI_DEV_PCIE_LINK_GEN", "gpu.{i}.pcieLinkGen"),
    DialectRow("DCGM_FI_DEV_PCIE_LINK_WIDTH", "gpu.{i}.pcieLinkWidth"),
    DialectRow("DCGM_FI_DEV_PCIE_MAX_LINK_GEN", "gpu.{i}.maxPcieLinkGen"),
    DialectRow("DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH", "gpu.{i}.maxPcieLinkWidth"),
    DialectRow("DCGM_FI_DEV_ECC_SBE_VOL_DEV", "gpu.{i}.correctedMemoryErrors"),
    DialectRow("DCGM_FI_DEV_ECC_DBE_VOL_DEV", "gpu.{i}.uncorrectedMemoryErrors"),
    DialectRow("DCGM_FI_DEV_ECC_SBE_AGG_DEV", "gpu.{i}.correctedMemoryErrorsAggregate"),
    DialectRow("DCGM_FI_DEV_ECC_DBE_AGG_DEV", "gpu.{i}.uncorrectedMemoryErrorsAggregate"),
    DialectRow("DCGM_FI_PROF_PIPE_TENSOR_HMMA_ACTIVE", "gpu.{i}.pipeTensorHmmaActive", "1"),
    DialectRow("DCGM_FI_PROF_NVLINK_TX_BYTES", "gpu.{i}.nvlinkTxBytes"),
    DialectRow("DCGM_FI_PROF_NVLINK_RX_BYTES", "gpu.{i}.nvlinkRxBytes"),
)
"""Fields of DCGM that are not in the default list."""


Incident = tuple[str, int, str, str, Callable[[Values], bool | None]]
"""A condition of one of DCGM's health watches: the watch (label ``health_watch``), the verdict in DCGM's numbering, DCGM's error code
(label ``health_error_code``), the condition in words, and a function that tests it on a device's values. The function returns None if the
values that it needs are missing."""


def _any_above_0(*names: str) -> Callable[[Values], bool | None]:
    def met(values: Values) -> bool | None:
        known = [values[name] > 0 for name in names if name in values]
        return any(known) if known else None

    return met


def _is_narrow(values: Values) -> bool | None:
    now, most = values.get("pcieLinkWidth"), values.get("maxPcieLinkWidth")
    return None if now is None or most is None else now < most


def _has_links_down(values: Values) -> bool | None:
    states = [value for name, value in values.items() if name.startswith("nvlink.") and name.endswith(".state")]
    # If all links are down, they are not in use, which is no fault.
    return 0 < sum(states) < len(states) if states else None


def _is_asked_for(actions: range) -> Callable[[Values], bool | None]:
    return lambda values: values["recoveryAction"] in actions if "recoveryAction" in values else None


WARNING, FAILURE = 10, 20
_ACTIONS = {
    "DCGM_FR_GPU_RECOVERY_RESET": range(1, 2),
    "DCGM_FR_GPU_RECOVERY_REBOOT": range(2, 3),
    "DCGM_FR_GPU_RECOVERY_DRAIN_P2P": range(3, 4),
    "DCGM_FR_GPU_RECOVERY_DRAIN_RESET": range(4, 5),
    "DCGM_FR_UNKNOWN": range(5, 256),
}
HEALTH: tuple[Incident, ...] = (
    ("PCIE", WARNING, "DCGM_FR_PCIE_WIDTH", "`pcieLinkWidth` is below `maxPcieLinkWidth`", _is_narrow),
    ("NVLINK", FAILURE, "DCGM_FR_NVLINK_DOWN", "some of `nvlink.{link}.state` are 1 and others 0", _has_links_down),
    (
        "MEM",
        FAILURE,
        "DCGM_FR_VOLATILE_DBE_DETECTED",
        "`uncorrectedEccErrors` or `uncorrectedMemoryErrors` is above 0",
        _any_above_0("uncorrectedEccErrors", "uncorrectedMemoryErrors"),
    ),
    ("MEM", FAILURE, "DCGM_FR_ROW_REMAP_FAILURE", "`rowRemapFailure` is 1", _any_above_0("rowRemapFailure")),
    ("MEM", WARNING, "DCGM_FR_PENDING_ROW_REMAP", "`rowRemapPending` is 1", _any_above_0("rowRemapPending")),
    (
        "THERMAL",
        WARNING,
        "DCGM_FR_CLOCK_THROTTLE_THERMAL",
        "`throttle.hwThermalSlowdown` or `throttle.swThermalSlowdown` is 1",
        _any_above_0("throttle.hwThermalSlowdown", "throttle.swThermalSlowdown"),
    ),
    (
        "POWER",
        WARNING,
        "DCGM_FR_CLOCK_THROTTLE_POWER",
        "`throttle.hwPowerBrakeSlowdown` is 1",
        _any_above_0("throttle.hwPowerBrakeSlowdown"),
    ),
    *(
        ("DRIVER", FAILURE, code, f"`recoveryAction` is {actions[0]}{' or more' if len(actions) > 1 else ''}", _is_asked_for(actions))
        for code, actions in _ACTIONS.items()
    ),
)
"""Rows of one watch are adjacent, the worst first. A watch is reported if at least one of its rows can be evaluated."""
HEALTH_STATUS = "DCGM_EXP_GPU_HEALTH_STATUS"
COUNT = "DCGM_FI_DEV_COUNT"

# Fields with these prefixes are reported for MIG instances instead of their GPU, because sums would count them twice.
_OF_INSTANCES = ("DCGM_FI_DEV_FB_", "DCGM_FI_PROF_")
# Exceptions from that: only a whole GPU has these.
_OF_BOARD = ("DCGM_FI_PROF_PCIE_", "DCGM_FI_PROF_NVLINK_")


_TABLE = DialectTable((*DEFAULT, *BEYOND))


def flat(record: Record) -> dict[str, Number]:
    """Return values by series, with the labels that distinguish devices of one machine: ``DCGM_FI_DEV_GPU_TEMP{gpu="0"}``."""
    found: dict[str, Number] = {}
    for slot, divided, whole_devices in _devices(record.snapshot):
        whole, partition = parent_and_partition(slot)
        labels = {"gpu": whole, "GPU_I_ID": gpu_instance(slot)} if partition else {"gpu": whole}
        for point in _device_points(record.snapshot, slot, divided, whole_devices, labels):
            # These labels explain a value but do not distinguish series.
            distinguishing = {label: value for label, value in point.labels.items() if label not in ("err_msg", "health_error_code")}
            found[series(point.name, distinguishing)] = point.value
    return found


def points(record: Record) -> Iterator[Point]:
    """Yield each field of each device with the exporter's labels."""
    parents = {slot.key: slot for slot in record.snapshot.identities}
    for slot, divided, whole_devices in _devices(record.snapshot):
        whole, _ = parent_and_partition(slot)
        device_labels = _labels(slot, parents.get(f"gpu.{whole}", slot), record.snapshot.hostname)
        job = record.holders.of(slot.key, "job").get("job_id")  # none where several hold the device, as with pods
        labels = {**device_labels, **record.pod_labels(slot.key), **({"hpc_job": job} if job else {})}
        yield from _device_points(record.snapshot, slot, divided, whole_devices, labels)


def _device_points(snapshot: Snapshot, slot: DeviceSlot, divided: bool, whole_devices: int, labels: Mapping[str, str]) -> Iterator[Point]:
    """Yield the points of one device.

    Args:
        snapshot: The reading.
        slot: The device.
        divided: Whether the device has MIG instances with values.
        whole_devices: Number of whole devices; 0 for an instance, which does not report this number.
        labels: Labels that identify the device.
    """
    values = snapshot.values_of(slot.key)
    for point in _TABLE.points(snapshot, slot, labels):
        if point.name == XID:
            # The exporter's gauge has only the last code and never resets. Here each code has a series.
            for xid in tuple(xid_errors(values)) or (point.value,):
                words = meaning(int(xid)) if xid else "no error"
                yield point._replace(value=xid, labels={**labels, "err_code": str(xid), "err_msg": words})
        elif not divided or not point.name.startswith(_OF_INSTANCES) or point.name.startswith(_OF_BOARD):
            yield point
    if whole_devices:
        yield Point(COUNT, whole_devices, labels, "gauge", "1", "Devices of the machine.")
    for watch, (status, code) in _verdicts(values).items():
        about = {**labels, "health_watch": watch, "health_error_code": code}
        yield Point(
            HEALTH_STATUS, status, about, "gauge", "1", "What the device reports about itself: 0 nothing, 10 a warning, 20 a failure."
        )


def _devices(snapshot: Snapshot) -> Iterator[tuple[DeviceSlot, bool, int]]:
    """Yield each device that has values, whether it is divided into MIG instances, and the number of whole devices.

    MIG instances follow, with False and 0. Compute instances that share a GPU instance also share its values: only the first is yielded.
    """
    listed = [(slot, *parent_and_partition(slot)) for slot in snapshot.identities]
    answering = [entry for entry in listed if snapshot.values_of(entry[0].key)]
    divided = {whole for _, whole, partition in answering if partition}
    count = sum(not partition for _, _, partition in listed)
    seen: set[tuple[str, str]] = set()
    for slot, whole, partition in answering:
        instance = (whole, gpu_instance(slot))
        if not partition:
            yield slot, whole in divided, count
        elif instance not in seen:
            seen.add(instance)
            yield slot, False, 0


def _verdicts(values: Values) -> dict[str, tuple[int, str]]:
    """Return the worst verdict and its error code for each watch that can be evaluated."""
    found: dict[str, tuple[int, str]] = {}
    for watch, status, code, _, is_met in HEALTH:
        met = is_met(values)
        if met is not None and not found.get(watch, (0, ""))[0]:
            found[watch] = (status, code) if met else (0, "DCGM_FR_OK")
    return found


@lru_cache(maxsize=1024)
def _labels(slot: DeviceSlot, parent: DeviceSlot, hostname: str) -> Mapping[str, str]:
    """Return the exporter's labels of a device. A partition has its GPU's labels and two more. The dict is shared: do not modify it."""
    identity = parent.identity
    whole, partition = parent_and_partition(slot)
    return without_empty(
        {
            "gpu": whole,
            "UUID": parent.unique_id,
            "pci_bus_id": identity.pci_bus_id,
            "device": f"{identity.vendor}{identity.vendor_index}",
            "modelName": identity.name,
            # The profile of a compute instance that shares its GPU instance begins with its own part: 1c.3g.40gb.
            "GPU_I_PROFILE": re.sub(r"\d+c\.", "", profile(slot), count=1) if partition else "",
            "GPU_I_ID": gpu_instance(slot) if partition else "",
            # The exporter writes Hostname up to 4.5 and hostname since. Dashboards of both versions work.
            "Hostname": hostname,
            "hostname": hostname,
            "DCGM_FI_DRIVER_VERSION": identity.driver_version,
        }
    )


DCGM = FunctionDialect("dcgm", "the metrics of NVIDIA's dcgm-exporter with its labels: DCGM_FI_DEV_GPU_UTIL", points, flat)
