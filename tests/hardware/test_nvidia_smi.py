"""Every value that ``nvidia-smi`` prints too, against what it prints, on this machine's real GPUs: idle and under load.

The tool is asked before and after our reading, and ours must lie between its two answers, widened by a small margin. A value
that moves faster than that is asked for again: it must agree once in a few times, which one in another unit, or of another
thing, never does. ``[N/A]`` there must be missing here, with a reason.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from typing import NamedTuple

import pytest

from accelmetrics import Device, Sampler, Snapshot
from tests.support.waiting import wait_for

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
        queries: The tool's field, under each name that its releases have for it.
        name: Ours.
        factor: Ours times this is the tool's unit.
        margin: How far ours may lie outside the tool's two answers, in the tool's unit.
        rounding: What the tool's output rounds away.
    """

    queries: tuple[str, ...]
    name: str
    factor: float = 1.0
    margin: float = 0.0
    rounding: float = 0.0


MIB = 1.0 / (1 << 20)
REASONS = {
    "gpu_idle": "gpuIdle",
    "applications_clocks_setting": "applicationsClocksSetting",
    "sw_power_cap": "swPowerCap",
    "hw_slowdown": "hwSlowdown",
    "hw_thermal_slowdown": "hwThermalSlowdown",
    "hw_power_brake_slowdown": "hwPowerBrakeSlowdown",
    "sw_thermal_slowdown": "swThermalSlowdown",
    "sync_boost": "syncBoost",
}
SPANS = {"volatile": "", "aggregate": "Aggregate"}


def _ecc(kind: str, span: str) -> Field:
    """Errors of the device's memory alone: the tool's ``total`` counts those of the chip's own SRAM as well."""
    base = f"ecc.errors.{kind}.{span}"
    return Field((f"{base}.dram", f"{base}.device_memory"), f"{kind}MemoryErrors{SPANS[span]}")


FIELDS = [
    Field(("utilization.gpu",), "gpu", margin=3),
    Field(("utilization.memory",), "memory", margin=3),
    Field(("memory.total",), "memoryTotalBytes", MIB, rounding=1),
    Field(("memory.used",), "memoryAllocatedBytes", MIB, margin=2, rounding=1),
    Field(("memory.free",), "memoryFreeBytes", MIB, margin=2, rounding=1),
    Field(("temperature.gpu",), "temp", margin=1),
    Field(("temperature.memory",), "memoryTemp", margin=1),
    Field(("power.draw",), "powerWatts", margin=10, rounding=0.01),
    Field(("enforced.power.limit",), "enforcedPowerLimitWatts", rounding=0.01),
    Field(("pstate",), "performanceState"),
    Field(("clocks.sm",), "smClock", margin=15),
    Field(("clocks.mem",), "memoryClock"),
    Field(("clocks.gr",), "graphicsClock", margin=15),
    Field(("clocks.max.sm",), "maxSmClock"),
    Field(("clocks.max.mem",), "maxMemoryClock"),
    Field(("fan.speed",), "fanSpeed", margin=1),
    Field(("utilization.encoder",), "encoderUtilization", margin=3),
    Field(("utilization.decoder",), "decoderUtilization", margin=3),
    Field(("pcie.link.gen.current",), "pcieLinkGen"),
    Field(("pcie.link.width.current",), "pcieLinkWidth"),
    Field(("pcie.link.gen.max",), "maxPcieLinkGen"),
    Field(("pcie.link.width.max",), "maxPcieLinkWidth"),
    *(
        Field((f"clocks_event_reasons.{theirs}", f"clocks_throttle_reasons.{theirs}"), f"throttle.{ours}")
        for theirs, ours in REASONS.items()
    ),
    *(_ecc(kind, span) for kind in ("corrected", "uncorrected") for span in SPANS),
    Field(("remapped_rows.correctable",), "remappedRowsCorrected"),
    Field(("remapped_rows.uncorrectable",), "remappedRowsUncorrected"),
]
ALWAYS_KNOWN = {"gpu", "memoryAllocatedBytes", "temp", "powerWatts", "smClock", "performanceState", "throttle.swPowerCap"}
"""Ours for fields that every release of the tool has."""
ATTEMPTS = 10
"""How often a value that moves is compared before it is wrong."""
IDENTITY = {"name": "name", "uuid": "uuid", "pci.bus_id": "pci_bus_id", "driver_version": "driver_version", "serial": "serial"}


