"""The monitor's life: started, stopped, paused, restarted, from any thread, with others beside it."""

from __future__ import annotations

import gc
import logging
import subprocess
import sys
import textwrap
import threading
import weakref
from datetime import timedelta
from unittest.mock import patch

import pytest

from accelmetrics import InvalidOptionError, Snapshot, UnknownNameError
from accelmetrics.monitor.monitor import Monitor
from accelmetrics.monitor.run import Run, Ticker
from accelmetrics.testing import FakeBackend
from accelmetrics.testing.fake import FakeClock
from tests.monitor.watching import Gate, HeldClock, Recorder, gpus, no_threads, returned, spending, threads, ticks
from tests.sampling.conftest import until
from tests.support.waiting import HANG

pytestmark = pytest.mark.usefixtures("nothing_stays")

INTERVAL = 0.02


def test_the_first_reading_is_taken_at_once_and_the_last_one_on_stop() -> None:
    """Though the interval is an hour."""
    backend, exporter = gpus(1), Recorder()
    with Monitor(3600, [exporter], backends=[backend]) as monitor:
        ticks(monitor, 1)
        assert monitor.latest is not None
        assert monitor.latest.metrics["gpu.0.powerWatts"] == 100.0
        backend.device(0).set(powerWatts=200.0)
    assert monitor.status.ticks == 2
    assert monitor.history.column("gpu.0.powerWatts") == [100.0, 200.0]
    assert [record.snapshot.metrics["gpu.0.powerWatts"] for record in exporter.records] == [100.0, 200.0]
    assert [name for name, _ in exporter.calls] == ["open", "export", "export", "flush", "close"]


def test_starting_and_stopping_takes_no_time_however_slow_the_driver_is() -> None:
    """The program does not wait for the first reading, and for the last one only so long."""
    backend = gpus(1)
    backend.opening.hang()
    monitor = returned(Monitor(1.0, backends=[backend], timeout=0.1).start)
    assert (monitor.running, monitor.latest) == (True, None)
    returned(lambda: monitor.stop(10 * HANG))
    assert not monitor.running
    backend.opening.release()


