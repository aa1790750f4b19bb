"""A machine with an accelerator of each of many vendors: keys, order, time and words."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import pytest

from accelmetrics import Sampler, Snapshot
from accelmetrics.backends import registry
from accelmetrics.cli.main import main
from accelmetrics.sampling.sources import SourceRegistry
from accelmetrics.visibility.verify import verify
from tests.simulators import rebellions
from tests.simulators.tenstorrent import TenstorrentTree
from tests.support.machines import VENDORS, Machine, many_vendors
from tests.support.waiting import wait_for

TIMEOUT = 1.0
"""Seconds that a reading may take."""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Machine, None, None]:
    """The machine, as this process sees it from now on, in which nothing was read yet."""
    with many_vendors(tmp_path) as made:
        made.gpus.load()
        for name in ("ACCELMETRICS_SYSROOT", "PATH"):
            monkeypatch.setenv(name, made.environment()[name])
        for directory in made.modules:
            monkeypatch.syspath_prepend(directory)
        monkeypatch.setattr("accelmetrics.sampling.sampler.SHARED", SourceRegistry())
        registry.forget()
        yield made
    registry.forget()


def vendors(snapshot: Snapshot) -> dict[str, str]:
    """How each vendor's backend fared."""
    return {status.name: status.status for status in snapshot.backends if status.name in VENDORS}


def all_read(snapshot: Snapshot) -> bool:
    return set(vendors(snapshot).values()) == {"ok"}


@pytest.mark.usefixtures("machine")
def test_every_vendor_is_read_and_no_key_is_anothers() -> None:
    with Sampler(timeout=TIMEOUT) as sampler:
        wait_for(lambda: all_read(sampler.sample()), what=lambda: vendors(sampler.sample()))
        snapshot = sampler.sample()
        assert vendors(snapshot) == dict.fromkeys(VENDORS, "ok")
        assert max(Counter(device.key for device in snapshot.devices).values()) == 1
        assert len({device.vendor for device in snapshot.devices}) == len(VENDORS)
        order = [device.key for device in snapshot.devices]
        assert order == [device.key for device in sampler.sample().devices]
        # Devices of a kind are numbered vendor by vendor, in the order of the registry, not by which one answered first.
        assert [status.name for status in snapshot.backends] == list(registry.names())
        for kind in {device.kind for device in snapshot.devices}:
            numbers = [device.index for device in snapshot.devices if device.kind == kind]
            assert numbers == sorted(numbers)


@pytest.mark.parametrize("vendor", ["nvidia", "rebellions"])
def test_one_vendor_that_hangs_costs_only_itself(machine: Machine, vendor: str) -> None:
    """A library that never returns and a command that never ends: readings stay in time, and the others' values are new."""
    with Sampler(timeout=TIMEOUT) as sampler:
        wait_for(lambda: all_read(sampler.sample()))
        if vendor == "nvidia":
            machine.gpus.rule("nvmlDeviceGetTemperature", hang=True)
        else:
            machine.commands["rbln-smi"].behave("", hang=True)
        wait_for(lambda: vendors(sampler.sample())[vendor] != "ok")

        def others_are_well() -> bool:
            began = time.monotonic()
            fared = vendors(sampler.sample())
            return fared == dict.fromkeys(VENDORS, "ok") | {vendor: fared[vendor]} and time.monotonic() - began < 2 * TIMEOUT

        wait_for(others_are_well, what=lambda: vendors(sampler.sample()))
        machine.gpus.release("nvmlDeviceGetTemperature")


@pytest.mark.usefixtures("machine")
def test_doctor_names_each_vendor_once_on_lines_that_fit(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    printed = capsys.readouterr().out
    works, _, absent = printed.partition("\nNOT HERE\n")
    assert [line.partition(":")[0] for line in works.splitlines() if ": works" in line] == [*VENDORS, "host"]
    assert not [name for name in VENDORS if f"\n{name}:" in absent]
    assert max(map(len, printed.splitlines())) <= 100


@pytest.mark.parametrize("vendor", ["rebellions", "tenstorrent"])
def test_sixty_four_devices_of_one_vendor_are_read_in_time_and_in_order(machine: Machine, vendor: str) -> None:
    """By a command, and by files that are read at each reading."""
    if vendor == "rebellions":
        machine.command("rbln-smi", rebellions.listing(*map(rebellions.npu, range(64))))
    else:
        for number in range(1, 64):
            TenstorrentTree(machine.root).card(number)
    with Sampler([vendor], timeout=TIMEOUT) as sampler:
        wait_for(lambda: len(sampler.sample().devices) == 64)
        snapshot = sampler.sample()
    assert [device.key for device in snapshot.devices] == [f"npu.{number}" for number in range(64)]
    assert [device.vendor_index for device in snapshot.devices] == list(range(64))
    assert all(device.metrics.power_watts is not None for device in snapshot.devices)
    assert snapshot.backends[0].status == "ok"


@pytest.mark.usefixtures("machine")
def test_a_second_source_is_held_against_the_devices_of_its_own_vendor() -> None:
    """Though a device of another one has the number of one that it lists without an address."""
    found = verify(1.0, backends=["furiosa", "moorethreads", "vastai"], timeout=30.0)
    assert {one.key.rpartition(".")[0] for one in found.comparisons if one.reference == "furiosa-smi status"} == {"furiosa", "npu.0"}
    assert not [one.key for one in found.comparisons if one.result == "differs"]
