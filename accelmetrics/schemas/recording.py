"""Recordings read back: files with a record a line, as the ``jsonl`` exporter, its earlier releases and ``dump --interval`` write them.

>>> from accelmetrics.schemas.recording import recordings
>>> for recording in recordings("run.jsonl"):                                 # doctest: +SKIP
...     for record in recording:
...         print(record.snapshot.timestamp, record.snapshot.metrics.get("gpu.0.powerWatts"))
...     print(recording.path, recording.skipped, "lines were unreadable")

What stands in the lines is said in :mod:`accelmetrics.schemas.lines`; before 2.0, and in those of ``dump``, each was a whole document. A
file may have both.

A line is held to the whole schema. Doing that through pydantic takes a millisecond for a document of 8 GPUs, most of it for what
every document repeats: the devices, and why values are missing. So those parts are validated when they differ from those of the
line before, and recognised otherwise; the rest is checked on every line. Whatever the quick way does not know goes the long one.
"""

from __future__ import annotations

import gzip
import marshal
import os
import stat
import zlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from io import BufferedReader
from itertools import repeat
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from pydantic_core import from_json

from accelmetrics.schemas.document import (
    describe,
)
from accelmetrics.schemas.errors import DocumentError
from accelmetrics.schemas.finding import NO_FINDINGS, Findings
from accelmetrics.schemas.identity import BackendStatus, DeviceIdentity, DeviceSlot
from accelmetrics.schemas.line_models import DocumentLine, HeaderLine, PlainReading, ReadingLine, are_metrics, quick_reading
from accelmetrics.schemas.metric import device_key
from accelmetrics.schemas.notebook import frame
from accelmetrics.schemas.reading import Header, header as header_of
from accelmetrics.schemas.record import (
    LOGGED,
    Record,
)
from accelmetrics.schemas.rotation import files_of, packed
from accelmetrics.schemas.selection import MetricSelection
from accelmetrics.schemas.snapshot import Snapshot

if TYPE_CHECKING:
    import pandas

LONGEST_LINE = 1 << 26
"""Bytes of a line that is still read: eight times what 1,024 GPUs give. Of a longer one, which is unreadable, no more is held."""

NO_HEADERS: Mapping[str, Header] = {}
NO_LASTING: Mapping[str, Findings] = {}

_BEGINNING = b'{"schema_version"'
_BUFFER = 1 << 18
"""Bytes that are read together: a call of the system for every few lines costs more than to parse them."""
_GZIP = b"\x1f\x8b"


def read_records(path: str | Path) -> Iterator[Record]:
    """Read the records of one file, compressed or not, in the order in which they were written.

    Raises:
        DocumentError: The file is no recording at all.
        OSError: It cannot be read.
    """
    return iter(RecordFile(path))


def parse_record(text: bytes) -> Record:
    """Read one record that is a whole document, as ``/api/record`` of ``accelmetrics serve`` answers it.

    Raises:
        DocumentError: It is none.
    """
    record = LineDecoder().record(text)
    if record is None or not record.snapshot.hostname:
        raise DocumentError("not a whole record: a line of a recording, which needs the others")
    return record


def recordings(path: str | Path) -> tuple[RecordFile, ...]:
    """Return what an exporter has written under this path: its closed files, oldest first, then the growing one.

    Raises:
        OSError: There is none, or the directory cannot be read.
    """
    return tuple(map(RecordFile, files_of(Path(os.path.realpath(path))))) or (RecordFile(path),)


