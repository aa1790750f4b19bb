"""Sends records to an OpenTelemetry collector, or to anything else that speaks OTLP: one request per record.

A request is sent and its answer read before the record counts as delivered. What the collector rejects of it, or refuses for
good, counts as failed, with the collector's words; a collector that is away, slow or busy is offered the record again.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from accelmetrics.exporters.http_post import Files, check_timeout
from accelmetrics.exporters.otlp_request import RequestBuilder
from accelmetrics.exporters.otlp_senders import GrpcSender, HttpSender, Sender
from accelmetrics.exporters.rejected import RejectedError, words
from accelmetrics.schemas.errors import InvalidOptionError
from accelmetrics.schemas.record import Record

if TYPE_CHECKING:
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse

DEFAULT_ENDPOINTS = {"grpc": "http://127.0.0.1:4317", "http": "http://127.0.0.1:4318"}
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


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
        compression: ``gzip`` or ``none``.

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
        compression: Literal["gzip", "none"] = "gzip",
    ) -> None:
        check_timeout("otlp", timeout)
        self._headers = _headers(headers.split(","))
        self._headers_file = headers_file
        self._endpoint = endpoint or DEFAULT_ENDPOINTS[protocol]
        secure = _is_secure(self._endpoint, insecure)
        files = Files(ca_file, client_cert_file, client_key_file)
        compress = compression == "gzip"
        rest = self._endpoint.rpartition("://")[2]
        self._sender: Sender
        if protocol == "grpc":
            self._sender = GrpcSender(_target(rest), secure, files, timeout, compress)
        else:
            self._sender = HttpSender(f"{'https' if secure else 'http'}://{rest}", files, timeout, compress)
        self._builder = RequestBuilder()

    def open(self) -> None:
        self._sender.open()

    def export(self, record: Record) -> None:
        headers = self._headers
        if self._headers_file is not None:
            headers = {**headers, **_headers(Path(self._headers_file).read_text("utf-8").splitlines())}
        answer = self._sender.send(self._builder.build(record), headers)
        if answer is not None:
            _check(answer)

    def flush(self) -> None:
        """Nothing waits here: each record is delivered when ``export`` returns."""

    def close(self) -> None:
        self._sender.close()


def _check(answer: ExportMetricsServiceResponse) -> None:
    """Take the collector by its word: a request that was accepted may still have lost points."""
    rejected = answer.partial_success.rejected_data_points
    if rejected:
        raise RejectedError(f"the collector rejected {rejected} data points: {words(answer.partial_success.error_message or 'no details')}")


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


def _target(address: str) -> str:
    """Where gRPC connects to, which is shown in every error: it knows neither a password nor a path in an address."""
    target = address.rstrip("/")
    if "@" in target:
        raise InvalidOptionError("otlp: gRPC takes no name and password in the endpoint: use headers_file, or protocol=http")
    if set(target) & set("/?#"):
        raise InvalidOptionError(f"otlp: gRPC takes no path, the endpoint {target!r} must be HOST:PORT: or use protocol=http")
    return target


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
