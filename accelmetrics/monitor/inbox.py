"""Hands something over to a reader's data without ever waiting for the reader.

The program reads results under a lock. The monitor's thread does not wait for that: it leaves what it has, and whoever has the
lock works it off.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from accelmetrics.monitor.undisturbed import undisturbed

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
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, item: T, work: Callable[[deque[T]], None]) -> None:
        """Hand over, from the monitor's thread; more than a batch wait only while somebody reads."""
        self._waiting.append(item)
        if len(self._waiting) >= self._batch and self._lock.acquire(blocking=False):
            try:
                work(self._waiting)
            finally:
                self._lock.release()

    def read(self, look: Callable[[], R], work: Callable[[deque[T]], None]) -> R:
        """What a function says, called when everything is worked off and while nothing else is, signal handlers included."""
        return undisturbed(self._read, look, work)

    def _read(self, look: Callable[[], R], work: Callable[[deque[T]], None]) -> R:
        with self._lock:
            work(self._waiting)
            return look()
