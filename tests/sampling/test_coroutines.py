"""Readings for coroutines: on any event loops, none of which is blocked, and none of which need live on."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

import accelmetrics
from accelmetrics import Sampler, Snapshot
from accelmetrics.sampling import sampler as module
from accelmetrics.schemas.errors import InvalidOptionError, UnknownNameError
from accelmetrics.testing import FakeBackend
from tests.support.threads import own_threads
from tests.support.waiting import HANG, wait_for

THREADS = "accelmetrics-coroutines"


def test_a_coroutine_has_the_reading_that_sample_gives(gpus: FakeBackend) -> None:
    """By the function and by the method, with the same options."""

    async def read() -> tuple[Snapshot, Snapshot]:
        with Sampler([gpus], gpus=[2]) as sampler:
            return await accelmetrics.asample([gpus], gpus=[2]), await sampler.asample()

    for snapshot in asyncio.run(asyncio.wait_for(read(), HANG)):
        assert snapshot.metrics == {"gpu.2.powerWatts": 102.0, "gpu.2.temp": 42}
    assert inspect.signature(accelmetrics.asample) == inspect.signature(accelmetrics.sample)
    assert inspect.iscoroutinefunction(accelmetrics.asample)


def test_metrics_may_come_from_an_iterator(gpus: FakeBackend) -> None:
    """Which can be gone through once; a monitor takes one too."""
    snapshot = asyncio.run(asyncio.wait_for(accelmetrics.asample([gpus], metrics=iter(["temp"])), HANG))
    assert {key.rpartition(".")[2] for key in snapshot.metrics} == {"temp"}
    with accelmetrics.Monitor(0.05, backends=[gpus], metrics=iter(["temp"])) as monitor:
        wait_for(lambda: monitor.latest)
        assert monitor.latest is not None
        assert {key.rpartition(".")[2] for key in monitor.latest.metrics} == {"temp"}


def test_the_loop_runs_on_while_a_driver_hangs(gpus: FakeBackend) -> None:
    """It is the loop that lets the driver go on: a loop that waited for it would never do so."""
    sampler = Sampler([gpus], timeout=HANG)
    gpus.device(0).hang()

    async def read() -> Snapshot:
        task = asyncio.ensure_future(sampler.asample())
        while not sampler._engine.began:  # type: ignore[union-attr]
            await asyncio.sleep(0.001)
        gpus.device(0).release()
        return await task

    assert asyncio.run(asyncio.wait_for(read(), 2 * HANG)).metrics["gpu.0.powerWatts"] == 100.0
    sampler.close()


def test_readings_one_after_the_other_are_taken_on_one_thread(gpus: FakeBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends when none has been asked for in a while, and the next request starts another."""
    monkeypatch.setattr(module, "LINGER", 2 * HANG)
    sampler, others = Sampler([gpus]), set(threading.enumerate())

    async def read(count: int) -> set[threading.Thread]:
        seen: set[threading.Thread] = set()
        for _ in range(count):
            await sampler.asample()
            seen |= {thread for thread in set(threading.enumerate()) - others if thread.name == THREADS}
        return seen

    assert len(asyncio.run(read(20))) == 1
    monkeypatch.setattr(module, "LINGER", 0.01)
    asyncio.run(read(1))
    wait_for(lambda: not own_threads(THREADS))
    monkeypatch.setattr(module, "LINGER", 0.05)
    asyncio.run(read(1))
    wait_for(lambda: not own_threads(THREADS))
    sampler.close()


def test_coroutines_that_wait_together_share_a_reading(gpus: FakeBackend) -> None:
    """A hundred of them, in three loops."""
    sampler = Sampler([gpus])

    async def read() -> None:
        await asyncio.gather(*(sampler.asample() for _ in range(100)))

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(lambda _: asyncio.run(asyncio.wait_for(read(), HANG)), range(3)))
    assert 1 <= sampler.statistics.readings <= 100
    sampler.close()


def test_one_that_is_cancelled_stops_waiting_and_costs_the_others_nothing(gpus: FakeBackend) -> None:
    gpus.device(0).hang()

    async def read(sampler: Sampler) -> Snapshot:
        task = asyncio.ensure_future(sampler.asample())
        while not sampler._engine.began:  # type: ignore[union-attr]
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gpus.device(0).release()
        return await sampler.asample()

    with Sampler([gpus], timeout=0.5) as sampler:
        assert asyncio.run(asyncio.wait_for(read(sampler), HANG)).metrics["gpu.1.powerWatts"] == 101.0


def test_a_loop_that_was_closed_gets_nothing_and_breaks_nothing(gpus: FakeBackend) -> None:
    gpus.device(0).hang()

    async def leave(sampler: Sampler) -> None:
        task = asyncio.ensure_future(sampler.asample())
        await asyncio.sleep(0)  # it asks
        wait_for(lambda: sampler._engine.began > 0)  # type: ignore[union-attr]
        task.cancel()

    with Sampler([gpus], timeout=0.2) as sampler:
        loop = asyncio.new_event_loop()
        loop.run_until_complete(leave(sampler))
        loop.close()
        gpus.device(0).release()
        assert asyncio.run(asyncio.wait_for(sampler.asample(), HANG)).metrics


def test_what_a_reading_raises_is_raised_where_it_is_awaited(gpus: FakeBackend) -> None:
    async def read() -> None:
        with pytest.raises(UnknownNameError, match=r"gpu\.9"):
            await accelmetrics.asample([gpus], gpus=[9])
        with pytest.raises(InvalidOptionError, match="timeout"):
            await accelmetrics.asample([gpus], timeout=-1)
        with pytest.raises(InvalidOptionError, match="disk_paths"):
            await accelmetrics.asample([gpus], disk_paths=[{}])  # type: ignore[list-item]

    asyncio.run(asyncio.wait_for(read(), HANG))


def test_a_sampler_that_is_dropped_is_gone_though_its_thread_waits(gpus: FakeBackend) -> None:
    sampler = Sampler([gpus])
    asyncio.run(asyncio.wait_for(sampler.asample(), HANG))
    gone = weakref.ref(sampler)
    gc.disable()
    try:
        del sampler
        wait_for(lambda: gone() is None)
    finally:
        gc.enable()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="platform: forks")
def test_the_child_of_a_fork_reads_with_a_thread_of_its_own() -> None:
    sampler = Sampler(["host"])
    asyncio.run(asyncio.wait_for(sampler.asample(), HANG))
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if asyncio.run(asyncio.wait_for(sampler.asample(), HANG)).metrics else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    sampler.close()
