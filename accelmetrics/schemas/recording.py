"""Recordings read back: files with a record a line, as the ``jsonl`` exporter and ``dump --interval`` write them.

>>> from accelmetrics.schemas.recording import recordings
>>> for recording in recordings("run.jsonl"):                                 # doctest: +SKIP
...     for record in recording:
...         print(record.snapshot.timestamp, record.snapshot.metrics.get("gpu.0.powerWatts"))
...     print(recording.path, recording.skipped, "lines were unreadable")

A line is held to the whole schema. Doing that through pydantic takes a millisecond for 8 GPUs, most of it for what every
line repeats: the devices, and why values are missing. So those parts are validated when they differ from those of the line
before, and recognised otherwise; the rest is checked on every line. Whatever the quick way does not know goes the long one.
"""

from __future__ import annotations

import gzip
import marshal
import os
import re
import zlib
from collections.abc import Iterator, Mapping
from math import isfinite
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import from_json

from accelmetrics.schemas.document import BackendEntry, Key, Number, Part, ProcessEntry, Timestamp, describe
from accelmetrics.schemas.errors import DocumentError
from accelmetrics.schemas.identity import BackendStatus, DeviceProcess
from accelmetrics.schemas.record import EXPORTER_COUNTS, NO_LABELS, ExporterStatus, MonitorStatus, Record, Step
from accelmetrics.schemas.rotation import files_of, packed
from accelmetrics.schemas.snapshot import Snapshot

LONGEST_LINE = 1 << 26
"""Bytes of a line that is still read: eight times what 1,024 GPUs give. Of a longer one, which is unreadable, no more is held."""

_BEGINNING = b'{"schema_version"'
_GZIP = b"\x1f\x8b"
_COUNTER = re.compile(rf"monitor\.exporter\.(.+)\.({'|'.join(EXPORTER_COUNTS)})")


def read_records(path: str | Path) -> Iterator[Record]:
    """The records of one file, compressed or not, in the order in which they were written.

    Raises:
        DocumentError: The file is no recording at all.
        OSError: It cannot be read.
    """
    return iter(RecordFile(path))


def recordings(path: str | Path) -> tuple[RecordFile, ...]:
    """What an exporter has written under this path: its closed files, oldest first, then the growing one.

    Raises:
        OSError: There is none, or the directory cannot be read.
    """
    return tuple(map(RecordFile, files_of(Path(os.path.realpath(path))))) or (RecordFile(path),)


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
        self._latest: tuple[tuple[object, ...], Snapshot] | None = None

    def __iter__(self) -> Iterator[Record]:
        """The records.

        Raises:
            DocumentError: No line of the file is a record, and it is more than the beginning of one.
            OSError: The file cannot be read.
        """
        self.skipped, self.complaint = 0, ""
        number, hopeless = 0, True
        try:
            for number, line in enumerate(_lines(self.path), 1):
                if line.isspace():
                    continue
                try:
                    record = self._record(line)
                except DocumentError as error:
                    self._skip(f", line {number}: {error}")
                    # A first record may have been written in part.
                    hopeless = hopeless and (line.endswith(b"\n") or line[: len(_BEGINNING)] != _BEGINNING[: len(line)])
                    continue
                hopeless = False
                yield record
        except EOFError:
            self._skip(f", after line {number}: the compressed file is cut")
            hopeless = hopeless and number > 0
        except (zlib.error, gzip.BadGzipFile) as error:
            self._skip(f", after line {number}: the compressed file is damaged: {error}")
        if self.skipped and hopeless:
            raise DocumentError(self.complaint)

    def _skip(self, what: str) -> None:
        self.skipped += 1
        self.complaint = self.complaint or f"{self.path}{what}"

    def _record(self, line: bytes) -> Record:
        """The record of a line.

        Raises:
            DocumentError: It is none.
        """
        try:
            document = from_json(line, allow_inf_nan=False, cache_strings="keys")
        except ValueError as error:
            raise DocumentError(f"not JSON: {error}") from error
        if not isinstance(document, dict):
            raise DocumentError("not an accelmetrics document")
        # By their bytes: 1, 1.0 and true are equal, and only one of them is a number of a device.
        devices = marshal.dumps(document.get("devices"), 2)
        constant = (document.get("schema_version"), document.get("hostname"), devices, document.get("unavailable"))
        try:
            latest = self._latest
            if latest is None or latest[0] != constant or not _are_metrics(document.get("metrics"), latest[1]):
                latest = self._latest = constant, Snapshot.from_dict(document)
            return _Line.model_validate(document).record(latest[1], document["metrics"])
        except ValidationError as error:
            raise DocumentError(f"not a record: {describe(error)}") from error
        except OverflowError as error:  # a whole number beyond what a float holds
            raise DocumentError(f"not a record: {error}") from error


