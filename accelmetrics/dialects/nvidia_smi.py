"""``nvidia-smi``: the fields of ``nvidia-smi --query-gpu=…``, as ``--help-query-gpu`` spells them, of GPUs of any vendor.

Numbers are those that ``--format=csv,noheader,nounits`` prints: memory in whole MiB, states as 1 and 0. Where the tool knows a
field by two names (``clocks.sm`` and ``clocks.current.sm``), both are given.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone

from accelmetrics.dialects.contract import Dialect, Number, Point
from accelmetrics.dialects.tables import MEMORY_RESERVED, DialectRow, DialectTable, designation, unit_of
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
"""By field, in the order in which the tool lists them."""

SHORT_FOR = {
    "clocks.current.graphics": ("clocks.gr",),
    "clocks.current.sm": ("clocks.sm",),
    "clocks.current.memory": ("clocks.mem",),
    "clocks.current.video": ("clocks.video",),
    "clocks.max.graphics": ("clocks.max.gr",),
    "clocks.max.memory": ("clocks.max.mem",),
    **{f"clocks_event_reasons.{field}": (f"clocks_throttle_reasons.{field}",) for field in _REASONS},
}
"""The other names of a field: short ones, and those from before drivers spoke of events."""

ABSENT = "[N/A]"
"""What the tool prints for a value that the device does not say."""
_HEADER_UNITS = {"MiBy": " [MiB]", "%": " [%]", "W": " [W]", "MHz": " [MHz]"}
"""Behind the field at the head of a column, as the tool has it; it leaves the unit of temperatures out."""
_STATES = {
    "clocks_event_reasons": ("Not Active", "Active"),
    "remapped_rows.pending": ("No", "Yes"),
    "remapped_rows.failure": ("No", "Yes"),
    "persistence_mode": ("Disabled", "Enabled"),
    "mig.mode.current": ("Disabled", "Enabled"),
    "compute_mode": ("Default", "Exclusive_Thread", "Prohibited", "Exclusive_Process"),
}
"""By field, or by what it begins with: the words of 0, 1 and so on."""


class NvidiaSmi(Dialect):
    """GPUs as ``nvidia-smi`` lists them; partitions are no rows of its query."""

    name = "nvidia-smi"
    summary = "the fields of nvidia-smi --query-gpu, a row per GPU"
    tabular = True
    _table = DialectTable(TABLE)

    def flat(self, record: Record) -> dict[str, Number]:
        """Give ``gpu.0.memory.used``: the device's key, then the field under each of its names."""
        found: dict[str, Number] = {}
        for slot in _whole_devices(record.snapshot):
            for point in self._table.points(record.snapshot, slot):
                for name in (point.name, *SHORT_FOR.get(point.name, ())):
                    found[f"{slot.key}.{name}"] = point.value
        return found

    def points(self, record: Record) -> Iterator[Point]:
        """Give each field once, with the device as labels."""
        for slot in _whole_devices(record.snapshot):
            labels = {"index": designation(slot), "name": slot.identity.name, "uuid": slot.unique_id}
            yield from self._table.points(record.snapshot, slot, labels)

    def rows(self, record: Record) -> Sequence[Mapping[str, str]]:
        """Yield rows as ``--format=csv,nounits`` prints them: which device it is, then every field of the table. Times are UTC."""
        seconds, rest = divmod(record.snapshot.time_ns, 1_000_000_000)
        moment = f"{datetime.fromtimestamp(seconds, timezone.utc):%Y/%m/%d %H:%M:%S}.{rest // 1_000_000:03}"
        found = []
        for slot in _whole_devices(record.snapshot):
            points = {point.name: point for point in self._table.points(record.snapshot, slot)}
            who = slot.identity
            if points or who.kind == "gpu":
                identity = {
                    "timestamp": moment,
                    "index": designation(slot),
                    "name": who.name or ABSENT,
                    "uuid": who.uuid or ABSENT,
                    "pci.bus_id": who.pci_bus_id or ABSENT,
                    "serial": who.serial or ABSENT,
                    "driver_version": who.driver_version or ABSENT,
                    "vbios_version": who.firmware or ABSENT,
                }
                found.append(
                    {**identity, **{row.name + _HEADER_UNITS.get(unit_of(row), ""): _words(points.get(row.name)) for row in TABLE}}
                )
        return found


def _whole_devices(snapshot: Snapshot) -> list[DeviceSlot]:
    return [slot for slot in snapshot.identities if not slot.identity.parent]


def _words(point: Point | None) -> str:
    """Print a value as the tool prints it: ``P0``, ``Active``, ``300.20``, ``575``."""
    if point is None:
        return ABSENT
    if point.name == "pstate":
        return f"P{point.value}"
    if words := _STATES.get(point.name) or _STATES.get(point.name.partition(".")[0]):
        return words[int(point.value)]
    return f"{point.value:.2f}" if point.unit == "W" else str(point.value)


NVIDIA_SMI = NvidiaSmi()
