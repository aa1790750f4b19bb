"""Threads for calling drivers: primitives to wait with, a thread that runs on demand, and pools of daemon workers.

Python's ``threading.Event`` and ``Condition`` are Python code around a lock. A signal handler that interrupts one of them and uses it
too waits for itself for ever, and Ctrl-C in the middle of one leaves it locked. Here, each step that changes something is one call in
C.

A worker takes callables from its pool's queue and is in at most one driver call at a time, so that the program itself never waits in
one. A pool knows callables and the numbers of calls in progress, but no time. The waiting caller decides that a call is stuck, and
abandons its worker: another worker continues with the rest, and the abandoned one keeps its call until that returns. So a stuck call
is never repeated, and the number of threads is bounded.

Callers may be interrupted anywhere (Ctrl-C in the main thread), workers may not. So workers do everything that takes several steps,
and a caller takes locks only by a ``with`` statement.
"""

from __future__ import annotations

# Names of `threading` and `queue` are looked up at use, not imported: gevent and eventlet may replace them after this module was
# imported, and a queue of plain Python would then block all green threads for ever.
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
"""Most workers that read one slow source at once."""
MAX_FRUITLESS = 3
"""Workers abandoned in a row, without an answer in between, after which the whole driver counts as hung."""
MAX_THREADS = 16
"""Most threads of one source, including those in stuck calls."""

Task = Callable[["WorkerThread"], None]
"""The work of a worker. None in its place only wakes a worker, so that it checks whether it may end."""


class Flag:
    """Like ``threading.Event``, for any thread and for signal handlers, which may interrupt any of its methods.

    The methods of ``threading.Event`` are Python code around a lock: a handler that interrupts one and calls ``set`` waits for
    itself. ``queue.SimpleQueue.get`` may wait for ever if a handler outlasts its timeout (Python 3.10, 3.11). Here, each step is one
    call in C.
    """

    def __init__(self) -> None:
        self._set = False
        self._closed = threading.Lock()  # held while the flag is not set
        self._closed.acquire()

    def is_set(self) -> bool:
        """Return whether the flag is set."""
        return self._set

    def set(self) -> None:
        """Set the flag: all waits end until it is cleared."""
        self._set = True
        self._open()

    def clear(self) -> None:
        """Clear the flag: later calls of `wait` block."""
        self._set = False
        self._closed.acquire(blocking=False)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until the flag is set, at most ``seconds`` (None: without limit). Return whether it is set.

        It may return early if the flag was cleared in the meantime.
        """
        limit = threading.TIMEOUT_MAX if seconds is None else min(max(0.0, seconds), threading.TIMEOUT_MAX)
        try:
            if not self._set:
                self._closed.acquire(timeout=limit)
        finally:
            if self._set:
                self._open()  # `acquire` closed it: let the next waiter pass
        return self._set

    def _open(self) -> None:
        try:
            self._closed.release()
        except RuntimeError:
            return  # it is open already, perhaps by another thread


class CountDownLatch(Flag):
    """A flag that is set when every party has arrived. A party may arrive several times, from any thread.

    Args:
        parties: Names of the parties to wait for.

    Attributes:
        away: The parties that have not arrived.
    """

    def __init__(self, *parties: Hashable) -> None:
        super().__init__()
        self.away = set(parties)
        self._set = not parties

    def count_down(self, party: Hashable) -> None:
        """Record that a party has arrived."""
        self.away.discard(party)
        if not self.away:
            self.set()


def are_green() -> bool:
    """Return whether gevent or eventlet has replaced threads.

    Then all "threads" share the program's real one, and a call that blocks blocks all of them.
    """
    return not isinstance(_thread.start_new_thread, BuiltinFunctionType)


def begin(thread: threading.Thread) -> Outcome[None]:
    """Start a thread. The outcome contains the reason if it cannot be started, for example the system's limit of threads.

    Raises:
        BaseException: An interrupt of the wait for the thread, for example Ctrl-C. ``threading`` may raise a RuntimeError about its
            own lock instead; then the interrupt, which is its context, is raised.
    """
    handled = sys.exc_info()[1]  # the exception that the caller handles: it is the context of every later one
    outcome = guarded(thread.start)
    cause: BaseException | None = outcome.error
    while isinstance(cause, (RuntimeError, MemoryError)) and cause is not handled:
        cause = cause.__context__
    if cause is not None and cause is not handled:
        raise cause
    return outcome


class OnDemandThread:
    """A daemon thread that runs while there is work, at most one at a time.

    Nothing here waits for a lock. If Ctrl-C interrupts a start, the next start makes up for it.

    Args:
        name: The thread's name.
        wanted: Returns whether there is work.
        work: The work of the thread; called again while there is work.
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
        """Whether the caller runs on this thread."""
        return self._thread is threading.current_thread()

    def start(self) -> Outcome[None]:
        """Start the thread unless it is alive. It sees all work that was there before this call.

        Returns:
            An outcome with the reason if it cannot be started.
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
            if not self._wanted():  # after the release: a `start` before it began no thread, so its work is checked for here
                return


# Not a thread of an executor: an executor joins its threads at interpreter exit, and so would wait for a hung driver.
class WorkerThread(threading.Thread):
    """A thread of a pool.

    Attributes:
        task: The task that another worker takes over if this one is abandoned; None if there is nothing to take over.
        call: The number of its current call.
        progress: A list appended to after every call into the driver; new for every task. Its length shows progress.
        abandoned: Whether its call is stuck, so that nothing waits for it any more.
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
        """Count elapsed time, and return for how many seconds no call has returned.

        Two watchers do not count the same time twice.
        """
        now = time.perf_counter()
        # Several samplers may watch the same worker: each adds only the time since the last one looked.
        seconds, self._looked_at = min(seconds, now - self._looked_at), now
        before, self._seen = self._seen, (self.progress, len(self.progress))
        moved = before[0] is not self._seen[0] or before[1] != self._seen[1]
        self._idle = 0.0 if moved else self._idle + seconds
        return self._idle

    def run(self) -> None:
        """Work until the pool has more workers than it wants."""
        pool = self._pool
        self.thread = threading.get_ident()
        with pool.lock:  # the starting thread may have been interrupted before it added this worker
            pool.workers.add(self)
        try:
            while not ((self.abandoned or len(pool.workers) > pool.wanted) and pool.dismiss(self)):
                try:
                    task = pool.queue.get(timeout=None if pool.idle is None else pool.idle(self))
                except queue.Empty:
                    continue
                if task is not None:
                    task(self)
                del task  # a reference here would keep a reader alive while the worker waits
        finally:
            pool.forget(self)


