"""Huawei Ascend NPUs, from a command that prints as ``npu-smi`` does and from a C library with the functions of ``libdcmi``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from accelmetrics import Sampler, Snapshot
from accelmetrics.backends import ascend, registry
from accelmetrics.backends.kit import DeviceSample
from accelmetrics.backends.kit.library import load_first
from accelmetrics.schemas.errors import Reason, SourceError
from accelmetrics.schemas.identity import DeviceIdentity, DeviceProcess
from accelmetrics.testing import FakeClock
from tests.simulators.ascend import chip, common, ecc, info, memory, programs, usages
from tests.simulators.commands import CommandStandIn
from tests.simulators.dcmi import Dcmi
from tests.support.fuzzing import fuzz
from tests.support.readings import of
from tests.support.waiting import until

MIB = 1 << 20
TOLD = {
    "utilization": 21,
    "temp": 41,
    "powerWatts": 91.5,
    "memoryAllocatedBytes": 3401 * MIB,
    "memoryTotalBytes": 65536 * MIB,
    "memoryFreeBytes": 62135 * MIB,
    "memoryAllocated": pytest.approx(5.1895, abs=1e-4),
    "smClock": 900,
    "maxSmClock": 1800,
    "dramActive": 11,
    "memoryTemp": 51,
    "memoryClock": 1600,
    "correctedMemoryErrors": 0,
    "uncorrectedMemoryErrors": 1,
    "unCorrectedMemoryErrors": 1,
    "correctedMemoryErrorsAggregate": 2,
    "uncorrectedMemoryErrorsAggregate": 3,
    "retiredPagesDoubleBit": 5,
    "retiredPagesPending": 1,
}
"""By metric, the values of NPU 1 of one chip."""


@pytest.fixture
def tool(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CommandStandIn:
    del root
    stand_in = CommandStandIn(tmp_path, "npu-smi")
    monkeypatch.setenv("PATH", stand_in.path)
    return stand_in


@pytest.fixture
def library(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Dcmi:
    """The library of a machine with two chips, and no command."""
    made = Dcmi(tmp_path)
    monkeypatch.setenv("DCMI_STATE", str(made.state))
    monkeypatch.setattr(ascend, "LIBRARIES", (str(made.path),))
    monkeypatch.setenv("PATH", "/nonexistent")
    del root
    return made


def says(tool: CommandStandIn, *npus: int, chips: int = 1, form: str = "910B", of: str | None = None, **changed: str) -> None:
    """List these NPUs, and answer what is asked of each."""
    listed = [chip(npu, number, form, **changed) for npu in npus for number in range(chips)]
    tool.behave(info(*listed, form=form, processes=of), asked="info")
    for npu in npus:
        for name, answer in (("common", common), ("usages", usages), ("memory", memory), ("ecc", ecc)):
            tool.behave(answer(npu, chips, form), asked=f"info -t {name} -i {npu}")


def sampled(clock: FakeClock, pid: int | None = None) -> Snapshot:
    with Sampler(["ascend"], clock=clock, pid=pid) as sampler:
        return sampler.sample()


def test_every_metric_and_who_a_chip_is(tool: CommandStandIn, clock: FakeClock) -> None:
    says(tool, 0, 1)
    snapshot = sampled(clock)
    assert of(snapshot, "npu.1") == TOLD
    assert set(snapshot.unavailable) == {"npu.0.eccMode", "npu.1.eccMode"}, "the library alone has it"
    assert snapshot.devices[1].identity == DeviceIdentity(
        "npu", "huawei", 1, name="910B3", pci_bus_id="0000:C2:00.0", driver_version="24.1.0", memory_total_bytes=65536 * MIB
    )
    assert (snapshot.backends[0].source, snapshot.backends[0].status) == ("npu-smi", "ok")
    assert ["info"] in tool.calls and all(call[:1] == ["info"] for call in tool.calls)


def test_rows_out_of_order_are_the_same_chips(tool: CommandStandIn, clock: FakeClock) -> None:
    says(tool, 2, 0, 1)
    snapshot = sampled(clock)
    assert [device.identity.vendor_index for device in snapshot.devices] == [0, 1, 2]
    assert of(snapshot, "npu.1") == TOLD


def test_the_dies_of_a3_have_their_own_values_and_their_power_once(tool: CommandStandIn, clock: FakeClock) -> None:
    """The first die's is that of both."""
    says(tool, 0, 1, chips=2, form="A3")
    snapshot = sampled(clock)
    assert [device.identity.vendor_index for device in snapshot.devices] == [0, 1, 2, 3]
    assert [snapshot.metrics.get(f"npu.{number}.powerWatts") for number in range(4)] == [90.5, None, 92.5, None]
    assert snapshot.unavailable["npu.1.powerWatts"].reason == Reason.NOT_SUPPORTED
    assert [snapshot.metrics[f"npu.{number}.smClock"] for number in range(4)] == [800, 801, 900, 901]
    assert [snapshot.metrics[f"npu.{number}.memoryTemp"] for number in range(4)] == [50, 51, 51, 52]
    assert [snapshot.metrics[f"npu.{number}.utilization"] for number in range(4)] == [20, 21, 22, 23]


