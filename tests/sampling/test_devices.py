"""Kinds, partitions and what belongs to no device: under which keys things stand."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

import accelmetrics
from accelmetrics import Reason, Sampler
from accelmetrics.sampling.devices import DeviceRegistry
from accelmetrics.schemas.identity import DeviceIdentity
from accelmetrics.testing import FakeBackend, FakeClock
from accelmetrics.testing.fake import FakeDriver


def test_what_belongs_to_no_device_stands_under_whole_keys() -> None:
    backend = FakeBackend("neuron-like", "trn", devices=2)
    backend.device(0).set(utilization=1)
    backend.device(1).set(utilization=2)
    backend.machine.set(**{"trn.host_total_memory_usage": 123}).miss("trn.other", Reason.NOT_IN_USE)
    with Sampler([backend]) as sampler:
        snapshot = sampler.sample()
        assert snapshot.metrics == {"trn.0.utilization": 1, "trn.1.utilization": 2, "trn.host_total_memory_usage": 123}
        assert snapshot.unavailable["trn.other"].reason == Reason.NOT_IN_USE
        assert [device.key for device in snapshot.devices] == ["trn.0", "trn.1"]
        backend.machine.lose()
        snapshot = sampler.sample()
        assert snapshot.unavailable["trn.host_total_memory_usage"].reason == Reason.DEVICE_LOST
        assert snapshot.metrics["trn.1.utilization"] == 2


def test_a_kind_that_one_vendor_makes_keeps_the_vendors_numbers() -> None:
    backend = FakeBackend("tpu-like", "tpu", devices=2)
    for number, runtime_id in enumerate((8, 13)):
        device = backend.device(number)
        device.identity = device.identity._replace(vendor_index=runtime_id)
        device.set(dutyCycle=number)
    with Sampler([backend]) as sampler:
        assert sampler.sample().metrics == {"tpu.8.dutyCycle": 0, "tpu.13.dutyCycle": 1}


def tpu(number: int, address: str = "") -> DeviceIdentity:
    return DeviceIdentity("tpu", "google", number, pci_bus_id=address)


def keys(registry: DeviceRegistry, *devices: DeviceIdentity) -> list[str]:
    return [slot.key for slot in registry.adopt("tpu", devices)]


CHIPS = ("0000:00:04.0", "0000:00:05.0")


@pytest.mark.parametrize("ids", [(1,), (1, 2), (0, 1, 2), (1, 42, 46)])
def test_no_two_devices_have_one_key(ids: tuple[int, ...]) -> None:
    """Chips that were listed while not in use keep their numbers, whatever ids without a chip a runtime names later."""
    registry = DeviceRegistry()
    assert keys(registry, *map(tpu, range(2), CHIPS)) == ["tpu.0", "tpu.1"]
    later = keys(registry, *map(tpu, ids), *map(tpu, (60, 61), CHIPS))
    assert later[-2:] == ["tpu.0", "tpu.1"]
    assert len(set(later)) == len(later)
    assert keys(registry, *map(tpu, ids), *map(tpu, (60, 61), CHIPS)) == later
    wanted = [f"tpu.{number}" for number in ids if number > 1]
    assert all(key in later for key in wanted if key not in {"tpu.2"}), "a number that was free is the runtime's own"
    assert [slot.identity.vendor_index for slot in registry.known("tpu")[:2]] == [60, 61]


def test_the_devices_of_one_chip_keep_their_keys_when_a_runtime_numbers_them() -> None:
    """Their address is no name for one of them, nor is a number that the next program changes; their order is."""
    registry = DeviceRegistry()
    each = [address for address in CHIPS for _ in range(2)]
    idle = keys(registry, *map(tpu, range(4), each))
    assert idle == ["tpu.0", "tpu.1", "tpu.2", "tpu.3"]
    assert keys(registry, *map(tpu, range(8, 12), each)) == idle
    other = DeviceRegistry(registry.numbering)
    assert keys(other, *map(tpu, range(4), each)) == idle
    assert len(other.known("tpu")) == 4


def test_devices_that_cannot_be_told_apart_have_keys_of_their_own() -> None:
    """As a plug-in may list them."""
    found = [slot.key for slot in DeviceRegistry().adopt("acme", [DeviceIdentity("gpu", "acme", 0)] * 2)]
    assert found == ["gpu.0", "gpu.1"]


def test_partitions_are_numbered_below_their_parents_and_take_no_place_of_their_own() -> None:
    backend = FakeBackend(devices=5)
    parents = [backend.device(0), backend.device(3)]
    for number in (1, 2):
        device = backend.device(number)
        device.identity = device.identity._replace(
            parent=parents[0].identity.uuid, vendor_index=number - 1, uuid=f"MIG-{number}", pci_bus_id=""
        )
    last = backend.device(4)
    last.identity = last.identity._replace(parent=parents[1].identity.uuid, vendor_index=0, uuid="MIG-9", pci_bus_id="")
    for number, device in enumerate(backend.all_devices()):
        device.set(memoryAllocatedBytes=number)
    clock = FakeClock()
    sampler = Sampler([backend], clock=clock)
    expected = {"gpu.0": 0, "gpu.0.mig.0": 1, "gpu.0.mig.1": 2, "gpu.1": 3, "gpu.1.mig.0": 4}
    snapshot = sampler.sample()
    assert snapshot.metrics == {f"{key}.memoryAllocatedBytes": value for key, value in expected.items()}
    assert [device.key for device in snapshot.devices] == ["gpu.0", "gpu.1", "gpu.0.mig.0", "gpu.0.mig.1", "gpu.1.mig.0"]
    assert dict(snapshot.device("gpu.0.mig.1").values) == {"memoryAllocatedBytes": 2}
    assert dict(snapshot.device("gpu.0").values) == {"memoryAllocatedBytes": 0}
    assert [device.parent for device in snapshot.devices] == [None, None, "gpu.0", "gpu.0", "gpu.1"]
    assert [device.parent for device in accelmetrics.devices([backend], gpus=["gpu.0.mig.1"])] == ["gpu.0"]
    sampler.close()


def test_what_becomes_known_of_a_device_while_the_driver_is_open_shows(gpus: FakeBackend) -> None:
    device = gpus.device(1)
    whole = device.identity
    device.identity = whole._replace(uuid="", pci_bus_id="", name="")
    with Sampler([gpus]) as sampler:
        before = sampler.sample()
        assert before.device("gpu.1").name == ""
        device.identity = whole
        after = sampler.sample()
        assert after.device("gpu.1").identity == whole
        assert after.metrics == before.metrics, "the key stays"
        assert [entry.key for entry in after.devices] == ["gpu.0", "gpu.1", "gpu.2", "gpu.3"]
        assert gpus.opened == 1
        assert sampler.sample().devices[1].uuid == whole.uuid


class Growing(FakeBackend):
    """Lists its devices as they are now, and finds more of them while it is read."""

    def open(self) -> GrowingDriver:
        self.opened += 1
        return GrowingDriver(self)


class GrowingDriver(FakeDriver):
    """Always the present list."""

    def __init__(self, backend: FakeBackend) -> None:
        super().__init__(backend)
        self._listed = backend._devices
        self.asked: list[DeviceIdentity] | None = None

    @property
    def devices(self) -> list[DeviceIdentity]:
        found = [device.identity for device in self._listed]
        if found != self.asked:
            self.asked = found
        return self.asked or []


def test_devices_that_turn_up_are_read_and_those_there_are_keep_their_keys() -> None:
    backend, others = Growing(devices=1), FakeBackend("other", devices=1)
    backend.device(0).set(temp=1)
    others.device(0).set(temp=9)
    more = FakeBackend(devices=3)
    parent = backend.device(0).identity.uuid
    first, second, third = (more.device(number).set(memoryAllocatedBytes=number) for number in range(3))
    for number, device in enumerate((first, second, third)):
        device.identity = device.identity._replace(parent=parent, vendor_index=number // 2, uuid=f"MIG-{number}", pci_bus_id="")
    with ExitStack() as stack:
        samplers = [stack.enter_context(Sampler([backend, others], gpus=choice)) for choice in (None, [0], [1])]
        assert [snapshot.metrics for snapshot in (each.sample() for each in samplers)] == [
            {"gpu.0.temp": 1, "gpu.1.temp": 9},
            {"gpu.0.temp": 1},
            {"gpu.1.temp": 9},
        ]
        backend._devices += [first, second]
        expected = {"gpu.0.temp": 1, "gpu.0.mig.0.memoryAllocatedBytes": 0, "gpu.0.mig.1.memoryAllocatedBytes": 1}
        assert [each.sample().metrics for each in samplers] == [{**expected, "gpu.1.temp": 9}, expected, {"gpu.1.temp": 9}]
        second.lose()
        backend._devices.append(third)
        snapshot = samplers[0].sample()
        del expected["gpu.0.mig.1.memoryAllocatedBytes"]
        assert snapshot.metrics == {**expected, "gpu.1.temp": 9, "gpu.0.mig.2.memoryAllocatedBytes": 2}
        assert snapshot.unavailable["gpu.0.mig.1.memoryAllocatedBytes"].reason == Reason.DEVICE_LOST
        assert backend.opened == 1


def test_what_a_reading_finds_out_about_its_device_is_in_its_snapshot(gpus: FakeBackend) -> None:
    device = gpus.device(0)
    whole = device.identity

    def temperature() -> int:
        device.identity = whole._replace(serial="4711")
        return 40

    device.set(temp=temperature)
    with Sampler([gpus]) as sampler:
        assert sampler.sample().device("gpu.0").serial == "4711"


def test_a_partition_never_has_the_number_of_another() -> None:
    backend = FakeBackend(devices=2)
    whole, part = backend.device(0), backend.device(1)
    part.identity = part.identity._replace(parent=whole.identity.uuid, vendor_index=0, uuid="MIG-1", pci_bus_id="")
    clock = FakeClock()
    sampler = Sampler([backend], clock=clock)
    sampler.sample()
    backend.go_away()
    sampler.sample()
    part.identity = part.identity._replace(uuid="MIG-2")
    part.set(memoryAllocatedBytes=5)
    backend.come_back()
    clock.advance(2.0)
    snapshot = sampler.sample()
    assert snapshot.metrics == {"gpu.0.mig.1.memoryAllocatedBytes": 5}
    assert [device.uuid for device in snapshot.devices if device.parent] == ["MIG-2"], "the other was removed"
    sampler.close()
