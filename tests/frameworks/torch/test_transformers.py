"""Hugging Face's Trainer and trl's, as they are released."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from mlflow import MlflowClient

from tests.frameworks.programs import EXAMPLES, run_program, train
from tests.frameworks.torch.trackers import of_devices, tensorboard_rows, wandb_rows
from tests.simulators.nvml import NvmlSimulator

BRIEF = {"gpu", "memoryAllocated", "powerWatts", "temp", "energyJoules"}
"""Of each device."""
PROGRAM = """\
import logging
import sys
import types
import torch
import transformers
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from accelmetrics.integrations.transformers import MonitorCallback

logging.basicConfig()

class Counting(torch.utils.data.Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        tokens = (torch.arange(16) + index) % 50
        return {"input_ids": tokens, "labels": tokens}

def trainer(callbacks=(), **options):
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=1, n_head=2, vocab_size=50, n_positions=16))
    options = {"max_steps": 10, "logging_steps": 5, "per_device_train_batch_size": 4, "save_strategy": "no", "report_to": [], **options}
    return Trainer(model, TrainingArguments("output", disable_tqdm=True, **options), train_dataset=Counting(), callbacks=list(callbacks))
"""


def logged(said: str) -> list[str]:
    """The final losses that a program printed as LOSS."""
    return re.findall(r"LOSS (\S+)", said)


def test_rows_reach_every_reporter(tmp_path: Path) -> None:
    """By the example: TensorBoard and W&B have them in the trainer's own rows, at its steps, in one run."""
    ended = train(tmp_path, EXAMPLES / "transformers_trainer.py", str(tmp_path / "output"), "tensorboard,wandb")
    assert ended.status == 0, ended.said
    board = tensorboard_rows(tmp_path)
    tracked = {row["train/global_step"]: row for row in wandb_rows(tmp_path) if "train/loss" in row}
    assert [step for step, row in board.items() if "train/loss" in row] == [5, 10, 15, 20] == list(tracked)
    for step, row in tracked.items():
        ours = of_devices(row)
        # A row that comes before the next reading leaves energy out: on a busy machine steps are quicker than readings.
        brief = BRIEF if ours["readings"] else BRIEF - {"energyJoules"}
        assert {f"gpu.{index}.{name}" for index in (0, 1) for name in brief} <= ours.keys(), f"step {step}: {sorted(ours)}"
        assert of_devices(board[step]) == pytest.approx(ours, rel=1e-6)
        assert 20 < ours["gpu.0.powerWatts"] < 1000
    assert any(of_devices(row)["readings"] for row in tracked.values())


def test_rows_reach_mlflow(tmp_path: Path) -> None:
    """In the run that its callback opens, at the trainer's steps."""
    store = f"sqlite:///{tmp_path}/mlflow.db"
    ended = train(
        tmp_path,
        PROGRAM + 'MonitorCallback(interval=0.1).attach(it := trainer(report_to=["mlflow"]))\nit.train()',
        MLFLOW_TRACKING_URI=store,
    )
    assert ended.status == 0, ended.said
    client = MlflowClient(store)
    (run,) = client.search_runs(["0"])
    history = client.get_metric_history(run.info.run_id, "system/gpu.1.powerWatts")
    assert [point.step for point in history] == [5, 10]
    assert {f"system/gpu.0.{name}" for name in BRIEF} <= run.data.metrics.keys()


def test_the_name_in_report_to_is_enough(tmp_path: Path) -> None:
    """Before the others; the class is made without arguments."""
    ended = train(tmp_path, PROGRAM + 'trainer(report_to=["accelmetrics", "tensorboard"]).train()')
    assert ended.status == 0, ended.said
    rows = [of_devices(row) for row in tensorboard_rows(tmp_path).values() if "train/loss" in row]
    assert len(rows) == 2
    assert "gpu.1.powerWatts" in rows[-1]
    assert "comes after" not in ended.err


@pytest.mark.parametrize(
    "program", ['trainer([MonitorCallback(interval=0.1)], report_to=["wandb"])', 'trainer(report_to=["wandb", "accelmetrics"])']
)
def test_behind_a_reporter_it_says_so_and_follows(program: str, tmp_path: Path) -> None:
    """A row of its own in the run that W&B's callback has open, which names the step."""
    ended = train(tmp_path, f"{PROGRAM}{program}.train()")
    assert ended.status == 0, ended.said
    assert ended.err.count("the callback comes after wandb") == 1
    assert [row["train/global_step"] for row in wandb_rows(tmp_path) if of_devices(row)] == [5, 10]


def test_tokens_and_steps_are_heard(tmp_path: Path) -> None:
    """Where the trainer counts tokens; loss and norm are the trainer's own numbers."""
    program = """
callback = MonitorCallback(interval=0.1).attach(it := trainer(include_num_input_tokens_seen="all"))
it.train()
steps = callback.run.monitor.steps
print("TOKENS", sum(step.values.get("tokens", 0) for step in steps), it.state.num_input_tokens_seen)
print("LOGGED", [step.step for step in steps if "loss" in step.values and "grad_norm" in step.values])
"""
    ended = train(tmp_path, PROGRAM + program)
    assert "TOKENS 640 640" in ended.out, ended.said
    assert "LOGGED [5, 10]" in ended.out, ended.said