def _lines(path: Path) -> Iterator[bytes]:
    """The lines with their ends; the last may have none.

    Raises:
        EOFError, zlib.error, gzip.BadGzipFile: The compressed file is cut or damaged; what stands before has been given.
    """
    try:
        file = path.open("rb")
    except FileNotFoundError:
        if not packed(path).exists():  # it was compressed since it was listed
            raise
        file = packed(path).open("rb")
    with file:
        beginning = file.peek(len(_GZIP))[: len(_GZIP)]
        if beginning and beginning == _GZIP[:-1]:
            raise EOFError
        text = gzip.GzipFile(fileobj=file) if beginning == _GZIP else file
        begins = True
        while line := text.readline(LONGEST_LINE):
            if begins:
                yield line
            begins = line.endswith(b"\n")


def _are_metrics(metrics: object, last: Snapshot) -> bool:
    """Whether these are metrics beside the reasons of the last snapshot; False if in doubt."""
    if not isinstance(metrics, dict) or "" in metrics or not metrics.keys().isdisjoint(last.unavailable):
        return False
    values = metrics.values()
    return set(map(type, values)) <= {int, float} and all(isfinite(value) for value in values if type(value) is float)


class _StepEntry(Part):
    timestamp: Timestamp
    step: int | None = None
    values: dict[Key, Number]


class _Line(Part):
    """What changes from line to line, but for the metrics, and what stands beside the snapshot's document."""

    timestamp: Timestamp
    backends: list[BackendEntry]
    processes: dict[Key, list[ProcessEntry]] = {}  # noqa: RUF012 - pydantic copies it
    labels: Mapping[str, str] = NO_LABELS
    training: list[_StepEntry] = []  # noqa: RUF012
    monitor: dict[str, Number] | None = None

    def record(self, last: Snapshot, metrics: dict[str, int | float]) -> Record:
        snapshot = Snapshot(
            self.timestamp,
            last.hostname,
            metrics,
            last.identities,
            last.unavailable,
            tuple(BackendStatus(**dict(entry)) for entry in self.backends),
            {key: tuple(DeviceProcess(**dict(entry)) for entry in found) for key, found in self.processes.items()},
        )
        steps = tuple(Step(step.timestamp, step.step, step.values) for step in self.training)
        return Record(snapshot, self.labels, steps, None if self.monitor is None else _status(self.monitor))


def _status(flat: Mapping[str, int | float]) -> MonitorStatus:
    """What :meth:`MonitorStatus.flat` gave. What a line does not say (an exporter's last error) has its default."""
    exporters: dict[str, dict[str, Any]] = {}
    for key, value in flat.items():
        if match := _COUNTER.fullmatch(key):
            exporters.setdefault(match[1], {})[match[2]] = _whole(key, value)
    ticks, missed, timed_out = (_whole(key, flat.get(key, 0)) for key in ("monitor.ticks", "monitor.missedTicks", "monitor.timedOut"))
    found = (ExporterStatus(name, **counts) for name, counts in exporters.items())
    return MonitorStatus(float(flat.get("monitor.interval", 0.0)), ticks, missed, timed_out, tuple(found))


def _whole(key: str, value: int | float) -> int:
    if isinstance(value, int):
        return value
    raise DocumentError(f"not a record: {key} = {value!r} is no whole number")
