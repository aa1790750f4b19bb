"""What there is to know about an allocation, in words: a function for each kind of finding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

from accelmetrics.backends.visible import rule
from accelmetrics.schemas.identity import DeviceProcess
from accelmetrics.schemas.snapshot import Snapshot
from accelmetrics.visibility.allocation_records import (
    GONE,
    LIST_PROBLEM,
    NO_DEVICE,
    NO_LIST,
    OUTSIDE,
    POOL_DIFFERS,
    POOL_UNCLEAR,
    SHARED,
    SHARED_UNASKED,
    SOURCE,
    STRANGER,
    UNREADABLE,
    UNUSED,
    USE_UNKNOWN,
    Allocation,
    Finding,
    Pool,
    Worker,
)
from accelmetrics.visibility.job import Member, owner

ONLY_DRAWS = "graphics"
"""The type of a process that computes nothing: a display server takes no device from a job."""
NO_LIST_OF_PROCESSES = "the source does not list processes, or may not look into all of them"

Processes = Mapping[str, tuple[DeviceProcess, ...]]


def findings(made: Allocation, members: Sequence[Member], snapshot: Snapshot, processes: Processes) -> Iterator[Finding]:
    """Everything to know, what was asked for first.

    Args:
        made: Workers, devices and pools.
        members: The processes behind the workers.
        snapshot: The reading that it was made from.
        processes: By device, who uses it.
    """
    unclear = [device.key for device in made.devices if device.pids is None]
    by_pid = {member.pid: member for member in members}
    for pool in made.pools:
        yield from _pool(pool, made.workers, [key for key in pool.expected if key in unclear])
        yield from _intruders(pool, made, members, processes)
    for worker in made.workers:
        yield from _unknown(worker, by_pid[worker.pid])
    yield from _shared(made.workers, by_pid)
    for worker in made.workers:
        yield from _outside(worker)
        yield from _list(worker, by_pid[worker.pid], snapshot)
        yield from _idle(worker, by_pid[worker.pid], unclear)
    yield from _unused(made)
    yield from _strangers(members, processes)
    yield from _sources(snapshot, unclear)


def _pool(pool: Pool, workers: Sequence[Worker], unclear: Sequence[str]) -> Iterator[Finding]:
    pids = tuple(worker.pid for worker in workers if worker.role == pool.role)
    missing = [key for key in pool.expected if key not in pool.used and key not in unclear]
    extra = [key for key in pool.used if key not in pool.expected]
    if not pids:
        yield Finding(POOL_DIFFERS, f"{pool.role}: no process has this role; expected on {listed(pool.expected)}", (), pool.expected)
        return
    if missing or extra:
        parts = [f"does not use {listed(missing)}"] * bool(missing) + [f"uses {listed(extra)} beyond that"] * bool(extra)
        text = f"{pool.role}: expected on {listed(pool.expected)}, {' and '.join(parts)}"
        yield Finding(POOL_DIFFERS, text, pids, (*missing, *extra))
    if unclear:
        text = f"{pool.role}: expected on {listed(pool.expected)}, but who uses {listed(unclear)} cannot be told"
        yield Finding(POOL_UNCLEAR, text, pids, tuple(unclear))


def _intruders(pool: Pool, made: Allocation, members: Sequence[Member], processes: Processes) -> Iterator[Finding]:
    """Who else is on the devices of a role."""
    roles = {worker.pid: worker.role for worker in made.workers}
    if pool.role not in roles.values():
        return
    labels = {worker.pid: worker.label for worker in made.workers}
    found: dict[tuple[int, ...], list[str]] = {}
    for key in pool.expected:
        # A device that several roles are expected on is theirs together.
        hosts = {other.role for other in made.pools if key in other.expected}
        own = [member for member in members if roles[member.pid] in hosts]
        others = _beside(own, members, processes.get(key, ()))
        if others:
            found.setdefault(others, []).append(key)
    for pids, keys in found.items():
        names = listed([labels.get(pid, f"PID {pid}") for pid in pids])
        verb = "is" if len(keys) == 1 else "are"
        text = f"{pool.role}: expected on {listed(pool.expected)} alone, but {listed(keys)} {verb} also used by {names}"
        yield Finding(POOL_DIFFERS, text, pids, tuple(keys))


def _beside(own: Sequence[Member], members: Sequence[Member], processes: Sequence[DeviceProcess]) -> tuple[int, ...]:
    """Which of a device's users are neither some processes of the job, nor helpers of theirs."""
    found = []
    for process in processes:
        member = user(members, process.pid)
        if process.type != ONLY_DRAWS and not (member and (member in own or any(_same_rank(member, one) for one in own))):
            found.append(member.pid if member else process.pid)
    return tuple(dict.fromkeys(found))


