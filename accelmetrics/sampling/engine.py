"""Reading all sources within a deadline: ask every source at once, wait, take the answers that have arrived.

The sampler waits in short slices. After each slice it checks the busy workers: if a worker's call makes no progress, the worker is
stuck and is abandoned, so that another worker can continue with the rest. Only time in which this thread ran as scheduled counts
towards the deadline and towards the patience with a worker. A slice that took far longer than requested shows that the interpreter
was busy elsewhere, not that a driver hangs; such a reading is counted as late. No other code decides that a call or a reading is
late.

Workers write results, the sampler's thread takes them. Every shared step is a single operation on a built-in container. So neither
side holds a lock while the other works, and an interrupt between two steps is repaired at the next reading.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Any

from accelmetrics.backends.contract import Backend, Block, Driver, Reader, Reading
from accelmetrics.backends.guard import guarded, through
from accelmetrics.sampling.devices import DeviceRegistry, Numbering, VisibilityFilter
from accelmetrics.sampling.options import DeviceSelection, Options
from accelmetrics.sampling.snapshot_builder import Entry, KeyMapper, SnapshotBuilder, fault
from accelmetrics.sampling.sources import FORKED, SLOW_READING, Failure, ManagedSource, OpenDriver, SourceRegistry, checked_devices
from accelmetrics.sampling.threads import MAX_WORKERS, CountDownLatch, WorkerThread
from accelmetrics.schemas.errors import DriverGoneError, PartitionRemovedError, Reason, SourceError, Unavailable
from accelmetrics.schemas.identity import BackendStatus, DeviceIdentity, DeviceSlot, Status
from accelmetrics.schemas.metric import VITAL
from accelmetrics.schemas.named_tuple import NamedTuple
from accelmetrics.schemas.snapshot import Snapshot, rfc3339, rfc3339_second
from accelmetrics.schemas.topology import Details

SLICES = 40
"""Number of slices of a wait."""
LONGEST_SLICE = 0.025
"""Longest slice in seconds. A stuck worker is found at the end of a slice."""
STARVED = 0.1
"""Share of a wait by which its slices may overrun; above it, the interpreter counts as busy elsewhere."""
WAKE_UP = 0.002
"""Seconds a slice may overrun without counting: the time that waking up takes on a machine with other work."""
IMPORT_PATIENCE, IMPORT_SHARE = 2.0, 0.3
"""Longest time, in seconds and as a share of the time for opening, that one driver waits for the other drivers' modules to be
imported."""
SHORTEST_BUDGET = 0.1
"""Share of the timeout that a reading always has, even if waiting for others or for an opening used up the rest."""
LONGEST_LATENESS = 3.0
"""A wait ends after this many deadlines, however busy the interpreter is."""
FIRST_PATIENCE, LATER_PATIENCE = 0.6, 0.15
"""Shares of the deadline after which a call without progress is given up: for the first such call, and for later ones."""
SHORTEST_HANG = 0.05
"""Seconds without a returned call before a worker can be abandoned, however short a sampler's timeout is."""
GONE = Unavailable(Reason.DRIVER_UNAVAILABLE, "the driver was closed before the reading")
HUNG = Unavailable(Reason.TIMED_OUT, "a call into the driver has not returned")
DRIVER_HUNG = Unavailable(Reason.TIMED_OUT, "the driver does not answer: too many calls have not returned")
NO_THREAD = Unavailable(Reason.DRIVER_ERROR, "no thread can be started to call the driver")
TOO_SLOW = Unavailable(Reason.TIMED_OUT, "the driver did not answer within the deadline")
LATE = Unavailable(Reason.STALE, "the reading is late: the interpreter was busy elsewhere, no call into the driver hangs")
STILL_OPENING = Unavailable(Reason.TIMED_OUT, "the driver is still being opened")
STALE = Unavailable(Reason.STALE, "the source's last reading is too old")
LOST = Unavailable(Reason.DEVICE_LOST, "the driver no longer lists this device")
LOST_REASONS = frozenset({Reason.DEVICE_LOST, Reason.RESET_REQUIRED})
"""Reasons for which a device is not read, except for events that the driver has recorded."""
REMOVED = Failure(LOST)
"""The result for a partition that was removed on purpose."""
NO_FAULTS = frozenset({Reason.NOT_IN_USE, Reason.NOT_SUPPORTED, Reason.NEEDS_INTERVAL, Reason.SUSPENDED})
"""Reasons for missing values of a healthy source."""
AT_REST = frozenset({Reason.NOT_IN_USE, Reason.SUSPENDED})
"""Reasons for which a healthy device may be left unread, or a healthy driver unopened."""

INTEREST = 60.0
"""Seconds a background source continues to be read after a sampler last asked for it."""
IDLE_PAUSE = 0.05
"""Shortest pause in seconds before a background source is checked again."""
HAND_OVER = 5e-6
"""Seconds a call must last before another thread can wake up and run during it."""
LANDED = object()
"""Marker in a worker's progress: the reading of a unit has ended."""

_Result = tuple[Reading | Failure | None, float, float, OpenDriver | None]
"""The result of a call, when it returned and when the source took the values (both on the sampler's clock), and the driver called."""
NOT_ARRIVED: _Result = (None, 0.0, 0.0, None)


@through
def hostname() -> str:
    """Return the machine's host name."""
    if hasattr(os, "uname"):
        return os.uname().nodename
    import platform

    return platform.node()


