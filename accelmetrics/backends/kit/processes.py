"""Processes: the meaning of a driver's process numbers, the tree of a watched process, and the holders of device nodes.

NVML numbers processes as its driver sees them. This may differ from the ``/proc`` that we read: a program may watch from inside a
container, or from the host into one. ``/proc/PID/status`` links both where the kernel shows them: its ``NSpid`` line has a
process's number in every namespace from that of the ``/proc`` mount inwards.

A process that is visible under the driver's number belongs to the tree if one of its ancestors is the watched process. This costs a
few small reads per process *on the device*, however many threads or children it has. A number that is not visible is searched for
among the inner numbers of the tree, which is walked through ``task/*/children``. A number that another process has here is never
taken for an inner number of the tree.

Answers are kept for a second; answers about processes outside the tree for ten, while a device lists the same ones. Without a
``/proc``, psutil finds the ancestors. Processes that were found in that ``/proc`` itself (AMD's) are visible.

All of this holds while our program is in the machine's own PID namespace. In any other namespace (a container), a driver's number
may belong to a process outside, and another process may have it here: `DriverNumbers` decides which process it is, if that is
certain.

**Memory and engine time of programs on devices of DRM drivers**: GPUs below ``/dev/dri``, NPUs below ``/dev/accel``.
For a descriptor of a device, ``/proc/PID/fdinfo/FD`` lists both, in one format for all DRM drivers (the kernel's
``drm-usage-stats.rst``)::

    drm-driver:     amdgpu                          drm-driver:     xe
    drm-pdev:       0000:03:00.0                    drm-pdev:       0000:03:00.0
    drm-client-id:  42                              drm-client-id:  7
    drm-memory-vram:        1048576 KiB             drm-resident-vram0:     1048576 KiB
    drm-engine-gfx: 123456789 ns                    drm-cycles-ccs: 28257900
    drm-engine-compute:     987654321 ns            drm-total-cycles-ccs:   7655183225

A client is one opening of the device. Duplicated or inherited descriptors show the same client. Devices that are not on the PCI bus
have no ``drm-pdev``; the descriptor's device node identifies them.

Shares of time are underestimated rather than overestimated: a client that closes between two looks is missing from the second, and
the time that a new client used before its first look is not counted.
"""

from __future__ import annotations

import math
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

from accelmetrics.backends.built_in import BUILT_IN
from accelmetrics.backends.contract import SYSTEM_CLOCK, Clock, Number, Processes, Value
from accelmetrics.backends.guard import counted_at
from accelmetrics.backends.kit.system import exists, is_asleep, link_name, list_directory, read_text, sysroot
from accelmetrics.schemas.errors import Reason, Unavailable
from accelmetrics.schemas.identity import DeviceIdentity, DeviceProcess, pci_address
from accelmetrics.schemas.metric import NOTHING
from accelmetrics.schemas.named_tuple import NamedTuple

PACE = 0.95
"""Seconds that an answer is kept. It is a little less than one, so that readings every second find it expired."""
BOARD = ("temp", "powerWatts", "enforcedPowerLimitWatts", "powerPercent")
"""Values of the device that ``{kind}.process.{i}`` repeats."""
_PARENT = re.compile(r"^PPid:\s+(\d+)", re.MULTILINE)
_NUMBERS = re.compile(r"^NSpid:\s+([\d\t ]+)", re.MULTILINE)

FIRST_PASS, LATER_PASS = 0.5, 0.05
"""Seconds spent on processes that are new: in the first pass, and in every later pass."""
AGAIN = 1024
"""Largest number of system calls that one pass makes for processes seen before: one per process, and one for each of its descriptors."""
DESCRIPTORS = 1024
"""Most descriptors that are checked in one process."""
UNSEEN = Unavailable(
    Reason.NO_PERMISSION,
    "some processes could not be examined (another user's, or outside this container), and one of them may use the device",
)
WHOLE_MACHINE = "pid:[4026531836]"
"""The namespace in which every process has a number; a constant of the kernel (``PROC_PID_INIT_INO``)."""
NODES: Mapping[str, str] = {
    "nvidia": r"/dev/nvidia\d+",
    "amd": r"/dev/(kfd|dri/(card|renderD)\d+)",
    "intel": r"/dev/(dri/(card|renderD)|accel/accel)\d+",
    "tpu": r"/dev/(accel|vfio/)\d+",
    "neuron": r"/dev/neuron\d+",
}
"""Device nodes that a backend's processes hold open, by backend. Other backends have them in their registrations."""
FOUND_HERE = frozenset({"amd", "tpu", *(row.name for row in BUILT_IN.values() if row.found_here)})
"""Backends that search ``/proc`` for processes themselves. A number of theirs that is gone belongs to a process that has ended."""

