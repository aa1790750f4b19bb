"""Threads: what they wait with, one that runs while there is work, and pools of daemon threads that call drivers.

Python's own ``threading.Event`` and ``Condition`` are Python code around a lock. A signal handler that interrupts one and uses it too
waits for itself for ever, and Ctrl-C in the middle of one leaves it locked. Here each step that changes something is one call in C.

A worker takes callables from its pool's queue and is in at most one call into a driver at a time, so that the program never waits inside
one. A pool knows callables and the numbers of calls in progress; it does not know time. Whoever waits decides that a call is stuck and
abandons its worker: another one goes on with the rest, and the abandoned one keeps its call until that returns. So a stuck call is never
repeated, and the number of threads is bounded.

Workers are made here and not by an executor, which would join them at interpreter exit and so wait for a hung driver.

Callers may be interrupted anywhere (Ctrl-C in the main thread), workers may not. So whatever takes several steps is done by workers,
and a caller takes locks in a ``with`` statement alone.

Names of ``threading`` and ``queue`` are looked up where they are used: gevent and eventlet may replace them after this was imported, and
a queue of Python's own would hold up all green threads for ever.
"""

from __future__ import annotations

import _thread
import queue
import sys
import threading
import time
from collections.abc import Callable, Hashable
from types import BuiltinFunctionType
from typing import Any

from accelmetrics.backends.guard import WAITS, Outcome, Wait, guarded

MAX_WORKERS = 4
"""Workers that read one slow source side by side."""
MAX_FRUITLESS = 3
"""Abandoned workers in a row, with no answer in between, after which a driver counts as hung as a whole."""
MAX_THREADS = 16
"""Threads of one source, those in stuck calls among them."""

Task = Callable[["WorkerThread"], None]
"""What a worker does; None in its place only wakes a worker, so that it sees that it may leave."""


class Flag:
    """Like ``threading.Event``, from any thread and from signal handlers, which may interrupt any of its methods.

    The methods of ``threading.Event`` are Python code around a lock: a handler that interrupts one and calls ``set`` waits for
    itself. ``queue.SimpleQueue.get`` may wait for ever when a handler outlasts its time-out (Python 3.10, 3.11). Here each step
    is one call in C.
    """

    def __init__(self) -> None:
        self._set = False
        self._closed = threading.Lock()  # held while the flag is not set
        self._closed.acquire()

    def is_set(self) -> bool:
        """Return whether it is set."""
        return self._set

    def set(self) -> None:
        """End all waits, until it is cleared."""
        self._set = True
        self._open()

    def clear(self) -> None:
        """Have later calls of `wait` wait."""
        self._set = False
        self._closed.acquire(blocking=False)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until it is set, at most so long (None: for ever); whether it is. May end early where it was cleared meanwhile."""
        limit = threading.TIMEOUT_MAX if seconds is None else min(max(0.0, seconds), threading.TIMEOUT_MAX)
        try:
            if not self._set:
                self._closed.acquire(timeout=limit)
        finally:
            if self._set:
                self._open()  # for the next wait
        return self._set

    def _open(self) -> None:
        try:
            self._closed.release()
        except RuntimeError:
            return  # it is open already, or another thread was quicker


class CountDownLatch(Flag):
    """A flag that is set when every party has arrived. A party may arrive several times, from any thread.

    Args:
        parties: Names of those to wait for.

    Attributes:
        away: Those that have not arrived.
    """

    def __init__(self, *parties: Hashable) -> None:
        super().__init__()
        self.away = set(parties)
        self._set = not parties

    def count_down(self, party: Hashable) -> None:
        """Note that a party has arrived."""
        self.away.discard(party)
        if not self.away:
            self.set()


def are_green() -> bool:
    """Return whether gevent or eventlet has replaced threads: then all share the program's own, and a call that blocks holds up all."""
    return not isinstance(_thread.start_new_thread, BuiltinFunctionType)


def begin(thread: threading.Thread) -> Outcome[None]:
    """Start a thread; the outcome says why there is none: the system has a limit.

    Raises:
        BaseException: What interrupted the wait for the thread, as Ctrl-C does. ``threading`` may raise a RuntimeError about a lock of its
            own in its place.
    """
    handled = sys.exc_info()[1]  # of the caller, whose exceptions are the context of every later one
    outcome = guarded(thread.start)
    led: BaseException | None = outcome.error
    while isinstance(led, (RuntimeError, MemoryError)) and led is not handled:
        led = led.__context__
    if led is not None and led is not handled:
        raise led
    return outcome


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
        return begin(thread)

    def _run(self) -> None:
        while self._claim.acquire(blocking=False):
            self._thread = threading.current_thread()
            try:
                self._work()
            finally:
                self._thread = None
                self._claim.release()
            if not self._wanted():  # looked at only now: a start until here begins no other thread
                return


