"""Devices that are directories of files: a Tenstorrent card's, as its driver shows them."""

from __future__ import annotations

import errno
import sys
from pathlib import Path
from typing import Any, cast

import pytest
from pytest_mock import MockerFixture

from accelmetrics.backends.built_in import BUILT_IN, Registration
from accelmetrics.backends.contract import Reading, ReadOptions
from accelmetrics.backends.kit import Field, PolledBackend, directories
from accelmetrics.backends.kit.fields import Row
from accelmetrics.backends.kit.polled import PolledReader
from accelmetrics.backends.kit.processes import DrmClients, DrmKeys
from accelmetrics.backends.kit.sysfs import OnChip, clocks
from accelmetrics.backends.kit.system import KeptFile
from accelmetrics.schemas.errors import Reason, SourceError
from accelmetrics.schemas.identity import DeviceProcess
from accelmetrics.schemas.metric import Metric
from accelmetrics.schemas.selection import MetricSelection
from accelmetrics.testing import FakeClock
from tests.simulators.amdgpu import Content
from tests.simulators.drm import DrmTree, fdinfo
from tests.support.readings import values

FIELDS = (
    Field("temp", "device/hwmon/hwmon*/temp1_input", "mC"),
    Field("powerWatts", "device/hwmon/hwmon*/power1_input", "uW"),
    Field("smClock", "tt_aiclk", "MHz"),
    Field("enforcedPowerLimitWatts", "device/hwmon/hwmon*/power1_max", "uW"),
)
IDENTITY = {"vendor_index": "@number", "pci_bus_id": "@pci", "serial": "tt_serial", "name": "@name"}
OPTIONS = ReadOptions(1)
PCI = "0000:03:00.0"


