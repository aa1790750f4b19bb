"""Rows of the other nodes of a torch job, through the store that torchrun makes: two agents on one machine."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.frameworks.programs import started
from tests.simulators.nvml import NvmlSimulator

PROGRAM = """\
import os, pathlib, time
import torch.distributed as distributed
import accelmetrics
from accelmetrics.integrations import torch_store

torch_store.LOST = 1.0
distributed.init_process_group("gloo")
rank = distributed.get_rank()
pathlib.Path(f"pid-{rank}").write_text(str(os.getpid()))

def others(row):
    return sorted(key for key in row if key.count("/") == 2 and key.endswith("/gpu.0.powerWatts"))

def until(condition):
    while not condition():
        time.sleep(0.02)

with accelmetrics.training(0.1, backends=["nvidia"]) as run:
    if rank == 0:
        until(lambda: others(run.row()))
        print("HEARD", *others(run.row()), flush=True)
        until(lambda: not others(run.row()))
        print("LOST", "system/gpu.0.powerWatts" in run.row(), flush=True)
    else:
        until(lambda: os.path.exists("done"))
        print("OTHERS", *others(run.row()), flush=True)
os._exit(0)
"""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.mark.slow
def test_the_first_rank_has_the_rows_of_another_node_until_that_is_lost(tmp_path: Path) -> None:
    """Killed with its agent: the first rank goes on, and nothing stands for the node any more."""
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    place = ["--nnodes=2", "--nproc-per-node=2", "--master-addr=127.0.0.1", f"--master-port={free_port()}"]
    with NvmlSimulator(2) as simulator, ExitStack() as stack:

        def agent(node: int) -> subprocess.Popen[str]:
            command = [sys.executable, "-m", "torch.distributed.run", *place, f"--node-rank={node}", str(program)]
            return stack.enter_context(started(command, tmp_path, **simulator.environment()))

        def end(*ranks: int) -> None:
            """Kill ranks: they are in groups of their own, and outlive an agent that is killed."""
            for rank in ranks:
                with suppress(FileNotFoundError, ProcessLookupError):
                    os.kill(int((tmp_path / f"pid-{rank}").read_text()), signal.SIGKILL)

        first, second = agent(0), agent(1)
        stack.callback(end, 0, 1, 2, 3)
        assert first.stdout is not None
        said = first.stdout.readline()
        assert said.split() == ["HEARD", f"system/{socket.gethostname()}-1/gpu.0.powerWatts"], said
        second.kill()
        end(2, 3)
        assert first.stdout.readline().split() == ["LOST", "True"]
        (tmp_path / "done").touch()
        assert first.stdout.readline().split() == ["OTHERS"], "the other rank of this node has no rows of another"
