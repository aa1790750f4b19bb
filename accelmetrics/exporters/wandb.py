"""Weights & Biases: readings in the program's own run, or in a run of their own."""

from __future__ import annotations

import importlib
import json
import netrc
import os
import secrets
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast
from urllib.parse import urlsplit

from accelmetrics.dialects.contract import Dialect
from accelmetrics.exporters.fields import utf8
from accelmetrics.exporters.files import folder_for_files, make_folder
from accelmetrics.exporters.network import RejectedError
from accelmetrics.exporters.tracker import Tracker
from accelmetrics.schemas.errors import InvalidOptionError, require, without_secrets
from accelmetrics.schemas.record import Record
from accelmetrics.schemas.selection import STANDARD, MetricChoice

if TYPE_CHECKING:
    import wandb

SECONDS = "accelmetrics/seconds"
"""The axis of everything that is measured: seconds since the run began. ``_step``, the program's own, is left alone."""
TRAINING = "training/"
TRAINING_STEP = f"{TRAINING}step"
"""The axis of what the program logged to the monitor: its step there."""

MODES = ("online", "offline")
STREAMS = ("history", "system")
LOGIN = "not logged in: run `wandb login`, set WANDB_API_KEY, or choose mode=offline"
GONE = "its service process has ended, and W&B starts no other in this program"
NO_SYSTEM = "has no interface by which stream=system could publish: leave it out, or install a release that has one, such as 0.31"
SWEEP = "in a sweep every run of the process is the sweep's own: begin that run first, and name no project, name or group here"
SETTINGS: dict[str, Any] = {
    "console": "off",
    "silent": True,
    "disable_git": True,
    "save_code": False,
    "x_disable_stats": True,
    "init_timeout": 15.0,
    "finish_timeout": 10.0,
    "finish_timeout_raises": False,
}
"""Of a run of ours: it collects neither code nor output nor hardware by itself. Seconds; older releases lack the last two."""


