"""The document that ``dump --json`` prints, and the lines of recordings: their models, how they are read back, and their JSON Schemas.

Readers are lenient where releases may differ and nowhere else: reasons that this release does not know are kept, fields that
it does not know are passed over, and any ``schema_version`` of the same major number is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta, timezone
from math import isfinite
from typing import Annotated, Any, Literal, TypeGuard, cast

from pydantic import (
    AfterValidator,
    Field,
    PlainValidator,
    StringConstraints,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
    model_validator,
)

from accelmetrics.schemas.catalogue import CATALOGUE
from accelmetrics.schemas.errors import DocumentError, Reason, Unavailable
from accelmetrics.schemas.finding import NO_FINDINGS, CannotTell, Finding, Findings, Severity
from accelmetrics.schemas.identity import BackendStatus, DeviceIdentity, DeviceProcess, DeviceSlot, Status
from accelmetrics.schemas.identity_models import BackendEntry, DeviceEntry, ProcessEntry
from accelmetrics.schemas.lines import LINES_VERSION, are_finite
from accelmetrics.schemas.metric import ANY_KIND, NO_KINDS, PARTITION, Metric, device_key, fill
from accelmetrics.schemas.reading import Header, header as header_of
from accelmetrics.schemas.record import (
    EXPORTER_COUNTS,
    NO_LABELS,
    ExporterStatus,
    Holder,
    Holders,
    MonitorStatus,
    Record,
    Step,
    WindowSpan,
)
from accelmetrics.schemas.snapshot import SCHEMA_VERSION, Snapshot, rfc3339
from accelmetrics.schemas.view_model import Key, Part

DIALECT = "https://json-schema.org/draft/2020-12/schema"
SCHEMA_ID = f"urn:accelmetrics:dump:{SCHEMA_VERSION}"

FAULTS_TOLD = 5
"""How many departures an error's message lists; a document of another kind departs everywhere."""

MOST_SECONDS = 1e10
"""How old a reading is at most: three centuries, within what every platform's calendar holds."""

_COUNTER = re.compile(rf"monitor\.exporter\.(.+)\.({'|'.join(EXPORTER_COUNTS)})")

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_TIMESTAMP = re.compile(r"(\d{4})-(\d\d)-(\d\d)[Tt](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?(?:[Zz]|([+-])(\d\d):(\d\d))", re.ASCII)


def parse_timestamp(text: object) -> int:
    """Convert to nanoseconds since 1970 an RFC 3339 timestamp.

    Raises:
        ValueError: It is not one.
    """
    found = _TIMESTAMP.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise ValueError(f"{text!r} is not an RFC 3339 timestamp with its time zone")
    year, month, day, hour, minute, second, fraction, sign, hours, minutes = found.groups()
    moment = datetime(int(year), int(month), int(day), int(hour), int(minute), int(second), tzinfo=timezone.utc)
    if sign:
        offset = timedelta(hours=int(hours), minutes=int(minutes))
        try:
            moment = moment + offset if sign == "-" else moment - offset
        except OverflowError:
            raise ValueError(f"{text!r} lies outside the calendar") from None
    return (moment - _EPOCH) // timedelta(seconds=1) * 1_000_000_000 + int((fraction or "").ljust(9, "0"))


def _finite_number(value: object) -> int | float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{value!r} is not a number")
    if isinstance(value, float) and not isfinite(value):
        raise ValueError("the value is not finite")
    return value


def _logged_number(value: object) -> int | float:
    """Return a finite number, or the one that a text stands for."""
    return float(value) if isinstance(value, str) and value in NOT_FINITE else _finite_number(value)


NOT_FINITE = ("NaN", "Infinity", "-Infinity")
"""How documents have numbers of the program that are not finite."""
Number = Annotated[int | float, PlainValidator(_finite_number), WithJsonSchema({"type": "number"})]
LoggedNumber = Annotated[
    int | float,
    PlainValidator(_logged_number),
    WithJsonSchema({"anyOf": [{"type": "number"}, {"enum": list(NOT_FINITE)}]}),
]
"""A number that the program logged, which may be none that JSON has."""
Timestamp = Annotated[int, PlainValidator(parse_timestamp), WithJsonSchema({"type": "string", "format": "date-time"})]
"""Nanoseconds since 1970 of what is an RFC 3339 timestamp in the document."""


def slot_of(entry: DeviceEntry) -> DeviceSlot:
    """Return a device and where it stands."""
    identity = {name: getattr(entry, name) for name in DeviceIdentity._fields}
    return DeviceSlot(entry.key, entry.index, entry.visible_index, DeviceIdentity(**identity))


def _listed_once(devices: list[DeviceEntry]) -> list[DeviceEntry]:
    keys = [device.key for device in devices]
    twice = sorted({key for key in keys if keys.count(key) > 1})
    if twice:
        raise ValueError(f"devices has {twice[0]} more than once")
    return devices


Devices = Annotated[list[DeviceEntry], AfterValidator(_listed_once), Field(description="The devices, in the order of their numbers.")]


