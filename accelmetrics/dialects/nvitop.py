"""``nvitop``: the metrics of nvitop-exporter with its labels, on devices of any vendor. MiB are powers of two."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache

from accelmetrics.dialects.contract import Point
from accelmetrics.dialects.tables import DialectRow, DialectTable, FunctionDialect, answering, convert, parent_and_partition, without_empty
from accelmetrics.schemas.catalogue import per_key, resolve
from accelmetrics.schemas.identity import DeviceSlot
from accelmetrics.schemas.record import Record
from accelmetrics.schemas.vitals import processors

DEVICE = (
    DialectRow("gpu_utilization_Percentage", "gpu.{i}.gpu"),
    DialectRow("gpu_memory_utilization_Percentage", "gpu.{i}.memory"),
    DialectRow("gpu_encoder_utilization_Percentage", "gpu.{i}.encoderUtilization"),
    DialectRow("gpu_decoder_utilization_Percentage", "gpu.{i}.decoderUtilization"),
    DialectRow("gpu_memory_total_MiB", "gpu.{i}.memoryTotalBytes", "MiBy"),
    DialectRow("gpu_memory_used_MiB", "gpu.{i}.memoryAllocatedBytes", "MiBy"),
    DialectRow("gpu_memory_free_MiB", "gpu.{i}.memoryFreeBytes", "MiBy"),
    DialectRow("gpu_memory_percent_Percentage", "gpu.{i}.memoryAllocated", otherwise=("tpu.{i}.hbmMemoryUsage",)),
    DialectRow("gpu_clock_sm_MHz", "gpu.{i}.smClock", otherwise=("gpu.{i}.freq",)),
    DialectRow("gpu_clock_memory_MHz", "gpu.{i}.memoryClock"),
    DialectRow("gpu_clock_video_MHz", "gpu.{i}.videoClock"),
    DialectRow("gpu_clock_graphics_MHz", "gpu.{i}.graphicsClock", otherwise=("gpu.{i}.freq", "gpu.{i}.smClock")),
    DialectRow("gpu_power_usage_W", "gpu.{i}.powerWatts"),
    DialectRow("gpu_power_limit_W", "gpu.{i}.enforcedPowerLimitWatts"),
    DialectRow("gpu_temperature_C", "gpu.{i}.temp"),
    DialectRow("gpu_fan_speed_Percentage", "gpu.{i}.fanSpeed"),
    DialectRow("gpu_pcie_tx_throughput_MiBps", "gpu.{i}.pcieTxBytes", "MiBy/s"),
    DialectRow("gpu_pcie_rx_throughput_MiBps", "gpu.{i}.pcieRxBytes", "MiBy/s"),
    DialectRow("gpu_nvlink_total_tx_throughput_MiBps", "gpu.{i}.nvlinkTxBytes", "MiBy/s"),
    DialectRow("gpu_nvlink_total_rx_throughput_MiBps", "gpu.{i}.nvlinkRxBytes", "MiBy/s"),
)
"""Rows of a device, with the labels ``hostname``, ``index``, ``devicename``, ``uuid``. A MIG instance's index is ``0:1``."""

HOST = {
    "memory_percent": ("host_virtual_memory_percent_Percentage", "%"),
    "memory.totalBytes": ("host_virtual_memory_total_MiB", "MiBy"),
    "memory.usedBytes": ("host_virtual_memory_used_MiB", "MiBy"),
    "swap.used": ("host_swap_memory_used_MiB", "MiBy"),
    "swap.used_percent": ("host_swap_memory_percent_Percentage", "%"),
    "load.1m": ("host_load_average_1m_Percentage", "1"),
    "load.5m": ("host_load_average_5m_Percentage", "1"),
    "load.15m": ("host_load_average_15m_Percentage", "1"),
    "network.sent": ("host_net_io_tx_data_MiB", "MiBy"),
    "network.recv": ("host_net_io_rx_data_MiB", "MiBy"),
}
"""Metric of the machine by key: its name (with the label ``hostname``) and unit. Network traffic is the sum of all interfaces."""
INSTANCES = {
    "disk.{device}.in": ("host_disk_io_read_data_MiB", "partition", "MiBy"),
    "disk.{device}.out": ("host_disk_io_write_data_MiB", "partition", "MiBy"),
    "disk.{path}.usageGB": ("host_disk_usage_used_MiB", "mountpoint", "MiBy"),
    "disk.{path}.usagePercent": ("host_disk_usage_percent_Percentage", "mountpoint", "%"),
}
"""Metric of a disk or file system by key: its name, the label that holds the disk or path, and the unit."""
CPU, INFO = "host_cpu_percent_Percentage", "nvitop_info"

_TABLE = DialectTable(DEVICE)


def points(record: Record) -> Iterator[Point]:
    """Yield the metrics of the machine, then of each device."""
    snapshot = record.snapshot
    host = {"hostname": snapshot.hostname}
    busy = processors(snapshot.metrics)
    if busy is not None:
        yield Point(CPU, busy, host, "gauge", "%", "How busy the host's processors are.")
    for key, value in snapshot.metrics.items():
        found = _of_host(key)
        if found is not None:
            given, point = found
            yield point._replace(value=convert(value, given, point.unit), labels={**host, **point.labels})
    answered = answering(snapshot)
    if answered:
        identity = answered[0].identity
        about = {
            **host,
            "device_count": str(len({one.identity.parent or one.identity.anchor for one in snapshot.identities})),
            "driver_version": identity.driver_version,
            "cuda_driver_version": identity.runtime_version,
        }
        yield Point(INFO, 1, without_empty(about), "gauge", "1", "1, with labels that say which driver serves how many devices.")
    for slot in answered:
        yield from _TABLE.points(snapshot, slot, _labels(slot, snapshot.hostname))


@per_key
def _of_host(key: str) -> tuple[str, Point] | None:
    """Return the unit of a host key's values and its point without a value; None for keys that the exporter does not have."""
    found = resolve(key)
    if found is None or found.device or not (key in HOST or found.row.key in INSTANCES):
        return None
    name, label, unit = INSTANCES.get(found.row.key) or (HOST[key][0], "", HOST[key][1])
    return found.row.unit, Point(name, 0, {label: found.instance} if label else {}, "gauge", unit, found.row.meaning)


@lru_cache(maxsize=1024)
def _labels(slot: DeviceSlot, hostname: str) -> Mapping[str, str]:
    whole, partition = parent_and_partition(slot)
    index = f"{whole}:{partition}" if partition else whole
    return {"hostname": hostname, "index": index, "devicename": slot.identity.name, "uuid": slot.unique_id}


NVITOP = FunctionDialect("nvitop", "the metrics of nvitop-exporter: gpu_utilization_Percentage, host_cpu_percent_Percentage", points)
