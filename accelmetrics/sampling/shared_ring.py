"""Readings in a file: one process writes rows, the other processes read them when asked.

A row holds the numbers of one reading. Data that changes at another pace (the header, the lists of processes, the findings) is in
records of other parts of the file; a row refers to them by number and checksum. The first part says which process writes.
"""

from __future__ import annotations

import json
import os
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from math import isfinite, isnan, nan
from pathlib import Path
from typing import Any, TypeVar
from zlib import crc32

from accelmetrics.backends.guard import guarded
from accelmetrics.sampling.slot_file import HEAD, NotSharedError, Sizes, SlotFile, create
from accelmetrics.schemas.errors import Reason, Unavailable
from accelmetrics.schemas.identity import BackendStatus, DeviceIdentity, DeviceProcess, DeviceSlot
from accelmetrics.schemas.named_tuple import NamedTuple
from accelmetrics.schemas.reading import Header, header as header_of
from accelmetrics.schemas.record import NO_FINDINGS, CannotTell, Finding, Findings
from accelmetrics.schemas.snapshot import Snapshot, rfc3339

T = TypeVar("T")
SLOTS = 512
"""Rows that a ring holds."""
WRITER, ROWS, HEADERS, PROCESSES, FINDINGS = range(5)
"""The parts of the file."""
FIRST_SIZES: Sizes = ((512, 4), (512, SLOTS), (1024, 32), (512, 16), (1 << 14, 16))
"""Slots of a new file. The first reading decides how large they must become. The slots for findings are large from the start, since
findings come later and enlarging the file then copies all rows."""
ROOM = 1.25
"""Slots are enlarged to this multiple of the record that did not fit, because sources that open late add keys."""
# A header of 1,000 keys is about 40 KB. Without this, a key that comes and goes would write one at every row.
KEPT = 64
"""Number of records that the writer reuses, and that readers cache."""
NO_PROCESSES: Mapping[str, tuple[DeviceProcess, ...]] = {}
LATE, LATE_INTERVALS = 1.0, 3
"""A row is late after this many seconds plus this many intervals."""
_ROW = struct.Struct("<qddQIQIQIHI")
"""Time in nanoseconds since 1970; when the reading began and was completed; number and checksum of the records of the header,
processes and findings; number of sources and of numbers."""
_SOURCE = struct.Struct("<qdd")  # sequence, age and duration; NaN for a missing one
_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
_REASONS: dict[str, str] = {str(reason): reason for reason in Reason}
_TYPES: dict[str, Any] = {
    "str": str,
    "bool": bool,
    "int": int,
    "float": (int, float),
    "int | None": (int, type(None)),
    "float | None": (int, float, type(None)),
    "tuple[str, ...]": tuple,
    "DeviceIdentity": DeviceIdentity,
}
"""The valid types of a named tuple's fields, by annotation. All other annotations are kinds of text."""


class SharedRow(NamedTuple):
    """A reading, as it was written.

    Attributes:
        number: The row's number. Rows are counted from 1, across writers.
        header: The reading without its numbers. Equal headers are one object.
        numbers: The numbers, in the order of the header's keys.
        time_ns: When it was taken, in nanoseconds since 1970.
        at: When the reading of the devices began, on the machine's monotonic clock.
        ended: When it was completed, on that clock.
        backends: The status of each source.
        processes: By device key, the processes on it. The same object while nothing changes; empty if the record was overwritten.
        findings: The findings of rules. The same object while nothing changes; empty if the record was overwritten.
    """

    number: int
    header: Header
    numbers: tuple[int | float, ...]
    time_ns: int
    at: float
    ended: float
    backends: tuple[BackendStatus, ...]
    processes: Mapping[str, tuple[DeviceProcess, ...]]
    findings: Findings


class Writer(NamedTuple):
    """The process that writes a ring.

    Attributes:
        mark: A random identifier of this writer.
        pid: The process id, in the writer's PID namespace.
        opening: Until when it opens drivers, on the machine's monotonic clock. No row is late before that.
        interval: Seconds between two rows.
        patience: Seconds after which a missing row is late.
        reads: The names of the backends that it reads, separated by commas.
        epoch: A number that rises with each writer and with each change of the interval.
    """

    mark: str = ""
    pid: int = 0
    opening: float = 0.0
    interval: float = 0.0
    patience: float = LATE
    reads: str = ""
    epoch: int = 0


