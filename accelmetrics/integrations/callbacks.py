"""Callbacks with the names and arguments that training loops use for monitors of their own.

>>> from accelmetrics.integrations.callbacks import TrainingMonitorCallback
>>> callback = TrainingMonitorCallback(accelmetrics.Monitor(exporters=["jsonl:run.jsonl"]))       # doctest: +SKIP
>>> callback.on_train_begin()                                                                     # doctest: +SKIP
"""

from __future__ import annotations

import sys
import time

from accelmetrics.integrations.training import TrainingRun, contained
from accelmetrics.monitor.monitor import Monitor
from accelmetrics.schemas.errors import InvalidOptionError
from accelmetrics.schemas.log import log
from accelmetrics.schemas.text import shown


class TrainingMonitorCallback:
    """A callback that logs each step of a training loop.

    Its methods never raise. Only ``on_train_end`` waits, until queued records are delivered.

    Args:
        monitor: A :class:`~accelmetrics.Monitor`, or a run of :func:`accelmetrics.training`. It starts and stops with the training.

    Attributes:
        run: The training run.

    Raises:
        InvalidOptionError: ``monitor`` is neither.
    """

    def __init__(self, monitor: Monitor | TrainingRun) -> None:
        if not isinstance(monitor, (Monitor, TrainingRun)):
            raise InvalidOptionError(f"{shown(monitor)} is not a monitor: pass accelmetrics.Monitor(...) or accelmetrics.training(...)")
        self.run = monitor if isinstance(monitor, TrainingRun) else TrainingRun(monitor)
        self._step_start: float | None = None

    def on_train_begin(self, *_: object, **__: object) -> None:
        """Start the monitor. Arguments are not used."""
        self.run.start()

    def on_step_begin(self, *_: object, **__: object) -> None:
        """Record the start time of the step. Arguments are not used."""
        self._step_start = time.monotonic()

    @contained
    def on_step_end(
        self,
        step: object = None,
        epoch: object = None,
        loss: object = None,
        lr: object = None,
        grad_norm: object = None,
        throughput: object = None,
        *_: object,
        **values: object,
    ) -> None:
        """Log a step. The time since ``on_step_begin`` is logged as ``step_seconds``.

        Args:
            step: The step's number in the loop.
            epoch: The epoch.
            loss: The loss. It may be a tensor on a device, and this method does not wait for it.
            lr: The learning rate, logged as ``learning_rate``.
            grad_norm: The norm of the gradient.
            throughput: Samples per second, logged as ``samples_per_second``.
            values: Other numbers, logged by their names.
        """
        duration = None if self._step_start is None else time.monotonic() - self._step_start
        self._step_start = None
        named = {"epoch": epoch, "loss": loss, "learning_rate": lr, "grad_norm": grad_norm, "samples_per_second": throughput}
        self.run.step(step, **{"step_seconds": duration, **named, **values})

    def on_train_end(self, *_: object, **__: object) -> None:
        """Stop the monitor and deliver queued records. Arguments are not used."""
        self.run.close()


class GPUMonitoringCallback(TrainingMonitorCallback):
    """A callback that logs each step, and prints a row of the devices every ``log_interval`` steps.

    If transformers is loaded, it is also a ``TrainerCallback``: ``Trainer(callbacks=[GPUMonitoringCallback(Monitor(gpus=[0]))])``.

    Args:
        gpu_monitor: A monitor or run, as for :class:`TrainingMonitorCallback`.
        log_interval: Steps between two printed rows.

    Attributes:
        row: The last row, as :meth:`TrainingRun.row` returns it. Empty before the first one.

    Raises:
        InvalidOptionError: ``gpu_monitor`` is not a monitor, or the interval is below 1.
    """

    def __new__(cls, *_: object, **__: object) -> GPUMonitoringCallback:
        """Create a callback, also for a ``Trainer`` if transformers is loaded."""
        # A Trainer calls all methods of TrainerCallback, so the object needs that base class. It cannot be a base class here, because
        # transformers may not be installed.
        if cls is GPUMonitoringCallback and "transformers" in sys.modules:
            from accelmetrics.integrations.transformers import TrainerMonitoringCallback

            return super().__new__(TrainerMonitoringCallback)
        return super().__new__(cls)

    def __init__(self, gpu_monitor: Monitor | TrainingRun, log_interval: int = 10) -> None:
        super().__init__(gpu_monitor)
        if log_interval < 1:
            raise InvalidOptionError(f"log_interval is {log_interval!r}: it must be at least 1")
        self.row: dict[str, float] = {}
        self._log_interval = log_interval
        self._steps = 0

    @contained
    def on_step_end(self, *arguments: object, **values: object) -> None:
        """Log a step. Every ``log_interval`` steps, print a row on the logger ``accelmetrics`` at level INFO."""
        super().on_step_end(*arguments, **values)
        self._steps += 1
        self.count_step(self._steps)

    def count_step(self, step: int) -> None:
        """Take and print a row if ``step`` is a multiple of ``log_interval``."""
        if step % self._log_interval == 0:
            self.row = self.run.row()
            log.info("step %d: %s", step, ", ".join(f"{name} {value:.4g}" for name, value in self.row.items()))
