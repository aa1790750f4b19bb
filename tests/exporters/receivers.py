"""What exporters talk to in tests: an OTLP receiver over gRPC and HTTP, Etsy's StatsD, VictoriaMetrics, and a contrary HTTP server.

The OTLP receiver is built from the services and messages of ``opentelemetry-proto``. The others are the programs themselves.
"""

from __future__ import annotations

import gzip
import json
import re
import shutil
import socket
import subprocess
import threading
import urllib.request
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as messages, metrics_service_pb2_grpc as service
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import AGGREGATION_TEMPORALITY_CUMULATIVE, NumberDataPoint

from tests.support.network import free_port
from tests.support.waiting import HANG, wait_for

ROOT = Path(__file__).parents[2]
DAEMON = ROOT / ".cache" / "statsd" / "node_modules" / "statsd" / "stats.js"


class Row(NamedTuple):
    """One data point as a collector has it."""

    name: str
    unit: str
    form: str
    value: int | float
    attributes: dict[str, str | int]
    time_ns: int
    start_ns: int


class Collector:
    """What an OTLP receiver got, and what it is to answer.

    Attributes:
        requests: What came in.
        headers: The headers of each request, lower case.
        rejected: How many data points it says that it rejected.
        refusal: A gRPC status, or an HTTP status, to answer instead; with an HTTP one, ``body`` and ``kind`` go along.
        retry_info: Whether a gRPC refusal tells when to come again.
        may_answer: Cleared while it does not answer.
        endpoint: Where it listens.
    """

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.requests: list[messages.ExportMetricsServiceRequest] = []
        self.headers: list[dict[str, str]] = []
        self.rejected = 0
        self.refusal: Any = None
        self.retry_info = False
        self.body = b""
        self.kind = "application/x-protobuf"
        self.may_answer = threading.Event()
        self.may_answer.set()

    def take(self, request: messages.ExportMetricsServiceRequest, headers: dict[str, str]) -> messages.ExportMetricsServiceResponse:
        """Note a request, and the answer to it."""
        self.requests.append(request)
        self.headers.append(headers)
        assert self.may_answer.wait(2 * HANG)
        answer = messages.ExportMetricsServiceResponse()
        if self.rejected:
            answer.partial_success.rejected_data_points = self.rejected
            answer.partial_success.error_message = "out of order"
        return answer

    def rows(self, index: int = -1) -> list[Row]:
        """The data points of a request."""
        resources = self.requests[index].resource_metrics
        return [row for resource in resources for scope in resource.scope_metrics for metric in scope.metrics for row in _rows(metric)]

    def named(self, name: str, index: int = -1) -> list[Row]:
        """Those of one metric."""
        return [row for row in self.rows(index) if row.name == name]

    @property
    def resource(self) -> dict[str, str | int]:
        """The attributes of the last request's resource."""
        return _attributes(self.requests[-1].resource_metrics[0].resource.attributes)


def _rows(metric: Any) -> Iterator[Row]:
    form = metric.WhichOneof("data")
    data = getattr(metric, form)
    if form == "sum":
        assert data.aggregation_temporality == AGGREGATION_TEMPORALITY_CUMULATIVE
        form = "counter" if data.is_monotonic else "updowncounter"
    for point in data.data_points:
        attributes = _attributes(point.attributes)
        yield Row(metric.name, metric.unit, form, _number(point), attributes, point.time_unix_nano, point.start_time_unix_nano)


def _number(point: NumberDataPoint) -> int | float:
    return point.as_int if point.WhichOneof("value") == "as_int" else point.as_double


def _attributes(pairs: Any) -> dict[str, str | int]:
    return {pair.key: _any(pair.value) for pair in pairs}


def _any(value: AnyValue) -> str | int:
    return value.int_value if value.WhichOneof("value") == "int_value" else value.string_value


class _Service(service.MetricsServiceServicer):
    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802  # the service's own name
        answer = self._collector.take(request, dict(context.invocation_metadata()))
        if self._collector.refusal is not None:
            if self._collector.retry_info:
                context.set_trailing_metadata((("grpc-status-details-bin", b"type.googleapis.com/google.rpc.RetryInfo"),))
            context.abort(self._collector.refusal, "not today")
        return answer


@contextmanager
def grpc_collector(port: int = 0, credentials: Any = None) -> Iterator[Collector]:
    """An OTLP receiver over gRPC on this machine."""
    server = grpc.server(futures.ThreadPoolExecutor(2), options=(("grpc.so_reuseport", 0),))
    where = f"127.0.0.1:{port}"
    port = server.add_secure_port(where, credentials) if credentials else server.add_insecure_port(where)
    collector = Collector(f"{'https' if credentials else 'http'}://127.0.0.1:{port}")
    service.add_MetricsServiceServicer_to_server(_Service(collector), server)  # type: ignore[no-untyped-call]
    server.start()
    try:
        yield collector
    finally:
        collector.may_answer.set()
        server.stop(0).wait(HANG)


