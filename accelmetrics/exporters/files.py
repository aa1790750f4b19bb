"""What the exporters to files of lines share: options, and when a file is closed and another begun.

The file itself is in ``whole_lines.py``, what becomes of closed ones in ``rotation.py``.
"""

from __future__ import annotations

import logging
import os
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from accelmetrics.exporters.rotation import NotRenamedError, Rotation, tidy
from accelmetrics.exporters.whole_lines import WholeLines
from accelmetrics.schemas.errors import InvalidOptionError
from accelmetrics.schemas.record import Record
from accelmetrics.schemas.series import PACKED

RENAMING_SECONDS = 60.0
"""How long a file that could not be renamed grows before that is tried again."""

log = logging.getLogger("accelmetrics")


class FileExporter(ABC):
    """What the exporters to files of lines share.

    Args:
        path: The file. It is added to when it is there.
        fsync_every: After how many records the file is made to reach the disk: a power failure loses no more. 0 leaves it to
            the system. Flushing and closing do it too.
        max_bytes: Close the file, and begin another, before it grows beyond this.
        max_seconds: Close it before it holds more than this much time.
        compress: Compress closed files.
        keep: How many of the files that were closed for one of these limits stay; the oldest go first.

    Raises:
        InvalidOptionError: An option makes no sense, or the file's directory does not exist.
    """

    name: str
    beginning: ClassVar[bytes]
    headed: ClassVar[bool] = False
    """Whether a file's first line says what its columns are."""

    def __init__(
        self,
        path: str | Path,
        *,
        fsync_every: int = 60,
        max_bytes: int | None = None,
        max_seconds: float | None = None,
        compress: bool = False,
        keep: int | None = None,
    ) -> None:
        limits: dict[str, float | None] = {"fsync_every": fsync_every, "keep": keep, "max_bytes": max_bytes, "max_seconds": max_seconds}
        for option, value in limits.items():
            least = "at least 0" if option in ("fsync_every", "keep") else "more than 0"
            if value is not None and not (value > 0 or (value == 0 and least == "at least 0")):
                raise InvalidOptionError(f"{option} is {value!r}: it must be {least}")
        self.path = _growing(str(path))
        self._every = fsync_every
        self._rotation = Rotation(max_bytes, max_seconds, compress, keep)
        self._file = WholeLines(self.path, self.beginning, self.complete)
        self._untidy = True
        self._stays_until: float | None = None

    @abstractmethod
    def lines(self, record: Record, head: bytes) -> bytes | None:
        """A record as whole lines for a file with this first line, which is empty for a new one; None where it needs a new one."""

    @abstractmethod
    def complete(self, tail: bytes) -> bool:
        """Whether a last line without an end lacks nothing else."""

    def open(self) -> None:
        try:
            self._file.acquire()
        finally:
            self._file.release()
        self._untidy = True

    def export(self, record: Record) -> None:
        try:
            self._file.acquire()
            if self._every:
                self._file.sync(self._every)  # what failed last time is told before anything else is taken
            self._file.append(self._fitting(record), record.snapshot.time_ns)
        finally:
            self._file.release()
        # From here on the record is written, and an error would have it written again.
        if self._every:
            with suppress(OSError):
                self._file.sync(self._every)
        if self._untidy:
            self._untidy = not tidy(self.path, self._rotation, self.headed)

    def flush(self) -> None:
        self._file.sync()

    def close(self) -> None:
        try:
            self._file.sync()
        finally:
            self._file.drop()

    def _fitting(self, record: Record) -> bytes:
        """The record's lines for the file as it is now, or for a new one."""
        file = self._file
        while True:
            lines = self.lines(record, file.head)
            age = 0 if file.began_ns is None else record.snapshot.time_ns - file.began_ns
            if lines is not None and not (file.rotates() and self._rotation.due(file.size, len(lines), age)):
                return lines
            if not file.rotates():
                file.head = b""
            elif lines is None:
                self._untidy = True
                file.rotate()
            elif not self._rotated():
                return lines

    def _rotated(self) -> bool:
        """Begin a new file. False where this one cannot be renamed: then it grows beyond its limits, and it is said once.

        Raises:
            OSError: It does not reach the disk, or a new one cannot be made.
        """
        if self._stays_until is not None and time.monotonic() < self._stays_until:
            return False
        self._untidy = True
        try:
            self._file.rotate()
        except NotRenamedError as error:
            if self._stays_until is None:
                log.warning("%s grows beyond its limits: %s", self.path, error.strerror)
            self._stays_until = time.monotonic() + RENAMING_SECONDS
            return False
        self._stays_until = None
        return True


def absolute(path: str | os.PathLike[str]) -> Path:
    """Where it is, whatever directory the program goes to later; ``~`` is the user's home."""
    return Path(os.path.abspath(os.path.expanduser(path)))  # noqa: PTH100, PTH111 - those of pathlib raise where there is no home


def _growing(path: str) -> Path:
    """Where a growing file is; a link is followed, so that closed files lie beside it.

    Raises:
        InvalidOptionError: There can be no such file.
    """
    found = absolute(path)
    if found.is_dir():
        raise InvalidOptionError(f"{path} is a directory: name a file in it")
    if found.suffix == PACKED:
        raise InvalidOptionError(f"{path} ends in {PACKED}: closed files are compressed with compress=true")
    if found.exists() and not found.is_file():
        return found  # a device, a pipe: what /dev/stdout is a link to has no name
    found = found.resolve()
    if not found.parent.is_dir():
        raise InvalidOptionError(f"{path}: the directory {found.parent} does not exist")
    return found
