"""Exporters to experiment trackers: their common base class, and the small ones: Aim, ClearML, SwanLab and trackio.

MLflow, TensorBoard and Weights & Biases have separate modules.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from math import isfinite
from typing import Any

from accelmetrics.dialects.contract import Dialect
from accelmetrics.dialects.registry import dialect as dialect_of
from accelmetrics.exporters.fields import INT64, utf8
from accelmetrics.schemas.errors import require
from accelmetrics.schemas.metric import PARTITION
from accelmetrics.schemas.record import Record
from accelmetrics.schemas.selection import STANDARD, MetricChoice, MetricSelection

CORE = MetricSelection("core", default=True)
"""Default metrics of trackers that take one number per call. ClearML needs 1.8 s for the metrics `standard` of 8 H100s."""

_OF_DEVICE = re.compile(rf"(\w+(?:\.process)?\.\d+(?:\.{PARTITION}\.\d+)?)\.(.+)", re.DOTALL)


class Tracker:
    """Base class of exporters to experiment trackers. They log to the program's run, or begin a run.

    A subclass defines ``_begin``, ``_tag`` and ``_log``, and also ``_program_run`` and ``_end`` if the defaults do not fit. A tracker that
    needs a record as a whole or in order overrides ``export``.

    Args:
        prefix: Prefix of every measured key.
        dialect: Metric names: a dialect's name, ``module:attribute``, or a dialect.
        metrics: Metrics to export.

    Raises:
        UnknownNameError: There is no dialect with this name.
    """

    def __init__(self, prefix: str, dialect: str | Dialect, metrics: MetricChoice) -> None:
        self._prefix = prefix
        self._dialect = dialect_of(dialect)
        # In W&B's names, a key without a device belongs to the host. In other dialects it may be anything.
        self._group = "host" if self._dialect.name.startswith("wandb") else self._dialect.name
        self.metrics = MetricSelection(metrics)
        self._run: Any = None
        self._joined: Any = None  # the program's run, if it is known when the exporter is created
        self._ours = False
        self._began_ns = 0
        self._labels: Mapping[str, str] = {}

    def open(self) -> None:
        """Use the program's run, or begin a new one."""
        joined = self._program_run()
        self._ours = joined is None
        self._run = self._begin() if joined is None else joined
        self._began_ns, self._labels = 0, {}

    def export(self, record: Record) -> None:
        """Log one record: the program's steps, then the measured values. A run that this exporter began also gets the labels."""
        # Not the time of open(): the first record may have waited while the client was loading.
        self._began_ns = self._began_ns or record.snapshot.time_ns
        if self._ours and record.labels != self._labels:
            self._tag({utf8(name): utf8(text) for name, text in record.labels.items()})
            self._labels = record.labels
        *steps, (_, step, values) = self._rows(record)
        for _, number, logged in steps:
            self._log(number, logged)
        self._log(step, values, measured=True)

    def flush(self) -> None:
        """Do nothing: the tracker's client has each record when ``export`` returns."""

    def close(self) -> None:
        """End a run that this exporter began. The program's run continues."""
        run, self._run = self._run, None
        if self._ours and run is not None:
            self._ours = False
            self._end(run)

    def _program_run(self) -> Any:
        """Return the program's run; None if a new one has to begin."""
        return self._joined

    def _begin(self) -> Any:
        """Begin a new run."""
        raise NotImplementedError

    def _end(self, run: Any) -> None:
        """End a run that this exporter began."""
        run.finish()

    def _tag(self, labels: Mapping[str, str]) -> None:
        """Set the labels of a run that this exporter began."""
        raise NotImplementedError

    def _log(self, step: int, values: Mapping[str, int | float], measured: bool = False) -> None:
        """Log numbers at a step: the program's, or measured values if ``measured``."""
        raise NotImplementedError

    def _rows(self, record: Record) -> Iterator[tuple[int, int, dict[str, int | float]]]:
        """Yield time (nanoseconds since 1970), step and numbers of each row: the program's steps, then the measured values."""
        for step in record.own_steps:
            # A step without a number, or with one beyond 64 bits, gets a reading's step: whole seconds since the run began.
            own = step.step is not None and -INT64 <= step.step < INT64
            number = step.step if own and step.step is not None else self._seconds(step.time_ns)
            yield step.time_ns, number, {utf8(name): value for name, value in step.values.items()}
        time_ns = record.snapshot.time_ns
        yield time_ns, self._seconds(time_ns), self._measured(record)

    def _measured(self, record: Record) -> dict[str, int | float]:
        """Return the metrics by the dialect's names, and the monitor's counters."""
        found = {**self._dialect.flat(record), **(record.monitor.flat() if record.monitor is not None else {})}
        return {self._name(name): value for name, value in found.items()}

    def _name(self, name: str) -> str:
        """Return the name of a measured value in the run."""
        return f"{self._prefix}{utf8(name)}"

    def _seconds(self, time_ns: int) -> int:
        """Return the whole seconds since the run began; 0 if the clock was set back."""
        return max(0, time_ns - self._began_ns) // 1_000_000_000


