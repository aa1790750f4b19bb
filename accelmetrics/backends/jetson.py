"""NVIDIA Jetson (Xavier, Orin, Thor), through the files of its kernel drivers and NVML.

The files come first. On an Orin, NVML knows little more than the name of the GPU; on a Thor, its utilisation and processes. Reading the
files wakes no GPU: while it is powered down, the driver reports a utilisation of 0 and no temperature. The GPU shares the host's memory.
The memory in use is the amount given out by NVIDIA's allocator, which NVIDIA documents as the device's memory (``NvMapMemUsed``); on a Thor
it is the memory held by processes. Only root can read the processes of an Orin.

Power is that of the rail that feeds the whole module or board. AGX Orin and AGX Xavier do not measure it, and no document says which of
their rails add up to the whole. They have only ``railPowerWatts``, the power of the rail that feeds the GPU.

Layouts are those of the drivers' sources (nvgpu, ina3221, nvmap) and of published listings. Never tested on a real Jetson.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from accelmetrics.backends.contract import SYSTEM_CLOCK, Processes, ReadOptions
from accelmetrics.backends.kit import DeviceRecord, DeviceSample, Field, OnChip, PolledBackend, Source, clocks, directories, number, share
from accelmetrics.backends.kit.system import read_once, reason_of
from accelmetrics.backends.nvidia import NVIDIA, SHARES_CHIP, THOR, integrated_gpus
from accelmetrics.backends.nvidia.gpu import open_driver
from accelmetrics.schemas.errors import Unavailable
from accelmetrics.schemas.identity import DeviceProcess
from accelmetrics.schemas.selection import PROCESSES, MetricSelection

HWMON, THERMAL, MEMORY = "/sys/class/hwmon/hwmon", "/sys/class/thermal", "/proc/meminfo:"
CLIENTS = "/sys/kernel/debug/nvmap/iovmm/clients"
CLIENT = re.compile(r"user +\S.*? +(?P<pid>\d{1,10}) +(?P<size>\d{1,15}) ?(?P<unit>[KMG])", re.ASCII)
RAIL = "rail "
# The name of the GPU's rail differs between boards.
OF_GPU = tuple(f"{RAIL}{name}" for name in ("VDD_GPU", "VDD_GPU_SOC", "VDD_CPU_GPU_CV", "GPU"))
FIELDS = (
    Field("gpu", "device/load", "permille"),
    *clocks(""),
    Field("temp", f"{THERMAL}/thermal_zone[type=gpu-therm*]/temp", "mC"),
    Field(
        "throttle.swThermalSlowdown",
        f"{THERMAL}/cooling_device[type=gpu-throttle-alert]/cur_state",
        convert=lambda printed: min(int(printed), 1) if printed.isdecimal() else printed,  # the file has the level of slowdown
    ),
    Field("powerWatts", (f"{RAIL}VDD_IN", f"{HWMON}[label=VIN]/power1_input", f"{HWMON}[in1_label=VIN]/power1_input"), "uW"),
    Field("railPowerWatts", OF_GPU, "uW", words=f"sysfs {', '.join(OF_GPU)}"),
    Field("fanSpeed", f"{HWMON}[name=pwmfan]/pwm1", "%", convert=lambda pwm: 100 * int(pwm) / 255 if pwm.isdecimal() else pwm),
    Field("fanSpeedRpm", f"{HWMON}[name=pwm_tach]/rpm"),
    Field("memoryTotalBytes", f"{MEMORY}MemTotal", "kB"),
    Field("memoryAllocatedBytes", f"{MEMORY}NvMapMemUsed", "kB"),
    share("memoryAllocated", "memoryAllocatedBytes", "memoryTotalBytes"),
)
IDENTITY = {"vendor_index": "index", "name": "/proc/device-tree/model", "serial": "/proc/device-tree/serial-number", "unified": "@unified"}
NVML = ("gpu", "temp", "smClock", "maxSmClock", "memoryAllocatedBytes")
"""Metrics that NVML fills in if the files do not have them. Power is left out, since NVML's may not be the board's."""
NVML_IDENTITY = ("vendor_index", "name", "uuid", "pci_bus_id", "architecture", "compute_capability", "driver_version", "runtime_version")
MODULE = NVIDIA._replace(
    devices=integrated_gpus,
    listed_elsewhere=lambda name: "" if SHARES_CHIP.search(name) else "it is not the module's GPU",
    advise=lambda _: "",  # most modules are read without it
)


class Board(OnChip):
    """Directory of a GPU's clocks, extended by the power of rails, lines of the host's memory, and the module's only number."""

    def get(self, place: str) -> object:
        """Return the value at a place: text, a number, a reason, or None if there is nothing."""
        if place == "index":
            return "0"  # a module has one GPU
        if place.startswith(MEMORY):
            lines = str(super().get(MEMORY[:-1]) or "").splitlines()
            return next((line.partition(":")[2] for line in lines if line.startswith(f"{place[len(MEMORY) :]}:")), None)
        return self._power(place[len(RAIL) :]) if place.startswith(RAIL) else super().get(place)

    def _power(self, rail: str) -> object:
        """Return the power of a rail of an INA3221 in microwatts."""
        # The sensor has three channels. Only the voltages have labels, so the current is found by its channel.
        for channel in "123":
            sensor = f"{HWMON}[in{channel}_label={rail}]"
            readings = [super(Board, self).get(f"{sensor}/{quantity}{channel}_input") for quantity in ("in", "curr")]
            if readings[0] is not None:
                reason = next((each for each in readings if isinstance(each, Unavailable)), None)
                digits = [str(each) for each in readings]
                whole = all(each.lstrip("-").isdecimal() for each in digits)
                # mV × mA = µW
                return reason or (int(digits[0]) * int(digits[1]) if whole else f"{digits[0]} mV, {digits[1]} mA")
        return None


