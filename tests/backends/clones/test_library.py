"""Vendors whose libraries have NVML's form, each met as its own library: its names, its functions and its layouts."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from accelmetrics import Sampler, Snapshot
from accelmetrics.backends import enflame, iluvatar, registry, thead
from accelmetrics.backends.built_in import BUILT_IN
from accelmetrics.backends.contract import SYSTEM_CLOCK, ReadOptions
from accelmetrics.backends.nvidia.references import NvidiaSmi
from accelmetrics.backends.visible import visibility
from accelmetrics.schemas.errors import SourceError
from accelmetrics.testing import FakeClock
from accelmetrics.visibility.verify import verify
from tests.backends.clones import tools
from tests.simulators.nvidia_smi import NvidiaSmiStandIn
from tests.simulators.nvml import NvmlSimulator, Process, Ret
from tests.support.waiting import sampled, wait_for

MIB = 1 << 20


class Vendor(NamedTuple):
    """A vendor: its backend, its library, the first words of its keys and of its return codes, and an address of its card."""

    name: str
    library: str
    kind: str
    words: str
    pci: tuple[str, str]


VENDORS = {
    "iluvatar": Vendor("iluvatar", "ixml", "gpu", "NVML", ("0x1e3e", "0x0003")),
    "thead": Vendor("thead", "hgml", "gpu", "HGML", ("0x1ded", "0x6001")),
    "enflame": Vendor("enflame", "efml", "npu", "EFML", ("0x1e36", "0xc035")),
}
Machine = Callable[..., NvmlSimulator]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Machine]:
    """Makes machines of this process, which may have one of each library."""
    monkeypatch.setenv("ACCELMETRICS_SYSROOT", str(tmp_path))
    made: list[NvmlSimulator] = []

    def make(library: str, gpus: int = 2) -> NvmlSimulator:
        simulator = NvmlSimulator(gpus, clone=library)
        made.append(simulator)
        simulator.load()
        return simulator

    yield make
    for simulator in reversed(made):
        simulator.close()


@pytest.fixture(params=list(VENDORS))
def vendor(request: pytest.FixtureRequest) -> Vendor:
    return VENDORS[request.param]


def values(snapshot: Snapshot, device: str) -> dict[str, int | float]:
    return {key.removeprefix(f"{device}."): value for key, value in snapshot.metrics.items() if key.startswith(f"{device}.")}


def test_values_are_those_of_the_library(vendor: Vendor, machine: Machine) -> None:
    simulator = machine(vendor.library)
    simulator.processes(1, [Process(pid=os.getpid(), used=512 * MIB, sm=7)])
    with Sampler([vendor.name], timeout=30.0) as sampler:
        snapshot = sampler.sample()
    gpu, seen = simulator.gpu[1], values(snapshot, f"{vendor.kind}.1")
    expected = {
        "utilization" if vendor.kind == "npu" else "gpu": gpu.get("gpu_util"),
        "memory": gpu.get("memory_util"),
        "temp": gpu.get("temperature"),
        "powerWatts": pytest.approx(float(gpu.get("power_mw")) / 1000),
        "enforcedPowerLimitWatts": float(gpu.get("power_limit_mw" if vendor.library == "ixml" else "power_limit_enforced_mw")) / 1000,
        "smClock": gpu.get("clock_sm"),
        "memoryClock": gpu.get("clock_mem"),
        "memoryTotalBytes": gpu.get("memory_total"),
        "pcieLinkGen": gpu.get("pcie_gen"),
        "pcieLinkWidth": gpu.get("pcie_width"),
        "tempLimit.shutdown": 95,
    }
    assert {name: seen[name] for name in expected} == expected
    assert snapshot.metrics[f"{vendor.kind}.process.1.memoryAllocatedBytes"] == 512 * MIB
    assert [process.pid for process in snapshot.devices[1].processes or ()] == [os.getpid()]
    identity = snapshot.identities[1].identity
    assert (identity.kind, identity.vendor, identity.pci_bus_id) == (vendor.kind, vendor.name, "00000000:19:00.0")
    assert (snapshot.backends[0].status, snapshot.backends[0].source) == ("ok", vendor.library)


OF_THE_TOOL = {
    "iluvatar": {"memoryTemp", "encoderUtilization", "decoderUtilization", "performanceState", "boardPowerWatts"},
    "enflame": {"eccMode"},
}
"""By vendor, the metrics that only its command tells."""


def test_every_metric_that_it_declares_has_a_call_in_its_library(vendor: Vendor, machine: Machine) -> None:
    """Nothing is declared that the vendor's library lacks, and each reason is in its words."""
    machine(vendor.library)
    with Sampler([vendor.name], timeout=30.0, clock=SYSTEM_CLOCK) as sampler:
        snapshot = sampled(sampler, lambda seen: all("interval" not in why.reason for why in seen.unavailable.values()))
    own = {key: why for key, why in snapshot.unavailable.items() if key.startswith(f"{vendor.kind}.0.")}
    of_the_tool = OF_THE_TOOL.get(vendor.name, set())
    lacking = {key.split(".", 2)[2] for key, why in own.items() if "FUNCTION_NOT_FOUND" in why.detail}
    assert lacking == set()
    assert {key.split(".", 2)[2] for key in own} - of_the_tool <= {
        *("fanSpeed", "retiredPagesSingleBit", "retiredPagesDoubleBit", "retiredPagesPending", "c2cLinkSpeed"),
        *("nvlinkCrcErrors", "nvlinkReplayErrors"),
    }
    for why in own.values():
        assert "NVIDIA" not in why.detail
        assert vendor.words == "NVML" or "nvml" not in why.detail.lower()


