"""Hygon DCUs, from files as their kernel driver shows them, and from a command that prints as ``hy-smi`` does."""

from __future__ import annotations

from pathlib import Path

import pytest

from accelmetrics import Sampler
from accelmetrics.backends import hygon, registry
from accelmetrics.backends.amd import backend as amd
from accelmetrics.backends.contract import SYSTEM_CLOCK
from accelmetrics.backends.hygon import FLAGS, STEADY_FLAGS, TOOL, backend, parse, parse_table
from accelmetrics.schemas.errors import Reason, SourceError
from accelmetrics.schemas.identity import DeviceIdentity
from tests.simulators.amdgpu import Tree, machines
from tests.simulators.amdgpu.machines import GIB
from tests.simulators.commands import CommandStandIn
from tests.simulators.hygon import NO_DEVICE, about, answer, card, document, lines, table
from tests.simulators.rocm_smi import RocmSmiStandIn, output
from tests.support.fuzzing import fuzz
from tests.support.readings import of, read
from tests.support.waiting import wait_for

MIB = 1 << 20
OF_THE_FILES = {
    **{"gpu": 64, "memoryAllocated": 7.8125, "memoryAllocatedBytes": 5 * GIB, "memoryTotalBytes": 64 * GIB, "memoryFreeBytes": 59 * GIB},
    **{"temp": 39, "powerWatts": 152, "enforcedPowerLimitWatts": 400, "powerPercent": 38},
}
OF_THE_DOCUMENT = {
    **{"gpu": 63.5, "memoryAllocatedBytes": 16380 * MIB, "memoryTotalBytes": 65520 * MIB, "memoryFreeBytes": 49140 * MIB},
    **{"memoryAllocated": 25, "temp": 51, "hotspotTemp": 56, "memoryTemp": 48, "powerWatts": 188.5, "smClock": 1350, "memoryClock": 1800},
    **{"pcieLinkGen": 5, "pcieLinkWidth": 16},
}
LIMIT = {"enforcedPowerLimitWatts": 400, "powerPercent": pytest.approx(47.125)}
OF_THE_TABLE = {"gpu": 63.5, "memoryAllocated": 25, "temp": 51, "powerWatts": 188.5, **LIMIT}