UNITS = {"": 1, "ns": 1, "kib": 1024, "mib": 1024**2, "gib": 1024**3}
MOST = 2**50
"""Largest plausible number of bytes; a larger number is ignored."""
CLASSES = {"/dev/dri/": "drm", "/dev/accel/": "accel"}
"""Device class below ``/sys/class`` by directory of device nodes."""
_COUNT = re.compile(r"(?aim:^drm-([a-z0-9_-]+):[ \t]*(\d{1,19})[ \t]*(ns|[kmg]ib|)[ \t]*$)")
_ADDRESS = re.compile(r"(?aim:^drm-pdev:[ \t]*([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])[ \t]*$)")


class ProcessTree:
    """A watched process and its descendants.

    Each consumer has one and asks it from several workers. Shared state is replaced in one step, so at worst an answer is computed
    twice.

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
        """Whether the driver and the ``/proc`` that we read use the same numbers. A process never changes its own PID namespace."""
        return DriverNumbers(()).shared

    def owns(self, pid: int, now: float, numbers: DriverNumbers | None = None, nodes: str = "") -> bool:
        """Return whether the process that a driver calls ``pid`` belongs to the tree.

        Args:
            pid: The number.
            now: The time in seconds, on any clock.
            numbers: Maps the number to a process; None for a number that was found in the ``/proc`` that we read.
            nodes: A pattern of the nodes of the device that lists it.
        """
        if now >= self._until:
            self._known, self._inner, self._until = {}, None, now + PACE
        known, key = self._known, pid if numbers is None else (pid, nodes)
        if key not in known:
            known[key] = self._decide(pid, numbers, nodes)
        return known[key]

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
                # Collected once for all numbers that are not visible: in a container that may be every process.
                self._inner = inner_numbers(root)
            return pid in self._inner
        return any(ancestor == root for ancestor in ancestors(pid))


class DriverNumbers:
    """Maps a driver's process numbers to processes of the ``/proc`` that we read. Valid for one look at the driver's lists.

    Most drivers use the numbers of the whole machine. NVIDIA's newer ones use the numbers of the calling program's PID namespace,
    and list no process of another one. A driver cannot be asked which of the two it does. So:

    - A program in the machine's own namespace gets the machine's numbers either way.
    - In another namespace, a number means the process here only if this process holds the device open, and if all listed numbers
      exist here.
    - If the machine's ``/proc`` is mounted into another namespace, a number means the machine's process, unless a process of our
      own namespace has it too. Then it means the process of the two that holds the device.

    Args:
        listed: All numbers that the driver lists.
        backend: The backend that lists them.
    """

    def __init__(self, listed: Iterable[int], backend: str = "") -> None:
        self._listed = () if backend in FOUND_HERE else listed

    @cached_property
    def shared(self) -> bool:
        """Whether our program is in the machine's own PID namespace, so that the driver and this ``/proc`` use the same numbers."""
        if not _has_proc():
            return True
        own = namespace_of("self")
        # Kernels before 3.8, and those built without PID namespaces, lack these links.
        return own == WHOLE_MACHINE or (not own and not exists("/proc/1/ns"))

    def find(self, pid: int, nodes: str) -> int | str:
        """Return the process's number in the ``/proc`` that we read; if that is uncertain, the reason in words.

        Args:
            pid: The driver's number.
            nodes: A pattern of the nodes of the device that lists it; empty if not known.
        """
        if self.shared:
            return pid if is_visible(pid) else f"process {pid} has ended{'' if is_visible(1) else f', or {_HIDDEN}'}"
        own, is_machines = self._own.get(pid), self._shows_machine and pid in self._present
        # No other process of our own namespace has this number, so it means the machine's process.
        if is_machines and own in {None, pid}:
            return pid
        if own is None:
            gone = "has ended" if self._shows_machine else "is not in this PID namespace, or has ended"
            return f"process {pid} {gone}{'' if 1 in self._present else f', or {_HIDDEN}'}"
        held = holds(own, nodes) if nodes else None
        if is_machines:
            there = holds(pid, nodes) if nodes else None
            if held is None or there is None or held == there:
                return f"process {pid} may be one of this PID namespace or one outside: both have this number"
            return own if held else pid
        # A driver that uses our namespace's numbers lists only processes of our namespace.
        if held and self._own.keys() >= set(self._listed):
            return own
        if held is False:
            return f"process {pid} is not in this PID namespace: the process that has this number here does not use the device"
        why = "the driver lists others that are not" if held else "the one that has this number here may not be looked into"
        return f"whether process {pid} is in this PID namespace is unknown: {why}"

    @cached_property
    def _present(self) -> frozenset[int]:
        """The processes of the ``/proc`` that we read. It does not list threads, though they can be opened by their numbers."""
        return frozenset(map(int, filter(str.isdecimal, list_directory("/proc"))))

    @cached_property
    def _own(self) -> Mapping[int, int]:
        """The processes of our own namespace, from their numbers in it to their numbers in ``/proc``."""
        own = read_status("self")
        return {pid: pid for pid in self._present} if own is None or len(own[1]) < 2 else dict(numbers_in_own(own[1]))

    @cached_property
    def _shows_machine(self) -> bool:
        """Whether this ``/proc`` shows the whole machine. It then has threads of the kernel."""
        if namespace_of(1) == WHOLE_MACHINE:
            return True
        # Only root may read the namespace of process 1. For others, process 2 is a kernel thread if this is the whole machine.
        flags = (read_text("/proc/2/stat") or "").rpartition(")")[2].split()[6:7]
        return bool(flags) and flags[0].isdecimal() and bool(int(flags[0]) & 0x00200000)  # PF_KTHREAD


