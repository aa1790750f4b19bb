"""Serialised imports and loading of vendors' libraries.

An import of an extension module needs the lock of the system's dynamic loader, and waits for it while it holds the interpreter's lock. The
loader holds its lock while a library's constructor runs. So a constructor that never returns would stop the whole program at the next
import. Therefore both imports and loading happen under :data:`loading`. A thread waits for it without the interpreter's lock, and only for
a limited time.

A fork waits for it too, for a limited time: a module that another thread is importing at that moment stays locked in the child.
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
"""Longest time in seconds, from its start, that other threads wait for an import or a library."""
FORK_PATIENCE = 3.0
"""Longest time in seconds, from its start, that a fork waits for an import or a library."""


class LoadingLock:
    """A reentrant lock with a limited wait, which is free in the child of a fork."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._depth = 0
        self._since = math.inf
        self._holder = 0

    def __enter__(self) -> None:
        """Acquire the lock.

        Raises:
            SourceError: The import or library that holds the lock hangs (``timed_out``).
        """
        # The holder stores the time after it has acquired the lock, so this thread may have read the time of an earlier holder.
        # It waits again as long as the time changes.
        while not self._lock.acquire(timeout=max(0.0, min(PATIENCE, (since := self._since) + PATIENCE - time.monotonic()))):
            if since == self._since:
                wait = WAITS.get(self._holder)
                what = "an import that hangs" if wait is None else f"{wait.tool}, which has not answered since {rfc3339_second(wait.since)}"
                raise SourceError(Reason.TIMED_OUT, f"nothing can be loaded meanwhile: waiting for {what}")
        self._depth, self._since, self._holder = self._depth + 1, time.monotonic(), threading.get_ident()

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._since = math.inf
        self._lock.release()

    def is_free(self) -> bool:
        """Return whether no other thread holds the lock."""
        free = self._lock.acquire(blocking=False)
        if free:
            self._lock.release()
        return free

    def before_fork(self) -> None:
        """Wait for the import or library that is being loaded, for a limited time."""
        self._lock.acquire(timeout=max(0.0, self._since + FORK_PATIENCE - time.monotonic()) if self._since < math.inf else 0.0)

    def after_in_parent(self) -> None:
        """Release the lock in the parent."""
        with suppress(RuntimeError):  # the wait was in vain: another thread still holds it
            self._lock.release()

    def after_in_child(self) -> None:
        """Release the lock in the child, or replace it if the thread that held it does not exist here."""
        try:
            self._lock.release()
        except RuntimeError:
            # Only the forking thread lives on in the child, so the holder can never release the lock. The system's
            # loader resets its own lock too.
            self._lock, self._depth, self._since = threading.RLock(), 0, math.inf


loading = LoadingLock()
# The child of a fork gets a copy of the lock in its current state, so the fork itself takes the lock first.
at_fork(before=loading.before_fork, after_in_parent=loading.after_in_parent, after_in_child=loading.after_in_child)


def import_modules(names: Iterable[str]) -> None:
    """Import modules ahead of their use. A failure is reported where the module is used, not here.

    Raises:
        SourceError: Another import or library hangs (``timed_out``).
    """
    for name in names:
        if name not in sys.modules:  # a loaded module needs no lock, so it never waits
            with loading, waiting_for(name):
                guarded(import_module, name)  # the later import fails in the same way
