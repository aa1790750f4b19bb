"""Makes a report from records, in one pass and in bounded memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from heapq import merge
from itertools import chain
from pathlib import Path

from accelmetrics.schemas.errors import AccelMetricsError, DocumentError
from accelmetrics.schemas.identity import DeviceIdentity
from accelmetrics.schemas.record import (
    NOT_LOGGED,
    STEP_NAMES,
    CannotTell,
    Done,
    Record,
    StepSource,
    Totals,
    add_work,
    done_by_command,
    rates,
)
from accelmetrics.schemas.recording import RecordFile, recordings
from accelmetrics.schemas.selection import ALL_METRICS, MetricSelection
from accelmetrics.schemas.snapshot import rfc3339
from accelmetrics.schemas.text import counted
from accelmetrics.schemas.vitals import MEMORY_PERCENT, MEMORY_USED, POWER, POWER_LIMIT, TEMPERATURE, UTILIZATION, first
from accelmetrics.views import summaries
from accelmetrics.views.report.periods import periods
from accelmetrics.views.report.run_report import Plain, Price, RunReport, StreamReport
from accelmetrics.views.report.stream import RecordStream, stream_of

KWH, HOUR = 3_600_000.0, 3600.0
"""Joules of a kilowatt-hour, and seconds of an hour."""
CHARTED = MetricSelection(
    ",".join(
        (*UTILIZATION[:5], *MEMORY_USED, *MEMORY_PERCENT, *POWER[:1], *TEMPERATURE[:1], "smClock", "memoryTemp", "cpu", "memory_percent")
    )
)
"""Metrics that are reduced to series by default."""
INPUT = "JSON lines, which the exporter jsonl and `accelmetrics dump --json --interval` write"
_BLOCK = 1 << 20


@dataclass(frozen=True)
class Wanted:
    """Options of a report.

    Attributes:
        metrics: Metrics in tables; all by default.
        series: Metrics that are reduced to series; None for a report without pictures, which is faster.
        price: Price of a kilowatt-hour.
        rent: Price of a device for an hour.
        carbon: Grams of CO2 equivalent for a kilowatt-hour.
        by: A logged number, or a name of windows, for a table with one row for each value; empty for none.
        compared: Whether the report is compared with another. Distributions then begin with the first step.
    """

    metrics: MetricSelection = ALL_METRICS
    series: MetricSelection | None = None
    price: Price | None = None
    rent: Price | None = None
    carbon: float | None = None
    by: str = ""
    compared: bool = False

    def priced(self, joules: float | None, device_seconds: float) -> dict[str, float | None]:
        """Return the cost and the carbon of energy, and the rent of devices; None without a price."""
        return {
            "cost": None if joules is None or self.price is None else joules / KWH * self.price.amount,
            "carbon_grams": None if joules is None or self.carbon is None else joules / KWH * self.carbon,
            "rent_cost": None if self.rent is None else device_seconds / HOUR * self.rent.amount,
        }


def report_of_files(names: list[str], wanted: Wanted = Wanted()) -> RunReport | None:  # the default is immutable
    """Read recordings and return their report; None without any record.

    Raises:
        AccelMetricsError: A file cannot be read, or is no recording.
    """
    files: list[tuple[str, int, int, int, str]] = []
    warnings: list[str] = []
    report = run_report(_records(names, wanted.series is not None, files, warnings), wanted)
    return None if report is None else replace(report, files=files, warnings=(*warnings, *report.warnings))


def _records(names: Sequence[str], hashed: bool, files: list[tuple[str, int, int, int, str]], warnings: list[str]) -> Iterator[Record]:
    """Yield the records of files and of their rotated predecessors. The records of one process of a run are in order of time.

    Args:
        names: The files.
        hashed: Whether to compute SHA-256 digests.
        files: Extended with an entry for each file, as in ``RunReport.files``.
        warnings: Extended with a text for each unreadable part.

    Raises:
        AccelMetricsError: A file cannot be read, or is no recording.
    """

    def read(found: Iterable[RecordFile]) -> Iterator[Record]:
        for recording in found:
            readings = 0
            with _with_file_name(str(recording.path)):
                size = recording.path.stat().st_size if recording.path.is_file() else 0
                for record in recording:
                    readings += 1
                    yield record
                digest = _digest(recording.path, size) if hashed else ""  # last, as one that is refused may be endless
            if recording.skipped:
                warnings.append(f"{counted(recording.skipped, 'line')} could not be read; the first: {recording.complaint}")
            if recording.headless:
                warnings.append(f"{recording.path}: the header of {recording.headless} readings is missing: host and labels are unknown")
            files.append((str(recording.path), size, readings, recording.skipped, digest))

    groups: dict[tuple[str, ...], list[Iterator[Record]]] = {}
    seen: set[Path] = set()
    for name in names:
        with _with_file_name(name):
            found = [one for one in recordings(name) if one.path.resolve() not in seen]
            seen.update(one.path.resolve() for one in found)
            first_record = next(chain.from_iterable(found), None)
        # Files are opened again when their time has come: there may be many.
        groups.setdefault(() if first_record is None else stream_of(first_record), []).append(read(found))
    for group in groups.values():
        yield from merge(*group, key=lambda record: record.snapshot.time_ns) if len(group) > 1 else group[0]


def _digest(path: Path, size: int) -> str:
    """Return the SHA-256 of the first ``size`` bytes of a file, which may have grown; empty for a stream."""
    if not path.is_file():
        return ""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while size and (block := file.read(min(size, _BLOCK))):
            digest.update(block)
            size -= len(block)
    return digest.hexdigest()


@contextmanager
def _with_file_name(name: str) -> Iterator[None]:
    try:
        yield
    except DocumentError as error:
        raise AccelMetricsError(f"{error}: report takes {INPUT}") from error
    except OSError as error:
        raise AccelMetricsError(f"cannot read {name}: {error.strerror or error}") from error


def run_report(records: Iterable[Record], wanted: Wanted = Wanted()) -> RunReport | None:  # the default is immutable
    """Return the report of records; None without records. The records of one process of a run must be in order of time."""
    found: dict[tuple[str, str, str], RecordStream] = {}
    own_work: dict[tuple[str, StepSource], Done] = {}
    for record in records:
        if not wanted.metrics.everything:
            record = record._replace(snapshot=record.snapshot.selected(wanted.metrics))  # noqa: PLW2901
        process = stream_of(record)
        stream = found.get(process)
        if stream is None:
            stream = found[process] = RecordStream(record, wanted.series, wanted.by, wanted.compared)
        steps = record.steps
        if not stream.add(record):  # a duplicate; but at its end a run writes its last reading again with the steps that came after it
            known = {**stream.other_steps, **stream.own_steps}
            steps = tuple(step for step in steps if step.source in known and step.time_ns > known[step.source].newest_ns)
            stream.repeated += not steps and not record.windows
            stream.add_late(record, steps)
        own_sources = {step.source for step in record.own_steps} if steps else ()
        for step in steps:  # of other ranks too, which may have recordings of their own
            own = step.source in own_sources
            add_work(own_work if own else stream.other_work, step)
            (stream.own_steps if own else stream.other_steps)[step.source].add(step)
    return _report(list(found.values()), own_work, wanted) if found else None


def _report(streams: list[RecordStream], own_work: Totals, wanted: Wanted) -> RunReport:
    """Return the report of all streams."""
    for stream in streams:
        stream.settle()
        # The host, and the rank or the number of the run, where there are several.
        runs = [other for other in streams if other.host == stream.host]
        stream.head = [] if len(runs) == len(streams) else [stream.host]
        if len(runs) > 1:
            ranks = {other.rank for other in runs if other.rank}
            stream.head.append(f"rank {stream.rank}" if len(ranks) == len(runs) else f"run {runs.index(stream) + 1}")
    devices, included = _devices(streams)
    document = _document(streams, _over_whole_commands(streams, own_work, included))
    shown = {source for stream in streams for source in stream.own_steps}
    parts: list[StreamReport] = []
    for stream in streams:
        others = {source: logged for source, logged in stream.other_steps.items() if source not in shown}
        shown.update(others)
        parts.append(stream.report({**stream.own_steps, **others}))

    energies = [document["devices"][label]["energy"] for label in devices if label in included]
    known = [energy["joules"] for energy in energies if energy is not None]
    joules = sum(known) if known else None
    device_seconds = sum(stream.end - stream.begin for stream in streams for key in stream.places if stream.label_of(key) in included)
    costs = wanted.priced(joules, device_seconds)
    steps = max((times["count"] for part in parts for times in part.step_times), default=0)
    # All devices together, each once however many recordings have it; neither the host nor partitions of a device.
    document["energy"] = {
        "joules": joules,
        "devices": len(known),
        "silent": len(energies) - len(known),
        "price": None if wanted.price is None else {"amount": wanted.price.amount, "currency": wanted.price.currency},
        "cost": costs["cost"],
        "carbon_intensity": wanted.carbon,
        "carbon_grams": costs["carbon_grams"],
        "per_step": joules / steps if joules is not None and steps else None,
    }
    # An hour of a device counts whether it was read or not: it is paid for.
    document["rent"] = {
        "device_hours": device_seconds / HOUR,
        "devices": len(energies),
        "price": None if wanted.rent is None else {"amount": wanted.rent.amount, "currency": wanted.rent.currency},
        "cost": costs["rent_cost"],
    }
    document["work"] = {kind: summaries.work_of_devices(rate, len(known)) for kind, rate in document["work"].items()}
    document["step_times"] = [{"stream": part.label, **times} for part in parts for times in part.step_times]
    if wanted.by:
        runs_of = list(dict.fromkeys(stream.run_id for stream in streams))
        tables = [
            (
                f"run {runs_of.index(stream.run_id) + 1}" if len(runs_of) > 1 else "",  # processes of one run have their rows together
                stream.table,
                frozenset(key for key in stream.places if stream.label_of(key) in included),
            )
            for stream in streams
            if stream.table is not None
        ]
        document["by"] = wanted.by
        document["periods"] = periods(tables, wanted.by, wanted.priced)
    repeated = document["repeated"]
    return RunReport(
        document,
        parts,
        devices,
        included,
        (),
        ((f"{counted(repeated, 'duplicate reading')} ignored: each time is counted once",) if repeated else ()),
    )


def _over_whole_commands(streams: list[RecordStream], own_work: Totals, included: Set[str]) -> Totals:
    """Return the totals with the work of commands under ``accelmetrics run`` taken over their whole time, as in its own summary."""
    found = dict(own_work)
    for (kind, source), done in own_work.items():
        commands = []
        for stream in streams:
            if source in stream.own_steps:
                used = [one for key, one in stream.energy.items() if one.seconds > 0 and stream.label_of(key) in included]
                commands.append((stream.command_seconds, sum(one.joules / one.seconds for one in used)))
        if all(seconds for seconds, _ in commands):
            seconds = sum(each for each, _ in commands)
            mean = sum(each * watts for each, watts in commands) / seconds if all(watts for _, watts in commands) else 0.0
            found[kind, source] = done_by_command(done.amount, seconds, mean)
    return found


def _devices(streams: list[RecordStream]) -> tuple[dict[str, DeviceIdentity], frozenset[str]]:
    """Return all devices by label, and the labels that count for energy.

    A device in several streams counts once, in the stream that watched it longest.
    """
    devices: dict[str, DeviceIdentity] = {}
    best: dict[tuple[str, str], tuple[float, str]] = {}
    for stream in streams:
        for key, place in stream.places.items():
            label = stream.label_of(key)
            devices[label] = place.identity
            same = (stream.host, place.identity.uuid or key)
            seconds = stream.energy[key].seconds if key in stream.energy else 0.0
            if same not in best or seconds > best[same][0]:
                best[same] = seconds, label
    return devices, frozenset(label for _, label in best.values() if not devices[label].parent)


def _document(streams: list[RecordStream], own_work: Totals) -> Plain:
    """Return the parts of the JSON document that come from the streams alone. The host's metrics are those of the first host."""
    work: dict[tuple[str, StepSource], Done] = {}
    for totals in (*(stream.other_work for stream in streams), own_work):
        work.update(totals)
    begin, end = min(stream.begin for stream in streams), max(stream.end for stream in streams)
    logged = {name for stream in streams for steps in (*stream.own_steps.values(), *stream.other_steps.values()) for name in steps.names}
    kinds = {place.identity.kind for stream in streams for place in stream.places.values()}
    findings = [
        {**finding.to_dict(), "key": " ".join(filter(None, (*stream.head, finding.key)))}
        for stream in streams
        for finding in stream.findings.values()
    ]
    return {
        "hosts": list(dict.fromkeys(stream.host for stream in streams)),
        "begin": rfc3339(int(begin * 1e9)),
        "end": rfc3339(int(end * 1e9)),
        "duration_seconds": end - begin,
        "readings": sum(stream.readings for stream in streams),
        "repeated": sum(stream.repeated for stream in streams),
        "gaps": sorted((gap for stream in streams for gap in _gaps(stream.gaps)), key=lambda gap: str(gap["after"])),
        "devices": {label: device for stream in streams for label, device in _device_parts(stream)},
        "host": {key: held._asdict() for key, held in streams[0].summary.items() if key.partition(".")[0] not in kinds},
        "findings": sorted(findings, key=lambda one: str(one["since"])),
        "cannot_tell": [
            {**one.to_dict(), "stream": " ".join(stream.head)} for stream in streams for one in _cannot_tell(stream.cannot_tell, logged)
        ],
        "work": rates(work),
    }


