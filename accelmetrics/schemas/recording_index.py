"""Places in a recording by time: what was written under one name, in any number of files, compressed or not.

A recording is gone through once, a little at a time, and marked each quarter of a mebibyte with what holds there (headers, findings): a
place is found by its mark and a few lines behind it, whatever the recording's size. Lines between marks are looked at for their time alone.
"""

from __future__ import annotations

import gzip
import os
import time
import zlib
from bisect import bisect_left
from collections.abc import Mapping
from pathlib import Path
from typing import IO, NamedTuple

from accelmetrics.schemas.errors import DocumentError
from accelmetrics.schemas.finding import Findings
from accelmetrics.schemas.reading import Header
from accelmetrics.schemas.record import Record
from accelmetrics.schemas.recording import LONGEST_LINE, NO_HEADERS, NO_LASTING, LineDecoder
from accelmetrics.schemas.rotation import files_of, first_time, packed

STEP = 1 << 18
"""Bytes from one mark to the next."""
BEGINNING = 4096
"""Bytes of a line in which its time stands."""
LINES_AT_ONCE = 64
"""Lines between two looks at the clock."""
HEADER, STREAM, FINDINGS, GZIP = b'{"schema_version"', b'"stream"', b'"findings":', b"\x1f\x8b"
Names = tuple[str, str]
"""Host and rank; an empty rank for none."""


class IndexEntry(NamedTuple):
    """A place at the beginning of a line.

    Attributes:
        time_ns: The latest time until there, in nanoseconds since 1970.
        part: Which file.
        offset: Bytes of its text before it.
        headers: By stream, the header that holds.
        lasting: By stream, the findings that do.
    """

    time_ns: int
    part: int
    offset: int
    headers: Mapping[str, Header] = NO_HEADERS
    lasting: Mapping[str, Findings] = NO_LASTING


def names_of(record: Record) -> Names:
    """Return the host and the rank that a record is of."""
    return record.snapshot.hostname, record.labels.get("rank", "")


class RecordReader:
    """A place in a recording that goes on, line by line, from one file to the next.

    Args:
        parts: The files; more may be added at the end.
        mark: Where to begin.

    Attributes:
        skipped: Lines that could not be read.
        complaint: The first of them, in words.
    """

    def __init__(self, parts: list[Path], mark: IndexEntry) -> None:
        self._parts = parts
        self._file: IO[bytes] | gzip.GzipFile | None = None
        self._raw: IO[bytes] | None = None  # below the unpacked one
        self.part = self.offset = 0
        self.skipped, self.complaint = 0, ""
        self.jump(mark)

    def jump(self, mark: IndexEntry) -> None:
        """Go to another place."""
        if self._file is None or mark.part != self.part:
            self.close()
            path = self._parts[mark.part]
            try:
                file = path.open("rb")
            except FileNotFoundError:  # it was compressed since it was listed
                file = packed(path).open("rb")
            self._raw = file
            self._file = gzip.GzipFile(fileobj=file) if file.peek(len(GZIP))[: len(GZIP)] == GZIP else file
        assert self._file is not None
        self._file.seek(mark.offset)
        self.part, self.offset = mark.part, mark.offset
        self.decoder = LineDecoder(mark.headers, mark.lasting)

    def line(self) -> bytes:
        """Return the next whole line; empty where there is none yet."""
        while True:
            assert self._file is not None
            try:
                line = self._file.readline(LONGEST_LINE)
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                self._skip(f"the compressed file is cut or damaged: {error}")
                line = b""
            if line.endswith(b"\n") or len(line) == LONGEST_LINE:
                self.offset += len(line)
                return line
            if self.part + 1 >= len(self._parts):
                if line:
                    self._file.seek(self.offset)  # the rest of it is being written
                return b""
            self.jump(IndexEntry(0, self.part + 1, 0))

    def record(self) -> Record | None:
        """Return the next record; None where there is none yet."""
        while line := self.line():
            try:
                record = self.decoder.record(line)
            except DocumentError as error:
                if not line.isspace():
                    self._skip(str(error))
                continue
            if record is not None:
                return record
        return None

    def skip(self, time_ns: int) -> None:
        """Go on to the first record of this time or later."""
        while line := self.line():
            moment = self.note(line)
            if moment is not None and moment >= time_ns:
                self.offset -= len(line)
                assert self._file is not None
                self._file.seek(self.offset)
                return

    def note(self, line: bytes) -> int | None:
        """Keep what a line says for those behind it; return its time, None for one that has none."""
        if (line.startswith(HEADER) and STREAM in line[:BEGINNING]) or FINDINGS in line:
            try:
                self.decoder.record(line)
            except DocumentError as error:
                self._skip(str(error))
        return first_time(line[:BEGINNING])

    def close(self) -> None:
        """Close the file."""
        for file in (self._file, self._raw):
            if file is not None:
                file.close()

    def _skip(self, why: str) -> None:
        self.skipped += 1
        self.complaint = self.complaint or f"{self._parts[self.part]}: {why}"


class RecordingIndex:
    """What is known of a recording's places.

    Args:
        path: Its name.

    Attributes:
        parts: Its files, oldest first.
        first_ns: The first time in it; 0 while none is known.
        last_ns: The last one that is known.
        names: The hosts and ranks that it has records of.
        complete: Whether all that is written has been gone through.
        grown: Whether there was more since that was so first.

    Raises:
        OSError: There is none, or it cannot be read.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(os.path.realpath(path))
        self.parts = files_of(self._path) or [self._path]
        self.first_ns = self.last_ns = 0
        self.names: dict[Names, None] = {}
        self.complete = self.grown = False
        self._marks: list[IndexEntry] = []
        self._times: list[int] = []
        self._reader = RecordReader(self.parts, IndexEntry(0, 0, 0))
        self._last = self.parts[-1].stat()

    def extend(self, seconds: float) -> bool:
        """Go on through what is not known yet, for so long at most; return whether there was something."""
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
                self._take(line, self._reader.part, self._reader.offset - len(line))
            if time.monotonic() > until:
                return found

    def mark(self, time_ns: int) -> IndexEntry:
        """Return the last mark before a time."""
        place = bisect_left(self._times, time_ns) - 1
        return self._marks[place] if place >= 0 else IndexEntry(0, 0, 0)

    def close(self) -> None:
        """Close the files."""
        self._reader.close()

    def _take(self, line: bytes, part: int, offset: int) -> None:
        reader = self._reader
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
        if last is not None and (last.headers, last.lasting) == (decoder.headers, decoder.lasting):  # one for many marks
            headers, lasting = last.headers, last.lasting
        else:
            headers, lasting = dict(decoder.headers), dict(decoder.lasting)
        self._marks.append(IndexEntry(self.last_ns, part, offset, headers, lasting))
        self._times.append(self.last_ns)
        if line.startswith(HEADER):  # a whole document, which has no header before it
            try:
                record = decoder.record(line)
            except DocumentError:
                return
            if record is not None:
                self.names[names_of(record)] = None

    def _rotated(self) -> bool:
        """Take the files that were begun since the last one was closed; return whether there are some."""
        try:
            now = self._path.stat()
        except OSError:
            return False
        if self.parts[-1] != self._path or now.st_ino == self._last.st_ino:
            return False
        self._last = now
        files = files_of(self._path)
        known = {str(path).removesuffix(".gz") for path in self.parts[:-1]}
        closed = [path for path in files if path != self._path and str(path).removesuffix(".gz") not in known]
        self.parts[-1:] = [*closed, self._path]
        return True
