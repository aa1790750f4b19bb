"""The sources of this process, shared by all its samplers: drivers, workers and the numbering of devices.

A fork copies a process without its threads, but with the locks that they held. So the child creates everything here again, except the
numbering, which users have seen. A fork waits for a sampler's first reading, and for drivers that are opening: otherwise the lock of
an unfinished import in another thread, or a driver's own lock, would stay locked in the child for ever.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any
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
"""Seconds inside the driver per reading above which several workers share it: one more worker for each multiple."""
FIRST_RETRY, LAST_RETRY = 1.0, 60.0
"""First and longest pause in seconds between attempts to open a failed source. Each pause is twice the one before."""
CLOSING = 1.0
"""Seconds that closing a source waits for its driver to be closed."""
FORK_PATIENCE = 3.0
"""Seconds, from its beginning, that a fork waits for an opening or for a sampler's first reading."""
LONGEST_TEXT = 256
"""Longest text in a device's identity, in characters."""
OPENING, CLOSE = -1, -2
"""Unit numbers that stand for the calls that open and close a driver."""


class Failure(NamedTuple):
    """The reason why a source is not open or a unit was not read, and advice for the user."""

    why: Unavailable
    advice: str = ""

    @classmethod
    def of(cls, why: Unavailable, error: BaseException | None) -> Failure:
        """Return a failure for an error. Errors of this package bring their own advice."""
        return cls(why, error.advice if isinstance(error, AccelMetricsError) else "")


class OpenDriver:
    """An open driver and its properties at that time. A driver that is opened again gets a new object.

    Attributes:
        driver: The driver.
        devices: Its devices when it was opened.
        machine_wide: Whether there is one more unit after the devices.
        interval: Seconds between two readings in the background, from the driver or else its backend; 0 if it is read on request.
    """

    def __init__(self, backend: Backend) -> None:
        self.driver: Driver = backend.open()
        missing = [part for part in ("source", "machine_wide", "devices", "reader", "close") if not hasattr(self.driver, part)]
        if missing:
            raise TypeError(f"open() returned {self.driver!r}, which is no driver: it lacks {', '.join(missing)}")
        self.devices = checked_devices(self.driver.devices)
        self.machine_wide = bool(self.driver.machine_wide)
        for row in tuple(backend.own_metrics()):
            if not isinstance(row, Metric):
                raise TypeError(f"own_metrics() returned {row!r}, which is no Metric")
        self.interval: float = getattr(self.driver, "interval", backend.interval)


def checked_devices(devices: object) -> tuple[DeviceIdentity, ...]:
    """Return a driver's devices, checked against the contract, with NUMA nodes and CPUs added and texts cleaned.

    NUMA nodes and CPUs come from the kernel if the driver does not report them.

    Raises:
        SourceError: There are more devices than are believed (``invalid_value``).
        TypeError: An item is not a device.
    """
    listed = tuple(devices) if isinstance(devices, (list, tuple)) else (devices,)
    if len(listed) > MOST_DEVICES:
        raise SourceError(Reason.INVALID_VALUE, f"the driver lists {len(listed)} devices: at most {MOST_DEVICES} are accepted")
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
    """Return a backend's coverage, checked against the contract. For a built-in backend, no vendor module is imported."""
    given: object = declared(backend.name) if backend.name in BUILT_IN and is_registered(backend) else backend.coverage()
    if not isinstance(given, Coverage) or not all(isinstance(part, Mapping) for part in given):
        raise TypeError(f"coverage() returned {given!r}, which is no Coverage of mappings")
    return given


def checked_detection(backend: Backend) -> Detection:
    """Look for a backend's hardware, and check the result against the contract."""
    found: object = backend.detect()
    if isinstance(found, Detection) and tuple(map(type, found[1:])) == (str, int, str) and found.devices >= 0:
        return found
    raise TypeError(f"detect() returned {found!r}, which is no Detection(present, evidence, devices)")


