"""Runtimes added up: what a report comes to for each core, and for the machine.

Nothing is invented. A core that no program uses is ``not_in_use``, not idle at 0 %; a sum of which one part is missing is
missing; a section with an error gives that error's words. Latencies are those of the slowest runtime, since percentiles
do not add up.

W&B reads the first program of the list, and with ``LOCAL_RANK`` the core of that number, at 0 where it finds none. Here a
watched process (``pid=…``, with ``children=True`` its descendants too) selects programs; ``LOCAL_RANK`` selects the core
of that number, if there is one, and the programs on it. What no program uses then is missing, not 0.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import NamedTuple

from accelmetrics.backends.contract import Coverage, ReadOptions
from accelmetrics.backends.neuron.report import COUNTERS, EXECUTION, MEMORY, Report, Runtime, Value, percent, total
from accelmetrics.schemas.catalogue import neuron as rows
from accelmetrics.schemas.identity import DeviceProcess
from accelmetrics.schemas.reasons import Reason, Unavailable

Values = dict[str, Value]
"""By metric, its value or why there is none."""
CORE_NAMES = {
    COUNTERS: ("neuroncore_utilization", "flops"),
    MEMORY: tuple(f"neuroncore_memory_usage.{category}" for category in rows.CORE_MEMORY),
}
MACHINE_KEYS = {MEMORY: tuple(row.key for row in rows.MEMORY), EXECUTION: tuple(row.key for row in rows.EXECUTION)}
NOT_PRINTED = Unavailable(Reason.NOT_SUPPORTED, "neuron-monitor does not print it")
IDLE = Unavailable(Reason.NOT_IN_USE, "nothing was executed in the tool's last period")
LATENCIES = tuple(f"trn.{clock}." for clock in rows.LATENCIES)


def documented(found: Values) -> Values:
    """Add the host's memory under the spelling of W&B's documentation."""
    for category in rows.HOST_MEMORY:
        found[f"trn.host_total_memory_usage.{category}"] = found[f"trn.host_memory_usage.{category}"]
    return found


class Totals:
    """One report, seen by one consumer.

    Args:
        report: The report.
        runtimes: Those of its programs that the consumer asked for.
        idle: What to say where none of them is.
        who: Whom they were chosen for, where others may be using what these do not: ``process 12``.
    """

    def __init__(self, report: Report, runtimes: Sequence[Runtime], idle: str, who: str = "") -> None:
        self._report = report
        self._runtimes = runtimes
        self._idle = Unavailable(Reason.NOT_IN_USE, idle)
        self._who = who

    def core(self, core: int) -> Values:
        """One core."""
        found: Values = {}
        for section, names in CORE_NAMES.items():
            users = [runtime.cores[section][core] for runtime in self._runtimes if core in runtime.cores.get(section, ())]
            for name in names:
                parts = [user[name] for user in users if name in user]
                found[name] = total(parts) if parts else NOT_PRINTED if users else self._unused(section, core)
        found["neuroncore_utilization"] = percent(found["neuroncore_utilization"])
        return found

    def _unused(self, section: str, core: int) -> Unavailable:
        error = next((runtime.errors[section] for runtime in self._runtimes if section in runtime.errors), None)
        if error is not None:
            return error
        if self._runtimes and not any(section in runtime.cores for runtime in self._runtimes):
            return Unavailable(Reason.NOT_SUPPORTED, f"neuron-monitor does not print {section} by core")
        words = f"{self._who} does not use core {core}" if self._who else f"no program uses core {core}"
        return Unavailable(Reason.NOT_IN_USE, words) if self._runtimes else self._idle

    def machine(self) -> Values:
        """What belongs to no core."""
        found = documented({key: self._whole(section, key) for section, keys in MACHINE_KEYS.items() for key in keys})
        found["trn.neuron_runtime_count"] = len(self._runtimes)
        hardware = self._report.hardware
        silent = Unavailable(Reason.DRIVER_ERROR, hardware.error) if hardware.error else NOT_PRINTED
        for key, count in (
            ("trn.neuron_device_count", hardware.chips),
            ("trn.neuroncore_per_device_count", hardware.cores_per_chip),
            ("trn.neuron_device_memory_size", hardware.memory),
        ):
            found[key] = count or silent
        for chip in sorted(self._report.ecc) or range(hardware.chips):
            told = self._report.ecc.get(chip, {})
            found |= {f"trn.device.{chip}.{name}": told.get(name, self._report.ecc_error or NOT_PRINTED) for name in rows.ECC}
        return found

    def _whole(self, section: str, key: str) -> Value:
        if not self._runtimes:
            return self._idle
        parts: list[Value] = []
        for runtime in self._runtimes:
            value = runtime.errors.get(section) or runtime.machine.get(key)
            if value is not None:
                parts.append(value)
            elif not key.startswith(LATENCIES):
                return Unavailable(Reason.NOT_SUPPORTED, f"neuron-monitor does not say it of process {runtime.pid}")
        if not key.startswith(LATENCIES):
            return total(parts)
        missing = [part for part in parts if isinstance(part, Unavailable)]
        known = [part for part in parts if not isinstance(part, Unavailable)]
        return missing[0] if missing else max(known) if known else IDLE


def users(report: Report, core: int) -> tuple[DeviceProcess, ...] | None:
    """The processes on a core, each with its memory there and its share of the core's time.

    Returns:
        None where the report does not say it of every program: one without a process id is on the core, or one has neither
        section by core and may be.
    """
    found: list[DeviceProcess] = []
    for runtime in report.runtimes:
        if not runtime.cores:
            return None
        counters, memory = (runtime.cores.get(section, {}).get(core) for section in (COUNTERS, MEMORY))
        if counters is None and not any((memory or {}).values()):  # a row of zeros is no use
            continue
        if runtime.pid < 1:
            return None
        held = total(memory.values()) if memory else NOT_PRINTED
        share = percent((counters or {}).get("neuroncore_utilization", NOT_PRINTED))
        used = None if isinstance(held, Unavailable) else int(held)
        found.append(DeviceProcess(runtime.pid, "compute", used, None if isinstance(share, Unavailable) else float(share)))
    return tuple(found)


# Whose cores: all programs' on the machine, unless a process is watched or LOCAL_RANK picks a core

UNUSED = "no program uses the Neuron devices"


class Chosen(NamedTuple):
    """Some programs, what to say when there are none, and whose they are; empty where that is all programs'."""

    runtimes: tuple[Runtime, ...]
    idle: str
    who: str = ""


