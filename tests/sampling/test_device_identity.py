"""What every device's identity has whichever vendor's it is: where it is plugged in, and texts that can be shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from accelmetrics import Sampler, Snapshot
from accelmetrics.schemas.identity import DeviceIdentity
from accelmetrics.testing import FakeBackend
from accelmetrics.testing.fake import FakeDevice
from tests.simulators.amdgpu import Tree, machines


def slot(root: Path, address: str, node: int, cpus: str) -> None:
    """A PCI device as the kernel shows it."""
    device = root / "sys/bus/pci/devices" / address
    device.mkdir(parents=True)
    (device / "numa_node").write_text(f"{node}\n")
    (device / "local_cpulist").write_text(f"{cpus}\n")


def listing(*devices: DeviceIdentity) -> FakeBackend:
    backend = FakeBackend(devices=0)
    backend._devices = [FakeDevice(device) for device in devices]
    return backend


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_a_devices_slot(root: Path, isolation: str) -> None:
    """The kernel's answer, by the PCI address; it goes into documents and back."""
    tree = Tree(root)
    machines.rx_7900(tree)
    tree.write("/sys/bus/pci/devices/0000:03:00.0/local_cpulist", "0-15,32-47")
    with Sampler(["amd"], amd_source="sysfs", isolation=isolation) as sampler:  # type: ignore[arg-type]
        snapshot = sampler.sample()
    (device,) = snapshot.devices
    assert (device.numa_node, device.cpu_affinity) == (0, "0-15,32-47")
    assert Snapshot.from_json(snapshot.to_json()).devices[0].identity == device.identity


def test_a_machine_without_numa_nodes_has_cpus_alone(root: Path) -> None:
    slot(root, "0000:41:00.0", -1, "0-7")
    with Sampler([listing(DeviceIdentity("gpu", "acme", 0, pci_bus_id="00000000:41:00.0"))]) as sampler:
        (device,) = sampler.sample().devices
    assert (device.numa_node, device.cpu_affinity) == (None, "0-7")


def test_what_the_driver_says_of_the_slot_stands(root: Path) -> None:
    slot(root, "0000:41:00.0", 1, "8-15")
    with Sampler([listing(DeviceIdentity("gpu", "acme", 0, pci_bus_id="0000:41:00.0", numa_node=3, cpu_affinity="0-1"))]) as sampler:
        (device,) = sampler.sample().devices
    assert (device.numa_node, device.cpu_affinity) == (3, "0-1")


def test_texts_are_cut_and_shown_without_control_characters() -> None:
    """A name is printed to terminals and written to files, whatever a driver took it from."""
    with Sampler([listing(DeviceIdentity("gpu", "acme", 0, "\x1b[31mred\udcff\n", uuid="U" * 10_000_000))]) as sampler:
        snapshot = sampler.sample()
    (device,) = snapshot.devices
    assert device.name == "?[31mred? "
    assert device.uuid == "U" * 256
    assert len(snapshot.to_json()) < 10_000


@pytest.mark.parametrize("count", [1025, 5000])
def test_more_devices_than_can_be_are_refused(count: int) -> None:
    """A driver that lists them is failed, in words, and no key is made of them."""
    with Sampler([listing(*(DeviceIdentity("npu", "acme", number) for number in range(count)))]) as sampler:
        snapshot = sampler.sample()
    assert (snapshot.backends[0].status, snapshot.devices, snapshot.metrics) == ("failed", (), {})
    assert f"{count} devices: at most 1024 are accepted" in snapshot.backends[0].detail
