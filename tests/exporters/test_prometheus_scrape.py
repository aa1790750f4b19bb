"""A real Prometheus scrapes the endpoint: in the clear, with a password, by mutual TLS; and is kept out without them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from accelmetrics import Sampler
from accelmetrics.exporters.http.access import password_line
from accelmetrics.exporters.prometheus import PrometheusExporter
from accelmetrics.schemas.record import MonitorStatus, Record
from accelmetrics.visibility.job import job_labels
from tests.exporters.certificates import Authority
from tests.exporters.prometheus_server import PrometheusServer
from tests.records import LABELS, host, machine
from tests.support.waiting import HANG, wait_for

pytestmark = pytest.mark.servers

JOB = job_labels({"SLURM_JOB_ID": "4711", "SLURM_JOB_USER": "ada", "SLURM_JOB_PARTITION": "gpu"})
"""As the product takes them from a job's environment."""


class Feed(NamedTuple):
    """Exporters that are given a record ten times a second, and what is sampled for them."""

    exporters: tuple[PrometheusExporter, ...]
    gpus: Any


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("prometheus")


@pytest.fixture(scope="module")
def authority(directory: Path) -> Authority:
    return Authority(directory)


@pytest.fixture(scope="module")
def feed(directory: Path, authority: Authority) -> Iterator[Feed]:
    """Three endpoints, fed as a monitor does it: open, secret, mutual."""
    passwords = directory / "passwords"
    passwords.write_text(password_line("prometheus", "pass:wörd") + "\n")
    certificate, key = authority.issue("accelmetrics")
    tls = {"tls_cert": str(certificate), "tls_key": str(key), "tls_client_ca": str(authority.file), "tls_client_names": "scraper"}
    exporters = (
        PrometheusExporter("127.0.0.1:0"),
        PrometheusExporter("127.0.0.1:0", auth_file=str(passwords)),
        PrometheusExporter("127.0.0.1:0", **tls),  # type: ignore[arg-type]  # words alone
    )
    gpus = machine(2)
    for exporter in exporters:
        exporter.open()
    ended = threading.Event()
    thread = threading.Thread(target=_feed, args=(exporters, gpus, ended))
    thread.start()
    yield Feed(exporters, gpus)
    ended.set()
    thread.join()
    for exporter in exporters:
        exporter.close()


def _feed(exporters: tuple[PrometheusExporter, ...], gpus: Any, ended: threading.Event) -> None:
    with Sampler([gpus, host()], timeout=HANG) as sampler:
        ticks = 0
        while not ended.wait(0.1):
            ticks += 1
            record = Record(sampler.sample(), {**LABELS, **JOB}, (), MonitorStatus(0.1, ticks))
            for exporter in exporters:
                exporter.export(record)


@pytest.fixture(scope="module")
def prometheus(directory: Path, authority: Authority, feed: Feed) -> Iterator[PrometheusServer]:
    """Prometheus with five targets, two of which it may not read."""
    certificate, key = authority.issue("scraper")
    stranger, stranger_key = authority.issue("stranger")
    ca = {"ca_file": str(authority.file)}
    plain, secret, mutual = ([{"targets": [str(exporter.address)]}] for exporter in feed.exporters)
    jobs: list[dict[str, Any]] = [
        {"job_name": "plain", "static_configs": plain},
        {"job_name": "password", "static_configs": secret, "basic_auth": {"username": "prometheus", "password": "pass:wörd"}},
        {"job_name": "no-password", "static_configs": secret},
        {
            "job_name": "mutual",
            "static_configs": mutual,
            "scheme": "https",
            "tls_config": {**ca, "cert_file": str(certificate), "key_file": str(key)},
        },
        {"job_name": "no-certificate", "static_configs": mutual, "scheme": "https", "tls_config": ca},
        {
            "job_name": "stranger",
            "static_configs": mutual,
            "scheme": "https",
            "tls_config": {**ca, "cert_file": str(stranger), "key_file": str(stranger_key)},
        },
    ]
    with PrometheusServer(directory, jobs) as server:
        yield server


