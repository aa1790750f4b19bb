"""Every value that ``nvidia-smi`` prints too, against what it prints, on this machine's real GPUs: idle and under load.

The tool is asked before and after our reading, and ours must lie between its two answers, widened by what the value may move
in the meantime. ``[N/A]`` there must be missing here, with a reason.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Generator
from typing import NamedTuple

import pytest

from accelmetrics import Sampler, Snapshot

SMI = shutil.which("nvidia-smi")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        SMI is None or subprocess.run([SMI, "-L"], capture_output=True).returncode != 0, reason="hardware: no NVIDIA GPU here"
    ),
]


class Field(NamedTuple):
    """One field of ``nvidia-smi --query-gpu`` and the name it has here.

    Attributes:
        query: The tool's field.
        name: Ours.
        factor: Ours times this is the tool's unit.
        slack: How far the value may move within a second, in the tool's unit, when the GPU is busy.
        rounding: What the tool's output rounds away.
    """

    query: str
    name: str
    factor: float = 1.0
    slack: float = 0.0
    rounding: float = 0.5


MIB = 1.0 / (1 << 20)
FIELDS = [
    Field("utilization.gpu", "gpu", slack=100),
    Field("utilization.memory", "memory", slack=100),
    Field("memory.total", "memoryTotalBytes", MIB),
    Field("memory.used", "memoryAllocatedBytes", MIB, slack=64, rounding=1.0),
    Field("memory.free", "memoryFreeBytes", MIB, slack=64, rounding=1.0),
    Field("temperature.gpu", "temp", slack=5),
    Field("temperature.memory", "memoryTemp", slack=5),
    Field("power.draw", "powerWatts", slack=150),
    Field("enforced.power.limit", "enforcedPowerLimitWatts"),
    Field("clocks.sm", "smClock", slack=2000),
    Field("clocks.mem", "memoryClock", slack=5),
    Field("clocks.gr", "graphicsClock", slack=2000),
    Field("clocks.max.sm", "maxSmClock"),
    Field("clocks.max.mem", "maxMemoryClock"),
    Field("fan.speed", "fanSpeed", slack=10),
    Field("utilization.encoder", "encoderUtilization", slack=100),
    Field("utilization.decoder", "decoderUtilization", slack=100),
    Field("pcie.link.gen.current", "pcieLinkGen", slack=5),
    Field("pcie.link.width.current", "pcieLinkWidth"),
    Field("pcie.link.gen.max", "maxPcieLinkGen"),
    Field("pcie.link.width.max", "maxPcieLinkWidth"),
    Field("ecc.errors.corrected.volatile.total", "correctedMemoryErrors"),
    Field("ecc.errors.uncorrected.volatile.total", "uncorrectedMemoryErrors"),
    Field("remapped_rows.correctable", "remappedRowsCorrected"),
    Field("remapped_rows.uncorrectable", "remappedRowsUncorrected"),
]
IDENTITY = {"name": "name", "uuid": "uuid", "pci.bus_id": "pci_bus_id", "driver_version": "driver_version", "serial": "serial"}


def smi(*fields: str) -> list[dict[str, str]]:
    """What the tool prints, a dict a GPU. A field that this release of the tool does not know is left out."""
    assert SMI is not None
    rows: list[dict[str, str]] = []
    for field in fields:
        done = subprocess.run([SMI, f"--query-gpu={field}", "--format=csv,noheader,nounits"], capture_output=True, text=True)
        if done.returncode != 0:
            continue
        values = [line.strip() for line in done.stdout.splitlines()]
        rows = rows or [{} for _ in values]
        for row, value in zip(rows, values, strict=True):
            row[field] = value
    return rows


def smi_at_once(fields: list[str]) -> list[dict[str, str]]:
    """As :func:`smi`, in one call: all values of one moment."""
    assert SMI is not None
    done = subprocess.run(
        [SMI, f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"], capture_output=True, text=True, check=True
    )
    return [dict(zip(fields, map(str.strip, line.split(",")), strict=True)) for line in done.stdout.splitlines()]


def number(text: str) -> float | None:
    """A number, or None for the tool's ways of saying that there is none."""
    return None if text.startswith("[") or text in {"N/A", ""} else float(text)


