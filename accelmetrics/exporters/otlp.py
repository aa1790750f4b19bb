"""Sends records to an OpenTelemetry collector, or to anything else that speaks OTLP: one request per record.

A request is sent and its answer read before the record counts as delivered. What the collector rejects of it, or refuses for
good, counts as failed, with the collector's words; a collector that is away, slow or busy is offered the record again.

Both ways, gRPC and HTTP, are built on the services and messages of ``opentelemetry-proto``, not on the SDK's exporters: those throw
the answer away. A collector that accepts the request and rejects its points is a success to them, so is a redirect to a log-in
page, and one that refuses for good looks like one that is away. What may be offered again is what the OTLP specification says.
"""

from __future__ import annotations

import gzip
import os
import platform
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from struct import (
    Struct,
    error as StructError,  # noqa: N812
)
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from accelmetrics._version import __version__
from accelmetrics.dialects.columns import MetricColumns, columns
from accelmetrics.dialects.contract import Number, Point
from accelmetrics.dialects.health import monitor_points
from accelmetrics.dialects.otel import SCHEMA_URL, UPDOWNCOUNTERS, described, finding_points, machine_points, status_points, step_points
from accelmetrics.exporters.fields import INT64, utf8
from accelmetrics.exporters.network import USER_AGENT, Address, PemFiles, Poster, RejectedError, Response, check_timeout, words
from accelmetrics.schemas.errors import InvalidOptionError, require
from accelmetrics.schemas.recent import most_recent
from accelmetrics.schemas.record import Record
from accelmetrics.schemas.selection import ALL, MetricChoice, MetricSelection
from accelmetrics.schemas.snapshot import Snapshot

if TYPE_CHECKING:
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest, ExportMetricsServiceResponse

DEFAULT_ENDPOINTS = {"grpc": "http://127.0.0.1:4317", "http": "http://127.0.0.1:4318"}
SERVICE = "opentelemetry.proto.collector.metrics.v1.metrics_service_pb2"
PROTOBUF = "application/x-protobuf"
PATH = "/v1/metrics"

PASSING_STATUSES = frozenset({429, 502, 503, 504})
PASSING_CODES = frozenset({"CANCELLED", "ABORTED", "OUT_OF_RANGE", "UNAVAILABLE", "DATA_LOSS"})
LATE = "DEADLINE_EXCEEDED"
FULL = "RESOURCE_EXHAUSTED"
"""Passing if the server says when to come again, else the request is too large for it."""
RETRY_INFO = b"google.rpc.RetryInfo"

CHANNEL_OPTIONS = (
    ("grpc.primary_user_agent", USER_AGENT),
    # Without a pool of its own, a channel shares the pause that another one to the same address may be in.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
)
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


WHOLE = frozenset({"cpu.logical_number", "process.pid"})
"""Attributes that the conventions have as integers."""

Labels = tuple[tuple[str, str], ...]
Series = tuple[str, Labels]

TIME = Struct("<Q")
LONGEST = 2**64 - 1
MARK = TIME.pack(LONGEST)
"""In place of a time: bytes that no text has, in UTF-8."""
RESOURCE_METRICS, SCOPE_METRICS = b"\x0a", b"\x12"
"""Tags of the first field of a request and the second of its resource's metrics."""
PACKED = 1
"""Level of gzip over HTTP: 6 takes three times as long for a sixth fewer bytes. gRPC packs at a level of its own."""


