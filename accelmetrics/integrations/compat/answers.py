"""What NVML would answer of a snapshot's devices: by function, in NVML's units, or the return code of why not.

One table, of any vendor's devices. ``startup/_accelmetrics_nvml.py`` hands the answers to programs, in the structures that they ask with.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from accelmetrics.schemas.errors import Reason, Unavailable
from accelmetrics.schemas.identity import DeviceIdentity, DeviceProcess, DeviceSlot
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


class NvmlAnswer(NamedTuple):
    """One number that NVML gives of a device.

    Attributes:
        function: The function's name, with the numbers that it is asked with behind it.
        metrics: The metrics that it is; the first that there is counts.
        factor: What the metric is multiplied by.
    """

    function: str
    metrics: tuple[str, ...]
    factor: float = 1


def _errors(kind: int, name: str) -> tuple[NvmlAnswer, ...]:
    """Return the rows of one kind of memory errors: since the driver was loaded, and over the device's life."""
    return tuple(
        row
        for counter, suffix in enumerate(("", "Aggregate"))
        for row in (
            NvmlAnswer(f"nvmlDeviceGetTotalEccErrors:{kind}:{counter}", (f"{name}EccErrors{suffix}", f"{name}MemoryErrors{suffix}")),
            NvmlAnswer(f"nvmlDeviceGetMemoryErrorCounter:{kind}:{counter}:2", (f"{name}MemoryErrors{suffix}",)),
        )
    )


ANSWERS = (
    NvmlAnswer("nvmlDeviceGetUtilizationRates", UTILIZATION),
    NvmlAnswer("memory", ("memory",)),
    NvmlAnswer("nvmlDeviceGetTemperature:0", TEMPERATURE),
    NvmlAnswer("nvmlDeviceGetTemperatureThreshold:0", ("tempLimit.shutdown",)),
    NvmlAnswer("nvmlDeviceGetTemperatureThreshold:1", ("tempLimit.slowdown",)),
    NvmlAnswer("nvmlDeviceGetPowerUsage", POWER, 1000),
    NvmlAnswer("nvmlDeviceGetEnforcedPowerLimit", POWER_LIMIT, 1000),
    NvmlAnswer("nvmlDeviceGetPowerManagementLimit", POWER_LIMIT, 1000),
    NvmlAnswer("nvmlDeviceGetClockInfo:0", ("graphicsClock", "freq", "smClock")),
    NvmlAnswer("nvmlDeviceGetClockInfo:1", ("smClock",)),
    NvmlAnswer("nvmlDeviceGetClockInfo:2", ("memoryClock",)),
    NvmlAnswer("nvmlDeviceGetMaxClockInfo:0", ("maxSmClock",)),
    NvmlAnswer("nvmlDeviceGetMaxClockInfo:1", ("maxSmClock",)),
    NvmlAnswer("nvmlDeviceGetMaxClockInfo:2", ("maxMemoryClock",)),
    NvmlAnswer("nvmlDeviceGetFanSpeed", ("fanSpeed",)),
    NvmlAnswer("nvmlDeviceGetFanSpeed:0", ("fanSpeed",)),
    NvmlAnswer("nvmlDeviceGetPerformanceState", ("performanceState",)),
    NvmlAnswer("nvmlDeviceGetPowerState", ("performanceState",)),
    NvmlAnswer("nvmlDeviceGetEncoderUtilization", ("encoderUtilization",)),
    NvmlAnswer("nvmlDeviceGetDecoderUtilization", ("decoderUtilization",)),
    NvmlAnswer("nvmlDeviceGetCurrPcieLinkGeneration", ("pcieLinkGen",)),
    NvmlAnswer("nvmlDeviceGetCurrPcieLinkWidth", ("pcieLinkWidth",)),
    NvmlAnswer("nvmlDeviceGetMaxPcieLinkGeneration", ("maxPcieLinkGen",)),
    NvmlAnswer("nvmlDeviceGetMaxPcieLinkWidth", ("maxPcieLinkWidth",)),
    NvmlAnswer("nvmlDeviceGetPcieThroughput:0", ("pcieTxBytes",), 1 / 1024),
    NvmlAnswer("nvmlDeviceGetPcieThroughput:1", ("pcieRxBytes",), 1 / 1024),
    NvmlAnswer("nvmlDeviceGetPcieReplayCounter", ("pcieReplays",)),
    NvmlAnswer("field:82", ("memoryTemp",)),
    *_errors(0, "corrected"),
    *_errors(1, "uncorrected"),
)
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
    identity, device = slot.identity, _OneDevice(snapshot, slot.key)
    for row in ANSWERS:
        device.give(row.function, row.metrics, row.factor)
    device.give_memory(identity.memory_total_bytes)
    device.give_energy(integrated_joules)
    device.give_clock_reasons()
    device.give_processes()
    if not {"nvmlDeviceGetPcieThroughput:0", "nvmlDeviceGetPcieThroughput:1"} <= device.values.keys():
        # Panels that find a generation ask for the throughput, and break where there is none.
        device.refuse("nvmlDeviceGetMaxPcieLinkGeneration", NOT_SUPPORTED)
    for field, function in FIELDS.items():
        if function in device.values:
            device.values[f"field:{field}"] = device.values[function]
        else:
            device.errors[f"field:{field}"] = device.errors[function]
    return {"anchor": identity.anchor, "values": {**_facts(slot, identity), **CONSTANTS, **device.values}, "errors": device.errors}


