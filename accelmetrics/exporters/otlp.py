"""Sends records to an OpenTelemetry collector or another receiver of OTLP: one request per record.

A record counts as delivered when the collector's answer has been read. Data points that the collector rejects, and requests that it
refuses permanently, count as failed, with the collector's message. If the collector is unreachable, slow or busy, the record is retried.

gRPC and HTTP both use the services and messages of ``opentelemetry-proto`` instead of the SDK's exporters, because these discard the
answer. To them, a collector that accepts the request and rejects its points is a success, and so is a redirect to a log-in page; a
permanent refusal looks like an unreachable collector. The OTLP specification determines which errors are retried.
"""

from __future__ import annotations

import gzip
import platform
import re
import sys
from collections.abc import Mapping, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from accelmetrics._version import __version__
from accelmetrics.dialects.contract import Number, Point
from accelmetrics.dialects.health import jobs, monitor_points
from accelmetrics.dialects.otel import PER_LINK, SCHEMA_URL, UPDOWNCOUNTERS, described, finding_points, status_points, step_points
from accelmetrics.dialects.prometheus import PointColumns, metric_columns
from accelmetrics.exporters.fields import INT64, utf8
from accelmetrics.exporters.network import USER_AGENT, Address, RejectedError, check_timeout
from accelmetrics.schemas.catalogue import edition
from accelmetrics.schemas.errors import InvalidOptionError, require
from accelmetrics.schemas.http_client import HttpClient, PemFiles, words
from accelmetrics.schemas.record import Record
from accelmetrics.schemas.selection import ALL, MetricChoice, MetricSelection
from accelmetrics.schemas.snapshot import Snapshot

if TYPE_CHECKING:
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest, ExportMetricsServiceResponse

SERVICE = "opentelemetry.proto.collector.metrics.v1.metrics_service_pb2"
PROTOBUF = "application/x-protobuf"
PATH = "/v1/metrics"

PASSING_STATUSES = frozenset({429, 502, 503, 504})
PASSING_CODES = frozenset({"CANCELLED", "ABORTED", "OUT_OF_RANGE", "UNAVAILABLE", "DATA_LOSS"})
LATE = "DEADLINE_EXCEEDED"

Series = tuple[str, tuple[tuple[str, str], ...]]


