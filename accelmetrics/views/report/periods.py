"""Statistics of the devices by epoch or window, computed while the records are read.

A logged number (``epoch``) divides the time between steps: the value of a step holds from the step before. Windows have their own begin
and end. A record holds the steps and windows since the reading before, so readings wait until their period is known.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from math import ceil, isfinite

from accelmetrics.schemas.errors import InvalidOptionError, UnknownNameError
from accelmetrics.schemas.metric import device_key
from accelmetrics.schemas.record import WORK, Record, Step, StepSource
from accelmetrics.schemas.ring import Row
from accelmetrics.schemas.statistics import COUNTER, WindowAggregator
from accelmetrics.schemas.vitals import POWER, UTILIZATION, first
from accelmetrics.views.report.run_report import Plain

WINDOW, EPOCH = "window", "epoch"
"""Value of ``by`` for one row for each window name, and the logged number that may be a fraction."""
MOST = 1000
"""Largest number of rows."""
WAITING = 20_000
"""Largest number of readings that wait for a step. Older ones then belong to the value that was logged last."""
Names = tuple[str, ...]
TABULATED = frozenset((COUNTER, *POWER, *UTILIZATION))


class Total:
    """Sum of all periods with one name.

    Attributes:
        times: Number of periods.
        seconds: Their total duration.
        weighted: Mean of a metric times the seconds in which it is known, by device and metric names.
        known: These seconds.
        most: Largest value.
        joules: Energy by device; None if unknown.
        drawn: The same, integrated from power alone.
        own: Processes that made the recordings.
        steps: Number of logged steps, by process.
        work: Amount of work, by process and kind.
    """

    def __init__(self) -> None:
        self.times = 0
        self.seconds = 0.0
        self.weighted: dict[tuple[str, Names], float] = defaultdict(float)
        self.known: dict[tuple[str, Names], float] = defaultdict(float)
        self.most: dict[tuple[str, Names], float] = {}
        self.joules: dict[str, float | None] = {}
        self.drawn: dict[str, float | None] = {}
        self.own: set[StepSource] = set()
        self.steps: Counter[StepSource] = Counter()
        self.work: dict[tuple[StepSource, str], float] = defaultdict(float)

    def add(self, seconds: float, stretch: WindowAggregator) -> None:
        """Add a period."""
        self.times += 1
        self.seconds += seconds
        summary, energy = stretch.summary(), stretch.energy_joules()
        for device in dict.fromkeys(parts.device for key in summary if (parts := device_key(key)) is not None):
            for names in (UTILIZATION, POWER):
                if (held := first(summary, device, names)) is not None:
                    self.weighted[device, names] += held.mean * held.seconds
                    self.known[device, names] += held.seconds
                    self.most[device, names] = max(held.max, self.most.get((device, names), held.max))
            drawn = stretch.energy[device].result(doubt="of all of it") if device in stretch.energy else None
            for totals, used in ((self.joules, energy.get(device)), (self.drawn, drawn)):
                totals.setdefault(device, None)
                if used is not None:
                    totals[device] = used.joules + (totals[device] or 0.0)

    def log(self, step: Step, own: bool) -> None:
        """Add a logged step."""
        self.steps[step.source] += 1
        if own:
            self.own.add(step.source)
        for name in WORK:
            amount = step.values.get(name)
            if amount is not None and isfinite(amount):
                self.work[step.source, name] += amount


class _Stretch:
    """A period that has not ended.

    Args:
        begin: Its begin in seconds since 1970.
        at: The same on the clock of rows.
        before: The last reading before it.
    """

    def __init__(self, name: str, begin: float, at: float, before: Row | None) -> None:
        self.name, self.begin = name, begin
        self.aggregator = WindowAggregator(at, () if before is None else [before], across=False)


class PeriodTable:
    """The table of one stream.

    Args:
        by: A logged number, a window's name or its beginning, or ``window`` for all windows.

    Attributes:
        numbers: Totals by value of the logged number.
        windows: Totals by window name.
        known: Names that ``by`` could have been, for error messages.
    """

    def __init__(self, by: str) -> None:
        self.numbers: dict[str, Total] = {}
        self.windows: dict[str, Total] = {}
        self.known: set[str] = set()
        self._by = by
        self._fractional = False
        self._before: Row | None = None
        self._open: list[_Stretch] = []
        # Of the logged number: the stretch that goes on, and readings since its last step, below the one before them.
        self._value: _Stretch | None = None
        self._label = ""
        self._first_step = self._last_step = 0.0
        self._waiting: deque[Row] = deque()
        self._earlier: Row | None = None

    def add(self, row: Row, record: Record) -> None:
        """Add a reading, with the steps and windows of its record.

        Raises:
            InvalidOptionError: There are more names or values than a table has rows.
        """
        row = row.narrowed(_is_tabulated, "tabulated")
        mine = {step.source for step in record.own_steps}
        self._waiting.append(row)
        for step in record.steps:
            if len(self.known) < MOST:
                self.known.update(step.values)
            value = step.values.get(self._by)
            if step.source in mine and value is not None and isfinite(value):
                self._add_value(value, step.time_ns / 1e9)
            if self._label:
                _total(self.numbers, self._label).log(step, step.source in mine)
        if len(self._waiting) > WAITING:
            self._pass(self._waiting[WAITING // 2].time)
        self._add_windows(row, record, mine)
        self._before = row

    def settle(self, doubted: Iterable[str]) -> None:
        """End open periods, at the last step or the last reading.

        Args:
            doubted: Devices whose energy counter contradicts their power over the whole recording. A period may be too short to tell.
        """
        if self._label:
            self._end_value()
        if self._before is not None:
            for stretch in self._open:
                _close(self.windows, stretch, [], self._before.time, self._before)
        self._open.clear()
        for total in (*self.numbers.values(), *self.windows.values()):
            total.joules |= {device: total.drawn[device] for device in doubted if device in total.drawn}

    # Numbers

    def _add_value(self, value: float, moment: float) -> None:
        """Add a step with this value. Epoch 2.3 belongs to epoch 3."""
        if self._by == EPOCH:
            self._fractional = self._fractional or value != int(value)
            value = ceil(value) if self._fractional else value
        label = f"{self._by} {value:g}"
        if not self._label:
            self._first_step = moment
        elif label == self._label:
            self._pass(moment)
        else:
            self._end_value()
        self._label, self._last_step = label, moment

    def _pass(self, until: float) -> None:
        """Move the waiting readings up to a time into the open period, which begins with its first step if it has several."""
        if self._value is None and self._label:
            self._begin_value(self._first_step)
        passed = self._taken(until)
        if self._value is not None:
            self._value.aggregator.feed(passed)

    def _begin_value(self, begin: float) -> None:
        self._taken(begin)
        reading = self._earlier or (self._waiting[0] if self._waiting else None)
        if reading is not None:
            self._value = _Stretch(self._label, begin, _clock(reading, begin), self._earlier)

    def _end_value(self) -> None:
        """End the open period at its last step, where the next one begins."""
        if self._value is None:  # one step alone: it tells of the time since the recording began
            rows = [self._earlier] if self._earlier is not None else list(self._waiting)[:1]
            self._begin_value(rows[0].time if rows else self._first_step)
        if self._value is not None:
            self._value.aggregator.feed(self._taken(self._last_step))
            near = self._earlier or self._before
            if near is not None:
                _close(self.numbers, self._value, list(self._waiting)[:1], self._last_step, near)
        self._value, self._first_step = None, self._last_step

    def _taken(self, until: float) -> list[Row]:
        """Remove and return the waiting readings up to a time."""
        found = []
        while self._waiting and self._waiting[0].time <= until:
            self._earlier = self._waiting.popleft()
            found.append(self._earlier)
        return found

    # Windows

    def _add_windows(self, row: Row, record: Record, mine: set[StepSource]) -> None:
        ended: list[tuple[_Stretch, float]] = []
        for span in record.windows:
            if len(self.known) < MOST:
                self.known.add(span.name)
            if self._by == WINDOW or span.name.startswith(self._by):
                begin = span.begin_ns / 1e9
                same = [one for one in self._open if one.name == span.name]
                if span.end_ns is not None and same:
                    stretch = min(same, key=lambda one: abs(one.begin - begin))
                    self._open.remove(stretch)
                else:  # the records of its beginning are not in this recording
                    stretch = _Stretch(span.name, begin, _clock(row, begin), self._before)
                if span.end_ns is None:
                    self._open.append(stretch)
                else:
                    ended.append((stretch, span.end_ns / 1e9))
        for stretch, end in (*((one, row.time) for one in self._open), *ended):
            for step in record.steps:
                if stretch.begin < step.time_ns / 1e9 <= end:
                    _total(self.windows, stretch.name).log(step, step.source in mine)
        for stretch in self._open:
            stretch.aggregator.feed([row])
        for stretch, end in ended:
            _close(self.windows, stretch, [row], end, row)


def _is_tabulated(key: str) -> bool:
    """Return whether tables of periods show a metric."""
    parts = device_key(key)
    return parts is not None and parts.name in TABULATED


def _clock(row: Row, moment: float) -> float:
    """Return a time on the clock of rows."""
    return row.at - (row.time - moment)


def _total(totals: dict[str, Total], name: str) -> Total:
    if name not in totals and len(totals) >= MOST:
        raise InvalidOptionError(f"--by has more than {MOST} rows: choose a number that stays the same for a while, or fewer windows")
    return totals.setdefault(name, Total())


def _close(totals: dict[str, Total], stretch: _Stretch, after: list[Row], end: float, near: Row) -> None:
    """Add a finished period to its total.

    Args:
        totals: The totals by name.
        stretch: The period.
        after: A reading after its end, if there is one: it shows that the period was watched to its end.
        end: Its end in seconds since 1970.
        near: A reading near its end, for the difference of the clocks.
    """
    stretch.aggregator.fold(after, _clock(near, end))
    _total(totals, stretch.name).add(end - stretch.begin, stretch.aggregator)


def periods(
    tables: Sequence[tuple[str, PeriodTable, frozenset[str]]], by: str, priced: Callable[[float | None, float], dict[str, float | None]]
) -> list[Plain]:
    """Return the table over all streams as documents have it: one row for each epoch, window, or value of a number.

    Args:
        tables: For each stream the prefix of its rows if there are several runs, its table, and the devices that count there.
        by: The requested number or window.
        priced: Returns costs and carbon of joules and of device seconds.

    Raises:
        UnknownNameError: There is neither a logged number nor a window with this name.
    """
    numbers = any(table.numbers for _, table, _ in tables)
    rows: dict[str, list[tuple[Total, frozenset[str]]]] = {}
    for head, table, counted in tables:
        for name, total in (table.numbers if numbers else table.windows).items():
            rows.setdefault(" ".join(filter(None, (head, name))), []).append((total, counted))
    if not rows:
        raise UnknownNameError("logged number or window", by, sorted({WINDOW, *(name for _, table, _ in tables for name in table.known)}))
    return [_period(name, found, priced) for name, found in rows.items()]


def _period(
    name: str, found: list[tuple[Total, frozenset[str]]], priced: Callable[[float | None, float], dict[str, float | None]]
) -> Plain:
    """Return a row. Unknown values are None, and so is the energy unless it is known for every device."""
    shares = [(total, key) for total, counted in found for key in total.joules if key in counted]
    busy = [(total, (key, UTILIZATION)) for total, key in shares]
    drawn = [(total, (key, POWER)) for total, key in shares]
    seconds = max(total.seconds for total, _ in found)
    busy_seconds = sum(total.known.get(which, 0.0) for total, which in busy)
    watts = [total.weighted[which] / total.known[which] for total, which in drawn if total.known.get(which)]
    joules_of = [joules for total, key in shares if (joules := total.joules[key]) is not None]
    joules = sum(joules_of) if joules_of and len(joules_of) == len(shares) else None
    by_source: dict[StepSource, Total] = {}  # each process by its own recording, where there is one
    for total, _ in found:
        for source in total.steps:
            if source not in by_source or source in total.own:
                by_source[source] = total
    work: dict[str, float] = defaultdict(float)
    for source, total in by_source.items():
        for kind in WORK:
            if (source, kind) in total.work:
                work[kind] += total.work[source, kind]
    return {
        "name": name,
        "times": max(total.times for total, _ in found),
        "seconds": seconds,
        "utilization_mean": sum(total.weighted.get(which, 0.0) for total, which in busy) / busy_seconds if busy_seconds else None,
        "utilization_max": max((total.most[which] for total, which in busy if which in total.most), default=None),
        "power_watts_mean": sum(watts) if watts else None,
        "power_watts_max": max((total.most[which] for total, which in drawn if which in total.most), default=None),
        "energy_joules": joules,
        "steps": max((total.steps[source] for source, total in by_source.items()), default=0),
        "work": dict(work),
        "per_second": {kind: amount / seconds for kind, amount in work.items() if seconds > 0},
        "per_joule": {kind: amount / joules for kind, amount in work.items() if joules},
        **priced(joules, sum(total.seconds for total, _ in shares)),
    }
