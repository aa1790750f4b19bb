"""The callback for Hugging Face's Trainer, beside a stand-in that hands out events as the trainer does."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Iterator
from functools import partial
from importlib import import_module, reload
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import accelmetrics
from accelmetrics.integrations.callbacks import GPUMonitoringCallback
from tests.monitor.watching import gpus
from tests.support.waiting import wait_for

gpu = partial(gpus, 1, powerWatts=300.0)

LOGS = {"loss": 0.5, "grad_norm": float("nan"), "learning_rate": 1e-4, "epoch": 1.0}


def rewrite_logs(row: dict[str, Any]) -> dict[str, Any]:
    """As the reporters name what is of the training."""
    return {f"train/{name}": value for name, value in row.items()}


@pytest.fixture
def integration(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module, imported beside the stand-in."""
    package = ModuleType("transformers")
    for name in ("TrainerCallback", "TrainerControl", "TrainerState", "TrainingArguments"):
        setattr(package, name, type(name, (), {}))
    utils = ModuleType("transformers.integrations.integration_utils")
    utils.__dict__.update(INTEGRATION_TO_CALLBACK={}, rewrite_logs=rewrite_logs)
    for name, module in {"": package, ".integrations": ModuleType("x"), ".integrations.integration_utils": utils}.items():
        monkeypatch.setitem(sys.modules, f"transformers{name}", module)
    yield reload(import_module("accelmetrics.integrations.transformers"))
    sys.modules.pop("accelmetrics.integrations.transformers")


class Training:
    """A trainer that logs, with its reporters' callbacks."""

    def __init__(self, *callbacks: Any, report_to: Any = (), main: bool = True) -> None:
        self.callback_handler = SimpleNamespace(callbacks=list(callbacks))
        self.args = SimpleNamespace(report_to=report_to)
        self.state: Any = sys.modules["transformers"].TrainerState()
        vars(self.state).update(global_step=0, num_input_tokens_seen=0, is_world_process_zero=main, epoch=0.0)
        self.control = SimpleNamespace(should_log=False)

    def event(self, name: str, **details: Any) -> None:
        """Tell all callbacks in turn."""
        for callback in self.callback_handler.callbacks:
            getattr(callback, name)(self.args, self.state, self.control, model=None, **details)

    def log(self, **logs: Any) -> dict[str, Any]:
        """Log a row; what it has at the end."""
        self.event("on_log", logs=logs)
        return logs


def reading(callback: Any) -> None:
    """Wait until there is a reading."""
    wait_for(lambda: callback.run.monitor.latest is not None)


def test_a_row_is_added_on_the_first_rank_alone(integration: Any) -> None:
    """To rows of steps; evaluations and the summary at the end are left as they are."""
    for main in (True, False):
        callback = integration.MonitorCallback(interval=0.01, backends=[gpu()])
        training = Training(main=main)
        assert callback.attach(training) is callback
        training.event("on_train_begin")
        reading(callback)
        assert ("system/gpu.0.powerWatts" in training.log(**LOGS)) == main
        assert training.log(eval_loss=1.0) == {"eval_loss": 1.0}
        assert training.log(train_loss=1.0, train_runtime=2.0) == {"train_loss": 1.0, "train_runtime": 2.0}
        training.event("on_train_end")
        assert not callback.run.monitor.running


def test_steps_and_tokens_are_those_of_the_trainer(integration: Any) -> None:
    """Tokens since the last step, from one rank; none where they are not counted."""
    callback = integration.MonitorCallback(interval=0.01, backends=[gpu()])
    training = Training(callback)
    training.state.num_input_tokens_seen = 1000  # of the training that is resumed
    training.event("on_train_begin")
    for step in (1, 2):
        training.state.global_step, training.state.num_input_tokens_seen = step, 1000 + 64 * step
        training.event("on_step_end")
    training.log(**LOGS)
    training.event("on_train_end")
    steps = callback.run.monitor.steps
    assert [step.values["tokens"] for step in steps if "tokens" in step.values] == [64, 64]
    assert [(step.step, step.values["loss"]) for step in steps if "loss" in step.values] == [(2, 0.5)]


def test_a_step_and_its_row_are_one_step(integration: Any) -> None:
    """Where the trainer logs it; the one that it was about to log at the end is not lost."""
    callback = integration.MonitorCallback(interval=0.01, backends=[gpu()])
    training = Training(callback)
    training.event("on_train_begin")
    for step in (1, 2, 3):
        training.state.global_step, training.state.epoch, training.control.should_log = step, step / 4, step > 1
        training.event("on_step_end")
        if step == 2:
            training.log(**LOGS)
    training.event("on_train_end")
    steps = callback.run.monitor.steps
    assert [(step.step, step.values["epoch"], step.values.get("loss")) for step in steps] == [
        (1, 0.25, None),
        (2, 1.0, 0.5),
        (3, 0.75, None),
    ]


