"""One worker thread per exporter with a bounded queue, retries and counts, reused across restarts of its monitor.

``OSError`` means that a peer is away or a disk is full: the record is offered again after a pause that doubles, while newer
ones wait behind it and the oldest of those go when the queue is full. Any other exception gives the record up. Each kind of
failure is logged once, not at every tick; the last one stands in the status.

An exporter is only ever called by its one thread. One that hangs keeps that thread: a monitor that is started again meanwhile
queues records, and the thread goes on with them when the call returns.
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
"""Records that wait at most: ten minutes at one a second."""
FIRST_PAUSE, LAST_PAUSE = 0.25, 30.0
"""Seconds between two attempts at the same record: at first, and at most."""
WAITS = "waits for a call that it did not return from before the monitor was stopped"
"""The error of an exporter that hung when its monitor was stopped, and still does when that is started again."""

_exporting: set[int] = set()
"""The threads that are exporters', by the identity that ``threading`` gives them when they run: one ``threading.local`` would be shared by
all green threads where gevent or eventlet is switched on after it was made."""
at_fork(after_in_child=_exporting.clear)


def on_exporter_thread() -> bool:
    """Return whether an exporter or a callback calls this: on its thread nothing may wait for exporters, which wait for it."""
    return threading.get_ident() in _exporting


class Delivery:
    """What an export worker does from one start to its close.

    Args:
        woken: Wakes the worker's thread.

    Attributes:
        by: The moment of ``time.monotonic`` until which what is queued is delivered; None until it is closed.
        hopeless_by: The same while the exporter only fails.
        failing: Whether the last attempt failed for what may pass.
        ended: Set when the exporter is closed, or a new delivery goes on with it.
    """

    def __init__(self, woken: Flag) -> None:
        self.by: float | None = None
        self.hopeless_by = float("inf")
        self.failing = False
        self.ended = Flag()
        self._woken = woken

    @property
    def expired(self) -> bool:
        """Whether its time is up."""
        return self.by is not None and time.monotonic() >= (min(self.by, self.hopeless_by) if self.failing else self.by)

    def close(self, by: float, hopeless_by: float = float("inf")) -> None:
        """Deliver what is queued until a moment of ``time.monotonic``, and close the exporter; does not wait for it."""
        self.hopeless_by = min(hopeless_by, self.hopeless_by)
        self.by = by if self.by is None else min(by, self.by)
        self._woken.set()


class ExportWorker:
    """An exporter's queue, thread and counters.

    Waits for no lock, since a stop may run in a signal handler that interrupts any other method: what two
    threads may both take (a record) is taken by one atomic call, and each count has one thread that adds to it.

    Args:
        exporter: Where the records go.
        name: Under which it is counted.
        capacity: Records that wait at most.
        opened: Called on the exporter's thread when it is open.
        read: The metrics that records have: an exporter whose own choice is a default is given what is named there too.
    """

    def __init__(
        self,
        exporter: Exporter,
        name: str,
        capacity: int = CAPACITY,
        opened: Callable[[], object] = lambda: None,
        *,
        read: MetricSelection = ALL_METRICS,
    ) -> None:
        self.exporter = exporter
        self.name = name
        selection = getattr(exporter, "metrics", None)
        self._selection = selection.widened(read) if isinstance(selection, MetricSelection) else ALL_METRICS
        self._capacity = capacity
        self._opened = opened
        self._thread = OnDemandThread(f"accelmetrics-{name}", lambda: self._delivery is not self._noticed, self._run)
        self._woken = Flag()
        self._delivery = self._noticed = Delivery(self._woken)  # the last that was started, and that the thread has noticed
        self._delivery.ended.set()
        self._queue: deque[Record] = deque()
        self._in_hand: deque[Record] = deque()  # the record that is being delivered: what removes it counts it
        self._flushes: deque[Flag] = deque()  # set when everything before them is delivered and flushed
        self._begin_counts()

    def _begin_counts(self) -> None:
        self._sent = self._failed = self._overflowed = 0
        self._given_up: list[int] = []  # records each time; appended to by any thread
        self._warn = WarnOnce()
        self._error = ""

    @property
    def status(self) -> ExporterStatus:
        """The counts and the last error since the exporter was started."""
        return ExporterStatus(self.name, self._sent, self._failed, self._overflowed + sum(self._given_up), self._left(), self._error)

    @property
    def _over(self) -> bool:
        return self._delivery.ended.is_set() or not self._thread.alive

    def start(self) -> Delivery:
        """Open the exporter in the background. One that is still delivering goes on, and is not opened anew."""
        before = self._delivery
        if before.expired or self._over:
            self._give_up()
            self._begin_counts()
            self._error = "" if self._over else WAITS
        begun = self._delivery = Delivery(self._woken)
        before.ended.set()  # a stop that still waits for it waits no more
        started = self._thread.start()
        if started.failure is not None:  # the records will be counted as dropped
            self._note(started, "has no thread")
        return begun

    def put(self, record: Record) -> None:
        """Have a record delivered. Waits for nothing."""
        if self._delivery.by is not None and self._over:
            self._overflowed += 1  # it comes too late
            return
        self._queue.append(record)
        if len(self._queue) > self._capacity and _taken(self._queue) is not None:
            self._overflowed += 1
        self._woken.set()

    def flush(self, seconds: float) -> bool:
        """Wait until everything is delivered and the exporter flushed, at most so long; whether it is.

        Does not wait on an exporter's thread.
        """
        if on_exporter_thread() or self._over:
            return not self._left()
        flushed = Flag()
        self._flushes.append(flushed)
        self._woken.set()
        return flushed.wait(seconds) and not self._left()

    def drop(self) -> None:
        """End without delivering what is queued."""
        self._queue.clear()
        self._delivery.close(time.monotonic())

    def join(self, delivery: Delivery) -> None:
        """Wait for the end of a delivery that was closed, until its time is up; what is left then is counted as dropped.

        Does not wait on an exporter's thread: what is queued is delivered nevertheless.
        """
        if delivery.by is None or on_exporter_thread():
            return
        for by in (min(delivery.by, delivery.hopeless_by), delivery.by):
            if self._thread.alive and not delivery.ended.is_set() and not delivery.expired:
                delivery.ended.wait(by - time.monotonic())
        if self._delivery is delivery:  # else it was started again meanwhile
            self._give_up()

    def _left(self) -> int:
        return len(self._queue) + len(self._in_hand)

    # On the worker's thread.

    def _run(self) -> None:
        """Open the exporter, deliver, and close it."""
        _exporting.add(threading.get_ident())
        try:
            delivery = self._noticed = self._delivery
            if not delivery.expired:
                if self._open():
                    delivery = self._deliver_all()
                    self._note(guarded(self.exporter.flush), "could not flush")
                self._note(guarded(self.exporter.close), "could not close")
            delivery.ended.set()
            if self._delivery is delivery:  # else what waits is of a new start
                self._give_up()
                while (flushed := _taken(self._flushes)) is not None:
                    flushed.set()
        finally:
            _exporting.discard(threading.get_ident())

    def _open(self) -> bool:
        """Open the exporter, as often as it takes; whether it is open."""
        pause = FIRST_PAUSE
        while not self._delivery.expired:
            outcome = guarded(self.exporter.open)
            self._delivery.failing = outcome.failure is not None
            if outcome.failure is None:
                self._error = ""
                self._opened()
                return True
            self._note(outcome, "could not open")
            pause = self._rest(pause)
        return False

    def _deliver_all(self) -> Delivery:
        """Deliver, for one start after another, until there is one that was closed; which."""
        while True:
            self._woken.clear()  # before looking: what comes later sets it again
            delivery = self._noticed = self._delivery
            if delivery.by is not None and (delivery.expired or not self._queue):
                return delivery
            record = _taken(self._queue)
            if record is not None:
                self._in_hand.append(record)
                self._deliver(record)
            elif (flushed := _taken(self._flushes)) is not None:
                self._note(guarded(self.exporter.flush), "could not flush")
                flushed.set()
            else:
                self._woken.wait()

    def _deliver(self, record: Record) -> None:
        """Deliver what is wanted of a record, as often as it takes."""
        pause = FIRST_PAUSE
        record = record._replace(snapshot=record.snapshot.selected(self._selection))
        while self._in_hand and not self._delivery.expired:
            outcome = guarded(self.exporter.export, record)
            self._note(outcome, "could not deliver")
            self._delivery.failing = isinstance(outcome.error, OSError)
            if self._delivery.failing:
                pause = self._rest(pause)
            elif _taken(self._in_hand) is not None:  # else it was given up already
                if outcome.failure is None:
                    self._sent += 1
                    self._error = ""
                else:
                    self._failed += 1

    def _rest(self, pause: float) -> float:
        """Wait before the next attempt; closing ends it early, as there is less time for attempts then.

        Returns:
            Seconds of the wait after that.
        """
        by = self._delivery.by
        until = min(time.monotonic() + pause, float("inf") if by is None else min(by, self._delivery.hopeless_by))
        while self._delivery.by == by and (left := until - time.monotonic()) > 0:
            self._woken.wait(left)
            self._woken.clear()
        return min(2 * pause, LAST_PAUSE) if self._delivery.by == by else FIRST_PAUSE

    def _give_up(self) -> None:
        """Count and log what was not delivered in time."""
        left = 0
        while _taken(self._in_hand) is not None or _taken(self._queue) is not None:
            left += 1
        if left:
            self._given_up.append(left)
            log.warning("exporter %s: %d records were not delivered in time", self.name, left)

    def _note(self, outcome: Outcome[Any], what: str) -> None:
        """Keep a failure for the status; log the first one of its kind."""
        if outcome.failure is None:
            return
        self._error = f"{what}: {outcome.failure.detail}"
        self._warn((what, type(outcome.error)), "exporter %s %s", self.name, self._error)


def _taken(items: deque[T]) -> T | None:
    """Remove and return the oldest item, None where there is none: one atomic call, where a check before it would be two."""
    try:
        return items.popleft()
    except IndexError:
        return None


def distinct(name: str, taken: Iterable[str]) -> str:
    """Return a name that is not taken: with a number behind it where the name is."""
    known = set(taken)
    return next(found for found in chain([name], (f"{name}-{number}" for number in count(2))) if found not in known)
