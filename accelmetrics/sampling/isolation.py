"""``isolation="process"``: the same backends in children behind sockets, those of vendors in one and the host's in another.

Where hardware of several vendors is here whose libraries are loaded into the process, each of these has a child of its own.

What threads cannot promise, the child does: a driver call that does not end does not hold the program's exit, a library that calls
``exit`` takes only the child with it, a fork in the middle of a driver call finds no locked mutex here, and a busy interpreter delays
a reading by two switches, not by one per driver call.

When the child dies or stops answering, everything it gave is missing with the reason, and another is started with back-off; devices
keep their numbers, readings and statistics go on counting. Only a sampler's first reading waits for a child to start: later ones
answer within their deadline while one is starting. The child's own deadline is a little shorter than the sampler's, so that the
values of a source that answers reach the sampler in time beside one that does not.

The child leaves with ``os._exit`` when its parent hangs up: no driver is shut down on the way out, and no stuck call is waited for.
What else ends it, it reports. It may be stopped, or in a call that holds the interpreter's lock: so it runs under a watchdog, as
commands do (:mod:`~accelmetrics.backends.kit.watchdog`), which kills it, and what its libraries have started in its group, when its
parent ends in whatever way. It is hung up on, and killed if it must be, but never waited for where that could take long: it may be
stuck in the kernel.

A message is a length, then a pickle, over a socket pair of which no third process has an end: unpickling adds no boundary of trust.
A reading is sent as its header and the row of its numbers; the header, and the lists of processes, only where they have changed.
Receiving waits in the kernel (``SO_RCVTIMEO``), one call that releases the interpreter's lock once:
beside a busy thread, each release costs a whole switch interval.
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
from types import MappingProxyType
from typing import Any, NamedTuple

from accelmetrics.backends.built_in import BUILT_IN
from accelmetrics.backends.contract import MOST_DEVICES, SYSTEM_CLOCK, Backend
from accelmetrics.backends.guard import at_fork, guarded
from accelmetrics.backends.kit.watchdog import Watchdog, reap
from accelmetrics.backends.registry import is_registered, select
from accelmetrics.sampling.devices import VENDOR_NUMBERED, DeviceRegistry, Numbering
from accelmetrics.sampling.engine import SHORTEST_TURN, ReadingCounts, ThreadEngine, hostname
from accelmetrics.sampling.options import Options
from accelmetrics.sampling.sources import SHARED, checked_coverage, checked_detection
from accelmetrics.sampling.threads import begin
from accelmetrics.schemas.errors import AccelMetricsError, InvalidOptionError, Reason, SourceError, Unavailable, UnknownNameError
from accelmetrics.schemas.identity import BackendStatus, DeviceProcess, DeviceSlot
from accelmetrics.schemas.reading import Header, header as header_of, standing
from accelmetrics.schemas.snapshot import Snapshot
from accelmetrics.schemas.topology import Details

START_UP = 5.0
"""Seconds that a fresh interpreter may take to import this package on a busy machine."""
MARGIN, LARGEST_MARGIN = 0.2, 0.1
"""By how much the child's deadline is shorter: a share of it, and at most so many seconds."""
FIRST_RETRY, LAST_RETRY = 0.1, 30.0
"""Seconds between attempts to start a child: doubled from the first to the last."""
PATIENCE = 3.0
"""Deadlines without an answer after which the child is replaced."""
EXIT_STATUS_WAIT = 0.25
"""Seconds to wait for the exit status of a child that has closed the channel."""
CLOSE_TIMEOUT, KILL_TIMEOUT = 1.0, 0.5
"""Seconds that a watchdog has to end the child when the sampler is closed, and then to be gone when it was killed itself."""
DETECTION = 1.0
"""Seconds within which it must be found out which vendors' hardware is here."""
_LENGTH = struct.Struct("!I")
_CHUNK = 1 << 20