def processes(device: DeviceRecord) -> Processes:
    """Return the processes that hold memory of NVIDIA's allocator; None on a Thor."""
    # A Thor's driver does not use this allocator. NVML reports its processes.
    if device.get("@name") == THOR.rpartition("/")[2]:
        return None
    try:
        printed = read_once(CLIENTS).decode("utf-8", "replace")
    except OSError as error:
        return reason_of(error, CLIENTS)
    held: dict[int, int] = {}
    for found in filter(None, map(CLIENT.fullmatch, map(str.strip, printed.splitlines()))):
        size = number(f"{found['size']} {found['unit']}iB", target="By")
        # A process may have several entries.
        held[int(found["pid"])] = held.get(int(found["pid"]), 0) + (size if isinstance(size, int) else 0)
    return tuple(DeviceProcess(pid, memory_bytes=size) for pid, size in held.items())


class Nvml:
    """Poll of NVML for the module's GPU."""

    def __init__(self) -> None:
        self._driver = open_driver(SYSTEM_CLOCK, MODULE)
        self._reader = self._driver.reader(ReadOptions(os.getpid(), metrics=MetricSelection((*NVML, PROCESSES))))

    def __call__(self) -> Iterable[DeviceSample]:
        for unit, device in enumerate(self._driver.devices):
            reading = self._reader.read(unit, [])
            values = {name: value for block in reading.blocks for name, value in zip(block.names, block.values, strict=True)}
            about = {name: getattr(device, name) for name in NVML_IDENTITY}
            yield DeviceSample({**reading.unavailable, **values, **about, "vendor_index": unit}, reading.processes)

    def close(self) -> None:
        """Close the library."""
        self._driver.close()


backend = PolledBackend(
    "jetson",
    kind="gpu",
    source="sysfs",
    # A Thor's GPU has several devices with clocks. THOR is the one that computes.
    connect=directories("/sys/class/devfreq/*.g*", THOR, drivers=("gk20a", "nvidia"), processes=processes, record=Board),
    fields=FIELDS,
    identity=IDENTITY,
    also=(Source("nvml", Nvml, tuple(Field(name, name) for name in NVML), identity={name: name for name in NVML_IDENTITY}),),
    vendor="nvidia",
    processes=f"{CLIENTS}; else NVML",
    advice="load the GPU's kernel driver (nvgpu, on a Thor nvidia)",
)
