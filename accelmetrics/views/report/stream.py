"""Statistics and reduced series of a stream: the records of one process of one run on one host, aggregated while they are read."""

from __future__ import annotations

import statistics
from array import array
from bisect import bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from math import ceil, inf, isfinite, nan

from accelmetrics.schemas.catalogue import match
from accelmetrics.schemas.catalogue.devices import NOT_THROTTLING
from accelmetrics.schemas.errors import Reason
from accelmetrics.schemas.identity import DeviceSlot
from accelmetrics.schemas.metric import device_key
from accelmetrics.schemas.record import COMMAND, NO_FINDINGS, CannotTell, Done, Finding, Record, Step, StepSource, WindowSpan, plain_name
from accelmetrics.schemas.ring import Layout, Row, Served, marked, pack_row, values_of
from accelmetrics.schemas.selection import MetricSelection
from accelmetrics.schemas.snapshot import Snapshot, has_values
from accelmetrics.schemas.statistics import COUNTER, DRAW, Accumulator, Energy, Summary, WindowAggregator
from accelmetrics.schemas.vitals import MEMORY_TOTAL, POWER_LIMIT, first
from accelmetrics.views.report.periods import PeriodTable
from accelmetrics.views.report.run_report import Column, Curve, Mark, Plain, ReducedSeries, StreamReport
from accelmetrics.views.report.series import SeriesReducer
from accelmetrics.views.summaries import MEASURES

PENDING = 64
"""Readings that are checked for gaps together, against the usual interval at the last one, because the first intervals may be unusual."""
BLOCK = 2048
"""Readings that are aggregated together, which is cheaper than one by one."""
GAP = 3.0
"""Usual intervals without a reading from which on there is a gap. Nothing is computed across a gap."""
USUAL = 50
"""Number of latest intervals whose median is the usual interval."""
AROUND = 600.0
"""Seconds before and after the begin of a finding for which the original readings are kept."""
KEPT, REMEMBERED = 2400, 1800.0
"""Readings, and seconds, that are buffered for details, because rules report a finding some time after its begin."""
DETAILS = 8
"""Largest number of findings with original readings in a stream."""
WINDOWS = 1000
"""Largest number of marked windows in a stream."""
EVENTS = 200
"""Largest number of events of one kind and device."""
THROTTLE = "throttle."
COUNTED_EVENTS: Mapping[str, tuple[str, str]] = {
    "xidErrors": ("xid", "Xid error"),
    "uncorrectedMemoryErrors": ("memory", "uncorrectable memory error"),
    "uncorrectedEccErrors": ("memory", "uncorrectable memory error"),
}
"""Counters whose rise is an event: the kind of the event, and the counted thing in words."""
LAST_XID = "lastXid"
NEEDED = frozenset((*chain(*MEASURES.values()), *POWER_LIMIT, *MEMORY_TOTAL, COUNTER, DRAW, *COUNTED_EVENTS, LAST_XID))
"""Names of device metrics that tables, events and energy need."""
STEPS = 512
"""Steps that are reduced together, which is cheaper than one by one."""
BARS = 40
"""Bars of a histogram up to the 99th percentile. One more bar has all longer steps."""
EPOCHS = 1000
"""Largest number of marked epochs."""
STEP_SECONDS, EPOCH = "step_seconds", "epoch"
STEP = "\0step"
"""Name of the column with step numbers, next to the columns of logged numbers."""
NAMES = 200
"""Largest number of names of logged numbers, since a program may create names without end."""


