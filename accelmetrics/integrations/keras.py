"""Keras 3: values of the devices in each epoch's logs.

>>> from accelmetrics.integrations.keras import DeviceMonitor
>>> model.fit(x, y, callbacks=[DeviceMonitor(), CSVLogger("log.csv")])       # doctest: +SKIP

Keras hands the same dictionary to one callback after the other, so this callback must come before loggers. The history that ``fit`` returns
has the values in any case.
"""

from __future__ import annotations

from math import nan
from typing import Any

import keras

from accelmetrics.integrations.training import TrainingRun, WithRun, contained


class DeviceMonitor(WithRun, keras.callbacks.Callback):
    """A callback that adds a row of the devices to each epoch's logs, and logs each batch as a step.

    Args:
        run: A training run, as for :class:`~accelmetrics.integrations.training.WithRun`.
        options: ``prefix``, ``keys``, ``stats``, and the options of :func:`accelmetrics.training`.

    Attributes:
        async_safe: True, so that Keras may call the callback from other threads and need not wait for the device after each batch.
    """

    async_safe = True

    def __init__(self, run: TrainingRun | None = None, **options: Any) -> None:
        super().__init__(run, **options)
        self._names: dict[str, float] = {}
        self._before = self._steps = 0

    @contained
    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Start the training run."""
        self._names = {}
        self._before = self._steps = 0
        self._hook.begin()

    @contained
    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Compute the first step of the epoch, also in a resumed training."""
        # Steps in an epoch. Keras does not know them in advance for a generator of unknown length.
        each = (self.params or {}).get("steps")
        self._before = epoch * each if each else self._steps

    @contained
    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Log a batch as a step. Its loss is Keras' mean over the epoch so far."""
        step = self._before + batch + 1
        self._steps = max(self._steps, step)
        self._hook.note(step, logs or {})

    @contained
    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Add the devices' values since the previous row to the epoch's logs."""
        if logs is None:
            return
        # CSVLogger and the history are tables, so each epoch needs the same names. A missing number is NaN, also in earlier epochs.
        row = self._hook.row()
        history = getattr(getattr(self.model, "history", None), "history", {})
        epochs = max(map(len, history.values()), default=0)
        for name in row.keys() - self._names.keys():
            history.setdefault(name, [nan] * epochs)
        self._names.update(dict.fromkeys(row, nan))
        logs.update(self._names | row)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """End the training run."""
        self._hook.end()
