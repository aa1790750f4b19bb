"""Callbacks of home-grown monitors: the loop that calls them goes on as it is."""

from __future__ import annotations

import logging

import pytest

import accelmetrics
from accelmetrics.integrations.callbacks import GPUMonitoringCallback, TrainingMonitorCallback
from tests.integrations.test_training import go
from tests.monitor.watching import HeldClock, gpus, ticks


def test_a_loop_logs_its_steps() -> None:
    """Every number under the name that dashboards know it by; the monitor runs while the training does."""
    monitor = accelmetrics.Monitor(0.05, backends=[gpus(1)])
    callback = TrainingMonitorCallback(monitor)
    callback.on_train_begin()
    began = monitor.running
    for step in range(2):
        callback.on_step_begin()
        callback.on_step_end(step=step, epoch=1, loss=0.5, lr=1e-3, grad_norm=0.1, throughput=64.0, reward=2.0)
    callback.on_step_end(2, 1, 0.25)
    callback.on_train_end()
    assert (began, monitor.running) == (True, False)
    first, _, last = monitor.steps
    assert first.values["step_seconds"] >= 0
    named = {name: value for name, value in first.values.items() if name != "step_seconds"}
    assert named == {"epoch": 1, "loss": 0.5, "learning_rate": 1e-3, "grad_norm": 0.1, "samples_per_second": 64.0, "reward": 2.0}
    assert (last.step, last.values["loss"]) == (2, 0.25)


def test_nothing_that_a_step_is_called_with_or_does_stops_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    """Arguments twice, and a handler of the program's that raises."""
    callback = GPUMonitoringCallback(accelmetrics.training(backends=[gpus(1)], share=None), log_interval=1)

    def broken(record: logging.LogRecord) -> bool:
        if record.levelno == logging.INFO:
            raise ZeroDivisionError
        return True

    logger = logging.getLogger("accelmetrics")
    logger.addFilter(broken)
    try:
        with caplog.at_level(logging.INFO, logger="accelmetrics"), callback.run:
            for step in range(2):
                callback.on_step_end(step, step=step)
                callback.on_step_end(step, loss=0.5)
    finally:
        logger.removeFilter(broken)
    assert [line.split()[3] for line in caplog.messages] == ["TypeError:", "ZeroDivisionError"]


def test_rows_are_told_every_so_many_steps(caplog: pytest.LogCaptureFixture) -> None:
    """On the logger, and as an attribute for loops that log themselves."""
    clock = HeldClock()
    run = accelmetrics.training(backends=[gpus(1)], clock=clock, share=None)
    callback = GPUMonitoringCallback(run, log_interval=2)
    assert callback.run is run
    with caplog.at_level(logging.INFO, logger="accelmetrics"):
        callback.on_train_begin()
        ticks(run.monitor, 1)
        for step in range(5):
            go(run, clock, 1)
            callback.on_step_end(step=step, loss=0.5)
        callback.on_train_end()
    told = [message for message in caplog.messages if message.startswith("step ")]
    assert [message.partition(":")[0] for message in told] == ["step 2", "step 4"]
    assert callback.row["system/gpu.0.powerWatts"] == 100.0


def test_bad_arguments_are_raised_where_it_is_made() -> None:
    """With what to pass instead."""
    with pytest.raises(accelmetrics.InvalidOptionError, match=r"pass accelmetrics\.Monitor"):
        TrainingMonitorCallback(object())  # type: ignore[arg-type]
    with pytest.raises(accelmetrics.InvalidOptionError, match="log_interval is 0"):
        GPUMonitoringCallback(accelmetrics.Monitor(backends=[gpus(1)]), log_interval=0)


def test_a_loop_that_calls_them_wrongly_goes_on() -> None:
    """Frameworks hand over arguments of their own."""
    callback = GPUMonitoringCallback(accelmetrics.Monitor(0.05, backends=[gpus(1)]), 1)
    callback.on_train_begin("args", state=None)
    callback.on_step_begin(0)
    callback.on_step_end(object(), epoch="x", loss=[1, 2])
    callback.on_step_end(1, 2, 3, 4, 5, 6, 7, 8)
    callback.on_train_end("args")
