"""The records of one process of one run on one host, folded into statistics and reduced series while they are read."""

from __future__ import annotations

import statistics
from array import array
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from math import inf, isfinite
from typing import NamedTuple

from accelmetrics.schemas.catalogue import match
from accelmetrics.schemas.catalogue.devices import NOT_THROTTLING
from accelmetrics.schemas.energy import COUNTER, DRAW
from accelmetrics.schemas.errors import Reason
from accelmetrics.schemas.finding import NO_FINDINGS, CannotTell, Finding
from accelmetrics.schemas.history import HistoryRow, Layout, RowMaker
from accelmetrics.schemas.identity import DeviceSlot
from accelmetrics.schemas.metric import device_key
from accelmetrics.schemas.record import Record, Step, WindowSpan
from accelmetrics.schemas.selection import MetricSelection
from accelmetrics.schemas.snapshot import Snapshot, has_values, rfc3339
from accelmetrics.schemas.statistics import WindowAggregator
from accelmetrics.schemas.vitals import MEMORY_TOTAL, POWER_LIMIT, first
from accelmetrics.views.report.periods import PeriodTable
from accelmetrics.views.report.run_report import Column, Detail, Event, EventKind, Missing, Plain, ReducedSeries, Stretch, Strip
from accelmetrics.views.report.series import SeriesReducer
from accelmetrics.views.summaries import MEASURES

PENDING = 64
"""Readings whose gaps are told together, by the usual interval at the last of them: the first may be shorter or longer."""
BLOCK = 2048
"""Readings that are folded into statistics together: the cost of a block is shared by them."""
GAP = 3.0
"""In usual intervals: a longer silence is a gap, over which nothing is reckoned."""
USUAL = 50
"""Intervals whose median is the usual one."""
AROUND = 600.0
"""Seconds before and after the beginning of a finding for which readings are kept as they were taken."""
KEPT, REMEMBERED = 2400, 1800.0
"""Readings, and seconds of them, that may still become part of that: rules find what began a while ago."""
DETAILS = 8
"""Findings of a stream whose readings are kept."""
WINDOWS = 1000
"""Windows of a stream that are marked."""
EVENTS = 200
"""Events of one kind and device that are told."""
THROTTLE = "throttle."
COUNTED_EVENTS: Mapping[str, tuple[EventKind, str]] = {
    "xidErrors": ("xid", "Xid error"),
    "uncorrectedMemoryErrors": ("memory", "uncorrectable memory error"),
    "uncorrectedEccErrors": ("memory", "uncorrectable memory error"),
}
"""Counters whose rise is an event: its kind, and what is counted in words."""
LAST_XID = "lastXid"
TOLD = frozenset((*chain(*MEASURES.values()), *POWER_LIMIT, *MEMORY_TOTAL, COUNTER, DRAW, *COUNTED_EVENTS, LAST_XID))
"""Names of devices' metrics that tables and events are made from, and energy."""


class _Told(NamedTuple):
    """What came with a reading: windows, what was logged, and what of it by the process that the recording is of."""

    windows: tuple[WindowSpan, ...]
    steps: tuple[Step, ...]
    own: tuple[Step, ...]


class _Details:
    """Readings around the beginning of one finding."""

    def __init__(self, finding: tuple[str, str, int], key: str, since: float) -> None:
        self.finding, self.key = finding, key
        self.begin, self.end = since - AROUND, since + AROUND
        self.rows: list[HistoryRow] = []

    def add(self, row: HistoryRow) -> None:
        """Take a reading, if it is near enough."""
        if self.begin <= row.time <= self.end and len(self.rows) < KEPT:
            self.rows.append(row)


class _Lack(NamedTuple):
    """One value that is missing."""

    reason: str
    detail: str
    begin: float
    end: float


