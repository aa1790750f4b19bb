"""The deadline: whatever a driver does, the answer comes, and nothing piles up.

What hangs here hangs until the test releases it, so that a sample that waited for it would never return.
"""

from __future__ import annotations

import re
import threading
import time
from functools import partial

import pytest

from accelmetrics import Reason, Sampler, Snapshot
from accelmetrics.backends.contract import Detection, Driver
from accelmetrics.backends.guard import waiting_for
from accelmetrics.sampling.engine import FIRST_PATIENCE, LATER_PATIENCE
from accelmetrics.sampling.threads import CountDownLatch
from accelmetrics.testing import FakeBackend
from tests.sampling.conftest import at_once, beside, workers
from tests.support.waiting import HANG, Gate, wait_for

TIMEOUT = 0.5
SHORTER = LATER_PATIENCE / FIRST_PATIENCE
"""Of the sample that waits for something stuck: a later sample that waited for it again, as briefly as it may, would take that long."""


def reasons(snapshot: Snapshot) -> dict[str, str]:
    return {key: why.reason for key, why in snapshot.unavailable.items()}


def devices_of(snapshot: Snapshot) -> set[str]:
    """The numbers of the devices that gave values."""
    return {key.split(".")[1] for key in snapshot.metrics}


def timed(sampler: Sampler) -> tuple[Snapshot, float]:
    """Take a sample, and return it with the seconds that it took."""
    started = time.perf_counter()
    return sampler.sample(), time.perf_counter() - started


def quickest(sampler: Sampler, samples: int = 20) -> float:
    """Take samples and return the seconds of the quickest: one that waits for something stuck makes all of them wait."""
    return min(timed(sampler)[1] for _ in range(samples))


def test_one_hung_device_costs_only_itself_and_one_thread(gpus: FakeBackend) -> None:
    with Sampler([gpus], timeout=TIMEOUT) as sampler:
        sampler.sample()
        gpus.device(1).hang()
        snapshot, waited = timed(sampler)
        assert devices_of(snapshot) == {"0", "2", "3"}
        assert reasons(snapshot) == {"gpu.1.powerWatts": Reason.TIMED_OUT, "gpu.1.temp": Reason.TIMED_OUT}
        assert snapshot.backends[0].status == "degraded"
        assert quickest(sampler) < waited * SHORTER, "the hung device is waited for once"
        wait_for(lambda: len(sampler.sample().metrics) == 6)
        assert workers() == 2
        assert gpus.device(1).reads == 2, "the stuck call was repeated"
        gpus.device(1).release()
        wait_for(lambda: workers() == 1)
        wait_for(lambda: len(sampler.sample().metrics) == 8)


def test_a_driver_that_hangs_as_a_whole_is_given_up_after_a_few_threads() -> None:
    backend = FakeBackend(devices=16)
    for device in backend.all_devices():
        device.set(temp=1)
    with Sampler([backend], timeout=TIMEOUT) as sampler:
        sampler.sample()
        for device in backend.all_devices():
            device.hang()
        snapshot, waited = timed(sampler)
        assert (snapshot.metrics, snapshot.backends[0].status) == ({}, "timed_out")
        assert quickest(sampler, 50) < waited * SHORTER
        assert sampler.sample().backends[0].status == "timed_out"
        assert workers() <= 4
        for device in backend.all_devices():
            device.release()
        wait_for(lambda: len(sampler.sample().metrics) == 16)
        wait_for(lambda: sampler.sample().backends[0].status == "ok" and workers() <= 2)


def test_a_driver_that_is_slow_everywhere_is_not_taken_for_hung(gpus: FakeBackend) -> None:
    """Every call returns; all of them together take longer than one call may."""
    gpus.device(0).slow(0.1, steps=14)
    with Sampler([gpus], timeout=2.0) as sampler:
        snapshot = sampler.sample()
        assert (snapshot.backends[0].status, len(snapshot.metrics)) == ("ok", 8)
        assert sampler.statistics.timed_out == 0


