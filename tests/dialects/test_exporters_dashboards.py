"""Dashboards made for nvidia_gpu_exporter, nvitop-exporter and AMD's exporter, asked of a real Prometheus that scrapes our endpoints."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping

import pytest

from accelmetrics import Sampler
from accelmetrics.exporters.prometheus import PrometheusExporter
from accelmetrics.schemas.record import MonitorStatus, Record
from accelmetrics.schemas.snapshot import Device
from tests.dialects.scenes import record
from tests.dialects.test_amd import VALUES, card
from tests.exporters.prometheus_server import PrometheusServer
from tests.simulators.nvml import NvmlSimulator, Ramp
from tests.support.waiting import wait_for

pytestmark = pytest.mark.servers

NAMES = ("nvidia_smi", "nvitop", "amd")
PANELS = {
    "share of power": "nvidia_smi_power_draw_watts / nvidia_smi_enforced_power_limit_watts",
    "share of clocks": "nvidia_smi_clocks_current_graphics_clock_hz / nvidia_smi_clocks_max_graphics_clock_hz",
    "joined with what it is": "nvidia_smi_utilization_gpu_ratio * on (uuid) group_left (index, name) nvidia_smi_gpu_info",
    "errors by any name": 'sum by (uuid) ({__name__=~"nvidia_smi_ecc_errors_uncorrected_aggregate_.+"})',
    "watts from joules": "rate(nvidia_smi_energy_joules_total[3s])",
    "instances by profile": (
        "nvidia_smi_mig_memory_used_bytes * on (uuid, gpu_instance_id) group_left (profile)"
        ' max by (uuid, gpu_instance_id, profile) (label_replace(nvidia_smi_mig_info, "profile", "$1", "profile", "^[0-9]+c\\\\.(.*)$"))'
    ),
    "since the last xid": 'time() - max by (uuid, xid) (nvidia_smi_xid_last_timestamp_seconds{xid="79"})',
    "collection": "nvidia_smi_last_collect_success == 1",
    "host": 'host_cpu_percent_Percentage{hostname=~".*"}',
    "memory of the host": "host_virtual_memory_used_MiB / host_virtual_memory_total_MiB",
    "traffic of the host": "sum by (hostname) (rate(host_net_io_rx_data_MiB[5s]))",
    "memory": "gpu_memory_used_MiB",
    "links": "gpu_nvlink_total_rx_throughput_MiBps + gpu_nvlink_total_tx_throughput_MiBps",
    "gpus": "count(gpu_memory_total_MiB)",
    "busy": 'topk(5, gpu_gfx_busy_instantaneous{card_model!~"102-D65208-0C|102-D67305-00"})',
    "memory of a job": 'sum(gpu_used_vram{job_id!="", job_id="77"}) / sum(gpu_total_vram{job_id!="", job_id="77"})',
    "gpus of a pod": 'sum(group by (gpu_uuid) (gpu_gfx_busy_instantaneous{pod="train-0"} > 0))',
    "power of both generations": "sum(gpu_average_package_power) + sum(gpu_package_power)",
    "healthy": "sum(group by (gpu_uuid) (gpu_health == 1))",
    "energy": "delta(gpu_energy_consumed[3s])",
}


def pod_of(device: Device) -> Mapping[str, str]:
    """The first card is given to a pod."""
    return {"pod": "train-0", "namespace": "ml", "container": "main"} if device.index == 0 else {}


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrometheusServer]:
    """Prometheus, three endpoints, and behind them two simulated H100s, one of them divided, and two cards of AMD's."""
    exporters = {name: PrometheusExporter("127.0.0.1:0", dialect=name, device_labels=pod_of) for name in NAMES}
    ended = threading.Event()
    with NvmlSimulator(gpus=2) as simulator:
        simulator.load()
        simulator.partition(1, ["3g.40gb"])
        for gpu in simulator.gpu:
            gpu.set(power_mw=300_000, energy_mj=Ramp(1_000_000, rate=300_000))
        for exporter in exporters.values():
            exporter.open()
        feeding = threading.Thread(target=_feed, args=(exporters, ended))
        feeding.start()
        simulator.wait_for("nvmlDeviceRegisterEvents", 0)
        simulator.xid(0, 79)
        jobs = [{"job_name": name, "static_configs": [{"targets": [str(exporters[name].address)]}]} for name in NAMES]
        try:
            with PrometheusServer(tmp_path_factory.mktemp("dashboards"), jobs) as server:
                yield server
        finally:
            ended.set()
            feeding.join()
            for exporter in exporters.values():
                exporter.close()


def _feed(exporters: Mapping[str, PrometheusExporter], ended: threading.Event) -> None:
    with Sampler(["nvidia", "host"]) as sampler:
        ticks = 0
        while not ended.wait(0.1):
            ticks += 1
            taken, status = sampler.sample(), MonitorStatus(0.1, ticks)
            for name in ("nvidia_smi", "nvitop"):
                exporters[name].export(Record(taken, {}, (), status))
            energy = {**VALUES, "energyJoules": 60.0 * ticks}
            cards = record({card(0, "gfx90a"): energy, card(1, "gfx942"): energy}, time_ns=taken.time_ns)
            exporters["amd"].export(cards._replace(labels={"slurm.job_id": "77"}, monitor=status))


@pytest.mark.parametrize("query", PANELS.values(), ids=PANELS.keys())
def test_every_panel_has_data(prometheus: PrometheusServer, query: str) -> None:
    """No panel of this shape stays empty."""
    found = wait_for(lambda: prometheus.query(query), what=query)
    assert all(value >= 0 for _, value in found)


def test_panels_show_the_right_numbers(prometheus: PrometheusServer) -> None:
    """As many devices as there are, in the units of each exporter; both generations' power adds up once."""
    assert prometheus.value(PANELS["gpus"]) == 3  # the instance too, as nvitop-exporter counts it
    assert prometheus.value(PANELS["gpus of a pod"]) == 1
    assert prometheus.value(PANELS["power of both generations"]) == 2 * VALUES["powerWatts"]
    assert {round(value, 3) for _, value in prometheus.query(PANELS["share of power"])} == {0.429}
    ((labels, _),) = wait_for(lambda: prometheus.query(PANELS["instances by profile"]))
    assert labels["profile"] == "3g.40gb"
    shares = [value for _, value in prometheus.query(PANELS["share of clocks"])]
    assert shares and all(0 < share <= 1 for share in shares)
