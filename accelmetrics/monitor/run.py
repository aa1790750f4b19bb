"""A monitor between one start and the stop after it: what its ticker hands it, and where that goes.

Everything that begins anew with a start is here: counters, queues, what readings are compared with. What lasts longer is the
monitor's: history, windows, what the program logged.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isfinite
from typing import NamedTuple
from weakref import WeakSet

from accelmetrics.backends.flag import Flag
from accelmetrics.backends.guard import guarded
from accelmetrics.monitor.energy import Meter
from accelmetrics.monitor.export_worker import ExportWorker
from accelmetrics.monitor.history import History
from accelmetrics.monitor.rows import RowMaker
from accelmetrics.monitor.steps import StepLog
from accelmetrics.monitor.subscribers import Stream
from accelmetrics.monitor.ticker import Ticker
from accelmetrics.monitor.windows import Windows
from accelmetrics.schemas.record import MonitorStatus, Record
from accelmetrics.schemas.snapshot import Snapshot

CLOSE_TIMEOUT = 5.0
"""Seconds that a stop takes at most, while exporters deliver what is queued."""
LAST_READING = 1.5
"""In timeouts: how long a stop waits for the last reading."""
LAST_READING_SHARE = 0.5
"""Of a stop's time: how much of it that wait takes at most. The rest is the exporters'."""

Extra = Callable[[Snapshot], Mapping[str, int | float]]
"""Metrics of the watched program itself, read at every tick."""

log = logging.getLogger("accelmetrics")


class Kept(NamedTuple):
    """What a monitor keeps from one run to the next.

    Attributes:
        interval: Seconds between two ticks.
        timeout: Seconds within which a reading is answered.
        labels: Travel with every record.
        extras: Functions that give metrics of the program itself.
        history: Where ticks are remembered.
        windows: Where readings are summarised.
        steps: What the program logs.
    """

    interval: float
    timeout: float
    labels: Mapping[str, str]
    extras: Sequence[Extra]
    history: History
    windows: Windows
    steps: StepLog


class Run:
    """Listens to a ticker. Its methods are called by the ticker's thread, and those of the second half by the program's.

    Attributes:
        latest: The last reading, None before the first.
        error: Why no reading could be taken, in words; empty while they are taken.
        paused: Whether readings are passed over.
        workers: Where records go.
        begun: Whether it was begun without an interruption.
        over: Whether it is being stopped, or has been.
        left: Whether its last reading was taken, or none will be.
        pid: The process in which its threads are.
    """

    def __init__(self, kept: Kept, ticker: Ticker, workers: Iterable[ExportWorker]) -> None:
        self.latest: Snapshot | None = None
        self.error = ""
        self.paused = False
        self.workers = tuple(workers)
        self.begun = self.over = self.left = False
        self.pid = os.getpid()
        self._kept = kept
        self._ticker = ticker
        self._taking = threading.RLock()  # a signal handler may come to it again; the ticker holds it and waits for nobody
        self._streams: WeakSet[Stream] = WeakSet()
        self._rows = RowMaker()
        self._meter = Meter()
        self._joined = False
        self._settled = False
        self._ticks = self._missed = self._timed_out = 0

    # The ticker's side.

    def take(self, snapshot: Snapshot, at: float, tick: bool) -> None:
        """A reading."""
        if self.paused:
            return
        snapshot = self._with_extras(snapshot)
        with self._taking:
            if not self._settled and not self.paused:
                self._take(snapshot, at, tick)

    def miss(self, ticks: int) -> None:
        """Readings that were due and could not be taken."""
        if not self.paused:
            self._missed += ticks

    def fail(self, words: str) -> None:
        """A reading could not be taken at all: what is used until the next one is not known."""
        self._joined = False
        if words != self.error:
            self.error = words
            log.warning("no reading: %s", words)

    def _take(self, snapshot: Snapshot, at: float, tick: bool) -> None:
        row = self._rows.row(snapshot, at, self._joined)
        self._joined, self.error = True, ""
        self._kept.windows.feed(row)
        self._meter.add(row)
        if tick:
            self._ticks += 1
            self._timed_out += any(status.status == "timed_out" for status in snapshot.backends)
            self._kept.history.add(self._rows.tick_row(snapshot, row))
            self.latest = snapshot
            self._hand_out(snapshot)

    def _hand_out(self, snapshot: Snapshot) -> None:
        steps = self._kept.steps.take(self._meter)
        if self.workers:
            record = Record(snapshot, self._kept.labels, steps, self.status)
            for worker in self.workers:
                worker.put(record)
        for stream in list(self._streams):
            stream.put(snapshot)

    def _with_extras(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot with the program's own metrics: a new one, as others may have been given the same."""
        found: dict[str, int | float] = {}
        for extra in self._kept.extras:
            found.update(guarded(_numbers, extra, snapshot).value or {})
        return snapshot.with_metrics(found) if found else snapshot

    # The program's side.

    def begin(self) -> None:
        """Open the exporters and take the first reading, in the background."""
        for worker in self.workers:
            worker.start()
        self._ticker.join(self)
        if self.over:  # a signal handler has stopped it in between
            self._ticker.drop(self)
        self.begun = True

    def abandon(self) -> None:
        """End at once: another run begins, with the same workers."""
        self.over = True
        self._ticker.drop(self)
        self.settle()
        self.left, self.workers = True, ()

    def request(self) -> None:
        """Have a reading taken soon."""
        self._ticker.request()

    def pause(self) -> None:
        """Pass readings over; windows that have ended wait for none."""
        with self._taking:
            self.paused = True
        self._kept.windows.settle()

    def resume(self) -> None:
        """Go on, beginning with a reading at once."""
        with self._taking:
            if self.paused:
                self._joined = self.paused = False
        self.request()

    def follow(self, stream: Stream) -> bool:
        """Hand a loop every snapshot from now on; False when there will be none."""
        with self._taking:
            if not self._settled:
                self._streams.add(stream)
            return not self._settled

    def add(self, worker: ExportWorker) -> None:
        """Deliver to one more from now on."""
        with self._taking:
            if not self._settled:
                self.workers = (*self.workers, worker)  # first, for whoever stops it in between
                worker.start()

    def remove(self, worker: ExportWorker) -> None:
        """Deliver to one no more."""
        with self._taking:
            self.workers = tuple(other for other in self.workers if other is not worker)
        worker.drop()

    def settle(self) -> None:
        """Take no reading from now on: end what follows, deliver what was logged since the last one."""
        with self._taking:
            if self._settled:
                return
            self._settled = True
            streams = list(self._streams)
            steps = self._kept.steps.take(self._meter, everything=True)
        self._kept.windows.settle()
        for stream in streams:
            stream.put(None)
        if steps and self.latest is not None:
            record = Record(self.latest, self._kept.labels, steps, self.status)
            for worker in self.workers:
                worker.put(record)

    @property
    def status(self) -> MonitorStatus:
        """How it fares."""
        exporters = tuple(worker.status for worker in self.workers)
        return MonitorStatus(self._kept.interval, self._ticks, self._missed, self._timed_out, exporters)

    def leave(self, told: Flag) -> None:
        """Ask for the last reading; sets ``left``, and then the flag, when it was taken."""
        self.over = True

        def done() -> None:
            self.left = True
            told.set()

        self._ticker.leave(self, done)

    def last_reading_by(self, by: float) -> float:
        """Until when the last reading is waited for, where everything is to be over at a moment of ``time.monotonic``."""
        now = time.monotonic()
        return now + max(0.0, min(LAST_READING_SHARE * (by - now), LAST_READING * self._kept.timeout))

    def end(self, by: float) -> None:
        """After the last reading: deliver what is queued until a moment of ``time.monotonic``; does not wait for it."""
        self._ticker.drop(self)
        self.settle()
        for worker in self.workers:
            worker.close(by)


