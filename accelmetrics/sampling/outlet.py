"""One exporter behind a bounded queue and a thread of its own: whatever it does, it costs nobody else anything.

``OSError`` means that a peer is away or a disk is full: the record stays at the head of the queue and is offered again after
a pause that doubles, while newer ones wait behind it and the oldest of those go when the queue is full. Any other exception
gives the record up. Both are told once, not at every tick.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque

from accelmetrics.backends.guard import Outcome, guarded
from accelmetrics.schemas.record import Exporter, ExporterStatus, Record

CAPACITY = 600
"""Records that wait at most: ten minutes at one a second."""
FIRST_PAUSE, LAST_PAUSE = 0.25, 30.0
"""Seconds between two attempts at the same record: at first, and at most."""

log = logging.getLogger("accelmetrics")


class Outlet:
    """An exporter's queue, thread and counters.

    Args:
        exporter: Where the records go.
        name: Under which it is counted.
        capacity: How many records wait at most.
    """

    def __init__(self, exporter: Exporter, name: str, capacity: int = CAPACITY) -> None:
        self.exporter = exporter
        self.name = name
        self._capacity = capacity
        self._queue: deque[Record] = deque()
        self._changed = threading.Condition()
        self._sent = self._failed = self._dropped = 0
        self._error = ""
        self._busy = False
        self._closing_by: float | None = None
        self._thread: threading.Thread | None = None

    @property
    def status(self) -> ExporterStatus:
        """How it fares."""
        return ExporterStatus(self.name, self._sent, self._failed, self._dropped, len(self._queue), self._error)

    def start(self) -> None:
        """Open the exporter, in the background."""
        self._closing_by = None
        thread = threading.Thread(target=self._run, name=f"accelmetrics-{self.name}", daemon=True)
        outcome = guarded(thread.start)  # no thread is to be had: the records will be counted as dropped
        self._thread = thread if outcome.failure is None else None
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
        """Wait until everything is delivered, at most so long; whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._queue and not self._busy, seconds)

    def close(self, by: float) -> None:
        """Deliver what is queued, until a moment of ``time.monotonic``, and close the exporter; does not wait for it."""
        with self._changed:
            self._closing_by = by
            self._changed.notify_all()

    def join(self) -> None:
        """Wait for the end, until the moment that ``close`` was given; what is left then is counted as dropped."""
        if self._thread is not None and self._closing_by is not None:
            self._thread.join(max(0.0, self._closing_by - time.monotonic()))
        with self._changed:
            left = len(self._queue)
            self._dropped += left
            self._queue.clear()
            self._changed.notify_all()
        if left:
            log.warning("exporter %s: %d records were not delivered in time", self.name, left)

    def _run(self) -> None:
        if self._until_done(None):
            while (record := self._next()) is not None:
                self._until_done(record)
        self._note(guarded(self.exporter.flush), "could not flush")
        self._note(guarded(self.exporter.close), "could not close")

    def _next(self) -> Record | None:
        """The record at the head of the queue; None at the end."""
        with self._changed:
            self._busy = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._queue or self._closing_by is not None)
            self._busy = bool(self._queue) and not self._overdue()
            return self._queue[0] if self._busy else None

    def _until_done(self, record: Record | None) -> bool:
        """Deliver a record, or open the exporter, as often as it takes; whether it may go on after that."""
        pause = FIRST_PAUSE
        while True:
            outcome = guarded(self.exporter.open) if record is None else guarded(self.exporter.export, record)
            if outcome.failure is None:
                self._error = ""
                return self._done(record, sent=True)
            self._note(outcome, "could not open" if record is None else "could not deliver")
            if record is not None and not isinstance(outcome.error, OSError):
                return self._done(record, sent=False)
            if self._rests(pause):
                return False
            pause = min(2 * pause, LAST_PAUSE)
            if record is not None and (not self._queue or self._queue[0] is not record):
                return True  # it was the oldest of a full queue, and has gone

    def _rests(self, pause: float) -> bool:
        """Wait before the next attempt; whether there will be none, as time is up."""
        with self._changed:
            closing = self._closing_by is not None
            self._changed.wait_for(lambda: not closing and self._closing_by is not None, pause)
            return self._overdue()

    def _overdue(self) -> bool:
        return self._closing_by is not None and time.monotonic() >= self._closing_by

    def _done(self, record: Record | None, sent: bool) -> bool:
        if record is None:
            return True
        with self._changed:
            if self._queue and self._queue[0] is record:
                self._queue.popleft()
            self._sent += sent
            self._failed += not sent
        return True

    def _note(self, outcome: Outcome[None], what: str) -> None:
        if outcome.failure is None:
            return
        words = f"{what}: {outcome.failure.detail}"
        if words != self._error:
            self._error = words
            log.warning("exporter %s %s", self.name, words)
