"""The answers to scrapes: the latest record as Prometheus metrics, formatted once and served any number of times.

Accepting a record is cheap; the text is formatted at the first scrape after it. A record that is too old is never served as fresh: then
only the health metrics remain, with every device down.

``prometheus_client`` formats the text once. While names, labels and help texts stay the same, only the numbers in its text are replaced.
This module sanitises its input, so that Prometheus accepts the text for any dialect and machine: one type and one help text per metric,
no duplicate series, names of letters, digits and underscores, label values in valid UTF-8 of limited length, and a limited number of
series.
"""

from __future__ import annotations

import gzip
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any, cast

from accelmetrics.dialects.contract import Dialect, Number, Point
from accelmetrics.dialects.health import NO_HISTORY, HealthHistory, health
from accelmetrics.dialects.prometheus import (
    PROMETHEUS,
    PointColumns,
    StepCounts,
    columns,
    described,
    device_points,
    finding_and_logged_points,
    largest_uses,
    metric_columns,
    numbered,
    process_points,
    step_points,
)
from accelmetrics.dialects.registry import dialect as dialect_of
from accelmetrics.schemas.errors import InvalidOptionError, require
from accelmetrics.schemas.log import log
from accelmetrics.schemas.reading import NumberTemplate, header
from accelmetrics.schemas.record import NO_PROCESS_LABELS, DeviceLabels, ProcessLabels, Record, Step, StepSource

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from accelmetrics.schemas.metric import Kind

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

MAX_SERIES = 20_000
MAX_LABEL_BYTES = 128
PER_LINK = "accel_link_port_"
"""Prefix of single links' series: more than half of the series of a GPU with 18 links."""
DROPPED = Point(
    "accelmetrics_series_dropped_total", 0, {}, "counter", "1", "Series that were left out: over the limit, or there already by that name."
)

# prometheus_client formats numbers with a magnitude below this like Python's repr.
_PLAIN = 1e6
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_:]")
_NOT_IN_LABELS = re.compile(r"[^a-zA-Z0-9_]")
_CONTROL = dict.fromkeys((*range(10), *range(11, 32), 127), "\ufffd")


@dataclass(frozen=True)
class _Latest:
    """The latest record with the texts already formatted from it.

    Attributes:
        record: The record; None before the first one.
        history: Health counters including this record.
        taken: Time at which the record arrived, by the monotonic clock.
        written: Formatted texts by form and by whether they are compressed.
        points: Its points in a dialect that accumulates over records, computed on arrival; None for other dialects.
        of_processes: Labels of the owner by process id.
        steps: Step counters by process that logs, for the default names.
    """

    record: Record | None
    history: HealthHistory
    taken: float
    written: dict[tuple[tuple[str, ...], bool], bytes]
    points: tuple[Point, ...] | None = None
    of_processes: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    steps: Mapping[StepSource, StepCounts] = field(default_factory=dict)


