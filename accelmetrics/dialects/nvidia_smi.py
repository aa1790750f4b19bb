"""``nvidia-smi``: the fields of ``nvidia-smi --query-gpu=…``, as ``--help-query-gpu`` spells them, of GPUs of any vendor.

Numbers are those that ``--format=csv,noheader,nounits`` prints: memory in whole MiB, states as 1 and 0. Where the tool knows a
field by two names (``clocks.sm`` and ``clocks.current.sm``), both are given.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone

from accelmetrics.dialects.contract import Number, Point
from accelmetrics.dialects.tables import MEMORY_RESERVED, Entry, Table, Told, designation
from accelmetrics.schemas.catalogue import find
from accelmetrics.schemas.record import Record
from accelmetrics.schemas.snapshot import DeviceSlot, Snapshot

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
    Entry("pcie.link.gen.current", "gpu.{i}.pcieLinkGen"),
    Entry("pcie.link.gen.max", "gpu.{i}.maxPcieLinkGen"),
    Entry("pcie.link.width.current", "gpu.{i}.pcieLinkWidth"),
    Entry("pcie.link.width.max", "gpu.{i}.maxPcieLinkWidth"),
    Entry("fan.speed", "gpu.{i}.fanSpeed", whole=True),
    Entry("pstate", "gpu.{i}.performanceState"),
    *(Entry(f"clocks_event_reasons.{field}", f"gpu.{{i}}.throttle.{name}") for field, name in _REASONS.items()),
    Entry("memory.total", "gpu.{i}.memoryTotalBytes", "MiBy", whole=True),
    Entry("memory.reserved", MEMORY_RESERVED, "MiBy", whole=True, meaning="Memory that the driver keeps for itself."),
    Entry("memory.used", "gpu.{i}.memoryAllocatedBytes", "MiBy", whole=True),
    Entry("memory.free", "gpu.{i}.memoryFreeBytes", "MiBy", whole=True),
    Entry("utilization.gpu", "gpu.{i}.gpu", whole=True),
    Entry("utilization.memory", "gpu.{i}.memory", whole=True),
    Entry("utilization.encoder", "gpu.{i}.encoderUtilization", whole=True),
    Entry("utilization.decoder", "gpu.{i}.decoderUtilization", whole=True),
    Entry("ecc.errors.corrected.volatile.device_memory", "gpu.{i}.correctedMemoryErrors"),
    Entry("ecc.errors.corrected.aggregate.device_memory", "gpu.{i}.correctedMemoryErrorsAggregate"),
    Entry("ecc.errors.uncorrected.volatile.device_memory", "gpu.{i}.uncorrectedMemoryErrors"),
    Entry("ecc.errors.uncorrected.aggregate.device_memory", "gpu.{i}.uncorrectedMemoryErrorsAggregate"),
    Entry("remapped_rows.correctable", "gpu.{i}.remappedRowsCorrected"),
    Entry("remapped_rows.uncorrectable", "gpu.{i}.remappedRowsUncorrected"),
    Entry("temperature.gpu", "gpu.{i}.temp", whole=True),
    Entry("temperature.memory", "gpu.{i}.memoryTemp", whole=True),
    Entry("power.draw", "gpu.{i}.powerWatts"),
    Entry("power.limit", "gpu.{i}.enforcedPowerLimitWatts"),
    Entry("enforced.power.limit", "gpu.{i}.enforcedPowerLimitWatts"),
    Entry("clocks.current.graphics", "gpu.{i}.graphicsClock", otherwise=("gpu.{i}.freq", "gpu.{i}.smClock"), whole=True),
    Entry("clocks.current.sm", "gpu.{i}.smClock", otherwise=("gpu.{i}.freq",), whole=True),
    Entry("clocks.current.memory", "gpu.{i}.memoryClock", whole=True),
    Entry("clocks.max.sm", "gpu.{i}.maxSmClock", whole=True),
    Entry("clocks.max.memory", "gpu.{i}.maxMemoryClock", whole=True),
)
"""By field, in the order in which the tool lists them."""

SHORT_FOR = {
    "clocks.current.graphics": ("clocks.gr",),
    "clocks.current.sm": ("clocks.sm",),
    "clocks.current.memory": ("clocks.mem",),
    "clocks.max.memory": ("clocks.max.mem",),
    **{f"clocks_event_reasons.{field}": (f"clocks_throttle_reasons.{field}",) for field in _REASONS},
}
"""The other names of a field: short ones, and those from before drivers spoke of events."""

ABSENT = "[N/A]"
"""What the tool prints for a value that the device does not say."""
_HEADER_UNITS = {"MiBy": " [MiB]", "%": " [%]", "W": " [W]", "MHz": " [MHz]"}
_STATES = ("Not Active", "Active")


class NvidiaSmi:
    """GPUs as ``nvidia-smi`` tells of them; its partitions are no rows of its query."""

    name = "nvidia-smi"
    summary = "the fields of nvidia-smi --query-gpu, a row per GPU"

    def __init__(self) -> None:
        self._table = Table(TABLE)

    def flat(self, record: Record) -> dict[str, Number | None]:
        """``gpu.0.memory.used``: the device's key, then the field under each of its names."""
        found: dict[str, Number | None] = {}
        for place in _whole_devices(record.snapshot):
            for told in self._table.told(record.snapshot, place):
                for name in (told.entry.name, *SHORT_FOR.get(told.entry.name, ())):
                    found[f"{place.key}.{name}"] = told.value
        return found

    def points(self, record: Record) -> Iterator[Point]:
        """Each field once, with the device as labels."""
        for place in _whole_devices(record.snapshot):
            who = place.identity
            labels = {"index": designation(place), "name": who.name, "uuid": who.uuid or who.pci_bus_id or place.key}
            for told in self._table.told(record.snapshot, place):
                yield Point(told.entry.name, told.value, labels, told.kind, told.unit, told.meaning)

    def rows(self, record: Record) -> Sequence[Mapping[str, str]]:
        """As ``--format=csv,nounits`` prints them: who the device is, then every field of the table. Times are UTC."""
        found = [(place, list(self._table.told(record.snapshot, place))) for place in _whole_devices(record.snapshot)]
        moment = _moment(record.snapshot.time_ns)
        return [_row(moment, place, told) for place, told in found if told or place.identity.kind == "gpu"]