class ChildAnswer(NamedTuple):
    """What a child answers.

    Attributes:
        snapshot: The snapshot, None when there is an error.
        counted: What is to be counted for this reading.
        numbering: The numbering, when it changed.
        error: Why the request was refused, or (a ``SourceError``) why the child leaves.
        details: Where they were asked for instead of a reading, what drivers tell of devices on request, by key.
    """

    snapshot: Snapshot | None = None
    counted: ReadingCounts = ReadingCounts()
    numbering: Numbering | None = None
    error: AccelMetricsError | None = None
    details: Mapping[str, Details | Unavailable] | None = None


class Channel:
    """Sends and receives whole messages over one end of the socket pair.

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
        """Send one message whole.

        Args:
            message: The message.
            seconds: How long the other end may take nothing of it; None for ever.

        Raises:
            OSError: The other end is gone, or took nothing for so long.
        """
        body = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        self._end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(seconds))
        self._end.sendall(_LENGTH.pack(len(body)) + body)

    def receive(self, until: float | None) -> Any:
        """Receive the next message.

        Args:
            until: Until when to wait for the whole of it, on the machine's monotonic clock; None for ever.

        Raises:
            BlockingIOError: It did not come in time; the part that has come is kept.
            EOFError: The other end is gone.
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
            raise SourceError(Reason.DRIVER_ERROR, f"what was received cannot be read: {outcome.failure.detail}")
        return outcome.value

    def hang_up(self) -> None:
        """End the channel for both ends, and for every copy that a fork has made of them; in a fork, close this copy alone.

        It may run in the middle of anything, and at the interpreter's exit: nothing here waits.
        """
        if os.getpid() == self._pid:
            with suppress(OSError):  # the other end may have hung up before
                self._end.shutdown(socket.SHUT_RDWR)
        self._end.close()


def _timeval(seconds: float | None) -> bytes:
    """Pack a duration as the kernel takes it: zeros are for ever."""
    whole = max(0.0, seconds or 0.0)
    return struct.pack("ll", int(whole), max(1, int(whole % 1 * 1e6)) if seconds is not None else 0)


class ReadingProcess(Watchdog):
    """One reading process under its watchdog, and the channel to it. It is asked for one reading at a time.

    Args:
        owner: What it reads for: when that is gone without a word, the channel is hung up, and nothing stays of it.
        patient_until: Until when it may take to start.

    Attributes:
        channel: The channel.
        header: That of its last reading; it is sent again only when it changes, like the next.
        processes: Those of its last reading.
        up: Whether it has answered once.
        owed: How many answers it owes: at most two, of which the second is not sent for before the first has come.
        describes: Whether the next one that is sent for is what drivers tell of devices on request, instead of a reading.
        patient_until: Until when the answer may come, on the machine's monotonic clock; then the child is replaced.
    """

    header: Header | None = None
    processes: Mapping[str, tuple[DeviceProcess, ...]] = MappingProxyType({})
    up = False
    owed = 0
    describes = False

    def __init__(self, owner: object, patient_until: float) -> None:
        if not sys.executable or getattr(sys, "frozen", False):
            raise FileNotFoundError("it is not known where the interpreter is: sys.executable is none")
        self.patient_until = patient_until
        entries: list[object] = [*sys.path]
        path = [entry for entry in entries if isinstance(entry, str)]  # the interpreter passes over others
        # Vendor libraries print: not on the program's standard output.
        out: int = subprocess.DEVNULL
        with suppress(OSError):  # a program may run without standard error
            os.fstat(2)
            out = 2
        program = f"import sys; sys.path[:] = {path!r}; from accelmetrics.sampling.isolation import main; main()"
        with ExitStack() as undo:
            ours, theirs = map(undo.enter_context, socket.socketpair())
            # In a session of its own: Ctrl-C is for the program.
            super().__init__(sys.executable, [sys.executable, "-c", program], stdin=theirs.fileno(), stdout=out, stderr=out)
            theirs.close()
            self.channel = Channel(ours)
            self._forgotten = weakref.finalize(owner, _forget, self)
            self._forgotten.atexit = False  # the kernel closes both ends then
            undo.pop_all()

    def hang_up(self) -> None:
        """End the channel, and have the watchdog end the process; returns at once."""
        self._forgotten.detach()
        self.channel.hang_up()
        self.end()
        self.control.close()