class OtlpExporter:
    """OTLP over gRPC or HTTP.

    Args:
        endpoint: ``http://HOST:PORT`` or ``https://HOST:PORT``; without one, this machine's collector. For HTTP a name, a
            password and a path too: ``/v1/metrics`` is added to one that does not end in it.
        protocol: ``grpc`` or ``http``.
        headers: ``name=value`` pairs with commas between them, as they stand.
        headers_file: A file with one ``name=value`` a line, as it stands: secrets belong here. Read before each record, so that
            it may be exchanged.
        insecure: For an endpoint that is only ``HOST:PORT``: whether to do without TLS.
        ca_file: Authorities to trust, PEM. None: the system's.
        client_cert_file: Our certificate, PEM, for a collector that asks for one.
        client_key_file: Its key, PEM.
        timeout: Seconds until a request has failed.
        compression: ``gzip`` or ``none``; ``auto`` packs what leaves this machine.
        metrics: Which metrics the records that it is given have: see :class:`~accelmetrics.schemas.selection.MetricSelection`.

    Raises:
        InvalidOptionError: An option cannot be used.
        MissingDependencyError: A package of the extra ``otlp`` is not installed.
    """

    name = "otlp"

    def __init__(  # noqa: PLR0913  # each is an option of the string form
        self,
        endpoint: str = "",
        *,
        protocol: Literal["grpc", "http"] = "grpc",
        headers: str = "",
        headers_file: str | None = None,
        insecure: bool | None = None,
        ca_file: str | None = None,
        client_cert_file: str | None = None,
        client_key_file: str | None = None,
        timeout: float = 5.0,
        compression: Literal["auto", "gzip", "none"] = "auto",
        metrics: MetricChoice = ALL,
    ) -> None:
        check_timeout("otlp", timeout)
        self.metrics = MetricSelection(metrics)
        self._headers = _headers(headers.split(","))
        self._headers_file = headers_file
        endpoint = endpoint or DEFAULT_ENDPOINTS[protocol]
        secure = _is_secure(endpoint, insecure)
        address = endpoint.rpartition("://")[2]
        files = (ca_file, client_cert_file, client_key_file)
        sender = _Grpc if protocol == "grpc" else _Http
        packed = compression == "gzip" or (compression == "auto" and not _is_here(address))
        self._sender = sender(address, secure, files, timeout, packed)
        self._builder = RequestBuilder()

    def open(self) -> None:
        self._sender.open()

    def export(self, record: Record) -> None:
        headers = self._headers
        if self._headers_file is not None:
            headers = {**headers, **_headers(Path(self._headers_file).read_text("utf-8").splitlines())}
        answer = self._sender.send(self._builder.serialised(record), headers)
        if answer is not None and answer.partial_success.rejected_data_points:
            rejected, said = answer.partial_success.rejected_data_points, answer.partial_success.error_message
            raise RejectedError(f"the collector rejected {rejected} data points: {words(said)}")

    def flush(self) -> None:
        """Return at once: each record is delivered when ``export`` returns."""

    def close(self) -> None:
        self._sender.close()


def _is_secure(endpoint: str, insecure: bool | None) -> bool:
    scheme, mark, _ = endpoint.partition("://")
    if not mark:
        return not insecure
    if scheme not in ("http", "https"):
        raise InvalidOptionError(f"otlp: the endpoint begins with {scheme}://, it must be http:// or https://")
    secure = scheme == "https"
    if insecure is not None and insecure == secure:
        raise InvalidOptionError(f"otlp: insecure={str(insecure).lower()} contradicts an endpoint that begins with {scheme}://")
    return secure


def _is_here(address: str) -> bool:
    """Return whether an address is loopback's: packing costs more than all else of a request, and saves nothing there."""
    try:
        return Address(urlsplit(f"//{address}").hostname or "", 0).is_loopback
    except ValueError:  # it cannot be read, which the sender says
        return False


def _headers(pairs: list[str]) -> dict[str, str]:
    """Name to value. A message about a bad one does not repeat its value."""
    found = {}
    for pair in filter(None, map(str.strip, pairs)):
        name, mark, value = (part.strip() for part in pair.partition("="))
        if not mark or not _HEADER_NAME.fullmatch(name):
            raise InvalidOptionError("otlp: a header must be written name=value")
        if not (value.isascii() and value.isprintable()):
            raise InvalidOptionError(f"otlp: the value of the header {name!r} must be printable ASCII")
        found[name.lower()] = value
    return found