class ReadingCounts(NamedTuple):
    """Counts of a sampler's readings since it was created.

    Attributes:
        readings: Snapshots taken.
        timed_out: Snapshots in which a vendor call gave no answer.
        late: Snapshots that took longer than the deadline, or lack values, because the interpreter was busy.
    """

    readings: int = 0
    timed_out: int = 0
    late: int = 0


class Engine:
    """Takes one snapshot at a time, and keeps the last one. Safe from any thread.

    Args:
        options: What to read, and how long to wait.

    Attributes:
        statistics: The counts of its readings.
    """

    def __init__(self, options: Options) -> None:
        self.statistics = ReadingCounts()
        self._options = options
        self._lock = threading.Lock()
        self._last: tuple[float, Snapshot] | None = None  # when it began, on the machine's monotonic clock

    def sample(self, max_age: float = 0.0) -> Snapshot:
        """Take one snapshot.

        A thread that waited for another thread's reading has only the rest of its timeout left, and at least a tenth of it.

        Args:
            max_age: Return the last reading again if it began no more than this many seconds before the call.
        """
        called = time.monotonic()
        if max_age and (young := self.latest(called - max_age)) is not None:
            return young
        with self._lock:
            if (young := self.latest(called - max_age)) is not None:  # another thread took it while this one waited for the lock
                return young
            began, timeout = time.monotonic(), self._options.timeout
            # The wait for the lock is part of the caller's timeout.
            taken = self._take(began, max(timeout - (began - called), SHORTEST_BUDGET * timeout))
            self._last = (began, taken)
            return taken

    def latest(self, since: float) -> Snapshot | None:
        """Return the last reading if it began no earlier than ``since`` on the machine's monotonic clock."""
        last = self._last
        return last[1] if last is not None and last[0] >= since else None

    def _take(self, began: float, budget: float) -> Snapshot:
        """Take a snapshot within ``budget`` seconds. It began at ``began`` on the machine's monotonic clock."""
        raise NotImplementedError


