"""Other projects in environments of their own, so that this one's dependencies stay as they are.

Each is made on first use below `.cache` with pip, and used again while its requirements stay the same.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.locking import locked
from tests.support.missing import MissingHere

REPOSITORY = Path(__file__).resolve().parents[1]
CACHE = REPOSITORY / ".cache"
INSTALL_SECONDS = 300

WANDB = ("wandb==0.31.*",)
PEERS = ("nvitop==1.7.*", "gpustat==1.1.*")
TORCH = ("torch==2.13.0", "numpy", "psutil", "pydantic")


class EnvironmentUnavailable(MissingHere):
    """The environment cannot be made here; the message says why."""


def wandb_python() -> Path:
    """The interpreter of an environment that has wandb.

    Raises:
        EnvironmentUnavailable: pip cannot install it.
    """
    return python("wandb-venv", WANDB)


def torch_python() -> Path:
    """The interpreter of an environment that has PyTorch, and what this package needs.

    Raises:
        EnvironmentUnavailable: pip cannot install it.
    """
    return python("torch-venv", TORCH)


def peers_python() -> Path:
    """The interpreter of an environment that has nvitop and gpustat.

    Raises:
        EnvironmentUnavailable: pip cannot install them.
    """
    return python("peers-venv", PEERS)


def python(name: str, requirements: tuple[str, ...]) -> Path:
    """The interpreter of an environment that has these packages.

    Raises:
        EnvironmentUnavailable: pip cannot install them.
    """
    target = CACHE / name
    stamp = target / ".requirements"
    wanted = "\n".join((sys.version, *requirements))
    with locked(CACHE / f"{name}.lock"):
        if not (stamp.exists() and stamp.read_text() == wanted):
            _make(target, requirements)
            stamp.write_text(wanted)
    return target / "bin" / "python"


def _make(target: Path, requirements: tuple[str, ...]) -> None:
    shutil.rmtree(target, ignore_errors=True)
    _run([sys.executable, "-m", "venv", str(target)], requirements)
    pip = [str(target / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
    with tempfile.TemporaryDirectory() as elsewhere:  # not a checkout: pip and the package look around where they run
        _run([*pip, *requirements], requirements, Path(elsewhere))


def _run(command: list[str], requirements: tuple[str, ...], directory: Path | None = None) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "PYTHONHOME"}}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False, env=environment, cwd=directory)
    except subprocess.TimeoutExpired as error:
        raise EnvironmentUnavailable(f"installing {' '.join(requirements)} took longer than {INSTALL_SECONDS} s") from error
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no output"]
        raise EnvironmentUnavailable(f"pip cannot install {' '.join(requirements)}: {last[0]}")
