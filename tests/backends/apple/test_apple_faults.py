"""Everything the commands may do wrong, and what comes of it: each costs what it alone gives, and comes back."""

import gc
import json
import threading
import time
from collections.abc import Callable

import psutil
import pytest

from accelmetrics import Sampler
from accelmetrics.backends.apple import backend, pipe, static
from accelmetrics.backends.apple.driver import AppleDriver
from accelmetrics.backends.clock import SYSTEM_CLOCK
from accelmetrics.schemas.errors import SourceError
from accelmetrics.schemas.reasons import Reason
from accelmetrics.visibility.doctor import diagnose
from tests.backends.apple.reading import eventually, open_driver, read
from tests.simulators.apple import NOT_ROOT, MacStandIn, Mode, ioreg, macmon_0_8, powermetrics

GOOD = json.dumps(macmon_0_8())
OF_IOREG = {"gpu", "memoryAllocated", "memoryAllocatedBytes", "memoryTotalBytes"}


def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come true in time"
        time.sleep(0.02)


def gone(pid: int) -> bool:
    """Whether a process has ended, reaped or not."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def opening_failure() -> SourceError:
    with pytest.raises(SourceError) as caught:
        backend.open()
    return caught.value


# macmon


def test_a_macmon_that_dies_is_started_again(mac: MacStandIn, drivers: list[AppleDriver]) -> None:
    reader = open_driver(drivers)
    assert "powerWatts" in read(reader).values
    mac.behave("macmon", mode="die", errors="failed to open SMC\n")
    found = eventually(reader, lambda found: "powerWatts" not in found.values)
    assert set(found.values) == OF_IOREG
    assert found.reasons["powerWatts"].reason == Reason.DRIVER_ERROR
    assert "failed to open SMC" in found.reasons["powerWatts"].detail
    mac.behave("macmon", GOOD)
    assert eventually(reader, lambda found: "powerWatts" in found.values).values["gpu"] == 62.5


@pytest.mark.parametrize("mode", ["hang", "silent"])
def test_a_macmon_that_stands_still_is_stale_and_replaced(
    mac: MacStandIn, drivers: list[AppleDriver], monkeypatch: pytest.MonkeyPatch, mode: Mode
) -> None:
    monkeypatch.setattr(pipe, "FRESH", 0.4)
    monkeypatch.setattr(pipe, "SILENCE", 1.0)
    reader = open_driver(drivers)
    mac.behave("macmon", mode=mode)
    found = eventually(reader, lambda found: "powerWatts" not in found.values)
    assert found.reasons["temp"].reason == Reason.STALE
    assert found.values["gpu"] == 37
    first = mac.pids("macmon")[-1]
    until(lambda: gone(first))
    mac.behave("macmon", GOOD)
    assert eventually(reader, lambda found: "powerWatts" in found.values).values["temp"] == 48.5


def test_a_line_of_garbage_costs_itself(mac: MacStandIn, drivers: list[AppleDriver]) -> None:
    reader = open_driver(drivers)
    mac.behave("macmon", GOOD[:200])
    found = eventually(reader, lambda found: "powerWatts" not in found.values)
    assert found.reasons["powerWatts"].reason == Reason.PARSE_ERROR
    assert set(found.values) == OF_IOREG
    mac.behave("macmon", GOOD)
    assert "powerWatts" in eventually(reader, lambda found: "powerWatts" in found.values).values


def test_warnings_between_the_lines_do_no_harm(mac: MacStandIn, drivers: list[AppleDriver]) -> None:
    mac.behave("macmon", f"warning: no sensors\n{GOOD}\n\nwarning: again")
    assert read(open_driver(drivers)).values["powerWatts"] == 7.25


@pytest.mark.parametrize("version", ["macmon-dashboard 1.1.4\n", "1.1.4\n", "", "usage: macmon [-h] [--port PORT]\n"])
def test_another_program_of_that_name_is_left_alone(mac: MacStandIn, drivers: list[AppleDriver], version: str) -> None:
    mac.behave("macmon", GOOD, version=version)
    found = read(open_driver(drivers))
    assert set(found.values) == OF_IOREG
    assert "another program of that name" in found.reasons["temp"].detail
    assert mac.calls("macmon") == [["--version"]]


def test_one_that_starts_a_server_whatever_it_is_asked_is_killed(
    mac: MacStandIn, drivers: list[AppleDriver], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipe, "VERSION_TIMEOUT", 0.5)
    mac.behave("macmon", mode="server")
    found = read(open_driver(drivers))
    assert "does not answer --version" in found.reasons["temp"].detail
    (pid,) = mac.pids("macmon")
    assert gone(pid)


def test_one_that_gives_itself_out_as_macmon_is_found_out_by_its_first_line(mac: MacStandIn, drivers: list[AppleDriver]) -> None:
    mac.behave("macmon", '{"status": "running", "port": 8000}', version="macmon 1.1.4\n")
    reader = open_driver(drivers)
    found = read(reader)
    assert set(found.values) == OF_IOREG
    assert found.reasons["temp"] == (Reason.PARSE_ERROR, "a program named macmon prints something else than macmon does")
    until(lambda: all(map(gone, mac.pids("macmon"))))
    assert len(mac.calls("macmon")) == 2


@pytest.mark.parametrize(("printed", "mode", "reason"), [("INFO: up", "normal", Reason.PARSE_ERROR), ("", "silent", Reason.TIMED_OUT)])
def test_one_that_prints_no_record_in_time_is_left_alone(
    mac: MacStandIn, drivers: list[AppleDriver], monkeypatch: pytest.MonkeyPatch, printed: str, mode: Mode, reason: Reason
) -> None:
    monkeypatch.setattr(pipe, "FIRST_LINE", 0.2)
    monkeypatch.setattr(pipe, "TRIAL", 1.0)
    monkeypatch.setattr(pipe, "RETRY", 0.0)
    mac.behave("macmon", printed, mode=mode)
    reader = open_driver(drivers)
    assert read(reader).reasons["temp"].reason == reason
    until(lambda: (read(reader), all(map(gone, mac.pids("macmon"))))[1])
    assert read(reader).reasons["temp"].reason == reason
    assert len(mac.calls("macmon")) == 2


@pytest.mark.parametrize("trial", [0.1, 15.0])
def test_a_macmon_that_fails_at_its_start_is_tried_again(
    mac: MacStandIn, drivers: list[AppleDriver], monkeypatch: pytest.MonkeyPatch, trial: float
) -> None:
    monkeypatch.setattr(pipe, "TRIAL", trial)
    mac.behave("macmon", mode="die", errors="no IOReport\n")
    reader = open_driver(drivers)
    until(lambda: len(mac.calls("macmon")) == 3)
    found = read(reader)
    assert set(found.values) == OF_IOREG
    assert "no IOReport" in found.reasons["temp"].detail
    mac.behave("macmon", GOOD)
    assert eventually(reader, lambda found: "temp" in found.values).values["powerWatts"] == 7.25


def test_a_macmon_that_is_installed_later_is_found(mac: MacStandIn, drivers: list[AppleDriver], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipe, "RETRY", 0.3)
    hidden = mac.directory / "hidden"
    (mac.directory / "macmon").rename(hidden)
    reader = open_driver(drivers)
    assert set(read(reader).values) == OF_IOREG
    hidden.rename(mac.directory / "macmon")
    assert "powerWatts" in eventually(reader, lambda found: "powerWatts" in found.values).values


def test_closing_ends_the_pipe(mac: MacStandIn) -> None:
    driver = AppleDriver(SYSTEM_CLOCK)
    pid = mac.pids("macmon")[-1]
    assert not gone(pid)
    driver.close()
    until(lambda: gone(pid))


def test_a_value_beyond_a_float_costs_itself_and_leaves_no_child(mac: MacStandIn) -> None:
    mac.behave("macmon", json.dumps(macmon_0_8(gpu_power=10**400, sys_power=-(10**400), memory={"ram_total": 10**400})))
    with Sampler(["apple"], clock=SYSTEM_CLOCK) as sampler:
        snapshot = sampler.sample()
    for key in ("gpu.0.powerWatts", "system.powerWatts"):
        assert snapshot.unavailable[key].reason == Reason.INVALID_VALUE
    assert snapshot.metrics["gpu.0.temp"] == 48.5
    until(lambda: all(map(gone, mac.pids("macmon"))))


@pytest.mark.parametrize("step", ["memory", "profile", "identify"])
def test_whatever_goes_wrong_at_the_start_leaves_no_child(mac: MacStandIn, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """A defect of ours included: an opening that failed is tried again and again."""

    def broken(*arguments: object) -> None:
        raise OverflowError(len(arguments))

    monkeypatch.setattr(static, step, broken)
    with pytest.raises(OverflowError):
        backend.open()
    until(lambda: all(map(gone, mac.pids("macmon"))))
    until(lambda: not any("macmon" in thread.name for thread in threading.enumerate()))


def test_a_sampler_that_is_closed_leaves_nothing_running(mac: MacStandIn) -> None:
    with Sampler(["apple"], clock=SYSTEM_CLOCK) as sampler:
        sampler.sample()
    gc.collect()
    until(lambda: all(map(gone, mac.pids("macmon"))))


# The other commands


@pytest.mark.parametrize(
    ("output", "mode", "reason"),
    [
        ("", "hang", Reason.TIMED_OUT),
        ("", "die", Reason.DRIVER_ERROR),
        ("", "normal", Reason.DRIVER_ERROR),
        ("no property list", "normal", Reason.PARSE_ERROR),
        (ioreg()[:300], "normal", Reason.PARSE_ERROR),
        (ioreg().replace("PerformanceStatistics", "Other"), "normal", Reason.NOT_SUPPORTED),
        (ioreg(used="much"), "normal", Reason.PARSE_ERROR),
        (ioreg(used=-1), "normal", Reason.INVALID_VALUE),
        (ioreg(used=None), "normal", Reason.NOT_SUPPORTED),
    ],
)
def test_an_ioreg_that_fails_costs_the_memory_alone(
    mac: MacStandIn, drivers: list[AppleDriver], output: str, mode: Mode, reason: Reason
) -> None:
    mac.behave("ioreg", output, mode=mode, errors="ioreg: error\n")
    reader = open_driver(drivers)
    found = read(reader)
    assert found.reasons["memoryAllocatedBytes"].reason == found.reasons["memoryAllocated"].reason == reason
    assert (found.values["gpu"], found.values["powerWatts"]) == (62.5, 7.25)
    mac.behave("ioreg", ioreg())
    assert read(reader).values["memoryAllocated"] == 25.0


def test_more_memory_in_use_than_there_is_is_no_share(mac: MacStandIn, drivers: list[AppleDriver]) -> None:
    mac.behave("ioreg", ioreg(used=2**40))
    assert read(open_driver(drivers)).reasons["memoryAllocated"].reason == Reason.INVALID_VALUE


def test_an_impossible_utilisation_is_no_utilisation(mac: MacStandIn, drivers: list[AppleDriver]) -> None:
    mac.remove("macmon")
    mac.behave("ioreg", ioreg(busy=4000))
    assert read(open_driver(drivers)).reasons["gpu"].reason == Reason.INVALID_VALUE


@pytest.mark.parametrize(
    ("output", "mode", "errors", "reason"),
    [
        ("", "normal", NOT_ROOT, Reason.NO_PERMISSION),
        ("", "die", "", Reason.DRIVER_ERROR),
        ("", "hang", "", Reason.TIMED_OUT),
        ("garbage", "normal", "", Reason.PARSE_ERROR),
        (powermetrics(gpu={}), "normal", "", Reason.NOT_SUPPORTED),
    ],
)
def test_a_powermetrics_that_fails_costs_the_power_alone(
    root: MacStandIn, drivers: list[AppleDriver], monkeypatch: pytest.MonkeyPatch, output: str, mode: Mode, errors: str, reason: Reason
) -> None:
    monkeypatch.setattr("accelmetrics.backends.apple.powermetrics.TIMEOUT", 0.5)
    root.remove("macmon")
    root.behave("powermetrics", output, mode=mode, errors=errors)
    reader = open_driver(drivers)
    found = read(reader)
    assert found.reasons["freq"].reason == reason
    assert set(found.values) >= OF_IOREG
    root.behave("powermetrics", powermetrics())
    assert read(reader).values["freq"] == 740.5


def test_a_command_that_may_not_be_executed_says_so(mac: MacStandIn, drivers: list[AppleDriver]) -> None:
    mac.forbid("ioreg")
    assert read(open_driver(drivers)).reasons["memoryAllocatedBytes"].reason == Reason.NO_PERMISSION


def test_a_macmon_that_may_not_be_executed_says_so(mac: MacStandIn, drivers: list[AppleDriver]) -> None:
    mac.forbid("macmon")
    found = read(open_driver(drivers))
    assert found.reasons["temp"].reason == Reason.NO_PERMISSION
    assert set(found.values) == OF_IOREG


def test_a_mac_without_any_of_them_does_not_open(mac: MacStandIn) -> None:
    mac.remove("macmon", "ioreg")
    error = opening_failure()
    assert error.reason == Reason.DRIVER_UNAVAILABLE
    assert error.message == "macmon is not installed (brew install macmon); ioreg is not installed; powermetrics gives it to root alone"
    assert "brew install macmon" in error.advice


def test_a_mac_whose_commands_fail_says_how(mac: MacStandIn) -> None:
    mac.remove("macmon")
    mac.behave("ioreg", "nothing of use")
    error = opening_failure()
    assert error.reason == Reason.PARSE_ERROR
    assert "ioreg printed no property list: nothing of use" in error.message


# Through a sampler


def test_a_sampler_is_in_time_whatever_hangs(mac: MacStandIn) -> None:
    with Sampler(["apple"], clock=SYSTEM_CLOCK, timeout=0.5) as sampler:
        assert sampler.sample().backends[0].status == "ok"
        for name in ("macmon", "ioreg", "sysctl", "system_profiler"):
            mac.behave(name, mode="hang")
        for _ in range(8):
            before = time.monotonic()
            sampler.sample()
            assert time.monotonic() - before < 1.0
            time.sleep(0.1)


def test_a_reading_says_how_old_it_is(mac: MacStandIn, sampler: Sampler) -> None:
    del mac
    sampler.sample()
    time.sleep(0.3)
    (status,) = sampler.sample().backends
    assert status.age_seconds is not None
    assert 0.2 < status.age_seconds < 1.5


def test_doctor_explains_a_mac_without_macmon(mac: MacStandIn) -> None:
    mac.remove("macmon")
    (found,) = diagnose(["apple"]).backends
    assert (found.status, found.source) == ("ok", "ioreg")
    assert "no macmon" in found.evidence
    gaps = {gap.reason: gap for gap in found.devices[0].gaps}
    assert "powermetrics gives it to root alone" in gaps[Reason.NO_PERMISSION].detail
    assert "brew install macmon" in gaps[Reason.DRIVER_UNAVAILABLE].detail