class _Grpc:
    """Sends by gRPC. An address, which is shown in every error, has neither a password nor a path there."""

    def __init__(self, address: str, secure: bool, files: PemFiles, timeout: float, compress: bool) -> None:
        self._target = address.rstrip("/")
        if "@" in self._target:
            raise InvalidOptionError("otlp: gRPC takes no name and password in the endpoint: use headers_file, or protocol=http")
        if set(self._target) & set("/?#"):
            raise InvalidOptionError(f"otlp: gRPC takes no path, the endpoint {self._target!r} must be HOST:PORT: or use protocol=http")
        self._grpc = require("grpc", "otlp", "grpcio")
        self._service = require(SERVICE, "otlp", "opentelemetry-proto")
        self._files = files if secure else None
        self._timeout = timeout
        self._compression = self._grpc.Compression.Gzip if compress else self._grpc.Compression.NoCompression
        self._channel: Any = None

    def open(self) -> None:
        """Read the certificates. The connection is made by the first request."""
        options: dict[str, Any] = {"options": CHANNEL_OPTIONS, "compression": self._compression}
        if self._files is None:
            self._channel = self._grpc.insecure_channel(self._target, **options)
        else:
            authorities, certificate, key = (Path(file).read_bytes() if file else None for file in self._files)
            credentials = self._grpc.ssl_channel_credentials(authorities, key, certificate)
            self._channel = self._grpc.secure_channel(self._target, credentials, **options)

    def send(self, request: bytes, headers: Mapping[str, str]) -> ExportMetricsServiceResponse:
        """Send one request and return the answer.

        Raises:
            OSError: The collector is away, slow or busy: the request may be offered again.
            RejectedError: It refused the request for good.
        """
        if self._channel is None:
            self.open()
        try:
            # As the service's stub does, which takes a message and serialises it.
            method = f"/{self._service.DESCRIPTOR.services_by_name['MetricsService'].full_name}/Export"
            export = self._channel.unary_unary(method, response_deserializer=self._service.ExportMetricsServiceResponse.FromString)
            answer: ExportMetricsServiceResponse = export(request, timeout=self._timeout, metadata=tuple(headers.items()))
        except self._grpc.RpcError as error:
            code = error.code().name
            message = f"{self._target}: {code}: {words(error.details() or '')}"
            details = [value for name, value in error.trailing_metadata() or () if name == "grpc-status-details-bin"]
            says_when = any(RETRY_INFO in value for value in details)
            if not (code == LATE or code in PASSING_CODES or (code == FULL and says_when)):
                raise RejectedError(message) from None
            self.close()  # the next request connects anew, at once, instead of after the channel's own pause
            if code == LATE:
                raise TimeoutError(f"{self._target}: no answer within {self._timeout:g} s") from None
            raise ConnectionError(message) from None
        return answer

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None


class _Http:
    """Sends by HTTP, as protobuf."""

    def __init__(self, address: str, secure: bool, files: PemFiles, timeout: float, compress: bool) -> None:
        self._service = require(SERVICE, "otlp", "opentelemetry-proto")
        self._poster = Poster(f"{'https' if secure else 'http'}://{address}", timeout, files, "otlp")
        path = self._poster.url.path.rstrip("/")
        if not path.endswith(PATH):
            self._poster.url = self._poster.url.copy_with(path=f"{path}{PATH}")
        self._compress = compress

    def open(self) -> None:
        self._poster.open()

    def send(self, request: bytes, headers: Mapping[str, str]) -> ExportMetricsServiceResponse | None:
        """Send one request and return the answer, None for one without content.

        Raises:
            OSError: The collector is away, slow or busy: the request may be offered again.
            RejectedError: It refused the request for good.
        """
        about = {"content-type": PROTOBUF}
        if self._compress:
            request, about = gzip.compress(request, PACKED), {**about, "content-encoding": "gzip"}
        answer = self._poster.post(request, {**headers, **about})
        where = f"{self._poster.shown}: HTTP {answer.status}"
        if not 200 <= answer.status < 300:
            message = f"{where}: {words(self._said(answer))}"
            raise ConnectionError(message) if answer.status in PASSING_STATUSES else RejectedError(message)
        return self._parsed(answer, where) if answer.body else None

    def _parsed(self, answer: Response, where: str) -> ExportMetricsServiceResponse:
        from google.protobuf import json_format
        from google.protobuf.message import DecodeError

        response: ExportMetricsServiceResponse = self._service.ExportMetricsServiceResponse()
        try:
            if answer.kind.endswith("json"):
                json_format.Parse(answer.body, response, ignore_unknown_fields=True)
            else:
                response.ParseFromString(answer.body)
        except (DecodeError, json_format.ParseError, UnicodeDecodeError):
            raise RejectedError(f"{where}, but the answer is not OTLP: {words(answer.text)}") from None
        return response

    def _said(self, answer: Response) -> str:
        """Return the server's words: a ``google.rpc.Status`` where it keeps to the specification, else whatever the body is."""
        from google.protobuf.message import DecodeError

        if answer.kind != PROTOBUF:
            return answer.text
        status = self._service.ExportMetricsPartialSuccess()  # the same two fields on the wire: a number, then the message
        try:
            status.ParseFromString(answer.body)
        except DecodeError:
            return ""
        return str(status.error_message)

    def close(self) -> None:
        self._poster.close()