def end_all(runs: Sequence[Run], by: float) -> None:
    """Stop runs side by side, within one limit. Doing it again, or in two threads at once, changes nothing.

    Half of the time is for last readings. The exporters of each run have what is left when its own has come.

    Args:
        runs: Which.
        by: The moment of ``time.monotonic`` at which nobody waits any longer.
    """
    told = Flag()
    waiting = {run: run.last_reading_by(by) for run in runs}
    for run in runs:
        if not run.left:
            run.leave(told)
    while waiting:
        told.clear()
        ended = [run for run, until in waiting.items() if run.left or time.monotonic() >= until]
        for run in ended:
            del waiting[run]
            run.end(by)
        if waiting and not ended:
            told.wait(min(waiting.values()) - time.monotonic())
    for run in runs:
        for worker in run.workers:
            worker.join()


def _numbers(extra: Extra, snapshot: Snapshot) -> dict[str, int | float]:
    return {key: value for key, value in extra(snapshot).items() if type(value) is int or (type(value) is float and isfinite(value))}


def say_stayed(names: Iterable[str]) -> None:
    """In the child of a fork that starts a monitor: what it begins without."""
    log.warning(
        "monitor: %s stay with the process that started them and get no records of its child %d: make a Monitor of its own there, "
        "with a path or a port for each process",
        ", ".join(names),
        os.getpid(),
    )
