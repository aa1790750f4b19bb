"""What a training run left with trackers, read back with the trackers' own code."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray

from tests.exporters.mlflow_store import stored
from tests.exporters.wandb_file import runs_by_file
from tests.frameworks.programs import OFFLINE


def tensorboard_rows(folder: Path) -> dict[int, dict[str, float]]:
    """By step, the scalars below a folder; of several runs in one folder those of the last one stand."""
    rows: dict[int, dict[str, float]] = {}
    for path in sorted({file.parent for file in folder.rglob("events.out.*")}):
        events = EventAccumulator(str(path), size_guidance={"scalars": 0})
        events.Reload()
        for name in events.Tags()["scalars"]:
            for scalar in events.Scalars(name):
                rows.setdefault(scalar.step, {})[name] = scalar.value
        for name in events.Tags()["tensors"]:
            for tensor in events.Tensors(name):
                value = make_ndarray(tensor.tensor_proto)
                if value.dtype.kind == "f":  # scalars of the newer kind; texts are tensors too
                    rows.setdefault(tensor.step, {})[name] = float(value)
    return rows


def wandb_rows(folder: Path) -> list[dict[str, Any]]:
    """The history of the one W&B run below a folder."""
    (written,) = runs_by_file(folder).values()
    return written.history


def mlflow_steps(store: Path, metric: str = "system/readings") -> list[list[int]]:
    """The steps at which each run of a store of files has a metric, oldest run first."""
    with patch.dict(os.environ, OFFLINE):
        return [[step for _, _, step in run.metrics.get(metric, [])] for run in stored(store.as_uri())]


def of_devices(row: dict[str, Any], prefix: str = "system/") -> dict[str, float]:
    """The part of a tracker's row that is ours, by key."""
    return {name.partition(prefix)[2]: value for name, value in row.items() if prefix in name}
