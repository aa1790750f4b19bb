"""The thread that takes readings at a steady pace, shared by the monitors of a process that want the same ones.

The schedule is absolute: the n-th reading is due n intervals after the first, however long readings take; those that could
not be taken in time are counted, not made up for. Between two ticks a reading is taken on request, for windows that begin
and end and for monitors that join and leave.

No state has a lock, and each step that changes it is one call in C: ``Monitor.stop`` may interrupt any call of the program at
any point.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from accelmetrics.backends.guard import Outcome, guarded
from accelmetrics.sampling.sampler import Sampler
from accelmetrics.sampling.threads import Flag, OnDemandThread

if TYPE_CHECKING:
    from accelmetrics.monitor.run import Run
    from accelmetrics.sampling.node import NodeSampler
    from accelmetrics.schemas.snapshot import Snapshot

REQUEST_PAUSE = 0.02
"""Seconds from one reading to a requested one: requests that come more often are answered together."""
REQUEST_SHARE = 10
"""The same in durations of the last reading: however often windows begin and end, readings cost a tenth of the time at most."""
LAG = 0.002
"""Seconds by which ticks come later than readings that are taken for several processes, so that those need not be waited for."""
TOLERANCE = 1e-6
"""Seconds by which a tick may come early: clocks are floats."""


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


class Ticker:
    """One sampler read at one pace, for as long as it has observers: the runs of monitors, whose methods it calls on its thread.

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

    def _run(self) -> None:
        """Tick until there are no observers."""
        self._closed.clear()
        made = guarded(self._make)
        failure = made.failure
        if made.value is not None:
            self._due = self._clock.monotonic()
            failure = guarded(self._tick, made.value).failure
            guarded(made.value.close)
        self._closed.set()
        if failure is not None:  # else those that are there now have joined just now
            for observer in tuple(self._observers):
                guarded(observer.fail, failure.detail)
                self._end(observer)

    def _tick(self, sampler: Sampler | NodeSampler) -> None:
        clock, node = self._clock, None if isinstance(sampler, Sampler) else sampler
        while self._observers:
            # An observer that leaves while a reading is taken is owed another one, which begins after that.
            leaving = self._leaving.copy()
            owed = self._joined | leaving
            self._joined -= owed
            self._requested = False
            began = clock.monotonic()
            due = began >= self._due - TOLERANCE
            shared = node if node is not None and node.shares else None
            if not all(observer.paused for observer in tuple(self._observers)):
                # A shared reading may have begun before it was due here.
                outcome = guarded(node.scheduled if node is not None and due and not owed else sampler.sample)
                self._hand_out(outcome, began if shared is None else clock.monotonic() - shared.age, due, owed)
            for observer in leaving:
                self._end(observer)
            if due:
                self._due += self._interval
                if shared is not None and shared.waited > 0.0:
                    self._due += shared.waited + LAG  # ticks follow the readings: the next one is there when it is due
                missed = int((clock.monotonic() - self._due) // self._interval)
                if missed > 0:
                    self._due += missed * self._interval
                    for observer in tuple(self._observers):
                        guarded(observer.miss, missed)
            # A shared reading costs its time elsewhere, where requests are held up for it.
            self._wait(began, clock.monotonic() - began if shared is None else 0.0)

    def _hand_out(self, outcome: Outcome[Snapshot], at: float, due: bool, owed: set[Run]) -> None:
        snapshot = outcome.value
        if snapshot is not None:
            # The devices' moment: at the first reading a driver may take seconds to open, for which nothing is known.
            ages = [status.age_seconds for status in snapshot.backends if status.age_seconds is not None]
            at = max(at, self._clock.monotonic() - min(ages, default=float("inf")))
        for observer in tuple(self._observers):  # without those that were dropped meanwhile
            failure = outcome.failure
            if snapshot is not None:
                failure = guarded(observer.take, snapshot, at, due or observer in owed).failure
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
