"""The host: the watched process, and the processor, memory, disks and network it runs on.

W&B's ``MB`` and ``GB`` are MiB and GiB. ``disk.….in`` and ``out`` and ``network.sent`` and ``recv`` count from the sampler's
first reading, which itself has nothing to count from and answers ``needs_interval``.
"""

from __future__ import annotations

from accelmetrics.schemas.metric import Kind, Metric, Unit

PERCENT = 0.01
MIB = 1024.0**2
GIB = 1024.0**3


def _row(  # noqa: PLR0913 one row of a table
    key: str,
    unit: Unit,
    meaning: str,
    *,
    kind: Kind = "gauge",
    integer: bool = False,
    maximum: float | None = None,
    minimum: float = 0.0,
    prometheus: str = "",
    otel: str = "",
    factor: float = 1.0,
) -> Metric:
    return Metric(
        key,
        unit,
        kind,
        meaning,
        integer=integer,
        maximum=maximum,
        minimum=minimum,
        prometheus=prometheus,
        otel=otel,
        factor=factor,
    )


PROCESS = (
    _row(
        "cpu",
        "%",
        "CPU time of the watched process over the interval, in percent of the CPUs it may use (cgroup quota, else affinity).",
        maximum=100,
        prometheus="accel_host_process_cpu_ratio",
        otel="process.cpu.utilization",
        factor=PERCENT,
    ),
    _row(
        "proc.cpu.threads",
        "1",
        "Threads of the watched process.",
        integer=True,
        prometheus="accel_host_process_threads",
        otel="process.thread.count",
    ),
    _row(
        "proc.cpu.throttledPercent",
        "%",
        "Share of the cgroup's scheduling periods of the interval in which it was held back by its CPU quota.",
        maximum=100,
        prometheus="accel_host_process_throttled_ratio",
        otel="accel.process.cpu.throttled",
        factor=PERCENT,
    ),
    _row(
        "proc.memory.rssMB",
        "MiBy",
        "Resident memory of the watched process; memory that its processes share is counted once for each.",
        prometheus="accel_host_process_memory_bytes",
        otel="process.memory.usage",
        factor=MIB,
    ),
    _row(
        "proc.memory.percent",
        "%",
        "Resident memory of the watched process in percent of the cgroup's limit, else of the host's memory.",
        prometheus="accel_host_process_memory_ratio",
        otel="accel.process.memory.utilization",
        factor=PERCENT,
    ),
    _row(
        "proc.memory.availableMB",
        "MiBy",
        "Memory that is still available to everything below the cgroup's limit, else on the host.",
        prometheus="accel_host_memory_available_bytes",
        otel="system.memory.linux.available",
        factor=MIB,
    ),
    _row(
        "proc.memory.oomKills",
        "1",
        "Processes of the cgroup that the kernel killed for want of memory since the first reading.",
        kind="counter",
        integer=True,
        prometheus="accel_host_oom_kills_total",
        otel="accel.process.memory.oom_kills",
    ),
    _row(
        "wandb.memory.rssMB",
        "MiBy",
        "Resident memory of W&B's own collector; described for documents that carry it, no backend gives it.",
        factor=MIB,
    ),
)

PROCESSOR = (
    _row(
        "cpu.{i}.cpu_percent",
        "%",
        "Share of the interval during which this logical CPU was busy.",
        maximum=100,
        prometheus='accel_host_cpu_ratio{cpu="{i}"}',
        otel='system.cpu.utilization{cpu.logical_number="{i}"}',
        factor=PERCENT,
    ),
    _row(
        "cpu.avg_temp",
        "Cel",
        "Temperature of the processor: the mean over its cores where each has a sensor, else over its packages.",
        minimum=-273.15,
        prometheus="accel_host_cpu_temperature_celsius",
        otel='hw.temperature{hw.sensor_location="cpu"}',
    ),
    _row(
        "cpu.powerWatts",
        "W",
        "Power that the processor's packages drew over the interval.",
        prometheus="accel_host_cpu_power_watts",
        otel='hw.power{hw.type="cpu"}',
    ),
)

