"""Files and trackers that were not told their metrics: ``standard``, and what the monitor was told to read by choice."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from accelmetrics import Monitor
from accelmetrics.exporters import registry
from accelmetrics.schemas.recording import read_records
from accelmetrics.schemas.selection import STANDARD, MetricSelection
from accelmetrics.testing import FakeBackend
from tests.exporters import mlflow_store, wandb_file
from tests.exporters.files_tools import rows
from tests.support.waiting import HANG, wait_for

NAMED = {"gpu.0.smActive": 61.5, "gpu.0.nvlink.0.state": 1}
"""Neither is in ``standard``."""
PATIENT = 60.0
"""Seconds for a tracker to begin and to end."""


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No tracker has an account, a network, or another home than the test's directory; W&B's service process ends with the test."""
    for name, value in {**wandb_file.environment(tmp_path), **mlflow_store.environment()}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MLFLOW_RUN_ID", raising=False)
    monkeypatch.delenv("WANDB_SERVICE", raising=False)
    monkeypatch.chdir(tmp_path)
    hooks = sys.exit, sys.excepthook
    yield
    if "wandb" in sys.modules:
        sys.modules["wandb"].teardown()
        sys.exit, sys.excepthook = hooks


def machine() -> FakeBackend:
    backend = FakeBackend("nvidia", devices=1)
    backend.device(0).set(powerWatts=300.0, gpu=85.5, **{key.removeprefix("gpu.0."): value for key, value in NAMED.items()})
    return backend


def in_jsonl(place: Path) -> dict[str, Any]:
    return dict(next(iter(read_records(place / "run.jsonl"))).snapshot.metrics)


def in_csv(place: Path) -> dict[str, Any]:
    return {key: float(value) for key, value in rows(place / "run.csv")[0].items() if key.startswith("gpu.")}


def in_tensorboard(place: Path) -> dict[str, Any]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(place / "system"), size_guidance={"scalars": 0}).Reload()
    return {name.replace("/", "."): found.Scalars(name)[0].value for name in found.Tags()["scalars"]}


def in_mlflow(place: Path) -> dict[str, Any]:
    (run,) = mlflow_store.stored(f"file://{place}/mlruns")
    return {key.removeprefix("system/"): history[0][0] for key, history in run.metrics.items()}


def in_wandb(place: Path) -> dict[str, Any]:
    (run,) = wandb_file.read(place / "runs")
    (first, *_) = (row for row in run.history if any(key.startswith("system/gpu.") for key in row))
    return {key.removeprefix("system/"): value for key, value in first.items()}


KINDS: dict[str, tuple[str, Callable[[Path], dict[str, Any]]]] = {
    "jsonl": ("jsonl:{}/run.jsonl", in_jsonl),
    "csv": ("csv:{}/run.csv", in_csv),
    "tensorboard": ("tensorboard:{}", in_tensorboard),
    "mlflow": ("mlflow:?tracking_uri=file://{}/mlruns", in_mlflow),
    "wandb": ("wandb:?mode=offline&directory=runs", in_wandb),
}
"""By exporter, its string and the device's values of its first record; ``training-files`` has no columns that are not in ``standard``."""


def written(kind: str, place: Path, option: str = "", **read: Any) -> dict[str, Any]:
    """Return the device's metrics that an exporter of a kind has written."""
    target, found = KINDS[kind]
    target = target.format(place)
    with Monitor(0.05, [f"{target}{'&' if '?' in target else '?'}{option}"], backends=[machine()], timeout=HANG, **read) as monitor:
        (exporter,) = wait_for(lambda: [one for one in monitor.status.exporters if one.sent])
        monitor.stop(PATIENT)
    assert not exporter.error
    return {key: value for key, value in found(place).items() if key.startswith("gpu.")}


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=pytest.mark.peers) if kind in {"mlflow", "wandb"} else kind for kind in KINDS])
def test_what_was_asked_for_by_name_is_written(kind: str, tmp_path: Path) -> None:
    assert written(kind, tmp_path, metrics=["smActive", "gpu.0.nvlink.*"]) == NAMED


@pytest.mark.parametrize(
    ("read", "option", "keys"),
    [
        ("all", "", {"gpu.0.powerWatts", "gpu.0.gpu"}),
        ("-gpu", "", {"gpu.0.powerWatts"}),
        ("all,smActive", "", {"gpu.0.powerWatts", "gpu.0.gpu", "gpu.0.smActive"}),
        ("wandb,-powerWatts", "", {"gpu.0.gpu", "gpu.0.smActive"}),
        ("all,smActive", "metrics=standard", {"gpu.0.powerWatts", "gpu.0.gpu"}),
        ("smActive,powerWatts", "metrics=core", {"gpu.0.powerWatts"}),
    ],
)
def test_a_default_gives_way_and_a_choice_does_not(tmp_path: Path, read: str, option: str, keys: set[str]) -> None:
    """``all`` and what is excluded ask for nothing by name; what the exporter was told is what it gets."""
    assert set(written("jsonl", tmp_path, option, metrics=read)) == keys


def test_each_exporter_with_a_preset_of_its_own_has_it_as_a_default(tmp_path: Path) -> None:
    """A monitor that is told nothing gives each of them ``standard``."""
    for kind in (*KINDS, "training-files"):
        target = KINDS[kind][0].format(tmp_path) if kind in KINDS else f"training-files:{tmp_path}"
        chosen = registry.create(target).metrics  # type: ignore[attr-defined]
        assert chosen == STANDARD and chosen.default, kind
        assert chosen.widened(MetricSelection()) == STANDARD
