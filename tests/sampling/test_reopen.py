"""Drivers that go away and come back, and devices that keep their numbers meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from accelmetrics import Reason, Sampler
from accelmetrics.backends.contract import Detection
from accelmetrics.schemas.errors import SourceError
from accelmetrics.testing import FakeBackend, FakeClock
from tests.support.waiting import wait_for


@contextmanager
def away(backend: FakeBackend, sampler: Sampler, clock: FakeClock) -> Iterator[None]:
    """Have a driver go away that was read, and come back after the block."""
    sampler.sample()
    backend.go_away()
    sampler.sample()
    yield
    backend.come_back()
    clock.advance(2.0)


def test_a_driver_that_goes_away_is_opened_again_with_back_off(gpus: FakeBackend) -> None:
    clock = FakeClock()
    sampler = Sampler([gpus], clock=clock)
    sampler.sample()
    gpus.go_away()
    gone = sampler.sample()
    assert gone.backends[0].status == "failed"
    assert {why.reason for why in gone.unavailable.values()} == {Reason.DRIVER_UNAVAILABLE}
    assert len(gone.unavailable) == 8
    assert [device.key for device in gone.devices] == ["gpu.0", "gpu.1", "gpu.2", "gpu.3"]
    wait_for(lambda: gpus.closed == 1)  # a worker closes it
    for pause, attempts in [(0.5, 1), (0.6, 2), (1.0, 2), (1.1, 3), (2.0, 3), (2.1, 4)]:
        clock.advance(pause)
        sampler.sample()
        assert gpus.opened == attempts, "1 s, then 2 s, then 4 s after the last attempt"
    gpus.come_back()
    clock.advance(8.1)
    back = sampler.sample()
    assert len(back.metrics) == 8
    assert not back.unavailable
    sampler.close()


def test_the_back_off_is_bounded_and_forgotten_after_success(gpus: FakeBackend) -> None:
    clock = FakeClock()
    sampler = Sampler([gpus], clock=clock)
    gpus.go_away()
    for _ in range(20):
        sampler.sample()
        clock.advance(61.0)
    assert gpus.opened == 20, "never more than a minute apart"
    gpus.come_back()
    sampler.sample()
    gpus.go_away()
    sampler.sample()
    clock.advance(1.1)
    gpus.come_back()
    assert len(sampler.sample().metrics) == 8
    sampler.close()


def test_what_is_named_and_not_there_is_absent_and_tried_every_minute(gpus: FakeBackend) -> None:
    """What was there once is missed; what never was is not, though it is opened whatever detection says."""
    clock = FakeClock()
    gpus.detection = Detection(False, "no such card")
    gpus.opening.fail(SourceError(Reason.DRIVER_UNAVAILABLE, "no library"))
    with Sampler([gpus], clock=clock) as sampler:
        for pause, attempts in [(0.0, 1), (0.0, 1), (59.9, 1), (0.2, 2)]:
            clock.advance(pause)
            assert sampler.sample().backends[0][:3] == ("fake", "absent", "no library")
            assert gpus.opened == attempts
        gpus.opening.fail(None)
        clock.advance(60.1)
        assert sampler.sample().backends[0].status == "ok"
        gpus.go_away()
        sampler.sample()
        clock.advance(1.1)
        assert sampler.sample().backends[0].status == "failed"


def test_a_driver_is_not_closed_beside_a_call_that_hangs(gpus: FakeBackend) -> None:
    with Sampler([gpus], timeout=0.2) as sampler:
        sampler.sample()
        gpus.device(0).hang()
        sampler.sample()
        gpus.go_away()
        sampler.sample()
        assert gpus.closed == 0
        gpus.device(0).release()
        wait_for(lambda: gpus.closed == 1)


def test_devices_keep_their_numbers_when_the_driver_lists_them_in_another_order(gpus: FakeBackend) -> None:
    clock = FakeClock()
    sampler = Sampler([gpus], clock=clock)
    before = sampler.sample()
    with away(gpus, sampler, clock):
        gpus.reorder(3, 1, 0)
    after = sampler.sample()
    assert after.metrics["gpu.3.powerWatts"] == before.metrics["gpu.3.powerWatts"] == 103.0
    assert after.metrics["gpu.0.powerWatts"] == 100.0
    assert after.unavailable["gpu.2.powerWatts"].reason == Reason.DEVICE_LOST
    assert [device.uuid for device in after.devices] == [device.uuid for device in before.devices]
    sampler.close()


def two(kind: str = "gpu") -> tuple[FakeBackend, FakeBackend]:
    """Two vendors, with two devices and with one, whose temperature is the length of their vendor's name."""
    first, second = FakeBackend("alpha", devices=2), FakeBackend("beta", kind, devices=1)
    for backend in (first, second):
        for device in backend.all_devices():
            device.set(temp=len(backend.name))
    return first, second


def test_a_vendor_that_opens_late_finds_its_places_free() -> None:
    first, second = two()
    first.opening.hang()
    with Sampler([first, second], timeout=0.1, open_timeout=0.1) as sampler:
        assert set(sampler.sample().metrics) == {"gpu.2.temp"}
        first.opening.release()
        wait_for(lambda: set(sampler.sample().metrics) == {"gpu.0.temp", "gpu.1.temp", "gpu.2.temp"})


