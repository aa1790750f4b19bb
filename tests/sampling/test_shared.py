"""Samplers that share a source: each has its own patience, and nothing of one is left to the next."""

from __future__ import annotations

import gc
import sys
import threading
import time
import weakref
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import pytest
from pytest_mock import MockerFixture

import accelmetrics
from accelmetrics import Reason, Sampler
from accelmetrics.sampling import sampler as sampler_module
from accelmetrics.sampling.engine import LATER_PATIENCE
from accelmetrics.sampling.sampler import MOST_SHARED
from accelmetrics.sampling.sources import SourceRegistry
from accelmetrics.testing import FakeBackend
from accelmetrics.testing.fake import FakeDriver
from tests.sampling.conftest import at_once, beside, workers
from tests.support.waiting import HANG, Gate, wait_for


def registry() -> SourceRegistry:
    """Return the sources and the numbering that samplers share in this file's tests."""
    found: SourceRegistry = vars(sampler_module)["SHARED"]
    return found


@contextmanager
def switching_often() -> Iterator[None]:
    """Let threads take turns as often as there are."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def test_an_impatient_sampler_does_not_make_a_patient_one_give_up(gpus: FakeBackend) -> None:
    for device in gpus.all_devices():
        device.slow(0.06)
    with Sampler([gpus], timeout=HANG) as patient, Sampler([gpus], timeout=0.02) as impatient:
        patient.sample()
        with beside(impatient.sample):
            for _ in range(6):
                snapshot = patient.sample()
                assert snapshot.backends[0].status == "ok", snapshot.backends[0].detail


def test_samplers_that_come_and_go_do_not_repeat_an_opening_that_hangs(gpus: FakeBackend) -> None:
    gpus.opening.hang()
    for _ in range(5):
        with Sampler([gpus], timeout=0.05, open_timeout=0.05) as sampler:
            sampler.sample()
    assert gpus.opened == 1
    assert workers() == 1
    gpus.opening.release()
    wait_for(lambda: gpus.closed == 1)
    wait_for(lambda: workers() == 0)
    with Sampler([gpus]) as sampler:
        assert len(sampler.sample().metrics) == 8
    assert (gpus.opened, gpus.closed) == (2, 2)


def test_samplers_that_come_and_go_do_not_repeat_a_call_that_hangs(gpus: FakeBackend) -> None:
    gpus.device(0).hang()
    for _ in range(5):
        with Sampler([gpus], timeout=0.2) as sampler:
            assert {key.split(".")[1] for key in sampler.sample().metrics} == {"1", "2", "3"}
    assert gpus.device(0).reads == 1
    gpus.device(0).release()
    wait_for(lambda: workers() == 0)
    wait_for(lambda: gpus.opened == gpus.closed)


def test_a_driver_that_opens_after_its_sampler_was_closed_is_closed_too(gpus: FakeBackend) -> None:
    gpus.opening.hang()
    sampler = Sampler([gpus], timeout=0.05, open_timeout=0.05)
    sampler.sample()
    sampler.close()
    assert gpus.closed == 0
    gpus.opening.release()
    wait_for(lambda: (gpus.opened, gpus.closed) == (1, 1))
    wait_for(lambda: workers() == 0)


def test_a_driver_whose_close_hangs_does_not_hold_the_sampler(gpus: FakeBackend) -> None:
    gate = Gate()

    class Stubborn(FakeDriver):
        def close(self) -> None:
            gate()

    gpus.open = lambda: Stubborn(gpus)  # type: ignore[method-assign]
    sampler = Sampler([gpus])
    sampler.sample()
    sampler.close()
    assert gate.entered.is_set()
    assert len(sampler.sample().metrics) == 8, "it opens anew meanwhile"
    gate.release()
    sampler.close()


def test_a_reader_that_is_slow_to_make_does_not_break_the_deadline(gpus: FakeBackend) -> None:
    gate = Gate()

    class Sluggish(FakeDriver):
        def reader(self, options: object) -> FakeDriver:
            gate()
            return super().reader(options)  # type: ignore[arg-type]

    gpus.open = lambda: Sluggish(gpus)  # type: ignore[method-assign]
    with Sampler([gpus], timeout=0.2) as sampler:
        assert not sampler.sample().metrics
        gate.release()
        wait_for(lambda: len(sampler.sample().metrics) == 8)


def test_a_second_caller_waits_for_its_turn_no_longer_than_its_deadline(gpus: FakeBackend) -> None:
    """Its turn's wait is taken from its time: six callers beside a device that hangs take about two deadlines, not six."""
    with Sampler([gpus], timeout=1.0) as sampler:
        sampler.sample()
        for device in gpus.all_devices():
            device.hang()
        began: list[float] = []
        ended: list[float] = []

        def call() -> None:
            began.append(time.monotonic())
            sampler.sample()
            ended.append(time.monotonic())

        at_once(*[call] * 6)
        for device in gpus.all_devices():
            device.release()
    assert max(ended) - min(began) < 6.0, "they do not wait one after the other"


