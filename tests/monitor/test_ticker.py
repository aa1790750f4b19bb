"""The pace of readings: an absolute schedule, readings on request between the ticks, and one thread for all monitors that want the same."""

from __future__ import annotations

import gc
import itertools
import threading
from collections.abc import Callable

import pytest

from accelmetrics import Sampler
from accelmetrics.monitor.run import REQUEST_PAUSE, REQUEST_SHARE, Run, Ticker, shared_ticker
from accelmetrics.schemas.snapshot import Snapshot
from accelmetrics.testing import FakeBackend
from accelmetrics.testing.fake import FakeClock
from tests.monitor.watching import HeldClock, gpus, no_threads, spending, threads
from tests.sampling.conftest import until
from tests.support.waiting import HANG

pytestmark = pytest.mark.usefixtures("nothing_stays")
THREAD = "accelmetrics-monitor"


class Ear(Run):
    """Listens and notes."""

    def __init__(self) -> None:
        self.paused = False
        self.taken: list[tuple[float, bool]] = []
        self.missed = 0
        self.failures: list[str] = []
        self.ended = threading.Event()
        self.on_take: Callable[[], object] = bool

    def take(self, snapshot: Snapshot, at: float, tick: bool, taken: object = None) -> None:
        self.taken.append((at, tick))
        self.on_take()

    def miss(self, ticks: int) -> None:
        self.missed += ticks

    def fail(self, words: str) -> None:
        self.failures.append(words)

    def end(self) -> None:
        self.ended.set()

    @property
    def ticks(self) -> list[float]:
        return [at for at, tick in self.taken if tick]


def ticker(backend: FakeBackend, interval: float, clock: FakeClock) -> Ticker:
    return Ticker(lambda: Sampler([backend], clock=clock), interval, clock)


def joined(ear: Ear, backend: FakeBackend, interval: float, clock: FakeClock) -> Ticker:
    made = ticker(backend, interval, clock)
    made.join(ear)
    return made


def asked(made: Ticker, ear: Ear) -> threading.Event:
    """Ask for the last reading: what is set when that was taken."""
    ear.ended.clear()
    made.leave(ear)
    return ear.ended


def leave(made: Ticker, ear: Ear) -> None:
    assert asked(made, ear).wait(HANG)
    made.drop(ear)


def test_a_thousand_ticks_do_not_drift() -> None:
    """The n-th reading is due n intervals after the first, though each reading takes a third of an interval."""
    clock, backend, ear = FakeClock(), gpus(1), Ear()
    backend.device(0).set(powerWatts=spending(clock, then=0.033))
    made = joined(ear, backend, 0.1, clock)
    until(lambda: len(ear.taken) > 1000)
    leave(made, ear)
    first = ear.ticks[0]
    assert ear.missed == 0
    assert [at - first for at in ear.ticks[:1001]] == pytest.approx([0.1 * number for number in range(1001)], abs=1e-6)


def test_ticks_that_could_not_be_taken_are_counted_and_not_made_up_for() -> None:
    """A reading that takes 3.5 intervals costs two ticks; the third is late, and the fourth on time again.

    A reading is of the moment at which the device was read, which is its end.
    """
    clock, backend, ear = FakeClock(), gpus(1), Ear()
    start = clock.monotonic()
    backend.device(0).set(powerWatts=spending(clock, 3.5))
    made = joined(ear, backend, 1.0, clock)
    until(lambda: len(ear.ticks) >= 4)
    leave(made, ear)
    assert [at - start for at in ear.ticks[:4]] == pytest.approx([3.5, 3.5, 4.0, 5.0])
    assert ear.missed == 2


def test_ticks_and_missed_ticks_add_up_to_the_time_that_passed() -> None:
    """However readings vary: each due moment was either taken or counted as missed."""
    clock, backend, ear = FakeClock(), gpus(1), Ear()
    durations = [0.0, 0.4, 1.0, 1.7, 2.0, 0.0, 9.3, 0.2] * 1000
    backend.device(0).set(powerWatts=spending(clock, *durations))
    accounted: list[int] = []
    ear.on_take = lambda: accounted.append(len(ear.ticks) - 1 + ear.missed)
    made = joined(ear, backend, 1.0, clock)
    until(lambda: len(ear.ticks) > 200)
    leave(made, ear)
    begun = [at - duration for at, duration in zip(ear.ticks, durations, strict=False)]
    assert accounted[:200] == [int(at - begun[0] + 1e-6) for at in begun[:200]]
    assert ear.missed > 100


