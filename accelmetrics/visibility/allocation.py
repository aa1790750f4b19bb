"""``accelmetrics.allocation()``: which process of a distributed job was given which devices, and which it really uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from accelmetrics.backends.contract import Backend
from accelmetrics.backends.visible import Visibility, visibility
from accelmetrics.sampling.options import DEFAULT_OPEN_TIMEOUT, DEFAULT_TIMEOUT, Choice
from accelmetrics.sampling.sampler import Sampler
from accelmetrics.sampling.selection import Selection
from accelmetrics.schemas.errors import InvalidOptionError
from accelmetrics.schemas.identity import DeviceProcess
from accelmetrics.schemas.snapshot import DeviceSlot, Snapshot
from accelmetrics.visibility import job
from accelmetrics.visibility.allocation_findings import findings, user
from accelmetrics.visibility.allocation_records import Allocation, Pool, Use, UsedDevice, Worker
from accelmetrics.visibility.ranks import RAY_NOTE, ray_decides

CONTAINER_LIST = "NVIDIA_VISIBLE_DEVICES"
CONTAINER_NOTE = f"it runs in a container of its own that was given some devices ({CONTAINER_LIST}), and its numbers count those"

Processes = Mapping[str, tuple[DeviceProcess, ...]]


def allocation(
    pids: Sequence[int] = (),
    *,
    children: bool = False,
    roles: Mapping[str, Sequence[int]] | None = None,
    expect: Mapping[str, Sequence[Choice]] | None = None,
    backends: Sequence[str | Backend] | None = None,
    timeout: float = DEFAULT_TIMEOUT,
    open_timeout: float = DEFAULT_OPEN_TIMEOUT,
) -> Allocation:
    """Compare what the processes of a job were given with what they use.

    Args:
        pids: The processes; when neither they nor ``roles`` are given, every process that uses a device.
        children: Whether ``pids`` are launchers: then the job is what runs at and below them.
        roles: By role, its processes. Others have the role of their ``ACCELMETRICS_ROLE``.
        expect: By role, the devices that it should use, and nobody outside the role: numbers, keys or UUIDs. A device may be
            expected of several roles, which then share it.
        backends: Names, or backend objects, to look at; all that are registered when left out.
        timeout: Seconds within which the devices are read.
        open_timeout: Seconds to wait for drivers that are still opening.

    Returns:
        A record of workers, devices and findings in words. What may not be read (another user's environment) is said there.

    Raises:
        InvalidOptionError: An option that cannot be used.
        UnknownNameError: ``expect`` names a device that is not there.
    """
    given = dict(roles or {})
    _check([*pids, *(pid for each in given.values() for pid in each)], children and not pids)
    with Sampler(backends, timeout=timeout, open_timeout=open_timeout) as sampler:
        snapshot = sampler.sample()
    processes = _processes(snapshot)
    pools = [(role, _chosen(choices, snapshot.identities)) for role, choices in (expect or {}).items()]
    members = _members(pids, children, given, processes)
    role_of = {pid: role for role, each in given.items() for pid in each}
    held = _held(members, processes)
    workers = [_worker(member, role_of.get(member.pid, ""), held.get(member.pid, ()), snapshot.identities) for member in members]
    workers.sort(key=lambda worker: (worker.role, worker.rank is None, worker.rank or 0, worker.local_rank or 0, worker.pid))
    made = Allocation(
        snapshot.timestamp,
        snapshot.hostname,
        tuple(workers),
        _devices(snapshot, processes),
        tuple(Pool(role, expected, _used_by(role, workers, snapshot.identities)) for role, expected in pools),
        (),
    )
    return made._replace(findings=tuple(findings(made, members, snapshot, processes)))


def _check(pids: Sequence[object], childless: bool) -> None:
    for pid in pids:
        if isinstance(pid, bool) or not isinstance(pid, int) or pid < 1:
            raise InvalidOptionError(f"{pid!r} is no process id: it must be a whole number above 0")
    if len(set(pids)) < len(pids):
        raise InvalidOptionError("a process is named twice: each has one role")
    if childless:
        raise InvalidOptionError("children needs the launcher whose children are meant: give its process id in pids")


def _processes(snapshot: Snapshot) -> Processes:
    """By device, who uses it; a device whose partitions say it themselves is left to those."""
    told = _told_by_partitions(snapshot)
    return {key: found for key, found in snapshot.processes.items() if key not in told}


def _told_by_partitions(snapshot: Snapshot) -> set[str]:
    listing = {place.identity.parent for place in snapshot.identities if place.identity.parent and place.key in snapshot.processes}
    return {place.key for place in snapshot.identities if place.identity.anchor in listing}


def _chosen(choices: Sequence[Choice], places: Sequence[DeviceSlot]) -> tuple[str, ...]:
    if isinstance(choices, (str, int)) or not choices:
        raise InvalidOptionError(f"expect has {choices!r} for a role: it must be a list of device numbers, keys or UUIDs")
    selection = Selection(choices)
    selection.check(places)
    return tuple(place.key for place in places if selection.names(place))


def _members(pids: Sequence[int], children: bool, roles: Mapping[str, Sequence[int]], processes: Processes) -> list[job.Member]:
    using = sorted({process.pid for found in processes.values() for process in found})
    if not pids and not roles:
        return [job.listed(number) for number in using]
    first = [job.named(pid) for pid in pids]
    spoken = [job.named(pid) for each in roles.values() for pid in each]
    launched = [*job.below(first, using), *(member for member in first if member.environment.gone)] if children else first
    known = {member.number for member in spoken}
    return [*spoken, *(member for member in launched if member.number is None or member.number not in known)]


def _held(members: Sequence[job.Member], processes: Processes) -> dict[int, tuple[Use, ...]]:
    """By worker, the devices that it uses and the memory that it holds of each, its helpers' included."""
    held: dict[int, dict[str, int | None]] = {}
    for key, found in processes.items():
        for process in found:
            member = user(members, process.pid)
            if member is not None:
                uses = held.setdefault(member.pid, {})
                uses[key] = _sum(uses[key], process.memory_bytes) if key in uses else process.memory_bytes
    return {pid: tuple(Use(key, memory) for key, memory in uses.items()) for pid, uses in held.items()}


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


def _worker(member: job.Member, role: str, used: tuple[Use, ...], places: Sequence[DeviceSlot]) -> Worker:
    position = member.position
    worker = Worker(member.pid, job.name_of(member), role or position.role, position.rank, position.local_rank, used=used)
    values = member.environment.values
    if values is None:
        return worker._replace(notes=(member.environment.why,))
    seen = visibility(values, [place.identity for place in places])
    keys = _in_order(seen, places)
    notes = seen.caveats
    if not seen.lists and ray_decides(values):
        keys, notes = None, (*notes, RAY_NOTE)
    by_uuid = bool(seen.lists) and all(listed.value.startswith(("GPU-", "MIG-")) for listed in seen.lists)
    if not by_uuid and values.get(CONTAINER_LIST, "all") != "all" and job.in_other_container(member):
        keys, notes = None, (*notes, CONTAINER_NOTE)
    return worker._replace(lists=seen.lists, visible=keys, notes=notes)


def _in_order(seen: Visibility, places: Sequence[DeviceSlot]) -> tuple[str, ...] | None:
    if None in seen.visible:
        return None
    shown = [(place, position or 0) for place, sees, position in zip(places, seen.visible, seen.positions, strict=True) if sees]
    vendors = list(dict.fromkeys(place.identity.vendor for place, _ in shown))
    shown.sort(key=lambda entry: (vendors.index(entry[0].identity.vendor), entry[1]))
    return tuple(place.key for place, _ in shown)


def _devices(snapshot: Snapshot, processes: Processes) -> tuple[UsedDevice, ...]:
    told = _told_by_partitions(snapshot)
    return tuple(
        UsedDevice(
            place.key,
            place.identity.name,
            place.identity.uuid,
            tuple(process.pid for process in processes[place.key]) if place.key in processes else None,
        )
        for place in snapshot.identities
        if place.key not in told and (not place.identity.parent or place.key in processes)
    )


def _used_by(role: str, workers: Sequence[Worker], places: Sequence[DeviceSlot]) -> tuple[str, ...]:
    used = {key for worker in workers if worker.role == role for key in worker.uses}
    return tuple(place.key for place in places if place.key in used)
