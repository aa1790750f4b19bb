"""One backend within this process: found, opened, read, lost and opened again."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Literal
from weakref import WeakSet

from accelmetrics.backends.clock import Clock
from accelmetrics.backends.contract import Backend, Coverage, Detection, Driver, ReadOptions
from accelmetrics.backends.guard import Outcome, guarded
from accelmetrics.backends.registry import is_loaded
from accelmetrics.sampling.boundary import Opened, checked_devices, coverage, detect, open_driver
from accelmetrics.sampling.cursor import Cursor
from accelmetrics.sampling.lanes import MAX_LANES, Crew, Flight, Lane
from accelmetrics.schemas.errors import AccelMetricsError, DriverGoneError
from accelmetrics.schemas.identity import DeviceIdentity
from accelmetrics.schemas.metric import Metric
from accelmetrics.schemas.reasons import Reason, Unavailable

State = Literal["new", "absent", "opening", "open", "failed"]

SLOW_READING = 0.002
"""Seconds of work per reading above which more lanes than one share it."""
FIRST_RETRY, LAST_RETRY = 1.0, 60.0
"""Back-off between attempts to open a source that failed, in seconds: doubled from the first to the last."""
INTEREST = 60.0
"""A source with a pace of its own goes on for so many seconds after it was last asked for."""
IDLE_PAUSE = 0.05
"""The shortest wait before a source with a pace of its own is looked at again, in seconds."""
CLOSING = 1.0
"""Seconds that closing a source waits for its driver to be closed."""
OPENING = -1
"""The unit number under which the flight that opens the driver is kept."""


class Source:
    """A backend, its driver while that is open, and the lanes that call it.

    Attributes:
        state: ``new``, ``absent`` (detection found nothing), ``opening``, ``open``, ``failed``.
        detection: What detection found.
        coverage: Which metrics the backend gives; nothing while its module is not loaded.
        driver: The open driver.
        devices: The devices of the last open driver, as :meth:`look` found them; kept when it goes away.
        generation: How often a driver was opened.
        failure: Why the source is not open, in words and as a reason.
        advice: What to do about it.
        open_seconds: How long the last attempt to open took.
        settled: Set while no attempt to open is in progress.
        busy_seconds: How much work the last whole reading was, added up over its units.
        retired: Drivers that went away and are closed as soon as no call into them is in progress.
        rows: Catalogue rows that only this backend knows, as it gave them when it was opened.
    """

    def __init__(self, backend: Backend, clock: Clock) -> None:
        self.backend = backend
        self.clock = clock
        self.crew = Crew(backend.name, self._read_at_own_pace, self._until_due)
        self.state: State = "new"
        self.detection = Detection(False, "not looked for yet")
        self.coverage = Coverage()
        if is_loaded(backend):
            self._learn_coverage()
        self.driver: Driver | None = None
        self.devices: tuple[DeviceIdentity, ...] = ()
        self._listed: Sequence[DeviceIdentity] | None = None
        self.generation = 0
        self.failure: Unavailable | None = None
        self.advice = ""
        self.open_seconds: float | None = None
        self.opening_since = 0.0
        self.settled = threading.Event()
        self.settled.set()
        self.busy_seconds = 0.0
        self.cursors: WeakSet[Cursor] = WeakSet()
        self.retired: list[Driver] = []
        self.rows: tuple[Metric, ...] = ()
        self._closed = False
        self._burial = threading.Lock()
        self._lock = threading.Lock()
        self._attempts = 0
        self._retry_at = 0.0

    @property
    def interval(self) -> float:
        """Seconds between two readings, 0 where it is read when asked: the open driver's own, where it has one."""
        interval: float = getattr(self.driver, "interval", self.backend.interval)
        return interval

    @property
    def paced(self) -> bool:
        """Whether it is read in the background at an interval of its own."""
        return self.interval > 0

    @property
    def lanes(self) -> int:
        """How many lanes the next reading should have, from how much work the last one was."""
        if self.busy_seconds <= SLOW_READING or self.paced:
            return 1
        return min(MAX_LANES, 1 + int(self.busy_seconds / SLOW_READING), max(1, len(self.devices)))

    @property
    def pace(self) -> float:
        """Seconds between two readings of a source that is read in the background.

        Its own interval, or twice what a reading takes, so that a slow command never runs more than half of the time.
        """
        return max(self.interval, 2.0 * self.busy_seconds)

    def ensure_open(self, forced: bool) -> bool:
        """Begin to look for the hardware and to open the source, on a lane, if that is due.

        Args:
            forced: Open it whatever detection says: it was asked for by name.

        Returns:
            Whether an attempt was begun now.
        """
        if self.state in {"open", "opening"}:
            return False
        with self._lock:
            now = self.clock.monotonic()
            if self.state in {"open", "opening"} or (
                self.state != "new" and now < self._retry_at and not (forced and self.state == "absent")
            ):
                return False
            self.state = "opening"
            self.opening_since = time.monotonic()
            self.settled.clear()
        if self.crew.staff(1):
            self.crew.queue.put(self._open_forced if forced else self._open_if_found)
            return True
        with self._lock:
            self._fail(Unavailable(Reason.DRIVER_ERROR, "no thread is to be had to open it with"), None)
        self.settled.set()
        return False

    def _open_forced(self, lane: Lane) -> None:
        self._open(lane, True)

    def _open_if_found(self, lane: Lane) -> None:
        self._open(lane, False)

    def _open(self, lane: Lane, forced: bool) -> None:
        """Detect, and open what is there or was asked for by name. On a lane: even a look may hang (a dead mount)."""
        flight = Flight(OPENING, None, lane)
        self.crew.flights[OPENING] = flight
        self.bury()
        looked = guarded(detect, self.backend)
        self.detection = looked.value or Detection(True, looked.failure.detail if looked.failure else "detection gave nothing")
        outcome = None
        if self.detection.present or forced:
            self._learn_coverage()
            outcome = guarded(open_driver, self.backend)
        self.crew.landed(flight)
        if outcome is None or outcome.value is None:
            self.crew.send_home(lane)  # before anybody can ask again: there is nothing to read, and no thread to keep
        with self._lock:
            self._settle(outcome)
            if self._closed:
                self._retire()
                self.state = "new"
        self.bury()
        self.open_seconds = outcome.seconds if outcome is not None else None
        self.settled.set()

    def _learn_coverage(self) -> None:
        self.coverage = guarded(coverage, self.backend).value or Coverage()

    def _settle(self, outcome: Outcome[Opened] | None) -> None:
        """Note what came of an attempt to open; no outcome means that detection found nothing."""
        gone = Unavailable(Reason.DRIVER_UNAVAILABLE, self.detection.evidence)
        if outcome is not None and outcome.value is not None:
            self.driver, self.devices, self.rows = outcome.value
            self.generation += 1
            self.state, self.failure, self.advice, self._attempts = "open", None, "", 0
        elif outcome is not None:
            self._fail(outcome.failure, outcome.error)
        elif self.generation:
            self._fail(gone, None)  # what was there once is missed, and looked for again soon
        else:
            self.state, self._retry_at = "absent", self.clock.monotonic() + LAST_RETRY
            self.failure, self.advice = gone, self.detection.advice

    def _fail(self, failure: Unavailable | None, error: BaseException | None) -> None:
        self.state = "failed"
        self.failure = failure
        self.advice = error.advice if isinstance(error, AccelMetricsError) else ""
        self._retry_at = self.clock.monotonic() + min(LAST_RETRY, FIRST_RETRY * 2.0**self._attempts)
        self._attempts = min(self._attempts + 1, 10)

    def look(self) -> tuple[DeviceIdentity, ...]:
        """The devices as the open driver lists them now: the same object while nothing changed."""
        driver = self.driver
        if driver is None:
            return self.devices
        listed = guarded(_list, driver).value
        if listed is not None and listed is not self._listed:
            self._listed = listed
            devices = guarded(checked_devices, listed).value
            if devices is not None and devices != self.devices and len(devices) >= len(self.devices):
                self.devices = devices
        return self.devices

    def failed_in(self, cursor: Cursor, error: BaseException) -> None:
        """A reading threw: when the driver went away under it, close it and have it opened again later."""
        if not isinstance(error, DriverGoneError):
            return
        with self._lock:
            if self.state != "open" or cursor.generation != self.generation:
                return
            self._retire()
            self._fail(error.unavailable, error)

    def _retire(self) -> None:
        if self.driver is not None:
            self.retired.append(self.driver)
        self.driver = None

    def bury(self) -> None:
        """Close what was retired, unless a call is in progress: the lane that ends it comes by here too."""
        with self._burial:
            while self.retired and not self._in_use():
                guarded(self.retired.pop().close)

    def _in_use(self) -> bool:
        return any(unit != OPENING for unit in list(self.crew.flights))

    def new_cursor(self, options: ReadOptions, units: Sequence[int]) -> Cursor | None:
        """A consumer's place in the open driver; None when it is not open (any more).

        Args:
            options: What the consumer wants.
            units: The units to read.
        """
        with self._lock:
            if self.driver is None:
                return None
            cursor = Cursor(self, self.driver, options, self.generation, units)
            self.cursors.add(cursor)
            return cursor

    @property
    def idle(self) -> bool:
        """Whether nothing of it is left: no call in progress, no driver to close."""
        return not self.crew.flights and not self.retired and self.driver is None

    def adopt(self) -> None:
        """Somebody uses the source, perhaps again: what is still in the air since it was closed is taken over."""
        with self._lock:
            self._closed = False
            if self.state == "new" and OPENING in self.crew.flights:
                self.state = "opening"
                self.settled.clear()
        self.crew.reopen()

    def close(self) -> None:
        """Nobody uses the source any more: close the driver and end the lanes.

        The driver is closed on a lane and waited for only so long. Beside a call that is stuck it is not closed at all; the
        lane that brings the last one home does it.
        """
        with self._lock:
            self._closed = True
            self._retire()
            self.state, self._attempts, self._retry_at = "new", 0, 0.0
        if self.retired and not self._in_use() and self.crew.staff(1):
            buried = threading.Event()

            def bury(lane: Lane) -> None:
                self.bury()
                buried.set()

            self.crew.queue.put(bury)
            buried.wait(CLOSING)
        with self._lock:
            if self._closed:
                self.crew.dismiss()

    def _until_due(self) -> float | None:
        """How long a lane may wait before the next reading of a source with a pace of its own."""
        if not self.paced or self.state != "open":
            return None
        now = self.clock.monotonic()
        due = [cursor.asked_at for cursor in self._wanting(now)]
        return max(IDLE_PAUSE, min(due) + self.pace - now) if due else None

    def _wanting(self, now: float) -> list[Cursor]:
        with self._lock:
            return [c for c in self.cursors if c.generation == self.generation and now - c.served_at < INTEREST]

    def _read_at_own_pace(self, lane: Lane) -> None:
        now = self.clock.monotonic()
        for cursor in self._wanting(now):
            if now - cursor.asked_at >= self.pace and cursor.finished:
                cursor.ask(now)
                cursor.work(lane)


def _list(driver: Driver) -> Sequence[DeviceIdentity]:
    return driver.devices
