"""Whatever fails beside a training, the training ends as it would alone: the same result, the same order, the same exit status."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import accelmetrics
from tests.monitor.watching import Recorder, gpus, ticks
from tests.simulators.nvml import NvmlSimulator
from tests.support.programs import Program

TRAINING = """
    import random, sys
    import accelmetrics
    from accelmetrics.testing import FakeBackend
    backend = FakeBackend(devices=2)
    backend.device(0).set(powerWatts=100.0)
    numbers, weight = random.Random(0), 0.0
    {broken}
    with accelmetrics.training(0.01, {exporters}, backends=[{backends}], timeout=0.05) as run:
        for step in range(200):
            x = numbers.uniform(-1, 1)
            loss = (weight * x - 3 * x) ** 2
            weight -= 0.2 * (weight * x - 3 * x) * x
            run.step(step, loss=loss, tokens=10)
            run.step({step!r}, loss=[], tokens="many") if step % 50 == 0 else None
            if step % 50 == 0:
                print(step, loss)
                run.row(keys={step!r}, stats=7)
                run.findings()
        print(weight)
        {end}
"""
BROKEN = {
    "nothing": {},
    "disk": {"exporters": "['jsonl:/dev/full']"},
    "server": {"exporters": "['statsd:127.0.0.1:1', 'otlp:http://127.0.0.1:1', 'influx:http://127.0.0.1:1?db=x']"},
    "driver that hangs": {"broken": "backend.device(0).hang()"},
    "driver that raises": {"broken": "backend.device(0).fail(SystemExit(9))"},
    "device that is lost": {"broken": "backend.device(0).lose()"},
    "library that cannot be loaded": {"backends": "'nvidia'"},
    "logging": {"broken": "import logging; logging.getLogger('accelmetrics').addFilter(lambda record: 1 / 0)"},
    "threads": {"broken": "import threading; threading.Thread.start = None"},
}


def ended(**broken: str) -> tuple[int, str]:
    """Return the exit status and the output of the training."""
    text = TRAINING
    for name, default in {"exporters": "[]", "backends": "backend", "broken": "pass", "end": "pass", "step!r": "'seven'"}.items():
        text = text.replace(f"{{{name}}}", broken.get(name, default))
    with Program(text) as program:
        return program.end(), program.output


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
def test_the_training_ends_as_it_would_alone(broken: dict[str, str]) -> None:
    """Its numbers, their order and its status."""
    status, output = ended(**broken)
    assert (status, output.splitlines()) == (0, alone())


@pytest.mark.parametrize(("end", "status"), [("raise RuntimeError", 1), ("sys.exit(7)", 7)])
def test_its_own_failure_is_its_own(end: str, status: int) -> None:
    """An exception in the middle goes through, beside a driver that hangs."""
    found = ended(end=end, broken="backend.device(0).hang()")
    assert (found[0], found[1].splitlines()) == (status, alone())


def alone() -> list[str]:
    """What the training prints, reckoned here."""
    import random

    numbers, weight, said = random.Random(0), 0.0, []
    for step in range(200):
        x = numbers.uniform(-1, 1)
        loss = (weight * x - 3 * x) ** 2
        weight -= 0.2 * (weight * x - 3 * x) * x
        if step % 50 == 0:
            said.append(f"{step} {loss}")
    return [*said, str(weight)]


def test_exporters_that_raise_are_told_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    """In every one of their methods."""
    recorder = Recorder()

    def raising(*_: object) -> None:
        raise ZeroDivisionError

    recorder.on_export = recorder.on_flush = recorder.on_close = raising
    with caplog.at_level(logging.WARNING, logger="accelmetrics"), accelmetrics.training(0.02, [recorder], backends=[gpus(1)]) as run:
        run.step(1, loss=0.5)
        ticks(run.monitor, 3)
        assert run.row()["system/gpu.0.powerWatts"] == 100.0
    assert "could not deliver" in caplog.text


def test_a_reset_driver_leaves_rows(tmp_path: Path) -> None:
    """A GPU that falls off the bus has no numbers in the next row; the other has."""
    with NvmlSimulator(2) as simulator:
        text = """
            import accelmetrics, time
            with accelmetrics.training(0.02, backends=["nvidia"]) as run:
                while "system/gpu.1.powerWatts" not in run.row():
                    time.sleep(0.01)
                tell("both")
                wait_to_go_on()
                while "system/gpu.1.powerWatts" in (row := run.row()):
                    time.sleep(0.05)
                tell("system/gpu.0.powerWatts" in row)
                wait_to_go_on()
        """
        with Program(text, env={**simulator.environment(), "HOME": str(tmp_path)}) as program:
            assert program.told() == ["both"]
            simulator.lose(1)
            program.go_on()
            assert program.told() == [True]
