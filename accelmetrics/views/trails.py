"""History for graphs in bounded memory: minimum, mean and maximum of each metric and each logged value in buckets of equal time, and gaps.

Each time scale has its own ring of buckets, so adding a reading costs the same whether graphs show a minute or a day.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from math import floor, isfinite, nan
from typing import Literal, NamedTuple

from accelmetrics.schemas.catalogue import resolve
from accelmetrics.schemas.record import STEP_NAMES, WORK, Step, logged_number
from accelmetrics.views.device_view import BY_NAME, VALUES, ValueRow
from accelmetrics.views.node_view import NodeView

SCALES: Mapping[str, float] = {"1 min": 60.0, "5 min": 300.0, "1 h": 3600.0, "24 h": 86400.0}
"""Time scales, each with its own ring of buckets: length in seconds, by name."""
SPANS: Mapping[str, float] = {
    **{"15 s": 15.0, "30 s": 30.0, "1 min": 60.0, "2 min": 120.0, "5 min": 300.0, "15 min": 900.0, "30 min": 1800.0},
    **{"1 h": 3600.0, "3 h": 10800.0, "6 h": 21600.0, "12 h": 43200.0, "24 h": 86400.0},
}
"""Time spans that graphs can show: length in seconds, by name. They include ``SCALES``."""
BUCKETS = 240
"""Buckets of each scale."""
FOLLOWED = ("power_watts", "utilization", "memory_percent", "temperature_celsius", "sm_clock_mhz")
"""Metrics that have a history from the start, by their names in ``VALUES``. They are never dropped."""
MOST_FOLLOWED = 24
"""Largest number of device metrics with a history. The history of one metric on 64 devices takes 2 MiB."""
HELD = 2.5
"""Number of intervals for which a value is still drawn without a new reading. After that the graph has a gap."""
PROCESS_VALUES = {
    "utilization": ValueRow("utilization", "GPU", "%", (), top=100.0),
    "memory_bytes": ValueRow("memory_bytes", "GPU memory", "By", ()),
    "cpu_percent": ValueRow("cpu_percent", "CPU", "%", ()),
    "host_memory_bytes": ValueRow("host_memory_bytes", "host memory", "By", ()),
}
"""Values of a process that have a history, by their field in ``ProcessRow``."""
HOST_KEY = "host"
"""Key of the host's history, in place of a device key."""
HOST_VALUES: Mapping[str, ValueRow] = {
    "cpu_percent": ValueRow("cpu_percent", "CPU", "%", (), top=100.0),
    "memory_percent": ValueRow("memory_percent", "memory", "%", (), top=100.0),
    "disk_read_bytes_per_second": ValueRow("disk_read_bytes_per_second", "disk read", "By/s", ()),
    "disk_written_bytes_per_second": ValueRow("disk_written_bytes_per_second", "disk written", "By/s", ()),
    "network_received_bytes_per_second": ValueRow("network_received_bytes_per_second", "network received", "By/s", ()),
    "network_sent_bytes_per_second": ValueRow("network_sent_bytes_per_second", "network sent", "By/s", ()),
}
"""Values of the host that have a history, by their names in ``NodeView.host``."""
OF_HOST = f"{HOST_KEY}."
"""Prefix of host values in the list of metrics that a graph can show."""
TRAINING_VALUES: Mapping[str, ValueRow] = {
    row.name: row
    for row in (
        ValueRow("loss", "loss", "1", STEP_NAMES["loss"]),
        ValueRow("step_seconds", "step", "s", ("step_seconds",)),
        ValueRow("tokens_per_second", "tokens/s", "1", ("tokens_per_second",)),
        ValueRow("tokens_per_joule", "tokens/J", "1", ("tokens_per_joule",)),
        ValueRow("learning_rate", "learning rate", "1", STEP_NAMES["learning_rate"]),
        ValueRow("grad_norm", "gradient norm", "1", STEP_NAMES["grad_norm"]),
        ValueRow("samples_per_second", "samples/s", "1", STEP_NAMES["samples_per_second"]),
        ValueRow("samples_per_joule", "samples/J", "1", ("samples_per_joule",)),
    )
}
"""Training values that graphs show, by name, the most important first. ``names`` are the names under which programs log them."""
ADDED_UP = frozenset(f"{work}_per_second" for work in WORK)
"""Rates that are summed over the processes of a program. Any other value is taken from the process that logged it."""
HOLDS, LEAST_HOLD = 10.0, 5.0
"""Time for which a rate counts in the sum: ``HOLDS`` of the process's steps, but at least ``LEAST_HOLD`` seconds.

After that the process is assumed to have ended.
"""
MOST_PROCESSES = 64
"""Largest number of processes with a history. Each takes 1/8 MiB."""
MOST_PROGRAMS = 16
"""Largest number of programs with a training history. Each takes 1/4 MiB."""
RUNNING = 60.0
"""Seconds without a step after which a program counts as ended; if ten of its steps take longer, that time instead."""
FIXED = frozenset({"memory_total_bytes", "power_limit_watts", "slowdown_celsius", "max_sm_clock_mhz", "pcie_lanes_maximum", "last_xid"})
"""Values that no graph offers: constants and codes."""
_EMPTY, _MISSING = 0.0, -1.0
"""Special counts: a bucket without readings, and a bucket with readings of which none has a value."""

