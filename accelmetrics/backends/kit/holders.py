"""Which processes hold device nodes open, by the links below ``/proc/PID/fd``, and whether that is all of them.

The kernel shows a user the descriptors of the user's own processes alone: that a process is another's is known from one ``stat``,
and it is not looked into. Processes that turn up are looked through at once, the youngest (the highest numbers) first, for at most
so many seconds; the others again in turn, a few at a time: one that opens a device late in its life is found within some seconds.

The answer is complete when every process was looked into, and this ``/proc`` shows those of the whole machine: a container's
shows its own alone, and one that is mounted with ``hidepid`` the user's.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from accelmetrics.backends.kit.system import list_directory, sysroot

FIRST_PASS, LATER_PASS = 0.5, 0.05
"""Seconds for which processes not seen before are looked through: in the first pass, and in every pass after that."""
AGAIN = 1024
"""How many system calls a pass spends on those seen before: one for each process, and one for each of its descriptors."""
DESCRIPTORS = 1024
"""How many of one process's descriptors are looked at."""
WHOLE_MACHINE = "pid:[4026531836]"
"""The namespace in which every process has a number; the kernel's own constant (``PROC_PID_INIT_INO``)."""


class Look(NamedTuple):
    """What looking through one process came to.

    Attributes:
        nodes: By descriptor, the device node.
        whole: Whether all of its descriptors were seen.
        calls: What it cost.
    """

    nodes: Mapping[str, str]
    whole: bool = True
    calls: int = 1


ENDED, CLOSED = Look({}), Look({}, whole=False)


class NodeHolders:
    """The processes that hold device nodes open. Not for several threads at once.

    Args:
        wanted: Whether what a descriptor leads to is one of the device nodes.
        clock: Seconds, for how long a pass takes.

    Attributes:
        complete: Whether there can be no other: every process was looked into, in the ``/proc`` of the whole machine.
    """

    def __init__(self, wanted: Callable[[str], bool], clock: Callable[[], float] = time.perf_counter) -> None:
        self.complete = False
        self._wanted = wanted
        self._clock = clock
        self._looks: Mapping[int, Look] = {}
        self._turn: list[int] = []
        self._patience = FIRST_PASS

    def held(self) -> dict[int, Mapping[str, str]]:
        """By process, in order, its descriptors of device nodes and the nodes."""
        return {pid: look.nodes for pid, look in sorted(self._looks.items()) if look.nodes}

    def of(self, node: str) -> tuple[int, ...]:
        """The processes that hold one device node, in order."""
        return tuple(pid for pid, nodes in self.held().items() if node in nodes.values())

    def look(self, progress: list[Any]) -> None:
        """Take one pass: through the processes that turned up, and some of the others."""
        present = {int(entry) for entry in list_directory("/proc") if entry.isdecimal() and len(entry) < 10}
        looks = {pid: look for pid, look in self._looks.items() if pid in present}
        self._turn = [pid for pid in self._turn if pid in looks] or sorted(looks)
        self._newcomers(sorted(present - looks.keys(), reverse=True), looks, progress)
        self._again(looks, progress)
        self._looks = looks
        self.complete = len(looks) == len(present) and all(look.whole for look in looks.values()) and _shows_all()

    def _newcomers(self, pids: list[int], looks: dict[int, Look], progress: list[Any]) -> None:
        until, self._patience = self._clock() + self._patience, LATER_PASS
        for pid in pids:
            looks[pid] = self._look_through(pid)
            progress.append(pid)
            if self._clock() >= until:
                return

    def _again(self, looks: dict[int, Look], progress: list[Any]) -> None:
        calls = 0
        while self._turn and calls < AGAIN:
            pid = self._turn.pop()
            looks[pid] = self._look_through(pid)
            progress.append(pid)
            calls += looks[pid].calls

    def _look_through(self, pid: int) -> Look:
        """Look for the device nodes among the descriptors of one process, if this user may."""
        directory = f"{sysroot()}/proc/{pid}/fd"
        user = os.geteuid()
        try:
            # The directory is its user's, but root's where the user may not look into it (a program with more rights than the user).
            if user and os.stat(directory).st_uid != user:  # noqa: PTH116  thousands of processes: a Path costs more than the call
                return CLOSED
            descriptors = sorted(os.listdir(directory))  # noqa: PTH208  names alone are wanted
            looked = descriptors[:DESCRIPTORS]
            nodes = {name: target for name in looked if self._wanted(target := _target(f"{directory}/{name}"))}
        except PermissionError:
            return CLOSED
        except OSError:
            return ENDED
        return Look(nodes, len(looked) == len(descriptors), 1 + len(looked))


def _target(link: str) -> str:
    try:
        return os.readlink(link)  # noqa: PTH115  the link's text is wanted
    except FileNotFoundError:  # closed since
        return ""


def _shows_all() -> bool:
    try:
        return _target(f"{sysroot()}/proc/1/ns/pid") == WHOLE_MACHINE
    except OSError:
        return False
