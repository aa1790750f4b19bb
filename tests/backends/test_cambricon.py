"""Cambricon MLUs, from a C library with the vendor's structs and a command that prints as ``cnmon`` does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from accelmetrics import Sampler
from accelmetrics.backends import cambricon, registry
from accelmetrics.backends.cambricon import backend, parse, parse_list
from accelmetrics.schemas.errors import Reason, SourceError
from accelmetrics.schemas.identity import DeviceIdentity
from accelmetrics.testing import FakeClock
from tests.simulators.cndev import build, info, process, row, table
from tests.simulators.commands import CommandStandIn
from tests.simulators.stated import Answers
from tests.support.fuzzing import fuzz
from tests.support.readings import of, read
from tests.support.waiting import until

MIB = 2**20
LIBRARY = {
    "utilization": 63,
    "memoryTotalBytes": 23374 * MIB,
    "memoryAllocatedBytes": 1024 * MIB,
    "memoryAllocated": pytest.approx(4.381, abs=1e-3),
    "memoryFreeBytes": 22000 * MIB,
    "temp": 41,
    "memoryTemp": 38,
    "powerWatts": 106,
    "enforcedPowerLimitWatts": 250,
    "powerPercent": pytest.approx(42.4),
    "smClock": 1300,
    "maxSmClock": 1400,
    "pcieLinkGen": 3,
    "pcieLinkWidth": 8,
    "maxPcieLinkGen": 4,
    "maxPcieLinkWidth": 16,
    "pcieReplays": 5,
    "throttled": 0,
    "throttle.applicationsClocksSetting": 0,
    "throttle.hwPowerBrakeSlowdown": 0,
    "throttle.swPowerCap": 0,
    "correctedMemoryErrors": 14,
    "uncorrectedMemoryErrors": 15,
    "unCorrectedMemoryErrors": 15,  # W&B's spelling
    "correctedMemoryErrorsAggregate": 24,
    "uncorrectedMemoryErrorsAggregate": 25,
    "correctedSramErrors": 11,
    "uncorrectedSramSecDedErrors": 12,
    "uncorrectedSramParityErrors": 13,
    "correctedSramErrorsAggregate": 21,
    "uncorrectedSramSecDedErrorsAggregate": 22,
    "uncorrectedSramParityErrorsAggregate": 23,
}
TOOL = {name: LIBRARY[name] for name in ("utilization", "temp", "memoryTemp", "powerWatts", "enforcedPowerLimitWatts", "powerPercent")} | {
    "memoryTotalBytes": 23374 * MIB,
    "memoryAllocatedBytes": 1024 * MIB,
    "memoryAllocated": pytest.approx(4.381, abs=1e-3),
    "memoryFreeBytes": 22350 * MIB,
    "pcieLinkGen": 3,
    "pcieLinkWidth": 8,
    "maxPcieLinkGen": 4,
    "maxPcieLinkWidth": 16,
}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("cndev"))


@pytest.fixture
def library(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Answers:
    """Two cards."""
    state = tmp_path / "state"
    monkeypatch.setenv("CNDEV_STATE", str(state))
    monkeypatch.setattr(cambricon, "LIBRARIES", (str(built),))
    monkeypatch.setenv("PATH", "/nonexistent")
    return Answers(state)


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CommandStandIn:
    """The command on a machine without the library; ``cnmon info`` lists two cards."""
    stand_in = CommandStandIn(tmp_path, "cnmon")
    monkeypatch.setenv("PATH", stand_in.path)
    monkeypatch.setattr(cambricon, "LIBRARIES", ("/nonexistent/libcndev.so",))
    stand_in.behave(info(0) + info(1), asked="info")
    stand_in.behave(table(row(0), row(1)))
    return stand_in


def test_every_metric_of_the_library_and_who_a_card_is(library: Answers) -> None:
    snapshot = read("cambricon")
    assert of(snapshot, 0) == LIBRARY
    assert snapshot.metrics["npu.1.temp"] == 42
    assert set(snapshot.unavailable) == {f"npu.{number}.fanSpeed" for number in range(2)}
    assert snapshot.devices[1].identity == DeviceIdentity(
        "npu",
        "cambricon",
        1,
        name="MLU370-X8",
        uuid="20001012-1916-0000-0000-000000000001",
        pci_bus_id="0000:3d:00.0",
        driver_version="6.2.10",
        memory_total_bytes=23374 * MIB,
    )
    assert (snapshot.backends[0].source, snapshot.devices[0].processes) == ("cndev", ())


def test_throttling(library: Answers) -> None:
    """A clock that was set is no throttling."""
    library.answers("tdp 0 1", "clock 1 1")
    metrics = read("cambricon").metrics
    assert (metrics["npu.0.throttle.swPowerCap"], metrics["npu.0.throttled"]) == (1, 1)
    assert (metrics["npu.1.throttle.applicationsClocksSetting"], metrics["npu.1.throttled"]) == (1, 0)


def test_counters_of_ecc_that_is_off_are_no_zeros(library: Answers) -> None:
    library.answers("ecc 0 0")
    snapshot = read("cambricon")
    assert snapshot.unavailable["npu.0.correctedMemoryErrors"] == (Reason.NOT_SUPPORTED, "ECC is switched off")
    assert snapshot.metrics["npu.1.correctedMemoryErrors"] == 14


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (3, Reason.NOT_SUPPORTED),
        (10, Reason.NOT_SUPPORTED),
        (13, Reason.NO_PERMISSION),
        (17, Reason.TIMED_OUT),
        (7, Reason.DRIVER_ERROR),
        (99, Reason.DRIVER_ERROR),
    ],
)
def test_a_call_that_fails_costs_its_own_values_of_its_own_card(library: Answers, code: int, reason: Reason) -> None:
    library.answers(f"fail.cndevGetDevicePowerInfo 0 {code}")
    snapshot = read("cambricon")
    why = snapshot.unavailable["npu.0.powerWatts"]
    assert why.reason == reason and why.detail.startswith("cndevGetDevicePowerInfo: ")
    lost = {"powerWatts", "enforcedPowerLimitWatts", "powerPercent"}
    assert of(snapshot, 0) == {name: value for name, value in LIBRARY.items() if name not in lost}
    assert of(snapshot, 1)["powerWatts"] == 106


@pytest.mark.parametrize(("line", "name"), [("power 0 -1", "powerWatts"), ("chip 0 65535", "temp"), ("utilization 0 4000", "utilization")])
def test_impossible_numbers(library: Answers, line: str, name: str) -> None:
    library.answers(line)
    assert read("cambricon").unavailable[f"npu.0.{name}"].reason == Reason.INVALID_VALUE


def test_every_call_may_fail(library: Answers) -> None:
    library.answers(*(f"fail.{name} 0 10" for name in (*cambricon.PLAIN, *cambricon.NUMBERED, "cndevGetProcessInfo", "cndevGetEccMode")))
    snapshot = read("cambricon")
    assert of(snapshot, 0) == {} and of(snapshot, 1)["temp"] == 42
    first = snapshot.devices[0]
    assert (first.identity.uuid, first.identity.pci_bus_id, first.processes) == ("", "", None)


@pytest.mark.parametrize("number", [1, 200])
def test_who_uses_a_card(library: Answers, number: int) -> None:
    """However many there are."""
    library.answers(f"processes 1 {number}")
    first, second = read("cambricon", pid=4000).devices
    assert (first.processes, len(second.processes or ())) == ((), number)
    assert {(each.pid, each.memory_bytes) for each in second.processes or ()} == {(4000 + each, 2 * MIB) for each in range(number)}


def test_a_card_that_the_library_refuses_is_lost_and_comes_back(library: Answers, clock: FakeClock) -> None:
    with Sampler(["cambricon"], clock=clock) as sampler:
        sampler.sample()
        library.answers("fail.cndevGetDeviceHandleByIndex 0 6")
        lost = until(sampler, clock, lambda latest: "npu.0.temp" in latest.unavailable)
        assert lost.unavailable["npu.0.temp"].reason == Reason.DEVICE_LOST
        assert lost.metrics["npu.1.temp"] == 42
        library.answers("card 0 1", "card 1 0")
        back = until(sampler, clock, lambda latest: "npu.0.temp" in latest.metrics)
        assert [device.identity.uuid[-1] for device in back.devices] == ["0", "1"]
        assert (back.metrics["npu.0.temp"], back.metrics["npu.1.temp"]) == (41, 42)


@pytest.mark.parametrize(
    ("line", "reason", "words"),
    [
        ("fail.cndevInit 0 1", Reason.DRIVER_UNAVAILABLE, "cndevInit: the driver is not loaded"),
        ("fail.cndevInit 0 13", Reason.NO_PERMISSION, "this user may not"),
        ("count 0 0", Reason.DRIVER_UNAVAILABLE, "cnmon was not found"),
        ("version 0 5", Reason.DRIVER_UNAVAILABLE, "older than release 6"),
    ],
)
def test_why_it_does_not_open(library: Answers, line: str, reason: Reason, words: str) -> None:
    library.answers(line)
    with pytest.raises(SourceError, match=words) as caught:
        registry.load("cambricon").open()
    assert caught.value.reason == reason


def test_the_tool_is_read_beside_a_library_of_another_release(tool: CommandStandIn, built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = tool.directory / "state"
    state.write_text("version 0 5\n", encoding="utf-8")
    monkeypatch.setenv("CNDEV_STATE", str(state))
    monkeypatch.setattr(cambricon, "LIBRARIES", (str(built),))
    snapshot = read("cambricon")
    assert (of(snapshot, 0), snapshot.backends[0].source) == (TOOL, "cnmon+cnmon info")
    assert "older than release 6" in snapshot.unavailable["npu.0.smClock"].detail


def test_a_library_that_does_not_load_is_told_in_the_loaders_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "libcndev.so"
    broken.write_bytes(b"no library")
    monkeypatch.setattr(cambricon, "LIBRARIES", (str(broken),))
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(SourceError, match="exists but does not load"):
        registry.load("cambricon").open()


def test_every_metric_of_the_tool(tool: CommandStandIn) -> None:
    snapshot = read("cambricon")
    assert of(snapshot, 0) == of(snapshot, 1) == TOOL
    assert sorted(tool.calls) == [[], ["info"]]
    assert snapshot.devices[1].identity == DeviceIdentity(
        "npu",
        "cambricon",
        1,
        name="MLU370-X8",
        uuid="20001012-1916-0000-0000-000000000001",
        pci_bus_id="0000:3D:00.0",
        driver_version="5.10.13",
        firmware="v1.1.6",
        memory_total_bytes=23374 * MIB,
    )
    assert snapshot.devices[0].processes is None
    assert "0 for" in snapshot.unavailable["npu.0.fanSpeed"].detail


def test_the_table_alone_has_no_temperature(tool: CommandStandIn) -> None:
    """Nothing says which sensor its column is of."""
    tool.behave("", status=1, stderr="unknown command", asked="info")
    snapshot = read("cambricon")
    assert snapshot.metrics["npu.0.powerWatts"] == 106
    assert "npu.0.temp" in snapshot.unavailable


def test_the_list_alone_is_enough(tool: CommandStandIn) -> None:
    tool.behave("cnmon: no such view", status=1)
    snapshot = read("cambricon")
    assert of(snapshot, 1) == TOOL
    assert snapshot.devices[1].identity.pci_bus_id == "0000:3d:00.0"


def test_rows_in_another_order_and_a_fan_that_turns(tool: CommandStandIn) -> None:
    tool.behave(table(row(1, fan="45%", util="7%"), row(0)))
    tool.behave(info(1) + info(0, chip="55 C"), asked="info")
    metrics = read("cambricon").metrics
    assert (metrics["npu.0.utilization"], metrics["npu.1.utilization"], metrics["npu.1.fanSpeed"]) == (63, 7, 45)
    assert (metrics["npu.0.temp"], metrics["npu.1.temp"]) == (55, 41)


def test_the_table_of_release_4_has_no_address(tool: CommandStandIn) -> None:
    """Another heading stands there; cards are then joined by their numbers."""
    old = table(row(0, address="On"), row(1, address="On")).replace("              Bus-Id", "Persistence-M Driver")
    tool.behave(old)
    snapshot = read("cambricon")
    assert [of(snapshot, number) for number in range(2)] == [TOOL, TOOL]
    assert [device.identity.pci_bus_id for device in snapshot.devices] == ["0000:39:00.0", "0000:3d:00.0"]


@pytest.mark.parametrize(
    ("printed", "reason"),
    [("N/A", Reason.NOT_SUPPORTED), ("-", Reason.NOT_SUPPORTED), ("hot", Reason.PARSE_ERROR), ("9999 C", Reason.INVALID_VALUE)],
)
def test_every_form_of_nothing(tool: CommandStandIn, printed: str, reason: Reason) -> None:
    tool.behave(info(0, chip=printed) + info(1), asked="info")
    snapshot = read("cambricon")
    assert snapshot.unavailable["npu.0.temp"].reason == reason
    assert snapshot.metrics["npu.1.temp"] == 41


def test_a_pair_of_which_one_side_is_missing(tool: CommandStandIn) -> None:
    tool.behave(table(row(0, power="N/A/ 250 W", memory="N/A/ 23374 MiB"), row(1)))
    tool.behave(info(0, power="N/A", used="N/A") + info(1), asked="info")
    snapshot = read("cambricon")
    assert snapshot.unavailable["npu.0.powerWatts"].reason == Reason.NOT_SUPPORTED
    assert snapshot.unavailable["npu.0.memoryAllocatedBytes"].reason == Reason.NOT_SUPPORTED
    assert snapshot.metrics["npu.0.enforcedPowerLimitWatts"] == 250
    assert snapshot.metrics["npu.0.memoryTotalBytes"] == 23374 * MIB


def test_processes_of_the_table(tool: CommandStandIn) -> None:
    """Of one process, memory is the sum of its lines; a command may be blank."""
    lines = process(0, os.getpid(), 1024) + process(0, 4242, 10, "") + process(0, 4242, 20, "python3 train.py")
    tool.behave(table(row(0), row(1), processes=lines))
    snapshot = read("cambricon", pid=os.getpid())
    first, second = snapshot.devices
    assert [(each.pid, each.memory_bytes) for each in first.processes or ()] == [(os.getpid(), 1024 * MIB), (4242, 30 * MIB)]
    assert second.processes == ()
    assert snapshot.metrics["npu.process.0.memoryAllocatedBytes"] == 1024 * MIB


def test_output_that_is_cut_or_late_costs_a_reading_and_no_card(
    tool: CommandStandIn, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for command in (cambricon.CNMON, cambricon.CNMON_INFO):
        monkeypatch.setattr(command, "timeout", 0.3)
    with Sampler(["cambricon"], clock=clock) as sampler:
        assert sampler.sample().metrics["npu.1.powerWatts"] == 106
        tool.behave(table(row(0), row(1))[:-200])
        tool.behave(info(0), asked="info")
        cut = until(sampler, clock, lambda latest: "npu.1.powerWatts" in latest.unavailable)
        assert cut.metrics["npu.0.powerWatts"] == 106
        for asked in ("", "info"):
            tool.behave("", hang=True, asked=asked)
        until(sampler, clock, lambda latest: getattr(latest.unavailable.get("npu.0.powerWatts"), "reason", None) == Reason.TIMED_OUT)
        tool.behave(table(row(0), row(1)))
        tool.behave(info(0) + info(1), asked="info")
        assert of(until(sampler, clock, lambda latest: "npu.1.temp" in latest.metrics), 1) == TOOL


def test_fuzz() -> None:
    fuzz(backend, parse, table(row(0), row(1), processes=process(0, 42, 1024)), source="cnmon")


def test_fuzz_list() -> None:
    fuzz(backend, parse_list, info(0) + info(1), source="cnmon info")