class UnavailableEntry(Part):
    """Why a value is missing."""

    reason: str = Field(
        min_length=1, description="One word for programs. Readers accept reasons that they do not know.", examples=list(map(str, Reason))
    )
    detail: str = Field("", description="What exactly was said.")

    def unavailable(self) -> Unavailable:
        """Return the reason, as a member where this release knows it, and the detail."""
        return Unavailable(_REASONS.get(self.reason, self.reason), self.detail)


_REASONS: dict[str, str] = {str(reason): reason for reason in Reason}


class Document(Part):
    """One sample of one machine."""

    schema_version: Annotated[str, StringConstraints(pattern=rf"^{SCHEMA_VERSION.partition('.')[0]}\.[0-9]+$")] = Field(
        description="Version of this form; the number before the dot rises when old readers would misread it."
    )
    timestamp: Timestamp = Field(description="When the sample was put together (RFC 3339, UTC).")
    hostname: str = Field(description="The machine's name.")
    metrics: dict[Key, Number] = Field(description="Finite numbers by key. What could not be read is absent here and has its reason below.")
    devices: Devices
    unavailable: dict[Key, UnavailableEntry] = Field(description="By key, why a value is missing.")
    backends: list[BackendEntry] = Field(description="How each source fared.")
    processes: dict[Key, list[ProcessEntry]] = Field(
        default_factory=dict, description="By device key, the processes that use it; no entry where the source cannot say."
    )
    unlisted: dict[Key, UnavailableEntry] = Field(
        default_factory=dict, description="By device key, why the source cannot say which processes use it."
    )

    @model_validator(mode="after")
    def _consistent(self) -> Document:
        both = sorted(self.metrics.keys() & self.unavailable.keys())
        if both:
            raise ValueError(f"{both[0]} is in both metrics and unavailable")
        return self

    def snapshot(self) -> Snapshot:
        """Return the snapshot that this is the document of."""
        return Snapshot(
            self.timestamp,
            self.hostname,
            self.metrics,
            tuple(map(slot_of, self.devices)),
            {key: entry.unavailable() for key, entry in self.unavailable.items()},
            tuple(BackendStatus(**dict(entry)) for entry in self.backends),
            {key: tuple(DeviceProcess(**dict(entry)) for entry in found) for key, found in self.processes.items()},
            {key: entry.unavailable() for key, entry in self.unlisted.items()},
        )


def are_metrics(metrics: object) -> TypeGuard[dict[str, int | float]]:
    """Return whether these are metrics; False if in doubt.

    Raises:
        OverflowError: A whole number is beyond what a float holds.
    """
    return isinstance(metrics, dict) and "" not in metrics and are_finite(metrics.values())


class StepEntry(Part):
    """What the program logged at one moment."""

    timestamp: Timestamp = Field(description="When (RFC 3339, UTC).")
    step: int | None = Field(None, description="The program's own step; null where it named none.")
    rank: int | None = Field(None, description="The rank of the process that logged it; null where it has none.")
    node: str = Field("", description="The machine that it ran on; empty where that is not known.")
    values: dict[Key, LoggedNumber] = Field(description="Its numbers by name. Those that are not finite are texts.")


class WindowEntry(Part):
    """A window of the program."""

    name: Key = Field(description="Its name.")
    begin: Timestamp = Field(description="When it began (RFC 3339, UTC).")
    end: Timestamp | None = Field(None, description="When it ended; null while it is open.")


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
    windows: list[WindowEntry] = Field([], description="Windows that ended since the reading before, and those that began and are open.")
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
        windows = tuple(WindowSpan(window.name, window.begin, window.end) for window in self.windows)
        monitor = None if self.monitor is None else _status(self.monitor)
        return Record(snapshot, header.labels, steps, monitor, findings=findings, windows=windows)


class DocumentLine(_Changing):
    """What changes from document to document, and what stands beside it."""

    backends: list[BackendEntry]
    labels: Mapping[str, str] = NO_LABELS
    holders: HoldersEntry | None = None


class SourceEntry(Part):
    """How one source was read."""

    sequence: int = Field(0, ge=0, description="Number of the reading: one that is served twice keeps its number.")
    age_seconds: float | None = Field(None, le=MOST_SECONDS, description="How old the reading was; left out when there was none.")
    duration_seconds: float | None = Field(None, description="How long it took; left out when there was none.")


class PlainReading(_Changing):
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


class ReadingLine(PlainReading):
    """One reading, to which the last header of its stream belongs."""

    metrics: dict[Key, Number] = Field(description="Finite numbers by key. What could not be read is absent, and the header says why.")


class SourceStateEntry(Part):
    """How one source stands."""

    name: Key = Field(description="The backend's name.")
    status: Status = Field(description="Whether it is there and gives what it should.")
    detail: str = Field("", description="What was found or what went wrong, in words.")
    source: str = Field("", description="Where the numbers come from, empty while nothing is open.")
    devices: int = Field(0, ge=0, description="Devices that it lists; where it never listed any, those found without its driver.")
    reason: str = Field("", description="Why it could not be opened, as a reason of missing values; empty for one that is open or absent.")


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
        return header_of(
            self.hostname,
            (),
            tuple(map(slot_of, self.devices)),
            {key: entry.unavailable() for key, entry in self.unavailable.items()},
            tuple(BackendStatus(**dict(entry)) for entry in self.backends),
            {key: entry.unavailable() for key, entry in self.unlisted.items()},
            self.labels,
        )


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


