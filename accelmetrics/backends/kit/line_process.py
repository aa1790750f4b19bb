"""A supervised child that prints one record per line for as long as it lives: ``neuron-monitor``, ``macmon pipe``.

::

    stream = Stream(["/usr/bin/macmon", "pipe"], silence=5.0)      # starts at once, on a thread of its own
    stream.wait(2.0)                                               # for the first record, if somebody wants to wait
    record = stream.latest()                                       # Record(line, arrived, age, number), or None
    stream.failure                                                 # why there is nothing newer, in words; None when all is well
    stream.close()

What it promises, whatever the command does:

- it is started like every command (:mod:`~accelmetrics.backends.kit.commands`: absolute path, argument list, no shell, closed
  standard input, ``LC_ALL=C``, a working directory of its own), in which the files that it needs are put;
- lines may be of any length up to a bound; a longer one is dropped and said. The latest whole record is kept, with the time
  at which its end arrived. Standard error is drained, and its last words are kept;
- when it dies, or gives no record for too long, what is left of it is killed, all its children too, it is reaped, and started
  again after a pause that doubles from ``FIRST_PAUSE`` to ``LAST_PAUSE`` until it runs steadily; nothing here ever spins;
- it ends with us, by whatever death (``parent_watchdog.py``); interpreter exit waits for nothing;
- after a fork the new process neither reads nor kills it: there the stream is closed, and says so.
"""

from __future__ import annotations

import os
import selectors
import threading
from collections.abc import Mapping, Sequence
from typing import NamedTuple
from weakref import WeakSet

from accelmetrics.backends.clock import SYSTEM_CLOCK, Clock
from accelmetrics.backends.kit.commands import CHUNK, NO_FILES, REAP, Child
from accelmetrics.backends.kit.parent_watchdog import BY_SIGNAL, NOT_EXECUTABLE, NOT_FOUND
from accelmetrics.schemas.errors import SourceError
from accelmetrics.schemas.reasons import Reason, Unavailable

FIRST_PAUSE, LAST_PAUSE = 1.0, 60.0
"""Seconds between the end of a child and the start of the next: doubled from the first to the last."""
STEADY = 60.0
"""Seconds after which a child has run well: the pause after its end is the first again."""
START_UP = 10.0
"""Seconds that a child may take to its first record, if that is longer than the silence allowed to it later."""
GLANCE = 0.25
"""Seconds between two looks at a child that prints nothing."""
MAX_LINE = 16 * 1024 * 1024
MAX_WORDS = 2048
"""Bytes of standard error that are kept."""
SHOWN = 300
"""Characters of them that are told."""

NO_NEWS = Unavailable(Reason.TIMED_OUT, "it was started and has printed nothing yet")
CLOSED = Unavailable(Reason.DRIVER_UNAVAILABLE, "it is closed")
FORKED = Unavailable(Reason.DRIVER_UNAVAILABLE, "it belongs to the process that this one was forked from")