class CountedLock:
    """A lock that counts those that come for it before they get it."""

    def __init__(self) -> None:
        self.came: list[int] = []
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self.came.append(threading.get_ident())
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


def test_threads_that_sample_at_once_share_one_reading(gpus: FakeBackend, mocker: MockerFixture) -> None:
    """Those that ask during a reading, which may be older than their question, share the one after it."""
    gate = Gate()

    def temperature() -> int:
        gate()
        return 40

    with Sampler([gpus], timeout=HANG) as sampler:
        sampler.sample()
        before = gpus.device(0).reads
        gpus.device(0).set(temp=temperature)
        turns = CountedLock()
        mocker.patch.object(sampler._engine, "_lock", turns)
        threads = [threading.Thread(target=sampler.sample) for _ in range(8)]
        for thread in threads:
            thread.start()
        wait_for(lambda: len(turns.came) == len(threads))
        assert gate.entered.wait(HANG)
        gate.release()
        for thread in threads:
            thread.join()
        assert gpus.device(0).reads - before == 2


@pytest.fixture
def no_collector() -> Generator[None, None, None]:
    """What is freed during the test is freed by counting references."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "dropped"])
@pytest.mark.parametrize("interval", [0.0, 30.0], ids=["when asked", "in the background"])
@pytest.mark.usefixtures("no_collector")
def test_samplers_leave_no_reference_cycles(closed: bool, interval: float) -> None:
    backend = FakeBackend(devices=2, interval=interval)
    backend.device(0).set(temp=1).miss("fanSpeed")
    backend.device(1).fail(ValueError("an error whose traceback knows the reader"))
    sampler = Sampler([backend])
    for _ in range(3):
        sampler.sample()
    engine = sampler._engine
    left = [weakref.ref(part) for part in (sampler, engine, *engine.readers)]  # type: ignore[union-attr]
    if closed:
        sampler.close()
    del sampler, engine
    wait_for(lambda: not any(part() for part in left), what=lambda: f"still there: {[part() for part in left]}")
    wait_for(lambda: backend.closed == 1 and workers() == 0)


def test_at_most_so_many_shared_samplers_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that was not used for the longest time gives its driver back."""
    shared = lru_cache(MOST_SHARED)(Sampler)
    monkeypatch.setattr(sampler_module, "_shared", shared)
    backends: list[FakeBackend] = []
    for number in range(MOST_SHARED + 3):
        backend = FakeBackend(f"fake-{number}")
        backend.device(0).set(temp=number)
        accelmetrics.sample([backend])
        accelmetrics.sample([backends[0] if backends else backend])  # used again and again
        backends.append(backend)
    assert shared.cache_info().currsize == MOST_SHARED
    wait_for(lambda: [backend.closed for backend in backends] == [0, 1, 1, 1, *[0] * (MOST_SHARED - 1)])
    assert accelmetrics.sample([backends[1]]).metrics == {"gpu.0.temp": 1}
    shared.cache_clear()
    wait_for(lambda: all(backend.closed for backend in backends))


