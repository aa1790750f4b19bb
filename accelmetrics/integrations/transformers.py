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
from accelmetrics.integrations.hook import WithRun
from accelmetrics.integrations.training import TrainingRun

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
        run: As for :class:`~accelmetrics.integrations.hook.WithRun`, like the others.
        options: ``prefix``, ``keys``, ``stats``, and those of :func:`accelmetrics.training`.
    """

    _reported = False  # whether `report_to` made it, which puts it where its name stands there

    def __init__(self, run: TrainingRun | None = None, **options: Any) -> None:
        super().__init__(run, **options)
        self._first = False  # whether it was attached
        self._tokens = 0
        self._warn = WarnOnce()

    def attach(self, trainer: Any) -> MonitorCallback:
        """Stand before the trainer's other callbacks, so that all of them log the rows.

        Args:
            trainer: A ``transformers.Trainer``, or one that is built on it.

        Raises:
            TypeError: It is none.
        """
        callbacks = getattr(getattr(trainer, "callback_handler", None), "callbacks", None)
        if callbacks is None:
            raise TypeError(f"attach takes a transformers.Trainer, and {type(trainer).__name__!r} is none: it has no list of callbacks")
        callbacks[:] = [self, *(one for one in callbacks if one is not self)]
        self._first = True
        return self

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **unused: Any) -> None:
        """Begin."""
        self._tokens = state.num_input_tokens_seen
        self._hook.begin()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **unused: Any) -> None:
        """Note a step, and its tokens where ``include_num_input_tokens_seen`` has them counted: of all ranks, so that one tells them."""
        tokens, self._tokens = state.num_input_tokens_seen - self._tokens, state.num_input_tokens_seen
        self.run.step(state.global_step, tokens=tokens if tokens > 0 and state.is_world_process_zero else None)

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: dict[str, Any] | None = None, **unused: Any
    ) -> None:
        """Note the loss, and add what the devices did since the row before."""
        if logs is None or SUMMARY in logs or any(name.startswith(EVALUATION) for name in logs):
            return
        self.run.step(state.global_step, **{name: logs[name] for name in LOGGED if name in logs})
        if state.is_world_process_zero:
            row = self._hook.row()
            logs.update(row)
            names = [args.report_to] if isinstance(args.report_to, str) else list(args.report_to or ())
            # The reporters that have logged the row before this callback saw it.
            passed = names[: names.index(NAME) if NAME in names else 0] if self._reported else [name for name in names if name != NAME]
            if not passed or self._first:
                return
            self._warn(
                "order",
                "training: the callback stands behind %s, which log the devices' rows late or not at all: use "
                "MonitorCallback(...).attach(trainer), or report_to=['accelmetrics', ...] before the others",
                ", ".join(passed),
            )
            tracker = getattr(sys.modules.get("wandb"), "run", None) if "wandb" in passed else None
            if tracker is not None:
                # A row of its own beside the step's. One that waits for the next (commit=False) would stand at the next step.
                guarded(tracker.log, {**rewrite_logs(row), "train/global_step": state.global_step})

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **unused: Any) -> None:
        """End."""
        self._hook.end()


class ReportedCallback(MonitorCallback):
    """The callback that ``report_to`` makes: it stands where its name does there."""

    _reported = True


INTEGRATION_TO_CALLBACK.setdefault(NAME, ReportedCallback)
