"""The host where there is no ``/proc``: what psutil gives on macOS, Windows and the BSDs.

The same parts with the same meaning. What only Linux counts is ``not_supported`` with words.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from accelmetrics.backends.contract import ReadOptions
from accelmetrics.backends.host.cpus import PACE as CPU_PACE
from accelmetrics.backends.host.cpus import CpuPart, CpuTime
from accelmetrics.backends.host.disk_io import Chosen, DiskIo, DiskIoPart
from accelmetrics.backends.host.disk_usage import DiskUsagePart
from accelmetrics.backends.host.memory import Memory, MemoryLevel, MemoryPart
from accelmetrics.backends.host.network import NetworkPart, Traffic
from accelmetrics.backends.host.part import SLOW_PACE, Clock, Moment, Part, Sheet, Source
from accelmetrics.backends.host.portable_family import PortableFamily
from accelmetrics.backends.host.process_part import ProcessPart
from accelmetrics.backends.host.reader import PartsReader
from accelmetrics.schemas.identity import DeviceIdentity
from accelmetrics.schemas.reasons import Reason, Unavailable

T = TypeVar("T")

_LINUX_ONLY = Unavailable(Reason.NOT_SUPPORTED, "read on Linux only")
_NO_CGROUP = Unavailable(Reason.NOT_SUPPORTED, "cgroups exist on Linux only")
_ABSENT = {
    "proc.cpu.throttledPercent": _NO_CGROUP,
    "proc.memory.oomKills": _NO_CGROUP,
    "network.tcpRetransmits": _LINUX_ONLY,
    "cpu.avg_temp": _LINUX_ONLY,
    "cpu.powerWatts": _LINUX_ONLY,
}
_FINE = 1_000_000


class AbsentPart:
    """The keys that exist on Linux only."""

    def read(self, moment: Moment) -> None:
        moment.reasons.update(_ABSENT)


class PortableDriver:
    """psutil, imported when the source is opened and not before.

    Args:
        clock: Monotonic seconds; tests replace it.
    """

    source = "psutil"
    machine_wide = True
    devices: Sequence[DeviceIdentity] = ()

    def __init__(self, clock: Clock = time.monotonic) -> None:
        import psutil

        self._psutil: Any = psutil
        self._clock = clock

    def reader(self, options: ReadOptions) -> PartsReader:
        psutil = self._psutil
        sheets = [
            Sheet(CpuPart(_source("psutil.cpu_times", lambda: cpu_times(psutil))), CPU_PACE),
            Sheet(MemoryPart(_source("psutil.virtual_memory", lambda: memory(psutil)), no_levels)),
            Sheet(ProcessPart(PortableFamily(psutil, options.pid), options.pid, options.children)),
        ]
        slow: list[Part] = [
            DiskUsagePart(options.disk_paths),
            DiskIoPart(_source("psutil.disk_io_counters", lambda: disk_io(psutil)), every_disk),
            NetworkPart(_source("psutil.net_io_counters", lambda: traffic(psutil)), is_loopback),
            AbsentPart(),
        ]
        return PartsReader([*sheets, *(Sheet(part, SLOW_PACE) for part in slow)], self._clock)

    def close(self) -> None:
        """Nothing is held open."""


def _source(what: str, read: Callable[[], T]) -> Source[T]:
    def guarded() -> T:
        with as_os_errors():
            return read()

    return Source(what, guarded)


@contextmanager
def as_os_errors() -> Iterator[None]:
    """Turn what psutil throws beside the system's own errors into those."""
    try:
        yield
    except (NotImplementedError, AttributeError) as error:
        raise OSError(errno.EOPNOTSUPP, str(error)) from error
    except RuntimeError as error:
        raise OSError(errno.EIO, str(error)) from error


def cpu_times(psutil: Any) -> dict[int, CpuTime]:
    """Times by CPU in whole microseconds. Guest time stands in user time, where the system tells it at all."""
    found = {}
    for number, times in enumerate(psutil.cpu_times(percpu=True)):
        named = times._asdict()
        total = sum(value for name, value in named.items() if not name.startswith("guest"))
        found[number] = CpuTime(round(total * _FINE), round((named["idle"] + named.get("iowait", 0.0)) * _FINE))
    return found


def memory(psutil: Any) -> Memory:
    """The host's memory. Without swap space its numbers are None."""
    main = psutil.virtual_memory()
    try:
        swap = psutil.swap_memory()
    except (OSError, RuntimeError):
        return Memory(main.total, main.available, None, None)
    return Memory(main.total, main.available, swap.total, swap.total - swap.used)


def no_levels() -> Sequence[MemoryLevel]:
    """There are no cgroups here."""
    return ()


def disk_io(psutil: Any) -> dict[str, DiskIo]:
    """Bytes by disk. Whole disks alone are listed here; device numbers mean nothing to psutil."""
    counters = psutil.disk_io_counters(perdisk=True, nowrap=False) or {}
    return {name: DiskIo(io.read_bytes, io.write_bytes, (0, 0)) for name, io in counters.items()}


def every_disk(stats: dict[str, DiskIo]) -> Chosen:
    """All that psutil lists."""
    return Chosen(tuple(stats), tuple(stats))


def traffic(psutil: Any) -> dict[str, Traffic]:
    """Bytes by interface."""
    counters = psutil.net_io_counters(pernic=True, nowrap=False)
    return {name: Traffic(io.bytes_sent, io.bytes_recv) for name, io in counters.items()}


def is_loopback(name: str) -> bool:
    """Whether an interface is loopback, by the names that macOS, the BSDs and Windows give it."""
    return name in ("lo", "lo0") or name.startswith("Loopback")
