"""``isolation="process"``: the same backends in a child behind a socket.

What threads cannot promise, the child does: a driver call that nothing can end does not hold the program's exit, a library
that calls ``exit`` takes only the child with it, a fork in the middle of a driver call finds no locked mutex here, and a
busy interpreter delays a reading by two switches, not by one per driver call.

When the child dies or stops answering, everything it gave is missing with the reason, and another is started with
back-off; devices keep their numbers, readings and statistics go on counting. Only a sampler's very first reading waits for
a child to start: later ones answer within their deadline while one is starting.

A child is hung up on, and killed if it must be, but never waited for where that could take long: it may be stuck in the
kernel. What is left of it is collected whenever somebody next starts or parts with one.
"""

from __future__ import annotations

import io
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from types import FunctionType

from accelmetrics.backends.clock import SYSTEM_CLOCK
from accelmetrics.backends.contract import Backend
from accelmetrics.backends.guard import guarded
from accelmetrics.backends.registry import is_registered
from accelmetrics.sampling.boundary import coverage
from accelmetrics.sampling.child import Answer, Order
from accelmetrics.sampling.engine import Statistics, hostname
from accelmetrics.sampling.inventory import Seen
from accelmetrics.sampling.options import Options
from accelmetrics.sampling.wire import Wire, pair
from accelmetrics.schemas.errors import InvalidOptionError, SourceError
from accelmetrics.schemas.identity import BackendStatus
from accelmetrics.schemas.reasons import Reason, Unavailable
from accelmetrics.schemas.snapshot import DeviceSlot, Snapshot

START_UP = 5.0
"""Seconds that a fresh interpreter may take to import this package on a busy machine."""
GRACE = 0.25
"""Share of the timeout that the child's own deadline may overrun before the child counts as late."""
FIRST_RETRY, LAST_RETRY = 0.1, 30.0
PATIENCE = 3
"""Readings in a row without an answer after which the child is replaced."""
LAST_WORDS = 0.25
"""Seconds that one which has closed the line has to leave, so that it can be said how it ended."""
FAREWELL, BURIAL = 1.0, 0.5
"""Seconds that one has to leave when the sampler is closed, and then to be gone when it was killed."""


class Child:
    """A process that was started here. ``Popen`` would warn about one that is left to itself, and this one may be.

    Attributes:
        pid: Its number.
        ended: Whether it has gone.
        status: How it ended, negative by a signal; None when that is not known.
    """

    def __init__(self, started: subprocess.Popen[bytes]) -> None:
        self.pid = started.pid
        self.ended = False
        self.status: int | None = None
        started.returncode = 0  # it is looked after here

    def wait(self, seconds: float) -> bool:
        """Whether it has gone, at the latest after so long."""
        until = time.monotonic() + seconds
        pause = 0.001
        while not self._look() and time.monotonic() < until:
            time.sleep(pause)
            pause = min(2.0 * pause, 0.02)
        return self.ended

    def kill(self) -> None:
        """End it, unless it has ended; one that is stuck in the kernel goes when the driver lets it."""
        if not self._look():
            with suppress(ProcessLookupError):  # somebody else has just collected it
                os.kill(self.pid, signal.SIGKILL)

    def _look(self) -> bool:
        if not self.ended:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # the program collects children of its own, and has collected this one
                self.ended = True
            else:
                self.ended = pid != 0
                self.status = os.waitstatus_to_exitcode(status) if pid else None
        return self.ended


class Reader:
    """One reading process and the line to it.

    Attributes:
        child: The process.
        wire: The line.
        up: Whether it has answered once.
        patient_until: Until when it may take to start, on the machine's monotonic clock.
        unanswered: Readings in a row that it has not answered in time.
        counted: What it had counted at its last answer.
        ticket: The number of the latest request.
    """

    def __init__(self, child: Child, wire: Wire, patience: float) -> None:
        self.child = child
        self.wire = wire
        self.up = False
        self.patient_until = time.monotonic() + patience
        self.unanswered = 0
        self.counted = Statistics()
        self.ticket = 0

    def ask(self) -> int:
        """Send for a reading."""
        self.ticket += 1
        self.wire.send(self.ticket)
        return self.ticket

    def receive(self, until: float) -> Answer:
        """The next answer.

        Raises:
            BlockingIOError: It did not come in time.
            EOFError: The child is gone.
            SourceError: The child has said why it leaves.
        """
        answer: Answer = self.wire.receive(until - time.monotonic())
        if answer.failure is not None:
            raise SourceError(Reason.DRIVER_ERROR, f"failed: {answer.failure.detail}")
        self.up = True
        self.unanswered = 0
        return answer