def _forget(child: ReadingProcess) -> None:
    child.hang_up()
    child.reap_later()


class IsolatedPart:
    """Backends that are read in one child process, and what they last gave.

    Args:
        backends: Which backends, in numbering order.
        forced: Names of those that are opened whatever detection says.
        options: What to read, and how long to wait.
        numbering: The numbers set aside for its devices; None where the child sets them aside.
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
        """Send for a reading, unless an earlier one is still owed. Starts the child if need be, once it is time to.

        Args:
            describe: Send for what drivers tell of devices on request instead.
        """
        if self._child is None and time.monotonic() >= self._retry_at:
            reap()
            timeout, open_timeout, last = self._options.timeout, self._options.open_timeout, self._last
            shorter = timeout - min(LARGEST_MARGIN, MARGIN * timeout)
            if last.time_ns and not self._first:  # the numbering is known: sources that open at once need not wait for one that does not
                open_timeout = min(shorter, open_timeout)
            options = self._options._replace(pid=self._options.pid or os.getpid(), timeout=shorter, open_timeout=open_timeout)
            again = " again" if self._pause > FIRST_RETRY else ""
            self._why = Unavailable(Reason.DRIVER_UNAVAILABLE, f"the reading process is being started{again}")
            keys = (*last.metrics, *last.unavailable)
            sequences = {status.name: status.sequence for status in last.backends}
            try:
                self._child = child = ReadingProcess(self, time.monotonic() + timeout + self._options.open_timeout + START_UP)
                child.channel.send((self._backends, self._forced, options, self._numbering, keys, sequences), START_UP)
            except (OSError, TypeError, ValueError) as error:  # no descriptors, no memory, no interpreter
                self._drop(Reason.DRIVER_UNAVAILABLE, f"could not be started: {error}")
        if self._child is not None:
            self._child.owed, self._child.describes = min(2, self._child.owed + 1), describe
            if self._child.owed == 1:
                with suppress(OSError):  # receiving says why
                    self._send(self._child)

    def answer(self, until: float) -> ChildAnswer:
        """Wait for the answer to what was sent for: a snapshot that says why there is none, where none comes.

        Args:
            until: Until when, on the machine's monotonic clock; the first one is waited for as long as the child may take to start.
        """
        child = self._child
        given = None if child is None else self._receive(child, child.patient_until if self._first else until)
        self._first = False
        if given is not None:
            self._last = given.snapshot or self._last
            return given
        # All that is known to exist is missing, for the reason that the child is not there.
        why, last = self._why, self._last
        late = why.reason == Reason.TIMED_OUT
        reasons = dict.fromkeys((*self._host_keys, *last.metrics, *last.unavailable), why)
        failed = BackendStatus("", "timed_out" if late else "failed", why.detail, reason=str(why.reason))
        # A source that was not there is still not there.
        statuses = tuple(
            [
                status if status.status == "absent" else failed._replace(name=status.name, sequence=status.sequence, devices=status.devices)
                for status in last.backends
            ]
        )
        unlisted = {slot.key: why for slot in last.identities}
        snapshot = Snapshot(SYSTEM_CLOCK.time_ns(), last.hostname, {}, last.identities, reasons, statuses, unlisted=unlisted)
        return ChildAnswer(snapshot, ReadingCounts(1, int(late)))

    def close(self) -> None:
        """End the child."""
        child = self.disconnect()
        if child is not None:
            child.await_end(CLOSE_TIMEOUT, KILL_TIMEOUT)
        self._pause, self._retry_at, self._first = FIRST_RETRY, 0.0, True

    def after_fork(self) -> None:
        """Close this copy of the channel in the child of a fork, and start over: the channel belongs to the parent."""
        self.disconnect()
        self._first = True

    def disconnect(self) -> ReadingProcess | None:
        """Hang up on the child."""
        child, self._child = self._child, None
        if child is not None:
            child.hang_up()
        reap()
        return child

    def _send(self, child: ReadingProcess) -> None:
        child.channel.send(child.describes, START_UP)
        child.patient_until = max(child.patient_until, time.monotonic() + PATIENCE * self._options.timeout)

    def _receive(self, child: ReadingProcess, until: float) -> ChildAnswer | None:
        """Receive the answer; one that an earlier reading did not wait for is passed over, and the next sent for."""
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
                        answer = answer._replace(snapshot=Snapshot.of(child.header, numbers, time_ns, backends, child.processes))
                child.up, child.patient_until = True, 0.0
                self._pause = FIRST_RETRY
                self._numbering = answer.numbering or self._numbering
                child.owed -= 1
                if not child.owed:
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
                child.hear()
            self._drop(Reason.DRIVER_UNAVAILABLE, _ended(child.status))
        except SourceError as failure:
            self._drop(failure.reason, f"failed: {failure.message}")
        return None

    def _drop(self, reason: str, fate: str) -> None:
        """End the child at once, and start another later."""
        self.disconnect()
        self._why = Unavailable(reason, f"the reading process {fate}; another will be started")
        self._retry_at = time.monotonic() + self._pause
        self._pause = min(LAST_RETRY, 2.0 * self._pause)


class ProcessEngine:
    """Takes snapshots in child processes: the vendors' in one, the host's in another, so that no driver can take them along.

    Args:
        backends: Which backends, in numbering order.
        forced: Names of those that are opened whatever detection says.
        options: What to read, and how long to wait.
    """

    def __init__(self, backends: Sequence[Backend], forced: frozenset[str], options: Options) -> None:
        if not hasattr(socket, "AF_UNIX"):
            raise InvalidOptionError("isolation='process' needs Unix sockets, which this platform does not have: use isolation='thread'")
        self.statistics = ReadingCounts()
        self._order = [backend.name for backend in backends]
        self._forced = forced
        self._options = options
        vendors = [backend for backend in backends if backend.kind is not None]
        hosts = [backend for backend in backends if backend.kind is None]
        # Where there are others, devices that were asked for are looked for among theirs.
        parts = [(vendors, options), (hosts, options._replace(gpus=None) if vendors else options)]
        self._parts = [IsolatedPart(part, forced, wanted) for part, wanted in parts if part]
        self._undivided = vendors if options.gpus is None else []
        self._heads: list[Header] = []  # those that the parts' last readings had, and what they come to together
        self._header: Header | None = None
        self._lock = threading.Lock()
        self._last: tuple[float, Snapshot] | None = None  # when it was asked for, on the machine's monotonic clock
        _ENGINES.add(self)

    def sample(self, max_age: float = 0.0) -> Snapshot:
        """Take one snapshot, or one that says why there is none. Safe from any thread.

        Args:
            max_age: Seconds before this call in which the last reading must have been asked for to be returned once more.
        """
        called = time.monotonic()
        until = called + self._options.timeout
        if (last := self.latest(called - max_age)) is not None:
            return last
        with self._lock:
            if (last := self.latest(called - max_age)) is not None:
                return last
            began = time.monotonic()
            # A thread that waited for another's reading has what is left of its time, and a tenth of it in any case.
            until = max(until, time.monotonic() + SHORTEST_TURN * self._options.timeout)
            vendors, self._undivided = self._undivided, []
            divisions = divided(vendors)
            if divisions:
                self._parts[:1] = [IsolatedPart(part, self._forced, self._options, numbering) for part, numbering in divisions]
            answers = self._ask(until)
            counted = map(max, *(answer.counted for answer in answers), (0, 0, 0))
            self.statistics = ReadingCounts(*map(sum, zip(self.statistics, counted, strict=True)))
            for answer in answers:
                if answer.error is not None:
                    raise answer.error
            taken = self._merged([answer.snapshot for answer in answers if answer.snapshot is not None])
            self._last = (began, taken)
            return taken

    def describe(self) -> dict[str, Details | Unavailable]:
        """Have the children ask drivers for what they tell of devices on request, and return it by device key."""
        self.list_devices()
        with self._lock:
            answers = self._ask(time.monotonic() + self._options.timeout, describe=True)
        missing = (answer.snapshot.unlisted for answer in answers if answer.details is None and answer.snapshot is not None)
        found: list[Mapping[str, Details | Unavailable]] = [answer.details for answer in answers if answer.details is not None]
        return {key: known for part in (*found, *missing) for key, known in part.items()}

    def _ask(self, until: float, describe: bool = False) -> list[ChildAnswer]:
        """Ask all children side by side."""
        with ExitStack() as interrupted:  # in the middle of a message: a channel cannot be used any more
            for part in self._parts:
                interrupted.callback(part.disconnect)
            for part in self._parts:
                part.ask(describe)
            answers = [part.answer(until) for part in self._parts]
            interrupted.pop_all()
        return answers

    def latest(self, since: float) -> Snapshot | None:
        """Return the last reading once more if it was asked for no earlier than this on the machine's monotonic clock."""
        last = self._last
        return last[1] if last is not None and last[0] >= since else None

    def list_devices(self) -> Sequence[DeviceSlot]:
        """List the devices of the last reading, or else of a first one: children answer with readings."""
        return (self.latest(-math.inf) or self.sample()).identities

    def close(self) -> None:
        """End the children."""
        with self._lock:
            self._last = None
            for part in self._parts:
                part.close()

    def after_fork(self) -> None:
        """Leave the children to the parent, one of whose threads may hold the lock for ever."""
        self._lock, self._last = threading.Lock(), None
        for part in self._parts:
            part.after_fork()

    def _merged(self, snapshots: Sequence[Snapshot]) -> Snapshot:
        """Put the parts' snapshots together."""
        first, *rest = snapshots
        if not rest:
            return first
        statuses = sorted((status for each in snapshots for status in each.backends), key=lambda status: self._order.index(status.name))
        heads = [each.header for each in snapshots]
        if self._header is None or heads != self._heads:
            slots = sorted((slot for head in heads for slot in head.identities), key=lambda slot: self._order.index(slot.backend))
            keys = tuple([key for head in heads for key in head.keys])
            reasons = {key: why for head in heads for key, why in head.unavailable.items()}
            unlisted = {key: why for head in heads for key, why in head.unlisted.items()}
            self._heads, self._header = heads, header_of(first.hostname, keys, slots, reasons, standing(statuses), unlisted)
        numbers = tuple([number for each in snapshots for number in each.numbers])
        processes = {key: found for each in snapshots for key, found in each.processes.items()}
        return Snapshot.of(self._header, numbers, max(each.time_ns for each in snapshots), tuple(statuses), processes)


