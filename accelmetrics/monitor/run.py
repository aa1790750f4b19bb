"""A monitor between one start and the stop after it: what its ticker hands it, and where that goes.

Everything that begins anew with a start is here: counters, what readings are compared with. What lasts longer is in
:class:`MonitorState`.
"""

from __future__ import annotations

import atexit
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from enum import IntEnum
from operator import itemgetter
from weakref import WeakSet, ref

from accelmetrics.backends.guard import guarded
from accelmetrics.monitor.export_worker import Delivery, ExportWorker, on_exporter_thread
from accelmetrics.monitor.findings import FindingEngine
from accelmetrics.monitor.steps import StepLog
from accelmetrics.monitor.ticker import Ticker
from accelmetrics.monitor.window import Windows, living
from accelmetrics.sampling.threads import Flag
from accelmetrics.schemas.energy import Meter
from accelmetrics.schemas.history import History, RowMaker
from accelmetrics.schemas.named_tuple import NamedTuple
from accelmetrics.schemas.record import NO_HOLDERS, HoldersOf, MonitorStatus, Record
from accelmetrics.schemas.snapshot import Snapshot

LAST_READING = 1.5
"""In timeouts: how long a stop waits for the last reading."""
LAST_READING_SHARE = 0.5
"""Of a stop's time: how much of it that wait takes at most. The rest is the exporters'."""
EXIT_TIMEOUT = 1.8
"""Seconds that the interpreter's exit waits at most, for all monitors together."""
LEAVING = 1.0
"""Seconds that a stop waits at most until other processes have been left, with which readings are shared."""
WAITING = 64
"""Snapshots that wait for a slow loop; the oldest go."""

Extra = Callable[[Snapshot], Mapping[str, int | float]]
"""Gives metrics of the watched program itself."""

log = logging.getLogger("accelmetrics")


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


class MonitorState(NamedTuple):
    """What a monitor keeps from one run to the next.

    Attributes:
        interval: Seconds between two ticks.
        timeout: Seconds within which a reading is answered.
        labels: Travel with every record.
        extra: Gives metrics of the program itself, at every reading.
        history: Where ticks are remembered.
        windows: Where readings are summarised.
        steps: What the program logs.
        findings: Judges readings by rules.
        attribution: Tells who holds the devices of a reading.
        shared: Whether readings are shared with other processes.
    """

    interval: float
    timeout: float
    labels: Mapping[str, str]
    extra: Extra | None
    history: History
    windows: Windows
    steps: StepLog
    findings: FindingEngine
    attribution: HoldersOf | None = None
    shared: bool = False


class Phase(IntEnum):
    """How far a run has come. It never goes back."""

    IDLE = 0
    """It has not begun."""
    BEGINNING = 1
    """Exporters are being opened; it stays so where Ctrl-C interrupted that."""
    RUNNING = 2
    """Readings are taken."""
    STOPPING = 3
    """It was told to stop, and its last reading is waited for."""
    STOPPED = 4
    """No reading will come; exporters deliver what is queued until their time is up."""


