"""A device of any kind reaches every dialect: what every kind may have means the same on each."""

import pytest

from accelmetrics import Sampler
from accelmetrics.dialects.registry import dialect
from accelmetrics.schemas.record import Record
from accelmetrics.testing import FakeBackend

POWER = {
    "wandb": "powerWatts",
    "prometheus": "accel_power_watts",
    "otel": "hw.power",
    "nvidia-smi": "power.draw",
    "verl": "power_usage_w",
    "training": "gpu_power_draw_watts",
    "dcgm": "DCGM_FI_DEV_POWER_USAGE",
}


def taken(kind: str) -> Record:
    backend = FakeBackend("acme", kind)
    backend.device(0).set(powerWatts=100, temp=40, utilization=5, memoryAllocatedBytes=100, memoryTotalBytes=1000, throttle=7)
    with Sampler([backend]) as sampler:
        return Record(sampler.sample())


@pytest.mark.parametrize("kind", ["npu", "hpu", "dpu"])
@pytest.mark.parametrize("name", POWER)
def test_power_is_told_of_every_kind(name: str, kind: str) -> None:
    (value,) = [point.value for point in dialect(name).points(taken(kind)) if point.name.endswith(POWER[name])]
    assert value == 100


@pytest.mark.parametrize("kind", ["npu", "dpu"])
def test_utilisation_has_the_series_that_gpus_have(kind: str) -> None:
    points = {point.name: point for point in dialect("prometheus").points(taken(kind))}
    assert (points["accel_utilization_ratio"].value, points["accel_utilization_ratio"].labels["accelerator"]) == (0.05, f"{kind}.0")
    assert points["accel_temperature_celsius"].labels["sensor"] == "core"


def test_the_typed_view_has_them_too() -> None:
    (device,) = taken("dpu").snapshot.devices
    view = device.metrics
    assert (view.power_watts, view.utilization, view.memory_total_bytes) == (100, 5, 1000)
