"""The thread that takes readings at a steady pace, shared by the monitors of a process that want the same ones.

The schedule is absolute: the n-th reading is due n intervals after the first, however long readings take; those that could
not be taken in time are counted, not made up for. Between two ticks a reading is taken on request, for windows that begin
and end and for monitors that join and leave.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Hashable
from typing import Protocol

from accelmetrics.backends.clock import Clock
from accelmetrics.backends.guard import guarded
from accelmetrics.sampling.sampler import Sampler
from accelmetrics.schemas.snapshot import Snapshot

REQUEST_PAUSE = 0.02
"""Seconds between two readings that are asked for: more often, several requests are answered by one."""
TOLERANCE = 1e-6
"""Seconds by which a tick may come early: clocks are floats."""

log = logging.getLogger("accelmetrics")


class MonitorClock(Clock, Protocol):
    """A clock that can be waited by."""

    def wait(self, woken: threading.Event, seconds: float) -> None:
        """Return when so many seconds have passed on this clock, or the event is set."""
        ...


class RealClock:
    """The machine's."""

    monotonic = staticmethod(time.monotonic)
    time_ns = staticmethod(time.time_ns)

    def wait(self, woken: threading.Event, seconds: float) -> None:
        """Sleep."""
        woken.wait(seconds)


REAL_CLOCK = RealClock()


class Listener(Protocol):
    """A monitor, as its beat sees it."""

    def take(self, snapshot: Snapshot, at: float, tick: bool) -> None:
        """A reading that began at this moment of the clock; whether it is one of its ticks, or was taken on request."""
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
        self._lock = threading.Lock()
        self._woken = threading.Event()
        self._listeners: list[Listener] = []
        self._wanting: set[Listener] = set()
        self._leaving: dict[Listener, threading.Event] = {}
        self._requested = False
        self._thread: threading.Thread | None = None

    def join(self, listener: Listener) -> None:
        """Listen from now on, beginning with a reading that is taken at once."""
        with self._lock:
            self._listeners.append(listener)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="accelmetrics-monitor", daemon=True)
                outcome = guarded(self._thread.start)
                if outcome.failure is not None:
                    self._thread = None
                    listener.fail(f"no thread is to be had: {outcome.failure.detail}")
                return
            self._wanting.add(listener)
        self._woken.set()

    def leave(self, listener: Listener, seconds: float) -> None:
        """Listen no more, after one last reading, for which nobody waits longer than this."""
        left = threading.Event()
        with self._lock:
            if listener not in self._listeners:
                return
            alone = self._thread is None or self._thread is threading.current_thread()
            if not alone:
                self._leaving[listener] = left
        self._woken.set()
        if not alone:
            left.wait(seconds)
        with self._lock:
            self._remove(listener)

    def request(self) -> None:
        """Have a reading taken soon, besides the ticks."""
        self._requested = True
        self._woken.set()

    def _remove(self, listener: Listener) -> None:
        self._leaving.pop(listener, None)
        self._wanting.discard(listener)
        if listener in self._listeners:
            self._listeners.remove(listener)
        self._woken.set()

    def _run(self) -> None:
        sampler: Sampler | None = None
        try:
            made = guarded(self._make)
            sampler = made.value
            if sampler is None:
                self._end(f"{made.failure.detail if made.failure else ''}")
                return
            self._beat(sampler)
        finally:
            if sampler is not None:
                guarded(sampler.close)

    def _beat(self, sampler: Sampler) -> None:
        due = self._clock.monotonic()
        while True:
            # Whoever leaves while a reading is taken is owed another one, which begins after that.
            leaving, wanting = self._owed()
            now = self._clock.monotonic()
            tick = now >= due - TOLERANCE
            self._read(sampler, now, tick, {*leaving, *wanting})
            self._let_go(leaving)
            if tick:
                due = self._next_due(due)
            if self._over():
                return
            self._wait(due, now)

    def _owed(self) -> tuple[dict[Listener, threading.Event], set[Listener]]:
        with self._lock:
            leaving, wanting = dict(self._leaving), self._wanting
            self._wanting = set()
            self._requested = False
            self._woken.clear()
            return leaving, wanting

    def _read(self, sampler: Sampler, now: float, tick: bool, owed: set[Listener]) -> None:
        outcome = guarded(sampler.sample)
        for listener in list(self._listeners):
            if outcome.value is not None:
                guarded(listener.take, outcome.value, now, tick or listener in owed)
            elif outcome.failure is not None:
                guarded(listener.fail, outcome.failure.detail)

    def _let_go(self, leaving: dict[Listener, threading.Event]) -> None:
        with self._lock:
            for listener, left in leaving.items():
                self._remove(listener)
                left.set()

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
            self._thread = None
            return True

    def _end(self, words: str) -> None:
        with self._lock:
            listeners, self._listeners, self._thread = self._listeners, [], None
        for listener in listeners:
            guarded(listener.fail, words)

    def _wait(self, due: float, last: float) -> None:
        """Until the next tick, or until a reading is asked for and enough time has passed since the last."""
        clock = self._clock
        while (now := clock.monotonic()) < due - TOLERANCE:
            if self._pending():
                clock.wait(threading.Event(), min(max(0.0, last + REQUEST_PAUSE - now), due - now))
                return
            clock.wait(self._woken, due - now)
            with self._lock:
                if not self._listeners:
                    return
                if not self._pending():
                    self._woken.clear()

    def _pending(self) -> bool:
        return self._requested or bool(self._wanting) or bool(self._leaving) or not self._listeners


_shared: dict[tuple[int, Hashable], Beat] = {}


def shared_beat(key: Hashable, make: Callable[[], Beat]) -> Beat:
    """The beat of everyone in this process who wants the same readings at the same pace."""
    mark = (os.getpid(), key)
    # A single operation on the dict: there is no lock for a fork to copy in its locked state.
    return _shared.get(mark) or _shared.setdefault(mark, make())
