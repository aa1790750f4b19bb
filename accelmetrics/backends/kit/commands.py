"""Commands: found, run to their end within bounds, and never left behind.

::

    COMMAND = Command(("rbln-smi", "rbln-stat"), ("--json",), install="install the driver package")
    COMMAND.run().stdout                           # or SourceError: not installed, may not be run, late
    connect = COMMAND.poll(parse)                  # what PolledBackend connects with: parse(text) gives the devices

What a run promises, whatever the command does:

- an absolute path and an argument list, never a shell; closed standard input; ``LC_ALL=C`` and an environment reduced to
  what such tools need; a temporary working directory that is removed afterwards;
- it ends: at the deadline, when the output grows beyond its bound, or a short grace after the command itself has ended,
  even if a child that it left behind keeps the output open;
- when it ends early, or when our process ends in whatever way, the command and all its children are killed, those too that left
  its process group or were handed to ``init`` (each run marks its environment, which children inherit): see
  :mod:`~accelmetrics.backends.kit.watchdog`;
- no threads, no signal handlers and nothing at interpreter exit, which waits for nothing.

What is deliberately not done: a command that ended by itself in time, and closed its output, may leave a daemon behind.

:class:`Child` is the one place where processes are started and read: by :func:`run` to their end, and by
:mod:`~accelmetrics.backends.kit.line_process` for records, for as long as they live.
"""

from __future__ import annotations

import math
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from accelmetrics.backends.guard import waiting_for
from accelmetrics.backends.kit.fields import DENIED, Says, quoted
from accelmetrics.backends.kit.parsing import parsed
from accelmetrics.backends.kit.tap import through
from accelmetrics.backends.kit.watchdog import FilesError, Watchdog, reap
from accelmetrics.schemas.errors import DriverGoneError, Reason, SourceError
from accelmetrics.schemas.metric import NOTHING
from accelmetrics.schemas.named_tuple import NamedTuple

if TYPE_CHECKING:
    from accelmetrics.backends.kit.polled import Connect, DeviceSample, PollOnce

