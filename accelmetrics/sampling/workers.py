"""Daemon threads that call the drivers, so that the program never waits inside one.

A worker takes tasks from its pool's queue and is in at most one call into the driver at a time: one unit, for one reader. When that
call makes no progress, a waiting caller abandons the worker and another one goes on with the rest; the abandoned worker keeps its
unit until the call returns. So a unit is never read by two workers, a stuck call is never repeated, and the number of threads is
bounded. Abandoning a worker says nothing about how long others wait: each reader has its own patience.

A monitor's thread, which nothing else waits for, makes the calls of its readings itself: it is one more caller of the same drivers,
bound by the same rules, and abandoned in the same way (`sampling/engine.py`).

Workers are made here and not by an executor, which would join them at interpreter exit and so wait for a hung driver.

Callers may be interrupted anywhere (Ctrl-C in the main thread), workers may not. So whatever takes several steps is done by workers,
and a caller takes locks in a ``with`` statement alone: ``threading.Event`` and ``Condition`` would stay locked for ever after an
interrupt in the middle of their Python code.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from accelmetrics.backends.guard import WAITS, Outcome, Wait, guarded

if TYPE_CHECKING:
    from accelmetrics.sampling.reader import SourceReader

MAX_WORKERS = 4
"""Workers that read one slow source side by side."""
MAX_FRUITLESS = 3
"""Abandoned workers in a row, with no answer in between, after which a driver counts as hung as a whole."""
MAX_THREADS = 16
"""Threads of one source, those in stuck calls among them."""

Task = Callable[["WorkerThread"], None]
"""What a worker does; None in its place only wakes a worker, so that it sees that it may leave."""


class CountDownLatch:
    """Opens when every party has arrived. A party may arrive several times, from any thread.

    Args:
        parties: Names of those to wait for.

    Attributes:
        away: Those that have not arrived.
    """

    __slots__ = ("_closed", "away")

    def __init__(self, *parties: Hashable) -> None:
        self.away = set(parties)
        self._closed = threading.Lock()  # held until the latch opens
        self._closed.acquire()

    def count_down(self, party: Hashable) -> None:
        """Note that a party has arrived."""
        self.away.discard(party)
        if not self.away:
            self._open()

    def wait(self, seconds: float) -> bool:
        """Wait until it opens, at most so long. Returns whether it is open."""
        try:
            if self.away:
                self._closed.acquire(timeout=max(0.0, min(seconds, threading.TIMEOUT_MAX)))
        finally:
            if not self.away:
                self._open()  # for the next thread that waits, also when this one is interrupted
        return not self.away

    def _open(self) -> None:
        if self._closed.locked():
            try:
                self._closed.release()
            except RuntimeError:
                return  # another thread was quicker


REPLACED = object()
"""What the work of a thread returns when another thread has taken its place: the first one has nothing more to do."""


class OnDemandThread:
    """A daemon thread that runs while there is work, at most one at a time.

    Nothing waits for a lock here, and a start that Ctrl-C interrupts is made good by the next one.

    Args:
        name: The thread's name.
        wanted: Whether there is work.
        work: What the thread does, again while there is work.
    """

    def __init__(self, name: str, wanted: Callable[[], object], work: Callable[[], object]) -> None:
        self._name = name
        self._wanted = wanted
        self._work = work
        self._claim = threading.Lock()  # held by the thread that works
        self._thread: threading.Thread | None = None

    @property
    def alive(self) -> bool:
        """Whether the thread works, or is about to."""
        thread = self._thread
        return self._claim.locked() or (thread is not None and thread.is_alive())

    @property
    def is_current(self) -> bool:
        """Whether this is called on the thread."""
        return self._thread is threading.current_thread()

    def start(self) -> Outcome[None]:
        """Start the thread unless it is alive; it sees the work that was there before this call.

        Returns:
            Why it could not be started, if so.
        """
        if self.alive:
            return Outcome(None, None, None, 0.0)
        thread = self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        return guarded(thread.start)

    def replace(self, work: Callable[[], object]) -> None:
        """Work on, on the thread that calls this, in the place of one that is stuck in its work and that is to return ``REPLACED``.

        Args:
            work: What is left of it.
        """
        threading.current_thread().name = self._name
        if self._worked(work):
            self._run()

    def _run(self) -> None:
        while self._claim.acquire(blocking=False) and self._worked(self._work):
            pass

    def _worked(self, work: Callable[[], object]) -> bool:
        """Work, and give the claim back. Returns whether there is more work for this thread."""
        self._thread, outcome = threading.current_thread(), None
        try:
            outcome = work()
        finally:
            if outcome is not REPLACED:
                self._thread = None
                self._claim.release()
        return outcome is not REPLACED and bool(self._wanted())  # looked at when a start in between would begin another thread


class Caller:
    """A thread that calls drivers, and the call that it is in.

    Attributes:
        reader: The reader that the call is made for; None while the driver is opened or closed.
        unit: The unit that is read.
        progress: What the backend appends to after every call into the driver, a new list for every task; its length is the progress.
        abandoned: The call is stuck: nothing waits for it any more.
        thread: The thread's identifier; 0 before it runs.
    """

    def __init__(self) -> None:
        self.reader: SourceReader | None = None
        self.unit = 0
        self.progress: list[Any] = []
        self.abandoned = False
        self.thread = 0
        self._seen: tuple[list[Any], int] = ([], 0)
        self._looked_at = 0.0
        self._idle = 0.0

    def stood_still(self, seconds: float) -> float:
        """Note that so much time has passed, and return for how long no call has returned. Two watchers do not count twice."""
        now = time.perf_counter()
        seconds, self._looked_at = min(seconds, now - self._looked_at), now
        before, self._seen = self._seen, (self.progress, len(self.progress))
        moved = before[0] is not self._seen[0] or before[1] != self._seen[1]
        self._idle = 0.0 if moved else self._idle + seconds
        return self._idle


class WorkerThread(threading.Thread, Caller):
    """One thread of a pool."""

    def __init__(self, pool: WorkerPool, number: int) -> None:
        threading.Thread.__init__(self, name=f"accelmetrics-{pool.name}-{number}", daemon=True)
        Caller.__init__(self)
        self._pool = pool

    def run(self) -> None:
        """Work until there are more workers than the pool wants."""
        pool = self._pool
        self.thread = threading.get_ident()
        with pool.lock:  # the thread that started this one may have been interrupted before it counted it
            pool.workers.add(self)
        try:
            while not ((self.abandoned or len(pool.workers) > pool.wanted) and pool.dismiss(self)):
                try:
                    task = pool.queue.get(timeout=None if pool.idle is None else pool.idle(self))
                except Empty:
                    continue
                if task is not None:
                    task(self)
                del task  # nothing here keeps a reader alive while the worker waits
        finally:
            pool.forget(self)


class WorkerPool:
    """The workers of one source and the queue they work from.

    Attributes:
        name: The source's name, which its threads have in theirs.
        calls: By unit, the caller that is in a call for it. Callers claim a unit with ``setdefault`` and give it back with ``del``.
        lock: Held for everything that looks at several workers.
        workers: Workers that take tasks, sooner or later.
        stuck: Callers that were abandoned, and are in a call still.
        wanted: How many workers are kept.
        fruitless: Callers abandoned since the driver last answered.
        idle: What a worker without a task does for a source that is read in the background; gives the seconds until it is to be done
            again, None for never. None for other sources.
        blocked: Readers that wait for another one's call, each with the unit.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.queue: SimpleQueue[Task | None] = SimpleQueue()
        self.calls: dict[int, Caller] = {}
        self.lock = threading.Lock()
        self.workers: set[Caller] = set()
        self.stuck: set[Caller] = set()
        self.wanted = 0
        self.fruitless = 0
        self.idle: Callable[[WorkerThread], float | None] | None = None
        self.blocked: list[tuple[SourceReader, int]] = []
        self._started = 0

    @property
    def answers(self) -> bool:
        """Whether the driver has answered since a caller was abandoned last, and one more may be."""
        return not self.fruitless and len(self.stuck) + len(self.workers) < MAX_THREADS

    def submit(self, task: Task, wanted: int = 1, patient: bool = False) -> bool:
        """Queue a task once for each of so many workers, and have so many that are not in a call, as far as the limits allow.

        Args:
            task: The task.
            wanted: How many workers.
            patient: Whether a single one may be in a call: it is nearly always done sooner than another is started.

        Returns:
            Whether some worker will take the task.
        """
        with self.lock:
            self.wanted = wanted
            if len(self.workers) != 1 or wanted != 1 or (self.calls and not patient):
                may_wait = patient and wanted == 1
                while len(free := self._free()) < wanted and not (may_wait and self.workers) and self._start():
                    pass
                for _ in range(len(free) - wanted):
                    self.queue.put(None)
            if not self.workers:
                return False
            for _ in range(wanted):
                self.queue.put(task)
        return True

    def shrink(self) -> None:
        """Let all workers but one leave, where there are more."""
        if len(self.workers) > 1:
            with self.lock:
                self.wanted = 1
                for _ in range(len(self._free()) - 1):
                    self.queue.put(None)

    def reinforce(self) -> None:
        """Start another worker if all are in calls."""
        with self.lock:
            if not self._free():
                self._start()

    def abandon(self, caller: Caller, unit: int) -> None:
        """Give up a caller that is stuck in a call; another worker takes over, unless too many have been given up."""
        with self.lock:
            if caller.abandoned or self.calls.get(unit) is not caller:
                return
            caller.abandoned = True
            self.workers.discard(caller)
            self.stuck.add(caller)
            self.fruitless += 1
            if not self.workers:
                self._start()
            reader = caller.reader
            if reader is not None and self.workers:
                self.queue.put(reader.work)

    def release(self) -> None:
        """Let the workers leave as soon as no task is left."""
        with self.lock:
            self.wanted = 0
            for _ in self.workers:
                self.queue.put(None)

    def follow(self, reader: SourceReader, unit: int, other: Caller) -> None:
        """Have a unit read for another reader as soon as the call that is in progress for it returns."""
        with self.lock:
            self.blocked.append((reader, unit))
        if self.calls.get(unit) is not other:
            self.unblock(unit)  # it returned before the entry was made

    def unblock(self, unit: int) -> None:
        """Have a unit read for the readers that waited for another one's call."""
        with self.lock:
            readers = [reader for reader, blocked_on in self.blocked if blocked_on == unit]
            self.blocked = [entry for entry in self.blocked if entry[1] != unit]
            for reader in readers:
                reader.pending.append(unit)
                self.queue.put(reader.work)

    def dismiss(self, worker: WorkerThread) -> bool:
        """Return whether a worker may leave; one that was abandoned and has come back is counted again otherwise."""
        with self.lock:
            self.stuck.discard(worker)
            worker.abandoned = False
            self.workers.add(worker)
            leaves = len(self._free()) > self.wanted and (len(self.workers) > 1 or self.queue.empty())
            if leaves:
                self.workers.discard(worker)
            return leaves

    def forget(self, caller: Caller) -> None:
        """Note that a caller is in no call any more, whatever it has left in the middle."""
        with self.lock:
            self.workers.discard(caller)
            self.stuck.discard(caller)
            for unit in [unit for unit, other in self.calls.items() if other is caller]:
                del self.calls[unit]

    def waits_for(self) -> Wait | None:
        """Return the vendor's tool that a caller has waited for longest; None where none waits for one."""
        callers = {*list(self.stuck), *list(self.workers), *list(self.calls.values())}
        waits = [WAITS.get(caller.thread) for caller in callers]
        return min(filter(None, waits), key=lambda wait: wait.since, default=None)

    def _free(self) -> set[Caller]:
        return self.workers.difference(list(self.calls.values()))

    def _start(self) -> bool:
        """Start another worker, as far as the limits allow. Returns whether there is one more."""
        if self.fruitless >= MAX_FRUITLESS or len(self.stuck) + len(self.workers) >= MAX_THREADS:
            return False
        self._started += 1
        worker = WorkerThread(self, self._started)
        try:
            worker.start()
        except RuntimeError as error:  # the system's limit of threads, or an interpreter on its way out
            if isinstance(error.__context__, KeyboardInterrupt):
                raise error.__context__ from None  # ``start`` was interrupted while it waited for the thread
            return False
        self.workers.add(worker)
        return True
