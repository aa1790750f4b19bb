"""The devices that Ray gave the actors and tasks of a cluster, from Ray's tables, compared with an intended placement.

>>> from accelmetrics.integrations.ray_allocation import ray_allocation
>>> print(ray_allocation({"actor": [8, 8]}).to_json())                       # doctest: +SKIP

No code runs in the actors. The tables are the ones that Ray's state API reads, from the cluster's control service and from each node. The
dashboard, which the state API needs, is not needed here. For processes on this machine, the devices that they use are read from the drivers
and compared.
"""

from __future__ import annotations

import json
import re
import socket
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from fnmatch import fnmatchcase
from itertools import combinations, product
from typing import Any, NamedTuple

import psutil
import ray
from ray.util.placement_group import placement_group_table
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from accelmetrics.backends.guard import guarded
from accelmetrics.schemas.errors import AccelMetricsError, InvalidOptionError, Reason, SourceError
from accelmetrics.schemas.snapshot import plain, rfc3339
from accelmetrics.visibility.allocation import AllocationFinding, allocation, joined, visible_devices

ACCELERATORS = ("GPU", "TPU", "neuron_cores", "HPU", "NPU")
"""Ray's names of the resources that are devices."""
# Resources of a placement group have names of their own: GPU_group_<id> and GPU_group_<bundle>_<id>.
RESOURCE = re.compile(rf"({'|'.join(ACCELERATORS)})(?:_group_(?:\d+_)?[0-9a-f]+)?")
WAITING = {"DEPENDENCIES_UNREADY", "PENDING_CREATION", "RESTARTING"}
TASK_WAITS, TASK_RUNS = "PENDING_NODE_ASSIGNMENT", ("SUBMITTED_TO_WORKER", "RUNNING", "GETTING_AND_PINNING_ARGS")
"""Prefixes of Ray's states of a task."""
# Tasks that are read at most. The state API has the same limit.
MOST_TASKS = 10_000
ANSWER_SECONDS = 10.0
"""Seconds to wait for a table of Ray."""
# Seconds to wait for probes. They are slow to start, because Ray starts a Python process for each.
PROBE_SECONDS = 60.0
LISTS = ("_VISIBLE_DEVICES", "_VISIBLE_CORES", "_VISIBLE_CHIPS", "_VISIBLE_MODULES")
"""Suffixes of the variables with which Ray assigns devices."""
FAILING = frozenset({"pool_differs", "other_device", "shared_device", "probe"})
"""Findings that make ``RayAllocation.as_expected`` false."""


class RayNode(NamedTuple):
    """A living node.

    Attributes:
        name: Its host name, followed by a part of its id if several nodes have the same host name.
        devices: Number of devices that it offers.
    """

    name: str
    devices: float


class RayGroup(NamedTuple):
    """A placement group.

    Attributes:
        name: Its name, or its id if it has none.
        state: Its state: ``CREATED``, ``PENDING`` …
        bundles: The node and the number of reserved devices of each bundle. The node is empty until the bundle is placed.
    """

    name: str
    state: str
    bundles: tuple[tuple[str, float], ...]


class RayActor(NamedTuple):
    """An actor or task that has devices, waits for devices, or belongs to a placement group or pool with devices.

    Attributes:
        name: Its name, or its class or function if it has none.
        kind: Its class or function.
        group: The name of its placement group. Empty if it has none.
        node: The node that it runs on. Empty before it runs.
        pid: Its process id. 0 before it has one.
        wanted: The number of requested devices, which may be a fraction.
        sees: The devices that it was given, by Ray's numbers on its node: ``GPU 0``. None if the node of a task did not report them.
        uses: The devices that it uses according to the driver, in the same numbers. None on other machines, and if the driver does not
            report them.
        task: Whether it is a task.
    """

    name: str
    kind: str
    group: str
    node: str
    pid: int
    wanted: float
    sees: tuple[str, ...] | None
    uses: tuple[str, ...] | None = None
    task: bool = False

    @property
    def title(self) -> str:
        """Its name. The name of a task follows the word "task"."""
        return f"task {self.name}" if self.task else self.name

    @property
    def label(self) -> str:
        """Its label in findings."""
        return f"{self.title} (PID {self.pid})" if self.pid else self.title


