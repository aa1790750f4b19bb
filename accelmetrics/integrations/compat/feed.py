"""Readings in the form of NVML for a program that only knows NVIDIA's Python binding, for ``accelmetrics run --as-nvml``.

The readings are in a file, which the program reads again when it has changed. Its folder is private to this user. The file has NVML's
answers for devices of any vendor: for each function a value in NVML's units, or the return code of an error.
``startup/_accelmetrics_nvml.py`` writes the answers into the structures of the program.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from importlib.util import find_spec
from math import inf
from pathlib import Path
from typing import Any

from accelmetrics.backends.guard import guarded
from accelmetrics.schemas.errors import InvalidOptionError, Reason, Unavailable
from accelmetrics.schemas.identity import DeviceSlot
from accelmetrics.schemas.record import Record
from accelmetrics.schemas.snapshot import Snapshot
from accelmetrics.schemas.statistics import COUNTER, DRAW, DeviceEnergy
from accelmetrics.schemas.vitals import MEMORY_TOTAL, MEMORY_USED, POWER, POWER_LIMIT, TEMPERATURE, UTILIZATION, first

STARTUP = Path(__file__).parent / "startup"
"""The folder that the program's Python has first on its path."""
VALID_SECONDS = 10.0
"""Minimum lifetime of a reading in seconds. After that, functions return a timeout, as if the driver did not answer."""
# The first line of a script, with options of its interpreter.
SHEBANG = re.compile(rb"#!\s*(\S+)[ \t]+-([A-Za-z]+)[ \t]*$")
ASK_SECONDS = 10.0
"""Seconds to wait for an interpreter that is asked for its version."""


class NvmlFeed:
    """An exporter that writes each reading as NVML's answers, for the program that the monitor watches.

    Args:
        first: The first reading for the program.
        interval: Seconds between two readings.
        everything: Whether the program also sees NVIDIA's devices.

    Attributes:
        folder: The folder of the readings. ``remove`` deletes it.
        devices: Number of devices that the program sees at its start.

    Raises:
        InvalidOptionError: The machine has NVIDIA devices, and ``everything`` is false.
        OSError: The folder cannot be created or written.
    """

    name = "as-nvml"
    processes = 1

    def __init__(self, first: Snapshot, interval: float, everything: bool = False) -> None:
        own = [slot.key for slot in first.identities if slot.identity.vendor == "nvidia"]
        if own and not everything:
            words = f"--as-nvml would hide this machine's NVIDIA devices ({', '.join(own)}) from the program"
            raise InvalidOptionError(f"{words}: --as-nvml=all shows them first, followed by the others")
        self.devices = len(shown(first, everything))
        self._everything = everything
        self._valid = max(VALID_SECONDS, 2 * interval + 1)
        self._energy: dict[str, DeviceEnergy] = {}  # energy of devices without a counter, from their power since the first reading
        self._counting: set[str] = set()
        binding = find_spec("pynvml")
        self._binding = "" if binding is None else binding.origin or ""
        self.folder = Path(tempfile.mkdtemp(prefix="accelmetrics-nvml-"))
        self._startup = STARTUP
        try:
            if not STARTUP.is_dir():  # the package is imported from a zip
                self._startup = self.folder / "startup"
                self._startup.mkdir()
                for file in resources.files(__package__).joinpath("startup").iterdir():
                    (self._startup / file.name).write_bytes(file.read_bytes())
            self.write(first)
        except OSError:
            self.remove()
            raise

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables for the program."""
        path = [str(self._startup), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {"PYTHONPATH": os.pathsep.join(path), "ACCELMETRICS_AS_NVML": str(self.folder)}

    def reached(self, command: Sequence[str]) -> list[str]:
        """Return a command so that its Python reads ``PYTHONPATH``."""
        # pipx and other installers write -E or -I into the first line of scripts, with which Python ignores PYTHONPATH. So the interpreter
        # is started directly, with the other options of that line.
        path = shutil.which(command[0])
        try:
            with open(path or "", "rb") as file:  # noqa: PTH123 - a path, or none
                found = SHEBANG.match(file.readline(4096).rstrip())
        except OSError:
            found = None
        if path is None or found is None:
            return list(command)
        interpreter, options = os.fsdecode(found[1]), found[2].decode()
        if "python" not in Path(interpreter).name or not {"E", "I"} & set(options):
            return list(command)
        kept = [f"-{option}" for option in dict.fromkeys(options) if option not in "EI"]
        if "I" in options:  # -I is -E, -s and -P. Python knows -P since 3.11.
            query = [interpreter, "-I", "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]
            answer = guarded(subprocess.run, query, timeout=ASK_SECONDS, check=False, capture_output=True, stdin=subprocess.DEVNULL).value
            kept = list(dict.fromkeys([*kept, "-s", *(["-P"] if answer is not None and answer.returncode == 0 else [])]))
        return [interpreter, *kept, path, *command[1:]]

    @property
    def attached(self) -> bool:
        """Whether a binding in the program uses the readings."""
        return (self.folder / "attached").exists()

    def write(self, snapshot: Snapshot) -> None:
        """Replace the previous reading atomically.

        Raises:
            OSError: The file cannot be written.
        """
        now, seen, answered = time.monotonic(), shown(snapshot, self._everything), []
        for slot in seen:
            counter, why = f"{slot.key}.{COUNTER}", snapshot.unavailable.get(f"{slot.key}.{COUNTER}")
            power, joules = snapshot.metrics.get(f"{slot.key}.{DRAW}"), None
            if counter in snapshot.metrics or (why is not None and why.reason != Reason.NOT_SUPPORTED):
                # The device has a counter, or its value is missing only now. A sum of our own would begin at zero.
                self._counting.add(slot.key)
            if slot.key not in self._counting and (power is not None or slot.key in self._energy):
                energy = self._energy.setdefault(slot.key, DeviceEnergy(now, waits=False))
                energy.add(now, inf, True, None, power)
                used = energy.result()
                joules = 0.0 if used is None else used.joules
            answered.append({**answers(snapshot, slot, joules), "wide_fields": WIDE_FIELDS})
        reading = {
            "monotonic": now,
            "valid_seconds": self._valid,
            "microseconds": snapshot.time_ns // 1000,
            "driver_version": next((slot.identity.driver_version for slot in seen), ""),
            "vendors": sorted({slot.identity.vendor for slot in seen}),
            "binding": self._binding,
            "devices": answered,
        }
        # The program may read at any time, so it must never see a part of a reading.
        draft = self.folder / "draft.json"
        draft.write_text(json.dumps(reading), encoding="utf-8")
        draft.replace(self.folder / "reading.json")

    def open(self) -> None:
        """Do nothing, since the folder exists already."""

    def export(self, record: Record) -> None:
        """Write a record's reading."""
        self.write(record.snapshot)

    def flush(self) -> None:
        """Do nothing, since each reading is written at once."""

    def close(self) -> None:
        """Do nothing. ``remove`` deletes the folder when the program has ended."""

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)


