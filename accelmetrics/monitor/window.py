"""A stretch of the program (an epoch, a step, an evaluation) and what the hardware did meanwhile.

The monitor hands every reading to each open window, which keeps rows for a little while and then folds them into statistics
of bounded size: a window may last a second or a month. The moments at which one begins and ends are read besides the
monitor's own ticks, in the background, so that short windows have readings too and energy is exact to the moment.

The beat puts rows into a window without waiting for anybody: the program may hold the window's lock, and be interrupted there
by a signal handler that waits for the beat.
"""

from __future__ import annotations

import functools
import inspect
import os
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Mapping
from types import TracebackType
from typing import Any, ParamSpec, Protocol, TypeVar, cast

from accelmetrics.backends.flag import Flag
from accelmetrics.monitor.energy import Energy
from accelmetrics.monitor.folding import Across, Folder
from accelmetrics.monitor.inbox import Inbox
from accelmetrics.monitor.rows import Block, Row
from accelmetrics.monitor.summary import Summary
from accelmetrics.schemas.catalogue import match
from accelmetrics.schemas.errors import InvalidOptionError, UnknownNameError

P = ParamSpec("P")
T = TypeVar("T")

PENDING = 64
"""Rows that a window keeps before the beat folds them; more while the program is looking at its results."""
PATIENCE = 2.0
"""Seconds that who asks for results waits for the reading that closes the window: a driver may hang."""


class Owner(Protocol):
    """The monitor, as its windows see it."""

    def now(self) -> float:
        """Seconds on the monitor's clock."""
        ...

    def last_row(self) -> Row | None:
        """The last reading."""
        ...

    def admit(self, window: Window) -> None:
        """Hand it readings from now on, beginning with one that is taken at once."""
        ...

    def dismiss(self, window: Window) -> bool:
        """Take one more reading for it at once; whether one will come."""
        ...

    def despair(self) -> None:
        """That reading has not come in time: no window waits for one until there is one."""
        ...


