"""What there is to know about an allocation, in words: a function for each kind of finding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

from accelmetrics.backends.visible import rule
from accelmetrics.schemas.identity import DeviceProcess
from accelmetrics.schemas.snapshot import Snapshot
from accelmetrics.visibility.job import Member, owner

if TYPE_CHECKING:
    from accelmetrics.visibility.allocation import Allocation, Pool, Processes, Worker

FAILING = frozenset({"pool_differs", "pool_unclear", "gone"})
"""Findings after which the answer to what was asked is no, or none."""
ONLY_DRAWS = "graphics"
"""The type of a process that computes nothing: a display server takes no device from a job."""
NO_LIST_OF_PROCESSES = "the source does not list processes, or may not look into all of them"


class Finding(NamedTuple):
    """One remark about an allocation.

    Attributes:
        kind: In one word, for programs: ``shared_device``, ``pool_differs`` …
        text: In words, for people.
        pids: The processes concerned.
        devices: The devices concerned.
    """

    kind: str
    text: str
    pids: tuple[int, ...] = ()
    devices: tuple[str, ...] = ()


def findings(made: Allocation, members: Sequence[Member], snapshot: Snapshot, processes: Processes) -> Iterator[Finding]:
    """List everything to know, what was asked for first.

    Args:
        made: Workers, devices and pools.
        members: The processes behind the workers.
        snapshot: The reading that it was made from.
        processes: By device, the processes that use it.
    """
    unclear = [device.key for device in made.devices if device.pids is None]
    by_pid = {member.pid: member for member in members}
    for pool in made.pools:
        yield from _pool(pool, made.workers, [key for key in pool.expected if key in unclear])
        yield from _intruders(pool, made, members, processes)
    for worker in made.workers:
        yield from _unknown(worker, by_pid[worker.pid])
    yield from _shared(made.workers, by_pid)
    rules = [rule(vendor) for vendor in dict.fromkeys(slot.identity.vendor for slot in snapshot.identities)]
    variables = [found.variable for found in rules if found is not None]
    for worker in made.workers:
        yield from _outside(worker)
        yield from _list(worker, by_pid[worker.pid], variables)
        yield from _idle(worker, by_pid[worker.pid], unclear)
    yield from _unused(made)
    for key, found in processes.items():
        pids = tuple(process.pid for process in found if owner(members, process.pid) is None)
        if pids:
            text = f"{key} is also used by {', '.join(map(str, pids))}, not of the processes asked about"
            yield Finding("stranger", text, pids, (key,))
    if unclear:
        text = f"which processes use {listed(unclear)} cannot be told: {NO_LIST_OF_PROCESSES}"
        yield Finding("use_unknown", text, (), tuple(unclear))
    for status in snapshot.backends:
        if status.name != "host" and status.status in {"failed", "timed_out", "degraded"}:
            yield Finding("source", f"{status.name}: {status.detail}")


def _pool(pool: Pool, workers: Sequence[Worker], unclear: Sequence[str]) -> Iterator[Finding]:
    pids = tuple(worker.pid for worker in workers if worker.role == pool.role)
    expected = f"{pool.role}: expected on {listed(pool.expected)}"
    if not pids:
        yield Finding("pool_differs", f"{pool.role}: no process has this role; expected on {listed(pool.expected)}", (), pool.expected)
        return
    missing = [key for key in pool.expected if key not in pool.used and key not in unclear]
    extra = [key for key in pool.used if key not in pool.expected]
    if missing or extra:
        parts = [f"does not use {listed(missing)}"] * bool(missing) + [f"uses {listed(extra)} beyond that"] * bool(extra)
        yield Finding("pool_differs", f"{expected}, {' and '.join(parts)}", pids, (*missing, *extra))
    if unclear:
        text = f"{expected}, but which processes use {listed(unclear)} cannot be told"
        yield Finding("pool_unclear", text, pids, tuple(unclear))


def _intruders(pool: Pool, made: Allocation, members: Sequence[Member], processes: Processes) -> Iterator[Finding]:
    """Users of a role's devices that are not of the role, nor of another role that the device is expected of, nor their helpers."""
    roles = {worker.pid: worker.role for worker in made.workers}
    if pool.role not in roles.values():
        return
    labels = {worker.pid: worker.label for worker in made.workers}
    found: dict[tuple[int, ...], list[str]] = {}
    for key in pool.expected:
        allowed = {other.role for other in made.pools if key in other.expected}
        own = [member for member in members if roles[member.pid] in allowed]
        others = _others(own, members, processes.get(key, ()))
        if others:
            found.setdefault(others, []).append(key)
    for pids, keys in found.items():
        names = listed([labels.get(pid, f"PID {pid}") for pid in pids])
        verb = "is" if len(keys) == 1 else "are"
        text = f"{pool.role}: expected on {listed(pool.expected)} alone, but {listed(keys)} {verb} also used by {names}"
        yield Finding("pool_differs", text, pids, tuple(keys))


