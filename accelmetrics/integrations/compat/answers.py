"""What NVML would answer of a snapshot's devices: by function, in NVML's units, or the return code of why not.

One table, of any vendor's devices. ``startup/_accelmetrics_nvml.py`` hands the answers to programs, in the structures that they ask with.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from accelmetrics.schemas.errors import Reason, Unavailable
from accelmetrics.schemas.identity import DeviceSlot
from accelmetrics.schemas.snapshot import Snapshot
from accelmetrics.schemas.vitals import MEMORY_TOTAL, MEMORY_USED, POWER, POWER_LIMIT, TEMPERATURE, UTILIZATION, first

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


def devices(snapshot: Snapshot, everything: bool = False) -> list[DeviceSlot]:
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
