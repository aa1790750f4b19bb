"""Intel's GPUs and NPUs, from trees as their kernel drivers show them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from accelmetrics import Sampler, Snapshot
from accelmetrics.backends import intel, intel_npu, registry
from accelmetrics.backends.kit import Derived, DeviceSample, SourcesBackend, rows
from accelmetrics.backends.kit.polled import PolledBackend
from accelmetrics.backends.visible import visibility
from accelmetrics.schemas.errors import Reason, SourceError
from accelmetrics.schemas.identity import DeviceIdentity, DeviceProcess
from accelmetrics.testing import FakeClock
from accelmetrics.visibility.doctor import unread_devices
from tests.simulators.amdgpu import Content
from tests.simulators.commands import CommandStandIn
from tests.simulators.drm import fdinfo
from tests.simulators.intel import CALM, CARD, INTEGRATED, IntelTree, RenderNodes
from tests.simulators.kunlunxin import HELP as KUNLUNXIN, INTEL
from tests.support.fuzzing import fuzz
from tests.support.waiting import wait_for

RC, MC = "tile0/gt0", "tile0/gt1"
CAUSES = dict.fromkeys(("swPowerCap", "currentLimit", "swThermalSlowdown", "hwThermalSlowdown"), 0)
CALM_CLOCKS = {"throttled": 0, **{f"throttle.{name}": value for name, value in CAUSES.items()}}
LINK = {"pcieLinkGen": 4, "pcieLinkWidth": 8, "maxPcieLinkGen": 4, "maxPcieLinkWidth": 8}
ARC = {
    "energyJoules": 900,
    "enforcedPowerLimitWatts": 190,
    "temp": 61,
    "memoryTemp": 70,
    "tempLimit.slowdown": 100,
    "tempLimit.shutdown": 125,
    "fanSpeedRpm": 1116,
    "smClock": 1750,
    "maxSmClock": 2850,
    "videoClock": 1210,
    "maxVideoClock": 1500,
    **CALM_CLOCKS,
    **LINK,
}
"""By metric, what a card of xe tells at its first reading to a user who does not see all programs."""
ALCHEMIST = {
    "energyJoules": 700,
    "enforcedPowerLimitWatts": 66,
    "temp": 51,
    "fanSpeedRpm": 0,
    "smClock": 950,
    "maxSmClock": 2450,
    "maxVideoClock": 1400,
    **CALM_CLOCKS,
    **LINK,
}
"""The same of i915."""


@pytest.fixture
def tree(root: Path) -> IntelTree:
    return IntelTree(root)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """The sampler's, the drivers' and that of the look at programs."""
    made = FakeClock()
    for backend in (intel.SYSFS, intel.TOOL, intel_npu.backend):
        monkeypatch.setattr(backend, "clock", made)
    monkeypatch.setattr("accelmetrics.backends.kit.processes.SYSTEM_CLOCK", made)
    return made


@pytest.fixture
def sampler(clock: FakeClock) -> Iterator[Sampler]:
    with Sampler(["intel"], clock=clock) as made:
        yield made


def of(snapshot: Snapshot, key: str = "gpu.0") -> dict[str, Any]:
    begins = f"{key}."
    return {name.removeprefix(begins): value for name, value in snapshot.metrics.items() if name.startswith(begins)}


def why(snapshot: Snapshot, *metrics: str, key: str = "gpu.0") -> list[str]:
    return [snapshot.unavailable[f"{key}.{metric}"].reason for metric in metrics]


def again(sampler: Sampler, clock: FakeClock, seconds: float = 2.0) -> Snapshot:
    clock.advance(seconds)
    return sampler.sample()


def test_a_card_of_xe(tree: IntelTree, sampler: Sampler) -> None:
    """Its link is that of the switch on it, its temperature the package's, and a limit of 0 is none."""
    tree.xe()
    snapshot = sampler.sample()
    assert of(snapshot) == ARC
    (device,) = snapshot.devices
    assert (device.vendor, device.name, device.pci_bus_id, device.unified) == ("intel", "Intel Arc B580", CARD, False)
    assert (snapshot.backends[0].source, snapshot.backends[0].status) == ("sysfs", "ok")
    assert why(snapshot, "powerWatts", "gpu", "memoryAllocatedBytes", "memoryTotalBytes") == [
        Reason.NEEDS_INTERVAL,
        Reason.NEEDS_INTERVAL,
        Reason.NO_PERMISSION,
        Reason.NOT_SUPPORTED,
    ]


