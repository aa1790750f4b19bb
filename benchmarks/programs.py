"""Runs the workers in fresh processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.environments import REPOSITORY
from tests.simulators.nvml import NvmlSimulator
from tests.support.machines import Machine

LONGEST = 300
"""Seconds that any one program may take."""

Result = dict[str, Any]


def environment(simulator: NvmlSimulator | Machine | None = None) -> dict[str, str]:
    """What a program under measurement sees: the simulated machine, this checkout, and no checks that only tests want."""
    # Where Python may not keep what it compiled, each start would compile the package anew: that is not what users wait for.
    left_out = ("ACCELMETRICS_", "PYTHONDONTWRITEBYTECODE")
    base = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    base |= {"PYTHONPATH": str(REPOSITORY), "WANDB_ERROR_REPORTING": "false", "WANDB_SILENT": "true"}
    return base | (simulator.environment() if simulator else {})


def run(simulator: NvmlSimulator | Machine | None, worker: str, *arguments: object, python: Path | None = None) -> Result:
    """Runs a worker to its end and gives what it printed last."""
    with started(simulator, worker, *arguments, python=python) as program:
        return finish(program)


def side_by_side(count: int, measure: Callable[[], Result]) -> list[Result]:
    """What so many runs give, as many at a time as there are cores: for what is no matter of time."""
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        return list(threads.map(lambda _: measure(), range(count)))


@contextmanager
def started(
    simulator: NvmlSimulator | Machine | None, worker: str, *arguments: object, python: Path | None = None
) -> Iterator[subprocess.Popen[str]]:
    """A worker that is running; it is killed if it is still there when the block ends."""
    script = REPOSITORY / "benchmarks" / "workers" / f"{worker}.py"
    target = ["-m", f"benchmarks.workers.{worker}"] if python is None else [str(script)]
    command = [str(python or sys.executable), *target, *map(str, arguments)]
    pipes: Mapping[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, env=environment(simulator), text=True, cwd=REPOSITORY) as program:
        try:
            yield program
        finally:
            program.kill()


def wait_for_line(program: subprocess.Popen[str]) -> str:
    """Waits until the worker says that it is ready; what it says."""
    assert program.stdout is not None
    line = program.stdout.readline()
    if not line:
        raise RuntimeError(f"{program.args!r} ended before it was ready")
    return line.strip()


def finish(program: subprocess.Popen[str], line: str = "\n") -> Result:
    """Lets the worker go on and gives what it printed last."""
    output, _ = program.communicate(line, timeout=LONGEST)
    if program.returncode:
        raise RuntimeError(f"{program.args!r} ended with {program.returncode}")
    result: Result = json.loads(output.splitlines()[-1])
    return result
