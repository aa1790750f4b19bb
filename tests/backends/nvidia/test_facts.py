"""Limits of temperature, throttling seconds, modes and identity: what GPUs of several generations and drivers say in several ways."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.backends.nvidia.machine import Consume, Consumer, Simulate, write_tree
from tests.simulators.nvml import NvmlSimulator, Ret

THRESHOLDS = "nvmlDeviceGetTemperatureThreshold"
LIMITS = ("tempLimit.shutdown", "tempLimit.slowdown", "maxOpTemp")


def test_limits_follow_from_margins(simulator: NvmlSimulator, consume: Consume) -> None:
    """A GPU that refuses thresholds says its margin, and the margin at each limit: 41 °C + 46 K less -8, -5 and 0 K."""
    simulator.rule(THRESHOLDS, 0, error=Ret.NOT_SUPPORTED)
    seen = consume().read(0)
    assert [seen.metrics[name] for name in LIMITS] == [95, 92, 87]
    assert seen.reason("memoryMaxOpTemp") == "not_supported"


def test_thresholds_come_first(simulator: NvmlSimulator, consume: Consume) -> None:
    """Where the driver gives both, the threshold is the limit."""
    simulator.gpu[0].set(temp_threshold=[105, 101, 95, 90])
    seen = consume().read(0)
    assert [seen.metrics[name] for name in LIMITS] == [105, 101, 90]


@pytest.mark.parametrize("lacking", ["temp_margin", "temp_tlimit", "temperature"])
def test_no_limit_follows_from_a_part(simulator: NvmlSimulator, consume: Consume, lacking: str) -> None:
    """Without the temperature, the margin or the T.Limit there is no limit to compute."""
    simulator.rule(THRESHOLDS, 0, error=Ret.NOT_SUPPORTED)
    simulator.gpu[0].set(**{lacking: None})
    seen = consume().read(0)
    assert {seen.reason(name) for name in LIMITS} == {"not_supported"}


def test_gpus_before_ada_have_no_margin(simulate: Simulate, consume: Consume) -> None:
    """Their thresholds are all that there is."""
    simulate(gpus=1, profile="a100")
    seen = consume().read(0)
    assert seen.reason("tempMargin") == "not_supported"
    assert [seen.metrics[name] for name in LIMITS] == [95, 92, 87]


@pytest.mark.parametrize(("margin", "told"), [(-3, -3), (0, 0), (46, 46), (2**31 - 1, "invalid_value")])
def test_a_margin_may_be_negative(simulator: NvmlSimulator, consumer: Consumer, margin: int, told: int | str) -> None:
    """A GPU above its limit says so; the largest number of 32 bits is no temperature."""
    simulator.gpu[0].set(temp_margin=margin)
    seen = consumer.read(0)
    assert seen.metrics.get("tempMargin", "tempMargin" in seen.reasons and seen.reason("tempMargin")) == told


def test_throttling_seconds_that_a_newer_driver_refuses_as_fields(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """Fields 77 to 79 are refused, and the older call is asked for these three alone."""
    simulator.gpu[0].set(violation_ns=[1 * 10**9, 2 * 10**9, 3 * 10**9, 4 * 10**9, 5 * 10**9, 6 * 10**9])
    for field in (77, 78, 79):
        simulator.gpu[0].set_field(field, Ret.NOT_SUPPORTED)
    seen = consumer.read(0)
    names = ("power", "thermal", "syncBoost", "boardLimit", "lowUtilization", "reliability")
    assert [seen.metrics[f"violationSeconds.{name}"] for name in names] == [1, 2, 3, 4, 5, 6]
    assert simulator.count("nvmlDeviceGetViolationStatus") == 3


def test_numbers_of_fields_that_changed_are_not_read(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """Fields 251 to 253 and 269 to 271 are throttling on some drivers and power smoothing on others."""
    consumer.read(0)
    before = consumer.later(0.2).metrics
    for field in (*range(251, 254), *range(269, 272)):
        simulator.gpu[0].set_field(field, 12_345 * 10**9)
    assert consumer.later(11).metrics.keys() == before.keys()
    assert 12_345 not in consumer.later(0.1).metrics.values()


def test_a_mode_that_waits_for_a_reset(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """What is set and what holds after the next reset are two values."""
    simulator.gpu[0].set(ecc_mode=1, ecc_pending=0, mig_mode=0, mig_pending=1)
    metrics = consumer.read(0).metrics
    assert (metrics["eccMode"], metrics["eccModePending"]) == (1, 0)
    assert (metrics["migMode"], metrics["migModePending"]) == (0, 1)


def test_the_identity_of_a_gpu(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """Board, compute capability, and the CPUs that NVML says are near, where the kernel says nothing."""
    simulator.gpu[1].set(cpu_affinity=[0xFFFFFFFF, 1 | 1 << 63, *[0] * 14])
    device = consumer.identities()[1]
    assert device.part_number == "692-2G520-0200-001"
    assert device.compute_capability == "9.0"
    assert device.cpu_affinity == "0-31,64,127"


def test_the_kernels_own_list_of_cpus_counts(
    simulator: NvmlSimulator, consume: Consume, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NVML is not asked where sysfs says which CPUs are near."""
    write_tree(tmp_path, {"/sys/bus/pci/devices/0000:10:00.0/local_cpulist": "0-15\n"})
    monkeypatch.setenv("ACCELMETRICS_SYSROOT", str(tmp_path))
    consumer = consume()
    assert consumer.identities()[0].cpu_affinity == ""
    assert consumer.identities()[1].cpu_affinity != ""


def test_a_board_without_a_part_number(simulate: Simulate, consume: Consume) -> None:
    """Products for the desk have none."""
    simulate(gpus=1, profile="rtx4090")
    device = consume().identities()[0]
    assert (device.part_number, device.compute_capability) == ("", "8.9")
