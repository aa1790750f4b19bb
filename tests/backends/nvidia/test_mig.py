"""MIG: each instance a device of its own, found at opening, made and destroyed while readings go on."""

from __future__ import annotations

import os
from typing import Any

import pytest

from accelmetrics import Reason, Sampler
from accelmetrics.backends.contract import ReadOptions
from accelmetrics.backends.nvidia import NvidiaBackend
from accelmetrics.schemas.errors import DriverGoneError
from accelmetrics.schemas.identity import DeviceProcess
from tests.backends.nvidia.machine import OWED_BY_PARTITIONS, Consume, Sample, Simulate, fail
from tests.simulators.nvml import NvmlSimulator, Process, Ret
from tests.support.pids import STRANGER
from tests.support.waiting import wait_for

GIB = 2**30
SHARES = {name for name in OWED_BY_PARTITIONS if not name.startswith("memory")}
BOARD = ("powerWatts", "temp", "energyJoules", "smClock", "correctedMemoryErrors", "pcieTxBytesTotal", "enforcedPowerLimitWatts")


def test_who_an_instance_is(simulator: NvmlSimulator, consume: Consume) -> None:
    """UUID, parent, profile and size; the GPUs keep their units, the instances follow them."""
    simulator.partition(1, ["3g.40gb", "1c.2g.20gb", "1c.2g.20gb"])
    consumer = consume()
    assert [device.uuid[:4] for device in consumer.driver.devices] == ["GPU-"] * 3 + ["MIG-"] * 3
    before = consumer.driver.devices
    devices = consumer.identities()
    assert devices is not before
    assert consumer.driver.devices is devices
    assert [device.vendor_index for device in devices] == [0, 1, 2, 0, 1, 2]
    instance = devices[3]
    assert (instance.name, instance.memory_total_bytes) == ("NVIDIA H100 80GB HBM3 MIG 3g.40gb", 40 * GIB)
    assert {device.parent for device in devices[3:]} == {devices[1].uuid}
    assert (instance.architecture, instance.driver_version, instance.pci_bus_id) == ("Hopper", "570.124.06", "")
    assert len({device.uuid for device in devices}) == 6
    assert [device.gpu_instance_id for device in devices] == [None, None, None, 1, 3, 3]


def test_memory_and_shares_of_an_instance(simulator: NvmlSimulator, consume: Consume) -> None:
    """Each has its own; what the board has as a whole stays with the GPU, once."""
    instances = simulator.partition(1, ["3g.40gb", "1g.10gb"])
    instances[0].set(memory_used=10 * GIB, gpm={"SM_UTIL": 30.0})
    instances[1].set(memory_used=9 * GIB, gpm={"SM_UTIL": 60.0})
    consumer = consume()
    assert {consumer.read(unit).reason("smActive") for unit in (3, 4)} == {"needs_interval"}
    consumer.clock.now += 0.2
    first, second = consumer.read(3), consumer.read(4)
    assert [seen.metrics["memoryAllocatedBytes"] for seen in (first, second)] == [10 * GIB, 9 * GIB]
    assert [seen.metrics["memoryTotalBytes"] for seen in (first, second)] == [40 * GIB, 10 * GIB]
    assert [seen.metrics["memoryAllocated"] for seen in (first, second)] == [25.0, 90.0]
    assert first.metrics["memoryFreeBytes"] == 30 * GIB
    assert [seen.metrics["smActive"] for seen in (first, second)] == [30.0, 60.0]
    assert first.metrics.keys() == OWED_BY_PARTITIONS
    assert not first.metrics.keys() & {*BOARD}
    board = consumer.read(1).metrics
    assert board["powerWatts"] == simulator.gpu[1].get("power_mw") / 1000
    assert board["memoryAllocatedBytes"] == simulator.gpu[1].get("memory_used")
    assert simulator.count("nvmlGpmMigSampleGet") == 4


