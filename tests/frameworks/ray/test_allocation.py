"""What Ray gave to actors and tasks, by the tables of a real one with five simulated GPUs, in releases that differ in their tables."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.frameworks.programs import LIMIT, ROOT, started
from tests.frameworks.ray.clusters import BEGIN, OFFLINE
from tests.simulators.nvml import NvmlSimulator, Process

OTHER_RELEASES = ("2.46.0",)
"""Its tables have the forms of 2.40."""
GPUS = 5
PROGRAM = """
import json
import subprocess
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from accelmetrics.integrations.ray_allocation import ray_allocation

ray.init(num_cpus=4, num_gpus=5, include_dashboard=False, _temp_dir=sys.argv[1])

@ray.remote(num_cpus=0)
class Worker:
    def sees(self):
        return os.getpid(), os.environ.get("CUDA_VISIBLE_DEVICES", "")

@ray.remote(num_cpus=0, num_gpus=1)
def train(path):
    with open(path, "w") as file:
        file.write(f"{os.getpid()} {os.environ['CUDA_VISIBLE_DEVICES']}\\n")
    time.sleep(1000)

def reserved(group, bundle=0):
    return PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle)

def tell(what, value):
    print(f"TOLD {what} {json.dumps(value)}", flush=True)

group = placement_group([{"GPU": 1}] * 2, strategy="STRICT_PACK", name="actor_pool")
ray.get(group.ready())
unplaced = placement_group([{"GPU": 8}], name="too_large")
actors = [Worker.options(name=f"actor_{n}", num_gpus=0.5, scheduling_strategy=reserved(group, n)).remote() for n in (0, 1)]
actors += [Worker.options(name="reference", num_gpus=0.5, scheduling_strategy=reserved(group)).remote()]
actors += [Worker.options(name="blind", scheduling_strategy=reserved(group)).remote()]
actors += [Worker.options(name="rollout", num_gpus=1).remote()]
names = ["actor_0", "actor_1", "reference", "blind", "rollout"]
seen = dict(zip(names, ray.get([actor.sees.remote() for actor in actors])))
path = os.path.join(sys.argv[1], "task")
running = train.remote(path)
seen["train"] = wait_for(lambda: os.path.exists(path) and open(path).read().endswith("\\n") and open(path).read().split())
late = Worker.options(name="late", num_gpus=2).remote()
wide = train.options(name="wide", num_gpus=8).remote(path)
other = Worker.remote()
ray.get(other.sees.remote())
wait_for(lambda: {"late", "train", "wide"} <= {actor.name for actor in ray_allocation().actors if actor.sees is not None})
tell("SEEN", seen)
wait_for(lambda: os.path.exists(sys.argv[2]))
tell("PLAIN", ray_allocation({"actor": [1, 1], "critic": [4]}).to_dict())
tell("SHARED", ray_allocation({"actor": [2]}, shared=True).to_dict())
tell("DEVICES", ray_allocation({"rollout": [seen["rollout"][1]]}, shared=True).as_expected)
address = ray.get_runtime_context().gcs_address
command = [sys.executable, "-m", "accelmetrics", "allocation", "--ray", address, "--shared", "--probe", "--pool", "actor=2,rollout=1"]
done = subprocess.run(command, capture_output=True, text=True, timeout=200)
tell("COMMAND", [done.returncode, done.stdout, done.stderr])
"""


@pytest.mark.parametrize("release", ["", *OTHER_RELEASES])
def test_actors_tasks_groups_and_pools(release: str, tmp_path: Path) -> None:
    """Each has what Ray set for it; what is shared, missing, waited for, meant otherwise and used otherwise is told."""
    path = [str(ROOT)]
    if release:
        path.append(str(tmp_path / "packages"))
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", path[1], f"ray=={release}"]
        subprocess.run(command, check=True, timeout=LIMIT)
    (tmp_path / "program.py").write_text(f"{BEGIN}assert ray.__version__.startswith({release!r})\n{PROGRAM}")
    short = tempfile.mkdtemp(prefix="r", dir="/tmp")
    offline = {**OFFLINE, "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(GPUS))), "PYTHONPATH": ":".join(path)}
    go_on, told = tmp_path / "go-on", dict[str, Any]()

    def note(line: str) -> None:
        if line.startswith("TOLD "):
            _, what, value = line.split(" ", 2)
            told[what] = json.loads(value)

    with NvmlSimulator(gpus=GPUS) as simulator:
        for gpu in range(GPUS):
            simulator.processes(gpu, [])
        program = [sys.executable, str(tmp_path / "program.py"), short, str(go_on)]
        try:
            with started(program, tmp_path, **{**simulator.environment(), **offline}) as process:
                assert process.stdout is not None
                while "SEEN" not in told and (line := process.stdout.readline()):
                    note(line)
                if "SEEN" in told:
                    seen = {name: (int(pid), numbers) for name, (pid, numbers) in told["SEEN"].items()}
                    (right, own), (wrong, _) = seen["actor_0"], seen["rollout"]
                    free = ({*range(GPUS)} - {int(number) for name, (_, number) in seen.items() if name != "blind"}).pop()
                    simulator.processes(int(own), [Process(right, used=1 << 30)])
                    simulator.processes(free, [Process(wrong, used=1 << 30)])
                go_on.touch()
                out, err = process.communicate(timeout=LIMIT)
        finally:
            shutil.rmtree(short, ignore_errors=True)
    assert process.returncode == 0, err[-4000:]
    for line in out.splitlines():
        note(line)
    plain, shared = told["PLAIN"], told["SHARED"]
    actors = {actor["name"]: actor for actor in plain["actors"]}
    assert actors.keys() == {"actor_0", "actor_1", "reference", "blind", "rollout", "late", "train", "wide"}
    for name in ("actor_0", "actor_1", "reference", "rollout", "train"):
        assert [f"GPU {number}" for number in seen[name][1].split(",")] == actors[name]["sees"]
    assert (actors["actor_0"]["group"], actors["actor_0"]["wanted"], actors["train"]["task"]) == ("actor_pool", 0.5, True)
    assert (actors["actor_0"]["uses"], actors["rollout"]["uses"]) == ([f"GPU {own}"], [f"GPU {free}"])
    texts = "\n".join(f"{finding['kind']}: {finding['text']}" for finding in plain["findings"])
    assert "waits: the placement group too_large (pending) waits for 8 devices, and the largest node has 5" in texts
    assert "waits: late waits for 2 devices, and 1 node has as many" in texts
    assert "waits: task wide waits for 8 devices, and the largest node has 5" in texts
    assert "shared_device: actor_0" in texts and "reference" in texts
    assert f"other_device: rollout (PID {wrong}): Ray gave it GPU {seen['rollout'][1]} of" in texts
    assert "blind (PID" in texts and "was given no device, in the placement group actor_pool" in texts
    assert "4 of 5 devices are held" in texts
    assert "pool_differs: actor: expected 1 device on each of 2 nodes, its actors hold 2 on" in texts
    assert "pool_differs: critic: expected 4 devices, no actor has such a name" in texts
    assert {finding["kind"] for finding in shared["findings"]} >= {"shared_as_meant", "other_device"}
    assert told["DEVICES"] is False, "by the driver rollout is on another device"
    status, shown, errors = told["COMMAND"]
    assert status == 1, errors
    assert "ACTOR" in shown and "task train" in shown and "actor: expected 2 a node; holds 2 on" in shown
    probe = next(line for line in shown.splitlines() if f"CUDA_VISIBLE_DEVICES={free}" in line)
    assert probe.startswith(f"GPU {free} ")
