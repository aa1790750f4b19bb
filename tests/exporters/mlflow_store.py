"""What an MLflow store holds, read through MLflow's own client."""

from __future__ import annotations

import os
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
    metrics: dict[str, list[tuple[float, int, int]]]


def environment(**more: str) -> dict[str, str]:
    """For MLflow without a network; its newest release wants to be asked for a store of files."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
    return {**kept, "MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_ALLOW_FILE_STORE": "true", "PYTHONPATH": str(ROOT), **more}


def stored(uri: str) -> list[Stored]:
    """All runs of a store, oldest first."""
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    experiments = {one.experiment_id: one.name for one in client.search_experiments()}
    found = client.search_runs(list(experiments), order_by=["attributes.start_time ASC"])
    return [_stored(client, one, experiments) for one in found]


def _stored(client: Any, one: Any, experiments: dict[str, str]) -> Stored:
    run_id = one.info.run_id
    histories = {key: client.get_metric_history(run_id, key) for key in one.data.metrics}
    metrics = {key: [(each.value, each.timestamp, each.step) for each in history] for key, history in histories.items()}
    return Stored(run_id, one.info.run_name, one.info.status, experiments[one.info.experiment_id], one.data.tags, metrics)
