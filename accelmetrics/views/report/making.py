"""A report made from records, in one pass over them and in memory that does not grow with their number."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from accelmetrics._version import __version__
from accelmetrics.schemas.catalogue.devices import NOT_THROTTLING
from accelmetrics.schemas.record import Record, StepSource
from accelmetrics.schemas.selection import ALL, MetricSelection
from accelmetrics.schemas.snapshot import rfc3339
from accelmetrics.schemas.vitals import MEMORY_PERCENT, MEMORY_USED, POWER, POWER_LIMIT, TEMPERATURE, UTILIZATION, first
from accelmetrics.schemas.work import Done, Work, rates
from accelmetrics.views import summaries
from accelmetrics.views.report.files import Recordings
from accelmetrics.views.report.logged import LoggedSteps, source_words
from accelmetrics.views.report.periods import periods
from accelmetrics.views.report.run_report import DeviceFacts, EnergyUse, Period, Plain, Price, RunReport, StreamReport
from accelmetrics.views.report.series import BUCKETS
from accelmetrics.views.report.stream import AROUND, DETAILS, KEPT, RecordStream, stream_of, told_gap

KWH = 3_600_000.0
"""Joules of a kilowatt-hour."""
CHARTED = MetricSelection(
    ",".join(
        (*UTILIZATION[:5], *MEMORY_USED, *MEMORY_PERCENT, *POWER[:1], *TEMPERATURE[:1], "smClock", "memoryTemp", "cpu", "memory_percent")
    )
)
"""Metrics that are reduced to series unless others are chosen: those that people look at first."""
REDUCTION = (
    f"Least, mean and largest reading in at most {BUCKETS} buckets of equal time; around the first {DETAILS} findings of a recording "
    f"also every reading of {AROUND / 60:.0f} minutes before and after their beginning, {KEPT} at most."
)


class Wanted(NamedTuple):
    """What a report is to have.

    Attributes:
        metrics: The metrics of tables; all when left out.
        series: Metrics that are reduced to series; None for a report without pictures, which takes less time.
        price: What a kilowatt-hour costs.
        carbon: Grams of CO2 equivalent that the making of a kilowatt-hour gives off.
        by: A number that the program logged, or the name of windows, for a table with a row each; empty for none.
        compared: Whether it will be compared with another one: distributions begin with the first step.
    """

    metrics: MetricSelection = MetricSelection(ALL)
    series: MetricSelection | None = None
    price: Price | None = None
    carbon: float | None = None
    by: str = ""
    compared: bool = False


def report_of_files(names: list[str], wanted: Wanted = Wanted()) -> RunReport | None:  # noqa: B008  # a constant
    """Read recordings and return what they came to; None where they hold no record.

    Raises:
        AccelMetricsError: A file cannot be read, or is no recording.
    """
    found = Recordings(names, hashed=wanted.series is not None)
    report = run_report(found, wanted)
    if report is None:
        return None
    return report._replace(files=tuple(found.files), warnings=(*found.warnings, *report.warnings))


def run_report(records: Iterable[Record], wanted: Wanted = Wanted()) -> RunReport | None:  # noqa: B008  # a constant
    """Return what records came to; None when there are none. Those of one process of a run are to be in the order of their time."""
    making = _Making(wanted)
    for record in records:
        making.add(record)
    return making.report() if making.streams else None


class _Making:
    """The streams of a report that is being made."""

    def __init__(self, wanted: Wanted) -> None:
        self.streams: dict[tuple[str, str, str], RecordStream] = {}
        self._wanted = wanted
        self._own = Work()
        self._heard: dict[tuple[str, str, str], Work] = {}
        self._own_steps: dict[tuple[str, str, str], dict[StepSource, LoggedSteps]] = {}
        self._heard_steps: dict[tuple[str, str, str], dict[StepSource, LoggedSteps]] = {}

    def add(self, record: Record) -> None:
        """Take a record."""
        if not self._wanted.metrics.everything:
            record = record._replace(snapshot=record.snapshot.selected(self._wanted.metrics))
        process = stream_of(record)
        stream = self.streams.get(process) or self.streams.setdefault(
            process, RecordStream(record, self._wanted.series, self._wanted.by, self._wanted.compared)
        )
        steps = record.steps
        if not stream.add(record):  # twice; but the end of a run tells steps that came after its last reading with that one again
            known = {**self._heard_steps.get(process, {}), **self._own_steps.get(process, {})}
            steps = tuple(step for step in steps if step.source in known and step.time_ns > known[step.source].newest_ns)
            stream.repeated += not steps and not record.windows
            stream.add_late(record, steps)
        if not steps:
            return
        ours = {step.source for step in record.own_steps}
        for step in steps:  # of other ranks too, which may have recordings of their own
            source = step.source
            own = source in ours
            (self._own if own else self._heard.setdefault(process, Work())).add(step)
            by_source = (self._own_steps if own else self._heard_steps).setdefault(process, {})
            logged = by_source.get(source)
            if logged is None:
                logged = by_source[source] = LoggedSteps()
            logged.add(step)

    def report(self) -> RunReport:
        """Return the report; nothing may be added any more."""
        streams = list(self.streams.values())
        for stream in streams:
            stream.settle()
        for by_source in (*self._own_steps.values(), *self._heard_steps.values()):
            for logged in by_source.values():
                logged.settle()
        devices = _devices(streams)
        document = self._document(streams)
        told = {source for by_source in self._own_steps.values() for source in by_source}
        parts = []
        for process, stream in self.streams.items():
            heard = {source: logged for source, logged in self._heard_steps.get(process, {}).items() if source not in told}
            told.update(heard)
            parts.append(_stream_report(stream, streams, {**self._own_steps.get(process, {}), **heard}))
        repeated = document["repeated"]
        warnings = (f"{repeated} readings are there twice, by their time: each is counted once",) if repeated else ()
        energy = self._energy(document, devices, parts)
        rows = self._periods(streams, devices) if self._wanted.by else ()
        document["energy"] = {**energy._asdict(), "price": energy.price and energy.price._asdict()}
        document["step_times"] = [{"stream": part.label, **times._asdict()} for part in parts for times in part.step_times]
        if self._wanted.by:
            document["by"] = self._wanted.by
            document["periods"] = [row._asdict() for row in rows]
        return RunReport(document, tuple(parts), devices, energy, rows, (), warnings, __version__, REDUCTION)

    def _periods(self, streams: list[RecordStream], devices: tuple[DeviceFacts, ...]) -> tuple[Period, ...]:
        """Return the table that was asked for. Processes of one run have their rows together."""
        counted = {device.label for device in devices if device.counted}
        runs = list(dict.fromkeys(stream.run_id for stream in streams))
        tables = []
        for stream in streams:
            if stream.table is not None:
                keys = frozenset(key for key in stream.places if " ".join((*_head(stream, streams), key)) in counted)
                tables.append((f"run {runs.index(stream.run_id) + 1}" if len(runs) > 1 else "", stream.table, keys))
        return periods(tables, self._wanted.by, self._priced)

    def _priced(self, joules: float) -> tuple[float | None, float | None]:
        """Return what energy costs, and what its making gives off; None where that was not said."""
        price, carbon = self._wanted.price, self._wanted.carbon
        return None if price is None else joules / KWH * price.amount, None if carbon is None else joules / KWH * carbon

    def _document(self, streams: list[RecordStream]) -> Plain:
        """Return what ``--format json`` prints. The host's metrics are those of the first host."""
        work: dict[tuple[str, StepSource], Done] = {}
        for totals in (*(one.totals for one in self._heard.values()), self._own.totals):
            work.update(totals)
        begin, end = min(stream.begin for stream in streams), max(stream.end for stream in streams)
        kinds = {place.identity.kind for stream in streams for place in stream.places.values()}
        host = {key: held for key, held in streams[0].aggregator.summary().items() if key.partition(".")[0] not in kinds}
        return {
            "hosts": list(dict.fromkeys(stream.host for stream in streams)),
            "begin": rfc3339(int(begin * 1e9)),
            "end": rfc3339(int(end * 1e9)),
            "duration_seconds": end - begin,
            "readings": sum(stream.readings for stream in streams),
            "repeated": sum(stream.repeated for stream in streams),
            "gaps": sorted((told_gap(gap) for stream in streams for gap in stream.gaps), key=lambda gap: str(gap["after"])),
            "devices": {key: device for stream in streams for key, device in _device_parts(stream, streams)},
            "host": {key: held._asdict() for key, held in host.items()},
            "findings": sorted((one for stream in streams for one in _findings(stream, streams)), key=lambda one: str(one["since"])),
            "cannot_tell": [
                {**one.to_dict(), "stream": " ".join(_head(stream, streams))} for stream in streams for one in stream.cannot_tell
            ],
            "work": {name: rate._asdict() for name, rate in rates(work).items()},
        }

    def _energy(self, document: Plain, devices: tuple[DeviceFacts, ...], parts: list[StreamReport]) -> EnergyUse:
        """Return what all devices used together, and what that costs."""
        told = [document["devices"][device.label]["energy"] for device in devices if device.counted]
        known = [energy["joules"] for energy in told if energy is not None]
        joules = sum(known) if known else None
        cost, grams = (None, None) if joules is None else self._priced(joules)
        steps = max((times.count for part in parts for times in part.step_times), default=0)
        return EnergyUse(
            joules,
            len(known),
            len(told) - len(known),
            self._wanted.price,
            cost,
            self._wanted.carbon,
            grams,
            joules / steps if joules is not None and steps else None,
        )


