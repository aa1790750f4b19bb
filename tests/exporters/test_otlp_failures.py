"""What becomes of a record when the collector is away, slow, busy or says no: offered again or given up, never taken for delivered."""

from __future__ import annotations

import itertools
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsPartialSuccess

from accelmetrics.exporters.network import RejectedError
from accelmetrics.exporters.otlp import OtlpExporter
from tests.exporters.receivers import Collector, grpc_collector, http_collector, silent_server
from tests.records import record
from tests.support.exporting import export, exporting
from tests.support.network import free_port
from tests.support.waiting import wait_for

Start = Callable[[int], AbstractContextManager[Collector]]
STARTS: dict[str, Start] = {"grpc": grpc_collector, "http": http_collector}


def exporter_to(endpoint: str, protocol: str, timeout: float = 5.0) -> OtlpExporter:
    exporter = OtlpExporter(endpoint, protocol="http" if protocol == "http" else "grpc", timeout=timeout)
    exporter.open()
    return exporter


def offered(exporter: OtlpExporter, sent: Any) -> int:
    """Offer a record as a monitor would, until it is delivered; how often it took."""
    times = itertools.count(1)

    def delivered() -> int:
        time = next(times)
        with suppress(OSError):
            exporter.export(sent)
            return time
        return 0

    return wait_for(delivered, what="the collector is back, and the exporter does not see it")


@pytest.mark.parametrize("protocol", STARTS)
def test_a_collector_that_comes_back_gets_the_record(protocol: str) -> None:
    """While no server listens, exporting fails as passing; soon after the collector is back the same record arrives, once."""
    port = free_port()
    exporter = exporter_to(f"http://127.0.0.1:{port}", protocol)
    sent = record(1)
    for _ in range(5):
        with pytest.raises(ConnectionError, match=str(port)):
            exporter.export(sent)
    with STARTS[protocol](port) as collector:
        assert offered(exporter, sent) <= 3
        assert len(collector.requests) == 1
    with pytest.raises(ConnectionError):
        exporter.export(sent)
    with STARTS[protocol](port) as collector:
        offered(exporter, sent)
        assert len(collector.requests) == 1
    exporter.close()


@pytest.mark.parametrize("protocol", STARTS)
def test_rejected_points_are_not_taken_for_delivered(protocol: str) -> None:
    """A request that the collector accepts, rejecting some of its points, is given up with the collector's words."""
    with STARTS[protocol](0) as collector:
        exporter = exporter_to(collector.endpoint, protocol)
        collector.rejected = 3
        with pytest.raises(RejectedError, match=r"rejected 3 data points: out of order"):
            exporter.export(record(1))
        collector.rejected = 0
        exporter.export(record(1))
        exporter.close()


@pytest.mark.parametrize(
    ("code", "retry_info", "passes"),
    [
        (grpc.StatusCode.UNAVAILABLE, False, True),
        (grpc.StatusCode.ABORTED, False, True),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, True, True),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, False, False),
        (grpc.StatusCode.INVALID_ARGUMENT, False, False),
        (grpc.StatusCode.UNAUTHENTICATED, False, False),
        (grpc.StatusCode.UNIMPLEMENTED, False, False),
    ],
)
def test_what_may_be_offered_again_over_grpc(code: grpc.StatusCode, retry_info: bool, passes: bool) -> None:
    """The specification's list says which statuses pass; the others give the record up, at once, in the collector's words."""
    with grpc_collector() as collector:
        exporter = exporter_to(collector.endpoint, "grpc")
        collector.refusal, collector.retry_info = code, retry_info
        with pytest.raises(ConnectionError if passes else RejectedError, match=f"{code.name}: not today"):
            exporter.export(record(1))
        assert len(collector.requests) == 1
        collector.refusal = None
        exporter.export(record(1))
        exporter.close()


STATUS = ExportMetricsPartialSuccess(rejected_data_points=3, error_message="not today").SerializeToString()


@pytest.mark.parametrize(
    ("status", "kind", "body", "passes", "says"),
    [
        (429, "text/plain", b"slow down", True, "429: slow down"),
        (503, "application/x-protobuf", STATUS, True, "503: not today"),
        (504, "application/x-protobuf", b"", True, "504: no details"),
        (400, "application/x-protobuf", STATUS, False, "400: not today"),
        (401, "application/json", b'{"message": "who are you"}', False, "401: .*who are you"),
        (500, "text/plain", b"", False, "500: no details"),
        (302, "text/plain", b"log in first", False, "302: log in first"),
        (200, "text/html", b"<html>log in first</html>", False, "200, but the answer is not OTLP: <html>log in first"),
        (200, "application/json", b'{"partialSuccess": {"rejectedDataPoints": "2"}}', False, "rejected 2 data points"),
    ],
)
def test_what_may_be_offered_again_over_http(status: int, kind: str, body: bytes, passes: bool, says: str) -> None:
    """The same for HTTP; a redirect is not followed, and a web page is no answer, whatever its status."""
    with http_collector() as collector:
        exporter = exporter_to(collector.endpoint, "http")
        collector.refusal, collector.kind, collector.body = status, kind, body
        with pytest.raises(ConnectionError if passes else RejectedError, match=says):
            exporter.export(record(1))
        assert len(collector.requests) == 1
        exporter.close()