class RecordStream:
    """The records of one process of one run on one host, which are folded into its statistics many at a time.

    The usual interval is the median of the latest ones, gaps among them, and no less than the one that the records say they were to have.

    Args:
        record: Its first record.
        series: Metrics that are reduced to series; None where none are wanted.
        by: What there is to be a table by; empty for none.
        trained: Whether distributions are to be of the time from the first step on.

    Attributes:
        table: That table.
    """

    def __init__(self, record: Record, series: MetricSelection | None = None, by: str = "", trained: bool = False) -> None:
        self.host, self.run_id, self.rank = stream_of(record)
        self.labels = record.labels
        self.begin = self.end = self._last = self._at = record.snapshot.time_ns / 1e9
        self.readings = self.repeated = 0
        self.gaps: list[Plain] = []
        self.places: dict[str, DeviceSlot] = {}
        self.silences: dict[str, list[Plain]] = {}
        self.aggregator = WindowAggregator(self.begin, across=False, timed=_is_throttle)
        self.findings: dict[tuple[str, str, int], Finding] = {}  # as each stood last
        self.cannot_tell: tuple[CannotTell, ...] = ()
        self.sources: dict[str, str] = {}
        self.reducer = SeriesReducer()
        self.events: list[Event] = []
        self.table = PeriodTable(by) if by else None
        self._trained = WindowAggregator(self.begin, across=False, timed=_is_throttle) if trained else None
        self._first_step = inf
        self._wanted = series
        self._windows: dict[tuple[str, int], WindowSpan] = {}  # that ended, by name and end
        self._open_windows: dict[str, WindowSpan] = {}
        self._told: list[_Told] = []  # what came with pending readings, where there is a table
        self._series: dict[Layout, list[int]] = {}  # by layout, the columns that are reduced
        self._counters: dict[str, float] = {}
        self._findings = NO_FINDINGS
        self._rows = RowMaker(self._is_told)
        self._pending: list[Snapshot] = []
        self._block: list[HistoryRow] = []
        self._recent_row: HistoryRow | None = None
        self._recent: deque[HistoryRow] = deque(maxlen=KEPT)
        self._details: list[_Details] = []
        self._lacks: dict[str, _Lack] = {}
        self._unavailable: Mapping[str, object] = {}
        self._lost: frozenset[str] = frozenset()
        self._event_counts: Counter[tuple[EventKind, str]] = Counter()  # by kind and device
        self._intervals: deque[float] = deque(maxlen=USUAL)
        self._interval = self._longest = 0.0
        self._newest: int | None = None
        self._heard: dict[str, float] = {}
        self._layout: Layout | None = None
        self._speaking: list[str] = []

    @property
    def interval(self) -> float:
        """Seconds between two readings, usually."""
        return max(self._interval, statistics.median_low(self._intervals or [0.0]))

    def add(self, record: Record) -> bool:
        """Take a reading; False for one of the same time as the last, which is there twice and is passed over."""
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
            self._note_lacks(snapshot)
        self._pending.append(snapshot)
        if self.table is not None:
            self._told.append(_Told(record.windows, record.steps, record.own_steps))
        if len(self._pending) == PENDING:
            self._settle_pending()
        return True

    def add_late(self, record: Record, steps: tuple[Step, ...]) -> None:
        """Take what came with the last reading once more, with steps that it had not: as the end of a run writes it."""
        if self.table is None:
            return
        own = tuple(step for step in record.own_steps if step in steps)
        if self._told:
            windows, before, own_before = self._told[-1]
            self._told[-1] = _Told((*windows, *record.windows), (*before, *steps), (*own_before, *own))
        elif self._recent_row is not None:
            self.table.add(self._recent_row, record.windows, steps, own)

    def settle(self) -> None:
        """Fold the readings that are still pending."""
        self._settle_pending()
        if self.table is not None:
            self.table.settle()
        self._fold()
        self._heard.update(dict.fromkeys(self._speaking, self._last))
        self._note_silences(self._heard, self._last)
        for key in self._unavailable:
            self._lacks[key] = self._lacks[key]._replace(end=self.end)

    # What came of it

    def series(self, labels: Mapping[str, str]) -> Iterator[ReducedSeries]:
        """Yield the reduced series but those of strips.

        Args:
            labels: By key of a device, what the report calls it.
        """
        gaps = self._gap_positions()
        for key in self.reducer.keys:
            parts = device_key(key)
            name = key if parts is None else parts.name
            if name.startswith(THROTTLE):
                continue
            measure = "" if parts is None else next((one for one, names in MEASURES.items() if name in names), "")
            row = match(key)
            low, mean, high, _ = (_with_gaps(one, gaps) for one in self.reducer.points(key))
            device = "" if parts is None else labels.get(parts.device, parts.device)
            yield ReducedSeries(key, device, name, measure, "" if row is None else row.unit, low, mean, high)

    def strips(self, labels: Mapping[str, str]) -> Iterator[Strip]:
        """Yield the reasons for which devices were throttled."""
        gaps = self._gap_positions()
        for key in self.reducer.keys:
            parts = device_key(key)
            if parts is not None and parts.name.startswith(THROTTLE):
                reason = parts.name.removeprefix(THROTTLE)
                seconds = self.aggregator.seconds_above(key, 0.5) or 0.0
                if seconds and reason not in NOT_THROTTLING:
                    share = _with_gaps(self.reducer.points(key).mean, gaps)
                    yield Strip(labels.get(parts.device, parts.device), reason, share, seconds)

    def distributions(self) -> dict[str, list[tuple[float, int]]]:
        """Return, by measure, the values that its devices gave, with how often."""
        trained = self._trained is not None and self._trained.readings > 0
        metrics = self._trained.metrics if trained and self._trained is not None else self.aggregator.metrics
        found = {}
        for measure, names in MEASURES.items():
            counts: Counter[float] = Counter()
            for key in self.places:
                if (held := first(metrics, key, names)) is not None:
                    counts.update(dict(held.cells()))
            if counts:
                found[measure] = sorted(counts.items())
        return found

    def times(self) -> list[float]:
        """Return when each bucket begins, and one in each gap."""
        begins, gaps = self.reducer.begins(), self._gap_positions()
        found = []
        for position, begin in enumerate(begins):
            found.append(begin)
            if position in gaps:
                found.append(begin + self.reducer.width)
        return found

    def details(self, order: Sequence[tuple[str, str, int]]) -> Iterator[Detail]:
        """Yield readings at full rate around findings.

        Args:
            order: The findings, in the order of the report.
        """
        for one in self._details:
            layouts = dict.fromkeys(row.layout for row in one.rows)
            keys = dict.fromkeys(key for layout in layouts for key in layout if self._is_series(key) and _is_about(key, one.key))
            columns: dict[str, Column] = {}
            for key in keys:
                where = {layout: layout.index(key) for layout in layouts if key in layout}
                found = [row.values[where[row.layout]] if row.layout in where else None for row in one.rows]
                columns[key] = [value if value is not None and isfinite(value) else None for value in found]
            if one.rows:
                yield Detail(order.index(one.finding), [row.time for row in one.rows], columns)

    def stretches(self, labels: Mapping[str, str]) -> list[Stretch]:
        """Return gaps and silences."""
        found = [Stretch("gap", "", gap["at"], gap["at"] + gap["seconds"]) for gap in self.gaps]
        for key, gaps in self.silences.items():
            found += [Stretch("silence", labels.get(key, key), gap["at"], gap["at"] + gap["seconds"]) for gap in gaps]
        for span in (*self._windows.values(), *self._open_windows.values()):
            end = self.end if span.end_ns is None else span.end_ns / 1e9
            found.append(Stretch("window", span.name, span.begin_ns / 1e9, end))
        return found

    def missing(self, labels: Mapping[str, str]) -> list[Missing]:
        """Return what was not read, by device, reason and time."""
        groups: dict[tuple[str, str], list[tuple[str, _Lack]]] = {}
        for key, lack in self._lacks.items():
            parts = device_key(key)
            device, name = ("", key) if parts is None else (labels.get(parts.device, parts.device), parts.name)
            groups.setdefault((device, lack.reason), []).append((name, lack))
        return [
            Missing(
                device,
                tuple(name for name, _ in lacks),
                reason,
                max(lacks, key=lambda one: one[1].end)[1].detail,
                min(lack.begin for _, lack in lacks),
                max(lack.end for _, lack in lacks),
            )
            for (device, reason), lacks in groups.items()
        ]

    # Folding

    def _settle_pending(self) -> None:
        """Make rows of pending readings, now that the usual interval is known."""
        self._longest = GAP * self.interval
        for snapshot in self._pending:
            self._block.append(self._row(snapshot, snapshot.time_ns / 1e9))
        if self.table is not None and self._pending:
            for row, told in zip(self._block[-len(self._pending) :], self._told, strict=True):
                self.table.add(row, *told)
            self._recent_row = self._block[-1]
            self._told.clear()
        if self._wanted is not None:
            self._keep_details(self._block[-len(self._pending) :] if self._pending else [])
        self._pending.clear()
        if len(self._block) >= BLOCK:
            self._fold()

    def _fold(self) -> None:
        self.aggregator.fold(self._block)
        if self._trained is not None:
            rows = [row for row in self._block if row.time >= self._first_step]
            if rows and not self._trained.readings:
                self._trained = WindowAggregator(rows[0].at, across=False, timed=_is_throttle)
            self._trained.fold(rows)
        if self._wanted is not None:
            begin = 0
            for end in range(1, len(self._block) + 1):
                if end == len(self._block) or self._block[end].layout is not self._block[begin].layout:
                    self._reduce(self._block[begin:end])
                    begin = end
        self._block.clear()

    def _reduce(self, rows: Sequence[HistoryRow]) -> None:
        """Add readings of the same keys to the series."""
        layout = rows[0].layout
        chosen = self._series.get(layout)
        if chosen is None:
            chosen = self._series[layout] = [column for column, key in enumerate(layout) if self._is_series(key)]
        width, values = len(layout), array("d")
        for row in rows:
            values.extend(row.values)
        columns = {layout[column]: values[column::width] for column in chosen}
        self.reducer.add([row.time for row in rows], columns)
        for key in layout:
            parts = device_key(key) if key.rpartition(".")[2] in COUNTED_EVENTS else None
            if parts is not None and not parts.process:
                self._note_events(key, parts.device, parts.name, rows, values[layout.index(key) :: width])

    def _note_events(self, key: str, device: str, name: str, rows: Sequence[HistoryRow], values: Sequence[float]) -> None:
        """Note each rise of a counter of errors."""
        kind, what = COUNTED_EVENTS[name]
        before = self._counters.setdefault(key, values[0])
        last = values[-1]
        self._counters[key] = last if isfinite(last) else before
        if values.count(before) == len(values):
            return
        codes = rows[0].layout.index(f"{device}.{LAST_XID}") if f"{device}.{LAST_XID}" in rows[0].layout else None
        for row, value in zip(rows, values, strict=True):
            if not isfinite(value):
                continue
            if value > before:
                code = "" if kind != "xid" or codes is None or not isfinite(row.values[codes]) else f" {row.values[codes]:.0f}"
                number = int(value - before)
                text = f"{what}{code}" if number == 1 else f"{number} {what}s{f', the last{code}' if code else ''}"
                self._add_event(kind, device, row.time, text)
            before = self._counters[key] = value

    def _is_series(self, key: str) -> bool:
        return _is_throttle(key) or (self._wanted is not None and self._wanted.wants(key))

    def _keep_details(self, rows: Sequence[HistoryRow]) -> None:
        """Keep the readings around findings as they were taken."""
        self._recent.extend(rows)
        while self._recent and self._recent[-1].time - self._recent[0].time > REMEMBERED:
            self._recent.popleft()
        for detail in self._details:
            for row in rows:
                detail.add(row)
        known = {one.finding for one in self._details}
        for key, finding in self.findings.items():
            since = finding.since_ns / 1e9
            covered = any(one.key == finding.key and one.begin <= since <= one.end for one in self._details)
            if key not in known and not covered and len(self._details) < DETAILS:
                found = _Details(key, finding.key, since)
                self._details.append(found)
                for row in self._recent:
                    found.add(row)

    def _row(self, snapshot: Snapshot, moment: float) -> HistoryRow:
        elapsed = moment - self._last
        joined = 0 <= elapsed <= self._longest
        before = self._last
        if not joined:
            self.gaps.append(_gap(before, elapsed))
            self._note_silences(self._heard.keys() - set(self._speaking), before)
            self._layout, self._speaking = None, []
            self._heard.clear()
        # The statistics' own clock goes on where the recorded one was set back.
        self._at += max(0.0, elapsed)
        self._last = moment
        self.begin, self.end = min(self.begin, moment), max(self.end, moment)
        row = self._rows.row(snapshot, self._at, joined)
        if row.layout is not self._layout:
            self._heard.update(dict.fromkeys(self._speaking, before))
            self._layout = row.layout
            self._speaking = [place.key for place in snapshot.identities if has_values(snapshot, place.key)]
            self.places.update((place.key, place) for place in snapshot.identities)
            self.sources.update((status.name, status.source or status.detail) for status in snapshot.backends)
            self._note_silences(self._speaking, moment)
        return row

    def _is_told(self, key: str) -> bool:
        """Return whether a metric has statistics in reports, a place in their series, or events."""
        parts = device_key(key)
        return parts is None or parts.name in TOLD or self._is_series(key)

    def _note_silences(self, keys: Iterable[str], until: float) -> None:
        for key in keys:
            since = self._heard.get(key, until)
            if until - since > self._longest:
                self.silences.setdefault(key, []).append(_gap(since, until - since))

    def _note_windows(self, windows: Iterable[WindowSpan]) -> None:
        """Note windows that began or ended; the first of many."""
        for span in windows:
            if span.end_ns is not None:
                self._open_windows.pop(span.name, None)
            if len(self._windows) + len(self._open_windows) >= WINDOWS:
                continue
            if span.end_ns is None:
                self._open_windows[span.name] = span
            else:
                self._windows[span.name, span.end_ns] = span

    def _note_lacks(self, snapshot: Snapshot) -> None:
        """Note what is missing from here on, and until when that was missing which is there again."""
        moment = snapshot.time_ns / 1e9
        for key in self._unavailable:
            self._lacks[key] = self._lacks[key]._replace(end=moment)
        for key, why in snapshot.unavailable.items():
            before = self._lacks.get(key)
            begin = moment if before is None else before.begin
            self._lacks[key] = _Lack(str(why.reason), why.detail, begin, moment)
        gone = (device_key(key) for key, why in snapshot.unavailable.items() if why.reason == Reason.DEVICE_LOST)
        lost = dict.fromkeys(parts.device for parts in gone if parts is not None)
        for device in lost:
            if device not in self._lost:
                self._add_event("lost", device, moment, "the device was lost")
        self._unavailable, self._lost = snapshot.unavailable, frozenset(lost)

    def _add_event(self, kind: EventKind, device: str, moment: float, text: str) -> None:
        """Add an event; the first ones of many alike."""
        self._event_counts[kind, device] += 1
        if self._event_counts[kind, device] <= EVENTS:
            self.events.append(Event(kind, device, moment, text))

    def _gap_positions(self) -> frozenset[int]:
        """Return the positions of buckets behind which a gap begins that no reading covers."""
        begins = self.reducer.begins()
        found = set()
        for gap in self.gaps:
            position = bisect_right(begins, gap["at"]) - 1
            if gap["seconds"] > 0 and 0 <= position < len(begins) - 1 and begins[position + 1] - begins[position] > self.reducer.width:
                found.add(position)
        return frozenset(found)


