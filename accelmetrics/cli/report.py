"""``accelmetrics report``: what recordings came to, device by device, over all files that are given, whatever gaps they have."""

from __future__ import annotations

import statistics
from argparse import Namespace
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from heapq import merge
from itertools import chain
from pathlib import Path

from accelmetrics.cli import options as arguments, summaries
from accelmetrics.cli.output import Stdout, say
from accelmetrics.monitor import settings
from accelmetrics.monitor.history import HistoryRow, Layout, RowMaker
from accelmetrics.monitor.statistics import WindowAggregator
from accelmetrics.monitor.steps import Done, Work, rates
from accelmetrics.schemas.catalogue.devices import NOT_THROTTLING
from accelmetrics.schemas.errors import AccelMetricsError, DocumentError
from accelmetrics.schemas.finding import NO_FINDINGS, CannotTell, Finding
from accelmetrics.schemas.record import Record, StepSource
from accelmetrics.schemas.recording import RecordFile, recordings
from accelmetrics.schemas.selection import ALL, MetricSelection
from accelmetrics.schemas.snapshot import DeviceSlot, Snapshot, rfc3339
from accelmetrics.schemas.vitals import POWER_LIMIT, first

TAKEN = "JSON lines, which the exporter jsonl and `accelmetrics dump --json --interval` write"
PENDING = 64
"""Readings that are folded into the statistics together, by the usual interval at the last of them: the first may be shorter or longer."""
GAP = 3.0
"""In usual intervals: a longer silence is a gap, over which nothing is reckoned."""
USUAL = 50
"""Intervals whose median is the usual one."""

EXAMPLES = """\
  accelmetrics report run.jsonl                             a table of every device
  accelmetrics report run.jsonl --format markdown > RUN.md  for a pull request or a report
  accelmetrics report node-*.jsonl --format json            several hosts together
  accelmetrics report run.jsonl --shape gpu-stats           flat statistics of each GPU, as JSON

Recordings are what the jsonl exporter and `accelmetrics dump --interval` write; closed files of the same name (rotated,
compressed) are read with each. They may be given in any order, and twice. Means are weighted by time; a silence longer than
three usual intervals is a gap, over which nothing is reckoned, and so is a clock that was set back.

Exit status: 0; 1 when a file cannot be read or is no recording; 2 for arguments that cannot be used."""
OPTIONS: arguments.Groups = {
    "": {
        "files": {"nargs": "+", "type": settings.path.parse, "metavar": "FILE", "help": "recordings"},
        "--format": {"choices": ("text", "json", "markdown"), "help": "how to print it (default: text)"},
        **arguments.only("--metrics"),
        "--shape": {"choices": ("summary", "gpu-stats"), "default": "summary", "help": "what the JSON holds (default: summary)"},
    },
}


def run(options: Namespace, out: Stdout) -> int:
    """Read the recordings and print the report."""
    if options.shape == "gpu-stats" and options.format not in (None, "json"):
        raise arguments.UsageError(f"--shape gpu-stats is JSON and excludes --format {options.format}")
    metrics = MetricSelection(options.metrics or ALL)
    found = report(record._replace(snapshot=metrics.select(record.snapshot)) for record in _records(options.files))
    if found is None:
        raise AccelMetricsError(f"no record in {', '.join(options.files)}")
    if found["repeated"]:
        say(f"accelmetrics report: {found['repeated']} readings are there twice, by their time: each is counted once")
    views = {"text": summaries.text, "markdown": summaries.markdown, "json": summaries.as_json}
    out.write(summaries.as_json(summaries.gpu_stats(found)) if options.shape == "gpu-stats" else views[options.format or "text"](found))
    return 0


# Reading


