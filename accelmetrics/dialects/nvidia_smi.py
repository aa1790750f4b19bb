"""``nvidia-smi``: the fields of ``nvidia-smi --query-gpu=…``, as ``--help-query-gpu`` spells them, of GPUs of any vendor.

Numbers are as ``--format=csv,noheader,nounits`` prints them: memory in whole MiB, states as 1 and 0. A field with two names
(``clocks.sm`` and ``clocks.current.sm``) is present under both.

``nvidia_smi``: the metrics of nvidia_gpu_exporter, ``nvidia_smi_…``. The exporter derives its names from the same fields and converts
values to base units: ``clocks.current.sm [MHz]`` becomes ``nvidia_smi_clocks_current_sm_clock_hz``. ``QUERIED`` is derived from ``TABLE``
in this way. Metrics that the exporter reads from other sources (energy, PCIe, Xid errors, MIG instances) are in ``BESIDE`` and
``INSTANCE``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from functools import lru_cache

from accelmetrics.dialects.contract import Dialect, Number, Point
from accelmetrics.dialects.tables import (
    MEMORY_RESERVED,
    DialectRow,
    DialectTable,
    FunctionDialect,
    Values,
    designation,
    gpu_instance,
    parent_and_partition,
    profile,
    unit_of,
    without_empty,
    xid_errors,
)
from accelmetrics.schemas.identity import DeviceSlot
from accelmetrics.schemas.record import Record
from accelmetrics.schemas.snapshot import Snapshot

_REASONS = {
    "gpu_idle": "gpuIdle",
    "applications_clocks_setting": "applicationsClocksSetting",
    "sw_power_cap": "swPowerCap",
    "hw_slowdown": "hwSlowdown",
    "hw_thermal_slowdown": "hwThermalSlowdown",
    "hw_power_brake_slowdown": "hwPowerBrakeSlowdown",
    "sw_thermal_slowdown": "swThermalSlowdown",
    "sync_boost": "syncBoost",
}

TABLE = (
    DialectRow("pcie.link.gen.current", "gpu.{i}.pcieLinkGen"),
    DialectRow("pcie.link.gen.max", "gpu.{i}.maxPcieLinkGen"),
    DialectRow("pcie.link.width.current", "gpu.{i}.pcieLinkWidth"),
    DialectRow("pcie.link.width.max", "gpu.{i}.maxPcieLinkWidth"),
    DialectRow("persistence_mode", "gpu.{i}.persistenceMode"),
    DialectRow("fan.speed", "gpu.{i}.fanSpeed", whole=True),
    DialectRow("pstate", "gpu.{i}.performanceState"),
    *(DialectRow(f"clocks_event_reasons.{field}", f"gpu.{{i}}.throttle.{name}") for field, name in _REASONS.items()),
    DialectRow("memory.total", "gpu.{i}.memoryTotalBytes", "MiBy", whole=True),
    DialectRow("memory.reserved", MEMORY_RESERVED, "MiBy", whole=True, meaning="Memory that the driver keeps for itself."),
    DialectRow("memory.used", "gpu.{i}.memoryAllocatedBytes", "MiBy", whole=True),
    DialectRow("memory.free", "gpu.{i}.memoryFreeBytes", "MiBy", whole=True),
    DialectRow("compute_mode", "gpu.{i}.computeMode"),
    DialectRow("utilization.gpu", "gpu.{i}.gpu", whole=True),
    DialectRow("utilization.memory", "gpu.{i}.memory", whole=True),
    DialectRow("utilization.encoder", "gpu.{i}.encoderUtilization", whole=True),
    DialectRow("utilization.decoder", "gpu.{i}.decoderUtilization", whole=True),
    DialectRow("utilization.jpeg", "gpu.{i}.jpegUtilization", whole=True),
    DialectRow("utilization.ofa", "gpu.{i}.ofaUtilization", whole=True),
    *(
        DialectRow(f"ecc.errors.{severity}.{since}.{part}", f"gpu.{{i}}.{severity}{key}Errors{'Aggregate' if since == 'aggregate' else ''}")
        for severity in ("corrected", "uncorrected")
        for since in ("volatile", "aggregate")
        for part, key in (("device_memory", "Memory"), ("total", "Ecc"))
    ),
    DialectRow("retired_pages.sbe", "gpu.{i}.retiredPagesSingleBit"),
    DialectRow("retired_pages.dbe", "gpu.{i}.retiredPagesDoubleBit"),
    DialectRow("remapped_rows.correctable", "gpu.{i}.remappedRowsCorrected"),
    DialectRow("remapped_rows.uncorrectable", "gpu.{i}.remappedRowsUncorrected"),
    DialectRow("remapped_rows.pending", "gpu.{i}.rowRemapPending"),
    DialectRow("remapped_rows.failure", "gpu.{i}.rowRemapFailure"),
    DialectRow("temperature.gpu", "gpu.{i}.temp", whole=True),
    DialectRow("temperature.gpu.tlimit", "gpu.{i}.tempMargin", whole=True),
    DialectRow("temperature.memory", "gpu.{i}.memoryTemp", whole=True),
    DialectRow("power.draw", "gpu.{i}.powerWatts"),
    DialectRow("power.draw.instant", "gpu.{i}.powerInstantWatts"),
    DialectRow("power.limit", "gpu.{i}.enforcedPowerLimitWatts"),
    DialectRow("enforced.power.limit", "gpu.{i}.enforcedPowerLimitWatts"),
    DialectRow("power.default_limit", "gpu.{i}.defaultPowerLimitWatts"),
    DialectRow("clocks.current.graphics", "gpu.{i}.graphicsClock", otherwise=("gpu.{i}.freq", "gpu.{i}.smClock"), whole=True),
    DialectRow("clocks.current.sm", "gpu.{i}.smClock", otherwise=("gpu.{i}.freq",), whole=True),
    DialectRow("clocks.current.memory", "gpu.{i}.memoryClock", whole=True),
    DialectRow("clocks.current.video", "gpu.{i}.videoClock", whole=True),
    DialectRow("clocks.max.graphics", "gpu.{i}.maxSmClock", whole=True),
    DialectRow("clocks.max.sm", "gpu.{i}.maxSmClock", whole=True),
    DialectRow("clocks.max.memory", "gpu.{i}.maxMemoryClock", whole=True),
    DialectRow("mig.mode.current", "gpu.{i}.migMode"),
)
"""Fields in the tool's order."""

