"""Metrics of the machine: the watched process, processor, memory, disks and network; metrics that a program reports itself.

W&B's ``MB`` and ``GB`` are MiB and GiB. ``disk.….in`` and ``out`` and ``network.sent`` and ``recv`` count from the sampler's first
reading. The first reading itself has no count yet, and gives the reason ``needs_interval``.
"""

from __future__ import annotations

from accelmetrics.schemas.metric import ABSOLUTE_ZERO, Metric, Preset, Unit

PROCESS = (
    Metric(
        "cpu",
        "%",
        "gauge",
        "CPU time of the watched process over the interval, in percent of the CPUs it may use (cgroup quota, else affinity).",
        "accel_host_process_cpu_ratio",
        "accel.process.cpu.utilization",  # the conventions' name is of user and system time apart
        maximum=100,
    ),
    Metric(
        "proc.cpu.userPercent",
        "%",
        "gauge",
        "The part of `cpu` that the watched process spent in its own code (user mode).",
        'accel_host_process_cpu_mode_ratio{mode="user"}',
        'process.cpu.utilization{cpu.mode="user"}',
        maximum=100,
    ),
    Metric(
        "proc.cpu.systemPercent",
        "%",
        "gauge",
        "The part of `cpu` that the kernel spent on behalf of the watched process (system mode).",
        'accel_host_process_cpu_mode_ratio{mode="system"}',
        'process.cpu.utilization{cpu.mode="system"}',
        maximum=100,
    ),
    Metric(
        "proc.cpu.threads",
        "1",
        "gauge",
        "Threads of the watched process.",
        "accel_host_process_threads",
        "process.thread.count",
        integer=True,
    ),
    Metric(
        "proc.cpu.throttledPercent",
        "%",
        "gauge",
        "Share of the cgroup's scheduling periods of the interval in which it was held back by its CPU quota.",
        "accel_host_process_throttled_ratio",
        "accel.process.cpu.throttled",
        maximum=100,
    ),
    Metric(
        "proc.memory.rssMB",
        "MiBy",
        "gauge",
        "Resident memory of the watched process; memory that its processes share is counted once for each.",
        "accel_host_process_memory_bytes",
        "process.memory.usage",
    ),
    Metric("proc.memory.rssBytes", "By", "gauge", "The same as `proc.memory.rssMB`, in bytes.", integer=True),
    Metric(
        "proc.memory.percent",
        "%",
        "gauge",
        "Resident memory of the watched process in percent of the cgroup's limit, else of the host's memory.",
        "accel_host_process_memory_ratio",
        "accel.process.memory.utilization",
    ),
    Metric(
        "proc.memory.availableMB",
        "MiBy",
        "gauge",
        "Memory that is still available to everything below the cgroup's limit, else on the host.",
        "accel_host_memory_available_bytes",
        "system.memory.linux.available",
    ),
    Metric(
        "proc.memory.oomKills",
        "1",
        "counter",
        "Processes of the cgroup that the kernel killed because memory ran out, since the first reading.",
        "accel_host_oom_kills_total",
        "accel.process.memory.oom_kills",
        integer=True,
    ),
    Metric(
        "wandb.memory.rssMB",
        "MiBy",
        "gauge",
        "Resident memory of W&B's own collector; described for documents that carry it, no backend gives it.",
    ),
)

PROCESSOR = (
    *(
        Metric(
            f"load.{minutes}m",
            "1",
            "gauge",
            f"Load average of the host: processes that run or wait to run, over the last {span}.",
            f'accel_host_load_average{{minutes="{minutes}"}}',
            f'accel.host.load_average{{accelmetrics.minutes="{minutes}"}}',
        )
        for minutes, span in ((1, "minute"), (5, "5 minutes"), (15, "15 minutes"))
    ),
    Metric(
        "cpu.{i}.cpu_percent",
        "%",
        "gauge",
        "Share of the interval during which this logical CPU was busy.",
        'accel_host_cpu_ratio{cpu="{i}"}',
        'system.cpu.utilization{cpu.logical_number="{i}"}',
        maximum=100,
        preset="all",
    ),
    Metric(
        "cpu.avg_temp",
        "Cel",
        "gauge",
        "Temperature of the processor: the mean over its cores where each has a sensor, else over its packages.",
        "accel_host_cpu_temperature_celsius",
        'hw.temperature{hw.sensor_location="cpu"}',
        minimum=ABSOLUTE_ZERO,
    ),
    Metric(
        "cpu.powerWatts",
        "W",
        "gauge",
        "Power that the processor's packages drew over the interval.",
        "accel_host_cpu_power_watts",
        'hw.power{hw.type="cpu"}',
    ),
)

