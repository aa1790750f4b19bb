"""Windows: parts of the program (an epoch, a step, an evaluation) with statistics of the hardware during them.

The statistics are computed from the monitor's ring of rows when they are requested, and before rows leave the ring. They have a bounded
size, so a window may last a second or a month. Additional readings are taken in the background when a window begins and ends, so that
short windows have readings too and energy is exact.

The monitor's thread never waits for the windows' lock: the program may hold the lock while a signal handler interrupts it and waits for
that thread. Results are computed on a copy, so that Ctrl-C leaves no inconsistent state.
"""

from __future__ import annotations

import copy
import functools
import os
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast
from weakref import ref

from accelmetrics.sampling.threads import Flag
from accelmetrics.schemas.errors import InvalidOptionError
from accelmetrics.schemas.frozen import FrozenDict
from accelmetrics.schemas.record import WindowSpan
from accelmetrics.schemas.ring import Ring, Row
from accelmetrics.schemas.selection import MetricSelection
from accelmetrics.schemas.statistics import COUNTER, DRAW, CounterJudge, CrossDeviceStatistics, Energy, Summary, WindowAggregator
from accelmetrics.schemas.text import shown

if TYPE_CHECKING:
    from typing_extensions import Self

P = ParamSpec("P")
T = TypeVar("T")

PENDING = 256
"""Number of unread rows in the ring from which the monitor's thread aggregates them, unless the program holds the lock."""
ENERGY = (f".{COUNTER}", f".{DRAW}")
"""Suffixes of the keys that energy is computed from."""
PATIENCE = 2.0
"""Maximum number of seconds that results wait for the reading that closes the window, because a driver may hang."""
FINAL = object()
"""Marks results that do not change any more."""
MOST_UNREPORTED = 1000
"""Maximum number of ended windows that wait for the next record to report them; the oldest are dropped."""
KEPT_WINDOWS = 32
"""Number of ended windows that are kept. A window of a day on eight GPUs takes one or two mebibytes."""


