"""The document that ``dump --json`` prints, and the lines of recordings: models, parsing and JSON Schemas.

Readers are lenient only where releases may differ: unknown reasons are kept, unknown fields are ignored, and any ``schema_version``
with the same major number is accepted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, TypeGuard

from pydantic import (
    AfterValidator,
    Field,
    StringConstraints,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from accelmetrics.schemas.catalogue import CATALOGUE
from accelmetrics.schemas.errors import DocumentError, Reason, Unavailable
from accelmetrics.schemas.identity import BackendStatus, DeviceIdentity, DeviceProcess, DeviceSlot
from accelmetrics.schemas.identity_models import (
    BackendEntry,
    CannotTellEntry,
    ConnectionEntry,
    DeviceEntry,
    FindingEntry,
    HolderEntry,
    NicEntry,
    ProcessEntry,
    SourceStateEntry,
    StepEntry,
    UnavailableEntry,
    WindowEntry,
)
from accelmetrics.schemas.lines import LINES_VERSION, are_finite
from accelmetrics.schemas.metric import ANY_KIND, NO_KINDS, PARTITION, Metric, device_key, fill
from accelmetrics.schemas.reading import Header, header as header_of
from accelmetrics.schemas.record import (
    EXPORTER_COUNTS,
    NO_FINDINGS,
    NO_LABELS,
    CannotTell,
    ExporterStatus,
    Finding,
    Findings,
    Holder,
    Holders,
    MonitorStatus,
    Record,
    Step,
    WindowSpan,
)
from accelmetrics.schemas.snapshot import SCHEMA_VERSION, Snapshot, rfc3339
from accelmetrics.schemas.text import shown
from accelmetrics.schemas.topology import Connection, Nic, Topology
from accelmetrics.schemas.view_model import Key, Number, Part, Timestamp

DIALECT = "https://json-schema.org/draft/2020-12/schema"
SCHEMA_ID = f"urn:accelmetrics:dump:{SCHEMA_VERSION}"

FAULTS_LISTED = 5
"""Most deviations that an error's message lists. A document of another kind deviates everywhere."""

MOST_SECONDS = 1e10
"""Greatest age of a reading in seconds: three centuries, so that dates stay within every platform's calendar."""

_COUNTER = re.compile(rf"monitor\.exporter\.(.+)\.({'|'.join(EXPORTER_COUNTS)})")


def _listed_once(devices: list[DeviceEntry]) -> list[DeviceEntry]:
    keys = [device.key for device in devices]
    twice = sorted({key for key in keys if keys.count(key) > 1})
    if twice:
        raise ValueError(f"devices has {twice[0]} more than once")
    return devices


Devices = Annotated[list[DeviceEntry], AfterValidator(_listed_once), Field(description="The devices, in the order of their numbers.")]


class TopologyEntry(Part):
    """How devices are connected with each other, and with network cards."""

    connections: list[ConnectionEntry] = Field(description="One per pair of devices, then one per device and network card.")
    nics: list[NicEntry] = Field(description="The network cards with RDMA.")


class _Head(Part):
    """The first fields of every document of a machine."""

    schema_version: Annotated[str, StringConstraints(pattern=rf"^{SCHEMA_VERSION.partition('.')[0]}\.[0-9]+$")] = Field(
        description="Version of this format; the number before the dot rises when old readers would misread it."
    )
    timestamp: Timestamp = Field(description="When the sample was completed (RFC 3339, UTC).")
    hostname: str = Field(description="The machine's name.")


class Document(_Head):
    """A sample of one machine."""

    metrics: dict[Key, Number] = Field(description="Finite numbers by key. A missing value is absent; its reason is in unavailable.")
    devices: Devices
    unavailable: dict[Key, UnavailableEntry] = Field(description="By key, the reason for a missing value.")
    backends: list[BackendEntry] = Field(description="The status of each source.")
    processes: dict[Key, list[ProcessEntry]] = Field(
        default_factory=dict, description="By device key, the processes that use the device; no entry if the source cannot list them."
    )
    unlisted: dict[Key, UnavailableEntry] = Field(
        default_factory=dict, description="By device key, the reason why the source cannot list its processes."
    )
    topology: TopologyEntry | None = Field(None, description="How the devices are connected; left out unless requested.")

    @model_validator(mode="after")
    def _consistent(self) -> Document:
        both = sorted(self.metrics.keys() & self.unavailable.keys())
        if both:
            raise ValueError(f"{both[0]} is in both metrics and unavailable")
        return self

    def snapshot(self) -> Snapshot:
        """Return the snapshot of this document."""
        constant = self.devices, self.unavailable, self.backends, self.processes, self.unlisted, self.topology
        return Snapshot(self.timestamp, self.hostname, self.metrics, *map(recorded, constant))


