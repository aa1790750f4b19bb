"""``isolation="process"``: the same backends in a child behind a socket.

What threads cannot promise, the child does: a driver call that nothing can end does not hold the program's exit, a library
that calls ``exit`` takes only the child with it, a fork in the middle of a driver call finds no locked mutex here, and a
busy interpreter delays a reading by two switches, not by one per driver call.

When the child dies or stops answering, everything it gave is missing with the reason, and another is started with
back-off; devices keep their numbers.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

from accelmetrics.backends.clock import SYSTEM_CLOCK
from accelmetrics.backends.contract import Backend
from accelmetrics.backends.registry import names
from accelmetrics.sampling.child import Answer, Order
from accelmetrics.sampling.engine import Statistics, hostname
from accelmetrics.sampling.inventory import Seen
from accelmetrics.sampling.options import Options
from accelmetrics.sampling.wire import Wire
from accelmetrics.schemas.catalogue import expected_keys
from accelmetrics.schemas.errors import InvalidOptionError
from accelmetrics.schemas.identity import BackendStatus
from accelmetrics.schemas.reasons import Reason, Unavailable
from accelmetrics.schemas.snapshot import Snapshot

START_UP = 5.0
"""Seconds that a fresh interpreter may take to import this package on a busy machine."""
GRACE = 0.25
"""Share of the timeout that the child's own deadline may overrun before the child counts as late."""
FIRST_RETRY, LAST_RETRY = 0.1, 30.0
PATIENCE = 3
"""Readings in a row without an answer after which the child is replaced."""


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
        self._hosts = {backend.name for backend in backends if backend.kind is None}
        self._forced = forced
        self._options = options
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._child: subprocess.Popen[bytes] | None = None
        self._wire: Wire | None = None
        self._ticket = 0
        self._unanswered = 0
        self._first = True
        self._failures = 0
        self._retry_at = 0.0
        self._why = Unavailable(Reason.DRIVER_UNAVAILABLE, "the reading process has not been started")
        self._last: Snapshot | None = None
        self._seen: Sequence[Seen] = ()

    def take(self) -> Snapshot:
        """One snapshot, or one that says why there is none. Safe from any thread."""
        if os.getpid() != self._pid:
            self._after_fork()
        with self._lock:
            snapshot = self._ask() if self._ready() else None
            if snapshot is None:
                return self._nothing()
            self._last = snapshot
            return snapshot

    def close(self) -> None:
        """Let the child go; it leaves by itself when the line is closed, and is killed if it does not."""
        with self._lock:
            self._drop(Unavailable(Reason.DRIVER_UNAVAILABLE, "the sampler was closed"), gentle=True)
            self._failures = 0
            self._retry_at = 0.0
            self._first = True

    def _after_fork(self) -> None:
        """In the child of a fork the line belongs to the parent: hang up here and start over."""
        self._pid = os.getpid()
        self._lock = threading.Lock()
        if self._child is not None:
            self._child.returncode = 0  # not ours to wait for
        if self._wire is not None:
            self._wire.close()
        self._child = self._wire = None
        self._first = True

    def _ready(self) -> bool:
        if self._wire is not None:
            return True
        if time.monotonic() < self._retry_at:
            return False
        self._start()
        return True

    def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        script = f"import sys; sys.path[:] = {sys.path!r}; from accelmetrics.sampling.child import main; main({theirs.fileno()})"
        with theirs:
            self._child = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
        self._wire = Wire(ours)
        self._unanswered = 0
        self._first = True
        order = Order(self._backends, self._forced, self._options._replace(pid=self._options.pid or self._pid), self._seen)
        self._wire.send(order)

    def _ask(self) -> Snapshot | None:
        """Send for a reading and wait for the answer to it; answers to earlier requests are passed over."""
        wire = self._wire
        assert wire is not None  # _ready() has just seen to it
        try:
            self._ticket += 1
            wire.send(self._ticket)
            until = time.monotonic() + self._patience()
            while True:
                answer: Answer = wire.receive(until - time.monotonic())
                self._note(answer)
                if answer.ticket == self._ticket:
                    return answer.snapshot
        except BlockingIOError:
            self._late()
        except (EOFError, OSError):
            self._died()
        return None

    def _note(self, answer: Answer) -> None:
        self._unanswered = self._failures = 0
        self._first = False
        self.statistics = answer.statistics
        self._seen = answer.seen or self._seen
        if answer.error is not None:
            raise answer.error

    def _patience(self) -> float:
        patience = self._options.timeout * (1.0 + GRACE)
        return patience + self._options.open_timeout + START_UP if self._first else patience

    def _late(self) -> None:
        self._unanswered += 1
        self._why = Unavailable(Reason.TIMED_OUT, "the reading process has not answered")
        if self._unanswered >= PATIENCE or self._first:
            self._drop(Unavailable(Reason.TIMED_OUT, "the reading process did not answer and was ended; another will be started"))

    def _died(self) -> None:
        child = self._child
        status = _wait(child, 1.0) if child is not None else None
        self._drop(Unavailable(Reason.DRIVER_UNAVAILABLE, f"the reading process {_words(status)}; another will be started"))

    def _drop(self, why: Unavailable, gentle: bool = False) -> None:
        """Part with the child, without waiting for one that cannot be killed."""
        child, wire = self._child, self._wire
        self._child = self._wire = None
        self._why = why
        self._retry_at = time.monotonic() + min(LAST_RETRY, FIRST_RETRY * 2.0**self._failures)
        self._failures = min(self._failures + 1, 10)
        if wire is not None:
            wire.close()
        if child is None:
            return
        if not gentle or _wait(child, 1.0) is None:
            child.kill()
        if _wait(child, 0.5) is None:
            child.returncode = -signal.SIGKILL  # stuck in the kernel: it goes when the driver lets it

    def _nothing(self) -> Snapshot:
        """A snapshot in which everything that is known to exist is missing, for the reason that the child is not there."""
        why = self._why
        last = self._last
        keys = dict.fromkeys(key for host in self._hosts for key in expected_keys(host))
        if last is not None:
            keys.update(dict.fromkeys((*last.metrics, *last.unavailable)))
        readings, timed_out, late = self.statistics
        hung = why.reason == Reason.TIMED_OUT
        self.statistics = Statistics(readings + 1, timed_out + hung, late)
        return Snapshot(
            SYSTEM_CLOCK.time_ns(),
            last.hostname if last is not None else hostname(),
            {},
            last.identities if last is not None else (),
            dict.fromkeys(keys, why),
            tuple(BackendStatus(name, "timed_out" if hung else "failed", why.detail) for name in self._names),
        )


def _portable(backend: Backend) -> str | Backend:
    """A registered backend by its name; any other, and one with a source pinned, must travel as itself."""
    if not getattr(backend, "pin", "") and (type(backend).__module__.startswith("accelmetrics.backends") or backend.name in names()):
        return backend.name
    try:
        pickle.dumps(backend)
    except (TypeError, AttributeError, pickle.PicklingError) as error:
        raise InvalidOptionError(
            f"the backend {backend.name!r} cannot be sent to another process ({error}): "
            "register it under the entry-point group accelmetrics.backends, or use isolation='thread'"
        ) from error
    return backend


def _wait(child: subprocess.Popen[bytes], seconds: float) -> int | None:
    try:
        return child.wait(seconds)
    except subprocess.TimeoutExpired:
        return None


def _words(status: int | None) -> str:
    if status is None:
        return "closed the line"
    if status < 0:
        return f"was killed by signal {-status} ({signal.Signals(-status).name})"
    return f"exited with status {status}"