Kind = Literal["value", "gap", "before"]


class TrailPoint(NamedTuple):
    """The values of one column of a graph.

    Attributes:
        kind: ``value``; ``gap`` without a reading or a value; ``before`` if it precedes the first reading.
        low: Minimum; NaN without a value, like the next two.
        mean: Mean.
        high: Maximum.
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
        """Add a value at a time in seconds since 1970; None for a reading without a value. Older times than the ring are ignored."""
        number = int(seconds / self.width)
        counts = self.counts
        if number > self.newest:
            # Buckets are reused in a circle: clear the old content of all buckets since the newest one.
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
        """Return the buckets before ``end``, merged into columns of equal time.

        Args:
            end: Right edge in seconds since 1970.
            span: Seconds that all columns cover.
            columns: Number of columns.
            held: Seconds for which a value is repeated in columns without a reading.
        """
        width = span / columns
        last = int(end / width)  # columns begin at multiples of their width, so that values do not move between columns as time passes
        start = (last - columns + 1) * width
        read: dict[int, list[int]] = {}  # by column, the indices of buckets with readings; negative columns precede the graph
        for number in range(max(0, self.newest - BUCKETS + 1), self.newest + 1):
            if self.counts[number % BUCKETS] != _EMPTY:
                read.setdefault(floor(((number + 0.5) * self.width - start) / width), []).append(number % BUCKETS)
        begun = min(read, default=columns)
        points: list[TrailPoint] = []
        left = 0.0  # seconds for which the last value is still repeated
        # The nearest earlier column is included, because its value may still hold in the first column.
        before = max((column for column in read if column < 0), default=None)
        for column in (*([] if before is None else [before]), *range(columns)):
            if column == 0 and before is not None:
                left -= (-1 - before) * width
            known = [at for at in read.get(column, ()) if self.counts[at] > 0]
            if known:
                low, high = min(self.lows[at] for at in known), max(self.highs[at] for at in known)
                mean = sum(self.sums[at] for at in known) / sum(self.counts[at] for at in known)
                points.append(TrailPoint("value", low, min(high, max(low, mean)), high))  # the sum may overflow to infinity
                left = held
            elif column < begun:
                points.append(BEFORE)
            else:
                left = 0.0 if column in read else left - width
                points.append(points[-1] if points and left > 0 else GAP)
        return points[-columns:]


class TrainingSeries:
    """Conversion of logged steps into values over time. Steps must be added in the order of their time."""

    def __init__(self) -> None:
        self._rates: dict[tuple[str, str], dict[int | None, tuple[float, float]]] = {}
        """For each program and rate: by rank, the time in seconds since 1970 until which the rate counts, and the rate."""

    def add(self, steps: Iterable[Step]) -> Iterator[tuple[str, int, dict[str, float | None]]]:
        """Yield the program, the time and the values of each step. Values are named as in ``TRAINING_VALUES``.

        The program is ``Step.node``: the machine's name, or empty if unknown. A value is None if the logged number is not finite, and
        absent if the step does not have it. A rate in ``ADDED_UP`` is the sum over all processes of the program.
        """
        for step in steps:
            found: dict[str, float | None] = {}
            for name, row in TRAINING_VALUES.items():
                value = logged_number(step.values, row.names)
                if value is not None:
                    found[name] = (self._sum(step, name, value) if name in ADDED_UP else float(value)) if isfinite(value) else None
            if found:
                yield step.node, step.time_ns, found

    def _sum(self, step: Step, name: str, value: float) -> float:
        """Return the sum of a rate over all processes of the step's program."""
        seconds = step.values.get("step_seconds", 0.0)
        # A logged step time may be NaN or infinite.
        held = max(LEAST_HOLD, HOLDS * seconds) if isfinite(seconds) else LEAST_HOLD
        now = step.time_ns / 1e9
        if (step.node, name) not in self._rates:  # a new program: drop those that have ended
            running = {program: rates for program, rates in self._rates.items() if any(until >= now for until, _ in rates.values())}
            self._rates = {**running, (step.node, name): {}}
        rates = self._rates[step.node, name]
        rates[step.rank] = now + held, float(value)
        for rank in [rank for rank, (until, _) in rates.items() if until < now]:
            del rates[rank]
        return sum(rate for _, rate in rates.values())


