"""What is found about the actors of a Ray cluster, beside a stand-in for its tables."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Iterator
from importlib import import_module, reload
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import accelmetrics
from accelmetrics.cli.allocation import counts, ray_pools, render_ray
from accelmetrics.schemas.errors import SourceError


class Enum:
    """As protobuf names the members of one."""

    def Name(self, state: str) -> str:  # noqa: N802 - protobuf's own
        return state

    Value = Name


class ActorTableData:
    """An entry of Ray's table of actors."""

    ActorState = Enum()

    def __init__(self, name: str, node: str = "a", group: str = "", state: str = "ALIVE", **given: Any) -> None:
        self.name, self.class_name, self.state, self.pid = name, given.get("kind", "Worker"), state, given.get("pid", 7)
        self.placement_group_id = bytes.fromhex(group)
        self.address = having(node_id=bytes.fromhex(node * 8))
        self.required_resources = given.get("wanted", {})
        self.resource_mapping = [
            having(name=resource, resource_ids=[having(index=int(number)) for number in numbers])
            for resource, numbers in given.get("sees", {}).items()
        ]


def task(name: str, *states: str, node: str = "a", pid: int = 8, kind: str = "NORMAL_TASK", gpus: float = 1.0) -> Any:
    """What Ray's control service tells of a task, which went through these states."""
    info = having(name=name, func_or_class_name=name, type=kind, required_resources={"GPU": gpus}, placement_group_id=b"")
    times = {state: number for number, state in enumerate(states)}
    return having(task_info=info, state_updates=having(node_id=bytes.fromhex(node * 8), worker_pid=pid, state_ts_ns=times))


def having(**attributes: Any) -> Any:
    """One with these attributes."""
    return type("Part", (), attributes)()


class Cluster:
    """Two nodes of four GPUs, what is on them, whether this process is connected; which node hangs."""

    def __init__(self) -> None:
        self.connected = True
        self.actors: list[ActorTableData] = []
        self.tasks: list[Any] = []
        self.workers: dict[int, str] = {}
        self.hangs = ""
        self.groups: dict[str, Any] = {}
        self.hosts = ("one", "")

    def nodes(self) -> list[dict[str, Any]]:
        told = {"Alive": True, "NodeManagerAddress": "192.0.2.1", "NodeManagerPort": 1, "Resources": {"CPU": 8.0, "GPU": 4.0}}
        alive = [{**told, "NodeID": node * 8, "NodeManagerHostname": host} for node, host in zip("ab", self.hosts, strict=True)]
        return [*alive, {"NodeID": "c" * 8, "Alive": False}]

    def group(self, number: str, name: str, *bundles: tuple[str, float], state: str = "CREATED") -> None:
        self.groups[number] = {
            "name": name,
            "state": state,
            "bundles": {index: {"CPU": 1.0, "GPU": count} for index, (_, count) in enumerate(bundles)},
            "bundles_to_node_id": {index: node * 8 for index, (node, _) in enumerate(bundles)},
        }

    def stub(self, channel: str) -> Any:
        """Any of Ray's services; that of a node says which devices its workers were given."""

        def stats(*unused: Any, **limits: Any) -> Any:
            if self.hangs:
                raise TimeoutError(self.hangs)
            used = {pid: {"GPU": having(resource_slots=[having(slot=int(n)) for n in numbers])} for pid, numbers in self.workers.items()}
            return having(core_workers_stats=[having(pid=pid, used_resources=each) for pid, each in used.items()])

        return SimpleNamespace(
            GetAllActorInfo=lambda *unused, **limits: having(actor_table_data=self.actors),
            GetTaskEvents=lambda *unused, **limits: having(events_by_task=self.tasks),
            GetNodeStats=stats,
        )


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """The stand-in, which is what ``import ray`` finds."""
    made = Cluster()
    request = SimpleNamespace
    context = having(gcs_address="192.0.2.1:6379")
    contents: dict[str, dict[str, Any]] = {
        "ray": {
            "nodes": made.nodes,
            "is_initialized": lambda: made.connected,
            "get_runtime_context": lambda: context,
            "__version__": "2.60.0",
        },
        "ray.util": {},
        "ray.util.placement_group": {"placement_group_table": lambda: made.groups},
        "ray.util.scheduling_strategies": {"NodeAffinitySchedulingStrategy": request},
        "ray._private": {},
        "ray._private.grpc_utils": {"init_grpc_channel": lambda address, options: having(close=lambda self: None)},
        "ray.core": {},
        "ray.core.generated": {},
        "ray.core.generated.gcs_pb2": {"ActorTableData": ActorTableData},
        "ray.core.generated.common_pb2": {"TaskStatus": Enum(), "TaskType": Enum()},
        "ray.core.generated.gcs_service_pb2": {"GetAllActorInfoRequest": request, "GetTaskEventsRequest": request},
        "ray.core.generated.gcs_service_pb2_grpc": {"ActorInfoGcsServiceStub": made.stub, "TaskInfoGcsServiceStub": made.stub},
        "ray.core.generated.node_manager_pb2": {"GetNodeStatsRequest": request},
        "ray.core.generated.node_manager_pb2_grpc": {"NodeManagerServiceStub": made.stub},
    }
    for name, content in contents.items():
        module = ModuleType(name)
        module.__dict__.update(content)
        monkeypatch.setitem(sys.modules, name, module)
    yield made
    sys.modules.pop("accelmetrics.integrations.ray_allocation", None)