@contextmanager
def http_collector(port: int = 0) -> Iterator[Collector]:
    """An OTLP receiver over HTTP on this machine."""
    collector = Collector("")

    def answer(path: str, headers: dict[str, str], body: bytes) -> tuple[int, str, bytes]:
        assert path == "/v1/metrics" and headers["content-type"] == "application/x-protobuf"
        body = gzip.decompress(body) if headers.get("content-encoding") == "gzip" else body
        response = collector.take(messages.ExportMetricsServiceRequest.FromString(body), headers)
        if collector.refusal is not None:
            return collector.refusal, collector.kind, collector.body
        return 200, "application/x-protobuf", response.SerializeToString()

    with http_server(answer, port) as endpoint:
        collector.endpoint = endpoint
        try:
            yield collector
        finally:
            collector.may_answer.set()


@contextmanager
def http_server(answer: Callable[[str, dict[str, str], bytes], tuple[int, str, bytes]], port: int = 0) -> Iterator[str]:
    """An HTTP server that answers each POST as it is told; where it listens."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            status, kind, text = answer(self.path, {name.lower(): value for name, value in self.headers.items()}, body)
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(text)))
            if 300 <= status < 400:
                self.send_header("location", "/elsewhere")
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def process_request(self, request: Any, client_address: Any) -> None:
            held.append(request)
            super().process_request(request, client_address)

        def handle_error(self, request: Any, client_address: Any) -> None:
            """A client that went away in the middle is what some tests are about."""

    held: list[socket.socket] = []
    server = Server(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        for connection in held:  # a killed server leaves no connection behind that it still answers on
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


@contextmanager
def silent_server(first: bytes = b"", drip: float = 0.0) -> Iterator[int]:
    """A server that takes connections and answers nothing, or ``first`` and then a byte every ``drip`` seconds; its port."""
    stop = threading.Event()
    held: list[socket.socket] = []

    def serve() -> None:
        while not stop.is_set():
            try:
                held.append(listener.accept()[0])
            except OSError:
                return
            threading.Thread(target=talk, args=(held[-1],), daemon=True).start()

    def talk(connection: socket.socket) -> None:
        try:
            if first:
                connection.sendall(first)
            while drip and not stop.wait(drip):
                connection.sendall(b"x")
        except OSError:
            return

    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield int(listener.getsockname()[1])
    finally:
        stop.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for connection in held:
            connection.close()
        thread.join()


class Statsd(NamedTuple):
    """A running StatsD: the port for metrics, and that of its console."""

    port: int
    console: int

    def ask(self, command: str) -> str:
        """What its console answers."""
        with socket.create_connection(("127.0.0.1", self.console), HANG) as connection:
            connection.sendall(f"{command}\n".encode())
            answer = b""
            while not answer.endswith(b"END\n\n"):
                chunk = connection.recv(65536)
                assert chunk, "the console broke off"
                answer += chunk
        return answer.decode()

    def gauges(self) -> dict[str, float]:
        """Its gauges by name."""
        return {name.strip("'"): float(value) for name, value in re.findall(r"('[^']+'|\w+): (-?[\d.e+-]+)", self.ask("gauges"))}

    def counter(self, name: str) -> int:
        """One of its own counters, such as ``statsd.bad_lines_seen``."""
        found = re.search(rf"'{re.escape(name)}': (\d+)", self.ask("counters"))
        assert found is not None
        return int(found[1])


@contextmanager
def statsd(folder: Path) -> Iterator[Statsd]:
    """Etsy's StatsD on this machine."""
    node = shutil.which("node")
    if node is None or not DAEMON.exists():
        pytest.skip("server: statsd is not installed")
    running = Statsd(free_port(socket.SOCK_DGRAM), free_port())
    config = {"port": running.port, "address": "127.0.0.1", "mgmt_port": running.console, "mgmt_address": "127.0.0.1"}
    file = folder / "statsd.js"
    file.write_text(json.dumps({**config, "backends": [], "flushInterval": 600_000})[1:-1].join("{}"))
    with _running([node, str(DAEMON), str(file)], lambda: running.ask("counters")):
        yield running


@contextmanager
def victoria_metrics(folder: Path) -> Iterator[str]:
    """VictoriaMetrics on this machine; its address."""
    program = shutil.which("victoria-metrics")
    if program is None:
        pytest.skip("server: victoria-metrics is not installed")
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    options = [f"-storageDataPath={folder / 'data'}", f"-httpListenAddr=127.0.0.1:{port}", "-search.latencyOffset=0s"]
    with _running([program, *options, "-memory.allowedBytes=64MB"], lambda: get(f"{address}/health")):
        yield address


def exported(address: str, least: int) -> list[dict[str, Any]]:
    """Every series that VictoriaMetrics holds: ``metric`` (its labels), ``values``, ``timestamps`` in milliseconds.

    What was written shows a moment later: ``least`` is how many series to wait for.
    """

    def lines() -> list[str]:
        get(f"{address}/internal/force_flush")
        found = get(f"{address}/api/v1/export?match[]=%7B__name__!=%22%22%7D").splitlines()
        return found if len(found) >= least else []

    return [json.loads(line) for line in wait_for(lines)]


def get(url: str) -> str:
    """The body of an answer."""
    with urllib.request.urlopen(url, timeout=HANG) as answer:
        return str(answer.read().decode())


@contextmanager
def _running(command: list[str], answers: Callable[[], str]) -> Iterator[None]:
    """A program, from the moment that it answers."""

    def answered() -> bool:
        assert process.poll() is None, f"{command[0]} ended with {process.returncode}"
        with suppress(OSError):
            answers()
            return True
        return False

    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            wait_for(answered, what=f"{command[0]} does not come up")
            yield
        finally:
            process.kill()
