"""A machine of two vendors for other projects' monitors: two H100s and two MI210s, one of which can be lost."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.cli.shell import REPOSITORY, environment
from tests.cli.test_serve import ready, serving
from tests.simulators.amdgpu import Tree, machines
from tests.simulators.nvml import NvmlSimulator
from tests.support.waiting import HANG

CONFIGURATIONS = REPOSITORY / "deploy" / "monitors"
INSTALLED = "/opt/accelmetrics/bin/accelmetrics"
"""The command, in the files."""
ENDPOINT = "127.0.0.1:22235"
"""Where `serve` listens unless told otherwise."""
READING = ("--backends", "nvidia,amd", "--interval", "0.2")
POWER = {"gpu.0": 294.0, "gpu.1": 295.373, "gpu.2": 212.0, "gpu.3": 43.0}
"""Watts of each device."""
LOST = "gpu.0"
LEFT = {key: watts for key, watts in POWER.items() if key != LOST}


class Machine(NamedTuple):
    """What tests run monitors on.

    Attributes:
        folder: An empty folder for a monitor's files.
        nvidia: The simulated driver of the H100s.
        env: Variables with which a program sees these devices.
    """

    folder: Path
    nvidia: NvmlSimulator
    env: dict[str, str]

    def lose(self) -> None:
        """Have the first H100 fall off the bus."""
        self.nvidia.lose(0)

    @contextmanager
    def served(self, *options: str) -> Iterator[str]:
        """Serve what is read; the address, as ``http://127.0.0.1:PORT``."""
        with serving(*READING, *options, **self.env) as (_, base):
            ready(base)
            yield base

    @contextmanager
    def running(self, *command: str | Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
        """Run a monitor beside these devices; all that it prints goes to a file. It is ended with the block."""
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*map(str, command)], env=self.env, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(HANG)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def two_vendors(folder: Path) -> Iterator[Machine]:
    """The machine, until the block ends."""
    tree = Tree(folder / "root")
    machines.mi210_pair(tree)
    home = folder / "monitor"
    home.mkdir()
    with NvmlSimulator(gpus=2) as nvidia:
        env = environment(**nvidia.environment(), ACCELMETRICS_SYSROOT=str(tree.root))
        yield Machine(home, nvidia, env)


def configuration(name: str, replaced: Mapping[str, str]) -> str:
    """A file of `deploy/monitors`, with what a site has in place of other words; each of these must stand in it."""
    text = (CONFIGURATIONS / name).read_text()
    for words, others in replaced.items():
        assert words in text, f"{name} lacks {words}"
        text = text.replace(words, others)
    return text


def installed(folder: Path) -> Path:
    """The command as a program, as an environment has it."""
    path = folder / "accelmetrics"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} -m accelmetrics "$@"\n')
    path.chmod(0o755)
    return path