def smi(*fields: str) -> list[dict[str, str]]:
    """What the tool prints, a dict a GPU. A field that this release of the tool does not know is left out."""
    try:
        return smi_at_once(list(fields))
    except subprocess.CalledProcessError:
        pass  # it knows not all of them, and then answers none
    rows: list[dict[str, str]] = []
    for field in fields:
        try:
            answered = smi_at_once([field])
        except subprocess.CalledProcessError:
            continue
        rows = rows or [{} for _ in answered]
        for row, values in zip(rows, answered, strict=True):
            row.update(values)
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
    if text.startswith("[") or text in {"N/A", ""}:
        return None
    if text in STATES:
        return STATES[text]
    return float(text.removeprefix("P"))  # of pstate


STATES = {"Not Active": 0.0, "Active": 1.0}


@pytest.fixture(scope="module")
def known() -> list[Field]:
    """The fields, with those of their names that this release of the tool knows."""
    every = [query for field in FIELDS for query in field.queries]
    answered = smi(*every)[0]
    found = [field._replace(queries=tuple(query for query in field.queries if query in answered)) for field in FIELDS]
    found = [field for field in found if field.queries]
    assert {field.name for field in found} >= ALWAYS_KNOWN
    return found


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


def compare(known: list[Field]) -> Snapshot:
    """Hold readings between two answers of the tool, until each value has agreed once."""
    wrong: dict[tuple[str, str], str] = {}
    for attempt in range(ATTEMPTS):
        snapshot, differing = differences(known)
        wrong = differing if attempt == 0 else {place: words for place, words in differing.items() if place in wrong}
        if not wrong:
            print(f"{len(known)} fields of {len(snapshot.devices)} GPUs agree with nvidia-smi: {snapshot.metrics}")
            return snapshot
    pytest.fail("\n".join(wrong.values()))


def differences(known: list[Field]) -> tuple[Snapshot, dict[tuple[str, str], str]]:
    """One reading, and in words what of it does not agree, by device and name."""
    queries = [query for field in known for query in field.queries]
    before = smi_at_once(queries)
    with Sampler(["nvidia"]) as sampler:  # opened between the two, so that what is read seldom is as fresh as the rest
        snapshot = sampler.sample()
    after = smi_at_once(queries)
    assert len(snapshot.devices) == len(before) == len(after) > 0
    wrong = {}
    for device, first, second in zip(snapshot.devices, before, after, strict=True):
        for field in known:
            words = difference(device, field, [row[query] for row in (first, second) for query in field.queries])
            if words:
                wrong[device.key, field.name] = words
    return snapshot, wrong


def difference(device: Device, field: Field, said: list[str]) -> str:
    """What is wrong with a value; empty where nothing is."""
    answers = [value for value in map(number, said) if value is not None]
    ours = device.values.get(field.name)
    where = f"{device.key}.{field.name}: {ours} × {field.factor}, where the tool says {said} for {field.queries}"
    if not answers:
        return where if ours is not None or field.name not in device.unavailable else ""
    slack = field.rounding + field.margin
    if ours is None or not min(answers) - slack <= ours * field.factor <= max(answers) + slack:
        return f"{where}, ± {slack}: {device.unavailable.get(field.name)}"
    return ""


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
    compare(known)


def test_values_under_load_agree_and_show_the_load(known: list[Field], load: None) -> None:
    snapshot = compare(known)
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
    tools = [seconds_of(lambda: smi_at_once(["power.draw"])) for _ in range(5)]
    print(f"median {statistics.median(ours) * 1e3:.2f} ms, worst {max(ours) * 1e3:.2f} ms; the tool's {statistics.median(tools):.2f} s")
    assert statistics.median(ours) < statistics.median(tools)


def seconds_of(call: Callable[[], object]) -> float:
    """How long a call takes."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started
