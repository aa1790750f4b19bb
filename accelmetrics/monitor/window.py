"""A stretch of the program (an epoch, a step, an evaluation) and what the hardware did meanwhile.

The statistics of a window are computed from the monitor's ring of rows when they are asked for, and before rows leave the ring: many
at a time, into statistics of bounded size, so that a window may last a second or a month. The moments at which one begins and ends are
read besides the monitor's own ticks, in the background, so that short windows have readings too and energy is exact to the moment.

That thread never waits for the program, which may hold the windows' lock and be interrupted there by a signal handler that waits
for the thread. Results are made from a copy, so that Ctrl-C in the middle leaves nothing half made.
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
from accelmetrics.schemas.statistics import COUNTER, DRAW, CounterJudge, WindowAggregator
from accelmetrics.schemas.summary import CrossDeviceStatistics, Energy, Summary
from accelmetrics.schemas.text import shown

if TYPE_CHECKING:
    from typing_extensions import Self

P = ParamSpec("P")
T = TypeVar("T")

PENDING = 256
"""Rows that an open window leaves in the ring at most; more while the program is looking at results."""
ENERGY = (f".{COUNTER}", f".{DRAW}")
"""How the keys end that energy is computed from."""
PATIENCE = 2.0
"""Seconds that results wait for the reading that closes the window: a driver may hang."""
FINAL = object()
"""Marks results that do not change any more."""
UNTOLD = 1000
"""Windows that have ended and wait for the next record, which says so; the oldest go."""
KEPT_WINDOWS = 32
"""Windows that have ended and are still known; one of a day on eight GPUs takes up to a mebibyte or two."""


class Windows:
    """The open and the last ended windows of one monitor. Outlives the monitor's stops and starts, as windows may.

    The program begins and ends windows without a lock, each step being one call in C: it is interrupted anywhere, and the
    monitor's thread, which tells of new rows, must not wait. What is folded has a lock, which that thread only ever tries.

    Args:
        ring: Where the readings are.
        now: Seconds on the monitor's clock.
        request: Has the monitor take a reading soon; whether one will come.
        look: Brings the ring up to now, where nobody does so at every tick.

    Attributes:
        ring: Where the readings are.
        past: The last ones that have ended, in the order of their ends.
        silent: Whether a window waited for its last reading in vain, and none has come since.
    """

    def __init__(self, ring: Ring, now: Callable[[], float], request: Callable[[], bool], look: Callable[[], object] = int) -> None:
        self.ring = ring
        self.now = now
        self.look = look
        self._request = request
        self.silent = False
        # Weak, as a window that the program has lost, say by Ctrl-C in the middle of its beginning, is never ended.
        self._open: dict[int, ref[Window]] = {}
        self._ended: deque[tuple[str, float, float]] = deque(maxlen=UNTOLD)  # name, begin and end of those that no record has told
        self.past: deque[Window] = deque(maxlen=KEPT_WINDOWS)
        self._locks: dict[int, threading.RLock] = {}  # by process: in the child of a fork the thread that held it is not there
        self._judge, self._judged = CounterJudge(), 0  # and the number of the last row that it was given

    @property
    def lock(self) -> threading.RLock:
        """The lock of what is folded, in this process."""
        pid = os.getpid()
        return self._locks.get(pid) or self._locks.setdefault(pid, threading.RLock())

    def doubts(self) -> Mapping[str, str]:
        """Return by device key why its counter is not believed, by the readings since the last call too. The lock must be held."""
        rows = self.ring.after(self._judged)
        if rows:
            self._judged = rows[-1].number
            self._judge.add(rows)
        return self._judge.doubts.copy()

    @property
    def open(self) -> bool:
        """Whether there are open windows."""
        return bool(living(self._open))

    def admit(self, window: Window) -> None:
        """Hand a window readings from now on, beginning with one that is taken at once."""
        self._open[id(window)] = ref(window)  # without a callback, which would swallow Ctrl-C
        self._request()

    def dismiss(self, window: Window) -> None:
        """Take one more reading for a window that has ended, or close it where none will come."""
        expected = not self.silent and self._request()
        if window.name:
            self._ended.append((window.name, window.end_moment - window.duration, window.end_moment))
        self.past.append(window)
        if not expected:
            self._close(window)

    def note(self, row: Row) -> int:
        """Take note of a row that the ring has: close the windows that it ends, and fold what others have left in the ring for long.

        Returns:
            The number of the last row that no window needs any more.
        """
        self.silent, unread = False, row.number
        for window in living(self._open):
            if row.at >= window.end_moment:
                self._close(window)
            else:
                unread = min(unread, window.read)
        if row.number - unread >= PENDING and (lock := self.lock).acquire(blocking=False):
            try:
                for window in living(self._open):
                    if row.number - window.read >= PENDING:
                        window._fold()
            finally:
                lock.release()
        return unread

    def spans(self, at: float, time_ns: int) -> tuple[WindowSpan, ...]:
        """Return the windows with a name that ended since the last call, and those that began and are open, each once.

        Args:
            at: The moment on the monitor's clock.
            time_ns: The same in nanoseconds since 1970.
        """
        found: list[tuple[str, float, float | None]] = []
        while self._ended:
            found.append(self._ended.popleft())
        for window in living(self._open):
            if window.name and not window.told and not window.ended:
                window.told = True
                found.append((window.name, self.now() - window.duration, None))
        if not found:
            return ()

        def moment(monotonic: float) -> int:
            return time_ns - int((at - monotonic) * 1e9)

        return tuple(WindowSpan(name, moment(begin), None if end is None else moment(end)) for name, begin, end in found)

    def settle(self) -> None:
        """Close the windows that have ended: no reading will come for a while. Open ones go on when one comes."""
        for window in living(self._open):
            if window.ended:
                self._close(window)

    def _close(self, window: Window) -> None:
        window._keep_rows()
        self._open.pop(id(window), None)
        window.closed.set()


def living(known: dict[int, ref[T]]) -> list[T]:
    """Return what the program still holds of objects that are known weakly, by number; the others are forgotten."""
    if not known:
        return []
    for number, one in list(known.items()):
        if one() is None and known.get(number) is one:  # else another object has the number by now
            known.pop(number, None)
    return [found for one in list(known.values()) if (found := one()) is not None]


class Window:
    """Made by ``Monitor.window``: a context manager, a decorator, or begun and ended by hand.

    Results are there once it has ended: asking for them waits, for two seconds at most, for the reading that closes it; they are
    computed once and kept. While it is open they tell what has been up to the last reading. As a decorator it is a new window
    at every call. Keep it until it ends: one that the program has dropped is measured no further.

    While the monitor is stopped or paused a window gets no readings; it goes on with those that come after that.

    Attributes:
        name: What it was called.
        end_moment: When it ended, on the monitor's clock; infinite until then.
        closed: Set when no further reading will be part of it.
        read: The number of the last row that it has folded, or that came before it.
        told: Whether a record has said that it is open.
    """

    _trailing = False  # whether a reading stands for the time since the one before, and not until the next one

    def __init__(self, owner: Windows, name: str) -> None:
        self.name = name
        self._owner = owner
        self._begin: float | None = None
        self.end_moment = float("inf")
        self.closed = Flag()
        self.told = False
        self._before: Sequence[Row] = ()  # the last readings before it
        self._rows: list[Row] | None = None  # of a window that is closed: those that are not folded
        self.read = 0
        self._folded: WindowAggregator | None = None
        self._pid = os.getpid()
        # What results were made from: the last row's number then, or FINAL; the statistics; and the results, by what computes them.
        self._kept: tuple[object, WindowAggregator, dict[object, Any]] = (None, WindowAggregator(0.0), {})

    def begin(self) -> Self:
        """Begin. A window begins once.

        Raises:
            InvalidOptionError: It has begun already.
        """
        if self._begin is not None:
            raise InvalidOptionError(f"the window {self.name!r} has begun already: monitor.window({self.name!r}) makes a new one")
        self._pid = os.getpid()
        self._before = self._owner.ring.newest(2)
        self.read = self._before[-1].number if self._before else 0
        self._begin = self._owner.now()
        self._owner.admit(self)
        return self

    def end(self) -> Self:
        """End. Ending twice, or without a beginning, changes nothing."""
        if self._begin is not None and not self.ended:
            self.end_moment = self._owner.now()
            self._owner.dismiss(self)
        return self

    def __enter__(self) -> Self:
        return self.begin()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.end()

    def __call__(self, function: Callable[P, T]) -> Callable[P, T]:
        """Decorate a function: each of its calls is a window of this name, found in ``Monitor.windows``.

        A call of a coroutine function lasts until it has been awaited, one of a generator function until that is exhausted.

        Raises:
            InvalidOptionError: It is an asynchronous generator function, or nothing that can be called.
        """
        import inspect  # 1.4 MiB, which only programs that decorate need

        given: object = function
        if not callable(given) or inspect.isasyncgenfunction(function):
            raise InvalidOptionError(f"{shown(function)} cannot be decorated: write `with monitor.window({self.name!r}):` within it")
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
        """By key, the statistics of the readings within; a key that was never read is not there."""
        return self._result(WindowAggregator.summary)

    @property
    def energy_joules(self) -> Mapping[str, Energy]:
        """By device, the energy it used; devices that have neither a counter nor power are not there."""
        return self._result(WindowAggregator.energy_joules)

    @property
    def devices(self) -> Mapping[str, CrossDeviceStatistics]:
        """By name (``powerWatts``), the metric over all whole devices: partitions are part of one."""
        return self._result(WindowAggregator.devices)

    def seconds_above(self, key: str, threshold: float) -> float | None:
        """Return for how long a metric was above a threshold; None where it was not read during the window.

        Raises:
            UnknownNameError: It was not read, and there is no such metric.
        """
        return self._results()[0].seconds_above(key, threshold)

    def _keep_rows(self) -> None:
        """Take what is not folded out of the ring, where it may be overwritten: no further reading will be part of the window."""
        self._rows = self._unread()

    def _fold(self) -> WindowAggregator:
        """Fold the rows so far. The owner's lock must be held."""
        folded, rows = self._folded or self._new(), self._unread()
        if rows:  # before they are folded: the child of a fork in between may lack rows, and folds none twice
            self.read = rows[-1].number
        folded.fold(map(self._reduced, rows), self.end_moment)
        self._folded = folded
        return folded

    def _unread(self) -> list[Row]:
        """Return the rows that are not folded, up to the one that closes the window."""
        rows = self._owner.ring.after(self.read) if self._rows is None else [row for row in self._rows if row.number > self.read]
        closing = next((place for place, row in enumerate(rows) if row.at >= self.end_moment), len(rows)) if self.ended else len(rows)
        return rows[: closing + 1]

    def _new(self) -> WindowAggregator:
        """Return statistics of no reading yet."""
        return WindowAggregator(self._owner.now() if self._begin is None else self._begin, self._before, self._trailing)

    def _reduced(self, row: Row) -> Row:
        """Return what is folded of a row."""
        return row

    def __repr__(self) -> str:
        state = "not begun" if self._begin is None else f"{self.duration:.1f} s" + ("" if self.ended else ", open")
        return f"<Window {self.name!r}: {state}>"

    def _repr_html_(self) -> str:
        """Draw a table of what each device did, for notebooks."""
        from accelmetrics.schemas.notebook import window_html

        return window_html(f"{self.name or 'window'}: {self.duration:.1f} s", self.summary, self.energy_joules)

    def _result(self, compute: Callable[[WindowAggregator], Mapping[str, T]]) -> Mapping[str, T]:
        """Return a result, computed once until there is another reading."""
        folded, results = self._results()
        if compute not in results:
            results[compute] = FrozenDict(compute(folded))
        return cast("Mapping[str, T]", results[compute])

    def _results(self) -> tuple[WindowAggregator, dict[object, Any]]:
        """Return the statistics until now, folded on this thread into a copy, and the results that were computed from them."""
        if self._kept[0] is FINAL:
            return self._kept[1:]
        if os.getpid() != self._pid:  # in the child of a fork no reading will come
            self._pid = os.getpid()
            self.closed.set()
        if not self.closed.is_set():
            self._owner.look()
        if self.ended and not self.closed.wait(PATIENCE):
            self._owner.silent = True  # no window waits for a reading until there is one
            self._owner.settle()
            self.closed.set()
        with self._owner.lock:
            rows = self._unread()
            mark = FINAL if self.closed.is_set() else rows[-1].number if rows else self.read
            if self._begin is not None and self._kept[0] != mark:
                folded = copy.deepcopy(self._folded) or self._new()
                folded.fold(map(self._reduced, rows), self.end_moment)
                folded.doubts = self._owner.doubts()
                self._kept = (mark, folded, {})
                if mark is FINAL:
                    self._forget()
            return self._kept[1:]

    def _forget(self) -> None:
        self._rows = []
        self._folded, self._before = None, ()