def picked_core(cores: Collection[int]) -> int | None:
    """The core that ``LOCAL_RANK`` stands for; None where it is unset, no number, or no core has that number."""
    rank = os.environ.get("LOCAL_RANK", "").strip()
    return int(rank) if rank.isascii() and rank.isdecimal() and int(rank) in cores else None


def choose(runtimes: Sequence[Runtime], options: ReadOptions, core: int | None) -> Chosen:
    """The programs that a consumer wants.

    Args:
        runtimes: All there are.
        options: What the consumer asked for.
        core: The core that was picked, if one was.
    """
    chosen, idle, who = tuple(runtimes), UNUSED, ""
    if options.watched:
        watched = {options.pid}
        if chosen and options.children:
            import psutil  # needed for this alone

            with suppress(psutil.Error):
                watched |= {child.pid for child in psutil.Process(options.pid).children(recursive=True)}
        chosen = tuple(runtime for runtime in chosen if runtime.pid in watched)
        who = f"process {options.pid}"
        idle = f"{who} uses no NeuronCore"
    if core is not None:
        # One that failed may be the one on the core: better its error than nothing.
        on_core = tuple(runtime for runtime in chosen if runtime.uses(core))
        chosen = on_core or tuple(runtime for runtime in chosen if runtime.errors)
        idle = f"{who} does not use core {core}" if who else f"no program uses core {core}"
        idle += ", which LOCAL_RANK picks"
    return Chosen(chosen, idle, who)


# Where each metric is read

_SUMMED = "neuron-monitor, summed over runtimes: "
_CORE, _CHIP = "neuron_core{n}/stats", "neuron{n}/stats"


def _host_memory(category: str) -> str:
    return f"{_SUMMED}memory_used…usage_breakdown.host.{category}; sysfs: {_CHIP}/memory_usage/host_mem/{category}/total, summed over chips"


COVERAGE = Coverage(
    devices={
        "neuroncore_utilization": f"{_SUMMED}neuroncore_counters.neuroncores_in_use.{{core}}.neuroncore_utilization; "
        f"sysfs: by difference of {_CORE}/other_info/nc_time_in_use/total",
        "flops": f"{_SUMMED}neuroncore_counters.neuroncores_in_use.{{core}}.flops; "
        f"sysfs: by difference of {_CORE}/other_info/flop_count/total",
        **{
            f"neuroncore_memory_usage.{category}": f"{_SUMMED}memory_used…neuroncore_memory_usage.{{core}}.{category}; "
            f"sysfs: {_CORE}/memory_usage/device_mem/{category}/total"
            for category in rows.CORE_MEMORY
        },
    },
    machine={
        "trn.host_total_memory_usage": f"{_SUMMED}memory_used.neuron_runtime_used_bytes.host; "
        f"sysfs: {_CHIP}/memory_usage/host_mem/total, summed over chips",
        "trn.neuron_device_total_memory_usage": f"{_SUMMED}memory_used.neuron_runtime_used_bytes.neuron_device; "
        f"sysfs: {_CORE}/memory_usage/device_mem/total, summed over cores",
        **{f"trn.host_memory_usage.{category}": _host_memory(category) for category in rows.HOST_MEMORY},
        **{f"trn.host_total_memory_usage.{category}": _host_memory(category) for category in rows.HOST_MEMORY},
        "trn.neuron_device_count": "neuron-monitor: neuron_hardware_info.neuron_device_count; sysfs: directories neuron{n}",
        "trn.neuroncore_per_device_count": ("neuron-monitor: neuron_hardware_info.neuroncore_per_device_count; sysfs: neuron0/core_count"),
        "trn.neuron_device_memory_size": "neuron-monitor: neuron_hardware_info.neuron_device_memory_size",
        "trn.neuron_runtime_count": "neuron-monitor: entries of neuron_runtime_data",
        **{f"trn.execution_summary.{name}": f"{_SUMMED}execution_stats.execution_summary.{name}" for name in rows.EXECUTIONS},
        **{f"trn.error_summary.{kind}": f"{_SUMMED}execution_stats.error_summary.{kind}" for kind in rows.ERRORS},
        **{
            f"trn.{clock}.{percentile}": f"neuron-monitor, largest over runtimes: execution_stats.latency_stats.{clock}.{percentile}"
            for clock in rows.LATENCIES
            for percentile in rows.PERCENTILES
        },
    },
    optional={
        f"trn.device.{{i}}.{counter}": f"neuron-monitor: neuron_hw_counters.neuron_devices[].{counter}; sysfs: {_CHIP}/hardware/{counter}"
        for counter in rows.ECC
    },
)
