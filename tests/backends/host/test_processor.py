"""CPU shares, CPU temperature and power."""

import os

import pytest

from accelmetrics.backends.host.processor import busy_percent, parse_millidegrees, parse_stat
from accelmetrics.schemas.errors import Unavailable
from tests.backends.host.tree import GIB, PID, HostTree


def test_the_busy_share_is_taken_over_the_readers_interval(tree: HostTree) -> None:
    watch = tree.reader()
    assert not any(key.endswith("cpu_percent") for key in watch.read())
    assert watch.reason("cpu.0.cpu_percent") == "needs_interval"
    tree.stat({0: (125, 975), 1: (200, 900)})
    values = watch.read(1.0)
    assert values["cpu.0.cpu_percent"] == pytest.approx(25.0)
    assert values["cpu.1.cpu_percent"] == 0.0


def test_guest_time_stands_in_user_time_and_is_not_counted_twice() -> None:
    before = parse_stat(b"cpu0 100 0 0 100 0 0 0 0 100 0\n")[0]
    after = parse_stat(b"cpu0 150 0 0 150 0 0 0 0 150 0\n")[0]
    assert busy_percent(before, after) == pytest.approx(50.0)


def test_waiting_for_a_disk_is_idle_and_stolen_time_is_busy() -> None:
    before = parse_stat(b"cpu0 0 0 0 0 0 0 0 0\n")[0]
    after = parse_stat(b"cpu0 0 0 0 25 50 0 0 25\n")[0]
    assert busy_percent(before, after) == pytest.approx(25.0)


def test_the_short_lines_of_old_kernels_are_read() -> None:
    assert parse_stat(b"cpu  1 2 3 4\ncpu0 1 2 3 4\n") == {0: (10, 4)}


def test_the_sum_over_all_cpus_is_not_a_cpu() -> None:
    assert list(parse_stat(b"cpu  1 2 3 4\ncpu3 1 2 3 4\ncpu17 5 5 5 5\ncpufreq 1\n")) == [3, 17]


def test_iowait_that_the_kernel_corrects_downwards_does_not_pass_100() -> None:
    assert busy_percent((1000, 900), (1010, 890)) == pytest.approx(100.0)


@pytest.mark.parametrize(("after", "words"), [((1000, 900), "no time"), ((10, 9), "reset")])
def test_without_time_between_two_readings_there_is_no_share(after: tuple[int, int], words: str) -> None:
    share = busy_percent((1000, 900), after)
    assert isinstance(share, Unavailable)
    assert share.reason == "needs_interval"
    assert words in share.detail


def test_a_cpu_switched_off_takes_its_key_along_and_comes_back_with_needs_interval(tree: HostTree) -> None:
    watch = tree.watch()
    tree.stat({0: (150, 950)})
    assert "cpu.1.cpu_percent" not in watch.read(1.0)
    assert "cpu.1.cpu_percent" not in watch.reading.unavailable
    tree.stat({0: (150, 1050), 1: (9, 9)})
    watch.read(1.0)
    assert watch.reason("cpu.1.cpu_percent") == "needs_interval"


def test_from_the_third_reading_on_cpus_are_looked_at_twice_a_second(tree: HostTree) -> None:
    """The kernel counts in ticks of 10 ms: a tenth of a second would have ten steps."""
    watch = tree.watch()
    tree.stat({0: (110, 990), 1: (200, 900)})
    assert watch.read(0.1)["cpu.0.cpu_percent"] == pytest.approx(10.0), "the second reading has an interval, however short"
    tree.stat({0: (120, 1080), 1: (200, 1000)})
    assert watch.read(0.1)["cpu.0.cpu_percent"] == pytest.approx(10.0)
    tree.stat({0: (130, 1020), 1: (200, 1000)})
    assert watch.read(0.4)["cpu.0.cpu_percent"] == pytest.approx(100 * 20 / 50), "over the interval that was really taken"


