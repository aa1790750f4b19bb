"""Runtimes added up: what a report comes to for each core, and for the machine.

Nothing is invented. A core that no program uses is ``not_in_use``, not idle at 0 %; a sum of which one part is missing is
missing; a section with an error gives that error's words. Latencies are those of the slowest runtime, since percentiles
do not add up.
"""

from __future__ import annotations

from collections.abc import Sequence

from accelmetrics.backends.neuron.numbers import Readout, Value, documented, number, percent, total
from accelmetrics.backends.neuron.report import COUNTERS, EXECUTION, MEMORY, Report, Runtime
from accelmetrics.schemas.catalogue import neuron as rows
from accelmetrics.schemas.reasons import Reason, Unavailable

CORE_NAMES = {
    COUNTERS: ("neuroncore_utilization", "flops"),
    MEMORY: tuple(f"neuroncore_memory_usage.{category}" for category in rows.CORE_MEMORY),
}
MACHINE_KEYS = {MEMORY: tuple(row.key for row in rows.MEMORY), EXECUTION: tuple(row.key for row in rows.EXECUTION)}
LATENCIES = tuple(f"trn.{clock}." for clock in rows.LATENCIES)


class Totals:
    """One report, seen by one consumer.

    Args:
        report: The report.
        runtimes: Those of its programs that the consumer asked for.
        nobody: What to say where none of them is.
        who: Whom they were chosen for, where others may be using what these do not: ``process 12``.
    """

    def __init__(self, report: Report, runtimes: Sequence[Runtime], nobody: str, who: str = "") -> None:
        self._report = report
        self._runtimes = runtimes
        self._nobody = Unavailable(Reason.NOT_IN_USE, nobody)
        self._who = who

    def core(self, core: int) -> Readout:
        """One core."""
        readout = Readout({}, {})
        for section, names in CORE_NAMES.items():
            users = [runtime.cores[section][core] for runtime in self._runtimes if core in runtime.cores.get(section, ())]
            for name in names:
                readout.put(name, _sum_of(users, name) if users else self._unused(section, core))
        if "neuroncore_utilization" in readout.values:
            readout.put("neuroncore_utilization", percent(readout.values.pop("neuroncore_utilization")))
        return readout

    def _unused(self, section: str, core: int) -> Unavailable:
        error = next((runtime.errors[section] for runtime in self._runtimes if section in runtime.errors), None)
        if error is not None:
            return error
        if self._runtimes and not any(section in runtime.cores for runtime in self._runtimes):
            return Unavailable(Reason.NOT_SUPPORTED, f"neuron-monitor does not print {section} by core")
        words = f"{self._who} does not use core {core}" if self._who else f"no program uses core {core}"
        return Unavailable(Reason.NOT_IN_USE, words) if self._runtimes else self._nobody

    def machine(self) -> Readout:
        """What belongs to no core."""
        readout = Readout({}, {})
        for section, keys in MACHINE_KEYS.items():
            for key in keys:
                readout.put(key, self._whole(section, key))
        documented(readout)
        readout.put("trn.neuron_runtime_count", len(self._runtimes))
        self._put_hardware(readout)
        self._put_ecc(readout)
        return readout

    def _whole(self, section: str, key: str) -> Value:
        if not self._runtimes:
            return self._nobody
        parts: list[Value] = []
        for runtime in self._runtimes:
            value = runtime.errors.get(section) or runtime.machine.get(key)
            if value is not None:
                parts.append(value)
            elif not key.startswith(LATENCIES):
                return Unavailable(Reason.NOT_SUPPORTED, f"neuron-monitor does not say it of process {runtime.pid}")
        return _largest(parts) if key.startswith(LATENCIES) else total(parts)

    def _put_hardware(self, readout: Readout) -> None:
        hardware = self._report.hardware
        missing = Unavailable(*_hardware_reason(hardware.error))
        for key, count in (
            ("trn.neuron_device_count", hardware.chips),
            ("trn.neuroncore_per_device_count", hardware.cores_per_chip),
            ("trn.neuron_device_memory_size", hardware.memory),
        ):
            readout.put(key, number(count, whole=True) if count else missing)

    def _put_ecc(self, readout: Readout) -> None:
        chips = sorted(self._report.ecc) or range(self._report.hardware.chips)
        silent = self._report.ecc_error or Unavailable(Reason.NOT_SUPPORTED, "neuron-monitor does not print it")
        for chip in chips:
            found = self._report.ecc.get(chip, {})
            for counter in rows.ECC:
                readout.put(f"trn.device.{chip}.{counter}", found.get(counter, silent))


def _sum_of(users: Sequence[dict[str, Value]], name: str) -> Value:
    parts = [user[name] for user in users if name in user]
    return total(parts) if parts else Unavailable(Reason.NOT_SUPPORTED, "neuron-monitor does not print it")


def _largest(parts: Sequence[Value]) -> Value:
    if not parts:
        return Unavailable(Reason.NOT_IN_USE, "nothing was executed in the tool's last period")
    missing = [part for part in parts if isinstance(part, Unavailable)]
    return missing[0] if missing else max(part for part in parts if not isinstance(part, Unavailable))


def _hardware_reason(error: str) -> tuple[Reason, str]:
    return (Reason.DRIVER_ERROR, error) if error else (Reason.NOT_SUPPORTED, "neuron-monitor does not print it")
