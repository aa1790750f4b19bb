"""Processes: which one a driver's number means, the tree of a watched one, their environment, and those that hold device nodes open.

NVML numbers processes as its driver sees them, which need not be the numbering of the ``/proc`` that we read: a program
may watch from inside a container, or from the host into one. ``/proc/PID/status`` has both sides where the kernel shows
them: its ``NSpid`` line is a process's number in every namespace from that of the ``/proc`` mount inwards.

A process that is visible under the driver's number belongs to the tree if climbing from parent to parent meets the watched
process: that costs a few small reads per process *on the device*, however many threads or children it has. Only a
number that is not visible is looked for among the inner numbers of the tree, which is then walked through
``task/*/children``; a number that another process has here is never taken for an inner number of the tree. Answers are kept for a
second; those about processes outside the tree for ten, while a device lists the same ones. Where there is no ``/proc``, psutil climbs.
Processes that were found in that ``/proc`` itself (AMD's) are visible.

All of that holds while this program is in the machine's own PID namespace. In any other one (a container), a driver's number may be that of
a process outside, and another process may have it here: `DriverNumbers` says which process it is, if that is certain.
"""

from __future__ import annotations

import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

from accelmetrics.backends.built_in import BUILT_IN
from accelmetrics.backends.contract import Number, Processes
from accelmetrics.backends.kit.system import exists, list_directory, read_text, sysroot
from accelmetrics.schemas.errors import Reason, Unavailable
from accelmetrics.schemas.identity import DeviceIdentity, DeviceProcess

PACE = 0.95
"""Seconds that an answer is kept; a little less than one, so that readings every second find it outdated."""
BOARD = ("temp", "powerWatts", "enforcedPowerLimitWatts", "powerPercent")
"""What ``{kind}.process.{i}`` repeats of the device."""
_PARENT = re.compile(r"^PPid:\s+(\d+)", re.MULTILINE)
_LINKS_OF_ONE_THREAD = 3
"""Hard links of ``/proc/PID/task`` with one thread in it: its own two, and one for each thread."""
_LONGEST_NUMBER = 10
_NUMBERS = re.compile(r"^NSpid:\s+([\d\t ]+)", re.MULTILINE)

FIRST_PASS, LATER_PASS = 0.5, 0.05
"""Seconds for which processes not seen before are looked through: in the first pass, and in every pass after that."""
AGAIN = 1024
"""How many system calls a pass spends on those seen before: one for each process, and one for each of its descriptors."""
DESCRIPTORS = 1024
"""How many of one process's descriptors are looked at."""
UNSEEN = Unavailable(
    Reason.NO_PERMISSION, "not every process could be looked into (another user's, or outside this container), and one of those may use it"
)
WHOLE_MACHINE = "pid:[4026531836]"
"""The namespace in which every process has a number; the kernel's own constant (``PROC_PID_INIT_INO``)."""
_KERNEL_THREAD, _FLAGS = 0x00200000, 6
"""``PF_KTHREAD``, and the place of a task's flags behind its name in ``/proc/PID/stat``."""
NODES: Mapping[str, str] = {
    "nvidia": r"/dev/nvidia\d+",
    "amd": r"/dev/(kfd|dri/(card|renderD)\d+)",
    "intel": r"/dev/(dri/(card|renderD)|accel/accel)\d+",
    "tpu": r"/dev/(accel|vfio/)\d+",
    "neuron": r"/dev/neuron\d+",
}
"""By backend, the device nodes that its processes hold open; those of others stand in their registrations."""
FOUND_HERE = frozenset({"amd", "tpu", *(row.name for row in BUILT_IN.values() if row.found_here)})
"""Backends that look for processes in ``/proc`` themselves, so that a number there that is gone is that of a process that has ended."""


