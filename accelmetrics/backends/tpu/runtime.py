"""Client of the runtime's metrics service: the gRPC server that libtpu runs inside the program that holds the TPU.

Each program serves one port, ``localhost:8431`` unless ``TPU_RUNTIME_METRICS_PORTS`` says otherwise. All ports are asked in parallel, so
that a port that does not answer delays no other. A connection attempt may take 250 ms, a call 500 ms. A runtime that can list its metrics
is asked for the list first, and then only for metrics in it.

A table describes the fields that are read of the service's messages, and the protobuf package parses by this table.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from itertools import accumulate, repeat
from operator import add, mul
from typing import Any, NamedTuple

from accelmetrics.backends.contract import MOST_DEVICES, Clock
from accelmetrics.schemas.errors import Reason, Unavailable
from accelmetrics.schemas.protobuf import message_classes, parse_message

HOST = "localhost"
DEFAULT_PORT = 8431
PORTS_VARIABLE = "TPU_RUNTIME_METRICS_PORTS"
MAX_PORTS = 64
SERVICE = "/tpu.monitoring.runtime.RuntimeMetricService"

CONNECT_TIMEOUT = 0.25
CALL_TIMEOUT = 0.5
LIST_TIMEOUT = 0.25
LIST_INTERVAL = 30.0
"""Seconds after which a runtime lists its metrics again: some metrics appear only with the first transfer."""
LONGEST_DETAIL = 200

OPTIONS = (
    ("grpc.enable_http_proxy", 0),  # a proxy for outside traffic must not handle connections to this machine
    ("grpc.use_local_subchannel_pool", 1),  # a port that returns must not wait for the back-off of an older channel
    ("grpc.max_receive_message_length", 1024 * 1024),
)
REASONS: Mapping[str, Reason] = {
    "UNIMPLEMENTED": Reason.NOT_SUPPORTED,
    "NOT_FOUND": Reason.NOT_SUPPORTED,
    "INVALID_ARGUMENT": Reason.NOT_SUPPORTED,
    "DEADLINE_EXCEEDED": Reason.TIMED_OUT,
    "UNAVAILABLE": Reason.DRIVER_UNAVAILABLE,
    "PERMISSION_DENIED": Reason.NO_PERMISSION,
    "UNAUTHENTICATED": Reason.NO_PERMISSION,
}
"""Reason for each gRPC status; any other status is a ``driver_error``."""

MAX_ELEMENTS = MOST_DEVICES
"""Most entries of an answer, and most buckets of a distribution. No valid answer has more."""

PACKAGE = "accelmetrics.tpu"
# Strings are declared as bytes: a string that is not UTF-8 would make protobuf reject the whole message.
MESSAGES = """\
MetricRequest: bytes metric_name = 1
MetricResponse: TpuMetric metric = 1
TpuMetric: repeated Metric metrics = 3
Metric: Attribute attribute = 1; Timestamp timestamp = 2; \
Scalar gauge = 3; Scalar counter = 4; Distribution distribution = 5; Summary summary = 6
Attribute: bytes key = 1; AttributeValue value = 2
AttributeValue: bytes text = 1; bool flag = 2; int64 whole = 3; double number = 4; AttributeList list = 6
AttributeList: repeated Attribute attributes = 1
Timestamp: int64 seconds = 1
Scalar: double number = 1; int64 whole = 2; bytes text = 3; bool flag = 4
Distribution: int64 count = 1; double mean = 2; double max = 4; Buckets buckets = 6; repeated int64 counts = 7
Buckets: RegularBuckets exponential = 2; ExplicitBuckets explicit = 3; RegularBuckets linear = 4
RegularBuckets: int32 finite = 1; double step = 2; double first = 3
ExplicitBuckets: repeated double bounds = 1
Summary: int64 count = 1; double sum = 2; repeated Quantile quantiles = 3
Quantile: double share = 1; double value = 2
SupportedMetrics: repeated SupportedMetric metrics = 1
SupportedMetric: bytes name = 1"""
"""Fields of the service's messages that are read. Numbers and types are the service's. Names are never sent, so they are ours."""

Scalar = bool | int | float | str


class DistributionMessage(NamedTuple):
    """A histogram or a summary.

    Attributes:
        samples: Number of values.
        mean: Mean of the values.
        maximum: Largest value; 0 if not reported.
        bounds: Upper bounds of the buckets; one more bucket without a bound may follow. Empty if not reported.
        counts: Number of values in each bucket.
        quantiles: Pairs of share and value, if the runtime reports quantiles instead of buckets.
    """

    samples: int
    mean: float
    maximum: float = 0.0
    bounds: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()
    quantiles: tuple[tuple[float, float], ...] = ()


MetricMessage = tuple[Mapping[str, Scalar | None], int, Scalar | DistributionMessage | None]
"""A ``Metric``: its attributes by key (a device, a buffer size, the type and number of a core); its time in seconds since 1970, 0 if not
reported; and its number, text or distribution, None if it has none.
"""

MetricAnswer = list[MetricMessage] | Unavailable
"""A runtime's entries of one metric, or why there are none."""

