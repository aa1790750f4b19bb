"""The host's values according to psutil, for ``accelmetrics verify``.

The Linux backend does not use psutil, so psutil is an independent second way. psutil knows no cgroups: if one limits the watched process,
the metrics that depend on the limit have no reference.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from accelmetrics.backends.contract import ReadOptions, ReferenceValue
from accelmetrics.backends.kit.system import sysroot
from accelmetrics.schemas.errors import Reason, SourceError
from accelmetrics.schemas.identity import DeviceSlot

MIB, GIB = 2**20, 2**30
TICK = 0.01
"""Resolution of the kernel's CPU times in seconds."""
LIMITED = "a cgroup limits it, and psutil knows no cgroups"
_LINUX: bool = sys.platform.startswith("linux")


class Psutil:
    """psutil as a reference for the machine and the watched process.

    Args:
        options: The process and the mount points.
    """

    name = "psutil"

    def __init__(self, options: ReadOptions) -> None:
        self._pid = options.pid
        self._paths = options.disk_paths

    def read(self, slots: Sequence[DeviceSlot]) -> Mapping[str, ReferenceValue | str]:
        if not _LINUX:
            raise SourceError(Reason.NOT_SUPPORTED, "the host itself is read with psutil here, so there is no second source")
        if sysroot():
            raise SourceError(Reason.NOT_SUPPORTED, "psutil reads this machine, and the host is read below ACCELMETRICS_SYSROOT")
        try:
            import psutil
        except ImportError as error:
            raise SourceError(Reason.DRIVER_UNAVAILABLE, f"psutil is not installed: {error}") from error
        return dict([*self._memory(psutil), *_cpus(psutil), *self._process(psutil), *self._disks(psutil), *_network(psutil)])

    def close(self) -> None:
        """Do nothing: no file stays open."""

    def _memory(self, psutil: Any) -> Iterator[tuple[str, ReferenceValue | str]]:
        main, swap = psutil.virtual_memory(), psutil.swap_memory()
        limited = self._limited("memory.max")
        used = main.total - main.available
        for key, value in (
            ("memory.totalBytes", main.total),
            ("memory.usedBytes", used),
            ("memory_percent", 100 * used / main.total),
            ("proc.memory.availableMB", main.available / MIB),
        ):
            yield key, LIMITED if limited else ReferenceValue(value)
        yield "swap.used_percent", ReferenceValue(100 * swap.used / swap.total) if swap.total else "psutil finds no swap"
        for minutes, load in zip((1, 5, 15), psutil.getloadavg(), strict=True):
            yield f"load.{minutes}m", ReferenceValue(load, step=0.01)  # /proc/loadavg has two places

    def _process(self, psutil: Any) -> Iterator[tuple[str, ReferenceValue | str]]:
        with suppress(psutil.Error):
            process = psutil.Process(self._pid)
            with process.oneshot():
                rss, times, threads = process.memory_info().rss, process.cpu_times(), process.num_threads()
            yield "proc.cpu.threads", ReferenceValue(threads)
            yield "proc.memory.rssBytes", ReferenceValue(rss)
            yield "proc.memory.rssMB", ReferenceValue(rss / MIB)
            total = psutil.virtual_memory().total
            yield "proc.memory.percent", LIMITED if self._limited("memory.max") else ReferenceValue(100 * rss / total)
            cpus = len(process.cpu_affinity())
            limited = self._limited("cpu.max")
            for key, seconds in (
                ("cpu", times.user + times.system),
                ("proc.cpu.userPercent", times.user),
                ("proc.cpu.systemPercent", times.system),
            ):
                yield key, LIMITED if limited else ReferenceValue(100 * seconds / cpus, step=100 * TICK / cpus, over="counter")

    def _disks(self, psutil: Any) -> Iterator[tuple[str, ReferenceValue | str]]:
        for path in self._paths:
            with suppress(OSError):
                usage = psutil.disk_usage(path)
                yield f"disk.{path}.usageGB", ReferenceValue(usage.used / GIB)
                if usage.used + usage.free:
                    yield f"disk.{path}.usagePercent", ReferenceValue(100 * usage.used / (usage.used + usage.free))
        disks = psutil.disk_io_counters(perdisk=True, nowrap=False) or {}
        for name, moved in disks.items():
            for direction, rate, count in (("in", "readBps", moved.read_bytes), ("out", "writeBps", moved.write_bytes)):
                yield f"disk.{name}.{direction}", ReferenceValue(count / MIB, over="counter")
                yield f"disk.{name}.{rate}", ReferenceValue(count, over="counter")
        # Only real disks have a `device` entry. Devices built on other disks (dm, md) would count the same bytes twice; memory and
        # files (ram, loop) are no disks.
        whole = [moved for name, moved in disks.items() if Path(f"/sys/block/{name}/device").exists()]
        if whole:
            yield "disk.in", ReferenceValue(sum(moved.read_bytes for moved in whole) / MIB, over="counter")
            yield "disk.out", ReferenceValue(sum(moved.write_bytes for moved in whole) / MIB, over="counter")

    def _limited(self, file: str) -> bool:
        """Return whether ``file`` sets a limit in the process's version 2 cgroup or in one above it."""
        with suppress(OSError):
            for line in Path(f"/proc/{self._pid}/cgroup").read_text().splitlines():
                path = line.removeprefix("0::").strip("/")
                below = [Path(path), *Path(path).parents] if line.startswith("0::") else []
                for mount in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified"):
                    for directory in below:
                        with suppress(OSError):
                            if not Path(mount, directory, file).read_text().startswith("max"):
                                return True
        return False


def _cpus(psutil: Any) -> Iterator[tuple[str, ReferenceValue | str]]:
    # The reference's own formula: the backend computes idle time, this sums up the busy times.
    times = psutil.cpu_times(percpu=True)
    if len(times) == os.sysconf("SC_NPROCESSORS_CONF"):  # if a CPU is offline, psutil's positions are not CPU numbers
        for number, cpu in enumerate(times):
            busy = sum(value for name, value in cpu._asdict().items() if name not in ("idle", "iowait", "guest", "guest_nice"))
            yield f"cpu.{number}.cpu_percent", ReferenceValue(100 * busy, step=100 * TICK, over="counter")
    cores = [entry.current for entry in psutil.sensors_temperatures().get("coretemp", ()) if entry.label.startswith("Core")]
    if cores:
        yield "cpu.avg_temp", ReferenceValue(sum(cores) / len(cores))


def _network(psutil: Any) -> Iterator[tuple[str, ReferenceValue | str]]:
    """Yield the traffic of all interfaces, without loopback and without ports of a bond or bridge, which counts their bytes too."""
    loopbacks = {name for name, nic in psutil.net_if_stats().items() if "loopback" in nic.flags.split(",")}
    moved = psutil.net_io_counters(pernic=True, nowrap=False)
    counted = [nic for name, nic in moved.items() if name not in loopbacks and not Path(f"/sys/class/net/{name}/master").exists()]
    for key, count in (
        ("network.recv", sum(nic.bytes_recv for nic in counted)),
        ("network.sent", sum(nic.bytes_sent for nic in counted)),
    ):
        yield key, ReferenceValue(count, over="counter")
        yield f"{key}Bps", ReferenceValue(count, over="counter")
