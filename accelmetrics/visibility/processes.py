"""``accelmetrics.processes()``: the processes on the devices, with facts from the driver and from the operating system.

The driver's facts come with the snapshot. User, command, start time and cgroup are read here from the ``/proc`` below
``ACCELMETRICS_SYSROOT`` (by psutil outside Linux), once for each process. A fact that cannot be read has a reason.

The driver's process id is looked up in that ``/proc`` only if it certainly means the same process there (`DriverNumbers`): in a container
without the host's processes, another process may have the id. A process that started after the snapshot is another one too. Nothing is
reported about it, nor about the processes of a snapshot from another machine.
"""

from __future__ import annotations

import math
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
"""The initial cgroup namespace, where paths begin at the root. Its number is the kernel's constant ``PROC_CGROUP_INIT_INO``."""
# Seconds by which a computed start may be late: the kernel gives the time of boot in whole seconds.
SLACK = 2.0
LOOKED_UP = 5.0
"""Seconds for which an answer about the same processes is reused."""
PATIENCE = 0.5
"""Seconds to wait for the system's answer."""
NOT_REPORTED = "the driver does not report it"
RUNTIMES = {"docker": "docker", "cri-containerd": "containerd", "nerdctl": "containerd", "crio": "cri-o", "libpod": "podman"}
"""The runtime for each word that precedes a container's id in a cgroup's name."""
_CONTAINER = re.compile(rf"(?:^|[/:])(?<!libpod_parent/)(?:({'|'.join(RUNTIMES)})[-:/])?([0-9a-f]{{64}})(?:\.scope)?(?=/|$)")
_POD = re.compile(r"kubepods.*[-/]pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?=[./:]|$)")
_SLURM = re.compile(r"slurm[^/]*/(?:uid_\d+/)?job_(\d+)(?:/step_([^/]+))?")
_UID = re.compile(rb"^Uid:\s+(\d+)", re.MULTILINE)
_BOOT = re.compile(r"^btime (\d+)", re.MULTILINE)
# Indices of the fields of /proc/PID/stat, counted behind the name.
_STATE, _STARTED = 0, 19
_JOBS = ("container", "pod", "slurm_job")
_SYSTEMS_PART = ("user", "command", "started", *_JOBS, "runtime", "slurm_step")
LABELS = ("user", *_JOBS, "runtime", "slurm_step")
"""Fields that exporters may add as labels of a process. The command is left out, since it may hold secrets."""
_DRIVERS_PART = ("memory_bytes", "utilization", "memory_utilization")
DEEPEST, MOST_BELOW = 32, 256
"""Bounds for the ancestors and the descendants of a process."""
T = TypeVar("T")


class ProcessInfo(NamedTuple):
    """A process on a device, or an ancestor of one.

    If a field is None, ``unavailable`` has the reason. A field about a container or job that is None without a reason means that
    the process is in none.

    Attributes:
        device: The device's key. Empty for an ancestor, which uses no device itself.
        pid: Its process id, as the driver reports it.
        type: ``compute``, ``graphics`` or ``compute+graphics``. Empty if the driver does not report it.
        memory_bytes: Device memory that it holds, in bytes.
        utilization: Share of the device's compute time, in percent.
        memory_utilization: Share of the memory controller's time, in percent.
        user: The name of its user, or the user id if it has no name.
        command: Its command line, with words separated by spaces. For a kernel thread, its name in brackets.
        started: Time of its start (RFC 3339, UTC).
        container: The id of its innermost container.
        runtime: The container's runtime, from the cgroup's name: ``docker``, ``containerd``, ``cri-o``, ``podman``. Empty if unnamed.
        pod: The uid of its Kubernetes pod.
        slurm_job: The id of its Slurm job.
        slurm_step: The step in the job: a number, ``batch``, ``extern``, ``interactive``.
        parents: Its ancestors, the parent first. Empty unless requested.
        unavailable: Why a field is None, by field.
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
        hostname: The machine's name.
        processes: The processes, ordered by device and then by memory, the largest first.
        parents: Ancestors that use no device, each once. Empty unless requested.
        idle: Keys of devices that no process uses.
        unlisted: Why the processes of a device are not known, by device key.
    """

    timestamp: str
    hostname: str
    processes: tuple[ProcessInfo, ...]
    parents: tuple[ProcessInfo, ...]
    idle: tuple[str, ...]
    unlisted: Mapping[str, Unavailable]

    def to_dict(self) -> dict[str, Any]:
        """Return the listing as new plain containers, ready for ``json``."""
        return {**plain(self), "unlisted": {key: reason_entry(why) for key, why in self.unlisted.items()}}

    def to_json(self, indent: int | None = None) -> str:
        """Return the listing as JSON text, on one line unless ``indent`` is given."""
        import json

        return json.dumps(self.to_dict(), indent=indent)