def _cannot_tell(unjudged: Iterable[CannotTell], logged: Set[str]) -> Iterator[CannotTell]:
    """Yield the rules that could not be judged.

    A rule that lacked a logged number in one recording is left out if another recording has the number.
    """
    for one in unjudged:
        if one.reason != NOT_LOGGED or not logged:
            yield one
        elif one.metric != "*" and logged.isdisjoint(STEP_NAMES.get(one.metric, (one.metric,))):
            yield one._replace(detail=f"the program logs no {one.metric}")


def _gaps(gaps: Iterable[tuple[float, float]]) -> list[Plain]:
    return [{"after": rfc3339(int(at * 1e9)), "seconds": seconds} for at, seconds in gaps]


def _device_parts(stream: RecordStream) -> Iterator[tuple[str, Plain]]:
    """Yield the devices of a stream as parts of the document."""
    for place in stream.places.values():
        limit, used = first(stream.summary, place.key, POWER_LIMIT), stream.energy.get(place.key)
        measures = summaries.measured(stream.summary, place.key)
        yield (
            stream.label_of(place.key),
            {
                "name": place.identity.name,
                "uuid": place.identity.uuid,
                "vendor": place.identity.vendor,
                **measures,
                "memory_total_bytes": summaries.memory_total(stream.summary, place),
                "power_limit_watts": None if limit is None else limit.last,
                "energy": None if used is None else {name: value for name, value in used._asdict().items() if value != ""},
                "samples": summaries.samples(measures),
                "throttled_seconds": stream.throttled.get(place.key, {}),
                "gaps": _gaps(stream.silences.get(place.key, [])),
            },
        )
