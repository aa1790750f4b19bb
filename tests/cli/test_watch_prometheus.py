"""``watch --fleet`` with the address of a Prometheus: a stand-in that answers as one does, and a real one beside real nodes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from accelmetrics.cli.watch_remote import NAMES, read_nodes
from tests.backends.test_openmetrics import Endpoint
from tests.cli.terminals import on_terminal
from tests.cli.test_serve import ready, serving
from tests.exporters.prometheus_server import PrometheusServer
from tests.simulators.nvml import NvmlSimulator

SEEN = ("watch", "--interval", "0.1")
RULES = Path(__file__).parents[2] / "deploy" / "prometheus"
BUSY, EXPECTED = "accelerator:accel_utilization:ratio", "instance:accel_devices_expected:max1d"


def answer(*series: tuple[str, str, Mapping[str, str], float]) -> str:
    """What ``/api/v1/query`` answers: of each series its name, its node, other labels and its value."""
    found = [
        {"metric": {"__name__": name, "job": "accelmetrics", "instance": node} | dict(labels), "value": [1767225600.5, str(value)]}
        for name, node, labels, value in series
    ]
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": found}})


def gpu(number: int) -> dict[str, str]:
    return {"accelerator": f"gpu.{number}", "uuid": f"GPU-{number}"}


def three_nodes() -> str:
    """One at work with a hot device, one that lost a device, one that is away."""
    return answer(
        *((EXPECTED, f"node-{number}:22235", {}, 2) for number in (1, 2, 3)),
        *(("accelmetrics_up", f"node-{number}:22235", {}, 1) for number in (1, 2)),
        *(("accel_up", "node-1:22235", gpu(number), 1) for number in (0, 1)),
        *((BUSY, "node-1:22235", gpu(number), 0.9 + number / 20) for number in (0, 1)),
        (BUSY, "node-1:22235", {"accelerator": "gpu.0.mig.1", "uuid": "MIG-1"}, 0.1),
        ("instance:accel_power_watts:sum", "node-1:22235", {}, 1200.0),
        ("instance:accel_power_limit_watts:sum", "node-1:22235", {}, 1400.0),
        ("ALERTS", "node-1:22235", {**gpu(1), "alertname": "AccelHot", "alertstate": "firing", "severity": "warning"}, 1),
        ("accel_up", "node-2:22235", gpu(0), 1),
        ("accel_up", "node-2:22235", gpu(1), 0),
        (BUSY, "node-2:22235", gpu(0), 0.5),
        ("accelmetrics_collect_success", "node-2:22235", {"source": "nvidia"}, 1),
        ("accelmetrics_collect_success", "node-2:22235", {"source": "amd"}, 0),
    )


def test_a_line_a_node_by_one_query() -> None:
    """The worst first; what alerts say of a device is beside it, Enter shows all of them, and nothing is asked of the nodes."""
    with Endpoint(three_nodes()) as prometheus:
        prometheus.kind = "application/json"
        address = prometheus.url.removesuffix("/metrics")
        with on_terminal(*SEEN, "--fleet", f"{address}/below/", columns=140) as terminal:
            terminal.until("^3 nodes  4 gpu  1200/1400 W  util 78 % +X 1 no answer  X 1 lost  X 1 silent drivers  ! 1 hot +worst first")
            terminal.until("node-3:22235 +no answer to Prometheus")
            terminal.until("node-2:22235 +50 +X- +50% +-  amd cannot be read, gpu.1 lost")
            terminal.until("node-1:22235 +90 +!95 +93% +1.2/1.4  gpu.1 AccelHot, 1 finding")
            terminal.type("/gpu.1 AccelHot\r", "^1 nodes?|^>.node-1:22235")
            terminal.type("\r", "gpu.1 +95% +AccelHot")
            assert terminal.end("q") == 0
        (path,) = {path for path, _ in prometheus.asked}
        assert path.startswith("/below/api/v1/query?")
        (query,) = parse_qs(urlsplit(path).query)["query"]
        assert NAMES in query


@pytest.mark.parametrize(
    ("page", "status", "said"),
    [
        (answer(), 200, "Prometheus has no series of accelmetrics serve"),
        (
            answer(("accel_up", "a", gpu(0), 1)),
            200,
            "lacks the recording rules of accelmetrics: load deploy/prometheus/recording.yml under rule_files",
        ),
        ('{"status": "error", "errorType": "bad_data", "error": "too many samples"}', 422, "HTTP 422: .*too many samples"),
        ("<html>", 200, "unexpected answer: .*this is not an answer of Prometheus"),
        ("nothing here", 404, "/api/v1/query needs Prometheus"),
    ],
)
def test_what_is_missing_is_told(page: str, status: int, said: str) -> None:
    """In the place of the nodes."""
    with Endpoint(page) as prometheus:
        prometheus.kind, prometheus.status = "application/json", status
        with on_terminal(*SEEN, "--fleet", prometheus.url.removesuffix("/metrics"), columns=220) as terminal:
            terminal.until(said)


def test_a_password_is_sent_and_never_shown() -> None:
    """In the address, as for other clients of Prometheus."""
    with Endpoint(three_nodes()) as prometheus:
        address = prometheus.url.removesuffix("/metrics").replace("http://", "http://ann:open-sesame@")
        with on_terminal(*SEEN, "--fleet", address, columns=140) as terminal:
            terminal.until("^3 nodes")
            assert "open-sesame" not in "\n".join(terminal.everything)
        assert {credentials for _, credentials in prometheus.asked} == {"Basic YW5uOm9wZW4tc2VzYW1l"}


def test_nodes_of_two_jobs_with_one_address_are_told_apart() -> None:
    """By their job."""
    document = json.loads(answer((EXPECTED, "a:1", {}, 1), (EXPECTED, "a:1", {"job": "other"}, 1)))
    assert [one.name for one in read_nodes(json.dumps(document))] == ["a:1 (accelmetrics)", "a:1 (other)"]


@pytest.mark.servers
def test_a_real_prometheus(tmp_path: Path, simulator: NvmlSimulator) -> None:
    """With the rules of deploy/; a node that ends is told."""
    for one in simulator.gpu:
        one.set(ecc_uncorrected_volatile=0)
    nodes = ("--backends", "nvidia", "--interval", "0.1")
    with serving(*nodes, **simulator.environment()) as (_, first), serving(*nodes, **simulator.environment()) as (process, second):
        ready(first)
        ready(second)
        names = [base.removeprefix("http://") for base in (first, second)]
        jobs: list[dict[str, object]] = [{"job_name": "accelmetrics", "static_configs": [{"targets": names}]}]
        rules = [RULES / "recording.yml", RULES / "alerts.yml"]
        with (
            PrometheusServer(tmp_path, jobs, rules) as server,
            on_terminal(*SEEN, "--fleet", server.url, columns=140) as terminal,
        ):
            terminal.until("^2 nodes  4 gpu .*util", rf"{re.escape(names[0])} +37 +48 ")
            process.kill()
            terminal.until(rf"X{re.escape(names[1])} +no answer to Prometheus")