MEMORY = (
    Metric(
        "memory_percent",
        "%",
        "gauge",
        "Memory in use, in percent of the cgroup's limit, else of the host's memory.",
        "accel_host_memory_used_ratio",
        'system.memory.utilization{system.memory.state="used"}',
        maximum=100,
    ),
    Metric(
        "memory.usedBytes",
        "By",
        "gauge",
        "Memory in use, as the cgroup's limit counts it, else on the host.",
        "accel_host_memory_used_bytes",
        'system.memory.usage{system.memory.state="used"}',
        integer=True,
    ),
    Metric(
        "memory.totalBytes",
        "By",
        "gauge",
        "Memory that there is: the cgroup's limit, else the host's memory.",
        "accel_host_memory_total_bytes",
        "system.memory.limit",
        integer=True,
    ),
    Metric(
        "swap.used_percent",
        "%",
        "gauge",
        "Swap space in use; missing on a host without swap.",
        "accel_host_swap_used_ratio",
        'system.paging.utilization{system.paging.state="used"}',
        maximum=100,
    ),
)

_SINCE = "since the first reading"
_ONCE = "what partitions and volumes move is counted once, on the disk"


def _traffic(key: str, direction: str, meaning: str) -> Metric:
    # The sum is a separate series: in one series with its parts, sums would count bytes twice.
    one = "{device}" in key
    series = 'accel_host_disk_bytes_total{device="{device}",' if one else "accel_host_disks_bytes_total{"
    otel = 'system.disk.io{system.device="{device}",' if one else "accel.disks.io{"
    return Metric(key, "MiBy", "counter", meaning, f'{series}direction="{direction}"}}', f'{otel}disk.io.direction="{direction}"}}')


DISKS = (
    Metric(
        "disk.{path}.usagePercent",
        "%",
        "gauge",
        "Used space of the file system at this path, in percent of what users may fill.",
        'accel_host_filesystem_used_ratio{path="{path}"}',
        'system.filesystem.utilization{system.filesystem.mountpoint="{path}"}',
        maximum=100,
    ),
    Metric(
        "disk.{path}.usageGB",
        "GiBy",
        "gauge",
        "Used space of the file system at this path.",
        'accel_host_filesystem_used_bytes{path="{path}"}',
        'system.filesystem.usage{system.filesystem.mountpoint="{path}",system.filesystem.state="used"}',
    ),
    _traffic("disk.in", "read", f"Read from all disks {_SINCE}; {_ONCE}."),
    _traffic("disk.out", "write", f"Written to all disks {_SINCE}; {_ONCE}."),
    _traffic("disk.{device}.in", "read", f"Read from this disk {_SINCE}."),
    _traffic("disk.{device}.out", "write", f"Written to this disk {_SINCE}."),
    Metric("disk.{device}.readBps", "By/s", "gauge", "Bytes per second read from this disk over the interval."),
    Metric("disk.{device}.writeBps", "By/s", "gauge", "Bytes per second written to this disk over the interval."),
)

NETWORK = (
    Metric(
        "network.sent",
        "By",
        "counter",
        "Sent over all interfaces but loopback since the first reading.",
        'accel_host_network_bytes_total{direction="tx"}',
        'system.network.io{network.io.direction="transmit"}',
        integer=True,
    ),
    Metric(
        "network.recv",
        "By",
        "counter",
        "Received over all interfaces but loopback since the first reading.",
        'accel_host_network_bytes_total{direction="rx"}',
        'system.network.io{network.io.direction="receive"}',
        integer=True,
    ),
    Metric("network.sentBps", "By/s", "gauge", "Bytes per second sent over the interval."),
    Metric("network.recvBps", "By/s", "gauge", "Bytes per second received over the interval."),
    Metric(
        "network.tcpRetransmits",
        "1",
        "counter",
        "TCP segments that were sent again since the first reading.",
        "accel_host_tcp_retransmits_total",
        "accel.network.tcp.retransmits",
        integer=True,
    ),
)

_PORT = "port of InfiniBand or RoCE"


def _moved(name: str, unit: Unit, what: str, direction: str, word: str) -> Metric:
    otel, identity = ("hw.network.io", "hw.id") if unit == "By" else ("accel.infiniband.packets", "accelmetrics.port")
    return Metric(
        f"ib.{{port}}.{name}",
        unit,
        "counter",
        f"{what} by the {_PORT} since its driver was loaded.",
        f'accel_infiniband_{"bytes" if unit == "By" else "packets"}_total{{port="{{port}}",direction="{direction}"}}',
        f'{otel}{{{identity}="{{port}}",network.io.direction="{word}"}}',
        integer=True,
    )