_ENGINES: weakref.WeakSet[ProcessEngine] = weakref.WeakSet()


def _after_fork() -> None:
    for engine in list(_ENGINES):
        engine.after_fork()


# registered behind the watchdogs' own, by which they know that they are the parent's
at_fork(after_in_child=_after_fork)


def divided(vendors: Sequence[Backend]) -> list[tuple[list[Backend], Numbering]]:
    """Divide vendors among children.

    Returns:
        For each child its backends, and the numbers set aside for the devices of all. What is listed beyond those is numbered far behind
        them, apart from what others list. Nothing where one child is enough, or where it is not known how many devices there are.
    """
    loading = [backend for backend in vendors if backend.name not in BUILT_IN or BUILT_IN[backend.name].library]
    found = _detected(vendors) if len(loading) > 1 else {}
    apart = [backend for backend in loading if backend.name in found]
    if len(apart) < 2 or not all(found[backend.name] or backend.kind in VENDOR_NUMBERED for backend in apart):
        return []
    devices = DeviceRegistry()
    for backend in vendors:
        if backend.name in found:
            devices.reserve(backend.name, backend.kind or "", found[backend.name])
    numbering, parts = devices.numbering, []
    for number, one in enumerate(apart):
        part = [backend for backend in vendors if backend is one or (not number and backend not in apart)]
        beyond = {kind: free + number * MOST_DEVICES for kind, free in numbering.free.items()}
        parts.append((part, numbering._replace(free=beyond)))
    return parts


