"""Qualcomm Cloud AI, from a command that prints as ``qaic-util`` does and from the sensors of the driver."""

from __future__ import annotations

from pathlib import Path

import pytest

from accelmetrics import Sampler
from accelmetrics.backends import registry
from accelmetrics.backends.qualcomm import backend, parse
from accelmetrics.schemas.errors import Reason
from accelmetrics.schemas.identity import DeviceIdentity
from accelmetrics.testing import FakeClock
from tests.simulators.commands import CommandStandIn
from tests.simulators.qualcomm import device, listing, tree
from tests.support.fuzzing import fuzz
from tests.support.pci import function
from tests.support.readings import of, read
from tests.support.waiting import until

KIB = 1024
VALUES = {
    "temp": 41,
    "powerWatts": 11.5,
    "enforcedPowerLimitWatts": 46,
    "powerPercent": 25,
    "boardPowerWatts": 48,
    "memoryTotalBytes": 33546240 * KIB,
    "memoryFreeBytes": 25159680 * KIB,
    "memoryAllocatedBytes": 8386560 * KIB,
    "memoryAllocated": 25,
    "coresAllocated": 4,
    "smClock": 1190,
    "memoryClock": 2130,
    "pcieLinkGen": 3,
    "pcieLinkWidth": 4,
    "maxPcieLinkGen": 4,
    "maxPcieLinkWidth": 8,
}


