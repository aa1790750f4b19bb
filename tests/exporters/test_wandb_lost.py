"""W&B's own process is killed, or its disk fills: the run goes on in another file, and what is lost can be counted."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from accelmetrics.exporters.wandb import WandbExporter
from accelmetrics.exporters.wandb_disk import MOST_WAITING, RunFile
from tests.exporters.tracker_disk import fill, mounted
from tests.exporters.wandb_file import read
from tests.exporters.wandb_quiet import nobody_logged_in
from tests.records import record

__all__ = ["nobody_logged_in"]

POWER = "system/gpu.0.powerWatts"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 6 MiB."""
    with mounted(tmp_path / "small", "6m") as place:
        yield place


def readings(directory: Path) -> list[int]:
    """How many rows with a reading each run has, oldest first."""
    return [len([row for row in run.history if POWER in row]) for run in read(directory)]


def logged(exporter: WandbExporter, count: int) -> int:
    """Log so many records."""
    for _ in range(count):
        exporter.export(record(steps=False))
    return count


def kill_service(exporter: WandbExporter) -> None:
    """Kill W&B's process that keeps the exporter's run; nobody waits for it, so that its entry stays."""
    process = exporter._tracker._process
    assert process is not None
    (core,) = psutil.Process(process.pid).children(recursive=True)
    assert "wandb-core" in " ".join(core.cmdline())
    core.kill()
    due = time.monotonic() + 5
    while core.is_running() and core.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < due
        time.sleep(0.01)


def test_its_service_process_is_replaced_when_killed(tmp_path: Path) -> None:
    """The run is begun anew, offline; every record from then on is in it, and of those before only W&B's last block is lost."""
    exporter = WandbExporter(project="hw", mode="offline", directory=str(tmp_path))
    exporter.open()
    logged(exporter, 60)
    kill_service(exporter)
    with pytest.raises(ConnectionError, match="Weights & Biases: Connection lost"):
        logged(exporter, 1)
    logged(exporter, 20)
    exporter.close()
    before, after = readings(tmp_path)
    assert 20 < before <= 60 and after == 20


def test_closing_after_its_service_process_was_killed_is_told(tmp_path: Path) -> None:
    """What could not be finished is an error, and no process stays."""
    exporter = WandbExporter(project="hw", mode="offline", directory=str(tmp_path))
    exporter.open()
    process = exporter._tracker._process
    kill_service(exporter)
    with pytest.raises(ConnectionError, match="Weights & Biases: "):
        exporter.close()
    assert process is not None and process.poll() is not None


def test_a_full_disk_loses_no_row(small_disk: Path) -> None:
    """A record that may not fit is kept; when there is room it goes into a run begun anew, and all that were taken are there."""
    exporter = WandbExporter(project="hw", mode="offline", directory=str(small_disk))
    exporter.open()
    taken = logged(exporter, 30)
    filler = fill(small_disk)
    for _ in range(5):
        with pytest.raises(ConnectionError, match="No space left"):
            logged(exporter, 1)
    filler.unlink()
    with pytest.raises(ConnectionError, match="the run is begun anew"):
        logged(exporter, 1)
    taken += logged(exporter, 30)
    exporter.close()
    assert readings(small_disk) == [30, 30]
    assert taken == 60


def test_a_run_does_not_begin_or_end_unnoticed_on_a_full_disk(small_disk: Path) -> None:
    """Neither is taken for done: beginning is tried again by the next record, and the end says what is amiss."""
    exporter = WandbExporter(project="hw", mode="offline", directory=str(small_disk))
    filler = fill(small_disk)
    with pytest.raises(ConnectionError, match="No space left"):
        exporter.open()
    filler.unlink()
    logged(exporter, 3)
    fill(small_disk)
    with pytest.raises(ConnectionError, match="No space left"):
        exporter.close()


def test_a_file_that_no_longer_grows_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where W&B's process no longer writes for another reason, that is seen by the file's size, after some time."""
    path = tmp_path / "run.wandb"
    assert RunFile(path).writes(MOST_WAITING * 2), "a run that is disabled has no file"
    path.write_bytes(b"block")
    file = RunFile(path)
    assert file.writes(MOST_WAITING * 2)
    assert file.writes(1), "it is given time"
    monkeypatch.setattr("accelmetrics.exporters.wandb_disk.PATIENCE_SECONDS", 0.0)
    assert not file.writes(1)
    path.write_bytes(b"another block")
    assert file.writes(1)
