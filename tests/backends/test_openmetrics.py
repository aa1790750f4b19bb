"""Endpoints of metrics as a source: pages of all kinds from a server of the test's own, and our own command as one."""

from __future__ import annotations

import gzip
import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

import pytest
from hypothesis import given, strategies as st

from accelmetrics.backends import registry
from accelmetrics.backends.contract import ReadOptions
from accelmetrics.backends.openmetrics import LARGEST_ANSWER, MOST_SERIES, OpenMetricsBackend, samples_of
from accelmetrics.sampling.sampler import Sampler
from accelmetrics.schemas.errors import InvalidOptionError, MissingDependencyError, SourceError
from accelmetrics.visibility.doctor import diagnose
from tests.cli.test_serve import ready, serving
from tests.simulators.nvml import NvmlSimulator
from tests.support.waiting import HANG, Gate, wait_for

DCGM = """# HELP DCGM_FI_DEV_GPU_TEMP GPU temperature (in C).
# TYPE DCGM_FI_DEV_GPU_TEMP gauge
DCGM_FI_DEV_GPU_TEMP{gpu="3",UUID="GPU-c601d117",device="nvidia3",modelName="Tesla T4",Hostname="node"} 41
DCGM_FI_DEV_GPU_TEMP{gpu="1",UUID="GPU-d702e228",device="nvidia1",modelName="Tesla T4",Hostname="node"} 52
# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION counter
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{gpu="3"} 7e9
# TYPE requests_total counter
requests_total{code="500",path="/"} 1
requests_total{code="200",path="/"} 9
# TYPE broken gauge
broken NaN
bare 5
# TYPE wait histogram
wait_bucket{le="+Inf"} 1
wait_sum 1
wait_count 1
"""


class Endpoint:
    """Serves one page on loopback while the block runs.

    Attributes:
        page: Its text.
        kind: Its content type.
        encoding: How it is said to be packed.
        status: The HTTP status.
        before: Called before each answer.
        asked: Paths and credentials of the requests.
    """

    def __init__(self, page: str = DCGM) -> None:
        self.page: str | bytes = page
        self.kind = "text/plain; version=0.0.4"
        self.encoding = "identity"
        self.status = 200
        self.before: Callable[[], object] = bool
        self.asked: list[tuple[str, str]] = []
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                endpoint.asked.append((self.path, self.headers.get("Authorization", "")))
                endpoint.before()
                body = endpoint.page.encode() if isinstance(endpoint.page, str) else endpoint.page
                self.send_response(endpoint.status)
                self.send_header("Content-Type", endpoint.kind)
                self.send_header("Content-Encoding", endpoint.encoding)
                self.send_header("Location", "/elsewhere")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                with suppress(OSError):  # the client has read enough, or waited for long enough
                    self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Print nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/metrics"

    def __enter__(self) -> Endpoint:
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def read(self, options: str = "name=dcgm") -> dict[str, Any]:
        """What one reading of a new driver gives."""
        return values(OpenMetricsBackend(f"{self.url}?{options}"))


def values(backend: OpenMetricsBackend) -> dict[str, Any]:
    driver = backend.open()
    try:
        (block,) = driver.reader(ReadOptions(1)).read(0, []).blocks
        return dict(zip(block.names, block.values, strict=True))
    finally:
        driver.close()


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint() as made:
        yield made


def test_the_page_of_dcgms_exporter(endpoint: Endpoint) -> None:
    """GPUs have their own numbers, other series those of their labels' order; what has no one finite value is left out."""
    assert endpoint.read() == {
        "openmetrics.dcgm.DCGM_FI_DEV_GPU_TEMP.3": 41.0,
        "openmetrics.dcgm.DCGM_FI_DEV_GPU_TEMP.1": 52.0,
        "openmetrics.dcgm.DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION.3": 7e9,
        "openmetrics.dcgm.requests_total.1": 1.0,
        "openmetrics.dcgm.requests_total.0": 9.0,
        "openmetrics.dcgm.bare.0": 5.0,
    }


def test_openmetrics_pages(endpoint: Endpoint) -> None:
    """The newer format too, told by its content type; when a counter began is no number of it."""
    endpoint.kind = "application/openmetrics-text; version=1.0.0"
    endpoint.page = "# TYPE jobs counter\njobs_total 3\njobs_created 1.7e9\n# TYPE up gauge\nup 1\n# EOF\n"
    assert endpoint.read() == {"openmetrics.dcgm.jobs_total.0": 3.0, "openmetrics.dcgm.up.0": 1.0}


