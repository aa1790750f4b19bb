"""Programs around MLflow for the tests: one that has a run of its own, and one that prints what a store holds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]


class Stored(NamedTuple):
    """One run as its store has it: its status, tags, experiment, and by key the history of (value, timestamp, step)."""

    run_id: str
    name: str
    status: str
    experiment: str
    tags: dict[str, str]
    metrics: dict[str, list[list[float]]]


def environment(**more: str) -> dict[str, str]:
    """For MLflow without a network; its newest release wants to be asked for a store of files."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
    return {**kept, "MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_ALLOW_FILE_STORE": "true", "PYTHONPATH": str(ROOT), **more}


def run(directory: Path, *arguments: str, **more: str) -> str:
    """What this file prints as a program."""
    command = [sys.executable, "-m", "tests.exporters.mlflow_store", *arguments]
    done = subprocess.run(command, cwd=directory, env=environment(**more), capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr
    return done.stdout


def stored(directory: Path, uri: str) -> list[Stored]:
    """All runs of a store, oldest first."""
    return [Stored(**one) for one in json.loads(run(directory, "show", uri))]


def _show(uri: str) -> None:
    """Prints all runs, through MLflow's own client."""
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    experiments = {one.experiment_id: one.name for one in client.search_experiments()}
    found = client.search_runs(list(experiments), order_by=["attributes.start_time ASC"])
    sys.stdout.write(json.dumps([_shown(client, one, experiments)._asdict() for one in found]))


def _shown(client: Any, one: Any, experiments: dict[str, str]) -> Stored:
    run_id = one.info.run_id
    histories = {key: client.get_metric_history(run_id, key) for key in one.data.metrics}
    metrics = {key: [[each.value, each.timestamp, each.step] for each in history] for key, history in histories.items()}
    return Stored(run_id, one.info.run_name, one.info.status, experiments[one.info.experiment_id], one.data.tags, metrics)


def _log_beside(uri: str) -> None:
    """A program with a run, in which the exporter is made; its methods are called from another thread, as by a monitor."""
    import threading

    import mlflow

    from accelmetrics.exporters.registry import create
    from tests.records import record

    mlflow.set_tracking_uri(uri)
    with mlflow.start_run(run_name="theirs"):
        one, taken = create("mlflow"), record()

        def export() -> None:
            one.open()
            one.export(taken)
            one.export(taken)
            one.close()

        thread = threading.Thread(target=export)
        thread.start()
        for step in range(3):
            mlflow.log_metric("accuracy", step / 10, step=step)
        thread.join()
        mlflow.log_metric("accuracy", 1.0, step=3)


if __name__ == "__main__":
    {"show": _show, "beside": _log_beside}[sys.argv[1]](sys.argv[2])
