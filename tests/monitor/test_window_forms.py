"""The forms in which windows are written, what is refused, and what waits for what."""

from __future__ import annotations

import asyncio
import gc
import textwrap
import time
from collections.abc import AsyncGenerator, Generator

import pytest

from accelmetrics.monitor import window as module
from accelmetrics.monitor.monitor import Monitor
from accelmetrics.monitor.window import alive
from accelmetrics.schemas.errors import InvalidOptionError
from accelmetrics.testing import FakeBackend
from tests.monitor.test_monitor_exit import PREFACE
from tests.monitor.watching import HeldClock, gpus, program, returned
from tests.sampling.conftest import until
from tests.support.waiting import HANG


def test_a_decorated_generator_is_measured_until_it_is_exhausted() -> None:
    """With what goes in and comes out of it as without a window.

    The clock goes on between readings only: time that passes on it while one is taken is that reading's, and one that takes seconds has
    those that windows ask for wait.
    """
    clock = HeldClock()
    with Monitor(3600, backends=[gpus(1)], clock=clock) as monitor:
        windows = monitor._run.windows
        until(lambda: bool(windows.ring.newest(1)) and clock.resting)
        first = windows.ring.newest(1)

        @monitor.window("batches")
        def batches(count: int) -> Generator[int, str, str]:
            answer = ""
            until(lambda: windows.ring.newest(1) != first and clock.resting)
            for number in range(count):
                clock.advance(2.0)
                answer += yield number
            return answer

        running = batches(3)
        found = [next(running), running.send("a"), running.send("b")]
        with pytest.raises(StopIteration, match="abc"):
            running.send("c")
        assert found == [0, 1, 2]
        window = monitor.windows[-1]
        assert window.name == "batches"
        assert window.ended
        assert 6.0 <= window.duration < 7.0
        assert window.summary["gpu.0.powerWatts"].count >= 1


def test_a_generator_that_is_left_ends_its_window() -> None:
    """As ``with`` does for what is inside."""
    with Monitor(3600, backends=[gpus(1)]) as monitor:

        @monitor.window("left")
        def endless() -> Generator[int, None, None]:
            while True:
                yield 1

        running = endless()
        next(running)
        running.close()
        assert [window.name for window in monitor.windows] == ["left"]


def test_an_object_with_a_coroutine_for_its_call_is_awaited() -> None:
    """It lasts as long as what is awaited."""

    clock = HeldClock()

    class Step:
        async def __call__(self) -> int:
            await asyncio.sleep(0)
            clock.advance(3.0)
            return 7

    with Monitor(3600, backends=[gpus(1)], clock=clock) as monitor:
        step = Step()
        step.__dict__["__name__"] = "step"
        assert asyncio.run(monitor.window("step")(step)()) == 7
        assert monitor.windows[-1].duration >= 3.0


def test_what_cannot_be_decorated_is_refused_at_once() -> None:
    """And the message says what to write instead."""
    monitor = Monitor(3600, backends=[gpus(1)])

    async def stream() -> AsyncGenerator[int, None]:
        yield 1

    with pytest.raises(InvalidOptionError, match=r"stream.* cannot be decorated: write `with monitor\.window\('s'\):` inside it"):
        monitor.window("s")(stream)
    with pytest.raises(InvalidOptionError, match=r"cannot be decorated"):
        monitor.window("s")(5)  # type: ignore[arg-type]
    with pytest.raises(InvalidOptionError, match=r"write a decorator as @monitor\.window\('name'\)"):

        @monitor.window  # type: ignore[arg-type]
        def step() -> None: ...


@pytest.mark.parametrize("seconds", [None, "5", float("nan"), True])
def test_a_time_out_that_is_no_number_is_refused_before_anything_is_done(seconds: object) -> None:
    """The monitor goes on."""
    with Monitor(0.02, backends=[gpus(1)]) as monitor:
        for call in (monitor.stop, monitor.flush):
            with pytest.raises(InvalidOptionError, match=r"timeout is .*: it must be a number of seconds"):
                call(seconds)  # type: ignore[arg-type]
        assert monitor.running


@pytest.mark.parametrize("seconds", [float("inf"), 1e300, 10**30])
def test_a_time_out_may_be_as_long_as_one_likes(seconds: float) -> None:
    """Longer than the system's clocks can say."""
    monitor = Monitor(0.02, backends=[gpus(1)]).start()
    until(lambda: monitor.latest is not None)
    assert monitor.flush(seconds)
    monitor.stop(seconds)
    assert not monitor.running


