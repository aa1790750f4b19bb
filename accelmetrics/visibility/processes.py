"""``accelmetrics.processes()``: the processes on the devices, with what the system says of each beside what the driver says.

The driver's part comes with the snapshot. User, command, start and cgroup are read here, from the ``/proc`` below ``ACCELMETRICS_SYSROOT``
(elsewhere than on Linux through psutil), once a process. What cannot be read has its reason.

A process is the one that has the driver's number in that ``/proc``, where that is certain (`DriverNumbers`): in a container without the
host's processes another one may have the number. It is taken for another one too, and nothing is said of it, if it was started after the
snapshot, or if the snapshot is of another machine.
"""

from __future__ import annotations

import math
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from accelmetrics.backends.kit.processes import (
    DriverNumbers,
    ancestors,
    descendants,
    is_visible,
    namespace_of,
    node_pattern,
    read_status,
)
from accelmetrics.backends.kit.system import read_once, read_text, sysroot
from accelmetrics.sampling.engine import hostname
from accelmetrics.sampling.threads import begin
from accelmetrics.schemas.errors import Unavailable, UnknownNameError
from accelmetrics.schemas.identity import DeviceProcess
from accelmetrics.schemas.record import ProcessLabels
from accelmetrics.schemas.snapshot import Snapshot, own_processes, plain, reason_entry, rfc3339_second

WHOLE_HIERARCHY = "cgroup:[4026531835]"
"""The cgroup namespace in which paths begin at the root; the kernel's own constant (``PROC_CGROUP_INIT_INO``)."""
SLACK = 2.0
"""Seconds by which a start may seem later than it was: when the system was booted is known to the second."""
LOOKED_UP = 5.0
"""Seconds for which what the system says of the same processes is believed."""
PATIENCE = 0.5
"""Seconds that the system is waited for."""
NOT_SAID = "the driver does not say"
SEEN_FROM_INSIDE = "the system shows its cgroup as seen from this container"
RUNTIMES = {"docker": "docker", "cri-containerd": "containerd", "nerdctl": "containerd", "crio": "cri-o", "libpod": "podman"}
"""By what stands before a container's id in a cgroup's name, the runtime."""
_CONTAINER = re.compile(rf"(?:^|[/:])(?<!libpod_parent/)(?:({'|'.join(RUNTIMES)})[-:/])?([0-9a-f]{{64}})(?:\.scope)?(?=/|$)")
_POD = re.compile(r"kubepods.*[-/]pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?=[./:]|$)")
_SLURM = re.compile(r"slurm[^/]*/(?:uid_\d+/)?job_(\d+)(?:/step_([^/]+))?")
_UID = re.compile(rb"^Uid:\s+(\d+)", re.MULTILINE)
_BOOT = re.compile(r"^btime (\d+)", re.MULTILINE)
_STATE, _STARTED = 0, 19
"""Places behind the name in ``/proc/PID/stat``."""
_JOBS = ("container", "pod", "slurm_job")
_SYSTEMS_PART = ("user", "command", "started", *_JOBS, "runtime", "slurm_step")
LABELS = ("user", *_JOBS, "runtime", "slurm_step")
"""Fields that may be labels of a process in exporters."""
_DRIVERS_PART = ("memory_bytes", "utilization", "memory_utilization")
DEEPEST, MOST_BELOW = 32, 256
"""Processes above and below one, at most."""
T = TypeVar("T")


