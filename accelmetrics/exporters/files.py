"""Crash-safe files: a file that grows by lines, a file that is replaced atomically, and the exporters that write a line per record.

A growing file is appended to with one ``write`` per call. A kill can therefore cut only the last line, and lines of several processes do
not mix. The write happens under a lock (``flock``, which the system releases after a kill). Under the lock a writer checks that the path
still names this file, removes an incomplete last line, takes back a partial write to a full disk, and closes the file when it is full or
old. On file systems without locks, and on Windows, this holds for a single writer.

A closed file is renamed to a name with the time of its first record. Compression writes to a temporary name and renames the result when
it has reached the disk; then the uncompressed file is removed. A kill between any two steps loses no record and duplicates none.
Unfinished work is completed the next time that a process opens or closes a file.
"""

from __future__ import annotations

import errno
import gzip
import json
import os
import shutil
import stat
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, ClassVar

from accelmetrics.schemas.errors import DocumentError, InvalidOptionError
from accelmetrics.schemas.lines import PACKED, LineWriter, closed_files, first_time, next_closed, packed
from accelmetrics.schemas.log import log
from accelmetrics.schemas.record import Record
from accelmetrics.schemas.selection import STANDARD, MetricChoice, MetricSelection

if sys.platform != "win32":
    import fcntl

LONGEST_HEAD = 1 << 24
"""Maximum number of bytes of a first line that are read."""
RENAMING_SECONDS = 60.0
"""Seconds until a failed rename of a full file is retried."""
NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EINVAL})
"""Errors of file systems without locks. A single writer is then assumed."""
LINKS = 40
"""Maximum number of symbolic links in a path; Linux has the same limit."""
OPEN_TO_ALL = stat.S_ISVTX | stat.S_IWOTH
UNKNOWN = -1
_FLAGS: int = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)  # Windows has only O_BINARY, other systems only O_NOFOLLOW
_BLOCK = 1 << 16


