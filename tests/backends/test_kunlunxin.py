"""Kunlunxin XPUs, from a command that prints as their ``xpu-smi`` does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from accelmetrics import Sampler, Snapshot
from accelmetrics.backends import kunlunxin, registry
from accelmetrics.backends.visible import visibility
from accelmetrics.schemas.errors import Reason, SourceError
from accelmetrics.schemas.identity import DeviceIdentity, DeviceProcess
from accelmetrics.testing import FakeClock
from tests.simulators.commands import CommandStandIn
from tests.simulators.kunlunxin import HELP, INTEL, text, xml
from tests.support.fuzzing import fuzz
from tests.support.waiting import until

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
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CommandStandIn:
    stand_in = CommandStandIn(tmp_path, "xpu-smi")
    monkeypatch.setenv("PATH", stand_in.path)
    monkeypatch.setenv("ACCELMETRICS_SYSROOT", str(tmp_path))
    says(stand_in, xml(0, 1))
    return stand_in


def says(tool: CommandStandIn, printed: str, plain: str = "") -> None:
    """Print this as XML, and that without."""
    tool.behave(HELP, asked="-h")
    tool.behave(printed, asked="-q -x", status=0 if printed else 1, stderr="" if printed else "unknown option -x")
    tool.behave(plain, asked="-q")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """The sampler's and the driver's."""
    made = FakeClock()
    monkeypatch.setattr(kunlunxin.backend, "clock", made)
    return made


def sampled(clock: FakeClock, pid: int | None = None) -> Snapshot:
    with Sampler(["kunlunxin"], clock=clock, pid=pid) as sampler:
        return sampler.sample()


def of(snapshot: Snapshot, key: str) -> dict[str, object]:
    return {name.removeprefix(f"{key}."): value for name, value in snapshot.metrics.items() if name.startswith(f"{key}.")}


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


def test_the_process_that_asks_is_found(tool: CommandStandIn, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ACCELMETRICS_SYSROOT")
    says(tool, xml(0, processes=PROCESS.format(os.getpid(), "1024 MiB")))
    assert sampled(clock, pid=os.getpid()).metrics["npu.process.0.memoryAllocatedBytes"] == 1024 * MIB


def test_of_output_that_is_cut_the_whole_devices_are_read(tool: CommandStandIn, clock: FakeClock) -> None:
    says(tool, xml(0, 1)[:-600])
    snapshot = sampled(clock)
    assert [device.key for device in snapshot.devices] == ["npu.0"]
    assert of(snapshot, "npu.0")["temp"] == 40


def test_a_device_that_goes_is_lost_and_comes_back(tool: CommandStandIn, clock: FakeClock) -> None:
    with Sampler(["kunlunxin"], clock=clock) as sampler:
        assert of(sampler.sample(), "npu.1") == TOLD
        says(tool, xml(0))
        lost = until(sampler, clock, lambda latest: "npu.1.temp" in latest.unavailable)
        assert lost.unavailable["npu.1.temp"].reason == Reason.DEVICE_LOST
        says(tool, xml(1, 0))
        assert of(until(sampler, clock, lambda latest: "npu.1.temp" in latest.metrics), "npu.1") == TOLD


def test_a_tool_that_hangs_is_ended(tool: CommandStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kunlunxin.COMMAND, "timeout", 0.5)
    tool.behave("", hang=True, asked="-q -x")
    tool.behave("", hang=True, asked="-q")
    with pytest.raises(SourceError) as caught:
        registry.load("kunlunxin").open()
    assert caught.value.reason == Reason.TIMED_OUT


@pytest.mark.parametrize(
    ("stdout", "stderr", "status", "reason", "words"),
    [
        ("", "permission denied: /dev/xpuctrl", 1, Reason.NO_PERMISSION, "/dev/xpuctrl"),
        ("", "failed to open /dev/xpuctrl", 1, Reason.DRIVER_ERROR, "/dev/xpuctrl"),
        ("<xpu_smi_log></xpu_smi_log>", "", 0, Reason.PARSE_ERROR, "lists no XPU"),
        ("garbage <", "", 0, Reason.PARSE_ERROR, "lists no XPU"),
    ],
)
def test_why_it_does_not_open(tool: CommandStandIn, stdout: str, stderr: str, status: int, reason: Reason, words: str) -> None:
    for asked in ("-q -x", "-q"):
        tool.behave(stdout, stderr=stderr, status=status, asked=asked)
    with pytest.raises(SourceError) as caught:
        registry.load("kunlunxin").open()
    assert caught.value.reason == reason and words in str(caught.value)


def test_it_is_found_on_the_bus_and_by_its_nodes(tool: CommandStandIn, tmp_path: Path) -> None:
    """The vendor's storage controllers are none."""
    backend = registry.load("kunlunxin")
    assert backend.detect().present is False
    for address, device in (("0000:01:00.0", "0x1380"), ("0000:03:00.0", "0x3688")):
        for name, said in {"vendor": "0x1d22", "device": device, "class": "0x078000"}.items():
            file = tmp_path / f"sys/bus/pci/devices/{address}/{name}"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{said}\n")
    found = backend.detect()
    assert found.devices == 1 and "0000:03:00.0" in found.evidence and "--device=/dev/xpu0" in found.advice
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/xpu0").touch()
    assert "/dev/xpu0" in backend.detect().evidence
    assert tool.calls == []


@pytest.mark.parametrize(
    ("environ", "order"),
    [
        ({}, (0, 1, 2)),
        ({"XPU_VISIBLE_DEVICES": "2,0"}, (2, 0)),
        ({"CUDA_VISIBLE_DEVICES": "1"}, (1,)),
        ({"CUDA_VISIBLE_DEVICES": "1", "XPU_VISIBLE_DEVICES": "2"}, (2,)),
        ({"XPULINK_VISIBLE_DEVICES": "0", "XPU_VISIBLE_DEVICES": "2"}, (0,)),
        ({"XPU_VISIBLE_DEVICES": " "}, ()),
        ({"XPU_VISIBLE_DEVICES": "GPU-1"}, None),
    ],
)
def test_what_a_program_sees(environ: dict[str, str], order: tuple[int, ...] | None) -> None:
    devices = [DeviceIdentity("npu", "kunlunxin", number) for number in range(3)]
    assert visibility(environ, devices).order == order


def test_fuzz() -> None:
    fuzz(kunlunxin.backend, kunlunxin.parse, xml(0, 1, processes=PROCESS.format(501, "1024 MiB")))


def test_fuzz_of_the_text() -> None:
    fuzz(kunlunxin.backend, kunlunxin.parse_text, text(0, 1), source="xpu-smi-text")
