"""accelerate, as it is released."""

from __future__ import annotations

import re
from pathlib import Path

from tests.frameworks.programs import EXAMPLES, run_program, train
from tests.frameworks.torch.trackers import mlflow_steps, of_devices, tensorboard_rows, wandb_rows
from tests.simulators.nvml import NvmlSimulator

PROGRAM = """\
import logging
import sys
import types
import torch
from accelerate import Accelerator
import accelmetrics.integrations.accelerate

logging.basicConfig()

def train(accelerator, steps, resume=False, spoil=None, options=None):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = accelerator.prepare(model, optimizer)
    accelerator.init_trackers("doubling", config={"rate": 0.1}, init_kwargs=options or {})
    if resume:
        accelerator.load_state("saved")
    for step in steps:
        if step == spoil:
            raise RuntimeError("spoilt")
        batch = torch.rand(4, 4, generator=torch.Generator().manual_seed(step))
        loss = torch.nn.functional.mse_loss(model(batch), 2 * batch)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        if step % 5 == 0:
            accelerator.log({"loss": loss.item(), "step": step, "phase": "train"}, step=step)
    accelerator.save_state("saved")
    weights = [float(number) for number in accelerator.unwrap_model(model).weight.flatten()]
    accelerator.end_training()
    return weights
"""


def test_the_example(tmp_path: Path) -> None:
    """The tracker adds to the rows of all that stand behind it, at the program's steps, in the runs that they opened."""
    ended = train(tmp_path, EXAMPLES / "accelerate_loop.py", str(tmp_path / "output"), "tensorboard,wandb")
    assert ended.status == 0, ended.said
    board = tensorboard_rows(tmp_path)
    tracked = {row["_step"]: row for row in wandb_rows(tmp_path) if "loss" in row}
    assert [step for step, row in board.items() if "loss" in row] == [5, 10, 15, 20] == list(tracked)
    for step, row in tracked.items():
        assert of_devices(board[step]).keys() == of_devices(row).keys() > {"readings"}
    last = of_devices(tracked[20])
    assert {f"gpu.{index}.{name}" for index in (0, 1) for name in ("gpu", "memoryAllocated", "powerWatts", "temp")} <= last.keys()
    assert 20 < last["gpu.0.powerWatts"] < 1000


NAMED = """
import mlflow
mlflow.set_tracking_uri("file:store")
import wandb
wandb.init(project="mine")  # opened before the trackers
accelerator = Accelerator(log_with=["accelmetrics", "mlflow", "wandb"], project_dir="project")
train(accelerator, range(1, 11), options={"accelmetrics": {"interval": 0.05}})
run = accelerator.get_tracker("accelmetrics", unwrap=True)
assert [(step.step, "loss" in step.values, "phase" in step.values) for step in run.monitor.steps] == [(5, True, False), (10, True, False)]
assert run.monitor.interval == 0.05 and not run.monitor.running
accelerator = Accelerator(log_with=["accelmetrics", "tensorboard"], project_dir="project")
train(accelerator, range(11, 21), resume=True)
"""


def test_by_name_and_resumed_from_a_checkpoint(tmp_path: Path) -> None:
    """The name is known after the import; rows reach MLflow, and a W&B run that the program opened; the second training goes on."""
    ended = train(tmp_path, PROGRAM + NAMED)
    assert ended.status == 0, ended.said
    assert [row["_step"] for row in wandb_rows(tmp_path) if of_devices(row)] == [5, 10]
    assert mlflow_steps(tmp_path / "store") == [[5, 10]]
    assert [step for step, row in tensorboard_rows(tmp_path).items() if of_devices(row)] == [15, 20]


def test_an_exception_in_the_middle(tmp_path: Path) -> None:
    """Is the program's own; rows until then are there, and the process ends with its monitor."""
    program = """
accelerator = Accelerator(log_with=["accelmetrics", "tensorboard"], project_dir="project")
train(accelerator, range(1, 11), spoil=7)
"""
    ended = train(tmp_path, PROGRAM + program)
    assert (ended.status, "RuntimeError: spoilt" in ended.err) == (1, True), ended.said
    assert [step for step, row in tensorboard_rows(tmp_path).items() if of_devices(row)] == [5]


def test_two_processes_log_once(tmp_path: Path) -> None:
    """By torchrun: the first one logs, of the devices that both see."""
    program = """
from accelmetrics.integrations.accelerate import DeviceTracker
from tests.support.waiting import wait_for

class Waiting(DeviceTracker):
    def start(self):
        super().start()
        wait_for(lambda: self.run.monitor.latest is not None)

train(Accelerator(cpu=True, log_with=[Waiting(interval=0.05), "tensorboard"], project_dir="project"), range(1, 11))
"""
    ended = train(tmp_path, PROGRAM + program, ranks=2)
    assert ended.status == 0, ended.said
    rows = tensorboard_rows(tmp_path)
    assert [step for step, row in rows.items() if of_devices(row)] == [5, 10]
    assert {"gpu.0.powerWatts", "gpu.1.powerWatts"} <= of_devices(rows[10]).keys()


BROKEN = """
from unittest.mock import patch
from accelmetrics import Monitor
from accelmetrics.integrations.training import RunHook
from accelmetrics.integrations.training import TrainingRun

def fail(*arguments, **more):
    raise OSError("broken on purpose")

def run(options=None):
    names = [] if options is None else ["accelmetrics"]
    accelerator = Accelerator(log_with=[*names, "tensorboard"], project_dir="project")
    print("WEIGHTS", train(accelerator, range(1, 11), options={"accelmetrics": {"interval": 0.05, **(options or {})}}), flush=True)

exporter = types.SimpleNamespace(name="broken", open=bool, export=fail, flush=fail, close=fail)
run()
run({})
run({"exporters": [exporter, "jsonl:/dev/full", "otlp:http://127.0.0.1:9"]})
with patch.multiple(TrainingRun, _row=fail, step=fail):
    run({})
with patch.multiple(Monitor, start=fail, stop=fail, log=fail):
    run({})
"""


def test_a_failure_of_ours_changes_nothing(tmp_path: Path) -> None:
    """Of the weights to the last digit, nor of the exit status: an exporter, a disk, a server, our own code."""
    ended = train(tmp_path, PROGRAM + BROKEN)
    assert ended.status == 0, ended.said
    weights = re.findall(r"WEIGHTS (.*)", ended.out)
    assert len(weights) == 5, ended.said
    assert len(set(weights)) == 1, weights
    assert "broken on purpose" in ended.err


def test_a_hung_driver_changes_nothing(tmp_path: Path) -> None:
    """From its first call on: the training neither waits for it nor learns of it, and its process ends."""
    with NvmlSimulator(gpus=2) as simulator:
        simulator.rule("nvmlInit_v2", hang=True)
        (tmp_path / "program.py").write_text(f"{PROGRAM}{BROKEN.partition('exporter = ')[0]}run()\nrun({{}})")
        ended = run_program(["python", str(tmp_path / "program.py")], tmp_path, **simulator.environment())
    assert ended.status == 0, ended.said
    weights = re.findall(r"WEIGHTS (.*)", ended.out)
    assert len(weights) == 2, ended.said
    assert weights[0] == weights[1]