def test_a_file_that_cannot_be_read_once_is_read_again_at_the_next_reading(tree: HostTree) -> None:
    """And the difference spans the gap."""
    watch = tree.watch()
    watch.read(0.1)
    tree.write("/proc/stat", "rubbish")
    assert "cpu.0.cpu_percent" not in watch.read(0.5)
    tree.stat({0: (130, 970), 1: (200, 900)})
    assert watch.read(0.1)["cpu.0.cpu_percent"] == pytest.approx(30.0)


def test_between_two_looks_at_cpus_and_cgroup_the_process_is_measured_against_the_same(tree: HostTree) -> None:
    """What those parts know stands until they look again; what they could not read is known no more."""
    tree.job(cpu_max="50000 100000", memory_max=str(GIB), memory_current=str(GIB // 2))
    watch = tree.reader()
    for number in range(6):
        tree.process(PID, ticks=5 * number, pages=GIB // 4 // 4096)
        values = watch.read(0.1)
        assert values["proc.memory.percent"] == pytest.approx(25.0)
        assert number == 0 or values["cpu"] == pytest.approx(100.0)
    tree.level("/job", cpu_max="max 100000", memory_max="max")
    tree.process(PID, ticks=5 + 140)
    assert watch.read(1.0)["cpu"] == pytest.approx(50.0), "of the two CPUs that are on, in the 1.4 s since it was looked at"
    tree.remove("/proc/stat")
    tree.process(PID, ticks=245)
    assert watch.read(1.0)["cpu"] == pytest.approx(100.0 / min(8, os.cpu_count() or 1))


def test_a_kernel_log_of_thousands_of_interrupts_is_read_whole(tree: HostTree) -> None:
    lines = [f"cpu{number} 1 0 0 1 0 0 0 0 0 0" for number in range(300)]
    tree.write("/proc/stat", "\n".join(["cpu 1 1 1 1", *lines, "intr " + "0 " * 60_000]))
    watch = tree.watch()
    watch.read(1.0)
    assert sum(key.endswith(".cpu_percent") for key in watch.reading.unavailable) == 300


def test_an_unreadable_file_costs_no_other_part(tree: HostTree) -> None:
    tree.remove("/proc/stat")
    values = tree.reader().read()
    assert not any(key.startswith("cpu.0") for key in values)
    assert "memory_percent" in values


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


def test_the_load_averages(tree: HostTree) -> None:
    values = tree.reader().read()
    assert [values[f"load.{minutes}m"] for minutes in (1, 5, 15)] == [2.25, 1.5, 0.75]


@pytest.mark.parametrize("text", ["", "2.25 1.50\n", "a b c", "-1.00 1.50 0.75 1/2 3", f"{'9' * 400}.00 1.50 0.75 1/2 3", "nan nan nan"])
def test_what_is_no_load_average_is_an_error(tree: HostTree, text: str) -> None:
    tree.write("/proc/loadavg", text)
    watch = tree.reader()
    assert not {"load.1m", "load.5m", "load.15m"} & watch.read().keys()
    assert watch.reason("load.1m") == "parse_error"


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
    watch = tree.watch()
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
    watch = tree.watch()
    zone(tree, "intel-rapl:0", "package-0", 5_000_000, largest=100_000_000)
    assert watch.read(1.0)["cpu.powerWatts"] == pytest.approx(10.0)


def test_without_a_range_a_fall_is_a_new_beginning(tree: HostTree) -> None:
    zone(tree, "intel-rapl:0", "package-0", 95_000_000)
    tree.remove("/sys/class/powercap/intel-rapl:0/max_energy_range_uj")
    watch = tree.watch()
    tree.write("/sys/class/powercap/intel-rapl:0/energy_uj", "5000000")
    assert "cpu.powerWatts" not in watch.read(1.0)
    assert watch.reason("cpu.powerWatts") == "needs_interval"
    tree.write("/sys/class/powercap/intel-rapl:0/energy_uj", "6000000")
    assert watch.read(1.0)["cpu.powerWatts"] == pytest.approx(1.0)


def test_without_rapl_there_is_no_power(tree: HostTree) -> None:
    watch = tree.watch()
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
    watch = tree.watch()
    assert watch.reason("cpu.powerWatts") == "no_permission"
    assert "energy_uj" in watch.detail("cpu.powerWatts")
