"""The driver's own counters, below ``/sys/devices/virtual/neuron_device``: read, and never written.

Writing a counter clears it for all programs, and the file ``reset`` resets the chip: nothing here opens a file for writing.
Each counter is a directory with ``total`` and ``present``. Of memory, ``total`` is what is in use now and ``present`` the
last change (AWS's sysfs guide); of time (µs) and operations, ``total`` accumulates since the driver was loaded.

Some runtimes do not fill the counters of time and operations: one at exactly 0 has never counted, which is no 0 %. Nothing
here says which program uses a core. Cores are numbered as the tool does without joined cores: chip by chip.

AWS's guide says that driver 2.31 moved several counters. What stands elsewhere there is not read: it is missing with words,
detection says so, and ``neuron-monitor`` is needed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from accelmetrics.backends.clock import Clock
from accelmetrics.backends.contract import Reading, ReadOptions
from accelmetrics.backends.kit.poll_cache import Form
from accelmetrics.backends.kit.system import list_directory, read_text, system_path
from accelmetrics.backends.neuron.report import LARGEST, Value, percent, total
from accelmetrics.backends.neuron.totals import Values, documented, picked_core
from accelmetrics.schemas.catalogue import neuron as rows
from accelmetrics.schemas.errors import DriverGoneError, SourceError
from accelmetrics.schemas.identity import DeviceIdentity
from accelmetrics.schemas.reasons import Reason, Unavailable

ROOT = "/sys/devices/virtual/neuron_device"
CHIP, CORE = "neuron", "neuron_core"
PARTS = ("stats/other_info", "stats/memory_usage/device_mem")
"""Below a core's directory, where drivers before 2.31 keep its counters."""
INSTALL_TOOL = "install neuron-monitor: package aws-neuronx-tools"
MOVED = "neuron driver 2.31 moved counters, and only neuron-monitor is read there"
TOOL_ONLY = Unavailable(Reason.NOT_SUPPORTED, "only neuron-monitor says this: install aws-neuronx-tools")
NOT_BY_PROCESS = Unavailable(Reason.NOT_SUPPORTED, "the driver's counters do not tell processes apart: install aws-neuronx-tools")
NEVER_COUNTED = Unavailable(Reason.NOT_IN_USE, "the counter has never counted: no program has used the core, or its runtime leaves it out")
FIRST = Unavailable(Reason.NEEDS_INTERVAL, "a rate needs two readings")
CLEARED = Unavailable(Reason.NEEDS_INTERVAL, "the counter was cleared since the last reading")


class Chip(NamedTuple):
    """One Neuron device: its number, and by the machine's number of each core, the core's directory."""

    number: int
    cores: dict[int, str]

    @property
    def path(self) -> str:
        """Its directory."""
        return f"{ROOT}/{CHIP}{self.number}"


def chips() -> tuple[Chip, ...]:
    """The chips that the driver shows, with their cores."""
    found = []
    for index in _numbered(ROOT, CHIP):
        path = f"{ROOT}/{CHIP}{index}"
        numbers = _numbered(path, CORE)
        declared = read_text(f"{path}/core_count") or ""
        each = int(declared) if declared.isdecimal() else len(numbers)
        found.append(Chip(index, {index * each + number: f"{path}/{CORE}{number}" for number in numbers}))
    return tuple(found)


def elsewhere(found: Sequence[Chip]) -> str:
    """In words, that no core's counters stand where they are looked for; empty where they do, and where there are no chips."""
    paths = [path for chip in found for path in chip.cores.values()]
    if not found or any(all(system_path(f"{path}/{part}").is_dir() for part in PARTS) for path in paths):
        return ""
    return f"counters are not where they are looked for: {MOVED}"


def _numbered(directory: str, prefix: str) -> list[int]:
    found = (name.removeprefix(prefix) for name in list_directory(directory) if name.startswith(prefix))
    return sorted(int(number) for number in found if number.isdecimal())


class SysfsDriver:
    """The counters of every core.

    Args:
        clock: Where rates are taken from.

    Raises:
        SourceError: There are no cores.
    """

    source = "sysfs"
    machine_wide = True
    interval = 0.0  # read when asked, unlike the tool: its files cost little, and rates come with whatever reading is the second

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.chips = chips()
        every = {core: path for chip in self.chips for core, path in chip.cores.items()}
        if not every:
            words = f"the driver shows no cores in {ROOT}: {MOVED}"
            raise SourceError(Reason.DRIVER_UNAVAILABLE, words, backend="neuron", advice=INSTALL_TOOL)
        self._known = every.keys()
        picked = picked_core(every)
        self.paths = every if picked is None else {picked: every[picked]}
        devices = []
        for core, path in sorted(self.paths.items()):
            chip = path.rpartition("/")[0]
            places = (f"{chip}/info/architecture/device_name", f"{path}/info/architecture/arch_type", f"{chip}/info/serial_number")
            name, version, serial = (read_text(place) or "" for place in places)
            devices.append(DeviceIdentity("trn", "aws", core, name=name, architecture=version, serial=serial))
        self._devices = tuple(devices)

    @property
    def devices(self) -> Sequence[DeviceIdentity]:
        return self._devices

    def reader(self, options: ReadOptions) -> SysfsReader:
        return SysfsReader(self, options)

    def check(self) -> None:
        """Raise when there are cores that were not there: the devices are to be listed again."""
        new = {core for chip in chips() for core in chip.cores} - self._known
        if new:
            raise DriverGoneError(Reason.DRIVER_UNAVAILABLE, f"core {min(new)} is new: the cores are to be listed again")

    def close(self) -> None:
        """Nothing is held open between readings."""


