"""Intel Gaudi, from a command that answers queries as ``hl-smi`` does, and from the files of its driver."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from accelmetrics import Sampler
from accelmetrics.backends import gaudi, registry
from accelmetrics.backends.kit import DeviceSample, rows
from accelmetrics.backends.kit.processes import node_pattern
from accelmetrics.backends.visible import visibility
from accelmetrics.schemas.errors import Reason, SourceError
from accelmetrics.schemas.identity import DeviceIdentity, DeviceProcess
from accelmetrics.testing import FakeClock
from accelmetrics.visibility.verify import verify
from tests.simulators.gaudi import GaudiTree, HlSmi, row, table
from tests.support.fuzzing import fuzz
from tests.support.readings import of
from tests.support.waiting import until

MIB = 1 << 20
TOLD = {
    "utilization": 61,
    "memoryAllocatedBytes": 1792 * MIB,
    "memoryTotalBytes": 98304 * MIB,
    "memoryFreeBytes": 96512 * MIB,
    "memoryAllocated": pytest.approx(1.8229, abs=1e-4),
    "temp": 31,
    "powerWatts": 111,
    "enforcedPowerLimitWatts": 600,
    "powerPercent": 18.5,
    "smClock": 1650,
    "maxSmClock": 1800,
    "correctedEccErrors": 3,
    "uncorrectedEccErrors": 0,
    "correctedEccErrorsAggregate": 9,
    "uncorrectedEccErrorsAggregate": 1,
    "correctedMemoryErrors": 2,
    "correctedMemoryErrorsAggregate": 5,
    "maxPcieLinkGen": 4,
    "maxPcieLinkWidth": 16,
}
"""By metric, the values of device 1 that only the tool has."""
OF_FILES = {
    "temp": 41.5,
    "smClock": 1500,
    "enforcedPowerLimitWatts": 550,
    "pcieLinkGen": 4,
    "pcieLinkWidth": 8,
    "maxPcieLinkGen": 4,
    "maxPcieLinkWidth": 16,
}
"""By metric, the values of device 1 where only the files are there."""


@pytest.fixture
def tree(root: Path) -> GaudiTree:
    return GaudiTree(root)


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HlSmi:
    stand_in = HlSmi(tmp_path)
    monkeypatch.setenv("PATH", stand_in.path)
    return stand_in


@pytest.fixture
def sampler(tree: GaudiTree, tool: HlSmi, clock: FakeClock) -> Iterator[Sampler]:
    """Of two cards."""
    tree.card(0)
    tree.card(1)
    tool.lists(0, 1)
    with Sampler(["gaudi"], clock=clock) as made:
        yield made


def test_every_metric_and_who_a_device_is(sampler: Sampler, tool: HlSmi) -> None:
    snapshot = sampler.sample()
    assert of(snapshot, "hpu.1") == TOLD | {"pcieLinkGen": 4, "pcieLinkWidth": 8}
    assert set(snapshot.unavailable) == {"hpu.0.performanceState", "hpu.1.performanceState"}
    assert snapshot.devices[1].identity == DeviceIdentity(
        "hpu",
        "habana",
        1,
        name="HL-225",
        uuid="01P0-HL2080A0-14-T7U11",
        pci_bus_id="0000:31:00.0",
        serial="AM0001",
        architecture="GAUDI2",
        driver_version="1.21.0-0badcaf",
        memory_total_bytes=98304 * MIB,
        numa_node=1,
        minor_number=1,
        module_id=6,
    )
    assert (snapshot.backends[0].source, snapshot.backends[0].status) == ("hl-smi+sysfs", "ok")
    assert [call[2:] for call in tool.calls] == [["-f", "csv"]]


def test_without_the_tool_the_files_are_read(tree: GaudiTree, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hottest sensor of the chip is its temperature, not the board's and none that is not connected."""
    monkeypatch.setenv("PATH", "/nonexistent")
    tree.card(0)
    tree.card(1)
    with Sampler(["gaudi"], clock=clock) as sampler:
        snapshot = sampler.sample()
    assert of(snapshot, "hpu.1") == OF_FILES
    why = snapshot.unavailable["hpu.1.utilization"]
    assert why.reason == Reason.DRIVER_UNAVAILABLE
    assert why.detail.startswith("hl-smi was not found in PATH") and why.detail.endswith(gaudi.COMMAND.install)
    assert snapshot.devices[1].identity.pci_bus_id == "0000:31:00.0"


