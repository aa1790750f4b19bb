"""One reading of everything within a deadline: ask all sources side by side, wait, take what has arrived.

The wait is made of short slices. After each the workers that are still busy are looked at: one whose call makes no progress is stuck,
and is abandoned so that another can go on with the rest. Only time during which this thread itself ran on time counts towards the
deadline and towards a reader's patience: a slice that took far longer than asked for says that the interpreter was busy elsewhere,
not that a driver hangs. Such a reading is late, and counted as that. Nothing else decides that a call or a reading is late.

Workers write what arrives, the sampler's thread takes it. Every shared step is a single operation on a built-in container, so that
neither side holds a lock while the other works, and an interrupt between two steps is repaired at the next reading.
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
from itertools import pairwise, repeat
from typing import Any

from accelmetrics.backends.contract import Backend, Block, Driver, Reader, Reading
from accelmetrics.backends.guard import guarded
from accelmetrics.backends.kit.tap import through
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
"""Into how many slices a wait is divided."""
LONGEST_SLICE = 0.025
"""Seconds: a stuck worker is found at the end of a slice."""
STARVED = 0.1
"""Share of a wait by which slices overran, above which the interpreter counts as busy elsewhere."""
WAKE_UP = 0.002
"""Seconds by which a slice may overrun without saying anything: what waking up costs on a machine with other work."""
IMPORT_PATIENCE, IMPORT_SHARE = 2.0, 0.3
"""Seconds, and the share of the time for opening, for which a driver waits for the modules of others to be imported."""
SHORTEST_TURN = 0.1
"""Share of the timeout that a reading has in any case, when others or an opening took the rest."""
LONGEST_LATENESS = 3.0
"""A wait ends after so many deadlines, however busy the interpreter is."""
FIRST_PATIENCE, LATER_PATIENCE = 0.6, 0.15
"""Shares of the deadline for which a call may stand still before its worker is abandoned, the first time and after that."""
SHORTEST_HANG = 0.05
"""Seconds without a returned call below which no worker is abandoned, however impatient a sampler is."""
GONE = Unavailable(Reason.DRIVER_UNAVAILABLE, "the driver was closed before this was read")
HUNG = Unavailable(Reason.TIMED_OUT, "a call into the driver has not returned")
DRIVER_HUNG = Unavailable(Reason.TIMED_OUT, "the driver answers no call: too many have not returned")
NO_THREAD = Unavailable(Reason.DRIVER_ERROR, "no thread is to be had to call the driver with")
TOO_SLOW = Unavailable(Reason.TIMED_OUT, "the driver did not answer within the deadline")
LATE = Unavailable(Reason.STALE, "the reading is late: the interpreter was busy elsewhere, no call into the driver hangs")
STILL_OPENING = Unavailable(Reason.TIMED_OUT, "the driver is still being opened")
STALE = Unavailable(Reason.STALE, "the source's last reading is too old")
LOST = Unavailable(Reason.DEVICE_LOST, "the driver no longer lists this device")
LOST_REASONS = frozenset({Reason.DEVICE_LOST, Reason.RESET_REQUIRED})
"""Reasons of a device that is not asked for what the driver reports by itself."""
REMOVED = Failure(LOST)
"""Stands for the reading of a partition that was removed on purpose."""
NO_FAULTS = frozenset({Reason.NOT_IN_USE, Reason.NOT_SUPPORTED, Reason.NEEDS_INTERVAL, Reason.SUSPENDED})
"""Reasons for which a source may give no value, and be well."""
AT_REST = frozenset({Reason.NOT_IN_USE, Reason.SUSPENDED})
"""Those for which a whole device may be left alone, or a driver unopened."""

INTEREST = 60.0
"""Seconds for which a source with a pace of its own goes on after it was last asked for."""
IDLE_PAUSE = 0.05
"""The shortest wait before a source with a pace of its own is looked at again, in seconds."""
HAND_OVER = 5e-6
"""Seconds: a shorter call returns before another thread has woken up and gone on."""
LANDED = object()
"""Appended to a worker's progress where the reading of a unit has ended."""

_Result = tuple[Reading | Failure | None, float, float, OpenDriver | None]
"""What a call gave, when it returned and when the source took that, on the sampler's clock, and from which driver."""
NOT_ARRIVED: _Result = (None, 0.0, 0.0, None)


@through
def hostname() -> str:
    """Return the machine's name."""
    if hasattr(os, "uname"):
        return os.uname().nodename
    import platform

    return platform.node()


