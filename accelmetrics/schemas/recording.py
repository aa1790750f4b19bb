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
import re
import stat
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import repeat
from math import isfinite, nan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeGuard, cast

from pydantic import Field, StringConstraints, TypeAdapter, ValidationError
from pydantic_core import from_json

from accelmetrics.schemas.document import (
    DIALECT,
    BackendEntry,
    Devices,
    Key,
    LoggedNumber,
    Number,
    Part,
    ProcessEntry,
    Timestamp,
    UnavailableEntry,
    describe,
    parse_timestamp,
    values_of_catalogue,
)
from accelmetrics.schemas.errors import DocumentError
from accelmetrics.schemas.finding import NO_FINDINGS, CannotTell, Finding, Findings, Severity
from accelmetrics.schemas.identity import BackendStatus, DeviceIdentity, DeviceProcess, Status
from accelmetrics.schemas.lines import LINES_VERSION, Header
from accelmetrics.schemas.metric import device_key
from accelmetrics.schemas.notebook import frame
from accelmetrics.schemas.record import EXPORTER_COUNTS, LOGGED, NO_LABELS, ExporterStatus, Holder, Holders, MonitorStatus, Record, Step
from accelmetrics.schemas.rotation import files_of, packed
from accelmetrics.schemas.selection import MetricSelection
from accelmetrics.schemas.snapshot import DeviceSlot, Snapshot, rfc3339

if TYPE_CHECKING:
    import pandas

LONGEST_LINE = 1 << 26
"""Bytes of a line that is still read: eight times what 1,024 GPUs give. Of a longer one, which is unreadable, no more is held."""

MOST_SECONDS = 1e10
"""How old a reading is at most: three centuries, within what every platform's calendar holds."""

_QUICK = frozenset({"timestamp", "stream", "step", "metrics", "sources"})
_SOURCE = frozenset({"sequence", "age_seconds", "duration_seconds"})
_BEGINNING = b'{"schema_version"'
_GZIP = b"\x1f\x8b"
_COUNTER = re.compile(rf"monitor\.exporter\.(.+)\.({'|'.join(EXPORTER_COUNTS)})")


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
    record = RecordFile("")._record(text, {})
    if record is None or not record.snapshot.hostname:
        raise DocumentError("not a whole record: a line of a recording, which needs the others")
    return record


def recordings(path: str | Path) -> tuple[RecordFile, ...]:
    """Return what an exporter has written under this path: its closed files, oldest first, then the growing one.

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
        headless: Readings whose header is not in the file, since it was cut off or cannot be read: what they have of devices is
            their keys, and there is no hostname, no label and no reason.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.skipped = 0
        self.complaint = ""
        self.headless = 0
        self._latest: tuple[tuple[object, ...], Snapshot] | None = None
        self._lasting: dict[str, Findings] = {}  # by stream

    def __iter__(self) -> Iterator[Record]:
        """Read the records.

        Raises:
            DocumentError: No line of the file is a record, and it is more than the beginning of one.
            OSError: The file cannot be read.
        """
        self.skipped, self.complaint, self.headless = 0, "", 0
        self._lasting = {}
        headers: dict[str, Header] = {}  # by stream, the last one
        number, hopeless = 0, True
        try:
            for number, line in enumerate(_lines(self.path), 1):
                if line.isspace():
                    continue
                try:
                    record = self._record(line, headers)
                except DocumentError as error:
                    self._skip(f", line {number}: {error}")
                    if line.startswith(_BEGINNING):  # whose header it was, is not known
                        headers.clear()
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

    def __repr__(self) -> str:
        return f"<RecordFile {str(self.path)!r}>"

    def _skip(self, what: str) -> None:
        self.skipped += 1
        self.complaint = self.complaint or f"{self.path}{what}"

    def _record(self, line: bytes, headers: dict[str, Header]) -> Record | None:
        """Make the record of a line; None for a header, which is added to those that hold.

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
                return self._reading(document, headers)
            header = HeaderLine.model_validate(document)
            headers[header.stream] = header.header()
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
        known = latest is not None and latest[0] == constant and _are_metrics(metrics) and metrics.keys().isdisjoint(latest[1].unavailable)
        if latest is None or not known:
            latest = self._latest = constant, Snapshot.from_dict(document)
        line = _DocumentLine.model_validate(document)
        last = latest[1]
        backends = [BackendStatus(**dict(entry)) for entry in line.backends]
        header = Header(last.hostname, line.labels, last.identities, last.unavailable, (), last.unlisted)
        record = line.record(header, document["metrics"], backends)
        return record if line.holders is None else record._replace(holders=line.holders.holders())

    def _reading(self, document: dict[str, Any], headers: Mapping[str, Header]) -> Record:
        """Make the record of a reading, with what its header says."""
        metrics = document.get("metrics")
        line = _QuickReading.of(document) or _Reading.model_validate(document)
        if not _are_metrics(metrics):
            metrics = ReadingLine.model_validate(document).metrics  # says what is wrong
        header = headers.get(line.stream)
        if header is None or not metrics.keys().isdisjoint(header.unavailable):
            self.headless += 1
            header = Header("", NO_LABELS, _named_devices(tuple(metrics)), {}, tuple(BackendStatus(name, "ok") for name in line.sources))
        record = line.record(
            header, metrics, [line.status(status) for status in header.backends], self._lasting.get(line.stream, NO_FINDINGS)
        )
        if line.findings is not None:
            self._lasting[line.stream] = replace(record.findings, ended=())  # until the stream says otherwise
        return record


