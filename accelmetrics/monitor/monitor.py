"""The monitor: takes readings at a steady pace in the background of a program, stores and summarises them, and exports them.

It has separate threads: one that reads, shared by monitors that want the same readings, and one for each exporter and callback. Calls of
the program do not wait for them, except ``stop``, ``flush`` and the results of windows.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from math import isnan
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, SupportsFloat, TypeVar

from accelmetrics.backends.guard import guarded, warn_user
from accelmetrics.backends.registry import BackendChoice, items_of
from accelmetrics.exporters.registry import create, exporting
from accelmetrics.monitor.export_worker import ExportWorker, distinct
from accelmetrics.monitor.findings import FindingEngine
from accelmetrics.monitor.rules import DEFAULT, RuleChoice, rules_of
from accelmetrics.monitor.run import (
    ALL as ALL_READ,
    IDLE,
    NEWEST,
    RUNNING,
    STEPS,
    MonitorClock,
    Run,
    Stream,
    Ticker,
    end_all,
    shared_ticker,
    stop_all_at_exit,
)
from accelmetrics.monitor.steps import StepLog
from accelmetrics.monitor.torch import TorchMemory
from accelmetrics.monitor.window import TumblingWindow, Window, Windows
from accelmetrics.sampling.channel import NodeChannel
from accelmetrics.sampling.engine import hostname
from accelmetrics.sampling.options import DEFAULT_OPEN_TIMEOUT, DEFAULT_TIMEOUT, Choice, Isolation, Visible
from accelmetrics.sampling.sampler import Sampler, hashable
from accelmetrics.sampling.threads import are_green
from accelmetrics.schemas.errors import InvalidOptionError
from accelmetrics.schemas.frozen import FrozenDict
from accelmetrics.schemas.limits import LONGEST_INTERVAL, SHORTEST_INTERVAL
from accelmetrics.schemas.record import Exporter, Finding, Findings, HoldersOf, MonitorStatus, Record, Step, StepSource, Totals
from accelmetrics.schemas.ring import History, Ring
from accelmetrics.schemas.selection import ALL, MetricChoice, MetricSelection
from accelmetrics.schemas.snapshot import Snapshot
from accelmetrics.schemas.text import shown
from accelmetrics.visibility.job import job_labels

if TYPE_CHECKING:
    from pathlib import Path

    from accelmetrics.sampling.node import NodeReader, ProgramSteps

Share = Literal["node"]
Daemon = tuple["Path", int | None]
"""Value of ``share`` for the process that reads for a whole machine: its directory, and the group that may read there."""
T = TypeVar("T")
CLOSE_TIMEOUT = 5.0
"""Maximum duration of a stop in seconds, while exporters deliver their queues."""


class Monitor:
    """Reads all devices at a steady pace until it is stopped.

    Running, it never raises into the program, never waits for a driver on the program's threads, and never keeps the interpreter from
    exiting. Problems are logged once under ``accelmetrics`` and shown in ``status``. It may be stopped and started again, from any thread.
    In a forked child it is not running; the child may start it again, but without the exporters and callbacks of the parent.

    Args:
        interval: Seconds between two readings, at least 0.01; 0.1 is a good value for short steps.
        exporters: Destinations of the readings: strings like ``"jsonl:run.jsonl"``, or objects. See docs/exporters.md.
        backends: As for :class:`Sampler`, like ``metrics`` to ``amd_source``.
        metrics: Metrics to read; by default all. Exporters, windows and the history have no others. Files and trackers without their own
            ``metrics`` option export all metrics that are named here.
        gpus: Devices to report, by number, key or UUID; by default all.
        visible: Report only the devices that the watched process sees.
        pid: Process that ``cpu``, ``proc.…`` and ``gpu.process.…`` describe; by default this one.
        children: Whether its descendants are included.
        disk_paths: Mount points for disk usage.
        labels: Labels of every record, in addition to ``run_id``, ``hostname``, ``rank`` and the job's identity from Slurm, Kubernetes, Ray
            or torchrun. A name given here takes precedence.
        history: Number of readings to store, or their time span (a ``timedelta``); 0 for none.
        rules: Rules to evaluate: ``"default"``, ``"none"``, names, settings like ``{"hot": {"above": 75}}``, or rules. See
            docs/findings.md.
        on_finding: Function that is called with every :class:`~accelmetrics.schemas.record.Finding` when it begins and again when it is
            over, on a separate thread.
        notify: Addresses for messages about findings: a JSON POST for an ``https://`` address; others (``ntfy://…``) need the extra
            ``notify``. If processes share readings, only the first process of the machine sends them. See docs/findings.md.
        timeout: Maximum duration of a reading in seconds.
        open_timeout: Seconds that the first reading waits for sources that are still opening.
        isolation: ``"thread"``, or ``"process"`` to read in a child process.
        amd_source: The only source to read AMD's GPUs from.
        attribution: Function that returns the holders of the devices for every record, like an object of
            :class:`~accelmetrics.visibility.attribution.Attribution`.
        share: ``"node"`` to share readings with the other processes of the job on this machine: one of them reads, and another takes over
            when it ends. See docs/sharing.md.
        clock: Clock to use; only for tests.

    Attributes:
        interval: Seconds between two readings.
        labels: Labels of every record.
        channel: With ``share="node"``, the messages between the processes of the job on this machine, and this process's part in it.

    Raises:
        InvalidOptionError: An option has an invalid value.
        UnknownNameError: There is no backend or exporter with this name.
        MissingDependencyError: An exporter needs a package that is not installed.
    """

    def __init__(  # noqa: PLR0913 - every option is a keyword with a default
        self,
        interval: float = 1.0,
        exporters: Sequence[str | Exporter] = (),
        *,
        backends: BackendChoice | None = None,
        metrics: MetricChoice = ALL,
        gpus: Sequence[Choice] | None = None,
        visible: Visible = False,
        pid: int | None = None,
        children: bool = False,
        disk_paths: Sequence[str] = ("/",),
        labels: Mapping[str, str] | None = None,
        history: int | timedelta = 300,
        rules: RuleChoice = DEFAULT,
        on_finding: Callable[[Finding], object] | None = None,
        notify: str | Sequence[str] = (),
        timeout: float = DEFAULT_TIMEOUT,
        open_timeout: float = DEFAULT_OPEN_TIMEOUT,
        isolation: Isolation = "thread",
        amd_source: str | None = None,
        attribution: HoldersOf | None = None,
        share: Share | Daemon | None = None,
        clock: MonitorClock | None = None,
    ) -> None:
        options: dict[str, Any] = {
            "backends": items_of(backends),
            "metrics": hashable(metrics),  # converted once: an iterator can be read only once
            "gpus": gpus,
            "visible": visible,
            "pid": pid,
            "children": children,
            "disk_paths": disk_paths,
            "timeout": timeout,
            "open_timeout": open_timeout,
            "isolation": isolation,
            "amd_source": amd_source,
        }
        if not _is_number(interval) or not SHORTEST_INTERVAL <= interval <= LONGEST_INTERVAL:
            words = f"it must be a number of seconds from {SHORTEST_INTERVAL} to {LONGEST_INTERVAL}"
            raise InvalidOptionError(f"interval is {interval!r}: {words}")
        self.interval = float(interval)
        if share not in (None, "node") and not isinstance(share, tuple):
            raise InvalidOptionError(f"share is {share!r}: it must be 'node', or None to read alone")
        if share is not None and (why := cannot_share()):
            warn_user(f"readings are not shared: {why}: this process reads for itself")
            share = None
        self.labels: Mapping[str, str] = _all_labels(labels)
        Sampler(**options).close()  # raises for invalid options here, where the caller sees it, and not on the ticker's thread
        self._metrics = MetricSelection(options["metrics"])
        made = _created(exporters)
        if not self._metrics.everything and any(getattr(exporter, "processes", 0) for exporter in made):
            options["metrics"] = self._metrics = self._metrics.with_processes()
        self._clock = MonitorClock() if clock is None else clock
        self._key: Hashable = _key(options, self.interval) if clock is None else object()
        self.channel = NodeChannel()
        self._programs: ProgramSteps | None = None
        self._make: Callable[[], Sampler | NodeReader] = lambda: Sampler(**options, clock=clock)
        if share is not None:
            from accelmetrics.sampling.node import NodeReader

            self._key = object()  # each monitor takes part separately, so its ticker is not shared
            daemon = share if isinstance(share, tuple) else None
            # The current run is looked up at each call, because it changes with every start.
            self._make = lambda: NodeReader(
                options,
                self.interval,
                self.channel,
                self.labels,
                lambda: self._current().ticker.demand(),  # noqa: PLW0108
                self._receive_step,
                daemon,
            )
        self._workers: dict[str, ExportWorker] = {}
        for exporter in made:
            self._add_worker(exporter)
        notifiers: list[Exporter] = []
        if notify:
            from accelmetrics.exporters.notify import NotifyExporter

            notifiers = [NotifyExporter(url) for url in ([notify] if isinstance(notify, str) else notify)]
        # Processes that share readings have the same findings, so only the first sends messages.
        if share is None or self.labels.get("local_rank", "0") == "0":
            for notifier in notifiers:
                self._add_worker(notifier)
        if on_finding is not None:
            self._add_worker(exporting("on_finding", _once_per_event(_callable(on_finding))))
        self._inherited: list[ExportWorker] = []  # in a forked child, the parent's exporters
        self._inherited_names = ""  # names of inherited exporters, until the user has been warned about them
        extra = TorchMemory(self._metrics) if pid in {None, os.getpid()} else None

        rank = self.labels.get("rank", "")
        source = (int(rank) if rank.isdecimal() else None, self.labels["hostname"])
        chosen, default = rules_of(rules), share is not None and rules == DEFAULT
        shared = rules_of(DEFAULT) if share is not None else ()
        self._run_factory: Callable[[], Callable[[Ticker], Run]] = lambda: partial(
            Run,
            interval=self.interval,
            timeout=timeout,
            labels=self.labels,
            shared=share is not None,
            ring=(ring := Ring(history)),
            windows=Windows(ring, self._clock.monotonic, lambda: self._current().request(), lambda: self._current().look(ALL_READ)),
            steps=StepLog(source, self._send_step if share is not None else None),
            findings=(findings := FindingEngine(chosen, self.interval, self.labels, attribution)),
            extra=extra,
            attribution=attribution,
            for_all=findings if default else FindingEngine(shared, self.interval, self.labels, attribution) if shared else None,
        )
        self._reset()

    @classmethod
    def from_config(cls, path: str | os.PathLike[str] | None = None, **overrides: Any) -> Monitor:
        """Create a monitor from a configuration file and environment variables: see docs/configuration.md.

        Only this method reads them. ``Monitor()`` depends on its arguments alone.

        Args:
            path: The file; by default the one in ``ACCELMETRICS_CONFIG``, or none if this is not set.
            **overrides: Arguments of ``Monitor``, which take precedence over both.

        Raises:
            InvalidOptionError: The file cannot be read, or the file or a variable has an invalid value.
            UnknownNameError: The file has an unknown key.
        """
        from accelmetrics.monitor import settings  # the options of all commands, which other monitors do not need

        taker = settings.MONITOR
        found = settings.resolve(settings.taken_by(taker), overrides, taker, settings.read_file(path), settings.ARGUMENT)
        return cls(**{name: setting.value for name, setting in found.items() if setting.source != settings.DEFAULT} | overrides)

    def _reset(self) -> None:
        """Set the state of a monitor that has not run in this process."""
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._make_run = self._run_factory()
        self._run = self._new_run()

    def start(self) -> Monitor:
        """Start the monitor. The first reading is taken at once, in the background. Has no effect while it runs."""
        self._current()
        with self._lock:
            last = self._run
            if last.phase != RUNNING:
                last.end()  # its stop may still wait for a last reading, or may have been interrupted by Ctrl-C
                self._run = self._new_run()
                self._run.begin(self._workers.values())
                if self._inherited_names:
                    warn_user(
                        f"monitor: {self._inherited_names} get no records from the forked process {self._pid}, because they belong to its "
                        "parent: create another Monitor there, with paths and ports of its own"
                    )
                    self._inherited_names = ""
        return self

    def stop(self, timeout: float = CLOSE_TIMEOUT) -> None:
        """Take a last reading, deliver the exporters' queues, and stop. Has no effect on a stopped monitor.

        Args:
            timeout: Maximum duration in seconds. Records that are not delivered by then are dropped, with a warning.

        Raises:
            InvalidOptionError: The timeout is no number.
        """
        deadline = time.monotonic() + _span(timeout)
        self._current()
        with self._lock:  # waits for a start in another thread
            run = self._run
        end_all([run], deadline)

    def restore_findings(self, found: Sequence[tuple[str, Finding]]) -> None:
        """Continue findings of an earlier run of this program from the next reading on.

        Args:
            found: Findings, each with the unique id of its device; empty for a finding without a device.
        """
        run = self._current()
        for engine in filter(None, {run.findings, run.for_all}):
            engine.restore(found)

    def pause(self) -> None:
        """Pause until ``resume`` or ``stop``. Meanwhile nothing is stored, exported or counted as missed."""
        self._current().pause()

    def resume(self) -> None:
        """Continue after a pause. The time of the pause is part of no window's statistics."""
        self._current().resume()

    def flush(self, timeout: float = CLOSE_TIMEOUT) -> bool:
        """Wait until exporters have delivered all readings so far. Return whether they have.

        Args:
            timeout: Maximum duration in seconds.

        Raises:
            InvalidOptionError: The timeout is no number.
        """
        deadline = time.monotonic() + _span(timeout)
        return all([worker.flush(max(0.0, deadline - time.monotonic())) for worker in self._current().workers])  # noqa: C419  each has its turn

    def __enter__(self) -> Monitor:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    async def __aenter__(self) -> Monitor:
        """Start the monitor. ``async with`` stops it without blocking the event loop."""
        return self.start()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        import asyncio  # already loaded if there is a loop; a program without a loop saves 6 MiB

        await asyncio.to_thread(self.stop)

    @property
    def running(self) -> bool:
        """Whether it is started in this process."""
        return self._current().running

    @property
    def latest(self) -> Snapshot | None:
        """The last reading since the start, None before the first."""
        return self._updated_run(NEWEST).latest

    @property
    def history(self) -> History:
        """The last readings, by column."""
        return History(self._updated_run().ring)

    @property
    def status(self) -> MonitorStatus:
        """Counters and errors of the monitor and its exporters, since the last start."""
        return self._updated_run().status

    @property
    def error(self) -> str:
        """Why readings fail, or which sources do not answer although their hardware is present, in words; empty if there is no problem."""
        return self._updated_run(NEWEST).error

    @property
    def findings(self) -> Findings:
        """Current and recently ended findings, and rules that lack metrics. Iterating yields the current findings."""
        return self._updated_run(STEPS).found

    @property
    def windows(self) -> tuple[Window, ...]:
        """The last windows that have ended, at most 32, in the order of their ends."""
        return tuple(self._current().windows.past.copy())

    @property
    def steps(self) -> tuple[Step, ...]:
        """The last hundred logged steps up to the last reading, with derived numbers."""
        return tuple(self._updated_run(STEPS).steps.returned.copy())

    @property
    def work(self) -> Totals:
        """Total work of the logged steps up to the last reading, by kind (``tokens``, ``samples``) and process."""
        return self._updated_run(STEPS).steps.work.copy()

    def window(self, name: str = "") -> Window:
        """Create a window that measures a part of the program: a context manager, a decorator, or with ``begin`` and ``end``.

        Windows may nest and overlap, on any threads.

        Raises:
            InvalidOptionError: The name is no string, for example because a decorator was written without parentheses.
        """
        if not isinstance(name, str):
            raise InvalidOptionError(f"a window's name must be a string, not {shown(name)}: write a decorator as @monitor.window('name')")
        return Window(self._current().windows, name)

    def tumbling_window(self) -> TumblingWindow:
        """Create consecutive windows, each from one reading to a later one, with results at once: for the log rows of a trainer."""
        return TumblingWindow(self._current().windows, "")

    def log(self, step: int | None = None, /, *unused: object, **values: SupportsFloat | None) -> None:
        """Log numbers of the program: ``epoch``, ``loss``, ``learning_rate``, ``grad_norm`` or any others.

        ``tokens`` and ``samples`` are counts of this step. From them follow the throughput and the work per joule, relative to the energy
        of all selected devices and to that of the mean device (``…_per_joule_of_mean_device``). Duration and energy are measured since the
        last call. Values that are None or no numbers are left out. Non-finite numbers are kept and counted.

        Args:
            step: The program's step, also as ``step=``.
            unused: Accepted so that a wrong call does not raise; a warning is logged once.
            values: The numbers.
        """
        steps = self._current().steps
        found: object = step
        if unused or "step" in values:
            found = steps.first(step, values.pop("step", None), *unused)
        steps.add(self._clock.monotonic(), self._clock.time_ns(), found, values)

    def collect_program_steps(self) -> None:
        """Receive the steps that this user's other programs on this machine log, if these programs share readings.

        The steps are returned with the next reading, like this program's steps. Work per joule is that of all programs that log, over the
        energy of this monitor's devices.
        On systems where programs cannot share readings (Windows), this does nothing.
        """
        if self._programs is None and not cannot_share():
            from accelmetrics.sampling.node import ProgramSteps

            self._programs = ProgramSteps(self._receive_step)
        if self._programs is not None:
            self._programs.look()

    def subscribe(self, callback: Callable[[Snapshot], object]) -> Callable[[], None]:
        """Call a function with every snapshot, on a separate thread.

        Returns:
            Function that ends the subscription.

        Raises:
            InvalidOptionError: The argument is not callable.
        """
        _callable(callback)
        self._current()
        exporter, subscribed = exporting("callback", lambda record: callback(record.snapshot)), False

        def unsubscribe() -> None:
            self._current()
            with self._lock:
                for worker in [known for known in self._workers.values() if known.exporter is exporter]:
                    self._run.remove(worker)
                self._workers = {name: known for name, known in self._workers.items() if known.exporter is not exporter}

        try:
            with self._lock:
                worker = self._add_worker(exporter)
                if self._run.running:
                    self._run.add(worker)
            subscribed = True
        finally:
            if not subscribed:  # interrupted by Ctrl-C: the caller has no function to end it
                unsubscribe()
        return unsubscribe

    def __aiter__(self) -> Stream:
        """Return an iterator for ``async for snapshot in monitor``: every snapshot from now on, until the monitor stops."""
        stream = Stream()
        self._current().follow(stream)
        return stream

    def __repr__(self) -> str:
        state = "running" if self.running else "not running"
        error = f", {self.error}" if self.error else ""
        return f"<Monitor every {self.interval:g} s: {state}, {self.status.ticks} readings, {len(self._workers)} exporters{error}>"

    def _add_worker(self, exporter: Exporter) -> ExportWorker:
        """Create the worker of an exporter, for all later starts."""
        name = distinct(str(getattr(exporter, "name", "") or type(exporter).__name__), self._workers)
        worker = ExportWorker(exporter, name, opened=stop_all_at_exit, read=self._metrics)
        self._workers = {**self._workers, name: worker}
        return worker

    def _send_step(self, at: float, time_ns: int, step: int | None, values: Mapping[str, float]) -> None:
        """Send a logged step to the other processes of the job."""
        if self.channel.step(at, time_ns, step, values):
            self._current().ticker.wake()

    def _receive_step(self, at: float, time_ns: int, step: int | None, values: Mapping[str, float], source: StepSource) -> None:
        """Add a step that another process has logged."""
        self._current().steps.add(at, time_ns, step, values, source)

    def _new_run(self) -> Run:
        return self._make_run(shared_ticker(self._key, lambda: Ticker(self._make, self.interval, self._clock)))

    def _updated_run(self, depth: int = ALL_READ) -> Run:
        """Return the current run, updated with the readings of other processes."""
        run = self._current()
        run.look(depth)
        return run

    def _current(self) -> Run:
        """Return the current or last run. In a forked child this is a new one that is idle."""
        # Threads do not survive a fork, and a lock may have been held.
        if os.getpid() != self._pid:
            if self._run.phase != IDLE:  # exporters' files and sockets belong to the parent; references keep them from being closed here
                self._inherited_names = ", ".join(self._workers)
                self._inherited += self._workers.values()
                self._workers = {}
            self._reset()
        return self._run


