"""What must be true of each of MLflow's stores on a disk that fills."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from accelmetrics.exporters.mlflow import MlflowExporter
from accelmetrics.schemas.record import Record
from accelmetrics.schemas.snapshot import Snapshot
from tests.exporters.mlflow_store import environment, stored
from tests.exporters.tracker_disk import fill, mounted

POWER = "gpu.0.powerWatts"


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each test of a module that imports this has MLflow without a network, in a directory of its own."""
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MLFLOW_RUN_ID", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 12 MiB."""
    with mounted(tmp_path / "small", "12m") as place:
        yield place


def numbered(number: int) -> Record:
    """A record with 40 metrics that have its number for a value."""
    names = [POWER, *(f"cpu.{core}.cpu_percent" for core in range(39))]
    return Record(Snapshot(time.time_ns(), "node-1", dict.fromkeys(names, number)))


def until_full(exporter: MlflowExporter, begin: int) -> int:
    """Log until that fails, since a page may have room for some more; the number of the record that failed."""
    for number in range(begin, begin + 400):
        try:
            exporter.export(numbered(number))
        except ConnectionError as error:
            assert "No space left" in str(error) or "disk is full" in str(error)
            return number
    raise AssertionError("the disk never filled")


def nothing_is_lost(tmp_path: Path, small_disk: Path, exporter: MlflowExporter, uri: str) -> None:
    """Records before, while and after the disk is full: each is there once, and the run is ended."""
    began = time.time() * 1000 - 1
    exporter.open()
    for number in range(5):
        exporter.export(numbered(number))
    filler = fill(small_disk)
    failed = until_full(exporter, 5)
    with pytest.raises(ConnectionError):
        exporter.export(numbered(failed))
    filler.unlink()
    for number in range(failed, failed + 5):
        exporter.export(numbered(number))
    exporter.close()
    (found,) = stored(tmp_path, uri)
    assert found.status == "FINISHED"
    assert [value for value, _, _ in found.metrics[f"system/{POWER}"]] == list(range(failed + 5))
    times = [at for history in found.metrics.values() for _, at, _ in history]
    assert began <= min(times) <= max(times) <= time.time() * 1000, "what is added to half a line may look like a whole one"
    assert {len(history) for history in found.metrics.values()} == {failed + 5}
