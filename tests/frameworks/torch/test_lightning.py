"""Lightning under both of its names, as it is released."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from tests.frameworks.programs import EXAMPLES, run_program, train
from tests.frameworks.torch.trackers import mlflow_steps, of_devices, tensorboard_rows, wandb_rows
from tests.simulators.nvml import NvmlSimulator

PROGRAM = """\
import gc
import logging
import sys
import types
import torch
import lightning
from lightning.pytorch import loggers
from accelmetrics.integrations.lightning import DeviceMonitor

logging.basicConfig()

def module(pl=lightning, spoil=None):
    class Doubling(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 4)
        def training_step(self, batch, batch_idx):
            if batch_idx == spoil:
                raise RuntimeError("spoilt")
            loss = torch.nn.functional.mse_loss(self.layer(batch), 2 * batch)
            self.log("loss", loss)
            return loss
        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)
    torch.manual_seed(0)
    return Doubling()

def trainer(pl=lightning, **options):
    quiet = {"accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    return pl.Trainer(**{**quiet, "max_epochs": 1, "log_every_n_steps": 5, "logger": False, **options})

torch.manual_seed(0)
data = torch.utils.data.DataLoader(torch.rand(80, 4), batch_size=4)
"""


def csv_rows(folder: Path) -> dict[int, dict[str, str]]:
    """By step, what the one table below a folder has of it, from all rows together."""
    (path,) = folder.rglob("metrics.csv")
    rows: dict[int, dict[str, str]] = {}
    for row in csv.DictReader(path.read_text().splitlines()):
        named = rows.setdefault(int(row["step"]), {})
        filled = {name: value for name, value in row.items() if value}
        assert not any(name in named for name in filled if name.startswith("system/")), f"step {row['step']} has two rows of the devices"
        named.update(filled)
    return rows


def test_the_example(tmp_path: Path) -> None:
    """Rows of the devices at the trainer's steps; the variable adds none where the program has a monitor."""
    ended = train(tmp_path, EXAMPLES / "lightning_trainer.py", str(tmp_path / "output"), ACCELMETRICS_LIGHTNING="1")
    assert ended.status == 0, ended.said
    rows = csv_rows(tmp_path)
    assert list(rows) == [4, 9, 14, 19]
    assert all("loss" in row and "system/readings" in row for row in rows.values())
    last = of_devices(rows[19])
    assert {f"gpu.{index}.{name}" for index in (0, 1) for name in ("gpu", "memoryAllocated", "powerWatts", "temp")} <= last.keys()
    assert 20 < float(last["gpu.0.powerWatts"]) < 1000


LOGGERS = """
def fit(checkpoint, **options):
    them = [
        loggers.TensorBoardLogger("board"),
        loggers.WandbLogger(project="here", offline=True),
        loggers.MLFlowLogger(tracking_uri="file:store"),
    ]
    them[1].experiment  # opened before the trainer, the others by it
    monitor = DeviceMonitor(interval=0.05)
    it = trainer(logger=them, callbacks=[monitor], accumulate_grad_batches=2, log_every_n_steps=2, enable_checkpointing=True, **options)
    it.fit(module(), data, ckpt_path=checkpoint)
    steps = [(step.step, step.values["loss"]) for step in monitor.run.monitor.steps]
    assert [step for step, loss in steps] == list(range(it.global_step - 10, it.global_step)), steps
    print("FIRST", steps[0][1])
    return it

it = fit(None, default_root_dir="first")
fit(it.checkpoint_callback.best_model_path, default_root_dir="second", max_epochs=2)
"""


def test_rows_reach_every_logger_and_go_on_from_a_checkpoint(tmp_path: Path) -> None:
    """In the runs that the loggers opened, once for each step that accumulates gradients; its loss is that of the batch."""
    ended = train(tmp_path, PROGRAM + LOGGERS)
    assert ended.status == 0, ended.said
    steps = list(range(1, 20, 2))
    assert [step for step, row in tensorboard_rows(tmp_path).items() if of_devices(row)] == steps
    assert [row["trainer/global_step"] for row in wandb_rows(tmp_path) if of_devices(row)] == steps
    assert mlflow_steps(tmp_path / "store") == [steps[:5], steps[5:]]
    assert float(re.findall(r"FIRST (\S+)", ended.out)[0]) > 0.1, ended.said


def test_no_code_is_needed(tmp_path: Path) -> None:
    """The variable adds a monitor to each trainer, of either name; an option that cannot be used is told and adds none."""
    program = PROGRAM.replace("from accelmetrics.integrations.lightning import DeviceMonitor", "import pytorch_lightning")
    program += """
from pytorch_lightning.loggers import CSVLogger
trainer(pytorch_lightning, logger=CSVLogger("table")).fit(module(pytorch_lightning), data)
it = trainer(logger=loggers.TensorBoardLogger("board"))
it.fit(module(), data)
from accelmetrics.integrations.lightning import DeviceMonitor
(monitor,) = [one for one in it.callbacks if isinstance(one, DeviceMonitor)]
assert isinstance(monitor, (lightning.Callback, pytorch_lightning.Callback))
assert not monitor.run.monitor.running
"""
    ended = train(tmp_path, program, ACCELMETRICS_LIGHTNING="1")
    assert ended.status == 0, ended.said
    assert [step for step, row in csv_rows(tmp_path).items() if of_devices(row)] == [4, 9, 14, 19]
    assert [step for step, row in tensorboard_rows(tmp_path).items() if of_devices(row)] == [4, 9, 14, 19]


def test_an_exception_in_the_middle(tmp_path: Path) -> None:
    """Is the program's own; rows until then are there, and the monitor has ended."""
    program = """
monitor = DeviceMonitor(interval=0.05)
try:
    trainer(logger=loggers.CSVLogger("table", flush_logs_every_n_steps=1), callbacks=[monitor]).fit(module(spoil=7), data)
except RuntimeError as error:
    print("RAISED", error, monitor.run.monitor.running)
raise SystemExit(3)
"""
    ended = train(tmp_path, PROGRAM + program)
    assert (ended.status, "RAISED spoilt False" in ended.out) == (3, True), ended.said
    assert list(csv_rows(tmp_path)) == [4]


@pytest.mark.parametrize("ranks", [2, 1], ids=["torchrun", "lightning"])
def test_two_processes_log_once(ranks: int, tmp_path: Path) -> None:
    """By torchrun, and by Lightning itself, which starts the second one: every rank notes its steps, the first one logs."""
    program = """
from tests.support.waiting import wait_for

class Waiting(DeviceMonitor):
    def setup(self, *arguments, **more):
        super().setup(*arguments, **more)
        wait_for(lambda: self.run.monitor.latest is not None)

monitor = Waiting(interval=0.05)
it = trainer(logger=loggers.CSVLogger("table"), callbacks=[monitor], strategy="ddp", devices=2)
it.fit(module(), data)
print("STEPS", monitor.run.rank, len([one for one in monitor.run.monitor.steps if one.rank == monitor.run.rank]))
"""
    ended = train(tmp_path, PROGRAM + program, ranks=ranks)
    assert ended.status == 0, ended.said
    assert sorted(re.findall(r"STEPS (\d \d+)", ended.out)) == ["0 10", "1 10"], ended.said
    rows = csv_rows(tmp_path)
    assert list(rows) == [4, 9]
    assert {"gpu.0.powerWatts", "gpu.1.powerWatts"} <= of_devices(rows[9]).keys()


BROKEN = """
from unittest.mock import patch
from accelmetrics import Monitor
from accelmetrics.integrations.training import RunHook
from accelmetrics.integrations.training import TrainingRun

def fail(*arguments, **more):
    raise OSError("broken on purpose")

def run(options=None, logger=False):
    it = trainer(callbacks=[] if options is None else [DeviceMonitor(interval=0.05, **options)], logger=logger)
    it.fit(model := module(), data)
    print("LOSS", it.state.status, [float(number) for number in model.layer.weight.flatten()], flush=True)

exporter = types.SimpleNamespace(name="broken", open=bool, export=fail, flush=fail, close=fail)
run()
run({})
run({"exporters": [exporter, "jsonl:/dev/full", "otlp:http://127.0.0.1:9"]})
with patch.multiple(TrainingRun, _row=fail, step=fail):
    run({})
with patch.multiple(Monitor, start=fail, stop=fail, log=fail):
    run({})
table = loggers.CSVLogger("table")
with patch.object(RunHook, "row", fail):
    run({}, table)
"""


def test_a_failure_of_ours_changes_nothing(tmp_path: Path) -> None:
    """Of the weights to the last digit, nor of the exit status: an exporter, a disk, a server, our own code, a trainer that has changed."""
    ended = train(tmp_path, PROGRAM + BROKEN)
    assert ended.status == 0, ended.said
    weights = re.findall(r"LOSS (.*)", ended.out)
    assert len(weights) == 6, ended.said
    assert len(set(weights)) == 1, weights
    assert "broken on purpose" in ended.err


def test_a_hung_driver_changes_nothing(tmp_path: Path) -> None:
    """From its first call on: the training neither waits for it nor learns of it, and its process ends."""
    with NvmlSimulator(gpus=2) as simulator:
        simulator.rule("nvmlInit_v2", hang=True)
        (tmp_path / "program.py").write_text(f"{PROGRAM}{BROKEN.partition('exporter = ')[0]}run()\nrun({{}})")
        ended = run_program(["python", str(tmp_path / "program.py")], tmp_path, **simulator.environment())
    assert ended.status == 0, ended.said
    weights = re.findall(r"LOSS (.*)", ended.out)
    assert len(weights) == 2, ended.said
    assert weights[0] == weights[1]