def _facts(slot: DeviceSlot, identity: DeviceIdentity) -> dict[str, str | int]:
    """Return what does not change about a device, where it is known. Programs tell devices apart by the UUID, so each has one."""
    facts: dict[str, str | int | None] = {
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
    return {name: fact for name, fact in facts.items() if fact is not None and fact != ""}


class _OneDevice:
    """Collects a device's answers.

    Attributes:
        values: Answers by name.
        errors: Return codes by name.
    """

    def __init__(self, snapshot: Snapshot, key: str) -> None:
        self.values: dict[str, Any] = {}
        self.errors: dict[str, int] = {}
        self._snapshot = snapshot
        self._key = key

    def refuse(self, name: str, code: int) -> None:
        """Answer with a return code."""
        self.values.pop(name, None)
        self.errors[name] = code

    def give(self, name: str, metrics: Sequence[str], factor: float = 1) -> None:
        """Answer with a metric, rounded to a whole number as NVML has them."""
        found = self._first(metrics)
        if found is None:
            self.refuse(name, self._code(metrics))
        elif (answer := round(found * factor)) < 0:  # NVML's numbers have no sign
            self.refuse(name, UNKNOWN)
        else:
            self.values[name] = answer

    def give_memory(self, known_total: int | None) -> None:
        """Answer with total, used and free bytes."""
        total, used, free = self._first(MEMORY_TOTAL) or known_total, self._first(MEMORY_USED), self._first(("memoryFreeBytes",))
        if total is None or used is None:
            self.refuse("nvmlDeviceGetMemoryInfo", self._code((*MEMORY_USED, *MEMORY_TOTAL)))
        else:
            left = max(0, total - used)
            self.values["nvmlDeviceGetMemoryInfo"] = [
                round(total),
                round(min(used, total)),
                round(left if free is None else min(free, left)),
            ]

    def give_energy(self, integrated_joules: float | None) -> None:
        """Answer with the device's own counter of energy, else with what was integrated."""
        name = "nvmlDeviceGetTotalEnergyConsumption"
        self.give(name, ("energyJoules",), 1000)
        if name not in self.values and integrated_joules is not None:
            self.values[name] = round(integrated_joules * 1000)

    def give_clock_reasons(self) -> None:
        """Answer with the bits of why clocks are low, of the reasons that are known."""
        names = {f"throttle.{reason}": bit for reason, bit in CLOCK_REASONS.items()}
        known = [(bit, active) for name, bit in names.items() if (active := self._first((name,))) is not None]
        for function in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"):
            if known:
                self.values[function] = sum({bit for bit, active in known if active})
            else:
                self.refuse(function, self._code(names))

    def give_processes(self) -> None:
        """Answer with the processes on the device."""
        found = self._snapshot.processes.get(self._key)
        if found is None:
            code = _code_of(self._snapshot.unlisted.get(self._key))
            self.refuse("processes", NOT_SUPPORTED if code == NO_PERMISSION else code)  # programs go on without what is not supported
        else:
            self.values["processes"] = [_process(process) for process in found]

    def _first(self, metrics: Iterable[str]) -> float | None:
        return first(self._snapshot.metrics, self._key, tuple(metrics))

    def _code(self, metrics: Iterable[str]) -> int:
        """Return why none of some metrics is there: the first reason that is not merely that the device has none."""
        codes = [_code_of(self._snapshot.unavailable.get(f"{self._key}.{name}")) for name in metrics]
        return next((code for code in codes if code != NOT_SUPPORTED), NOT_SUPPORTED)


def _code_of(why: Unavailable | None) -> int:
    return NOT_SUPPORTED if why is None else CODES.get(why.reason, UNKNOWN)


def _process(process: DeviceProcess) -> dict[str, Any]:
    """Return a process; one whose kind is not known computes."""
    shares = {"utilization": process.utilization, "memory_utilization": process.memory_utilization}
    return {
        "pid": process.pid,
        "kinds": (process.type or "compute").split("+"),
        "bytes": process.memory_bytes,
        **{name: None if share is None else round(share) for name, share in shares.items()},
    }
