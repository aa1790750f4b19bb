"""Memory, swap, and the watched process's cgroup: its limits, throttling, and kills by the out-of-memory killer.

- ``memory_percent`` is ``memory.usedBytes`` ÷ ``memory.totalBytes``: the memory charged to the cgroup with the tightest limit, caches
  included, and this limit. Without a limit they are the host's.
- ``proc.memory.availableMB`` is the smallest amount that a level with a limit, or the host, has left.
- ``proc.cpu.throttledPercent`` is the share of the quota's periods in which the process was throttled, at the level with the tightest
  quota.
- ``proc.memory.oomKills`` counts ``oom_kill`` of the process's own cgroup and the cgroups below it.

Only version 2 cgroups are read. The path comes from the line ``0::`` of ``/proc/<pid>/cgroup``, the mount point from our own mount table,
since the files are opened through our own mounts. In a container, the mount shows only a part of the tree (a bind mount, or a namespace),
so the root of the mount is removed from the path. A limit applies to a whole subtree, so every level from the leaf up to the mount is read
and the tightest limit counts. Levels above a container's own mount are invisible from within.
"""

from __future__ import annotations

import errno
import math
import os
import posixpath
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from accelmetrics.backends.host.collector import FIRST, GIB, MIB, RARE_PACE, RESET, Counter, HostReader
from accelmetrics.backends.kit.system import Files, KeptFile, Memory, count, exists, read_once, reason_of, sysroot
from accelmetrics.schemas.errors import Reason, Unavailable

T = TypeVar("T")

# Which files exist changes rarely, so it is looked up with the mounts: every ten seconds, and when the membership of
# another process changes. The files of the limits stay open and are read each time.
_ESCAPE = re.compile(r"\\([0-7]{3})")
_USUAL_MOUNT = "/sys/fs/cgroup"
_NO_SWAP = Unavailable(Reason.NOT_SUPPORTED, "no swap is configured")
_NO_QUOTA = Unavailable(Reason.NOT_SUPPORTED, "no CPU quota is set for the process's cgroup")
_NO_PERIOD = Unavailable(Reason.NEEDS_INTERVAL, "no period of the CPU quota has ended since the last reading")


def collect_memory(read: Callable[[], Memory], reader: HostReader) -> None:
    """Put used and available memory, of the host or within the cgroup's limit, and swap."""
    reader.memory_limit = reader.memory_total = None
    try:
        memory = read()
    except (OSError, ValueError):
        if reader.memory_levels:  # a cgroup's limit is enough if the host's memory is unknown
            _put_limited(reader, reader.memory_levels, math.inf)
        raise
    reader.memory_total = memory.total
    if memory.swap_total and memory.swap_free is not None:
        reader.values["swap.used_percent"] = 100.0 * max(memory.swap_total - memory.swap_free, 0) / memory.swap_total
    else:
        reader.reasons["swap.used_percent"] = _NO_SWAP
    # A limit above the host's memory has no effect.
    levels = reader.memory_levels and [level for level in reader.memory_levels if level[0] < memory.total]
    if levels:
        _put_limited(reader, levels, memory.available)
    else:
        _put_used(reader, memory.total - memory.available, memory.total)
        reader.values["proc.memory.availableMB"] = memory.available / MIB


def _put_used(reader: HostReader, used: int, total: int) -> None:
    reader.values["memory_percent"] = 100.0 * used / total
    reader.values["memory.usedBytes"] = used
    reader.values["memory.totalBytes"] = total


def _put_limited(reader: HostReader, levels: Sequence[tuple[int, KeptFile]], available: float) -> None:
    """Put memory within the limits of the cgroup levels. ``available`` is the host's free memory in bytes."""
    reader.memory_limit = min(limit for limit, _ in levels)
    uses = []
    for limit, file in levels:
        try:
            uses.append((limit, count(file.read().strip())))
        except (OSError, ValueError) as error:
            # The limit is known even if the current use is not.
            reader.put("memory.totalBytes", reader.memory_limit)
            for key in ("memory_percent", "memory.usedBytes", "proc.memory.availableMB"):
                reader.put(key, reason_of(error, file.path))
            return
    limit, current = min(uses, key=lambda use: use[0])
    _put_used(reader, current, limit)
    reader.put("proc.memory.availableMB", min(available, *(max(limit - current, 0) for limit, current in uses)) / MIB)


Level = tuple[str, KeptFile | None, KeptFile, KeptFile | None]
"""A cgroup of the watched process, or one above it: its directory, the limit of memory, the use of memory, and the CPU quota. Limit and
quota are None if the file does not exist: at the root, and where the controller is off.
"""