def test_chips_of_a_310p_share_an_address(tool: CommandStandIn, clock: FakeClock) -> None:
    """They have DDR, and their power is the card's controller's."""
    listed = [chip(4, number, "310", bus="0000:01:00.0", device=str(number)) for number in range(2)]
    tool.behave(info(*listed, form="310", processes=programs((4, 1, 501, "python", 64), form="310")), asked="info")
    tool.behave(usages(4, 2, "310"), asked="info -t usages -i 4")
    tool.behave("\tNPU ID : 4\n\tThis device does not support querying memory.\n", asked="info -t memory -i 4")
    tool.behave(common(4, 2, "310"), asked="info -t common -i 4")
    tool.behave(ecc(4, 2, memories=("DDR",)), asked="info -t ecc -i 4")
    snapshot = sampled(clock)
    first, second = snapshot.devices
    assert (first.identity.vendor_index, second.identity.vendor_index, first.identity.pci_bus_id) == (0, 1, "")
    assert [snapshot.metrics[f"npu.{number}.memoryTotalBytes"] for number in range(2)] == [21527 * MIB] * 2
    assert [snapshot.metrics[f"npu.{number}.dramActive"] for number in range(2)] == [3, 3]
    assert [snapshot.metrics[f"npu.{number}.uncorrectedMemoryErrors"] for number in range(2)] == [1, 1]
    assert "npu.0.powerWatts" not in snapshot.metrics and "npu.0.memoryTemp" not in snapshot.metrics
    assert (first.processes, second.processes) == ((), (DeviceProcess(501, "compute", 64 * MIB),))


def test_the_power_of_a_310_is_the_rated_one(tool: CommandStandIn, clock: FakeClock) -> None:
    tool.behave(info(chip(0, 0, "310", name="310", power="12.8"), form="310"), asked="info")
    snapshot = sampled(clock)
    assert snapshot.unavailable["npu.0.powerWatts"].detail == ascend.RATED.detail
    assert snapshot.devices[0].processes is None, "no table of processes was printed"


def test_the_table_of_the_950(tool: CommandStandIn, clock: FakeClock) -> None:
    """A cell for each heading, no chips, and an address that may be missing."""
    says(tool, 0, 1, form="950", bus="NA", hbm="4857  / 98304", of=programs((1, 0, 502, "python", 256), form="950", idle=(0,)))
    snapshot = sampled(clock)
    found = of(snapshot, "npu.1")
    assert found == TOLD | {
        "memoryAllocatedBytes": 4857 * MIB,
        "memoryTotalBytes": 98304 * MIB,
        "memoryFreeBytes": 93447 * MIB,
        "memoryAllocated": pytest.approx(4.9408, abs=1e-4),
    }
    assert [device.identity.pci_bus_id for device in snapshot.devices] == ["", ""]
    assert [device.processes for device in snapshot.devices] == [(), (DeviceProcess(502, "compute", 256 * MIB),)]


def test_memory_that_is_glued_and_a_chip_with_both_memories(tool: CommandStandIn, clock: FakeClock) -> None:
    says(tool, 0, hbm="15503/ 65536", ddr="1197 / 13553")
    snapshot = sampled(clock)
    assert snapshot.metrics["npu.0.memoryAllocatedBytes"] == 15503 * MIB


def test_chips_without_a_number_of_their_own_are_counted(tool: CommandStandIn, clock: FakeClock) -> None:
    """Which chip an answer by card is of is then not known."""
    says(tool, 3, 5, chips=2)
    snapshot = sampled(clock)
    assert [device.identity.vendor_index for device in snapshot.devices] == [0, 1, 2, 3]
    assert "npu.0.smClock" not in snapshot.metrics