def _records(files: list[str]) -> Iterator[Record]:
    """Yield all records of all files, those of one process of a run by time."""
    groups: dict[tuple[str, ...], list[Iterator[Record]]] = {}
    seen: set[Path] = set()
    for name in files:
        with _telling(name):
            found = [one for one in recordings(name) if one.path.resolve() not in seen]
            seen.update(one.path.resolve() for one in found)
            first = next(chain.from_iterable(found), None)
        # Files are opened again when their time has come: there may be many.
        groups.setdefault(() if first is None else stream_of(first), []).append(_read(found))
    for group in groups.values():
        yield from merge(*group, key=lambda record: record.snapshot.time_ns)


def _read(found: list[RecordFile]) -> Iterator[Record]:
    """Yield the records of files one after the other; warn of lines that cannot be read."""
    for recording in found:
        with _telling(str(recording.path)):
            yield from recording
        if recording.skipped:
            lines = "1 line" if recording.skipped == 1 else f"{recording.skipped} lines"
            say(f"accelmetrics report: {lines} could not be read; the first: {recording.complaint}")
        if recording.headless:
            what = f"the header of {recording.headless} readings is missing: host and labels are not known"
            say(f"accelmetrics report: {recording.path}: {what}")


@contextmanager
def _telling(name: str) -> Iterator[None]:
    try:
        yield
    except DocumentError as error:
        raise AccelMetricsError(f"{error}: report takes {TAKEN}") from error
    except OSError as error:
        raise AccelMetricsError(f"cannot read {name}: {error.strerror or error}") from error


# Statistics


