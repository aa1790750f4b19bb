"""Training runs: steps and rows of a simulated machine, whatever goes wrong beside the training."""

from __future__ import annotations

import json
import logging
import re
import runpy
import sys
from contextlib import ExitStack
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest

import accelmetrics
from accelmetrics.testing import FakeBackend
from tests.monitor.watching import HeldClock, gpus, returned, ticks
from tests.sampling.node import job_environment
from tests.sampling.test_fork_and_exit import in_child, needs_fork
from tests.support.programs import Program
from tests.support.waiting import HANG


def go(run: accelmetrics.TrainingRun, clock: HeldClock, seconds: int) -> None:
    """Let whole seconds pass on a held clock, each with its reading."""
    for _ in range(seconds):
        before = run.monitor.status.ticks
        clock.advance(1.0)
        ticks(run.monitor, before + 1)


def counting(clock: HeldClock) -> FakeBackend:
    """A GPU whose power grows by a watt a second, with a counter of its energy, beside one that gives power alone."""
    backend = gpus(2, powerWatts=100.0, gpu=50.0, memoryAllocated=25.0, temp=60.0)
    began = clock.monotonic()
    backend.device(0).set(powerWatts=lambda: 100.0 + clock.monotonic() - began, energyJoules=lambda: (clock.monotonic() - began) * 100.0)
    return backend


def test_each_reading_and_each_joule_is_part_of_one_row() -> None:
    """Rows of three, one, no and four readings: their means weigh alike, their energies add up to the whole."""
    clock = HeldClock()
    with accelmetrics.training(backends=[counting(clock)], clock=clock, share=None) as run:
        ticks(run.monitor, 1)
        assert run.row()["system/readings"] == 1
        rows = []
        for seconds in (3, 1, 0, 4):
            go(run, clock, seconds)
            rows.append(run.row(stats=("mean", "max")))
    assert [row["system/readings"] for row in rows] == [3, 1, 0, 4]
    assert [row["system/gpu.0.powerWatts"] for row in rows] == [pytest.approx(mean) for mean in (102.0, 104.0, 104.0, 106.5)]
    assert [row["system/gpu.0.powerWatts.max"] for row in rows] == [103.0, 104.0, 104.0, 108.0]
    for device in ("gpu.0", "gpu.1"):
        joules = [row.get(f"system/{device}.energyJoules") for row in rows]
        assert joules == [pytest.approx(300.0), pytest.approx(100.0), None, pytest.approx(400.0)]


@needs_fork
def test_a_forked_child_has_no_reading_of_its_parents_in_a_row() -> None:
    """Workers that load data are forked: the joules of before are in the parent's next row, and in no other."""
    clock = HeldClock()
    with accelmetrics.training(backends=[counting(clock)], clock=clock, share=None) as run:
        ticks(run.monitor, 1)
        run.row()
        go(run, clock, 3)
        assert in_child(lambda: run.row() == {"system/readings": 0} == run.row()) == 0
        assert run.row()["system/readings"] == 3


def test_the_brief_row() -> None:
    """Utilisation, memory, power, temperature and energy of each device, and the job's throughput: no more."""
    clock = HeldClock()
    with accelmetrics.training(backends=[counting(clock)], clock=clock, share=None) as run:
        ticks(run.monitor, 1)
        run.row()
        for step in range(4):
            run.step(step, loss=1.0, tokens=1000)
            go(run, clock, 1)
        row = run.row()
    measures = ("energyJoules", "gpu", "memoryAllocated", "powerWatts", "temp")
    devices = {f"system/gpu.{number}.{name}" for number in (0, 1) for name in measures}
    assert row.keys() == devices | {"system/tokens_per_second", "system/tokens_per_joule", "system/readings"}
    assert row["system/tokens_per_second"] == pytest.approx(1000.0)
    assert row["system/tokens_per_joule"] == pytest.approx(1000.0 / 200.0)


def test_a_row_before_the_first_reading_says_so() -> None:
    """There is a row at once, also while a driver hangs."""
    backend = gpus(1)
    backend.device(0).hang()
    try:
        with accelmetrics.training(backends=[backend], timeout=HANG) as run:
            assert returned(run.row) == {"system/readings": 0}
    finally:
        backend.device(0).release()


