"""Everything the commands may do wrong, and what comes of it: each costs what it alone gives, and comes back."""

import json

import pytest

from accelmetrics import Sampler
from accelmetrics.backends.apple import backend, sources
from accelmetrics.backends.contract import SYSTEM_CLOCK
from accelmetrics.backends.kit import commands, polled
from accelmetrics.schemas.errors import Reason, SourceError
from accelmetrics.visibility.doctor import diagnose
from tests.backends.apple.reading import Mac
from tests.simulators.apple import NOT_ROOT, MacStandIn, Mode, ioreg, macmon_0_8, powermetrics
from tests.support.pids import gone
from tests.support.threads import own_threads
from tests.support.waiting import HANG, wait_for

GOOD = json.dumps(macmon_0_8())
OF_IOREG = {"gpu", "memoryAllocated", "memoryAllocatedBytes", "memoryTotalBytes"}


def opening_failure() -> SourceError:
    with pytest.raises(SourceError) as caught:
        backend.open()
    return caught.value


# macmon


@pytest.mark.parametrize("version", ["macmon-dashboard 1.1.4\n", "1.1.4\n", "", "usage: macmon [-h] [--port PORT]\n"])
def test_another_program_of_that_name_is_left_alone(mac: MacStandIn, machine: Mac, version: str) -> None:
    mac.behave("macmon", GOOD, version=version)
    found = machine.read()
    assert set(found.values) == OF_IOREG
    assert "another program of that name" in found.reasons["temp"].detail
    assert mac.calls("macmon") == [["--version"]]


def test_one_that_starts_a_server_whatever_it_is_asked_is_killed(mac: MacStandIn, machine: Mac, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "VERSION_TIMEOUT", 0.5)
    mac.behave("macmon", mode="server")
    found = machine.read()
    assert "does not answer --version" in found.reasons["temp"].detail
    (pid,) = mac.pids("macmon")
    assert gone(pid)


def test_one_that_gives_itself_out_as_macmon_is_found_out_by_its_first_line(mac: MacStandIn, machine: Mac) -> None:
    mac.behave("macmon", '{"status": "running", "port": 8000}', version="macmon 1.1.4\n")
    found = machine.read()
    assert set(found.values) == OF_IOREG
    assert found.reasons["temp"] == (Reason.PARSE_ERROR, "another program is named macmon: its output is not macmon's")
    wait_for(lambda: all(map(gone, mac.pids("macmon"))))
    assert len(mac.calls("macmon")) == 2


@pytest.mark.parametrize(("printed", "mode", "reason"), [("INFO: up", "normal", Reason.PARSE_ERROR), ("", "silent", Reason.TIMED_OUT)])
def test_one_that_prints_no_record_in_time_is_left_alone(
    mac: MacStandIn, machine: Mac, monkeypatch: pytest.MonkeyPatch, printed: str, mode: Mode, reason: Reason
) -> None:
    monkeypatch.setattr(sources, "INTERVAL", 0.1)
    monkeypatch.setattr(sources.POLLED, "interval", 0.1)
    monkeypatch.setattr(sources, "FIRST_LINE", 0.2)
    monkeypatch.setattr(commands, "START_UP", 1.0)
    monkeypatch.setattr(polled, "RETRY", 0.0)
    mac.behave("macmon", printed, mode=mode)
    assert machine.read().reasons["temp"].reason == reason
    found = machine.until(lambda found: "was killed" in found.reasons["temp"].detail)
    assert found.reasons["temp"].reason == reason
    assert own_threads("accelmetrics macmon") == [], "what would start it again has ended"
    assert all(map(gone, mac.pids("macmon")))
    assert machine.read().reasons["temp"] == found.reasons["temp"]
    assert own_threads("accelmetrics macmon") == []


def test_a_macmon_that_fails_at_its_start_is_tried_again(mac: MacStandIn, machine: Mac) -> None:
    mac.behave("macmon", mode="die", errors="no IOReport\n")
    found = machine.read()
    assert set(found.values) == OF_IOREG
    assert "no IOReport" in found.reasons["temp"].detail
    wait_for(lambda: len(mac.calls("macmon")) > 2)
    mac.behave("macmon", GOOD)
    assert machine.until(lambda found: "temp" in found.values).values["powerWatts"] == 7.25


def test_a_macmon_that_is_installed_later_is_found(mac: MacStandIn, machine: Mac, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polled, "RETRY", 0.0)
    hidden = mac.directory / "hidden"
    (mac.directory / "macmon").rename(hidden)
    assert set(machine.read().values) == OF_IOREG
    hidden.rename(mac.directory / "macmon")
    assert "powerWatts" in machine.until(lambda found: "powerWatts" in found.values).values


