"""What is asked for without a reading: the list of devices, and a reading that is young enough."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

import accelmetrics
from accelmetrics import DeviceInfo, Sampler, Snapshot
from accelmetrics.sampling import sampler as module
from accelmetrics.schemas.errors import InvalidOptionError, UnknownNameError
from accelmetrics.testing import FakeBackend
from tests.sampling.conftest import at_once
from tests.sampling.test_fork_and_exit import in_child, needs_fork
from tests.support.waiting import HANG, wait_for


def reads(backend: FakeBackend) -> int:
    """How often its devices were read, all together."""
    return sum(device.reads for device in backend.all_devices())


def test_devices_are_listed_without_a_reading(gpus: FakeBackend) -> None:
    """By the function and by the method; a later reading has the same devices."""
    with Sampler([gpus]) as sampler:
        listed = sampler.devices()
        assert [(device.key, device.index, device.name, device.parent) for device in accelmetrics.devices([gpus])] == [
            (device.key, device.index, device.name, device.parent) for device in listed
        ]
        assert (reads(gpus), gpus.opened, sampler.statistics.readings) == (0, 1, 0)
        assert all(type(device) is DeviceInfo for device in listed)
        snapshot = sampler.sample()
    assert [device.identity for device in listed] == [device.identity for device in snapshot.devices]
    assert [device.key for device in listed] == ["gpu.0", "gpu.1", "gpu.2", "gpu.3"]
    assert repr(listed[0]) == f"<DeviceInfo gpu.0 acme {listed[0].name!r}>"


def test_the_options_of_sample_choose_devices(gpus: FakeBackend) -> None:
    assert [device.key for device in accelmetrics.devices([gpus], gpus=[1, 3])] == ["gpu.1", "gpu.3"]
    with pytest.raises(UnknownNameError, match=r"gpu\.7"):
        accelmetrics.devices([gpus], gpus=[7])
    with pytest.raises(InvalidOptionError, match="open_timeout"):
        accelmetrics.devices([gpus], open_timeout=0)


def test_a_list_follows_a_driver_that_is_opened_again(gpus: FakeBackend) -> None:
    """Devices of a driver that has gone stay listed; those of the next are asked for once."""
    with Sampler([gpus]) as sampler:
        sampler.sample()
        gpus.go_away()
        sampler.sample()
        assert [device.key for device in sampler.devices()] == ["gpu.0", "gpu.1", "gpu.2", "gpu.3"]
        gpus.come_back()
        gpus.reorder(3, 2)
        wait_for(lambda: len(sampler.devices()) == 4 and gpus.opened == 2)
        before = gpus.opened, reads(gpus)
        assert [device.vendor_index for device in sampler.devices()] == [0, 1, 2, 3]
        assert before == (gpus.opened, reads(gpus))


def test_a_list_waits_no_longer_than_a_first_reading_for_a_driver_that_hangs(gpus: FakeBackend) -> None:
    gpus.opening.hang()
    with Sampler([gpus], open_timeout=0.05) as sampler:
        assert sampler.devices() == ()
        gpus.opening.release()
        wait_for(lambda: len(sampler.devices()) == 4)


def test_a_child_process_lists_its_devices_too() -> None:
    with Sampler(["host"], isolation="process") as sampler:
        assert sampler.devices() == ()
        assert sampler.statistics.readings == 1
        sampler.devices()
        first = sampler.sample(max_age=HANG)
        assert sampler.statistics.readings == 1
        assert sampler.sample().time_ns > first.time_ns


@needs_fork
def test_the_child_of_a_fork_lists_them_anew(gpus: FakeBackend) -> None:
    with Sampler([gpus]) as sampler:
        sampler.sample()
        assert in_child(lambda: [device.key for device in sampler.devices()] == ["gpu.0", "gpu.1", "gpu.2", "gpu.3"]) == 0
        # And takes no reading of its parent's for its own.
        assert in_child(lambda: sampler.sample(max_age=HANG) is not None and sampler.statistics.readings == 2) == 0


@pytest.mark.parametrize("ask", [Sampler.sample, lambda sampler, max_age: asyncio.run(sampler.asample(max_age))])
def test_a_young_reading_is_given_once_more(gpus: FakeBackend, ask: Callable[[Sampler, float], Snapshot]) -> None:
    """The very object, which cannot be written to."""
    with Sampler([gpus]) as sampler:
        first = sampler.sample()
        counted = reads(gpus)
        again = ask(sampler, HANG)
        assert again is first
        with pytest.raises(TypeError, match="cannot be changed"):
            again.metrics["gpu.0.powerWatts"] = -1.0
        assert ask(sampler, HANG).metrics["gpu.0.powerWatts"] == 100.0
        assert reads(gpus) == counted
        gpus.device(0).set(powerWatts=7.0)
        assert ask(sampler, 0.0).metrics["gpu.0.powerWatts"] == 7.0
        assert reads(gpus) == 2 * counted


def test_a_burst_of_threads_causes_one_reading(gpus: FakeBackend) -> None:
    """None waits for more than that one."""
    gpus.device(0).hang()
    given: list[Snapshot] = []
    with Sampler([gpus], timeout=HANG) as sampler:
        asked = threading.Barrier(9)

        def ask() -> None:
            asked.wait()
            given.append(sampler.sample(max_age=HANG))

        def let_go() -> None:
            asked.wait()
            gpus.device(0).release()

        at_once(*[ask] * 8, let_go)
        assert sampler.statistics.readings == 1
    assert len(given) == 8
    assert len({id(snapshot) for snapshot in given}) == 1


def test_calls_of_the_function_share_a_young_reading(gpus: FakeBackend) -> None:
    """Those with the same options: others have a sampler of their own."""
    first = accelmetrics.sample([gpus])
    assert accelmetrics.sample([gpus], max_age=HANG).time_ns == first.time_ns
    assert asyncio.run(accelmetrics.asample([gpus], max_age=HANG)).time_ns == first.time_ns
    assert accelmetrics.sample([gpus], metrics="temp", max_age=HANG).time_ns > first.time_ns


def test_what_was_closed_is_read_again(gpus: FakeBackend) -> None:
    sampler = Sampler([gpus])
    sampler.sample()
    sampler.close()
    assert sampler.sample(max_age=HANG).metrics["gpu.0.powerWatts"] == 100.0
    assert sampler.statistics.readings == 2
    sampler.close()


@pytest.mark.parametrize("age", [-1, True, "1", None, float("nan"), float("inf")])
def test_an_age_that_is_none_is_refused(gpus: FakeBackend, age: float) -> None:
    with Sampler([gpus]) as sampler:
        with pytest.raises(InvalidOptionError, match="max_age is"):
            sampler.sample(age)
        with pytest.raises(InvalidOptionError, match="max_age is"):
            asyncio.run(sampler.asample(age))


def test_functions_with_the_same_options_share_a_sampler(gpus: FakeBackend) -> None:
    """So with processes, one child is started for all of them."""
    before = module._shared.cache_info().misses
    accelmetrics.sample([gpus], timeout=2.0)
    accelmetrics.devices([gpus], timeout=2.0)
    accelmetrics.topology([gpus], timeout=2.0)
    assert module._shared.cache_info().misses == before + 1
