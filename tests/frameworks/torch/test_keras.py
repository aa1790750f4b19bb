"""Keras 3, as it is released, on PyTorch and on JAX."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from tests.frameworks.programs import EXAMPLES, run_program, train
from tests.frameworks.torch.trackers import mlflow_steps, of_devices, wandb_rows
from tests.simulators.nvml import NvmlSimulator

PROGRAM = """\
import logging
import types
import keras
import numpy as np
from accelmetrics.integrations.keras import DeviceMonitor

logging.basicConfig()
numbers = np.random.default_rng(0).random((80, 4), dtype="float32")

def model():
    keras.utils.set_random_seed(0)
    it = keras.Sequential([keras.layers.Dense(4)])
    it.compile(optimizer="sgd", loss="mse")
    return it

def fit(it, *callbacks, epochs=3, **options):
    shown = {"batch_size": 4, "epochs": epochs, "verbose": 0, "shuffle": False, **options}
    return it.fit(numbers, 2 * numbers, callbacks=list(callbacks), **shown)
"""


def csv_rows(path: Path) -> dict[int, dict[str, str]]:
    """By epoch, the lines of a table."""
    return {int(row["epoch"]): row for row in csv.DictReader(path.read_text().splitlines())}


@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_the_example(backend: str, tmp_path: Path) -> None:
    """Each epoch's row has the devices, in the history and in the table of a callback behind it."""
    ended = train(tmp_path, EXAMPLES / "keras_fit.py", "log.csv", KERAS_BACKEND=backend)
    assert ended.status == 0, ended.said
    history = dict(re.findall(r"^(\S+) \[(.*)\]$", ended.out, re.MULTILINE))
    assert {len(values.split(",")) for values in history.values()} == {4}, ended.said
    assert {f"system/gpu.{index}.{name}" for index in (0, 1) for name in ("gpu", "memoryAllocated", "powerWatts", "temp")} <= history.keys()
    rows = csv_rows(tmp_path / "log.csv")
    assert list(rows) == [0, 1, 2, 3]
    assert all("system/readings" in row for row in rows.values())


TRACKED = """
import os
import mlflow
import wandb

mlflow.set_tracking_uri("file:store")
run = wandb.init(project="mine")  # opened before the training
track = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: run.log(logs, step=epoch))
monitor = DeviceMonitor(interval=0.05)
callbacks = [monitor, track, mlflow.keras.MlflowCallback(), keras.callbacks.BackupAndRestore("backup", delete_checkpoint=False)]
with mlflow.start_run():
    fit(model(), *callbacks, validation_data=(numbers, numbers))
    assert [step.step for step in monitor.run.monitor.steps] == list(range(1, 61))
    resumed = DeviceMonitor(interval=0.05)
    history = fit(model(), resumed, *callbacks[1:], epochs=5)
assert [step.step for step in resumed.run.monitor.steps] == list(range(61, 101)), resumed.run.monitor.steps
assert all("loss" in step.values for step in resumed.run.monitor.steps)
assert not monitor.run.monitor.running and not resumed.run.monitor.running
print("EPOCHS", history.epoch)
"""


def test_trackers_behind_it_and_resumed_from_a_backup(tmp_path: Path) -> None:
    """Rows reach the run that W&B and MLflow have open, at the epoch; a training that is resumed goes on at its epoch and step."""
    ended = train(tmp_path, PROGRAM + TRACKED, KERAS_BACKEND="torch")
    assert ended.status == 0, ended.said
    assert "EPOCHS [3, 4]" in ended.out, ended.said
    assert [row["_step"] for row in wandb_rows(tmp_path) if of_devices(row)] == [0, 1, 2, 3, 4]
    assert [sorted(steps) for steps in mlflow_steps(tmp_path / "store")] == [[0, 1, 2, 3, 4]]


def test_an_exception_in_the_middle(tmp_path: Path) -> None:
    """Is the program's own; rows until then are there, and the monitor ends with the callback."""
    program = """
import gc

class Stop(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if self._model.optimizer.iterations == 30:
            raise RuntimeError("spoilt")

it, monitor = model(), DeviceMonitor(interval=0.05)
try:
    fit(it, monitor, keras.callbacks.CSVLogger("log.csv"), Stop())
except RuntimeError as error:
    print("RAISED", error)
below = monitor.run.monitor
assert below.running
del monitor, it
gc.collect()
print("RUNNING", below.running)
raise SystemExit(3)
"""
    ended = train(tmp_path, PROGRAM + program, KERAS_BACKEND="torch")
    assert (ended.status, "RAISED spoilt" in ended.out, "RUNNING False" in ended.out) == (3, True, True), ended.said
    assert list(csv_rows(tmp_path / "log.csv")) == [0]


def test_two_processes(tmp_path: Path) -> None:
    """By torchrun, as PyTorch's own module: each has its rows in its own history."""
    program = """
import torch
from tests.support.waiting import wait_for

class Waiting(DeviceMonitor):
    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        wait_for(lambda: self.run.monitor.latest is not None)

torch.distributed.init_process_group("gloo")
monitor = Waiting(interval=0.05)
history = fit(model(), monitor, batch_size=8)
print("RANK", monitor.run.rank, len([step for step in monitor.run.monitor.steps if step.rank == monitor.run.rank]))
assert "system/gpu.1.powerWatts" in history.history
torch.distributed.destroy_process_group()
"""
    ended = train(tmp_path, PROGRAM + program, ranks=2, KERAS_BACKEND="torch")
    assert ended.status == 0, ended.said
    assert sorted(re.findall(r"RANK (\d \d+)", ended.out)) == ["0 30", "1 30"], ended.said


BROKEN = """
from unittest.mock import patch
from accelmetrics import Monitor
from accelmetrics.integrations.training import TrainingRun

def fail(*arguments, **more):
    raise OSError("broken on purpose")

def run(options=None):
    history = fit(model(), *([] if options is None else [DeviceMonitor(interval=0.05, **options)]))
    print("LOSS", [repr(loss) for loss in history.history["loss"]], flush=True)

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
    """Of the losses to the last digit, nor of the exit status: an exporter, a disk, a server, our own code."""
    ended = train(tmp_path, PROGRAM + BROKEN, KERAS_BACKEND="torch")
    assert ended.status == 0, ended.said
    losses = re.findall(r"LOSS (.*)", ended.out)
    assert len(losses) == 5, ended.said
    assert len(set(losses)) == 1, losses
    assert "broken on purpose" in ended.err


def test_a_hung_driver_changes_nothing(tmp_path: Path) -> None:
    """From its first call on: the training neither waits for it nor learns of it, and its process ends."""
    with NvmlSimulator(gpus=2) as simulator:
        simulator.rule("nvmlInit_v2", hang=True)
        (tmp_path / "program.py").write_text(f"{PROGRAM}{BROKEN.partition('exporter = ')[0]}run()\nrun({{}})")
        ended = run_program(["python", str(tmp_path / "program.py")], tmp_path, **simulator.environment(), KERAS_BACKEND="torch")
    assert ended.status == 0, ended.said
    losses = re.findall(r"LOSS (.*)", ended.out)
    assert len(losses) == 2, ended.said
    assert losses[0] == losses[1]
