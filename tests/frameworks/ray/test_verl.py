"""verl's tracking in each release that has another way to load plug-ins, and its own configuration in a Ray actor."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.frameworks.programs import EXAMPLES, train
from tests.frameworks.ray.clusters import run_beside_ray
from tests.support.waiting import HANG

MODULE = "accelmetrics.integrations.verl"
BY_VARIABLE = f"{{'env_vars': {{'VERL_USE_EXTERNAL_MODULES': '{MODULE}'}}}}"
BY_HOOK = f"{{'worker_process_setup_hook': '{MODULE}.load'}}"
OTHER_RELEASES = {"0.5.0": BY_HOOK, "0.8.0": BY_VARIABLE}
"""The last that Ray, and that a variable, has to load the plug-in for: what Ray's workers need."""
PROGRAM = """\
import sys
import time
import verl
from verl.utils.tracking import Tracking

def track(backend="file", config=None, **options):
    tracking = Tracking("project", "experiment", [backend] if isinstance(backend, str) else backend, config, **options)
    for step in (1, 2):
        time.sleep(0.3)
        row = {"actor/pg_loss": 1.0}
        tracking.log(row, step=step)
        assert list(row) == ["actor/pg_loss"], "the trainer's own dictionary was changed"
    return tracking
"""
CONFIGURED = "{'trainer': {'enable_gpu_monitoring': True, 'gpu_monitor_interval': 0.1}}"


def rows(folder: Path) -> list[dict[str, Any]]:
    """What verl's own logger of files wrote: all steps."""
    return [json.loads(line)["data"] for line in (folder / "project" / "experiment.jsonl").read_text().splitlines()]


def test_a_configuration_is_enough(tmp_path: Path) -> None:
    """By the example: verl finds the plug-in itself. Rows are in the file and on the console; the second has readings in any case."""
    ended = train(tmp_path, EXAMPLES / "verl_tracking.py")
    assert ended.status == 0, ended.said
    found = rows(tmp_path)
    assert [row["actor/pg_loss"] for row in found] == pytest.approx([1, 1 / 2, 1 / 3])
    assert {"system/gpu.0.powerWatts", "system/gpu.1.powerWatts", "system/gpu.1.energyJoules"} <= found[-1].keys()
    assert "system/gpu.1.powerWatts:" in ended.out


SWITCHES = {
    "keywords": ("track(enable_gpu_monitoring=True, gpu_monitor_interval=0.1)", True),
    "a logger's name": ("track(['file', 'accelmetrics'])", True),
    "OmegaConf": (f"from omegaconf import OmegaConf; track(config=OmegaConf.create({CONFIGURED}))", True),
    "nothing": ("track(config={'trainer': {'nnodes': 1}})", False),
    "a keyword against the configuration": (f"track(config={CONFIGURED}, enable_gpu_monitoring=False)", False),
}


@pytest.mark.parametrize("switch", SWITCHES)
def test_it_is_switched_on(switch: str, tmp_path: Path) -> None:
    """Each way, and only then; otherwise no driver is opened."""
    code, on = SWITCHES[switch]
    ended = train(tmp_path, f"{PROGRAM}{code}\nprint('LOADED', any('libnvidia-ml' in line for line in open('/proc/self/maps')))")
    assert ended.status == 0, ended.said
    assert ("system/gpu.0.powerWatts" in rows(tmp_path)[-1]) == on
    assert f"LOADED {on}" in ended.out


ACTOR = """
import ray

@ray.remote(num_cpus=0)
class TaskRunner:
    def run(self, chosen):
        import contextlib
        import io
        from verl.utils.tracking import Tracking
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            tracking = Tracking("project", "experiment", ["console"], chosen)
            time.sleep(0.5)
            tracking.log({"actor/pg_loss": 1.0}, step=1)
        return verl.__version__, printed.getvalue()
"""


