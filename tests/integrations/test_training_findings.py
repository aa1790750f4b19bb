"""What a training run finds in what the program logs and in what its devices do."""

from __future__ import annotations

from math import nan
from pathlib import Path

import pytest

import accelmetrics
from accelmetrics import Finding
from accelmetrics.testing.fake import FakeClock
from tests.monitor.judged_run import healthy_gpus
from tests.support.waiting import wait_for


def test_a_run_tells_a_loss_that_is_not_finite_and_goes_on() -> None:
    """Without a word from the program; nothing is stopped. What cannot be judged stands apart."""
    clock, told = FakeClock(), list[Finding]()
    with accelmetrics.training(share=None, visible=False, backends=[healthy_gpus(2, clock)], clock=clock, on_finding=told.append) as run:
        for step in range(20):
            run.step(step, loss=2.0 if step < 10 else nan)
        wait_for(lambda: list(run.findings()))
        (finding,) = run.findings()
        assert (finding.rule, finding.severity) == ("non_finite", "critical")
        assert finding.message.startswith("loss is nan at step 1")
        wait_for(lambda: run.findings().cannot_tell)
        assert {lack.rule for lack in run.findings().cannot_tell} == {"gradient", "gradient_jump"}
        wait_for(lambda: told == [finding])
        for step in range(20, 200):
            run.step(step, loss=1.9)
        wait_for(lambda: run.findings().ended)
        assert not list(run.findings())
        assert run.monitor.running


def test_a_loss_that_ends_the_program_is_found(tmp_path: Path) -> None:
    """It stands in the recording too, however soon after the one before the last reading comes."""
    recording = tmp_path / "run.jsonl"
    clock = FakeClock()
    run = accelmetrics.training(0.1, [f"jsonl:{recording}"], share=None, visible=False, backends=[healthy_gpus(1, clock)], clock=clock)

    def train() -> None:
        with run:
            run.step(1, loss=2.0)
            wait_for(lambda: run.monitor.latest)
            run.step(2, loss=nan)
            raise FloatingPointError

    with pytest.raises(FloatingPointError):
        train()
    assert [finding.rule for finding in run.findings()] == ["non_finite"]
    assert '"non_finite"' in recording.read_text()


def test_a_loss_is_found_though_no_reading_follows_it(tmp_path: Path) -> None:
    """As while the monitor is paused."""
    recording = tmp_path / "run.jsonl"
    clock = FakeClock()
    run = accelmetrics.training(1.0, [f"jsonl:{recording}"], share=None, visible=False, backends=[healthy_gpus(1, clock)], clock=clock)
    with run:
        wait_for(lambda: run.monitor.latest)
        run.monitor.pause()
        run.step(2, loss=nan)
    assert [finding.rule for finding in run.findings()] == ["non_finite"]
    assert '"non_finite"' in recording.read_text()


def test_rules_of_a_run_are_chosen_as_those_of_a_monitor() -> None:
    """Here none."""
    clock = FakeClock()
    with accelmetrics.training(share=None, visible=False, backends=[healthy_gpus(1, clock)], clock=clock, rules="none") as run:
        run.step(1, loss=nan)
        wait_for(lambda: run.monitor.steps)
        assert run.findings() == accelmetrics.Findings()
