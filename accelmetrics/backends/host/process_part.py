"""The watched process, with its descendants where they are asked for: CPU share, threads, resident memory.

``cpu`` is CPU time over the interval ÷ the CPUs that the process may use (the cgroup's quota, where it is below the CPUs of
its affinity). A process that has ended takes these keys with it, as ``not_in_use``: nothing is broken, there is just nothing
left to measure. A later process of the same number is told apart by its start and is not mistaken for it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Protocol

from accelmetrics.backends.host.numbers import FIRST, MIB, TOO_SOON, Pace
from accelmetrics.backends.host.part import Moment
from accelmetrics.backends.host.process import Process
from accelmetrics.backends.host.usage import FamilyUsage
from accelmetrics.backends.kit.system import reason_of
from accelmetrics.schemas.reasons import Reason, Unavailable

_PACE_SECONDS = 0.9
_KEYS = ("cpu", "proc.cpu.threads", "proc.memory.rssMB", "proc.memory.percent")
_NO_TOTAL = Unavailable(Reason.NOT_SUPPORTED, "the host's memory is unknown, and no cgroup limits it")
# User and system time may each be off by a clock tick of 10 ms at either end of the interval.
_NOISE = 40_000_000


class ProcessTree(Protocol):
    """Where processes are read from."""

    page: int

    def root(self) -> Process:
        """The watched process. Raises ``OSError`` (``ProcessLookupError`` once it has ended) and ``ValueError``."""
        ...

    def look(self, pid: int) -> Process | None:
        """Any process, None when it has ended."""
        ...

    def descendants(self, root: Process, progress: list[Any]) -> list[Process]:
        """Everything below the process; ``progress`` grows with each that is read."""
        ...

    def allowed(self) -> list[tuple[int, int]]:
        """First and last of each range of CPUs it may run on; empty where the system has no such thing."""
        ...


class ProcessPart:
    """CPU time, threads and memory of one process or family."""

    def __init__(self, family: ProcessTree, pid: int, children: bool) -> None:
        self._family = family
        self._pid = pid
        self._children = children
        self._start: int | None = None
        self._then = 0.0
        self._pace = Pace(_PACE_SECONDS)
        self._allowed: list[tuple[int, int]] = []
        self._usage = FamilyUsage(family.look)

    def read(self, moment: Moment) -> None:
        root = self._root()
        if isinstance(root, Unavailable):
            moment.miss(_KEYS, root)
            return
        elapsed = self._elapsed(moment.clock(), root)
        members = [root, *self._family.descendants(root, moment.progress)] if self._children else [root]
        possible = (elapsed or 0.0) * 1e9 * (len(moment.online) or os.cpu_count() or 1) + _NOISE * len(members)
        used, members = self._usage.advance(members, possible, self._children)
        if elapsed is None:
            moment.reasons["cpu"] = FIRST
        else:
            moment.put("cpu", self._share(moment, used, elapsed, possible))
        moment.values["proc.cpu.threads"] = sum(member.threads for member in members if not member.ended)
        self._memory(moment, sum(member.rss for member in members) * self._family.page)

    def _root(self) -> Process | Unavailable:
        """The watched process, or why it cannot be read."""
        try:
            root = self._family.root()
        except (FileNotFoundError, ProcessLookupError):
            return self._gone()
        except (OSError, ValueError) as error:
            return reason_of(error, f"process {self._pid}")
        return self._gone() if root.ended or self._start not in (None, root.start) else root

    def _gone(self) -> Unavailable:
        words = f"there is no process {self._pid}" if self._start is None else f"process {self._pid} has ended"
        return Unavailable(Reason.NOT_IN_USE, words)

    def _elapsed(self, now: float, root: Process) -> float | None:
        """Seconds since the last reading, None at the first."""
        elapsed = None if self._start is None else now - self._then
        self._start, self._then = root.start, now
        return elapsed

    def _share(self, moment: Moment, used: int, elapsed: float, possible: float) -> float | Unavailable:
        """CPU time in percent of what the process could have used."""
        capacity = self._capacity(moment)
        if elapsed <= 0:
            return TOO_SOON
        if used > possible:
            return Unavailable(Reason.INVALID_VALUE, f"{used / 1e9:.3f} s of CPU time in {elapsed:.3f} s")
        # The two clocks are read one after the other, and a quota may be used twice at the border of two periods.
        return min(100.0 * used / 1e9 / elapsed / capacity, 100.0)

    def _capacity(self, moment: Moment) -> float:
        """The CPUs that the process may use."""
        if self._pace.due(moment.now):
            self._read_allowed()
        online: Sequence[int] = moment.online or range(os.cpu_count() or 1)
        allowed = sum(any(first <= cpu <= last for first, last in self._allowed) for cpu in online)
        cpus = float(allowed or len(online))
        return min(cpus, moment.cpu_quota) if moment.cpu_quota else cpus

    def _read_allowed(self) -> None:
        try:
            self._allowed = self._family.allowed()
        except (OSError, ValueError):
            # Without the list nothing is known to hold the process to fewer CPUs than the host has.
            self._allowed = []

    def _memory(self, moment: Moment, rss: int) -> None:
        moment.values["proc.memory.rssMB"] = rss / MIB
        total = moment.memory_limit or moment.memory_total
        moment.put("proc.memory.percent", _NO_TOTAL if total is None else 100.0 * rss / total)
