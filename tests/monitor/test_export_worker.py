"""An exporter behind its queue: whatever it does costs nothing else anything, and what it did is counted."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import pytest

from accelmetrics.exporters.network import RejectedError
from accelmetrics.monitor import export_worker as module
from accelmetrics.monitor.export_worker import ExportWorker
from accelmetrics.schemas.errors import Reason, Unavailable
from accelmetrics.schemas.record import Record
from accelmetrics.schemas.selection import MetricSelection
from accelmetrics.schemas.snapshot import Snapshot
from tests.monitor.watching import Gate, Recorder, no_threads, threads
from tests.sampling.conftest import until
from tests.support.waiting import HANG, wait_for

MISSING = Unavailable(Reason.NOT_SUPPORTED, "no fan")


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise SystemExit("not even this")


def record(number: int) -> Record:
    return Record(Snapshot(number, "node", {"number": number}))


def numbers(exporter: Recorder) -> list[int]:
    return [taken.snapshot.time_ns for taken in exporter.records]


def put(worker: ExportWorker, *wanted: int) -> None:
    for number in wanted:
        worker.put(record(number))


def started(name: str, *wanted: int, **on: Callable[..., object]) -> tuple[ExportWorker, Recorder]:
    """A worker that has begun, with records put, and its exporter, which does that when it is called."""
    exporter = Recorder(name)
    for event, call in on.items():
        setattr(exporter, event, call)
    worker = ExportWorker(exporter, name)
    worker.start()
    put(worker, *wanted)
    return worker, exporter


def raising(error: BaseException) -> Callable[..., object]:
    """What raises an error whenever it is called."""
    return Mock(side_effect=error)


def stop(worker: ExportWorker, seconds: float = HANG) -> None:
    """Close a worker and wait for its end, at most so long."""
    delivery = worker._delivery
    delivery.close(time.monotonic() + seconds)
    worker.join(delivery)


@pytest.fixture(autouse=True)
def _quick_retries(monkeypatch: pytest.MonkeyPatch) -> Generator[None, None, None]:
    """And no thread that may still log something when the next test looks at what is logged."""
    monkeypatch.setattr(module, "FIRST_PAUSE", 0.02)
    yield
    no_threads("accelmetrics-")


def test_records_are_delivered_in_order_on_one_thread_of_its_own() -> None:
    """Opened, given each record, flushed and closed, all from the thread that bears its name."""
    worker, exporter = started("disk", *range(50))
    stop(worker)
    assert numbers(exporter) == list(range(50))
    assert [name for name, _ in exporter.calls] == ["open", *["export"] * 50, "flush", "close"]
    assert {thread.name for _, thread in exporter.calls} == {"accelmetrics-disk"}
    assert worker.status == ("disk", 50, 0, 0, 0, "")
    no_threads("accelmetrics-disk")


def test_a_peer_that_is_away_is_offered_the_same_record_until_it_comes_back() -> None:
    """Nothing is lost, nothing comes twice, and the status says what is wrong only as long as it is."""
    away = True

    def export(taken: Record) -> None:
        if away and taken.snapshot.time_ns == 1:
            raise ConnectionRefusedError(111, "the peer is away")

    worker, exporter = started("peer", 0, 1, 2, 3, on_export=export)
    until(lambda: exporter.count("export") >= 4)
    assert numbers(exporter) == [0]
    assert worker.status == ("peer", 1, 0, 0, 3, "could not deliver: ConnectionRefusedError: [Errno 111] the peer is away")
    away = False
    assert worker.flush(HANG)
    assert numbers(exporter) == [0, 1, 2, 3]
    assert worker.status == ("peer", 4, 0, 0, 0, "")
    stop(worker)


def test_pauses_between_attempts_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that is away for long is not hammered."""
    monkeypatch.setattr(module, "LAST_PAUSE", 0.16)
    tried: list[float] = []

    def export(_: Record) -> None:
        tried.append(time.monotonic())
        raise TimeoutError("no answer")

    worker, _ = started("peer", 0, on_export=export)
    until(lambda: len(tried) >= 7)
    pauses = [after - before for before, after in itertools.pairwise(tried)]
    assert all(pause >= wanted for pause, wanted in zip(pauses, (0.02, 0.04, 0.08, 0.16, 0.16, 0.16), strict=False))
    stop(worker, 0.1)


