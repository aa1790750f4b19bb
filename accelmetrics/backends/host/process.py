"""The watched process, with its descendants where they are asked for: CPU share, by mode too, threads, resident memory.

``cpu`` is CPU time over the interval ÷ the CPUs that the process may use (the cgroup's quota, where it is below the CPUs of
its affinity). A process that has ended takes these keys with it, as ``not_in_use``: nothing is broken, there is just nothing
left to measure. A later process of the same number is told apart by its start and is not mistaken for it.

CPU time in ``/proc`` is cut to clock ticks of 10 ms, a tenth of an interval at ten readings a second; the process's CPU clock
has nanoseconds. It is asked by number, so only where ``/proc`` numbers processes as we do. User and system time are known in ticks alone,
and so told at a slower pace.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

from accelmetrics.backends.host.collector import FIRST, MIB, TOO_SOON, HostReader, Process
from accelmetrics.backends.kit import descendants
from accelmetrics.backends.kit.system import Files, count, read_once, sysroot
from accelmetrics.schemas.errors import Reason, Unavailable

_NO_TOTAL = Unavailable(Reason.NOT_SUPPORTED, "the host's memory is unknown, and no cgroup limits it")
# User and system time may each be off by a clock tick of 10 ms at either end of the interval.
_NOISE = 40_000_000
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
    fields = rest[rest.rfind(b")") + 1 :].split()
    if len(fields) < 22:
        raise ValueError(f"{len(fields)} fields after the name, 22 are needed")
    threads = count(fields[17])
    # The first thread of a process may end before the others: it is a zombie then, the process is not.
    ended = fields[0] in (b"Z", b"X") and threads <= 1
    user, system = ((count(fields[place]) * tick, count(fields[place + 2]) * tick) for place in (11, 12))
    if own is None:
        own = user[0] + system[0]
    waited = user[1] + system[1]
    rss = count(fields[21]) * page
    return Process(count(pid), count(fields[19]), count(fields[1]), own, waited, threads, rss, ended, (user, system))


def parse_allowed(data: bytes) -> list[tuple[int, int]]:
    """Parse the CPUs of ``Cpus_allowed_list`` in a ``status`` file, as first and last of each range.

    Raises:
        ValueError: There is no such line, or it is not a list of ranges.
    """
    found = _ALLOWED.search(data)
    if found is None:
        raise ValueError("Cpus_allowed_list is missing")
    ranges = [word.strip().partition(b"-") for word in found[1].split(b",")]
    return [(count(first), count(last if dash else first)) for first, dash, last in ranges]


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
        clock: Whether CPU clocks may be asked by the numbers of this ``/proc``.
    """

    def __init__(self, files: Files, pid: int, clock: bool) -> None:
        self._file = files.keep(f"/proc/{pid}/stat")
        self._status = files.keep(f"/proc/{pid}/status")
        self._pid = pid
        self._clock = clock
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
        return parse_process(data, self._tick, self._page, cpu_clock(pid) if self._clock else None)

    def allowed(self) -> list[tuple[int, int]]:
        """Return the first and last of each range of CPUs that the process may run on. Raises as ``root`` does."""
        return parse_allowed(self._status.read())

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

    def allowed(self) -> list[tuple[int, int]]:
        """Return the CPUs that the process may run on, where the system has an affinity (Windows, FreeBSD). Raises ``OSError``."""
        affinity = getattr(self._process, "cpu_affinity", None)
        if affinity is None:
            return []
        try:
            return [(cpu, cpu) for cpu in affinity()]
        except self._psutil.Error as error:
            raise OSError(str(error)) from error

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
                own=user[0] + system[0],
                waited=user[1] + system[1],
                threads=process.num_threads(),
                rss=process.memory_info().rss,
                ended=ended,
                in_modes=(user, system),
            )


