"""Ctrl-C at any place in what the program calls of a monitor leaves one that reads, delivers, measures windows and takes steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import SupportsFloat, cast

import pytest

from accelmetrics.monitor.monitor import Monitor
from tests.monitor.watching import Recorder, gpus
from tests.support.interrupting import InterruptAt, every_place, untraced
from tests.support.waiting import HANG, Gate, wait_for

pytestmark = untraced
numbers = count(1)


class OfADevice:
    """A number that a device computes: it has a shape, and is converted on a thread of ours."""

    shape = ()

    def __float__(self) -> float:
        return 2.0


def of_a_device() -> SupportsFloat:
    return cast("SupportsFloat", OfADevice())


class Watched:
    """A monitor of one GPU, and an exporter of its own."""

    def __init__(self) -> None:
        self.exporter = Recorder()
        self.backend = gpus(1)
        self.monitor = Monitor(0.01, [self.exporter], backends=[self.backend])

    def is_well(self) -> None:
        """Start it where it is not running, and see that all of it works."""
        monitor, step = self.monitor.start(), next(numbers)
        ticks = monitor.status.ticks
        wait_for(lambda: monitor.status.ticks > ticks)
        with monitor.window("after") as window:
            monitor.log(step=step, loss=of_a_device(), tokens=5)
        assert window.summary["gpu.0.powerWatts"].count >= 1
        assert "gpu.0" in window.energy_joules
        wait_for(lambda: any(one.step == step and one.values["loss"] == 2.0 for record in self.exporter.records for one in record.steps))
        self.exporter.records.clear()
        assert (monitor.error, monitor.status.exporters[0].error) == ("", "")


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    monkeypatch.setenv("ACCELMETRICS_VALIDATE", "0")  # which has thousands of places
    found = Watched()
    found.is_well()
    yield found
    found.monitor.stop()


def pause(monitor: Monitor) -> None:
    monitor.pause()
    monitor.resume()


def begin_and_end(monitor: Monitor) -> None:
    with monitor.window("w"):
        pass


CALLS: dict[str, tuple[Callable[[Monitor], object], int]] = {
    "log": (lambda monitor: monitor.log(step=0, loss=1.0, tokens=5), 10),
    "log of a tensor": (lambda monitor: monitor.log(step=0, loss=of_a_device()), 20),
    "window": (begin_and_end, 40),
    "flush": (lambda monitor: monitor.flush(), 20),
    "looks": (lambda monitor: (monitor.latest, monitor.status, monitor.findings, monitor.error, monitor.steps, monitor.windows), 10),
    "pause": (pause, 10),
}
"""What a program calls, and how many places there are at least."""


@pytest.mark.parametrize("name", CALLS)
def test_an_interrupt_anywhere_in_a_call_leaves_a_monitor_that_works(watched: Watched, name: str) -> None:
    call, places = CALLS[name]

    def attempt(interrupt: InterruptAt) -> None:
        interrupt.run(lambda: call(watched.monitor))
        watched.monitor.resume()
        watched.is_well()

    assert every_place(attempt) >= places


def test_an_interrupt_anywhere_in_a_subscription_leaves_a_monitor_that_works(watched: Watched) -> None:
    def attempt(interrupt: InterruptAt) -> None:
        another = Watched()  # what was subscribed to before would add places
        another.monitor.start()

        def call() -> None:
            unsubscribe = another.monitor.subscribe(bool)
            unsubscribe()

        interrupt.run(call)
        another.is_well()
        another.monitor.stop()

    assert every_place(attempt) > 30


def test_an_interrupt_anywhere_in_subscribe_leaves_no_callback_that_nobody_can_end(watched: Watched) -> None:
    subscribed: list[Callable[[], None]] = []

    def attempt(interrupt: InterruptAt) -> None:
        interrupt.run(lambda: subscribed.append(watched.monitor.subscribe(bool)))
        for unsubscribe in subscribed:
            unsubscribe()
        subscribed.clear()
        assert [one.name for one in watched.monitor.status.exporters] == ["recorder"]
        watched.monitor.stop()
        watched.is_well()
        assert [one.name for one in watched.monitor.status.exporters] == ["recorder"]

    assert every_place(attempt) > 20


@pytest.mark.slow
def test_an_interrupt_anywhere_in_a_window_s_results_leaves_them_whole(watched: Watched) -> None:
    def attempt(interrupt: InterruptAt) -> None:
        with watched.monitor.window("w") as window:
            pass
        interrupt.run(lambda: (window.summary, window.energy_joules, window.devices))
        assert window.summary["gpu.0.powerWatts"].count >= 1
        assert "gpu.0" in window.energy_joules
        watched.is_well()

    assert every_place(attempt) > 100


def test_an_interrupt_anywhere_in_start_leaves_a_monitor_that_starts(watched: Watched) -> None:
    """It is never half started: it runs, or a start is wanted."""

    def attempt(interrupt: InterruptAt) -> None:
        watched.monitor.stop()
        interrupt.run(watched.monitor.start)
        ticks = watched.monitor.status.ticks
        wait_for(lambda: not watched.monitor.running or watched.monitor.status.ticks > ticks)
        watched.is_well()

    assert every_place(attempt) > 50


def test_an_interrupt_anywhere_in_stop_leaves_a_monitor_that_starts(watched: Watched) -> None:
    def attempt(interrupt: InterruptAt) -> None:
        watched.monitor.log(loss=of_a_device())
        interrupt.run(watched.monitor.stop)
        watched.monitor.stop()
        assert not watched.monitor.running
        watched.is_well()

    assert every_place(attempt) > 50


@pytest.mark.slow
def test_an_interrupt_anywhere_in_a_stop_whose_last_reading_hangs_leaves_a_monitor_that_starts(watched: Watched) -> None:
    """The program's thread gives out the last steps then."""

    def attempt(interrupt: InterruptAt) -> None:
        gate = Gate()

        def power(gate: Gate = gate) -> float:
            gate()
            return 100.0

        watched.backend.device(0).set(powerWatts=power)
        assert gate.entered.wait(HANG)
        watched.monitor.log(step=0, loss=1.0)
        interrupt.run(lambda: watched.monitor.stop(0.001))
        gate.release()
        watched.monitor.stop()
        watched.is_well()

    assert every_place(attempt) > 50
