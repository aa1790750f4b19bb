"""``nvidia_smi``: the metrics of nvidia_gpu_exporter, ``nvidia_smi_…``, on devices of any vendor.

The exporter makes its names of the fields of ``nvidia-smi``'s query, in base units: ``clocks.current.sm [MHz]`` is
``nvidia_smi_clocks_current_sm_clock_hz``. ``QUERIED`` is made in the same way of the table of the dialect ``nvidia-smi``. What the
exporter reads beside the query (energy, PCIe, Xid errors, MIG instances) is in ``BESIDE`` and ``INSTANCE``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache

from accelmetrics.dialects.contract import Dialect, Number, Point
from accelmetrics.dialects.nvidia_smi import TABLE
from accelmetrics.dialects.tables import (
    DialectRow,
    DialectTable,
    Values,
    gpu_instance,
    parent_and_partition,
    profile,
    unit_of,
    without_empty,
    xid_errors,
)
from accelmetrics.schemas.identity import DeviceSlot, Status
from accelmetrics.schemas.record import Record
from accelmetrics.schemas.snapshot import Snapshot

PREFIX = "nvidia_smi_"
_SUFFIXES = {"MiBy": ("_bytes", "By"), "%": ("_ratio", "1"), "W": ("_watts", "W"), "MHz": ("_clock_hz", "Hz")}
"""By unit of the query, what the exporter adds to the name, and its base unit."""


def _series(row: DialectRow) -> DialectRow:
    """Make the exporter's row of a field of the query: whole MiB, MHz and percents become what they were cut off from."""
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
"""Of MIG instances, with the labels ``uuid`` of their GPU and ``gpu_instance_id``."""

INFO, INDEX, MIG_INFO = f"{PREFIX}gpu_info", f"{PREFIX}index", f"{PREFIX}mig_info"
XID_ERRORS, XID_TIME = f"{PREFIX}xid_errors_total", f"{PREFIX}xid_last_timestamp_seconds"
APPS, SUCCESS = f"{PREFIX}compute_apps", f"{PREFIX}last_collect_success"
OTHERS = {
    INFO: "what the device is, in the labels `name`, `index`, `driver_version`, `cuda_version`, `vbios_version`, `pci_bus_id`, `serial`",
    INDEX: "the device's index",
    XID_ERRORS: "`gpu.{i}.xid.{code}.errors`, the code as label `xid`",
    XID_TIME: "when a reading first held the latest error of the code",
    APPS: "how many processes use the device to compute",
    SUCCESS: "1 while every source that has devices, or should, can be read",
    MIG_INFO: "what a MIG instance is, in the labels `mig_uuid`, `gpu_instance_id`, `profile`",
}
"""Beside the tables, by name what each is made of."""
UNMAPPED = {
    "compute_app_info": "processes have series in our own names alone, with `processes=`",
    "compute_app_used_memory_bytes": "as `compute_app_info`",
    "compute_apps_last_collect_success": "as `compute_app_info`",
}
"""Of what the exporter's dashboards ask for, without the prefix, what is left out and why."""

_MEANINGS = {
    INFO: "1, with labels that say what the device is.",
    INDEX: "Index of the device.",
    XID_ERRORS: "Xid errors of the code since the program began to listen.",
    XID_TIME: "When the latest Xid error of the code was first seen, in seconds since 1970.",
    APPS: "Processes that use the device to compute.",
    SUCCESS: "1 while every source can be read, else 0.",
    MIG_INFO: "1, with labels that say what the MIG instance is.",
}
_READ: tuple[Status, ...] = ("ok", "degraded")


class NvidiaGpuExporter(Dialect):
    """Series as nvidia_gpu_exporter serves them. Remembers when each Xid error was first seen."""

    name = "nvidia_smi"
    summary = "the metrics of nvidia_gpu_exporter: nvidia_smi_utilization_gpu_ratio"
    counting = True
    _device, _instance = DialectTable((*QUERIED, *BESIDE)), DialectTable(INSTANCE)

    def __init__(self) -> None:
        self._seen: dict[tuple[str, int], tuple[Number, int]] = {}

    def points(self, record: Record) -> Iterator[Point]:
        """Give whole devices with ``uuid`` as their label, then MIG instances with their GPU's and their own."""
        snapshot = record.snapshot
        parents = {slot.key: slot for slot in snapshot.identities}
        told: set[tuple[str, str]] = set()
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
            if (whole, gpu_instance(slot)) not in told:  # compute instances share the memory of their GPU instance
                told.add((whole, gpu_instance(slot)))
                yield from self._instance.points(snapshot, slot, labels)
        read = [status.status in _READ for status in snapshot.backends if status.name != "host" and status.status != "absent"]
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
        processes = snapshot.processes.get(slot.key)
        if processes is not None:
            computing = sum(process.type != "graphics" for process in processes)
            yield Point(APPS, computing, labels, "gauge", "1", _MEANINGS[APPS])


def uuid_of(slot: DeviceSlot) -> str:
    """Name a device as the exporter does: its UUID in lower case without ``gpu-``; of other vendors what is unique."""
    return slot.unique_id.lower().removeprefix("gpu-")


@lru_cache(maxsize=1024)
def _about(slot: DeviceSlot) -> Mapping[str, str]:
    who = slot.identity
    return without_empty(
        {
            "uuid": uuid_of(slot),
            "name": who.name,
            "index": str(slot.index),
            "driver_version": who.driver_version,
            "cuda_version": who.runtime_version,
            "vbios_version": who.firmware,
            "pci_bus_id": who.pci_bus_id,
            "serial": who.serial,
        }
    )
