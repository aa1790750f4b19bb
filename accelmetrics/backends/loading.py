"""Imports and vendors' libraries, one after the other.

The system's dynamic loader has a lock, which it holds while a library's constructor runs. An import of an extension module waits for
that lock with the interpreter's own in hand: beside a constructor that never returns, it would stop the whole program. So both are
done with :data:`loading` held, for which a thread waits alone, and no longer than one of them may take.

A fork waits for it too, though not for ever: a module that another thread is in the middle of importing stays locked in the child.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from importlib import import_module

from accelmetrics.backends.guard import WAITS, at_fork, guarded, waiting_for
from accelmetrics.schemas.errors import Reason, SourceError
from accelmetrics.schemas.snapshot import rfc3339_second

PATIENCE = 5.0
"""Seconds since its beginning for which other threads wait for an import or a library that is being loaded."""
FORK_PATIENCE = 3.0
"""Seconds since its beginning for which a fork waits for an import or a library that is being loaded."""


class LoadingLock:
    """A lock that one thread may hold several times, for which others wait a limited time, and that is free in the child of a fork."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._depth = 0
        self._since = math.inf
        self._holder = 0

    def __enter__(self) -> None:
        """Take the lock.

        Raises:
            SourceError: What is being loaded hangs (``timed_out``).
        """
        # A thread that has just taken the lock may not have noted it yet: the wait is repeated while the note changes.
        while not self._lock.acquire(timeout=max(0.0, min(PATIENCE, (since := self._since) + PATIENCE - time.monotonic()))):
            if since == self._since:
                wait = WAITS.get(self._holder)
                what = "an import that hangs" if wait is None else f"{wait.tool}, which has not answered since {rfc3339_second(wait.since)}"
                raise SourceError(Reason.TIMED_OUT, f"nothing more can be loaded beside {what}")
        self._depth, self._since, self._holder = self._depth + 1, time.monotonic(), threading.get_ident()

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._since = math.inf
        self._lock.release()

    def is_free(self) -> bool:
        """Return whether no other thread holds it."""
        free = self._lock.acquire(blocking=False)
        if free:
            self._lock.release()
        return free

    def before_fork(self) -> None:
        """Wait for whatever is being loaded."""
        self._lock.acquire(timeout=max(0.0, self._since + FORK_PATIENCE - time.monotonic()) if self._since < math.inf else 0.0)

    def after_in_parent(self) -> None:
        """Let others go on."""
        with suppress(RuntimeError):  # it is another thread's still
            self._lock.release()

    def after_in_child(self) -> None:
        """Go on without the thread that held it, if that is another one; the system's loader forgets it as well."""
        try:
            self._lock.release()
        except RuntimeError:
            self._lock, self._depth, self._since = threading.RLock(), 0, math.inf


loading = LoadingLock()
at_fork(before=loading.before_fork, after_in_parent=loading.after_in_parent, after_in_child=loading.after_in_child)


def import_modules(names: Iterable[str]) -> None:
    """Import modules ahead of their use; what is wrong with one is told where it is used.

    Raises:
        SourceError: Something else hangs while it is loaded (``timed_out``).
    """
    for name in names:
        if name not in sys.modules:
            with loading, waiting_for(name):
                guarded(import_module, name)
