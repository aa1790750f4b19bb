"""Slurm's scripts, run by a real slurmd: a job's devices are known while it runs, and what it came to is written at its end."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.cli.shell import Tree
from tests.exporters.prometheus_server import fetch
from tests.frameworks.deploy.tools import DEPLOY, ROOT, run, tool
from tests.simulators.nvml import NvmlSimulator
from tests.support.missing import MissingHere
from tests.support.network import free_port
from tests.support.waiting import HANG, wait_for

SCRIPTS = DEPLOY / "slurm"
CONFIGURATION = """\
ClusterName=test
SlurmctldHost={node}(127.0.0.1)
SlurmUser=root
SlurmctldPort={port}
SlurmdPort={daemon_port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
CredType=cred/munge
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
ReturnToService=2
MpiDefault=none
GresTypes=gpu
Prolog={folder}/prolog.sh
Epilog={folder}/epilog.sh
TaskProlog={folder}/taskprolog.sh
NodeName={node} NodeAddr=127.0.0.1 CPUs=2 RealMemory=500 Gres=gpu:2 State=UNKNOWN
PartitionName=gpu Nodes={node} Default=YES State=UP
"""

PROGRAM = """\
#!/bin/sh
export PYTHONPATH={root}
if [ "$2" = end ]; then set -- "$@" --summaries {summaries}; fi
exec {python} -m accelmetrics "$@" --jobs {jobs}
"""
"""The command as it is installed, with folders of the test's own."""


class Cluster:
    """A cluster of this machine alone, with two device nodes as its GPUs.

    Attributes:
        folder: Where everything of it lies.
        env: Variables of its commands.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run one of Slurm's own."""
        return run(*arguments, env=self.env)

    def logs(self) -> str:
        """What its daemons said, for an assertion's message."""
        return "\n".join(path.read_text()[-3000:] for path in self.folder.glob("*.log"))


@contextmanager
def daemon(*command: str, env: Mapping[str, str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """A program in the foreground, which is gone at the end."""
    quiet = subprocess.DEVNULL
    argv = [tool(command[0]), *command[1:]]
    process = subprocess.Popen(argv, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True, env=env)
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(HANG / 4)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Munge, slurmctld and slurmd, until the node is idle."""
    if os.geteuid():
        raise MissingHere("platform: only root may run slurmd")
    node = run("hostname", "-s").stdout.strip()
    for name in ("state", "spool", "dev"):
        (tmp_path / name).mkdir()
    # Slurm opens none of them: null devices with the numbers of NVIDIA's nodes' places.
    for number in (0, 1):
        os.mknod(tmp_path / "dev" / f"nvidia{number}", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    (tmp_path / "gres.conf").write_text(f"Name=gpu File={tmp_path}/dev/nvidia[0-1]\n")
    ports = {"port": free_port(), "daemon_port": free_port()}
    (tmp_path / "slurm.conf").write_text(CONFIGURATION.format(folder=tmp_path, node=node, **ports))
    (tmp_path / "munge.key").write_bytes(os.urandom(128))
    (tmp_path / "munge.key").chmod(0o400)
    tmp_path.chmod(0o755)
    files = {"key-file": "munge.key", "socket": "munge.sock", "pid-file": "munge.pid", "log-file": "munge.log", "seed-file": "munge.seed"}
    munge = [f"--{option}={tmp_path / name}" for option, name in files.items()]
    found = Cluster(tmp_path)
    with ExitStack() as stack:
        stack.enter_context(daemon("munged", "--foreground", "--force", *munge))
        wait_for((tmp_path / "munge.sock").exists)
        for name in ("slurmctld", "slurmd"):
            stack.enter_context(daemon(name, "-D", "-f", found.env["SLURM_CONF"], env=found.env))
        wait_for(lambda: "idle" in found.command("sinfo", "-h", "-o", "%T").stdout, what="the node is not idle")
        yield found


def install(script: str, folder: Path, **variables: object) -> None:
    """Put a script where Slurm's configuration has it, with what a site would change."""
    first, _, rest = (SCRIPTS / script).read_text().partition("\n")
    lines = "".join(f"export {name}='{value}'\n" for name, value in variables.items())
    (folder / script).write_text(f"{first}\n{lines}{rest}")
    (folder / script).chmod(0o755)


def test_the_scripts_are_clean() -> None:
    """By their linter, as POSIX shell."""
    done = run("shellcheck", "--shell=sh", *sorted(SCRIPTS.glob("*.sh")))
    assert done.returncode == 0, done.stdout


@pytest.mark.timeout(4 * HANG)
def test_a_job_on_a_real_node(cluster: Cluster, tmp_path: Path) -> None:
    """Slurm's GPU 0 is NVML's GPU 1 here: that one is the job's, on Prometheus' page and in the summary."""
    program = tmp_path / "accelmetrics"
    folders = {"jobs": tmp_path / "jobs", "summaries": tmp_path / "summaries"}
    with NvmlSimulator(gpus=2) as simulator:
        tree = Tree(tmp_path / "root")
        for gpu in (0, 1):
            simulator.gpu[gpu].set(minor_number=1 - gpu, gpu_util=25)
        program.write_text(PROGRAM.format(root=ROOT, python=sys.executable, **folders))
        program.chmod(0o755)
        given = {"ACCELMETRICS": program, **tree.environment()}
        install("prolog.sh", tmp_path, **given)
        install("epilog.sh", tmp_path, **given, ACCELMETRICS_JOB_LOG=tmp_path / "jobs.jsonl")
        install("taskprolog.sh", tmp_path)
        port = free_port()
        env = {**os.environ, **simulator.environment(), "PYTHONPATH": str(ROOT)}
        options = [f"--listen=127.0.0.1:{port}", "--backends=nvidia", "--interval=0.1"]
        options += [f"--{name}={folder}" for name, folder in folders.items()]
        with daemon(sys.executable, "-m", "accelmetrics", "serve", *options, env=env):
            page = f"http://127.0.0.1:{port}/metrics"
            wait_for(lambda: "accel_power_watts" in _page(page))
            uuids = dict(re.findall(r'accel_info\{accelerator="(gpu\.\d)",.*?uuid="([^"]+)"', _page(page)))
            release = tmp_path / "release"
            script = f'echo "gpus $SLURM_JOB_GPUS"; until [ -e {release} ]; do sleep 0.1; done'
            submitted = cluster.command("sbatch", "--parsable", "--gres=gpu:1", f"--output={tmp_path}/out", f"--wrap={script}")
            assert submitted.returncode == 0, submitted.stderr
            job = submitted.stdout.strip()
            held = re.compile(rf'accel_job_info\{{accelerator="gpu\.1",.*job_id="{job}".*\}} 1')
            wait_for(lambda: held.search(_page(page)), what="the job is not on the page")
            assert 'accel_job_info{accelerator="gpu.0"' not in _page(page)
            release.write_text("")
            log = tmp_path / "jobs.jsonl"
            wait_for(lambda: log.exists() and log.read_text().endswith("}\n"), what="no summary was written")
            summary = json.loads(log.read_text())
            assert (summary["job_id"], summary["state"]) == (job, "ended")
            assert (summary["labels"]["user"], summary["labels"]["partition"]) == ("root", "gpu")
            assert [(one["device"], one["uuid"]) for one in summary["devices"]] == [("gpu.1", uuids["gpu.1"])]
            wait_for(lambda: "accel_job_info{" not in _page(page))
            assert not list(folders["jobs"].glob("*.json"))
    assert (tmp_path / "out").read_text() == "gpus 0\n"
    assert "drain" not in cluster.command("sinfo", "-h", "-o", "%T").stdout, cluster.logs()


def test_tasks_are_told_of_the_socket(cluster: Cluster, tmp_path: Path) -> None:
    """Only where it is; scripts whose command is missing drain nothing."""
    path = tmp_path / "collector.sock"
    install("prolog.sh", tmp_path, ACCELMETRICS=tmp_path / "missing")
    install("epilog.sh", tmp_path, ACCELMETRICS=tmp_path / "missing", ACCELMETRICS_JOB_LOG=tmp_path / "jobs.jsonl")
    install("taskprolog.sh", tmp_path, ACCELMETRICS_SOCKET=path)
    say = ("srun", "sh", "-c", 'echo "socket ${ACCELMETRICS_SOCKET:-none}"')
    cluster.env.pop("ACCELMETRICS_SOCKET", None)
    assert cluster.command(*say).stdout == "socket none\n", cluster.logs()
    with socket.socket(socket.AF_UNIX) as served:
        served.bind(str(path))
        assert cluster.command(*say).stdout == f"socket {path}\n", cluster.logs()
    wait_for(lambda: "idle" in cluster.command("sinfo", "-h", "-o", "%T").stdout, what="the node is not idle again")


def _page(url: str) -> str:
    try:
        return fetch(url)
    except OSError:
        return ""
