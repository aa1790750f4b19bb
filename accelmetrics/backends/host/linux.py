"""The host on Linux: direct reads of ``/proc`` and ``/sys``, an order of magnitude cheaper than psutil's for the dear ones.

What the system has belongs to the driver (open files, sensors found), what differences are taken from to the reader.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from accelmetrics.backends.contract import ReadOptions
from accelmetrics.backends.host.block_devices import choose
from accelmetrics.backends.host.cgroup_part import CgroupPart
from accelmetrics.backends.host.cpus import PACE as CPU_PACE
from accelmetrics.backends.host.cpus import CpuPart, parse_stat
from accelmetrics.backends.host.disk_io import DiskIoPart, parse_diskstats
from accelmetrics.backends.host.disk_usage import DiskUsagePart
from accelmetrics.backends.host.family import LinuxFamily, usable_clock
from accelmetrics.backends.host.memory import MemoryPart, parse_meminfo
from accelmetrics.backends.host.network import NetworkPart, TcpPart, counts_elsewhere, parse_net_dev, parse_retransmits
from accelmetrics.backends.host.part import SLOW_PACE, Clock, Part, Sheet, Source
from accelmetrics.backends.host.process_part import ProcessPart
from accelmetrics.backends.host.reader import PartsReader
from accelmetrics.backends.host.sensors import PowerPart, TemperaturePart, find_sensors
from accelmetrics.backends.kit.system import Files
from accelmetrics.schemas.identity import DeviceIdentity

T = TypeVar("T")


class LinuxDriver:
    """The open files of the host, shared by its readers.

    Args:
        clock: Monotonic seconds; tests replace it.
    """

    source = "proc"
    machine_wide = True
    devices: Sequence[DeviceIdentity] = ()

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._files = Files()
        self._sensors = find_sensors()
        self._cpu_clock = usable_clock()

    def reader(self, options: ReadOptions) -> PartsReader:
        files = self._files
        cgroup = CgroupPart(files, options.pid)
        family = LinuxFamily(files, options.pid, self._cpu_clock)
        # The order matters: CPUs, limits and memory are what the process is measured against.
        sheets = [
            Sheet(CpuPart(self._parsed("/proc/stat", parse_stat)), CPU_PACE),
            Sheet(cgroup, SLOW_PACE),
            Sheet(MemoryPart(self._parsed("/proc/meminfo", parse_meminfo), cgroup.memory_levels)),
            Sheet(ProcessPart(family, options.pid, options.children)),
        ]
        slow: list[Part] = [
            DiskUsagePart(options.disk_paths),
            DiskIoPart(self._parsed("/proc/diskstats", parse_diskstats, pieces=True), partial(choose, paths=options.disk_paths)),
            NetworkPart(self._parsed("/proc/net/dev", parse_net_dev, pieces=True), counts_elsewhere),
            TcpPart(self._parsed("/proc/net/snmp", parse_retransmits)),
            TemperaturePart(files, self._sensors),
            PowerPart(files, self._sensors),
        ]
        return PartsReader([*sheets, *(Sheet(part, SLOW_PACE) for part in slow)], self._clock)

    def close(self) -> None:
        self._files.close()

    def _parsed(self, path: str, parse: Callable[[bytes], T], pieces: bool = False) -> Source[T]:
        """A file and its parser."""
        file = self._files.keep(path, pieces)
        return Source(path, lambda: parse(file.read()))
