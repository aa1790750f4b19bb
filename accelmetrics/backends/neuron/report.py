"""One line of ``neuron-monitor``, taken apart.

::

    {"neuron_runtime_data": [{"pid": …, "error": "", "report": {
         "neuroncore_counters": {"neuroncores_in_use": {"0": {"neuroncore_utilization": %, "flops": …}}, "error": ""},
         "memory_used": {"neuron_runtime_used_bytes": {"host": By, "neuron_device": By, "usage_breakdown": {
             "host": {…: By}, "neuroncore_memory_usage": {"0": {…: By}}}}, "error": ""},
         "execution_stats": {"execution_summary": {…}, "error_summary": {…}, "latency_stats": {…: {"p50": s}}, "error": ""}}}],
     "system_data": {"neuron_hw_counters": {"neuron_devices": [{"neuron_device_index": 0, …}], "error": ""}},
     "neuron_hardware_info": {"neuron_device_count": …, "neuroncore_per_device_count": …, "error": ""}}

Every part may be missing or ``null`` (older tools, sections that failed): what is missing is left out here, and explained
where the parts are put together. A section that carries an error has no values, whatever else stands in it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

from accelmetrics.backends.neuron.numbers import Value, failure, number
from accelmetrics.schemas.catalogue.neuron import CORE_MEMORY, ECC, ERRORS, EXECUTIONS, HOST_MEMORY, LATENCIES, PERCENTILES
from accelmetrics.schemas.errors import SourceError
from accelmetrics.schemas.reasons import Reason, Unavailable

COUNTERS, MEMORY, EXECUTION = "neuroncore_counters", "memory_used", "execution_stats"
Json = Mapping[str, object]
Cores = dict[int, dict[str, Value]]
NOTHING: Json = {}
MANY = 100_000
"""More cores or chips than this no machine has: what has a higher number is none."""


class Runtime(NamedTuple):
    """One program that uses NeuronCores.

    Attributes:
        pid: Its process id, -1 where the tool does not say.
        cores: By section (counters, memory) and core, the values by name. A section that is not there has no entry.
        machine: What belongs to no core, by key.
        errors: By section, why it has nothing.
    """

    pid: int
    cores: dict[str, Cores]
    machine: dict[str, Value]
    errors: dict[str, Unavailable]

    def uses(self, core: int) -> bool:
        """Whether the program runs on a core, or has memory there."""
        return any(core in cores for cores in self.cores.values())


class Hardware(NamedTuple):
    """What is fixed about the machine; numbers are 0 and texts empty where the tool does not say."""

    chips: int
    cores_per_chip: int
    memory: int
    chip: str
    core: str
    error: str


class Report(NamedTuple):
    """A line.

    Attributes:
        runtimes: The programs that use NeuronCores; empty on an idle machine.
        hardware: What is there.
        ecc: By chip, the error counters by name.
        ecc_error: Why there are none.
    """

    runtimes: tuple[Runtime, ...]
    hardware: Hardware
    ecc: dict[int, dict[str, Value]]
    ecc_error: Unavailable | None

    @property
    def cores(self) -> set[int]:
        """Every core that the report knows of."""
        used = {core for runtime in self.runtimes for cores in runtime.cores.values() for core in cores}
        return used | set(range(min(self.hardware.chips * self.hardware.cores_per_chip, MANY)))


def parse(line: bytes) -> Report:
    """Take a line apart.

    Raises:
        SourceError: It is no report (``parse_error``).
    """
    try:
        whole = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _unreadable(line, str(error)) from error
    if not isinstance(whole, dict) or not isinstance(whole.get("neuron_runtime_data", ""), (list, type(None))):
        raise _unreadable(line, "it has no list neuron_runtime_data")
    # An empty list is null: that is how the tool's language writes one that was never made.
    runtimes = tuple(_runtime(entry) for entry in whole["neuron_runtime_data"] or () if isinstance(entry, dict))
    counters = _part(whole, "system_data", "neuron_hw_counters")
    return Report(runtimes, _hardware(_part(whole, "neuron_hardware_info")), _ecc(counters), _error(counters))


def _unreadable(line: bytes, why: str) -> SourceError:
    begin = line[:80].decode("utf-8", "replace")
    return SourceError(Reason.PARSE_ERROR, f"neuron-monitor's line is not understood: {why}: {begin}")


def _part(whole: Json, *names: str) -> Json:
    """What stands under some names; nothing where a part of the way is missing."""
    for name in names:
        found = whole.get(name)
        whole = found if isinstance(found, dict) else NOTHING
    return whole


def _error(section: Json) -> Unavailable | None:
    words = section.get("error")
    return failure(words) if isinstance(words, str) and words else None


def _runtime(entry: Json) -> Runtime:
    pid = entry.get("pid")
    runtime = Runtime(pid if isinstance(pid, int) else -1, {}, {}, {})
    report = _part(entry, "report")
    for name in (COUNTERS, MEMORY, EXECUTION):
        section = _part(report, name)
        error = _error(entry) or _error(section)
        if error is not None:
            runtime.errors[name] = error
        else:
            READERS[name](runtime, section)
    return runtime


def _counters(runtime: Runtime, section: Json) -> None:
    if isinstance(section.get("neuroncores_in_use"), dict):
        found = _by_core(_part(section, "neuroncores_in_use"))
        runtime.cores[COUNTERS] = {core: _counted(part) for core, part in found.items()}


def _counted(part: Json) -> dict[str, Value]:
    names = {"neuroncore_utilization": ("neuroncore_utilization",), "flops": ("flops", "effective_flops")}
    found = {name: next((part[spelling] for spelling in spellings if spelling in part), None) for name, spellings in names.items()}
    return {name: number(raw) for name, raw in found.items() if raw is not None}


def _memory(runtime: Runtime, section: Json) -> None:
    used = _part(section, "neuron_runtime_used_bytes")
    keys = {"host": "trn.host_total_memory_usage", "neuron_device": "trn.neuron_device_total_memory_usage"}
    runtime.machine.update(_numbers(used, keys))
    breakdown = _part(used, "usage_breakdown")
    runtime.machine.update(_numbers(_part(breakdown, "host"), {name: f"trn.host_memory_usage.{name}" for name in HOST_MEMORY}))
    if isinstance(breakdown.get("neuroncore_memory_usage"), dict):
        names = {name: f"neuroncore_memory_usage.{name}" for name in CORE_MEMORY}
        found = _by_core(_part(breakdown, "neuroncore_memory_usage"))
        runtime.cores[MEMORY] = {core: _numbers(part, names) for core, part in found.items()}


def _execution(runtime: Runtime, section: Json) -> None:
    for group, names in (("execution_summary", EXECUTIONS), ("error_summary", ERRORS)):
        runtime.machine.update(_numbers(_part(section, group), {name: f"trn.{group}.{name}" for name in names}))
    for clock in LATENCIES:
        found = _part(section, "latency_stats", clock)
        runtime.machine.update({f"trn.{clock}.{name}": number(found[name]) for name in PERCENTILES if name in found})


READERS = {COUNTERS: _counters, MEMORY: _memory, EXECUTION: _execution}


def _by_core(found: Json) -> dict[int, Json]:
    """Parts by core; what is not under a number is none (newer tools put other things beside them)."""
    return {int(core): part for core, part in found.items() if _is_number(core) and isinstance(part, dict)}


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 6 and int(text) < MANY


def _numbers(found: Json, names: Mapping[str, str]) -> dict[str, Value]:
    """Counts under our names for them."""
    return {ours: number(found[theirs], whole=True) for theirs, ours in names.items() if theirs in found}


def _hardware(found: Json) -> Hardware:
    chips, cores = (_count(found.get(name), MANY) for name in ("neuron_device_count", "neuroncore_per_device_count"))
    chip, core, error = (_text(found.get(name)) for name in ("neuron_device_type", "neuroncore_version", "error"))
    return Hardware(chips, cores, _count(found.get("neuron_device_memory_size"), 2**53), chip, core, error)


def _count(raw: object, bound: int) -> int:
    """A number above 0 and below a bound; 0 for anything else."""
    return raw if isinstance(raw, int) and not isinstance(raw, bool) and 0 < raw < bound else 0


def _text(raw: object) -> str:
    return raw if isinstance(raw, str) else ""


def _ecc(section: Json) -> dict[int, dict[str, Value]]:
    listed = section.get("neuron_devices")
    if not isinstance(listed, list) or _error(section) is not None:
        return {}
    found = {}
    for chip in listed:
        index = chip.get("neuron_device_index") if isinstance(chip, dict) else None
        if isinstance(index, int) and not isinstance(index, bool) and 0 <= index < MANY:
            found[index] = _numbers(chip, {name: name for name in ECC})
    return found
