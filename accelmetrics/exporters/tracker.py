"""An experiment tracker's own library, in a process of its own.

The libraries of experiment trackers ask for a login on the terminal, print, retry for minutes, read timeouts from the
environment, and keep one "current run" for the whole program. In a process of their own none of that reaches the program:
what is late is killed, what is printed is dropped, and the environment is the child's.
"""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from typing import Any

from accelmetrics.exporters.rejected import RejectedError, words
from accelmetrics.schemas.errors import MissingDependencyError

PIECE = 65536
ENDING_SECONDS = 2.0
"""How long a process may take to end after its last answer."""


def need(package: str) -> None:
    """See that a package is installed, without paying for its import.

    A directory of that name in the working directory is not it: W&B makes one called ``wandb``.

    Raises:
        MissingDependencyError: It is not; the extra has the package's name.
    """
    spec = None if package in sys.modules else importlib.util.find_spec(package)
    if package not in sys.modules and (spec is None or spec.origin is None):
        raise MissingDependencyError(package, package)


def written(text: str) -> str:
    """Text that can be written as UTF-8: a lone surrogate becomes the six letters of its escape, as in JSON."""
    return text.encode("utf-8", "backslashreplace").decode()


class Tracker:
    """The child process and the line to it: one JSON object per request, one per answer.

    Args:
        title: The tracker's name for messages.
        module: What the child runs: a module of this package with a class ``Session``.
        environment: What the child's environment has beside, or with None, without what this process has.
    """

    def __init__(self, title: str, module: str, environment: Mapping[str, str | None]) -> None:
        self._title = title
        self._module = module
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self._line: socket.socket | None = None
        self._owner = 0

    @property
    def running(self) -> bool:
        """Whether there is a child that may answer."""
        return self._line is not None

    def start(self) -> None:
        """Start the child.

        Raises:
            OSError: There is no interpreter, or no room for one.
        """
        if not sys.executable:
            raise FileNotFoundError("it is not known where the interpreter is: sys.executable is empty")
        with ExitStack() as stack:
            ours, theirs = map(stack.enter_context, socket.socketpair())
            self._process = self._spawn(theirs.fileno())
            theirs.close()
            stack.pop_all()
        self._line, self._owner = ours, os.getpid()

    def begin(self, arguments: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        """Start a child, in the place of one that there is, and have it join or begin a run. Without a run there is no child.

        Raises:
            OSError: It cannot be started, or as :meth:`request` says.
            RejectedError: As :meth:`request` says.
        """
        self.kill()
        self.start()
        with ExitStack() as stack:
            stack.callback(self.kill)
            answer = self.request("open", arguments, timeout)
            stack.pop_all()
        return answer

    def _spawn(self, descriptor: int) -> subprocess.Popen[bytes]:
        entries: list[object] = [*sys.path]
        path = [entry for entry in entries if isinstance(entry, str)]
        start = f"from accelmetrics.exporters.tracker_child import main; main({descriptor}, {self._module!r})"
        environment = {key: value for key, value in {**os.environ, **self._environment}.items() if value is not None}
        # A session of its own: Ctrl-C is for the program. No terminal: nothing can be asked there.
        return subprocess.Popen(
            [sys.executable, "-c", f"import sys; sys.path[:] = {path!r}; {start}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
            pass_fds=[descriptor],
            start_new_session=True,
        )

    def request(self, action: str, arguments: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        """Have the child do something, and wait for its answer.

        Raises:
            ConnectionError: The tracker is away, or the child was killed.
            TimeoutError: There was no answer in time. The child has been killed.
            RejectedError: The tracker refused, or its library failed.
        """
        due = time.monotonic() + timeout
        try:
            self._send(json.dumps([action, arguments]).encode() + b"\n", due)
            answer = json.loads(self._receive(due))
        except TimeoutError:
            self.kill()
            raise TimeoutError(f"{self._title} gave no answer within {timeout:g} s") from None
        except (EOFError, ConnectionError):
            raise ConnectionError(f"the process that speaks to {self._title} ended ({self._ending()})") from None
        return self._checked(answer)

    def _send(self, line: bytes, due: float) -> None:
        if self._line is None:
            raise EOFError
        self._line.settimeout(max(due - time.monotonic(), 0.001))
        self._line.sendall(line)

    def _receive(self, due: float) -> bytes:
        assert self._line is not None
        answer = b""
        while not answer.endswith(b"\n"):
            self._line.settimeout(max(due - time.monotonic(), 0.001))
            piece = self._line.recv(PIECE)
            if not piece:
                raise EOFError
            answer += piece
        return answer

    def _checked(self, answer: dict[str, Any]) -> dict[str, Any]:
        message = answer.get("error")
        if message is None:
            return answer
        if answer.get("ended"):
            self.kill()
        said = f"{self._title}: {words(message)}"
        raise ConnectionError(said) if answer.get("passing") else RejectedError(said)

    def _ending(self) -> str:
        process = self._process
        self.kill(ENDING_SECONDS)
        return "never started" if process is None else f"exit status {process.returncode}"

    def stop(self) -> None:
        """Let go of a child that has been told to close: it ends by itself, or is killed."""
        self.kill(ENDING_SECONDS)

    def kill(self, patience: float = 0.0) -> None:
        """End the child, at once or after giving it some seconds to end by itself."""
        process, self._process = self._process, None
        self._hang_up()
        if process is None:
            return
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _hang_up(self) -> None:
        line, self._line = self._line, None
        if line is None:
            return
        with line, suppress(OSError):  # the child has gone
            # Closing alone would leave it open in what the program has forked since; and a fork must not end it for the program.
            if os.getpid() == self._owner:
                line.shutdown(socket.SHUT_RDWR)
