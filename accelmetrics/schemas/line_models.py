"""The parts of lines of recordings: their models, by which they are validated and described, and a quick way for what most lines are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, TypeGuard, cast

from pydantic import Field, StringConstraints, TypeAdapter

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
    parse_timestamp,
    values_of_catalogue,
)
from accelmetrics.schemas.errors import DocumentError
from accelmetrics.schemas.finding import NO_FINDINGS, CannotTell, Finding, Findings, Severity
from accelmetrics.schemas.identity import BackendStatus, DeviceProcess, Status
from accelmetrics.schemas.lines import LINES_VERSION, are_finite
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
from accelmetrics.schemas.snapshot import Snapshot, rfc3339

MOST_SECONDS = 1e10
"""How old a reading is at most: three centuries, within what every platform's calendar holds."""

_QUICK = frozenset({"timestamp", "stream", "step", "metrics", "sources", "training"})
_STEP = frozenset({"timestamp", "step", "rank", "node", "values"})
_SOURCE = frozenset({"sequence", "age_seconds", "duration_seconds"})
_COUNTER = re.compile(rf"monitor\.exporter\.(.+)\.({'|'.join(EXPORTER_COUNTS)})")


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


def quick_reading(document: dict[str, Any]) -> PlainReading | None:
    """Read the line of a reading that says no more than metrics, how sources were read and what was logged, as most do.

    It is held to the same as by pydantic, in a third of the time. None where the line says more, or there is anything wrong with it.
    """
    stream, sources, step = document.get("stream"), document.get("sources", {}), document.get("step")
    training = document.get("training", [])
    simple = document.keys() <= _QUICK and type(stream) is str and stream and (step is None or type(step) is int)
    if not simple or type(training) is not list or type(sources) is not dict or not all(map(_is_source, sources, sources.values())):
        return None
    steps = []
    try:
        for entry in training:
            whole = all(number is None or type(number) is int for number in (entry.get("step"), entry.get("rank")))
            known = entry.keys() <= _STEP and type(entry.get("node", "")) is str
            if not whole or not known or not are_metrics(entry.get("values")):
                return None
            steps.append(StepEntry.model_construct(**{**entry, "timestamp": parse_timestamp(entry.get("timestamp"))}))
        timestamp = parse_timestamp(document.get("timestamp"))
    except (AttributeError, OverflowError, TypeError, ValueError):
        return None
    read = {name: SourceEntry.model_construct(**entry) for name, entry in sources.items()}
    return PlainReading.model_construct(timestamp=timestamp, stream=stream, sources=read, training=steps)


def _is_source(name: str, entry: object) -> bool:
    """Return whether this is how a source was read; False if in doubt."""
    if not name or type(entry) is not dict or not entry.keys() <= _SOURCE:
        return False
    sequence, age, seconds = entry.get("sequence", 0), entry.get("age_seconds", 0.0), entry.get("duration_seconds", 0.0)
    return type(sequence) is int and sequence >= 0 and type(age) is float and age <= MOST_SECONDS and type(seconds) is float


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
            tuple(device.slot() for device in self.devices),
            {key: entry.unavailable() for key, entry in self.unavailable.items()},
            tuple(BackendStatus(**dict(entry)) for entry in self.backends),
            {key: entry.unavailable() for key, entry in self.unlisted.items()},
            self.labels,
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
