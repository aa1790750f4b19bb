"""A process and its descendants, at a cost that follows their number and not the host's.

The kernel lists the children of every thread in ``/proc/<pid>/task/<tid>/children`` where it was built with
``CONFIG_PROC_CHILDREN``, as distributions do. Elsewhere the parents of all processes are read in one pass.

CPU time in ``/proc`` is cut to clock ticks of 10 ms, a tenth of an interval at ten readings a second; the process's CPU clock
has nanoseconds. It is asked by number, so only where ``/proc`` numbers processes as we do.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from accelmetrics.backends.host.process import Process, parse_allowed, parse_process
from accelmetrics.backends.kit.system import Files, list_directory, read_once, system_path


def cpu_clock(pid: int) -> int | None:
    """CPU time of a process in nanoseconds; None where the kernel does not say."""
    try:
        # The kernel's number for "CPU time of the process with this number", as clock_getcpuclockid(3) makes it.
        return time.clock_gettime_ns((~pid << 3) | 2)
    except (OSError, OverflowError):
        return None


def no_clock(pid: int) -> int | None:
    """In the place of ``cpu_clock`` where its numbers are not those of ``/proc``."""
    return None


def usable_clock() -> Callable[[int], int | None]:
    """The CPU clock, if ``/proc`` is of our own PID namespace."""
    try:
        own = os.readlink(system_path("/proc/self")) == str(os.getpid())  # noqa: PTH115  the link's text is wanted
    except OSError:
        return no_clock
    return cpu_clock if own else no_clock


class LinuxFamily:
    """The watched process, and how its descendants are found.

    Attributes:
        page: Bytes that ``Process.rss`` counts in.
    """

    def __init__(self, files: Files, pid: int, clock: Callable[[int], int | None]) -> None:
        self._file = files.keep(f"/proc/{pid}/stat")
        self._pid = pid
        self._clock = clock
        self._tick = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
        self.page = os.sysconf("SC_PAGE_SIZE")

    def root(self) -> Process:
        """The watched process.

        Raises:
            OSError: It has ended, or may not be read.
            ValueError: Its entry makes no sense.
        """
        return parse_process(self._file.read(), self._tick, self._clock(self._pid))

    def look(self, pid: int) -> Process | None:
        """A process that may end at any moment; None once it has, or when its entry makes no sense."""
        try:
            process = parse_process(read_once(f"/proc/{pid}/stat"), self._tick, self._clock(pid))
        except (OSError, ValueError):
            return None
        return process if process.pid == pid else None

    def allowed(self) -> list[tuple[int, int]]:
        """First and last of each range of CPUs that the process may run on. Raises as ``root`` does."""
        return parse_allowed(read_once(f"/proc/{self._pid}/status"))

    def descendants(self, root: Process, progress: list[Any]) -> list[Process]:
        """Everything below the process. What has ended but is not waited for is still listed.

        Args:
            root: The process.
            progress: Grows with each process that is read.
        """
        has_lists = _thread_children(root.pid, root.pid) is not None
        children = _children_by_thread if has_lists else self._children_by_pass(progress)
        seen = {root.pid}
        found: list[Process] = []
        waiting = [root]
        while waiting:
            for child in children(waiting.pop()):
                progress.append(None)
                process = None if child in seen else self.look(child)
                seen.add(child)
                if process is not None:
                    found.append(process)
                    waiting.append(process)
        return found

    def _children_by_pass(self, progress: list[Any]) -> Callable[[Process], list[int]]:
        by_parent: dict[int, list[int]] = {}
        for name in list_directory("/proc"):
            progress.append(None)
            process = self.look(int(name)) if _is_number(name) else None
            if process is not None:
                by_parent.setdefault(process.parent, []).append(process.pid)
        return lambda process: by_parent.get(process.pid, [])


def _is_number(name: str | bytes) -> bool:
    return name.isdigit() and len(name) < 10


def _children_by_thread(process: Process) -> list[int]:
    if process.threads == 1:
        return _thread_children(process.pid, process.pid) or []
    found: list[int] = []
    for thread in list_directory(f"/proc/{process.pid}/task"):
        if _is_number(thread):
            found += _thread_children(process.pid, int(thread)) or []
    return found


def _thread_children(pid: int, thread: int) -> list[int] | None:
    """Numbers of the processes that one thread started; None when the kernel has no such list, or the thread ended."""
    try:
        words = read_once(f"/proc/{pid}/task/{thread}/children").split()
    except OSError:
        return None
    return [int(word) for word in words if _is_number(word)]
