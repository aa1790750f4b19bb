"""What threads wait with: a latch, a flag, and a thread that runs while there is work.

Python's own ``threading.Event`` and ``Condition`` are Python code around a lock. A signal handler that interrupts one and uses it too
waits for itself for ever, and Ctrl-C in the middle of one leaves it locked. Here each step that changes something is one call in C.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable

from accelmetrics.backends.guard import Outcome, guarded


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
            return  # it is open already


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
