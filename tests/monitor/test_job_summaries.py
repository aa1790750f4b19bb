"""Summaries of jobs on their way to their files; from Prolog to Epilog they are followed in ``tests/cli/test_job.py``."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from accelmetrics import Monitor
from accelmetrics.monitor import job_summaries
from accelmetrics.monitor.job_summaries import JobSummaries
from accelmetrics.visibility.slurm_jobs import Job
from tests.monitor.watching import gpus, ticks


def job(job_id: str, ended: float | None = None) -> Job:
    return Job(job_id, "slurm", {}, (("minor", "0"),), 100.0, ended)


def test_a_look_that_ends_after_the_daemon_has_closed_replaces_no_summary(tmp_path: Path) -> None:
    with Monitor(0.01, backends=[gpus(1)]) as monitor:
        ticks(monitor, 2)
        summaries = JobSummaries(monitor, str(tmp_path), wall=lambda: 200.0)
        summaries([job("7")])
        summaries.close()
        written = (tmp_path / "7.json").read_bytes()
        summaries._wall = lambda: 300.0
        summaries([job("7"), job("8")])
    assert (tmp_path / "7.json").read_bytes() == written
    assert not (tmp_path / "8.json").exists()


def test_old_summaries_are_removed_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_summaries, "KEPT", 2)
    others = {
        "notes.json": "[1]",
        "broken.json": "{",
        "2.json": json.dumps({"job_id": "another", "state": "ended"}),
        "settings.json": json.dumps({"job_id": "settings"}),
    }
    for name, text in others.items():
        (tmp_path / name).write_text(text)
        os.utime(tmp_path / name, (1, 1))
    (tmp_path / "link.json").symlink_to(tmp_path / "nowhere.json")
    summaries = JobSummaries(Monitor(backends=["host"]), str(tmp_path), wall=lambda: 200.0)
    for number in range(10, 16):
        summaries([job(f"{number}")])
        os.utime(tmp_path / f"{number}.json", (number, number))
        summaries([])
        os.utime(tmp_path / f"{number}.json", (number, number))
    kept = {path.name for path in tmp_path.iterdir()}
    assert kept == {*others, "link.json", "14.json", "15.json"}
