"""Epochs and windows of a stream: what the devices did in each, told while the records are read.

A number that the program logs (``epoch``) divides the time between its steps: a step's value holds from the step before. Windows say
themselves when they begin and end. Both are told with the reading that follows, so that readings wait until it is known whose they are.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from math import ceil, isfinite

from accelmetrics.schemas.energy import COUNTER
from accelmetrics.schemas.errors import InvalidOptionError, UnknownNameError
from accelmetrics.schemas.history import HistoryRow, Layout
from accelmetrics.schemas.metric import device_key
from accelmetrics.schemas.record import Step, StepSource, WindowSpan
from accelmetrics.schemas.statistics import WindowAggregator
from accelmetrics.schemas.vitals import POWER, UTILIZATION, first
from accelmetrics.schemas.work import WORK
from accelmetrics.views.report.run_report import Period

WINDOW, EPOCH = "window", "epoch"
"""What is asked for to have a row for each window's name; the number that may be logged as a fraction."""
MOST = 1000
"""Rows of a table."""
WAITING = 20_000
"""Readings that wait for a step at most; the oldest are then of the value that was logged last."""
TOGETHER = 256
"""Readings of a stretch that are folded together."""
TOLD = frozenset((COUNTER, *POWER, *UTILIZATION))


class DeviceShare:
    """What a device did in stretches of time.

    Attributes:
        busy: Utilisation in percent times the seconds of which it is known.
        busy_seconds: Those seconds.
        busiest: The largest utilisation; None where none was read.
        drawn: Watts times the seconds of which they are known.
        drawn_seconds: Those seconds.
        most: The largest power; None where none was read.
        joules: Its energy; None where that is not known.
    """

    def __init__(self) -> None:
        self.busy = self.busy_seconds = self.drawn = self.drawn_seconds = 0.0
        self.busiest: float | None = None
        self.most: float | None = None
        self.joules: float | None = None

    def add(self, device: str, stretch: WindowAggregator) -> None:
        """Add what a device did in one more."""
        summary = stretch.summary()
        busy, power, energy = first(summary, device, UTILIZATION), first(summary, device, POWER), stretch.energy_joules().get(device)
        if busy is not None:
            self.busy += busy.mean * busy.seconds
            self.busy_seconds += busy.seconds
            self.busiest = busy.max if self.busiest is None else max(self.busiest, busy.max)
        if power is not None:
            self.drawn += power.mean * power.seconds
            self.drawn_seconds += power.seconds
            self.most = power.max if self.most is None else max(self.most, power.max)
        if energy is not None:
            self.joules = energy.joules + (self.joules or 0.0)


class Logged:
    """What a process logged in stretches of time.

    Attributes:
        own: Whether it is the process that the recording is of.
        steps: How many steps.
        work: By kind, how much it did.
    """

    def __init__(self, own: bool) -> None:
        self.own = own
        self.steps = 0
        self.work: dict[str, float] = {}

    def add(self, step: Step) -> None:
        """Add a step."""
        self.steps += 1
        for name in WORK:
            amount = step.values.get(name)
            if amount is not None and isfinite(amount):
                self.work[name] = self.work.get(name, 0.0) + amount


class Total:
    """All stretches of one name.

    Attributes:
        times: How many there were.
        seconds: How long they lasted together.
        devices: By key, what each device did.
        logged: By process, what it logged.
    """

    def __init__(self) -> None:
        self.times = 0
        self.seconds = 0.0
        self.devices: dict[str, DeviceShare] = {}
        self.logged: dict[StepSource, Logged] = {}