def test_a_lost_device_costs_no_other_and_comes_back(vendor: Vendor, machine: Machine) -> None:
    simulator, clock = machine(vendor.library), FakeClock()
    with Sampler([vendor.name], timeout=30.0, clock=clock) as sampler:
        sampler.sample()
        simulator.lose(0)
        clock.advance(1.1)
        snapshot = sampler.sample()
        assert {why.reason for key, why in snapshot.unavailable.items() if key.startswith(f"{vendor.kind}.0.")} == {"device_lost"}
        why = snapshot.unavailable[f"{vendor.kind}.0.temp"].detail
        assert f"{vendor.words}_ERROR_G{'C' if vendor.kind == 'npu' else 'P'}U_IS_LOST" in why
        assert f"{vendor.kind}.1.temp" in snapshot.metrics
        simulator.recover(0)
        clock.advance(30.0)
        assert wait_for(lambda: sampler.sample().metrics.get(f"{vendor.kind}.0.temp")) == simulator.gpu[0].get("temperature")


def test_a_call_that_hangs_costs_its_own_device(vendor: Vendor, machine: Machine) -> None:
    simulator = machine(vendor.library)
    with Sampler([vendor.name], timeout=1.0) as sampler:
        sampler.sample()
        simulator.rule("nvmlDeviceGetTemperature", 0, hang=True)
        simulator.reset_calls()
        snapshot = sampled(sampler, lambda seen: f"{vendor.kind}.1.temp" in seen.metrics)
        assert snapshot.unavailable[f"{vendor.kind}.0.temp"].reason == "timed_out"
        simulator.clear_rules()


def test_impossible_answers_are_reasons(vendor: Vendor, machine: Machine) -> None:
    simulator = machine(vendor.library, 1)
    simulator.gpu[0].set(temperature=0xFFFFFFFF, gpu_util=4000, power_mw=2**32 - 1, memory_used=2**62, clock_sm=Ret.NO_PERMISSION)
    with Sampler([vendor.name], timeout=30.0) as sampler:
        snapshot = sampler.sample()
    reasons = {name: snapshot.unavailable[f"{vendor.kind}.0.{name}"].reason for name in ("temp", "powerWatts", "memoryAllocatedBytes")}
    assert set(reasons.values()) == {"invalid_value"}
    assert snapshot.unavailable[f"{vendor.kind}.0.smClock"].reason == "no_permission"


@pytest.mark.parametrize(
    ("refused", "reason", "said"),
    [
        (Ret.NO_PERMISSION, "no_permission", "run as a user who may read {nodes}"),
        (Ret.DRIVER_NOT_LOADED, "driver_unavailable", "load the driver's kernel module"),
        (Ret.NOT_FOUND, "driver_unavailable", "lspci -d {pci}:"),
    ],
)
def test_a_library_that_refuses_says_why_in_the_vendors_words(
    vendor: Vendor, machine: Machine, refused: Ret, reason: str, said: str
) -> None:
    """Beside a tool that is missing, whose advice follows."""
    machine(vendor.library).fail_init(refused)
    row = BUILT_IN[vendor.name]
    with pytest.raises(SourceError) as caught:
        registry.load(vendor.name).open()
    assert (caught.value.reason, caught.value.backend) == (reason, vendor.name)
    assert said.format(nodes=row.nodes[0], pci=vendor.pci[0].removeprefix("0x")) in caught.value.advice
    assert "NVIDIA" not in f"{caught.value}{caught.value.advice}"
    assert "was not found in PATH" in str(caught.value) and "install" in caught.value.advice


