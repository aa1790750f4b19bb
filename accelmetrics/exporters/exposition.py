"""Points as the text that Prometheus reads. ``prometheus_client`` writes it; what it is given is made safe here.

Whatever a dialect or a machine comes up with, the text stays one that Prometheus takes whole: one type and one help text per
metric, no series twice, names of letters, digits and underscores, label values of bounded length that are valid UTF-8, and
no more series than allowed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from accelmetrics.dialects.contract import Point
from accelmetrics.schemas.errors import MissingDependencyError

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
MAX_SERIES = 20_000
MAX_LABEL_BYTES = 128
DROPPED = "accelmetrics_series_dropped_total"
_DROPPED_MEANING = "Series that were left out: over the limit, or there already under the same name."
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_:]")
_NOT_IN_LABELS = re.compile(r"[^a-zA-Z0-9_]")
_CONTROL = dict.fromkeys((*range(10), *range(11, 32), 127), "\ufffd")
_PARTS = ("_bucket", "_sum", "_count")
_MOST_NAMES = 4096


def require_client() -> None:
    """Fail at once where the package that writes the text is missing.

    Raises:
        MissingDependencyError: ``prometheus-client`` is not installed.
    """
    try:
        import prometheus_client  # noqa: F401 - whether it can be imported is the question
    except ImportError:
        raise MissingDependencyError("prometheus-client", "prometheus") from None


class Exposition:
    """Points, sorted into metrics.

    Attributes:
        dropped: How many series were left out: over the limit, or there already under the same name.
    """

    def __init__(self, points: Iterable[Point], max_series: int = MAX_SERIES) -> None:
        self.dropped = 0
        self._families: dict[str, Metric] = {}
        self._homes: dict[str, Metric] = {}
        self._seen: set[tuple[str, tuple[tuple[str, str], ...]]] = set()
        given = list(points)
        found = [sample for point in given for sample in _samples(point)]
        shapes = _shapes(given)
        for point in found:
            if len(self._seen) < max_series:
                self._add(point, shapes)
            else:
                self.dropped += 1

    def count_dropped(self, total: int) -> None:
        """Say how many series were left out so far; this one series has its place whatever the limit."""
        self._add(Point(DROPPED, total, {}, "counter", "1", _DROPPED_MEANING), {})

    def text(self, openmetrics: bool = False) -> bytes:
        """Everything as text of version 0.0.4, or as OpenMetrics 1.0."""
        from prometheus_client import CollectorRegistry
        from prometheus_client import generate_latest as plain
        from prometheus_client.openmetrics import exposition

        write: Callable[[CollectorRegistry], bytes] = exposition.generate_latest if openmetrics else plain
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Collector(self._families.values()))
        return write(registry)

    def _add(self, point: Point, shapes: Mapping[str, str]) -> None:
        name = _name(point.name)
        labels = {_label(label): _value(value) for label, value in point.labels.items()}
        series = (name, tuple(sorted(labels.items())))
        if series in self._seen:
            self.dropped += 1
            return
        home = self._homes.get(name) or self._new_home(name, point, shapes)
        if home is None:
            self.dropped += 1
            return
        self._seen.add(series)
        home.add_sample(name, labels, point.value)

    def _new_home(self, name: str, point: Point, shapes: Mapping[str, str]) -> Metric | None:
        """The metric that a name belongs to: what its first series says holds for all others.

        None where another name has taken that metric for a type of its own: ``ticks`` beside the counter ``ticks_total``.
        """
        from prometheus_client.metrics_core import Metric

        family, kind = _family_of(name, point, shapes)
        home = self._families.setdefault(family, Metric(family, point.meaning or name, kind))
        if home.type != kind:
            return None
        self._homes[name] = home
        return home


class _Collector:
    """What a registry of ``prometheus_client`` asks for metrics."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


class _Family(NamedTuple):
    name: str
    kind: str


def _family_of(name: str, point: Point, shapes: Mapping[str, str]) -> _Family:
    """The metric that a series belongs to: histograms and summaries consist of several names, counters lose their ending."""
    base = next((name.removesuffix(part) for part in _PARTS if name.endswith(part) and name.removesuffix(part) in shapes), name)
    if base in shapes:
        return _Family(base, shapes[base])
    if point.kind == "counter":
        # A counter under a name of another monitor that does not end as counters must is served without a type.
        return _Family(name.removesuffix("_total"), "counter") if name.endswith("_total") else _Family(name, "unknown")
    return _Family(name, "gauge")


def _samples(point: Point) -> Iterator[Point]:
    """A point; a distribution as the series that Prometheus makes of it."""
    whole = point.distribution
    if whole is None:
        yield point
        return
    if point.kind == "histogram":
        for bound, up_to in (*whole.buckets, (math.inf, whole.observations)):
            labels = {**point.labels, "le": "+Inf" if bound == math.inf else repr(float(bound))}
            yield Point(f"{point.name}_bucket", up_to, labels, meaning=point.meaning)
    yield Point(f"{point.name}_count", whole.observations, point.labels, meaning=point.meaning)
    yield Point(f"{point.name}_sum", whole.total, point.labels, meaning=point.meaning)


def _shapes(points: Iterable[Point]) -> dict[str, str]:
    """The names that are histograms (a bucket has ``le``) or summaries (a share has ``quantile``), or say so."""
    found: dict[str, str] = {}
    for point in points:
        if point.distribution is not None:
            found[_name(point.name)] = point.kind
        elif "le" in point.labels and point.name.endswith("_bucket"):
            found[_name(point.name.removesuffix("_bucket"))] = "histogram"
        elif "quantile" in point.labels:
            found[_name(point.name)] = "summary"
    return found


@lru_cache(maxsize=_MOST_NAMES)
def _name(name: str) -> str:
    return _legal(_NOT_IN_NAMES.sub("_", name))


@lru_cache(maxsize=_MOST_NAMES)
def _label(name: str) -> str:
    return _legal(_NOT_IN_LABELS.sub("_", name))


def _legal(name: str) -> str:
    return f"_{name}" if not name or name[0].isdigit() else name


def _value(value: str) -> str:
    """A label's value without what is no text, cut to a bounded length between two characters."""
    if value.isascii() and value.isprintable() and len(value) <= MAX_LABEL_BYTES:
        return value
    data = value.translate(_CONTROL).encode("utf-8", "backslashreplace")
    return data[:MAX_LABEL_BYTES].decode("utf-8", "ignore")


# What a client accepts


def prefers_openmetrics(accept: str) -> bool:
    """Whether an ``Accept`` header asks for OpenMetrics 1.0 rather than plain text."""
    return 0 < _weight(accept, "application/openmetrics-text") >= _weight(accept, "text/plain")


def accepts_gzip(accept_encoding: str) -> bool:
    """Whether an ``Accept-Encoding`` header names gzip and does not refuse it."""
    return _weight(accept_encoding, "gzip") > 0


def _weight(header: str, wanted: str) -> float:
    """The highest weight that a header gives to something: ``text/plain;version=0.0.4;q=0.5`` gives 0.5 to ``text/plain``."""
    highest = 0.0
    for part in header.split(","):
        what, *parameters = (word.strip().lower() for word in part.split(";"))
        if what == wanted:
            highest = max(highest, _number(next((word[2:] for word in parameters if word.startswith("q=")), "1")))
    return highest


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
