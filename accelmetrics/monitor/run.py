"""The thread that takes readings (:class:`Ticker`), and a monitor from one start to the next stop (:class:`Run`).

A :class:`Ticker` takes readings at a steady pace for all monitors of the process that want the same ones. The schedule is absolute: the
n-th reading is due n intervals after the first, however long readings take. Missed readings are counted and not repeated. Between two
ticks, readings are taken on request: when windows begin and end, and when monitors join and leave.

A :class:`Run` contains all state that is reset by a start, for example counters. Longer-lived objects are passed to each run.

Neither class has a lock. Each change of their state is a single call in C, because a signal handler may interrupt any call of the program
and call ``Monitor.stop``.
"""

from __future__ import annotations

import atexit
import copy
import os
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from operator import itemgetter
from typing import TYPE_CHECKING
from weakref import WeakSet, WeakValueDictionary, ref

from accelmetrics.backends.contract import SystemClock
from accelmetrics.backends.guard import WarnOnce, guarded
from accelmetrics.monitor.export_worker import Delivery, ExportWorker, on_exporter_thread
from accelmetrics.monitor.findings import FindingEngine
from accelmetrics.monitor.steps import StepLog
from accelmetrics.monitor.window import PENDING, Windows, alive
from accelmetrics.sampling.sampler import Sampler, moment_of
from accelmetrics.sampling.threads import Flag, OnDemandThread
from accelmetrics.schemas.log import log
from accelmetrics.schemas.record import NO_HOLDERS, Findings, HoldersOf, MonitorStatus, Record, Step
from accelmetrics.schemas.ring import Ring, Row, row_of
from accelmetrics.schemas.snapshot import Snapshot
from accelmetrics.schemas.statistics import Meter

if TYPE_CHECKING:
    from accelmetrics.sampling.node import NodeReader, Taken

LAST_READING = 1.5
"""How long a stop waits for the last reading, in timeouts."""
LAST_READING_SHARE = 0.5
"""Maximum share of a stop's time for that wait. The rest is for the exporters."""
LONGEST_FAILING_STOP = 2.0
"""Maximum duration of a stop in seconds if nothing can be delivered: the last reading hangs, or exporters only fail."""
EXIT_TIMEOUT = 1.8
"""Maximum delay of the interpreter's exit in seconds, for all monitors together."""
LEAVING = 1.0
"""Maximum number of seconds that a stop waits until the process has left a shared reading."""
REQUEST_PAUSE = 0.02
"""Minimum number of seconds from one reading to a requested one. More frequent requests share a reading."""
REQUEST_SHARE = 10
"""The same in durations of the last reading. However often windows begin and end, readings take at most a tenth of the time."""
LOOK = 2.0
"""Maximum number of seconds that a caller waits for readings of other processes."""
LONGEST_REST = 60.0
"""Seconds after which a process checks whether it has to take readings of other processes, if no caller asks for them."""
IDLE, BEGINNING, RUNNING, STOPPING, STOPPED = range(5)
"""Phases of a run, in this order only: not started; exporters are being opened; readings are taken; the last reading is awaited; there are
no more readings, and exporters deliver their queues until the deadline."""
NEWEST, ALL, STEPS = range(3)
"""What a caller needs from other processes: the newest reading, all readings, or also logged steps."""
TOLERANCE = 1e-6
"""Seconds by which a tick may be early, because times are floats."""
WAITING = 64
"""Maximum number of snapshots that wait for a slow loop. The oldest are dropped."""


class Stream:
    """The snapshots from now on, for one ``async for``. It ends when the monitor stops, after the snapshots that still wait.

    Attributes:
        dropped: Number of snapshots dropped because the loop was too slow.
    """

    def __init__(self) -> None:
        import asyncio  # already loaded if there is a loop; a program without a loop saves 6 MiB

        self.dropped = 0
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Snapshot | None] = deque(maxlen=WAITING)  # None marks the end and is never removed
        self._woken = asyncio.Event()

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> Snapshot:
        while not self._waiting:
            self._woken.clear()
            await self._woken.wait()
        snapshot = self._waiting.popleft()
        if snapshot is None:
            self._waiting.append(None)
            raise StopAsyncIteration
        return snapshot

    def put(self, snapshot: Snapshot | None) -> None:
        """Add a snapshot, or None for the end, from any thread. Does nothing after the loop has been closed."""
        self.dropped += len(self._waiting) == WAITING
        self._waiting.append(snapshot)
        if self._loop.is_closed():
            self._waiting.clear()
        elif len(self._waiting) == 1:  # an earlier snapshot that still waits has already woken the loop
            with suppress(RuntimeError):  # the loop was closed after the check
                self._loop.call_soon_threadsafe(self._woken.set)