_HIDDEN = "is another user's: this /proc hides those (hidepid)"


def holds(number: int, nodes: str) -> bool | None:
    """Return whether a process of the ``/proc`` that we read holds a device node open; None if this user may not look.

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
    """Return a regular expression of the nodes that a process on a device holds open; empty if not known."""
    if device.backend == "nvidia" and device.minor_number is not None and not device.parent:
        return NODES["nvidia"].replace(r"\d+", str(device.minor_number))
    if device.backend in NODES:
        return NODES[device.backend]
    row = BUILT_IN.get(device.backend)
    nodes = () if row is None else (row.held,) if row.held else row.nodes
    return "|".join(re.escape(node).replace(r"\*", r"\d+(-\d+)?") for node in nodes)


def read_status(pid: int | str) -> tuple[int, tuple[int, ...]] | None:
    """Read a process's parent, and its numbers from the mount's namespace inwards. Returns None if there is no process.

    The numbers are empty on kernels before 4.1.
    """
    text = read_text(f"/proc/{pid}/status")
    if text is None:
        return None
    parent, numbers = _PARENT.search(text), _NUMBERS.search(text)
    return int(parent.group(1)) if parent else 0, tuple(map(int, numbers.group(1).split())) if numbers else ()


def ancestors(pid: int) -> Iterator[int]:
    """Yield the ancestors of a process, the nearest first."""
    if not _has_proc():
        import psutil

        with suppress(psutil.Error):
            yield from (parent.pid for parent in psutil.Process(pid).parents() if parent.pid)  # 0 is the kernel
        return
    # Parents may change while they are read, so they may form a loop. The first process has the parent 0.
    seen = {0, pid}
    while (status := read_status(pid)) is not None and status[0] not in seen:
        pid = status[0]
        seen.add(pid)
        yield pid


def is_visible(pid: int) -> bool:
    """Return whether a process has this number in the ``/proc`` that we read."""
    if _has_proc():
        return os.path.exists(f"{sysroot()}/proc/{pid}")  # noqa: PTH110  called for every process on a device: a Path costs more than the call
    import psutil

    return psutil.pid_exists(pid)


def _has_proc() -> bool:
    return sys.platform == "linux"


def number_here(pid: int) -> int | None:
    """Find the number, in the ``/proc`` that we read, of a process that our own namespace calls ``pid``; None if not there.

    The two numbers differ if that ``/proc`` is the host's, mounted into our container.
    """
    own = read_status("self") if _has_proc() else None
    numbers = () if own is None else own[1]
    if len(numbers) < 2:
        return pid
    if pid == numbers[-1]:
        return numbers[0]
    return next((here for number, here in numbers_in_own(numbers) if number == pid), None)


def numbers_in_own(own: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Yield the processes of our own namespace: the number of each in it, and its number in the ``/proc`` that we read.

    Args:
        own: The numbers of this process in that ``/proc``, which belongs to a namespace around ours.
    """
    namespace = namespace_of("self")
    for entry in filter(str.isdecimal, list_directory("/proc")):
        status = read_status(entry)
        # A process nested deeper has more numbers. The namespace of another user's process is not shown.
        if status is not None and len(status[1]) == len(own) and namespace_of(entry) in {namespace, ""}:
            yield status[1][-1], int(entry)


