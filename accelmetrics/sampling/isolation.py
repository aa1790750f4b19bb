"""``isolation="process"``: the same backends read in child processes, over sockets. Vendors have one child, the host another.

If the hardware of several vendors whose libraries are loaded into the process is present, each of these vendors has its own child.

A child gives guarantees that threads cannot give. A driver call that never ends does not delay the program's exit. A library that
calls ``exit`` ends only the child. A fork in the middle of a driver call finds no locked mutex in this process. A busy interpreter
delays a reading by two thread switches, not by one per driver call.

When a child dies or stops answering, everything it reported is missing with the reason, and another child is started with back-off.
Devices keep their numbers; counts of readings and statistics continue. Only a sampler's first reading waits for a child to start:
later readings answer within their deadline while one starts. The child's own deadline is a little shorter than the sampler's. So the
values of sources that answer reach the sampler in time even if another source does not answer.

The child exits with ``os._exit`` when its parent closes the channel: no driver is shut down, and no stuck call is waited for. It
reports any other reason for its end. The child may be stopped, or in a call that holds the interpreter's lock. So it runs under a
watchdog, as commands do (:mod:`~accelmetrics.backends.kit.watchdog`). When the parent ends, in any way, the watchdog kills the child
and the processes that its libraries started in its group. The parent closes the channel, and kills the child if necessary, but never
waits for it where that could take long: the child may be stuck in the kernel.

A message is a length followed by a pickle. It travels over a socket pair of which no third process has an end, so unpickling crosses
no boundary of trust. A reading is sent as its header and its row of numbers; the header and the lists of processes are sent only when
they have changed. Receiving waits in the kernel (``SO_RCVTIMEO``), in one call that releases the interpreter's lock once: next to a
busy thread, each release costs a whole switch interval.
"""

from __future__ import annotations

import math
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from accelmetrics.backends.built_in import BUILT_IN
from accelmetrics.backends.contract import MOST_DEVICES, SYSTEM_CLOCK, Backend
from accelmetrics.backends.guard import at_fork, guarded
from accelmetrics.backends.kit.watchdog import Watchdog, reap
from accelmetrics.backends.registry import is_registered, select
from accelmetrics.sampling.devices import VENDOR_NUMBERED, DeviceRegistry, Numbering
from accelmetrics.sampling.engine import Engine, ReadingCounts, ThreadEngine, hostname
from accelmetrics.sampling.options import Options
from accelmetrics.sampling.sources import SHARED, checked_coverage, checked_detection
from accelmetrics.sampling.threads import begin
from accelmetrics.schemas.errors import AccelMetricsError, InvalidOptionError, Reason, SourceError, Unavailable, UnknownNameError
from accelmetrics.schemas.identity import BackendStatus, DeviceProcess, DeviceSlot
from accelmetrics.schemas.reading import Header, header as header_of, without_numbers
from accelmetrics.schemas.snapshot import Snapshot
from accelmetrics.schemas.topology import Details

START_UP = 5.0
"""Seconds a new interpreter may take to import this package on a busy machine."""
MARGIN, LARGEST_MARGIN = 0.2, 0.1
"""How much shorter the child's deadline is: a share of the deadline, and the limit of that in seconds."""
FIRST_RETRY, LAST_RETRY = 0.1, 30.0
"""First and last pause in seconds between attempts to start a child. Each pause is twice the one before."""
PATIENCE = 3.0
"""Number of deadlines without an answer after which the child is replaced."""
EXIT_STATUS_WAIT = 0.25
"""Seconds to wait for the exit status of a child that closed the channel."""
CLOSE_TIMEOUT, KILL_TIMEOUT = 1.0, 0.5
"""Seconds a watchdog has to end the child when the sampler is closed, and then to be gone after it was killed itself."""
DETECTION = 1.0
"""Seconds for finding out which vendors' hardware is present."""
_LENGTH = struct.Struct("!I")
_CHUNK = 1 << 20


@dataclass
class ChildAnswer:
    """The answer of a child to one request.

    Attributes:
        snapshot: The snapshot; None if there is an error.
        counted: The counts to add for this reading.
        numbering: The numbering, if it changed.
        error: Why the request was refused, or (a ``SourceError``) why the child exits.
        details: By device key, the details that drivers give on request; None unless these were requested instead of a reading.
    """

    snapshot: Snapshot | None = None
    counted: ReadingCounts = field(default_factory=ReadingCounts)
    numbering: Numbering | None = None
    error: AccelMetricsError | None = None
    details: Mapping[str, Details | Unavailable] | None = None


