"""One reading of everything within a deadline: ask all sources side by side, wait, take what has come.

The wait is made of short slices. After each the lanes that are still at work are looked at: one that makes no more steps
is stuck in a call, and is disowned so that another can go on with the rest. Only time during which this thread itself got
to run on time counts towards the deadline and towards anybody's patience: a slice that took far longer than asked for
says that the interpreter was busy elsewhere, not that a driver hangs. Such a reading is late, and counted as that.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Sequence
from typing import NamedTuple

from accelmetrics.backends.contract import Backend, Reading
from accelmetrics.sampling.assemble import Page
from accelmetrics.sampling.cursor import Cursor, Gate
from accelmetrics.sampling.inventory import Inventory, Seen
from accelmetrics.sampling.options import Options
from accelmetrics.sampling.post import Post
from accelmetrics.sampling.selection import Selection
from accelmetrics.sampling.session import Session
from accelmetrics.sampling.source import Source
from accelmetrics.schemas.snapshot import DeviceSlot, Snapshot

SLICES = 40
"""Into how many slices a wait is divided."""
LONGEST_SLICE = 0.025
"""Seconds: a take-over is decided at the end of one."""
FIRST_PATIENCE, LATER_PATIENCE = 0.6, 0.15
"""Shares of the deadline: how long a flight may stand still before its lane is disowned, the first time and after that."""
STARVED = 0.1
"""Share of a wait by which slices overran, above which the interpreter counts as busy elsewhere."""
WAKE_UP = 0.002
"""Seconds by which a slice may overrun without saying anything: what waking up costs on a machine with other work."""
SHORTEST_TURN = 0.1
"""Share of the timeout that a reading has in any case, when others or an opening took the rest."""
LONGEST_LATENESS = 3.0
"""A wait ends after so many deadlines, however busy the interpreter is."""


def hostname() -> str:
    """The machine's name."""
    if hasattr(os, "uname"):
        return os.uname().nodename
    import platform

    return platform.node()


class Statistics(NamedTuple):
    """What a sampler has counted since it was made.

    Attributes:
        readings: Snapshots taken.
        timed_out: Snapshots in which some vendor call gave no answer.
        late: Snapshots that took longer than the deadline, or went without some values, since the interpreter was busy.
    """

    readings: int = 0
    timed_out: int = 0
    late: int = 0


class _Wait(NamedTuple):
    """How a wait went: whether the interpreter was busy elsewhere, and whether the deadline passed."""

    starved: bool
    overdue: bool