@pytest.mark.parametrize(
    ("error", "reason", "known_later"),
    [(Ret.NOT_SUPPORTED, "not_supported", False), (Ret.FUNCTION_NOT_FOUND, "not_supported", False), (Ret.UNKNOWN, "driver_error", True)],
    ids=str,
)
def test_an_instance_whose_id_is_not_known(simulator: NvmlSimulator, consume: Consume, error: Ret, reason: str, known_later: bool) -> None:
    """It has no shares, and never those of the whole GPU; its memory is there. The id is asked for again, unless the answer is final."""
    simulator.partition(1, ["3g.40gb"])
    simulator.rule("nvmlDeviceGetGpuInstanceId", error=error)
    consumer = consume()
    consumer.read(3)
    seen = consumer.later(0.2, 3)
    assert {seen.reason(name) for name in SHARES} == {reason}
    assert seen.metrics["memoryTotalBytes"] == 40 * GIB
    assert simulator.count("nvmlGpmSampleGet") == simulator.count("nvmlGpmMigSampleGet") == 0
    simulator.clear_rules()
    consumer.later(1.0, 3)
    assert (consumer.driver.devices[3].gpu_instance_id, "smActive" in consumer.later(1.0, 3).metrics) == (
        (1, True) if known_later else (None, False)
    )


@pytest.mark.parametrize("profiles", [["3g.40gb", "1c.2g.20gb"], []], ids=["instances", "none"])
def test_the_gpu_says_why_it_has_no_utilisation(simulator: NvmlSimulator, consume: Consume, profiles: list[str]) -> None:
    """And points to its instances, of which it may have none; a GPU that is whole has it."""
    simulator.partition(1, profiles)
    consumer = consume()
    assert len(consumer.driver.devices) == 3 + len(profiles)
    seen = consumer.read(1)
    explained = {name for name in seen.reasons if "MIG mode" in seen.reasons[name].detail}
    assert explained == {"gpu", "memory", "encoderUtilization", "decoderUtilization"}
    assert seen.reason("gpu") == "not_supported"
    assert "gpu" in consumer.read(0).metrics


def test_processes_of_instances(simulator: NvmlSimulator, consume: Consume) -> None:
    """Each lists its own; the watched processes' use is told of the GPU, over all of them, and of no instance."""
    instances = simulator.partition(0, ["3g.40gb", "1g.10gb"])
    table = [Process(os.getpid(), used=5, gpu_instance=instances[0].gpu_instance, compute_instance=0)]
    table += [Process(os.getpid(), used=7, gpu_instance=instances[1].gpu_instance, compute_instance=0)]
    table += [Process(STRANGER, used=9, gpu_instance=instances[1].gpu_instance, compute_instance=0)]
    simulator.processes(0, table)
    consumer = consume()
    own, strangers = DeviceProcess(os.getpid(), "compute", 5), DeviceProcess(STRANGER, "compute", 9)
    assert consumer.read(3).processes == (own,)
    # Sorted by their numbers: this process may have one of the last that the kernel gives out.
    assert consumer.read(4).processes == tuple(sorted((own._replace(memory_bytes=7), strangers)))
    assert consumer.read(3).share == consumer.read(4).share == {}
    assert consumer.read(0).share["memoryAllocatedBytes"] == 12


def test_graphics_processes_of_instances(simulator: NvmlSimulator, consume: Consume) -> None:
    """Listed within ten seconds, as those of GPUs; what one instance has wakes no other's list."""
    instances = simulator.partition(0, ["3g.40gb", "1g.10gb"])
    consumer = consume()
    for unit in (3, 4):
        consumer.read(unit)
    for _ in range(25):
        assert consumer.later(1.0, 3).processes == consumer.read(4).processes == ()
    place = {"gpu_instance": instances[1].gpu_instance, "compute_instance": 0}
    simulator.processes(0, [Process(STRANGER, kind="G", used=9, **place)])
    assert any(consumer.later(1.0, 4).processes == (DeviceProcess(STRANGER, "graphics", 9),) for _ in range(10))
    assert consumer.read(3).processes == ()
    simulator.processes(0, [])
    assert consumer.later(1.0, 4).processes == ()


