"""GPUs that PCI runtime power management has powered down: listed and left asleep, read again once they are awake."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from accelmetrics import Reason
from tests.backends.nvidia.machine import OWED, Sample, Simulate, is_conditional, write_tree
from tests.simulators.nvml import NvmlSimulator

ADDRESSES = ("0000:18:00.0", "0000:19:00.0", "0000:2a:00.0")
INFORMATION = "Model: \t\t NVIDIA GeForce RTX 4060 Laptop GPU\nIRQ:   \t\t 165\nGPU UUID: \t {uuid}\nVideo BIOS: \t ??.??.??.??.??\n"


MakeBus = Callable[[int], tuple["Bus", NvmlSimulator]]


class Bus:
    """NVIDIA GPUs on the PCI bus of a tree, below the simulated driver's addresses."""

    def __init__(self, root: Path, simulator: NvmlSimulator, count: int) -> None:
        self.root = root
        self.addresses = ADDRESSES[:count]
        for number, address in enumerate(self.addresses):
            simulator.gpu[number].set(pci_bus_id=f"0000{address}".upper())
            self.bind(address, "nvidia")
            self.write(address, {"vendor": "0x10de", "class": "0x030000", "device": "0x28a0", "power/runtime_status": "active"})

    def bind(self, address: str, driver: str) -> None:
        device = self.root / "sys/bus/pci/devices" / address
        device.mkdir(parents=True, exist_ok=True)
        (device / "driver").symlink_to(f"../../../bus/pci/drivers/{driver}")

    def write(self, address: str, files: dict[str, str]) -> None:
        write_tree(self.root, {f"/sys/bus/pci/devices/{address}/{name}": f"{text}\n" for name, text in files.items()})

    def sleep(self, *numbers: int) -> None:
        for number in numbers:
            self.write(self.addresses[number], {"power/runtime_status": "suspended"})

    def wake(self, number: int) -> None:
        self.write(self.addresses[number], {"power/runtime_status": "active"})


@pytest.fixture
def make_bus(tmp_path: Path, simulate: Simulate, monkeypatch: pytest.MonkeyPatch) -> MakeBus:
    monkeypatch.setenv("ACCELMETRICS_SYSROOT", str(tmp_path))

    def make(count: int) -> tuple[Bus, NvmlSimulator]:
        simulator = simulate(gpus=count)
        return Bus(tmp_path, simulator, count), simulator

    return make


def called_on(simulator: NvmlSimulator, gpu: int) -> set[str]:
    return {function for function, number in simulator.calls() if number == gpu}


def test_where_all_sleep_nothing_is_opened(make_bus: MakeBus, sample: Sample) -> None:
    """They are listed as the kernel knows them, every key says that they sleep, and nothing is wrong."""
    bus, simulator = make_bus(2)
    bus.sleep(0, 1)
    write_tree(bus.root, {f"/proc/driver/nvidia/gpus/{ADDRESSES[0]}/information": INFORMATION.format(uuid="GPU-01234567-89ab")})
    write_tree(bus.root, {f"/proc/driver/nvidia/gpus/{ADDRESSES[1]}/power": "Video Memory: Off\n"})
    sampler, clock = sample()
    for _ in range(3):
        snapshot = sampler.sample()
        clock.advance(1.0)
    assert not simulator.calls()
    assert not snapshot.metrics
    assert {key: why.reason for key, why in snapshot.unavailable.items()} == {
        f"gpu.{number}.{name}": Reason.SUSPENDED for number in (0, 1) for name in OWED
    }
    assert [(device.name, device.uuid, device.pci_bus_id) for device in snapshot.devices] == [
        ("NVIDIA GeForce RTX 4060 Laptop GPU", "GPU-01234567-89ab", "00000000:18:00.0"),
        ("NVIDIA GPU (0x28a0)", "", "00000000:19:00.0"),
    ]
    assert snapshot.backends[0].status == "ok"


def test_one_that_wakes_is_read_and_left_alone_when_it_sleeps_again(make_bus: MakeBus, sample: Sample) -> None:
    """It has the same key throughout, and no reading is a failure."""
    bus, simulator = make_bus(1)
    bus.sleep(0)
    sampler, clock = sample()
    sampler.sample()
    bus.wake(0)
    woken = sampler.sample()
    assert ({why.reason for why in woken.unavailable.values()}, woken.backends[0].status) == ({Reason.SUSPENDED}, "ok")
    clock.advance(1.1)
    awake = sampler.sample()
    assert awake.metrics["gpu.0.temp"] == simulator.gpu[0].get("temperature")
    assert [(device.key, device.uuid[:4]) for device in awake.devices] == [("gpu.0", "GPU-")]
    bus.sleep(0)
    simulator.reset_calls()
    for _ in range(12):
        clock.advance(1.0)
        asleep = sampler.sample()
    assert called_on(simulator, 0) == set()
    assert {why.reason for key, why in asleep.unavailable.items() if not is_conditional(key.removeprefix("gpu.0."))} == {Reason.SUSPENDED}
    assert (asleep.metrics == {}, asleep.devices[0].uuid, asleep.backends[0].status) == (True, awake.devices[0].uuid, "ok")
    bus.wake(0)
    clock.advance(1.0)
    assert sampler.sample().metrics["gpu.0.temp"] == simulator.gpu[0].get("temperature")


