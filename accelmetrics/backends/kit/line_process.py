"""A supervised child process that prints records as long as it runs: ``neuron-monitor``, ``macmon pipe``, ``xpu-smi dump``.

::

    process = LineProcess(["/usr/bin/macmon", "pipe"], silence=5.0)
    process.wait(2.0)
    record = process.latest()                                          # LineRecord(line, arrived, number), or None
    process.failure
    process.close()

It keeps these promises, however the command behaves:

- The child starts like every command (:mod:`~accelmetrics.backends.kit.commands`), and ends when our process ends in any way.
- A record is a line, or a block of lines that begins with a pattern. The latest complete record is kept, with the time at which its
  end arrived. Lines have a largest length; a longer line is dropped and reported. Standard error is drained, and its end is kept.
- If the child dies, or prints no record for too long, the rest of it is killed with all its children. It is reaped and restarted
  after a pause. The pause doubles from ``FIRST_PAUSE`` to ``LAST_PAUSE`` until the child runs steadily, so nothing ever spins.
- Interpreter exit waits for nothing. After a fork, the new process neither reads nor kills the child: its copy is closed, and
  ``failure`` says so.
"""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple
from weakref import WeakSet

from accelmetrics.backends.contract import SYSTEM_CLOCK, Clock
from accelmetrics.backends.guard import at_fork, waiting_for
from accelmetrics.backends.kit.commands import SHOWN, Child, Command, start
from accelmetrics.backends.kit.parsing import parsed
from accelmetrics.backends.kit.polled import DeviceSample
from accelmetrics.schemas.errors import Reason, SourceError, Unavailable
from accelmetrics.schemas.metric import NOTHING
from accelmetrics.schemas.snapshot import rfc3339_second

FIRST_PAUSE, LAST_PAUSE = 1.0, 60.0
"""Shortest and longest pause in seconds between the end of a child and the start of the next; doubled after each end."""
STEADY = 60.0
"""Seconds after which a child counts as steady: the pause after its end is the shortest again."""
START_UP = 10.0
"""Seconds that a child may take to its first record, if that is longer than the silence allowed later."""
MAX_LINE = 16 * 1024 * 1024

CLOSED = Unavailable(Reason.DRIVER_UNAVAILABLE, "the command was closed")
FORKED = Unavailable(Reason.DRIVER_UNAVAILABLE, "the command belongs to the process that this one was forked from")


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
        max_line: int = MAX_LINE,
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