class WandbExporter(Tracker):
    """Logs to a W&B run, on a time axis of its own.

    Where the program has a run, the metrics go into it, and the program's steps stay as they are: every row that the program
    logs carries the latest reading, and no row is added. Otherwise, or where a project, a name or a group is given, a run of
    ours is begun beside the program's, in which every reading is a row.

    Args:
        run: A run object, or a run's id: the program's, or else one that is begun or gone on with.
        project: The project of a run of ours, as ``project`` or ``entity/project``.
        name: Its name as it is shown.
        group: The group that it belongs to.
        mode: ``online`` or ``offline``; what W&B is configured to do unless given. For a run of ours.
        directory: Where W&B keeps the run's files: the working directory unless given. For a run of ours.
        prefix: Before every key; ``system/`` in the history and nothing in the system stream unless given.
        stream: ``history``, or ``system``: what is measured becomes W&B's own system metrics, which it charts under *System*. Turn its
            own collector off then (``x_disable_stats``), as it is in a run of ours.
        commit: Make each reading a row of the program's run, which advances its step: only for programs that log nothing to
            W&B themselves, since it drops what they log to a step that has passed.
        dialect: Metric names: a dialect's name, ``module:attribute``, or a :class:`~accelmetrics.dialects.contract.Dialect`.
        metrics: Metrics to export: see :class:`~accelmetrics.schemas.selection.MetricSelection`.

    Raises:
        InvalidOptionError: The mode or stream is none, this wandb cannot be given system metrics, or the directory cannot be one,
            or is another user's in a shared folder.
        MissingDependencyError: wandb is not installed.
        UnknownNameError: There is no dialect with this name.
    """

    name = "wandb"

    def __init__(  # noqa: PLR0913  # each is an option of the string form
        self,
        run: str | Any = "",
        *,
        project: str | None = None,
        name: str | None = None,
        group: str | None = None,
        mode: Literal["online", "offline"] | None = None,
        directory: str | None = None,
        prefix: str | None = None,
        stream: Literal["history", "system"] = "history",
        commit: bool = False,
        dialect: str | Dialect = "wandb",
        metrics: MetricChoice = STANDARD,
    ) -> None:
        for option, word, words in (("mode", mode or MODES[0], MODES), ("stream", stream, STREAMS)):
            if word not in words:
                raise InvalidOptionError(f"wandb: {option} is {word!r}: it must be one of {', '.join(words)}")
        system = stream == "system"
        super().__init__(("" if system else "system/") if prefix is None else prefix, dialect, metrics)
        self._wandb = require("wandb", "wandb")
        self._stats: Any = _stats_record(self._wandb.__version__) if system else None
        mailbox = self._wandb.sdk.mailbox
        self._gone = (ConnectionError, mailbox.HandleAbandonedError, mailbox.MailboxClosedError)
        self._wanted = run
        entity, _, project = (project or "").rpartition("/")
        self._apart = bool(project or name or group)
        folder = folder_for_files(directory) if directory else None
        chosen = {"project": project, "entity": entity, "name": name, "group": group, "mode": mode, "dir": folder}
        self._options: dict[str, Any] = {key: value for key, value in chosen.items() if value}
        self._commit = commit
        self._defined: set[str] = set()

    def open(self) -> None:
        """Join the program's run, or begin one.

        Raises:
            ConnectionError: W&B is away.
            RejectedError: There is no login, or W&B refused.
            OSError: The directory cannot be made.
        """
        super().open()
        self._defined = set()

    def _program_run(self) -> wandb.Run | None:
        if not isinstance(self._wanted, str):
            return cast("wandb.Run", self._wanted)
        run: wandb.Run | None = self._wandb.run
        named = run is not None and self._wanted in ("", run.id)
        return run if named and not self._apart else None

    def _begin(self) -> Any:
        """Begin a run of ours, or go on with it where its id is named and known."""
        if os.environ.get("WANDB_SWEEP_ID"):
            raise RejectedError(f"Weights & Biases: {SWEEP}")
        options = dict(self._options)
        # The variables WANDB_RUN_ID, WANDB_RESUME and WANDB_NAME say which run is the program's: each is overruled.
        options |= {"id": self._wanted, "resume": "allow"} if self._wanted else {"id": secrets.token_hex(4), "resume": "never"}
        if os.environ.get("WANDB_NAME"):
            options.setdefault("name", options["id"])
        if options.get("mode", os.environ.get("WANDB_MODE", "online")) == "online" and sys.stdin is not None and sys.stdin.isatty():
            # W&B would ask for a login on the terminal.
            host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
            known: object = os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE")
            for file in (os.environ.get("NETRC"), "~/.netrc", "~/_netrc"):
                with suppress(OSError, RuntimeError, netrc.NetrcParseError):
                    known = known or (file and netrc.netrc(Path(file).expanduser()).authenticators(host))
            if not known:
                raise RejectedError(f"Weights & Biases: {LOGIN}")
        if folder := options.get("dir"):
            make_folder(folder)  # W&B falls back to /tmp without a word
        fields = self._wandb.Settings.model_fields
        settings = self._wandb.Settings(**{name: value for name, value in SETTINGS.items() if name in fields})
        try:
            run = self._wandb.init(reinit="create_new", settings=settings, **options)
        except self._wandb.errors.Error as error:
            raise self._told(error) from None
        self._wandb.setup().remove_active_run(run)  # else a later wandb.init() of the program would return this one
        return run

    def _told(self, error: Exception) -> Exception:
        """Word a failure of W&B: passing for a network or a server that is away, not for a wrong login or a finished run."""
        errors, said = self._wandb.errors, without_secrets(str(error))
        if isinstance(error, self._gone):
            return ConnectionError(f"Weights & Biases: {GONE} ({said or type(error).__name__})")
        if isinstance(error, errors.CommError) and not isinstance(error, errors.AuthenticationError):
            return ConnectionError(f"Weights & Biases: {said}")
        if isinstance(error, errors.UsageError) and "api key" in said.lower().replace("_", " "):
            said = LOGIN
        return RejectedError(f"Weights & Biases: {said}")

    def export(self, record: Record) -> None:
        """Log one record.

        Raises:
            ConnectionError: W&B's service process is gone.
            RejectedError: W&B refused.
        """
        if not self._ours and (run := self._program_run()) is not None and run is not self._run:
            self._run, self._defined, self._labels = run, set(), {}  # the program has ended its run and begun another
        try:
            if self._ours and record.labels != self._labels:
                labels = {utf8(name): utf8(value) for name, value in record.labels.items()}
                self._run.config.update(labels, allow_val_change=True)
                self._labels = record.labels
            if self._ours or self._commit:
                for time_ns, row in self._placed(record):
                    self._add(time_ns, row, commit=True)
            else:
                together: dict[str, int | float] = {}
                for _, row in self._placed(record):
                    together |= row
                if together:
                    self._add(record.snapshot.time_ns, together, commit=False)
            if self._stats is not None:
                self._publish(record)
        except (self._wandb.errors.Error, *self._gone) as error:
            raise self._told(error) from None

    def _placed(self, record: Record) -> Iterator[tuple[int, dict[str, int | float]]]:
        """Yield when, in nanoseconds since 1970, and what: a row for each step of the program, and one of the history for the snapshot."""
        for step in record.own_steps:
            row: dict[str, int | float] = {f"{TRAINING}{name}": value for name, value in step.values.items()}
            yield step.time_ns, row if step.step is None else row | {TRAINING_STEP: step.step}
        if self._stats is None:
            yield record.snapshot.time_ns, self._measured(record)

    def _publish(self, record: Record) -> None:
        """Publish what was measured as W&B's own collector does, by the interface that the run has for that."""
        run = self._run
        # Older releases keep it in a backend. A run that is switched off (mode="disabled") has none.
        interface = getattr(run, "_interface", None) or getattr(getattr(run, "_backend", None), "interface", None)
        if interface is None:
            return
        if run._is_finished:
            raise RejectedError("Weights & Biases: the run is finished")
        stats = self._stats(stats_type=self._stats.StatsType.SYSTEM)
        stats.timestamp.FromNanoseconds(record.snapshot.time_ns)
        for name, value in self._measured(record).items():
            stats.item.add(key=name, value_json=json.dumps(value))
        interface._publish(interface._make_record(stats=stats))

    def _add(self, time_ns: int, row: Mapping[str, int | float], commit: bool) -> None:
        """Add a row; without ``commit``, to the row that the program finishes itself."""
        placed = {**row, SECONDS: round(time_ns / 1e9 - self._run.start_time, 3)}
        # One definition a name: W&B takes the names that a pattern matches for nested values. So would it a name with dots, in
        # a definition though not in a row, unless they are escaped. What is measured leaves the run's summary alone.
        for name in placed.keys() - self._defined:
            training = name.startswith(TRAINING)
            if name in (SECONDS, TRAINING_STEP):
                self._run.define_metric(name, hidden=True, summary="none")
            else:
                axis = TRAINING_STEP if training and TRAINING_STEP in row else SECONDS
                self._run.define_metric(name.replace(".", "\\."), axis, summary=None if training else "none")
            self._defined.add(name)
        self._run.log(placed, commit=commit)

    def _end(self, run: wandb.Run) -> None:
        try:
            run.finish()
        except self._gone as error:
            raise self._told(error) from None


def _stats_record(version: str) -> Any:
    """Return what W&B's system metrics are made of.

    Raises:
        InvalidOptionError: This release has no such thing, or publishes it in another way.
    """
    try:
        interface = importlib.import_module("wandb.sdk.interface.interface_shared").InterfaceShared
        record = importlib.import_module("wandb.proto.wandb_internal_pb2").StatsRecord
        run = importlib.import_module("wandb.sdk.wandb_run").Run
    except (ImportError, AttributeError):
        interface = record = run = None
    if not (hasattr(interface, "_publish") and hasattr(interface, "_make_record") and {"_interface", "_backend"} & {*run.__annotations__}):
        raise InvalidOptionError(f"wandb {version} {NO_SYSTEM}")
    return record