# NVML's answers

NOT_SUPPORTED, NO_PERMISSION, UNKNOWN = 3, 4, 999
CODES: Mapping[str, int] = {
    Reason.NOT_SUPPORTED: NOT_SUPPORTED,
    Reason.NOT_IN_USE: NOT_SUPPORTED,
    Reason.SUSPENDED: NOT_SUPPORTED,
    Reason.NEEDS_INTERVAL: NOT_SUPPORTED,
    Reason.NO_PERMISSION: NO_PERMISSION,
    Reason.DRIVER_UNAVAILABLE: 9,
    Reason.TIMED_OUT: 10,
    Reason.STALE: 10,
    Reason.DEVICE_LOST: 15,
    Reason.RESET_REQUIRED: 16,
}
"""NVML's return code for each reason of a missing value. Other reasons have ``UNKNOWN``."""
UNKNOWN_ARCHITECTURE = 0xFFFFFFFF
PCI_ADDRESS = re.compile(r"[0-9a-f]*:?[0-9a-f]+:[0-9a-f]+\.[0-9a-f]", re.IGNORECASE)


ANSWERS: tuple[tuple[str, tuple[str, ...], float], ...] = (
    ("nvmlDeviceGetUtilizationRates", UTILIZATION, 1),
    ("memory", ("memory",), 1),
    ("nvmlDeviceGetTemperature:0", TEMPERATURE, 1),
    ("nvmlDeviceGetTemperatureThreshold:0", ("tempLimit.shutdown",), 1),
    ("nvmlDeviceGetTemperatureThreshold:1", ("tempLimit.slowdown",), 1),
    ("nvmlDeviceGetPowerUsage", POWER, 1000),
    ("nvmlDeviceGetEnforcedPowerLimit", POWER_LIMIT, 1000),
    ("nvmlDeviceGetPowerManagementLimit", POWER_LIMIT, 1000),
    ("nvmlDeviceGetClockInfo:0", ("graphicsClock", "freq", "smClock"), 1),
    ("nvmlDeviceGetClockInfo:1", ("smClock",), 1),
    ("nvmlDeviceGetClockInfo:2", ("memoryClock",), 1),
    ("nvmlDeviceGetMaxClockInfo:0", ("maxSmClock",), 1),
    ("nvmlDeviceGetMaxClockInfo:1", ("maxSmClock",), 1),
    ("nvmlDeviceGetMaxClockInfo:2", ("maxMemoryClock",), 1),
    ("nvmlDeviceGetFanSpeed", ("fanSpeed",), 1),
    ("nvmlDeviceGetFanSpeed:0", ("fanSpeed",), 1),
    ("nvmlDeviceGetPerformanceState", ("performanceState",), 1),
    ("nvmlDeviceGetPowerState", ("performanceState",), 1),
    ("nvmlDeviceGetEncoderUtilization", ("encoderUtilization",), 1),
    ("nvmlDeviceGetDecoderUtilization", ("decoderUtilization",), 1),
    ("nvmlDeviceGetCurrPcieLinkGeneration", ("pcieLinkGen",), 1),
    ("nvmlDeviceGetCurrPcieLinkWidth", ("pcieLinkWidth",), 1),
    ("nvmlDeviceGetMaxPcieLinkGeneration", ("maxPcieLinkGen",), 1),
    ("nvmlDeviceGetMaxPcieLinkWidth", ("maxPcieLinkWidth",), 1),
    ("nvmlDeviceGetPcieThroughput:0", ("pcieTxBytes",), 1 / 1024),
    ("nvmlDeviceGetPcieThroughput:1", ("pcieRxBytes",), 1 / 1024),
    ("nvmlDeviceGetPcieReplayCounter", ("pcieReplays",), 1),
    ("field:82", ("memoryTemp",), 1),
    ("nvmlDeviceGetTotalEnergyConsumption", ("energyJoules",), 1000),
    *(
        (f"nvmlDeviceGetTotalEccErrors:{kind}:{counter}", (f"{name}EccErrors{suffix}", f"{name}MemoryErrors{suffix}"), 1)
        for kind, name in enumerate(("corrected", "uncorrected"))
        for counter, suffix in enumerate(("", "Aggregate"))  # since the driver was loaded, and over the device's life
    ),
    *(
        (f"nvmlDeviceGetMemoryErrorCounter:{kind}:{counter}:2", (f"{name}MemoryErrors{suffix}",), 1)
        for kind, name in enumerate(("corrected", "uncorrected"))
        for counter, suffix in enumerate(("", "Aggregate"))
    ),
)
"""Numbers of a device: the function followed by its numeric arguments, the metrics, and a factor. The first metric with a value counts."""
FIELDS = {83: "nvmlDeviceGetTotalEnergyConsumption", 185: "nvmlDeviceGetPowerUsage", 186: "nvmlDeviceGetPowerUsage"}
"""The function that returns the same number as a field, by field id."""
WIDE_FIELDS = (83,)
"""Ids of fields with values of 64 bits."""
CLOCK_REASONS = {
    "gpuIdle": 0x1,
    "applicationsClocksSetting": 0x2,
    "swPowerCap": 0x4,
    "hwSlowdown": 0x8,
    "syncBoost": 0x10,
    "swThermalSlowdown": 0x20,
    "hwThermalSlowdown": 0x40,
    "hwPowerBrakeSlowdown": 0x80,
    "displayClockSetting": 0x100,
    "currentLimit": 0x8,  # NVML reports too high a current as hardware slowdown
}
"""NVML's bit for each reason of ``throttle.…``."""
# Some programs fail without these answers. Mode 0: any number of processes may compute on a device.
CONSTANTS = {"nvmlDeviceGetComputeMode": 0, "nvmlDeviceGetArchitecture": UNKNOWN_ARCHITECTURE}