def _callable(callback: T) -> T:
    """Return the callback if it is callable.

    Raises:
        InvalidOptionError: It is not.
    """
    if not callable(callback):
        raise InvalidOptionError(f"{shown(callback)} is not callable: pass a function that takes a snapshot or a finding")
    return callback


def _once_per_event(callback: Callable[[Finding], object]) -> Callable[[Record], None]:
    """Return an export function that calls ``callback`` with every finding when it begins and when it is over."""
    reported: frozenset[Finding] = frozenset()

    def export(record: Record) -> None:
        nonlocal reported
        before, reported = reported, frozenset((*record.findings.current, *record.findings.ended))
        for finding in (*record.findings.ended, *record.findings.current):
            if finding not in before:
                callback(finding)

    return export


def _all_labels(labels: Mapping[str, str | None] | None) -> FrozenDict[str, str]:
    """Return the labels of records: run id, host name, labels of the job, and the given labels, which take precedence."""
    if labels is not None and not isinstance(labels, Mapping):
        raise InvalidOptionError(f"labels is {labels!r}: it must be a mapping of names to strings")
    given = {str(name): str(value) for name, value in (labels or {}).items() if value is not None}
    return FrozenDict({"run_id": os.urandom(6).hex(), "hostname": hostname(), **job_labels(), **given})


