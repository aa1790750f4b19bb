"""Dashboards that exist, on a real Prometheus that scrapes our endpoint: what they ask for is there, and right.

The queries have the shape of the panels and variables of dcgm-exporter's dashboard (Grafana 12239), with the variables filled
in as Grafana does for "All" and for a choice; of what else is built on it, sums by labels, shares and rates; and of training
dashboards what they ask of histograms and summaries.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from accelmetrics import Sampler
from accelmetrics.exporters.prometheus import PrometheusExporter
from accelmetrics.schemas.record import MonitorStatus, Record, Step
from accelmetrics.schemas.snapshot import Snapshot
from tests.exporters.prometheus_server import PrometheusServer
from tests.simulators.nvml import NvmlSimulator, Ramp
from tests.support.waiting import wait_for

pytestmark = pytest.mark.servers

MIB = 2**20
JOBS = ("dcgm", "training")
POWER_MW = (300_000, 431_000)

ALL = 'instance=~".*", gpu=~".*"'
PANELS = {
    "temperature": f"DCGM_FI_DEV_GPU_TEMP{{{ALL}}}",
    "mean temperature": f"avg(DCGM_FI_DEV_GPU_TEMP{{{ALL}}})",
    "power": f"DCGM_FI_DEV_POWER_USAGE{{{ALL}}}",
    "total power": f"sum(DCGM_FI_DEV_POWER_USAGE{{{ALL}}})",
    "clocks": f"DCGM_FI_DEV_SM_CLOCK{{{ALL}}} * 1000000",
    "utilisation": f"DCGM_FI_DEV_GPU_UTIL{{{ALL}}}",
    "memory": f"DCGM_FI_DEV_FB_USED{{{ALL}}}",
    "tensor cores": f"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{{{ALL}}}",
    "one gpu": 'DCGM_FI_DEV_GPU_TEMP{instance=~"(127.0.0.1.*)", gpu=~"(1)"}',
    "memory share": "DCGM_FI_DEV_FB_USED / (DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE) * 100",
    "power by host": "sum by (Hostname) (DCGM_FI_DEV_POWER_USAGE)",
    "power by host, new spelling": "sum by (hostname) (DCGM_FI_DEV_POWER_USAGE)",
    "by model": 'max by (modelName) (DCGM_FI_DEV_MEM_COPY_UTIL{modelName=~"NVIDIA.*"})',
    "energy": "rate(DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION[2s]) / 1000",
    "memory bus": "avg by (UUID) (DCGM_FI_PROF_DRAM_ACTIVE) * 100",
    "pcie": "sum(DCGM_FI_PROF_PCIE_TX_BYTES + DCGM_FI_PROF_PCIE_RX_BYTES)",
    "faults": "DCGM_FI_DEV_XID_ERRORS",
    "remapped rows": "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS + DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS",
    "held back": "avg by (hostname) (increase(DCGM_FI_DEV_POWER_VIOLATION[5m]) / 3e11) * 100",
    "ecc": "increase(DCGM_FI_DEV_ECC_DBE_VOL_TOTAL[5m]) or increase(DCGM_FI_DEV_ECC_DBE_AGG_TOTAL[5m])",
    "rows to be remapped": "max by (hostname) (DCGM_FI_DEV_ROW_REMAP_PENDING) == bool 0",
    "rows that cannot be remapped": "max by (hostname) (DCGM_FI_DEV_ROW_REMAP_FAILURE) == bool 0",
    "xids by severity": 'DCGM_FI_DEV_XID_ERRORS{err_code=~"46|48|62|64|79|95"} > 0',
    "health": 'min by (hostname) (DCGM_EXP_GPU_HEALTH_STATUS{health_watch="MEM"} == bool 0)',
    "healthy gpus": "count by (Hostname) (sum by (Hostname, gpu) (DCGM_EXP_GPU_HEALTH_STATUS == 0))",
    "gpus": "sum(max by (instance) (DCGM_FI_DEV_COUNT))",
    "engine": "avg by (modelName) (avg_over_time(DCGM_FI_PROF_GR_ENGINE_ACTIVE[1m])) * 100",
}


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrometheusServer]:
    """Prometheus, two endpoints that it scrapes, and two simulated H100s behind them, sampled ten times a second."""
    exporters = [PrometheusExporter("127.0.0.1:0", dialect=name) for name in JOBS]
    ended = threading.Event()
    with NvmlSimulator(gpus=2) as simulator:
        simulator.load()
        for gpu, power in zip(simulator.gpu, POWER_MW, strict=True):
            gpu.set(power_mw=power, temperature=60 + gpu.index, gpu_util=90, energy_mj=Ramp(1_000_000, rate=power))
        for exporter in exporters:
            exporter.open()
        feeding = threading.Thread(target=_feed, args=(exporters, ended))
        feeding.start()
        simulator.wait_for("nvmlDeviceRegisterEvents", 0)
        simulator.xid(0, 79)
        jobs = [
            {"job_name": name, "static_configs": [{"targets": [str(exporter.address)]}]}
            for name, exporter in zip(JOBS, exporters, strict=True)
        ]
        try:
            with PrometheusServer(tmp_path_factory.mktemp("dashboards"), jobs) as server:
                wait_for(lambda: server.query("training_steps_total offset 3s and training_steps_total"))
                wait_for(lambda: server.query('DCGM_FI_DEV_XID_ERRORS{err_code="79"}'))
                yield server
        finally:
            ended.set()
            feeding.join()
            for exporter in exporters:
                exporter.close()


def _feed(exporters: list[PrometheusExporter], ended: threading.Event) -> None:
    with Sampler(["nvidia"]) as sampler:
        ticks = 0
        while not ended.wait(0.1):
            ticks += 1
            taken = sampler.sample()
            metrics = {**taken.metrics, "torch.0.memoryAllocatedBytes": 100 * MIB, "torch.0.memoryReservedBytes": 120 * MIB}
            snapshot = Snapshot(taken.time_ns, taken.hostname, metrics, taken.identities, taken.unavailable, taken.backends)
            logged = Step(taken.time_ns, ticks, {"loss": 1 / ticks, "learning_rate": 1e-4, "epoch": 1, "step_seconds": 0.2})
            for exporter in exporters:
                exporter.export(Record(snapshot, {}, (logged,), MonitorStatus(0.1, ticks)))


@pytest.mark.parametrize("query", PANELS.values(), ids=PANELS.keys())
def test_every_panel_has_data(prometheus: PrometheusServer, query: str) -> None:
    """No panel of a dashboard made for dcgm-exporter stays empty."""
    found = wait_for(lambda: prometheus.query(query), what=query)
    assert all(value >= 0 for _, value in found)


def test_panels_show_the_right_numbers(prometheus: PrometheusServer) -> None:
    """What the simulated driver says, by GPU, in DCGM's units; power by energy agrees with power."""
    temperatures = {labels["gpu"]: value for labels, value in prometheus.query(PANELS["temperature"])}
    assert temperatures == {"0": 60.0, "1": 61.0}
    assert prometheus.value(PANELS["total power"]) == 731.0
    assert prometheus.value(PANELS["mean temperature"]) == 60.5
    assert prometheus.value(PANELS["one gpu"]) == 61.0
    assert prometheus.value(PANELS["gpus"]) == 2.0
    xids = wait_for(lambda: prometheus.query(PANELS["xids by severity"]))
    assert [(labels["gpu"], value) for labels, value in xids] == [("0", 79.0)]
    clocks = prometheus.query(PANELS["clocks"])
    assert all(1e8 < value < 3e9 for _, value in clocks)
    assert all(0 <= value <= 1 for _, value in prometheus.query(PANELS["tensor cores"]))

    def watts() -> dict[str, float]:
        return {labels["gpu"]: value for labels, value in prometheus.query(PANELS["energy"])}

    # As soon as two scrapes were as far apart as the readings behind them: on a loaded machine either may be late.
    wait_for(lambda: watts() == {"0": pytest.approx(300, rel=0.5), "1": pytest.approx(431, rel=0.5)}, what=watts)


