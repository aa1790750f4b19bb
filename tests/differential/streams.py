"""Runs both collectors on one simulated machine and gives what each of them said, as streams of records."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

from tests.differential import machine
from tests.simulators.nvml import NvmlSimulator

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
NOWHERE = ("192.0.2.1", 9)
"""An address that is reserved for documentation: what is sent there leaves the machine, if at all, and is dropped."""

Metrics = Mapping[str, float]


class Record(NamedTuple):
    """One reading: when, on the wall clock; the values; of accelmetrics also the reasons."""

    time: float
    metrics: Metrics
    reasons: Mapping[str, str]


class Streams(NamedTuple):
    """What the two said."""

    wandb: list[Record]
    ours: list[Record]


def collect(python: Path, directory: Path) -> None:
    """Plays all phases to both collectors and leaves what they said in a directory."""
    with NvmlSimulator(machine.GPUS) as simulator, _started(_wandb(python, directory), simulator) as wandb:
        assert wandb.stdout is not None
        facts = json.loads(wandb.stdout.readline() or "{}")
        assert facts, "the program that W&B watches did not start"
        machine.prepare(simulator, facts["child"])
        with (directory / "ours.jsonl").open("w") as output:
            ours = [sys.executable, "-m", "tests.differential.collect_ours", str(facts["pid"]), str(machine.INTERVAL)]
            with _started(ours, simulator, output):
                collectors = machine.Collectors(simulator, directory / "ours.jsonl")
                collectors.wait_for_readings(3)
                talk()
                machine.play(simulator, collectors)
    (directory / "wandb.jsonl").write_text(read_wandb(python, facts["file"]))


def read(directory: Path) -> Streams:
    """What both said."""
    return Streams(*(list(map(_record, (directory / name).read_text().splitlines())) for name in ("wandb.jsonl", "ours.jsonl")))


def talk(datagrams: int = 64) -> None:
    """Makes some traffic, through the loopback interface and another one where there is one: which of it is counted?"""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.bind(("127.0.0.1", 0))
        for _ in range(datagrams):
            sender.sendto(bytes(4096), sender.getsockname())
            sender.recv(4096)
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for _ in range(datagrams):
            sender.sendto(bytes(1024), NOWHERE)


def _wandb(python: Path, directory: Path) -> list[str]:
    return [str(python), str(HERE / "collect_wandb.py"), str(directory), str(machine.INTERVAL)]


@contextmanager
def _started(command: list[str], simulator: NvmlSimulator, output: int | IO[str] = subprocess.PIPE) -> Iterator[subprocess.Popen[str]]:
    """A program that runs until the block ends and then has its standard input closed."""
    environment = os.environ | simulator.environment() | {"PYTHONPATH": str(REPOSITORY), "WANDB_SILENT": "true"}
    environment |= {"WANDB_ERROR_REPORTING": "false", "WANDB_CACHE_DIR": "/nonexistent"}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": output}
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(command, **pipes, stderr=errors, env=environment, text=True, cwd=REPOSITORY) as program,
    ):
        try:
            yield program
            program.communicate(timeout=120)
        finally:
            program.kill()
        errors.seek(0)
        assert program.returncode == 0, f"{command} ended with {program.returncode}: {errors.read()[-4000:]}"


def read_wandb(python: Path, file: str) -> str:
    """The system metrics that stand in a run's file so far, one JSON object a record."""
    command = [str(python), str(HERE / "read_wandb.py"), file]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def _record(line: str) -> Record:
    entry: dict[str, Any] = json.loads(line)
    return Record(entry["time"], entry["metrics"], entry.get("reasons", {}))