SHORT_FOR = {
    "clocks.current.graphics": ("clocks.gr",),
    "clocks.current.sm": ("clocks.sm",),
    "clocks.current.memory": ("clocks.mem",),
    "clocks.current.video": ("clocks.video",),
    "clocks.max.graphics": ("clocks.max.gr",),
    "clocks.max.memory": ("clocks.max.mem",),
    **{f"clocks_event_reasons.{field}": (f"clocks_throttle_reasons.{field}",) for field in _REASONS},
}
"""Other names of a field: short ones, and the ``clocks_throttle_reasons`` of older drivers."""

ABSENT = "[N/A]"
"""Text that the tool prints for a missing value."""
# Unit in the header of a column, after the field's name. The tool prints none for temperatures.
_HEADER_UNITS = {"MiBy": " [MiB]", "%": " [%]", "W": " [W]", "MHz": " [MHz]"}
# Words for the values 0, 1 and so on, by field or by the first part of its name.
_STATES = {
    "clocks_event_reasons": ("Not Active", "Active"),
    "remapped_rows.pending": ("No", "Yes"),
    "remapped_rows.failure": ("No", "Yes"),
    "persistence_mode": ("Disabled", "Enabled"),
    "mig.mode.current": ("Disabled", "Enabled"),
    "compute_mode": ("Default", "Exclusive_Thread", "Prohibited", "Exclusive_Process"),
}


_TABLE = DialectTable(TABLE)


def flat(record: Record) -> dict[str, Number]:
    """Return values by names like ``gpu.0.memory.used``: the device's key, then the field, once for each of its names."""
    found: dict[str, Number] = {}
    for slot in _whole_devices(record.snapshot):
        for point in _TABLE.points(record.snapshot, slot):
            for name in (point.name, *SHORT_FOR.get(point.name, ())):
                found[f"{slot.key}.{name}"] = point.value
    return found


def points(record: Record) -> Iterator[Point]:
    """Yield each field of each device once, with labels that identify the device."""
    for slot in _whole_devices(record.snapshot):
        yield from _TABLE.points(record.snapshot, slot, {"index": designation(slot), "name": slot.identity.name, "uuid": slot.unique_id})


