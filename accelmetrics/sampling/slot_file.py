"""Files that one process writes records to and others read from, without waiting for each other.

A file has parts, and each part is a ring of slots of equal size. Records of a part are numbered from 1, and a record's number
determines its slot. The first page contains the number of each part's newest record. Every record has a checksum, so a reader gets it
exactly as it was written, or not at all.

Files are accessed by ``pread`` and ``pwrite``. A memory map would end the process by SIGBUS when somebody truncates the file. Every
number in a file is bounded before it is used, because the file is written by another process.
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
_HEAD = struct.Struct(f"<8sQ{2 * MOST_PARTS}I")  # magic, version; for each part, bytes of a slot and number of slots
_NEWEST = struct.Struct(f"<{MOST_PARTS}Q")  # for each part, the number of its newest record
_AT_NEWEST = 128
_NUMBER = struct.Struct("<Q")
_RECORD = struct.Struct("<IIQ")  # checksum of everything after it, bytes of content, record number
HEAD = _RECORD.size
"""Bytes of a slot before the content of its record."""

Sizes = tuple[tuple[int, int], ...]
"""For each part, the bytes of a slot and the number of slots."""


class NotSharedError(Exception):
    """A reading cannot be shared. The message gives the reason."""


def is_own(found: os.stat_result) -> bool:
    """Return whether a file belongs to this process's user."""
    return found.st_uid == os.geteuid()


class SlotFile:
    """An open file of slots.

    Args:
        path: Its path.
        trusted: Decides by the file's status (owner, mode) whether it may be read.
        flags: The flags to open it with.
        made: The sizes of a file to create. It gets its full size at once, so later writes need no more disk space.

    Attributes:
        file: The descriptor.
        sizes: For each part, the bytes of a slot and the number of slots.

    Raises:
        OSError: It cannot be opened.
        NotSharedError: It is not a file of slots, or not a trusted one.
    """

    def __init__(self, path: Path, trusted: Callable[[os.stat_result], bool] = is_own, flags: int = os.O_RDONLY, made: Sizes = ()) -> None:
        # O_NONBLOCK: opening a FIFO in the file's place must not block.
        self.file = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
        with ExitStack() as undo:
            undo.callback(os.close, self.file)
            if made:
                # macOS has no posix_fallocate: there a full disk only shows when a record is written.
                allocate = getattr(os, "posix_fallocate", lambda file, _, size: os.ftruncate(file, size))
                # All space at once: on a full tmpfs the creation fails, not a later write.
                allocate(self.file, 0, PAGE + sum(slot * slots for slot, slots in made))
                unused = [0] * (2 * (MOST_PARTS - len(made)))
                os.pwrite(self.file, _HEAD.pack(_MAGIC, VERSION, *chain.from_iterable(made), *unused), 0)
            self._found = found = os.fstat(self.file)
            if not (stat.S_ISREG(found.st_mode) and trusted(found)):
                raise NotSharedError(f"{path} is not trusted: it is a file of user {found.st_uid}, writable by others, or no regular file")
            magic, version, *numbers = _HEAD.unpack(os.pread(self.file, _HEAD.size, 0).ljust(_HEAD.size))
            self.sizes: Sizes = tuple([size for size in zip(numbers[::2], numbers[1::2], strict=True) if all(size)])
            self._begins = tuple(accumulate((slot * slots for slot, slots in self.sizes), initial=PAGE))
            if (magic, version) != (_MAGIC, VERSION) or any(not HEAD <= slot <= LARGEST_SLOT for slot, _ in self.sizes):
                raise NotSharedError(f"{path} is not a file of shared readings of this release")
            if self._begins[-1] != found.st_size:
                raise NotSharedError(f"{path} was truncated")
            undo.pop_all()

    @property
    def is_current(self) -> bool:
        """Whether the descriptor still refers to this file, and the file still has a name.

        A file loses its name when it is removed or replaced. The descriptor may refer to another file if the program closes
        descriptors that it does not know, and gets their numbers for other files.
        """
        try:
            found = os.fstat(self.file)
        except OSError:
            return False
        return found.st_nlink > 0 and os.path.samestat(found, self._found)

    def close(self) -> None:
        """Close the file, unless the program has closed the descriptor and reused its number."""
        try:
            if os.path.samestat(os.fstat(self.file), self._found):
                os.close(self.file)
        except OSError:
            return

    def newest(self) -> tuple[int, ...]:
        """Return the number of each part's newest record; 0 if there is none.

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
        # A checksum per record is necessary: without locks, one read in about 6,000 returns a half-written record.
        checksum = crc32(content, crc32(_RECORD.pack(0, len(content), number)[4:]))
        os.pwrite(self.file, _RECORD.pack(checksum, len(content), number) + content, self._begins[part] + number % slots * slot)
        # After the record: its number may only be visible once the record is complete.
        os.pwrite(self.file, _NUMBER.pack(number), _AT_NEWEST + _NUMBER.size * part)

    def read(self, part: int, number: int) -> bytes | None:
        """Return the content of a record; None if it was overwritten, or is not written yet."""
        slot, slots = self.sizes[part]
        found = os.pread(self.file, slot, self._begins[part] + number % slots * slot)
        if len(found) < HEAD:
            return None
        checksum, length, stored = _RECORD.unpack_from(found)
        # Number and length are checked too, since an empty slot has the valid checksum of nothing.
        whole = stored == number and HEAD + length <= len(found) and crc32(memoryview(found)[4 : HEAD + length]) == checksum
        return found[HEAD : HEAD + length] if whole else None

    def after(self, part: int, number: int) -> Iterator[tuple[int, bytes | None]]:
        """Yield number and content of the records with higher numbers, in their order, without overwritten ones.

        If all numbers are lower, another file has replaced the one that this number came from; then all its records are yielded.
        """
        newest = self.newest()[part]
        for one in range(max(number + 1 if number <= newest else 1, newest + 1 - self.sizes[part][1], 1), newest + 1):
            yield one, self.read(part, one)


def create(path: Path, sizes: Sizes, fill: Callable[[SlotFile], object], group: int | None = None) -> SlotFile:
    """Create a file and put it at a path, in place of any other file there.

    Args:
        path: Its path.
        sizes: For each part, the bytes of a slot and the number of slots.
        fill: Called with the file before it appears at the path.
        group: The group that may read it; None for the owner only.

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
        raise NotSharedError(f"{path} cannot be created: {error.strerror or error}") from error
    return file
