"""MetaX GPUs, from a C library with the vendor's structs, and from a command that prints as ``mx-smi`` does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from accelmetrics import Sampler
from accelmetrics.backends import metax, registry
from accelmetrics.backends.contract import SYSTEM_CLOCK
from accelmetrics.backends.metax import TOOL, parse, parse_list, parse_table
from accelmetrics.schemas.errors import Reason, SourceError
from accelmetrics.schemas.identity import DeviceIdentity, DeviceProcess
from accelmetrics.testing import FakeClock
from tests.simulators.commands import CommandStandIn
from tests.simulators.metax import HEADS, HELP, IDLE, MOFFETT, answer, build, listing, process, slow, summary, table
from tests.simulators.stated import Answers
from tests.support.fuzzing import fuzz
from tests.support.readings import of, read
from tests.support.waiting import until, until_reason

MIB = 1 << 20
MEMORY = {
    "memoryAllocatedBytes": 16384 * MIB,
    "memoryTotalBytes": 65536 * MIB,
    "memoryFreeBytes": 49152 * MIB,
    "memoryAllocated": 25,
}
OF_THE_SUMMARY = {
    **{"gpu": 71, "encoderUtilization": 3, "decoderUtilization": 4, **MEMORY, "temp": 48.5, "hotspotTemp": 48.5, "powerWatts": 162.015},
    **{"enforcedPowerLimitWatts": 350, "powerPercent": pytest.approx(46.29), "smClock": 1125, "memoryClock": 1800},
}
OF_THE_TABLE = {
    **{"gpu": 71, **MEMORY, "temp": 48, "hotspotTemp": 48, "powerWatts": 162, "enforcedPowerLimitWatts": 350},
    **{"powerPercent": pytest.approx(46.286, abs=1e-3), "performanceState": 3},
}
NOW_AND_THEN = {
    **{"correctedMemoryErrors": 2, "uncorrectedMemoryErrors": 3, "unCorrectedMemoryErrors": 3, "correctedSramErrors": 0},
    **{"retiredPagesDoubleBit": 4, "eccMode": 1, "pcieLinkGen": 4, "pcieLinkWidth": 8, "maxPcieLinkGen": 5, "maxPcieLinkWidth": 16},
    **{"pcieRxBytes": 12_000_000, "pcieTxBytes": 7_000_000, "throttled": 0, "throttle.gpuIdle": 0, "throttle.swPowerCap": 0},
    **{"throttle.applicationsClocksSetting": 0, "throttle.hwPowerBrakeSlowdown": 0},
}
RARE = ["--count-ecc", "--show-ecc-state", "--show-pcie", "--show-pcie-bandwidth", "--show-clk-tr"]


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root: Path) -> CommandStandIn:
    """The command on a machine with two GPUs."""
    del root
    stand_in = CommandStandIn(tmp_path, "mx-smi")
    monkeypatch.setenv("PATH", stand_in.path)
    answer(stand_in, 0, 1)
    return stand_in


def test_every_metric_of_every_gpu(tool: CommandStandIn) -> None:
    snapshot = read("metax")
    assert of(snapshot) == OF_THE_SUMMARY | NOW_AND_THEN | {"performanceState": 3}
    assert (snapshot.metrics["gpu.1.powerWatts"], snapshot.metrics["gpu.1.retiredPagesDoubleBit"]) == (163.015, 5)
    assert snapshot.unavailable.keys() == {"gpu.0.memoryTemp", "gpu.1.memoryTemp"}  # which only the library has
    assert tool.calls == [["-h"], ["--summary"], [], RARE, ["-L"]]
    first, second = snapshot.devices
    assert first.identity == DeviceIdentity(
        "gpu",
        "metax",
        0,
        name="MXC500",
        uuid="GPU-0a1b2c3d-0000-4000-8000-000000000000",
        pci_bus_id="0000:37:00.0",
        serial="TP6B24_15_3_0",
        driver_version="3.8.30",
        firmware="1.33.5.0",
        memory_total_bytes=65536 * MIB,
    )
    assert (first.processes, second.processes) == ((), ())


@pytest.mark.parametrize("release", HEADS)
def test_a_release_without_a_summary_is_read_by_its_table(tool: CommandStandIn, release: str) -> None:
    """Whatever its headings are; an option that it does not have is said in its words."""
    refusal = "PARSE ERROR: Argument: {}\n             Couldn't find match for argument\n\nBrief USAGE: \n   mx-smi --help\n"
    tool.behave("", stderr=refusal.format("--summary"), status=1, asked="--summary")
    tool.behave("", stderr=refusal.format("--show-ecc-state"), status=1, asked="--count-ecc")
    tool.behave(table(0, 1, release=release))
    snapshot = read("metax")
    missing = {"2.1.6": {"enforcedPowerLimitWatts", "powerPercent", "performanceState"}, "2.2.4": {"performanceState"}}.get(release, set())
    assert of(snapshot) == {name: value for name, value in OF_THE_TABLE.items() if name not in missing}
    assert snapshot.metrics["gpu.1.temp"] == 49
    why = snapshot.unavailable["gpu.0.smClock"]
    assert why == (Reason.NOT_SUPPORTED, "this release of mx-smi has no such option: PARSE ERROR: Argument: --summary")
    assert snapshot.unavailable["gpu.0.retiredPagesDoubleBit"].detail.endswith("--show-ecc-state")
    identity = snapshot.devices[0].identity
    assert (identity.name, identity.driver_version, identity.firmware) == ("MetaX C500", "3.8.30", "1.33.5.0")


def test_a_table_that_fails_costs_what_it_alone_tells(tool: CommandStandIn) -> None:
    tool.behave("", stderr="open /dev/mxcd: Permission denied", status=1)
    snapshot = read("metax")
    assert of(snapshot) == OF_THE_SUMMARY | NOW_AND_THEN
    assert snapshot.unavailable["gpu.0.performanceState"].reason == Reason.NO_PERMISSION
    assert snapshot.devices[0].processes is None


NONE, WRONG, IMPOSSIBLE = Reason.NOT_SUPPORTED, Reason.PARSE_ERROR, Reason.INVALID_VALUE


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"Total": "N/A", "GPU": "N/A", "vram used": "N/A"}, {"powerWatts": NONE, "gpu": NONE, "memoryAllocatedBytes": 1 * MIB}),
        ({"Total": "[Not Supported]", "Limit": "0.000 W", "XCORE_CLK": "-"}, {"powerWatts": NONE, "enforcedPowerLimitWatts": NONE}),
        ({"Total": "91500 mW", "hotspot(sensor1)": "Sysfs error"}, {"powerWatts": 91.5, "temp": WRONG, "hotspotTemp": WRONG}),
        ({"Total": "65535 W", "hotspot(sensor1)": "255.00 C"}, {"powerWatts": IMPOSSIBLE, "temp": IMPOSSIBLE}),
        ({"Double Bit ECC": "N/A", "DRAM Correctable": "-1"}, {"retiredPagesDoubleBit": NONE, "correctedMemoryErrors": IMPOSSIBLE}),
        ({"state": "N/A", "Current Speed": "0 GT/s", "Other": "N/A"}, {"eccMode": NONE, "pcieLinkGen": IMPOSSIBLE, "throttled": NONE}),
        ({"state": "Disable", "Current Width": "N/A"}, {"eccMode": 0, "pcieLinkWidth": NONE}),
        ({"Idle": "Active", "Low Usage": "Active"}, {"throttled": 0, "throttle.gpuIdle": 1}),
        ({"Chip Over Temperature": "Active"}, {"throttled": 1, "throttle.swPowerCap": 0}),
        ({"Over Power": "Active"}, {"throttled": 1, "throttle.swPowerCap": 1}),
    ],
)
def test_values_as_they_are_printed(tool: CommandStandIn, changes: dict[str, str], expected: dict[str, float | Reason]) -> None:
    """Every form of nothing is a reason, and never 0. The table has nothing either, so that it stands in for nothing."""
    tool.behave(table(0, util="N/A", memory="N/A", temp="N/A", power="N/A / N/A", perf="N/A"))
    tool.behave(summary(0, changes=changes), asked="--summary")
    tool.behave(slow(0, changes=changes), asked="--count-ecc")
    snapshot = read("metax")
    reasons = {key: why.reason for key, why in snapshot.unavailable.items()}
    assert {name: reasons.get(f"gpu.0.{name}", snapshot.metrics.get(f"gpu.0.{name}")) for name in expected} == expected


def test_the_power_of_a_board_of_two_gpus_stands_once(tool: CommandStandIn) -> None:
    tool.behave(summary(0, 1, board="AENA1"), asked="--summary")
    snapshot = read("metax")
    assert snapshot.metrics["gpu.0.powerWatts"] == 162.015
    assert snapshot.unavailable["gpu.1.powerWatts"].detail.startswith("mx-smi --summary reports it for the whole card, and GPU 0 has it")
    tool.behave("", status=1, asked="--summary")
    tool.behave(table(0, 1, boards={1: "0"}))
    snapshot = read("metax")
    assert snapshot.metrics["gpu.0.powerWatts"] == 162
    assert "gpu.1.powerWatts" not in snapshot.metrics and snapshot.metrics["gpu.1.temp"] == 49


def test_who_uses_a_gpu(tool: CommandStandIn) -> None:
    rows = (process(0, os.getpid(), "1024"), process(1, 4242, "N/A"), process(1, 4243, "2.5 GiB"[:3], "x" * 28))
    tool.behave(table(0, 1, processes=rows))
    with Sampler(["metax"], clock=SYSTEM_CLOCK, pid=os.getpid()) as sampler:
        snapshot = sampler.sample()
    first, second = snapshot.devices
    assert first.processes == (DeviceProcess(os.getpid(), memory_bytes=1024 * MIB),)
    assert second.processes == (DeviceProcess(4242), DeviceProcess(4243, memory_bytes=5 * MIB // 2))
    assert snapshot.metrics["gpu.process.0.memoryAllocatedBytes"] == 1024 * MIB
    assert not any(key.startswith("gpu.process.1.") for key in snapshot.metrics)


def test_the_tool_of_another_vendor_is_passed_over(tmp_path: Path, tool: CommandStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """Moffett's has the same name; it is told from MetaX's by its help, wherever it stands in ``PATH``."""
    (tmp_path / "moffett").mkdir()
    other = CommandStandIn(tmp_path / "moffett", "mx-smi")
    other.behave(MOFFETT)
    other.behave("usage: mx-smi [subcommand]\nMOFFETT System Management Interface\n", asked="-h")
    monkeypatch.setenv("PATH", f"{other.directory}:{tool.directory}")
    assert of(read("metax")) == OF_THE_SUMMARY | NOW_AND_THEN | {"performanceState": 3}
    assert {tuple(call) for call in other.calls} == {("-h",)}
    monkeypatch.setenv("PATH", str(other.directory))
    with pytest.raises(SourceError, match="is a tool of another vendor") as caught:
        registry.load("metax").open()
    assert (caught.value.reason, "install the MetaX driver" in caught.value.advice) == (Reason.DRIVER_UNAVAILABLE, True)


def test_fuzz_blocks() -> None:
    fuzz(TOOL, parse, summary(0, 1), summary(0, board="AENA1"))
    fuzz(TOOL, parse, slow(0, 1), source="mx-smi --show")


def test_fuzz_tables() -> None:
    samples = (table(0, 1, release=release, processes=(process(0, 4242), IDLE)) for release in HEADS)
    fuzz(TOOL, parse_table, *samples, source="mx-smi")


def test_lines_of_the_list_that_name_no_gpu_are_passed_over() -> None:
    found = [sample.record for sample in parse_list(f"{HELP}\n{listing(0)}GPU#1 (UUID: )\n  SGPU#3 25% Available (UUID: GPU-1) s\n")]
    assert found == [{"bus": "0000:37:00.0", "uuid": "GPU-0a1b2c3d-0000-4000-8000-000000000000"}]


# The library

OF_THE_LIBRARY = {
    **OF_THE_SUMMARY,
    **{name: NOW_AND_THEN[name] for name in NOW_AND_THEN if name not in ("retiredPagesDoubleBit",)},
    **{"correctedSramErrors": 5, "correctedMemoryErrors": 7, "uncorrectedMemoryErrors": 8, "unCorrectedMemoryErrors": 8},
}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("mxsml"))


@pytest.fixture
def library(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Answers:
    """Two GPUs, on a machine without the tool."""
    monkeypatch.setenv("MXSML_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("ACCELMETRICS_SYSROOT", str(tmp_path))
    monkeypatch.setattr(metax, "LIBRARIES", (str(built),))
    monkeypatch.setenv("PATH", "/nonexistent")
    return Answers(tmp_path / "state")


def test_every_metric_of_the_library_and_who_a_gpu_is(library: Answers) -> None:
    library.answers("usage 1 0", "hbm 1 5225")
    snapshot = read("metax")
    assert of(snapshot) == OF_THE_LIBRARY
    assert (snapshot.metrics["gpu.1.gpu"], snapshot.metrics["gpu.1.memoryTemp"], snapshot.backends[0].source) == (0, 52.25, "mxsml")
    told_by_the_tool = {"gpu.0.retiredPagesDoubleBit", "gpu.0.performanceState", "gpu.1.retiredPagesDoubleBit", "gpu.1.performanceState"}
    assert {key: why.reason for key, why in snapshot.unavailable.items()} == dict.fromkeys({"gpu.0.memoryTemp", *told_by_the_tool}, NONE)
    assert snapshot.devices[0].identity == DeviceIdentity(
        "gpu",
        "metax",
        0,
        name="MXC500",
        uuid="GPU-0a1b2c3d-0000-4000-8000-000000000000",
        pci_bus_id="0000:37:00.0",
        serial="TP6B24_15_3_0",
        driver_version="3.8.30",
        firmware="1.33.5.0",
        memory_total_bytes=65536 * MIB,
    )


def test_the_library_and_the_tool_tell_a_gpu_by_one_identity(
    library: Answers, tool: CommandStandIn, built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity = metax.LIBRARY.open().devices[0]
    assert tool.calls == []
    assert identity == TOOL.open().devices[0]


@pytest.mark.parametrize(
    ("bits", "expected"),
    [
        (0x1 | 0x400, {"throttled": 0, "throttle.gpuIdle": 1, "throttle.swPowerCap": 0}),
        (0x2, {"throttled": 0, "throttle.applicationsClocksSetting": 1}),
        (0x4, {"throttled": 1, "throttle.swPowerCap": 1, "throttle.hwPowerBrakeSlowdown": 0}),
        (0x100, {"throttled": 1, "throttle.hwPowerBrakeSlowdown": 1}),
        (0x80000000, {"throttled": 1, "throttle.gpuIdle": 0}),
    ],
)
def test_why_clocks_are_low(library: Answers, bits: int, expected: dict[str, int]) -> None:
    library.answers(f"reasons 0 {bits}")
    assert {name: of(read("metax"))[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("line", "metric", "reason"),
    [
        ("fail.mxSmlGetMemoryInfo 0 4", "memoryTotalBytes", Reason.DRIVER_ERROR),
        ("fail.mxSmlGetBoardPowerInfo 0 8", "powerWatts", Reason.NO_PERMISSION),
        ("fail.mxSmlGetClocks 0 3", "smClock", NONE),
        ("fail.mxSmlGetTotalEccErrors 0 26", "correctedMemoryErrors", Reason.DRIVER_ERROR),
        ("way 0 4294967295", "powerWatts", IMPOSSIBLE),
        ("hotspot 0 6553500", "temp", IMPOSSIBLE),
        ("usage 0 4000", "gpu", IMPOSSIBLE),
        ("max_speed 0 0", "maxPcieLinkGen", NONE),
        ("limit 0 0", "enforcedPowerLimitWatts", NONE),
    ],
)
def test_what_the_library_refuses_costs_its_own_values_of_its_own_gpu(library: Answers, line: str, metric: str, reason: Reason) -> None:
    library.answers(line)
    snapshot = read("metax")
    assert snapshot.unavailable[f"gpu.0.{metric}"].reason == reason
    assert of(snapshot, 1).keys() == OF_THE_LIBRARY.keys()


def test_a_boards_power_that_the_library_tells_of_both_gpus_stands_once(library: Answers) -> None:
    library.answers("board 1 0")
    snapshot = read("metax")
    assert snapshot.metrics["gpu.0.powerWatts"] == 162.015
    assert "gpu.1.powerWatts" not in snapshot.metrics


@pytest.mark.parametrize("count", [0, 2, 40])
def test_who_uses_a_gpu_by_the_library(library: Answers, count: int) -> None:
    """What a process holds of other GPUs is not counted."""
    library.answers(f"processes 1 {count}")
    first, second = read("metax").devices
    assert (first.processes, second.processes) == ((), tuple(DeviceProcess(4242 + place, "compute", 1 << 33) for place in range(count)))


@pytest.mark.parametrize(
    ("line", "words"), [("brand 1 1", "C-class GPUs with one die"), ("dies 0 2", "with one die"), ("init 0 1", "error 1")]
)
def test_what_is_not_read_by_the_library_is_read_by_the_tool(
    library: Answers, built: Path, tool: CommandStandIn, line: str, words: str
) -> None:
    library.answers(line)
    assert read("metax").backends[0].source == "mx-smi --summary+mx-smi"
    with pytest.raises(SourceError, match=words):
        metax.LIBRARY.open()


def test_a_gpu_that_the_library_no_longer_lists_is_lost_and_comes_back(library: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    monkeypatch.setattr(metax.LIBRARY, "clock", clock)
    with Sampler(["metax"], clock=clock) as sampler:
        until(sampler, clock, lambda snapshot: "gpu.1.temp" in snapshot.metrics)
        library.answers("count 0 1")
        until_reason(sampler, clock, "gpu.1.temp", Reason.DEVICE_LOST)
        library.answers()
        until_reason(sampler, clock, "gpu.1.temp", None)


def test_a_machine_without_gpus_that_the_library_finds(library: Answers) -> None:
    library.answers("count 0 0")
    with pytest.raises(SourceError, match="mxSmlInit: there is no device") as caught:
        registry.load("metax").open()
    assert (caught.value.reason, "--device=/dev/mxcd" in caught.value.advice) == (Reason.DRIVER_UNAVAILABLE, True)


def test_the_order_of_rows_makes_no_difference(tool: CommandStandIn) -> None:
    answer(tool, 1, 0)
    snapshot = read("metax")
    assert of(snapshot) == OF_THE_SUMMARY | NOW_AND_THEN | {"performanceState": 3}
    assert snapshot.metrics["gpu.1.temp"] == 49.5
