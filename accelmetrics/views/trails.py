"""History for graphs: of each device and metric the least, mean and greatest value in buckets of equal time, and gaps; bounded memory.

There is a ring of buckets for each scale of time, so that a reading costs the same whether a minute or a day is looked at.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import floor, nan
from typing import Literal, NamedTuple

from accelmetrics.schemas.catalogue import resolve
from accelmetrics.schemas.record import Step
from accelmetrics.views.device_view import BY_NAME, VALUES, ValueRow
from accelmetrics.views.node_view import NodeView
from accelmetrics.views.training import TRAINING_VALUES, TrainingSeries

SCALES: Mapping[str, float] = {"1 min": 60.0, "5 min": 300.0, "1 h": 3600.0, "24 h": 86400.0}
"""Seconds by the name of a stretch of time for which history is kept, in buckets of its own."""
SPANS: Mapping[str, float] = {
    **{"15 s": 15.0, "30 s": 30.0, "1 min": 60.0, "2 min": 120.0, "5 min": 300.0, "15 min": 900.0, "30 min": 1800.0},
    **{"1 h": 3600.0, "3 h": 10800.0, "6 h": 21600.0, "12 h": 43200.0, "24 h": 86400.0},
}
"""Seconds by the name of a stretch of time that graphs show: ``SCALES`` and those between them."""
BUCKETS = 240
"""Of each scale."""
FOLLOWED = ("power_watts", "utilization", "memory_percent", "temperature_celsius", "sm_clock_mhz")
"""Metrics whose history is kept from the beginning, by their names in ``VALUES``."""
MOST_FOLLOWED = 24
"""Metrics whose history is kept at most: one of 64 devices takes two mebibytes."""
HELD = 2.5
"""Intervals for which a value holds: without a reading for longer there is a gap."""
PROCESS_VALUES = {
    "utilization": ValueRow("utilization", "GPU", "%", (), top=100.0),
    "memory_bytes": ValueRow("memory_bytes", "GPU memory", "By", ()),
    "cpu_percent": ValueRow("cpu_percent", "CPU", "%", ()),
    "host_memory_bytes": ValueRow("host_memory_bytes", "host memory", "By", ()),
}
"""Numbers of a process whose history is kept, by the names of its fields."""
HOST_KEY = "host"
"""What the host's history is kept under."""
HOST_VALUES: Mapping[str, ValueRow] = {
    "cpu_percent": ValueRow("cpu_percent", "CPU", "%", (), top=100.0),
    "memory_percent": ValueRow("memory_percent", "memory", "%", (), top=100.0),
    "disk_read_bytes_per_second": ValueRow("disk_read_bytes_per_second", "disk read", "By/s", ()),
    "disk_written_bytes_per_second": ValueRow("disk_written_bytes_per_second", "disk written", "By/s", ()),
    "network_received_bytes_per_second": ValueRow("network_received_bytes_per_second", "network received", "By/s", ()),
    "network_sent_bytes_per_second": ValueRow("network_sent_bytes_per_second", "network sent", "By/s", ()),
}
"""Numbers of the host whose history is kept, by their names in ``NodeView.host``."""
OF_HOST = f"{HOST_KEY}."
"""Before the name of such a number where it is chosen for a graph beside those of devices."""
MOST_PROCESSES = 64
"""Processes whose history is kept: one takes an eighth of a mebibyte."""
MOST_PROGRAMS = 16
"""Programs whose training is kept: one takes a quarter of a mebibyte."""
RUNNING = 60.0
"""Seconds without a step, or ten times as long as its steps take, after which a program is taken to have ended."""
FIXED = frozenset({"memory_total_bytes", "power_limit_watts", "slowdown_celsius", "max_sm_clock_mhz", "pcie_lanes_maximum", "last_xid"})
"""Numbers that nothing is seen of in a graph."""
_EMPTY, _MISSING = 0.0, -1.0
"""Counts of a bucket without a reading, and of one whose readings have no value."""

Kind = Literal["value", "gap", "before"]


