"""The one runner for vendor commands.

What it promises, whatever the command does:

- an absolute path and an argument list, never a shell; closed standard input; ``LC_ALL=C`` and an environment reduced to
  what such tools need; a temporary working directory that is removed afterwards;
- it ends: at the deadline, when the output grows beyond its bound, or a short grace after the command itself has ended,
  even if a child that it left behind keeps the output open;
- when it ends early, the command and all its children are killed, those too that left its process group or were handed to
  ``init`` (each run marks its environment, which children inherit), and the command is reaped;
- no threads and no signal handlers. At interpreter exit nothing is waited for: what is still running is killed.

What is deliberately not done: a command that ended by itself in time, and closed its output, may leave a daemon behind.

A long-lived child that prints a line per reading is built on :class:`Child` too, which owns the process, its family and its
directory (:mod:`~accelmetrics.backends.kit.line_process`); :func:`run` only adds the reading of two bounded streams.
"""

from __future__ import annotations

import atexit
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import IO, TYPE_CHECKING, NamedTuple
from uuid import uuid4

from accelmetrics.schemas.errors import SourceError
from accelmetrics.schemas.reasons import Reason

if TYPE_CHECKING:
    import psutil

MAX_OUTPUT = 4 * 1024 * 1024
"""Bytes of standard output and standard error together."""
GRACE = 0.2
"""Seconds for which output is still read after the command itself has ended."""
GLANCE = 0.02
"""Seconds between two looks at whether the command has ended."""
REAP = 0.5
"""Seconds for a killed command to be gone; one that the kernel holds on to is reaped by a later run."""
SWEEPS = 5
"""How often the family is looked for while it is being killed: a member may fork in between."""
CHUNK = 65536

KEEPER = str(Path(__file__).with_name("parent_watchdog.py"))
NO_FILES: Mapping[str, str] = MappingProxyType({})

MARK = "ACCELMETRICS_COMMAND"
"""The environment variable by which the descendants of one run are recognised."""
KEPT = ("HOME", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "LOGNAME", "TMPDIR", "USER")
KEPT_PREFIXES = ("AMD_", "GPU_DEVICE_", "HIP_", "HSA_", "ROCM_", "ROCR_", "TPU_")
SAFE_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"


class Completed(NamedTuple):
    """What a command came to.

    Attributes:
        stdout: What it printed, as text; bytes that are no UTF-8 are replaced.
        stderr: What it complained about.
        returncode: Its exit status, negative for the signal that ended it.
        seconds: How long it took.
        truncated: Whether it was killed since it printed more than the bound.
    """

    stdout: str
    stderr: str
    returncode: int
    seconds: float
    truncated: bool


def find(name: str, extra_directories: Iterable[str] = ()) -> str | None:
    """The absolute path of a command.

    A file that may be executed is preferred; one that may not is still given, so that running it can say so.

    Args:
        name: The bare name of the command.
        extra_directories: Where the vendor installs it, searched after ``PATH``. Relative directories are passed over.
    """
    directories = [*_path(), *(directory for directory in extra_directories if directory.startswith("/"))]
    present = [path for path in (f"{directory.rstrip('/')}/{name}" for directory in directories) if Path(path).is_file()]
    return next((path for path in present if os.access(path, os.X_OK)), present[0] if present else None)


def run(argv: Sequence[str], *, timeout: float, max_output: int = MAX_OUTPUT) -> Completed:
    """Run a command to its end.

    Args:
        argv: Absolute path and arguments.
        timeout: Seconds after which it is killed.
        max_output: Bytes of output after which it is killed.

    Raises:
        SourceError: It could not be started (``driver_unavailable``, ``no_permission``) or was late (``timed_out``).
    """
    started = time.monotonic()
    with Child(argv) as child:
        streams = _Streams(child, max_output)
        ended = streams.read(started + timeout)
        if not ended or streams.full:
            child.kill()
        returncode = child.reap(REAP)
    seconds = time.monotonic() - started
    if not ended:
        raise SourceError(Reason.TIMED_OUT, f"{argv[0]} gave no answer in {timeout:g} s and was killed")
    return Completed(streams.text(0), streams.text(1), returncode, seconds, streams.full)


