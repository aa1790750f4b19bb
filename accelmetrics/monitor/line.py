"""The one thread that calls an exporter: for one outlet after another, as its monitor is stopped and started again.

An exporter that hangs keeps its thread. A monitor that is started again meanwhile starts no other: its outlet stands in line,
and the thread goes on with it when the exporter has come back to life.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from accelmetrics.backends.flag import Flag
from accelmetrics.backends.guard import Outcome, guarded
from accelmetrics.monitor.undisturbed import undisturbed


class Turn(Protocol):
    """An outlet, as its line sees it."""

    @property
    def expired(self) -> bool:
        """Whether its time has passed: it need not be run any more."""
        ...

    def run(self) -> None:
        """From the exporter's opening to its close."""
        ...


class Line:
    """Runs outlets one after another, on a thread that is there as long as there is one to run.

    The program's calls may be interrupted anywhere by a signal handler that makes the same calls.

    Args:
        name: Of the exporter; its thread is called after it.

    Attributes:
        waits: Whether its thread waits for another exporter's: see :meth:`wait`.
    """

    def __init__(self, name: str) -> None:
        self.waits = False
        self._name = name
        self._lock = threading.RLock()
        self._turns: deque[Turn] = deque()
        self._waiting: list[Flag] = []
        self._thread: _Thread | None = None

    @property
    def is_current(self) -> bool:
        """Whether this is called on its thread."""
        return self._thread is threading.current_thread()

    @property
    def alive(self) -> bool:
        """Whether its thread is there; one whose start was interrupted is not."""
        thread = self._thread
        return thread is not None and thread.ident is not None

    def enter(self, turn: Turn) -> Outcome[bool]:
        """Run an outlet when those before it have ended; those whose time has passed meanwhile leave the line.

        Returns:
            Whether it has to wait for one, or why there is no thread for it.
        """
        fresh = _Thread(self, f"accelmetrics-{self._name}")
        with self._lock:
            for other in tuple(self._turns):
                if other.expired:
                    self._leave(other)
            self._turns.append(turn)
            known, alive = self._thread, self.alive
            fits = not alive and self._thread is known  # else a signal handler has come between
            if fits:
                self._thread = fresh
        if not fits:
            return Outcome(True, None, None, 0.0)
        started = guarded(undisturbed, fresh.start)
        if started.failure is not None:
            with self._lock:
                self._thread = None if self._thread is fresh else self._thread
                self._leave(turn)
        return Outcome(False, started.failure, started.error, started.seconds)

    def run_all(self) -> None:
        """What its thread does."""
        while (turn := self._next()) is not None:
            guarded(turn.run)

    def tell(self) -> None:
        """Have those look who wait for something that its thread does."""
        for flag in self._waiting.copy():
            flag.set()

    def wait(self, reached: Callable[[], bool], by: float) -> bool:
        """Wait for something that its thread does, at most until a moment of ``time.monotonic``; whether it is so.

        Exporters' threads that wait for each other would wait in vain: one of them does not wait for another that waits too.
        """
        current = threading.current_thread()
        own = current.line if isinstance(current, _Thread) else None
        flag = Flag()
        try:
            self._waiting.append(flag)
            if own is not None:
                own.waits = True
                own.tell()
            while not reached() and time.monotonic() < by and not (own is not None and self.waits):
                flag.wait(by - time.monotonic())
                flag.clear()
        finally:
            if own is not None:
                own.waits = False
            with suppress(ValueError):  # interrupted before it was there
                self._waiting.remove(flag)
        return reached()

    def _next(self) -> Turn | None:
        with self._lock:
            if not self.is_current:
                return None  # its start was interrupted, and another has taken its place
            if not self._turns:
                self._thread = None
                return None
            return self._turns.popleft()

    def _leave(self, turn: Turn) -> None:
        with suppress(ValueError):
            self._turns.remove(turn)


class _Thread(threading.Thread):
    """The thread of a line."""

    def __init__(self, line: Line, name: str) -> None:
        super().__init__(target=line.run_all, name=name, daemon=True)
        self.line = line
