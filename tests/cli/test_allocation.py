"""``allocation``, and ``--visible``, from a shell: what is printed, and with which status."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Generator

import pytest

from accelmetrics.cli.allocation import _keys, pools, render, roles
from accelmetrics.visibility.allocation import allocation
from tests.cli.shell import call, device_entries, document, environment, one_line
from tests.simulators.nvml import NvmlSimulator, Process
from tests.support.waiting import HANG

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="platform: reads /proc")

GIB = 1 << 30


class Job:
    """Four GPUs, an actor on the first two and a rollout that is where it should not be."""

    def __init__(self, simulator: NvmlSimulator) -> None:
        self.simulator = simulator
        self.env = environment(**simulator.environment(), COLUMNS="200")
        self._programs = [
            self._start(ACCELMETRICS_ROLE="actor", RANK="0", CUDA_VISIBLE_DEVICES="0"),
            self._start(ACCELMETRICS_ROLE="actor", RANK="1", CUDA_VISIBLE_DEVICES="1"),
            self._start(RANK="0", CUDA_VISIBLE_DEVICES="2,3"),
        ]
        self.actors = [program.pid for program in self._programs[:2]]
        self.rollout = self._programs[2].pid
        for gpu, pid in ((0, self.actors[0]), (1, self.actors[1]), (2, self.rollout)):
            simulator.processes(gpu, [Process(pid, used=(gpu + 1) * GIB)])

    def _start(self, **environ: str) -> subprocess.Popen[str]:
        program = subprocess.Popen(
            [sys.executable, "-c", "print(flush=True); input()"],
            env={"PATH": "/usr/bin", **environ},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert program.stdout is not None
        program.stdout.readline()
        return program

    def run(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """The command on this machine."""
        return call(*arguments, "--backends", "nvidia", env={**self.env, **environ})

    def close(self) -> None:
        """End it."""
        for program in self._programs:
            program.communicate("\n", timeout=HANG)


@pytest.fixture
def job() -> Generator[Job, None, None]:
    with NvmlSimulator(gpus=4) as simulator:
        made = Job(simulator)
        yield made
        made.close()


def test_every_process_that_uses_a_device(job: Job) -> None:
    """A line each, then the findings; whatever is found, it was found."""
    done = job.run("allocation")
    assert (done.returncode, done.stderr) == (0, "")
    head, *rows = done.stdout.partition("\n\n")[0].splitlines()
    assert head.split() == ["ROLE", "RANK", "LOCAL", "PID", "COMMAND", "LIST", "SEES", "USES"]
    by_pid = {int(row.split()[3]): row for row in rows}
    assert set(by_pid) == {*job.actors, job.rollout}
    assert by_pid[job.actors[1]].split()[-5:] == ["CUDA_VISIBLE_DEVICES=1", "gpu.1", "gpu.1", "(2.0", "GiB)"]
    assert by_pid[job.rollout].split()[:2] == ["-", "0"]
    assert by_pid[job.rollout].split()[-5:] == ["CUDA_VISIBLE_DEVICES=2,3", "gpu.2,gpu.3", "gpu.2", "(3.0", "GiB)"]
    assert done.stdout.endswith(
        f"\n\n- no process uses gpu.3 (NVIDIA H100 80GB HBM3), though it is in the list of rank 0 (PID {job.rollout})\n"
    )


def test_a_long_line_is_cut_on_a_terminal_alone(job: Job) -> None:
    """What a file or another program gets is whole."""
    done = job.run("allocation", "--role", f"{'actor' * 30}={job.rollout}")
    row = next(line for line in done.stdout.splitlines() if line.startswith("actoractor"))
    assert len(row) > 150
    assert "…" not in done.stdout
    found = allocation(roles={"actor" * 30: [job.rollout]}, backends=["host"])
    assert [len(line) for line in render(found, 60, cut=True).splitlines()[:2]] == [60, 60]


def test_consecutive_devices_are_a_range_in_the_programs_order() -> None:
    assert _keys([f"gpu.{number}" for number in range(8)]) == "gpu.0-7"
    assert _keys(["gpu.3", "gpu.1", "gpu.2.mig.0", "npu.4", "npu.5", "npu.6"]) == "gpu.3,gpu.1,gpu.2.mig.0,npu.4-6"
    assert _keys([]) == "none"


def test_pools_as_expected_and_not(job: Job) -> None:
    """The exit status is the answer to a script, the words are the answer to a person."""
    role = f"rollout={job.rollout}"
    good = job.run("allocation", "--pid", f"{job.actors[0]},{job.actors[1]}", "--role", role, "--expect", "actor=0-1,rollout=2")
    assert (good.returncode, good.stderr) == (0, "")
    assert "actor: expected gpu.0,gpu.1; uses gpu.0,gpu.1\nrollout: expected gpu.2; uses gpu.2\n" in good.stdout
    bad = job.run("allocation", "--role", role, "--expect", "actor=0,1", "--expect", "rollout=2-3")
    assert (bad.returncode, bad.stderr) == (1, "")
    assert "- actor: no process has this role; expected on gpu.0 and gpu.1\n" in bad.stdout
    assert "- rollout: expected on gpu.2 and gpu.3, does not use gpu.3\n" in bad.stdout


def test_a_stranger_in_a_pool(job: Job) -> None:
    """What a role was promised alone and has not is an exit status of 1, with who is there."""
    done = job.run("allocation", "--role", f"actor={job.actors[0]}", "--expect", "actor=0")
    assert (done.returncode, done.stderr) == (0, "")
    job.simulator.processes(0, [Process(job.actors[0], used=GIB), Process(job.rollout, used=GIB)])
    bad = job.run("allocation", "--role", f"actor={job.actors[0]}", "--expect", "actor=0")
    assert (bad.returncode, bad.stderr) == (1, "")
    assert f"- actor: expected on gpu.0 alone, but gpu.0 is also used by PID {job.rollout}\n" in bad.stdout
    ranks = job.run("allocation", "--json", "--expect", "actor=0-1")
    assert ranks.returncode == 1
    (finding,) = (each for each in json.loads(ranks.stdout)["findings"] if each["kind"] == "pool_differs")
    assert (finding["pids"], finding["devices"]) == ([job.rollout], ["gpu.0"])


def test_for_programs(job: Job) -> None:
    """One JSON object with the same status."""
    done = job.run("allocation", "--json", "--expect", "actor=0")
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert found["as_expected"] is False
    assert [worker["pid"] for worker in found["workers"]] == [job.rollout, *job.actors]
    assert [finding["kind"] for finding in found["findings"]] == ["pool_differs", "unused_device"]


def test_a_process_that_is_not_there(job: Job) -> None:
    """Was named, and could not be looked at."""
    done = job.run("allocation", "--pid", "4194305")
    assert done.returncode == 1
    assert "- there is no process 4194305\n" in done.stdout


def test_no_process_at_all(simulator: NvmlSimulator) -> None:
    """Said in words."""
    done = call("allocation", "--backends", "nvidia", env=environment(**simulator.environment()))
    assert done.returncode == 0
    assert done.stdout.startswith("No process that uses a device was found.\n\n- no process uses gpu.0 and gpu.1 (NVIDIA H100 80GB HBM3)\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--children"], "--children needs the launcher"),
        (["--pid", "0"], "'0' must be a process id"),
        (["--expect", "0-1"], "'0-1' has no name: write NAME=LIST"),
        (["--expect", "actor="], "is not a device"),
        (["--role", "actor=x"], "'x' must be a process id"),
        (["--expect", "actor=9"], "unknown device 'gpu.9'"),
        (["--role", "actor=1,teacher=1"], "named twice"),
        (["--pools", "actor=1"], "unknown option '--pools'"),
    ],
)
def test_arguments_that_cannot_be_used(job: Job, arguments: list[str], words: str) -> None:
    """One line, and status 2."""
    done = job.run("allocation", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    line = one_line(done.stderr)
    assert line.startswith("accelmetrics allocation: ")
    assert words in line


def test_lists_by_name() -> None:
    """What has no name of its own belongs to the name before it."""
    assert roles("actor=1,2,rollout=3") == [("actor", 1), ("actor", 2), ("rollout", 3)]
    assert pools("actor=0-1,gpu.3, t=GPU-99421") == [("actor", 0), ("actor", 1), ("actor", "gpu.3"), ("t", "GPU-99421")]
    with pytest.raises(argparse.ArgumentTypeError):
        pools("=1")


def test_dump_of_what_is_visible(job: Job) -> None:
    """By the command's own environment, by the watched process's, and under its numbers."""
    kept = document(job.run("dump", "--json", "--visible", CUDA_VISIBLE_DEVICES="3,1").stdout)
    assert [(device.key, device.visible_index) for device in kept.devices] == [("gpu.1", 1), ("gpu.3", 0)]
    watched = document(job.run("dump", "--json", "--visible", "--pid", str(job.rollout), CUDA_VISIBLE_DEVICES="0").stdout)
    assert [(device.key, device.visible_index) for device in watched.devices] == [("gpu.2", 0), ("gpu.3", 1)]
    renumbered = document(job.run("dump", "--json", "--visible=renumber", CUDA_VISIBLE_DEVICES="3,1").stdout)
    assert [(device.key, device.vendor_index) for device in renumbered.devices] == [("gpu.0", 3), ("gpu.1", 1)]
    everything = document(job.run("dump", "--json", CUDA_VISIBLE_DEVICES="3,1").stdout)
    assert [device.visible_index for device in everything.devices] == [None, 1, None, 0]


def test_dump_with_a_word_that_is_neither(job: Job) -> None:
    """Names what there is."""
    done = job.run("dump", "--visible=all")
    assert done.returncode == 2
    assert "renumber" in one_line(done.stderr)


def test_list_of_what_is_visible(job: Job) -> None:
    """With a column for the program's numbers."""
    shown = job.run("list", "--visible", CUDA_VISIBLE_DEVICES="3,1")
    head, *lines = shown.stdout.splitlines()
    assert head.split()[-1] == "VISIBLE"
    assert [(line.split()[0], line.split()[-1]) for line in lines] == [("gpu.1", "1"), ("gpu.3", "0")]
    entries = device_entries(job.run("list", "--json", "--visible", CUDA_VISIBLE_DEVICES="2").stdout)
    assert [(entry["key"], entry["visible_index"]) for entry in entries] == [("gpu.2", 0)]
    none = job.run("list", "--visible", CUDA_VISIBLE_DEVICES="")
    assert (none.returncode, none.stdout) == (0, "")
    assert "No device is visible" in one_line(none.stderr)


def test_list_where_numbers_cannot_be_told() -> None:
    """Two models without an order: question marks, and a word about it."""
    with NvmlSimulator(gpus=["h100", "t4"]) as simulator:
        env = environment(**simulator.environment())
        unknown = call("list", "--visible", "--backends", "nvidia", env=env)
        known = call("list", "--visible", "--backends", "nvidia", env={**env, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
    assert [line.split()[-1] for line in unknown.stdout.splitlines()[1:3]] == ["?", "?"]
    assert "numbers are unknown" in one_line(unknown.stderr)
    assert [line.split()[-1] for line in known.stdout.splitlines()[1:3]] == ["0", "1"]
    assert known.stderr == ""


def test_without_ray_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line."""
    monkeypatch.setattr("accelmetrics.cli.allocation.find_spec", lambda name: None)
    result = call("allocation", "--ray")
    assert result.returncode == 1
    assert "Ray is not installed" in one_line(result.stderr)