class TumblingWindow(Window):
    """Windows that follow each other, from one reading to a later one: what is asked for is there at once.

    A reading stands for the time since the one before. Each is part of one window, and so is each joule.
    """

    _trailing = True

    def __init__(self, owner: Windows, name: str) -> None:
        super().__init__(owner, name)
        self._selections: tuple[MetricSelection, ...] = ()

    def take(self, selection: MetricSelection) -> WindowAggregator:
        """Return the statistics since the last call, and begin the next window; where nothing was read, the same one goes on.

        Does not wait for a reading.

        Args:
            selection: What statistics are wanted of. Others are computed where an earlier call asked for them.
        """
        if os.getpid() != self._pid:  # as for a window's results: rows until then are part of a window of the parent
            self._pid = os.getpid()
            self._forget()
        self._owner.look()
        with self._owner.lock:
            if selection not in self._selections:
                self._selections = (*self._selections, selection)
            folded = self._fold()
            folded.doubts = self._owner.doubts()
            self._folded = folded.following() if folded.readings else folded
            return folded

    def _reduced(self, row: Row) -> Row:
        """Return a row with the columns that some selection wants, and those of energy; with all of them before the first call."""
        if not self._selections or any(selection.everything for selection in self._selections):
            return row
        wants = [selection.wants for selection in self._selections]
        return row.narrowed(lambda key: key.endswith(ENERGY) or any(want(key) for want in wants), ("rows", self._selections))
