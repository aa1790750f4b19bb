"""The messages of ``tpu.monitoring.runtime.RuntimeMetricService``, as far as they are read.

::

    MetricRequest        1 metric_name
    MetricResponse       1 TPUMetric{ 1 name, 2 description, 3 repeated Metric }
    Metric               1 Attribute, 2 timestamp{ 1 seconds }, and one of
                         3 Gauge, 4 Counter, 5 Distribution, 6 Summary
    Attribute            1 key, 2 AttrValue, which is one of
                         1 string, 2 bool, 3 int, 4 double, 6 KeyValueList{ 1 repeated Attribute }
    Gauge, Counter       one of 1 double, 2 int, 3 string, 4 bool
    Distribution         1 count, 2 mean, 4 max, 6 BucketOptions, 7 repeated bucket_counts
    BucketOptions        one of 2 exponential{ 1 finite, 2 growth, 3 scale }, 4 linear{ 1 finite, 2 width, 3 offset },
                         3 explicit{ 1 repeated bounds }
    Summary              1 sample_count, 2 sample_sum, 3 repeated Quantile{ 1 quantile, 2 value }
    ListSupportedMetricsResponse    1 repeated SupportedMetric{ 1 metric_name }

Fields that are not set have the value that the format gives them then: 0, or an empty string.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from accelmetrics.backends.tpu import wire
from accelmetrics.backends.tpu.wire import Field, WireError

SERVICE = "/tpu.monitoring.runtime.RuntimeMetricService"
GET_METRIC = f"{SERVICE}/GetRuntimeMetric"
LIST_METRICS = f"{SERVICE}/ListSupportedMetrics"

DEPTH = 4
"""How deep attributes may be nested; one level is in use."""

Scalar = bool | int | float | str


class Attribute(NamedTuple):
    """What an entry is about: a device, a size of buffers, a core. ``parts`` holds a list of attributes, with their keys."""

    key: str
    value: Scalar | None = None
    parts: tuple[Attribute, ...] = ()


class Buckets(NamedTuple):
    """The bounds of a distribution's buckets.

    Attributes:
        kind: ``exponential``, ``linear`` or ``explicit``.
        numbers: Growth and scale, width and offset, or the bounds themselves.
        finite: How many buckets there are between the first and the last bound; 0 when not told.
    """

    kind: str
    numbers: tuple[float, ...]
    finite: int = 0


class Distribution(NamedTuple):
    """A histogram, with what is known beside it. A ``maximum`` of 0 is one that was not told."""

    samples: int
    mean: float
    maximum: float
    buckets: Buckets | None
    counts: tuple[int, ...]


class Summary(NamedTuple):
    """A count, a sum, and quantiles by their share."""

    samples: int
    total: float
    quantiles: tuple[tuple[float, float], ...]


Measure = Scalar | Distribution | Summary


class Entry(NamedTuple):
    """One ``Metric``: what it is about, when it was taken (seconds since 1970, 0 when not told), and what it says."""

    attribute: Attribute | None
    seconds: int
    measure: Measure | None


def metric_request(name: str) -> bytes:
    """A ``MetricRequest``."""
    return wire.string_field(1, name)


def metric_response(data: bytes) -> list[Entry]:
    """The entries of a ``MetricResponse``.

    Raises:
        WireError: It is none.
    """
    metrics = [wire.message(field) for field in wire.parse(data) if field.number == 1]
    if not metrics:
        raise WireError("an answer without a metric")
    return [_entry(wire.message(field)) for field in metrics[-1] if field.number == 3]


def supported_metrics(data: bytes) -> frozenset[str]:
    """The names in a ``ListSupportedMetricsResponse``.

    Raises:
        WireError: It is none.
    """
    supported = [wire.message(field) for field in wire.parse(data) if field.number == 1]
    return frozenset(wire.text(field) for fields in supported for field in fields if field.number == 1)


def _entry(fields: Sequence[Field]) -> Entry:
    attribute, seconds, measure = None, 0, None
    for field in fields:
        if field.number == 1:
            attribute = _attribute(wire.message(field), DEPTH)
        elif field.number == 2:
            seconds = next((wire.signed(part) for part in wire.message(field) if part.number == 1), 0)
        elif field.number in (3, 4, 5, 6):
            measure = _measure(field)
    return Entry(attribute, seconds, measure)


def _measure(field: Field) -> Measure | None:
    fields = wire.message(field)
    if field.number == 5:
        return _distribution(fields)
    if field.number == 6:
        return _summary(fields)
    return _one_of(fields, GAUGE if field.number == 3 else COUNTER)


def _attribute(fields: Sequence[Field], depth: int) -> Attribute:
    if depth == 0:
        raise WireError(f"attributes more than {DEPTH} deep")
    key, value = "", None
    parts: tuple[Attribute, ...] = ()
    for field in fields:
        if field.number == 1:
            key = wire.text(field)
        elif field.number == 2:
            inner = wire.message(field)
            value = _one_of(inner, ATTRIBUTE)
            parts = tuple(_attribute(wire.message(part), depth - 1) for part in _listed(inner, 6))
    return Attribute(key, value, parts)


def _listed(fields: Sequence[Field], number: int) -> list[Field]:
    """The elements of an embedded list, whose own field number is 1."""
    return [part for field in fields if field.number == number for part in wire.message(field) if part.number == 1]


def _boolean(field: Field) -> bool:
    return wire.unsigned(field) != 0


Choices = Mapping[int, Callable[[Field], Scalar]]

GAUGE: Choices = {1: wire.double, 2: wire.signed, 3: wire.text, 4: _boolean}
COUNTER: Choices = {1: wire.double, 2: wire.unsigned}
ATTRIBUTE: Choices = {1: wire.text, 2: _boolean, 3: wire.signed, 4: wire.double}


def _one_of(fields: Sequence[Field], choices: Choices) -> Scalar | None:
    """The last of the fields that is one of these: that is what counts where only one should be there."""
    found = [choices[field.number](field) for field in fields if field.number in choices]
    return found[-1] if found else None


def _distribution(fields: Sequence[Field]) -> Distribution:
    count, mean, maximum, buckets = 0, 0.0, 0.0, None
    counts: list[int] = []
    for field in fields:
        if field.number == 1:
            count = wire.signed(field)
        elif field.number == 2:
            mean = wire.double(field)
        elif field.number == 4:
            maximum = wire.double(field)
        elif field.number == 6:
            buckets = _buckets(wire.message(field))
        elif field.number == 7:
            counts += wire.integers(field)
    if count < 0 or any(bucket < 0 for bucket in counts):
        raise WireError("a distribution with a negative count")
    return Distribution(count, mean, maximum, buckets, tuple(counts))


def _buckets(fields: Sequence[Field]) -> Buckets | None:
    found = None
    for field in fields:
        if field.number == 3:
            found = Buckets("explicit", tuple(x for part in wire.message(field) if part.number == 1 for x in wire.doubles(part)))
        elif field.number in (2, 4):
            found = _regular("exponential" if field.number == 2 else "linear", wire.message(field))
    return found


def _regular(kind: str, fields: Sequence[Field]) -> Buckets:
    finite, first, second = 0, 0.0, 0.0
    for field in fields:
        if field.number == 1:
            finite = wire.signed(field)
        elif field.number == 2:
            first = wire.double(field)
        elif field.number == 3:
            second = wire.double(field)
    return Buckets(kind, (first, second), finite)


def _summary(fields: Sequence[Field]) -> Summary:
    count, total, quantiles = 0, 0.0, []
    for field in fields:
        if field.number == 1:
            count = wire.unsigned(field)
        elif field.number == 2:
            total = wire.double(field)
        elif field.number == 3:
            numbers = {part.number: wire.double(part) for part in wire.message(field) if part.number in (1, 2)}
            quantiles.append((numbers.get(1, 0.0), numbers.get(2, 0.0)))
    return Summary(count, total, tuple(quantiles))