def namespace_of(pid: int | str, kind: str = "pid") -> str:
    """Return the namespace of a kind (``pid``, ``mnt``, ``cgroup``) that a process is in; empty if it may not be read."""
    try:
        return os.readlink(f"{sysroot()}/proc/{pid}/ns/{kind}")  # noqa: PTH115
    except OSError:
        return ""


def inner_numbers(root: int) -> frozenset[int]:
    """Return every number that a process of the tree has in a namespace further in than the ``/proc`` that we read."""
    if not _has_proc():
        return frozenset()
    return frozenset(number for pid in descendants(root) if (status := read_status(pid)) for number in status[1][1:])


def descendants(root: int, progress: list[Any] | None = None) -> list[int]:
    """List a process and its descendants, including ended ones that were not reaped.

    A kernel built with ``CONFIG_PROC_CHILDREN``, as distributions build it, lists the children of every thread. The cost then
    follows the number of descendants and not of all processes. On other kernels the parents of all processes are read in one pass.

    Args:
        root: The process.
        progress: Grows with each process that is read.
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
        # A process that moved to another parent meanwhile is listed twice.
        new = [child for child in dict.fromkeys(children) if child not in seen]
        found += new
        seen.update(new)
        progress.append(pid)
    return found


def _children(pid: int) -> list[int]:
    """List the processes that the threads of one process started; empty if it has ended."""
    task = f"/proc/{pid}/task"
    try:
        # The directory has two hard links, and one per thread. To ask for them is a sixth of what a listing costs.
        threads = [str(pid)] if os.stat(sysroot() + task).st_nlink == 3 else list_directory(task)  # noqa: PTH116
    except OSError:
        return []
    words = [word for thread in threads for word in (read_text(f"{task}/{thread}/children") or "").split()]
    return [int(word) for word in words if word.isdigit() and len(word) < 10]


def process_values(kind: str, members: Iterable[DeviceProcess], device: Mapping[str, Number | Unavailable]) -> dict[str, Number]:
    """Return the metrics of ``{kind}.process.{i}``: the use of a device by some processes together, and the board's values.

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
    # The driver rounds each share, so their sum may exceed 100 %.
    found = {
        "gpu" if kind == "gpu" else "utilization": None if busy is None else min(busy, 100),
        "memory": None if memory is None else min(memory, 100),
        "memoryAllocatedBytes": used,
        "memoryAllocated": 100 * used / total if used is not None and isinstance(total, (int, float)) and 0 < used <= total else None,
        **{name: device.get(name) for name in BOARD},
    }
    return {name: value for name, value in found.items() if isinstance(value, (int, float))}


def no_process(pid: int) -> str:
    """Return a message that a process named by the user does not exist, or is hidden."""
    return f"there is no process {pid}{f', or it {_HIDDEN}' if _has_proc() and exists('/proc/self') and not is_visible(1) else ''}"


Look = tuple[Mapping[str, str], bool, int]
"""The result of looking through one process: the device node by descriptor, whether all descriptors were seen, and the number of
system calls.
"""


