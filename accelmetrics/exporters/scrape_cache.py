"""What a scrape is answered with: the latest record as Prometheus metrics, written once and served as often as it is asked for.

Taking a record costs next to nothing; the text is written at the first scrape that sees the record. A record that has grown
old is never served as if it were fresh: then only health is left, with every device down.

``prometheus_client`` writes the text, once: while names, labels and meanings stay as they are, the numbers alone are replaced in
what it wrote. What it is given is made safe here. Whatever a dialect or a machine comes up with, the text
stays one that Prometheus takes whole: one type and one help text per metric, no series twice, names of letters, digits and
underscores, label values of bounded length that are valid UTF-8, and no more series than allowed.
"""

from __future__ import annotations

import gzip
import math
import re
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, compress
from operator import ne
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from accelmetrics.dialects.contract import Dialect, Number, Point
from accelmetrics.dialects.health import NO_HISTORY, HealthHistory, health
from accelmetrics.dialects.prometheus import (
    PROMETHEUS,
    PointColumns,
    StepCounts,
    columns,
    described,
    device_points,
    largest_uses,
    metric_columns,
    numbered,
    process_points,
    step_points,
    told_points,
)
from accelmetrics.dialects.registry import dialect as dialect_of
from accelmetrics.schemas.errors import InvalidOptionError, require
from accelmetrics.schemas.log import log
from accelmetrics.schemas.reading import Header, NumberTemplate, header
from accelmetrics.schemas.record import NO_PROCESS_LABELS, DeviceLabels, ProcessLabels, Record, Step, StepSource

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from accelmetrics.schemas.metric import Kind

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

MAX_SERIES = 20_000
MAX_LABEL_BYTES = 128
LEAST_AGE = 5.0
PATIENCE = 1.0
"""The sampler's default timeout in seconds, which a record does not tell."""
PER_LINK = "accel_link_port_"
"""More than half of what a GPU with 18 links has to say."""
DROPPED = Point(
    "accelmetrics_series_dropped_total", 0, {}, "counter", "1", "Series that were left out: over the limit, or there already by that name."
)

NO_HEADER: Header = header("", (), (), {}, (), {})
_PLAIN = 1e6
"""Numbers below this, and from its negative on, ``prometheus_client`` writes as Python does."""
_EXACT = 1e15
"""Whole numbers below this are the digits that Python writes."""
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_:]")
_NOT_IN_LABELS = re.compile(r"[^a-zA-Z0-9_]")
_CONTROL = dict.fromkeys((*range(10), *range(11, 32), 127), "\ufffd")
_MOST_NAMES = 4096


class _Latest(NamedTuple):
    """A record and what was written of it already.

    Attributes:
        record: The record; None before the first one.
        history: What the records up to it said.
        taken: When it came, by the monotonic clock.
        written: Texts by form, and whether packed.
        points: Its points in a dialect that counts over all records, which it does when the record comes; None in another one.
        of_processes: By number, what is known of whose the processes are.
        steps: By process, what its steps come to, for our own names.
    """

    record: Record | None
    history: HealthHistory
    taken: float
    written: dict[tuple[tuple[str, ...], bool], bytes]
    points: tuple[Point, ...] | None = None
    of_processes: Mapping[int, Mapping[str, str]] = NO_PROCESS_LABELS
    steps: Mapping[StepSource, StepCounts] = {}