class ThreadEngine:
    """Takes snapshots in this process.

    Args:
        session: Whose sources to use.
        backends: Which backends, in numbering order.
        forced: Names of those that are opened whatever detection says.
        options: What to read, and how long to wait.
        seen: Device numbers that users know already, from an earlier process.
    """

    def __init__(
        self,
        session: Session,
        backends: Sequence[Backend],
        forced: frozenset[str],
        options: Options,
        seen: Sequence[Seen] = (),
    ) -> None:
        self.statistics = Statistics()
        self._session = session
        self._backends = tuple(backends)
        self._forced = forced
        self._options = options
        self._selection = Selection(options.gpus)
        self._seen = seen
        self._hostname = hostname()
        self._lock = threading.Lock()
        self._epoch = -1
        self._sources: list[Source] = []
        self._posts: list[Post] = []
        self._first = True
        self._places: tuple[DeviceSlot, ...] = ()
        self._page = Page()
        self._inventory = Inventory()
        self._unchecked = False
        self._last: Snapshot | None = None
        self._last_began = 0.0
        self._finalizer: weakref.finalize[..., ThreadEngine] = weakref.finalize(self, session.abandon, [])
        session.consumers.add(self)

    def take(self) -> Snapshot:
        """One snapshot. Safe from any thread: who comes while another one samples takes part in what is left of the time."""
        self._session.check()
        called = time.monotonic()
        with self._lock:
            if self._last is not None and self._last_began >= called:
                return self._last
            self._settle_in()
            self._last_began = began = time.monotonic()
            left = max(self._options.timeout - (began - called), SHORTEST_TURN * self._options.timeout)
            first, self._first = self._first, False
            until = self._open(first, began + left)
            if not first:
                left = max(began + left - time.monotonic(), SHORTEST_TURN * self._options.timeout)
            self._last = self._read(until, left)
            return self._last

    def close(self) -> None:
        """Give the sources back."""
        with self._lock:
            sources, self._sources, self._posts = self._sources, [], []
            self._epoch = -1
            self._first = True
            self._last = None
            self._finalizer.detach()
        self._session.release(sources)

    def sources(self) -> list[Source]:
        """The sources, for ``doctor``."""
        self._session.check()
        with self._lock:
            self._settle_in()
            return list(self._sources)

    def numbering(self) -> list[Seen]:
        """The device numbers given out so far, for another process to go on from."""
        return self._inventory.export()

    def after_fork(self) -> None:
        """Replace the lock, which another thread may have held when the process forked."""
        self._lock = threading.Lock()

    def _settle_in(self) -> None:
        """Take the session's sources: at first, and again in the child of a fork."""
        if self._epoch == self._session.epoch:
            return
        self._sources, inventory = self._session.acquire(self._backends)
        self._finalizer.detach()
        self._finalizer = weakref.finalize(self, self._session.abandon, self._sources)
        self._finalizer.atexit = False
        inventory.restore(self._seen)
        self._posts = [
            Post(source, inventory, self._options, self._selection, source.backend.name in self._forced) for source in self._sources
        ]
        self._inventory = inventory
        self._first = True
        self._unchecked = self._options.gpus is not None
        self._last = None
        self._epoch = self._session.epoch

    def _open(self, first: bool, deadline: float) -> float:
        """Begin to open what is due, and wait: long the first time, within the deadline after that.

        Args:
            first: Whether this is the first reading.
            deadline: When a later reading must be done, on the machine's monotonic clock.

        Returns:
            Until when sources with a pace of their own may be waited for, on that clock.
        """
        begun = [post.source for post in self._posts if post.source.ensure_open(post.forced)]
        if not first and not begun:
            if self._unchecked:
                self._check_selection()
            return 0.0
        for source in self._sources if first else begun:
            # One that somebody else has been opening for long is not waited for all over again.
            until = source.opening_since + self._options.open_timeout if first else deadline
            source.settled.wait(max(0.0, until - time.monotonic()))
        if first:
            self._reserve()
            for post in self._posts:
                post.prepare()
            self._check_selection()
        return time.monotonic() + self._options.open_timeout if first else deadline

    def _reserve(self) -> None:
        """Set places aside, once it is known who has opened: by what each lists, and by what was detected of those still out."""
        for source in self._sources:
            kind = source.backend.kind
            if kind is not None and (source.detection.present or source.devices):
                wholes = sum(not device.parent for device in source.devices)
                self._inventory.reserve(source.backend.name, kind, max(source.detection.devices, wholes))

    def _check_selection(self) -> None:
        """Refuse devices that were asked for and are not there, as soon as every source that might have them is open."""
        kinds = self._selection.kinds
        if any(source.state in {"new", "opening", "failed"} and source.backend.kind in kinds for source in self._sources):
            return
        self._selection.check([place for post in self._posts for place in post.candidates])
        self._unchecked = False

    def _read(self, until: float, budget: float) -> Snapshot:
        clock = self._session.clock
        stamp = clock.time_ns()
        now = clock.monotonic()
        gate = Gate()
        asked = [post for post in self._posts if post.ask(now, gate)]
        gate.arrive()
        cursors = [post.cursor for post in asked if post.cursor is not None]
        wait = self._wait(cursors, budget)
        for cursor in cursors:
            if cursor.source.paced and until:
                cursor.wait(max(0.0, until - time.monotonic()))
        return self._assemble(stamp, wait)

    def _wait(self, cursors: Sequence[Cursor], budget: float) -> _Wait:
        waiting = [cursor for cursor in cursors if not cursor.finished]
        if not waiting:
            return _Wait(False, False)
        piece = min(LONGEST_SLICE, budget / SLICES)
        started = before = time.perf_counter()
        ran = overrun = 0.0
        while waiting:
            waiting[0].wait(min(piece, budget - ran))
            waiting = [cursor for cursor in waiting if not cursor.finished]
            after = time.perf_counter()
            elapsed, before = after - before, after
            overrun += max(0.0, elapsed - piece - WAKE_UP)
            ran += min(elapsed, 2.0 * piece)
            if not waiting or ran >= budget or after - started > LONGEST_LATENESS * budget:
                break
            waiting = [cursor for cursor in waiting if cursor.watch(min(elapsed, 2.0 * piece), self._patience(cursor))]
        total = before - started
        return _Wait(overrun > STARVED * total, total > budget or bool(waiting))

    def _patience(self, cursor: Cursor) -> float:
        """For how long a call may stand still, in seconds, before it is given up."""
        timeout = self._options.timeout
        if cursor.source.paced:
            return cursor.source.pace + timeout
        return timeout * (LATER_PATIENCE if cursor.blocked else FIRST_PATIENCE)

    def _assemble(self, stamp: int, wait: _Wait) -> Snapshot:
        late = wait.starved and wait.overdue
        served = [post.collect(late) for post in self._posts]
        entries = [entry for part in served for entry in part.entries]
        metrics, reasons = self._page.write(entries)
        places = tuple([place for post in self._posts for place in post.places])
        if places != self._places:
            self._places = places
        processes = {
            shelf.key: what.processes for shelf, what in entries if isinstance(what, Reading) and shelf.key and what.processes is not None
        }
        readings, timed_out, lates = self.statistics
        self.statistics = Statistics(readings + 1, timed_out + any(post.timed_out for post in self._posts), lates + late)
        return Snapshot(stamp, self._hostname, metrics, self._places, reasons, tuple([part.status for part in served]), processes)
