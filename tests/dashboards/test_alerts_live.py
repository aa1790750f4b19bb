"""The alerts on a real node: what Prometheus makes of all rules, and what Alertmanager sends on of it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.cli.shell import environment, start
from tests.dashboards.site import LOST, NODE, Site, site
from tests.dashboards.test_alerts import ALERTS, BY_NAME, RECORDED, RECORDING
from tests.exporters.prometheus_server import PrometheusServer, Server, fetch, program
from tests.exporters.receivers import http_server
from tests.simulators.nvml import NvmlSimulator, Ramp
from tests.support.network import free_port
from tests.support.waiting import HANG, wait_for

CONFIGURATION = ALERTS.parents[1] / "alertmanager" / "alertmanager.yml"
RECEIVER = "http://127.0.0.1:8060"
"""Where the example sends everything."""
BROKEN = {
    ("AccelDeviceDown", f"gpu.{LOST}"),
    ("AccelHot", "gpu.1"),
    ("AccelOverheating", "gpu.1"),
    ("AccelNearSlowdown", "gpu.1"),
    ("AccelUncorrectableEcc", "gpu.1"),
    ("AccelUncorrectableEcc", ""),  # of Trainium, counted by its own number
    ("AccelXidCritical", "gpu.1"),
    ("AccelFleetUnhealthy", ""),
}
"""What is wrong with the site's node, by alert and device."""

Notice = tuple[str, dict[str, Any]]


class Watched(NamedTuple):
    """A site whose alerts go somewhere.

    Attributes:
        site: The node and its Prometheus.
        alertmanager: Where that answers.
        notices: What came in by webhook: path and body.
    """

    site: Site
    alertmanager: str
    notices: list[Notice]

    def sent(self, path: str, alert: str, status: str = "firing") -> list[dict[str, Any]]:
        """The alerts of a name that came in under a path."""
        bodies = [body for where, body in list(self.notices) if where == path]
        return [one for body in bodies for one in body["alerts"] if one["labels"]["alertname"] == alert and one["status"] == status]


def hasty(folder: Path) -> list[Path]:
    """All rules, with alerts that do not wait."""
    files = []
    for path in (RECORDING, ALERTS):
        files.append(folder / path.name)
        files[-1].write_text(re.sub(r"^( +for:) \w+$", r"\1 0s", path.read_text("utf-8"), flags=re.MULTILINE))
    return files


@contextmanager
def watched(folder: Path) -> Iterator[Watched]:
    """A site with all rules, whose alerts do not wait, and an Alertmanager by the example, whose groups hardly do."""
    files = hasty(folder)
    notices: list[Notice] = []
    lock = threading.Lock()

    def answer(path: str, headers: dict[str, str], body: bytes) -> tuple[int, str, bytes]:
        assert headers["content-type"] == "application/json"
        with lock:
            notices.append((path, json.loads(body)))
        return 200, "text/plain", b""

    with http_server(answer) as receiver:
        text = CONFIGURATION.read_text("utf-8").replace(RECEIVER, receiver)
        configuration = folder / "alertmanager.yml"
        configuration.write_text(re.sub(r"(group_(?:wait|interval)): \w+", r"\1: 1s", text))
        port = free_port()
        address = f"127.0.0.1:{port}"
        command = [program("prometheus-alertmanager"), f"--config.file={configuration}", f"--storage.path={folder / 'alerts'}"]
        command += [f"--web.listen-address={address}", "--cluster.listen-address=", "--log.level=warn"]
        with Server(command, port, "/-/ready", folder), site(folder, files, address) as made:
            yield Watched(made, f"http://{address}", notices)


def fired(made: Watched, job: str = NODE) -> set[tuple[str, str]]:
    """The alerts that Prometheus fires now, by name and device."""
    found = made.site.prometheus.query(f'ALERTS{{alertstate="firing",job="{job}"}}')
    return {(labels["alertname"], labels.get("accelerator", "")) for labels, _ in found}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """It, when what is broken has fired."""
    with watched(tmp_path_factory.mktemp("watched")) as running:
        wait_for(lambda: fired(running) >= BROKEN, what=lambda: BROKEN - fired(running))
        yield running


@pytest.mark.servers
def test_every_rule_is_evaluated_without_error(made: Watched) -> None:
    """All of both files, and again when there are series for all."""
    evaluated = wait_for(lambda: [rule for rule in made.site.prometheus.rules() if rule["health"] != "unknown"])
    assert {rule["name"] for rule in evaluated} == set(BY_NAME) | set(RECORDED)
    assert [(rule["name"], rule["lastError"]) for rule in evaluated if rule["health"] != "ok"] == []


