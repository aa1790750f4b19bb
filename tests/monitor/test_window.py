"""Windows of a running monitor: side by side, nested, as decorators, with and without readings."""

from __future__ import annotations

import asyncio
import re
import threading
from pathlib import Path
from unittest.mock import Mock

import pytest

from accelmetrics import InvalidOptionError, UnknownNameError
from accelmetrics.monitor import window as module
from accelmetrics.monitor.monitor import Monitor
from accelmetrics.monitor.window import KEPT_WINDOWS, PENDING, Window
from accelmetrics.schemas.selection import MetricSelection
from accelmetrics.schemas.statistics import WindowAggregator
from accelmetrics.testing import FakeBackend
from accelmetrics.testing.fake import FakeClock
from tests.monitor.watching import HeldClock, Owner, Recorder, gpus, returned, row, ticks
from tests.sampling.conftest import until
from tests.sampling.test_fork_and_exit import in_child, needs_fork
from tests.simulators.amdgpu import Tree
from tests.simulators.amdgpu.machines import mi250
from tests.simulators.amdgpu.tables import table
from tests.support.waiting import HANG

pytestmark = pytest.mark.usefixtures("nothing_stays")

INTERVAL = 0.02


def go(monitor: Monitor, clock: FakeClock, seconds: int) -> None:
    """Let whole seconds pass on a held clock, each with its tick."""
    for _ in range(seconds):
        before = monitor.status.ticks
        clock.advance(1.0)
        ticks(monitor, before + 1)


def counting(clock: FakeClock, watts: float) -> FakeBackend:
    """A GPU with a counter of its own, beside one that gives power alone."""
    backend = gpus(2, powerWatts=watts)
    backend.device(0).set(energyJoules=lambda: clock.monotonic() * watts)
    return backend


def test_windows_nest_and_overlap_and_each_has_its_own_readings() -> None:
    """A second window on the same monitor records as the first does."""
    clock = HeldClock()
    backend = gpus(1)
    with Monitor(1.0, backends=[backend], clock=clock) as monitor:
        ticks(monitor, 1)
        with monitor.window("outer") as outer:
            go(monitor, clock, 2)
            crossing = monitor.window("crossing").begin()
            with monitor.window("inner") as inner:
                go(monitor, clock, 3)
            go(monitor, clock, 1)
        go(monitor, clock, 4)
        crossing.end()
        for window, seconds in ((outer, 6), (inner, 3), (crossing, 8)):
            assert window.duration == pytest.approx(seconds, abs=0.2)
            assert window.summary["gpu.0.powerWatts"].seconds == pytest.approx(window.duration)
            assert window.energy_joules["gpu.0"].joules == pytest.approx(100 * window.duration)
        assert [window.name for window in monitor.windows] == ["inner", "outer", "crossing"]


def test_energy_is_exact_to_the_moment_and_says_where_it_comes_from() -> None:
    """Between two ticks, by the counter and by the power."""
    clock = HeldClock()
    with Monitor(60.0, backends=[counting(clock, 250.0)], clock=clock) as monitor:
        ticks(monitor, 1)
        until(lambda: clock.resting)  # a clock that went on within a reading would make that a long one, and the next one late
        clock.advance(7.3)
        waits = clock.waits
        with monitor.window() as window:
            until(lambda: clock.waits > waits and clock.resting)
            clock.advance(11.4)
        counter, integrated = window.energy_joules["gpu.0"], window.energy_joules["gpu.1"]
        assert (counter.source, integrated.source) == ("counter", "integrated")
        assert counter.joules == pytest.approx(250.0 * window.duration)
        assert integrated.joules == pytest.approx(250.0 * window.duration)
        assert counter.seconds == integrated.seconds == pytest.approx(window.duration)
        assert window.duration == pytest.approx(11.4, abs=0.05)


