"""Which processes hold a GPU open, by the links below ``/proc/PID/fd``, and whether that is all of them.

The kernel lets a user see the descriptors of his own processes alone: that a process is another's is told by one ``stat``, and
it is not looked into. Processes that turn up are looked through at once, the youngest (the highest numbers) first, for at most
so many seconds; the others again in turn, a few at a time: one that opens a GPU late in its life is found within some seconds.

The answer is complete when every process was looked into, and this ``/proc`` shows those of the whole machine: a container's
shows its own alone, and one that is mounted with ``hidepid`` the user's.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from accelmetrics.backends.kit.system import list_directory, sysroot

FIRST_PASS, LATER_PASS = 0.5, 0.05
"""Seconds for which processes not seen before are looked through: when the source opens, and in every pass after that."""
AGAIN = 1024
"""How many system calls a pass spends on those seen before: one for each process, and one for each of its descriptors."""
DESCRIPTORS = 1024
"""How many of one process's descriptors are looked at."""
NODES = "/dev/dri/"
WHOLE_MACHINE = "pid:[4026531836]"
"""The namespace in which every process has a number; the kernel's own constant (``PROC_PID_INIT_INO``)."""


class Look(NamedTuple):
    """What looking through one process came to.

    Attributes:
        nodes: Its descriptors of a GPU.
        whole: Whether all of its descriptors were seen.
        calls: What it cost.
    """

    nodes: tuple[str, ...] = ()
    whole: bool = True
    calls: int = 1


ENDED, CLOSED = Look(), Look(whole=False)


class Holders:
    """The processes that hold a GPU open.

    Args:
        clock: Seconds, for how long a pass takes.

    Attributes:
        complete: Whether there can be no other: every process was looked into, in the ``/proc`` of the whole machine.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.complete = False
        self._clock = clock
        self._looks: Mapping[int, Look] = {}
        self._turn: list[int] = []
        self._patience = FIRST_PASS

    def held(self) -> dict[int, tuple[str, ...]]:
        """By process, in order, its descriptors of a GPU."""
        return {pid: look.nodes for pid, look in sorted(self._looks.items()) if look.nodes}

    def look(self, progress: list[object]) -> None:
        """One pass: those that turned up, and some of the others."""
        present = {int(entry) for entry in list_directory("/proc") if entry.isdecimal() and len(entry) < 10}
        looks = {pid: look for pid, look in self._looks.items() if pid in present}
        self._turn = [pid for pid in self._turn if pid in looks] or sorted(looks)
        self._newcomers(sorted(present - looks.keys(), reverse=True), looks, progress)
        self._again(looks, progress)
        self._looks = looks
        self.complete = len(looks) == len(present) and all(look.whole for look in looks.values()) and _shows_all()

    def _newcomers(self, pids: list[int], looks: dict[int, Look], progress: list[object]) -> None:
        until, self._patience = self._clock() + self._patience, LATER_PASS
        for pid in pids:
            looks[pid] = look_through(pid)
            progress.append(pid)
            if self._clock() >= until:
                return

    def _again(self, looks: dict[int, Look], progress: list[object]) -> None:
        calls = 0
        while self._turn and calls < AGAIN:
            pid = self._turn.pop()
            looks[pid] = look_through(pid)
            progress.append(pid)
            calls += looks[pid].calls


def look_through(pid: int) -> Look:
    """Look for a GPU among the descriptors of one process, if this user may."""
    directory = f"{sysroot()}/proc/{pid}/fd"
    user = os.geteuid()
    try:
        # The directory is its user's, but root's where he may not look into it (a program with more rights than he has).
        if user and os.stat(directory).st_uid != user:  # noqa: PTH116  thousands of processes: a Path costs more than the call
            return CLOSED
        descriptors = sorted(os.listdir(directory))  # noqa: PTH208  names alone are wanted
        looked = descriptors[:DESCRIPTORS]
        nodes = tuple(name for name in looked if _target(f"{directory}/{name}").startswith(NODES))
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