def test_options_stand_in_the_query_and_the_rest_is_sent(endpoint: Endpoint) -> None:
    """Filters choose by name, several of them in either form; a password goes as basic authentication and is shown nowhere."""
    backend = OpenMetricsBackend(
        f"{endpoint.url}?collect[]=gpu&filter=DCGM_*_TEMP&filter=bare|none&interval=2&timeout=9".replace("//", "//ada:s3cret@")
    )
    assert set(values(backend)) == {f"{backend.name}.{metric}" for metric in ("DCGM_FI_DEV_GPU_TEMP.1", "DCGM_FI_DEV_GPU_TEMP.3", "bare.0")}
    assert endpoint.asked == [("/metrics?collect%5B%5D=gpu", "Basic YWRhOnMzY3JldA==")]
    assert (backend.interval, backend.timeout) == (2.0, 9.0)
    assert backend.name.startswith("openmetrics.127_0_0_1_")
    assert "s3cret" not in f"{backend.detect()}{backend.coverage()}{backend.name}"


def test_series_keep_their_numbers() -> None:
    """One that comes later has the next one, one that comes back its own, also among GPUs."""
    with Endpoint('a{x="1"} 1\na{x="3"} 3\n') as endpoint:
        driver = OpenMetricsBackend(f"{endpoint.url}?name=e").open()

        def read() -> dict[str, Any]:
            (block,) = driver.read(0, []).blocks
            return dict(zip(block.names, block.values, strict=True))

        assert read() == {"openmetrics.e.a.0": 1.0, "openmetrics.e.a.1": 3.0}
        endpoint.page = 'a{x="2"} 2\na{x="3"} 3\n'
        assert read() == {"openmetrics.e.a.2": 2.0, "openmetrics.e.a.1": 3.0}
        endpoint.page = 'a{x="1"} 1\n'
        assert read() == {"openmetrics.e.a.0": 1.0}
        driver.close()


def test_names_that_change_at_every_reading_are_not_kept() -> None:
    """Those of the latest reading alone are known."""
    with Endpoint() as endpoint:
        driver = OpenMetricsBackend(f"{endpoint.url}?name=e").open()
        for round_ in range(4):
            endpoint.page = "".join(f"a{round_}_{number} 1\n" for number in range(MOST_SERIES - 1))
            driver.read(0, [])
        assert len(driver._numbers) < 2 * MOST_SERIES
        driver.close()


def test_an_answer_that_was_not_asked_for_in_that_form_is_not_unpacked(endpoint: Endpoint) -> None:
    """A small answer could have any size then."""
    endpoint.page, endpoint.encoding = gzip.compress(b"a 1\n"), "gzip"
    with pytest.raises(SourceError, match="no page of metrics"):
        endpoint.read()


@pytest.mark.parametrize(
    ("status", "page", "reason", "said"),
    [
        (503, "", "driver_error", "it answers 503"),
        (302, "", "driver_error", "it answers 302"),
        (401, "", "no_permission", "it answers 401"),
        (200, "<html>", "parse_error", "no page of metrics"),
        (200, "a" * (LARGEST_ANSWER + 1), "invalid_value", "larger than 8 MiB"),
    ],
)
def test_endpoints_that_give_nothing(status: int, page: str, reason: str, said: str, endpoint: Endpoint) -> None:
    """Each with its reason; a redirection is not followed."""
    endpoint.status, endpoint.page = status, page
    with pytest.raises(SourceError, match=said) as caught:
        endpoint.read()
    assert caught.value.reason == reason
    assert len(endpoint.asked) == 1


def test_an_endpoint_that_is_away() -> None:
    """It is driver_unavailable, and its address is in the words."""
    with Endpoint() as endpoint:
        url = endpoint.url
    with pytest.raises(SourceError, match=url) as caught:
        values(OpenMetricsBackend(url))
    assert caught.value.reason == "driver_unavailable"
    (found,) = diagnose([OpenMetricsBackend(url)]).backends
    assert (found.reason, found.problem) == ("driver_unavailable", caught.value.message)
    with Sampler([OpenMetricsBackend(url)], timeout=HANG) as sampler:
        (status,) = sampler.sample().backends
    assert (status.status, status.detail) == ("failed", f"driver_unavailable: {caught.value.message}")


