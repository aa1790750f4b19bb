"""FuriosaAI NPUs, from the driver's files and a command that prints as ``furiosa-smi`` does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from accelmetrics import Sampler
from accelmetrics.backends import furiosa, registry
from accelmetrics.backends.kit.processes import node_pattern
from accelmetrics.schemas.errors import Reason, SourceError
from accelmetrics.schemas.identity import DeviceIdentity, DeviceProcess
from accelmetrics.testing import FakeClock
from tests.simulators.commands import CommandStandIn
from tests.simulators.furiosa import FuriosaTree, info, listing, status
from tests.support.waiting import until

VALUES = {
    "coresAllocated": 3,
    "temp": 41.25,
    "powerWatts": 39,
    "memoryAllocatedBytes": 2**30,
    "memoryTotalBytes": 51002736640,
    "memoryFreeBytes": 51002736640 - 2**30,
    "memoryAllocated": pytest.approx(2.1053, abs=1e-4),
}


@pytest.fixture
def tree(root: Path) -> FuriosaTree:
    return FuriosaTree(root)


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CommandStandIn:
    stand_in = CommandStandIn(tmp_path, "furiosa-smi")
    monkeypatch.setenv("PATH", stand_in.path)
    return stand_in


def says(tool: CommandStandIn, *numbers: int) -> None:
    """Both subcommands list these devices."""
    tool.behave(listing(*map(info, numbers)), asked="info")
    tool.behave(listing(*map(status, numbers)), asked="status")


@pytest.fixture
def sampler(tree: FuriosaTree, tool: CommandStandIn, clock: FakeClock) -> Iterator[Sampler]:
    """Of two cards."""
    tree.card(0)
    tree.card(1)
    says(tool, 0, 1)
    with Sampler(["furiosa"], clock=clock) as made:
        yield made


def test_every_metric_and_who_a_card_is(sampler: Sampler, tree: FuriosaTree, tool: CommandStandIn) -> None:
    tree.occupied(0, 0, 1, 7)
    snapshot = sampler.sample()
    assert {key: value for key, value in snapshot.metrics.items() if key.startswith("npu.0.")} == {
        f"npu.0.{name}": value for name, value in VALUES.items()
    }
    assert (snapshot.metrics["npu.1.temp"], snapshot.metrics["npu.1.coresAllocated"]) == (42.25, 0)
    assert set(snapshot.unavailable) == {"npu.0.utilization", "npu.1.utilization"}
    assert snapshot.devices[0].identity == DeviceIdentity(
        "npu",
        "furiosa",
        0,
        name="rngd",
        uuid="7A1B2C3D-0000-4000-8000-000000000000",
        pci_bus_id="0000:30:00.0",
        serial="RNGD000000",
        driver_version="2026.1.2, 0badcafe",
        firmware="2026.1.0, 5c0ffee",
        memory_total_bytes=51002736640,
        numa_node=0,
    )
    assert (snapshot.backends[0].source, snapshot.backends[0].status) == ("sysfs+furiosa-smi info+furiosa-smi status", "ok")
    assert tool.calls == [["info", "--format", "json"], ["status", "--format", "json"]]


def test_the_share_of_time_is_never_given(sampler: Sampler, tool: CommandStandIn) -> None:
    """A 1.0 may be all of the time or a hundredth of it."""
    tool.behave(listing(status(0, cores=(0, 1)), status(1)), asked="status")
    snapshot = sampler.sample()
    assert [snapshot.unavailable[f"npu.{number}.utilization"].reason for number in range(2)] == [Reason.NOT_SUPPORTED] * 2
    assert "in percent or as a ratio" in snapshot.unavailable["npu.0.utilization"].detail


def test_rows_in_another_order_and_keys_that_are_not_known(sampler: Sampler, tool: CommandStandIn) -> None:
    tool.behave(f"warning: new release\n{listing(info(1, pert='x'), info(0))}", asked="info")
    tool.behave(listing(status(1, used=7), status(0, extra={"a": 1})), asked="status")
    metrics = sampler.sample().metrics
    assert (metrics["npu.0.temp"], metrics["npu.1.temp"]) == (41.25, 42.25)
    assert (metrics["npu.0.memoryAllocatedBytes"], metrics["npu.1.memoryAllocatedBytes"]) == (2**30, 7)


def test_numbers_that_change_when_the_driver_is_loaded_again(
    sampler: Sampler, tree: FuriosaTree, tool: CommandStandIn, clock: FakeClock
) -> None:
    """A card keeps its key, and gets what the tool prints under its new number."""
    sampler.sample()
    for number in range(2):
        tree.remove(number)
    tree.card(0, which=1)
    tree.card(1, which=0)
    tree.occupied(1, 4)
    tool.behave(listing(info(0, which=1), info(1, which=0)), asked="info")
    tool.behave(listing(status(0, used=111), status(1, used=222)), asked="status")
    snapshot = until(sampler, clock, lambda latest: latest.metrics.get("npu.0.memoryAllocatedBytes") == 222)
    assert [device.identity.vendor_index for device in snapshot.devices] == [1, 0]
    assert (snapshot.metrics["npu.0.temp"], snapshot.metrics["npu.0.coresAllocated"]) == (41.25, 1)
    assert snapshot.metrics["npu.1.memoryAllocatedBytes"] == 111


def test_an_older_release_has_no_memory(sampler: Sampler, tool: CommandStandIn) -> None:
    old = status(0)
    del old["memory"]
    tool.behave(listing(old), asked="status")
    snapshot = sampler.sample()
    assert snapshot.unavailable["npu.0.memoryAllocatedBytes"].reason == Reason.NOT_SUPPORTED
    assert snapshot.metrics["npu.0.temp"] == 41.25


@pytest.mark.parametrize(
    ("printed", "reason"),
    [
        ("N/A", Reason.NOT_SUPPORTED),
        ("", Reason.NOT_SUPPORTED),
        (None, Reason.NOT_SUPPORTED),
        ("warm", Reason.PARSE_ERROR),
        ("40 W", Reason.PARSE_ERROR),
        ("9999°C", Reason.INVALID_VALUE),
    ],
)
def test_every_form_of_nothing(sampler: Sampler, tool: CommandStandIn, printed: object, reason: Reason) -> None:
    tool.behave(listing(info(0, temperature=printed), info(1)), asked="info")
    snapshot = sampler.sample()
    assert snapshot.unavailable["npu.0.temp"].reason == reason
    assert snapshot.metrics["npu.0.powerWatts"] == 39


@pytest.mark.parametrize("printed", ["", "2\n0", "0 0 0 0 x 0 0 0", "\x00"])
def test_cores_in_another_form_are_counted_by_the_tool_or_not_at_all(
    sampler: Sampler, tree: FuriosaTree, tool: CommandStandIn, printed: str
) -> None:
    FuriosaTree.write(tree.directory(0) / "pe_occupancy", printed)
    tool.behave(listing(status(0, cores=(2, 3)), status(1)), asked="status")
    assert sampler.sample().metrics.get("npu.0.coresAllocated") == 2


@pytest.mark.parametrize("pes", [None, 8, "all", [], [{"pe_occupancy": []}], [1, 2], {"pe_core": 0}])
def test_cores_that_make_no_sense_cost_nothing_else(tree: FuriosaTree, tool: CommandStandIn, clock: FakeClock, pes: object) -> None:
    tree.card(0)
    FuriosaTree.write(tree.directory(0) / "pe_occupancy", "")
    says(tool, 0)
    tool.behave(listing(status(0, pe_utilizations=pes)), asked="status")
    with Sampler(["furiosa"], clock=clock) as sampler:
        snapshot = sampler.sample()
    assert snapshot.unavailable["npu.0.coresAllocated"].reason in {Reason.NOT_SUPPORTED, Reason.PARSE_ERROR}
    assert snapshot.metrics["npu.0.memoryAllocatedBytes"] == 2**30


@pytest.mark.parametrize(
    ("stdout", "stderr", "code", "reason", "words"),
    [
        (listing(status(0))[:-40], "", 0, Reason.PARSE_ERROR, "furiosa-smi"),
        ("", "Permission denied (os error 13)", 1, Reason.NO_PERMISSION, "Permission denied"),
        ("", "thread 'main' panicked", 101, Reason.DRIVER_ERROR, "panicked"),
        ('{"error": "busy"}', "", 0, Reason.PARSE_ERROR, "no list of devices"),
        ("garbage", "", 0, Reason.PARSE_ERROR, "no JSON"),
    ],
)
def test_a_subcommand_that_fails_costs_what_it_alone_tells(
    sampler: Sampler, tool: CommandStandIn, stdout: str, stderr: str, code: int, reason: Reason, words: str
) -> None:
    tool.behave(stdout, stderr=stderr, status=code, asked="status")
    snapshot = sampler.sample()
    why = snapshot.unavailable["npu.0.memoryAllocatedBytes"]
    assert why.reason == reason and words in why.detail
    assert (snapshot.metrics["npu.0.temp"], snapshot.metrics["npu.0.coresAllocated"]) == (41.25, 0)


def test_a_tool_that_hangs_costs_what_it_alone_tells(
    tree: FuriosaTree, tool: CommandStandIn, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits while a model is loaded."""
    monkeypatch.setattr("accelmetrics.backends.kit.commands.Command.run", hanging)
    del tool
    tree.card(0)
    with Sampler(["furiosa"], clock=clock) as sampler:
        snapshot = sampler.sample()
    assert snapshot.metrics == {"npu.0.coresAllocated": 0}
    assert snapshot.unavailable["npu.0.temp"].reason == Reason.TIMED_OUT


