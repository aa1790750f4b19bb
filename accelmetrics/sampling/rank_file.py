"""The file in which a process of a job publishes its wishes, logged steps and messages to the others on its machine.

Each process writes one file and keeps it locked: the others recognise its end by the free lock. A record's number is taken in one
call in C, and each slot is written independently. So any thread, and a signal handler that interrupts it, may write at any time
without a lock.
"""

from __future__ import annotations

import fcntl
import glob
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from accelmetrics.backends.guard import at_fork, guarded
from accelmetrics.sampling.slot_file import HEAD, NotSharedError, Sizes, SlotFile, create

RANK = ".rank"
"""Suffix of these files."""
LONGEST = 4096
"""Longest message in bytes."""
WISHES, STEPS, MESSAGES = range(3)
"""The parts of a file. A record of steps holds as many as fit. A step too long for a slot is written to the messages instead."""
SIZES: Sizes = ((1 << 15, 2), (1536, 512), (LONGEST + HEAD, 128))
MOST_RANKS = 1024
"""Largest number of processes of a job that are followed."""
_MESSAGE = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
_STEP = json.JSONEncoder(separators=(",", ":"))

Message = Mapping[str, Any]
Logged = tuple[int, int | None, float, Mapping[str, int | float]]
"""A step: time in nanoseconds since 1970, the program's step number, the time on the monotonic clock, the numbers by name."""


