"""A process's own facts, read where its sampler does not read for itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from accelmetrics import Sampler
from accelmetrics.backends.contract import Coverage, Detection, Driver
from accelmetrics.backends.kit.system import VARIABLE
from accelmetrics.sampling.node_view import OWN, OwnFacts
from accelmetrics.sampling.options import checked
from accelmetrics.schemas.errors import Reason, SourceError
from tests.backends.host.tree import GIB, MEMINFO, PID, HostTree
from tests.sampling.test_fork_and_exit import in_child, needs_fork


def facts_of(**options: Any) -> OwnFacts:
    return OwnFacts(["host"], checked(**options))


@pytest.fixture
def child() -> Iterator[int]:
    """A process of ours that waits."""
    command = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        program.stdout.readline()
        yield program.pid


def test_they_are_those_that_a_sampler_gives() -> None:
    own = facts_of()
    with Sampler(["host"], metrics=list(OWN)) as sampler:
        for _ in range(2):
            values, reasons = own.read()
            taken = sampler.sample()
            assert values.keys() == taken.metrics.keys()
            assert reasons == taken.unavailable
    assert values["memory.totalBytes"] == taken.metrics["memory.totalBytes"]
    assert values["proc.memory.rssBytes"] == pytest.approx(taken.metrics["proc.memory.rssBytes"], rel=0.05)


@pytest.mark.parametrize("metrics", ["cpu", "proc.memory.percent", "memory_percent,-proc.*"])
def test_what_is_not_wanted_is_left_out(metrics: str) -> None:
    own = facts_of(metrics=metrics)
    for _ in range(2):
        values, reasons = own.read()
    assert (list(values), dict(reasons)) == ([metrics.partition(",")[0]], {})


def test_nothing_is_opened_where_nothing_of_it_is_wanted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))  # where there is nothing to be read
    assert facts_of(metrics="gpu.*").read() == ({}, {})
    assert OwnFacts(["nvidia"], checked()).read() == ({}, {})


def test_another_process_is_watched(child: int) -> None:
    values, _ = facts_of(pid=child).read()
    assert values["proc.cpu.threads"] == 1


def test_children_count_where_they_are_asked_for(child: int) -> None:
    alone, family = facts_of(metrics="proc.memory.rssBytes"), facts_of(metrics="proc.memory.rssBytes", children=True)
    (own,) = alone.read()[0].values()
    (all_of_them,) = family.read()[0].values()
    assert all_of_them > own + 2**20


@pytest.mark.skipif(not hasattr(os, "waitid"), reason="platform: no waitid")
def test_a_process_that_has_ended_is_not_in_use(child: int) -> None:
    own = facts_of(pid=child)
    assert own.read()[0]["proc.cpu.threads"] == 1
    os.kill(child, signal.SIGKILL)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    values, reasons = own.read()
    assert "memory_percent" in values
    assert reasons["cpu"].reason == reasons["proc.memory.rssBytes"].reason == Reason.NOT_IN_USE


def test_the_control_group_is_found_below_another_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    tree = HostTree(tmp_path)
    tree.job(memory_max=str(4 * GIB), memory_current=str(GIB))
    assert facts_of(pid=PID).read()[0]["memory_percent"] == 25.0


def test_both_stay_the_same_objects_while_nothing_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    tree = HostTree(tmp_path)
    own = facts_of(pid=PID, metrics="swap.used_percent,memory_percent")
    own.read()
    tree.write("/proc/meminfo", MEMINFO.replace("2048000", "      0"))
    values, reasons = own.read()
    assert reasons["swap.used_percent"].reason == Reason.NOT_SUPPORTED
    tree.write("/proc/meminfo", MEMINFO)
    again = own.read()
    assert again[0] is values
    assert again[1] is reasons


@needs_fork
def test_a_forked_child_watches_itself_from_its_first_reading_on(child: int) -> None:
    own, fixed = facts_of(), facts_of(pid=child)
    for facts in (own, fixed):
        facts.read()
        facts.read()

    def first_of_child() -> bool:
        values, reasons = own.read()
        others, _ = fixed.read()
        own_threads = values["proc.cpu.threads"] == threading.active_count()
        return own_threads and others["proc.cpu.threads"] == 1 and reasons["cpu"].reason == Reason.NEEDS_INTERVAL

    end = threading.Event()
    with ThreadPoolExecutor(4) as threads:  # so that the parent has more than its child
        waiting = [threads.submit(end.wait) for _ in range(4)]
        try:
            assert in_child(first_of_child) == 0
        finally:
            end.set()
    assert all(one.result() for one in waiting)
    assert "cpu" in own.read()[0]


def test_closed_ones_begin_anew() -> None:
    own = facts_of(metrics="cpu")
    for _ in range(2):
        own.read()
        values, reasons = own.read()
        assert (list(values), dict(reasons)) == (["cpu"], {})
        own.close()
        assert own.read()[1]["cpu"].reason == Reason.NEEDS_INTERVAL


class Host:
    """A host that opens at the second attempt, and then fails at every reading."""

    name = "host"
    kind = None
    interval = 0.0
    attempts = 0

    def detect(self) -> Detection:
        return Detection(True, "")

    def open(self) -> Driver:
        self.attempts += 1
        if self.attempts == 1:
            raise SourceError(Reason.NO_PERMISSION, "it is locked")
        return self  # type: ignore[return-value]

    def reader(self, options: object) -> Host:
        return self

    def read(self, unit: int, progress: list[Any]) -> None:
        raise RuntimeError("it is broken")

    def close(self) -> None:
        raise RuntimeError("it cannot be closed")

    def coverage(self) -> Coverage:
        return Coverage(machine={"cpu": "", "load.1m": ""})

    def own_metrics(self) -> tuple[()]:
        return ()


def test_whatever_fails_is_a_reason_of_each_key() -> None:
    own = OwnFacts([Host()], checked())
    found = [own.read() for _ in range(3)]
    own.close()
    assert [values for values, _ in found] == [{}] * 3
    assert [str(why.reason) for _, reasons in found for why in reasons.values()] == ["no_permission", "driver_error", "driver_error"]
    assert [list(reasons) for _, reasons in found] == [["cpu"]] * 3
    assert found[1][1] == found[2][1]