class ProcessEngine:
    """Takes snapshots in a child process.

    Args:
        backends: Which backends, in numbering order.
        forced: Names of those that are opened whatever detection says.
        options: What to read, and how long to wait.
    """

    def __init__(self, backends: Sequence[Backend], forced: frozenset[str], options: Options) -> None:
        if not hasattr(socket, "AF_UNIX"):
            raise InvalidOptionError("isolation='process' needs Unix sockets, which this platform does not have: use isolation='thread'")
        self.statistics = Statistics()
        self._backends = tuple(_portable(backend) for backend in backends)
        self._names = [backend.name for backend in backends]
        hosts = [guarded(coverage, backend).value for backend in backends if backend.kind is None]
        self._host_keys = tuple(key for host in hosts if host for key in host.machine)
        self._forced = forced
        self._options = options
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._reader: Reader | None = None
        self._finalizer: weakref.finalize[..., ProcessEngine] | None = None
        self._first = True
        self._failures = 0
        self._retry_at = 0.0
        self._fate = ""
        self._why = Unavailable(Reason.DRIVER_UNAVAILABLE, "the reading process has not been started")
        self._last: Snapshot | None = None
        self._seen: Sequence[Seen] = ()
        self._read_before: dict[str, int] = {}
        _ENGINES.add(self)

    def take(self) -> Snapshot:
        """One snapshot, or one that says why there is none. Safe from any thread."""
        self._check()
        with self._lock:
            first, self._first = self._first, False
            until = time.monotonic() + self._patience
            reader = self._ready(first)
            snapshot = None if reader is None else self._ask(reader, reader.patient_until if first else until)
            if snapshot is None:
                return self._nothing()
            self._last = snapshot
            return snapshot

    def close(self) -> None:
        """Let the child go; it leaves by itself when the line is closed, and is killed if it does not."""
        self._check()
        with self._lock:
            child = self._part()
            if child is not None and not child.wait(FAREWELL):
                child.kill()
                child.wait(BURIAL)
            self._why = Unavailable(Reason.DRIVER_UNAVAILABLE, "the sampler was closed")
            self._fate = ""
            self._failures = 0
            self._retry_at = 0.0
            self._first = True

    def after_fork(self) -> None:
        """In the child of a fork the line belongs to the parent: put this copy of it down, and start over."""
        self._pid = os.getpid()
        self._lock = threading.Lock()
        if self._finalizer is not None:
            self._finalizer.detach()
        if self._reader is not None:
            self._reader.wire.close()
        self._reader = self._finalizer = None
        self._first = True

    def _check(self) -> None:
        if os.getpid() != self._pid:  # a fork made from C bypasses Python's hooks
            self.after_fork()

    @property
    def _patience(self) -> float:
        return self._options.timeout * (1.0 + GRACE)

    def _ready(self, first: bool) -> Reader | None:
        """The child, started if need be; None until it is time to start another."""
        if self._finalizer is not None and not self._finalizer.alive:  # the interpreter exits, and has hung up
            self._reader = self._finalizer = None
        if self._reader is None and time.monotonic() >= self._retry_at:
            try:
                self._start(first)
            except (OSError, TypeError, ValueError) as error:  # no descriptors, no memory, no interpreter
                self._drop(Reason.DRIVER_UNAVAILABLE, f"could not be started: {error}")
        return self._reader

    def _start(self, first: bool) -> None:
        _collect()
        child, wire = _spawn()
        self._reader = reader = Reader(child, wire, self._patience + self._options.open_timeout + START_UP)
        self._finalizer = weakref.finalize(self, _let_go, reader, self._pid)
        if self._last is not None:
            self._read_before = {status.name: status.sequence for status in self._last.backends}
        wire.limit_sending(START_UP)
        wire.send(Order(self._backends, self._forced, self._order(first), self._seen))

    def _order(self, first: bool) -> Options:
        options = self._options._replace(pid=self._options.pid or self._pid)
        if first or self._last is None:
            return options
        # The numbering is known already: sources that open at once need not wait for one that does not.
        return options._replace(open_timeout=min(options.timeout, options.open_timeout))

    def _ask(self, reader: Reader, until: float) -> Snapshot | None:
        """Send for a reading and wait for the answer to it; answers to earlier requests are passed over."""
        try:
            # One that is starting has its first request already: it is not asked again before it has answered that.
            ticket = 0 if reader.ticket and not reader.up else reader.ask()
            while True:
                answer = reader.receive(until)
                self._note(reader, answer, answer.ticket == ticket)
                if answer.ticket == ticket:
                    return self._accept(answer)
                ticket = ticket or reader.ask()
        except BlockingIOError:
            self._late(reader)
        except (EOFError, OSError):
            self._died(reader)
        except SourceError as failure:
            self._drop(failure.reason, failure.message)
        return None

    def _note(self, reader: Reader, answer: Answer, counts: bool) -> None:
        """Take what an answer brings beside the snapshot. One that came too late was counted when it did not come."""
        self._failures = 0
        self._fate = ""
        self._seen = answer.seen or self._seen
        if counts:
            new = zip(self.statistics, answer.statistics, reader.counted, strict=True)
            self.statistics = Statistics(*(total + now - before for total, now, before in new))
        reader.counted = answer.statistics

    def _accept(self, answer: Answer) -> Snapshot | None:
        if answer.error is not None:
            raise answer.error
        snapshot = answer.snapshot
        if snapshot is not None and self._read_before:
            self._remember(snapshot)
            snapshot.backends = tuple(
                status._replace(sequence=status.sequence + self._read_before.get(status.name, 0)) for status in snapshot.backends
            )
        return snapshot

    def _remember(self, snapshot: Snapshot) -> None:
        """A source that this child has not read yet has devices and keys all the same: those that an earlier child read."""
        last = self._last
        waiting = {status.name: status for status in snapshot.backends if not status.sequence and self._read_before.get(status.name)}
        if not waiting or last is None:
            return
        owners = {place.identity.anchor: name for name, place in self._seen if name in waiting and isinstance(place, DeviceSlot)}
        away = {place.key: place for place in last.identities if place.identity.anchor in owners}
        reasons = dict(snapshot.unavailable)
        for key, place in away.items():
            why = _reason(waiting[owners[place.identity.anchor]])
            reasons.update((name, why) for name in (*last.metrics, *last.unavailable) if name.startswith(f"{key}.") and name not in reasons)
        listed = {**away, **{place.key: place for place in snapshot.identities}}
        order = {place.key: number for number, place in enumerate(last.identities)}
        snapshot.identities = tuple(sorted(listed.values(), key=lambda place: order.get(place.key, len(order))))
        snapshot.unavailable = reasons

    def _late(self, reader: Reader) -> None:
        reader.unanswered += 1
        if reader.unanswered >= PATIENCE if reader.up else time.monotonic() >= reader.patient_until:
            self._drop(Reason.TIMED_OUT, "did not answer and was ended")
        elif reader.up:
            self._why = Unavailable(Reason.TIMED_OUT, "the reading process has not answered")
        else:
            again = f" again: it {self._fate}" if self._fate else ""
            self._why = Unavailable(Reason.DRIVER_UNAVAILABLE, f"the reading process is being started{again}")

    def _died(self, reader: Reader) -> None:
        reader.child.wait(LAST_WORDS)
        self._drop(Reason.DRIVER_UNAVAILABLE, _words(reader.child.status))

    def _drop(self, reason: str, fate: str) -> None:
        """Part with the child at once, and start another later."""
        child = self._part()
        if child is not None:
            child.kill()
        self._fate = fate
        self._why = Unavailable(reason, f"the reading process {fate}; another will be started")
        self._retry_at = time.monotonic() + min(LAST_RETRY, FIRST_RETRY * 2.0**self._failures)
        self._failures = min(self._failures + 1, 10)

    def _part(self) -> Child | None:
        reader, finalizer = self._reader, self._finalizer
        self._reader = self._finalizer = None
        if finalizer is not None:
            finalizer()
        _collect()
        return None if reader is None else reader.child

    def _nothing(self) -> Snapshot:
        """A snapshot in which everything that is known to exist is missing, for the reason that the child is not there."""
        why = self._why
        last = self._last
        keys = dict.fromkeys(self._host_keys)
        if last is not None:
            keys.update(dict.fromkeys((*last.metrics, *last.unavailable)))
        readings, timed_out, late = self.statistics
        self.statistics = Statistics(readings + 1, timed_out + (why.reason == Reason.TIMED_OUT), late)
        return Snapshot(
            SYSTEM_CLOCK.time_ns(),
            last.hostname if last is not None else hostname(),
            {},
            last.identities if last is not None else (),
            dict.fromkeys(keys, why),
            tuple(_away(status, why) for status in (last.backends if last is not None else map(_unknown, self._names))),
        )