def _stream_report(stream: RecordStream, streams: list[RecordStream], steps: Mapping[StepSource, LoggedSteps]) -> StreamReport:
    """Return what a stream came to."""
    head = _head(stream, streams)
    labels = {key: " ".join((*head, key)) for key in stream.places}
    findings = sorted(stream.findings.items(), key=lambda one: one[1].since_ns)
    several = len(steps) > 1
    named = [(source_words(source, several), logged) for source, logged in steps.items()]
    times = [found for name, logged in named if (found := logged.step_times(name)) is not None]
    epochs = next((stretches for _, logged in named if (stretches := logged.epochs())), [])
    events = [*stream.events, *(event for _, logged in named for event in logged.events())]
    return StreamReport(
        label=" ".join(head),
        host=stream.host,
        run_id=stream.run_id,
        rank=stream.rank,
        labels=stream.labels,
        begin=stream.begin,
        end=stream.end,
        readings=stream.readings,
        interval=stream.interval,
        first_step=min((logged.first for _, logged in named), default=None),
        last_step=max((logged.last for _, logged in named), default=None),
        width=stream.reducer.width,
        times=stream.times(),
        series=tuple(stream.series(labels)),
        strips=tuple(stream.strips(labels)),
        details=tuple(stream.details([key for key, _ in findings])),
        stretches=tuple(sorted((*stream.stretches(labels), *epochs), key=lambda one: one.begin)),
        events=tuple(sorted((one._replace(device=labels.get(one.device, one.device)) for one in events), key=lambda one: one.at)),
        findings=tuple(finding for _, finding in findings),
        cannot_tell=stream.cannot_tell,
        curves=tuple(curve for name, logged in named for curve in logged.curves(name)),
        step_times=tuple(times),
        missing=tuple(stream.missing(labels)),
        summary=stream.aggregator.summary(),
        energy=stream.aggregator.energy_joules(),
        distributions=stream.distributions(),
        sources=stream.sources,
    )