class Tree:
    """A tree of system files.

    Attributes:
        root: Its root.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def card(self, number: int, driver: str = "tenstorrent") -> Path:
        """A card in its slot, and the directory of its class."""
        slot = self.root / f"sys/devices/pci0000:00/0000:0{number + 1}:00.0"
        (slot / f"hwmon/hwmon{number + 3}").mkdir(parents=True)
        (self.root / f"sys/bus/pci/drivers/{driver}").mkdir(parents=True, exist_ok=True)
        (slot / "driver").symlink_to(self.root / f"sys/bus/pci/drivers/{driver}")
        device = self.root / f"sys/class/tenstorrent/tenstorrent!{number}"
        device.mkdir(parents=True)
        (device / "device").symlink_to(slot)
        (device / "tt_serial").write_text(f"01{number}\n")
        (device / "tt_aiclk").write_text("1000\n")
        self.sensor(number, "temp1_input", "45500")
        self.sensor(number, "power1_input", "38000000")
        self.sensor(number, "power1_max", "300000000")
        return device

    def sensor(self, number: int, name: str, text: str) -> Path:
        path = next((self.root / f"sys/devices/pci0000:00/0000:0{number + 1}:00.0/hwmon").iterdir()) / name
        path.write_text(f"{text}\n")
        return path


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    monkeypatch.setenv("ACCELMETRICS_SYSROOT", str(tmp_path))
    return Tree(tmp_path)


def backend_of(clock: FakeClock, **more: Any) -> PolledBackend:
    connect = directories("/sys/class/tenstorrent/tenstorrent!*", **more)
    return PolledBackend("tenstorrent", kind="npu", source="sysfs", connect=connect, fields=FIELDS, identity=IDENTITY, clock=clock)


def read(reader: PolledReader, unit: int, progress: list[Any] | None = None) -> dict[str, Any]:
    return values(reader.read(unit, [] if progress is None else progress))


def test_values_and_identity(tree: Tree) -> None:
    tree.card(0)
    tree.card(1)
    driver = backend_of(FakeClock()).open()
    reader = driver.reader(OPTIONS)
    progress: list[Any] = []
    assert read(reader, 1, progress) == {"temp": 45.5, "powerWatts": 38, "smClock": 1000, "enforcedPowerLimitWatts": 300}
    assert {"tt_aiclk", "device/hwmon/hwmon*/temp1_input"} <= set(progress)
    device = driver.devices[1]
    assert (device.vendor_index, device.pci_bus_id, device.serial, device.name) == (1, "0000:02:00.0", "011", "tenstorrent!1")
    tree.sensor(1, "temp1_input", "46000")
    assert read(reader, 1)["temp"] == 46
    driver.close()


def test_a_file_that_is_missing_costs_its_metric_until_it_comes(tree: Tree) -> None:
    card = tree.card(0)
    (card / "tt_aiclk").unlink()
    clock = FakeClock()
    reader = backend_of(clock).open().reader(OPTIONS)
    reading = reader.read(0, [])
    assert reading.unavailable["smClock"] == (Reason.NOT_SUPPORTED, 'sysfs does not report "tt_aiclk"')
    (card / "tt_aiclk").write_text("800\n")
    clock.advance(1.0)
    assert read(reader, 0)["smClock"] == 800


@pytest.mark.parametrize("text", ["", "garbage"])
def test_a_file_that_says_nothing_has_a_reason(tree: Tree, text: str) -> None:
    tree.card(0)
    tree.sensor(0, "temp1_input", text)
    reading = backend_of(FakeClock()).open().reader(OPTIONS).read(0, [])
    assert reading.unavailable["temp"].reason == (Reason.PARSE_ERROR if text else Reason.NOT_SUPPORTED)


def test_a_file_that_answers_an_error_has_its_reason(tree: Tree) -> None:
    """As a sensor of a powered-off block does: a directory cannot be read like a file."""
    tree.card(0)
    sensor = tree.sensor(0, "temp1_input", "1")
    sensor.unlink()
    sensor.mkdir()
    reading = backend_of(FakeClock()).open().reader(OPTIONS).read(0, [])
    assert reading.unavailable["temp"].reason == Reason.DRIVER_ERROR
    assert values(reading)["powerWatts"] == 38


def test_a_sensor_directory_that_gets_another_number_is_found_again(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a driver comes back; the kept descriptor answers that the device has gone."""
    tree.card(0)
    reader = backend_of(FakeClock()).open().reader(OPTIONS)
    assert read(reader, 0)["temp"] == 45.5
    hwmon = tree.sensor(0, "temp1_input", "50000").parent
    hwmon.rename(hwmon.with_name("hwmon9"))
    gone, really = {"hwmon3"}, KeptFile.read

    def answer(file: KeptFile) -> bytes:
        if any(f"/{directory}/" in file.path for directory in gone):
            raise OSError(errno.ENODEV, "No such device")
        return really(file)

    monkeypatch.setattr(KeptFile, "read", answer)
    assert reader.read(0, []).unavailable["temp"].reason == Reason.NOT_SUPPORTED
    assert read(reader, 0)["temp"] == 50


def test_a_card_that_goes_is_lost_and_one_that_comes_is_added(tree: Tree) -> None:
    clock = FakeClock()
    one = tree.card(0)
    driver = backend_of(clock).open()
    reader = driver.reader(OPTIONS)
    read(reader, 0)
    one.rename(one.with_name("gone"))
    with pytest.raises(SourceError, match="tenstorrent!0 has gone") as caught:
        reader.read(0, [])
    assert caught.value.reason == Reason.DEVICE_LOST
    tree.card(1)
    clock.advance(1.0)
    with pytest.raises(SourceError, match="sysfs no longer lists NPU 0"):
        reader.read(0, [])
    assert read(reader, 1)["powerWatts"] == 38
    assert [device.pci_bus_id for device in driver.devices] == ["0000:01:00.0", "0000:02:00.0"]


def test_a_driver_that_is_loaded_again_may_give_a_card_another_number(tree: Tree) -> None:
    """Its directories have the old names, and are others: a card keeps its place, whatever its number."""
    clock = FakeClock()
    for number in range(2):
        tree.card(number)
    driver = backend_of(clock).open()
    reader = driver.reader(OPTIONS)
    read(reader, 0)
    class_ = tree.root / "sys/class/tenstorrent"
    class_.rename(class_.with_name("before"))
    for number in range(2):
        device = class_ / f"tenstorrent!{number}"
        device.mkdir(parents=True)
        (device / "device").symlink_to(tree.root / f"sys/devices/pci0000:00/0000:0{2 - number}:00.0")
        (device / "tt_aiclk").write_text(f"{number + 700}\n")
        (device / "tt_serial").write_text(f"01{1 - number}\n")
    clock.advance(1.0)
    assert (read(reader, 0)["smClock"], read(reader, 1)["smClock"]) == (701, 700)
    assert [(device.vendor_index, device.serial) for device in driver.devices] == [(1, "010"), (0, "011")]