def test_a_card_of_i915(tree: IntelTree, sampler: Sampler) -> None:
    tree.i915()
    snapshot = sampler.sample()
    assert of(snapshot) == ALCHEMIST
    assert snapshot.devices[0].name == "Intel Arc A380"


@pytest.mark.parametrize("driver", ["xe", "i915"])
def test_a_gpu_of_a_processor(tree: IntelTree, sampler: Sampler, driver: str) -> None:
    """It has no sensors and no link, and shares the host's memory."""
    getattr(tree, driver)(0, INTEGRATED, "0x9a49", integrated=True)
    snapshot = sampler.sample()
    told = ARC if driver == "xe" else ALCHEMIST
    absent = {"energyJoules", "enforcedPowerLimitWatts", "temp", "memoryTemp", "fanSpeedRpm", *LINK}
    assert of(snapshot) == {name: value for name, value in told.items() if name not in absent and "Limit." not in name}
    assert (snapshot.devices[0].name, snapshot.devices[0].unified) == ("Intel Graphics (0x9a49)", True)
    assert set(why(snapshot, "temp", "powerWatts", "pcieLinkGen")) == {Reason.NOT_SUPPORTED}
    assert snapshot.unavailable["gpu.0.memoryTotalBytes"].detail == "the GPU has no memory of its own: it shares the host's"
    assert snapshot.unavailable["gpu.0.temp"].detail == "not found: sysfs hwmon, temp*_input, pkg"
    assert not [missing for missing in snapshot.unavailable.values() if "[" in missing.detail]


def test_power_and_the_time_awake_are_what_counters_rise_by(tree: IntelTree, sampler: Sampler, clock: FakeClock) -> None:
    card = tree.xe()
    sampler.sample()
    tree.set(card, {"hwmon/hwmon2/energy1_input": 1_100_000_000, f"{RC}/gtidle/idle_residency_ms": 40_500})
    second = of(again(sampler, clock))
    assert (second["powerWatts"], second["powerPercent"], second["gpu"]) == (100, pytest.approx(100 * 100 / 190), 75)
    tree.set(card, {f"{RC}/gtidle/idle_residency_ms": 42_501, "hwmon/hwmon2/energy1_input": 1_100_000_000})
    third = again(sampler, clock)
    assert of(third)["gpu"] == 0, "a little more than the whole"
    assert why(third, "powerWatts") == [Reason.NOT_SUPPORTED], "no card draws nothing"


def test_a_counter_that_stands_still(tree: IntelTree, sampler: Sampler, clock: FakeClock) -> None:
    """While the GT sleeps, it is idle; while it works, it was awake; and where it may not sleep, nothing is known."""
    card = tree.xe()
    sampler.sample()
    assert of(again(sampler, clock))["gpu"] == 100
    tree.set(card, {f"{RC}/gtidle/idle_status": "gt-c6", f"{RC}/freq0/act_freq": 0})
    asleep = again(sampler, clock)
    assert of(asleep)["gpu"] == 0
    assert why(asleep, "smClock") == [Reason.NOT_SUPPORTED], "a clock of 0 is none"
    tree.set(card, {f"{RC}/gtidle/idle_residency_ms": 0, f"{RC}/gtidle/idle_status": "gt-c0"})
    again(sampler, clock)
    assert why(again(sampler, clock), "gpu") == [Reason.INVALID_VALUE]


def test_i915_whose_gt_may_not_sleep_has_no_time_awake(tree: IntelTree, sampler: Sampler, clock: FakeClock) -> None:
    card = tree.i915()
    tree.set(card, {"drm/card0/gt/gt0/rc6_enable": 0})
    sampler.sample()
    assert why(again(sampler, clock), "gpu") == [Reason.NOT_SUPPORTED]
    tree.set(card, {"drm/card0/gt/gt0/rc6_enable": 1})
    again(sampler, clock)
    tree.set(card, {"drm/card0/gt/gt0/rc6_residency_ms": 6500})
    assert of(again(sampler, clock))["gpu"] == 25