def _failed(name: str, label: str, meaning: str, preset: Preset = "all") -> Metric:
    series = f'accel_infiniband_errors_total{{port="{{port}}",error="{label}"}}'
    otel = f'accel.infiniband.errors{{accelmetrics.port="{{port}}",error.type="{label}"}}'
    return Metric(f"ib.{{port}}.{name}", "1", "counter", f"{meaning}.", series, otel, integer=True, preset=preset)


INFINIBAND = (
    _moved("rxBytesTotal", "By", "Bytes received", "rx", "receive"),
    _moved("txBytesTotal", "By", "Bytes sent", "tx", "transmit"),
    Metric("ib.{port}.rxBps", "By/s", "gauge", f"Bytes per second received by the {_PORT} over the interval."),
    Metric("ib.{port}.txBps", "By/s", "gauge", f"Bytes per second sent by the {_PORT} over the interval."),
    _moved("rxPacketsTotal", "1", "Packets received", "rx", "receive")._replace(preset="all"),
    _moved("txPacketsTotal", "1", "Packets sent", "tx", "transmit")._replace(preset="all"),
    Metric(
        "ib.{port}.linkActive",
        "1",
        "gauge",
        f"1 if the link of the {_PORT} is active, else 0.",
        'accel_infiniband_link_active{port="{port}"}',
        'accel.infiniband.link.active{accelmetrics.port="{port}"}',
        integer=True,
        maximum=1,
    ),
    Metric(
        "ib.{port}.linkRate",
        "Mbit/s",
        "gauge",
        f"Rate of the link of the {_PORT}.",
        'accel_infiniband_link_bytes_per_second{port="{port}"}',
        'accel.infiniband.link.rate{accelmetrics.port="{port}"}',
    ),
    _failed("rxErrorsTotal", "rx", "Packets received with an error", "standard"),
    _failed("txDiscardsTotal", "tx_discard", "Packets that were not sent because the port was down or congested", "standard"),
    _failed("symbolErrorsTotal", "symbol", "Minor errors of the link on a lane", "standard"),
    _failed("linkDownedTotal", "link_downed", "How often recovery of the link failed, and it went down", "standard"),
    _failed("linkRecoveriesTotal", "link_recovery", "How often recovery of the link succeeded"),
    _failed("linkIntegrityErrorsTotal", "link_integrity", "How often the port had more link errors than allowed"),
    _failed("rxRemotePhysicalErrorsTotal", "rx_remote_physical", "Packets that were marked as bad on the way"),
    _failed("bufferOverrunsTotal", "buffer_overrun", "How often the port's buffer overran for long"),
    _failed("outOfSequenceTotal", "out_of_sequence", "Packets received out of their order"),
    _failed("packetSequenceErrorsTotal", "packet_sequence", "Replies in which the other side reports missing packets"),
    _failed("ackTimeoutsTotal", "ack_timeout", "How often the other side did not acknowledge in time"),
    _failed("rnrRetryErrorsTotal", "rnr_retry", "Replies in which the other side reports that it is not ready to receive"),
    _failed("outOfBufferTotal", "out_of_buffer", "Packets dropped because the program had posted no buffer"),
    _failed("duplicateRequestsTotal", "duplicate_request", "Requests that had been received before"),
    _failed("icrcErrorsTotal", "icrc", "RoCE packets with a wrong checksum"),
    Metric(
        "ib.{port}.txWaitsTotal",
        "1",
        "counter",
        "Ticks of the port's clock in which it had data to send and could not: a measure of congestion.",
        'accel_infiniband_wait_ticks_total{port="{port}"}',
        'accel.infiniband.wait{accelmetrics.port="{port}"}',
        integer=True,
        preset="all",
    ),
    *(
        Metric(
            f"ib.{{port}}.{name}",
            "1",
            "counter",
            f"{meaning}.",
            f'accel_infiniband_congestion_packets_total{{port="{{port}}",event="{event}"}}',
            f'accel.infiniband.congestion{{accelmetrics.port="{{port}}",accelmetrics.event="{event}"}}',
            integer=True,
            preset="all",
        )
        for name, event, meaning in (
            ("cnpSentTotal", "cnp_sent", "Congestion notifications that the port sent, as a receiver of RoCE"),
            ("cnpHandledTotal", "cnp_handled", "Congestion notifications that the port slowed down for, as a sender of RoCE"),
            ("ecnMarkedTotal", "ecn_marked", "RoCE packets received that a switch had marked for congestion"),
        )
    ),
)

