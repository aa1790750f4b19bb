"""The host on systems without ``/proc`` (macOS, Windows, the BSDs), read with psutil.

The groups of keys and their meaning are the same. A value that only Linux counts is ``not_supported``.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from accelmetrics.backends.contract import ReadOptions
from accelmetrics.backends.host.collector import CachedCollector, HostDriver, HostReader, MonotonicTime
from accelmetrics.backends.host.disks_network import DiskIo, collect_filesystems, disk_collector, network_collector
from accelmetrics.backends.host.memory import collect_memory
from accelmetrics.backends.host.process import PsutilProcesses, process_collector
from accelmetrics.backends.host.processor import CpuTime, collect_load, cpu_collector
from accelmetrics.backends.kit.system import Memory
from accelmetrics.schemas.errors import Reason, Unavailable

T = TypeVar("T")

_LINUX_ONLY = Unavailable(Reason.NOT_SUPPORTED, "read on Linux only")
_MICROSECONDS = 1_000_000


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
        usage = partial(file_system_usage, psutil)
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


def file_system_usage(psutil: Any, path: str) -> tuple[int, int]:
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
    counters = psutil.net_io_counters(pernic=True, nowrap=False)
    return {name: (io.bytes_recv, io.bytes_sent) for name, io in counters.items()}


def is_loopback(name: str) -> bool:
    """Return whether an interface is a loopback, by its name on macOS, the BSDs and Windows."""
    return name in ("lo", "lo0") or name.startswith("Loopback")
