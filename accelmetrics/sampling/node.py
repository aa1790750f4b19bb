"""Processes of one machine that share one reading: one of them reads for all, and the next takes over when it ends.

A lock file elects: the process that holds it reads, and serves what it has read on a Unix socket beside it. Every process is a
client of that socket, that one too. A daemon's socket comes first where there is one (``accelmetrics serve --socket``).

Where sharing is not possible (there is no job to share with, the directory is not safe, the other process is of another release, was
started with other options, or does not answer) a process reads for itself, says why once, and tries again later.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import re
import select
import socket
import stat
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import WeakSet

from accelmetrics._version import __version__
from accelmetrics.sampling.channel import NodeChannel
from accelmetrics.sampling.node_server import NodeServer
from accelmetrics.sampling.node_view import OwnView
from accelmetrics.sampling.node_wire import LONGEST_READING, PROTOCOL, Decoder, Frames, SharedReading, WireError, credentials, frame
from accelmetrics.sampling.options import DEFAULT_OPEN_TIMEOUT, DEFAULT_TIMEOUT, items
from accelmetrics.sampling.sampler import Sampler, check_of
from accelmetrics.schemas.selection import ALL, MetricSelection
from accelmetrics.schemas.snapshot import Snapshot

DAEMON = "/run/accelmetrics/collector.sock"
"""Where the daemon of a machine listens; only root can make that directory."""
SOCKET_VARIABLE = "ACCELMETRICS_SOCKET"
"""Names the socket of a daemon that listens elsewhere."""
JOBS = ("SLURM_JOB_ID", "TORCHELASTIC_RUN_ID", "RAY_JOB_ID")
"""The variables that name a job, the first that is set."""
PATIENCE = 3.0
"""Seconds for another process to answer, beyond what its reading may take."""
RETRY = 30.0
"""Seconds after which a process that reads for itself looks again for others."""
NO_JOB = "nothing says that this process is one of a job: no SLURM_JOB_ID, TORCHELASTIC_RUN_ID, RAY_JOB_ID, MASTER_ADDR with MASTER_PORT"
"""Why a process reads for itself that no launcher started."""
FIRST_PAUSE, LAST_PAUSE = 0.002, 0.05
"""Seconds between two attempts to find the process that reads: doubled from the first to the last."""
FLUSH = 0.2
"""Seconds that closing takes at most to send what still waits."""
SHORTEST_WAIT = 0.5
"""Seconds for an answer to a hello, also for a process that already reads for itself."""
ATTEMPTS = 5
"""How often one reading finds another process that reads for it, before it is taken alone."""
_OF_PROCESS = frozenset({"metrics", "gpus", "visible", "pid", "children"})
"""Options that each process has for itself."""
_CHUNK = 1 << 16

log = logging.getLogger("accelmetrics")


class NotSharedError(Exception):
    """Why a reading is not shared."""


def job_key(environment: Mapping[str, str] | None = None) -> str:
    """Return what the processes of a job have in common; empty where no scheduler or launcher says.

    Args:
        environment: The variables; this process's own when left out.
    """
    values = os.environ if environment is None else environment
    for name in JOBS:
        if (value := values.get(name, "")) and not (name == "TORCHELASTIC_RUN_ID" and value == "none"):
            return f"{name}={value}"
    address, port = values.get("MASTER_ADDR", ""), values.get("MASTER_PORT", "")
    return f"{address}-{port}" if address and port else ""


class Meeting:
    """The directory in which the processes of a user's job on this machine find each other.

    Args:
        job: The job.

    Raises:
        NotSharedError: There is no directory that is this user's alone.
    """

    def __init__(self, job: str) -> None:
        readable = re.sub(r"[^\w.-]+", "-", job, flags=re.ASCII)[-8:]  # a socket's path has 103 bytes at most on macOS
        self._name = f"{readable}-{hashlib.sha256(job.encode(errors='replace')).hexdigest()[:12]}"
        self._directory, self._path = _directory()
        self._lock: int | None = None

    def close(self) -> None:
        """Leave; what this process has made for others is removed, if it held the lock."""
        if self._lock is not None:
            for end in ("sock", "lock"):
                with suppress(OSError):
                    os.unlink(f"{self._name}.{end}", dir_fd=self._directory)
        self.after_fork()

    def after_fork(self) -> None:
        """Close the descriptors. In the child of a fork that gives up no lock: the parent has it."""
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)
        if self._directory >= 0:
            os.close(self._directory)
        self._directory = -1

    def elect(self) -> bool:
        """Return whether this process is the one that reads from now on.

        Raises:
            NotSharedError: The lock file cannot be made.
        """
        name = f"{self._name}.lock"
        try:
            lock = os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=self._directory)
        except OSError as error:
            raise NotSharedError(f"{self._path}/{name} cannot be made: {error.strerror or error}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            there = os.stat(name, dir_fd=self._directory, follow_symlinks=False)
            if os.path.samestat(there, os.fstat(lock)):  # else the one before has removed it meanwhile
                self._lock, lock = lock, -1
                return True
        except OSError:  # another process holds it, or has removed it
            return False
        finally:
            if lock >= 0:
                os.close(lock)
        return False

    def listen(self) -> socket.socket:
        """Return a listening socket. For the process that was elected: what another has left there is removed."""
        with suppress(FileNotFoundError):
            os.unlink(f"{self._name}.sock", dir_fd=self._directory)
        return listening(self._address())

    def connect(self) -> socket.socket:
        """Connect to the process that reads.

        Raises:
            OSError: It does not listen.
        """
        return connected(self._address())

    def _address(self) -> str:
        """Return the path of the socket: by way of the open directory where that is possible, which is short and cannot be replaced."""
        opened = f"/proc/self/fd/{self._directory}"
        return f"{opened if Path(opened).exists() else self._path}/{self._name}.sock"


def listening(path: str) -> socket.socket:
    """Return a Unix socket that listens there.

    Raises:
        OSError: It cannot.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(path)
        listener.listen(512)
    except OSError:
        listener.close()
        raise
    return listener


