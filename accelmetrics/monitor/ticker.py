"""The thread that takes readings at a steady pace, shared by the monitors of a process that want the same ones.

The schedule is absolute: the n-th reading is due n intervals after the first, however long readings take; those that could
not be taken in time are counted, not made up for. Between two ticks a reading is taken on request, for windows that begin
and end and for monitors that join and leave.

The thread makes the calls of its readings itself. A second one stands by, looks at it now and then, and goes on in its place where it is
stuck in a driver (:class:`Standby`).

No state has a lock, and each step that changes it is one call in C: ``Monitor.stop`` may interrupt any call of the program at
any point.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Hashable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakValueDictionary

from accelmetrics.backends.guard import Outcome, guarded
from accelmetrics.sampling.sampler import OwnReadings, Sampler, own_readings
from accelmetrics.sampling.workers import REPLACED, OnDemandThread

if TYPE_CHECKING:
    from accelmetrics.monitor.run import Run
    from accelmetrics.sampling.node import NodeSampler
    from accelmetrics.schemas.errors import Unavailable
    from accelmetrics.schemas.snapshot import Snapshot

REQUEST_PAUSE = 0.02
"""Seconds from one reading to a requested one: requests that come more often are answered together."""
REQUEST_SHARE = 10
"""The same in durations of the last reading: however often windows begin and end, readings cost a tenth of the time at most."""
LAG = 0.002
"""Seconds by which ticks come later than readings that are taken for several processes, so that those need not be waited for."""
TOLERANCE = 1e-6
"""Seconds by which a tick may come early: clocks are floats."""


class Flag:
    """Like ``threading.Event``, from any thread and from signal handlers, which may interrupt any of its methods.

    The methods of ``threading.Event`` are Python code around a lock: a handler that interrupts one and calls ``set`` waits for
    itself. ``queue.SimpleQueue.get`` may wait for ever when a handler outlasts its time-out (Python 3.10, 3.11). Here each step
    is one call in C.
    """

    def __init__(self) -> None:
        self._set = False
        self._closed = threading.Lock()  # held while the flag is not set
        self._closed.acquire()

    def is_set(self) -> bool:
        """Return whether it is set."""
        return self._set

    def set(self) -> None:
        """End all waits, until it is cleared."""
        self._set = True
        self._open()

    def clear(self) -> None:
        """Have later calls of `wait` wait."""
        self._set = False
        self._closed.acquire(blocking=False)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until it is set, at most so long (None: for ever); whether it is. May end early where it was cleared meanwhile."""
        limit = threading.TIMEOUT_MAX if seconds is None else min(max(0.0, seconds), threading.TIMEOUT_MAX)
        try:
            if not self._set:
                self._closed.acquire(timeout=limit)
        finally:
            if self._set:
                self._open()  # for the next wait
        return self._set

    def _open(self) -> None:
        try:
            self._closed.release()
        except RuntimeError:
            return  # it is open already


class MonitorClock:
    """The machine's clock, on which a thread can wait; tests have another."""

    def monotonic(self) -> float:
        """Return seconds since some fixed point, never going back."""
        return time.monotonic()

    def time_ns(self) -> int:
        """Return nanoseconds since 1970-01-01 UTC."""
        return time.time_ns()

    def wait(self, woken: Flag, seconds: float) -> None:
        """Return when so many seconds have passed on this clock, or the flag is set."""
        woken.wait(seconds)


class Standby:
    """A thread that goes on in a ticker's place when that is stuck in a driver.

    Nothing wakes it up but its end: it looks soon after each tick, and no more than a few times a second.

    Args:
        readings: What the ticker's thread takes readings with.
        until_tick: Gives the seconds until the next tick.
        go_on: Called with these readings, once, on this thread.
    """

    def __init__(self, readings: OwnReadings, until_tick: Callable[[], float], go_on: Callable[[OwnReadings], object]) -> None:
        self.readings = readings
        self._until_tick = until_tick
        self._go_on = go_on
        self._ended = Flag()

    def start(self) -> None:
        """Begin to look. Where no thread is to be had for that, the caller is never looked at."""
        guarded(threading.Thread(target=self._run, name="accelmetrics-standby", daemon=True).start)

    def end(self) -> None:
        """Look no more."""
        self._ended.set()

    def _run(self) -> None:
        pause: float | None = 0.0
        while not self._ended.wait(pause):
            pause = self.readings.look(self._until_tick())
            if pause is None:
                self._go_on(self.readings)
                return