class TreeCpuTime:
    """CPU time that a tree of processes used between two readings, though members come and go.

    A process that ends hands its time, with what its own children had handed to it, to the parent that waits for it. So what an
    ended member used after the last reading is what its parent's waited-for time rose by, less what had been counted already.
    Time of a member that no other member waited for is lost with it, and the sum never falls below 0 for that.

    Args:
        look: Reads one process by number; asked about members that are no longer listed.
        children: Whether descendants are watched, so that time handed up by ended ones counts.
        mode: 0 for user time alone, 1 for system time alone; None for all.
    """

    def __init__(self, look: Callable[[int], Process | None], children: bool, mode: int | None = None) -> None:
        self._look = look
        self._children = children
        self._mode = mode
        self._last: dict[tuple[int, int], Process] = {}

    def advance(self, members: Iterable[Process], possible: float) -> tuple[int, list[Process]]:
        """Take a new reading.

        Args:
            members: The watched process first, then its descendants.
            possible: Nanoseconds that all CPUs together had in the interval. A member that is new to us with more than
                that has not used it here: it was adopted, and counts from now on.

        Returns:
            The nanoseconds used since the last call, and the members, with those that the listing had missed.
        """
        now = {process.key: process for process in members}
        last, self._last = self._last, now
        handed = self._settle_missing(last, now) if self._children else {}
        used = 0
        for key, process in now.items():
            own, waited = process.time(self._mode)
            if key in last:
                own_before, waited_before = last[key].time(self._mode)
                used += max(own - own_before, 0)
                if self._children:
                    used += max(waited - waited_before - handed.get(key, 0), 0)
            elif last and own + waited <= possible:
                used += own + waited
        return used, list(now.values())

    def _settle_missing(self, last: dict[tuple[int, int], Process], now: dict[tuple[int, int], Process]) -> dict[tuple[int, int], int]:
        """Return, by surviving member, the time that ended ones handed to it and that had been counted already."""
        by_pid = {process.pid: process for process in last.values()}
        handed: dict[tuple[int, int], int] = {}
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
                handed[heir.key] = handed.get(heir.key, 0) + sum(last[key].time(self._mode))
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


def possible_time(elapsed: float, cpus: int, members: int) -> float:
    """Return the nanoseconds that so many processes can have used of all CPUs together, with the noise of the clocks."""
    return elapsed * 1e9 * cpus + _NOISE * members


@lru_cache(maxsize=8)
def _usable_cpus(ranges: tuple[tuple[int, int], ...], online: tuple[int, ...]) -> int:
    """Count the CPUs that are on and in one of the ranges; all that are on where none is, as without a list of ranges."""
    numbers: Sequence[int] = online or range(os.cpu_count() or 1)
    return sum(any(first <= cpu <= last for first, last in ranges) for cpu in numbers) or len(numbers)


def process_collector(processes: LinuxProcesses | PsutilProcesses, children: bool) -> Callable[[HostReader], None]:
    """Make the collector of CPU time, threads and memory of one process, or of it and its descendants."""
    start: int | None = None
    then = 0.0
    tree = TreeCpuTime(processes.look, children)

    def collect(reader: HostReader) -> None:
        nonlocal start, then
        reader.members = ()
        try:
            root = processes.root()
        except (FileNotFoundError, ProcessLookupError):
            reader.fail_gone()
            return
        reader.process_seen = True
        if root.ended or start not in (None, root.start):
            reader.fail_gone()
            return
        now = reader.clock()
        elapsed = now - then if start is not None else 0.0
        members = [root, *processes.descendants(reader.progress)] if children else [root]
        possible = possible_time(elapsed, reader.cpus, len(members))
        used, members = tree.advance(members, possible)
        try:
            ranges = tuple(processes.allowed())
        except (OSError, ValueError):
            # Without the list nothing is known to hold the process to fewer CPUs than the host has.
            ranges = ()
        reader.capacity = min(filter(None, (float(_usable_cpus(ranges, reader.online)), reader.cpu_quota)))
        reader.members, reader.members_at = members, now
        reader.put("cpu", FIRST if start is None else cpu_share(used, elapsed, possible, reader.capacity))
        reader.put("proc.cpu.threads", sum(member.threads for member in members if not member.ended))
        rss = sum(member.rss for member in members)
        total = reader.memory_limit or reader.memory_total
        reader.put("proc.memory.rssMB", rss / MIB)
        reader.put("proc.memory.rssBytes", rss)
        reader.put("proc.memory.percent", 100.0 * rss / total if total else _NO_TOTAL)
        start, then = root.start, now

    return collect


MODES = ("proc.cpu.userPercent", "proc.cpu.systemPercent")


def mode_collector(processes: LinuxProcesses | PsutilProcesses, children: bool) -> Callable[[HostReader], None]:
    """Make the collector of user and system time of the processes that :func:`process_collector` found last."""
    then: float | None = None
    trees = [TreeCpuTime(processes.look, children, mode) for mode in range(len(MODES))]

    def collect(reader: HostReader) -> None:
        nonlocal then
        if not reader.members:
            processes.root()  # says why not, if that is more than that it has ended
            reader.fail_gone()
            return
        elapsed = 0.0 if then is None else reader.members_at - then
        possible = possible_time(elapsed, reader.cpus, len(reader.members))
        for key, tree in zip(MODES, trees, strict=True):
            used, _ = tree.advance(reader.members, possible)
            reader.put(key, FIRST if then is None else cpu_share(used, elapsed, possible, reader.capacity))
        then = reader.members_at

    return collect
