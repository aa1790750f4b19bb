"""Drivers that lack the newer functions: an older form is called, or the value is not supported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any, NamedTuple

import pytest

from accelmetrics.backends.nvidia.metrics import PCIE_RATES
from tests.simulators.nvml import NvmlSimulator, Process

pytestmark = pytest.mark.usefixtures("simulator_builds")

MIB = 2**20
SCRIPT = """
import json
from accelmetrics.backends.nvidia import NvidiaBackend
from accelmetrics.backends.contract import ReadOptions
from accelmetrics.testing import FakeClock
clock = FakeClock()
driver = NvidiaBackend(clock).open()
reader = driver.reader(ReadOptions(1))
reader.read(0, [])
clock.advance(0.2)
reading = reader.read(0, [])
print(json.dumps({
    "metrics": {name: value for block in reading.blocks for name, value in zip(block.names, block.values)},
    "reasons": {name: [str(reason.reason), reason.detail] for name, reason in reading.unavailable.items()},
    "processes": reading.processes,
}))
driver.close()
"""
"""In a process of its own: a process keeps the first library that it loaded."""


class Result(NamedTuple):
    metrics: dict[str, Any]
    reasons: dict[str, tuple[str, str]]
    processes: list[list[Any]] | None
    called: set[str]


def read_on_driver_without(*hidden: str) -> Result:
    """A reading of an H100 whose driver lacks some functions."""
    with NvmlSimulator(gpus=1, hide=hidden) as simulator:
        simulator.gpu[0].set(memory_total=80_000, memory_used=20_000, memory_reserved=10_000, memory_free=50_000)
        simulator.processes(0, [Process(pid=77, used=MIB, sm=12), Process(pid=78, kind="G", used=2 * MIB)])
        environment = os.environ | simulator.environment()
        output = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True)
        return Result(**json.loads(output.stdout), called={name for name, _ in simulator.calls()})


def test_memory_without_its_second_form() -> None:
    """The first form has the driver's reserve among what is used."""
    result = read_on_driver_without("nvmlDeviceGetMemoryInfo_v2")
    metrics = result.metrics
    assert (metrics["memoryTotalBytes"], metrics["memoryAllocatedBytes"], metrics["memoryFreeBytes"]) == (80_000, 30_000, 50_000)
    assert metrics["memoryAllocated"] == 37.5
    assert metrics["temp"] == 41


def test_clocks_event_reasons_under_their_old_name() -> None:
    """The function was renamed."""
    result = read_on_driver_without("nvmlDeviceGetCurrentClocksEventReasons")
    assert result.metrics["throttle.gpuIdle"] == 1
    assert "nvmlDeviceGetCurrentClocksThrottleReasons" in result.called


KINDS = ("Compute", "Graphics", "MPSCompute")


@pytest.mark.parametrize("versions", [("_v3",), ("_v3", "_v2")], ids=["v2", "v1"])
def test_process_lists_in_their_older_forms(versions: tuple[str, ...]) -> None:
    """The second form has the third's layout, the first has one of its own."""
    result = read_on_driver_without(*(f"nvmlDeviceGet{kind}RunningProcesses{version}" for kind in KINDS for version in versions))
    assert result.processes is not None
    assert [(pid, kind, used) for pid, kind, used, *_ in result.processes] == [(77, "compute", MIB), (78, "graphics", 2 * MIB)]


def test_a_driver_before_everything_recent() -> None:
    """What has no older form is not supported; all else is there."""
    result = read_on_driver_without(
        *("nvmlDeviceGetFieldValues", "nvmlDeviceGetProcessUtilization", "nvmlDeviceGetNumaNodeId", "nvmlDeviceGetNumGpuCores"),
        *("nvmlGpmQueryDeviceSupport", "nvmlGpmSampleAlloc", "nvmlGpmSampleGet", "nvmlGpmSampleFree", "nvmlGpmMetricsGet"),
        *("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons", "nvmlDeviceGetMemoryInfo_v2"),
    )
    gone = {name for name, (reason, detail) in result.reasons.items() if detail.startswith("NVML_ERROR_FUNCTION_NOT_FOUND")}
    assert {reason for name, (reason, _) in result.reasons.items() if name not in PCIE_RATES} == {"not_supported"}
    assert gone >= {"energyJoules", "memoryTemp", "nvlinkTxBytesTotal", "smActive", "throttle.swPowerCap", "remappedRowsCorrected"}
    assert result.metrics.keys() >= {"gpu", "memoryAllocatedBytes", "powerWatts", "powerPercent", "smClock", "correctedMemoryErrors"}
    assert result.processes is not None
    assert [process[3] for process in result.processes] == [None, None]
