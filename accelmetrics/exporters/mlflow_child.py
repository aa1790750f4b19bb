"""The MLflow client, in a process of its own: joins a run or begins one, and logs batches."""

from __future__ import annotations

from itertools import islice
from typing import Any

import mlflow
from mlflow.entities import Metric, RunTag
from mlflow.exceptions import MlflowException

BATCH = 1000
"""Metrics that MLflow takes at once."""
PASSING = frozenset({"TEMPORARILY_UNAVAILABLE", "REQUEST_LIMIT_EXCEEDED", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED", "ABORTED"})
"""MLflow's codes for a server that is away, overloaded or restarting; the others say that the request itself is wrong."""
UNKNOWN = "INTERNAL_ERROR"
"""MLflow's code for everything else: a connection that failed, a full disk, and also a value that no store can hold."""


class Session:
    """See :class:`accelmetrics.exporters.tracker_child.Session`."""

    failures: tuple[type[Exception], ...] = (MlflowException,)

    def __init__(self) -> None:
        self._client: Any = None
        self._run_id = ""
        self._ours = False
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
        self._client = mlflow.MlflowClient()
        if run_id:
            run = self._client.get_run(run_id)
        else:
            if experiment:
                mlflow.set_experiment(experiment)
            run = mlflow.start_run(run_name=run_name, log_system_metrics=False)
        self._run_id, self._ours = run.info.run_id, ours or not run_id
        return {"run_id": self._run_id, "start_time": run.info.start_time}

    def log(self, number: int, metrics: list[tuple[str, float, int, int]], tags: dict[str, str]) -> dict[str, Any]:
        """Log one record. One that is offered again under its number goes on where it broke off."""
        if number != self._record:
            self._record, self._delivered = number, 0
        if tags and not self._delivered:
            self._client.log_batch(self._run_id, tags=[RunTag(key, value) for key, value in tags.items()], synchronous=True)
        while batch := list(islice(metrics, self._delivered, self._delivered + BATCH)):
            self._client.log_batch(self._run_id, metrics=[Metric(*metric) for metric in batch], synchronous=True)
            self._delivered += len(batch)
        return {}

    def close(self) -> dict[str, Any]:
        """End the run if it is ours."""
        if self._ours:
            self._ours = False
            if mlflow.active_run() is not None:
                mlflow.end_run()
            else:  # begun by a process before this one
                self._client.set_terminated(self._run_id)
        return {}


def _of_the_system(error: BaseException | None) -> bool:
    """Whether a failure was caused by one of the network or the operating system; those of ``requests`` are such ones."""
    while error is not None and not isinstance(error, OSError):
        error = error.__cause__ or error.__context__
    return error is not None