class Turn(NamedTuple):
    """What a turn of the ticker is for.

    Attributes:
        begun: When it began.
        tick: Whether a tick is due.
        owed: Those that joined, and are owed a first reading, and those that leave.
        leaving: Those that leave.
    """

    begun: float
    tick: bool
    owed: set[Run]
    leaving: set[Run]


class Ticker:
    """One sampler read at one pace, for as long as it has observers.

    Args:
        make: Makes the sampler; called when the thread starts.
        interval: Seconds between two ticks.
        clock: The clock of the schedule.
    """

    def __init__(self, make: Callable[[], Sampler | NodeSampler], interval: float, clock: MonitorClock) -> None:
        self._make = make
        self._interval = interval
        self._clock = clock
        self._woken = Flag()
        self._thread = OnDemandThread("accelmetrics-monitor", lambda: self._observers, self._run)
        self._observers: dict[Run, None] = {}
        self._joined: set[Run] = set()  # owed a first reading
        self._leaving: set[Run] = set()  # owed a last one
        self._requested = False
        self._due = 0.0  # when the next tick is
        self._turn = Turn(0.0, False, set(), set())
        self._standby: Standby | None = None
        self._closed = Flag()  # not while there is a sampler
        self._closed.set()

    def join(self, observer: Run) -> None:
        """Call an observer from now on, beginning with a reading that is taken at once."""
        self._observers[observer] = None
        self._joined.add(observer)
        self._woken.set()
        failure = self._thread.start().failure
        if failure is not None:
            observer.fail(f"no thread is to be had: {failure.detail}")
            self._end(observer)

    def leave(self, observer: Run) -> None:
        """Take one last reading for an observer, which begins after this call, and end it; at once where none will be taken."""
        self._leaving.add(observer)
        self._woken.set()
        if self._thread.is_current or not self._thread.alive or observer not in self._observers:
            self._end(observer)

    def drop(self, observer: Run) -> None:
        """Give an observer no reading any more."""
        self._observers.pop(observer, None)
        self._joined.discard(observer)
        self._leaving.discard(observer)
        self._woken.set()

    def wait_closed(self, seconds: float) -> None:
        """Wait until the sampler is closed, at most so long; not while there are observers, nor on the thread that closes it."""
        if not self._observers and not self._thread.is_current:
            self._closed.wait(seconds)

    def request(self) -> None:
        """Have a reading taken soon, besides the ticks."""
        self._requested = True
        self._woken.set()

    def _end(self, observer: Run) -> None:
        self.drop(observer)
        guarded(observer.end)

    def _run(self) -> object:
        """Tick until there are no observers."""
        self._closed.clear()
        made = guarded(self._make)
        if made.value is not None:
            self._due = self._clock.monotonic()
            return self._go_on(made.value, None)
        self._end_all(made.failure)
        return None

    def _go_on(self, sampler: Sampler | NodeSampler, stuck: OwnReadings | None) -> object:
        """Tick until there are no observers, or another thread does.

        Args:
            sampler: What is read.
            stuck: The readings whose turn is to be ended first: their thread is in a call into a driver.
        """
        ticked = guarded(self._tick, sampler, stuck)
        if ticked.value is REPLACED:
            return REPLACED
        if self._standby is not None:
            self._standby.end()
            self._standby = None
        guarded(sampler.close)
        self._end_all(ticked.failure)
        return None

    def _end_all(self, failure: Unavailable | None) -> None:
        self._closed.set()
        if failure is not None:  # else those that are there now have joined just now
            for observer in tuple(self._observers):
                guarded(observer.fail, failure.detail)
                self._end(observer)

    def _replace(self, sampler: Sampler, stuck: OwnReadings) -> None:
        """Go on in the place of a thread that is stuck, on the one that stood by."""
        self._standby = None
        self._thread.replace(partial(self._go_on, sampler, stuck))

    def _tick(self, sampler: Sampler | NodeSampler, stuck: OwnReadings | None) -> object:
        clock = self._clock
        while self._observers or stuck is not None:
            if stuck is None:
                # An observer that leaves while a reading is taken is owed another one, which begins after that.
                leaving = self._leaving.copy()
                owed = self._joined | leaving
                self._joined -= owed
                self._requested = False
                now = clock.monotonic()
                self._turn = Turn(now, now >= self._due - TOLERANCE, owed, leaving)
            turn = self._turn
            if stuck is not None or not all(observer.paused for observer in tuple(self._observers)):
                outcome = self._sampled(sampler, turn, stuck)
                if outcome.value is None and outcome.failure is None:
                    return REPLACED
                begun = clock.monotonic() - sampler.age if not isinstance(sampler, Sampler) and sampler.shares else turn.begun
                self._hand_out(outcome, turn, begun)
            stuck = None
            for observer in turn.leaving:
                self._end(observer)
            if turn.tick:
                self._due += self._interval
                if not isinstance(sampler, Sampler) and sampler.shares and sampler.waited > 0.0:
                    self._due += sampler.waited + LAG  # ticks follow the readings: the next one is there when it is due
                missed = int((clock.monotonic() - self._due) // self._interval)
                if missed > 0:
                    self._due += missed * self._interval
                    for observer in tuple(self._observers):
                        guarded(observer.miss, missed)
            # A shared reading costs its time elsewhere, where requests are held up for it.
            self._wait(turn.begun, clock.monotonic() - turn.begun if isinstance(sampler, Sampler) or not sampler.shares else 0.0)
        return None

    def _sampled(self, sampler: Sampler | NodeSampler, turn: Turn, stuck: OwnReadings | None) -> Outcome[Snapshot | None]:
        """Take a reading, or complete the one of a thread that is stuck. Neither a value nor a failure: another thread completes it."""
        if not isinstance(sampler, Sampler):
            # Taken for several processes: it may have begun before it was due here.
            return guarded(sampler.scheduled if turn.tick and not turn.owed else sampler.sample)
        if stuck is not None:
            return guarded(stuck.complete)
        if self._standby is None and (own := own_readings(sampler)) is not None:
            self._standby = Standby(own, lambda: self._due - self._clock.monotonic(), partial(self._replace, sampler))
            self._standby.start()
        return guarded(sampler.sample) if self._standby is None else guarded(self._standby.readings.sample)

    def _hand_out(self, outcome: Outcome[Snapshot | None], turn: Turn, begun: float) -> None:
        at, snapshot = begun, outcome.value
        if snapshot is not None:
            # The devices' moment: at the first reading a driver may take seconds to open, for which nothing is known.
            ages = [status.age_seconds for status in snapshot.backends if status.age_seconds is not None]
            at = max(at, self._clock.monotonic() - min(ages, default=float("inf")))
        for observer in tuple(self._observers):  # without those that were dropped meanwhile
            failure = outcome.failure
            if snapshot is not None:
                failure = guarded(observer.take, snapshot, at, turn.tick or observer in turn.owed).failure
            if failure is not None:
                guarded(observer.fail, failure.detail)

    def _wait(self, last: float, spent: float) -> None:
        """Wait until the next tick, or until a reading is requested and enough time has passed since the last.

        Args:
            last: When the last reading began.
            spent: Seconds that it took.
        """
        while True:
            self._woken.clear()  # before looking: what comes later sets it again
            until = self._due
            if self._leaving or self._joined:
                until = min(until, last + REQUEST_PAUSE)
            elif self._requested:
                until = min(until, last + max(REQUEST_PAUSE, REQUEST_SHARE * spent))
            now = self._clock.monotonic()
            if now >= until - TOLERANCE or not self._observers:
                return
            self._clock.wait(self._woken, until - now)


# Held by the monitors that use them, and gone with them. Keyed by the process too: a child of a fork makes its own.
_shared: WeakValueDictionary[tuple[int, Hashable], Ticker] = WeakValueDictionary()


def shared_ticker(key: Hashable, make: Callable[[], Ticker]) -> Ticker:
    """Return the ticker of all monitors of this process that want the same readings at the same pace."""
    mark = (os.getpid(), key)
    return _shared.get(mark) or _shared.setdefault(mark, make())