def parse_path(data: bytes) -> str | None:
    """Return the version 2 path in ``/proc/<pid>/cgroup``; None on a host with only version 1."""
    for line in os.fsdecode(data).split("\n"):
        if line.startswith("0::/"):
            return line[3:].removesuffix(" (deleted)")
    return None


def parse_mounts(data: bytes) -> list[tuple[str, str]]:
    """Return the version 2 mounts of a ``mountinfo`` file in order: the mounted part of the hierarchy, and the mount point."""
    found = []
    for line in os.fsdecode(data).split("\n"):
        head, _, tail = line.partition(" - ")
        fields = head.split(" ")
        if tail.startswith("cgroup2 ") and len(fields) >= 6:
            # The kernel writes spaces, tabs and backslashes as octal numbers.
            root, point = (_ESCAPE.sub(lambda match: chr(int(match[1], 8)), field) for field in fields[3:5])
            found.append((root, point))
    return found


def directory_of(root: str, point: str, path: str) -> str | None:
    """Return the directory of a cgroup below a mount of the part ``root``; None if the mount does not show it."""
    if ".." in (path + root).split("/"):
        # The process is outside of our cgroup namespace.
        return None
    root = root.rstrip("/")
    # In a container the mount may show only a part of the tree. The path is then relative to this part.
    if path == root or path.startswith(f"{root}/"):
        path = path[len(root) :]
    return posixpath.join(point, path.strip("/")).rstrip("/") or None


def levels_of(point: str, directory: str) -> list[str]:
    """List the directories from a cgroup up to its mount point, the leaf first."""
    point = point.rstrip("/")
    # A limit applies to the whole subtree of its cgroup, so all levels up to the mount count.
    levels = [directory]
    while levels[-1] != point and len(levels[-1]) > len(point):
        levels.append(posixpath.dirname(levels[-1]))
    return levels


def parse_quota(data: bytes) -> float | None:
    """Return ``cpu.max`` as a number of CPUs; None for ``max``.

    Raises:
        ValueError: It is neither a quota nor ``max``.
    """
    quota, _, period = data.strip().partition(b" ")
    if quota == b"max":
        return None
    length = count(period)
    if not length:
        raise ValueError("a period of 0")
    return count(quota) / length


def parse_limit(data: bytes) -> int | None:
    """Return ``memory.max`` in bytes; None for ``max`` and for 0.

    Raises:
        ValueError: It is neither a number nor ``max``.
    """
    word = data.strip()
    # No process can run under a limit of 0, so it is no real limit.
    return None if word == b"max" else count(word) or None


def parse_flat(data: bytes) -> dict[bytes, int]:
    """Parse a file of ``key value`` lines, for example ``cpu.stat``. Other lines are ignored."""
    pairs = (line.partition(b" ") for line in data.split(b"\n"))
    return {key: int(value) for key, _, value in pairs if value.isdigit() and len(value) <= 20}


def find_levels(files: Files, pid: int, path: str | None) -> list[Level]:
    """Return the version 2 cgroup of a process and the cgroups above it, the leaf first; empty if it is invisible.

    Args:
        files: Keeps the files open.
        pid: The process.
        path: Its cgroup's path from :func:`parse_path`.
    """

    def kept(path: str) -> KeptFile | None:
        return files.keep(path) if exists(path) else None

    mounts = [("/", _USUAL_MOUNT)]
    # Our own mounts. Under another system root (a host that is seen from a container) the mounts of the root's first process.
    for owner in (1, pid, "self") if sysroot() else (os.getpid(),):
        with suppress(OSError):
            mounts = parse_mounts(read_once(f"/proc/{owner}/mountinfo"))
            break
    for root, point in mounts if path is not None else ():
        leaf = directory_of(root, point, path or "")
        if leaf is not None and exists(leaf):
            return [
                (directory, kept(f"{directory}/memory.max"), files.keep(f"{directory}/memory.current"), kept(f"{directory}/cpu.max"))
                for directory in levels_of(point, leaf)
            ]
    return []


def read_limits(levels: Sequence[Level]) -> tuple[list[tuple[int, KeptFile]], float | None, str]:
    """Read the limits of a process.

    Returns:
        For each level that limits memory, the leaf first, the limit in bytes and the file of the current use; the tightest CPU quota in
        CPUs, None without one; the directory of the level with this quota.

    Raises:
        OSError: A file cannot be read.
        ValueError: A limit is not a number.
    """
    memory: list[tuple[int, KeptFile]] = []
    quota, quota_directory = None, ""
    for directory, largest, current, cpu in levels:
        if largest is not None and (limit := _read_limit(largest, parse_limit)) is not None:
            memory.append((limit, current))
        if cpu is not None and (found := _read_limit(cpu, parse_quota)) is not None and (quota is None or found <= quota):
            quota, quota_directory = found, directory
    return memory, quota, quota_directory