def test_threads_that_call_sample_for_the_first_time_make_one_sampler(gpus: FakeBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Sampler] = []

    class Counted(Sampler):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            made.append(self)
            for _ in range(100_000):  # every other thread has its turn
                pass
            super().__init__(*arguments, **options)

    monkeypatch.setattr(sampler_module, "_shared", lru_cache(MOST_SHARED)(Counted))
    with switching_often(), ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: accelmetrics.sample([gpus]), range(8)))
    assert len(made) == 1
    made[0].close()


def test_a_fork_waits_for_samplers_while_others_are_made() -> None:
    """The set that it looks through grows meanwhile."""
    samplers = [Sampler(["host"]) for _ in range(3)]

    def make() -> None:
        samplers.append(Sampler(["host"]))
        del samplers[3:]

    with switching_often(), beside(make):
        for _ in range(2000):
            registry().settle(HANG)


def test_the_numbering_of_backends_made_by_hand_goes_with_them() -> None:
    before = len(registry()._devices)
    for count in range(1, 20):
        backend = FakeBackend(devices=1)
        backend.device(0).set(temp=count)
        with Sampler([backend]) as sampler:
            assert sampler.sample().metrics == {"gpu.0.temp": count}
            assert len(sampler.sample().devices) == 1
    wait_for(lambda: len(registry()._devices) <= before)


def test_a_paced_source_that_hangs_costs_nothing_after_a_while() -> None:
    backend = FakeBackend(devices=1, interval=0.1)
    backend.device(0).set(temp=1)
    with Sampler([backend], timeout=0.5) as sampler:
        sampler.sample()
        backend.device(0).hang()

        def is_quick() -> bool:
            started = time.perf_counter()
            snapshot = sampler.sample()
            return not snapshot.metrics and time.perf_counter() - started < LATER_PATIENCE * 0.5

        wait_for(is_quick)
        assert sampler.sample().unavailable["gpu.0.temp"].reason == Reason.TIMED_OUT
        reads = backend.device(0).reads
        for _ in range(10):
            sampler.sample()
        assert backend.device(0).reads == reads
        backend.device(0).release()
        wait_for(lambda: bool(sampler.sample().metrics))


def test_a_driver_that_goes_away_beside_a_hung_call_is_opened_again(gpus: FakeBackend) -> None:
    for device in gpus.all_devices():
        device.slow(0.01)
    with Sampler([gpus], timeout=0.3) as sampler:
        sampler.sample()
        sampler.sample()
        gpus.device(0).hang()
        gpus.go_away()
        sampler.sample()
        gpus.come_back()
        wait_for(lambda: "gpu.1.temp" in sampler.sample().metrics)
        gpus.device(0).release()


def test_the_queue_does_not_grow_while_everything_hangs(gpus: FakeBackend) -> None:
    with Sampler([gpus], timeout=0.2) as sampler:
        sampler.sample()
        for device in gpus.all_devices():
            device.hang()
        for _ in range(300):
            sampler.sample()
        assert all(source.pool.queue.qsize() < 10 for source in registry()._sources.values())
        for device in gpus.all_devices():
            device.release()


def test_the_number_of_stuck_threads_is_bounded() -> None:
    backend = FakeBackend(devices=40)
    for number, device in enumerate(backend.all_devices()):
        device.set(temp=number)
    with Sampler([backend], timeout=0.2) as sampler:
        sampler.sample()
        for device in backend.all_devices()[::2]:
            device.hang()
        for _ in range(40):
            sampler.sample()
        assert workers() <= 16
        for device in backend.all_devices():
            device.release()
        wait_for(lambda: len(sampler.sample().metrics) == 40)
