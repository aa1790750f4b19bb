"""Files with a record a line: what their exporters share, and JSON lines."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar

from accelmetrics.exporters.whole_files import LineFile, Rotation, absolute
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
        for option, value, least in (("fsync_every", fsync_every, 0), ("keep", keep, 0)):
            if value is not None and value < least:
                raise InvalidOptionError(f"{option} is {value!r}: it must be at least 0")
        for option, limit in (("max_bytes", max_bytes), ("max_seconds", max_seconds)):
            if limit is not None and not limit > 0:
                raise InvalidOptionError(f"{option} is {limit!r}: it must be more than 0")
        self.path = growing_path(str(path))
        self._file = LineFile(self.path, self.beginning, self.complete, fsync_every, Rotation(max_bytes, max_seconds, compress, keep))

    @abstractmethod
    def lines(self, record: Record, head: bytes) -> bytes | None:
        """Return a record as whole lines for a file with this first line, which is empty for a new one; None where it needs a new one."""

    @abstractmethod
    def complete(self, tail: bytes) -> bool:
        """Return whether a last line without an end lacks nothing else."""

    def open(self) -> None:
        self._file.open()

    def export(self, record: Record) -> None:
        self._file.write(lambda head: self.lines(record, head), record.snapshot.time_ns)

    def flush(self) -> None:
        self._file.sync()

    def close(self) -> None:
        self._file.close()


class JsonlExporter(FileExporter):
    """Writes each record as a line: the document of ``dump --json``, with ``labels``, ``training`` and ``monitor`` beside it."""

    name = "jsonl"
    beginning: ClassVar[bytes] = b'{"schema_version"'

    def lines(self, record: Record, head: bytes) -> bytes:
        del head  # a line says by itself what is in it
        return record.to_json().encode("ascii") + b"\n"

    def complete(self, tail: bytes) -> bool:
        return is_json(tail)


def is_json(text: bytes) -> bool:
    """Return whether a text is JSON as it stands."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def growing_path(path: str) -> Path:
    """Return where a growing file is; a link is followed, so that closed files lie beside it.

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
