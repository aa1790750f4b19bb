"""Who belongs to the watched process, on trees of ``/proc`` written by hand, across PID namespaces."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from accelmetrics.backends.kit import processes as processes_module
from accelmetrics.backends.kit.processes import ProcessTree, ancestors, descendants, inner_numbers, number_here
from tests.backends.nvidia.machine import write_tree

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="platform: reads /proc")

NAMESPACE_A, NAMESPACE_B = "pid:[4026530001]", "pid:[4026530002]"


class Proc:
    """A ``/proc`` below a directory."""

    def __init__(self, root: Path, children_files: bool = True) -> None:
        self.root = root
        self.children_files = children_files

    def add(self, pid: int, parent: int, *inner: int, namespace: str = "", task: int | None = None) -> Proc:
        numbers = "\t".join(map(str, (pid, *inner)))
        status = f"Name:\tpython\nTgid:\t{pid}\nPid:\t{pid}\nPPid:\t{parent}\nUid:\t0\t0\t0\t0\nNStgid:\t{numbers}\nNSpid:\t{numbers}\n"
        write_tree(self.root, {f"/proc/{pid}/status": status})
        (self.root / f"proc/{pid}/task/{pid}").mkdir(parents=True, exist_ok=True)
        if namespace:
            (self.root / f"proc/{pid}/ns").mkdir()
            (self.root / f"proc/{pid}/ns/pid").symlink_to(namespace)
        if self.children_files:
            (self.root / f"proc/{pid}/task/{pid}/children").touch()
            if parent:
                directory = self.root / f"proc/{parent}/task/{task or parent}"
                directory.mkdir(parents=True, exist_ok=True)
                with (directory / "children").open("a", encoding="utf-8") as file:
                    file.write(f"{pid} ")
        return self

    def we_are(self, pid: int) -> Proc:
        (self.root / "proc/self").symlink_to(str(pid))
        return self


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Proc:
    monkeypatch.setenv("ACCELMETRICS_SYSROOT", str(tmp_path))
    return Proc(tmp_path)


@pytest.mark.parametrize(
    ("processes", "watched", "asked", "owned"),
    [
        # Children and grandchildren belong to it; parents, siblings and strangers do not.
        (
            [(1, 0), (50, 1), (100, 50), (101, 100), (102, 101), (200, 50), (300, 1)],
            *(100, [1, 50, 100, 101, 102, 200, 300], [100, 101, 102]),
        ),
        # Process 1, the first of a container, has descendants like any other.
        ([(1, 0), (7, 1)], 1, [1, 7], [1, 7]),
        # One that NVML still lists and that is gone belongs to no tree.
        ([(1, 0), (100, 1)], 100, [4711], []),
        # The driver numbers as the container does, we watch from the host.
        ([(1, 0), (100, 1), (101, 100, 17), (102, 101, 23, 3)], 100, [3, 17, 18, 23], [3, 17, 23]),
        # Number 17 is a process of our own namespace, and not ours: it is never taken for the member's inner number.
        ([(1, 0), (17, 1), (100, 1), (101, 100, 17)], 100, [17], []),
    ],
    ids=["family", "container", "gone", "inner numbers", "a stranger's number"],
)
def test_who_belongs_to_a_tree(proc: Proc, processes: list[tuple[int, ...]], watched: int, asked: list[int], owned: list[int]) -> None:
    for pid, parent, *inner in processes:
        proc.add(pid, parent, *inner)
    proc.we_are(watched)
    tree = ProcessTree(watched)
    assert [pid for pid in asked if tree.owns(pid, 0.0)] == owned


def test_an_outer_number_where_the_hosts_proc_is_mounted(proc: Proc) -> None:
    """We are in a container that sees the host's /proc: our own numbers are inner ones, the driver's the host's."""
    proc.add(1, 0).add(5000, 1, 1, namespace=NAMESPACE_A).add(5001, 5000, 8, namespace=NAMESPACE_A).add(
        5002, 5001, 9, namespace=NAMESPACE_A
    )
    proc.add(8, 1).add(6001, 1, 8, namespace=NAMESPACE_B).we_are(5001)
    tree = ProcessTree(8)
    assert [pid for pid in (1, 8, 5000, 5001, 5002, 6001) if tree.owns(pid, 0.0)] == [5001, 5002]


