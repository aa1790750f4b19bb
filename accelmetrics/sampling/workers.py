"""Daemon threads that call the drivers, so that the program never waits inside one.

A worker takes tasks from its pool's queue and is in at most one call into the driver at a time: one unit, for one reader. When that
call makes no progress, a waiting caller abandons the worker and another one goes on with the rest; the abandoned worker keeps its
unit until the call returns. So a unit is never read by two workers, a stuck call is never repeated, and the number of threads is
bounded. Abandoning a worker says nothing about how long others wait: each reader has its own patience.

Workers are made here and not by an executor, which would join them at interpreter exit and so wait for a hung driver.

Callers may be interrupted anywhere (Ctrl-C in the main thread), workers may not. So whatever takes several steps is done by workers,
and a caller takes locks in a ``with`` statement alone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

from accelmetrics.backends.guard import WAITS, Wait

MAX_WORKERS = 4
"""Workers that read one slow source side by side."""
MAX_FRUITLESS = 3
"""Abandoned workers in a row, with no answer in between, after which a driver counts as hung as a whole."""
MAX_THREADS = 16
"""Threads of one source, those in stuck calls among them."""

Task = Callable[["WorkerThread"], None]
"""What a worker does; None in its place only wakes a worker, so that it sees that it may leave."""


class WorkerThread(threading.Thread):
    """One thread of a pool, and the call into a driver that it is in.

    Attributes:
        reading: The task whose units it reads; None while it opens or closes a driver, or waits.
        unit: The unit that is read.
        progress: What the backend appends to after every call into the driver, a new list for every task; its length is the progress.
        abandoned: The call is stuck: nothing waits for it any more.
        thread: The thread's identifier; 0 before it runs.
    """

    def __init__(self, pool: WorkerPool, number: int) -> None:
        super().__init__(name=f"accelmetrics-{pool.name}-{number}", daemon=True)
        self.reading: Task | None = None
        self.unit = 0
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
        calls: By unit, the worker that is in a call for it. Workers claim a unit with ``setdefault`` and give it back with ``del``.
        lock: Held for everything that looks at several workers.
        workers: Workers that take tasks, sooner or later.
        stuck: Workers that were abandoned, and are in a call still.
        wanted: How many workers are kept.
        fruitless: Workers abandoned since the driver last answered.
        idle: What a worker without a task does for a source that is read in the background; gives the seconds until it is to be done
            again, None for never. None for other sources.
        blocked: Units that are wanted again when the call in progress for them returns, each with what gives the task for that.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.queue: SimpleQueue[Task | None] = SimpleQueue()
        self.calls: dict[int, WorkerThread] = {}
        self.lock = threading.Lock()
        self.workers: set[WorkerThread] = set()
        self.stuck: set[WorkerThread] = set()
        self.wanted = 0
        self.fruitless = 0
        self.idle: Callable[[WorkerThread], float | None] | None = None
        self.blocked: list[tuple[int, Callable[[int], Task]]] = []
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

    def abandon(self, worker: WorkerThread, unit: int) -> None:
        """Give up a worker that is stuck in a call; another one takes over, unless too many have been given up."""
        with self.lock:
            if worker.abandoned or self.calls.get(unit) is not worker:
                return
            worker.abandoned = True
            self.workers.discard(worker)
            self.stuck.add(worker)
            self.fruitless += 1
            if not self.workers:
                self._start()
            reading = worker.reading
            if reading is not None and self.workers:
                self.queue.put(reading)

    def release(self) -> None:
        """Let the workers leave as soon as no task is left."""
        with self.lock:
            self.wanted = 0
            for _ in self.workers:
                self.queue.put(None)

    def follow(self, unit: int, other: WorkerThread, again: Callable[[int], Task]) -> None:
        """Have a unit read again as soon as the call that is in progress for it returns.

        Args:
            unit: The unit.
            other: The worker that is in the call.
            again: Gives the task that reads the unit.
        """
        with self.lock:
            self.blocked.append((unit, again))
        if self.calls.get(unit) is not other:
            self.unblock(unit)  # it returned before the entry was made

    def unblock(self, unit: int) -> None:
        """Queue what waited for a unit's call to return."""
        with self.lock:
            waiting = [again for blocked, again in self.blocked if blocked == unit]
            self.blocked = [entry for entry in self.blocked if entry[0] != unit]
            for again in waiting:
                self.queue.put(again(unit))

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
            for unit in [unit for unit, other in self.calls.items() if other is worker]:
                del self.calls[unit]

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
        try:
            worker.start()
        except RuntimeError as error:  # the system's limit of threads, or an interpreter on its way out
            if isinstance(error.__context__, KeyboardInterrupt):
                raise error.__context__ from None  # ``start`` was interrupted while it waited for the thread
            return False
        self.workers.add(worker)
        return True