@pytest.mark.parametrize(
    ("board", "conf", "reason"),
    [
        ("HL999", None, Reason.NOT_SUPPORTED),
        ("HL225", "", Reason.NOT_SUPPORTED),
        ("HL225", 'chip "HL225-pci-*"\nlabel temp2\nlabel temp3 "On Board"\nignore\nchip\n"', Reason.NOT_SUPPORTED),
        ("HL225", 'chip "HL225-pci-*"\n label temp7 "On Chip"', Reason.NOT_SUPPORTED),
        ("HL225", 'chip "HL225-pci-*"\n label temp4 "On Chip"', Reason.PARSE_ERROR),
    ],
)
def test_a_temperature_that_is_not_certain(
    tree: GaudiTree, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, board: str, conf: str | None, reason: Reason
) -> None:
    """No sensor stands for the chip's that the driver's own file does not call so."""
    monkeypatch.setenv("PATH", "/nonexistent")
    tree.card(0)
    GaudiTree.write(tree.slot(0) / "hwmon/hwmon0/name", board)
    GaudiTree.write(tree.slot(0) / "hwmon/hwmon0/temp4_input", "warm")
    if conf is not None:
        GaudiTree.write(tree.root / "etc/sensors.d/hl_sensors.conf", conf)
    with Sampler(["gaudi"], clock=clock) as sampler:
        snapshot = sampler.sample()
    assert snapshot.unavailable["hpu.0.temp"].reason == reason
    assert snapshot.metrics["hpu.0.smClock"] == 1500


def test_accelerators_of_other_drivers_are_none(tree: GaudiTree, tool: HlSmi, clock: FakeClock) -> None:
    """``/sys/class/accel`` has Intel's NPU and others too, and numbers go through all of them."""
    tree.card(0, minor=2)
    tree.card(1, minor=0)
    (tree.slot(1) / "driver").unlink()
    GaudiTree.write(tree.root / "sys/bus/pci/drivers/intel_vpu/uevent", "")
    (tree.slot(1) / "driver").symlink_to(tree.root / "sys/bus/pci/drivers/intel_vpu")
    tool.lists(0)
    with Sampler(["gaudi"], clock=clock) as sampler:
        snapshot = sampler.sample()
    (device,) = snapshot.devices
    assert (device.identity.vendor_index, device.identity.minor_number) == (0, 2)
    assert snapshot.metrics["hpu.0.pcieLinkWidth"] == 8


def test_numbers_of_the_tool_and_of_the_driver_may_differ(tree: GaudiTree, tool: HlSmi, clock: FakeClock) -> None:
    """Devices are joined by address."""
    tree.card(0, minor=1)
    tree.card(1, minor=0)
    tree.holding(501, "accel1")
    tool.lists(1, 0)
    with Sampler(["gaudi"], clock=clock) as sampler:
        snapshot = sampler.sample()
    assert [(each.identity.vendor_index, each.identity.minor_number) for each in snapshot.devices] == [(0, 1), (1, 0)]
    assert [snapshot.metrics[f"hpu.{number}.temp"] for number in range(2)] == [30, 31]
    assert snapshot.devices[0].processes == (DeviceProcess(501, "compute"),)


@pytest.mark.parametrize(
    "unknown",
    [
        ("power.max",),
        ("module_id", "clocks.max.soc", "pcie.link.gen.max", "pcie.link.width.max"),
        tuple(each for each in gaudi.ASKED if each.startswith(("ecc", "pcie", "clocks"))),
    ],
)
def test_fields_that_a_release_does_not_know(sampler: Sampler, tool: HlSmi, clock: FakeClock, unknown: tuple[str, ...]) -> None:
    tool.lists(0, 1, without=unknown)
    snapshot = sampler.sample()
    assert {name: snapshot.metrics[f"hpu.1.{name}"] for name in ("utilization", "temp", "powerWatts")} == {
        name: TOLD[name] for name in ("utilization", "temp", "powerWatts")
    }
    if "power.max" in unknown:
        assert snapshot.metrics["hpu.1.enforcedPowerLimitWatts"] == 550
    if "ecc.errors.corrected.volatile.total" in unknown:
        why = snapshot.unavailable["hpu.1.correctedEccErrors"]
        assert why.reason == Reason.NOT_SUPPORTED and "unknown query" in why.detail
    asked = len(tool.calls)
    until(sampler, clock, lambda _: len(tool.calls) > asked)
    assert not set(unknown) & set(tool.calls[-1][1].split(",")), "what is refused is not asked for again"


@pytest.mark.parametrize("nothing", ["N/A", "[N/A]", "-", "", "Not Supported"])
def test_every_form_of_nothing(sampler: Sampler, tool: HlSmi, nothing: str) -> None:
    told = ("utilization.aip", "power.draw", "memory.used", "ecc.errors.corrected.volatile.total")
    tool.lists(0, 1, changes=dict.fromkeys(told, nothing))
    snapshot = sampler.sample()
    for metric in ("utilization", "powerWatts", "powerPercent", "memoryAllocatedBytes", "memoryFreeBytes", "correctedEccErrors"):
        assert snapshot.unavailable[f"hpu.0.{metric}"].reason == Reason.NOT_SUPPORTED
    assert snapshot.metrics["hpu.0.temp"] == 30


