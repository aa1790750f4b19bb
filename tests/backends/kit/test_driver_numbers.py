"""Which process a driver's number means: on the machine, in containers, and where the machine's ``/proc`` is mounted into one."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from accelmetrics.backends.kit.processes import DriverNumbers, ProcessTree, no_process, node_pattern
from accelmetrics.backends.nvidia.processes import TreeMembers
from accelmetrics.schemas.identity import DeviceIdentity

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="platform: reads /proc")

MACHINE, OURS, OTHERS = "pid:[4026531836]", "pid:[4026532209]", "pid:[4026532300]"
GPU = "/dev/nvidia3"
NODES = node_pattern(DeviceIdentity("gpu", "nvidia", 0, minor_number=3))
SHELL, TRAINING, LOADER, STRANGER = 20, 30, 31, 2_733_390


class Proc:
    """A ``/proc`` of our making; this program is the process ``us``."""

    def __init__(self, root: Path, us: int, *inner: int, namespace: str) -> None:
        self.root = root
        self.add(us, *inner, namespace=namespace)
        (root / "proc/self").symlink_to(str(us))

    def add(self, pid: int, *inner: int, namespace: str = "", parent: int = 1, holds: str = "") -> None:
        """Add a process, with its numbers in the namespaces further in, and the device that it holds."""
        process = self.root / f"proc/{pid}"
        (process / "fd").mkdir(parents=True)
        (process / "ns").mkdir()
        numbers = "\t".join(map(str, (pid, *inner)))
        (process / "status").write_text(f"Name:\tpython\nTgid:\t{pid}\nPid:\t{pid}\nPPid:\t{parent}\nNSpid:\t{numbers}\n")
        (process / "fd/0").symlink_to("/dev/null")
        if holds:
            (process / "fd/7").symlink_to(holds)
        if namespace:
            (process / "ns/pid").symlink_to(namespace)


@pytest.fixture
def container(root: Path) -> Proc:
    """One with a PID namespace of its own: a shell, and a training that holds the GPU."""
    made = Proc(root, 1, namespace=OURS)
    made.add(SHELL, namespace=OURS)
    made.add(TRAINING, namespace=OURS, holds=GPU)
    return made


@pytest.fixture
def mounted(root: Path) -> Proc:
    """A container that sees the machine's ``/proc``: 5000 to 5002 are its own processes, and have the numbers 1, 8 and 9 in it."""
    made = Proc(root, 5000, 1, namespace=OURS)
    made.add(1, namespace=MACHINE, parent=0)
    made.add(5001, 8, namespace=OURS)
    made.add(5002, 9, namespace=OURS)
    return made


def find(pid: int, *listed: int) -> int | str:
    """Return what is said of one of the numbers that the driver lists."""
    return DriverNumbers([pid, *listed]).find(pid, NODES)


def test_in_the_machines_namespace_numbers_are_the_machines(root: Path) -> None:
    """On the host, and in a container with the host's processes, whatever a process holds or may be seen to hold."""
    Proc(root, 4000, namespace=MACHINE).add(1, parent=0)
    assert find(4000, STRANGER) == 4000
    assert find(STRANGER) == f"process {STRANGER} has ended"


def test_where_proc_hides_other_users_processes(root: Path) -> None:
    """One that is not there may be another user's, since process 1 is hidden too."""
    Proc(root, 4000, namespace=MACHINE)
    assert find(STRANGER) == f"process {STRANGER} has ended, or is another user's: this /proc hides those (hidepid)"


def test_a_number_that_a_process_here_has_by_chance(container: Proc) -> None:
    """The driver counts as the machine does: the shell here does not use the GPU."""
    assert find(SHELL) == f"process {SHELL} is not in this PID namespace: the process that has this number here does not use the device"
    assert find(STRANGER) == f"process {STRANGER} is not in this PID namespace, or has ended"


def test_a_driver_that_counts_as_the_container_does(container: Proc) -> None:
    """It lists this container's processes alone, and each of them holds the device."""
    container.add(LOADER, namespace=OURS, holds=GPU)
    assert find(TRAINING, LOADER) == TRAINING


def test_a_number_by_chance_of_a_process_that_uses_the_device_too(container: Proc) -> None:
    """The driver lists a process that is not here, so that it counts as the machine does: 30 may be a process outside."""
    said = find(TRAINING, STRANGER)
    assert said == f"whether process {TRAINING} is in this PID namespace is unknown: the driver lists others that are not"


def test_numbers_that_were_found_in_proc_itself(container: Proc) -> None:
    """Another one that has ended since says nothing of them."""
    assert DriverNumbers([TRAINING, STRANGER], "amd").find(TRAINING, NODES) == TRAINING