PortAnswers = tuple[int, Unavailable | None, Mapping[str, MetricAnswer]]
"""The number of a port, why it gave no answers (None if the runtime answered), and its answers by the runtime's metric names."""


def metric_request(name: str) -> bytes:
    """Return an encoded ``MetricRequest``."""
    return bytes(message_classes(PACKAGE, MESSAGES)["MetricRequest"](metric_name=name.encode()).SerializeToString())


def metric_response(data: bytes) -> list[MetricMessage]:
    """Return the entries of an encoded ``MetricResponse``.

    Raises:
        ValueError: The data is no ``MetricResponse``.
    """
    response = _parsed("MetricResponse", data)
    if not response.HasField("metric"):
        raise ValueError("an answer without a metric")
    _bound(len(response.metric.metrics))
    found: list[MetricMessage] = []
    for metric in response.metric.metrics:
        attribute = metric.attribute
        attributes = attribute.value.list.attributes or ([attribute] if metric.HasField("attribute") else [])
        labels = {_text(each.key): _scalar(each.value) for each in attributes[:MAX_ELEMENTS]}
        found.append((labels, metric.timestamp.seconds, _measure(metric)))
    return found


def supported_metrics(data: bytes) -> frozenset[str]:
    """Return the names in a ``ListSupportedMetricsResponse``; empty if it cannot be parsed."""
    try:
        return frozenset(_text(metric.name) for metric in _parsed("SupportedMetrics", data).metrics)
    except ValueError:
        return frozenset()


def _parsed(name: str, data: bytes) -> Any:
    return parse_message(PACKAGE, MESSAGES, name, data)


def _bound(number: int) -> int:
    if not 0 <= number <= MAX_ELEMENTS:
        raise ValueError(f"{number} elements, at most {MAX_ELEMENTS} are read")
    return number


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _scalar(message: Any) -> Scalar | None:
    """Return the value of the field that is set. Only one should be set; otherwise the last one counts."""
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
            # Some runtimes omit the number of finite buckets. Then there are as many as counts.
            steps = repeat(regular.step, _bound(regular.finite) or len(counts))
            bounds = tuple(accumulate(steps, step, initial=regular.first))
    return DistributionMessage(message.count, message.mean, message.max, bounds, counts)


# Asking


def ports(text: str) -> tuple[int, ...]:
    """Return the ports to ask: the default port and the ports in the variable's value. Invalid words are ignored."""
    listed = [int(word) for word in text.replace(",", " ").split() if word.isascii() and word.isdecimal() and len(word) <= 5]
    return tuple(dict.fromkeys((DEFAULT_PORT, *(port for port in listed if 0 < port < 2**16))))[:MAX_PORTS]


class Runtimes:
    """All ports of this machine.

    Args:
        numbers: The ports.
        clock: Clock for the age of a list of metrics.

    Raises:
        ImportError: grpcio or protobuf is not installed.
    """

    def __init__(self, numbers: Sequence[int], clock: Clock) -> None:
        import grpc  # optional extra; the import takes 0.1 s, and the first channel starts threads

        message_classes(PACKAGE, MESSAGES)  # a missing package raises here, not within a reading
        self._clock = clock
        self._ports = [_Port(number, grpc) for number in numbers]

    def ask(self, names: Sequence[str], progress: list[Any]) -> list[PortAnswers]:
        """Ask every port for these metrics, all in parallel, and return the answers."""
        now = self._clock.monotonic()
        for port in self._ports:
            port.connect(now)
        for port in self._ports:
            port.ask(names, progress)
        return [port.take(progress) for port in self._ports]

    def close(self) -> None:
        """Close all connections."""
        for port in self._ports:
            port.disconnect()


