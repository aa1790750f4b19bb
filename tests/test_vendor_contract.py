"""One graphics card's facts, told by every source in its own format and units: each fact has one name and one value here.

Watts come in milliwatts, microwatts, text and fractions, memory in bytes, temperatures in degrees and in thousandths of them,
shares in percent and as a ratio. Whatever a source tells must be the same number under the same key as on the others.
"""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from accelmetrics import Sampler
from accelmetrics.backends.contract import SYSTEM_CLOCK
from accelmetrics.sampling.sources import SourceRegistry
from accelmetrics.schemas.catalogue import find
from tests.simulators.amdgpu import Tree
from tests.simulators.amdgpu.machines import rx_7900
from tests.simulators.apple import MacStandIn, ioreg, kernel, macmon_0_7, macmon_0_8
from tests.simulators.nvml import NvmlSimulator
from tests.simulators.rocm_smi import RocmSmiStandIn, cards
from tests.support.threads import wait_for_no_threads
from tests.support.waiting import wait_for

GIB = 1 << 30
COMMON = {
    "gpu": 83,
    "memoryAllocated": 25,
    "memoryAllocatedBytes": 6 * GIB,
    "memoryTotalBytes": 24 * GIB,
    "temp": 51,
    "powerWatts": 241,
}
"""What every vendor tells: % of time, % of memory, bytes, °C, W."""
CARD = {
    **COMMON,
    "memory": 41,
    "memoryTemp": 74,
    "fanSpeed": 40,
    "enforcedPowerLimitWatts": 303,
    "powerPercent": 100 * 241 / 303,
    "smClock": 2411,
    "memoryClock": 1249,
    "pcieReplays": 5,
}
"""What every source of a card with memory of its own tells: % of time, °C, % of full speed, W, %, MHz, counts."""
DRIVER = {
    **CARD,
    "memoryFreeBytes": 18 * GIB,
    "correctedMemoryErrors": 7,
    "uncorrectedMemoryErrors": 1,
    "maxSmClock": 2526,
    "maxMemoryClock": 1249,
    "pcieLinkGen": 3,
    "pcieLinkWidth": 8,
    "maxPcieLinkGen": 4,
    "maxPcieLinkWidth": 16,
    "tempLimit.slowdown": 100,
    "tempLimit.shutdown": 105,
    "throttle.swPowerCap": 0,
    "throttle.swThermalSlowdown": 1,
    "throttle.hwThermalSlowdown": 0,
}
"""What drivers tell beyond that, of any vendor's card."""


class Source(NamedTuple):
    """One way of reading a device.

    Attributes:
        name: As the backend's status says it.
        values: What is read there.
        facts: What must be among it.
    """

    name: str
    values: dict[str, int | float]
    facts: dict[str, float]


Told = Callable[..., Source]


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Told:
    """Reads the only device of a machine that has nothing else."""
    root = tmp_path / "root"
    root.mkdir()
    monkeypatch.setenv("ACCELMETRICS_SYSROOT", str(root))
    monkeypatch.setattr("accelmetrics.sampling.sampler.SHARED", SourceRegistry())

    def read(backend: str, facts: dict[str, float], **options: object) -> Source:
        with Sampler([backend], timeout=5.0, **options) as sampler:  # type: ignore[arg-type]
            taken = [sampler.sample()]

            def complete() -> bool:
                taken.append(sampler.sample())
                return facts.keys() <= taken[-1].devices[0].values.keys()

            wait_for(complete)  # a command beside a stream may answer later
        (device,), (status,) = taken[-1].devices, taken[-1].backends
        return Source(status.source, dict(device.values), facts)

    return read