class ProcessInfo(NamedTuple):
    """One process on one device, or one above such a process.

    Where a field is None, ``unavailable`` says why; of those about containers and jobs, None without a reason is an answer: in none.

    Attributes:
        device: The device's key; empty for a process above, which is not on a device itself.
        pid: The process's number, as the driver gives it.
        type: ``compute``, ``graphics`` or ``compute+graphics``; empty when the driver does not say.
        memory_bytes: Device memory that it holds, in bytes.
        utilization: Share of the device's compute time, in percent.
        memory_utilization: Share of the memory controller's time, in percent.
        user: The name of its user, the number where that has no name.
        command: Its command line, the words separated by spaces; a thread of the kernel's has its name, in brackets.
        started: When it was started (RFC 3339, UTC).
        container: The id of its container, the innermost one.
        runtime: Which made it, by the cgroup's name: ``docker``, ``containerd``, ``cri-o``, ``podman``; empty where that has no name.
        pod: The uid of its Kubernetes pod.
        slurm_job: The id of its Slurm job.
        slurm_step: The step in that: a number, ``batch``, ``extern``, ``interactive``.
        parents: The processes above it, the nearest first; empty unless asked for.
        unavailable: By field, why it is None, in words.
    """

    device: str
    pid: int
    type: str = ""
    memory_bytes: int | None = None
    utilization: float | None = None
    memory_utilization: float | None = None
    user: str | None = None
    command: str | None = None
    started: str | None = None
    container: str | None = None
    runtime: str | None = None
    pod: str | None = None
    slurm_job: str | None = None
    slurm_step: str | None = None
    parents: tuple[int, ...] = ()
    unavailable: Mapping[str, str] = {}


class ProcessListing(NamedTuple):
    """The processes on the devices of one snapshot.

    Attributes:
        timestamp: When the devices were read (RFC 3339, UTC).
        hostname: The machine.
        processes: By device in the devices' order, then by memory, the largest first.
        parents: The processes above those, each once, that are on no device; empty unless asked for.
        idle: Devices that no process uses, by key.
        unlisted: By device key, why its processes are not known.
    """

    timestamp: str
    hostname: str
    processes: tuple[ProcessInfo, ...]
    parents: tuple[ProcessInfo, ...]
    idle: tuple[str, ...]
    unlisted: Mapping[str, Unavailable]

    def to_dict(self) -> dict[str, Any]:
        """Return the whole in new plain containers, ready for ``json``."""
        return {**plain(self), "unlisted": {key: reason_entry(why) for key, why in self.unlisted.items()}}

    def to_json(self, indent: int | None = None) -> str:
        """Return the whole as text, on one line unless ``indent`` is given."""
        import json

        return json.dumps(self.to_dict(), indent=indent)


def processes(snapshot: Snapshot, *, parents: bool = False) -> ProcessListing:
    """List the processes on a snapshot's devices, with what the system says of them now.

    Of a device whose partitions (MIG instances) list their processes, those lists count.

    Args:
        snapshot: A recent reading of this machine.
        parents: Whether the processes above each are wanted too.
    """
    told = own_processes(snapshot)
    uses = [
        (key, use)
        for key, found in told.items()
        if not isinstance(found, Unavailable)
        for use in sorted(found, key=lambda use: (math.inf if use.memory_bytes is None else -use.memory_bytes, use.pid))
    ]
    if snapshot.hostname == hostname():
        system = SystemReader()
        about = _about(snapshot, uses, system, parents)
    else:
        system, why = None, f"the snapshot is of another machine, {snapshot.hostname}"
        about = [_unknown(use.pid, why) for _, use in uses]
    listed = []
    for process, (key, use) in zip(about, uses, strict=True):
        missing = {field: NOT_SAID for field in _DRIVERS_PART if getattr(use, field) is None}
        listed.append(process._replace(device=key, **use._asdict(), unavailable={**missing, **process.unavailable}))
    known = {process.pid for process in about if process.user is not None}
    above = dict.fromkeys(pid for process in about for pid in process.parents if pid not in known)
    return ProcessListing(
        snapshot.timestamp,
        snapshot.hostname,
        tuple(listed),
        tuple(system.look_up(pid, parents=True) for pid in above) if system else (),
        tuple(key for key, found in told.items() if found == ()),
        {key: found for key, found in told.items() if isinstance(found, Unavailable)},
    )