# Metrics of a chip that combines processor and GPU.
APPLE = (
    *(
        row
        for letter, cores in (("e", "efficiency"), ("p", "performance"))
        for row in (
            Metric(
                f"cpu.{letter}cpu_percent",
                "%",
                "gauge",
                f"Share of the {cores} cores' capacity that was used: the time they were active, weighted by their clock.",
                f'accel_soc_cpu_ratio{{cluster="{cores}"}}',
                f'accel.soc.cpu.utilization{{accelmetrics.cluster="{cores}"}}',
                maximum=100,
            ),
            Metric(
                f"cpu.{letter}cpu_freq",
                "MHz",
                "gauge",
                f"Clock of the {cores} cores, averaged over them.",
                f'accel_soc_cpu_clock_hertz{{cluster="{cores}"}}',
                f'accel.soc.cpu.frequency{{accelmetrics.cluster="{cores}"}}',
            ),
        )
    ),
    Metric("ane.power", "W", "gauge", "Power that the Neural Engine draws.", "accel_soc_ane_power_watts", 'hw.power{hw.type="ane"}'),
    Metric(
        "system.powerWatts", "W", "gauge", "Power that the whole machine draws.", "accel_system_power_watts", 'hw.power{hw.type="system"}'
    ),
    Metric(
        "soc.powerWatts",
        "W",
        "gauge",
        "Power that the processor, the GPU and the Neural Engine draw together.",
        "accel_soc_power_watts",
        'hw.power{hw.type="soc"}',
    ),
    Metric(
        "memory.powerWatts",
        "W",
        "gauge",
        "Power that the machine's memory draws.",
        "accel_memory_power_watts",
        'hw.power{hw.type="memory"}',
    ),
    Metric(
        "memory.used",
        "By",
        "gauge",
        "Memory of the machine that is in use, which its GPU shares.",
        "accel_soc_memory_used_bytes",
        "accel.soc.memory.usage",
        integer=True,
    ),
    Metric(
        "memory.used_percent",
        "%",
        "gauge",
        "Memory of the machine that is in use, in percent of what it has.",
        "accel_soc_memory_used_ratio",
        "accel.soc.memory.utilization",
        maximum=100,
    ),
    Metric(
        "swap.used",
        "By",
        "gauge",
        "Swap space in use; missing on a machine without swap.",
        "accel_soc_swap_used_bytes",
        "accel.soc.swap.usage",
        integer=True,
    ),
)

# Given by a monitor in the watched program alone.
PROGRAM = (
    Metric(
        "torch.{i}.memoryAllocatedBytes",
        "By",
        "gauge",
        "Memory that the program's tensors use on gpu.{i}, as PyTorch's allocator counts it in the program itself.",
        "accel_torch_memory_allocated_bytes",
        'accel.torch.memory.allocated{accelmetrics.gpu="{i}"}',
        integer=True,
    ),
    Metric(
        "torch.{i}.memoryReservedBytes",
        "By",
        "gauge",
        "Memory that PyTorch's allocator holds on gpu.{i}, used by tensors or kept for later ones; the program itself counts it.",
        "accel_torch_memory_reserved_bytes",
        'accel.torch.memory.reserved{accelmetrics.gpu="{i}"}',
        integer=True,
    ),
    Metric(
        "torch.{i}.memoryPeakBytes",
        "By",
        "gauge",
        "The most memory that the program's tensors used at once on gpu.{i}, since PyTorch's `reset_peak_memory_stats` was last called.",
        "accel_torch_memory_peak_bytes",
        'accel.torch.memory.peak{accelmetrics.gpu="{i}"}',
        integer=True,
    ),
    Metric(
        "torch.{i}.memoryFragmentation",
        "%",
        "gauge",
        "Share of the memory that PyTorch's allocator holds on gpu.{i} that no tensor uses; missing while it holds none.",
        "accel_torch_memory_fragmentation_ratio",
        'accel.torch.memory.fragmentation{accelmetrics.gpu="{i}"}',
        maximum=100,
    ),
)

INSTANCES = {
    "cpu.{i}": ("cpus", "CpuMetrics", int),
    "disk.{path}": ("filesystems", "FilesystemMetrics", str),
    "disk.{device}": ("disks", "DiskMetrics", str),
}
"""By key with a placeholder: the typed view's attribute with the instances, the model of an instance, and the type of its key."""