def _detected(backends: Sequence[Backend]) -> dict[str, int]:
    """Count the devices of each backend whose hardware is here; empty where looking for it does not return in time."""
    found: dict[str, int] = {}

    def look() -> None:
        for backend in backends:
            detection = guarded(checked_detection, backend).value
            if detection is not None and detection.present:
                found[backend.name] = detection.devices

    if any(thread.is_alive() for thread in list(_LATE)):
        return {}
    thread = threading.Thread(target=look, name="accelmetrics-detection", daemon=True)
    if begin(thread).failure is None:
        thread.join(DETECTION)
    if thread.is_alive():
        _LATE.add(thread)
    return {} if thread.is_alive() else found


_LATE: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
"""Threads whose detection hangs: no other is begun beside them."""


def _portable(backend: Backend) -> str | bytes:
    """Send a registered backend by its name; any other, and one with a source pinned, must travel as itself."""
    if is_registered(backend):
        return backend.name
    outcome = guarded(pickle.dumps, backend, pickle.HIGHEST_PROTOCOL)
    why = "" if outcome.failure is None else outcome.failure.detail
    if type(backend).__module__ == "__main__":
        name = type(backend).__qualname__
        why = f"{name} is defined in the program that is run, which the reading process does not run: move it into a module of its own"
    if why or outcome.value is None:
        raise InvalidOptionError(
            f"the backend {backend.name!r} cannot be sent to another process ({why}): "
            "register it under the entry-point group accelmetrics.backends, or use isolation='thread'"
        ) from outcome.error
    return outcome.value


