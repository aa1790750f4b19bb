"""The recordings of a report: their records in order, and what is to be said of the files."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from heapq import merge
from itertools import chain
from pathlib import Path

from accelmetrics.schemas.errors import AccelMetricsError, DocumentError
from accelmetrics.schemas.record import Record
from accelmetrics.schemas.recording import RecordFile, recordings
from accelmetrics.views.report.run_report import SourceFile
from accelmetrics.views.report.stream import stream_of

TAKEN = "JSON lines, which the exporter jsonl and `accelmetrics dump --json --interval` write"
_BLOCK = 1 << 20


class Recordings:
    """Files of records, each with the closed ones of its name, read once.

    Args:
        names: The files.
        hashed: Whether to reckon their SHA-256 too.

    Attributes:
        files: What was read, complete when all of it was.
        warnings: What is to be said of it.
    """

    def __init__(self, names: Sequence[str], hashed: bool = False) -> None:
        self.files: list[SourceFile] = []
        self.warnings: list[str] = []
        self._names = names
        self._hashed = hashed

    def __iter__(self) -> Iterator[Record]:
        """Read all records of all files, those of one process of a run by time.

        Raises:
            AccelMetricsError: A file cannot be read, or is no recording.
        """
        groups: dict[tuple[str, ...], list[Iterator[Record]]] = {}
        seen: set[Path] = set()
        for name in self._names:
            with _telling(name):
                found = [one for one in recordings(name) if one.path.resolve() not in seen]
                seen.update(one.path.resolve() for one in found)
                first = next(chain.from_iterable(found), None)
            # Files are opened again when their time has come: there may be many.
            groups.setdefault(() if first is None else stream_of(first), []).append(self._read(found))
        for group in groups.values():
            yield from merge(*group, key=lambda record: record.snapshot.time_ns) if len(group) > 1 else group[0]

    def _read(self, found: Iterable[RecordFile]) -> Iterator[Record]:
        """Yield the records of files one after the other; note what cannot be read."""
        for recording in found:
            readings = 0
            with _telling(str(recording.path)):
                size, digest = _sized(recording.path, self._hashed)
                for record in recording:
                    readings += 1
                    yield record
            if recording.skipped:
                lines = "1 line" if recording.skipped == 1 else f"{recording.skipped} lines"
                self.warnings.append(f"{lines} could not be read; the first: {recording.complaint}")
            if recording.headless:
                what = f"the header of {recording.headless} readings is missing: host and labels are not known"
                self.warnings.append(f"{recording.path}: {what}")
            complaint = recording.complaint
            self.files.append(SourceFile(str(recording.path), size, digest, readings, recording.skipped, complaint, recording.headless))


def _sized(path: Path, hashed: bool) -> tuple[int, str]:
    """Return the length of a file now, and the SHA-256 of so much of it; it may grow while it is read. Streams have neither."""
    if not path.is_file():
        return 0, ""
    with path.open("rb") as file:
        size = left = os.fstat(file.fileno()).st_size
        if not hashed:
            return size, ""
        digest = hashlib.sha256()
        while left and (block := file.read(min(left, _BLOCK))):
            digest.update(block)
            left -= len(block)
    return size, digest.hexdigest()


@contextmanager
def _telling(name: str) -> Iterator[None]:
    try:
        yield
    except DocumentError as error:
        raise AccelMetricsError(f"{error}: report takes {TAKEN}") from error
    except OSError as error:
        raise AccelMetricsError(f"cannot read {name}: {error.strerror or error}") from error
