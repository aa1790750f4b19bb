"""A driver that answers nonsense: every count, length and index that it gives is bounded, every text decoded."""

from __future__ import annotations

import pytest

from accelmetrics.schemas.errors import SourceError
from accelmetrics.schemas.identity import DeviceProcess
from tests.backends.nvidia.machine import Consume, Consumer
from tests.simulators.nvml import NvmlSimulator, Process, ValueType
from tests.support.pids import STRANGER

LARGEST = 2**32 - 1
EXTREMES = [LARGEST, 2**31, 2**31 - 1, 1_000_000]


@pytest.mark.parametrize("count", [1025, *EXTREMES])
def test_more_gpus_than_can_be(simulator: NvmlSimulator, consume: Consume, count: int) -> None:
    """Refused in words, before anything is made of them."""
    simulator.set(claimed_gpus=count)
    simulator.reset_calls()
    with pytest.raises(SourceError) as raised:
        consume()
    assert (raised.value.reason, str(count) in str(raised.value)) == ("invalid_value", True)
    assert simulator.count("nvmlDeviceGetHandleByIndex_v2") == 0
    assert simulator.count("nvmlInitWithFlags") == simulator.count("nvmlShutdown") == 1


def test_gpus_that_are_only_claimed(simulator: NvmlSimulator, consume: Consume) -> None:
    """Each has its place and says why it cannot be opened; those that are there are read."""
    simulator.set(claimed_gpus=5)
    consumer = consume()
    assert [bool(device.uuid) for device in consumer.driver.devices] == [True, True, True, False, False]
    assert consumer.read(2).metrics["temp"] == simulator.gpu[2].get("temperature")
    assert "NVIDIA GPU 4 cannot be opened" in str(consumer.error(unit=4))


@pytest.mark.parametrize("name", ["\udcff", "Tesla \udcc3", "\udc80\udc80 9000", "", "Tesla \x1b[31m"])
def test_texts_of_any_bytes(simulator: NvmlSimulator, consume: Consume, name: str) -> None:
    """A name that is garbled gives way to the PCI ids; other texts are not known; nothing else is lost."""
    gpu = simulator.gpu[1]
    gpu.set(name=name, serial=name, vbios=name)
    consumer = consume()
    device = consumer.identities()[1]
    assert (device.name, device.serial, device.firmware) == ("NVIDIA GPU 10de:2330", "", "")
    assert device.uuid.startswith("GPU-")
    assert consumer.read(1).metrics["temp"] == gpu.get("temperature")


def test_a_long_name(simulator: NvmlSimulator, consume: Consume) -> None:
    """As long as there is room for, and in any script."""
    simulator.gpu[0].set(name="x" * 95)
    simulator.gpu[1].set(name="NVIDIA Geförce 日本")
    assert [device.name for device in consume().identities()[:2]] == ["x" * 95, "NVIDIA Geförce 日本"]


def in_groups(text: str) -> str:
    """What WSL makes of a name: two UTF-16 characters at a time, in the five bytes that the first UTF-8 had for 26 bits."""
    raw = b""
    for first, second in zip(text[::2], (text + "\0")[1::2], strict=True):
        point = ord(first) | ord(second) << 16
        tail = bytes(0x80 | point >> shift & 63 for shift in (18, 12, 6, 0))
        raw += bytes([0xF8 | point >> 24]) + tail if point > 0xFFFF else first.encode()
    return raw.decode(errors="surrogateescape")


@pytest.mark.parametrize("name", ["NVIDIA GeForce RTX 3090", "NVIDIA GeForce RTX 4070", "NVIDIA RTX A6000", "NVIDIA GeForce GTX 1080 Ti"])
def test_names_in_wsl(simulator: NvmlSimulator, consume: Consume, name: str) -> None:
    """Of an even and of an odd number of letters: what nvidia-smi shows."""
    simulator.gpu[1].set(name=in_groups(name))
    assert consume().identities()[1].name == name


def test_a_name_in_wsl_that_is_cut_off(simulator: NvmlSimulator, consume: Consume) -> None:
    """What is left of it is not passed off as the name."""
    simulator.gpu[1].set(name=in_groups("NVIDIA GeForce RTX 3090")[:-3])
    assert consume().identities()[1].name == "NVIDIA GPU 10de:2330"


@pytest.mark.parametrize("value", EXTREMES)
def test_numbers_of_the_identity(simulator: NvmlSimulator, consume: Consume, value: int) -> None:
    """One that cannot be is not known; NVML's own number need not be that of the device node."""
    simulator.set(cuda_version=value)
    simulator.gpu[0].set(minor_number=5)
    simulator.gpu[1].set(numa_node=value, architecture=value, minor_number=value, cores=LARGEST, memory_total=-1)
    first, device, last = consume().identities()
    assert (device.runtime_version, device.numa_node, device.architecture, device.minor_number) == ("", None, "", None)
    assert (device.cores, device.memory_total_bytes) == (None, None)
    assert (first.minor_number, last.minor_number) == (5, 2)


@pytest.mark.parametrize("count", EXTREMES)
def test_more_mig_instances_than_can_be(simulator: NvmlSimulator, consume: Consume, count: int) -> None:
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


