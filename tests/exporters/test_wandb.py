"""A run of ours: begun offline, read back from its file; refused in one line where nobody is logged in."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from accelmetrics.exporters.registry import create
from accelmetrics.exporters.rejected import RejectedError
from accelmetrics.exporters.wandb import WandbExporter
from accelmetrics.schemas.errors import InvalidOptionError, MissingDependencyError
from tests.exporters.wandb_file import environment, read, runs_by_file
from tests.exporters.wandb_quiet import nobody_logged_in
from tests.records import LABELS, record

__all__ = ["nobody_logged_in"]

POWER = "system/gpu.0.powerWatts"


def test_every_reading_is_a_row_of_a_run_of_ours(tmp_path: Path) -> None:
    """Project, labels and prefix arrive; steps and readings are rows; closing finishes the run."""
    before = "wandb" in sys.modules
    exporter = create("wandb:?project=team/hw&name=node-1&group=night&mode=offline&directory=runs&prefix=hw/")
    taken = record()
    exporter.open()
    for _ in range(3):
        exporter.export(taken)
    exporter.flush()
    exporter.close()
    (written,) = read(tmp_path / "runs")
    readings = [row for row in written.history if "hw/gpu.0.powerWatts" in row]
    assert [row["_step"] for row in readings] == [1, 3, 5]
    for row in readings:
        expected = {f"hw/{key}": value for key, value in taken.snapshot.metrics.items()}
        assert {key: value for key, value in row.items() if key in expected} == expected
    assert [row["training/loss"] for row in written.history if "training/loss" in row] == [0.25] * 3
    assert {key: written.config[key] for key in LABELS} == LABELS
    assert written.finished and not written.stats
    assert ("wandb" in sys.modules) == before, "W&B's library stays out of this process"


def test_a_run_of_ours_is_never_the_programs(tmp_path: Path) -> None:
    """Begun before the program's run and ended after it, it is not what `wandb.init` gives back, nor is its id the program's."""
    code = (
        "import wandb; from accelmetrics.exporters.registry import create; from tests.records import record\n"
        "one = create('wandb:?project=ours&mode=offline'); one.open(); one.export(record())\n"
        "run = wandb.init(mode='offline', project='theirs', settings=wandb.Settings(silent=True, x_disable_stats=True))\n"
        "assert (run.project, run.id) == ('theirs', 'theirs-1'); run.log({'loss': 1}); one.export(record()); run.finish(); one.close()\n"
    )
    own = environment(tmp_path, WANDB_RUN_ID="theirs-1")
    shown = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=own, capture_output=True, text=True, timeout=50)
    assert shown.returncode == 0, shown.stderr
    rows = {file.stem: [sorted(row) for row in run.history] for file, run in runs_by_file(tmp_path).items()}
    assert [keys for keys in rows.pop("run-theirs-1") if "loss" in keys or POWER in keys] == [["_runtime", "_step", "_timestamp", "loss"]]
    assert [sum(POWER in keys for keys in found) for found in rows.values()] == [2]


def test_closed_and_opened_again_it_begins_another_run(tmp_path: Path) -> None:
    """A restart of the monitor is a run of its own."""
    exporter, taken = WandbExporter(project="hw", mode="offline"), record(steps=False)
    for _ in range(2):
        exporter.open()
        exporter.export(taken)
        exporter.close()
    assert [len([row for row in run.history if POWER in row]) for run in read(tmp_path)] == [1, 1]


def test_a_killed_process_is_passing_and_replaced(tmp_path: Path) -> None:
    """The record that met it is offered again, and goes into a run begun anew; what was logged before is in its file."""
    exporter, taken = WandbExporter(project="hw", mode="offline"), record(steps=False)
    exporter.open()
    exporter.export(taken)
    process = exporter._tracker._process
    assert process is not None
    process.kill()
    process.wait()
    with pytest.raises(ConnectionError, match="the process that speaks to Weights & Biases ended"):
        exporter.export(taken)
    exporter.export(taken)
    exporter.close()
    assert len(list(tmp_path.rglob("*.wandb"))) == 2


def test_a_process_that_hangs_is_given_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """No answer costs the timeout and no more, closing included."""
    monkeypatch.setattr("accelmetrics.exporters.wandb.LOG_SECONDS", 0.3)
    exporter, taken = WandbExporter(project="hw", mode="offline"), record(steps=False)
    exporter.open()
    process = exporter._tracker._process
    assert process is not None
    os.kill(process.pid, signal.SIGSTOP)
    began = time.monotonic()
    with pytest.raises(TimeoutError, match=r"no answer within 0\.3 s"):
        exporter.export(taken)
    exporter.close()
    assert time.monotonic() - began < 3
    assert process.poll() is not None


def test_not_logged_in_is_one_clear_line() -> None:
    """Without a login and without a mode the answer says what to do, in one line, at once."""
    exporter = WandbExporter(project="hw")
    began = time.monotonic()
    with pytest.raises(RejectedError) as caught:
        exporter.open()
    exporter.close()
    assert time.monotonic() - began < 15
    said = str(caught.value)
    assert said == "Weights & Biases: not logged in: run `wandb login`, set WANDB_API_KEY, or choose mode=offline"


def test_nobody_is_asked_on_a_terminal(tmp_path: Path) -> None:
    """At a terminal, where W&B would ask for a key, it is the same line, and nothing is written on the terminal."""
    code = (
        "from accelmetrics.exporters.wandb import WandbExporter\nfrom accelmetrics.exporters.rejected import RejectedError\n"
        "one = WandbExporter(project='hw')\ntry:\n one.open()\nexcept RejectedError as error:\n print('said:', error)\n"
    )
    ours, theirs = pty.openpty()
    try:
        own, command = environment(tmp_path, TERM="xterm"), [sys.executable, "-c", code]
        done = subprocess.run(command, cwd=tmp_path, env=own, timeout=30, stdin=theirs, stdout=theirs, stderr=theirs)
        shown = os.read(ours, 65536).decode()
    finally:
        os.close(ours)
        os.close(theirs)
    assert done.returncode == 0
    assert shown.startswith("said: Weights & Biases: not logged in: run `wandb login`") and shown.count("\n") == 1


def test_a_server_that_is_away_is_passing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A login without a network is an OSError within the limits: the monitor tries again later."""
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setattr("accelmetrics.exporters.wandb.TIMEOUTS", {"init_timeout": 1.0})
    exporter = WandbExporter(project="hw", mode="online")
    began = time.monotonic()
    with pytest.raises(ConnectionError, match="Weights & Biases: "):
        exporter.open()
    exporter.close()
    assert time.monotonic() - began < 30