class TopologyDocument(_Head):
    """How the devices of one machine are connected."""

    devices: Devices
    topology: TopologyEntry


def are_metrics(metrics: object) -> TypeGuard[dict[str, int | float]]:
    """Return whether an object is a dict of valid metrics; False if in doubt.

    Raises:
        OverflowError: An integer is too large for a float.
    """
    return isinstance(metrics, dict) and "" not in metrics and are_finite(metrics.values())


class FindingsEntry(Part):
    """The findings of rules at one time."""

    current: list[FindingEntry] = Field([], description="Conditions that last.")
    ended: list[FindingEntry] = Field([], description="Conditions that ended since the findings were last written.")
    cannot_tell: list[CannotTellEntry] = Field([], description="Rules that could not be evaluated.")


class HoldersEntry(Part):
    """The jobs and pods that devices are allocated to."""

    found: list[HolderEntry] = Field([], description="The allocations, each with its device.")
    sources: dict[Key, str] = Field({}, description="By source asked, the reason why it did not answer; empty if it did.")


_RECORDS: dict[type[Part], Callable[..., object]] = {
    ProcessEntry: DeviceProcess,
    StepEntry: Step,
    WindowEntry: WindowSpan,
    FindingEntry: Finding,
    CannotTellEntry: CannotTell,
    FindingsEntry: Findings,
    HolderEntry: Holder,
    HoldersEntry: Holders,
    BackendEntry: BackendStatus,
    NicEntry: Nic,
    ConnectionEntry: Connection,
    TopologyEntry: Topology,
}
"""The record that each part of a document describes, with the same fields in the same order."""
_REASONS: dict[str, str] = {str(reason): reason for reason in Reason}


def recorded(part: object) -> Any:
    """Return a part of a document as the record that it describes, with lists as tuples. Other values are unchanged."""
    if isinstance(part, list):
        return tuple(map(recorded, part))
    if isinstance(part, dict):
        return {name: recorded(value) for name, value in part.items()}
    if isinstance(part, UnavailableEntry):
        return Unavailable(_REASONS.get(part.reason, part.reason), part.detail)
    if isinstance(part, SourceStateEntry):
        return BackendStatus(**dict(part))
    if isinstance(part, DeviceEntry):
        identity = DeviceIdentity(**{name: getattr(part, name) for name in DeviceIdentity._fields})
        return DeviceSlot(part.key, part.index, part.visible_index, identity)
    return _RECORDS[type(part)](*(recorded(value) for _, value in part)) if isinstance(part, Part) else part


class _Changing(Part):
    """The fields that change from line to line in every format, except the metrics."""

    timestamp: Timestamp = Field(description="When the reading was completed (RFC 3339, UTC).")
    training: list[StepEntry] = Field([], description="Steps that the program logged since the previous reading.")
    windows: list[WindowEntry] = Field(
        [], description="Windows that ended since the previous reading, and windows that began and are open."
    )
    processes: dict[Key, list[ProcessEntry]] = Field(
        {}, description="By device key, the processes that use the device; no entry if the source cannot list them."
    )
    monitor: dict[str, Number] | None = Field(None, description="The monitor's status; left out while only its counts of readings change.")
    findings: FindingsEntry | None = Field(None, description="The findings of rules; left out while they do not change.")

    def record(
        self, header: Header, metrics: dict[str, int | float], backends: Iterable[BackendStatus], last: Findings = NO_FINDINGS
    ) -> Record:
        """Return the record of this line and the given constant parts."""
        parts = metrics, header.identities, header.unavailable, tuple(backends), recorded(self.processes), header.unlisted
        findings = last if self.findings is None else recorded(self.findings)
        monitor = None if self.monitor is None else _status(self.monitor)
        steps, windows = recorded(self.training), recorded(self.windows)
        return Record(Snapshot(self.timestamp, header.hostname, *parts), header.labels, steps, monitor, findings=findings, windows=windows)


