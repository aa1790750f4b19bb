"""Commands: found on this machine, run within bounds of time and output, and never left behind.

::

    COMMAND = Command(("rbln-smi", "rbln-stat"), ("--json",), install="install the driver package")
    COMMAND.run().stdout                           # or SourceError: not installed, may not be run, late
    connect = COMMAND.poll(parse)                  # what PolledBackend connects with: parse(text) gives the devices
    connect = Query(COMMAND, ("index", "uuid", "power.draw"), "--query-gpu={fields}", "--format=csv,noheader")
    connect = each_device(COMMAND, found, ("info", "-t", "common", "-i", "{id}"), parse)

Every run keeps these promises, however the command behaves:

- The command is an absolute path with an argument list, never a shell line. Standard input is closed. The environment is reduced to
  the variables that these tools need, plus ``LC_ALL=C``. The working directory is temporary and is removed afterwards.
- The run ends at the deadline, when the output exceeds its bound, or a short grace after the command itself has ended, even if a
  child of the command keeps the output open.
- If the run ends early, or our process ends in any way, the command and all its children are killed. This includes children that
  left its process group or were reparented to ``init``: each run marks its environment, and children inherit the mark. See
  :mod:`~accelmetrics.backends.kit.watchdog`.
- It needs no thread and no signal handler, and interpreter exit waits for nothing.

One thing is allowed on purpose: a command that ends in time by itself and closes its output may leave a daemon behind.

:class:`Child` is the only place where processes are started and read. :func:`run` reads one to its end.

**Commands that print records as long as they run**: ``neuron-monitor``, ``macmon pipe``, ``xpu-smi dump``. :class:`LineProcess` supervises
one, :func:`stream` connects a polled backend to it.

::

    process = LineProcess(["/usr/bin/macmon", "pipe"], silence=5.0)
    process.wait(2.0)
    record = process.latest()                                          # LineRecord(line, arrived, number), or None
    process.failure
    process.close()

It keeps these promises, however the command behaves:

- The child starts like every command, and ends when our process ends in any way.
- A record is a line, or a block of lines that begins with a pattern. The latest complete record is kept, with the time at which its
  end arrived. Lines have a largest length; a longer line is dropped and reported. Standard error is drained, and its end is kept.
- If the child dies, or prints no record for too long, the rest of it is killed with all its children. It is reaped and restarted
  after a pause. The pause doubles from ``FIRST_PAUSE`` to ``LAST_PAUSE`` until the child runs steadily, so nothing ever spins.
- Interpreter exit waits for nothing. After a fork, the new process neither reads nor kills the child: its copy is closed, and
  ``failure`` says so.
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
import threading
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import WeakSet

from accelmetrics.backends.contract import SYSTEM_CLOCK, Clock
from accelmetrics.backends.guard import at_fork, guarded, through, waiting_for
from accelmetrics.backends.kit.fields import DENIED, DeviceRecord, Says, quoted
from accelmetrics.backends.kit.parsing import parsed, rows
from accelmetrics.backends.kit.polled import Connect, DeviceSample, PollOnce
from accelmetrics.backends.kit.watchdog import FilesError, Watchdog, reap
from accelmetrics.schemas.errors import DriverGoneError, Reason, SourceError, Unavailable
from accelmetrics.schemas.metric import NOTHING
from accelmetrics.schemas.named_tuple import NamedTuple
from accelmetrics.schemas.snapshot import rfc3339_second

MAX_OUTPUT = 4 * 1024 * 1024
"""Bytes of standard output and standard error together."""
GLANCE = 0.25
"""Seconds between two checks on a command that prints nothing."""
REAP = 2.0
"""Seconds to wait for a watchdog's end. One that takes longer is reaped when another process is started or ended."""
CHUNK = 65536
CONTROL = 2
"""Stream number of the watchdog's socket; 0 and 1 are the two outputs."""
SHOWN = 300
"""Longest quotation of a command's own words, in characters."""

MARK = "ACCELMETRICS_COMMAND"
"""Environment variable that identifies the descendants of one run."""
# The reduced environment: the variables of our own that these tools need.
KEPT = ("HOME", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "LOGNAME", "TMPDIR", "USER")
KEPT_PREFIXES = ("AMD_", "GPU_DEVICE_", "HIP_", "HSA_", "ROCM_", "ROCR_", "TPU_")
SAFE_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"

FIRST_PAUSE, LAST_PAUSE = 1.0, 60.0
"""Shortest and longest pause in seconds between the end of a child and the start of the next; doubled after each end."""
STEADY = 60.0
"""Seconds after which a child counts as steady: the pause after its end is the shortest again."""
START_UP = 10.0
"""Seconds that a child may take to its first record, if that is longer than the silence allowed later."""