def test_names_fit_trackers() -> None:
    """A slash, and nothing that MLflow refuses."""
    clock = HeldClock()
    backend = FakeBackend(devices=1)
    backend.device(0).set(**{"odd [%] name": 1.0})
    with accelmetrics.training(backends=[backend], clock=clock, share=None) as run:
        ticks(run.monitor, 1)
        assert run.row("train", keys="all").keys() == {"train/gpu.0.odd ___ name", "train/readings"}
        assert run.row("", keys="all").keys() == {"system/gpu.0.odd ___ name", "system/readings"}
        assert run.row("a/b-", keys="all").keys() == {"a/b-gpu.0.odd ___ name", "a/b-readings"}
    assert re.fullmatch(r"[/\w.\- :]+", "train/gpu.0.odd ___ name")


def test_keys_choose() -> None:
    """Presets, names and patterns; what does not exist is told once, and the row is brief."""
    clock = HeldClock()
    with accelmetrics.training(backends=[counting(clock)], clock=clock, share=None) as run:
        ticks(run.monitor, 1)
        assert set(run.row(keys="powerWatts,-gpu.1.*")) == {"system/gpu.0.powerWatts", "system/readings"}
        assert set(run.row(keys=["gpu.1.*"], stats="last")) == {
            f"system/gpu.1.{name}.last" for name in ("powerWatts", "gpu", "memoryAllocated", "temp")
        } | {"system/readings"}
        brief = set(run.row())
        assert set(run.row(keys="powerWats")) == brief
        go(run, clock, 2)
        assert run.row(keys="temp")["system/gpu.0.temp"] == 60.0
        assert run.row(keys="memoryAllocated")["system/gpu.0.memoryAllocated"] == 25.0, "its last reading, though the other row had it"


