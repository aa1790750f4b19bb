"""NVIDIA, AMD, TPU and the host in one program: no key collides, units agree, and one vendor's trouble stays its own."""

from __future__ import annotations

import time
from collections.abc import Generator
from pathlib import Path

import pytest

from accelmetrics import Reason, Sampler, Snapshot
from accelmetrics.sampling.sources import SourceRegistry
from tests.simulators.nvml import Crash, NvmlSimulator
from tests.simulators.rocm_smi import RocmSmiStandIn, output
from tests.simulators.tpu import DUTY_CYCLE, TOTAL, USAGE, TpuMachine, TpuRuntime
from tests.support.waiting import wait_for

INIT = "nvmlInitWithFlags"
TIMEOUT = 1.0
"""Seconds that a reading may take."""


@pytest.fixture(autouse=True)
def new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """No sample was taken yet: no number was given out."""
    monkeypatch.setattr("accelmetrics.sampling.sampler.SHARED", SourceRegistry())


@pytest.fixture
def nvml() -> Generator[NvmlSimulator, None, None]:
    """Two simulated H100s, loaded into this process."""
    with NvmlSimulator(gpus=2, profile="h100") as simulator:
        simulator.load()
        yield simulator


@pytest.fixture
def rocm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RocmSmiStandIn:
    """A ``rocm-smi`` that lists one Radeon."""
    stand_in = RocmSmiStandIn(tmp_path)
    stand_in.behave(output("radeon_6_2"))
    monkeypatch.setenv("PATH", stand_in.path)
    return stand_in


@pytest.fixture
def tpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[TpuRuntime, None, None]:
    """Two TPU v5e chips, held by a program whose runtime numbers them 8 and 9; the host is this machine's own."""
    root = tmp_path / "root"
    TpuMachine.two_v5e(root)
    monkeypatch.setenv("ACCELMETRICS_SYSROOT", str(root))
    runtime = TpuRuntime()
    runtime.devices(8, 9)
    runtime.gauge(DUTY_CYCLE, {8: 99.5, 9: 12.25})
    runtime.gauge(TOTAL, {8: 16 << 30, 9: 16 << 30})
    runtime.gauge(USAGE, {8: 4 << 30, 9: 2 << 30})
    monkeypatch.setenv("TPU_RUNTIME_METRICS_PORTS", str(runtime.port))
    yield runtime
    runtime.stop()


@pytest.fixture
def cards(tpu: TpuRuntime, tmp_path: Path) -> TpuMachine:
    """The GPUs of the simulated driver are on the PCI bus too."""
    assert tpu.port
    machine = TpuMachine(tmp_path / "root")
    for address in ("0000:41:00.0", "0000:81:00.0"):
        machine.function(address, "0x2330", kind="0x030200", vendor="0x10de")
    return machine


@pytest.fixture
def sampler(nvml: NvmlSimulator, rocm: RocmSmiStandIn, tpu: TpuRuntime) -> Generator[Sampler, None, None]:
    with Sampler(["host", "amd", "nvidia", "tpu"], timeout=TIMEOUT) as both:
        yield both


def by_vendor(snapshot: Snapshot) -> dict[str, list[str]]:
    return {vendor: [device.key for device in snapshot.devices if device.vendor == vendor] for vendor in ("nvidia", "amd", "google")}


def test_numbers_are_nvidias_first_then_amds_however_they_were_named(sampler: Sampler) -> None:
    snapshot = sampler.sample()
    assert by_vendor(snapshot) == {"nvidia": ["gpu.0", "gpu.1"], "amd": ["gpu.2"], "google": ["tpu.8", "tpu.9"]}
    assert (snapshot.metrics["tpu.8.dutyCycle"], snapshot.metrics["tpu.9.memoryUsageBytes"]) == (99.5, 2 << 30)
    assert [status.name for status in snapshot.backends] == ["nvidia", "amd", "tpu", "host"]
    assert {status.status for status in snapshot.backends} == {"ok"}


def test_one_vendors_hang_leaves_the_others_on_time(sampler: Sampler, nvml: NvmlSimulator) -> None:
    """Readings come back though the call never does, and the others go on to be read anew, each at its own pace."""
    sampler.sample()
    nvml.rule("nvmlDeviceGetTemperature", hang=True)
    began = time.monotonic()

    def others_were_read() -> bool:
        called = time.monotonic()
        snapshot = sampler.sample()
        assert {snapshot.unavailable[f"gpu.{number}.powerWatts"].reason for number in (0, 1)} == {Reason.TIMED_OUT}
        assert "memory_percent" in snapshot.metrics
        if not {"gpu.2.powerWatts", "tpu.8.dutyCycle"} <= snapshot.metrics.keys():
            return False  # late on a busy machine
        found = {status.name: status for status in snapshot.backends}
        assert {name: status.status for name, status in found.items()} == {"nvidia": "timed_out", "amd": "ok", "tpu": "ok", "host": "ok"}
        ages = {name: status.age_seconds for name, status in found.items() if status.age_seconds is not None}
        return max(ages["amd"], ages["tpu"], ages["host"]) < called - began

    wait_for(others_were_read)
    nvml.release("nvmlDeviceGetTemperature")