def nvidia(told: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Source:
    """NVML: milliwatts, bytes, bits."""
    del tmp_path, monkeypatch
    with NvmlSimulator(gpus=1, profile="h100") as simulator:
        simulator.load()
        simulator.gpu[0].set(
            **{"gpu_util": 83, "memory_util": 41, "temperature": 51, "memory_temp": 74, "fan_speed": 40, "power_mw": 241_000},
            **{"power_limit_enforced_mw": 303_000, "clock_sm": 2411, "clock_mem": 1249, "max_clock_sm": 2526, "max_clock_mem": 1249},
            **{"memory_total": 24 * GIB, "memory_used": 6 * GIB, "memory_reserved": 0, "pcie_replay": 5, "pcie_gen": 3, "pcie_width": 8},
            **{"pcie_gen_max": 4, "pcie_width_max": 16, "clocks_event_reasons": 0x20},
            temp_threshold=[105, 100],
            ecc_corrected_volatile={2: 7},
            ecc_uncorrected_volatile={2: 1},
        )
        return told("nvidia", DRIVER)


def sysfs(told: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Source:
    """The kernel's files: microwatts, thousandths of a degree, hertz, 255ths of a fan's speed, GT/s."""
    monkeypatch.setenv("PATH", str(tmp_path))
    device = rx_7900(Tree(tmp_path / "root"))
    device.write({"ras/umc_err_count": "ue: 1\nce: 7", "ras/features": "feature mask: 0x3"})
    return told("amd", DRIVER)


def rocm_smi(told: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Source:
    """A command's JSON: everything is text."""
    stand_in = RocmSmiStandIn(tmp_path)
    monkeypatch.setenv("PATH", stand_in.path)
    document = cards("radeon_6_2")
    document["card0"].update(
        {
            **{"Temperature (Sensor edge) (C)": "51.0", "Temperature (Sensor memory) (C)": "74.0", "Fan speed (%)": "40"},
            **{"Average Graphics Package Power (W)": "241.0", "Max Graphics Package Power (W)": "303.0", "GPU use (%)": "83"},
            **{
                "mclk clock speed:": "(1249Mhz)",
                "sclk clock speed:": "(2411Mhz)",
                "PCIe Replay Count": "5",
                "pcie clock level": "0 (8.0GT/s x8)",
            },
            **{"VRAM Total Memory (B)": str(24 * GIB), "VRAM Total Used Memory (B)": str(6 * GIB)},
            **{"GPU Memory Allocated (VRAM%)": "25", "GPU Memory Read/Write Activity (%)": "41"},
        }
    )
    stand_in.behave(json.dumps(document))
    return told("amd", CARD)


def _mac(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MacStandIn:
    mac = MacStandIn(tmp_path)
    monkeypatch.setenv("PATH", mac.path)
    monkeypatch.setattr(os, "uname", kernel)
    monkeypatch.setattr(os, "geteuid", lambda: 501)
    mac.behave("sysctl", f"{24 * GIB}\n")
    mac.behave("ioreg", ioreg(busy=83, used=6 * GIB))
    return mac


MEMORY = {"ram_total": 24 * GIB, "ram_usage": 12 * GIB, "swap_total": GIB, "swap_usage": 0}
HEAT = {"cpu_temp_avg": 60.0, "gpu_temp_avg": 51.0}


def macmon(told: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Source:
    """A pipe's JSON: ratios and watts; how much memory the GPU uses is another command's."""
    mac = _mac(tmp_path, monkeypatch)
    mac.behave("macmon", json.dumps(macmon_0_8(temp=HEAT, memory=MEMORY, gpu_power=241.0, gpu_active_ratio=0.83)))
    return told("apple", COMMON, clock=SYSTEM_CLOCK)


def macmon_before(told: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Source:
    """The older format, whose ratio is weighted by the clock and is no ``gpu``."""
    mac = _mac(tmp_path, monkeypatch)
    line = macmon_0_7(temp=HEAT, memory=MEMORY, gpu_power=241.0, gpu_usage=[1200, 0.4])
    mac.behave("macmon", json.dumps(line), version="macmon 0.7.2\n")
    return told("apple", COMMON, clock=SYSTEM_CLOCK)


def ioreg_alone(told: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Source:
    """A property list: whole percent and bytes, and no more."""
    _mac(tmp_path, monkeypatch).remove("macmon")
    return told(
        "apple", {name: COMMON[name] for name in ("gpu", "memoryAllocated", "memoryAllocatedBytes", "memoryTotalBytes")}, clock=SYSTEM_CLOCK
    )


SOURCES = {
    "nvml": nvidia,
    "sysfs": sysfs,
    "rocm-smi": rocm_smi,
    "macmon+ioreg": macmon,
    "macmon+ioreg, older": macmon_before,
    "ioreg": ioreg_alone,
}


@pytest.mark.parametrize("name", SOURCES)
def test_every_source_tells_a_fact_by_one_name_in_one_unit(name: str, told: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And of what it tells beyond the facts that must be there, all that the others know is the same too."""
    source = SOURCES[name](told, tmp_path, monkeypatch)
    assert source.facts.keys() <= source.values.keys(), sorted(source.facts.keys() - source.values.keys())
    assert {key: source.values[key] for key in DRIVER if key in source.values} == pytest.approx(
        {key: value for key, value in DRIVER.items() if key in source.values}
    )
    for key, value in source.values.items():
        row = find(f"gpu.0.{key}")
        assert not row.integer or type(value) is int, key
        assert (row.minimum is None or value >= row.minimum) and (row.maximum is None or value <= row.maximum), key
    assert source.name.lower().startswith(name.partition(",")[0])


@pytest.mark.parametrize("name", SOURCES)
def test_a_closed_sampler_is_freed_without_the_collector(name: str, told: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that has switched it off, as trainers do, keeps none of our objects."""
    del told  # which asks snapshots for their devices

    def read(backend: str, facts: dict[str, float], **options: object) -> Source:
        with Sampler([backend], timeout=5.0, **options) as sampler:  # type: ignore[arg-type]
            sampler.sample()
            sampler.sample()
        wait_for_no_threads()
        return Source(backend, {}, facts)

    monkeypatch.setenv("ACCELMETRICS_VALIDATE", "0")
    gc.collect()
    gc.disable()
    try:
        SOURCES[name](read, tmp_path, monkeypatch)
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        kept = sorted({type(found).__qualname__ for found in gc.garbage if type(found).__module__.startswith("accelmetrics.")})
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert kept == []
