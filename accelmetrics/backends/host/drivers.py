"""The host's two drivers: one reads ``/proc`` and ``/sys``, the other one psutil on systems without them (macOS, Windows, the BSDs).

The groups of keys and their meaning are the same. A value that only Linux counts is ``not_supported`` elsewhere. On Linux the driver owns
open files and the list of sensors, and the reader owns the last counters, from which rates are computed.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from accelmetrics.backends.contract import ReadOptions
from accelmetrics.backends.host.collector import INFINIBAND, CachedCollector, Counter, HostDriver, HostReader, MonotonicTime
from accelmetrics.backends.host.disks_network import (
    DiskIo,
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
from accelmetrics.backends.host.process import LinuxProcesses, PsutilProcesses, numbers_are_ours, process_collector
from accelmetrics.backends.host.processor import (
    NO_RAPL,
    CpuTime,
    collect_load,
    collect_power,
    collect_temperature,
    cpu_collector,
    find_rapl_zones,
    find_temperatures,
    parse_loads,
    parse_stat,
)
from accelmetrics.backends.kit.system import Files, Memory, parse_meminfo
from accelmetrics.schemas.errors import Reason, Unavailable

T = TypeVar("T")
_LINUX_ONLY = Unavailable(Reason.NOT_SUPPORTED, "read on Linux only")
_MICROSECONDS = 1_000_000


# Not psutil: its costly calls take ten times as long as these direct reads.
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


def portable_driver(clock: MonotonicTime = time.monotonic, psutil: Any = None) -> HostDriver:
    """Return the driver of the host, and import psutil.

    Args:
        clock: Returns monotonic seconds; tests replace it.
        psutil: The module; tests replace it.
    """
    if psutil is None:
        import psutil

    def collectors(options: ReadOptions) -> list[CachedCollector]:
        processes = PsutilProcesses(psutil, options.pid)
        disks = disk_collector(_reading(disk_io, psutil), lambda stats: (tuple(stats), tuple(stats)))
        network = network_collector(_reading(traffic, psutil), is_loopback)
        usage = partial(disk_usage, psutil)
        linux_only = ("cgroup", "tcp", "temperature", "power")
        return [
            CachedCollector("cpus", "psutil.cpu_times", cpu_collector(_reading(cpu_times, psutil))),
            CachedCollector("memory", "psutil.virtual_memory", partial(collect_memory, _reading(memory, psutil))),
            CachedCollector("process", f"process {options.pid}", process_collector(processes, options.children)),
            CachedCollector("filesystems", "the file systems", partial(collect_filesystems, usage, options.disk_paths)),
            CachedCollector("disks", "psutil.disk_io_counters", disks),
            # Not psutil.getloadavg: Windows has no load average, and psutil's imitation begins with zeros.
            CachedCollector("load", "getloadavg()", partial(collect_load, _reading(lambda _: os.getloadavg(), psutil))),
            CachedCollector("network", "psutil.net_io_counters", network),
            *(CachedCollector(group, group, partial(HostReader.fail, why=_LINUX_ONLY)) for group in linux_only),
        ]

    return HostDriver("psutil", collectors, lambda: None, clock)


def _reading(read: Callable[[Any], T], psutil: Any) -> Callable[[], T]:
    """Return a function that makes the psutil call and turns psutil's own errors into ``OSError``."""

    def call() -> T:
        try:
            return read(psutil)
        except (NotImplementedError, AttributeError) as error:
            raise OSError(errno.EOPNOTSUPP, str(error)) from error
        except RuntimeError as error:
            raise OSError(errno.EIO, str(error)) from error

    return call


def cpu_times(psutil: Any) -> dict[int, CpuTime]:
    """Return for each CPU the total and the idle time in whole microseconds."""
    found = {}
    for number, times in enumerate(psutil.cpu_times(percpu=True)):
        named = times._asdict()
        # User time includes guest time on systems that report it.
        total = sum(value for name, value in named.items() if not name.startswith("guest"))
        found[number] = round(total * _MICROSECONDS), round((named["idle"] + named.get("iowait", 0.0)) * _MICROSECONDS)
    return found


def memory(psutil: Any) -> Memory:
    """Return the host's memory in bytes. The swap numbers are None without swap space."""
    main = psutil.virtual_memory()
    try:
        swap = psutil.swap_memory()
    except (OSError, RuntimeError):
        return Memory(main.total, main.available, None, None)
    return Memory(main.total, main.available, swap.total, swap.total - swap.used)


def disk_usage(psutil: Any, path: str) -> tuple[int, int]:
    """Return the bytes used in the file system of a path, and the bytes available to ordinary users.

    Raises:
        OSError: The path cannot be read.
        ValueError: The path is invalid.
    """
    usage = psutil.disk_usage(path)
    return usage.used, usage.free


def disk_io(psutil: Any) -> dict[str, DiskIo]:
    """Return the bytes read and written by each disk. Device numbers are (0, 0), since psutil does not know them."""
    # Without `nowrap`, psutil keeps its own totals, shared by all its users in the process; our `Counter` handles
    # resets.
    counters = psutil.disk_io_counters(perdisk=True, nowrap=False) or {}
    return {name: (io.read_bytes, io.write_bytes, (0, 0)) for name, io in counters.items()}


def traffic(psutil: Any) -> dict[str, tuple[int, int]]:
    """Return the bytes received and sent by each network interface."""
    return {name: (io.bytes_recv, io.bytes_sent) for name, io in psutil.net_io_counters(pernic=True, nowrap=False).items()}


def is_loopback(name: str) -> bool:
    """Return whether an interface is a loopback, by its name on macOS, the BSDs and Windows."""
    return name in ("lo", "lo0") or name.startswith("Loopback")