def test_a_monitor_loads_no_module_that_it_does_not_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those that take much memory: of commands, decorators, exporters, loops; a program that decorates has one of them then."""
    monkeypatch.delenv("ACCELMETRICS_VALIDATE")
    code = """
        import sys
        from accelmetrics import Monitor
        def heavy():
            names = {"argparse", "asyncio", "dataclasses", "inspect", "urllib.parse", "pydantic", "accelmetrics.monitor.settings"}
            print(*sorted(names & set(sys.modules)))
        with Monitor(3600, backends=["host"]) as monitor:
            with monitor.window() as window:
                pass
            window.summary
            heavy()
            monitor.window("steps")(lambda: None)
            heavy()
    """
    bare = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, capture_output=True, text=True, timeout=HANG)
    assert bare.stdout.splitlines() == ["", "inspect"]


def test_starting_or_stopping_twice_changes_nothing() -> None:
    """Nor does stopping what was never started."""
    exporter = Recorder()
    monitor = Monitor(INTERVAL, [exporter], backends=[gpus(1)])
    monitor.stop()
    assert monitor.start() is monitor.start()
    ticks(monitor, 2)
    monitor.stop()
    status = monitor.status
    monitor.stop()
    assert monitor.status == status
    assert (exporter.count("open"), exporter.count("close")) == (1, 1)


def test_a_restarted_monitor_goes_on_with_all_it_had() -> None:
    """Labels, run id, history, subscriptions and exporters stay; counters and the latest reading begin anew."""
    exporter, heard = Recorder(), list[Snapshot]()
    monitor = Monitor(INTERVAL, [exporter], backends=[gpus(1)], labels={"team": "vision"})
    monitor.subscribe(heard.append)
    for turn in (1, 2, 3):
        before, remembered = len(heard), len(monitor.history)
        with monitor:
            assert monitor.status.ticks <= 1
            ticks(monitor, 3)
        assert monitor.status.exporters[1].sent == len(heard) - before >= 4
        assert len(monitor.history) - remembered == monitor.status.ticks
        assert exporter.count("open") == exporter.count("close") == turn
    assert {record.labels["run_id"] for record in exporter.records} == {monitor.labels["run_id"]}
    assert exporter.records[-1].labels["team"] == "vision"


def test_pausing_leaves_everything_alone_until_it_is_resumed() -> None:
    """Nothing is read, remembered, exported or counted as missed, and the pause is in no window."""
    clock, backend, exporter = HeldClock(), gpus(1), Recorder()
    with Monitor(1.0, [exporter], backends=[backend], clock=clock) as monitor:
        ticks(monitor, 1)
        with monitor.window("all") as window:
            clock.advance(1.0)
            ticks(monitor, 2)
            monitor.pause()
            reads = backend.device(0).reads
            for _ in range(4):
                clock.advance(25.0)
                clock.waited()
            assert (backend.device(0).reads, len(monitor.history), monitor.status.missed_ticks) == (reads, 2, 0)
            monitor.resume()
            until(lambda: backend.device(0).reads > reads)
            clock.advance(2.0)
            ticks(monitor, 3)
        assert window.duration > 100
        assert window.energy_joules["gpu.0"].seconds < 5
        assert window.summary["gpu.0.powerWatts"].seconds < 5
        monitor.resume()
    assert all(record.monitor is not None and record.monitor.missed_ticks <= 2 for record in exporter.records)


def test_a_paused_monitor_stops_without_a_last_reading() -> None:
    """It was told to take none."""
    with Monitor(INTERVAL, backends=[gpus(1)]) as monitor:
        ticks(monitor, 1)
        monitor.pause()
        count = monitor.status.ticks
    assert monitor.status.ticks == count


def test_monitors_that_want_the_same_share_their_readings() -> None:
    """One thread and one reading for both, each with exporters of its own; the one that stays is not disturbed."""
    backend, one, two = gpus(1), Recorder("one"), Recorder("two")
    first = Monitor(INTERVAL, [one], backends=[backend])
    second = Monitor(INTERVAL, [two], backends=[backend], history=5)
    with first:
        ticks(first, 3)
        with second:
            ticks(second, 10)
            assert threads() == [f"accelmetrics-{name}" for name in ("fake-1", "monitor", "one", "two")]
            common = {id(record.snapshot) for record in one.records} & {id(record.snapshot) for record in two.records}
            assert len(common) >= 8
        assert len(second.history) == 5
        before = first.status.ticks
        ticks(first, before + 3)
    assert backend.opened == 1
    assert first.status.exporters[0].failed == second.status.exporters[0].failed == 0


def test_monitors_of_different_paces_do_not_disturb_each_other() -> None:
    """Each has its own ticks."""
    backend = gpus(1)
    with Monitor(INTERVAL, backends=[backend]) as quick, Monitor(5.0, backends=[backend]) as slow:
        ticks(quick, 10)
        assert slow.status.ticks == 1
    assert slow.status.ticks == 2


def test_missed_ticks_are_counted() -> None:
    """In the status, and in what exporters are told."""
    clock, backend, exporter = FakeClock(), gpus(1), Recorder()
    backend.device(0).set(powerWatts=spending(clock, 5.5))
    with Monitor(1.0, [exporter], backends=[backend], clock=clock) as monitor:
        ticks(monitor, 5)
    assert monitor.status.missed_ticks == 4
    assert exporter.records[-1].monitor is not None
    assert exporter.records[-1].monitor.flat()["monitor.missedTicks"] == 4


def test_readings_that_timed_out_are_counted_and_the_rest_goes_on() -> None:
    """A hung device costs its own values, and no tick."""
    backend = gpus(2)
    with Monitor(INTERVAL, backends=[backend], timeout=0.05) as monitor:
        ticks(monitor, 2)
        backend.device(1).hang()
        until(lambda: monitor.latest is not None and "gpu.1.powerWatts" not in monitor.latest.metrics)
        assert monitor.latest is not None
        assert monitor.latest.metrics["gpu.0.powerWatts"] == 100.0
        before = monitor.status.ticks
        ticks(monitor, before + 5)
        backend.device(1).release()
        until(lambda: monitor.latest is not None and "gpu.1.powerWatts" in monitor.latest.metrics)
    assert None in monitor.history.column("gpu.1.powerWatts")


def test_a_source_with_a_pace_of_its_own_is_remembered_once_a_reading() -> None:
    """Whatever windows begin and end between the ticks: each reading is in the history once, and in no window twice."""
    backend = FakeBackend("amd", devices=1, vendor="amd", interval=0.1)
    count = iter(range(1, 10_000))
    backend.device(0).set(powerWatts=lambda: float(next(count)))
    with Monitor(0.05, backends=[backend]) as monitor:
        with monitor.window("all") as window:
            until(lambda: window.summary.get("gpu.0.powerWatts") is not None, 10)
            for _ in range(40):
                with monitor.window("step") as step:
                    pass
                _ = step.summary
        readings = monitor.history.series("gpu.0.powerWatts").values
        found = window.summary["gpu.0.powerWatts"]
    assert len(readings) == len(set(readings))
    assert readings == sorted(readings)
    assert len(readings) >= 5
    assert found.count <= next(count)
    assert 5 <= found.count <= found.last - found.min + 1  # a monitor that is late misses some


def test_flush_waits_until_everything_was_delivered() -> None:
    """And says so; it does not stop anything."""
    gate, slow = Gate(), Recorder("slow")
    slow.on_export = gate
    with Monitor(3600, [slow, Recorder("quick")], backends=[gpus(1)]) as monitor:
        assert gate.entered.wait(HANG)
        assert not monitor.flush(0.05)
        gate.release()
        assert monitor.flush()
        assert [one.sent for one in monitor.status.exporters] == [1, 1]
    assert monitor.flush(0.1)


def test_exporters_of_a_kind_are_told_apart_and_each_object_is_used_once() -> None:
    """Their names are those of their counters."""
    one = Recorder("jsonl")
    monitor = Monitor(INTERVAL, [one, Recorder("jsonl"), one, Recorder("jsonl-2"), Recorder("")], backends=[gpus(1)])
    with monitor:
        ticks(monitor, 1)
        monitor.subscribe(lambda _: None)
        assert [status.name for status in monitor.status.exporters] == ["jsonl", "jsonl-2", "jsonl-2-2", "Recorder", "callback"]


def test_it_can_be_stopped_and_started_from_any_thread_at_once() -> None:
    """No deadlock, no error, and no thread left in the end."""
    exporter = Recorder()
    monitor = Monitor(INTERVAL, [exporter], backends=[gpus(1)])
    errors: list[BaseException] = []

    def toggle() -> None:
        for _ in range(15):
            try:
                monitor.start()
                with monitor.window("w"):
                    monitor.log(loss=1.0)
                monitor.stop(1.0)
            except BaseException as error:  # noqa: BLE001 - whatever it is, it must not be
                errors.append(error)

    workers = [threading.Thread(target=toggle) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(30)
        assert not worker.is_alive()
    monitor.stop()
    assert errors == []
    assert exporter.count("open") == exporter.count("close")


def test_a_monitor_that_was_stopped_leaves_nothing_behind() -> None:
    """Made and used a hundred times, it is gone each time."""
    backend, gone = gpus(1), []
    for number in range(100):
        monitor = Monitor(1.0 + number / 1000, [Recorder()], backends=[backend])
        with monitor:
            pass
        gone.append(weakref.ref(monitor))
    del monitor
    no_threads("accelmetrics-")
    gc.collect()
    assert [reference() for reference in gone] == [None] * 100


def test_what_the_program_itself_gives_is_beside_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing when it fails; other monitors' readings are not touched."""
    backend = gpus(1)
    odd = iter([ZeroDivisionError("no"), SystemExit(1)])

    def extra(snapshot: Snapshot) -> dict[str, int]:
        for error in odd:
            raise error
        return {"torch.0.memoryAllocatedBytes": 5, "gpus": len(snapshot.devices)}

    given = iter([extra])
    monkeypatch.setattr("accelmetrics.monitor.monitor.TorchMemory", lambda _: next(given, lambda _: {}))
    with Monitor(INTERVAL, backends=[backend]) as monitor, Monitor(INTERVAL, backends=[backend]) as other:
        until(lambda: monitor.latest is not None and "gpus" in monitor.latest.metrics)
        assert monitor.latest is not None
        assert {key: value for key, value in monitor.latest.metrics.items() if not key.startswith("gpu.")} == {
            "torch.0.memoryAllocatedBytes": 5,
            "gpus": 1,
        }
        ticks(other, 3)
        assert other.latest is not None
        assert "gpus" not in other.latest.metrics