class NodeHolders:
    """The processes that hold device nodes open, from the links below ``/proc/PID/fd``. Not thread-safe.

    The kernel shows a user only the descriptors of the user's own processes. One ``stat`` tells that a process is another user's;
    it is then skipped. New processes are looked through first, the youngest (the highest numbers) before others, within a limit of
    seconds. Known processes are looked through again in turn, a few at a time, so a process that opens a device late is found
    within some seconds.

    The answer is complete if every process was looked into and this ``/proc`` shows the whole machine. A container's ``/proc``
    shows only the container's processes, and one that is mounted with ``hidepid`` only the user's.

    Args:
        wanted: Returns whether a descriptor's target is one of the device nodes.
        clock: Seconds, for the limit of a pass.

    Attributes:
        complete: Whether there can be no other holder: every process was looked into, in the ``/proc`` of the whole machine.
    """

    def __init__(self, wanted: Callable[[str], bool], clock: Callable[[], float] = time.perf_counter) -> None:
        self.complete = False
        self._wanted = wanted
        self._clock = clock
        self._looks: Mapping[int, Look] = {}
        self._pending: list[int] = []
        self._patience = FIRST_PASS

    def held(self) -> dict[int, Mapping[str, str]]:
        """Return each process's descriptors of device nodes with their nodes, by process in order."""
        return {pid: nodes for pid, (nodes, _, _) in sorted(self._looks.items()) if nodes}

    def of(self, node: str) -> tuple[int, ...]:
        """Return the processes that hold one device node, in order."""
        return tuple(pid for pid, nodes in self.held().items() if node in nodes.values())

    def look(self, progress: list[Any]) -> None:
        """Make one pass: look through all new processes, within the limit, and some of the known ones."""
        present = {int(entry) for entry in list_directory("/proc") if entry.isdecimal() and len(entry) < 10}
        looks = {pid: look for pid, look in self._looks.items() if pid in present}
        self._pending = [pid for pid in self._pending if pid in looks] or sorted(looks)
        until, self._patience = self._clock() + self._patience, LATER_PASS
        for pid in sorted(present - looks.keys(), reverse=True):
            looks[pid] = self._search(pid)
            progress.append(pid)
            if self._clock() >= until:
                break
        calls = 0
        while self._pending and calls < AGAIN:
            pid = self._pending.pop()
            looks[pid] = self._search(pid)
            progress.append(pid)
            calls += looks[pid][2]
        self._looks = looks
        self.complete = len(looks) == len(present) and all(whole for _, whole, _ in looks.values()) and namespace_of("1") == WHOLE_MACHINE

    def _search(self, pid: int) -> Look:
        """Find the device nodes among the descriptors of one process, if this user may look."""
        directory = f"{sysroot()}/proc/{pid}/fd"
        user = os.geteuid()
        try:
            # The directory belongs to the process's user, or to root if that user may not look into it (a program with more rights,
            # set-user-ID for example).
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
    """Like :class:`NodeHolders`, for nodes with the device's number in their names.

    Args:
        form: A regular expression of the nodes' paths; its group is the number.
    """

    def __init__(self, form: str) -> None:
        self._form = re.compile(form, re.ASCII)
        super().__init__(lambda path: self._form.fullmatch(path) is not None)

    def on(self, number: object) -> Processes:
        """Return the processes that hold nodes of a device; a reason if none was found but some may be hidden."""
        held = ((pid, self._form.fullmatch(node)) for pid, nodes in self.held().items() for node in nodes.values())
        pids = dict.fromkeys(pid for pid, found in held if found is not None and found[1] == number)
        return tuple(DeviceProcess(pid, "compute") for pid in pids) if pids or self.complete else UNSEEN


def _target(link: str) -> str:
    try:
        return os.readlink(link)  # noqa: PTH115  the link's text is wanted
    except FileNotFoundError:  # closed since
        return ""


class DrmKeys(NamedTuple):
    """A driver's names for its engines and memory.

    Attributes:
        engines: The names after ``drm-engine-`` or ``drm-cycles-``, by a word of this package. ``compute`` and ``graphics``
            determine a process's type and share, ``either`` its share alone. Any other word is for metrics of the device, for
            example ``busy`` for all engines that the driver counts.
        memory: Groups of names after ``drm-memory-``, ``drm-resident-`` or ``drm-total-``. A client's memory is the sum over the
            first group with any value.
        wakes: Whether reading fdinfo may wake a suspended device. If so, the fdinfo of suspended devices is not read.
    """

    engines: Mapping[str, Sequence[str]]
    memory: Sequence[Sequence[str]] = ()
    wakes: bool = True


