"""Each rule about what the program logs: what provokes it, when it is over, and what it must stay silent about."""

from __future__ import annotations

from collections.abc import Callable
from math import exp, inf, nan

import pytest

from tests.monitor.judged_run import JudgedRun

MINUTE, HOUR = 60.0, 3600.0


class Training:
    """A program that logs a step a second, whose numbers a test sets.

    Args:
        run: Where it logs.
        rank: Its rank.

    Attributes:
        steps: How many it has done.
        loss: Gives the loss of a step.
        norm: Gives the gradient norm of a step.
        seconds: How long a step takes.
    """

    def __init__(self, run: JudgedRun, rank: int | None = None) -> None:
        self.run, self.rank, self.steps, self.seconds = run, rank, 0, 1.0
        self.loss: Callable[[int], float] = lambda step: 2.0 + exp(-step / 500) + run.chance.gauss(0, 0.05)
        self.norm: Callable[[int], float] = lambda step: exp(run.chance.gauss(0, 0.3))
        self._done = run.clock.monotonic()

    def __call__(self) -> None:
        """Log the steps that were done until now."""
        now = self.run.clock.monotonic()
        while self._done + self.seconds <= now:
            self._done += self.seconds
            self.run.step_at(self._done, self.steps, self.rank, loss=self.loss(self.steps), grad_norm=self.norm(self.steps))
            self.steps += 1

    def wait(self, seconds: float) -> None:
        """Do something else than steps."""
        self._done += seconds


@pytest.mark.parametrize(
    ("loss", "norm", "words"),
    [(nan, 1.0, "loss is nan at step 60"), (inf, 1.0, "loss is inf at step 60"), (0.0, nan, "gradient norm is nan at step 60")],
)
def test_a_loss_that_is_not_finite_is_told_until_a_hundred_steps_are(loss: float, norm: float, words: str) -> None:
    """At once, of the one rank; a loss of 0 beside a norm that is NaN is what trainers make of it."""
    with JudgedRun(["non_finite"]) as run:
        program, other = Training(run, 1), Training(run, 0)

        def both() -> None:
            program()
            other()

        run.go(MINUTE, both)
        assert run.begun == []
        usual = program.loss, program.norm
        program.loss, program.norm = (lambda step: loss), (lambda step: norm)
        run.go(run.interval, both)
        assert run.names() == [("non_finite", "rank 1")]
        assert run.findings.current[0].message in [words.replace("60", str(step)) for step in range(60, 70)]
        program.loss, program.norm = usual
        run.go(80, both)
        assert run.names() == [("non_finite", "rank 1")]
        run.go(40, both)
        assert run.names() == []


def test_a_lone_norm_that_is_not_finite_is_the_scaler_of_half_precision() -> None:
    """Three in a row are not."""
    with JudgedRun(["non_finite"]) as run:
        program = Training(run)
        program.norm = lambda step: inf if step % 50 in (7, 8) else 1.0
        run.go(HOUR, program)
        assert run.begun == []
        program.norm = lambda step: inf if step % 50 in (7, 8, 9) else 1.0
        run.go(MINUTE, program)
        assert run.names() == [("non_finite", "")]


def test_large_gradients_are_told_after_the_warm_up_where_they_stay() -> None:
    """Not those of the first hundred steps, and not one."""
    with JudgedRun(["gradient"]) as run:
        program = Training(run)
        program.norm = lambda step: 40.0 if step < 100 or step % 7 == 0 else 1.0
        run.go(10 * MINUTE, program)
        assert run.begun == []
        program.norm = lambda step: 12.0
        run.go(20, program)
        assert run.names() == [("gradient", "")]
        program.norm = lambda step: 7.0
        run.go(MINUTE, program)
        assert run.names() == [("gradient", "")]
        program.norm = lambda step: 4.0
        run.go(MINUTE, program)
        assert run.names() == []


