"""Lightning's ``Trainer``: what the devices did, in the runs of its loggers, at its own steps.

>>> from accelmetrics.integrations.lightning import DeviceMonitor
>>> trainer = L.Trainer(callbacks=[DeviceMonitor(interval=1.0)])             # doctest: +SKIP

or, without a line of code, with the variable ``ACCELMETRICS_LIGHTNING=1``.

A row is logged beside the trainer's own, by the loggers' ``log_metrics``: the module's ``log`` would make a tensor on the device of each
number.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from accelmetrics.integrations.training import TrainingRun, WithRun

PACKAGES = ("lightning.pytorch", "pytorch_lightning")
"""The same framework under two names. Each wants callbacks of its own class."""


def _callback_classes() -> tuple[type, ...]:
    """Return the classes that callbacks are of: those of the packages that are loaded, where none is of those that are installed."""
    loaded = [package for name in PACKAGES if (package := sys.modules.get(name)) is not None]
    found, missing = loaded, []
    for name in () if loaded else PACKAGES:
        try:
            found.append(import_module(name))
        except ImportError as error:
            missing.append(error)
    if not found:
        raise missing[0]
    return tuple(package.Callback for package in found)


Callback: Any = type("Callback", _callback_classes(), {})


class DeviceMonitor(WithRun, Callback):
    """Logs what the devices did since the last row, as often as the trainer logs, and hears its steps.

    Args:
        run: As for :class:`~accelmetrics.integrations.training.WithRun`, like the others.
        options: ``prefix``, ``keys``, ``stats``, and those of :func:`accelmetrics.training`.
    """

    def __init__(self, run: TrainingRun | None = None, **options: Any) -> None:
        super().__init__(run, **options)
        self._noted: int | None = None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Begin."""
        self._noted = None
        self._hook.contain(self._place, trainer)
        self._hook.begin()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Note a step, and log a row when the trainer logs one."""
        self._hook.contain(self._after_batch, trainer, pl_module, outputs)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """End: the trainer does not call ``teardown``."""
        self._hook.end()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """End."""
        self._hook.end()

    def _place(self, trainer: Any) -> None:
        if trainer.world_size > 1:  # it may have started the other processes itself, after this was made
            self._hook.place(trainer.global_rank)

    def _after_batch(self, trainer: Any, pl_module: Any, outputs: Any) -> None:
        # The step that the trainer's loggers have for this batch, which it counts on its own; else that of the optimizer.
        counted = getattr(trainer.fit_loop.epoch_loop, "_batches_that_stepped", None)
        step = int(max(0, trainer.global_step - 1) if counted is None else counted)
        if step == self._noted:  # another batch of a step that accumulates gradients
            return
        self._noted = step
        loss, batches = outputs.get("loss") if isinstance(outputs, Mapping) else outputs, trainer.accumulate_grad_batches
        if loss is not None and batches != 1 and pl_module.automatic_optimization:
            loss = loss * batches  # of a step that accumulates gradients the trainer has it as a share of the step's
        self.run.step(step, epoch=trainer.current_epoch, loss=loss)
        every = trainer.log_every_n_steps
        if trainer.is_global_zero and every and ((step + 1) % every == 0 or trainer.should_stop):
            row = self._hook.row()
            for logger in trainer.loggers:
                self._hook.contain(logger.log_metrics, dict(row), step)


class AddedMonitor(DeviceMonitor):
    """The one that the environment adds. It leaves a training to one that the program has."""

    _stands_back = False

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Begin, unless the trainer has a monitor of the program."""
        self._hook.contain(self._look_around, trainer)
        if not self._stands_back:
            super().setup(trainer, pl_module, stage)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Do what a monitor does, unless there is one."""
        if not self._stands_back:
            super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)

    def _look_around(self, trainer: Any) -> None:
        self._stands_back = any(isinstance(one, DeviceMonitor) and not isinstance(one, AddedMonitor) for one in trainer.callbacks)