class DocumentLine(_Changing, Document):
    """A line that is a whole document, with the additional fields of records."""

    labels: Mapping[str, str] = NO_LABELS
    holders: HoldersEntry | None = None


class SourceEntry(Part):
    """The reading of one source."""

    sequence: int = Field(0, ge=0, description="Number of the reading; it stays the same if a reading is served again.")
    age_seconds: float | None = Field(None, le=MOST_SECONDS, description="Age of the reading; left out if there was none.")
    duration_seconds: float | None = Field(None, description="Duration of the reading; left out if there was none.")


class PlainReading(_Changing):
    """The line of a reading without its metrics."""

    stream: Key = Field(description="The stream to whose last header it belongs.")
    step: int | None = Field(None, description="The last step number that the program gave since the previous reading.")
    sources: dict[Key, SourceEntry] = Field({}, description="By backend, its reading.")

    def status(self, constant: BackendStatus) -> BackendStatus:
        """Return a source's status: the fields from the header, with the numbers of this line."""
        entry = self.sources.get(constant.name)
        if entry is None:
            return constant
        age = entry.age_seconds
        read_at = "" if age is None else rfc3339(self.timestamp - int(age * 1e9))
        return constant._replace(duration_seconds=entry.duration_seconds, read_at=read_at, age_seconds=age, sequence=entry.sequence)


class ReadingLine(PlainReading):
    """A reading. The last header of its stream belongs to it."""

    metrics: dict[Key, Number] = Field(description="Finite numbers by key. A missing value is absent; its reason is in the header.")


class HeaderLine(Part):
    """The constant data of the readings of a stream, valid until its next header."""

    schema_version: Annotated[str, StringConstraints(pattern=rf"^{LINES_VERSION.partition('.')[0]}\.[0-9]+$")] = Field(
        description="Version of these lines; the number before the dot rises when old readers would misread them."
    )
    stream: Key = Field(description="The writer's name, which identifies its readings in a file with several writers.")
    hostname: str = Field(description="The machine's name.")
    labels: dict[str, str] = Field(description="Labels that identify these readings: the user's labels, run id, rank, the scheduler's job.")
    devices: Devices
    unavailable: dict[Key, UnavailableEntry] = Field(description="By key, the reason for a missing value.")
    backends: list[SourceStateEntry] = Field(description="The state of each source.")
    unlisted: dict[Key, UnavailableEntry] = Field({}, description="By device key, the reason why the source cannot list its processes.")

    def header(self) -> Header:
        """Return the header as in records."""
        devices, unavailable, backends, unlisted = map(recorded, (self.devices, self.unavailable, self.backends, self.unlisted))
        return header_of(self.hostname, (), devices, unavailable, backends, unlisted, self.labels)


def _status(flat: Mapping[str, int | float]) -> MonitorStatus:
    """Return a monitor's status from the numbers that :meth:`MonitorStatus.flat` gave.

    Fields that lines do not have (an exporter's last error) have their defaults.
    """
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
    raise DocumentError(f"not a record: {key} = {shown(value)} is not a whole number")


def parse(document: str | bytes | Mapping[str, Any]) -> Snapshot:
    """Return the snapshot of a document.

    Args:
        document: The text, or the result of ``json.loads``.

    Raises:
        DocumentError: It is not a valid document.
    """
    try:
        if isinstance(document, (str, bytes)):
            return Document.model_validate_json(document).snapshot()
        return Document.model_validate(document).snapshot()
    except ValidationError as error:
        raise DocumentError(f"not an accelmetrics document: {describe(error)}") from error


def describe(error: ValidationError) -> str:
    """Return where and how a document deviates, in one line."""
    faults = [f"{_path(fault['loc'])}{fault['msg'].removeprefix('Value error, ')}" for fault in error.errors(include_url=False)]
    more = len(faults) - FAULTS_LISTED
    return "; ".join(faults[:FAULTS_LISTED]) + (f"; and {more} more" if more > 0 else "")


