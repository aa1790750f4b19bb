"""Reading recordings: files with a record per line, from the ``jsonl`` exporter (of any release) or ``dump --interval``.

>>> from accelmetrics.schemas.recording import recordings
>>> for recording in recordings("run.jsonl"):                                 # doctest: +SKIP
...     for record in recording:
...         print(record.snapshot.timestamp, record.snapshot.metrics.get("gpu.0.powerWatts"))
...     print(recording.path, recording.skipped, "lines were unreadable")

:mod:`accelmetrics.schemas.lines` describes the lines. Before version 2.0, and in the output of ``dump``, each line is a whole
document. A file may contain both kinds.

Every line is validated against the whole schema.

For replay, a recording of any number of files is scanned once, a little at a time. Every 256 KiB a mark is set with the state there
(headers, findings). A place is found by its mark and the few lines after it, however large the recording is. Of the lines between
marks, only the time is read.
"""

from __future__ import annotations

import gzip
import os
import stat
import time
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from functools import lru_cache
from io import BufferedReader
from itertools import repeat
from math import nan
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from pydantic import ValidationError
from pydantic_core import from_json

from accelmetrics.schemas.document import DocumentLine, HeaderLine, PlainReading, ReadingLine, are_metrics, describe, recorded
from accelmetrics.schemas.errors import DocumentError
from accelmetrics.schemas.identity import BackendStatus, DeviceIdentity, DeviceSlot
from accelmetrics.schemas.lines import files_of, first_time, packed
from accelmetrics.schemas.metric import device_key
from accelmetrics.schemas.notebook import frame
from accelmetrics.schemas.reading import Header, header as header_of
from accelmetrics.schemas.record import LOGGED, NO_FINDINGS, Findings, Record
from accelmetrics.schemas.selection import MetricSelection

if TYPE_CHECKING:
    import pandas

LONGEST_LINE = 1 << 26
"""Longest line to read, in bytes: eight times a line of 1,024 GPUs. A longer line is unreadable, and not held in memory."""

LONGEST_PASSED_OVER = 1 << 28
"""Longest line to skip, in bytes. A file with a longer one is refused."""
MOST_OTHERS = 200_000
"""Most lines of a file that are no records, in addition to as many as there are records. A file with more is refused: decompressed
blanks could take hours."""
MOST_DEVICES = 8192
"""Most devices of a reading. A file with more is refused, since headers take time and memory per device."""

NO_HEADERS: Mapping[str, Header] = {}
NO_LASTING: Mapping[str, Findings] = {}

_BEGINNING = b'{"schema_version"'
_BUFFER = 1 << 18
"""Bytes to read at once. A system call for every few lines would cost more than parsing them."""
_GZIP = b"\x1f\x8b"

STEP = 1 << 18
"""Bytes from one mark to the next."""
BEGINNING = 4096
"""Bytes at the beginning of a line that contain its time."""
LINES_AT_ONCE = 64
"""Lines between two checks of the clock."""
Names = tuple[str, str]
"""Host and rank; an empty rank for none."""


class _RefusedError(DocumentError):
    """The whole file is refused: it has something that no writer of ours makes, and reading on could take for ever."""


def read_records(path: str | Path) -> Iterator[Record]:
    """Return the records of one file, compressed or not, in the order in which they were written.

    Raises:
        DocumentError: The file is not a recording.
        OSError: It cannot be read.
    """
    return iter(RecordFile(path))


def parse_record(text: bytes) -> Record:
    """Return the record of a whole document, for example from ``/api/record`` of ``accelmetrics serve``.

    Raises:
        DocumentError: It is not a whole document.
    """
    record = LineDecoder().record(text)
    if record is None or not record.snapshot.hostname:
        raise DocumentError("not a whole record: this line of a recording needs the lines before it")
    return record


def recordings(path: str | Path) -> tuple[RecordFile, ...]:
    """Return the files that an exporter has written under this path: the closed files, oldest first, then the growing one.

    Raises:
        OSError: There is none, or the directory cannot be read.
    """
    return tuple(map(RecordFile, files_of(Path(os.path.realpath(path))))) or (RecordFile(path),)