@pytest.fixture(scope="module")
def known() -> list[Field]:
    """The fields that this release of the tool knows."""
    answered = smi(*(field.query for field in FIELDS))
    return [field for field in FIELDS if field.query in answered[0]]


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
    time.sleep(3.0)
    yield
    worker.kill()
    worker.wait()
    worker.stdout.close()


def compare(known: list[Field], busy: bool) -> Snapshot:
    """Hold one reading between two answers of the tool."""
    queries = [field.query for field in known]
    with Sampler(["nvidia"]) as sampler:
        sampler.sample()
        before = smi_at_once(queries)
        snapshot = sampler.sample()
        after = smi_at_once(queries)
    assert len(snapshot.devices) == len(before) > 0
    wrong = []
    for device, first, second in zip(snapshot.devices, before, after, strict=True):
        for field in known:
            answers = [value for value in (number(first[field.query]), number(second[field.query])) if value is not None]
            ours = device.values.get(field.name)
            if not answers:
                if ours is not None or field.name not in device.unavailable:
                    wrong.append(f"{device.key}.{field.name}: {ours}, where the tool says {first[field.query]}")
                continue
            slack = field.rounding + (field.slack if busy else field.slack / 2)
            if ours is None or not min(answers) - slack <= ours * field.factor <= max(answers) + slack:
                said = f"where the tool says {answers} ± {slack}"
                wrong.append(f"{device.key}.{field.name}: {ours} × {field.factor}, {said}: {device.unavailable.get(field.name)}")
    assert not wrong, "\n".join(wrong)
    print(f"{len(known)} fields of {len(snapshot.devices)} GPUs agree with nvidia-smi: {snapshot.metrics}")
    return snapshot


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


def test_idle_values_agree(known: list[Field]) -> None:
    compare(known, busy=False)


def test_values_under_load_agree_and_show_the_load(known: list[Field], load: None) -> None:
    snapshot = compare(known, busy=True)
    for device in snapshot.devices:
        assert device.values["gpu"] > 50
        assert device.values["powerWatts"] > 0
        assert any(process.memory_bytes for process in device.processes or ()), "the load's process is listed with its memory"


def test_energy_is_power_over_time(load: None) -> None:
    with Sampler(["nvidia"]) as sampler:
        first = sampler.sample()
        if not all("energyJoules" in device.values for device in first.devices):
            pytest.skip("hardware: these GPUs have no energy counter")
        readings = []
        started = time.monotonic()
        while time.monotonic() - started < 5.0:
            readings.append(sampler.sample())
            time.sleep(0.1)
        seconds = (readings[-1].time_ns - first.time_ns) / 1e9
    for device in first.devices:
        key = device.key
        joules = readings[-1].metrics[f"{key}.energyJoules"] - first.metrics[f"{key}.energyJoules"]
        mean = sum(reading.metrics[f"{key}.powerWatts"] for reading in readings) / len(readings)
        assert joules / seconds == pytest.approx(mean, rel=0.15)


def test_profiling_metrics_show_the_load_where_the_gpu_has_them(load: None) -> None:
    with Sampler(["nvidia"]) as sampler:
        sampler.sample()
        time.sleep(1.0)
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


def test_a_sample_costs_little() -> None:
    with Sampler(["nvidia"]) as sampler:
        sampler.sample()
        costs = []
        for _ in range(50):
            started = time.perf_counter()
            sampler.sample()
            costs.append(time.perf_counter() - started)
            time.sleep(0.02)
    print(f"median {sorted(costs)[25] * 1e3:.2f} ms, worst {max(costs) * 1e3:.2f} ms")
    assert sorted(costs)[25] < 0.25
