"""The handful of numbers that every device is judged by."""

from __future__ import annotations

import pytest

from accelmetrics import Sampler, Snapshot
from accelmetrics.schemas import vitals as module
from accelmetrics.schemas.catalogue import resolve
from accelmetrics.schemas.identity import DeviceIdentity, DeviceSlot
from accelmetrics.schemas.vitals import Vitals, first, processors, vitals
from accelmetrics.testing import FakeBackend
from tests.records import snapshot

KINDS = ("gpu", "tpu", "trn", "ipu", "npu")


def taken(key: str, identity: DeviceIdentity, **values: float) -> Vitals:
    """The vitals of one device with these metrics."""
    metrics = {f"{key}.{name}": value for name, value in values.items()}
    (found,) = vitals(Snapshot(0, "host", metrics, [DeviceSlot(key, 0, None, identity)]))
    return found


def test_numbers_of_a_gpu() -> None:
    """Each from its own key, and in its unit."""
    one, two = vitals(snapshot())
    assert (one.key, one.label) == ("gpu.0", "GPU0")
    assert (one.utilization, one.memory_percent, one.power, one.power_limit, one.temperature) == (85.5, 1.25, 300.0, 700.0, 35)
    assert (one.memory_used, one.memory_total) == (2**30, 80 * 2**30)
    assert (one.why, one.whole) == ("", True)
    assert (two.utilization, two.power) == (0, 70.0)


def test_a_share_that_no_number_can_say_is_missing() -> None:
    found = taken("gpu.0", DeviceIdentity("gpu", "x", 0), memoryAllocatedBytes=1.6e16, memoryTotalBytes=9e-300)
    assert (found.memory_used, found.memory_percent) == (1.6e16, None)


@pytest.mark.parametrize(
    "names", ["UTILIZATION", "MEMORY_PERCENT", "MEMORY_USED", "MEMORY_TOTAL", "POWER", "POWER_LIMIT", "TEMPERATURE", "MEMORY_PARTS"]
)
def test_every_name_is_a_metric_of_the_catalogue(names: str) -> None:
    """Of some kind of device, with the same unit on all of them."""
    units = set()
    for name in getattr(module, names):
        rows = [found.row for kind in KINDS if (found := resolve(f"{kind}.0.{name}")) is not None]
        assert rows, name
        units |= {row.unit for row in rows}
    assert len(units) == 1


@pytest.mark.parametrize(
    ("name", "seen"),
    [
        ("NVIDIA H100 80GB HBM3", "H100 80GB HBM3"),
        ("华为昇腾", "华为昇腾"),
        ("Evil\x1b[31m\x07Card", "Evil?[31m?Card"),
        ("a\u202eb\x9bc\r\nd\xa0e", "a?b?c  d e"),
    ],
)
def test_names_are_fit_for_a_terminal(name: str, seen: str) -> None:
    """What would move the cursor, colour the rest or ring is a question mark."""
    assert taken("gpu.0", DeviceIdentity("gpu", "x", 0, name=name)).short_name == seen


def test_other_vendors_words() -> None:
    """TPU, Trainium and IPU call them otherwise."""
    tpu = taken("tpu.0", DeviceIdentity("tpu", "google", 0), dutyCycle=40, hbmCapacityUsage=4e9, hbmCapacityTotal=16e9)
    assert (tpu.utilization, tpu.memory_used, tpu.memory_total, tpu.memory_percent) == (40, 4e9, 16e9, 25.0)
    ipu = taken(
        "ipu.0", DeviceIdentity("ipu", "graphcore", 0), **{"ipu power (W)": 90, "average die temp (C)": 35, "ipu utilisation (%)": 7}
    )
    assert (ipu.utilization, ipu.power, ipu.temperature, ipu.memory_percent) == (7, 90, 35, None)


def test_memory_in_parts_is_one_sum_or_none() -> None:
    """Trainium gives five parts; fewer of them are no sum."""
    parts = dict.fromkeys(module.MEMORY_PARTS, 100.0)
    identity = DeviceIdentity("trn", "aws", 0, memory_total_bytes=1000)
    whole = taken("trn.0", identity, neuroncore_utilization=5, **parts)
    assert (whole.memory_used, whole.memory_percent) == (500, 50.0)
    parts.popitem()
    assert taken("trn.0", identity, **parts).memory_used is None


def test_the_size_that_is_no_metric() -> None:
    """A device's own word for its memory counts where no metric gives it."""
    one = taken("gpu.0", DeviceIdentity("gpu", "amd", 0, memory_total_bytes=2000), memoryAllocatedBytes=500)
    assert (one.memory_total, one.memory_percent) == (2000, 25.0)
    assert taken("gpu.0", DeviceIdentity("gpu", "amd", 0), memoryAllocatedBytes=500).memory_percent is None


def test_a_device_that_says_nothing_says_why() -> None:
    """In a word; one that says something has none."""
    backend = FakeBackend("nvidia", devices=2)
    for name in ("gpu", "temp", "powerWatts"):
        backend.device(0).miss(name, "device_lost", "it fell off the bus")
    backend.device(1).set(gpu=3)
    with Sampler([backend]) as sampler:
        assert [one.why for one in vitals(sampler.sample())] == ["lost", ""]


@pytest.mark.parametrize(
    ("vendor", "name", "short"),
    [
        ("nvidia", "NVIDIA GB10", "GB10"),
        ("nvidia", "Tesla T4", "Tesla T4"),
        ("amd", "AMD Instinct MI300X", "Instinct MI300X"),
        ("nvidia", "NVIDIA", "NVIDIA"),
        ("google", "", "google"),
    ],
)
def test_the_name_without_the_vendors(vendor: str, name: str, short: str) -> None:
    """It is not needed twice."""
    assert taken("gpu.0", DeviceIdentity("gpu", vendor, 0, name=name), temp=1).short_name == short


def test_partitions_are_told_apart() -> None:
    """By their label, and as parts of a device."""
    part = taken("gpu.0.mig.1", DeviceIdentity("gpu", "nvidia", 0, uuid="MIG-x", parent="GPU-y"), memoryAllocatedBytes=5)
    assert (part.label, part.whole) == ("GPU0.1", False)


def test_the_processors_together() -> None:
    """The mean over those that say something; groups of Apple's are none, and neither is the process."""
    metrics = {"cpu": 90.0, "cpu.0.cpu_percent": 10.0, "cpu.1.cpu_percent": 30.0, "cpu.ecpu_percent": 99.0, "cpu.avg_temp": 50.0}
    assert processors(metrics) == 20.0
    assert processors({"cpu": 90.0}) is None
    assert first(metrics, "cpu", ("nothing", "avg_temp")) == 50.0