class LineDecoder:
    """Decodes consecutive lines into records.

    Args:
        headers: By stream, the current header.
        lasting: By stream, the current findings.

    Attributes:
        headers: By stream, the current header.
        lasting: By stream, the current findings.
        headless: Number of readings without a header among the lines.
    """

    def __init__(self, headers: Mapping[str, Header] = NO_HEADERS, lasting: Mapping[str, Findings] = NO_LASTING) -> None:
        self.headers = dict(headers)
        self.lasting = dict(lasting)
        self.headless = 0

    def record(self, line: bytes) -> Record | None:
        """Return the record of a line; None for a header, which applies to the following lines of its stream.

        Raises:
            DocumentError: The line is not a valid one.
        """
        try:
            document = from_json(line, allow_inf_nan=False, cache_strings="keys")
        except ValueError as error:
            raise DocumentError(f"not JSON: {error}") from error
        if not isinstance(document, dict):
            raise DocumentError("not an accelmetrics document")
        try:
            if "stream" not in document:
                return self._document(document)
            if "schema_version" not in document:
                return self._reading(document)
            _check_number(document.get("devices"))
            header = HeaderLine.model_validate(document)
            self.headers[header.stream] = header.header()
        except ValidationError as error:
            raise DocumentError(f"not a record: {describe(error)}") from error
        except OverflowError as error:  # an integer too large for a float
            raise DocumentError(f"not a record: {error}") from error
        return None

    def _document(self, document: dict[str, Any]) -> Record:
        """Return the record of a line that is a whole document."""
        _check_number(document.get("devices"))
        line = DocumentLine.model_validate(document)
        devices, unavailable, unlisted = map(recorded, (line.devices, line.unavailable, line.unlisted))
        header = header_of(line.hostname, (), devices, unavailable, (), unlisted, line.labels)
        record = line.record(header, line.metrics, recorded(line.backends))
        return record if line.holders is None else record._replace(holders=recorded(line.holders))

    def _reading(self, document: dict[str, Any]) -> Record:
        """Return the record of a reading, completed by its header."""
        metrics = document.get("metrics")
        line = PlainReading.model_validate(document)
        if not are_metrics(metrics):
            metrics = ReadingLine.model_validate(document).metrics  # the slow, exact check raises the error, if there is one
        header = self.headers.get(line.stream)
        if header is None or not metrics.keys().isdisjoint(header.unavailable):
            self.headless += 1
            _check_number(named := _named_devices(tuple(metrics)))
            header = header_of("", (), named, {}, tuple(BackendStatus(name, "ok") for name in line.sources), {})
        record = line.record(
            header, metrics, [line.status(status) for status in header.backends], self.lasting.get(line.stream, NO_FINDINGS)
        )
        if line.findings is not None:
            # They apply until a line of this stream has findings again.
            self.lasting[line.stream] = Findings(record.findings.current, (), record.findings.cannot_tell)
        return record


