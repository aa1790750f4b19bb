"""How many workers share a reading: decided by the time inside the driver, on a clock that only what is read moves forward."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from accelmetrics import Sampler
from accelmetrics.backends.contract import Reading
from accelmetrics.sampling.threads import MAX_WORKERS, CountDownLatch, WorkerPool
from accelmetrics.testing import FakeBackend

UNITS = 8
Play = Callable[["Passing", list[Any]], None]
"""What the reading of a unit does: lets time pass, and notes its progress."""


class Passing(threading.local):
    """A clock of each thread's own that goes forward when it is told to."""

    now = 100.0

    def __call__(self) -> float:
        return self.now

    def call(self, progress: list[Any], seconds: float) -> None:
        """A call into the driver."""
        self.now += seconds
        progress.append(None)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Passing:
    made = Passing()
    monkeypatch.setattr(time, "perf_counter", made)
    return made


@pytest.fixture
def wanted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many workers each reading was given."""
    asked: list[int] = []
    submit = WorkerPool.submit

    def note(self: WorkerPool, task: Any, wanted: int = 1, patient: bool = False) -> bool:
        if patient:
            asked.append(wanted)
        return submit(self, task, wanted, patient)

    monkeypatch.setattr(WorkerPool, "submit", note)
    return asked


def sampled(clock: Passing, play: Play, readings: int, interval: float = 0.0) -> None:
    """Take readings of units that each do this."""
    backend = FakeBackend(devices=UNITS, interval=interval)
    for device in backend.all_devices():

        def read(progress: list[Any]) -> Reading:
            play(clock, progress)
            return Reading.of({"powerWatts": 100.0})

        device.read = read  # type: ignore[method-assign]
    with Sampler([backend], timeout=60) as sampler:
        for _ in range(readings):
            assert len(sampler.sample().metrics) == UNITS


def slow_calls(clock: Passing, progress: list[Any]) -> None:
    for _ in range(10):
        clock.call(progress, 200e-6)
    clock.now += 10e-6


def much_python(clock: Passing, progress: list[Any]) -> None:
    for _ in range(10):
        clock.call(progress, 0.2e-6)
    clock.now += 2e-3


def one_call_without_progress(clock: Passing, _: list[Any]) -> None:
    clock.now += 2e-3


def mostly_python(clock: Passing, progress: list[Any]) -> None:
    clock.call(progress, 1.5e-3)
    clock.now += 2e-3


def few_calls(clock: Passing, progress: list[Any]) -> None:
    clock.call(progress, 100e-6)


@pytest.mark.parametrize(
    ("play", "most"),
    [
        (slow_calls, MAX_WORKERS),
        (one_call_without_progress, MAX_WORKERS),
        (much_python, 1),
        (mostly_python, 1),
        (few_calls, 1),
    ],
)
def test_workers_share_what_is_spent_inside_the_driver(clock: Passing, wanted: list[int], play: Play, most: int) -> None:
    sampled(clock, play, 4)
    assert wanted[0] == 1, "nothing is known of the first reading"
    assert set(wanted[1:]) == {most}


def test_a_call_that_returns_to_a_busy_interpreter_calls_for_no_worker(clock: Passing, wanted: list[int]) -> None:
    """The time that a few calls wait for the interpreter is not the driver's."""
    calls = iter(range(10**6))

    def play(clock: Passing, progress: list[Any]) -> None:
        clock.call(progress, 5e-3 if next(calls) % UNITS < 3 else 0.2e-6)
        clock.now += 1e-3

    sampled(clock, play, 4)
    assert set(wanted) == {1}


def test_a_driver_that_becomes_fast_gives_its_workers_back(clock: Passing, wanted: list[int]) -> None:
    readings = iter(range(10**6))

    def play(clock: Passing, progress: list[Any]) -> None:
        slow = next(readings) < UNITS * 4
        (slow_calls if slow else much_python)(clock, progress)

    sampled(clock, play, 8)
    assert wanted[1] == MAX_WORKERS
    assert wanted[-1] == 1


class Overtaken(deque[int]):
    """What is pending, all of which a worker takes just after it was looked at."""

    def __len__(self) -> int:
        length = super().__len__()
        self.clear()
        return length


def test_a_worker_that_is_late_may_take_a_unit_whose_reading_is_at_hand() -> None:
    """It reads it then."""
    backend = FakeBackend(devices=1)
    backend.device(0).set(temp=1)
    with Sampler([backend]) as sampler:
        sampler.sample()
        reader = sampler._engine.readers[0]  # type: ignore[union-attr]
        assert reader.opened is not None
        reader._readers[reader.opened].kept = lambda unit: Reading.of({"temp": 2})  # type: ignore[union-attr]
        assert sampler.sample().metrics == {"gpu.0.temp": 2}
        reader.pending = Overtaken()
        latch = CountDownLatch(reader.source.backend.name)
        reader.ask(reader.source.clock.monotonic(), latch)
        assert not reader.pending
        assert reader.wanted == {0}
