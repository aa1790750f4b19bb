"""Who is on which device: what the driver lists, and what the system says of it, or why it does not."""

from __future__ import annotations

import getpass
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from accelmetrics import ProcessInfo, Sampler, Snapshot, processes
from accelmetrics.backends.kit.system import read_once
from accelmetrics.schemas.errors import Reason, Unavailable, UnknownNameError
from accelmetrics.schemas.identity import DeviceProcess
from accelmetrics.schemas.record import Record
from accelmetrics.schemas.snapshot import NO_LIST
from accelmetrics.testing import FakeBackend
from accelmetrics.views.node_view import node_view
from accelmetrics.visibility import processes as module
from accelmetrics.visibility.processes import ProcessListing, ProcessLookup, membership, process_labels
from tests.support.waiting import HANG, wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="platform: reads /proc")

GIB = 1 << 30
ID, OTHER = "4f" * 32, "0a" * 32
POD = "6b1e1c54-6c6c-4b0e-9d8f-1f2e3d4c5b6a"
UNDERSCORED = POD.replace("-", "_")
BOOT = 1_700_000_000


@dataclass
class Tree:
    """A ``/proc`` with processes of our making, of a machine that was started at ``BOOT``."""

    root: Path

    def write(self, path: str, text: str) -> None:
        """A file, with the folders that it is in."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def link(self, path: str, target: str) -> None:
        """A link, in the place of what is there."""
        link = self.root / path
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(target)

    def process(
        self, pid: int, command: str = "python\0train.py\0", *, uid: int = 1000, cgroup: str = "0::/", parent: int = 1, state: str = "S"
    ) -> None:
        """A process that was started a minute after the machine."""
        ticks = 60 * os.sysconf("SC_CLK_TCK")
        self.write(f"proc/{pid}/stat", f"{pid} (a) name) {state} {parent} {' '.join(['0'] * 17)} {ticks} 0 0\n")
        self.write(f"proc/{pid}/status", f"Name:\ta) name\nPPid:\t{parent}\nUid:\t{uid}\t0\t0\t0\nNSpid:\t{pid}\n")
        self.write(f"proc/{pid}/cmdline", command)
        self.write(f"proc/{pid}/cgroup", cgroup)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    """The whole machine, and nothing on it but its first process."""
    monkeypatch.setenv("ACCELMETRICS_SYSROOT", str(tmp_path))
    made = Tree(tmp_path)
    made.write("proc/stat", f"cpu 1 2 3\nbtime {BOOT}\nprocesses 5\n")
    made.write("etc/passwd", "root:x:0:0::/root:/bin/sh\nanna:x:1000:1000::/home/anna:/bin/sh\n")
    made.process(1, "init\0", uid=0, parent=0)
    made.link("proc/self", "1")
    made.link("proc/1/ns/pid", "pid:[4026531836]")
    made.link("proc/1/ns/cgroup", "cgroup:[4026531835]")
    return made


@pytest.fixture
def child() -> Iterator[int]:
    """A process of ours."""
    with subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); input()", "a  b"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as program:
        assert program.stdout is not None
        program.stdout.readline()
        yield program.pid
        program.communicate(b"\n")


def reading(*found: DeviceProcess, devices: int = 1) -> Snapshot:
    """Processes on the first of some devices; the others have none."""
    backend = FakeBackend(devices=devices)
    for number in range(devices):
        backend.device(number).set(powerWatts=1).run(*(found if not number else ()))
    with Sampler([backend]) as sampler:
        return sampler.sample()


def about(pid: int) -> ProcessInfo:
    """What is said of one process."""
    (process,) = processes(reading(DeviceProcess(pid))).processes
    return process


def missing(process: ProcessInfo) -> dict[str, str]:
    """The reasons but the driver's."""
    return {field: why for field, why in process.unavailable.items() if why != module.NOT_REPORTED}


def test_a_process_of_ours(child: int) -> None:
    """Everything that the driver and the system say of it."""
    found = processes(reading(DeviceProcess(child, "compute", GIB, 80.0, None), devices=2), parents=True)
    (process,) = found.processes
    assert process[:6] == ("gpu.0", child, "compute", GIB, 80.0, None)
    assert process.command == f"{sys.executable} -c print(flush=True); input() a  b"
    assert process.user == getpass.getuser()
    assert process.started is not None
    assert process.started[:19] <= found.timestamp[:19]
    assert process.parents[0] == os.getpid()
    assert process.unavailable["memory_utilization"] == "the driver does not report it"
    assert not {"user", "command", "started", "memory_bytes"} & process.unavailable.keys()
    assert {parent.pid for parent in found.parents} == set(process.parents)
    assert {(parent.device, parent.memory_bytes) for parent in found.parents} == {("", None)}
    assert found.parents[0].pid == os.getpid()
    assert found.parents[0].command
    assert found.unlisted == {}


