"""The callback for Lightning's Trainer, beside a stand-in that hands out events as the trainer does."""

from __future__ import annotations

import copy
import logging
import pickle
import sys
from collections.abc import Iterator
from functools import partial
from importlib import import_module, reload
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from accelmetrics.integrations import LIGHTNING, lightning_callbacks
from tests.monitor.watching import gpus
from tests.support.waiting import wait_for

gpu = partial(gpus, 1, powerWatts=300.0)

MODULE = "accelmetrics.integrations.lightning"
MANUAL, AUTOMATIC = (SimpleNamespace(automatic_optimization=automatic) for automatic in (False, True))


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Both packages, each with a class of its own."""
    made: dict[str, Any] = {name: ModuleType(name) for name in ("lightning", "lightning.pytorch", "pytorch_lightning")}
    for name, module in made.items():
        module.Callback = type("Callback", (), {})
        monkeypatch.setitem(sys.modules, name, module)
    return made


@pytest.fixture
def integration(packages: dict[str, Any]) -> Iterator[Any]:
    """The module, imported beside the stand-in."""
    yield reload(import_module(MODULE))
    sys.modules.pop(MODULE)


class Logger:
    """Keeps what is logged; may fail."""

    def __init__(self, error: Exception | None = None) -> None:
        self.rows: list[tuple[dict[str, float], int]] = []
        self._error = error

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        """Take a row, which is the logger's own from then on."""
        self.rows.append((dict(metrics), step))
        metrics.clear()
        if self._error is not None:
            raise self._error


def _has_read(monitor: Any) -> bool:
    return monitor.run.monitor.latest is not None


class Trainer:
    """Trains one batch after the other, each ``accumulate`` of them a step."""

    def __init__(self, *callbacks: Any, loggers: Any = (), main: bool = True, accumulate: int = 1, counts: bool = True) -> None:
        self.callbacks, self.loggers, self.is_global_zero = list(callbacks), list(loggers), main
        self.accumulate_grad_batches, self.log_every_n_steps, self.should_stop = accumulate, 2, False
        self.current_epoch = self.global_step = self._batches = 0
        self.world_size, self.global_rank = 1, 0
        self.fit_loop = SimpleNamespace(epoch_loop=SimpleNamespace(_batches_that_stepped=0) if counts else SimpleNamespace())

    def fit(self, *losses: Any, module: Any = AUTOMATIC) -> None:
        """Train, with a batch for each of the outputs."""
        for callback in self.callbacks:
            callback.setup(self, module, "fit")
            if not getattr(callback, "_inactive", False):
                wait_for(partial(_has_read, callback))
        for index, outputs in enumerate(losses):
            stepped = (index + 1) % self.accumulate_grad_batches == 0
            self.global_step += stepped
            for callback in self.callbacks:
                callback.on_train_batch_end(self, module, outputs, None, index)
            if stepped and hasattr(self.fit_loop.epoch_loop, "_batches_that_stepped"):
                self.fit_loop.epoch_loop._batches_that_stepped += 1
        for callback in self.callbacks:
            callback.teardown(self, module, "fit")


def test_every_logger_has_a_row_when_the_trainer_logs(integration: Any) -> None:
    """At its step, on the first rank alone; a logger that fails costs the others nothing."""
    for main in (True, False):
        bad, good = Logger(OSError("disk full")), Logger()
        monitor = integration.DeviceMonitor(interval=0.01, backends=[gpu()])
        Trainer(monitor, loggers=[bad, good], main=main).fit(*[{"loss": 0.5}] * 4)
        assert [step for _, step in good.rows] == [step for _, step in bad.rows] == [1, 3][: 2 * main]
        assert all(row["system/gpu.0.powerWatts"] == 300.0 for row, _ in good.rows)
        assert [step.step for step in monitor.run.monitor.steps] == [0, 1, 2, 3]
        assert not monitor.run.monitor.running