def test_only_what_the_right_driver_drives(tree: Tree) -> None:
    tree.card(0, driver="vfio-pci")
    tree.card(1)
    driver = backend_of(FakeClock(), drivers=("tenstorrent",)).open()
    assert [device.vendor_index for device in driver.devices] == [1]


def test_a_card_that_sleeps_is_not_woken(tree: Tree) -> None:
    card = tree.card(0)
    (card / "device/power").mkdir()
    (card / "device/power/runtime_status").write_text("suspended\n")
    reader = backend_of(FakeClock()).open().reader(OPTIONS)
    progress: list[Any] = []
    with pytest.raises(SourceError, match="is suspended") as caught:
        reader.read(0, progress)
    assert caught.value.reason == Reason.SUSPENDED
    assert not any("hwmon" in str(place) for place in progress)
    (card / "device/power/runtime_status").write_text("active\n")
    assert read(reader, 0)["temp"] == 45.5


def test_a_limit_is_read_every_ten_seconds(tree: Tree) -> None:
    tree.card(0)
    clock = FakeClock()
    reader = backend_of(clock).open().reader(OPTIONS)
    assert read(reader, 0)["enforcedPowerLimitWatts"] == 300
    tree.sensor(0, "power1_max", "250000000")
    tree.sensor(0, "power1_input", "39000000")
    clock.advance(5.0)
    progress: list[Any] = []
    assert read(reader, 0, progress) == {"temp": 45.5, "powerWatts": 39, "smClock": 1000, "enforcedPowerLimitWatts": 300}
    assert "device/hwmon/hwmon*/power1_max" not in progress
    clock.advance(5.0)
    assert read(reader, 0)["enforcedPowerLimitWatts"] == 250


def test_who_a_device_is_is_read_once(tree: Tree) -> None:
    tree.card(0)
    clock, progress = FakeClock(), []  # type: FakeClock, list[Any]
    reader = backend_of(clock).open().reader(OPTIONS)
    for _ in range(2):
        clock.advance(1.0)
        reader.read(0, progress)
    assert (progress.count("tt_aiclk"), "tt_serial" in progress) == (2, False)


def test_who_a_device_is_is_read_until_it_is_known(tree: Tree) -> None:
    """A driver may make its files one after the other."""
    serial = tree.card(0) / "tt_serial"
    serial.unlink()
    clock = FakeClock()
    driver = backend_of(clock).open()
    assert driver.devices[0].serial == ""
    serial.write_text("0100\n")
    clock.advance(1.0)
    driver.reader(OPTIONS).read(0, [])
    assert driver.devices[0].serial == "0100"


# Files elsewhere, chosen by what they say, and several of them; what a device is on its bus; what programs use of it


@pytest.fixture
def machine(tree: Tree) -> DrmTree:
    return DrmTree(tree.root)


def reading_of(clock: FakeClock, *fields: Row, pattern: str = "/sys/class/drm/card*", kind: str = "gpu", **more: Any) -> Reading:
    """The first device's reading."""
    connect = directories(pattern, drivers=("xe", "v3d"), **more)
    backend = PolledBackend("acme", kind=kind, source="sysfs", connect=connect, fields=fields, clock=clock)
    return backend.open().reader(OPTIONS).read(0, [])


