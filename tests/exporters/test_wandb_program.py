"""Beside a program that logs to W&B itself, the exporter adds to its run and moves nothing in it. Read back from the run's file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.exporters.wandb_file import Written, environment, read

pytestmark = pytest.mark.peers

POWER = "system/gpu.0.powerWatts"
SECONDS = "accelmetrics/seconds"


def ran(directory: Path, *arguments: str, python: str | Path = sys.executable) -> Written:
    """What the program left behind."""
    directory.mkdir()
    command = [str(python), "-m", "tests.exporters.wandb_program", *arguments]
    shown = subprocess.run(command, cwd=directory, env=environment(directory), capture_output=True, text=True, timeout=100)
    assert shown.returncode == 0, shown.stderr
    (written,) = read(directory)
    return written


def theirs(written: Written) -> list[dict[str, Any]]:
    """The rows as the program logged them: its steps and values, without rows in which there is nothing of it."""
    kept = {"_step", "loss", "rate", "after"}
    own = [{key: value for key, value in row.items() if key in kept} for row in written.history]
    return [row for row in own if len(row) > 1]


@pytest.mark.parametrize("manner", ["explicit", "implicit", "committed"])
def test_the_programs_steps_are_the_same_with_and_without_us(tmp_path: Path, manner: str) -> None:
    """Every step and value of the program is in its history, at the step at which it is without an exporter."""
    alone = ran(tmp_path / "alone", manner)
    beside = ran(tmp_path / "beside", manner, "wandb")
    assert [row["loss"] for row in theirs(alone) if "loss" in row] == [1 / (number + 1) for number in range(0, 40, 2)]
    assert theirs(beside) == theirs(alone)
    assert beside.summary["loss"] == alone.summary["loss"]
    ours = [row for row in beside.history if POWER in row]
    assert len(ours) >= 15, "the readings come along with the program's rows"
    assert all(row[POWER] == 300.0 and row["system/gpu.1.gpu"] == 0 for row in ours)


def test_the_metrics_have_an_axis_of_their_own_and_stay_out_of_the_summary(tmp_path: Path) -> None:
    """Charts are drawn over our seconds, or the steps given to the monitor; the run's summary is the program's."""
    written = ran(tmp_path / "run", "explicit", "wandb")
    assert written.metrics[r"system/gpu\.0\.powerWatts"] == {"axis": SECONDS, "hidden": False}
    assert written.metrics["training/loss"]["axis"] == "training/step"
    assert not [key for key in written.summary if key.startswith(("system/", "accelmetrics"))]
    row = next(row for row in written.history if POWER in row)
    assert row["training/loss"] == 0.25 and row["training/step"] == 7
    assert -5 < row[SECONDS] < 30
    assert "system/gpu.1.fanSpeed" not in row, "what is missing stays absent"
    assert row["system/monitor.exporter.jsonl.dropped"] == 1
    assert "run_id" not in written.config, "labels are not for a config that is the program's"


def test_a_program_without_steps_of_its_own_can_have_every_reading_as_a_row(tmp_path: Path) -> None:
    """With `commit=true` each record is a row; nothing of it is left out."""
    written = ran(tmp_path / "run", "implicit", "wandb:?commit=true")
    readings = [row for row in written.history if POWER in row]
    trained = [row for row in written.history if "training/loss" in row]
    assert len(trained) >= len(readings) > 15


def test_readings_in_the_system_stream_leave_the_history_to_the_program(tmp_path: Path) -> None:
    """They are W&B's system metrics, under its keys, as those that its own collector would have published."""
    written = ran(tmp_path / "run", "explicit", "wandb:?stream=system")
    assert_in_the_system_stream(written)


def assert_in_the_system_stream(written: Written) -> None:
    """The program's rows are those that it logs alone; each reading is a record of W&B's system stream."""
    assert [row["loss"] for row in theirs(written) if "loss" in row] == [1 / (number + 1) for number in range(0, 40, 2)]
    assert not [key for row in written.history for key in row if key.endswith("powerWatts")]
    assert {row["training/loss"] for row in written.history if "training/loss" in row} == {0.25}
    assert len(written.stats) >= 15
    for row in written.stats:
        assert (row["gpu.0.powerWatts"], row["gpu.1.gpu"], row["monitor.ticks"]) == (300.0, 0, 10)
        assert "gpu.1.fanSpeed" not in row, "what is missing stays absent"