class Client(NamedTuple):
    """A single opening of a device by a program.

    Attributes:
        device: The device's PCI address, or its name on another bus.
        number: The kernel's number for the client.
        counts: Bytes, nanoseconds or cycles, by the part of the key after ``drm-``.
    """

    device: str
    number: int
    counts: Mapping[str, int]

    def memory(self, groups: Sequence[Sequence[str]]) -> int | None:
        """Return the memory that the client holds, in bytes; None if the driver does not report it."""
        for group in groups:
            sizes = []
            for region in group:
                # Memory in use comes first: "memory" is its key on older kernels, "resident" on newer. "total" is all that was allocated.
                known = [self.counts.get(f"{kind}-{region}", MOST + 1) for kind in ("memory", "resident", "total")]
                sizes += [size for size in known if size <= MOST][:1]
            if sizes:
                return sum(sizes)
        return None

    def busy(self, before: Client, seconds: float, engine: str) -> float | None:
        """Return the share (0 to 1) of the time since ``before`` in which an engine worked for this client; None if not counted."""
        worked, cycles, all_cycles = (
            self.counts[key] - before.counts[key] if key in self.counts and key in before.counts else None
            for key in (f"engine-{engine}", f"cycles-{engine}", f"total-cycles-{engine}")
        )
        share = worked / 1e9 / seconds if worked is not None else cycles / all_cycles if cycles is not None and all_cycles else None
        # Engines of one name are counted together; the capacity is their number.
        return None if share is None or share < 0 else share / max(1, self.counts.get(f"engine-capacity-{engine}", 1))

    def used(self, engine: str) -> int | None:
        """Return the engine time since the client opened, in the driver's unit (ns or cycles); None if not counted."""
        return self.counts.get(f"engine-{engine}", self.counts.get(f"cycles-{engine}"))


def parse_fdinfo(text: str, node: str = "") -> Client | None:
    """Parse one fdinfo file. Returns None if it does not belong to a DRM device.

    Args:
        text: The file's text.
        node: The device node that the descriptor leads to. It identifies devices that are not on the PCI bus.
    """
    address = _ADDRESS.search(text)
    counts = {name.lower(): int(digits) * UNITS[unit.lower()] for name, digits, unit in _COUNT.findall(text)}
    device = pci_address(address[1]) if address else device_of(node)
    return Client(device, counts["client-id"], counts) if device and "client-id" in counts else None


def device_of(node: str) -> str:
    """Return the bus name of a device node's device; empty if the kernel does not show it."""
    return next((link_name(f"/sys/class/{name}/{node[len(at) :]}/device") for at, name in CLASSES.items() if node.startswith(at)), "")


def is_drm(node: str) -> bool:
    """Return whether a path is the device node of a DRM driver."""
    return node.startswith(tuple(CLASSES))