def shown(snapshot: Snapshot, everything: bool = False) -> list[DeviceSlot]:
    """Return the devices that programs see, in order: no partitions, and NVIDIA's devices first, but only with ``everything``."""
    whole = [slot for slot in snapshot.identities if not slot.identity.parent and (everything or slot.identity.vendor != "nvidia")]
    return sorted(whole, key=lambda slot: slot.identity.vendor != "nvidia")


def answers(snapshot: Snapshot, slot: DeviceSlot, integrated_joules: float | None = None) -> dict[str, Any]:
    """Return the answers of a device: ``values`` by function, and ``errors`` for functions without a value.

    Args:
        snapshot: The reading.
        slot: The device.
        integrated_joules: Its energy since the start of the program, computed from its power. For a device without a counter.
    """
    key, identity, metrics = slot.key, slot.identity, snapshot.metrics
    values: dict[str, Any] = {}
    errors: dict[str, int] = {}

    def give(name: str, value: Any, sources: Iterable[str]) -> None:
        """Set the answer: the value, or an error code if it is None."""
        # The code of the first metric that is missing for another reason than "not supported", which says more.
        if value is not None:
            values[name] = value
            return
        codes = [_code_of(snapshot.unavailable.get(f"{key}.{source}")) for source in sources]
        errors[name] = next((code for code in codes if code != NOT_SUPPORTED), NOT_SUPPORTED)

    for function, names, factor in ANSWERS:
        number = first(metrics, key, names)
        if number is not None and round(number * factor) < 0:  # NVML's numbers have no sign
            errors[function] = UNKNOWN
        else:
            give(function, None if number is None else round(number * factor), names)
    if integrated_joules is not None:
        values.setdefault("nvmlDeviceGetTotalEnergyConsumption", round(integrated_joules * 1000))

    total = first(metrics, key, MEMORY_TOTAL) or identity.memory_total_bytes
    used, free = first(metrics, key, MEMORY_USED), first(metrics, key, ("memoryFreeBytes",))
    memory = None
    if total is not None and used is not None:
        left = max(0, total - used)
        memory = [round(total), round(min(used, total)), round(left if free is None else min(free, left))]
    give("nvmlDeviceGetMemoryInfo", memory, (*MEMORY_USED, *MEMORY_TOTAL))

    reasons = {f"throttle.{reason}": bit for reason, bit in CLOCK_REASONS.items()}
    known = [(bit, active) for name, bit in reasons.items() if (active := metrics.get(f"{key}.{name}")) is not None]
    for function in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"):
        give(function, sum({bit for bit, active in known if active}) if known else None, reasons)

    listed = snapshot.processes.get(key)
    if listed is None:
        code = _code_of(snapshot.unlisted.get(key))
        # Programs continue after "not supported", but not after "insufficient permissions".
        errors["processes"] = NOT_SUPPORTED if code == NO_PERMISSION else code
    else:
        values["processes"] = [
            {
                "pid": process.pid,
                "kinds": (process.type or "compute").split("+"),  # a process of unknown type counts as computing
                "bytes": process.memory_bytes,
                "utilization": None if process.utilization is None else round(process.utilization),
                "memory_utilization": None if process.memory_utilization is None else round(process.memory_utilization),
            }
            for process in listed
        ]
    if not {"nvmlDeviceGetPcieThroughput:0", "nvmlDeviceGetPcieThroughput:1"} <= values.keys():
        # Panels that find a link generation also ask for the throughput, and fail if there is none. So without throughput there is none.
        values.pop("nvmlDeviceGetMaxPcieLinkGeneration", None)
        errors["nvmlDeviceGetMaxPcieLinkGeneration"] = NOT_SUPPORTED
    for field, function in FIELDS.items():
        kept: dict[str, Any] = values if function in values else errors
        kept[f"field:{field}"] = kept[function]
    facts = {  # only known ones. The UUID is always set, because programs identify devices by it.
        "nvmlDeviceGetName": identity.name or identity.vendor,
        "nvmlDeviceGetUUID": slot.unique_id,
        "nvmlDeviceGetSerial": identity.serial,
        "nvmlDeviceGetVbiosVersion": identity.firmware,
        "nvmlDeviceGetBoardPartNumber": identity.part_number,
        "nvmlDeviceGetPciInfo": identity.pci_bus_id if PCI_ADDRESS.fullmatch(identity.pci_bus_id) else "",
        "nvmlDeviceGetMinorNumber": identity.minor_number,
        "nvmlDeviceGetNumaNodeId": identity.numa_node,
        "nvmlDeviceGetNumGpuCores": identity.cores,
    }
    known_facts = {name: fact for name, fact in facts.items() if fact is not None and fact != ""}
    return {"anchor": identity.anchor, "values": {**known_facts, **CONSTANTS, **values}, "errors": errors}


def _code_of(why: Unavailable | None) -> int:
    return NOT_SUPPORTED if why is None else CODES.get(why.reason, UNKNOWN)
