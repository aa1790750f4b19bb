"""Hands something over to a reader's data without ever waiting for the reader.

The program reads results under a lock, and a signal handler may interrupt it there that waits for the monitor's thread: if that
thread in turn waited for the lock, both would for ever. So it leaves what it has, and whoever has the lock works it off.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class Inbox(Generic[T]):
    """What was handed over and is not worked off yet.

    What works it off takes all of a queue, from the left, one call at a time. It is given with each call and not kept: it is
    the owner's method, and an owner that is its own keeper would be freed late.

    Args:
        batch: How many are worked off together, unless somebody reads before.
    """

    def __init__(self, batch: int = 1) -> None:
        self._batch = batch
        self._waiting: deque[T] = deque()
        self._lock = threading.RLock()
        self._working = False

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, item: T, work: Callable[[deque[T]], None]) -> None:
        """Hand over; more than a batch wait only while somebody reads."""
        self._waiting.append(item)
        if len(self._waiting) >= self._batch and self._lock.acquire(blocking=False):
            try:
                self._work_off(work)
            finally:
                self._lock.release()

    def read(self, look: Callable[[], R], work: Callable[[deque[T]], None]) -> R:
        """What a function says, called when everything is worked off and while nothing else is."""
        with self._lock:
            self._work_off(work)
            return look()

    def _work_off(self, work: Callable[[deque[T]], None]) -> None:
        if self._working:
            return  # a signal handler has interrupted it, and sees what there is so far
        self._working = True
        try:
            work(self._waiting)
        finally:
            self._working = False