class TrailPoint(NamedTuple):
    """One stretch of time of a history.

    Attributes:
        kind: ``value``; ``gap``: nothing was read, or it had no value; ``before``: it lies before the first reading.
        low: The least value.
        mean: The mean.
        high: The greatest.
    """

    kind: Kind
    low: float = nan
    mean: float = nan
    high: float = nan


GAP, BEFORE = TrailPoint("gap"), TrailPoint("before")


class _Ring:
    """The buckets of one device, metric and scale."""

    __slots__ = ("counts", "highs", "lows", "newest", "sums", "width")

    def __init__(self, width: float) -> None:
        self.width = width
        self.newest = -1  # the number of the newest bucket, counted since 1970
        self.lows, self.highs, self.sums, self.counts = (array("d", bytes(8 * BUCKETS)) for _ in range(4))

    def add(self, seconds: float, value: float | None) -> None:
        number = int(seconds / self.width)
        counts = self.counts
        if number > self.newest:
            first = max(self.newest + 1, number - BUCKETS + 1)
            for empty in range(first, number + 1):
                counts[empty % BUCKETS] = _EMPTY
            self.newest = number
        elif number <= self.newest - BUCKETS:
            return
        at = number % BUCKETS
        count = counts[at]
        if value is None:
            if count == _EMPTY:
                counts[at] = _MISSING
        elif count > 0:
            counts[at] = count + 1
            self.sums[at] += value
            self.lows[at], self.highs[at] = min(self.lows[at], value), max(self.highs[at], value)
        else:
            counts[at] = 1.0
            self.sums[at] = self.lows[at] = self.highs[at] = value

    def points(self, end: float, span: float, columns: int, held: float) -> list[TrailPoint]:
        """Put the buckets before ``end`` into columns of equal time."""
        width = span / columns
        last = int(end / width)  # columns keep their places while time goes on
        start = (last - columns + 1) * width
        read: dict[int, list[int]] = {}  # by column, the places of buckets with readings; below 0: before the first column
        for number in range(max(0, self.newest - BUCKETS + 1), self.newest + 1):
            if self.counts[number % BUCKETS] != _EMPTY:
                read.setdefault(floor(((number + 0.5) * self.width - start) / width), []).append(number % BUCKETS)
        begun = min(read, default=columns)
        points: list[TrailPoint] = []
        left = 0.0
        before = max((column for column in read if column < 0), default=None)
        for column in (*([] if before is None else [before]), *range(columns)):
            if column == 0 and before is not None:
                left -= (-1 - before) * width
            known = [at for at in read.get(column, ()) if self.counts[at] > 0]
            if known:
                low, high = min(self.lows[at] for at in known), max(self.highs[at] for at in known)
                mean = sum(self.sums[at] for at in known) / sum(self.counts[at] for at in known)
                points.append(TrailPoint("value", low, min(high, max(low, mean)), high))  # a sum may be too large for a number
                left = held
            elif column < begun:
                points.append(BEFORE)
            else:
                left = 0.0 if column in read else left - width
                points.append(points[-1] if points and left > 0 else GAP)
        return points[-columns:]


