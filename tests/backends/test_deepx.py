"""DEEPX devices, from a command that prints as ``dxrt-cli`` does."""

from __future__ import annotations

from pathlib import Path

import pytest

from accelmetrics.backends.deepx import backend, parse
from accelmetrics.schemas.identity import DeviceIdentity
from tests.simulators.commands import CommandStandIn
from tests.simulators.deepx import device, listing
from tests.support.fuzzing import fuzz
from tests.support.pci import function
from tests.support.readings import of, read

VALUES = {"temp": 41, "smClock": 1002, "memoryTotalBytes": round(3.92 * 2**30), "pcieLinkGen": 3, "pcieLinkWidth": 4}


@pytest.fixture
def tool(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> CommandStandIn:
    function(root, "0000:0a:00.0", "0x1ff4")
    stand_in = CommandStandIn(tmp_path, "dxrt-cli")
    monkeypatch.setenv("PATH", stand_in.path)
    stand_in.behave(listing(device(0), device(1, (30, 29, 28), link="Gen3 X2 [11:00:00]")))
    return stand_in


def test_every_metric_and_who_a_device_is(tool: CommandStandIn) -> None:
    snapshot = read("deepx")
    assert of(snapshot, 0) == VALUES
    assert (snapshot.metrics["npu.1.temp"], snapshot.metrics["npu.1.pcieLinkWidth"]) == (30, 2)
    assert (snapshot.unavailable, tool.calls) == ({}, [["-s"]])
    assert snapshot.devices[0].identity == DeviceIdentity(
        "npu",
        "deepx",
        0,
        name="M1",
        pci_bus_id="0000:0a:00.0",
        driver_version="v1.3.1",
        firmware="v1.6.0",
        memory_total_bytes=VALUES["memoryTotalBytes"],
    )


def test_an_address_is_what_the_kernel_has_at_that_place(tool: CommandStandIn, root: Path) -> None:
    """It is printed in decimal and without its domain."""
    function(root, "0001:0a:00.0", "0x1ff4")
    assert [each.identity.pci_bus_id for each in read("deepx").devices] == ["", ""]
    function(root, "0001:0b:00.0", "0x1ff4")
    tool.behave(listing(device(0, link="Gen3 X4 [11:00:00]")))
    assert [each.identity.pci_bus_id for each in read("deepx").devices] == ["0001:0b:00.0"]


@pytest.mark.parametrize(
    ("temperatures", "memory", "missing"),
    [
        ((), "3.92GiB", {"temp", "smClock"}),
        ((38, "N/A", 40), "3.92GiB", {"temp"}),
        ((38, 9999, 40), "3.92GiB", {"temp"}),
        ((38,), "", {"memoryTotalBytes"}),
        ((38,), "lots", {"memoryTotalBytes"}),
        ((38,), "4", {"memoryTotalBytes"}),
        ((38,), "0GiB", {"memoryTotalBytes"}),
    ],
)
def test_what_is_no_value(tool: CommandStandIn, temperatures: tuple[object, ...], memory: str, missing: set[str]) -> None:
    tool.behave(listing(device(0, temperatures, memory), device(1)))
    snapshot = read("deepx")
    assert set(snapshot.unavailable) == {f"npu.0.{name}" for name in missing}
    assert of(snapshot, 1)["temp"] == 41


def test_fuzz() -> None:
    fuzz(backend, parse, listing(device(0), device(1)))
