"""The processes of a job: which they are, and to which of them a process that the driver lists belongs.

Processes go by their numbers in the ``/proc`` that we read. The driver's numbers are the same where both are the host's; a
number that nobody has there is looked for among the inner numbers of the job's processes (``NSpid``), for a driver that
counts as the container does. What is found in neither way is a process that we cannot see, and nothing is said of it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from accelmetrics.backends.kit.processes import ancestors, descendants, number_here, read_status
from accelmetrics.backends.kit.sysroot import read_text, system_path
from accelmetrics.sampling.environ import Environment, environment_at, environment_of
from accelmetrics.visibility.ranks import Position, position

NOWHERE = Position("", None, None)
_LONGEST_NAME = 48


class Member(NamedTuple):
    """One process of the job.

    Attributes:
        pid: As it was named, else its number in ``/proc``.
        number: Its number in ``/proc``; None when it is not there.
        inner: Its numbers in the namespaces further in.
        above: Its parents and theirs.
        environment: What it was started with.
    """

    pid: int
    number: int | None
    inner: frozenset[int]
    above: tuple[int, ...]
    environment: Environment

    @property
    def position(self) -> Position:
        """Its place in the job."""
        return NOWHERE if self.environment.values is None else position(self.environment.values)


def named(pid: int) -> Member:
    """A process that the user names, by its number in our own namespace."""
    number = number_here(pid)
    return _member(pid, number, environment_of(pid))


def listed(number: int) -> Member:
    """A process that the driver lists, if it is one that we see."""
    if not _visible(number):
        return Member(number, None, frozenset(), (), Environment(None, f"process {number} is not visible from here"))
    return _member(number, number, _environment(number))


def _environment(number: int) -> Environment:
    if not _has_proc():
        return environment_of(number)
    # Ours is known as it is now, which /proc does not show.
    return environment_of(os.getpid()) if number == number_here(os.getpid()) else environment_at(number, number)


def below(parents: Sequence[Member], using: Collection[int]) -> list[Member]:
    """The workers at and below launchers: who uses a device, and of each rank without one the process nearest the launcher.

    Loaders and other helpers have their rank's environment too, and a shell that waits for a rank has it before the rank does.
    """
    numbers = dict.fromkeys(number for parent in parents if parent.number is not None for number in descendants(parent.number))
    family = [listed(number) for number in numbers]
    workers = [member for member in family if uses(member, using)]
    taken = {member.position for member in workers}
    for member in family:
        if member.position.known and member.position not in taken and not _launches(member, family) and not _helps(member, workers):
            workers.append(member)
    return workers


def _launches(member: Member, family: Sequence[Member]) -> bool:
    """Whether processes below it have another place in the job: Slurm gives torchrun a rank too, and it is none."""
    return any(member.number in other.above and other.position.known and other.position != member.position for other in family)


def _helps(member: Member, workers: Sequence[Member]) -> bool:
    """Whether a process above it is the rank that it speaks of."""
    return any(worker.number in member.above and worker.position == member.position for worker in workers)


def uses(member: Member, using: Collection[int]) -> bool:
    """Whether the driver lists the process itself."""
    return member.number in using or any(pid in using and not _visible(pid) for pid in member.inner)


def owner(members: Iterable[Member], pid: int) -> Member | None:
    """Whose a process is that the driver lists: that member's itself, else the nearest above it."""
    known = list(members)
    if not _visible(pid):
        inside = [member for member in known if pid in member.inner]
        return inside[0] if len(inside) == 1 else None
    by_number = {member.number: member for member in known}
    if pid in by_number:
        return by_number[pid]
    return next((by_number[parent] for parent in ancestors(pid) if parent in by_number), None)


def name_of(member: Member) -> str:
    """What a process calls itself: the title that a framework gave it, else its program's name."""
    if member.number is None:
        return ""
    words = (read_text(f"/proc/{member.number}/cmdline") or "").split("\0")
    title = words[0] if words[0].startswith("ray::") else " ".join(Path(word).name for word in words[:2] if word)
    return title[:_LONGEST_NAME]


def in_other_container(member: Member) -> bool:
    """Whether a process has a file system of its own, and with it perhaps devices numbered otherwise."""
    if member.number is None:
        return False
    ours, theirs = (_namespace(who) for who in ("self", str(member.number)))
    return bool(ours and theirs and ours != theirs)


def _namespace(who: str) -> str:
    try:
        return str(Path(system_path(f"/proc/{who}/ns/mnt")).readlink())
    except OSError:
        return ""


def _member(pid: int, number: int | None, environment: Environment) -> Member:
    status = read_status(number) if number is not None and _has_proc() else None
    above = tuple(ancestors(number)) if number is not None else ()
    return Member(pid, number, frozenset(status.numbers[1:]) if status else frozenset(), above, environment)


def _visible(pid: int) -> bool:
    if _has_proc():
        return system_path(f"/proc/{pid}").exists()
    import psutil

    return psutil.pid_exists(pid)


def _has_proc() -> bool:
    return sys.platform == "linux"
