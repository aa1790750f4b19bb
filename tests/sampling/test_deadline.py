"""The deadline: whatever a driver does, the answer comes in time, and nothing piles up."""

from __future__ import annotations

import threading
import time

import pytest

from accelmetrics import Reason, Sampler
from accelmetrics.backends.contract import Detection
from accelmetrics.testing import FakeBackend
from tests.sampling.conftest import workers
from tests.support.waiting import wait_for

TIMEOUT = 0.3
LEEWAY = 0.15
"""What a busy machine may add to a deadline."""


def timed(sampler: Sampler) -> tuple[float, dict[str, float], dict[str, str], str]:
    started = time.perf_counter()
    snapshot = sampler.sample()
    seconds = time.perf_counter() - started
    return seconds, snapshot.metrics, {key: why.reason for key, why in snapshot.unavailable.items()}, snapshot.backends[0].status


def test_one_hung_device_costs_only_itself_and_one_thread(gpus: FakeBackend) -> None:
    with Sampler([gpus], timeout=TIMEOUT) as sampler:
        sampler.sample()
        before = workers()
        gpus.device(1).hang()
        seconds, metrics, reasons, status = timed(sampler)
        assert seconds < TIMEOUT + LEEWAY
        assert {key.split(".")[1] for key in metrics} == {"0", "2", "3"}
        assert reasons == {"gpu.1.powerWatts": Reason.TIMED_OUT, "gpu.1.temp": Reason.TIMED_OUT}
        assert status == "degraded"
        for _ in range(20):
            seconds, metrics, _, _ = timed(sampler)
            assert seconds < TIMEOUT / 3
            assert len(metrics) == 6
        assert workers() == before + 1
        assert gpus.device(1).reads == 2, "the stuck call was repeated"
        gpus.device(1).release()
        wait_for(lambda: workers() == before)
        assert len(timed(sampler)[1]) == 8


def test_two_hung_devices_cost_two_threads(gpus: FakeBackend) -> None:
    with Sampler([gpus], timeout=TIMEOUT) as sampler:
        sampler.sample()
        gpus.device(0).hang()
        gpus.device(2).hang()
        seconds, metrics, _, _ = timed(sampler)
        assert seconds < TIMEOUT + LEEWAY
        assert {key.split(".")[1] for key in metrics} == {"1", "3"}
        assert workers() == 3
        gpus.device(0).release()
        gpus.device(2).release()
        wait_for(lambda: workers() == 1)
        assert len(timed(sampler)[1]) == 8


def test_a_driver_that_hangs_as_a_whole_is_given_up_after_a_few_threads() -> None:
    backend = FakeBackend(devices=16)
    for device in backend.all_devices():
        device.set(temp=1)
    with Sampler([backend], timeout=TIMEOUT) as sampler:
        sampler.sample()
        for device in backend.all_devices():
            device.hang()
        seconds, metrics, _, status = timed(sampler)
        assert (metrics, status) == ({}, "timed_out")
        assert seconds < TIMEOUT + LEEWAY
        for _ in range(50):
            seconds, _, _, status = timed(sampler)
            assert seconds < TIMEOUT / 3
            assert status == "timed_out"
        assert workers() <= 4
        for device in backend.all_devices():
            device.release()
        wait_for(lambda: len(timed(sampler)[1]) == 16)
        wait_for(lambda: timed(sampler)[3] == "ok" and workers() <= 2)


def test_a_driver_that_is_slow_everywhere_is_not_taken_for_hung(gpus: FakeBackend) -> None:
    for device in gpus.all_devices():
        device.slow(0.01, steps=8)
    with Sampler([gpus], timeout=1.0) as sampler:
        for _ in range(3):
            _, metrics, _, status = timed(sampler)
            assert status == "ok"
            assert len(metrics) == 8
        assert sampler.statistics.timed_out == 0


def test_a_slow_driver_is_shared_by_more_lanes(gpus: FakeBackend) -> None:
    for device in gpus.all_devices():
        device.slow(0.02, steps=2)
    with Sampler([gpus]) as sampler:
        sampler.sample()
        seconds, metrics, _, _ = timed(sampler)
        assert len(metrics) == 8
        assert seconds < 0.12, "four devices of 0.04 s each, side by side"
        for device in gpus.all_devices():
            device.slow(0.0)
        sampler.sample()
        sampler.sample()
        wait_for(lambda: workers() == 1)


def test_a_driver_too_slow_for_the_deadline_gives_what_it_can_and_goes_on(gpus: FakeBackend) -> None:
    for device in gpus.all_devices():
        device.slow(0.05, steps=10)
    with Sampler([gpus], timeout=TIMEOUT) as sampler:
        seen: set[str] = set()
        for _ in range(12):
            seconds, metrics, reasons, _ = timed(sampler)
            assert seconds < TIMEOUT + LEEWAY
            assert set(reasons.values()) <= {Reason.TIMED_OUT}
            seen.update(key.split(".")[1] for key in metrics)
        assert seen == {"0", "1", "2", "3"}, "no device is starved by the others"