def _path(location: tuple[int | str, ...]) -> str:
    text = ""
    for step in location:
        plain = isinstance(step, str) and step.isidentifier()
        text += f".{step}" if plain and text else str(step) if plain else f"[{step!r}]"
    return f"{text}: " if text else ""


# The published schema

# With parentheses, because Graphcore's keys contain them.
_SPECIAL = re.compile(r"[.()\[\]*+?|^$\\]")
_ANY_KIND = rf"(?!(?:{'|'.join(sorted(NO_KINDS))})\.)[a-z][a-z0-9]*"


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of the document, as plain containers.

    Keys of the catalogue must have its types and bounds. Other keys may have any number, for backends of other packages.
    """
    schema = Document.model_json_schema(mode="serialization")
    _name_keys(schema["properties"], "metrics", "unavailable", "processes", "unlisted")
    _name_keys(schema["$defs"]["ConnectionEntry"]["properties"], "unavailable")
    schema["properties"]["metrics"] |= values_of_catalogue()
    schema["required"].remove("topology")
    head = {"$schema": DIALECT, "$id": SCHEMA_ID, "title": "accelmetrics dump --json"}
    return {**head, **{name: part for name, part in schema.items() if name not in head}}


def topology_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of the output of ``topology --json``, as plain containers."""
    head = {"$schema": DIALECT, "$id": f"urn:accelmetrics:topology:{SCHEMA_VERSION}", "title": "accelmetrics topology --json"}
    schema = TopologyDocument.model_json_schema(mode="serialization")
    _name_keys(schema["$defs"]["ConnectionEntry"]["properties"], "unavailable")
    return {**schema, **head}


def lines_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of both kinds of lines, as plain containers."""
    schema = TypeAdapter(HeaderLine | ReadingLine).json_schema()
    parts = schema["$defs"]
    _name_keys(parts["HeaderLine"]["properties"], "unavailable", "unlisted")
    _name_keys(parts["ReadingLine"]["properties"], "processes", "sources", "metrics")
    _name_keys(parts["StepEntry"]["properties"], "values")
    parts["ReadingLine"]["properties"]["metrics"] |= values_of_catalogue()
    return {"$schema": DIALECT, "$id": f"urn:accelmetrics:lines:{LINES_VERSION}", "title": "accelmetrics, a line of JSON lines", **schema}


def _name_keys(properties: dict[str, Any], *names: str) -> None:
    """Add to the schemas of mappings that their keys are not empty."""
    for name in names:
        # Older releases of pydantic leave this out. The published schema must not depend on the release, so the part is set here.
        properties[name].pop("propertyNames", None)
        properties[name]["propertyNames"] = {"minLength": 1}


def values_of_catalogue() -> dict[str, Any]:
    """Return the schema of flat metrics: keys of the catalogue with types and bounds, and any number under other keys."""
    rows = {pattern(spelling): value(row) for row in CATALOGUE for spelling in (row.key, *row.aliases)}
    return {"patternProperties": rows, "additionalProperties": {"type": "number"}}


def pattern(template: str) -> str:
    """Return the regular expression of a key template, in the syntax that ECMA 262 and Python share."""
    found = device_key(template)
    text = _SPECIAL.sub(r"\\\g<0>", template)
    if found is not None and not found.process:  # a partition's keys begin with its device's key
        text = text.replace("{i}", rf"[0-9]+(\.{PARTITION}\.[0-9]+)?")
    text = fill(text, "[0-9]+").replace(ANY_KIND, _ANY_KIND).replace("{i}", "[0-9]+")
    for placeholder in ("{path}", "{device}", "{port}", "{label}"):
        text = text.replace(placeholder, ".+")
    return f"^{text}$"


def value(row: Metric) -> dict[str, Any]:
    """Return the schema of a metric's value."""
    schema: dict[str, Any] = {"type": "integer" if row.integer else "number"}
    for word, bound in (("minimum", row.minimum), ("maximum", row.maximum)):
        if bound is not None:
            schema[word] = int(bound) if bound == int(bound) else bound
    return {**schema, "description": row.meaning, "x-unit": row.unit, "x-kind": row.kind}
