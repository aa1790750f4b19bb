"""The sources of this process, shared by all its samplers: drivers, workers and the numbering of devices.

A fork copies a process without its threads, and with whatever locks they held. So in the child everything here is made anew,
except the numbering, which users have seen. A fork waits for a sampler's first reading and for drivers that are being opened: an import
that another thread is in the middle of, or a driver's own lock, would stay locked in the child for ever.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol
from weakref import WeakSet

from accelmetrics.backends.built_in import BUILT_IN
from accelmetrics.backends.contract import MOST_DEVICES, SYSTEM_CLOCK, Backend, Clock, Coverage, Detection, Driver
from accelmetrics.backends.guard import Outcome, at_fork, guarded
from accelmetrics.backends.kit.system import pci_slot
from accelmetrics.backends.registry import declared, is_registered, prepare
from accelmetrics.sampling.devices import DeviceRegistry
from accelmetrics.sampling.threads import CountDownLatch, WorkerPool, WorkerThread
from accelmetrics.schemas.errors import AccelMetricsError, DriverGoneError, Reason, SourceError, Unavailable
from accelmetrics.schemas.identity import DeviceIdentity
from accelmetrics.schemas.metric import Metric, is_kind
from accelmetrics.schemas.named_tuple import NamedTuple
from accelmetrics.schemas.text import printable

SLOW_READING = 0.002
"""Seconds inside the driver per reading above which several workers share it: one more for each."""
FIRST_RETRY, LAST_RETRY = 1.0, 60.0
"""Seconds between attempts to open a source that failed: doubled from the first to the last."""
CLOSING = 1.0
"""Seconds that closing a source waits for its driver to be closed."""
FORK_PATIENCE = 3.0
"""Seconds since its beginning for which a fork waits for an opening, or for a sampler's first reading."""
LONGEST_TEXT = 256
"""Characters of each text in a device's identity."""
OPENING, CLOSE = -1, -2
"""Unit numbers of the calls that open and close a driver."""


class Failure(NamedTuple):
    """Why a source is not open or a unit was not read, and what to do about it."""

    why: Unavailable
    advice: str = ""

    @classmethod
    def of(cls, why: Unavailable, error: BaseException | None) -> Failure:
        """Make a failure of an error, with the advice that an error of the package gives."""
        return cls(why, error.advice if isinstance(error, AccelMetricsError) else "")


class OpenDriver:
    """A driver that was opened, and what it said of itself. A driver that is opened again gets a new one.

    Attributes:
        driver: The driver.
        devices: Its devices when it was opened.
        machine_wide: Whether there is one more unit after the devices.
        interval: Seconds between two readings, 0 where it is read when asked: the driver's own where it has one.
    """

    def __init__(self, backend: Backend) -> None:
        self.driver: Driver = backend.open()
        missing = [part for part in ("source", "machine_wide", "devices", "reader", "close") if not hasattr(self.driver, part)]
        if missing:
            raise TypeError(f"open() gave {self.driver!r}, which is no driver: it lacks {', '.join(missing)}")
        self.devices = checked_devices(self.driver.devices)
        self.machine_wide = bool(self.driver.machine_wide)
        for row in tuple(backend.own_metrics()):
            if not isinstance(row, Metric):
                raise TypeError(f"own_metrics() has {row!r}, which is no Metric")
        self.interval: float = getattr(self.driver, "interval", backend.interval)


def checked_devices(devices: object) -> tuple[DeviceIdentity, ...]:
    """Hold what a driver lists to the contract; add where each is plugged in, as the kernel says where the driver does not; clean texts.

    Raises:
        SourceError: There are more than can be (``invalid_value``).
        TypeError: Something in it is no device.
    """
    listed = tuple(devices) if isinstance(devices, (list, tuple)) else (devices,)
    if len(listed) > MOST_DEVICES:
        raise SourceError(Reason.INVALID_VALUE, f"the driver lists {len(listed)} devices: more than {MOST_DEVICES} are not believed")
    placed = []
    for device in listed:
        if not isinstance(device, DeviceIdentity):
            raise TypeError(f"the driver lists {device!r}, which is no DeviceIdentity")
        if not is_kind(device.kind):
            raise TypeError(f"the driver lists a device of the kind {device.kind!r}: a kind is one word of lower-case letters and digits")
        facts: dict[str, Any] = {name: printable(text[:LONGEST_TEXT]) for name, text in device._asdict().items() if isinstance(text, str)}
        numa_node, cpus = pci_slot(device.pci_bus_id)
        if device.numa_node is None:
            facts["numa_node"] = numa_node
        if not device.cpu_affinity:
            facts["cpu_affinity"] = cpus
        placed.append(device._replace(**facts))
    return tuple(placed)


