"""The host where there is no ``/proc``: what psutil gives on macOS, Windows and the BSDs.

The same groups with the same meaning. What only Linux counts is ``not_supported``.
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
    """Open the host through psutil, which is imported here and not before.

    Args:
        clock: Monotonic seconds; tests replace it.
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
            # Not psutil's: on Windows, which has no load average, it begins with zeros.
            CachedCollector("load", "getloadavg()", partial(collect_load, _reading(lambda _: os.getloadavg(), psutil))),
            CachedCollector("network", "psutil.net_io_counters", network),
            *(CachedCollector(group, group, partial(HostReader.fail, why=_LINUX_ONLY)) for group in linux_only),
        ]

    return HostDriver("psutil", collectors, lambda: None, clock)


def _reading(read: Callable[[Any], T], psutil: Any) -> Callable[[], T]:
    """Make a psutil call raise the system's own errors, whatever psutil throws beside them."""

    def call() -> T:
        try:
            return read(psutil)
        except (NotImplementedError, AttributeError) as error:
            raise OSError(errno.EOPNOTSUPP, str(error)) from error
        except RuntimeError as error:
            raise OSError(errno.EIO, str(error)) from error

    return call


def cpu_times(psutil: Any) -> dict[int, CpuTime]:
    """Return times by CPU in whole microseconds. Guest time stands in user time, where the system tells it at all."""
    found = {}
    for number, times in enumerate(psutil.cpu_times(percpu=True)):
        named = times._asdict()
        total = sum(value for name, value in named.items() if not name.startswith("guest"))
        found[number] = round(total * _MICROSECONDS), round((named["idle"] + named.get("iowait", 0.0)) * _MICROSECONDS)
    return found


def memory(psutil: Any) -> Memory:
    """Return the host's memory. Without swap space its numbers are None."""
    main = psutil.virtual_memory()
    try:
        swap = psutil.swap_memory()
    except (OSError, RuntimeError):
        return Memory(main.total, main.available, None, None)
    return Memory(main.total, main.available, swap.total, swap.total - swap.used)


def file_system_usage(psutil: Any, path: str) -> tuple[int, int]:
    """Return the bytes used, and bytes left to ordinary users, of the file system below a path. Raises ``OSError`` and ``ValueError``."""
    usage = psutil.disk_usage(path)
    return usage.used, usage.free


def disk_io(psutil: Any) -> dict[str, DiskIo]:
    """Return bytes by disk. Whole disks alone are listed here; device numbers mean nothing to psutil."""
    counters = psutil.disk_io_counters(perdisk=True, nowrap=False) or {}
    return {name: (io.read_bytes, io.write_bytes, (0, 0)) for name, io in counters.items()}


def traffic(psutil: Any) -> dict[str, tuple[int, int]]:
    """Return bytes received and sent by interface."""
    counters = psutil.net_io_counters(pernic=True, nowrap=False)
    return {name: (io.bytes_recv, io.bytes_sent) for name, io in counters.items()}


def is_loopback(name: str) -> bool:
    """Return whether an interface is loopback, by the names that macOS, the BSDs and Windows give it."""
    return name in ("lo", "lo0") or name.startswith("Loopback")
