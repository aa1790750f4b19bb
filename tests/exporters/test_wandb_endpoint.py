"""W&B's own collector reads our Prometheus endpoint, and its system metrics hold what we served."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tornado.httputil import HTTPServerRequest

from accelmetrics.exporters.prometheus import PrometheusExporter
from tests.exporters.wandb_file import environment, read
from tests.records import record
from tests.support.programs import Program
from tests.support.waiting import wait_for

pytestmark = pytest.mark.peers

PROGRAM = """
import sys, wandb
settings = wandb.Settings(
    x_stats_open_metrics_endpoints={"accelmetrics": sys.argv[1]},
    x_stats_open_metrics_filters=["accelmetrics.accel_(power|temperature|utilization|info)"],
    x_stats_sampling_interval=0.2, silent=True, console="off")
with wandb.init(mode="offline", project="theirs", settings=settings) as run:
    run.log({"loss": 1.0})
    tell("begun")
    wait_to_go_on()
"""


def test_wandb_reads_our_endpoint_into_its_system_metrics(tmp_path: Path) -> None:
    """Each of our series is one of W&B's system metrics, told apart by its labels; the run's history is left alone."""
    exporter = PrometheusExporter("127.0.0.1:0", max_age=3600)
    scrapes: list[HTTPServerRequest] = []
    path, route, arguments = exporter.routes[1]

    def metrics(request: HTTPServerRequest) -> Any:
        scrapes.append(request)
        return arguments["compute"](request)

    exporter.routes[1] = (path, route, {"compute": metrics})
    exporter.open()
    try:
        exporter.export(record())
        with Program(PROGRAM, f"http://{exporter.address}/metrics", cwd=tmp_path, env=environment(tmp_path)) as program:
            program.told()
            wait_for(lambda: len(scrapes) > 4)
            program.go_on()
            assert program.end() == 0, program.errors
    finally:
        exporter.close()
    (written,) = read(tmp_path)
    seen = [row for row in written.stats if any(key.startswith("openmetrics.") for key in row)]
    assert len(seen) >= 3
    for row in seen:
        powers = sorted(value for key, value in row.items() if key.startswith("openmetrics.accelmetrics.accel_power_watts."))
        assert powers == [70.0, 300.0], "of the two GPUs"
        assert not any("accel_memory" in key for key in row), "left out by the filter"
    assert [row["loss"] for row in written.history] == [1.0]