@pytest.fixture
def tree(root: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    """A machine that has nothing yet."""
    monkeypatch.setenv("PATH", "/nonexistent")
    return Tree(root)


@pytest.fixture
def tool(tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CommandStandIn:
    """The command on a machine with two DCUs, as in a container that sees no file of theirs."""
    del tree
    stand_in = CommandStandIn(tmp_path, "hy-smi")
    monkeypatch.setenv("PATH", str(stand_in.directory))
    answer(stand_in, 0, 1)
    return stand_in


# The files


@pytest.mark.parametrize(("kind", "driver"), [("0x0b4000", "hycu"), ("0x038000", "hydcu"), ("0x120000", "amdgpu")])
def test_the_files_of_the_driver(tree: Tree, kind: str, driver: str) -> None:
    """Its bridges are none, and AMD's backend leaves it to this one."""
    device = machines.hygon(tree, kind, driver)
    tree.write(f"/sys/module/{driver}/version", "6.2.31")
    (device.path / "driver").unlink()
    (device.path / "driver").symlink_to(tree.root / f"sys/bus/pci/drivers/{driver}")
    snapshot = read("hygon")
    assert (of(snapshot), snapshot.backends[0].source) == (OF_THE_FILES, "sysfs")
    assert snapshot.devices[0].identity == DeviceIdentity(
        "gpu",
        "hygon",
        0,
        name="Hygon GPU (0x6320)",
        uuid="0x5c88007bd1f20a43",
        pci_bus_id="0000:06:00.0",
        driver_version="6.2.31",
        memory_total_bytes=64 * GIB,
    )
    found = registry.load("hygon").detect()
    assert (found.present, found.devices, found.evidence) == (True, 1, "1 GPU on the PCI bus (0000:06:00.0)")
    assert not amd.detect().present
    with pytest.raises(SourceError, match="no GPU is driven by amdgpu here"):
        amd.pinned("sysfs").open()


def test_the_files_of_two_vendors_are_not_mixed_up(tree: Tree) -> None:
    """Both drivers show the same files, also where AMD's drives both."""
    machines.hygon(tree, driver="amdgpu")
    machines.rx_7900(tree)
    with Sampler(["amd", "hygon"], clock=SYSTEM_CLOCK) as sampler:
        snapshot = sampler.sample()
    assert [(device.identity.vendor, device.identity.pci_bus_id) for device in snapshot.devices] == [
        ("amd", "0000:03:00.0"),
        ("hygon", "0000:06:00.0"),
    ]
    assert (snapshot.metrics["gpu.0.temp"], of(snapshot, 1)) == (51, OF_THE_FILES)


def test_a_card_that_the_driver_lets_go_of_comes_back_as_itself(tree: Tree) -> None:
    device = machines.hygon(tree)
    with Sampler(["hygon"], clock=SYSTEM_CLOCK) as sampler:
        assert of(sampler.sample()) == OF_THE_FILES
        device.unbind()
        lost = sampler.sample()
        assert {why.reason for why in lost.unavailable.values()} == {Reason.DRIVER_UNAVAILABLE}
        assert not lost.metrics
        (device.path / "driver").symlink_to(tree.root / "sys/bus/pci/drivers/hycu")
        device.write({"gpu_busy_percent": 12, "unique_id": "5c88007bd1f20a43"})
        wait_for(lambda: of(sampler.sample()).get("gpu") == 12)
        assert [found.identity.uuid for found in sampler.sample().devices] == ["0x5c88007bd1f20a43"]


# The command


@pytest.mark.parametrize("commas", [True, False], ids=["all commas", "some commas"])
def test_every_metric_of_every_dcu(tool: CommandStandIn, commas: bool) -> None:
    answer(tool, 0, 1, commas=commas)
    snapshot = read("hygon")
    assert of(snapshot) == OF_THE_DOCUMENT | LIMIT
    assert (snapshot.metrics["gpu.1.temp"], snapshot.metrics["gpu.1.powerWatts"]) == (52, 189.5)
    assert {why.reason for why in snapshot.unavailable.values()} == {Reason.NOT_SUPPORTED}
    assert snapshot.devices[0].identity == DeviceIdentity(
        "gpu",
        "hygon",
        0,
        name="K100_AI",
        uuid="0x5c88007bd1f20a00",
        pci_bus_id="0000:09:00.0",
        serial="TMB24000000",
        memory_total_bytes=65520 * MIB,
    )
    assert snapshot.devices[0].processes is None
    assert tool.calls == [["--showproductname"], [*FLAGS], [*STEADY_FLAGS]]


@pytest.mark.parametrize("word", ["HCU", "DCU"])
def test_a_release_that_prints_lines_where_a_document_was_asked_for(tool: CommandStandIn, word: str) -> None:
    cards = {number: card(number, word) for number in (0, 1)}
    tool.behave(lines(cards).replace("HCU[", f"{word}["), asked="--showuse")
    tool.behave("", status=2, asked=" ".join(STEADY_FLAGS))
    snapshot = read("hygon")
    assert of(snapshot) == OF_THE_DOCUMENT
    assert [device.identity.pci_bus_id for device in snapshot.devices] == ["0000:09:00.0", "0000:0a:00.0"]


@pytest.mark.parametrize(("word", "coders"), [("DCU", False), ("HCU", False), ("HCU", True)])
def test_a_release_that_knows_no_such_flags_is_read_by_its_table(tool: CommandStandIn, word: str, coders: bool) -> None:
    refusal = "usage: hy-smi [-h]\nhy-smi: error: unrecognized arguments: --showmemuse"
    for asked in ("--showuse", " ".join(STEADY_FLAGS)):
        tool.behave("", stderr=refusal, status=2, asked=asked)
    tool.behave(table(0, 1, word=word, coders=coders))
    snapshot = read("hygon")
    assert of(snapshot) == OF_THE_TABLE | ({"decoderUtilization": 4, "encoderUtilization": 3} if coders else {})
    assert snapshot.metrics["gpu.1.temp"] == 52
    assert snapshot.unavailable["gpu.0.smClock"].reason in (Reason.DRIVER_ERROR, Reason.NOT_SUPPORTED)
    assert snapshot.backends[0].source == "hy-smi, its table"


NONE, WRONG, IMPOSSIBLE = Reason.NOT_SUPPORTED, Reason.PARSE_ERROR, Reason.INVALID_VALUE


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"use": "N/A", "edge": "N/A", "Power": "N/A"}, {"gpu": NONE, "temp": 56, "powerWatts": NONE}),
        ({"use": "", "junction": "-", "mem": "[Not Supported]"}, {"gpu": NONE, "hotspotTemp": NONE, "memoryTemp": NONE}),
        ({"edge": "N/A", "junction": "N/A"}, {"temp": NONE}),
        ({"Power": "0.0", "use": "0.0"}, {"powerWatts": 0, "gpu": 0}),
        ({"Power": "65535.0", "edge": "255.0", "use": "101"}, {"powerWatts": IMPOSSIBLE, "temp": IMPOSSIBLE, "gpu": IMPOSSIBLE}),
        ({"Power": "much", "speed": "(fast)"}, {"powerWatts": WRONG, "smClock": WRONG, "memoryClock": WRONG}),
        ({"Memory": "0"}, {"memoryAllocatedBytes": 0, "memoryTotalBytes": NONE, "memoryAllocated": NONE}),
        ({"level": "None"}, {"pcieLinkGen": NONE, "pcieLinkWidth": NONE}),
        ({"level": "1 (2.5GT/s, x8 619Mhz)"}, {"pcieLinkGen": 1, "pcieLinkWidth": 8}),
    ],
)
def test_values_as_they_are_printed(tool: CommandStandIn, changes: dict[str, str], expected: dict[str, float | Reason]) -> None:
    """Every form of nothing is a reason, and never 0."""
    tool.behave(document({0: card(0, **changes)}), asked="--showuse")
    tool.behave("", status=1)
    snapshot = read("hygon")
    reasons = {key: why.reason for key, why in snapshot.unavailable.items()}
    assert {name: reasons.get(f"gpu.0.{name}", snapshot.metrics.get(f"gpu.0.{name}")) for name in expected} == expected


