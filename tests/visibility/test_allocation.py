"""Which processes were given which GPUs, and which they use: real processes with real environments on simulated GPUs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Generator, Mapping
from pathlib import Path

import pytest

from accelmetrics import Allocation, InvalidOptionError, UnknownNameError, allocation
from accelmetrics.schemas.identity import DeviceProcess
from accelmetrics.testing import FakeBackend
from accelmetrics.visibility import job
from accelmetrics.visibility.allocation import Use
from accelmetrics.visibility.job import Position, position, ray_decides
from tests.simulators.nvml import NvmlSimulator, Process
from tests.support.pids import STRANGER

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="platform: reads /proc")

GIB = 1 << 30
SLEEPER = "print(flush=True); input()"
LAUNCHER = """
import json, subprocess, sys
plans = json.loads(sys.argv[1])
ranks = [subprocess.Popen([sys.executable, "-c", "print(flush=True); input()"], env={**env, "PATH": "/usr/bin"}, stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE) for env in plans]
for rank in ranks:
    rank.stdout.readline()
print(*[rank.pid for rank in ranks], flush=True)
input()
for rank in ranks:
    rank.communicate(b"\\n")
"""


class Machine:
    """Four GPUs, and the processes of a job on them."""

    def __init__(self, simulator: NvmlSimulator) -> None:
        self.simulator = simulator
        self._programs: list[subprocess.Popen[str]] = []
        self._tables: dict[int, list[Process]] = {}

    def start(self, program: str = SLEEPER, *arguments: str, **environ: str) -> tuple[int, str]:
        """A process with this environment and nothing else in it; its number, and the first line that it says."""
        started = subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            env={"PATH": "/usr/bin", **environ},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._programs.append(started)
        assert started.stdout is not None
        return started.pid, started.stdout.readline()

    def worker(self, *gpus: int, used: int = GIB, **environ: str) -> int:
        """A process that uses these GPUs."""
        pid, _ = self.start(**environ)
        self.use(pid, *gpus, used=used)
        return pid

    def use(self, pid: int, *gpus: int, used: int = GIB) -> None:
        """Let the driver list a process."""
        for gpu in gpus:
            self._tables.setdefault(gpu, []).append(Process(pid, used=used))
            self.simulator.processes(gpu, self._tables[gpu])

    def launch(self, *plans: Mapping[str, str], **environ: str) -> tuple[int, list[int]]:
        """A launcher with ranks below it."""
        pid, said = self.start(LAUNCHER, json.dumps(plans), **environ)
        return pid, [int(word) for word in said.split()]

    def close(self) -> None:
        """End what was started, the ranks of launchers with it."""
        for program in self._programs:
            try:
                program.communicate("\n", timeout=10)
            except subprocess.TimeoutExpired:
                program.kill()
                program.communicate()


@pytest.fixture
def machine() -> Generator[Machine, None, None]:
    with NvmlSimulator(gpus=4) as simulator:
        simulator.load()
        made = Machine(simulator)
        yield made
        made.close()


def look(*pids: int, **options: object) -> Allocation:
    return allocation(pids, backends=["nvidia"], timeout=5.0, **options)  # type: ignore[arg-type]


def texts(found: Allocation, kind: str) -> list[str]:
    return [finding.text for finding in found.findings if finding.kind == kind]


def kinds(found: Allocation) -> set[str]:
    return {finding.kind for finding in found.findings}


def test_a_job_that_is_as_it_should_be(machine: Machine) -> None:
    """Every rank on its own GPU, and nothing to remark."""
    pids = [machine.worker(gpu, RANK=str(gpu), LOCAL_RANK=str(gpu), CUDA_VISIBLE_DEVICES=str(gpu)) for gpu in range(4)]
    found = look()
    assert [(worker.pid, worker.rank, worker.local_rank) for worker in found.workers] == [(pids[n], n, n) for n in range(4)]
    assert [worker.visible for worker in found.workers] == [(f"gpu.{n}",) for n in range(4)]
    assert [worker.used for worker in found.workers] == [(Use(f"gpu.{n}", GIB),) for n in range(4)]
    assert found.workers[2].lists == (("CUDA_VISIBLE_DEVICES", "2"),)
    assert [device.pids for device in found.devices] == [(pid,) for pid in pids]
    assert found.findings == ()
    assert found.as_expected


def test_pools_are_what_was_expected(machine: Machine) -> None:
    """Roles out of the environment and by hand; a list in another order is the same pool."""
    actor = machine.worker(0, 1, ACCELMETRICS_ROLE="actor", CUDA_VISIBLE_DEVICES="0,1")
    teacher = machine.worker(2, 3, CUDA_VISIBLE_DEVICES="3,2")
    found = look(actor, roles={"teacher": [teacher]}, expect={"actor": [0, "gpu.1"], "teacher": [3, 2]})
    assert [(worker.role, worker.pid) for worker in found.workers] == [("actor", actor), ("teacher", teacher)]
    assert found.pools == (("actor", ("gpu.0", "gpu.1"), ("gpu.0", "gpu.1")), ("teacher", ("gpu.2", "gpu.3"), ("gpu.2", "gpu.3")))
    assert found.findings == ()


def test_pools_that_differ(machine: Machine) -> None:
    """What is missing, what is too much, and a role that no process has."""
    actor = machine.worker(0, 2, ACCELMETRICS_ROLE="actor", CUDA_VISIBLE_DEVICES="0,2")
    found = look(expect={"actor": [0, 1], "teacher": [3]})
    assert texts(found, "pool_differs") == [
        "actor: expected on gpu.0 and gpu.1, does not use gpu.1 and uses gpu.2 beyond that",
        "teacher: no process has this role; expected on gpu.3",
    ]
    assert found.findings[0].pids == (actor,)
    assert found.findings[0].devices == ("gpu.1", "gpu.2")
    assert not found.as_expected


def test_a_rank_of_no_role_in_a_pool(machine: Machine) -> None:
    """Expected devices are the role's alone: a rank without a role on one of them makes the pool differ."""
    machine.worker(0, 1, ACCELMETRICS_ROLE="rollout", RANK="0", CUDA_VISIBLE_DEVICES="0,1")
    other = machine.worker(1, RANK="5", CUDA_VISIBLE_DEVICES="1")
    found = look(expect={"rollout": [0, 1]})
    assert texts(found, "pool_differs") == [f"rollout: expected on gpu.0 and gpu.1 alone, but gpu.1 is also used by rank 5 (PID {other})"]
    (finding,) = (finding for finding in found.findings if finding.kind == "pool_differs")
    assert (finding.pids, finding.devices) == ((other,), ("gpu.1",))
    assert not found.as_expected