def test_an_older_release_has_one_clock_which_may_be_any(tool: CommandStandIn, clock: FakeClock) -> None:
    says(tool, 0)
    tool.behave(common(0).replace("Aicore curFreq(MHZ)", "Something else"), asked="info -t common -i 0")
    snapshot = sampled(clock)
    assert not {"npu.0.smClock", "npu.0.maxSmClock"} & snapshot.metrics.keys()
    assert snapshot.metrics["npu.0.memoryClock"] == 1600


@pytest.mark.parametrize(
    ("changed", "metric", "reason"),
    [
        ({"power": "NA"}, "powerWatts", Reason.NOT_SUPPORTED),
        ({"power": "-"}, "powerWatts", Reason.NOT_SUPPORTED),
        ({"temp": "NA"}, "temp", Reason.NOT_SUPPORTED),
        ({"util": "NA"}, "utilization", Reason.NOT_SUPPORTED),
        ({"hbm": "0    / 0"}, "memoryTotalBytes", Reason.NOT_SUPPORTED),
        ({"hbm": "NA   / 65536"}, "memoryAllocatedBytes", Reason.NOT_SUPPORTED),
        ({"power": "3276.5", "temp": "32767"}, "temp", Reason.INVALID_VALUE),
        ({"util": "255"}, "utilization", Reason.INVALID_VALUE),
        ({"power": "hot"}, "powerWatts", Reason.PARSE_ERROR),
    ],
)
def test_every_form_of_nothing(tool: CommandStandIn, clock: FakeClock, changed: dict[str, str], metric: str, reason: Reason) -> None:
    tool.behave(info(chip(0, 0, "910B", **changed), chip(1)), asked="info")
    snapshot = sampled(clock)
    assert snapshot.unavailable[f"npu.0.{metric}"].reason == reason
    assert snapshot.metrics["npu.1.temp"] == 41


def test_a_question_that_a_card_does_not_answer_costs_what_it_asks(tool: CommandStandIn, clock: FakeClock) -> None:
    says(tool, 0, 1)
    tool.behave("", stderr="NPU 0 does not support querying ecc", status=1, asked="info -t ecc -i 0")
    tool.behave("", stderr="Permission denied", status=1, asked="info -t memory -i 0")
    snapshot = sampled(clock)
    assert snapshot.unavailable["npu.0.correctedMemoryErrors"].reason == Reason.NOT_SUPPORTED
    assert snapshot.unavailable["npu.0.memoryTemp"].reason == Reason.NO_PERMISSION
    assert (snapshot.metrics["npu.0.smClock"], snapshot.metrics["npu.0.dramActive"]) == (800, 10)
    assert of(snapshot, "npu.1") == TOLD


