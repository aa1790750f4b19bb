"""The ticker makes its calls itself: what hangs in one of them costs what it costs elsewhere, and a thread that stood by goes on."""

from __future__ import annotations

import textwrap
import threading
from collections.abc import Callable, Generator

import pytest

from accelmetrics import DriverGoneError, Reason, Sampler, Snapshot
from accelmetrics.monitor.monitor import Monitor
from accelmetrics.monitor.ticker import Flag
from accelmetrics.sampling import reader, sampler as module
from accelmetrics.sampling.engine import LOOKED_AT
from accelmetrics.sampling.reader import FIRST_PATIENCE
from accelmetrics.sampling.sampler import OwnReadings, own_readings
from accelmetrics.sampling.workers import MAX_FRUITLESS, WorkerPool
from accelmetrics.schemas.identity import DeviceProcess
from accelmetrics.testing import FakeBackend
from accelmetrics.testing.fake import FakeClock
from tests.monitor.test_monitor_exit import PREFACE, interrupt, run
from tests.monitor.watching import gpus, no_threads, program, returned, threads, ticks
from tests.sampling.conftest import until
from tests.sampling.test_fork_and_exit import in_child, needs_fork
from tests.support.waiting import HANG

INTERVAL, TIMEOUT = 0.02, 0.5
MONITOR, STANDBY = "accelmetrics-monitor", "accelmetrics-standby"


@pytest.fixture(autouse=True)
def _nothing_stays() -> Generator[None, None, None]:
    yield
    no_threads("accelmetrics-")


def reading_threads(backend: FakeBackend, number: int = 0) -> list[str]:
    """Have a device note the names of the threads that read it, in order."""
    found: list[str] = []

    def value() -> float:
        found.append(threading.current_thread().name)
        return 1.0

    backend.device(number).set(gpu=value)
    return found


def here(found: list[str]) -> None:
    """Wait until the ticker makes the calls itself."""
    until(lambda: bool(found) and found[-1] == MONITOR)


def metrics(monitor: Monitor) -> set[str]:
    """The keys of the latest reading."""
    return set() if monitor.latest is None else set(monitor.latest.metrics)


def test_a_warm_tick_wakes_no_other_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a worker nor the thread that stands by, however many ticks there are."""
    submitted, waits = list[object](), list[float | None]()
    submit, wait = WorkerPool.submit, Flag.wait

    def counted(pool: WorkerPool, *args: object, **options: bool) -> bool:
        submitted.append(pool)
        return submit(pool, *args, **options)  # type: ignore[arg-type]

    def waited(flag: Flag, seconds: float | None = None) -> bool:
        if threading.current_thread().name == STANDBY:
            waits.append(seconds)
        return wait(flag, seconds)

    monkeypatch.setattr(reader, "SLOW_READING", HANG)  # however busy the machine is
    monkeypatch.setattr(WorkerPool, "submit", counted)
    monkeypatch.setattr(Flag, "wait", waited)
    backend, other = gpus(2), FakeBackend("other", kind=None)
    other.machine.set(**{"cpu": 5.0})
    found = reading_threads(backend, 1)
    with Monitor(0.1, backends=[backend, other], clock=FakeClock(), timeout=HANG) as monitor:
        here(found)
        before = (len(submitted), len(waits), len(found), monitor.status.ticks)
        ticks(monitor, before[3] + 500)
        assert (len(submitted), len(waits)) == before[:2]
        assert set(found[before[2] :]) == {MONITOR}
        assert threads() == ["accelmetrics-fake-1", MONITOR, "accelmetrics-other-1", STANDBY]
        assert metrics(monitor) == {"gpu.0.powerWatts", "gpu.0.gpu", "gpu.1.powerWatts", "gpu.1.gpu", "cpu"}


def test_a_stuck_call_is_found_in_time() -> None:
    """Patience with it begins when it is looked at, and ends before the deadline."""
    assert max(module.STUCK, module.LOOK) <= LOOKED_AT
    assert LOOKED_AT + FIRST_PATIENCE < 1.0


def test_one_hung_device_costs_only_itself_and_one_thread() -> None:
    """The others go on at the same pace, the stuck call is not repeated, and it comes back."""
    backend = gpus(3)
    found = reading_threads(backend)
    with Monitor(INTERVAL, backends=[backend], timeout=TIMEOUT) as monitor:
        here(found)
        whole = metrics(monitor)
        backend.device(1).hang()
        until(lambda: "gpu.1.powerWatts" not in metrics(monitor))
        assert monitor.latest is not None
        assert metrics(monitor) == whole - {"gpu.1.powerWatts", "gpu.1.gpu"}
        assert monitor.latest.unavailable["gpu.1.powerWatts"].reason == Reason.TIMED_OUT
        assert monitor.latest.backends[0].status == "degraded"
        reads, before = backend.device(1).reads, monitor.status.ticks
        found.clear()
        here(found)  # it makes calls itself again
        ticks(monitor, before + 10)
        assert backend.device(1).reads == reads, "the stuck call was repeated"
        assert threads() == ["accelmetrics-fake-1", MONITOR, MONITOR, STANDBY]
        backend.device(1).release()
        until(lambda: metrics(monitor) == whole)
        until(lambda: threads()[-2:] == [MONITOR, STANDBY] and len(threads()) == 3)
        found.clear()
        here(found)


def test_one_device_after_another_hangs_and_comes_back() -> None:
    """Each costs its own thread, once."""
    backend = gpus(4)
    found = reading_threads(backend, 3)
    with Monitor(INTERVAL, backends=[backend], timeout=0.3) as monitor:
        here(found)
        whole = metrics(monitor)
        for number in range(3):
            backend.device(number).hang()
            until(lambda number=number: f"gpu.{number}.powerWatts" not in metrics(monitor))  # type: ignore[misc]
        until(lambda: metrics(monitor) == {"gpu.3.powerWatts", "gpu.3.gpu"})
        assert len(threads()) <= 6
        for number in range(3):
            backend.device(number).release()
        until(lambda: metrics(monitor) == whole)
        until(lambda: len(threads()) == 3)


def test_a_driver_that_hangs_as_a_whole_costs_a_few_threads() -> None:
    """Another source's values go on; it is read again when it answers."""
    backend, other = gpus(16), FakeBackend("other", kind=None)
    other.machine.set(**{"cpu": 5.0})
    found = reading_threads(backend)
    with Monitor(INTERVAL, backends=[backend, other], timeout=TIMEOUT) as monitor:
        here(found)
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


