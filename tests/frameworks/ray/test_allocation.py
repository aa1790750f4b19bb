"""What Ray gave to actors, by the tables of a real one with four simulated GPUs."""

from __future__ import annotations

import json
from pathlib import Path

from tests.frameworks.ray.clusters import run_beside_ray

PROGRAM = """
import subprocess
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from accelmetrics.integrations.ray_allocation import ray_allocation

ray.init(num_cpus=4, num_gpus=4, include_dashboard=False, _temp_dir=sys.argv[1])

@ray.remote(num_cpus=0)
class Worker:
    def sees(self):
        return os.environ.get("CUDA_VISIBLE_DEVICES", "")

def reserved(group, bundle=0):
    return PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle)

group = placement_group([{"GPU": 1}] * 2, strategy="STRICT_PACK", name="actor_pool")
ray.get(group.ready())
unplaced = placement_group([{"GPU": 8}], name="too_large")
actors = [Worker.options(name=f"actor_{n}", num_gpus=0.5, scheduling_strategy=reserved(group, n)).remote() for n in (0, 1)]
actors += [Worker.options(name="reference", num_gpus=0.5, scheduling_strategy=reserved(group)).remote()]
actors += [Worker.options(name="blind", scheduling_strategy=reserved(group)).remote()]
actors += [Worker.options(name="rollout", num_gpus=1).remote()]
seen = dict(zip(["actor_0", "actor_1", "reference", "blind", "rollout"], ray.get([actor.sees.remote() for actor in actors])))
late = Worker.options(name="late", num_gpus=2).remote()
other = Worker.remote()
ray.get(other.sees.remote())
wait_for(lambda: any(actor.name == "late" for actor in ray_allocation().actors))
address = ray.get_runtime_context().gcs_address
command = [sys.executable, "-m", "accelmetrics", "allocation", "--ray", address]
for pools in (["--pool", "actor=2,rollout=1"], ["--pool", "actor=1x2", "--json"], ["--pool", "critic=4"]):
    done = subprocess.run([*command, *pools], capture_output=True, text=True, timeout=200)
    print(f"STATUS {done.returncode}", done.stderr)
    print("OUT", repr(done.stdout))
print("SEEN", repr(seen))
"""


def test_actors_groups_and_pools(tmp_path: Path) -> None:
    """Each has what Ray set for it; what is shared, missing, waited for and meant otherwise is told."""
    ended = run_beside_ray(tmp_path, PROGRAM, gpus=4)
    assert ended.status == 0, ended.said
    lines = [line for line in ended.out.splitlines() if line.startswith(("STATUS", "OUT", "SEEN"))]
    assert [line[:8] for line in lines if line.startswith("STATUS")] == ["STATUS 0", "STATUS 1", "STATUS 1"], ended.said
    shown, printed, missing = (str(eval(line[4:])) for line in lines if line.startswith("OUT"))  # noqa: S307 - our own text
    seen = eval(lines[-1][5:])  # noqa: S307 - our own text
    found = json.loads(printed)
    actors = {actor["name"]: actor for actor in found["actors"]}
    assert actors.keys() == {"actor_0", "actor_1", "reference", "blind", "rollout", "late"}
    for name in ("actor_0", "actor_1", "reference", "rollout"):
        assert [f"GPU {number}" for number in seen[name].split(",")] == actors[name]["sees"]
    assert (actors["actor_0"]["group"], actors["actor_0"]["wanted"]) == ("actor_pool", 0.5)
    assert not found["as_expected"]
    kinds = {kind: [finding["text"] for finding in found["findings"] if finding["kind"] == kind] for kind in ("waits", "shared_device")}
    assert any("too_large (pending) waits for 8 devices, and the largest node has 4" in text for text in kinds["waits"])
    assert any(text == "late waits for 2 devices" for text in kinds["waits"])
    assert len(kinds["shared_device"]) == 1
    assert "actor_0" in kinds["shared_device"][0] and "reference" in kinds["shared_device"][0]
    texts = "\n".join(finding["text"] for finding in found["findings"])
    assert "blind (PID" in texts and "was given no device, in the placement group actor_pool" in texts
    assert "3 of 4 devices are held by actors" in texts
    assert "actor: meant for 1 device on each of 2 nodes, its actors hold 2 on" in texts
    assert "ACTOR" in shown and "actor: expected 2 a node; holds 2 on" in shown
    assert "critic: meant for 4 devices, no actor has such a name" in missing
