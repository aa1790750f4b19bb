"""Rebellions NPUs, from a command that prints as ``rbln-smi`` does."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from accelmetrics import Sampler
from accelmetrics.backends.contract import SYSTEM_CLOCK
from accelmetrics.backends.rebellions import backend, parse
from accelmetrics.backends.visible import visibility
from accelmetrics.schemas.errors import Reason
from accelmetrics.schemas.identity import DeviceIdentity
from tests.simulators.commands import CommandStandIn
from tests.simulators.rebellions import context, grouped_context, listing, npu
from tests.support.fuzzing import fuzz

VALUES = {
    "utilization": 12.5,
    "temp": 41,
    "powerWatts": 38.5,
    "performanceState": 14,
    "memoryAllocatedBytes": 1073741824,
    "memoryTotalBytes": 16911433728,
    "memoryAllocated": pytest.approx(6.349, abs=1e-3),
    "memoryFreeBytes": 15837691904,
    "pcieLinkGen": 5,
    "pcieLinkWidth": 16,
}


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CommandStandIn:
    stand_in = CommandStandIn(tmp_path, "rbln-smi")
    monkeypatch.setenv("PATH", stand_in.path)
    return stand_in


@pytest.fixture
def sampler(tool: CommandStandIn) -> Iterator[Sampler]:
    """A clock of its own gives it a numbering of its own."""
    tool.behave(listing(npu(0), npu(1)))
    with Sampler(["rebellions"], clock=SYSTEM_CLOCK) as made:
        yield made


def test_every_metric_of_every_npu(sampler: Sampler, tool: CommandStandIn) -> None:
    snapshot = sampler.sample()
    assert {key: value for key, value in snapshot.metrics.items() if key.startswith("npu.0.")} == {
        f"npu.0.{name}": value for name, value in VALUES.items()
    }
    assert snapshot.metrics["npu.1.temp"] == 42
    assert snapshot.unavailable == {}
    assert tool.calls == [["--json"]]
    (first, _) = snapshot.devices
    assert first.identity == DeviceIdentity(
        "npu",
        "rebellions",
        0,
        name="RBLN-CA22",
        uuid="0f0e9d8c-0000-4000-8000-000000000000",
        pci_bus_id="0000:51:00.0",
        serial="00250000",
        driver_version="3.0.1",
        firmware="1.4.2",
        memory_total_bytes=16911433728,
        numa_node=1,
    )
    assert (first.processes, snapshot.backends[0].source) == ((), "rbln-smi")


@pytest.mark.parametrize(
    ("printed", "watts"),
    [("38W", 38), ("38.25 W", 38.25), ("38250mW", 38.25), ("38250000 uW", 38.25), ("N/A", None), ("", None), ("9999W", None)],
)
def test_power_has_the_unit_that_is_printed(sampler: Sampler, tool: CommandStandIn, printed: str, watts: float | None) -> None:
    tool.behave(listing(npu(0, card_power=printed)))
    snapshot = sampler.sample()
    assert snapshot.metrics.get("npu.0.powerWatts") == watts
    assert ("npu.0.powerWatts" in snapshot.unavailable) == (watts is None)


def test_older_releases_print_numbers_as_text_and_leave_keys_out(sampler: Sampler, tool: CommandStandIn) -> None:
    device = npu(0, npu="0", util="7%", memory={"used": "512 MiB", "total": "16 GiB"})
    del device["temperature"]
    tool.behave(f"WARNING: deprecated\n{listing(device)}")
    snapshot = sampler.sample()
    assert (snapshot.metrics["npu.0.utilization"], snapshot.metrics["npu.0.memoryAllocatedBytes"]) == (7, 512 * 2**20)
    assert snapshot.unavailable["npu.0.temp"] == (Reason.NOT_SUPPORTED, 'rbln-smi does not report "temperature"')


@pytest.mark.parametrize(("printed", "state"), [("P2", 2), ("P14", 14), ("N/A", None), ("", None), ("P16", None), ("idle", None)])
def test_performance_states(sampler: Sampler, tool: CommandStandIn, printed: str, state: int | None) -> None:
    tool.behave(listing(npu(0, pstate=printed)))
    snapshot = sampler.sample()
    assert snapshot.metrics.get("npu.0.performanceState") == state
    assert ("npu.0.performanceState" in snapshot.unavailable) == (state is None)


def test_npus_of_one_card_have_its_power_once(sampler: Sampler, tool: CommandStandIn) -> None:
    tool.behave(listing(npu(0), npu(1, sid=npu(0)["sid"])))
    snapshot = sampler.sample()
    assert snapshot.metrics["npu.0.powerWatts"] == 38.5
    assert snapshot.unavailable["npu.1.powerWatts"] == (Reason.NOT_SUPPORTED, "rbln-smi reports it for the whole card, and NPU 0 has it")


def test_who_uses_an_npu(tool: CommandStandIn) -> None:
    contexts = (context(0, os.getpid(), "262144000"), context(0, 4242, "1000"), context(1, 4242, "N/A"))
    tool.behave(listing(npu(0), npu(1), contexts=contexts))
    with Sampler(["rebellions"], clock=SYSTEM_CLOCK, pid=os.getpid()) as sampler:
        snapshot = sampler.sample()
    first, second = snapshot.devices
    assert [(process.pid, process.memory_bytes) for process in first.processes or ()] == [(os.getpid(), 262144000), (4242, 1000)]
    assert [(process.pid, process.memory_bytes) for process in second.processes or ()] == [(4242, None)]
    assert snapshot.metrics["npu.process.0.memoryAllocatedBytes"] == 262144000
    assert not any(key.startswith("npu.process.1.") for key in snapshot.metrics)


def holding(root: Path, pid: int, *nodes: int) -> None:
    """A process that has these device nodes open."""
    descriptors = root / f"proc/{pid}/fd"
    descriptors.mkdir(parents=True)
    for descriptor, number in enumerate(nodes, 3):
        (descriptors / str(descriptor)).symlink_to(f"/dev/rbln{number}")


def test_numbers_that_begin_anew_in_each_group_cost_no_npu_and_no_context(
    tool: CommandStandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contexts are on the NPU of their number whose node their process holds open."""
    monkeypatch.setenv("ACCELMETRICS_SYSROOT", str(tmp_path))
    holding(tmp_path, 501, 0, 1)
    holding(tmp_path, 502, 2)
    contexts = (
        grouped_context(1, 0, 501, "2.5GiB"),
        grouped_context(2, 0, 501, "10.0MiB"),
        grouped_context(3, 1, 501, "1.0GiB"),
        grouped_context(4, 0, 502, "3.0GiB"),
    )
    tool.behave(listing(npu(0), npu(1), npu(2, npu=0), npu(3, npu=1), contexts=contexts))
    with Sampler(["rebellions"], clock=SYSTEM_CLOCK) as sampler:
        snapshot = sampler.sample()
    assert [device.identity.vendor_index for device in snapshot.devices] == [0, 1, 2, 3]
    assert [snapshot.metrics[f"npu.{number}.temp"] for number in range(4)] == [41, 42, 43, 44]
    found = [[(each.pid, each.memory_bytes) for each in device.processes or ()] for device in snapshot.devices]
    assert found == [[(501, 2570 * 2**20)], [(501, 2**30)], [(502, 3 * 2**30)], []]


