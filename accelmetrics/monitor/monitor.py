"""The monitor: readings at a steady pace, remembered, summarised and handed out, beside the program that they are about.

It works on threads of its own: one that reads, shared by the monitors that want the same readings, and one for each exporter
and callback. What the program calls does not wait for them, but ``stop``, ``flush`` and the results of windows.
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
from accelmetrics.schemas.record import Exporter, Finding, Findings, HoldersOf, MonitorStatus, Record, Step, Totals
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
"""In place of that, of the process that reads for all of a machine: its directory, and the group that may read there."""
T = TypeVar("T")
CLOSE_TIMEOUT = 5.0
"""Seconds that a stop takes at most, while exporters deliver what is queued."""


class Monitor:
    """Reads everything at a steady pace, until it is stopped.

    Nothing it does raises into the program, waits for a driver on the program's threads, or keeps the interpreter from
    exiting. What goes wrong is logged once under ``accelmetrics`` and stands in ``status``. May be stopped and started again,
    by any thread. In the child of a fork it is not running; the child may start it anew, without the exporters and callbacks that
    it was started with in the parent.

    Args:
        interval: Seconds between two readings, from 0.01; 0.1 is a good pace for short steps.
        exporters: Where the readings go: strings such as ``"jsonl:run.jsonl"``, or objects. See docs/exporters.md.
        backends: As for :class:`Sampler`, like ``metrics`` to ``amd_source``.
        metrics: The metrics that are read; exporters, windows and the history have no others. All when left out. Files and trackers
            that were not told their own ``metrics`` are given all that is named here.
        gpus: Devices to report, by number, key or UUID; all when left out.
        visible: Report only the devices that the watched process sees.
        pid: The process watched by ``cpu``, ``proc.…`` and ``gpu.process.…``; this one when left out.
        children: Whether its descendants are watched with it.
        disk_paths: Mount points whose usage is reported.
        labels: Travel with every record, besides ``run_id``, ``hostname``, ``rank`` and the job's identity as Slurm,
            Kubernetes, Ray and torchrun tell it; the same name here wins.
        history: How many readings are remembered, or for how long (a ``timedelta``); 0 for none.
        rules: What the run is judged by: ``"default"``, ``"none"``, names, settings such as ``{"hot": {"above": 75}}``, or rules. See
            docs/findings.md.
        on_finding: Called with every :class:`~accelmetrics.schemas.record.Finding` that begins, and again when it is over, on a thread of
            its own.
        notify: Addresses that messages about findings are sent to: an ``https://`` address takes a JSON POST, others (``ntfy://…``)
            need the extra ``notify``. Of the processes that share a reading the first of the machine sends them. See docs/findings.md.
        timeout: Seconds within which a reading is answered.
        open_timeout: Seconds that the first reading waits for sources that are still opening.
        isolation: ``"thread"``, or ``"process"`` to read in a child process.
        amd_source: The one source to read AMD's GPUs from.
        attribution: Tells who holds the devices, for every record: :class:`~accelmetrics.visibility.attribution.Attribution`.
        share: ``"node"`` to take part in one reading with the other processes of the job on this machine: one of them reads, and
            the next takes over when it ends. See docs/sharing.md.
        clock: Where time is taken from, and what waits; only tests give one.

    Attributes:
        interval: Seconds between two readings.
        labels: Travel with every record.
        channel: What is said to the other processes of the job on this machine, and how this one takes part, with ``share="node"``.

    Raises:
        InvalidOptionError: An option that cannot be used.
        UnknownNameError: A backend or an exporter that does not exist.
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
            "metrics": hashable(metrics),  # an iterator is used up by that
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
        self.interval = _interval(interval)
        if share not in (None, "node") and not isinstance(share, tuple):
            raise InvalidOptionError(f"share is {share!r}: it must be 'node', or None to read alone")
        if share is not None and (why := cannot_share()):
            warn_user(f"readings are not shared: {why}: this process reads for itself")
            share = None
        self.labels: Mapping[str, str] = _all_labels(labels)
        Sampler(**options).close()  # what cannot be used is told here, where the caller sees it
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

            self._key = object()  # each takes part by itself
            daemon = share if isinstance(share, tuple) else None
            # Of the run that goes on then, like all that a run is asked for.
            self._make = lambda: NodeReader(
                options,
                self.interval,
                self.channel,
                self.labels,
                lambda: self._current().demand(),
                lambda *step: self._current().hear(*step),
                daemon,
            )
        self._workers: dict[str, ExportWorker] = {}
        for exporter in made:
            self._add_worker(exporter)
        notifying = _created_notifiers(notify)
        if share is None or self.labels.get("local_rank", "0") == "0":  # all processes that share a reading find the same
            for notifier in notifying:
                self._add_worker(notifier)
        if on_finding is not None:
            self._add_worker(exporting("on_finding", _told_once(_callable(on_finding))))
        self._inherited: list[ExportWorker] = []  # of the parent, in the child of a fork
        self._not_taken = ""  # the names of those that were not warned about
        extra = TorchMemory(self._metrics) if pid in {None, os.getpid()} else None

        rank = self.labels.get("rank", "")
        source = (int(rank) if rank.isdecimal() else None, self.labels["hostname"])
        chosen, default = rules_of(rules), share is not None and rules == DEFAULT
        shared = rules_of(DEFAULT) if share is not None else ()
        self._anew: Callable[[], Callable[[Ticker], Run]] = lambda: partial(
            Run,
            interval=self.interval,
            timeout=timeout,
            labels=self.labels,
            shared=share is not None,
            ring=(ring := Ring(history)),
            windows=Windows(ring, self._clock.monotonic, lambda: self._current().request(), lambda: self._current().look(ALL_READ)),
            steps=StepLog(source, self._tell_step if share is not None else None),
            findings=(findings := FindingEngine(chosen, self.interval, self.labels, attribution)),
            extra=extra,
            attribution=attribution,
            for_all=findings if default else FindingEngine(shared, self.interval, self.labels, attribution) if shared else None,
        )
        self._reset()

    @classmethod
    def from_config(cls, path: str | os.PathLike[str] | None = None, **overrides: Any) -> Monitor:
        """Make a monitor of a configuration file and of the environment's variables: see docs/configuration.md.

        This alone reads them: ``Monitor()`` is what its arguments say, wherever it runs.

        Args:
            path: The file; the one that ``ACCELMETRICS_CONFIG`` names when left out, and none where that is not set.
            **overrides: Arguments of ``Monitor``, which stand above both.

        Raises:
            InvalidOptionError: The file cannot be read, or has a value that cannot be used; or a variable has.
            UnknownNameError: The file has an unknown key.
        """
        from accelmetrics.monitor import settings  # options of all commands, which no other monitor needs

        taker = settings.MONITOR
        found = settings.resolve(settings.taken_by(taker), overrides, taker, settings.read_file(path), settings.ARGUMENT)
        return cls(**{name: setting.value for name, setting in found.items() if setting.source != settings.DEFAULT} | overrides)

    def _reset(self) -> None:
        """Begin as a monitor that has not run in this process."""
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._make_run = self._anew()
        self._run = self._new_run()

    def start(self) -> Monitor:
        """Begin; the first reading is taken at once, in the background. Starting twice changes nothing."""
        self._current()
        with self._lock:
            last = self._run
            if last.phase != RUNNING:
                last.end()  # its stop may still be waiting for a last reading, or Ctrl-C have come between
                self._run = self._new_run()
                self._run.begin(self._workers.values())
                if self._not_taken:
                    warn_user(
                        f"monitor: {self._not_taken} stay with the process that started them and get no records of its child {self._pid}: "
                        "make a Monitor of its own there, with a path or a port for each process"
                    )
                    self._not_taken = ""
        return self

    def stop(self, timeout: float = CLOSE_TIMEOUT) -> None:
        """Take one last reading, deliver what is queued, and end. Stopping twice changes nothing.

        Args:
            timeout: Seconds that this takes at most; what exporters have not delivered then is dropped, and said.

        Raises:
            InvalidOptionError: The timeout is no number.
        """
        by = time.monotonic() + _span(timeout)
        self._current()
        with self._lock:  # of a start in another thread
            run = self._run
        end_all([run], by)

    def restore_findings(self, found: Sequence[tuple[str, Finding]]) -> None:
        """Go on with findings of an earlier run of this program from the next reading on.

        Args:
            found: Each with the unique identity of the device that it is about; empty for one about something else.
        """
        run = self._current()
        for engine in filter(None, {run.findings, run.for_all}):
            engine.restore(found)

    def pause(self) -> None:
        """Take no readings until ``resume``, or until it is stopped: nothing is remembered, exported or counted as missed."""
        self._current().pause()

    def resume(self) -> None:
        """Go on. The time between is part of no window's statistics."""
        self._current().resume()

    def flush(self, timeout: float = CLOSE_TIMEOUT) -> bool:
        """Wait until exporters have delivered what was read, at most so many seconds; whether they have.

        Raises:
            InvalidOptionError: The timeout is no number.
        """
        by = time.monotonic() + _span(timeout)
        return all([worker.flush(max(0.0, by - time.monotonic())) for worker in self._current().workers])  # noqa: C419  each has its turn

    def __enter__(self) -> Monitor:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    async def __aenter__(self) -> Monitor:
        """Start for ``async with``, which stops without blocking the event loop, for which exporters may take their time."""
        return self.start()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        import asyncio  # where there is a loop it is loaded; elsewhere it would be 6 MiB for nothing

        await asyncio.to_thread(self.stop)

    @property
    def running(self) -> bool:
        """Whether it is started, in this process."""
        return self._current().running

    @property
    def latest(self) -> Snapshot | None:
        """The last reading since it was started, None before the first."""
        return self._looked(NEWEST).latest

    @property
    def history(self) -> History:
        """The last readings, by column."""
        return History(self._looked().ring)

    @property
    def status(self) -> MonitorStatus:
        """How the monitor and its exporters fare, or fared until it was stopped."""
        return self._looked().status

    @property
    def error(self) -> str:
        """What is not read and why, in words: nothing at all, or sources whose hardware is there; empty while everything answers."""
        return self._looked(NEWEST).error

    @property
    def findings(self) -> Findings:
        """What rules have found: what lasts, what was over last, and what they could not judge. Iterating gives what lasts."""
        return self._looked(STEPS).found

    @property
    def windows(self) -> tuple[Window, ...]:
        """The last windows that have ended, 32 at most, in the order of their ends."""
        return tuple(self._current().windows.past.copy())

    @property
    def steps(self) -> tuple[Step, ...]:
        """What was logged until the last reading, with what was derived from it: the last hundred."""
        return tuple(self._looked(STEPS).steps.given.copy())

    @property
    def work(self) -> Totals:
        """The work that steps told of until the last reading, by kind (``tokens``, ``samples``) and process."""
        return self._looked(STEPS).steps.work.copy()

    def window(self, name: str = "") -> Window:
        """Make a window, a stretch of the program to be measured: a context manager, a decorator, or begun and ended by hand.

        Windows may nest and overlap, on any threads.

        Raises:
            InvalidOptionError: The name is no text, as where a decorator was written without parentheses.
        """
        if not isinstance(name, str):
            raise InvalidOptionError(
                f"a window's name must be a text, and not {shown(name)}: a decorator is written @monitor.window('name')"
            )
        return Window(self._current().windows, name)

    def tumbling_window(self) -> TumblingWindow:
        """Begin windows that follow each other from reading to reading, without waiting for one: what a trainer's rows are made of."""
        return TumblingWindow(self._current().windows, "")

    def log(self, step: int | None = None, /, *unused: object, **values: SupportsFloat | None) -> None:
        """Put numbers of the program into the stream: ``epoch``, ``loss``, ``learning_rate``, ``grad_norm``, any others.

        ``tokens`` and ``samples`` are those of this step: with them come throughput and the work done per joule, over the
        total energy of the selected devices, and over the mean of one (``…_per_joule_of_mean_device``). Duration and energy
        are those since the last call. None is left out, and so is what is no number; what is not finite is kept and counted.

        Args:
            step: The program's own step, also as ``step=``.
            unused: Nothing; told once where there is something.
            values: The numbers.
        """
        steps = self._current().steps
        found: object = step
        if unused or "step" in values:
            found = steps.first(step, values.pop("step", None), *unused)
        steps.add(self._clock.monotonic(), self._clock.time_ns(), found, values)

    def hear_programs(self) -> None:
        """Take the steps that this user's other programs on this machine have logged, where they share their readings.

        They are given out with the next reading, as those of this program are. Energy per token is over the devices of this monitor.
        Nothing is heard where programs cannot share (Windows).
        """
        if self._programs is None and not cannot_share():
            from accelmetrics.sampling.node import ProgramSteps

            self._programs = ProgramSteps(lambda *step: self._current().hear(*step))
        if self._programs is not None:
            self._programs.look()

    def subscribe(self, callback: Callable[[Snapshot], object]) -> Callable[[], None]:
        """Have a function called with every snapshot, on a thread of its own.

        Returns:
            Call it to end the subscription.

        Raises:
            InvalidOptionError: It cannot be called.
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
            if not subscribed:  # Ctrl-C came between: nobody else could end it
                unsubscribe()
        return unsubscribe

    def __aiter__(self) -> Stream:
        """Iterate with ``async for snapshot in monitor``: every snapshot from now on, until the monitor stops."""
        stream = Stream()
        self._current().follow(stream)
        return stream

    def __repr__(self) -> str:
        state = "running" if self.running else "not running"
        error = f", {self.error}" if self.error else ""
        return f"<Monitor every {self.interval:g} s: {state}, {self.status.ticks} readings, {len(self._workers)} exporters{error}>"

    def _add_worker(self, exporter: Exporter) -> ExportWorker:
        """Make the worker of an exporter, for the next start and those after it."""
        name = distinct(str(getattr(exporter, "name", "") or type(exporter).__name__), self._workers)
        worker = ExportWorker(exporter, name, opened=stop_all_at_exit, read=self._metrics)
        self._workers = {**self._workers, name: worker}
        return worker

    def _tell_step(self, at: float, time_ns: int, step: int | None, values: Mapping[str, float]) -> None:
        """Have the other processes of the job hear of a step."""
        if self.channel.step(at, time_ns, step, values):
            self._current().wake()

    def _new_run(self) -> Run:
        return self._make_run(shared_ticker(self._key, lambda: Ticker(self._make, self.interval, self._clock)))

    def _looked(self, depth: int = ALL_READ) -> Run:
        """Return the run, which has what other processes have read until now."""
        run = self._current()
        run.look(depth)
        return run

    def _current(self) -> Run:
        """Return the run that goes on, or the last one; in the child of a fork an idle one: threads and locks stayed behind."""
        if os.getpid() != self._pid:
            if self._run.phase != IDLE:  # files and sockets are those of the parent; kept, lest they be closed by being forgotten
                self._not_taken = ", ".join(self._workers)
                self._inherited += self._workers.values()
                self._workers = {}
            self._reset()
        return self._run


def _callable(callback: T) -> T:
    """Return a callback.

    Raises:
        InvalidOptionError: It cannot be called.
    """
    if not callable(callback):
        raise InvalidOptionError(f"{shown(callback)} cannot be called: give a function that takes a snapshot, or a finding")
    return callback


def _told_once(callback: Callable[[Finding], object]) -> Callable[[Record], None]:
    """Return what calls a function with every finding of records that begins, and again when it is over."""
    told: frozenset[Finding] = frozenset()

    def export(record: Record) -> None:
        nonlocal told
        before, told = told, frozenset((*record.findings.current, *record.findings.ended))
        for finding in (*record.findings.ended, *record.findings.current):
            if finding not in before:
                callback(finding)

    return export


def _created_notifiers(urls: str | Sequence[str]) -> list[Exporter]:
    """Return what sends messages to addresses.

    Raises:
        InvalidOptionError: One is no address.
        MissingDependencyError: One needs a package that is not installed.
    """
    if not urls:
        return []
    from accelmetrics.exporters.notify import NotifyExporter

    return [NotifyExporter(url) for url in ([urls] if isinstance(urls, str) else urls)]


def _interval(interval: object) -> float:
    if isinstance(interval, bool) or not isinstance(interval, (int, float)) or not SHORTEST_INTERVAL <= interval <= LONGEST_INTERVAL:
        raise InvalidOptionError(f"interval is {interval!r}: it must be a number of seconds from {SHORTEST_INTERVAL} to {LONGEST_INTERVAL}")
    return float(interval)


def _all_labels(labels: Mapping[str, str | None] | None) -> FrozenDict[str, str]:
    """Return the labels of records: the run's id, the host's name, the job's, and those that were given."""
    if labels is not None and not isinstance(labels, Mapping):
        raise InvalidOptionError(f"labels is {labels!r}: it must be a mapping of names to texts")
    given = {str(name): str(value) for name, value in (labels or {}).items() if value is not None}
    return FrozenDict({"run_id": os.urandom(6).hex(), "hostname": hostname(), **job_labels(), **given})