class LineFile:
    """A file that grows by whole lines. Devices and pipes are supported, without repair and rotation.

    Args:
        path: The file.
        beginning: Prefix of the first line. A file with another first line is not modified.
        complete: Returns whether a last line without a line break is otherwise complete. If so, the line break is added; if not, the
            line is removed.
        fsync_every: Number of writes between two syncs to the disk; 0 leaves syncing to the system.
        max_bytes: Maximum size; only a single record may exceed it. None for no limit.
        max_seconds: Maximum time from the first record to the last; None for no limit.
        compress: Compress closed files.
        keep: Number of closed files to keep; None for all.
    """

    def __init__(
        self,
        path: Path,
        beginning: bytes = b"",
        complete: Callable[[bytes], bool] = lambda _: True,
        fsync_every: int = 0,
        max_bytes: int | None = None,
        max_seconds: float | None = None,
        compress: bool = False,
        keep: int | None = None,
    ) -> None:
        self.path = path
        self._beginning = beginning
        self._complete = complete
        self._every = fsync_every
        self._most, self._longest = max_bytes, max_seconds
        self._compress, self._keep = compress, keep
        self._descriptor: int | None = None
        self._status = os.stat_result([0] * 10)  # of the file that was opened
        self._regular = True
        self._renames_from: float | None = None
        self.fresh = True
        """Whether the file has no line of this object: since it was opened, or because another program truncated it."""
        self._head = b""
        self._size = UNKNOWN
        self._began_ns: int | None = None
        self._unsynced = 0
        self._last = (0, b"")  # offset and bytes of the last write of this object

    def open(self) -> None:
        """Create the file, or check an existing one and repair its end.

        Raises:
            DocumentError: The file exists and has other contents.
            OSError: It cannot be opened.
        """
        with self._locked():
            self._tidy()

    def write(self, lines_for: Callable[[bytes], bytes | None], time_ns: int) -> None:
        """Append lines: all of them, or none.

        Args:
            lines_for: Function of the file's first line (empty for a new file) that returns the lines, or None if they need a new file.
            time_ns: Time of the lines, in nanoseconds since 1970.

        Raises:
            DocumentError: The file has other contents.
            OSError: The lines cannot be written; the file is unchanged.
        """
        with self._locked():
            if self._every:
                self.sync(self._every)  # report a sync that failed after the last write, before accepting new lines
            lines = self._fitting(lines_for, time_ns)
            assert self._descriptor is not None
            try:
                write_all(self._descriptor, lines)
            except OSError:
                if self._regular and self._is_ours():
                    with suppress(OSError):  # the next write repairs the end of the file
                        os.ftruncate(self._descriptor, self._size)
                raise
            self.fresh = False
            self._unsynced += 1
            self._last = self._size, lines
            self._size += len(lines)
            self._head = self._head or lines[: lines.index(b"\n") + 1]
            self._began_ns = time_ns if self._began_ns is None else self._began_ns
        # The lines are written. An error from here on would make the caller write them again, so the next write reports it.
        with suppress(OSError):
            if self._every:
                self.sync(self._every)

    def sync(self, least: int = 1) -> None:
        """Sync the file to the disk if at least ``least`` writes have not been synced.

        Raises:
            OSError: The disk has a fault or is full.
        """
        if self._regular and self._descriptor is not None and self._unsynced >= least and self._is_ours():
            os.fsync(self._descriptor)
            self._unsynced = 0

    def close(self) -> None:
        """Sync the file to the disk and close it.

        Raises:
            OSError: As for :meth:`sync`; the file is closed nevertheless.
        """
        try:
            self.sync()
        finally:
            self._drop()

    def _drop(self) -> None:
        descriptor, self._descriptor = self._descriptor if self._is_ours() else None, None
        self._head, self._size, self._began_ns, self._unsynced, self.fresh, self._last = b"", UNKNOWN, None, 0, True, (0, b"")
        if descriptor is not None:
            os.close(descriptor)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Open the file if necessary, hold its lock, and take notice of changes by other writers."""
        try:
            self._acquire()
            yield
        finally:
            if self._descriptor is not None and self._regular and sys.platform != "win32":
                with suppress(OSError):
                    fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def _is_ours(self) -> bool:
        return self._descriptor is not None and is_still(self._descriptor, self._status)

    def _acquire(self) -> None:
        while True:
            if self._descriptor is None or not self._is_ours():
                self._drop()  # closes the descriptor only if it is still this file
                self._descriptor = self._opened()
            if not self._regular:
                return
            try:
                if sys.platform != "win32":
                    fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            except OSError as error:
                if error.errno not in NO_LOCKS:
                    raise
            if same_file(self._descriptor, self.path):
                break
            with suppress(OSError):
                self.sync()
            self._drop()  # another writer closed the file, or somebody moved it: open the path again
        if os.fstat(self._descriptor).st_size != self._size:
            self._look(self._descriptor)

    def _opened(self) -> int:
        if not self.path.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, "the directory does not exist", str(self.path.parent))
        self._regular = True
        with suppress(FileNotFoundError):
            self._regular = stat.S_ISREG(self.path.stat().st_mode)
        flags = os.O_APPEND | os.O_CREAT | (os.O_RDWR | _FLAGS if self._regular else os.O_WRONLY)
        descriptor = os.open(self.path, flags, mode_of_new(self.path.parent))
        self._status = os.fstat(descriptor)
        try:
            check_owner(self._status, self.path)
        except PermissionError:
            os.close(descriptor)
            raise
        if self._regular and self._status.st_size == 0:
            sync_directory(self.path.parent)
        return descriptor

    def _look(self, descriptor: int) -> None:
        """Read changes by other writers, check the first line and repair an incomplete last line."""
        with open(descriptor, "rb", closefd=False) as file:
            file.seek(0)
            head, second = file.readline(LONGEST_HEAD), file.read(_BLOCK)
            if not head.startswith(self._beginning[: len(head)]):
                begin = self._beginning.decode()
                raise DocumentError(f"{self.path} exists and is another kind of file: it does not begin with {begin}")
            self._size = file.seek(0, os.SEEK_END)
        # The size alone does not show a truncation: another writer may have made the file longer again since.
        place, last = self._last
        self.fresh = self.fresh or _read_at(descriptor, len(last), place) != last
        end = _end_of_lines(descriptor, self._size)
        if end < self._size and self._complete(_read_at(descriptor, self._size - end, end)):
            write_all(descriptor, b"\n")
            self._size += 1
        elif end < self._size:
            os.ftruncate(descriptor, end)
            self._size = end
        self._head = head[: self._size] if head.endswith(b"\n") or not self._size else head + b"\n"
        self._began_ns = (first_time(head) or first_time(second) or os.fstat(descriptor).st_mtime_ns) if self._size else None

    def _fitting(self, lines_for: Callable[[bytes], bytes | None], time_ns: int) -> bytes:
        """Return the lines for the current file, or rotate it and return the lines for a new one."""
        while True:
            lines = lines_for(self._head)
            if lines is not None:
                full = self._most is not None and self._size + len(lines) > self._most
                old = self._longest is not None and self._began_ns is not None and time_ns - self._began_ns >= self._longest * 1e9
                if not (self._regular and self._size > 0 and (full or old)):
                    return lines
            if not self._regular:
                self._head = b""
            elif not self._rotated(needed=lines is None) and lines is not None:
                return lines

    def _rotated(self, needed: bool) -> bool:
        """Close the file and begin a new one. Return False if it cannot be renamed and may grow beyond its limits.

        Raises:
            OSError: A new file is needed and the old one cannot be renamed; the sync fails; or the new file cannot be created.
        """
        if not needed and self._renames_from is not None and time.monotonic() < self._renames_from:
            return False
        self.sync()
        began = self._began_ns or 0
        if sys.platform == "win32":  # Windows cannot rename an open file
            self._drop()
        try:
            self.path.replace(next_closed(self.path, began))
        except OSError as error:  # for example, the file is a mount point, or another user owns the directory
            if self._descriptor is None:
                self._acquire()
            why = f"it cannot be renamed: {error.strerror}"
            if needed:
                raise OSError(error.errno, why, str(self.path)) from error
            if self._renames_from is None:
                log.warning("%s grows beyond its limits: %s", self.path, why)
            self._renames_from = time.monotonic() + RENAMING_SECONDS
            return False
        sync_directory(self.path.parent)
        self._renames_from = None
        self._drop()
        self._acquire()
        self._tidy()
        return True

    def _tidy(self) -> None:
        """Remove surplus closed files and compress the others."""
        # Errors are ignored: the next call, when a file is opened or closed, tries again.
        names = closed_files(self.path) if self._regular else []
        surplus = 0 if self._keep is None else max(0, len(names) - self._keep)
        with suppress(OSError):
            for name in names[:surplus]:
                for file in (name, packed(name), _unfinished(name)):
                    file.unlink(missing_ok=True)
            for name in names[surplus:] if self._compress else []:
                if name.exists():
                    compress(name)


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """Write all bytes, in one call if possible.

    Raises:
        OSError: Some bytes cannot be written.
    """
    # A full disk first accepts a part without an error; the next call raises or finds room.
    written = os.write(descriptor, data)
    while written < len(data):
        written += os.write(descriptor, data[written:])


def _read_at(descriptor: int, size: int, begin: int) -> bytes:
    """Return the bytes at an offset."""
    # Moving the file's position is harmless: O_APPEND writes to the end regardless.
    os.lseek(descriptor, begin, os.SEEK_SET)
    return os.read(descriptor, size)


def _end_of_lines(descriptor: int, size: int) -> int:
    """Return the offset at which the last whole line ends."""
    while size > 0:
        begin = max(0, size - _BLOCK)
        found = _read_at(descriptor, size - begin, begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        size = begin
    return 0


def is_still(descriptor: int, status: os.stat_result) -> bool:
    """Return whether a descriptor still refers to the file that was opened with this status, and is writable."""
    # A program that becomes a daemon closes all descriptors, and the next file that it opens may get the same number. If another thread
    # does so between this check and the write, it goes unnoticed: no system call does both.
    try:
        if sys.platform != "win32" and fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            return False
        return os.path.samestat(os.fstat(descriptor), status)
    except OSError:
        return False


def same_file(descriptor: int, path: Path) -> bool:
    """Return whether a path still refers to an open file."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def sync_directory(path: Path) -> None:
    """Sync a directory to the disk, so that new and renamed files survive a power failure."""
    with suppress(OSError):  # not every file system can sync a directory, and Windows cannot open one
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def compress(closed: Path) -> None:
    """Replace a closed file with its compressed form. The caller holds the lock of the growing file.

    Raises:
        OSError: The disk is full, or a file cannot be read or written; the closed file is unchanged.
    """
    if not packed(closed).exists():  # an existing one is complete, left by a kill before the unlink below
        with closed.open("rb") as source:
            mode = os.fstat(source.fileno()).st_mode & 0o777
            begun = _unfinished(closed)
            begun.unlink(missing_ok=True)  # left by a kill, or placed there by another user
            new = open(begun, "xb", opener=lambda name, flags: os.open(name, flags, 0o600))  # noqa: SIM115 - closed by replacing()
            with replacing(packed(closed), new, mode) as target, gzip.GzipFile("", "wb", 6, target) as packer:
                shutil.copyfileobj(source, packer, 1 << 20)
        sync_directory(closed.parent)
    closed.unlink(missing_ok=True)


