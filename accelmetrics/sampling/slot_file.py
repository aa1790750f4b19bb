"""Files in which one process writes records and others read them when they look. Nobody waits for anybody.

A file has parts, and each part is a ring of slots of one size. Records of a part are numbered from 1, and a record's number says in which
slot it is. The first page has the number of each part's newest record. Every record has a checksum, so a reader gets it as it was
written, or not at all.

Files are read and written by ``pread`` and ``pwrite``. A map would end its process by SIGBUS when somebody truncates the file.
Every number in a file is bounded before it is used: a process reads files of another one.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import accumulate, chain
from pathlib import Path
from zlib import crc32

PAGE = 4096
LARGEST_SLOT = 16 << 20
"""Bytes."""
MOST_PARTS = 8
VERSION = 2
_MAGIC = b"accelrow"
_HEAD = struct.Struct(f"<8sQ{2 * MOST_PARTS}I")  # magic, version; of each part, bytes of a slot and how many slots
_NEWEST = struct.Struct(f"<{MOST_PARTS}Q")  # of each part, the number of the newest record
_AT_NEWEST = 128
_NUMBER = struct.Struct("<Q")
_RECORD = struct.Struct("<IIQ")  # checksum of the rest, bytes of content, number
HEAD = _RECORD.size
"""Bytes of a slot before the content of its record."""

Sizes = tuple[tuple[int, int], ...]
"""Of each part, bytes of a slot, and how many slots there are."""


class NotSharedError(Exception):
    """Why a reading is not shared."""


def is_own(found: os.stat_result) -> bool:
    """Return whether a file belongs to this process's user."""
    return found.st_uid == os.geteuid()


class SlotFile:
    """A file of slots, open.

    Args:
        path: Its name.
        trusted: Whether a file of this owner and mode is read.
        flags: How it is opened.
        made: Of a file that is made now, what ``sizes`` are; it gets all its space, so that writing to it needs no more.

    Attributes:
        file: The descriptor.
        sizes: Of each part, bytes of a slot, and how many slots there are.

    Raises:
        OSError: It cannot be opened.
        NotSharedError: It is no such file, or not one that is trusted.
    """

    def __init__(self, path: Path, trusted: Callable[[os.stat_result], bool] = is_own, flags: int = os.O_RDONLY, made: Sizes = ()) -> None:
        self.file = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
        with ExitStack() as undo:
            undo.callback(os.close, self.file)
            if made:
                # macOS has no such call: there a full disk is met later.
                allocate = getattr(os, "posix_fallocate", lambda file, _, size: os.ftruncate(file, size))
                allocate(self.file, 0, PAGE + sum(slot * slots for slot, slots in made))
                unused = [0] * (2 * (MOST_PARTS - len(made)))
                os.pwrite(self.file, _HEAD.pack(_MAGIC, VERSION, *chain.from_iterable(made), *unused), 0)
            self._found = found = os.fstat(self.file)
            if not (stat.S_ISREG(found.st_mode) and trusted(found)):
                raise NotSharedError(f"{path} is a file of user {found.st_uid}, or one that others may write")
            magic, version, *numbers = _HEAD.unpack(os.pread(self.file, _HEAD.size, 0).ljust(_HEAD.size))
            self.sizes: Sizes = tuple([size for size in zip(numbers[::2], numbers[1::2], strict=True) if all(size)])
            self._begins = tuple(accumulate((slot * slots for slot, slots in self.sizes), initial=PAGE))
            if (magic, version) != (_MAGIC, VERSION) or any(not HEAD <= slot <= LARGEST_SLOT for slot, _ in self.sizes):
                raise NotSharedError(f"{path} is no file of shared readings, or one of another release")
            if self._begins[-1] != found.st_size:
                raise NotSharedError(f"{path} was truncated")
            undo.pop_all()

    @property
    def stands(self) -> bool:
        """Whether the descriptor still is that of the file, and the file has a name: it was not removed, and no other has taken its place.

        The program may close descriptors that it does not know, and get their numbers for files of its own.
        """
        try:
            found = os.fstat(self.file)
        except OSError:
            return False
        return found.st_nlink > 0 and os.path.samestat(found, self._found)

    def close(self) -> None:
        """Close it, unless the descriptor belongs to somebody else by now."""
        try:
            if os.path.samestat(os.fstat(self.file), self._found):
                os.close(self.file)
        except OSError:
            return

    def newest(self) -> tuple[int, ...]:
        """Return the number of each part's newest record; 0 where there is none.

        Raises:
            NotSharedError: The file was truncated.
        """
        found = os.pread(self.file, _NEWEST.size, _AT_NEWEST)
        if len(found) < _NEWEST.size or max(numbers := _NEWEST.unpack(found)) >> 62:
            raise NotSharedError("the file of shared readings was truncated")
        return numbers

    def write(self, part: int, number: int, content: bytes) -> None:
        """Write a record that fits into its slot."""
        slot, slots = self.sizes[part]
        checksum = crc32(content, crc32(_RECORD.pack(0, len(content), number)[4:]))
        os.pwrite(self.file, _RECORD.pack(checksum, len(content), number) + content, self._begins[part] + number % slots * slot)
        os.pwrite(self.file, _NUMBER.pack(number), _AT_NEWEST + _NUMBER.size * part)

    def read(self, part: int, number: int) -> bytes | None:
        """Return the content of a record; None where it is not there any more, or not yet."""
        slot, slots = self.sizes[part]
        found = os.pread(self.file, slot, self._begins[part] + number % slots * slot)
        if len(found) < HEAD:
            return None
        checksum, length, stands = _RECORD.unpack_from(found)
        whole = stands == number and HEAD + length <= len(found) and crc32(memoryview(found)[4 : HEAD + length]) == checksum
        return found[HEAD : HEAD + length] if whole else None

    def after(self, part: int, number: int) -> Iterator[tuple[int, bytes | None]]:
        """Yield the records with higher numbers than this one, in their order, without those that were overwritten.

        Where there are no such numbers, another file has taken the place of the one of which this number was.
        """
        newest = self.newest()[part]
        for one in range(max(number + 1 if number <= newest else 1, newest + 1 - self.sizes[part][1], 1), newest + 1):
            yield one, self.read(part, one)


def create(path: Path, sizes: Sizes, fill: Callable[[SlotFile], object], group: int | None = None) -> SlotFile:
    """Make a file, and put it in the place of any other of its name.

    Args:
        path: Its name.
        sizes: Of each part, bytes of a slot, and how many slots there are.
        fill: Called before the file has its name.
        group: The group that may read it; None for the owner alone.

    Raises:
        NotSharedError: There is no space, or no permission.
    """
    made = path.with_name(f"{path.name}.{os.urandom(8).hex()}")
    try:
        with ExitStack() as undo:
            undo.callback(made.unlink, missing_ok=True)
            file = SlotFile(made, flags=os.O_RDWR | os.O_CREAT | os.O_EXCL, made=sizes)
            undo.callback(file.close)
            if group is not None:
                os.fchown(file.file, -1, group)
                os.fchmod(file.file, 0o640)
            fill(file)
            made.replace(path)
            undo.pop_all()
    except OSError as error:
        raise NotSharedError(f"{path} cannot be made: {error.strerror or error}") from error
    return file