def test_what_goes_wrong_in_one_source_costs_what_it_alone_gives(mac: MacStandIn, machine: Mac, monkeypatch: pytest.MonkeyPatch) -> None:
    del mac

    def broken(printed: str) -> None:
        raise OverflowError(len(printed))

    monkeypatch.setattr(sources, "parse_profile", broken)
    found = machine.read()
    assert {*OF_IOREG, "powerWatts"} <= found.values.keys()
    assert machine.driver.devices[0].name == "Apple M2 Pro"


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
def test_an_ioreg_that_fails_costs_the_memory_alone(mac: MacStandIn, machine: Mac, output: str, mode: Mode, reason: Reason) -> None:
    mac.behave("ioreg", output, mode=mode, errors="ioreg: error\n")
    found = machine.read()
    assert found.reasons["memoryAllocatedBytes"].reason == found.reasons["memoryAllocated"].reason == reason
    assert (found.values["gpu"], found.values["powerWatts"]) == (62.5, 7.25)
    mac.behave("ioreg", ioreg())
    assert machine.read().values["memoryAllocated"] == 25.0


def test_more_memory_in_use_than_there_is_is_no_share(mac: MacStandIn, machine: Mac) -> None:
    mac.behave("ioreg", ioreg(used=2**40))
    assert machine.read().reasons["memoryAllocated"].reason == Reason.INVALID_VALUE


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
    root: MacStandIn, machine: Mac, monkeypatch: pytest.MonkeyPatch, output: str, mode: Mode, errors: str, reason: Reason
) -> None:
    monkeypatch.setattr(polled, "RETRY", 0.0)
    for command in sources.POWERMETRICS:
        monkeypatch.setattr(command, "timeout", 0.5 if mode == "hang" else HANG)
    root.remove("macmon")
    root.behave("powermetrics", output, mode=mode, errors=errors)
    found = machine.read()
    assert found.reasons["freq"].reason == reason
    assert set(found.values) >= OF_IOREG
    root.behave("powermetrics", powermetrics())
    for command in sources.POWERMETRICS:
        monkeypatch.setattr(command, "timeout", HANG)
    assert machine.until(lambda found: "freq" in found.values).values["freq"] == 740.5


def test_a_command_that_may_not_be_executed_says_so(mac: MacStandIn, machine: Mac) -> None:
    mac.forbid("ioreg")
    assert machine.read().reasons["memoryAllocatedBytes"].reason == Reason.NO_PERMISSION


def test_a_mac_without_any_of_them_does_not_open(mac: MacStandIn) -> None:
    mac.remove("macmon", "ioreg")
    error = opening_failure()
    assert error.reason == Reason.NO_PERMISSION
    assert error.message.split("; ") == [
        "macmon is not installed (brew install macmon)",
        "ioreg was not found in PATH",
        "powermetrics needs root",
    ]
    assert "brew install macmon" in error.advice


def test_a_mac_whose_commands_fail_says_how(mac: MacStandIn) -> None:
    mac.remove("macmon")
    mac.behave("ioreg", "nothing of use")
    error = opening_failure()
    assert error.reason == Reason.PARSE_ERROR
    assert "ioreg printed no property list: nothing of use" in error.message


def test_a_source_that_fails_is_told_while_the_others_are_read(mac: MacStandIn) -> None:
    with Sampler(["apple"], clock=SYSTEM_CLOCK) as sampler:
        assert sampler.sample().backends[0].source == "macmon+ioreg"
    mac.behave("ioreg", mode="die", errors="no IOKit\n")
    with Sampler(["apple"], clock=SYSTEM_CLOCK) as sampler:
        snapshot = sampler.sample()
    assert (snapshot.backends[0].status, snapshot.backends[0].source) == ("ok", "macmon")
    assert "no IOKit" in snapshot.unavailable["gpu.0.memoryAllocatedBytes"].detail


# Through a sampler


def test_a_sampler_gives_what_it_has_whatever_hangs(mac: MacStandIn) -> None:
    """Old values while they are fresh, reasons after that, and never a wait for the commands."""
    with Sampler(["apple"], clock=SYSTEM_CLOCK) as sampler:
        assert sampler.sample().backends[0].status == "ok"
        for name in ("macmon", "ioreg", "sysctl", "system_profiler"):
            mac.behave(name, mode="hang")
        calls = len(mac.calls("ioreg"))
        wait_for(lambda: (sampler.sample(), len(mac.calls("ioreg")) > calls)[1])
        snapshot = wait_for(lambda: found if (found := sampler.sample()).unavailable.keys() > {"gpu.0.powerPercent"} else None)
    assert snapshot is not None
    assert snapshot.unavailable["gpu.0.memoryAllocatedBytes"].reason in (Reason.TIMED_OUT, Reason.STALE)


def test_doctor_explains_a_mac_without_macmon(mac: MacStandIn) -> None:
    mac.remove("macmon")
    (found,) = diagnose(["apple"]).backends
    assert (found.status, found.source) == ("ok", "ioreg")
    assert "no macmon" in found.evidence
    gaps = {gap["reason"]: gap for gap in found.devices[0].gaps}
    assert "powermetrics needs root" in gaps[Reason.NO_PERMISSION]["detail"]
    assert "brew install macmon" in gaps[Reason.DRIVER_UNAVAILABLE]["detail"]