def _unfinished(closed: Path) -> Path:
    name = packed(closed)
    return name.with_name(f".{name.name}.tmp")


@contextmanager
def replacing(path: Path, file: IO[bytes], mode: int) -> Iterator[IO[bytes]]:
    """Yield a new file to fill, then sync it and rename it to ``path`` atomically. After any error, or Ctrl-C, it is removed."""
    placed = False
    try:
        with file:
            if sys.platform != "win32":
                os.fchmod(file.fileno(), mode)
            yield file
            file.flush()
            os.fsync(file.fileno())
        Path(file.name).replace(path)  # after closing it: Windows cannot rename an open file
        placed = True
    finally:
        if not placed:
            Path(file.name).unlink(missing_ok=True)


def replace_file(path: Path, content: bytes, mode: int = 0o644) -> os.stat_result:
    """Replace a file atomically: readers see the old contents or the new ones.

    Returns:
        The status of the new file, which identifies it later.

    Raises:
        OSError: It cannot be written; the old file is unchanged.
    """
    path = followed(path.parent) / path.name
    new = tempfile.NamedTemporaryFile(prefix=f".{path.name}.", dir=path.parent, delete=False)  # noqa: SIM115 - closed by replacing()
    with replacing(path, new, mode) as file:
        file.write(content)
        return os.fstat(file.fileno())