def test_an_answer_in_json_or_without_content_is_one() -> None:
    """Collectors that answer an accepted request with JSON, or with nothing, have taken it."""
    with http_collector() as collector:
        exporter = exporter_to(collector.endpoint, "http")
        for collector.refusal, collector.kind, collector.body in (
            (200, "application/json; charset=utf-8", b'{"partialSuccess":{}}'),
            (202, "text/plain", b""),
        ):
            exporter.export(record(1))
        exporter.close()


@pytest.mark.parametrize("protocol", STARTS)
def test_a_slow_collector_costs_no_more_than_the_timeout(protocol: str) -> None:
    """A collector that does not answer is late after the timeout, not after the SDK's retries; closing does not wait for it either."""
    with STARTS[protocol](0) as collector:
        exporter = exporter_to(collector.endpoint, protocol)
        exporter.export(record(1))
        exporter.close()
        exporter = exporter_to(collector.endpoint, protocol, timeout=0.3)
        collector.may_answer.clear()
        with pytest.raises(TimeoutError, match=r"within 0\.3 s"):
            exporter.export(record(1))
        exporter.close()
        assert not collector.may_answer.is_set()


@pytest.mark.parametrize("protocol", STARTS)
def test_a_listener_that_never_speaks_costs_no_more_than_the_timeout(protocol: str) -> None:
    """Something that takes the connection and never says anything is given up too."""
    with silent_server() as port:
        exporter = exporter_to(f"http://127.0.0.1:{port}", protocol, timeout=0.3)
        with pytest.raises(OSError, match="127"):
            exporter.export(record(1))
        exporter.close()


def test_an_answer_that_drips_costs_no_more_than_the_timeout() -> None:
    """So is an answer that comes a byte at a time, each in time, without end."""
    with silent_server(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n", drip=0.02) as port:
        exporter = exporter_to(f"http://127.0.0.1:{port}", "http", timeout=1.0)
        with pytest.raises(TimeoutError, match=r"not complete|no answer within"):
            exporter.export(record(1))
        exporter.close()


def test_opening_again_after_closing_works() -> None:
    """A monitor that is started again opens the same exporter again."""
    with http_collector() as over_http, grpc_collector() as over_grpc:
        for collector, protocol in ((over_http, "http"), (over_grpc, "grpc")):
            exporter = exporter_to(collector.endpoint, protocol)
            exporter.export(record(1))
            exporter.close()
            exporter.close()
            export(exporter, record(1))
            assert len(collector.requests) == 2


@pytest.fixture
def certificate(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """A certificate for 127.0.0.1 and its key."""
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("server: openssl is not installed")
    made, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    about = ["-nodes", "-days", "2", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    subprocess.run([program, "req", "-x509", *curve, *about, "-keyout", str(key), "-out", str(made)], check=True, capture_output=True)
    yield made, key


@pytest.mark.servers
def test_tls_with_our_own_authority_and_certificate(certificate: tuple[Path, Path]) -> None:
    """With the authority and a certificate of ours a collector that asks for one takes the record; without, nothing is delivered."""
    made, key = certificate
    pair = [(key.read_bytes(), made.read_bytes())]
    credentials = grpc.ssl_server_credentials(pair, root_certificates=made.read_bytes(), require_client_auth=True)
    with grpc_collector(credentials=credentials) as collector:
        export(
            OtlpExporter(collector.endpoint, ca_file=str(made), client_cert_file=str(made), client_key_file=str(key), timeout=3.0),
            record(1),
        )
        with exporting(OtlpExporter(collector.endpoint, ca_file=str(made), timeout=3.0)) as stranger, pytest.raises(OSError, match="127"):
            stranger.export(record(1))
        assert len(collector.requests) == 1


def test_a_certificate_that_is_not_there_is_an_error_of_opening(tmp_path: Path) -> None:
    """A file that cannot be read is told when the exporter opens, with its name."""
    for endpoint, protocol in (("https://127.0.0.1:1", "grpc"), ("https://127.0.0.1:1", "http")):
        exporter = OtlpExporter(endpoint, protocol="grpc" if protocol == "grpc" else "http", ca_file=str(tmp_path / "none.pem"))
        with pytest.raises(FileNotFoundError):
            exporter.open()
        exporter.close()