class ManagedSource:
    """A backend in this process: detected, opened, read, lost and opened again.

    Attributes:
        pool: The workers that call the driver.
        lock: Held for changes of several steps.
        readers: The samplers' readers of this source. Without any, it is closed.
        detection: The result of detection.
        coverage: The metrics that the backend gives.
        opened: The open driver; None while there is none.
        source: The source that the open driver reads, in one word.
        incomplete: Why there may be more devices than the driver lists; None if it does not say so.
        listed: The list last returned by the driver, unchecked; None after opening.
        devices: The devices of that list, checked. The same object while nothing changes; kept when the driver is lost.
        failure: Why the source is not open; None while it is open, and before the first attempt.
        absent: Whether the source is not open because no hardware was found, now or earlier.
        opening_since: When the last attempt to open began, on the machine's monotonic clock.
        opening_stamp: The same time in nanoseconds since the epoch.
        open_seconds: How long that attempt took.
        busy_seconds: The duration of the last complete reading, summed over its units.
        driver_seconds: The part of it inside the driver, when last measured; 0 if that was less than half.
        was_open: Whether it was open once. If so, its absence is a failure.
        retired: Drivers that were lost. Each is closed once no call into it is in progress.
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
        """Seconds between two readings in the background; 0 if it is read on request, and while it is not open."""
        opened = self.opened
        return 0.0 if opened is None else opened.interval

    @property
    def pace(self) -> float:
        """The interval in seconds, but at least twice the duration of a reading.

        So a slow command runs half of the time at most.
        """
        return max(self.interval, 2.0 * self.busy_seconds)

    def is_due(self, named: frozenset[str]) -> bool:
        """Return whether it should be opened now: it is neither open nor opening, and its pause is over.

        Args:
            named: Backends that the user named. They are opened even if detection finds nothing.
        """
        if self.opening or self.opened is not None:
            return False
        untried = self.backend.name in named and self.absent and self.open_seconds is None
        return untried or self.clock.monotonic() >= self._retry_at

    def begin_opening(self, named: frozenset[str], imported: Callable[[str], object]) -> bool:
        """Start to detect and open the source on a worker, if that is due. An interrupt leaves no unfinished attempt.

        Args:
            named: Backends that the user named. They are opened even if detection finds nothing.
            imported: Called with the backend's name when its modules are imported. Waits until those of other backends are, too.

        Returns:
            Whether an attempt was started.
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
                self._fail(Failure(Unavailable(Reason.DRIVER_ERROR, "no thread can be started to open it")))
        finally:
            if not begun and self._attempt is attempt:
                self._attempt = None
        return begun

    def wait_for_opening(self, until: float) -> None:
        """Wait for the attempt in progress, at most until this time on the machine's monotonic clock."""
        attempt = self._attempt
        if attempt is not None:
            attempt.wait(until - time.monotonic())

    def _open(self, forced: bool, imported: Callable[[str], object], worker: WorkerThread) -> None:
        """Detect the hardware, and open the source if there is any, or if the user named it."""
        calls = self.pool.calls
        if calls.setdefault(OPENING, worker) is not worker:
            return  # another worker is opening it
        if self.opened is None:
            # On a worker too: even detection may hang, for example at a dead mount.
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
                else:  # nothing was found; if the source was open once, that is a failure, and it is looked for again soon
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
        if failure.why.reason == Reason.SUSPENDED:  # no back-off: checking whether a device is awake costs nothing
            self._pause = FIRST_RETRY
        self._retry_at = self.clock.monotonic() + (LAST_RETRY if absent else self._pause)
        self._pause = min(LAST_RETRY, 2.0 * self._pause)

    def driver_gone(self, opened: OpenDriver, error: DriverGoneError) -> None:
        """Retire a driver that a reading found lost. It is opened again later."""
        with self.lock:
            if self.opened is opened:
                self._retire()
                self._fail(Failure.of(error.unavailable, error))

    def join(self, reader: object) -> None:
        """Keep the source open for a reader. The first reader has it opened without delay."""
        with self.lock:
            if not self.readers:
                # A new user does not wait for the back-off that earlier users have caused.
                self._pause, self._retry_at = FIRST_RETRY, 0.0
            self.readers.add(reader)

    def leave(self, reader: object) -> None:
        """Remove a reader. If it was the last one, close the driver on a worker and wait for that, for a limited time."""
        with self.lock:
            self.readers.discard(reader)
        closed = CountDownLatch(self.backend.name)

        def close(worker: WorkerThread) -> None:
            self.tidy(worker)
            closed.count_down(self.backend.name)

        if not self.readers and self.opened is not None and self.pool.submit(close):
            closed.wait(CLOSING)

    def tidy(self, worker: WorkerThread) -> None:
        """Close the driver if it has no readers, and lost drivers if no call into them is in progress. Closing may hang."""
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
            except IndexError:  # another worker closes it
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
        clock: The clock for intervals and timestamps.
        lock: Held while samplers join or leave sources.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self.clock = clock
        self.lock = threading.Lock()
        self._sources: dict[object, ManagedSource] = {}
        self._devices: dict[tuple[object, ...], DeviceRegistry] = {}
        FORKED.add(self)

    def acquire(self, backends: Sequence[Backend]) -> tuple[list[ManagedSource], DeviceRegistry]:
        """Return the sources of backends. Call it, and let readers join them, while holding the lock.

        Returns:
            The sources, and the device numbering for exactly this selection of backends.
        """
        self.sweep()
        # By identity: a registered backend is a single object, and backends made by hand may share a name.
        keys = tuple((id(backend), backend.name) for backend in backends)
        for key, backend in zip(keys, backends, strict=True):
            if key not in self._sources:
                self._sources[key] = ManagedSource(backend, self.clock)
        return [self._sources[key] for key in keys], self._devices.setdefault(keys, DeviceRegistry())

    def sweep(self) -> None:
        """Close sources that an interrupt left open. Drop idle sources of unregistered backends, and their numbering.

        Sources of registered backends, and busy ones, are kept.
        """
        for source in self._sources.values():
            if not source.readers and source.opened is not None:
                source.pool.submit(source.tidy)
        # A registered backend's source is kept, so that a device has one number for the lifetime of the process. A source with a call in
        # progress, or with an opening that waits for its worker, is kept too: the next sampler finds it and does not repeat the call.
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
        """Drop drivers, workers and locks; keep the numbering."""
        self.lock = threading.Lock()
        self._sources = {}
        self._devices = {keys: DeviceRegistry(devices.numbering) for keys, devices in self._devices.items()}

    def settle(self, patience: float) -> None:
        """Wait until no driver is opening, at most ``patience`` seconds after each opening began."""
        for source in list(self._sources.values()):
            source.wait_for_opening(source.opening_since + patience)


FORKED: WeakSet[Any] = WeakSet()
"""The registries and engines. A fork calls their ``settle``, which waits until it is safe, and in the child their ``after_fork``."""


def _members() -> list[Any]:
    """Return the objects of ``FORKED``."""
    # Without a lock, because a fork could copy it in its locked state. Instead, an iteration that another thread's `add`
    # breaks is repeated.
    while True:
        with suppress(RuntimeError):  # the set changed during the iteration
            return list(FORKED)


def _before_fork() -> None:
    # A worker that forks would wait for itself.
    if not isinstance(threading.current_thread(), WorkerThread):
        for one in _members():
            one.settle(FORK_PATIENCE)


def _after_fork() -> None:
    for one in _members():
        one.after_fork()


at_fork(before=_before_fork, after_in_child=_after_fork)

SHARED = SourceRegistry()
"""The default registry of samplers. A sampler with a given clock has another one."""