def _lines(path: Path) -> Iterator[bytes]:
    """Read the lines with their ends; the last may have none.

    Raises:
        DocumentError: It is a device other than a terminal.
        EOFError, zlib.error, gzip.BadGzipFile: The compressed file is cut or damaged; what stands before has been given.
    """
    try:
        file = path.open("rb")
    except FileNotFoundError:
        if not packed(path).exists():  # it was compressed since it was listed
            raise
        file = packed(path).open("rb")
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


def _are_metrics(metrics: object) -> TypeGuard[dict[str, int | float]]:
    """Return whether these are metrics; False if in doubt.

    Raises:
        OverflowError: A whole number is beyond what a float holds.
    """
    if not isinstance(metrics, dict) or "" in metrics:
        return False
    values = metrics.values()
    return set(map(type, values)) <= {int, float} and all(map(isfinite, values))


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


class StepEntry(Part):
    """What the program logged at one moment."""

    timestamp: Timestamp = Field(description="When (RFC 3339, UTC).")
    step: int | None = Field(None, description="The program's own step; null where it named none.")
    rank: int | None = Field(None, description="The rank of the process that logged it; null where it has none.")
    node: str = Field("", description="The machine that it ran on; empty where that is not known.")
    values: dict[Key, LoggedNumber] = Field(description="Its numbers by name. Those that are not finite are texts.")


class FindingEntry(Part):
    """One thing that a rule found."""

    rule: Key = Field(description="The rule's name.")
    severity: Key = Field(description="`critical`, `warning` or `info`.")
    key: str = Field("", description="What it is about: a device's key, a rank, a source; empty for the run.")
    message: str = Field("", description="What was read, in words.")
    value: Number = Field(description="What was measured when it was found.")
    threshold: Number = Field(description="The limit that it was compared with.")
    since: Timestamp = Field(description="When the condition began (RFC 3339, UTC).")
    until: Timestamp | None = Field(None, description="When it was over; null while it lasts.")
    advice: str = Field("", description="What to do.")

    def finding(self) -> Finding:
        """Return it as records have it."""
        severity = cast("Severity", self.severity)
        return Finding(self.rule, severity, self.key, self.message, self.value, self.threshold, self.since, self.until, self.advice)


class CannotTellEntry(Part):
    """What a rule cannot judge."""

    rule: Key = Field(description="The rule's name.")
    keys: list[str] = Field([], description="The devices that it cannot judge; empty where it can judge nothing.")
    metric: str = Field("", description="What it lacks.")
    reason: str = Field(description="Why that is missing.")
    detail: str = Field("", description="The same in words.")


class FindingsEntry(Part):
    """What rules have found until then."""

    current: list[FindingEntry] = Field([], description="What lasts.")
    ended: list[FindingEntry] = Field([], description="What was over since they were written before.")
    cannot_tell: list[CannotTellEntry] = Field([], description="What could not be judged.")

    def findings(self) -> Findings:
        """Return them as records have them."""
        lacks = (CannotTell(one.rule, tuple(one.keys), one.metric, one.reason, one.detail) for one in self.cannot_tell)
        return Findings(tuple(one.finding() for one in self.current), tuple(one.finding() for one in self.ended), tuple(lacks))


