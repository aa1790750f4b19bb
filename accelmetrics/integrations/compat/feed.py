"""Readings for a program that knows NVIDIA's binding alone: what ``accelmetrics run --as-nvml`` starts it with, and keeps up to date.

The program re-reads a file when that has changed. It lies in a folder that is this user's alone. What NVML would answer of a device is one
table, whichever vendor's it is: by function, in NVML's units, or the return code of why not. ``startup/_accelmetrics_nvml.py`` hands the
answers to programs, in the structures that they ask with.
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
"""What a program's Python runs first."""
VALID_SECONDS = 10.0
"""For which a reading is believed, at least: then the program is told that the driver does not answer."""
SHEBANG = re.compile(rb"#!\s*(\S+)[ \t]+-([A-Za-z]+)[ \t]*$")
"""The first line of a script, with options of its interpreter."""
ASK_SECONDS = 10.0


class NvmlFeed:
    """Writes each reading as NVML would answer it; an exporter of the monitor that watches the program.

    Args:
        first: The reading that the program begins with.
        interval: Seconds between two readings.
        everything: Whether NVIDIA's devices are among those that the program sees.

    Attributes:
        folder: Where the readings lie. It is removed by ``remove``.
        devices: How many the program is shown at first.

    Raises:
        InvalidOptionError: There are NVIDIA devices, and the program is to see the others alone.
        OSError: There is no place for the readings.
    """

    name = "as-nvml"
    processes = 1

    def __init__(self, first: Snapshot, interval: float, everything: bool = False) -> None:
        own = [slot.key for slot in first.identities if slot.identity.vendor == "nvidia"]
        if own and not everything:
            words = f"--as-nvml: this machine has NVIDIA devices ({', '.join(own)}), which the program would no longer see"
            raise InvalidOptionError(f"{words}: --as-nvml=all gives it those first and the others after them")
        self.devices = len(shown(first, everything))
        self._everything = everything
        self._valid = max(VALID_SECONDS, 2 * interval + 1)
        self._energy: dict[str, DeviceEnergy] = {}  # of devices without a counter, by their power since the first reading
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
        """The variables that the program is started with."""
        path = [str(self._startup), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {"PYTHONPATH": os.pathsep.join(path), "ACCELMETRICS_AS_NVML": str(self.folder)}

    def reached(self, command: Sequence[str]) -> list[str]:
        """Return a command as it has to be started to be reached.

        Installers such as pipx write ``-E`` into the first line of scripts. What else the options there say stays as it is.
        """
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
        if "I" in options:  # -s and, for a Python that knows it, -P are what is left of it without -E
            ask = [interpreter, "-I", "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]
            asked = guarded(subprocess.run, ask, timeout=ASK_SECONDS, check=False, capture_output=True, stdin=subprocess.DEVNULL).value
            kept = list(dict.fromkeys([*kept, "-s", *(["-P"] if asked is not None and asked.returncode == 0 else [])]))
        return [interpreter, *kept, path, *command[1:]]

    @property
    def attached(self) -> bool:
        """Whether a binding has been given the readings."""
        return (self.folder / "attached").exists()

    def write(self, snapshot: Snapshot) -> None:
        """Put a reading in the place of the one before.

        Raises:
            OSError: It cannot be written.
        """
        now, seen, answered = time.monotonic(), shown(snapshot, self._everything), []
        for slot in seen:
            counter, why = f"{slot.key}.{COUNTER}", snapshot.unavailable.get(f"{slot.key}.{COUNTER}")
            power, joules = snapshot.metrics.get(f"{slot.key}.{DRAW}"), None
            if counter in snapshot.metrics or (why is not None and why.reason != Reason.NOT_SUPPORTED):
                self._counting.add(slot.key)  # or may have one: what is added up here would begin anew beside it
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
        draft = self.folder / "draft.json"
        draft.write_text(json.dumps(reading), encoding="utf-8")
        draft.replace(self.folder / "reading.json")

    def open(self) -> None:
        """Do nothing: the folder is there."""

    def export(self, record: Record) -> None:
        """Write a record's reading."""
        self.write(record.snapshot)

    def flush(self) -> None:
        """Do nothing: each reading is written at once."""

    def close(self) -> None:
        """Do nothing: the folder is removed when the program has ended."""

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)


# What NVML would answer

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
"""NVML's return codes by the reason for which a value is missing; that of an unknown error for the others."""
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
"""Numbers of a device: the function, with the numbers that it is asked with behind it; the metrics of which the first that there is counts;
and what that is multiplied by."""
FIELDS = {83: "nvmlDeviceGetTotalEnergyConsumption", 185: "nvmlDeviceGetPowerUsage", 186: "nvmlDeviceGetPowerUsage"}
"""By a field's number, the function that gives the same."""
WIDE_FIELDS = (83,)
"""Fields whose values are numbers of 64 bits."""
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
    "currentLimit": 0x8,  # NVML says "hardware slowdown" where too much is drawn
}
"""By reason of ``throttle.…``, NVML's bit."""
CONSTANTS = {"nvmlDeviceGetComputeMode": 0, "nvmlDeviceGetArchitecture": UNKNOWN_ARCHITECTURE}
"""Any number of processes may compute on a device; none has an architecture of NVIDIA's. Programs give up without these."""