class Trails:
    """The history of a node's devices, of the host, and of the processes on the devices for as long as they are there.

    It is filled from live readings or from recorded ones, whose own time counts.

    Args:
        interval: Seconds between two readings.

    Attributes:
        metrics: The metrics whose history is kept: names of ``VALUES``, or any that the catalogue has for a device.
        oldest_ns: When the oldest reading was, in nanoseconds since 1970; 0 before the first.
        newest_ns: When the newest was.
        until_ns: Where graphs end, in nanoseconds since 1970; None: at the newest reading.
    """

    def __init__(self, interval: float = 1.0) -> None:
        self.interval = interval
        self.metrics: tuple[str, ...] = FOLLOWED
        self._rings: dict[tuple[str, str], tuple[_Ring, ...]] = {}
        self._processes: set[str] = set()
        self._training = TrainingSeries()
        self._programs: dict[str, tuple[int, float]] = {}  # when it logged last, and the seconds between two steps lately
        self.oldest_ns = self.newest_ns = self._shown = 0  # of all readings; the last: of those that were views
        self.until_ns: int | None = None

    def follow(self, metric: str) -> bool:
        """Keep the history of one more metric from now on; where there are many, that of the one goes which was added first.

        Returns:
            Whether it was not kept before: readings from before can be added by ``add_values``.
        """
        if metric in self.metrics or metric.startswith(OF_HOST):  # the host's are kept for good
            return False
        if len(self.metrics) >= MOST_FOLLOWED:
            gone = self.metrics[len(FOLLOWED)]  # those are kept for good
            self.metrics = tuple(one for one in self.metrics if one != gone)
            self._rings = {which: rings for which, rings in self._rings.items() if which[1] != gone}
        self.metrics = (*self.metrics, metric)
        return True

    def add(self, view: NodeView) -> None:
        """Remember a reading; the same one twice counts once. Where the clock was set back, history begins anew."""
        if view.time_ns == self._shown:
            return
        if view.time_ns < self._shown:
            self.clear()
        for device in view.devices:
            values, metrics = device.values, device.metrics
            for metric in self.metrics:
                value = values.get(metric)
                self._add(device.key, metric, view.time_ns, metrics.get(metric) if value is None else value)
        for metric in HOST_VALUES:
            self._add(HOST_KEY, metric, view.time_ns, view.host.get(metric))
        for process in view.processes[:MOST_PROCESSES]:
            for metric in PROCESS_VALUES:
                self._add(process_key(process.pid), metric, view.time_ns, getattr(process, metric))
        gone = self._processes - {process_key(process.pid) for process in view.processes}
        if gone:
            self._rings = {which: rings for which, rings in self._rings.items() if which[0] not in gone}
        self._processes = {process_key(process.pid) for process in view.processes}
        self._shown = view.time_ns
        self._reaches(view.time_ns)

    def add_values(self, time_ns: int, device: str, values: Mapping[str, float | None]) -> None:
        """Remember values of one device by metric; None: it was read and had none."""
        for metric, value in values.items():
            self._add(device, metric, time_ns, value)
        self._reaches(time_ns)

    def add_steps(self, steps: Iterable[Step]) -> None:
        """Remember what programs logged: the numbers of ``TRAINING_VALUES``."""
        for program, time_ns, values in self._training.add(steps):
            before, pace = self._programs.get(program, (time_ns - 1, 0.0))
            if time_ns > before:
                seconds = (time_ns - before) / 1e9
                # The ranks of a program log shortly after each other: the longer pauses are those between two steps.
                self._programs[program] = time_ns, max(seconds, pace - (pace - seconds) / 16)
            for name, value in values.items():
                self._add(training_key(program), name, time_ns, value)
            if len(self._programs) > MOST_PROGRAMS:
                gone = min(self._programs, key=self._programs.__getitem__)
                del self._programs[gone]
                self._rings = {which: rings for which, rings in self._rings.items() if which[0] != training_key(gone)}

    @property
    def programs(self) -> dict[str, tuple[str, ...]]:
        """By program that logged, what it logged, by names of ``TRAINING_VALUES``; those that still log first."""
        ended = {name: (self.newest_ns - last) / 1e9 > max(RUNNING, 10 * pace) for name, (last, pace) in self._programs.items()}
        return {
            program: tuple(name for name in TRAINING_VALUES if (training_key(program), name) in self._rings)
            for program in sorted(ended, key=ended.__getitem__)
        }

    def clear(self) -> None:
        """Forget all readings."""
        self._rings.clear()
        self._training = TrainingSeries()
        self._programs.clear()
        self.oldest_ns = self.newest_ns = self._shown = 0

    def points(self, device: str, metric: str, scale: str, columns: int, now_ns: int | None = None) -> list[TrailPoint]:
        """Return the newest history of a device, in columns of equal time, the oldest first.

        Args:
            device: Its key.
            metric: Which metric.
            scale: A name of ``SPANS``.
            columns: How many; more than there are buckets show the same twice.
            now_ns: Where it ends, in nanoseconds since 1970; ``until_ns``, if left out.
        """
        rings = self._rings.get((device, metric))
        if rings is None:
            return [BEFORE] * columns
        end = (now_ns or self.until_ns or self.newest_ns) / 1e9
        pace = self._programs[device[len(TRAINING) :]][1] if device.startswith(TRAINING) else self.interval
        needed = SPANS[scale] + max(0.0, self.newest_ns / 1e9 - end)
        ring = next((ring for ring, kept in zip(rings, SCALES.values(), strict=True) if kept >= needed), rings[-1])
        return ring.points(end, SPANS[scale], columns, HELD * max(pace, ring.width))

    def place(self, time_ns: int, scale: str, columns: int) -> int:
        """Return in which column of :meth:`points` a moment is; below 0 before the first, ``columns`` or more behind the last."""
        width = SPANS[scale] / columns
        return int(time_ns / 1e9 / width) - int((self.until_ns or self.newest_ns) / 1e9 / width) + columns - 1

    def band(self, devices: Iterable[str], metric: str, scale: str, columns: int) -> list[TrailPoint]:
        """Return the least, median and greatest over devices, in columns of equal time; the median stands for the mean."""
        rows = [self.points(device, metric, scale, columns) for device in devices]
        band = []
        for points in zip(*rows, strict=True):
            means = sorted(point.mean for point in points if point.kind == "value")
            if means:
                band.append(TrailPoint("value", means[0], means[len(means) // 2], means[-1]))
            else:
                band.append(GAP if any(point.kind == "gap" for point in points) else BEFORE)
        return band or [BEFORE] * columns

    def _reaches(self, time_ns: int) -> None:
        """Remember from when to when there are readings; buckets forget those of more than a day ago."""
        self.newest_ns = max(self.newest_ns, time_ns)
        self.oldest_ns = max(min(self.oldest_ns or time_ns, time_ns), self.newest_ns - int(max(SCALES.values()) * 1e9))

    def _add(self, device: str, metric: str, time_ns: int, value: float | None) -> None:
        rings = self._rings.get((device, metric))
        if rings is None:
            if value is None:
                return
            rings = self._rings[device, metric] = tuple(_Ring(seconds / BUCKETS) for seconds in SCALES.values())
        seconds = time_ns / 1e9
        for ring in rings:
            ring.add(seconds, value)


def process_key(pid: int) -> str:
    """Return what a process's history is kept under."""
    return f"process {pid}"


TRAINING = "training "


def training_key(program: str) -> str:
    """Return what a program's training is kept under."""
    return TRAINING + program


def graph_metrics(view: NodeView) -> tuple[ValueRow, ...]:
    """List the metrics that a graph can show: what every device has, the host's, and then all others that a device has."""
    given = {name for device in view.devices for name in device.values}
    shown = sorted((row for row in VALUES if row.name in given and row.name not in FIXED), key=lambda row: not row.core)
    core = sum(row.core for row in shown)
    known = {name for row in VALUES for name in row.names}
    others = dict.fromkeys(name for device in view.devices for name in device.metrics if name not in known)
    host = (metric_row(view, f"{OF_HOST}{name}") for name in HOST_VALUES if name in view.host)
    return (*shown[:core], *host, *shown[core:], *(metric_row(view, name) for name in others))


def metric_row(view: NodeView, name: str) -> ValueRow:
    """Describe a metric by its name in ``VALUES`` or in the catalogue, or one of the host by its name behind ``OF_HOST``."""
    if name in BY_NAME:
        return BY_NAME[name]
    if name.startswith(OF_HOST) and name.removeprefix(OF_HOST) in HOST_VALUES:
        return replace(HOST_VALUES[name.removeprefix(OF_HOST)], name=name)
    key = next((f"{device.key}.{name}" for device in view.devices if name in device.metrics), "")
    found = resolve(key) if key else None
    unit, top = ("1", None) if found is None else (found.row.unit, found.row.maximum)
    return ValueRow(name, name, unit, (name,), top=top)