class ReadingCounts(NamedTuple):
    """What a sampler has counted since it was made.

    Attributes:
        readings: Snapshots taken.
        timed_out: Snapshots in which some vendor call gave no answer.
        late: Snapshots that took longer than the deadline, or went without some values, since the interpreter was busy.
    """

    readings: int = 0
    timed_out: int = 0
    late: int = 0


class ThreadEngine:
    """Takes snapshots in this process.

    Args:
        registry: Whose sources to use.
        backends: Which backends, in numbering order.
        forced: Names of those that are opened whatever detection says.
        options: What to read, and how long to wait.

    Attributes:
        readers: The readers of its sources, in the order of the backends.
        devices: The numbering of their devices.
        began: When the last reading began, on the machine's monotonic clock.
        settling: Opens when the first reading has ended; None while none is in progress.
    """

    def __init__(self, registry: SourceRegistry, backends: Sequence[Backend], forced: frozenset[str], options: Options) -> None:
        self.statistics = ReadingCounts()
        self.readers: list[SourceReader] = []
        self._describers: list[DetailsReader] = []
        self.devices = DeviceRegistry()
        self._registry = registry
        self._backends = tuple(backends)
        self._forced = forced
        self._options = options
        self._selection = DeviceSelection(options.gpus)
        self._lock = threading.Lock()
        self._joined = False
        self._first = True
        self.settling: CountDownLatch | None = None
        self._names = tuple(backend.name for backend in backends)
        self._all_open = False
        self._builder = SnapshotBuilder(hostname())
        self._unchecked = False
        self._last: tuple[float, Snapshot] | None = None  # when it began, on the machine's monotonic clock
        self.began = 0.0
        FORKED.add(self)

    def sample(self, max_age: float = 0.0) -> Snapshot:
        """Take one snapshot. Safe from any thread: one that waited for another's reading takes part in what is left of the time.

        Args:
            max_age: Seconds before this call in which the last reading must have begun to be returned once more.
        """
        timeout = self._options.timeout
        called = time.monotonic()
        if max_age and (young := self.latest(called - max_age)) is not None:
            return young
        with self._lock:
            last = self._last
            if last is not None and last[0] >= called - max_age:  # another thread's, which this one has waited for
                return last[1]
            self.began = began = time.monotonic()
            budget = max(timeout - (began - called), SHORTEST_TURN * timeout)
            if self._first or not self._joined:  # a fork within a first reading leaves it half done in the child
                with self._settled():
                    self._open_first()
                    taken = self._read(time.monotonic() + self._options.open_timeout, budget)
                    self._last, self._first = (began, taken), False
                    return taken
            until = 0.0
            if not self._all_open and (begun := self._begin_opening()):
                until = began + budget
                for source in begun:
                    source.wait_for_opening(until)
                budget = max(until - time.monotonic(), SHORTEST_TURN * timeout)
            taken = self._read(until, budget)
            self._last = (began, taken)
            return taken

    def latest(self, since: float) -> Snapshot | None:
        """Return the last reading once more if it began no earlier than this on the machine's monotonic clock."""
        last = self._last
        return last[1] if last is not None and last[0] >= since else None

    def list_devices(self) -> Sequence[DeviceSlot]:
        """List the devices without reading them. Waits for drivers that are being opened as the first reading does."""
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
        """Have forks wait for the block."""
        thread = threading.get_ident()
        self.settling = latch = CountDownLatch(thread)
        try:
            yield
        finally:
            self.settling = None
            latch.count_down(thread)

    def close(self) -> None:
        """Give the sources back."""
        with self._lock:
            readers = self.readers
            self._start_over()
            self._leave(readers)

    def settle(self, patience: float) -> None:
        """Wait until no other thread takes this sampler's first reading, though not for what hangs."""
        latch = self.settling
        if latch is not None and threading.get_ident() not in latch.away:
            latch.wait(self.began + patience - time.monotonic())

    def after_fork(self) -> None:
        """Leave the readers to the parent, one of whose threads may hold the lock for ever."""
        self._lock, self.settling = threading.Lock(), None
        self._start_over()

    def resume(self, numbering: Numbering, keys: Sequence[str], sequences: Mapping[str, int]) -> None:
        """Go on where another process ended.

        Args:
            numbering: The numbers of the devices.
            keys: Every key that was given.
            sequences: By backend, how many readings there were.
        """
        self._join_sources()
        self.devices.numbering = numbering
        for reader in self.readers:
            reader.resume(keys, sequences.get(reader.source.backend.name, 0))

    def _start_over(self) -> None:
        self.readers, self._describers, self._joined, self._first, self._last = [], [], False, True, None

    def _leave(self, readers: Sequence[SourceReader]) -> None:
        """Close the sources that no other sampler uses."""
        for reader in readers:
            reader.source.leave(reader)
        with self._registry.lock:
            self._registry.sweep()

    def _join_sources(self) -> None:
        """Join the registry's sources: at first, and again in the child of a fork."""
        registry = self._registry
        self._leave(self.readers)  # those of an interrupted attempt
        self.readers, self._describers = [], []
        with registry.lock:
            sources, self.devices = registry.acquire(self._backends)
            for source in sources:
                self.readers.append(SourceReader(source, self.devices, self._options, self._selection))
                source.join(self.readers[-1])  # after it was noted: an interrupt leaves none that is not there
        self._unchecked = self._options.gpus is not None
        self._joined = True

    def _open_first(self) -> None:
        """Join the sources, open them, wait as long as the first reading may, and set device numbers aside."""
        if not self._joined:
            self._join_sources()
        self._begin_opening()
        for reader in self.readers:
            # One that another sampler has been opening for long is not waited for all over again.
            reader.source.wait_for_opening(reader.source.opening_since + self._options.open_timeout)
        # It is known now what is open and what was detected of the rest.
        for reader in self.readers:
            source, kind = reader.source, reader.source.backend.kind
            if kind is not None and (source.detection.present or source.devices):
                wholes = sum(not device.parent for device in source.devices)
                self.devices.reserve(source.backend.name, kind, max(source.detection.devices, wholes))

    def _begin_opening(self) -> list[ManagedSource]:
        """Have what is due opened, side by side. Returns what is opened now.

        No driver is opened before the modules of all are imported: a vendor's library that hangs while it is loaded holds up every
        later import of an extension module.
        """
        due = [source for reader in self.readers if (source := reader.source).is_due(self._forced)]
        if not due:  # as at nearly every reading of a machine on which some vendors are absent
            return []
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
        """Ask every source, wait, and put together what has arrived.

        Args:
            until: Until when the first readings of sources with a pace of their own are waited for, on the machine's monotonic clock; 0
                where none was opened.
            budget: Seconds for all others.
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
                timed_out |= status.status == "timed_out" or any(what.why.reason == Reason.TIMED_OUT for what in reader.failures.values())
            self._all_open = self._all_open and reader.source.opened is not None
        readings, late_answers, lates = self.statistics
        self.statistics = ReadingCounts(readings + 1, late_answers + timed_out, lates + late)
        return self._builder.build(stamp, entries, slots, tuple(statuses))

    def describe(self) -> dict[str, Details | Unavailable]:
        """Ask drivers for what they tell of devices on request, within the timeout, and return it by device key.

        What a driver has told is kept until it is opened again. Devices are left out whose driver has nothing of the kind.
        """
        self.list_devices()
        with self._lock:
            if not self._describers:
                self._describers = [DetailsReader(one.source, self.devices, self._options, self._selection) for one in self.readers]
            now, latch = self._registry.clock.monotonic(), CountDownLatch(*self._names)
            for describer in self._describers:
                describer.ask(now, latch)
            late = self._wait(latch, self._options.timeout, self._describers)
            both = zip(self.readers, self._describers, strict=True)
            return {key: found for reader, describer in both for key, found in describer.described(reader.slots, late)}

    def _check_selection(self) -> None:
        """Refuse a choice that no device answers to, once all devices of its kind are known."""
        sources = [reader.source for reader in self.readers if reader.source.backend.kind in self._selection.kinds]
        if all(source.opened is not None or source.absent for source in sources):
            self._selection.check([slot for reader in self.readers for slot in reader.candidates])
            self._unchecked = False

    def _wait(self, latch: CountDownLatch, budget: float, readers: Sequence[SourceReader]) -> bool:
        """Wait for what was asked for, and have calls given up that stand still.

        Returns:
            Whether it is late since the interpreter was busy elsewhere.
        """
        started = before = time.perf_counter()
        piece = min(LONGEST_SLICE, budget / SLICES)
        if latch.wait(piece) and time.perf_counter() - started <= budget:
            return False
        ran = overrun = 0.0
        waiting = [reader for reader in readers if reader.source.backend.name in latch.away]
        while True:
            after = time.perf_counter()
            elapsed, before = after - before, after
            overrun += max(0.0, elapsed - piece - WAKE_UP)
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

    def append(self, what: Any) -> None:
        """Note that a call has returned, or a unit has landed."""
        self._times.append(time.perf_counter())
        super().append(what)

    def units(self) -> list[tuple[float, float]]:
        """Return, of each unit, the seconds inside the driver in which other threads could have run, and those of all of its reading.

        Inside is what ends with an entry of the backend's, less what a thread takes to wake up. What follows a unit's last entry is work
        of our own; a unit without an entry was inside the driver throughout.
        """
        found: list[tuple[float, float]] = []
        inside, whole, told = 0.0, 0.0, False
        for (before, after), what in zip(pairwise(self._times), self, strict=False):
            whole += after - before
            if what is LANDED:
                found.append((inside if told else whole, whole))
                inside, whole, told = 0.0, 0.0, False
            else:
                inside, told = inside + max(0.0, after - before - HAND_OVER), True
        return found


class SourceReader:
    """One sampler's place at one source.

    Attributes:
        source: The source.
        opened: The driver that is read; None while there is none.
        pending: Units to be read that no worker has taken yet.
        wanted: Units that are waited for: pending, or in a call.
        given_up: Units in a call that is not waited for any more, and since when it has stood still, in nanoseconds since the epoch.
        slots: The devices that were selected, by number: all that were ever seen, lost ones too, but for removed partitions.
        candidates: The devices that could be selected: all of the source, or those that the watched process sees.
        mappers: By device key, what maps the unit's readings to keys; under an empty key, that of the machine-wide unit.
        failures: By device key, likewise, what is wrong with the last reading.
        asked_at: When the last reading was asked for, on the sampler's clock.
        served_at: When the sampler last looked, on its clock.
        latch: What is counted down when everything has arrived.
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
        self._lost: list[KeyMapper] = []
        self._removed: set[str] = set()  # keys of partitions that were removed on purpose
        self._readers: dict[OpenDriver, Reader] = {}
        self._lock = threading.Lock()
        self._arrived: dict[int, _Result] = {}
        self._served: dict[int, float] = {}
        self.latch: CountDownLatch | None = None
        self._spent = 0.0
        self._took = 0.0  # the latest reading that was no kept one
        self._timed: list[tuple[float, float]] | None = None
        self._sequence = 0
        self._wholes = 0
        weakref.finalize(self, _dropped, source).atexit = False

    def resume(self, keys: Iterable[str], sequence: int) -> None:
        """Go on where another process ended: its devices and keys are missing, with the reason, until the source is open.

        Args:
            keys: Every key that was given.
            sequence: How many readings there were.
        """
        self._sequence = sequence
        self._list_devices((), False)
        self.source.was_open = bool(self.slots)
        for mapper in self.mappers.values():
            mapper.reasons = dict.fromkeys((key for key in keys if key.startswith(f"{mapper.key}.")), STILL_OPENING)

    def ask(self, now: float, latch: CountDownLatch) -> None:
        """Ask the driver that is open now for a reading of the devices that it lists now, if one is due.

        Args:
            now: When, on the sampler's clock.
            latch: What to count down when everything has arrived that is worth waiting for.
        """
        source, opened = self.source, self.source.opened
        if opened is None:
            self.opened = None
            latch.count_down(source.backend.name)
            return
        if opened is self.opened:
            guarded(self._look, opened)
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
            # What it gave lately is served while the next reading is in progress.
            limit = self._limit(now)
            results = [self._arrived.get(unit, NOT_ARRIVED) for unit, _ in self._units if unit not in self.given_up]
            recent = all(driver is opened and read_at >= limit for _, _, read_at, driver in results)
        else:
            self._begin(now)
            kept = getattr(self._readers.get(opened), "kept", None)
            if kept is not None and len(self.pending) == 1 and not self.given_up:
                self._take_kept(opened, kept, now)
        self.latch = latch  # before looking at what is wanted: a worker that is done looks at it afterwards
        if recent or not self.wanted:
            latch.count_down(source.backend.name)
        if self.pending:
            source.pool.submit(self.work, 1 if paced else self._count_workers(), patient=True)

    def list_devices(self) -> tuple[DeviceSlot, ...]:
        """Return the selected devices, with those that a driver that is open lists; reads nothing."""
        opened, devices = self.source.opened, self.source.devices
        if opened is not None and devices is not self._listing:
            self._list_devices(devices, opened.machine_wide)
        return self.slots

    def _take_kept(self, opened: OpenDriver, kept: Callable[[int], Reading | None], now: float) -> None:
        """Take the reading of a source of one unit that its reader has at hand, without waking a worker for it."""
        try:
            unit = self.pending.popleft()
        except IndexError:  # a worker that was late with the reading before was quicker
            return

        def look() -> _Result | None:
            found = kept(unit)
            return None if found is None else (found, now, _taken_at(found, now), opened)

        result = guarded(look).value
        if result is None:
            self.pending.append(unit)
            return
        self.wanted.clear()
        self._arrived[unit] = result
        self._spent = self._took

    def _count_workers(self) -> int:
        """Return how many workers are to share this reading, and decide whether its calls are timed.

        Python code runs on one thread at a time, so workers share only what is spent inside a driver, whose calls let other threads run.
        How long a reading takes does not tell that: with many fast devices it is Python code for the most part, and a busy interpreter
        makes every reading long. So the calls of the first reading are timed, and of every one where readings are long.
        """
        source = self.source
        if self._timed:
            # By the median unit: a call that came back to an interpreter busy elsewhere took long, whatever the driver.
            inside, whole = (sorted(seconds)[(len(seconds) - 1) // 2] for seconds in zip(*self._timed, strict=True))
            source.driver_seconds = inside * len(self._units) if inside > whole / 2 else 0.0
            self._timed = None
        first, long = not source.busy_seconds, source.busy_seconds > SLOW_READING
        if self._timed is None and (first or long):
            self._timed = []
        return min(MAX_WORKERS, 1 + int(source.driver_seconds / SLOW_READING), len(self.pending)) if long else 1

    def begin_if_due(self, now: float) -> bool:
        """Begin a reading of a source with a pace of its own: asked for by the sampler, or by a worker that is idle."""
        with self._lock:
            due = not self.wanted and (not self.asked_at or now - self.asked_at >= self.source.pace)
            if due:
                self._begin(now)
            return due

    def _begin(self, now: float) -> None:
        """Note that every unit is to be read; those in a call since the last time are joined, not read again."""
        calls, pending, wanted = self.source.pool.calls, self.pending, self.wanted
        self.asked_at, self._spent, self.latch = now, 0.0, None
        if not wanted and not pending and not self.given_up:  # as nearly always
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
        """Note that so much time has passed, and give up units whose calls stood still for too long.

        The worker of such a call is abandoned, so that another can go on with the rest; readers with more patience still wait.

        Args:
            seconds: The time that has passed.

        Returns:
            Whether anything is still worth waiting for.
        """
        pool, timeout = self.source.pool, self._options.timeout
        patience = timeout * (LATER_PATIENCE if self.given_up else FIRST_PATIENCE)
        if self.source.interval > 0:
            patience = self.source.pace + timeout
        begun = False
        for unit, worker in list(pool.calls.items()):
            if unit < 0:
                continue
            begun = begun or worker.task == self.work
            idle = worker.stood_still(seconds)
            if idle >= patience and unit in self.wanted:
                self.given_up[unit] = self.source.clock.time_ns() - int(idle * 1e9)
                self.wanted.discard(unit)
            if idle >= max(patience, SHORTEST_HANG):
                pool.abandon(worker, unit)
        if self.pending and not begun:  # the workers are at other readers' calls
            pool.reinforce()
        return bool(self.wanted) and (bool(pool.workers) or not self.wanted.isdisjoint(pool.calls))

    def work(self, worker: WorkerThread) -> None:
        """Read pending units until there are none or the worker is abandoned."""
        source, opened = self.source, self.opened
        timed = self._timed
        timer = None if timed is None else CallTimer()
        worker.task, worker.progress = self.work, [] if timer is None else timer
        while opened is not None:
            outcome = guarded(self._read_pending, worker, opened)
            self._spent += outcome.seconds
            error = outcome.error
            if error is None or outcome.failure is None:
                break
            now = source.clock.monotonic()
            removed = isinstance(error, PartitionRemovedError)
            self._land(worker, opened, REMOVED if removed else Failure.of(outcome.failure, error), now, now)
            if isinstance(error, DriverGoneError):
                source.driver_gone(opened, error)
        if timed is not None and timer is not None:
            timed += timer.units()
        worker.task = None  # nothing there keeps the reader alive while the worker waits
        if opened is not None:
            guarded(self._look, opened)
        latch = self.latch
        if latch is not None and not self.wanted:
            latch.count_down(source.backend.name)
        if source.retired or not source.readers:
            source.tidy(worker)

    def _look(self, opened: OpenDriver) -> None:
        """Note the devices that the driver lists now, and what it reads. Raises whatever a plug-in raises."""
        source, driver = self.source, opened.driver
        if source.opened is not opened:
            return
        source.source = driver.source
        lacking = getattr(driver, "incomplete", None)
        source.incomplete = lacking if isinstance(lacking, Unavailable) else None
        listed = driver.devices
        if listed is not source.listed and listed != source.listed:
            source.listed = listed
            devices = checked_devices(listed)
            with source.lock:
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
                raise TypeError(f"read() gave {reading!r}, which is no Reading")
            now = monotonic()
            self._land(worker, opened, reading, now, _taken_at(reading, now) if reading.read_at is not None else now)

    def open_reader(self, driver: Driver) -> Reader:
        """Return this sampler's own view of a driver."""
        return driver.reader(self._options.read_options())

    def _want_again(self, unit: int) -> None:
        self.pending.append(unit)
        self.source.pool.queue.put(self.work)

    def _land(self, worker: WorkerThread, opened: OpenDriver, what: Reading | Failure, now: float, read_at: float) -> None:
        """Take the result of a call, and free the unit."""
        unit, pool = worker.call, self.source.pool
        self._arrived[unit] = (what, now, read_at, opened)
        worker.progress.append(LANDED)
        pool.fruitless = 0
        del pool.calls[unit]
        self.given_up.pop(unit, None)
        self.wanted.discard(unit)
        if pool.blocked:
            pool.unblock(unit)

    def collect(self, late: bool, entries: list[Entry]) -> BackendStatus:
        """Take what has arrived.

        Args:
            late: Whether the interpreter was too busy elsewhere to wait for everything.
            entries: Where to add, of every unit, the reading or the reason why there is none.

        Returns:
            How the source fared.
        """
        source, opened, arrived = self.source, self.opened, self._arrived
        if opened is None or source.opened is not opened:
            return self._closed(entries)
        now = oldest = source.clock.monotonic()
        failures: dict[str, Failure] = {}
        paced = opened.interval > 0
        limit = self._limit(now)
        fresh, first = False, len(entries)
        for unit, mapper in self._units:
            what, returned_at, read_at, driver = arrived.get(unit, NOT_ARRIVED)
            if what is None or driver is not opened or (read_at if paced else returned_at) < limit:
                what = Failure(self._missing(unit, late))
            elif paced:
                fresh = fresh or self._served.get(unit) != read_at
                self._served[unit] = read_at
            else:
                fresh = True
                del arrived[unit]  # served once
            if isinstance(what, Failure):
                failures[mapper.key] = what
                why = what.why
                events = getattr(self._readers.get(opened), "events", None) if why.reason in LOST_REASONS else None
                known = guarded(events, unit).value if events is not None else None
                missing = {name: why for name in mapper.names if name not in known} if known else {}
                entries.append((mapper, Reading.of(known, missing, processes=why) if known else why))
            else:
                entries.append((mapper, what))
                oldest = min(oldest, read_at)
        if source.devices is not self._listing:
            # What this reading found out about its devices. Those that it found besides are read from the next one on.
            self._list_devices(source.devices[: len(self._listing or ())], opened.machine_wide)
        if failures or self._removed:
            self._leave_out(entries, first, failures)
        self._sequence += fresh
        source.busy_seconds, self._took = self._spent or source.busy_seconds, self._spent or self._took
        self.failures = failures
        status: Status = "ok"
        detail = "; ".join(filter(None, (source.detection.evidence, self._filter.caveat)))
        silent = _silence(entries[first:])
        given = len(entries) - first - len(failures)
        if failures or silent or self._lost or source.incomplete:
            status, detail = self._fared(silent, given) or (status, detail)
            entries.extend(zip(self._lost, repeat(LOST)))
        name = source.backend.name
        if not given:
            return BackendStatus(name, status, detail, source.source, sequence=self._sequence, devices=self._wholes)
        age = max(0.0, now - oldest)
        stamp = rfc3339(source.clock.time_ns() - int(age * 1e9))
        return BackendStatus(name, status, detail, source.source, self._spent, stamp, age, self._sequence, self._wholes)

    def _limit(self, now: float) -> float:
        """Return when a paced source must have taken what is served, or a call have returned that is: what is older is too late."""
        paced = self.opened is not None and self.opened.interval > 0
        return (now - 2.0 * self.source.pace if paced else self.asked_at) - self._options.timeout

    def _missing(self, unit: int, late: bool) -> Unavailable:
        """Return why the reading of a unit is too late."""
        pool = self.source.pool
        since = self.given_up.get(unit)
        if since is not None:
            return self._named(HUNG, since)
        if not pool.workers:
            return self._named(DRIVER_HUNG) if pool.calls else NO_THREAD
        if late and not self.given_up:
            return LATE
        return self._named(STALE if self.source.interval > 0 and unit in self._arrived else TOO_SLOW)

    def _named(self, why: Unavailable, since: int = 0) -> Unavailable:
        """Name the vendor's tool that is waited for, and since when; where it is no tool, with the time at least, where that is known."""
        wait = self.source.pool.waits_for()
        if wait is not None:
            return why._replace(detail=f"{wait.tool} has not answered since {rfc3339_second(wait.since)}: {why.detail}")
        return why._replace(detail=f"{why.detail} since {rfc3339_second(since)}") if since else why

    def _closed(self, entries: list[Entry]) -> BackendStatus:
        """Add the reason why the source is not open to the entries, for every key that it ever gave."""
        source, name = self.source, self.source.backend.name
        self.failures = {}
        if source.absent and source.failure is not None:
            return BackendStatus(name, "absent", source.failure.why.detail)
        opening = source.opening or source.failure is None
        failure = Failure(self._named(STILL_OPENING, source.opening_stamp)) if opening or source.failure is None else source.failure
        there_are = {key: mapper for key, mapper in self.mappers.items() if key not in self._removed}
        self.failures = dict.fromkeys(there_are, failure)
        entries.extend((mapper, failure.why) for mapper in there_are.values())
        status: Status = "timed_out" if failure.why.reason == Reason.TIMED_OUT else "ok" if failure.why.reason in AT_REST else "failed"
        there = source.detection.devices or int(source.backend.kind is not None and failure.why.reason != Reason.DRIVER_UNAVAILABLE)
        found = self._wholes if self.slots else there
        why, spent = failure.why, source.open_seconds
        return BackendStatus(name, status, why.detail, "", spent, sequence=self._sequence, devices=found, reason=str(why.reason))

    def _leave_out(self, entries: list[Entry], first: int, failures: dict[str, Failure]) -> None:
        """Leave out partitions that were removed on purpose; one that is read again is back."""
        removed = {key for key, failure in failures.items() if failure is REMOVED or key in self._removed}
        back = {mapper.key for mapper, what in entries[first:] if isinstance(what, Reading)}
        for key in removed:
            del failures[key]
        entries[first:] = [entry for entry in entries[first:] if entry[0].key not in removed]
        if (removed | self._removed) - back != self._removed:
            self._removed = (removed | self._removed) - back
            self._show()

    def _fared(self, silent: Unavailable | None, given: int) -> tuple[Status, str] | None:
        """Say how an open source fared that may not be well, of so many units that were read; None where nothing is wrong."""
        if silent is not None:
            return "timed_out" if silent.reason == Reason.TIMED_OUT else "degraded", f"{silent.reason}: {silent.detail}"
        failed = [(key, failure.why) for key, failure in self.failures.items() if failure.why.reason not in AT_REST]
        lacking = self.source.incomplete
        wrong = failed or [(mapper.key, LOST) for mapper in self._lost] or ([("", lacking)] if lacking is not None else [])
        if not wrong:
            return None
        status: Status = "degraded"
        if not given:
            status = "timed_out" if all(why.reason == Reason.TIMED_OUT for _, why in wrong) else "failed"
        return status, "; ".join([f"{f'{key}: ' if key else ''}{why.reason}: {why.detail}" for key, why in wrong])

    def _list_devices(self, devices: tuple[DeviceIdentity, ...], machine_wide: bool) -> None:
        """Note which devices there are, and which units of the driver are to be read."""
        name, coverage = self.source.backend.name, self.source.coverage
        listed = self._devices.adopt(name, devices)
        shown = self._filter.show(self._devices.known(name))
        self.candidates = tuple(shown.values())
        keys = [shown[slot.key].key if slot.key in shown else "unseen" for slot in listed]
        # A driver that lists a device, and not its partition that was there, has answered for it.
        wholes = {slot.identity.anchor for slot, device in zip(listed, devices, strict=True) if device.uuid or not slot.identity.uuid}
        unlisted = [slot for slot in self.candidates if slot.key not in keys]
        self._removed |= {slot.key for slot in unlisted if slot.identity.parent in wholes}
        self._show()
        for slot in self.candidates if self._removed else self.slots:
            if not self._selection.wants(slot):
                continue
            if slot.key not in self.mappers:
                owed = coverage.partitions if slot.identity.parent else coverage.devices
                self.mappers[slot.key] = KeyMapper(slot.key, owed, self._options.metrics)
        whole = self.mappers.setdefault("", KeyMapper("", (), self._options.metrics)) if machine_wide else None
        units = [(unit, self.mappers[key]) for unit, key in enumerate(keys) if key in self.mappers]
        self._lost = [mapper for key, mapper in self.mappers.items() if key and key not in keys and key not in self._removed]
        self._units = units if whole is None else [*units, (len(keys), whole)]
        self._numbers = tuple([unit for unit, _ in self._units])
        self._listing = devices

    def _show(self) -> None:
        """Note the devices that are reported."""
        self.slots = tuple(slot for slot in self.candidates if slot.key not in self._removed and self._selection.wants(slot))
        self._wholes = sum(not slot.identity.parent for slot in self.slots)


class DetailsReader(SourceReader):
    """Asks a source for what its driver tells of devices on request, within the limits of a reading. It does not keep the source open."""

    def open_reader(self, driver: Driver) -> Reader:
        """Return what asks a driver."""
        return _Asking(driver)

    def ask(self, now: float, latch: CountDownLatch) -> None:
        """Ask the driver that is open now, where it can be asked."""
        opened = self.source.opened
        if opened is not None and hasattr(opened.driver, "details"):
            super().ask(now, latch)
        else:
            self.opened = None
            latch.count_down(self.source.backend.name)

    def described(self, slots: Iterable[DeviceSlot], late: bool) -> Iterator[tuple[str, Details | Unavailable]]:
        """Yield what is known of each device by its key, or why it is not.

        Args:
            slots: The devices, where the source is not open.
            late: As for ``collect``.
        """
        opened, failure = self.source.opened, self.source.failure
        if opened is None:
            yield from ((slot.key, STILL_OPENING if failure is None else failure.why) for slot in slots)
            return
        asking = self._readers.get(opened)
        for unit, mapper in self._units if opened is self.opened else ():
            what = self._arrived.get(unit, NOT_ARRIVED)[0]
            if isinstance(asking, _Asking) and unit in asking.known:
                yield mapper.key, asking.known[unit]
            elif isinstance(what, Failure):
                yield mapper.key, what.why
            elif what is None:
                yield mapper.key, self._missing(unit, late)

    def _count_workers(self) -> int:
        return 1


class _Asking:
    """A driver as a reader whose readings have no values: what it tells is kept here, and asked for again only where that may help."""

    def __init__(self, driver: Any) -> None:
        self.known: dict[int, Details] = {}
        self._driver = driver

    def read(self, unit: int, progress: list[Any]) -> Reading:
        known = self.known.get(unit)
        if unit < len(self._driver.devices) and (known is None or not known.lasting):
            self.known.pop(unit, None)
            details = self._driver.details(unit, progress)
            if not isinstance(details, Details):
                raise TypeError(f"details() gave {details!r}, which is no Details")
            self.known[unit] = details
        return Reading()


def _keep_pace(source: ManagedSource, worker: WorkerThread) -> float | None:
    """Read what is due in the background. Returns seconds until the next reading; None while no sampler is interested."""
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


def _dropped(source: ManagedSource) -> None:
    """Have a worker see whether the source is still used, when a reader was garbage-collected. Safe in the middle of anything."""
    if source.opened is not None:
        source.pool.queue.put(source.tidy)


def _taken_at(reading: Reading, now: float) -> float:
    """Return when the source took a reading, by what it says; not later than now, nor before the clock began."""
    return now if reading.read_at is None else max(0.0, min(now, float(reading.read_at)))


def _silence(entries: Sequence[Entry]) -> Unavailable | None:
    """Say why a source that was read gives no value of any unit, where something is wrong; None where it gives one.

    Where a device has metrics by which it shows that it answers, one of those counts, and not what earlier readings left.
    """
    faults: list[Unavailable] = []
    vital: list[Unavailable] = []
    given = False
    for mapper, what in entries:
        if isinstance(what, Unavailable) and what.reason in AT_REST:
            continue
        if not isinstance(what, Reading) or not isinstance(what.blocks, (list, tuple)):
            return None
        for block in what.blocks:
            if type(block) is not Block or (block.names and not (mapper.key and VITAL.isdisjoint(block.names))):
                return None
            given = given or bool(block.names)
        if fault(what):
            return None
        wrong = [(name, why) for name, why in what.unavailable.items() if why.reason not in NO_FAULTS]
        faults.extend(why for _, why in wrong)
        vital.extend(why for name, why in wrong if name in VITAL)
    faults = vital if given else faults
    return next((why for why in faults if why.reason != Reason.TIMED_OUT), faults[0] if faults else None)
