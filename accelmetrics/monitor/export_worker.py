"""Export workers: a thread per exporter with a bounded queue, retries and counters, reused when the monitor restarts.

``OSError`` means that a peer is unreachable or a disk is full: the record is retried after a pause that doubles. Newer records wait behind
it; when the queue is full, the oldest of these are dropped. After any other exception the record is given up. Each kind of failure is
logged once, not at every tick. The status contains the last failure.

Only its thread calls an exporter. If an exporter hangs, its thread hangs with it. If the monitor is restarted meanwhile, records are
queued, and the thread continues with them when the call returns.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from itertools import chain, count
from typing import Any, TypeVar

from accelmetrics.backends.guard import Outcome, WarnOnce, at_fork, guarded
from accelmetrics.sampling.threads import Flag, OnDemandThread
from accelmetrics.schemas.log import log
from accelmetrics.schemas.record import Exporter, ExporterStatus, Record
from accelmetrics.schemas.selection import ALL_METRICS, MetricSelection

T = TypeVar("T")

CAPACITY = 600
"""Maximum length of the queue: ten minutes at one record per second."""
FIRST_PAUSE, LAST_PAUSE = 0.25, 30.0
"""First and longest pause between two attempts to deliver a record, in seconds."""
STILL_HANGS = "a call that began before the monitor was stopped still hangs"
"""Error of an exporter that hung when its monitor was stopped and still hangs when the monitor is restarted."""

# Identities of running exporter threads. A threading.local would not do: if gevent or eventlet is switched on after it was created, all
# green threads share it.
_exporting: set[int] = set()
at_fork(after_in_child=_exporting.clear)


def on_exporter_thread() -> bool:
    """Return whether the caller runs on an exporter's thread. There, waiting for exporters would be a deadlock."""
    return threading.get_ident() in _exporting


class Delivery:
    """The state of an export worker from one start to the close after it.

    Args:
        woken: Flag that wakes the worker's thread.

    Attributes:
        deadline: Deadline on ``time.monotonic`` for delivering the queue; None until the delivery is closed.
        failing_deadline: Deadline while all attempts fail.
        failing: Whether the last attempt failed with an error that may be temporary.
        ended: Set when the exporter is closed, or when a new delivery takes over.
    """

    def __init__(self, woken: Flag) -> None:
        self.deadline: float | None = None
        self.failing_deadline = float("inf")
        self.failing = False
        self.ended = Flag()
        self._woken = woken

    @property
    def expired(self) -> bool:
        """Whether the deadline has passed."""
        return self.deadline is not None and time.monotonic() >= (
            min(self.deadline, self.failing_deadline) if self.failing else self.deadline
        )

    def close(self, deadline: float, failing_deadline: float = float("inf")) -> None:
        """Set the deadline on ``time.monotonic`` for delivering the queue and closing the exporter. Returns at once."""
        self.failing_deadline = min(failing_deadline, self.failing_deadline)
        self.deadline = deadline if self.deadline is None else min(deadline, self.deadline)
        self._woken.set()


