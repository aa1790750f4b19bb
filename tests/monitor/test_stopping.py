"""Stopping shares its time fairly, waits for nothing in a circle, piles up no threads, and may be done by a signal handler."""

from __future__ import annotations

import errno
import os
import textwrap
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from accelmetrics import Snapshot
from accelmetrics.exporters.registry import create
from accelmetrics.monitor import run as run_module
from accelmetrics.monitor.export_worker import STILL_HANGS
from accelmetrics.monitor.monitor import Monitor
from accelmetrics.schemas.recording import read_records
from tests.monitor.test_monitor_exit import LIMIT, PREFACE, run
from tests.monitor.watching import Gate, Recorder, gpus, program, returned, threads, ticks
from tests.sampling.conftest import until
from tests.sampling.test_fork_and_exit import in_child, needs_fork
from tests.support.waiting import HANG

pytestmark = pytest.mark.usefixtures("nothing_stays")

INTERVAL = 0.02
BATCH = """
class Batch(Exporter):
    def export(self, record): pass
    def flush(self):
        time.sleep(SECONDS)
        say("flushed")
def hung(**options):
    device = FakeBackend(devices=1)
    monitor = Monitor(0.05, backends=[device], timeout=10.0, **options).start()
    ticks(monitor, 2)
    reads = device.device(0).reads
    device.device(0).hang()
    while device.device(0).reads == reads:
        time.sleep(0.005)
    return monitor
"""


def stopping(monitor: Monitor, done: list[bool], count: int = 1) -> Callable[[Snapshot], None]:
    """A callback that stops the monitor, once so many readings have been taken, and notes that it went on."""

    def stop(_: Snapshot) -> None:
        if monitor.status.ticks >= count:
            monitor.stop(10 * HANG)
            done.append(True)

    return stop


def stopped(monitor: Monitor) -> bool:
    """Stop a monitor, for which there is time without end."""
    monitor.stop(10 * HANG)
    return True


def no_room(_: object = None) -> None:
    raise OSError(errno.ENOSPC, "no space left on device")


def exiting(seconds: float, *lines: str) -> str:
    """A program whose exporter's flush takes so long, with its last lines."""
    return "\n".join([BATCH.replace("SECONDS", str(seconds)), *lines, "exiting = time.monotonic()"])


def test_a_last_reading_that_does_not_come_leaves_exporters_their_share() -> None:
    """However long a reading may take: a flush in the second half of the stop's time is completed."""
    backend, exporter = gpus(1), Recorder("batch")
    flushed = threading.Event()
    exporter.on_flush = lambda: flushed.wait(HANG)
    monitor = Monitor(INTERVAL, [exporter], backends=[backend], timeout=30 * HANG)
    with monitor:
        ticks(monitor, 3)
        reads = backend.device(0).reads
        backend.device(0).hang()
        until(lambda: backend.device(0).reads > reads)
        stop = threading.Thread(target=monitor.stop, args=(2.0,))
        stop.start()
        until(lambda: exporter.count("flush") == 1)  # which begins before the stop's time is over
        assert stop.is_alive()
        flushed.set()
        stop.join(HANG)
    backend.device(0).release()
    assert exporter.count("close") == 1
    assert (monitor.status.exporters[0].sent, monitor.status.exporters[0].dropped) == (monitor.status.ticks, 0)


def test_a_stop_does_not_wait_where_nothing_can_be_delivered() -> None:
    """The driver hangs and the disk is full: however long the stop may take."""
    backend, exporter = gpus(1), Recorder("full")
    monitor = Monitor(INTERVAL, [exporter], backends=[backend], timeout=30 * HANG).start()
    ticks(monitor, 3)
    exporter.on_export = no_room
    until(lambda: monitor.status.exporters[0].error != "")
    reads = backend.device(0).reads
    backend.device(0).hang()
    until(lambda: backend.device(0).reads > reads)
    returned(partial(stopped, monitor))
    backend.device(0).release()
    assert monitor.status.exporters[0].dropped > 0
    until(lambda: exporter.count("close") == 1)


def test_an_exporter_that_cannot_open_does_not_hold_up_a_stop() -> None:
    exporter = Recorder("away")
    exporter.on_open = no_room
    with Monitor(INTERVAL, [exporter], backends=[gpus(1)]) as monitor:
        until(lambda: exporter.count("open") > 1)
        returned(partial(stopped, monitor))
    until(lambda: exporter.count("close") == 1)