def test_a_card_without_its_device_nodes_is_found(vendor: Vendor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that was given none."""
    monkeypatch.setenv("ACCELMETRICS_SYSROOT", str(tmp_path))
    backend = registry.load(vendor.name)
    assert not backend.detect().present
    device = tmp_path / "sys/bus/pci/devices/0000:41:00.0"
    device.mkdir(parents=True)
    for name, text in zip(("vendor", "device", "class"), (*vendor.pci, "0x120000"), strict=True):
        (device / name).write_text(text + "\n")
    found = backend.detect()
    assert (found.present, found.devices) == (True, 1)
    assert "in a container, start it with --device=/dev/" in found.advice


def test_iluvatars_list_of_processes_does_not_say_how_long_it_is(machine: Machine) -> None:
    """Entries have 16 bytes, and the list is asked for with more room until it fits."""
    simulator = machine("ixml", 1)
    simulator.set(untold_lists=1)
    simulator.processes(0, [Process(pid=number, used=number * MIB) for number in range(1, 201)])
    with Sampler(["iluvatar"], timeout=30.0) as sampler:
        listed = sampler.sample().devices[0].processes or ()
    assert {process.pid: process.memory_bytes for process in listed} == {number: number * MIB for number in range(1, 201)}


def test_ecc_errors_of_iluvatar_are_its_own_call(machine: Machine) -> None:
    simulator = machine("ixml", 1)
    with Sampler(["iluvatar"], timeout=30.0) as sampler:
        before = values(sampler.sample(), "gpu.0")
    simulator.gpu[0].set(ecc_corrected_volatile={2: 5}, ecc_uncorrected_volatile={2: 2})
    with Sampler(["iluvatar"], timeout=30.0, clock=FakeClock()) as sampler:
        after = values(sampler.sample(), "gpu.0")
    assert after["correctedEccErrors"] - before["correctedEccErrors"] >= 1
    assert after["uncorrectedEccErrors"] >= 2


def test_a_ppu_has_instances_and_profiling_metrics(machine: Machine) -> None:
    """Of GPM the library fills an array of 250, which is longer than NVML's; links are counted by NVLink's numbers."""
    simulator = machine("hgml", 1)
    simulator.partition(0, ["1g.10gb"])
    simulator.gpu[0].set(gpm={"DRAM_BW_UTIL": 40.0})
    with Sampler(["thead"], timeout=30.0) as sampler:
        snapshot = sampled(sampler, lambda seen: "gpu.0.dramActive" in seen.metrics)
    assert snapshot.metrics["gpu.0.dramActive"] == 40
    assert snapshot.metrics["gpu.0.mig.0.memoryTotalBytes"] > 0
    assert snapshot.metrics["gpu.0.nvlink.6.state"] == 1
    assert snapshot.unavailable["gpu.0.gpu"].reason == "not_supported"
    assert not any(key.startswith(("gpu.0.pcieTxBytesTotal", "gpu.0.fabric")) for key in (*snapshot.metrics, *snapshot.unavailable))


def test_memory_of_enflame_is_that_of_the_first_form(machine: Machine) -> None:
    """In the second one, free and used stand where NVML has the reserve and free."""
    simulator = machine("efml", 1)
    simulator.gpu[0].set(memory_total=1000 * MIB, memory_used=300 * MIB, memory_reserved=50 * MIB)
    with Sampler(["enflame"], timeout=30.0) as sampler:
        snapshot = sampler.sample()
    names = ("memoryTotalBytes", "memoryAllocatedBytes", "memoryFreeBytes")
    assert [snapshot.metrics[f"npu.0.{name}"] for name in names] == [1000 * MIB, 350 * MIB, 650 * MIB]
    assert simulator.count("nvmlDeviceGetMemoryInfo_v2") == 0 or snapshot.identities[0].identity.memory_total_bytes == 1000 * MIB


def test_vendors_of_one_machine_keep_their_devices_apart(machine: Machine) -> None:
    """Also where two libraries have functions of one name; NVIDIA's devices come first."""
    for library, total in (("", 1), ("ixml", 2), ("hgml", 3), ("efml", 4)):
        machine(library, 1).gpu[0].set(memory_total=total * 1024 * MIB, memory_used=0, memory_reserved=0)
    with Sampler(["enflame", "thead", "iluvatar", "nvidia"], timeout=30.0) as sampler:
        snapshot = sampler.sample()
    assert {slot.key: slot.identity.vendor for slot in snapshot.identities} == {
        **{"gpu.0": "nvidia", "gpu.1": "iluvatar", "gpu.2": "thead", "npu.0": "enflame"},
    }
    totals = [snapshot.metrics[f"{slot.key}.memoryTotalBytes"] for slot in snapshot.identities]
    assert totals == [number * 1024 * MIB for number in (1, 2, 3, 4)]


def test_a_stand_in_for_nvml_that_lists_ppus_is_not_nvidias(machine: Machine) -> None:
    """Containers of the vendor have one, and the devices are read once."""
    machine("", 2).gpu[0].set(pci_device_id=0x60011DED)
    machine("hgml", 1)
    with Sampler(["nvidia", "thead"], timeout=30.0) as sampler:
        snapshot = sampler.sample()
        assert "0x1ded" in snapshot.unavailable["gpu.0.temp"].detail
    for gpu in (simulator := machine("", 1)).gpu:
        gpu.set(pci_device_id=0x60011DED)
    del simulator
    with pytest.raises(SourceError, match=r"lists no GPU of NVIDIA.*0x1ded"):
        registry.load("nvidia").open()


def test_another_vendors_nvidia_smi_is_no_reference(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ppus = machine("hgml", 1)
    machine("", 1)
    monkeypatch.setenv("PATH", NvidiaSmiStandIn(tmp_path, ppus).path)
    with Sampler(["nvidia"], timeout=30.0) as sampler:
        slots = sampler.sample().identities
    with pytest.raises(SourceError, match="lists none of these GPUs"):
        NvidiaSmi().read(slots)


@pytest.mark.parametrize(
    ("name", "variable", "listed", "seen"),
    [
        ("iluvatar", "CUDA_VISIBLE_DEVICES", "1,0", (1, 0)),
        ("thead", "CUDA_VISIBLE_DEVICES", "1", (1,)),
        ("enflame", "TOPS_VISIBLE_DEVICES", "1", (1,)),
        ("enflame", "TOPS_VISIBLE_DEVICES", "DRS-0190", None),
    ],
)
def test_what_a_program_sees(machine: Machine, name: str, variable: str, listed: str, seen: tuple[int, ...] | None) -> None:
    machine(VENDORS[name].library)
    with Sampler([name], timeout=30.0) as sampler:
        devices = [slot.identity for slot in sampler.sample().identities]
    assert visibility({variable: listed}, devices).order == seen


def test_the_tool_is_a_second_source_of_each() -> None:
    for module, sources in ((iluvatar, ("ixml", "ixsmi")), (thead, ("hgml", "ppu-smi")), (enflame, ("efml", "efsmi", "efsmi-table"))):
        loaded = registry.load(module.__name__.rpartition(".")[2])
        assert getattr(loaded, "sources") == sources  # noqa: B009
        assert getattr(loaded, "pinned")(sources[1]).pin == sources[1]  # noqa: B009
    assert getattr(registry.load("rebellions"), "sources") == ("rbln-smi",)  # noqa: B009


def test_the_tool_is_held_against_the_library(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices are joined by their PCI address; a difference is told."""
    machine("ixml", 1).gpu[0].set(power_mw=60_000, temperature=45)
    command = tmp_path / "ixsmi"
    command.write_text(f"#!{sys.executable} -IS\nprint({tools.ixsmi(0).replace(':26:', ':10:')!r})\n", encoding="utf-8")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    results = {one.key: one.result for one in verify(1.0, backends=["iluvatar"], timeout=30.0).comparisons}
    assert (results["gpu.0.powerWatts"], results["gpu.0.temp"]) == ("agrees", "differs")


def test_a_reader_of_an_open_driver_is_cheap(machine: Machine) -> None:
    """It calls nothing."""
    simulator = machine("hgml", 1)
    driver = registry.load("thead").open()
    simulator.reset_calls()
    driver.reader(ReadOptions(1))
    assert simulator.calls() == {}
    driver.close()