def test_a_paused_monitor_asks_the_program_nothing_though_another_reads_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """They share a ticker."""
    asked: list[Snapshot] = []

    def extra(snapshot: Snapshot) -> dict[str, float]:
        asked.append(snapshot)
        return {}

    backend = gpus(1)
    given = iter([extra])
    monkeypatch.setattr("accelmetrics.monitor.monitor.TorchMemory", lambda _: next(given, lambda _: {}))
    with Monitor(INTERVAL, backends=[backend]) as monitor, Monitor(INTERVAL, backends=[backend]) as other:
        ticks(monitor, 2)
        monitor.pause()
        ticks(other, other.status.ticks + 2)  # a reading that was being taken is over
        count = len(asked)
        ticks(other, other.status.ticks + 5)
        assert len(asked) == count


def test_what_was_logged_is_delivered_without_a_last_reading() -> None:
    """With the reading that was the last: the monitor was paused, or the driver hangs."""
    exporter = Recorder()
    with Monitor(3600, [exporter], backends=[gpus(1)]) as monitor:
        ticks(monitor, 1)
        monitor.pause()
        monitor.log(step=8, loss=0.5)
    assert [[step.step for step in record.steps] for record in exporter.records] == [[], [8]]
    assert exporter.records[1].snapshot is exporter.records[0].snapshot