def parse(document: str | bytes | Mapping[str, Any]) -> Snapshot:
    """Read a document: its text, or what ``json.loads`` made of it.

    Raises:
        DocumentError: It is not such a document.
    """
    try:
        if isinstance(document, (str, bytes)):
            return Document.model_validate_json(document).snapshot()
        return Document.model_validate(document).snapshot()
    except ValidationError as error:
        raise DocumentError(f"not an accelmetrics document: {describe(error)}") from error


def describe(error: ValidationError) -> str:
    """Return where a document departs, and how, in one line."""
    faults = [f"{_path(fault['loc'])}{fault['msg'].removeprefix('Value error, ')}" for fault in error.errors(include_url=False)]
    more = len(faults) - FAULTS_TOLD
    return "; ".join(faults[:FAULTS_TOLD]) + (f"; and {more} more" if more > 0 else "")


def _path(location: tuple[int | str, ...]) -> str:
    text = ""
    for step in location:
        plain = isinstance(step, str) and step.isidentifier()
        text += f".{step}" if plain and text else str(step) if plain else f"[{step!r}]"
    return f"{text}: " if text else ""


# The published schema

# Graphcore's keys hold parentheses.
_SPECIAL = re.compile(r"[.()\[\]*+?|^$\\]")
_ANY_KIND = rf"(?!(?:{'|'.join(sorted(NO_KINDS))})\.)[a-z][a-z0-9]*"


def json_schema() -> dict[str, Any]:
    """Make the JSON Schema (draft 2020-12) of the document, as plain containers.

    Keys of the catalogue are held to its types and bounds; other keys may carry any number, for backends from elsewhere.
    """
    schema = Document.model_json_schema(mode="serialization")
    _name_keys(schema["properties"], "metrics", "unavailable", "processes", "unlisted")
    schema["properties"]["metrics"] |= values_of_catalogue()
    head = {"$schema": DIALECT, "$id": SCHEMA_ID, "title": "accelmetrics dump --json"}
    return {**head, **{name: part for name, part in schema.items() if name not in head}}


def lines_schema() -> dict[str, Any]:
    """Make the JSON Schema (draft 2020-12) of both kinds of lines, as plain containers."""
    schema = TypeAdapter(HeaderLine | ReadingLine).json_schema()
    parts = schema["$defs"]
    _name_keys(parts["HeaderLine"]["properties"], "unavailable", "unlisted")
    _name_keys(parts["ReadingLine"]["properties"], "processes", "sources", "metrics")
    _name_keys(parts["StepEntry"]["properties"], "values")
    parts["ReadingLine"]["properties"]["metrics"] |= values_of_catalogue()
    head = {"$schema": DIALECT, "$id": f"urn:accelmetrics:lines:{LINES_VERSION}", "title": "accelmetrics, a line of JSON lines"}
    return {**head, **schema}


def _name_keys(properties: dict[str, Any], *names: str) -> None:
    """Say of mappings that their keys are not empty."""
    for name in names:
        # Older releases of pydantic leave this out, and the published copy must not depend on the release.
        properties[name].pop("propertyNames", None)
        properties[name]["propertyNames"] = {"minLength": 1}


def values_of_catalogue() -> dict[str, Any]:
    """Make what a schema says of flat metrics: the catalogue's keys with their types and bounds, any number under other keys."""
    rows = {pattern(spelling): value(row) for row in CATALOGUE for spelling in (row.key, *row.aliases)}
    return {"patternProperties": rows, "additionalProperties": {"type": "number"}}


def pattern(template: str) -> str:
    """Make the regular expression of a key template, in the part of the language that ECMA 262 and Python share."""
    found = device_key(template)
    text = _SPECIAL.sub(r"\\\g<0>", template)
    if found is not None and not found.process:  # the keys of a partition stand below those of its device
        text = text.replace("{i}", rf"[0-9]+(\.{PARTITION}\.[0-9]+)?")
    text = fill(text, "[0-9]+").replace(ANY_KIND, _ANY_KIND).replace("{i}", "[0-9]+")
    for placeholder in ("{path}", "{device}", "{port}", "{label}"):
        text = text.replace(placeholder, ".+")
    return f"^{text}$"


def value(row: Metric) -> dict[str, Any]:
    """Make the schema of a metric's value."""
    schema: dict[str, Any] = {"type": "integer" if row.integer else "number"}
    for word, bound in (("minimum", row.minimum), ("maximum", row.maximum)):
        if bound is not None:
            schema[word] = int(bound) if bound == int(bound) else bound
    return {**schema, "description": row.meaning, "x-unit": row.unit, "x-kind": row.kind}
