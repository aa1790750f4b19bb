"""Hardware whose driver does not answer: every command that watches, the monitor and the shipped alerts say so."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from unittest.mock import patch

import pytest

from accelmetrics import Monitor
from accelmetrics.exporters.scrape_cache import ScrapeCache
from accelmetrics.schemas.record import Record
from accelmetrics.testing import FakeBackend
from tests.cli.shell import REPOSITORY, Tree, one_line, rest_of, start
from tests.cli.terminals import on_terminal
from tests.exporters.prometheus_server import program
from tests.simulators.nvml import NvmlSimulator, Ret, attached
from tests.simulators.rocm_smi import RocmSmiStandIn
from tests.support.waiting import HANG, wait_for

NVIDIA, AMD = "0x10de", "0x1002"
ALERTS = REPOSITORY / "deploy" / "prometheus" / "alerts.yml"
ABOUT_DRIVERS = "AccelSourceFailing", "AccelDeviceMissing"

Breaking = Callable[[Tree, NvmlSimulator, Path], Mapping[str, str]]


def no_library(tree: Tree, simulator: NvmlSimulator, tmp_path: Path) -> Mapping[str, str]:
    """The card is there, the library is not."""
    del simulator, tmp_path
    return tree.gpu("0000:01:00.0", NVIDIA).gpu("0000:02:00.0", NVIDIA).environment()


def mismatched(tree: Tree, simulator: NvmlSimulator, tmp_path: Path) -> Mapping[str, str]:
    """An update without a reboot."""
    del tmp_path
    simulator.fail_init(Ret.LIB_RM_VERSION_MISMATCH)
    tree.gpu("0000:01:00.0", NVIDIA, "nvidia").gpu("0000:02:00.0", NVIDIA, "nvidia").write("/dev/nvidiactl")
    return tree.environment(**simulator.environment())


def no_permission(tree: Tree, simulator: NvmlSimulator, tmp_path: Path) -> Mapping[str, str]:
    """The driver is there and says no."""
    env = mismatched(tree, simulator, tmp_path)
    simulator.fail_init(Ret.NO_PERMISSION)
    return env


def failing_tool(tree: Tree, simulator: NvmlSimulator, tmp_path: Path) -> Mapping[str, str]:
    """The vendor's tool ends with an error."""
    del simulator
    stand_in = RocmSmiStandIn(tmp_path)
    stand_in.behave("", errors="ERROR: the driver is not initialised", status=1)
    tree.gpu("0000:01:00.0", AMD, "amdgpu").gpu("0000:02:00.0", AMD, "amdgpu").write("/dev/kfd")
    return tree.environment(PATH=stand_in.path)


WAYS = {"nvidia": (no_library, mismatched, no_permission), "amd": (failing_tool,)}
BREAKING = pytest.mark.parametrize(
    ("vendor", "breaking"),
    [pytest.param(vendor, way, id=way.__name__) for vendor, ways in WAYS.items() for way in ways],
)


@BREAKING
def test_record_and_run_tell_it_once_and_show_it(
    vendor: str, breaking: Breaking, tree: Tree, simulator: NvmlSimulator, tmp_path: Path
) -> None:
    """A line on standard error, and a place in every line of a reading."""
    env = breaking(tree, simulator, tmp_path)
    pinned = ("--timeout", "60", *(("--amd-source", "rocm-smi") if vendor == "amd" else ()))
    process = start("record", "--interval", "0.5", *pinned, env=env)
    lines = [process.stdout.readline(), process.stdout.readline()]
    process.send_signal(signal.SIGINT)
    _, told = rest_of(process)
    assert process.returncode == 0
    assert one_line(told).startswith(f"accelmetrics: warning: source {vendor}: ")
    assert all(line.endswith(f" | {vendor}: failed\n") for line in lines), lines
    target = tmp_path / "run.jsonl"
    read = f"until [ -s {target} ]; do sleep 0.05; done"
    # In a process of its own: this one may have loaded the library for another test.
    ran = start("run", "--no-summary", "--no-line", *pinned, "--exporter", f"jsonl:{target}", "--", "sh", "-c", read, env=env)
    assert rest_of(ran)[1] == told


