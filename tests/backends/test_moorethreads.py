"""Moore Threads GPUs, from a command that prints as ``mthreads-gmi`` does."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from accelmetrics import Sampler
from accelmetrics.backends.contract import SYSTEM_CLOCK
from accelmetrics.backends.moorethreads import backend, parse, parse_table
from accelmetrics.schemas.errors import Reason
from accelmetrics.schemas.identity import DeviceIdentity, DeviceProcess
from tests.simulators.commands import CommandStandIn
from tests.simulators.moorethreads import IDLE, gpu, process, query, table
from tests.support.fuzzing import fuzz
from tests.support.readings import of, read

MIB = 1 << 20
IN_BOTH = {
    "gpu": 63,
    "memoryAllocatedBytes": 12288 * MIB,
    "memoryTotalBytes": 49152 * MIB,
    "memoryFreeBytes": 36864 * MIB,
    "memoryAllocated": 25,
    "temp": 54,
    "performanceState": 2,
}
OF_THE_QUERY = {
    "powerWatts": 188.5,
    "enforcedPowerLimitWatts": 450,
    "defaultPowerLimitWatts": 450,
    "maxPowerLimitWatts": 470,
    "powerPercent": pytest.approx(41.89, abs=0.01),
    "smClock": 1750,
    "memoryClock": 8000,
}
OF_THE_TABLE = {"pcieLinkWidth": 8, "maxPcieLinkWidth": 16}


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root: Path) -> CommandStandIn:
    """The command on a machine with two GPUs."""
    del root
    stand_in = CommandStandIn(tmp_path, "mthreads-gmi")
    monkeypatch.setenv("PATH", stand_in.path)
    stand_in.behave(query(gpu(0), gpu(1)), asked="-q")
    stand_in.behave(table(0, 1))
    return stand_in


def test_every_metric_of_every_gpu(tool: CommandStandIn) -> None:
    snapshot = read("moorethreads")
    assert of(snapshot) == IN_BOTH | OF_THE_QUERY | OF_THE_TABLE
    assert (snapshot.metrics["gpu.1.temp"], snapshot.metrics["gpu.1.powerWatts"], snapshot.unavailable) == (55, 189.5, {})
    first, second = snapshot.devices
    assert first.identity == DeviceIdentity(
        "gpu",
        "moorethreads",
        0,
        name="MTT S4000",
        uuid="a1b2c3d4-0000-4000-8000-000000000000",
        pci_bus_id="00000000:2a:00.0",
        serial="MT2400000000",
        driver_version="3.3.5-server",
        memory_total_bytes=49152 * MIB,
    )
    assert (first.processes, second.processes) == ((), ())
    assert (snapshot.backends[0].source, tool.calls) == ("mthreads-gmi -q+mthreads-gmi", [["-q", "--json"], []])


@pytest.mark.parametrize("perf", [True, False], ids=["for servers", "for desktops"])
def test_a_release_without_the_query_is_read_by_its_table(tool: CommandStandIn, perf: bool) -> None:
    tool.behave("", stderr="mthreads-gmi: unrecognized option '--json'", status=1, asked="-q")
    tool.behave(table(0, 1, perf=perf))
    snapshot = read("moorethreads")
    expected = IN_BOTH | OF_THE_TABLE
    assert of(snapshot) == (expected if perf else {name: expected[name] for name in expected if name != "performanceState"})
    why = snapshot.unavailable["gpu.0.powerWatts"]
    assert why.reason == Reason.DRIVER_ERROR and "unrecognized option" in why.detail
    identity = snapshot.devices[1].identity
    assert (identity.name, identity.pci_bus_id, identity.driver_version) == ("MTT S4000", "00000000:2b:00.0", "3.3.5-server")


def test_a_table_that_fails_costs_what_it_alone_tells(tool: CommandStandIn) -> None:
    tool.behave("", stderr="cannot open /dev/mtgpu.0: Permission denied", status=1)
    snapshot = read("moorethreads")
    assert of(snapshot) == IN_BOTH | OF_THE_QUERY
    assert snapshot.unavailable["gpu.0.pcieLinkWidth"].reason == Reason.NO_PERMISSION
    assert snapshot.devices[0].processes is None


Change = Callable[[dict[str, Any]], Any]


@pytest.mark.parametrize(
    ("change", "metric", "expected"),
    [
        (lambda g: g["Power Readings"].update({"Power Draw ": "N/A"}), "powerWatts", Reason.NOT_SUPPORTED),
        (lambda g: g["Power Readings"].update({"Power Draw ": "[Not Supported]"}), "powerWatts", Reason.NOT_SUPPORTED),
        (lambda g: g["Power Readings"].update({"Power Draw ": ""}), "powerWatts", Reason.NOT_SUPPORTED),
        (lambda g: g["Power Readings"].update({"Power Draw ": "188500 mW"}), "powerWatts", 188.5),
        (lambda g: g.update({"Power Readings": {"Power Draw": "12.25W"}}), "powerWatts", 12.25),
        (lambda g: g["Power Readings"].update({"Current Power Limit": "0W"}), "enforcedPowerLimitWatts", Reason.NOT_SUPPORTED),
        (lambda g: g["Power Readings"].update({"Max Power Limit": "0W"}), "maxPowerLimitWatts", Reason.NOT_SUPPORTED),
        (lambda g: g["Power Readings"].update({"Power Draw ": "99999W"}), "powerWatts", Reason.INVALID_VALUE),
        (lambda g: g.pop("Power Readings"), "powerWatts", Reason.NOT_SUPPORTED),
        (lambda g: g["Temperature"].update({"GPU Current Temp": "255C"}), "temp", Reason.INVALID_VALUE),
        (lambda g: g["Temperature"].update({"GPU Current Temp": "warm"}), "temp", Reason.PARSE_ERROR),
        (lambda g: g["FB Memory Usage"].update({"Total": "48GiB"}), "memoryTotalBytes", 48 << 30),
        (lambda g: g["FB Memory Usage"].update({"Total": "0MiB"}), "memoryTotalBytes", Reason.NOT_SUPPORTED),
        (lambda g: g.update({"Performance State": "N/A"}), "performanceState", Reason.NOT_SUPPORTED),
        (lambda g: g.update({"Performance State": "P16"}), "performanceState", Reason.INVALID_VALUE),
        (lambda g: g.update({"Utilization": "N/A"}), "gpu", Reason.NOT_SUPPORTED),
    ],
)
def test_values_as_they_are_printed(tool: CommandStandIn, change: Change, metric: str, expected: float | Reason) -> None:
    """Every form of nothing is a reason, and never 0. The table has nothing either, so that it stands in for nothing."""
    device = gpu(0)
    change(device)
    tool.behave(query(device), asked="-q")
    tool.behave(table(0, changes={"%GPU": "N/A", "Mem": "N/A(N/A)", "Perf": "N/A", "Width": "N/A(N/A)", "Temp": "N/A"}))
    snapshot = read("moorethreads")
    why = snapshot.unavailable.get(f"gpu.0.{metric}")
    assert (why.reason if why else snapshot.metrics[f"gpu.0.{metric}"]) == expected


def test_more_used_than_there_is_has_no_share(tool: CommandStandIn) -> None:
    """As where the IOMMU is off."""
    tool.behave(query(gpu(0, **{"FB Memory Usage": {"Total": "16384MiB", "Used": "20000MiB"}})), asked="-q")
    tool.behave("", status=1)
    snapshot = read("moorethreads")
    assert (snapshot.metrics["gpu.0.memoryAllocatedBytes"], snapshot.metrics["gpu.0.memoryTotalBytes"]) == (20000 * MIB, 16384 * MIB)
    reasons = {snapshot.unavailable[f"gpu.0.{name}"].reason for name in ("memoryAllocated", "memoryFreeBytes")}
    assert reasons == {Reason.INVALID_VALUE}


@pytest.mark.parametrize("key", ["Bus Id", "PCI/Bus ID", "Bus Id "])
def test_the_address_by_the_end_of_its_key(tool: CommandStandIn, key: str) -> None:
    tool.behave(query(gpu(0, PCI={"Device ID": "0x0327", key: "00000000:2A:00.0"}), gpu(1)), asked="-q")
    snapshot = read("moorethreads")
    assert snapshot.devices[0].identity.pci_bus_id == "00000000:2A:00.0"
    assert snapshot.metrics["gpu.0.pcieLinkWidth"] == 8


def test_who_uses_a_gpu(tool: CommandStandIn) -> None:
    rows = (process(0, os.getpid(), "1024MiB"), process(1, 4242, "N/A", "/usr/lib/xorg/Xorg"), process(1, 4243, "2.5GiB", "x" * 37))
    tool.behave(table(0, 1, processes=rows))
    with Sampler(["moorethreads"], clock=SYSTEM_CLOCK, pid=os.getpid()) as sampler:
        snapshot = sampler.sample()
    first, second = snapshot.devices
    assert first.processes == (DeviceProcess(os.getpid(), memory_bytes=1024 * MIB),)
    assert second.processes == (DeviceProcess(4242), DeviceProcess(4243, memory_bytes=2560 * MIB))
    assert snapshot.metrics["gpu.process.0.memoryAllocatedBytes"] == 1024 * MIB
    assert not any(key.startswith("gpu.process.1.") for key in snapshot.metrics)


def test_a_table_without_processes_does_not_say_that_there_are_none(tool: CommandStandIn) -> None:
    tool.behave(table(0, 1).partition("Processes:")[0])
    assert read("moorethreads").devices[0].processes is None


def test_fuzz_query() -> None:
    fuzz(backend, parse, query(gpu(0), gpu(1)))


def test_fuzz_table() -> None:
    rows = (process(0, 1123), process(1, 4242))
    fuzz(backend, parse_table, table(0, 1, processes=rows), table(0, perf=False, processes=(IDLE,)), source="mthreads-gmi")


def test_the_order_of_rows_and_of_keys_makes_no_difference(tool: CommandStandIn) -> None:
    tool.behave(query(dict(reversed(gpu(1).items())), gpu(0)), asked="-q")
    tool.behave(table(1, 0))
    snapshot = read("moorethreads")
    assert of(snapshot) == IN_BOTH | OF_THE_QUERY | OF_THE_TABLE
    assert snapshot.metrics["gpu.1.temp"] == 55


@pytest.mark.parametrize("odd", [None, [], "gpu", 7])
def test_something_that_is_no_gpu_costs_no_other(tool: CommandStandIn, odd: object) -> None:
    tool.behave(query(gpu(0), odd, gpu(1)), asked="-q")
    assert [read("moorethreads").metrics[f"gpu.{number}.powerWatts"] for number in (0, 1)] == [188.5, 189.5]