class ProcessTree:
    """A watched process and its descendants.

    One per consumer, asked from several workers: what is shared is replaced in one step, and at worst found out twice.

    Attributes:
        root: The watched process's number in the ``/proc`` that we read; None until it is found there.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.root: int | None = None
        self._known: dict[int | tuple[int, str], bool] = {}
        self._inner: frozenset[int] | None = None
        self._until = -math.inf

    @cached_property
    def shared(self) -> bool:
        """Whether the driver's numbers are those of the ``/proc`` that we read: a process never changes its own PID namespace."""
        return DriverNumbers(()).shared

    def owns(self, pid: int, now: float, numbers: DriverNumbers | None = None, nodes: str = "") -> bool:
        """Return whether the process that a driver calls ``pid`` belongs to the tree.

        Args:
            pid: The number.
            now: When, in seconds on any clock.
            numbers: What tells which process that is; None for a number that was found in the ``/proc`` that we read.
            nodes: A pattern of the nodes of the device that lists it.
        """
        if now >= self._until:
            self._known, self._inner, self._until = {}, None, now + PACE
        known, asked = self._known, pid if numbers is None else (pid, nodes)
        if asked not in known:
            known[asked] = self._decide(pid, numbers, nodes)
        return known[asked]

    def _decide(self, pid: int, numbers: DriverNumbers | None, nodes: str) -> bool:
        root = self.root = number_here(self._pid) if self.root is None else self.root
        if root is None:
            return False
        if numbers is not None and not self.shared:
            found = numbers.find(pid, nodes)
            return isinstance(found, int) and (found == root or any(ancestor == root for ancestor in ancestors(found)))
        if pid == root:
            return True
        if not is_visible(pid):
            if self._inner is None:
                # Once, however many other processes are not visible: in a container that may be all of them.
                self._inner = inner_numbers(root)
            return pid in self._inner
        return any(ancestor == root for ancestor in ancestors(pid))


class DriverNumbers:
    """Tells which process of the ``/proc`` that we read a driver means by a number. For one look at the driver's lists.

    Drivers number processes as the whole machine does. NVIDIA's newer ones number them as the PID namespace of the program that asks does,
    and list no process of another one. Which of the two a driver does cannot be asked. So:

    - A program in the machine's own namespace gets the machine's numbers either way.
    - In another namespace, a number is that of the process here only if this process holds the device open, and if all that the driver
      lists are here.
    - Where the machine's ``/proc`` is mounted into another namespace, a number is the machine's unless a process of our own namespace
      has it too. Then it is that of the two that holds the device.

    Args:
        listed: All numbers that the driver lists.
        backend: The backend that they are from.
    """

    def __init__(self, listed: Iterable[int], backend: str = "") -> None:
        self._listed = () if backend in FOUND_HERE else listed

    @cached_property
    def shared(self) -> bool:
        """Whether this program is in the machine's own PID namespace, so that the driver's numbers are those of this ``/proc``."""
        if not _has_proc():
            return True
        own = namespace_of("self")
        # Kernels before 3.8, and those built without PID namespaces, have no such links.
        return own == WHOLE_MACHINE or (not own and not exists("/proc/1/ns"))

    def find(self, pid: int, nodes: str) -> int | str:
        """Return the process's number in the ``/proc`` that we read; why that is not known, in words, where it is not certain.

        Args:
            pid: The driver's number.
            nodes: A pattern of the nodes of the device that lists it; empty where that is not known.
        """
        if self.shared:
            return pid if is_visible(pid) else f"process {pid} has ended{'' if is_visible(1) else f', or {_HIDDEN}'}"
        own, whole = self._own.get(pid), self._whole and pid in self._present
        if whole and own in {None, pid}:
            return pid
        if own is None:
            gone = "has ended" if self._whole else "is not in this PID namespace, or has ended"
            return f"process {pid} {gone}{'' if 1 in self._present else f', or {_HIDDEN}'}"
        held = holds(own, nodes) if nodes else None
        if whole:
            there = holds(pid, nodes) if nodes else None
            if held is None or there is None or held == there:
                return f"process {pid} may be one of this PID namespace or one outside: both have this number"
            return own if held else pid
        if held and self._own.keys() >= set(self._listed):
            return own
        if held is False:
            return f"process {pid} is not in this PID namespace: the process that has this number here does not use the device"
        why = "the driver lists others that are not" if held else "the one that has this number here may not be looked into"
        return f"whether process {pid} is in this PID namespace cannot be told: {why}"

    @cached_property
    def _present(self) -> frozenset[int]:
        """The processes of the ``/proc`` that we read. It does not list threads, though they can be opened by their numbers."""
        return frozenset(map(int, filter(str.isdecimal, list_directory("/proc"))))

    @cached_property
    def _own(self) -> Mapping[int, int]:
        """By their numbers in our own namespace, the processes in it."""
        own = read_status("self")
        return {pid: pid for pid in self._present} if own is None or len(own[1]) < 2 else dict(numbers_in_own(own[1]))

    @cached_property
    def _whole(self) -> bool:
        """Whether this ``/proc`` shows the whole machine: there are threads of the kernel. The namespace of process 1 is root's to read."""
        if namespace_of(1) == WHOLE_MACHINE:
            return True
        words = (read_text("/proc/2/stat") or "").rpartition(")")[2].split()
        return len(words) > _FLAGS and words[_FLAGS].isdecimal() and bool(int(words[_FLAGS]) & _KERNEL_THREAD)


