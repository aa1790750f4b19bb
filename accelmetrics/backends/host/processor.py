"""The processor: load of each CPU, load averages, temperature and power.

Sensors are found once, when the source is opened. The temperature is the mean over the cores if each has a sensor (``coretemp``), else over
the processors. Power is the energy that all processor packages used ÷ the interval. By default only root may read the energy, since
fine-grained power reveals secrets.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from accelmetrics.backends.host.collector import FIRST, LOADS, RESET, TOO_SOON, Counter, HostReader
from accelmetrics.backends.kit.system import KeptFile, count, list_directory, read_text, reason_of
from accelmetrics.schemas.errors import Reason, Unavailable

# The columns after steal are guest times, which user and nice already include.
_COLUMNS = 8
_CPU_LINE = re.compile(rb"^cpu(\d{1,6}) +(\d[\d ]*)$", re.MULTILINE)

_LOADS = re.compile(rb"(\d{1,9}\.\d{1,6}) (\d{1,9}\.\d{1,6}) (\d{1,9}\.\d{1,6})\b")
_CPU_CHIPS = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "cpu-thermal", "scpi_sensors")
_LABELS = (("Core ",), ("Tdie",), ("Tctl",), ("Package id", "Tccd"))
"""Beginnings of the labels of a chip's sensors, in order of preference."""
_CPU_ZONES = ("x86_pkg_temp", "cpu-thermal", "cpu_thermal", "soc-thermal", "soc_thermal")
# Possible temperatures of running silicon. Drivers report -128 or 255 for a sensor that does not work.
_COLDEST, _HOTTEST = -60.0, 200.0
_NO_SENSOR = Unavailable(Reason.NOT_SUPPORTED, "no CPU temperature sensor in /sys/class/hwmon or /sys/class/thermal")
NO_RAPL = Unavailable(Reason.NOT_SUPPORTED, "no RAPL energy counter in /sys/class/powercap")

CpuTime = tuple[int, int]
"""Time of one CPU since boot, and its idle part, in clock ticks or any other unit."""


def parse_stat(data: bytes) -> dict[int, CpuTime]:
    """Return the times of each online CPU in ``/proc/stat``, by CPU number.

    Raises:
        ValueError: The text lists no CPU.
    """
    found = {}
    # The line after the CPUs has a number for each interrupt, thousands on a large machine. It is cut off before the search.
    for number, columns in _CPU_LINE.findall(data.partition(b"\nintr ")[0]):
        ticks = list(map(int, columns.split(None, _COLUMNS)[:_COLUMNS]))
        # iowait is idle time during which a disk request was pending.
        found[int(number)] = sum(ticks), sum(ticks[3:5])
    if not found:
        raise ValueError("no CPU is listed")
    return found


def busy_percent(before: CpuTime, after: CpuTime) -> float | Unavailable:
    """Return the share of the time between two readings that was not idle, in percent."""
    total, idle = after[0] - before[0], after[1] - before[1]
    if total <= 0:
        return TOO_SOON if total == 0 else RESET
    if idle <= 0:  # the kernel sometimes corrects idle and iowait downwards
        return 100.0
    return 100.0 * (1.0 - idle / total) if idle < total else 0.0


def cpu_collector(read: Callable[[], dict[int, CpuTime]]) -> Callable[[HostReader], None]:
    """Return the collector of the busy share of each CPU."""
    last: dict[int, CpuTime] = {}

    def collect(reader: HostReader) -> None:
        nonlocal last
        times = read()
        for number, time in times.items():
            reader.put(f"cpu.{number}.cpu_percent", busy_percent(last[number], time) if number in last else FIRST)
        last = times

    return collect


def parse_loads(data: bytes) -> tuple[float, ...]:
    """Return the load averages over 1, 5 and 15 minutes in ``/proc/loadavg``.

    Raises:
        ValueError: It does not begin with three numbers.
    """
    found = _LOADS.match(data)
    if found is None:
        raise ValueError(f"no load averages: {data[:32]!r}")
    return tuple(map(float, found.groups()))


def collect_load(read: Callable[[], Sequence[float]], reader: HostReader) -> None:
    """Put the load averages."""
    for key, load in zip(LOADS, read(), strict=True):
        reader.put(key, load)


def find_temperatures() -> list[str]:
    """Return the paths of the CPU's temperature sensors: of each chip its core sensors, else its die sensors, else all.

    Cheap: it reads lists and names, no sensor.
    """
    found = []
    for entry in list_directory("/sys/class/hwmon"):
        base = f"/sys/class/hwmon/{entry}"
        if read_text(f"{base}/name") in _CPU_CHIPS:
            inputs = [name for name in list_directory(base) if name.startswith("temp") and name.endswith("_input")]
            labels = {f"{base}/{name}": read_text(f"{base}/{name[:-6]}_label") or "" for name in inputs}
            labelled = ([path for path, label in labels.items() if label.startswith(wanted)] for wanted in _LABELS)
            found += next(filter(None, labelled), list(labels))
    zones = [f"/sys/class/thermal/{entry}" for entry in list_directory("/sys/class/thermal") if entry.startswith("thermal_zone")]
    # Thermal zones are the fallback for boards whose chip has no hwmon sensor.
    return found or [f"{zone}/temp" for zone in zones if (read_text(f"{zone}/type") or "").startswith(_CPU_ZONES)]


def parse_millidegrees(data: bytes) -> float:
    """Return a sensor's reading in °C.

    Raises:
        ValueError: It is not a number.
    """
    word = data.strip()
    return (-count(word[1:]) if word.startswith(b"-") else count(word)) / 1000


def collect_temperature(sensors: Sequence[KeptFile], reader: HostReader) -> None:
    """Put the mean temperature of the sensors that can be read."""
    readings = []
    why = _NO_SENSOR
    for file in sensors:
        try:
            degrees = parse_millidegrees(file.read())
        except (OSError, ValueError) as error:
            why = reason_of(error, file.path)
            continue
        if _COLDEST <= degrees <= _HOTTEST:
            readings.append(degrees)
        else:
            why = Unavailable(Reason.INVALID_VALUE, f"{file.path}: not from {_COLDEST:g} to {_HOTTEST:g} °C")
    reader.put("cpu.avg_temp", sum(readings) / len(readings) if readings else why)


def find_rapl_zones() -> dict[str, int]:
    """Return the energy counters of the processor packages, by path, with the value in µJ at which each wraps (0 if unknown)."""
    found = {}
    for entry in list_directory("/sys/class/powercap"):
        base = f"/sys/class/powercap/{entry}"
        # Other zones are parts of packages (core, dram), the whole board (psys), or the packages read in another way (mmio).
        if entry.startswith("intel-rapl:") and (read_text(f"{base}/name") or "").startswith("package"):
            largest = read_text(f"{base}/max_energy_range_uj") or ""
            found[f"{base}/energy_uj"] = int(largest) if largest.isascii() and largest.isdigit() and len(largest) <= 20 else 0
    return found


def collect_power(packages: Sequence[KeptFile], counter: Counter, reader: HostReader) -> None:
    """Put the power of all processor packages."""
    # One unreadable package fails the whole key: a partial sum would look like the full power.
    counter.feed({file.path: count(file.read().strip()) for file in packages}, reader.clock())
    micro = counter.per_second()
    reader.put("cpu.powerWatts", micro if isinstance(micro, Unavailable) else micro / 1e6)
