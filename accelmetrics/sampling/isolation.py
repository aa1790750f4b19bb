"""``isolation="process"``: the same backends in a child behind a socket.

What threads cannot promise, the child does: a driver call that does not end does not hold the program's exit, a library that calls
``exit`` takes only the child with it, a fork in the middle of a driver call finds no locked mutex here, and a busy interpreter delays
a reading by two switches, not by one per driver call.

When the child dies or stops answering, everything it gave is missing with the reason, and another is started with back-off; devices
keep their numbers, readings and statistics go on counting. Only a sampler's first reading waits for a child to start: later ones
answer within their deadline while one is starting. The child's own deadline is a little shorter than the sampler's, so that the
values of a source that answers reach the sampler in time beside one that does not.

A child is hung up on, and killed if it must be, but never waited for where that could take long: it may be stuck in the kernel.
Children that have gone are collected whenever one is started or ended.
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
from collections.abc import Sequence
from contextlib import ExitStack
from types import FunctionType

from accelmetrics.backends.clock import SYSTEM_CLOCK
from accelmetrics.backends.contract import Backend
from accelmetrics.backends.guard import guarded
from accelmetrics.backends.registry import is_registered
from accelmetrics.sampling.devices import Numbering
from accelmetrics.sampling.engine import Statistics, hostname
from accelmetrics.sampling.isolation_child import Answer, Line, Order
from accelmetrics.sampling.options import Options
from accelmetrics.sampling.sources import checked_coverage
from accelmetrics.schemas.errors import InvalidOptionError, SourceError
from accelmetrics.schemas.identity import BackendStatus
from accelmetrics.schemas.reasons import Reason, Unavailable
from accelmetrics.schemas.snapshot import Snapshot

START_UP = 5.0
"""Seconds that a fresh interpreter may take to import this package on a busy machine."""
MARGIN, LARGEST_MARGIN = 0.2, 0.1
"""By how much the child's deadline is shorter: a share of it, and at most so many seconds."""
FIRST_RETRY, LAST_RETRY = 0.1, 30.0
"""Seconds between attempts to start a child: doubled from the first to the last."""
PATIENCE = 3
"""Readings in a row without an answer after which the child is replaced."""
LAST_WORDS = 0.25
"""Seconds that a child which has closed the line has to leave, so that it can be told how it ended."""
FAREWELL, BURIAL = 1.0, 0.5
"""Seconds that a child has to leave when the sampler is closed, and then to be gone when it was killed."""
_LAST_STANDARD = 2
"""The descriptor of standard error."""