@pytest.mark.parametrize(
    ("field", "printed", "metric", "reason"),
    [
        ("utilization.aip", "104 %", "utilization", Reason.INVALID_VALUE),
        ("temperature.aip", "65535 C", "temp", Reason.INVALID_VALUE),
        ("power.draw", "4294967295 W", "powerWatts", Reason.INVALID_VALUE),
        ("power.draw", "90 C", "powerWatts", Reason.PARSE_ERROR),
        ("memory.total", "0 MiB", "memoryTotalBytes", Reason.NOT_SUPPORTED),
        ("ecc.errors.corrected.volatile.total", "18446744073709551615", "correctedEccErrors", Reason.INVALID_VALUE),
        ("clocks.current.soc", "busy", "smClock", Reason.PARSE_ERROR),
    ],
)
def test_what_is_impossible_is_no_value(
    tree: GaudiTree, tool: HlSmi, clock: FakeClock, field: str, printed: str, metric: str, reason: Reason
) -> None:
    tool.lists(0, changes={field: printed})
    with Sampler(["gaudi"], clock=clock) as sampler:
        assert sampler.sample().unavailable[f"hpu.0.{metric}"].reason == reason
    assert not tree.slot(0).exists(), "no files stand in for it"


def test_units_are_those_that_are_printed(sampler: Sampler, tool: HlSmi) -> None:
    tool.lists(0, 1, changes={"memory.used": "2 GiB", "power.draw": "120500 mW", "clocks.current.soc": "1.4 GHz", "memory.total": "98304"})
    metrics = sampler.sample().metrics
    names = ("memoryAllocatedBytes", "powerWatts", "smClock", "memoryTotalBytes")
    assert [metrics[f"hpu.0.{name}"] for name in names] == [2048 * MIB, 120.5, 1400, 98304 * MIB]


@pytest.mark.parametrize("old", [False, True])
def test_a_release_without_queries_is_read_by_its_table(tool: HlSmi, tree: GaudiTree, clock: FakeClock, old: bool) -> None:
    tree.card(0)
    tree.card(1)
    tool.prints_table(table(1, 0, old=old, used="512Mib" if old else ""))
    with Sampler(["gaudi"], clock=clock) as sampler:
        snapshot = sampler.sample()
    found = of(snapshot, "hpu.1")
    assert [found[name] for name in ("utilization", "temp", "powerWatts", "enforcedPowerLimitWatts")] == [61, 31, 111, 600]
    assert (found["memoryAllocatedBytes"], found["memoryTotalBytes"]) == ((512 if old else 1792) * MIB, 98304 * MIB)
    assert (found.get("performanceState"), found.get("uncorrectedEccErrors")) == ((None, 1) if old else (0, None))
    assert (found["pcieLinkWidth"], snapshot.devices[1].identity.driver_version) == (8, "1.21.0-0badcaf")


def test_of_a_table_that_is_cut_the_whole_devices_are_read(tool: HlSmi, tree: GaudiTree, clock: FakeClock) -> None:
    tree.card(0)
    printed = table(0, 1)
    tool.prints_table(printed[: printed.index("| N/A   31C")])
    with Sampler(["gaudi"], clock=clock) as sampler:
        assert of(sampler.sample(), "hpu.0")["utilization"] == 60


@pytest.mark.parametrize(
    ("stdout", "stderr", "status", "reason", "words"),
    [
        ("", "no AIPs available, aborting...", 1, Reason.DRIVER_UNAVAILABLE, "hl-smi finds no device"),
        ("", "Permission denied", 1, Reason.NO_PERMISSION, "Permission denied"),
        ("", "", 139, Reason.DRIVER_ERROR, "printed nothing"),
        ("\x00\x01{,}\n", "", 0, Reason.PARSE_ERROR, "hl-smi"),
    ],
)
def test_why_the_tool_gives_nothing(tool: HlSmi, stdout: str, stderr: str, status: int, reason: Reason, words: str) -> None:
    tool.prints(stdout, stderr, status)
    with pytest.raises(SourceError) as caught:
        registry.load("gaudi").open()
    assert words in str(caught.value)
    assert reason in (caught.value.reason, Reason.PARSE_ERROR)