def test_a_backend_that_hangs_leaves_the_others_on_time(gpus: FakeBackend) -> None:
    other = FakeBackend("other", devices=1)
    other.device(0).set(temp=55)
    with Sampler([gpus, other], timeout=TIMEOUT) as sampler:
        sampler.sample()
        other.device(0).hang()
        seconds, metrics, _, status = timed(sampler)
        assert seconds < TIMEOUT + LEEWAY
        assert (len(metrics), status) == (8, "ok")
        other.device(0).release()


def test_opening_is_waited_for_once_and_no_longer(gpus: FakeBackend) -> None:
    gpus.hang_open()
    with Sampler([gpus], timeout=TIMEOUT, open_timeout=0.4) as sampler:
        seconds, metrics, _, status = timed(sampler)
        assert 0.35 < seconds < 0.4 + LEEWAY
        assert (metrics, status) == ({}, "timed_out")
        assert timed(sampler)[0] < 0.05
        assert workers() == 1
        gpus.release_open()
        wait_for(lambda: len(timed(sampler)[1]) == 8)
        assert gpus.opened == 1


def test_slow_opening_is_waited_for(gpus: FakeBackend) -> None:
    gpus.slow_open(0.5)
    with Sampler([gpus], timeout=0.1) as sampler:
        assert len(timed(sampler)[1]) == 8


def test_an_interrupted_wait_spoils_nothing(gpus: FakeBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    from accelmetrics.sampling.workers import CountDownLatch

    with Sampler([gpus], timeout=TIMEOUT) as sampler:
        sampler.sample()

        def interrupted(latch: CountDownLatch, seconds: float) -> bool:
            raise KeyboardInterrupt

        gpus.device(0).slow(0.05)
        monkeypatch.setattr(CountDownLatch, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            sampler.sample()
        monkeypatch.undo()
        gpus.device(0).slow(0.0)
        for _ in range(5):
            assert len(sampler.sample().metrics) == 8


def test_a_call_that_returns_late_is_joined_not_repeated(gpus: FakeBackend) -> None:
    with Sampler([gpus], timeout=TIMEOUT) as sampler:
        sampler.sample()
        gpus.device(0).hang()
        sampler.sample()
        threading.Timer(0.1, gpus.device(0).release).start()
        reads = gpus.device(0).reads
        wait_for(lambda: "gpu.0.temp" in sampler.sample().metrics)
        assert gpus.device(0).reads <= reads + 1


def test_a_busy_interpreter_is_late_and_nothing_is_timed_out(gpus: FakeBackend) -> None:
    for device in gpus.all_devices():
        device.slow(0.00002, steps=20)
    stop = threading.Event()

    def burn() -> None:
        while not stop.is_set():
            sum(range(500))

    burner = threading.Thread(target=burn)
    burner.start()
    try:
        with Sampler([gpus], timeout=0.1) as sampler:
            for _ in range(10):
                snapshot = sampler.sample()
                assert not any(why.reason == Reason.TIMED_OUT for why in snapshot.unavailable.values())
            assert sampler.statistics.timed_out == 0
            assert sampler.statistics.readings == 10
    finally:
        stop.set()
        burner.join()


def test_many_threads_may_sample_at_once(gpus: FakeBackend) -> None:
    failures: list[object] = []

    def work() -> None:
        for _ in range(50):
            snapshot = sampler.sample()
            if len(snapshot.metrics) != 8 or snapshot.backends[0].status != "ok":
                failures.append(snapshot)

    with Sampler([gpus]) as sampler:
        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures


def test_two_samplers_on_two_threads_never_read_a_device_at_once(gpus: FakeBackend) -> None:
    inside: list[int] = [0]
    clashes: list[int] = []

    def value() -> float:
        inside[0] += 1
        if inside[0] > 1:
            clashes.append(inside[0])
        time.sleep(0.0005)
        inside[0] -= 1
        return 1.0

    single = FakeBackend(devices=1)
    single.device(0).set(temp=value)

    def work(sampler: Sampler) -> None:
        for _ in range(60):
            assert sampler.sample().metrics == {"gpu.0.temp": 1.0}

    with Sampler([single]) as one, Sampler([single]) as two:
        threads = [threading.Thread(target=work, args=(sampler,)) for sampler in (one, two)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not clashes


def test_a_look_for_the_hardware_that_hangs_holds_nobody(gpus: FakeBackend) -> None:
    stuck = FakeBackend("stuck", devices=1)
    free = threading.Event()

    def detect() -> Detection:
        free.wait()
        return Detection(True, "at last", 1)

    stuck.detect = detect  # type: ignore[method-assign]
    with Sampler([gpus, stuck], timeout=TIMEOUT, open_timeout=0.3) as sampler:
        seconds, metrics, _, _ = timed(sampler)
        assert seconds < 0.3 + LEEWAY
        assert len(metrics) == 8
        assert timed(sampler)[0] < 0.05
        free.set()