def test_a_call_that_returns_late_is_part_of_its_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reading is completed elsewhere, and nothing has timed out."""
    monkeypatch.setattr(module, "STUCK", 0.001)
    monkeypatch.setattr(module, "LOOK", 0.002)
    backend = gpus(3)
    found = reading_threads(backend)
    with Monitor(INTERVAL, backends=[backend], timeout=HANG) as monitor:
        here(found)
        whole = metrics(monitor)
        reads = backend.device(1).reads
        backend.device(1).hang()
        until(lambda: threads(MONITOR) == [MONITOR, MONITOR])
        before = monitor.status.ticks
        backend.device(1).release()
        ticks(monitor, before + 1)
        assert metrics(monitor) == whole
        assert monitor.status.timed_out == 0
        assert backend.device(1).reads > reads
        until(lambda: threads()[-2:] == [MONITOR, STANDBY] and len(threads()) == 3)


def test_a_stop_beside_a_hung_call_returns_and_leaves_nothing() -> None:
    """Once the call has returned."""
    backend = gpus(1)
    found = reading_threads(backend)
    monitor = Monitor(INTERVAL, backends=[backend], timeout=HANG).start()
    here(found)
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
    found = reading_threads(backend)
    monitor = Monitor(INTERVAL, backends=[backend], timeout=TIMEOUT).start()
    here(found)
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


def test_a_sampler_with_less_patience_takes_no_turn_from_the_ticker() -> None:
    """It has the rest read by a worker; the ticker's call is waited for by the ticker."""
    backend = gpus(2)
    found = reading_threads(backend)
    with Monitor(INTERVAL, backends=[backend], timeout=HANG) as monitor, Sampler([backend], timeout=0.1) as sampler:
        sampler.sample()
        here(found)
        reads = backend.device(1).reads
        backend.device(1).hang()
        until(lambda: backend.device(1).reads > reads)
        until(lambda: set(sampler.sample().metrics) == {"gpu.0.powerWatts", "gpu.0.gpu"})
        backend.device(1).release()
        found.clear()
        here(found)
        ticks(monitor, monitor.status.ticks + 5)
        assert monitor.status.timed_out == 0
        pool = monitor._run._ticker._standby.readings.caller.readers[0].source.pool  # type: ignore[union-attr]
        until(lambda: not pool.stuck)


def test_a_call_that_came_back_to_a_monitor_that_has_ended_counts_as_stuck_no_more() -> None:
    """Though another sampler gave it up meanwhile, and no reading follows."""
    backend = gpus(2)
    with Sampler([backend], timeout=HANG) as patient, Sampler([backend], timeout=0.1) as sampler:
        patient.sample()
        readings = own_readings(patient)
        assert readings is not None
        readings.caller.looked_at = 0.0
        backend.device(1).hang()
        last = threading.Thread(target=readings.sample)
        last.start()
        until(lambda: set(sampler.sample().metrics) == {"gpu.0.powerWatts", "gpu.0.gpu"})
        pool = readings.caller.readers[0].source.pool
        until(lambda: sampler.sample() is not None and bool(pool.stuck))
        backend.device(1).release()
        returned(last.join)
        assert not pool.stuck


