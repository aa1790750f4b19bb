"""Readings shared by the processes of a job on one machine: one process reads for all, and another takes over when it ends.

The process elected by a lock writes rows into a file (``election.py``, ``shared_ring.py``). The others read that file when somebody
asks them for a reading. A daemon's file (``accelmetrics serve --share``) is preferred if there is one.

A process reads for itself if sharing is impossible: there is no job to share with, the directory is unsafe, or the reading process
does not answer and no other can replace it. It reports the reason once, and tries to share again later.
"""

from __future__ import annotations

import grp
import os
import stat
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

from accelmetrics._version import __version__
from accelmetrics.backends.guard import WarnOnce, guarded
from accelmetrics.backends.registry import items_of, load, named, prepare, select
from accelmetrics.sampling.channel import NodeChannel
from accelmetrics.sampling.election import (
    BELL,
    DEPUTY,
    LOCK,
    RING,
    Bell,
    Lease,
    digest_of,
    job_directory,
    job_files,
    lease_of,
    ring_bell,
    sweep,
    with_end,
)
from accelmetrics.sampling.node_view import HOST, OwnView
from accelmetrics.sampling.options import DEFAULT_OPEN_TIMEOUT, DEFAULT_TIMEOUT, items
from accelmetrics.sampling.rank_file import MESSAGES, STEPS, Logged, Rank, RankFile, Ranks, ranks_of
from accelmetrics.sampling.sampler import Sampler, check_of, moment_of
from accelmetrics.sampling.shared_ring import LATE, LATE_INTERVALS, SLOTS, SharedRing, SharedRingWriter, SharedRow, Writer
from accelmetrics.sampling.slot_file import NotSharedError, is_own
from accelmetrics.schemas.errors import AccelMetricsError, InvalidOptionError
from accelmetrics.schemas.limits import SHORTEST_INTERVAL
from accelmetrics.schemas.named_tuple import NamedTuple
from accelmetrics.schemas.reading import Header
from accelmetrics.schemas.record import NO_FINDINGS, Findings, StepSource
from accelmetrics.schemas.selection import ALL, MetricSelection
from accelmetrics.schemas.snapshot import Snapshot

DAEMON = "/run/accelmetrics"
"""The directory that a machine's daemon writes to. Only root can create it."""
SHARE_VARIABLE = "ACCELMETRICS_SHARE_DIRECTORY"
"""Environment variable with the directory of a daemon that writes elsewhere."""
DAEMON_FILES = "machine"
"""Prefix of the names of a daemon's files. The rest of the name depends on the release, since each release has its own format."""
JOBS = ("SLURM_JOB_ID", "TORCHELASTIC_RUN_ID", "RAY_JOB_ID")
"""The variables that identify a job; the first one that is set counts."""
LATEST_NS = 2**63
"""Upper bound of a step's time in nanoseconds since 1970."""
RETRY = 30.0
"""Seconds until a process that reads for itself tries to share again."""
NO_JOB = "this process is of no job: SLURM_JOB_ID, TORCHELASTIC_RUN_ID, RAY_JOB_ID, and MASTER_ADDR with MASTER_PORT are not set"
"""Why a process that no launcher started reads for itself."""
FIRST_PAUSE, LAST_PAUSE = 0.0005, 0.01
"""First and longest pause in seconds between two checks for a row. Each pause is twice the one before."""
FIRST_ROW = 3.0
"""Seconds to wait for the first row, in addition to the time for opening and reading."""
EVERY = 1.0
"""Seconds between two checks of the other processes' wishes."""
LAG = 0.002
"""Seconds by which ticks follow the rows of the reading process, so that a tick need not wait for its row."""
EARLY = 0.3
"""Share of the interval by which a row may come early and still count as due."""
OnStep = Callable[[float, int, int | None, Mapping[str, float], StepSource], object]
_OF_PROCESS = frozenset({"metrics", "gpus", "visible", "pid", "children"})
"""Options that may differ between processes that share."""


def job_key(environment: Mapping[str, str] | None = None) -> str:
    """Return a text that identifies the job; empty if no scheduler or launcher names one.

    Args:
        environment: The environment variables; by default those of this process.
    """
    values = os.environ if environment is None else environment
    named = [f"{name}={values[name]}" for name in JOBS if values.get(name, "none") not in ("", "none")]
    address, port = values.get("MASTER_ADDR", ""), values.get("MASTER_PORT", "")
    return named[0] if named else f"{address}-{port}" if address and port else ""