def stream_of(record: Record) -> tuple[str, str, str]:
    """Return the identity of a stream of records: host, run and rank."""
    return (record.snapshot.hostname, record.labels.get("run_id", ""), record.labels.get("rank", ""))


def told_gap(gap: Plain) -> Plain:
    """Return a silence as documents have it."""
    return {"after": rfc3339(int(gap["at"] * 1e9)), "seconds": gap["seconds"]}


def _gap(after: float, seconds: float) -> Plain:
    """Return a silence after the last reading before it; below 0 s where the next one bears an earlier time."""
    return {"at": after, "seconds": seconds}


def _is_throttle(key: str) -> bool:
    """Return whether a metric says that a device was throttled."""
    parts = device_key(key)
    return parts is not None and not parts.process and parts.name.startswith(THROTTLE)


def _is_about(key: str, device: str) -> bool:
    """Return whether a key is about a device; where that is none, whether it is about any."""
    parts = device_key(key)
    return parts is not None and not parts.process and (parts.device == device or "." not in device)


def _with_gaps(values: Sequence[float | None], gaps: frozenset[int]) -> list[float | None]:
    if not gaps:
        return list(values)
    found: list[float | None] = []
    for position, value in enumerate(values):
        found.append(value)
        if position in gaps:
            found.append(None)
    return found
