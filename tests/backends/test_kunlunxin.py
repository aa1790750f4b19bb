"""Kunlunxin XPUs, from a command that prints as their ``xpu-smi`` does."""

from __future__ import annotations

from pathlib import Path

import pytest

from accelmetrics import Sampler, Snapshot
from accelmetrics.backends import kunlunxin, registry
from accelmetrics.schemas.errors import Reason, SourceError
from accelmetrics.schemas.identity import DeviceIdentity, DeviceProcess
from accelmetrics.testing import FakeClock
from tests.simulators.commands import CommandStandIn
from tests.simulators.kunlunxin import HELP, INTEL, text, xml
from tests.support.fuzzing import fuzz
from tests.support.readings import of

MIB = 1 << 20
TOLD = {
    "utilization": 31,
    "memoryTotalBytes": 98304 * MIB,
    "memoryAllocatedBytes": 2048 * MIB,
    "memoryFreeBytes": 96256 * MIB,
    "memoryAllocated": pytest.approx(2.0833, abs=1e-4),
    "temp": 41,
    "powerWatts": 91.5,
    "enforcedPowerLimitWatts": 400,
    "powerPercent": 22.875,
    "smClock": 1450,
    "eccMode": 1,
    "eccModePending": 1,
    "correctedMemoryErrors": 4,
    "uncorrectedMemoryErrors": 0,
    "unCorrectedMemoryErrors": 0,
    "correctedMemoryErrorsAggregate": 9,
    "uncorrectedMemoryErrorsAggregate": 1,
    "pcieLinkGen": 3,
    "pcieLinkWidth": 8,
    "maxPcieLinkGen": 4,
    "maxPcieLinkWidth": 16,
}
"""By metric, the values of device 1 in both forms."""
PROCESS = "<process_info><pid>{}</pid><process_name>python</process_name><used_memory>{}</used_memory></process_info>"


