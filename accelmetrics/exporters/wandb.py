"""Weights & Biases: into the program's own run, or one that is ours."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Literal, cast

from accelmetrics.exporters.files import absolute
from accelmetrics.exporters.tracker import Tracker, need, written
from accelmetrics.exporters.wandb_rows import History, Row, Run, rows
from accelmetrics.schemas.errors import InvalidOptionError
from accelmetrics.schemas.record import Record

OPEN_SECONDS = 30.0
LOG_SECONDS = 10.0
FINISH_SECONDS = 15.0
"""How long a run of ours may take to begin, to take one record, and to end. W&B's own limits are set below these."""
TIMEOUTS = {"init_timeout": 15.0, "finish_timeout": 10.0}

MODES = ("online", "offline")
ENVIRONMENT = {
    # These say which run is the program's. A run of ours that took them would write into it.
    **dict.fromkeys(("WANDB_RUN_ID", "WANDB_RESUME", "WANDB_NAME", "WANDB_SWEEP_ID", "WANDB_SWEEP_PARAM_PATH", "WANDB_SERVICE")),
    "WANDB_ERROR_REPORTING": "false",
}


class WandbExporter:
    """Logs to a W&B run, on a time axis of its own.

    Where the program has a run, the metrics go into it, and the program's steps stay as they are: every row that the program
    logs carries the latest reading, and no row is added. Otherwise, or where a project or a name is given, a run of ours is
    begun in a process of its own, in which every reading is a row.

    Args:
        run: A run object, or a run's id: the program's, or else one that is begun or gone on with.
        project: The project of a run of ours, as ``project`` or ``entity/project``.
        name: Its name as it is shown.
        group: The group that it belongs to.
        mode: ``online`` or ``offline``; what W&B is configured to do unless given. For a run of ours.
        directory: Where W&B keeps the run's files: the working directory unless given. For a run of ours.
        prefix: Before every key.
        commit: Make each reading a row of the program's run, which advances its step: only for programs that log nothing to
            W&B themselves, since it drops what they log to a step that has passed.

    Raises:
        InvalidOptionError: The mode is none.
        MissingDependencyError: wandb is not installed.
    """

    name = "wandb"

    def __init__(
        self,
        run: str | Run = "",
        *,
        project: str | None = None,
        name: str | None = None,
        group: str | None = None,
        mode: Literal["online", "offline"] | None = None,
        directory: str | None = None,
        prefix: str = "system/",
        commit: bool = False,
    ) -> None:
        need("wandb")
        if mode is not None and mode not in MODES:
            raise InvalidOptionError(f"wandb: mode is {mode!r}: it must be one of {', '.join(MODES)}")
        self._wanted = run
        entity, _, project = (project or "").rpartition("/")
        chosen = {"project": project, "entity": entity, "name": name, "group": group, "mode": mode}
        self._options = {key: value for key, value in chosen.items() if value}
        if directory:
            self._options["dir"] = str(absolute(directory))
        self._apart = any((project, name, group))
        self._prefix = prefix
        self._commit = commit
        self._joined: History | None = None
        self._tracker = Tracker("Weights & Biases", "accelmetrics.exporters.wandb_child", ENVIRONMENT)
        self._resumed = ""

    def open(self) -> None:
        """Join the program's run, or begin one.

        Raises:
            ConnectionError: W&B is away.
            TimeoutError: W&B did not answer in time.
            RejectedError: Nobody is logged in, or W&B refused.
        """
        run = self._program_run()
        if run is not None:
            self._joined = History(run)
        else:
            self._begin()

    def _program_run(self) -> Run | None:
        """The run to join. A program without W&B loaded has none."""
        if not isinstance(self._wanted, str):
            return self._wanted
        run = cast("Run | None", getattr(sys.modules.get("wandb"), "run", None))
        if run is None or self._apart or (self._wanted and run.id != self._wanted):
            return None
        return run

    def _begin(self) -> None:
        options: dict[str, Any] = dict(self._options)
        if "dir" in options:
            Path(options["dir"]).mkdir(parents=True, exist_ok=True)  # W&B falls back to /tmp without a word
        if self._wanted or self._resumed:
            options |= {"id": self._wanted or self._resumed, "resume": "allow"}
        begun = self._tracker.begin({"options": options, "timeouts": TIMEOUTS}, OPEN_SECONDS)
        self._resumed = "" if begun["offline"] else begun["id"]

    def export(self, record: Record) -> None:
        """Log one record.

        Raises:
            ConnectionError: The process that keeps our run is gone, or W&B's own, or the disk was full: the run is begun anew, or
                gone on with, at the next try. Or the disk is full.
            TimeoutError: It did not answer in time.
            RejectedError: W&B refused.
        """
        if self._joined is not None:
            self._join(record)
            return
        if not self._tracker.running:
            self._begin()
        labels = {written(name): written(value) for name, value in record.labels.items()}
        self._tracker.request("log", {"rows": list(rows(record, self._prefix)), "labels": labels}, LOG_SECONDS)

    def _join(self, record: Record) -> None:
        run = self._program_run()
        assert self._joined is not None
        if run is not None and run is not self._joined.run:
            self._joined = History(run)  # the program has ended its run and begun another
        if self._commit:
            for time_ns, row in rows(record, self._prefix):
                self._joined.log(time_ns, row, commit=True)
            return
        together: Row = {}
        for _, row in rows(record, self._prefix):
            together |= row
        self._joined.log(record.snapshot.time_ns, together, commit=False)

    def flush(self) -> None:
        """Nothing waits here: W&B's own process has what was logged."""

    def close(self) -> None:
        """Finish the run if it is ours; the program's goes on.

        Raises:
            OSError: The run could not be finished in time. What was logged is in its directory, for ``wandb sync``.
        """
        self._joined = None
        self._resumed = ""
        try:
            if self._tracker.running:
                self._tracker.request("close", {}, FINISH_SECONDS)
        finally:
            self._tracker.stop()