@pytest.mark.parametrize(
    ("outputs", "module", "accumulate", "loss"),
    [
        ({"loss": 0.5}, AUTOMATIC, 1, 0.5),
        (0.5, AUTOMATIC, 1, 0.5),
        ({"loss": 0.25}, AUTOMATIC, 2, 0.5),
        ({"loss": 0.5}, MANUAL, 2, 0.5),
        ({"out": 1}, AUTOMATIC, 2, None),
        (None, AUTOMATIC, 1, None),
    ],
)
def test_the_loss_is_that_of_the_batch(outputs: Any, module: Any, accumulate: int, loss: float | None, integration: Any) -> None:
    """Of the first one where gradients are accumulated, whose share the trainer has."""
    monitor = integration.DeviceMonitor(interval=0.01, backends=[gpu()])
    Trainer(monitor, accumulate=accumulate).fit(*[outputs] * 4, module=module)
    assert [(one.step, one.values.get("loss")) for one in monitor.run.monitor.steps] == [(step, loss) for step in range(4 // accumulate)]


def test_without_the_trainers_own_count_it_takes_the_optimizers(integration: Any) -> None:
    """Which is one further after a step."""
    logger = Logger()
    Trainer(integration.DeviceMonitor(interval=0.01, backends=[gpu()]), loggers=[logger], counts=False).fit(0.5, 0.5, 0.5, 0.5)
    assert [step for _, step in logger.rows] == [1, 3]


def test_a_trainer_that_has_changed_is_told_once(integration: Any, caplog: pytest.LogCaptureFixture) -> None:
    """And trains on."""
    trainer = Trainer(integration.DeviceMonitor(interval=0.01, backends=[gpu()]))
    del trainer.fit_loop.epoch_loop
    with caplog.at_level(logging.WARNING, "accelmetrics"), pytest.raises(AttributeError, match="epoch_loop"):
        trainer.fit(0.5)  # of the stand-in itself, behind the callback
    del trainer.fit_loop
    trainer.callbacks[0].on_train_batch_end(trainer, AUTOMATIC, 0.5, None, 1)
    assert ["epoch_loop" in record.message for record in caplog.records].count(True) == 1


@pytest.mark.parametrize("kind", ["DeviceMonitor", "AddedMonitor"])
def test_a_trainer_without_what_the_setup_reads_trains_on(kind: str, integration: Any, caplog: pytest.LogCaptureFixture) -> None:
    """How many processes there are, or which callbacks, is told to be missing; the training begins all the same."""
    monitor = getattr(integration, kind)(interval=0.01, backends=[gpu()])
    with caplog.at_level(logging.WARNING, "accelmetrics"):
        monitor.setup(SimpleNamespace(), AUTOMATIC, "fit")
    assert monitor.run.monitor.running
    monitor.teardown(None, None, "fit")
    assert any("world_size" in record.message for record in caplog.records)


def test_an_exception_ends_it(integration: Any) -> None:
    """The trainer tells of it, and then no more."""
    monitor = integration.DeviceMonitor(interval=0.01, backends=[gpu()])
    monitor.setup(Trainer(), None, "fit")
    assert monitor.run.monitor.running
    monitor.on_exception(None, None, RuntimeError())
    assert not monitor.run.monitor.running


@pytest.mark.parametrize(("variable", "given", "rank"), [(None, {}, 3), ("1", {}, 1), (None, {"labels": {"rank": "2"}}, 2)])
def test_the_trainers_rank_is_taken_where_no_launcher_says_it(
    variable: str | None, given: dict[str, Any], rank: int, integration: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trainer may have started the other processes after the callback was made."""
    if variable is not None:
        monkeypatch.setenv("RANK", variable)
    monitor = integration.DeviceMonitor(interval=0.01, backends=[gpu()], share=None, **given)
    trainer = Trainer(monitor)
    trainer.world_size, trainer.global_rank = 4, 3
    trainer.fit(0.5)
    assert monitor.run.rank == rank
    assert [step.rank for step in monitor.run.monitor.steps] == [rank]


def test_copies_have_runs_of_their_own(integration: Any) -> None:
    """As strategies make them for other processes."""
    monitor = integration.DeviceMonitor(interval=2.0)
    for other in (copy.deepcopy(monitor), pickle.loads(pickle.dumps(monitor))):
        assert other.run is not monitor.run
        assert other.run.monitor.interval == 2.0


@pytest.mark.parametrize("loaded", [["lightning.pytorch"], ["pytorch_lightning"], ["lightning.pytorch", "pytorch_lightning"]])
def test_it_is_a_callback_of_the_packages_that_are_loaded(
    loaded: list[str], packages: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one that is merely installed it is none, since that would have to be imported."""
    for name in {"lightning.pytorch", "pytorch_lightning"}.difference(loaded):
        monkeypatch.delitem(sys.modules, name)
    kind = reload(import_module(MODULE)).DeviceMonitor
    assert [name for name in ("lightning.pytorch", "pytorch_lightning") if issubclass(kind, packages[name].Callback)] == loaded
    sys.modules.pop(MODULE)


def test_without_lightning_the_import_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """As an import of the package would."""
    monkeypatch.setitem(sys.modules, "lightning", None)
    monkeypatch.setitem(sys.modules, "pytorch_lightning", None)
    with pytest.raises(ImportError, match="lightning"):
        import_module(MODULE)


def test_the_environment_adds_one(integration: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the variable; a monitor that the program has does the work instead."""
    assert lightning_callbacks() == []
    monkeypatch.setenv(LIGHTNING, "1")
    (added,) = lightning_callbacks()
    own = integration.DeviceMonitor(interval=0.01, backends=[gpu()])
    logger = Logger()
    Trainer(own, added, loggers=[logger]).fit(0.5, 0.5)
    assert len(logger.rows) == 1
    assert len(added.run.monitor.steps) == 0


def test_what_keeps_the_environment_from_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the trainer is made without."""
    monkeypatch.setenv(LIGHTNING, "1")
    for name in ("lightning", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.warns(RuntimeWarning, match="ACCELMETRICS_LIGHTNING adds no callback"):
        assert lightning_callbacks() == []
