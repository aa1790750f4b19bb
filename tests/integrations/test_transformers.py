"""The callback for Hugging Face's Trainer, beside a stand-in that hands out events as the trainer does."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from functools import partial
from importlib import import_module, reload
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import accelmetrics
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
        self.state = SimpleNamespace(global_step=0, num_input_tokens_seen=0, is_world_process_zero=main)

    def event(self, name: str, **details: Any) -> None:
        """Tell all callbacks in turn."""
        for callback in self.callback_handler.callbacks:
            getattr(callback, name)(self.args, self.state, None, model=None, **details)

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


def test_attaching_twice_leaves_one(integration: Any) -> None:
    """First, and before those that were first."""
    callback, other = integration.MonitorCallback(), SimpleNamespace()
    training = Training(other, callback)
    callback.attach(training)
    assert callback.attach(training) and training.callback_handler.callbacks == [callback, other]


@pytest.mark.parametrize(
    ("names", "warned"), [("wandb", True), (["accelmetrics", "wandb"], False), (["tensorboard", "accelmetrics"], True), ([], False)]
)
def test_what_stands_before_it_is_told_once(names: Any, warned: bool, integration: Any, caplog: pytest.LogCaptureFixture) -> None:
    """By ``report_to``; where it was attached nothing stands before it."""
    kind = integration.INTEGRATION_TO_CALLBACK["accelmetrics"] if "accelmetrics" in names else integration.MonitorCallback
    training = Training(kind(), report_to=names)
    with caplog.at_level(logging.WARNING, "accelmetrics"):
        training.log(**LOGS)
        training.log(**LOGS)
        assert ["stands behind" in record.message for record in caplog.records].count(True) == warned
        caplog.clear()
        kind().attach(training)
        training.callback_handler.callbacks[1:] = []
        training.log(**LOGS)
        assert "stands behind" not in caplog.text


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
        with pytest.raises(TypeError, match="interval: options belong to"):
            integration.MonitorCallback(run, interval=2.0)


@pytest.mark.parametrize("given", [object(), None, SimpleNamespace(callback_handler=None)])
def test_attaching_to_what_is_no_trainer_says_what_it_takes(integration: Any, given: Any) -> None:
    """And not which attribute is missing."""
    with pytest.raises(TypeError, match=r"attach takes a transformers\.Trainer, and '\w+' is none"):
        integration.MonitorCallback().attach(given)