def test_a_vendor_that_never_opens_shifts_nobody_and_one_without_devices_takes_no_place() -> None:
    first, second, third = FakeBackend("alpha", devices=2), FakeBackend("beta", devices=1), FakeBackend("gamma", devices=1)
    first.opening.fail(SourceError(Reason.DRIVER_UNAVAILABLE, "not loaded"))
    second.detection = Detection(True, "nothing on the bus", 0)
    second.reorder()
    third.device(0).set(temp=1)
    with Sampler([first, second, third]) as sampler:
        assert set(sampler.sample().metrics) == {"gpu.2.temp"}


def test_more_devices_than_were_reserved_are_numbered_after_everybody_else() -> None:
    first, second = two()
    first.detection = Detection(True, "one on the bus", 1)
    first.opening.hang()
    with Sampler([first, second], timeout=0.1, open_timeout=0.1) as sampler:
        assert sampler.sample().metrics == {"gpu.1.temp": 4}
        first.opening.release()
        wait_for(lambda: sampler.sample().metrics == {"gpu.0.temp": 5, "gpu.2.temp": 5, "gpu.1.temp": 4})


def test_a_vendor_that_lists_more_than_was_detected_in_time_has_them_side_by_side() -> None:
    first, second = two()
    first.detection = Detection(True, "one on the bus", 1)
    first.opening.slow(0.1)
    with Sampler([first, second]) as sampler:
        assert sampler.sample().metrics == {"gpu.0.temp": 5, "gpu.1.temp": 5, "gpu.2.temp": 4}


def test_kinds_are_numbered_each_on_their_own() -> None:
    gpu, tpu = two("tpu")
    with Sampler([tpu, gpu]) as sampler:
        assert set(sampler.sample().metrics) == {"gpu.0.temp", "gpu.1.temp", "tpu.0.temp"}


def test_a_device_that_failed_at_its_first_enumeration_keeps_its_number(gpus: FakeBackend) -> None:
    clock = FakeClock()
    whole = gpus.device(2).identity
    gpus.device(2).identity = whole._replace(uuid="", pci_bus_id="", name="")
    sampler = Sampler([gpus], clock=clock)
    with away(gpus, sampler, clock):
        gpus.device(2).identity = whole
    snapshot = sampler.sample()
    assert snapshot.metrics["gpu.2.powerWatts"] == 102.0
    assert snapshot.device("gpu.2").uuid == whole.uuid
    assert len(snapshot.devices) == 4
    sampler.close()


@pytest.mark.parametrize("kept", ["uuid", "pci_bus_id", "vendor_index"])
def test_a_device_is_found_again_by_whichever_of_its_names_is_read(gpus: FakeBackend, kept: str) -> None:
    """What cannot be read while the driver is opened again makes no second device, and is still shown."""
    clock = FakeClock()
    whole = gpus.device(2).identity._replace(pci_bus_id="00000000:C1:00.0", serial="4711")
    gpus.device(2).identity = whole
    with Sampler([gpus], clock=clock) as sampler:
        with away(gpus, sampler, clock):
            unread: dict[str, Any] = {"uuid": "", "pci_bus_id": "", "serial": "", "name": ""}
            number = 7 if kept != "vendor_index" else 2
            gpus.device(2).identity = whole._replace(**unread)._replace(**{kept: getattr(whole, kept), "vendor_index": number})
        snapshot = sampler.sample()
        assert [device.key for device in snapshot.devices] == ["gpu.0", "gpu.1", "gpu.2", "gpu.3"]
        assert (snapshot.metrics["gpu.2.powerWatts"], not snapshot.unavailable) == (102.0, True)
        found = snapshot.device("gpu.2").identity
        assert (found.uuid, found.pci_bus_id, found.serial) == (whole.uuid, whole.pci_bus_id, whole.serial)


def test_another_card_in_the_same_slot_is_another_device(gpus: FakeBackend) -> None:
    """Its UUID speaks against its address and its number."""
    clock = FakeClock()
    whole = gpus.device(2).identity._replace(pci_bus_id="0000:c1:00.0")
    gpus.device(2).identity = whole
    with Sampler([gpus], clock=clock) as sampler:
        with away(gpus, sampler, clock):
            gpus.device(2).identity = whole._replace(uuid="GPU-of-another-card")
        snapshot = sampler.sample()
        assert snapshot.metrics["gpu.4.powerWatts"] == 102.0
        assert snapshot.unavailable["gpu.2.powerWatts"].reason == Reason.DEVICE_LOST


def test_a_partition_stays_with_its_device_while_that_ones_uuid_is_not_read(gpus: FakeBackend) -> None:
    """A driver that does not read the UUID names the parent by its address."""
    clock = FakeClock()
    whole = gpus.device(0).identity._replace(pci_bus_id="0000:c1:00.0")
    part = gpus.device(1).identity._replace(uuid="MIG-1", pci_bus_id="", parent=whole.uuid, vendor_index=0)
    gpus.device(0).identity, gpus.device(1).identity = whole, part
    with Sampler([gpus], clock=clock) as sampler:
        with away(gpus, sampler, clock):
            gpus.device(0).identity, gpus.device(1).identity = whole._replace(uuid=""), part._replace(parent=whole.pci_bus_id)
        snapshot = sampler.sample()
        assert [device.key for device in snapshot.devices] == ["gpu.0", "gpu.1", "gpu.2", "gpu.0.mig.0"]
        found = snapshot.device("gpu.0.mig.0")
        assert (found.parent, found.identity.parent) == ("gpu.0", whole.uuid)
        assert snapshot.device("gpu.0").uuid == whole.uuid
