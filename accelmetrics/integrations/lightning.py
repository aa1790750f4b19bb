"""Lightning's ``Trainer``: values of the devices in its loggers, at the trainer's steps.

>>> from accelmetrics.integrations.lightning import DeviceMonitor
>>> trainer = L.Trainer(callbacks=[DeviceMonitor(interval=1.0)])             # doctest: +SKIP

or, without a line of code, with the variable ``ACCELMETRICS_LIGHTNING=1``.

The callback passes a row to ``log_metrics`` of each logger, in addition to the trainer's own row. It does not use the module's ``log``,
which would make a tensor on the device for each number.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from accelmetrics.integrations.training import TrainingRun, WithRun, contained

PACKAGES = ("lightning.pytorch", "pytorch_lightning")
"""The two package names of the framework. Each accepts only callbacks of its own class."""


def _callback_classes() -> tuple[type, ...]:
    """Return ``Callback`` of each loaded package, or of each installed one if none is loaded.

    Raises:
        ImportError: No package is installed.
    """
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
    """A callback that logs a row of the devices whenever the trainer logs, and logs each step.

    Args:
        run: A training run, as for :class:`~accelmetrics.integrations.training.WithRun`.
        options: ``prefix``, ``keys``, ``stats``, and the options of :func:`accelmetrics.training`.
    """

    def __init__(self, run: TrainingRun | None = None, **options: Any) -> None:
        super().__init__(run, **options)
        self._last_step: int | None = None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Start the training run."""
        self._last_step = None
        self._hook.contain(self._place, trainer)
        self._hook.begin()

    def _place(self, trainer: Any) -> None:
        if trainer.world_size > 1:  # the trainer may start the other processes itself, after this callback was created
            self._hook.place(trainer.global_rank)

    @contained
    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Log a step, and a row if the trainer logs one at this step."""
        # The step under which the trainer's loggers log this batch. It is private in Lightning; without it, the optimizer's step is used.
        counted = getattr(trainer.fit_loop.epoch_loop, "_batches_that_stepped", None)
        step = int(max(0, trainer.global_step - 1) if counted is None else counted)
        if step == self._last_step:  # gradient accumulation: another batch of the same step
            return
        self._last_step = step
        loss, batches = outputs.get("loss") if isinstance(outputs, Mapping) else outputs, trainer.accumulate_grad_batches
        if loss is not None and batches != 1 and pl_module.automatic_optimization:
            loss = loss * batches  # gradient accumulation: the trainer divides the loss of each batch by their number
        self.run.step(step, epoch=trainer.current_epoch, loss=loss)
        every = trainer.log_every_n_steps
        if trainer.is_global_zero and every and ((step + 1) % every == 0 or trainer.should_stop):
            row = self._hook.row()
            for logger in trainer.loggers:
                self._hook.contain(logger.log_metrics, dict(row), step)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """End the training run, since the trainer does not call ``teardown`` after an exception."""
        self._hook.end()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """End the training run."""
        self._hook.end()


class AddedMonitor(DeviceMonitor):
    """The callback added by ``ACCELMETRICS_LIGHTNING=1``. It is inactive if the program has its own."""

    _inactive = False

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Start the training run, unless the trainer has a monitor of the program."""
        others = [callback for callback in getattr(trainer, "callbacks", ()) if isinstance(callback, DeviceMonitor)]
        self._inactive = not all(isinstance(callback, AddedMonitor) for callback in others)
        if not self._inactive:
            super().setup(trainer, pl_module, stage)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Log a step and a row, unless the trainer has a monitor of the program."""
        if not self._inactive:
            super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