def _row(moment: str, place: DeviceSlot, told: Iterable[Told]) -> dict[str, str]:
    who = place.identity
    row = {
        "timestamp": moment,
        "index": designation(place),
        "name": who.name or ABSENT,
        "uuid": who.uuid or ABSENT,
        "pci.bus_id": who.pci_bus_id or ABSENT,
        "serial": who.serial or ABSENT,
        "driver_version": who.driver_version or ABSENT,
        "vbios_version": who.firmware or ABSENT,
    }
    by_field = {one.entry.name: one for one in told}
    row.update((_header(entry), _words(by_field.get(entry.name))) for entry in TABLE)
    return row


def _whole_devices(snapshot: Snapshot) -> list[DeviceSlot]:
    return [place for place in snapshot.identities if not place.identity.parent]


def _header(entry: Entry) -> str:
    """The field with its unit, as the tool heads its columns; it leaves that of temperatures out."""
    unit = entry.unit or find(entry.source).unit if isinstance(entry.source, str) else entry.unit
    return entry.name + _HEADER_UNITS.get(unit, "")


def _words(told: Told | None) -> str:
    """A value as the tool prints it: ``P0``, ``Active``, ``300.20``, ``575``."""
    if told is None:
        return ABSENT
    name = told.entry.name
    if name == "pstate":
        return f"P{told.value}"
    if name.startswith("clocks_event_reasons."):
        return _STATES[bool(told.value)]
    return f"{told.value:.2f}" if told.unit == "W" else str(told.value)


def _moment(time_ns: int) -> str:
    seconds, rest = divmod(time_ns, 1_000_000_000)
    return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y/%m/%d %H:%M:%S}.{rest // 1_000_000:03}"


NVIDIA_SMI = NvidiaSmi()