class SystemLookup(Generic[T]):
    """An answer of the system about processes, asked for again every few seconds while the question is the same.

    The kernel may not answer about a process for as long as a driver hangs in it. So it is asked on a thread of its own and waited for a
    moment: after that, what it said before stands. At most one thread is kept by it.
    """

    def __init__(self) -> None:
        self._latest: tuple[object, T] | None = None
        self._until = 0.0
        self._thread: threading.Thread | None = None

    def answer(self, question: object, ask: Callable[[], T]) -> T | None:
        """Return the answer; that of before where the system does not answer now, None where it never did.

        Args:
            question: Another one is asked at once.
            ask: Asks the system.
        """
        known, asking = self._latest, self._thread is not None and self._thread.is_alive()

        def note() -> None:
            self._latest = question, ask()
            self._until = time.monotonic() + LOOKED_UP

        if not asking and (known is None or known[0] != question or time.monotonic() >= self._until):
            self._thread = threading.Thread(target=note, name="accelmetrics-processes", daemon=True)
            if begin(self._thread).failure is None:
                self._thread.join(PATIENCE)
        return None if self._latest is None else self._latest[1]


class ProcessLookup(SystemLookup[ProcessListing]):
    """The processes on the latest readings' devices, with what the system says of them."""

    def listing(self, snapshot: Snapshot) -> ProcessListing | None:
        """Return the processes; those of before where the system does not answer now, None where it never did."""
        pids = frozenset(use.pid for found in snapshot.processes.values() for use in found)
        return self.answer(pids, lambda: processes(snapshot))


class ProcessDetails(NamedTuple):
    """What the system says of one process that was asked about.

    Attributes:
        pid: The process's number, as the driver gives it.
        here: Its number in the ``/proc`` that we read; 0 where that is not known.
        tree: The processes above it from the outermost on, itself, and those below it, each with how deep it stands.
        environment: Its variables as it was started with them; empty unless asked for.
        why: Why nothing of that is known, or the environment is not; empty where all is.
    """

    pid: int
    here: int = 0
    tree: tuple[tuple[int, ProcessInfo], ...] = ()
    environment: tuple[str, ...] = ()
    why: str = ""


def process_details(snapshot: Snapshot, pid: int, *, environment: bool = False) -> ProcessDetails:
    """Ask the system for the tree of one process on a snapshot's devices.

    Args:
        snapshot: A recent reading of this machine.
        pid: The process's number, as the driver gives it.
        environment: Whether its environment is wanted too, which may hold secrets.
    """
    uses = [(key, use) for key, found in snapshot.processes.items() for use in found if use.pid == pid]
    if snapshot.hostname != hostname():
        return ProcessDetails(pid, why=f"the snapshot is of another machine, {snapshot.hostname}")
    here = next(iter(located(snapshot, uses)), f"no device lists process {pid} now")
    if isinstance(here, str):
        return ProcessDetails(pid, why=here)
    system, above = SystemReader(), [*ancestors(here)][:DEEPEST]
    depths = {one: depth for depth, one in enumerate([*reversed(above), here])}
    for one in descendants(here)[1 : MOST_BELOW + 1]:
        status = read_status(one)
        depths[one] = depths.get(0 if status is None else status[0], depths[here]) + 1
    tree = tuple((depth, system.look_up(one)) for one, depth in _downwards(depths))
    if not environment:
        return ProcessDetails(pid, here, tree)
    try:
        words = read_once(f"/proc/{here}/environ").decode("utf-8", "replace").split("\0")
    except OSError as error:
        return ProcessDetails(pid, here, tree, why=_why(here, error))
    return ProcessDetails(pid, here, tree, tuple(word for word in words if word))


def _downwards(depths: Mapping[int, int]) -> list[tuple[int, int]]:
    """Return processes with their depths, each behind its parent."""
    order: list[tuple[int, int]] = []
    for one, depth in depths.items():
        status = read_status(one)
        parents = [place for place, (other, _) in enumerate(order) if status is not None and other == status[0]]
        place = len(order)
        if parents:
            place = parents[0] + 1
            while place < len(order) and order[place][1] >= depth:
                place += 1
        order.insert(place, (one, depth))
    return order