@pytest.fixture
def tool(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CommandStandIn:
    del root
    stand_in = CommandStandIn(tmp_path, "xpu-smi")
    monkeypatch.setenv("PATH", stand_in.path)
    says(stand_in, xml(0, 1))
    return stand_in


def says(tool: CommandStandIn, printed: str, plain: str = "") -> None:
    """Print this as XML, and that without."""
    tool.behave(HELP, asked="-h")
    tool.behave(printed, asked="-q -x", status=0 if printed else 1, stderr="" if printed else "unknown option -x")
    tool.behave(plain, asked="-q")


def sampled(clock: FakeClock, pid: int | None = None) -> Snapshot:
    with Sampler(["kunlunxin"], clock=clock, pid=pid) as sampler:
        return sampler.sample()


@pytest.mark.parametrize("form", ["xml", "text"])
def test_every_metric_and_who_a_device_is(tool: CommandStandIn, clock: FakeClock, form: str) -> None:
    """In another order than that of their numbers."""
    says(tool, xml(1, 0) if form == "xml" else "", text(1, 0))
    snapshot = sampled(clock)
    assert of(snapshot, "npu.1") == TOLD
    assert not snapshot.unavailable
    assert snapshot.devices[1].identity == DeviceIdentity(
        "npu",
        "kunlunxin",
        1,
        name="P800 OAM",
        architecture="KL3",
        uuid="GPU-00000000-0000-5000-8000-000000000001",
        serial="02K000000001",
        part_number="B0010",
        pci_bus_id="00000000:04:00.0",
        driver_version="5.19.1.0",
        firmware="1.0.2.15",
        memory_total_bytes=98304 * MIB,
        minor_number=1,
    )
    assert snapshot.devices[1].processes == ()
    assert snapshot.backends[0].source == ("xpu-smi" if form == "xml" else "xpu-smi-text")


def test_intels_tool_of_the_same_name_is_not_taken_for_it(
    tool: CommandStandIn, clock: FakeClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine with both, whichever is first in PATH; it is asked whose it is, and nothing else."""
    (tmp_path / "intel").mkdir()
    intel = CommandStandIn(tmp_path / "intel", "xpu-smi")
    intel.behave(INTEL, asked="-h")
    intel.behave("", hang=True)
    monkeypatch.setenv("PATH", f"{intel.directory}:{tool.path}")
    assert of(sampled(clock), "npu.1") == TOLD
    assert intel.calls == [["-h"]]
    monkeypatch.setenv("PATH", str(intel.directory))
    with pytest.raises(SourceError, match="is a tool of another vendor") as caught:
        registry.load("kunlunxin").open()
    assert (caught.value.reason, caught.value.advice) == (Reason.DRIVER_UNAVAILABLE, kunlunxin.COMMAND.install)


def test_the_name_of_older_cards(tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    old = CommandStandIn(tmp_path, "xpu_smi")
    monkeypatch.setenv("PATH", str(old.directory))
    says(old, "", text(0, 1))
    assert of(sampled(clock), "npu.1") == TOLD


@pytest.mark.parametrize("nothing", ["N/A", "Invalid Argument", "", "4294967295", "-"])
@pytest.mark.parametrize("form", ["xml", "text"])
def test_every_form_of_nothing(tool: CommandStandIn, clock: FakeClock, nothing: str, form: str) -> None:
    changed = {"util": nothing, "power": nothing, "used": nothing, "corrected": nothing, "ecc": "N/A"}
    says(tool, xml(0, **changed) if form == "xml" else "", text(0, **changed))
    snapshot = sampled(clock)
    for name in ("utilization", "powerWatts", "powerPercent", "memoryAllocatedBytes", "correctedMemoryErrors", "eccMode"):
        assert f"npu.0.{name}" not in snapshot.metrics
        assert snapshot.unavailable[f"npu.0.{name}"].reason in (Reason.NOT_SUPPORTED, Reason.INVALID_VALUE)
    assert (snapshot.metrics["npu.0.temp"], snapshot.metrics["npu.0.memoryFreeBytes"]) == (40, 97280 * MIB)


@pytest.mark.parametrize(
    ("changed", "metric", "reason"),
    [
        ({"temp": "65535 C"}, "temp", Reason.INVALID_VALUE),
        ({"limit": "0.00 W"}, "enforcedPowerLimitWatts", Reason.NOT_SUPPORTED),
        ({"width": "Unknown"}, "pcieLinkWidth", Reason.NOT_SUPPORTED),
        ({"power": "91 C"}, "powerWatts", Reason.PARSE_ERROR),
        ({"util": "130 %"}, "utilization", Reason.INVALID_VALUE),
    ],
)
def test_what_is_impossible_is_no_value(
    tool: CommandStandIn, clock: FakeClock, changed: dict[str, str], metric: str, reason: Reason
) -> None:
    says(tool, xml(0, **changed))
    assert sampled(clock).unavailable[f"npu.0.{metric}"].reason == reason


def test_two_devices_of_one_card(tool: CommandStandIn, clock: FakeClock) -> None:
    """One id on both names neither."""
    says(tool, xml(0, 1, uuid="GPU-1"))
    snapshot = sampled(clock)
    assert [device.identity.uuid for device in snapshot.devices] == ["", ""]
    assert of(snapshot, "npu.1") == TOLD


@pytest.mark.parametrize(
    ("listed", "processes"),
    [
        ("", ()),
        (PROCESS.format(501, "1024 MiB"), (DeviceProcess(501, "compute", 1024 * MIB),)),
        (
            PROCESS.format(501, "N/A") + PROCESS.format(502, "1 MiB"),
            (DeviceProcess(501, "compute"), DeviceProcess(502, "compute", MIB)),
        ),
        ("<process><id>501</id></process>", None),
        (PROCESS.format("python", "1 MiB"), None),
        ("501", None),
    ],
)
def test_who_uses_a_device(tool: CommandStandIn, clock: FakeClock, listed: str, processes: tuple[DeviceProcess, ...] | None) -> None:
    """What is listed in another form is not told to be nobody."""
    says(tool, xml(0, processes=listed))
    assert sampled(clock).devices[0].processes == processes


def test_who_uses_a_device_by_the_text(tool: CommandStandIn, clock: FakeClock) -> None:
    rows = "".join(
        f"\n        Process ID                        : {pid}\n            Name                          : x" for pid in (501, 502)
    )
    for listed, processes in ((rows, (501, 502)), (" : N/A", None), ("", None)):
        says(tool, "", text(0, processes=listed))
        found = sampled(clock).devices[0].processes
        assert (None if found is None else tuple(process.pid for process in found)) == processes


def test_of_output_that_is_cut_the_whole_devices_are_read(tool: CommandStandIn, clock: FakeClock) -> None:
    says(tool, xml(0, 1)[:-600])
    snapshot = sampled(clock)
    assert [device.key for device in snapshot.devices] == ["npu.0"]
    assert of(snapshot, "npu.0")["temp"] == 40


def test_fuzz() -> None:
    fuzz(kunlunxin.backend, kunlunxin.parse, xml(0, 1, processes=PROCESS.format(501, "1024 MiB")))


def test_fuzz_of_the_text() -> None:
    fuzz(kunlunxin.backend, kunlunxin.parse_text, text(0, 1), source="xpu-smi-text")