def processes(snapshot: Snapshot, *, parents: bool = False) -> ProcessListing:
    """Return the processes on a snapshot's devices, with current facts from the operating system.

    If the partitions of a device (MIG instances) list their processes, these lists count instead of the device's.

    Args:
        snapshot: A recent reading of this machine.
        parents: Whether to add the ancestors of each process.
    """
    listings = own_processes(snapshot)
    uses = [
        (key, use)
        for key, found in listings.items()
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
        missing = {field: NOT_REPORTED for field in _DRIVERS_PART if getattr(use, field) is None}
        listed.append(process._replace(device=key, **use._asdict(), unavailable={**missing, **process.unavailable}))
    known = {process.pid for process in about if process.user is not None}
    above = dict.fromkeys(pid for process in about for pid in process.parents if pid not in known)
    return ProcessListing(
        snapshot.timestamp,
        snapshot.hostname,
        tuple(listed),
        tuple(system.look_up(pid, parents=True) for pid in above) if system else (),
        tuple(key for key, found in listings.items() if found == ()),
        {key: found for key, found in listings.items() if isinstance(found, Unavailable)},
    )


class SystemLookup(Generic[T]):
    """A cached answer of the system about processes. The same question is asked again after ``LOOKED_UP`` seconds."""

    # While a driver hangs in a process, the kernel may not answer about that process. So another thread asks, and the caller waits for
    # ``PATIENCE`` seconds at most. After that the previous answer is used. At most one thread hangs.

    def __init__(self) -> None:
        self._latest: tuple[object, T] | None = None
        self._until = 0.0
        self._thread: threading.Thread | None = None

    def answer(self, question: object, ask: Callable[[], T]) -> T | None:
        """Return the answer. If the system does not answer in time, the previous answer, or None if there is none.

        Args:
            question: The key of the cached answer. A new question is asked at once.
            ask: Asks the system, on another thread.
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
    """A cached listing of the processes on the devices of the latest reading."""

    def listing(self, snapshot: Snapshot) -> ProcessListing | None:
        """Return the processes. If the system does not answer in time, the previous listing, or None if there is none."""
        pids = frozenset(use.pid for found in snapshot.processes.values() for use in found)
        return self.answer(pids, lambda: processes(snapshot))


class ProcessDetails(NamedTuple):
    """The process tree and environment of a process.

    Attributes:
        pid: Its process id, as the driver reports it.
        here: Its process id in our ``/proc``. 0 if it is not known.
        tree: Its ancestors from the outermost on, itself and its descendants, each with its depth.
        environment: The variables with which it was started. Empty unless requested.
        why: Why the process or its environment is not known. Empty if both are.
    """

    pid: int
    here: int = 0
    tree: tuple[tuple[int, ProcessInfo], ...] = ()
    environment: tuple[str, ...] = ()
    why: str = ""


def process_details(snapshot: Snapshot, pid: int, *, environment: bool = False) -> ProcessDetails:
    """Return the process tree of a process on a snapshot's devices.

    Args:
        snapshot: A recent reading of this machine.
        pid: The process id, as the driver reports it.
        environment: Whether to add its environment, which may hold secrets.
    """
    uses = [(key, use) for key, found in snapshot.processes.items() for use in found if use.pid == pid]
    if snapshot.hostname != hostname():
        return ProcessDetails(pid, why=f"the snapshot is of another machine, {snapshot.hostname}")
    here = next(iter(located(snapshot, uses)), f"no device lists process {pid} now")
    if isinstance(here, str):
        return ProcessDetails(pid, why=here)
    system, above, below = SystemReader(), [*ancestors(here)][:DEEPEST], descendants(here)[: MOST_BELOW + 1]
    children: dict[int, list[int]] = {}
    for one in below[1:]:
        status = read_status(one)
        parent = here if status is None or status[0] not in below else status[0]  # a new parent is another process's
        children.setdefault(parent, []).append(one)

    def branch(root: int, depth: int) -> Iterator[tuple[int, ProcessInfo]]:
        yield depth, system.look_up(root)
        for child in children.get(root, ()):
            yield from branch(child, depth + 1)

    ancestry = ((depth, system.look_up(one)) for depth, one in enumerate(reversed(above)))
    details = ProcessDetails(pid, here, (*ancestry, *branch(here, len(above))))
    if not environment:
        return details
    try:
        variables = read_once(f"/proc/{here}/environ").decode("utf-8", "replace").split("\0")
    except OSError as error:
        return details._replace(why=_why(here, error))
    return details._replace(environment=tuple(filter(None, variables)))


def process_labels(names: Iterable[str]) -> ProcessLabels:
    """Return a function that looks up the labels of processes for exporters.

    Args:
        names: The labels, from ``user``, ``container``, ``runtime``, ``pod``, ``slurm_job``, ``slurm_step``.

    Returns:
        A function of a reading and process ids. It returns the labels of each process by its id, without labels that cannot be read.

    Raises:
        UnknownNameError: A name is no label. The command line is none, because it may hold secrets.
    """
    wanted = tuple(dict.fromkeys(names))
    for name in wanted:
        if name not in LABELS:
            raise UnknownNameError("label of a process", name, LABELS)

    def look_up(snapshot: Snapshot, pids: Sequence[int]) -> dict[int, dict[str, str]]:
        if snapshot.hostname != hostname():
            return {}
        listed, asked = own_processes(snapshot), frozenset(pids)
        uses = [(key, use) for key, found in listed.items() if not isinstance(found, Unavailable) for use in found if use.pid in asked]
        labels_by_pid: dict[int, dict[str, str]] = {}
        for process in _about(snapshot, uses, SystemReader()):
            labels = {name: value for name in wanted if (value := getattr(process, name))}
            # Drivers of two vendors may report two processes with the same id. Only labels that both share are certain.
            labels_by_pid[process.pid] = {
                name: value for name, value in labels.items() if labels_by_pid.get(process.pid, labels).get(name) == value
            }
        return labels_by_pid

    return look_up


def located(snapshot: Snapshot, uses: Iterable[tuple[str, DeviceProcess]]) -> list[int | str]:
    """Return the id in ``/proc`` of each process, or the reason in words why it is not certain.

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
    """Return the system's facts about the process of each use, with the driver's id and no device. Each process is read once."""
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
    """A reader of the system's facts about processes, for one listing. Facts that several processes share are read once."""

    def __init__(self) -> None:
        self._users: dict[int, str] = {}
        self._boot = _BOOT.search(read_text("/proc/stat") or "")  # in seconds since 1970
        self._whole_hierarchy = namespace_of("self", "cgroup") in {"", WHOLE_HIERARCHY}

    def look_up(self, pid: int, seen: float = math.inf, parents: bool = False) -> ProcessInfo:
        """Return the system's facts about a process, without a device.

        Args:
            pid: Its id in the mounted ``/proc``.
            seen: When the driver listed it, in seconds since 1970. A process that started later is another one.
            parents: Whether to add its ancestors.
        """
        if not is_visible(pid):
            return _unknown(pid, f"process {pid} has ended")
        known: dict[str, Any] = {}
        missing: dict[str, str] = {}
        portable = sys.platform != "linux"
        readers = {"user": self._user, "command": _command, "started": self._started}
        for field, read in readers.items():
            try:
                known[field] = _from_psutil(field, pid) if portable else read(pid)
            except (OSError, ValueError, LookupError) as error:
                missing[field] = _why(pid, error)
        try:
            known |= membership(read_once(f"/proc/{pid}/cgroup").decode("utf-8", "replace"))
            # Inside a cgroup namespace the path lacks its outer part. Then no job in the path does not mean that there is none.
            why = "the system shows only the part of its cgroup inside this container"
            missing |= {} if self._whole_hierarchy else {field: why for field in _JOBS if field not in known}
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
        return self._users.setdefault(uid, self._users.get(uid) or _user_name(uid))

    def _started(self, pid: int) -> float:
        if self._boot is None:
            raise ValueError("/proc/stat has no time of boot")
        return int(self._boot[1]) + int(_stat(pid)[1][_STARTED]) / os.sysconf("SC_CLK_TCK")


def _stat(pid: int) -> tuple[str, list[str]]:
    """Read ``/proc/PID/stat``: the name of a process, and the fields behind the name."""
    # The name may contain spaces and parentheses itself, so the last parenthesis ends it.
    head, end, rest = read_once(f"/proc/{pid}/stat").decode("utf-8", "replace").rpartition(")")
    if not end:
        raise ValueError("/proc/PID/stat has no name")
    return head.partition("(")[2], rest.split()


def _command(pid: int) -> str:
    words = read_once(f"/proc/{pid}/cmdline").decode("utf-8", "replace").rstrip("\0").split("\0")
    if any(words):
        return " ".join(words)
    name, rest = _stat(pid)
    if rest[_STATE] == "Z":  # a zombie has ended, and has no command line for that reason
        raise ProcessLookupError
    return f"[{name}]"


def _user_name(uid: int) -> str:
    """Return the name of a user on the system below ``ACCELMETRICS_SYSROOT``, or the user id if it has no name."""
    if sysroot():
        entries = (line.split(":") for line in (read_text("/etc/passwd") or "").splitlines())
        return next((entry[0] for entry in entries if entry[2:3] == [str(uid)]), str(uid))
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _from_psutil(field: str, pid: int) -> Any:
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
    """Parse ``/proc/PID/cgroup`` of cgroup v1 or v2. Return the container, pod and Slurm job in its paths, by field."""
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
    """Return the reason, in words, why a fact about a process is not known."""
    if isinstance(error, PermissionError):
        return f"process {pid} belongs to another user, whose processes this user may not read"
    if isinstance(error, ProcessLookupError) or (isinstance(error, FileNotFoundError) and not is_visible(pid)):
        return f"process {pid} has ended"
    if isinstance(error, FileNotFoundError):
        return "this system does not report it"
    return (error.strerror if isinstance(error, OSError) else None) or "the answer of the system has an unknown form"
