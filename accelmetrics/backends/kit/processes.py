"""Which of the processes on a device belong to the watched process and its descendants, across PID namespaces.

NVML numbers processes as its driver sees them, which need not be the numbering of the ``/proc`` that we read: a program
may watch from inside a container, or from the host into one. ``/proc/PID/status`` has both sides where the kernel shows
them: its ``NSpid`` line is a process's number in every namespace from that of the ``/proc`` mount inwards.

A process that is visible under the driver's number belongs to the family if climbing from parent to parent meets the watched
process: that costs a few small reads per process *on the device*, however many threads or children the family has. Only a
number that is not visible is looked for among the inner numbers of the family, which is then walked through
``task/*/children``; a number that a stranger has here is never taken for an inner number of ours. Answers are kept for a
second. Where there is no ``/proc``, psutil climbs. Processes that were found in that ``/proc`` itself (AMD's) are visible.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from accelmetrics.backends.kit.system import list_directory, read_text, system_path

PACE = 0.95
"""Seconds that an answer is kept; a little less than one, so that readings every second find it outdated."""
_PARENT = re.compile(r"^PPid:\s+(\d+)", re.MULTILINE)
_NUMBERS = re.compile(r"^NSpid:\s+([\d\t ]+)", re.MULTILINE)


class Status(NamedTuple):
    """What is needed of ``/proc/PID/status``: the parent, and the process's numbers from the mount's namespace inwards."""

    parent: int
    numbers: tuple[int, ...]


class ProcessTree:
    """A watched process and its descendants.

    One per consumer, asked from several lanes: what is shared is replaced in one step, and at worst found out twice.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._root: int | None = None
        self._known: dict[int, bool] = {}
        self._inner: frozenset[int] | None = None
        self._until = -math.inf

    def owns(self, pid: int, now: float) -> bool:
        """Whether the process that NVML calls ``pid`` is one of the family."""
        if now >= self._until:
            self._known, self._inner, self._until = {}, None, now + PACE
        known = self._known
        if pid not in known:
            known[pid] = self._decide(pid)
        return known[pid]

    def _decide(self, pid: int) -> bool:
        root = self._find_root()
        if root is None:
            return False
        if pid == root:
            return True
        if not _visible(pid):
            return pid in self._inner_numbers(root)
        return any(ancestor == root for ancestor in ancestors(pid))

    def _inner_numbers(self, root: int) -> frozenset[int]:
        inner = self._inner
        if inner is None:
            # Once, however many strangers are not visible: in a container that may be all of them.
            inner = self._inner = inner_numbers(root)
        return inner

    def _find_root(self) -> int | None:
        if self._root is None:
            self._root = number_here(self._pid)
        return self._root


def read_status(pid: int | str) -> Status | None:
    """A process's parent and numbers, None while there is no such process. Numbers are empty on kernels before 4.1."""
    text = read_text(f"/proc/{pid}/status")
    if text is None:
        return None
    parent, numbers = _PARENT.search(text), _NUMBERS.search(text)
    return Status(int(parent.group(1)) if parent else 0, tuple(map(int, numbers.group(1).split())) if numbers else ())


def ancestors(pid: int) -> Iterator[int]:
    """The parents of a process, the nearest first."""
    seen = {pid}
    while (parent := _parent_of(pid)) and parent not in seen:
        yield parent
        seen.add(parent)
        pid = parent


def _parent_of(pid: int) -> int:
    if _has_proc():
        status = read_status(pid)
        return status.parent if status else 0
    import psutil

    try:
        return psutil.Process(pid).ppid()
    except psutil.Error:
        return 0


def _visible(pid: int) -> bool:
    if _has_proc():
        return system_path(f"/proc/{pid}").exists()
    import psutil

    return psutil.pid_exists(pid)


def _has_proc() -> bool:
    return sys.platform == "linux"


def number_here(pid: int) -> int | None:
    """The number, in the ``/proc`` that we read, of a process that our own namespace calls ``pid``; None if it is not there.

    The two differ where that ``/proc`` is the host's, mounted into our container.
    """
    own = read_status("self") if _has_proc() else None
    if own is None or len(own.numbers) < 2:
        return pid
    if pid == own.numbers[-1]:
        return own.numbers[0]
    depth, namespace = len(own.numbers) - 1, _namespace_of("self")
    for entry in filter(str.isdecimal, list_directory("/proc")):
        status = read_status(entry)
        if status and len(status.numbers) > depth and status.numbers[depth] == pid and _within(namespace, entry, status, depth):
            return int(entry)
    return None


def _within(namespace: str, entry: str, status: Status, depth: int) -> bool:
    """Whether a process is in the given namespace, as far as the kernel lets us see; one nested deeper is not looked up."""
    theirs = _namespace_of(entry)
    return len(status.numbers) == depth + 1 and (not namespace or not theirs or theirs == namespace)


def _namespace_of(pid: str) -> str:
    try:
        return str(Path(system_path(f"/proc/{pid}/ns/pid")).readlink())
    except OSError:
        return ""


def inner_numbers(root: int) -> frozenset[int]:
    """Every number that a member of the family has in a namespace further in than the ``/proc`` that we read."""
    if not _has_proc():
        return frozenset()
    statuses = map(read_status, descendants(root))
    return frozenset(number for status in statuses if status for number in status.numbers[1:])


def descendants(root: int) -> list[int]:
    """A process and its descendants, by ``task/*/children``; by everybody's parents on kernels that lack that file."""
    if not system_path(f"/proc/{root}/task/{root}/children").exists():
        return [root, *_descendants_by_parents(root)]
    found = [root]
    for pid in found:
        found += [child for child in _children(pid) if child not in found]
    return found


def _children(pid: int) -> list[int]:
    tasks = f"/proc/{pid}/task"
    return [int(child) for task in list_directory(tasks) for child in (read_text(f"{tasks}/{task}/children") or "").split()]


def _descendants_by_parents(root: int) -> list[int]:
    pids = [int(entry) for entry in list_directory("/proc") if entry.isdecimal()]
    return [pid for pid in pids if pid != root and root in ancestors(pid)]