def test_an_exporter_that_recovers_within_the_stop_delivers_everything() -> None:
    exporter, failures = Recorder("recovering"), iter(range(3))
    monitor = Monitor(INTERVAL, [exporter], backends=[gpus(1)]).start()
    exporter.on_export = no_room
    until(lambda: monitor.status.exporters[0].queued > 3)
    exporter.on_export = lambda _: no_room() if monitor.running or next(failures, None) is not None else None
    monitor.stop(HANG)
    assert (monitor.status.exporters[0].sent, monitor.status.exporters[0].dropped) == (monitor.status.ticks, 0)


def test_a_slow_exporter_has_the_whole_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only one that fails is given up early."""
    monkeypatch.setattr(run_module, "LONGEST_FAILING_STOP", 0.0)
    exporter, gate = Recorder("slow"), Gate()
    exporter.on_export = gate
    monitor = Monitor(INTERVAL, [exporter], backends=[gpus(1)]).start()
    assert gate.entered.wait(HANG)
    stop = threading.Thread(target=monitor.stop, args=(HANG,))
    stop.start()
    until(lambda: not monitor.running)
    stop.join(0.1)
    assert stop.is_alive()
    gate.release()
    stop.join(HANG)
    assert monitor.status.exporters[0].sent == monitor.status.ticks


def test_a_hung_driver_leaves_exporters_their_share_at_exit() -> None:
    """Half of the interpreter's two seconds, whatever the timeout."""
    spent, status, output, _ = run(exiting(0.5, "monitor = hung(exporters=[Batch()])"))
    assert (status, output.split()) == (0, ["flushed", "close"])
    assert spent < LIMIT


def test_monitors_whose_readings_hang_cost_the_others_nothing_at_exit() -> None:
    """Each one's exporters begin to close when its own last reading is there; one of them takes most of the limit here."""
    spent, status, output, _ = run(
        exiting(
            1.1,
            "monitors = [hung(), hung(), hung()]",
            "last = Monitor(50.0, [Batch()], backends=[gpus]).start()",
            "monitors += [last, hung()]",
            "ticks(last, 1)",
        )
    )
    assert (status, output.split()) == (0, ["flushed", "close"])
    assert spent < LIMIT


def test_callbacks_that_all_stop_the_monitor_do_not_wait_for_each_other() -> None:
    """Each goes on at once, and everything that was read is delivered."""
    done, exporter = list[bool](), Recorder()
    monitor = Monitor(INTERVAL, [exporter], backends=[gpus(1)])
    for _ in range(3):
        monitor.subscribe(stopping(monitor, done, 5))
    monitor.start()
    until(lambda: not monitor.running and not threads("accelmetrics-"))
    assert len(done) >= 3
    assert [(one.sent, one.dropped, one.queued) for one in monitor.status.exporters] == [(monitor.status.ticks, 0, 0)] * 4


def test_callbacks_that_stop_each_others_monitors_do_not_wait_for_each_other() -> None:
    """Nor those of three monitors in a circle, each of which stops the next."""
    done = list[bool]()
    monitors = [Monitor(INTERVAL, backends=[gpus(1)]) for _ in range(3)]
    together = threading.Barrier(3)

    def once(stop: Callable[[Snapshot], None]) -> Callable[[Snapshot], None]:
        first = iter([True])

        def meet(snapshot: Snapshot) -> None:
            if next(first, False):
                together.wait(HANG)
                stop(snapshot)

        return meet

    for number, monitor in enumerate(monitors):
        monitor.subscribe(once(stopping(monitors[(number + 1) % 3], done)))
    for monitor in monitors:
        monitor.start()
    until(lambda: len(done) >= 3)
    for monitor in monitors:
        monitor.stop()
        assert [(one.dropped, one.queued) for one in monitor.status.exporters] == [(0, 0)]


def test_callbacks_that_flush_do_not_wait_for_each_other() -> None:
    """What the others have not delivered yet is said by the answer."""
    done = list[bool]()
    monitor = Monitor(INTERVAL, backends=[gpus(1)])
    together = threading.Barrier(2)

    def flushing() -> Callable[[Snapshot], None]:
        first = iter([True])

        def flush(_: Snapshot) -> None:
            if next(first, False):
                together.wait(HANG)
                done.append(monitor.flush(10 * HANG))

        return flush

    monitor.subscribe(flushing())
    monitor.subscribe(flushing())
    with monitor:
        until(lambda: len(done) >= 2)