def test_memory_in_the_units_of_its_keys(tool: CommandStandIn) -> None:
    """Bytes before DTK 23.10, MiB since."""
    size = {"vram Total Memory (B)": "68702699520", "vram Total Used Memory (B)": str(16380 * MIB)}
    tool.behave(document({0: {key: said for key, said in card(0, "DCU").items() if "(MiB)" not in key} | size}), asked="--showuse")
    snapshot = read("hygon")
    assert (snapshot.metrics["gpu.0.memoryAllocatedBytes"], snapshot.metrics["gpu.0.memoryTotalBytes"]) == (16380 * MIB, 65520 * MIB)


def test_the_order_of_cards_makes_no_difference(tool: CommandStandIn) -> None:
    answer(tool, 1, 0)
    tool.behave(document({1: about(1)}), asked=" ".join(STEADY_FLAGS))
    snapshot = read("hygon")
    assert of(snapshot) == OF_THE_DOCUMENT
    assert snapshot.metrics["gpu.1.temp"] == 52
    assert [device.identity.name for device in snapshot.devices] == ["", "K100_AI"]


@pytest.mark.parametrize(
    ("stdout", "stderr", "status", "reason", "words", "advice"),
    [
        ("", "cannot open /dev/mkfd: Permission denied", 1, Reason.NO_PERMISSION, "Permission denied", ""),
        (NO_DEVICE, "", 0, Reason.DRIVER_UNAVAILABLE, "hy-smi sees no DCU: ERROR: No device found", "--device=/dev/kfd --device=/dev/mkfd"),
        ("", "hy-smi: Driver not initialized (hydcu not found in modules)", 1, Reason.DRIVER_UNAVAILABLE, "not loaded", "modprobe hycu"),
        ("hy-smi: Segmentation fault", "", 139, Reason.DRIVER_ERROR, "Segmentation fault", ""),
        ("hy-smi\n{}", "", 0, Reason.PARSE_ERROR, "printed no card", ""),
    ],
)
def test_why_it_does_not_open(tool: CommandStandIn, stdout: str, stderr: str, status: int, reason: Reason, words: str, advice: str) -> None:
    for asked in ("", "--showuse", "--showproductname", " ".join(STEADY_FLAGS)):
        tool.behave(stdout, stderr=stderr, status=status, asked=asked)
    with pytest.raises(SourceError, match=words) as caught:
        backend.open()
    assert (caught.value.reason, advice in caught.value.advice) == (reason, True)
    assert "no GPU is driven by hydcu or hycu or amdgpu here" in caught.value.message