def connected(path: str) -> socket.socket:
    """Return a socket that is connected to the one that listens there.

    Raises:
        OSError: None does.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.setblocking(False)
        connection.connect(path)
    except OSError:
        connection.close()
        raise
    return connection


def _directory() -> tuple[int, str]:
    """Open the directory that is this user's alone: below ``XDG_RUNTIME_DIR``, else below the temporary one.

    Raises:
        NotSharedError: It cannot be made, or others could write there.
    """
    user = os.geteuid()
    base = Path(os.environ.get("XDG_RUNTIME_DIR", ""))
    path = Path(tempfile.gettempdir()) / f"accelmetrics-{user}"
    with suppress(OSError):  # it is another user's, or none
        if base.is_absolute() and base.is_dir() and base.stat().st_uid == user:
            path = base / "accelmetrics"
    try:
        with suppress(FileExistsError):
            path.mkdir(0o700)
        opened = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise NotSharedError(f"{path} cannot be used: {error.strerror or error}") from error
    found = os.fstat(opened)
    if found.st_uid != user or stat.S_IMODE(found.st_mode) & 0o077:
        os.close(opened)
        raise NotSharedError(f"{path} is open to other users: remove it, or make it yours with mode 0700")
    return opened, str(path)


def shared_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of a sampler's options that are not each process's own."""
    return {name: value for name, value in options.items() if name not in _OF_PROCESS}