class Channel:
    """An end of the socket pair, for whole messages.

    Args:
        end: The socket.
    """

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(True)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _CHUNK)
        self._end = end
        self._pid = os.getpid()
        self._buffer = bytearray()

    def send(self, message: object, seconds: float | None = None) -> None:
        """Send one message.

        Args:
            message: The message.
            seconds: How long the other end may accept no bytes; None for no limit.

        Raises:
            OSError: The other end is closed, or accepted nothing for that long.
        """
        body = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        self._end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(seconds))
        self._end.sendall(_LENGTH.pack(len(body)) + body)

    def receive(self, until: float | None) -> Any:
        """Receive the next message.

        Args:
            until: Deadline for the whole message, on the machine's monotonic clock; None for no limit.

        Raises:
            BlockingIOError: It did not arrive in time. The part that arrived is kept for the next call.
            EOFError: The other end is closed.
            SourceError: The message cannot be unpickled here.
        """
        while len(self._buffer) < _LENGTH.size or len(self._buffer) < (end := _LENGTH.size + _LENGTH.unpack_from(self._buffer)[0]):
            left = None if until is None else until - time.monotonic()
            self._end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(left))
            part = self._end.recv(_CHUNK)
            if not part:
                raise EOFError("the other end is gone")
            self._buffer += part
        body = bytes(self._buffer[_LENGTH.size : end])
        del self._buffer[:end]
        outcome = guarded(pickle.loads, body)
        if outcome.failure is not None:
            raise SourceError(Reason.DRIVER_ERROR, f"the message cannot be unpickled: {outcome.failure.detail}")
        return outcome.value

    def hang_up(self) -> None:
        """Close the channel for both ends and for every copy that a fork made. In a fork, close only this copy.

        It never waits, since it may run in the middle of anything, and at the interpreter's exit.
        """
        if os.getpid() == self._pid:
            with suppress(OSError):  # the other end may be closed already
                self._end.shutdown(socket.SHUT_RDWR)
        self._end.close()


def _timeval(seconds: float | None) -> bytes:
    """Pack a duration as the kernel's ``timeval``, in which zero means no limit."""
    limit = max(0.0, seconds or 0.0)
    # At least one microsecond: zero would mean no limit.
    return struct.pack("ll", int(limit), max(1, int(limit % 1 * 1e6)) if seconds is not None else 0)


class ReadingProcess(Watchdog):
    """A child process that takes readings, under its watchdog, and the channel to it. It takes one reading at a time.

    Args:
        owner: The object it reads for. When that is garbage-collected, the channel is closed and the child ends.
        patient_until: The deadline for its start.

    Attributes:
        channel: The channel.
        header: The header of its last reading; the child sends it only when it changes. So it is with ``processes``.
        processes: The lists of processes of its last reading.
        up: Whether it has answered once.
        pending: The number of answers that are expected, at most two. The second is not requested before the first has arrived.
        describes: Whether the next request is for details of devices, instead of a reading.
        patient_until: The deadline for its answer, on the machine's monotonic clock; after it, the child is replaced.
    """

    header: Header | None = None
    processes: Mapping[str, tuple[DeviceProcess, ...]] = MappingProxyType({})
    up = False
    pending = 0
    describes = False

    def __init__(self, owner: object, patient_until: float) -> None:
        if not sys.executable or getattr(sys, "frozen", False):
            raise FileNotFoundError("the path of the interpreter is unknown: sys.executable names none")
        self.patient_until = patient_until
        entries: list[object] = [*sys.path]
        path = [entry for entry in entries if isinstance(entry, str)]  # the interpreter ignores others, too
        # Vendor libraries print: to standard error, so that the program's standard output stays its own.
        out: int = subprocess.DEVNULL
        with suppress(OSError):  # a program may run without standard error
            os.fstat(2)
            out = 2
        program = f"import sys; sys.path[:] = {path!r}; from accelmetrics.sampling.isolation import main; main()"
        with ExitStack() as undo:
            ours, theirs = map(undo.enter_context, socket.socketpair())
            # In a separate session: Ctrl-C must reach the program only.
            super().__init__(sys.executable, [sys.executable, "-c", program], stdin=theirs.fileno(), stdout=out, stderr=out)
            theirs.close()
            self.channel = Channel(ours)
            self._finalizer = weakref.finalize(owner, _end_abandoned, self)
            self._finalizer.atexit = False  # at exit the kernel closes the socket, which ends the child
            undo.pop_all()

    def hang_up(self) -> None:
        """Close the channel and make the watchdog end the process. Returns at once."""
        self._finalizer.detach()
        self.channel.hang_up()
        self.end()
        self.control.close()