def checked_coverage(backend: Backend) -> Coverage:
    """Ask a backend for its coverage, held to the contract; that of a built-in one is known without importing its sources."""
    given: object = declared(backend.name) if backend.name in BUILT_IN and is_registered(backend) else backend.coverage()
    if not isinstance(given, Coverage) or not all(isinstance(part, Mapping) for part in given):
        raise TypeError(f"coverage() gave {given!r}, which is no Coverage of mappings")
    return given


def checked_detection(backend: Backend) -> Detection:
    """Look for a backend's hardware; what is found is held to the contract."""
    found: object = backend.detect()
    if isinstance(found, Detection) and tuple(map(type, found[1:])) == (str, int, str) and found.devices >= 0:
        return found
    raise TypeError(f"detect() gave {found!r}, which is no Detection(present, evidence, devices)")


class ManagedSource:
    """A backend within this process: found, opened, read, lost and opened again.

    Attributes:
        pool: The workers that call the driver.
        lock: Held for changes of several steps.
        readers: The samplers' readers of this source; without any it is closed.
        detection: What detection found.
        coverage: Which metrics the backend gives.
        opened: The open driver; None while there is none.
        source: What the open driver reads, in one word.
        incomplete: Why it may have more devices than it lists; None where it does not say so.
        listed: What the driver last listed, as it is; None when it was opened.
        devices: The devices of that; kept when it goes away. The same object while nothing changed.
        failure: Why the source is not open; None while it is, and before it was tried.
        absent: Whether that is since nothing was found, and never was.
        opening_since: When the last attempt to open began, on the machine's monotonic clock.
        opening_stamp: The same in nanoseconds since the epoch.
        open_seconds: How long it took.
        busy_seconds: How much work the last whole reading was, added up over its units.
        driver_seconds: How much of it was inside the driver, when that was last looked at; 0 where that was less than half.
        was_open: Whether it was open once: it is missed when it is not there.
        retired: Drivers that went away and are closed as soon as no call into them is in progress.
    """

    def __init__(self, backend: Backend, clock: Clock) -> None:
        self.backend = backend
        self.clock = clock
        self.pool = WorkerPool(backend.name)
        self.readers: WeakSet[Any] = WeakSet()
        self.detection = Detection(False, "not looked for yet")
        self.coverage = guarded(checked_coverage, backend).value or Coverage()
        self.opened: OpenDriver | None = None
        self.source = ""
        self.incomplete: Unavailable | None = None
        self.devices: tuple[DeviceIdentity, ...] = ()
        self.failure: Failure | None = None
        self.absent = False
        self.opening_since = 0.0
        self.opening_stamp = 0
        self.open_seconds: float | None = None
        self.busy_seconds = 0.0
        self.driver_seconds = 0.0
        self.retired: list[Driver] = []
        self.listed: Sequence[DeviceIdentity] | None = None
        self._attempt: CountDownLatch | None = None
        self.lock = threading.Lock()
        self.was_open = False
        self._pause = FIRST_RETRY
        self._retry_at = 0.0

    @property
    def opening(self) -> bool:
        """Whether an attempt to open it is in progress."""
        return self._attempt is not None

    @property
    def interval(self) -> float:
        """Seconds between two readings in the background; 0 where it is read when asked, and while it is not open."""
        opened = self.opened
        return 0.0 if opened is None else opened.interval

    @property
    def pace(self) -> float:
        """Its interval, or twice what a reading takes, so that a slow command never runs more than half of the time."""
        return max(self.interval, 2.0 * self.busy_seconds)

    def is_due(self, named: frozenset[str]) -> bool:
        """Return whether it is to be opened now: it is not open nor being opened, and its pause is over.

        Args:
            named: Backends that were asked for by name: they are opened whatever detection says.
        """
        if self.opening or self.opened is not None:
            return False
        untried = self.backend.name in named and self.absent and self.open_seconds is None
        return untried or self.clock.monotonic() >= self._retry_at

    def begin_opening(self, named: frozenset[str], imported: Callable[[str], object]) -> bool:
        """Have the hardware looked for and the source opened, on a worker, if that is due. An interrupted caller leaves no attempt.

        Args:
            named: Backends that were asked for by name: they are opened whatever detection says.
            imported: Called with the backend's name when its modules are imported; waits for those of the others.

        Returns:
            Whether an attempt was begun now.
        """
        attempt, forced = CountDownLatch(self.backend.name), self.backend.name in named
        begun = False
        try:
            with self.lock:
                if not self.is_due(named):
                    return False
                self._attempt, self.opening_since, self.opening_stamp = attempt, time.monotonic(), self.clock.time_ns()
            begun = self.pool.submit(partial(self._open, forced, imported))
            if not begun:
                self._fail(Failure(Unavailable(Reason.DRIVER_ERROR, "no thread is to be had to open it with")))
        finally:
            if not begun and self._attempt is attempt:
                self._attempt = None
        return begun

    def wait_for_opening(self, until: float) -> None:
        """Wait for the attempt that is in progress, at most until then on the machine's monotonic clock."""
        attempt = self._attempt
        if attempt is not None:
            attempt.wait(until - time.monotonic())

    def _open(self, forced: bool, imported: Callable[[str], object], worker: WorkerThread) -> None:
        """Detect, and open what is there or was asked for by name. On a worker: even detection may hang (a dead mount)."""
        calls = self.pool.calls
        if calls.setdefault(OPENING, worker) is not worker:
            return  # another worker is at it
        if self.opened is None:
            looked = guarded(checked_detection, self.backend)
            self.detection = looked.value or Detection(True, looked.failure.detail if looked.failure else "detection gave nothing")
            worth_it = self.detection.present or forced
            outcome: Outcome[OpenDriver | None] | None = guarded(prepare, self.backend) if worth_it else None
            imported(self.backend.name)
            if outcome is not None and outcome.failure is None:
                outcome = guarded(OpenDriver, self.backend)
            with self.lock:
                self.open_seconds = None if outcome is None else outcome.seconds
                if outcome is not None and outcome.value is not None:
                    self.opened = outcome.value
                    self.devices, self.listed = outcome.value.devices, None
                    self.failure, self.absent, self._pause, self.was_open = None, False, FIRST_RETRY, True
                    self.pool.wanted = 1
                elif outcome is not None and outcome.failure is not None:
                    self._fail(Failure.of(outcome.failure, outcome.error), absent=not (self.detection.present or self.was_open))
                else:  # what was there once is missed, and looked for again soon
                    missed = Unavailable(Reason.DRIVER_UNAVAILABLE, self.detection.evidence)
                    self._fail(Failure(missed, "" if self.was_open else self.detection.advice), absent=not self.was_open)
        del calls[OPENING]
        with self.lock:
            attempt, self._attempt = self._attempt, None
        self.tidy(worker)
        if attempt is not None:
            attempt.count_down(self.backend.name)

    def _fail(self, failure: Failure, absent: bool = False) -> None:
        self.failure, self.absent = failure, absent
        if failure.why.reason == Reason.SUSPENDED:  # whether a device is awake costs nothing to see
            self._pause = FIRST_RETRY
        self._retry_at = self.clock.monotonic() + (LAST_RETRY if absent else self._pause)
        self._pause = min(LAST_RETRY, 2.0 * self._pause)

    def driver_gone(self, opened: OpenDriver, error: DriverGoneError) -> None:
        """Retire a driver that a reading found gone; it is opened again later."""
        with self.lock:
            if self.opened is opened:
                self._retire()
                self._fail(Failure.of(error.unavailable, error))

    def join(self, reader: object) -> None:
        """Keep the source open for a reader; the first one has it opened without delay."""
        with self.lock:
            if not self.readers:
                self._pause, self._retry_at = FIRST_RETRY, 0.0
            self.readers.add(reader)

    def leave(self, reader: object) -> None:
        """Close the driver, on a worker, when no reader is left; waits for that, though not for a call that is stuck."""
        with self.lock:
            self.readers.discard(reader)
        closed = CountDownLatch(self.backend.name)

        def close(worker: WorkerThread) -> None:
            self.tidy(worker)
            closed.count_down(self.backend.name)

        if not self.readers and self.opened is not None and self.pool.submit(close):
            closed.wait(CLOSING)

    def tidy(self, worker: WorkerThread) -> None:
        """Close the driver if no reader is left, and drivers that went away if no call into them is in progress; this may hang."""
        with self.lock:
            if not self.readers and not self.opening:
                self._retire()
        if self.opened is None:
            self.pool.release()
        calls = self.pool.calls
        calls.setdefault(CLOSE, worker)
        while self.retired and not any(unit >= 0 for unit in list(calls)):
            try:
                driver = self.retired.pop()
            except IndexError:  # another worker was quicker
                break
            guarded(driver.close)
        if calls.get(CLOSE) is worker:
            del calls[CLOSE]

    def _retire(self) -> None:
        if self.opened is not None:
            self.retired.append(self.opened.driver)
        self.opened = None
        self.pool.idle = None


