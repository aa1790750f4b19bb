"""Imports and vendors' libraries, one after the other.

The system's dynamic loader has a lock, which it holds while a library's constructor runs. An import of an extension module waits for
that lock with the interpreter's own in hand: beside a constructor that never returns, it would stop the whole program. So both are
done with :data:`loading` held, for which a thread waits alone.

A fork waits for it too, though not for ever: a module that another thread is in the middle of importing stays locked in the child.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from importlib import import_module

from accelmetrics.backends.guard import guarded

FORK_PATIENCE = 3.0
"""Seconds since its beginning for which a fork waits for an import or a library that is being loaded."""


class LoadingLock:
    """A lock that one thread may hold several times, and that is free in the child of a fork."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._since = 0.0

    def __enter__(self) -> None:
        self._lock.acquire()
        self._since = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def is_free(self) -> bool:
        """Return whether no other thread holds it."""
        free = self._lock.acquire(blocking=False)
        if free:
            self._lock.release()
        return free

    def before_fork(self) -> None:
        """Wait for whatever is being loaded."""
        self._lock.acquire(timeout=max(0.0, self._since + FORK_PATIENCE - time.monotonic()))

    def after_in_parent(self) -> None:
        """Let others go on."""
        with suppress(RuntimeError):  # it is another thread's still
            self._lock.release()

    def after_in_child(self) -> None:
        """Go on without the thread that held it, if that is another one; the system's loader forgets it as well."""
        try:
            self._lock.release()
        except RuntimeError:
            self._lock = threading.RLock()


loading = LoadingLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=loading.before_fork, after_in_parent=loading.after_in_parent, after_in_child=loading.after_in_child)


def import_modules(names: Iterable[str]) -> None:
    """Import modules ahead of their use; what is wrong with one is told where it is used."""
    for name in names:
        if name not in sys.modules:
            with loading:
                guarded(import_module, name)