def test_who_uses_a_chip(tool: CommandStandIn, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Since release 26 a container's own number stands beside the machine's."""
    rows = programs((0, 0, 4100, "python", 5175, os.getpid()), (0, 0, 4101, "python", "NA", "NA"), container=True, idle=(1,))
    says(tool, 0, 1, 2, of=rows)
    outside = os.getpid()
    for shared, pids in ((True, [4100, 4101]), (False, [outside, 4101])):
        monkeypatch.setattr("accelmetrics.backends.kit.processes.DriverNumbers.shared", shared)
        first, second, third = sampled(clock).devices
        assert [process.pid for process in first.processes or ()] == pids
        assert [process.memory_bytes for process in first.processes or ()] == [5175 * MIB, None]
        assert (second.processes, third.processes) == ((), None)


def test_of_output_that_is_cut_the_whole_chips_are_read(tool: CommandStandIn, clock: FakeClock) -> None:
    printed = info(chip(0), chip(1), processes=programs(idle=(0, 1)))
    tool.behave(printed[: printed.rindex("| 0  ")], asked="info")
    snapshot = sampled(clock)
    assert [device.key for device in snapshot.devices] == ["npu.0"]
    assert (snapshot.metrics["npu.0.temp"], snapshot.devices[0].processes) == (40, None)


def test_a_chip_that_goes_is_lost_and_comes_back(tool: CommandStandIn, clock: FakeClock) -> None:
    says(tool, 0, 1)
    with Sampler(["ascend"], clock=clock) as sampler:
        assert of(sampler.sample(), "npu.1") == TOLD
        says(tool, 1)
        lost = until(sampler, clock, lambda latest: "npu.0.temp" in latest.unavailable)
        assert lost.unavailable["npu.0.temp"].reason == Reason.DEVICE_LOST
        assert lost.metrics["npu.1.temp"] == 41
        says(tool, 1, 0)
        assert until(sampler, clock, lambda latest: "npu.0.temp" in latest.metrics).metrics["npu.0.temp"] == 40


def test_details_are_asked_for_at_a_pace_of_their_own(tool: CommandStandIn, clock: FakeClock) -> None:
    says(tool, 0)
    with Sampler(["ascend"], clock=clock) as sampler:
        sampler.sample()
        tables = tool.calls.count(["info"])
        until(sampler, clock, lambda _: tool.calls.count(["info"]) > tables + 2)
        assert sum("ecc" in call for call in tool.calls) == 1
        tool.behave(ecc(0, first=7), asked="info -t ecc -i 0")
        until(sampler, clock, lambda latest: latest.metrics.get("npu.0.correctedMemoryErrors") == 7, step=10.0)


def test_a_tool_that_hangs_is_ended(tool: CommandStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ascend.COMMAND, "timeout", 0.3)
    tool.behave("", hang=True)
    with pytest.raises(SourceError) as caught:
        ascend.TOOL.open()
    assert caught.value.reason == Reason.TIMED_OUT


@pytest.mark.parametrize(
    ("stdout", "stderr", "status", "reason", "words"),
    [
        ("dcmi module initialize failed. ret is -8005\n", "", 1, Reason.DRIVER_UNAVAILABLE, "npu-smi cannot open the driver"),
        ("", "error while loading shared libraries: libdrvdsmi_host.so", 127, Reason.DRIVER_ERROR, "libdrvdsmi_host.so"),
        ("", "", 0, Reason.PARSE_ERROR, "printed nothing"),
        ("This device does not exist.", "", 1, Reason.DRIVER_ERROR, "does not exist"),
        ("\x00+++|||\n", "", 0, Reason.DRIVER_UNAVAILABLE, "lists no NPU"),
    ],
)
def test_why_it_does_not_open(tool: CommandStandIn, stdout: str, stderr: str, status: int, reason: Reason, words: str) -> None:
    tool.behave(stdout, stderr=stderr, status=status)
    with pytest.raises(SourceError) as caught:
        ascend.TOOL.open()
    assert caught.value.reason == reason and words in str(caught.value)


def test_a_user_who_may_not_open_the_node(tool: CommandStandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the kernel tells it, whoever runs the test."""
    monkeypatch.setattr("os.access", lambda path, mode: path != f"{tmp_path}/root/dev/davinci_manager" or not mode & os.W_OK)
    node = tmp_path / "root/dev/davinci_manager"
    node.parent.mkdir()
    node.touch()
    node.chmod(0)
    tool.behave("dcmi module initialize failed. ret is -8005\n", status=1)
    with pytest.raises(SourceError) as caught:
        ascend.TOOL.open()
    assert caught.value.reason == Reason.NO_PERMISSION
    assert "usermod -aG HwHiAiUser" in caught.value.advice


BY_LIBRARY = {name: value for name, value in TOLD.items() if name != "retiredPagesPending"} | {"eccMode": 1}


@pytest.mark.parametrize("newer", [0, 1])
def test_the_library_by_card_and_by_number(library: Dcmi, clock: FakeClock, newer: int) -> None:
    """Its second set of functions is the 950's. Both give what the tool does."""
    library.answers(f"v2 0 {newer}")
    snapshot = sampled(clock)
    assert of(snapshot, "npu.1") == BY_LIBRARY
    assert set(snapshot.unavailable) == {"npu.0.retiredPagesPending", "npu.1.retiredPagesPending"}, "the tool alone has it"
    assert snapshot.devices[1].identity == DeviceIdentity(
        "npu",
        "huawei",
        1,
        name="910B3",
        uuid="000000B0-000000B1-000000B2-000000B3-000000B4",
        pci_bus_id="0000:c2:00.0",
        driver_version="25.7.0" if newer else "24.1.0",
        memory_total_bytes=65536 * MIB,
    )
    assert (snapshot.devices[0].processes, snapshot.backends[0].source) == ((), "dcmi")


def test_dies_of_one_card_have_their_power_once_by_the_library(library: Dcmi, clock: FakeClock) -> None:
    library.answers("chips 0 2", "power 1 905", "power 3 925")
    snapshot = sampled(clock)
    assert [snapshot.metrics.get(f"npu.{number}.powerWatts") for number in range(4)] == [90.5, None, 92.5, None]
    assert [snapshot.metrics[f"npu.{number}.temp"] for number in range(4)] == [40, 41, 42, 43]


def test_a_chip_without_hbm_by_the_library(library: Dcmi, clock: FakeClock) -> None:
    library.answers("has_hbm 0 0", "is310 0 1")
    metrics = sampled(clock).metrics
    assert (metrics["npu.0.memoryTotalBytes"], metrics["npu.0.memoryAllocatedBytes"]) == (21527 * MIB, 1800 * MIB)
    assert (metrics["npu.0.dramActive"], metrics["npu.0.uncorrectedMemoryErrors"]) == (3, 1)
    assert not {"npu.0.memoryTemp", "npu.0.memoryClock", "npu.0.powerWatts"} & metrics.keys()
    assert metrics["npu.1.powerWatts"] == 91.5, "of a 310 alone it is the rated one"


@pytest.mark.parametrize(
    ("lines", "metric", "reason"),
    [
        (("fail.dcmi_get_device_power_info 0 -8255",), "powerWatts", Reason.NOT_SUPPORTED),
        (("fail.dcmi_get_device_hbm_info 0 -8013",), "memoryTemp", Reason.NOT_SUPPORTED),
        (("fail.dcmi_get_device_temperature 0 -8002",), "temp", Reason.NO_PERMISSION),
        (("fail.dcmi_get_device_temperature 0 -8006",), "temp", Reason.TIMED_OUT),
        (("fail.dcmi_get_device_aicore_info 0 -8008",), "smClock", Reason.DEVICE_LOST),
        (("fail.dcmi_get_device_aicore_info 0 -8020",), "smClock", Reason.DRIVER_ERROR),
        (("power 0 32767",), "powerWatts", Reason.INVALID_VALUE),
        (("temperature 0 32765",), "temp", Reason.INVALID_VALUE),
        (("utilisation 0 512",), "utilization", Reason.INVALID_VALUE),
        (("hbm_temperature 0 0",), "memoryTemp", Reason.NOT_SUPPORTED),
        (("ecc 0 0",), "correctedMemoryErrors", Reason.NOT_SUPPORTED),
        (("once 0 4294967295",), "correctedMemoryErrors", Reason.INVALID_VALUE),
    ],
)
def test_what_the_library_refuses_is_a_reason(library: Dcmi, clock: FakeClock, lines: tuple[str, ...], metric: str, reason: Reason) -> None:
    library.answers(*lines)
    snapshot = sampled(clock)
    assert snapshot.unavailable[f"npu.0.{metric}"].reason == reason
    assert of(snapshot, "npu.1") == BY_LIBRARY


def test_an_older_library_without_some_functions(library: Dcmi, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """What they give has a reason, and a chip without the id of its die is known by its address."""
    lacking = ("dcmi_get_device_die_v2", "dcmi_get_device_ecc_info", "dcmi_get_device_resource_info", "dcmi_get_driver_version")
    loaded = load_first("libdcmi.so", ascend.LIBRARIES, "")

    class Older:
        def __getattr__(self, name: str) -> object:
            if name in lacking:
                raise AttributeError(name)
            return getattr(loaded, name)

    monkeypatch.setattr(ascend, "load_first", lambda *_: Older())
    snapshot = sampled(clock)
    assert library.path.exists() and snapshot.unavailable["npu.1.correctedMemoryErrors"].reason == Reason.NOT_SUPPORTED
    assert snapshot.metrics["npu.1.temp"] == 41
    (_, second) = snapshot.devices
    assert (second.identity.uuid, second.identity.driver_version, second.processes) == ("", "", None)


def test_a_chip_is_known_by_its_die_when_numbers_change(library: Dcmi, clock: FakeClock) -> None:
    library.answers("die 0 11", "die 1 22")
    with Sampler(["ascend"], clock=clock) as sampler:
        assert sampler.sample().metrics["npu.1.temp"] == 41
        # Between both a reading finds no chip: none can take the die of one order and the number of the other.
        library.answers("die 0 11", "die 1 22", "cards 0 0")
        until(sampler, clock, lambda latest: {"npu.0.temp", "npu.1.temp"} <= latest.unavailable.keys())
        library.answers("die 0 22", "die 1 11", "temperature 0 77")
        # A sample lists the devices before it takes their values, so the numbers may follow one sample later.
        snapshot = until(
            sampler,
            clock,
            lambda latest: latest.metrics.get("npu.1.temp") == 77 and [device.identity.vendor_index for device in latest.devices] == [1, 0],
        )
    assert snapshot.metrics["npu.0.temp"] == 41


def test_a_chip_that_goes_is_lost_and_comes_back_by_the_library(library: Dcmi, clock: FakeClock) -> None:
    with Sampler(["ascend"], clock=clock) as sampler:
        assert of(sampler.sample(), "npu.1") == BY_LIBRARY
        library.answers("cards 0 1")
        lost = until(sampler, clock, lambda latest: "npu.1.temp" in latest.unavailable)
        assert lost.unavailable["npu.1.temp"].reason == Reason.DEVICE_LOST
        library.answers()
        assert of(until(sampler, clock, lambda latest: "npu.1.temp" in latest.metrics), "npu.1") == BY_LIBRARY


def test_a_card_that_fails_costs_no_other(library: Dcmi, clock: FakeClock) -> None:
    library.answers("fail.dcmi_get_device_num_in_card 0 -8008")
    snapshot = sampled(clock)
    assert [device.identity.vendor_index for device in snapshot.devices] == [1]
    (device,) = snapshot.devices
    assert snapshot.metrics[f"{device.key}.temp"] == 41


def test_where_the_library_refuses_the_tool_is_read(
    library: Dcmi, clock: FakeClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And each of them can be pinned."""
    stand_in = CommandStandIn(tmp_path, "npu-smi")
    monkeypatch.setenv("PATH", stand_in.path)
    says(stand_in, 0, 1)
    backend = registry.load("ascend")
    assert backend.open().source == "dcmi"
    library.answers("fail.dcmi_init 0 -8005")
    assert of(sampled(clock), "npu.1") == TOLD
    assert getattr(backend, "pinned")("npu-smi").open().source == "npu-smi"  # noqa: B009
    with pytest.raises(SourceError, match="dcmi_init: error -8005") as caught:
        getattr(backend, "pinned")("dcmi").open()  # noqa: B009
    assert caught.value.reason == Reason.DRIVER_UNAVAILABLE and "in a container" in caught.value.advice


@pytest.mark.parametrize("newer", [0, 1])
def test_a_user_who_may_not_open_the_node_and_the_library(
    library: Dcmi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, newer: int
) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: False)
    (tmp_path / "root/dev").mkdir(parents=True)
    (tmp_path / "root/dev/davinci_manager").touch()
    library.answers(f"v2 0 {newer}", "fail.dcmi_init 0 -8005", "fail.dcmiv2_init 0 -8005")
    with pytest.raises(SourceError, match="error -8005") as caught:
        ascend.LIBRARY.open()
    assert caught.value.reason == Reason.NO_PERMISSION and "HwHiAiUser" in caught.value.advice


def test_a_library_that_lists_none(library: Dcmi) -> None:
    library.answers("fail.dcmi_get_card_list 0 -8008")
    with pytest.raises(SourceError, match="dcmi_get_card_list") as caught:
        ascend.LIBRARY.open()
    assert caught.value.reason == Reason.DEVICE_LOST
    library.answers("cards 0 0")
    with pytest.raises(SourceError, match="dcmi lists no NPU"):
        ascend.LIBRARY.open()


def test_neither_library_nor_tool(library: Dcmi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ascend, "LIBRARIES", (f"{library.path}.gone",))
    with pytest.raises(SourceError, match=r"libdcmi\.so was not found .* npu-smi was not found in PATH") as caught:
        registry.load("ascend").open()
    assert caught.value.reason == Reason.DRIVER_UNAVAILABLE


def _answers(printed: str) -> Iterator[DeviceSample]:
    return (DeviceSample({"number": number, **record}) for number, record in ascend.chips(printed).items())


def test_fuzz() -> None:
    tables = [
        info(
            *(chip(npu, number, form) for npu in range(2) for number in range(chips)),
            form=form,
            processes=programs((0, 0, 7, "x", 5), form=form),
        )
        for form, chips in (("910B", 1), ("A3", 2), ("310", 2), ("950", 1))
    ]
    fuzz(ascend.TOOL, ascend.Chips().parse, *tables)


def test_fuzz_of_the_answers() -> None:
    fuzz(ascend.TOOL, _answers, common(0, 2), usages(1, 2, "950"), memory(0), ecc(0, 2), source="npu-smi -t")


def test_who_uses_a_chip_by_the_library(library: Dcmi, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ACCELMETRICS_SYSROOT")
    library.answers(f"pid 0 {os.getpid()}")
    assert sampled(clock, pid=os.getpid()).metrics["npu.process.0.memoryAllocatedBytes"] == 1024 * MIB
