"""Keras 3: what the devices did, in each epoch's row.

>>> from accelmetrics.integrations.keras import DeviceMonitor
>>> model.fit(x, y, callbacks=[DeviceMonitor(), CSVLogger("log.csv")])       # doctest: +SKIP

Keras hands one dictionary to one callback after the other, so what adds to it must come first. The history that ``fit`` returns has it in
any case.
"""

from __future__ import annotations

from math import nan
from typing import Any

import keras

from accelmetrics.integrations.training import TrainingRun, WithRun, contained


class DeviceMonitor(WithRun, keras.callbacks.Callback):
    """Adds a row of the devices to each epoch's logs, and hears the batches.

    Args:
        run: As for :class:`~accelmetrics.integrations.training.WithRun`, like the others.
        options: ``prefix``, ``keys``, ``stats``, and those of :func:`accelmetrics.training`.

    Attributes:
        async_safe: Keras may tell of batches from threads of its own, where it does not wait for the device's numbers.
    """

    async_safe = True

    def __init__(self, run: TrainingRun | None = None, **options: Any) -> None:
        super().__init__(run, **options)
        self._names: dict[str, float] = {}
        self._before = self._steps = 0

    @contained
    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Begin."""
        self._names = {}
        self._before = self._steps = 0
        self._hook.begin()

    @contained
    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Note where the epoch's steps begin, also in a training that is resumed."""
        each = (self.params or {}).get("steps")
        self._before = epoch * each if each else self._steps

    @contained
    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Note a step. Its loss is the epoch's mean until then, as Keras has it."""
        step = self._before + batch + 1
        self._steps = max(self._steps, step)
        self._hook.note(step, logs or {})

    @contained
    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Add what the devices did since the row before."""
        if logs is not None:
            self._add(logs)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """End."""
        self._hook.end()

    def _add(self, logs: dict[str, Any]) -> None:
        """Add a row. All epochs have the same names, since a history is a table: NaN where there was no number."""
        row = self._hook.row()
        history = getattr(getattr(self.model, "history", None), "history", {})
        epochs = max(map(len, history.values()), default=0)
        for name in row.keys() - self._names.keys():
            history.setdefault(name, [nan] * epochs)
        self._names.update(dict.fromkeys(row, nan))
        logs.update(self._names | row)