def test_an_instance_that_is_destroyed(simulator: NvmlSimulator, consume: Consume) -> None:
    """It keeps its unit and is lost within a second, the others never notice; made again, it is the same device."""
    instances = simulator.partition(1, ["3g.40gb", "1g.10gb"])
    consumer = consume()
    consumer.read(3)
    simulator.remove_instance(instances[0])
    error = consumer.error(1.0, 3)
    assert (error.reason, "no longer exists" in str(error), isinstance(error, DriverGoneError)) == ("device_lost", True, False)
    assert consumer.read(4).metrics["memoryTotalBytes"] == 10 * GIB
    simulator.reset_calls()
    for _ in range(70):
        consumer.error(0.1, 3)
    assert simulator.count("nvmlDeviceGetHandleByUUID") == 7, "looked for once a second"
    simulator.partition(1, ["3g.40gb", "1g.10gb"])
    assert consumer.later(1.0, 3).metrics["memoryTotalBytes"] == 40 * GIB


def test_a_handle_that_was_given_to_another_instance(simulator: NvmlSimulator, consume: Consume) -> None:
    """Its values are never served under the old UUID for longer than a second."""
    simulator.partition(1, ["3g.40gb"])
    consumer = consume()
    consumer.read(3)
    simulator.partition(1, ["1g.10gb"])
    assert consumer.error(1.0, 3).reason == "device_lost"


def test_an_instance_that_moved(simulator: NvmlSimulator, consume: Consume) -> None:
    """The same UUID at another of NVML's numbers is the same unit, with its own values."""
    kept = simulator.partition(1, ["1g.10gb", "3g.40gb"])[1]
    consumer = consume()
    consumer.read(4)
    moved = simulator.partition(1, ["3g.40gb"])[0]
    assert moved.uuid == kept.uuid
    moved.set(memory_used=3 * GIB)
    assert consumer.later(1.0, 4).metrics["memoryAllocatedBytes"] == 3 * GIB


def test_instances_that_turn_up(simulator: NvmlSimulator, consume: Consume) -> None:
    """Within ten seconds they are listed, at the end; those that are gone are known to be."""
    first = simulator.partition(1, ["3g.40gb"])[0]
    consumer = consume()
    consumer.read(1)
    simulator.partition(1, ["1g.10gb", "1g.10gb"])
    consumer.later(10.0, 1)
    devices = consumer.driver.devices
    assert [device.name[-7:] for device in devices[3:]] == ["3g.40gb", "1g.10gb", "1g.10gb"]
    assert devices[3].uuid == first.uuid
    assert [consumer.read(unit).metrics["memoryTotalBytes"] for unit in (4, 5)] == [10 * GIB] * 2
    assert consumer.error(unit=3).reason == "device_lost"


def test_a_gpu_that_enters_and_leaves_mig_mode(simulator: NvmlSimulator, consume: Consume) -> None:
    """What was not supported in one mode is asked again in the other."""
    consumer = consume()
    assert "gpu" in consumer.read(1).metrics
    simulator.partition(1, ["7g.80gb"])
    assert "MIG mode" in consumer.later(10.0, 1).reasons["gpu"].detail
    assert len(consumer.driver.devices) == 4
    simulator.partition(1, None)
    assert consumer.later(10.0, 1).metrics["gpu"] == simulator.gpu[1].get("gpu_util")
    assert consumer.error(unit=3).reason == "device_lost"


def test_a_look_that_fails_declares_nobody_lost(simulator: NvmlSimulator, consume: Consume) -> None:
    """Only a complete list says who is missing."""
    simulator.partition(1, ["3g.40gb", "1g.10gb"])
    consumer = consume()
    consumer.read(3)
    for function, code in (("nvmlDeviceGetMigDeviceHandleByIndex", Ret.TIMEOUT), ("nvmlDeviceGetMigMode", Ret.UNKNOWN)):
        simulator.rule(function, 1, error=code)
        consumer.later(10.0, 1)
        assert consumer.read(3).metrics["memoryTotalBytes"] == 40 * GIB


