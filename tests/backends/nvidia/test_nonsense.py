"""A driver that answers nonsense: every count, length and index that it gives is bounded, every text decoded."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from accelmetrics.schemas.errors import SourceError
from tests.backends.nvidia.machine import Consumer
from tests.simulators.nvml import NvmlSimulator, Process

LARGEST = 2**32 - 1
EXTREMES = [LARGEST, 2**31, 2**31 - 1, 1_000_000]


@pytest.mark.parametrize("count", [1025, *EXTREMES])
def test_more_gpus_than_can_be(simulator: NvmlSimulator, consume: Callable[..., Consumer], count: int) -> None:
    """Refused in words, before anything is made of them."""
    simulator.set(claimed_gpus=count)
    simulator.reset_calls()
    with pytest.raises(SourceError) as raised:
        consume()
    assert (raised.value.reason, str(count) in str(raised.value)) == ("invalid_value", True)
    assert simulator.count("nvmlDeviceGetHandleByIndex_v2") == 0
    assert simulator.count("nvmlInitWithFlags") == simulator.count("nvmlShutdown") == 1


def test_gpus_that_are_only_claimed(simulator: NvmlSimulator, consume: Callable[..., Consumer]) -> None:
    """Each has its place and says why it cannot be opened; those that are there are read."""
    simulator.set(claimed_gpus=5)
    consumer = consume()
    assert [bool(device.uuid) for device in consumer.driver.devices] == [True, True, True, False, False]
    assert consumer.read(2).metrics["temp"] == simulator.gpu[2].get("temperature")
    with pytest.raises(SourceError, match="NVIDIA GPU 4 cannot be opened"):
        consumer.read(4)


@pytest.mark.parametrize("name", ["\udcff", "Tesla \udcc3", "\udc80\udc80 9000", "", "x" * 95])
def test_texts_of_any_bytes(simulator: NvmlSimulator, consume: Callable[..., Consumer], name: str) -> None:
    """What is not UTF-8 is replaced: it costs no other fact, and nothing of the GPU's values."""
    gpu = simulator.gpu[1]
    gpu.set(name=name, serial=name[:20], vbios=name[:20])
    consumer = consume()
    expected = name.encode(errors="surrogateescape").decode(errors="replace")
    device = consumer.identities()[1]
    assert (device.name, device.serial, device.firmware) == (expected, expected[:20], expected[:20])
    assert device.uuid.startswith("GPU-")
    assert consumer.read(1).metrics["temp"] == gpu.get("temperature")


@pytest.mark.parametrize("value", EXTREMES)
def test_numbers_of_the_identity(simulator: NvmlSimulator, consume: Callable[..., Consumer], value: int) -> None:
    """A number of cores, a NUMA node or an architecture that cannot be is not known."""
    simulator.gpu[0].set(numa_node=value, architecture=value, cores=LARGEST)
    device = consume().identities()[0]
    assert (device.numa_node, device.architecture, device.cores) == (None, "", None)


def test_memory_that_cannot_be(simulator: NvmlSimulator, consume: Callable[..., Consumer]) -> None:
    """All-ones is no size of a device."""
    simulator.gpu[0].set(memory_total=-1)
    assert consume().identities()[0].memory_total_bytes is None


@pytest.mark.parametrize("count", EXTREMES)
def test_more_mig_instances_than_can_be(simulator: NvmlSimulator, consume: Callable[..., Consumer], count: int) -> None:
    """Those that are there are found, and few calls are made in search of the others."""
    simulator.partition(1, ["3g.40gb", "1g.10gb"])
    simulator.gpu[1].set(max_mig_devices=count)
    simulator.reset_calls()
    assert [device.name[-7:] for device in consume().driver.devices[3:]] == ["3g.40gb", "1g.10gb"]
    assert simulator.count("nvmlDeviceGetMigDeviceHandleByIndex") <= 64


@pytest.mark.parametrize("count", EXTREMES)
def test_more_links_than_can_be(simulator: NvmlSimulator, consumer: Consumer, count: int) -> None:
    """No link is made of them, and their number is what is impossible."""
    simulator.gpu[0].set_field("NVLINK_LINK_COUNT", count)
    seen = consumer.read(0)
    assert seen.reason("nvlinkCrcErrors") == "invalid_value"
    assert not [name for name in (*seen.metrics, *seen.reasons) if name.startswith("nvlink.")]


@pytest.mark.parametrize("count", EXTREMES)
def test_lists_of_processes_that_claim_more_than_they_hold(simulator: NvmlSimulator, consumer: Consumer, count: int) -> None:
    """Nothing beyond the array is read, and process 0, which fills it up, is no process."""
    simulator.processes(0, [Process(pid=4711, used=1 << 20)])
    simulator.set(claimed_processes=count)
    processes = consumer.read(0).processes
    assert processes is not None
    assert [process.pid for process in processes] == [4711]
