"""A scrape endpoint for Prometheus: ``/metrics``, and beside it the snapshot as JSON and two paths for probes."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from accelmetrics.exporters.credentials import Credentials
from accelmetrics.exporters.exposition import MAX_SERIES, OPENMETRICS, TEXT, accepts_gzip, prefers_openmetrics, require_client
from accelmetrics.exporters.http.address import Address
from accelmetrics.exporters.http.listener import Listener
from accelmetrics.exporters.http.messages import Handler, Request, Response
from accelmetrics.exporters.page import Page
from accelmetrics.exporters.tls import TlsContexts, TlsFiles
from accelmetrics.schemas.record import Record

log = logging.getLogger("accelmetrics")

PORT = 22235
"""ACCEL on a telephone's keys: outside the 9100-9999 of Prometheus's list of ports, below those that systems give out."""

_INDEX = b"""<!doctype html><title>accelmetrics</title><h1>accelmetrics</h1><ul>
<li><a href="/metrics">/metrics</a> for Prometheus
<li><a href="/api/snapshot">/api/snapshot</a> the latest snapshot as JSON
<li><a href="/-/healthy">/-/healthy</a> whether this endpoint answers
<li><a href="/-/ready">/-/ready</a> whether anything was measured yet
</ul>
"""
_LATER = {"Retry-After": "1"}


class PrometheusExporter:
    """Serves the latest record to whoever scrapes it.

    Args:
        address: Where to listen: ``HOST:PORT``, ``HOST`` or ``PORT``. Without a host it is loopback; port 0 lets the system
            choose.
        dialect: Whose names the metrics have.
        tls_cert: The server's certificate and its chain, a PEM file; serves by TLS alone.
        tls_key: Its private key, a PEM file; None where it stands in ``tls_cert``.
        tls_client_ca: Lets in only clients with a certificate of these authorities, a PEM file.
        tls_client_names: Of those, only the ones whose certificate carries one of these names, separated by commas.
        auth_file: Lets in only clients with one of these passwords: lines that
            :func:`accelmetrics.exporters.credentials.password_line` makes.
        bearer_token_file: Lets in clients with this token, beside those with a password.
        max_series: At most so many series are served.
        max_age: A record older than this, in seconds, is not served; by default two intervals and the timeout, at least 5 s.
        per_link: Serves each link between devices beside the sum over all of them.

    Attributes:
        address: Where it listens, with the port that the system chose once it is open.
        routes: By path, what answers a request; more may be added before ``open``.

    Raises:
        InvalidOptionError: An option cannot be used, or lacks another one that it needs.
        UnknownNameError: There is no such dialect.
        MissingDependencyError: ``prometheus-client`` is not installed.
    """

    name = "prometheus"

    def __init__(  # noqa: PLR0913 - each is a word of the string form, and all but the first have good defaults
        self,
        address: str = f"127.0.0.1:{PORT}",
        *,
        dialect: str = "prometheus",
        tls_cert: str | None = None,
        tls_key: str | None = None,
        tls_client_ca: str | None = None,
        tls_client_names: str | None = None,
        auth_file: str | None = None,
        bearer_token_file: str | None = None,
        max_series: int = MAX_SERIES,
        max_age: float | None = None,
        per_link: bool = False,
    ) -> None:
        require_client()
        self.address = self._wanted = Address.parse(address, PORT)
        self._page = Page(dialect, max_series, max_age, per_link)
        self._tls = TlsFiles.of(tls_cert, tls_key, tls_client_ca, tls_client_names)
        self._credentials = Credentials(auth_file, bearer_token_file) if auth_file or bearer_token_file else None
        self._listener: Listener | None = None
        self.routes: dict[str, Handler] = {
            "/": lambda _: Response(200, _INDEX, "text/html; charset=utf-8"),
            "/metrics": self._metrics,
            "/api/snapshot": self._snapshot,
            "/-/healthy": lambda _: Response(200, b"healthy\n"),
            "/-/ready": self._ready,
        }

    def open(self) -> None:
        """Begin to listen.

        Raises:
            OSError: The port is in use or may not be used, or a certificate, password or token file cannot be read.
        """
        self.close()
        self._page.forget()
        if self._credentials is not None:
            self._credentials.read()
        tls = TlsContexts(self._tls) if self._tls else None
        listener = Listener(self._wanted, self.routes, tls=tls, credentials=self._credentials)
        listener.open()
        self._listener, self.address = listener, listener.address
        self._warn()

    def export(self, record: Record) -> None:
        self._page.take(record)

    def flush(self) -> None:
        """Nothing waits: a record is served from the moment it is taken."""

    def close(self) -> None:
        """End all connections and threads."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def _warn(self) -> None:
        missing = [what for what, there in (("TLS", self._tls), ("a password", self._closed)) if not there]
        if missing and not self.address.is_loopback:
            log.warning("http://%s can be read from other machines without %s", self.address, " or ".join(missing))

    @property
    def _closed(self) -> bool:
        """Whether a client has to say who it is."""
        return self._credentials is not None or bool(self._tls and self._tls.client_ca)

    # Handlers

    def _metrics(self, request: Request) -> Response:
        openmetrics = prefers_openmetrics(request.header("accept"))
        packed = accepts_gzip(request.header("accept-encoding"))
        body = self._page.metrics(openmetrics, packed)
        return Response(200, body, OPENMETRICS if openmetrics else TEXT, _encoding(packed))

    def _snapshot(self, request: Request) -> Response:
        packed = accepts_gzip(request.header("accept-encoding"))
        body = self._page.snapshot(packed)
        if body is None:
            return Response(503, b"there is no recent snapshot\n", headers=_LATER)
        return Response(200, body, "application/json", _encoding(packed))

    def _ready(self, _: Request) -> Response:
        return Response(200, b"ready\n") if self._page.ready else Response(503, b"nothing was measured yet\n", headers=_LATER)


def _encoding(packed: bool) -> Mapping[str, str]:
    vary = {"Vary": "Accept, Accept-Encoding"}
    return {**vary, "Content-Encoding": "gzip"} if packed else vary