class Child(subprocess.Popen[bytes]):
    """One reading process and the line to it.

    Attributes:
        line: The line.
        up: Whether it has answered once.
        patient_until: Until when it may take to start, on the machine's monotonic clock.
        unanswered: Readings in a row that it has not answered in time.
        counted: What it had counted at its last answer.
        ticket: The number of the latest request.
    """

    up = False
    patient_until = 0.0
    unanswered = 0
    ticket = 0
    counted = Statistics()

    def __init__(self) -> None:
        if not sys.executable:
            raise FileNotFoundError("it is not known where the interpreter is: sys.executable is empty")
        entries: list[object] = [*sys.path]
        path = [os.fsdecode(entry) for entry in entries if isinstance(entry, (str, bytes, os.PathLike))]
        with ExitStack() as stack:
            pair = [stack.enter_context(end) for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)]
            ours, theirs = (stack.enter_context(_lifted(end)) for end in pair)
            end = theirs.fileno()
            script = f"import sys; sys.path[:] = {path!r}; from accelmetrics.sampling.isolation_child import main; main({end})"
            # Vendor libraries print: not on the program's standard output.
            out, err = (2, None) if _is_open(2) else (subprocess.DEVNULL, subprocess.DEVNULL)
            # A session of its own: Ctrl-C is for the program.
            super().__init__(
                [sys.executable, "-c", script],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                pass_fds=[end],
                start_new_session=True,
            )
            _CHILDREN.append(self)
            self.line = Line(ours)
            theirs.close()
            stack.pop_all()

    def __del__(self, *_: object) -> None:
        """Without ``Popen``'s warning about a process that is left to itself: this one may be."""

    def ask(self) -> int:
        """Send for a reading."""
        self.ticket += 1
        self.line.send(self.ticket, START_UP)
        return self.ticket

    def receive(self, until: float) -> Answer:
        """Receive the next answer.

        Raises:
            BlockingIOError: It did not come in time.
            EOFError: The child is gone.
            SourceError: The child has said why it leaves.
        """
        answer: Answer = self.line.receive(until - time.monotonic())
        if answer.failure is not None:
            raise SourceError(Reason.DRIVER_ERROR, f"failed: {answer.failure.detail}")
        self.up = True
        self.unanswered = 0
        return answer

    def gone_within(self, seconds: float) -> bool:
        """Whether it has ended, at the latest after so long."""
        try:
            self.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True


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
        hosts = [guarded(checked_coverage, backend).value for backend in backends if backend.kind is None]
        self._host_keys = tuple(key for host in hosts if host for key in host.machine)
        self._forced = forced
        self._options = options
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._child: Child | None = None
        self._finalizer: weakref.finalize[..., ProcessEngine] | None = None
        self._first = True
        self._failures = 0
        self._retry_at = 0.0
        self._fate = ""
        self._why = Unavailable(Reason.DRIVER_UNAVAILABLE, "the reading process has not been started")
        self._last: Snapshot | None = None
        self._numbering: Numbering | None = None
        self._read_before: dict[str, int] = {}
        _ENGINES.add(self)

    def sample(self) -> Snapshot:
        """Take one snapshot, or one that says why there is none. Safe from any thread."""
        self._check()
        with self._lock:
            until = time.monotonic() + self._options.timeout
            answered = False
            try:
                child = self._running()
                answer = None if child is None else self._ask(child, child.patient_until if self._first else until)
                answered = True
            finally:
                if not answered:  # interrupted in the middle of a message: the line cannot be used any more
                    self._part()
            self._first = False
            if answer is not None and answer.error is not None:
                raise answer.error
            if answer is None or answer.snapshot is None:
                return self._nothing()
            self._last = self._continued(answer.snapshot)
            return self._last

    def close(self) -> None:
        """Let the child go; it leaves by itself when the line is closed, and is killed if it does not."""
        self._check()
        with self._lock:
            child = self._part()
            if child is not None and not child.gone_within(FAREWELL):
                child.kill()
                child.gone_within(BURIAL)
            self._why = Unavailable(Reason.DRIVER_UNAVAILABLE, "the sampler was closed")
            self._fate, self._failures, self._retry_at, self._first = "", 0, 0.0, True

    def after_fork(self) -> None:
        """In the child of a fork the line belongs to the parent: close this copy of it, and start over."""
        self._pid = os.getpid()
        self._lock = threading.Lock()
        if self._finalizer is not None:
            self._finalizer.detach()
        if self._child is not None:
            self._child.line.close()
        self._child = self._finalizer = None
        self._first = True

    def _check(self) -> None:
        if os.getpid() != self._pid:  # a fork made from C bypasses Python's hooks
            self.after_fork()

    def _running(self) -> Child | None:
        """The child, started if need be; None until it is time to start another."""
        if self._finalizer is not None and not self._finalizer.alive:  # the interpreter exits, and has hung up
            self._child = self._finalizer = None
        if self._child is None and time.monotonic() >= self._retry_at:
            _collect()
            try:
                self._child = child = Child()
                self._finalizer = weakref.finalize(self, _let_go, child.line, self._pid)
                child.patient_until = time.monotonic() + self._options.timeout + self._options.open_timeout + START_UP
                if self._last is not None:
                    self._read_before = {status.name: status.sequence for status in self._last.backends}
                child.line.send(Order(self._backends, self._forced, self._orders(), self._numbering), START_UP)
            except (OSError, TypeError, ValueError) as error:  # no descriptors, no memory, no interpreter
                self._drop(Reason.DRIVER_UNAVAILABLE, f"could not be started: {error}")
        return self._child

    def _orders(self) -> Options:
        timeout = self._options.timeout
        shorter = timeout - min(LARGEST_MARGIN, MARGIN * timeout)
        options = self._options._replace(pid=self._options.pid or self._pid, timeout=shorter)
        if self._first or self._last is None:
            return options
        # The numbering is known already: sources that open at once need not wait for one that does not.
        return options._replace(open_timeout=min(shorter, options.open_timeout))

    def _ask(self, child: Child, until: float) -> Answer | None:
        """Send for a reading and wait for the answer to it; answers to earlier requests are passed over."""
        try:
            # One that is starting has its first request already: it is not asked again before it has answered that.
            ticket = 0 if child.ticket and not child.up else child.ask()
            while True:
                answer = child.receive(until)
                self._failures, self._fate = 0, ""
                self._numbering = answer.numbering or self._numbering
                if answer.ticket == ticket:  # one that came too late was counted when it did not come
                    new = zip(self.statistics, answer.statistics, child.counted, strict=True)
                    self.statistics = Statistics(*(total + now - before for total, now, before in new))
                child.counted = answer.statistics
                if answer.ticket == ticket:
                    return answer
                ticket = ticket or child.ask()
        except BlockingIOError:
            child.unanswered += 1
            if child.unanswered >= PATIENCE if child.up else time.monotonic() >= child.patient_until:
                self._drop(Reason.TIMED_OUT, "did not answer and was ended")
            elif child.up:
                self._why = Unavailable(Reason.TIMED_OUT, "the reading process has not answered")
            else:
                again = f" again: it {self._fate}" if self._fate else ""
                self._why = Unavailable(Reason.DRIVER_UNAVAILABLE, f"the reading process is being started{again}")
        except (EOFError, OSError):
            child.gone_within(LAST_WORDS)
            self._drop(Reason.DRIVER_UNAVAILABLE, _words(child.returncode))
        except SourceError as failure:
            self._drop(failure.reason, failure.message)
        return None

    def _continued(self, snapshot: Snapshot) -> Snapshot:
        """Go on counting where the last child ended. A source that this child has not read yet keeps the devices and keys it had."""
        last, before = self._last, self._read_before
        if last is None or not before:
            return snapshot
        waiting = {status.name: status for status in snapshot.backends if not status.sequence and before.get(status.name)}
        given = self._numbering.slots if self._numbering is not None else {}
        owners = {slot.identity.anchor: name for (name, _), slot in given.items() if name in waiting}
        away = {slot.key: slot for slot in last.identities if slot.identity.anchor in owners}
        reasons = dict(snapshot.unavailable)
        for key, slot in away.items():
            status = waiting[owners[slot.identity.anchor]]
            why = Unavailable(Reason.TIMED_OUT if status.status == "timed_out" else Reason.DRIVER_UNAVAILABLE, status.detail)
            reasons.update((name, why) for name in (*last.metrics, *last.unavailable) if name.startswith(f"{key}.") and name not in reasons)
        if away:
            listed = {**away, **{slot.key: slot for slot in snapshot.identities}}
            order = {slot.key: number for number, slot in enumerate(last.identities)}
            snapshot.identities = tuple(sorted(listed.values(), key=lambda slot: order.get(slot.key, len(order))))
            snapshot.unavailable = reasons
        snapshot.backends = tuple(status._replace(sequence=status.sequence + before.get(status.name, 0)) for status in snapshot.backends)
        return snapshot

    def _drop(self, reason: str, fate: str) -> None:
        """End the child at once, and start another later."""
        child = self._part()
        if child is not None:
            child.kill()
        self._fate = fate
        self._why = Unavailable(reason, f"the reading process {fate}; another will be started")
        self._retry_at = time.monotonic() + min(LAST_RETRY, FIRST_RETRY * 2.0**self._failures)
        self._failures = min(self._failures + 1, 10)

    def _part(self) -> Child | None:
        """Hang up on the child."""
        child, finalizer = self._child, self._finalizer
        self._child = self._finalizer = None
        if finalizer is not None:
            finalizer()
        _collect()
        return child

    def _nothing(self) -> Snapshot:
        """A snapshot in which everything that is known to exist is missing, for the reason that the child is not there."""
        why, last = self._why, self._last
        late = why.reason == Reason.TIMED_OUT
        keys = dict.fromkeys(self._host_keys if last is None else (*self._host_keys, *last.metrics, *last.unavailable))
        readings, timed_out, lates = self.statistics
        self.statistics = Statistics(readings + 1, timed_out + late, lates)
        statuses = [BackendStatus(name, "failed") for name in self._names] if last is None else last.backends
        return Snapshot(
            SYSTEM_CLOCK.time_ns(),
            hostname() if last is None else last.hostname,
            {},
            () if last is None else last.identities,
            dict.fromkeys(keys, why),
            [
                # A source that was not there is still not there.
                status
                if status.status == "absent"
                else BackendStatus(status.name, "timed_out" if late else "failed", why.detail, sequence=status.sequence)
                for status in statuses
            ],
        )