def test_a_start_that_ctrl_c_interrupts_can_be_done_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a stop after it finds nothing that it could not stop."""
    exporter = Recorder()
    monitor = Monitor(INTERVAL, [exporter], backends=[gpus(1)])

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    for _ in range(2):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(Ticker, "join", interrupt)
            monitor.start()
    with monitor:
        ticks(monitor, 3)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(threading.Thread, "start", interrupt)
        monitor.start()
    returned(lambda: monitor.stop(10 * HANG))
    assert exporter.count("open") == exporter.count("close")


def test_a_monitor_without_a_thread_is_not_running_and_can_be_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says why, and waits for nothing."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monitor = Monitor(INTERVAL, backends=[gpus(1)])
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        monitor.start()
    assert (monitor.running, "can't start new thread" in monitor.error) == (False, True)
    with monitor:
        ticks(monitor, 2)
        assert (monitor.running, monitor.error) == (True, "")


def test_a_device_that_is_not_there_is_said_and_does_not_end_the_program(caplog: pytest.LogCaptureFixture) -> None:
    """Found out at the first reading, told once, in `error` as long as it is so."""
    with caplog.at_level(logging.WARNING, logger="accelmetrics"), Monitor(INTERVAL, backends=[gpus(1)], gpus=[7]) as monitor:
        until(lambda: bool(monitor.error))
        with patch.object(Run, "fail", autospec=True, side_effect=Run.fail) as fail:
            until(lambda: fail.call_count >= 5)
        monitor.log(step=1, loss=2.0)
        assert "7" in monitor.error
        assert monitor.latest is None
    assert len([line for line in caplog.records if line.getMessage().startswith("no reading: ")]) == 1
    assert monitor.status.ticks == 0


def test_what_was_logged_is_delivered_with_the_next_reading() -> None:
    """And remembered, with what follows from it; what comes after the last reading too."""
    clock, exporter = HeldClock(), Recorder()
    monitor = Monitor(1.0, [exporter], backends=[gpus(2, powerWatts=150.0)], clock=clock)
    monitor.log(step=0, loss=9.0)
    with monitor:
        until(lambda: exporter.records)  # a tick is counted before its record is handed on
        assert monitor.flush()
        assert [step.step for step in exporter.records[0].steps] == [0]
        for step in (1, 2):
            clock.advance(0.4)
            monitor.log(step=step, tokens=600, loss=1.0 / step)
        assert len(exporter.records[0].steps) == 1
        clock.advance(0.2)
        until(lambda: len(exporter.records) == 2)
        assert monitor.flush()
        assert [step.step for step in exporter.records[1].steps] == [1, 2]
        assert exporter.records[1].steps[1].values == pytest.approx(
            {
                "tokens": 600,
                "loss": 0.5,
                "step_seconds": 0.4,
                "tokens_per_second": 1500.0,
                "tokens_per_joule": 5.0,
                "tokens_per_joule_of_mean_device": 10.0,
            }
        )
        monitor.log(step=3)
    assert [step.step for record in exporter.records for step in record.steps] == [0, 1, 2, 3]
    assert [step.step for step in monitor.steps] == [0, 1, 2, 3]


@pytest.mark.parametrize("interval", [0, -1, float("nan"), float("inf"), True, "1", None, 0.001, 100_000])
def test_an_interval_that_cannot_be_used_is_refused(interval: object) -> None:
    """Where the caller sees it."""
    with pytest.raises(InvalidOptionError, match=r"interval is .*: it must be a number of seconds from 0\.01 to 86400"):
        Monitor(interval)  # type: ignore[arg-type]


def test_other_options_that_cannot_be_used_are_refused_where_the_caller_sees_it() -> None:
    """Not by a line in a log, later."""
    with pytest.raises(UnknownNameError, match="nvidia"):
        Monitor(backends=["nvidai"])
    with pytest.raises(InvalidOptionError, match="labels is 'team=a'"):
        Monitor(labels="team=a")  # type: ignore[arg-type]
    with pytest.raises(InvalidOptionError, match="history is"):
        Monitor(history=-5)
    with pytest.raises(InvalidOptionError, match="timeout"):
        Monitor(timeout=-1.0)


def test_history_by_age_follows_the_monitors_clock() -> None:
    """Ten seconds at one a second."""
    with Monitor(1.0, backends=[gpus(1)], clock=FakeClock(), history=timedelta(seconds=10)) as monitor:
        ticks(monitor, 100)
    times = monitor.history.times
    assert 9.0 < times[-1] - times[0] <= 10.0
    assert 10 <= len(times) <= 12


def test_a_tenth_of_a_second_is_kept() -> None:
    """At 10 Hz a real clock gives ten readings a second: those that were missed are counted."""
    with Monitor(0.1, backends=[gpus(8)], history=1000) as monitor:
        ticks(monitor, 16)
    times = monitor.history.times[:-1]
    due = round((times[-1] - times[0]) / 0.1)
    assert abs(len(times) - 1 + monitor.status.missed_ticks - due) <= 1