class ScrapeCache:
    """The latest record. It is taken on one thread and written on another one.

    Args:
        dialect: Whose names the metrics have: a name, ``module:attribute``, or a :class:`~accelmetrics.dialects.contract.Dialect`.
        max_series: At most so many series are written.
        max_age: A record older than this, in seconds, is not served; None allows two intervals of the monitor and its
            timeout, and never less than 5 s.
        per_link: Whether each link between devices has its series beside the sum over all of them.
        own_process: Whether this process is described too, as ``accelmetrics_process_*``; on Linux.
        device_labels: Tells who uses a device, as ``pod``, ``namespace``, ``container``. An error costs the labels alone; an
            :class:`OSError` is logged, any other raised by ``take`` once the record is served.
        processes: At most so many processes have series of their own, in our own names whatever the dialect.
        process_labels: Tells whose those are, as ``user``, ``pod``. Errors are taken as those of ``device_labels``.
        clock: Tells the time by ``monotonic`` and ``time_ns``.

    Raises:
        UnknownNameError: There is no such dialect.
        InvalidOptionError: A number is not positive.
        MissingDependencyError: ``prometheus-client`` is not installed.
    """

    def __init__(  # noqa: PLR0913 - the options of two exporters, each with a default
        self,
        dialect: str | Dialect,
        max_series: int = MAX_SERIES,
        *,
        max_age: float | None = None,
        per_link: bool = False,
        own_process: bool = False,
        device_labels: DeviceLabels | None = None,
        processes: int = 0,
        process_labels: ProcessLabels | None = None,
        clock: Any = time,
    ) -> None:
        if max_series < 1:
            raise InvalidOptionError(f"max_series is {max_series}: it must be at least 1")
        if processes < 0:
            raise InvalidOptionError(f"processes is {processes}: it must be the greatest number of processes, at least 0")
        if max_age is not None and not max_age > 0:
            raise InvalidOptionError(f"max_age is {max_age}: it must be above 0 seconds")
        require("prometheus_client", "prometheus", "prometheus-client")
        self._dialect = dialect_of(dialect)
        self._max_series = max_series
        self._max_age = max_age
        self._left_out = () if per_link else (PER_LINK,)
        self._own_process = own_process
        self._device_labels = device_labels
        self._labels_failed = False
        self._processes = processes
        self._process_labels = process_labels
        self._clock = clock
        self._dropped = 0
        self._counted: _Latest | None = None
        self._latest: _Latest
        self._mark = object()  # what its templates are kept under in headers
        self.forget()

    @property
    def ready(self) -> bool:
        """Whether any record held a value."""
        return self._latest.history.ready

    def take(self, record: Record) -> None:
        """Serve this record from now on. What the program logged last is kept until it logs anew."""
        labels, whose = dict(record.device_labels), NO_PROCESS_LABELS
        try:
            if self._process_labels is not None and (pids := [use.pid for _, use in largest_uses(record.snapshot, self._processes)]):
                told = self._process_labels(record.snapshot, list(dict.fromkeys(pids)))
                whose = {pid: _texts(about) for pid, about in told.items()}
            if self._device_labels is not None:
                labels.update((device.key, _texts(self._device_labels(device))) for device in record.snapshot.devices)
            self._labels_failed = False
        except OSError as error:  # passes by itself; the record must not wait for it
            if not self._labels_failed:
                log.warning("not all is known of who uses the devices: %s", error)
            self._labels_failed = True
        finally:
            self._serve(record._replace(device_labels=labels), whose)

    def _serve(self, record: Record, whose: Mapping[int, Mapping[str, str]]) -> None:
        # Each record is counted once and in order, whether a scrape sees it or not: here, never on the thread of a scrape.
        counted = tuple(self._dialect.points(record)) if self._dialect.counting else None
        steps = dict(self._latest.steps)
        if self._dialect is PROMETHEUS and record.snapshot is not self._latest.history.latest:
            for step in record.steps:
                steps[step.source] = steps.get(step.source, StepCounts()).after(step)
        for step in record.steps:  # of each process one step that holds the last value of each name
            last = self._steps.get(step.source, step)
            number = last.step if step.step is None else step.step
            self._steps[step.source] = step._replace(step=number, values={**last.values, **step.values})
        record = record._replace(steps=tuple(self._steps.values()))
        self._latest = _Latest(record, self._latest.history.after(record), self._clock.monotonic(), {}, counted, whose, steps)

    def forget(self) -> None:
        """Go back to the state before the first record."""
        self._steps: dict[StepSource, Step] = {}
        self._latest = _Latest(None, NO_HISTORY, 0.0, {})

    def metrics(self, openmetrics: bool = False, packed: bool = False) -> bytes:
        """Return the metrics as text, or OpenMetrics; ``packed`` by gzip."""
        latest = self._latest
        fresh = self._is_fresh(latest)
        form = ("openmetrics" if openmetrics else "text", "fresh" if fresh else "stale")

        def write() -> bytes:
            parts = list(self._columns(latest, fresh))
            shape = [part.shape for part in parts]
            head = NO_HEADER if latest.record is None else latest.record.snapshot.header
            # What is not of the reading (findings, steps, health) may change while the header stays: the last text is kept beside it.
            kept: list[TextTemplate] = head.kept((self._mark, form), list)
            if not kept or kept[0].shape != shape:
                points = chain.from_iterable(part.points for part in parts)
                kept[:] = [TextTemplate(shape, points, self._max_series, openmetrics)]
            template = kept[0]
            if latest is not self._counted:
                self._dropped += template.dropped
                self._counted = latest
            return template.text([*chain.from_iterable(part.numbers for part in parts), self._dropped])

        return _once(latest, form, packed, write)

    def snapshot(self, packed: bool = False) -> bytes | None:
        """Return the snapshot's document, None while there is none that is recent."""
        latest = self._latest
        if latest.record is None or not self._is_fresh(latest):
            return None
        return _once(latest, ("snapshot",), packed, latest.record.snapshot.to_json().encode)

    def _columns(self, latest: _Latest, fresh: bool) -> Iterator[PointColumns]:
        """Yield all points: health comes first, so that no limit cuts it off."""
        told = health(latest.record, latest.history, fresh)
        if self._own_process:
            from prometheus_client import ProcessCollector

            found = ProcessCollector("accelmetrics", registry=None).collect()
            samples = [(sample, cast("Kind", metric.type), metric.documentation) for metric in found for sample in metric.samples]
            told = chain(told, (Point(sample.name, sample.value, {}, kind, "", meaning) for sample, kind, meaning in samples))
        record = latest.record
        if record is None or not fresh:
            yield columns(told)
            return
        # After what was logged: a program's own number of that name keeps its series.
        last = chain(step_points(latest.steps), process_points(record.snapshot, self._processes, latest.of_processes))
        if self._dialect is PROMETHEUS:  # how things fare is told above, with what is counted over records: it would tell it once more
            yield columns(chain(told, device_points(record)))
            yield metric_columns(record.snapshot, described, left_out=self._left_out)
            yield columns(chain(told_points(record), last))
        else:
            points = self._dialect.points(record) if latest.points is None else latest.points
            yield columns(chain(told, (point for point in points if not point.name.startswith(self._left_out)), last))

    def _is_fresh(self, latest: _Latest) -> bool:
        return latest.record is not None and is_recent(latest.record, latest.taken, self._max_age, self._clock)