class Run:
    """A monitor from one start to the next stop, as the observer of a ticker.

    The ticker's thread calls ``take``, ``miss``, ``fail`` and ``end``; the program calls the other methods.

    Args:
        ticker: See the attributes.
        interval: Seconds between two ticks.
        timeout: Maximum duration of a reading in seconds.
        labels: Labels of every record.
        shared: Whether readings are shared with other processes.
        ring: See the attributes, as for the next three.
        windows: See the attributes.
        steps: See the attributes.
        findings: See the attributes.
        extra: Function that returns metrics of the program itself, called at every reading.
        attribution: Function that returns the holders of a reading's devices.
        for_all: Engine with the default rules for all processes that share readings; the same object as ``findings`` if this monitor has
            the default rules.

    Attributes:
        ticker: The ticker that takes the readings.
        ring: Stored readings.
        windows: The windows.
        steps: Logged steps.
        findings: Engine that evaluates this monitor's rules.
        latest: The last reading, None before the first.
        failure: Why no reading could be taken, in words; empty if readings succeed.
        paused: Whether readings are ignored.
        left: Set while no reading will come: before the start and after the stop.
        pid: The process that its threads run in.
    """

    def __init__(  # noqa: PLR0913 - what a monitor keeps from one run to the next
        self,
        ticker: Ticker,
        *,
        interval: float,
        timeout: float,
        labels: Mapping[str, str],
        shared: bool,
        ring: Ring,
        windows: Windows,
        steps: StepLog,
        findings: FindingEngine,
        extra: Callable[[Snapshot], Mapping[str, int | float]] | None,
        attribution: HoldersOf | None,
        for_all: FindingEngine | None = None,
    ) -> None:
        self.ring, self.windows, self.steps, self.findings = ring, windows, steps, findings
        self._interval, self._timeout, self._labels, self._shared = interval, timeout, labels, shared
        self._extra, self._attribution, self.for_all = extra, attribution, for_all
        self._shared_findings: Findings | None = None  # findings of the process that evaluates the rules for all
        self.latest: Snapshot | None = None
        self.failure = ""
        self.paused = False
        self._since = float("-inf")  # earlier readings are ignored
        self.left = Flag()
        self.left.set()
        self.pid = os.getpid()
        self._reached = [IDLE]  # phases so far; appending is one call in C, so a start cannot undo a stop that interrupts it
        self._deadline = self._failing_deadline = float("inf")  # after a stop: deadline of exporters, and of exporters that only fail
        self.ticker = ticker
        self._deliveries: dict[ExportWorker, Delivery] = {}
        self._streams: dict[int, ref[Stream]] = {}
        self._meter, self._metered = Meter(), 0  # energy of all devices, and the number of the last row included
        self._joined = self._judged = False
        self._moment = 0.0, 0  # time of the last tick, on the monitor's clock and in nanoseconds since 1970
        self._ticks = self._missed = self._timed_out = 0
        self._silent: dict[str, str] = {}  # reason by source that did not answer the last tick
        self._warn = WarnOnce()

    @property
    def phase(self) -> int:
        """The current phase, from ``IDLE`` to ``STOPPED``."""
        return max(self._reached)

    @property
    def running(self) -> bool:
        """Whether it is started and not being stopped."""
        return BEGINNING <= self.phase <= RUNNING

    @property
    def workers(self) -> tuple[ExportWorker, ...]:
        """The workers of its exporters."""
        return tuple(self._deliveries)

    @property
    def error(self) -> str:
        """Why no reading could be taken, or which sources did not answer the last one, in words; empty if there is no problem."""
        return self.failure or "; ".join(f"{name}: {why}" for name, why in self._silent.items())

    def take(self, snapshot: Snapshot, at: float, tick: bool, taken: Taken | None = None) -> None:
        """Store a reading, update windows, evaluate rules, and pass it to exporters and streams.

        Args:
            snapshot: The reading.
            at: Its time on the monitor's clock.
            tick: Whether it is a tick's reading, which is exported, or only a requested one.
            taken: Details of a reading that is shared with other processes.
        """
        if self.paused or self.phase == STOPPED or at < self._since:
            return
        newest = taken is None or taken.newest
        if newest:
            snapshot = self._with_extra(snapshot)
        row = self.ring.add(snapshot, at, joined=self._joined, tick=tick)
        self._judged = self._judged and self._joined
        self._joined, self.failure = True, ""
        unread = self.windows.note(row)
        if row.number - self._metered >= PENDING:
            self._meter_rows()
        self.ring.unread = min(unread, self._metered) + 1
        if not tick:
            return
        self._ticks += 1
        self._timed_out += "timed_out" in [status.status for status in snapshot.backends]
        self._show(snapshot)
        steps: tuple[Step, ...] = ()
        due = self.phase == STOPPING or not self._judged or self.for_all is None or at >= self.for_all.due
        # The process that reads for others receives their steps at each reading. Without exporters or streams, they wait for the rules.
        if newest and self.steps.waiting and (due or taken is None or taken.whole is None or self.delivers):
            self._meter_rows()
            steps = self.steps.take(self._meter)
        findings = self._judge(snapshot, row, steps, taken, due)
        self._judged = True
        self._moment = at, snapshot.time_ns
        windows = self.windows.spans(*self._moment)
        if self._deliveries:
            self._put(Record(snapshot, self._labels, steps, findings=findings, windows=windows))
        for stream in alive(self._streams):
            stream.put(snapshot)

    def _judge(self, snapshot: Snapshot, row: Row, steps: Sequence[Step], taken: Taken | None, due: bool) -> Findings:
        """Evaluate this monitor's rules on a reading, and the default rules for all processes if this process reads for them.

        If this monitor has the default rules and another process evaluates them for all, that process's findings are returned.
        """
        last, received = self.phase == STOPPING, None if taken is None else taken.findings
        if taken is not None and taken.whole is not None and taken.seen is not None and self.for_all is not None:
            whole = row_of(taken.whole, row.at, row.joined) if due and taken.whole.header is not row.header else row
            received = taken.seen(self.for_all.judge(taken.whole, whole, steps, self._judged, last=last))
        if received is None or self.for_all is not self.findings:
            self._shared_findings = None
            return self.findings.judge(snapshot, row, steps, self._judged, last=last)
        self._shared_findings = received
        return received

    @property
    def found(self) -> Findings:
        """The findings up to the last reading."""
        return self.findings.findings if self._shared_findings is None else self._shared_findings

    @property
    def delivers(self) -> bool:
        """Whether there are exporters or streams, which need each reading."""
        return bool(self._deliveries or alive(self._streams))

    @property
    def kept(self) -> float:
        """Seconds for which readings of other processes must be kept for this run."""
        return float("inf") if self.windows.open or self.steps.many else self.ring.span(self._interval)

    def _meter_rows(self) -> None:
        """Add the rows since the last call to the energy of all devices."""
        rows = self.ring.after(self._metered)
        # Energy is needed only for logged steps. Without any, the last row is enough to begin with.
        if self.steps.used:
            self._meter.add(rows)
            self._metered = rows[-1].number if rows else self._metered
        elif rows:
            self._meter, self._metered = Meter(), rows[-1].number - 1

    def miss(self, ticks: int) -> None:
        """Count missed readings."""
        if not self.paused:
            self._missed += ticks

    def fail(self, words: str) -> None:
        """Record that a reading could not be taken."""
        self._joined = False  # the energy used until the next reading is unknown
        if words != self.failure:
            self.failure = words
            log.warning("no reading: %s", words)

    def begin(self, workers: Iterable[ExportWorker]) -> None:
        """Open the exporters and take the first reading, both in the background."""
        try:
            self.left.clear()
            self._reached.append(BEGINNING)
            _running.add(self)
            stop_all_at_exit()
            for worker in workers:
                self._deliveries[worker] = worker.start()
            self.ticker.join(self)
            self._reached.append(RUNNING)
        finally:
            if self.phase != RUNNING:  # interrupted by Ctrl-C, or stopped by a signal handler
                self.end()

    def request(self) -> bool:
        """Request a reading soon. Return whether one will come."""
        if not self.running:
            return False
        self.ticker.request()
        return not (self.paused or self.failure)

    def pause(self) -> None:
        """Ignore readings from now on. Windows that have ended are closed, because they would wait for a reading."""
        self.paused = True
        self.windows.close_ended()

    def resume(self) -> None:
        """Accept readings again, beginning with one at once."""
        if self.paused:
            self._since = time.monotonic() if self._shared else self._since
            self._joined = self.paused = False
        self.request()

    def look(self, depth: int) -> None:
        """Take the readings of other processes, unless they are taken at each tick anyway.

        Args:
            depth: ``NEWEST``, ``ALL`` or ``STEPS``.
        """
        if self._shared and self.running:
            self.ticker.look(depth)

    def peek(self, taken: Taken) -> None:
        """Make another process's newest reading the latest one. It is stored only when all readings are taken."""
        if not (self.paused or self.phase == STOPPED or taken.at < max(self._since, self._moment[0])):
            self._show(self._with_extra(_without_dict(taken.snapshot)))

    def _show(self, snapshot: Snapshot) -> None:
        """Make a reading the latest one."""
        self.latest = snapshot
        silent = [status for status in snapshot.backends if status.silent]
        self._silent = {status.name: status.detail for status in silent}
        for status in silent:
            words = "source %s: %s (run `accelmetrics doctor` for advice)"
            self._warn((status.name, status.status), words, status.name, status.detail)

    def _with_extra(self, snapshot: Snapshot) -> Snapshot:
        """Return a reading with the metrics of the program itself added."""
        # A new snapshot: other monitors share the given one.
        found = None if self._extra is None else guarded(self._extra, snapshot).value
        return snapshot.with_metrics(found) if found else snapshot

    def follow(self, stream: Stream) -> None:
        """Pass every snapshot to a stream from now on, or the end if there will be none."""
        # A weak reference: a loop that is left by break drops its stream, which then costs nothing. Without a callback, which would swallow
        # a KeyboardInterrupt.
        self._streams[id(stream)] = ref(stream)
        self.ticker.notice()
        if self.phase in {IDLE, STOPPED}:
            stream.put(None)

    def add(self, worker: ExportWorker) -> None:
        """Start another exporter."""
        delivery = self._deliveries[worker] = worker.start()
        self.ticker.notice()
        if not self.running:  # stopped meanwhile
            delivery.close(self._deadline, self._failing_deadline)

    def remove(self, worker: ExportWorker) -> None:
        """End an exporter without delivering its queue."""
        self._deliveries.pop(worker, None)
        worker.drop()

    @property
    def status(self) -> MonitorStatus:
        """The counters since the start."""
        exporters = tuple(worker.status for worker in self.workers)
        return MonitorStatus(self._interval, self._ticks, self._missed, self._timed_out, exporters)

    def leave(self, deadline: float) -> float:
        """Request the last reading, after which the run ends.

        Args:
            deadline: Deadline of the exporters, on ``time.monotonic``.

        Returns:
            Deadline of the last reading.
        """
        now = time.monotonic()
        self._deadline = min(deadline, self._deadline)
        self._failing_deadline = min(deadline, now + LONGEST_FAILING_STOP, self._failing_deadline)
        if not self.left.is_set():
            self._reached.append(STOPPING)
            self.ticker.leave(self)
        return min(now + max(0.0, min(LAST_READING_SHARE * (deadline - now), LAST_READING * self._timeout)), self._failing_deadline)

    def end(self) -> None:
        """End the run: close windows and streams, deliver the steps logged since the last reading, and close the exporters."""
        self.ticker.drop(self)
        before = self.phase
        self._reached.append(STOPPED)
        if before not in {IDLE, STOPPED}:
            self.windows.close_ended()
            for stream in alive(self._streams):
                stream.put(None)
            meter = copy.deepcopy(self._meter)  # the ticker's thread may still change the original, if its last reading is late
            meter.add(self.ring.after(self._metered))
            steps = self.steps.take(meter, everything=True, deadline=self._failing_deadline)
            known = self.found
            # Guarded, because this runs on the program's thread while a late last reading may be evaluated on the ticker's.
            findings = known if self._shared_findings is not None else guarded(self.findings.judge_steps, steps).value or known
            windows = self.windows.spans(*self._moment)
            if self.latest is not None and (steps or windows or findings is not known):
                self._put(Record(self.latest, self._labels, steps, findings=findings, windows=windows))
        for delivery in tuple(self._deliveries.values()):
            delivery.close(self._deadline, self._failing_deadline)
        self.left.set()

    def join(self) -> None:
        """Wait until the exporters are closed or their deadline passes."""
        if self._shared:  # wait until another process can take over, or the shared files are removed
            self.ticker.wait_closed(min(self._failing_deadline - time.monotonic(), LEAVING))
        for worker, delivery in tuple(self._deliveries.items()):
            worker.join(delivery)
        if not on_exporter_thread():  # on such a thread nothing was awaited, so the interpreter's exit has to wait
            _running.discard(self)

    def _put(self, record: Record) -> None:
        """Add the status and the holders to a record, and queue it for all exporters."""
        attribution = self._attribution
        holders = NO_HOLDERS if attribution is None else guarded(attribution, record.snapshot).value or NO_HOLDERS
        record = record._replace(monitor=self.status, holders=holders)
        for worker in self.workers:
            worker.put(record)


