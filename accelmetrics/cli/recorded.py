"""Recordings as statistics: each device's, over all files that are given, whatever gaps they have."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from accelmetrics.monitor.history import Layout, Row, RowMaker
from accelmetrics.monitor.statistics import WindowAggregator
from accelmetrics.schemas.record import Record, Step
from accelmetrics.schemas.snapshot import DeviceSlot, Snapshot
from accelmetrics.schemas.summary import Energy, Summary
from accelmetrics.schemas.vitals import MEMORY_PERCENT, MEMORY_TOTAL, MEMORY_USED, POWER, POWER_LIMIT, TEMPERATURE, UTILIZATION

PENDING = 64
"""Readings that are folded into the statistics together."""
GAP = 3.0
"""In usual intervals: a longer silence is a gap, over which nothing is reckoned."""
USUAL = 50
"""Intervals whose median is the usual one."""
FIRST = 5
"""Readings that are looked at before the first interval is judged: it may be shorter or longer than those that follow."""
WORK = ("tokens", "samples")
IDLE = ("gpuIdle", "applicationsClocksSetting", "displayClockSetting")
"""Reasons for low clocks that are no throttling: nothing runs, or somebody set them so."""


class Gap(NamedTuple):
    """A silence, or a clock that was set back.

    Attributes:
        after: Time of the last reading before it, in seconds since 1970.
        seconds: How long it was; below 0 where the next reading bears an earlier time.
    """

    after: float
    seconds: float


class DeviceReport(NamedTuple):
    """What a recording says of a device; None where it says nothing.

    Attributes:
        key: The device's key, with the host's name in front where there are several hosts.
        place: Who it is.
        utilization: In percent.
        memory_percent: In percent of the device's memory.
        memory_used: In bytes.
        power: In watts.
        temperature: In degrees Celsius.
        memory_total: In bytes.
        power_limit: In watts.
        energy: What it used.
        samples: Readings in which it gave any of these.
        throttled: By reason, for how many seconds its clocks were held down.
        gaps: While others were read, when it gave nothing for longer than three usual intervals.
    """

    key: str
    place: DeviceSlot
    utilization: Summary | None
    memory_percent: Summary | None
    memory_used: Summary | None
    power: Summary | None
    temperature: Summary | None
    memory_total: float | None
    power_limit: float | None
    energy: Energy | None
    samples: int
    throttled: Mapping[str, float]
    gaps: tuple[Gap, ...]


class Work(NamedTuple):
    """What the program logged of its work.

    Attributes:
        per_second: Mean over the time of the steps that say both.
        per_joule: Work over the energy of those steps, of all devices together; None where no energy is known.
    """

    per_second: float
    per_joule: float | None


class Report(NamedTuple):
    """What recordings came to.

    Attributes:
        hosts: Whose they are.
        begin: Time of the first reading, in seconds since 1970.
        end: Time of the last.
        readings: How many records there are.
        repeated: Records that were there twice, and were passed over; not among the readings.
        gaps: Silences longer than three usual intervals, and where a clock was set back.
        devices: Each device.
        host: By key, the host's metrics; those of the first host where there are several.
        work: By what is counted (``tokens``, ``samples``), the throughput.
    """

    hosts: tuple[str, ...]
    begin: float
    end: float
    readings: int
    repeated: int
    gaps: tuple[Gap, ...]
    devices: tuple[DeviceReport, ...]
    host: Mapping[str, Summary]
    work: Mapping[str, Work]


class _Stream:
    """The records of one process of one run on one host.

    The usual interval is the median of all, gaps among them, and no less than the one that the records say they were to have.
    """

    def __init__(self, record: Record) -> None:
        moment = record.snapshot.time_ns / 1e9
        self.host = record.snapshot.hostname
        self.rank = record.labels.get("rank", "")
        self.begin = self.end = moment
        self.readings = self.repeated = 0
        self.gaps: list[Gap] = []
        self.places: dict[str, DeviceSlot] = {}
        self.silences: dict[str, list[Gap]] = {}
        self.aggregator = WindowAggregator(moment)
        self._rows = RowMaker()
        self._pending: list[Row] = []
        self._intervals: deque[float] = deque(maxlen=USUAL)
        self._interval = 0.0
        self._waiting: list[Snapshot] = []
        self._taken = 0
        self._newest: float | None = None
        self._last = self._at = moment
        self._heard: dict[str, float] = {}
        self._layout: Layout | None = None
        self._speaking: list[str] = []

    def add(self, record: Record) -> bool:
        """Take a reading; False for one of the same time as the last, which is there twice and is passed over."""
        moment = record.snapshot.time_ns / 1e9
        if self._newest is not None:
            if moment == self._newest:
                self.repeated += 1
                return False
            if moment > self._newest:
                self._intervals.append(moment - self._newest)
        if record.monitor is not None:
            self._interval = record.monitor.interval
        self._newest = moment
        self.readings += 1
        self._waiting.append(record.snapshot)
        if self.readings > FIRST:
            self._take_all()
        return True

    def _take_all(self) -> None:
        for snapshot in self._waiting:
            self._take(snapshot)
        self._waiting.clear()

    def _take(self, snapshot: Snapshot) -> None:
        moment = snapshot.time_ns / 1e9
        joined = self._joined(moment)
        # The statistics' own clock goes on where the recorded one was set back.
        self._at += max(0.0, moment - self._last)
        row = self._rows.row(snapshot, self._at, joined)
        self._pending.append(row)
        if len(self._pending) >= PENDING:
            self._fold()
        self._taken += 1
        self._last = moment
        self.begin, self.end = min(self.begin, moment), max(self.end, moment)
        if row.layout is not self._layout:
            self._layout = row.layout
            self._speaking = [place.key for place in snapshot.identities if snapshot.values_of(place.key)]
            self.places.update((place.key, place) for place in snapshot.identities)
        for key in self._speaking:
            self._note_silence(key, moment)
            self._heard[key] = moment

    def silences_of(self, key: str) -> tuple[Gap, ...]:
        """When a device gave nothing, the time up to the last reading among it."""
        last = self._silence(key, self._last)
        return (*self.silences.get(key, ()), *((last,) if last else ()))

    def settle(self) -> None:
        """Reckon what was taken."""
        self._take_all()
        self._fold()

    def _fold(self) -> None:
        self.aggregator.fold(self._pending)
        self._pending.clear()

    def _joined(self, moment: float) -> bool:
        if not self._taken:
            return False
        elapsed = moment - self._last
        if elapsed < 0 or elapsed > GAP * self._usual():
            self.gaps.append(Gap(self._last, elapsed))
            for key in self._heard:
                self._note_silence(key, self._last)
            self._heard.clear()
            return False
        return True

    def _usual(self) -> float:
        return max(self._interval, statistics.median_low(self._intervals) if self._intervals else 0.0)

    def _note_silence(self, key: str, until: float) -> None:
        if found := self._silence(key, until):
            self.silences.setdefault(key, []).append(found)

    def _silence(self, key: str, until: float) -> Gap | None:
        since = self._heard.get(key, until)
        return Gap(since, until - since) if until - since > GAP * self._usual() else None


class _Efficiency:
    """Work over time and energy, of the steps that say both."""

    def __init__(self) -> None:
        self._amount: dict[str, float] = {}
        self._seconds: dict[str, float] = {}
        self._paid: dict[str, float] = {}
        self._joules: dict[str, float] = {}

    def add(self, step: Step) -> None:
        """Take what was logged."""
        for name in WORK:
            amount, rate = step.values.get(name), step.values.get(f"{name}_per_second")
            if not amount or not rate:
                continue
            self._amount[name] = self._amount.get(name, 0.0) + amount
            self._seconds[name] = self._seconds.get(name, 0.0) + amount / rate
            if economy := step.values.get(f"{name}_per_joule"):
                self._paid[name] = self._paid.get(name, 0.0) + amount
                self._joules[name] = self._joules.get(name, 0.0) + amount / economy

    def result(self) -> dict[str, Work]:
        """By what is counted."""
        joules = self._joules
        return {
            name: Work(amount / self._seconds[name], self._paid[name] / joules[name] if joules.get(name) else None)
            for name, amount in self._amount.items()
        }


def report(records: Iterable[Record]) -> Report | None:
    """What records came to; None when there are none. Those of one process of a run are to come in the order of their time."""
    streams: dict[tuple[str, ...], _Stream] = {}
    work = _Efficiency()
    for record in records:
        mark = whose(record)
        stream = streams.get(mark)
        if stream is None:
            stream = streams[mark] = _Stream(record)
        if stream.add(record):
            for step in record.steps:
                work.add(step)
    if not streams:
        return None
    for stream in streams.values():
        stream.settle()
    return _together(list(streams.values()), work)


def whose(record: Record) -> tuple[str, ...]:
    """What tells the records of one process of a run from all others: host, run and rank."""
    return (record.snapshot.hostname, record.labels.get("run_id", ""), record.labels.get("rank", ""))


def _together(streams: list[_Stream], work: _Efficiency) -> Report:
    hosts = tuple(dict.fromkeys(stream.host for stream in streams))
    kinds = {place.identity.kind for stream in streams for place in stream.places.values()}
    devices = [
        _device(stream, place, _title(stream, place, streams, len(hosts) > 1)) for stream in streams for place in stream.places.values()
    ]
    return Report(
        hosts,
        min(stream.begin for stream in streams),
        max(stream.end for stream in streams),
        sum(stream.readings for stream in streams),
        sum(stream.repeated for stream in streams),
        tuple(sorted(gap for stream in streams for gap in stream.gaps)),
        tuple(devices),
        {key: held.summary() for key, held in streams[0].aggregator.metrics.items() if key.partition(".")[0] not in kinds},
        work.result(),
    )


def _title(stream: _Stream, place: DeviceSlot, streams: list[_Stream], several_hosts: bool) -> str:
    """A device's key, made unmistakable: by its host, and by rank, else by the number of the run, where a host has several."""
    runs = [other for other in streams if other.host == stream.host]
    ranks = {other.rank for other in runs if other.rank}
    head = [stream.host] if several_hosts else []
    if len(runs) > 1:
        head.append(f"rank {stream.rank}" if len(ranks) == len(runs) else f"run {runs.index(stream) + 1}")
    return " ".join((*head, place.key))


