"""One worker thread per exporter with a bounded queue, retries and counts, reused across restarts of its monitor.

``OSError`` means that a peer is away or a disk is full: the record is offered again after a pause that doubles, while newer
ones wait behind it and the oldest of those go when the queue is full. Any other exception gives the record up. Each kind of
failure is logged once, not at every tick; the last one stands in the status.

An exporter is only ever called by its one thread. One that hangs keeps that thread: a monitor that is started again meanwhile
queues records, and the thread goes on with them when the call returns.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from accelmetrics.backends.guard import Outcome, guarded
from accelmetrics.monitor.ticker import Flag, OnDemandThread
from accelmetrics.schemas.record import Exporter, ExporterStatus, Record

T = TypeVar("T")

CAPACITY = 600
"""Records that wait at most: ten minutes at one a second."""
FIRST_PAUSE, LAST_PAUSE = 0.25, 30.0
"""Seconds between two attempts at the same record: at first, and at most."""
WAITS = "waits for a call that it did not return from before the monitor was stopped"
"""The error of an exporter that hung when its monitor was stopped, and still does when that is started again."""

log = logging.getLogger("accelmetrics")
_current = threading.local()  # .worker: the worker whose thread this is


class ExportWorker:
    """An exporter's queue, thread and counters.

    Waits for no lock, since ``close`` and ``join`` may run in a signal handler that interrupts any other method: what two
    threads may both take (a record, the right to give up) is taken by one atomic call.

    Args:
        exporter: Where the records go.
        name: Under which it is counted.
        capacity: Records that wait at most.
        opened: Called on the exporter's thread when it is open.
    """

    def __init__(self, exporter: Exporter, name: str, capacity: int = CAPACITY, opened: Callable[[], object] = lambda: None) -> None:
        self.exporter = exporter
        self.name = name
        self._capacity = capacity
        self._opened = opened
        self._thread = OnDemandThread(f"accelmetrics-{name}", lambda: self._served < self._starts, self._run)
        self._woken = Flag()
        self._queue: deque[Record] = deque()
        self._in_hand: deque[Record] = deque()  # the record that is being delivered: what removes it counts it
        self._starts = self._served = 0
        self._sent = self._failed = self._dropped = 0
        self._error = ""
        self._told: set[tuple[str, type]] = set()
        self._flushes = self._flushed = 0
        self._closing_by: float | None = None
        self._giving_up = threading.Lock()  # only ever tried, never waited for
        self._waiting: list[Flag] = []
        self._waits = False  # whether its thread waits for another worker's

    @property
    def status(self) -> ExporterStatus:
        """The counts and the last error since the exporter was started."""
        return ExporterStatus(self.name, self._sent, self._failed, self._dropped, self._left(), self._error)

    @property
    def _expired(self) -> bool:
        return self._closing_by is not None and time.monotonic() >= self._closing_by

    @property
    def _over(self) -> bool:
        return self._served >= self._starts or not self._thread.alive

    def start(self) -> None:
        """Open the exporter in the background. One that is still delivering goes on, and is not opened anew."""
        if self._expired or self._over:
            if self._starts:
                self._give_up()
            self._sent = self._failed = self._dropped = 0
            self._told = set()
            self._error = "" if self._over else WAITS
        self._closing_by = None
        self._starts += 1
        self._tell()
        started = self._thread.start()
        if started.failure is not None:  # the records will be counted as dropped
            self._note(started, "has no thread")

    def put(self, record: Record) -> None:
        """Have a record delivered. Waits for nothing."""
        if self._closing_by is not None and self._over:
            self._dropped += 1  # it comes too late
            return
        self._queue.append(record)
        if len(self._queue) > self._capacity and _taken(self._queue) is not None:
            self._dropped += 1
        self._woken.set()

    def flush(self, seconds: float) -> bool:
        """Wait until everything is delivered and the exporter flushed, at most so long; whether it is."""
        if self._thread.is_current:
            return False
        wanted = self._flushes = self._flushes + 1
        self._woken.set()
        return self._wait(lambda: self._flushed >= wanted or self._over, time.monotonic() + seconds) and not self._left()

    def close(self, by: float) -> None:
        """Deliver what is queued until a moment of ``time.monotonic``, and close the exporter; does not wait for it."""
        self._closing_by = by if self._closing_by is None else min(by, self._closing_by)
        self._woken.set()

    def drop(self) -> None:
        """End without delivering what is queued."""
        self._queue.clear()
        self.close(time.monotonic())

    def join(self) -> None:
        """Wait for the end, until the moment that ``close`` was given; what is left then is counted as dropped.

        Does not wait on the exporter's own thread, nor on one whose end this exporter waits for: what is queued is delivered
        after that.
        """
        by = self._closing_by
        if self._thread.is_current or by is None:
            return
        ended = self._wait(lambda: self._closing_by is None or self._over, by)
        if self._closing_by is not None and (ended or self._expired):
            self._give_up()

    def _wait(self, reached: Callable[[], bool], by: float) -> bool:
        """Wait for something that the worker's thread does, at most until a moment of ``time.monotonic``; whether it is so.

        Workers' threads that wait for each other would wait in vain: one of them does not wait for another that waits too.
        """
        own: ExportWorker | None = getattr(_current, "worker", None)
        told = Flag()
        self._waiting.append(told)
        try:
            if own is not None:
                own._waits = True
                own._tell()
            while not reached() and (left := by - time.monotonic()) > 0 and not (own is not None and self._waits):
                told.wait(left)
                told.clear()
        finally:
            if own is not None:
                own._waits = False
            self._waiting.remove(told)
        return reached()

    def _tell(self) -> None:
        """Have those look that wait for this worker."""
        for told in self._waiting.copy():
            told.set()

    def _left(self) -> int:
        return len(self._queue) + len(self._in_hand)

    # On the worker's thread.

    def _run(self) -> None:
        """Open the exporter, deliver, and close it."""
        _current.worker = self
        starts = self._starts
        if not self._expired:
            if self._open():
                starts = self._deliver_all()
                self._note(guarded(self.exporter.flush), "could not flush")
            self._note(guarded(self.exporter.close), "could not close")
        if self._closing_by is not None:
            self._give_up()
        self._served = starts
        self._tell()

    def _open(self) -> bool:
        """Open the exporter, as often as it takes; whether it is open."""
        pause = FIRST_PAUSE
        while not self._expired:
            outcome = guarded(self.exporter.open)
            if outcome.failure is None:
                self._error = ""
                self._opened()
                return True
            self._note(outcome, "could not open")
            pause = self._rest(pause)
        return False

    def _deliver_all(self) -> int:
        """Deliver until the worker is closed; the number of starts that are dealt with by then."""
        while True:
            self._woken.clear()  # before looking: what comes later sets it again
            starts, flushes = self._starts, self._flushes
            if self._closing_by is not None and (self._expired or not self._queue):
                return starts
            record = _taken(self._queue)
            if record is not None:
                self._in_hand.append(record)
                self._deliver(record)
            elif self._flushed < flushes:
                self._note(guarded(self.exporter.flush), "could not flush")
                self._flushed = flushes
                self._tell()
            else:
                self._woken.wait()

    def _deliver(self, record: Record) -> None:
        """Deliver a record, as often as it takes."""
        pause = FIRST_PAUSE
        while self._in_hand and not self._expired:
            outcome = guarded(self.exporter.export, record)
            self._note(outcome, "could not deliver")
            if outcome.failure is not None and isinstance(outcome.error, OSError):
                pause = self._rest(pause)
            elif _taken(self._in_hand) is not None:  # else it was given up already
                if outcome.failure is None:
                    self._sent += 1
                    self._error = ""
                else:
                    self._failed += 1

    def _rest(self, pause: float) -> float:
        """Wait before the next attempt.

        Returns:
            Seconds of the wait after that. Closing ends this one early, as there is less time for attempts then.
        """
        until, pressed = time.monotonic() + pause, self._closing_by is not None
        while (left := min(until, until if self._closing_by is None else self._closing_by) - time.monotonic()) > 0:
            self._woken.wait(left)
            self._woken.clear()
            if not pressed and self._closing_by is not None:
                return FIRST_PAUSE
        return min(2 * pause, LAST_PAUSE)

    def _give_up(self) -> None:
        """Count and log what was not delivered in time."""
        if not self._giving_up.acquire(blocking=False):
            return
        try:
            left = 0
            while _taken(self._in_hand) is not None or _taken(self._queue) is not None:
                left += 1
            self._dropped += left
        finally:
            self._giving_up.release()
        if left:
            log.warning("exporter %s: %d records were not delivered in time", self.name, left)

    def _note(self, outcome: Outcome[Any], what: str) -> None:
        """Keep a failure for the status; log the first one of its kind."""
        if outcome.failure is None:
            return
        self._error = f"{what}: {outcome.failure.detail}"
        kind = (what, type(outcome.error))
        if kind not in self._told:
            self._told.add(kind)
            log.warning("exporter %s %s", self.name, self._error)


def _taken(records: deque[T]) -> T | None:
    """Remove and return the oldest item, None where there is none: one atomic call, where a check before it would be two."""
    try:
        return records.popleft()
    except IndexError:
        return None


def distinct(name: str, taken: Iterable[str]) -> str:
    """Return a name that is not taken: with a number behind it where the name is."""
    known, number, found = set(taken), 1, name
    while found in known:
        number += 1
        found = f"{name}-{number}"
    return found