def _end_abandoned(child: ReadingProcess) -> None:
    child.hang_up()
    child.reap_later()


class IsolatedPart:
    """The backends read in one child process, and their last answer.

    Args:
        backends: The backends, in numbering order.
        forced: Names of backends to open even if detection finds nothing.
        options: What to read, and how long to wait.
        numbering: The numbers reserved for its devices; None if the child reserves them.
    """

    def __init__(self, backends: Sequence[Backend], forced: frozenset[str], options: Options, numbering: Numbering | None = None) -> None:
        self._backends = tuple(_portable(backend) for backend in backends)
        self._forced = forced
        self._options = options
        hosts = [guarded(checked_coverage, backend).value for backend in backends if backend.kind is None]
        self._host_keys = tuple(key for host in hosts if host for key in host.machine if options.metrics.wants(key))
        self._child: ReadingProcess | None = None
        self._first = True
        self._pause = FIRST_RETRY
        self._retry_at = 0.0
        self._why = Unavailable(Reason.DRIVER_UNAVAILABLE)
        self._last = Snapshot(0, hostname(), {}, (), {}, tuple([BackendStatus(backend.name, "failed") for backend in backends]))
        self._numbering = numbering

    def ask(self, describe: bool = False) -> None:
        """Request a reading, sent once earlier answers have arrived. Start the child if its back-off is over.

        Args:
            describe: Request details of devices instead of a reading.
        """
        if self._child is None and time.monotonic() >= self._retry_at:
            reap()
            timeout, open_timeout, last = self._options.timeout, self._options.open_timeout, self._last
            # The child answers before our own deadline, so that values of healthy sources arrive even if another hangs.
            shorter = timeout - min(LARGEST_MARGIN, MARGIN * timeout)
            # After a restart the numbering is known, so sources that open at once need not wait for slow ones.
            if last.time_ns and not self._first:
                open_timeout = min(shorter, open_timeout)
            options = self._options._replace(pid=self._options.pid or os.getpid(), timeout=shorter, open_timeout=open_timeout)
            again = " again" if self._pause > FIRST_RETRY else ""
            self._why = Unavailable(Reason.DRIVER_UNAVAILABLE, f"the reading process is being started{again}")
            keys = (*last.metrics, *last.unavailable)
            # Keys and counts continue in the new child, so that a user sees no difference but the missing values.
            sequences = {status.name: status.sequence for status in last.backends}
            try:
                self._child = child = ReadingProcess(self, time.monotonic() + timeout + self._options.open_timeout + START_UP)
                child.channel.send((self._backends, self._forced, options, self._numbering, keys, sequences), START_UP)
            except (OSError, TypeError, ValueError) as error:  # no descriptors, no memory, no interpreter
                self._drop(Reason.DRIVER_UNAVAILABLE, f"could not be started: {error}")
        if self._child is not None:
            self._child.pending, self._child.describes = min(2, self._child.pending + 1), describe
            if self._child.pending == 1:
                with suppress(OSError):  # receiving will report the reason
                    self._send(self._child)

    def answer(self, until: float) -> ChildAnswer:
        """Wait for the answer to the request. If none arrives, return a snapshot that gives the reason.

        Args:
            until: Deadline on the machine's monotonic clock. The first answer is waited for as long as the child may take to start.
        """
        child = self._child
        given = None if child is None else self._receive(child, child.patient_until if self._first else until)
        self._first = False
        if given is not None:
            self._last = given.snapshot or self._last
            return given
        # Every key known to exist is missing, because the child does not answer.
        why, last = self._why, self._last
        late = why.reason == Reason.TIMED_OUT
        reasons = dict.fromkeys((*self._host_keys, *last.metrics, *last.unavailable), why)
        failed = BackendStatus("", "timed_out" if late else "failed", why.detail, reason=str(why.reason))
        statuses = list(last.backends)
        for place, before in enumerate(statuses):
            if before.status != "absent":  # an absent source is still absent, whatever happens to the child
                statuses[place] = failed._replace(name=before.name, sequence=before.sequence, devices=before.devices)
        unlisted = {slot.key: why for slot in last.identities}
        snapshot = Snapshot(SYSTEM_CLOCK.time_ns(), last.hostname, {}, last.identities, reasons, tuple(statuses), unlisted=unlisted)
        return ChildAnswer(snapshot, ReadingCounts(1, int(late)))

    def close(self) -> None:
        """End the child and wait for its end, for a limited time."""
        child = self.disconnect()
        if child is not None:
            child.await_end(CLOSE_TIMEOUT, KILL_TIMEOUT)
        self._pause, self._retry_at, self._first = FIRST_RETRY, 0.0, True

    def after_fork(self) -> None:
        """Close this copy of the channel in the child of a fork and start over: the channel belongs to the parent."""
        self.disconnect()
        self._first = True

    def disconnect(self) -> ReadingProcess | None:
        """Close the channel to the child. Return the child that was disconnected, if any."""
        child, self._child = self._child, None
        if child is not None:
            child.hang_up()
        reap()
        return child

    def _send(self, child: ReadingProcess) -> None:
        child.channel.send(child.describes, START_UP)
        child.patient_until = max(child.patient_until, time.monotonic() + PATIENCE * self._options.timeout)

    def _receive(self, child: ReadingProcess, until: float) -> ChildAnswer | None:
        """Return the answer, or None. An answer to an earlier request is discarded, and the next one is requested."""
        try:
            while True:
                answer: ChildAnswer
                row, answer = child.channel.receive(until)
                if isinstance(answer.error, SourceError):
                    raise answer.error
                if row is not None:
                    header, processes, numbers, time_ns, backends = row
                    child.header = header or child.header
                    child.processes = child.processes if processes is None else processes
                    if child.header is not None:
                        answer.snapshot = Snapshot.of(child.header, numbers, time_ns, backends, child.processes)
                child.up, child.patient_until = True, 0.0
                self._pause = FIRST_RETRY
                self._numbering = answer.numbering or self._numbering
                child.pending -= 1
                if not child.pending:
                    return answer
                self._send(child)
        except BlockingIOError:
            if time.monotonic() >= child.patient_until:
                self._drop(Reason.TIMED_OUT, "did not answer and was ended")
            elif child.up:
                self._why = Unavailable(Reason.TIMED_OUT, "the reading process has not answered")
        except (EOFError, OSError):
            child.control.settimeout(min(EXIT_STATUS_WAIT, max(0.0, until - time.monotonic())))
            with suppress(OSError):
                child.receive()
            self._drop(Reason.DRIVER_UNAVAILABLE, _describe_exit(child.status))
        except SourceError as failure:
            self._drop(failure.reason, f"failed: {failure.message}")
        return None

    def _drop(self, reason: str, outcome: str) -> None:
        """End the child at once; another one is started later."""
        self.disconnect()
        self._why = Unavailable(reason, f"the reading process {outcome}; another will be started")
        self._retry_at = time.monotonic() + self._pause
        self._pause = min(LAST_RETRY, 2.0 * self._pause)