class ThreadEngine(Engine):
    """Takes snapshots on threads of this process.

    Args:
        registry: The registry of the sources to use.
        backends: The backends, in numbering order.
        forced: Names of backends to open even if detection finds nothing.
        options: What to read, and how long to wait.

    Attributes:
        readers: The readers of its sources, in the order of the backends.
        devices: The numbering of their devices.
        began: When the last reading began, on the machine's monotonic clock.
        settling: A latch that opens when the first reading has ended; None while none is in progress.
    """

    def __init__(self, registry: SourceRegistry, backends: Sequence[Backend], forced: frozenset[str], options: Options) -> None:
        super().__init__(options)
        self.readers: list[SourceReader] = []
        self._describers: list[DetailsReader] = []
        self.devices = DeviceRegistry()
        self._registry = registry
        self._backends = tuple(backends)
        self._forced = forced
        self._selection = DeviceSelection(options.gpus)
        self._joined = False
        self._first = True
        self.settling: CountDownLatch | None = None
        self._names = tuple(backend.name for backend in backends)
        self._all_open = False
        self._builder = SnapshotBuilder(hostname())
        self._unchecked = False
        self.began = 0.0
        FORKED.add(self)

    def _take(self, began: float, budget: float) -> Snapshot:
        self.began, until = began, 0.0
        if self._first or not self._joined:  # a fork during a first reading leaves it half done in the child
            with self._settled():
                self._open_first()
                taken = self._read(time.monotonic() + self._options.open_timeout, budget)
                self._first = False
                return taken
        if not self._all_open and (begun := self._begin_opening()):
            until = began + budget
            for source in begun:
                source.wait_for_opening(until)
            budget = max(until - time.monotonic(), SHORTEST_BUDGET * self._options.timeout)
        return self._read(until, budget)

    def list_devices(self) -> Sequence[DeviceSlot]:
        """Return the devices without reading them. Waits for drivers that are opening, as the first reading does."""
        with self._lock:
            self.began = time.monotonic()
            with self._settled():
                self._open_first()
            slots = [slot for reader in self.readers for slot in reader.list_devices()]
            if self._unchecked:
                self._check_selection()
            return slots

    @contextmanager
    def _settled(self) -> Iterator[None]:
        """Make forks wait for the block to end."""
        thread = threading.get_ident()
        self.settling = latch = CountDownLatch(thread)
        try:
            yield
        finally:
            self.settling = None
            latch.count_down(thread)

    def close(self) -> None:
        """Leave the sources. A source that no other sampler uses is closed."""
        with self._lock:
            readers = self.readers
            self._start_over()
            self._leave(readers)

    def settle(self, patience: float) -> None:
        """Wait until no other thread takes this sampler's first reading, at most ``patience`` seconds after it began."""
        latch = self.settling
        if latch is not None and threading.get_ident() not in latch.away:
            latch.wait(self.began + patience - time.monotonic())

    def after_fork(self) -> None:
        """Start over in the child of a fork: the readers stay with the parent."""
        # A new lock: a thread of the parent may hold the old one, and does not exist here to release it.
        self._lock, self.settling = threading.Lock(), None
        self._start_over()

    def resume(self, numbering: Numbering, keys: Sequence[str], sequences: Mapping[str, int]) -> None:
        """Continue where another process ended.

        Args:
            numbering: The numbers of the devices.
            keys: Every key reported so far.
            sequences: The number of readings of each backend.
        """
        self._join_sources()
        self.devices.numbering = numbering
        for reader in self.readers:
            reader.resume(keys, sequences.get(reader.source.backend.name, 0))

    def _start_over(self) -> None:
        self.readers, self._describers, self._joined, self._first, self._last = [], [], False, True, None

    def _leave(self, readers: Sequence[SourceReader]) -> None:
        """Remove readers, and close the sources that no other sampler uses."""
        for reader in readers:
            reader.source.leave(reader)
        with self._registry.lock:
            self._registry.sweep()

    def _join_sources(self) -> None:
        """Join the registry's sources: at first, and again in the child of a fork."""
        registry = self._registry
        self._leave(self.readers)  # left over from an interrupted attempt
        self.readers, self._describers = [], []
        with registry.lock:
            sources, self.devices = registry.acquire(self._backends)
            for source in sources:
                self.readers.append(SourceReader(source, self.devices, self._options, self._selection))
                source.join(self.readers[-1])  # after the append: an interrupt between the two leaves no unlisted reader
        self._unchecked = self._options.gpus is not None
        self._joined = True

    def _open_first(self) -> None:
        """Join and open the sources, wait for them as long as the first reading may, and reserve device numbers."""
        if not self._joined:
            self._join_sources()
        self._begin_opening()
        for reader in self.readers:
            # Counted from the start of the opening: one that another sampler began long ago is not waited for in full again.
            reader.source.wait_for_opening(reader.source.opening_since + self._options.open_timeout)
        # Only now is it known how many devices each source has or detected, so that numbers can be reserved.
        for reader in self.readers:
            source, kind = reader.source, reader.source.backend.kind
            if kind is not None and (source.detection.present or source.devices):
                self.devices.reserve(
                    source.backend.name, kind, max(source.detection.devices, sum(not device.parent for device in source.devices))
                )

    def _begin_opening(self) -> list[ManagedSource]:
        """Start opening the sources that are due, all at once, and return them."""
        due = [source for reader in self.readers if (source := reader.source).is_due(self._forced)]
        if not due:  # as at nearly every reading of a machine on which some vendors are absent
            return []
        # No driver is opened before all drivers' modules are imported: a vendor's library that hangs while it is loaded
        # blocks every later import of an extension module.
        begun: list[ManagedSource] = []
        latch = CountDownLatch(*(source.backend.name for source in due))
        patience = min(IMPORT_PATIENCE, IMPORT_SHARE * self._options.open_timeout)

        def imported(name: str) -> None:
            latch.count_down(name)
            latch.wait(patience)

        try:
            begun.extend(source for source in due if source.begin_opening(self._forced, imported))
        finally:
            for source in due:
                if source not in begun:
                    latch.count_down(source.backend.name)
        return begun

    def _read(self, until: float, budget: float) -> Snapshot:
        """Ask every source, wait, and build the snapshot from the answers.

        Args:
            until: Deadline for the first readings of background sources that were just opened, on the machine's monotonic clock; 0 if
                none was.
            budget: Seconds to wait for all other sources.
        """
        clock, latch = self._registry.clock, CountDownLatch(*self._names)
        stamp, now = clock.time_ns(), clock.monotonic()
        for reader in self.readers:
            reader.ask(now, latch)
        if self._unchecked:
            self._check_selection()
        late = self._wait(latch, budget, self.readers)
        for reader in self.readers if until else ():
            name = reader.source.backend.name
            # A background source that was just opened has no earlier reading to serve: its first one is waited for longer.
            if name in latch.away and reader.wanted and reader.source.interval > 0:
                reader.latch = CountDownLatch(name)
                if reader.wanted:
                    reader.latch.wait(until - time.monotonic())
        entries: list[Entry] = []
        statuses: list[BackendStatus] = []
        slots: list[DeviceSlot] = []
        timed_out, self._all_open = False, not self._unchecked
        for reader in self.readers:
            status = reader.collect(late, entries)
            statuses.append(status)
            slots += reader.slots
            if status.status != "ok":
                timed_out |= status.status == "timed_out" or any(
                    result.why.reason == Reason.TIMED_OUT for result in reader.failures.values()
                )
            self._all_open = self._all_open and reader.source.opened is not None
        readings, late_answers, lates = self.statistics
        self.statistics = ReadingCounts(readings + 1, late_answers + timed_out, lates + late)
        return self._builder.build(stamp, entries, slots, tuple(statuses))

    def describe(self) -> dict[str, Details | Unavailable]:
        """Ask drivers for details that are read on request only, within the timeout, and return them by device key.

        Details are kept until the driver is opened again. A device is left out if its driver offers none.
        """
        self.list_devices()
        with self._lock:
            if not self._describers:
                self._describers = [DetailsReader(one.source, self.devices, self._options, self._selection) for one in self.readers]
            now, latch = self._registry.clock.monotonic(), CountDownLatch(*self._names)
            for describer in self._describers:
                describer.ask(now, latch)
            late = self._wait(latch, self._options.timeout, self._describers)
            return {
                key: found
                for reader, describer in zip(self.readers, self._describers, strict=True)
                for key, found in describer.described(reader.slots, late)
            }

    def _check_selection(self) -> None:
        """Refuse a choice of ``gpus`` that matches no device, once all devices of its kind are known."""
        sources = [reader.source for reader in self.readers if reader.source.backend.kind in self._selection.kinds]
        if all(source.opened is not None or source.absent for source in sources):
            self._selection.check([slot for reader in self.readers for slot in reader.candidates])
            self._unchecked = False

    def _wait(self, latch: CountDownLatch, budget: float, readers: Sequence[SourceReader]) -> bool:
        """Wait for the answers, and give up calls that make no progress.

        Returns:
            Whether answers are late because the interpreter was busy elsewhere.
        """
        started = before = time.perf_counter()
        piece = min(LONGEST_SLICE, budget / SLICES)
        # The usual case: all answers arrive within the first slice.
        if latch.wait(piece) and time.perf_counter() - started <= budget:
            return False
        ran = overrun = 0.0
        waiting = [reader for reader in readers if reader.source.backend.name in latch.away]
        while True:
            after = time.perf_counter()
            elapsed, before = after - before, after
            overrun += max(0.0, elapsed - piece - WAKE_UP)
            # An overrunning slice counts as two at most: the rest of it was the interpreter's delay.
            ran += min(elapsed, 2.0 * piece)
            waiting = [reader for reader in waiting if reader.wanted]
            if not waiting or ran >= budget or after - started > LONGEST_LATENESS * budget:
                break
            waiting = [reader for reader in waiting if reader.watch(min(elapsed, 2.0 * piece))]
            if not waiting:
                break
            latch.wait(min(piece, budget - ran))
        total = before - started
        return overrun > STARVED * total and (total > budget or bool(waiting))