_HIDDEN = "is another user's: this /proc hides those (hidepid)"


def holds(number: int, nodes: str) -> bool | None:
    """Return whether a process of the ``/proc`` that we read holds a device node open; None where it may not be looked into.

    Args:
        number: The process.
        nodes: A pattern of the nodes.
    """
    directory = f"{sysroot()}/proc/{number}/fd"
    try:
        return any(re.fullmatch(nodes, _target(f"{directory}/{name}")) for name in os.listdir(directory))  # noqa: PTH208
    except PermissionError:
        return None
    except OSError:  # it has ended
        return False


def node_pattern(device: DeviceIdentity) -> str:
    """Return a regular expression of the nodes that a process on a device holds open; empty where that is not known."""
    if device.backend == "nvidia" and device.minor_number is not None and not device.parent:
        return NODES["nvidia"].replace(r"\d+", str(device.minor_number))
    if device.backend in NODES:
        return NODES[device.backend]
    registered = BUILT_IN.get(device.backend)
    nodes = () if registered is None else (registered.held,) if registered.held else registered.nodes
    return "|".join(re.escape(node).replace(r"\*", r"\d+(-\d+)?") for node in nodes)


def read_status(pid: int | str) -> tuple[int, tuple[int, ...]] | None:
    """Read a process's parent and its numbers from the mount's namespace inwards, None while there is no such process.

    Numbers are empty on kernels before 4.1.
    """
    text = read_text(f"/proc/{pid}/status")
    if text is None:
        return None
    parent, numbers = _PARENT.search(text), _NUMBERS.search(text)
    return int(parent.group(1)) if parent else 0, tuple(map(int, numbers.group(1).split())) if numbers else ()


def ancestors(pid: int) -> Iterator[int]:
    """List the parents of a process, the nearest first."""
    seen = {pid}
    while (parent := _parent_of(pid)) and parent not in seen:
        yield parent
        seen.add(parent)
        pid = parent


def _parent_of(pid: int) -> int:
    if _has_proc():
        status = read_status(pid)
        return status[0] if status else 0
    import psutil

    try:
        return psutil.Process(pid).ppid()
    except psutil.Error:
        return 0


def is_visible(pid: int) -> bool:
    """Return whether a process has this number in the ``/proc`` that we read."""
    if _has_proc():
        return os.path.exists(f"{sysroot()}/proc/{pid}")  # noqa: PTH110  asked of every process on a device: a Path costs more than the call
    import psutil

    return psutil.pid_exists(pid)


def _has_proc() -> bool:
    return sys.platform == "linux"


def number_here(pid: int) -> int | None:
    """Find the number, in the ``/proc`` that we read, of a process that our own namespace calls ``pid``; None if it is not there.

    The two differ where that ``/proc`` is the host's, mounted into our container.
    """
    own = read_status("self") if _has_proc() else None
    numbers = () if own is None else own[1]
    if len(numbers) < 2:
        return pid
    if pid == numbers[-1]:
        return numbers[0]
    return next((here for number, here in numbers_in_own(numbers) if number == pid), None)