def is_recent(record: Record, taken: float, max_age: float | None = None, clock: Any = time) -> bool:
    """Return whether a record may still be served.

    Args:
        record: The record.
        taken: When it came, by the monotonic clock.
        max_age: Seconds until it is too old; None: two intervals of the monitor and its timeout, and never less than 5 s.
        clock: Tells the time by ``monotonic`` and ``time_ns``.
    """
    interval = 0.0 if record.monitor is None else record.monitor.interval
    # By both clocks: the wall clock counts the time that a suspended machine slept through.
    age = max(clock.monotonic() - taken, (clock.time_ns() - record.snapshot.time_ns) / 1e9)
    return bool(age <= (max_age or max(LEAST_AGE, 2 * interval + PATIENCE)))


def _once(latest: _Latest, form: tuple[str, ...], packed: bool, write: Callable[[], bytes]) -> bytes:
    """Return what ``write`` gives, kept with the record, packed or not."""
    if (form, packed) not in latest.written:
        latest.written[form, packed] = gzip.compress(_once(latest, form, False, write), compresslevel=1) if packed else write()
    return latest.written[form, packed]


def _texts(labels: Mapping[str, object]) -> dict[str, str]:
    """Return labels as texts, without those that have nothing to say."""
    return {str(name): str(value) for name, value in labels.items() if value not in (None, "")}


class Exposition:
    """Points, sorted into the metrics of ``prometheus_client``.

    Attributes:
        dropped: How many series were left out: over the limit, or there already under the same name.
    """

    def __init__(self, points: Iterable[Point], max_series: int = MAX_SERIES) -> None:
        self.dropped = 0
        self._families: dict[str, Metric] = {}
        self._homes: dict[str, Metric] = {}
        self._seen: set[tuple[str, tuple[tuple[str, str], ...]]] = set()
        for point in points:
            self.add(point, max_series)

    def add(self, point: Point, max_series: float = math.inf) -> None:
        """Add the series of a point, as far as there may be so many. What the first series of a name says holds for all others."""
        from prometheus_client.metrics_core import Metric

        family, kind = _legal(point.name), "gauge" if point.distribution is None else str(point.kind)
        if point.distribution is None and point.kind == "counter":
            # A counter under a name of another monitor that does not end as counters must is served without a type.
            family, kind = (family.removesuffix("_total"), "counter") if family.endswith("_total") else (family, "unknown")
        for suffix, value, given in _series(point):
            name = _legal(point.name) + suffix
            labels = {_legal(label, _NOT_IN_LABELS): _value(text) for label, text in sorted(given.items())}
            series = (name, tuple(sorted(labels.items())))
            home = None
            if series not in self._seen and len(self._seen) < max_series:
                home = self._homes.get(name) or self._families.setdefault(family, Metric(family, point.meaning or family, kind))
                if name not in self._homes and home.type != kind:
                    home = None  # another name has taken it for a type of its own: ``ticks`` beside the counter ``ticks_total``
            if home is None:
                self.dropped += 1
            else:
                self._homes[name] = home
                self._seen.add(series)
                home.add_sample(name, labels, value)

    def collect(self) -> Iterable[Metric]:
        """Return the metrics, as a registry of ``prometheus_client`` does."""
        return self._families.values()

    def text(self, openmetrics: bool = False) -> bytes:
        """Write everything as text of version 0.0.4, or as OpenMetrics 1.0."""
        from prometheus_client import generate_latest as plain
        from prometheus_client.openmetrics import exposition

        write: Callable[[Any], bytes] = cast("Any", exposition.generate_latest) if openmetrics else plain
        return write(self)