class CallTimer(list[Any]):
    """Progress of one worker's task, with the time of each entry."""

    def __init__(self) -> None:
        super().__init__()
        self._times = [time.perf_counter()]

    def append(self, entry: Any) -> None:
        """Record that a call has returned, or that a unit's reading has ended."""
        self._times.append(time.perf_counter())
        super().append(entry)

    def units(self) -> list[tuple[float, float]]:
        """Return two durations in seconds for each unit: inside the driver, where other threads could run, and in total.

        An interval that ends with an entry of the backend was inside the driver, less the time a thread takes to wake up. The
        interval after a unit's last entry is our own work. A unit without an entry was inside the driver throughout.
        """
        found: list[tuple[float, float]] = []
        inside, total, reported = 0.0, 0.0, False
        for (before, after), entry in zip(pairwise(self._times), self, strict=False):
            total += after - before
            if entry is LANDED:
                found.append((inside if reported else total, total))
                inside, total, reported = 0.0, 0.0, False
            else:
                inside, reported = inside + max(0.0, after - before - HAND_OVER), True
        return found


class SourceReader:
    """The reader of one source for one sampler.

    Attributes:
        source: The source.
        opened: The driver that is read; None while there is none.
        pending: Units to read that no worker has taken yet.
        wanted: Units waited for: pending, or in a call.
        given_up: Units in a call that is no longer waited for, with the time of its last progress in nanoseconds since the epoch.
        slots: The selected devices, by number: all ever seen, including lost ones, but not removed partitions.
        candidates: The devices to select from: all of the source, or those that the watched process sees.
        mappers: By device key, the mapper from a unit's readings to keys. The empty key is the machine-wide unit.
        failures: By device key, the failure of the last reading. The empty key is the machine-wide unit.
        asked_at: When the last reading was requested, on the sampler's clock.
        served_at: When the sampler last asked this reader, on its clock.
        latch: The latch to count down when everything has arrived.
    """

    def __init__(self, source: ManagedSource, devices: DeviceRegistry, options: Options, selection: DeviceSelection) -> None:
        self.source = source
        self.opened: OpenDriver | None = None
        self.pending: deque[int] = deque()
        self.wanted: set[int] = set()
        self.given_up: dict[int, int] = {}
        self.slots: tuple[DeviceSlot, ...] = ()
        self.candidates: tuple[DeviceSlot, ...] = ()
        machine = source.coverage.machine
        self.mappers: dict[str, KeyMapper] = {"": KeyMapper("", machine, options.metrics)} if machine else {}
        self.failures: dict[str, Failure] = {}
        self.asked_at = 0.0
        self.served_at = 0.0
        self._devices = devices
        self._options = options
        self._selection = selection
        self._filter = VisibilityFilter(options)
        self._listing: tuple[DeviceIdentity, ...] | None = None
        self._units: list[tuple[int, KeyMapper]] = []
        self._numbers: tuple[int, ...] = ()  # of the units
        self._lost_mappers: list[KeyMapper] = []
        self._removed: set[str] = set()  # keys of partitions that were removed on purpose
        self._readers: dict[OpenDriver, Reader] = {}
        self._lock = threading.Lock()
        self._arrived: dict[int, _Result] = {}
        self._served: dict[int, float] = {}
        self.latch: CountDownLatch | None = None
        self._duration = 0.0
        self._last_duration = 0.0  # seconds of the latest reading by a worker
        self._timed: list[tuple[float, float]] | None = None
        self._sequence = 0
        self._device_count = 0
        weakref.finalize(self, _reader_collected, source).atexit = False

    def resume(self, keys: Iterable[str], sequence: int) -> None:
        """Continue where another process ended. Its devices and keys are missing, with the reason, until the source is open.

        Args:
            keys: Every key reported so far.
            sequence: The number of readings so far.
        """
        self._sequence = sequence
        self._list_devices((), False)
        self.source.was_open = bool(self.slots)
        for mapper in self.mappers.values():
            mapper.reasons = dict.fromkeys((key for key in keys if key.startswith(f"{mapper.key}.")), STILL_OPENING)

    def ask(self, now: float, latch: CountDownLatch) -> None:
        """Request a reading of the devices that the open driver lists now, if one is due.

        Args:
            now: The time on the sampler's clock.
            latch: The latch to count down when everything worth waiting for has arrived.
        """
        source, opened = self.source, self.source.opened
        if opened is None:
            self.opened = None
            latch.count_down(source.backend.name)
            return
        if opened is self.opened:
            guarded(self._update_source, opened)
        else:
            for before in (self.pending, self.wanted, self.given_up, self._arrived, self._served, self._readers):
                before.clear()
            self.asked_at, self._listing = 0.0, None
        self.list_devices()
        self.opened, self.served_at = opened, now
        paced, recent = opened.interval > 0, False
        if paced:
            source.pool.idle = partial(_keep_pace, source)
            self.begin_if_due(now)
            # While the next reading is in progress, recent results are served.
            limit = self._limit(now)
            results = [self._arrived.get(unit, NOT_ARRIVED) for unit, _ in self._units if unit not in self.given_up]
            recent = all(driver is opened and read_at >= limit for _, _, read_at, driver in results)
        else:
            self._begin(now)
            kept = getattr(self._readers.get(opened), "kept", None)
            if kept is not None and len(self.pending) == 1 and not self.given_up:
                self._take_kept(opened, kept, now)
        self.latch = latch  # before `wanted` is checked: a worker that finishes checks them in the opposite order
        if recent or not self.wanted:
            latch.count_down(source.backend.name)
        if self.pending:
            source.pool.submit(self.work, 1 if paced else self._count_workers(), patient=True)

    def list_devices(self) -> tuple[DeviceSlot, ...]:
        """Return the selected devices, updated from the open driver's list. Reads no metric."""
        opened, devices = self.source.opened, self.source.devices
        if opened is not None and devices is not self._listing:
            self._list_devices(devices, opened.machine_wide)
        return self.slots

    def _take_kept(self, opened: OpenDriver, kept: Callable[[int], Reading | None], now: float) -> None:
        """Take a reading that the reader of a one-unit source already has, without waking a worker."""
        try:
            unit = self.pending.popleft()
        except IndexError:  # a worker that was late with the previous reading took it first
            return

        def look() -> _Result | None:
            found = kept(unit)
            return None if found is None else (found, now, _source_time(found, now), opened)

        result = guarded(look).value
        if result is None:
            self.pending.append(unit)
            return
        self.wanted.clear()
        self._arrived[unit] = result
        self._duration = self._last_duration

    def _count_workers(self) -> int:
        """Return how many workers share this reading, and decide whether its calls are timed.

        Calls are timed at the first reading, and at every reading while readings are long.
        """
        source = self.source
        # Python code runs on one thread at a time, so workers only share time spent inside a driver, whose calls let other threads run.
        # The length of a reading does not show that time: with many fast devices it is mostly Python code, and a busy interpreter makes
        # every reading long.
        if self._timed:
            # The median unit: a call that returns while the interpreter is busy elsewhere looks long, however fast the driver is.
            inside, total = (sorted(seconds)[(len(seconds) - 1) // 2] for seconds in zip(*self._timed, strict=True))
            source.driver_seconds = inside * len(self._units) if inside > total / 2 else 0.0
            self._timed = None
        first, long = not source.busy_seconds, source.busy_seconds > SLOW_READING
        if self._timed is None and (first or long):
            self._timed = []
        return min(MAX_WORKERS, 1 + int(source.driver_seconds / SLOW_READING), len(self.pending)) if long else 1

    def begin_if_due(self, now: float) -> bool:
        """Start a reading of a background source if one is due. Called by the sampler, and by an idle worker.

        Returns:
            Whether a reading was started.
        """
        with self._lock:
            due = not self.wanted and (not self.asked_at or now - self.asked_at >= self.source.pace)
            if due:
                self._begin(now)
            return due

    def _begin(self, now: float) -> None:
        """Mark every unit to be read. A unit still in a call from an earlier reading is joined, not read again."""
        calls, pending, wanted = self.source.pool.calls, self.pending, self.wanted
        self.asked_at, self._duration, self.latch = now, 0.0, None
        if not wanted and not pending and not self.given_up:  # the usual case
            wanted.update(self._numbers)
            pending.extend(self._numbers)
            return
        for unit, _ in self._units:
            if unit not in self.given_up or unit not in calls:
                joined = unit in pending or (unit in wanted and unit in calls)
                wanted.add(unit)
                if not joined:
                    pending.append(unit)

    def watch(self, seconds: float) -> bool:
        """Count elapsed time, and give up each unit if its call made no progress for too long.

        The worker of such a call is abandoned, so that another can continue with the rest. Readers with more patience still wait.

        Args:
            seconds: The elapsed time.

        Returns:
            Whether anything is still worth waiting for.
        """
        pool, timeout = self.source.pool, self._options.timeout
        patience = timeout * (LATER_PATIENCE if self.given_up else FIRST_PATIENCE)
        if self.source.interval > 0:
            patience = self.source.pace + timeout
        begun = False
        for unit, worker in list(pool.calls.items()):
            # Negative numbers are calls that open or close the driver.
            if unit < 0:
                continue
            begun = begun or worker.task == self.work
            idle = worker.stood_still(seconds)
            if idle >= patience and unit in self.wanted:
                self.given_up[unit] = self.source.clock.time_ns() - int(idle * 1e9)
                self.wanted.discard(unit)
            if idle >= max(patience, SHORTEST_HANG):
                pool.abandon(worker, unit)
        if self.pending and not begun:  # all workers are in other readers' calls
            pool.reinforce()
        return bool(self.wanted) and (bool(pool.workers) or not self.wanted.isdisjoint(pool.calls))

    def work(self, worker: WorkerThread) -> None:
        """Read pending units until none is left or the worker is abandoned."""
        source, opened = self.source, self.opened
        timed = self._timed
        timer = None if timed is None else CallTimer()
        worker.task, worker.progress = self.work, [] if timer is None else timer
        while opened is not None:
            outcome = guarded(self._read_pending, worker, opened)
            self._duration += outcome.seconds
            error = outcome.error
            if error is None or outcome.failure is None:
                break
            now = source.clock.monotonic()
            failure = REMOVED if isinstance(error, PartitionRemovedError) else Failure.of(outcome.failure, error)
            self._store_result(worker, opened, failure, now, now)
            if isinstance(error, DriverGoneError):
                source.driver_gone(opened, error)
        if timed is not None and timer is not None:
            timed += timer.units()
        worker.task = None  # a reference there would keep the reader alive while the worker waits
        if opened is not None:
            guarded(self._update_source, opened)
        latch = self.latch
        if latch is not None and not self.wanted:
            latch.count_down(source.backend.name)
        if source.retired or not source.readers:
            source.tidy(worker)

    def _update_source(self, opened: OpenDriver) -> None:
        """Update the source with the devices that the driver lists now. Raises any error of a plug-in."""
        source, driver = self.source, opened.driver
        if source.opened is not opened:
            return
        source.source = driver.source
        incomplete = getattr(driver, "incomplete", None)
        source.incomplete = incomplete if isinstance(incomplete, Unavailable) else None
        listed = driver.devices
        if listed is not source.listed and listed != source.listed:
            source.listed = listed
            devices = checked_devices(listed)
            with source.lock:
                # Units are numbered by position, so the list of an open driver may only grow.
                if source.opened is opened and devices != source.devices and len(devices) >= len(source.devices):
                    source.devices = devices

    def _read_pending(self, worker: WorkerThread, opened: OpenDriver) -> None:
        source, pending, progress = self.source, self.pending, worker.progress
        calls, monotonic, readers = source.pool.calls, source.clock.monotonic, self._readers
        while not worker.abandoned:
            try:
                unit = pending.popleft()
            except IndexError:
                return
            other = calls.setdefault(unit, worker)
            if other is not worker:
                if other.task != self.work:
                    source.pool.follow(unit, other, partial(self._want_again, unit))
                continue
            worker.call = unit
            if source.opened is not opened:
                raise SourceError(*(GONE if source.failure is None else source.failure.why))
            if opened not in readers:
                readers.setdefault(opened, self.open_reader(opened.driver))
            reading: object = readers[opened].read(unit, progress)
            if not isinstance(reading, Reading):
                raise TypeError(f"read() returned {reading!r}, which is no Reading")
            now = monotonic()
            self._store_result(worker, opened, reading, now, _source_time(reading, now) if reading.read_at is not None else now)

    def open_reader(self, driver: Driver) -> Reader:
        """Return this sampler's reader of a driver."""
        return driver.reader(self._options.read_options())

    def _want_again(self, unit: int) -> None:
        self.pending.append(unit)
        self.source.pool.queue.put(self.work)

    def _store_result(self, worker: WorkerThread, opened: OpenDriver, result: Reading | Failure, now: float, read_at: float) -> None:
        """Store the result of a call, and free the unit for the next one."""
        unit, pool = worker.call, self.source.pool
        self._arrived[unit] = (result, now, read_at, opened)
        worker.progress.append(LANDED)
        pool.fruitless = 0
        del pool.calls[unit]
        self.given_up.pop(unit, None)
        self.wanted.discard(unit)
        if pool.blocked:
            pool.unblock(unit)

    def collect(self, late: bool, entries: list[Entry]) -> BackendStatus:
        """Take the results that have arrived.

        Args:
            late: Whether the interpreter was too busy elsewhere to wait for everything.
            entries: The list to extend with each unit's reading, or the reason why there is none.

        Returns:
            The status of the source.
        """
        source, opened, arrived = self.source, self.opened, self._arrived
        if opened is None or source.opened is not opened:
            return self._closed_status(entries)
        now = oldest = source.clock.monotonic()
        failures: dict[str, Failure] = {}
        paced = opened.interval > 0
        limit = self._limit(now)
        fresh, first = False, len(entries)
        for unit, mapper in self._units:
            result, returned_at, read_at, driver = arrived.get(unit, NOT_ARRIVED)
            if result is None or driver is not opened or (read_at if paced else returned_at) < limit:
                result = Failure(self._missing(unit, late))
            elif paced:
                fresh = fresh or self._served.get(unit) != read_at
                self._served[unit] = read_at
            else:
                fresh = True
                del arrived[unit]  # served once
            if isinstance(result, Failure):
                failures[mapper.key] = result
                why = result.why
                # A lost device has no values, but the driver may have recorded events of it (Xid errors), which must not
                # disappear with it.
                events = getattr(self._readers.get(opened), "events", None) if why.reason in LOST_REASONS else None
                if events is not None and (known := guarded(events, unit).value):
                    missing = {name: why for name in mapper.names if name not in known}
                    entries.append((mapper, Reading.of(known, missing, processes=why)))
                else:
                    entries.append((mapper, why))
            else:
                entries.append((mapper, result))
                oldest = min(oldest, read_at)
        if source.devices is not self._listing:
            # The identities that this reading found. Devices that it found in addition are read from the next reading on.
            self._list_devices(source.devices[: len(self._listing or ())], opened.machine_wide)
        if failures or self._removed:
            self._drop_removed(entries, first, failures)
        self._sequence += fresh
        if self._duration:
            source.busy_seconds = self._last_duration = self._duration
        self.failures = failures
        given = len(entries) - first - len(failures)
        status, detail = self._open_status(_silent_reason(entries[first:]), given)
        entries.extend((mapper, LOST) for mapper in self._lost_mappers)
        name = source.backend.name
        if not given:
            return BackendStatus(name, status, detail, source.source, sequence=self._sequence, devices=self._device_count)
        age = max(0.0, now - oldest)
        stamp = rfc3339(source.clock.time_ns() - int(age * 1e9))
        return BackendStatus(name, status, detail, source.source, self._duration, stamp, age, self._sequence, self._device_count)

    def _limit(self, now: float) -> float:
        """Return the oldest time that is not too late: for a background source's values, or for the return of a call."""
        paced = self.opened is not None and self.opened.interval > 0
        # As `Reason.STALE` says: older than two of the source's intervals plus the timeout.
        return (now - 2.0 * self.source.pace if paced else self.asked_at) - self._options.timeout

    def _missing(self, unit: int, late: bool) -> Unavailable:
        """Return the reason why a unit's reading is missing."""
        pool = self.source.pool
        since = self.given_up.get(unit)
        if since is not None:
            return self._with_wait(HUNG, since)
        if not pool.workers:
            return self._with_wait(DRIVER_HUNG) if pool.calls else NO_THREAD
        if late and not self.given_up:
            return LATE
        return self._with_wait(STALE if self.source.interval > 0 and unit in self._arrived else TOO_SLOW)

    def _with_wait(self, why: Unavailable, since: int = 0) -> Unavailable:
        """Return a reason that names the vendor's tool that is waited for, and since when.

        Without a tool, only the time is added, if it is known.
        """
        wait = self.source.pool.waits_for()
        if wait is not None:
            return why._replace(detail=f"{wait.tool} has not answered since {rfc3339_second(wait.since)}: {why.detail}")
        return why._replace(detail=f"{why.detail} since {rfc3339_second(since)}") if since else why

    def _closed_status(self, entries: list[Entry]) -> BackendStatus:
        """Add the reason why the source is not open to the entries, for every key that it ever reported."""
        source, name, failure = self.source, self.source.backend.name, self.source.failure
        self.failures = {}
        if source.absent and failure is not None:
            return BackendStatus(name, "absent", failure.why.detail)
        if source.opening or failure is None:
            failure = Failure(self._with_wait(STILL_OPENING, source.opening_stamp))
        why = failure.why
        for key, mapper in self.mappers.items():
            if key not in self._removed:
                self.failures[key] = failure
                entries.append((mapper, why))
        status: Status = "timed_out" if why.reason == Reason.TIMED_OUT else "ok" if why.reason in AT_REST else "failed"
        found = self._device_count
        if not self.slots:
            found = source.detection.devices or int(source.backend.kind is not None and why.reason != Reason.DRIVER_UNAVAILABLE)
        return BackendStatus(
            name, status, why.detail, "", source.open_seconds, sequence=self._sequence, devices=found, reason=str(why.reason)
        )

    def _drop_removed(self, entries: list[Entry], first: int, failures: dict[str, Failure]) -> None:
        """Remove the entries of partitions that were removed on purpose. A partition that is read again is back."""
        removed = {key for key, failure in failures.items() if failure is REMOVED or key in self._removed}
        for key in removed:
            del failures[key]
        entries[first:] = [entry for entry in entries[first:] if entry[0].key not in removed]
        still = (removed | self._removed) - {mapper.key for mapper, result in entries[first:] if isinstance(result, Reading)}
        if still != self._removed:
            self._removed = still
            self._update_slots()

    def _open_status(self, silent: Unavailable | None, given: int) -> tuple[Status, str]:
        """Return status and detail of an open source.

        Args:
            silent: The reason why it reports no value at all; None if it does.
            given: The number of units that were read.
        """
        if silent is not None:
            return "timed_out" if silent.reason == Reason.TIMED_OUT else "degraded", f"{silent.reason}: {silent.detail}"
        failed = [(key, failure.why) for key, failure in self.failures.items() if failure.why.reason not in AT_REST]
        incomplete = self.source.incomplete
        wrong = failed or [(mapper.key, LOST) for mapper in self._lost_mappers] or ([("", incomplete)] if incomplete is not None else [])
        if not wrong:
            return "ok", "; ".join(filter(None, (self.source.detection.evidence, self._filter.caveat)))
        status: Status = "degraded"
        if not given:
            status = "timed_out" if all(why.reason == Reason.TIMED_OUT for _, why in wrong) else "failed"
        return status, "; ".join([f"{f'{key}: ' if key else ''}{why.reason}: {why.detail}" for key, why in wrong])

    def _list_devices(self, devices: tuple[DeviceIdentity, ...], machine_wide: bool) -> None:
        """Update the devices, their keys, and the units of the driver to read."""
        name, coverage = self.source.backend.name, self.source.coverage
        listed = self._devices.adopt(name, devices)
        shown = self._filter.show(self._devices.known(name))
        self.candidates = tuple(shown.values())
        keys = [shown[slot.key].key if slot.key in shown else "unseen" for slot in listed]
        # If the driver lists a device without a known partition of it, the partition was removed, not lost.
        parents = {slot.identity.anchor for slot, device in zip(listed, devices, strict=True) if device.uuid or not slot.identity.uuid}
        self._removed |= {slot.key for slot in self.candidates if slot.key not in keys and slot.identity.parent in parents}
        self._update_slots()
        for slot in self.candidates:
            if self._selection.wants(slot) and slot.key not in self.mappers:
                expected = coverage.partitions if slot.identity.parent else coverage.devices
                self.mappers[slot.key] = KeyMapper(slot.key, expected, self._options.metrics)
        units = [(unit, self.mappers[key]) for unit, key in enumerate(keys) if key in self.mappers]
        if machine_wide:
            units.append((len(keys), self.mappers.setdefault("", KeyMapper("", (), self._options.metrics))))
        self._units, self._numbers = units, tuple([unit for unit, _ in units])
        self._lost_mappers = [mapper for key, mapper in self.mappers.items() if key and key not in keys and key not in self._removed]
        self._listing = devices

    def _update_slots(self) -> None:
        """Update the reported devices."""
        self.slots = tuple(slot for slot in self.candidates if slot.key not in self._removed and self._selection.wants(slot))
        self._device_count = sum(not slot.identity.parent for slot in self.slots)


class DetailsReader(SourceReader):
    """A reader of the details that drivers give on request, within the limits of a reading.

    It does not keep the source open.
    """

    def open_reader(self, driver: Driver) -> Reader:
        """Return a reader that asks a driver for details."""
        return _DetailsCache(driver)

    def ask(self, now: float, latch: CountDownLatch) -> None:
        """Request details from the open driver, if it offers any."""
        opened = self.source.opened
        if opened is not None and hasattr(opened.driver, "details"):
            super().ask(now, latch)
        else:
            self.opened = None
            latch.count_down(self.source.backend.name)

    def described(self, slots: Iterable[DeviceSlot], late: bool) -> Iterator[tuple[str, Details | Unavailable]]:
        """Yield the details of each device by its key, or the reason why they are unknown.

        Args:
            slots: The devices to report if the source is not open.
            late: As for ``collect``.
        """
        opened, failure = self.source.opened, self.source.failure
        if opened is None:
            yield from ((slot.key, STILL_OPENING if failure is None else failure.why) for slot in slots)
            return
        cache = self._readers.get(opened)
        for unit, mapper in self._units if opened is self.opened else ():
            result = self._arrived.get(unit, NOT_ARRIVED)[0]
            if isinstance(cache, _DetailsCache) and unit in cache.known:
                yield mapper.key, cache.known[unit]
            elif isinstance(result, Failure):
                yield mapper.key, result.why
            elif result is None:
                yield mapper.key, self._missing(unit, late)

    def _count_workers(self) -> int:
        return 1


class _DetailsCache:
    """A reader that keeps a driver's details; its readings have no values. It asks again only if answers may change."""

    def __init__(self, driver: Any) -> None:
        self.known: dict[int, Details] = {}
        self._driver = driver

    def read(self, unit: int, progress: list[Any]) -> Reading:
        known = self.known.get(unit)
        if unit < len(self._driver.devices) and (known is None or not known.lasting):
            self.known.pop(unit, None)
            details = self._driver.details(unit, progress)
            if not isinstance(details, Details):
                raise TypeError(f"details() returned {details!r}, which is no Details")
            self.known[unit] = details
        return Reading()


def _keep_pace(source: ManagedSource, worker: WorkerThread) -> float | None:
    """Take due readings in the background. Return seconds until the next one; None while no sampler is interested."""
    opened, now = source.opened, source.clock.monotonic()
    if opened is None or not opened.interval:
        return None
    with source.lock:
        readers: list[SourceReader] = [one for one in source.readers if one.opened is opened and now - one.served_at < INTEREST]
    for reader in readers:
        if reader.begin_if_due(now):
            reader.work(worker)
    pause = min(reader.asked_at for reader in readers) + source.pace - source.clock.monotonic() if readers else None
    return None if pause is None else max(IDLE_PAUSE, pause)


def _reader_collected(source: ManagedSource) -> None:
    """Make a worker check whether the source is still used, after a reader was garbage-collected."""
    if source.opened is not None:
        # A finaliser may run in the middle of anything, so it takes no lock and only puts a task into the queue.
        source.pool.queue.put(source.tidy)


def _source_time(reading: Reading, now: float) -> float:
    """Return when the source took a reading, by its own account, limited to between the clock's start and now."""
    return now if reading.read_at is None else max(0.0, min(now, float(reading.read_at)))


def _silent_reason(entries: Sequence[Entry]) -> Unavailable | None:
    """Return the reason why a source that was read gives no value of any unit, if that is a fault; otherwise None.

    If a device has metrics that show that it answers (``VITAL``), one of these must have a value; values left from earlier readings
    do not count.
    """
    faults: list[Unavailable] = []
    vital: list[Unavailable] = []
    given = False
    for mapper, result in entries:
        if isinstance(result, Unavailable) and result.reason in AT_REST:
            continue
        if not isinstance(result, Reading) or not isinstance(result.blocks, (list, tuple)):
            return None
        for block in result.blocks:
            if type(block) is not Block or (block.names and not (mapper.key and VITAL.isdisjoint(block.names))):
                return None
            given = given or bool(block.names)
        if fault(result):
            return None
        wrong = [(name, why) for name, why in result.unavailable.items() if why.reason not in NO_FAULTS]
        faults.extend(why for _, why in wrong)
        vital.extend(why for name, why in wrong if name in VITAL)
    faults = vital if given else faults
    return next((why for why in faults if why.reason != Reason.TIMED_OUT), faults[0] if faults else None)