def test_the_counter_of_a_card_that_stands_still_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an MI100's was seen to; once that is known, windows and rows of a second know it too, and a new driver is believed again."""
    tree = Tree(tmp_path)
    card, _ = mi250(tree)
    monkeypatch.setenv("ACCELMETRICS_SYSROOT", str(tree.root))
    clock = HeldClock()
    with Monitor(1.0, backends=["amd"], clock=clock) as monitor:
        rows = monitor.tumbling_window()
        rows.begin()
        ticks(monitor, 1)
        with monitor.window() as window:
            go(monitor, clock, 10)
        found = window.energy_joules["gpu.0"]
        assert found.joules == pytest.approx(429.0 * window.duration, rel=1e-3)
        assert found.source == "integrated"
        assert re.fullmatch(r"the energy counter rose by 0 J in 1\d s, in which the power readings give 4[23]\d\d(\.\d+)? J", found.reason)
        assert rows.take(MetricSelection("core")).energy_joules()["gpu.0"].source == "integrated"
        for driver in ("integrated", "counter"):
            with monitor.window() as short:
                go(monitor, clock, 1)
            taken = rows.take(MetricSelection("core")).energy_joules()["gpu.0"]
            assert (short.energy_joules["gpu.0"].source, taken.source) == (driver, driver)
            if driver == "integrated":
                assert taken.joules == pytest.approx(429.0, rel=1e-3)
                card.write({"gpu_metrics": table(1, 3, energy_accumulator=65536, temperature_hbm=[51, 54, 52, 50])})
                go(monitor, clock, 1)
                rows.take(MetricSelection("core"))


def test_devices_together_and_time_above_a_threshold() -> None:
    """Total power, the hottest, and for how long it was too hot."""
    clock = HeldClock()
    backend = gpus(2, powerWatts=100.0, temp=70, gpu=0)
    with Monitor(1.0, backends=[backend], clock=clock) as monitor:
        ticks(monitor, 1)
        with monitor.window() as window:
            go(monitor, clock, 2)
            backend.device(1).set(temp=85, powerWatts=300.0, gpu=90)
            go(monitor, clock, 3)
        total = window.devices["powerWatts"].total
        assert total is not None
        assert (total.min, total.max) == (200.0, 400.0)
        assert window.devices["gpu"].mean.min == 0.0
        assert window.devices["gpu"].max.p50 == 90.0
        assert window.seconds_above("gpu.1.temp", 80) == pytest.approx(2.0, abs=0.1)  # first read a second after
        assert window.seconds_above("gpu.1.temp", 85) == 0.0
        with pytest.raises(UnknownNameError, match="temp"):
            window.seconds_above("gpu.1.tmep", 80)


def test_a_device_that_is_lost_has_what_was_read_of_it() -> None:
    """Its statistics end, they do not fall to zero; the others' go on; when it comes back, the gap is not filled."""
    clock = HeldClock()
    backend = gpus(2, powerWatts=100.0, gpu=50)
    with Monitor(1.0, backends=[backend], clock=clock) as monitor:
        ticks(monitor, 1)
        with monitor.window() as window:
            go(monitor, clock, 2)
            backend.device(1).lose()
            go(monitor, clock, 3)
            backend.device(1).fail(None)
            go(monitor, clock, 2)
        lost, other = window.summary["gpu.1.gpu"], window.summary["gpu.0.gpu"]
        assert (lost.min, lost.mean) == (50.0, 50.0)
        assert other.count - lost.count == 3
        assert other.seconds - lost.seconds == pytest.approx(3.0)
        assert window.energy_joules["gpu.1"].seconds == pytest.approx(window.energy_joules["gpu.0"].seconds - 4.0)
        total = window.devices["powerWatts"].total
        assert total is not None
        assert total.min == 200.0


def test_short_windows_have_readings_of_their_own() -> None:
    """Though the monitor's interval is an hour."""
    with Monitor(3600, backends=[gpus(1)]) as monitor:
        ticks(monitor, 1)
        for _ in range(5):
            with monitor.window("step") as window:
                until(lambda: window.summary)
            found = window.summary["gpu.0.powerWatts"]
            assert 1 <= found.count <= 3
            assert found.seconds == pytest.approx(window.duration)
            assert window.energy_joules["gpu.0"].joules == pytest.approx(100 * window.duration)
    assert monitor.status.ticks == 2