def test_a_disabled_run_of_the_program_costs_nothing(tmp_path: Path) -> None:
    """`WANDB_MODE=disabled` switches W&B off for the program, and with it the exporter."""
    code = (
        "import wandb; from accelmetrics.exporters.registry import create; from tests.records import record\n"
        "run = wandb.init(project='theirs'); one = create('wandb'); one.open(); one.export(record()); one.close(); run.finish()\n"
    )
    own = environment(tmp_path, WANDB_MODE="disabled")
    shown = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=own, capture_output=True, text=True, timeout=50)
    assert shown.returncode == 0, shown.stderr
    assert not list(tmp_path.rglob("*.wandb"))


def test_options_that_cannot_be_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mode that is none, and a package that is not there; W&B's directory of the same name is not the package."""
    with pytest.raises(InvalidOptionError, match="must be one of online, offline"):
        create("wandb:?mode=cloud")
    (tmp_path / "wandb").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(MissingDependencyError, match=r"accelmetrics\[wandb\]"):
        WandbExporter()


def test_odd_labels_and_a_directory_that_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Text that is no UTF-8 arrives with its escape; a relative directory means the one of the moment when the exporter is made."""
    exporter = WandbExporter(project="hw", mode="offline", directory="runs")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    exporter.open()
    exporter.export(record(steps=False)._replace(labels={"team\udce9": "caf\udce9"}))
    exporter.close()
    (written,) = read(tmp_path / "runs")
    assert written.config["team\\udce9"] == "caf\\udce9"
