"""A monitor beside a driver that hangs: what hangs costs only itself, and the monitor goes on."""

from __future__ import annotations

import textwrap

import pytest

from accelmetrics import DriverGoneError, Reason
from accelmetrics.monitor.monitor import Monitor
from accelmetrics.sampling.threads import MAX_FRUITLESS
from accelmetrics.testing import FakeBackend
from accelmetrics.testing.fake import FakeClock
from tests.monitor.test_monitor_exit import PREFACE, interrupt
from tests.monitor.watching import gpus, no_threads, program, returned, threads, ticks
from tests.sampling.conftest import until
from tests.sampling.test_fork_and_exit import in_child, needs_fork
from tests.support.waiting import HANG

pytestmark = pytest.mark.usefixtures("nothing_stays")

INTERVAL, TIMEOUT = 0.02, 0.5
MONITOR = "accelmetrics-monitor"


def metrics(monitor: Monitor) -> set[str]:
    """The keys of the latest reading."""
    return set() if monitor.latest is None else set(monitor.latest.metrics)


def test_one_hung_device_costs_only_itself_and_one_thread() -> None:
    """The others go on at the same pace, the stuck call is not repeated, and it comes back."""
    backend = gpus(3)
    with Monitor(INTERVAL, backends=[backend], timeout=TIMEOUT) as monitor:
        ticks(monitor, monitor.status.ticks + 2)
        whole = metrics(monitor)
        backend.device(1).hang()
        until(lambda: "gpu.1.powerWatts" not in metrics(monitor))
        assert monitor.latest is not None
        assert metrics(monitor) == whole - {"gpu.1.powerWatts", "gpu.1.gpu"}
        assert monitor.latest.unavailable["gpu.1.powerWatts"].reason == Reason.TIMED_OUT
        assert monitor.latest.backends[0].status == "degraded"
        reads, before = backend.device(1).reads, monitor.status.ticks
        ticks(monitor, monitor.status.ticks + 2)
        ticks(monitor, before + 10)
        assert backend.device(1).reads == reads, "the stuck call was repeated"
        assert threads() == ["accelmetrics-fake-1", "accelmetrics-fake-2", MONITOR]
        backend.device(1).release()
        until(lambda: metrics(monitor) == whole)
        until(lambda: len(threads()) == 2)
        ticks(monitor, monitor.status.ticks + 2)


def test_a_driver_that_hangs_as_a_whole_costs_a_few_threads() -> None:
    """Another source's values go on; it is read again when it answers."""
    backend, other = gpus(16), FakeBackend("other", kind=None)
    other.machine.set(**{"cpu": 5.0})
    with Monitor(INTERVAL, backends=[backend, other], timeout=TIMEOUT) as monitor:
        ticks(monitor, monitor.status.ticks + 2)
        whole = metrics(monitor)
        for device in backend.all_devices():
            device.hang()
        until(lambda: metrics(monitor) == {"cpu"})
        assert monitor.latest is not None
        assert [status.status for status in monitor.latest.backends] == ["timed_out", "ok"]
        ticks(monitor, monitor.status.ticks + 10)
        assert len(threads("accelmetrics-fake")) + len(threads(MONITOR)) <= MAX_FRUITLESS + 3
        for device in backend.all_devices():
            device.release()
        until(lambda: metrics(monitor) == whole)


def test_a_stop_beside_a_hung_call_returns_and_leaves_nothing() -> None:
    """Once the call has returned."""
    backend = gpus(1)
    monitor = Monitor(INTERVAL, backends=[backend], timeout=HANG).start()
    ticks(monitor, 2)
    reads = backend.device(0).reads
    backend.device(0).hang()
    until(lambda: backend.device(0).reads > reads)
    returned(lambda: monitor.stop(0.2))
    assert not monitor.running
    backend.device(0).release()
    no_threads("accelmetrics-")
    assert backend.closed == 1


