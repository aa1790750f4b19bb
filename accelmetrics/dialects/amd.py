"""``amd``: the metrics of AMD's device-metrics-exporter, ``gpu_…`` and ``pcie_…``, with its labels, on devices of any vendor.

Its dashboards distinguish MI200 from MI300 by the part number of the board (``card_model``). If the source has no part number
(``rocm-smi``, workstation boards), ``card_model`` is the product name, as in the exporter itself. Panels that exclude certain part
numbers then show the device; panels that require one of them do not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache

from accelmetrics.dialects.contract import Number, Point
from accelmetrics.dialects.health import jobs
from accelmetrics.dialects.tables import (
    Computed,
    ComputedValue,
    DialectRow,
    DialectTable,
    FunctionDialect,
    Values,
    answering,
    parent_and_partition,
    without_empty,
)
from accelmetrics.schemas.identity import DeviceIdentity, DeviceSlot
from accelmetrics.schemas.record import Record

# GT/s by PCIe generation.
_TRANSFERS = {1: 2.5, 2: 5, 3: 8, 4: 16, 5: 32, 6: 64}


def _of_sockets(name: str, sockets: bool) -> ComputedValue:
    """Return a function that reads a value only on MI300 and later, or only on earlier devices."""
    # MI300 and later have no edge sensor and report the current power of the socket.
    return lambda values, identity: values.get(name) if identity.architecture.startswith(("gfx94", "gfx95")) == sockets else None


def _transfers(name: str) -> ComputedValue:
    """Return a function that converts a PCIe generation to GT/s."""
    return lambda values, _: _TRANSFERS.get(int(values.get(name, 0)))


def _health(values: Values, _: DeviceIdentity) -> Number | None:
    return int(values["uncorrectedMemoryErrors"] == 0) if "uncorrectedMemoryErrors" in values else None


TABLE = (
    DialectRow("gpu_gfx_activity", "gpu.{i}.gpu"),
    DialectRow("gpu_gfx_busy_instantaneous", "gpu.{i}.gpu"),
    DialectRow("gpu_umc_activity", "gpu.{i}.memory"),
    DialectRow(
        "gpu_average_package_power",
        Computed("powerWatts of devices before MI300", "W", _of_sockets("powerWatts", sockets=False)),
        meaning="Average power of the package.",
    ),
    DialectRow(
        "gpu_package_power",
        Computed("powerWatts of MI300 and later", "W", _of_sockets("powerWatts", sockets=True)),
        meaning="Power of the socket.",
    ),
    DialectRow("gpu_power_usage", "gpu.{i}.powerWatts"),
    DialectRow("gpu_energy_consumed", "gpu.{i}.energyJoules", "uJ", kind="gauge"),
    DialectRow(
        "gpu_edge_temperature",
        Computed("temp of devices before MI300; later ones have no edge sensor", "Cel", _of_sockets("temp", sockets=False)),
        meaning="Temperature at the edge of the chip.",
    ),
    DialectRow("gpu_junction_temperature", "gpu.{i}.hotspotTemp"),
    DialectRow("gpu_memory_temperature", "gpu.{i}.memoryTemp"),
    DialectRow("gpu_total_vram", "gpu.{i}.memoryTotalBytes", "MiBy", whole=True),
    DialectRow("gpu_used_vram", "gpu.{i}.memoryAllocatedBytes", "MiBy", whole=True),
    DialectRow("gpu_free_vram", "gpu.{i}.memoryFreeBytes", "MiBy", whole=True),
    DialectRow("gpu_ecc_correct_total", "gpu.{i}.correctedMemoryErrors", kind="gauge"),
    DialectRow("gpu_ecc_uncorrect_total", "gpu.{i}.uncorrectedMemoryErrors", kind="gauge"),
    DialectRow(
        "gpu_health", Computed("1 while uncorrectedMemoryErrors is 0, else 0", "1", _health), meaning="1 while the device is healthy."
    ),
    DialectRow(
        "pcie_speed", Computed("pcieLinkGen in GT/s", "GT/s", _transfers("pcieLinkGen")), meaning="Speed of a lane of the PCIe link."
    ),
    DialectRow(
        "pcie_max_speed",
        Computed("maxPcieLinkGen in GT/s", "GT/s", _transfers("maxPcieLinkGen")),
        meaning="Highest speed of a lane of the PCIe link.",
    ),
    DialectRow("pcie_replay_count", "gpu.{i}.pcieReplays", kind="gauge"),
)
"""The exporter's counts are gauges."""
CLOCKS = {
    "system": DialectTable((DialectRow("gpu_clock", "gpu.{i}.smClock"), DialectRow("gpu_max_clock", "gpu.{i}.maxSmClock"))),
    "memory": DialectTable((DialectRow("gpu_clock", "gpu.{i}.memoryClock"), DialectRow("gpu_max_clock", "gpu.{i}.maxMemoryClock"))),
}
"""Tables by the value of the label ``clock_type``. The exporter's label ``clock_index`` is left out."""
COUNT = "gpu_nodes_total"


_TABLE = DialectTable(TABLE)


def points(record: Record) -> Iterator[Point]:
    """Yield the number of devices, then each device's metrics, with the labels of the job and pod that use it."""
    snapshot = record.snapshot
    own = jobs(record.labels).get("slurm", {})
    answered = answering(snapshot)
    if answered:
        whole = len({slot.identity.parent or slot.identity.anchor for slot in snapshot.identities})
        yield Point(COUNT, whole, {"hostname": snapshot.hostname}, "gauge", "1", "Devices of the machine.")
    for slot in answered:
        # A known holder of the device takes precedence over the job in the record's labels.
        job_labels = record.holders.of(slot.key, "job") or own
        names = {"job_id": "job_id", "job_user": "user", "job_partition": "partition"}
        job = {label: job_labels[name] for label, name in names.items() if name in job_labels}
        labels = {**_labels(slot, snapshot.hostname), **job, **record.pod_labels(slot.key)}
        yield from _TABLE.points(snapshot, slot, labels)
        for clock, table in CLOCKS.items():
            yield from table.points(snapshot, slot, {**labels, "clock_type": clock})


@lru_cache(maxsize=1024)
def _labels(slot: DeviceSlot, hostname: str) -> Mapping[str, str]:
    identity = slot.identity
    whole, partition = parent_and_partition(slot)
    return without_empty(
        {
            "gpu_id": whole,
            "gpu_uuid": slot.unique_id,
            "gpu_partition_id": partition or "0",
            "hostname": hostname,
            "card_model": identity.part_number or identity.name,
            "card_series": identity.name,
            "card_vendor": identity.vendor,
            "driver_version": identity.driver_version,
            "vbios_version": identity.firmware,
            "serial_number": identity.serial,
        }
    )


AMD = FunctionDialect("amd", "the metrics of AMD's device-metrics-exporter: gpu_gfx_activity, pcie_speed", points)