def test_the_callback_of_home_grown_monitors(tmp_path: Path) -> None:
    """Given a monitor; a line a step in the files that such monitors write, and none without a number."""
    program = """
import json, pathlib
import accelmetrics
from accelmetrics.integrations.callbacks import GPUMonitoringCallback
monitor = accelmetrics.Monitor(0.05, ["training-files:lines"], gpus=[0])
it = trainer([GPUMonitoringCallback(monitor, log_interval=5)])
it.train()
(path,) = pathlib.Path("lines").glob("training_metrics_*.jsonl")
rows = [json.loads(line) for line in path.read_text().splitlines()]
print("STEPS", [row["step"] for row in rows])
print("LOGGED", [row["step"] for row in rows if row["loss"] and row["gradient_norm"] and row["learning_rate"]])
"""
    ended = train(tmp_path, PROGRAM + program)
    assert "STEPS [5, 10]" in ended.out, ended.said  # the trainer logs each fifth; all others have an epoch alone
    assert "LOGGED [5, 10]" in ended.out, ended.said


def test_resumed_from_a_checkpoint(tmp_path: Path) -> None:
    """The second process's rows stand at the steps after the checkpoint."""
    program = """
it = trainer(report_to=["accelmetrics", "tensorboard"], save_strategy="steps", save_steps=10, max_steps=int(sys.argv[1]))
it.train(resume_from_checkpoint=sys.argv[1] == "20")
assert not any("system/" in name for row in it.state.log_history for name in row), "a checkpoint has the trainer's own rows alone"
"""
    for steps in ("10", "20"):
        ended = train(tmp_path, PROGRAM + program, steps)
        assert ended.status == 0, ended.said
    assert [step for step, row in tensorboard_rows(tmp_path).items() if of_devices(row)] == [5, 10, 15, 20]


def test_an_exception_in_the_middle(tmp_path: Path) -> None:
    """Is the program's own: rows until then are there, and the monitor ends with the callback."""
    program = """
class Stop(transformers.TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 7:
            raise RuntimeError("the seventh")
callback = MonitorCallback(interval=0.1)
it = trainer([Stop()], report_to=["tensorboard"])
callback.attach(it)
try:
    it.train()
except RuntimeError as error:
    print("RAISED", error)
monitor = callback.run.monitor
assert monitor.running
del callback, it
import gc
gc.collect()
print("RUNNING", monitor.running)
raise SystemExit(3)
"""
    ended = train(tmp_path, PROGRAM + program)
    assert (ended.status, "RAISED the seventh" in ended.out, "RUNNING False" in ended.out) == (3, True, True), ended.said
    assert [step for step, row in tensorboard_rows(tmp_path).items() if of_devices(row)] == [5]


def test_two_processes_log_once(tmp_path: Path) -> None:
    """By torchrun: every rank notes its steps, the first one logs."""
    program = (
        'it = trainer(report_to=["tensorboard"], ddp_backend="gloo", use_cpu=True)\nMonitorCallback(interval=0.1).attach(it)\nit.train()'
    )
    ended = train(tmp_path, PROGRAM + program, ranks=2)
    assert ended.status == 0, ended.said
    rows = tensorboard_rows(tmp_path)
    assert [step for step, row in rows.items() if of_devices(row)] == [5, 10]
    assert {"gpu.0.powerWatts", "gpu.1.powerWatts"} <= of_devices(rows[10]).keys()


BROKEN = """
import contextlib
from unittest.mock import patch
from accelmetrics import Monitor
from accelmetrics.integrations.training import TrainingRun

def fail(*arguments):
    raise OSError("broken on purpose")

def run(options=None):
    it = trainer()
    if options is not None:
        MonitorCallback(interval=0.05, **options).attach(it)
    it.train()
    print("LOSS", repr(it.state.log_history[-1]["train_loss"]), flush=True)

exporter = types.SimpleNamespace(name="broken", open=bool, export=fail, flush=fail, close=fail)
run()
run({})
run({"exporters": [exporter, "jsonl:/dev/full", "otlp:http://127.0.0.1:9"]})
with patch.multiple(TrainingRun, _row=fail):
    run({})
with patch.multiple(Monitor, start=fail, stop=fail):
    run({})
"""


def test_a_failure_of_ours_changes_nothing(tmp_path: Path) -> None:
    """Of the losses to the last digit, nor of the exit status: an exporter, a disk, a server, our own code."""
    ended = train(tmp_path, PROGRAM + BROKEN)
    assert ended.status == 0, ended.said
    losses = logged(ended.out)
    assert len(losses) == 5, ended.said
    assert len(set(losses)) == 1, losses
    assert "broken on purpose" in ended.err


def test_a_hung_driver_changes_nothing(tmp_path: Path) -> None:
    """From its first call on: the training neither waits for it nor learns of it, and its process ends."""
    with NvmlSimulator(gpus=2) as simulator:
        simulator.rule("nvmlInit_v2", hang=True)
        (tmp_path / "program.py").write_text(f"{PROGRAM}{BROKEN.partition('exporter = ')[0]}run({{}})")
        ended = run_program([sys.executable, str(tmp_path / "program.py")], tmp_path, **simulator.environment())
    assert ended.status == 0, ended.said
    assert len(logged(ended.out)) == 1


def test_trl(tmp_path: Path) -> None:
    """Its trainers are built on the same one."""
    program = """
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

words = [f"w{number}" for number in range(40)]
tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate([*words, "<pad>", "<eos>"])}, unk_token="<pad>"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")
data = Dataset.from_dict({"text": [" ".join(words[start:start + 8]) for start in range(32)]})
options = {"max_steps": 4, "logging_steps": 2, "save_strategy": "no", "use_cpu": True, "bf16": False}
model = GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=1, n_head=2, vocab_size=50, n_positions=16))
config = SFTConfig("output", report_to=["tensorboard"], max_length=16, **options)
it = SFTTrainer(model, config, train_dataset=data, processing_class=tokenizer)
MonitorCallback(interval=0.1).attach(it)
it.train()
"""
    ended = train(tmp_path, PROGRAM + program)
    assert ended.status == 0, ended.said
    assert [step for step, row in tensorboard_rows(tmp_path).items() if of_devices(row)] == [2, 4]