CLOSED = Unavailable(Reason.DRIVER_UNAVAILABLE, "the command was closed")
FORKED = Unavailable(Reason.DRIVER_UNAVAILABLE, "the command belongs to the process that this one was forked from")


class Completed(NamedTuple):
    """The result of a command.

    Attributes:
        stdout: Its standard output as text; bytes that are not UTF-8 are replaced.
        stderr: Its standard error as text.
        returncode: Its exit status, negative for the signal that ended it.
        seconds: How long it took.
        truncated: Whether it was killed because it printed more than the bound.
        written: The text of the requested file; None if the command wrote none, or one larger than ``MAX_OUTPUT``.
    """

    stdout: str
    stderr: str
    returncode: int
    seconds: float
    truncated: bool
    written: str | None = None

    @property
    def words(self) -> str:
        """The last line of standard error, or else of standard output; at most 300 characters."""
        lines = (self.stderr.strip() or self.stdout.strip()).splitlines()
        return lines[-1].strip()[-SHOWN:] if lines else ""


class Command:
    """A vendor's tool.

    Args:
        names: Its names, in order of preference: the first that is found is used.
        arguments: The arguments of every run.
        directories: Where the vendor installs it, searched after ``PATH``; ``*`` matches part of a name.
        environment: Variables added to the reduced environment. ``{directory}`` is replaced by the working directory, ``{bin}`` by
            the directory of the command.
        output: A file that it writes in its working directory. The file is read instead of standard output.
        proof: Tells the tool from another vendor's tool of the same name: arguments that make it identify itself, then a regular
            expression that the right tool's answer matches. A tool with another answer is skipped.
        install: What to do if it is not installed.
        says: The tool's own messages and their meaning, for runs that list no device. The first that matches a line of the output
            counts.
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
        # By the tool's state: why it belongs to another vendor; empty for the right tool.
        self._proven: dict[tuple[object, ...], str] = {}
        self.install = install
        self.says = tuple(says)
        self.timeout = timeout

    def find(self) -> str:
        """Find the absolute path of the command.

        Raises:
            SourceError: It is not installed (``driver_unavailable``).
        """
        rejected: dict[str, SourceError] = {}
        found: list[str] = []
        for name in self.names:
            while (path := find(name, self.directories, rejected)) and path not in rejected:
                foreign = self._foreign(path)
                if foreign is None:
                    found.append(path)
                    break
                rejected[path] = foreign
        if found:
            # If this user may run none of them, running the first reports it.
            return next(filter(may_run, found), found[0])
        message = f"{' or '.join(self.names)} was not found in {', '.join(('PATH', *self.directories))}"
        raise next(iter(rejected.values()), SourceError(Reason.DRIVER_UNAVAILABLE, message, advice=self.install))

    def disown(self, words: str) -> None:
        """Skip the file that is found now, until it changes, because its output shows that it belongs to another vendor.

        Args:
            words: A description of the file, written after its path.
        """
        path = self.find()
        self._proven[tool_state(path)] = f"{path} {words}"

    def _foreign(self, path: str) -> SourceError | None:
        """Return why this file is not the vendor's tool; None if it is. The file is asked once, until it changes."""
        state = tool_state(path)
        if state not in self._proven and self.proof:
            *arguments, pattern = self.proof
            try:
                answer = run([path, *arguments], timeout=self.timeout, environment=self.environment)
            except SourceError as error:
                # The caller keeps this error, and a traceback would keep its frames alive.
                return error.with_traceback(None)
            is_proven = re.search(pattern, f"{answer.stdout}\n{answer.stderr}", re.IGNORECASE)
            self._proven[state] = "" if is_proven else f"{path} is a tool of another vendor: {quoted(answer.words)}"
        words = self._proven.get(state, "")
        return SourceError(Reason.DRIVER_UNAVAILABLE, words, advice=self.install) if words else None

    def argv(self, *more: str) -> list[str]:
        """Return the absolute path, the arguments and ``more``. Raises as :meth:`find`."""
        return [self.find(), *self.arguments, *more]

    def run(self, *more: str, timeout: float | None = None) -> Completed:
        """Run the command once, with ``more`` after its own arguments.

        Args:
            more: Further arguments.
            timeout: Seconds after which it is killed; the command's own timeout if None.

        Raises:
            SourceError: It is not installed, could not be started, or was late.
        """
        timeout = self.timeout if timeout is None else timeout
        return run(self.argv(*more), timeout=timeout, environment=self.environment, output=self.output)

    def poll(self, parse: Callable[[str], Iterable[DeviceSample]], *more: str) -> Connect:
        """Connect a polled backend to this command: each poll runs it and parses its output.

        If the output lists devices, the exit status is ignored. If it lists none, the error quotes the command.

        Args:
            parse: Makes the devices from the text.
            more: Further arguments. Sources that call one tool with different arguments share its path and its proof.
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
                # The parser's error says more than the tool's words if devices came before it, since the tool itself works then, or if
                # a JSON document without complaints does not parse, since that is a new format.
                is_document = ("{" in text or text.lstrip().startswith("[")) and not completed.stderr.strip()
                if found or ((not failed or is_document) and self.known_error(completed) is None):
                    raise
                raise self.failure(completed) from error
            if not found and (failed or self.known_error(completed)):
                raise self.failure(completed)

        return self._connect(poll)

    def _connect(self, poll: PollOnce) -> Connect:
        def connect() -> PollOnce:
            self.find()
            return poll

        return connect

    def failure(self, completed: Completed) -> SourceError:
        """Return the error of a run without devices: from the vendor's known messages, else from its exit status and last words."""
        if (known := self.known_error(completed)) is not None:
            return known
        name, words = self.names[0], completed.words
        if completed.truncated:
            return SourceError(Reason.PARSE_ERROR, f"{name} printed more than {MAX_OUTPUT} bytes and was killed")
        if not words:
            reason = Reason.DRIVER_ERROR if completed.returncode else Reason.PARSE_ERROR
            return SourceError(reason, f"{name} printed nothing (exit status {completed.returncode})")
        reason = Reason.NO_PERMISSION if DENIED.search(words) else Reason.DRIVER_ERROR
        return SourceError(reason, f"{name} listed no device (exit status {completed.returncode}): {words}")

    def known_error(self, completed: Completed) -> SourceError | None:
        """Return the error for the first of the vendor's known messages in a run's output, with the line quoted; None without one."""
        for each in self.says:
            for line in f"{completed.stderr}\n{completed.stdout}".splitlines():
                if re.search(each.pattern, line, re.IGNORECASE):
                    message = f"{each.message or f'{self.names[0]} listed no device'}: {quoted(line)}"
                    return (DriverGoneError if each.gone else SourceError)(each.reason, message, advice=each.advice)
        return None