_ENGINES: weakref.WeakSet[ProcessEngine] = weakref.WeakSet()
_LEFT: deque[Child] = deque()
"""Those that were parted with, and may not have gone yet."""


def _let_go(reader: Reader, owner: int) -> None:
    """Hang up; nothing here waits, since it may run in the middle of anything, and at the interpreter's exit."""
    if os.getpid() == owner:
        reader.wire.hang_up()
        _LEFT.append(reader.child)
    else:
        reader.wire.close()


def _collect() -> None:
    """Take leave of those that have gone, so that no zombies stay."""
    for _ in range(len(_LEFT)):
        try:
            child = _LEFT.popleft()
        except IndexError:  # another thread was quicker
            return
        if not child.wait(0.0):
            _LEFT.append(child)


def _after_fork() -> None:
    _LEFT.clear()
    for engine in list(_ENGINES):
        engine.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _spawn() -> tuple[Child, Wire]:
    """A fresh interpreter that runs :mod:`accelmetrics.sampling.child`, in a session of its own: Ctrl-C is for the program.

    Raises:
        OSError: There is no interpreter, or no room for one.
    """
    if not sys.executable:
        raise FileNotFoundError("it is not known where the interpreter is: sys.executable is empty")
    with ExitStack() as stack:
        ours, theirs = map(stack.enter_context, pair())
        child = Child(_popen(theirs.fileno()))
        theirs.close()
        stack.pop_all()
    return child, Wire(ours)