def test_variables_of_the_dashboard_list_what_there_is(prometheus: PrometheusServer) -> None:
    """Grafana fills its choices from the labels of one metric."""
    assert {labels["gpu"] for labels, _ in prometheus.query("group by (gpu) (DCGM_FI_DEV_GPU_TEMP)")} == {"0", "1"}
    (labels, _), *_ = prometheus.query('DCGM_FI_DEV_GPU_TEMP{gpu="0"}')
    assert {"UUID", "pci_bus_id", "device", "modelName", "Hostname", "DCGM_FI_DRIVER_VERSION"} <= set(labels)


def test_training_dashboards(prometheus: PrometheusServer) -> None:
    """Quantiles of the step's duration, the mean of a summary, steps a second: every record counts, not those that were scraped alone."""
    ask = prometheus.value
    assert 0.1 < ask("histogram_quantile(0.95, rate(training_step_duration_seconds_bucket[2s]))") <= 0.25
    ratio = "memory_allocation_mb_sum / memory_allocation_mb_count"
    assert ask(ratio) == 100.0
    assert ask("rate(training_step_duration_seconds_sum[2s]) / rate(training_steps_total[2s])") == pytest.approx(0.2)
    assert ask("training_steps_total - on (instance) training_step_duration_seconds_count") == 0
    assert ask('gpu_memory_total_mb{gpu_index="0"}') == 81559.0
    types = {labels["__name__"] for labels, _ in prometheus.query('{job="training"}')}
    assert {"training_loss", "learning_rate", "gpu_power_draw_watts", "training_step_duration_seconds_bucket"} <= types