class RequestBuilder:
    """Makes requests, and remembers since when each counter has been counting.

    That is unknown for a counter that some driver has kept since it was loaded. OTLP's form for it: the first point of a series
    starts at its own time, later ones carry that start, and a value below the last one (the driver was reset) starts anew.

    Attributes:
        templates: How many were made.
    """

    def __init__(self) -> None:
        from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2
        from opentelemetry.proto.common.v1 import common_pb2
        from opentelemetry.proto.metrics.v1 import metrics_pb2

        self._service: Any = metrics_service_pb2
        self._common: Any = common_pb2
        self._metrics: Any = metrics_pb2
        self._counters: dict[Series, tuple[int, Number]] = {}
        self._encoded = lru_cache(maxsize=8192)(self._encode)  # labels hardly ever change: half the time of a request
        self._columns = MetricColumns(described, of_one_type=True)
        self._templates: list[MachineTemplate] = []
        self._template: MachineTemplate | None = None  # which knows more of counters than we do
        self.templates = 0

    def build(self, record: Record) -> ExportMetricsServiceRequest:
        """Build the request for one record. Building it again, to offer it again, gives the same."""
        self._end_template()
        request: ExportMetricsServiceRequest = self._service.ExportMetricsServiceRequest()
        resource = request.resource_metrics.add(resource=self._resource(record), schema_url=SCHEMA_URL)
        scope = resource.scope_metrics.add(scope=self._scope(), schema_url=SCHEMA_URL)
        metrics: dict[str, Any] = {}
        self._add(scope, metrics, machine_points(record.snapshot), record.snapshot.time_ns)
        self._add_rest(scope, metrics, record)
        return request

    def serialised(self, record: Record) -> bytes:
        """Return what :meth:`build` gives, serialised. What the machine says is written once while its series stay the same."""
        snapshot = record.snapshot
        parts = self._columns.of(snapshot), columns(status_points(snapshot))
        shape, numbers = [part.shape for part in parts], [*parts[0].numbers, *parts[1].numbers]
        if self._template is None or self._template.shape != shape:
            self._end_template()
            self._template = most_recent(self._templates, lambda one: one.shape == shape, lambda: self._made(shape, snapshot))
            self._template.resume(self._counters)
        rest, names = self._metrics.ScopeMetrics(), dict[str, Any]()
        self._add_rest(rest, names, record)
        machine = self._template.filled(numbers, snapshot.time_ns)
        if machine is None or not self._template.names.isdisjoint(names):
            return bytes(self.build(record).SerializeToString())
        # The same message in pieces: fields stand in the order of their numbers, those of a list one after the other.
        scope = (self._metrics.ScopeMetrics(scope=self._scope()), rest, self._metrics.ScopeMetrics(schema_url=SCHEMA_URL))
        head, logged, tail = (piece.SerializeToString() for piece in scope)
        metrics = _nested(SCOPE_METRICS, head, machine, logged, tail)
        resource = self._metrics.ResourceMetrics(resource=self._resource(record)).SerializeToString()
        return _nested(RESOURCE_METRICS, resource, metrics, self._metrics.ResourceMetrics(schema_url=SCHEMA_URL).SerializeToString())

    def _made(self, shape: Sequence[object], snapshot: Snapshot) -> MachineTemplate:
        """Make the template of a reading, which counts as seen by then."""
        points = list(machine_points(snapshot))
        scope = self._metrics.ScopeMetrics()
        self._add(scope, {}, points, snapshot.time_ns)
        self.templates += 1
        return MachineTemplate(shape, points, scope, self._counters, snapshot.time_ns)

    def _end_template(self) -> None:
        if self._template is not None:
            self._counters.update(self._template.counters())
            self._template = None

    def _add_rest(self, scope: Any, metrics: dict[str, Any], record: Record) -> None:
        """Add what the machine does not say."""
        self._add(scope, metrics, finding_points(record), record.snapshot.time_ns)
        for step in record.steps:
            self._add(scope, metrics, step_points(step), step.time_ns)
        if record.monitor is not None:
            self._add(scope, metrics, monitor_points(record.monitor, otel=True), record.snapshot.time_ns)

    def _add(self, scope: Any, metrics: dict[str, Any], points: Iterable[Point], time_ns: int) -> None:
        for point in points:
            metric = metrics.get(point.name)
            if metric is None:
                metric = metrics[point.name] = scope.metrics.add(name=point.name, unit=point.unit, description=point.meaning)
            labels = tuple(point.labels.items())
            if _is_sum(point):
                metric.sum.aggregation_temporality = self._metrics.AGGREGATION_TEMPORALITY_CUMULATIVE
                metric.sum.is_monotonic = point.kind == "counter"
                start, last = self._counters.get((point.name, labels), (time_ns, point.value))
                if point.kind == "counter" and point.value < last:
                    start = time_ns
                self._counters[point.name, labels] = (start, point.value)
                added = metric.sum.data_points.add(start_time_unix_nano=start)
            else:
                added = metric.gauge.data_points.add()
            added.time_unix_nano = time_ns
            added.attributes.extend(self._encoded(labels))
            if _is_whole(point.value):
                added.as_int = point.value
            else:
                added.as_double = point.value

    def _scope(self) -> Any:
        return self._common.InstrumentationScope(name="accelmetrics", version=__version__)

    def _resource(self, record: Record) -> Any:
        from opentelemetry.proto.resource.v1 import resource_pb2

        return resource_pb2.Resource(attributes=self._encode(tuple(_resource(record).items())))

    def _encode(self, labels: Labels) -> list[Any]:
        found = []
        for name, value in labels:
            whole = name in WHOLE and value.isdecimal()
            word = self._common.AnyValue(int_value=int(value)) if whole else self._common.AnyValue(string_value=utf8(value))
            found.append(self._common.KeyValue(key=utf8(name), value=word))
        return found