class SharedRingWriter:
    """Writes rows into the ring at a path. Creates the file if it is missing, or if its slots are too small.

    Args:
        path: The path of the ring.
        group: The group that may read the file; None for the owner only.
        reads: The names of the backends that this process reads, separated by commas.

    Attributes:
        number: The number of its latest row.
    """

    def __init__(self, path: Path, group: int | None = None, reads: str = "") -> None:
        self._path, self._group, self._reads, self._pid = path, group, reads, os.getpid()
        self._file: SlotFile | None = None
        self._newest = [0] * len(FIRST_SIZES)
        self._writer, self._announcement, self._timeout = Writer(), b"", 0.0
        self._last: dict[int, tuple[object, tuple[int, int]]] = {}  # by part, the value of the last record with its number and checksum
        self._known: dict[tuple[int, bytes], tuple[int, int]] = {}  # by part and text, a record's number and checksum
        self._kinds: tuple[list[type], bytes] = ([], b"")

    @property
    def number(self) -> int:
        """The number of its latest row."""
        return self._newest[ROWS]

    def take(self, interval: float, timeout: float = 0.0, opening: float = 0.0) -> None:
        """Become the writer. An earlier writer notices this before its next row.

        Args:
            interval: Seconds between two rows.
            timeout: Seconds within which a reading is taken.
            opening: Seconds the drivers may take to open. No row is late during that time.

        Raises:
            NotSharedError: The file cannot be created.
        """
        self._timeout = timeout
        self.close()
        self._known.clear()
        self._last.clear()
        with suppress(OSError, NotSharedError):  # a missing or foreign file is replaced below
            self._file = SlotFile(self._path, flags=os.O_RDWR)
            self._newest = list(self._file.newest()[: len(self._newest)])
        if self._file is None or len(self._file.sizes) != len(FIRST_SIZES):
            self._file = create(self._path, FIRST_SIZES, lambda _: None, self._group)
        self._announce(interval, opening)

    def write(self, snapshot: Snapshot, at: float, ended: float, findings: Findings = NO_FINDINGS, interval: float = 0.0) -> bool:
        """Write a reading as the next row. Return whether this process is still the writer.

        Args:
            snapshot: The reading.
            at: When the reading of the devices began, on the machine's monotonic clock.
            ended: When it was completed.
            findings: The findings of rules until then.
            interval: As in :meth:`take`, if it has changed.

        Raises:
            NotSharedError: The file cannot be written or created.
        """
        sources = [_SOURCE.pack(one.sequence, *map(_or_nan, (one.age_seconds, one.duration_seconds))) for one in snapshot.backends]
        try:
            if not self._is_writer():
                return False
            head = self._record(HEADERS, snapshot.header, lambda head: head.kept("shared", lambda: _header_text(head)))
            processes = self._record(PROCESSES, snapshot.processes, lambda processes: _ENCODER.encode(processes).encode())
            found = self._record(FINDINGS, findings, lambda one: _ENCODER.encode((one.current, one.ended, one.cannot_tell)).encode())
            row = _ROW.pack(snapshot.time_ns, at, ended, *head, *processes, *found, len(sources), len(snapshot.numbers))
            self._append(ROWS, b"".join((row, *sources, self._packed(snapshot.numbers))))
            if self._writer.opening or interval not in (0.0, self._writer.interval):
                self._announce(interval or self._writer.interval)
        except OSError as error:
            raise NotSharedError(f"{self._path} cannot be written: {error.strerror or error}") from error
        return True

    def close(self) -> None:
        """Stop writing."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _announce(self, interval: float, opening: float = 0.0) -> None:
        """Publish this process as the writer, so that an earlier one stops."""
        opening_until = time.monotonic() + opening if opening else 0.0
        # Published in the file, because a reader does not know the writer's timeout.
        patience = max(LATE, self._timeout) + LATE_INTERVALS * interval
        self._writer = Writer(os.urandom(8).hex(), self._pid, opening_until, interval, patience, self._reads)
        self._announcement = _ENCODER.encode(self._writer[:-1]).encode()
        self._append(WRITER, self._announcement)

    def _is_writer(self) -> bool:
        """Return whether the file names this process as the writer.

        A file that was removed, or whose descriptor was closed, is created again.
        """
        file = self._file
        if file is None or os.getpid() != self._pid:
            return False
        if not file.is_current and not os.path.lexists(self._path):
            file.close()
            self.take(self._writer.interval, self._timeout)
            return True
        return file.is_current and file.read(WRITER, file.newest()[WRITER]) == self._announcement

    def _append(self, part: int, content: bytes) -> int:
        """Write the next record of a part and return its number. If it does not fit, replace the file with a larger copy."""
        before = self._file
        assert before is not None
        if HEAD + len(content) > before.sizes[part][0]:
            sizes = list(before.sizes)
            sizes[part] = (int(ROOM * (HEAD + len(content))) + 511) // 512 * 512, sizes[part][1]

            def fill(file: SlotFile) -> None:
                for one in range(len(self._newest)):
                    for number, found in before.after(one, 0):
                        if found is not None:
                            file.write(one, number, found)

            self._file = create(self._path, tuple(sizes), fill, self._group)
            before.close()
        self._newest[part] += 1
        assert self._file is not None
        self._file.write(part, self._newest[part], content)
        return self._newest[part]

    def _record(self, part: int, value: T, text: Callable[[T], bytes]) -> tuple[int, int]:
        """Return number and checksum of a value's record, in another part than the rows. Write it if it is missing."""
        oldest = self._newest[part] - FIRST_SIZES[part][1] // 2  # an older record would soon be overwritten, so it is written again
        last = self._last.get(part)
        if last is not None and last[0] is value and last[1][0] > oldest:
            return last[1]
        content = text(value)
        known = self._known.get((part, content))
        if known is None or known[0] <= oldest:
            if len(self._known) >= KEPT:
                self._known.clear()
            known = self._known[part, content] = self._append(part, content), crc32(content)
        self._last[part] = value, known
        return known

    def _packed(self, numbers: Sequence[int | float]) -> bytes:
        """Return the numbers as bytes, preceded by their kinds.

        Integers beyond 64 bits, which no device counts, become doubles.
        """
        types = list(map(type, numbers))
        if types != self._kinds[0]:
            self._kinds = types, b"".join(map(_kind, numbers))
        try:
            return self._kinds[1] + _form(self._kinds[1]).pack(*numbers)
        except struct.error:  # an integer has become too large for its kind, or negative
            self._kinds = types, b"".join(map(_kind, numbers))
            return self._kinds[1] + _form(self._kinds[1]).pack(*numbers)