class LoggedSteps:
    """The steps of one process, reduced while they are read.

    Attributes:
        newest_ns: Time of the latest step, in nanoseconds since 1970.
        first: Time of the first step; NaN before it.
        last: Time of the last step.
        odd: For each name with numbers that are not finite, the time of the first one and their count.
    """

    def __init__(self) -> None:
        self.newest_ns = -1
        self.first = self.last = nan
        self._reducer = SeriesReducer()
        self._seconds = Accumulator(timed=False)
        self._names: set[str] = set()
        self.odd: dict[str, tuple[float, int]] = {}
        self._pending: list[Step] = []
        self._epochs: list[tuple[float, float, float]] = []  # number, from its first to its last step
        self._fractional = False

    def add(self, step: Step) -> None:
        """Add a step."""
        if self.newest_ns < 0:
            self.first = step.time_ns / 1e9
        self._pending.append(step)
        self.newest_ns = max(self.newest_ns, step.time_ns)
        self.last = step.time_ns / 1e9
        if len(self._pending) == STEPS:
            self.settle()

    @property
    def names(self) -> set[str]:
        """Names of the logged numbers, without a tracker's prefix."""
        return set(map(plain_name, self._names))

    def settle(self) -> None:
        """Reduce the steps that are still pending."""
        steps, self._pending = self._pending, []
        if not steps:
            return
        times = [step.time_ns / 1e9 for step in steps]
        columns = {STEP: array("d", [nan if step.step is None else step.step for step in steps])}
        for name in dict.fromkeys(name for step in steps for name in step.values):
            if name in self._names or len(self._names) < NAMES:
                self._names.add(name)
                columns[name] = array("d", [step.values.get(name, nan) for step in steps])
                for position, step in () if isfinite(sum(columns[name])) else enumerate(steps):
                    if not isfinite(step.values.get(name, 0)):
                        columns[name][position] = nan
                        since, number = self.odd.get(name, (times[position], 0))
                        self.odd[name] = since, number + 1
        self._reducer.add(times, columns)
        seconds = array("d", filter(isfinite, columns.get(STEP_SECONDS, ())))
        if seconds:
            self._seconds.fold(seconds, [0.0] * len(seconds), 0.0)
        for epoch, moment in zip(columns.get(EPOCH, ()), times, strict=False):
            if not isfinite(epoch):
                continue
            self._fractional = self._fractional or epoch != int(epoch)
            epoch = float(ceil(epoch)) if self._fractional else epoch  # 2.3 is part of the third  # noqa: PLW2901
            if self._epochs and self._epochs[-1][0] == epoch:
                self._epochs[-1] = (epoch, self._epochs[-1][1], moment)
            elif len(self._epochs) < EPOCHS:
                self._epochs.append((epoch, moment, moment))

    def curves(self, source: str) -> Iterator[Curve]:
        """Yield the logged numbers as curves of the process ``source``."""
        times, steps = self._reducer.begins(), self._reducer.points(STEP)[3]
        for name in self._reducer.columns:
            if name != STEP:
                columns = (steps, *self._reducer.points(name)[:3])
                known = [position for position, value in enumerate(columns[2]) if value is not None]
                yield Curve(
                    name, source, [times[position] for position in known], *([column[position] for position in known] for column in columns)
                )

    def step_times(self, source: str) -> Plain | None:
        """Return the durations of steps in seconds, as documents have them; None if unknown.

        Quantiles are exact up to 512 different values and within 0.5 % beyond. ``edges`` are the edges of a histogram's bars, one more than
        there are bars, and ``counts`` the steps in each bar.
        """
        if not self._seconds.count:
            return None
        held = self._seconds.summary()
        p25, p75 = self._seconds.quantiles(25, 75)
        counts, width = [0] * BARS, (held.p99 - held.min) / BARS
        if width > 0:
            for value, number in self._seconds.buckets():
                counts[max(0, min(BARS - 1, int((value - held.min) / width)))] += number
            edges = [*(held.min + width * bar for bar in range(BARS)), held.max]
        else:  # all are equal, but for a few
            counts, edges = [held.count], [held.min, held.max]
        return {
            "source": source,
            "count": held.count,
            "mean": held.mean,
            "min": held.min,
            "p25": p25,
            "p50": held.p50,
            "p75": p75,
            "p95": held.p95,
            "p99": held.p99,
            "max": held.max,
            "edges": edges,
            "counts": counts,
        }

    def epochs(self) -> list[Mark]:
        """Return the epochs. Each begins at the last step of the one before."""
        found = []
        before = self.first
        for number, begin, end in self._epochs:
            found.append(Mark("epoch", f"epoch {number:g}", before if begin > before else begin, end))
            before = end
        return found


