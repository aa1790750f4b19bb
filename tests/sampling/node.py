"""What the tests of shared readings share: processes of one job."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.support.programs import Program

RANK = """
    import logging, os, sys
    from accelmetrics import Monitor
    from accelmetrics.schemas.errors import Unavailable
    logging.basicConfig(format="%(message)s")
    heard = []
    monitor = Monitor(0.05, share="node", **{options})
    monitor.channel.subscribe(heard.append)
    def source(name):
        return next((status for status in monitor.latest.backends if status.name == name), None)
    def until(condition):
        import time
        while not condition():
            time.sleep(0.005)
"""
"""The beginning of a program that is one rank of a job."""


def job_environment(directory: Path, **more: str) -> dict[str, str]:
    """Return the environment of a job's processes, whose files are in a directory of the test's own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "RAY_", "TORCHELASTIC_", "ACCELMETRICS_S"))}
    return {**kept, "XDG_RUNTIME_DIR": str(directory), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", **more}


def jobless_environment(directory: Path) -> dict[str, str]:
    """Return the environment of a process that no launcher started, with the same directory."""
    return {name: value for name, value in job_environment(directory).items() if not name.startswith("MASTER_")}


def rank(text: str, env: Mapping[str, str], **options: Any) -> Program:
    """Start a program that is one rank of a job."""
    chosen = {"backends": ["host"], "metrics": "cpu,load.1m", **options}
    return Program(RANK.replace("{options}", repr(chosen)) + text, env=env)


def go_on(programs: Iterable[Program]) -> None:
    """Let all of these go on."""
    for program in programs:
        program.go_on()