def test_a_context_that_several_npus_may_have_is_given_to_none(
    tool: CommandStandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a process that is not seen, or holds several NPUs of one number."""
    monkeypatch.setenv("ACCELMETRICS_SYSROOT", str(tmp_path))
    holding(tmp_path, 501, 0, 2)
    contexts = (grouped_context(1, 0, 501, "1GiB"), grouped_context(2, 0, 777, "1GiB"), grouped_context(3, 1, 777, "2GiB"))
    tool.behave(listing(npu(0), npu(1), npu(2, npu=0), contexts=contexts))
    with Sampler(["rebellions"], clock=SYSTEM_CLOCK) as sampler:
        first, second, third = sampler.sample().devices
    assert [(each.pid, each.memory_bytes) for each in second.processes or ()] == [(777, 2**31)]
    assert first.processes is third.processes is None


@pytest.mark.parametrize("odd", [None, [], "npu", 7])
def test_something_that_is_no_device_costs_no_other(sampler: Sampler, tool: CommandStandIn, odd: object) -> None:
    document = json.loads(listing(npu(0), npu(1)))
    document["devices"].insert(1, odd)
    document["contexts"] = [odd, {"npu": [], "pid": {}}, context(1, 4242, "1000")]
    tool.behave(json.dumps(document))
    snapshot = sampler.sample()
    assert (snapshot.metrics["npu.0.temp"], snapshot.metrics["npu.1.temp"]) == (41, 42)
    assert [each.pid for each in snapshot.devices[1].processes or ()] == [4242]


def test_what_a_program_sees() -> None:
    devices = [DeviceIdentity("npu", "rebellions", number) for number in range(3)]
    assert visibility({}, devices).visible == (True, True, True)
    seen = visibility({"RBLN_DEVICES": "0,2"}, devices)
    assert (seen.visible, seen.positions) == ((True, False, True), (0, None, 1))
    assert visibility({"RBLN_DEVICES": "2,0"}, devices).positions == (1, None, 0)
    assert visibility({"RBLN_DEVICES": "0,nine"}, devices).visible == (None, None, None)
    assert visibility({"RBLN_DEVICES": "0", "RBLN_VISIBLE_DEVICES": "1"}, devices).order == (1,)
    assert visibility({"RBLN_DEVICES": "0", "RBLN_VISIBLE_DEVICES": ""}, devices).order == (0,)
    assert visibility({"RBLN_DEVICES": ""}, devices).order == (0, 1, 2)


def test_a_document_without_contexts() -> None:
    (sample,) = parse(listing(npu(0)).replace('"contexts": []', '"contexts": null'))
    assert sample.processes == ()


def test_fuzz() -> None:
    fuzz(backend, parse, listing(npu(0), npu(1), contexts=(context(0, 42, "262144000"), grouped_context(7, 1, 43, "1.5GiB"))))
