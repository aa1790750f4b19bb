"""One reading of everything within a deadline: ask all sources side by side, wait, take what has arrived.

The wait is made of short slices. After each the workers that are still busy are looked at: one whose call makes no progress is stuck,
and is abandoned so that another can go on with the rest. Only time during which this thread itself ran on time counts towards the
deadline and towards a reader's patience: a slice that took far longer than asked for says that the interpreter was busy elsewhere,
not that a driver hangs. Such a reading is late, and counted as that.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping, Sequence

from accelmetrics.backends.contract import Backend
from accelmetrics.sampling.devices import DeviceRegistry, Numbering
from accelmetrics.sampling.options import DeviceSelection, Options
from accelmetrics.sampling.reader import SourceReader
from accelmetrics.sampling.snapshot_builder import Entry, SnapshotBuilder
from accelmetrics.sampling.sources import FORKED, ManagedSource, SourceRegistry
from accelmetrics.sampling.threads import CountDownLatch
from accelmetrics.schemas.errors import Reason
from accelmetrics.schemas.identity import BackendStatus, DeviceSlot
from accelmetrics.schemas.named_tuple import NamedTuple
from accelmetrics.schemas.snapshot import Snapshot

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

    def plus(self, more: ReadingCounts) -> ReadingCounts:
        """Return the sums."""
        return ReadingCounts(*map(sum, zip(self, more, strict=True)))


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
        self._last: Snapshot | None = None
        self.began = 0.0
        FORKED.add(self)

    def sample(self) -> Snapshot:
        """Take one snapshot. Safe from any thread: one that waited for another's reading takes part in what is left of the time."""
        timeout = self._options.timeout
        called = time.monotonic()
        with self._lock:
            if self._last is not None and self.began >= called:
                return self._last
            self.began = began = time.monotonic()
            budget = max(timeout - (began - called), SHORTEST_TURN * timeout)
            if self._first or not self._joined:  # a fork within a first reading leaves it half done in the child
                thread = threading.get_ident()
                self.settling = latch = CountDownLatch(thread)
                try:
                    self._open_first()
                    self._last = self._read(time.monotonic() + self._options.open_timeout, budget)
                    self._first = False
                    return self._last
                finally:
                    self.settling = None
                    latch.count_down(thread)
            until = 0.0
            if not self._all_open:
                until = self._open_due(began + budget)
                budget = max(began + budget - time.monotonic(), SHORTEST_TURN * timeout)
            self._last = self._read(until, budget)
            return self._last

    def close(self) -> None:
        """Give the sources back."""
        with self._lock:
            readers = self.readers
            self._start_over()
            self._registry.release(readers)

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
        self.readers, self._joined, self._first, self._last = [], False, True, None

    def _join_sources(self) -> None:
        """Join the registry's sources: at first, and again in the child of a fork."""
        registry = self._registry
        registry.release(self.readers)  # those of an interrupted attempt
        self.readers = []
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

    def _open_due(self, deadline: float) -> float:
        """Open what is due, and wait for that within the deadline.

        Returns:
            Until when sources with a pace of their own may be waited for, on the machine's monotonic clock; 0 where nothing was due.
        """
        begun = self._begin_opening()
        for source in begun:
            source.wait_for_opening(deadline)
        return deadline if begun else 0.0

    def _check_selection(self) -> None:
        """Refuse devices that were asked for and are not there, as soon as every source that might have them is open."""
        sources = [reader.source for reader in self.readers if reader.source.backend.kind in self._selection.kinds]
        if all(source.opened is not None or source.absent for source in sources):
            self._selection.check([slot for reader in self.readers for slot in reader.candidates])
            self._unchecked = False

    def _read(self, until: float, budget: float) -> Snapshot:
        clock, piece = self._registry.clock, min(LONGEST_SLICE, budget / SLICES)
        stamp, now = clock.time_ns(), clock.monotonic()
        latch = CountDownLatch(*self._names)
        for reader in self.readers:
            reader.ask(now, latch)
        if self._unchecked:
            self._check_selection()
        started = time.perf_counter()
        late = False
        if not latch.wait(piece) or time.perf_counter() - started > budget:
            late = self._wait(latch, budget, piece, started)
        for reader in self.readers if until else ():  # the first readings of sources with a pace of their own take longer
            name = reader.source.backend.name
            if name in latch.away and reader.wanted and reader.source.interval > 0:
                own = CountDownLatch(name)
                reader.join(own)
                own.wait(until - time.monotonic())
        return self._snapshot(stamp, late)

    def _snapshot(self, stamp: int, late: bool) -> Snapshot:
        """Put together what has arrived."""
        entries: list[Entry] = []
        statuses: list[BackendStatus] = []
        slots: list[DeviceSlot] = []
        timed_out, all_open = False, True
        for reader in self.readers:
            status = reader.collect(late, entries)
            statuses.append(status)
            slots += reader.slots
            if status.status != "ok" and not timed_out:
                reasons_of_devices = [failure.why.reason for failure in reader.failures.values()]
                timed_out = status.status == "timed_out" or Reason.TIMED_OUT in reasons_of_devices
            all_open = all_open and reader.source.opened is not None
        self._all_open = all_open and not self._unchecked
        readings, late_answers, lates = self.statistics
        self.statistics = ReadingCounts(readings + 1, late_answers + timed_out, lates + late)
        return self._builder.build(stamp, entries, slots, tuple(statuses))

    def _wait(self, latch: CountDownLatch, budget: float, piece: float, started: float) -> bool:
        """Wait for what has not arrived within the first slice. Returns whether it is late since the interpreter was busy elsewhere."""
        before = started
        ran = overrun = 0.0
        waiting = [reader for reader in self.readers if reader.source.backend.name in latch.away]
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
