"""A W&B run that is not the program's: begun, written and finished in a process of its own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import wandb

from accelmetrics.exporters.tracker_room import need_room
from accelmetrics.exporters.wandb_disk import RunFile
from accelmetrics.exporters.wandb_rows import History, Row

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

try:
    from wandb.sdk.mailbox import HandleAbandonedError, MailboxClosedError

    LOST: tuple[type[Exception], ...] = (ConnectionError, HandleAbandonedError, MailboxClosedError)
    """What W&B raises when its service process is gone."""
except ImportError:  # another release has the connection's own error only
    LOST = (ConnectionError,)

LAST_BLOCK = 1 << 16
"""Bytes that the end of a run may need: the block that W&B's process still holds, and what ends the file."""


class Session:
    """See :class:`accelmetrics.exporters.tracker_child.Session`."""

    failures: tuple[type[Exception], ...] = (wandb.errors.Error,)
    ending: tuple[type[Exception], ...] = LOST
    """W&B's service process is gone: this one never starts another."""

    def __init__(self) -> None:
        self._run: Any = None
        self._file: RunFile | None = None
        self._history: History | None = None
        self._labels: dict[str, str] = {}

    def passing(self, error: Exception) -> bool:
        """A network or a server that is away; not a login that is wrong, nor a run that is finished."""
        return isinstance(error, wandb.errors.CommError) and not isinstance(error, wandb.errors.AuthenticationError)

    def open(self, options: dict[str, Any], timeouts: dict[str, Any]) -> dict[str, Any]:
        """Begin the run, or go on with it where its id is named and known."""
        place = Path(options.get("dir") or os.environ.get("WANDB_DIR") or ".")
        if place.is_dir():
            need_room(place)
        known = wandb.Settings.model_fields
        settings = {name: value for name, value in {**QUIET, **timeouts}.items() if name in known}
        try:
            self._run = wandb.init(**options, settings=wandb.Settings(**settings))
        except wandb.errors.UsageError as error:
            if "api key" in str(error).lower():
                raise wandb.errors.UsageError(LOGIN) from None
            raise
        self._history = History(self._run)
        self._file = RunFile(Path(self._run.settings.sync_file))
        self._labels = {}
        return {"id": self._run.id, "offline": bool(self._run.offline)}

    def log(self, rows: list[tuple[int, Row]], labels: dict[str, str]) -> dict[str, Any]:
        """Log the rows of one record, each on its own."""
        assert self._history is not None and self._file is not None
        if not self._file.writes(sum(len(name) for _, row in rows for name in row)):
            self._run.finish()  # what W&B's process still holds is written now, if it can be
            raise ConnectionAbortedError("the disk was full or failed, and W&B may write no more: the run is begun anew")
        if labels != self._labels:
            self._run.config.update(labels, allow_val_change=True)
            self._labels = labels
        for time_ns, row in rows:
            self._history.log(time_ns, row, commit=True)
        return {}

    def close(self) -> dict[str, Any]:
        """Finish the run and wait for what is on its way, within the time that was set.

        Raises:
            OSError: It is finished, but the disk is full: what W&B's process still held may be lost.
        """
        run, self._run = self._run, None
        if run is None:
            return {}
        assert self._file is not None
        try:
            self._file.has_room(LAST_BLOCK)
        finally:
            run.finish()
        return {}
