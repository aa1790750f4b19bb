"""The thread that reads, and a monitor between one start and the stop after it: what is handed to it, and where that goes.

A :class:`Ticker` takes readings at a steady pace, for all monitors of a process that want the same ones. The schedule is absolute: the
n-th reading is due n intervals after the first, however long readings take; those that could not be taken in time are counted, not made
up for. Between two ticks a reading is taken on request, for windows that begin and end and for monitors that join and leave.

Everything that begins anew with a start is in a :class:`Run`: counters, what readings are compared with. What lasts longer is handed to
each.

Neither has a lock, and each step that changes their state is one call in C: ``Monitor.stop`` may interrupt any call of the program at any
point.
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
from accelmetrics.backends.guard import Outcome, WarnOnce, guarded
from accelmetrics.monitor.export_worker import Delivery, ExportWorker, on_exporter_thread
from accelmetrics.monitor.findings import FindingEngine
from accelmetrics.monitor.steps import StepLog
from accelmetrics.monitor.window import PENDING, Windows, living
from accelmetrics.sampling.sampler import Sampler, moment_of
from accelmetrics.sampling.threads import Flag, OnDemandThread
from accelmetrics.schemas.log import log
from accelmetrics.schemas.record import NO_HOLDERS, Findings, HoldersOf, MonitorStatus, Record, Step, StepSource
from accelmetrics.schemas.ring import Ring, Row, row_of
from accelmetrics.schemas.snapshot import Snapshot
from accelmetrics.schemas.statistics import Meter

if TYPE_CHECKING:
    from accelmetrics.sampling.node import NodeReader, Taken

LAST_READING = 1.5
"""In timeouts: how long a stop waits for the last reading."""
LAST_READING_SHARE = 0.5
"""Of a stop's time: how much of it that wait takes at most. The rest is the exporters'."""
HOPELESS = 2.0
"""Seconds that a stop takes at most where nothing can be delivered any more: the last reading hangs, exporters only fail."""
EXIT_TIMEOUT = 1.8
"""Seconds that the interpreter's exit waits at most, for all monitors together."""
LEAVING = 1.0
"""Seconds that a stop waits at most until other processes have been left, with which readings are shared."""
REQUEST_PAUSE = 0.02
"""Seconds from one reading to a requested one: requests that come more often are answered together."""
REQUEST_SHARE = 10
"""The same in durations of the last reading: however often windows begin and end, readings cost a tenth of the time at most."""
LOOK = 2.0
"""Seconds that somebody who looks waits until what other processes have read is here."""
LONGEST_REST = 60.0
"""Seconds after which a process that nobody looks at sees whether it has to take what others have read."""
IDLE, BEGINNING, RUNNING, STOPPING, STOPPED = range(5)
"""How far a run has come; it never goes back. Exporters are being opened; readings are taken; the last one is waited for; none will come,
and exporters deliver what is queued until their time is up."""
NEWEST, ALL, STEPS = range(3)
"""What somebody looks at: the newest reading of other processes, all that they have read, what they have logged too."""
TOLERANCE = 1e-6
"""Seconds by which a tick may come early: clocks are floats."""
WAITING = 64
"""Snapshots that wait for a slow loop; the oldest go."""

Extra = Callable[[Snapshot], Mapping[str, int | float]]
"""Gives metrics of the watched program itself."""


class Stream:
    """The snapshots from now on, for one ``async for``. Ends when the monitor stops, after what is still waiting.

    The monitor knows it only as long as the loop does: one that is left by ``break`` costs nothing any more.

    Attributes:
        dropped: Snapshots that the loop was too slow for.
    """

    def __init__(self) -> None:
        import asyncio  # where there is a loop it is loaded; elsewhere it would be 6 MiB for nothing

        self.dropped = 0
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Snapshot | None] = deque(maxlen=WAITING)  # None is the end, and stays
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
        """Hand over a snapshot, or None for the end, from any thread. A loop that has been closed gets nothing more."""
        self.dropped += len(self._waiting) == WAITING
        self._waiting.append(snapshot)
        if self._loop.is_closed():
            self._waiting.clear()
        elif len(self._waiting) == 1:  # what waited before has woken it
            with suppress(RuntimeError):  # closed just now
                self._loop.call_soon_threadsafe(self._woken.set)


