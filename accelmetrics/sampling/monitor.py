"""The monitor: readings at a steady pace, remembered, summarised and handed out, beside a program that notices nothing.

What it does, it does on threads of its own: one that reads, shared by the monitors that want the same readings, and one for
each exporter and callback. The program's own calls (``log``, ``window``, ``latest``) take a short lock at most.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Hashable, Mapping, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, SupportsFloat
from weakref import WeakSet

from accelmetrics.backends.guard import guarded
from accelmetrics.sampling.beat import REAL_CLOCK, Beat, MonitorClock, shared_beat
from accelmetrics.sampling.energy import COUNTER, POWER, Meter
from accelmetrics.sampling.engine import hostname
from accelmetrics.sampling.history import History
from accelmetrics.sampling.outlet import Outlet
from accelmetrics.sampling.rows import Row, RowMaker
from accelmetrics.sampling.sampler import Sampler
from accelmetrics.sampling.steps import StepLog
from accelmetrics.sampling.subscribers import CallbackExporter, Stream
from accelmetrics.sampling.window import Window
from accelmetrics.schemas.errors import InvalidOptionError
from accelmetrics.schemas.record import Exporter, MonitorStatus, Record
from accelmetrics.schemas.snapshot import Snapshot

SHORTEST_INTERVAL, LONGEST_INTERVAL = 0.01, 86_400
CLOSE_TIMEOUT = 5.0
"""Seconds that ``stop`` waits for exporters to deliver what is queued."""
EXIT_TIMEOUT = 2.0
"""The same at the interpreter's exit."""
LAST_READING = 1.5
"""In timeouts: how long ``stop`` waits for the last reading."""
KEPT_WINDOWS = 100

Extra = Callable[[Snapshot], Mapping[str, int | float]]
"""Metrics of the watched program itself, read at every tick."""

log = logging.getLogger("accelmetrics")