def test_a_hung_exporter_keeps_one_thread_however_often_its_monitor_is_restarted() -> None:
    """Records are counted meanwhile; when it comes back, those of the newest run are delivered, after the call that hung."""
    gate, exporter = Gate(), Recorder("hung")
    exporter.on_export = lambda _: gate() if exporter.count("export") == 1 else None
    monitor = Monitor(INTERVAL, [exporter], backends=[gpus(1)])
    lost = 0
    for _ in range(20):
        with monitor:
            ticks(monitor, 2)
            assert len(threads("accelmetrics-hung")) == 1
            monitor.stop(0.05)
            [status] = monitor.status.exporters
            assert (status.sent, status.dropped, status.queued) == (0, monitor.status.ticks, 0)
            lost += status.dropped
    with monitor:
        ticks(monitor, 3)
        assert monitor.status.exporters[0].error == STILL_HANGS
        assert (exporter.count("open"), len(threads("accelmetrics-hung"))) == (1, 1)
        gate.release()
        until(lambda: monitor.status.exporters[0].sent >= 4)
        assert monitor.status.exporters[0].error == ""
    assert lost >= 40
    assert (exporter.count("open"), exporter.count("close")) == (1, 1)
    newest = [record.monitor.ticks for record in exporter.records[1:] if record.monitor is not None]
    assert newest == list(range(1, monitor.status.ticks + 1))
    assert len({thread for _, thread in exporter.calls}) == 1


def test_a_stop_in_a_signal_handler_never_hangs_the_program() -> None:
    """It interrupts logs, windows, stops and starts of the same monitor, anywhere, beside an exporter that hangs."""
    text = """
        import signal
        class Sane(Exporter):
            def export(self, record): pass
            def flush(self): pass
            def close(self): pass
        class Hung(Sane):
            name = "hung"
            def export(self, record): threading.Event().wait()
        monitor = Monitor(0.01, [Sane(), Hung()], backends=[gpus])
        count, running = 0, False
        def handle(*_):
            global count
            if running:
                count += 1
                monitor.log(loss=2.0)
                monitor.stop(0.005)
            signal.setitimer(signal.ITIMER_REAL, 0.0031)
        signal.signal(signal.SIGALRM, handle)
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        while count < 100:
            running = False
            monitor.start()
            running = True
            with monitor.window("w") as window:
                monitor.log(loss=1.0)
            monitor.stop(0.002)
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        monitor.start()
        ticks(monitor, 3)
        monitor.flush(0.1)
        sane = monitor.status.exporters[0].sent > 0
        monitor.stop(0.1)
        while threading.active_count() > 2:
            time.sleep(0.01)
        print(sane, [thread.name for thread in threading.enumerate()], flush=True)
    """
    _, status, output, _ = program(PREFACE + textwrap.dedent(text))
    assert (status, output) == (0, "True ['MainThread', 'accelmetrics-hung']\n")


@needs_fork
def test_a_child_begins_without_the_exporters_that_the_parent_has_open(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its own callbacks, history and windows work; one warning says what it does without; the parent's file has the parent's alone."""
    path = tmp_path / "run.jsonl"
    called, mine = list[Snapshot](), list[Snapshot]()
    monitor = Monitor(INTERVAL, [create(f"jsonl:{path}")], backends=[gpus(1)])
    monitor.subscribe(called.append)
    with monitor:
        ticks(monitor, 3)

        def child() -> bool:
            called.clear()
            monitor.subscribe(mine.append)
            with pytest.warns(RuntimeWarning) as warned:
                with monitor, monitor.window("own") as own:
                    until(lambda: len(mine) >= 5)
                with monitor:
                    ticks(monitor, 2)
            [line] = [str(one.message) for one in warned]
            works = own.summary["gpu.0.powerWatts"].count > 0 and len(monitor.history) > 5 and not called
            return (
                works
                and "jsonl, callback get no records" in line
                and str(os.getpid()) in line
                and [one.name for one in monitor.status.exporters] == ["callback"]
                and not caplog.records
            )

        assert [in_child(child) for _ in range(3)] == [0] * 3
        before = monitor.status.ticks
        ticks(monitor, before + 3)
    numbers = [record.snapshot.backends[0].sequence for record in read_records(path)]
    assert numbers == list(range(1, monitor.status.ticks + 1))
    assert monitor.status.exporters[0].sent == len(numbers)
    assert caplog.records == []


@needs_fork
def test_a_monitor_that_was_not_started_before_a_fork_takes_its_exporters_along(tmp_path: Path) -> None:
    """As in a program that makes it, becomes a daemon and then starts it."""
    path = tmp_path / "run.jsonl"
    monitor = Monitor(INTERVAL, [create(f"jsonl:{path}")], backends=[gpus(1)])

    def child() -> bool:
        with monitor:
            ticks(monitor, 3)
        return monitor.status.exporters[0].sent == monitor.status.ticks

    assert in_child(child) == 0
    assert len(path.read_text().splitlines()) >= 4
