"""A W&B run that is not the program's: begun, written and finished in a process of its own."""

from __future__ import annotations

from typing import Any

import wandb

from accelmetrics.exporters.wandb_rows import History

LOGIN = "not logged in: run `wandb login`, set WANDB_API_KEY, or choose mode=offline"

QUIET: dict[str, Any] = {
    "console": "off",
    "silent": True,
    "disable_git": True,
    "save_code": False,
    "x_disable_stats": True,
    "finish_timeout_raises": False,
}
"""Settings of the run: it watches nothing by itself, neither code nor output nor hardware."""


class Session:
    """See :class:`accelmetrics.exporters.tracker_child.Session`."""

    failures: tuple[type[Exception], ...] = (wandb.errors.Error,)

    def __init__(self) -> None:
        self._run: Any = None
        self._history: History | None = None
        self._labels: dict[str, str] = {}

    def passing(self, error: Exception) -> bool:
        """A network or a server that is away; not a login that is wrong, nor a run that is finished."""
        return isinstance(error, wandb.errors.CommError) and not isinstance(error, wandb.errors.AuthenticationError)

    def open(self, options: dict[str, Any], timeouts: dict[str, Any]) -> dict[str, Any]:
        """Begin the run, or go on with it where its id is named and known."""
        known = wandb.Settings.model_fields
        settings = {name: value for name, value in {**QUIET, **timeouts}.items() if name in known}
        try:
            self._run = wandb.init(**options, settings=wandb.Settings(**settings))
        except wandb.errors.UsageError as error:
            if "api key" in str(error).lower():
                raise wandb.errors.UsageError(LOGIN) from None
            raise
        self._history = History(self._run)
        self._labels = {}
        return {"id": self._run.id, "offline": bool(self._run.offline)}

    def log(self, rows: list[tuple[int, dict[str, int | float]]], labels: dict[str, str]) -> dict[str, Any]:
        """Log the rows of one record, each on its own."""
        assert self._history is not None
        if labels != self._labels:
            self._run.config.update(labels, allow_val_change=True)
            self._labels = labels
        for time_ns, row in rows:
            self._history.log(time_ns, row, commit=True)
        return {}

    def close(self) -> dict[str, Any]:
        """Finish the run and wait for what is on its way, within the time that was set."""
        if self._run is not None:
            self._run.finish()
            self._run = self._history = None
        return {}