class Run:
    """Observes a ticker. ``take``, ``miss``, ``fail`` and ``end`` are called on the ticker's thread, the rest by the program.

    Without a lock: a signal handler may stop the monitor wherever it interrupts the program.

    Args:
        ticker: What takes the readings.
        interval: Seconds between two ticks.
        timeout: Seconds within which a reading is answered.
        labels: Travel with every record.
        shared: Whether readings are shared with other processes.
        ring: As the attributes, like the next three.
        windows: Where readings are summarised.
        steps: What the program logs.
        findings: Judges readings by rules.
        extra: Gives metrics of the program itself, at every reading.
        attribution: Tells who holds the devices of a reading.
        for_all: Judges readings by the default rules for all processes that share them; the same as ``findings`` without rules of its own.

    Attributes:
        ring: Where readings are remembered, like the next three for one run after another.
        windows: Where readings are summarised.
        steps: What the program logs.
        findings: Judges readings by rules.
        latest: The last reading, None before the first.
        failure: Why no reading could be taken, in words; empty while they are taken.
        paused: Whether readings are passed over.
        left: Set while no reading is to come: before it begins, and when it has stopped.
        pid: The process in which its threads are.
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
        extra: Extra | None,
        attribution: HoldersOf | None,
        for_all: FindingEngine | None = None,
    ) -> None:
        self.ring, self.windows, self.steps, self.findings = ring, windows, steps, findings
        self._interval, self._timeout, self._labels, self._shared = interval, timeout, labels, shared
        self._extra, self._attribution, self.for_all = extra, attribution, for_all
        self._told: Findings | None = None  # by the process that judges for all
        self.latest: Snapshot | None = None
        self.failure = ""
        self.paused = False
        self._since = float("-inf")  # what was read before is passed over
        self.left = Flag()
        self.left.set()
        self.pid = os.getpid()
        self._reached = [IDLE]  # each is appended in one call in C: no start undoes the stop that interrupts it
        self._by = self._hopeless_by = float("inf")  # until when exporters may deliver, and those that only fail, once it was told to stop
        self._ticker = ticker
        self._deliveries: dict[ExportWorker, Delivery] = {}
        self._streams: dict[int, ref[Stream]] = {}
        self._meter, self._metered = Meter(), 0  # the energy of all devices, and the number of the last row in it
        self._joined = self._judged = False
        self._moment = 0.0, 0  # of the last tick, on the monitor's clock and in nanoseconds since 1970
        self._ticks = self._missed = self._timed_out = 0
        self._silent: dict[str, str] = {}  # by source that did not answer the last tick, why
        self._warn = WarnOnce()

    @property
    def phase(self) -> int:
        """How far it has come."""
        return max(self._reached)

    @property
    def running(self) -> bool:
        """Whether it has begun, and was not told to stop."""
        return BEGINNING <= self.phase <= RUNNING

    @property
    def workers(self) -> tuple[ExportWorker, ...]:
        """Where records go."""
        return tuple(self._deliveries)

    @property
    def error(self) -> str:
        """Why no reading could be taken, or which sources did not answer the last one, in words; empty while all is well."""
        return self.failure or "; ".join(f"{name}: {why}" for name, why in self._silent.items())

    def take(self, snapshot: Snapshot, at: float, tick: bool, taken: Taken | None = None) -> None:
        """Remember, summarise and hand out a reading; with what is known of one that is shared with other processes."""
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
        # Who reads for others has the steps of all, at each reading: unless somebody is handed them, they wait for the rules.
        if newest and self.steps.waiting and (due or taken is None or taken.whole is None or self.delivers):
            self._meter_rows()
            steps = self.steps.take(self._meter)
        findings = self._judge(snapshot, row, steps, taken, due)
        self._judged = True
        self._moment = at, snapshot.time_ns
        windows = self.windows.spans(*self._moment)
        if self._deliveries:
            self._put(Record(snapshot, self._labels, steps, findings=findings, windows=windows))
        for stream in living(self._streams):
            stream.put(snapshot)

    def _judge(self, snapshot: Snapshot, row: Row, steps: Sequence[Step], taken: Taken | None, due: bool) -> Findings:
        """Have rules judge a reading, unless another process does so for all: those of this monitor, and those for all where it reads."""
        last, told = self.phase == STOPPING, None if taken is None else taken.findings
        if taken is not None and taken.whole is not None and taken.seen is not None and self.for_all is not None:
            whole = row_of(taken.whole, row.at, row.joined) if due and taken.whole.header is not row.header else row
            told = taken.seen(self.for_all.judge(taken.whole, whole, steps, self._judged, last=last))
        if told is None or self.for_all is not self.findings:
            self._told = None
            return self.findings.judge(snapshot, row, steps, self._judged, last=last)
        self._told = told
        return told

    @property
    def found(self) -> Findings:
        """What rules have found until the last reading."""
        return self.findings.findings if self._told is None else self._told

    @property
    def delivers(self) -> bool:
        """Whether somebody is to be handed each reading."""
        return bool(self._deliveries or living(self._streams))

    @property
    def looks(self) -> float:
        """Seconds for which readings of other processes must be kept until it looks."""
        return float("inf") if self.windows.open or self.steps.many else self.ring.span(self._interval)

    def _meter_rows(self) -> None:
        """Add the rows since the last call to the energy of all devices; where the program logs nothing, keep the last one alone."""
        rows = self.ring.after(self._metered)
        if self.steps.used:
            self._meter.add(rows)
            self._metered = rows[-1].number if rows else self._metered
        elif rows:
            self._meter, self._metered = Meter(), rows[-1].number - 1

    def miss(self, ticks: int) -> None:
        """Count readings that were due and could not be taken."""
        if not self.paused:
            self._missed += ticks

    def fail(self, words: str) -> None:
        """Note that a reading could not be taken: what is used until the next one is not known."""
        self._joined = False
        if words != self.failure:
            self.failure = words
            log.warning("no reading: %s", words)

    def begin(self, workers: Iterable[ExportWorker]) -> None:
        """Open the exporters and take the first reading, in the background."""
        try:
            self.left.clear()
            self._reached.append(BEGINNING)
            _running.add(self)
            stop_all_at_exit()
            for worker in workers:
                self._deliveries[worker] = worker.start()
            self._ticker.join(self)
            self._reached.append(RUNNING)
        finally:
            if self.phase != RUNNING:  # Ctrl-C came between, or a signal handler has stopped it
                self.end()

    def request(self) -> bool:
        """Have a reading taken soon; whether one will come."""
        if not self.running:
            return False
        self._ticker.request()
        return not (self.paused or self.failure)

    def pause(self) -> None:
        """Pass readings over; windows that have ended wait for none."""
        self.paused = True
        self.windows.settle()

    def resume(self) -> None:
        """Go on, beginning with a reading at once."""
        if self.paused:
            self._since = time.monotonic() if self._shared else self._since
            self._joined = self.paused = False
        self.request()

    def demand(self) -> None:
        """Have the ticker do at once what there is to do: another process asks for a reading, or this one is to read from now on."""
        self._ticker.demand()

    def wake(self) -> None:
        """Have the ticker's thread see what it waits for."""
        self._ticker.wake()

    def hear(self, at: float, time_ns: int, step: int | None, values: Mapping[str, float], source: StepSource) -> None:
        """Take a step that another process of the job has logged."""
        self.steps.add(at, time_ns, step, values, source)

    def look(self, depth: int) -> None:
        """Take what other processes have read, where nobody does so at each tick.

        Args:
            depth: The newest reading alone, all of them, or what other processes have logged too.
        """
        if self._shared and self.running:
            self._ticker.look(depth)

    def peek(self, taken: Taken) -> None:
        """Show the newest reading. It is remembered with the others, when somebody looks at those."""
        if not (self.paused or self.phase == STOPPED or taken.at < max(self._since, self._moment[0])):
            self._show(self._with_extra(_without_dict(taken.snapshot)))

    def _show(self, snapshot: Snapshot) -> None:
        """Make a reading the latest one."""
        self.latest = snapshot
        silent = [status for status in snapshot.backends if status.silent]
        self._silent = {status.name: status.detail for status in silent}
        for status in silent:
            words = "source %s: %s (`accelmetrics doctor` says what to do)"
            self._warn((status.name, status.status), words, status.name, status.detail)

    def _with_extra(self, snapshot: Snapshot) -> Snapshot:
        """Return a reading with the metrics of the program itself: a new one, as other monitors may have been given the same."""
        found = None if self._extra is None else guarded(self._extra, snapshot).value
        return snapshot.with_metrics(found) if found else snapshot

    def follow(self, stream: Stream) -> None:
        """Hand a loop every snapshot from now on, or the end when there will be none."""
        self._streams[id(stream)] = ref(stream)  # without a callback, which would swallow Ctrl-C
        self._ticker.notice()
        if self.phase in {IDLE, STOPPED}:
            stream.put(None)

    def add(self, worker: ExportWorker) -> None:
        """Deliver to one more from now on."""
        delivery = self._deliveries[worker] = worker.start()
        self._ticker.notice()
        if not self.running:  # stopped in between
            delivery.close(self._by, self._hopeless_by)

    def remove(self, worker: ExportWorker) -> None:
        """Deliver to one no more."""
        self._deliveries.pop(worker, None)
        worker.drop()

    @property
    def status(self) -> MonitorStatus:
        """The counts since the start."""
        exporters = tuple(worker.status for worker in self.workers)
        return MonitorStatus(self._interval, self._ticks, self._missed, self._timed_out, exporters)

    def leave(self, by: float) -> float:
        """Ask for the last reading, after which it ends. Exporters have until a moment of ``time.monotonic`` to deliver.

        Returns:
            Until when that reading is waited for.
        """
        now = time.monotonic()
        self._by, self._hopeless_by = min(by, self._by), min(by, now + HOPELESS, self._hopeless_by)
        if not self.left.is_set():
            self._reached.append(STOPPING)
            self._ticker.leave(self)
        return min(now + max(0.0, min(LAST_READING_SHARE * (by - now), LAST_READING * self._timeout)), self._hopeless_by)

    def end(self) -> None:
        """Take no reading from now on: end what follows, deliver what was logged since the last one, and close the exporters."""
        self._ticker.drop(self)
        before = self.phase
        self._reached.append(STOPPED)
        if before not in {IDLE, STOPPED}:
            self.windows.settle()
            for stream in living(self._streams):
                stream.put(None)
            meter = copy.deepcopy(self._meter)  # the ticker's thread may be late with its last reading
            meter.add(self.ring.after(self._metered))
            steps = self.steps.take(meter, everything=True, by=self._hopeless_by)
            known = self.found
            # On the program's thread, where a last reading that is late may be judged at the same time.
            findings = known if self._told is not None else guarded(self.findings.judge_steps, steps).value or known
            windows = self.windows.spans(*self._moment)
            if self.latest is not None and (steps or windows or findings is not known):
                self._put(Record(self.latest, self._labels, steps, findings=findings, windows=windows))
        for delivery in tuple(self._deliveries.values()):
            delivery.close(self._by, self._hopeless_by)
        self.left.set()

    def join(self) -> None:
        """Wait until the exporters are closed, or their time is up."""
        if self._shared:  # others take over, or find nothing that is left behind
            self._ticker.wait_closed(min(self._hopeless_by - time.monotonic(), LEAVING))
        for worker, delivery in tuple(self._deliveries.items()):
            worker.join(delivery)
        if not on_exporter_thread():  # else the interpreter's exit has to wait for them
            _running.discard(self)

    def _put(self, record: Record) -> None:
        """Hand a record to the exporters, with what it lacks."""
        tell = self._attribution
        holders = NO_HOLDERS if tell is None else guarded(tell, record.snapshot).value or NO_HOLDERS
        record = record._replace(monitor=self.status, holders=holders)
        for worker in self.workers:
            worker.put(record)


