"""Every value that NVIDIA's own tools have too, against what they say, on this machine's real GPUs: idle and under load."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Generator

import pytest

from accelmetrics import Sampler
from accelmetrics.visibility.verify import DIFFERS, verify
from tests.support.waiting import wait_for

SMI = shutil.which("nvidia-smi")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        SMI is None or subprocess.run([SMI, "-L"], capture_output=True).returncode != 0, reason="hardware: no NVIDIA GPU here"
    ),
]


ALWAYS_KNOWN = ("gpu", "memoryAllocatedBytes", "temp", "powerWatts", "smClock", "performanceState")
"""Ours for what every release of the command and of the binding has."""
IDENTITY = {"name": "name", "uuid": "uuid", "pci.bus_id": "pci_bus_id", "driver_version": "driver_version", "serial": "serial"}


def smi(*fields: str) -> list[dict[str, str]]:
    """What the tool prints, a dict a GPU."""
    assert SMI is not None
    done = subprocess.run(
        [SMI, f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"], capture_output=True, text=True, check=True
    )
    return [dict(zip(fields, map(str.strip, line.split(",")), strict=True)) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def load() -> Generator[None, None, None]:
    """Matrix products on every GPU, in a process of their own."""
    program = """
import torch
devices = range(torch.cuda.device_count())
matrices = [torch.randn(8192, 8192, device=f"cuda:{n}", dtype=torch.bfloat16) for n in devices]
print("ready", flush=True)
while True:
    for matrix in matrices:
        for _ in range(20):
            matrix @ matrix
    for n in devices:
        torch.cuda.synchronize(n)
"""
    for python in dict.fromkeys((sys.executable, shutil.which("python3") or sys.executable)):
        worker = subprocess.Popen([python, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert worker.stdout is not None
        if worker.stdout.readline() == "ready\n":
            break
        worker.stdout.close()
        worker.wait()
    else:
        pytest.skip("hardware: no Python here that has PyTorch with CUDA, to load the GPU with")
    with Sampler(["nvidia"]) as sampler:
        wait_for(lambda: all(device.values.get("gpu", 100) > 50 for device in sampler.sample().devices), what="the load to show")
    yield
    worker.kill()
    worker.wait()
    worker.stdout.close()


def agree(seconds: float = 10.0) -> None:
    """Nothing differs from what NVIDIA's command and NVIDIA's binding say, and both were asked."""
    found = verify(seconds, backends=["nvidia"])
    assert [one for one in found.comparisons if one.result == DIFFERS] == []
    assert [one for one in found.comparisons if "[N/A]" in one.detail] == [], "what the command does not have is missing here"
    assert [(one["name"], one["problem"]) for one in found.references] == [("nvidia-ml-py", ""), ("nvidia-smi", "")]
    for one in found.references:
        compared = {other.key.rpartition(".")[2] for other in found.comparisons if other.reference == one["name"]}
        assert compared.issuperset(ALWAYS_KNOWN)
    print(found.counts)


def test_the_devices_are_the_tools() -> None:
    with Sampler(["nvidia"]) as sampler:
        snapshot = sampler.sample()
    for device, row in zip(snapshot.devices, smi(*IDENTITY), strict=True):
        for field, attribute in IDENTITY.items():
            said = row.get(field, "")
            assert getattr(device.identity, attribute) == (said if number_or_text(said) else ""), field


def number_or_text(text: str) -> bool:
    """Whether the tool said anything."""
    return not text.startswith("[") and text not in {"N/A", "0"}


def test_idle_values_agree() -> None:
    agree()


def test_values_under_load_agree_and_show_the_load(load: None) -> None:
    agree()
    with Sampler(["nvidia"]) as sampler:
        snapshot = sampler.sample()
    for device in snapshot.devices:
        assert device.values["gpu"] > 50
        assert device.values["powerWatts"] > 0
        assert any(process.memory_bytes for process in device.processes or ()), "the load's process is listed with its memory"


def test_energy_is_power_over_time(load: None) -> None:
    with Sampler(["nvidia"]) as sampler:
        first = sampler.sample()
        if not all("energyJoules" in device.values for device in first.devices):
            pytest.skip("hardware: these GPUs have no energy counter")
        readings = [first]

        def measured_long_enough() -> bool:
            readings.append(sampler.sample())
            return readings[-1].time_ns - first.time_ns > 5e9

        wait_for(measured_long_enough)
        seconds = (readings[-1].time_ns - first.time_ns) / 1e9
    for device in first.devices:
        key = device.key
        joules = readings[-1].metrics[f"{key}.energyJoules"] - first.metrics[f"{key}.energyJoules"]
        mean = sum(reading.metrics[f"{key}.powerWatts"] for reading in readings) / len(readings)
        assert joules / seconds == pytest.approx(mean, rel=0.15)


def test_profiling_metrics_show_the_load_where_the_gpu_has_them(load: None) -> None:
    with Sampler(["nvidia"]) as sampler:
        wait_for(lambda: not any(why.reason == "needs_interval" for why in sampler.sample().unavailable.values()))
        snapshot = sampler.sample()
    for device in snapshot.devices:
        if "smActive" not in device.values:
            assert device.unavailable["smActive"].reason == "not_supported"
            continue
        assert device.values["smActive"] > 30
        assert device.values["pipeTensorActive"] > 10


def test_every_promised_key_has_a_value_or_a_reason() -> None:
    from accelmetrics.schemas.validation import findings

    with Sampler() as sampler:
        sampler.sample()
        assert list(findings(sampler.sample())) == []


def test_a_sample_costs_less_than_asking_the_tool() -> None:
    with Sampler(["nvidia"]) as sampler:
        sampler.sample()
        ours = [seconds_of(sampler.sample) for _ in range(50)]
    tools = [seconds_of(lambda: smi("power.draw")) for _ in range(5)]
    print(f"median {statistics.median(ours) * 1e3:.2f} ms, worst {max(ours) * 1e3:.2f} ms; the tool's {statistics.median(tools):.2f} s")
    assert statistics.median(ours) < statistics.median(tools)


def seconds_of(call: Callable[[], object]) -> float:
    """How long a call takes."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started