def _popen(descriptor: int) -> subprocess.Popen[bytes]:
    entries: list[object] = [*sys.path]
    path = [os.fsdecode(entry) for entry in entries if isinstance(entry, (str, bytes, os.PathLike))]
    script = f"import sys; sys.path[:] = {path!r}; from accelmetrics.sampling.child import main; main({descriptor})"
    # Vendor libraries print: not on the program's standard output.
    stdout, stderr = (2, None) if _is_open(2) else (subprocess.DEVNULL, subprocess.DEVNULL)
    command = [sys.executable, "-c", script]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, pass_fds=[descriptor], start_new_session=True)


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


class _Pickler(pickle.Pickler):
    """Refuses what only the program that is run has."""

    def persistent_id(self, item: object) -> None:
        if isinstance(item, (type, FunctionType)) and item.__module__ == "__main__":
            advice = "which the reading process does not run: move it into a module of its own"
            raise SourceError(Reason.DRIVER_ERROR, f"{item.__qualname__} is defined in the program that is run, {advice}")


def _portable(backend: Backend) -> str | bytes:
    """A registered backend by its name; any other, and one with a source pinned, must travel as itself."""
    if is_registered(backend):
        return backend.name
    outcome = guarded(_pickled, backend)
    if outcome.value is None:
        detail = "" if outcome.failure is None else outcome.failure.detail
        raise InvalidOptionError(
            f"the backend {backend.name!r} cannot be sent to another process ({detail}): "
            "register it under the entry-point group accelmetrics.backends, or use isolation='thread'"
        ) from outcome.error
    return outcome.value


def _pickled(backend: Backend) -> bytes:
    buffer = io.BytesIO()
    _Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump(backend)
    return buffer.getvalue()


def _unknown(name: str) -> BackendStatus:
    return BackendStatus(name, "failed")


def _away(status: BackendStatus, why: Unavailable) -> BackendStatus:
    """How a source fares while the child is away: one that was not there is still not there."""
    if status.status == "absent":
        return status
    return BackendStatus(status.name, "timed_out" if why.reason == Reason.TIMED_OUT else "failed", why.detail, sequence=status.sequence)


def _reason(status: BackendStatus) -> Unavailable:
    return Unavailable(Reason.TIMED_OUT if status.status == "timed_out" else Reason.DRIVER_UNAVAILABLE, status.detail)


def _words(status: int | None) -> str:
    if status is None:
        return "closed the line"
    if status >= 0:
        return f"exited with status {status}"
    named = [f" ({known.name})" for known in signal.Signals if known == -status]
    return f"was killed by signal {-status}{''.join(named)}"
