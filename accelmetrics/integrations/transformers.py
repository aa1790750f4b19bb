"""Hugging Face's ``Trainer``, and trl's: what the devices did, in the rows that the trainer logs anyway.

>>> from accelmetrics.integrations.transformers import MonitorCallback
>>> MonitorCallback(interval=1.0).attach(trainer)                            # doctest: +SKIP

or, with this module imported, ``TrainingArguments(report_to=["accelmetrics", "wandb"])``: before the others, which log what stands in
the row when it is their turn.

The trainer hands one dictionary to one callback after the other. What adds to it must come first, and a callback given
as ``callbacks=[…]`` comes behind W&B, TensorBoard and MLflow.
"""

from __future__ import annotations

import sys
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK, rewrite_logs

from accelmetrics.backends.guard import WarnOnce, guarded
from accelmetrics.integrations.callbacks import GPUMonitoringCallback
from accelmetrics.integrations.training import TrainingRun, WithRun, contained
from accelmetrics.monitor.monitor import Monitor

NAME = "accelmetrics"
"""In ``report_to``."""
LOGGED = ("loss", "grad_norm", "learning_rate", "epoch")
"""What of a trainer's row is the program's own number of that step."""
EVALUATION = ("eval_", "test_")
"""What names of an evaluation's row begin with."""
SUMMARY = "train_loss"
"""In the one row at the end of the training, which is of no step."""


class MonitorCallback(WithRun, TrainerCallback):
    """Adds a row of the devices to each row of the training, and hears its steps.

    Rows have them under ``system/…``, which the trainer's reporters call ``train/system/…``. They stand for the time since the row before,
    evaluations within it included.

    Args:
        run: As for :class:`~accelmetrics.integrations.training.WithRun`, like the others.
        options: ``prefix``, ``keys``, ``stats``, and those of :func:`accelmetrics.training`.
    """

    _reported = False  # whether `report_to` made it, which puts it where its name stands there

    def __init__(self, run: TrainingRun | None = None, **options: Any) -> None:
        super().__init__(run, **options)
        self._first = False  # whether it was attached
        self._tokens = 0
        self._step: tuple[int, dict[str, Any]] | None = None  # one that the trainer is about to log a row of, whose numbers are added
        self._warn = WarnOnce()

    def attach(self, trainer: Any) -> MonitorCallback:
        """Stand before the trainer's reporters, so that all of them log the rows.

        Args:
            trainer: A ``transformers.Trainer``, or one that is built on it.

        Raises:
            TypeError: It is none.
        """
        callbacks = getattr(getattr(trainer, "callback_handler", None), "callbacks", None)
        if callbacks is None:
            raise TypeError(f"attach takes a transformers.Trainer, and {type(trainer).__name__!r} is none: it has no list of callbacks")
        others = [one for one in callbacks if one is not self]
        # Behind the one that decides which steps the trainer logs, so that a step and its row are logged as one.
        place = int(bool(others) and type(others[0]).__name__ == "DefaultFlowCallback")
        callbacks[:] = [*others[:place], self, *others[place:]]
        self._first = True
        return self

    @contained
    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **unused: Any) -> None:
        """Begin."""
        self._tokens = state.num_input_tokens_seen
        self._hook.begin()

    @contained
    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **unused: Any) -> None:
        """Log a step, and its tokens if ``include_num_input_tokens_seen`` has them counted: of all ranks, so that only one logs them."""
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
        """Note the loss, and add what the devices did since the row before."""
        if logs is None or SUMMARY in logs or any(name.startswith(EVALUATION) for name in logs):
            return
        numbers = {name: logs[name] for name in LOGGED if name in logs}
        if self._step is not None and self._step[0] == state.global_step:
            self._step[1].update(numbers)
            self._log_step()
        else:
            self.run.step(state.global_step, **numbers)
        if state.is_world_process_zero:
            row = self._rows()
            logs.update(row)
            names = [args.report_to] if isinstance(args.report_to, str) else list(args.report_to or ())
            # The reporters that have logged the row before this callback saw it.
            passed = names[: names.index(NAME) if NAME in names else 0] if self._reported else [name for name in names if name != NAME]
            if not passed or self._first:
                return
            self._warn.user(
                "order",
                f"training: the callback stands behind {', '.join(passed)}, which log the devices' rows late or not at all: use "
                "MonitorCallback(...).attach(trainer), or report_to=['accelmetrics', ...] before the others",
            )
            tracker = getattr(sys.modules.get("wandb"), "run", None) if "wandb" in passed else None
            if tracker is not None:
                # A row of its own beside the step's. One that waits for the next (commit=False) would stand at the next step.
                guarded(tracker.log, {**rewrite_logs(row), "train/global_step": state.global_step})

    @contained
    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **unused: Any) -> None:
        """End."""
        self._log_step()
        self._hook.end()

    def _rows(self) -> dict[str, float]:
        """Return what a row of the trainer gets."""
        return self._hook.row()

    def _log_step(self) -> None:
        """Log the step that waits for its row, if one does."""
        step, self._step = self._step, None
        if step is not None:
            self.run.step(step[0], **step[1])


class TrainerMonitoringCallback(GPUMonitoringCallback, TrainerCallback):
    """:class:`~accelmetrics.integrations.callbacks.GPUMonitoringCallback` where transformers is loaded: a trainer's callback too.

    Called by a trainer it does as :class:`MonitorCallback`, with a row every ``log_interval`` steps, which goes with what the trainer logs
    next; called by a loop of the program's own it does what it does there.
    """

    def __init__(self, gpu_monitor: Monitor | TrainingRun, log_interval: int = 10) -> None:
        super().__init__(gpu_monitor, log_interval)
        self._of_trainer = _RowsOfInterval(self)

    @contained
    def on_step_end(self, *arguments: Any, **values: Any) -> None:
        """Log the step, of a trainer or of a loop."""
        if len(arguments) == 3 and isinstance(arguments[1], TrainerState):
            self._of_trainer.on_step_end(*arguments)
            self.count_step(arguments[1].global_step)
        else:
            super().on_step_end(*arguments, **values)

    def on_log(self, *arguments: Any, **values: Any) -> None:
        """Log the trainer's numbers, and add the row that is due."""
        self._of_trainer.on_log(*arguments, **values)

    def on_train_begin(self, *arguments: Any, **values: Any) -> None:
        """Start the monitor."""
        super().on_train_begin()
        if len(arguments) == 3:
            self._of_trainer.on_train_begin(*arguments)

    def on_train_end(self, *arguments: Any, **values: Any) -> None:
        """Stop the monitor, which delivers what is queued."""
        if len(arguments) == 3:
            self._of_trainer.on_train_end(*arguments)
        super().on_train_end()


class _RowsOfInterval(MonitorCallback):
    """Adds each row of a callback once."""

    def __init__(self, owner: TrainerMonitoringCallback) -> None:
        super().__init__(owner.run)
        self._owner, self._added = owner, owner.row

    def _rows(self) -> dict[str, float]:
        before, self._added = self._added, self._owner.row
        return {} if self._added is before else self._added


class ReportedCallback(MonitorCallback):
    """The callback that ``report_to`` makes: it stands where its name does there."""

    _reported = True


INTEGRATION_TO_CALLBACK.setdefault(NAME, ReportedCallback)
