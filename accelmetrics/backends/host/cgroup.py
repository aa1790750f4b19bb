"""Where a process's cgroup lies and what limits it there. Version 2 alone: the controllers of version 1 are not read.

The path comes from the line ``0::`` of ``/proc/<pid>/cgroup``, the mount from our own mount table, since it is through our
own mounts that the files are opened. In a container the mount shows a part of the tree only (a bind mount, or a namespace):
its root is stripped from the path. Limits hold for whole subtrees, so every level from the leaf up to the mount counts and
the tightest one binds. What lies above a container's own mount cannot be seen from within.
"""

from __future__ import annotations

import os
import posixpath
import re
from typing import NamedTuple

from accelmetrics.backends.host.numbers import count
from accelmetrics.backends.kit.system import read_once, sysroot, system_path

_ESCAPE = re.compile(r"\\([0-7]{3})")
_USUAL_MOUNT = "/sys/fs/cgroup"


class Mount(NamedTuple):
    """One mount of the version 2 hierarchy: the part of it that is mounted, and where."""

    root: str
    point: str


class Limits(NamedTuple):
    """What limits a process.

    Attributes:
        leaf: The directory of its own cgroup.
        memory: Directory and limit in bytes of each level that has one.
        quota: The tightest CPU quota, in CPUs; None without one.
        quota_directory: The level that sets it, empty without one.
    """

    leaf: str
    memory: tuple[tuple[str, int], ...] = ()
    quota: float | None = None
    quota_directory: str = ""


def parse_path(data: bytes) -> str | None:
    """The version 2 path in ``/proc/<pid>/cgroup``; None on a host with version 1 alone."""
    for line in os.fsdecode(data).split("\n"):
        if line.startswith("0::/"):
            return line[3:].removesuffix(" (deleted)")
    return None


def parse_mounts(data: bytes) -> list[Mount]:
    """The version 2 mounts in a ``mountinfo`` file, in its order."""
    found = []
    for line in os.fsdecode(data).split("\n"):
        head, _, tail = line.partition(" - ")
        fields = head.split(" ")
        if tail.startswith("cgroup2 ") and len(fields) >= 6:
            found.append(Mount(_unescape(fields[3]), _unescape(fields[4])))
    return found


def _unescape(path: str) -> str:
    """Undo the kernel's octal escapes of spaces, tabs and backslashes."""
    return _ESCAPE.sub(lambda match: chr(int(match.group(1), 8)), path)


def directory_of(mount: Mount, path: str) -> str | None:
    """Where a cgroup lies below a mount; None when the mount does not show it."""
    if ".." in (path + mount.root).split("/"):
        # The process sits outside of our cgroup namespace.
        return None
    root = mount.root.rstrip("/")
    if path == root or path.startswith(f"{root}/"):
        path = path[len(root) :]
    return posixpath.join(mount.point, path.strip("/")).rstrip("/") or None


def levels_of(mount: Mount, directory: str) -> list[str]:
    """The directories from a cgroup up to its mount, the leaf first."""
    point = mount.point.rstrip("/")
    levels = [directory]
    while levels[-1] != point and len(levels[-1]) > len(point):
        levels.append(posixpath.dirname(levels[-1]))
    return levels


def parse_quota(data: bytes) -> float | None:
    """``cpu.max`` in CPUs; None for ``max``.

    Raises:
        ValueError: It is neither.
    """
    quota, _, period = data.strip().partition(b" ")
    if quota == b"max":
        return None
    length = count(period)
    if not length:
        raise ValueError("a period of 0")
    return count(quota) / length


def parse_limit(data: bytes) -> int | None:
    """``memory.max`` in bytes; None for ``max`` and for 0, under which nothing could run.

    Raises:
        ValueError: It is neither a number nor ``max``.
    """
    word = data.strip()
    return None if word == b"max" else count(word) or None


def parse_flat(data: bytes) -> dict[bytes, int]:
    """A file of ``key value`` lines, such as ``cpu.stat``. Lines of another form are left out."""
    found = {}
    for line in data.split(b"\n"):
        key, _, value = line.partition(b" ")
        if value.isdigit() and len(value) <= 20:
            found[key] = int(value)
    return found


def find_limits(pid: int) -> Limits | None:
    """What limits a process, None when it is in no version 2 cgroup that can be seen.

    Raises:
        OSError: The process has ended, or its files may not be read.
        ValueError: A limit is not a number.
    """
    path = parse_path(read_once(f"/proc/{pid}/cgroup"))
    if path is None:
        return None
    for mount in _mounts(pid):
        directory = directory_of(mount, path)
        if directory is not None and system_path(directory).is_dir():
            return _read_limits(directory, levels_of(mount, directory))
    return None


def _mounts(pid: int) -> list[Mount]:
    """Our own mounts; below another root (a host seen from a container) those of that root's first process."""
    for owner in (1, pid, "self") if sysroot() else (os.getpid(),):
        try:
            return parse_mounts(read_once(f"/proc/{owner}/mountinfo"))
        except OSError:
            continue
    return [Mount("/", _USUAL_MOUNT)]


def _read_limits(leaf: str, levels: list[str]) -> Limits:
    memory = []
    quotas = []
    for level in levels:
        limit = _optional(f"{level}/memory.max")
        quota = _optional(f"{level}/cpu.max")
        bytes_ = None if limit is None else parse_limit(limit)
        cpus = None if quota is None else parse_quota(quota)
        if bytes_ is not None:
            memory.append((level, bytes_))
        if cpus is not None:
            quotas.append((cpus, level))
    quota_cpus, directory = min(quotas, default=(None, ""))
    return Limits(leaf, tuple(memory), quota_cpus, directory)


def _optional(path: str) -> bytes | None:
    """A file that a level may lack: the root, and a level whose controller is off."""
    try:
        return read_once(path)
    except FileNotFoundError:
        return None