@pytest.fixture
def integration(cluster: Cluster) -> Any:
    """The module, imported beside the stand-in."""
    return reload(import_module("accelmetrics.integrations.ray_allocation"))


def kinds(found: Any) -> dict[str, str]:
    """By kind, the words of the last such finding."""
    return {finding.kind: finding.text for finding in found.findings}


def test_pools_that_are_as_meant(integration: Any, cluster: Cluster) -> None:
    """By names, by classes, by placement groups and by patterns of them, on any of the nodes; nothing else is to be said."""
    for node, group in (("a", "0a"), ("b", "0b")):
        cluster.group(group, f"global_pool_{node}", *[(node, 1.0)] * 4)
        sees = {f"GPU_group_{group}": "0123", f"GPU_group_2_{group}": "0123", f"bundle_group_{group}": "1"}
        cluster.actors.append(ActorTableData(f"actor_{node}", node, group, wanted={f"GPU_group_{group}": 4.0}, sees=sees))
    cluster.actors.append(ActorTableData("counter", kind="Counter"))
    cluster.actors.append(ActorTableData("gone", state="DEAD", wanted={"GPU": 1.0}))
    found = integration.ray_allocation({"actor": [4, 4], "global_pool": (4, 4), "*_b": [4], "Worker": [4, 4]})
    assert found.as_expected
    assert [actor.name for actor in found.actors] == ["actor_b", "actor_a"]
    assert found.findings == ()
    assert found.pools[0].held == {"one": ("GPU 0", "GPU 1", "GPU 2", "GPU 3"), "192.0.2.1": ("GPU 0", "GPU 1", "GPU 2", "GPU 3")}
    document = json.loads(found.to_json())
    assert document["as_expected"] is True
    assert document["nodes"] == [{"name": "one", "devices": 4.0}, {"name": "192.0.2.1", "devices": 4.0}]


@pytest.mark.parametrize(
    ("pool", "words"),
    [
        ({"actor": [2, 2]}, "actor: expected 2 devices on each of 2 nodes, its actors hold 2 on one"),
        ({"actor": [4, 1]}, "actor: expected 4 and 1 devices, its actors hold 2 on one"),
        ({"critic": [1]}, "critic: expected 1 device, no actor has such a name"),
        ({"blind": [1]}, "blind: expected 1 device, its actors hold none"),
    ],
)
def test_pools_that_differ(pool: dict[str, list[int]], words: str, integration: Any, cluster: Cluster) -> None:
    """What was meant, and what there is."""
    cluster.actors += [ActorTableData("actor", wanted={"GPU": 2.0}, sees={"GPU": "13"}), ActorTableData("blind")]
    found = integration.ray_allocation(pool)
    assert not found.as_expected
    assert kinds(found)["pool_differs"] == words
    assert words.partition(":")[0] + ": expected" in render_ray(found, 200, cut=False)


