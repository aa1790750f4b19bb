"""A scrape endpoint for Prometheus: ``/metrics``, the latest snapshot as JSON, and two paths for probes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accelmetrics.dialects.contract import Dialect
from accelmetrics.exporters.http.access import HttpCredentials, Tls
from accelmetrics.exporters.network import Address
from accelmetrics.exporters.scrape_cache import MAX_SERIES, OPENMETRICS, TEXT, ScrapeCache, accepts_gzip, prefers_openmetrics
from accelmetrics.schemas.errors import InvalidOptionError, require
from accelmetrics.schemas.log import log
from accelmetrics.schemas.permissions import file_state
from accelmetrics.schemas.record import DeviceLabels, ProcessLabels, Record
from accelmetrics.schemas.selection import ALL, MetricChoice, MetricSelection

if TYPE_CHECKING:
    from tornado.httputil import HTTPServerRequest

    from accelmetrics.exporters.http.server import HttpAnswer, Route, Server


PORT = 22235
"""ACCEL on a telephone's keys: outside Prometheus's port list (9100-9999), below the ports that systems assign automatically."""
CERTIFICATES, SECRETS = ("the certificate", "its key", "the authorities"), ("the passwords", "the token")
"""Names in messages of the files that a reload reads again."""

_INDEX = b"""<!doctype html><title>accelmetrics</title><h1>accelmetrics</h1><ul>
<li><a href="/metrics">/metrics</a> for Prometheus
<li><a href="/api/snapshot">/api/snapshot</a> the latest snapshot as JSON
<li><a href="/-/healthy">/-/healthy</a> whether this endpoint answers
<li><a href="/-/ready">/-/ready</a> whether anything was measured yet
</ul>
"""


class PrometheusExporter:
    """Serves the latest record to scrapes.

    Args:
        address: Address to listen on: ``HOST:PORT``, ``HOST`` or ``PORT``. The default host is loopback; port 0 lets the system choose.
        dialect: Metric names: a dialect's name, ``module:attribute``, or a :class:`~accelmetrics.dialects.contract.Dialect`.
        tls_cert: PEM file with the server's certificate and its chain. The server then accepts only TLS.
        tls_key: PEM file with its private key; None if ``tls_cert`` contains it.
        tls_client_ca: PEM file with certificate authorities. Only clients with a certificate of these are accepted.
        tls_client_names: Comma-separated names. Only client certificates with one of these names are accepted.
        auth_file: File with passwords, in lines from :func:`accelmetrics.exporters.http.access.password_line`. Only clients with one of
            these are accepted.
        bearer_token_file: File with a token. Clients with this token are accepted, in addition to clients with a password.
        allowed_hosts: Comma-separated names that are accepted in a request's ``Host``. A server on loopback always accepts ``localhost``;
            any other accepts all names by default. Addresses are always accepted.
        max_series: Maximum number of series.
        max_age: Age in seconds from which a record is not served; by default two intervals and the timeout, at least 5 s.
        per_link: Also serve the series of each link between devices, not only their sum.
        own_process: Also serve ``accelmetrics_process_*``: the resources that this process uses, from Prometheus' client library (Linux).
        device_labels: Function that is called with each :class:`~accelmetrics.schemas.snapshot.Device` of a record. The labels that it
            returns (``pod``, ``namespace``, ``container``) are added to the device's series in ``dcgm`` and ``amd``, and to
            ``accel_job_info``.
        metrics: Metrics to export: see :class:`~accelmetrics.schemas.selection.MetricSelection`.
        processes: Number of processes to serve: the ones with the most device memory, each with id, type, memory and utilisation.
        process_labels: Function that is called with each reading and the ids of these processes. The labels that it returns (``user``,
            ``pod``) are added to ``accel_process_info``. :func:`accelmetrics.visibility.processes.process_labels` creates one.

    Attributes:
        address: Address that it listens on. After ``open`` it has the port that the system chose.
        routes: Path, handler and arguments of each route, in tornado's form. More may be added before ``open``.
        limits: Limits on the resources that clients may use. Changes take effect at the next ``open``.

    Raises:
        InvalidOptionError: An option has an invalid value, or lacks another one that it needs.
        UnknownNameError: There is no dialect with this name.
        MissingDependencyError: ``prometheus-client`` or ``tornado`` is not installed.
    """

    name = "prometheus"

    def __init__(  # noqa: PLR0913 - each is a word of the string form, and all but the first have good defaults
        self,
        address: str = f"127.0.0.1:{PORT}",
        *,
        dialect: str | Dialect = "prometheus",
        tls_cert: str | None = None,
        tls_key: str | None = None,
        tls_client_ca: str | None = None,
        tls_client_names: str | None = None,
        auth_file: str | None = None,
        bearer_token_file: str | None = None,
        allowed_hosts: str | None = None,
        max_series: int = MAX_SERIES,
        max_age: float | None = None,
        per_link: bool = False,
        own_process: bool = False,
        device_labels: DeviceLabels | None = None,
        metrics: MetricChoice = ALL,
        processes: int = 0,
        process_labels: ProcessLabels | None = None,
    ) -> None:
        require("tornado", "prometheus")
        from tornado.web import HTTPError

        from accelmetrics.exporters.http.server import ClientLimits, HttpAnswer, Route

        self.limits = ClientLimits()
        self.metrics = MetricSelection(metrics)
        self.processes = processes
        self._answer, self._refusal = HttpAnswer, HTTPError
        self.address = self._wanted = Address.parse(address, PORT)
        self._cache = ScrapeCache(
            dialect,
            max_series,
            max_age=max_age,
            per_link=per_link,
            own_process=own_process,
            device_labels=device_labels,
            processes=processes,
            process_labels=process_labels,
        )
        if not tls_cert and (tls_key or tls_client_ca or tls_client_names is not None):
            raise InvalidOptionError("tls_key, tls_client_ca and tls_client_names need tls_cert, the server's certificate")
        self._tls = Tls(tls_cert, tls_key, tls_client_ca, tls_client_names) if tls_cert else None
        self._credentials = HttpCredentials(auth_file, bearer_token_file) if auth_file or bearer_token_file else None
        given = zip((*CERTIFICATES, *SECRETS), (tls_cert, tls_key, tls_client_ca, auth_file, bearer_token_file), strict=True)
        self._files = {name: Path(file) for name, file in given if file}
        self._states: dict[str, tuple[int, ...]] = {}
        self._hosts = [name.strip() for name in (allowed_hosts or "").split(",") if name.strip()]
        self._server: Server | None = None
        self.routes: list[tuple[str, type[Route], dict[str, Any]]] = [
            ("/", Route, {"compute": lambda _: HttpAnswer(_INDEX, "text/html; charset=utf-8")}),
            ("/metrics", Route, {"compute": self._metrics, "any_name": True}),
            ("/api/snapshot", Route, {"compute": self._snapshot}),
            ("/-/healthy", Route, {"compute": lambda _: HttpAnswer(b"healthy\n"), "public": True}),
            ("/-/ready", Route, {"compute": self._ready, "public": True}),
        ]

    def open(self) -> None:
        """Start listening.

        Raises:
            OSError: The port is in use or not permitted, or a certificate, password or token file cannot be read.
        """
        from accelmetrics.exporters.http.server import Server

        self.close()
        self._cache.forget()
        if self._credentials is not None:
            self._credentials.read()
        if self._tls is not None:
            self._tls.read()
        server = Server(
            self._wanted, self.routes, tls=self._tls, credentials=self._credentials, allowed_hosts=self._hosts, limits=self.limits
        )
        server.open()
        self._states = {name: file_state(file) for name, file in self._files.items()}
        self._server, self.address = server, server.address
        restricted = self._credentials is not None or bool(self._tls and self._tls.client_ca)
        missing = [what for what, present in (("TLS", self._tls), ("a password", restricted)) if not present]
        if missing and not self.address.is_loopback:
            log.warning("http://%s can be read from other machines without %s", self.address, " or ".join(missing))

    def reload(self) -> list[str]:
        """Read certificates, passwords and tokens again. If a file cannot be read, this is logged and the old certificate stays in use.

        Returns:
            Names of the files that have changed since the start or the last call and are in use now: ``the certificate``,
            ``the passwords``.
        """
        # Separate from the states in Tls and HttpCredentials: a client that connects may already have made these read a changed file.
        before, self._states = self._states, {name: file_state(file) for name, file in self._files.items()}
        changed = [name for name, state in self._states.items() if state != before.get(name)]
        for files, names in ((self._tls, CERTIFICATES), (self._credentials, SECRETS)):
            try:
                if files is not None:
                    files.read()
            except OSError as error:
                log.warning("%s", error)
                changed = [name for name in changed if name not in names]
        return changed

    def export(self, record: Record) -> None:
        self._cache.take(record)

    def flush(self) -> None:
        """Do nothing: a record is served as soon as it is exported."""

    def close(self) -> None:
        """Close all connections and end the server's threads."""
        if self._server is not None:
            self._server.close()
            self._server = None

    # Routes

    def _metrics(self, request: HTTPServerRequest) -> HttpAnswer:
        openmetrics = prefers_openmetrics(request.headers.get("Accept", ""))
        packed = accepts_gzip(request.headers.get("Accept-Encoding", ""))
        return self._answer(self._cache.metrics(openmetrics, packed), OPENMETRICS if openmetrics else TEXT, _encoding(packed))

    def _snapshot(self, request: HTTPServerRequest) -> HttpAnswer:
        packed = accepts_gzip(request.headers.get("Accept-Encoding", ""))
        body = self._cache.snapshot(packed)
        if body is None:
            raise self._refusal(503, "there is no recent snapshot")
        return self._answer(body, "application/json", _encoding(packed))

    def _ready(self, _: HTTPServerRequest) -> HttpAnswer:
        if not self._cache.ready:
            raise self._refusal(503, "nothing was measured yet")
        return self._answer(b"ready\n")


def _encoding(packed: bool) -> Mapping[str, str]:
    vary = {"Vary": "Accept, Accept-Encoding"}
    return {**vary, "Content-Encoding": "gzip"} if packed else vary
