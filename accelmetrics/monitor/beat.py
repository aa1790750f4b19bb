"""The thread that takes readings at a steady pace, shared by the monitors of a process that want the same ones.

The schedule is absolute: the n-th reading is due n intervals after the first, however long readings take; those that could
not be taken in time are counted, not made up for. Between two ticks a reading is taken on request, for windows that begin
and end and for monitors that join and leave.

The program's calls may be interrupted anywhere, by Ctrl-C or by a signal handler that itself uses the monitor: a thread that
holds the lock comes to it again, and what wakes the beat is no lock at all.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Hashable
from typing import Protocol
from weakref import WeakValueDictionary

from accelmetrics.backends.clock import Clock
from accelmetrics.backends.flag import Flag
from accelmetrics.backends.guard import guarded
from accelmetrics.monitor.undisturbed import undisturbed
from accelmetrics.sampling.sampler import Sampler
from accelmetrics.schemas.snapshot import Snapshot

REQUEST_PAUSE = 0.02
"""Seconds from one reading to one that is asked for: more often, several requests are answered by one."""
REQUEST_SHARE = 10
"""The same in durations of the last reading: however often windows begin and end, readings cost a tenth of the time at most."""
TOLERANCE = 1e-6
"""Seconds by which a tick may come early: clocks are floats."""


class MonitorClock(Clock, Protocol):
    """A clock that can be waited by."""

    def wait(self, woken: Flag, seconds: float) -> None:
        """Return when so many seconds have passed on this clock, or the event is set."""
        ...


class RealClock:
    """The machine's."""

    monotonic = staticmethod(time.monotonic)
    time_ns = staticmethod(time.time_ns)

    def wait(self, woken: Flag, seconds: float) -> None:
        """Sleep."""
        woken.wait(seconds)


REAL_CLOCK = RealClock()


class Listener(Protocol):
    """A monitor, as its beat sees it."""

    @property
    def paused(self) -> bool:
        """Whether it wants no readings for now: while nobody does, none are taken."""
        ...

    def take(self, snapshot: Snapshot, at: float, tick: bool) -> None:
        """A reading of this moment of the clock; whether it is one of its ticks, or was taken on request."""
        ...

    def miss(self, ticks: int) -> None:
        """So many readings were due and could not be taken."""
        ...

    def fail(self, words: str) -> None:
        """A reading could not be taken at all."""
        ...


