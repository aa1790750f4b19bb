"""The watched process, with its descendants where they are asked for: CPU share, by mode too, threads, resident memory.

``cpu`` is CPU time over the interval ÷ the CPUs that the process may use (the cgroup's quota, where it is below the CPUs of
its affinity). A process that has ended takes these keys with it, as ``not_in_use``: nothing is broken, there is just nothing
left to measure. A later process of the same number is told apart by its start and is not mistaken for it.

CPU time in ``/proc`` is cut to clock ticks of 10 ms, a tenth of an interval at ten readings a second; the process's CPU clock
has nanoseconds. It and the affinity are asked by number, so only where ``/proc`` numbers processes as we do. User and system time are known
in ticks alone.
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
# Nanoseconds by which a process may seem to use more: user and system time may each be off by a clock tick of 10 ms at either end.
_NOISE = 40_000_000
_NO_TIME: Times = (0, 0, 0)
_ALLOWED = re.compile(rb"^Cpus_allowed_list:(.*)$", re.MULTILINE)


def parse_process(data: bytes, tick: int, page: int, own: int | None = None) -> Process:
    """Parse a ``stat`` file. The name in brackets may hold spaces and brackets itself.

    Args:
        data: The file.
        tick: The kernel's clock tick in nanoseconds.
        page: The kernel's page of memory in bytes.
        own: The CPU time in nanoseconds from a finer clock than the file's, where there is one.

    Raises:
        ValueError: It has too few fields, or one is not a number.
    """
    pid, _, rest = data.partition(b" (")
    fields = rest[rest.rfind(b")") + 1 :].split(None, 22)
    if len(fields) < 22:
        raise ValueError(f"{len(fields)} fields after the name, 22 are needed")
    threads = count(fields[17])
    # The first thread of a process may end before the others: it is a zombie then, the process is not.
    ended = fields[0] in (b"Z", b"X") and threads <= 1
    user, system, waited_user, waited_system = map(count, fields[11:15])
    times = ((user + system) * tick if own is None else own, user * tick, system * tick)
    waited = ((waited_user + waited_system) * tick, waited_user * tick, waited_system * tick)
    return Process(count(pid), count(fields[19]), count(fields[1]), times, waited, threads, count(fields[21]) * page, ended)


Cpus = tuple[tuple[int, int], ...]
"""CPUs by number: the first and last of each range."""


@lru_cache(maxsize=8)
def parse_cpus(data: bytes) -> Cpus:
    """Parse a list of CPUs, such as ``0-3,6``. Remembered: it hardly ever changes.

    Raises:
        ValueError: It is none.
    """
    ranges = [word.strip().partition(b"-") for word in data.split(b",")]
    return tuple([(count(first), count(last if dash else first)) for first, dash, last in ranges])


def parse_allowed(data: bytes) -> Cpus:
    """Parse the CPUs of ``Cpus_allowed_list`` in a ``status`` file.

    Raises:
        ValueError: There is no such line, or it is not a list of CPUs.
    """
    found = _ALLOWED.search(data)
    if found is None:
        raise ValueError("Cpus_allowed_list is missing")
    return parse_cpus(found[1])


def numbers_are_ours() -> bool:
    """Return whether the ``/proc`` that is read numbers processes as this process's own PID namespace does."""
    try:
        return os.readlink(sysroot() + "/proc/self") == str(os.getpid())  # noqa: PTH115  the link's text is wanted
    except OSError:
        return False


def cpu_clock(pid: int) -> int | None:
    """Return CPU time of a process in nanoseconds; None where the kernel does not say."""
    try:
        # The kernel's number for "CPU time of the process with this number", as clock_getcpuclockid(3) makes it.
        return time.clock_gettime_ns((~pid << 3) | 2)
    except (OSError, OverflowError):
        return None


class LinuxProcesses:
    """The watched process in ``/proc``, and its descendants.

    Args:
        files: The driver's open files.
        pid: The watched process.
        ours: Whether the kernel may be asked by the numbers of this ``/proc``.
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
            ValueError: Its entry makes no sense.
        """
        return self._parse(self._file.read(), self._pid)

    def look(self, pid: int) -> Process | None:
        """Read a process that may end at any moment; None once it has, or when its entry makes no sense."""
        try:
            process = self._parse(read_once(f"/proc/{pid}/stat"), pid)
        except (OSError, ValueError):
            return None
        return process if process.pid == pid else None

    def _parse(self, data: bytes, pid: int) -> Process:
        return parse_process(data, self._tick, self._page, cpu_clock(pid) if self._ours else None)

    def cpus(self) -> tuple[int, int]:
        """Return how many CPUs the process may use, and how many there are."""
        if not (self._ours and self._on):  # once is enough with an affinity, which leaves out CPUs that are off
            try:
                self._on = parse_cpus(self._online.read().strip())
            except (OSError, ValueError):
                self._on = ((0, (os.cpu_count() or 1) - 1),)
        there = _in_common(self._on, self._on)
        try:
            usable = len(os.sched_getaffinity(self._pid)) if self._ours else _in_common(parse_allowed(self._status.read()), self._on)
        except (OSError, ValueError):
            # Nothing is known to hold the process to fewer CPUs than the host has.
            usable = there
        return usable or there, max(usable, there)

    def descendants(self, progress: list[Any]) -> list[Process]:
        """Read everything below the process; ``progress`` grows with each process that is looked at."""
        return [process for pid in descendants(self._pid, progress)[1:] if (process := self.look(pid)) is not None]