def test_a_process_in_a_pool_that_was_not_named(machine: Machine) -> None:
    """A process that is not of the job is in the pool all the same, once for all the devices that it takes; so is one not visible here."""
    actor = machine.worker(0, 1, CUDA_VISIBLE_DEVICES="0,1")
    other = machine.worker(0, 1)
    machine.use(STRANGER, 2)
    teacher = machine.worker(2, CUDA_VISIBLE_DEVICES="2")
    found = look(roles={"actor": [actor], "teacher": [teacher]}, expect={"actor": [0, 1], "teacher": [2]})
    assert texts(found, "pool_differs") == [
        f"actor: expected on gpu.0 and gpu.1 alone, but gpu.0 and gpu.1 are also used by PID {other}",
        f"teacher: expected on gpu.2 alone, but gpu.2 is also used by PID {STRANGER}",
    ]


def test_another_role_in_a_pool(machine: Machine) -> None:
    """A role that nothing is expected of is outside too; a device that is expected of both belongs to both."""
    machine.worker(0, ACCELMETRICS_ROLE="actor", RANK="0", CUDA_VISIBLE_DEVICES="0")
    rollout = machine.worker(0, ACCELMETRICS_ROLE="rollout", RANK="0", CUDA_VISIBLE_DEVICES="0")
    assert texts(look(expect={"actor": [0]}), "pool_differs") == [
        f"actor: expected on gpu.0 alone, but gpu.0 is also used by rollout rank 0 (PID {rollout})"
    ]
    assert look(expect={"actor": [0], "rollout": [0]}).as_expected


