"""Exporter to Weights & Biases: readings in the program's run, or in a separate run."""

from __future__ import annotations

import importlib
import json
import netrc
import os
import secrets
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
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
"""Axis of measured values: seconds since the run began. The program's own axis, ``_step``, is not touched."""
TRAINING = "training/"
TRAINING_STEP = f"{TRAINING}step"
"""Axis of the numbers that the program logged to the monitor: the logged step."""

LOGIN = "not logged in: run `wandb login`, set WANDB_API_KEY, or choose mode=offline"
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
"""Settings of a separate run: W&B itself collects no code, output or hardware metrics. Times in seconds; old releases lack the last two."""


class WandbExporter(Tracker):
    """Logs to a W&B run, with a separate time axis.

    If the program has a run, the metrics go into it without changing its steps: every row that the program logs also contains the latest
    reading, and no rows are added. If it has none, or if a project, a name or a group is given, a separate run begins, in which every
    reading is a row.

    Args:
        run: A run object or a run's id. An id that is not the program's is continued, or begins a new run.
        project: Project of a separate run, as ``project`` or ``entity/project``.
        name: Display name of a separate run.
        group: Group of a separate run.
        mode: Mode of a separate run, ``online`` or ``offline``; by default the one that W&B is configured with.
        directory: Directory for W&B's files of a separate run; by default the working directory.
        prefix: Prefix of every measured key; by default ``system/`` in the history and none in the system stream.
        stream: ``history``; or ``system`` to log measured values as W&B's own system metrics, which it charts under *System*. In this case
            disable W&B's collector (``x_disable_stats``), as a separate run does.
        commit: Make each reading a row of the program's run, which advances its step. Use this only if the program itself logs nothing to
            W&B, because W&B drops numbers that are logged to a past step.
        dialect: Metric names: a dialect's name, ``module:attribute``, or a :class:`~accelmetrics.dialects.contract.Dialect`.
        metrics: Metrics to export: see :class:`~accelmetrics.schemas.selection.MetricSelection`.

    Raises:
        InvalidOptionError: The mode or stream is unknown, this release of wandb does not accept system metrics, or the directory is none
            or belongs to another user in a shared directory.
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
        for option, word, words in (("mode", mode or "online", ("online", "offline")), ("stream", stream, ("history", "system"))):
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
        """Use the program's run, or begin a separate one.

        Raises:
            ConnectionError: W&B is unreachable.
            RejectedError: The user is not logged in, or W&B refused the request.
            OSError: The directory cannot be created.
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
        """Begin a separate run, or continue it if its id is given and exists."""
        if os.environ.get("WANDB_SWEEP_ID"):
            raise RejectedError(
                "Weights & Biases: in a sweep, every run is the sweep's: begin that run first, and give no project, name or group"
            )
        options = dict(self._options)
        # The variables WANDB_RUN_ID, WANDB_RESUME and WANDB_NAME are meant for the program's run, so each is overridden.
        options |= {"id": self._wanted, "resume": "allow"} if self._wanted else {"id": secrets.token_hex(4), "resume": "never"}
        if os.environ.get("WANDB_NAME"):
            options.setdefault("name", options["id"])
        if options.get("mode", os.environ.get("WANDB_MODE", "online")) == "online" and sys.stdin is not None and sys.stdin.isatty():
            # Without a known login, W&B would ask for one on the terminal.
            host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
            known: object = os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE")
            for file in (os.environ.get("NETRC"), "~/.netrc", "~/_netrc"):
                with suppress(OSError, RuntimeError, netrc.NetrcParseError):
                    known = known or (file and netrc.netrc(Path(file).expanduser()).authenticators(host))
            if not known:
                raise RejectedError(f"Weights & Biases: {LOGIN}")
        if folder := options.get("dir"):
            make_folder(folder)  # W&B would silently use /tmp instead of a missing directory
        fields = self._wandb.Settings.model_fields
        settings = self._wandb.Settings(**{name: value for name, value in SETTINGS.items() if name in fields})
        with self._translated():
            run = self._wandb.init(reinit="create_new", settings=settings, **options)
        self._wandb.setup().remove_active_run(run)  # otherwise a later wandb.init() of the program would return this run
        return run

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Raise an error of W&B in the block as ``ConnectionError`` if a retry may succeed, else as ``RejectedError``."""
        # A retry helps if the network or server is unreachable, not after a failed login or in a finished run.
        errors = self._wandb.errors
        try:
            yield
        except self._gone as error:
            why = "its service process has ended, and W&B starts no other in this program"
            message = without_secrets(str(error)) or type(error).__name__
            raise ConnectionError(f"Weights & Biases: {why} ({message})") from None
        except errors.Error as error:
            message = without_secrets(str(error))
            if isinstance(error, errors.CommError) and not isinstance(error, errors.AuthenticationError):
                raise ConnectionError(f"Weights & Biases: {message}") from None
            if isinstance(error, errors.UsageError) and "api key" in message.lower().replace("_", " "):
                message = LOGIN
            raise RejectedError(f"Weights & Biases: {message}") from None

    def export(self, record: Record) -> None:
        """Log one record.

        Raises:
            ConnectionError: W&B's service process has ended.
            RejectedError: W&B refused the record.
        """
        if not self._ours and (run := self._program_run()) is not None and run is not self._run:
            self._run, self._defined, self._labels = run, set(), {}  # the program has ended its run and begun another
        with self._translated():
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

    def _placed(self, record: Record) -> Iterator[tuple[int, dict[str, int | float]]]:
        """Yield time (nanoseconds since 1970) and numbers of each row of the history: the program's steps, then the measured values."""
        for step in record.own_steps:
            row: dict[str, int | float] = {f"{TRAINING}{name}": value for name, value in step.values.items()}
            yield step.time_ns, row if step.step is None else row | {TRAINING_STEP: step.step}
        if self._stats is None:
            yield record.snapshot.time_ns, self._measured(record)

    def _publish(self, record: Record) -> None:
        """Publish the measured values as system metrics, through the internal interface that W&B's own collector uses."""
        run = self._run
        # Older releases have the interface in a backend object. A disabled run (mode="disabled") has no interface.
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
        """Add a row. Without ``commit``, the numbers are added to the row that the program commits itself."""
        placed = {**row, SECONDS: round(time_ns / 1e9 - self._run.start_time, 3)}
        # One definition per name instead of a pattern, because W&B takes names that match a pattern for nested values. In a definition,
        # although not in a row, W&B also takes a name with unescaped dots for a nested value. Measured values are kept out of the run's
        # summary.
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
        with self._translated():
            run.finish()


def _stats_record(version: str) -> Any:
    """Return W&B's message class for system metrics.

    Raises:
        InvalidOptionError: This release lacks the class, or publishes it in another way.
    """
    # These are internal names of wandb, so a release without them is reported as an invalid option.
    try:
        interface = importlib.import_module("wandb.sdk.interface.interface_shared").InterfaceShared
        record = importlib.import_module("wandb.proto.wandb_internal_pb2").StatsRecord
        run = importlib.import_module("wandb.sdk.wandb_run").Run
    except (ImportError, AttributeError):
        interface = record = run = None
    if not (hasattr(interface, "_publish") and hasattr(interface, "_make_record") and {"_interface", "_backend"} & {*run.__annotations__}):
        raise InvalidOptionError(f"wandb {version} cannot publish system metrics: leave out stream=system, or install 0.31 or later")
    return record
