"""The host on Linux, read directly from ``/proc`` and ``/sys``.

The driver owns open files and the list of sensors. The reader owns the last counters, from which rates are computed.
"""

# Not psutil: its costly calls take ten times as long as these direct reads.
from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from accelmetrics.backends.contract import ReadOptions
from accelmetrics.backends.host.collector import INFINIBAND, CachedCollector, Counter, HostDriver, HostReader, MonotonicTime
from accelmetrics.backends.host.disks_network import (
    choose_disks,
    collect_filesystems,
    collect_retransmits,
    counts_elsewhere,
    disk_collector,
    file_system_usage,
    infiniband_collector,
    network_collector,
    parse_diskstats,
    parse_net_dev,
    parse_retransmits,
)
from accelmetrics.backends.host.memory import CgroupCollector, collect_memory
from accelmetrics.backends.host.process import LinuxProcesses, numbers_are_ours, process_collector
from accelmetrics.backends.host.processor import (
    NO_RAPL,
    collect_load,
    collect_power,
    collect_temperature,
    cpu_collector,
    find_rapl_zones,
    find_temperatures,
    parse_loads,
    parse_stat,
)
from accelmetrics.backends.kit.system import Files, parse_meminfo

T = TypeVar("T")


def linux_driver(clock: MonotonicTime = time.monotonic) -> HostDriver:
    """Return the driver of the host. ``clock`` returns monotonic seconds; tests replace it."""
    files = Files()
    temperatures, zones, own_numbers = find_temperatures(), find_rapl_zones(), numbers_are_ours()

    def parsed(path: str, parse: Callable[[bytes], T], pieces: bool = False) -> Callable[[], T]:
        file = files.keep(path, pieces)
        return lambda: parse(file.read())

    def collectors(options: ReadOptions) -> list[CachedCollector]:
        processes = LinuxProcesses(files, options.pid, own_numbers)
        sensors = [files.keep(path) for path in temperatures]
        packages = [files.keep(path) for path in zones]
        power = partial(collect_power, packages, Counter(zones)) if packages else partial(HostReader.fail, why=NO_RAPL)
        # The kernel returns these two files a page at a time.
        disks = parsed("/proc/diskstats", parse_diskstats, pieces=True)
        interfaces = parsed("/proc/net/dev", parse_net_dev, pieces=True)
        segments = parsed("/proc/net/snmp", parse_retransmits)
        # The order matters: percentages of the process are shares of the cgroup's limits and of the host's memory.
        return [
            CachedCollector("cpus", "/proc/stat", cpu_collector(parsed("/proc/stat", parse_stat))),
            CachedCollector("cgroup", f"the cgroup of process {options.pid}", CgroupCollector(files, options.pid)),
            CachedCollector("memory", "/proc/meminfo", partial(collect_memory, parsed("/proc/meminfo", parse_meminfo))),
            CachedCollector("process", f"process {options.pid}", process_collector(processes, options.children)),
            CachedCollector("filesystems", "the file systems", partial(collect_filesystems, file_system_usage, options.disk_paths)),
            CachedCollector("disks", "/proc/diskstats", disk_collector(disks, partial(choose_disks, options.disk_paths))),
            CachedCollector("network", "/proc/net/dev", network_collector(interfaces, counts_elsewhere)),
            CachedCollector("tcp", "/proc/net/snmp", partial(collect_retransmits, segments, Counter())),
            CachedCollector("infiniband", INFINIBAND, infiniband_collector(options.metrics)),
            CachedCollector("load", "/proc/loadavg", partial(collect_load, parsed("/proc/loadavg", parse_loads))),
            CachedCollector("temperature", "the sensors", partial(collect_temperature, sensors)),
            CachedCollector("power", "/sys/class/powercap/intel-rapl:*/energy_uj", power),
        ]

    return HostDriver("proc", collectors, files.close, clock)