def test_a_slow_driver_is_read_by_several_workers_side_by_side(gpus: FakeBackend) -> None:
    together = threading.Barrier(4)

    def temperature() -> int:
        together.wait(HANG)
        return 40

    for device in gpus.all_devices():
        device.slow(0.02)
    with Sampler([gpus], timeout=HANG) as sampler:
        sampler.sample()
        for device in gpus.all_devices():
            device.slow(0.0).set(temp=temperature)
        assert len(sampler.sample().metrics) == 8, "all four are inside a call at once"
        for device in gpus.all_devices():
            device.set(temp=40)
        wait_for(lambda: len(sampler.sample().metrics) == 8 and workers() == 1)


def test_a_driver_too_slow_for_the_deadline_gives_what_it_can_and_goes_on(gpus: FakeBackend) -> None:
    for device in gpus.all_devices():
        device.slow(0.05, steps=10)
    seen: set[str] = set()
    with Sampler([gpus], timeout=0.3) as sampler:

        def all_seen() -> bool:
            snapshot = sampler.sample()
            assert set(reasons(snapshot).values()) <= {Reason.TIMED_OUT, Reason.STALE}
            seen.update(devices_of(snapshot))
            return seen == {"0", "1", "2", "3"}

        wait_for(all_seen, what=lambda: f"some device is starved by the others: only {seen} answered")


def test_a_backend_that_hangs_leaves_the_others(gpus: FakeBackend) -> None:
    other = FakeBackend("other", devices=1)
    other.device(0).set(temp=55)
    with Sampler([gpus, other], timeout=TIMEOUT) as sampler:
        sampler.sample()
        other.device(0).hang()
        snapshot = sampler.sample()
        assert (len(snapshot.metrics), snapshot.backends[0].status) == (8, "ok")
        other.device(0).release()


def test_opening_is_waited_for_once_and_no_longer(gpus: FakeBackend) -> None:
    gpus.opening.hang()
    with Sampler([gpus], timeout=TIMEOUT, open_timeout=0.4) as sampler:
        snapshot, waited = timed(sampler)
        assert waited >= 0.4
        assert (snapshot.metrics, snapshot.backends[0].status) == ({}, "timed_out")
        assert quickest(sampler) < waited * SHORTER
        assert workers() == 1
        gpus.opening.release()
        wait_for(lambda: len(sampler.sample().metrics) == 8)
        assert gpus.opened == 1


def test_slow_opening_is_waited_for(gpus: FakeBackend) -> None:
    gpus.opening.slow(0.5)
    with Sampler([gpus], timeout=0.1, open_timeout=HANG) as sampler:
        assert len(sampler.sample().metrics) == 8


