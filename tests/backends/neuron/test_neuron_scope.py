"""Whose NeuronCores are reported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from accelmetrics.schemas.errors import Reason
from tests.backends.neuron.machine import once
from tests.simulators.neuron import NeuronMonitorStandIn, hardware, report, runtime


@pytest.fixture
def pair(tool: NeuronMonitorStandIn) -> NeuronMonitorStandIn:
    """Two programs on three cores."""
    tool.tell(report=report([runtime(11, {0: 30.0}), runtime(12, {1: 5.0, 2: 70.0})], machine=hardware(2, 2)))
    return tool


def test_all_programs_when_no_process_is_watched(pair: NeuronMonitorStandIn) -> None:
    """Our own process is not among them, and is not asked for."""
    metrics = once().metrics
    assert [metrics.get(f"trn.{core}.neuroncore_utilization") for core in range(4)] == [30.0, 5.0, 70.0, None]
    assert metrics["trn.neuron_runtime_count"] == 2


def test_a_watched_process_alone(pair: NeuronMonitorStandIn) -> None:
    snapshot = once(pid=12)
    assert snapshot.metrics["trn.1.neuroncore_utilization"] == 5.0
    assert snapshot.metrics["trn.2.neuroncore_utilization"] == 70.0
    assert snapshot.metrics["trn.host_total_memory_usage"] == 7_600_010
    assert snapshot.unavailable["trn.0.neuroncore_utilization"] == (Reason.NOT_IN_USE, "process 12 does not use core 0")


def test_a_watched_process_in_a_container(pair: NeuronMonitorStandIn) -> None:
    """A number of the tool's is the process here that has it only if that holds a device open."""
    proc = Path(os.environ["ACCELMETRICS_SYSROOT"], "proc")
    for pid in (1, 12):
        (proc / f"{pid}/ns").mkdir(parents=True)
        (proc / f"{pid}/fd").mkdir()
        (proc / f"{pid}/ns/pid").symlink_to("pid:[4026532209]")
        (proc / f"{pid}/status").write_text(f"PPid:\t1\nNSpid:\t{pid}\n")
    assert "trn.1.neuroncore_utilization" not in once(pid=12).metrics
    (proc / "12/fd/3").symlink_to("/dev/neuron0")
    assert once(pid=12).metrics["trn.1.neuroncore_utilization"] == 5.0


def test_a_core_that_nobody_uses_when_no_process_is_watched(pair: NeuronMonitorStandIn) -> None:
    assert once().unavailable["trn.3.neuroncore_utilization"] == (Reason.NOT_IN_USE, "no program uses core 3")


def test_a_watched_process_on_another_core_than_local_ranks(pair: NeuronMonitorStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program uses that core: only of the watched one is it said that it does not."""
    monkeypatch.setenv("LOCAL_RANK", "0")
    why = (Reason.NOT_IN_USE, "process 12 does not use core 0, which LOCAL_RANK selects")
    assert once(pid=12).unavailable["trn.0.neuroncore_utilization"] == why


def test_a_watched_process_without_cores_has_no_zeros(pair: NeuronMonitorStandIn) -> None:
    snapshot = once(pid=os.getpid())
    assert snapshot.unavailable["trn.0.neuroncore_utilization"].reason == Reason.NOT_IN_USE
    assert snapshot.unavailable["trn.host_total_memory_usage"].detail == f"process {os.getpid()} uses no NeuronCore"


@pytest.mark.parametrize(("children", "expected"), [(True, 44.0), (False, None)])
def test_children_of_a_watched_process(tool: NeuronMonitorStandIn, children: bool, expected: float | None) -> None:
    Path(os.environ["ACCELMETRICS_SYSROOT"], "proc").symlink_to("/proc")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        tool.tell(report=report([runtime(child.pid, {0: 44.0}), runtime(999_999_999, {1: 1.0})]))
        snapshot = once(pid=os.getpid(), children=children)
        child.communicate(b"\n")
    assert snapshot.metrics.get("trn.0.neuroncore_utilization") == expected
    assert "trn.1.neuroncore_utilization" not in snapshot.metrics


def test_local_rank_picks_a_core_and_the_programs_on_it(pair: NeuronMonitorStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "2")
    snapshot = once()
    assert [device.key for device in snapshot.devices] == ["trn.2"]
    assert snapshot.metrics["trn.2.neuroncore_utilization"] == 70.0
    assert snapshot.metrics["trn.host_total_memory_usage"] == 7_600_010
    assert "trn.1.neuroncore_utilization" not in snapshot.metrics


def test_local_rank_on_a_core_that_nobody_uses_invents_no_zeros(pair: NeuronMonitorStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "3")
    snapshot = once()
    why = (Reason.NOT_IN_USE, "no program uses core 3, which LOCAL_RANK selects")
    assert snapshot.unavailable["trn.3.neuroncore_utilization"] == why
    assert snapshot.unavailable["trn.3.neuroncore_memory_usage.tensors"] == why
    assert snapshot.unavailable["trn.host_total_memory_usage"] == why


@pytest.mark.parametrize("rank", ["", "x", "-1", "4", "²"])
def test_a_local_rank_that_is_no_core_picks_none(pair: NeuronMonitorStandIn, monkeypatch: pytest.MonkeyPatch, rank: str) -> None:
    monkeypatch.setenv("LOCAL_RANK", rank)
    snapshot = once()
    assert len(snapshot.devices) == 4
    assert snapshot.metrics["trn.0.neuroncore_utilization"] == 30.0
