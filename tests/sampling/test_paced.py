"""Sources with a pace of their own: read in the background, served with their age, dropped when stale."""

from __future__ import annotations

import time

from accelmetrics import Reason, Sampler
from accelmetrics.testing import FakeBackend
from tests.support.waiting import wait_for


def paced(interval: float = 0.2, seconds: float = 0.0) -> FakeBackend:
    backend = FakeBackend(devices=1, interval=interval)
    readings = iter(range(1, 10_000))
    backend.device(0).set(temp=lambda: next(readings)).slow(seconds)
    return backend


def test_the_first_reading_is_waited_for_and_later_ones_are_served_at_once() -> None:
    backend = paced(interval=0.3, seconds=0.25)
    with Sampler([backend], timeout=0.1, open_timeout=2.0) as sampler:
        assert sampler.sample().metrics == {"gpu.0.temp": 1}
        for _ in range(10):
            started = time.perf_counter()
            snapshot = sampler.sample()
            assert time.perf_counter() - started < 0.05
            assert snapshot.metrics["gpu.0.temp"] >= 1
            age = snapshot.backends[0].age_seconds
            assert age is not None
            assert age < 0.7


def test_it_is_read_at_its_own_pace_however_often_it_is_asked() -> None:
    backend = paced(interval=0.2)
    with Sampler([backend]) as sampler:
        end = time.monotonic() + 1.0
        while time.monotonic() < end:
            sampler.sample()
            time.sleep(0.005)
        assert 4 <= backend.device(0).reads <= 7


def test_a_reading_served_twice_keeps_its_sequence_number() -> None:
    backend = paced(interval=30.0)
    with Sampler([backend]) as sampler:
        numbers = [sampler.sample().backends[0].sequence for _ in range(3)]
    assert numbers == [1, 1, 1]


def test_it_goes_on_in_the_background_between_rare_samples() -> None:
    backend = paced(interval=0.1)
    with Sampler([backend]) as sampler:
        sampler.sample()
        wait_for(lambda: backend.device(0).reads >= 4)
        started = time.perf_counter()
        assert sampler.sample().metrics["gpu.0.temp"] >= 4
        assert time.perf_counter() - started < 0.05


def test_a_reading_that_is_too_old_is_stale() -> None:
    backend = paced(interval=0.1)
    with Sampler([backend], timeout=0.1) as sampler:
        sampler.sample()
        backend.device(0).hang()
        wait_for(lambda: not sampler.sample().metrics)
        snapshot = sampler.sample()
        assert snapshot.unavailable["gpu.0.temp"].reason in {Reason.STALE, Reason.TIMED_OUT}
        backend.device(0).release()
        wait_for(lambda: bool(sampler.sample().metrics))


def test_nobody_asking_any_more_ends_it() -> None:
    backend = paced(interval=0.05)
    sampler = Sampler([backend])
    sampler.sample()
    sampler.close()
    time.sleep(0.1)
    reads = backend.device(0).reads
    time.sleep(0.3)
    assert backend.device(0).reads == reads