class RecordFile:
    """A file of records. It can be iterated over repeatedly.

    Unreadable lines (cut by a kill or a full disk, damaged) are skipped and counted.

    Attributes:
        path: The file.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._reader = RecordReader([self.path], grows=False)

    def __iter__(self) -> Iterator[Record]:
        """Yield the records.

        Raises:
            DocumentError: No line of the file is a record, and the file is more than the beginning of one.
            OSError: The file cannot be read.
        """
        reader = self._reader = RecordReader([self.path], grows=False)
        with closing(reader):
            yield from iter(reader.record, None)
        if reader.skipped and reader.hopeless:
            raise DocumentError(reader.complaint)

    @property
    def skipped(self) -> int:
        """Number of unreadable lines so far in the latest iteration."""
        return self._reader.skipped

    @property
    def complaint(self) -> str:
        """The first unreadable line in words: file, line and error; empty if there was none."""
        return self._reader.complaint

    def to_pandas(self, metrics: str | Sequence[str] = "all") -> pandas.DataFrame:
        """Return the readings as a data frame, indexed by time (UTC), with a column per key. Missing values are NaN.

        Numbers that the program logged are in columns of their own, ``training.loss``, at the reading that followed.

        Args:
            metrics: The columns: presets, names, keys and patterns, as for ``Sampler``.

        Raises:
            DocumentError: The file is not a recording.
            MissingDependencyError: pandas is not installed.
            OSError: The file cannot be read.
            UnknownNameError: There is no such metric.
        """
        selection = MetricSelection(metrics)
        times: list[float] = []
        columns: dict[str, array[float]] = {}
        for number, record in enumerate(self):
            times.append(record.snapshot.time_ns / 1e9)
            values = {key: value for key, value in record.snapshot.metrics.items() if selection.wants(key)}
            values |= {f"{LOGGED}{name}": value for step in record.own_steps for name, value in step.values.items()}
            for key, value in values.items():
                column = columns.setdefault(key, array("d"))
                column.extend(repeat(nan, number - len(column)))
                column.append(value)
        for column in columns.values():
            column.extend(repeat(nan, len(times) - len(column)))
        return frame(times, columns)

    @property
    def headless(self) -> int:
        """Number of readings without a header in the file, because it was cut off or is unreadable.

        They have the devices' keys, but no identity, hostname, labels or reasons.
        """
        return self._reader.decoder.headless

    def __repr__(self) -> str:
        return f"<RecordFile {str(self.path)!r}>"


def _opened(path: Path) -> BufferedReader:
    """Open a file, in its compressed form if it was compressed after it was listed.

    Raises:
        DocumentError: It is a device other than a terminal.
        OSError: It cannot be opened.
    """
    try:
        file = path.open("rb", 0)
    except FileNotFoundError:
        if not packed(path).exists():
            raise
        file = packed(path).open("rb", 0)
    kind = os.fstat(file.fileno()).st_mode
    if stat.S_ISBLK(kind) or (stat.S_ISCHR(kind) and not file.isatty()):
        file.close()
        raise DocumentError(f"{path} is a device: it may never end")
    return BufferedReader(file, _BUFFER)


def _check_number(devices: object) -> None:
    """Refuse a file with too many devices in a reading.

    Raises:
        DocumentError: There are too many.
    """
    if isinstance(devices, list | tuple) and len(devices) > MOST_DEVICES:
        raise _RefusedError(f"it has {len(devices):,} devices, more than the limit of {MOST_DEVICES:,}")


@lru_cache(maxsize=16)
def _named_devices(keys: tuple[str, ...]) -> tuple[DeviceSlot, ...]:
    """Return the devices that keys name, with an identity that is only kind and number."""
    found = {}
    for parts in filter(None, map(device_key, keys)):
        whole, number = ".".join(parts.device.split(".")[:2]), parts.device.rpartition(".")[2]
        if number.isdecimal() and "{" not in whole:  # not a template's placeholder
            identity = DeviceIdentity(parts.kind, "", int(number), parent="" if whole == parts.device else whole)
            found[parts.device] = DeviceSlot(parts.device, int(number), None, identity)
    return tuple(sorted(found.values(), key=lambda slot: (bool(slot.identity.parent), slot.key.rpartition(".")[0], slot.index)))


# Places by time


class IndexEntry(NamedTuple):
    """A place in a recording, at the beginning of a line.

    Attributes:
        time_ns: The latest time up to there, in nanoseconds since 1970.
        part: The index of the file.
        offset: The offset in its (decompressed) text, in bytes.
        headers: By stream, the current header.
        lasting: By stream, the current findings.
    """

    time_ns: int
    part: int
    offset: int
    headers: Mapping[str, Header] = NO_HEADERS
    lasting: Mapping[str, Findings] = NO_LASTING


START = IndexEntry(0, 0, 0)


def names_of(record: Record) -> Names:
    """Return the host and the rank of a record."""
    return record.snapshot.hostname, record.labels.get("rank", "")


class RecordReader:
    """A reader that moves through a recording line by line, from one file to the next.

    Args:
        parts: The files. More may be appended later.
        grows: Whether the last file may grow: then the last line counts only once it has a line end.

    Attributes:
        decoder: Decodes the lines. It has the headers and findings at this place.
        skipped: Number of unreadable lines.
        complaint: The first of them in words: file, line and error.
        hopeless: Whether there was no record yet, and more than the beginning of one.

    Raises:
        DocumentError: The recording is refused.
        OSError: It cannot be read.
    """

    def __init__(self, parts: list[Path], grows: bool = True) -> None:
        self._parts, self._grows = parts, grows
        self._file: IO[bytes] | gzip.GzipFile | None = None
        self._raw: IO[bytes] | None = None  # the compressed file that `_file` reads from
        self.part = self.offset = 0
        self.skipped, self.complaint, self.hopeless = 0, "", True
        self.decoder = LineDecoder()

    def jump(self, mark: IndexEntry) -> None:
        """Move to another place."""
        opened = self._file if mark.part == self.part else None
        if opened is None:
            self.close()
            self._raw = file = _opened(self._parts[mark.part])
            self._file = gzip.GzipFile(fileobj=file) if file.peek(len(_GZIP))[: len(_GZIP)] == _GZIP else file
        assert self._file is not None
        if opened is not None or mark.offset:  # a pipe cannot be moved in
            self._file.seek(mark.offset)
        self.part, self.offset = mark.part, mark.offset
        self._length = 0  # bytes so far of a line without its end
        self._number, self._numbered = 0, not mark.offset  # of the line, known from the beginning of a file on
        self._allowed = MOST_OTHERS  # lines that may still come without being a record
        self.decoder = LineDecoder(mark.headers, mark.lasting)

    def line(self) -> bytes:
        """Return the next complete line; empty if there is none yet."""
        if self._file is None:
            self.jump(START)
        while True:
            assert self._file is not None
            try:
                line = self._file.readline(LONGEST_LINE)
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                cut = isinstance(error, EOFError)
                self.hopeless = self.hopeless and not (cut and not self._number)
                self._number += 1
                self._skip("the compressed file is cut" if cut else f"the compressed file is damaged: {error}")
                line = b""
            if line and (line.endswith(b"\n") or len(line) == LONGEST_LINE or not self._grows):
                # A line beyond the limit comes in pieces. The first counts as the line, and the others only by their length.
                begins = not self._length
                self.offset += len(line)
                self._length = 0 if line.endswith(b"\n") else self._length + len(line)
                if self._length > LONGEST_PASSED_OVER:
                    raise self._refused(f"it has a line of more than {LONGEST_PASSED_OVER >> 20} MiB")
                if begins:
                    self._number += 1
                    self._allowed -= 1
                    if self._allowed < 0:
                        raise DocumentError(f"{self._parts[self.part]}: more than {MOST_OTHERS:,} lines are no records")
                    return line
            elif self.part + 1 < len(self._parts):
                self.jump(IndexEntry(0, self.part + 1, 0))
            else:
                if line:
                    self._file.seek(self.offset)  # an incomplete line: read it again when it is complete
                return b""

    def record(self) -> Record | None:
        """Return the next record; None if there is none yet."""
        while line := self.line():
            if (record := self.decoded(line)) is not None:
                return record
        return None

    def decoded(self, line: bytes) -> Record | None:
        """Return the record of a line; None for a header, and for a blank or an unreadable line. The latter is counted."""
        if line.isspace():
            return None
        try:
            record = self.decoder.record(line)
        except _RefusedError as error:
            raise self._refused(str(error)) from error
        except DocumentError as error:
            self._skip(str(error))
            if line.startswith(_BEGINNING):  # an unreadable header: it may belong to any stream
                self.decoder.headers.clear()
            # A file whose only line is the beginning of a record, or of a compressed file, is being written: it is no error.
            begun = not line.endswith(b"\n") and any(start.startswith(line[: len(start)]) for start in (_BEGINNING, _GZIP))
            self.hopeless = self.hopeless and not begun
            return None
        self.hopeless = False
        self._allowed += 2  # one for this line, and one more line that may be no record
        return record

    def skip(self, time_ns: int) -> None:
        """Move forward to the first record at or after this time."""
        while line := self.line():
            moment = self.note(line)
            if moment is not None and moment >= time_ns:
                self.offset -= len(line)
                assert self._file is not None
                self._file.seek(self.offset)
                return

    def note(self, line: bytes) -> int | None:
        """Update the state from a line (headers, findings), and return the line's time; None if it has none."""
        if (line.startswith(_BEGINNING) and b'"stream"' in line[:BEGINNING]) or b'"findings":' in line:
            self.decoded(line)
        moment = first_time(line[:BEGINNING])
        self._allowed += 0 if moment is None else 2
        return moment

    def is_cut(self, size: int) -> bool:
        """Return whether the file, of so many bytes now, is shorter than what was read of it."""
        return self._file is self._raw and size < self.offset

    def close(self) -> None:
        """Close the file."""
        for file in (self._file, self._raw):
            if file is not None:
                file.close()
        self._file = self._raw = None

    def _skip(self, why: str) -> None:
        self.skipped += 1
        self.complaint = self.complaint or str(self._refused(why))

    def _refused(self, why: str) -> DocumentError:
        where = f", line {self._number}" if self._numbered and self._number else ""
        return DocumentError(f"{self._parts[self.part]}{where}: {why}")


