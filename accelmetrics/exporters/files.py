"""What the exporters to files of lines share: options, and when a file is closed and another begun.

The file itself is in ``whole_lines.py``, what becomes of closed ones in ``rotation.py``.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from accelmetrics.exporters.rotation import Rotation, tidy
from accelmetrics.exporters.whole_lines import WholeLines
from accelmetrics.schemas.errors import InvalidOptionError
from accelmetrics.schemas.record import Record
from accelmetrics.schemas.series import PACKED


class FileExporter(ABC):
    """What the exporters to files of lines share.

    Args:
        path: The file. It is added to when it is there.
        fsync_every: After how many records the file is made to reach the disk: a power failure loses no more. 0 leaves it to
            the system. Flushing and closing do it too.
        max_bytes: Close the file, and begin another, before it grows beyond this.
        max_seconds: Close it before it holds more than this much time.
        compress: Compress closed files.
        keep: How many closed files stay; the oldest go first.

    Raises:
        InvalidOptionError: An option makes no sense, or the file's directory does not exist.
    """

    name: str
    beginning: ClassVar[bytes]

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
        self.path = _absolute(str(path))
        self._every = fsync_every
        self._rotation = Rotation(max_bytes, max_seconds, compress, keep)
        self._file = WholeLines(self.path, self.beginning, self.complete)
        self._untidy = True

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
            self._untidy = not tidy(self.path, self._rotation)

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
            if file.rotates():
                self._untidy = True
                file.rotate()
            else:
                file.head = b""


def _absolute(path: str) -> Path:
    """Where the file is, whatever directory the program goes to later; a link is followed, so that closed files lie beside it.

    Raises:
        InvalidOptionError: There can be no such file.
    """
    found = Path(os.path.abspath(os.path.expanduser(path)))  # noqa: PTH100, PTH111 - those of pathlib raise where there is no home
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
