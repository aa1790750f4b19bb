"""A command that is started, watched to its end, and told every signal that this process is told.

It stays in the process group of this process, so that it has the terminal as if it had been started alone: what the terminal sends (Ctrl-C,
Ctrl-Z, a new size) reaches it directly, and is not sent to it a second time. ``subprocess`` knows no command that is stopped and goes on,
and cannot tell who sent a signal.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from accelmetrics.schemas.errors import AccelMetricsError

NOT_EXECUTABLE, NOT_FOUND, KILLED = 126, 127, 128
"""Exit statuses as shells give them; the last is added to the number of a signal."""
SHORTEST_LOOK, LONGEST_LOOK, GROWTH = 0.002, 0.05, 1.3
"""Seconds between two looks at whether the command has ended: few at first, for commands that are short."""
PASSED_ON = frozenset(
    {
        *(signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1),
        *(signal.SIGUSR2, signal.SIGALRM, signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT),
    }
)
FROM_TERMINAL = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGWINCH, signal.SIGTSTP})
"""Those that a terminal sends to every process in front of it."""
FROM_HANG_UP = frozenset({signal.SIGHUP, signal.SIGCONT})
"""Those that the system sends, when a terminal goes away, to the process that leads its session alone."""
IGNORED_BY_PYTHON = tuple(getattr(signal, name) for name in ("SIGPIPE", "SIGXFSZ", "SIGXFZ") if hasattr(signal, name))
JOB_CONTROL = frozenset({signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU})
SHELL, BEGINNING = "/bin/sh", 128
"""What runs scripts that do not say what runs them; and bytes of a file of which none is NUL where it is a script."""


class CommandError(AccelMetricsError):
    """The command could not be started; the status is what a shell exits with."""

    def __init__(self, command: str, error: OSError) -> None:
        missing = isinstance(error, FileNotFoundError)
        if missing and "/" in command and Path(command).exists():
            words = f"cannot run {command}: what its first line names is not there"
        else:
            words = f"command not found: {command or repr('')}" if missing else f"cannot run {command}: {error.strerror or error}"
        super().__init__(words)
        self.status = NOT_FOUND if missing else NOT_EXECUTABLE


class Signals:
    """Keeps the signals that are passed on from acting on this process, while the block runs, and hands them out.

    Where the system tells who sent a signal, that decides whether the command has it already. Elsewhere it has it if the
    terminal could have sent it.

    Args:
        told: Whether the system tells; only tests say.

    Attributes:
        before: The signals that were blocked before.
        defaults: The signals that the command is to have as every program has them at its start.
    """

    def __init__(self, told: bool = hasattr(signal, "sigtimedwait")) -> None:
        self.before: frozenset[int] = frozenset()
        self.defaults: tuple[int, ...] = IGNORED_BY_PYTHON
        self._told = told
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        self.before = frozenset(signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON))
        if not self._told and signal.getsignal(signal.SIGWINCH) == signal.SIG_DFL:
            # A system that drops what is ignored by default, be it blocked, keeps what has a handler.
            self._handlers[signal.SIGWINCH] = signal.signal(signal.SIGWINCH, lambda number, frame: None)
        if signal.getsignal(signal.SIGTTOU) == signal.SIG_DFL:
            # The live line may be drawn while the command has put another job in front.
            self._handlers[signal.SIGTTOU] = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
            self.defaults = (*IGNORED_BY_PYTHON, signal.SIGTTOU)
        if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
            self._handlers[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # else its end cannot be waited for
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        while self.next():
            pass
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, self.before)

    def next(self) -> tuple[int, bool] | None:
        """Return the next pending signal, without waiting, and whether the terminal sent it, to the command too."""
        if self._told:
            # Never with a time to wait: Python gives memory that was never written where a stop of the process outlasts it.
            found = signal.sigtimedwait(PASSED_ON, 0)
            if found is None or found.si_signo not in PASSED_ON:
                return None
            number, by_system = found.si_signo, found.si_code > 0
        else:
            pending = signal.sigpending() & PASSED_ON
            if not pending:
                return None
            number = signal.sigwait(pending)
            by_system = number in FROM_TERMINAL and terminal_group() == os.getpgrp()
        leads = number in FROM_HANG_UP and os.getsid(0) == os.getpid()  # the system tells the leader of a session alone
        return number, by_system and not leads


def terminal_group() -> int | None:
    """Return the process group that the terminal of this process has in front; None where it has no terminal."""
    try:
        descriptor = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        return os.tcgetpgrp(descriptor)
    except OSError:  # it has gone
        return -1
    finally:
        os.close(descriptor)


class ChildProcess:
    """A command that runs, with this process's standard streams.

    Args:
        command: The program, found on ``PATH`` where it is a bare name, and its arguments.
        signals: Say which it is to have as they were.
        more: Added to its environment.

    Attributes:
        pid: Its process id.

    Raises:
        CommandError: It cannot be started.
    """

    def __init__(self, command: Sequence[str], signals: Signals, more: Mapping[str, str]) -> None:
        if not command[0]:
            raise CommandError("", FileNotFoundError())
        environment = {**os.environ, **more}
        given: dict[str, Any] = {"setsigmask": signals.before, "setsigdef": signals.defaults}
        try:
            try:
                self.pid = os.posix_spawnp(command[0], list(command), environment, **given)
            except OSError as error:
                script = _script(command[0]) if error.errno == errno.ENOEXEC else None
                if script is None:
                    raise
                self.pid = os.posix_spawn(SHELL, [SHELL, script, *command[1:]], environment, **given)
        except OSError as error:
            raise CommandError(command[0], error) from error
        self._began = time.monotonic()

    def attend(self, signals: Signals, on_look: Callable[[], None], on_stop: Callable[[], None]) -> tuple[int, str, float, float]:
        """Wait for the end, passing signals on.

        Args:
            signals: Where they come from.
            on_look: Called a few times a second.
            on_stop: Called before this process stops because the command was, by Ctrl-Z.

        Returns:
            Its exit status, 128 and the signal's number where a signal ended it; the name of that signal, empty where it was none; for how
            many seconds it ran; and CPU time of it and of the descendants that it waited for.
        """
        pause = SHORTEST_LOOK
        while True:
            changed, state, used = os.wait4(self.pid, os.WNOHANG | os.WUNTRACED)
            if changed and not os.WIFSTOPPED(state):
                break
            if changed and os.WSTOPSIG(state) in JOB_CONTROL and terminal_group() is not None:
                # Stop too, so that the shell has its terminal back; go on with the command.
                on_stop()
                os.kill(os.getpid(), signal.SIGSTOP)
                self._send(signal.SIGCONT)
            on_look()
            arrived = signals.next()
            if arrived is None:
                time.sleep(pause)
                pause = min(pause * GROWTH, LONGEST_LOOK)
            elif not arrived[1]:
                self._send(arrived[0])
        seconds = time.monotonic() - self._began
        status, name = os.waitstatus_to_exitcode(state), ""
        if status < 0:
            status, name = KILLED - status, f"signal {-status}"
            with suppress(ValueError):  # a real-time signal has no name
                name = signal.Signals(os.WTERMSIG(state)).name
        return status, name, seconds, used.ru_utime + used.ru_stime

    def _send(self, number: int) -> None:
        with suppress(OSError):  # it is another user's and decides for itself
            os.kill(self.pid, number)


def _script(command: str) -> str | None:
    """Return the file that a command's name stands for, if it is text: shells, env and timeout run such files with the system's shell."""
    path = shutil.which(command)
    if path is None:
        return None
    with Path(path).open("rb") as file:
        return None if b"\0" in file.read(BEGINNING) else path