def _ended(status: int | None) -> str:
    if status is None:
        return "closed the channel"
    if status >= 0:
        return f"exited with status {status}"
    named = [f" ({known.name})" for known in signal.Signals if known == -status]
    return f"was killed by signal {-status}{''.join(named)}"


def main() -> None:
    """Run the child: serve readings on the channel, which is its standard input, until the parent hangs up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        channel = Channel(socket.socket(fileno=os.dup(0)))
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        outcome = guarded(_serve, channel)
        if outcome.failure is not None:  # the parent may have hung up, and not receive it
            guarded(channel.send, (None, ChildAnswer(error=SourceError(*outcome.failure))))
    finally:
        os._exit(0)


def _serve(channel: Channel) -> None:
    # The code of backends that are not registered runs when they are unpickled here.
    portable, forced, options, numbering, keys, sequences = channel.receive(None)
    backends = [item if isinstance(item, str) else pickle.loads(item) for item in portable]
    engine = ThreadEngine(SHARED, select(backends), forced, options)
    if numbering is not None:
        engine.resume(numbering, keys, sequences)
    told: Numbering | None = None
    header: Header | None = None
    processes: object = None
    while True:
        describes = channel.receive(None)
        engine.statistics = ReadingCounts()
        row: tuple[object, ...] | None = None
        error: AccelMetricsError | None = None
        if describes:
            channel.send((None, ChildAnswer(details=engine.describe())))
            continue
        try:
            taken = engine.sample()
        except UnknownNameError as wrong:
            error = wrong
        else:
            changed = None if taken.header is header else taken.header, None if taken.processes is processes else taken.processes
            row = (*changed, taken.numbers, taken.time_ns, taken.backends)
            header, processes = taken.header, taken.processes
        numbering = engine.devices.numbering
        channel.send((row, ChildAnswer(None, engine.statistics, None if numbering == told else numbering, error)))
        told = numbering
