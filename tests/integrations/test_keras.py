"""The callback for Keras 3, beside a stand-in that hands out events as ``fit`` does."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from math import isnan
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.monitor.watching import gpus
from tests.support.waiting import wait_for

gpu = partial(gpus, 1, powerWatts=300.0)

MODULE = "accelmetrics.integrations.keras"
POWER, READINGS = "system/gpu.0.powerWatts", "system/readings"


class Callback:
    """As Keras has it."""

    def __init__(self) -> None:
        self.params: dict[str, Any] | None = None
        self.model: Any = None


@pytest.fixture
def integration(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module, imported beside the stand-in."""
    package = ModuleType("keras")
    package.__dict__["callbacks"] = SimpleNamespace(Callback=Callback)
    monkeypatch.setitem(sys.modules, "keras", package)
    yield import_module(MODULE)
    sys.modules.pop(MODULE)


def fit(monitor: Any, epochs: range, steps: int = 3, known: bool = True) -> dict[str, list[float]]:
    """Train, and return what the history has, which stands behind the other callbacks."""
    history: dict[str, list[float]] = {}
    monitor.params = {"steps": steps if known else None}
    monitor.model = SimpleNamespace(history=SimpleNamespace(history=history))
    monitor.on_train_begin()
    wait_for(lambda: monitor.run.monitor.latest is not None)
    for epoch in epochs:
        monitor.on_epoch_begin(epoch)
        for batch in range(steps):
            monitor.on_train_batch_end(batch, {"loss": 0.5})
        logs: dict[str, Any] = {"loss": 0.5}
        monitor.on_epoch_end(epoch, logs)
        for name, value in logs.items():
            history.setdefault(name, []).append(value)
    monitor.on_train_end()
    return history


def test_each_epoch_has_a_row(integration: Any) -> None:
    """Steps are counted through the epochs."""
    monitor = integration.DeviceMonitor(interval=0.01, backends=[gpu()])
    assert fit(monitor, range(2))[POWER] == [300.0, 300.0]
    assert [(step.step, step.values["loss"]) for step in monitor.run.monitor.steps] == [(step, 0.5) for step in range(1, 7)]
    assert not monitor.run.monitor.running


@pytest.mark.parametrize(("known", "first"), [(True, 16), (False, 1)])
def test_a_training_that_is_resumed_goes_on_at_its_step(known: bool, first: int, integration: Any) -> None:
    """Where Keras knows how many steps an epoch has."""
    monitor = integration.DeviceMonitor(interval=0.01, backends=[gpu()])
    fit(monitor, range(5, 7), known=known)
    assert [step.step for step in monitor.run.monitor.steps] == list(range(first, first + 6))


def test_a_history_is_a_table(integration: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a row lacks, since there was no reading, has its place."""
    monitor = integration.DeviceMonitor(interval=0.01, backends=[gpu()])
    rows = iter([{READINGS: 0}, {READINGS: 2, POWER: 300.0}, {READINGS: 0}])
    monkeypatch.setattr(monitor._hook, "row", lambda: next(rows))
    history = fit(monitor, range(3))
    assert history[READINGS] == [0, 2, 0]
    assert [isnan(power) for power in history[POWER]] == [True, False, True]


def test_logs_that_are_missing_change_nothing(integration: Any) -> None:
    """Keras' own default."""
    monitor = integration.DeviceMonitor(interval=0.01, backends=[gpu()])
    monitor.on_train_begin()
    monitor.on_epoch_begin(0)
    monitor.on_train_batch_end(0)
    monitor.on_epoch_end(0)
    monitor.on_train_end()
    assert [step.step for step in monitor.run.monitor.steps] == [1]


def test_keras_may_call_it_from_its_own_threads(integration: Any) -> None:
    """Else it would fetch each batch's numbers from the device before the next one begins."""
    assert integration.DeviceMonitor.async_safe