def rows(record: Record) -> Sequence[Mapping[str, str]]:
    """Return rows as ``--format=csv,nounits`` prints them: the device's identity, then every field of the table. Times are UTC."""
    seconds, rest = divmod(record.snapshot.time_ns, 1_000_000_000)
    moment = f"{datetime.fromtimestamp(seconds, timezone.utc):%Y/%m/%d %H:%M:%S}.{rest // 1_000_000:03}"
    found = []
    for slot in _whole_devices(record.snapshot):
        points = {point.name: point for point in _TABLE.points(record.snapshot, slot)}
        about = slot.identity
        if points or about.kind == "gpu":
            identity = {
                "timestamp": moment,
                "index": designation(slot),
                "name": about.name or ABSENT,
                "uuid": about.uuid or ABSENT,
                "pci.bus_id": about.pci_bus_id or ABSENT,
                "serial": about.serial or ABSENT,
                "driver_version": about.driver_version or ABSENT,
                "vbios_version": about.firmware or ABSENT,
            }
            found.append({**identity, **{row.name + _HEADER_UNITS.get(unit_of(row), ""): _words(points.get(row.name)) for row in TABLE}})
    return found


def _whole_devices(snapshot: Snapshot) -> list[DeviceSlot]:
    return [slot for slot in snapshot.identities if not slot.identity.parent]


def _words(point: Point | None) -> str:
    """Format a value as the tool prints it: ``P0``, ``Active``, ``300.20``, ``575``."""
    if point is None:
        return ABSENT
    if point.name == "pstate":
        return f"P{point.value}"
    if words := _STATES.get(point.name) or _STATES.get(point.name.partition(".")[0]):
        return words[int(point.value)]
    return f"{point.value:.2f}" if point.unit == "W" else str(point.value)


NVIDIA_SMI = FunctionDialect("nvidia-smi", "the fields of nvidia-smi --query-gpu, a row per GPU", points, flat, rows)


# nvidia_gpu_exporter

PREFIX = "nvidia_smi_"
# Suffix of the exporter's name, and its base unit, by the unit of the query.
_SUFFIXES = {"MiBy": ("_bytes", "By"), "%": ("_ratio", "1"), "W": ("_watts", "W"), "MHz": ("_clock_hz", "Hz")}


def _series(row: DialectRow) -> DialectRow:
    """Return the exporter's row for a field of the query, in base units. The uncut value is used, not whole MiB, MHz or percent."""
    suffix, unit = _SUFFIXES.get(unit_of(row), ("", ""))
    name = f"{PREFIX}{row.name.replace('.', '_')}{suffix}"
    return row._replace(name=name, unit=unit or row.unit, whole=row.whole and not unit, kind="gauge")


QUERIED = tuple(_series(row) for row in TABLE)
BESIDE = (
    DialectRow(f"{PREFIX}gpu_recovery_action", "gpu.{i}.recoveryAction"),
    DialectRow(f"{PREFIX}fabric_state", "gpu.{i}.fabricState"),
    DialectRow(f"{PREFIX}energy_joules_total", "gpu.{i}.energyJoules"),
    DialectRow(f"{PREFIX}pcie_throughput_tx_bytes_per_second", "gpu.{i}.pcieTxBytes"),
    DialectRow(f"{PREFIX}pcie_throughput_rx_bytes_per_second", "gpu.{i}.pcieRxBytes"),
)
INSTANCE = (
    DialectRow(f"{PREFIX}mig_memory_total_bytes", "gpu.{i}.memoryTotalBytes"),
    DialectRow(f"{PREFIX}mig_memory_used_bytes", "gpu.{i}.memoryAllocatedBytes"),
    DialectRow(f"{PREFIX}mig_memory_free_bytes", "gpu.{i}.memoryFreeBytes"),
    DialectRow(f"{PREFIX}mig_graphics_activity_ratio", "gpu.{i}.grEngineActive", "1"),
    DialectRow(f"{PREFIX}mig_sm_activity_ratio", "gpu.{i}.smActive", "1"),
    DialectRow(f"{PREFIX}mig_sm_occupancy_ratio", "gpu.{i}.smOccupancy", "1"),
    DialectRow(f"{PREFIX}mig_tensor_activity_ratio", "gpu.{i}.pipeTensorActive", "1"),
)
"""Rows of MIG instances, with the labels ``uuid`` of their GPU and ``gpu_instance_id``."""

INFO, INDEX, MIG_INFO = f"{PREFIX}gpu_info", f"{PREFIX}index", f"{PREFIX}mig_info"
XID_ERRORS, XID_TIME = f"{PREFIX}xid_errors_total", f"{PREFIX}xid_last_timestamp_seconds"
APPS, SUCCESS = f"{PREFIX}compute_apps", f"{PREFIX}last_collect_success"