def hanging(*_: object) -> None:
    """What a run comes to that is killed at its deadline."""
    raise SourceError(Reason.TIMED_OUT, "furiosa-smi gave no answer in 4 s and was killed")


def test_without_the_tool_the_files_are_read(tree: FuriosaTree, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    tree.card(0)
    tree.occupied(0, 5)
    with Sampler(["furiosa"], clock=clock) as sampler:
        snapshot = sampler.sample()
    assert snapshot.metrics == {"npu.0.coresAllocated": 1}
    why = snapshot.unavailable["npu.0.powerWatts"]
    assert why == (Reason.DRIVER_UNAVAILABLE, "furiosa-smi was not found in PATH: install the package furiosa-smi")
    assert snapshot.devices[0].identity.serial == "RNGD000000"


def test_without_the_files_the_tool_is_read(tree: FuriosaTree, tool: CommandStandIn, clock: FakeClock) -> None:
    """As in a container that has no more of ``/sys``."""
    (tree.root / "sys").mkdir()
    says(tool, 0)
    tool.behave(listing(status(0, cores=(1,))), asked="status")
    with Sampler(["furiosa"], clock=clock) as sampler:
        snapshot = sampler.sample()
    (device,) = snapshot.devices
    assert (device.identity.uuid[-1], snapshot.metrics["npu.0.coresAllocated"], snapshot.metrics["npu.0.temp"]) == ("0", 1, 41.25)


def test_a_card_that_goes_is_lost_and_comes_back(sampler: Sampler, tree: FuriosaTree, tool: CommandStandIn, clock: FakeClock) -> None:
    sampler.sample()
    tree.remove(0)
    says(tool, 1)
    lost = until(sampler, clock, lambda latest: "npu.0.temp" in latest.unavailable)
    assert lost.unavailable["npu.0.temp"].reason == Reason.DEVICE_LOST
    assert lost.metrics["npu.1.temp"] == 42.25
    tree.card(0)
    says(tool, 0, 1)
    assert until(sampler, clock, lambda latest: "npu.0.temp" in latest.metrics).metrics["npu.0.temp"] == 41.25


def test_who_uses_a_card(tree: FuriosaTree, tool: CommandStandIn, clock: FakeClock) -> None:
    """Who holds nodes of its cores; where not every process is seen, one without such a process has none only if no core is held."""
    for number in range(3):
        tree.card(number)
    tree.occupied(0, *range(8))
    tree.occupied(2, 0)
    tree.holding(501, "npu0pe0-7", "npu0bar2", "npu1mgmt")
    tree.holding(502, "npu0pe3")
    says(tool, 0, 1, 2)
    with Sampler(["furiosa"], clock=clock) as sampler:
        first, second, third = sampler.sample().devices
    assert first.processes == (DeviceProcess(501, "compute"), DeviceProcess(502, "compute"))
    assert (second.processes, third.processes) == ((), None)
    nodes = node_pattern(DeviceIdentity("npu", "furiosa", 0))
    assert re.fullmatch(furiosa.CORE, "/dev/rngd/npu0pe0-7") and nodes == r"/dev/rngd/npu\d+(-\d+)?pe\d+(-\d+)?"


def test_without_its_driver_the_card_is_found_and_not_read(tree: FuriosaTree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    backend = registry.load("furiosa")
    assert backend.detect()[:2] == (False, "no device of FuriosaAI (0x1ed2) on the PCI bus, no /dev/rngd/npu*mgmt")
    tree.card(0, driven=False)
    found = backend.detect()
    assert (found.present, found.devices) == (True, 1)
    assert "load the kernel driver" in found.advice
    with pytest.raises(SourceError, match="furiosa-smi was not found") as caught:
        backend.open()
    assert (caught.value.reason, caught.value.advice) == (Reason.DRIVER_UNAVAILABLE, "install the package furiosa-smi")
    tree.card(1)
    assert backend.detect().devices == 2


@pytest.mark.parametrize("odd", [None, 7, "npu1", {}, {"device": "gpu1"}, {"device": ["npu1"]}, status(0)])
def test_something_that_is_no_device_of_its_own_costs_no_other(sampler: Sampler, tool: CommandStandIn, odd: object) -> None:
    tool.behave(listing(status(0), odd, status(1, used=5)), asked="status")
    snapshot = sampler.sample()
    assert (snapshot.metrics["npu.0.memoryAllocatedBytes"], snapshot.metrics["npu.1.memoryAllocatedBytes"]) == (2**30, 5)
