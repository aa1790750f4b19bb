"""What is found about the actors of a Ray cluster, beside a stand-in for its tables."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib import import_module, reload
from types import ModuleType
from typing import Any

import pytest

import accelmetrics
from accelmetrics.cli.allocation import counts, ray_pools, render_ray
from accelmetrics.schemas.errors import SourceError


class Enum:
    """As protobuf names the members of one."""

    def Name(self, state: str) -> str:  # noqa: N802 - protobuf's own
        return state


class ActorTableData:
    """An entry of Ray's table of actors, which is handed on as it is."""

    ActorState = Enum()

    def __init__(self, name: str, node: str = "a", group: str = "", state: str = "ALIVE", **given: Any) -> None:
        self.name, self.class_name, self.state, self.pid = name, given.get("kind", "Worker"), state, 7
        self.placement_group_id = bytes.fromhex(group)
        self.address = having(node_id=bytes.fromhex(node * 8))
        self.required_resources = given.get("wanted", {})
        self.resource_mapping = [
            having(name=resource, resource_ids=[having(index=number) for number in numbers])
            for resource, numbers in given.get("sees", {}).items()
        ]

    FromString = staticmethod(lambda packed: packed)


def having(**attributes: Any) -> Any:
    """One with these attributes."""
    return type("Part", (), attributes)()


class Cluster:
    """Two nodes of four GPUs, what is on them, and whether this process is connected."""

    def __init__(self) -> None:
        self.connected = True
        self.actors: list[ActorTableData] = []
        self.groups: dict[str, Any] = {}

    def nodes(self) -> list[dict[str, Any]]:
        told = {"Alive": True, "NodeManagerHostname": "", "NodeManagerAddress": "192.0.2.1", "Resources": {"CPU": 8.0, "GPU": 4.0}}
        return [{**told, "NodeID": "a" * 8, "NodeManagerHostname": "one"}, {**told, "NodeID": "b" * 8}, {"NodeID": "c" * 8, "Alive": False}]

    def group(self, number: str, name: str, *bundles: tuple[str, float], state: str = "CREATED") -> None:
        self.groups[number] = {
            "name": name,
            "state": state,
            "bundles": {index: {"CPU": 1.0, "GPU": count} for index, (_, count) in enumerate(bundles)},
            "bundles_to_node_id": {index: node * 8 for index, (node, _) in enumerate(bundles)},
        }

    def get_actor_table(self, *unused: object) -> list[ActorTableData]:
        return self.actors


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """The stand-in, which is what ``import ray`` finds."""
    made = Cluster()
    contents: dict[str, dict[str, Any]] = {
        "ray": {"nodes": made.nodes, "is_initialized": lambda: made.connected, "__version__": "2.60.0"},
        "ray.util": {},
        "ray.util.placement_group": {"placement_group_table": lambda: made.groups},
        "ray._private": {},
        "ray._private.state": {"state": having(_connect_and_get_accessor=lambda self: made)},
        "ray.core": {},
        "ray.core.generated": {},
        "ray.core.generated.gcs_pb2": {"ActorTableData": ActorTableData},
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
        sees = {f"GPU_group_{group}": "0123", f"GPU_group_2_{group}": "0123", f"bundle_group_{group}": [""]}
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
        ({"actor": [2, 2]}, "actor: meant for 2 devices on each of 2 nodes, its actors hold 2 on one"),
        ({"actor": [4, 1]}, "actor: meant for 4 and 1 devices, its actors hold 2 on one"),
        ({"critic": [1]}, "critic: meant for 1 device, no actor has such a name"),
        ({"blind": [1]}, "blind: meant for 1 device, its actors hold none"),
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
    ]
    found = integration.ray_allocation()
    texts = [finding.text for finding in found.findings]
    assert texts == [
        "the placement group pool (pending) waits for 8 devices, and the largest node has 4",
        "late waits for 2 devices",
        "blind (PID 7) on one was given no device, in the placement group pool",
        "first (PID 7) and second (PID 7) share GPU 0 of one",
        "one: 1 of 4 devices are held by actors, 3 are reserved by placement groups",
        "192.0.2.1: 0 of 4 devices are held by actors",
    ]
    assert found.as_expected
    table = render_ray(found, 200, cut=False)
    assert "late    -      -     -    2      none" in table


def test_what_cannot_be_answered_is_an_error(integration: Any, cluster: Cluster) -> None:
    """A pool without devices, no connection, and tables of another form."""
    for wrong in ([], [0], [True], [2, -1]):
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
    for wrong in ("8x", "x", "0", "1x0", "many"):
        with pytest.raises(Exception, match="is no number of devices"):
            counts(wrong)
