"""The two ways to a collector: gRPC and HTTP.

Both are built on the services and messages of ``opentelemetry-proto``, not on the SDK's exporters: those throw the answer away.
A collector that accepts the request and rejects its points is a success to them, so is a redirect to a log-in page, and one
that refuses for good looks like one that is away. What may be offered again is what the OTLP specification says.
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from accelmetrics.exporters.http_post import USER_AGENT, Answer, Files, Poster
from accelmetrics.exporters.rejected import RejectedError, words
from accelmetrics.schemas.errors import MissingDependencyError

if TYPE_CHECKING:
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest, ExportMetricsServiceResponse

PROTOBUF = "application/x-protobuf"
PATH = "/v1/metrics"
GZIP_LEVEL = 6

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


class Sender(Protocol):
    """One way to a collector."""

    def open(self) -> None:
        """Get ready. Nothing is sent."""
        ...

    def send(self, request: ExportMetricsServiceRequest, headers: Mapping[str, str]) -> ExportMetricsServiceResponse | None:
        """Send one request and give the answer, None for one without content.

        Raises:
            OSError: The collector is away, slow or busy: the request may be offered again.
            RejectedError: It refused the request for good.
        """
        ...

    def close(self) -> None:
        """Give everything back."""
        ...


class GrpcSender:
    """OTLP over gRPC.

    Args:
        target: ``host:port``.
        secure: Whether to use TLS.
        files: For TLS.
        timeout: Seconds for a call, connecting included.
        compress: Whether to compress with gzip.
    """

    def __init__(self, target: str, secure: bool, files: Files, timeout: float, compress: bool) -> None:
        try:
            import grpc
            from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as service
        except ImportError as error:
            raise MissingDependencyError("grpcio" if error.name == "grpc" else "opentelemetry-proto", "otlp") from None
        self._grpc: Any = grpc
        self._service: Any = service
        self._target = target
        self._secure = secure
        self._files = files
        self._timeout = timeout
        self._compression = grpc.Compression.Gzip if compress else grpc.Compression.NoCompression
        self._credentials: Any = None
        self._channel: Any = None

    def open(self) -> None:
        if self._secure:
            parts = [Path(file).read_bytes() if file else None for file in (self._files.ca, self._files.key, self._files.certificate)]
            self._credentials = self._grpc.ssl_channel_credentials(*parts)

    def send(self, request: ExportMetricsServiceRequest, headers: Mapping[str, str]) -> ExportMetricsServiceResponse | None:
        if self._channel is None:
            self._channel = self._connect()
        try:
            export = self._service.MetricsServiceStub(self._channel).Export
            answer: ExportMetricsServiceResponse = export(request, timeout=self._timeout, metadata=tuple(headers.items()))
        except self._grpc.RpcError as error:
            told = self._told(error)
            if isinstance(told, OSError):
                self.close()  # the next request connects anew, at once, instead of after the channel's own pause
            raise told from None
        return answer

    def _connect(self) -> Any:
        options, compression = CHANNEL_OPTIONS, self._compression
        if self._secure:
            return self._grpc.secure_channel(self._target, self._credentials, options=options, compression=compression)
        return self._grpc.insecure_channel(self._target, options=options, compression=compression)

    def _told(self, error: Any) -> Exception:
        code = error.code().name
        message = f"{self._target}: {code}: {words(error.details() or 'no details')}"
        if code == LATE:
            return TimeoutError(f"{self._target}: no answer within {self._timeout:g} s")
        if code in PASSING_CODES or (code == FULL and _says_when(error)):
            return ConnectionError(message)
        return RejectedError(message)

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None


class HttpSender:
    """OTLP over HTTP, as protobuf.

    Args:
        url: The collector's address; ``/v1/metrics`` is added to one that does not end in it.
        files: For TLS.
        timeout: Seconds to connect, to write, and to wait for the answer.
        compress: Whether to compress with gzip.
    """

    def __init__(self, url: str, files: Files, timeout: float, compress: bool) -> None:
        try:
            from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as service
        except ImportError:
            raise MissingDependencyError("opentelemetry-proto", "otlp") from None
        self._service: Any = service
        self._poster = Poster(url, timeout, files, "otlp")
        path = self._poster.url.path.rstrip("/")
        if not path.endswith(PATH):
            self._poster.url = self._poster.url.copy_with(path=f"{path}{PATH}")
        self._compress = compress

    def open(self) -> None:
        self._poster.open()

    def send(self, request: ExportMetricsServiceRequest, headers: Mapping[str, str]) -> ExportMetricsServiceResponse | None:
        body = request.SerializeToString()
        about = {"content-type": PROTOBUF}
        if self._compress:
            body, about = gzip.compress(body, GZIP_LEVEL), {**about, "content-encoding": "gzip"}
        answer = self._poster.post(body, {**headers, **about})
        where = f"{self._poster.shown}: HTTP {answer.status}"
        if answer.status in PASSING_STATUSES:
            raise ConnectionError(f"{where}: {words(self._said(answer))}")
        if not 200 <= answer.status < 300:
            raise RejectedError(f"{where}: {words(self._said(answer))}")
        return self._parsed(answer, where) if answer.body else None

    def _parsed(self, answer: Answer, where: str) -> ExportMetricsServiceResponse:
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

    def _said(self, answer: Answer) -> str:
        """The server's words: a ``google.rpc.Status`` where it keeps to the specification, else whatever the body is."""
        from google.protobuf.message import DecodeError

        if answer.kind != PROTOBUF:
            return answer.text or "no details"
        status = self._service.ExportMetricsPartialSuccess()  # the same two fields on the wire: a number, then the message
        try:
            status.ParseFromString(answer.body)
        except DecodeError:
            return "no details"
        return status.error_message or "no details"

    def close(self) -> None:
        self._poster.close()


def _says_when(error: Any) -> bool:
    """Whether a gRPC error tells when to come again."""
    return any(name == "grpc-status-details-bin" and RETRY_INFO in value for name, value in error.trailing_metadata() or ())
