"""The host as psutil gives it, for systems without ``/proc``; what is tested here runs on any."""

import os
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from pytest_mock import MockerFixture

from accelmetrics.backends.contract import ReadOptions
from accelmetrics.backends.host import HostBackend
from accelmetrics.backends.host.collector import FIRST, HostDriver
from accelmetrics.backends.host.drivers import portable_driver
from tests.backends.host.test_contract import assert_sound
from tests.backends.host.tree import Clock, values_of

ME = ReadOptions(os.getpid(), True, ("/",))
LINUX_ONLY = ("proc.cpu.throttledPercent", "proc.memory.oomKills", "network.tcpRetransmits", "cpu.avg_temp", "cpu.powerWatts")


@pytest.fixture
def driver() -> Iterator[HostDriver]:
    found = portable_driver()
    yield found
    found.close()


def test_readings_are_sound_and_agree_with_psutil(driver: HostDriver) -> None:
    reader = driver.reader(ME)
    first = reader.read(0, [])
    assert_sound(first)
    assert first.unavailable["cpu"] == first.unavailable["network.sent"] == first.unavailable["disk.in"] == FIRST
    until = time.process_time() + 0.15
    while time.process_time() < until:
        pass
    second = reader.read(0, [])
    assert_sound(second)
    values = values_of(second)
    assert values["cpu"] > 0
    assert values["proc.memory.rssMB"] == pytest.approx(psutil.Process().memory_info().rss / 2**20, rel=0.05)
    assert values["memory_percent"] == pytest.approx(psutil.virtual_memory().percent, abs=5)
    assert values["network.sent"] >= 0
    assert f"cpu.{(os.cpu_count() or 1) - 1}.cpu_percent" in values


def test_memory_in_bytes_and_the_load(driver: HostDriver) -> None:
    values = values_of(driver.reader(ME).read(0, []))
    assert values["memory.totalBytes"] == psutil.virtual_memory().total
    assert values["memory.usedBytes"] == pytest.approx(values["memory_percent"] / 100 * values["memory.totalBytes"])
    assert values["proc.memory.rssBytes"] / 2**20 == values["proc.memory.rssMB"]
    assert values["load.1m"] == pytest.approx(os.getloadavg()[0], abs=5)


def test_a_system_without_load_averages_says_so(driver: HostDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows has none, and zeros in their place are none."""
    monkeypatch.delattr(os, "getloadavg")
    assert driver.reader(ME).read(0, []).unavailable["load.5m"].reason == "not_supported"


def test_what_linux_alone_has_says_so(driver: HostDriver) -> None:
    reading = driver.reader(ME).read(0, [])
    for key in LINUX_ONLY:
        assert reading.unavailable[key].reason == "not_supported"
        assert "Linux" in reading.unavailable[key].detail


def test_another_system_gets_this_driver(mocker: MockerFixture) -> None:
    mocker.patch("accelmetrics.backends.host._ON_LINUX", False)
    found = HostBackend()
    assert found.open().source == "psutil"
    assert "cgroup" not in found.detect().evidence


def broken(error: Exception) -> Any:
    """A psutil whose every call but the process's throws."""

    def fail(*_: object, **__: object) -> None:
        raise error

    names = ("cpu_times", "virtual_memory", "swap_memory", "disk_io_counters", "net_io_counters")
    return SimpleNamespace(**{**vars(psutil), **dict.fromkeys(names, fail)})


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (NotImplementedError("no such thing"), "not_supported"),
        (PermissionError(13, "denied"), "no_permission"),
        (RuntimeError("perfstat"), "driver_error"),
        (OSError(5, "I/O error"), "driver_error"),
    ],
)
def test_what_psutil_throws_becomes_reasons(error: Exception, reason: str) -> None:
    reading = portable_driver(psutil=broken(error)).reader(ME).read(0, [])
    assert_sound(reading)
    for key in ("memory_percent", "swap.used_percent", "disk.in", "network.sent"):
        assert reading.unavailable[key].reason == reason


@pytest.mark.parametrize(("error", "reason"), [(psutil.AccessDenied(1), "no_permission"), (psutil.NoSuchProcess(1), "not_in_use")])
def test_a_process_that_may_not_be_read(driver: HostDriver, mocker: MockerFixture, error: Exception, reason: str) -> None:
    mocker.patch.object(psutil.Process, "cpu_times", side_effect=error)
    reading = driver.reader(ME).read(0, [])
    assert {str(reading.unavailable[key].reason) for key in ("cpu", "proc.memory.rssMB", "proc.cpu.threads")} == {reason}
    assert "memory_percent" in values_of(reading)


def test_counters_run_by_the_readers_own_clock(mocker: MockerFixture) -> None:
    clock = Clock()
    counters = mocker.patch.object(psutil, "net_io_counters")
    counters.return_value = {"lo0": SimpleNamespace(bytes_sent=9, bytes_recv=9), "en0": SimpleNamespace(bytes_sent=10, bytes_recv=20)}
    reader = portable_driver(clock).reader(ME)
    reader.read(0, [])
    counters.return_value = {"lo0": SimpleNamespace(bytes_sent=99, bytes_recv=99), "en0": SimpleNamespace(bytes_sent=30, bytes_recv=30)}
    clock.now += 2.0
    values = values_of(reader.read(0, []))
    assert (values["network.sent"], values["network.recv"], values["network.sentBps"]) == (20, 10, 10.0)
