"""A real Slurm of one node, with daemons and ports of its own: munged, slurmctld and slurmd, run by root, which slurmd needs."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import stat
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import pytest

from tests.support.network import free_port
from tests.support.waiting import HANG, wait_for

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sinfo")


class Slurm:
    """The node, up while the block runs.

    Args:
        folder: An empty folder. Its path must be short: a socket lies below.
        gpus: The device files of its GPUs, in the order of ``gres.conf``; null devices stand for them.
        prolog: A shell script.
        epilog: Likewise.
        task_prolog: Likewise, whose output Slurm reads.
    """

    def __init__(self, folder: Path, gpus: Sequence[str], prolog: str, epilog: str, task_prolog: str = "") -> None:
        for program in PROGRAMS:
            if shutil.which(program) is None:
                pytest.skip(f"server: {program} is not installed")
        if os.geteuid() != 0:
            pytest.skip("platform: slurmd is run by root")
        self.folder = folder
        self.node = socket.gethostname().partition(".")[0]
        for name, script in (("prolog", prolog), ("epilog", epilog), ("task_prolog", task_prolog)):
            (folder / name).write_text(f"#!/bin/sh\n{script}\n")
            (folder / name).chmod(0o755)
        for part in ("state", "spool"):
            (folder / part).mkdir()
        for gpu in gpus:
            os.mknod(folder / gpu, 0o600 | stat.S_IFCHR, os.makedev(1, 3))
        (folder / "gres.conf").write_text("".join(f"NodeName={self.node} Name=gpu File={folder / gpu}\n" for gpu in gpus))
        (folder / "slurm.conf").write_text(self._configuration(len(gpus)))
        (folder / "munge.key").write_bytes(secrets.token_bytes(1024))
        (folder / "munge.key").chmod(0o600)
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": os.environ["PATH"]}
        self._daemons = ExitStack()

    def _configuration(self, gpus: int) -> str:
        settings: Mapping[str, object] = {
            "ClusterName": "test",
            "SlurmctldHost": f"{self.node}(127.0.0.1)",
            "SlurmUser": "root",
            "SlurmdUser": "root",
            "AuthType": "auth/munge",
            "AuthInfo": f"socket={self.folder}/munge.sock",
            "CredType": "cred/munge",
            "StateSaveLocation": f"{self.folder}/state",
            "SlurmdSpoolDir": f"{self.folder}/spool",
            "SlurmctldPidFile": f"{self.folder}/slurmctld.pid",
            "SlurmdPidFile": f"{self.folder}/slurmd.pid",
            "SlurmctldPort": free_port(),
            "SlurmdPort": free_port(),
            "ProctrackType": "proctrack/linuxproc",
            "TaskPlugin": "task/none",
            "SelectType": "select/cons_tres",
            "MpiDefault": "none",
            "GresTypes": "gpu",
            "ReturnToService": 2,
            "PrologFlags": "Alloc",
            "Prolog": f"{self.folder}/prolog",
            "Epilog": f"{self.folder}/epilog",
            "TaskProlog": f"{self.folder}/task_prolog",
        }
        node = f"NodeName={self.node} NodeAddr=127.0.0.1 CPUs=1 Gres=gpu:{gpus} State=UNKNOWN"
        lines = (*(f"{name}={value}" for name, value in settings.items()), node, "PartitionName=gpu Nodes=ALL Default=YES State=UP")
        return "\n".join(lines) + "\n"

    def _start(self, *command: str) -> None:
        with (self.folder / f"{command[0]}.log").open("wb") as log:
            daemon = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment)
        self._daemons.callback(daemon.wait)
        self._daemons.callback(daemon.kill)

    def run(self, *command: str) -> str:
        """What a job prints, with all GPUs, once it and its Epilog have ended."""
        gpus = len((self.folder / "gres.conf").read_text().splitlines())
        argv = ["srun", f"--gres=gpu:{gpus}", *command]
        done = subprocess.run(argv, env=self.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=HANG)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def _state(self) -> str:
        argv = ["sinfo", "--noheader", "--format=%T"]
        return subprocess.run(argv, env=self.environment, capture_output=True, text=True, timeout=HANG).stdout.strip()

    def __enter__(self) -> Slurm:
        with self._daemons:
            munge = {name: self.folder / f"munge.{name}" for name in ("key", "sock", "pid", "log", "seed")}
            files = {"key-file": "key", "socket": "sock", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
            self._start("munged", "--force", "--foreground", *(f"--{option}={munge[name]}" for option, name in files.items()))
            wait_for(munge["sock"].exists)
            self._start("slurmctld", "-D", "-f", self.environment["SLURM_CONF"])
            self._start("slurmd", "-D", "-f", self.environment["SLURM_CONF"], "-N", self.node)
            wait_for(lambda: self._state() == "idle", what=lambda: (self._state(), (self.folder / "slurmd.log").read_text()[-1000:]))
            self._daemons = self._daemons.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._daemons.close()