def test_files_are_chosen_by_what_stands_in_them_or_beside_them(machine: DrmTree) -> None:
    """Not by their numbers, which differ from boot to boot."""
    card = machine.add(PCI, "xe", {})
    machine.sensors(card, 1, {"name": "iwlwifi", "temp1_input": 90_000})
    labels: dict[str, Content] = {
        "temp2_label": "pkg",
        "temp2_input": 61_500,
        "temp3_label": "VRAM",
        "temp3_input": 70_000,
        "temp10_label": "pkg2",
    }
    machine.sensors(card, 4, {"name": "xe", "temp2_input": 61_500, "temp3_input": 70_000, "temp10_input": 1000, **labels})
    for number, (kind, degrees) in enumerate((("cpu-thermal", 55_000), ("GPU-therm\0", 48_000))):
        machine.write(f"/sys/class/thermal/thermal_zone{number}/type", kind)
        machine.write(f"/sys/class/thermal/thermal_zone{number}/temp", degrees)
    rows = (
        Field("temp", "device/hwmon/hwmon[name=xe]/temp[_label=PKG]_input", "mC"),
        Field("memoryTemp", "device/hwmon/hwmon[name=xe]/temp[_label=vram]_input", "mC"),
        Field("hotspotTemp", "/sys/class/thermal/thermal_zone[type=*gpu*]/temp", "mC"),
    )
    assert values(reading_of(FakeClock(), *rows)) == {"temp": 61.5, "memoryTemp": 70, "hotspotTemp": 48}
    (why,) = reading_of(FakeClock(), Field("temp", "device/hwmon/hwmon[name=i915]/temp1_input", "mC")).unavailable.values()
    assert why.reason == Reason.NOT_SUPPORTED


def test_the_highest_or_the_mean_of_several_files(machine: DrmTree) -> None:
    """A sensor that has nothing to say does not count; one that fails may be the highest, and is the reason."""
    card = machine.add(PCI, "xe", {})
    machine.sensors(card, 4, {"temp1_input": 40_000, "temp2_input": 62_000, "temp3_input": "", "fan1_input": 1000, "fan2_input": 2000})
    hottest, fans = Field("temp", "max:device/hwmon/hwmon*/temp*_input", "mC"), Field("fanSpeedRpm", "mean:device/hwmon/hwmon*/fan*_input")
    assert values(reading_of(FakeClock(), hottest, fans)) == {"temp": 62, "fanSpeedRpm": 1500}
    machine.sensors(card, 4, {"temp3_input": "broken"})
    assert reading_of(FakeClock(), hottest).unavailable["temp"].reason == Reason.PARSE_ERROR
    assert reading_of(FakeClock(), Field("temp", "max:device/temp*", "mC")).unavailable["temp"].reason == Reason.NOT_SUPPORTED


def test_a_row_is_read_of_each_instance_that_there_is(machine: DrmTree) -> None:
    """Those that come are there at the next reading."""
    card = machine.add(PCI, "xe", {f"tile0/gt{number}/freq0/act_freq": 300 + number for number in range(2)})
    own = (Metric("gpu.{i}.part.{part}.clock", "MHz", "gauge", "Clock of a part."),)
    row = Field("part.{part}.clock", "device/tile0/gt{}/freq0/act_freq", "MHz")
    backend = PolledBackend("acme", kind="gpu", source="sysfs", connect=directories("/sys/class/drm/card?"), fields=(row,), own_metrics=own)
    reader = backend.open().reader(OPTIONS)
    assert read(reader, 0) == {"part.0.clock": 300, "part.1.clock": 301}
    machine.write(f"/{card.relative_to(machine.root)}/tile0/gt2/freq0/act_freq", 900)
    assert read(reader, 0) == {"part.0.clock": 300, "part.1.clock": 301, "part.2.clock": 900}


def test_what_a_device_is_on_its_bus(machine: DrmTree) -> None:
    """On the PCI bus with the sizes of its memory regions; on a board by its name there."""
    unused, window = "0x0000000000000000 0x0000000000000000 0x0", "0x0000004000000000 0x00000043ffffffff 0x14220c"
    machine.add(PCI, "xe", {"resource": "\n".join((window.replace("43ff", "4000"), unused, window))})
    row, named = Field("memoryTotalBytes", "@bar2", "B"), {"pci_bus_id": "@pci", "name": "@platform", "vendor_index": "@number"}
    assert values(reading_of(FakeClock(), row)) == {"memoryTotalBytes": 2**34}
    assert reading_of(FakeClock(), Field("memoryTotalBytes", "@bar1", "B")).unavailable["memoryTotalBytes"].reason == Reason.NOT_SUPPORTED
    assert reading_of(FakeClock(), Field("memoryTotalBytes", "@bar5", "B")).unavailable["memoryTotalBytes"].reason == Reason.NOT_SUPPORTED
    machine.add("1002000000.v3d", "v3d", {}, number=1)
    connect = directories("/sys/class/drm/card*", drivers=("xe", "v3d"))
    devices = PolledBackend("acme", kind="gpu", source="sysfs", connect=connect, fields=(row,), identity=named).open().devices
    assert [(device.vendor_index, device.pci_bus_id, device.name) for device in devices] == [(0, PCI, ""), (1, "", "1002000000.v3d")]
    on_its_bus = directories("/sys/bus/platform/devices/*.v3d", drivers=("v3d",))
    (device,) = PolledBackend("acme", kind="gpu", source="sysfs", connect=on_its_bus, fields=(row,), identity=named).open().devices
    assert (device.pci_bus_id, device.name) == ("", "1002000000.v3d")