def test_an_interrupted_wait_spoils_nothing(gpus: FakeBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    with Sampler([gpus], timeout=HANG) as sampler:
        sampler.sample()

        def interrupted(latch: CountDownLatch, seconds: float) -> bool:
            raise KeyboardInterrupt

        gpus.device(0).hang()
        with monkeypatch.context() as patch:
            patch.setattr(CountDownLatch, "wait", interrupted)
            with pytest.raises(KeyboardInterrupt):
                sampler.sample()
        gpus.device(0).release()
        for _ in range(5):
            assert len(sampler.sample().metrics) == 8


def test_a_busy_interpreter_is_late_and_nothing_is_timed_out(gpus: FakeBackend) -> None:
    for device in gpus.all_devices():
        device.slow(0.00002, steps=20)
    with beside(lambda: sum(range(500))), Sampler([gpus], timeout=0.1) as sampler:
        for _ in range(10):
            snapshot = sampler.sample()
            assert Reason.TIMED_OUT not in {why.reason for why in snapshot.unavailable.values()}
        assert sampler.statistics.timed_out == 0
        assert sampler.statistics.readings == 10


def test_many_threads_may_sample_at_once(gpus: FakeBackend) -> None:
    failures: list[object] = []

    def work() -> None:
        for _ in range(50):
            snapshot = sampler.sample()
            if len(snapshot.metrics) != 8 or snapshot.backends[0].status != "ok":
                failures.append(snapshot)

    with Sampler([gpus], timeout=HANG) as sampler:
        at_once(*[work] * 8)
    assert not failures


def test_two_samplers_on_two_threads_never_read_a_device_at_once() -> None:
    inside: list[int] = [0]
    clashes: list[int] = []

    def value() -> float:
        inside[0] += 1
        if inside[0] > 1:
            clashes.append(inside[0])
        threading.Event().wait(0.0005)  # lets the other sampler's worker run in the middle of the call
        inside[0] -= 1
        return 1.0

    single = FakeBackend(devices=1)
    single.device(0).set(temp=value)

    def work(sampler: Sampler) -> None:
        for _ in range(60):
            assert sampler.sample().metrics == {"gpu.0.temp": 1.0}

    with Sampler([single], timeout=HANG) as one, Sampler([single], timeout=HANG) as two:
        at_once(partial(work, one), partial(work, two))
    assert not clashes


def test_detection_that_hangs_holds_nothing_else(gpus: FakeBackend) -> None:
    stuck = FakeBackend("stuck", devices=1)
    gate = Gate()

    def detect() -> Detection:
        gate()
        return Detection(True, "at last", 1)

    stuck.detect = detect  # type: ignore[method-assign]
    with Sampler([gpus, stuck], timeout=TIMEOUT, open_timeout=0.3) as sampler:
        snapshot, waited = timed(sampler)
        assert (len(snapshot.metrics), waited >= 0.3) == (8, True), "the first reading waits for what is still opening"
        assert quickest(sampler) < waited * SHORTER
        gate.release()


STAMP = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"


def test_a_hung_call_is_told_with_the_time_since_when(gpus: FakeBackend) -> None:
    """The same words as long as it is the same call."""
    with Sampler([gpus], timeout=TIMEOUT) as sampler:
        sampler.sample()
        gpus.device(1).hang()
        why = sampler.sample().unavailable["gpu.1.temp"]
        assert re.fullmatch(f"a call into the driver has not returned since {STAMP}", why.detail)
        assert sampler.sample().unavailable["gpu.1.temp"] == why
        gpus.device(1).release()


def test_an_opening_that_hangs_is_told_with_the_time_since_when(gpus: FakeBackend) -> None:
    gpus.opening.hang()
    with Sampler([gpus], timeout=0.1, open_timeout=0.1) as sampler:
        status = sampler.sample().backends[0]
        assert re.fullmatch(f"the driver is still being opened since {STAMP}", status.detail)
        assert sampler.sample().backends[0] == status
        gpus.opening.release()


def test_the_tool_that_an_opening_waits_for_is_named(gpus: FakeBackend) -> None:
    gate, opening = Gate(), gpus.open

    def opened() -> Driver:
        with waiting_for("/opt/vendor/bin/tool"):
            gate()
        return opening()

    gpus.open = opened  # type: ignore[assignment, method-assign]
    with Sampler([gpus], timeout=0.1, open_timeout=0.1) as sampler:
        status = sampler.sample().backends[0]
        assert status.status == "timed_out"
        assert re.fullmatch(f"/opt/vendor/bin/tool has not answered since {STAMP}: the driver is still being opened", status.detail)
        gate.release()
        wait_for(lambda: sampler.sample().backends[0].status == "ok")


def test_the_tool_that_a_reading_waits_for_is_named_for_every_device(gpus: FakeBackend) -> None:
    """The devices of one source wait for one poll."""
    gate = Gate()

    def polled() -> None:
        with waiting_for("/opt/vendor/bin/tool"):
            gate()

    with Sampler([gpus], timeout=0.1) as sampler:
        sampler.sample()
        gpus.check = polled  # type: ignore[method-assign]
        words = {why.detail.partition(" since ")[0] for why in sampler.sample().unavailable.values()}
        assert words == {"/opt/vendor/bin/tool has not answered"}
        gate.release()