def test_watching_another_process_of_our_container_from_within(proc: Proc) -> None:
    """The watched process is found by its number in our own namespace, not by the same number in a neighbour's."""
    proc.add(1, 0).add(4000, 1, 9, 1).add(4001, 1, 9, namespace=NAMESPACE_B).we_are(5001)
    proc.add(5000, 1, 1, namespace=NAMESPACE_A).add(5001, 5000, 8, namespace=NAMESPACE_A).add(5002, 5000, 9, namespace=NAMESPACE_A)
    assert number_here(9) == 5002
    assert ProcessTree(9).owns(5002, 0.0)
    assert not ProcessTree(9).owns(4001, 0.0)
    assert number_here(77) is None
    assert not ProcessTree(77).owns(5002, 0.0)


def test_children_of_threads_other_than_the_first(proc: Proc) -> None:
    """A child is listed under the thread that started it."""
    proc.add(1, 0).add(100, 1).add(101, 100, task=105).add(102, 101).we_are(100)
    assert sorted(descendants(100)) == [100, 101, 102]


def test_a_kernel_without_children_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the parents of all processes say it."""
    monkeypatch.setenv("ACCELMETRICS_SYSROOT", str(tmp_path))
    Proc(tmp_path, children_files=False).add(1, 0).add(100, 1).add(101, 100, 17).add(102, 101).add(200, 1).we_are(100)
    assert sorted(descendants(100)) == [100, 101, 102]
    assert inner_numbers(100) == {17}


def test_a_kernel_without_namespaces_in_status(proc: Proc) -> None:
    """Before 4.1 there is no NSpid; plain numbers still work."""
    write_tree(proc.root, {f"/proc/{pid}/status": f"Name:\tx\nPPid:\t{parent}\n" for pid, parent in ((1, 0), (100, 1), (101, 100))})
    proc.we_are(100)
    assert ProcessTree(100).owns(101, 0.0)
    assert not ProcessTree(100).owns(17, 0.0)


def test_a_loop_of_parents_ends(proc: Proc) -> None:
    """Numbers are reused while we climb: two stale statuses may point at each other."""
    proc.add(10, 11).add(11, 10).we_are(10)
    assert list(ancestors(10)) == [11]


def test_answers_are_kept_for_a_second(proc: Proc) -> None:
    """Within a second nothing is read again, afterwards it is."""
    proc.add(1, 0).add(100, 1).we_are(100)
    tree = ProcessTree(100)
    assert not tree.owns(101, 0.0)
    proc.add(101, 100)
    assert not tree.owns(101, 0.9)
    assert tree.owns(101, 1.0)


def test_the_family_is_walked_once_a_second(proc: Proc, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many processes on the GPUs are not visible here, as in a container they may all be."""
    walked: list[int] = []

    def walk(root: int) -> frozenset[int]:
        walked.append(root)
        return frozenset({4000})

    monkeypatch.setattr(processes_module, "inner_numbers", walk)
    proc.add(1, 0).add(100, 1).we_are(100)
    tree = ProcessTree(100)
    assert [pid for pid in range(3990, 4010) if tree.owns(pid, 0.0)] == [4000]
    assert walked == [100]
    assert tree.owns(4000, 1.0)
    assert walked == [100, 100]


def test_the_real_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    """On this machine: we are our own tree, our child belongs to it, our parent does not."""
    monkeypatch.delenv("ACCELMETRICS_SYSROOT", raising=False)
    child = os.fork()
    if child == 0:
        os.read(os.pipe()[0], 1)
    try:
        tree = ProcessTree(os.getpid())
        assert tree.owns(os.getpid(), 0.0)
        assert tree.owns(child, 0.0)
        assert not tree.owns(os.getppid(), 0.0)
        assert set(descendants(os.getpid())) >= {os.getpid(), child}
        assert os.getppid() not in descendants(os.getpid())
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


def test_without_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    """On other systems psutil climbs."""
    monkeypatch.setattr("accelmetrics.backends.kit.processes._has_proc", lambda: False)
    tree = ProcessTree(os.getppid())
    assert tree.owns(os.getpid(), 0.0)
    assert not ProcessTree(os.getpid()).owns(os.getppid(), 0.0)
    assert not tree.owns(2**22 + 1, 0.0)