_ENGINES: weakref.WeakSet[ProcessEngine] = weakref.WeakSet()
_CHILDREN: list[Child] = []
"""Those that were started here and may not have been collected yet."""


def _let_go(line: Line, owner: int) -> None:
    """Hang up. It may run in the middle of anything, and at the interpreter's exit: nothing here waits."""
    if os.getpid() == owner:
        line.hang_up()
    else:
        line.close()


def _collect() -> None:
    """Collect children that have gone, so that no zombies stay."""
    _CHILDREN[:] = [child for child in _CHILDREN if child.poll() is None]


def _after_fork() -> None:
    _CHILDREN.clear()
    for engine in list(_ENGINES):
        engine.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _lifted(end: socket.socket) -> socket.socket:
    """The same end under a number that no standard stream has: a program may run without those."""
    if end.fileno() > _LAST_STANDARD:
        return end
    from fcntl import F_DUPFD_CLOEXEC, fcntl  # not on every platform

    with end:
        return socket.socket(fileno=fcntl(end.fileno(), F_DUPFD_CLOEXEC, _LAST_STANDARD + 1))


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
    buffer = io.BytesIO()
    outcome = guarded(_Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump, backend)
    if outcome.failure is not None:
        raise InvalidOptionError(
            f"the backend {backend.name!r} cannot be sent to another process ({outcome.failure.detail}): "
            "register it under the entry-point group accelmetrics.backends, or use isolation='thread'"
        ) from outcome.error
    return buffer.getvalue()


def _words(status: int | None) -> str:
    if status is None:
        return "closed the line"
    if status >= 0:
        return f"exited with status {status}"
    named = [f" ({known.name})" for known in signal.Signals if known == -status]
    return f"was killed by signal {-status}{''.join(named)}"