def _created(exporters: Sequence[str | Exporter] | str) -> list[Exporter]:
    """Return the exporters, created from their string form if necessary, and each object once."""
    if not isinstance(exporters, Iterable):
        raise InvalidOptionError(f"exporters is {exporters!r}: it must be a list of strings such as 'jsonl:run.jsonl', or of exporters")
    made = [create(exporter) for exporter in ([exporters] if isinstance(exporters, str) else exporters)]
    return [exporter for place, exporter in enumerate(made) if not any(exporter is other for other in made[:place])]


def cannot_share() -> str:
    """Return why readings cannot be shared with other processes here; empty if they can."""
    if sys.platform == "win32":
        return "Windows has no suitable file locks"
    return "gevent or eventlet replaces threads, so a wait for a lock would block the whole program" if are_green() else ""


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _span(seconds: float) -> float:
    """Return a timeout in the range that every clock accepts."""
    if not _is_number(seconds) or isnan(seconds):
        raise InvalidOptionError(f"timeout is {seconds!r}: it must be a number of seconds")
    return min(max(0.0, seconds), LONGEST_INTERVAL)


def _key(options: Mapping[str, Any], interval: float) -> Hashable:
    """Return the key of the ticker: monitors with equal keys share their readings."""
    # Options that cannot be hashed give a unique key.
    items = tuple(sorted((name, tuple(value) if isinstance(value, list) else value) for name, value in options.items()))
    outcome = guarded(hash, items)
    return (interval, items) if outcome.failure is None else object()