class HolderEntry(Part):
    """A job, or a container of a pod, that a device was given to."""

    device: Key = Field(description="The device's key.")
    kind: Literal["job", "pod"] = Field(description="Which of both it is.")
    labels: dict[str, str] = Field(description="What it is called.")


class HoldersEntry(Part):
    """Who holds the devices."""

    found: list[HolderEntry] = Field([], description="Each with its device.")
    sources: dict[Key, str] = Field({}, description="By source that was asked, why its answer is missing; empty where it is there.")

    def holders(self) -> Holders:
        """Return them as records have them."""
        return Holders(tuple(Holder(one.device, one.kind, one.labels) for one in self.found), self.sources)


class _Changing(Part):
    """What changes from line to line in every form, but for the metrics."""

    timestamp: Timestamp = Field(description="When the reading was put together (RFC 3339, UTC).")
    training: list[StepEntry] = Field([], description="What the program logged since the reading before.")
    processes: dict[Key, list[ProcessEntry]] = Field(
        {}, description="By device key, the processes that use it; no entry where the source cannot say."
    )
    monitor: dict[str, Number] | None = Field(None, description="How the monitor fares; left out while only its counts of readings change.")
    findings: FindingsEntry | None = Field(None, description="What rules have found; left out while it does not change.")

    def record(
        self, header: Header, metrics: dict[str, int | float], backends: Iterable[BackendStatus], last: Findings = NO_FINDINGS
    ) -> Record:
        """Make the record, with what stays the same."""
        processes = {key: tuple(DeviceProcess(**dict(entry)) for entry in found) for key, found in self.processes.items()}
        snapshot = Snapshot(
            self.timestamp, header.hostname, metrics, header.identities, header.unavailable, tuple(backends), processes, header.unlisted
        )
        steps = tuple(Step(step.timestamp, step.step, step.values, step.rank, step.node) for step in self.training)
        findings = last if self.findings is None else self.findings.findings()
        return Record(snapshot, header.labels, steps, None if self.monitor is None else _status(self.monitor), findings=findings)


class _DocumentLine(_Changing):
    """What changes from document to document, and what stands beside it."""

    backends: list[BackendEntry]
    labels: Mapping[str, str] = NO_LABELS
    holders: HoldersEntry | None = None


class SourceEntry(Part):
    """How one source was read."""

    sequence: int = Field(0, ge=0, description="Number of the reading: one that is served twice keeps its number.")
    age_seconds: float | None = Field(None, le=MOST_SECONDS, description="How old the reading was; left out when there was none.")
    duration_seconds: float | None = Field(None, description="How long it took; left out when there was none.")


class _Reading(_Changing):
    """The line of a reading, but for the metrics."""

    stream: Key = Field(description="Whose header goes with it.")
    step: int | None = Field(None, description="The last step that the program named since the reading before.")
    sources: dict[Key, SourceEntry] = Field({}, description="By backend, how it was read.")

    def status(self, stands: BackendStatus) -> BackendStatus:
        """Return how a source fared: what the header says of it, and this line."""
        entry = self.sources.get(stands.name)
        if entry is None:
            return stands
        age = entry.age_seconds
        read_at = "" if age is None else rfc3339(self.timestamp - int(age * 1e9))
        return stands._replace(duration_seconds=entry.duration_seconds, read_at=read_at, age_seconds=age, sequence=entry.sequence)


class _QuickReading(NamedTuple):
    """The line of a reading that says nothing but metrics and how sources were read, as most do: held to the same without pydantic."""

    timestamp: int
    stream: str
    sources: dict[str, Any]
    findings: None = None

    @classmethod
    def of(cls, document: dict[str, Any]) -> _QuickReading | None:
        """Make it from what JSON gave; None where the line says more, or there is anything wrong with it."""
        stream, sources, step = document.get("stream"), document.get("sources", {}), document.get("step")
        simple = document.keys() <= _QUICK and type(stream) is str and stream and (step is None or type(step) is int)
        if not simple or type(sources) is not dict or not all(map(_is_source, sources, sources.values())):
            return None
        try:
            return cls(parse_timestamp(document.get("timestamp")), str(stream), sources)
        except ValueError:
            return None

    def status(self, stands: BackendStatus) -> BackendStatus:
        """Return how a source fared, as :meth:`_Reading.status`."""
        entry = self.sources.get(stands.name)
        if entry is None:
            return stands
        age, seconds = entry.get("age_seconds"), entry.get("duration_seconds")
        read_at = "" if age is None else rfc3339(self.timestamp - int(age * 1e9))
        name, status, detail, source, *_, devices = stands
        return BackendStatus(name, status, detail, source, seconds, read_at, age, entry.get("sequence", 0), devices)

    def record(self, header: Header, metrics: dict[str, int | float], backends: Iterable[BackendStatus], last: Findings) -> Record:
        """Make the record, with what stays the same."""
        head, unlisted = header.identities, header.unlisted
        snapshot = Snapshot(self.timestamp, header.hostname, metrics, head, header.unavailable, tuple(backends), {}, unlisted)
        return Record(snapshot, header.labels, findings=last)