def test_gpus_without_mig_are_asked_once(simulate: Simulate, consume: Consume) -> None:
    """A product that cannot be divided never will: once for instances, and once for the value."""
    simulator = simulate(gpus=1, profile="t4")
    consumer = consume()
    for _ in range(3):
        consumer.later(11.0)
    assert simulator.count("nvmlDeviceGetMigMode") == 2


@pytest.mark.parametrize("code", [Ret.TIMEOUT, Ret.NO_PERMISSION, Ret.UNKNOWN, Ret.NOT_SUPPORTED], ids=str)
def test_memory_that_an_instance_does_not_say(simulator: NvmlSimulator, consume: Consume, code: Ret) -> None:
    """A reason on its four names, and its shares all the same."""
    simulator.partition(1, ["3g.40gb"])
    consumer = consume()
    consumer.read(3)
    fail(simulator, "nvmlDeviceGetMemoryInfo_v2", 1, code)
    seen = consumer.later(0.2, 3)
    assert seen.reasons.keys() == OWED_BY_PARTITIONS - SHARES
    assert seen.metrics.keys() == SHARES
    simulator.clear_rules()
    assert consumer.later(0.2, 3).metrics.keys() == OWED_BY_PARTITIONS


def test_impossible_memory_of_an_instance(simulator: NvmlSimulator, consume: Consume) -> None:
    """More used than there is says that one of the two is wrong."""
    simulator.partition(1, ["1g.10gb"])[0].set(memory_used=11 * GIB)
    assert consume().read(3).reason("memoryAllocatedBytes") == "invalid_value"


def test_gpm_that_instances_have_not(simulator: NvmlSimulator, consume: Consume) -> None:
    """On Ampere there is none, and a driver may refuse it for instances alone."""
    instance = simulator.partition(1, ["3g.40gb"])[0]
    instance.set(gpm=Ret.NOT_SUPPORTED)
    seen = consume().read(3)
    assert {seen.reason(name) for name in SHARES} == {"not_supported"}
    simulator.gpu[1].set(gpm_support=0)
    assert "Hopper" in consume().read(3).reasons["smActive"].detail


@pytest.mark.parametrize("code", [Ret.DRIVER_NOT_LOADED, Ret.GPU_IS_LOST], ids=str)
def test_a_driver_or_gpu_that_goes_under_an_instance(simulator: NvmlSimulator, consume: Consume, code: Ret) -> None:
    """The driver has to be opened again; a GPU takes its instances along and brings them back."""
    simulator.partition(1, ["3g.40gb"])
    consumer = consume()
    consumer.read(3)
    if code == Ret.GPU_IS_LOST:
        simulator.lose(1)
    else:
        simulator.driver_away()
    for seconds in (0.2, 1.0):
        assert isinstance(consumer.error(seconds, 3), DriverGoneError) == (code != Ret.GPU_IS_LOST)
    if code == Ret.GPU_IS_LOST:
        simulator.recover(1)
        assert consumer.later(1.0, 3).metrics["memoryTotalBytes"] == 40 * GIB


def test_two_consumers_of_an_instance(simulator: NvmlSimulator, consume: Consume) -> None:
    """Each takes its own samples."""
    simulator.partition(1, ["3g.40gb"])
    consumer = consume()
    other = consumer.driver.reader(ReadOptions(os.getpid()))
    consumer.read(3)
    consumer.clock.now += 0.2
    first: Any = other.read(3, [])
    assert first.unavailable["smActive"].reason == "needs_interval"
    assert "smActive" in consumer.read(3).metrics


# Through the sampler