def test_a_driver_that_goes_away_is_opened_again() -> None:
    """What the ticker finds out in its own call is what a worker finds out."""
    backend, clock = gpus(2), FakeClock()
    found = reading_threads(backend)
    with Monitor(1.0, backends=[backend], clock=clock, timeout=HANG) as monitor:
        here(found)
        whole = metrics(monitor)
        backend.device(0).fail(DriverGoneError(Reason.DRIVER_UNAVAILABLE, "unloaded"))
        until(lambda: backend.closed >= 1)
        backend.device(0).fail(None)
        until(lambda: backend.opened >= 2 and metrics(monitor) == whole)
        found.clear()
        here(found)


def test_where_no_thread_is_to_be_had_that_stands_by_workers_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ticker is in no call that nothing looks at."""
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == STANDBY:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    backend = gpus(1)
    found = reading_threads(backend)
    with Monitor(INTERVAL, backends=[backend], timeout=TIMEOUT) as monitor:
        ticks(monitor, 5)
        assert set(found) == {"accelmetrics-fake-1"}
        backend.device(0).hang()
        until(lambda: metrics(monitor) == set())
        backend.device(0).release()


def test_exit_never_waits_for_a_call_that_hangs_in_the_ticker() -> None:
    """As it does for no worker's."""
    spent, status, _, errors = run("""
        monitor = Monitor(0.02, [Exporter()], backends=[gpus], timeout=30.0).start()
        while not any(thread.name == "accelmetrics-standby" for thread in threading.enumerate()):
            time.sleep(0.005)
        ticks(monitor, 10)
        reads = gpus.device(0).reads
        gpus.device(0).hang()
        while gpus.device(0).reads == reads:
            time.sleep(0.005)
        exiting = time.monotonic()
    """)
    assert status == 0
    assert spent < HANG
    assert "Traceback" not in errors


def test_ctrl_c_ends_a_program_beside_a_call_that_hangs_in_the_ticker() -> None:
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
def test_a_fork_beside_a_call_that_hangs_in_the_ticker_leaves_a_child_that_reads() -> None:
    """While nothing has been found out, and when another thread goes on."""
    backend = gpus(2)
    found = reading_threads(backend)
    with Monitor(INTERVAL, backends=[backend], timeout=TIMEOUT) as monitor:
        here(found)
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


def both(sampler: Sampler, readings: OwnReadings) -> tuple[Snapshot, Snapshot]:
    """A reading by workers, and one by this thread."""
    plain, own = sampler.sample(), readings.sample()
    assert own is not None
    return plain, own


def lost(backend: FakeBackend) -> None:
    backend.device(0).lose()


def odd(backend: FakeBackend) -> None:
    backend.device(0).set(gpu=float("nan")).miss("powerWatts", Reason.NO_PERMISSION, "root only")
    backend.device(1).run(DeviceProcess(77, "compute")).set(temp=41)


def machine(backend: FakeBackend) -> None:
    backend.machine.set(**{"cpu": 3.0})


def unlisted(backend: FakeBackend) -> None:
    backend.device(1).unlist(Reason.NO_PERMISSION, "no")


def gone(backend: FakeBackend) -> None:
    backend.device(2).fail(DriverGoneError(Reason.DRIVER_UNAVAILABLE, "unloaded"))


def broken(backend: FakeBackend) -> None:
    backend.device(1).fail(ZeroDivisionError("bug"))


@pytest.mark.parametrize("script", [lambda _: None, odd, lost, machine, unlisted, broken, gone])
def test_readings_of_the_ticker_equal_those_of_workers(script: Callable[[FakeBackend], object]) -> None:
    """Values, reasons, processes and how sources fared, whatever they answer."""
    clock, backend, paced = FakeClock(), gpus(3), FakeBackend("paced", devices=1, interval=0.5)
    paced.device(0).set(temp=50)
    backend.machine.set(**{"disk": 1.0}) if script is machine else None
    with Sampler([backend, paced], clock=clock, timeout=HANG) as sampler:
        until(lambda: len(sampler.sample().metrics) >= 7)
        readings = own_readings(sampler)
        assert readings is not None
        readings.caller.looked_at = 0.0
        script(backend)
        plain, own = both(sampler, readings)
        if script is gone:
            plain, own = own, both(sampler, readings)[1]
        assert own.metrics == plain.metrics
        assert own.unavailable == plain.unavailable
        assert (own.processes, own.unlisted, own.identities) == (plain.processes, plain.unlisted, plain.identities)
        for mine, theirs in zip(own.backends, plain.backends, strict=True):
            assert mine._replace(duration_seconds=None, sequence=0) == theirs._replace(duration_seconds=None, sequence=0)
        assert own.time_ns == plain.time_ns
        counts = sampler.statistics
        assert counts.late == 0