def daemon_files(directory: str, options: Mapping[str, Any]) -> Path:
    """Return the common prefix of the paths of a daemon's files. It differs between releases, and between shared options."""
    return Path(directory) / f"{DAEMON_FILES}-{digest_of(*_shared(options))}"


def _shared(options: Mapping[str, Any]) -> tuple[object, ...]:
    """Return the values, apart from the backends, that processes must have in common to share a reading."""
    return __version__, tuple(items(options.get("disk_paths", "/")) or ("/",)), options.get("amd_source")


def union(selections: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the items of a selection that covers all of these selections.

    Equal selections are returned as they are. The union of different ones has the items of all, without exclusions.
    """
    first, *others = dict.fromkeys(selections)
    chosen = [[item for item in items if not item.startswith("-")] or [ALL] for items in (first, *others)]
    every = {item for items in chosen for item in items}
    return first if not others else (ALL,) if ALL in every else tuple(sorted(every))


class Taken(NamedTuple):
    """A reading of a process that shares.

    Attributes:
        snapshot: The reading, as this process sees it.
        at: When the reading of the devices began.
        tick: Whether it was due here at the interval; otherwise it was requested.
        newest: Whether it is the newest reading. Only then it includes the facts of this process itself, read just now.
        findings: The findings, as written by the process that evaluates rules; None if each process evaluates them itself.
        whole: The unfiltered reading, if this process reads for the others.
        seen: Filters findings about the whole reading to those that this process sees.
    """

    snapshot: Snapshot
    at: float
    tick: bool = True
    newest: bool = True
    findings: Findings | None = None
    whole: Snapshot | None = None
    seen: Callable[[Findings], Findings] | None = None


class NodeReader:
    """Takes part in the shared readings of a job or of a daemon. For one thread, except ``request``.

    Args:
        options: The options of :class:`~accelmetrics.sampling.sampler.Sampler`.
        interval: Seconds between two readings.
        channel: The channel for messages and steps.
        labels: The monitor's labels, including the rank of this process.
        demand: Called, on other threads, when ``take`` must be called soon: a reading is requested, or this process is elected.
        on_step: Called with a step that another process logged: the arguments of the monitor's own steps, then the source of the step.
        daemon: The directory to write to for the whole machine, and the group that may read there; None in the processes of a job.

    Attributes:
        channel: The channel for messages and steps.
        findings: The findings to publish. Set by the code that evaluates rules, in the process that reads.
        due: When the next reading is due, on the machine's monotonic clock.
    """

    def __init__(
        self,
        options: Mapping[str, Any],
        interval: float,
        channel: NodeChannel,
        labels: Mapping[str, str],
        demand: Callable[[], object],
        on_step: OnStep,
        daemon: tuple[Path, int | None] | None = None,
    ) -> None:
        self._options, self._interval, self.channel, self._labels = dict(options), interval, channel, labels
        self._demand, self._on_step, self._daemon = demand, on_step, daemon
        self._timeout = float(options.get("timeout", DEFAULT_TIMEOUT))
        self._opening = float(options.get("open_timeout", DEFAULT_OPEN_TIMEOUT)) + self._timeout
        self._metrics = MetricSelection(options.get("metrics", ALL))
        self._check = check_of(self._metrics)
        self._view = OwnView(options)
        self._warn_once = WarnOnce("readings are not shared: ")
        self.findings = NO_FINDINGS
        self.due = 0.0
        self._files = Path()  # the common prefix of the paths of the shared files
        # Set while it shares: the ring that it follows, the right to read (None if a daemon reads), and the other processes of the job.
        # The writer is set while it reads for them, the sampler while it reads, for them or for itself.
        self._ring: SharedRing | None = None
        self._lease: Lease | None = None
        self._ranks: Ranks | None = None
        self._writer: SharedRingWriter | None = None
        self._sampler: Sampler | None = None
        self._resources = ExitStack()  # releases everything when it stops sharing
        self._wanted: tuple[str, ...] = ()  # the metrics that the sampler reads
        self._sees_all = not any(options.get(name) for name in _OF_PROCESS - {"metrics"})
        self._shown: Header | None = None  # the header of the last row taken, or of the last reading shown by the view
        self._candidate: Callable[[], object] = demand  # the candidate of the lease; a new object for each candidacy
        self._is_deputy = False
        self._asked: deque[float] = deque(maxlen=1000)
        self._seen = self._first = 0  # the numbers of the last row taken, and of the first row that may be taken
        self._last = 0.0  # when the last row taken was completed; before the first row, when the wait for it began
        self._next_tick = 0.0
        self._looked_at = self._retry_at = float("-inf")
        self._pace = interval  # the interval of the process that reads

    @property
    def leads(self) -> bool:
        """Whether this process reads, for the others or for itself."""
        return self._sampler is not None

    @property
    def elected(self) -> bool:
        """Whether this process holds the right to read for the others."""
        return self._is_deputy or (self._lease is not None and self._lease.leader is self._candidate)

    @property
    def slack(self) -> float:
        """Seconds until rows may be overwritten, with a safety margin: read the ring at least this often."""
        return SLOTS / 2 * self._pace

    def request(self) -> bool:
        """Request a reading soon. Safe from any thread.

        Returns:
            Whether the caller must call ``take`` for it. If another process reads, it is notified here.
        """
        self._asked.append(time.monotonic())
        if not self.leads and self._lease is not None:
            ring_bell(with_end(self._files, BELL))
        return self.leads

    def peek(self) -> Taken | None:
        """Return the newest reading of another process, without consuming it; None if only ``take`` can tell."""
        row = None if self._ring is None or self.leads or self.elected else self._ring.newest()
        if row is None or row.number < self._first or time.monotonic() - row.ended > LATE + LATE_INTERVALS * self._pace:
            return None
        return Taken(self._view.snapshot(row, self.channel.devices), row.at)

    def take(self, asked: bool, receive: bool = True) -> list[Taken]:
        """Return the readings since the last call.

        Args:
            asked: Whether to return a reading that begins after this call, and not only the existing ones.
            receive: Whether to receive the steps of other processes too.

        Raises:
            UnknownNameError: ``gpus`` names a device that does not exist.
        """
        if self._is_removed():
            self._leave()
        try:
            if self._ring is None and time.monotonic() >= self._retry_at:
                self._join()
            if self.elected and self._writer is None:
                self._lead()
            if self._writer is not None:
                return self._read_for_all(self._writer, asked)
            if self._ring is not None:
                return self._rows(self._ring, asked, receive)
        except NotSharedError as error:
            if self._is_removed():
                return self.take(asked, receive)
            self._read_alone(str(error))
        assert self._sampler is not None
        began = time.monotonic()
        snapshot = self._sampler.sample()
        self.due = _next_after(began, self.due, self._interval)
        return [Taken(snapshot, moment_of(snapshot, began, time.monotonic()), self._is_tick(began))]

    def close(self) -> None:
        """Leave. If this process has read for others, another one takes over. The reader can be used again."""
        self._leave()
        self._close_sampler()
        self._view.close()
        self.channel.role = ""

    # Readings

    def _read_for_all(self, writer: SharedRingWriter, asked: bool) -> list[Taken]:
        """Take a reading of everything that any process wants, and write it as the next row."""
        if asked or time.monotonic() - self._looked_at >= EVERY:
            self._look_at_others(True)
            self._choose()
        assert self._sampler is not None
        began = time.monotonic()
        snapshot = self._sampler.sample()
        ended = time.monotonic()
        at = moment_of(snapshot, began, ended)
        self.due = _next_after(began, self.due, self._pace)
        while not writer.write(snapshot, at, ended, self.findings, self._pace):
            if self._is_deputy or self._lease is None or not self._lease.lock.is_current:  # another process reads
                self._look_at_others(True)  # before leaving: after joining again, only newer messages are received
                self._leave()
                return self.take(asked)
            writer.take(self._pace, self._timeout)  # back from a deputy that wrote while this process was stopped
        self._seen, self._last, tick = writer.number, ended, self._is_tick(at)
        self._asked.clear()
        # The usual case of a job with equal options: this process sees exactly the reading, so the view has nothing to filter.
        if self._sees_all and snapshot.header is self._shown and self._wanted == tuple(self._metrics.items):
            taken = Taken(snapshot if self._check is None else self._check(snapshot), at, tick)
        else:
            facts = snapshot.header, snapshot.numbers, snapshot.time_ns, at, ended, tuple(snapshot.backends), snapshot.processes
            taken = self._taken(SharedRow(writer.number, *facts, NO_FINDINGS), tick, True)
            self._shown = snapshot.header
        return [taken._replace(whole=snapshot, findings=None, seen=self._view.findings)]

    def _rows(self, ring: SharedRing, asked: bool, receive: bool) -> list[Taken]:
        """Return the rows since the last call that are due or were requested here. Waits for requested ones.

        Raises:
            NotSharedError: No row arrives, and this process cannot replace the one that should write it.
        """
        if asked and self._lease is not None:  # a daemon cannot be asked
            self.request()
        pause, until = FIRST_PAUSE, time.monotonic() + self._timeout
        rows: list[SharedRow] = []
        ticks: set[float] = set()

        def wants(at: float) -> bool:
            if self._is_tick(at):
                ticks.add(at)
            before = len(self._asked)
            while self._asked and at >= self._asked[0]:
                self._asked.popleft()
            return at in ticks or len(self._asked) < before

        while True:
            rows += ring.rows(self._seen, wants)
            if rows:
                self._seen, self._last = rows[-1].number, rows[-1].ended
            late = not rows and self._is_late(ring)
            if late or self.elected or time.monotonic() >= until or not self._asked or (rows and rows[-1].at >= self._asked[-1]):
                break
            time.sleep(pause)
            pause = min(2 * pause, LAST_PAUSE)
        if late and not self.elected:
            if self._lease is None:  # the daemon has stopped writing: the job's processes share among themselves
                self._leave()
            elif self._lease.deputize():  # the lease holder is stopped (SIGSTOP, a debugger)
                self._is_deputy = True
                self._resources.callback(self._lease.resign)
            elif time.monotonic() - self._last > self._opening + FIRST_ROW + LATE_INTERVALS * self._pace:
                raise NotSharedError("the process that reads for this machine does not answer")
        if not rows and (self.elected or self._ring is None):
            return self.take(asked, receive)
        if receive or self.channel.has_subscriber or time.monotonic() - self._looked_at >= EVERY:
            self._look_at_others(receive)
        if rows and rows[-1].header is not self._shown:
            self._shown = rows[-1].header
            for source in self._shown.backends if self._options.get("isolation") != "process" else ():
                if source.status != "absent":  # imported in advance: that is half of the gap when this process takes over
                    guarded(lambda name: prepare(load(name)), source.name)
        self.due = self._last + max(self._interval, self._pace) + LAG if rows else time.monotonic() + max(LAG, self._pace / 10)
        return [self._taken(row, row.at in ticks, row is rows[-1]) for row in rows]

    def _is_tick(self, at: float) -> bool:
        """Return whether a reading was due here at this time, and schedule the next one."""
        tick = at >= self._next_tick - EARLY * self._interval
        if tick:
            self._next_tick = max(self._next_tick + self._interval, at)
        return tick

    def _taken(self, row: SharedRow, tick: bool, newest: bool) -> Taken:
        """Return a row as this process sees it."""
        snapshot = self._view.snapshot(row, self.channel.devices, newest)
        file, devices = self.channel.file, list(self._view.visible)
        if file is not None and devices != file.wishes["devices"]:
            file.wish({**file.wishes, "devices": devices})
        findings = None if self._lease is None else self._view.findings(row.findings)
        return Taken(snapshot if self._check is None else self._check(snapshot), row.at, tick, newest, findings)

    # Electing the process that reads

    def _is_late(self, ring: SharedRing) -> bool:
        """Return whether the next row, or the first one, is overdue."""
        unknown = Writer(interval=self._interval, patience=LATE + LATE_INTERVALS * self._interval)
        writer, newest, now = ring.writer() or unknown, ring.newest(), time.monotonic()
        self._pace = writer.interval or self._pace
        last = max(self._last, newest.ended if newest is not None and newest.ended <= now else 0.0)
        return now >= writer.opening and now - last > writer.patience

    def _lead(self) -> None:
        """Start reading for the others.

        Raises:
            NotSharedError: The file cannot be created.
        """
        reads = ",".join([one.name for one in select(self._options.get("backends"))])
        writer = SharedRingWriter(with_end(self._files, RING), None if self._daemon is None else self._daemon[1], reads)
        writer.take(self._interval, self._timeout, self._opening)
        self._writer, self.due, self._wanted = writer, time.monotonic(), ()
        for close in (writer.close, self._close_sampler):
            self._resources.callback(close)
        self._look_at_others(True)
        self._choose()
        if self._daemon is None:
            bell = guarded(
                Bell, with_end(self._files, BELL), self._demand
            ).value  # None if it cannot be created: windows then end with the next row
            self._resources.callback(bell.close if bell is not None else bool)
            guarded(sweep, self._files.parent)
        self.channel.role, self.channel.why = "holder", ""

    def _choose(self) -> None:
        """Adopt the shortest interval and the union of the metrics of all processes."""
        wishes = [rank.wishes for rank in self._others()]
        asked = [one["interval"] for one in wishes if isinstance(one.get("interval"), (int, float))]
        self._pace = min((self._interval, *[pace for pace in asked if pace >= SHORTEST_INTERVAL]))
        listed = [tuple(map(str, one["metrics"])) for one in wishes if isinstance(one.get("metrics"), list)]
        wanted = union([tuple(self._metrics.items), *listed])
        if wanted != self._wanted:
            # The selection fails if it names a metric of a plug-in that this process has not loaded. Then everything is read.
            metrics = guarded(MetricSelection, wanted).value or ALL
            options = {name: value for name, value in self._options.items() if name not in _OF_PROCESS}
            before, self._sampler, self._wanted = self._sampler, Sampler(**options, metrics=metrics), wanted
            if before is not None:
                self._sampler.sample()  # before the old sampler is closed: sources of both stay open
                before.close()

    # Wishes, steps and messages of the other processes

    def _others(self) -> list[Rank]:
        own = None if self.channel.file is None else self.channel.file.path
        return [] if self._ranks is None else [rank for path, rank in self._ranks.alive.items() if path != own]

    def _look_at_others(self, receive: bool) -> None:
        """Update the list of the job's other processes, and receive their steps and messages."""
        channel, self._looked_at = self.channel, time.monotonic()
        if self._ranks is None:
            return
        self._ranks.look()
        wishes = [rank.wishes for rank in self._ranks.alive.values()]
        channel.processes = len(wishes)
        channel.devices = frozenset(str(one) for wish in wishes for one in (wish.get("devices") or ()))
        for rank in (*self._others(), *self._ranks.ended):
            parts = (STEPS, MESSAGES) if receive or rank in self._ranks.ended else (MESSAGES,) if channel.has_subscriber else ()
            _receive(rank, parts, self._on_step, channel.give)
            channel.dropped, rank.dropped = channel.dropped + rank.dropped, 0

    # Joining and leaving

    def _join(self) -> None:
        """Follow the daemon, or join the job: follow the process that reads, or become it.

        Raises:
            NotSharedError: Neither is possible.
        """
        job, options = job_key(), self._options
        if not all(isinstance(backend, str) for backend in items_of(options.get("backends")) or ()):
            raise NotSharedError("backends that are objects cannot be shared")
        ring = None
        if self._daemon is not None:
            job, self._files = "", daemon_files(str(self._daemon[0]), options)
        elif (ring := self._find_daemon()) is None and not job:
            raise NotSharedError(NO_JOB)
        if job:
            self._files = job_files(job, *_shared(options), items_of(options.get("backends")))
        if ring is None:
            ring, lease, self._candidate = SharedRing(with_end(self._files, RING), is_own), lease_of(self._files), partial(self._demand)
            self._resources.callback(lease.leave, self._candidate)
            self._resources.callback(_remove_files, self._files, lease)
            self._lease = lease
        self._resources.callback(ring.close)
        if job:
            self._write_steps(self._files, f"job {job.rpartition('=')[2]}")
            self._ranks = Ranks(self._files)
            self._resources.callback(self._ranks.close)
            self._look_at_others(False)
        elif self._daemon is None:
            self._write_steps_alone()
        if self._lease is not None:
            self._lease.join(self._candidate)
        newest = guarded(ring.newest).value  # a daemon's newest row is taken, since its next one may be far off
        self._seen = 0 if newest is None else newest.number - (self._lease is None)
        self._first, self._last, self._ring = self._seen + 1, time.monotonic(), ring
        self._close_sampler()
        self.channel.role, self.channel.why = "client", ""

    def _write_steps(self, files: Path, program: str) -> None:
        """Write the steps of this process into a file, for the other processes of its job and for ``watch``.

        Raises:
            NotSharedError: The file cannot be created.
        """
        rank = self._labels.get("rank", "")
        wishes = {"interval": self._interval, "metrics": list(self._metrics.items), "devices": list(self._view.visible)}
        who = {"rank": int(rank) if rank.isdecimal() else None, "node": self._labels.get("hostname", ""), "program": program}
        self.channel.join(file := RankFile(files, {**wishes, **who}))
        self._resources.callback(file.close)

    def _write_steps_alone(self) -> None:
        """Write the steps of a process that is of no job, for ``watch``."""
        with suppress(NotSharedError, OSError):
            files = job_files(program := f"pid {os.getpid()}")
            left = Ranks(files.parent)  # of processes that were killed
            left.look()
            left.close()
            self._write_steps(files, program)

    def _find_daemon(self) -> SharedRing | None:
        """Return the ring of the daemon; None if there is no daemon that reads everything wanted here."""
        named = os.environ.get(SHARE_VARIABLE, "")
        directory = Path(named or DAEMON)
        if not (named or directory.exists()):
            return None
        path = with_end(daemon_files(str(directory), self._options), RING)
        why = f"no daemon writes in {named!r}, which {SHARE_VARIABLE} names" if named else ""
        try:
            ring = SharedRing(path, trusted_in(directory))
            writer, newest, now = ring.writer(), ring.newest(), time.monotonic()
            writes = writer is not None and (now < writer.opening or (newest is not None and 0.0 <= now - newest.ended <= writer.patience))
            if writer is not None and writes and self._is_served_by(writer.reads):
                return ring
            ring.close()
            if writes or next(directory.glob(f"{DAEMON_FILES}-*{RING}"), path) != path:
                why = f"the daemon of {directory} is not of release {__version__}, or reads other backends, disk_paths or amd_source"
        except (NotSharedError, OSError) as error:
            why = str(error)
        if why:
            self._warn_once.user(why, f"{why}: the processes of a job share without the daemon")
        return None

    def _is_served_by(self, reads: str) -> bool:
        """Return whether a daemon with these backends reads every device wanted here, and no other.

        Backends without hardware here make no difference. The host may be missing: then each process reads the host itself.
        """
        selection = self._options.get("backends")
        wanted = {one.name for one in select(selection)}
        for name in (wanted ^ set(reads.split(","))) - (wanted & {HOST}):
            if name in named(selection) or guarded(lambda name: load(name).detect().present, name).value:
                return False
        return True

    def _is_removed(self) -> bool:
        """Return whether this process's file was removed, perhaps because a logout removed ``XDG_RUNTIME_DIR``."""
        return self.channel.file is not None and not self.channel.file.file.is_current

    def _leave(self) -> None:
        """Stop sharing. The last process removes the shared files."""
        self.channel.tell(inf)
        self.channel.file = None
        guarded(self._resources.close)
        self._ring, self._ranks, self._lease, self._writer, self._is_deputy = None, None, None, None, False

    def _close_sampler(self) -> None:
        sampler, self._sampler = self._sampler, None
        if sampler is not None:
            sampler.close()

    def _read_alone(self, why: str) -> None:
        """Read for itself from now on, and try to share again later."""
        if why != NO_JOB:
            self._leave()
            self._warn_once.user(why, f"{why}: this process reads for itself")
        self.channel.alone(why)
        self._retry_at = time.monotonic() + RETRY
        self._sampler = self._sampler or Sampler(**self._options)  # a process that already reads for itself keeps its sampler
        if why == NO_JOB and self.channel.file is None:  # a process outside of a job is normal, and keeps the file of its steps
            self._write_steps_alone()


class ProgramSteps:
    """Receives the steps of this user's programs on this machine that share their readings. For one thread.

    Args:
        on_step: Called with a step, as for :class:`NodeReader`. The machine in its source is ``PROGRAM of MACHINE``, because ranks of
            two programs have the same numbers.
        earlier: Whether the first look also receives the steps that the programs' files still hold.
    """

    def __init__(self, on_step: OnStep, *, earlier: bool = False) -> None:
        self._on_step, self._earlier = on_step, earlier
        self._ranks: Ranks | None = None

    def look(self) -> None:
        """Receive the steps that other programs logged since the last call; at the first call, none unless ``earlier``."""
        if self._ranks is None:
            with suppress(NotSharedError):
                self._ranks = Ranks(job_directory(make=False), self._earlier)
        if self._ranks is not None:
            self._ranks.look()
            named = [(rank, str(rank.wishes.get("program") or "a program")) for rank in (*self._ranks.alive.values(), *self._ranks.ended)]
            own = {program for rank, program in named if rank.own}  # its monitor logs them, and receives those of its job
            for rank, program in named:
                if program not in own:
                    _receive(rank, (STEPS, MESSAGES), self._on_step, lambda _: None, program)

    def close(self) -> None:
        """Close the programs' files."""
        if self._ranks is not None:
            self._ranks.close()


def _receive(
    rank: Rank, parts: Sequence[int], on_step: OnStep, on_message: Callable[[Mapping[str, Any]], object], program: str = ""
) -> None:
    """Receive the steps and messages that another process has written to these parts of its file."""
    for part in parts:
        for found in guarded(list, rank.received(part)).value or ():
            for step in found if isinstance(found, list) else ():
                guarded(_pass_step, on_step, rank, step, program)
            if isinstance(found, dict):
                on_message(found)


def _pass_step(on_step: OnStep, rank: Rank, logged: Logged, program: str) -> None:
    """Pass on a step that another process has logged.

    Raises:
        ValueError, TypeError, AttributeError: It is not a step.
    """
    time_ns, step, at, values = logged
    if not 0 <= int(time_ns) < LATEST_NS:
        raise ValueError(f"the time {time_ns} is out of range")
    number, node = rank.wishes.get("rank"), str(rank.wishes.get("node"))
    source: StepSource = (number if type(number) is int else None, f"{program} of {node}" if program else node)
    numbers = {name: value if type(value) is int else float(value) for name, value in values.items()}
    on_step(float(at), int(time_ns), step, numbers, source)


def _remove_files(files: Path, lease: Lease) -> None:
    """Remove the shared files if no process is left."""
    if not any(ranks_of(files)) and guarded(lease.lock.take, False).value:
        for end in (RING, BELL, DEPUTY, LOCK):  # the lock last: while it exists, no other process writes
            guarded(with_end(files, end).unlink, missing_ok=True)


def daemon_place(directory: str, group: str, options: Mapping[str, Any]) -> tuple[Path, int | None]:
    """Prepare the directory of a daemon. Return it, and the id of the group that may read there.

    Raises:
        InvalidOptionError: The group does not exist, or this user is not a member.
        AccelMetricsError: The directory cannot be used, or another daemon writes there.
    """
    path, number = Path(directory), None
    if group:
        try:
            number = grp.getgrnam(group).gr_gid
        except KeyError:
            raise InvalidOptionError(f"cannot share: there is no group {group!r}") from None
        if os.geteuid() and number not in (os.getegid(), *os.getgroups()):
            raise InvalidOptionError(
                f"cannot share: this user is not in the group {group!r}. In a systemd unit, set SupplementaryGroups={group}"
            )
    try:
        with suppress(FileExistsError):
            path.mkdir()
            path.chmod(0o755)
        if not lease_of(daemon_files(directory, options)).lock.take(False):
            raise AccelMetricsError(f"cannot share in {path}: another daemon does")
    except (OSError, NotSharedError) as error:
        raise AccelMetricsError(f"cannot share in {path}: {error}") from error
    return path, number


def trusted_in(directory: Path) -> Callable[[os.stat_result], bool]:
    """Return a function that decides whether a file of a daemon's directory may be read.

    A file is trusted if it belongs to root, to this user, or to the owner of the directory. Only root can create the usual directory;
    a user who names another directory in the environment vouches for it. Nobody else may be able to write the file or replace it.
    """

    def trusted(found: os.stat_result) -> bool:
        place = directory.stat()
        closed = not (stat.S_IMODE(place.st_mode) & 0o022 or stat.S_IMODE(found.st_mode) & 0o022)
        return closed and found.st_uid in (0, os.geteuid(), place.st_uid)

    return trusted


def _next_after(began: float, due: float, pace: float) -> float:
    """Return when the next reading is due: on the schedule without missed readings; sooner if the interval is shorter now."""
    if began >= due - EARLY * pace:
        due += pace * (1 + max(0, (time.monotonic() - due) // pace))
    return min(due, began + pace)