def test_keys_of_instances(simulator: NvmlSimulator, sample: Sample) -> None:
    """They stand below the GPU's, the first snapshot has them whole, and the GPU's own stay as they were."""
    simulator.partition(1, ["3g.40gb", "1g.10gb"])
    sampler, _ = sample()
    snapshot = sampler.sample()
    assert [device.key for device in snapshot.devices] == ["gpu.0", "gpu.1", "gpu.2", "gpu.1.mig.0", "gpu.1.mig.1"]
    instance = snapshot.device("gpu.1.mig.0")
    assert instance.parent == "gpu.1"
    assert instance.memory_total_bytes == snapshot.metrics["gpu.1.mig.0.memoryTotalBytes"] == 40 * GIB
    assert instance.metrics.memory_total_bytes == 40 * GIB
    assert instance.process_metrics is None
    assert {*instance.values, *instance.unavailable} == OWED_BY_PARTITIONS
    watts = {key: value for key, value in snapshot.metrics.items() if key.endswith(".powerWatts")}
    assert watts.keys() == {"gpu.0.powerWatts", "gpu.1.powerWatts", "gpu.2.powerWatts"}
    assert snapshot.unavailable["gpu.1.gpu"].reason == Reason.NOT_SUPPORTED


def test_instances_are_chosen_with_their_gpu_or_alone(simulator: NvmlSimulator, sample: Sample) -> None:
    """By number, key or UUID, the GPU's or their own."""
    instances = simulator.partition(1, ["3g.40gb", "1g.10gb"])
    parent = simulator.gpu[1]
    assert parent.index == 1
    for choice, keys in (
        (1, ["gpu.1", "gpu.1.mig.0", "gpu.1.mig.1"]),
        ("gpu.1.mig.1", ["gpu.1.mig.1"]),
        (instances[0].uuid, ["gpu.1.mig.0"]),
        (0, ["gpu.0"]),
    ):
        sampler, _ = sample(gpus=[choice])
        assert [device.key for device in sampler.sample().devices] == keys, choice


def test_a_reconfiguration_while_sampling(simulator: NvmlSimulator, sample: Sample) -> None:
    """What was removed leaves the list at once, with its keys; what turns up has new keys; what returns has its old one."""
    simulator.partition(1, ["3g.40gb"])
    sampler, clock = sample()
    sampler.sample()
    simulator.partition(1, ["1g.10gb", "1g.10gb"])
    clock.advance(10.0)
    sampler.sample()
    clock.advance(1.0)
    keys = ["gpu.0", "gpu.1", "gpu.2", "gpu.1.mig.1", "gpu.1.mig.2"]
    wait_for(lambda: [device.key for device in sampler.sample().devices] == keys)  # a reading may be late on a busy machine
    snapshot = sampler.sample()
    assert not [key for key in (*snapshot.metrics, *snapshot.unavailable) if key.startswith("gpu.1.mig.0.")]
    assert [snapshot.metrics[f"gpu.1.mig.{number}.memoryTotalBytes"] for number in (1, 2)] == [10 * GIB] * 2
    assert (snapshot.backends[0].status, snapshot.backends[0].devices) == ("ok", 3)
    assert snapshot.metrics["gpu.1.powerWatts"]
    simulator.partition(1, ["3g.40gb"])
    clock.advance(61.0)
    snapshot = sampler.sample()
    assert snapshot.metrics["gpu.1.mig.0.memoryTotalBytes"] == 40 * GIB
    assert [device.key for device in snapshot.devices] == ["gpu.0", "gpu.1", "gpu.2", "gpu.1.mig.0"]


@pytest.mark.parametrize("seconds", [0.2, 2.0])
@pytest.mark.parametrize("ends_mode", [False, True])
def test_a_removed_instance_is_never_said_to_be_lost(simulator: NvmlSimulator, sample: Sample, seconds: float, ends_mode: bool) -> None:
    """The first reading after it leaves it out, whether or not its handle was looked up lately; its sampler goes on without it."""
    simulator.partition(1, ["3g.40gb"])
    sampler, clock = sample()
    sampler.sample()
    clock.advance(2.0)
    sampler.sample()
    simulator.partition(1, None if ends_mode else [])
    clock.advance(seconds)
    snapshot = sampler.sample()
    assert [device.key for device in snapshot.devices] == ["gpu.0", "gpu.1", "gpu.2"]
    assert (snapshot.backends[0].status, Reason.DEVICE_LOST in {why.reason for why in snapshot.unavailable.values()}) == ("ok", False)


