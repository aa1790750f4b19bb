"""W&B's own collector reads our Prometheus endpoint, and its system metrics hold what we served."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from accelmetrics.exporters.prometheus import PrometheusExporter
from tests.exporters.wandb_file import environment, read
from tests.records import record

pytestmark = pytest.mark.peers

PROGRAM = """
import sys, time, wandb
settings = wandb.Settings(
    x_stats_open_metrics_endpoints={"accelmetrics": sys.argv[1]},
    x_stats_open_metrics_filters=["accelmetrics.accel_(power|temperature|utilization|info)"],
    x_stats_sampling_interval=0.2, silent=True, console="off")
with wandb.init(mode="offline", project="theirs", settings=settings) as run:
    run.log({"loss": 1.0})
    time.sleep(2)
"""


def test_wandb_reads_our_endpoint_into_its_system_metrics(tmp_path: Path) -> None:
    """Each of our series is one of W&B's system metrics, told apart by its labels; the run's history is left alone."""
    exporter = PrometheusExporter("127.0.0.1:0", max_age=60.0)
    exporter.open()
    try:
        exporter.export(record())
        command = [sys.executable, "-c", PROGRAM, f"http://{exporter.address}/metrics"]
        done = subprocess.run(command, cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, timeout=50)
    finally:
        exporter.close()
    assert done.returncode == 0, done.stderr
    (written,) = read(tmp_path)
    seen = [row for row in written.stats if any(key.startswith("openmetrics.") for key in row)]
    assert len(seen) >= 3
    for row in seen:
        powers = sorted(value for key, value in row.items() if key.startswith("openmetrics.accelmetrics.accel_power_watts."))
        assert powers == [70.0, 300.0], "of the two GPUs"
        assert not any("accel_memory" in key for key in row), "left out by the filter"
    assert [row["loss"] for row in written.history] == [1.0]