def test_a_tool_that_fails_costs_what_it_alone_tells(
    sampler: Sampler, tool: HlSmi, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device keeps its key and what the files tell."""
    assert of(sampler.sample(), "hpu.1")["temp"] == 31
    monkeypatch.setattr(gaudi.COMMAND, "timeout", 0.3)
    tool.hangs()
    late = until(sampler, clock, lambda latest: "hpu.1.utilization" in latest.unavailable)
    assert late.unavailable["hpu.1.utilization"].reason == Reason.TIMED_OUT
    assert late.metrics["hpu.1.pcieLinkWidth"] == 8
    monkeypatch.setattr(gaudi.COMMAND, "timeout", 30.0)
    tool.lists(1, 0)
    assert of(until(sampler, clock, lambda latest: "hpu.1.utilization" in latest.metrics), "hpu.1")["utilization"] == 61


def test_a_device_that_goes_is_lost_and_comes_back(tool: HlSmi, tree: GaudiTree, clock: FakeClock) -> None:
    tool.lists(0, 1)
    with Sampler(["gaudi"], clock=clock) as sampler:
        assert of(sampler.sample(), "hpu.0")["temp"] == 30
        tool.lists(1)
        lost = until(sampler, clock, lambda latest: "hpu.0.temp" in latest.unavailable)
        assert lost.unavailable["hpu.0.temp"].reason == Reason.DEVICE_LOST
        assert of(lost, "hpu.1")["temp"] == 31
        tool.lists(1, 0)
        assert of(until(sampler, clock, lambda latest: "hpu.0.temp" in latest.metrics), "hpu.0")["temp"] == 30
    assert not tree.slot(0).exists()


def test_who_uses_a_device(sampler: Sampler, tree: GaudiTree, tool: HlSmi, clock: FakeClock) -> None:
    tree.holding(os.getpid(), "accel0", "accel_controlD1")
    tree.holding(502, "accel_controlD0", "accel10")
    first, second = sampler.sample().devices
    assert first.processes == (DeviceProcess(os.getpid(), "compute"),)
    assert second.processes is None, "not every process is seen"
    with Sampler(["gaudi"], clock=clock, pid=os.getpid()) as own:
        assert own.sample().metrics["hpu.process.0.powerWatts"] == 110
    assert node_pattern(first.identity) == r"/dev/accel/accel\d+(-\d+)?"


def test_it_is_found_on_the_bus_and_not_read_without_its_driver(tree: GaudiTree, tool: HlSmi) -> None:
    backend = registry.load("gaudi")
    assert backend.detect()[:2] == (False, "no device of Habana (0x1da3) on the PCI bus")
    tree.card(0, driven=False)
    assert backend.detect()[:3] == (True, "1 HPU on the PCI bus (0000:30:00.0), no HPU driven by habanalabs", 1)
    assert backend.detect().advice == "load the kernel driver: sudo modprobe habanalabs"
    tool.prints("", "habanalabs driver is not loaded or no AIPs available, aborting...", 1)
    with pytest.raises(SourceError, match="hl-smi finds no device") as caught:
        backend.open()
    assert "sudo modprobe habanalabs" in caught.value.advice and "--runtime=habana" in caught.value.advice


def test_modules_that_are_not_known_hide_nothing() -> None:
    seen = visibility({"HABANA_VISIBLE_MODULES": "0"}, [DeviceIdentity("hpu", "habana", 0)])
    assert (seen.visible, seen.order) == ((None,), None)
    assert "known only with hl-smi" in seen.caveats[0]


def answer(text: str) -> Iterator[DeviceSample]:
    return map(DeviceSample, rows(text))


def test_fuzz() -> None:
    lines = [", ".join(gaudi.ASKED), *(", ".join(row(number)[field] for field in gaudi.ASKED) for number in range(2))]
    fuzz(gaudi.backend, answer, "\n".join(lines))


def test_fuzz_of_the_table() -> None:
    fuzz(gaudi.backend, gaudi.parse_table, table(0, 1), table(0, 1, old=True), source="hl-smi-table")


def test_what_the_query_says_is_held_against_the_table_and_the_files(tree: GaudiTree, tool: HlSmi) -> None:
    """The files lack what only the tool has, and tell the PCIe link here, which they cannot confirm."""
    tree.card(1)
    tool.lists(1, changes={"power.draw": "300 W"})
    found = verify(1.0, backends=["gaudi"], timeout=30.0)
    results = {(one.key.removeprefix("hpu.0."), one.reference): one.result for one in found.comparisons}
    assert {one["name"]: one["problem"] for one in found.references} == {"hl-smi-table": "", "sysfs": ""}
    assert results["memoryAllocatedBytes", "hl-smi-table"] == "agrees"
    assert results["powerWatts", "hl-smi-table"] == "differs"
    assert results["temp", "sysfs"] == "differs"  # 31 and 41.5 °C
    assert ("memoryAllocatedBytes", "sysfs") not in results
    assert [by for name, by in results if name == "pcieLinkGen"] == [""]
