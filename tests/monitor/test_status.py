"""How a source fared that was read and gave nothing: what every key says is what the source says."""

from __future__ import annotations

import pytest

from accelmetrics import Reason, Sampler
from accelmetrics.schemas.errors import SourceError
from accelmetrics.schemas.identity import BackendStatus
from accelmetrics.testing import FakeBackend


def silent(*reasons: str, interval: float = 0.0) -> FakeBackend:
    """Two devices without any value, of which every metric has the next of these reasons."""
    backend = FakeBackend(devices=2, interval=interval)
    for device in (backend.device(0), backend.device(1)):
        for number, reason in enumerate(reasons):
            device.miss(f"metric{number}", reason, f"because of {number}")
    return backend


def status_of(backend: FakeBackend) -> BackendStatus:
    with Sampler([backend]) as sampler:
        return sampler.sample().backends[0]


@pytest.mark.parametrize("interval", [0.0, 0.1])
@pytest.mark.parametrize(
    ("reasons", "status", "detail"),
    [
        ([Reason.TIMED_OUT] * 3, "timed_out", "timed_out: because of 0"),
        ([Reason.NO_PERMISSION] * 2, "degraded", "no_permission: because of 0"),
        ([Reason.TIMED_OUT, Reason.DRIVER_ERROR], "degraded", "driver_error: because of 1"),
        ([Reason.NOT_SUPPORTED, Reason.TIMED_OUT], "timed_out", "timed_out: because of 1"),
        ([Reason.NOT_IN_USE] * 2, "ok", "2 scripted devices"),
        ([Reason.NOT_SUPPORTED, Reason.NEEDS_INTERVAL, Reason.SUSPENDED], "ok", "2 scripted devices"),
        ([], "ok", "2 scripted devices"),
    ],
)
def test_a_source_without_any_value(reasons: list[str], status: str, detail: str, interval: float) -> None:
    found = status_of(silent(*reasons, interval=interval))
    assert (found.status, found.detail) == (status, detail)


def test_one_value_is_enough() -> None:
    backend = silent(Reason.TIMED_OUT)
    backend.device(1).set(temp=40)
    assert status_of(backend).status == "ok"


def test_a_unit_that_failed_says_more() -> None:
    backend = silent(Reason.TIMED_OUT)
    backend.device(1).fail(SourceError(Reason.DEVICE_LOST, "it has gone"))
    found = status_of(backend)
    assert (found.status, found.detail) == ("degraded", "gpu.1: device_lost: it has gone")


def test_readings_without_an_answer_are_counted() -> None:
    backend = silent(Reason.TIMED_OUT)
    with Sampler([backend]) as sampler:
        sampler.sample()
        backend.device(0).set(temp=40)
        sampler.sample()
        assert (sampler.statistics.readings, sampler.statistics.timed_out) == (2, 1)


def test_what_earlier_readings_left_hides_no_failure() -> None:
    """A device whose power, temperature, load and memory all fail does not answer, whatever it gave before."""
    backend = FakeBackend(devices=2)
    for device in (backend.device(0), backend.device(1)):
        device.set(maxSmClock=1980, powerWatts=100, temp=40)
    with Sampler([backend]) as sampler:
        assert sampler.sample().backends[0].status == "ok"
        for device in (backend.device(0), backend.device(1)):
            for name in ("powerWatts", "temp"):
                device.miss(name, Reason.DRIVER_ERROR, "it says no")
        found = sampler.sample().backends[0]
        assert (found.status, found.detail) == ("degraded", "driver_error: it says no")
        backend.device(1).set(temp=40)
        assert sampler.sample().backends[0].status == "ok"


@pytest.mark.parametrize("reason", [Reason.SUSPENDED, Reason.NOT_IN_USE], ids=str)
def test_a_device_at_rest_is_no_fault(reason: str) -> None:
    """It is left alone; one that fails beside it is a fault all the same, and so are values that all fail."""
    backend = FakeBackend(devices=2)
    backend.device(0).fail(SourceError(reason, "it rests"))
    backend.device(1).set(temp=40)
    with Sampler([backend]) as sampler:
        assert sampler.sample().backends[0].status == "ok"
        backend.device(1).miss("temp", Reason.DRIVER_ERROR, "it says no")
        assert sampler.sample().backends[0].status == "degraded"
        backend.device(1).lose()
        found = sampler.sample().backends[0]
        assert found.status == "failed"
        assert found.detail.startswith("gpu.1: device_lost")
        backend.device(1).fail(SourceError(reason, "it rests too"))
        assert sampler.sample().backends[0].status == "ok"
