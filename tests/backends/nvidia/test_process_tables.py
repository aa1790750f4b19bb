"""Tables of processes: what is as before is neither made nor looked up again; numbers that no process can have."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from accelmetrics.backends.kit import processes as kit
from accelmetrics.backends.nvidia import processes
from accelmetrics.schemas.identity import DeviceProcess
from tests.backends.nvidia.machine import Consume, Consumer, write_tree
from tests.simulators.nvml import NvmlSimulator, Process
from tests.support.pids import STRANGER

MIB = 2**20
# Not where this process itself has its number, which the code knows without a look.
FIRST = STRANGER + 500 if STRANGER <= os.getpid() < STRANGER + 500 else STRANGER
COUNT = 200


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[DeviceProcess]:
    """The entries that were made."""
    found: list[DeviceProcess] = []
    make = processes._ENTRY

    def note(row: tuple[Any, ...]) -> DeviceProcess:
        found.append(make(row))
        return found[-1]

    monkeypatch.setattr(processes, "_ENTRY", note)
    return found


@pytest.fixture
def looked_up(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The processes that were looked for in ``/proc``."""
    found: list[int] = []
    visible = kit.is_visible

    def note(pid: int) -> bool:
        found.append(pid)
        return visible(pid)

    monkeypatch.setattr(kit, "is_visible", note)
    return found


def crowd(numbers: Iterable[int] = range(COUNT), busy: int = 1, **changed: Any) -> list[Process]:
    """Strangers on a device, of which the last may be unlike the others."""
    found = [Process(FIRST + number, used=MIB, sm=busy, timestamp_us=1) for number in numbers]
    return [*found[:-1], dataclasses.replace(found[-1], **changed)]


@pytest.mark.parametrize(
    ("second", "entries", "lookups"),
    [
        pytest.param(crowd(), 0, 0, id="nothing changed"),
        pytest.param(crowd(used=2 * MIB), 1, 0, id="one holds more"),
        pytest.param(crowd(sm=50), 1, 0, id="one is busier"),
        pytest.param(crowd(busy=2), COUNT, 0, id="all are busier"),
        pytest.param(crowd(range(COUNT - 1)), 0, 0, id="one ended"),
        pytest.param(crowd(range(COUNT + 1)), 1, 1, id="one began"),
        pytest.param(crowd(range(1, COUNT + 1)), 1, 1, id="one ended, one began"),
        pytest.param(crowd(range(COUNT, 2 * COUNT)), COUNT, COUNT, id="all new"),
    ],
)
def test_a_second_costs_what_changed_in_it(
    simulator: NvmlSimulator,
    consumer: Consumer,
    made: list[DeviceProcess],
    looked_up: list[int],
    second: list[Process],
    entries: int,
    lookups: int,
) -> None:
    simulator.processes(0, crowd())
    first = consumer.read(0).processes
    assert (len(made), len(looked_up)) == (COUNT, COUNT)
    made.clear()
    looked_up.clear()
    simulator.processes(0, [dataclasses.replace(process, timestamp_us=2) for process in second])  # each sample is told once
    now = consumer.later(1.0).processes
    assert now is not None
    assert [(process.pid, process.memory_bytes, process.utilization) for process in now] == [
        (each.pid, each.used, each.sm) for each in second
    ]
    assert (len(made), len(looked_up)) == (entries, lookups)
    assert (now is first) == (not entries and len(second) == COUNT)


def test_a_number_that_is_given_to_one_of_ours_is_found(
    simulator: NvmlSimulator, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once where it was not listed in between, and after a while where it was."""
    ours: set[int] = set()
    monkeypatch.setattr(kit, "ancestors", lambda pid: iter([os.getpid()] if pid in ours else []))
    monkeypatch.setattr(kit, "is_visible", lambda _: True)
    simulator.processes(0, crowd())
    assert consumer.read(0).share == {}
    simulator.processes(0, crowd(range(1, COUNT)))
    assert consumer.later(1.0).share == {}
    ours.add(FIRST)
    simulator.processes(0, crowd())
    assert consumer.later(1.0).share["memoryAllocatedBytes"] == MIB
    ours.add(FIRST + 1)
    assert consumer.later(1.0).share["memoryAllocatedBytes"] == MIB
    assert consumer.later(processes.AGAIN_AFTER).share["memoryAllocatedBytes"] == 2 * MIB
    ours.clear()
    assert consumer.later(1.0).share == {}, "those of the tree are asked about every second"


def test_processes_are_not_remembered_for_a_watched_one_that_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which of them are its descendants is not known then."""
    monkeypatch.setattr(kit, "number_here", lambda _: None)
    tree = kit.ProcessTree(5)
    members, pids = processes.TreeMembers(tree, ""), frozenset({5, 6})
    assert members.among(pids, 0.0) == set()
    monkeypatch.setattr(kit, "number_here", lambda pid: pid)
    assert members.among(pids, 1.0) == {5}


@pytest.mark.parametrize(
    ("files", "largest"),
    [
        ({"/proc/sys/kernel/pid_max": "32768\n"}, 32768),
        ({"/proc/sys/kernel/pid_max": "nonsense\n"}, 2**22),
        ({}, 2**22),
    ],
    ids=["told", "garbled", "silent"],
)
@pytest.mark.skipif(sys.platform != "linux", reason="platform: reads /proc")
def test_a_number_that_no_process_can_have(
    simulator: NvmlSimulator, consume: Consume, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], largest: int
) -> None:
    """Above the kernel's largest, it is no process; a raised one is noticed."""
    write_tree(tmp_path, {"/proc/version": "", **files})
    monkeypatch.setenv("ACCELMETRICS_SYSROOT", str(tmp_path))
    simulator.processes(0, [Process(pid=largest, used=MIB), Process(pid=largest + 1, used=MIB), Process(pid=805306368, used=MIB)])
    consumer = consume()
    assert [process.pid for process in consumer.read(0).processes or ()] == [largest]
    write_tree(tmp_path, {"/proc/sys/kernel/pid_max": f"{largest + 1}\n"})
    simulator.processes(0, [Process(pid=largest + 1, used=MIB)])
    assert [process.pid for process in consumer.later(1.0).processes or ()] == [largest + 1]


@pytest.mark.parametrize(("namespace", "listed"), [("pid:[4026531836]", []), ("pid:[4026532209]", [2733390])])
@pytest.mark.skipif(sys.platform != "linux", reason="platform: reads /proc")
def test_a_number_of_another_namespace(
    simulator: NvmlSimulator, consume: Consume, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, namespace: str, listed: list[int]
) -> None:
    """A container's own largest number says nothing of the machine's processes."""
    write_tree(tmp_path, {"/proc/sys/kernel/pid_max": "32768\n", "/proc/self/ns/none": ""})
    (tmp_path / "proc/self/ns/pid").symlink_to(namespace)
    monkeypatch.setenv("ACCELMETRICS_SYSROOT", str(tmp_path))
    simulator.processes(0, [Process(pid=2733390, used=MIB), Process(pid=2**22 + 1, used=MIB)])
    assert [process.pid for process in consume().read(0).processes or ()] == listed