@pytest.mark.usefixtures("rocm", "tpu")
@pytest.mark.parametrize(("how", "words"), [(Crash.EXIT, "exited with status 1"), (Crash.SEGFAULT, "was killed by signal 11 (SIGSEGV)")])
def test_one_vendors_crash_is_survived_and_said_and_the_others_are_read_again(nvml: NvmlSimulator, how: Crash, words: str) -> None:
    """The library takes its process down in the middle of a call; this program is another, and so goes on."""
    with Sampler(["host", "amd", "nvidia", "tpu"], isolation="process") as sampler:
        wait_for(lambda: {status.status for status in sampler.sample().backends} == {"ok"})
        before = sampler.sample()
        nvml.rule("nvmlDeviceGetTemperature", crash=how, times=1)
        crashed = sampler.sample()
        fared = {status.name: status for status in crashed.backends}
        assert {name: status.status for name, status in fared.items()} == dict.fromkeys(("amd", "nvidia", "tpu"), "failed") | {"host": "ok"}
        assert f"the reading process {words}; another will be started" in fared["nvidia"].detail
        assert "memory_percent" in crashed.metrics, "the host is read in a process of its own"
        assert not any(key.startswith(("gpu.", "tpu.")) for key in crashed.metrics)
        nvml.clear_rules()
        wait_for(lambda: sampler.sample().metrics.keys() >= before.metrics.keys())
        after = sampler.sample()
        assert by_vendor(after) == by_vendor(before)
        assert {status.status for status in after.backends} == {"ok"}


def test_one_vendors_driver_going_away_shifts_no_other(sampler: Sampler, nvml: NvmlSimulator) -> None:
    before = sampler.sample()
    nvml.driver_away()
    snapshot = sampler.sample()
    assert by_vendor(snapshot) == by_vendor(before)
    assert snapshot.unavailable["gpu.0.powerWatts"].reason == Reason.DRIVER_UNAVAILABLE
    assert snapshot.metrics["gpu.2.powerWatts"] == before.metrics["gpu.2.powerWatts"]
    nvml.driver_back()


@pytest.mark.usefixtures("rocm", "cards")
def test_a_vendor_that_never_opens_says_so_and_the_rest_is_there(nvml: NvmlSimulator) -> None:
    """Under the numbers that it would have if the other had opened."""
    nvml.fail_init()
    with Sampler(["nvidia", "amd", "host"]) as sampler:
        snapshot = sampler.sample()
    assert [status.status for status in snapshot.backends] == ["failed", "ok", "ok"]
    assert "version" in snapshot.backends[0].detail
    assert [(device.key, device.vendor) for device in snapshot.devices] == [("gpu.2", "amd")]
    assert "gpu.2.powerWatts" in snapshot.metrics


@pytest.mark.parametrize("expected", [True, False], ids=["its GPUs are on the bus", "they were not known of"])
def test_a_vendor_that_opens_late_shifts_no_other(
    nvml: NvmlSimulator, rocm: RocmSmiStandIn, tpu: TpuRuntime, request: pytest.FixtureRequest, expected: bool
) -> None:
    """It takes the numbers that were set aside for it; where none were, those after all others."""
    assert rocm.path and tpu.port
    if expected:
        request.getfixturevalue("cards")
    amd, late = ("gpu.2", ["gpu.0", "gpu.1"]) if expected else ("gpu.0", ["gpu.1", "gpu.2"])
    nvml.rule(INIT, hang=True)
    with Sampler(["host", "amd", "nvidia", "tpu"], timeout=1.0, open_timeout=2.0) as sampler:
        before = sampler.sample()
        assert by_vendor(before) == {"nvidia": [], "amd": [amd], "google": ["tpu.8", "tpu.9"]}
        assert {status.name: status.status for status in before.backends}["nvidia"] == "timed_out"
        nvml.release(INIT)
        wait_for(lambda: by_vendor(sampler.sample()) == {"nvidia": late, "amd": [amd], "google": ["tpu.8", "tpu.9"]})
        after = sampler.sample()
        assert after.metrics[f"{late[1]}.temp"] == nvml.gpu[1].get("temperature")
        assert after.metrics[f"{amd}.powerWatts"] == before.metrics[f"{amd}.powerWatts"]
        assert after.metrics["tpu.8.dutyCycle"] == before.metrics["tpu.8.dutyCycle"] == 99.5


def test_a_runtime_that_dies_leaves_the_gpus_alone(sampler: Sampler, tpu: TpuRuntime) -> None:
    before = sampler.sample()
    tpu.stop()

    def gone() -> bool:
        snapshot = sampler.sample()
        assert {"gpu.0.temp", "gpu.2.temp"} <= snapshot.metrics.keys()
        assert by_vendor(snapshot) == by_vendor(before)
        return "tpu.8.dutyCycle" not in snapshot.metrics

    wait_for(gone)
