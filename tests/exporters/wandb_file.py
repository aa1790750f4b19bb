"""Reads back what a W&B run wrote to its `.wandb` file."""

from __future__ import annotations

import importlib
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from tests.differential.read_wandb import FILE_HEADER, records
from tests.support.waiting import wait_for

ROOT = Path(__file__).parents[2]


class Written(NamedTuple):
    """What is in a run's file: rows of history and of system metrics, in order; definitions by name; config; last summary."""

    history: list[dict[str, Any]]
    stats: list[dict[str, Any]]
    metrics: dict[str, dict[str, Any]]
    config: dict[str, Any]
    summary: dict[str, Any]
    finished: bool


def environment(directory: Path, **more: str) -> dict[str, str]:
    """For a program that uses W&B: no login, no network, no home but the directory."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    own = {"HOME": str(directory), "WANDB_ERROR_REPORTING": "false", "NETRC": str(directory / "netrc"), "PYTHONPATH": str(ROOT)}
    return {**kept, **own, **more}


def runs_by_file(directory: Path) -> dict[Path, Written]:
    """All runs whose files are below the directory, oldest first; W&B's process writes the end of a file after the run has finished."""
    files = sorted(directory.rglob("*.wandb"), key=lambda path: path.stat().st_mtime)
    wait_for(lambda: all(_written(file).finished for file in files), what="a run is not finished in its file")
    return {file: _written(file) for file in files}


def read(directory: Path) -> list[Written]:
    """The same without their names."""
    return list(runs_by_file(directory).values())


def _items(items: Any) -> dict[str, Any]:
    return {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items}


def _written(file: Path) -> Written:
    messages: Any = importlib.import_module("wandb.proto.wandb_internal_pb2")
    content = file.read_bytes()
    assert content.startswith(FILE_HEADER[: len(content)])
    found = Written([], [], {}, {}, {}, False)
    for raw in records(content):
        record = messages.Record()
        record.ParseFromString(raw)
        kind = record.WhichOneof("record_type")
        if kind == "history":
            found.history.append(_items(record.history.item))
        elif kind == "stats":
            at = record.stats.timestamp.ToNanoseconds()
            found.stats.append({"_time_ns": at, **{item.key: json.loads(item.value_json) for item in record.stats.item}})
        elif kind == "metric":
            found.metrics[record.metric.name] = {"axis": record.metric.step_metric, "hidden": record.metric.options.hidden}
        elif kind == "run":
            found.config.update(_items(record.run.config.update))
        elif kind == "config":
            found.config.update(_items(record.config.update))
        elif kind == "summary":
            found.summary.update(_items(record.summary.update))
        elif kind == "exit":
            found = found._replace(finished=True)
    return found