class RecordingIndex:
    """Marks of a recording, for finding a place by its time.

    Args:
        path: The path of the recording.

    Attributes:
        parts: Its files, oldest first.
        first_ns: The first time in it; 0 while unknown.
        last_ns: The last time found so far.
        names: The hosts and ranks found so far.
        complete: Whether everything written has been scanned.
        grown: Whether more was written after the scan was first complete.
        replaced: Whether the file was truncated, or another file took its name and does not continue it.

    Raises:
        OSError: It does not exist, or cannot be read.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(os.path.realpath(path))
        self.parts = files_of(self._path) or [self._path]
        self.first_ns = self.last_ns = 0
        self.names: dict[Names, None] = {}
        self.complete = self.grown = self.replaced = False
        self._marks: list[IndexEntry] = []
        self._reader = RecordReader(self.parts)
        self._last = self.parts[-1].stat()

    def extend(self, seconds: float) -> bool:
        """Continue the scan for at most this many seconds. Return whether there was anything new."""
        until, found = time.monotonic() + seconds, False
        while True:
            for _ in range(LINES_AT_ONCE):
                line = self._reader.line()
                if not line:
                    if self._rotated():
                        break
                    self.complete = True
                    return found
                self.grown, found = self.grown or self.complete, True
                self._take(line)
            if time.monotonic() > until:
                return found

    def mark(self, time_ns: int) -> IndexEntry:
        """Return the last mark before a time."""
        place = bisect_left(self._marks, time_ns, key=lambda mark: mark.time_ns) - 1
        return self._marks[place] if place >= 0 else START

    def close(self) -> None:
        """Close the files."""
        self._reader.close()

    def _take(self, line: bytes) -> None:
        reader = self._reader
        part, offset = reader.part, reader.offset - len(line)
        moment = reader.note(line)
        if moment is None:
            self.names.update(((header.hostname, header.labels.get("rank", "")), None) for header in reader.decoder.headers.values())
            return
        self.first_ns = self.first_ns or moment
        self.last_ns = max(self.last_ns, moment)
        last = self._marks[-1] if self._marks else None
        if last is not None and last.part == part and offset - last.offset < STEP:
            return
        decoder = reader.decoder
        if last is not None and (last.headers, last.lasting) == (decoder.headers, decoder.lasting):  # shared, to save memory
            headers, lasting = last.headers, last.lasting
        else:
            headers, lasting = dict(decoder.headers), dict(decoder.lasting)
        self._marks.append(IndexEntry(self.last_ns, part, offset, headers, lasting))
        if line.startswith(_BEGINNING):  # a whole document: it has no header line that would name its host
            record = reader.decoded(line)
            if record is not None:
                self.names[names_of(record)] = None

    def _rotated(self) -> bool:
        """Add the files that were started since the last one was closed. Return whether there are any."""
        try:
            now = self._path.stat()
        except OSError:
            return False
        if self.parts[-1] != self._path:
            return False
        if now.st_ino == self._last.st_ino:
            self.replaced = self.replaced or self._reader.is_cut(now.st_size)
            return False
        self._last = now
        files = files_of(self._path)
        known = {str(path).removesuffix(".gz") for path in self.parts[:-1]}
        closed = [path for path in files if path != self._path and str(path).removesuffix(".gz") not in known]
        self.replaced = self.replaced or not closed
        self.parts[-1:] = [*closed, self._path]
        return True
