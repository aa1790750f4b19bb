"""Experiment trackers: whose names the metrics have, and at which steps a run holds them; Aim, ClearML, SwanLab and trackio.

Those with more to do have files of their own: MLflow, TensorBoard, Weights & Biases.
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
"""What a tracker's exporter is given by default if its client takes one number a call: ClearML takes 1.8 s for `standard` of 8 H100s."""

_OF_DEVICE = re.compile(rf"(\w+(?:\.process)?\.\d+(?:\.{PARTITION}\.\d+)?)\.(.+)", re.DOTALL)


class Tracker:
    """A run of an experiment tracker: the program's, or one of ours.

    ``_program_run``, ``_begin``, ``_end``, ``_tag`` and ``_log`` are all that a tracker needs whose client takes a number at a time.
    One that is to have a record whole or in order overrides ``export``.

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
        # Keys of ours that name no device are the host's; those of another monitor may be anything.
        self._group = "host" if self._dialect.name.startswith("wandb") else self._dialect.name
        self.metrics = MetricSelection(metrics)
        self._run: Any = None
        self._joined: Any = None  # the program's run, where it is known from the start
        self._ours = False
        self._began_ns = 0
        self._labels: Mapping[str, str] = {}

    def open(self) -> None:
        """Join the program's run, or begin one."""
        joined = self._program_run()
        self._ours = joined is None
        self._run = self._begin() if joined is None else joined
        self._began_ns, self._labels = 0, {}

    def export(self, record: Record) -> None:
        """Log one record: the program's steps, then what was measured. A run of ours is told the labels too."""
        self._began_ns = self._began_ns or record.snapshot.time_ns  # it may have waited while the client was loaded
        if self._ours and record.labels != self._labels:
            self._tag({utf8(name): utf8(text) for name, text in record.labels.items()})
            self._labels = record.labels
        *steps, (_, step, values) = self._rows(record)
        for _, number, logged in steps:
            self._log(number, logged)
        self._log(step, values, measured=True)

    def flush(self) -> None:
        """Return at once: the tracker's own client has every record when its export ends."""

    def close(self) -> None:
        """Finish the run if it is ours; the program's goes on."""
        run, self._run = self._run, None
        if self._ours and run is not None:
            self._ours = False
            self._end(run)

    def _program_run(self) -> Any:
        """Return the run to log into; None where one is to be begun."""
        return self._joined

    def _begin(self) -> Any:
        """Begin a run of ours."""
        raise NotImplementedError

    def _end(self, run: Any) -> None:
        """Finish a run of ours."""
        run.finish()

    def _tag(self, labels: Mapping[str, str]) -> None:
        """Tell a run of ours its labels."""
        raise NotImplementedError

    def _log(self, step: int, values: Mapping[str, int | float], measured: bool = False) -> None:
        """Log numbers at a step: those of the program, or what was measured."""
        raise NotImplementedError

    def _rows(self, record: Record) -> Iterator[tuple[int, int, dict[str, int | float]]]:
        """Yield when, in nanoseconds since 1970, at which step and what: a row for each step of the program, then what was measured.

        A step that has no number of its own, or none that has room, stands at whole seconds since the run began, as readings do.
        """
        for step in record.own_steps:
            own = step.step is not None and -INT64 <= step.step < INT64
            number = step.step if own and step.step is not None else self._seconds(step.time_ns)
            yield step.time_ns, number, {utf8(name): value for name, value in step.values.items()}
        time_ns = record.snapshot.time_ns
        yield time_ns, self._seconds(time_ns), self._measured(record)

    def _measured(self, record: Record) -> dict[str, int | float]:
        """Return the metrics under the dialect's names, and the monitor's own counters."""
        found = {**self._dialect.flat(record), **(record.monitor.flat() if record.monitor is not None else {})}
        return {self._name(name): value for name, value in found.items()}

    def _name(self, name: str) -> str:
        """Return what the run calls a measured number."""
        return f"{self._prefix}{utf8(name)}"

    def _seconds(self, time_ns: int) -> int:
        """Return the whole seconds since the run began; 0 where a clock was set back."""
        return max(0, time_ns - self._began_ns) // 1_000_000_000


@lru_cache(maxsize=16384)
def tag(key: str, group: str = "host") -> str:
    """Turn a key into a tag: the device, or what else has a number, before the slash at which TensorBoard groups; else the group."""
    key = utf8(key)
    if found := _OF_DEVICE.fullmatch(key):
        return f"{found[1]}/{found[2]}"
    head, _, rest = key.partition(".")
    return f"{head}/{rest}" if head == "monitor" else f"{group}/{key}"


class AimExporter(Tracker):
    """Logs to an Aim run: the program's, which is given as an object, or one of ours.

    What is measured stands at whole seconds since the first reading, in the context ``{"subset": "system"}``; what the program
    logged to the monitor stands under its own names at its own steps.

    Args:
        run: The program's run, as an object. Aim lets one process write to a run, so that no other can be gone on with.
        repo: Where Aim keeps a run of ours: a directory or ``aim://HOST:PORT``; the working directory unless given.
        experiment: The experiment of a run of ours.
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
            self._run.track(float(value), name=name, step=step, context=context)  # a metric's values are of one type


_CONNECTED = (
    *("catboost", "detect_repository", "fastai", "gradio", "hydra", "joblib", "lightgbm", "matplotlib", "megengine", "pytorch", "scikit"),
    *("tensorboard", "tensorflow", "xgboost"),
)
"""What ClearML does to a program beside logging. ``auto_connect_frameworks=False`` leaves ``detect_repository`` on: it runs git while
ClearML forks its reporter, which may inherit the pipe on which starting git waits, and ``Task.close`` then hangs for 300 s."""


class ClearmlExporter(Tracker):
    """Logs to the process's ClearML task; where there is none, one of ours is begun. ClearML has one task a process.

    A plot is a device (``gpu.0``) and its series are the metrics, at whole seconds since the first reading. What the program
    logged to the monitor stands under ``training`` at its own steps. ClearML takes numbers that are not finite for 0: they are left out.

    Args:
        project: The project of a task of ours.
        task_name: The name of a task of ours.
        prefix: Before the title of every plot that is measured.
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
        task.set_random_seed(None)  # a new task would seed the program's random numbers, in the middle of a training
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
    """Logs to the process's SwanLab run; where there is none, one of ours is begun. SwanLab has one run a process.

    What is measured stands at whole seconds since the first reading; what the program logged to the monitor stands under its own
    names at its own steps.

    Args:
        project: The project of a run of ours.
        run_name: The name of a run of ours.
        mode: SwanLab's: ``online``, ``local``, ``offline``; what SwanLab is configured to do unless given. For a run of ours.
        directory: Where SwanLab keeps the files of a run of ours.
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
        if values and step >= 0:  # SwanLab has no other steps
            self._run.log(values, step=step)


class TrackioExporter(Tracker):
    """Logs to a trackio run.

    Into the one that is active where the exporter is made (trackio keeps it for each thread), or else one of ours. What is measured
    becomes the run's system metrics; what the program logged to the monitor stands under its own names at its own steps.

    Args:
        run: The program's run, as an object.
        project: Begin a run of ours in this project.
        run_name: Begin a run of ours with this name.
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
        self._run.log({})  # takes the configuration along; and without a row trackio lists no run

    def _log(self, step: int, values: Mapping[str, int | float], measured: bool = False) -> None:
        if measured:
            self._run.log_system(dict(values))
        else:
            self._run.log(dict(values), step=step)