@pytest.mark.servers
@pytest.mark.parametrize("name", RECORDED)
def test_every_recording_gives_series(made: Watched, name: str) -> None:
    """Which say what they are of."""
    found = wait_for(lambda: made.site.prometheus.query(name), what=name)
    if name.startswith("accelerator"):
        assert all({"job", "instance", "accelerator", "uuid"} <= set(labels) for labels, _ in found)


@pytest.mark.servers
def test_devices_of_all_vendors_are_in(made: Watched) -> None:
    """NVIDIA's, AMD's, Google's and Amazon's, under the same name."""
    found = made.site.prometheus.query(f'accelerator:accel_utilization:ratio{{job="{NODE}"}}')
    assert {labels["accelerator"]: value for labels, value in found} == {
        "gpu.0": 0.97,
        "gpu.1": 0,
        "gpu.3": 0.83,
        "tpu.8": 0.995,
        "tpu.9": 0.1225,
        "trn.0": 0.125,
        "trn.1": 0.8025,
    }
    assert made.site.prometheus.value('job_id:accel_utilization:avg5m{job_id="4711",user="ada"}') == 0
    assert made.site.prometheus.value('pod:accel_utilization:avg5m{pod="train-0",namespace="ml"}') == pytest.approx(0.97)


@pytest.mark.servers
def test_only_what_is_broken_fires(made: Watched) -> None:
    """The counters of energy stand still here, since the simulator's do; nothing else is said of the node, and of the training nothing."""
    still = {("AccelCounterStuck", f"gpu.{index}") for index in range(4)}
    assert fired(made) - still == BROKEN
    assert fired(made, "training") <= still


@pytest.mark.servers
def test_what_is_said_can_be_read(made: Watched) -> None:
    """Texts are filled in from the labels and values that there are."""
    alerts = json.loads(fetch(f"{made.site.prometheus.url}/api/v1/alerts"))["data"]["alerts"]
    texts = {(one["labels"]["alertname"], one["labels"].get("accelerator", "")): one["annotations"]["summary"] for one in alerts}
    node = made.site.node
    assert texts["AccelOverheating", "gpu.1"] == f"{node} gpu.1: 88 °C"
    assert texts["AccelXidCritical", "gpu.1"] == f"{node} gpu.1: Xid 79"
    assert texts["AccelUncorrectableEcc", "gpu.1"] == f"{node} gpu.1: 2 uncorrected memory errors"
    assert texts["AccelUncorrectableEcc", ""].startswith(f"{node} Neuron device 0: ")
    assert texts["AccelFleetUnhealthy", ""] == f"{NODE}: 87.5% of the devices answer"
    assert not [text for text in texts.values() if "<" in text or "%!" in text]


@pytest.mark.servers
def test_alertmanager_sends_them_on(made: Watched) -> None:
    """By severity, with what to do; of a lost device once, of the graver of two things alone."""
    (lost, *_) = wait_for(lambda: made.sent("/on-call", "AccelDeviceDown"))
    assert (lost["labels"]["accelerator"], lost["labels"]["severity"]) == (f"gpu.{LOST}", "critical")
    assert lost["annotations"]["runbook_url"].endswith("docs/runbook.md#acceldevicedown")
    wait_for(lambda: made.sent("/on-call", "AccelXidCritical"))
    wait_for(lambda: suppressed(made, "AccelHot"), what="AccelOverheating silences AccelHot")
    assert not made.sent("/on-call", "AccelHot"), "a warning"


def post(made: Watched, labels: dict[str, str]) -> None:
    """Give Alertmanager an alert that goes on."""
    body = json.dumps([{"labels": labels}]).encode()
    asked = urllib.request.Request(f"{made.alertmanager}/api/v2/alerts", body, {"Content-Type": "application/json"})
    urllib.request.urlopen(asked, timeout=HANG).close()


def suppressed(made: Watched, alert: str) -> bool:
    """Whether Alertmanager holds an alert of this name back, since another says it."""
    alerts = json.loads(fetch(f"{made.alertmanager}/api/v2/alerts"))
    found = [one["status"] for one in alerts if one["labels"]["alertname"] == alert and one["labels"].get("job") == NODE]
    return bool(found) and all(one["inhibitedBy"] for one in found)