def test_a_trainer_of_another_kind_goes_on(integration: Any, caplog: pytest.LogCaptureFixture) -> None:
    """One that counts no tokens, and whose rows have names that are no texts."""
    callback = integration.MonitorCallback(backends=[gpu()], share=None)
    trainer = Training(callback)
    trainer.state.num_input_tokens_seen = None
    trainer.event("on_train_begin")
    for _ in range(2):
        trainer.event("on_step_end")
        trainer.event("on_log", logs={1: 0.5})
    trainer.event("on_train_end")
    assert [line.partition(" failed")[0] for line in caplog.messages] == ["training: on_step_end", "training: on_log"]


def test_the_callback_of_home_grown_monitors_is_one_of_the_trainer_s(integration: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Made with a monitor alone; rows every so many steps, each in one row of the trainer's; a loop of one's own goes on calling it."""
    monitor = accelmetrics.Monitor(0.01, backends=[gpu()], gpus=[0])
    callback: Any = GPUMonitoringCallback(monitor, log_interval=2)
    assert isinstance(callback, sys.modules["transformers"].TrainerCallback) and isinstance(callback, GPUMonitoringCallback)
    training = Training(callback)
    with caplog.at_level(logging.INFO, logger="accelmetrics"):
        training.event("on_train_begin")
        wait_for(lambda: monitor.latest is not None)
        rows = []
        for step in (1, 2, 3):
            training.state.global_step, training.control.should_log = step, True
            training.event("on_step_end")
            rows.append(training.log(**LOGS))
        training.event("on_train_end")
    assert [row.get("system/gpu.0.powerWatts") for row in rows] == [None, 300.0, None]
    assert [message.partition(":")[0] for message in caplog.messages if message.startswith("step ")] == ["step 2"]
    assert [(step.step, step.values["loss"]) for step in monitor.steps] == [(1, 0.5), (2, 0.5), (3, 0.5)]
    assert not monitor.running
    callback.on_train_begin()
    callback.on_step_end(step=9, loss=0.25)
    callback.on_train_end()
    assert (monitor.steps[-1].step, monitor.steps[-1].values["loss"]) == (9, 0.25)


def test_attaching_twice_leaves_one(integration: Any) -> None:
    """First, and before those that were first."""
    callback, other = integration.MonitorCallback(), SimpleNamespace()
    training = Training(other, callback)
    callback.attach(training)
    assert callback.attach(training) and training.callback_handler.callbacks == [callback, other]


@pytest.mark.parametrize(
    ("names", "warned"), [("wandb", True), (["accelmetrics", "wandb"], False), (["tensorboard", "accelmetrics"], True), ([], False)]
)
def test_what_stands_before_it_is_told_once(names: Any, warned: bool, integration: Any) -> None:
    """By ``report_to``; where it was attached nothing stands before it."""
    kind = integration.INTEGRATION_TO_CALLBACK["accelmetrics"] if "accelmetrics" in names else integration.MonitorCallback
    training = Training(kind(), report_to=names)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        training.log(**LOGS)
        training.log(**LOGS)
        assert ["comes after" in str(warning.message) for warning in told] == [True] * warned
        told.clear()
        kind().attach(training)
        training.callback_handler.callbacks[1:] = []
        training.log(**LOGS)
        assert not told


def test_behind_wandb_it_logs_by_itself(integration: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Into the run that is open, whatever that raises."""
    logged: list[dict[str, Any]] = []

    def take(row: dict[str, Any]) -> None:
        logged.append(row)
        raise RuntimeError("the run has ended")

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(run=SimpleNamespace(log=take)))
    callback = integration.MonitorCallback(interval=0.01, backends=[gpu()])
    training = Training(callback, report_to=["wandb"])
    training.event("on_train_begin")
    reading(callback)
    training.state.global_step = 7
    training.log(**LOGS)
    training.event("on_train_end")
    assert logged[0]["train/global_step"] == 7
    assert "train/system/gpu.0.powerWatts" in logged[0]


def test_a_run_of_the_program_is_its_own(integration: Any) -> None:
    """Begun and ended by it; options belong to it, and say so."""
    with accelmetrics.training(backends=[gpu()]) as run:
        callback = integration.MonitorCallback(run)
        training = Training(callback)
        training.event("on_train_begin")
        training.event("on_train_end")
        assert run.monitor.running
        with pytest.raises(TypeError, match="interval: a given run has its own options"):
            integration.MonitorCallback(run, interval=2.0)


@pytest.mark.parametrize("given", [object(), None, SimpleNamespace(callback_handler=None)])
def test_attaching_to_what_is_no_trainer_says_what_it_takes(integration: Any, given: Any) -> None:
    """And not which attribute is missing."""
    with pytest.raises(TypeError, match=r"attach needs a transformers\.Trainer: '\w+' has no list"):
        integration.MonitorCallback().attach(given)