@lru_cache(maxsize=16384)
def tag(key: str, group: str = "host") -> str:
    """Convert a key to a tag ``GROUP/NAME`` for TensorBoard. The group is the numbered device, or ``group`` if there is none."""
    key = utf8(key)
    if found := _OF_DEVICE.fullmatch(key):
        return f"{found[1]}/{found[2]}"
    head, _, rest = key.partition(".")
    return f"{head}/{rest}" if head == "monitor" else f"{group}/{key}"


class AimExporter(Tracker):
    """Logs to an Aim run: the program's, given as an object, or a new one.

    Measured values are logged in the context ``{"subset": "system"}``; their step is the number of whole seconds since the first reading.
    Numbers that the program logged to the monitor keep their names and steps.

    Args:
        run: The program's run, as an object. Aim lets only one process write to a run, so an existing run cannot be continued by its id.
        repo: Repository of a new run: a directory or ``aim://HOST:PORT``; by default the working directory.
        experiment: Experiment of a new run.
        prefix: Prefix of every measured key.
        dialect: Metric names: a dialect's name, ``module:attribute``, or a :class:`~accelmetrics.dialects.contract.Dialect`.
        metrics: Metrics to export: see :class:`~accelmetrics.schemas.selection.MetricSelection`.

    Raises:
        MissingDependencyError: aim is not installed.
        UnknownNameError: There is no dialect with this name.
    """

    name = "aim"

    def __init__(
        self,
        run: Any = None,
        *,
        repo: str | None = None,
        experiment: str | None = None,
        prefix: str = "",
        dialect: str | Dialect = "wandb",
        metrics: MetricChoice = CORE,
    ) -> None:
        super().__init__(prefix, dialect, metrics)
        self._aim = require("aim", "aim")
        self._joined = run
        self._options = {"repo": repo, "experiment": experiment}

    def _begin(self) -> Any:
        return self._aim.Run(**self._options, system_tracking_interval=None, capture_terminal_logs=False)

    def _end(self, run: Any) -> None:
        run.close()

    def _tag(self, labels: Mapping[str, str]) -> None:
        self._run["labels"] = dict(labels)

    def _log(self, step: int, values: Mapping[str, int | float], measured: bool = False) -> None:
        context = {"subset": "system"} if measured else None
        for name, value in values.items():
            self._run.track(float(value), name=name, step=step, context=context)  # always float: a metric's values must have one type


# ClearML's automatic hooks into a program, all to be switched off. auto_connect_frameworks=False would leave detect_repository on. That
# hook runs git while ClearML forks its reporter. The reporter may inherit the pipe on which the start of git waits, and Task.close then
# hangs for 300 s.
_CONNECTED = (
    *("catboost", "detect_repository", "fastai", "gradio", "hydra", "joblib", "lightgbm", "matplotlib", "megengine", "pytorch", "scikit"),
    *("tensorboard", "tensorflow", "xgboost"),
)


class ClearmlExporter(Tracker):
    """Logs to the process's ClearML task, or begins a new one. ClearML has one task per process.

    Each device has a plot (``gpu.0``) with a series per metric; steps are whole seconds since the first reading. Numbers that the program
    logged to the monitor are in the plot ``training`` at their steps. Non-finite numbers are left out, because ClearML would store 0.

    Args:
        project: Project of a new task.
        task_name: Name of a new task.
        prefix: Prefix of the title of every plot with measured values.
        dialect: Metric names: a dialect's name, ``module:attribute``, or a :class:`~accelmetrics.dialects.contract.Dialect`.
        metrics: Metrics to export: see :class:`~accelmetrics.schemas.selection.MetricSelection`.

    Raises:
        MissingDependencyError: clearml is not installed.
        UnknownNameError: There is no dialect with this name.
    """

    name = "clearml"

    def __init__(
        self,
        *,
        project: str = "accelmetrics",
        task_name: str = "hardware",
        prefix: str = "",
        dialect: str | Dialect = "wandb",
        metrics: MetricChoice = CORE,
    ) -> None:
        super().__init__(prefix, dialect, metrics)
        self._clearml = require("clearml", "clearml")
        self._options = {"project_name": project, "task_name": task_name}

    def _program_run(self) -> Any:
        return self._clearml.Task.current_task()

    def _begin(self) -> Any:
        task = self._clearml.Task
        seed = getattr(task, "_random_seed", True)  # True is ClearML's default
        task.set_random_seed(None)  # otherwise a new task would reseed the program's random generators in the middle of a training
        try:
            return task.init(
                **self._options,
                reuse_last_task_id=False,
                auto_connect_arg_parser=False,
                auto_connect_frameworks=dict.fromkeys(_CONNECTED, False),
                auto_connect_streams=False,
                auto_resource_monitoring=False,
            )
        finally:
            task.set_random_seed(seed)

    def _end(self, run: Any) -> None:
        run.close()

    def _tag(self, labels: Mapping[str, str]) -> None:
        self._run.connect(dict(labels), name="accelmetrics")

    def _log(self, step: int, values: Mapping[str, int | float], measured: bool = False) -> None:
        logger = self._run.get_logger()
        for name, value in values.items():
            title, _, series = name.partition("/") if measured else ("training", "", name)
            if isfinite(value):
                logger.report_scalar(title, series, value, step)

    def _name(self, name: str) -> str:
        return self._prefix + tag(name, self._group)