def test_an_energy_counter_of_0_counts_nothing(tree: IntelTree, sampler: Sampler, clock: FakeClock) -> None:
    """As the card's on a B580 with Linux 6.16: the package's has what is drawn."""
    card = tree.xe()
    tree.set(card, {"hwmon/hwmon2/energy1_input": 0})
    assert of(sampler.sample())["energyJoules"] == 600
    tree.set(card, {"hwmon/hwmon2/energy2_input": 720_000_000})
    assert of(again(sampler, clock))["powerWatts"] == 60


def test_why_clocks_are_low(tree: IntelTree, sampler: Sampler, clock: FakeClock) -> None:
    """Each cause for each of the driver's reasons, and no cause for one that belongs to none."""
    card = tree.xe()
    found: dict[str, list[str]] = {}
    for reason in CALM:
        tree.set(card, {f"{RC}/freq0/throttle/reason_{name}": int(name == reason) for name in CALM})
        told = of(again(sampler, clock))
        found[reason] = [name for name in CAUSES if told[f"throttle.{name}"]]
    assert {name: causes for name, causes in found.items() if causes} == {
        **{name: ["swPowerCap"] for name in ("pl1", "pl2")},
        **{name: ["currentLimit"] for name in ("pl4", "vr_tdc")},
        **{name: ["hwThermalSlowdown"] for name in ("prochot", "vr_thermalert")},
        "thermal": ["swThermalSlowdown"],
    }


@pytest.mark.parametrize("driver", ["xe", "i915"])
def test_the_link_of_a_card_whose_switch_is_not_shown_is_not_known(tree: IntelTree, sampler: Sampler, driver: str) -> None:
    """As in a virtual machine: the card shows the one inside it."""
    card = getattr(tree, driver)()
    for bridge in (card.parent, card.parent.parent):
        (bridge / "device").unlink()
    assert set(why(sampler.sample(), *LINK)) == {Reason.NOT_SUPPORTED}


def test_a_max_shows_its_own_link(tree: IntelTree, sampler: Sampler) -> None:
    card = tree.xe(device="0x0bd5")
    tree.set(card, dict.fromkeys(("current_link_speed", "max_link_speed"), "32.0 GT/s PCIe"))
    tree.set(card, dict.fromkeys(("current_link_width", "max_link_width"), 16))
    (card.parent.parent / "device").unlink()
    snapshot = sampler.sample()
    assert [of(snapshot)[name] for name in LINK] == [5, 16, 5, 16]
    assert snapshot.devices[0].name == "Intel Data Center GPU Max 1550"


# Programs


def test_root_sees_what_all_programs_use(tree: IntelTree, sampler: Sampler, clock: FakeClock) -> None:
    """Then utilisation is that of the engines, and not for how long the GT was awake."""
    tree.xe()
    tree.whole_machine()
    counts: dict[str, str | int] = {"resident_vram0": "256 MiB", "resident_system": "9 MiB", "cycles_ccs": 0, "total_cycles_ccs": 0}
    for worked, all_cycles in ((0, 0), (30, 100)):
        for pid in (41, 42):
            own = counts | {"cycles_ccs": worked, "total_cycles_ccs": all_cycles}
            tree.process(pid, {7: ("/dev/dri/renderD128", fdinfo("xe", pid, CARD, **own))})
        snapshot = again(sampler, clock)
    assert (of(snapshot)["gpu"], of(snapshot)["memoryAllocatedBytes"]) == (60, 512 * 2**20)
    assert snapshot.processes["gpu.0"] == tuple(DeviceProcess(pid, "compute", 256 * 2**20, 30.0) for pid in (41, 42))


