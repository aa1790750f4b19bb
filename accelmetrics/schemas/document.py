"""The document that ``dump --json`` prints, and the lines of recordings: their models, how they are read back, and their JSON Schemas.

Readers are lenient where releases may differ and nowhere else: reasons that this release does not know are kept, fields that
it does not know are passed over, and any ``schema_version`` of the same major number is read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, TypeGuard, TypeVar

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
    DeviceEntry,
    FindingEntry,
    HolderEntry,
    ProcessEntry,
    SourceStateEntry,
    StepEntry,
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

FAULTS_TOLD = 5
"""How many departures an error's message lists; a document of another kind departs everywhere."""

MOST_SECONDS = 1e10
"""How old a reading is at most: three centuries, within what every platform's calendar holds."""

_COUNTER = re.compile(rf"monitor\.exporter\.(.+)\.({'|'.join(EXPORTER_COUNTS)})")

T = TypeVar("T")


def recorded(record: Callable[..., T], entry: Part) -> T:
    """Return the record that an entry has the fields of, in their order."""
    return record(*(value for _, value in entry))


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


class NicEntry(Part):
    """A network card with RDMA."""

    name: Key = Field(description="As the kernel calls it.", examples=["mlx5_0"])
    pci_bus_id: str = Field("", description="Its PCI address, empty when unknown.")
    numa_node: int | None = Field(None, description="NUMA node of its slot; null when unknown.")
    cpu_affinity: str = Field("", description="CPUs near to its slot, as ranges; empty when unknown.")


class ConnectionEntry(Part):
    """What lies between two devices, or between a device and a network card."""

    between: Annotated[list[Key], Field(min_length=2, max_length=2)] = Field(
        description="The keys of both devices, or a device's key and the card's name."
    )
    path: str = Field(
        "",
        description="What PCIe has between them, the most that is on the way: one switch, several, a host bridge, several of one NUMA "
        "node, the link between nodes; empty when unknown.",
        examples=["PIX", "PXB", "PHB", "NODE", "SYS"],
    )
    link: str = Field("", description="The kind of direct links between them; empty where there are none.", examples=["nvlink", "xgmi"])
    links: int | None = Field(0, description="How many there are; null when unknown.")
    hops: int | None = Field(None, description="Over how many of them data travels; null when unknown.")
    switched: bool = Field(False, description="Whether they lead through switches.")
    unavailable: dict[Key, UnavailableEntry] = Field(default_factory=dict, description="Why path or links is unknown, by these names.")

    def connection(self) -> Connection:
        """Return it as snapshots have it."""
        one, other = self.between
        missing = {name: entry.unavailable() for name, entry in self.unavailable.items()}
        return Connection((one, other), self.path, self.link, self.links, self.hops, self.switched, missing)


class TopologyEntry(Part):
    """How devices are connected with each other, and with network cards."""

    connections: list[ConnectionEntry] = Field(description="One for each pair of devices, then one for each device and card.")
    nics: list[NicEntry] = Field(description="The network cards with RDMA.")

    def topology(self) -> Topology:
        """Return it as snapshots have it."""
        return Topology(tuple(entry.connection() for entry in self.connections), tuple(recorded(Nic, entry) for entry in self.nics))


class _Head(Part):
    """What documents of a machine begin with."""

    schema_version: Annotated[str, StringConstraints(pattern=rf"^{SCHEMA_VERSION.partition('.')[0]}\.[0-9]+$")] = Field(
        description="Version of this form; the number before the dot rises when old readers would misread it."
    )
    timestamp: Timestamp = Field(description="When the sample was put together (RFC 3339, UTC).")
    hostname: str = Field(description="The machine's name.")


class Document(_Head):
    """One sample of one machine."""

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
    topology: TopologyEntry | None = Field(None, description="How the devices are connected; left out where that was not asked for.")

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
            tuple(recorded(BackendStatus, entry) for entry in self.backends),
            {key: tuple(recorded(DeviceProcess, entry) for entry in found) for key, found in self.processes.items()},
            {key: entry.unavailable() for key, entry in self.unlisted.items()},
            None if self.topology is None else self.topology.topology(),
        )


class TopologyDocument(_Head):
    """How the devices of one machine are connected."""

    devices: Devices
    topology: TopologyEntry


def are_metrics(metrics: object) -> TypeGuard[dict[str, int | float]]:
    """Return whether these are metrics; False if in doubt.

    Raises:
        OverflowError: A whole number is beyond what a float holds.
    """
    return isinstance(metrics, dict) and "" not in metrics and are_finite(metrics.values())


class FindingsEntry(Part):
    """What rules have found until then."""

    current: list[FindingEntry] = Field([], description="What lasts.")
    ended: list[FindingEntry] = Field([], description="What was over since they were written before.")
    cannot_tell: list[CannotTellEntry] = Field([], description="What could not be judged.")

    def findings(self) -> Findings:
        """Return them as records have them."""
        lacks = (CannotTell(one.rule, tuple(one.keys), one.metric, one.reason, one.detail) for one in self.cannot_tell)
        current, ended = (tuple(recorded(Finding, one) for one in found) for found in (self.current, self.ended))
        return Findings(current, ended, tuple(lacks))


class HoldersEntry(Part):
    """Who holds the devices."""

    found: list[HolderEntry] = Field([], description="Each with its device.")
    sources: dict[Key, str] = Field({}, description="By source that was asked, why its answer is missing; empty where it is there.")

    def holders(self) -> Holders:
        """Return them as records have them."""
        return Holders(tuple(recorded(Holder, one) for one in self.found), self.sources)


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
        processes = {key: tuple(recorded(DeviceProcess, entry) for entry in found) for key, found in self.processes.items()}
        snapshot = Snapshot(
            self.timestamp, header.hostname, metrics, header.identities, header.unavailable, tuple(backends), processes, header.unlisted
        )
        steps = tuple(recorded(Step, step) for step in self.training)
        findings = last if self.findings is None else self.findings.findings()
        windows = tuple(recorded(WindowSpan, window) for window in self.windows)
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
    raise DocumentError(f"not a record: {key} = {shown(value)} is no whole number")


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
    _name_keys(schema["$defs"]["ConnectionEntry"]["properties"], "unavailable")
    schema["properties"]["metrics"] |= values_of_catalogue()
    schema["required"].remove("topology")
    head = {"$schema": DIALECT, "$id": SCHEMA_ID, "title": "accelmetrics dump --json"}
    return {**head, **{name: part for name, part in schema.items() if name not in head}}


def topology_schema() -> dict[str, Any]:
    """Make the JSON Schema (draft 2020-12) of what ``topology --json`` prints, as plain containers."""
    head = {"$schema": DIALECT, "$id": f"urn:accelmetrics:topology:{SCHEMA_VERSION}", "title": "accelmetrics topology --json"}
    schema = TopologyDocument.model_json_schema(mode="serialization")
    _name_keys(schema["$defs"]["ConnectionEntry"]["properties"], "unavailable")
    return {**schema, **head}


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
