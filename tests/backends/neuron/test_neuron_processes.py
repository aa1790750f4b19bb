"""Which process is on which NeuronCore, and whether it was given that core."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from accelmetrics import Allocation, allocation
from accelmetrics.schemas.identity import DeviceProcess
from accelmetrics.visibility.allocation import Use
from tests.backends.neuron.machine import once, quick_backend
from tests.cli.shell import environment, run
from tests.simulators.neuron import NeuronMonitorStandIn, SysfsTree, hardware, report, runtime
from tests.simulators.neuron.reports import core_memory

MEMORY = [sum(core_memory(core).values()) for core in range(4)]
FAILED = {"neuroncore_counters": "no counters", "memory_used": "no memory"}


@pytest.fixture
def worker(tree: SysfsTree) -> Generator[subprocess.Popen[str], None, None]:
    """A process that was given cores 0 and 1 of its machine; processes are this machine's own."""
    tree.add_node()
    Path(os.environ["ACCELMETRICS_SYSROOT"], "proc").symlink_to("/proc")
    environ = {"PATH": "/usr/bin", "NEURON_RT_VISIBLE_CORES": "0-1", "ACCELMETRICS_ROLE": "actor", "RANK": "0"}
    program = [sys.executable, "-c", "print(flush=True); input()"]
    with subprocess.Popen(program, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        started.stdout.readline()
        yield started
        started.communicate("\n", timeout=10)


def look(**options: object) -> Allocation:
    return allocation(backends=[quick_backend()], timeout=5.0, **options)  # type: ignore[arg-type]


def texts(found: Allocation) -> list[tuple[str, str]]:
    return [(finding.kind, finding.text) for finding in found.findings]


def test_each_core_has_its_programs_with_memory_and_use(tool: NeuronMonitorStandIn) -> None:
    """All programs of the report, each with what it holds of that core; a core without a program has an empty list."""
    tool.tell(report=report([runtime(11, {0: 30.0}), runtime(12, {0: 5.0, 2: 70.0})], machine=hardware(2, 2)))
    expected = {
        "trn.0": (DeviceProcess(11, "compute", MEMORY[0], 30.0), DeviceProcess(12, "compute", MEMORY[0], 5.0)),
        "trn.1": (),
        "trn.2": (DeviceProcess(12, "compute", MEMORY[2], 70.0),),
        "trn.3": (),
    }
    assert once().processes == expected
    assert once(pid=11).processes == expected, "who uses a core does not depend on who is watched"


def test_what_a_section_does_not_say_is_missing_and_the_rest_is_there(tool: NeuronMonitorStandIn) -> None:
    """Without the memory section a process has no memory, without counters no share; 0 is neither."""
    silent = runtime(12, {1: 7.0}, errors={"neuroncore_counters": "no counters"})
    tool.tell(report=report([runtime(11, {0: 30.0}, errors={"memory_used": "no memory"}), silent], machine=hardware(1, 2)))
    assert once().processes == {"trn.0": (DeviceProcess(11, "compute", None, 30.0),), "trn.1": (DeviceProcess(12, "compute", MEMORY[1]),)}


def test_memory_of_nothing_is_no_use(tool: NeuronMonitorStandIn) -> None:
    """A core whose row of a program's memory is all zeros, and that its counters do not name, is not the program's."""
    idle = runtime(11, {0: 30.0})
    cores = idle["report"]["memory_used"]["neuron_runtime_used_bytes"]["usage_breakdown"]["neuroncore_memory_usage"]
    cores["1"] = dict.fromkeys(core_memory(1), 0)
    tool.tell(report=report([idle], machine=hardware(1, 2)))
    assert once().processes["trn.1"] == ()


@pytest.mark.parametrize("unknown", [runtime(12, {1: 7.0}, errors=FAILED), runtime(-1, {0: 7.0})], ids=["no cores", "no process id"])
def test_a_program_that_cannot_be_placed_leaves_the_users_unknown(tool: NeuronMonitorStandIn, unknown: dict[str, object]) -> None:
    """A list that may lack a program is none: who uses the core cannot be told."""
    tool.tell(report=report([runtime(11, {0: 30.0}), unknown], machine=hardware(1, 2)))
    assert "trn.0" not in once().processes


def test_the_driver_s_counters_name_no_process(tree: SysfsTree) -> None:
    """Without the tool it is not known which process uses a core, and that is what allocation says."""
    tree.add_chip(0)
    assert once().processes == {}
    assert [kind for kind, _ in texts(look())] == ["use_unknown"]


def test_a_job_on_the_cores_that_it_was_given(tool: NeuronMonitorStandIn, worker: subprocess.Popen[str]) -> None:
    """Its list counts cores, as our keys do."""
    tool.tell(report=report([runtime(worker.pid, {0: 30.0, 1: 40.0})], machine=hardware(1, 2)))
    found = look(expect={"actor": ["trn.0", "trn.1"]})
    (one,) = found.workers
    assert (one.pid, one.role, one.rank, one.visible) == (worker.pid, "actor", 0, ("trn.0", "trn.1"))
    assert one.lists == (("NEURON_RT_VISIBLE_CORES", "0-1"),)
    assert one.used == (Use("trn.0", MEMORY[0]), Use("trn.1", MEMORY[1]))
    assert texts(found) == []


def test_a_job_on_cores_of_others(tool: NeuronMonitorStandIn, worker: subprocess.Popen[str]) -> None:
    """A core outside the list, one that is left idle, and another process on the pool's."""
    tool.tell(report=report([runtime(worker.pid, {0: 30.0, 2: 40.0}), runtime(os.getpid(), {0: 1.0})], machine=hardware(2, 2)))
    found = look(roles={"actor": [worker.pid]}, expect={"actor": ["trn.0", "trn.1"]})
    label = f"actor rank 0 (PID {worker.pid})"
    assert texts(found) == [
        ("pool_differs", "actor: expected on trn.0 and trn.1, does not use trn.1 and uses trn.2 beyond that"),
        ("pool_differs", f"actor: expected on trn.0 and trn.1 alone, but trn.0 is also used by PID {os.getpid()}"),
        ("outside_list", f"{label} uses trn.2, outside its list (NEURON_RT_VISIBLE_CORES=0-1: trn.0 and trn.1)"),
        ("unused_device", f"no process uses trn.1 (trainium1), though it is in the list of {label}"),
        ("unused_device", "no process uses trn.3 (trainium1)"),
        ("stranger", f"trn.0 is also used by {os.getpid()}, which do not belong to the job"),
    ]


def test_from_a_shell(tool: NeuronMonitorStandIn, worker: subprocess.Popen[str]) -> None:
    """The command's status answers for Trainium as for GPUs."""
    tool.tell(report=report([runtime(worker.pid, {0: 30.0})], machine=hardware(1, 2)))
    env = environment(ACCELMETRICS_SYSROOT=os.environ["ACCELMETRICS_SYSROOT"], PATH=tool.path)
    good = run("allocation", "--json", "--backends", "neuron", "--expect", "actor=trn.0", env=env)
    assert (good.returncode, good.stderr) == (0, "")
    assert json.loads(good.stdout)["pools"] == [{"role": "actor", "expected": ["trn.0"], "used": ["trn.0"]}]
    assert run("allocation", "--backends", "neuron", "--expect", "actor=trn.0,trn.1", env=env).returncode == 1