def test_a_reading_on_request_is_no_tick_and_shifts_none() -> None:
    """It comes soon, at most fifty a second; the schedule stays."""
    clock, ear = HeldClock(), Ear()
    made = joined(ear, gpus(1), 1.0, clock)
    until(lambda: len(ear.taken) == 1)
    start = ear.ticks[0]
    clock.advance(0.5)
    made.request()
    until(lambda: len(ear.taken) == 2)
    for _ in range(100):
        made.request()
    until(lambda: len(ear.taken) == 3)
    assert [at - start for at, tick in ear.taken if not tick] == pytest.approx([0.5, 0.5 + REQUEST_PAUSE])
    clock.advance(1.0 - (clock.monotonic() - start))
    until(lambda: len(ear.ticks) == 2)
    assert ear.ticks[1] == pytest.approx(start + 1.0)
    leave(made, ear)


def test_readings_on_request_cost_a_tenth_of_the_time_at_most() -> None:
    """With a driver that needs 30 ms, windows that begin and end all the time have a reading every 0.3 s."""
    clock, backend, ear = FakeClock(), gpus(1), Ear()
    backend.device(0).set(powerWatts=spending(clock, then=0.03))
    made = ticker(backend, 10.0, clock)
    ear.on_take = made.request
    made.join(ear)
    until(lambda: len(ear.taken) > 100)
    leave(made, ear)
    between = [at for at, tick in ear.taken[:-1] if not tick]
    assert len(between) > 90
    assert min(after - before for before, after in itertools.pairwise(between)) >= 0.03 * REQUEST_SHARE - 1e-6


def test_a_request_does_not_wait_beyond_the_next_tick() -> None:
    """The tick answers it."""
    clock, backend, ear = FakeClock(), gpus(1), Ear()
    backend.device(0).set(powerWatts=spending(clock, then=0.09))
    made = ticker(backend, 0.1, clock)
    ear.on_take = made.request
    made.join(ear)
    until(lambda: len(ear.taken) > 20)
    leave(made, ear)
    assert [at - ear.taken[0][0] for at, _ in ear.taken[:20]] == pytest.approx([0.1 * number for number in range(20)])


def test_who_joins_later_has_a_reading_at_once_and_then_the_common_ticks() -> None:
    """One thread, one sampler; for the first listener the reading in between is no tick."""
    clock, backend = HeldClock(), gpus(1)
    made, first, second = ticker(backend, 1.0, clock), Ear(), Ear()
    made.join(first)
    until(lambda: len(first.taken) == 1)
    clock.advance(0.3)
    made.join(second)
    until(lambda: len(second.taken) == 1)
    assert second.taken[0][1]
    assert first.taken[1] == (second.taken[0][0], False)
    clock.advance(0.7)
    until(lambda: len(second.ticks) == 2)
    assert first.ticks[1:] == second.ticks[1:]
    assert (len(threads(THREAD)), backend.opened) == (1, 1)
    leave(made, first)
    until(lambda: len(second.taken) == 3)
    assert (second.taken[2], first.taken[3]) == ((first.taken[3][0], False), (second.taken[2][0], True))
    leave(made, second)


def test_the_last_reading_begins_after_the_wish_to_leave() -> None:
    """One that is being taken at that moment is not the last one."""
    clock, backend, ear = HeldClock(), gpus(1), Ear()
    made = joined(ear, backend, 1.0, clock)
    until(lambda: len(ear.taken) == 1)
    backend.device(0).hang()
    clock.advance(1.0)
    until(lambda: backend.device(0).reads == 2)
    left = asked(made, ear)
    assert not left.wait(0.05)
    clock.advance(0.1)
    wished = clock.monotonic()
    backend.device(0).release()
    assert left.wait(HANG)
    assert ear.taken[-1][0] >= wished
    assert len(ear.taken) == 3
    made.drop(ear)


def test_leaving_twice_takes_one_last_reading() -> None:
    """As a stop in two threads at once does."""
    clock, ear = HeldClock(), Ear()
    made = joined(ear, gpus(1), 1.0, clock)
    until(lambda: len(ear.taken) == 1)
    made.leave(ear)
    made.leave(ear)
    assert ear.ended.wait(HANG)
    assert len(ear.taken) == 2
    assert asked(made, ear).wait(HANG)
    made.drop(ear)


