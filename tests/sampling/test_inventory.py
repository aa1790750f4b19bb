"""Kinds, partitions and what belongs to no device: under which keys things stand."""

from __future__ import annotations

from accelmetrics import Reason, Sampler
from accelmetrics.testing import FakeBackend, FakeClock


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
    sampler.close()
