"""One exporter behind a bounded queue and a thread of its own: whatever it does, it costs nobody else anything.

``OSError`` means that a peer is away or a disk is full: the record is offered again after a pause that doubles, while newer
ones wait behind it and the oldest of those go when the queue is full. Any other exception gives the record up. Each kind of
failure is told once, not at every tick; what was wrong last stands in the status.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable

from accelmetrics.backends.guard import Outcome, guarded
from accelmetrics.schemas.record import Exporter, ExporterStatus, Record

CAPACITY = 600
"""Records that wait at most: ten minutes at one a second."""
FIRST_PAUSE, LAST_PAUSE = 0.25, 30.0
"""Seconds between two attempts at the same record: at first, and at most."""

log = logging.getLogger("accelmetrics")


class Outlet:
    """An exporter's queue, thread and counters, from one start of a monitor to its stop.

    Args:
        exporter: Where the records go.
        name: Under which it is counted.
        before: The outlet that the exporter had until now: it is left to end, since an exporter is called by one thread only.
        capacity: How many records wait at most.
    """

    def __init__(self, exporter: Exporter, name: str, before: Outlet | None = None, capacity: int = CAPACITY) -> None:
        self.exporter = exporter
        self.name = name
        self._before = before
        self._capacity = capacity
        self._queue: deque[Record] = deque()
        self._changed = threading.Condition()
        self._sent = self._failed = self._dropped = 0
        self._error = ""
        self._told: set[tuple[str, type]] = set()
        self._current: Record | None = None
        self._flushes = self._flushed = 0
        self._closing_by: float | None = None
        self._begun = self._over = False
        self._thread: threading.Thread | None = None

    @property
    def status(self) -> ExporterStatus:
        """How it fares."""
        queued = len(self._queue) + (self._current is not None)
        return ExporterStatus(self.name, self._sent, self._failed, self._dropped, queued, self._error)

    @property
    def is_current(self) -> bool:
        """Whether this is called on the exporter's own thread."""
        return self._thread is threading.current_thread()

    def start(self) -> None:
        """Open the exporter, in the background."""
        self._thread = threading.Thread(target=self._run, name=f"accelmetrics-{self.name}", daemon=True)
        outcome = guarded(self._thread.start)  # no thread is to be had: the records will be counted as dropped
        self._begun = outcome.failure is None
        self._over = not self._begun
        self._note(outcome, "has no thread")

    def put(self, record: Record) -> None:
        """Have a record delivered; never waits for the exporter."""
        with self._changed:
            if len(self._queue) >= self._capacity:
                self._queue.popleft()
                self._dropped += 1
            self._queue.append(record)
            self._changed.notify_all()

    def flush(self, seconds: float) -> bool:
        """Wait until everything is delivered, and the exporter flushed, at most so long; whether it is."""
        if self.is_current:
            return False
        with self._changed:
            self._flushes += 1
            wanted = self._flushes
            self._changed.notify_all()
            return self._changed.wait_for(lambda: self._flushed >= wanted or self._over, seconds) and not self._left()

    def close(self, by: float) -> None:
        """Deliver what is queued, until a moment of ``time.monotonic``, and close the exporter; does not wait for it."""
        with self._changed:
            self._closing_by = by if self._closing_by is None else min(by, self._closing_by)
            self._changed.notify_all()

    def drop(self) -> None:
        """End without delivering what is queued: nobody wants it any more."""
        with self._changed:
            self._queue.clear()
            self._closing_by = time.monotonic()
            self._changed.notify_all()

    def join(self) -> None:
        """Wait for the end, until the moment that ``close`` was given; what is left then is counted as dropped."""
        if self.is_current:
            return  # a callback that stops the monitor: it goes on when that has returned
        self._await(0.0 if self._closing_by is None else max(0.0, self._closing_by - time.monotonic()))
        self._give_up()

    def _await(self, seconds: float | None) -> None:
        """Wait for the thread's end; one whose start was interrupted does nothing when it comes to run after all."""
        with self._changed:
            self._over = self._over or not self._begun
            thread = self._thread
        if self._begun and thread is not None:
            thread.join(seconds)

    def _run(self) -> None:
        with self._changed:
            if self._over:
                return
            self._begun = True
        before, self._before = self._before, None
        if before is not None:
            self._error = "waits for a call that it did not return from before the monitor was stopped"
            before._await(None)
        self._error = ""
        if self._open():
            self._deliver_all()
            self._note(guarded(self.exporter.flush), "could not flush")
        self._note(guarded(self.exporter.close), "could not close")
        self._give_up()
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def _open(self) -> bool:
        """Open the exporter, as often as it takes; whether it is open."""
        pause = FIRST_PAUSE
        while not self._overdue():
            outcome = guarded(self.exporter.open)
            if outcome.failure is None:
                self._error = ""
                return True
            self._note(outcome, "could not open")
            pause = self._rest(pause)
        return False

    def _deliver_all(self) -> None:
        while self._next():
            if self._current is not None:
                self._deliver(self._current)
                continue
            wanted = self._flushes
            self._note(guarded(self.exporter.flush), "could not flush")
            with self._changed:
                self._flushed = wanted
                self._changed.notify_all()

    def _next(self) -> bool:
        """Wait for a record, or for a flush that somebody asked for; False at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._flushed < self._flushes or self._closing_by is not None)
            if self._overdue() or not (self._queue or self._closing_by is None):
                return False
            self._current = self._queue.popleft() if self._queue else None
            return True

    def _deliver(self, record: Record) -> None:
        """Deliver a record, as often as it takes."""
        pause = FIRST_PAUSE
        while not self._overdue():
            outcome = guarded(self.exporter.export, record)
            self._note(outcome, "could not deliver")
            if outcome.failure is None or not isinstance(outcome.error, OSError):
                self._done(sent=outcome.failure is None)
                return
            pause = self._rest(pause)

    def _rest(self, pause: float) -> float:
        """Wait before the next attempt, and say how long the wait after that is: once time presses, there are more of them."""
        with self._changed:
            if self._closing_by is not None:
                self._changed.wait_for(lambda: False, max(0.0, min(pause, self._closing_by - time.monotonic())))
            elif self._changed.wait_for(lambda: self._closing_by is not None, pause):
                return FIRST_PAUSE
        return min(2 * pause, LAST_PAUSE)

    def _overdue(self) -> bool:
        return self._closing_by is not None and time.monotonic() >= self._closing_by

    def _done(self, sent: bool) -> None:
        with self._changed:
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
        with self._changed:
            left = self._left()
            self._dropped += left
            self._queue.clear()
            self._current = None
            self._changed.notify_all()
        if left:
            log.warning("exporter %s: %d records were not delivered in time", self.name, left)

    def _note(self, outcome: Outcome[None], what: str) -> None:
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
