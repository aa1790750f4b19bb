"""When a growing file is closed, and what becomes of it: a name with its time, compressed, the oldest removed.

A kill between any two steps loses no record and leaves nothing that is counted twice: a closed file bears its new name in
one step; it is compressed under another name, which becomes its own in one step when everything has reached the disk; and
only then the uncompressed one goes. What was left undone is done after the next record, here or in another process.
"""

from __future__ import annotations

import errno
import fcntl
import os
import zlib
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

from accelmetrics.schemas.series import closed_files, next_closed, packed

NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EINVAL})
"""What file systems answer that have no locks: then there is taken to be one writer."""

LONGEST_HEAD = 1 << 24
"""Bytes of a first line that are looked at."""
LEVEL = 6
_BLOCK = 1 << 20
_NANOSECONDS = 1_000_000_000


class Rotation(NamedTuple):
    """When files are closed, and what becomes of them.

    Attributes:
        max_bytes: A file does not grow beyond this, unless by its only record; None for no limit.
        max_seconds: A file's last record is less than this after its first; None for no limit.
        compress: Compress closed files.
        keep: How many of the files that were closed for one of these limits stay, with all that are younger; None for all.
    """

    max_bytes: int | None = None
    max_seconds: float | None = None
    compress: bool = False
    keep: int | None = None

    def due(self, size: int, more: int, age_ns: int) -> bool:
        """Whether a file is closed before so many more bytes, so much younger than its first ones, are added to it."""
        full = self.max_bytes is not None and size + more > self.max_bytes
        return size > 0 and (full or (self.max_seconds is not None and age_ns >= self.max_seconds * _NANOSECONDS))


class NotRenamedError(OSError):
    """A growing file cannot be given another name: it is mounted by itself, or somebody else's in a directory like /tmp."""


def lock(descriptor: int, wait: bool = True) -> bool:
    """Lock a file until it is unlocked or closed; False if somebody else has it and this should not wait.

    Raises:
        OSError: The system cannot.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
    return True


def same_file(descriptor: int, path: Path) -> bool:
    """Whether an open file is still the one that bears the name."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def sync_directory(path: Path) -> None:
    """Have names reach the disk, where the file system can be told to."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def close_as(path: Path, began_ns: int) -> None:
    """Give a growing file, which the caller has locked, its closed name; no file is overwritten.

    Raises:
        NotRenamedError: It cannot be renamed, or the directory cannot be written to; nothing has changed.
    """
    try:
        name = _reserved(path, began_ns)
        try:
            path.replace(name)
        except OSError:
            name.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise NotRenamedError(error.errno, f"it cannot be renamed: {error.strerror}", str(path)) from error
    sync_directory(path.parent)


def _reserved(path: Path, began_ns: int) -> Path:
    """A name that was free, held by an empty file: renaming knows no other way not to overwrite."""
    while True:
        name = next_closed(path, began_ns).path
        with suppress(FileExistsError):  # another writer's
            os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
            if not packed(name).exists():  # looked for last: whoever compresses makes it before the other goes
                return name
            name.unlink(missing_ok=True)


def tidy(path: Path, rotation: Rotation, headed: bool = False) -> bool:
    """Remove the closed files that are too many and compress one of the others; whether that was all.

    One at a time: records wait meanwhile. What cannot be done now (the disk is full) is left as it is.

    Args:
        path: The growing file.
        rotation: How many, and whether they are compressed.
        headed: The first line of a file says what its columns are.
    """
    with suppress(OSError):
        names = [closed.path for closed in closed_files(path)]
        if rotation.keep is not None:
            for name in _too_many(path, names, rotation.keep, headed):
                _remove(name)
                names.remove(name)
        waiting = [name for name in names if name.exists() and name.stat().st_size] if rotation.compress else []
        if waiting:
            compress(waiting[0])
        return len(waiting) < 2
    return True


def _too_many(path: Path, names: list[Path], keep: int, headed: bool) -> list[Path]:
    """Those before the newest that are kept. One that was closed for want of a column is not counted: the next has another head."""
    if not headed:
        return names[: max(0, len(names) - keep)]
    counted, following = 0, _head(path)
    for index in reversed(range(len(names))):
        head = _head(names[index])
        counted += head in (following, b"")
        if counted > keep:
            return names[: index + 1]
        following = head
    return []


def _head(path: Path) -> bytes:
    """The first line of a file, compressed or not; empty where it cannot be read."""
    import gzip

    with suppress(OSError, EOFError, zlib.error), gzip.open(packed(path)) if packed(path).exists() else path.open("rb") as file:
        return file.readline(LONGEST_HEAD)
    return b""


def _remove(closed: Path) -> None:
    for name in (closed, packed(closed), _unfinished(closed)):
        name.unlink(missing_ok=True)


def _unfinished(closed: Path) -> Path:
    name = packed(closed)
    return name.with_name(f".{name.name}.tmp")


def compress(closed: Path) -> None:
    """Replace a closed file by its compressed form, unless another process is about it.

    Raises:
        OSError: There is no room, or it cannot be read or written; the closed file is as it was.
    """
    if packed(closed).exists():  # made before a kill: it appears whole or not at all
        closed.unlink(missing_ok=True)
        return
    name = _unfinished(closed)
    with name.open("ab") as target:
        if not lock(target.fileno(), wait=False) or not same_file(target.fileno(), name):
            return
        try:
            _pack(closed, target)
            name.replace(packed(closed))
        except OSError:
            name.unlink(missing_ok=True)
            raise
    sync_directory(closed.parent)
    closed.unlink(missing_ok=True)


def _pack(closed: Path, target: BinaryIO) -> None:
    import gzip

    with closed.open("rb") as source:
        os.fchmod(target.fileno(), os.fstat(source.fileno()).st_mode & 0o777)
        target.truncate(0)
        with gzip.GzipFile("", "wb", LEVEL, target) as packer:
            while block := source.read(_BLOCK):
                packer.write(block)
    target.flush()
    os.fsync(target.fileno())
