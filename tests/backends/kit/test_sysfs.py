"""Devices that are directories of files: a Tenstorrent card's, as its driver shows them."""

from __future__ import annotations

import errno
import sys
from pathlib import Path
from typing import Any

import pytest

from accelmetrics.backends.contract import ReadOptions
from accelmetrics.backends.kit import Field, PolledBackend, directories
from accelmetrics.backends.kit.polled import PolledReader
from accelmetrics.backends.kit.system import KeptFile
from accelmetrics.schemas.errors import Reason, SourceError
from accelmetrics.testing import FakeClock
from tests.support.readings import values

FIELDS = (
    Field("temp", "device/hwmon/hwmon*/temp1_input", "mC"),
    Field("powerWatts", "device/hwmon/hwmon*/power1_input", "uW"),
    Field("smClock", "tt_aiclk", "MHz"),
    Field("enforcedPowerLimitWatts", "device/hwmon/hwmon*/power1_max", "uW"),
)
IDENTITY = {"vendor_index": "@number", "pci_bus_id": "@pci", "serial": "tt_serial", "name": "@name"}
OPTIONS = ReadOptions(1)


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
    reader = backend_of(FakeClock()).open().reader(OPTIONS)
    reading = reader.read(0, [])
    assert reading.unavailable["smClock"] == (Reason.NOT_SUPPORTED, 'sysfs gives no "tt_aiclk"')
    (card / "tt_aiclk").write_text("800\n")
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
    tree.card(1)
    clock.advance(1.0)
    with pytest.raises(SourceError, match="sysfs no longer lists NPU 0"):
        reader.read(0, [])
    assert read(reader, 1)["powerWatts"] == 38
    assert [device.pci_bus_id for device in driver.devices] == ["0000:01:00.0", "0000:02:00.0"]


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
    with pytest.raises(SourceError, match="powered down") as caught:
        reader.read(0, progress)
    assert caught.value.reason == Reason.SUSPENDED
    assert not any("hwmon" in str(place) for place in progress)
    (card / "device/power/runtime_status").write_text("active\n")
    assert read(reader, 0)["temp"] == 45.5


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