class Windows:
    """The open windows and the last ended windows of a monitor. It persists when the monitor stops and starts, as windows may.

    The program begins and ends windows without a lock, in single calls in C, because it may be interrupted anywhere and the monitor's
    thread must not wait. The aggregates have a lock, which the monitor's thread only tries to acquire.

    Args:
        ring: The monitor's readings.
        now: Function that returns the time on the monitor's clock, in seconds.
        request: Function that requests a reading soon and returns whether one will come.
        look: Function that adds the readings of other processes to the ring, unless this happens at every tick anyway.

    Attributes:
        ring: The monitor's readings.
        past: The last ended windows, in the order of their ends.
        silent: Whether a window waited in vain for its last reading, and no reading has come since.
    """

    def __init__(self, ring: Ring, now: Callable[[], float], request: Callable[[], bool], look: Callable[[], object] = int) -> None:
        self.ring = ring
        self.now = now
        self.look = look
        self._request = request
        self.silent = False
        # Weak references: a window that the program has lost, for example by Ctrl-C while it began, is never ended.
        self._open: dict[int, ref[Window]] = {}
        self._ended: deque[tuple[str, float, float]] = deque(maxlen=MOST_UNREPORTED)  # name, begin and end of windows for the next record
        self.past: deque[Window] = deque(maxlen=KEPT_WINDOWS)
        self._locks: dict[int, threading.RLock] = {}  # by process: in a forked child, the thread that held the lock does not exist
        self._judge, self._judged = CounterJudge(), 0  # the judge, and the number of the last row that it has seen

    @property
    def lock(self) -> threading.RLock:
        """The lock of the aggregates, in this process."""
        pid = os.getpid()
        return self._locks.get(pid) or self._locks.setdefault(pid, threading.RLock())

    def doubts(self) -> Mapping[str, str]:
        """Return the reason by device key why its energy counter is implausible, up to the last reading. The lock must be held."""
        rows = self.ring.after(self._judged)
        if rows:
            self._judged = rows[-1].number
            self._judge.add(rows)
        return self._judge.doubts.copy()

    @property
    def open(self) -> bool:
        """Whether there are open windows."""
        return bool(alive(self._open))

    def admit(self, window: Window) -> None:
        """Add an open window, and request a reading for its beginning."""
        self._open[id(window)] = ref(window)  # without a callback, which would swallow a KeyboardInterrupt
        self._request()

    def dismiss(self, window: Window) -> None:
        """Request a last reading for a window that has ended, or close it if none will come."""
        expected = not self.silent and self._request()
        if window.name:
            self._ended.append((window.name, window.end_moment - window.duration, window.end_moment))
        self.past.append(window)
        if not expected:
            self._close(window)

    def note(self, row: Row) -> int:
        """Process a new row of the ring: close the windows that it ends, and aggregate rows of open windows if there are many.

        Returns:
            The number of the last row that no window needs any more.
        """
        self.silent, unread = False, row.number
        for window in alive(self._open):
            if row.at >= window.end_moment:
                self._close(window)
            else:
                unread = min(unread, window.read)
        if row.number - unread >= PENDING and (lock := self.lock).acquire(blocking=False):
            try:
                for window in alive(self._open):
                    if row.number - window.read >= PENDING:
                        window._fold()
            finally:
                lock.release()
        return unread

    def spans(self, at: float, time_ns: int) -> tuple[WindowSpan, ...]:
        """Return the named windows that ended or began since the last call.

        Args:
            at: Time of the reading on the monitor's clock.
            time_ns: The same time in nanoseconds since 1970.
        """
        found: list[tuple[str, float, float | None]] = []
        while self._ended:
            found.append(self._ended.popleft())
        for window in alive(self._open):
            if window.name and not window.reported and not window.ended:
                window.reported = True
                found.append((window.name, self.now() - window.duration, None))
        if not found:
            return ()

        def moment(monotonic: float) -> int:
            return time_ns - int((at - monotonic) * 1e9)

        return tuple(WindowSpan(name, moment(begin), None if end is None else moment(end)) for name, begin, end in found)

    def close_ended(self) -> None:
        """Close the windows that have ended, because no reading will come for a while. Open windows continue with the next reading."""
        for window in alive(self._open):
            if window.ended:
                self._close(window)

    def _close(self, window: Window) -> None:
        window._rows = window._unread()  # copied, because later rows may overwrite them in the ring
        self._open.pop(id(window), None)
        window.closed.set()


def alive(known: dict[int, ref[T]]) -> list[T]:
    """Return the objects of weak references that still exist, and remove the dead references from the dict."""
    if not known:
        return []
    for number, one in list(known.items()):
        if one() is None and known.get(number) is one:  # a new object may have got the same id meanwhile
            known.pop(number, None)
    return [found for one in list(known.values()) if (found := one()) is not None]


