"""Training programs for the tests beside real frameworks: each in a process of its own, beside simulated GPUs, away from any network."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.simulators.nvml import NvmlSimulator
from tests.support.waiting import HANG

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
OFFLINE = {
    "ACCELERATE_USE_CPU": "true",
    "CUDA_VISIBLE_DEVICES": "0,1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "MLFLOW_ALLOW_FILE_STORE": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "TOKENIZERS_PARALLELISM": "false",
    "WANDB_MODE": "offline",
    "WANDB_ERROR_REPORTING": "false",
    "WANDB_SILENT": "true",
}
LIMIT = 4 * HANG
"""Seconds after which a program that hangs is ended."""


class Ended(NamedTuple):
    """How a program ended."""

    status: int
    out: str
    err: str

    @property
    def said(self) -> str:
        """All of it, for an assertion's message."""
        return f"status {self.status}\n{self.out[-4000:]}\n{self.err[-4000:]}"


def program_environment(folder: Path, **more: str) -> dict[str, str]:
    """Variables of a program that has its home in a folder: nothing of this machine's user, and this checkout to import."""
    ours = ("ACCELMETRICS_", "CUDA_", "HF_", "MASTER_", "MLFLOW_", "RANK", "SLURM_", "WANDB_", "WORLD_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    python = {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore,default::RuntimeWarning", "PATH": path}
    return {**kept, **OFFLINE, "HOME": str(folder), "TMPDIR": str(folder), **python, **more}


@contextmanager
def started(command: list[str], folder: Path, **env: str) -> Iterator[subprocess.Popen[str]]:
    """A program in a group of its own, which is gone at the end in any case."""
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=program_environment(folder, **env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def run_program(command: list[str], folder: Path, **env: str) -> Ended:
    """Run a program to its end."""
    with started(command, folder, **env) as process:
        out, err = process.communicate(timeout=LIMIT)
        return Ended(process.returncode, out, err)


def train(folder: Path, program: str | Path, *arguments: str, ranks: int = 1, gpus: int = 2, **env: str) -> Ended:
    """Run a training program beside simulated GPUs: a script's text, or one of the examples.

    Args:
        folder: Where it runs, and its home.
        program: The text of a script, or a path.
        arguments: Of the script.
        ranks: How many processes torchrun makes of it; it is not asked for one.
        gpus: How many GPUs the simulated driver has.
        env: Variables in addition.
    """
    if isinstance(program, str):
        path = folder / "program.py"
        path.write_text(program)
    else:
        path = program
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    with NvmlSimulator(gpus=gpus) as simulator:
        return run_program([sys.executable, *torchrun, str(path), *arguments], folder, **{**simulator.environment(), **env})