class RankFile:
    """The file of this process, for writing. Its methods are safe from any thread and from signal handlers.

    Args:
        files: The common prefix of the paths of the job's files.
        wishes: The process's wishes for the shared readings, as a JSON-compatible object.

    Attributes:
        wishes: The wishes last written.
        file: The file, locked.
        path: Its path.

    Raises:
        NotSharedError: The file cannot be created.
    """

    def __init__(self, files: Path, wishes: Mapping[str, Any]) -> None:
        self._files, self._pid = files, os.getpid()
        self._make(wishes)

    def wish(self, wishes: Mapping[str, Any]) -> None:
        """Replace the wishes of this process."""
        self.wishes = wishes
        self._write(WISHES, _MESSAGE.encode(wishes))

    def steps(self, logged: Sequence[Logged]) -> None:
        """Write logged steps, as many per record as fit into a slot."""
        text = _STEP.encode(logged)
        records = -(-len(text) // (SIZES[STEPS][0] - HEAD))
        if records == 1 or len(logged) == 1:
            self._write(STEPS if records == 1 else MESSAGES, text)
            return
        size = -(-len(logged) // records)
        for begin in range(0, len(logged), size):
            self.steps(logged[begin : begin + size])

    def message(self, message: Message) -> bool:
        """Write a message. Return whether it is JSON-compatible and short enough."""
        text = guarded(_MESSAGE.encode, message).value
        return text is not None and self._write(MESSAGES, text)

    def close(self) -> None:
        """Remove the file."""
        _own.pop(self.path, None)
        if self.file.is_current and os.getpid() == self._pid:
            self.path.unlink(missing_ok=True)
        self.file.close()

    def _make(self, wishes: Mapping[str, Any]) -> None:
        # `count` takes a number in one call in C, so that no lock is needed, also in a signal handler.
        self._numbers = [count(1) for _ in SIZES]
        self.path = self._files.with_name(f"{self._files.name}.{os.getpid()}-{os.urandom(4).hex()}{RANK}")
        # Locked before it gets its name: others take an unlocked file for one of a process that has ended, and remove it.
        self.file = create(self.path, SIZES, lambda file: fcntl.lockf(file.file, fcntl.LOCK_EX))
        _own[self.path] = self
        self.wish(wishes)

    def _write(self, part: int, text: str) -> bool:
        """Write a record. Return whether it fits; a record that cannot be written is lost."""
        content = text.encode()
        fits = len(content) <= SIZES[part][0] - HEAD
        if fits and os.getpid() == self._pid:  # the child of a fork must not write here; it creates a file when it starts
            with suppress(OSError, NotSharedError):
                if not self.file.is_current:
                    self.file.close()
                    _own.pop(self.path, None)
                    self._make(self.wishes)
                self.file.write(part, next(self._numbers[part]), content)
        return fits


_own: dict[Path, RankFile] = {}
"""The files of this process. It never opens one a second time: closing the second descriptor would lose the lock."""
at_fork(after_in_child=_own.clear)


class Rank:
    """A process of the job, as its file describes it. It may be this process.

    Attributes:
        wishes: Its wishes for the shared readings.
        dropped: Number of steps and messages that were overwritten before they were read.
        own: Whether it is this process.
    """

    def __init__(self, path: Path, known: bool) -> None:
        self.wishes: Mapping[str, Any] = {}
        self.dropped = 0
        self._own, self._path = _own.get(path), path
        self.own = self._own is not None
        self._file = SlotFile(path) if self._own is None else self._own.file
        if self._file.sizes != SIZES:
            self.close()
            raise NotSharedError(f"{path} is no file of a process of the job")
        # Records from before this process joined are not for it. A process found at a later look (`known`) joined after it.
        newest = self._file.newest()
        self._last = [newest[WISHES] - 1, *[0 if known else number for number in newest[1:]]]
        self._awaited = [0, 0, 0]  # by part, the number of a record that the last call could not read

    def close(self) -> None:
        """Close the file."""
        if self._own is None:
            self._file.close()

    def is_alive(self) -> bool:
        """Return whether the process is alive."""
        if self._own is not None:
            return _own.get(self._path) is self._own
        try:
            # This succeeds only if the process's own, exclusive lock is gone, which the kernel releases at its end.
            fcntl.lockf(self._file.file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return self._file.is_current  # locked, so alive; otherwise the file was removed and created again under another name
        return False

    def look(self) -> None:
        """Read its current wishes."""
        for wishes in self.received(WISHES):
            self.wishes = wishes if isinstance(wishes, dict) else self.wishes

    def received(self, part: int) -> Iterator[Any]:
        """Yield the records written since the last call. Overwritten ones are counted as dropped."""
        for number, content in self._file.after(part, self._last[part]):
            if content is None and self._awaited[part] != number:  # it may be in the middle of being written: wait for the next call
                self._awaited[part] = number
                return
            self.dropped += number - self._last[part] - (content is not None)
            self._last[part] = number
            found = None if content is None else guarded(json.loads, content).value
            if found is not None:
                yield found


class Ranks:
    """The processes of a job on this machine, or of all jobs of this user. For one thread at a time.

    Args:
        files: The common prefix of the paths of the job's files; the directory of all jobs.
        earlier: Whether the first look also reads what the files hold from before it.

    Attributes:
        alive: The live processes, by path of their file.
        ended: Processes that the last look found to have ended. They can be read until the next look.
    """

    def __init__(self, files: Path, earlier: bool = False) -> None:
        self.alive: dict[Path, Rank] = {}
        self.ended: list[Rank] = []
        self._files = files
        self._looked = earlier
        self._left: set[Path] = set()  # files of ended processes that cannot be removed

    def look(self) -> None:
        """Find new processes, and remove the files of processes that have ended."""
        for path in sorted(ranks_of(self._files)):
            if path not in self.alive and path not in self._left and len(self.alive) < MOST_RANKS:
                with suppress(OSError, NotSharedError):
                    self.alive[path] = Rank(path, self._looked)
        self._looked = True
        for rank in self.ended:
            rank.close()
        self.ended = []
        for path, rank in tuple(self.alive.items()):
            if rank.is_alive():
                guarded(rank.look)
            else:
                self.ended.append(self.alive.pop(path))
                try:
                    path.unlink(missing_ok=True)
                except OSError:  # systemd's ProtectSystem=strict makes the directory read-only
                    self._left.add(path)

    def close(self) -> None:
        """Close their files."""
        for rank in (*self.alive.values(), *self.ended):
            rank.close()
        self.alive.clear()
        self.ended.clear()


def ranks_of(files: Path) -> Iterator[Path]:
    """Return the paths of the files of a job's processes; of all jobs, if it is their directory."""
    return files.glob(f"*{RANK}") if files.is_dir() else files.parent.glob(f"{glob.escape(files.name)}.*{RANK}")
