"""Hugging Face's ``Trainer``, and trl's: values of the devices in the rows that the trainer logs.

>>> from accelmetrics.integrations.transformers import MonitorCallback
>>> MonitorCallback(interval=1.0).attach(trainer)                            # doctest: +SKIP

or, with this module imported, ``TrainingArguments(report_to=["accelmetrics", "wandb"])``.

The trainer hands the same dictionary to one callback after the other, and each reporter logs the values that are in it by then. So this
callback must come first. A callback given as ``callbacks=[…]`` comes behind W&B, TensorBoard and MLflow.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK, rewrite_logs

from accelmetrics.backends.guard import WarnOnce, guarded
from accelmetrics.integrations.callbacks import GPUMonitoringCallback
from accelmetrics.integrations.training import TrainingRun, WithRun, contained
from accelmetrics.monitor.monitor import Monitor

NAME = "accelmetrics"
"""The name of the callback in ``report_to``."""
LOGGED = ("loss", "grad_norm", "learning_rate", "epoch")
"""Names in a trainer's row that belong to the step."""
EVALUATION = ("eval_", "test_")
"""Prefixes of the names in an evaluation's row."""
SUMMARY = "train_loss"
"""A name that is only in the summary at the end of the training, which belongs to no step."""


class MonitorCallback(WithRun, TrainerCallback):
    """A callback that adds a row of the devices to each row of the training, and logs each step.

    The values are named ``system/…``, and the trainer's reporters show them as ``train/system/…``. They cover the time since the previous
    row, including evaluations.

    Args:
        run: A training run, as for :class:`~accelmetrics.integrations.training.WithRun`.
        options: ``prefix``, ``keys``, ``stats``, and the options of :func:`accelmetrics.training`.
    """

    _reported = False  # whether `report_to` created it. Then its place among the reporters is the place of its name there.

    def __init__(self, run: TrainingRun | None = None, **options: Any) -> None:
        super().__init__(run, **options)
        self.take_row: Callable[[], dict[str, float]] = self._hook.row  # the values to add to a row of the trainer
        self._first = False  # whether it was attached
        self._tokens = 0
        self._step: tuple[int, dict[str, Any]] | None = None  # a step that waits for the numbers of the trainer's row
        self._warn = WarnOnce()

    def attach(self, trainer: Any) -> MonitorCallback:
        """Insert the callback before the trainer's reporters, so that all of them log the rows. Return the callback.

        Args:
            trainer: A ``transformers.Trainer``, or an object of a subclass.

        Raises:
            TypeError: ``trainer`` is no trainer.
        """
        callbacks = getattr(getattr(trainer, "callback_handler", None), "callbacks", None)
        if callbacks is None:
            raise TypeError(f"attach needs a transformers.Trainer: {type(trainer).__name__!r} has no list of callbacks")
        others = [one for one in callbacks if one is not self]
        # Behind DefaultFlowCallback, which decides whether the trainer logs this step. So the step can wait for the numbers of its row.
        place = int(bool(others) and type(others[0]).__name__ == "DefaultFlowCallback")
        callbacks[:] = [*others[:place], self, *others[place:]]
        self._first = True
        return self

    @contained
    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **unused: Any) -> None:
        """Start the training run."""
        self._tokens = state.num_input_tokens_seen
        self._hook.begin()

    @contained
    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **unused: Any) -> None:
        """Log a step, with its tokens if the trainer counts them (``include_num_input_tokens_seen``)."""
        # The trainer's count is a sum over ranks, so only rank 0 logs it.
        self._log_step()
        tokens, self._tokens = state.num_input_tokens_seen - self._tokens, state.num_input_tokens_seen
        counted = tokens if tokens > 0 and state.is_world_process_zero else None
        self._step = state.global_step, {"epoch": state.epoch, "tokens": counted}
        if not control.should_log:
            self._log_step()

    @contained
    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: dict[str, Any] | None = None, **unused: Any
    ) -> None:
        """Log the loss, and add the devices' values since the previous row to ``logs``."""
        if logs is None or SUMMARY in logs or any(name.startswith(EVALUATION) for name in logs):
            return
        numbers = {name: logs[name] for name in LOGGED if name in logs}
        if self._step is not None and self._step[0] == state.global_step:
            self._step[1].update(numbers)
            self._log_step()
        else:
            self.run.step(state.global_step, **numbers)
        if state.is_world_process_zero:
            row = self.take_row()
            logs.update(row)
            names = [args.report_to] if isinstance(args.report_to, str) else list(args.report_to or ())
            # Reporters before this callback have already logged the row, without our values.
            passed = names[: names.index(NAME) if NAME in names else 0] if self._reported else [name for name in names if name != NAME]
            if not passed or self._first:
                return
            self._warn.user(
                "order",
                f"training: the callback comes after {', '.join(passed)}, which log the devices' rows late or not at all: use "
                "MonitorCallback(...).attach(trainer), or put 'accelmetrics' first in report_to",
            )
            tracker = getattr(sys.modules.get("wandb"), "run", None) if "wandb" in passed else None
            if tracker is not None:
                # Logged as a separate row. With commit=False it would become part of the next step's row.
                guarded(tracker.log, {**rewrite_logs(row), "train/global_step": state.global_step})

    @contained
    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **unused: Any) -> None:
        """End the training run."""
        self._log_step()
        self._hook.end()

    def _log_step(self) -> None:
        """Log the step that waits for its row, if there is one."""
        step, self._step = self._step, None
        if step is not None:
            self.run.step(step[0], **step[1])


class TrainerMonitoringCallback(GPUMonitoringCallback, TrainerCallback):
    """:class:`~accelmetrics.integrations.callbacks.GPUMonitoringCallback` as a trainer's callback, if transformers is loaded.

    In a trainer it works like :class:`MonitorCallback`, with a row every ``log_interval`` steps, which is added to the next row that the
    trainer logs. In a loop of the program it works like its base class.
    """

    def __init__(self, gpu_monitor: Monitor | TrainingRun, log_interval: int = 10) -> None:
        super().__init__(gpu_monitor, log_interval)
        self._of_trainer = MonitorCallback(self.run)
        self._of_trainer.take_row = self._new_row
        self._added = self.row

    def _new_row(self) -> dict[str, float]:
        """Return the last row, once."""
        before, self._added = self._added, self.row
        return {} if self._added is before else self._added

    @contained
    def on_step_end(self, *arguments: Any, **values: Any) -> None:
        """Log a step of a trainer or of a loop."""
        if len(arguments) == 3 and isinstance(arguments[1], TrainerState):
            self._of_trainer.on_step_end(*arguments)
            self.count_step(arguments[1].global_step)
        else:
            super().on_step_end(*arguments, **values)

    def on_log(self, *arguments: Any, **values: Any) -> None:
        """Log the trainer's numbers, and add the latest row if it is new."""
        self._of_trainer.on_log(*arguments, **values)

    def on_train_begin(self, *arguments: Any, **values: Any) -> None:
        """Start the monitor."""
        super().on_train_begin()
        if len(arguments) == 3:
            self._of_trainer.on_train_begin(*arguments)

    def on_train_end(self, *arguments: Any, **values: Any) -> None:
        """Stop the monitor and deliver queued records."""
        if len(arguments) == 3:
            self._of_trainer.on_train_end(*arguments)
        super().on_train_end()


class ReportedCallback(MonitorCallback):
    """The callback that ``report_to`` creates, at the place of its name among the reporters."""

    _reported = True


INTEGRATION_TO_CALLBACK.setdefault(NAME, ReportedCallback)
