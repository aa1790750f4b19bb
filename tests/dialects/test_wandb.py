"""``wandb`` and ``wandb-docs``: our own keys, and those that W&B's documentation lists."""

from __future__ import annotations

from accelmetrics.dialects.registry import dialect
from accelmetrics.schemas.catalogue import resolve
from accelmetrics.schemas.catalogue.wandb import DOCUMENTED, is_documented
from tests.dialects.scenes import GPU_0, HOST, instance, nvidia, record
from tests.records import record as monitored


def test_wandb_is_the_snapshot_itself() -> None:
    """Every key, those of partitions and of PyTorch among them, with the very same value."""
    one = monitored()
    assert dialect("wandb").flat(one) == one.snapshot.metrics
    board = nvidia(0)
    found = record({board: GPU_0, instance(board, 1): {"smActive": 5.0}}, {**HOST, "torch.0.memoryAllocatedBytes": 7, "mine.odd": 1})
    assert dialect("wandb").flat(found) == found.snapshot.metrics


def test_a_name_with_a_backslash_is_a_name() -> None:
    assert is_documented("disk./mnt/a\\data.usageGB")


def test_documented_keys_are_all_in_the_catalogue() -> None:
    """The list has no slip: each is a spelling that some row has."""
    assert len(set(DOCUMENTED)) == len(DOCUMENTED) == 46
    for key in DOCUMENTED:
        found = resolve(key.replace("{path}", "/x"))
        assert found is not None, key
        assert key in [spelling.replace("{kind}", "gpu") for spelling in (found.row.key, *found.row.aliases)], key


def test_wandb_docs_has_documented_spellings_only() -> None:
    """Where documentation and collector differ, the documentation's key is there and the collector's is not."""
    board = nvidia(0)
    process = {f"gpu.process.0.{name}": 1 for name in ("temp", "enforcedPowerLimitWatts")}
    found = record({board: GPU_0, instance(board, 0): {"gpu": 5.0, "memoryAllocated": 1.0}}, {**HOST, **process, "mine.odd": 1})
    flat = dialect("wandb-docs").flat(found)
    expected = {"gpu", "memory", "memoryAllocated", "memoryAllocatedBytes", "temp", "powerWatts", "smClock", "memoryClock", "graphicsClock"}
    expected |= {"correctedMemoryErrors", "unCorrectedMemoryErrors"}
    assert {key.removeprefix("gpu.0.") for key in flat if key.startswith("gpu.0.")} == expected
    assert {key for key in flat if not key.startswith("gpu.0.")} == {
        "cpu",
        "memory_percent",
        "proc.memory.availableMB",
        "disk./data.usageGB",
        "disk.in",
        "network.sent",
        "gpu.process.0.temp",
    }
    assert all(value == found.snapshot.metrics[key] for key, value in flat.items())


def test_documented_spellings_of_other_devices() -> None:
    """TPUs, NeuronCores and IPUs are documented under names that the collector has left."""
    for key in ("tpu.3.memoryUsageBytes", "tpu.3.dutyCycle", "trn.host_total_memory_usage.tensors", "ipu.0.speed (GT/s)"):
        assert is_documented(key), key
    for key in ("tpu.3.hbmCapacityUsage", "trn.host_memory_usage.tensors", "ipu.0.link speed (GT/s)", "gpu.0.energyJoules", "gpu.0.odd"):
        assert not is_documented(key), key


def test_points_have_the_instance_as_a_label() -> None:
    """Of a device its number, of a disk its name, of a link both numbers; a counter is one."""
    found = record(
        {nvidia(0): {"powerWatts": 300.0, "nvlink.7.txBytesTotal": 5, "energyJoules": 1.0}}, {"disk./data.usageGB": 1.5, "odd": 1}
    )
    points = {point.name: point for point in dialect("wandb").points(found)}
    assert points["gpu.powerWatts"].labels == {"index": "0"}
    assert points["gpu.nvlink.txBytesTotal"].labels == {"index": "0", "link": "7"}
    assert points["disk.usageGB"].labels == {"path": "/data"}
    assert points["odd"].labels == {}
    assert (points["gpu.energyJoules"].kind, points["gpu.energyJoules"].unit, points["gpu.powerWatts"].kind) == ("counter", "J", "gauge")
    assert points["disk.usageGB"].value == 1.5