def end_all(runs: Sequence[Run], by: float) -> None:
    """Stop runs side by side, within one limit. Doing it again, or in two threads at once, changes nothing.

    Half of the time is for last readings. The exporters of each run have what is left when its own has come.

    Args:
        runs: Which.
        by: The moment of ``time.monotonic`` at which the wait ends.
    """
    waiting = [(run.leave(by), run) for run in runs]
    for until, run in sorted(waiting, key=itemgetter(0)):
        run.left.wait(until - time.monotonic())
        run.end()
    for run in runs:
        run.join()


_running: WeakSet[Run] = WeakSet()


def _stop_all() -> None:
    """Deliver what is queued when the interpreter exits beside monitors that were not stopped."""
    runs = [run for run in list(_running) if run.pid == os.getpid()]
    guarded(end_all, runs, time.monotonic() + EXIT_TIMEOUT)


def stop_all_at_exit() -> None:
    """Have monitors stopped before what was registered until now: at exit a tracker's library ends its run and its service too.

    Called again when an exporter has opened, which may have loaded such a library.
    """
    atexit.unregister(_stop_all)
    atexit.register(_stop_all)


class MonitorClock(SystemClock):
    """The machine's clock, on which a thread can wait; tests have another."""

    def wait(self, woken: Flag, seconds: float) -> None:
        """Return when so many seconds have passed on this clock, or the flag is set."""
        woken.wait(seconds)