class Monitor:
    """Reads everything at a steady pace, until it is stopped.

    Nothing it does raises into the program, waits for a driver on the program's threads, or keeps the interpreter from
    exiting. What goes wrong is logged once under ``accelmetrics`` and stands in ``status``. May be stopped and started again,
    by any thread. In the child of a fork it is not running; the child may start it anew.

    Args:
        interval: Seconds between two readings, from 0.01; 0.1 is a good pace for short steps.
        exporters: Where the readings go, as objects.
        labels: Travel with every record.
        history: How many readings are remembered, or for how long (a ``timedelta``); 0 for none.
        extras: Functions that give metrics of the program itself, called at every reading.
        timeout: Seconds within which a reading is answered, as for ``Sampler``.
        clock: Where time is taken from, and what waits; only tests give one.
        options: As for ``Sampler``: ``backends``, ``gpus``, ``pid``, …

    Raises:
        InvalidOptionError: An option that cannot be used.
        UnknownNameError: A backend that does not exist.
    """

    def __init__(
        self,
        interval: float = 1.0,
        exporters: Sequence[Exporter] = (),
        *,
        labels: Mapping[str, str] | None = None,
        history: int | timedelta = 300,
        extras: Sequence[Extra] = (),
        timeout: float = 1.0,
        clock: MonitorClock | None = None,
        **options: Any,
    ) -> None:
        self.interval = _interval(interval)
        self.history = History(history)
        self.labels = _labels(labels)
        self._timeout = timeout
        self._clock: MonitorClock = REAL_CLOCK if clock is None else clock
        options = {**options, "timeout": timeout}
        Sampler(**options).close()  # what cannot be used is told here, where the caller sees it
        self._key: Hashable = _key(options, self.interval) if clock is None else object()
        self._make = lambda: Sampler(**options, clock=clock)
        self._exporters = tuple(exporters)
        self._extras = tuple(extras)
        self._windows: list[Window] = []
        self._past: list[Window] = []
        self._streams: list[Stream] = []
        self._callbacks: list[Outlet] = []
        self._forget()

    def _forget(self) -> None:
        """The state of a monitor that has not run: also what the child of a fork begins with."""
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._control = threading.RLock()
        self._beat: Beat | None = None
        self._outlets: list[Outlet] = []
        self._rows = RowMaker()
        self._steps = StepLog()
        self._meter = Meter()
        self._ticks = self._missed = self._timed_out = 0
        self._error = ""
        self._latest: Snapshot | None = None
        self._last: Row | None = None
        self._joined = False
        self._paused = False

    # The program's side: start and stop.

    def start(self) -> Monitor:
        """Begin; the first reading is taken at once, in the background. Starting twice changes nothing."""
        self._check_process()
        with self._control:
            if self._beat is None:
                running, steps, clock = self._control, self._steps, self._clock
                self._forget()
                self._control, self._steps = running, steps
                self._outlets = [*map(_outlet, self._exporters, _names(self._exporters)), *self._callbacks]
                for outlet in self._outlets:
                    outlet.start()
                _running.add(self)
                self._beat = shared_beat(self._key, lambda: Beat(self._make, self.interval, clock))
                self._beat.join(self)
        return self

    def stop(self, timeout: float = CLOSE_TIMEOUT) -> None:
        """Take one last reading, deliver what is queued, and end. Stopping twice changes nothing.

        Args:
            timeout: Seconds that exporters have for what is queued; what is left then is dropped, and said.
        """
        if self._check_process():
            return
        with self._control:
            beat, self._beat = self._beat, None
            if beat is None:
                return
            beat.leave(self, min(LAST_READING * self._timeout, timeout) + 0.1)
            _running.discard(self)
            self._end(time.monotonic() + timeout)

    def _end(self, by: float) -> None:
        with self._lock:
            windows, self._windows = self._windows, []
            streams, self._streams = self._streams, []
        for window in windows:
            window.close()
        for stream in streams:
            stream.put(None)
        steps = self._steps.take(self._meter, self._devices(), everything=True)
        if steps and self._latest is not None:
            self._deliver(Record(self._latest, self.labels, steps, self.status))
        for outlet in self._outlets:
            outlet.close(by)
        for outlet in self._outlets:
            outlet.join()

    def pause(self) -> None:
        """Take no notice of readings until ``resume``: nothing is remembered, exported or counted as missed."""
        self._check_process()
        self._paused = True

    def resume(self) -> None:
        """Go on. The time between is part of no window's statistics."""
        self._check_process()
        if self._paused:
            self._joined = False
            self._paused = False

    def flush(self, timeout: float = CLOSE_TIMEOUT) -> bool:
        """Wait until exporters have delivered what was read, at most so many seconds; whether they have."""
        if self._check_process():
            return True
        by = time.monotonic() + timeout
        return all([outlet.flush(max(0.0, by - time.monotonic())) for outlet in self._outlets])  # noqa: C419  each has its turn

    def __enter__(self) -> Monitor:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    @property
    def running(self) -> bool:
        """Whether it is started, in this process."""
        return not self._check_process() and self._beat is not None

    # The program's side: what was read.

    @property
    def latest(self) -> Snapshot | None:
        """The last reading, None before the first."""
        return self._latest

    @property
    def status(self) -> MonitorStatus:
        """How the monitor and its exporters fare."""
        exporters = tuple(outlet.status for outlet in self._outlets)
        return MonitorStatus(self.interval, self._ticks, self._missed, self._timed_out, exporters)

    @property
    def error(self) -> str:
        """Why no reading could be taken, in words; empty while they are taken."""
        return self._error

    @property
    def windows(self) -> tuple[Window, ...]:
        """The last hundred windows that have ended, in the order of their ends."""
        with self._lock:
            return tuple(self._past)

    def window(self, name: str = "") -> Window:
        """A stretch of the program to be measured: a context manager, a decorator, or begun and ended by hand.

        Windows may nest and overlap, on any threads.
        """
        return Window(self, name)

    def log(self, step: int | None = None, **values: SupportsFloat | None) -> None:
        """Put numbers of the program into the stream: ``epoch``, ``loss``, ``learning_rate``, ``grad_norm``, any others.

        ``tokens`` and ``samples`` are those of this step: with them come throughput and the work done per joule, over the
        total energy of the selected devices, and over the mean of one (``…_per_joule_of_mean_device``). Duration and energy
        are those since the last call. None is left out.
        """
        if not self._check_process():
            self._steps.add(self._clock.monotonic(), self._clock.time_ns(), step, values)

    def subscribe(self, callback: Callable[[Snapshot], object]) -> Callable[[], None]:
        """Have a function called with every snapshot, on a thread of its own.

        Returns:
            Call it to end the subscription.
        """
        outlet = Outlet(CallbackExporter(callback), "callback")
        with self._control:
            self._callbacks.append(outlet)
            if self._beat is not None:
                self._outlets = [*self._outlets, outlet]
                outlet.start()

        def unsubscribe() -> None:
            with self._control:
                self._callbacks = [other for other in self._callbacks if other is not outlet]
                self._outlets = [other for other in self._outlets if other is not outlet]
            outlet.close(time.monotonic())

        return unsubscribe

    def __aiter__(self) -> Stream:
        """``async for snapshot in monitor``: every snapshot from now on, until the monitor stops."""
        stream = Stream(self._lose)
        with self._lock:
            if self._beat is not None:
                self._streams.append(stream)
                return stream
        stream.put(None)
        return stream

    def _lose(self, stream: Stream) -> None:
        with self._lock:
            self._streams = [other for other in self._streams if other is not stream]

    # The windows' side.

    def now(self) -> float:
        """Seconds on the monitor's clock."""
        return self._clock.monotonic()

    def admit(self, window: Window) -> Row | None:
        """Hand a window readings from now on; gives the last one before."""
        if self._check_process():
            return None
        with self._lock:
            self._windows.append(window)
            last = self._last
        self._request()
        return last

    def dismiss(self, window: Window) -> bool:
        """Take one more reading for a window that has ended; whether one will come."""
        if self._check_process():
            return False
        with self._lock:
            self._past = [*self._past, window][-KEPT_WINDOWS:]
            expected = self._beat is not None and not self._paused
            if not expected:
                self._windows = [other for other in self._windows if other is not window]
        self._request()
        return expected

    def _request(self) -> None:
        beat = self._beat
        if beat is not None:
            beat.request()

    # The beat's side.

    def take(self, snapshot: Snapshot, at: float, tick: bool) -> None:
        """A reading, on the thread of the beat."""
        if self._paused:
            return
        snapshot = self._with_extras(snapshot)
        row = self._rows.row(snapshot, at, self._joined)
        self._error = ""
        with self._lock:
            self._last, self._joined = row, True
            windows = self._windows
        closed = [window for window in windows if window.feed(row)]
        if closed:
            with self._lock:
                self._windows = [window for window in self._windows if window not in closed]
        self._meter.add(at, row.joined, _powers(snapshot))
        if tick:
            self._tick(snapshot, row)

    def miss(self, ticks: int) -> None:
        """Readings that were due and could not be taken."""
        if not self._paused:
            self._missed += ticks

    def fail(self, words: str) -> None:
        """A reading could not be taken at all."""
        if words != self._error:
            self._error = words
            log.warning("no reading: %s", words)

    def _tick(self, snapshot: Snapshot, row: Row) -> None:
        self._ticks += 1
        self._timed_out += any(status.status == "timed_out" for status in snapshot.backends)
        self.history.add(row)
        self._latest = snapshot
        steps = self._steps.take(self._meter, self._devices())
        if self._outlets:
            self._deliver(Record(snapshot, self.labels, steps, self.status))
        for stream in list(self._streams):
            stream.put(snapshot)

    def _deliver(self, record: Record) -> None:
        for outlet in self._outlets:
            outlet.put(record)

    def _devices(self) -> int:
        latest = self._latest
        return max(1, len(_powers(latest))) if latest is not None else 1

    def _with_extras(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot with the program's own metrics: a new one, as others may have been given the same."""
        found: dict[str, int | float] = {}
        for extra in self._extras:
            found.update(guarded(extra, snapshot).value or {})
        return snapshot.with_metrics(found) if found else snapshot

    def _check_process(self) -> bool:
        """Whether this is the child of the process that the monitor was started in; it forgets then what it had."""
        if os.getpid() == self._pid:
            return False
        self._forget()
        self._windows, self._streams, self._callbacks = [], [], []
        return True


def _interval(interval: object) -> float:
    if isinstance(interval, bool) or not isinstance(interval, (int, float)) or not SHORTEST_INTERVAL <= interval <= LONGEST_INTERVAL:
        raise InvalidOptionError(f"interval is {interval!r}: it must be a number of seconds from {SHORTEST_INTERVAL} to {LONGEST_INTERVAL}")
    return float(interval)


def _labels(labels: Mapping[str, str] | None) -> Mapping[str, str]:
    if labels is not None and not isinstance(labels, Mapping):
        raise InvalidOptionError(f"labels is {labels!r}: it must be a mapping of names to texts")
    given = {str(name): str(value) for name, value in (labels or {}).items()}
    return {"run_id": uuid.uuid4().hex[:12], "hostname": hostname(), **given}


def _key(options: Mapping[str, Any], interval: float) -> Hashable:
    """What monitors must have in common to share their readings; options that cannot be compared share with nobody."""
    items = tuple(sorted((name, tuple(value) if isinstance(value, list) else value) for name, value in options.items()))
    outcome = guarded(hash, items)
    return (interval, items) if outcome.failure is None else object()


def _names(exporters: Sequence[Exporter]) -> list[str]:
    names: list[str] = []
    for exporter in exporters:
        name = str(getattr(exporter, "name", "") or type(exporter).__name__)
        count = sum(other.partition("#")[0] == name for other in names)
        names.append(f"{name}#{count + 1}" if count else name)
    return [name.replace("#", "-") for name in names]


def _outlet(exporter: Exporter, name: str) -> Outlet:
    return Outlet(exporter, name)


def _powers(snapshot: Snapshot) -> dict[str, tuple[float | None, float | None]]:
    """By whole device, its energy counter and its power; devices that never give either are not there."""
    metrics = snapshot.metrics
    found = {}
    for place in snapshot.identities:
        pair = (metrics.get(f"{place.key}.{COUNTER}"), metrics.get(f"{place.key}.{POWER}"))
        if not place.identity.parent and pair != (None, None):
            found[place.key] = pair
    return found


_running: WeakSet[Monitor] = WeakSet()


@atexit.register
def _stop_all() -> None:
    """Deliver what is queued when the interpreter exits beside a monitor that was not stopped."""
    for monitor in list(_running):
        guarded(monitor.stop, EXIT_TIMEOUT)