@pytest.mark.parametrize("times", [6.0, 50.0])
def test_gradients_that_jump_and_stay_or_jump_far_are_told(times: float) -> None:
    """Those that scatter are not, nor those that grow slowly, nor a single one that is only unusual."""
    with JudgedRun(["gradient_jump"]) as run:
        program = Training(run)
        program.norm = lambda step: exp(run.chance.gauss(0, 0.3)) * (1 + step / 4000) * (3 if step % 1000 == 999 else 1)
        run.go(4 * HOUR, program)
        assert run.begun == []
        since = program.steps
        program.norm = lambda step: times * (1 + since / 4000) if step < since + (10 if times < 10 else 1) else 1.0 + since / 4000
        run.go(30, program)
        assert run.names() == [("gradient_jump", "")]
        run.go(5 * MINUTE, program)
        assert run.names() == []


def test_a_loss_ten_times_that_before_is_a_spike() -> None:
    """Losses that swing about 0 have none."""
    with JudgedRun(["loss_spike"]) as run:
        program, other = Training(run, 0), Training(run, 1)
        other.loss = lambda step: run.chance.gauss(0, 0.01)

        def both() -> None:
            program()
            other()

        run.go(HOUR, both)
        assert run.begun == []
        since = program.steps
        program.loss = lambda step: 30.0 if step == since + 3 else 2.0
        run.go(run.interval, both)
        assert run.names() == [("loss_spike", "rank 0")]
        assert run.findings.current[0].message.startswith("loss is 15.")
        run.go(2 * MINUTE, both)
        assert run.names() == []


def test_a_loss_that_falls_no_more_is_told_and_one_that_falls_slowly_is_not() -> None:
    """By a law of powers, as losses of large models fall."""
    with JudgedRun(["loss_not_decreasing"]) as run:
        falling, stuck = Training(run, 0), Training(run, 1)
        falling.loss = lambda step: 4 * (step + 100) ** -0.05 + run.chance.gauss(0, 0.05)
        stuck.loss = lambda step: max(4 * (step + 100) ** -0.05, 2.9) + run.chance.gauss(0, 0.05)

        def both() -> None:
            falling()
            stuck()

        run.go(6 * HOUR, both)
        assert {finding.key for finding in run.begun} == {"rank 1"}
        assert run.names() == [("loss_not_decreasing", "rank 1")]
        stuck.loss = lambda step: 2.0
        run.go(3 * HOUR, both)
        assert run.names() == []


def hanging(run: JudgedRun) -> None:
    """Have all devices spin."""
    for device in run.backend.all_devices():
        device.set(gpu=100, powerWatts=150.0)


def test_devices_that_spin_without_a_step_hang() -> None:
    """For five minutes, or ten usual steps where these are longer; over with the next step."""
    with JudgedRun(["hang"], devices=2) as run:
        program = Training(run)
        run.go(10 * MINUTE, program)
        hanging(run)
        run.go(5 * MINUTE)
        assert run.names() == []
        run.go(2 * MINUTE)
        assert run.names() == [("hang", "gpu.0"), ("hang", "gpu.1")]
        assert "no step for" in run.findings.current[0].message
        program.wait(7 * MINUTE)
        run.go(run.interval, program)
        assert run.names() == []
        program.seconds = 100.0
        run.go(10 * HOUR, program)
        assert run.begun[2:] == []
        run.go(900)
        assert run.names() == []
        run.go(200)
        assert len(run.names()) == 2


@pytest.mark.parametrize("meanwhile", ["compiling", "evaluating", "loading", "few steps", "no steps"])
def test_what_takes_long_without_a_step_is_no_hang(meanwhile: str) -> None:
    """A compilation, an evaluation at full power, a data loader; a program that has not logged its first steps, or never logs any."""
    with JudgedRun(["hang"], devices=2) as run:
        program = Training(run)
        if meanwhile == "few steps":
            run.go(run.interval)
            program.wait(18)
            run.go(run.interval, program)
        elif meanwhile != "no steps":
            run.go(10 * MINUTE, program)
        busy = {"compiling": (3, 120.0), "evaluating": (100, 600.0), "loading": (0, 90.0)}.get(meanwhile, (100, 150.0))
        for device in run.backend.all_devices():
            device.set(gpu=busy[0], powerWatts=busy[1])
        run.go(25 * MINUTE)
        assert run.begun == []
        if meanwhile == "no steps":
            assert [(lack.rule, lack.reason) for lack in run.findings.cannot_tell] == [("hang", "not_logged")]


