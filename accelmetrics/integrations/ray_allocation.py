"""Which actors of a Ray cluster were given which devices, by Ray's own tables, and whether that is what was meant.

>>> from accelmetrics.integrations.ray_allocation import ray_allocation
>>> print(ray_allocation({"actor": [8, 8]}).to_json())                       # doctest: +SKIP

Nothing runs in the actors. What their processes then use is read on each machine by ``accelmetrics allocation``.
"""

from __future__ import annotations

import json
import re
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import product
from typing import Any, NamedTuple

import ray
from ray.util.placement_group import placement_group_table

from accelmetrics.backends.guard import guarded
from accelmetrics.schemas.errors import InvalidOptionError, Reason, SourceError
from accelmetrics.schemas.snapshot import plain, rfc3339
from accelmetrics.visibility.allocation import AllocationFinding, joined

ACCELERATORS = ("GPU", "TPU", "neuron_cores", "HPU", "NPU")
"""What Ray calls the resources that are devices."""
RESOURCE = re.compile(rf"({'|'.join(ACCELERATORS)})(?:_group_(?:\d+_)?[0-9a-f]+)?")
"""A device, or one of a placement group: ``GPU``, ``GPU_group_<id>``, ``GPU_group_<bundle>_<id>``."""
WAITING = {"DEPENDENCIES_UNREADY", "PENDING_CREATION", "RESTARTING"}


class RayNode(NamedTuple):
    """A living node.

    Attributes:
        name: Its host name, with a part of its id behind it where several have the same.
        devices: How many devices it offers.
    """

    name: str
    devices: float


class RayGroup(NamedTuple):
    """A placement group.

    Attributes:
        name: Its name; its id where it has none.
        state: ``CREATED``, ``PENDING`` …
        bundles: Of each bundle the node that it lies on, empty before it is placed, and the devices that it reserves.
    """

    name: str
    state: str
    bundles: tuple[tuple[str, float], ...]


class RayActor(NamedTuple):
    """An actor that has devices, waits for some, or belongs to a placement group or a pool that has.

    Attributes:
        name: Its name; its class where it has none.
        kind: Its class.
        group: The name of its placement group; empty without one.
        node: The node that it runs on; empty before it does.
        pid: Its process; 0 before it has one.
        wanted: The devices that it asked for; parts of one too.
        sees: What it was given, in Ray's numbers on its node: ``GPU 0``.
    """

    name: str
    kind: str
    group: str
    node: str
    pid: int
    wanted: float
    sees: tuple[str, ...]

    @property
    def label(self) -> str:
        """What findings call it."""
        return f"{self.name} (PID {self.pid})" if self.pid else self.name


class RayPool(NamedTuple):
    """What was meant for a role, and what is.

    Attributes:
        role: Its name: what the names of its actors, of their class or of their placement group begin with, or a pattern of them.
        expected: Devices on each of its nodes.
        held: By node, the devices that its actors hold.
    """

    role: str
    expected: tuple[int, ...]
    held: dict[str, tuple[str, ...]]


