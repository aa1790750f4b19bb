"""DEEPX devices, from a command that prints as ``dxrt-cli`` does."""

from __future__ import annotations

from pathlib import Path

import pytest

from accelmetrics import Sampler, Snapshot
from accelmetrics.backends import registry
from accelmetrics.backends.deepx import COMMAND, backend, parse
from accelmetrics.schemas.errors import Reason, SourceError
from accelmetrics.schemas.identity import DeviceIdentity
from accelmetrics.testing import FakeClock
from accelmetrics.visibility.doctor import diagnose
from tests.simulators.commands import CommandStandIn
from tests.simulators.deepx import device, listing
from tests.support.fuzzing import fuzz
from tests.support.waiting import until_reason

VALUES = {"temp": 41, "smClock": 1002, "memoryTotalBytes": round(3.92 * 2**30), "pcieLinkGen": 3, "pcieLinkWidth": 4}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ACCELMETRICS_SYSROOT", str(tmp_path / "root"))
    return tmp_path / "root"


@pytest.fixture
def tool(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> CommandStandIn:
    function(root, "0000:0a:00.0")
    stand_in = CommandStandIn(tmp_path, "dxrt-cli")
    monkeypatch.setenv("PATH", stand_in.path)
    stand_in.behave(listing(device(0), device(1, (30, 29, 28), link="Gen3 X2 [11:00:00]")))
    return stand_in


def function(root: Path, address: str) -> None:
    """A device of the vendor's on the PCI bus."""
    directory = root / "sys/bus/pci/devices" / address
    directory.mkdir(parents=True)
    for name, value in {"vendor": "0x1ff4", "device": "0x0100", "class": "0x120000"}.items():
        (directory / name).write_text(f"{value}\n", encoding="utf-8")


def sample() -> Snapshot:
    with Sampler(["deepx"], clock=FakeClock()) as sampler:
        return sampler.sample()


def of(snapshot: Snapshot, number: int) -> dict[str, float]:
    key = f"npu.{number}."
    return {name.removeprefix(key): value for name, value in snapshot.metrics.items() if name.startswith(key)}


def test_every_metric_and_who_a_device_is(tool: CommandStandIn) -> None:
    snapshot = sample()
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
    function(root, "0001:0a:00.0")
    assert [each.identity.pci_bus_id for each in sample().devices] == ["", ""]
    function(root, "0001:0b:00.0")
    tool.behave(listing(device(0, link="Gen3 X4 [11:00:00]")))
    assert [each.identity.pci_bus_id for each in sample().devices] == ["0001:0b:00.0"]


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
    snapshot = sample()
    assert set(snapshot.unavailable) == {f"npu.0.{name}" for name in missing}
    assert of(snapshot, 1)["temp"] == 41


def test_a_device_that_goes_is_lost_and_comes_back(tool: CommandStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    monkeypatch.setattr(backend, "clock", clock)
    monkeypatch.setattr(COMMAND, "timeout", 0.3)
    both = listing(device(1), device(0))
    with Sampler(["deepx"], clock=clock) as sampler:

        def until(reason: Reason | None) -> None:
            until_reason(sampler, clock, "npu.1.temp", reason)

        until(None)
        tool.behave(listing(device(0)))
        until(Reason.DEVICE_LOST)
        tool.behave("", hang=True)
        until(Reason.TIMED_OUT)
        tool.behave(both)
        until(None)


@pytest.mark.parametrize(
    ("stdout", "stderr", "status", "reason", "words"),
    [
        ("", "open: Permission denied", 1, Reason.NO_PERMISSION, "Permission denied"),
        ("DXRT v2.6.3\n", "", 0, Reason.DRIVER_UNAVAILABLE, "dxrt-cli lists no NPU"),
        ("Device not found", "", 255, Reason.DRIVER_ERROR, "Device not found"),
    ],
)
def test_why_it_does_not_open(tool: CommandStandIn, stdout: str, stderr: str, status: int, reason: Reason, words: str) -> None:
    tool.behave(stdout, stderr=stderr, status=status)
    with pytest.raises(SourceError, match=words) as caught:
        registry.load("deepx").open()
    assert caught.value.reason == reason


def test_doctor_says_that_it_is_experimental(tool: CommandStandIn) -> None:
    del tool
    (finding,) = diagnose(backends=["deepx"]).backends
    assert "experimental: the format is known from the vendor's source" in finding.evidence


def test_fuzz() -> None:
    fuzz(backend, parse, listing(device(0), device(1)))
