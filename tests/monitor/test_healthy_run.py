"""A day of healthy training on 8 GPUs, as noisy as real ones are: no rule says anything."""

from __future__ import annotations

from math import exp, inf, pi, sin

import pytest

from tests.monitor.judged_run import GIB, JudgedRun

MINUTE, HOUR = 60.0, 3600.0
DAY = 24 * HOUR
COMPILING = 10 * MINUTE
CHECKPOINT_EVERY, CHECKPOINT = 30 * MINUTE, 70.0
EVALUATION_EVERY, EVALUATION = 2 * HOUR, 8 * MINUTE
SHARDS_FROM, SHARDS = 13 * HOUR, 15 * MINUTE
"""When new data is prepared, for which everything waits."""
TOTAL = 80 * GIB


class HealthyTraining:
    """What 8 GPUs and the program say at each moment of the day.

    Args:
        run: The run; its chance decides.
    """

    def __init__(self, run: JudgedRun) -> None:
        self.run = run
        self.begin = run.clock.monotonic()
        self.steps = 0
        self._done = self.begin + COMPILING
        self._stall = 0.0
        self._crc = [0] * 8

    def phase(self, at: float) -> str:
        """What goes on at a moment of the day."""
        if at < COMPILING:
            return "compiling"
        if SHARDS_FROM <= at < SHARDS_FROM + SHARDS:
            return "waiting"
        if at % EVALUATION_EVERY < EVALUATION and at > EVALUATION_EVERY:
            return "evaluating"
        if at % CHECKPOINT_EVERY < CHECKPOINT or at < self._stall:
            return "waiting"
        return "training"

    def __call__(self) -> None:
        """Set what this moment says."""
        at, chance = self.run.clock.monotonic() - self.begin, self.run.chance
        if chance.random() < 0.002:  # data comes late
            self._stall = at + chance.uniform(20, 90)
        phase = self.phase(at)
        for number in range(8):
            self._device(number, at, phase)
        now = self.run.clock.monotonic()
        if phase != "training":
            self._done = max(self._done, now)
        while self._done < now:
            self._done += max(0.2, chance.gauss(1.0, 0.05)) + (2.0 if self.steps % 100 == 99 else 0.0)
            self._log(min(self._done, now))

    def _device(self, number: int, at: float, phase: str) -> None:
        chance = self.run.chance
        load = {
            "compiling": chance.choice((0, 0, 5, 40)),
            "waiting": chance.choice((0, 0, 1, 7)),
            "evaluating": chance.randint(55, 99),
        }.get(phase, min(100, max(80, round(chance.gauss(97, 2)))))
        ripple = 3 * sin(2 * pi * at / DAY) + (6.0 if number == 5 and at % (3 * HOUR) < 4 * MINUTE else 0.0)
        heat = 36 + 0.29 * load + 0.7 * number + ripple + chance.gauss(0, 1) + (12.0 if chance.random() < 0.0005 else 0.0)
        grown = min(1.0, at / (20 * MINUTE)) * 0.53 + 0.02 * (at > EVALUATION_EVERY) + 0.01 * (at > 5 * HOUR)
        used = grown + (0.05 if phase == "evaluating" else 0.0) + chance.uniform(0, 0.02)
        cap = phase == "training" and chance.random() < 0.7
        self._crc[number] += chance.random() < 0.02
        self.run.gpu(number).set(
            **{
                "gpu": load,
                "temp": round(heat),
                "powerWatts": min(715.0, 90 + 5.5 * load + chance.gauss(0, 25)),
                "smClock": round(1755 + chance.gauss(0, 30) - 60 * cap) if load > 10 else 345,
                "memoryAllocated": 100 * used,
                "memoryAllocatedBytes": round(used * TOTAL),
                "throttle.swPowerCap": int(cap),
                "throttle.gpuIdle": int(load == 0),
                "throttle.swThermalSlowdown": int(chance.random() < 0.01),
                "throttle.hwSlowdown": int(chance.random() < 0.001),
                "nvlinkCrcErrors": self._crc[number],
            }
        )

    def _log(self, moment: float) -> None:
        chance, step = self.run.chance, self.steps
        warm = 1 + 20 * exp(-step / 30)  # norms are large at first
        norm = inf if step % 4000 == 1234 else warm * exp(chance.gauss(0, 0.35))
        loss = 11 * (step + 50) ** -0.12 + chance.gauss(0, 0.06) + (chance.uniform(0, 2) if chance.random() < 0.002 else 0.0)
        self.run.step_at(moment, step, 0, loss=loss, grad_norm=norm, lr=3e-4 * min(1.0, step / 500))
        self.steps += 1


@pytest.mark.slow
def test_a_day_of_healthy_training_gives_no_finding() -> None:
    """Compilation, checkpoints, evaluation, data that is late, warm-up, power capping, ripples of heat and losses that scatter."""
    with JudgedRun(devices=8) as run:
        training = HealthyTraining(run)
        run.go(DAY, training)
        assert training.steps > 50_000
        assert [str(finding) for finding in run.begun] == []
        assert run.findings.ended == ()
        assert run.findings.cannot_tell == ()
