"""Prints what a tracker's own store holds of the last run: `stored.py TRACKER`, in the folder in which it was written."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Row = tuple[str, int | None, float]
"""A name, a step and a value."""


def trackio() -> tuple[Iterator[Row], dict[str, Any]]:
    """Its database: system metrics have no step."""
    store = importlib.import_module("trackio.sqlite_storage").SQLiteStorage
    (project,) = store.get_projects()
    (run,) = store.get_runs(project)
    rows = [*store.get_logs(project, run), *store.get_system_logs(project, run)]
    beside = ("step", "timestamp")
    found = ((name, row.get("step"), value) for row in rows for name, value in row.items() if name not in beside)
    return found, store.get_run_config(project, run) or {}


def swanlab() -> tuple[Iterator[Row], dict[str, Any]]:
    """The records of its file."""
    import yaml

    (file,) = Path().rglob("run-*.swanlab")
    reader = importlib.import_module("swanlab.sdk.internal.core_python.store").DataStoreReader()
    message = importlib.import_module("swanlab.proto.swanlab.record.v1.record_pb2").Record
    reader.open(file)
    records = [message.FromString(raw) for raw in reader]
    config = yaml.safe_load((file.parent / "files" / "config.yaml").read_text()) or {}
    rows = ((one.scalar.key, one.scalar.step, one.scalar.value.number) for one in records if one.WhichOneof("record_type") == "scalar")
    return rows, {name: entry["value"] for name, entry in config.items()}


def aim() -> tuple[Iterator[Row], dict[str, Any]]:
    """Its repository, indexed as `aim up` does; the context stands before the name."""
    repository = importlib.import_module("aim").Repo(".")
    index = importlib.import_module("aim.sdk.index_manager").RepoIndexManager.get_index_manager(repository)
    for run in repository.list_all_runs():
        index.index(run)
    (found,) = importlib.import_module("aim").Repo(".").iter_runs()
    rows: list[Row] = []
    for metric in found.metrics():
        before = "".join(f"{part}:" for part in metric.context.to_dict().values())
        steps, (values, *_) = metric.data.items_list()
        rows += [(before + metric.name, step, value) for step, value in zip(steps, values, strict=True)]
    return iter(rows), found.get("labels", {})


def clearml() -> tuple[Iterator[Row], dict[str, Any]]:
    """The folder of a task that is offline."""
    (file,) = (Path.home() / ".clearml/cache/offline").glob("*/metrics.jsonl")
    events = [event for line in file.read_text().splitlines() for event in json.loads(line)]
    task = json.loads((file.parent / "task.json").read_text())
    parameters = (task.get("hyperparams") or {}).get("accelmetrics", {})
    labels = {name: entry["value"] for name, entry in parameters.items()}
    return ((f"{event['metric']}/{event['variant']}", event["iter"], event["value"]) for event in events), labels


if __name__ == "__main__":
    rows, labels = globals()[sys.argv[1]]()
    print(json.dumps({"rows": list(rows), "labels": labels}))
