"""CPU temperature and power."""

import os

import pytest

from accelmetrics.backends.host.processor import energy_used, parse_millidegrees
from tests.backends.host.tree import HostTree


def chip(tree: HostTree, number: int, name: str, sensors: dict[str, tuple[str, int]]) -> None:
    """One hwmon chip with its sensors: label and millidegrees."""
    base = f"/sys/class/hwmon/hwmon{number}"
    tree.write(f"{base}/name", f"{name}\n")
    for sensor, (label, value) in sensors.items():
        tree.write(f"{base}/{sensor}_input", f"{value}\n")
        if label:
            tree.write(f"{base}/{sensor}_label", f"{label}\n")


def zone(tree: HostTree, entry: str, name: str, energy: int, largest: int = 262_143_328_850) -> None:
    """One RAPL zone."""
    base = f"/sys/class/powercap/{entry}"
    tree.write(f"{base}/name", f"{name}\n")
    tree.write(f"{base}/energy_uj", f"{energy}\n")
    tree.write(f"{base}/max_energy_range_uj", f"{largest}\n")


def test_intels_cores_are_averaged_over_all_packages(tree: HostTree) -> None:
    chip(tree, 0, "acpitz", {"temp1": ("", 99000)})
    chip(tree, 1, "coretemp", {"temp1": ("Package id 0", 90000), "temp2": ("Core 0", 40000), "temp3": ("Core 1", 50000)})
    chip(tree, 2, "coretemp", {"temp1": ("Package id 1", 90000), "temp2": ("Core 0", 60000), "temp3": ("Core 1", 70000)})
    assert tree.reader().read()["cpu.avg_temp"] == pytest.approx(55.0)


@pytest.mark.parametrize(
    ("sensors", "degrees"),
    [
        ({"temp1": ("Tctl", 80000), "temp2": ("Tdie", 60000), "temp3": ("Tccd1", 50000)}, 60.0),
        ({"temp1": ("Tctl", 45125), "temp3": ("Tccd1", 40000)}, 45.125),
        ({"temp1": ("", 41000)}, 41.0),
    ],
)
def test_of_amds_sensors_the_die_is_taken(tree: HostTree, sensors: dict[str, tuple[str, int]], degrees: float) -> None:
    chip(tree, 0, "k10temp", sensors)
    assert tree.reader().read()["cpu.avg_temp"] == pytest.approx(degrees)


def test_without_hwmon_the_cpus_thermal_zones_serve(tree: HostTree) -> None:
    for number, (kind, value) in enumerate({"gpu-thermal": 90000, "cpu-thermal": 50000, "cpu-thermal1": 60000}.items()):
        tree.write(f"/sys/class/thermal/thermal_zone{number}/type", kind)
        tree.write(f"/sys/class/thermal/thermal_zone{number}/temp", str(value))
    assert tree.reader().read()["cpu.avg_temp"] == pytest.approx(55.0)


def test_without_a_sensor_there_is_no_temperature(tree: HostTree) -> None:
    watch = tree.reader()
    assert "cpu.avg_temp" not in watch.read()
    assert watch.reason("cpu.avg_temp") == "not_supported"


def test_a_sensor_that_fails_for_a_while_is_read_again(tree: HostTree) -> None:
    chip(tree, 0, "k10temp", {"temp1": ("Tctl", 999_999)})
    watch = tree.reader()
    watch.read()
    assert watch.reason("cpu.avg_temp") == "invalid_value"
    chip(tree, 0, "k10temp", {"temp1": ("Tctl", -5000)})
    assert watch.read(1.0)["cpu.avg_temp"] == pytest.approx(-5.0)


@pytest.mark.parametrize("text", [b"", b"warm", b"-", b"4.5", b"--5"])
def test_what_is_no_temperature_is_an_error(text: bytes) -> None:
    with pytest.raises(ValueError, match="number"):
        parse_millidegrees(text)


def test_power_is_the_energy_of_all_packages_over_the_interval(tree: HostTree) -> None:
    zone(tree, "intel-rapl:0", "package-0", 1_000_000)
    zone(tree, "intel-rapl:1", "package-1", 5_000_000)
    zone(tree, "intel-rapl:2", "psys", 0)
    zone(tree, "intel-rapl:0:0", "core", 0)
    zone(tree, "intel-rapl-mmio:0", "package-0", 0)
    watch = tree.reader()
    assert "cpu.powerWatts" not in watch.read()
    assert watch.reason("cpu.powerWatts") == "needs_interval"
    zone(tree, "intel-rapl:0", "package-0", 101_000_000)
    zone(tree, "intel-rapl:1", "package-1", 65_000_000)
    zone(tree, "intel-rapl:2", "psys", 10**9)
    zone(tree, "intel-rapl:0:0", "core", 10**9)
    zone(tree, "intel-rapl-mmio:0", "package-0", 10**9)
    assert watch.read(2.0)["cpu.powerWatts"] == pytest.approx(80.0)


def test_a_counter_that_begins_again_is_carried_over_its_range(tree: HostTree) -> None:
    zone(tree, "intel-rapl:0", "package-0", 95_000_000, largest=100_000_000)
    watch = tree.reader()
    watch.read()
    zone(tree, "intel-rapl:0", "package-0", 5_000_000, largest=100_000_000)
    assert watch.read(1.0)["cpu.powerWatts"] == pytest.approx(10.0)


def test_without_a_range_a_fall_is_a_new_beginning(tree: HostTree) -> None:
    assert energy_used(100, 50, 0) is None
    zone(tree, "intel-rapl:0", "package-0", 95_000_000)
    tree.remove("/sys/class/powercap/intel-rapl:0/max_energy_range_uj")
    watch = tree.reader()
    watch.read()
    tree.write("/sys/class/powercap/intel-rapl:0/energy_uj", "5000000")
    assert "cpu.powerWatts" not in watch.read(1.0)
    assert watch.reason("cpu.powerWatts") == "needs_interval"
    tree.write("/sys/class/powercap/intel-rapl:0/energy_uj", "6000000")
    assert watch.read(1.0)["cpu.powerWatts"] == pytest.approx(1.0)


def test_without_rapl_there_is_no_power(tree: HostTree) -> None:
    watch = tree.reader()
    watch.read()
    assert watch.reason("cpu.powerWatts") == "not_supported"


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="platform: no users")
def test_counters_that_only_root_may_read_say_so(tree: HostTree, monkeypatch: pytest.MonkeyPatch) -> None:
    zone(tree, "intel-rapl:0", "package-0", 1)
    path = tree.root / "sys/class/powercap/intel-rapl:0/energy_uj"
    real = os.open

    def refuse(file: str, flags: int) -> int:
        if file == str(path):
            raise PermissionError(13, "Permission denied", file)
        return real(file, flags)

    monkeypatch.setattr(os, "open", refuse)
    watch = tree.reader()
    watch.read()
    assert watch.reason("cpu.powerWatts") == "no_permission"
    assert "energy_uj" in watch.detail("cpu.powerWatts")