class FileExporter(ABC):
    """Base class of exporters that write lines to a file.

    Args:
        path: The file. Records are appended to an existing one.
        fsync_every: Number of records between two syncs to the disk. A power failure loses at most this many. 0 leaves syncing to the
            system. Flushing and closing also sync.
        max_bytes: Close the file and begin a new one before it grows beyond this size.
        max_seconds: Close the file and begin a new one before it spans more than this time.
        compress: Compress closed files.
        keep: Number of closed files to keep. The oldest are removed first.
        metrics: Metrics to export: see :class:`~accelmetrics.schemas.selection.MetricSelection`.

    Raises:
        InvalidOptionError: An option has an invalid value, or the file's directory does not exist.
    """

    name: str
    beginning: ClassVar[bytes]
    json_lines: ClassVar[bool]
    """Whether lines are JSON. A last line of JSON without a line break can be recognised as complete; a cut row cannot: 12 may be 12.5."""

    def __init__(
        self,
        path: str | Path,
        *,
        fsync_every: int = 60,
        max_bytes: int | None = None,
        max_seconds: float | None = None,
        compress: bool = False,
        keep: int | None = None,
        metrics: MetricChoice = STANDARD,
    ) -> None:
        for option, value, least in (("fsync_every", fsync_every, 0), ("keep", keep, 0), ("max_bytes", max_bytes, 1)):
            if value is not None and value < least:
                raise InvalidOptionError(f"{option} is {value!r}: it must be at least {least}")
        if max_seconds is not None and not max_seconds > 0:
            raise InvalidOptionError(f"max_seconds is {max_seconds!r}: it must be above 0")
        self.metrics = MetricSelection(metrics)
        self.path = growing_path(str(path))
        complete = is_json if self.json_lines else lambda _: False
        self._file = LineFile(self.path, self.beginning, complete, fsync_every, max_bytes, max_seconds, compress, keep)

    @abstractmethod
    def lines(self, record: Record, head: bytes, fresh: bool) -> bytes | None:
        """Return a record as whole lines.

        Args:
            record: The record.
            head: The first line of the file; empty for a new file.
            fresh: Whether the file has no line of this exporter since it was opened.

        Returns:
            The lines; None if they need a new file.
        """

    def wrote(self) -> None:  # noqa: B027 - most subclasses keep no state about written lines
        """Handle a successful write of the lines that were returned last."""

    def open(self) -> None:
        self._file.open()

    def export(self, record: Record) -> None:
        self._file.write(lambda head: self.lines(record, head, self._file.fresh), record.snapshot.time_ns)
        self.wrote()

    def flush(self) -> None:
        self._file.sync()

    def close(self) -> None:
        self._file.close()