class Beat:
    """One sampler read at one pace, for as long as somebody listens.

    Args:
        make: Makes the sampler; called once a run.
        interval: Seconds between two ticks.
        clock: What the schedule goes by.
    """

    def __init__(self, make: Callable[[], Sampler], interval: float, clock: MonitorClock) -> None:
        self._make = make
        self._interval = interval
        self._clock = clock
        self._lock = threading.RLock()
        self._woken = Flag()
        self._listeners: list[Listener] = []
        self._wanting: set[Listener] = set()
        self._leaving: dict[Listener, Flag] = {}
        self._requested = False
        self._thread: threading.Thread | None = None
        self._under_way = False

    def join(self, listener: Listener) -> None:
        """Listen from now on, beginning with a reading that is taken at once."""
        failure = None
        with self._lock:
            self._listeners.append(listener)
            if self._thread is None or not self._under_way:  # Ctrl-C may have come between; the later one runs
                self._thread = threading.Thread(target=self._run, name="accelmetrics-monitor", daemon=True)
                failure = guarded(undisturbed, self._thread.start).failure
                if failure is not None:
                    self._thread = None
            else:
                self._wanting.add(listener)
        self._woken.set()
        if failure is not None:
            listener.fail(f"no thread is to be had: {failure.detail}")

    def leave(self, listener: Listener) -> Flag:
        """Ask for one last reading.

        Returns:
            What is set when that has been taken, or none will be: wait for it as long as you like, then :meth:`drop`.
        """
        left = Flag()
        with self._lock:
            if listener in self._listeners and self._thread not in {None, threading.current_thread()}:
                left = self._leaving.setdefault(listener, left)
            else:
                left.set()
        self._woken.set()
        return left

    def drop(self, listener: Listener) -> None:
        """Listen no more."""
        with self._lock:
            self._remove(listener)
        self._woken.set()

    def request(self) -> None:
        """Have a reading taken soon, besides the ticks."""
        self._requested = True
        self._woken.set()

    def _remove(self, listener: Listener) -> None:
        self._wanting.discard(listener)
        if listener in self._listeners:
            self._listeners.remove(listener)
        if left := self._leaving.pop(listener, None):
            left.set()

    def _run(self) -> None:
        with self._lock:
            if self._thread is not threading.current_thread():
                return
            self._under_way = True
        made = guarded(self._make)
        failure = made.failure
        if made.value is not None:
            failure = guarded(self._beat, made.value).failure
            guarded(made.value.close)
        if failure is not None:
            self._end(failure.detail)

    def _beat(self, sampler: Sampler) -> None:
        due = self._clock.monotonic()
        while not self._over():
            # Whoever leaves while a reading is taken is owed another one, which begins after that.
            leaving, wanting = self._owed()
            now = self._clock.monotonic()
            tick = now >= due - TOLERANCE
            if not all(listener.paused for listener in list(self._listeners)):
                self._read(sampler, now, tick, leaving | wanting)
            self._let_go(leaving)
            if tick:
                due = self._next_due(due)
            self._wait(due, now, self._clock.monotonic() - now)

    def _owed(self) -> tuple[set[Listener], set[Listener]]:
        with self._lock:
            leaving, wanting = set(self._leaving), self._wanting
            self._wanting = set()
            self._requested = False
            return leaving, wanting

    def _read(self, sampler: Sampler, now: float, tick: bool, owed: set[Listener]) -> None:
        outcome = guarded(sampler.sample)
        at = now if outcome.value is None else _read_at(outcome.value, now, self._clock.monotonic())
        for listener in list(self._listeners):
            failure = outcome.failure
            if outcome.value is not None:
                failure = guarded(listener.take, outcome.value, at, tick or listener in owed).failure
            if failure is not None:
                guarded(listener.fail, failure.detail)

    def _let_go(self, leaving: set[Listener]) -> None:
        with self._lock:
            for listener in leaving:
                self._remove(listener)

    def _next_due(self, due: float) -> float:
        """When the next tick is; those that have passed already are counted."""
        due += self._interval
        late = self._clock.monotonic() - due
        if late >= self._interval:
            missed = int(late // self._interval)
            due += missed * self._interval
            for listener in list(self._listeners):
                guarded(listener.miss, missed)
        return due

    def _over(self) -> bool:
        with self._lock:
            if self._listeners:
                return False
            self._thread, self._under_way = None, False
            return True

    def _end(self, words: str) -> None:
        with self._lock:
            listeners, self._thread, self._under_way = list(self._listeners), None, False
            for listener in listeners:
                self._remove(listener)
        for listener in listeners:
            guarded(listener.fail, words)

    def _wait(self, due: float, last: float, spent: float) -> None:
        """Until the next tick, or until a reading is asked for and enough time has passed since the last."""
        clock = self._clock
        while True:
            self._woken.clear()  # before looking: whoever asks for something from here on sets it again
            until = min(due, last + self._pause(spent))
            now = clock.monotonic()
            if now >= until - TOLERANCE or not self._listeners:
                return
            clock.wait(self._woken, until - now)

    def _pause(self, spent: float) -> float:
        """Seconds from the last reading to the next one that is asked for; infinite where none is.

        Args:
            spent: How long the last one took.
        """
        if self._leaving or self._wanting:
            return REQUEST_PAUSE
        return max(REQUEST_PAUSE, REQUEST_SHARE * spent) if self._requested else float("inf")


def _read_at(snapshot: Snapshot, began: float, ended: float) -> float:
    """When the devices were read: at the first reading a driver may take seconds to open, for which nothing is known."""
    ages = [status.age_seconds for status in snapshot.backends if status.age_seconds is not None]
    return max(began, ended - min(ages)) if ages else began


# Held by those who listen, and gone with them. Keyed by the process too: there is no lock for a fork to copy in its locked state.
_shared: WeakValueDictionary[tuple[int, Hashable], Beat] = WeakValueDictionary()


def shared_beat(key: Hashable, make: Callable[[], Beat]) -> Beat:
    """The beat of everyone in this process who wants the same readings at the same pace."""
    mark = (os.getpid(), key)
    return _shared.get(mark) or _shared.setdefault(mark, make())
