"""The messages of ``tpu.monitoring.runtime.RuntimeMetricService``, as far as they are read.

Their fields stand in a table, by which the protobuf package reads them. Strings are bytes here, so that one that is no UTF-8 costs
nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from itertools import accumulate, repeat
from operator import add, mul
from typing import Any, NamedTuple

from accelmetrics.backends.contract import MOST_DEVICES
from accelmetrics.backends.kit import protobuf

MAX_ELEMENTS = MOST_DEVICES
"""Entries of an answer, and buckets of a distribution: more than any honest answer holds."""

PACKAGE = "accelmetrics.tpu"
SCHEMA = {
    "MetricRequest": "bytes metric_name = 1",
    "MetricResponse": "TpuMetric metric = 1",
    "TpuMetric": "repeated Metric metrics = 3",
    "Metric": (
        "Attribute attribute = 1; Timestamp timestamp = 2;"
        "Scalar gauge = 3; Scalar counter = 4; Distribution distribution = 5; Summary summary = 6"
    ),
    "Attribute": "bytes key = 1; AttributeValue value = 2",
    "AttributeValue": "bytes text = 1; bool flag = 2; int64 whole = 3; double number = 4; AttributeList list = 6",
    "AttributeList": "repeated Attribute attributes = 1",
    "Timestamp": "int64 seconds = 1",
    "Scalar": "double number = 1; int64 whole = 2; bytes text = 3; bool flag = 4",
    "Distribution": "int64 count = 1; double mean = 2; double max = 4; Buckets buckets = 6; repeated int64 counts = 7",
    "Buckets": "RegularBuckets exponential = 2; ExplicitBuckets explicit = 3; RegularBuckets linear = 4",
    "RegularBuckets": "int32 finite = 1; double step = 2; double first = 3",
    "ExplicitBuckets": "repeated double bounds = 1",
    "Summary": "int64 count = 1; double sum = 2; repeated Quantile quantiles = 3",
    "Quantile": "double share = 1; double value = 2",
    "SupportedMetrics": "repeated SupportedMetric metrics = 1",
    "SupportedMetric": "bytes name = 1",
}
"""By message, its fields. Numbers and types are the service's; names, which are not sent, are ours."""

Scalar = bool | int | float | str


class DistributionMessage(NamedTuple):
    """A histogram or a summary.

    Attributes:
        samples: How many values.
        mean: Their mean.
        maximum: The largest of them; 0 when not reported.
        bounds: Upper bounds of the buckets, of which one more may follow without a bound; empty when not reported.
        counts: Values in each bucket.
        quantiles: Values by their share, where the runtime reports those and no buckets.
    """

    samples: int
    mean: float
    maximum: float = 0.0
    bounds: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()
    quantiles: tuple[tuple[float, float], ...] = ()


MetricMessage = tuple[Mapping[str, Scalar | None], int, Scalar | DistributionMessage | None]
"""One ``Metric``: by key, what it is about (a device, a size of buffers, the type and number of a core); when it was taken, in seconds
since 1970, 0 when not reported; and the number, text or distribution, None when it has none."""


@lru_cache(maxsize=1)
def message_classes() -> dict[str, Any]:
    """Build the protobuf package's classes for the messages of :data:`SCHEMA`.

    Raises:
        ImportError: The package is not installed.
    """
    return protobuf.message_classes(PACKAGE, SCHEMA)


def metric_request(name: str) -> bytes:
    """Write a ``MetricRequest``."""
    return bytes(message_classes()["MetricRequest"](metric_name=name.encode()).SerializeToString())


def metric_response(data: bytes) -> list[MetricMessage]:
    """Read the entries of a ``MetricResponse``.

    Raises:
        ValueError: It is none.
    """
    response = _parsed("MetricResponse", data)
    if not response.HasField("metric"):
        raise ValueError("an answer without a metric")
    _bound(len(response.metric.metrics))
    found: list[MetricMessage] = []
    for metric in response.metric.metrics:
        attribute = metric.attribute
        attributes = attribute.value.list.attributes or ([attribute] if metric.HasField("attribute") else [])
        about = {_text(each.key): _scalar(each.value) for each in attributes[:MAX_ELEMENTS]}
        found.append((about, metric.timestamp.seconds, _measure(metric)))
    return found


def supported_metrics(data: bytes) -> frozenset[str]:
    """Read the names in a ``ListSupportedMetricsResponse``; none where it is not understood."""
    try:
        return frozenset(_text(metric.name) for metric in _parsed("SupportedMetrics", data).metrics)
    except ValueError:
        return frozenset()


def _parsed(name: str, data: bytes) -> Any:
    return protobuf.parse_message(message_classes()[name], data)


def _bound(number: int) -> int:
    if not 0 <= number <= MAX_ELEMENTS:
        raise ValueError(f"{number} elements, at most {MAX_ELEMENTS} are read")
    return number


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _scalar(message: Any) -> Scalar | None:
    """Return the field that is set; the last where several are, of which only one should be there."""
    found: Scalar | bytes | None = None
    for _, value in message.ListFields():
        found = value if isinstance(value, (bool, int, float, bytes)) else None
    return _text(found) if isinstance(found, bytes) else found


def _measure(metric: Any) -> Scalar | DistributionMessage | None:
    if metric.HasField("distribution"):
        return _distribution(metric.distribution)
    if metric.HasField("summary"):
        summary = metric.summary
        mean = summary.sum / summary.count if summary.count > 0 else 0.0
        return DistributionMessage(summary.count, mean, quantiles=tuple((each.share, each.value) for each in summary.quantiles))
    return _scalar(metric.gauge if metric.HasField("gauge") else metric.counter)


def _distribution(message: Any) -> DistributionMessage:
    counts = tuple(message.counts[: _bound(len(message.counts))])
    if message.count < 0 or min(counts, default=0) < 0:
        raise ValueError("a distribution with a negative count")
    buckets = message.buckets
    bounds: tuple[float, ...] = tuple(buckets.explicit.bounds[:MAX_ELEMENTS])
    for regular, step in ((buckets.exponential, mul), (buckets.linear, add)):
        if regular.HasField("step") or regular.HasField("first"):
            # As many finite buckets as there are counts where their number is not reported.
            steps = repeat(regular.step, _bound(regular.finite) or len(counts))
            bounds = tuple(accumulate(steps, step, initial=regular.first))
    return DistributionMessage(message.count, message.mean, message.max, bounds, counts)