def test_a_system_that_does_not_answer_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it said before stands until it does; the same processes are not asked about at each reading."""
    asked: list[int] = []
    answering = threading.Event()

    def slow(snapshot: Snapshot) -> ProcessListing:
        asked.append(len(asked))
        answering.wait(HANG)
        return processes(snapshot)

    lookup, known, other = ProcessLookup(), reading(DeviceProcess(os.getpid())), reading(DeviceProcess(2**22 + 1))
    first = lookup.listing(known)
    assert first is not None and first.processes[0].user == getpass.getuser()
    assert lookup.listing(reading(DeviceProcess(os.getpid()))) is first
    monkeypatch.setattr(module, "PATIENCE", 0.01)
    monkeypatch.setattr(module, "processes", slow)
    assert lookup.listing(other) is first
    assert lookup.listing(other) is first
    assert asked == [0]
    answering.set()
    wait_for(lambda: lookup.listing(other) is not first)
    assert asked == [0]


def test_labels_of_processes(tree: Tree) -> None:
    """Those that were asked for, where they are known; nothing of a process that has ended, or of another machine."""
    tree.process(20, cgroup=f"0::/kubepods.slice/kubepods-pod{UNDERSCORED}.slice/cri-containerd-{ID}.scope")
    tree.process(21, uid=77)
    taken = reading(DeviceProcess(20), DeviceProcess(21), DeviceProcess(22))
    tell = process_labels(["user", "pod", "container"])
    assert tell(taken, [20, 21, 22]) == {20: {"user": "anna", "pod": POD, "container": ID}, 21: {"user": "77"}, 22: {}}
    elsewhere = Snapshot(taken.time_ns, "another", taken.metrics, taken.identities)
    assert tell(elsewhere, [20]) == {}


@pytest.mark.parametrize(("name", "near"), [("usr", "user"), ("command", "")])
def test_a_label_that_there_is_not_is_refused(name: str, near: str) -> None:
    """Nor is a command line one."""
    with pytest.raises(UnknownNameError, match=f"Did you mean '{near}'" if near else "unknown label of a process 'command'"):
        process_labels(["pod", name])


def test_by_device_then_by_memory_and_devices_that_are_not_known(tree: Tree) -> None:
    for pid in (20, 21, 22, 23):
        tree.process(pid)
    backend = FakeBackend(devices=4)
    for device in backend.all_devices():
        device.set(powerWatts=1)
    backend.device(0).run(DeviceProcess(20), DeviceProcess(21, "", 5), DeviceProcess(22, "", GIB))
    backend.device(1).run(DeviceProcess(23, "", 1), DeviceProcess(22, "", 7))
    backend.device(2).unlist(Reason.NO_PERMISSION, "another user's")
    with Sampler([backend]) as sampler:
        found = processes(sampler.sample())
    assert [(one.device, one.pid) for one in found.processes] == [("gpu.0", 22), ("gpu.0", 21), ("gpu.0", 20), ("gpu.1", 22), ("gpu.1", 23)]
    assert found.unlisted == {"gpu.2": Unavailable(Reason.NO_PERMISSION, "another user's"), "gpu.3": NO_LIST}
    assert (found.parents, found.idle) == ((), ())
    assert processes(reading(DeviceProcess(20), devices=3)).idle == ("gpu.1", "gpu.2")


def test_a_partitions_processes_are_its_own(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver lists them for the whole device too."""
    monkeypatch.setenv("ACCELMETRICS_VALIDATE", "0")
    tree.process(20)
    backend = FakeBackend(devices=2, vendor="nvidia")
    whole, part = backend.device(0), backend.device(1)
    part.identity = part.identity._replace(uuid="MIG-89c850dc-1f41-57ac-b1a6-f7b6fbf7a1c0", vendor_index=0, parent=whole.identity.uuid)
    for device in (whole, part):
        device.run(DeviceProcess(20, "compute", GIB))
    with Sampler([backend]) as sampler:
        assert [one.device for one in processes(sampler.sample()).processes] == ["gpu.0.mig.0"]