class Window:
    """Made by ``Monitor.window``: a context manager, a decorator, or begun and ended by hand.

    Results are there once it has ended: asking for them waits, for two seconds at most, for the reading that closes it.
    While it is open they tell what has been so far. As a decorator it is a new window at every call.
    Somebody must keep it until it ends: one that nobody knows any more is measured no further.

    While the monitor is stopped or paused a window gets no readings; it goes on with those that come after that.

    Attributes:
        name: What it was called.
    """

    def __init__(self, owner: Owner, name: str) -> None:
        self.name = name
        self._owner = owner
        self._begin: float | None = None
        self._end: float | None = None
        self._beginning, self._ending = threading.Lock(), threading.Lock()  # taken once, by whoever begins and ends it
        self._closed = Flag()
        self._pid = os.getpid()
        self._inbox = Inbox[Row](PENDING)
        self._before: Row | None = None
        self._folder: Folder | None = None

    def begin(self) -> Window:
        """Begin. A window begins once.

        Raises:
            InvalidOptionError: It has begun already.
        """
        self._check_process()
        if not self._beginning.acquire(blocking=False):
            raise InvalidOptionError(f"the window {self.name!r} has begun already: monitor.window({self.name!r}) makes a new one")
        self._before = self._owner.last_row()
        self._begin = self._owner.now()
        self._owner.admit(self)
        return self

    def end(self) -> Window:
        """End. Ending twice, or without a beginning, changes nothing."""
        self._check_process()
        if self._begin is not None and self._ending.acquire(blocking=False):
            self._end = self._owner.now()
            if not self._owner.dismiss(self):
                self._closed.set()
        return self

    def __enter__(self) -> Window:
        return self.begin()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.end()

    def __call__(self, function: Callable[P, T]) -> Callable[P, T]:
        """Decorate a function: each of its calls is a window of this name, found in ``Monitor.windows``.

        A call of a coroutine function lasts until it has been awaited, one of a generator function until that is exhausted.

        Raises:
            InvalidOptionError: It is an asynchronous generator function, or nothing that can be called.
        """
        given: object = function
        if not callable(given) or inspect.isasyncgenfunction(function):
            raise InvalidOptionError(f"{function!r} cannot be decorated: write `with monitor.window({self.name!r}):` within it")
        if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None)):  # noqa: B004
            return cast("Callable[P, T]", self._decorate_coroutine(cast("Callable[P, Awaitable[T]]", function)))
        if inspect.isgeneratorfunction(function):
            return cast("Callable[P, T]", self._decorate_generator(function))

        @functools.wraps(function)
        def measured(*args: P.args, **kwargs: P.kwargs) -> T:
            with Window(self._owner, self.name):
                return function(*args, **kwargs)

        return measured

    def _decorate_coroutine(self, function: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
        @functools.wraps(function)
        async def measured(*args: P.args, **kwargs: P.kwargs) -> T:
            with Window(self._owner, self.name):
                return await function(*args, **kwargs)

        return measured

    def _decorate_generator(self, function: Callable[P, Generator[T, Any, Any]]) -> Callable[P, Generator[T, Any, Any]]:
        @functools.wraps(function)
        def measured(*args: P.args, **kwargs: P.kwargs) -> Generator[T, Any, Any]:
            with Window(self._owner, self.name):
                return (yield from function(*args, **kwargs))

        return measured

    @property
    def duration(self) -> float:
        """Seconds from beginning to end, or until now, by the monotonic clock; 0 before it begins."""
        if self._begin is None:
            return 0.0
        return (self._owner.now() if self._end is None else self._end) - self._begin

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self._end is not None

    @property
    def summary(self) -> Mapping[str, Summary]:
        """By key, the statistics of the readings within; a key that was never read is not there."""
        return self._look(lambda folder: {key: held.summary() for key, held in folder.metrics.items()})

    @property
    def energy_joules(self) -> Mapping[str, Energy]:
        """By device, the energy it used; devices that have neither a counter nor power are not there."""
        found = self._look(lambda folder: {key: held.result() for key, held in folder.energy.items()})
        return {key: energy for key, energy in found.items() if energy is not None}

    @property
    def devices(self) -> Mapping[str, Across]:
        """By name (``powerWatts``), the metric over all whole devices: partitions are part of one."""
        return self._look(Folder.across)

    def seconds_above(self, key: str, threshold: float) -> float | None:
        """For how long a metric was above a threshold; None where it was not read during the window.

        Raises:
            UnknownNameError: It was not read, and there is no such metric.
        """

        def find(folder: Folder) -> float | None:
            held = folder.metrics.get(key)
            if held is None and match(key) is None:
                raise UnknownNameError("metric of the window", key, folder.metrics)
            return held.seconds_above(threshold) if held is not None else None

        return self._look(find)

    def feed(self, row: Row) -> bool:
        """Take a reading, from the monitor; whether the window is closed by it. Waits for nobody."""
        self._inbox.put(row, self._fold)
        if closed := self._end is not None and row.at >= self._end:
            self._closed.set()
        return closed

    def close(self) -> None:
        """No further reading will come."""
        self._closed.set()

    def _look(self, read: Callable[[Folder], T]) -> T:
        """What something says when everything is folded, and nothing added meanwhile."""
        self._check_process()
        if self._end is not None and not self._closed.wait(PATIENCE):
            self._closed.set()
            self._owner.despair()
        return self._inbox.read(lambda: read(self._begun()), self._fold)

    def _begun(self) -> Folder:
        """The statistics so far; those of a window that has not begun are empty."""
        if self._begin is None:
            return Folder(0.0)
        if self._folder is None:
            self._folder = Folder(self._begin)
            if self._before is not None:
                self._folder.start_from(self._before)
        return self._folder

    def _fold(self, rows: deque[Row]) -> None:
        folder, block = self._begun(), None
        while rows:
            row = rows.popleft()
            if self._begin is None or row.at < self._begin:
                if row is not self._before:  # it was being taken when the window began
                    folder.start_from(row)
                continue
            if block is not None and block.layout is not row.layout:
                folder.fold(block, self._until)
                block = None
            block = block or Block(row.layout)
            block.append(row)
        if block is not None:
            folder.fold(block, self._until)

    @property
    def _until(self) -> float:
        return float("inf") if self._end is None else self._end

    def _check_process(self) -> None:
        """In the child of a fork nobody gives a lock back that was taken, and no reading will come."""
        if os.getpid() != self._pid:
            self._pid = os.getpid()
            self._inbox = Inbox(PENDING)
            self._closed = Flag()
            self._closed.set()