class RecordStream:
    """A stream of records, aggregated in blocks.

    The usual interval is the median of the latest intervals, including gaps, and at least the configured interval in the records.

    Args:
        record: Its first record.
        series: Metrics that are reduced to series; None for none.
        by: The logged number or window for the table of periods; empty for none.
        trained: Whether to compute distributions from the first step on.

    Attributes:
        head: Prefix of its devices' keys in the report.
        table: The table of periods.
        own_steps: Steps that the recorded process logged itself, by process.
        other_steps: Steps of other processes in its records, by process.
        other_work: The work of these steps.
        summary: Statistics of every metric by key, after :meth:`settle`.
        energy: Energy by device key, after :meth:`settle`.
        throttled: Seconds of throttling by device key and reason, after :meth:`settle`.
    """

    def __init__(self, record: Record, series: MetricSelection | None = None, by: str = "", trained: bool = False) -> None:
        self.host, self.run_id, self.rank = stream_of(record)
        self.head: list[str] = []
        self.begin = self.end = self._last = self._at = record.snapshot.time_ns / 1e9
        self.readings = self.repeated = 0
        self.gaps: list[tuple[float, float]] = []  # after which moment, and seconds: below 0 where the clock was set back
        self.places: dict[str, DeviceSlot] = {}
        self.silences: dict[str, list[tuple[float, float]]] = {}
        self.aggregator = WindowAggregator(self.begin, across=False, timed=_is_throttle)
        self.summary: Mapping[str, Summary] = {}
        self.energy: Mapping[str, Energy] = {}
        self.throttled: dict[str, dict[str, float]] = {}
        self.findings: dict[tuple[str, str, int], Finding] = {}  # as each stood last
        self.cannot_tell: tuple[CannotTell, ...] = ()
        self.table = PeriodTable(by) if by else None
        self.own_steps: dict[StepSource, LoggedSteps] = defaultdict(LoggedSteps)
        self.other_steps: dict[StepSource, LoggedSteps] = defaultdict(LoggedSteps)
        self.other_work: dict[tuple[str, StepSource], Done] = {}
        self._labels = record.labels
        self._sources: dict[str, str] = {}
        self._reducer = SeriesReducer()
        self._events: list[tuple[str, float, str]] = []  # device, moment, words
        self._trained = WindowAggregator(self.begin, across=False, timed=_is_throttle) if trained else None
        self._first_step = inf
        self._wanted = series
        self._windows: dict[tuple[str, int], WindowSpan] = {}  # that ended, by name and end
        self._open_windows: dict[str, WindowSpan] = {}
        self._counters: dict[str, float] = {}
        self._findings = NO_FINDINGS
        self._served: Served = {}
        self._pending: list[Record] = []
        self._block: list[Row] = []
        self._recent_row: Row | None = None
        self._recent: deque[Row] = deque(maxlen=KEPT)
        self._details: dict[tuple[str, str, int], list[Row]] = {}  # by finding, the readings around its beginning
        self._missing_keys: dict[str, tuple[str, str, float, float]] = {}  # by key: reason, detail, since when and until when
        self._unavailable: Mapping[str, object] = {}
        self._lost: Iterable[str] = ()
        self._event_counts: Counter[tuple[str, str]] = Counter()  # by kind and device
        self._intervals: deque[float] = deque(maxlen=USUAL)
        self._interval = self._longest = 0.0
        self._newest: int | None = None
        self._last_reported: dict[str, float] = {}
        self._layout: Layout | None = None
        self._reporting: list[str] = []

    @property
    def interval(self) -> float:
        """Usual seconds between two readings."""
        return max(self._interval, statistics.median_low(self._intervals or [0.0]))

    @property
    def command_seconds(self) -> float:
        """Duration of the command of ``accelmetrics run`` in seconds; 0 in other recordings, and if its end is not recorded."""
        spans = [(span.begin_ns, end) for (name, end), span in self._windows.items() if name == COMMAND]
        return (spans[0][1] - spans[0][0]) / 1e9 if len(spans) == 1 else 0.0

    def label_of(self, key: str) -> str:
        """Return the label of a device in the report."""
        return " ".join((*self.head, key))

    def add(self, record: Record) -> bool:
        """Add a reading. Return False if it has the time of the last one: it is a duplicate and is ignored."""
        snapshot = record.snapshot
        time_ns = snapshot.time_ns
        self._note_windows(record.windows)
        if record.steps:
            self._first_step = min(self._first_step, record.steps[0].time_ns / 1e9)
        if time_ns == self._newest:
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
        if self._wanted is not None and snapshot.unavailable is not self._unavailable:
            self._note_missing(snapshot)
        self._pending.append(record)
        if len(self._pending) == PENDING:
            self._settle_pending()
        return True

    def add_late(self, record: Record, steps: tuple[Step, ...]) -> None:
        """Add a repeated last reading for its new steps, which the end of a run writes."""
        if self._pending:
            last = self._pending[-1]
            self._pending[-1] = last._replace(windows=(*last.windows, *record.windows), steps=(*last.steps, *steps))
        elif self.table is not None and self._recent_row is not None:
            self.table.add(self._recent_row, record._replace(steps=steps))

    def settle(self) -> None:
        """Aggregate all pending readings. Nothing may be added after it."""
        self._settle_pending()
        self._fold()
        self.summary, self.energy = self.aggregator.summary(), self.aggregator.energy_joules()
        if self.table is not None:
            self.table.settle(device for device, used in self.energy.items() if used.reason)
        self._last_reported.update(dict.fromkeys(self._reporting, self._last))
        self._add_silences(self._last_reported, self._last)
        for key in self._unavailable:
            self._missing_keys[key] = (*self._missing_keys[key][:3], self.end)
        for key, held in self.aggregator.metrics.items():
            parts = device_key(key)
            if parts is not None and _is_throttle(key):
                reason, seconds = parts.name.removeprefix(THROTTLE), held.seconds_above(0.5)
                if seconds and reason not in NOT_THROTTLING:
                    self.throttled.setdefault(parts.device, {})[reason] = seconds
        for logged in (*self.own_steps.values(), *self.other_steps.values()):
            logged.settle()

    def report(self, steps: Mapping[StepSource, LoggedSteps]) -> StreamReport:
        """Return the report of the stream.

        Args:
            steps: The steps that are shown with it, by process.
        """
        label = " ".join(self.head)
        labels = {key: self.label_of(key) for key in self.places}
        named: list[tuple[str, LoggedSteps]] = []  # ``rank 3``, ``rank 3 on node-1``; empty where there is one process
        for (rank, node), logged in steps.items():
            named.append((" on ".join(filter(None, ("" if rank is None else f"rank {rank}", node))) if len(steps) > 1 else "", logged))
        begins = self._reducer.begins()
        gaps = self._gap_positions(begins)
        series, strips = [], {}
        for key in self._reducer.columns:
            parts = device_key(key)
            name, device = (key, "") if parts is None else (parts.name, labels.get(parts.device, parts.device))
            low, mean, high, _ = (
                [one for place, value in enumerate(values) for one in ((value, None) if place in gaps else (value,))]
                for values in self._reducer.points(key)
            )
            if not name.startswith(THROTTLE):
                measure = "" if parts is None else next((one for one, names in MEASURES.items() if name in names), "")
                row = match(key)
                series.append(ReducedSeries(key, device, name, measure, "" if row is None else row.unit, low, mean, high))
            elif parts is not None and name.removeprefix(THROTTLE) in self.throttled.get(parts.device, {}):
                strips[device, name.removeprefix(THROTTLE)] = mean
        details = [
            (self.findings[key], [row.time for row in rows], self._columns(key[1], rows)) for key, rows in self._details.items() if rows
        ]
        return StreamReport(
            label=label,
            host=self.host,
            run_id=self.run_id,
            rank=self.rank,
            labels=self._labels,
            begin=self.begin,
            end=self.end,
            readings=self.readings,
            interval=self.interval,
            first_step=min((logged.first for _, logged in named), default=None),
            last_step=max((logged.last for _, logged in named), default=None),
            width=self._reducer.width,
            times=sorted((*begins, *(begins[position] + self._reducer.width for position in gaps))),
            series=series,
            strips=strips,
            details=details,
            marks=self._marks(label, labels, [logged for _, logged in named]),
            curves=[curve for source, logged in named for curve in logged.curves(source)],
            step_times=[found for source, logged in named if (found := logged.step_times(source)) is not None],
            missing=self._missing(labels),
            summary=self.summary,
            distributions={} if self._trained is None else self._distributions(self._trained),
            sources=self._sources,
        )

    # What came of it

    def _columns(self, about: str, rows: Sequence[Row]) -> dict[str, Column]:
        """Return the readings around a finding by key: those of its device, or of all devices if it has none."""

        def is_shown(key: str) -> bool:
            parts = device_key(key)
            return parts is not None and not parts.process and self._is_series(key) and ("." not in about or parts.device == about)

        keys = dict.fromkeys(filter(is_shown, chain.from_iterable(dict.fromkeys(row.layout for row in rows))))
        known = [{key: value for key, value in zip(row.layout, row.values, strict=True) if key in keys and isfinite(value)} for row in rows]
        return {key: [values.get(key) for values in known] for key in keys}

    def _marks(self, label: str, labels: Mapping[str, str], steps: Sequence[LoggedSteps]) -> list[Mark]:
        """Return gaps, silences, windows and epochs by begin, followed by findings and events."""
        marks = [Mark("gap", "nothing was read", at, at + seconds) for at, seconds in self.gaps]
        for key, gaps in self.silences.items():
            marks += [Mark("silence", f"{labels.get(key, key)} gave nothing", at, at + seconds) for at, seconds in gaps]
        slack = (self.end - self.begin) / 100
        for span in (*self._windows.values(), *self._open_windows.values()):
            begin, end = span.begin_ns / 1e9, self.end if span.end_ns is None else span.end_ns / 1e9
            # A window around the whole recording, such as of its summary, shows nothing. It may begin just after the first reading.
            if begin - self.begin > slack or self.end - end > slack:
                marks.append(Mark("window", span.name, begin, end))
        marks += next((epochs for logged in steps if (epochs := logged.epochs())), [])
        marks.sort(key=lambda one: one.begin)
        for finding in sorted(self.findings.values(), key=lambda one: one.since_ns):
            begin, end = finding.since_ns / 1e9, self.end if finding.until_ns is None else finding.until_ns / 1e9
            name = " ".join(filter(None, (finding.rule, label, finding.key)))
            marks.append(Mark("finding", name, begin, max(begin, end), finding.severity))
        events = [(labels.get(device, device), at, text) for device, at, text in self._events]
        for name, (at, number) in chain.from_iterable(logged.odd.items() for logged in steps):
            events.append(("", at, f"{name} was not finite{f' for the first of {number} times' if number > 1 else ''}"))
        return [*marks, *(Mark("event", f"{device} {text}".strip(), at, at) for device, at, text in sorted(events, key=lambda one: one[1]))]

    def _missing(self, labels: Mapping[str, str]) -> list[tuple[str, tuple[str, ...], str, str, float, float]]:
        """Return the missing metrics: device, metrics, reason, latest detail, begin and end."""
        groups: dict[tuple[str, str], list[tuple[str, str, float, float]]] = {}
        for key, (reason, detail, begin, end) in self._missing_keys.items():
            if reason == Reason.NEEDS_INTERVAL and end - begin <= self.interval:  # as every rate at the first reading
                continue
            parts = device_key(key)
            device, name = ("", key) if parts is None else (labels.get(parts.device, parts.device), parts.name)
            groups.setdefault((device, reason), []).append((name, detail, begin, end))
        found = []
        for (device, reason), missing in groups.items():
            names, details, begins, ends = zip(*missing, strict=True)
            found.append((device, names, reason, details[ends.index(max(ends))], min(begins), max(ends)))
        return found

    def _distributions(self, trained: WindowAggregator) -> dict[str, list[tuple[float, int]]]:
        """Return the devices' values with their counts, by measure: from the first step on, or all of them without steps."""
        metrics = (trained if trained.readings else self.aggregator).metrics
        found = {}
        for measure, names in MEASURES.items():
            counts: Counter[float] = Counter()
            for key in self.places:
                if (held := first(metrics, key, names)) is not None:
                    counts.update(dict(held.buckets()))
            if counts:
                found[measure] = sorted(counts.items())
        return found

    def _gap_positions(self, begins: Sequence[float]) -> set[int]:
        """Return the positions of buckets after which a gap without readings begins."""
        found = set()
        for at, seconds in self.gaps:
            position = bisect_right(begins, at) - 1
            if seconds > 0 and 0 <= position < len(begins) - 1 and begins[position + 1] - begins[position] > self._reducer.width:
                found.add(position)
        return found

    # Folding

    def _settle_pending(self) -> None:
        """Make rows of the pending readings once the usual interval is known."""
        self._longest = GAP * self.interval
        rows, self._served = marked([self._row(record.snapshot) for record in self._pending], self._served)
        if self.table is not None:
            for row, record in zip(rows, self._pending, strict=True):
                self.table.add(row, record)
                self._recent_row = row
        if self._wanted is not None:
            self._keep_details(rows)
        self._block += rows
        self._pending.clear()
        if len(self._block) >= BLOCK:
            self._fold()

    def _fold(self) -> None:
        self.aggregator.fold(self._block)
        if self._trained is not None:
            self._trained.fold(row for row in self._block if row.time >= self._first_step)
        if self._wanted is not None:
            for _, rows in groupby(self._block, lambda row: id(row.layout)):
                self._reduce(list(rows))
        self._block.clear()

    def _reduce(self, rows: Sequence[Row]) -> None:
        """Add readings with the same keys to the series, and an event for each rise of an error counter."""
        layout, values = rows[0].layout, values_of(rows)
        columns = {key: values[column :: len(layout)] for column, key in enumerate(layout)}
        self._reducer.add([row.time for row in rows], {key: column for key, column in columns.items() if self._is_series(key)})
        for key, column in columns.items():
            parts = device_key(key) if key.rpartition(".")[2] in COUNTED_EVENTS else None
            if parts is not None and not parts.process:
                self._note_rises(key, parts.device, COUNTED_EVENTS[parts.name], rows, column)

    def _note_rises(self, key: str, device: str, event: tuple[str, str], rows: Sequence[Row], values: Sequence[float]) -> None:
        kind, what = event
        before = self._counters.setdefault(key, values[0])
        if values.count(before) == len(values):  # as nearly always
            return
        last_xid = f"{device}.{LAST_XID}"
        codes = rows[0].layout.index(last_xid) if kind == "xid" and last_xid in rows[0].layout else None
        for row, value in zip(rows, values, strict=True):
            if not isfinite(value):
                continue
            if value > before:
                code = "" if codes is None or not isfinite(row.values[codes]) else f" {row.values[codes]:.0f}"
                number = int(value - before)
                several = f"{number} {what}s{f', the last{code}' if code else ''}"
                self._add_event(kind, device, row.time, f"{what}{code}" if number == 1 else several)
            before = value
        self._counters[key] = before

    def _is_series(self, key: str) -> bool:
        return _is_throttle(key) or (self._wanted is not None and self._wanted.wants(key))

    def _keep_details(self, rows: Sequence[Row]) -> None:
        """Keep the original readings around findings."""
        self._recent.extend(rows)
        while self._recent and self._recent[-1].time - self._recent[0].time > REMEMBERED:
            self._recent.popleft()
        fresh = []
        for key, finding in self.findings.items():
            since = finding.since_ns / 1e9
            # Readings that another finding about the same device keeps are not kept twice.
            covered = any(abs(self.findings[other].since_ns / 1e9 - since) <= AROUND for other in self._details if other[1] == key[1])
            if not covered and len(self._details) < DETAILS:
                self._details[key] = []
                fresh.append(key)
        for key, kept in self._details.items():
            since = self.findings[key].since_ns / 1e9
            near = [row for row in (self._recent if key in fresh else rows) if since - AROUND <= row.time <= since + AROUND]
            kept.extend(near[: KEPT - len(kept)])

    def _row(self, snapshot: Snapshot) -> Row:
        moment, before = snapshot.time_ns / 1e9, self._last
        elapsed = moment - before
        joined = 0 <= elapsed <= self._longest
        if not joined:
            self.gaps.append((before, elapsed))
            self._add_silences(self._last_reported.keys() - set(self._reporting), before)
            self._layout, self._reporting = None, []
            self._last_reported.clear()
        # The statistics' own clock goes on where the recorded one was set back.
        self._at += max(0.0, elapsed)
        self._last = moment
        self.begin, self.end = min(self.begin, moment), max(self.end, moment)
        header, places = snapshot.header.selected(self._is_needed, self._is_needed)
        numbers = [snapshot.numbers[place] for place in places]
        row = pack_row(header, numbers, self._at, snapshot.time_ns, [status.sequence for status in snapshot.backends], joined=joined)
        if row.layout is not self._layout:
            self._last_reported.update(dict.fromkeys(self._reporting, before))
            self._layout = row.layout
            self._reporting = [place.key for place in snapshot.identities if has_values(snapshot, place.key)]
            self.places.update((place.key, place) for place in snapshot.identities)
            self._sources.update((status.name, status.source or status.detail) for status in snapshot.backends)
            self._add_silences(self._reporting, moment)
        return row

    def _is_needed(self, key: str) -> bool:
        """Return whether reports use a metric in statistics, series or events."""
        parts = device_key(key)
        return parts is None or parts.name in NEEDED or self._is_series(key)

    def _add_silences(self, keys: Iterable[str], until: float) -> None:
        for key in keys:
            since = self._last_reported.get(key, until)
            if until - since > self._longest:
                self.silences.setdefault(key, []).append((since, until - since))

    def _note_windows(self, windows: Iterable[WindowSpan]) -> None:
        """Record windows that began or ended, up to ``WINDOWS``."""
        for span in windows:
            if span.end_ns is not None:
                self._open_windows.pop(span.name, None)
            if len(self._windows) + len(self._open_windows) < WINDOWS:
                if span.end_ns is None:
                    self._open_windows[span.name] = span
                else:
                    self._windows[span.name, span.end_ns] = span

    def _note_missing(self, snapshot: Snapshot) -> None:
        """Record which metrics are missing from this reading on, and the end of earlier absences."""
        moment = snapshot.time_ns / 1e9
        for key in self._unavailable:
            self._missing_keys[key] = (*self._missing_keys[key][:3], moment)
        for key, why in snapshot.unavailable.items():
            reason, before = str(why.reason), self._missing_keys.get(key)
            self._missing_keys[key] = (reason, why.detail, moment if before is None or before[0] != reason else before[2], moment)
        keys = (device_key(key) for key, why in snapshot.unavailable.items() if why.reason == Reason.DEVICE_LOST)
        lost = dict.fromkeys(parts.device for parts in keys if parts is not None)
        for device in lost:
            if device not in self._lost:
                self._add_event("lost", device, moment, "the device was lost")
        self._unavailable, self._lost = snapshot.unavailable, lost

    def _add_event(self, kind: str, device: str, moment: float, text: str) -> None:
        """Add an event, up to ``EVENTS`` of a kind and device."""
        self._event_counts[kind, device] += 1
        if self._event_counts[kind, device] <= EVENTS:
            self._events.append((device, moment, text))


def stream_of(record: Record) -> tuple[str, str, str]:
    """Return the identity of a record's stream: host, run and rank."""
    return (record.snapshot.hostname, record.labels.get("run_id", ""), record.labels.get("rank", ""))


def _is_throttle(key: str) -> bool:
    """Return whether a metric is a reason of throttling."""
    parts = device_key(key)
    return parts is not None and not parts.process and parts.name.startswith(THROTTLE)