class Child:
    """A process in a session of its own, and everything that goes with it. A context manager: leaving it leaves nothing.

    Args:
        argv: Absolute path and arguments.
        files: Names and texts of files that are put into its working directory, which nobody else may enter.
        kept: Whether it is started by a keeper (``parent_watchdog.py``), which ends it when our process ends in any way at all.

    Raises:
        ValueError: The path is not absolute.
        SourceError: The command is not there, may not be executed, or cannot be started.
    """

    def __init__(self, argv: Sequence[str], *, files: Mapping[str, str] = NO_FILES, kept: bool = False) -> None:
        if not argv or not argv[0].startswith("/"):
            raise ValueError(f"a command needs an absolute path: {list(argv)!r}")
        self.mark = uuid4().hex
        _RUNNING.prepare()
        self.directory = _make_directory()
        with ExitStack() as undo:
            undo.callback(_remove, self.directory)
            self._write(files)
            self.process = self._start(argv, self._keeper() if kept else [])
            undo.pop_all()
        _RUNNING.add(self)

    def _write(self, files: Mapping[str, str]) -> None:
        if files and not self.directory:
            raise SourceError(Reason.DRIVER_UNAVAILABLE, "no temporary directory can be made, and the command needs a file in one")
        for name, text in files.items():
            try:
                Path(self.directory, name).write_text(text, encoding="utf-8")
            except OSError as error:
                raise SourceError(Reason.DRIVER_UNAVAILABLE, f"{name} cannot be written: {error.strerror}") from error

    def _keeper(self) -> list[str]:
        """Nothing where a program embeds Python without an interpreter: then the command must notice by itself that nobody reads."""
        return [sys.executable, "-I", "-S", KEEPER, self.directory, self.mark] if sys.executable else []

    def _start(self, argv: Sequence[str], keeper: Sequence[str]) -> subprocess.Popen[bytes]:
        environment = _environment() | {MARK: self.mark}
        try:
            return subprocess.Popen(
                [*keeper, *argv],
                stdin=subprocess.PIPE if keeper else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=self.directory or "/",
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            raise _not_started(argv[0], error) from error

    @property
    def outputs(self) -> tuple[IO[bytes], IO[bytes]]:
        """Standard output and standard error, to read from."""
        assert self.process.stdout is not None and self.process.stderr is not None
        return self.process.stdout, self.process.stderr

    def ended(self) -> bool:
        """Whether the command itself has ended. It is left unreaped where possible, so that its group's number stays taken."""
        if self.process.returncode is not None:
            return True
        if not hasattr(os, "waitid"):
            return self.process.poll() is not None
        try:
            return os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return self.process.poll() is not None

    def kill(self) -> None:
        """Kill the command, its group, and every descendant that left the group."""
        family = self._descendants()
        self.kill_group()
        for _ in range(SWEEPS):
            for member in family:
                _kill(member)
            family = self._marked()
            if not family:
                return

    def kill_group(self) -> None:
        """Kill the command and its process group, in one call."""
        if self.process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def _descendants(self) -> list[psutil.Process]:
        import psutil  # needed on this rare path alone

        if self.process.returncode is not None:
            return []
        try:
            return psutil.Process(self.process.pid).children(recursive=True)
        except psutil.Error:
            return []

    def _marked(self) -> list[psutil.Process]:
        import psutil  # needed on this rare path alone

        return [process for process in psutil.process_iter() if process.pid != self.process.pid and _has_mark(process, self.mark)]

    def reap(self, seconds: float) -> int:
        """Wait for the command, which has ended or was killed; the signal that was sent stands for a status that does not come."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return -signal.SIGKILL

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self._close_pipes()
        if not self.ended():
            self.kill()
        self.reap(REAP)
        _remove(self.directory)
        _RUNNING.discard(self)

    def _close_pipes(self) -> None:
        for pipe in (self.process.stdin, *self.outputs):
            if pipe is not None:
                pipe.close()

    def disown(self) -> None:
        """After a fork, in the new process, whose child this is not: let go of the pipes and do nothing else, now or later."""
        self._close_pipes()
        self.process.returncode = 0

    def abandon(self) -> None:
        """The interpreter exits: kill and tidy up without waiting."""
        if self.process.stdin is not None:
            self.process.stdin.close()  # its keeper finds those too that left the group, and has the time for it
            return
        self.kill_group()
        _remove(self.directory)


class _Streams:
    """The two outputs of a command, read side by side into bounded memory."""

    def __init__(self, child: Child, limit: int) -> None:
        self._child = child
        self._limit = limit
        self._parts: tuple[list[bytes], list[bytes]] = ([], [])
        self._size = 0
        self.full = False

    def read(self, deadline: float) -> bool:
        """Read until the command has ended, or the bound is reached; False when the deadline passes first."""
        with _selector(self._child.outputs) as selector:
            while not self.full:
                if self._child.ended():
                    self._finish(selector)
                    return True
                if time.monotonic() >= deadline:
                    return False
                self._take(selector, GLANCE)
        return True

    def _finish(self, selector: selectors.BaseSelector) -> None:
        last_call = time.monotonic() + GRACE
        while selector.get_map() and not self.full:
            if time.monotonic() >= last_call:
                self._child.kill()  # the command itself is done: only what it left behind holds the output open
                return
            self._take(selector, GLANCE)

    def _take(self, selector: selectors.BaseSelector, seconds: float) -> None:
        if not selector.get_map():
            time.sleep(seconds)
            return
        for key, _ in selector.select(seconds):
            chunk = os.read(key.fd, CHUNK)
            if not chunk:
                selector.unregister(key.fileobj)
            self._keep(key.data, chunk)

    def _keep(self, stream: int, chunk: bytes) -> None:
        room = self._limit - self._size
        self.full = self.full or len(chunk) > room
        self._parts[stream].append(chunk[:room])
        self._size += len(chunk[:room])

    def text(self, stream: int) -> str:
        """What came on standard output (0) or standard error (1)."""
        return b"".join(self._parts[stream]).decode("utf-8", "replace")


class _Running:
    """The commands that run now, so that interpreter exit leaves none behind."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._children: set[Child] = set()
        self._unreaped: list[subprocess.Popen[bytes]] = []
        self._registered = False
        self._exiting = False

    def prepare(self) -> None:
        """Reap what earlier runs could not; refuse to start anything once the interpreter is on its way out."""
        if self._exiting:
            raise SourceError(Reason.DRIVER_UNAVAILABLE, "the interpreter is exiting: no more commands are started")
        with self._lock:
            self._unreaped = [process for process in self._unreaped if process.poll() is None]

    def add(self, child: Child) -> None:
        """Note a command that was started."""
        with self._lock:
            if not self._registered:
                atexit.register(self.abandon_all)
                self._registered = True
            self._children.add(child)

    def discard(self, child: Child) -> None:
        """Forget a command that is done; one that the kernel has not let go of is reaped later."""
        with self._lock:
            self._children.discard(child)
            if child.process.returncode is None:
                self._unreaped.append(child.process)

    def abandon_all(self) -> None:
        """Kill what runs, and start no more."""
        self._exiting = True
        for child in list(self._children):
            child.abandon()

    def after_fork(self) -> None:
        """A fork inherits the list but not the commands: it begins with nothing, and with a lock that nobody holds."""
        self._lock = threading.Lock()
        self._children = set()
        self._unreaped = []


_RUNNING = _Running()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_RUNNING.after_fork)