def is_json(text: bytes) -> bool:
    """Return whether a text is valid JSON."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


class JsonlExporter(FileExporter):
    """Writes each record as a line of JSON, after a header line with rarely changing data: see :mod:`accelmetrics.schemas.lines`."""

    name = "jsonl"
    beginning: ClassVar[bytes] = b'{"schema_version"'
    json_lines = True
    _writer: LineWriter | None = None

    def open(self) -> None:
        self._writer = None  # each start and each process begins a new stream with a new header
        super().open()

    def lines(self, record: Record, head: bytes, fresh: bool) -> bytes:
        del head  # lines refer to this exporter's header, which need not be the file's first
        if self._writer is None:
            self._writer = LineWriter()
        return self._writer.lines(record, fresh).encode("ascii")

    def wrote(self) -> None:
        if self._writer is not None:
            self._writer.wrote()


def growing_path(path: str) -> Path:
    """Return the absolute path of a growing file, with symbolic links followed.

    Raises:
        InvalidOptionError: The path cannot be used for a file.
    """
    found = absolute(path)
    try:
        real = followed(found)  # closed files are in the directory of the real file
        if found.is_dir():
            raise InvalidOptionError(f"{path} is a directory: give the path of a file")
        if found.suffix == PACKED:
            raise InvalidOptionError(f"{path} ends in {PACKED}: closed files are compressed with compress=true")
        if found.exists() and not found.is_file():
            return found  # a device or a pipe: the target of the link /dev/stdout may have no path
        if not real.parent.is_dir():
            raise InvalidOptionError(f"{path}: the directory {real.parent} does not exist")
    except OSError as error:
        raise InvalidOptionError(f"{path} cannot be written: {error.strerror or error}") from error
    return real


# The real location and the owner of a file. In a directory that every user may write to, like /tmp, another user may have placed a link or
# a file under the name that is written to. Linux can refuse these (fs.protected_symlinks, fs.protected_regular). The functions below also
# refuse them where this is switched off, and when a link is resolved before the file is opened, where Linux does not protect.


def absolute(path: str | os.PathLike[str]) -> Path:
    """Return the absolute path, with ``~`` expanded. It stays valid if the program changes its working directory."""
    return Path(os.path.abspath(os.path.expanduser(path)))  # noqa: PTH100, PTH111 - pathlib's functions raise if there is no home


def followed(path: Path) -> Path:
    """Return the absolute path with symbolic links resolved.

    Raises:
        PermissionError: A link, or the file itself, belongs to another user, in a directory that all users may write to.
        OSError: The path cannot be resolved.
    """
    path = path.absolute()
    at, rest, links = Path(path.anchor), list(path.parts[:0:-1]), 0
    while rest:
        name = rest.pop()
        step = at.parent if name == ".." else at / name
        if not step.is_symlink():
            at = step
            continue
        check_owner(step.lstat(), step)
        links += 1
        if links > LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        target = step.readlink()
        at = Path(target.anchor) if target.anchor else at
        rest += target.parts[: 0 if target.anchor else None : -1]
    if at.exists():
        check_owner(at.stat(), at)
    return at


def folder_for_files(path: str | os.PathLike[str]) -> Path:
    """Return the resolved path of a directory for new files. It need not exist yet.

    Raises:
        InvalidOptionError: The path cannot be used for a directory.
    """
    try:
        found = followed(absolute(path))
        if found.exists() and not found.is_dir():
            raise InvalidOptionError(f"{path} is not a directory")
    except OSError as error:
        raise InvalidOptionError(f"{path} cannot be written to: {error.strerror or error}") from error
    return found


def make_folder(path: Path) -> None:
    """Create a directory and its parents if missing. In a directory that is open to all, it is private to its owner.

    Raises:
        PermissionError: Another user created it first.
        OSError: It cannot be created.
    """
    if not path.is_dir():
        make_folder(path.parent)
        path.mkdir(0o700 if is_open_to_all(path.parent.stat()) else 0o777, exist_ok=True)
    followed(path)


def check_owner(status: os.stat_result, path: Path) -> None:
    """Refuse a file or link of another user in a directory that all users may write to. The directory's owner is trusted.

    Raises:
        PermissionError: The file or link is refused.
    """
    folder = path.parent.stat()
    if sys.platform != "win32" and is_open_to_all(folder) and status.st_uid not in (os.geteuid(), folder.st_uid):
        raise PermissionError(errno.EACCES, "it belongs to another user, in a directory that all users can write to", str(path))


def is_open_to_all(folder: os.stat_result) -> bool:
    """Return whether all users may create files in a directory but remove only their own, as in ``/tmp``."""
    return folder.st_mode & OPEN_TO_ALL == OPEN_TO_ALL


def mode_of_new(folder: Path) -> int:
    """Return the mode of a new file, before the umask is applied. In a directory that is open to all, the file is private to its owner."""
    return 0o600 if is_open_to_all(folder.stat()) else 0o666