def test_wrong_arguments_are_told_once_and_change_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever a trainer hands over, it goes on."""
    clock = HeldClock()
    with caplog.at_level(logging.WARNING, logger="accelmetrics"), accelmetrics.training(backends=[gpus(1)], clock=clock, share=None) as run:
        ticks(run.monitor, 1)
        for _ in range(2):
            run.step("seven", 8, loss=[1.0, 2.0])
            assert run.row(None) == {}  # type: ignore[arg-type]
            assert set(run.row(stats=("mode",))) == set(run.row())
            run.row(keys=7)  # type: ignore[arg-type]
    assert len(caplog.records) == len({record.getMessage() for record in caplog.records}) == 6


class Odd:
    """A value of which nothing can be asked."""

    def __getattribute__(self, name: str) -> Any:
        raise SystemExit(3)

    __iter__ = __hash__ = __eq__ = __str__ = __repr__ = __float__ = __index__ = __bool__ = __len__ = __getattribute__  # type: ignore[assignment]


ROWS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "unknown names": ((), {"key": "core", "statistic": Odd()}),
    "too many": (("system/", "brief", "mean", 4, Odd()), {}),
    "odd keys": ((), {"keys": Odd()}),
    "odd items": ((), {"keys": [Odd()]}),
    "keys that cannot be hashed": ((), {"keys": [["gpu"]]}),
    "keys without an end": ((), {"keys": repeat("x")}),
    "a long key": ((), {"keys": "x" * 1_000_000}),
    "long keys": ((), {"keys": ["x" * 1000] * 1000}),
    "nested keys": ((), {"keys": [[0] * 1_000_000]}),
    "odd statistics": ((), {"stats": Odd()}),
    "an odd statistic": ((), {"stats": [Odd()]}),
    "a number": ((), {"stats": 7}),
    "statistics without an end": ((), {"stats": repeat("mode")}),
    "long statistics": ((), {"stats": ["x" * 1_000_000]}),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_row_that_is_asked_for_with_anything_is_there(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """It is the brief row, or has means; one line says what is wrong, in a few words."""
    clock = HeldClock()
    arguments, options = ROWS[name]
    with accelmetrics.training(backends=[gpus(1)], clock=clock, share=None) as run:
        ticks(run.monitor, 1)
        brief = set(run.row())
        for _ in range(2):
            assert set(run.row(*arguments, **options)) == brief
    (line,) = caplog.messages
    assert len(line) < 1200


def test_a_prefix_that_cannot_be_used_costs_no_readings() -> None:
    clock = HeldClock()
    with accelmetrics.training(backends=[gpus(1)], clock=clock, share=None) as run:
        ticks(run.monitor, 1)
        assert run.row(Odd()) == run.row(None) == {}  # type: ignore[arg-type]
        assert run.row()["system/readings"] == 1


def test_steps_have_names_of_every_kind(caplog: pytest.LogCaptureFixture) -> None:
    """Those of our own arguments too; a step that is given twice is told once."""
    clock = HeldClock()
    names = dict.fromkeys(("self", "call", "what", "values", "unused", "at", "time_ns", "source"), 0.5)
    with accelmetrics.training(backends=[gpus(1)], clock=clock, share=None) as run:
        ticks(run.monitor, 1)
        for _ in range(2):
            run.step(7, step=8, **names)
            run.monitor.log(7, 8, step=9, **names)
        run.step(step=9, loss=0.5)
        go(run, clock, 1)
        found = [(one.step, {name: one.values[name] for name in names if name in one.values}) for one in run.monitor.steps]
    assert found == [(7, names)] * 4 + [(9, {})]
    assert caplog.messages == ["monitor.log ignores extra arguments (1): pass a step number and named values: `log(7, loss=loss)`"]


def test_a_run_begins_and_ends_twice() -> None:
    """Closing and starting again is as harmless as doing either twice."""
    clock = HeldClock()
    run = accelmetrics.training(backends=[gpus(1)], clock=clock, share=None)
    with run, run.start():
        ticks(run.monitor, 1)
    run.close()
    assert run.row()["system/readings"] >= 1
    with run:
        ticks(run.monitor, 1)
    assert not run.monitor.running


def test_bad_options_are_raised_where_it_is_made() -> None:
    """Before the training begins."""
    with pytest.raises(accelmetrics.InvalidOptionError):
        accelmetrics.training(interval=0)
    with pytest.raises(accelmetrics.UnknownNameError):
        accelmetrics.training(exporters=["nowhere"])


def test_ranks_hear_each_other(tmp_path: Path) -> None:
    """Two processes of a job: each has the other's steps with their rank, NaN too, and the row has what both do."""
    text = """
        import os, threading, time
        import accelmetrics
        rank = int(os.environ["RANK"])
        def train(run):
            step = 0
            while True:
                run.step(step, tokens=100, loss=float("nan") if rank else 0.5, tokens_per_second=1000.0 * (rank + 1))
                step += 1
                time.sleep(0.01)
        with accelmetrics.training(0.05, backends=["host"], metrics="cpu,load.1m") as run:
            threading.Thread(target=train, args=(run,), daemon=True).start()
            while {step.rank for step in run.monitor.steps} != {0, 1}:
                time.sleep(0.01)
            tell({step.rank: [step.node == run.node, repr(step.values["loss"])] for step in run.monitor.steps})
            while abs(run.row().get("system/tokens_per_second", 0) - 3000.0) > 1e-3:
                time.sleep(0.2)
            tell("the sum")
            wait_to_go_on()
    """
    with ExitStack() as stack:
        programs = [
            stack.enter_context(Program(text, env=job_environment(tmp_path, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2")))
            for rank in (0, 1)
        ]
        for program in programs:
            assert program.told() == [{"0": [True, "0.5"], "1": [True, "nan"]}]
        for program in programs:
            assert program.told() == ["the sum"]


def test_who_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the launcher says; alone without one."""
    alone = accelmetrics.training(backends=[gpus(1)])
    assert (alone.rank, alone.local_rank, alone.world_size) == (None, None, 1)
    for name, value in {"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8"}.items():
        monkeypatch.setenv(name, value)
    run = accelmetrics.training(backends=[gpus(1)])
    assert (run.rank, run.local_rank, run.world_size, run.node) == (5, 1, 8, alone.node)


def test_the_example_of_an_own_loop_runs(tmp_path: Path) -> None:
    """With a row every so many steps."""
    example = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "own_loop.py"))
    assert example["main"](tmp_path / "rows.jsonl") == (pytest.approx(3.0), pytest.approx(1.0))
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [500, 1000, 1500, 2000]
    assert all("system/readings" in row for row in rows)


def test_a_model_without_pytorch_is_told(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the steps are logged as they are."""
    monkeypatch.setitem(sys.modules, "torch", None)
    with accelmetrics.training(backends=[gpus(1)], share=None) as run:
        run.watch(object())
        run.step(1, loss=0.5)
    assert [dict(step.values) for step in run.monitor.steps] == [{"loss": 0.5}]
    assert "watch failed" in caplog.text