class _Stream:
    """The records of one process of one run on one host, which are folded into its statistics many at a time.

    The usual interval is the median of the latest ones, gaps among them, and no less than the one that the records say they were to have.
    """

    def __init__(self, record: Record) -> None:
        self.host, _, self.rank = stream_of(record)
        self.begin = self.end = self._last = self._at = record.snapshot.time_ns / 1e9
        self.readings = self.repeated = 0
        self.gaps: list[summaries.Plain] = []
        self.places: dict[str, DeviceSlot] = {}
        self.silences: dict[str, list[summaries.Plain]] = {}
        self.aggregator = WindowAggregator(self.begin)
        self.findings: dict[tuple[str, str, int], Finding] = {}  # as each stood last
        self.cannot_tell: tuple[CannotTell, ...] = ()
        self._findings = NO_FINDINGS
        self._rows = RowMaker()
        self._pending: list[Snapshot] = []
        self._intervals: deque[float] = deque(maxlen=USUAL)
        self._interval = self._longest = 0.0
        self._newest: int | None = None
        self._heard: dict[str, float] = {}
        self._layout: Layout | None = None
        self._speaking: list[str] = []

    def add(self, record: Record) -> bool:
        """Take a reading; False for one of the same time as the last, which is there twice and is passed over."""
        time_ns = record.snapshot.time_ns
        if time_ns == self._newest:
            self.repeated += 1
            return False
        if self._newest is not None and time_ns > self._newest:
            self._intervals.append((time_ns - self._newest) / 1e9)
        if record.monitor is not None:
            self._interval = record.monitor.interval
        self._newest = time_ns
        self.readings += 1
        if record.findings is not self._findings:
            self._findings = record.findings
            self.cannot_tell = record.findings.cannot_tell or self.cannot_tell
            for finding in (*record.findings.ended, *record.findings.current):
                self.findings[finding.rule, finding.key, finding.since_ns // 1000] = finding
        self._pending.append(record.snapshot)
        if len(self._pending) == PENDING:
            self._fold()
        return True

    def settle(self) -> None:
        """Fold the readings that are still pending."""
        self._fold()
        self._note_silences(self._heard, self._last)

    def _fold(self) -> None:
        self._longest = GAP * max(self._interval, statistics.median_low(self._intervals or [0.0]))
        self.aggregator.fold([self._row(snapshot, snapshot.time_ns / 1e9) for snapshot in self._pending])
        self._pending.clear()

    def _row(self, snapshot: Snapshot, moment: float) -> HistoryRow:
        elapsed = moment - self._last
        joined = 0 <= elapsed <= self._longest
        if not joined:
            self.gaps.append(_gap(self._last, elapsed))
            self._note_silences(self._heard, self._last)
            self._heard.clear()
        # The statistics' own clock goes on where the recorded one was set back.
        self._at += max(0.0, elapsed)
        self._last = moment
        self.begin, self.end = min(self.begin, moment), max(self.end, moment)
        row = self._rows.row(snapshot, self._at, joined)
        if row.layout is not self._layout:
            self._layout = row.layout
            self._speaking = [place.key for place in snapshot.identities if snapshot.values_of(place.key)]
            self.places.update((place.key, place) for place in snapshot.identities)
        self._note_silences(self._speaking, moment)
        self._heard.update(dict.fromkeys(self._speaking, moment))
        return row

    def _note_silences(self, keys: Iterable[str], until: float) -> None:
        for key in keys:
            since = self._heard.get(key, until)
            if until - since > self._longest:
                self.silences.setdefault(key, []).append(_gap(since, until - since))


def _gap(after: float, seconds: float) -> summaries.Plain:
    """Return a silence after the last reading before it; below 0 s where the next one bears an earlier time."""
    return {"after": rfc3339(int(after * 1e9)), "seconds": seconds}


def stream_of(record: Record) -> tuple[str, str, str]:
    """Return the identity of a stream of records: host, run and rank."""
    return (record.snapshot.hostname, record.labels.get("run_id", ""), record.labels.get("rank", ""))


def report(records: Iterable[Record]) -> summaries.Plain | None:
    """Return what records came to, as the document that ``--format json`` prints; None when there are none.

    Those of one process of a run are to be in the order of their time. The host's metrics are those of the first host.
    """
    by_process: dict[tuple[str, str, str], _Stream] = {}
    own, heard = Work(), dict[tuple[str, str, str], Work]()
    for record in records:
        process = stream_of(record)
        stream = by_process.get(process) or by_process.setdefault(process, _Stream(record))
        if stream.add(record):
            ours = {step.source for step in record.own_steps}
            for step in record.steps:  # of other ranks too, which may have recordings of their own
                (own if step.source in ours else heard.setdefault(process, Work())).add(step)
    streams = list(by_process.values())
    if not streams:
        return None
    for stream in streams:
        stream.settle()
    work: dict[tuple[str, StepSource], Done] = {}
    for totals in (*(one.totals for one in heard.values()), own.totals):
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
        "gaps": sorted((gap for stream in streams for gap in stream.gaps), key=lambda gap: str(gap["after"])),
        "devices": {key: device for stream in streams for key, device in _devices(stream, streams)},
        "host": {key: held._asdict() for key, held in host.items()},
        "findings": sorted((one for stream in streams for one in _findings(stream, streams)), key=lambda one: str(one["since"])),
        "cannot_tell": [{**one.to_dict(), "stream": " ".join(_head(stream, streams))} for stream in streams for one in stream.cannot_tell],
        "work": {name: rate._asdict() for name, rate in rates(work).items()},
    }


def _findings(stream: _Stream, streams: list[_Stream]) -> Iterator[summaries.Plain]:
    """Yield what was found in a stream, as documents have it, with what precedes its devices' keys."""
    for finding in stream.findings.values():
        yield {**finding.to_dict(), "key": " ".join(filter(None, (*_head(stream, streams), finding.key)))}


def _head(stream: _Stream, streams: list[_Stream]) -> list[str]:
    """Return what precedes the key of a stream's device: the host, and the rank or the number of the run, where there are several."""
    runs = [other for other in streams if other.host == stream.host]
    ranks = {other.rank for other in runs if other.rank}
    head = [] if len(runs) == len(streams) else [stream.host]
    if len(runs) > 1:
        head.append(f"rank {stream.rank}" if len(ranks) == len(runs) else f"run {runs.index(stream) + 1}")
    return head


def _devices(stream: _Stream, streams: list[_Stream]) -> Iterator[tuple[str, summaries.Plain]]:
    """Yield the devices of a stream."""
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
                "gaps": stream.silences.get(place.key, []),
            },
        )