def process_labels(names: Iterable[str]) -> ProcessLabels:
    """Make what tells exporters whose the processes are, from the system that the reading is of.

    Args:
        names: Which labels: of ``user``, ``container``, ``runtime``, ``pod``, ``slurm_job``, ``slurm_step``.

    Returns:
        A function of a reading and numbers of processes. It gives what could be read, and nothing in place of the rest.

    Raises:
        UnknownNameError: One is none of them. A command line is not, which may hold secrets.
    """
    wanted = tuple(dict.fromkeys(names))
    for name in wanted:
        if name not in LABELS:
            raise UnknownNameError("label of a process", name, LABELS)

    def tell(snapshot: Snapshot, pids: Sequence[int]) -> dict[int, dict[str, str]]:
        if snapshot.hostname != hostname():
            return {}
        listed, asked = own_processes(snapshot), frozenset(pids)
        uses = [(key, use) for key, found in listed.items() if not isinstance(found, Unavailable) for use in found if use.pid in asked]
        told: dict[int, dict[str, str]] = {}
        for process in _about(snapshot, uses, SystemReader()):
            labels = {name: value for name in wanted if (value := getattr(process, name))}
            # Devices of two vendors may list two processes under one number.
            told[process.pid] = {name: value for name, value in labels.items() if told.get(process.pid, labels).get(name) == value}
        return told

    return tell


def located(snapshot: Snapshot, uses: Iterable[tuple[str, DeviceProcess]]) -> list[int | str]:
    """Find the number in ``/proc`` of each process on each device; why it is not known, in words, where that is not certain.

    Args:
        snapshot: A reading of this machine.
        uses: Processes, each with the key of its device.
    """
    slots = {slot.key: slot for slot in snapshot.identities}
    listed: dict[str, set[int]] = {}
    for key, slot in slots.items():
        listed.setdefault(slot.backend, set()).update(use.pid for use in snapshot.processes.get(key, ()))
    numbers = {backend: DriverNumbers(pids, backend) for backend, pids in listed.items()}
    nodes = {key: node_pattern(slot.identity) for key, slot in slots.items()}
    return [numbers[slots[key].backend].find(use.pid, nodes[key]) for key, use in uses]


def _about(snapshot: Snapshot, uses: Sequence[tuple[str, DeviceProcess]], system: SystemReader, parents: bool = False) -> list[ProcessInfo]:
    """Describe the process of each use without its device, each once; it has the driver's number."""
    made: dict[int, ProcessInfo] = {}
    about = []
    for found, (_, use) in zip(located(snapshot, uses), uses, strict=True):
        if isinstance(found, int) and found not in made:
            made[found] = system.look_up(found, snapshot.time_ns / 1e9, parents)
        about.append(made[found]._replace(pid=use.pid) if isinstance(found, int) else _unknown(use.pid, found))
    return about


def _unknown(pid: int, why: str) -> ProcessInfo:
    return ProcessInfo("", pid, unavailable=dict.fromkeys(_SYSTEMS_PART, why))