@pytest.mark.parametrize(
    "error", [ValueError("bad"), SystemExit(2), KeyboardInterrupt(), GeneratorExit(), UnprintableError(), MemoryError()]
)
def test_any_other_error_gives_the_record_up(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    """It is counted, and told once; those after it are delivered."""

    def export(taken: Record) -> None:
        if taken.snapshot.time_ns in {1, 2, 5}:
            raise error

    worker, exporter = started("odd", on_export=export)
    with caplog.at_level(logging.WARNING, logger="accelmetrics"):
        put(worker, *range(7))
        assert worker.flush(HANG)
    assert numbers(exporter) == [0, 3, 4, 6]
    assert worker.status == ("odd", 4, 3, 0, 0, "")
    assert len(caplog.records) == 1
    assert caplog.records[0].getMessage().startswith("exporter odd could not deliver: ")
    assert type(error).__name__ in caplog.records[0].getMessage()
    stop(worker)


def test_the_packages_own_errors_are_told_in_their_words_alone(caplog: pytest.LogCaptureFixture) -> None:
    """They are made for users, and users have no use for the name of a class."""
    worker, _ = started("wandb", 0, on_export=raising(RejectedError("Weights & Biases: not logged in")))
    stop(worker)
    assert [line.getMessage() for line in caplog.records] == ["exporter wandb could not deliver: Weights & Biases: not logged in"]


@pytest.mark.parametrize("kind", [ValueError, RejectedError, ConnectionError, PermissionError])
def test_a_tracker_that_quotes_a_secret_is_quoted_without_it(
    kind: type[Exception], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the log nor the status has it."""
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef")
    worker, _ = started("tracker", 0, on_export=raising(kind("bad key 0123456789abcdef for https://ada:pass@mlflow")))
    wait_for(lambda: worker.status.error)
    told = [worker.status.error]
    stop(worker, 0.1)
    told += [line.getMessage() for line in caplog.records]
    assert "bad key *** for https://***@mlflow" in told[0]
    assert not [line for line in told if "0123456789abcdef" in line or "pass" in line]


def test_a_failure_is_told_once_though_its_words_change(caplog: pytest.LogCaptureFixture) -> None:
    """An address or a number in the words does not make a log line of every tick; the status has the last words."""

    def export(taken: Record) -> None:
        raise ValueError(f"record {taken.snapshot.time_ns} is bad")

    worker, _ = started("odd", *range(100), on_export=export)
    assert worker.flush(HANG)
    told = [line.getMessage() for line in caplog.records]
    assert [line for line in told if line.startswith("exporter odd ")] == ["exporter odd could not deliver: ValueError: record 0 is bad"]
    assert worker.status == ("odd", 0, 100, 0, 0, "could not deliver: ValueError: record 99 is bad")
    stop(worker)


def test_the_queue_is_bounded_and_its_oldest_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """While an exporter hangs, the newest records wait; those that went are counted; the one in the air is not among them."""
    monkeypatch.setattr(module, "CAPACITY", 3)
    gate = Gate()
    worker, exporter = started("slow", 0, on_export=lambda taken: gate() if taken.snapshot.time_ns == 0 else None)
    assert gate.entered.wait(HANG)
    put(worker, *range(1, 9))
    assert worker.status == ("slow", 0, 0, 5, 4, "")
    gate.release()
    assert worker.flush(HANG)
    assert numbers(exporter) == [0, 6, 7, 8]
    assert worker.status == ("slow", 4, 0, 5, 0, "")
    stop(worker)


@pytest.mark.parametrize("where", ["on_open", "on_export", "on_flush", "on_close"])
def test_an_exporter_that_hangs_anywhere_is_not_waited_for_longer_than_allowed(where: str, caplog: pytest.LogCaptureFixture) -> None:
    """What it was not given is counted as dropped and said; what happens in it after that is counted no more."""
    gate = Gate()
    worker, exporter = started("hung", 0, 1, **{where: gate})
    assert where in {"on_flush", "on_close"} or gate.entered.wait(HANG)
    deadline = time.monotonic() + 0.3
    stop(worker, 0.3)
    assert time.monotonic() >= deadline
    lost = 2 if where in {"on_open", "on_export"} else 0
    assert worker.status[1:5] == (2 - lost, 0, lost, 0)
    assert [line.getMessage() for line in caplog.records] == ["exporter hung: 2 records were not delivered in time"] * bool(lost)
    gate.release()
    no_threads("accelmetrics-hung")
    assert worker.status[1:5] == (2 - lost, 0, lost, 0)
    assert exporter.count("close") == 1


@pytest.mark.parametrize("error", [OSError("no route"), ValueError("not logged in")])
def test_opening_is_tried_again_until_it_works(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever was wrong; it is told once, and the records wait."""
    failures = iter([error] * 3)

    def open_() -> None:
        for failure in failures:
            raise failure

    worker, exporter = started("late", 0, 1, on_open=open_)
    assert worker.flush(HANG)
    assert (exporter.count("open"), numbers(exporter)) == (4, [0, 1])
    assert [line.getMessage() for line in caplog.records] == [f"exporter late could not open: {type(error).__name__}: {error}"]
    assert worker.status.error == ""
    stop(worker)


def test_an_exporter_that_never_opened_is_closed_and_not_flushed() -> None:
    """It may hold half of what it needs."""
    worker, exporter = started("broken", 0, on_open=lambda: 1 / 0)
    until(lambda: exporter.count("open") > 1)
    stop(worker, 0.2)
    no_threads("accelmetrics-broken")
    assert (exporter.count("close"), exporter.count("flush")) == (1, 0)
    assert worker.status == ("broken", 0, 0, 1, 0, "could not open: ZeroDivisionError: division by zero")


def test_closing_wakes_it_up_for_more_attempts_within_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that comes back in the last second is still given what waits."""
    monkeypatch.setattr(module, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(module, "LAST_PAUSE", 20 * HANG)
    away = threading.Event()

    def export(_: Record) -> None:
        if not away.is_set():
            raise BrokenPipeError("gone")

    worker, exporter = started("peer", 0, 1, on_export=export)
    until(lambda: exporter.count("export") >= 3)
    tried = exporter.count("export")
    stopping = threading.Thread(target=stop, args=(worker,))
    stopping.start()
    wait_for(lambda: exporter.count("export") > tried)
    away.set()
    stopping.join(2 * HANG)
    assert worker.status == ("peer", 2, 0, 0, 0, "")


def test_a_long_pause_does_not_outlast_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread of a peer that is away for good ends when its time is up, not half a minute later."""
    monkeypatch.setattr(module, "FIRST_PAUSE", 20 * HANG)
    worker, exporter = started("peer", 0, on_export=raising(TimeoutError("no answer")))
    until(lambda: exporter.count("export") == 1)
    stop(worker, 0.3)
    no_threads("accelmetrics-peer")
    assert exporter.count("export") == 2


def test_flush_waits_for_the_queue_and_flushes_the_exporter() -> None:
    """It says whether everything was delivered in time."""
    gate = Gate()
    worker, exporter = started("slow", 0, 1, on_export=gate)
    assert not worker.flush(0.1)
    gate.release()
    assert worker.flush(HANG)
    assert [name for name, _ in exporter.calls][:4] == ["open", "export", "export", "flush"]
    stop(worker)
    assert worker.flush(HANG)


def test_a_callback_that_closes_its_own_worker_does_not_wait_for_itself() -> None:
    """It goes on with what is queued when it has returned."""
    exporter, stopped = Recorder(), []
    worker = ExportWorker(exporter, "own")

    def export(taken: Record) -> None:
        if taken.snapshot.time_ns == 0:
            put(worker, 1)
            stopped.append(worker.flush(10 * HANG))
            stop(worker, 10 * HANG)

    exporter.on_export = export
    worker.start()
    put(worker, 0)
    no_threads("accelmetrics-own")
    assert stopped == [False]
    assert (numbers(exporter), worker.status) == ([0, 1], ("own", 2, 0, 0, 0, ""))


def test_a_restart_waits_for_the_call_that_the_exporter_is_still_in() -> None:
    """An exporter is never called by two threads at once, however often its monitor is stopped and started."""
    gate = Gate()
    worker, exporter = started("once", 0, on_export=lambda taken: gate() if taken.snapshot.time_ns == 0 else None)
    assert gate.entered.wait(HANG)
    stop(worker, 0.05)
    assert worker.status[1:5] == (0, 0, 1, 0)
    for number in range(1, 4):
        worker.start()
        put(worker, number)
        assert worker.status[1:] == (0, 0, 0, 1, "a call that began before the monitor was stopped still hangs")
        stop(worker, 0.02)
        assert worker.status[1:5] == (0, 0, 1, 0)
    worker.start()
    put(worker, 4)
    assert threads("accelmetrics-once") == ["accelmetrics-once"]
    assert [name for name, _ in exporter.calls] == ["open", "export"]
    gate.release()
    assert worker.flush(HANG)
    assert numbers(exporter) == [0, 4]
    assert worker.status == ("once", 1, 0, 0, 0, "")
    stop(worker)
    assert exporter.count("open") == exporter.count("close")
    no_threads("accelmetrics-once")


def test_a_restart_while_records_are_still_delivered_goes_on_with_them() -> None:
    """The exporter stays open, nothing is lost, and a stop that still waits for the end returns."""
    gate = Gate()
    worker, exporter = started("busy", 0, 1, on_export=gate)
    assert gate.entered.wait(HANG)
    stopping = threading.Thread(target=stop, args=(worker, HANG))
    stopping.start()
    wait_for(lambda: worker._delivery.deadline is not None)
    worker.start()
    put(worker, 2)
    stopping.join(HANG / 2)
    assert not stopping.is_alive()
    gate.release()
    assert worker.flush(HANG)
    assert [name for name, _ in exporter.calls] == ["open", "export", "export", "export", "flush"]
    assert worker.status == ("busy", 3, 0, 0, 0, "")
    stop(worker)
    assert exporter.count("close") == 1


def test_a_close_that_comes_after_the_next_start_does_not_close_that_one() -> None:
    """A stop in one thread beside a start in another ends its own delivery alone."""
    exporter = Recorder()
    worker = ExportWorker(exporter, "restarted")
    first = worker.start()
    worker.start()
    first.close(time.monotonic())
    worker.join(first)
    put(worker, 0, 1)
    assert worker.flush(HANG)
    assert (numbers(exporter), worker.status.dropped) == ([0, 1], 0)
    stop(worker)


def test_records_that_several_threads_give_up_are_counted_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stops at the same time, and the exporter's own thread."""
    gate = Gate()
    monkeypatch.setattr(module, "CAPACITY", 5000)
    worker, _ = started("hung", *range(5000), on_export=gate)
    assert gate.entered.wait(HANG)
    with ThreadPoolExecutor(8) as stops:
        for _ in range(8):
            stops.submit(stop, worker, 0.0)
        gate.release()
    no_threads("accelmetrics-hung")
    assert (worker.status.sent + worker.status.dropped, worker.status.queued) == (5000, 0)


def test_a_restart_while_the_exporter_closes_opens_it_again() -> None:
    """The thread that closed it does."""
    gate = Gate()
    worker, exporter = started("closing", on_close=gate)
    worker._delivery.close(time.monotonic() + HANG)
    assert gate.entered.wait(HANG)
    worker.start()
    put(worker, 0)
    gate.release()
    assert worker.flush(HANG)
    assert [name for name, _ in exporter.calls] == ["open", "flush", "close", "open", "export", "flush"]
    stop(worker)


def test_a_record_that_comes_after_the_end_is_counted() -> None:
    """It waits for nothing."""
    worker, _ = started("late", 0)
    stop(worker)
    put(worker, 1)
    assert worker.status == ("late", 1, 0, 1, 0, "")


def test_a_start_that_ctrl_c_cut_short_is_made_good_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first waits for nothing when it is stopped, and the exporter is opened for the second."""

    def interrupt(_: threading.Thread) -> None:
        raise KeyboardInterrupt

    exporter = Recorder()
    worker = ExportWorker(exporter, "cut")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(threading.Thread, "start", interrupt)
        worker.start()
    put(worker, 0)
    stop(worker, HANG)
    assert (worker.status.dropped, exporter.calls) == (1, [])
    worker.start()
    put(worker, 1)
    assert worker.flush(HANG)
    assert (numbers(exporter), exporter.count("open"), worker.status.sent, worker.status.dropped) == ([1], 1, 1, 0)
    stop(worker)


def test_one_that_is_not_wanted_any_more_ends_without_delivering(caplog: pytest.LogCaptureFixture) -> None:
    """What waits is no loss."""
    gate = Gate()
    worker, exporter = started("gone", 0, 1, 2, on_export=gate)
    assert gate.entered.wait(HANG)
    worker.drop()
    gate.release()
    no_threads("accelmetrics-gone")
    assert (numbers(exporter), exporter.count("close"), caplog.records) == ([0], 1, [])


def test_a_machine_without_threads_counts_the_records_as_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program goes on; nothing is raised and nothing waits."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    exporter = Recorder()
    worker = ExportWorker(exporter, "none")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        worker.start()
    put(worker, 0, 1)
    assert not worker.flush(0.1)
    stop(worker, 10 * HANG)
    assert worker.status == ("none", 0, 0, 2, 0, "no thread can be started: RuntimeError: can't start new thread")
    assert not threads("accelmetrics-none")


def reading(number: int) -> Record:
    metrics = {"gpu.0.powerWatts": 300.0, "gpu.0.temp": 40, "cpu": number}
    return Record(Snapshot(number, "node", metrics, (), {"gpu.0.fanSpeed": MISSING, "gpu.0.memoryTemp": MISSING}))


def test_an_exporter_is_handed_the_metrics_that_it_wants() -> None:
    """Values and reasons alike; one that wants everything is handed the reading itself."""
    recorders = [Recorder(name) for name in ("first", "second", "everything", "other")]
    for recorder, metrics in zip(recorders, ("powerWatts,fanSpeed", "powerWatts,fanSpeed", "all", None), strict=True):
        recorder.metrics = MetricSelection(metrics) if metrics else ["of", "another", "meaning"]  # type: ignore[attr-defined]
    workers = [ExportWorker(recorder, recorder.name) for recorder in recorders]
    read = [reading(number) for number in range(3)]
    for worker in workers:
        worker.start()
        for one in read:
            worker.put(one)
    for worker in workers:
        stop(worker)
    first, second, everything, other = ([taken.snapshot for taken in recorder.records] for recorder in recorders)
    for handed in (first, second):
        assert [(taken.metrics, taken.unavailable) for taken in handed] == [({"gpu.0.powerWatts": 300.0}, {"gpu.0.fanSpeed": MISSING})] * 3
    for taken in (everything, other):
        assert all(one is another.snapshot for one, another in zip(taken, read, strict=True))