class Run:
    """Observes a ticker. ``take``, ``miss``, ``fail`` and ``end`` are called on the ticker's thread, the rest by the program.

    Without a lock: a signal handler may stop the monitor wherever it interrupts the program.

    Attributes:
        state: What the monitor keeps from one run to the next.
        latest: The last reading, None before the first.
        failure: Why no reading could be taken, in words; empty while they are taken.
        paused: Whether readings are passed over.
        left: Set while no reading is to come: before it begins, and when it has stopped.
        pid: The process in which its threads are.
    """

    def __init__(self, state: MonitorState, ticker: Ticker) -> None:
        self.latest: Snapshot | None = None
        self.failure = ""
        self.paused = False
        self.left = Flag()
        self.left.set()
        self.pid = os.getpid()
        self._reached = [Phase.IDLE]  # each is appended in one call in C: no start undoes the stop that interrupts it
        self._by = float("inf")  # until when exporters may deliver, once it was told to stop
        self.state = state
        self._ticker = ticker
        self._deliveries: dict[ExportWorker, Delivery] = {}
        self._streams: dict[int, ref[Stream]] = {}
        self._rows = RowMaker()
        self._meter = Meter()
        self._joined = self._judged = False
        self._moment = 0.0, 0  # of the last tick, on the monitor's clock and in nanoseconds since 1970
        self._ticks = self._missed = self._timed_out = 0
        self._silent: dict[str, str] = {}  # by source that did not answer the last tick, why
        self._told: set[tuple[str, str]] = set()  # sources and statuses that were logged

    @property
    def phase(self) -> Phase:
        """How far it has come."""
        return max(self._reached)

    @property
    def running(self) -> bool:
        """Whether it has begun, and was not told to stop."""
        return Phase.BEGINNING <= self.phase <= Phase.RUNNING

    @property
    def workers(self) -> tuple[ExportWorker, ...]:
        """Where records go."""
        return tuple(self._deliveries)

    @property
    def error(self) -> str:
        """Why no reading could be taken, or which sources did not answer the last one, in words; empty while all is well."""
        return self.failure or "; ".join(f"{name}: {why}" for name, why in self._silent.items())

    def take(self, snapshot: Snapshot, at: float, tick: bool) -> None:
        """Remember, summarise and hand out a reading."""
        if self.paused or self.phase is Phase.STOPPED:
            return
        if self.state.extra is not None and (found := guarded(self.state.extra, snapshot).value):
            snapshot = snapshot.with_metrics(found)  # a new one: other monitors may have been given the same
        row = self._rows.row(snapshot, at, self._joined)
        self._judged = self._judged and self._joined
        self._joined, self.failure = True, ""
        self.state.windows.feed(row)
        self._meter.add(row)
        if not tick:
            return
        self._ticks += 1
        self._timed_out += "timed_out" in [status.status for status in snapshot.backends]
        tick_row = self._rows.tick_row(snapshot, row)
        self.state.history.add(tick_row)
        self.latest = snapshot
        silent = [status for status in snapshot.backends if status.silent]
        self._silent = {status.name: status.detail for status in silent}
        for status in silent:
            if (status.name, status.status) not in self._told:
                self._told.add((status.name, status.status))
                log.warning("source %s: %s (`accelmetrics doctor` says what to do)", status.name, status.detail)
        steps = self.state.steps.take(self._meter)
        findings = self.state.findings.judge(snapshot, tick_row, steps, self._judged, last=self.phase is Phase.STOPPING)
        self._judged = True
        self._moment = at, snapshot.time_ns
        windows = self.state.windows.spans(*self._moment)
        if self._deliveries:
            self._put(Record(snapshot, self.state.labels, steps, findings=findings, windows=windows))
        for stream in living(self._streams):
            stream.put(snapshot)

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
        self.left.clear()
        self._reached.append(Phase.BEGINNING)
        _running.add(self)
        stop_all_at_exit()
        for worker in workers:
            self._deliveries[worker] = worker.start()
        self._ticker.join(self)
        self._reached.append(Phase.RUNNING)
        if not self.running:  # a signal handler has stopped it meanwhile
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
        self.state.windows.settle()

    def resume(self) -> None:
        """Go on, beginning with a reading at once."""
        if self.paused:
            self._joined = self.paused = False
        self.request()

    def follow(self, stream: Stream) -> None:
        """Hand a loop every snapshot from now on, or the end when there will be none."""
        self._streams[id(stream)] = ref(stream)  # without a callback, which would swallow Ctrl-C
        if self.phase in {Phase.IDLE, Phase.STOPPED}:
            stream.put(None)

    def add(self, worker: ExportWorker) -> None:
        """Deliver to one more from now on."""
        delivery = self._deliveries[worker] = worker.start()
        if not self.running:  # stopped in between
            delivery.close(self._by)

    def remove(self, worker: ExportWorker) -> None:
        """Deliver to one no more."""
        self._deliveries.pop(worker, None)
        worker.drop()

    @property
    def status(self) -> MonitorStatus:
        """The counts since the start."""
        exporters = tuple(worker.status for worker in self.workers)
        return MonitorStatus(self.state.interval, self._ticks, self._missed, self._timed_out, exporters)

    def leave(self, by: float) -> float:
        """Ask for the last reading, after which it ends. Exporters have until a moment of ``time.monotonic`` to deliver.

        Returns:
            Until when that reading is waited for.
        """
        self._by = min(by, self._by)
        if not self.left.is_set():
            self._reached.append(Phase.STOPPING)
            self._ticker.leave(self)
        now = time.monotonic()
        return now + max(0.0, min(LAST_READING_SHARE * (by - now), LAST_READING * self.state.timeout))

    def end(self) -> None:
        """Take no reading from now on: end what follows, deliver what was logged since the last one, and close the exporters."""
        self._ticker.drop(self)
        before = self.phase
        self._reached.append(Phase.STOPPED)
        if before not in {Phase.IDLE, Phase.STOPPED}:
            self.state.windows.settle()
            for stream in living(self._streams):
                stream.put(None)
            steps = self.state.steps.take(self._meter, everything=True)
            known = self.state.findings.findings
            # On the program's thread, where a last reading that is late may be judged at the same time.
            findings = guarded(self.state.findings.judge_steps, steps).value or known
            windows = self.state.windows.spans(*self._moment)
            if self.latest is not None and (steps or windows or findings is not known):
                self._put(Record(self.latest, self.state.labels, steps, findings=findings, windows=windows))
        for delivery in tuple(self._deliveries.values()):
            delivery.close(self._by)
        self.left.set()

    def join(self) -> None:
        """Wait until the exporters are closed, or their time is up."""
        for worker, delivery in tuple(self._deliveries.items()):
            worker.join(delivery)
        if self.state.shared:  # others take over, or find nothing that is left behind
            self._ticker.wait_closed(min(self._by - time.monotonic(), LEAVING))
        if not on_exporter_thread():  # else the interpreter's exit has to wait for them
            _running.discard(self)

    def _put(self, record: Record) -> None:
        """Hand a record to the exporters, with what it lacks."""
        tell = self.state.attribution
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