@pytest.mark.parametrize("release", OTHER_RELEASES)
def test_other_releases_in_an_actor(release: str, tmp_path: Path) -> None:
    """As the documentation has it. Without that, the name of a logger is refused by verl itself, so that nothing is silent."""
    packages = tmp_path / "packages"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(packages), f"verl=={release}"]
    subprocess.run(command, check=True, timeout=4 * HANG)
    code = f"""
sys.path.insert(0, {str(packages)!r})
os.environ["PYTHONPATH"] += ":" + {str(packages)!r}
import verl
from verl.utils.tracking import Tracking
try:
    Tracking("project", "experiment", ["console", "accelmetrics"])
except AssertionError as error:
    print("REFUSED", error)
{ACTOR}
options = {{"num_cpus": 1, "num_gpus": 2, "include_dashboard": False, "_temp_dir": sys.argv[1]}}
ray.init(**options, runtime_env={OTHER_RELEASES[release]})
print("PRINTED", ray.get(TaskRunner.remote().run.remote({CONFIGURED}), timeout=200))
"""
    ended = run_beside_ray(tmp_path, code)
    assert ended.status == 0, ended.said
    assert "REFUSED accelmetrics is not supported" in ended.out, ended.said
    assert f"PRINTED ('{release}" in ended.out and "system/gpu.1.powerWatts:" in ended.out, ended.said


def test_its_own_command_line_in_an_actor(tmp_path: Path) -> None:
    """Hydra takes both options behind a plus, and Ray's actor without a device reads those of its node."""
    code = """
import os
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf
import ray

with initialize_config_module("verl.trainer.config", version_base=None):
    config = compose("ppo_trainer", overrides=["+trainer.enable_gpu_monitoring=true", "+trainer.gpu_monitor_interval=0.1"])
chosen = {"trainer": OmegaConf.to_container(config.trainer)}

@ray.remote(num_cpus=0)
class TaskRunner:
    def run(self):
        import time
        from verl.utils.tracking import Tracking
        tracking = Tracking("project", "experiment", ["file"], chosen)
        time.sleep(0.5)
        tracking.log({"actor/pg_loss": 1.0}, step=1)
        tracking.finish()

ray.init(num_cpus=1, num_gpus=2, include_dashboard=False, _temp_dir=sys.argv[1])
ray.get(TaskRunner.remote().run.remote(), timeout=200)
ray.shutdown()
"""
    ended = run_beside_ray(tmp_path, PROGRAM + code)
    assert ended.status == 0, ended.said
    assert {"system/gpu.0.powerWatts", "system/gpu.1.powerWatts"} <= rows(tmp_path)[-1].keys()


def test_a_failure_of_ours_changes_nothing(tmp_path: Path) -> None:
    """Of what is logged, nor of the exit status; an exception of the trainer's is its own."""
    code = f"""
from unittest.mock import patch
from accelmetrics import Monitor
from accelmetrics.integrations.training import TrainingRun
def fail(*arguments):
    raise OSError("broken on purpose")
with patch.multiple(TrainingRun, _row=fail), patch.multiple(Monitor, start=fail, stop=fail):
    track(config={CONFIGURED}).finish(exit_code=1)
raise KeyError("the trainer's")
"""
    ended = train(tmp_path, PROGRAM + code)
    assert ended.status == 1 and ended.err.rstrip().endswith("the trainer's\""), ended.said
    assert rows(tmp_path) == [{"actor/pg_loss": 1.0}] * 2


def test_a_tracking_that_cannot_be_made(tmp_path: Path) -> None:
    """Ends as it does without us."""
    ended = train(tmp_path, f"{PROGRAM}track('no such logger', {CONFIGURED})")
    assert ended.status == 1 and "no such logger is not supported" in ended.err, ended.said
    assert "AttributeError" not in ended.err


def test_rows_of_all_nodes_of_a_cluster(tmp_path: Path) -> None:
    """Two of them: the trainer's own, and the other by an actor, which ends with the tracking."""
    code = f"""
made, _ = cluster()
ray.init(address=made.address)
from verl.utils.tracking import Tracking
tracking = Tracking("project", "experiment", ["file"], {CONFIGURED})
fleet = tracking._accelmetrics[1]
wait_for(lambda: list(fleet.nodes.values()) == [""])
tracking.log({{"actor/pg_loss": 1.0}}, step=1)
tracking.finish()
wait_for(lambda: all(one["State"] == "DEAD" for one in ray._private.state.actors().values()))
"""
    ended = run_beside_ray(tmp_path, code)
    assert ended.status == 0, ended.said
    (row,) = rows(tmp_path)
    assert "system/gpu.1.powerWatts" in row
    assert len([name for name in row if name.endswith("/gpu.1.powerWatts")]) == 2