def test_nothing_waits_on_the_tickers_own_thread() -> None:
    """An observer that leaves there has no last reading: it would have to wait for itself."""
    clock, ear = FakeClock(), Ear()
    made = ticker(gpus(1), 1.0, clock)
    waited: list[bool] = []

    def take() -> None:
        waited.append(asked(made, ear).is_set())
        made.drop(ear)

    ear.on_take = take
    made.join(ear)
    no_threads(THREAD)
    assert waited == [True]


def test_dropping_without_waiting_ends_it() -> None:
    """An observer that has waited long enough for a driver that hangs goes; the thread ends when the call does, with no reading more."""
    clock, backend, ear = HeldClock(), gpus(1), Ear()
    made = ticker(backend, 1.0, clock)
    backend.opening.hang()
    made.join(ear)
    assert not asked(made, ear).wait(0.05)
    made.drop(ear)
    backend.opening.release()
    no_threads(THREAD)
    assert ear.taken == []
    assert backend.device(0).reads <= 1


def test_while_all_pause_nothing_is_read() -> None:
    """A paused monitor leaves the driver alone; the schedule goes on."""
    clock, backend, ear = HeldClock(), gpus(1), Ear()
    made = joined(ear, backend, 1.0, clock)
    until(lambda: len(ear.taken) == 1)
    ear.paused = True
    for _ in range(5):
        clock.advance(1.0)
        clock.waited()
    assert backend.device(0).reads == 1
    ear.paused = False
    clock.advance(1.0)
    until(lambda: len(ear.taken) == 2)
    assert ear.taken[1][0] - ear.taken[0][0] == pytest.approx(6.0)
    leave(made, ear)


def test_a_listener_that_throws_costs_the_others_nothing_and_is_told() -> None:
    """Even a SystemExit."""
    clock, odd, sane = FakeClock(), Ear(), Ear()

    def refuse() -> None:
        raise SystemExit("odd")

    odd.on_take = refuse
    made = ticker(gpus(1), 1.0, clock)
    made.join(odd)
    made.join(sane)
    until(lambda: len(sane.taken) > 3)
    assert odd.failures[0] == "SystemExit: odd"
    assert sane.failures == []
    for ear in (odd, sane):
        leave(made, ear)


def test_a_reading_that_fails_is_told_and_the_next_one_taken() -> None:
    """A sampler refuses when a device that was asked for is not there."""
    clock, backend, ear = FakeClock(), gpus(1), Ear()
    made = Ticker(lambda: Sampler([backend], gpus=[5], clock=clock), 1.0, clock)
    made.join(ear)
    until(lambda: len(ear.failures) > 3)
    assert "there is no device 5" in ear.failures[0] or "5" in ear.failures[0]
    assert ear.taken == []
    leave(made, ear)


def test_a_sampler_that_cannot_be_made_is_told_and_the_ticker_can_begin_again() -> None:
    """Nothing waits for a last reading that will not come."""
    clock, backend, ear = FakeClock(), gpus(1), Ear()
    failures = iter([MemoryError("no room")])

    def make() -> Sampler:
        for failure in failures:
            raise failure
        return Sampler([backend], clock=clock)

    made = Ticker(make, 1.0, clock)
    made.join(ear)
    until(lambda: bool(ear.failures))
    assert ear.failures == ["MemoryError: no room"]
    assert asked(made, ear).wait(HANG)
    made.join(ear)
    until(lambda: bool(ear.taken))
    leave(made, ear)


def test_a_machine_without_threads_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Joining raises nothing; leaving waits for nothing."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    clock, ear = FakeClock(), Ear()
    made = ticker(gpus(1), 1.0, clock)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        made.join(ear)
    assert ear.failures == ["no thread can be started: RuntimeError: can't start new thread"]
    assert asked(made, ear).is_set()
    made.drop(ear)


def test_equal_wishes_share_a_ticker_as_long_as_it_is_used() -> None:
    """And it is gone after that: monitors made by the thousand leave nothing behind."""

    def make() -> Ticker:
        return ticker(gpus(1), 1.0, FakeClock())

    first = shared_ticker("same", make)
    assert shared_ticker("same", make) is first
    assert shared_ticker("other", make) is not first
    del first
    gc.collect()
    again = shared_ticker("same", make)
    assert again is not None
    assert not again._observers