class PsutilProcesses:
    """The watched process and its descendants, in the same terms as ``/proc`` gives them."""

    def __init__(self, psutil: Any, pid: int) -> None:
        self._psutil = psutil
        self._pid = pid
        self._process: Any = None

    def root(self) -> Process:
        """Read the watched process. Raises ``OSError``."""
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
        """Read a process, None when it has ended or may not be read."""
        try:
            return self._read(self._psutil.Process(pid))
        except self._psutil.Error:
            return None

    def descendants(self, progress: list[Any]) -> list[Process]:
        """Read everything below the process; those that end or may not be read cost themselves only."""
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
        """Return how many CPUs the process may use, which Windows and FreeBSD limit by an affinity, and how many there are."""
        there = os.cpu_count() or 1
        affinity = getattr(self._process, "cpu_affinity", None)
        try:
            return (len(affinity()) if affinity is not None else 0) or there, there
        except (OSError, self._psutil.Error):
            return there, there

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


def _less(after: Times, before: Times) -> Times:
    """Return the time between two readings; none where a clock went back."""
    return max(after[0] - before[0], 0), max(after[1] - before[1], 0), max(after[2] - before[2], 0)


class TreeCpuTime:
    """CPU time that a tree of processes used between two readings, though members come and go.

    A process that ends hands its time, with what its own children had handed to it, to the parent that waits for it. So what an
    ended member used after the last reading is what its parent's waited-for time rose by, less what had been counted already.
    Time of a member that no other member waited for is lost with it, and the sum never falls below 0 for that.

    Args:
        look: Reads one process by number; asked about members that are no longer listed.
    """

    def __init__(self, look: Callable[[int], Process | None]) -> None:
        self._look = look
        self._last: dict[tuple[int, int], Process] = {}

    def advance(self, members: Iterable[Process], possible: float) -> tuple[Times, list[Process]]:
        """Take a new reading.

        Args:
            members: The watched process first, then its descendants.
            possible: Nanoseconds that all CPUs together had in the interval. A member that is new to us with more than
                that has not used it here: it was adopted, and counts from now on.

        Returns:
            The time used since the last call, and the members, with those that the listing had missed.
        """
        now = {process.key: process for process in members}
        last, self._last = self._last, now
        handed = self._settle_missing(last, now)
        used = _NO_TIME
        for key, process in now.items():
            before = last.get(key)
            if before is not None:
                counted = _sum(before.waited, handed.get(key, _NO_TIME))
                used = _sum(used, _less(process.own, before.own), _less(process.waited, counted))
            elif last and process.own[0] + process.waited[0] <= possible:
                used = _sum(used, process.own, process.waited)
        return used, list(now.values())

    def _settle_missing(self, last: dict[tuple[int, int], Process], now: dict[tuple[int, int], Process]) -> dict[tuple[int, int], Times]:
        """Return, by surviving member, the time that ended ones handed to it and that had been counted already."""
        by_pid = {process.pid: process for process in last.values()}
        handed: dict[tuple[int, int], Times] = {}
        for key in last.keys() - now.keys():
            process = self._look(key[0])
            if process is not None and process.key == key:
                # Still there: either the listing raced with an exit and missed it, or it left for another parent.
                if any(member.pid == process.parent for member in now.values()):
                    now[key] = process
                continue
            # What it had handed over goes to the nearest ancestor that is still here.
            heir, passed = by_pid.get(last[key].parent), {key[0]}
            while heir is not None and heir.key not in now and heir.pid not in passed:
                passed.add(heir.pid)
                heir = by_pid.get(heir.parent)
            if heir is not None and heir.key in now:
                handed[heir.key] = _sum(handed.get(heir.key, _NO_TIME), last[key].own, last[key].waited)
        return handed


def cpu_share(used: int, elapsed: float, possible: float, capacity: float) -> float | Unavailable:
    """Return CPU time in percent of what a process could have used.

    Args:
        used: Nanoseconds that it used.
        elapsed: Seconds in which it did.
        possible: Nanoseconds that all CPUs together had.
        capacity: The CPUs that it may use.
    """
    if elapsed <= 0:
        return TOO_SOON
    if used > possible:
        return Unavailable(Reason.INVALID_VALUE, "more CPU time than all CPUs had")
    # The two clocks are read one after the other, and a quota may be used twice at the border of two periods.
    return min(100.0 * used / 1e9 / elapsed / capacity, 100.0)


@lru_cache(maxsize=8)
def _in_common(some: Cpus, others: Cpus) -> int:
    """Count the CPUs that are in both lists."""
    return sum([max(0, min(last, end) - max(first, begin) + 1) for first, last in some for begin, end in others])


SHARES = ("cpu", "proc.cpu.userPercent", "proc.cpu.systemPercent")


def process_collector(processes: LinuxProcesses | PsutilProcesses, children: bool) -> Callable[[HostReader], None]:
    """Make the collector of CPU time, threads and memory of one process, or of it and its descendants."""
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
        now = reader.clock()
        elapsed = now - then if last is not None else 0.0
        usable, there = processes.cpus()
        members = [root, *processes.descendants(reader.progress)] if children else [root]
        possible = elapsed * 1e9 * there + _NOISE * len(members)
        if children:
            used, members = tree.advance(members, possible)
        else:
            used = _less(root.own, (root if last is None else last).own)
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