class WorkerPool:
    """The workers of one source, and their queue.

    Attributes:
        name: The source's name; part of its threads' names.
        calls: The worker that is in a call, by the call's number. Workers claim a number with ``setdefault`` and free it with
            ``del``.
        lock: Held for everything that concerns several workers.
        workers: Workers that will take tasks.
        stuck: Abandoned workers that are still in a call.
        wanted: The number of workers to keep.
        fruitless: The number of workers abandoned since the driver last answered.
        idle: Called by a worker without a task, for a source that is read in the background. It returns the seconds until the next
            call, or None for none. None for other sources.
        blocked: Numbers of calls in progress, each with a function to call when it returns.
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
        """Queue a task for a number of workers, and start workers until as many are free, within the limits.

        Args:
            task: The task. It is queued once per worker.
            wanted: The number of workers.
            patient: Whether a single worker may be in a call: that nearly always ends sooner than another worker starts.

        Returns:
            Whether a worker will take the task.
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
        """Abandon a worker that is stuck in a call. Another worker takes over, unless too many have been abandoned."""
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
        """Let the workers end as soon as no task is left."""
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
        """Call the functions that waited for a call to return."""
        with self.lock:
            waiting = [again for blocked, again in self.blocked if blocked == call]
            self.blocked = [entry for entry in self.blocked if entry[0] != call]
            for again in waiting:
                again()

    def dismiss(self, worker: WorkerThread) -> bool:
        """Return whether a worker may end. If not, a worker that was abandoned but is back counts as a worker again."""
        with self.lock:
            self.stuck.discard(worker)
            worker.abandoned = False
            self.workers.add(worker)
            leaves = len(self._free()) > self.wanted and (len(self.workers) > 1 or self.queue.empty())
            if leaves:
                self.workers.discard(worker)
            return leaves

    def forget(self, worker: WorkerThread) -> None:
        """Remove a worker that ends, and free the calls that it left unfinished."""
        with self.lock:
            self.workers.discard(worker)
            self.stuck.discard(worker)
            for call in [call for call, other in self.calls.items() if other is worker]:
                del self.calls[call]

    def waits_for(self) -> Wait | None:
        """Return the vendor's tool that a worker has waited for longest; None if none waits for a tool."""
        waits = [WAITS.get(worker.thread) for worker in (*list(self.stuck), *list(self.workers), *list(self.calls.values()))]
        return min(filter(None, waits), key=lambda wait: wait.since, default=None)

    def _free(self) -> set[WorkerThread]:
        return self.workers.difference(list(self.calls.values()))

    def _start(self) -> bool:
        """Start another worker, within the limits. Return whether that succeeded."""
        if self.fruitless >= MAX_FRUITLESS or len(self.stuck) + len(self.workers) >= MAX_THREADS:
            return False
        self._started += 1
        worker = WorkerThread(self, self._started)
        if begin(worker).failure is not None:
            return False
        self.workers.add(worker)
        return True