class MachineTemplate:
    """The serialised metrics of a machine, in which times, numbers and starts of counters are replaced.

    The message library writes them, once with marks for times and starts; the number of a point follows its time. That both are the same
    is tried on the record that it is made of.

    Args:
        shape: What it is kept for.
        points: The points, with the numbers of one record.
        metrics: The message of these points, which is spent.
        counters: Since when each counter counts, and its last number.
        time_ns: The time of that record.

    Attributes:
        shape: What it is kept for.
        names: The metrics' names.
    """

    def __init__(
        self, shape: Sequence[object], points: Sequence[Point], metrics: Any, counters: Mapping[Series, tuple[int, Number]], time_ns: int
    ) -> None:
        by_name: dict[str, list[int]] = {}
        for place, point in enumerate(points):
            by_name.setdefault(point.name, []).append(place)
        self.shape = shape
        self.names = by_name.keys()
        self._order = [place for places in by_name.values() for place in places]
        ordered = [points[place] for place in self._order]
        self._series: list[Series | None] = [(point.name, tuple(point.labels.items())) if _is_sum(point) else None for point in ordered]
        self._starts = [counters[series][0] if series else 0 for series in self._series]
        self._rising = [place for place, point in enumerate(ordered) if point.kind == "counter"]
        self._last: list[Number] = [point.value for point in ordered]
        self._types = [*map(type, self._last)]
        self._numbers = Struct("<" + "".join("q" if _is_whole(number) else "d" for number in self._last))
        self._eights = Struct("8s" * len(ordered))
        whole = metrics.SerializeToString()
        self._parts = self._split(_marked(metrics))
        sums = [series for series in self._series if series]
        # Of a series that is there twice the second point follows the first; a whole number beyond 64 bits changes its type when it falls.
        self._fits = len(set(sums)) == len(sums) and all(isinstance(number, float) or _is_whole(number) for number in self._last)
        self._fits = self._fits and self.filled([point.value for point in points], time_ns) == whole

    def _split(self, marked: bytes) -> list[bytes]:
        """Return six parts of each point, and what follows the last: before it, its start, between both, its time, a tag, its number."""
        pieces, parts = iter(marked.split(MARK)), list[bytes]()
        before = next(pieces)
        for series, start in zip(self._series, self._starts, strict=True):
            parts += (before, TIME.pack(start), next(pieces)) if series else (before, b"", b"")
            after = next(pieces)
            parts += (b"", after[:1], b"")
            before = after[9:]
        return [*parts, before]

    def filled(self, numbers: Sequence[Number], time_ns: int) -> bytes | None:
        """Return the metrics with these numbers of that time; None where the message library would lay them out in another way."""
        ordered = [numbers[place] for place in self._order]
        if not self._fits or not 0 < time_ns < LONGEST or [*map(type, ordered)] != self._types:
            return None
        try:
            packed = self._numbers.pack(*ordered)
        except StructError:  # beyond 64 bits
            return None
        time, parts = TIME.pack(time_ns), self._parts
        for place in self._rising:
            if ordered[place] < self._last[place]:
                self._starts[place], parts[6 * place + 1] = time_ns, time
        self._last = ordered
        parts[3::6] = [time] * len(ordered)
        parts[5::6] = self._eights.unpack(packed)
        return b"".join(parts)

    def resume(self, counters: Mapping[Series, tuple[int, Number]]) -> None:
        """Take over what is known of counters by now."""
        for place, series in enumerate(self._series):
            if series:
                self._starts[place], self._last[place] = counters[series]
                self._parts[6 * place + 1] = TIME.pack(self._starts[place])
                self._fits = self._fits and self._starts[place] > 0  # a time of 0 has no bytes

    def counters(self) -> Iterator[tuple[Series, tuple[int, Number]]]:
        """Give since when each series counts, and its last number."""
        for series, start, last in zip(self._series, self._starts, self._last, strict=True):
            if series:
                yield series, (start, last)