def test_results_are_there_when_the_closing_reading_is() -> None:
    """Asking waits for it; while the window is open, results tell what has been so far."""
    backend = gpus(1)
    with Monitor(3600, backends=[backend]) as monitor:
        ticks(monitor, 1)
        window = monitor.window("w").begin()
        until(lambda: "gpu.0.powerWatts" in window.summary)
        assert window.summary["gpu.0.powerWatts"].count == 1
        backend.device(0).set(powerWatts=500.0)
        window.end()
        found = window.summary["gpu.0.powerWatts"]
        assert (found.count, found.last) == (1, 100.0)
        assert found.seconds == pytest.approx(window.duration)


def test_a_hung_driver_does_not_keep_results_back_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was read is told after a limited wait."""
    monkeypatch.setattr(module, "PATIENCE", 0.1)
    clock = HeldClock()
    with Monitor(1.0, backends=[gpus(1)], clock=clock) as monitor:
        ticks(monitor, 1)
        window = monitor.window("w").begin()
        go(monitor, clock, 3)
        monitor._run.request = lambda: True  # type: ignore[method-assign]
        window.end()
        assert not window.closed.is_set()
        assert returned(lambda: window.summary)["gpu.0.powerWatts"].count >= 3


def test_a_window_that_ended_before_any_reading_is_closed_by_the_first() -> None:
    """A driver that opens slowly; its one reading stands for no time that is known."""
    backend = gpus(1)
    backend.opening.slow(0.2)
    with Monitor(3600, backends=[backend]) as monitor:
        with monitor.window("early") as window:
            pass
        assert window.summary["gpu.0.powerWatts"].count == 1
        assert window.summary["gpu.0.powerWatts"].seconds == 0.0
        assert window.energy_joules == {}
        assert window.devices["powerWatts"].mean.mean == 100.0


def test_a_window_without_any_reading_is_empty_and_waits_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The monitor never ran, or was stopped or paused all the time."""
    monkeypatch.setattr(module, "PATIENCE", 10 * HANG)
    monitor = Monitor(INTERVAL, backends=[gpus(1)])
    windows = []
    with monitor.window("before") as window:
        windows.append(window)
    with monitor:
        ticks(monitor, 1)
        monitor.pause()
        with monitor.window("paused") as window:
            windows.append(window)
    with monitor.window("after") as window:
        windows.append(window)
    for window in windows:
        assert returned(lambda: (window.summary, window.energy_joules, window.devices)) == ({}, {}, {})  # noqa: B023 - called at once
        assert window.duration >= 0
    assert [window.name for window in monitor.windows] == ["before", "paused", "after"]


def test_pausing_settles_windows_that_have_just_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would wait for a reading that does not come."""
    monkeypatch.setattr(module, "PATIENCE", 10 * HANG)
    clock = HeldClock()
    with Monitor(1.0, backends=[gpus(1)], clock=clock) as monitor:
        ticks(monitor, 1)
        request, monitor._run.request = monitor._run.request, lambda: True  # type: ignore[method-assign]
        with monitor.window("w") as window:
            go(monitor, clock, 2)
        assert not window.closed.is_set()
        monitor.pause()
        assert returned(lambda: window.summary)["gpu.0.powerWatts"].count == 2
        monitor._run.request = request  # type: ignore[method-assign]


def test_a_window_that_outlives_the_stop_has_what_was_read_and_goes_on_after_a_start() -> None:
    """The time between is in none of its statistics; its duration is that of the program."""
    clock = HeldClock()
    monitor = Monitor(1.0, backends=[gpus(1)], clock=clock)
    with monitor:
        ticks(monitor, 1)
        window = monitor.window("long").begin()
        go(monitor, clock, 2)
    first = window.summary["gpu.0.powerWatts"]
    assert first.seconds == pytest.approx(2.0, abs=0.1)
    clock.advance(1000.0)
    with monitor:
        ticks(monitor, 1)
        go(monitor, clock, 3)
        window.end()
        assert window.summary["gpu.0.powerWatts"].seconds == pytest.approx(5.0, abs=0.2)
        assert window.energy_joules["gpu.0"].joules == pytest.approx(500.0, abs=20)
    assert window.duration > 1000


def test_a_window_begun_before_the_start_is_given_what_comes_after_it() -> None:
    """As one that is open all the time."""
    monitor = Monitor(INTERVAL, backends=[gpus(1)])
    with monitor.window("all") as window:
        with monitor:
            ticks(monitor, 3)
        until(lambda: not monitor.running)
    assert window.summary["gpu.0.powerWatts"].count == monitor.status.ticks


def test_a_window_begins_once_and_ends_once() -> None:
    """Beginning it again is an error that says what to do; ending it again, or without a beginning, changes nothing."""
    with Monitor(INTERVAL, backends=[gpus(1)]) as monitor:
        window = monitor.window("epoch")
        assert window.end() is window
        assert (window.duration, window.ended, window.summary) == (0.0, False, {})
        with window:
            pass
        duration = window.duration
        assert window.end().duration == duration
        with pytest.raises(InvalidOptionError, match=r"the window 'epoch' has already begun: create a new one with monitor\.window"):
            window.begin()
        assert len(monitor.windows) == 1


def test_an_error_within_a_window_ends_it_and_goes_on() -> None:
    """It is the program's."""
    with Monitor(INTERVAL, backends=[gpus(1)]) as monitor:
        with pytest.raises(ZeroDivisionError), monitor.window("w") as window:
            raise ZeroDivisionError
        assert window.ended


