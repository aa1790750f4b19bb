"""Exporter to MLflow. MLflow shows the measured values as system metrics of a run."""

from __future__ import annotations

import os
import posixpath
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from accelmetrics.dialects.contract import Dialect
from accelmetrics.exporters.fields import utf8
from accelmetrics.exporters.network import RejectedError
from accelmetrics.exporters.tracker import Tracker
from accelmetrics.schemas.errors import require, without_secrets
from accelmetrics.schemas.record import Record
from accelmetrics.schemas.selection import STANDARD, MetricChoice

BATCH = 1000
"""Maximum number of metrics that MLflow accepts in one request."""
MAX_NAME = 250
PASSING = frozenset({"TEMPORARILY_UNAVAILABLE", "REQUEST_LIMIT_EXCEEDED", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED", "ABORTED"})
"""MLflow's codes for a server that is unreachable, overloaded or restarting. Other codes mean that the request itself is wrong."""
UNKNOWN = "INTERNAL_ERROR"
"""MLflow's code for all other errors: a failed connection or a full disk, but also a value that the store cannot hold."""

_REFUSED = re.compile(r"[^/\w.\- ]" if os.name == "nt" else r"[^/\w.\- :]")


class MlflowExporter(Tracker):
    """Logs to an MLflow run.

    The run is, in this order: ``run_id``; the run that is active on the thread that creates the exporter; the run in ``MLFLOW_RUN_ID``;
    a new run. Measured values are logged under ``system/``, which MLflow shows as system metrics; their step is the number of whole seconds
    since the run began. Numbers that the program logged to the monitor keep their names and steps.

    Args:
        run_id: The run to log to.
        tracking_uri: The tracking server or store; by default the one that MLflow is configured with.
        experiment: Begin a new run in this experiment, which is created if it does not exist.
        run_name: Begin a new run with this name.
        prefix: Prefix of every measured key.
        dialect: Metric names: a dialect's name, ``module:attribute``, or a :class:`~accelmetrics.dialects.contract.Dialect`.
        metrics: Metrics to export: see :class:`~accelmetrics.schemas.selection.MetricSelection`.

    Raises:
        MissingDependencyError: mlflow is not installed.
        UnknownNameError: There is no dialect with this name.
    """

    name = "mlflow"

    def __init__(
        self,
        run_id: str = "",
        *,
        tracking_uri: str | None = None,
        experiment: str | None = None,
        run_name: str | None = None,
        prefix: str = "system/",
        dialect: str | Dialect = "wandb",
        metrics: MetricChoice = STANDARD,
    ) -> None:
        super().__init__(prefix, dialect, metrics)
        self._mlflow = require("mlflow", "mlflow")
        if not run_id and experiment is None and run_name is None:
            active = self._mlflow.active_run()
            run_id = active.info.run_id if active is not None else os.environ.get("MLFLOW_RUN_ID", "")
        self._uri = tracking_uri or self._mlflow.get_tracking_uri()
        self._experiment = experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME", "")
        self._run_name = run_name
        self._named = run_id
        self._run_id = ""
        self._client: Any = None
        # The record being delivered, and how many of its metrics have arrived: a retry continues after these.
        self._offered: Record | None = None
        self._delivered = 0

    def open(self) -> None:
        """Find the run, or begin a new one.

        Raises:
            ConnectionError: The tracking server is unreachable.
            RejectedError: The run does not exist, or MLflow refused the request.
        """
        from mlflow.tracking.context.registry import resolve_tags

        with self._translated():
            client = self._client = self._mlflow.MlflowClient(self._uri)
            if self._named:
                run = client.get_run(self._named)
            else:
                experiment = os.environ.get("MLFLOW_EXPERIMENT_ID", "0")
                if self._experiment:
                    found = client.get_experiment_by_name(self._experiment)
                    experiment = found.experiment_id if found is not None else client.create_experiment(self._experiment)
                run = client.create_run(experiment, run_name=self._run_name, tags=resolve_tags())
        self._run_id, self._began_ns = run.info.run_id, run.info.start_time * 1_000_000
        self._labels = {}

    def export(self, record: Record) -> None:
        """Log one record. A retry continues after the last batch that arrived.

        Raises:
            ConnectionError: The tracking server is unreachable, or the disk of a database is full.
            RejectedError: MLflow refused the request.
        """
        from mlflow.entities import Metric, RunTag

        if record is not self._offered:
            self._offered, self._delivered = record, 0
        metrics = [
            Metric(clean(name), value, time_ns // 1_000_000, step)
            for time_ns, step, values in self._rows(record)
            for name, value in values.items()
        ]
        with self._translated():
            if record.labels != self._labels:
                tags = [RunTag(clean(f"accelmetrics.{name}"), utf8(value)) for name, value in record.labels.items()]
                self._client.log_batch(self._run_id, tags=tags, synchronous=True)
                self._labels = record.labels
            while batch := metrics[self._delivered : self._delivered + BATCH]:
                self._client.log_batch(self._run_id, metrics=batch, synchronous=True)
                self._delivered += len(batch)
        self._offered = None

    def close(self) -> None:
        """End a run that this exporter began. The program's run continues.

        Raises:
            ConnectionError: The tracking server is unreachable: the run stays open there.
        """
        run_id, self._run_id = self._run_id, ""
        if run_id and not self._named:
            with self._translated():
                self._client.set_terminated(run_id)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Raise an error of MLflow in the block as ``ConnectionError`` if a retry may succeed, else as ``RejectedError``."""
        try:
            yield
        except self._mlflow.MlflowException as error:
            # MLflow's messages quote addresses completely, with passwords.
            code, message = getattr(error, "error_code", ""), without_secrets(f"MLflow: {error}")
            cause: BaseException | None = error
            while code == UNKNOWN and cause is not None and not isinstance(cause, OSError):  # errors of the package requests are OSErrors
                cause = cause.__cause__ or cause.__context__
            raise (ConnectionError if code in PASSING or isinstance(cause, OSError) else RejectedError)(message) from None


@lru_cache(maxsize=16384)
def clean(name: str) -> str:
    """Return a name that MLflow accepts: with its permitted characters, as a normalised path, and not longer than its limit."""
    fit = posixpath.normpath(_REFUSED.sub("_", name).lstrip("/"))
    if fit in (".", "..") or fit.startswith("../"):
        fit = fit.replace("..", "__").replace(".", "_")
    if len(fit) <= MAX_NAME:
        return fit
    # A checksum keeps cut names distinct.
    return f"{fit[: MAX_NAME - 9]}-{zlib.crc32(name.encode('utf-8', 'backslashreplace')):08x}"