class NodeSampler:
    """Reads as a sampler does, together with the other processes of its job on this machine. For one thread.

    Args:
        options: Those of :class:`~accelmetrics.sampling.sampler.Sampler`.
        interval: Seconds between two readings.
        channel: What is said beside the readings.
        labels: Those of the monitor, with the rank of this process among them.

    Attributes:
        waited: Seconds for which the latest reading was waited for.
    """

    def __init__(self, options: Mapping[str, Any], interval: float, channel: NodeChannel, labels: Mapping[str, str]) -> None:
        self._options = dict(options)
        self._interval = interval
        self._channel = channel
        self._labels = labels
        self._timeout = float(options.get("timeout", DEFAULT_TIMEOUT))
        self._open_timeout = float(options.get("open_timeout", DEFAULT_OPEN_TIMEOUT))
        self._job = job_key()
        self._metrics = MetricSelection(options.get("metrics", ALL))
        self._check = check_of(self._metrics)
        self._view = OwnView(options)
        self._meeting: Meeting | None = None
        self._server: NodeServer | None = None
        self._connection: socket.socket | None = None
        self._poll = select.poll()
        self._frames, self._decoder = Frames(LONGEST_READING), Decoder()
        self._latest: SharedReading | None = None
        self._served: SharedReading | None = None
        self._alone: Sampler | None = None
        self._welcome = False
        self._told_devices: tuple[str, ...] = ()
        self.waited = 0.0
        self._retry_at = 0.0
        self._told: set[str] = set()
        _samplers.add(self)

    def sample(self) -> Snapshot:
        """Return a reading that began after this call, as far as the process that reads answers in time."""
        return self._sample(time.monotonic())

    def scheduled(self) -> Snapshot:
        """Return the next reading of the process that reads: the first that this one has not had yet."""
        return self._sample(None)

    @property
    def shares(self) -> bool:
        """Whether another thread or process reads for this one."""
        return self._connection is not None

    @property
    def age(self) -> float:
        """Seconds since the latest shared reading was begun."""
        return time.monotonic() - self._served.began if self._served is not None else 0.0

    def close(self) -> None:
        """Leave: another process takes over where this one has read for others. It may be used again."""
        if self._connection is not None:
            self._send_messages(FLUSH)
        self._disconnect()
        self._end_serving()
        if self._alone is not None:
            self._alone.close()
            self._alone = None
        self._view.close()
        self._channel.role = ""

    def after_fork(self) -> None:
        """Close, in the child of a fork, what belongs to the parent."""
        if self._server is not None:
            self._server.after_fork()
        if self._meeting is not None:
            self._meeting.after_fork()
        if self._connection is not None:
            self._connection.close()
        self._server, self._meeting, self._connection = None, None, None

    def _sample(self, asked_at: float | None) -> Snapshot:
        for _ in range(ATTEMPTS):
            self._join()
            if self._alone is not None:
                break
            try:
                self._served = reading = self._next(asked_at)
            except (OSError, EOFError):  # the process that reads has ended: the next takes over
                self._disconnect()
            except (WireError, NotSharedError) as error:
                self._read_alone(str(error))
            else:
                snapshot = self._view.snapshot(reading, self._channel.devices)
                self._tell_devices()
                return snapshot if self._check is None else self._check(snapshot)
        alone = self._alone or self._read_alone("the processes that read for this machine end again and again")
        self._channel.forget()
        return alone.sample()

    # Readings

    def _next(self, asked_at: float | None) -> SharedReading:
        """Return a reading: one that began after a moment, or else the first that was not served yet.

        Raises:
            OSError, EOFError: The connection has ended.
            WireError: What came makes no sense.
            NotSharedError: Nothing has come for so long that this process reads for itself.
        """
        self._send_messages(0.0)
        patience = self._timeout + PATIENCE + (self._open_timeout if self._latest is None else 2 * self._interval)
        if asked_at is not None and self._latest is not None:
            patience = self._timeout
            self._send(frame({"type": "read"}))
        self.waited = 0.0
        until = time.monotonic() + patience
        while (latest := self._latest) is None or not self._is_new(latest, asked_at):
            left = until - time.monotonic()
            if left > 0:
                self._receive(left)
            elif latest is not None and asked_at is not None:
                break  # what it gave last stands
            else:
                raise NotSharedError(f"the process that reads for this machine has not answered for {patience:.0f} s")
        return latest

    def _is_new(self, latest: SharedReading, asked_at: float | None) -> bool:
        return latest is not self._served and (asked_at is None or self._served is None or latest.began >= asked_at)

    def _receive(self, seconds: float) -> None:
        """Take what has come, or comes within so long.

        Raises:
            EOFError: The other end is gone.
        """
        connection = self._connected()
        whole = False
        while not whole:  # of several readings that wait, all but the last are passed over
            try:
                data = connection.recv(_CHUNK)
            except BlockingIOError:
                began = time.monotonic()
                comes = seconds > 0.0 and self._poll.poll(1000 * seconds)
                self.waited += time.monotonic() - began
                if not comes:
                    return
                data = connection.recv(_CHUNK)
            if not data:
                raise EOFError("the process that reads for this machine has ended")
            for message in self._frames.feed(data):
                self._take(message)
            seconds, whole = 0.0, len(data) < _CHUNK

    def _take(self, message: Mapping[str, Any]) -> None:
        kind = message.get("type")
        if kind == "refused":
            raise NotSharedError(f"the process that reads for this machine refuses: {message.get('why')}")
        if kind == "welcome":
            self._welcome = True
        elif kind == "messages":
            self._channel.give(message)
        elif kind == "job":
            self._channel.note(message)
        else:
            self._latest = self._decoder.decode(message) or self._latest

    # What is said beside

    def _send_messages(self, seconds: float) -> None:
        """Send what waits, and go on with that for so long at most."""
        until = time.monotonic() + seconds if self._channel.waiting else 0.0
        while self._channel.waiting and (batch := self._channel.take()):
            self._send(frame({"type": "messages", "messages": batch}))
            if time.monotonic() >= until:
                return

    def _tell_devices(self) -> None:
        if self._view.visible != self._told_devices:
            self._told_devices = self._view.visible
            with suppress(OSError, EOFError):  # the next reading says so
                self._send(frame({"type": "devices", "devices": list(self._view.visible)}))

    def _send(self, data: bytes) -> None:
        connection = self._connected()
        connection.settimeout(PATIENCE)
        try:
            connection.sendall(data)
        finally:
            connection.setblocking(False)

    def _connected(self) -> socket.socket:
        if self._connection is None:
            raise EOFError("there is no connection")
        return self._connection

    # Finding each other

    def _join(self) -> None:
        """Be connected, or read alone."""
        if self._connection is not None or (self._alone is not None and time.monotonic() < self._retry_at):
            return
        self._end_serving()  # what served the connection that has ended
        try:
            self._find(time.monotonic() + (PATIENCE if self._alone is None else 0.0))
        except NotSharedError as error:
            self._read_alone(str(error))
            return
        if self._alone is not None:
            self._alone.close()
            self._alone = None
        self._channel.role, self._channel.why = "client" if self._server is None else "holder", ""

    def _find(self, until: float) -> None:
        """Connect to the daemon, or to the process of the job that reads, or be that one.

        Raises:
            NotSharedError: None of it was possible until then.
        """
        alone = not all(isinstance(backend, str) for backend in self._options.get("backends") or ())
        if not alone and self._find_daemon(until):
            return
        if not self._job:
            raise NotSharedError(NO_JOB)
        if alone:
            raise NotSharedError("backends that are objects are read by the process that has them alone")
        meeting = Meeting(self._job)
        try:
            pause = FIRST_PAUSE
            while not self._connect(meeting.connect, until, os.geteuid()):
                if meeting.elect():
                    self._serve(meeting)
                elif time.monotonic() >= until:
                    raise NotSharedError("the process that reads for this machine does not answer")
                else:
                    time.sleep(pause)
                    pause = min(2 * pause, LAST_PAUSE)
        finally:
            if self._meeting is not meeting:
                meeting.close()

    def _find_daemon(self, until: float) -> bool:
        """Connect to the daemon where there is one that reads what is wanted; whether that is so."""
        named = os.environ.get(SOCKET_VARIABLE, "")
        path = named or DAEMON
        try:
            found = (bool(named) or Path(path).exists()) and self._connect(lambda: connected(path), until, None)
        except NotSharedError as error:
            found, why = False, str(error)
        else:
            why = f"no daemon answers at {named!r}, which {SOCKET_VARIABLE} names" if named and not found else ""
        if why:
            self._tell(why, "it is shared without the daemon where that is possible")
        return found

    def _serve(self, meeting: Meeting) -> None:
        """Read for the others.

        Raises:
            NotSharedError: The socket cannot be made, or no thread is to be had.
        """
        user = os.geteuid()
        self._meeting = meeting
        try:
            self._server = NodeServer(meeting.listen(), shared_options(self._options), lambda peer: peer.uid == user)
            self._server.start()
        except (OSError, RuntimeError) as error:
            self._end_serving()
            raise NotSharedError(f"no socket for the others can be made: {error}") from error

    def _connect(self, connect: Callable[[], socket.socket], until: float, user: int | None) -> bool:
        """Connect, and say hello; whether that was welcome.

        Args:
            connect: Makes the connection.
            until: Until when to wait for an answer, at least a moment.
            user: The user whose process must be at the other end; None where its place vouches for it.

        Raises:
            NotSharedError: The other process refuses, or is not one that is trusted.
        """
        try:
            self._connection = connection = connect()
            self._poll = select.poll()
            self._poll.register(connection, select.POLLIN)
            if user is not None and (other := credentials(connection).uid) != user:
                raise NotSharedError(f"a process of user {other} listens in its place")
            self._frames, self._decoder, self._welcome = Frames(LONGEST_READING), Decoder(), False
            self._latest, self._told_devices = None, ()
            self._send(frame(self._hello()))
            until = max(until, time.monotonic() + SHORTEST_WAIT)
            while not self._welcome and (left := until - time.monotonic()) > 0:
                self._receive(left)
        except (OSError, EOFError):
            self._welcome = False
        except (NotSharedError, WireError) as error:
            self._disconnect()
            raise NotSharedError(str(error)) from error
        if not self._welcome:
            self._disconnect()
        return self._welcome

    def _hello(self) -> Mapping[str, Any]:
        listed, rank = self._options.get("backends"), self._labels.get("rank", "")
        return {
            "type": "hello",
            "protocol": PROTOCOL,
            "release": __version__,
            "job": self._job or f"process {os.getpid()}",
            "rank": int(rank) if rank.isdecimal() else None,
            "labels": dict(self._labels),
            "interval": self._interval,
            "metrics": list(self._metrics.items),
            "backends": None if listed is None else list(listed),
            "amd_source": self._options.get("amd_source"),
            "disk_paths": list(items(self._options.get("disk_paths", "/")) or ["/"]),
        }

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _end_serving(self) -> None:
        server, self._server = self._server, None
        meeting, self._meeting = self._meeting, None
        if server is not None:
            server.close()
        if meeting is not None:
            meeting.close()

    def _read_alone(self, why: str) -> Sampler:
        """Read for itself from now on, and look for others again later.

        Returns:
            What it reads with.
        """
        self._disconnect()
        self._end_serving()
        self._channel.alone(why)
        self._retry_at = time.monotonic() + RETRY
        if self._alone is None:
            self._alone = Sampler(**self._options)
        if why != NO_JOB:  # which is as usual
            self._tell(why, "this process reads for itself")
        return self._alone

    def _tell(self, why: str, so: str) -> None:
        if why not in self._told:
            self._told.add(why)
            log.warning("readings are not shared: %s: %s", why, so)


_samplers: WeakSet[NodeSampler] = WeakSet()


def _after_fork() -> None:
    for sampler in list(_samplers):
        sampler.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
