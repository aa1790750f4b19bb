"""Election of the process that reads for a job: the holder of a lock. When it ends, the next process gets the lock.

The lock is a POSIX one (``lockf``). The child of a fork does not inherit it, even if C code forks without Python's knowledge.
``flock`` and locks of an open file description would stay held by such a child, so they are not used. The price of ``lockf``: a
process loses the lock when it closes any descriptor of the file. So each lock file is opened once per process, by this module, and
is never closed.

A stopped process (SIGSTOP, a debugger) keeps its lock. Then a deputy may read for as long as the ring names it as the writer.
Deputies have a lock too: otherwise, with a driver that answers slowly, several processes would read at once.
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
"""Suffixes of the files that all processes of a job share."""
PAUSE = 0.05
"""Seconds between two attempts if waiting for the lock would be a deadlock."""
FRESH = 60.0
"""Seconds for which other jobs leave a job's files alone: its processes may still be starting."""


def job_directory(make: bool = True) -> Path:
    """Return this user's private directory: below ``XDG_RUNTIME_DIR``, else below the temporary directory.

    Args:
        make: Whether to create it if it is missing.

    Raises:
        NotSharedError: It cannot be created, or other users could write there.
    """
    user = os.geteuid()
    base = Path(os.environ.get("XDG_RUNTIME_DIR", ""))
    path = Path(tempfile.gettempdir()) / f"accelmetrics-{user}"
    with suppress(OSError):  # XDG_RUNTIME_DIR belongs to another user, or is unusable
        if base.is_absolute() and base.is_dir() and base.stat().st_uid == user:
            path = base / "accelmetrics"
    try:
        if make:
            path.mkdir(0o700, exist_ok=True)
        found = path.lstat()
    except OSError as error:
        raise NotSharedError(f"{path} cannot be used: {error.strerror or error}") from error
    # Other users may be able to write to the temporary directory, so the directory's owner and mode are checked.
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != user or stat.S_IMODE(found.st_mode) & 0o077:
        raise NotSharedError(f"{path} is open to other users: remove it, or make it yours with mode 0700")
    return path


def job_files(job: str, *shared: object) -> Path:
    """Return the common prefix of the paths of a job's files.

    Processes that differ in the values to share get different prefixes, and so do not share readings.

    Raises:
        NotSharedError: There is no directory for them.
    """
    readable = re.sub(r"[^\w.-]+", "-", job, flags=re.ASCII)[-32:]
    return job_directory() / f"{readable}-{digest_of(job, *shared)}"


def digest_of(*shared: object) -> str:
    """Return a short digest of values, equal for processes that have all of them in common."""
    return hashlib.sha256(repr(shared).encode(errors="replace")).hexdigest()[:16]


def with_end(files: Path, end: str) -> Path:
    """Return the path of one of a job's files, by its suffix."""
    return files.with_name(files.name + end)