def test_what_else_is_found(integration: Any, cluster: Cluster) -> None:
    """Devices that several actors hold or none does, actors that have none, and what waits."""
    cluster.group("0a", "pool", ("a", 3.0), ("", 8.0), state="PENDING")
    cluster.actors = [
        ActorTableData("first", wanted={"GPU": 0.5}, sees={"GPU": "0"}),
        ActorTableData("second", wanted={"GPU": 0.5}, sees={"GPU": "0"}),
        ActorTableData("blind", group="0a"),
        ActorTableData("late", state="PENDING_CREATION", wanted={"GPU": 2.0}),
        ActorTableData("wide", state="PENDING_CREATION", wanted={"GPU": 8.0}),
    ]
    found = integration.ray_allocation()
    texts = [finding.text for finding in found.findings]
    assert texts == [
        "the placement group pool (pending) waits for 8 devices, and the largest node has 4",
        "late waits for 2 devices, and 2 nodes have as many",
        "wide waits for 8 devices, and the largest node has 4",
        "blind (PID 7) on one was given no device, in the placement group pool",
        "first (PID 7) and second (PID 7) share GPU 0 of one",
        "one: 1 of 4 devices are held by actors, 3 are reserved by placement groups",
        "192.0.2.1: 0 of 4 devices are held",
    ]
    assert not found.as_expected, "two actors were given one device"
    table = render_ray(found, 200, cut=False)
    assert "late    -      -     -    2      none" in table
    assert integration.ray_allocation(shared=True).as_expected
    assert integration.ray_allocation({"first": ["0"], "second": ["0"]}).as_expected, "both pools name it"
    assert not integration.ray_allocation({"first": ["0"]}).as_expected


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        (["1", "3"], ""),
        (["2", "3"], "actor: expected devices 2 and 3 of a node, its actors hold GPU 1 and GPU 3 on one"),
        (["1"], "actor: expected device 1 of a node, its actors hold GPU 1 and GPU 3 on one"),
    ],
)
def test_pools_by_device(numbers: list[str], words: str, integration: Any, cluster: Cluster) -> None:
    """By their numbers on one node."""
    cluster.actors.append(ActorTableData("actor", wanted={"GPU": 2.0}, sees={"GPU": "13"}))
    found = integration.ray_allocation({"actor": numbers})
    assert (found.as_expected, kinds(found).get("pool_differs", "")) == (not words, words)
    assert f"actor: expected devices {', '.join(numbers)}; holds GPU 1, GPU 3 on one" in render_ray(found, 200, cut=False)


def test_tasks_beside_actors(integration: Any, cluster: Cluster) -> None:
    """Those that run, with what the raylet of their node says of their process, and those that wait; no method of an actor."""
    waiting = ("PENDING_ARGS_AVAIL", "PENDING_NODE_ASSIGNMENT")
    cluster.tasks = [
        task("train", *waiting, "SUBMITTED_TO_WORKER", "RUNNING"),
        task("gets", *waiting, "RUNNING", "RUNNING_IN_RAY_GET", pid=9),
        task("over", *waiting, "RUNNING", "FINISHED"),
        task("late", *waiting, gpus=8.0),
        task("on a node that has gone", "RUNNING", node="c"),
        task("method", "RUNNING", kind="ACTOR_TASK"),
        task("of the CPU", "RUNNING", gpus=0.0),
    ]
    cluster.actors.append(ActorTableData("actor", wanted={"GPU": 1.0}, sees={"GPU": "2"}))
    cluster.workers = {8: "01", 9: "2"}
    found = integration.ray_allocation()
    assert {actor.title: actor.sees for actor in found.actors} == {
        "actor": ("GPU 2",),
        "task train": ("GPU 0", "GPU 1"),
        "task gets": ("GPU 2",),
        "task late": (),
    }
    assert kinds(found)["waits"] == "task late waits for 8 devices, and the largest node has 4"
    assert kinds(found)["shared_device"] == "actor (PID 7) and task gets (PID 9) share GPU 2 of one"
    cluster.hangs = "no answer"
    found = integration.ray_allocation()
    assert {actor.title: actor.sees for actor in found.actors}["task train"] is None
    texts = [finding.text for finding in found.findings if finding.kind == "tasks_unknown"]
    assert "task train (PID 8) on one: its devices are unknown" in texts
    assert any("one does not report the devices of its tasks" in text for text in texts)
    assert "?" in render_ray(found, 200, cut=False)


