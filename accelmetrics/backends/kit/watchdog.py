"""Processes that never outlive us: each is started and ended by a watchdog, a small process of its own (``parent_watchdog.py``).

One mechanism for all that we start: commands and those that print records (:mod:`~accelmetrics.backends.kit.commands`), and the
reading process of ``isolation="process"``. Neither they nor their descendants nor their directories are left, however we end: return,
exception, ``os._exit``, any signal. A watchdog lives as long as its process; where nothing is run there is none.
"""

from __future__ import annotations

import marshal
import os
import signal
import socket
import subprocess
import sys
import threading
from _thread import start_new_thread  # threads of ``threading`` start under a lock
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from pkgutil import get_data
from typing import Any

from accelmetrics.backends.guard import at_fork
from accelmetrics.schemas.metric import NOTHING

STATUS_SIZE = 16
"""Bytes of the longest word of a watchdog."""
FORK_PATIENCE = 1.0
"""Seconds for which a fork waits for a process that is being started."""


@cache
def script(package: str, name: str) -> tuple[str, ...]:
    """Return the arguments with which an interpreter runs a file of this package as a program: its path, or its text.

    A package that is imported from a zip (zipapp, pex, Spark's ``--py-files``) has no files of its own.

    Args:
        package: The package that the file is in.
        name: The file.
    """
    path = Path(sys.modules[package].__path__[0], name)
    return (str(path),) if path.is_file() else ("-c", (get_data(package, name) or b"").decode())


class FilesError(OSError):
    """The files that a process needs cannot be written."""


class Watchdog(subprocess.Popen[bytes]):
    """The watchdog of one process, in a session and a group that it shares with that process.

    As a ``Popen`` it is the watchdog's: its id is the group's, its return code says nothing of the process.

    Args:
        interpreter: Which Python runs it; any will do.
        argv: Absolute path and arguments of the process.
        mark: What the environment of the process has, and of its descendants: those that left the group are killed too.
        directory: An absolute path that is not there: made as the process's working directory, which no other user may enter, and
            removed after it.
        files: Names and texts of files that are put there.
        popen: More arguments of ``subprocess.Popen``, for the process.

    Attributes:
        starting: Held while a process is started. A fork waits for it: ``subprocess`` waits for the end of a pipe, of which a process
            that is forked meanwhile has a copy, and would wait for as long as that one lives.
        control: The socket between us and it; it can be read when there is something to hear.
        ended: Whether the process has ended, or its watchdog was killed, as far as was heard.
        status: The exit status, negative for a signal; None while it has not been heard.

    Raises:
        OSError: It cannot be started.
    """

    starting = threading.RLock()

    def __init__(
        self,
        interpreter: str,
        argv: Sequence[str],
        *,
        mark: str = "",
        directory: str = "",
        files: Mapping[str, str] = NOTHING,
        **popen: Any,
    ) -> None:
        from fcntl import F_DUPFD_CLOEXEC, fcntl  # not on every platform

        self.ended = False
        self.status: int | None = None
        packed = marshal.dumps(dict(files)) if files else b""
        self.control, theirs = socket.socketpair()
        with theirs, ExitStack() as undo:
            undo.callback(self.control.close)
            passed = fcntl(theirs, F_DUPFD_CLOEXEC, 3)  # above the standard streams, which may be closed here
            try:
                given = (os.getpid(), passed, len(packed), mark, directory)
                watched = [interpreter, "-I", "-S", *script(__package__, "parent_watchdog.py"), *map(str, given)]
                with Watchdog.starting:
                    super().__init__([*watched, *argv], pass_fds=(passed,), start_new_session=True, **popen)
            finally:
                os.close(passed)
            _WATCHDOGS.add(self)
            with suppress(OSError):  # it was killed, which is heard
                self.control.sendall(packed)
            undo.pop_all()

    def hear(self) -> None:
        """Take what the watchdog says when its process has ended; waits for that.

        Raises:
            TimeoutError: A timeout was set for the socket, and it said nothing.
            FilesError: The files could not be written, and the process was not started.
            OSError: The process could not be started.
        """
        try:
            said = self.control.recv(STATUS_SIZE)
        except ConnectionError:
            said = b""
        if said.startswith((b"!", b"?")):
            number = int(said[1:])
            raise (OSError if said.startswith(b"!") else FilesError)(number, os.strerror(number))
        self.ended = True
        if said:
            self.status = int(said)

    def release(self) -> None:
        """Have it remove the directory and leave; what the process left behind may live."""
        with suppress(OSError):
            self.control.send(b".")

    def end(self) -> None:
        """Have it end the process with all that belongs to it; returns at once. Holds for every copy that a fork made of the socket."""
        with suppress(OSError):  # it has ended
            self.control.shutdown(socket.SHUT_RDWR)

    def kill(self) -> None:
        """Kill it, the process, and whatever is in their group."""
        if self.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    def await_end(self, seconds: float, killed: float) -> None:
        """Wait so many seconds for its end; then kill it, and wait again."""
        try:
            self.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            with suppress(subprocess.TimeoutExpired):
                self.wait(killed)

    def reap_later(self) -> None:
        """Have it reaped as soon as it has gone, on a thread that ends then. A finaliser may call it: no lock is taken here."""
        if self.returncode is None:

            def reap() -> None:
                self.wait()
                _WATCHDOGS.discard(self)

            with suppress(RuntimeError):  # no thread is to be had: it is reaped when another is started or ended
                start_new_thread(reap, ())

    def close(self) -> None:
        """Close our ends of socket and pipes."""
        for end in (self.control, self.stdout, self.stderr):
            if end is not None:
                end.close()

    def __del__(self, *_: object) -> None:
        """Leave out ``Popen``'s warning about a process that is left to itself: this one ends with us."""


_WATCHDOGS: set[Watchdog] = set()
"""Those of this process, until they are reaped."""


def reap() -> None:
    """Reap watchdogs that have gone, so that no zombies stay."""
    _WATCHDOGS.difference_update([each for each in list(_WATCHDOGS) if each.poll() is not None])


def _before_fork() -> None:
    Watchdog.starting.acquire(timeout=FORK_PATIENCE)


def _after_fork_in_parent() -> None:
    with suppress(RuntimeError):  # it is another thread's still
        Watchdog.starting.release()


def _after_fork_in_child() -> None:
    """Go on without the threads that may have held the lock, and let go of the parent's watchdogs: the child has none."""
    Watchdog.starting = threading.RLock()
    while _WATCHDOGS:
        each = _WATCHDOGS.pop()
        each.close()
        each.returncode = 0


at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