class Lock:
    """A lock file, opened once by this process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file, self._found = -1, os.stat_result(range(10))

    def take(self, wait: bool) -> bool:
        """Lock the file for this process. Return whether it is locked.

        Raises:
            NotSharedError: The file cannot be created, or its file system has no locks.
        """
        while True:
            try:
                if not self.is_current:
                    self.give()  # a removed file: other processes may still wait for its lock
                    # The old descriptor is not closed: the program may have closed it and reused its number for a file of its own.
                    # Mode 0600, and not the ring's own file: users who may read the ring could take a lock on any file
                    # that they can open.
                    self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
                    self._found = os.fstat(self._file)
                fcntl.lockf(self._file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self.is_current:  # otherwise it was removed before it was locked: try again with the new file
                    return True
            except OSError as error:
                if error.errno in (errno.EAGAIN, errno.EACCES) and not wait and self.is_current:
                    return False
                if error.errno != errno.EDEADLK:
                    raise NotSharedError(f"{self.path} cannot be locked: {error.strerror or error}") from error
                time.sleep(PAUSE)  # EDEADLK: two processes each hold the lock, of different jobs, that the other waits for

    def give(self) -> None:
        """Unlock the file."""
        with suppress(OSError):
            if os.path.samestat(os.fstat(self._file), self._found):
                fcntl.lockf(self._file, fcntl.LOCK_UN)

    @property
    def is_current(self) -> bool:
        """Whether our descriptor still refers to the file of this name."""
        try:
            return os.path.samestat(os.fstat(self._file), self._found) and os.path.samestat(self.path.lstat(), self._found)
        except OSError:
            return False


class Lease:
    """The right to read for a job, held by one process at a time. Use ``lease_of``.

    Candidates of the same process hold it one after the other.

    Attributes:
        lock: The lock that decides which process holds the lease.
        leader: The candidate that reads; None while another process does.
    """

    def __init__(self, files: Path) -> None:
        self.lock = Lock(with_end(files, LOCK))
        self.leader: Callable[[], object] | None = None
        self._deputy, self._deputizing = Lock(with_end(files, DEPUTY)), threading.Lock()
        self._candidates: dict[Callable[[], object], None] = {}
        self._changed = Flag()
        self._thread = OnDemandThread("accelmetrics-lease", lambda: self._candidates, self._wait)

    def join(self, candidate: Callable[[], object]) -> None:
        """Add a candidate: a function called when it gets the lease, on the thread that waits for it.

        A candidate that has left is not called later.

        Raises:
            NotSharedError: There can be no lock, or no thread can be started.
        """
        # Without waiting: this raises if locks are impossible here, before a thread is started.
        self.lock.take(False)
        self._candidates[candidate] = None
        failure = self._thread.start().failure
        if failure is not None:
            self.leave(candidate)
            raise NotSharedError(f"no thread can be started: {failure.detail}")

    def leave(self, candidate: Callable[[], object]) -> None:
        """Withdraw a candidate, whether it reads or still waits. The next candidate takes over."""
        self._candidates.pop(candidate, None)
        self._changed.set()
        # While the thread lives, it unlocks by itself when no candidate is left.
        if not self._thread.alive:
            self.lock.give()

    def deputize(self) -> bool:
        """Try to become the deputy: the only reader in place of a lease holder that does not read, until ``resign``.

        Returns:
            Whether the caller is the deputy.
        """
        if self._deputizing.acquire(blocking=False):  # a file lock belongs to the process: this lock is between its threads
            if guarded(self._deputy.take, False).value:
                return True
            self._deputizing.release()
        return False

    def resign(self) -> None:
        """Stop reading as the deputy."""
        self._deputy.give()
        self._deputizing.release()

    def _wait(self) -> None:
        """Wait for the lock and hold it while there are candidates."""
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
    """Return the lease of a job. All callers in a process get the same one."""
    # By process: the child of a fork does not inherit the lock, so it needs a lease of its own.
    key = (os.getpid(), files)
    # With `setdefault`, two threads that race get the same lease.
    return _leases.get(key) or _leases.setdefault(key, Lease(files))


def sweep(directory: Path) -> None:
    """Remove the files of jobs that have no process left, because all were killed."""
    # Opening and closing a lock file of our own would lose the lock.
    ours = {lease.lock.path for lease in tuple(_leases.values())}
    for path in directory.glob(f"*{LOCK}"):
        with suppress(OSError):
            if path not in ours and time.time() - path.lstat().st_mtime >= FRESH:
                with path.open("r+b") as file:
                    # This fails while a process of the job is alive; then its files are left alone.
                    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    for left in directory.glob(f"{path.name[: -len(LOCK)]}.*"):
                        left.unlink(missing_ok=True)


class Bell:
    """A FIFO by which other processes ask the reading process for a reading now: each request is a byte.

    Args:
        path: The path of the FIFO.
        rung: Called when a reading is requested, on a thread of this object.

    Raises:
        OSError: The FIFO cannot be created.
        RuntimeError: No thread can be started.
    """

    def __init__(self, path: Path, rung: Callable[[], object]) -> None:
        self._path, self._rung, self._closed = path, rung, False
        with suppress(FileExistsError):
            os.mkfifo(path, 0o600)
        self._file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)  # also for writing: so it never reaches its end
        threading.Thread(target=self._listen, name="accelmetrics-bell", daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        self._closed = True
        ring_bell(self._path)

    def _listen(self) -> None:
        with suppress(OSError):
            while os.read(self._file, PAGE) and not self._closed:
                self._rung()
            os.close(self._file)


def ring_bell(path: Path) -> None:
    """Ask the process that reads, if there is one, for a reading soon."""
    with suppress(OSError):  # no process listens, or the FIFO is full of requests already
        file = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        with suppress(OSError):
            os.write(file, b"!")
        os.close(file)