_MEANINGS = {
    INFO: "1, with labels that say what the device is.",
    INDEX: "Index of the device.",
    XID_ERRORS: "Xid errors of the code since the program began to listen.",
    XID_TIME: "When the latest Xid error of the code was first seen, in seconds since 1970.",
    APPS: "Processes that use the device to compute.",
    SUCCESS: "1 while every source can be read, else 0.",
    MIG_INFO: "1, with labels that say what the MIG instance is.",
}


class NvidiaGpuExporter(Dialect):
    """The series of nvidia_gpu_exporter. Keeps the time at which each Xid error was first seen."""

    name = "nvidia_smi"
    summary = "the metrics of nvidia_gpu_exporter: nvidia_smi_utilization_gpu_ratio"
    counting = True
    _device, _instance = DialectTable((*QUERIED, *BESIDE)), DialectTable(INSTANCE)

    def __init__(self) -> None:
        # By device key and Xid code: the count, and the time of the reading in which it last rose.
        self._seen: dict[tuple[str, int], tuple[Number, int]] = {}

    def points(self, record: Record) -> Iterator[Point]:
        """Yield whole devices with the label ``uuid``, and MIG instances with their GPU's ``uuid`` and ``gpu_instance_id``."""
        snapshot = record.snapshot
        parents = {slot.key: slot for slot in snapshot.identities}
        seen: set[tuple[str, str]] = set()
        for slot in snapshot.identities:
            values = snapshot.values_of(slot.key)
            whole, partition = parent_and_partition(slot)
            if not values:
                continue
            if not partition:
                yield from self._of_device(snapshot, slot, values)
                continue
            labels = {"uuid": uuid_of(parents.get(f"gpu.{whole}", slot)), "gpu_instance_id": gpu_instance(slot)}
            about = {**labels, "mig_uuid": slot.identity.uuid.lower(), "profile": profile(slot)}
            yield Point(MIG_INFO, 1, about, "gauge", "1", _MEANINGS[MIG_INFO])
            if (whole, gpu_instance(slot)) not in seen:  # compute instances share the memory of their GPU instance
                seen.add((whole, gpu_instance(slot)))
                yield from self._instance.points(snapshot, slot, labels)
        read = [status.status in ("ok", "degraded") for status in snapshot.backends if status.name != "host" and status.status != "absent"]
        if read:
            yield Point(SUCCESS, int(all(read)), {}, "gauge", "1", _MEANINGS[SUCCESS])

    def _of_device(self, snapshot: Snapshot, slot: DeviceSlot, values: Values) -> Iterator[Point]:
        labels = {"uuid": uuid_of(slot)}
        yield Point(INFO, 1, _about(slot), "gauge", "1", _MEANINGS[INFO])
        yield Point(INDEX, slot.index, labels, "gauge", "1", _MEANINGS[INDEX])
        yield from self._device.points(snapshot, slot, labels)
        for code, count in xid_errors(values).items():
            before, when = self._seen.get((slot.key, code), (0, 0))
            when = snapshot.time_ns if count > before else when
            self._seen[slot.key, code] = count, when
            of_code = {**labels, "xid": str(code)}
            yield Point(XID_ERRORS, count, of_code, "counter", "1", _MEANINGS[XID_ERRORS])
            yield Point(XID_TIME, when / 1e9, of_code, "gauge", "s", _MEANINGS[XID_TIME])
        if slot.key in snapshot.processes:
            computing = sum(process.type != "graphics" for process in snapshot.processes[slot.key])
            yield Point(APPS, computing, labels, "gauge", "1", _MEANINGS[APPS])


def uuid_of(slot: DeviceSlot) -> str:
    """Return the exporter's name of a device: its UUID in lower case without ``gpu-``, or another unique id if it has no UUID."""
    return slot.unique_id.lower().removeprefix("gpu-")


@lru_cache(maxsize=1024)
def _about(slot: DeviceSlot) -> Mapping[str, str]:
    identity = slot.identity
    return without_empty(
        {
            "uuid": uuid_of(slot),
            "name": identity.name,
            "index": str(slot.index),
            "driver_version": identity.driver_version,
            "cuda_version": identity.runtime_version,
            "vbios_version": identity.firmware,
            "pci_bus_id": identity.pci_bus_id,
            "serial": identity.serial,
        }
    )
