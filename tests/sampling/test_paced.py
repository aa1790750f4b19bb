"""Sources with a pace of their own: read in the background, served with their age, dropped when stale."""

from __future__ import annotations

import time

from accelmetrics import Reason, Sampler
from accelmetrics.testing import FakeBackend
from tests.sampling.conftest import workers
from tests.support.waiting import HANG, wait_for


def paced(interval: float) -> FakeBackend:
    """A device that gives the number of its reading."""
    backend = FakeBackend(devices=1, interval=interval)
    readings = iter(range(1, 100_000))
    backend.device(0).set(temp=lambda: next(readings))
    return backend


def test_the_first_reading_is_waited_for_beyond_the_timeout() -> None:
    backend = paced(30.0)
    backend.device(0).slow(0.3)
    with Sampler([backend], timeout=0.1, open_timeout=HANG) as sampler:
        assert sampler.sample().metrics == {"gpu.0.temp": 1}


def test_later_readings_are_served_at_once_though_the_next_is_in_progress() -> None:
    backend = paced(0.05)
    with Sampler([backend], timeout=2 * HANG) as sampler:
        sampler.sample()
        backend.device(0).hang()
        reads = backend.device(0).reads
        wait_for(lambda: backend.device(0).reads > reads)
        snapshot = sampler.sample()
        assert snapshot.metrics["gpu.0.temp"] >= 1
        age = snapshot.backends[0].age_seconds
        assert age is not None and age > 0.0
        backend.device(0).release()


def test_it_is_read_at_its_own_pace_however_often_it_is_asked() -> None:
    backend = paced(0.1)
    with Sampler([backend]) as sampler:
        sampler.sample()
        began, before = time.monotonic(), backend.device(0).reads
        wait_for(lambda: sampler.sample().time_ns and backend.device(0).reads >= before + 4)
        reads, elapsed = backend.device(0).reads - before, time.monotonic() - began
    assert reads <= elapsed / 0.1 + 1


def test_a_reading_served_twice_keeps_its_sequence_number() -> None:
    with Sampler([paced(30.0)]) as sampler:
        numbers = [sampler.sample().backends[0].sequence for _ in range(3)]
    assert numbers == [1, 1, 1]


def test_it_goes_on_in_the_background_between_rare_samples() -> None:
    backend = paced(0.1)
    with Sampler([backend]) as sampler:
        sampler.sample()
        wait_for(lambda: backend.device(0).reads >= 4)
        wait_for(lambda: sampler.sample().metrics["gpu.0.temp"] >= 4)


def test_a_reading_that_is_too_old_is_stale() -> None:
    backend = paced(0.1)
    with Sampler([backend], timeout=0.1) as sampler:
        sampler.sample()
        backend.device(0).hang()
        wait_for(lambda: not sampler.sample().metrics)
        assert sampler.sample().unavailable["gpu.0.temp"].reason in {Reason.STALE, Reason.TIMED_OUT}
        backend.device(0).release()
        wait_for(lambda: bool(sampler.sample().metrics))


def test_it_ends_when_no_sampler_asks_any_more() -> None:
    backend = paced(0.05)
    sampler = Sampler([backend])
    sampler.sample()
    sampler.close()
    wait_for(lambda: workers() == 0)
    assert backend.closed == 1
