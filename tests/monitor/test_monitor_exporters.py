"""Exporters, callbacks and loops that hang, raise or stop the monitor: no tick is delayed, and the program notices nothing."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Generator

import pytest

from accelmetrics import Snapshot
from accelmetrics.backends.contract import Reader, ReadOptions
from accelmetrics.monitor import export_worker
from accelmetrics.monitor.monitor import Monitor
from accelmetrics.monitor.run import WAITING, Stream
from accelmetrics.schemas.record import Record
from accelmetrics.schemas.selection import MetricSelection
from accelmetrics.testing.fake import FakeDriver
from tests.monitor.watching import Gate, HeldClock, Recorder, gpus, no_threads, returned, threads, ticks
from tests.sampling.conftest import until
from tests.support.waiting import HANG

INTERVAL = 0.02


@pytest.fixture(autouse=True)
def _nothing_stays(monkeypatch: pytest.MonkeyPatch) -> Generator[None, None, None]:
    monkeypatch.setattr(export_worker, "FIRST_PAUSE", 0.02)
    yield
    no_threads("accelmetrics-")


class Nasty:
    """An exporter that is wrong in every way that Python allows."""

    name = "nasty"

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def open(self) -> None:
        return None

    def export(self, record: Record) -> None:
        raise self.error

    def flush(self) -> None:
        raise self.error

    def close(self) -> None:
        raise self.error


def test_no_exporter_delays_a_tick_or_another_exporter() -> None:
    """One hangs in opening, one in a call, one throws at each, one is away: the sane one has every record on time."""
    gates = [Gate(), Gate()]
    hung, stuck, away, sane = Recorder("hung"), Recorder("stuck"), Recorder("away"), Recorder("sane")
    hung.on_open, stuck.on_export = gates

    def refuse(_: object) -> None:
        raise ConnectionResetError("away")

    away.on_export = refuse
    monitor = Monitor(INTERVAL, [hung, stuck, Nasty(SystemExit("now")), away, sane], backends=[gpus(1)])
    with monitor:
        ticks(monitor, 20)
        ticks(monitor, 40)
        status = {one.name: one for one in monitor.status.exporters}
        assert status["sane"].sent >= 39
        assert status["hung"].queued + status["stuck"].queued >= 80
        until(lambda: monitor.status.exporters[2].failed >= 40)
        assert status["away"].error.startswith("could not deliver: ConnectionResetError")
        monitor.stop(0.5)
    lost = {one.name: one.dropped for one in monitor.status.exporters}
    assert lost["sane"] == lost["nasty"] == 0
    assert lost["hung"] == lost["stuck"] == lost["away"] == monitor.status.ticks
    for gate in gates:
        gate.release()


def test_an_exporter_that_opens_late_is_given_what_waited() -> None:
    """From the first reading on."""
    gate, exporter = Gate(), Recorder()
    exporter.on_open = gate
    with Monitor(INTERVAL, [exporter], backends=[gpus(1)]) as monitor:
        ticks(monitor, 10)
        assert exporter.records == []
        gate.release()
    assert [record.monitor.ticks for record in exporter.records if record.monitor] == list(range(1, monitor.status.ticks + 1))


@pytest.mark.parametrize(("metrics", "read"), [("core", "core,processes"), ("-nvlink*", "all,processes,-nvlink*"), ("all", "all")])
def test_an_exporter_that_wants_processes_has_them_read(metrics: str, read: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the monitor was told; without such an exporter they are read as it was told."""
    told: list[MetricSelection] = []
    backend, reader = gpus(1), FakeDriver.reader

    def watched(driver: FakeDriver, options: ReadOptions) -> Reader:
        told.append(options.metrics)
        return reader(driver, options)

    monkeypatch.setattr(FakeDriver, "reader", watched)
    for wants, expected in ((5, read), (0, metrics)):
        exporter = Recorder()
        exporter.processes = wants  # type: ignore[attr-defined]
        with Monitor(0.05, [exporter], backends=[backend], metrics=metrics) as monitor:
            ticks(monitor, 1)
        assert str(told[-1]) == expected


def test_callbacks_have_every_snapshot_until_they_are_ended() -> None:
    """Before and after a start; ending twice changes nothing."""
    first, second = list[Snapshot](), list[Snapshot]()
    monitor = Monitor(INTERVAL, backends=[gpus(1)])
    end_first = monitor.subscribe(first.append)
    with monitor:
        ticks(monitor, 3)
        end_second = monitor.subscribe(second.append)
        until(lambda: len(second) >= 3)
        end_first()
        end_first()
        until(lambda: threads("accelmetrics-callback") == ["accelmetrics-callback-2"])
        count = len(first)
        until(lambda: len(second) >= 6)
        assert len(first) == count
        end_second()
    assert 3 <= count < monitor.status.ticks
    assert monitor.status.exporters == ()


def test_a_callback_that_raises_is_counted_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """It is called again with the next snapshot."""
    called: list[Snapshot] = []

    def odd(snapshot: Snapshot) -> None:
        called.append(snapshot)
        raise SystemExit(f"call {len(called)}")

    monitor = Monitor(INTERVAL, backends=[gpus(1)])
    monitor.subscribe(odd)
    with caplog.at_level(logging.WARNING, logger="accelmetrics"), monitor:
        until(lambda: len(called) >= 5)
    assert monitor.status.exporters[0].failed == len(called)
    assert [line.getMessage() for line in caplog.records] == ["exporter callback could not deliver: SystemExit: call 1"]