class OtlpExporter:
    """Sends OTLP over gRPC or HTTP.

    Args:
        endpoint: ``http://HOST:PORT`` or ``https://HOST:PORT``; by default this machine's collector. For HTTP it may contain a user name,
            a password and a path. ``/v1/metrics`` is appended to a path that does not end in it.
        protocol: ``grpc`` or ``http``.
        headers: Comma-separated ``name=value`` pairs, without escapes.
        headers_file: File with a ``name=value`` pair per line, without escapes. Secrets belong here. It is read before each record, so it
            may be replaced at any time.
        insecure: Whether to connect without TLS to an endpoint that is only ``HOST:PORT``.
        ca_file: PEM file with the certificate authorities to trust. None uses the system's.
        client_cert_file: PEM file with the client's certificate, for a collector that requires one.
        client_key_file: PEM file with its private key.
        timeout: Seconds after which a request fails.
        compression: ``gzip`` or ``none``; ``auto`` compresses unless the endpoint is a loopback address.
        per_link: Also send the points of each link between devices, not only their sum.
        metrics: Metrics to export: see :class:`~accelmetrics.schemas.selection.MetricSelection`.

    Raises:
        InvalidOptionError: An option has an invalid value.
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
        per_link: bool = False,
        metrics: MetricChoice = ALL,
    ) -> None:
        check_timeout("otlp", timeout)
        self.metrics = MetricSelection(metrics)
        self._headers = _headers(headers.split(","))
        self._headers_file = headers_file
        scheme, mark, address = (endpoint or f"http://127.0.0.1:{4317 if protocol == 'grpc' else 4318}").rpartition("://")
        if mark and scheme not in ("http", "https"):
            raise InvalidOptionError(f"otlp: the endpoint begins with {scheme}:// instead of http:// or https://")
        secure = scheme == "https" if mark else not insecure
        if mark and insecure is not None and insecure == secure:
            raise InvalidOptionError(f"otlp: insecure={str(insecure).lower()} contradicts an endpoint that begins with {scheme}://")
        files = (ca_file, client_cert_file, client_key_file)
        packed = compression == "gzip"
        if compression == "auto":  # compression costs more than the rest of a request, and saves nothing within this machine
            try:
                packed = not Address(urlsplit(f"//{address}").hostname or "", 0).is_loopback
            except ValueError:  # an invalid address; the sender reports it
                packed = True
        self._sender = (_Grpc if protocol == "grpc" else _Http)(address, secure, files, timeout, packed)
        self._builder = RequestBuilder(per_link=per_link)

    def open(self) -> None:
        self._sender.open()

    def export(self, record: Record) -> None:
        headers = self._headers
        if self._headers_file is not None:
            headers = {**headers, **_headers(Path(self._headers_file).read_text("utf-8").splitlines())}
        answer = self._sender.send(self._builder.build(record).SerializeToString(), headers)
        if answer is not None and (rejected := answer.partial_success.rejected_data_points):
            raise RejectedError(f"the collector rejected {rejected} data points: {words(answer.partial_success.error_message)}")

    def flush(self) -> None:
        """Do nothing: each record is delivered when ``export`` returns."""

    def close(self) -> None:
        self._sender.close()


def _headers(pairs: list[str]) -> dict[str, str]:
    """Parse ``name=value`` pairs. Names are returned in lower case.

    Raises:
        InvalidOptionError: A pair is invalid.
    """
    # Messages do not repeat a value: it may be secret.
    found = {}
    for pair in filter(None, map(str.strip, pairs)):
        name, mark, value = (part.strip() for part in pair.partition("="))
        if not mark or not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", name):
            raise InvalidOptionError("otlp: a header must be written name=value")
        if not (value.isascii() and value.isprintable()):
            raise InvalidOptionError(f"otlp: the value of the header {name!r} must be printable ASCII")
        found[name.lower()] = value
    return found


class _Grpc:
    """Sends over gRPC. Its address has no password or path, so errors may show it."""

    def __init__(self, address: str, secure: bool, files: PemFiles, timeout: float, compress: bool) -> None:
        self._target = address.rstrip("/")
        if "@" in self._target:
            raise InvalidOptionError("otlp: a gRPC endpoint cannot contain a name and password: use headers_file, or protocol=http")
        if set(self._target) & set("/?#"):
            raise InvalidOptionError(
                f"otlp: a gRPC endpoint cannot contain a path: write HOST:PORT instead of {self._target!r}, or use protocol=http"
            )
        self._grpc = require("grpc", "otlp", "grpcio")
        self._service = require(SERVICE, "otlp", "opentelemetry-proto")
        self._files = files if secure else None
        self._timeout = timeout
        self._compression = self._grpc.Compression.Gzip if compress else self._grpc.Compression.NoCompression
        self._channel: Any = None

    def open(self) -> None:
        """Read the certificates. The first request opens the connection."""
        channel_options = (
            ("grpc.primary_user_agent", USER_AGENT),
            # A channel that shares the global pool would also share the back-off of other channels to the same address.
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.enable_retries", 0),
        )
        options: dict[str, Any] = {"options": channel_options, "compression": self._compression}
        if self._files is None:
            self._channel = self._grpc.insecure_channel(self._target, **options)
        else:
            authorities, certificate, key = (Path(file).read_bytes() if file else None for file in self._files)
            credentials = self._grpc.ssl_channel_credentials(authorities, key, certificate)
            self._channel = self._grpc.secure_channel(self._target, credentials, **options)

    def send(self, request: bytes, headers: Mapping[str, str]) -> ExportMetricsServiceResponse:
        """Send one request and return the answer.

        Raises:
            OSError: The collector is unreachable, slow or busy: the request may be retried.
            RejectedError: It refused the request permanently.
        """
        if self._channel is None:
            self.open()
        try:
            # The generated stub does the same but takes a message. The request is already serialised.
            export = self._channel.unary_unary(
                f"/{self._service.DESCRIPTOR.services_by_name['MetricsService'].full_name}/Export",
                response_deserializer=self._service.ExportMetricsServiceResponse.FromString,
            )
            answer: ExportMetricsServiceResponse = export(request, timeout=self._timeout, metadata=tuple(headers.items()))
        except self._grpc.RpcError as error:
            code = error.code().name
            message = f"{self._target}: {code}: {words(error.details() or '')}"
            # RESOURCE_EXHAUSTED is temporary if the server says when to retry. Otherwise the request is too large for it.
            details = (value for name, value in error.trailing_metadata() or () if name == "grpc-status-details-bin")
            retry_later = code == "RESOURCE_EXHAUSTED" and any(b"google.rpc.RetryInfo" in value for value in details)
            if not (code == LATE or code in PASSING_CODES or retry_later):
                raise RejectedError(message) from None
            self.close()  # the next request then reconnects at once, instead of after the channel's back-off
            if code == LATE:
                raise TimeoutError(f"{self._target}: no answer within {self._timeout:g} s") from None
            raise ConnectionError(message) from None
        return answer

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None


class _Http(HttpClient):
    """Sends protobuf over HTTP."""

    def __init__(self, address: str, secure: bool, files: PemFiles, timeout: float, compress: bool) -> None:
        self._service = require(SERVICE, "otlp", "opentelemetry-proto")
        super().__init__(f"{'https' if secure else 'http'}://{address}", timeout, "otlp", {"user-agent": USER_AGENT}, files)
        path = self.url.path.rstrip("/")
        if not path.endswith(PATH):
            self.url = self.url.copy_with(path=f"{path}{PATH}")
        self._compress = compress

    def send(self, request: bytes, headers: Mapping[str, str]) -> ExportMetricsServiceResponse | None:
        """Send one request and return the answer; None for an empty answer.

        Raises:
            OSError: The collector is unreachable, slow or busy: the request may be retried.
            RejectedError: It refused the request permanently.
        """
        from google.protobuf import json_format
        from google.protobuf.message import DecodeError

        about = {"content-type": PROTOBUF}
        if self._compress:
            # Level 6 takes three times as long as level 1 and saves a sixth of the bytes. gRPC chooses its own level.
            request, about = gzip.compress(request, 1), {**about, "content-encoding": "gzip"}
        status, kind, body = self.ask("POST", request, {**headers, **about})
        where = f"{self.shown}: HTTP {status}"
        if not 200 <= status < 300:
            detail: str | bytes = body
            if kind == PROTOBUF:  # a google.rpc.Status; ExportMetricsPartialSuccess has the same fields on the wire: a number and a text
                partial = self._service.ExportMetricsPartialSuccess()
                try:
                    partial.ParseFromString(body)
                    detail = str(partial.error_message)
                except DecodeError:
                    detail = ""
            message = f"{where}: {words(detail)}"
            raise ConnectionError(message) if status in PASSING_STATUSES else RejectedError(message)
        if not body:
            return None
        response: ExportMetricsServiceResponse = self._service.ExportMetricsServiceResponse()
        try:
            if kind.endswith("json"):
                json_format.Parse(body, response, ignore_unknown_fields=True)
            else:
                response.ParseFromString(body)
        except (DecodeError, json_format.ParseError, UnicodeDecodeError):
            raise RejectedError(f"{where}, but the answer is not OTLP: {words(body)}") from None
        return response


class RequestBuilder:
    """Builds requests, and keeps the start time of each counter.

    A driver's counter began at an unknown time. OTLP's convention for this: the first point of a series has its own time as the start,
    later points keep this start, and a value below the last one (a reset of the driver) sets a new start.

    Args:
        per_link: Also build the points of each link between devices, not only their sum.
    """

    def __init__(self, *, per_link: bool = False) -> None:
        from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2
        from opentelemetry.proto.common.v1 import common_pb2
        from opentelemetry.proto.metrics.v1 import metrics_pb2

        self._service: Any = metrics_service_pb2
        self._common: Any = common_pb2
        self._metrics: Any = metrics_pb2
        self._counters: dict[Series, tuple[int, Number]] = {}
        self._left_out = () if per_link else (PER_LINK,)
        self._mark = object()  # key of this builder's requests in headers, which other builders share

    def build(self, record: Record) -> ExportMetricsServiceRequest:
        """Build the request for a record. It is valid until the next call. Building it again for a retry gives an equal request."""
        snapshot = record.snapshot
        request, names, targets = snapshot.header.kept((self._mark, edition(), *record.labels.items()), lambda: self._machine(record))
        numbers = [*self._columns(snapshot).numbers, *(point.value for point in status_points(snapshot))]
        for (target, series, rises), number in zip(targets, numbers, strict=True):
            self._set(target, series, rises, number, snapshot.time_ns)
        # The kept request still has the findings, steps and counters of the last record.
        del request.resource_metrics[0].scope_metrics[0].metrics[len(names) :]
        rest = [(point, snapshot.time_ns) for point in finding_points(record)]
        run = {"accelmetrics.run_id": record.labels["run_id"]} if "run_id" in record.labels else {}
        rest += [(point._replace(labels={**point.labels, **run}), step.time_ns) for step in record.steps for point in step_points(step)]
        if record.monitor is not None:
            rest += [(point, snapshot.time_ns) for point in monitor_points(record.monitor, otel=True)]
        known = dict[str, Any]()
        if not names.isdisjoint(point.name for point, _ in rest):
            # A logged number has the name of a metric. All points of a name must be in one metric, so they are added to a copy.
            machine, request = request, self._service.ExportMetricsServiceRequest()
            request.CopyFrom(machine)
            known = {metric.name: metric for metric in request.resource_metrics[0].scope_metrics[0].metrics}
        scope = request.resource_metrics[0].scope_metrics[0]
        for point, time_ns in rest:
            self._set(self._target(scope, known, point), _series(point), point.kind == "counter", point.value, time_ns)
        return request

    def _columns(self, snapshot: Snapshot) -> PointColumns:
        return metric_columns(snapshot, described, of_one_type=True, left_out=self._left_out)

    def _machine(self, record: Record) -> tuple[ExportMetricsServiceRequest, Set[str], list[tuple[Any, Series | None, bool]]]:
        """Build the request of a record's machine. Numbers, times and start times are set later, for each reading.

        Returns:
            The request, the names of its metrics, and its data points in the order of the numbers. Each data point comes with the key of
            its start time and with whether it is monotonic.
        """
        from opentelemetry.proto.resource.v1 import resource_pb2

        request = self._service.ExportMetricsServiceRequest()
        attributes = self._encode(_resource(record))
        resource = request.resource_metrics.add(resource=resource_pb2.Resource(attributes=attributes), schema_url=SCHEMA_URL)
        scope = self._common.InstrumentationScope(name="accelmetrics", version=__version__)
        metrics: dict[str, Any] = {}
        added = resource.scope_metrics.add(scope=scope, schema_url=SCHEMA_URL)
        points = (*self._columns(record.snapshot).points, *status_points(record.snapshot))
        targets = [(self._target(added, metrics, point), _series(point), point.kind == "counter") for point in points]
        return request, metrics.keys(), targets

    def _target(self, scope: Any, metrics: dict[str, Any], point: Point) -> Any:
        """Add a data point without a number to the metric of its name."""
        metric = metrics.get(point.name)
        if metric is None:
            metric = metrics[point.name] = scope.metrics.add(name=point.name, unit=point.unit, description=point.meaning)
        if _is_sum(point):
            metric.sum.aggregation_temporality = self._metrics.AGGREGATION_TEMPORALITY_CUMULATIVE
            metric.sum.is_monotonic = point.kind == "counter"
        added = (metric.sum if _is_sum(point) else metric.gauge).data_points.add()
        added.attributes.extend(self._encode(point.labels))
        return added

    def _set(self, target: Any, series: Series | None, rises: bool, number: Number, time_ns: int) -> None:
        """Set the number, the time and the start time of a data point."""
        if series is not None:
            start, last = self._counters.get(series, (time_ns, number))
            if rises and number < last:
                start = time_ns
            self._counters[series] = (start, number)
            target.start_time_unix_nano = start
        target.time_unix_nano = time_ns
        if isinstance(number, int) and -INT64 <= number < INT64:
            target.as_int = number
        else:
            target.as_double = number

    def _encode(self, labels: Mapping[str, str]) -> list[Any]:
        found = []
        for name, value in labels.items():
            whole = name == "cpu.logical_number" and value.isdecimal()  # the conventions define it as an integer
            word = self._common.AnyValue(int_value=int(value)) if whole else self._common.AnyValue(string_value=utf8(value))
            found.append(self._common.KeyValue(key=utf8(name), value=word))
        return found


def _resource(record: Record) -> dict[str, str]:
    """Return the resource attributes: the same after a restart, different for each program, job and rank of a machine."""
    # Series continue after a restart only if the resource stays the same. It therefore contains neither the process id nor run_id, which is
    # an attribute of logged numbers instead.
    host, labels = record.snapshot.hostname, record.labels
    script = Path(sys.argv[0])
    program = script.parent.name if script.stem == "__main__" else script.stem.strip("-")  # python -m accelmetrics; accelmetrics; python -c
    parts = [f"job-{about['job_id']}" for about in jobs(labels).values() if "job_id" in about][:1]
    instance = (host, program, *parts, f"rank-{labels['rank']}" if labels.get("rank") else "")
    return {
        "service.name": "accelmetrics",
        "service.version": __version__,
        "service.instance.id": ":".join(filter(None, instance)),
        "host.name": host,
        "os.type": platform.system().lower(),
        **{name: value for name, value in labels.items() if name != "run_id"},  # labels take precedence
    }


def _series(point: Point) -> Series | None:
    """Return the key under which a counter's start time is kept; None for a gauge."""
    return (point.name, tuple(point.labels.items())) if _is_sum(point) else None


def _is_sum(point: Point) -> bool:
    return point.kind == "counter" or point.name in UPDOWNCOUNTERS
