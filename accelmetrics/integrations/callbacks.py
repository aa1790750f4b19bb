"""The callbacks of home-grown monitors, by the names and arguments that training loops call them by.

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
    """Logs each step of a loop that calls it. None of its methods raises or waits but ``on_train_end``, which delivers what is queued.

    Args:
        monitor: A :class:`~accelmetrics.Monitor`, or the run that :func:`accelmetrics.training` makes; started and stopped with the
            training.

    Attributes:
        run: The training run.

    Raises:
        InvalidOptionError: It is neither.
    """

    def __init__(self, monitor: Monitor | TrainingRun) -> None:
        if not isinstance(monitor, (Monitor, TrainingRun)):
            raise InvalidOptionError(f"{shown(monitor)} is no monitor: pass accelmetrics.Monitor(...) or accelmetrics.training(...)")
        self.run = monitor if isinstance(monitor, TrainingRun) else TrainingRun(monitor)
        self._begun: float | None = None

    def on_train_begin(self, *_: object, **__: object) -> None:
        """Start the monitor. Arguments are not used."""
        self.run.start()

    def on_step_begin(self, *_: object, **__: object) -> None:
        """Note when the step begins. Arguments are not used."""
        self._begun = time.monotonic()

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
        """Log a step: its duration since ``on_step_begin`` as ``step_seconds``, ``lr`` as ``learning_rate``, and the rest by its name.

        Args:
            step: The loop's own step.
            epoch: Its epoch.
            loss: Its loss; a tensor is not waited for.
            lr: The learning rate.
            grad_norm: The norm of the gradient.
            throughput: Samples per second, logged as ``samples_per_second``.
            values: Other numbers.
        """
        duration = None if self._begun is None else time.monotonic() - self._begun
        self._begun = None
        named = {"epoch": epoch, "loss": loss, "learning_rate": lr, "grad_norm": grad_norm, "samples_per_second": throughput}
        self.run.step(step, **{"step_seconds": duration, **named, **values})

    def on_train_end(self, *_: object, **__: object) -> None:
        """Stop the monitor, which delivers what is queued. Arguments are not used."""
        self.run.close()


class GPUMonitoringCallback(TrainingMonitorCallback):
    """Tells what the devices did, every so many steps, beside logging each step.

    Where transformers is loaded it is a ``TrainerCallback`` as well: ``Trainer(callbacks=[GPUMonitoringCallback(Monitor(gpus=[0]))])``.

    Args:
        gpu_monitor: As for :class:`TrainingMonitorCallback`.
        log_interval: After how many steps a row is told.

    Attributes:
        row: The last row, as :meth:`TrainingRun.row` gives it; empty before the first.

    Raises:
        InvalidOptionError: It is no monitor, or the interval is below 1.
    """

    def __new__(cls, *_: object, **__: object) -> GPUMonitoringCallback:
        """Make one, with the methods of a trainer's callback if transformers is loaded: a trainer calls all of them."""
        if cls is GPUMonitoringCallback and "transformers" in sys.modules:
            from accelmetrics.integrations.transformers import TrainerMonitoringCallback

            return super().__new__(TrainerMonitoringCallback)
        return super().__new__(cls)

    def __init__(self, gpu_monitor: Monitor | TrainingRun, log_interval: int = 10) -> None:
        super().__init__(gpu_monitor)
        if log_interval < 1:
            raise InvalidOptionError(f"log_interval is {log_interval!r}: it must be a number of steps from 1 up")
        self.row: dict[str, float] = {}
        self._log_interval = log_interval
        self._steps = 0

    @contained
    def on_step_end(self, *arguments: object, **values: object) -> None:
        """Log the step; after every ``log_interval`` of them tell a row on the logger ``accelmetrics``, at level INFO."""
        super().on_step_end(*arguments, **values)
        self._steps += 1
        self.count_step(self._steps)

    def count_step(self, step: int) -> None:
        """Take a row and tell it, if this step is one of those that ask for it."""
        if step % self._log_interval == 0:
            self.row = self.run.row()
            log.info("step %d: %s", step, ", ".join(f"{name} {value:.4g}" for name, value in self.row.items()))