class Lines:
    """Puts lines together from the pieces in which a pipe gives them. A line above the bound is passed over and counted."""

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._pieces: list[bytes] = []
        self._size = 0
        self.dropped = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that end in this piece, without their ends and without empty ones."""
        *ends, rest = chunk.split(b"\n")
        complete = []
        for end in ends:
            self._add(end)
            if self._size > self._bound:
                self.dropped += 1
            elif line := b"".join(self._pieces).strip():
                complete.append(line)
            self._pieces, self._size = [], 0
        self._add(rest)
        return complete

    def _add(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size > self._bound:
            self._pieces = []
        elif piece:
            self._pieces.append(piece)


class Record(NamedTuple):
    """The latest whole line.

    Attributes:
        line: Its bytes, without the line's end.
        arrived: When its end arrived, on the stream's clock.
        age: Seconds since then.
        number: Counted from 1, over all children of this stream.
    """

    line: bytes
    arrived: float
    age: float
    number: int


class Stream:
    """One command, kept running. Every method may be called from any thread.

    Args:
        argv: Absolute path and arguments.
        silence: Seconds without a record after which the child is replaced.
        files: Names and texts of files in its working directory, which only this user may enter.
        opening: How a record begins; lines that begin otherwise are no records (banners, warnings) but words.
        max_line: Bytes above which a line is dropped.
        clock: Where the age of a record and the silence are taken from.
        first_pause: Seconds before a child is replaced for the first time.

    Attributes:
        starts: How often it was started.
        ends: How often it has ended, was killed, or could not be started.

    Raises:
        ValueError: The path is not absolute.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        silence: float,
        files: Mapping[str, str] = NO_FILES,
        opening: bytes = b"{",
        max_line: int = MAX_LINE,
        clock: Clock = SYSTEM_CLOCK,
        first_pause: float = FIRST_PAUSE,
    ) -> None:
        if not argv or not argv[0].startswith("/"):
            raise ValueError(f"a command needs an absolute path: {list(argv)!r}")
        self._argv = tuple(argv)
        self._files = dict(files)
        self._silence = silence
        self._opening = opening
        self._max_line = max_line
        self._clock = clock
        self._pause = self._first_pause = first_pause
        self._news = threading.Condition()
        self._closed = False
        self._child: Child | None = None
        self._record: tuple[bytes, float, int] | None = None
        self._failure: Unavailable | None = NO_NEWS
        self._words, self._noisy = b"", False
        self._due = 0.0
        self.starts = 0
        self.ends = 0
        _STREAMS.add(self)
        self._thread = threading.Thread(target=self._supervise, name=f"accelmetrics {self._name}", daemon=True)
        self._thread.start()

    @property
    def failure(self) -> Unavailable | None:
        """Why there is no newer record: what the command ended with, its last words; None after a record."""
        return self._failure

    def latest(self) -> Record | None:
        """The newest record, however old; None before the first."""
        record = self._record
        if record is None:
            return None
        line, arrived, number = record
        return Record(line, arrived, max(0.0, self._clock.monotonic() - arrived), number)

    def wait(self, seconds: float) -> Record | None:
        """The newest record; waits so long for the first, but no longer than until the command has failed once."""
        with self._news:
            self._news.wait_for(lambda: self._record is not None or self.ends > 0 or self._closed, seconds)
        return self.latest()

    def close(self) -> None:
        """End the child and all that it started. They are gone when this returns, unless the kernel holds on to one."""
        if self._failure is FORKED:
            return
        with self._news:
            self._closed, self._failure = True, CLOSED
            self._news.notify_all()
            if self._child is not None:
                self._child.kill_group()
        if threading.current_thread() is not self._thread:
            self._thread.join(REAP * 4)

    def forget(self) -> None:
        """After a fork, in the new process: the child is not this process's, nor are the thread and who holds the lock."""
        self._news = threading.Condition()
        self._closed, self._failure, self._record = True, FORKED, None
        if self._child is not None:
            self._child.disown()

    @property
    def _name(self) -> str:
        return self._argv[0].rpartition("/")[2]

    # From here on: what the stream's own thread does.

    def _supervise(self) -> None:
        while not self._closed:
            started = self._clock.monotonic()
            try:
                failure = self._run()
            except SourceError as error:
                failure = error.unavailable
            if self._clock.monotonic() - started >= STEADY:
                self._pause = self._first_pause
            self._rest(failure)

    def _rest(self, failure: Unavailable) -> None:
        self._fail(failure)
        with self._news:
            self.ends += 1
            self._news.notify_all()
            self._news.wait_for(lambda: self._closed, self._pause)
        self._pause = min(LAST_PAUSE, self._pause * 2)

    def _run(self) -> Unavailable:
        """One child, from its start to its end: why it has ended."""
        with Child(self._argv, files=self._files, kept=True) as child:
            self.starts += 1
            if not self._adopt(child):
                return CLOSED
            silent = self._listen(child)
            with self._news:
                self._child = None  # before its number may become another's
            status = None if silent else child.reap(REAP)
            ended = child.process.returncode is not None
            child.kill()  # all of it, or what it left behind
        if status is None:
            reason = Reason.PARSE_ERROR if self._noisy else Reason.TIMED_OUT
            return self._told(reason, f"gave no record for {self._silence:g} s and was killed")
        if not ended:
            return self._told(Reason.DRIVER_ERROR, "closed its output and was killed")
        return self._told(_REASONS.get(status, Reason.DRIVER_ERROR), _ending(status))

    def _adopt(self, child: Child) -> bool:
        with self._news:
            self._words, self._noisy = b"", False
            self._due = self._clock.monotonic() + max(self._silence, START_UP)
            self._child = None if self._closed else child
            return self._child is not None

    def _listen(self, child: Child) -> bool:
        """Read until the child has ended, or closed its outputs (False), or was silent for too long (True)."""
        lines = Lines(self._max_line)
        stdout, stderr = child.outputs
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ, lambda chunk: self._take(lines, chunk))
            selector.register(stderr, selectors.EVENT_READ, self._note)
            while selector.get_map():
                ready = selector.select(GLANCE)
                for key, _ in ready:
                    chunk = os.read(key.fd, CHUNK)
                    if chunk:
                        key.data(chunk)
                    else:
                        selector.unregister(key.fileobj)
                if self._clock.monotonic() >= self._due:
                    return True
                if not ready and child.ended():  # what it left behind holds its outputs open
                    return False
        return False

    def _take(self, lines: Lines, chunk: bytes) -> None:
        """Part of standard output."""
        dropped = lines.dropped
        complete = lines.feed(chunk)
        records = [line for line in complete if line.startswith(self._opening)]
        for line in complete:
            if not line.startswith(self._opening):
                self._noisy = True
                self._note(line + b"\n")
        if records:
            self._publish(records)
        elif lines.dropped > dropped:
            self._noisy = True
            self._fail(Unavailable(Reason.PARSE_ERROR, f"{self._name} printed a line of more than {self._max_line} bytes: dropped"))
        elif complete and self._failure is not None:
            self._fail(self._told(Reason.PARSE_ERROR, "has printed no record"))

    def _publish(self, records: list[bytes]) -> None:
        now = self._clock.monotonic()
        self._due = now + self._silence
        with self._news:
            if not self._closed:
                number = self._record[2] if self._record else 0
                self._record = records[-1], now, number + len(records)
                self._failure = None
                self._news.notify_all()

    def _fail(self, failure: Unavailable) -> None:
        with self._news:
            if not self._closed:
                self._failure = failure

    def _note(self, chunk: bytes) -> None:
        """Keep words: standard error, and lines that are no records."""
        self._words = (self._words + chunk)[-MAX_WORDS:]

    def _told(self, reason: Reason, what: str) -> Unavailable:
        words = " ".join(self._words.decode("utf-8", "replace").split())[-SHOWN:]
        return Unavailable(reason, f"{self._name} {what}" + (f"; its last words: {words}" if words else ""))


_REASONS = {NOT_FOUND: Reason.DRIVER_UNAVAILABLE, NOT_EXECUTABLE: Reason.NO_PERMISSION}


def _ending(status: int) -> str:
    """An exit status in words: ``ended with status 1``, ``was ended by signal 9``."""
    number = -status if status < 0 else status - BY_SIGNAL
    return f"was ended by signal {number}" if number > 0 else f"ended with status {status}"


_STREAMS: WeakSet[Stream] = WeakSet()


def _forget_all() -> None:
    for stream in list(_STREAMS):
        stream.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