@through
def find(name: str, extra_directories: Iterable[str] = (), rejected: Container[str] = ()) -> str | None:
    """Find the absolute path of a command.

    A file that this user may execute is preferred. If there is only one that the user may not execute, it is returned, so that the
    run can report it.

    Args:
        name: The bare name of the command.
        extra_directories: Where the vendor installs it, searched after ``PATH``; ``*`` matches part of a name. Relative directories
            are ignored.
        rejected: Paths to skip.
    """
    directories = _path()
    for each in extra_directories:
        if each.startswith("/"):
            directories += map(str, sorted(Path("/").glob(each[1:]))) if "*" in each else (each,)
    paths = (f"{directory.rstrip('/')}/{name}" for directory in directories)
    present = [path for path in paths if path not in rejected and os.path.isfile(path)]  # noqa: PTH113 - pathlib's raises where a directory may not be searched
    return next(filter(may_run, present), present[0] if present else None)


def tool_state(path: str) -> tuple[object, ...]:
    """Return a key that changes when the tool is replaced: its path, and its file's size and modification time."""
    try:
        state = os.stat(path)  # noqa: PTH116 - pathlib's costs more
    except OSError:  # a recording is replayed: the file need not exist on this machine
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
        environment: Variables added to the reduced environment, as :class:`Command` takes them.
        output: A file that it writes in its working directory. It is read after the command has ended.

    Raises:
        SourceError: It could not be started (``driver_unavailable``, ``no_permission``) or was late (``timed_out``).
    """
    started = time.monotonic()
    outputs, left = (bytearray(), bytearray()), max_output
    with waiting_for(argv[0] if argv else ""), Child(argv, environment=environment) as child:
        for stream, piece in child.read(timeout):
            outputs[stream].extend(piece[:left])
            left -= len(piece)
            if left < 0:
                break
        written = None
        if output and child.directory:
            file = Path(child.directory, output)
            with suppress(OSError):  # it is not there
                written = file.read_bytes().decode("utf-8", "replace") if file.stat().st_size <= MAX_OUTPUT else None
    if not child.process.ended and left >= 0:
        raise SourceError(Reason.TIMED_OUT, f"{argv[0]} gave no answer in {timeout:g} s and was killed")
    stdout, stderr = (each.decode("utf-8", "replace") for each in outputs)
    return Completed(stdout, stderr, child.returncode, time.monotonic() - started, left < 0, written)


class Child:
    """A running command with its watchdog, pipes and working directory. Leaving this context manager cleans all of them up.

    Args:
        argv: Absolute path and arguments.
        environment: Variables added to the reduced environment, as :class:`Command` takes them.
        files: Names and texts of files for its working directory, which no other user may enter.

    Attributes:
        process: Its watchdog.
        directory: Its working directory. Empty if no file system is writable; the command then starts in ``/``.
        returncode: The exit status once the context is left, negative for the signal that ended the command.

    Raises:
        ValueError: The path is not absolute.
        SourceError: The command does not exist, may not be executed, or cannot be started.
    """

    def __init__(self, argv: Sequence[str], *, environment: Mapping[str, str] = NOTHING, files: Mapping[str, str] = NOTHING) -> None:
        if not argv or not argv[0].startswith("/"):
            raise ValueError(f"a command needs an absolute path: {list(argv)!r}")
        self.returncode = -signal.SIGKILL  # until the status is known
        self._finished = False
        self._path = argv[0]
        mark = os.urandom(16).hex()
        try:
            self.directory = f"{tempfile.gettempdir()}/accelmetrics-{mark}"
        except FileNotFoundError:
            self.directory = ""
        paths = {"directory": self.directory or "/", "bin": argv[0].rpartition("/")[0]}
        variables = {name: os.environ.get(name, "") for name in list(os.environ) if name in KEPT or name.startswith(KEPT_PREFIXES)}
        variables |= {"PATH": ":".join(_path()) or SAFE_PATH, "LC_ALL": "C"}
        variables |= {name: value.format(**paths) for name, value in environment.items()} | {MARK: mark}
        # This Python runs the watchdog. If a program embeds or freezes it, sys.executable is no interpreter: use the system's.
        interpreter = (not getattr(sys, "frozen", False) and sys.executable) or find("python3")
        if not interpreter:
            raise SourceError(Reason.DRIVER_UNAVAILABLE, "no Python interpreter was found: commands run under a watchdog that needs one")
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
                env=variables,
            )
        except OSError as error:
            raise _not_started(self._path, error) from error

    def read(self, seconds: float = math.inf) -> Iterator[tuple[int, bytes]]:
        """Read both outputs until they are closed and the command has ended, or the time is up.

        Args:
            seconds: How long to read. Once the command has ended, reading continues for 0.2 seconds at most.

        Yields:
            0 for standard output or 1 for standard error, and a piece of it. The piece is empty if nothing came for ``GLANCE``
            seconds.

        Raises:
            SourceError: The command could not be started.
        """
        until = time.monotonic() + seconds
        process = self.process
        assert process.stdout is not None and process.stderr is not None
        with selectors.DefaultSelector() as selector:
            for number, descriptor in enumerate((process.stdout.fileno(), process.stderr.fileno(), process.control.fileno())):
                selector.register(descriptor, selectors.EVENT_READ, number)
            left = seconds
            while selector.get_map() and left > 0:
                left = until - time.monotonic()  # may be negative: output that has arrived by then is still read
                ready = selector.select(max(0.0, min(GLANCE, left)))
                for key, _ in ready:
                    if key.data == CONTROL:
                        try:
                            process.receive()
                        except OSError as error:
                            raise _not_started(self._path, error) from error
                        selector.unregister(key.fd)
                        until = min(until, time.monotonic() + 0.2)  # a child of the command may keep the pipe open
                    elif piece := os.read(key.fd, CHUNK):
                        yield key.data, piece
                    else:
                        selector.unregister(key.fd)
                # An empty piece lets the caller check its own deadline.
                if not ready:
                    yield 0, b""
            self._finished = not selector.get_map()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        process = self.process
        if self._finished and process.status is not None:
            process.release()  # a daemon that the command left behind may go on
        elif process.ended and process.status is None:
            process.kill()  # the watchdog was killed, so nothing else kills the command
        else:
            process.end()
        process.await_end(REAP, REAP)
        if (status := process.returncode if process.status is None else process.status) is not None:
            self.returncode = status
        process.close()
        reap()
        if self.directory:
            shutil.rmtree(self.directory, ignore_errors=True)  # the watchdog has removed it, unless it was killed


@through
def start(argv: Sequence[str], *, environment: Mapping[str, str] = NOTHING, files: Mapping[str, str] = NOTHING) -> Child:
    """Start a command that keeps running; see :class:`Child`."""
    return Child(argv, environment=environment, files=files)


def _path() -> list[str]:
    return [directory for directory in os.environ.get("PATH", SAFE_PATH).split(":") if directory.startswith("/")]


def _not_started(path: str, error: OSError) -> SourceError:
    if isinstance(error, FilesError):
        return SourceError(Reason.DRIVER_UNAVAILABLE, f"the files that {path} needs cannot be written: {error.strerror}")
    if isinstance(error, FileNotFoundError):
        return SourceError(Reason.DRIVER_UNAVAILABLE, f"{path} is not there, or the interpreter that it names is not")
    if isinstance(error, PermissionError):
        return SourceError(Reason.NO_PERMISSION, f"{path} may not be executed by this user")
    return SourceError(Reason.DRIVER_ERROR, f"{path} could not be started: {error.strerror or error}")


class Query:
    """Connects a polled backend to a command that takes a list of fields and prints one comma-separated row per device.

    These tools refuse the whole query if a release does not know one of the fields. The query finds that field, leaves it out until
    the tool's file changes, and reports it as missing in each record. A field that was refused for lack of permission is tried
    again when the backend is reopened.

    Args:
        command: The command.
        fields: The fields. The first two identify a device, and every release knows them. If the tool does not answer for these two
            alone, the tool has failed and no field is to blame.
        arguments: The command's arguments. ``{fields}`` is replaced by the fields, joined by commas. If no argument contains
            ``noheader``, the column names come from the printed heading.
        sample: Makes the device from the texts of a row, by field.
    """

    def __init__(
        self, command: Command, fields: Sequence[str], *arguments: str, sample: Callable[[Mapping[str, Any]], DeviceSample] = DeviceSample
    ) -> None:
        self._command = command
        self._fields = tuple(fields)
        self._arguments = arguments
        self._sample = sample
        self._refused: dict[str, Unavailable] = {}
        self._tool: tuple[object, ...] = ()

    def __call__(self) -> PollOnce:
        """Find the command."""
        self._command.find()
        # Permissions may have been granted since the backend was last opened, so those fields are tried again.
        self._refused = {name: why for name, why in self._refused.items() if why.reason == Reason.NOT_SUPPORTED}
        return self._poll

    def _poll(self) -> Iterator[DeviceSample]:
        # Another release may know the fields that this one refused.
        if (tool := tool_state(self._command.find())) != self._tool:
            self._tool, self._refused = tool, {}
        fields = [name for name in self._fields if name not in self._refused]
        for row in self._query(fields)[0] or self._without_refused(fields):
            yield self._sample({**self._refused, **row})

    def _query(self, fields: Sequence[str]) -> tuple[list[dict[str, str]], Completed]:
        """Run the query for some fields. Without rows, the query was refused or there is no device."""
        completed = self._command.run(*(each.replace("{fields}", ",".join(fields)) for each in self._arguments))
        found = rows(completed.stdout, fields if any("noheader" in each for each in self._arguments) else ())
        # A row that contains the field names is an error message that repeats the query.
        return [row for row in found if row.get(fields[1]) != fields[1]], completed

    def _without_refused(self, fields: Sequence[str]) -> list[dict[str, str]]:
        """Find the refused fields, and return the rows of the other fields.

        A refused field is named in the tool's message. If the message names none, or all, the fields are halved until a query fails
        for one field.

        Raises:
            SourceError: The tool does not answer for the first two fields either.
        """
        known, pending = list(fields[:2]), [list(fields[2:])]
        found, completed = self._query(known)
        if not found:
            raise self._command.failure(completed)
        while pending:
            part = pending.pop()
            answer, completed = self._query([*known, *part])
            words = f"{completed.stdout}\n{completed.stderr}"
            named = [name for name in part if re.search(rf"(?<![\w.]){re.escape(name)}(?![\w.])", words)]
            if answer:
                found, known = answer, [*known, *part]
            elif len(part) > 1 and len(named) in (0, len(part)):
                # The message names no field, or repeats the whole query: bisect.
                pending += [part[: len(part) // 2], part[len(part) // 2 :]]
            else:
                denied = self._command.failure(completed).reason == Reason.NO_PERMISSION
                reason = Reason.NO_PERMISSION if denied else Reason.NOT_SUPPORTED
                for name in named or part:
                    self._refused[name] = Unavailable(
                        reason, f'{self._command.names[0]} refuses the field "{name}": {quoted(completed.words)}'
                    )
                # The fields that the message does not name may still be known.
                pending += [left] if (left := [name for name in part if name not in self._refused]) else []
        return found


def each_device(
    command: Command,
    find: Callable[[], Iterable[Mapping[str, object]]],
    arguments: Sequence[str],
    parse: Callable[[str], Iterable[Mapping[str, Any]]],
) -> Connect:
    """Connect a polled backend to a command that runs once for each device, up to eight at a time.

    All runs of one poll share the command's timeout. If a run fails, the values of its device are missing for that reason; other
    devices are not affected.

    Args:
        command: The command.
        find: Lists the devices at each poll. It returns the known parts of each device, and these become part of its record.
        arguments: The command's arguments; ``{name}`` is replaced by that part of the known parts.
        parse: Makes a record from the output of one run, or several records if one run covers several devices.
    """

    def query(known: Mapping[str, object], until: float) -> list[DeviceSample]:
        left = until - time.monotonic()
        if left <= 0:
            raise SourceError(Reason.TIMED_OUT, f"{command.names[0]} was not run for this device: other devices took {command.timeout:g} s")
        completed = command.run(*(each.format_map(known) for each in arguments), timeout=left)
        try:
            found = [DeviceSample({**known, **record}) for record in parsed(command.names[0], parse, completed.stdout)]
        except SourceError as error:
            # The vendor's known messages explain more than a parser's error.
            raise command.known_error(completed) or error from error
        if not found:
            raise command.failure(completed)
        return found

    def poll() -> list[DeviceSample]:
        devices = list(find())
        answers: list[list[DeviceSample]] = [[] for _ in devices]
        until, gate = time.monotonic() + command.timeout, threading.Semaphore(8)

        def work(place: int) -> None:
            with gate:
                outcome = guarded(query, devices[place], until)
            unread = DeviceRecord({name.lower(): part for name, part in devices[place].items()}, outcome.failure)
            answers[place] = [DeviceSample(unread)] if outcome.value is None else outcome.value

        # ThreadPoolExecutor is no option: the interpreter waits for its threads at exit, and one of these may hang in a tool.
        name = f"accelmetrics {command.names[0]}"
        workers = [threading.Thread(target=work, args=(place,), name=name, daemon=True) for place in range(len(devices))]
        with waiting_for(command.find()):
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
        return [sample for samples in answers for sample in samples]

    return command._connect(poll)


def split_lines(piece: bytes, bound: int) -> tuple[list[bytes], bytes]:
    """Return the lines that end in a piece of output, and the beginning of the next, which is put in front of the next piece."""
    *lines, begun = piece.split(b"\n")
    # A line without an end must not fill the memory. One byte above the bound marks it as too long.
    return lines, begun[: bound + 1]


class Blocks:
    """Joins lines into blocks. A block is complete when the next begins, or when no line follows for a while.

    Args:
        begins: Matches the first line of a block.

    Attributes:
        heading: The lines before the first block; they are put in front of each block.
    """

    def __init__(self, begins: re.Pattern[bytes]) -> None:
        self._begins = begins
        self.heading: list[bytes] = []
        self._lines: list[bytes] = []
        self._usual = 0

    def feed(self, lines: Iterable[bytes]) -> list[bytes]:
        """Return the blocks that end before one of these lines."""
        complete = []
        for line in lines:
            begins = self._begins.match(line) is not None
            if begins and self._lines:
                complete.append(self._take())
            (self._lines if begins or self._lines or self._usual else self.heading).append(line)
        return complete

    def quiet(self) -> list[bytes]:
        """Return the pending block after a pause in the output, if it has as many lines as the block before."""
        # A block with fewer lines than before may be incomplete.
        return [self._take()] if self._lines and self._usual and len(self._lines) >= self._usual else []

    def _take(self) -> bytes:
        lines, self._lines = self._lines, []
        self._usual = len(lines)
        return b"\n".join((*self.heading, *lines))


class LineRecord(NamedTuple):
    """The latest complete record.

    Attributes:
        line: Its bytes, without the line's end.
        arrived: When its end arrived, on the process's clock.
        number: Its number from 1, counted over all children of this process.
    """

    line: bytes
    arrived: float
    number: int


class LineProcess:
    """A single command, kept running. Any thread may call any method.

    Args:
        argv: Absolute path and arguments.
        silence: Seconds without a record after which the child is replaced.
        environment: Variables added to the reduced environment.
        files: Names and texts of files in its working directory, which only this user may enter.
        opening: The beginning of a record. Bytes: a record is a line that begins with them, and other lines (banners, warnings) are
            kept like standard error. A pattern: a record is a block of lines, and the first line matches.
        max_line: Bytes above which a line is dropped.
        clock: Clock for the age of a record and the silence.
        first_pause: Seconds before a child is replaced for the first time.

    Attributes:
        name: The command's name.
        clock: Its clock.
        starts: How often it was started.
        ends: How often it has ended, was killed, or could not be started.
        failure: Why there is no newer record: how the command ended, and its last words. None after a record.

    Raises:
        ValueError: The path is not absolute.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        silence: float,
        environment: Mapping[str, str] = NOTHING,
        files: Mapping[str, str] = NOTHING,
        opening: bytes | re.Pattern[bytes] = b"{",
        max_line: int = 16 * 1024 * 1024,
        clock: Clock = SYSTEM_CLOCK,
        first_pause: float = FIRST_PAUSE,
    ) -> None:
        if not argv or not argv[0].startswith("/"):
            raise ValueError(f"a command needs an absolute path: {list(argv)!r}")
        self._argv = tuple(argv)
        self.name = argv[0].rpartition("/")[2]
        self._environment = environment
        self._files = dict(files)
        self._silence = silence
        self._opening = opening
        self._max_line = max_line
        self.clock = clock
        self._pause = self._first_pause = first_pause
        self._changed = threading.Condition()
        self._closed = False
        self._child: Child | None = None
        self._record: LineRecord | None = None
        self.failure: Unavailable | None = Unavailable(
            Reason.TIMED_OUT, f"{argv[0]} was started at {rfc3339_second(clock.time_ns())} and has printed nothing yet"
        )
        self._words = b""
        self._due = 0.0
        self.starts = 0
        self.ends = 0
        # A fork closes the copies of all of them in the new process.
        _PROCESSES.add(self)
        self._thread = threading.Thread(target=self._supervise, name=f"accelmetrics {self.name}", daemon=True)
        self._thread.start()

    def latest(self) -> LineRecord | None:
        """Return the newest record, however old; None before the first."""
        return self._record

    def wait(self, seconds: float) -> LineRecord | None:
        """Return the newest record. Waits up to ``seconds`` for the first, or until the command has failed once."""
        with waiting_for(self._argv[0]), self._changed:
            self._changed.wait_for(lambda: self._record is not None or self.ends > 0 or self._closed, seconds)
        return self.latest()

    def close(self) -> None:
        """End the child and everything that it started. All are gone on return, unless the kernel holds one back."""
        # In a forked process, the child and the thread belong to the parent.
        if self.failure is FORKED:
            return
        with self._changed:
            self._closed, self.failure = True, CLOSED
            self._changed.notify_all()
            if self._child is not None:
                self._child.process.end()
        if threading.current_thread() is not self._thread:
            self._thread.join(5.0)  # the kernel may hold back a child

    def forget(self) -> None:
        """Close this copy in the new process after a fork: the child, the thread and the lock's owner belong to the parent."""
        self._changed = threading.Condition()
        self._closed, self.failure, self._record, self._child = True, FORKED, None, None

    # The methods from here on run on the process's own thread.

    def _supervise(self) -> None:
        while not self._closed:
            started = self.clock.monotonic()
            try:
                failure = self._run()
            except SourceError as error:
                failure = error.unavailable
            # Only a child that ran for a while resets the pause, so that one that crashes at once is not restarted every second.
            if self.clock.monotonic() - started >= STEADY:
                self._pause = self._first_pause
            self._fail(failure)
            with self._changed:
                self._child = None
                self.ends += 1
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._closed, self._pause)
            self._pause = min(LAST_PAUSE, self._pause * 2)

    def _run(self) -> Unavailable:
        """Run one child from its start to its end, and return why it ended."""
        with start(self._argv, environment=self._environment, files=self._files) as child:
            with self._changed:
                # The last child's words must not explain this one's failure.
                self._words = b""
                self._due = self.clock.monotonic() + max(self._silence, START_UP)
                self._child = child
                # close() may have come before there was a child to end.
                if self._closed:
                    return CLOSED
            self.starts += 1
            self._listen(child)
            child.process.end()  # with everything that it left behind
        if not child.process.ended:
            # With a parse error, lines came and none was a record: the command prints something else.
            is_parse_error = self.failure is not None and self.failure.reason == Reason.PARSE_ERROR
            return self._unavailable(
                Reason.PARSE_ERROR if is_parse_error else Reason.TIMED_OUT, f"printed no record for {self._silence:g} s and was killed"
            )
        status = child.returncode
        return self._unavailable(Reason.DRIVER_ERROR, f"ended with status {status}" if status >= 0 else f"was ended by signal {-status}")

    def _listen(self, child: Child) -> None:
        """Read until the child has ended, or was silent for too long."""
        pending = b""
        opening, blocks = (self._opening, None) if isinstance(self._opening, bytes) else (b"", Blocks(self._opening))
        for stream, piece in child.read():
            if stream:
                self._keep_words(piece)
            else:
                lines, pending = split_lines(pending + piece, self._max_line)
                if any(len(line) > self._max_line for line in lines):
                    self._fail(Unavailable(Reason.PARSE_ERROR, f"{self.name} printed a line of more than {self._max_line} bytes: dropped"))
                records = [line.strip() for line in lines if len(line) <= self._max_line and line.strip()]
                if blocks is not None:
                    # An empty piece is a pause in the output, after which the pending block may be complete.
                    records = blocks.feed(records) if piece else blocks.quiet()
                elif unexpected := [line for line in records if not line.startswith(opening)]:
                    records = [line for line in records if line.startswith(opening)]
                    # Banners and warnings on standard output explain a failure like standard error.
                    self._keep_words(b"\n".join((*unexpected, b"")))
                    if self.failure is not None:
                        self._fail(self._unavailable(Reason.PARSE_ERROR, "has printed no record"))
                now = self.clock.monotonic()
                with self._changed:
                    if records and not self._closed:
                        self._due = now + self._silence
                        before = self._record.number if self._record is not None else 0
                        self._record = LineRecord(records[-1], now, before + len(records))
                        self.failure = None
                        self._changed.notify_all()
            if self.clock.monotonic() >= self._due:
                return

    def _fail(self, failure: Unavailable) -> None:
        with self._changed:
            if not self._closed:
                self.failure = failure

    def _keep_words(self, chunk: bytes) -> None:
        """Keep the end of standard error, and of lines that are not records."""
        self._words = (self._words + chunk)[-2048:]

    def _unavailable(self, reason: Reason, what: str) -> Unavailable:
        words = " ".join(self._words.decode("utf-8", "replace").split())[-SHOWN:]
        return Unavailable(reason, f"{self.name} {what}" + (f"; its last words: {words}" if words else ""))