def test_as_a_decorator_it_is_a_new_window_at_every_call() -> None:
    """Also when calls nest or run on several threads; name, arguments, result and errors are the function's."""
    with Monitor(INTERVAL, backends=[gpus(1)]) as monitor:
        ticks(monitor, 1)

        @monitor.window("step")
        def step(number: int, *, twice: bool = False) -> int:
            """Docs."""
            if number < 0:
                raise ValueError(number)
            return number and step(number - 1) + (2 if twice else 1)

        assert step(3, twice=True) == 4
        assert (step.__name__, step.__doc__) == ("step", "Docs.")
        with pytest.raises(ValueError, match="-1"):
            step(-1)
        workers = [threading.Thread(target=step, args=(0,)) for _ in range(5)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert [window.name for window in monitor.windows] == ["step"] * 10
        assert all(window.ended for window in monitor.windows)
        assert monitor.windows[3].duration >= monitor.windows[0].duration


def test_a_decorated_coroutine_is_measured_until_it_has_been_awaited() -> None:
    """Not until the coroutine was made."""
    clock = HeldClock()
    with Monitor(3600, backends=[gpus(1)], clock=clock) as monitor:

        @monitor.window("fetch")
        async def fetch(number: int) -> int:
            await asyncio.sleep(0)
            clock.advance(5.0)
            await asyncio.sleep(0)
            return number

        assert asyncio.run(fetch(7)) == 7
        assert monitor.windows[0].duration >= 5.0


def test_only_the_last_windows_are_known() -> None:
    """A decorated function that is called a million times costs bounded memory."""
    with Monitor(INTERVAL, backends=[gpus(1)]) as monitor:
        for number in range(KEPT_WINDOWS + 20):
            with monitor.window(str(number)):
                pass
        assert [window.name for window in monitor.windows] == [str(number) for number in range(20, KEPT_WINDOWS + 20)]
        until(lambda: not monitor._run.windows._open)


def test_windows_on_many_threads_beside_a_quick_monitor() -> None:
    """Begin, end and look, all at once: each has readings, and none an error."""
    errors: list[BaseException] = []
    with Monitor(0.01, backends=[gpus(2)]) as monitor:
        ticks(monitor, 1)

        def work() -> None:
            try:
                for _ in range(10):
                    with monitor.window("w") as window:
                        assert window.summary is not None
                    found = window.summary["gpu.1.powerWatts"]
                    assert found.seconds <= window.duration + 1e-9
                    assert found.count >= 1
            except BaseException as error:  # noqa: BLE001 - whatever it is, it must not be
                errors.append(error)

        workers = [threading.Thread(target=work) for _ in range(6)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    assert errors == []


@needs_fork
def test_a_window_can_be_used_in_the_child_of_a_fork_that_found_it_locked() -> None:
    """Some other thread was just handing it a reading, and is not there to unlock it."""
    with Monitor(INTERVAL, backends=[gpus(1)]) as monitor:
        window = monitor.window("w").begin()
        until(lambda: bool(window.summary))
        with monitor._run.windows.lock:
            assert in_child(lambda: window.summary["gpu.0.powerWatts"].count >= 1 and window.end().ended) == 0
        window.end()


def test_reading_results_starts_no_thread_and_computes_them_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the caller's thread; those of an open window anew after the next reading."""
    with Monitor(3600, backends=[gpus(2)]) as monitor:
        ticks(monitor, 1)
        with monitor.window("w") as window:
            until(lambda: window.summary)
            monkeypatch.setattr(threading.Thread, "start", lambda _: pytest.fail("a thread was started"))
            assert window.summary["gpu.0.powerWatts"].mean == 100.0
            assert window.summary is window.summary
        assert window.summary["gpu.0.powerWatts"].seconds == pytest.approx(window.duration)
        assert window.summary is window.summary
        assert window.energy_joules is window.energy_joules
        assert window.devices is window.devices
        monkeypatch.undo()


def test_results_that_ctrl_c_interrupts_are_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reading counts once all the same."""
    owner = Owner()
    window = Window(owner, "w").begin()
    for number in range(PENDING + 10):
        owner.feed(row({"cpu": 1.0 + number % 2, "gpu.0.powerWatts": 100.0}, float(number)))
    owner.time = PENDING + 20.0
    for end in (False, True):
        if end:
            window.end()
            owner.feed(row({"cpu": 9.0, "gpu.0.powerWatts": 100.0}, PENDING + 30.0))
        for inner in ("_fold_energy", "_fold", "_columns_across", "summary"):
            with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
                patch.setattr(WindowAggregator, inner, Mock(side_effect=KeyboardInterrupt))
                _ = window.summary
        found = window.summary["cpu"]
        assert (found.count, found.max, found.seconds) == (PENDING + 10, 2.0, PENDING + (20.0 if end else 9.0))
        assert window.energy_joules["gpu.0"].joules == pytest.approx(100 * (PENDING + (20.0 if end else 9.0)))


def test_a_reading_that_began_before_the_window_is_not_the_windows() -> None:
    """It was being taken when the window began; it only tells where the time of the next one starts."""
    owner = Owner()
    owner.time = 10.0
    window = Window(owner, "w").begin()
    owner.feed(row({"cpu": 99.0}, 9.99, joined=False))
    owner.feed(row({"cpu": 10.0}, 11.0))
    owner.time = 12.0
    window.end()
    owner.feed(row({"cpu": 30.0}, 11.9))
    owner.feed(row({"cpu": 50.0}, 12.5))
    owner.feed(row({"cpu": 70.0}, 13.0))
    found = window.summary["cpu"]
    assert (found.count, found.max, found.seconds) == (2, 30.0, 2.0)
    assert found.mean == pytest.approx((10 * 1.9 + 30 * 0.1) / 2)


def test_a_window_keeps_few_rows_however_long_it_is() -> None:
    """It folds them into statistics."""
    owner = Owner()
    window = Window(owner, "w").begin()
    for number in range(10_000):
        owner.feed(row({"cpu": float(number % 7)}, number / 10))
        assert len(owner.ring.after(0)) <= PENDING + 1
    assert window.summary["cpu"].count == 10_000


def test_records_tell_windows_that_are_open_and_that_ended() -> None:
    """Each once as open and once as over, with its times on the wall clock; those without a name, and of rows, are not told."""
    clock, exporter = HeldClock(), Recorder()
    with Monitor(1.0, backends=[gpus(1)], clock=clock, exporters=[exporter]) as monitor:
        ticks(monitor, 1)
        start = monitor.latest.time_ns if monitor.latest else 0
        window = monitor.window("epoch-0").begin()
        unnamed = monitor.window().begin()
        go(monitor, clock, 2)
        window.end()
        with monitor.window("short"):
            pass
        unnamed.end()
        go(monitor, clock, 1)
    told = [span for record in exporter.records for span in record.windows]
    spans = [(span.name, span.begin_ns - start, span.end_ns and span.end_ns - start) for span in told]
    second = 10**9
    assert spans == [("epoch-0", 0, None), ("epoch-0", 0, 2 * second), ("short", 2 * second, 2 * second)]
