"""The watched process, with its descendants if they are selected: CPU share, also by mode, threads and resident memory.

``cpu`` is CPU time over the interval ÷ the CPUs that the process may use: those of its affinity, or the cgroup's quota if that is less. If
the process has ended, its keys are ``not_in_use``: nothing is broken. A later process with the same id has another start time and is not
mistaken for it.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

from accelmetrics.backends.host.collector import FIRST, MIB, TOO_SOON, HostReader, Process, Times
from accelmetrics.backends.kit import descendants
from accelmetrics.backends.kit.system import Files, count, read_once, sysroot
from accelmetrics.schemas.errors import Reason, Unavailable

_NO_TOTAL = Unavailable(Reason.NOT_SUPPORTED, "the host's memory is unknown, and no cgroup limits it")
# Nanoseconds by which the measured CPU time may exceed the real one: user and system time may each be off by a tick of 10 ms at both ends.
_NOISE = 40_000_000
# CPU time in `/proc` has the resolution of a clock tick, 10 ms. At ten readings a second this is a tenth of the
# interval, so the total comes from the process's CPU clock, which counts nanoseconds. User and system time exist in
# ticks only.
_NO_TIME: Times = (0, 0, 0)
_ALLOWED = re.compile(rb"^Cpus_allowed_list:(.*)$", re.MULTILINE)


def parse_process(data: bytes, tick: int, page: int, own: int | None = None) -> Process:
    """Parse a ``stat`` file.

    Args:
        data: The file.
        tick: The kernel's clock tick in nanoseconds.
        page: The kernel's page size in bytes.
        own: CPU time in nanoseconds from a clock finer than the file's; None without one.

    Raises:
        ValueError: It has too few fields, or a field is not a number.
    """
    pid, _, rest = data.partition(b" (")
    # The name in parentheses may contain spaces and parentheses itself, so the fields begin after the last one.
    fields = rest[rest.rfind(b")") + 1 :].split(None, 22)
    if len(fields) < 22:
        raise ValueError(f"{len(fields)} fields after the name, 22 are needed")
    threads = count(fields[17])
    # The first thread of a process may end before the others. Then the entry shows a zombie, but the process lives.
    ended = fields[0] in (b"Z", b"X") and threads <= 1
    user, system, waited_user, waited_system = map(count, fields[11:15])
    times = ((user + system) * tick if own is None else own, user * tick, system * tick)
    waited = ((waited_user + waited_system) * tick, waited_user * tick, waited_system * tick)
    return Process(count(pid), count(fields[19]), count(fields[1]), times, waited, threads, count(fields[21]) * page, ended)


Cpus = tuple[tuple[int, int], ...]
"""Ranges of CPU numbers: the first and the last CPU of each."""


@lru_cache(maxsize=8)
def parse_cpus(data: bytes) -> Cpus:
    """Parse a list of CPUs in the form ``0-3,6``.

    Raises:
        ValueError: It is no list of CPUs.
    """
    # Cached, since the list hardly ever changes.
    ranges = [word.strip().partition(b"-") for word in data.split(b",")]
    return tuple([(count(first), count(last if dash else first)) for first, dash, last in ranges])


def parse_allowed(data: bytes) -> Cpus:
    """Parse the line ``Cpus_allowed_list`` of a ``status`` file.

    Raises:
        ValueError: The line is missing, or is no list of CPUs.
    """
    found = _ALLOWED.search(data)
    if found is None:
        raise ValueError("Cpus_allowed_list is missing")
    return parse_cpus(found[1])


def numbers_are_ours() -> bool:
    """Return whether the ``/proc`` that is read has the process ids of our own PID namespace."""
    try:
        return os.readlink(sysroot() + "/proc/self") == str(os.getpid())  # noqa: PTH115  the link's text is wanted
    except OSError:
        return False


def cpu_clock(pid: int) -> int | None:
    """Return the CPU time of a process in nanoseconds; None if the kernel does not know the process."""
    try:
        # The id of the CPU clock of a process, computed as clock_getcpuclockid(3) does.
        return time.clock_gettime_ns((~pid << 3) | 2)
    except (OSError, OverflowError):
        return None


class LinuxProcesses:
    """The watched process in ``/proc``, and its descendants.

    Args:
        files: The driver's open files.
        pid: The watched process.
        ours: Whether this ``/proc`` has the process ids of our PID namespace. Only then can the CPU clock and the affinity be read, which
            take an id of our namespace.
    """

    def __init__(self, files: Files, pid: int, ours: bool) -> None:
        self._file = files.keep(f"/proc/{pid}/stat")
        self._status = files.keep(f"/proc/{pid}/status")
        self._online = files.keep("/sys/devices/system/cpu/online")
        self._on: Cpus = ()
        self._pid = pid
        self._ours = ours
        self._tick = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
        self._page = os.sysconf("SC_PAGE_SIZE")

    def root(self) -> Process:
        """Read the watched process.

        Raises:
            OSError: It has ended, or may not be read.
            ValueError: Its entry is malformed.
        """
        return self._parse(self._file.read(), self._pid)

    def look(self, pid: int) -> Process | None:
        """Read a process that may end at any moment. None if it has ended or its entry is malformed."""
        try:
            process = self._parse(read_once(f"/proc/{pid}/stat"), pid)
        except (OSError, ValueError):
            return None
        return process if process.pid == pid else None

    def _parse(self, data: bytes, pid: int) -> Process:
        return parse_process(data, self._tick, self._page, cpu_clock(pid) if self._ours else None)

    def cpus(self) -> tuple[int, int]:
        """Return the number of CPUs that the process may use, and the number that are online."""
        if not (self._ours and self._on):  # an affinity already leaves out offline CPUs, so one reading is enough
            try:
                self._on = parse_cpus(self._online.read().strip())
            except (OSError, ValueError):
                self._on = ((0, (os.cpu_count() or 1) - 1),)
        online = _in_common(self._on, self._on)
        try:
            usable = len(os.sched_getaffinity(self._pid)) if self._ours else _in_common(parse_allowed(self._status.read()), self._on)
        except (OSError, ValueError):
            # No limit is known, so the process may use all CPUs of the host.
            usable = online
        return usable or online, max(usable, online)

    def descendants(self, progress: list[Any]) -> list[Process]:
        """Read all descendants. ``progress`` grows with each process that is read."""
        return [process for pid in descendants(self._pid, progress)[1:] if (process := self.look(pid)) is not None]


class PsutilProcesses:
    """The watched process and its descendants, read with psutil. It has the methods of :class:`LinuxProcesses`."""

    def __init__(self, psutil: Any, pid: int) -> None:
        self._psutil = psutil
        self._pid = pid
        self._process: Any = None

    def root(self) -> Process:
        """Read the watched process.

        Raises:
            OSError: It has ended, or may not be read.
        """
        psutil = self._psutil
        try:
            if self._process is None:
                self._process = psutil.Process(self._pid)
            return self._read(self._process)
        except psutil.NoSuchProcess as error:
            raise ProcessLookupError(self._pid) from error
        except psutil.AccessDenied as error:
            raise PermissionError(self._pid) from error

    def look(self, pid: int) -> Process | None:
        """Read a process. None if it has ended or may not be read."""
        try:
            return self._read(self._psutil.Process(pid))
        except self._psutil.Error:
            return None

    def descendants(self, progress: list[Any]) -> list[Process]:
        """Read all descendants. A process that ends or may not be read is left out."""
        try:
            children = self._process.children(recursive=True)
        except self._psutil.Error:
            return []
        found = []
        for child in children:
            progress.append(None)
            found.append(self.look(child.pid))
        return [process for process in found if process is not None]

    def cpus(self) -> tuple[int, int]:
        """Return the number of CPUs that the process may use, and the number of CPUs."""
        total = os.cpu_count() or 1
        # Windows and FreeBSD have an affinity, macOS has none.
        affinity = getattr(self._process, "cpu_affinity", None)
        try:
            return (len(affinity()) if affinity is not None else 0) or total, total
        except (OSError, self._psutil.Error):
            return total, total

    def _read(self, process: Any) -> Process:
        with process.oneshot():
            times = process.cpu_times()
            user = (round(times.user * 1e9), round(getattr(times, "children_user", 0.0) * 1e9))
            system = (round(times.system * 1e9), round(getattr(times, "children_system", 0.0) * 1e9))
            ended = process.status() == self._psutil.STATUS_ZOMBIE
            return Process(
                pid=process.pid,
                start=round(process.create_time() * 1e6),
                parent=process.ppid(),
                own=(user[0] + system[0], user[0], system[0]),
                waited=(user[1] + system[1], user[1], system[1]),
                threads=process.num_threads(),
                rss=process.memory_info().rss,
                ended=ended,
            )


def _sum(*times: Times) -> Times:
    whole, user, system = map(sum, zip(*times, strict=True))
    return whole, user, system


def _difference(after: Times, before: Times) -> Times:
    """Return the difference of two readings, 0 where a clock went back."""
    return max(after[0] - before[0], 0), max(after[1] - before[1], 0), max(after[2] - before[2], 0)


class TreeCpuTime:
    """CPU time that a tree of processes used between two readings, although members start and end.

    When a process ends, its parent waits for it and inherits its time, with the time that the process inherited from its own children. So
    the time that a member used between the last reading and its end is the rise of its parent's waited-for time, less the part that was
    already counted. If no member waits for it, this time is lost. The sum never falls below 0.

    Args:
        look: Reads a process by id; used for members that are no longer listed.
    """

    def __init__(self, look: Callable[[int], Process | None]) -> None:
        self._look = look
        self._last: dict[tuple[int, int], Process] = {}

    def advance(self, members: Iterable[Process], possible: float) -> tuple[Times, list[Process]]:
        """Add a reading.

        Args:
            members: The watched process first, then its descendants.
            possible: Nanoseconds of CPU time that all CPUs had in the interval. A new member with more than this was adopted, and its time
                counts from now on.

        Returns:
            The time used since the last call, and the members, including those that the listing missed.
        """
        now = {process.key: process for process in members}
        last, self._last = self._last, now
        inherited = self._inherited(last, now)
        used = _NO_TIME
        for key, process in now.items():
            before = last.get(key)
            if before is not None:
                counted = _sum(before.waited, inherited.get(key, _NO_TIME))
                used = _sum(used, _difference(process.own, before.own), _difference(process.waited, counted))
            elif last and process.own[0] + process.waited[0] <= possible:
                used = _sum(used, process.own, process.waited)
        return used, list(now.values())

    def _inherited(self, last: dict[tuple[int, int], Process], now: dict[tuple[int, int], Process]) -> dict[tuple[int, int], Times]:
        """Return for each living member the time it inherited from ended members that was already counted."""
        by_pid = {process.pid: process for process in last.values()}
        inherited: dict[tuple[int, int], Times] = {}
        for key in last.keys() - now.keys():
            process = self._look(key[0])
            if process is not None and process.key == key:
                # It still lives. Either the listing missed it because another process ended meanwhile, or it has a new parent
                # outside of the tree.
                if any(member.pid == process.parent for member in now.values()):
                    now[key] = process
                continue
            # Its time was inherited by its nearest living ancestor.
            ancestor, visited = by_pid.get(last[key].parent), {key[0]}
            while ancestor is not None and ancestor.key not in now and ancestor.pid not in visited:
                visited.add(ancestor.pid)
                ancestor = by_pid.get(ancestor.parent)
            if ancestor is not None and ancestor.key in now:
                inherited[ancestor.key] = _sum(inherited.get(ancestor.key, _NO_TIME), last[key].own, last[key].waited)
        return inherited


def cpu_share(used: int, elapsed: float, possible: float, capacity: float) -> float | Unavailable:
    """Return the CPU time in percent of the CPU time that the process could use.

    Args:
        used: Nanoseconds of CPU time used.
        elapsed: Length of the interval in seconds.
        possible: Nanoseconds of CPU time that all CPUs had.
        capacity: Number of CPUs that the process may use.
    """
    if elapsed <= 0:
        return TOO_SOON
    if used > possible:
        return Unavailable(Reason.INVALID_VALUE, "more CPU time than all CPUs have")
    # A little more than 100 % is normal: the two clocks are read one after the other, and a process may use the quotas of two
    # adjacent periods in one interval.
    return min(100.0 * used / 1e9 / elapsed / capacity, 100.0)


@lru_cache(maxsize=8)
def _in_common(some: Cpus, others: Cpus) -> int:
    """Return the number of CPUs that are in both lists."""
    return sum([max(0, min(last, end) - max(first, begin) + 1) for first, last in some for begin, end in others])


SHARES = ("cpu", "proc.cpu.userPercent", "proc.cpu.systemPercent")


def process_collector(processes: LinuxProcesses | PsutilProcesses, children: bool) -> Callable[[HostReader], None]:
    """Return the collector of CPU time, threads and memory of a process, with or without its descendants."""
    last: Process | None = None
    then = 0.0
    tree = TreeCpuTime(processes.look)

    def collect(reader: HostReader) -> None:
        nonlocal last, then
        try:
            root = processes.root()
        except (FileNotFoundError, ProcessLookupError):
            reader.fail_gone()
            return
        reader.process_seen = True
        if root.ended or (last is not None and last.start != root.start):
            reader.fail_gone()
            return
        # Read directly after the CPU time, since earlier groups may have waited.
        now = reader.clock()
        elapsed = now - then if last is not None else 0.0
        usable, online = processes.cpus()
        members = [root, *processes.descendants(reader.progress)] if children else [root]
        possible = elapsed * 1e9 * online + _NOISE * len(members)
        if children:
            used, members = tree.advance(members, possible)
        else:
            used = _difference(root.own, (root if last is None else last).own)
        capacity = min(usable, reader.cpu_quota or usable)
        for key, spent in zip(SHARES, used, strict=True):
            reader.put(key, FIRST if last is None else cpu_share(spent, elapsed, possible, capacity))
        rss, threads = root.rss, root.threads
        for member in members[1:]:
            rss, threads = rss + member.rss, threads + (0 if member.ended else member.threads)
        reader.values["proc.cpu.threads"] = threads
        reader.values["proc.memory.rssMB"] = rss / MIB
        reader.values["proc.memory.rssBytes"] = rss
        total = reader.memory_limit or reader.memory_total
        reader.put("proc.memory.percent", 100.0 * rss / total if total else _NO_TOTAL)
        last, then = root, now

    return collect
