"""What one process has of every source, shared by all its samplers: drivers, lanes and the numbering of devices.

A fork copies a process without its threads, and with whatever locks they held. So in the child everything here is made
anew, except the numbering, which is what users saw. Forks made from C bypass Python's hooks: the process id is compared
at every reading too.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Sequence
from typing import Protocol
from weakref import WeakSet

from accelmetrics.backends.clock import SYSTEM_CLOCK, Clock
from accelmetrics.backends.contract import Backend
from accelmetrics.backends.registry import is_registered
from accelmetrics.sampling.inventory import Inventory
from accelmetrics.sampling.source import Source


class Consumer(Protocol):
    """A sampler's engine, as the session sees it."""

    def after_fork(self) -> None:
        """Replace locks that another thread may have held when the process forked."""
        ...


class Session:
    """The sources of one process.

    Attributes:
        clock: What intervals and timestamps are taken from.
        epoch: Raised when everything was made anew, after a fork.
        consumers: Who must replace locks of their own then.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self.clock = clock
        self.epoch = 0
        self.consumers: WeakSet[Consumer] = WeakSet()
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._sources: dict[object, Source] = {}
        self._users: dict[Source, int] = {}
        self._inventories: dict[tuple[object, ...], Inventory] = {}
        self._abandoned: deque[Sequence[Source]] = deque()
        _SESSIONS.add(self)

    def acquire(self, backends: Sequence[Backend]) -> tuple[list[Source], Inventory]:
        """The sources of some backends, and the numbering that goes with just this selection."""
        self._collect()
        with self._lock:
            identities = tuple(map(_identity, backends))
            sources = [self._source(identity, backend) for identity, backend in zip(identities, backends, strict=True)]
            for source in sources:
                self._users[source] = self._users.get(source, 0) + 1
                source.adopt()
            return sources, self._inventories.setdefault(identities, Inventory())

    def release(self, sources: Sequence[Source]) -> None:
        """A sampler has gone: close what nobody else uses. What was made before a fork is left to the parent."""
        with self._lock:
            unused = [source for source in sources if self._used_once_less(source)]
        for source in unused:
            source.close()
        with self._lock:
            self._forget()

    def abandon(self, sources: Sequence[Source]) -> None:
        """A sampler was garbage-collected without being closed: note it. Safe at any moment, in the middle of anything."""
        self._abandoned.append(sources)

    def _collect(self) -> None:
        while self._abandoned:
            try:
                self.release(self._abandoned.popleft())
            except IndexError:  # another thread was quicker
                return

    def _forget(self) -> None:
        """Drop the sources of backends made by hand that nobody uses and that have nothing left to do, and their numbering.

        Those of registered backends stay, so that a device has one number for as long as the process lives. One with a
        call in progress stays too: whoever comes next finds it, and does not make the same call again.
        """
        gone = {
            identity
            for identity, source in self._sources.items()
            if source not in self._users and source.idle and not is_registered(source.backend)
        }
        self._sources = {identity: source for identity, source in self._sources.items() if identity not in gone}
        self._inventories = {chosen: inventory for chosen, inventory in self._inventories.items() if gone.isdisjoint(chosen)}

    def check(self) -> int:
        """Make everything anew if this is no longer the process it was made in.

        Returns:
            The epoch: a sampler that knows an older one must acquire its sources again.
        """
        if os.getpid() != self._pid:
            self.after_fork()
        return self.epoch

    def after_fork(self) -> None:
        """Forget drivers, lanes and locks; keep the numbering."""
        self._pid = os.getpid()
        self.epoch += 1
        self._lock = threading.Lock()
        self._sources = {}
        self._users = {}
        self._abandoned.clear()
        for inventory in self._inventories.values():
            inventory.renew_lock()
        for consumer in list(self.consumers):
            consumer.after_fork()

    def _source(self, identity: object, backend: Backend) -> Source:
        if identity not in self._sources:
            self._sources[identity] = Source(backend, self.clock)
        return self._sources[identity]

    def _used_once_less(self, source: Source) -> bool:
        if source not in self._users:
            return False
        self._users[source] -= 1
        if self._users[source]:
            return False
        del self._users[source]
        return True


_SESSIONS: WeakSet[Session] = WeakSet()


def _renew_all() -> None:
    for session in list(_SESSIONS):
        session.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)

SHARED = Session()
"""The session that samplers use unless they are given a clock of their own."""


def _identity(backend: Backend) -> object:
    """Registered backends are one object each; those made by hand are told apart by it."""
    return id(backend), backend.name