def _devices(streams: list[RecordStream]) -> tuple[DeviceFacts, ...]:
    """Return all devices. One that several streams have, by its UUID, is counted in that which watched it for the longest time."""
    best: dict[tuple[str, str], float] = {}
    found = []
    for stream in streams:
        head, energy = _head(stream, streams), stream.aggregator.energy_joules()
        for key, place in stream.places.items():
            same = (stream.host, place.identity.uuid or key)
            seconds = energy[key].seconds if key in energy else 0.0
            found.append((same, seconds, DeviceFacts(" ".join((*head, key)), key, place.identity, counted=not place.identity.parent)))
            best[same] = max(best.get(same, 0.0), seconds)
    facts = []
    for same, seconds, device in found:
        chosen = same in best and seconds == best[same]
        facts.append(device._replace(counted=device.counted and chosen))
        if chosen:
            del best[same]
    return tuple(facts)


def _findings(stream: RecordStream, streams: list[RecordStream]) -> Iterator[Plain]:
    """Yield what was found in a stream, as documents have it, with what precedes its devices' keys."""
    for finding in stream.findings.values():
        yield {**finding.to_dict(), "key": " ".join(filter(None, (*_head(stream, streams), finding.key)))}


def _head(stream: RecordStream, streams: list[RecordStream]) -> list[str]:
    """Return what precedes the key of a stream's device: the host, and the rank or the number of the run, where there are several."""
    runs = [other for other in streams if other.host == stream.host]
    ranks = {other.rank for other in runs if other.rank}
    head = [] if len(runs) == len(streams) else [stream.host]
    if len(runs) > 1:
        head.append(f"rank {stream.rank}" if len(ranks) == len(runs) else f"run {runs.index(stream) + 1}")
    return head


def _device_parts(stream: RecordStream, streams: list[RecordStream]) -> Iterator[tuple[str, Plain]]:
    """Yield the devices of a stream, as the document has them."""
    head = _head(stream, streams)
    summary, energy = stream.aggregator.summary(), stream.aggregator.energy_joules()
    for place in stream.places.values():
        limit, used = first(summary, place.key, POWER_LIMIT), energy.get(place.key)
        prefix = f"{place.key}.throttle."
        throttled = {key[len(prefix) :]: stream.aggregator.seconds_above(key, 0.5) for key in summary if key.startswith(prefix)}
        measures = summaries.measured(summary, place.key)
        yield (
            " ".join((*head, place.key)),
            {
                "name": place.identity.name,
                "uuid": place.identity.uuid,
                "vendor": place.identity.vendor,
                **measures,
                "memory_total_bytes": summaries.memory_total(summary, place),
                "power_limit_watts": None if limit is None else limit.last,
                "energy": None if used is None else used._asdict(),
                "samples": summaries.samples(measures),
                "throttled_seconds": {reason: seconds for reason, seconds in throttled.items() if seconds and reason not in NOT_THROTTLING},
                "gaps": [told_gap(gap) for gap in stream.silences.get(place.key, [])],
            },
        )