def test_a_user_sees_the_own_programs(tree: IntelTree, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """What others use is not known, and so not what is used together."""
    tree.i915()
    tree.whole_machine()
    tree.process(41, {7: ("/dev/dri/card0", fdinfo("i915", 1, CARD, total_local0="64 MiB", engine_render="0 ns"))})
    (tree.root / "proc/42").mkdir()
    listing = os.listdir

    def refuse(path: str) -> list[str]:
        if path.endswith("/proc/42/fd"):
            raise PermissionError(path)
        return listing(path)

    monkeypatch.setattr("accelmetrics.backends.kit.processes.os.listdir", refuse)
    with Sampler(["intel"], clock=clock, pid=41) as sampler:
        sampler.sample()
        tree.process(41, {7: ("/dev/dri/card0", fdinfo("i915", 1, CARD, total_local0="64 MiB", engine_render="800000000 ns"))})
        snapshot = again(sampler, clock)
    assert why(snapshot, "memoryAllocatedBytes") == [Reason.NO_PERMISSION]
    assert of(snapshot, "gpu.process.0") == {
        **{"gpu": 40, "memoryAllocatedBytes": 64 * 2**20},
        **{"temp": 51, "enforcedPowerLimitWatts": 66},
    }


def test_a_program_of_a_card_that_sleeps_is_not_looked_at(tree: IntelTree, sampler: Sampler, clock: FakeClock) -> None:
    """The driver xe wakes the card to say what its programs use."""
    tree.xe()
    card = tree.xe(1, "0000:06:00.0")
    tree.whole_machine()
    tree.set(card, {"power/runtime_status": "suspended"})
    tree.process(41, {7: ("/dev/dri/renderD129", "")})
    information = tree.root / "proc/41/fdinfo/7"
    information.unlink()
    os.mkfifo(information)  # whoever opened it would wait
    snapshot = sampler.sample()
    assert snapshot.processes["gpu.0"] == ()
    assert why(snapshot, "temp", "gpu", key="gpu.1") == [Reason.SUSPENDED] * 2
    assert of(snapshot) == ARC | {"memoryAllocatedBytes": 0}


# What is not there, or wrong


@pytest.mark.parametrize("said", ["", "N/A", "garbage", "-300000", "99999999999999999999999", "18446744073709551615"])
@pytest.mark.parametrize("driver", ["xe", "i915"])
def test_whatever_a_file_says_is_a_value_that_can_be_true_or_a_reason(tree: IntelTree, sampler: Sampler, driver: str, said: str) -> None:
    card = getattr(tree, driver)()
    names = ("label", "name", "device", "vendor", "class", "runtime_status", "rc6_enable", "idle_status")
    for path in card.rglob("*"):
        if path.is_file() and not path.is_symlink() and not path.name.endswith(names):
            path.write_text(f"{said}\n")
    snapshot = sampler.sample()
    expected = ARC if driver == "xe" else ALCHEMIST
    assert of(snapshot) == LINK
    assert not [name for name in expected if name not in LINK and f"gpu.0.{name}" not in snapshot.unavailable]
    assert {reason.reason for reason in snapshot.unavailable.values()} <= set(Reason)


def test_files_that_may_not_be_read_are_reasons(tree: IntelTree, sampler: Sampler, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.xe()
    opening = os.open

    def refuse(path: Any, *more: Any) -> int:
        if "/temp2_input" in str(path) or "/energy" in str(path):
            raise PermissionError(path)
        return opening(path, *more)

    monkeypatch.setattr("accelmetrics.backends.kit.system.os.open", refuse)
    snapshot = sampler.sample()
    assert why(snapshot, "temp", "powerWatts", "energyJoules") == [Reason.NO_PERMISSION] * 3
    assert of(snapshot)["memoryTemp"] == 70


def test_a_card_that_goes_and_comes_back(tree: IntelTree, sampler: Sampler, clock: FakeClock) -> None:
    """It has its place again, whatever its number is then, and costs no other card anything."""
    first = tree.xe()
    tree.i915(1, "0000:06:00.0")
    assert [device.name for device in sampler.sample().devices] == ["Intel Arc B580", "Intel Arc A380"]
    tree.remove(first)
    lost = again(sampler, clock)
    assert why(lost, "temp") == [Reason.DEVICE_LOST]
    assert of(lost, "gpu.1")["temp"] == 51
    tree.xe(2)
    back = again(sampler, clock)
    assert (of(back)["temp"], of(back, "gpu.1")["temp"]) == (61, 51)


def test_cards_of_other_drivers_are_none(tree: IntelTree, sampler: Sampler) -> None:
    """One that is passed through to a virtual machine, one without a driver, another vendor's; doctor tells what is missing."""
    tree.add("0000:07:00.0", "vfio-pci", {"vendor": "0x8086", "device": "0x56a0", "class": "0x030000"}, node="")
    tree.add("0000:08:00.0", "", {"vendor": "0x8086", "device": "0x56c0", "class": "0x038000"}, node="")
    tree.add("0000:09:00.0", "amdgpu", {"vendor": "0x1002", "device": "0x744c", "class": "0x030000"}, number=1)
    tree.add("0000:00:0b.0", "", {"vendor": "0x8086", "device": "0x643e", "class": "0x120000"}, node="")
    assert registry.load("intel").detect() == (False, "no GPU driven by i915 or xe", 0, "")
    with pytest.raises(SourceError, match="lists no GPU") as caught:
        intel.SYSFS.open()
    assert caught.value.advice.startswith("load the kernel driver: sudo modprobe xe")
    tree.xe(2)
    assert [device.pci_bus_id for device in sampler.sample().devices] == [CARD]
    unread = [(device["name"], device["pci_bus_id"]) for device in unread_devices()]
    gpu, npu = "Intel GPU without the driver i915 or xe", "Intel NPU without the driver intel_vpu"
    assert unread == [(npu, "0000:00:0b.0"), (gpu, "0000:07:00.0"), (gpu, "0000:08:00.0")]


# Which of them a program sees


def test_a_selector_chooses_among_what_the_mask_leaves() -> None:
    cards = [DeviceIdentity("gpu", "intel", number, pci_bus_id=f"0000:0{number + 3}:00.0") for number in range(4)]

    def seen(selector: str, **more: str) -> tuple[int, ...] | None:
        return visibility({"ONEAPI_DEVICE_SELECTOR": selector, **more}, cards).order

    assert (seen("level_zero:2,0"), seen("level_zero:gpu"), seen("*:*"), seen("")) == ((0, 2), (0, 1, 2, 3), (0, 1, 2, 3), (0, 1, 2, 3))
    assert seen("Level_Zero:1; level_zero:0,9", ZE_AFFINITY_MASK="2,3") == (2, 3)
    assert seen("level_zero:0", ZE_AFFINITY_MASK="1") == (1,)
    for selector in ("opencl:gpu", "level_zero:0;!level_zero:1", "level_zero:0.1", "level_zero", "level_zero:"):
        assert seen(selector) is None
    assert visibility({"ONEAPI_DEVICE_SELECTOR": "opencl:1"}, cards).caveats == (
        "ONEAPI_DEVICE_SELECTOR has 'opencl:1', which is not resolved to GPUs",
    )


def test_no_variable_hides_an_npu() -> None:
    npus = [DeviceIdentity("npu", "intel", number) for number in range(2)]
    assert visibility({"ZE_AFFINITY_MASK": "0", "ONEAPI_DEVICE_SELECTOR": "level_zero:0"}, npus).visible == (True, True)


# The tool


@pytest.fixture
def tool(tree: IntelTree, monkeypatch: pytest.MonkeyPatch) -> CommandStandIn:
    stand_in = CommandStandIn(tree.root, "xpu-smi")
    monkeypatch.setenv("PATH", stand_in.path)
    stand_in.behave(INTEL, asked="-h")
    return stand_in


@pytest.fixture
def pinned(clock: FakeClock) -> Iterator[Sampler]:
    """The tool, whichever release it is, in the place of the files."""
    tool = SourcesBackend("intel", "gpu", {"xpu-smi": lambda _: intel.TOOL.open()}, coverage=intel.backend.coverage)
    with Sampler([tool], clock=clock) as made:
        yield made


SAID = {
    **{"utilization.gpu (%)": "41", "memory.bandwidth.utilization (%)": "17", "memory.used (MiB)": "3072.5", "memory.total (MiB)": "12288"},
    **{"temperature.gpu (C)": "61", "temperature.memory (C)": "70", "power.draw (W)": "95.5", "power.limit (W)": "190"},
    **{"energy.consumed (J)": "81234.5", "clocks.current.graphics (MHz)": "2400", "clocks.current.media (MHz)": "0", "fan.speed (%)": "33"},
    **{"clocks.max.graphics (MHz)": "2850", "ecc.errors.corrected.aggregate.total": "2", "ecc.errors.uncorrected.aggregate.total": "0"},
    **{"pcie.link.gen.current": "4", "pcie.link.gen.max": "4", "pcie.link.width.current": "8", "pcie.link.width.max": "8"},
    **{"pcie.tx.throughput (MB/s)": "12.5", "pcie.rx.throughput (MB/s)": "250", "pcie.replay.counter": "3"},
}
"""What release 2 prints of a card, by its heading."""
TOLD = {
    **{"gpu": 41, "memory": 17, "memoryAllocatedBytes": 3221749760, "memoryTotalBytes": 12 * 2**30, "memoryFreeBytes": 9663152128},
    **{
        "memoryAllocated": pytest.approx(25.004, abs=1e-3),
        "temp": 61,
        "memoryTemp": 70,
        "powerWatts": 95.5,
        "enforcedPowerLimitWatts": 190,
    },
    **{"powerPercent": pytest.approx(50.26, abs=0.01), "energyJoules": 81234.5, "smClock": 2400, "maxSmClock": 2850, "fanSpeed": 33},
    **{"correctedEccErrorsAggregate": 2, "uncorrectedEccErrorsAggregate": 0, **LINK, "pcieReplays": 3},
    **{"pcieTxBytes": 12_500_000, "pcieRxBytes": 250_000_000},
}
DUMP = """\
Timestamp, DeviceId, GPU Utilization (%), GPU Power (W), GPU Frequency (MHz), GPU Core Temperature (Celsius Degree), \
GPU Memory Temperature (Celsius Degree), GPU Memory Bandwidth Utilization (%), GPU Memory Used (MiB), PCIe Read (kB/s), PCIe Write (kB/s)
06:14:46.000,    0, 52.10, 118.02, 1400, 59.00, N/A, 21, 512.25, 640, 80
"""
OLD = {
    **{"gpu": 52.1, "powerWatts": 118.02, "smClock": 1400, "temp": 59, "memory": 21, "memoryAllocatedBytes": 537133056},
    **{"memoryTotalBytes": 14248050688, "pcieRxBytes": 640_000, "pcieTxBytes": 80_000},
}


def table(*cards: dict[str, str]) -> str:
    lines = [("index", "pci.bus_id", "uuid", "name", *SAID), *((*row.values(),) for row in cards)]
    return "\n".join(", ".join(line) for line in lines)


def card(number: int, **changed: str) -> dict[str, str]:
    own = {"index": str(number), "bus": f"0000:0{number + 3}:00.0", "uuid": f"uuid-{number}", "name": "Intel(R) Arc(TM) B580 Graphics"}
    return own | SAID | changed


def answers(sampler: Sampler) -> Snapshot:
    wait_for(lambda: sampler.sample().metrics)
    return sampler.sample()


def test_the_tool_of_release_2_is_read_by_names(tool: CommandStandIn, pinned: Sampler) -> None:
    """Whatever its columns' order; a value that it does not have costs no other."""
    tool.behave(table(card(1, **{"temperature.memory (C)": "N/A"}), card(0)))
    snapshot = answers(pinned)
    assert of(snapshot) == TOLD
    assert of(snapshot, "gpu.1") == {name: value for name, value in TOLD.items() if name != "memoryTemp"}
    assert why(snapshot, "memoryTemp", key="gpu.1") == [Reason.NOT_SUPPORTED]
    assert [(device.uuid, device.pci_bus_id) for device in snapshot.devices] == [("uuid-0", "0000:03:00.0"), ("uuid-1", "0000:04:00.0")]
    assert snapshot.backends[0].source == "xpu-smi"


def test_the_tool_of_release_1_is_read_by_headings(tool: CommandStandIn, pinned: Sampler) -> None:
    """It knows no query: its columns are those of a dump, joined by the card's number with what it discovered."""
    tool.behave("The following argument was not expected: --query-gpu", status=109)
    listed = {"device_id": 0, "device_name": "Intel Flex 170", "pci_bdf_address": "0000:4d:00.0", "uuid": "u"}
    tool.behave(json.dumps({"device_list": [listed]}), asked="discovery -j")
    tool.behave('{"device_id": 0, "memory_physical_size_byte": "14248050688"}', asked="discovery -d 0 -j")
    tool.behave(DUMP, asked="dump")
    snapshot = answers(pinned)
    assert {name: value for name, value in of(snapshot).items() if name not in ("memoryFreeBytes", "memoryAllocated")} == OLD
    assert (snapshot.devices[0].name, snapshot.devices[0].pci_bus_id) == ("Intel Flex 170", "0000:4d:00.0")


def test_kunlunxins_tool_of_that_name_is_passed_over(tool: CommandStandIn, pinned: Sampler) -> None:
    tool.behave(KUNLUNXIN, asked="-h")
    assert "tool of another vendor" in pinned.sample().backends[0].detail
    assert {call[0] for call in tool.calls} == {"-h"}


def test_the_tool_is_not_run_while_a_card_sleeps(tree: IntelTree, tool: CommandStandIn, pinned: Sampler) -> None:
    tree.set(tree.xe(), {"power/runtime_status": "suspended"})
    tool.behave(table(card(0)))
    assert "suspended" in pinned.sample().backends[0].detail
    assert tool.calls == []


def test_files_are_read_where_both_are_there(tree: IntelTree, tool: CommandStandIn, sampler: Sampler) -> None:
    tree.xe()
    assert of(sampler.sample()) == ARC
    assert tool.calls == []


# NPUs


@pytest.fixture
def npus(clock: FakeClock) -> Iterator[Sampler]:
    with Sampler(["intel_npu"], clock=clock) as made:
        yield made


BUSY: dict[str, Content] = {"npu_busy_time_us": 5_000_000, "npu_memory_utilization": 3 * 2**20}


@pytest.mark.parametrize(
    ("clocks", "told"),
    [
        ({"npu_current_frequency_mhz": 1400, "npu_max_frequency_mhz": 1950}, {"smClock": 1400, "maxSmClock": 1950}),
        ({"freq/current_freq": 1100, "freq/hw_max_freq": 1900}, {"smClock": 1100, "maxSmClock": 1900}),
        ({"npu_current_frequency_mhz": 0, "npu_max_frequency_mhz": 1950}, {"maxSmClock": 1950}),
        ({}, {}),
    ],
    ids=["older names", "newer names", "gated", "none"],
)
def test_an_npu(tree: IntelTree, npus: Sampler, clock: FakeClock, clocks: dict[str, Content], told: dict[str, int]) -> None:
    npu = tree.npu(BUSY | clocks)
    first = npus.sample()
    assert of(first, "npu.0") == {"memoryAllocatedBytes": 3 * 2**20, **told}
    assert why(first, "utilization", key="npu.0") == [Reason.NEEDS_INTERVAL]
    device = first.devices[0]
    assert (device.vendor, device.name, device.pci_bus_id, device.unified) == ("intel", "Intel NPU (Lunar Lake)", "0000:00:0b.0", True)
    tree.set(npu, {"npu_busy_time_us": 5_500_000})
    clock.advance(2.0)
    wait_for(lambda: "npu.0.utilization" in npus.sample().metrics)
    assert npus.sample().metrics["npu.0.utilization"] == 25


def test_an_npu_that_sleeps_did_nothing(tree: IntelTree, npus: Sampler, clock: FakeClock) -> None:
    """Its files answer without waking it."""
    npu = tree.npu(BUSY | {"npu_current_frequency_mhz": 0})
    tree.set(npu, {"power/runtime_status": "suspended"})
    npus.sample()
    clock.advance(2.0)
    wait_for(lambda: "npu.0.utilization" in npus.sample().metrics)
    snapshot = npus.sample()
    assert of(snapshot, "npu.0") == {"utilization": 0, "memoryAllocatedBytes": 3 * 2**20}
    assert why(snapshot, "smClock", key="npu.0") == [Reason.NOT_SUPPORTED]


def test_other_drivers_of_the_class_are_no_npus(tree: IntelTree) -> None:
    """Gaudi's, Qualcomm's and AMD's are of the same class; and a new NPU is found though nothing knows its number."""
    tree.add("0000:41:00.0", "habanalabs", {"vendor": "0x1da3", "device": "0x1020", "class": "0x120000"}, node="accel/accel")
    assert not registry.load("intel_npu").detect().present
    with pytest.raises(SourceError, match="lists no NPU"):
        intel_npu.backend.open()
    tree.npu(BUSY, 1, device="0xffff")
    found = registry.load("intel_npu").detect()
    assert (found.present, found.devices) == (True, 1)
    driver = intel_npu.backend.open()
    assert [device.name for device in driver.devices] == ["Intel NPU (0xffff)"]
    driver.close()


# Damage


def places(text: str) -> Iterator[DeviceSample]:
    """A record of what stands at each of the rows' places."""
    yield DeviceSample(dict(line.partition(" ")[::2] for line in text.splitlines()))


@pytest.mark.parametrize("backend", [intel.SYSFS, intel_npu.backend])
def test_fuzz(backend: PolledBackend) -> None:
    rows = [row for row in backend.specs[0].fields if not isinstance(row, Derived)]
    every = dict.fromkeys(place for row in rows for place in ((row.where,) if isinstance(row.where, str) else row.where))
    fuzz(backend, places, "\n".join(f"{place} {900 + number}" for number, place in enumerate(every)))


@pytest.mark.parametrize(("source", "text"), [("xpu-smi", table(card(0), card(1))), ("xpu-smi dump", DUMP)])
def test_fuzz_the_tool(source: str, text: str) -> None:
    fuzz(intel.TOOL, lambda said: map(DeviceSample, rows(said)), text, source=source)


# The memory of a card

GIB = 1 << 30


@pytest.fixture
def nodes(tree: IntelTree, monkeypatch: pytest.MonkeyPatch) -> RenderNodes:
    made = RenderNodes(tree.root)
    monkeypatch.setattr("fcntl.ioctl", made.ioctl)
    return made


@pytest.mark.parametrize(("driver", "rest"), [("xe", 3 * GIB), ("i915", 13 * GIB)])
def test_the_memory_of_a_card_is_what_its_driver_says(
    tree: IntelTree, nodes: RenderNodes, sampler: Sampler, driver: str, rest: int
) -> None:
    """Of a card of two tiles that of both. Its render node is closed again."""
    getattr(tree, driver)()
    nodes.card(0, (1, 16 * GIB, rest), (1, 16 * GIB, rest))
    snapshot = sampler.sample()
    told = of(snapshot)
    assert (told["memoryTotalBytes"], told["memoryAllocatedBytes"], told["memoryFreeBytes"]) == (32 * GIB, 6 * GIB, 26 * GIB)
    assert told["memoryAllocated"] == 18.75
    assert snapshot.devices[0].identity.memory_total_bytes == 32 * GIB
    assert not [fd for fd in Path("/proc/self/fd").iterdir() if "renderD" in os.path.realpath(fd)]


@pytest.mark.parametrize(("driver", "rest"), [("xe", 0), ("i915", 16 * GIB)])
def test_a_driver_that_does_not_tell_this_user_what_is_in_use_is_asked_once(
    tree: IntelTree, nodes: RenderNodes, sampler: Sampler, clock: FakeClock, driver: str, rest: int
) -> None:
    """It says 0 then, which is no measurement: what the programs of this user hold together is not all."""
    getattr(tree, driver)()
    nodes.card(0, (1, 16 * GIB, rest))
    sampler.sample()
    asked = len(nodes.asked)
    snapshot = again(sampler, clock, 5.0)
    assert snapshot.metrics["gpu.0.memoryTotalBytes"] == 16 * GIB
    assert why(snapshot, "memoryAllocatedBytes", "memoryAllocated") == [Reason.NO_PERMISSION] * 2
    assert len(nodes.asked) == asked


def test_a_card_whose_driver_does_not_know_the_question(tree: IntelTree, nodes: RenderNodes, sampler: Sampler) -> None:
    tree.xe()
    nodes.card(0)
    nodes.regions.clear()
    assert why(sampler.sample(), "memoryTotalBytes") == [Reason.DRIVER_ERROR]


def test_a_render_node_that_may_not_be_opened(
    tree: IntelTree, nodes: RenderNodes, sampler: Sampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.xe()
    nodes.card(0, (1, 16 * GIB, 0))

    def refused(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(intel, "card_memory", refused)
    snapshot = sampler.sample()
    assert snapshot.unavailable["gpu.0.memoryTotalBytes"] == (Reason.NO_PERMISSION, "/dev/dri/renderD128 may not be read by this user")
    assert snapshot.metrics["gpu.0.temp"] == ARC["temp"]


@pytest.mark.parametrize("status", ["suspended", "active"])
def test_a_card_that_sleeps_and_a_gpu_of_a_processor_are_not_asked(
    tree: IntelTree, nodes: RenderNodes, sampler: Sampler, status: str
) -> None:
    """Asking would wake the one, and the other has no memory of its own."""
    if status == "suspended":
        tree.set(tree.xe(), {"power/runtime_status": status})
    else:
        tree.xe(0, INTEGRATED, "0x9a49", integrated=True)
    nodes.card(0, (1, 16 * GIB, GIB))
    sampler.sample()
    assert nodes.asked == []