def _device(stream: _Stream, place: DeviceSlot, title: str) -> DeviceReport:
    found = {name: _first(stream, place, names) for name, names in _MEASURED.items()}
    total = _first(stream, place, MEMORY_TOTAL)
    limit = _first(stream, place, POWER_LIMIT)
    energy = stream.aggregator.energy.get(place.key)
    return DeviceReport(
        title,
        place,
        memory_total=total.last if total is not None else place.identity.memory_total_bytes,
        power_limit=limit.last if limit is not None else None,
        energy=energy.result() if energy is not None else None,
        samples=max((held.count for held in found.values() if held is not None), default=0),
        throttled=_throttled(stream, place),
        gaps=stream.silences_of(place.key),
        **found,
    )


_MEASURED = {
    "utilization": UTILIZATION,
    "memory_percent": MEMORY_PERCENT,
    "memory_used": MEMORY_USED,
    "power": POWER,
    "temperature": TEMPERATURE,
}


def _first(stream: _Stream, place: DeviceSlot, names: tuple[str, ...]) -> Summary | None:
    metrics = stream.aggregator.metrics
    return next((metrics[key].summary() for name in names if (key := f"{place.key}.{name}") in metrics), None)


def _throttled(stream: _Stream, place: DeviceSlot) -> dict[str, float]:
    head = f"{place.key}.throttle."
    found = {key[len(head) :]: held.seconds_above(0.5) for key, held in stream.aggregator.metrics.items() if key.startswith(head)}
    return {reason: seconds for reason, seconds in found.items() if seconds > 0 and reason not in IDLE}