class ProcessEngine(Engine):
    """Takes snapshots in child processes: vendors in one, the host in another.

    So no driver can take the host's values down with it.

    Args:
        backends: The backends, in numbering order.
        forced: Names of backends to open even if detection finds nothing.
        options: What to read, and how long to wait.
    """

    def __init__(self, backends: Sequence[Backend], forced: frozenset[str], options: Options) -> None:
        if not hasattr(socket, "AF_UNIX"):
            raise InvalidOptionError("isolation='process' needs Unix sockets, which this platform lacks: use isolation='thread'")
        super().__init__(options)
        self._order = [backend.name for backend in backends]
        self._forced = forced
        vendors = [backend for backend in backends if backend.kind is not None]
        hosts = [backend for backend in backends if backend.kind is None]
        # ``gpus`` names devices of vendors: the host's child must not refuse it, unless there are no vendors.
        parts = [(vendors, options), (hosts, options._replace(gpus=None) if vendors else options)]
        self._parts = [IsolatedPart(part, forced, wanted) for part, wanted in parts if part]
        self._undivided = vendors if options.gpus is None else []
        self._headers: list[Header] = []  # the headers of the parts' last readings; the next line is the header merged from them
        self._header: Header | None = None
        _ENGINES.add(self)

    def _take(self, began: float, budget: float) -> Snapshot:
        vendors, self._undivided = self._undivided, []
        if divisions := divided(vendors):
            self._parts[:1] = [IsolatedPart(part, self._forced, self._options, numbering) for part, numbering in divisions]
        answers = self._ask(began + budget)
        counted = map(max, *(answer.counted for answer in answers), (0, 0, 0))
        self.statistics = ReadingCounts(*map(sum, zip(self.statistics, counted, strict=True)))
        for answer in answers:
            if answer.error is not None:
                raise answer.error
        return self._merged([answer.snapshot for answer in answers if answer.snapshot is not None])

    def describe(self) -> dict[str, Details | Unavailable]:
        """Return the details that drivers give on request, by device key. The children ask the drivers."""
        self.list_devices()
        with self._lock:
            answers = self._ask(time.monotonic() + self._options.timeout, describe=True)
        missing = (answer.snapshot.unlisted for answer in answers if answer.details is None and answer.snapshot is not None)
        found: list[Mapping[str, Details | Unavailable]] = [answer.details for answer in answers if answer.details is not None]
        return {key: known for part in (*found, *missing) for key, known in part.items()}

    def _ask(self, until: float, describe: bool = False) -> list[ChildAnswer]:
        """Send a request to all children and return their answers, in the order of the parts."""
        with ExitStack() as interrupted:  # an interrupt in the middle of a message makes a channel unusable
            for part in self._parts:
                interrupted.callback(part.disconnect)
            for part in self._parts:
                part.ask(describe)
            answers = [part.answer(until) for part in self._parts]
            interrupted.pop_all()
        return answers

    def list_devices(self) -> Sequence[DeviceSlot]:
        """Return the devices of the last reading, or of a first one: children answer only with readings."""
        return (self.latest(-math.inf) or self.sample()).identities

    def close(self) -> None:
        """End the children."""
        with self._lock:
            self._last = None
            for part in self._parts:
                part.close()

    def after_fork(self) -> None:
        """Start over in the child of a fork: the children stay with the parent."""
        # A new lock: a thread of the parent may hold the old one, and does not exist here to release it.
        self._lock, self._last = threading.Lock(), None
        for part in self._parts:
            part.after_fork()

    def _merged(self, snapshots: Sequence[Snapshot]) -> Snapshot:
        """Merge the parts' snapshots into one."""
        first, *rest = snapshots
        if not rest:
            return first
        statuses = sorted((status for each in snapshots for status in each.backends), key=lambda status: self._order.index(status.name))
        heads = [each.header for each in snapshots]
        if self._header is None or heads != self._headers:
            slots = sorted((slot for head in heads for slot in head.identities), key=lambda slot: self._order.index(slot.backend))
            keys = tuple([key for head in heads for key in head.keys])
            reasons = {key: why for head in heads for key, why in head.unavailable.items()}
            unlisted = {key: why for head in heads for key, why in head.unlisted.items()}
            self._headers, self._header = heads, header_of(first.hostname, keys, slots, reasons, without_numbers(statuses), unlisted)
        numbers = tuple([number for each in snapshots for number in each.numbers])
        processes = {key: found for each in snapshots for key, found in each.processes.items()}
        return Snapshot.of(self._header, numbers, max(each.time_ns for each in snapshots), tuple(statuses), processes)