def test_who_may_be_in_a_pool_with_its_role(machine: Machine) -> None:
    """A helper of the same rank is no stranger, and a display server takes no device from a job."""
    plan = {"RANK": "3", "CUDA_VISIBLE_DEVICES": "1"}
    rank, helpers = machine.launch(plan, plan, **plan)
    drawing, _ = machine.start()
    machine.simulator.processes(1, [Process(rank, used=GIB), Process(helpers[0], used=GIB), Process(drawing, "G", used=GIB)])
    found = look(helpers[0], roles={"actor": [rank]}, expect={"actor": [1]})
    assert {worker.pid: worker.role for worker in found.workers} == {rank: "actor", helpers[0]: ""}
    assert found.as_expected


def test_expecting_what_is_not_there(machine: Machine) -> None:
    """Is a mistake in the question."""
    with pytest.raises(UnknownNameError, match=r"gpu\.9"):
        look(expect={"actor": [9]})
    with pytest.raises(InvalidOptionError, match="list of device numbers"):
        look(expect={"actor": []})
    with pytest.raises(InvalidOptionError, match="not a process id"):
        look(-1)
    with pytest.raises(InvalidOptionError, match="named twice"):
        look(7, roles={"actor": [7]})
    with pytest.raises(InvalidOptionError, match="launcher"):
        look(children=True)


def test_two_ranks_on_one_gpu(machine: Machine) -> None:
    """All on cuda:0 is the classic: all were given all, and none took its own."""
    one = machine.worker(0, RANK="0", CUDA_VISIBLE_DEVICES="0,1")
    two = machine.worker(0, RANK="1", CUDA_VISIBLE_DEVICES="0,1")
    found = look()
    assert texts(found, "shared_device") == [f"rank 0 (PID {one}) and rank 1 (PID {two}) both use gpu.0"]
    assert "shared_unasked" not in kinds(found)
    assert texts(found, "unused_device")[0] == (
        f"no process uses gpu.1 (NVIDIA H100 80GB HBM3), though it is in the list of rank 0 (PID {one}) and rank 1 (PID {two})"
    )


def test_sharing_though_each_asked_for_its_own(machine: Machine) -> None:
    """The lists do not overlap, the use does."""
    one = machine.worker(0, RANK="0", CUDA_VISIBLE_DEVICES="0")
    two = machine.worker(0, RANK="1", CUDA_VISIBLE_DEVICES="1")
    found = look()
    assert texts(found, "shared_unasked") == [
        f"rank 0 (PID {one}) and rank 1 (PID {two}) both use gpu.0, though each asked for its own: "
        "CUDA_VISIBLE_DEVICES=0 and CUDA_VISIBLE_DEVICES=1"
    ]
    assert "shared_device" not in kinds(found)
    assert texts(found, "outside_list") == [f"rank 1 (PID {two}) uses gpu.0, outside its list (CUDA_VISIBLE_DEVICES=1: gpu.1)"]


def test_a_gpu_without_processes(machine: Machine) -> None:
    """Named once each, with the workers that were given it."""
    machine.worker(0, 1, 2, CUDA_VISIBLE_DEVICES="0,1,2")
    found = look()
    assert texts(found, "unused_device") == ["no process uses gpu.3 (NVIDIA H100 80GB HBM3)"]
    assert found.devices[3].pids == ()


def test_no_list_at_all(machine: Machine) -> None:
    """It sees everything; an empty list is a list."""
    free = machine.worker(0, RANK="0")
    bare = machine.worker(1, RANK="1", CUDA_VISIBLE_DEVICES="")
    found = look()
    assert texts(found, "no_list") == [f"rank 0 (PID {free}): no list is set (CUDA_VISIBLE_DEVICES): it sees all 4 devices"]
    assert found.workers[0].visible == ("gpu.0", "gpu.1", "gpu.2", "gpu.3")
    assert texts(found, "outside_list") == [f"rank 1 (PID {bare}) uses gpu.1, outside its list (CUDA_VISIBLE_DEVICES=: no device)"]


def test_a_list_with_a_mistake_in_it(machine: Machine) -> None:
    """CUDA ends it there without a word; here there is one."""
    pid = machine.worker(0, CUDA_VISIBLE_DEVICES="0,7,1")
    found = look()
    assert found.workers[0].visible == ("gpu.0",)
    assert texts(found, "list_problem") == [f"PID {pid}: CUDA_VISIBLE_DEVICES ends at '7', which names no device here"]