class WorkerThread(threading.Thread):
    """One thread of a pool.

    Attributes:
        task: What another worker does in its place when this one is abandoned; None where nothing is.
        call: The number of the call that it is in.
        progress: What is appended to after every call into the driver, a new list for every task; its length is the progress.
        abandoned: The call is stuck: nothing waits for it any more.
        thread: The thread's identifier; 0 before it runs.
    """

    def __init__(self, pool: WorkerPool, number: int) -> None:
        super().__init__(name=f"accelmetrics-{pool.name}-{number}", daemon=True)
        self.task: Task | None = None
        self.call = 0
        self.progress: list[Any] = []
        self.abandoned = False
        self.thread = 0
        self._pool = pool
        self._seen: tuple[list[Any], int] = ([], 0)
        self._looked_at = 0.0
        self._idle = 0.0

    def stood_still(self, seconds: float) -> float:
        """Count so much time as passed, and return for how long no call has returned. Two watchers do not count twice."""
        now = time.perf_counter()
        seconds, self._looked_at = min(seconds, now - self._looked_at), now
        before, self._seen = self._seen, (self.progress, len(self.progress))
        moved = before[0] is not self._seen[0] or before[1] != self._seen[1]
        self._idle = 0.0 if moved else self._idle + seconds
        return self._idle

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
                except queue.Empty:
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
        calls: By number, the worker that is in the call. Workers claim a number with ``setdefault`` and give it back with ``del``.
        lock: Held for everything that looks at several workers.
        workers: Workers that take tasks, sooner or later.
        stuck: Workers that were abandoned, and are in a call still.
        wanted: How many workers are kept.
        fruitless: Workers abandoned since the driver last answered.
        idle: What a worker without a task does for a source that is read in the background; gives the seconds until it is to be done
            again, None for never. None for other sources.
        blocked: Numbers of calls in progress, each with what is to be called when it returns.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.queue: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self.calls: dict[int, WorkerThread] = {}
        self.lock = threading.Lock()
        self.workers: set[WorkerThread] = set()
        self.stuck: set[WorkerThread] = set()
        self.wanted = 0
        self.fruitless = 0
        self.idle: Callable[[WorkerThread], float | None] | None = None
        self.blocked: list[tuple[int, Callable[[], object]]] = []
        self._started = 0

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

    def reinforce(self) -> None:
        """Start another worker if all are in calls."""
        with self.lock:
            if not self._free():
                self._start()

    def abandon(self, worker: WorkerThread, call: int) -> None:
        """Give up a worker that is stuck in a call; another one takes over, unless too many have been given up."""
        with self.lock:
            if worker.abandoned or self.calls.get(call) is not worker:
                return
            worker.abandoned = True
            self.workers.discard(worker)
            self.stuck.add(worker)
            self.fruitless += 1
            if not self.workers:
                self._start()
            if worker.task is not None and self.workers:
                self.queue.put(worker.task)

    def release(self) -> None:
        """Let the workers leave as soon as no task is left."""
        with self.lock:
            self.wanted = 0
            for _ in self.workers:
                self.queue.put(None)

    def follow(self, call: int, other: WorkerThread, again: Callable[[], object]) -> None:
        """Call ``again`` as soon as another worker's call returns."""
        with self.lock:
            self.blocked.append((call, again))
        if self.calls.get(call) is not other:
            self.unblock(call)  # it returned before the entry was made

    def unblock(self, call: int) -> None:
        """Call what waited for a call to return."""
        with self.lock:
            waiting = [again for blocked, again in self.blocked if blocked == call]
            self.blocked = [entry for entry in self.blocked if entry[0] != call]
            for again in waiting:
                again()

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

    def forget(self, worker: WorkerThread) -> None:
        """Remove a worker that ends, with the calls that it left in the middle."""
        with self.lock:
            self.workers.discard(worker)
            self.stuck.discard(worker)
            for call in [call for call, other in self.calls.items() if other is worker]:
                del self.calls[call]

    def waits_for(self) -> Wait | None:
        """Return the vendor's tool that a worker has waited for longest; None where none waits for one."""
        workers = {*list(self.stuck), *list(self.workers), *list(self.calls.values())}
        waits = [WAITS.get(worker.thread) for worker in workers]
        return min(filter(None, waits), key=lambda wait: wait.since, default=None)

    def _free(self) -> set[WorkerThread]:
        return self.workers.difference(list(self.calls.values()))

    def _start(self) -> bool:
        """Start another worker, as far as the limits allow. Returns whether there is one more."""
        if self.fruitless >= MAX_FRUITLESS or len(self.stuck) + len(self.workers) >= MAX_THREADS:
            return False
        self._started += 1
        worker = WorkerThread(self, self._started)
        if begin(worker).failure is not None:
            return False
        self.workers.add(worker)
        return True
