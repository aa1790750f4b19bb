"""``ps``, from a shell: what is printed of the processes on the devices, and what is said where they are not known."""

from __future__ import annotations

import getpass
import json
import shutil
import subprocess
import sys
from collections.abc import Generator
from datetime import datetime, timezone
from pathlib import Path

import psutil
import pytest

from accelmetrics.cli.ps import MOST_REASONS, render
from accelmetrics.schemas.errors import Reason, Unavailable
from accelmetrics.visibility.processes import NOT_REPORTED, ProcessInfo, ProcessListing
from tests.cli.shell import call, environment, on_path
from tests.cli.terminals import on_terminal
from tests.simulators.nvml import NvmlSimulator, Process, Ret
from tests.support.pids import STRANGER
from tests.support.waiting import HANG

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="platform: reads /proc")

GIB = 1 << 30
LONG = "an-argument-that-is-longer-than-a-terminal-" + "x" * 300
GONE = STRANGER + 1
HEAD = ["DEVICE", "PID", "USER", "STARTED", "MEMORY", "UTIL", "IN", "COMMAND"]


class Machine:
    """Three GPUs, the last in MIG mode, and two processes of ours."""

    def __init__(self, simulator: NvmlSimulator) -> None:
        self.simulator = simulator
        self.env = environment(**simulator.environment())
        self._programs = [self._start(number) for number in range(2)]
        self.first, self.second = (program.pid for program in self._programs)
        simulator.processes(0, [Process(self.first, used=GIB), Process(self.second, used=3 * GIB, sm=80)])
        (instance,) = simulator.partition(2, ["3g.40gb"])
        ids = instance.gpu_instance, instance.compute_instance
        simulator.processes(2, [Process(self.first, used=2 * GIB, gpu_instance=ids[0], compute_instance=ids[1])])

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        program = subprocess.Popen(
            [sys.executable, "-c", "print(flush=True); input()", f"{number}\n\x1b[2J", LONG], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert program.stdout is not None
        program.stdout.readline()
        return program

    def ps(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the command on this machine."""
        return call("ps", "--backends", "nvidia", *arguments, env=self.env)

    def close(self) -> None:
        """End the processes."""
        for program in self._programs:
            program.communicate(b"\n", timeout=HANG)


@pytest.fixture
def machine() -> Generator[Machine, None, None]:
    with NvmlSimulator(gpus=3) as simulator:
        made = Machine(simulator)
        yield made
        made.close()


def a_listing(*found: ProcessInfo, **parts: object) -> ProcessListing:
    whole = {"timestamp": "", "hostname": "node", "processes": found, "parents": (), "idle": (), "unlisted": {}}
    return ProcessListing(**{**whole, **parts})  # type: ignore[arg-type]


def test_every_process_on_every_device(machine: Machine) -> None:
    """A line each, by device and memory, a MIG instance as a device; nothing is cut, and nothing changes a terminal."""
    done = machine.ps()
    assert (done.returncode, done.stderr) == (0, "")
    head, *rows = done.stdout.partition("\n\n")[0].splitlines()
    assert head.split() == HEAD
    assert [row.split()[:3] for row in rows] == [
        ["gpu.0", str(machine.second), getpass.getuser()],
        ["gpu.0", str(machine.first), getpass.getuser()],
        ["gpu.2.mig.0", str(machine.first), getpass.getuser()],
    ]
    began = datetime.fromtimestamp(psutil.Process(machine.second).create_time(), timezone.utc).astimezone()
    assert f"{began:%Y-%m-%d %H:}" in rows[0]
    assert "  3.0 GiB  80 %  " in rows[0]
    assert rows[0].endswith(f"-c print(flush=True); input() 1 ?[2J {LONG}")
    assert "No process uses gpu.1.\n" in done.stdout


def test_on_a_terminal_lines_are_cut_at_its_edge(machine: Machine) -> None:
    with on_terminal("ps", "--backends", "nvidia", rows=30, columns=90, env=machine.simulator.environment()) as terminal:
        terminal.until("No process uses")
        assert LONG not in terminal.text
        assert max(map(len, terminal.lines)) <= 90


def test_as_json(machine: Machine) -> None:
    done = machine.ps("--json", "--gpus", "0")
    document = json.loads(done.stdout)
    assert [(each["device"], each["pid"], each["memory_bytes"]) for each in document["processes"]] == [
        ("gpu.0", machine.second, 3 * GIB),
        ("gpu.0", machine.first, GIB),
    ]
    assert document["processes"][0]["command"].endswith(LONG)
    assert document["parents"] == []
    dumped = call("dump", "--json", "--backends", "nvidia", "--settle", "0", env=machine.env)
    assert str(machine.first) in dumped.stdout
    assert LONG not in dumped.stdout


def test_as_a_tree(machine: Machine) -> None:
    """What is above them is on no device; a process on two devices has two lines, and its command once."""
    done = machine.ps("--tree")
    head, *rows = done.stdout.partition("\n\n")[0].splitlines()
    place = head.index("COMMAND")
    by_pid = {int(row.split()[1]): row for row in rows}
    above = psutil.Process(machine.first).parent()
    assert above is not None
    assert by_pid[above.pid].startswith("-")
    below = [row for row in rows if row.split()[1] in {str(machine.first), str(machine.second)}]
    assert [row.split()[0] for row in below] == ["gpu.0", "gpu.0", "gpu.2.mig.0"]
    assert [row[place:].lstrip("│ ")[:3] for row in below] == ["├─ ", "└─ ", ""]


def test_a_driver_that_lists_none_is_not_idle(machine: Machine) -> None:
    """The device has its reason in the place of an empty table, and so has a process that is gone."""
    machine.simulator.rule("nvmlDeviceGetComputeRunningProcesses_v3", 0, error=Ret.NO_PERMISSION)
    machine.simulator.processes(1, [Process(GONE, used=GIB)])
    machine.simulator.partition(2, None)
    machine.simulator.processes(2, [])
    done = machine.ps()
    table, idle, reasons = done.stdout.split("\n\n")
    (row,) = table.splitlines()[1:]
    assert row.split() == ["gpu.1", str(GONE), "?", "?", "1.0", "GiB", "-", "?", "?"]
    assert idle == "No process uses gpu.2."
    first, second = " ".join(reasons.split()).split(" - ")
    assert first.startswith("- the processes that use gpu.0 are unknown: NVML_ERROR_NO_PERMISSION")
    assert second.startswith(f"process {GONE} has ended")


def test_no_device_at_all() -> None:
    done = call("ps", "--backends", "nvidia", env=environment(ACCELMETRICS_SYSROOT="/nowhere"))
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith("No devices were found.")


def test_where_a_process_runs_and_reasons_that_are_many() -> None:
    """Containers by the beginning of their id; each reason once, and so many of them."""
    slurm = ProcessInfo("gpu.0", 1, slurm_job="4711", slurm_step="0\x1b", container="4f" * 32, runtime="docker")
    pod = ProcessInfo(
        "gpu.0", 2, pod="6b1e1c54", container="0a" * 32, runtime="", unavailable={"slurm_job": "x", "utilization": NOT_REPORTED}
    )
    gone = [ProcessInfo("gpu.1", pid, unavailable={"user": f"process {pid} has ended", "container": "x"}) for pid in range(20, 40)]
    why = Unavailable(Reason.NOT_SUPPORTED)
    text = render(a_listing(slurm, pod, *gone, unlisted={"gpu.2": why, "gpu.3": why}))
    lines = text.splitlines()
    assert "docker 4f4f4f4f4f4f, slurm 4711.0" in lines[1]
    assert "\x1b" not in text, "a name of a cgroup is the user's"
    assert "container 0a0a0a0a0a0a, pod 6b1e1c54" in lines[2]
    assert "- the processes that use gpu.2, gpu.3 are unknown: not_supported" in lines
    assert lines[-1] == f"- and {21 - MOST_REASONS} more, which --json has"
    assert len(lines) == 1 + 22 + 1 + 1 + MOST_REASONS + 1


UNSHARE = ("unshare", "--pid", "--fork", "--mount-proc")


def in_a_namespace(simulator: NvmlSimulator, node: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command as process 1 of a PID namespace of its own, beside a process 2 that holds what stands for a GPU's node."""
    if shutil.which(UNSHARE[0]) is None or subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode:
        pytest.skip("platform: this user cannot make PID namespaces")
    (node.parent / "sitecustomize.py").write_text(
        "import accelmetrics.backends.kit.processes as module, re\n"
        f"module.NODES = {{'nvidia': re.escape({str(node.parent)!r}) + '/nvidia\\\\d+'}}\n"
    )
    env = {**simulator.environment(), **on_path(node.parent)}
    script = 'sleep 3600 < "$0" & exec "$@"'
    command = [*UNSHARE, "sh", "-c", script, str(node), sys.executable, "-m", "accelmetrics", "ps", "--backends", "nvidia", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**environment(), **env}, timeout=HANG, check=False)


def test_in_a_pid_namespace_of_its_own(tmp_path: Path) -> None:
    """What has a number here is not named for a process of a driver that counts as the machine does. One that counts as we do is right."""
    node = tmp_path / "nvidia0"
    node.touch()
    with NvmlSimulator(gpus=1) as simulator:
        simulator.processes(0, [Process(1, used=GIB), Process(2, used=3 * GIB), Process(GONE, used=GIB)])
        done = in_a_namespace(simulator, node, "--json")
        told = {one["pid"]: one for one in json.loads(done.stdout)["processes"]}
        assert [(told[pid]["memory_bytes"], told[pid]["command"], told[pid]["user"]) for pid in (1, 2, GONE)] == [
            (GIB, None, None),
            (3 * GIB, None, None),
            (GIB, None, None),
        ]
        assert told[1]["unavailable"]["user"].startswith("process 1 is not in this PID namespace: ")
        assert told[2]["unavailable"]["user"].endswith("is unknown: the driver lists others that are not")
        assert told[GONE]["unavailable"]["user"] == f"process {GONE} is not in this PID namespace, or has ended"
        simulator.processes(0, [Process(2, used=3 * GIB)])
        (process,) = json.loads(in_a_namespace(simulator, node, "--json").stdout)["processes"]
        assert (process["pid"], process["command"]) == (2, "sleep 3600")


def test_a_number_of_another_process_above() -> None:
    """A process that was not found is not drawn above the others, though one of its number is."""
    child = ProcessInfo("gpu.0", 40, user="anna", command="train", parents=(7, 1))
    foreign = ProcessInfo("gpu.0", 7, unavailable={"user": "process 7 is not in this PID namespace"})
    above = [ProcessInfo("", pid, user="root", command=name) for pid, name in ((7, "launcher"), (1, "init"))]
    lines = render(a_listing(foreign, child, parents=tuple(above)), tree=True).splitlines()
    assert [line.split()[:2] for line in lines[1:5]] == [["gpu.0", "7"], ["-", "1"], ["-", "7"], ["gpu.0", "40"]]