@contextmanager
def _selector(outputs: tuple[IO[bytes], IO[bytes]]) -> Iterator[selectors.BaseSelector]:
    with selectors.DefaultSelector() as selector:
        for number, stream in enumerate(outputs):
            selector.register(stream, selectors.EVENT_READ, number)
        yield selector


def _path() -> list[str]:
    return [directory for directory in os.environ.get("PATH", SAFE_PATH).split(":") if directory.startswith("/")]


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name in KEPT or name.startswith(KEPT_PREFIXES)}
    return kept | {"PATH": ":".join(_path()) or SAFE_PATH, "LC_ALL": "C"}


def _make_directory() -> str:
    """A working directory of its own; empty where no file system may be written to, and the command starts in ``/``."""
    try:
        return tempfile.mkdtemp(prefix="accelmetrics-")
    except OSError:
        return ""


def _remove(directory: str) -> None:
    if directory:
        shutil.rmtree(directory, ignore_errors=True)


def _has_mark(process: psutil.Process, mark: str) -> bool:
    import psutil  # loaded already by the caller

    try:
        return process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK) == mark
    except (psutil.Error, OSError):
        return False


def _kill(process: psutil.Process) -> None:
    import psutil  # loaded already by the caller

    with suppress(psutil.Error):
        process.kill()


def _not_started(path: str, error: OSError) -> SourceError:
    if isinstance(error, FileNotFoundError):
        return SourceError(Reason.DRIVER_UNAVAILABLE, f"{path} is not there, or the interpreter that it names is not")
    if isinstance(error, PermissionError):
        return SourceError(Reason.NO_PERMISSION, f"{path} may not be executed by this user")
    return SourceError(Reason.DRIVER_ERROR, f"{path} could not be started: {error.strerror or error}")
