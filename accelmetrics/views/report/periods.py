"""Epochs and windows of a stream: what the devices did in each, told while the records are read.

A number that the program logs (``epoch``) divides the time between its steps: a step's value holds from the step before. Windows say
themselves when they begin and end. Both are told with the reading that follows, so that readings wait until it is known whose they are.
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
"""What is asked for to have a row for each window's name; the number that may be logged as a fraction."""
MOST = 1000
"""Rows of a table."""
WAITING = 20_000
"""Readings that wait for a step at most; the oldest are then of the value that was logged last."""
Names = tuple[str, ...]
TOLD = frozenset((COUNTER, *POWER, *UTILIZATION))


class Total:
    """All stretches of one name.

    Attributes:
        times: How many there were.
        seconds: How long they lasted together.
        weighted: By device and names of a metric, its mean times the seconds of which it is known.
        known: Those seconds.
        most: Its largest value.
        joules: By device, its energy; None where that is not known.
        drawn: Likewise by its power alone.
        own: The processes that the recordings are of.
        steps: By process, how many steps it logged.
        work: By process and kind, how much it did.
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
        """Add a stretch of time."""
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
        """Add a step."""
        self.steps[step.source] += 1
        if own:
            self.own.add(step.source)
        for name in WORK:
            amount = step.values.get(name)
            if amount is not None and isfinite(amount):
                self.work[step.source, name] += amount


class _Stretch:
    """One stretch that goes on.

    Args:
        begin: When it began, in seconds since 1970.
        at: The same on the clock of rows.
        before: The last reading before that.
    """

    def __init__(self, name: str, begin: float, at: float, before: Row | None) -> None:
        self.name, self.begin = name, begin
        self.aggregator = WindowAggregator(at, () if before is None else [before], across=False)


class PeriodTable:
    """The table of a stream that was asked for.

    Args:
        by: A number that the program logs, a window's name or how it begins; ``window`` for all windows.

    Attributes:
        numbers: By value, what was done while it was logged.
        windows: By name, what was done in windows.
        known: What might have been asked for.
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
        """Take a reading, and what was told with it.

        Raises:
            InvalidOptionError: There are more names or values than a table has rows.
        """
        row = row.narrowed(_is_told, "told")
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
        """End what is still open: with the last step, and the last reading.

        Args:
            doubted: Devices whose counter contradicts their power over all of the recording: stretches may be too short to tell.
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
        """Take a step of this value. Where an epoch is logged as a fraction, 2.3 is part of the third."""
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
        """Hand the readings until then to the stretch that goes on; it begins with its first step unless that was its only one."""
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
        """End the stretch with its last step; the next one begins there."""
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
        """Return the waiting readings until then, which wait no more."""
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
                else:  # it was not told that it is open
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


def _is_told(key: str) -> bool:
    """Return whether tables of stretches have a metric."""
    parts = device_key(key)
    return parts is not None and parts.name in TOLD


def _clock(row: Row, moment: float) -> float:
    """Return a moment on the clock of rows."""
    return row.at - (row.time - moment)


def _total(totals: dict[str, Total], name: str) -> Total:
    if name not in totals and len(totals) >= MOST:
        raise InvalidOptionError(f"--by has more than {MOST} rows: choose a number that stays the same for a while, or fewer windows")
    return totals.setdefault(name, Total())


def _close(totals: dict[str, Total], stretch: _Stretch, after: list[Row], end: float, near: Row) -> None:
    """Add what a stretch came to.

    Args:
        totals: Where.
        stretch: The stretch.
        after: A reading after its end, which shows that it was watched until then; or none.
        end: When it ended, in seconds since 1970.
        near: A reading near to that, by which clocks are compared.
    """
    stretch.aggregator.fold(after, _clock(near, end))
    _total(totals, stretch.name).add(end - stretch.begin, stretch.aggregator)


def periods(
    tables: Sequence[tuple[str, PeriodTable, frozenset[str]]], by: str, priced: Callable[[float | None, float], dict[str, float | None]]
) -> list[Plain]:
    """Return the table over all streams, as documents have it: a row for each epoch, window, or value of a number.

    Args:
        tables: Of each stream what precedes its rows where there are several runs, its table, and the devices that are counted there.
        by: What was asked for.
        priced: Gives the costs and the carbon of joules, and of seconds of devices.

    Raises:
        UnknownNameError: Neither was such a number logged, nor is there such a window.
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
    """Return a row; what devices do not tell is None, and so is the energy unless each of them tells."""
    shares = [(total, key) for total, counted in found for key in total.joules if key in counted]
    busy = [(total, (key, UTILIZATION)) for total, key in shares]
    drawn = [(total, (key, POWER)) for total, key in shares]
    seconds = max(total.seconds for total, _ in found)
    busy_seconds = sum(total.known.get(which, 0.0) for total, which in busy)
    watts = [total.weighted[which] / total.known[which] for total, which in drawn if total.known.get(which)]
    joules_of = [joules for total, key in shares if (joules := total.joules[key]) is not None]
    joules = sum(joules_of) if joules_of and len(joules_of) == len(shares) else None
    told: dict[StepSource, Total] = {}  # each process by its own recording, where there is one
    for total, _ in found:
        for source in total.steps:
            if source not in told or source in total.own:
                told[source] = total
    work: dict[str, float] = defaultdict(float)
    for source, total in told.items():
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
        "steps": max((total.steps[source] for source, total in told.items()), default=0),
        "work": dict(work),
        "per_second": {kind: amount / seconds for kind, amount in work.items() if seconds > 0},
        "per_joule": {kind: amount / joules for kind, amount in work.items() if joules},
        **priced(joules, sum(total.seconds for total, _ in shares)),
    }