def test_a_callback_that_blocks_loses_the_oldest_and_delays_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it lost is counted."""
    monkeypatch.setattr(export_worker, "CAPACITY", 5)
    gate = Gate()
    monitor = Monitor(INTERVAL, backends=[gpus(1)])
    monitor.subscribe(gate)
    with monitor:
        ticks(monitor, 20)
        assert monitor.status.exporters[0].dropped >= 14
        assert monitor.status.exporters[0].queued <= 6
        gate.release()
    assert monitor.status.exporters[0].sent + monitor.status.exporters[0].dropped == monitor.status.ticks


def test_a_callback_may_stop_the_monitor_while_the_program_does() -> None:
    """Neither waits for the other."""
    inside = threading.Event()
    monitor = Monitor(INTERVAL, backends=[gpus(1)])

    def stop(_: Snapshot) -> None:
        inside.set()
        until(lambda: not monitor.running)
        monitor.stop(10 * HANG)
        unsubscribe()
        monitor.flush(10 * HANG)

    unsubscribe = monitor.subscribe(stop)
    monitor.start()
    assert inside.wait(HANG)
    returned(lambda: monitor.stop(10 * HANG))


def test_a_callback_may_restart_the_monitor() -> None:
    """Its next call comes from the new run."""
    restarted = threading.Event()
    monitor = Monitor(INTERVAL, backends=[gpus(1)])

    def again(_: Snapshot) -> None:
        if not restarted.is_set():
            restarted.set()
            monitor.stop()
            monitor.start()

    monitor.subscribe(again)
    with monitor:
        assert restarted.wait(HANG)
        until(lambda: monitor.running and monitor.status.exporters[0].sent >= 3)


def test_what_reads_the_program_may_stop_the_monitor(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the very thread that takes readings: there is no last one then."""
    holder: list[Monitor] = []

    def extra(_: Snapshot) -> dict[str, int]:
        holder[0].stop(10 * HANG)
        return {}

    monkeypatch.setattr("accelmetrics.monitor.monitor.TorchMemory", lambda _: extra)
    monitor = Monitor(INTERVAL, backends=[gpus(1)])
    holder.append(monitor)
    monitor.start()
    until(lambda: not monitor.running)
    no_threads("accelmetrics-")


def test_a_loop_has_every_snapshot_from_then_on_until_the_monitor_stops() -> None:
    """The last reading is among them."""
    clock = HeldClock()
    monitor = Monitor(1.0, backends=[gpus(1)], clock=clock)

    async def follow() -> list[Snapshot]:
        found = []
        async for snapshot in monitor:
            found.append(snapshot)
            if len(found) < 4:
                clock.advance(1.0)
            else:
                threading.Thread(target=monitor.stop).start()
        return found

    with monitor:
        ticks(monitor, 1)
        threading.Timer(0.05, clock.advance, [1.0]).start()
        found = asyncio.run(asyncio.wait_for(follow(), HANG))
    assert len(found) == 5
    assert found[-1] is monitor.latest


def test_a_loop_over_a_monitor_that_does_not_run_ends_at_once() -> None:
    """Never started, and stopped."""

    async def follow() -> int:
        return len([snapshot async for snapshot in monitor])

    monitor = Monitor(INTERVAL, backends=[gpus(1)])
    assert asyncio.run(asyncio.wait_for(follow(), HANG)) == 0
    with monitor:
        pass
    assert asyncio.run(asyncio.wait_for(follow(), HANG)) == 0


def test_a_loop_that_was_left_or_closed_is_forgotten() -> None:
    """By `break`, or with its event loop."""
    monitor = Monitor(INTERVAL, backends=[gpus(1)])

    async def one() -> Snapshot | None:
        async for snapshot in monitor:
            return snapshot
        return None

    async def kept() -> Stream:
        stream = monitor.__aiter__()
        await stream.__anext__()
        return stream

    with monitor:
        for _ in range(5):
            assert asyncio.run(one()) is not None
        assert monitor._run is not None
        until(lambda: not monitor._run._streams)
        stream = asyncio.run(kept())
        before = monitor.status.ticks
        ticks(monitor, before + 5)
    assert not stream._waiting


def test_a_loop_that_is_busy_elsewhere_loses_the_oldest() -> None:
    """And piles up nothing in the event loop meanwhile."""
    monitor = Monitor(0.01, backends=[gpus(1)])

    async def follow() -> tuple[int, int, int]:
        stream = monitor.__aiter__()
        await stream.__anext__()
        before = monitor.status.ticks
        until(lambda: monitor.status.ticks > before + WAITING + 40)
        ready = len(asyncio.get_running_loop()._ready)  # type: ignore[attr-defined]
        missed = stream.dropped
        got = 0
        while stream._waiting:
            await stream.__anext__()
            got += 1
        return ready, missed, got

    with monitor:
        ready, missed, got = asyncio.run(follow())
    assert missed >= 30
    assert got >= WAITING - 1
    assert ready <= 2


def test_async_with_starts_and_stops_without_blocking_the_event_loop() -> None:
    """While an exporter takes its time to close, the loop goes on; the exporter has the last reading."""
    exporter = Recorder("slow")
    closing = Gate()
    monitor = Monitor(INTERVAL, [exporter], backends=[gpus(1)])
    exporter.on_close = closing

    async def follow() -> Snapshot | None:
        async def release() -> None:
            while not closing.entered.is_set():
                await asyncio.sleep(0.001)
            closing.release()

        async with monitor:
            task = asyncio.ensure_future(release())
            async for snapshot in monitor:
                first = snapshot
                break
        await task
        return first

    assert asyncio.run(asyncio.wait_for(follow(), HANG)) is not None
    assert not monitor.running