def _others(own: Sequence[Member], members: Sequence[Member], processes: Sequence[DeviceProcess]) -> tuple[int, ...]:
    """The users of a device that are neither some processes of the job, nor helpers of theirs."""
    found = []
    for process in processes:
        member = owner(members, process.pid)
        if process.type != ONLY_DRAWS and not (member and (member in own or any(_same_rank(member, one) for one in own))):
            found.append(member.pid if member else process.pid)
    return tuple(dict.fromkeys(found))


def _unknown(worker: Worker, member: Member) -> Iterator[Finding]:
    environment = member.environment
    if environment.gone:
        yield Finding("gone", environment.why, (worker.pid,))
    elif environment.values is None:
        yield Finding("unreadable", f"{worker.label}: {environment.why}; its list and rank are not known", (worker.pid,))


def _shared(workers: Sequence[Worker], members: Mapping[int, Member]) -> Iterator[Finding]:
    for one, other in combinations(workers, 2):
        common = tuple(sorted(one.uses & other.uses))
        if not common or _same_rank(members[one.pid], members[other.pid]):
            continue
        text = f"{one.label} and {other.label} both use {listed(common)}"
        pids = (one.pid, other.pid)
        if one.lists and other.lists and one.visible is not None and other.visible is not None and not {*one.visible} & {*other.visible}:
            text += f", though each asked for its own: {_asked(one)} and {_asked(other)}"
            yield Finding("shared_unasked", text, pids, common)
        else:
            yield Finding("shared_device", text, pids, common)


def _same_rank(one: Member, other: Member) -> bool:
    return one.below_in_rank(other) or other.below_in_rank(one)


def _asked(worker: Worker) -> str:
    return ", ".join(f"{entry.variable}={entry.value}" for entry in worker.lists)


def _outside(worker: Worker) -> Iterator[Finding]:
    if worker.visible is None:
        return
    # Where the driver lists the processes of a split device under the whole, that may be any of its partitions.
    inside = {part for key in worker.visible for part in (key, ".".join(key.split(".")[:2]))}
    outside = tuple(use.device for use in worker.used if use.device not in inside)
    if outside:
        allowed = listed(worker.visible) if worker.visible else "no device"
        text = f"{worker.label} uses {listed(outside)}, outside its list ({_asked(worker)}: {allowed})"
        yield Finding("outside_list", text, (worker.pid,), outside)


def _list(worker: Worker, member: Member, variables: Sequence[str]) -> Iterator[Finding]:
    if member.environment.values is None:
        return
    for note in worker.notes:
        yield Finding("list_problem", f"{worker.label}: {note}", (worker.pid,))
    if not worker.lists and variables and worker.visible is not None and len(worker.visible) > 1:
        text = f"{worker.label}: no list is set ({' or '.join(variables)}): it sees all {len(worker.visible)} devices"
        yield Finding("no_list", text, (worker.pid,))


def _idle(worker: Worker, member: Member, unclear: Sequence[str]) -> Iterator[Finding]:
    if not worker.used and not member.environment.gone and not unclear:
        given = f", though it was given {listed(worker.visible)}" if worker.lists and worker.visible else ""
        yield Finding("no_device", f"{worker.label} uses no device{given}", (worker.pid,))


def _unused(made: Allocation) -> Iterator[Finding]:
    for device in made.devices:
        if device.pids == ():
            holders = [worker.label for worker in made.workers if worker.lists and device.key in (worker.visible or ())]
            given = f", though it is in the list of {listed(holders)}" if holders else ""
            yield Finding("unused_device", f"no process uses {device.key} ({device.name}){given}", (), (device.key,))


def listed(words: Sequence[str]) -> str:
    """Join words with commas, and an "and" before the last."""
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))
