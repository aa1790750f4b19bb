"""``verl``: exactly the names that its dashboards have."""

from __future__ import annotations

import pytest

from accelmetrics.dialects.registry import dialect
from tests.dialects.scenes import GIB, GPU_0, HOST, amd, nvidia, record, tpu

TORCH = {"torch.0.memoryAllocatedBytes": 10 * GIB, "torch.0.memoryReservedBytes": 12 * GIB}
OF_GPU = (
    "gpu_utilization_pct",
    "memory_utilization_pct",
    "memory_allocated_gb",
    "memory_reserved_gb",
    "memory_total_gb",
    "temperature_c",
    "power_usage_w",
    "graphics_clock_mhz",
    "memory_clock_mhz",
)
OF_HOST = ("cpu_utilization_pct", "system_memory_used_gb", "system_memory_utilization_pct")


def test_exactly_these_names_with_pytorch_in_use() -> None:
    """Nine of each GPU and three of the machine, in GiB, %, °C, W and MHz."""
    found = dialect("verl").flat(record({nvidia(0): GPU_0}, {**HOST, **TORCH}))
    assert set(found) == {*(f"gpu_0_{name}" for name in OF_GPU), *OF_HOST}
    assert found["gpu_0_gpu_utilization_pct"] == 85.5
    assert found["gpu_0_memory_total_gb"] == 80.0
    assert (found["gpu_0_memory_allocated_gb"], found["gpu_0_memory_reserved_gb"]) == (10.0, 12.0)
    assert found["gpu_0_memory_utilization_pct"] == 12.5
    assert (found["gpu_0_graphics_clock_mhz"], found["gpu_0_memory_clock_mhz"]) == (1975, 2619)


def test_without_pytorch_its_figures_are_absent() -> None:
    """The driver's figure, which counts the memory of all programs, never takes their place."""
    found = dialect("verl").flat(record({nvidia(0): GPU_0}, HOST))
    assert {name for name in OF_GPU if f"gpu_0_{name}" not in found} == {
        "memory_utilization_pct",
        "memory_allocated_gb",
        "memory_reserved_gb",
    }


def test_pytorchs_figures_belong_to_the_device_of_that_number() -> None:
    """A program that uses GPU 1 alone says nothing of GPU 0."""
    torch = {"torch.1.memoryAllocatedBytes": GIB, "torch.1.memoryReservedBytes": GIB}
    found = dialect("verl").flat(record({nvidia(0): GPU_0, nvidia(1): GPU_0}, torch))
    assert "gpu_0_memory_allocated_gb" not in found
    assert found["gpu_1_memory_allocated_gb"] == 1.0
    assert found["gpu_1_memory_utilization_pct"] == 1.25


def test_the_machine() -> None:
    """All its CPUs, not the watched process; what is used is what is not available, of the same total as the share."""
    found = dialect("verl").flat(record({}, HOST))
    assert found["cpu_utilization_pct"] == 40.0
    assert found["system_memory_utilization_pct"] == 25.0
    assert found["system_memory_used_gb"] == pytest.approx(16.0)
    full = dialect("verl").flat(record({}, {"memory_percent": 100.0, "proc.memory.availableMB": 0.0}))
    assert full == {"system_memory_utilization_pct": 100.0}
    assert dialect("verl").flat(record({}, {"memory.used": 8 * GIB})) == {"system_memory_used_gb": 8.0}


def test_other_vendors() -> None:
    """AMD's GPU clock is its graphics clock; a TPU has names of its own kind, so that it is not taken for GPU 0."""
    found = dialect("verl").flat(record({amd(0): {"smClock": 2100, "gpu": 5}, tpu(0): {"dutyCycle": 50.0, "hbmCapacityTotal": 16 * GIB}}))
    assert found == {
        "gpu_0_gpu_utilization_pct": 5,
        "gpu_0_graphics_clock_mhz": 2100,
        "tpu_0_gpu_utilization_pct": 50.0,
        "tpu_0_memory_total_gb": 16.0,
    }


def test_points_are_gauges_without_labels() -> None:
    """The device is in the name."""
    points = {point.name: point for point in dialect("verl").points(record({nvidia(0): GPU_0}, {**HOST, **TORCH}))}
    assert points["gpu_0_memory_allocated_gb"].unit == "GiBy"
    assert points["system_memory_utilization_pct"].unit == "%"
    assert all(not point.labels and point.kind == "gauge" for point in points.values())