class Trails:
    """History of a node: its devices, the host, the running processes on the devices, and the trainings of programs.

    Readings may be live or recorded. Time is the time of the readings, not the clock. The history of a process is dropped when the
    view no longer contains the process.

    Args:
        interval: Seconds between two readings.

    Attributes:
        metrics: Device metrics that have a history: names in ``VALUES`` or in the catalogue.
        oldest_ns: Time of the oldest reading, in nanoseconds since 1970; 0 before the first.
        newest_ns: Time of the newest reading; 0 before the first.
        until_ns: Right edge of graphs, in nanoseconds since 1970; None for the newest reading.
    """

    def __init__(self, interval: float = 1.0) -> None:
        self.interval = interval
        self.metrics: tuple[str, ...] = FOLLOWED
        self._rings: dict[tuple[str, str], tuple[_Ring, ...]] = {}
        self._processes: set[str] = set()
        self._training = TrainingSeries()
        self._programs: dict[str, tuple[int, float]] = {}  # time of the last step, and recent seconds between steps
        self.oldest_ns = self.newest_ns = self._shown = 0  # _shown: time of the newest view
        self.until_ns: int | None = None

    def follow(self, metric: str) -> bool:
        """Keep the history of one more metric from now on. At the limit, the metric that was added first is dropped.

        Returns:
            Whether the metric is new. If so, its earlier values can be added with ``add_values``.
        """
        if metric in self.metrics or metric.startswith(OF_HOST):  # host values always have a history
            return False
        if len(self.metrics) >= MOST_FOLLOWED:
            gone = self.metrics[len(FOLLOWED)]  # the oldest after the metrics that are never dropped
            self.metrics = tuple(one for one in self.metrics if one != gone)
            self._rings = {which: rings for which, rings in self._rings.items() if which[1] != gone}
        self.metrics = (*self.metrics, metric)
        return True

    def add(self, view: NodeView) -> None:
        """Add a reading. A reading with the time of the last one is ignored; an earlier time clears the history."""
        if view.time_ns == self._shown:
            return
        # The clock was set back: old buckets would lie in the future.
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
        """Add the values of one device, by metric. None for a metric that was read without a value."""
        for metric, value in values.items():
            self._add(device, metric, time_ns, value)
        self._reaches(time_ns)

    def add_steps(self, steps: Iterable[Step], earlier: TrainingSeries | None = None) -> None:
        """Add the values of logged steps that ``TRAINING_VALUES`` names.

        At the limit, the program that has not logged for the longest time is dropped.

        Args:
            steps: The steps, in the order of their time.
            earlier: For steps that precede those added before: the series they belong to.
        """
        for program, time_ns, values in (self._training if earlier is None else earlier).add(steps):
            before, pace = self._programs.get(program, (time_ns - 1, 0.0))
            if time_ns > before:
                seconds = (time_ns - before) / 1e9
                # All ranks of a program log one step within a short time, so only the long pauses lie between two steps.
                # A longer pause counts at once, a shorter one only by 1/16.
                self._programs[program] = time_ns, max(seconds, pace - (pace - seconds) / 16)
            for name, value in values.items():
                self._add(training_key(program), name, time_ns, value)
            if self.newest_ns:  # steps may be older than the first reading
                self._reaches(min(time_ns, self.newest_ns))
            if len(self._programs) > MOST_PROGRAMS:
                gone = min(self._programs, key=self._programs.__getitem__)
                del self._programs[gone]
                self._rings = {which: rings for which, rings in self._rings.items() if which[0] != training_key(gone)}

    @property
    def programs(self) -> dict[str, tuple[str, ...]]:
        """Names in ``TRAINING_VALUES`` that each program logged, by program. Running programs come first."""
        ended = {name: (self.newest_ns - last) / 1e9 > max(RUNNING, 10 * pace) for name, (last, pace) in self._programs.items()}
        return {
            program: tuple(name for name in TRAINING_VALUES if (training_key(program), name) in self._rings)
            for program in sorted(ended, key=ended.__getitem__)
        }

    def clear(self) -> None:
        """Drop the whole history."""
        self._rings.clear()
        self._training = TrainingSeries()
        self._programs.clear()
        self.oldest_ns = self.newest_ns = self._shown = 0

    def points(self, device: str, metric: str, scale: str, columns: int, now_ns: int | None = None) -> list[TrailPoint]:
        """Return the history of a device in columns of equal time, the oldest first.

        Args:
            device: Device key, ``HOST_KEY``, or a result of ``process_key`` or ``training_key``.
            metric: Name of the metric.
            scale: Name in ``SPANS``.
            columns: Number of columns. If it exceeds the number of buckets, neighbouring columns show the same bucket.
            now_ns: Right edge, in nanoseconds since 1970; by default ``until_ns``, else the newest reading.
        """
        rings = self._rings.get((device, metric))
        if rings is None:
            return [BEFORE] * columns
        end = (now_ns or self.until_ns or self.newest_ns) / 1e9
        pace = self._programs[device[len(TRAINING) :]][1] if device.startswith(TRAINING) else self.interval
        # The ring must reach back from the newest reading to the left edge, also when the graph ends earlier.
        needed = SPANS[scale] + max(0.0, self.newest_ns / 1e9 - end)
        ring = next((ring for ring, kept in zip(rings, SCALES.values(), strict=True) if kept >= needed), rings[-1])
        return ring.points(end, SPANS[scale], columns, HELD * max(pace, ring.width))

    def place(self, time_ns: int, scale: str, columns: int) -> int:
        """Return the column of :meth:`points` that contains a time. It is negative or beyond the last column outside the graph."""
        width = SPANS[scale] / columns
        return int(time_ns / 1e9 / width) - int((self.until_ns or self.newest_ns) / 1e9 / width) + columns - 1

    def band(self, devices: Iterable[str], metric: str, scale: str, columns: int) -> list[TrailPoint]:
        """Return minimum, median (as ``mean``) and maximum over several devices, in columns of equal time."""
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
        """Extend the range of time, up to the longest scale, because buckets hold nothing older."""
        self.newest_ns = max(self.newest_ns, time_ns)
        self.oldest_ns = max(min(self.oldest_ns or time_ns, time_ns), self.newest_ns - int(max(SCALES.values()) * 1e9))

    def _add(self, device: str, metric: str, time_ns: int, value: float | None) -> None:
        """Add a value to the rings of all scales. They are created with the first value."""
        rings = self._rings.get((device, metric))
        if rings is None:
            if value is None:
                return
            rings = self._rings[device, metric] = tuple(_Ring(seconds / BUCKETS) for seconds in SCALES.values())
        seconds = time_ns / 1e9
        for ring in rings:
            ring.add(seconds, value)