class ExportWorker:
    """An exporter's queue, thread and counters.

    It has no lock, because a signal handler may interrupt any method and stop the monitor. Two threads may take the same record, so
    taking one is a single atomic call. Each counter is changed by a single thread.

    Args:
        exporter: The exporter.
        name: Name in the status and in log messages.
        opened: Function that is called on the exporter's thread when it is open.
        read: Metrics that the monitor reads. An exporter with a default selection also gets the metrics that are named there.
    """

    def __init__(
        self,
        exporter: Exporter,
        name: str,
        opened: Callable[[], object] = lambda: None,
        *,
        read: MetricSelection = ALL_METRICS,
    ) -> None:
        self.exporter = exporter
        self.name = name
        selection = getattr(exporter, "metrics", None)
        self._selection = selection.widened(read) if isinstance(selection, MetricSelection) else ALL_METRICS
        self._opened = opened
        self._thread = OnDemandThread(f"accelmetrics-{name}", lambda: self._delivery is not self._seen_delivery, self._run)
        self._woken = Flag()
        self._delivery = self._seen_delivery = Delivery(self._woken)  # the latest start, and the latest that the thread has seen
        self._delivery.ended.set()
        self._queue: deque[Record] = deque()
        self._delivering: deque[Record] = deque()  # the record that is being delivered; whoever removes it counts it
        self._flushes: deque[Flag] = deque()  # set when everything before them is delivered and flushed
        self._begin_counts()

    def _begin_counts(self) -> None:
        self._sent = self._failed = self._overflowed = 0
        self._given_up: list[int] = []  # number of records each time; any thread may append
        self._warn = WarnOnce()
        self._error = ""

    @property
    def status(self) -> ExporterStatus:
        """The counters and the last error since the last start."""
        return ExporterStatus(self.name, self._sent, self._failed, self._overflowed + sum(self._given_up), self._undelivered(), self._error)

    @property
    def _closed(self) -> bool:
        return self._delivery.ended.is_set() or not self._thread.alive

    def start(self) -> Delivery:
        """Start a delivery in the background. An exporter that is still open continues without being opened again."""
        before = self._delivery
        if before.expired or self._closed:
            self._give_up()
            self._begin_counts()
            self._error = "" if self._closed else STILL_HANGS
        begun = self._delivery = Delivery(self._woken)
        before.ended.set()  # ends the wait of a stop that is still in progress
        started = self._thread.start()
        if started.failure is not None:  # records will be counted as dropped
            self._record_failure(started, "no thread can be started")
        return begun

    def put(self, record: Record) -> None:
        """Queue a record for delivery. Never blocks."""
        if self._delivery.deadline is not None and self._closed:
            self._overflowed += 1  # the exporter is already closed
            return
        self._queue.append(record)
        if len(self._queue) > CAPACITY and _pop_oldest(self._queue) is not None:
            self._overflowed += 1
        self._woken.set()

    def flush(self, seconds: float) -> bool:
        """Wait at most so many seconds until all records are delivered and flushed. Return whether they are.

        On an exporter's thread it returns at once.
        """
        if on_exporter_thread() or self._closed:
            return not self._undelivered()
        flushed = Flag()
        self._flushes.append(flushed)
        self._woken.set()
        return flushed.wait(seconds) and not self._undelivered()

    def drop(self) -> None:
        """End without delivering the queue."""
        self._queue.clear()
        self._delivery.close(time.monotonic())

    def join(self, delivery: Delivery) -> None:
        """Wait until a closed delivery ends or its deadline passes. Records that are left then are counted as dropped.

        On an exporter's thread it returns at once, and the queue is delivered nevertheless.
        """
        if delivery.deadline is None or on_exporter_thread():
            return
        for deadline in (min(delivery.deadline, delivery.failing_deadline), delivery.deadline):
            if self._thread.alive and not delivery.ended.is_set() and not delivery.expired:
                delivery.ended.wait(deadline - time.monotonic())
        if self._delivery is delivery:  # after a restart, the records belong to the new delivery
            self._give_up()

    def _undelivered(self) -> int:
        return len(self._queue) + len(self._delivering)

    # On the worker's thread.

    def _run(self) -> None:
        """Open the exporter, deliver records, and close it. Runs on the worker's thread."""
        _exporting.add(threading.get_ident())
        try:
            delivery = self._seen_delivery = self._delivery
            if not delivery.expired:
                if self._open():
                    delivery = self._deliver_all()
                    self._record_failure(guarded(self.exporter.flush), "could not flush")
                self._record_failure(guarded(self.exporter.close), "could not close")
            delivery.ended.set()
            if self._delivery is delivery:  # after a restart, the records belong to the new delivery
                self._give_up()
                while (flushed := _pop_oldest(self._flushes)) is not None:
                    flushed.set()
        finally:
            _exporting.discard(threading.get_ident())

    def _open(self) -> bool:
        """Open the exporter, retrying until the deadline. Return whether it is open."""
        pause = FIRST_PAUSE
        while not self._delivery.expired:
            outcome = guarded(self.exporter.open)
            self._delivery.failing = outcome.failure is not None
            if outcome.failure is None:
                self._error = ""
                self._opened()
                return True
            self._record_failure(outcome, "could not open")
            pause = self._pause(pause)
        return False

    def _deliver_all(self) -> Delivery:
        """Deliver records, across restarts, until a delivery is closed. Return this delivery."""
        while True:
            self._woken.clear()  # before checking, so that a later event sets it again
            delivery = self._seen_delivery = self._delivery
            if delivery.deadline is not None and (delivery.expired or not self._queue):
                return delivery
            record = _pop_oldest(self._queue)
            if record is not None:
                self._delivering.append(record)
                self._deliver(record)
            elif (flushed := _pop_oldest(self._flushes)) is not None:
                self._record_failure(guarded(self.exporter.flush), "could not flush")
                flushed.set()
            else:
                self._woken.wait()

    def _deliver(self, record: Record) -> None:
        """Deliver a record with the exporter's metrics, retrying temporary failures until the deadline."""
        pause = FIRST_PAUSE
        record = record._replace(snapshot=record.snapshot.selected(self._selection))
        while self._delivering and not self._delivery.expired:
            outcome = guarded(self.exporter.export, record)
            self._record_failure(outcome, "could not deliver")
            self._delivery.failing = isinstance(outcome.error, OSError)
            if self._delivery.failing:
                pause = self._pause(pause)
            elif _pop_oldest(self._delivering) is not None:  # None if join() has already given it up
                if outcome.failure is None:
                    self._sent += 1
                    self._error = ""
                else:
                    self._failed += 1

    def _pause(self, pause: float) -> float:
        """Wait before the next attempt.

        Returns:
            The pause after that, in seconds.
        """
        # Closing the delivery ends the pause early, because less time is left for attempts.
        deadline = self._delivery.deadline
        until = min(time.monotonic() + pause, float("inf") if deadline is None else min(deadline, self._delivery.failing_deadline))
        while self._delivery.deadline == deadline and (left := until - time.monotonic()) > 0:
            self._woken.wait(left)
            self._woken.clear()
        return min(2 * pause, LAST_PAUSE) if self._delivery.deadline == deadline else FIRST_PAUSE

    def _give_up(self) -> None:
        """Drop the records that were not delivered in time, and count and log them."""
        left = 0
        while _pop_oldest(self._delivering) is not None or _pop_oldest(self._queue) is not None:
            left += 1
        if left:
            self._given_up.append(left)
            log.warning("exporter %s: %d records were not delivered in time", self.name, left)

    def _record_failure(self, outcome: Outcome[Any], what: str) -> None:
        """Store a failure for the status, and log the first of each kind."""
        if outcome.failure is None:
            return
        self._error = f"{what}: {outcome.failure.detail}"
        self._warn((what, type(outcome.error)), "exporter %s %s", self.name, self._error)


def _pop_oldest(items: deque[T]) -> T | None:
    """Remove and return the oldest item; None if there is none."""
    # One atomic call. A check before it would be a second call, between which another thread may act.
    try:
        return items.popleft()
    except IndexError:
        return None


def distinct(name: str, taken: Iterable[str]) -> str:
    """Return the name, with a number appended if it is already taken."""
    known = set(taken)
    return next(found for found in chain([name], (f"{name}-{number}" for number in count(2))) if found not in known)
