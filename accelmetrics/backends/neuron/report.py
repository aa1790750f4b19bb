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
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from accelmetrics.backends.contract import Number
from accelmetrics.schemas.catalogue.neuron import CORE_MEMORY, ECC, ERRORS, EXECUTIONS, HOST_MEMORY, LATENCIES, PERCENTILES
from accelmetrics.schemas.errors import SourceError
from accelmetrics.schemas.reasons import Reason, Unavailable

Value = Number | Unavailable
"""A number, or why there is none."""
LARGEST = 2**63
"""What is at or above this was negative, or "none", before it became unsigned."""
JITTER = 5.0
"""Percent above 100 that come from the tool's period and its clock disagreeing; more is nonsense."""
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
    why = "it has no list neuron_runtime_data"
    try:
        whole = json.loads(line)
    except (ValueError, RecursionError) as error:
        whole, why = None, str(error)
    if not isinstance(whole, dict) or not isinstance(whole.get("neuron_runtime_data", ""), (list, type(None))):
        begin = line[:80].decode("utf-8", "replace")
        raise SourceError(Reason.PARSE_ERROR, f"neuron-monitor's line is not understood: {why}: {begin}")
    # An empty list is null: that is how the tool's language writes one that was never made.
    runtimes = tuple(_runtime(entry) for entry in whole["neuron_runtime_data"] or () if isinstance(entry, dict))
    counters, hardware = _part(whole, "system_data", "neuron_hw_counters"), _part(whole, "neuron_hardware_info")
    bounds = {"neuron_device_count": MANY, "neuroncore_per_device_count": MANY, "neuron_device_memory_size": 2**53}
    chips, cores, memory = (raw if type(raw := hardware.get(name)) is int and 0 < raw < bound else 0 for name, bound in bounds.items())
    names = ("neuron_device_type", "neuroncore_version", "error")
    chip, core, failure = (raw if isinstance(raw := hardware.get(name), str) else "" for name in names)
    return Report(runtimes, Hardware(chips, cores, memory, chip, core, failure), _ecc(counters), _error(counters))


def _part(whole: Json, *names: str) -> Json:
    """What stands under some names; nothing where a part of the way is missing."""
    for name in names:
        found = whole.get(name)
        whole = found if isinstance(found, dict) else NOTHING
    return whole


def _error(section: Json) -> Unavailable | None:
    """A section's own error text as a reason."""
    words = section.get("error")
    if not isinstance(words, str) or not words:
        return None
    return Unavailable(Reason.NO_PERMISSION if "permission denied" in words.lower() else Reason.DRIVER_ERROR, words)


def _runtime(entry: Json) -> Runtime:
    pid = entry.get("pid")
    runtime = Runtime(pid if isinstance(pid, int) else -1, {}, {}, {})
    for name, take in SECTIONS.items():
        section = _part(entry, "report", name)
        error = _error(entry) or _error(section)
        if error is not None:
            runtime.errors[name] = error
        else:
            take(runtime, section)
    return runtime


def _counters(runtime: Runtime, section: Json) -> None:
    if isinstance(section.get("neuroncores_in_use"), dict):
        cores = runtime.cores[COUNTERS] = {}
        for core, part in _by_core(_part(section, "neuroncores_in_use")):
            flops = part.get("flops", part.get("effective_flops"))
            found = {"neuroncore_utilization": part.get("neuroncore_utilization"), "flops": flops}
            cores[core] = {name: number(raw) for name, raw in found.items() if raw is not None}


def _memory(runtime: Runtime, section: Json) -> None:
    used = _part(section, "neuron_runtime_used_bytes")
    keys = {"host": "trn.host_total_memory_usage", "neuron_device": "trn.neuron_device_total_memory_usage"}
    runtime.machine.update(_counts(used, keys))
    breakdown = _part(used, "usage_breakdown")
    runtime.machine.update(_counts(_part(breakdown, "host"), {name: f"trn.host_memory_usage.{name}" for name in HOST_MEMORY}))
    if isinstance(breakdown.get("neuroncore_memory_usage"), dict):
        names = {name: f"neuroncore_memory_usage.{name}" for name in CORE_MEMORY}
        found = _by_core(_part(breakdown, "neuroncore_memory_usage"))
        runtime.cores[MEMORY] = {core: _counts(part, names) for core, part in found}


def _execution(runtime: Runtime, section: Json) -> None:
    for group, names in (("execution_summary", EXECUTIONS), ("error_summary", ERRORS)):
        runtime.machine.update(_counts(_part(section, group), {name: f"trn.{group}.{name}" for name in names}))
    for clock in LATENCIES:
        found = _part(section, "latency_stats", clock)
        runtime.machine.update({f"trn.{clock}.{name}": number(found[name]) for name in PERCENTILES if name in found})


SECTIONS = {COUNTERS: _counters, MEMORY: _memory, EXECUTION: _execution}


def _by_core(found: Json) -> Iterator[tuple[int, Json]]:
    """Parts by core; what is not under a number is none (newer tools put other things beside them)."""
    for core, part in found.items():
        if core.isascii() and core.isdecimal() and len(core) < 6 and int(core) < MANY and isinstance(part, dict):
            yield int(core), part


def _counts(found: Json, names: Mapping[str, str]) -> dict[str, Value]:
    """Counts under our names for them."""
    return {ours: number(found[theirs], whole=True) for theirs, ours in names.items() if theirs in found}


def _ecc(section: Json) -> dict[int, dict[str, Value]]:
    listed = section.get("neuron_devices")
    if not isinstance(listed, list) or _error(section) is not None:
        return {}
    indexed = ((chip.get("neuron_device_index"), chip) for chip in listed if isinstance(chip, dict))
    return {index: _counts(chip, {name: name for name in ECC}) for index, chip in indexed if type(index) is int and 0 <= index < MANY}


# Numbers as the tool and the driver write them


def number(raw: object, whole: bool = False) -> Value:
    """A number that may be one.

    Args:
        raw: What stands in the report.
        whole: Whether it counts something.
    """
    # Compared, never converted: an int of the report may be too large for a float. Neither infinity nor NaN is in the range.
    if isinstance(raw, bool) or not isinstance(raw, (int, float)) or not 0 <= raw < LARGEST:
        return Unavailable(Reason.INVALID_VALUE, f"the source answered {raw!r}"[:200])
    if whole and raw != int(raw):
        return Unavailable(Reason.INVALID_VALUE, f"the source answered {raw!r}, which is no count")
    return int(raw) if whole else raw


def total(values: Iterable[Value]) -> Value:
    """A sum, which is missing if one of its parts is."""
    added: Number = 0
    for value in values:
        if isinstance(value, Unavailable):
            return value
        added += value
    return added


def percent(value: Value) -> Value:
    """A share of time."""
    if isinstance(value, Unavailable) or value <= 100.0:
        return value
    return 100.0 if value <= 100.0 + JITTER else Unavailable(Reason.INVALID_VALUE, f"the source answered {value:g} %")
