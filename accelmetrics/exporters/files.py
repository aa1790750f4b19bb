"""Files that are whole at every moment: one that grows by lines, one that is replaced at once; and the exporters of a record a line.

Every line goes to the end of a growing file in one ``write``, so that a kill leaves at most the last line cut, and what several
processes write to one file does not mingle. Around it the file is locked (``flock``, which a kill gives up): under the lock a
writer sees that the file is still the one that bears the name, removes what a killed writer left of a line, takes back what did
not fit on the disk, and closes the file when it is full or old. Where a file system has no locks, and on Windows, this holds for one
writer.

A closed file gets a name with the time of its first record. It is compressed under another name, which becomes its own
in one step when everything has reached the disk; only then the uncompressed one goes. So a kill between any two steps loses no
record and doubles none. What was left undone is done when a file is opened or closed next, here or in another process.
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
"""Bytes of a first line that are looked at."""
RENAMING_SECONDS = 60.0
"""How long a file that could not be renamed grows before that is tried again."""
NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EINVAL})
"""What file systems answer that have no locks: then there is taken to be one writer."""
LINKS = 40
"""Links that the system follows."""
OPEN_TO_ALL = stat.S_ISVTX | stat.S_IWOTH
UNKNOWN = -1
_FLAGS: int = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)  # Windows has the second alone
_BLOCK = 1 << 16


class LineFile:
    """A file that grows by whole lines. Devices and pipes are written to as they are: they have no end to mend.

    Args:
        path: The file.
        beginning: What the first line of such a file begins with: a file that begins otherwise is not touched.
        complete: Whether a last line without an end lacks nothing else; such a line is ended, another one removed.
        fsync_every: After how many writes the file is made to reach the disk; 0 leaves it to the system.
        max_bytes: It does not grow beyond this, unless by its only record; None for no limit.
        max_seconds: Its last record is less than this after its first; None for no limit.
        compress: Compress closed files.
        keep: How many closed files stay; None for all.
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
        """Whether nothing was written here since the file was opened, or was cut short by something else."""
        self._head = b""
        self._size = UNKNOWN
        self._began_ns: int | None = None
        self._unsynced = 0
        self._last = (0, b"")  # the place of what was written here last, and it

    def open(self) -> None:
        """Make the file, or see what is in it.

        Raises:
            DocumentError: It is there and holds something else.
            OSError: It cannot be opened.
        """
        with self._locked():
            self._tidy()

    def write(self, lines_for: Callable[[bytes], bytes | None], time_ns: int) -> None:
        """Add lines, or nothing.

        Args:
            lines_for: Gives the lines for a file with this first line, which is empty for a new one; None where they need a new one.
            time_ns: Their time, in nanoseconds since 1970.

        Raises:
            DocumentError: The file holds something else.
            OSError: They cannot be written; the file is as it was.
        """
        with self._locked():
            if self._every:
                self.sync(self._every)  # what failed last time is told before anything else is taken
            lines = self._fitting(lines_for, time_ns)
            assert self._descriptor is not None
            try:
                write_all(self._descriptor, lines)
            except OSError:
                if self._regular and self._is_ours():
                    with suppress(OSError):  # then it is mended before the next line
                        os.ftruncate(self._descriptor, self._size)
                raise
            self.fresh = False
            self._unsynced += 1
            self._last = self._size, lines
            self._size += len(lines)
            self._head = self._head or lines[: lines.index(b"\n") + 1]
            self._began_ns = time_ns if self._began_ns is None else self._began_ns
        # From here on the lines are written, and an error would have them written again.
        with suppress(OSError):
            if self._every:
                self.sync(self._every)

    def sync(self, least: int = 1) -> None:
        """Have everything reach the disk, if at least so many writes have not.

        Raises:
            OSError: The disk has a fault, or is full after all.
        """
        if self._regular and self._descriptor is not None and self._unsynced >= least and self._is_ours():
            os.fsync(self._descriptor)
            self._unsynced = 0

    def close(self) -> None:
        """Have everything reach the disk, and close the file.

        Raises:
            OSError: As for :meth:`sync`; the file is closed.
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
        """Hold the file's lock, opened if need be, with what other writers did to it known."""
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
                self._drop()  # without closing what is somebody else's
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
            self._drop()  # it was closed by another writer, or moved away
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
        """Read what others wrote: to the file before this opened it, or beside this; mend its end."""
        with open(descriptor, "rb", closefd=False) as file:
            file.seek(0)
            head, second = file.readline(LONGEST_HEAD), file.read(_BLOCK)
            if not head.startswith(self._beginning[: len(head)]):
                begin = self._beginning.decode()
                raise DocumentError(f"{self.path} is there already, and is something else: it does not begin with {begin}")
            self._size = file.seek(0, os.SEEK_END)
        place, last = self._last  # another writer may have made a file that was cut short longer than it was
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
        """Return the lines for the file as it is now, or for a new one."""
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
        """Close the file and begin a new one. False where it cannot be renamed: then it grows beyond its limits, which is logged once.

        Raises:
            OSError: It cannot be renamed, and a new one is needed; or it does not reach the disk, or a new one cannot be made.
        """
        if not needed and self._renames_from is not None and time.monotonic() < self._renames_from:
            return False
        self.sync()
        began = self._began_ns or 0
        if sys.platform == "win32":  # which renames no open file
            self._drop()
        try:
            self.path.replace(next_closed(self.path, began))
        except OSError as error:  # it is mounted by itself, or the folder's owner is another user
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
        """Remove surplus closed files and compress the others. What fails now is done at the next start or closing."""
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
    """Write everything, in one call unless only a part fits: the next call then says why, or finds room.

    Raises:
        OSError: Not all of it can be written.
    """
    written = os.write(descriptor, data)
    while written < len(data):
        written += os.write(descriptor, data[written:])