def end_all(runs: Sequence[Run], deadline: float) -> None:
    """Stop several runs concurrently, with one deadline. Repeated or concurrent calls are harmless.

    At most half of the time is for the last readings. The exporters of a run get the time that is left after its last reading.

    Args:
        runs: The runs.
        deadline: Deadline on ``time.monotonic``.
    """
    waiting = [(run.leave(deadline), run) for run in runs]
    for until, run in sorted(waiting, key=itemgetter(0)):
        run.left.wait(until - time.monotonic())
        run.end()
    for run in runs:
        run.join()


_running: WeakSet[Run] = WeakSet()


def _stop_all() -> None:
    """Stop the monitors of this process that are still running when the interpreter exits."""
    runs = [run for run in list(_running) if run.pid == os.getpid()]
    guarded(end_all, runs, time.monotonic() + EXIT_TIMEOUT)


def stop_all_at_exit() -> None:
    """Register the stop of all monitors at exit, to run before all functions registered so far."""
    # atexit runs the latest registration first. A tracker's library also ends its run at exit, and an exporter may load it while opening:
    # so this is called again after each opening.
    atexit.unregister(_stop_all)
    atexit.register(_stop_all)


class MonitorClock(SystemClock):
    """The system's clock with a wait. Tests replace it."""

    def wait(self, woken: Flag, seconds: float) -> None:
        """Wait so many seconds on this clock, or until the flag is set."""
        woken.wait(seconds)