def test_values_are_queried_as_they_were_measured(prometheus: PrometheusServer) -> None:
    """PromQL gives each GPU's own values in base units, and what the host says without a device's labels."""
    assert prometheus.value('accel_power_watts{job="plain",accelerator="gpu.0"}') == 300.0
    assert prometheus.value('accel_utilization_ratio{job="plain",accelerator="gpu.0",engine="compute"}') == 0.855
    assert prometheus.value('sum(accel_power_watts{job="plain"})') == 370.0
    assert prometheus.value('accel_fan_ratio{job="plain"}') == 0.3
    (labels, value) = wait_for(lambda: prometheus.query('accel_host_filesystem_used_bytes{job="plain"}'))[0]
    assert value == 10.5 * 2**30
    assert set(labels) == {"__name__", "instance", "job", "path"}


def test_what_a_device_is_and_whose_job_runs_are_joined(prometheus: PrometheusServer) -> None:
    """The rules of the field work: model and job are joined on the two identity labels; a user's label survives its quotes."""
    on = "* on (instance, accelerator, uuid) group_left"
    by_job = f'sum by (job_id, user) (accel_power_watts{{job="plain"}} {on} (job_id, user) accel_job_info)'
    assert wait_for(lambda: prometheus.query(by_job)) == [({"job_id": "4711", "user": "ada"}, 370.0)]
    by_model = f'count by (model) (accel_power_watts{{job="plain"}} {on} (model) accel_info)'
    wait_for(lambda: prometheus.query(by_model) == [({"model": "Scripted GPU"}, 2.0)])
    assert wait_for(lambda: prometheus.query('accelmetrics_run_info{job="plain"}'))[0][0]["team"] == LABELS["team"]


def test_only_known_clients_are_let_in(prometheus: PrometheusServer) -> None:
    """The right password and the right certificate scrape; without them, or with another one of the same authority, the target is down."""
    let_in = {"plain": "up", "password": "up", "mutual": "up"}
    kept_out = {"no-password": "down", "no-certificate": "down", "stranger": "down"}
    wait_for(lambda: {job: target["health"] for job, target in prometheus.targets().items()} == {**let_in, **kept_out})
    states = prometheus.targets()
    assert "401" in states["no-password"]["lastError"]
    assert "403" in states["stranger"]["lastError"]
    for job in ("password", "mutual"):
        assert prometheus.value(f'accel_power_watts{{job="{job}",accelerator="gpu.0"}}') == 300.0
    assert prometheus.query('{job="stranger",__name__=~"accel.*"}') == []


def test_a_lost_gpu_is_down_under_its_own_name(prometheus: PrometheusServer, feed: Feed) -> None:
    """Its values go stale at the next scrape, ``accel_up`` stays with the same labels, and the other GPU is not concerned."""
    before = wait_for(lambda: prometheus.query('accel_up{job="plain",accelerator="gpu.1"}'))
    assert before[0][1] == 1
    feed.gpus.device(1).lose()
    wait_for(lambda: prometheus.query('accel_up{job="plain",accelerator="gpu.1"} == 0'))
    after = wait_for(lambda: prometheus.query('accel_up{job="plain",accelerator="gpu.1"}'))
    assert after[0][0] == before[0][0]
    wait_for(lambda: not prometheus.query('accel_power_watts{job="plain",accelerator="gpu.1"}'))
    assert prometheus.value('accel_power_watts{job="plain",accelerator="gpu.0"}') == 300.0
    assert prometheus.value('accelmetrics_source_state{job="plain",source="nvidia",state="degraded"}') == 1
    feed.gpus.device(1).fail(None)
    wait_for(lambda: prometheus.query('accel_power_watts{job="plain",accelerator="gpu.1"}'))