def shown(snapshot: Snapshot, everything: bool = False) -> list[DeviceSlot]:
    """List the devices that programs see, in their order: whole ones, NVIDIA's only where ``everything`` is wanted, and then first."""
    whole = [slot for slot in snapshot.identities if not slot.identity.parent and (everything or slot.identity.vendor != "nvidia")]
    return sorted(whole, key=lambda slot: slot.identity.vendor != "nvidia")


def answers(snapshot: Snapshot, slot: DeviceSlot, integrated_joules: float | None = None) -> dict[str, Any]:
    """Return what a device answers: ``values`` by function, and ``errors`` where there is none.

    Args:
        snapshot: The reading.
        slot: The device.
        integrated_joules: What it used by its power since the program began; for a device that has no counter.
    """
    key, identity, metrics = slot.key, slot.identity, snapshot.metrics
    values: dict[str, Any] = {}
    errors: dict[str, int] = {}

    def give(name: str, value: Any, lacks: Iterable[str]) -> None:
        """Answer with a value; where there is none, with why: the first reason that is not merely that the device has none of these."""
        if value is not None:
            values[name] = value
            return
        codes = [_code_of(snapshot.unavailable.get(f"{key}.{lack}")) for lack in lacks]
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
        errors["processes"] = NOT_SUPPORTED if code == NO_PERMISSION else code  # programs go on without what is not supported
    else:
        values["processes"] = [
            {
                "pid": process.pid,
                "kinds": (process.type or "compute").split("+"),  # one whose kind is not known computes
                "bytes": process.memory_bytes,
                "utilization": None if process.utilization is None else round(process.utilization),
                "memory_utilization": None if process.memory_utilization is None else round(process.memory_utilization),
            }
            for process in listed
        ]
    if not {"nvmlDeviceGetPcieThroughput:0", "nvmlDeviceGetPcieThroughput:1"} <= values.keys():
        # Panels that find a generation ask for the throughput, and break where there is none.
        values.pop("nvmlDeviceGetMaxPcieLinkGeneration", None)
        errors["nvmlDeviceGetMaxPcieLinkGeneration"] = NOT_SUPPORTED
    for field, function in FIELDS.items():
        kept: dict[str, Any] = values if function in values else errors
        kept[f"field:{field}"] = kept[function]
    facts = {  # where they are known. Programs tell devices apart by the UUID, so each has one.
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
    told = {name: fact for name, fact in facts.items() if fact is not None and fact != ""}
    return {"anchor": identity.anchor, "values": {**told, **CONSTANTS, **values}, "errors": errors}


def _code_of(why: Unavailable | None) -> int:
    return NOT_SUPPORTED if why is None else CODES.get(why.reason, UNKNOWN)