def _is_sum(point: Point) -> bool:
    return point.kind == "counter" or point.name in UPDOWNCOUNTERS


def _is_whole(number: Number) -> bool:
    return isinstance(number, int) and -INT64 <= number < INT64


def _marked(metrics: Any) -> bytes:
    """Serialise metrics with marks for their times and starts, and without numbers, which could look like marks."""
    for metric in metrics.metrics:
        form = metric.WhichOneof("data")
        for point in getattr(metric, form).data_points:
            point.time_unix_nano = LONGEST
            if form == "sum":
                point.start_time_unix_nano = LONGEST
            setattr(point, point.WhichOneof("value"), 0)
    return bytes(metrics.SerializeToString())


def _nested(tag: bytes, *pieces: bytes) -> bytes:
    """Return a message as a field of another one: the field's tag, its length by seven bits a byte, itself."""
    length, head = sum(map(len, pieces)), bytearray(tag)
    while length > 127:
        head.append(length & 127 | 128)
        length >>= 7
    head.append(length)
    return b"".join((head, *pieces))


def _resource(record: Record) -> dict[str, str]:
    """Collect the attributes of the sending process; a label of the record goes before what is found here."""
    host, pid = record.snapshot.hostname, str(os.getpid())
    found = {
        "service.name": "accelmetrics",
        "service.version": __version__,
        "service.instance.id": f"{host}:{pid}",
        "host.name": host,
        "os.type": platform.system().lower(),
        "process.pid": pid,
    }
    return {**found, **record.labels}
