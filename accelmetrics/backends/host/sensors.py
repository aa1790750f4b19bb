"""``cpu.avg_temp`` from hwmon or the thermal zones, ``cpu.powerWatts`` from RAPL's energy counters.

Which sensors there are is looked up once, when the source is opened. The temperature is the mean over the cores where each
has a sensor (``coretemp``), else over the processors. Power is the energy that all processor packages used ÷ the interval;
the kernel lets only root read it by default, since fine-grained power gives secrets away.
"""

from __future__ import annotations

from typing import NamedTuple

from accelmetrics.backends.host.numbers import FIRST, RESET, TOO_SOON, Pace, count
from accelmetrics.backends.host.part import Clock, Moment
from accelmetrics.backends.kit.system import Files, KeptFile, list_directory, read_text, reason_of
from accelmetrics.schemas.reasons import Reason, Unavailable

_TEMPERATURE = "cpu.avg_temp"
_POWER = "cpu.powerWatts"
# The drivers themselves read the hardware once a second and answer from memory in between.
_PACE_SECONDS = 0.9
_CPU_CHIPS = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "cpu-thermal", "scpi_sensors")
_CPU_ZONES = ("x86_pkg_temp", "cpu-thermal", "cpu_thermal", "soc-thermal", "soc_thermal")
# What silicon can have while it runs; drivers answer -128 or 255 for a sensor that does not.
_COLDEST, _HOTTEST = -60.0, 200.0
_NO_SENSOR = Unavailable(Reason.NOT_SUPPORTED, "no CPU temperature sensor in /sys/class/hwmon or /sys/class/thermal")
_NO_RAPL = Unavailable(Reason.NOT_SUPPORTED, "no RAPL energy counter in /sys/class/powercap")


class Zone(NamedTuple):
    """One processor package's energy counter, and the largest value in µJ before it begins again (0 when unknown)."""

    path: str
    largest: int


class Sensors(NamedTuple):
    """What this machine has."""

    temperatures: tuple[str, ...]
    zones: tuple[Zone, ...]


def find_sensors() -> Sensors:
    """Look the sensors up. Cheap: directory listings and names, no sensor is read."""
    return Sensors(tuple(_hwmon_inputs() or _thermal_inputs()), tuple(_rapl_zones()))


def _hwmon_inputs() -> list[str]:
    found = []
    for entry in list_directory("/sys/class/hwmon"):
        base = f"/sys/class/hwmon/{entry}"
        if read_text(f"{base}/name") in _CPU_CHIPS:
            inputs = [name for name in list_directory(base) if name.startswith("temp") and name.endswith("_input")]
            labels = {f"{base}/{name}": read_text(f"{base}/{name[:-6]}_label") or "" for name in inputs}
            found += _chosen(labels)
    return found


def _chosen(labels: dict[str, str]) -> list[str]:
    """Of one chip's sensors those that say how warm the CPU is: its cores, else the die, else all."""
    for prefixes in (("Core ",), ("Tdie",), ("Tctl",), ("Package id", "Tccd")):
        chosen = [path for path, label in labels.items() if label.startswith(prefixes)]
        if chosen:
            return chosen
    return list(labels)


def _thermal_inputs() -> list[str]:
    zones = [f"/sys/class/thermal/{entry}" for entry in list_directory("/sys/class/thermal") if entry.startswith("thermal_zone")]
    return [f"{zone}/temp" for zone in zones if (read_text(f"{zone}/type") or "").startswith(_CPU_ZONES)]


def _rapl_zones() -> list[Zone]:
    found = []
    for entry in list_directory("/sys/class/powercap"):
        base = f"/sys/class/powercap/{entry}"
        # Beside packages there are zones within them (core, dram), the board (psys), and packages again by another way (mmio).
        if entry.startswith("intel-rapl:") and (read_text(f"{base}/name") or "").startswith("package"):
            largest = read_text(f"{base}/max_energy_range_uj") or ""
            found.append(Zone(f"{base}/energy_uj", int(largest) if largest.isascii() and largest.isdigit() and len(largest) <= 20 else 0))
    return found


def parse_millidegrees(data: bytes) -> float:
    """A sensor's reading in °C.

    Raises:
        ValueError: It is no number.
    """
    word = data.strip()
    value = -count(word[1:]) if word.startswith(b"-") else count(word)
    return value / 1000


def energy_used(before: int, after: int, largest: int) -> int | None:
    """µJ between two readings of a counter that begins again at its largest value; None when that is not known."""
    if after >= before:
        return after - before
    return after + largest - before if largest >= before else None


class TemperaturePart:
    """How warm the CPU is."""

    def __init__(self, files: Files, sensors: Sensors) -> None:
        self._files: list[KeptFile] = [files.keep(path) for path in sensors.temperatures]
        self._pace = Pace(_PACE_SECONDS)
        self._latest: float | Unavailable = _NO_SENSOR

    def read(self, moment: Moment) -> None:
        if self._pace.due(moment.now):
            self._latest = self._mean()
        moment.put(_TEMPERATURE, self._latest)

    def _mean(self) -> float | Unavailable:
        readings = []
        why = _NO_SENSOR
        for file in self._files:
            try:
                degrees = parse_millidegrees(file.read())
            except (OSError, ValueError) as error:
                why = reason_of(error, file.path)
                continue
            if _COLDEST <= degrees <= _HOTTEST:
                readings.append(degrees)
            else:
                why = Unavailable(Reason.INVALID_VALUE, f"{file.path}: {degrees} °C")
        return sum(readings) / len(readings) if readings else why


class PowerPart:
    """What the processor packages draw, all or none: a part of the sum would pass for the whole."""

    def __init__(self, files: Files, sensors: Sensors) -> None:
        self._zones = [(files.keep(zone.path), zone.largest) for zone in sensors.zones]
        self._last: list[int] | None = None
        self._then = 0.0

    def read(self, moment: Moment) -> None:
        moment.put(_POWER, self._watts(moment.clock))

    def _watts(self, clock: Clock) -> float | Unavailable:
        energies = self._energies()
        if isinstance(energies, Unavailable):
            return energies
        now = clock()
        last, elapsed = self._last, now - self._then
        self._last, self._then = energies, now
        if last is None:
            return FIRST
        used = [energy_used(before, after, zone[1]) for before, after, zone in zip(last, energies, self._zones, strict=True)]
        if elapsed <= 0:
            return TOO_SOON
        joules = [value / 1e6 for value in used if value is not None]
        return sum(joules) / elapsed if len(joules) == len(used) else RESET

    def _energies(self) -> list[int] | Unavailable:
        if not self._zones:
            return _NO_RAPL
        energies = []
        for file, _ in self._zones:
            try:
                energies.append(count(file.read().strip()))
            except (OSError, ValueError) as error:
                return reason_of(error, file.path)
        return energies