class RayAllocation(NamedTuple):
    """The devices of a Ray cluster's actors.

    Attributes:
        timestamp: When the tables were read (RFC 3339, UTC).
        nodes: The living nodes.
        groups: The placement groups that reserve devices.
        actors: The actors.
        pools: What was meant, by role.
        findings: What to know.
    """

    timestamp: str
    nodes: tuple[RayNode, ...]
    groups: tuple[RayGroup, ...]
    actors: tuple[RayActor, ...]
    pools: tuple[RayPool, ...]
    findings: tuple[AllocationFinding, ...]

    @property
    def as_expected(self) -> bool:
        """Whether every pool has what was meant for it."""
        return not any(finding.kind == "pool_differs" for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Return the whole in new plain containers, ready for ``json``."""
        return {**plain(self), "as_expected": self.as_expected}

    def to_json(self, indent: int | None = None) -> str:
        """Return the whole as text, on one line unless ``indent`` is given."""
        return json.dumps(self.to_dict(), indent=indent)


def ray_allocation(pools: Mapping[str, Sequence[int]] | None = None) -> RayAllocation:
    """Compare what the actors of the connected cluster were given with what was meant.

    Args:
        pools: By role, devices on each of its nodes: ``{"actor": [8, 8]}``. A role is what the names of its actors, of their class or of
            their placement group begin with, or a pattern of them (``*Worker*``).

    Raises:
        InvalidOptionError: A pool without nodes, or with a node without devices.
        SourceError: Ray is not connected, or its tables cannot be read.
    """
    meant = {role: tuple(counts) for role, counts in (pools or {}).items()}
    for role, counts in meant.items():
        if not counts or any(type(count) is not int or count < 1 for count in counts):
            raise InvalidOptionError(f"the pool {role!r} has {list(counts)!r}: it must have the devices of each node, such as [8, 8]")
    if not ray.is_initialized():
        raise SourceError(Reason.DRIVER_UNAVAILABLE, "Ray is not connected: call ray.init(address=...) before")
    outcome = guarded(_read, meant)
    if outcome.value is None:
        why = outcome.failure.detail if outcome.failure is not None else ""
        raise SourceError(Reason.DRIVER_ERROR, f"the tables of Ray {ray.__version__} cannot be read: {why}")
    return outcome.value._replace(findings=tuple(_findings(outcome.value)))


def allocation_at(address: str, pools: Mapping[str, Sequence[int]] | None = None) -> RayAllocation:
    """Connect to a cluster, compare, and leave it.

    Args:
        address: ``auto``, or ``HOST:PORT`` of the cluster's head.
        pools: As for :func:`ray_allocation`.

    Raises:
        InvalidOptionError: As for :func:`ray_allocation`; so is the next.
        SourceError: There is no such cluster, or its tables cannot be read.
    """
    outcome = guarded(ray.init, address=address, log_to_driver=False, logging_level="ERROR")
    if outcome.failure is not None:
        raise SourceError(Reason.DRIVER_UNAVAILABLE, f"no cluster of Ray answers at {address!r}: {outcome.failure.detail}")
    try:
        return ray_allocation(pools)
    finally:
        ray.shutdown()


def _read(meant: Mapping[str, tuple[int, ...]]) -> RayAllocation:
    """Read Ray's tables."""
    alive = {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}
    names: dict[str, str] = {}
    for node_id, told in alive.items():
        names[node_id] = node_name(told, names.values())
    groups = {}
    for group_id, group in placement_group_table().items():
        places = group["bundles_to_node_id"]
        bundles = [(names.get(places[index], ""), devices_among(wants)) for index, wants in group["bundles"].items()]
        if group["state"] != "REMOVED" and any(count for _, count in bundles):
            groups[group_id] = RayGroup(group["name"] or group_id, group["state"], tuple(bundles))
    actors = sorted(_actors(names, groups, meant), key=lambda actor: (actor.node, actor.sees, actor.name))
    held = {role: defaultdict[str, dict[str, None]](dict) for role in meant}  # by role and node, the devices
    for role, actor in product(meant, actors):
        if actor.sees and _belongs(actor, role):
            held[role][actor.node].update(dict.fromkeys(actor.sees))
    return RayAllocation(
        rfc3339(time.time_ns()),
        tuple(RayNode(name, devices_among(alive[node_id]["Resources"])) for node_id, name in names.items()),
        tuple(groups.values()),
        tuple(actors),
        tuple(RayPool(role, counts, {node: tuple(names) for node, names in held[role].items()}) for role, counts in meant.items()),
        (),
    )


def _actors(names: Mapping[str, str], groups: Mapping[str, RayGroup], roles: Collection[str]) -> Iterator[RayActor]:
    """Yield the actors that have to do with devices.

    Only Ray's internal table says which devices an actor was given; what is public tells how many it asked for.
    """
    from ray._private.state import state
    from ray.core.generated.gcs_pb2 import ActorTableData

    for packed in state._connect_and_get_accessor().get_actor_table(None, None):
        told = ActorTableData.FromString(packed)
        status = ActorTableData.ActorState.Name(told.state)
        if status != "ALIVE" and status not in WAITING:
            continue
        given = {
            f"{found[1]} {part.index}"
            for entry in told.resource_mapping
            if (found := RESOURCE.fullmatch(entry.name))
            for part in entry.resource_ids
        }
        group = groups.get(told.placement_group_id.hex())
        alive = status == "ALIVE"
        actor = RayActor(
            told.name or told.class_name,
            told.class_name,
            group.name if group is not None else "",
            names.get(told.address.node_id.hex(), "") if alive else "",
            told.pid if alive else 0,
            devices_among(told.required_resources),
            tuple(sorted(given, key=lambda device: (device.split()[0], int(device.split()[1])))),
        )
        if actor.wanted or actor.sees or group is not None or any(_belongs(actor, role) for role in roles):
            yield actor


def node_name(told: Mapping[str, Any], taken: Collection[str]) -> str:
    """Return the host name of a node, with a part of its id behind it where another node has the same."""
    name: str = told.get("NodeManagerHostname") or told["NodeManagerAddress"]
    return f"{name}-{told['NodeID'][:8]}" if name in taken else name


def devices_among(resources: Mapping[str, float]) -> float:
    """Return how many devices there are among resources; those of a placement group stand there twice."""
    return max([amount for name, amount in resources.items() if RESOURCE.fullmatch(name)], default=0.0)


def _belongs(actor: RayActor, role: str) -> bool:
    return any(name.startswith(role) or fnmatchcase(name, role) for name in (actor.name, actor.kind, actor.group) if name)


def _findings(made: RayAllocation) -> Iterator[AllocationFinding]:
    """List everything to know, what was asked for first."""
    for pool in made.pools:
        members = [actor for actor in made.actors if _belongs(actor, pool.role)]
        if sorted(map(len, pool.held.values())) != sorted(pool.expected):
            meant = f"{pool.role}: meant for {_devices_in(pool.expected, 'on each of {} nodes')}"
            there = joined([f"{len(devices)} on {node}" for node, devices in pool.held.items()])
            why = f"its actors hold {there}" if there else "its actors hold none" if members else "no actor has such a name"
            yield AllocationFinding("pool_differs", f"{meant}, {why}", tuple(actor.pid for actor in members if actor.pid))
    largest = max((node.devices for node in made.nodes), default=0.0)
    for group in made.groups:
        missing = [count for place, count in group.bundles if not place]
        if missing:
            beyond = f", and the largest node has {largest:g}" if max(missing) > largest else ""
            waits = f"waits for {_devices_in(missing, 'in each of {} bundles')}{beyond}"
            yield AllocationFinding("waits", f"the placement group {group.name} ({group.state.lower()}) {waits}")
    for actor in made.actors:
        if not actor.node and actor.wanted:
            yield AllocationFinding("waits", f"{actor.label} waits for {_devices_in([actor.wanted], '')}")
        elif actor.node and not actor.sees:
            text = f"{actor.label} on {actor.node} was given no device" + (f", in the placement group {actor.group}" if actor.group else "")
            yield AllocationFinding("no_device", text, (actor.pid,))
    holders: dict[tuple[str, str], list[RayActor]] = defaultdict(list)
    for actor in made.actors:
        for device in actor.sees:
            holders[actor.node, device].append(actor)
    for (place, device), actors in holders.items():
        if len(actors) > 1:
            text = f"{joined([actor.label for actor in actors])} share {device} of {place}"
            yield AllocationFinding("shared_device", text, tuple(actor.pid for actor in actors), (device,))
    for node in made.nodes:
        used = len([name for name, _ in holders if name == node.name])
        reserved = sum(count for group in made.groups for name, count in group.bundles if name == node.name)
        if used < node.devices:
            text = f"{node.name}: {used} of {node.devices:g} devices are held by actors"
            yield AllocationFinding("unused_device", text + (f", {reserved:g} are reserved by placement groups" if reserved else ""))


def _devices_in(counts: Sequence[float], places: str) -> str:
    """Return ``8 and 4 devices``, or ``8 devices on each of 2 nodes``."""
    same = len(counts) > 1 and len(set(counts)) == 1
    number = f"{counts[0]:g}" if same else joined([f"{count:g}" for count in counts])
    return f"{number} device{'' if number == '1' else 's'}" + (f" {places.format(len(counts))}" if same else "")
