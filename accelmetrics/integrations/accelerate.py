"""accelerate: values of the devices in the rows that ``Accelerator.log`` hands to its trackers.

>>> import accelmetrics.integrations.accelerate
>>> accelerator = Accelerator(log_with=["accelmetrics", "wandb"])            # doctest: +SKIP

or, with options, ``log_with=[DeviceTracker(interval=1.0), "wandb"]``. It must come first: ``Accelerator`` hands the same dictionary to one
tracker after the other, and each logs the values that are in it by then.
"""

from __future__ import annotations

from typing import Any

from accelerate import tracking

from accelmetrics.integrations.training import TrainingRun, WithRun, contained

NAME = "accelmetrics"
"""The name of the tracker in ``log_with`` and ``init_kwargs``."""


class DeviceTracker(WithRun, tracking.GeneralTracker):
    """A tracker that adds a row of the devices to each logged row, and logs the row's numbers as a step.

    Args:
        run_name: The project's name from ``init_trackers``. Not used.
        run: A training run, as for :class:`~accelmetrics.integrations.training.WithRun`.
        options: ``prefix``, ``keys``, ``stats``, and the options of :func:`accelmetrics.training`.

    Attributes:
        name: Its name for ``Accelerator``.
        requires_logging_directory: False, because it writes no files there.
        main_process_only: True, because only the first process logs rows.
    """

    name = NAME
    requires_logging_directory = False
    main_process_only = True

    def __init__(self, run_name: str = "", run: TrainingRun | None = None, **options: Any) -> None:
        super().__init__(run, **options)
        self._row: dict[str, float] = {}
        self._step: int | None = None

    @property
    def tracker(self) -> TrainingRun:
        """The training run, as ``Accelerator.get_tracker`` returns it."""
        return self._hook.run

    def start(self) -> None:
        """Start the training run. ``init_trackers`` calls this."""
        self._hook.begin()

    @contained
    def log(self, values: dict[str, Any], step: int | None = None, **unused: Any) -> None:
        """Log the numbers of a row as a step, and add the devices' values since the previous row to ``values``."""
        for name in self._row:
            values.pop(name, None)  # a program may log the same dictionary again, with our previous row in it
        self._hook.note(step, values)
        # A second row of the same step would cover only a moment, and trackers would overwrite the first one with it.
        if step is None or step != self._step:
            self._row = self._hook.row()
            values.update(self._row)
        self._step = step

    def finish(self) -> None:
        """End the training run. ``end_training`` calls this."""
        self._hook.end()


if NAME not in tracking.LOGGER_TYPE_TO_CLASS and hasattr(tracking, "register_tracker_class"):
    tracking.register_tracker_class(DeviceTracker)