class _Stretch:
    """One stretch that goes on.

    Args:
        begin: When it began, in seconds since 1970.
        at: The same on the clock of rows.
        before: The last reading before that.
    """

    def __init__(self, name: str, begin: float, at: float, before: HistoryRow | None) -> None:
        self.name, self.begin = name, begin
        self._aggregator = WindowAggregator(at, before, across=False)
        self._rows: list[HistoryRow] = []

    def feed(self, rows: Iterable[HistoryRow]) -> None:
        """Take readings."""
        self._rows.extend(rows)
        if len(self._rows) >= TOGETHER:
            self._aggregator.fold(self._rows)
            self._rows.clear()

    def close(self, after: Iterable[HistoryRow], at: float) -> WindowAggregator:
        """Return what it came to, with the reading that shows that it was watched until its end, on the clock of rows."""
        self._aggregator.fold([*self._rows, *after], at)
        return self._aggregator


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
        self._columns: dict[Layout, tuple[Layout, list[int]]] = {}
        self._before: HistoryRow | None = None
        self._open: list[_Stretch] = []
        # Of the logged number: the stretch that goes on, and readings since its last step, below the one before them.
        self._value: _Stretch | None = None
        self._label = ""
        self._first_step = self._last_step = 0.0
        self._waiting: deque[HistoryRow] = deque()
        self._earlier: HistoryRow | None = None

    def add(self, row: HistoryRow, windows: Sequence[WindowSpan], steps: Sequence[Step], own: Sequence[Step]) -> None:
        """Take a reading, and what was told with it.

        Raises:
            InvalidOptionError: There are more names or values than a table has rows.
        """
        row = self._narrowed(row)
        mine = {step.source for step in own}
        self._waiting.append(row)
        for step in steps:
            if len(self.known) < MOST:
                self.known.update(step.values)
            value = step.values.get(self._by)
            if step.source in mine and value is not None and isfinite(value):
                self._add_value(self._worded(value), step.time_ns / 1e9)
            if self._label:
                _log(self.numbers, self._label, step, step.source in mine)
        if len(self._waiting) > WAITING:
            self._pass(self._waiting[WAITING // 2].time)
        self._add_windows(row, windows, steps, mine)
        self._before = row

    def settle(self) -> None:
        """End what is still open: with the last step, and the last reading."""
        if self._label:
            self._end_value()
        if self._before is not None:
            for stretch in self._open:
                self._close(self.windows, stretch, [], self._before.time, self._before)
        self._open.clear()

    # Numbers

    def _worded(self, value: float) -> str:
        """Return how a value is called. Where an epoch is logged as a fraction, 2.3 is part of the third."""
        if self._by == EPOCH:
            self._fractional = self._fractional or value != int(value)
            value = ceil(value) if self._fractional else value
        return f"{self._by} {value:g}"

    def _add_value(self, label: str, moment: float) -> None:
        """Take a step of this value."""
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
            self._value.feed(passed)

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
            self._value.feed(self._taken(self._last_step))
            after = list(self._waiting)[:1]
            self._close(self.numbers, self._value, after, self._last_step, self._earlier or self._before)
        self._value, self._first_step = None, self._last_step

    def _taken(self, until: float) -> list[HistoryRow]:
        """Return the waiting readings until then, which wait no more."""
        found = []
        while self._waiting and self._waiting[0].time <= until:
            self._earlier = self._waiting.popleft()
            found.append(self._earlier)
        return found

    # Windows

    def _add_windows(self, row: HistoryRow, windows: Sequence[WindowSpan], steps: Sequence[Step], mine: set[StepSource]) -> None:
        ended: list[tuple[_Stretch, float]] = []
        for span in windows:
            if len(self.known) < MOST:
                self.known.add(span.name)
            if self._by == WINDOW or span.name.startswith(self._by):
                stretch = self._opened(span, row)
                if span.end_ns is not None:
                    self._open.remove(stretch)
                    ended.append((stretch, span.end_ns / 1e9))
        for stretch, end in (*((one, row.time) for one in self._open), *ended):
            for step in steps:
                if stretch.begin < step.time_ns / 1e9 <= end:
                    _log(self.windows, stretch.name, step, step.source in mine)
        for stretch in self._open:
            stretch.feed([row])
        for stretch, end in ended:
            self._close(self.windows, stretch, [row], end, row)

    def _opened(self, span: WindowSpan, row: HistoryRow) -> _Stretch:
        """Return the stretch of a window, which begins where it was not told that it is open."""
        begin = span.begin_ns / 1e9
        same = [one for one in self._open if one.name == span.name]
        if same and span.end_ns is not None:
            return min(same, key=lambda one: abs(one.begin - begin))
        stretch = _Stretch(span.name, begin, _clock(row, begin), self._before)
        self._open.append(stretch)
        return stretch

    def _close(self, totals: dict[str, Total], stretch: _Stretch, after: list[HistoryRow], end: float, near: HistoryRow | None) -> None:
        """Add what a stretch came to.

        Args:
            totals: Where.
            stretch: The stretch.
            after: A reading after its end, or none.
            end: When it ended, in seconds since 1970.
            near: A reading near to that, by which clocks are compared.
        """
        if near is None:
            return
        folded = stretch.close(after, _clock(near, end))
        total = _total(totals, stretch.name)
        total.times += 1
        total.seconds += end - stretch.begin
        for key in dict.fromkeys(parts.device for key in folded.metrics if (parts := device_key(key)) is not None):
            total.devices.setdefault(key, DeviceShare()).add(key, folded)

    def _narrowed(self, row: HistoryRow) -> HistoryRow:
        """Return a reading with what the table is made from."""
        found = self._columns.get(row.layout)
        if found is None:
            kept = [column for column, key in enumerate(row.layout) if (parts := device_key(key)) is not None and parts.name in TOLD]
            found = self._columns[row.layout] = tuple(row.layout[column] for column in kept), kept
        layout, columns = found
        return row._replace(layout=layout, values=array("d", [row.values[column] for column in columns]))


def _clock(row: HistoryRow, moment: float) -> float:
    """Return a moment on the clock of rows."""
    return row.at - (row.time - moment)


def _total(totals: dict[str, Total], name: str) -> Total:
    if name not in totals and len(totals) >= MOST:
        raise InvalidOptionError(f"--by has more than {MOST} rows: choose a number that stays the same for a while, or fewer windows")
    return totals.setdefault(name, Total())


def _log(totals: dict[str, Total], name: str, step: Step, own: bool) -> None:
    """Add a step to a name's total."""
    _total(totals, name).logged.setdefault(step.source, Logged(own)).add(step)


def periods(
    streams: Iterable[tuple[str, PeriodTable, frozenset[str]]], by: str, per_joule: Callable[[float], tuple[float | None, float | None]]
) -> tuple[Period, ...]:
    """Return the table over all streams.

    Args:
        streams: Of each what precedes its rows where there are several runs, its table, and the devices that are counted there.
        by: What was asked for.
        per_joule: Gives the cost and the carbon of energy.

    Raises:
        UnknownNameError: Neither was such a number logged, nor is there such a window.
    """
    tables = list(streams)
    numbers = any(table.numbers for _, table, _ in tables)
    rows: dict[str, list[tuple[Total, frozenset[str]]]] = {}
    for head, table, counted in tables:
        for name, total in (table.numbers if numbers else table.windows).items():
            rows.setdefault(" ".join(filter(None, (head, name))), []).append((total, counted))
    if not rows:
        raise UnknownNameError("logged number or window", by, sorted({WINDOW, *(name for _, table, _ in tables for name in table.known)}))
    return tuple(_period(name, found, per_joule) for name, found in rows.items())


def _period(name: str, found: list[tuple[Total, frozenset[str]]], price: Callable[[float], tuple[float | None, float | None]]) -> Period:
    shares = [share for total, counted in found for key, share in total.devices.items() if key in counted]
    seconds = max(total.seconds for total, _ in found)
    busy_seconds = sum(share.busy_seconds for share in shares)
    drawn = [share.drawn / share.drawn_seconds for share in shares if share.drawn_seconds]
    known = [share.joules for share in shares if share.joules is not None]
    joules = sum(known) if known and len(known) == len(shares) else None
    logged: dict[StepSource, Logged] = {}
    for total, _ in found:
        for source, one in total.logged.items():
            if source not in logged or one.own:
                logged[source] = one
    work: dict[str, float] = {}
    for one in logged.values():
        for kind, amount in one.work.items():
            work[kind] = work.get(kind, 0.0) + amount
    cost, carbon = (None, None) if joules is None else price(joules)
    return Period(
        name=name,
        times=max(total.times for total, _ in found),
        seconds=seconds,
        utilization_mean=sum(share.busy for share in shares) / busy_seconds if busy_seconds else None,
        utilization_max=max((share.busiest for share in shares if share.busiest is not None), default=None),
        power_watts_mean=sum(drawn) if drawn else None,
        power_watts_max=max((share.most for share in shares if share.most is not None), default=None),
        energy_joules=joules,
        steps=max((one.steps for one in logged.values()), default=0),
        work=work,
        per_second={kind: amount / seconds for kind, amount in work.items() if seconds > 0},
        per_joule={kind: amount / joules for kind, amount in work.items() if joules},
        cost=cost,
        carbon_grams=carbon,
    )
