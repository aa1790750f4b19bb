from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from scripts.generate import ROOT

USE = """
from typing import Literal
from typing_extensions import assert_type
from accelmetrics.schemas.snapshot import Device, Snapshot

def read(snapshot: Snapshot) -> None:
    device = snapshot.devices[0]
    assert_type(device, Device)
    assert_type(device.metrics.power_watts, float | None)
    assert_type(device.metrics.sm_clock, int | None)
    assert_type(device.metrics.utilization, float | None)
    assert_type(device.metrics.memory_used_bytes, int | None)
    assert_type(device.metrics.temperature, float | None)
    assert_type(snapshot.host.filesystems["/"].usage_gb, float | None)
    assert_type(snapshot.metrics["gpu.0.powerWatts"], int | float)
    assert_type(snapshot.unavailable["gpu.0.fanSpeed"].reason, str)
    if device.process_metrics is not None:
        assert_type(device.process_metrics.memory_allocated_bytes, int | None)
    assert_type(snapshot.device("gpu.0").vendor_index, int)
    assert_type(Snapshot.from_json("{}").backends[0].status, Literal["ok", "absent", "degraded", "failed", "timed_out"])
"""
MISUSE = """
from accelmetrics.schemas.snapshot import Snapshot

def misread(snapshot: Snapshot) -> None:
    snapshot.devices[0].metrics.power_wats
    watts: float = snapshot.devices[0].metrics.power_watts
"""


def check(path: Path, text: str) -> str:
    """What mypy says of a user's file, from outside the checkout so that its settings do not count."""
    path.write_text(text, "utf-8")
    options = ["--strict", "--config-file=", f"--cache-dir={ROOT / '.cache/mypy-users'}", "--python-version=3.10", "--no-error-summary"]
    command = [sys.executable, "-m", "mypy", *options, path.name]
    run = subprocess.run(command, capture_output=True, text=True, cwd=path.parent, env={"MYPYPATH": str(ROOT)})
    assert run.stderr == ""
    return run.stdout


@pytest.mark.slow
def test_the_public_view_is_typed(tmp_path: Path) -> None:
    assert check(tmp_path / "use.py", USE) == ""


@pytest.mark.slow
def test_a_misspelt_metric_and_a_forgotten_none_are_told(tmp_path: Path) -> None:
    output = check(tmp_path / "misuse.py", MISUSE)
    assert '"DeviceMetrics" has no attribute "power_wats"' in output
    assert "Incompatible types in assignment" in output
