"""Common parts of the host's collectors: the table of groups, a cache with a pace, counters, the reader and the driver.

A group is a set of keys that one source gives at once. Its collector puts a value for each key into the :class:`HostReader`. If it raises,
the keys without a value get the exception as their reason. The reader runs the collectors in order, since later ones use results of earlier
ones (the cgroup's limits, the host's memory).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from accelmetrics.backends.contract import NO_REASONS, Block, Number, Reading, ReadOptions
from accelmetrics.backends.kit.system import KeptFile, reason_of
from accelmetrics.schemas.errors import Reason, Unavailable
from accelmetrics.schemas.identity import DeviceIdentity
from accelmetrics.schemas.named_tuple import NamedTuple
from accelmetrics.schemas.selection import MetricSelection

MonotonicTime = Callable[[], float]
"""Function that returns monotonic seconds."""

MIB = 1024 * 1024
GIB = 1024 * MIB

CPU_PACE = 0.45
"""Seconds between two readings of the CPUs. The kernel counts in ticks of 10 ms, so an interval of 0.1 s would have only ten steps."""
SLOW_PACE = 0.95
"""Seconds between two readings of everything else. Slightly below one, so that a sampler that reads every second finds it due each time."""
RARE_PACE = 9.5
"""Seconds between two looks at things that rarely change: mounts, network adapters, and interfaces that are ports of another interface."""

FIRST = Unavailable(Reason.NEEDS_INTERVAL, "first reading: a difference needs two")
RESET = Unavailable(Reason.NEEDS_INTERVAL, "the counter was reset since the last reading")
TOO_SOON = Unavailable(Reason.NEEDS_INTERVAL, "no time has passed since the last reading")


LOADS = ("load.1m", "load.5m", "load.15m")
_STATVFS = "statvfs, used / (used + available)"
_DISKSTATS = "/proc/diskstats sectors × 512; elsewhere psutil.disk_io_counters"
_NET_DEV = "/proc/net/dev without loopback; elsewhere psutil.net_io_counters"

INFINIBAND = "/sys/class/infiniband"
PORT_FILES = {
    "rxBytesTotal": "counters/port_rcv_data",
    "txBytesTotal": "counters/port_xmit_data",
    "rxPacketsTotal": "counters/port_rcv_packets",
    "txPacketsTotal": "counters/port_xmit_packets",
    "linkActive": "state",
    "linkRate": "rate",
    "rxErrorsTotal": "counters/port_rcv_errors",
    "txDiscardsTotal": "counters/port_xmit_discards",
    "symbolErrorsTotal": "counters/symbol_error",
    "linkDownedTotal": "counters/link_downed",
    "linkRecoveriesTotal": "counters/link_error_recovery",
    "linkIntegrityErrorsTotal": "counters/local_link_integrity_errors",
    "rxRemotePhysicalErrorsTotal": "counters/port_rcv_remote_physical_errors",
    "bufferOverrunsTotal": "counters/excessive_buffer_overrun_errors",
    "txWaitsTotal": "counters/port_xmit_wait",
    "outOfSequenceTotal": "hw_counters/out_of_sequence",
    "packetSequenceErrorsTotal": "hw_counters/packet_seq_err",
    "ackTimeoutsTotal": "hw_counters/local_ack_timeout_err",
    "rnrRetryErrorsTotal": "hw_counters/rnr_nak_retry_err",
    "outOfBufferTotal": "hw_counters/out_of_buffer",
    "duplicateRequestsTotal": "hw_counters/duplicate_request",
    "icrcErrorsTotal": "hw_counters/rx_icrc_encapsulated",
    "cnpSentTotal": "hw_counters/np_cnp_sent",
    "cnpHandledTotal": "hw_counters/rp_cnp_handled",
    "ecnMarkedTotal": "hw_counters/np_ecn_marked_roce_packets",
}
"""Files below a port of InfiniBand or RoCE, by the name of their value."""

GROUPS: Mapping[str, Mapping[str, str]] = {
    "cpus": {"cpu.{i}.cpu_percent": "/proc/stat cpu{i}; elsewhere psutil.cpu_times(percpu=True)"},
    "cgroup": {
        "proc.cpu.throttledPercent": "cgroup cpu.stat nr_throttled / nr_periods",
        "proc.memory.oomKills": "cgroup memory.events oom_kill",
    },
    "memory": {
        "memory_percent": "cgroup memory.current / memory.max, or /proc/meminfo; elsewhere psutil.virtual_memory",
        "memory.usedBytes": "cgroup memory.current, or /proc/meminfo MemTotal - MemAvailable; elsewhere psutil.virtual_memory",
        "memory.totalBytes": "cgroup memory.max, or /proc/meminfo MemTotal; elsewhere psutil.virtual_memory",
        "proc.memory.availableMB": "cgroup memory.max - memory.current, or /proc/meminfo MemAvailable; elsewhere psutil",
        "swap.used_percent": "/proc/meminfo SwapTotal, SwapFree; elsewhere psutil.swap_memory",
    },
    "process": {
        "cpu": "/proc/{pid}/stat utime + stime, against cgroup cpu.max or the affinity mask; elsewhere psutil",
        "proc.cpu.threads": "/proc/{pid}/stat num_threads; elsewhere psutil",
        "proc.memory.rssMB": "/proc/{pid}/stat rss; elsewhere psutil",
        "proc.memory.rssBytes": "/proc/{pid}/stat rss; elsewhere psutil",
        "proc.memory.percent": "proc.memory.rssMB / cgroup memory.max or /proc/meminfo MemTotal; elsewhere psutil",
        "proc.cpu.userPercent": "/proc/{pid}/stat utime, as `cpu`; elsewhere psutil",
        "proc.cpu.systemPercent": "/proc/{pid}/stat stime, as `cpu`; elsewhere psutil",
    },
    "filesystems": {"disk.{path}.usagePercent": _STATVFS, "disk.{path}.usageGB": _STATVFS},
    "disks": {
        "disk.in": _DISKSTATS,
        "disk.out": _DISKSTATS,
        "disk.{device}.in": _DISKSTATS,
        "disk.{device}.out": _DISKSTATS,
        "disk.{device}.readBps": "the difference of two readings of disk.{device}.in",
        "disk.{device}.writeBps": "the difference of two readings of disk.{device}.out",
    },
    "network": {
        "network.sent": _NET_DEV,
        "network.recv": _NET_DEV,
        "network.sentBps": "the difference of two readings of network.sent",
        "network.recvBps": "the difference of two readings of network.recv",
    },
    "tcp": {"network.tcpRetransmits": "/proc/net/snmp Tcp RetransSegs"},
    "infiniband": {
        **{f"ib.{{port}}.{name}": f"{INFINIBAND}/*/ports/*/{file}" for name, file in PORT_FILES.items()},
        "ib.{port}.rxBps": "the difference of two readings of ib.{port}.rxBytesTotal",
        "ib.{port}.txBps": "the difference of two readings of ib.{port}.txBytesTotal",
    },
    "load": dict.fromkeys(LOADS, "/proc/loadavg; elsewhere getloadavg()"),
    "temperature": {"cpu.avg_temp": "/sys/class/hwmon (coretemp, k10temp, zenpower, cpu_thermal), else /sys/class/thermal"},
    "power": {"cpu.powerWatts": "/sys/class/powercap/intel-rapl:*/energy_uj"},
}
"""All groups of keys that are read together, with the words that say where each is read. Every reading has all plain keys; keys with a
template exist while their CPU, disk or path does.
"""

AGAINST = {
    "memory": ("cgroup",),
    "process": ("cgroup", "memory"),
}
"""Groups that a group needs for its percentages. They are read before it and at least as often."""


def pace_of(group: str) -> float:
    """Return the seconds for which the values of a group are kept."""
    return CPU_PACE if group == "cpus" else SLOW_PACE


def needed_groups(metrics: MetricSelection) -> frozenset[str]:
    """Return the groups to read for a selection: groups with a selected key, and the groups that their percentages need."""
    wanted = {name for name, keys in GROUPS.items() if any(map(metrics.wants_some, keys))}
    return frozenset(wanted.union(*(AGAINST.get(name, ()) for name in wanted)))


class Counter:
    """Sum of rising system counters over their instances (disks, interfaces), counted from the first reading.

    A new instance counts from its first reading. The total keeps the gain of an instance that disappears. A number below the last one is a
    wrap if the largest value is known, else a reset. The total never falls and never jumps.

    Args:
        largest: Largest value of each instance that wraps. All other instances are only ever reset.

    Attributes:
        total: Gain of all instances since the first reading.
        gain: Gain since the last reading; None at the first reading, and if an instance was reset.
        seen: Number of readings.
    """

    __slots__ = ("_elapsed", "_largest", "_last", "_then", "gain", "seen", "total")

    def __init__(self, largest: Mapping[str, int] = {}) -> None:
        self._largest = largest
        self._last: Mapping[str, int] = {}
        self._then = self._elapsed = 0.0
        self.total = 0
        self.gain: int | None = None
        self.seen = 0

    def feed(self, values: Mapping[str, int], now: float = 0.0) -> None:
        """Add a reading of the counters.

        Args:
            values: The numbers by instance. A counter without instances uses any name.
            now: Time of the reading in monotonic seconds; needed for a rate.
        """
        last, gain, whole = self._last, 0, self.seen > 0
        for name, value in values.items():
            before = last.get(name, value)
            if value >= before:
                gain += value - before
            # A wrap. RAPL's energy counters wrap at a value that the kernel reports.
            elif self._largest.get(name, 0) >= before:
                gain += value + self._largest[name] - before
            else:
                whole = False
        self.gain = gain if whole else None
        self.total += gain
        self._elapsed, self._then = now - self._then, now
        self._last = values
        self.seen += 1

    def per_second(self) -> float | Unavailable:
        """Return the gain per second since the last reading, or why there is none."""
        if self.gain is None:
            return FIRST if self.seen == 1 else RESET
        return self.gain / self._elapsed if self._elapsed > 0 else TOO_SOON


class CachedCollector:
    """Reads one group of keys at its pace. Its names and reasons stay the same objects while they are equal.

    Args:
        group: Name of the group in :data:`GROUPS`, kept as an attribute.
        source: The source in words, for the reasons.
        collect: Puts the keys of the group into the reader. May raise ``OSError`` and ``ValueError``.

    Attributes:
        block: The latest values.
        reasons: Reasons of the missing values.
        read_at: Time of the latest reading on the reader's clock.
        due: Time of the next reading on the same clock.
    """

    def __init__(self, group: str, source: str, collect: Callable[[HostReader], None]) -> None:
        self.group = group
        self._required = [key for key in GROUPS[group] if "{" not in key]
        self._pace = pace_of(group)
        self._source = source
        self._collect = collect
        self._failed = False
        self.block = Block((), ())
        self.reasons: Mapping[str, Unavailable] = NO_REASONS
        self.read_at = self.due = -math.inf

    def read(self, reader: HostReader) -> None:
        """Read the group now."""
        is_first, self.read_at = self.read_at == -math.inf, reader.now
        reader.required, reader.values, reader.reasons = self._required, {}, {}
        failed = False
        try:
            self._collect(reader)
        except (OSError, ValueError) as error:
            reader.fail(reason_of(error, self._source))
            failed = True
        # The second reading is due at once, so that rates exist as soon as there is an interval. A group that fails is
        # tried again at the next reading, once, and then at its pace.
        again = is_first or (failed and not self._failed)
        self.due, self._failed = -math.inf if again else reader.now + self._pace, failed
        names = tuple(reader.values)
        known = self.block.names
        # The known tuple is used again if it is equal, so that the sampler recognises the block.
        self.block = Block(known if names == known else names, tuple(reader.values.values()))
        if reader.reasons != self.reasons:
            self.reasons = reader.reasons


Times = tuple[int, int, int]
"""CPU time in nanoseconds: total, user mode, system mode."""


class Process(NamedTuple):
    """State of a process at one moment.

    Attributes:
        pid: Its process id.
        start: Its start time. Id and start together identify a process, since the kernel reuses ids.
        parent: Process id of its parent.
        own: CPU time. User and system time may come from a coarser clock than the total.
        waited: CPU time of children that have ended and were waited for, and of their children.
        threads: Number of threads.
        rss: Resident memory in bytes.
        ended: Whether it is a zombie: it has ended and only its entry is left.
    """

    pid: int
    start: int
    parent: int
    own: Times
    waited: Times
    threads: int
    rss: int
    ended: bool

    @property
    def key(self) -> tuple[int, int]:
        """Process id and start time, which no other process ever has."""
        return self.pid, self.start


class HostReader:
    """A consumer's view of the host.

    Each consumer has its own counters, so that no other consumer shortens its intervals. Collectors get the reader as their argument. A
    group that is not due keeps its last values.

    Args:
        collectors: The collectors, in the order in which they are read.
        pid: The watched process.
        clock: Returns monotonic seconds.

    Attributes:
        clock: The clock. Collectors of rates read it again at the moment of their reading, since earlier reads may have waited.
        now: Start of the current reading.
        progress: List for progress, extended after each group and within groups that read many files.
        pid: The watched process.
        process_seen: Whether the process ever existed.
        cpu_quota: Tightest cgroup quota in CPUs; None without a quota.
        memory_levels: For each cgroup level that limits memory, from the leaf upwards: the limit in bytes and the file of the current use.
        memory_limit: Tightest of these limits that is below the host's memory; None without one.
        memory_total: The host's memory in bytes; None if unknown.
        required: Keys that the current group must give.
        values: Values of the current group, by key.
        reasons: Reasons of its missing keys.
    """

    def __init__(self, collectors: Sequence[CachedCollector], pid: int, clock: MonotonicTime) -> None:
        self.clock = clock
        self.now = 0.0
        self.progress: list[Any] = []
        self.pid = pid
        self.process_seen = False
        self.cpu_quota: float | None = None
        self.memory_levels: Sequence[tuple[int, KeptFile]] = ()
        self.memory_limit: int | None = None
        self.memory_total: int | None = None
        self.required: Iterable[str] = ()
        self.values: dict[str, Number] = {}
        self.reasons: dict[str, Unavailable] = {}
        self._collectors = collectors
        self._due = -math.inf
        self._unavailable: Mapping[str, Unavailable] = NO_REASONS
        self._latest = Reading()

    def kept(self, unit: int) -> Reading | None:
        """Return the last reading while no group is due, else None. Reads no file."""
        # Called on the sampling thread, which must never wait for a file.
        return None if self.clock() >= self._due else self._latest

    def read(self, unit: int, progress: list[Any]) -> Reading:
        self.now = self.clock()
        if self.now < self._due:
            return self._latest
        self.progress = progress
        blocks, changed = [], False
        self._due = oldest = math.inf
        for collector in self._collectors:
            if self.now >= collector.due:
                reasons = collector.reasons
                collector.read(self)
                changed = changed or collector.reasons is not reasons
                progress.append(None)
            blocks.append(collector.block)
            self._due, oldest = min(self._due, collector.due), min(oldest, collector.read_at)
        if changed:
            # Only if a reason changed, so that the sampler gets the same mapping otherwise.
            self._unavailable = {key: why for collector in self._collectors for key, why in collector.reasons.items()}
        # The time of the oldest group, so that no value is older than the reading says. Without any group the time is "now".
        self._latest = Reading(blocks, self._unavailable, read_at=oldest if blocks else None)
        return self._latest

    # For collectors:

    def put(self, key: str, value: Number | Unavailable) -> None:
        """Set the value of a key, or the reason why it has none."""
        if isinstance(value, Unavailable):
            self.reasons[key] = value
        else:
            self.values[key] = value

    def put_counter(self, counter: Counter, total: str, rate: str = "", unit: int = 1) -> None:
        """Set the counter's gain since the first reading under ``total``, divided by ``unit``, and its gain per second under ``rate``."""
        self.put(total, FIRST if counter.seen == 1 else counter.total if unit == 1 else counter.total / unit)
        if rate:
            self.put(rate, counter.per_second())

    def fail(self, why: Unavailable) -> None:
        """Set a reason for all required keys of the group that have neither a value nor a reason."""
        for key in self.required:
            if key not in self.values:
                self.reasons.setdefault(key, why)

    def fail_gone(self) -> None:
        """Set the reason of a process that does not exist for the keys of the group."""
        from accelmetrics.backends.kit.processes import no_process  # needed only if the process is missing

        self.fail(Unavailable(Reason.NOT_IN_USE, f"process {self.pid} has ended" if self.process_seen else no_process(self.pid)))


class HostDriver:
    """The host as one machine-wide unit without devices.

    Args:
        source: Name of the source in one word.
        collectors: Returns the collectors of one reader, in the order in which they are read.
        close: Closes all open files.
        clock: Returns monotonic seconds; tests replace it.
    """

    machine_wide = True
    devices: Sequence[DeviceIdentity] = ()

    def __init__(
        self,
        source: str,
        collectors: Callable[[ReadOptions], Sequence[CachedCollector]],
        close: Callable[[], None],
        clock: MonotonicTime = time.monotonic,
    ) -> None:
        self.source = source
        self.close = close
        self._collectors = collectors
        self._clock = clock

    def reader(self, options: ReadOptions) -> HostReader:
        needed = needed_groups(options.metrics)
        collectors = [collector for collector in self._collectors(options) if collector.group in needed]
        return HostReader(collectors, options.pid, self._clock)