MAX_OUTPUT = 4 * 1024 * 1024
"""Bytes of standard output and standard error together."""
GRACE = 0.2
"""Seconds for which output is still read after the command itself has ended."""
GLANCE = 0.25
"""Seconds between two looks at a command that prints nothing."""
REAP = 2.0
"""Seconds for a watchdog to be gone; one that is not is reaped when another is."""
CHUNK = 65536
CONTROL = 2
"""Stands for the watchdog's socket beside the two outputs."""
SHOWN = 300
"""Characters of a command's own words that are told."""

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
        written: The text of the file that was asked for; None where it wrote none, or one above ``MAX_OUTPUT``.
    """

    stdout: str
    stderr: str
    returncode: int
    seconds: float
    truncated: bool
    written: str | None = None

    @property
    def words(self) -> str:
        """The last line of its complaints, else of its output, at most 300 characters."""
        lines = (self.stderr.strip() or self.stdout.strip()).splitlines()
        return lines[-1].strip()[-SHOWN:] if lines else ""


class Command:
    """A vendor's tool.

    Args:
        names: What it is called, by preference: the first name that is found is used.
        arguments: What it is run with.
        directories: Where the vendor installs it, searched after ``PATH``; ``*`` stands for part of a name.
        environment: Variables besides the reduced environment. ``{directory}`` stands for the working directory, ``{bin}`` for
            the directory of the command.
        output: A file that it writes in its working directory and that is read instead of what it prints.
        proof: Where another vendor has a tool of the same name: arguments with which it says whose it is, and at last a regular
            expression for what the right one prints then. One that prints something else is passed over.
        install: What to do where it is not installed.
        says: The tool's own words, and what they mean where it lists no device: the first that fit a line of its output.
        timeout: Seconds after which a run is killed.
    """

    def __init__(  # noqa: PLR0913 - a tool is this call
        self,
        names: str | Sequence[str],
        arguments: Sequence[str] = (),
        *,
        directories: Sequence[str] = (),
        environment: Mapping[str, str] = NOTHING,
        output: str = "",
        proof: Sequence[str] = (),
        install: str = "",
        says: Sequence[Says] = (),
        timeout: float = 5.0,
    ) -> None:
        self.names = (names,) if isinstance(names, str) else tuple(names)
        self.arguments = tuple(arguments)
        self.directories = tuple(directories)
        self.environment = environment
        self.output = output
        self.proof = tuple(proof)
        self._proven: dict[tuple[object, ...], str] = {}
        self.install = install
        self.says = tuple(says)
        self.timeout = timeout

    def find(self) -> str:
        """Find the absolute path of the command.

        Raises:
            SourceError: It is not installed (``driver_unavailable``).
        """
        passed_over: dict[str, SourceError] = {}
        found: list[str] = []
        for name in self.names:
            while (path := find(name, self.directories, passed_over)) and path not in passed_over:
                foreign = self._foreign(path)
                if foreign is None:
                    found.append(path)
                    break
                passed_over[path] = foreign
        if not found and passed_over:
            raise next(iter(passed_over.values()))
        if not found:
            places = ", ".join(("PATH", *self.directories))
            raise SourceError(Reason.DRIVER_UNAVAILABLE, f"{' or '.join(self.names)} was not found in {places}", advice=self.install)
        return next(filter(may_run, found), found[0])

    def disown(self, words: str) -> None:
        """Pass the file that is found over from now on, until it changes: what it printed shows that it is another vendor's.

        Args:
            words: What it is, after its path.
        """
        path = self.find()
        self._proven[tool_state(path)] = f"{path} {words}"

    def _foreign(self, path: str) -> SourceError | None:
        """Return why this file is not the vendor's tool; None where it is. It is asked once, until the file changes."""
        if not (self.proof or self._proven):
            return None
        state = tool_state(path)
        if state not in self._proven and self.proof:
            *arguments, pattern = self.proof
            try:
                said = run([path, *arguments], timeout=self.timeout, environment=self.environment)
            except SourceError as error:
                return error.with_traceback(None)
            ours = re.search(pattern, f"{said.stdout}\n{said.stderr}", re.IGNORECASE)
            self._proven[state] = "" if ours else f"{path} is a tool of another vendor: {quoted(said.words)}"
        words = self._proven.get(state, "")
        return SourceError(Reason.DRIVER_UNAVAILABLE, words, advice=self.install) if words else None

    def argv(self, *more: str) -> list[str]:
        """Return the absolute path, the arguments and more of them. Raises as :meth:`find`."""
        return [self.find(), *self.arguments, *more]

    def run(self, *more: str, timeout: float | None = None) -> Completed:
        """Run it once, with more arguments after its own.

        Args:
            more: The arguments.
            timeout: Seconds after which it is killed, where that is not the command's own.

        Raises:
            SourceError: It is not installed, could not be started, or was late.
        """
        seconds = self.timeout if timeout is None else timeout
        return run(self.argv(*more), timeout=seconds, environment=self.environment, output=self.output)

    def poll(self, parse: Callable[[str], Iterable[DeviceSample]], *more: str) -> Connect:
        """Connect a polled backend to this command: each poll runs it and parses what it printed.

        The status is not looked at where devices come out. Where none do, the failure quotes the command.

        Args:
            parse: From the text to the devices.
            more: Arguments after its own: sources that ask one tool in several ways share what is found out about it.
        """

        def poll() -> Iterable[DeviceSample]:
            completed = self.run(*more)
            text = (completed.written or "") if self.output else completed.stdout
            failed = completed.returncode or completed.truncated or not text.strip()
            found = False
            try:
                for sample in parsed(self.names[0], parse, text):
                    found = True
                    yield sample
            except SourceError as error:
                if found:
                    raise
                said = self.said(completed)
                is_document = ("{" in text or text.lstrip().startswith("[")) and not completed.stderr.strip()
                if said is None and (not failed or is_document):
                    raise
                raise said or self.failure(completed) from error
            if not found and (failed or self.said(completed)):
                raise self.failure(completed)

        def connect() -> PollOnce:
            self.find()
            return poll

        return connect

    def failure(self, completed: Completed) -> SourceError:
        """Return what a run without devices means: ``no_permission`` where its words say so, else ``driver_error`` or ``parse_error``."""
        said = self.said(completed)
        if said is not None:
            return said
        name, words = self.names[0], completed.words
        if completed.truncated:
            return SourceError(Reason.PARSE_ERROR, f"{name} printed more than {MAX_OUTPUT} bytes and was killed")
        if not words:
            reason = Reason.DRIVER_ERROR if completed.returncode else Reason.PARSE_ERROR
            return SourceError(reason, f"{name} printed nothing (exit status {completed.returncode})")
        reason = Reason.NO_PERMISSION if DENIED.search(words) else Reason.DRIVER_ERROR
        return SourceError(reason, f"{name} listed no device (exit status {completed.returncode}): {words}")

    def said(self, completed: Completed) -> SourceError | None:
        """Return what the vendor's words in a run's output mean, one line of which is quoted; None where there are none."""
        lines = f"{completed.stderr}\n{completed.stdout}".splitlines()
        for each in self.says:
            line = next((line for line in lines if re.search(each.pattern, line, re.IGNORECASE)), None)
            if line is not None:
                message = f"{each.message or f'{self.names[0]} listed no device'}: {quoted(line)}"
                return (DriverGoneError if each.gone else SourceError)(each.reason, message, advice=each.advice)
        return None


