"""Runs in the functions of Ray Train and Tune: their rows are in what is reported."""

from __future__ import annotations

import json
from pathlib import Path

from tests.frameworks.ray.clusters import run_beside_ray

BEGIN = """
import json
import accelmetrics

ray.init(num_cpus=4, num_gpus=2, include_dashboard=False, _temp_dir=sys.argv[1])

def steps(report, rank=0):
    with accelmetrics.training(interval=0.1) as run:
        for step in (1, 2):
            run.step(step, loss=1 / step)
            wait_for(lambda: run.monitor.latest is not None)
            report({"loss": 1 / step, "rank": run.rank, "world": run.world_size, **(run.row() if rank == 0 else {})})
"""
TRAIN = """
import ray.train
from ray.train import RunConfig, ScalingConfig, UserCallback
from ray.train.torch import TorchTrainer

def loop(config):
    steps(ray.train.report, ray.train.get_context().get_world_rank())

class Kept(UserCallback):
    def after_report(self, run_context, metrics, checkpoint):
        with open(f"{home}/reported", "a") as file:
            print(json.dumps(metrics), file=file)

home = os.environ["HOME"]
config = RunConfig(storage_path=home, callbacks=[Kept()])
TorchTrainer(loop, scaling_config=ScalingConfig(num_workers=2), run_config=config).fit()
"""
TUNE = """
from ray import tune

tuner = tune.Tuner(lambda config: steps(tune.report), run_config=tune.RunConfig(storage_path=os.environ["HOME"], name="trial"))
print("METRICS", json.dumps({name: value for name, value in tuner.fit()[0].metrics.items() if name.startswith(("system/", "loss"))}))
"""
BRIEF = {"system/gpu.0.powerWatts", "system/gpu.1.powerWatts", "system/readings"}


def test_ray_train(tmp_path: Path) -> None:
    """Two workers, of which the first reports a row; each knows its rank."""
    ended = run_beside_ray(tmp_path, BEGIN + TRAIN)
    assert ended.status == 0, ended.said
    reported = [json.loads(line) for line in (tmp_path / "reported").read_text().splitlines()]
    own = [[(one["loss"], one["rank"], one["world"]) for one in both] for both in reported]
    assert own == [[(loss, 0, 2), (loss, 1, 2)] for loss in (1.0, 0.5)]
    for first, second in reported:
        assert first.keys() >= BRIEF
        assert second.keys() == {"loss", "rank", "world"}


def test_ray_tune(tmp_path: Path) -> None:
    """The trial's result has the row, and so has its own file."""
    ended = run_beside_ray(tmp_path, BEGIN + TUNE)
    assert ended.status == 0, ended.said
    (metrics,) = (json.loads(line.partition(" ")[2]) for line in ended.out.splitlines() if line.startswith("METRICS"))
    assert metrics.keys() >= BRIEF
    (file,) = tmp_path.glob("trial/*/result.json")
    assert json.loads(file.read_text().splitlines()[-1]).keys() >= BRIEF