def _read_limit(file: KeptFile, parse: Callable[[bytes], T]) -> T | None:
    """Read and parse a limit; None if the file is gone because the controller was switched off."""
    try:
        return parse(file.read())
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENODEV):
            return None
        raise


def limits_in_words(pid: int) -> str:
    """Describe the cgroup limits of a process, for ``doctor``."""
    if not exists("/proc/stat"):
        return "/proc is not mounted"
    try:
        levels = find_levels(Files(), pid, parse_path(read_once(f"/proc/{pid}/cgroup")))
        if not levels:
            return "no cgroup v2"
        memory, quota, _ = read_limits(levels)
    except (OSError, ValueError) as error:
        return f"cgroup unreadable: {error}"
    words = [f"{min(limit for limit, _ in memory) / GIB:.4g} GiB"] if memory else []
    words += [] if quota is None else [f"{quota:.4g} CPUs"]
    return f"cgroup v2 limit {' and '.join(words)}" if words else "cgroup v2 without limits"


class CgroupCollector:
    """Collector of throttling and kills in the watched process's cgroup. It sets the reader's limits for later collectors.

    Args:
        files: The driver's open files.
        pid: The watched process.
    """

    def __init__(self, files: Files, pid: int) -> None:
        self._files = files
        self._membership = files.keep(f"/proc/{pid}/cgroup")
        self._known: bytes | None = None  # content of the membership file at the last look
        self._levels: list[Level] = []
        self._levels_due = -math.inf
        self._events_missing: Unavailable | None = None
        self._reset("", "")

    def __call__(self, reader: HostReader) -> None:
        reader.cpu_quota, reader.memory_levels = None, ()
        try:
            # Another process may end, and is often moved to its cgroup just after its start, so its membership is read
            # each time.
            if reader.now >= self._levels_due or reader.pid != os.getpid():
                membership = self._membership.read()
                if membership != self._known or reader.now >= self._levels_due:
                    self._levels = find_levels(self._files, reader.pid, parse_path(membership))
                    self._known, self._levels_due = membership, reader.now + RARE_PACE
                    self._events_missing = None
            limits = read_limits(self._levels) if self._levels else None
        except (FileNotFoundError, ProcessLookupError):
            if exists(f"/proc/{reader.pid}"):
                raise
            reader.fail_gone()
            return
        reader.process_seen = True
        if limits is None:
            reader.fail(Unavailable(Reason.NOT_SUPPORTED, "no cgroup of version 2 of the process is visible here"))
            return
        reader.memory_levels, reader.cpu_quota, quota_directory = limits
        leaf = self._levels[0][0]
        if (leaf, quota_directory) != self._counted:
            self._reset(leaf, quota_directory)
        kills = self._events_missing or self._read_kills()
        if isinstance(kills, Unavailable):
            reader.put("proc.memory.oomKills", kills)
        else:
            self._kills.feed({"": kills})
            reader.put_counter(self._kills, "proc.memory.oomKills")
        try:
            reader.put("proc.cpu.throttledPercent", _NO_QUOTA if reader.cpu_quota is None else self._throttled_percent())
        except (OSError, ValueError) as error:
            reader.put("proc.cpu.throttledPercent", reason_of(error, self._stat.path))

    def _reset(self, leaf: str, quota_directory: str) -> None:
        """Start new counters: at first, and when the process or its tightest quota moves to another cgroup."""
        self._counted = leaf, quota_directory
        self._stat = self._files.keep(f"{quota_directory}/cpu.stat")
        self._events = self._files.keep(f"{leaf}/memory.events")
        self._periods, self._throttled, self._kills = Counter(), Counter(), Counter()

    def _read_kills(self) -> int | Unavailable:
        try:
            stat = parse_flat(self._events.read())
        except OSError as error:
            why = reason_of(error, self._events.path)
            # A level without the file is not tried again before the next look at the mounts.
            self._events_missing = why if error.errno == errno.ENOENT else None
            return why
        return stat.get(b"oom_kill", Unavailable(Reason.NOT_SUPPORTED, "the kernel's memory.events has no oom_kill"))

    def _throttled_percent(self) -> float | Unavailable:
        stat = parse_flat(self._stat.read())
        if not stat.keys() >= {b"nr_periods", b"nr_throttled"}:
            raise ValueError("nr_periods or nr_throttled is missing")
        self._periods.feed({"": stat[b"nr_periods"]})
        self._throttled.feed({"": stat[b"nr_throttled"]})
        periods, throttled = self._periods.gain, self._throttled.gain
        if periods is None or throttled is None:
            return FIRST if self._periods.seen == 1 else RESET
        # Periods last 100 ms by default. At ten readings a second an interval may have none.
        return min(100.0 * throttled / periods, 100.0) if periods else _NO_PERIOD