def numbers_in_own(own: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Give the processes of our own namespace: the number of each in it, and the one in the ``/proc`` that we read.

    Args:
        own: The numbers of this process in that ``/proc``, which is that of a namespace around ours.
    """
    namespace = namespace_of("self")
    for entry in filter(str.isdecimal, list_directory("/proc")):
        status = read_status(entry)
        # One that is nested deeper has another number in between; the namespace of another user's process is not shown.
        if status is not None and len(status[1]) == len(own) and namespace_of(entry) in {namespace, ""}:
            yield status[1][-1], int(entry)


def namespace_of(pid: int | str, kind: str = "pid") -> str:
    """Return which namespace of a kind (``pid``, ``mnt``, ``cgroup``) a process is in; empty where that may not be read."""
    try:
        return os.readlink(f"{sysroot()}/proc/{pid}/ns/{kind}")  # noqa: PTH115
    except OSError:
        return ""


def inner_numbers(root: int) -> frozenset[int]:
    """Return every number that a process of the tree has in a namespace further in than the ``/proc`` that we read."""
    if not _has_proc():
        return frozenset()
    statuses = map(read_status, descendants(root))
    return frozenset(number for status in statuses if status for number in status[1][1:])


def descendants(root: int, progress: list[Any] | None = None) -> list[int]:
    """List a process and its descendants: those that have ended and were not waited for, too.

    The kernel lists the children of every thread where it was built with ``CONFIG_PROC_CHILDREN``, as distributions do: the cost
    follows the number of descendants and not the host's. Elsewhere the parents of all processes are read in one pass.

    Args:
        root: The process.
        progress: Grows with each process that is looked at.
    """
    progress = [] if progress is None else progress
    by_parent: dict[int, list[int]] | None = None
    if not exists(f"/proc/{root}/task/{root}/children"):
        by_parent = {}
        for entry in filter(str.isdecimal, list_directory("/proc")):
            status = read_status(entry)
            progress.append(entry)
            if status is not None:
                by_parent.setdefault(status[0], []).append(int(entry))
    found, seen = [root], {root}
    for pid in found:
        children = _children(pid) if by_parent is None else by_parent.get(pid, [])
        new = [child for child in dict.fromkeys(children) if child not in seen]
        found += new
        seen.update(new)
        progress.append(pid)
    return found


def _children(pid: int) -> list[int]:
    """List the processes that the threads of one process started; none where it has ended."""
    task = f"/proc/{pid}/task"
    try:
        single = os.stat(sysroot() + task).st_nlink == _LINKS_OF_ONE_THREAD  # noqa: PTH116  a sixth of what a listing costs
    except OSError:
        return []
    threads = [str(pid)] if single else list_directory(task)
    words = [word for thread in threads for word in (read_text(f"{task}/{thread}/children") or "").split()]
    return [int(word) for word in words if word.isdigit() and len(word) < _LONGEST_NUMBER]


def process_values(kind: str, members: Iterable[DeviceProcess], device: Mapping[str, Number | Unavailable]) -> dict[str, Number]:
    """Return what processes use of a device together, with the board's values beside it: the metrics of ``{kind}.process.{i}``.

    Args:
        kind: The kind of device.
        members: The watched process and its descendants on the device.
        device: The device's metrics.
    """
    every = list(members)
    used, busy, memory = (
        sum(known) if (known := [value for each in every if (value := getattr(each, part)) is not None]) else None
        for part in ("memory_bytes", "utilization", "memory_utilization")
    )
    total = device.get("memoryTotalBytes")
    # Shares are rounded one by one, so their sum may come out above the whole.
    found = {
        "gpu" if kind == "gpu" else "utilization": None if busy is None else min(busy, 100),
        "memory": None if memory is None else min(memory, 100),
        "memoryAllocatedBytes": used,
        "memoryAllocated": 100 * used / total if used is not None and isinstance(total, (int, float)) and 0 < used <= total else None,
        **{name: device.get(name) for name in BOARD},
    }
    return {name: value for name, value in found.items() if isinstance(value, (int, float))}


def no_process(pid: int) -> str:
    """Say that a process which the user named is not there, or not to be seen."""
    hidden = _has_proc() and exists("/proc/self") and not is_visible(1)
    return f"there is no process {pid}{f', or it {_HIDDEN}' if hidden else ''}"


Look = tuple[Mapping[str, str], bool, int]
"""What looking through one process came to: by descriptor, the device node; whether all descriptors were seen; system calls."""


class NodeHolders:
    """The processes that hold device nodes open, by the links below ``/proc/PID/fd``. Not for several threads at once.

    The kernel shows a user the descriptors of the user's own processes alone: that a process is another's is known from one ``stat``,
    and it is not looked into. Processes that turn up are looked through at once, the youngest (the highest numbers) first, for at most
    so many seconds; the others again in turn, a few at a time: one that opens a device late in its life is found within some seconds.

    The answer is complete when every process was looked into, and this ``/proc`` shows those of the whole machine: a container's
    shows its own alone, and one that is mounted with ``hidepid`` the user's.

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
        """Return, by process in order, its descriptors of device nodes and the nodes."""
        return {pid: nodes for pid, (nodes, _, _) in sorted(self._looks.items()) if nodes}

    def of(self, node: str) -> tuple[int, ...]:
        """Return the processes that hold one device node, in order."""
        return tuple(pid for pid, nodes in self.held().items() if node in nodes.values())

    def look(self, progress: list[Any]) -> None:
        """Take one pass: through the processes that turned up, and some of the others."""
        present = {int(entry) for entry in list_directory("/proc") if entry.isdecimal() and len(entry) < 10}
        looks = {pid: look for pid, look in self._looks.items() if pid in present}
        self._turn = [pid for pid in self._turn if pid in looks] or sorted(looks)
        until, self._patience = self._clock() + self._patience, LATER_PASS
        for pid in sorted(present - looks.keys(), reverse=True):
            looks[pid] = self._look_through(pid)
            progress.append(pid)
            if self._clock() >= until:
                break
        calls = 0
        while self._turn and calls < AGAIN:
            pid = self._turn.pop()
            looks[pid] = self._look_through(pid)
            progress.append(pid)
            calls += looks[pid][2]
        self._looks = looks
        self.complete = len(looks) == len(present) and all(whole for _, whole, _ in looks.values()) and namespace_of("1") == WHOLE_MACHINE

    def _look_through(self, pid: int) -> Look:
        """Look for the device nodes among the descriptors of one process, if this user may."""
        directory = f"{sysroot()}/proc/{pid}/fd"
        user = os.geteuid()
        try:
            # The directory is its user's, but root's where the user may not look into it (a program with more rights than the user).
            if user and os.stat(directory).st_uid != user:  # noqa: PTH116  thousands of processes: a Path costs more than the call
                return {}, False, 1
            descriptors = sorted(os.listdir(directory))  # noqa: PTH208  names alone are wanted
            looked = descriptors[:DESCRIPTORS]
            nodes = {name: target for name in looked if self._wanted(target := _target(f"{directory}/{name}"))}
        except PermissionError:
            return {}, False, 1
        except OSError:  # it has ended
            return {}, True, 1
        return nodes, len(looked) == len(descriptors), 1 + len(looked)


class NumberedNodes(NodeHolders):
    """The same, where the names of the nodes have their device's number.

    Args:
        form: A regular expression of the nodes' paths; its group is the number.
    """

    def __init__(self, form: str) -> None:
        self._form = re.compile(form, re.ASCII)
        super().__init__(lambda path: self._form.fullmatch(path) is not None)

    def on(self, number: object) -> Processes:
        """Return the processes that hold nodes of a device; a reason where none was found, and there may be some."""
        held = ((pid, self._form.fullmatch(node)) for pid, nodes in self.held().items() for node in nodes.values())
        pids = dict.fromkeys(pid for pid, found in held if found is not None and found[1] == number)
        return tuple(DeviceProcess(pid, "compute") for pid in pids) if pids or self.complete else UNSEEN


def _target(link: str) -> str:
    try:
        return os.readlink(link)  # noqa: PTH115  the link's text is wanted
    except FileNotFoundError:  # closed since
        return ""
