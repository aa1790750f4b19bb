"""A file that grows by whole lines, whoever is killed in the middle of one.

Every line goes to the end of the file in one ``write``, so that a kill leaves at most the last line cut, and what several
processes write to one file does not mingle. Around it the file is locked (``flock``, which a kill gives up): under the lock a
writer sees that the file is still the one that bears the name, removes what somebody who was killed left of a line, takes
back what did not fit on the disk, and closes the file when it is full or old. Where a file system has no locks, this holds
for one writer.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from accelmetrics.exporters.rotation import LONGEST_HEAD, close_as, lock, same_file, sync_directory
from accelmetrics.schemas.errors import DocumentError
from accelmetrics.schemas.series import first_time

_BLOCK = 1 << 16
_UNKNOWN = -1


class WholeLines:
    """A file that grows by whole lines. Devices and pipes are written to as they are: they have no end to mend.

    Args:
        path: The file.
        beginning: What the first line of such a file begins with: a file that begins otherwise is not touched.
        complete: Whether a last line without an end lacks nothing else.

    Attributes:
        head: The file's first line, empty while it has none.
        began_ns: Time of its first record, in nanoseconds since 1970; None while it has none.
        size: Its bytes.
    """

    def __init__(self, path: Path, beginning: bytes, complete: Callable[[bytes], bool]) -> None:
        self.path = path
        self.head = b""
        self.began_ns: int | None = None
        self.size = _UNKNOWN
        self._beginning = beginning
        self._complete = complete
        self._descriptor = _UNKNOWN
        self._regular = True
        self._unsynced = 0

    def acquire(self) -> None:
        """Open the file if need be, and lock it.

        Raises:
            DocumentError: What is there is no such file.
            OSError: It cannot be opened.
        """
        while True:
            if self._descriptor == _UNKNOWN:
                self._open()
            if not self._regular:
                return
            lock(self._descriptor)
            if same_file(self._descriptor, self.path):
                break
            with suppress(OSError):
                self.sync()
            self.drop()  # it was closed by another writer, or moved away
        if os.fstat(self._descriptor).st_size != self.size:
            self._look()

    def release(self) -> None:
        """Unlock it."""
        if self._descriptor != _UNKNOWN and self._regular:
            with suppress(OSError):
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def append(self, lines: bytes, time_ns: int) -> None:
        """Add whole lines, or nothing. The file must be acquired.

        Raises:
            OSError: They cannot be written; the file is as it was.
        """
        try:
            _write(self._descriptor, lines)
        except OSError:
            if self._regular:
                with suppress(OSError):  # then it is mended before the next line
                    os.ftruncate(self._descriptor, self.size)
            raise
        self._unsynced += 1
        self.size += len(lines)
        self.head = self.head or lines[: lines.index(b"\n") + 1]
        self.began_ns = time_ns if self.began_ns is None else self.began_ns

    def sync(self, least: int = 1) -> None:
        """Have everything reach the disk, if at least so many lines have not.

        Raises:
            OSError: The disk has a fault, or is full after all.
        """
        if self._regular and self._unsynced >= least:
            os.fsync(self._descriptor)
            self._unsynced = 0

    def rotate(self) -> None:
        """Close the file, which must be acquired, under a name with its time, and acquire a new one.

        Raises:
            NotRenamedError: It cannot be renamed: it stays as it is, and open.
            OSError: It does not reach the disk, or the new one cannot be made.
        """
        self.sync()
        close_as(self.path, self.began_ns or 0)
        self.drop()
        self.acquire()

    def rotates(self) -> bool:
        """Whether it is a file that can be closed and begun anew."""
        return self._regular

    def drop(self) -> None:
        """Close the file's descriptor."""
        descriptor, self._descriptor = self._descriptor, _UNKNOWN
        self.size, self.head, self.began_ns, self._unsynced = _UNKNOWN, b"", None, 0
        if descriptor != _UNKNOWN:
            os.close(descriptor)

    def _open(self) -> None:
        flags = os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._regular = True
        with suppress(FileNotFoundError):
            self._regular = stat.S_ISREG(self.path.stat().st_mode)
        try:
            self._descriptor = os.open(self.path, flags | (os.O_RDWR if self._regular else os.O_WRONLY), 0o666)
        except FileNotFoundError as error:
            if self.path.parent.is_dir():  # one in which no file can be made
                raise
            raise FileNotFoundError(errno.ENOENT, "the directory does not exist", str(self.path.parent)) from error
        status = os.fstat(self._descriptor)
        self._regular = stat.S_ISREG(status.st_mode)
        if not self._regular:
            self.size = 0
        elif status.st_size == 0:
            sync_directory(self.path.parent)

    def _look(self) -> None:
        """See what somebody else wrote: to the file before this opened it, or beside this."""
        size = os.fstat(self._descriptor).st_size
        self.head = self._first_line()
        if not self.head.startswith(self._beginning[: len(self.head)]):
            raise DocumentError(f"{self.path} is there already, and is something else: it does not begin with {self._beginning.decode()}")
        self.size = self._mend(size)
        if not self.head.endswith(b"\n"):
            self.head = self._first_line()
        self.began_ns = self._began() if self.size else None

    def _first_line(self) -> bytes:
        head = b""
        while len(head) < LONGEST_HEAD and (block := os.pread(self._descriptor, _BLOCK, len(head))):
            head += block
            if b"\n" in block:
                return head[: head.index(b"\n") + 1]
        return head

    def _mend(self, size: int) -> int:
        """End the last line, or remove it where it was cut, so that the next one begins a line."""
        end = self._end_of_lines(size)
        if end == size:
            return size
        if self._complete(os.pread(self._descriptor, size - end, end)):
            _write(self._descriptor, b"\n")
            return size + 1
        os.ftruncate(self._descriptor, end)
        return end

    def _end_of_lines(self, size: int) -> int:
        while size > 0:
            begin = max(0, size - _BLOCK)
            found = os.pread(self._descriptor, size - begin, begin).rfind(b"\n")
            if found >= 0:
                return begin + found + 1
            size = begin
        return 0

    def _began(self) -> int:
        second = os.pread(self._descriptor, _BLOCK, len(self.head))
        return first_time(self.head) or first_time(second) or os.fstat(self._descriptor).st_mtime_ns


def _write(descriptor: int, data: bytes) -> None:
    """One write, unless only a part fits: the next one then says why, or finds room."""
    written = os.write(descriptor, data)
    while written < len(data):
        written += os.write(descriptor, data[written:])