def process_key(pid: int) -> str:
    """Return the history key of a process."""
    return f"process {pid}"


TRAINING = "training "


def training_key(program: str) -> str:
    """Return the history key of a program's training."""
    return TRAINING + program


def graph_metrics(view: NodeView) -> tuple[ValueRow, ...]:
    """Return the metrics that a graph can show: core metrics, then host metrics, then all others that some device has."""
    given = {name for device in view.devices for name in device.values}
    shown = sorted((row for row in VALUES if row.name in given and row.name not in FIXED), key=lambda row: not row.core)
    core = sum(row.core for row in shown)
    known = {name for row in VALUES for name in row.names}
    others = dict.fromkeys(name for device in view.devices for name in device.metrics if name not in known)
    host = (metric_row(view, f"{OF_HOST}{name}") for name in HOST_VALUES if name in view.host)
    return (*shown[:core], *host, *shown[core:], *(metric_row(view, name) for name in others))


def metric_row(view: NodeView, name: str) -> ValueRow:
    """Return the label, unit and scale of a metric.

    Args:
        view: A view of the node. Its device keys are needed to find the metric in the catalogue.
        name: Name in ``VALUES`` or in the catalogue, or a host value behind ``OF_HOST``.
    """
    if name in BY_NAME:
        return BY_NAME[name]
    if name.startswith(OF_HOST) and name.removeprefix(OF_HOST) in HOST_VALUES:
        return replace(HOST_VALUES[name.removeprefix(OF_HOST)], name=name)
    key = next((f"{device.key}.{name}" for device in view.devices if name in device.metrics), "")
    found = resolve(key) if key else None
    unit, top = ("1", None) if found is None else (found.row.unit, found.row.maximum)
    return ValueRow(name, name, unit, (name,), top=top)