def test_workers_below_a_launcher(machine: Machine) -> None:
    """The launcher is none of them, though Slurm gave it a rank; a rank without a device is; loaders are not."""
    plans = [{"RANK": str(n), "LOCAL_RANK": str(n), "CUDA_VISIBLE_DEVICES": "0,1"} for n in (0, 1)]
    launcher, ranks = machine.launch(*plans, SLURM_PROCID="0")
    machine.use(ranks[0], 0)
    found = look(launcher, children=True)
    assert [worker.pid for worker in found.workers] == ranks
    assert texts(found, "no_device") == [f"rank 1 (PID {ranks[1]}) uses no device, though it was given gpu.0 and gpu.1"]


def test_a_rank_with_helpers(machine: Machine) -> None:
    """Loaders inherit the rank's environment and are not shown; a helper on the GPU shares it with its rank by right."""
    plan = {"RANK": "3", "CUDA_VISIBLE_DEVICES": "1"}
    rank, helpers = machine.launch(plan, plan, **plan)
    machine.use(rank, 1)
    found = look(rank, children=True)
    assert [worker.pid for worker in found.workers] == [rank]
    machine.use(helpers[0], 1, used=2 * GIB)
    found = look(rank, children=True)
    assert {worker.pid for worker in found.workers} == {rank, helpers[0]}
    assert kinds(found) == {"unused_device"}
    named = look(rank)
    assert [worker.used for worker in named.workers] == [(Use("gpu.1", 3 * GIB),)], "a helper's memory is its rank's"


def test_others_on_the_gpus_of_a_job(machine: Machine) -> None:
    """A process that was not asked about is named, not taken for one of the job."""
    mine = machine.worker(0, CUDA_VISIBLE_DEVICES="0")
    other = machine.worker(0)
    found = look(mine)
    assert texts(found, "stranger") == [f"gpu.0 is also used by {other}, which do not belong to the job"]
    assert [worker.pid for worker in found.workers] == [mine]


def test_a_process_that_is_gone(machine: Machine) -> None:
    """A number that no process has is said, and no pool can be as expected."""
    found = look(STRANGER)
    assert texts(found, "gone") == [f"there is no process {STRANGER}"]
    assert not found.as_expected


def test_a_process_of_another_namespace(machine: Machine) -> None:
    """No process has the driver's number here: that is all that is said of it."""
    machine.use(STRANGER, 2)
    found = look()
    (worker,) = found.workers
    assert (worker.pid, worker.visible, worker.used) == (STRANGER, None, (Use("gpu.2", GIB),))
    assert texts(found, "unreadable") == [f"PID {STRANGER}: process {STRANGER} has ended; its list and rank are not known"]
    assert kinds(found) == {"unreadable", "unused_device"}


def test_workers_of_ray(machine: Machine) -> None:
    """Ray sets the list inside the running worker: it is not known, rather than taken for unset."""
    pid = machine.worker(0, RAY_JOB_ID="01000000", RAY_LOCAL_RANK="0", RANK="0")
    found = look()
    (worker,) = found.workers
    assert (worker.visible, worker.rank, worker.local_rank) == (None, 0, 0)
    assert "no_list" not in kinds(found)
    assert texts(found, "list_problem")[0].startswith(f"rank 0 (PID {pid}): it is a worker of Ray")