@pytest.mark.parametrize("claimed", ["claimed_processes", "claimed_samples"])
@pytest.mark.parametrize("count", EXTREMES)
def test_lists_that_claim_more_than_they_hold(simulator: NvmlSimulator, consumer: Consumer, claimed: str, count: int) -> None:
    """Nothing beyond the array is read, and process 0, which fills it up, is no process."""
    simulator.processes(0, [Process(pid=4711, used=1 << 20, sm=30, mem=20)])
    simulator.set(**{claimed: count})
    assert consumer.read(0).processes == (DeviceProcess(4711, "compute", 1 << 20, 30, 20),)


@pytest.mark.parametrize("count", EXTREMES)
def test_lists_that_ask_for_more_room_than_there_can_be(simulator: NvmlSimulator, consumer: Consumer, count: int) -> None:
    """None is made: what the list holds is not known, and nothing else is missing."""
    simulator.processes(0, [Process(pid=4711 + number, sm=1) for number in range(100)])
    simulator.set(claimed_processes=count, claimed_samples=count)
    seen = consumer.read(0)
    assert seen.processes is None
    assert seen.metrics["temp"] == simulator.gpu[0].get("temperature")
    simulator.set(claimed_processes=0)
    processes = consumer.later(1.0).processes
    assert processes is not None
    assert (len(processes), {process.utilization for process in processes}) == (100, {None})


@pytest.mark.parametrize(
    ("told", "believed"),
    [
        (Process(pid=STRANGER + 1001, used=1 << 20), ()),
        (Process(pid=STRANGER + 1000, used=1 << 20), (DeviceProcess(STRANGER + 1000, "compute", 1 << 20),)),
        (Process(pid=2**31, used=1 << 20), ()),
        (Process(pid=LARGEST, used=1 << 20), ()),
        (Process(pid=1, used=2**63), (DeviceProcess(1, "compute", None),)),
        (Process(pid=1, used=2**64 - 2), (DeviceProcess(1, "compute", None),)),
        (Process(pid=1, sm=LARGEST, mem=101), (DeviceProcess(1, "compute", None, None, None),)),
    ],
    ids=["above", "largest", "negative", "all-ones", "memory", "memory-n/a", "busy"],
)
def test_processes_that_cannot_be(simulator: NvmlSimulator, consumer: Consumer, told: Process, believed: tuple[DeviceProcess, ...]) -> None:
    """No such number, no such memory, no such share: that alone is left out."""
    simulator.processes(0, [told])
    assert consumer.read(0).processes == believed


def test_a_sample_from_the_end_of_time(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """It is left out; taken for the newest it would hide every later one."""
    simulator.processes(0, [Process(pid=1, sm=50, timestamp_us=2**64 - 1)])
    assert consumer.read(0).processes == (DeviceProcess(1, "compute"),)
    simulator.processes(0, [Process(pid=1, sm=40, timestamp_us=1_700_000_000_000_000)])
    assert consumer.later(1.0).processes == (DeviceProcess(1, "compute", None, 40, 0),)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 0.5, 1e300])
def test_fields_that_are_no_whole_numbers(simulator: NvmlSimulator, consumer: Consumer, value: float) -> None:
    """A real number is none for a counter, at the first reading and at every later one; a whole one is an int."""
    fields = {"MEMORY_TEMP": "memoryTemp", "PCIE_COUNT_TX_BYTES": "pcieTxBytesTotal", "PCIE_REPLAY_COUNTER": "pcieReplays"}
    for field in fields:
        simulator.gpu[0].set_field(field, value, kind=ValueType.DOUBLE)
    for _ in range(3):
        seen = consumer.later(0.2)
        assert {seen.reason(name) for name in fields.values()} == {"invalid_value"}
    for field in fields:
        simulator.gpu[0].set_field(field, 44.0, kind=ValueType.DOUBLE)
    for _ in range(3):
        seen = consumer.later(10.0)
        assert {(seen.metrics[name], type(seen.metrics[name])) for name in fields.values()} == {(44, int)}


@pytest.mark.parametrize("kind", [7, 255, 2**31, LARGEST])
def test_fields_of_a_type_that_is_not_known(simulator: NvmlSimulator, consumer: Consumer, kind: int) -> None:
    """Read like the widest."""
    simulator.gpu[0].set_field("PCIE_COUNT_TX_BYTES", 1234, kind=kind)
    for _ in range(2):
        assert consumer.later(0.2).metrics["pcieTxBytesTotal"] == 1234


@pytest.mark.parametrize("value", [-1, LARGEST, 2**31, 1001])
def test_the_speed_of_a_fan(simulator: NvmlSimulator, consumer: Consumer, value: int) -> None:
    """One that cannot be is missing, whatever number of fans the driver claims."""
    simulator.gpu[0].set(num_fans=LARGEST, fan_speed=[value & LARGEST])
    assert consumer.read(0).reason("fanSpeed") == "invalid_value"


@pytest.mark.parametrize("value", EXTREMES)
def test_the_id_of_a_gpu_instance(simulator: NvmlSimulator, consume: Consume, value: int) -> None:
    """One that cannot be is not asked about: the instance has its memory, and no shares."""
    (instance,) = simulator.partition(1, ["3g.40gb"])
    instance.claim(value)
    consumer = consume()
    seen = consumer.read(3)
    assert (seen.reason("smActive"), seen.metrics["memoryTotalBytes"]) == ("invalid_value", 40 * 2**30)
    assert consumer.driver.devices[3].gpu_instance_id is None
