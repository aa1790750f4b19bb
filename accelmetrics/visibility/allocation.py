"""``accelmetrics.allocation()``: which devices each process of a distributed job was given, and which it really uses.

Differences between the two are reported as findings, in words. ``accelmetrics.visible_devices()`` lists the devices that a program sees,
in the program's order.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

from accelmetrics.backends.kit.processes import DriverNumbers
from accelmetrics.backends.registry import BackendChoice
from accelmetrics.backends.visible import VENDORS, VisibleList, visibility
from accelmetrics.sampling.devices import Environment, environment_of
from accelmetrics.sampling.options import DEFAULT_OPEN_TIMEOUT, DEFAULT_TIMEOUT, Choice, DeviceSelection
from accelmetrics.sampling.sampler import Sampler
from accelmetrics.schemas.errors import AccelMetricsError, InvalidOptionError, Reason, Unavailable
from accelmetrics.schemas.identity import DeviceProcess, DeviceSlot
from accelmetrics.schemas.snapshot import Device, Snapshot, own_processes, parents, plain
from accelmetrics.visibility import job
from accelmetrics.visibility.processes import located

CONTAINER_LIST = "NVIDIA_VISIBLE_DEVICES"
FAILING = frozenset({"pool_differs", "pool_unclear", "gone"})
"""Findings that make ``Allocation.as_expected`` false: the expectation is not met, or cannot be checked."""
SUBJECT = "{worker}"
"""Place of the workers' labels in the text of a finding."""
MOST_NAMED = 4
"""Processes that a finding names before it says "and N more"."""
# A display server draws on a GPU but computes nothing there, so it takes no device from a job.
ONLY_DRAWS = "graphics"

ProcessesByDevice = Mapping[str, tuple[DeviceProcess, ...]]
"""The processes that use each device, by device key."""


def visible_devices(
    pid: int | None = None,
    *,
    backends: BackendChoice | None = None,
    timeout: float = DEFAULT_TIMEOUT,
    open_timeout: float = DEFAULT_OPEN_TIMEOUT,
) -> tuple[Device, ...]:
    """List the devices that a program sees by its ``*_VISIBLE_DEVICES``, in its order, each with a fresh reading.

    No framework is imported and no runtime started. The drivers are opened, unless a sampler of this process has them open.

    Args:
        pid: The program. Its environment at its start counts. By default this process, with its current environment.
        backends: Names or objects of the backends to ask. By default all registered ones.
        timeout: Seconds within which the devices are read.
        open_timeout: Seconds to wait for drivers that are still opening.

    Returns:
        The devices, grouped by vendor and ordered by ``visible_index`` within a vendor. ``visible_index`` is None if the
        devices are known but not their order (GPUs of several models without ``CUDA_DEVICE_ORDER=PCI_BUS_ID``).

    Raises:
        AccelMetricsError: The devices that the program sees cannot be determined. The message says why.
    """
    found = environment_of(os.getpid() if pid is None else pid)
    if found.values is None:
        raise AccelMetricsError(f"the devices that process {pid} sees are unknown: {found.why}")
    with Sampler(backends, timeout=timeout, open_timeout=open_timeout, pid=pid) as sampler:
        snapshot = sampler.sample()
    seen = visibility(found.values, [slot.identity for slot in snapshot.identities])
    if seen.order is None:
        raise AccelMetricsError(f"the devices that the program sees are unknown: {'; '.join(seen.caveats)}")
    slots = [slot._replace(visible_index=index) for slot, index in zip(snapshot.identities, seen.positions, strict=True)]
    above = list(parents(slots))
    return tuple(Device(snapshot, slots[number], above[number]) for number in seen.order)


class Use(NamedTuple):
    """A device that a worker uses.

    Attributes:
        device: The device's key.
        memory_bytes: Device memory that the worker holds, in bytes. None if the driver does not report it.
    """

    device: str
    memory_bytes: int | None