def _created(exporters: Sequence[str | Exporter] | str) -> list[Exporter]:
    """Return the exporters that were given, each object once."""
    if not isinstance(exporters, Iterable):
        raise InvalidOptionError(f"exporters is {exporters!r}: it must be a list of strings such as 'jsonl:run.jsonl', or of exporters")
    made = [create(exporter) for exporter in ([exporters] if isinstance(exporters, str) else exporters)]
    return [exporter for place, exporter in enumerate(made) if not any(exporter is other for other in made[:place])]


def cannot_share() -> str:
    """Return why readings cannot be shared with other processes here; empty where they can."""
    if sys.platform == "win32":
        return "Windows has no such locks"
    return "gevent or eventlet has replaced threads, and all would wait" if are_green() else ""


def _span(seconds: object) -> float:
    """Return a time-out that every clock can take."""
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or isnan(seconds):
        raise InvalidOptionError(f"timeout is {seconds!r}: it must be a number of seconds")
    return min(max(0.0, seconds), LONGEST_INTERVAL)


def _key(options: Mapping[str, Any], interval: float) -> Hashable:
    """Return what monitors must have in common to share their readings; monitors whose options cannot be compared share none."""
    items = tuple(sorted((name, tuple(value) if isinstance(value, list) else value) for name, value in options.items()))
    outcome = guarded(hash, items)
    return (interval, items) if outcome.failure is None else object()