class SystemReader:
    """What the system says of processes, for one listing: what several of them share is read once."""

    def __init__(self) -> None:
        self._users: dict[int, str] = {}
        self._boot = _BOOT.search(read_text("/proc/stat") or "")  # in seconds since 1970
        self._whole_hierarchy = namespace_of("self", "cgroup") in {"", WHOLE_HIERARCHY}

    def look_up(self, pid: int, seen: float = math.inf, parents: bool = False) -> ProcessInfo:
        """Describe a process without its device.

        Args:
            pid: Its number in the mounted ``/proc``.
            seen: When it was seen, in seconds since 1970; one that was started later is another one.
            parents: Whether the processes above it are wanted too.
        """
        if not is_visible(pid):
            return _unknown(pid, f"process {pid} has ended")
        known: dict[str, Any] = {}
        missing: dict[str, str] = {}
        portable = sys.platform != "linux"
        readers = {"user": self._user, "command": _command, "started": self._started}
        for field, read in readers.items():
            try:
                known[field] = _ask_psutil(field, pid) if portable else read(pid)
            except (OSError, ValueError, LookupError) as error:
                missing[field] = _why(pid, error)
        try:
            known |= membership(read_once(f"/proc/{pid}/cgroup").decode("utf-8", "replace"))
            missing |= {} if self._whole_hierarchy else {field: SEEN_FROM_INSIDE for field in _JOBS if field not in known}
        except OSError as error:
            missing |= dict.fromkeys(_JOBS, _why(pid, error))
        if "started" in known:
            if known["started"] > seen + SLACK:
                return _unknown(pid, f"process {pid} has ended: another one has its number now")
            known["started"] = rfc3339_second(int(known["started"] * 1e9))
        return ProcessInfo("", pid, **known, parents=tuple(ancestors(pid)) if parents else (), unavailable=missing)

    def _user(self, pid: int) -> str:
        found = _UID.search(read_once(f"/proc/{pid}/status"))
        if found is None:
            raise ValueError("/proc/PID/status has no user")
        uid = int(found[1])
        if uid not in self._users:
            self._users[uid] = _user_name(uid)
        return self._users[uid]

    def _started(self, pid: int) -> float:
        if self._boot is None:
            raise ValueError("/proc/stat does not say when the system was booted")
        return int(self._boot[1]) + int(_stat(pid)[1][_STARTED]) / os.sysconf("SC_CLK_TCK")


def _stat(pid: int) -> tuple[str, list[str]]:
    """Read the name of a process, and what stands behind the name in its ``stat``."""
    head, end, rest = read_once(f"/proc/{pid}/stat").decode("utf-8", "replace").rpartition(")")
    if not end:
        raise ValueError("/proc/PID/stat has no name")
    return head.partition("(")[2], rest.split()


def _command(pid: int) -> str:
    words = read_once(f"/proc/{pid}/cmdline").decode("utf-8", "replace").rstrip("\0").split("\0")
    if any(words):
        return " ".join(words)
    name, rest = _stat(pid)
    if rest[_STATE] == "Z":
        raise ProcessLookupError
    return f"[{name}]"


def _user_name(uid: int) -> str:
    """Return the name that the system below ``ACCELMETRICS_SYSROOT`` has for a user, else the number."""
    if sysroot():
        entries = (line.split(":") for line in (read_text("/etc/passwd") or "").splitlines())
        return next((entry[0] for entry in entries if entry[2:3] == [str(uid)]), str(uid))
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _ask_psutil(field: str, pid: int) -> Any:
    import psutil

    try:
        process = psutil.Process(pid)
        if field == "command":
            return " ".join(process.cmdline())
        return process.username() if field == "user" else process.create_time()
    except psutil.AccessDenied as error:
        raise PermissionError from error
    except psutil.Error as error:
        raise ProcessLookupError from error


def membership(text: str) -> dict[str, str]:
    """Parse ``/proc/PID/cgroup``, of v1 or v2: what its paths tell of container, pod and Slurm job, by field."""
    found: dict[str, str] = {}
    for path in (line.split(":", 2)[-1] for line in text.splitlines()):
        containers, pod, job = _CONTAINER.findall(path), _POD.search(path), _SLURM.search(path)
        if containers:
            name, container = containers[-1]
            found.setdefault("container", container)
            found.setdefault("runtime", RUNTIMES.get(name, ""))
        if pod:
            found.setdefault("pod", pod[1].replace("_", "-"))
        if job:
            found.setdefault("slurm_job", job[1])
        if job and job[2]:
            found.setdefault("slurm_step", job[2])
    return found


def _why(pid: int, error: Exception) -> str:
    """Say why something of a process is not known."""
    if isinstance(error, PermissionError):
        return f"process {pid} belongs to another user, and this one may not look into it"
    if isinstance(error, ProcessLookupError) or (isinstance(error, FileNotFoundError) and not is_visible(pid)):
        return f"process {pid} has ended"
    if isinstance(error, FileNotFoundError):
        return "this system does not say it"
    return (error.strerror if isinstance(error, OSError) else None) or "what the system says is not understood"