class Worker(NamedTuple):
    """A process of the job.

    Attributes:
        pid: Its process id.
        name: Its command, or the title that a framework set.
        role: The role from ``roles``, else from its ``ACCELMETRICS_ROLE``. Empty if neither has one.
        rank: Its rank in the job, if a launcher gave it one.
        local_rank: Its rank on this machine, if a launcher gave it one.
        lists: The variables that choose its devices, as set when it started.
        visible: The devices that these variables leave it, in its order. None if that cannot be determined.
        used: The devices that it really uses, including devices of its child processes that are not workers themselves.
        notes: Remarks about its devices, such as the reason why they are not known.
    """

    pid: int
    name: str = ""
    role: str = ""
    rank: int | None = None
    local_rank: int | None = None
    lists: tuple[VisibleList, ...] = ()
    visible: tuple[str, ...] | None = None
    used: tuple[Use, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """Its label in findings: ``actor rank 3 (PID 4711)``."""
        rank = f"rank {self.rank}" if self.rank is not None else f"local rank {self.local_rank}" if self.local_rank is not None else ""
        words = " ".join(filter(None, (self.role, rank)))
        return f"{words} (PID {self.pid})" if words else f"PID {self.pid}"

    @property
    def uses(self) -> frozenset[str]:
        """The keys of the devices that it uses."""
        return frozenset(use.device for use in self.used)


class UsedDevice(NamedTuple):
    """A device of the machine.

    Attributes:
        key: Its key.
        name: The product name.
        uuid: The vendor's unique id.
        pids: The processes that use it, by the driver's process ids. None if the driver does not list them.
    """

    key: str
    name: str
    uuid: str
    pids: tuple[int, ...] | None


class Pool(NamedTuple):
    """Expected and used devices of a role.

    Attributes:
        role: The role.
        expected: The devices from ``expect``.
        used: The devices that its workers use.
    """

    role: str
    expected: tuple[str, ...]
    used: tuple[str, ...]


class AllocationFinding(NamedTuple):
    """A finding about an allocation.

    Attributes:
        kind: Its kind, in one word for programs: ``shared_device``, ``pool_differs`` …
        text: Its text, for people.
        pids: The processes concerned.
        devices: The devices concerned.
    """

    kind: str
    text: str
    pids: tuple[int, ...] = ()
    devices: tuple[str, ...] = ()


class Allocation(NamedTuple):
    """The devices of a job's processes.

    Attributes:
        timestamp: When the devices were read (RFC 3339, UTC).
        hostname: The machine's name.
        workers: The processes of the job.
        devices: The machine's devices.
        pools: Expected and used devices, by role.
        findings: Problems and remarks.
    """

    timestamp: str
    hostname: str
    workers: tuple[Worker, ...]
    devices: tuple[UsedDevice, ...]
    pools: tuple[Pool, ...]
    findings: tuple[AllocationFinding, ...]

    @property
    def as_expected(self) -> bool:
        """Whether every named process is running, and every role has exactly its expected devices to itself."""
        return not any(finding.kind in FAILING for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Return the allocation as new plain containers, ready for ``json``."""
        return {**plain(self), "as_expected": self.as_expected}

    def to_json(self, indent: int | None = None) -> str:
        """Return the allocation as JSON text, on one line unless ``indent`` is given."""
        import json

        return json.dumps(self.to_dict(), indent=indent)


def allocation(
    pids: Sequence[int] = (),
    *,
    children: bool = False,
    roles: Mapping[str, Sequence[int]] | None = None,
    expect: Mapping[str, Sequence[Choice]] | None = None,
    backends: BackendChoice | None = None,
    timeout: float = DEFAULT_TIMEOUT,
    open_timeout: float = DEFAULT_OPEN_TIMEOUT,
) -> Allocation:
    """Compare the devices that the processes of a job were given with the devices that they use.

    Args:
        pids: The processes. Without them and without ``roles``, every process that uses a device.
        children: Whether ``pids`` are launchers. Then the job consists of the workers at and below them.
        roles: The processes of each role. Other processes have the role of their ``ACCELMETRICS_ROLE``.
        expect: The devices that each role should use alone, as numbers, keys or UUIDs. Roles share a device that several of
            them expect.
        backends: Names or objects of the backends to ask. By default all registered ones.
        timeout: Seconds within which the devices are read.
        open_timeout: Seconds to wait for drivers that are still opening.

    Returns:
        Workers, devices and findings. A finding also says if something may not be read (another user's environment).

    Raises:
        InvalidOptionError: An option is invalid.
        UnknownNameError: ``expect`` names a device that does not exist.
    """
    role_of = {pid: role for role, each in (roles or {}).items() for pid in each}
    all_pids: list[object] = [*pids, *(pid for each in (roles or {}).values() for pid in each)]
    for pid in all_pids:
        if isinstance(pid, bool) or not isinstance(pid, int) or pid < 1:
            raise InvalidOptionError(f"{pid!r} is not a process id: give a whole number above 0")
    if len(set(all_pids)) < len(all_pids):
        raise InvalidOptionError("a process is named twice: give each process once")
    if children and not pids:
        raise InvalidOptionError("children=True needs the process id of a launcher: give it in pids")
    with Sampler(backends, timeout=timeout, open_timeout=open_timeout) as sampler:
        snapshot = sampler.sample()
    slots = snapshot.identities
    listings = own_processes(snapshot)
    processes, unknown = _located(snapshot, {key: found for key, found in listings.items() if not isinstance(found, Unavailable)})
    pools: dict[str, tuple[str, ...]] = {}
    for role, choices in (expect or {}).items():
        if isinstance(choices, (str, int)) or not choices:
            raise InvalidOptionError(f"expect has {choices!r} for a role: give a list of device numbers, keys or UUIDs")
        selection = DeviceSelection(choices)
        selection.check(slots)
        pools[role] = tuple(slot.key for slot in slots if selection.names(slot))
    unclear = {key: why for key, why in listings.items() if isinstance(why, Unavailable)}
    if (pids or role_of) and not DriverNumbers(()).shared:
        # A process that cannot be identified may or may not belong to the job. So it counts neither as a worker nor as a stranger.
        for key, found in processes.items():
            if whys := [unknown[process.pid] for process in found if process.pid in unknown]:
                unclear[key] = Unavailable(Reason.NO_PERMISSION, "; ".join(whys))
        processes = {key: tuple(process for process in found if process.pid not in unknown) for key, found in processes.items()}
    members = _members(pids, children, role_of, processes, unknown)
    held = _held(members, processes)
    workers = [_worker(member, role_of.get(member.pid, ""), held.get(member.pid, {}), slots) for member in members]
    workers.sort(key=lambda worker: (worker.role, worker.rank is None, worker.rank or 0, worker.local_rank or 0, worker.pid))
    used = {role: {key for worker in workers if worker.role == role for key in worker.uses} for role in pools}
    listed = {key: tuple(process.pid for process in found) for key, found in listings.items() if not isinstance(found, Unavailable)}
    result = Allocation(
        snapshot.timestamp,
        snapshot.hostname,
        tuple(workers),
        tuple(UsedDevice(slot.key, slot.identity.name, slot.identity.uuid, listed.get(slot.key)) for slot in slots if slot.key in listings),
        tuple(Pool(role, keys, tuple(slot.key for slot in slots if slot.key in used[role])) for role, keys in pools.items()),
        (),
    )
    return result._replace(findings=tuple(_findings(result, members, snapshot, processes, unclear)))


def _located(snapshot: Snapshot, processes: ProcessesByDevice) -> tuple[ProcessesByDevice, dict[int, str]]:
    """Replace the driver's process ids by the ids in ``/proc``.

    Returns:
        The processes, and by the driver's id the reason why a process cannot be identified. Such a process keeps the driver's
        id, which another process may have in ``/proc``.
    """
    uses = [(key, use) for key, found in processes.items() for use in found]
    numbered: dict[str, tuple[DeviceProcess, ...]] = dict.fromkeys(processes, ())
    unknown: dict[int, str] = {}
    for (key, use), place in zip(uses, located(snapshot, uses), strict=True):
        if isinstance(place, str):
            unknown[use.pid] = place
        numbered[key] += (use if isinstance(place, str) else use._replace(pid=place),)
    return numbered, unknown


def _members(
    pids: Sequence[int], children: bool, role_of: Mapping[int, str], processes: ProcessesByDevice, unknown: Mapping[int, str]
) -> list[job.Member]:
    using = sorted({process.pid for found in processes.values() for process in found})
    if not pids and not role_of:
        # A process that cannot be identified keeps the driver's id.
        return [
            job.Member(number, None, Environment(None, unknown[number])) if number in unknown else job.listed(number) for number in using
        ]
    first = [job.named(pid) for pid in pids]
    with_role = [job.named(pid) for pid in role_of]
    launched = [*job.below(first, using), *(member for member in first if member.environment.gone)] if children else first
    known = {member.number for member in with_role}
    return [*with_role, *(member for member in launched if member.number is None or member.number not in known)]


def _held(members: Sequence[job.Member], processes: ProcessesByDevice) -> dict[int, dict[str, int | None]]:
    """Return the device memory in bytes of each worker with its helpers, by PID and device. None if not reported."""
    held: dict[int, dict[str, int | None]] = {}
    for key, found in processes.items():
        for process in found:
            member = job.owner(members, process.pid)
            if member is not None:
                uses = held.setdefault(member.pid, {})
                before = uses.get(key, 0)
                uses[key] = None if before is None or process.memory_bytes is None else before + process.memory_bytes
    return held


def _worker(member: job.Member, role: str, held: Mapping[str, int | None], slots: Sequence[DeviceSlot]) -> Worker:
    own_role, rank, local_rank = member.position
    used = tuple(Use(key, memory) for key, memory in held.items())
    worker = Worker(member.pid, job.name_of(member), role or own_role, rank, local_rank, used=used)
    values = member.environment.values
    if values is None:
        return worker._replace(notes=(member.environment.why,))
    seen = visibility(values, [slot.identity for slot in slots])
    keys = None if seen.order is None else tuple(slots[number].key for number in seen.order)
    notes = seen.caveats
    if not seen.lists and job.ray_decides(values):
        ray = "it is a worker of Ray, which sets the list inside the running process, where no other process can read it"
        keys, notes = None, (*notes, ray)
    # A UUID means the same device in every container; a number does not.
    by_uuid = bool(seen.lists) and all(listed.value.startswith(("GPU-", "MIG-")) for listed in seen.lists)
    if not by_uuid and values.get(CONTAINER_LIST, "all") != "all" and job.in_other_container(member):
        container = f"it runs in another container with only some devices ({CONTAINER_LIST}), and its device numbers count within them"
        keys, notes = None, (*notes, container)
    return worker._replace(lists=seen.lists, visible=keys, notes=notes)


def _findings(
    result: Allocation, members: Sequence[job.Member], snapshot: Snapshot, processes: ProcessesByDevice, unclear: Mapping[str, Unavailable]
) -> Iterator[AllocationFinding]:
    """Yield all findings: about expected devices first, then workers, pairs of workers, devices and sources.

    Args:
        result: Workers, devices and pools, without findings.
        members: The processes behind the workers.
        snapshot: The reading behind ``result``.
        processes: The processes that use each device.
        unclear: Why the processes of a device are not known, by device.
    """
    by_pid = {member.pid: member for member in members}
    for pool in result.pools:
        yield from _pool_findings(pool, result, members, processes, [key for key in pool.expected if key in unclear])
    vendors = dict.fromkeys(slot.identity.vendor for slot in snapshot.identities)
    variables = " or ".join(VENDORS[vendor][0] for vendor in vendors if vendor in VENDORS)
    alike: dict[tuple[str, str, tuple[str, ...], int], list[Worker]] = {}  # workers with the same problem share one finding
    for worker in result.workers:
        for kind, text, devices in _worker_problems(worker, by_pid[worker.pid].environment, variables, bool(unclear)):
            about = worker.pid if text.startswith(f"{SUBJECT} uses") else 0  # a sentence about one worker
            alike.setdefault((kind, text, devices, about), []).append(worker)
    for (kind, text, devices, _), workers in alike.items():
        labels = [worker.label for worker in workers]
        more = len(labels) - MOST_NAMED
        subject = joined(labels) if more <= 0 else f"{', '.join(labels[:MOST_NAMED])} and {more} more"
        yield AllocationFinding(kind, text.replace(SUBJECT, subject), tuple(worker.pid for worker in workers), devices)
    for one, other in combinations(result.workers, 2):
        common = tuple(sorted(one.uses & other.uses))
        if common and not _same_rank(by_pid[one.pid], by_pid[other.pid]):
            kind, text = "shared_device", f"{one.label} and {other.label} both use {joined(common)}"
            known = one.visible is not None and other.visible is not None
            if one.lists and other.lists and known and not {*(one.visible or ())} & {*(other.visible or ())}:
                kind, text = "shared_unasked", f"{text}, though each asked for its own: {_list_text(one)} and {_list_text(other)}"
            yield AllocationFinding(kind, text, (one.pid, other.pid), common)
    yield from _device_findings(result, members, processes, unclear)
    for status in snapshot.backends:
        reported = any(why.detail and why.detail in status.detail for why in unclear.values())
        if status.name != "host" and status.status in {"failed", "timed_out", "degraded"} and not reported:
            yield AllocationFinding("source", f"{status.name}: {status.detail}")


def _pool_findings(
    pool: Pool, result: Allocation, members: Sequence[job.Member], processes: ProcessesByDevice, unclear: Sequence[str]
) -> Iterator[AllocationFinding]:
    """Compare the expected devices of a role with the devices that its workers use, and find intruders on them.

    An intruder is a process outside the role, outside other roles that expect the device, and no helper of their workers.
    """
    roles = {worker.pid: worker.role for worker in result.workers}
    pids = tuple(pid for pid, role in roles.items() if role == pool.role)
    expected = f"{pool.role}: expected on {joined(pool.expected)}"
    if not pids:
        yield AllocationFinding(
            "pool_differs", f"{pool.role}: no process has this role; expected on {joined(pool.expected)}", (), pool.expected
        )
        return
    missing = [key for key in pool.expected if key not in pool.used and key not in unclear]
    extra = [key for key in pool.used if key not in pool.expected]
    if missing or extra:
        parts = [f"does not use {joined(missing)}"] * bool(missing) + [f"uses {joined(extra)} beyond that"] * bool(extra)
        yield AllocationFinding("pool_differs", f"{expected}, {' and '.join(parts)}", pids, (*missing, *extra))
    if unclear:
        text = f"{expected}, but the processes that use {joined(unclear)} are unknown"
        yield AllocationFinding("pool_unclear", text, pids, tuple(unclear))
    labels = {worker.pid: worker.label for worker in result.workers}
    found: dict[tuple[int, ...], list[str]] = {}
    for key in pool.expected:
        allowed = {other.role for other in result.pools if key in other.expected}
        own = [member for member in members if roles[member.pid] in allowed]
        others: dict[int, None] = {}
        for process in processes.get(key, ()):
            member = job.owner(members, process.pid)
            if process.type != ONLY_DRAWS and not (member and (member in own or any(_same_rank(member, one) for one in own))):
                others[member.pid if member else process.pid] = None
        if others:
            found.setdefault(tuple(others), []).append(key)
    for intruders, keys in found.items():
        names = joined([labels.get(pid, f"PID {pid}") for pid in intruders])
        verb = "is" if len(keys) == 1 else "are"
        yield AllocationFinding("pool_differs", f"{expected} alone, but {joined(keys)} {verb} also used by {names}", intruders, tuple(keys))


def _same_rank(one: job.Member, other: job.Member) -> bool:
    return one.below_in_rank(other) or other.below_in_rank(one)


def _worker_problems(worker: Worker, environment: Environment, variables: str, unclear: bool) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield findings from a worker's device list and the devices that it uses: kind, text with ``SUBJECT`` for the worker, devices."""
    if environment.gone:
        yield "gone", environment.why, ()
        return
    seen = worker.visible or ()
    if environment.values is None:
        yield "unreadable", f"{SUBJECT}: {environment.why}; its list and rank are not known", ()
    if worker.visible is not None:
        # Some drivers list the processes of all partitions under the whole device. So using the whole counts as using a partition.
        inside = {part for key in seen for part in (key, ".".join(key.split(".")[:2]))}
        outside = tuple(use.device for use in worker.used if use.device not in inside)
        if outside:
            allowed = joined(seen) if seen else "no device"
            yield "outside_list", f"{SUBJECT} uses {joined(outside)}, outside its list ({_list_text(worker)}: {allowed})", outside
    for note in worker.notes if environment.values is not None else ():
        yield "list_problem", f"{SUBJECT}: {note}", ()
    if not worker.lists and variables and len(seen) > 1:
        yield "no_list", f"{SUBJECT}: no list is set ({variables}): it sees all {len(seen)} devices", ()
    if not worker.used and not unclear:
        given = f", though it was given {joined(seen)}" if worker.lists and seen else ""
        yield "no_device", f"{SUBJECT} uses no device{given}", ()


def _device_findings(
    result: Allocation, members: Sequence[job.Member], processes: ProcessesByDevice, unclear: Mapping[str, Unavailable]
) -> Iterator[AllocationFinding]:
    unused: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for device in result.devices:
        if device.pids == ():
            holders = tuple(worker.label for worker in result.workers if worker.lists and device.key in (worker.visible or ()))
            unused.setdefault((device.name, holders), []).append(device.key)
    for (name, holders), idle in unused.items():
        given = f", though {'it is' if len(idle) == 1 else 'they are'} in the list of {joined(holders)}" if holders else ""
        yield AllocationFinding("unused_device", f"no process uses {joined(idle)} ({name}){given}", (), tuple(idle))
    for key, found in processes.items():
        pids = tuple(process.pid for process in found if job.owner(members, process.pid) is None)
        if pids:
            text = f"{key} is also used by {', '.join(map(str, pids))}, which do not belong to the job"
            yield AllocationFinding("stranger", text, pids, (key,))
    for why in dict.fromkeys(unclear.values()):
        keys = tuple(key for key, other in unclear.items() if other == why)
        yield AllocationFinding("use_unknown", f"the processes that use {joined(keys)} are unknown: {why.detail or why.reason}", (), keys)


def _list_text(worker: Worker) -> str:
    return ", ".join(f"{entry.variable}={entry.value}" for entry in worker.lists)


def joined(words: Sequence[str]) -> str:
    """Return words joined by commas, with "and" before the last."""
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))