class Ticker:
    """One sampler read at one pace, for as long as it has observers: the runs of monitors, whose methods it calls on its thread.

    Args:
        make: Makes the sampler; called when the thread starts.
        interval: Seconds between two ticks.
        clock: The clock of the schedule.
    """

    def __init__(self, make: Callable[[], Sampler | NodeReader], interval: float, clock: MonitorClock) -> None:
        self._make = make
        self._interval = interval
        self._clock = clock
        self._woken = Flag()
        self._thread = OnDemandThread("accelmetrics-monitor", lambda: self._observers, self._run)
        self._observers: dict[Run, None] = {}
        self._joined: set[Run] = set()  # owed a first reading
        self._leaving: set[Run] = set()  # owed a last one
        self._requested = False
        self._due = 0.0  # when the next tick is
        self._closed = Flag()  # not while there is a sampler
        self._closed.set()
        self._node: NodeReader | None = None
        self._looks: deque[tuple[Flag, int]] = deque()  # who looks, and at what

    def join(self, observer: Run) -> None:
        """Call an observer from now on, beginning with a reading that is taken at once."""
        self._observers[observer] = None
        self._joined.add(observer)
        self._woken.set()
        failure = self._thread.start().failure
        if failure is not None:
            observer.fail(f"no thread is to be had: {failure.detail}")
            self._end(observer)

    def leave(self, observer: Run) -> None:
        """Take one last reading for an observer, which begins after this call, and end it; at once where none will be taken."""
        self._leaving.add(observer)
        self._woken.set()
        if self._thread.is_current or not self._thread.alive or observer not in self._observers:
            self._end(observer)

    def drop(self, observer: Run) -> None:
        """Give an observer no reading any more."""
        self._observers.pop(observer, None)
        self._joined.discard(observer)
        self._leaving.discard(observer)
        self._woken.set()

    def wait_closed(self, seconds: float) -> None:
        """Wait until the sampler is closed, at most so long; not while there are observers, nor on the thread that closes it."""
        if not self._observers and not self._thread.is_current:
            self._closed.wait(seconds)

    def request(self) -> None:
        """Have a reading taken soon, besides the ticks."""
        if self._node is None or self._node.request() or self._ticks(self._node):
            self.demand()

    def demand(self) -> None:
        """Have the thread do at once what there is to do."""
        self._requested = True
        self._woken.set()

    def wake(self) -> None:
        """Have the thread see what it waits for."""
        self._woken.set()

    def notice(self) -> None:
        """Take note that somebody is to be handed each reading."""
        if self._node is not None and not self._node.leads:
            self.demand()

    def look(self, depth: int) -> None:
        """Have observers given what other processes have read until now, where nobody is to be handed each reading.

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
        """Tick until there are no observers."""
        self._closed.clear()
        made = guarded(self._make)
        failure = made.failure
        if made.value is not None:
            self._due = self._clock.monotonic()
            if isinstance(made.value, Sampler):
                failure = guarded(self._tick, made.value).failure
            else:
                self._node = made.value
                failure = guarded(self._share, made.value).failure
                self._node = None
            guarded(made.value.close)
            while self._looks:
                self._looks.popleft()[0].set()
        self._closed.set()
        if failure is not None:  # else those that are there now have joined just now
            for observer in tuple(self._observers):
                guarded(observer.fail, failure.detail)
                self._end(observer)

    def _tick(self, sampler: Sampler) -> None:
        clock = self._clock
        while self._observers:
            # An observer that leaves while a reading is taken is owed another one, which begins after that.
            leaving = self._leaving.copy()
            owed = self._joined | leaving
            self._joined -= owed
            self._requested = False
            began = clock.monotonic()
            due = began >= self._due - TOLERANCE
            if not all(observer.paused for observer in tuple(self._observers)):
                self._hand_out(guarded(sampler.sample), began, due, owed)
            for observer in leaving:
                self._end(observer)
            if due:
                self._due += self._interval
                missed = int((clock.monotonic() - self._due) // self._interval)
                if missed > 0:
                    self._due += missed * self._interval
                    for observer in tuple(self._observers):
                        guarded(observer.miss, missed)
            self._wait(began, clock.monotonic() - began)

    def _share(self, node: NodeReader) -> None:
        """Read for other processes, or take what another one reads: at ticks if somebody is handed each reading, else when one looks."""
        while self._observers:
            leaving, looks = self._leaving.copy(), [self._looks.popleft() for _ in range(len(self._looks))]
            owed = self._joined | leaving
            self._joined -= owed
            asked, self._requested = bool(owed) or self._requested, False
            began = time.monotonic()
            rests = not (asked or node.leads or self._ticks(node))
            found: list[Taken] = []
            if rests and not any(depth for _, depth in looks):
                seen = guarded(node.peek).value if looks else None
                if seen is not None:
                    for observer in tuple(self._observers):
                        guarded(observer.peek, seen)
                rests = seen is not None or not (looks or node.elected or self._kept() >= 2 * node.slack - 1.0)
            else:
                rests = False
            failure = None
            if not rests:
                outcome = guarded(node.take, asked and (bool(owed) or node.leads), self._ticks(node) or any(d == STEPS for _, d in looks))
                found, failure = outcome.value or [], outcome.failure
            for taken in found:
                for observer in tuple(self._observers):
                    tick = taken.tick or (taken.newest and observer in owed)
                    failed = guarded(observer.take, _without_dict(taken.snapshot), taken.at, tick, taken).failure
                    if failed is not None:
                        guarded(observer.fail, failed.detail)
                    if observer.for_all is not None and taken.whole is not None:
                        node.findings = observer.for_all.findings
            if failure is not None:
                for observer in tuple(self._observers):
                    guarded(observer.fail, failure.detail)
            for observer in leaving:
                self._end(observer)
            for done, _ in looks:
                done.set()
            self._due = node.due if node.leads or self._ticks(node) else began + min(node.slack, LONGEST_REST)
            self._wait(began, time.monotonic() - began if node.leads else 0.0)

    def _kept(self) -> float:
        """Return the seconds for which observers need readings of other processes, until somebody looks."""
        return max([observer.looks for observer in tuple(self._observers)], default=0.0)

    def _ticks(self, node: NodeReader) -> bool:
        """Whether somebody is to be handed each reading, or each message of other processes."""
        return node.channel.heard or any(observer.delivers for observer in tuple(self._observers))

    def _hand_out(self, outcome: Outcome[Snapshot], at: float, due: bool, owed: set[Run]) -> None:
        snapshot = outcome.value
        if snapshot is not None:
            snapshot = _without_dict(snapshot)
            at = moment_of(snapshot, at, self._clock.monotonic())
        for observer in tuple(self._observers):  # without those that were dropped meanwhile
            failure = outcome.failure
            if snapshot is not None:
                failure = guarded(observer.take, snapshot, at, due or observer in owed).failure
            if failure is not None:
                guarded(observer.fail, failure.detail)

    def _wait(self, last: float, spent: float) -> None:
        """Wait until the next tick, or until a reading is requested and enough time has passed since the last; write steps meanwhile.

        Args:
            last: When the last reading began.
            spent: Seconds that it took.
        """
        while True:
            self._woken.clear()  # before looking: what comes later sets it again
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
    """Return a snapshot without its dict, several times as large as its numbers: hundreds may wait for an exporter."""
    return Snapshot.of(snapshot.header, snapshot.numbers, snapshot.time_ns, snapshot.backends, snapshot.processes)


# Held by the monitors that use them, and gone with them. Keyed by the process too: a child of a fork makes its own.
_shared: WeakValueDictionary[tuple[int, Hashable], Ticker] = WeakValueDictionary()


def shared_ticker(key: Hashable, make: Callable[[], Ticker]) -> Ticker:
    """Return the ticker of all monitors of this process that want the same readings at the same pace."""
    mark = (os.getpid(), key)
    return _shared.get(mark) or _shared.setdefault(mark, make())