_PROCESSES: WeakSet[LineProcess] = WeakSet()


def _forget_all() -> None:
    for process in list(_PROCESSES):
        process.forget()


at_fork(after_in_child=_forget_all)


class LinePoll:
    """The latest record of a command as a poll; see :func:`stream`.

    Args:
        process: The command.
        parse: Makes the devices from a record's text.
        stale: Seconds after which a record is too old.
        first: Seconds after the command's start during which polls wait for its first record.

    Attributes:
        process: The command.
    """

    reopens = True

    def __init__(self, process: LineProcess, parse: Callable[[str], Iterable[DeviceSample]], stale: float, first: float) -> None:
        self.process = process
        self._parse = parse
        self._stale = stale
        self._wait_until = time.monotonic() + first
        self._seen = 0
        self._samples: tuple[DeviceSample, ...] = ()
        self._arrived = -math.inf
        self._misread: SourceError | None = None

    def __call__(self) -> Iterable[DeviceSample]:
        """Return the devices of the latest record that could be parsed; each record is parsed once.

        Raises:
            SourceError: There is none, or it is too old.
        """
        record = self.process.latest() or self.process.wait(max(0.0, self._wait_until - time.monotonic()))
        if record is not None and record.number != self._seen:
            self._seen = record.number
            try:
                samples = parsed(self.process.name, self._parse, record.line.decode("utf-8", "replace"))
                self._samples = tuple(sample._replace(read_at=record.arrived) for sample in samples)
                self._arrived, self._misread = record.arrived, None
            except SourceError as error:
                self._misread = error
        oldest = self.process.clock.monotonic() - self._stale
        # A record that cannot be parsed does not replace a fresh one.
        if record is not None and self._arrived >= oldest:
            return self._samples
        if self._misread is not None and record is not None and record.arrived >= oldest:
            raise self._misread
        raise SourceError(*(self.process.failure or (Reason.STALE, "its last record is too old")))

    def close(self) -> None:
        """End the command."""
        self.process.close()


def stream(
    command: Command,
    parse: Callable[[str], Iterable[DeviceSample]],
    *,
    interval: float = 1.0,
    begins: str = "",
    opening: str = "{",
    files: Mapping[str, str] = NOTHING,
    first: float = 5.0,
) -> Callable[[], LinePoll]:
    """Connect a polled backend to a command that prints a record per interval as long as it runs.

    A record that cannot be parsed is skipped while the one before it is fresh.

    Args:
        command: The command.
        parse: Makes the devices from a record's text.
        interval: Seconds between two records. A record older than three intervals is stale; after ten without a record the command
            is restarted.
        begins: A regular expression for the first line of a record of several lines. The lines before the first record (a heading)
            are put in front of each.
        opening: The beginning of a record of one line.
        files: Names and texts of files in the command's working directory.
        first: Seconds to wait for the first record.
    """

    def connect() -> LinePoll:
        start = re.compile(begins.encode()) if begins else opening.encode()
        process = LineProcess(command.argv(), silence=10 * interval, environment=command.environment, files=files, opening=start)
        return LinePoll(process, parse, 3 * interval, first)

    return connect