def user(members: Sequence[Member], pid: int) -> Member | None:
    """Which process of the job a driver's process is, or works for; None where it is none of the job."""
    return next((one for one in members if one.number is None and one.pid == pid), None) or owner(members, pid)


def _unknown(worker: Worker, member: Member) -> Iterator[Finding]:
    environment = member.environment
    if environment.gone:
        yield Finding(GONE, environment.why, (worker.pid,))
    elif environment.values is None:
        yield Finding(UNREADABLE, f"{worker.label}: {environment.why}; its list and rank are not known", (worker.pid,))


def _shared(workers: Sequence[Worker], members: Mapping[int, Member]) -> Iterator[Finding]:
    for one, other in combinations(workers, 2):
        common = tuple(key for key in sorted(one.uses & other.uses))
        if not common or _same_rank(members[one.pid], members[other.pid]):
            continue
        pids = (one.pid, other.pid)
        text = f"{one.label} and {other.label} both use {listed(common)}"
        if one.lists and other.lists and one.visible is not None and other.visible is not None and not {*one.visible} & {*other.visible}:
            text += f", though each asked for its own: {_asked(one)} and {_asked(other)}"
            yield Finding(SHARED_UNASKED, text, pids, common)
        else:
            yield Finding(SHARED, text, pids, common)


def _same_rank(one: Member, other: Member) -> bool:
    """Whether one is the other's helper: below it, and of the same place in the job."""
    related = one.number in other.above or other.number in one.above
    return related and one.position == other.position and one.position.known


def _asked(worker: Worker) -> str:
    return ", ".join(f"{listed.variable}={listed.value}" for listed in worker.lists)


def _outside(worker: Worker) -> Iterator[Finding]:
    if worker.visible is None:
        return
    # Where the driver lists the processes of a split device under the whole, that may be any of its partitions.
    inside = {part for key in worker.visible for part in (key, _whole(key))}
    outside = tuple(use.device for use in worker.used if use.device not in inside)
    if outside:
        allowed = listed(worker.visible) if worker.visible else "no device"
        text = f"{worker.label} uses {listed(outside)}, outside its list ({_asked(worker)}: {allowed})"
        yield Finding(OUTSIDE, text, (worker.pid,), outside)


def _whole(key: str) -> str:
    """The key of the device that a partition's key begins with."""
    return ".".join(key.split(".")[:2])


def _list(worker: Worker, member: Member, snapshot: Snapshot) -> Iterator[Finding]:
    if member.environment.values is None:
        return
    for note in worker.notes:
        yield Finding(LIST_PROBLEM, f"{worker.label}: {note}", (worker.pid,))
    rules = [rule(place.identity.kind, place.identity.vendor) for place in snapshot.identities]
    variables = list(dict.fromkeys(found.variable for found in rules if found))
    if not worker.lists and variables and worker.visible is not None and len(worker.visible) > 1:
        text = f"{worker.label}: no list is set ({' or '.join(variables)}): it sees all {len(worker.visible)} devices"
        yield Finding(NO_LIST, text, (worker.pid,))


def _idle(worker: Worker, member: Member, unclear: Sequence[str]) -> Iterator[Finding]:
    if not worker.used and not member.environment.gone and not unclear:
        given = f", though it was given {listed(worker.visible)}" if worker.lists and worker.visible else ""
        yield Finding(NO_DEVICE, f"{worker.label} uses no device{given}", (worker.pid,))


def _unused(made: Allocation) -> Iterator[Finding]:
    for device in made.devices:
        if device.pids == ():
            holders = [worker.label for worker in made.workers if worker.lists and device.key in (worker.visible or ())]
            given = f", though it is in the list of {listed(holders)}" if holders else ""
            yield Finding(UNUSED, f"{device.key} ({device.name}) is used by nobody{given}", (), (device.key,))


def _strangers(members: Sequence[Member], processes: Processes) -> Iterator[Finding]:
    for key, found in processes.items():
        pids = tuple(process.pid for process in found if user(members, process.pid) is None)
        if pids:
            numbers = ", ".join(map(str, pids))
            yield Finding(STRANGER, f"{key} is also used by {numbers}, not of the processes asked about", pids, (key,))


def _sources(snapshot: Snapshot, unclear: Sequence[str]) -> Iterator[Finding]:
    if unclear:
        yield Finding(USE_UNKNOWN, f"who uses {listed(unclear)} cannot be told: {NO_LIST_OF_PROCESSES}", (), tuple(unclear))
    for status in snapshot.backends:
        if status.name != "host" and status.status in {"failed", "timed_out", "degraded"}:
            yield Finding(SOURCE, f"{status.name}: {status.detail}")


def listed(words: Sequence[str]) -> str:
    """Words with commas between, and an "and" before the last."""
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))