@through
def find(name: str, extra_directories: Iterable[str] = (), passed_over: Container[str] = ()) -> str | None:
    """Find the absolute path of a command.

    A file that may be executed is preferred; one that may not is still given, so that running it can say so.

    Args:
        name: The bare name of the command.
        extra_directories: Where the vendor installs it, searched after ``PATH``; ``*`` stands for part of a name. Relative directories
            are passed over.
        passed_over: Paths that are not looked for.
    """
    absolute = [directory for directory in extra_directories if directory.startswith("/")]
    vendor = [path for each in absolute for path in (map(str, sorted(Path("/").glob(each[1:]))) if "*" in each else (each,))]
    paths = (f"{directory.rstrip('/')}/{name}" for directory in (*_path(), *vendor))
    present = [path for path in paths if path not in passed_over and os.path.isfile(path)]  # noqa: PTH113 - pathlib's raises where a directory may not be searched
    return next(filter(may_run, present), present[0] if present else None)


def tool_state(path: str) -> tuple[object, ...]:
    """Return what is another when a tool was exchanged: its path, and size and time of change of its file."""
    try:
        state = os.stat(path)  # noqa: PTH116 - pathlib's costs more
    except OSError:  # a recording answers in its place
        return (path,)
    return path, state.st_size, state.st_mtime_ns


@through
def may_run(path: str) -> bool:
    """Return whether this user may execute a file."""
    return os.access(path, os.X_OK)


@through
def run(
    argv: Sequence[str],
    *,
    timeout: float,
    max_output: int = MAX_OUTPUT,
    environment: Mapping[str, str] = NOTHING,
    output: str = "",
) -> Completed:
    """Run a command to its end.

    Args:
        argv: Absolute path and arguments.
        timeout: Seconds after which it is killed.
        max_output: Bytes of output after which it is killed.
        environment: Variables besides the reduced environment, as :class:`Command` takes them.
        output: A file that it writes in its working directory and that is read when it has ended.

    Raises:
        SourceError: It could not be started (``driver_unavailable``, ``no_permission``) or was late (``timed_out``).
    """
    started = time.monotonic()
    outputs: tuple[list[bytes], list[bytes]] = ([], [])
    left, full = max_output, False
    with waiting_for(argv[0] if argv else ""), Child(argv, environment=environment) as child:
        for stream, piece in child.read(timeout):
            outputs[stream].append(piece[:left])
            if len(piece) > left:
                full = True
                break
            left -= len(piece)
        written = None
        if output and child.directory:
            file = Path(child.directory, output)
            with suppress(OSError):  # it is not there
                written = file.read_bytes().decode("utf-8", "replace") if file.stat().st_size <= MAX_OUTPUT else None
    if not (child.process.ended or full):
        raise SourceError(Reason.TIMED_OUT, f"{argv[0]} gave no answer in {timeout:g} s and was killed")
    stdout, stderr = (b"".join(parts).decode("utf-8", "replace") for parts in outputs)
    return Completed(stdout, stderr, child.returncode, time.monotonic() - started, full, written)


