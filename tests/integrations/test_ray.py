"""Rows of all nodes of a Ray cluster, beside a stand-in whose actors are objects of this process."""

from __future__ import annotations

import logging
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module, reload
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import accelmetrics
from accelmetrics.schemas.identity import BackendStatus, DeviceIdentity, DeviceSlot
from accelmetrics.schemas.reading import header
from accelmetrics.schemas.ring import Row, pack_row
from tests.monitor.watching import gpus
from tests.support.waiting import wait_for

gpu = partial(gpus, 1, powerWatts=300.0)


class ActorDiedError(Exception):
    """As Ray says that an actor is gone for good."""


class ActorUnschedulableError(Exception):
    """As Ray says that its node is."""


@dataclass(eq=False)
class Answer:
    """A reference to what an actor will have answered."""

    name: str
    call: Callable[[], object]
    error: Exception | None


class StandIn:
    """A cluster: its nodes by id, their actors by name, and what is wrong with it."""

    def __init__(self) -> None:
        self.connected = True
        self.alive = {"a" * 8: "head", "b" * 8: "node"}
        self.told = defaultdict[str, dict[str, Any]](lambda: {"NodeManagerAddress": "192.0.2.1", "Resources": {"GPU": 4.0}})
        self.actors: dict[str, Any] = {}
        self.killed: list[str] = []
        self.broken: dict[str, Exception] = {}
        self.hung: set[str] = set()

    def nodes(self) -> list[dict[str, Any]]:
        return [
            {"NodeID": node_id, "Alive": name != "", "NodeManagerHostname": name, **self.told[node_id]}
            for node_id, name in self.alive.items()
        ]

    def get_actor(self, name: str, namespace: str | None) -> Any:
        if name not in self.actors:
            raise ValueError(f"Failed to look up actor with name '{name}'")
        return self.actors[name]

    def kill(self, actor: Any) -> None:
        name = next(name for name, one in self.actors.items() if one is actor)
        self.killed.append(name)
        self.end(name)

    def end(self, name: str) -> None:
        self.actors.pop(name).reader._run.close()

    def remote(self, kind: type) -> Any:
        def make(options: dict[str, Any], *arguments: Any) -> Any:
            assert (options["num_cpus"], options["max_restarts"], options["scheduling_strategy"].soft) == (0, -1, False)
            name = options["name"]
            reader = kind(*arguments)

            def answer(*given: Any) -> Any:
                gone = ActorDiedError("it was killed") if self.actors.get(name) is not actor else None
                error = gone or self.broken.get(name)
                return Answer(name=name, call=lambda: reader.rows(*given), error=error)

            actor = SimpleNamespace(reader=reader, rows=SimpleNamespace(remote=answer))
            self.actors[name] = actor
            return actor

        return SimpleNamespace(options=lambda **options: SimpleNamespace(remote=lambda *arguments: make(options, *arguments)))

    def wait(self, answers: list[Any], num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        late = [answer for answer in answers if answer.name in self.hung]
        if late:
            threading.Event().wait(timeout)
        return [answer for answer in answers if answer not in late], late

    def get(self, answer: Any) -> Any:
        if answer.error is not None:
            raise answer.error
        return answer.call()


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """The stand-in, which is what ``import ray`` finds."""
    made = StandIn()
    package = ModuleType("ray")
    names = ("nodes", "get_actor", "kill", "remote", "wait", "get")
    package.__dict__.update({name: getattr(made, name) for name in names})
    package.__dict__.update(
        is_initialized=lambda: made.connected,
        get_runtime_context=lambda: SimpleNamespace(get_node_id=lambda: "a" * 8),
    )
    exceptions, util, strategies = ModuleType("ray.exceptions"), ModuleType("ray.util"), ModuleType("ray.util.scheduling_strategies")
    groups = ModuleType("ray.util.placement_group")
    groups.__dict__.update(placement_group_table=dict)
    exceptions.__dict__.update(ActorDiedError=ActorDiedError, ActorUnschedulableError=ActorUnschedulableError)
    strategies.__dict__.update(NodeAffinitySchedulingStrategy=lambda node_id, soft: SimpleNamespace(node_id=node_id, soft=soft))
    for module in (package, exceptions, util, strategies, groups):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    yield made
    for name in list(made.actors):
        made.end(name)
    for name in ("ray", "ray_allocation"):
        sys.modules.pop(f"accelmetrics.integrations.{name}", None)


@pytest.fixture
def integration(cluster: StandIn, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module, imported beside the stand-in; it looks for nodes each time."""
    module = reload(import_module("accelmetrics.integrations.ray"))
    monkeypatch.setattr(module, "RESCAN", 0.0)
    return module


@pytest.fixture
def fleet(integration: Any) -> Iterator[Any]:
    """One that has readings of both nodes."""
    with integration.Fleet(0.01, backends=[gpu()], share=None) as made:
        until(made, lambda: made.nodes == {"head": "", "node": ""})
        until(made, lambda: "system/node/gpu.0.powerWatts" in made.row())
        yield made


def until(fleet: Any, condition: Callable[[], bool]) -> None:
    """Wait for what the fleet's thread brings about."""
    wait_for(condition, what=lambda: repr(fleet))


def row_with(fleet: Any, name: str, *arguments: Any) -> dict[str, float]:
    """Take rows until there was such a name, and return all names with their last values."""
    found: dict[str, float] = {}

    def there() -> bool:
        found.update(fleet.row(*arguments))
        return name in found

    until(fleet, there)
    return found


def test_names_of_other_nodes_stand_before_theirs(fleet: Any) -> None:
    """Those of this one are as a run gives them."""
    rows = row_with(fleet, "x/node/gpu.0.powerWatts.max", "x", "powerWatts", ("mean", "max"))
    assert len(rows) == 6
    assert rows["x/gpu.0.powerWatts"] == rows["x/node/gpu.0.powerWatts.max"] == 300.0
    assert {"x/readings", "x/node/readings"} < rows.keys()


def test_a_reading_is_part_of_one_row(fleet: Any, cluster: StandIn, integration: Any) -> None:
    """All of them are, between the first and the last."""
    reader = next(one.reader for name, one in cluster.actors.items() if name.endswith("bbb"))
    first = reader._rows.newest(1)[0].number
    rows = [0.0]

    def enough() -> bool:
        rows.append(fleet.row()["system/node/readings"])
        return sum(rows) >= 20

    until(fleet, enough)
    assert sum(rows) <= reader._rows.newest(1)[0].number - first + integration.KEPT
    assert rows.count(0) > 0, "a row that was asked for at once has none"


def test_what_cannot_be_used_is_told_once(fleet: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Not once a node."""
    with caplog.at_level(logging.WARNING, "accelmetrics"):
        assert "system/gpu.0.powerWatts" in fleet.row(stats="median")
    assert caplog.text.count("unknown statistic 'median'") == 1


def test_a_lost_node_costs_itself(fleet: Any, cluster: StandIn) -> None:
    """And one that comes is found. The name of one that is gone is free."""
    cluster.alive["b" * 8] = ""
    until(fleet, lambda: list(fleet.nodes) == ["head"])
    assert all(name.count("/") == 1 for name in fleet.row())
    cluster.alive.update({"c" * 8: "node", "d" * 8: "node"})
    until(fleet, lambda: fleet.nodes == {"head": "", "node": "", "node-dddddddd": ""})


def test_a_node_that_offers_no_device_has_no_actor(integration: Any, cluster: StandIn) -> None:
    """Unless none offers any."""
    cluster.told["a" * 8] = {"NodeManagerAddress": "192.0.2.1", "Resources": {"CPU": 8.0}}
    with integration.Fleet(0.01, backends=[gpu()], share=None) as fleet:
        until(fleet, lambda: fleet.nodes == {"node": ""})
        cluster.told["b" * 8] = cluster.told["a" * 8]
        until(fleet, lambda: fleet.nodes == {"node": "", "head": ""})


def test_an_actor_that_was_killed_is_made_again(fleet: Any, cluster: StandIn) -> None:
    """Its readings count anew, and none is lost or taken twice."""
    name = "accelmetrics-bbbbbbbb"
    before = cluster.actors[name]
    cluster.end(name)
    until(fleet, lambda: cluster.actors.get(name, before) is not before and not any(fleet.nodes.values()))
    until(fleet, lambda: fleet.row()["system/node/readings"] > 0)


@pytest.mark.parametrize("error", [ActorUnschedulableError("the node is gone"), RuntimeError("Traceback\n  here\nno package")])
def test_an_actor_that_fails_has_its_reason(error: Exception, fleet: Any, cluster: StandIn, caplog: pytest.LogCaptureFixture) -> None:
    """The last line of it, once in the log. Nothing of another node's is lost."""
    with caplog.at_level(logging.WARNING, "accelmetrics"):
        cluster.broken["accelmetrics-bbbbbbbb"] = error
        until(fleet, lambda: fleet.nodes["node"] == str(error).splitlines()[-1])
        until(fleet, lambda: all(name.count("/") == 1 for name in fleet.row()))
        until(fleet, lambda: fleet.row()["system/readings"] > 0)
        cluster.broken.clear()
        until(fleet, lambda: fleet.nodes["node"] == "")
    assert caplog.text.count(f"node: {str(error).splitlines()[-1]}") == 1


def test_a_node_that_does_not_answer(fleet: Any, cluster: StandIn, integration: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Costs itself, and says so after a while."""
    monkeypatch.setattr(integration, "SILENT", 0.05)
    cluster.hung.add("accelmetrics-bbbbbbbb")
    until(fleet, lambda: fleet.nodes["node"].startswith("no answer for"))
    until(fleet, lambda: fleet.row()["system/readings"] > 0)
    assert "no answer" in repr(fleet)
    cluster.hung.clear()
    until(fleet, lambda: fleet.nodes["node"] == "")


def test_closing_ends_the_actors_that_it_made(integration: Any, cluster: StandIn) -> None:
    """And no others: a second fleet uses those of the first."""
    options = {"backends": [gpu()], "share": None}
    with integration.Fleet(0.01, **options) as first:
        until(first, lambda: first.nodes == {"head": "", "node": ""})
        with integration.Fleet(0.01, **options) as second:
            until(second, lambda: second.nodes == {"head": "", "node": ""})
        assert cluster.killed == []
    assert sorted(cluster.killed) == ["accelmetrics-aaaaaaaa", "accelmetrics-bbbbbbbb"]
    first.close()
    assert first.nodes == first.row() == {}


def test_without_ray_there_are_no_rows(integration: Any, cluster: StandIn) -> None:
    """Said once; rows come when there is, and end with it. Nothing of Ray is called meanwhile: that would begin a cluster."""
    cluster.connected = False
    with (
        pytest.warns(RuntimeWarning) as told,
        integration.Fleet(0.01, backends=[gpu()], share=None).start() as fleet,
    ):
        wait_for(lambda: len(told) > 0)
        assert fleet.row() == {}
        cluster.connected = True
        until(fleet, lambda: "system/gpu.0.powerWatts" in fleet.row())
        cluster.connected = False
    assert ["Ray is not connected" in str(warning.message) for warning in told] == [True]
    assert cluster.killed == []


def test_without_a_thread_there_are_no_rows(
    integration: Any, cluster: StandIn, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    begin = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name == "accelmetrics-fleet":
            raise RuntimeError("can't start new thread")
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    with integration.Fleet(interval=0.01) as fleet:
        assert fleet.row() == {}
    assert "no thread can be started" in caplog.text


def test_a_run_stands_for_this_node(integration: Any, cluster: StandIn) -> None:
    """Its work is in the row, and there is no actor here."""
    with accelmetrics.training(0.01, backends=[gpu()], share=None) as run:
        with integration.Fleet(0.01, run=run, backends=[gpu()], share=None) as fleet:
            until(fleet, lambda: fleet.nodes == {"node": ""})
            row_with(fleet, "system/node/gpu.0.powerWatts")

            def worked() -> bool:
                run.step(1, tokens=5)
                return "system/tokens_per_second" in fleet.row()

            until(fleet, worked)
            assert list(cluster.actors) == ["accelmetrics-bbbbbbbb"]
        assert run.monitor.running


def test_wrong_options_are_told_where_it_is_made(integration: Any) -> None:
    """And not on another node."""
    with pytest.raises(accelmetrics.InvalidOptionError):
        integration.Fleet(interval=-1)


def test_readings_that_were_missed_are_a_gap(integration: Any) -> None:
    """Nothing is said of the time between them; a value that was served again stands as it was."""
    node = integration.NodeRows("node")

    sources = (BackendStatus("acme", "ok"), BackendStatus("slow", "ok"))
    slots = tuple(
        DeviceSlot(f"gpu.{place}", place, None, DeviceIdentity("gpu", one.name, 0), one.name) for place, one in enumerate(sources)
    )
    head = header("node", ("gpu.0.energyJoules", "gpu.1.powerWatts"), slots, {}, sources, {})

    def row(number: int, at: float, joules: float, watts: float, slow: int) -> Row:
        return pack_row(head, (joules, watts), at, int(at * 1e9), (number, slow), number=number)

    def joules(*used: float) -> dict[str, float]:
        return {f"gpu.{n}.energyJoules": one for n, one in enumerate(used)}

    devices = ("gpu.0", "gpu.1")
    choice = integration.row_choice(lambda mark, words: None)
    node.add(("one", devices, [row(1, 0.0, 0.0, 100.0, 1), row(2, 1.0, 100.0, 100.0, 2)]))
    assert node.row(choice, "brief", ["mean"]) == {"gpu.1.powerWatts": 100.0, **joules(100.0, 100.0), "readings": 2}
    node.add(("one", devices, [row(9, 8.0, 1000.0, 200.0, 9), row(10, 9.0, 1200.0, 200.0, 9)]))
    assert node.row(choice, "brief", ["last"]) == {"gpu.1.powerWatts.last": 200.0, **joules(200.0), "readings": 2}
    assert node.row(choice, "brief", ["mean"]) == {"gpu.1.powerWatts": 200.0, "readings": 0}