_ENGINES: weakref.WeakSet[ProcessEngine] = weakref.WeakSet()


def _after_fork() -> None:
    for engine in list(_ENGINES):
        engine.after_fork()


# Registered after the watchdogs' hook, which marks them as the parent's.
at_fork(after_in_child=_after_fork)


def divided(vendors: Sequence[Backend]) -> list[tuple[list[Backend], Numbering]]:
    """Divide vendors among children.

    Returns:
        For each child, its backends and the numbers reserved for the devices of all. Devices beyond these are numbered far above them,
        in a separate range per child. Empty if one child is enough, or if the number of devices is unknown.
    """
    loading = [backend for backend in vendors if backend.name not in BUILT_IN or BUILT_IN[backend.name].library]
    found = _detected(vendors) if len(loading) > 1 else {}
    apart = [backend for backend in loading if backend.name in found]
    # Numbers can only be reserved for a known count of devices; kinds with the vendor's numbers need none reserved.
    if len(apart) < 2 or not all(found[backend.name] or backend.kind in VENDOR_NUMBERED for backend in apart):
        return []
    devices, parts = DeviceRegistry(), []
    for backend in vendors:
        if backend.name in found:
            devices.reserve(backend.name, backend.kind or "", found[backend.name])
    for number, one in enumerate(apart):
        part = [backend for backend in vendors if backend is one or (not number and backend not in apart)]
        beyond = {kind: free + number * MOST_DEVICES for kind, free in devices.numbering.free.items()}
        parts.append((part, devices.numbering._replace(free=beyond)))
    return parts


