"""accelerate: what the devices did, in the rows that ``Accelerator.log`` hands to its trackers.

>>> import accelmetrics.integrations.accelerate
>>> accelerator = Accelerator(log_with=["accelmetrics", "wandb"])            # doctest: +SKIP

or, with options, ``log_with=[DeviceTracker(interval=1.0), "wandb"]``: before the others, which log what stands in the row when it is their
turn.
"""

from __future__ import annotations

from typing import Any

from accelerate import tracking

from accelmetrics.integrations.training import TrainingRun, WithRun

NAME = "accelmetrics"
"""In ``log_with`` and ``init_kwargs``."""


class DeviceTracker(WithRun, tracking.GeneralTracker):
    """Adds a row of the devices to each row that is logged, and hears its numbers.

    Args:
        run_name: The name that ``init_trackers`` has for the project; it is not used.
        run: As for :class:`~accelmetrics.integrations.training.WithRun`, like the others.
        options: ``prefix``, ``keys``, ``stats``, and those of :func:`accelmetrics.training`.

    Attributes:
        name: Its name for ``Accelerator``.
        requires_logging_directory: It has no folder.
        main_process_only: Rows are logged by the first process alone.
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
        """The same, under the name that ``Accelerator.get_tracker`` has for it."""
        return self._hook.run

    def start(self) -> None:
        """Begin, as ``init_trackers`` wants it."""
        self._hook.begin()

    def log(self, values: dict[str, Any], step: int | None = None, **unused: Any) -> None:
        """Note the numbers of a row, and add what the devices did since the row before."""
        self._hook.contain(self._add, values, step)

    def finish(self) -> None:
        """End, as ``end_training`` wants it."""
        self._hook.end()

    def _add(self, values: dict[str, Any], step: int | None) -> None:
        for name in self._row:
            values.pop(name, None)  # of a dictionary that the program logs again
        self._hook.note(step, values)
        if step is None or step != self._step:  # trackers would overwrite the row of this step by one of a moment
            self._row = self._hook.row()
            values.update(self._row)
        self._step = step


if NAME not in tracking.LOGGER_TYPE_TO_CLASS and hasattr(tracking, "register_tracker_class"):
    tracking.register_tracker_class(DeviceTracker)