def test_a_monitor_that_was_stopped_beside_a_hung_call_may_be_started_again() -> None:
    """The call is not repeated; the others are made."""
    backend = gpus(2)
    monitor = Monitor(INTERVAL, backends=[backend], timeout=TIMEOUT).start()
    ticks(monitor, 2)
    backend.device(1).hang()
    until(lambda: "gpu.1.powerWatts" not in metrics(monitor))
    reads = backend.device(1).reads
    returned(monitor.stop)
    with monitor:
        ticks(monitor, 5)
        assert metrics(monitor) == {"gpu.0.powerWatts", "gpu.0.gpu"}
        assert backend.device(1).reads == reads
        backend.device(1).release()
        until(lambda: "gpu.1.powerWatts" in metrics(monitor))


def test_a_driver_that_goes_away_is_opened_again() -> None:
    """What the ticker finds out in its own call is what a worker finds out."""
    backend, clock = gpus(2), FakeClock()
    with Monitor(1.0, backends=[backend], clock=clock, timeout=HANG) as monitor:
        ticks(monitor, monitor.status.ticks + 2)
        whole = metrics(monitor)
        backend.device(0).fail(DriverGoneError(Reason.DRIVER_UNAVAILABLE, "unloaded"))
        until(lambda: backend.closed >= 1)
        backend.device(0).fail(None)
        until(lambda: backend.opened >= 2 and metrics(monitor) == whole)
        ticks(monitor, monitor.status.ticks + 2)


def test_ctrl_c_ends_a_program_beside_a_call_that_hangs_in_a_reading() -> None:
    """At once, with what the exporters can be given."""
    text = """
        monitor = Monitor(0.02, [Exporter()], backends=[gpus], timeout=30.0).start()
        ticks(monitor, 10)
        gpus.device(0).hang()
        say("ready")
        for_ever()
    """
    status, output, errors = interrupt(text, "ready")
    assert status != 0
    assert output.endswith("flush\nclose\n")
    assert "KeyboardInterrupt" in errors


@needs_fork
def test_a_fork_beside_a_call_that_hangs_in_a_reading_leaves_a_child_that_reads() -> None:
    """While nothing has been found out, and when another thread goes on."""
    backend = gpus(2)
    with Monitor(INTERVAL, backends=[backend], timeout=TIMEOUT) as monitor:
        ticks(monitor, monitor.status.ticks + 2)
        reads = backend.device(1).reads
        backend.device(1).hang()
        until(lambda: backend.device(1).reads > reads)

        def child() -> bool:
            backend.device(1).release()
            with monitor:
                until(lambda: metrics(monitor) == {"gpu.0.powerWatts", "gpu.0.gpu", "gpu.1.powerWatts", "gpu.1.gpu"})
            return True

        assert in_child(child) == 0
        until(lambda: "gpu.1.powerWatts" not in metrics(monitor))
        assert in_child(child) == 0
        backend.device(1).release()


def test_hangs_at_any_moment_leave_a_monitor_that_reads() -> None:
    """Hundreds of calls that return sooner or later than they are waited for, at a timeout that is as short."""
    text = """
        import random
        from tests.monitor.watching import gpus
        backend, chance = gpus(3), random.Random(11)
        with Monitor(0.01, backends=[backend], timeout=0.05) as monitor:
            ticks(monitor, 3)
            for _ in range(150):
                device = backend.device(chance.randrange(3))
                device.hang()
                time.sleep(chance.uniform(0.0, 0.06))
                device.release()
            while len(monitor.latest.metrics) < 6:
                time.sleep(0.01)
            before = monitor.status.ticks
            ticks(monitor, before + 20)
        while threading.active_count() > 1:
            time.sleep(0.01)
        print("whole")
    """
    _, status, output, errors = program(PREFACE + textwrap.dedent(text), 4 * HANG)
    assert (status, output) == (0, "whole\n")
    assert "Traceback" not in errors  # on a busy machine a reading may be late, which the log says
