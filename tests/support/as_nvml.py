"""Programs below ``accelmetrics run --as-nvml`` on a simulated machine of two AMD Instinct MI210, and releases of NVIDIA's binding."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.cli.shell import COMMAND, environment
from tests.simulators.amdgpu import Tree, client, machines
from tests.support.locking import locked
from tests.support.missing import MissingHere
from tests.support.waiting import HANG

AS_NVML = [*COMMAND, "run", "--backends", "amd", "--as-nvml", "--"]
CACHE = Path(__file__).resolve().parents[2] / ".cache" / "nvml-bindings"
INSTALL_SECONDS = 50
RELEASES = (
    *("nvidia-ml-py==11.450.51", "nvidia-ml-py==11.525.150", "nvidia-ml-py==12.560.30", "nvidia-ml-py3==7.352.0"),
    *("pynvml==8.0.4", "pynvml==11.5.3", "py3nvml==0.2.7"),
)
"""Bindings that programs come with, beside the one of this environment."""


def two_mi210(root: Path, pid: int) -> Tree:
    """A machine of two accelerators; a process of this number computes on the first."""
    tree = Tree(root)
    machines.mi210_pair(tree)
    tree.whole_machine()  # so that a device on which no process is seen has none
    uses(tree, pid, compute=10**9)
    return tree


def uses(tree: Tree, pid: int, **engines: int) -> None:
    """Have a process use the first accelerator."""
    tree.process(pid, {7: ("/dev/dri/renderD128", client(machines.PAIR[0], 1, 16000 << 10, **engines))})


def through(
    *command: str, tree: Tree, folder: Path | None = None, start: Sequence[str] = AS_NVML, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run a program as if it were an NVIDIA machine, to its end."""
    variables = environment(ACCELMETRICS_SYSROOT=str(tree.root), **env)
    return subprocess.run(
        [*start, *command], env=variables, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=2 * HANG
    )


def told(text: str, *arguments: str, tree: Tree, python: str = sys.executable, options: Sequence[str] = (), **more: Any) -> Any:
    """Run a Python program so, and return what it printed, as JSON."""
    done = through(python, *options, "-c", textwrap.dedent(text), *arguments, tree=tree, **more)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout)


@functools.cache
def release(requirement: str) -> Path:
    """The directory in which a release of a binding lies alone."""
    target = CACHE / requirement.replace("==", "-")
    with locked(CACHE / "install.lock"):
        if not target.exists():
            with tempfile.TemporaryDirectory(dir=CACHE) as draft:
                made = Path(draft, "made")
                pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(made), requirement]
                try:
                    done = subprocess.run(pip, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
                except subprocess.TimeoutExpired as error:
                    raise MissingHere(f"{requirement} could not be installed in {INSTALL_SECONDS} s") from error
                if done.returncode:
                    raise MissingHere(f"{requirement} cannot be installed here: {done.stderr.strip().splitlines()[-1:]}")
                made.rename(target)
    return target
