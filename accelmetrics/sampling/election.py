"""Which process of a job reads: the one that holds a lock. The next one has it when that ends, in whatever way.

The lock is a POSIX one (``lockf``). The child of a fork does not inherit it, be it a fork of C that Python does not hear of; ``flock`` and
the locks of an open file description would stay held by such a child. Its price is that a process loses it with the first descriptor of
that file that it closes. So each lock file is opened once in a process, by this module, and is never closed.

A process that is stopped (SIGSTOP, a debugger) keeps its lock. Then a deputy may read, as long as the ring says that it writes. Deputies
have a lock of their own: with a driver that answers slowly, several would read at once.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import stat
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from accelmetrics.backends.guard import guarded
from accelmetrics.sampling.slot_file import PAGE, NotSharedError
from accelmetrics.sampling.threads import Flag, OnDemandThread

LOCK, DEPUTY, RING, BELL = ".lock", ".deputy", ".ring", ".bell"
"""How the names of a job's files end that all of its processes have in common."""
PAUSE = 0.05
"""Seconds between two attempts where waiting for a lock is not possible."""
FRESH = 60.0
"""Seconds for which the files of a job are left alone by others: its processes may be starting."""


def job_directory(make: bool = True) -> Path:
    """Return the directory that is this user's alone: below ``XDG_RUNTIME_DIR``, else below the temporary one.

    Args:
        make: Whether it is made where it is not there.

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
        if make:
            path.mkdir(0o700, exist_ok=True)
        found = path.lstat()
    except OSError as error:
        raise NotSharedError(f"{path} cannot be used: {error.strerror or error}") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != user or stat.S_IMODE(found.st_mode) & 0o077:
        raise NotSharedError(f"{path} is open to other users: remove it, or make it yours with mode 0700")
    return path


def job_files(job: str, *shared: object) -> Path:
    """Return what the paths of a job's files begin with; processes that differ in what is to be shared have different ones.

    Raises:
        NotSharedError: There is no directory for them.
    """
    readable = re.sub(r"[^\w.-]+", "-", job, flags=re.ASCII)[-32:]
    return job_directory() / f"{readable}-{digest_of(job, *shared)}"


def digest_of(*shared: object) -> str:
    """Return what tells what processes have in common from anything else."""
    return hashlib.sha256(repr(shared).encode(errors="replace")).hexdigest()[:16]


def with_end(files: Path, end: str) -> Path:
    """Return one of the files of a job."""
    return files.with_name(files.name + end)


class Lock:
    """A lock file, as this process has it open."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file, self._found = -1, os.stat_result(range(10))

    def take(self, wait: bool) -> bool:
        """Lock it for this process; whether it has the lock.

        Raises:
            NotSharedError: The file cannot be made, or is on a file system without locks.
        """
        while True:
            try:
                if not self.stands:
                    self.give()  # of a file that was removed: others may wait for that one still
                    # A descriptor that was ours is left to whoever has it now.
                    self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
                    self._found = os.fstat(self._file)
                fcntl.lockf(self._file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self.stands:  # else it was removed before it was locked
                    return True
            except OSError as error:
                if error.errno in (errno.EAGAIN, errno.EACCES) and not wait and self.stands:
                    return False
                if error.errno != errno.EDEADLK:
                    raise NotSharedError(f"{self.path} cannot be locked: {error.strerror or error}") from error
                time.sleep(PAUSE)  # each of two processes has what the other waits for, for different jobs

    def give(self) -> None:
        """Unlock it."""
        with suppress(OSError):
            if os.path.samestat(os.fstat(self._file), self._found):
                fcntl.lockf(self._file, fcntl.LOCK_UN)

    @property
    def stands(self) -> bool:
        """Whether the descriptor still is that of the file of this name."""
        try:
            return os.path.samestat(os.fstat(self._file), self._found) and os.path.samestat(self.path.lstat(), self._found)
        except OSError:
            return False


class Lease:
    """The right to read for a job, which one process has at a time; in a process one candidate after the other. Use ``lease_of``.

    Attributes:
        lock: The lock that says which process has it.
        leader: The candidate that reads; None while another process does.
    """

    def __init__(self, files: Path) -> None:
        self.lock = Lock(with_end(files, LOCK))
        self.leader: Callable[[], object] | None = None
        self._deputy, self._stands_in = Lock(with_end(files, DEPUTY)), threading.Lock()
        self._candidates: dict[Callable[[], object], None] = {}
        self._changed = Flag()
        self._thread = OnDemandThread("accelmetrics-lease", lambda: self._candidates, self._wait)

    def join(self, candidate: Callable[[], object]) -> None:
        """Have a function called once it is its turn to read, on a thread that waits for that. One that has left does not come back.

        Raises:
            NotSharedError: There can be no lock, or no thread is to be had.
        """
        self.lock.take(False)
        self._candidates[candidate] = None
        failure = self._thread.start().failure
        if failure is not None:
            self.leave(candidate)
            raise NotSharedError(f"no thread is to be had: {failure.detail}")

    def leave(self, candidate: Callable[[], object]) -> None:
        """Read no more, or do not wait for that: the next one does."""
        self._candidates.pop(candidate, None)
        self._changed.set()
        if not self._thread.alive:
            self.lock.give()

    def deputize(self) -> bool:
        """Return whether the caller alone may read in place of a process that has the lock and does not read, until it resigns."""
        if self._stands_in.acquire(blocking=False):  # a lock is the whole process's
            if guarded(self._deputy.take, False).value:
                return True
            self._stands_in.release()
        return False

    def resign(self) -> None:
        """Read in nobody's place any more."""
        self._deputy.give()
        self._stands_in.release()

    def _wait(self) -> None:
        """Wait for the lock, and keep it while there are candidates."""
        while candidates := tuple(self._candidates):
            if not guarded(self.lock.take, True).value:  # the directory is gone
                time.sleep(1.0)
                continue
            self.leader = leader = candidates[0]
            guarded(leader)
            while leader in self._candidates:
                self._changed.wait()
                self._changed.clear()
            self.leader = None
        self.lock.give()


_leases: dict[tuple[int, Path], Lease] = {}


def lease_of(files: Path) -> Lease:
    """Return the lease of a job: the same one for all of this process."""
    key = (os.getpid(), files)
    return _leases.get(key) or _leases.setdefault(key, Lease(files))


def sweep(directory: Path) -> None:
    """Remove the files of jobs all of whose processes were killed."""
    ours = {lease.lock.path for lease in tuple(_leases.values())}
    for path in directory.glob(f"*{LOCK}"):
        with suppress(OSError):
            if path not in ours and time.time() - path.lstat().st_mtime >= FRESH:
                with path.open("r+b") as file:
                    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    for left in directory.glob(f"{path.name[: -len(LOCK)]}.*"):
                        left.unlink(missing_ok=True)


class Bell:
    """Tells the process that reads that a reading is wanted now: a FIFO, into which others write a byte.

    Args:
        path: Where.
        rung: Called when a reading is wanted, on a thread of its own.

    Raises:
        OSError: It cannot be made.
        RuntimeError: No thread is to be had.
    """

    def __init__(self, path: Path, rung: Callable[[], object]) -> None:
        self._path, self._rung, self._closed = path, rung, False
        with suppress(FileExistsError):
            os.mkfifo(path, 0o600)
        self._file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)  # also for writing: so it has no end
        threading.Thread(target=self._listen, name="accelmetrics-bell", daemon=True).start()

    def close(self) -> None:
        """Listen no more."""
        self._closed = True
        ring_bell(self._path)

    def _listen(self) -> None:
        with suppress(OSError):
            while os.read(self._file, PAGE) and not self._closed:
                self._rung()
            os.close(self._file)


def ring_bell(path: Path) -> None:
    """Have a reading taken soon by the process that reads, where there is one."""
    with suppress(OSError):  # nobody listens, or so many have rung that it need not be said again
        file = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        with suppress(OSError):
            os.write(file, b"!")
        os.close(file)