class SharedRing:
    """Reads the rows of a ring. For one thread at a time.

    Args:
        path: The path of the ring.
        trusted: Decides by a file's status (owner, mode) whether it may be read.
    """

    def __init__(self, path: Path, trusted: Callable[[os.stat_result], bool]) -> None:
        self._path, self._trusted = path, trusted
        self._file: SlotFile | None = None
        self._kept: dict[tuple[int, ...], Any] = {}  # decoded records, by part, number and checksum

    def close(self) -> None:
        """Close the file."""
        file, self._file = self._file, None
        self._kept.clear()
        if file is not None:
            file.close()

    def writer(self) -> Writer | None:
        """Return the current writer: None while there is no file, one without a mark if the file does not name one.

        Raises:
            NotSharedError: The file cannot be used.
        """
        file = self._opened()
        if file is None:
            return None
        number = file.newest()[WRITER]
        return guarded(lambda: _make_tuple(Writer, (*json.loads(file.read(WRITER, number) or "[]"), number))).value or Writer()

    def newest(self) -> SharedRow | None:
        """Return the newest row; None while there is none."""
        file = self._opened()
        number = 0 if file is None else file.newest()[ROWS]
        return None if file is None else self._row(number, file.read(ROWS, number))

    def rows(self, after: int, wants: Callable[[float], bool] | None = None) -> Iterator[SharedRow]:
        """Yield the rows with higher numbers, in their order, without overwritten ones.

        Args:
            after: The number.
            wants: Decides, by the time at which a row's reading began, whether to yield it. The newest row is always yielded.
                Default: all rows.
        """
        file = self._opened()
        newest = 0 if file is None else file.newest()[ROWS]
        for number, content in () if file is None else file.after(ROWS, after):
            if (row := self._row(number, content, wants, newest)) is not None:
                yield row

    def _opened(self) -> SlotFile | None:
        """Return the file that is at the path now; None while there is none.

        Raises:
            NotSharedError: It is not a file of shared readings, or not a trusted one.
        """
        if self._file is None or not self._file.is_current:
            try:
                file = SlotFile(self._path, self._trusted)
            except FileNotFoundError:
                self.close()
                return None
            except OSError as error:
                raise NotSharedError(f"{self._path} cannot be read: {error.strerror or error}") from error
            self.close()
            self._file = file
        return self._file

    def _row(self, number: int, content: bytes | None, wants: Callable[[float], bool] | None = None, newest: int = 0) -> SharedRow | None:
        """Decode a row. Return None if it is invalid or not wanted, or if its header was overwritten."""
        return None if content is None else guarded(self._decoded, number, content, wants, newest).value

    def _decoded(self, number: int, content: bytes, wants: Callable[[float], bool] | None, newest: int) -> SharedRow | None:
        time_ns, at, ended, *places, sources, count = _ROW.unpack_from(content)
        if wants is not None and not (isfinite(at) and wants(at)) and number < newest:
            return None
        head: Header | None = self._decoded_record(HEADERS, places[:2], _header, None)
        begin = _ROW.size + sources * _SOURCE.size
        kinds = content[begin : begin + count]
        numbers = _form(kinds).unpack_from(content, begin + count)
        # The file is written by another process: a row that does not fit its header is ignored.
        if head is None or len(head.backends) != sources or len(head.keys) != count:
            return None
        # The sum is finite if all are. Only a sum that overflows needs the second, slower check.
        if not isfinite(at + ended + sum(numbers)) and not all(map(isfinite, (at, ended, *numbers))):
            return None
        statuses = tuple(map(partial(_status_of, time_ns), head.backends, _SOURCE.iter_unpack(content[_ROW.size : begin])))
        processes = self._decoded_record(PROCESSES, places[2:4], _processes, NO_PROCESSES)
        findings = self._decoded_record(FINDINGS, places[4:], _findings, NO_FINDINGS)
        return SharedRow(number, head, numbers, time_ns, at, ended, statuses, processes, findings)

    def _decoded_record(self, part: int, place: Sequence[int], make: Callable[[Any], T], otherwise: T) -> T:
        """Return the decoded content of a record, the same object each time, or ``otherwise`` if it was overwritten."""
        key = part, *place
        made: T | None = self._kept.pop(key, None)
        if made is None:
            content = None if self._file is None else self._file.read(part, place[0])
            if content is None or crc32(content) != place[1]:
                return otherwise
            made = make(json.loads(content))
        self._kept[key] = made  # at the end: the first one is the least recently used
        if len(self._kept) > KEPT:
            del self._kept[next(iter(self._kept))]
        return made