@pytest.fixture
def tool(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> CommandStandIn:
    """Of one card with two chips."""
    stand_in = CommandStandIn(tmp_path, "qaic-util")
    monkeypatch.setenv("PATH", stand_in.path)
    stand_in.behave(listing(device(0, card="B1"), device(1, card="B1")))
    return stand_in


def test_every_metric_and_who_a_device_is(tool: CommandStandIn) -> None:
    snapshot = read("qualcomm")
    assert of(snapshot, 0) == VALUES
    assert snapshot.metrics["npu.1.temp"] == 42
    assert snapshot.devices[1].identity == DeviceIdentity(
        "npu",
        "qualcomm",
        1,
        name="Pcie Ultra",
        pci_bus_id="0000:22:00.0",
        serial="0x2b000002",
        firmware="1.17.6",
        memory_total_bytes=33546240 * KIB,
    )
    assert (tool.calls, snapshot.backends[0].source) == ([["-q"]], "qaic-util")


def test_the_power_of_a_card_stands_once(tool: CommandStandIn) -> None:
    """On the first device of each card; the chips' own stands on each."""
    tool.behave(listing(*(device(number, card=f"B{number // 2}") for number in range(4))))
    snapshot = read("qualcomm")
    assert [number for number in range(4) if f"npu.{number}.boardPowerWatts" in snapshot.metrics] == [0, 2]
    assert [snapshot.metrics[f"npu.{number}.powerWatts"] for number in range(4)] == [11.5] * 4


def test_where_chips_have_no_power_of_their_own_it_is_the_cards(tool: CommandStandIn) -> None:
    old = ("SOC power(Watts)", "SOC TDP Cap(Watts)", "Board TDP Cap(Watts)")
    tool.behave(listing(*(device(number, *old, card="B1", **{"TDP_Cap(Watts)": "75.00"}) for number in range(2))))
    snapshot = read("qualcomm")
    assert (snapshot.metrics["npu.0.powerWatts"], snapshot.metrics["npu.0.enforcedPowerLimitWatts"]) == (48, 75)
    why = snapshot.unavailable["npu.1.powerWatts"]
    assert why == (Reason.NOT_SUPPORTED, "qaic-util reports it for the whole card, and NPU 0 has it")
    assert "npu.1.enforcedPowerLimitWatts" in snapshot.unavailable


def test_a_chips_power_is_never_held_against_the_cards_limit(tool: CommandStandIn) -> None:
    tool.behave(listing(device(0, "SOC TDP Cap(Watts)", card="B1")))
    snapshot = read("qualcomm")
    assert snapshot.metrics["npu.0.powerWatts"] == 11.5
    assert {"npu.0.enforcedPowerLimitWatts", "npu.0.powerPercent"} <= set(snapshot.unavailable)


def test_without_a_cards_serial_number_only_a_single_device_has_its_power(tool: CommandStandIn) -> None:
    tool.behave(listing(device(0), device(1)))
    snapshot = read("qualcomm")
    assert [snapshot.unavailable[f"npu.{number}.boardPowerWatts"].reason for number in range(2)] == [Reason.NOT_SUPPORTED] * 2
    assert "which of them are one card" in snapshot.unavailable["npu.0.boardPowerWatts"].detail
    assert snapshot.metrics["npu.1.powerWatts"] == 11.5
    tool.behave(listing(device(0)))
    assert read("qualcomm").metrics["npu.0.boardPowerWatts"] == 48


def test_a_power_of_zero_is_none(tool: CommandStandIn) -> None:
    tool.behave(listing(device(0, card="B1", **{"Board_power(Watts)": "0.00", "SOC_power(Watts)": "0.00"})))
    snapshot = read("qualcomm")
    assert {"npu.0.boardPowerWatts", "npu.0.powerWatts"} <= set(snapshot.unavailable)


@pytest.mark.parametrize(
    ("total", "size"), [("8116 MB", 8116 * 2**20), ("31299524 KB", 31299524 * KIB), ("31299524", None), ("N/A", None), ("", None)]
)
def test_memory_has_the_unit_that_is_printed(tool: CommandStandIn, total: str, size: int | None) -> None:
    tool.behave(listing(device(0, Dram_Total=total, Dram_Free="4000 MB")))
    snapshot = read("qualcomm")
    assert snapshot.metrics.get("npu.0.memoryTotalBytes") == size
    assert snapshot.metrics.get("npu.0.memoryAllocatedBytes") == (size and size - 4000 * 2**20)


def test_devices_in_another_order_with_keys_that_are_not_known(tool: CommandStandIn) -> None:
    tool.behave(listing(device(1, card="B1", Peak_Dram_Bw="0.0"), device(0, "Nsp Free", card="B1")))
    snapshot = read("qualcomm")
    assert (snapshot.metrics["npu.0.temp"], snapshot.metrics["npu.1.temp"]) == (41, 42)
    assert snapshot.unavailable["npu.0.coresAllocated"].reason == Reason.NOT_SUPPORTED


@pytest.mark.parametrize(
    ("printed", "reason"),
    [("N/A", Reason.NOT_SUPPORTED), ("-", Reason.NOT_SUPPORTED), ("warm", Reason.PARSE_ERROR), ("65535", Reason.INVALID_VALUE)],
)
def test_every_form_of_nothing(tool: CommandStandIn, printed: str, reason: Reason) -> None:
    tool.behave(listing(device(0, **{"SoC_temperature(degree_C)": printed}), device(1)))
    snapshot = read("qualcomm")
    assert snapshot.unavailable["npu.0.temp"].reason == reason
    assert snapshot.metrics["npu.1.temp"] == 42


def test_a_device_that_is_not_ready_says_so(tool: CommandStandIn) -> None:
    """It prints its state and its link alone."""
    unready = "QID 0\n\tStatus:Error\n\tPCI Address:0000:21:00.0\n\tMax Link Speed:16GT/s\n\tMax Link Width:x8\n"
    tool.behave(listing(unready, device(1, card="B1")))
    snapshot = read("qualcomm")
    assert snapshot.unavailable["npu.0.temp"] == (Reason.DRIVER_ERROR, "qaic-util reports that the device is not ready: Error")
    assert of(snapshot, 0) == {"maxPcieLinkGen": 4, "maxPcieLinkWidth": 8}
    assert of(snapshot, 1)["boardPowerWatts"] == 48


def test_without_the_tool_the_sensors_are_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the vendor's driver alone: other accelerators have the same kind of directory, the mainline driver no sensors."""
    monkeypatch.setenv("PATH", "/nonexistent")
    sensors = {"temp1_input": "38000", "temp2_input": "47000", "temp2_emergency": "110000", "power1_input": "48000000"}
    tree(root, 0, "0000:20:00.0", "habanalabs", **sensors)
    tree(root, 1, "0000:21:00.0", **sensors, power2_input="11500000", power2_max="46000000")
    tree(root, 2, "0000:22:00.0")
    snapshot = read("qualcomm")
    assert of(snapshot, 0) == {
        "temp": 47,
        "tempLimit.shutdown": 110,
        "powerWatts": 11.5,
        "enforcedPowerLimitWatts": 46,
        "powerPercent": 25,
    }
    assert (of(snapshot, 1), len(snapshot.devices)) == ({}, 2)
    assert (snapshot.devices[0].identity.pci_bus_id, snapshot.backends[0].source) == ("0000:21:00.0", "sysfs")
    assert "Cloud AI Platform SDK" in snapshot.unavailable["npu.0.coresAllocated"].detail


def test_a_device_keeps_its_key_when_the_tool_turns_up(
    root: Path, tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel's numbers and the tool's differ."""
    stand_in = CommandStandIn(tmp_path, "qaic-util")
    monkeypatch.setenv("PATH", stand_in.path)
    stand_in.behave("", stderr="busy", status=1)
    tree(root, 0, "0000:22:00.0", temp2_input="47000")
    tree(root, 1, "0000:21:00.0", temp2_input="46000")
    with Sampler(["qualcomm"], clock=clock) as sampler:
        assert sampler.sample().metrics["npu.0.temp"] == 47
        stand_in.behave(listing(device(0, card="B1"), device(1, card="B1")))
        snapshot = until(sampler, clock, lambda latest: "npu.0.smClock" in latest.metrics)
        assert (snapshot.metrics["npu.0.temp"], snapshot.metrics["npu.1.temp"]) == (42, 41)
        assert [each.identity.vendor_index for each in snapshot.devices] == [1, 0]


def test_how_it_is_found(root: Path) -> None:
    """By its PCI id: other vendors have nodes of the same names."""
    found = registry.load("qualcomm").detect()
    assert (found.present, found.evidence) == (False, "no device of Qualcomm (0x17cb) on the PCI bus")
    (root / "dev/accel").mkdir(parents=True)
    (root / "dev/accel/accel0").touch()
    assert not registry.load("qualcomm").detect().present
    function(root, "0000:21:00.0", "0x17cb", "0xa100", "0xff0000")
    found = registry.load("qualcomm").detect()
    assert (found.devices, found.advice) == (1, "load the kernel driver: sudo modprobe qaic")
    tree(root, 0, "0000:21:00.0")
    assert registry.load("qualcomm").detect().advice == ""


def test_one_that_is_passed_through_to_a_virtual_machine_is_none_here(root: Path) -> None:
    tree(root, 0, "0000:21:00.0", "vfio-pci")
    device_ = root / "sys/bus/pci/devices/0000:21:00.0"
    device_.parent.mkdir(parents=True, exist_ok=True)
    device_.symlink_to(root / "sys/devices/pci0000:00/0000:21:00.0")
    function(root, "0000:21:00.0", "0x17cb", "0xa100")
    found = registry.load("qualcomm").detect()
    assert (found.present, found.evidence.partition(",")[0]) == (False, "0000:21:00.0 is driven by vfio-pci")


def test_fuzz() -> None:
    fuzz(backend, parse, listing(device(0, card="B1"), device(1, card="B1")))