def test_an_endpoint_that_hangs(endpoint: Endpoint) -> None:
    """It is late at its own timeout."""
    endpoint.before = gate = Gate()
    with pytest.raises(SourceError, match=r"within 0\.2 s") as caught:
        endpoint.read("timeout=0.2")
    gate.release()
    assert caught.value.reason == "timed_out"


def test_too_many_series_are_cut_and_told(endpoint: Endpoint) -> None:
    """The first ones are taken."""
    endpoint.page = "".join(f'a{{x="{number:05}"}} 1\n' for number in range(MOST_SERIES + 5))
    driver = OpenMetricsBackend(f"{endpoint.url}?name=e").open()
    reading = driver.read(0, [])
    assert len(reading.blocks[0].names) == MOST_SERIES
    assert "select some with filter=" in reading.unavailable["openmetrics.e.a"].detail
    driver.close()


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("", "write an address"),
        ("ftp://host/", "write an address"),
        ("http:///metrics", "write an address"),
        ("http://host:port/", "cannot be read"),
        ("http://[::1/", "cannot be read"),
        ("http://host/?name=a.b", "must be letters"),
        ("http://host/?interval=soon", r"openmetrics\?interval is 'soon'"),
        ("http://host/?timeout=0", r"openmetrics\?timeout is '0'"),
    ],
)
def test_addresses_that_cannot_be_used(spec: str, said: str) -> None:
    """They are refused when they are given, as an option is."""
    with pytest.raises(InvalidOptionError, match=said):
        registry.select([f"openmetrics:{spec}"])


def test_two_endpoints_of_one_name() -> None:
    """Their keys would be the same."""
    with pytest.raises(InvalidOptionError, match="more than once"):
        registry.select(["openmetrics:http://a/?name=x", "openmetrics:http://b/?name=x"])


def test_it_travels_to_another_process() -> None:
    """With everything that it was told."""
    backend = OpenMetricsBackend("http://host:9400/metrics?name=dcgm&filter=DCGM_*")
    copy = pickle.loads(pickle.dumps(backend))
    assert vars(copy).keys() == vars(backend).keys() and (copy.name, copy.url, copy.filters) == (backend.name, backend.url, backend.filters)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what installs it."""
    monkeypatch.setitem(__import__("sys").modules, "httpx", None)
    with pytest.raises(MissingDependencyError, match=r"accelmetrics\[openmetrics\]"):
        OpenMetricsBackend("http://host/").open()


@given(st.text(), st.booleans())
def test_any_text_is_read_or_refused(text: str, openmetrics: bool) -> None:
    """Nothing else is thrown."""
    try:
        found = list(samples_of(text, openmetrics))
    except ValueError:
        return
    assert all(metric for metric, _, _ in found)


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_our_own_command_as_an_endpoint(isolation: Any) -> None:
    """`serve --keys dcgm` on simulated GPUs, read by a sampler beside the host; one that goes away has its reason."""
    with NvmlSimulator(2) as simulator, serving("--backends", "nvidia", "--keys", "dcgm", **simulator.environment()) as (program, base):
        ready(base)
        spec = f"openmetrics:{base}/metrics?name=dcgm&filter=DCGM_FI_DEV_GPU_TEMP&interval=0.1"
        keys = [f"openmetrics.dcgm.DCGM_FI_DEV_GPU_TEMP.{gpu}" for gpu in (0, 1)]
        with Sampler(["host", spec], isolation=isolation) as sampler:
            wait_for(lambda: keys[1] in sampler.sample().metrics)
            found = sampler.sample().metrics
            temperatures = [simulator.gpu[gpu].get("temperature") for gpu in (0, 1)]
            assert {key: value for key, value in found.items() if key.startswith("openmetrics.")} == dict(
                zip(keys, temperatures, strict=True)
            )
            assert "memory_percent" in found
            program.kill()
            wait_for(lambda: keys[0] in sampler.sample().unavailable)
            gone = sampler.sample()
            assert str(gone.unavailable[keys[0]].reason) == "driver_unavailable"
            assert "memory_percent" in gone.metrics