# Numbers


def _or_nan(value: float | None) -> float:
    return nan if value is None else value


def _kind(number: int | float) -> bytes:
    """Return the format of a number: a 64-bit integer, signed (``q``) or unsigned (``Q``), or a double (``d``)."""
    if isinstance(number, float) or not -(1 << 63) <= number < 1 << 64:
        return b"d"
    return b"q" if number < 1 << 63 else b"Q"


@lru_cache(16)
def _form(kinds: bytes) -> struct.Struct:
    if kinds.translate(None, b"dqQ"):
        raise ValueError(f"{kinds!r} has an unknown kind of number")
    return struct.Struct("<" + kinds.decode())


def _status_of(time_ns: int, state: BackendStatus, numbers: tuple[int, float, float]) -> BackendStatus:
    """Return a source's status: the fields from the header, with the numbers of this row."""
    sequence, age, duration = numbers
    seconds = None if isnan(duration) else duration
    if isnan(age):
        return state._replace(duration_seconds=seconds, sequence=sequence)
    return state._replace(duration_seconds=seconds, read_at=rfc3339(time_ns - int(age * 1e9)), age_seconds=age, sequence=sequence)


# The content of records: the tuples' fields without names, since all processes that share a reading run the same release. Fields are
# checked by their annotations, because pydantic would cost each rank of a job 10 MiB.


def _header_text(header: Header) -> bytes:
    parts = header.hostname, header.keys, header.identities, header.unavailable, header.backends, header.unlisted
    return _ENCODER.encode(parts).encode()


def _header(parts: Any) -> Header:
    hostname, keys, slots, unavailable, backends, unlisted = parts
    if not all(isinstance(text, str) for text in (hostname, *keys)) or len(set(keys)) != len(keys):
        raise ValueError("keys must be different texts")
    devices = [_make_tuple(DeviceSlot, (*slot[:3], _make_tuple(DeviceIdentity, slot[3]), *slot[4:])) for slot in slots]
    statuses = tuple([_make_tuple(BackendStatus, one) for one in backends])
    return header_of(hostname, tuple(keys), devices, _reasons(unavailable), statuses, _reasons(unlisted))


def _reasons(found: Any) -> Mapping[str, Unavailable]:
    return {key: _make_tuple(Unavailable, (_REASONS.get(reason, reason), detail)) for key, (reason, detail) in found.items()}


def _processes(found: Any) -> Mapping[str, tuple[DeviceProcess, ...]]:
    return {key: tuple([_make_tuple(DeviceProcess, one) for one in listed]) for key, listed in found.items()}


def _findings(parts: Any) -> Findings:
    current, ended, undecided = parts
    last, over = (tuple([_make_tuple(Finding, one) for one in part]) for part in (current, ended))
    return Findings(last, over, tuple([_make_tuple(CannotTell, (rule, tuple(keys), *rest)) for rule, keys, *rest in undecided]))


def _make_tuple(kind: Callable[..., T], parts: Sequence[Any]) -> T:
    """Make a named tuple from its fields.

    Raises:
        TypeError, ValueError: A field has an invalid type, or the number of fields is wrong.
    """
    for annotation, value in zip(kind.__annotations__.values(), parts, strict=True):
        if not isinstance(value, _TYPES.get(annotation, str)):
            raise TypeError(f"expected {annotation}, got {type(value).__name__}")
    return kind(*parts)