class Window:
    """A part of the program that is measured. ``Monitor.window`` creates it.

    It is a context manager, a decorator, or used with ``begin`` and ``end``. As a decorator it creates a new window at every call.

    The first access to results after the end waits at most two seconds for the reading that closes the window; then results are final.
    While the window is open, results cover the time up to the last reading. Keep a reference until the end: a window without one is no
    longer measured. While the monitor is stopped or paused, a window gets no readings; it continues with later ones.

    Attributes:
        name: Name of the window.
        end_moment: Time of its end on the monitor's clock; infinite until then.
        closed: Set when no further reading will be part of it.
        read: Number of the last row that it has aggregated, or of the last row before it.
        reported: Whether a record has reported that it is open.
    """

    _trailing = False  # whether a reading is valid for the time since the previous one, instead of until the next one

    def __init__(self, owner: Windows, name: str) -> None:
        self.name = name
        self._owner = owner
        self._begin: float | None = None
        self.end_moment = float("inf")
        self.closed = Flag()
        self.reported = False
        self._before: Sequence[Row] = ()  # the last readings before it
        self._rows: list[Row] | None = None  # after closing: the rows that are not aggregated yet
        self.read = 0
        self._folded: WindowAggregator | None = None
        self._pid = os.getpid()
        # Cached results: the number of their last row, or FINAL; the statistics; and the results by the function that computes them.
        self._kept: tuple[object, WindowAggregator, dict[object, Any]] = (None, WindowAggregator(0.0), {})

    def begin(self, at: float | None = None) -> Self:
        """Begin the window. This is possible only once.

        Args:
            at: The past moment of ``time.monotonic`` at which it began, as of a process that was started before the monitor.

        Raises:
            InvalidOptionError: It has already begun.
        """
        if self._begin is not None:
            raise InvalidOptionError(f"the window {self.name!r} has already begun: create a new one with monitor.window({self.name!r})")
        self._pid = os.getpid()
        self._before = self._owner.ring.newest(2)
        self.read = self._before[-1].number if self._before else 0
        self._begin = self._owner.now() if at is None else at
        self._owner.admit(self)
        return self

    def end(self) -> Self:
        """End the window. Has no effect if it has ended or not begun."""
        if self._begin is not None and not self.ended:
            self.end_moment = self._owner.now()
            self._owner.dismiss(self)
        return self

    def __enter__(self) -> Self:
        return self.begin()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.end()

    def __call__(self, function: Callable[P, T]) -> Callable[P, T]:
        """Decorate a function: each call is a window with this name, available in ``Monitor.windows``.

        A call of a coroutine function lasts until it has been awaited; a call of a generator function, until the generator is exhausted.

        Raises:
            InvalidOptionError: It is an asynchronous generator function, or not callable.
        """
        import inspect  # it takes 1.4 MiB, which only programs with decorators need

        given: object = function
        if not callable(given) or inspect.isasyncgenfunction(function):
            raise InvalidOptionError(f"{shown(function)} cannot be decorated: write `with monitor.window({self.name!r}):` inside it")
        if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None)):  # noqa: B004
            awaited = cast("Callable[P, Awaitable[Any]]", function)

            @functools.wraps(function)
            async def coroutine(*args: P.args, **kwargs: P.kwargs) -> Any:
                with Window(self._owner, self.name):
                    return await awaited(*args, **kwargs)

            return cast("Callable[P, T]", coroutine)
        if inspect.isgeneratorfunction(function):

            @functools.wraps(function)
            def generator(*args: P.args, **kwargs: P.kwargs) -> Generator[Any, Any, Any]:
                with Window(self._owner, self.name):
                    return (yield from function(*args, **kwargs))

            return cast("Callable[P, T]", generator)

        @functools.wraps(function)
        def plain(*args: P.args, **kwargs: P.kwargs) -> T:
            with Window(self._owner, self.name):
                return function(*args, **kwargs)

        return plain

    @property
    def duration(self) -> float:
        """Seconds from beginning to end, or until now, by the monotonic clock; 0 before it begins."""
        return min(self._owner.now(), self.end_moment) - self._begin if self._begin is not None else 0.0

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self.end_moment < float("inf")

    @property
    def summary(self) -> Mapping[str, Summary]:
        """Statistics of the window's readings by key. A key that was never read is absent."""
        return self._result(WindowAggregator.summary)

    @property
    def energy_joules(self) -> Mapping[str, Energy]:
        """Energy used by each device, by its key. A device with neither an energy counter nor power is absent."""
        return self._result(WindowAggregator.energy_joules)

    @property
    def devices(self) -> Mapping[str, CrossDeviceStatistics]:
        """Statistics over all whole devices by metric (``powerWatts``). Partitions are part of a whole device."""
        return self._result(WindowAggregator.devices)

    def seconds_above(self, key: str, threshold: float) -> float | None:
        """Return the seconds for which a metric was above a threshold; None if it was not read during the window.

        Raises:
            UnknownNameError: It was not read, and there is no metric with this key.
        """
        return self._results()[0].seconds_above(key, threshold)

    def _fold(self) -> WindowAggregator:
        """Aggregate the rows so far. The owner's lock must be held."""
        folded, rows = self._folded or self._new(), self._unread()
        if rows:  # set before aggregating: a child that is forked between the two may miss rows, but counts none twice
            self.read = rows[-1].number
        folded.fold(map(self._reduced, rows), self.end_moment)
        self._folded = folded
        return folded

    def _unread(self) -> list[Row]:
        """Return the rows that are not aggregated yet, up to the one that closes the window."""
        rows = self._owner.ring.after(self.read) if self._rows is None else [row for row in self._rows if row.number > self.read]
        closing = next((place for place, row in enumerate(rows) if row.at >= self.end_moment), len(rows)) if self.ended else len(rows)
        return rows[: closing + 1]

    def _new(self) -> WindowAggregator:
        """Return empty statistics that begin with the window."""
        return WindowAggregator(self._owner.now() if self._begin is None else self._begin, self._before, self._trailing)

    def _reduced(self, row: Row) -> Row:
        """Return the row to aggregate. A subclass may leave out columns."""
        return row

    def __repr__(self) -> str:
        state = "not begun" if self._begin is None else f"{self.duration:.1f} s" + ("" if self.ended else ", open")
        return f"<Window {self.name!r}: {state}>"

    def _repr_html_(self) -> str:
        """Return an HTML table with each device's results, for notebooks."""
        from accelmetrics.schemas.notebook import window_html

        return window_html(f"{self.name or 'window'}: {self.duration:.1f} s", self.summary, self.energy_joules)

    def _result(self, compute: Callable[[WindowAggregator], Mapping[str, T]]) -> Mapping[str, T]:
        """Return a result from the cache, or compute it if there is a new reading."""
        folded, results = self._results()
        if compute not in results:
            results[compute] = FrozenDict(compute(folded))
        return cast("Mapping[str, T]", results[compute])

    def _results(self) -> tuple[WindowAggregator, dict[object, Any]]:
        """Return the statistics up to now and the cache of their results. The aggregation runs on the calling thread."""
        if self._kept[0] is FINAL:
            return self._kept[1:]
        if os.getpid() != self._pid:  # in a forked child no reading will come
            self._pid = os.getpid()
            self.closed.set()
        if not self.closed.is_set():
            self._owner.look()
        if self.ended and not self.closed.wait(PATIENCE):
            self._owner.silent = True  # other windows do not wait either, until there is a reading again
            self._owner.close_ended()
            self.closed.set()
        with self._owner.lock:
            rows = self._unread()
            mark = FINAL if self.closed.is_set() else rows[-1].number if rows else self.read
            if self._begin is not None and self._kept[0] != mark:
                # On a copy, so that an interruption leaves the window's statistics unchanged.
                folded = copy.deepcopy(self._folded) or self._new()
                folded.fold(map(self._reduced, rows), self.end_moment)
                folded.doubts = self._owner.doubts()
                self._kept = (mark, folded, {})
                if mark is FINAL:
                    self._discard_rows()
            return self._kept[1:]

    def _discard_rows(self) -> None:
        self._rows = []
        self._folded, self._before = None, ()


