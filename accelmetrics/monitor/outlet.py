"""One exporter behind a bounded queue and a thread of its own (its line): whatever it does, it costs nobody else anything.

``OSError`` means that a peer is away or a disk is full: the record is offered again after a pause that doubles, while newer
ones wait behind it and the oldest of those go when the queue is full. Any other exception gives the record up. Each kind of
failure is told once, not at every tick; what was wrong last stands in the status.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from math import inf
from typing import Any

from accelmetrics.backends.flag import Flag
from accelmetrics.backends.guard import Outcome, guarded
from accelmetrics.monitor.line import Line
from accelmetrics.schemas.record import Exporter, ExporterStatus, Record

CAPACITY = 600
"""Records that wait at most: ten minutes at one a second."""
FIRST_PAUSE, LAST_PAUSE = 0.25, 30.0
"""Seconds between two attempts at the same record: at first, and at most."""
WAITS = "waits for a call that it did not return from before the monitor was stopped"
"""What is wrong with an exporter that hung when its monitor was stopped, and still does when that is started again."""

log = logging.getLogger("accelmetrics")


class Outlet:
    """An exporter's queue and counters, from one start of a monitor to its stop.

    The program's calls may be interrupted anywhere by a signal handler that makes the same calls: the lock is given to whoever
    holds it already, and the exporter's thread is woken without one.

    Args:
        exporter: Where the records go.
        name: Under which it is counted.
        before: The outlet that the exporter had until now. They share a thread: an exporter is called by one only, and one that
            hangs keeps no more than one, however often its monitor is stopped and started.
        capacity: How many records wait at most.
        opened: Called on the exporter's thread when it is open.
    """

    def __init__(
        self,
        exporter: Exporter,
        name: str,
        before: Outlet | None = None,
        capacity: int = CAPACITY,
        opened: Callable[[], object] = lambda: None,
    ) -> None:
        self.exporter = exporter
        self.name = name
        self._line: Line = Line(name) if before is None else before._line
        self._capacity = capacity
        self._opened = opened
        self._queue: deque[Record] = deque()
        self._lock = threading.RLock()
        self._changed = Flag()
        self._sent = self._failed = self._pushed_out = self._given_up = 0
        self._error = ""
        self._told: set[tuple[str, type]] = set()
        self._current: Record | None = None
        self._flushes = self._flushed = 0
        self._closing_by: float | None = None
        self._over = False

    @property
    def status(self) -> ExporterStatus:
        """How it fares."""
        return ExporterStatus(self.name, self._sent, self._failed, self._pushed_out + self._given_up, self._left(), self._error)

    @property
    def expired(self) -> bool:
        """Whether the moment has passed until which it was to deliver."""
        return self._closing_by is not None and time.monotonic() >= self._closing_by

    def start(self) -> None:
        """Open the exporter, in the background: when the call has returned that it is still in from before, if it is."""
        self._error = WAITS
        outcome = self._line.enter(self)
        if outcome.failure is not None:  # the records will be counted as dropped
            self._over = True
            self._note(outcome, "has no thread")
        elif not outcome.value and self._error == WAITS:
            self._error = ""

    def put(self, record: Record) -> None:
        """Have a record delivered. Waits neither for the exporter nor for the lock, which interrupted code may hold."""
        if self._over and self._closing_by is not None:
            self._pushed_out += 1  # it comes too late
            return
        self._queue.append(record)
        if len(self._queue) > self._capacity and self._pop() is not None:
            self._pushed_out += 1
        self._changed.set()

    def flush(self, seconds: float) -> bool:
        """Wait until everything is delivered, and the exporter flushed, at most so long; whether it is."""
        if self._line.is_current:
            return False
        with self._lock:
            self._flushes += 1
            wanted = self._flushes
        self._changed.set()
        return self._line.wait(lambda: self._flushed >= wanted or self._over, time.monotonic() + seconds) and not self._left()

    def close(self, by: float) -> None:
        """Deliver what is queued, until a moment of ``time.monotonic``, and close the exporter; does not wait for it."""
        with self._lock:
            self._closing_by = by if self._closing_by is None else min(by, self._closing_by)
        self._changed.set()

    def drop(self) -> None:
        """End without delivering what is queued: nobody wants it any more."""
        with self._lock:
            self._queue.clear()
            self._closing_by = time.monotonic()
        self._changed.set()

    def join(self) -> None:
        """Wait for the end, until the moment that ``close`` was given; what is left then is counted as dropped.

        Does not wait on the exporter's own thread, nor on one whose end this exporter waits for: what is queued is delivered
        after that.
        """
        if self._line.is_current:
            return
        if not self._line.alive:
            self._over = True
        if self._line.wait(lambda: self._over, self._limit()) or self.expired:
            self._give_up()

    def run(self) -> None:
        """On the exporter's thread: open it, deliver, and close it."""
        if self._error == WAITS:
            self._error = ""
        if not (self._over or self.expired):
            if self._open():
                self._deliver_all()
                self._note(guarded(self.exporter.flush), "could not flush")
            self._note(guarded(self.exporter.close), "could not close")
        self._give_up()
        self._over = True
        self._line.tell()

    def _open(self) -> bool:
        """Open the exporter, as often as it takes; whether it is open."""
        pause = FIRST_PAUSE
        while not self.expired:
            outcome = guarded(self.exporter.open)
            if outcome.failure is None:
                self._error = ""
                self._opened()
                return True
            self._note(outcome, "could not open")
            pause = self._rest(pause)
        return False

    def _deliver_all(self) -> None:
        while self._next():
            record = self._current
            if record is not None:
                self._deliver(record)
                continue
            wanted = self._flushes
            self._note(guarded(self.exporter.flush), "could not flush")
            self._flushed = wanted
            self._line.tell()

    def _next(self) -> bool:
        """Wait for a record, or for a flush that somebody asked for; False at the end."""
        while not (self._queue or self._flushed < self._flushes or self._closing_by is not None):
            self._changed.wait()
            self._changed.clear()
        with self._lock:
            if self.expired or not (self._queue or self._closing_by is None):
                return False
            self._current = self._pop()
            return True

    def _pop(self) -> Record | None:
        try:
            return self._queue.popleft()
        except IndexError:
            return None

    def _deliver(self, record: Record) -> None:
        """Deliver a record, as often as it takes."""
        pause = FIRST_PAUSE
        while not self.expired:
            outcome = guarded(self.exporter.export, record)
            self._note(outcome, "could not deliver")
            if outcome.failure is None or not isinstance(outcome.error, OSError):
                self._done(sent=outcome.failure is None)
                return
            pause = self._rest(pause)

    def _rest(self, pause: float) -> float:
        """Wait before the next attempt, and say how long the wait after that is: once time presses, there are more of them."""
        until, pressed = time.monotonic() + pause, self._closing_by is not None
        while (left := min(until, self._limit()) - time.monotonic()) > 0:
            self._changed.wait(left)
            self._changed.clear()
            if not pressed and self._closing_by is not None:
                return FIRST_PAUSE
        return min(2 * pause, LAST_PAUSE)

    def _limit(self) -> float:
        return inf if self._closing_by is None else self._closing_by

    def _done(self, sent: bool) -> None:
        with self._lock:
            if self._current is not None:  # else it was given up already
                self._sent += sent
                self._failed += not sent
                self._current = None
            if sent:
                self._error = ""

    def _left(self) -> int:
        return len(self._queue) + (self._current is not None)

    def _give_up(self) -> None:
        """Count what was not delivered in time, and say so: outside the lock, as whoever writes logs may take their time."""
        with self._lock:
            left = int(self._current is not None)
            self._current = None
            while self._pop() is not None:
                left += 1
            self._given_up += left
        if left:
            log.warning("exporter %s: %d records were not delivered in time", self.name, left)

    def _note(self, outcome: Outcome[Any], what: str) -> None:
        if outcome.failure is None:
            return
        self._error = f"{what}: {outcome.failure.detail}"
        kind = (what, type(outcome.error))
        if kind not in self._told:
            self._told.add(kind)
            log.warning("exporter %s %s", self.name, self._error)


def distinct(name: str, taken: Iterable[str]) -> str:
    """A name that nobody has yet: with a number behind it where somebody has."""
    known, number, found = set(taken), 1, name
    while found in known:
        number += 1
        found = f"{name}-{number}"
    return found
