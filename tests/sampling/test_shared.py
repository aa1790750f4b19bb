"""Samplers that share a source: each has its own patience, and nothing of one is left to the next."""

from __future__ import annotations

import gc
import threading
import time

from accelmetrics import Reason, Sampler
from accelmetrics.sampling.sources import SHARED
from accelmetrics.testing import FakeBackend
from tests.sampling.conftest import workers
from tests.support.waiting import wait_for


def test_an_impatient_sampler_does_not_make_a_patient_one_give_up(gpus: FakeBackend) -> None:
    for device in gpus.all_devices():
        device.slow(0.06)
    stop = threading.Event()

    def hurry() -> None:
        with Sampler([gpus], timeout=0.02) as impatient:
            while not stop.is_set():
                impatient.sample()

    other = threading.Thread(target=hurry)
    with Sampler([gpus], timeout=3.0) as patient:
        patient.sample()
        other.start()
        try:
            for _ in range(6):
                snapshot = patient.sample()
                assert snapshot.backends[0].status == "ok", snapshot.backends[0].detail
        finally:
            stop.set()
            other.join()


def test_samplers_that_come_and_go_do_not_repeat_an_opening_that_hangs(gpus: FakeBackend) -> None:
    gpus.hang_open()
    for _ in range(5):
        with Sampler([gpus], timeout=0.05, open_timeout=0.05) as sampler:
            sampler.sample()
    assert gpus.opened == 1
    assert workers() == 1
    gpus.release_open()
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
    gpus.slow_open(0.2)
    sampler = Sampler([gpus], timeout=0.05, open_timeout=0.05)
    sampler.sample()
    sampler.close()
    wait_for(lambda: (gpus.opened, gpus.closed) == (1, 1))
    wait_for(lambda: workers() == 0)


def test_a_driver_whose_close_hangs_holds_nobody_for_long(gpus: FakeBackend) -> None:
    from accelmetrics.testing.fake import FakeDriver

    free = threading.Event()

    class Stubborn(FakeDriver):
        def close(self) -> None:
            free.wait()

    gpus.open = lambda: Stubborn(gpus)  # type: ignore[method-assign]
    sampler = Sampler([gpus])
    sampler.sample()
    started = time.monotonic()
    sampler.close()
    assert time.monotonic() - started < 2.0
    free.set()


def test_a_reader_that_is_slow_to_make_does_not_break_the_deadline(gpus: FakeBackend) -> None:
    from accelmetrics.testing.fake import FakeDriver, FakeReader

    class Sluggish(FakeDriver):
        def reader(self, options: object) -> FakeReader:
            time.sleep(1.0)
            return super().reader(options)  # type: ignore[arg-type]

    gpus.open = lambda: Sluggish(gpus)  # type: ignore[method-assign]
    with Sampler([gpus], timeout=0.2) as sampler:
        started = time.monotonic()
        sampler.sample()
        assert time.monotonic() - started < 0.6
        wait_for(lambda: len(sampler.sample().metrics) == 8)


def test_a_second_caller_does_not_wait_for_its_turn_beyond_its_deadline(gpus: FakeBackend) -> None:
    with Sampler([gpus], timeout=0.4) as sampler:
        sampler.sample()
        for device in gpus.all_devices():
            device.slow(2.0)
        waits: list[float] = []

        def call() -> None:
            started = time.monotonic()
            sampler.sample()
            waits.append(time.monotonic() - started)

        threads = [threading.Thread(target=call) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert max(waits) < 0.4 * 1.1 + 0.3


def test_threads_that_sample_at_once_may_share_one_reading(gpus: FakeBackend) -> None:
    gpus.device(0).slow(0.1)
    with Sampler([gpus]) as sampler:
        sampler.sample()
        before = gpus.device(0).reads
        threads = [threading.Thread(target=sampler.sample) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert gpus.device(0).reads - before <= 3


def test_a_sampler_that_was_never_closed_leaves_nothing_behind(gpus: FakeBackend) -> None:
    sampler = Sampler([gpus])
    sampler.sample()
    del sampler
    gc.collect()
    with Sampler(["host"]):
        Sampler(["host"]).sample()  # whoever comes next clears up
    wait_for(lambda: workers() == 0)
    assert gpus.closed == 1


def test_the_numbering_of_backends_made_by_hand_goes_with_them() -> None:
    before = len(SHARED._devices)
    for count in range(1, 20):
        backend = FakeBackend(devices=1)
        backend.device(0).set(temp=count)
        with Sampler([backend]) as sampler:
            assert sampler.sample().metrics == {"gpu.0.temp": count}
            assert len(sampler.sample().devices) == 1
    wait_for(lambda: len(SHARED._devices) <= before)


def test_a_paced_source_that_hangs_costs_nothing_after_a_while() -> None:
    backend = FakeBackend(devices=1, interval=0.1)
    backend.device(0).set(temp=1)
    with Sampler([backend], timeout=0.2) as sampler:
        sampler.sample()
        backend.device(0).hang()

        def is_quick() -> bool:
            started = time.monotonic()
            snapshot = sampler.sample()
            return not snapshot.metrics and time.monotonic() - started < 0.02

        wait_for(is_quick)
        assert sampler.sample().unavailable["gpu.0.temp"].reason == Reason.TIMED_OUT
        assert backend.device(0).reads <= 3
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
        wait_for(lambda: "gpu.1.temp" in sampler.sample().metrics, 10.0)
        gpus.device(0).release()


def test_the_queue_does_not_grow_while_everything_hangs(gpus: FakeBackend) -> None:
    with Sampler([gpus], timeout=0.2) as sampler:
        sampler.sample()
        for device in gpus.all_devices():
            device.hang()
        for _ in range(300):
            sampler.sample()
        assert all(source.pool.queue.qsize() < 10 for source in SHARED._sources.values())
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
