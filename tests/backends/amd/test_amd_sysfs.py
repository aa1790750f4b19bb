"""Trees as the kernel shows them, and everything that is read from each."""

import contextlib
import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from accelmetrics.backends.amd import backend
from accelmetrics.backends.amd.in_process import InProcessDriver
from accelmetrics.backends.contract import Reading, ReadOptions
from accelmetrics.schemas.catalogue import expected_names
from accelmetrics.schemas.errors import DriverGoneError, Reason, SourceError
from accelmetrics.schemas.identity import DeviceProcess
from accelmetrics.testing import FakeClock
from tests.simulators.amdgpu import Device, Tree, client, location, machines
from tests.simulators.amdgpu.machines import GIB, mi300_table
from tests.simulators.amdgpu.tables import table
from tests.support.readings import values

OPTIONS = ReadOptions(pid=1)

RX_7900 = {
    **{"gpu": 83, "memory": 41, "memoryReadWriteActivity": 41, "memoryAllocated": 25, "memoryAllocatedBytes": 6 * GIB},
    **{"memoryTotalBytes": 24 * GIB, "memoryFreeBytes": 18 * GIB, "memoryOverDrive": 2, "temp": 51, "hotspotTemp": 68},
    **{"memoryTemp": 74, "tempLimit.slowdown": 100, "tempLimit.shutdown": 105, "fanSpeed": 40, "powerWatts": 241},
    **{"enforcedPowerLimitWatts": 303, "powerPercent": 100 * 241 / 303, "smClock": 2411, "memoryClock": 1249},
    **{"maxSmClock": 2526, "maxMemoryClock": 1249, "throttle.swPowerCap": 0, "throttle.swThermalSlowdown": 1},
    **{"throttle.hwThermalSlowdown": 0, "throttle.currentLimit": 1, "pcieLinkGen": 3, "pcieLinkWidth": 8},
    **{"maxPcieLinkGen": 4, "maxPcieLinkWidth": 16, "pcieReplays": 5, "throttled": 1},
}
MI250_FIRST = {
    **{"gpu": 97, "memory": 31, "memoryReadWriteActivity": 31, "memoryAllocated": 100 * 11 / 64, "memoryAllocatedBytes": 11 * GIB},
    **{"memoryTotalBytes": 64 * GIB, "memoryFreeBytes": 53 * GIB, "temp": 45, "hotspotTemp": 61, "memoryTemp": 54, "powerWatts": 429},
    **{"enforcedPowerLimitWatts": 560, "powerPercent": 100 * 429 / 560, "energyJoules": 5000, "smClock": 1700, "pcieReplays": 0},
    **{"correctedMemoryErrors": 11, "uncorrectedMemoryErrors": 0, "unCorrectedMemoryErrors": 0},
}
MI250_SECOND = {
    **{"gpu": 98, "memory": 32, "memoryReadWriteActivity": 32, "memoryAllocated": 100 * 12 / 64, "memoryAllocatedBytes": 12 * GIB},
    **{"memoryTotalBytes": 64 * GIB, "memoryFreeBytes": 52 * GIB, "temp": 45.001, "hotspotTemp": 61, "memoryTemp": 54},
    **{"smClock": 1700, "pcieReplays": 0, "correctedMemoryErrors": 11, "uncorrectedMemoryErrors": 1, "unCorrectedMemoryErrors": 1},
}
MI300X = {
    **{"gpu": 95, "memory": 62, "memoryReadWriteActivity": 62, "memoryAllocated": 15.625, "memoryAllocatedBytes": 30 * GIB},
    **{"memoryTotalBytes": 192 * GIB, "memoryFreeBytes": 162 * GIB, "temp": 58, "hotspotTemp": 58, "memoryTemp": 47},
    **{"tempLimit.slowdown": 100, "powerWatts": 611, "enforcedPowerLimitWatts": 750, "powerPercent": 100 * 611 / 750},
    **{"energyJoules": 7000.5, "smClock": 132, "memoryClock": 1300, "maxSmClock": 2100, "maxMemoryClock": 1300, "pcieReplays": 3},
    **{"xgmiRxBytesTotal": 600 * 1024, "xgmiTxBytesTotal": 6 * 1024},
}
PHOENIX = {
    **{"gpu": 7, "memoryAllocated": 100 * 3.25 / 15.5, "memoryAllocatedBytes": 3 * GIB + GIB // 4, "memoryFreeBytes": 49 * GIB // 4},
    **{"memoryTotalBytes": 31 * GIB // 2, "temp": 42, "powerWatts": 9.1, "smClock": 801, "maxSmClock": 2800},
    **{"throttled": 1, "throttle.swPowerCap": 1, "throttle.swThermalSlowdown": 0, "throttle.hwThermalSlowdown": 0},
    **{"throttle.currentLimit": 0},
}
GOLDEN: dict[str, tuple[Callable[[Tree], Any], list[dict[str, float]]]] = {
    "RX 7900": (machines.rx_7900, [RX_7900]),
    "MI250": (machines.mi250, [MI250_FIRST, MI250_SECOND]),
    "MI300X": (machines.mi300x, [MI300X]),
    "Phoenix": (machines.phoenix, [PHOENIX]),
}


def pick(reading: Reading, names: Sequence[str]) -> list[float]:
    return [values(reading)[name] for name in names]


def read(unit: int = 0) -> Reading:
    return backend.open().reader(OPTIONS).read(unit, [])


@pytest.mark.parametrize("machine", GOLDEN)
def test_each_value_is_the_files_and_each_other_metric_has_a_reason(tree: Tree, machine: str) -> None:
    build, expected = GOLDEN[machine]
    build(tree)
    opened = backend.open()
    assert opened.source == "sysfs"
    assert len(opened.devices) == len(expected)
    for unit, golden in enumerate(expected):
        reading = opened.reader(OPTIONS).read(unit, [])
        assert values(reading) == pytest.approx(golden, rel=1e-12)
        assert sorted([*golden, *reading.unavailable]) == sorted(expected_names("amd"))
        allowed = {Reason.NOT_SUPPORTED} | ({Reason.NEEDS_INTERVAL} if machine == "MI300X" else set())
        assert {why.reason for why in reading.unavailable.values()} == allowed
        assert all(why.detail for why in reading.unavailable.values())


def test_a_serial_number_of_zeros_is_none(tree: Tree) -> None:
    machines.rx_7900(tree).write({"serial_number": "0000000000000000"})
    (device,) = backend.open().devices
    assert device.serial == ""


def test_who_a_card_is(tree: Tree) -> None:
    machines.rx_7900(tree)
    (device,) = backend.open().devices
    assert (device.kind, device.vendor, device.vendor_index) == ("gpu", "amd", 0)
    assert (device.name, device.uuid, device.pci_bus_id) == ("AMD Radeon RX 7900 XTX", "0x7d4e1f2a90b3c611", "0000:03:00.0")
    assert (device.architecture, device.firmware) == ("gfx1100", "113-EXT85427-100")
    assert (device.memory_total_bytes, device.unified) == (24 * GIB, False)


def test_a_pair_of_dies_is_two_devices_with_ids_of_their_own(tree: Tree) -> None:
    machines.mi250(tree)
    devices = backend.open().devices
    assert [device.uuid for device in devices] == ["0x1f9d5c0e77aa0001", "0x1f9d5c0e77aa0002"]
    assert {device.name for device in devices} == {"AMD INSTINCT MI250 (MCM) OAM AC MBA"}
    assert {device.serial for device in devices} == {"PCB031144-0021"}
    assert {device.part_number for device in devices} == {"102-D65208-0C"}


def test_the_power_of_a_package_is_told_once(tree: Tree) -> None:
    machines.mi250(tree)
    reading = read(1)
    for name in ("powerWatts", "enforcedPowerLimitWatts", "powerPercent", "energyJoules"):
        assert reading.unavailable[name].reason == Reason.NOT_SUPPORTED
    assert "no measurement" in reading.unavailable["powerWatts"].detail


def test_an_apu_is_unified_and_an_id_of_zeros_is_none(tree: Tree) -> None:
    machines.phoenix(tree)
    (device,) = backend.open().devices
    assert device.unified
    assert (device.uuid, device.name, device.memory_total_bytes) == ("", "AMD GPU (0x15bf)", 31 * GIB // 2)


# MI300: accumulators and partitions


def test_throttling_of_mi300_is_what_rose_since_this_consumers_last_reading(tree: Tree) -> None:
    card = machines.mi300x(tree)
    opened = backend.open()
    reader, other = opened.reader(OPTIONS), opened.reader(OPTIONS)
    names = ("throttle.swPowerCap", "throttle.swThermalSlowdown", "throttle.hwThermalSlowdown")
    first = reader.read(0, [])
    assert {first.unavailable[name].reason for name in names} == {Reason.NEEDS_INTERVAL}
    card.write({"gpu_metrics": mi300_table(ppt_residency_acc=25, hbm_thm_residency_acc=51)})
    assert pick(reader.read(0, []), (*names, "throttled")) == [1, 1, 0, 1]
    assert pick(reader.read(0, []), (*names, "throttled")) == [0, 0, 0, 0]
    assert other.read(0, []).unavailable[names[0]].reason == Reason.NEEDS_INTERVAL
    card.write({"gpu_metrics": mi300_table(ppt_residency_acc=25, hbm_thm_residency_acc=51, vr_thm_residency_acc=41)})
    assert pick(reader.read(0, []), names) == [0, 0, 1]
    assert pick(other.read(0, []), names) == [0, 0, 1]


def test_a_card_without_sensors_is_read_from_its_table(tree: Tree) -> None:
    card = machines.mi300x(tree)
    card.remove(*(f"hwmon/hwmon3/{name}" for name in ("temp2_input", "temp3_input", "power1_input", "temp2_label", "temp3_label")))
    card.remove("gpu_busy_percent", "mem_busy_percent", "pp_dpm_sclk", "pp_dpm_mclk")
    found = values(read())
    names = ("gpu", "memory", "temp", "hotspotTemp", "memoryTemp", "powerWatts", "smClock", "memoryClock")
    assert [found[name] for name in names] == [94, 61, 57, 57, 49, 612, 2100, 1300]


def test_partitions_are_devices_below_their_card_with_memory_and_activity_alone(tree: Tree) -> None:
    machines.mi300x(tree, "CPX", 8)
    opened = backend.open()
    parent, *parts = opened.devices
    assert len(parts) == 8
    assert {part.parent for part in parts} == {parent.uuid}
    assert len({part.uuid for part in parts}) == 8
    assert [part.vendor_index for part in parts] == list(range(8))
    assert parts[3].name == "AMD Instinct MI300X OAM (CPX partition 3)"
    assert {part.part_number for part in parts} == {"102-G30211-0C"}, "a partition is on its card's board"
    assert (parts[3].memory_total_bytes, parts[3].architecture) == (24 * GIB, "gfx942")
    reader = opened.reader(OPTIONS)
    assert values(reader.read(0, [])) == pytest.approx(MI300X)
    assert values(reader.read(1, [])) == pytest.approx(
        {"gpu": 70, "memoryAllocatedBytes": GIB, "memoryTotalBytes": 24 * GIB, "memoryFreeBytes": 23 * GIB, "memoryAllocated": 100 / 24}
    )
    assert values(reader.read(2, []))["gpu"] == 10
    idle = reader.read(8, [])
    assert sorted([*values(idle), *idle.unavailable]) == sorted(expected_names("amd", partition=True))
    assert idle.unavailable["gpu"].reason == Reason.NOT_SUPPORTED


def test_a_card_that_is_one_partition_is_one_device(tree: Tree) -> None:
    machines.mi300x(tree, "SPX", 1)
    assert len(backend.open().devices) == 1


# Cards that sleep, go, or do not answer


def test_a_card_that_sleeps_is_not_touched_and_every_metric_says_so(tree: Tree) -> None:
    card, _ = machines.laptop(tree)
    opened = backend.open()
    progress: list[Any] = []
    reading = opened.reader(OPTIONS).read(0, progress)
    assert progress == ["power/runtime_status"]
    assert values(reading) == {}
    assert sorted(reading.unavailable) == sorted(expected_names("amd"))
    assert {why.reason for why in reading.unavailable.values()} == {Reason.SUSPENDED}
    assert card.address in reading.unavailable["gpu"].detail
    assert values(opened.reader(OPTIONS).read(1, [])) == pytest.approx(PHOENIX)
    assert (opened.devices[0].unified, opened.devices[0].memory_total_bytes) == (False, None)


def test_opening_reads_nothing_of_a_card_that_sleeps_that_would_wake_it(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    card, _ = machines.laptop(tree)
    wakes = [card.path / "gpu_metrics", card.path / "gpu_busy_percent", card.path / "mem_info_vram_total", card.path / "hwmon"]
    for path in wakes[:3]:
        path.unlink()
        path.symlink_to(tree.root / "trap")  # a FIFO without a writer: opening it waits
    os.mkfifo(tree.root / "trap")
    monkeypatch.setattr("accelmetrics.backends.amd.in_process.list_directory", _no_sensors)
    opened = backend.open()
    assert opened.reader(OPTIONS).read(0, []).unavailable["gpu"].reason == Reason.SUSPENDED


def _no_sensors(path: str) -> list[str]:
    raise AssertionError(f"{path} was looked into")


def test_a_card_that_wakes_is_read_from_then_on(tree: Tree) -> None:
    card, _ = machines.laptop(tree)
    reader = backend.open().reader(OPTIONS)
    assert values(reader.read(0, [])) == {}
    card.write({"power/runtime_status": "active", "gpu_busy_percent": 33})
    found = values(reader.read(0, []))
    assert (found["gpu"], found["temp"]) == (33, 30)
    card.write({"power/runtime_status": "suspending"})
    assert values(reader.read(0, [])) == {}


def test_a_kernel_without_power_management_shows_cards_that_are_awake(tree: Tree) -> None:
    machines.rx_7900(tree).remove("power/runtime_status")
    assert values(read())["gpu"] == 83


def test_a_card_that_falls_off_the_bus_is_lost_and_its_neighbour_is_not(tree: Tree) -> None:
    first, _ = machines.mi250(tree)
    reader = backend.open().reader(OPTIONS)
    assert values(reader.read(0, []))["gpu"] == 97
    first.vanish()
    forget_descriptors(reader)
    with pytest.raises(SourceError) as caught:
        reader.read(0, [])
    assert caught.value.reason == Reason.DEVICE_LOST
    assert first.address in caught.value.message
    assert values(reader.read(1, []))["gpu"] == 98


def forget_descriptors(reader: Any) -> None:
    """On a real machine descriptors of files that have gone answer an error; those of a tree go on to be readable."""
    for unit in reader._driver.units:
        for file in unit.card._kept.values():
            file.close()


@pytest.mark.parametrize(
    ("number", "reason", "words"),
    [
        (errno.EACCES, Reason.NO_PERMISSION, "may not be read by this user"),
        (errno.EPERM, Reason.DRIVER_ERROR, "while it resets the card"),
        (errno.EOPNOTSUPP, Reason.NOT_SUPPORTED, "has no value for this card"),
        (errno.ENODEV, Reason.DEVICE_LOST, "has gone"),
        (errno.EIO, Reason.DRIVER_ERROR, "Input/output error"),
    ],
)
def test_a_file_that_cannot_be_read_costs_its_own_metrics_alone(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, number: int, reason: Reason, words: str
) -> None:
    machines.rx_7900(tree)
    read_whole = os.pread

    def refuse(descriptor: int, size: int, offset: int) -> bytes:
        if Path(f"/proc/self/fd/{descriptor}").readlink().name in ("power1_average", "gpu_busy_percent"):
            raise OSError(number, os.strerror(number))
        return read_whole(descriptor, size, offset)

    monkeypatch.setattr("accelmetrics.backends.kit.system.os.pread", refuse)
    reading = read()
    missing = {name: why for name, why in reading.unavailable.items() if words in why.detail}
    expected = {"powerWatts", "powerPercent", "gpu"}
    assert missing.keys() == expected
    assert {why.reason for why in missing.values()} == {reason}
    assert values(reading) == pytest.approx({name: value for name, value in RX_7900.items() if name not in expected})


DAMAGE: list[tuple[str, Any, str, Reason]] = [
    ("gpu_busy_percent", 101, "gpu", Reason.INVALID_VALUE),
    ("gpu_busy_percent", "busy", "gpu", Reason.PARSE_ERROR),
    ("gpu_busy_percent", "", "gpu", Reason.NOT_SUPPORTED),
    ("hwmon/hwmon3/temp1_input", 65535000, "temp", Reason.INVALID_VALUE),
    ("hwmon/hwmon3/temp1_input", -273000, "temp", Reason.INVALID_VALUE),
    ("hwmon/hwmon3/temp1_crit", 0, "tempLimit.slowdown", Reason.NOT_SUPPORTED),
    ("hwmon/hwmon3/power1_average", 0xFFFFFFFF, "powerWatts", Reason.INVALID_VALUE),
    ("hwmon/hwmon3/power1_cap", 0, "enforcedPowerLimitWatts", Reason.NOT_SUPPORTED),
    ("hwmon/hwmon3/pwm1", 256, "fanSpeed", Reason.INVALID_VALUE),
    ("hwmon/hwmon3/freq1_input", 2**64 - 1, "smClock", Reason.INVALID_VALUE),
    ("mem_info_vram_total", 0, "memoryTotalBytes", Reason.NOT_SUPPORTED),
    ("mem_info_vram_used", 25 * GIB, "memoryAllocatedBytes", Reason.INVALID_VALUE),
    ("mem_info_vram_used", 2**64 - 1, "memoryFreeBytes", Reason.INVALID_VALUE),
    ("pcie_replay_count", 2**32 - 1, "pcieReplays", Reason.INVALID_VALUE),
    ("gpu_metrics", b"", "throttle.swPowerCap", Reason.PARSE_ERROR),
    ("gpu_metrics", table(1, 3)[:100], "throttle.swPowerCap", Reason.PARSE_ERROR),
    ("gpu_metrics", b"\x08\x00\x01\x09\0\0\0\0", "throttle.swPowerCap", Reason.NOT_SUPPORTED),
]


@pytest.mark.parametrize(("file", "content", "metric", "reason"), DAMAGE)
def test_what_cannot_be_true_is_no_value(tree: Tree, file: str, content: Any, metric: str, reason: Reason) -> None:
    card = machines.rx_7900(tree)
    card.write({file: content})
    reading = read()
    assert reading.unavailable[metric].reason == reason
    assert sorted([*values(reading), *reading.unavailable]) == sorted(expected_names("amd"))


def test_a_newer_card_has_its_power_under_the_other_name(tree: Tree) -> None:
    card = machines.rx_7900(tree)
    card.remove("hwmon/hwmon3/power1_average")
    card.sensors({"power1_input": 87000000})
    assert values(read())["powerWatts"] == 87


def test_memory_with_a_sensor_for_each_stack_is_as_hot_as_the_hottest(tree: Tree) -> None:
    card = machines.rx_7900(tree)
    card.remove("hwmon/hwmon3/temp3_input", "hwmon/hwmon3/temp3_label")
    card.sensors({"temp4_label": "HBM_0", "temp4_input": 61000, "temp5_label": "HBM_1", "temp5_input": 66000})
    assert values(read())["memoryTemp"] == 66


def test_energy_is_taken_from_a_sensor_where_there_is_one(tree: Tree) -> None:
    machines.rx_7900(tree).sensors({"energy1_input": 5_500_000})
    assert values(read())["energyJoules"] == 5.5


def test_an_energy_counter_whose_unit_is_undocumented_is_not_read(tree: Tree) -> None:
    card = machines.rx_7900(tree)
    assert read().unavailable["energyJoules"].reason == Reason.NOT_SUPPORTED
    card.write({"gpu_metrics": table(1, 3, energy_accumulator=65536 * 3, temperature_hbm=[40, 41, 42, 43])})
    assert values(read())["energyJoules"] == 3


def test_the_memory_clock_of_a_processors_gpu_is_in_its_table(tree: Tree) -> None:
    card = machines.phoenix(tree)
    card.write({"gpu_metrics": table(3, 0, average_uclk_frequency=937)})
    assert values(read())["memoryClock"] == 937


def test_slow_values_are_read_every_ten_seconds_and_fast_ones_each_time(tree: Tree) -> None:
    clock, card = FakeClock(), machines.rx_7900(tree)
    reader = InProcessDriver(clock).reader(OPTIONS)
    reader.read(0, [])
    card.write({"gpu_busy_percent": 12, "pcie_replay_count": 6})
    clock.advance(9)
    assert pick(reader.read(0, []), ("gpu", "pcieReplays")) == [12, 5]
    clock.advance(1)
    assert pick(reader.read(0, []), ("gpu", "pcieReplays")) == [12, 6]


def test_a_new_card_makes_the_driver_reopen(tree: Tree) -> None:
    clock = FakeClock()
    machines.rx_7900(tree)
    reader = InProcessDriver(clock).reader(OPTIONS)
    machines.mi300x(tree)
    assert values(reader.read(0, []))["gpu"] == 83
    clock.advance(30)
    with pytest.raises(DriverGoneError):
        reader.read(0, [])
    assert len(InProcessDriver(clock).devices) == 2


def test_a_card_that_is_partitioned_anew_makes_the_driver_reopen(tree: Tree) -> None:
    clock = FakeClock()
    machines.mi300x(tree)
    reader = InProcessDriver(clock).reader(OPTIONS)
    tree.node(3, {"simd_count": 608, "location_id": location(5, 0, 1), "domain": 0, "gfx_target_version": 90402})
    clock.advance(30)
    with pytest.raises(DriverGoneError):
        reader.read(0, [])


def test_a_card_that_the_driver_lets_go_of_makes_the_driver_reopen(tree: Tree) -> None:
    card = tree.device("0000:03:00.0", {"gpu_busy_percent": 64, "mem_info_vram_used": 5 * GIB, "mem_info_vram_total": 64 * GIB})
    card.sensors({"temp1_input": 39000, "power1_average": 152000000, "power1_cap": 400000000})
    reader = backend.open().reader(OPTIONS)
    reader.read(0, [])
    card.remove("gpu_busy_percent", "mem_info_vram_used", "mem_info_vram_total", "hwmon/hwmon3/temp1_input")
    card.remove("hwmon/hwmon3/power1_average", "hwmon/hwmon3/power1_cap")
    forget_descriptors(reader)
    reader._driver.units[0].card._due = 0  # type: ignore[attr-defined]
    with pytest.raises(DriverGoneError, match=r"no longer shows 0000:03:00\.0"):
        reader.read(0, [])


def test_pcie_bandwidth_is_never_read(tree: Tree) -> None:
    """The kernel counts packets for a whole second before it answers."""
    card = machines.rx_7900(tree)
    os.mkfifo(card.path / "pcie_bw")
    progress: list[Any] = []
    backend.open().reader(OPTIONS).read(0, progress)
    assert "pcie_bw" not in progress


@pytest.mark.parametrize("driver", ["vfio-pci", "radeon", ""])
def test_a_card_that_amdgpu_does_not_drive_is_none_of_ours(tree: Tree, driver: str) -> None:
    tree.device("0000:03:00.0", {"gpu_busy_percent": 5}, driver=driver)
    with pytest.raises(SourceError) as caught:
        backend.pinned("sysfs").open()
    assert caught.value.reason == Reason.DRIVER_UNAVAILABLE
    assert "no GPU is driven by amdgpu here" in caught.value.message


def test_a_card_of_which_nothing_is_shown_is_left_to_other_sources(tree: Tree) -> None:
    tree.device("0000:03:00.0", {"device": "0x744c"})
    with pytest.raises(SourceError) as caught:
        backend.pinned("sysfs").open()
    assert caught.value.message == "the kernel driver's files are not visible here: 0000:03:00.0"


def test_a_partition_of_a_card_that_sleeps_sleeps(tree: Tree) -> None:
    card = machines.mi300x(tree, "DPX", 2)
    card.write({"power/runtime_status": "suspended"})
    reading = backend.open().reader(OPTIONS).read(1, [])
    assert sorted(reading.unavailable) == sorted(expected_names("amd", partition=True))
    assert {why.reason for why in reading.unavailable.values()} == {Reason.SUSPENDED}


def descriptors_within(root: Path) -> list[Path]:
    """What this process has open below ``root``; what other tests left open does not count."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the descriptor of this very listing
            found.append(entry.readlink())
    return [path for path in found if path.is_relative_to(root)]


def test_closing_gives_the_descriptors_back(tree: Tree) -> None:
    card = machines.rx_7900(tree)
    root = card.path.resolve()
    assert descriptors_within(root) == []
    opened = backend.open()
    reader = opened.reader(OPTIONS)
    reader.read(0, [])
    assert descriptors_within(root)
    opened.close()
    assert descriptors_within(root) == []
    assert isinstance(reader.read(0, []), Reading)
    opened.close()


# Which of several places


def test_where_the_edge_sensor_is_silent_once_neither_temperature_nor_limits_are_the_hotspots(tree: Tree) -> None:
    clock, card = FakeClock(), machines.rx_7900(tree)
    reader = InProcessDriver(clock).reader(OPTIONS)
    names = ("temp", "tempLimit.slowdown", "hotspotTemp")
    assert pick(reader.read(0, []), names) == [51, 100, 68]
    card.sensors({"temp1_input": "N/A"})
    silent = reader.read(0, [])
    assert silent.unavailable["temp"].reason == Reason.NOT_SUPPORTED
    assert pick(silent, names[1:]) == [100, 68]
    card.sensors({"temp1_input": 52000})
    assert pick(reader.read(0, []), names) == [52, 100, 68]


@pytest.mark.parametrize(
    ("metric", "sensor", "before", "other"),
    [
        ("powerWatts", "power1_average", 241_000_000, {"hwmon/hwmon3/power1_input": 87_000_000}),
        ("energyJoules", "energy1_input", 5_500_000, {"gpu_metrics": table(1, 3, energy_accumulator=65536 * 3, temperature_hbm=[40] * 4)}),
        ("memoryTemp", "temp3_input", 74_000, {"gpu_metrics": table(1, 3, temperature_hbm=[40] * 4)}),
        ("smClock", "freq1_input", 2_411_000_000, {"pp_dpm_sclk": "0: 500Mhz *"}),
    ],
)
def test_a_value_comes_from_one_register_until_the_driver_is_opened_again(
    tree: Tree, metric: str, sensor: str, before: int, other: dict[str, Any]
) -> None:
    card = machines.rx_7900(tree)
    card.write({f"hwmon/hwmon3/{sensor}": before, **other})
    reader = backend.open().reader(OPTIONS)
    known = values(reader.read(0, []))[metric]
    card.sensors({sensor: "N/A"})
    assert reader.read(0, []).unavailable[metric].reason == Reason.NOT_SUPPORTED
    assert values(backend.open().reader(OPTIONS).read(0, []))[metric] not in (known, None)


def test_a_card_that_came_back_is_looked_at_anew(tree: Tree) -> None:
    first, _ = machines.mi250(tree)
    reader = backend.open().reader(OPTIONS)
    assert values(reader.read(0, []))["temp"] == 45
    driver = (first.path / "driver").readlink()
    (first.path / "driver").unlink()
    with pytest.raises(SourceError):
        reader.read(0, [])
    (first.path / "driver").symlink_to(driver)
    first.sensors({"temp1_input": "N/A"})
    assert values(reader.read(0, []))["temp"] == 61


# Errors, as the enabled blocks count them


@pytest.mark.parametrize(
    ("mask", "counts"),
    [("feature mask: 0x5", [11, 0]), ("feature mask: 0x1", [7, 0]), ("feature mask: 0x4", [4, 0]), (None, [11, 0]), ("?", [11, 0])],
)
def test_errors_are_those_of_the_blocks_that_count(tree: Tree, mask: str | None, counts: list[int]) -> None:
    """As AMD's library adds them; without a mask all are."""
    first, _ = machines.mi250(tree)
    if mask is None:
        first.remove("ras/features")
    else:
        first.write({"ras/features": mask})
    first.write({"ras/a_block_of_later_cards_err_count": "ue: 0\nce: 0"})
    assert pick(read(), ("correctedMemoryErrors", "uncorrectedMemoryErrors")) == counts


def test_a_card_none_of_whose_blocks_counts_has_no_errors(tree: Tree) -> None:
    first, _ = machines.mi250(tree)
    first.write({"ras/features": "feature mask: 0x0"})
    why = read().unavailable["correctedMemoryErrors"]
    assert (why.reason, why.detail) == (Reason.NOT_SUPPORTED, "ras/features is 0: the card counts no errors")


# The memory of a processor's GPU


def halo(tree: Tree, compute: int | None) -> Device:
    """128 GiB, of which 96 are carved out; the rest is for the GTT."""
    card = machines.phoenix(tree)
    card.write({"mem_info_vram_total": 96 * GIB, "mem_info_vram_used": 8 * GIB, "mem_info_gtt_total": 36 * GIB, "mem_info_gtt_used": GIB})
    if compute is not None:
        tree.node(1, {"simd_count": 80, "location_id": location(0xC4), "domain": 0, "gfx_target_version": 110501}, compute)
    return card


@pytest.mark.parametrize(
    ("compute", "total", "used"),
    [(96 * GIB, 96, 8), (36 * GIB - 4096, 36, 1), (None, 132, 9), (512 * GIB, 132, 9)],
    ids=["the carve-out", "the GTT", "no compute driver", "neither"],
)
def test_two_memories_are_not_added_where_the_kernel_says_which_one_compute_uses(
    tree: Tree, compute: int | None, total: int, used: int
) -> None:
    tree.whole_machine()
    halo(tree, compute)
    tree.process(41, {7: ("/dev/dri/renderD128", client("0000:c4:00.0", 1, 1024, 4096))}, parent=2)
    opened = backend.open()
    reading = opened.reader(OPTIONS).read(0, [])
    assert pick(reading, ("memoryTotalBytes", "memoryAllocatedBytes")) == [total * GIB, used * GIB]
    assert opened.devices[0].memory_total_bytes == total * GIB
    of_process = {96: 1024, 36: 4096}.get(total, 5120)
    assert reading.processes == (DeviceProcess(41, "", of_process * 1024, None),)


def test_where_a_size_is_silent_once_the_memory_is_not_another(tree: Tree) -> None:
    card = halo(tree, 36 * GIB)
    reader = backend.open().reader(OPTIONS)
    assert values(reader.read(0, []))["memoryAllocatedBytes"] == GIB
    card.write({"mem_info_gtt_total": "N/A"})
    reader._driver.units[0].card._due = 0  # type: ignore[attr-defined]
    assert "memoryTotalBytes" not in values(reader.read(0, []))


# The link to the slot


@pytest.mark.parametrize(
    ("levels", "link"),
    [
        ("0: 2.5GT/s, x8 81Mhz \n1: 8.0GT/s, x8 619Mhz *", [3, 8, 3, 8]),
        ("0: 2.5GT/s, x1 310Mhz *\n1: 16.0GT/s, x16 619Mhz ", [1, 1, 4, 16]),
        ("0: 16.0GT/s, x16 78Mhz *\n1: 16.0GT/s, x16 156Mhz *", [4, 16, 4, 16]),
        ("0: 2.5GT/s, x16 *\n1: 8.0GT/s, x16 *", [None, None, 3, 16]),
        ("0: 2.5GT/s, x1 81Mhz \n1: 16.0GT/s, x8 306Mhz ", [None, None, 4, 8]),
        ("", [4, 16, 4, 16]),
    ],
)
def test_where_no_bridge_can_be_read_the_driver_has_the_link_to_the_slot(tree: Tree, levels: str, link: list[int | None]) -> None:
    """What the card itself shows is the link inside it."""
    card = machines.rx_7900(tree)
    home = card.path.resolve()
    for address in (machines.SLOT, machines.BRIDGE):
        (card.path.parent / address).unlink()
    card.write({"pp_dpm_pcie": levels})
    assert home.exists()
    found = values(read())
    assert [found.get(name) for name in ("pcieLinkGen", "pcieLinkWidth", "maxPcieLinkGen", "maxPcieLinkWidth")] == link


def test_where_a_bridge_can_be_read_its_link_is_the_one(tree: Tree) -> None:
    machines.rx_7900(tree).write({"pp_dpm_pcie": "0: 2.5GT/s, x1 81Mhz *"})
    assert pick(read(), ("pcieLinkGen", "pcieLinkWidth")) == [3, 8]


# Cards that share an id


def test_two_cards_with_one_id_are_both_there_and_named_by_neither(tree: Tree) -> None:
    first, second = machines.mi250(tree)
    second.write({"unique_id": (first.path / "unique_id").read_text().strip()})
    opened = backend.open()
    assert [(device.uuid, device.pci_bus_id) for device in opened.devices] == [("", first.address), ("", second.address)]
    reader = opened.reader(OPTIONS)
    assert [values(reader.read(unit, []))["gpu"] for unit in (0, 1)] == [97, 98]