def test_hardware_without_its_driver_and_its_tool(tree: Tree) -> None:
    machines.hygon(tree).unbind()
    assert registry.load("hygon").detect().present
    with pytest.raises(SourceError, match="hy-smi or rocm-smi was not found in PATH, /opt/hyhal/bin") as caught:
        registry.load("hygon").open()
    assert (caught.value.reason, caught.value.advice) == (Reason.DRIVER_UNAVAILABLE, hygon.COMMAND.install)


# AMD's command of the same name


def test_two_commands_of_one_name_each_serve_their_own_vendor(tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In either order in ``PATH``, on a machine of which no files are to be seen."""
    (tmp_path / "dtk").mkdir()
    (tmp_path / "rocm").mkdir()
    ours, theirs = CommandStandIn(tmp_path / "dtk", "rocm-smi"), RocmSmiStandIn(tmp_path / "rocm")
    answer(ours, 0)
    theirs.behave(output("mi250_pair_5_4"))
    for directories in ((ours.directory, theirs.directory), (theirs.directory, ours.directory)):
        monkeypatch.setenv("PATH", ":".join(map(str, directories)))
        assert [device.uuid for device in amd.pinned("rocm-smi").open().devices] == ["0x7d4e1f2a90b3c611", "0x7d4e1f2a90b3c612"]
        assert [device.uuid for device in backend.open().devices] == ["0x5c88007bd1f20a00"]
    monkeypatch.setenv("PATH", str(theirs.directory))
    with pytest.raises(SourceError, match="is a tool of another vendor") as caught:
        backend.open()
    assert (caught.value.reason, hygon.COMMAND.install in caught.value.advice) == (Reason.DRIVER_UNAVAILABLE, True)


def test_a_card_of_amds_is_left_to_its_backend(tree: Tree, tool: CommandStandIn) -> None:
    """Should the command list one."""
    tree.device("0000:09:00.0", {}, vendor="0x1002")
    tree.device("0000:0a:00.0", {}, vendor="0x1d94", driver="")
    answer(tool, 0, 1)
    (device,) = backend.pinned("hy-smi").open().devices
    assert (device.vendor_index, device.pci_bus_id) == (1, "0000:0a:00.0")


def test_fuzz_documents_and_lines() -> None:
    cards = {number: card(number) for number in (0, 1)}
    fuzz(TOOL, parse, document(cards), document(cards, commas=False), lines(cards))
    fuzz(TOOL, parse, document({0: about(0)}), source="hy-smi --show")


def test_fuzz_tables() -> None:
    fuzz(TOOL, parse_table, table(0, 1), table(0, word="DCU"), table(0, 1, coders=True), source="hy-smi, its table")
