"""Child processes that never outlive this one. Each is started and ended by a small watchdog process (``parent_watchdog.py``).

This is the only mechanism for starting processes: commands and commands that print records
(:mod:`~accelmetrics.backends.kit.commands`), and the reading process of ``isolation="process"``. When our process ends, by return,
exception, ``os._exit`` or any signal, it leaves neither these processes nor their descendants nor their directories. A watchdog
lives as long as its process; without a process there is none.
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

FORK_PATIENCE = 1.0
"""Seconds for which a fork waits for a process that is being started."""


@cache
def script(package: str, name: str) -> tuple[str, ...]:
    """Return the arguments with which an interpreter runs a file of this package: its path, or its text.

    A package that is imported from a zip (zipapp, pex, Spark's ``--py-files``) has no files on disk.

    Args:
        package: The package that the file is in.
        name: The file.
    """
    path = Path(sys.modules[package].__path__[0], name)
    return (str(path),) if path.is_file() else ("-c", (get_data(package, name) or b"").decode())


class FilesError(OSError):
    """The files that a process needs cannot be written."""


class Watchdog(subprocess.Popen[bytes]):
    """The watchdog of one process. It shares a session and a process group with that process.

    The ``Popen`` is the watchdog's: its id is the group's, and its return code says nothing about the process.

    Args:
        interpreter: The Python that runs it; any will do.
        argv: Absolute path and arguments of the process.
        mark: A text in the environment of the process and of its descendants. Marked processes that left the group are killed too.
        directory: An absolute path that does not exist. It is made as the process's working directory, which no other user may
            enter, and removed afterwards.
        files: Names and texts of files for that directory.
        popen: Further arguments of ``subprocess.Popen``, for the process.

    Attributes:
        starting: Held while a process is started, and a fork waits for it. ``subprocess`` waits for the end of a pipe, and a
            process forked meanwhile has a copy of that pipe: the start would wait for as long as the fork lives.
        control: The socket between us and the watchdog; readable when there is a message.
        ended: Whether the process has ended, or its watchdog was killed, as of the last message.
        status: The exit status, negative for a signal; None until it is received.

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
        from fcntl import F_DUPFD_CLOEXEC, fcntl  # missing on Windows

        self.ended = False
        self.status: int | None = None
        # marshal, because the watchdog imports only modules that load fast.
        packed = marshal.dumps(dict(files)) if files else b""
        self.control, child_end = socket.socketpair()
        with child_end, ExitStack() as undo:
            undo.callback(self.control.close)
            passed = fcntl(child_end, F_DUPFD_CLOEXEC, 3)  # above the standard streams, which may be closed here
            try:
                # -I and -S: a fast start, without the program's PYTHON* variables and packages.
                watchdog = [interpreter, "-I", "-S", *script(__package__, "parent_watchdog.py")]
                watchdog += map(str, (os.getpid(), passed, len(packed), mark, directory))
                # A new session, so that killing the process's group leaves our program alone.
                with Watchdog.starting:
                    super().__init__([*watchdog, *argv], pass_fds=(passed,), start_new_session=True, **popen)
            finally:
                os.close(passed)
            _WATCHDOGS.add(self)
            with suppress(OSError):  # it was killed; the next read of the socket shows that
                self.control.sendall(packed)
            undo.pop_all()

    def receive(self) -> None:
        """Receive the watchdog's message that its process has ended; blocks until it comes.

        Raises:
            TimeoutError: The socket has a timeout, and no message came in time.
            FilesError: The files could not be written, and the process was not started.
            OSError: The process could not be started.
        """
        try:
            message = self.control.recv(16)  # more than its longest
        except ConnectionError:
            message = b""
        if message.startswith((b"!", b"?")):
            number = int(message[1:])
            raise (OSError if message.startswith(b"!") else FilesError)(number, os.strerror(number))
        self.ended = True
        if message:
            self.status = int(message)

    def release(self) -> None:
        """Tell the watchdog to remove the directory and exit, leaving alone the processes that its process left behind."""
        with suppress(OSError):
            self.control.send(b".")

    def end(self) -> None:
        """Tell the watchdog to end the process with all its descendants. Returns at once."""
        with suppress(OSError):  # it has ended
            # Unlike close(), this also ends the copies of the socket that a fork made.
            self.control.shutdown(socket.SHUT_RDWR)

    def kill(self) -> None:
        """Kill the watchdog, the process, and everything else in their group."""
        if self.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    def await_end(self, seconds: float, killed: float) -> None:
        """Wait ``seconds`` for the watchdog's end; then kill it, and wait ``killed`` more."""
        try:
            self.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            with suppress(subprocess.TimeoutExpired):
                self.wait(killed)

    def reap_later(self) -> None:
        """Reap the watchdog on a thread as soon as it has exited. It takes no lock, so a finaliser may call it."""
        if self.returncode is None:

            def reap() -> None:
                self.wait()
                _WATCHDOGS.discard(self)

            with suppress(RuntimeError):  # no thread can be started: it is reaped when another one is started or ended
                start_new_thread(reap, ())

    def close(self) -> None:
        """Close our ends of the socket and the pipes."""
        for end in (self.control, self.stdout, self.stderr):
            if end is not None:
                end.close()

    def __del__(self, *_: object) -> None:
        """Suppress ``Popen``'s warning about a process that still runs: this one ends with us."""


_WATCHDOGS: set[Watchdog] = set()
"""The watchdogs of this process that are not reaped yet."""


def reap() -> None:
    """Reap watchdogs that have exited, so that no zombies stay."""
    _WATCHDOGS.difference_update([each for each in list(_WATCHDOGS) if each.poll() is not None])


def _before_fork() -> None:
    Watchdog.starting.acquire(timeout=FORK_PATIENCE)


def _after_fork_in_parent() -> None:
    with suppress(RuntimeError):  # the wait timed out: another thread holds it
        Watchdog.starting.release()


def _after_fork_in_child() -> None:
    """Replace the lock, because its holder does not exist in the child, and drop the parent's watchdogs."""
    Watchdog.starting = threading.RLock()
    while _WATCHDOGS:
        each = _WATCHDOGS.pop()
        each.close()
        each.returncode = 0


at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