def test_what_the_driver_sees_of_actors_here(integration: Any, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """In Ray's numbers, which count the devices of the raylet; another device than Ray gave ends in status 1."""
    cluster.hosts = (socket.gethostname(), "elsewhere")
    cluster.actors = [
        ActorTableData("right", pid=11, wanted={"GPU": 1.0}, sees={"GPU": "0"}),
        ActorTableData("wrong", pid=12, wanted={"GPU": 1.0}, sees={"GPU": "3"}),
        ActorTableData("idle", pid=13, wanted={"GPU": 1.0}, sees={"GPU": "2"}),
        ActorTableData("elsewhere", "b", pid=14, wanted={"GPU": 1.0}, sees={"GPU": "1"}),
    ]
    raylet = having(pid=10, name=lambda self: "raylet")
    monkeypatch.setattr("psutil.Process", lambda pid: having(parent=lambda self: raylet))
    order = {10: [having(key=f"gpu.{number}", kind="gpu") for number in (4, 5, 6, 7)]}
    monkeypatch.setattr(integration, "visible_devices", lambda raylet: order[raylet])
    used = {11: ["gpu.4"], 12: ["gpu.6", "gpu.0"], 13: []}
    workers = {pid: having(pid=pid, used=[having(device=key) for key in keys]) for pid, keys in used.items()}
    monkeypatch.setattr(integration, "allocation", lambda pids: having(workers=[workers[pid] for pid in pids]))
    found = integration.ray_allocation()
    assert [actor.uses for actor in found.actors if actor.name != "elsewhere"] == [("GPU 0",), (), ("GPU 2", "gpu.0")]
    assert [actor.uses for actor in found.actors if actor.name == "elsewhere"] == [None]
    assert not found.as_expected
    host = socket.gethostname()
    assert kinds(found)["other_device"] == f"wrong (PID 12): Ray gave it GPU 3 of {host}, but it uses GPU 2 and gpu.0"

    def fail(raylet: int) -> None:
        raise accelmetrics.AccelMetricsError("its environment cannot be read")

    monkeypatch.setattr(integration, "visible_devices", fail)
    found = integration.ray_allocation()
    assert found.as_expected
    assert "are unknown: its environment cannot be read" in kinds(found)["use_unknown"]


def test_no_cluster_is_started(integration: Any) -> None:
    """Ray would start one at an address that says so."""
    for address in ("local", "ray://192.0.2.1:10001"):
        with pytest.raises(accelmetrics.InvalidOptionError, match="not the address of a running cluster"):
            integration.allocation_at(address)


def test_what_cannot_be_answered_is_an_error(integration: Any, cluster: Cluster) -> None:
    """A pool without devices, no connection, and tables of another form."""
    for wrong in ([], [0], [True], [2, -1], ["x"], [1, "2"]):
        with pytest.raises(accelmetrics.InvalidOptionError, match="such as"):
            integration.ray_allocation({"actor": wrong})
    cluster.groups = {"0a": {}}
    with pytest.raises(SourceError, match=r"tables of Ray 2\.60\.0 cannot be read"):
        integration.ray_allocation()
    cluster.connected = False
    with pytest.raises(SourceError, match="Ray is not connected"):
        integration.ray_allocation()


def test_pools_on_the_command_line() -> None:
    """Devices by node; a role may have several numbers."""
    assert counts("8x2") == [8, 8]
    assert ray_pools("actor=8x2,4,*Roll*=1") == [("actor", 8), ("actor", 8), ("actor", 4), ("*Roll*", 1)]
    assert ray_pools("actor=2-3,rollout=0-0") == [("actor", "2"), ("actor", "3"), ("rollout", "0")]
    for wrong in ("8x", "x", "0", "1x0", "many", "3-2", "1-"):
        with pytest.raises(Exception, match="is not a number of devices"):
            counts(wrong)
