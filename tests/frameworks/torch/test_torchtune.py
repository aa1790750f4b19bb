"""torchtune's own recipes, as they are released."""

from __future__ import annotations

import re
from pathlib import Path

from tests.frameworks.programs import EXAMPLES, run_program, train
from tests.frameworks.torch.trackers import mlflow_steps, of_devices, tensorboard_rows, wandb_rows
from tests.simulators.nvml import NvmlSimulator

EXAMPLE = EXAMPLES / "torchtune_recipe.py"
SINGLE = "full_finetune_single_device"
PROGRAM = f"""\
import logging
import sys
import types
logging.basicConfig()
sys.path.insert(0, {str(EXAMPLES)!r})
import torchtune_recipe

def tune(*options):
    try:
        torchtune_recipe.main("here", {SINGLE!r}, *options)
    except SystemExit as end:
        assert not end.code, end.code
"""


def disk_rows(folder: Path) -> dict[int, dict[str, float]]:
    """By step, what the files of torchtune's own logger have below a folder."""
    lines = [line for path in sorted(folder.rglob("logs/*.txt")) for line in path.read_text().splitlines()]
    found = [(line.partition(" | ")[0].removeprefix("Step "), re.findall(r"(\S+):(\S+)", line.partition(" | ")[2])) for line in lines]
    return {int(step): {name: float(value) for name, value in numbers} for step, numbers in found}


def test_the_example(tmp_path: Path) -> None:
    """The recipe's rows have the devices, at its steps."""
    ended = train(tmp_path, EXAMPLE, str(tmp_path))
    assert ended.status == 0, ended.said
    rows = disk_rows(tmp_path)
    assert list(rows) == [3, 6, 9, 12]
    assert all("loss" in row and "system/readings" in row for row in rows.values())
    last = of_devices(rows[12])
    assert {f"gpu.{index}.{name}" for index in (0, 1) for name in ("gpu", "memoryAllocated", "powerWatts", "temp")} <= last.keys()
    assert 20 < last["gpu.0.powerWatts"] < 1000


TRACKED = """
import wandb
wandb.init(project="mine")  # opened before the recipe
for inner, *options in (
    ("TensorBoardLogger",),
    ("WandBLogger", "metric_logger.project=mine"),
    ("MLFlowLogger", "metric_logger.tracking_uri=file:store", "~metric_logger.log_dir"),
):
    tune(f"metric_logger.inner=torchtune.training.metric_logging.{inner}", *options)
"""


def test_rows_reach_every_tracker(tmp_path: Path) -> None:
    """In the run that torchtune's logger for it opened, or found open."""
    ended = train(tmp_path, PROGRAM + TRACKED)
    assert ended.status == 0, ended.said
    steps = [3, 6, 9, 12]
    assert [step for step, row in tensorboard_rows(tmp_path).items() if of_devices(row)] == steps
    assert [row["global_step"] for row in wandb_rows(tmp_path) if of_devices(row)] == steps
    assert mlflow_steps(tmp_path / "store") == [steps]


SPOILT = """
import os
import torchtune_recipe

class Counting(torchtune_recipe.Counting):
    taken = 0
    def __getitem__(self, index):
        Counting.taken += 1
        if Counting.taken > 34:
            raise RuntimeError("spoilt")
        return super().__getitem__(index)
"""


def test_an_exception_in_the_middle_and_resumed_from_a_checkpoint(tmp_path: Path) -> None:
    """Is the program's own; rows until then are there. The second process goes on at the epoch that the first one saved."""
    (tmp_path / "spoilt.py").write_text(SPOILT)
    ended = train(tmp_path, EXAMPLE, str(tmp_path), SINGLE, "epochs=2", "dataset._component_=spoilt.Counting")
    assert (ended.status, "RuntimeError: spoilt" in ended.err) == (1, True), ended.said
    assert [step for step, row in disk_rows(tmp_path).items() if of_devices(row)] == [3, 6, 9, 12, 15]
    resumed = ["resume_from_checkpoint=true", "checkpointer.checkpoint_files=[epoch_0/model-00001-of-00001.bin]"]
    ended = train(tmp_path, EXAMPLE, str(tmp_path), SINGLE, "epochs=2", *resumed, "metric_logger.filename=z.txt")
    assert ended.status == 0, ended.said
    assert list(disk_rows(tmp_path)) == [3, 6, 9, 12, 15, 18, 21, 24]


def test_two_processes_log_once(tmp_path: Path) -> None:
    """By torchrun, with the recipe for several: the first rank has the logger, of the devices that both see.

    Beside CPUs this recipe fails where it looks after a GPU's memory; that is left out.
    """
    ended = train(tmp_path, EXAMPLE, str(tmp_path / "here"), SINGLE, "max_steps_per_epoch=1")  # makes the model
    assert ended.status == 0, ended.said
    gpus = (
        "from torchtune import training\ntraining.get_memory_stats = training.log_memory_stats = training.cleanup_before_training = dict\n"
    )
    program = f"{gpus}{PROGRAM}tune()"
    ended = train(tmp_path, program.replace(SINGLE, "full_finetune_distributed"), ranks=2)
    assert ended.status == 0, ended.said
    rows = disk_rows(tmp_path)
    assert list(rows) == [3, 6]
    assert "readings" in of_devices(rows[6])


BROKEN = """
from unittest.mock import patch
from accelmetrics import Monitor
from accelmetrics.integrations import torchtune as ours
from accelmetrics.integrations.training import TrainingRun

def fail(*arguments, **more):
    raise OSError("broken on purpose")

def run(*options):
    run.number += 1
    tune(f"metric_logger.filename={run.number}.txt", *options)
    lines = open(f"here/output/logs/{run.number}.txt").read()
    print("LOSS", [word for word in lines.split() if word.startswith("loss:")], flush=True)

run.number = 0
run("metric_logger._component_=torchtune.training.metric_logging.DiskLogger")
run()
run("metric_logger.monitor.exporters=[jsonl:/dev/full,otlp:http://127.0.0.1:9]")
with patch.multiple(TrainingRun, _row=fail, step=fail):
    run()
with patch.multiple(Monitor, start=fail, stop=fail, log=fail):
    run()
"""


def test_a_failure_of_ours_changes_nothing(tmp_path: Path) -> None:
    """Of the losses to the last digit, nor of the exit status: a disk, a server, our own code."""
    ended = train(tmp_path, PROGRAM + BROKEN)
    assert ended.status == 0, ended.said
    losses = re.findall(r"LOSS (.*)", ended.out)
    assert len(losses) == 5, ended.said
    assert len(set(losses)) == 1, losses
    assert "loss:" in losses[0]
    assert "broken on purpose" in ended.err


def test_a_hung_driver_changes_nothing(tmp_path: Path) -> None:
    """From its first call on: the training neither waits for it nor learns of it, and its process ends."""
    with NvmlSimulator(gpus=2) as simulator:
        simulator.rule("nvmlInit_v2", hang=True)
        ended = run_program(["python", str(EXAMPLE), str(tmp_path)], tmp_path, **simulator.environment())
    assert ended.status == 0, ended.said
    assert list(disk_rows(tmp_path)) == [3, 6, 9, 12]