class SysfsReader:
    """One consumer's view: what its rates are taken from."""

    def __init__(self, driver: SysfsDriver, options: ReadOptions) -> None:
        self._driver = driver
        self._watched = options.watched
        self._before: dict[str, tuple[float, int]] = {}
        self._forms: defaultdict[int, Form] = defaultdict(Form)

    def read(self, unit: int, progress: list[Any]) -> Reading:
        devices = self._driver.devices
        found = self._machine(progress) if unit == len(devices) else self._core(devices[unit].vendor_index, progress)
        return self._forms[unit].reading(found)

    def _core(self, core: int, progress: list[Any]) -> Values:
        path = self._driver.paths[core]
        if not system_path(path).is_dir():
            raise DriverGoneError(Reason.DRIVER_UNAVAILABLE, f"{path} has gone")
        if self._watched:
            return {row.name: NOT_BY_PROCESS for row in rows.CORES}
        busy = self._rate(f"{path}/stats/other_info/nc_time_in_use/total", progress)  # µs of time per second
        found: Values = {
            "neuroncore_utilization": busy if isinstance(busy, Unavailable) else percent(busy / 1e6 * 100),
            "flops": self._rate(f"{path}/stats/other_info/flop_count/total", progress),
        }
        for name in rows.CORE_MEMORY:
            found[f"neuroncore_memory_usage.{name}"] = _read(f"{path}/stats/memory_usage/device_mem/{name}/total", progress)
        return found

    def _rate(self, path: str, progress: list[Any]) -> Value:
        now = self._driver.clock.monotonic()
        value = _read(path, progress)
        if isinstance(value, Unavailable):
            return value
        if value == 0:
            self._before.pop(path, None)
            return NEVER_COUNTED
        before, self._before[path] = self._before.get(path), (now, value)
        if before is None or now <= before[0]:
            return FIRST
        return (value - before[1]) / (now - before[0]) if value >= before[1] else CLEARED

    def _machine(self, progress: list[Any]) -> Values:
        driver = self._driver
        driver.check()
        found: Values = {row.key: TOOL_ONLY for row in (*rows.MEMORY, *rows.MACHINE, *rows.EXECUTION) if not row.templated}
        found["trn.neuron_device_count"] = len(driver.chips)
        found["trn.neuroncore_per_device_count"] = max((len(chip.cores) for chip in driver.chips), default=0)
        host = [f"{chip.path}/stats/memory_usage/host_mem" for chip in driver.chips]
        device = [f"{path}/stats/memory_usage/device_mem" for path in driver.paths.values()]
        memory = {"trn.host_total_memory_usage": host, "trn.neuron_device_total_memory_usage": device}
        memory |= {f"trn.host_memory_usage.{name}": [f"{path}/{name}" for path in host] for name in rows.HOST_MEMORY}
        for key, paths in memory.items():
            found[key] = NOT_BY_PROCESS if self._watched else total([_read(f"{path}/total", progress) for path in paths])
        for chip in driver.chips:
            for counter in rows.ECC:
                found[f"trn.device.{chip.number}.{counter}"] = _read(f"{chip.path}/stats/hardware/{counter}", progress)
        return documented(found)


def _read(path: str, progress: list[Any]) -> int | Unavailable:
    """A counter's value, or why there is none."""
    try:
        with system_path(path).open("rb") as file:
            text = file.read(64).decode("ascii", "replace").strip()
    except PermissionError:
        return Unavailable(Reason.NO_PERMISSION, f"{path} may not be read by this user")
    except FileNotFoundError:
        return Unavailable(Reason.NOT_SUPPORTED, f"this driver has no {path.removeprefix(ROOT)} ({MOVED})")
    except OSError as error:
        return Unavailable(Reason.DRIVER_ERROR, f"{path}: {error.strerror}")
    finally:
        progress.append(None)
    if not text.isdecimal():
        return Unavailable(Reason.PARSE_ERROR, f"{path} holds {text!r}")
    return int(text) if int(text) < LARGEST else Unavailable(Reason.INVALID_VALUE, f"{path} holds {text}")