def test_our_own_environment_is_the_one_that_we_have_now(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a program sets for itself counts where it can be seen."""
    machine.use(os.getpid(), 3)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    (worker,) = look(os.getpid()).workers
    assert worker.visible == ("gpu.3",)


def test_the_record_as_json(machine: Machine) -> None:
    """Plain containers all the way down."""
    pid = machine.worker(1, RANK="0", CUDA_VISIBLE_DEVICES="1")
    found = look(expect={"actor": [1]})
    document = json.loads(found.to_json())
    assert document == found.to_dict()
    assert document["as_expected"] is False
    assert document["workers"][0]["used"] == [{"device": "gpu.1", "memory_bytes": GIB}]
    assert document["workers"][0]["lists"] == [{"variable": "CUDA_VISIBLE_DEVICES", "value": "1"}]
    assert document["workers"][0]["pid"] == pid
    assert document["pools"] == [{"role": "actor", "expected": ["gpu.1"], "used": []}]
    assert {finding["kind"] for finding in document["findings"]} == {"pool_differs", "unused_device"}


def test_a_source_that_lists_no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then it cannot be told, and a pool on such a device is not confirmed."""
    monkeypatch.setenv("ACCELMETRICS_ROLE", "actor")
    backend = FakeBackend(devices=2)
    for device in backend.all_devices():
        device.set(powerWatts=1)
    backend.device(0).run(DeviceProcess(os.getpid(), "compute", 5))
    found = allocation([os.getpid()], backends=[backend], expect={"actor": [0, 1]})
    assert texts(found, "pool_unclear") == ["actor: expected on gpu.0 and gpu.1, but the processes that use gpu.1 are unknown"]
    assert texts(found, "use_unknown") == ["the processes that use gpu.1 are unknown: its source does not list processes"]
    assert found.devices[1].pids is None
    assert not found.as_expected


@pytest.mark.parametrize("lister", [0, 1])
def test_a_device_that_is_split(lister: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Users of a partition are listed under it, or under the whole by drivers that know no better: inside its list either way."""
    monkeypatch.setenv("ACCELMETRICS_VALIDATE", "0")
    backend = FakeBackend(devices=2, vendor="nvidia")
    whole, part = backend.device(0), backend.device(1)
    part.identity = part.identity._replace(uuid="MIG-89c850dc-1f41-57ac-b1a6-f7b6fbf7a1c0", vendor_index=0, parent=whole.identity.uuid)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-89c850dc")
    whole.run()
    backend.device(lister).run(DeviceProcess(os.getpid(), "compute", 7))
    found = allocation(backends=[backend])
    (worker,) = found.workers
    shown = "gpu.0.mig.0" if lister else "gpu.0"
    assert (worker.visible, worker.used) == (("gpu.0.mig.0",), (Use(shown, 7),))
    assert [device.key for device in found.devices] == [shown]
    assert found.findings == ()


def test_a_driver_that_fails_is_said() -> None:
    """An empty machine has its reason beside it."""
    from accelmetrics import Reason, SourceError

    backend = FakeBackend()
    backend.opening.fail(SourceError(Reason.DRIVER_UNAVAILABLE, "the driver is not loaded"))
    found = allocation(backends=[backend], open_timeout=1.0)
    assert texts(found, "source") == ["fake: the driver is not loaded"]


def test_numbers_of_another_namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that counts as the container does: NSpid has the number; a stranger's of the same number is not taken for it."""
    monkeypatch.setenv("ACCELMETRICS_SYSROOT", str(tmp_path))
    for pid, parent, inner in ((500, 1, ""), (501, 500, "\t17"), (502, 500, "\t18"), (18, 1, "")):
        (tmp_path / f"proc/{pid}").mkdir(parents=True)
        (tmp_path / f"proc/{pid}/status").write_text(f"PPid:\t{parent}\nNSpid:\t{pid}{inner}\n")
        (tmp_path / f"proc/{pid}/environ").write_bytes(b"RANK=%d\0" % pid)
        (tmp_path / f"proc/{pid}/cmdline").write_bytes(b"ray::Actor.step\0")
        (tmp_path / f"proc/{pid}/ns").mkdir()
        (tmp_path / f"proc/{pid}/ns/mnt").symlink_to(f"mnt:[{402653 + (pid > 500)}]")
    (tmp_path / "proc/self").symlink_to("500")
    members = [job.listed(501), job.listed(502)]
    owners = {pid: job.owner(members, pid) for pid in (501, 17, 18, 99)}
    assert (owners[501], owners[17], owners[18], owners[99]) == (members[0], members[0], None, None)
    assert job.name_of(members[0]) == "ray::Actor.step"
    assert job.in_other_container(members[0])
    assert not job.in_other_container(job.listed(500))
    assert job.uses(members[0], [17])
    assert not job.uses(members[1], [18])


def test_in_a_container_without_the_machines_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who uses a device is not known: the process here that has a listed number does not, and may not be told to."""
    monkeypatch.setenv("ACCELMETRICS_SYSROOT", str(tmp_path))
    monkeypatch.setenv("ACCELMETRICS_VALIDATE", "0")
    for pid in (1, 57):
        (tmp_path / f"proc/{pid}/ns").mkdir(parents=True)
        (tmp_path / f"proc/{pid}/status").write_text(f"PPid:\t1\nNSpid:\t{pid}\n")
        (tmp_path / f"proc/{pid}/environ").write_text("RANK=3\0CUDA_VISIBLE_DEVICES=0\0")
        (tmp_path / f"proc/{pid}/cmdline").write_bytes(b"nginx\0")
        (tmp_path / f"proc/{pid}/ns/pid").symlink_to("pid:[4026532209]")
    backend = FakeBackend(devices=1, vendor="nvidia")
    backend.device(0).run(DeviceProcess(57, "compute", GIB), DeviceProcess(2733390, "compute", GIB))
    found = allocation(backends=[backend])
    assert [(worker.pid, worker.name, worker.rank, worker.used) for worker in found.workers] == [
        (57, "", None, (Use("gpu.0", GIB),)),
        (2733390, "", None, (Use("gpu.0", GIB),)),
    ]
    assert kinds(found) == {"unreadable", "shared_device"}
    named = allocation([57], backends=[backend])
    assert [(worker.pid, worker.rank, worker.used) for worker in named.workers] == [(57, 3, ())]
    (unknown,) = texts(named, "use_unknown")
    assert unknown.startswith("the processes that use gpu.0 are unknown: process 57 is not in this PID namespace: ")
    assert not {"stranger", "no_device", "unused_device"} & kinds(named)
    assert named.devices[0].pids == (57, 2733390)


def test_a_list_that_counts_a_containers_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process in a container that was given some of the GPUs: its numbers are not ours, its UUIDs are."""
    monkeypatch.setenv("ACCELMETRICS_SYSROOT", str(tmp_path))
    backend = FakeBackend(devices=2, vendor="nvidia")
    monkeypatch.setenv("ACCELMETRICS_VALIDATE", "0")
    uuid = backend.device(1).identity.uuid
    for pid, value in ((600, "0"), (601, uuid)):
        (tmp_path / f"proc/{pid}/ns").mkdir(parents=True)
        (tmp_path / f"proc/{pid}/ns/mnt").symlink_to("mnt:[2]")
        (tmp_path / f"proc/{pid}/status").write_text(f"PPid:\t1\nNSpid:\t{pid}\n")
        (tmp_path / f"proc/{pid}/environ").write_text(f"NVIDIA_VISIBLE_DEVICES=1\0CUDA_VISIBLE_DEVICES={value}\0")
    (tmp_path / "proc/self/ns").mkdir(parents=True)
    (tmp_path / "proc/self/ns/mnt").symlink_to("mnt:[1]")
    backend.device(1).run(DeviceProcess(600), DeviceProcess(601))
    found = allocation(backends=[backend])
    assert [worker.visible for worker in found.workers] == [None, ("gpu.1",)]
    assert "runs in another container" in texts(found, "list_problem")[0]
    assert "outside_list" not in kinds(found)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, ("", None, None)),
        ({"RANK": "3", "LOCAL_RANK": "1", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}, ("", 3, 1)),
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}, ("", 2, 0)),
        ({"PMI_RANK": "5", "MPI_LOCALRANKID": "1"}, ("", 5, 1)),
        ({"SLURM_PROCID": "9", "SLURM_LOCALID": "1"}, ("", 9, 1)),
        ({"RAY_LOCAL_RANK": "2"}, ("", None, 2)),
        ({"RANK": "x", "SLURM_PROCID": "4"}, ("", 4, None)),
        ({"ACCELMETRICS_ROLE": " critic "}, ("critic", None, None)),
    ],
)
def test_ranks_as_launchers_leave_them(environ: dict[str, str], expected: Position) -> None:
    """The nearest to the program counts."""
    assert position(environ) == expected


def test_when_ray_decides() -> None:
    """Not where it was told to leave the lists alone."""
    assert not ray_decides({})
    assert ray_decides({"RAY_JOB_ID": "01"})
    assert not ray_decides({"RAY_JOB_ID": "01", "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"})