class LineDecoder:
    """Makes records of lines that come one after the other.

    Args:
        headers: By stream, the header that holds.
        lasting: By stream, the findings that do.

    Attributes:
        headers: By stream, the header that holds.
        lasting: By stream, the findings that do.
        headless: Readings whose header was not among the lines.
    """

    def __init__(self, headers: Mapping[str, Header] = NO_HEADERS, lasting: Mapping[str, Findings] = NO_LASTING) -> None:
        self.headers = dict(headers)
        self.lasting = dict(lasting)
        self.headless = 0
        self._latest: tuple[tuple[object, ...], Snapshot] | None = None

    def record(self, line: bytes) -> Record | None:
        """Make the record of a line; None for a header, which holds from then on.

        Raises:
            DocumentError: It is none.
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
            header = HeaderLine.model_validate(document)
            self.headers[header.stream] = header.header()
        except ValidationError as error:
            raise DocumentError(f"not a record: {describe(error)}") from error
        except OverflowError as error:  # a whole number beyond what a float holds
            raise DocumentError(f"not a record: {error}") from error
        return None

    def _document(self, document: dict[str, Any]) -> Record:
        """Make the record of a line that is a whole document."""
        # By their bytes: 1, 1.0 and true are equal, and only one of them is a number of a device.
        devices = marshal.dumps(document.get("devices"), 2)
        constant = (
            document.get("schema_version"),
            document.get("hostname"),
            devices,
            document.get("unavailable"),
            document.get("unlisted"),
        )
        metrics, latest = document.get("metrics"), self._latest
        known = latest is not None and latest[0] == constant and are_metrics(metrics) and metrics.keys().isdisjoint(latest[1].unavailable)
        if latest is None or not known:
            latest = self._latest = constant, Snapshot.from_dict(document)
        line = DocumentLine.model_validate(document)
        last = latest[1]
        backends = [BackendStatus(**dict(entry)) for entry in line.backends]
        header = header_of(last.hostname, (), last.identities, last.unavailable, (), last.unlisted, line.labels)
        record = line.record(header, document["metrics"], backends)
        return record if line.holders is None else record._replace(holders=line.holders.holders())

    def _reading(self, document: dict[str, Any]) -> Record:
        """Make the record of a reading, with what its header says."""
        metrics = document.get("metrics")
        line = quick_reading(document) or PlainReading.model_validate(document)
        if not are_metrics(metrics):
            metrics = ReadingLine.model_validate(document).metrics  # says what is wrong
        header = self.headers.get(line.stream)
        if header is None or not metrics.keys().isdisjoint(header.unavailable):
            self.headless += 1
            header = header_of("", (), _named_devices(tuple(metrics)), {}, tuple(BackendStatus(name, "ok") for name in line.sources), {})
        record = line.record(
            header, metrics, [line.status(status) for status in header.backends], self.lasting.get(line.stream, NO_FINDINGS)
        )
        if line.findings is not None:
            # Until the stream says otherwise.
            self.lasting[line.stream] = Findings(record.findings.current, (), record.findings.cannot_tell)
        return record


class RecordFile:
    """One file of records: iterate over it, as often as you like.

    A line that cannot be read (cut by a kill or a full disk, damaged) is passed over and counted.

    Attributes:
        path: The file.
        skipped: Lines that could not be read, in the latest iteration as far as it has come.
        complaint: The first of them, in words: file, line and what is wrong; empty where there was none.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.skipped = 0
        self.complaint = ""
        self._decoder = LineDecoder()

    def __iter__(self) -> Iterator[Record]:
        """Read the records.

        Raises:
            DocumentError: No line of the file is a record, and it is more than the beginning of one.
            OSError: The file cannot be read.
        """
        self.skipped, self.complaint = 0, ""
        decoder = self._decoder = LineDecoder()
        number, hopeless = 0, True
        try:
            for number, line in enumerate(_lines(self.path), 1):
                if line.isspace():
                    continue
                try:
                    record = decoder.record(line)
                except DocumentError as error:
                    self._skip(f", line {number}: {error}")
                    if line.startswith(_BEGINNING):  # whose header it was, is not known
                        decoder.headers.clear()
                    # A first record may have been written in part.
                    hopeless = hopeless and (line.endswith(b"\n") or line[: len(_BEGINNING)] != _BEGINNING[: len(line)])
                    continue
                hopeless = False
                if record is not None:
                    yield record
        except EOFError:
            self._skip(f", after line {number}: the compressed file is cut")
            hopeless = hopeless and number > 0
        except (zlib.error, gzip.BadGzipFile) as error:
            self._skip(f", after line {number}: the compressed file is damaged: {error}")
        if self.skipped and hopeless:
            raise DocumentError(self.complaint)

    def to_pandas(self, metrics: str | Sequence[str] = "all") -> pandas.DataFrame:
        """Return the readings as a data frame, by time in UTC: a column for each key, NaN where a reading has no such value.

        What the program logged is in columns of its own, ``training.loss``, at the reading that followed it.

        Args:
            metrics: Which columns: presets, names, keys and patterns, as ``Sampler`` takes them.

        Raises:
            DocumentError: The file is no recording at all.
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
            logged = {f"{LOGGED}{name}": value for step in record.own_steps for name, value in step.values.items()}
            for key, value in {**values, **logged}.items():
                column = columns.setdefault(key, array("d"))
                column.extend(repeat(nan, number - len(column)))
                column.append(value)
        for column in columns.values():
            column.extend(repeat(nan, len(times) - len(column)))
        return frame(times, columns)

    @property
    def headless(self) -> int:
        """Readings whose header is not in the file, since it was cut off or cannot be read.

        What they have of devices is their keys, and there is no hostname, no label and no reason.
        """
        return self._decoder.headless

    def __repr__(self) -> str:
        return f"<RecordFile {str(self.path)!r}>"

    def _skip(self, what: str) -> None:
        self.skipped += 1
        self.complaint = self.complaint or f"{self.path}{what}"


def _lines(path: Path) -> Iterator[bytes]:
    """Read the lines with their ends; the last may have none.

    Raises:
        DocumentError: It is a device other than a terminal.
        EOFError, zlib.error, gzip.BadGzipFile: The compressed file is cut or damaged; what stands before has been given.
    """
    try:
        file = BufferedReader(path.open("rb", 0), _BUFFER)
    except FileNotFoundError:
        if not packed(path).exists():  # it was compressed since it was listed
            raise
        file = BufferedReader(packed(path).open("rb", 0), _BUFFER)
    with file:
        kind = os.fstat(file.fileno()).st_mode
        if stat.S_ISBLK(kind) or (stat.S_ISCHR(kind) and not file.isatty()):
            raise DocumentError(f"{path} is a device, which may have no end")
        beginning = file.peek(len(_GZIP))[: len(_GZIP)]
        if beginning and beginning == _GZIP[:-1]:
            raise EOFError
        text = gzip.GzipFile(fileobj=file) if beginning == _GZIP else file
        begins = True
        while line := text.readline(LONGEST_LINE):
            if begins:
                yield line
            begins = line.endswith(b"\n")


@lru_cache(maxsize=16)
def _named_devices(keys: tuple[str, ...]) -> tuple[DeviceSlot, ...]:
    """Make the devices that keys are about, with no more of their identity than that."""
    found = {}
    for parts in filter(None, map(device_key, keys)):
        whole, number = ".".join(parts.device.split(".")[:2]), parts.device.rpartition(".")[2]
        if number.isdecimal() and "{" not in whole:  # not that of a template
            identity = DeviceIdentity(parts.kind, "", int(number), parent="" if whole == parts.device else whole)
            found[parts.device] = DeviceSlot(parts.device, int(number), None, identity)
    return tuple(sorted(found.values(), key=lambda slot: (bool(slot.identity.parent), slot.key.rpartition(".")[0], slot.index)))