def test_as_a_document(tree: Tree) -> None:
    tree.process(20, cgroup=f"0::/system.slice/docker-{ID}.scope")
    text = processes(reading(DeviceProcess(20, "compute", GIB)), parents=True).to_json()
    document = json.loads(text)
    assert document["processes"] == [
        {
            "device": "gpu.0",
            "pid": 20,
            "type": "compute",
            "memory_bytes": GIB,
            "utilization": None,
            "memory_utilization": None,
            "user": "anna",
            "command": "python train.py",
            "started": "2023-11-14T22:14:20Z",
            "container": ID,
            "runtime": "docker",
            "pod": None,
            "slurm_job": None,
            "slurm_step": None,
            "parents": [1],
            "unavailable": {"utilization": "the driver does not report it", "memory_utilization": "the driver does not report it"},
        }
    ]
    assert [(parent["pid"], parent["user"], parent["command"]) for parent in document["parents"]] == [(1, "root", "init")]
    assert (document["idle"], document["unlisted"]) == ([], {})


@pytest.mark.parametrize(
    ("text", "expected"),
    {
        "plain": ("0::/user.slice/user-1000.slice/session-2.scope", {}),
        "docker, systemd": (f"0::/system.slice/docker-{ID}.scope", {"container": ID, "runtime": "docker"}),
        "docker, v1": (f"12:devices:/docker/{ID}\n1:name=systemd:/docker/{ID}\n0::/", {"container": ID, "runtime": "docker"}),
        "docker, systemd within": (f"0::/system.slice/docker-{ID}.scope/init.scope", {"container": ID, "runtime": "docker"}),
        "containerd, systemd": (
            f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UNDERSCORED}.slice/cri-containerd-{ID}.scope",
            {"container": ID, "runtime": "containerd", "pod": POD},
        ),
        "containerd, guaranteed": (
            f"0::/kubepods.slice/kubepods-pod{UNDERSCORED}.slice/cri-containerd-{ID}.scope",
            {"container": ID, "runtime": "containerd", "pod": POD},
        ),
        "containerd, cgroupfs": (f"4:cpu:/kubepods/besteffort/pod{POD}/{ID}", {"container": ID, "runtime": "", "pod": POD}),
        "containerd, mixed drivers": (
            f"4:cpu:/system.slice/containerd.service/kubepods-besteffort-pod{UNDERSCORED}.slice:cri-containerd:{ID}",
            {"container": ID, "runtime": "containerd", "pod": POD},
        ),
        "a pod of a node's own": (f"0::/kubepods/pod{'ab' * 16}/{ID}", {"container": ID, "runtime": "", "pod": "ab" * 16}),
        "cri-o": (
            f"0::/kubepods.slice/kubepods-pod{UNDERSCORED}.slice/crio-{ID}.scope/container",
            {"container": ID, "runtime": "cri-o", "pod": POD},
        ),
        "what watches a container of cri-o": (f"0::/kubepods.slice/kubepods-pod{UNDERSCORED}.slice/crio-conmon-{ID}.scope", {"pod": POD}),
        "podman": (f"0::/machine.slice/libpod-{ID}.scope/container", {"container": ID, "runtime": "podman"}),
        "podman, a user's": (
            f"0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope",
            {"container": ID, "runtime": "podman"},
        ),
        "podman, a pod of its own": (
            f"0::/machine.slice/machine-libpod_pod_{OTHER}.slice/libpod-{ID}.scope",
            {"container": ID, "runtime": "podman"},
        ),
        "what watches a container of podman": (f"0::/libpod_parent/{OTHER}/conmon\n1:x:/machine.slice/libpod-conmon-{ID}.scope", {}),
        "nerdctl": (f"0::/system.slice/nerdctl-{ID}.scope", {"container": ID, "runtime": "containerd"}),
        "kind: a node that is a container": (
            f"0::/docker/{OTHER}/kubelet/kubepods/burstable/pod{POD}/{ID}",
            {"container": ID, "runtime": "", "pod": POD},
        ),
        "seen from outside of a namespace": (f"0::/../cri-containerd-{ID}.scope", {"container": ID, "runtime": "containerd"}),
        "slurm, v1": ("9:freezer:/slurm/uid_1000/job_4711/step_0/task_3\n8:pids:/", {"slurm_job": "4711", "slurm_step": "0"}),
        "slurm, v1, a node by name": ("9:freezer:/slurm_node3/uid_0/job_4711/step_extern", {"slurm_job": "4711", "slurm_step": "extern"}),
        "slurm, v2": ("0::/system.slice/slurmstepd.scope/job_4711/step_batch/user/task_0", {"slurm_job": "4711", "slurm_step": "batch"}),
        "slurm, v2, a node by name": (
            "0::/system.slice/node3_slurmstepd.scope/job_4711/step_0/user/task_0",
            {"slurm_job": "4711", "slurm_step": "0"},
        ),
        "slurm, no step": ("0::/system.slice/slurmstepd.scope/job_4711", {"slurm_job": "4711"}),
        "a job of something else": ("0::/ci/job_4711/step_1", {}),
        "too short for an id": ("0::/docker/4f4f4f4f", {}),
        "nothing": ("", {}),
    }.values(),
)
def test_what_cgroups_tell(text: str, expected: Mapping[str, str]) -> None:
    assert membership(text) == expected