class DrmClients:
    """The programs on all devices of one driver. Any thread may ask: one thread scans, others get the latest result.

    Args:
        keys: The driver's names for engines and memory.
        pools: By device, the group of memory names that counts, if it differs between devices.
        holders: Finds the processes that hold device nodes.
        clock: Clock for shares of time.

    Attributes:
        pools: As above; entries may be added later.
    """

    def __init__(
        self,
        keys: DrmKeys,
        pools: Mapping[str, Sequence[str]] = NOTHING,
        holders: NodeHolders | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.pools = dict(pools)
        self._keys = keys
        self._clock = clock or SYSTEM_CLOCK
        self._holders = holders or NodeHolders(is_drm)
        # The first pass takes longer than later ones, so it is done here and not within a reading.
        self._holders.look([])
        self._looking = threading.Lock()
        self._until = self._at = -math.inf
        self._was_complete = False
        self._found: dict[str, tuple[DeviceProcess, ...]] = {}
        self._clients: dict[tuple[str, int], Client] = {}
        self._shares: dict[tuple[str, int, str], float] = {}
        self._is_second = False

    def on(self, device: str, progress: list[Any]) -> tuple[DeviceProcess, ...] | Unavailable:
        """Return the processes on one device, at most a second old; a reason if none was found but some may be hidden."""
        now = self._clock.monotonic()
        # A thread that finds another one looking does not wait for it: the last result is at most a second old.
        if now >= self._until and self._looking.acquire(blocking=False):
            try:
                self._look(now, progress)
            finally:
                self._looking.release()
        # "No process" is an answer only if every process was looked into.
        return self._found.get(device, () if self._holders.complete else UNSEEN)

    def total(self, device: str, what: str, progress: list[Any]) -> Value:
        """Return the use of a device by all programs together; a reason if not all programs are visible.

        Args:
            device: Its PCI address, or its name on another bus.
            what: ``memory``, in bytes; or an engine word, for the share of time of the busiest of its engines, in percent.
            progress: Grows with each descriptor that is read.
        """
        self.on(device, progress)
        if not self._holders.complete:
            return UNSEEN
        clients = [client for client in self._clients.values() if client.device == device]
        if what == "memory":
            sizes = [size for client in clients if (size := self._memory(client)) is not None]
            return (
                sum(sizes)
                if sizes or not clients
                else Unavailable(Reason.NOT_SUPPORTED, "the driver does not report the memory of programs")
            )
        engines = self._keys.engines[what]
        if clients and all(client.used(engine) is None for client in clients for engine in engines):
            return Unavailable(Reason.NOT_SUPPORTED, f"the driver does not count the time of programs on {', '.join(engines)}")
        shares = {engine: [self._shares.get((device, client.number, engine)) for client in clients] for engine in engines}
        known = [sum(share for share in each if share is not None) for each in shares.values() if any(share is not None for share in each)]
        if self._is_second and (known or not clients):
            return min(100.0, 100 * max(known, default=0.0))
        return Unavailable(Reason.NEEDS_INTERVAL, "the first look at the programs: a share of time needs two")

    def _memory(self, client: Client) -> int | None:
        return client.memory([self.pools[client.device]] if client.device in self.pools else self._keys.memory)

    def _look(self, now: float, progress: list[Any]) -> None:
        self._until = now + PACE
        self._holders.look(progress)
        held: dict[tuple[str, int], list[Client]] = {}
        clients: dict[tuple[str, int], Client] = {}
        asleep: dict[str, bool] = {}
        for pid, nodes in self._holders.held().items():
            for descriptor, node in nodes.items():
                if node not in asleep:
                    # Some drivers wake a device to fill in its fdinfo.
                    asleep[node] = self._keys.wakes and is_asleep(device_of(node))
                client = None if asleep[node] else parse_fdinfo(read_text(f"/proc/{pid}/fdinfo/{descriptor}") or "", node)
                progress.append(descriptor)
                # A client that was passed to other processes appears in each of them. It is counted once, for the first.
                if client is not None and client[:2] not in clients:
                    clients[client[:2]] = client
                    held.setdefault((client.device, pid), []).append(client)
        # In a replayed recording all looks have the same time: no shares can be computed.
        now = counted_at(now)
        seconds, every = now - self._at, {engine for engines in self._keys.engines.values() for engine in engines}
        pairs = ((client, before) for key, client in clients.items() if seconds > 0 and (before := self._clients.get(key)) is not None)
        measured = ((client, engine, client.busy(before, seconds, engine)) for client, before in pairs for engine in every)
        self._shares = {(*client[:2], engine): share for client, engine, share in measured if share is not None}
        found: dict[str, tuple[DeviceProcess, ...]] = {}
        for (device, pid), own in sorted(held.items()):
            sizes = [size for client in own if (size := self._memory(client)) is not None]
            engines = [
                (word, client, name)
                for word in ("compute", "graphics", "either")
                for client in own
                for name in self._keys.engines.get(word, ())
            ]
            types = dict.fromkeys(word for word, client, name in engines if word != "either" and client.used(name))
            shares = [share for _, client, name in engines if (share := self._shares.get((device, client.number, name))) is not None]
            busy = min(100.0, 100 * sum(shares)) if shares else None
            found[device] = (*found.get(device, ()), DeviceProcess(pid, "+".join(types), sum(sizes) if sizes else None, busy))
        # Unchanged lists stay the same object, so that consumers notice without comparing.
        kept = self._found
        self._found = {device: kept[device] if kept.get(device) == each else each for device, each in found.items()}
        # A share over all programs needs two complete looks.
        self._is_second, self._was_complete = self._was_complete and seconds > 0, self._holders.complete
        self._at, self._clients = now, clients
