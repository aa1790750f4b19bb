"""MLflow's stores on a disk that fills: the run stays readable, and holds every record that was taken."""

from __future__ import annotations

from pathlib import Path

import pytest

from accelmetrics.exporters.mlflow import MlflowExporter
from accelmetrics.exporters.mlflow_files import MetricFiles
from tests.exporters.mlflow_full import POWER, nothing_is_lost, numbered, quiet, small_disk
from tests.exporters.mlflow_store import stored
from tests.exporters.tracker_disk import fill

__all__ = ["quiet", "small_disk"]


def test_a_full_disk_loses_nothing_in_files(tmp_path: Path, small_disk: Path) -> None:
    """A record that does not fit is kept, and is there once when it is offered again after there is room."""
    exporter = MlflowExporter(tracking_uri=f"file://{small_disk}/mlruns", run_name="ours")
    nothing_is_lost(tmp_path, small_disk, exporter, f"file://{small_disk}/mlruns")


def test_a_run_in_files_is_not_ended_on_a_full_disk(tmp_path: Path, small_disk: Path) -> None:
    """MLflow would leave its description empty: it stays open, and readable, and that is told."""
    uri = f"file://{small_disk}/mlruns"
    exporter = MlflowExporter(tracking_uri=uri, run_name="ours")
    exporter.open()
    exporter.export(numbered(0))
    fill(small_disk)
    with pytest.raises(ConnectionError, match="No space left"):
        exporter.close()
    (found,) = stored(tmp_path, uri)
    assert found.status == "RUNNING" and found.metrics[f"system/{POWER}"][0][0] == 0


def test_half_a_line_of_a_process_that_was_killed_is_removed(tmp_path: Path) -> None:
    """The next process goes on behind the last whole line, also in files of metrics that no longer come."""
    uri = f"file://{tmp_path}/mlruns"
    exporter = MlflowExporter(tracking_uri=uri, run_name="ours")
    exporter.open()
    exporter.export(numbered(0))
    process = exporter._tracker._process
    assert process is not None
    process.kill()
    process.wait()
    (power,) = tmp_path.rglob(POWER)
    for name in (POWER, "no.longer"):
        with (power.parent / name).open("a") as file:
            file.write("17000")
    with pytest.raises(ConnectionError):
        exporter.export(numbered(1))
    exporter.export(numbered(1))
    exporter.close()
    (found,) = stored(tmp_path, uri)
    assert [value for value, _, _ in found.metrics[f"system/{POWER}"]] == [0, 1]
    assert "system/no.longer" not in found.metrics


def test_a_write_that_failed_is_mended_before_the_next(tmp_path: Path) -> None:
    """Only in the files of that write: what others write to a run that is not ours is left alone."""
    metrics = tmp_path / "metrics" / "system"
    metrics.mkdir(parents=True)
    for name in ("mine", "theirs"):
        (metrics / name).write_bytes(b"1 2 3\n4 5")
    files = MetricFiles(tmp_path)
    files.prepare({"system/mine", "system/new"})
    assert (metrics / "mine").read_bytes() == b"1 2 3\n"
    assert (metrics / "theirs").read_bytes() == b"1 2 3\n4 5"
    (metrics / "mine").write_bytes(b"1 2 3\n4 5 6\n7")
    (metrics / "new").write_bytes(b"")
    files.prepare({"system/other"})
    assert (metrics / "mine").read_bytes() == b"1 2 3\n4 5 6\n" and not (metrics / "new").exists()
    files.written({"system/other"})
    (metrics / "mine").write_bytes(b"1 2 3\n4 5")
    files.prepare({"system/other"})
    assert (metrics / "mine").read_bytes() == b"1 2 3\n4 5"