class SwanlabExporter(Tracker):
    """Logs to the process's SwanLab run, or begins a new one. SwanLab has one run per process.

    The step of measured values is the number of whole seconds since the first reading. Numbers that the program logged to the monitor
    keep their names and steps.

    Args:
        project: Project of a new run.
        run_name: Name of a new run.
        mode: SwanLab's mode of a new run: ``online``, ``local``, ``offline``; by default the one that SwanLab is configured with.
        directory: Directory for SwanLab's files of a new run.
        prefix: Prefix of every measured key.
        dialect: Metric names: a dialect's name, ``module:attribute``, or a :class:`~accelmetrics.dialects.contract.Dialect`.
        metrics: Metrics to export: see :class:`~accelmetrics.schemas.selection.MetricSelection`.

    Raises:
        MissingDependencyError: swanlab is not installed.
        UnknownNameError: There is no dialect with this name.
    """

    name = "swanlab"

    def __init__(
        self,
        *,
        project: str | None = None,
        run_name: str | None = None,
        mode: str | None = None,
        directory: str | None = None,
        prefix: str = "system/",
        dialect: str | Dialect = "wandb",
        metrics: MetricChoice = STANDARD,
    ) -> None:
        super().__init__(prefix, dialect, metrics)
        self._swanlab = require("swanlab", "swanlab")
        self._options = {"project": project, "name": run_name, "mode": mode, "log_dir": directory}

    def _program_run(self) -> Any:
        return self._swanlab.get_run() if self._swanlab.has_run() else None

    def _begin(self) -> Any:
        settings = self._swanlab.Settings
        return self._swanlab.init(**self._options, settings=settings(probe=settings.Probe(monitor=False)))

    def _tag(self, labels: Mapping[str, str]) -> None:
        self._run.config.update(labels)

    def _log(self, step: int, values: Mapping[str, int | float], measured: bool = False) -> None:
        if values and step >= 0:  # SwanLab has no negative steps
            self._run.log(values, step=step)


class TrackioExporter(Tracker):
    """Logs to a trackio run.

    Without ``run``, this is the run that is active on the thread that creates the exporter, or a new one. Measured values become the run's
    system metrics. Numbers that the program logged to the monitor keep their names and steps.

    Args:
        run: The program's run, as an object.
        project: Begin a new run in this project.
        run_name: Begin a new run with this name.
        prefix: Prefix of every measured key.
        dialect: Metric names: a dialect's name, ``module:attribute``, or a :class:`~accelmetrics.dialects.contract.Dialect`.
        metrics: Metrics to export: see :class:`~accelmetrics.schemas.selection.MetricSelection`.

    Raises:
        MissingDependencyError: trackio is not installed.
        UnknownNameError: There is no dialect with this name.
    """

    name = "trackio"

    def __init__(
        self,
        run: Any = None,
        *,
        project: str | None = None,
        run_name: str | None = None,
        prefix: str = "",
        dialect: str | Dialect = "wandb",
        metrics: MetricChoice = STANDARD,
    ) -> None:
        super().__init__(prefix, dialect, metrics)
        self._trackio = require("trackio", "trackio")
        apart = project is not None or run_name is not None
        self._joined = self._trackio.context_vars.current_run.get() if run is None and not apart else run
        self._options = {"project": project or "accelmetrics", "name": run_name}

    def _begin(self) -> Any:
        return self._trackio.init(**self._options, embed=False, auto_log_gpu=False, auto_log_cpu=False)

    def _tag(self, labels: Mapping[str, str]) -> None:
        self._run.config.update(labels)
        self._run.log({})  # transmits the configuration; trackio also lists only runs with a row

    def _log(self, step: int, values: Mapping[str, int | float], measured: bool = False) -> None:
        if measured:
            self._run.log_system(dict(values))
        else:
            self._run.log(dict(values), step=step)