class ScrapeCache:
    """The latest record as text. One thread may pass records to it while another formats the text.

    Args:
        dialect: Metric names: a dialect's name, ``module:attribute``, or a :class:`~accelmetrics.dialects.contract.Dialect`.
        max_series: Maximum number of series.
        max_age: Age in seconds from which a record is not served. None: two intervals of the monitor and its timeout, at least 5 s.
        per_link: Also write the series of each link between devices, not only their sum.
        own_process: Also write ``accelmetrics_process_*``, which describe this process (Linux).
        device_labels: Function that returns the labels of a device's user: ``pod``, ``namespace``, ``container``. If it raises, the record
            is served without these labels. An :class:`OSError` is logged; any other error is raised by ``take`` afterwards.
        processes: Maximum number of processes with series. These have the default names in every dialect.
        process_labels: Function that returns the labels of processes' owners: ``user``, ``pod``. Errors are handled as for
            ``device_labels``.
        clock: Object with ``monotonic`` and ``time_ns``.

    Raises:
        UnknownNameError: There is no dialect with this name.
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
            raise InvalidOptionError(f"processes is {processes}: it must be at least 0")
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
        self._mark = object()  # key of this cache's templates in headers, which other caches share
        self.forget()

    @property
    def ready(self) -> bool:
        """Whether any record so far had a value or a source that answered."""
        return self._latest.history.ready

    def take(self, record: Record) -> None:
        """Serve this record from now on. A logged number is kept until the program logs it again."""
        labels, owners = dict(record.device_labels), NO_PROCESS_LABELS
        try:
            if self._process_labels is not None and (pids := [use.pid for _, use in largest_uses(record.snapshot, self._processes)]):
                owners = {pid: _texts(about) for pid, about in self._process_labels(record.snapshot, list(dict.fromkeys(pids))).items()}
            if self._device_labels is not None:
                labels.update((device.key, _texts(self._device_labels(device))) for device in record.snapshot.devices)
            self._labels_failed = False
        except OSError as error:  # a temporary failure: the record is served without labels
            if not self._labels_failed:
                log.warning("labels of the devices' users are incomplete: %s", error)
            self._labels_failed = True
        finally:
            self._serve(record._replace(device_labels=labels), owners)

    def _serve(self, record: Record, owners: Mapping[int, Mapping[str, str]]) -> None:
        # Count here, not on the thread of a scrape: each record counts once and in order, even if no scrape sees it.
        counted = tuple(self._dialect.points(record)) if self._dialect.counting else None
        steps = dict(self._latest.steps)
        if self._dialect is PROMETHEUS and record.snapshot is not self._latest.history.latest:
            for step in record.steps:
                steps[step.source] = steps.get(step.source, StepCounts()).after(step)
        for step in record.steps:  # merge the steps of each process into one with the last value of each name
            last = self._steps.get(step.source, step)
            number = last.step if step.step is None else step.step
            self._steps[step.source] = step._replace(step=number, values={**last.values, **step.values})
        record = record._replace(steps=tuple(self._steps.values()))
        self._latest = _Latest(record, self._latest.history.after(record), self._clock.monotonic(), {}, counted, owners, steps)

    def forget(self) -> None:
        """Go back to the state before the first record."""
        self._steps: dict[StepSource, Step] = {}
        self._latest = _Latest(None, NO_HISTORY, 0.0, {})

    def metrics(self, openmetrics: bool = False, packed: bool = False) -> bytes:
        """Return the metrics as Prometheus text or as OpenMetrics, compressed with gzip if ``packed``."""
        latest = self._latest
        fresh = self._is_fresh(latest)
        form = ("openmetrics" if openmetrics else "text", "fresh" if fresh else "stale")

        def write() -> bytes:
            parts = list(self._columns(latest, fresh))
            shape = [part.shape for part in parts]
            head = header("", (), (), {}, (), {}) if latest.record is None else latest.record.snapshot.header
            # Findings, steps and health may change while the reading's header stays the same. The template is therefore kept with the
            # header but also compared by shape.
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
        """Return the latest snapshot as JSON, compressed with gzip if ``packed``; None if there is no recent one."""
        latest = self._latest
        # Other exporters keep serving frozen values while a driver hangs. An old snapshot is therefore no answer at all.
        if latest.record is None or not self._is_fresh(latest):
            return None
        return _once(latest, ("snapshot",), packed, latest.record.snapshot.to_json().encode)

    def _columns(self, latest: _Latest, fresh: bool) -> Iterator[PointColumns]:
        """Yield all points as columns. Health comes first, so that the limit of series never cuts it off."""
        own_points = health(latest.record, latest.history, fresh)
        if self._own_process:
            from prometheus_client import ProcessCollector

            own_process = (
                Point(sample.name, sample.value, {}, cast("Kind", metric.type), "", metric.documentation)
                for metric in ProcessCollector("accelmetrics", registry=None).collect()
                for sample in metric.samples
            )
            own_points = chain(own_points, own_process)
        record = latest.record
        if record is None or not fresh:
            yield columns(own_points)
            return
        # These come last: a logged number with the same name keeps its series.
        last = chain(step_points(latest.steps), process_points(record.snapshot, self._processes, latest.of_processes))
        if self._dialect is PROMETHEUS:  # not its points(), which would repeat the health metrics, without counters
            yield columns(chain(own_points, device_points(record)))
            yield metric_columns(record.snapshot, described, left_out=self._left_out)
            yield columns(chain(finding_and_logged_points(record), last))
        else:
            points = self._dialect.points(record) if latest.points is None else latest.points
            yield columns(chain(own_points, (point for point in points if not point.name.startswith(self._left_out)), last))

    def _is_fresh(self, latest: _Latest) -> bool:
        return latest.record is not None and is_recent(latest.record, latest.taken, self._max_age, self._clock)


def is_recent(record: Record, taken: float, max_age: float | None = None, clock: Any = time) -> bool:
    """Return whether a record may still be served.

    Args:
        record: The record.
        taken: Time at which it arrived, by the monotonic clock.
        max_age: Age in seconds from which it is too old. None: two intervals of the monitor and its timeout, at least 5 s.
        clock: Object with ``monotonic`` and ``time_ns``.
    """
    interval = 0.0 if record.monitor is None else record.monitor.interval
    # The larger age of two clocks: the monotonic clock may stop while the machine is suspended, the wall clock may be set back.
    age = max(clock.monotonic() - taken, (clock.time_ns() - record.snapshot.time_ns) / 1e9)
    # A record does not contain the sampler's timeout: 1 s is the default.
    return bool(age <= (max_age or max(5.0, 2 * interval + 1.0)))


def _once(latest: _Latest, form: tuple[str, ...], packed: bool, write: Callable[[], bytes]) -> bytes:
    """Return the text of a form from the cache, or call ``write`` and cache its result."""
    if (form, packed) not in latest.written:
        latest.written[form, packed] = gzip.compress(_once(latest, form, False, write), compresslevel=1) if packed else write()
    return latest.written[form, packed]


def _texts(labels: Mapping[str, object]) -> dict[str, str]:
    """Return labels as texts. Empty ones are left out."""
    return {str(name): str(value) for name, value in labels.items() if value not in (None, "")}


class Exposition:
    """Points as metrics of ``prometheus_client``.

    Attributes:
        dropped: Number of series left out: beyond the limit, duplicates, and conflicts of name or type.
    """

    def __init__(self, points: Iterable[Point], max_series: int = MAX_SERIES) -> None:
        self.dropped = 0
        self._families: dict[str, Metric] = {}
        self._homes: dict[str, Metric] = {}
        self._seen: set[tuple[str, tuple[tuple[str, str], ...]]] = set()
        for point in points:
            self.add(point, max_series)

    def add(self, point: Point, max_series: float = math.inf) -> None:
        """Add the series of a point, up to the limit. The first series of a name determines its type and help text."""
        from prometheus_client.metrics_core import Metric

        family, kind = _legal(point.name), "gauge" if point.distribution is None else str(point.kind)
        if point.distribution is None and point.kind == "counter":
            # A counter's name must end in _total. Counters of dialects with other names are served without a type.
            family, kind = (family.removesuffix("_total"), "counter") if family.endswith("_total") else (family, "unknown")
        for suffix, value, given in _series(point):
            name = _legal(point.name) + suffix
            labels = {_legal(label, _NOT_IN_LABELS): _value(text) for label, text in sorted(given.items())}
            series = (name, tuple(sorted(labels.items())))
            home = None
            if series not in self._seen and len(self._seen) < max_series:
                home = self._homes.get(name) or self._families.setdefault(family, Metric(family, point.meaning or family, kind))
                if name not in self._homes and home.type != kind:
                    home = None  # the family has another type: a gauge ticks after the counter ticks_total
            if home is None:
                self.dropped += 1
            else:
                self._homes[name] = home
                self._seen.add(series)
                home.add_sample(name, labels, value)

    def collect(self) -> Iterable[Metric]:
        """Return the metrics. ``prometheus_client`` calls this method of a registry."""
        return self._families.values()

    def text(self, openmetrics: bool = False) -> bytes:
        """Format all metrics as Prometheus text 0.0.4 or as OpenMetrics 1.0."""
        from prometheus_client import generate_latest as plain
        from prometheus_client.openmetrics import exposition

        return cast("bytes", (exposition.generate_latest if openmetrics else plain)(cast("Any", self)))


class TextTemplate:
    """The text of points with replaceable numbers.

    Args:
        shape: Shape of the points; the template is valid for equal shapes.
        points: Points of that shape.
        max_series: Maximum number of series, in addition to :data:`DROPPED`.
        openmetrics: Whether to format as OpenMetrics.

    Attributes:
        shape: Shape of the points.
        dropped: Number of series that are left out.
    """

    def __init__(self, shape: Sequence[object], points: Iterable[Point], max_series: int, openmetrics: bool) -> None:
        # prometheus_client formats each number's index in the column instead of the number. It orders and groups the lines, and the index
        # in a line shows which number belongs there.
        points = tuple(points)
        exposition = Exposition(numbered(points), max_series)
        # Its index follows those of the points: one for a number, several for a distribution.
        exposition.add(DROPPED._replace(value=sum(1 if one.distribution is None else len(one.distribution.buckets) + 2 for one in points)))
        self.shape = shape
        self.dropped = exposition.dropped
        parts: list[str | int] = []
        for line in exposition.text(openmetrics).decode().split("\n")[:-1]:
            head, space, number = line.rpartition(" ")
            parts += [line, "\n"] if line.startswith("#") else [head, space, int(float(number)), "\n"]
        self._template = NumberTemplate(parts)

    def text(self, numbers: Sequence[Number]) -> bytes:
        """Return the text with these numbers. The column contains the numbers of dropped series too."""
        texts = [repr(number) if -_PLAIN < number < _PLAIN else _large(number) for number in map(float, numbers)]
        return self._template.fill(texts).encode()


def _large(number: float) -> str:
    """Format a large or non-finite number as ``prometheus_client`` does."""
    # A shortcut for whole numbers, like bytes and hertz: it takes half of the time of floatToGoString.
    if _PLAIN <= number < 1e15 and number.is_integer():  # from there on Python does not print all digits
        digits = str(int(number))
        return f"{f'{digits[0]}.{digits[1:]}'.rstrip('0.')}e+{len(digits) - 1:02d}"
    from prometheus_client.utils import floatToGoString

    return floatToGoString(number)  # type: ignore[no-untyped-call, no-any-return]


def _series(point: Point) -> Iterator[tuple[str, Number, Mapping[str, str]]]:
    """Yield suffix, value and labels of each series of a point: one for a number, several for a distribution."""
    whole = point.distribution
    if whole is None:
        yield "", point.value, point.labels
    else:
        buckets = (*whole.buckets, (math.inf, whole.observations)) if point.kind == "histogram" else ()
        for bound, up_to in buckets:
            yield "_bucket", up_to, {**point.labels, "le": "+Inf" if bound == math.inf else repr(float(bound))}
        yield "_count", whole.observations, point.labels
        yield "_sum", whole.total, point.labels


@lru_cache(maxsize=4096)
def _legal(name: str, others: re.Pattern[str] = _NOT_IN_NAMES) -> str:
    found = others.sub("_", name)
    return f"_{found}" if not found or found[0].isdigit() else found


# A label may come from a job file that a user writes, so it can contain anything.
def _value(value: str) -> str:
    """Return a label's value without control characters, in valid UTF-8, cut to the maximum length at a character boundary."""
    return value.translate(_CONTROL).encode("utf-8", "backslashreplace")[:MAX_LABEL_BYTES].decode("utf-8", "ignore")


# Content negotiation


@lru_cache(maxsize=16)
def prefers_openmetrics(accept: str) -> bool:
    """Return whether an ``Accept`` header prefers OpenMetrics 1.0 to plain text."""
    return 0 < _weight(accept, "application/openmetrics-text") >= _weight(accept, "text/plain")


@lru_cache(maxsize=16)
def accepts_gzip(accept_encoding: str) -> bool:
    """Return whether an ``Accept-Encoding`` header accepts gzip."""
    return _weight(accept_encoding, "gzip") > 0


def _weight(header: str, wanted: str) -> float:
    """Return the highest weight of an item in a header: ``text/plain;version=0.0.4;q=0.5`` has 0.5 for ``text/plain``."""
    highest = 0.0
    for part in header.split(","):
        what, *parameters = (word.strip().lower() for word in part.split(";"))
        weight = next((word[2:] for word in parameters if word.startswith("q=")), "1")
        if what == wanted and re.fullmatch(r"[01](\.\d*)?", weight):
            highest = max(highest, float(weight))
    return highest
