"""Slurm's scripts, run by a real slurmd: a job's devices are known while it runs, and what it came to is written at its end."""

from __future__ import annotations

import json
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.cli.test_serve import get, ready, serving
from tests.frameworks.deploy.tools import DEPLOY, ROOT, run
from tests.simulators.nvml import NvmlSimulator
from tests.support.slurm import Slurm
from tests.support.waiting import wait_for

SCRIPTS = DEPLOY / "slurm"
PROGRAM = """\
#!/bin/sh
export PYTHONPATH={root} ACCELMETRICS_SYSROOT={folder}/root
if [ "$2" = end ]; then set -- "$@" --summaries {folder}/summaries; fi
exec {python} -m accelmetrics "$@" --jobs {folder}/jobs
"""
"""The command as it is installed, with folders of the test's own."""


@pytest.fixture
def folder() -> Iterator[Path]:
    """One with a short path, since sockets lie in it."""
    with tempfile.TemporaryDirectory(prefix="slurm-") as name:
        yield Path(name)


def script(name: str, **variables: object) -> str:
    """A script with what a site would set."""
    exported = [f"export {variable}={shlex.quote(str(value))}" for variable, value in variables.items()]
    return "\n".join([*exported, (SCRIPTS / name).read_text()])


def test_the_scripts_are_clean() -> None:
    """By their linter, as POSIX shell."""
    done = run("shellcheck", "--shell=sh", *sorted(SCRIPTS.glob("*.sh")))
    assert done.returncode == 0, done.stdout


def test_a_job_on_a_real_node(folder: Path) -> None:
    """It is on Prometheus' page while it runs, and a line of the file of jobs afterwards."""
    program, log, released = folder / "accelmetrics", folder / "jobs.jsonl", folder / "released"
    (folder / "root").mkdir()
    program.write_text(PROGRAM.format(root=ROOT, python=sys.executable, folder=folder))
    program.chmod(0o755)
    scripts = (script("prolog.sh", ACCELMETRICS=program), script("epilog.sh", ACCELMETRICS=program, ACCELMETRICS_JOB_LOG=log))
    options = ("--backends", "nvidia", "--interval", "0.1", "--jobs", str(folder / "jobs"), "--summaries", str(folder / "summaries"))
    with NvmlSimulator(gpus=2) as simulator, serving(*options, **simulator.environment()) as (_, base):
        ready(base)
        with Slurm(folder, ["nvidia0", "nvidia1"], *scripts) as slurm, ThreadPoolExecutor(1) as pool:
            running = pool.submit(slurm.run, "sh", "-c", f'until [ -e {released} ]; do sleep 0.1; done; echo "$SLURM_JOB_ID"')
            try:
                wait_for(lambda: len(re.findall(r"accel_job_info\{.*user=\"root\"", get(f"{base}/metrics")[1])) == 2)
            finally:
                released.touch()
            job = running.result().strip()
            wait_for(lambda: log.exists() and log.read_text().endswith("}\n"), what="no summary was written")
            summary = json.loads(log.read_text())
            assert (summary["job_id"], summary["state"], len(summary["devices"])) == (job, "ended", 2)
            assert log.stat().st_mode & 0o777 == 0o600
            wait_for(lambda: "accel_job_info{" not in get(f"{base}/metrics")[1])


def test_tasks_are_told_of_the_daemon_and_nothing_drains(folder: Path) -> None:
    """Only where it writes readings; scripts whose command is missing keep no job from running."""
    missing = folder / "missing"
    scripts = (script("prolog.sh", ACCELMETRICS=missing), script("epilog.sh", ACCELMETRICS=missing, ACCELMETRICS_JOB_LOG=folder / "log"))
    say = ("sh", "-c", 'echo "share ${ACCELMETRICS_SHARE_DIRECTORY:-none}"')
    with Slurm(folder, ["nvidia0"], *scripts, script("taskprolog.sh").replace("/run/accelmetrics", str(folder))) as slurm:
        assert slurm.run(*say) == "share none\n"
        (folder / "machine-0.ring").touch()
        assert slurm.run(*say) == f"share {folder}\n"