class TextTemplate:
    """The text of points, in which numbers are replaced.

    ``prometheus_client`` writes it with the place of each number in the column of numbers in the number's stead, so that it is the one that
    says which line is whose.

    Args:
        shape: What it is kept for.
        points: Points of that shape.
        max_series: At most so many series are written, and :data:`DROPPED`.
        openmetrics: Whether it is OpenMetrics.

    Attributes:
        shape: What it is kept for.
        dropped: How many series are left out.
    """

    def __init__(self, shape: Sequence[object], points: Iterable[Point], max_series: int, openmetrics: bool) -> None:
        points = tuple(points)
        exposition = Exposition(numbered(points), max_series)
        count = sum(1 if point.distribution is None else len(point.distribution.buckets) + 2 for point in points)
        exposition.add(DROPPED._replace(value=count))
        self.shape = shape
        self.dropped = exposition.dropped
        parts: list[str | int] = []
        for line in exposition.text(openmetrics).decode().split("\n")[:-1]:
            head, space, number = line.rpartition(" ")
            parts += [line, "\n"] if line.startswith("#") else [head, space, int(float(number)), "\n"]
        self._template = NumberTemplate(parts)
        self._kept = array("q", bytes(8 * (count + 1))), ["0.0"] * (count + 1)

    def text(self, numbers: Sequence[Number]) -> bytes:
        """Return the text with these numbers, those left out among them."""
        before, texts = self._kept
        floats = array("d", numbers)
        bits = array("q", floats.tobytes())  # tells 0.0 and -0.0 apart, and finds a NaN equal to itself
        texts = texts.copy()
        for place in compress(range(len(texts)), map(ne, bits, before)):
            number = floats[place]
            texts[place] = repr(number) if -_PLAIN < number < _PLAIN else _large(number)
        self._kept = bits, texts
        return self._template.fill(texts).encode()


def _large(number: float) -> str:
    """Write a number as ``prometheus_client`` does, and whole ones (bytes, hertz) in half of its time."""
    if _PLAIN <= number < _EXACT and number.is_integer():
        digits = str(int(number))
        return f"{f'{digits[0]}.{digits[1:]}'.rstrip('0.')}e+{len(digits) - 1:02d}"
    from prometheus_client.utils import floatToGoString

    return floatToGoString(number)  # type: ignore[no-untyped-call, no-any-return]


def _series(point: Point) -> Iterator[tuple[str, Number, Mapping[str, str]]]:
    """Yield what a name is followed by, value and labels: once for a number, several times for a distribution."""
    whole = point.distribution
    if whole is None:
        yield "", point.value, point.labels
        return
    if point.kind == "histogram":
        for bound, up_to in (*whole.buckets, (math.inf, whole.observations)):
            yield "_bucket", up_to, {**point.labels, "le": "+Inf" if bound == math.inf else repr(float(bound))}
    yield "_count", whole.observations, point.labels
    yield "_sum", whole.total, point.labels


@lru_cache(maxsize=_MOST_NAMES)
def _legal(name: str, others: re.Pattern[str] = _NOT_IN_NAMES) -> str:
    found = others.sub("_", name)
    return f"_{found}" if not found or found[0].isdigit() else found


def _value(value: str) -> str:
    """Clean a label's value of what is no text; cut to a bounded length between two characters."""
    if value.isascii() and value.isprintable() and len(value) <= MAX_LABEL_BYTES:
        return value
    data = value.translate(_CONTROL).encode("utf-8", "backslashreplace")
    return data[:MAX_LABEL_BYTES].decode("utf-8", "ignore")


# What a client accepts


@lru_cache(maxsize=16)
def prefers_openmetrics(accept: str) -> bool:
    """Return whether an ``Accept`` header asks for OpenMetrics 1.0 rather than plain text."""
    return 0 < _weight(accept, "application/openmetrics-text") >= _weight(accept, "text/plain")


@lru_cache(maxsize=16)
def accepts_gzip(accept_encoding: str) -> bool:
    """Return whether an ``Accept-Encoding`` header names gzip and does not refuse it."""
    return _weight(accept_encoding, "gzip") > 0


def _weight(header: str, wanted: str) -> float:
    """Return the highest weight that a header gives to something: ``text/plain;version=0.0.4;q=0.5`` gives 0.5 to ``text/plain``."""
    highest = 0.0
    for part in header.split(","):
        what, *parameters = (word.strip().lower() for word in part.split(";"))
        weight = next((word[2:] for word in parameters if word.startswith("q=")), "1")
        if what == wanted and re.fullmatch(r"[01](\.\d*)?", weight):
            highest = max(highest, float(weight))
    return highest