def _is_source(name: str, entry: object) -> bool:
    """Return whether this is how a source was read; False if in doubt."""
    if not name or type(entry) is not dict or not entry.keys() <= _SOURCE:
        return False
    sequence, age, seconds = entry.get("sequence", 0), entry.get("age_seconds", 0.0), entry.get("duration_seconds", 0.0)
    return type(sequence) is int and sequence >= 0 and type(age) is float and age <= MOST_SECONDS and type(seconds) is float


class ReadingLine(_Reading):
    """One reading, to which the last header of its stream belongs."""

    metrics: dict[Key, Number] = Field(description="Finite numbers by key. What could not be read is absent, and the header says why.")


class SourceStateEntry(Part):
    """How one source stands."""

    name: Key = Field(description="The backend's name.")
    status: Status = Field(description="Whether it is there and gives what it should.")
    detail: str = Field("", description="What was found or what went wrong, in words.")
    source: str = Field("", description="Where the numbers come from, empty while nothing is open.")
    devices: int = Field(0, ge=0, description="Devices that it lists; where it never listed any, those found without its driver.")


class HeaderLine(Part):
    """What holds for the readings of its stream from here on."""

    schema_version: Annotated[str, StringConstraints(pattern=rf"^{LINES_VERSION.partition('.')[0]}\.[0-9]+$")] = Field(
        description="Version of these lines; the number before the dot rises when old readers would misread them."
    )
    stream: Key = Field(description="The writer's name, by which its readings are known among those of others in the file.")
    hostname: str = Field(description="The machine's name.")
    labels: dict[str, str] = Field(
        description="What tells these readings from others: the user's labels, run id, rank, the scheduler's job."
    )
    devices: Devices
    unavailable: dict[Key, UnavailableEntry] = Field(description="By key, why a value is missing.")
    backends: list[SourceStateEntry] = Field(description="How each source stands.")
    unlisted: dict[Key, UnavailableEntry] = Field({}, description="By device key, why the source cannot say which processes use it.")

    def header(self) -> Header:
        """Return what it says, as records have it."""
        return Header(
            self.hostname,
            self.labels,
            tuple(device.slot() for device in self.devices),
            {key: entry.unavailable() for key, entry in self.unavailable.items()},
            tuple(BackendStatus(**dict(entry)) for entry in self.backends),
            {key: entry.unavailable() for key, entry in self.unlisted.items()},
        )


def lines_schema() -> dict[str, Any]:
    """Make the JSON Schema (draft 2020-12) of both kinds of lines, as plain containers."""
    schema = TypeAdapter(HeaderLine | ReadingLine).json_schema()
    parts = schema["$defs"]
    for owner, names in (
        (HeaderLine, ["unavailable", "unlisted"]),
        (ReadingLine, ["processes", "sources", "metrics"]),
        (StepEntry, ["values"]),
    ):
        for name in names:
            keyed = parts[owner.__name__]["properties"][name]
            keyed.pop("propertyNames", None)  # as in the document's
            keyed["propertyNames"] = {"minLength": 1}
    parts["ReadingLine"]["properties"]["metrics"] |= values_of_catalogue()
    head = {"$schema": DIALECT, "$id": f"urn:accelmetrics:lines:{LINES_VERSION}", "title": "accelmetrics, a line of JSON lines"}
    return {**head, **schema}


def _status(flat: Mapping[str, int | float]) -> MonitorStatus:
    """Return what :meth:`MonitorStatus.flat` gave. What a line does not say (an exporter's last error) has its default."""
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