class TumblingWindow(Window):
    """Consecutive windows, each from one reading to a later one, so that results are available at once.

    A reading is valid for the time since the previous one. Each reading and each joule belongs to exactly one window.
    """

    _trailing = True

    def __init__(self, owner: Windows, name: str) -> None:
        super().__init__(owner, name)
        self._selections: tuple[MetricSelection, ...] = ()

    def take(self, selection: MetricSelection) -> WindowAggregator:
        """Return the statistics since the last call, and begin the next window. Without a reading since then, the window continues.

        Does not wait for a reading.

        Args:
            selection: Metrics to compute statistics of, in addition to the selections of earlier calls.
        """
        if os.getpid() != self._pid:  # in a forked child: rows before the fork belong to a window of the parent
            self._pid = os.getpid()
            self._discard_rows()
        self._owner.look()
        with self._owner.lock:
            if selection not in self._selections:
                self._selections = (*self._selections, selection)
            folded = self._fold()
            folded.doubts = self._owner.doubts()
            self._folded = folded.following() if folded.readings else folded
            return folded

    def _reduced(self, row: Row) -> Row:
        """Return a row with the columns of all selections so far and of energy; before the first call, with all columns."""
        if not self._selections or any(selection.everything for selection in self._selections):
            return row
        wants = [selection.wants for selection in self._selections]
        return row.narrowed(lambda key: key.endswith(ENERGY) or any(want(key) for want in wants), ("rows", self._selections))