@pytest.mark.servers
def test_a_node_that_is_away_silences_what_says_that_data_is_missing(tmp_path: Path) -> None:
    """And nothing that was found of its hardware before: an Xid goes on for an hour. It is critical, since a job ran on the node."""
    with watched(tmp_path) as made:
        wait_for(lambda: made.sent("/on-call", "AccelXidCritical"))
        assert not suppressed(made, "AccelXidCritical")
        made.site.program.send_signal(signal.SIGSTOP)
        (down, *_) = wait_for(lambda: made.sent("/on-call", "AccelmetricsDown"))
        assert (down["labels"]["instance"], down["labels"]["severity"]) == (made.site.node, "critical")
        for name in ("AccelDeviceMissing", "AccelUncorrectableEcc"):  # as another Prometheus would say
            post(made, {"alertname": name, "severity": "critical", "job": NODE, "instance": made.site.node, "accelerator": "gpu.9"})
        wait_for(lambda: suppressed(made, "AccelDeviceMissing"))
        wait_for(lambda: made.sent("/on-call", "AccelUncorrectableEcc"))
        assert not suppressed(made, "AccelXidCritical")
        assert not suppressed(made, "AccelUncorrectableEcc")
        made.site.program.send_signal(signal.SIGCONT)
        wait_for(lambda: made.sent("/on-call", "AccelmetricsDown", "resolved"))
        wait_for(lambda: not suppressed(made, "AccelDeviceMissing"))


@pytest.mark.servers
def test_partitions_come_and_go_without_an_alert(tmp_path: Path) -> None:
    """A GPU is divided into seven, and MIG is ended: counts and shares of the node and the fleet are those of GPUs throughout."""
    with NvmlSimulator(gpus=2, profile="h100") as gpus, ExitStack() as stack:
        for index in range(2):
            gpus.gpu[index].set(energy_mj=Ramp(1_000_000, rate=300_000), ecc_uncorrected_volatile=0)
        gpus.partition(1, ["1g.10gb"] * 7)
        serve = ("serve", "--listen", "127.0.0.1:0", "--backends", "nvidia,host", "--interval", "0.2")
        program = start(*serve, env=environment(**gpus.environment()))
        stack.callback(program.communicate)
        stack.callback(program.kill)
        assert program.stderr is not None
        jobs = [{"job_name": NODE, "honor_labels": True, "static_configs": [{"targets": [program.stderr.readline().split("/")[2]]}]}]
        prometheus = stack.enter_context(PrometheusServer(tmp_path, jobs, hasty(tmp_path)))

        def counted() -> list[float | None]:
            names = ("count(accel_up)", "accelmetrics_devices_expected", "instance:accel_devices_expected:max1d")
            return [prometheus.value(name) for name in (*names, "instance:accel_up:sum", "job:accel_up:ratio")]

        wait_for(lambda: counted() == [9, 2, 2, 2, 1], what=counted)
        gpus.partition(1, None)
        wait_for(lambda: counted() == [2, 2, 2, 2, 1], what=counted)
        gpus.partition(0, ["3g.40gb", "3g.40gb"])
        wait_for(lambda: counted() == [4, 2, 2, 2, 1], what=counted)
        assert [labels for labels, _ in prometheus.query('count_over_time(ALERTS{alertstate="firing",job!=""}[1h])')] == []


# As it is written


@pytest.mark.servers
def test_the_example_is_valid() -> None:
    """By Alertmanager's own tool, which says where each severity goes."""
    amtool = program("amtool")
    done = subprocess.run([amtool, "check-config", CONFIGURATION], capture_output=True, text=True, timeout=HANG)
    assert done.returncode == 0, done.stdout + done.stderr
    for severity, receiver in {"critical": "on-call", "warning": "week", "info": "owners"}.items():
        command = [amtool, "config", "routes", "test", f"--config.file={CONFIGURATION}", f"severity={severity}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=HANG)
        assert done.stdout.strip() == receiver, done.stderr


def test_the_example_names_alerts_that_there_are() -> None:
    """In what silences what; it posts to this machine alone."""
    text = CONFIGURATION.read_text("utf-8")
    for pattern in re.findall(r'alertname =~? "([^"]+)"', text):
        assert any(re.fullmatch(pattern, name) for name in BY_NAME), pattern
    assert set(re.findall(r"url: (http://[^/]+)", text)) == {RECEIVER}
