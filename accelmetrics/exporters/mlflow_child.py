"""The MLflow client, in a process of its own: joins a run or begins one, and logs batches."""

from __future__ import annotations

import atexit
from itertools import islice
from pathlib import Path
from typing import Any

import mlflow
from mlflow.entities import Metric, RunTag
from mlflow.exceptions import MlflowException
from mlflow.utils.file_utils import get_local_path_or_none

from accelmetrics.exporters.mlflow_files import MetricFiles, directory_of
from accelmetrics.exporters.tracker_room import need_room

BATCH = 1000
"""Metrics that MLflow takes at once."""
PASSING = frozenset({"TEMPORARILY_UNAVAILABLE", "REQUEST_LIMIT_EXCEEDED", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED", "ABORTED"})
"""MLflow's codes for a server that is away, overloaded or restarting; the others say that the request itself is wrong."""
UNKNOWN = "INTERNAL_ERROR"
"""MLflow's code for everything else: a connection that failed, a full disk, and also a value that no store can hold."""

_Logged = tuple[str, float, int, int]


class Session:
    """See :class:`accelmetrics.exporters.tracker_child.Session`."""

    failures: tuple[type[Exception], ...] = (MlflowException,)
    ending: tuple[type[Exception], ...] = ()

    def __init__(self) -> None:
        self._client: Any = None
        self._run_id = ""
        self._ours = False
        self._files: MetricFiles | None = None
        self._record = -1
        self._delivered = 0

    def passing(self, error: Exception) -> bool:
        """A server that is away or overloaded."""
        code = getattr(error, "error_code", "")
        return code in PASSING or (code == UNKNOWN and _of_the_system(error))

    def open(self, tracking_uri: str | None, experiment: str | None, run_name: str | None, run_id: str, ours: bool) -> dict[str, Any]:
        """Join the run that is named, or begin one."""
        if tracking_uri:
            mlflow.set_tracking_uri(tracking_uri)
        place = _directory()
        if place is not None:
            need_room(place)
        self._client = mlflow.MlflowClient()
        if run_id:
            run = self._known(run_id, place)
        else:
            if experiment:
                mlflow.set_experiment(experiment)
            run = mlflow.start_run(run_name=run_name, log_system_metrics=False)
            _leave_open()
        self._run_id, self._ours = run.info.run_id, ours or not run_id
        place = _directory()  # MLflow may just have made it
        files = place and directory_of(place, self._run_id)
        self._files = MetricFiles(files) if files else None
        return {"run_id": self._run_id, "start_time": run.info.start_time}

    def _known(self, run_id: str, place: Path | None) -> Any:
        """The run of this id. One that cannot be read, since a process was killed while it wrote, is mended."""
        try:
            return self._client.get_run(run_id)
        except MlflowException:
            files = place and directory_of(place, run_id)
            if not files:
                raise
            MetricFiles(files).mend()
            return self._client.get_run(run_id)

    def log(self, number: int, metrics: list[_Logged], tags: dict[str, str]) -> dict[str, Any]:
        """Log one record. One that is offered again under its number goes on where it broke off."""
        if number != self._record:
            self._record, self._delivered = number, 0
        if self._files is not None:
            self._files.need_room()
        if tags and not self._delivered:
            self._client.log_batch(self._run_id, tags=[RunTag(key, value) for key, value in tags.items()], synchronous=True)
        while batch := list(islice(metrics, self._delivered, self._delivered + BATCH)):
            self._write(batch)
            self._delivered += len(batch)
        return {}

    def _write(self, batch: list[_Logged]) -> None:
        names = {name for name, *_ in batch}
        if self._files is not None:
            self._files.prepare(names)
        self._client.log_batch(self._run_id, metrics=[Metric(*metric) for metric in batch], synchronous=True)
        if self._files is not None:
            self._files.written(names)

    def close(self) -> dict[str, Any]:
        """End the run if it is ours."""
        if self._ours:
            if self._files is not None:
                self._files.need_room()  # MLflow writes the run's description anew, and leaves it empty where it does not fit
            self._ours = False
            if mlflow.active_run() is not None:
                mlflow.end_run()
            else:  # begun by a process before this one
                self._client.set_terminated(self._run_id)
        return {}


def _directory() -> Path | None:
    """Where a store of files is; None for any other store, and where there is none yet."""
    place: str | None = get_local_path_or_none(mlflow.get_tracking_uri())  # type: ignore[no-untyped-call]
    return Path(place) if place is not None and Path(place).is_dir() else None


def _leave_open() -> None:
    """A run is ended by closing: MLflow would also do it at the end of the process, disk full or not."""
    fluent: Any = mlflow.tracking.fluent
    atexit.unregister(getattr(fluent, "_safe_end_run", fluent.end_run))


def _of_the_system(error: BaseException | None) -> bool:
    """Whether a failure was caused by one of the network or the operating system; those of ``requests`` are such ones."""
    while error is not None and not isinstance(error, OSError):
        error = error.__cause__ or error.__context__
    return error is not None