class _Port:
    """A port, its connection, and the calls in progress."""

    def __init__(self, number: int, grpc: Any) -> None:
        self._number = number
        self._address = f"{HOST}:{number}"
        self._grpc = grpc
        self._channel: Any = None
        self._serves: frozenset[str] = frozenset()
        self._list_due = 0.0
        self._list: Any = None
        self._calls: dict[str, Any] = {}
        self._failure: Unavailable | None = None

    def connect(self, now: float) -> None:
        """Connect if a runtime listens, and start to ask for the list of metrics if that is due."""
        self._failure = self._connection_failure() if self._channel is None else None
        if self._failure is not None:
            return
        if self._channel is None:
            self._channel = self._grpc.insecure_channel(self._address, options=OPTIONS)
            # A new connection may lead to another program with other metrics.
            self._serves, self._list_due = frozenset(), 0.0
        if now >= self._list_due:
            self._list_due = now + LIST_INTERVAL
            self._list = self._channel.unary_unary(f"{SERVICE}/ListSupportedMetrics").future(b"", timeout=LIST_TIMEOUT)

    def disconnect(self) -> None:
        """Close the connection, if there is one."""
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    def _connection_failure(self) -> Unavailable | None:
        """Return why nothing listens on the port; None if something does."""
        try:
            # A plain connection fails at once. A gRPC channel reports a failure only after its own attempts.
            socket.create_connection((HOST, self._number), CONNECT_TIMEOUT).close()
        except ConnectionRefusedError:
            return Unavailable(Reason.NOT_IN_USE, f"no runtime on {self._address}")
        except TimeoutError:
            return Unavailable(Reason.TIMED_OUT, f"{self._address} accepts no connection")
        except OSError as error:
            return Unavailable(Reason.DRIVER_UNAVAILABLE, f"{self._address}: {error.strerror or error}")
        return None

    def ask(self, names: Sequence[str], progress: list[Any]) -> None:
        """Start the calls for all metrics that the runtime serves."""
        if self._list is not None:
            answer, self._list = self._result(self._list), None
            progress.append(self._number)
            # An older runtime cannot list its metrics, so it is asked for all. A runtime that does not answer is not asked again
            # in this poll.
            if isinstance(answer, bytes):
                self._serves = supported_metrics(answer)
            elif answer.reason == Reason.TIMED_OUT:
                self._failure = answer
        self._calls = {}
        if self._failure is None:
            call = self._channel.unary_unary(f"{SERVICE}/GetRuntimeMetric")
            served = [name for name in names if name in self._serves] or names
            self._calls = {name: call.future(metric_request(name), timeout=CALL_TIMEOUT) for name in served}

    def take(self, progress: list[Any]) -> PortAnswers:
        """Wait for the answers, at most until their deadlines, and return them."""
        answers: dict[str, MetricAnswer] = {}
        for name, call in self._calls.items():
            result = self._result(call)
            try:
                answers[name] = result if isinstance(result, Unavailable) else metric_response(result)
            except ValueError as error:
                answers[name] = Unavailable(Reason.PARSE_ERROR, f"{self._address} sent an invalid answer: {error}")
            progress.append(name)
        failures = [answer for answer in answers.values() if isinstance(answer, Unavailable)]
        if failures and len(failures) == len(answers) and len({failure.reason for failure in failures}) == 1:
            if failures[0].reason == Reason.DRIVER_UNAVAILABLE:
                # All calls failed: the program has ended, or another kind of server listens on the port.
                self.disconnect()
                return self._number, self._connection_failure() or failures[0], {}
            # No call returned in time, so this is the reason of the whole port.
            if failures[0].reason == Reason.TIMED_OUT:
                self._failure = failures[0]
        return self._number, self._failure, answers

    def _result(self, call: Any) -> bytes | Unavailable:
        try:
            error = call.exception()
        except self._grpc.FutureCancelledError:
            return Unavailable(Reason.DRIVER_ERROR, f"{self._address}: the call was cancelled")
        if error is None:
            return bytes(call.result())
        status = error.code().name
        detail = f"{self._address}: {status}: {error.details() or ''}".rstrip(": ")
        return Unavailable(REASONS.get(status, Reason.DRIVER_ERROR), detail[:LONGEST_DETAIL])