def test_a_pause_of_the_monitor_is_no_hang() -> None:
    """What was logged meanwhile is not known."""
    with JudgedRun(["hang"], devices=1) as run:
        run.go(10 * MINUTE, Training(run))
        hanging(run)
        run.pause(HOUR)
        run.go(4 * MINUTE)
        assert run.begun == []


def test_goodput_is_what_steps_take_of_the_time() -> None:
    """Evaluation and checkpoints of a tenth of the time are as it should be; waiting for most of it is not."""
    with JudgedRun(["goodput"]) as run:
        program = Training(run)
        for _ in range(6):
            run.go(18 * MINUTE, program)
            program.wait(2 * MINUTE)
            run.go(2 * MINUTE, program)
        assert run.begun == []
        for _ in range(10):
            run.go(2 * MINUTE, program)
            program.wait(6 * MINUTE)
            run.go(6 * MINUTE, program)
        assert run.names() == [("goodput", "")]
        run.go(HOUR, program)
        assert run.names() == []


def test_steps_that_take_longer_than_before_are_told() -> None:
    """Not a few of them."""
    with JudgedRun(["slow_steps"]) as run:
        program = Training(run)
        run.go(20 * MINUTE, program)
        program.seconds = 1.7
        run.go(30, program)
        program.seconds = 1.0
        run.go(10 * MINUTE, program)
        assert run.begun == []
        program.seconds = 1.7
        run.go(2 * MINUTE, program)
        assert run.names() == [("slow_steps", "")]
        program.seconds = 1.0
        run.go(3 * MINUTE, program)
        assert run.names() == []


@pytest.mark.parametrize("name", ["loss", "train/loss", "train_loss", "Train/Loss"])
def test_numbers_are_known_by_the_names_that_trackers_give_them(name: str) -> None:
    """Those of an evaluation are not meant."""
    with JudgedRun(["non_finite"]) as run:
        run.step(1, None, **{"eval/loss": nan, "val/loss": nan})
        run.go(20)
        assert run.names() == []
        run.go(20)
        assert [lack.reason for lack in run.findings.cannot_tell] == ["not_logged"]
        run.step(2, None, **{name: nan})
        run.go(20)
        assert run.names() == [("non_finite", "")]
        assert run.findings.cannot_tell == ()


def test_of_a_job_of_many_ranks_a_bounded_number_is_followed() -> None:
    """The leading one among them."""
    with JudgedRun(["non_finite"], devices=1) as run:
        for rank in range(200):
            run.step(1, rank, loss=nan)
        run.go(20)
        assert len(run.findings.current) == 64
        assert ("non_finite", "rank 0") in run.names()


@pytest.mark.parametrize("seconds", [1.0, 90.0, 1000.0])
def test_what_was_found_in_steps_lasts_until_others_are_logged(seconds: float) -> None:
    """However long a step takes: a run that has ended with a loss of NaN still says so."""
    with JudgedRun("non_finite,loss_spike") as run:
        program = Training(run)
        program.seconds = seconds
        program.loss = lambda step: nan if step >= 120 else 50.0 if step == 30 else 2.0
        run.go(35 * seconds, program)
        assert [finding.rule for finding in run.begun] == ["loss_spike"]
        run.go(MINUTE, program)
        run.go(2 * seconds, program)
        assert [finding.rule for finding in run.findings.ended] == ["loss_spike"]
        run.go(100 * seconds, program)
        run.go(24 * HOUR)
        assert run.names() == [("non_finite", "")]


def test_a_loss_of_a_long_run_that_falls_no_more_is_told_once() -> None:
    """Though stretches of its steps grow long."""
    with JudgedRun("loss_not_decreasing", devices=1) as run:
        program = Training(run)
        program.loss = lambda step: 2.0 + run.chance.gauss(0, 0.05)
        run.go(24 * HOUR, program)
        assert len(run.begun) == 1
        assert run.names() == [("loss_not_decreasing", "")]


def test_of_losses_that_scatter_more_than_they_fall_nothing_is_said() -> None:
    """As those of small batches at the end of a fine-tuning."""
    with JudgedRun("loss_not_decreasing", devices=1) as run:
        program = Training(run)
        program.loss = lambda step: 1 - step / 20_000 + run.chance.gauss(0, 0.3)
        run.go(2 * HOUR, program)
        assert run.begun == []