@BREAKING
def test_the_alerts_of_the_documentation_fire(
    vendor: str, breaking: Breaking, tree: Tree, simulator: NvmlSimulator, tmp_path: Path
) -> None:
    """What the bus shows is expected, and the source has not succeeded."""
    env = breaking(tree, simulator, tmp_path)
    monitor = Monitor(0.1, backends=[vendor], timeout=60, open_timeout=60, amd_source="rocm-smi" if vendor == "amd" else None)
    with patch.dict(os.environ, env, clear=True), attached(env), monitor:
        wait_for(lambda: monitor.error)
        assert monitor.error.startswith(f"{vendor}: ")
        latest = wait_for(lambda: monitor.latest)
    assert latest is not None
    cache = ScrapeCache("prometheus", 1000)
    cache.take(Record(latest))
    text = cache.metrics().decode()
    assert "accelmetrics_devices_expected 2" in text
    assert f'accelmetrics_collect_success{{source="{vendor}"}} 0' in text


@pytest.mark.servers
def test_prometheus_says_that_they_fire(tmp_path: Path) -> None:
    """By its own tool: on a node whose driver never opened the two that are about it, on a healthy one none of the two."""
    broken = {"accelmetrics_devices_expected": 8, 'accelmetrics_collect_success{source="nvidia"}': 0}
    well = {"accelmetrics_devices_expected": 1, 'accelmetrics_collect_success{source="nvidia"}': 1, 'accel_info{accelerator="gpu.0"}': 1}
    tests = []
    for series, fires in ((broken, True), (well, False)):
        given = [{"series": _of_node(name), "values": f"{value}x15"} for name, value in series.items()]
        counts = [
            {
                "expr": f'count(ALERTS{{alertname="{alert}",alertstate="firing"}}) or vector(0)',
                "eval_time": "15m",
                "exp_samples": [_sample(fires)],
            }
            for alert in ABOUT_DRIVERS
        ]
        tests.append({"interval": "1m", "input_series": given, "promql_expr_test": counts})
    (tmp_path / "tests.yml").write_text(json.dumps({"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": tests}))
    done = subprocess.run(
        [program("promtool"), "test", "rules", "tests.yml"], cwd=tmp_path, capture_output=True, text=True, timeout=2 * HANG
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _of_node(series: str) -> str:
    """A series as Prometheus has it of a node."""
    name, brace, labels = series.partition("{")
    return f'{name}{{instance="node-1",job="accelmetrics"{"," + labels if brace else "}"}'


def _sample(value: int) -> dict[str, object]:
    return {"labels": "{}", "value": int(value)}


def test_the_live_view_has_a_row(tree: Tree) -> None:
    """With what is wrong."""
    env = tree.gpu("0000:01:00.0", NVIDIA).environment()
    with on_terminal("watch", "--interval", "0.1", "--timeout", "60", env=env) as terminal:
        terminal.until(r"^.Xnvidia  failed: the driver's library is not installed")
        assert "no device was found" not in terminal.text
        assert terminal.end("q") == 0


def test_a_library_without_hardware_is_no_silence(tree: Tree, simulator: NvmlSimulator) -> None:
    """As a container image brings it to a node without GPUs."""
    simulator.driver_away()
    process = start("record", "--interval", "0.5", "--timeout", "60", env=tree.environment(**simulator.environment()))
    lines = [process.stdout.readline(), process.stdout.readline()]
    process.send_signal(signal.SIGINT)
    assert rest_of(process)[1] == ""
    assert all(line.startswith("Host Monitor - ") and "nvidia" not in line for line in lines), lines


def test_the_monitors_error_goes_when_the_source_answers_again(caplog: pytest.LogCaptureFixture) -> None:
    """It is logged once, however long it lasts."""
    backend = FakeBackend(devices=1)
    device = backend.device(0)
    device.set(temp=40)
    with caplog.at_level(logging.WARNING, logger="accelmetrics"), Monitor(0.02, backends=[backend]) as monitor:
        wait_for(lambda: monitor.latest)
        assert monitor.error == ""
        device.fail(OSError("no answer"))
        wait_for(lambda: re.fullmatch("fake: gpu.0: driver_error: OSError: no answer", monitor.error))
        ticks = monitor.status.ticks
        wait_for(lambda: monitor.status.ticks > ticks + 3)
        device.set(temp=41)
        device.fail(None)
        wait_for(lambda: monitor.error == "")
        with monitor.window() as window:
            pass
        assert window.summary["gpu.0.temp"].last == 41
    assert [line.getMessage().partition(" (run `")[0] for line in caplog.records] == [
        "source fake: gpu.0: driver_error: OSError: no answer"
    ]
