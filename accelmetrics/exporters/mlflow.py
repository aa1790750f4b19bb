"""MLflow: the system metrics of a run, where MLflow shows its own."""

from __future__ import annotations

import os
import posixpath
import re
import sys
import zlib
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from accelmetrics.exporters.tracker import Tracker, need, written
from accelmetrics.schemas.record import Record, Step

OPEN_SECONDS = 30.0
LOG_SECONDS = 10.0
CLOSE_SECONDS = 10.0
"""How long a run may take to be joined or begun, to take one record, and to end."""

ENVIRONMENT = {
    # MLflow's client reads its limits here: two minutes a request and seven tries, unless told otherwise.
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "5",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_RUN_ID": None,
}
TAGS = "accelmetrics."
"""Before the name of a label that becomes a tag of the run."""
MAX_NAME = 250

_REFUSED = re.compile(r"[^/\w.\- ]" if os.name == "nt" else r"[^/\w.\- :]")
_Logged = tuple[str, "int | float", int, int]


class MlflowExporter:
    """Logs to an MLflow run.

    Into the run that is named; else the one that is active where the exporter is made (MLflow keeps it for each thread), or
    that ``MLFLOW_RUN_ID`` names; else one of ours. What is measured stands under ``system/``, which MLflow shows as system
    metrics, at steps that are whole seconds since the run began; what the program logged to the monitor stands under its own
    names at its own steps.

    Args:
        run_id: The run to log into.
        tracking_uri: Where MLflow keeps it; what MLflow is configured to use unless given.
        experiment: Begin a run of ours in this experiment, made if need be.
        run_name: Begin a run of ours with this name.
        prefix: Before every key that is measured.

    Raises:
        MissingDependencyError: mlflow is not installed.
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
    ) -> None:
        need("mlflow")
        program = sys.modules.get("mlflow")
        if not run_id and experiment is None and run_name is None:
            run_id = _active_run(program) or os.environ.get("MLFLOW_RUN_ID", "")
        if tracking_uri is None and program is not None:
            tracking_uri = program.get_tracking_uri()
        self._options = {"tracking_uri": tracking_uri, "experiment": experiment, "run_name": run_name}
        self._named = run_id
        self._run_id = run_id
        self._began_ms = 0
        self._prefix = prefix
        self._tracker = Tracker("MLflow", "accelmetrics.exporters.mlflow_child", ENVIRONMENT)
        self._labels: dict[str, str] = {}
        self._offered: Record | None = None
        self._number = 0

    def open(self) -> None:
        """Join the run, or begin one.

        Raises:
            ConnectionError: The tracking server is away.
            TimeoutError: It did not answer in time.
            RejectedError: There is no such run, or MLflow refused.
        """
        arguments = {**self._options, "run_id": self._run_id, "ours": not self._named}
        joined = self._tracker.begin(arguments, OPEN_SECONDS)
        self._run_id, self._began_ms = joined["run_id"], joined["start_time"]
        self._labels = {}

    def export(self, record: Record) -> None:
        """Log one record.

        Raises:
            ConnectionError: The tracking server is away, or the process that speaks to it is, or the disk of a store of files is
                full; all are tried again.
            TimeoutError: It did not answer in time.
            RejectedError: MLflow refused.
        """
        if not self._tracker.running:
            self.open()
        labels = dict(record.labels)
        tags = {} if labels == self._labels else {clean(f"{TAGS}{name}"): written(value) for name, value in labels.items()}
        if record is not self._offered:
            self._offered = record
            self._number += 1
        arguments = {"number": self._number, "metrics": list(self._metrics(record)), "tags": tags}
        self._tracker.request("log", arguments, LOG_SECONDS)
        self._labels = labels
        self._offered = None

    def _metrics(self, record: Record) -> Iterator[_Logged]:
        for step in record.steps:
            yield from self._training(step)
        time_ms = record.snapshot.time_ns // 1_000_000
        second = self._second(time_ms)
        for key, value in record.snapshot.metrics.items():
            yield clean(f"{self._prefix}{key}"), value, time_ms, second
        if record.monitor is not None:
            for key, value in record.monitor.flat().items():
                yield clean(f"{self._prefix}{key}"), value, time_ms, second

    def _training(self, step: Step) -> Iterator[_Logged]:
        time_ms = step.time_ns // 1_000_000
        # MLflow has 64 bits for a step: one beyond them is none.
        number = self._second(time_ms) if step.step is None or not -(2**63) <= step.step < 2**63 else step.step
        for name, value in step.values.items():
            yield clean(name), value, time_ms, number

    def _second(self, time_ms: int) -> int:
        return max(0, time_ms - self._began_ms) // 1000

    def flush(self) -> None:
        """Nothing waits here: every record is with MLflow when its export ends."""

    def close(self) -> None:
        """End the run if it is ours; the program's goes on.

        Raises:
            OSError: MLflow is away: the run stays open there.
        """
        self._run_id = self._named
        try:
            if self._tracker.running:
                self._tracker.request("close", {}, CLOSE_SECONDS)
        finally:
            self._tracker.stop()


def _active_run(program: Any) -> str:
    """The run that is active in this thread; a program that has not loaded MLflow has none."""
    run = program.active_run() if program is not None else None
    return "" if run is None else str(run.info.run_id)


@lru_cache(maxsize=16384)
def clean(name: str) -> str:
    """A name that MLflow takes: its letters, a path without detours, and no longer than it allows."""
    fit = posixpath.normpath(_REFUSED.sub("_", name).lstrip("/"))
    if fit in (".", "..") or fit.startswith("../"):
        fit = fit.replace("..", "__").replace(".", "_")
    if len(fit) <= MAX_NAME:
        return fit
    return f"{fit[: MAX_NAME - 9]}-{zlib.crc32(name.encode('utf-8', 'backslashreplace')):08x}"