class SourceRegistry:
    """The sources of one process, and the numbering of their devices.

    Attributes:
        clock: What intervals and timestamps are taken from.
        lock: Held while samplers join or leave sources.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self.clock = clock
        self.lock = threading.Lock()
        self._sources: dict[object, ManagedSource] = {}
        self._devices: dict[tuple[object, ...], DeviceRegistry] = {}
        FORKED.add(self)

    def acquire(self, backends: Sequence[Backend]) -> tuple[list[ManagedSource], DeviceRegistry]:
        """Find the sources of backends, for readers that join them while the lock is held.

        Returns:
            The sources, and the numbering that goes with just this selection of backends.
        """
        self.sweep()
        # Registered backends are one object each; those made by hand are told apart by theirs.
        keys = tuple((id(backend), backend.name) for backend in backends)
        for key, backend in zip(keys, backends, strict=True):
            if key not in self._sources:
                self._sources[key] = ManagedSource(backend, self.clock)
        return [self._sources[key] for key in keys], self._devices.setdefault(keys, DeviceRegistry())

    def sweep(self) -> None:
        """Close what was left open by an interrupt; drop the sources of backends made by hand that are idle, and their numbering.

        Those of registered backends stay, so that a device has one number for as long as the process lives. One with a call in
        progress, or an opening that waits for its worker, stays too: the next sampler finds it, and does not make the same call again.
        """
        for source in self._sources.values():
            if not source.readers and source.opened is not None:
                source.pool.submit(source.tidy)
        gone = {
            key
            for key, source in self._sources.items()
            if not (
                source.readers or source.opening or source.opened or source.retired or source.pool.calls or is_registered(source.backend)
            )
        }
        if gone:
            self._sources = {key: source for key, source in self._sources.items() if key not in gone}
            self._devices = {keys: devices for keys, devices in self._devices.items() if gone.isdisjoint(keys)}

    def after_fork(self) -> None:
        """Forget drivers, workers and locks; keep the numbering."""
        self.lock = threading.Lock()
        self._sources = {}
        self._devices = {keys: DeviceRegistry(devices.numbering) for keys, devices in self._devices.items()}

    def settle(self, patience: float) -> None:
        """Wait until no driver is being opened, though not for what hangs."""
        for source in list(self._sources.values()):
            source.wait_for_opening(source.opening_since + patience)


class Forked(Protocol):
    """What a fork has to wait for, and what starts over in its child."""

    def settle(self, patience: float) -> None:
        """Wait, in the parent, until a fork harms nothing; at most so many seconds after what it waits for began."""

    def after_fork(self) -> None:
        """Start over in the child."""


FORKED: WeakSet[Forked] = WeakSet()


def _members() -> list[Forked]:
    """Return what is in the set, which other threads add to, without a lock, which a fork could copy in its locked state."""
    while True:
        with suppress(RuntimeError):  # it has just been added to
            return list(FORKED)


def _before_fork() -> None:
    if not isinstance(threading.current_thread(), WorkerThread):
        for one in _members():
            one.settle(FORK_PATIENCE)


def _after_fork() -> None:
    for one in _members():
        one.after_fork()


at_fork(before=_before_fork, after_in_child=_after_fork)

SHARED = SourceRegistry()
"""The registry that samplers use unless they are given a clock of their own."""