def _detected(backends: Sequence[Backend]) -> dict[str, int]:
    """Return the number of devices of each backend with hardware here; empty if detection does not end in time."""
    found: dict[str, int] = {}

    def look() -> None:
        for backend in backends:
            detection = guarded(checked_detection, backend).value
            if detection is not None and detection.present:
                found[backend.name] = detection.devices

    if any(thread.is_alive() for thread in list(_HANGING)):
        return {}
    thread = threading.Thread(target=look, name="accelmetrics-detection", daemon=True)
    if begin(thread).failure is None:
        thread.join(DETECTION)
    if thread.is_alive():
        _HANGING.add(thread)
        return {}
    return found


_HANGING: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
"""Threads whose detection hangs. No other detection is started while one does."""


def _portable(backend: Backend) -> str | bytes:
    """Return a registered backend's name, or else (also for a backend with a pinned source) its pickle."""
    if is_registered(backend):
        return backend.name
    outcome = guarded(pickle.dumps, backend, pickle.HIGHEST_PROTOCOL)
    why = "" if outcome.failure is None else outcome.failure.detail
    if type(backend).__module__ == "__main__":
        name = type(backend).__qualname__
        why = f"{name} is defined in the main program, which the reading process does not run: move it into a module of its own"
    if why or outcome.value is None:
        raise InvalidOptionError(
            f"the backend {backend.name!r} cannot be sent to another process ({why}): "
            "register it under the entry-point group accelmetrics.backends, or use isolation='thread'"
        ) from outcome.error
    return outcome.value


def _describe_exit(status: int | None) -> str:
    if status is None:
        return "closed the channel"
    if status >= 0:
        return f"exited with status {status}"
    name = "".join(f" ({known.name})" for known in signal.Signals if known == -status)
    return f"was killed by signal {-status}{name}"


def main() -> None:
    """Run the child: answer requests on the channel, which is its standard input, until the parent closes it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        channel = Channel(socket.socket(fileno=os.dup(0)))
        # Nothing else may read from the channel.
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        outcome = guarded(_serve, channel)
        if outcome.failure is not None:  # the parent may have closed the channel, so sending may fail
            guarded(channel.send, (None, ChildAnswer(error=SourceError(*outcome.failure))))
    finally:
        os._exit(0)


def _serve(channel: Channel) -> None:
    # Unpickling runs the code of backends that are not registered. It comes from our parent.
    portable, forced, options, numbering, keys, sequences = channel.receive(None)
    backends = [item if isinstance(item, str) else pickle.loads(item) for item in portable]
    engine = ThreadEngine(SHARED, select(backends), forced, options)
    if numbering is not None:
        engine.resume(numbering, keys, sequences)
    sent: Numbering | None = None
    header: Header | None = None
    processes: object = None
    while True:
        if channel.receive(None):  # a request for details, not for a reading
            channel.send((None, ChildAnswer(details=engine.describe())))
            continue
        # Only the counts of one reading: the parent adds them up, so that they survive this child.
        engine.statistics = ReadingCounts()
        row: tuple[object, ...] | None = None
        error: AccelMetricsError | None = None
        try:
            taken = engine.sample()
        except UnknownNameError as unknown:
            error = unknown
        else:
            changed = None if taken.header is header else taken.header, None if taken.processes is processes else taken.processes
            row = (*changed, taken.numbers, taken.time_ns, taken.backends)
            header, processes = taken.header, taken.processes
        numbering = engine.devices.numbering
        channel.send((row, ChildAnswer(None, engine.statistics, None if numbering == sent else numbering, error)))
        sent = numbering