class RayPool(NamedTuple):
    """Intended and actual devices of a role.

    Attributes:
        role: Its name. It is a prefix of, or a pattern for, the names of its actors, their class or their placement group.
        expected: Number of devices on each of its nodes.
        devices: Numbers of its devices on a single node, if the role was given as numbers.
        held: The devices that its actors hold, by node.
    """

    role: str
    expected: tuple[int, ...]
    devices: tuple[str, ...]
    held: dict[str, tuple[str, ...]]


class RayProbe(NamedTuple):
    """The device list seen by a probe process to which Ray gave a device.

    Attributes:
        node: Its node.
        device: The device that Ray gave it: ``GPU 0``.
        pid: Its process id.
        lists: The variables set by Ray, with their values: ``{"CUDA_VISIBLE_DEVICES": "0"}``.
    """

    node: str
    device: str
    pid: int
    lists: dict[str, str]


class RayAllocation(NamedTuple):
    """The devices of a Ray cluster's actors and tasks.

    Attributes:
        timestamp: When the tables were read (RFC 3339, UTC).
        nodes: The living nodes.
        groups: The placement groups that reserve devices.
        actors: The actors and tasks.
        pools: Intended and actual devices, by role.
        findings: Problems and remarks.
        probes: Device lists seen by probes. Empty unless requested.
    """

    timestamp: str
    nodes: tuple[RayNode, ...]
    groups: tuple[RayGroup, ...]
    actors: tuple[RayActor, ...]
    pools: tuple[RayPool, ...]
    findings: tuple[AllocationFinding, ...]
    probes: tuple[RayProbe, ...] = ()

    @property
    def as_expected(self) -> bool:
        """Whether every pool has its intended devices, and every actor uses only its devices and shares none, unless requested."""
        return not any(finding.kind in FAILING for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Return the allocation as new plain containers, ready for ``json``."""
        return {**plain(self), "as_expected": self.as_expected}

    def to_json(self, indent: int | None = None) -> str:
        """Return the allocation as JSON text, on one line unless ``indent`` is given."""
        return json.dumps(self.to_dict(), indent=indent)


Pools = Mapping[str, Sequence[int | str]]


def ray_allocation(pools: Pools | None = None, *, shared: bool = False, probe: bool = False) -> RayAllocation:
    """Compare the devices given to the actors and tasks of the connected cluster with the intended and the used ones.

    Used devices are known only for processes on this machine.

    Args:
        pools: For each role, the number of devices on each of its nodes: ``{"actor": [8, 8]}``. Or the numbers of the devices on one node,
            as texts: ``{"actor": ["2", "3"]}``. A role is a prefix of the names of its actors, their class or their placement group, or a
            pattern for them (``*Worker*``).
        shared: Whether several actors may have the same device. Pools that name the same device by its number may always share it.
        probe: Whether to start an actor for a moment on each free device, to record the device list that it sees.

    Raises:
        InvalidOptionError: A pool has no nodes, or a node without devices.
        SourceError: Ray is not connected, or its tables cannot be read.
    """
    intended = {role: tuple(each) for role, each in (pools or {}).items()}
    for role, each in intended.items():
        numbers = each and all(isinstance(one, str) and one.isdecimal() for one in each)
        if not numbers and (not each or any(type(one) is not int or one < 1 for one in each)):
            words = "give the number of devices on each node, such as [8, 8], or device numbers as strings, such as ['2', '3']"
            raise InvalidOptionError(f"the pool {role!r} is {list(each)!r}: {words}")
    if not ray.is_initialized():
        raise SourceError(Reason.DRIVER_UNAVAILABLE, "Ray is not connected: call ray.init(address=...) first")
    outcome = guarded(_read, intended)
    if outcome.value is None:
        why = outcome.failure.detail if outcome.failure is not None else ""
        raise SourceError(Reason.DRIVER_ERROR, f"the tables of Ray {ray.__version__} cannot be read: {why}")
    made, remarks = outcome.value
    findings = [*_findings(made, shared), *remarks]
    if probe:
        probes = guarded(_probe, _names(_alive()))
        found, about_probes = probes.value or ((), ())
        findings += about_probes
        if probes.failure is not None:
            findings.append(AllocationFinding("probe", f"nothing could be probed: {probes.failure.detail}"))
        made = made._replace(probes=found)
    return made._replace(findings=tuple(findings))


def allocation_at(address: str, pools: Pools | None = None, *, shared: bool = False, probe: bool = False) -> RayAllocation:
    """Connect to a running cluster, compare as :func:`ray_allocation` does, and disconnect. No cluster is started.

    Args:
        address: ``auto``, or ``HOST:PORT`` of the cluster's head.
        pools: The intended devices, as for :func:`ray_allocation`.
        shared: Whether several actors may have the same device.
        probe: Whether to start an actor on each free device.

    Raises:
        InvalidOptionError: A pool is invalid, or Ray would start a cluster at this address.
        SourceError: No cluster answers there, or its tables cannot be read.
    """
    if address == "local" or "://" in address:
        raise InvalidOptionError(f"{address!r} is not the address of a running cluster: give HOST:PORT of its head, or auto")
    outcome = guarded(ray.init, address=address, log_to_driver=False, logging_level="ERROR")
    if outcome.failure is not None:
        raise SourceError(Reason.DRIVER_UNAVAILABLE, f"no cluster of Ray answers at {address!r}: {outcome.failure.detail}")
    try:
        return ray_allocation(pools, shared=shared, probe=probe)
    finally:
        ray.shutdown()


def _alive() -> dict[str, Any]:
    return {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}


def _names(alive: Mapping[str, Any]) -> dict[str, str]:
    names: dict[str, str] = {}
    for node_id, node in alive.items():
        names[node_id] = node_name(node, names.values())
    return names


def _read(intended: Mapping[str, tuple[int | str, ...]]) -> tuple[RayAllocation, list[AllocationFinding]]:
    """Read Ray's tables. Return the allocation without findings, and remarks on missing facts."""
    alive = _alive()
    names = _names(alive)
    groups = {}
    for group_id, group in placement_group_table().items():
        places = group["bundles_to_node_id"]
        bundles = [(names.get(places[index], ""), devices_among(wants)) for index, wants in group["bundles"].items()]
        if group["state"] != "REMOVED" and any(count for _, count in bundles):
            groups[group_id] = RayGroup(group["name"] or group_id, group["state"], tuple(bundles))
    remarks: list[AllocationFinding] = []
    with closing(_channel(ray.get_runtime_context().gcs_address)) as channel:
        found = [*_actors(channel, names, groups), *_tasks(channel, alive, names, groups, remarks)]
    found = [actor for actor in found if actor.wanted or actor.sees or actor.group or any(_belongs(actor, role) for role in intended)]
    here = [name for node_id, name in names.items() if alive[node_id].get("NodeManagerHostname") == socket.gethostname()]
    found = _with_uses(found, here, remarks)
    actors = sorted(found, key=lambda actor: (actor.node, actor.sees or (), actor.name))
    held = {role: defaultdict[str, dict[str, None]](dict) for role in intended}  # by role and node, the devices
    for role, actor in product(intended, actors):
        if actor.sees and _belongs(actor, role):
            held[role][actor.node].update(dict.fromkeys(actor.sees))
    pools = []
    for role, each in intended.items():
        counts, numbers = tuple(item for item in each if isinstance(item, int)), tuple(item for item in each if isinstance(item, str))
        pools.append(RayPool(role, counts or (len(numbers),), numbers, {node: tuple(names) for node, names in held[role].items()}))
    return (
        RayAllocation(
            rfc3339(time.time_ns()),
            tuple(RayNode(name, devices_among(alive[node_id]["Resources"])) for node_id, name in names.items()),
            tuple(groups.values()),
            tuple(actors),
            tuple(pools),
            (),
        ),
        remarks,
    )


def _channel(address: str) -> Any:
    """Connect to a service of Ray."""
    # grpc alone would not do: Ray's function adds the cluster's token and certificates.
    try:
        from ray._private.grpc_utils import init_grpc_channel
    except ImportError:  # its place until Ray 2.46
        from ray._private.utils import init_grpc_channel
    # The tables of a large cluster may exceed grpc's default limit of 4 MiB.
    return init_grpc_channel(address, options=(("grpc.max_receive_message_length", -1),))


def _actors(channel: Any, names: Mapping[str, str], groups: Mapping[str, RayGroup]) -> Iterator[RayActor]:
    """Yield the actors that are alive or wait to start."""
    # The state API itself returns only the number of requested devices. The table behind it also has the numbers of the given devices.
    from ray.core.generated.gcs_pb2 import ActorTableData
    from ray.core.generated.gcs_service_pb2 import GetAllActorInfoRequest
    from ray.core.generated.gcs_service_pb2_grpc import ActorInfoGcsServiceStub

    for entry in ActorInfoGcsServiceStub(channel).GetAllActorInfo(GetAllActorInfoRequest(), timeout=ANSWER_SECONDS).actor_table_data:
        status = ActorTableData.ActorState.Name(entry.state)
        if status != "ALIVE" and status not in WAITING:
            continue
        group = groups.get(entry.placement_group_id.hex())
        alive, place = status == "ALIVE", entry.address
        node_id = place.node_id if hasattr(place, "node_id") else place.raylet_id  # the name until Ray 2.46
        yield RayActor(
            entry.name or entry.class_name,
            entry.class_name,
            group.name if group is not None else "",
            names.get(node_id.hex(), "") if alive else "",
            entry.pid if alive else 0,
            devices_among(entry.required_resources),
            _device_names((given.name, [part.index for part in given.resource_ids]) for given in entry.resource_mapping),
        )


def _tasks(
    channel: Any, alive: Mapping[str, Any], names: Mapping[str, str], groups: Mapping[str, RayGroup], remarks: list[AllocationFinding]
) -> Iterator[RayActor]:
    """Yield the tasks that run with devices or wait for devices."""
    # The table of tasks has no device numbers. The raylet of each node reports them by process.
    from ray.core.generated.common_pb2 import TaskStatus, TaskType
    from ray.core.generated.gcs_service_pb2 import GetTaskEventsRequest
    from ray.core.generated.gcs_service_pb2_grpc import TaskInfoGcsServiceStub

    request = GetTaskEventsRequest(limit=MOST_TASKS)
    events = TaskInfoGcsServiceStub(channel).GetTaskEvents(request, timeout=ANSWER_SECONDS).events_by_task
    if len(events) >= MOST_TASKS:
        remarks.append(AllocationFinding("tasks_unknown", f"there are more than {MOST_TASKS} tasks: some are not checked"))
    given: dict[str, dict[int, tuple[str, ...]] | None] = {}
    for entry in events:
        times, wanted = entry.state_updates.state_ts_ns, devices_among(entry.task_info.required_resources)
        if not wanted or not times or entry.task_info.type != TaskType.Value("NORMAL_TASK"):
            continue
        status = TaskStatus.Name(max(times, key=times.__getitem__))
        runs = status.startswith(TASK_RUNS)
        if not runs and status != TASK_WAITS:
            continue
        node_id, pid = entry.state_updates.node_id.hex(), entry.state_updates.worker_pid
        if runs and node_id not in alive:
            continue
        if runs and node_id not in given:
            outcome = guarded(_given_to_workers, alive[node_id])
            given[node_id] = outcome.value
            if outcome.failure is not None:
                words = f"{names[node_id]} does not report the devices of its tasks: {outcome.failure.detail}"
                remarks.append(AllocationFinding("tasks_unknown", words))
        held = given.get(node_id)
        group = groups.get(entry.task_info.placement_group_id.hex())
        yield RayActor(
            entry.task_info.name or entry.task_info.func_or_class_name,
            entry.task_info.func_or_class_name,
            group.name if group is not None else "",
            names[node_id] if runs else "",
            pid if runs else 0,
            wanted,
            () if not runs else (held or {}).get(pid) or None,  # a busy worker answers its raylet late
            task=True,
        )


def _given_to_workers(node: Mapping[str, Any]) -> dict[int, tuple[str, ...]]:
    """Return the devices given to each process of a node, by process id."""
    from ray.core.generated.node_manager_pb2 import GetNodeStatsRequest
    from ray.core.generated.node_manager_pb2_grpc import NodeManagerServiceStub

    with closing(_channel(f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}")) as channel:
        workers = NodeManagerServiceStub(channel).GetNodeStats(GetNodeStatsRequest(), timeout=ANSWER_SECONDS).core_workers_stats
    return {
        worker.pid: _device_names((name, [slot.slot for slot in used.resource_slots]) for name, used in worker.used_resources.items())
        for worker in workers
    }


def _device_names(resources: Iterable[tuple[str, Iterable[int]]]) -> tuple[str, ...]:
    """Return the devices in a list of resources, sorted, each once, though a placement group lists one several times."""
    found = {(match[1], number) for name, numbers in resources if (match := RESOURCE.fullmatch(name)) for number in numbers}
    return tuple(f"{kind} {number}" for kind, number in sorted(found))


def _with_uses(actors: Sequence[RayActor], here: Collection[str], remarks: list[AllocationFinding]) -> list[RayActor]:
    """Return the actors, with the GPUs that the driver reports for the ones on this machine."""
    # Ray numbers the GPUs of a node in the order of the device list with which its raylet was started. Workers are the raylet's children.
    raylets: dict[int, list[int]] = defaultdict(list)
    for actor in actors:
        if actor.pid and actor.node in here:
            with suppress(psutil.Error):
                parent = psutil.Process(actor.pid).parent()
                if parent is not None and parent.name() == "raylet":
                    raylets[parent.pid].append(actor.pid)
    uses: dict[int, tuple[str, ...]] = {}
    try:
        for raylet, pids in raylets.items():
            order = [device.key for device in visible_devices(raylet) if device.kind == "gpu"]
            for worker in allocation(sorted(set(pids))).workers:
                keys = [use.device for use in worker.used]
                uses[worker.pid] = tuple(f"GPU {order.index(key)}" if key in order else key for key in keys)
    except AccelMetricsError as error:
        remarks.append(AllocationFinding("use_unknown", f"the devices that actors on this machine use are unknown: {error}"))
    return [actor._replace(uses=uses.get(actor.pid)) for actor in actors]


def _probe(names: Mapping[str, str]) -> tuple[tuple[RayProbe, ...], tuple[AllocationFinding, ...]]:
    """Start an actor on each free device, record the device list that it sees, and end all of them."""
    from ray._private.state import available_resources_per_node

    class Probe:  # a local class, so that Ray sends its code to the nodes, which need no accelmetrics
        def seen(self, endings: tuple[str, ...]) -> tuple[int, dict[str, list[str]], dict[str, str]]:
            import os

            import ray

            lists = {name: value for name, value in os.environ.items() if name.endswith(endings) and not name.startswith("NVIDIA_")}
            return os.getpid(), ray.get_runtime_context().get_accelerator_ids(), lists

    started: dict[Any, str] = {}
    actors = []
    try:
        for node_id, free in available_resources_per_node().items():
            for kind in ACCELERATORS:
                for _ in range(int(free.get(kind, 0)) if node_id in names else 0):
                    wants: dict[str, Any] = {"num_gpus": 1} if kind == "GPU" else {"resources": {kind: 1}}
                    strategy = NodeAffinitySchedulingStrategy(node_id, soft=False)
                    actor = ray.remote(Probe).options(num_cpus=0, scheduling_strategy=strategy, **wants).remote()
                    actors.append(actor)
                    started[actor.seen.remote(LISTS)] = names[node_id]
        if not started:
            return (), (AllocationFinding("nothing_free", "no device is free: nothing was probed"),)
        ready, late = ray.wait(list(started), num_returns=len(started), timeout=PROBE_SECONDS)
        found, findings = [], []
        for answer in ready:
            pid, given, lists = ray.get(answer)
            device = joined([f"{kind} {number}" for kind, numbers in given.items() for number in numbers])
            found.append(RayProbe(started[answer], device, pid, lists))
    finally:
        for actor in actors:
            guarded(ray.kill, actor)
    if late:
        where = joined(sorted({started[answer] for answer in late}))
        text = f"{len(late)} of {len(started)} probes did not start within {PROBE_SECONDS:g} s, on {where}"
        findings.append(AllocationFinding("probe", text))
    found.sort()
    for probe in found:
        for name, value in probe.lists.items():
            if "," in value:
                text = f"the probe that Ray gave {probe.device} of {probe.node} saw several devices: {name}={value}"
                findings.append(AllocationFinding("probe", text, (probe.pid,)))
    for one, other in combinations(found, 2):
        if one.node == other.node and one.lists == other.lists:
            lists = ", ".join(f"{name}={value}" for name, value in one.lists.items()) or "none"
            text = f"the probes that Ray gave {one.device} and {other.device} of {one.node} saw the same list: {lists}"
            findings.append(AllocationFinding("probe", text, (one.pid, other.pid)))
    return tuple(found), tuple(findings)


def node_name(node: Mapping[str, Any], taken: Collection[str]) -> str:
    """Return the host name of a node, followed by a part of its id if another node has the same name."""
    name: str = node.get("NodeManagerHostname") or node["NodeManagerAddress"]
    return f"{name}-{node['NodeID'][:8]}" if name in taken else name


def devices_among(resources: Mapping[str, float]) -> float:
    """Return the number of devices in a node's or actor's resources."""
    # The largest amount and not the sum, because a device of a placement group is listed under two names.
    return max([amount for name, amount in resources.items() if RESOURCE.fullmatch(name)], default=0.0)


def _belongs(actor: RayActor, role: str) -> bool:
    return any(name.startswith(role) or fnmatchcase(name, role) for name in (actor.name, actor.kind, actor.group) if name)


def _findings(result: RayAllocation, shared: bool) -> Iterator[AllocationFinding]:
    """Yield all findings: about pools first, then placement groups, actors and tasks, shared devices and nodes."""
    for pool in result.pools:
        members = [actor for actor in result.actors if _belongs(actor, pool.role)]
        held = [{device.split()[1] for device in devices} for devices in pool.held.values()]
        differs = held != [{*pool.devices}] if pool.devices else sorted(map(len, pool.held.values())) != sorted(pool.expected)
        if differs:
            words = f"device{'s' * (len(pool.devices) > 1)} {joined(pool.devices)} of a node"
            expectation = f"{pool.role}: expected {words if pool.devices else _devices_in(pool.expected, 'on each of {} nodes')}"
            there = joined([f"{joined(devices) if pool.devices else len(devices)} on {node}" for node, devices in pool.held.items()])
            why = f"its actors hold {there}" if there else "its actors hold none" if members else "no actor has such a name"
            yield AllocationFinding("pool_differs", f"{expectation}, {why}", tuple(actor.pid for actor in members if actor.pid))
    largest = max((node.devices for node in result.nodes), default=0.0)
    for group in result.groups:
        missing = [count for place, count in group.bundles if not place]
        if missing:
            beyond = f", and the largest node has {largest:g}" if max(missing) > largest else ""
            waits = f"waits for {_devices_in(missing, 'in each of {} bundles')}{beyond}"
            yield AllocationFinding("waits", f"the placement group {group.name} ({group.state.lower()}) {waits}")
    for actor in result.actors:
        if not actor.node and actor.wanted:
            able = len([node for node in result.nodes if node.devices >= actor.wanted])
            where = f"{able} node{'s have' if able > 1 else ' has'} as many" if able else f"the largest node has {largest:g}"
            yield AllocationFinding("waits", f"{actor.label} waits for {_devices_in([actor.wanted], '')}, and {where}")
        elif actor.sees is None:
            yield AllocationFinding("tasks_unknown", f"{actor.label} on {actor.node}: its devices are unknown", (actor.pid,))
        elif actor.node and actor.sees == ():
            text = f"{actor.label} on {actor.node} was given no device" + (f", in the placement group {actor.group}" if actor.group else "")
            yield AllocationFinding("no_device", text, (actor.pid,))
        others = [device for device in actor.uses or () if device not in (actor.sees or ())]
        if others and actor.sees is not None:
            given = joined(actor.sees) or "no device"
            text = f"{actor.label}: Ray gave it {given} of {actor.node}, but it uses {joined(others)}"
            yield AllocationFinding("other_device", text, (actor.pid,), tuple(others))
    holders: dict[tuple[str, str], list[RayActor]] = defaultdict(list)
    for actor in result.actors:
        for device in actor.sees or ():
            holders[actor.node, device].append(actor)
    for (place, device), actors in holders.items():
        if len(actors) > 1:
            naming = [pool.role for pool in result.pools if device.split()[1] in pool.devices]
            requested = shared or all(any(_belongs(actor, role) for role in naming) for actor in actors)
            text = f"{joined([actor.label for actor in actors])} share {device} of {place}" + (", as requested" if requested else "")
            pids = tuple(actor.pid for actor in actors)
            yield AllocationFinding("shared_as_meant" if requested else "shared_device", text, pids, (device,))
    for node in result.nodes:
        holding = [actors for (name, _), actors in holders.items() if name == node.name]
        kinds = sorted({"tasks" if actor.task else "actors" for actors in holding for actor in actors})
        reserved = sum(count for group in result.groups for name, count in group.bundles if name == node.name)
        if len(holding) < node.devices:
            text = f"{node.name}: {len(holding)} of {node.devices:g} devices are held" + (f" by {joined(kinds)}" if kinds else "")
            yield AllocationFinding("unused_device", text + (f", {reserved:g} are reserved by placement groups" if reserved else ""))


def _devices_in(counts: Sequence[float], places: str) -> str:
    """Return a phrase: ``8 and 4 devices``, or ``8 devices on each of 2 nodes`` for equal counts."""
    same = len(counts) > 1 and len(set(counts)) == 1
    number = f"{counts[0]:g}" if same else joined([f"{count:g}" for count in counts])
    return f"{number} device{'' if number == '1' else 's'}" + (f" {places.format(len(counts))}" if same else "")