@pytest.mark.parametrize("code", [Ret.GPU_IS_LOST, Ret.UNKNOWN, Ret.TIMEOUT], ids=str)
def test_an_instance_whose_gpu_does_not_answer_for_it_is_lost(simulator: NvmlSimulator, sample: Sample, code: Ret) -> None:
    """It is not found, and its GPU cannot say that it was removed: it stays in the list."""
    instance = simulator.partition(1, ["3g.40gb"])[0]
    sampler, clock = sample()
    sampler.sample()
    simulator.remove_instance(instance)
    simulator.rule("nvmlDeviceGetMigMode", 1, error=code)
    clock.advance(2.0)
    snapshot = sampler.sample()
    assert snapshot.unavailable["gpu.1.mig.0.memoryTotalBytes"].reason == Reason.DEVICE_LOST
    assert snapshot.backends[0].status == "degraded"
    simulator.clear_rules()
    clock.advance(2.0)
    assert "gpu.1.mig.0" not in {device.key for device in sampler.sample().devices}


def test_an_instance_that_went_while_the_driver_was_away(simulator: NvmlSimulator, sample: Sample) -> None:
    """The driver that is opened again lists its GPU without it; no later instance has its key."""
    simulator.partition(1, ["3g.40gb"])
    sampler, clock = sample()
    sampler.sample()
    simulator.driver_away()
    sampler.sample()
    simulator.partition(1, ["1g.10gb"])
    simulator.driver_back()
    clock.advance(2.0)
    snapshot = sampler.sample()
    assert [device.key for device in snapshot.devices] == ["gpu.0", "gpu.1", "gpu.2", "gpu.1.mig.1"]
    assert snapshot.backends[0].status == "ok"
    simulator.driver_away()
    gone = sampler.sample()
    assert not any(key.startswith("gpu.1.mig.0.") for key in gone.unavailable)


def test_an_instance_that_is_made_again_with_another_profile(simulator: NvmlSimulator, sample: Sample) -> None:
    """The driver derives its UUID from its ids: it is the same device, with the name and the memory that it has now."""
    simulator.partition(1, ["3g.40gb"])
    sampler, clock = sample()
    sampler.sample()
    simulator.partition(1, ["4g.20gb"])
    for _ in range(2):
        clock.advance(10.0)
        sampler.sample()
    (instance,) = [device for device in sampler.sample().devices if device.parent]
    assert (instance.key, instance.name[-7:], instance.memory_total_bytes) == ("gpu.1.mig.0", "4g.20gb", 20 * GIB)


def test_an_instance_of_a_gpu_that_nobody_reads(simulator: NvmlSimulator, sample: Sample) -> None:
    """It finds out by itself that it was destroyed, and made again."""
    simulator.partition(1, ["3g.40gb"])
    sampler, clock = sample(gpus=["gpu.1.mig.0"])
    assert sampler.sample().metrics["gpu.1.mig.0.memoryTotalBytes"] == 40 * GIB
    simulator.partition(1, [])
    clock.advance(1.0)
    assert not sampler.sample().metrics
    simulator.partition(1, ["3g.40gb"])
    clock.advance(2.0)
    assert sampler.sample().metrics["gpu.1.mig.0.memoryTotalBytes"] == 40 * GIB


def test_instances_take_no_places_from_other_vendors(simulator: NvmlSimulator, sample: Sample) -> None:
    """Whole GPUs alone are counted."""
    from accelmetrics.testing import FakeBackend

    simulator.partition(0, ["1g.10gb"] * 7)
    other = FakeBackend("acme", devices=1)
    other.device(0).set(temp=1)
    with Sampler([NvidiaBackend(), other]) as sampler:
        assert "gpu.3.temp" in sampler.sample().metrics