def test_only_what_can_be_called_can_subscribe() -> None:
    """Said at once, and not in the log later."""
    with pytest.raises(InvalidOptionError, match="None is not callable"):
        Monitor(3600, backends=[gpus(1)]).subscribe(None)  # type: ignore[arg-type]


def test_a_label_of_none_is_no_label() -> None:
    """As where an environment variable is not set."""
    labels = Monitor(3600, backends=[gpus(1)], labels={"team": None, "job": "5"}).labels  # type: ignore[dict-item]
    assert (labels.get("team"), labels["job"]) == (None, "5")


def test_a_metric_that_was_absent_has_no_time_above_anything() -> None:
    """None, and no error: the device may have been lost. An unknown name is an error."""
    with Monitor(3600, backends=[gpus(1)]) as monitor:
        with monitor.window("w") as window:
            until(lambda: monitor.latest is not None)
        assert window.seconds_above("gpu.0.fanSpeed", 5) is None
        assert window.seconds_above("gpu.0.powerWatts", 1e9) == 0.0


def test_a_window_that_was_dropped_is_measured_no_further() -> None:
    """Ctrl-C may come in the middle of its beginning: what cannot be ended is not paid for for ever."""
    with Monitor(3600, backends=[gpus(1)]) as monitor:
        for _ in range(100):
            monitor.window("lost").begin()
        kept = monitor.window("kept").begin()
        gc.collect()
        assert alive(monitor._run.windows._open) == [kept]
        kept.end()


def test_where_no_reading_comes_results_are_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not at each access, nor by each window, until there are readings again."""
    backend = FakeBackend(devices=1)
    backend.device(0).set(powerWatts=100.0)
    backend.opening.hang()
    with Monitor(0.05, backends=[backend], timeout=60.0) as monitor:
        for patience in (0.1, 10 * HANG, 10 * HANG):
            monkeypatch.setattr(module, "PATIENCE", patience)
            with monitor.window("w") as window:
                pass
            assert not returned(lambda: window.summary)
            assert not returned(lambda: window.energy_joules)
        backend.opening.release()
        until(lambda: monitor.latest is not None)
        with monitor.window("w") as window:
            pass
        assert window.summary["gpu.0.powerWatts"].count >= 1


def test_where_readings_fail_no_window_waits_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The monitor knows that none will come."""
    monkeypatch.setattr(module, "PATIENCE", 10 * HANG)
    with Monitor(0.05, backends=[gpus(1)], gpus=[7]) as monitor:
        until(lambda: monitor.error != "")
        for _ in range(3):
            with monitor.window("w") as window:
                pass
            assert not returned(lambda: window.summary)


def test_thousands_of_windows_that_wait_for_a_reading_cost_what_a_few_do() -> None:
    """A device that hangs keeps their readings back; beginning and ending one stays quick."""
    text = """
        from tests.monitor.watching import gpus
        backend = gpus(1)
        with Monitor(0.05, backends=[backend], timeout=60.0) as monitor:
            ticks(monitor, 1)
            backend.device(0).hang()
            spent, kept = [], []
            for _ in range(8_000):
                began = time.thread_time()
                with monitor.window("w") as window:
                    pass
                spent.append(time.thread_time() - began)
                kept.append(window)
            backend.device(0).release()
        print(sum(spent[-1000:]) < 4 * sum(spent[:1000]) + 0.1, sum(spent[-1000:]) / 1000)
    """
    _, status, output, errors = program(PREFACE + textwrap.dedent(text))
    assert (status, output.split()[0], errors) == (0, "True", ""), output


def test_nothing_is_known_of_the_time_in_which_a_driver_opened() -> None:
    """The first reading counts from when the device was read, not from when it was asked for."""
    backend = gpus(2, powerWatts=100.0)
    backend.device(0).set(energyJoules=lambda: 100.0 * time.monotonic())
    backend.opening.slow(0.5)
    with Monitor(0.3, backends=[backend]) as monitor, monitor.window("w") as window:
        until(lambda: monitor.status.ticks >= 3)
    for device in ("gpu.0", "gpu.1"):
        energy = window.energy_joules[device]
        assert energy.seconds <= window.duration - 0.45
        assert energy.joules == pytest.approx(100.0 * energy.seconds, abs=20.0), "opening would be 50 J more"