MEMORY = (
    _row(
        "memory_percent",
        "%",
        "Memory in use, in percent of the cgroup's limit, else of the host's memory.",
        maximum=100,
        prometheus="accel_host_memory_used_ratio",
        otel='system.memory.utilization{system.memory.state="used"}',
        factor=PERCENT,
    ),
    _row(
        "swap.used_percent",
        "%",
        "Swap space in use; missing on a host without swap.",
        maximum=100,
        prometheus="accel_host_swap_used_ratio",
        otel='system.paging.utilization{system.paging.state="used"}',
        factor=PERCENT,
    ),
)


def _traffic(key: str, meaning: str, direction: str) -> Metric:
    # A series for the sum: disks and their partitions stand side by side, so that adding them up counts bytes twice.
    one = "{device}" in key
    series = 'accel_host_disk_bytes_total{device="{device}",' if one else "accel_host_disks_bytes_total{"
    otel = 'system.disk.io{system.device="{device}",' if one else "accel.disks.io{"
    return _row(
        key,
        "MiBy",
        meaning,
        kind="counter",
        prometheus=f'{series}direction="{direction}"}}',
        otel=f'{otel}disk.io.direction="{direction}"}}',
        factor=MIB,
    )


DISKS = (
    _row(
        "disk.{path}.usagePercent",
        "%",
        "Used space of the file system at this path, in percent of what users may fill.",
        maximum=100,
        prometheus='accel_host_filesystem_used_ratio{path="{path}"}',
        otel='system.filesystem.utilization{system.filesystem.mountpoint="{path}"}',
        factor=PERCENT,
    ),
    _row(
        "disk.{path}.usageGB",
        "GiBy",
        "Used space of the file system at this path.",
        prometheus='accel_host_filesystem_used_bytes{path="{path}"}',
        otel='system.filesystem.usage{system.filesystem.mountpoint="{path}",system.filesystem.state="used"}',
        factor=GIB,
    ),
    _traffic(
        "disk.in", "Read from all disks since the first reading; what partitions and volumes move is counted once, on the disk.", "read"
    ),
    _traffic(
        "disk.out", "Written to all disks since the first reading; what partitions and volumes move is counted once, on the disk.", "write"
    ),
    _traffic("disk.{device}.in", "Read from this disk since the first reading.", "read"),
    _traffic("disk.{device}.out", "Written to this disk since the first reading.", "write"),
    _row(
        "disk.{device}.readBps",
        "By/s",
        "Bytes per second read from this disk over the interval.",
    ),
    _row(
        "disk.{device}.writeBps",
        "By/s",
        "Bytes per second written to this disk over the interval.",
    ),
)

_NETWORK = "/proc/net/dev without loopback, 0.95 s; elsewhere psutil.net_io_counters"

NETWORK = (
    _row(
        "network.sent",
        "By",
        "Sent over all interfaces but loopback since the first reading.",
        kind="counter",
        integer=True,
        prometheus='accel_host_network_bytes_total{direction="tx"}',
        otel='system.network.io{network.io.direction="transmit"}',
    ),
    _row(
        "network.recv",
        "By",
        "Received over all interfaces but loopback since the first reading.",
        kind="counter",
        integer=True,
        prometheus='accel_host_network_bytes_total{direction="rx"}',
        otel='system.network.io{network.io.direction="receive"}',
    ),
    _row("network.sentBps", "By/s", "Bytes per second sent over the interval."),
    _row("network.recvBps", "By/s", "Bytes per second received over the interval."),
    _row(
        "network.tcpRetransmits",
        "1",
        "TCP segments that were sent again since the first reading.",
        kind="counter",
        integer=True,
        prometheus="accel_host_tcp_retransmits_total",
        otel="accel.network.tcp.retransmits",
    ),
)

INSTANCES = {
    "cpu.{i}": ("cpus", "CpuMetrics", int),
    "disk.{path}": ("filesystems", "FilesystemMetrics", str),
    "disk.{device}": ("disks", "DiskMetrics", str),
}
"""For keys with a placeholder: the attribute of the typed view that holds the instances, the model of one, what numbers it."""