class Child:
    """A command under its watchdog, and everything that goes with it. A context manager: leaving it leaves nothing.

    Args:
        argv: Absolute path and arguments.
        environment: Variables besides the reduced environment, as :class:`Command` takes them.
        files: Names and texts of files that are put into its working directory, which no other user may enter.

    Attributes:
        process: Its watchdog.
        directory: Its working directory. Where no file system may be written to there is none, and the command starts in ``/``.
        returncode: When it was left: the exit status, negative for the signal that ended it.

    Raises:
        ValueError: The path is not absolute.
        SourceError: The command is not there, may not be executed, or cannot be started.
    """

    def __init__(self, argv: Sequence[str], *, environment: Mapping[str, str] = NOTHING, files: Mapping[str, str] = NOTHING) -> None:
        if not argv or not argv[0].startswith("/"):
            raise ValueError(f"a command needs an absolute path: {list(argv)!r}")
        self.returncode = -signal.SIGKILL  # stands for a status that does not come
        self._finished = False
        self._path = argv[0]
        mark = os.urandom(16).hex()
        try:
            self.directory = f"{tempfile.gettempdir()}/accelmetrics-{mark}"
        except FileNotFoundError:
            self.directory = ""
        words = {"directory": self.directory or "/", "bin": argv[0].rpartition("/")[0]}
        kept = {name: os.environ.get(name, "") for name in list(os.environ) if name in KEPT or name.startswith(KEPT_PREFIXES)}
        reduced = kept | {"PATH": ":".join(_path()) or SAFE_PATH, "LC_ALL": "C"}
        own = {name: value.format(**words) for name, value in environment.items()}
        # This Python runs the watchdog; the system's where a program embeds or freezes it.
        interpreter = (not getattr(sys, "frozen", False) and sys.executable) or find("python3")
        if not interpreter:
            why = "a command runs under a watchdog, which needs a Python interpreter: there is none"
            raise SourceError(Reason.DRIVER_UNAVAILABLE, why)
        try:
            self.process = Watchdog(
                interpreter,
                argv,
                mark=mark,
                directory=self.directory,
                files=files,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd="/",
                env=reduced | own | {MARK: mark},
            )
        except OSError as error:
            raise _not_started(self._path, error) from error

    def read(self, seconds: float = math.inf) -> Iterator[tuple[int, bytes]]:
        """Read both outputs until they are closed and the command has ended, or the time is up.

        Args:
            seconds: For how long; a command that has ended leaves ``GRACE`` seconds at most.

        Yields:
            0 for standard output or 1 for standard error, and a piece of it; an empty one when nothing came for ``GLANCE`` seconds.

        Raises:
            SourceError: The command could not even be started.
        """
        until = time.monotonic() + seconds
        process = self.process
        assert process.stdout is not None and process.stderr is not None
        with selectors.DefaultSelector() as selector:
            for number, descriptor in enumerate((process.stdout.fileno(), process.stderr.fileno(), process.control.fileno())):
                selector.register(descriptor, selectors.EVENT_READ, number)
            left = seconds
            while selector.get_map() and left > 0:
                left = until - time.monotonic()  # once it is over, what came meanwhile is still read
                ready = selector.select(max(0.0, min(GLANCE, left)))
                for key, _ in ready:
                    if key.data == CONTROL:
                        try:
                            process.hear()
                        except FilesError as error:
                            words = f"the files that {self._path} needs cannot be written: {error.strerror}"
                            raise SourceError(Reason.DRIVER_UNAVAILABLE, words) from error
                        except OSError as error:
                            raise _not_started(self._path, error) from error
                        selector.unregister(key.fd)
                        until = min(until, time.monotonic() + GRACE)
                    elif piece := os.read(key.fd, CHUNK):
                        yield key.data, piece
                    else:
                        selector.unregister(key.fd)
                if not ready:
                    yield 0, b""
            self._finished = not selector.get_map()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        process = self.process
        if self._finished and process.status is not None:
            process.release()  # what it left behind may live
        elif process.ended and process.status is None:
            process.kill()  # the watchdog was killed
        else:
            process.end()
        process.await_end(REAP, REAP)
        status = process.returncode if process.status is None else process.status
        self.returncode = -signal.SIGKILL if status is None else status
        process.close()
        reap()
        if self.directory:
            shutil.rmtree(self.directory, ignore_errors=True)  # the watchdog did, unless it was killed


@through
def start(argv: Sequence[str], *, environment: Mapping[str, str] = NOTHING, files: Mapping[str, str] = NOTHING) -> Child:
    """Start a command that goes on; see :class:`Child`."""
    return Child(argv, environment=environment, files=files)


def _path() -> list[str]:
    return [directory for directory in os.environ.get("PATH", SAFE_PATH).split(":") if directory.startswith("/")]


def _not_started(path: str, error: OSError) -> SourceError:
    if isinstance(error, FileNotFoundError):
        return SourceError(Reason.DRIVER_UNAVAILABLE, f"{path} is not there, or the interpreter that it names is not")
    if isinstance(error, PermissionError):
        return SourceError(Reason.NO_PERMISSION, f"{path} may not be executed by this user")
    return SourceError(Reason.DRIVER_ERROR, f"{path} could not be started: {error.strerror or error}")