def _read_at(descriptor: int, size: int, begin: int) -> bytes:
    """Return the bytes at a place. Lines are appended, so that the file's position serves reading alone."""
    os.lseek(descriptor, begin, os.SEEK_SET)
    return os.read(descriptor, size)


def _end_of_lines(descriptor: int, size: int) -> int:
    """Return where the last whole line ends."""
    while size > 0:
        begin = max(0, size - _BLOCK)
        found = _read_at(descriptor, size - begin, begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        size = begin
    return 0


def is_still(descriptor: int, status: os.stat_result) -> bool:
    """Return whether a descriptor still is the file that was opened with this status, and can be written to.

    Programs that become daemons close all descriptors, and the next file that they open gets the same number. A program that does so on
    another thread between this check and the write is not noticed: no system call does both.
    """
    try:
        if sys.platform != "win32" and fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            return False
        return os.path.samestat(os.fstat(descriptor), status)
    except OSError:
        return False


def same_file(descriptor: int, path: Path) -> bool:
    """Return whether an open file is still the one that bears the name."""
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


def compress(closed: Path) -> None:
    """Replace a closed file by its compressed form, under the lock of the growing one.

    Raises:
        OSError: There is no room, or it cannot be read or written; the closed file is as it was.
    """
    if not packed(closed).exists():  # else made before a kill: it appears whole or not at all
        with closed.open("rb") as source:
            mode = os.fstat(source.fileno()).st_mode & 0o777
            begun = _unfinished(closed)
            begun.unlink(missing_ok=True)  # one that a kill left, or that another user put there
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
    """Put a new file, which the block fills, in the place of another at once, on the disk too; where that fails it is removed.

    So it is where Ctrl-C interrupts it.
    """
    placed = False
    try:
        with file:
            if sys.platform != "win32":
                os.fchmod(file.fileno(), mode)
            yield file
            file.flush()
            os.fsync(file.fileno())
        Path(file.name).replace(path)  # closed: Windows renames no open file
        placed = True
    finally:
        if not placed:
            Path(file.name).unlink(missing_ok=True)


def replace_file(path: Path, content: bytes, mode: int = 0o644) -> os.stat_result:
    """Put a file in the place of another at once: readers see the old one or the new one.

    Returns:
        The new file's status, by which it is known again.

    Raises:
        OSError: It cannot be written; what was there stays.
    """
    path = followed(path.parent) / path.name
    new = tempfile.NamedTemporaryFile(prefix=f".{path.name}.", dir=path.parent, delete=False)  # noqa: SIM115 - closed by replacing()
    with replacing(path, new, mode) as file:
        file.write(content)
        return os.fstat(file.fileno())


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
        metrics: Which metrics the records that it is given have: see :class:`~accelmetrics.schemas.selection.MetricSelection`.

    Raises:
        InvalidOptionError: An option makes no sense, or the file's directory does not exist.
    """

    name: str
    beginning: ClassVar[bytes]
    json_lines: ClassVar[bool]
    """Whether lines are JSON: then a last line without an end may lack nothing else. What is left of a row's 12.5 may be 12."""

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
        for option, value, least in (("fsync_every", fsync_every, 0), ("keep", keep, 0)):
            if value is not None and value < least:
                raise InvalidOptionError(f"{option} is {value!r}: it must be at least 0")
        for option, limit in (("max_bytes", max_bytes), ("max_seconds", max_seconds)):
            if limit is not None and not limit > 0:
                raise InvalidOptionError(f"{option} is {limit!r}: it must be more than 0")
        self.metrics = MetricSelection(metrics)
        self.path = growing_path(str(path))
        complete = is_json if self.json_lines else lambda _: False
        self._file = LineFile(self.path, self.beginning, complete, fsync_every, max_bytes, max_seconds, compress, keep)

    @abstractmethod
    def lines(self, record: Record, head: bytes, fresh: bool) -> bytes | None:
        """Return a record as whole lines.

        Args:
            record: The record.
            head: The first line of the file, which is empty for a new one.
            fresh: Whether the file has nothing of this exporter yet, as it is open now.

        Returns:
            The lines; None where they need a new file.
        """

    def wrote(self) -> None:  # noqa: B027 - most have nothing to note
        """Note that the lines that were asked for last are in the file."""

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
    """Return whether a text is JSON as it stands."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


class JsonlExporter(FileExporter):
    """Writes each record as a line, below a header with what seldom changes: see :mod:`accelmetrics.schemas.lines`."""

    name = "jsonl"
    beginning: ClassVar[bytes] = b'{"schema_version"'
    json_lines = True
    _writer: LineWriter | None = None

    def open(self) -> None:
        self._writer = None  # each start, and each process, has a stream of its own
        super().open()

    def lines(self, record: Record, head: bytes, fresh: bool) -> bytes:
        del head  # whose header that is, or which of them, does not matter
        if self._writer is None:
            self._writer = LineWriter()
        return self._writer.lines(record, fresh).encode("ascii")

    def wrote(self) -> None:
        if self._writer is not None:
            self._writer.wrote()


def growing_path(path: str) -> Path:
    """Return where a growing file is; a link is followed, so that closed files lie beside it.

    Raises:
        InvalidOptionError: There can be no such file.
    """
    found = absolute(path)
    try:
        real = followed(found)
        if found.is_dir():
            raise InvalidOptionError(f"{path} is a directory: name a file in it")
        if found.suffix == PACKED:
            raise InvalidOptionError(f"{path} ends in {PACKED}: closed files are compressed with compress=true")
        if found.exists() and not found.is_file():
            return found  # a device, a pipe: what /dev/stdout is a link to has no name
        if not real.parent.is_dir():
            raise InvalidOptionError(f"{path}: the directory {real.parent} does not exist")
    except OSError as error:
        raise InvalidOptionError(f"{path} cannot be written: {error.strerror or error}") from error
    return real


# Where a file that is written really is, and whom it belongs to. In a folder that every user may write to, such as ``/tmp``, another user
# may have put a link or a file under the name that is written to. Linux can refuse these (``fs.protected_symlinks``,
# ``fs.protected_regular``); here they are refused wherever that is switched off too, and where a link is looked up before it is opened,
# which the system's own protection does not see.


def absolute(path: str | os.PathLike[str]) -> Path:
    """Return where it is, whatever directory the program goes to later; ``~`` is the user's home."""
    return Path(os.path.abspath(os.path.expanduser(path)))  # noqa: PTH100, PTH111 - those of pathlib raise where there is no home


def followed(path: Path) -> Path:
    """Return where a path leads, as an absolute one.

    Raises:
        PermissionError: On the way is another user's link, or at its end another user's file, in a folder that all may write to.
        OSError: It cannot be looked up.
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
    """Return where a folder is that new files are made in, or will be.

    Raises:
        InvalidOptionError: There can be no such folder.
    """
    try:
        found = followed(absolute(path))
        if found.exists() and not found.is_dir():
            raise InvalidOptionError(f"{path} is no directory: the files are made in one")
    except OSError as error:
        raise InvalidOptionError(f"{path} cannot be written to: {error.strerror or error}") from error
    return found


def make_folder(path: Path) -> None:
    """Make a folder where it is missing: for its owner alone in a folder that is open to all.

    Raises:
        PermissionError: Another user was quicker there.
        OSError: It cannot be made.
    """
    if not path.is_dir():
        make_folder(path.parent)
        path.mkdir(0o700 if is_open_to_all(path.parent.stat()) else 0o777, exist_ok=True)
    followed(path)


def check_owner(status: os.stat_result, path: Path) -> None:
    """Refuse what another user has put into a folder that all may write to; the folder's owner may.

    Raises:
        PermissionError: It is such a link or file.
    """
    folder = path.parent.stat()
    if sys.platform != "win32" and is_open_to_all(folder) and status.st_uid not in (os.geteuid(), folder.st_uid):
        raise PermissionError(errno.EACCES, "it is another user's, in a folder that all users may write to", str(path))


def is_open_to_all(folder: os.stat_result) -> bool:
    """Return whether a folder is such as ``/tmp``: all users may put files there, and remove only their own."""
    return folder.st_mode & OPEN_TO_ALL == OPEN_TO_ALL


def mode_of_new(folder: Path) -> int:
    """Return the mode of a new file, from which the user's mask is still taken: for its owner alone in a folder that is open to all."""
    return 0o600 if is_open_to_all(folder.stat()) else 0o666