def test_no_container_is_an_answer(tree: Tree) -> None:
    tree.process(20, cgroup="0::/user.slice/user-1000.slice")
    process = about(20)
    assert (process.container, process.pod, process.slurm_job) == (None, None, None)
    assert missing(process) == {}


def test_within_a_container_that_shows_cgroups_from_inside(tree: Tree) -> None:
    """What is not in the part that is shown may be in the part that is not."""
    tree.link("proc/1/ns/cgroup", "cgroup:[4026532999]")
    tree.process(20, cgroup="0::/")
    tree.process(21, cgroup=f"0::/../cri-containerd-{ID}.scope")
    why = "the system shows only the part of its cgroup inside this container"
    assert missing(about(20)) == dict.fromkeys(("container", "pod", "slurm_job"), why)
    assert about(21).container == ID
    assert missing(about(21)) == dict.fromkeys(("pod", "slurm_job"), why)


def hide_the_first(tree: Tree) -> None:
    """Show this program alone, as for a user who is not root."""
    tree.process(7)
    tree.link("proc/7/ns/pid", "pid:[4026531836]")
    tree.link("proc/self", "7")
    (tree.root / "proc/1/ns/pid").unlink()
    (tree.root / "proc/1").rename(tree.root / "hidden")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda tree: None, "process 20 has ended"),
        (lambda tree: tree.link("proc/1/ns/pid", "pid:[4026532209]"), "process 20 is not in this PID namespace, or has ended"),
        (hide_the_first, "process 20 has ended, or is another user's: this /proc hides those"),
    ],
    ids=["whole machine", "container", "hidden"],
)
def test_a_process_that_is_not_there(tree: Tree, change: Callable[[Tree], object], expected: str) -> None:
    """Where this /proc shows a part of the machine, that is not to say that it has ended."""
    change(tree)
    process = about(20)
    assert {why.partition(" (")[0] for why in missing(process).values()} == {expected}
    assert {"user", "command", "started", "container", "pod", "slurm_job"} <= missing(process).keys()
    assert (process.user, process.command, process.container) == (None, None, None)


def in_a_container(tree: Tree, *holders: int) -> None:
    """Have the tree be that of a PID namespace of its own, in which some processes hold a GPU open."""
    tree.link("proc/1/ns/pid", "pid:[4026532209]")
    for pid in holders:
        tree.link(f"proc/{pid}/fd/7", "/dev/nvidia0")