@pytest.mark.parametrize("asleep", [0, 1, 2])
def test_one_of_several_sleeps(make_bus: MakeBus, sample: Sample, asleep: int) -> None:
    """The others are read under their own numbers; it is asked nothing, and has its place when it wakes."""
    bus, simulator = make_bus(3)
    for number in range(3):
        simulator.gpu[number].set(temperature=40 + number)
    bus.sleep(asleep)
    sampler, clock = sample()
    for _ in range(3):
        snapshot = sampler.sample()
        clock.advance(11.0)
    assert called_on(simulator, asleep) == set()
    temperatures = {f"gpu.{number}.temp": 40 + number for number in range(3)}
    assert {key: value for key, value in snapshot.metrics.items() if key.endswith(".temp")} == {
        key: value for key, value in temperatures.items() if key != f"gpu.{asleep}.temp"
    }
    assert snapshot.unavailable[f"gpu.{asleep}.temp"].reason == Reason.SUSPENDED
    assert [device.vendor_index for device in snapshot.devices] == [0, 1, 2]
    assert (snapshot.devices[asleep].pci_bus_id, snapshot.backends[0].status) == (f"0000{bus.addresses[asleep]}".upper(), "ok")
    bus.wake(asleep)
    for _ in range(2):
        clock.advance(2.0)
        snapshot = sampler.sample()
    assert {key: value for key, value in snapshot.metrics.items() if key.endswith(".temp")} == temperatures
    assert [device.key for device in snapshot.devices] == ["gpu.0", "gpu.1", "gpu.2"]


def test_a_container_has_fewer_gpus_than_its_bus_shows(make_bus: MakeBus, sample: Sample) -> None:
    """One that sleeps and that the driver does not have is not listed, nor does it keep the driver closed."""
    bus, simulator = make_bus(2)
    bus.bind("0000:01:00.0", "nvidia")
    bus.write("0000:01:00.0", {"vendor": "0x10de", "class": "0x030200", "device": "0x2330", "power/runtime_status": "suspended"})
    sampler, _ = sample()
    snapshot = sampler.sample()
    assert [device.pci_bus_id for device in snapshot.devices] == ["00000000:18:00.0", "00000000:19:00.0"]
    assert len({key for key in snapshot.metrics if key.endswith(".temp")}) == 2
    assert simulator.count("nvmlDeviceGetHandleByIndex_v2") == 0


def test_a_card_of_another_driver_that_sleeps(make_bus: MakeBus, sample: Sample) -> None:
    """One that is passed through to a virtual machine, or that no driver has, is none of NVIDIA's driver."""
    bus, simulator = make_bus(1)
    bus.bind("0000:01:00.0", "vfio-pci")
    bus.write("0000:02:00.0", {"vendor": "0x10de", "class": "0x030200", "device": "0x2330", "power/runtime_status": "suspended"})
    bus.write("0000:01:00.0", {"vendor": "0x10de", "class": "0x030200", "device": "0x2330", "power/runtime_status": "suspended"})
    sampler, _ = sample()
    snapshot = sampler.sample()
    assert [device.pci_bus_id for device in snapshot.devices] == ["00000000:18:00.0"]
    assert snapshot.metrics["gpu.0.temp"] == simulator.gpu[0].get("temperature")


def test_instances_sleep_with_their_gpu(make_bus: MakeBus, sample: Sample) -> None:
    """Looking one up would wake the GPU."""
    bus, simulator = make_bus(1)
    simulator.partition(0, ["3g.40gb"])
    sampler, clock = sample()
    assert "gpu.0.mig.0.memoryTotalBytes" in sampler.sample().metrics
    bus.sleep(0)
    simulator.reset_calls()
    clock.advance(11.0)
    snapshot = sampler.sample()
    assert {why.reason for key, why in snapshot.unavailable.items() if key.startswith("gpu.0.mig.0.")} == {Reason.SUSPENDED}
    assert not {function for function, _ in simulator.calls()} - {"nvmlEventSetWait_v2"}