class Ticker:
    """The thread that reads a sampler at a steady pace and passes the readings to its observers, the runs of monitors.

    The thread runs as long as there are observers, and calls their methods.

    Args:
        make: Function that creates the sampler; called when the thread starts.
        interval: Seconds between two ticks.
        clock: Clock of the schedule.
    """

    def __init__(self, make: Callable[[], Sampler | NodeReader], interval: float, clock: MonitorClock) -> None:
        self._make = make
        self._interval = interval
        self._clock = clock
        self._woken = Flag()
        self._thread = OnDemandThread("accelmetrics-monitor", lambda: self._observers, self._run)
        self._observers: dict[Run, None] = {}
        self._joined: set[Run] = set()  # observers that need a first reading
        self._leaving: set[Run] = set()  # observers that need a last reading
        self._requested = False
        self._due = 0.0  # time of the next tick
        self._closed = Flag()  # cleared while there is a sampler
        self._closed.set()
        self._node: NodeReader | None = None
        self._looks: deque[tuple[Flag, int]] = deque()  # callers that wait for readings of other processes, with the depth they need

    def join(self, observer: Run) -> None:
        """Add an observer, and take a first reading for it at once."""
        self._observers[observer] = None
        self._joined.add(observer)
        self._woken.set()
        failure = self._thread.start().failure
        if failure is not None:
            observer.fail(f"no thread can be started: {failure.detail}")
            self._end(observer)

    def leave(self, observer: Run) -> None:
        """Take a last reading for an observer, beginning after this call, and then end it. If none will be taken, end it at once."""
        self._leaving.add(observer)
        self._woken.set()
        if self._thread.is_current or not self._thread.alive or observer not in self._observers:
            self._end(observer)

    def drop(self, observer: Run) -> None:
        """Remove an observer."""
        self._observers.pop(observer, None)
        self._joined.discard(observer)
        self._leaving.discard(observer)
        self._woken.set()

    def wait_closed(self, seconds: float) -> None:
        """Wait at most so many seconds until the sampler is closed. Do not wait while there are observers, or on the ticker's thread."""
        if not self._observers and not self._thread.is_current:
            self._closed.wait(seconds)

    def request(self) -> None:
        """Request a reading soon, in addition to the ticks."""
        if self._node is None or self._node.request() or self._ticks(self._node):
            self.demand()

    def demand(self) -> None:
        """Make the thread act at once: a reading is requested, or this process has become the one that reads."""
        self._requested = True
        self._woken.set()

    def wake(self) -> None:
        """Wake the thread, to check its state."""
        self._woken.set()

    def notice(self) -> None:
        """Take note of a new exporter or stream, which needs each reading."""
        if self._node is not None and not self._node.leads:
            self.demand()

    def look(self, depth: int) -> None:
        """Pass the readings that other processes have taken so far to the observers, unless this happens at each tick anyway.

        Args:
            depth: ``NEWEST``, ``ALL`` or ``STEPS``.
        """
        node = self._node
        if node is not None and not node.leads and not self._ticks(node) and not self._thread.is_current:
            done = Flag()
            self._looks.append((done, depth))
            self._woken.set()
            done.wait(LOOK)

    def _end(self, observer: Run) -> None:
        self.drop(observer)
        guarded(observer.end)

    def _run(self) -> None:
        """Take readings until there are no observers. Runs on the ticker's thread."""
        self._closed.clear()
        made = guarded(self._make)
        reader, failure = made.value, made.failure
        if reader is not None:
            self._due = self._clock.monotonic()
            self._node = None if isinstance(reader, Sampler) else reader
            failure = guarded(self._read, reader).failure
            self._node = None
            guarded(reader.close)
            while self._looks:
                self._looks.popleft()[0].set()
        self._closed.set()
        if failure is not None:  # otherwise, current observers joined just now and a new thread serves them
            for observer in tuple(self._observers):
                guarded(observer.fail, failure.detail)
                self._end(observer)

    def _read(self, reader: Sampler | NodeReader) -> None:
        """Take readings until there are no observers, or the reader fails."""
        while self._observers:
            # Copied before the reading: an observer that leaves during it needs another one, which begins after its call.
            leaving = self._leaving.copy()
            waiting = self._joined | leaving
            self._joined -= waiting
            requested, self._requested = bool(waiting) or self._requested, False
            began = self._clock.monotonic()
            if isinstance(reader, Sampler):
                self._tick(reader, began, waiting)
            else:
                self._share(reader, began, waiting, requested)
            for observer in leaving:
                self._end(observer)
            reads = self._node is None or self._node.leads
            self._wait(began, self._clock.monotonic() - began if reads else 0.0)

    def _tick(self, sampler: Sampler, began: float, waiting: set[Run]) -> None:
        """Take a reading, and schedule the next one.

        Args:
            sampler: The sampler.
            began: The current time.
            waiting: Observers that need this reading.
        """
        due = began >= self._due - TOLERANCE
        if not all(observer.paused for observer in tuple(self._observers)):
            outcome = guarded(sampler.sample)
            snapshot = None if outcome.value is None else _without_dict(outcome.value)
            at = began if snapshot is None else moment_of(snapshot, began, self._clock.monotonic())
            for observer in tuple(self._observers):  # the current ones: some may have been removed during the reading
                failure = outcome.failure
                if snapshot is not None:
                    failure = guarded(observer.take, snapshot, at, due or observer in waiting).failure
                if failure is not None:
                    guarded(observer.fail, failure.detail)
        if due:
            self._due += self._interval
            missed = int((self._clock.monotonic() - self._due) // self._interval)
            if missed > 0:
                self._due += missed * self._interval
                for observer in tuple(self._observers):
                    guarded(observer.miss, missed)

    def _share(self, node: NodeReader, began: float, waiting: set[Run], requested: bool) -> None:
        """Read for the other processes that share readings, or take the readings of the process that does.

        Their readings are taken at each tick if this process has exporters or streams, otherwise only when a caller asks for them.

        Args:
            node: The reader.
            began: The current time.
            waiting: Observers that need the newest reading.
            requested: Whether a new reading is requested.
        """
        looks = [self._looks.popleft() for _ in range(len(self._looks))]
        idle = not (requested or node.leads or self._ticks(node) or any(depth for _, depth in looks))
        if idle:
            newest = guarded(node.peek).value if looks else None
            if newest is not None:
                for observer in tuple(self._observers):
                    guarded(observer.peek, newest)
            # Readings are taken in time before they are overwritten, if an observer needs them later.
            kept = max([observer.kept for observer in tuple(self._observers)], default=0.0)
            idle = newest is not None or not (looks or node.elected or kept >= 2 * node.slack - 1.0)
        if not idle:
            steps = self._ticks(node) or any(depth == STEPS for _, depth in looks)
            outcome = guarded(node.take, requested and (bool(waiting) or node.leads), steps)
            for taken in outcome.value or []:
                for observer in tuple(self._observers):
                    tick = taken.tick or (taken.newest and observer in waiting)
                    failed = guarded(observer.take, _without_dict(taken.snapshot), taken.at, tick, taken).failure
                    if failed is not None:
                        guarded(observer.fail, failed.detail)
                    if observer.for_all is not None and taken.whole is not None:
                        node.findings = observer.for_all.findings
            if outcome.failure is not None:
                for observer in tuple(self._observers):
                    guarded(observer.fail, outcome.failure.detail)
        for done, _ in looks:
            done.set()
        self._due = node.due if node.leads or self._ticks(node) else began + min(node.slack, LONGEST_REST)

    def _ticks(self, node: NodeReader) -> bool:
        """Return whether this process needs each reading or each message of other processes."""
        return node.channel.has_subscriber or any(observer.delivers for observer in tuple(self._observers))

    def _wait(self, last: float, spent: float) -> None:
        """Wait until the next tick, or until a reading is requested and enough time has passed since the last one.

        Meanwhile, send logged steps to the other processes that share readings.

        Args:
            last: Time at which the last reading began.
            spent: Its duration in seconds.
        """
        while True:
            self._woken.clear()  # before checking, so that a later event sets it again
            until = self._due
            if self._leaving or self._joined:
                until = min(until, last + REQUEST_PAUSE)
            elif self._looks:
                return
            elif self._requested:
                until = min(until, last + max(REQUEST_PAUSE, REQUEST_SHARE * spent))
            now = self._clock.monotonic()
            if now >= until - TOLERANCE or not self._observers:
                return
            if self._node is not None:
                until = min(until, self._node.channel.tell(now))
            self._clock.wait(self._woken, until - now)


def _without_dict(snapshot: Snapshot) -> Snapshot:
    """Return a copy of a snapshot without its dict of metrics."""
    # The dict is several times as large as the numbers, and hundreds of snapshots may wait for an exporter.
    return Snapshot.of(snapshot.header, snapshot.numbers, snapshot.time_ns, snapshot.backends, snapshot.processes)


# Weak values: a ticker exists as long as a monitor uses it. The key contains the process, because a forked child needs a new thread.
_shared: WeakValueDictionary[tuple[int, Hashable], Ticker] = WeakValueDictionary()


def shared_ticker(key: Hashable, make: Callable[[], Ticker]) -> Ticker:
    """Return the ticker that all monitors of this process with the same key share."""
    mark = (os.getpid(), key)
    return _shared.get(mark) or _shared.setdefault(mark, make())