KEYS = DrmKeys({"graphics": ("rcs",), "busy": ("rcs", "vcs")}, (("vram0",),))


@pytest.mark.parametrize(("metrics", "looks"), [("all", True), ("temp,processes", True), ("temp,process.*", True), ("temp", False)])
def test_programs_are_looked_at_where_they_are_wanted(machine: DrmTree, mocker: MockerFixture, metrics: str, looks: bool) -> None:
    """Going through all of ``/proc`` is the dearest part of a reading."""
    card = machine.add(PCI, "xe", {})
    machine.sensors(card, 1, {"temp1_input": 50_000})
    connect, rows = directories("/sys/class/drm/card*", clients=KEYS), (Field("temp", "device/hwmon/hwmon*/temp1_input", "mC"),)
    backend = PolledBackend("acme", kind="gpu", source="sysfs", connect=connect, fields=rows, processes="fdinfo")
    reader = backend.open().reader(ReadOptions(1, metrics=MetricSelection(metrics)))
    look = mocker.spy(DrmClients, "_look")
    assert values(reader.read(0, [])) == {"temp": 50}
    assert (look.call_count > 0) == looks


def test_what_programs_use_together_is_the_device_s(machine: DrmTree, mocker: MockerFixture) -> None:
    """Where all of them can be seen; each has its own part."""
    mocker.patch("accelmetrics.backends.kit.processes.SYSTEM_CLOCK", clock := FakeClock())
    machine.add(PCI, "xe", {})
    machine.whole_machine()
    rows = (Field("gpu", "@clients.busy", "%"), Field("memoryAllocatedBytes", "@clients.memory", "B"))
    connect = directories("/sys/class/drm/card*", drivers=("xe",), clients=KEYS)
    backend = PolledBackend("acme", kind="gpu", source="sysfs", connect=connect, fields=rows, processes="fdinfo", clock=clock)
    for pid in (41, 42):
        counts: dict[str, str | int] = {
            "resident_vram0": "3 MiB",
            "cycles_rcs": 0,
            "total_cycles_rcs": 0,
            "cycles_vcs": 0,
            "total_cycles_vcs": 0,
        }
        machine.process(pid, {7: ("/dev/dri/renderD128", fdinfo("xe", pid, PCI, **counts))})
    reader = backend.open().reader(ReadOptions(41))
    first = reader.read(0, [])
    assert first.unavailable["gpu"].reason == Reason.NEEDS_INTERVAL
    for pid in (41, 42):
        counts |= {"cycles_rcs": 10, "total_cycles_rcs": 100, "cycles_vcs": pid - 1, "total_cycles_vcs": 100}
        machine.process(pid, {7: ("/dev/dri/renderD128", fdinfo("xe", pid, PCI, **counts))})
    clock.advance(1.0)
    second = reader.read(0, [])
    assert values(second, False) == {"gpu": 81, "memoryAllocatedBytes": 6 * 2**20}
    assert second.processes == tuple(DeviceProcess(pid, "graphics", 3 * 2**20, 10.0) for pid in (41, 42))
    assert values(second, True)["memoryAllocatedBytes"] == 3 * 2**20