def test_a_process_that_may_not_be_looked_into(container: Proc, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user's: it cannot be told."""

    def refuse(_: object) -> list[str]:
        raise PermissionError

    said = "whether process 30 is in this PID namespace is unknown: the one that has this number here may not be looked into"
    assert DriverNumbers([TRAINING]).find(TRAINING, "") == said, "which nodes a device has is not known"
    numbers = DriverNumbers([TRAINING])
    assert numbers.find(TRAINING, NODES) == TRAINING
    monkeypatch.setattr("accelmetrics.backends.kit.processes.os.listdir", refuse)
    assert numbers.find(TRAINING, NODES) == said


def test_the_number_of_a_thread(container: Proc, monkeypatch: pytest.MonkeyPatch) -> None:
    """``/proc`` opens threads by their numbers, and does not list them."""
    container.add(LOADER, namespace=OURS, holds=GPU)
    listdir = os.listdir
    monkeypatch.setattr(
        "accelmetrics.backends.kit.processes.list_directory",
        lambda path: [name for name in sorted(listdir(f"{container.root}{path}")) if name != str(LOADER)],
    )
    assert "not in this PID namespace" in str(find(LOADER))


def test_the_machines_proc_in_a_container(mounted: Proc) -> None:
    """Numbers are the machine's, and need no further sign where no process of this container has them too."""
    mounted.add(STRANGER, namespace=MACHINE)
    assert find(STRANGER, 77) == STRANGER
    assert find(77) == "process 77 has ended"


def test_the_machines_proc_is_known_by_the_kernels_threads(mounted: Proc) -> None:
    """What namespace process 1 is in is root's to read."""
    (mounted.root / "proc/1/ns/pid").unlink()
    mounted.add(STRANGER, namespace=MACHINE)
    assert "not in this PID namespace" in str(find(STRANGER))
    mounted.add(2, parent=0)
    (mounted.root / "proc/2/stat").write_text("2 (kthreadd) S 0 0 0 0 -1 2129984 0 0\n")
    assert find(STRANGER) == STRANGER


@pytest.mark.parametrize(("holders", "expected"), [((8,), 8), ((5001,), 5001), ((), None), ((8, 5001), None)])
def test_a_number_that_two_have(mounted: Proc, holders: tuple[int, ...], expected: int | None) -> None:
    """The machine and this container both have a process 8; for the machine ours is 5001. The one that holds the device is meant."""
    mounted.add(8, namespace=MACHINE)
    for pid in holders:
        (mounted.root / f"proc/{pid}/fd/7").symlink_to(GPU)
    assert find(8) == (expected or "process 8 may be one of this PID namespace or one outside: both have this number")


def test_a_driver_that_counts_as_the_container_does_and_the_machines_proc(mounted: Proc) -> None:
    """No process of the machine has the number 9: 5002 has it in this container."""
    assert "does not use the device" in str(find(9))
    (mounted.root / "proc/5002/fd/7").symlink_to(GPU)
    assert find(9) == 5002


def test_what_the_watched_process_uses_of_a_device(container: Proc) -> None:
    """A stranger of the machine that has the training's number is not counted for it; in a namespace that the driver knows, it is."""
    container.add(LOADER, namespace=OURS, parent=TRAINING, holds=GPU)

    def owned(*listed: int) -> set[int]:
        return TreeMembers(ProcessTree(TRAINING), NODES).among(frozenset(listed), 0.0)

    assert owned(TRAINING, LOADER) == {TRAINING, LOADER}
    assert owned(TRAINING, STRANGER) == set()
    assert owned(SHELL) == set()
    (container.root / f"proc/{TRAINING}/fd/7").unlink()
    assert owned(TRAINING, LOADER) == {LOADER}


def test_nodes_of_devices() -> None:
    """By vendor; a partition's process holds the node of the whole device."""
    gpu = DeviceIdentity("gpu", "nvidia", 0, minor_number=3)
    assert re.fullmatch(node_pattern(gpu), "/dev/nvidia3")
    assert not re.fullmatch(node_pattern(gpu), "/dev/nvidia4")
    assert re.fullmatch(node_pattern(gpu._replace(parent="GPU-1", minor_number=None)), "/dev/nvidia7")
    assert not re.fullmatch(node_pattern(gpu._replace(minor_number=None)), "/dev/nvidiactl")
    assert re.fullmatch(node_pattern(DeviceIdentity("npu", "rebellions", 0)), "/dev/rbln2")
    assert re.fullmatch(node_pattern(DeviceIdentity("tpu", "google", 0)), "/dev/vfio/1")
    assert re.fullmatch(node_pattern(DeviceIdentity("gpu", "amd", 0)), "/dev/dri/renderD128")


def test_a_process_that_the_user_named(root: Path) -> None:
    """Where ``/proc`` hides other users' processes, it may be one of those."""
    assert no_process(77) == "there is no process 77"
    Proc(root, 4000, namespace=MACHINE)
    assert no_process(77) == "there is no process 77, or it is another user's: this /proc hides those (hidepid)"
