"""Small system files that are read many times a second.

A descriptor that stays open and ``pread`` cost a third of open, read and close. A descriptor of ``/proc/<pid>/…`` also stays
with its process: once that has ended it answers an error, even where the number has been given to another process.
"""

from __future__ import annotations

import errno
import os
import weakref

from accelmetrics.backends.kit.sysroot import sysroot
from accelmetrics.schemas.reasons import Reason, Unavailable

_FIRST_SIZE = 4096


class KeptFile:
    """A file that is read again and again through one descriptor.

    Args:
        path: The absolute system path, without the root in front of it.
        pieces: Whether the kernel hands the file out a page at a time (lists of devices), so that only an empty read is
            its end. Most files of ``/proc`` and ``/sys`` come whole, and the second call is saved.
    """

    __slots__ = ("__weakref__", "_close", "_fd", "_pieces", "_size", "path")

    def __init__(self, path: str, pieces: bool = False) -> None:
        self.path = path
        self._pieces = pieces
        self._size = _FIRST_SIZE
        self._fd = -1
        self._close: weakref.finalize[[int], KeptFile] | None = None

    def read(self) -> bytes:
        """The file's content now.

        Raises:
            OSError: It is not there, or cannot be read. The descriptor is given back, so that the next call opens anew.
        """
        if self._fd < 0:
            self._open()
        try:
            return self._content()
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Give the descriptor back. A later ``read`` opens the file again."""
        self._fd = -1
        if self._close is not None:
            self._close()
            self._close = None

    def _open(self) -> None:
        fd = os.open(sysroot() + self.path, os.O_RDONLY)
        self._fd = fd
        # Readers have no end of life of their own: the descriptor goes when the last of them does.
        self._close = weakref.finalize(self, os.close, fd)

    def _content(self) -> bytes:
        data = os.pread(self._fd, self._size, 0)
        if len(data) < self._size and not self._pieces:
            return data
        parts = [data]
        length = len(data)
        while parts[-1]:
            parts.append(os.pread(self._fd, self._size, length))
            length += len(parts[-1])
        self._size = max(self._size, 2 * length)
        return b"".join(parts)


class Files:
    """The open files of one driver: shared by its readers, closed with it."""

    __slots__ = ("_files",)

    def __init__(self) -> None:
        self._files: weakref.WeakValueDictionary[str, KeptFile] = weakref.WeakValueDictionary()

    def keep(self, path: str, pieces: bool = False) -> KeptFile:
        """The file of this path, the same object for everyone who asks while somebody holds it."""
        file = self._files.get(path)
        if file is None:
            file = self._files[path] = KeptFile(path, pieces)
        return file

    def close(self) -> None:
        """Give all descriptors back."""
        for file in list(self._files.values()):
            file.close()


def read_once(path: str) -> bytes:
    """The content of a file that is not worth a descriptor. Raises ``OSError`` as ``KeptFile.read`` does."""
    fd = os.open(sysroot() + path, os.O_RDONLY)
    try:
        parts = [os.read(fd, _FIRST_SIZE)]
        while parts[-1]:
            parts.append(os.read(fd, _FIRST_SIZE))
    finally:
        os.close(fd)
    return b"".join(parts)


def reason_of(error: OSError | ValueError, what: str) -> Unavailable:
    """Why a value is missing, from what reading or parsing its file threw.

    Args:
        error: What was thrown.
        what: The file, or what was asked for, in words.
    """
    if isinstance(error, PermissionError):
        return Unavailable(Reason.NO_PERMISSION, f"{what} may not be read by this user")
    if isinstance(error, OSError):
        if error.errno in (errno.ENOENT, errno.ENODEV, errno.ENOTDIR, errno.EOPNOTSUPP):
            return Unavailable(Reason.NOT_SUPPORTED, f"{what} is not there")
        return Unavailable(Reason.DRIVER_ERROR, f"{what}: {error.strerror or error}")
    return Unavailable(Reason.PARSE_ERROR, f"{what}: {error}")