def test_a_card_that_sleeps_costs_no_other(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though a tool that reads all of them would wake it: each directory is looked at by itself."""
    machine = DrmTree(tree.root)
    monkeypatch.setitem(cast("dict[str, Registration]", BUILT_IN), "acme", Registration("acme", "gpu", "acme", ("8086:*:03",)))
    for number, state in enumerate(("suspended", "active")):
        files: dict[str, Content] = {"vendor": "0x8086", "device": "0x56a0", "class": "0x030000", "power/runtime_status": state}
        files["temp"] = 50_000 + number
        machine.add(f"0000:0{number + 3}:00.0", "xe", files, number=number)
    connect, rows = directories("/sys/class/drm/card*", drivers=("xe",)), (Field("temp", "device/temp", "mC"),)
    reader = PolledBackend("acme", kind="gpu", source="sysfs", connect=connect, fields=rows).open().reader(OPTIONS)
    assert read(reader, 1) == {"temp": 50.001}
    with pytest.raises(SourceError, match="is suspended"):
        reader.read(0, [])


def test_a_device_on_the_chip_is_read_while_it_sleeps(machine: DrmTree, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files answer without waking it; a sensor of a part that is powered down answers EAGAIN."""
    files: dict[str, Content] = {"power/runtime_status": "suspended", "of_node/compatible": "brcm,2712-v3d\0brcm,v3d\0"}
    name, clock = "fb000000.gpu", FakeClock()
    files |= {f"devfreq/{name}/cur_freq": 300_000_000, f"devfreq/{name}/max_freq": 600_000_000}
    machine.add(name, "panthor", files | {f"devfreq/{name}/available_frequencies": "300000000 1000000000 850000000"})
    machine.write("/sys/class/thermal/thermal_zone0/type", "gpu-thermal")
    machine.write("/sys/class/thermal/thermal_zone0/temp", 41_000)
    backend = PolledBackend(
        "acme",
        kind="gpu",
        source="sysfs",
        connect=directories("/sys/class/drm/nothing", "/sys/class/drm/card*", drivers=("panthor",), record=OnChip),
        fields=(*clocks(), Field("temp", "/sys/class/thermal/thermal_zone[type=gpu*]/temp", "mC")),
        identity={"vendor_index": "@number", "name": "@compatible", "unified": "@unified"},
        clock=clock,
    )
    driver = backend.open()
    assert [(device.name, device.unified) for device in driver.devices] == [("brcm,2712-v3d", True)]
    reader = driver.reader(OPTIONS)
    assert read(reader, 0) == {"smClock": 300, "maxSmClock": 1000, "temp": 41}
    kept = KeptFile.read

    def refuse(file: KeptFile) -> bytes:
        if file.path == "/sys/class/thermal/thermal_zone0/temp":
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        return kept(file)

    monkeypatch.setattr(KeptFile, "read", refuse)
    assert reader.read(0, []).unavailable["temp"].reason == Reason.SUSPENDED
    machine.write(f"/sys/class/drm/card0/device/devfreq/{name}/cur_freq", 0)
    machine.write(f"/sys/class/drm/card0/device/devfreq/{name}/available_frequencies", "all of them")
    clock.advance(10.0)
    reasons = {metric: why.reason for metric, why in reader.read(0, []).unavailable.items()}
    assert reasons == {"smClock": Reason.NOT_SUPPORTED, "maxSmClock": Reason.PARSE_ERROR, "temp": Reason.SUSPENDED}


def test_a_file_in_a_folder_that_may_not_be_searched_is_no_permission(machine: DrmTree, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those below ``/sys/kernel/debug`` are for all but root: none is found there, and one that is opened says why."""
    machine.add("fb000000.gpu", "panthor", {})

    def refuse(file: KeptFile) -> bytes:
        raise PermissionError(errno.EACCES, "Permission denied", file.path)

    monkeypatch.setattr(KeptFile, "read", refuse)
    connect, place = directories("/sys/class/drm/card*", drivers=("panthor",)), Field("temp", "/sys/kernel/debug/acme/load")
    reader = PolledBackend("acme", kind="gpu", source="sysfs", connect=connect, fields=(place,)).open().reader(OPTIONS)
    assert reader.read(0, []).unavailable["temp"].reason == Reason.NO_PERMISSION


@pytest.mark.skipif(sys.platform != "linux", reason="platform: reads /proc")
def test_descriptors_are_kept_and_given_back(tree: Tree) -> None:
    def count() -> int:
        return sum(link.resolve().is_relative_to(tree.root) for link in Path("/proc/self/fd").iterdir())

    tree.card(0)
    before = count()
    driver = backend_of(FakeClock()).open()
    reader = driver.reader(OPTIONS)
    read(reader, 0)
    held = count()
    read(reader, 0)
    assert held == count() > before
    driver.close()
    assert count() == before
