"""Rows of all nodes of a Ray cluster, which is a real one of two nodes on this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.frameworks.programs import EXAMPLES, Ended
from tests.frameworks.ray.clusters import run_beside_ray

PROGRAM = """
import json
from accelmetrics.integrations.ray import Fleet

def tell(name, value):
    print("TOLD", name, json.dumps(value), flush=True)

def of(row, node="", name="powerWatts"):
    return f"system/{node}gpu.1.{name}" in row

def actors():
    return [one for one in ray._private.state.actors().values() if one["State"] != "DEAD"]

"""
TWO_NODES = """
made, (other,) = cluster()
fleet = Fleet(interval=0.2).start()
tell("unconnected", fleet.row())
ray.init(address=made.address)
wait_for(lambda: len(fleet.nodes) == 2 and not any(fleet.nodes.values()))
row = {}
# Both are of one machine: either may have its name, and the other a longer one.
wait_for(
    lambda: row.update(fleet.row())
    or (of(row, name="energyJoules") and any(of(row, f"{node}/", "energyJoules") for node in fleet.nodes))
)
tell("both", row)
tell("statistics", list(fleet.row("x", keys="powerWatts", stats=["max", "p95"])))

made.remove_node(other)
wait_for(lambda: len(fleet.nodes) == 1)
wait_for(lambda: fleet.row()["system/readings"] > 0)
tell("removed", [list(fleet.row()), fleet.nodes])

fleet.close()
fleet.close()
wait_for(lambda: not actors())
tell("closed", [fleet.row(), fleet.nodes])
"""
KILLED = """
ray.init(num_cpus=2, num_gpus=2, include_dashboard=False, _temp_dir=sys.argv[1])
name = f"accelmetrics-{ray.get_runtime_context().get_node_id()}"

def reader():
    try:
        return ray.get(ray.get_actor(name).rows.remote("", 0))[0]
    except (ray.exceptions.RayError, ValueError):
        return ""

def more(fleet):
    row = {}
    fleet.row()
    wait_for(lambda: row.update(fleet.row()) or of(row, name="energyJoules"))
    return sorted(row)

with Fleet(interval=0.05) as fleet:
    before = wait_for(reader)
    tell("first", more(fleet))
    os.kill(int(before.partition("-")[0]), 9)  # Ray starts it again
    wait_for(lambda: reader() not in ("", before))
    before = reader()
    tell("again", more(fleet))
    ray.kill(ray.get_actor(name))  # for good: it is another one that comes
    wait_for(lambda: reader() not in ("", before))
    tell("another", more(fleet))
    ray.shutdown()
    tell("after", sorted(fleet.row()))
print("INITIALIZED", ray.is_initialized())
Fleet(interval=0.05).start()
ray.init(num_cpus=2, num_gpus=2, include_dashboard=False, _temp_dir=sys.argv[1])
wait_for(actors)  # and the program ends
"""


def told(ended: Ended) -> dict[str, Any]:
    """What a program told, by name."""
    assert ended.status == 0, ended.said
    lines = [line.split(" ", 2)[1:] for line in ended.out.splitlines() if line.startswith("TOLD ")]
    return {name: json.loads(value) for name, value in lines}


def test_rows_of_two_nodes(tmp_path: Path) -> None:
    """Of both; a lost node costs only itself, and closing leaves no actor. Rows begin with the connection."""
    ended = run_beside_ray(tmp_path, PROGRAM + TWO_NODES)
    found = told(ended)
    assert found["unconnected"] == {}
    assert ended.err.count("Ray is not connected") == 1
    here = [name for name in found["both"] if name.count("/") == 1]
    there = [name for name in found["both"] if name.count("/") == 2]
    brief = {f"gpu.{index}.{name}" for index in (0, 1) for name in ("gpu", "memoryAllocated", "powerWatts", "temp", "energyJoules")}
    assert {name.rpartition("/")[2] for name in here} == {*brief, "readings"} == {name.rpartition("/")[2] for name in there}
    assert all(20 < value < 1000 for name, value in found["both"].items() if name.endswith("powerWatts"))
    chosen = {"readings", *(f"gpu.{index}.powerWatts.{stat}" for index in (0, 1) for stat in ("max", "p95"))}
    assert {name.rpartition("/")[2] for name in found["statistics"]} == chosen
    names, nodes = found["removed"]
    assert len(nodes) == 1
    assert {name.rpartition("/")[0] for name in names} == {"system"}
    assert found["closed"] == [{}, {}]


def test_an_actor_that_is_killed(tmp_path: Path) -> None:
    """Comes back, by Ray or by us. Ray that ends under a fleet ends, is not begun by us, and so does a program with an open one."""
    ended = run_beside_ray(tmp_path, PROGRAM + KILLED)
    found = told(ended)
    assert "system/gpu.0.energyJoules" in found["first"]
    assert found["first"] == found["again"] == found["another"]
    assert "INITIALIZED False" in ended.out


def test_the_example(tmp_path: Path) -> None:
    """Of one node: its own rows alone."""
    ended = run_beside_ray(tmp_path, EXAMPLES / "ray_fleet.py")
    assert ended.status == 0, ended.said
    rows = [json.loads(line) for line in ended.out.splitlines() if line.startswith("{")]
    assert [row["step"] for row in rows] == [100, 200, 300]
    assert {"loss", "system/gpu.0.powerWatts", "system/gpu.1.powerWatts", "system/readings"} <= rows[-1].keys()


def test_a_run_of_this_process_stands_for_its_node(tmp_path: Path) -> None:
    """No actor is made here, and its steps are in the row beside the other node's devices."""
    program = """
import accelmetrics

made, _ = cluster()
ray.init(address=made.address)
with accelmetrics.training(0.1, visible=False) as run, Fleet(0.1, run=run) as fleet:
    (there,) = wait_for(lambda: list(fleet.nodes))
    row = {}
    wait_for(lambda: row.update(fleet.row()) or of(row, f"{there}/") and of(row))
    wait_for(lambda: run.step(1, tokens=8) or "system/tokens_per_second" in fleet.row())
    tell("actors", len(actors()))
"""
    assert told(run_beside_ray(tmp_path, PROGRAM + program))["actors"] == 1
