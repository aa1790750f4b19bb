"""A job of a real Slurm, from its Prolog to its Epilog, beside ``accelmetrics serve`` on simulated GPUs."""

from __future__ import annotations

import json
import re
import shlex
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.cli.shell import COMMAND, environment
from tests.cli.test_serve import get, ready, serving
from tests.simulators.nvml import NvmlSimulator
from tests.support.slurm import Slurm
from tests.support.waiting import wait_for


def script(folder: Path, *words: str) -> str:
    """What Prolog or Epilog runs: our command, without the drivers of this machine."""
    variables = environment(ACCELMETRICS_SYSROOT=str(folder / "root"))
    exported = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    return "\n".join([*exported, " ".join(map(shlex.quote, [*COMMAND, "job", *words]))])


@pytest.mark.servers
def test_a_job_of_a_real_slurm() -> None:
    """Its numbers of GPUs are in no order of NVML's and begin at 3; it is told while it runs, and summed up at its end."""
    with tempfile.TemporaryDirectory(prefix="slurm-") as name, NvmlSimulator(2) as simulator:
        folder = Path(name)
        (folder / "root").mkdir()
        for gpu, minor in ((0, 3), (1, 5)):
            simulator.gpu[gpu].set(minor_number=minor, gpu_util=50 * gpu)
        paths = ("--jobs", str(folder / "jobs"), "--summaries", str(folder / "summaries"))
        prolog = f"{script(folder, 'begin', *paths[:2])} 2> {folder}/begun"
        epilog = f"{script(folder, 'end', *paths, '--wait', '60', '--json')} > {folder}/out 2>&1\nmv {folder}/out {folder}/ended"
        with (
            serving("--backends", "nvidia", "--interval", "0.1", *paths, **simulator.environment()) as (_, base),
            Slurm(folder, ["nvidia5", "nvidia3"], prolog, epilog) as slurm,
            ThreadPoolExecutor(1) as pool,
        ):
            ready(base)
            # The job lasts until it is on the page.
            running = pool.submit(slurm.run, "sh", "-c", f'while ! [ -e {folder}/seen ]; do sleep 0.1; done; echo "$SLURM_JOB_ID"')
            try:
                wait_for(lambda: len(holders(base)) == 2, what=lambda: sorted(path.name for path in folder.iterdir()))
                found = holders(base)
            finally:
                (folder / "seen").touch()
            job_id = running.result().strip()
            assert (folder / "begun").read_text() == ""
            assert found == {("gpu.0", job_id, "root"), ("gpu.1", job_id, "root")}
            wait_for((folder / "ended").exists)
            summary = json.loads((folder / "ended").read_text())
            assert (summary["job_id"], summary["state"], summary["labels"]["partition"]) == (job_id, "ended", "gpu")
            assert [device["utilization_percent_mean"] for device in summary["devices"]] == [0.0, pytest.approx(50.0)]
            assert list((folder / "jobs").iterdir()) == []


def holders(base: str) -> set[tuple[str, str, str]]:
    """Device, job and user of each job on the page."""
    page = get(f"{base}/metrics")[1]
    return set(re.findall(r'^accel_job_info\{accelerator="(gpu\.\d)",.*job_id="(\d+)",.*user="(\w+)"', page, re.MULTILINE))