def test_in_a_container_a_process_of_the_machine_is_not_named_as_one_here(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its number and what the driver says of it stand, with why nothing else is said; labels of exporters have nothing of it."""
    monkeypatch.setenv("ACCELMETRICS_VALIDATE", "0")
    tree.process(20, "nginx: worker\0")
    in_a_container(tree)
    backend = FakeBackend(devices=1, vendor="nvidia")
    backend.device(0).set(powerWatts=1).run(DeviceProcess(20, "compute", 3 * GIB))
    with Sampler([backend]) as sampler:
        snapshot = sampler.sample()
    (process,) = processes(snapshot).processes
    assert (process.pid, process.memory_bytes, process.command, process.user, process.started) == (20, 3 * GIB, None, None, None)
    why = "process 20 is not in this PID namespace: the process that has this number here does not use the device"
    assert set(missing(process).values()) == {why}
    assert process_labels(["user"])(snapshot, [20]) == {20: {}}
    (row,) = node_view(Record(snapshot), processes=processes(snapshot)).processes
    assert (row.pid, row.memory_bytes, row.user, row.program, row.command, row.why) == (20, 3 * GIB, "", "", "", why)
    in_a_container(tree, 20)
    assert processes(snapshot).processes[0].command == "nginx: worker", "the driver counts as the container does"
    assert process_labels(["user"])(snapshot, [20]) == {20: {"user": "anna"}}


def test_a_number_that_is_known_on_one_device_alone(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other device's may be another process: what both are together is not named."""
    monkeypatch.setenv("ACCELMETRICS_VALIDATE", "0")
    tree.process(20)
    in_a_container(tree, 20)
    nvidia, other = FakeBackend(devices=1, vendor="nvidia"), FakeBackend("other", devices=1)
    for backend in (nvidia, other):
        backend.device(0).set(powerWatts=1).run(DeviceProcess(20, "compute", GIB))
    with Sampler([nvidia, other]) as sampler:
        snapshot = sampler.sample()
    found = processes(snapshot)
    assert [one.command for one in found.processes] == ["python train.py", None]
    assert process_labels(["user"])(snapshot, [20]) == {20: {}}
    (row,) = node_view(Record(snapshot), processes=found).processes
    assert (row.command, row.memory_bytes) == ("", 2 * GIB)


def test_a_number_that_was_given_to_another_process(tree: Tree) -> None:
    """It was started after the devices were read."""
    tree.process(20)
    snapshot = reading(DeviceProcess(20))
    snapshot.time_ns = (BOOT + 30) * 10**9
    (process,) = processes(snapshot).processes
    assert set(missing(process).values()) == {"process 20 has ended: another one has its number now"}
    assert process.command is None


def test_a_snapshot_of_another_machine(tree: Tree) -> None:
    tree.process(20)
    snapshot = reading(DeviceProcess(20, "compute", 5))
    snapshot.hostname = "node-3"
    found = processes(snapshot, parents=True)
    assert [(one.device, one.memory_bytes, one.command) for one in found.processes] == [("gpu.0", 5, None)]
    assert set(missing(found.processes[0]).values()) == {"the snapshot is of another machine, node-3"}
    assert found.parents == ()


def test_another_users_process(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under ``hidepid=1`` its folder is there, and no file in it may be read."""
    tree.process(20)
    monkeypatch.setattr(module, "read_once", refuse)
    why = "process 20 belongs to another user, whose processes this user may not read"
    assert missing(about(20)) == dict.fromkeys(("user", "command", "started", "container", "pod", "slurm_job"), why)


def refuse(path: str) -> bytes:
    """Fail as the kernel does."""
    raise PermissionError(1, "Operation not permitted", path)


def test_a_process_that_ends_meanwhile(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was read before is kept."""
    tree.process(20)
    (tree.root / "proc/20/cgroup").unlink()

    def ends(path: str) -> bytes:
        if path.endswith("/stat"):
            raise ProcessLookupError(3, "No such process", path)
        return read_once(path)

    monkeypatch.setattr(module, "read_once", ends)
    process = about(20)
    assert (process.user, process.command) == ("anna", "python train.py")
    assert missing(process) == {
        "started": "process 20 has ended",
        **dict.fromkeys(("container", "pod", "slurm_job"), "this system does not report it"),
    }


def test_ended_but_not_waited_for_and_threads_of_the_kernel(tree: Tree) -> None:
    tree.process(20, "", state="Z")
    tree.process(21, "", uid=0, parent=2)
    assert missing(about(20)) == {"command": "process 20 has ended"}
    assert about(21).command == "[a) name]"


def test_users_without_a_name_and_files_that_make_no_sense(tree: Tree) -> None:
    """Names are those of the machine that is looked at."""
    tree.process(20, uid=4321)
    assert about(20).user == "4321"
    tree.write("proc/20/stat", "nonsense")
    tree.write("proc/20/status", "nonsense")
    tree.write("proc/20/cmdline", "\0\0")
    why = "the answer of the system has an unknown form"
    assert missing(about(20)) == {"user": why, "command": why, "started": why}


def test_where_there_is_no_proc(child: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """psutil says who it is, and there are no cgroups."""
    monkeypatch.setattr(sys, "platform", "darwin")
    snapshot = reading(DeviceProcess(child))
    monkeypatch.setenv("ACCELMETRICS_SYSROOT", "/nowhere")
    (process,) = processes(snapshot, parents=True).processes
    assert (process.user, process.parents[0]) == (getpass.getuser(), os.getpid())
    assert process.command is not None and process.command.endswith("a  b")
    assert process.started is not None
    assert missing(process) == dict.fromkeys(("container", "pod", "slurm_job"), "this system does not report it")
    monkeypatch.setattr(psutil.Process, "cmdline", lambda _: (_ for _ in ()).throw(psutil.AccessDenied(child)))
    (refused,) = processes(snapshot).processes
    assert refused.unavailable["command"] == f"process {child} belongs to another user, whose processes this user may not read"
    assert refused.user == process.user
