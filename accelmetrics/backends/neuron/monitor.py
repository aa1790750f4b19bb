"""The source ``neuron-monitor``: one child that prints a report per period, shared by all consumers.

::

    {"neuron_runtime_data": [{"pid": …, "error": "", "report": {
         "neuroncore_counters": {"neuroncores_in_use": {"0": {"neuroncore_utilization": %, "flops": …}}, "error": ""},
         "memory_used": {"neuron_runtime_used_bytes": {"host": By, "neuron_device": By, "usage_breakdown": {
             "host": {…: By}, "neuroncore_memory_usage": {"0": {…: By}}}}, "error": ""},
         "execution_stats": {"execution_summary": {…}, "error_summary": {…}, "latency_stats": {…: {"p50": s}}, "error": ""}}}],
     "system_data": {"neuron_hw_counters": {"neuron_devices": [{"neuron_device_index": 0, …}], "error": ""}},
     "neuron_hardware_info": {"neuron_device_count": …, "neuroncore_per_device_count": …, "error": ""}}

Every part may be missing or ``null`` (older tools, sections that failed). A section with an error has no values, even if it contains
some.

Values are sums over the programs of a report. A core that no program uses is ``not_in_use`` rather than idle at 0 %. A sum with a
missing part is missing. A section with an error gives the words of the error. A latency is that of the slowest program, since
percentiles cannot be added.

W&B reads only the first program of the list; with ``LOCAL_RANK`` it reads the core with this number, and reports 0 if there is none. Here
a watched process (``pid=…``, with ``children=True`` its descendants too) selects programs. ``LOCAL_RANK`` selects the core with this
number, if there is one, and the programs on it.

The tool's configuration is a file in its working directory. No other user may enter this directory, and it is removed with the tool.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from accelmetrics.backends import neuron
from accelmetrics.backends.contract import MOST_DEVICES, SYSTEM_CLOCK, Clock, ReadOptions, Value
from accelmetrics.backends.kit import Command, DeviceRecord, DeviceSample, Field, PolledBackend, Source, quoted, stream, text
from accelmetrics.backends.kit.commands import LinePoll
from accelmetrics.backends.neuron import PERIOD, TOOL
from accelmetrics.schemas.catalogue.neuron import CORE_MEMORY, ECC, ERRORS, EXECUTIONS, HOST_MEMORY, LATENCIES, PERCENTILES
from accelmetrics.schemas.errors import Reason, SourceError, Unavailable
from accelmetrics.schemas.identity import DeviceProcess

CONFIGURATION = "neuron-monitor.json"
FIRST_REPORT = 8.0
"""Seconds to wait for the first report. The tool asks the instance's metadata service before it prints anything."""
ADVICE = "run neuron-monitor and neuron-ls by hand to see their errors"
LARGEST = 2**63
"""Numbers from here on were negative, or "none", before the tool printed them as unsigned."""
MANY = MOST_DEVICES
"""Most cores, chips or programs of one machine. A higher number is not believed."""
HIGHEST_PID = 2**31

COUNTERS, MEMORY, EXECUTION, HARDWARE = "neuroncore_counters", "memory_used", "execution_stats", "neuron_hardware_info"
BY_CORE = {
    COUNTERS: ("neuroncores_in_use",),
    MEMORY: ("neuron_runtime_used_bytes", "usage_breakdown", "neuroncore_memory_usage"),
}
"""Path to the values by core, for each section."""
PROGRAMS, CHIPS, LATENCY = "neuron_runtime_data", "neuron_devices", "latency_stats"
IDLE = Unavailable(Reason.NOT_IN_USE, "nothing was executed in the tool's last period")
NOT_PRINTED = Unavailable(Reason.NOT_SUPPORTED, "neuron-monitor does not print it")
NOT_BY_CORE = Unavailable(Reason.NOT_SUPPORTED, "neuron-monitor does not report the cores of every program")

Json = Mapping[str, Any]


def percent(share: object) -> object:
    """Return a percentage of time, at most 100."""
    # Slightly more than 100 is normal, since the tool's period and its clock differ a little. Far more is an error,
    # which the bounds of the metric catch.
    return 100.0 if isinstance(share, float) and 100 < share <= 105 else share


def _of_core(metric: str, section: str, *names: str) -> Field:
    place = ".".join((section, *BY_CORE[section], "{core}", names[0]))
    places = tuple(f"{section}.{name}" for name in names)
    return Field(metric, places, convert=percent if metric == "neuroncore_utilization" else None, words=f"{TOOL}, summed: {place}")


def _of_all(key: str, place: str) -> Field:
    return Field(f"trn.{key}", place, words=f"{TOOL}, {'largest' if LATENCY in place else 'summed'} over programs: {place}")


_USED = f"{MEMORY}.neuron_runtime_used_bytes"
FIELDS = (
    _of_core("neuroncore_utilization", COUNTERS, "neuroncore_utilization"),
    _of_core("flops", COUNTERS, "flops", "effective_flops"),
    *(_of_core(f"neuroncore_memory_usage.{category}", MEMORY, category) for category in CORE_MEMORY),
)
MACHINE = (
    _of_all("host_total_memory_usage", f"{_USED}.host"),
    _of_all("neuron_device_total_memory_usage", f"{_USED}.neuron_device"),
    *(_of_all(f"host_memory_usage.{category}", f"{_USED}.usage_breakdown.host.{category}") for category in HOST_MEMORY),
    *(_of_all(f"execution_summary.{name}", f"{EXECUTION}.execution_summary.{name}") for name in EXECUTIONS),
    *(_of_all(f"error_summary.{kind}", f"{EXECUTION}.error_summary.{kind}") for kind in ERRORS),
    *(_of_all(f"{clock}.{part}", f"{EXECUTION}.{LATENCY}.{clock}.{part}") for clock in LATENCIES for part in PERCENTILES),
    *(
        Field(f"trn.{name}", f"{HARDWARE}.{name}", words=f"{TOOL} {HARDWARE}.{name}")
        for name in ("neuron_device_count", "neuroncore_per_device_count", "neuron_device_memory_size")
    ),
    Field("trn.neuron_runtime_count", PROGRAMS, words=f"{TOOL} entries of {PROGRAMS}"),
    *(Field(f"trn.device.{{i}}.{name}", f"{CHIPS}.{{}}.{name}", words=f"{TOOL} neuron_hw_counters.{CHIPS}[].{name}") for name in ECC),
)
IDENTITY = {"vendor_index": "core", "name": "chip", "architecture": "version"}


class Program:
    """A program that uses NeuronCores.

    Args:
        entry: Its entry in the report.

    Attributes:
        pid: Its process id; -1 if the tool does not report it.
        sections: Its sections without an error.
        errors: For each other section, why it has no values.
        cores: Values by section and core. A section that does not separate cores has no entry.
    """

    def __init__(self, entry: Json) -> None:
        pid = entry.get("pid")
        self.pid = pid if type(pid) is int and pid < HIGHEST_PID else -1
        self.sections: dict[str, Json] = {}
        self.errors: dict[str, Unavailable] = {}
        self.cores: dict[str, dict[int, Json]] = {}
        for name in (COUNTERS, MEMORY, EXECUTION):
            section = _part(entry, "report", name)
            error = _error(entry) or _error(section)
            if error is not None:
                self.errors[name] = error
                continue
            self.sections[name] = section
            *path, last = BY_CORE.get(name, ("",))
            cores = _part(section, *path).get(last)
            if isinstance(cores, dict):
                # Cores have numbers as keys. Newer tools have other keys next to them.
                numbers = {core: part for core, part in cores.items() if core.isascii() and core.isdecimal() and isinstance(part, dict)}
                self.cores[name] = {int(core): part for core, part in numbers.items() if len(core) < 6 and int(core) < MANY}


class Report:
    """A line of the tool.

    Attributes:
        programs: Programs that use NeuronCores; empty on an idle machine.
        hardware: Fixed properties of the machine.
        ecc: Error counters of each chip.
        ecc_error: Why there are no error counters.

    Raises:
        SourceError: The line is no report (``parse_error``).
    """

    def __init__(self, line: str) -> None:
        try:
            whole = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise _unreadable(line, str(error)) from error
        if not isinstance(whole, dict) or not isinstance(whole.get(PROGRAMS, ""), (list, type(None))):
            raise _unreadable(line, f"it has no list {PROGRAMS}")
        # The tool is written in Go, which prints a list that was never created as null.
        listed = whole.get(PROGRAMS) or ()
        if len(listed) > MANY:
            raise SourceError(Reason.INVALID_VALUE, f"{TOOL} reports {len(listed)} programs: more than {MANY} are implausible")
        self.programs = [Program(entry) for entry in listed if isinstance(entry, dict)]
        self.hardware = _part(whole, HARDWARE)
        counters = _part(whole, "system_data", "neuron_hw_counters")
        self.ecc_error = _error(counters)
        counted = counters.get(CHIPS) if self.ecc_error is None else None
        chips = [chip for chip in counted if isinstance(chip, dict)] if isinstance(counted, list) else []
        numbers = [index if type(index := chip.get("neuron_device_index")) is int and 0 <= index < MANY else -1 for chip in chips]
        # If a number repeats, it is unknown which chip it means.
        self.ecc = {index: chip for index, chip in zip(numbers, chips, strict=True) if index >= 0 and numbers.count(index) == 1}

    @property
    def cores(self) -> set[int]:
        """All cores that the report mentions or counts."""
        used = {core for program in self.programs for cores in program.cores.values() for core in cores}
        chips, each = (self.fixed(name) or 0 for name in ("neuron_device_count", "neuroncore_per_device_count"))
        return used | set(range(min(chips * each, MANY)))

    def fixed(self, name: str) -> int | None:
        """Return a fixed property of the machine if it is a positive number, else None."""
        raw, bound = self.hardware.get(name), MANY if name.endswith("_count") else LARGEST
        return raw if type(raw) is int and 0 < raw < bound else None

    def users(self, core: int) -> tuple[DeviceProcess, ...] | Unavailable:
        """Return the processes on a core, each with its memory there and its share of the core's time.

        Returns:
            The processes, or a reason if the report does not show for every program whether it is on the core: a program on the core has no
            process id, or a program has no section by core.
        """
        found = []
        for program in self.programs:
            if not program.cores:
                return NOT_BY_CORE
            counters, memory = (program.cores.get(section, {}).get(core) for section in (COUNTERS, MEMORY))
            if counters is None and not any((memory or {}).get(category) for category in CORE_MEMORY):  # all zeros: not on this core
                continue
            if program.pid < 1:
                return NOT_BY_CORE
            held = total([checked_number(memory[category]) for category in CORE_MEMORY if category in memory]) if memory else NOT_PRINTED
            share = checked_number(percent((counters or {}).get("neuroncore_utilization")))
            busy = None if isinstance(share, Unavailable) or share > 100 else float(share)
            found.append(DeviceProcess(program.pid, "compute", None if isinstance(held, Unavailable) else int(held), busy))
        return tuple(found)


def _unreadable(line: str, why: str) -> SourceError:
    return SourceError(Reason.PARSE_ERROR, f"{TOOL} printed an invalid report: {why}: {line[:80]}")


def _part(whole: Any, *names: str) -> Json:
    """Return the object at a path of keys; empty if a part of the path is missing."""
    for name in names:
        whole = whole.get(name) if isinstance(whole, dict) else None
    return whole if isinstance(whole, dict) else {}


def _error(section: Json) -> Unavailable | None:
    words = section.get("error")
    if not isinstance(words, str) or not words:
        return None
    return Unavailable(Reason.NO_PERMISSION if "permission denied" in words.lower() else Reason.DRIVER_ERROR, quoted(words))


def checked_number(raw: object) -> Value:
    """Return a number of the report if it is finite, not negative and below 2**63, else a reason."""
    # No conversion to float: an int of the report may be too large for one. The range excludes infinity and NaN.
    if isinstance(raw, bool) or not isinstance(raw, (int, float)):
        return Unavailable(Reason.INVALID_VALUE, f"the source reported {raw!r}"[:200])
    return raw if 0 <= raw < LARGEST else Unavailable(Reason.INVALID_VALUE, "the source reported an impossible number")


def total(parts: Iterable[Value]) -> Value:
    """Return the sum of the parts, or the reason of the first missing part."""
    added: int | float = 0
    for part in parts:
        if isinstance(part, Unavailable):
            return part
        added += part
    return added


Chosen = tuple[Sequence[Program], Unavailable, str]
"""Programs that a consumer selects, the reason to give if there are none, and the name of the watched process; empty if all programs are
selected.
"""


def choose(programs: Sequence[Program], options: ReadOptions, watches: Callable[[int], bool], core: int | None) -> Chosen:
    """Return the programs that a consumer selects.

    Args:
        programs: All programs.
        options: The consumer's options.
        watches: Returns whether the consumer watches the process with an id.
        core: The core picked by ``LOCAL_RANK``, if any.
    """
    chosen, none, owner = programs, "no program uses the Neuron devices", ""
    if options.watched:
        chosen = [program for program in chosen if watches(program.pid)]
        owner = f"process {options.pid}"
        none = f"{owner} uses no NeuronCore"
    if core is not None:
        # A program with an error may be the one on the core. Its error explains more than an empty result.
        on_core = [program for program in chosen if any(core in cores for cores in program.cores.values())]
        chosen = on_core or [program for program in chosen if program.errors]
        none = f"{owner} does not use core {core}" if owner else f"no program uses core {core}"
        none += ", which LOCAL_RANK selects"
    return chosen, Unavailable(Reason.NOT_IN_USE, none), owner


class CoreTotals(DeviceRecord):
    """Sums of a consumer's programs on one core."""

    def __init__(self, chosen: Chosen, core: int) -> None:
        self._chosen = chosen
        self._core = core

    def get(self, place: str) -> object:
        """Return the sum of ``section.name`` over the programs on the core; None if no program has the value."""
        section, name = place.split(".")
        programs, none, owner = self._chosen
        users = [program.cores[section][self._core] for program in programs if self._core in program.cores.get(section, ())]
        if users:
            parts = [checked_number(user[name]) for user in users if user.get(name) is not None]
            return total(parts) if parts else None
        error = next((program.errors[section] for program in programs if section in program.errors), None)
        if error is not None or not programs:
            return error or none
        if not any(section in program.cores for program in programs):
            return Unavailable(Reason.NOT_SUPPORTED, f"{TOOL} does not print {section} by core")
        return Unavailable(Reason.NOT_IN_USE, f"{owner} does not use core {self._core}" if owner else f"no program uses core {self._core}")


class MachineTotals(DeviceRecord):
    """Sums of a consumer's programs over all cores, and fixed properties of the machine."""

    def __init__(self, report: Report, chosen: Chosen) -> None:
        self._report = report
        self._chosen = chosen

    def instances(self, place: str) -> Iterable[str]:
        """Return the numbers of the chips."""
        return map(str, sorted(self._report.ecc) or range(self._report.fixed("neuron_device_count") or 0))

    def get(self, place: str) -> object:
        """Return the sum over the programs; the largest value for a latency."""
        section, *path = place.split(".")
        programs, none, _ = self._chosen
        if section == PROGRAMS:
            return len(programs)
        if section == HARDWARE:
            return self._report.fixed(path[0]) or _error(self._report.hardware) or NOT_PRINTED
        if section == CHIPS:
            counted = self._report.ecc.get(int(path[0]), {}).get(path[1])
            return checked_number(counted) if counted is not None else self._report.ecc_error or NOT_PRINTED
        if not programs:
            return none
        parts: list[Value] = []
        for program in programs:
            raw = _part(program.sections.get(section), *path[:-1]).get(path[-1])
            if section in program.errors:
                parts.append(program.errors[section])
            elif raw is not None:
                parts.append(checked_number(raw))
            # Every program has these values; a missing one would make the sum too small. A latency is missing if a
            # program executed nothing.
            elif path[0] != LATENCY:
                return Unavailable(Reason.NOT_SUPPORTED, f"{TOOL} does not report it for process {program.pid}")
        added = total(parts)
        if path[0] != LATENCY or isinstance(added, Unavailable):
            return added
        return max((part for part in parts if not isinstance(part, Unavailable)), default=IDLE)


def parse(known: set[int], line: str) -> list[DeviceSample]:
    """Parse the cores and the machine of a report.

    Args:
        known: Cores seen in earlier reports. New cores are added to it.
        line: The report.

    Raises:
        SourceError: The line is no report, or there are no cores.
    """
    report = Report(line)
    known |= report.cores
    if not known:
        # Every part of a report may be missing. Then the driver's tree has the cores.
        known |= {core for cores in neuron.chips().values() for core in cores}
    if not known:
        raise SourceError(Reason.DRIVER_UNAVAILABLE, text(report.hardware.get("error")) or f"{TOOL} reports no Neuron device")
    picked = neuron.picked_core(known)

    def scoped(core: int | None, options: ReadOptions, watches: Callable[[int], bool]) -> DeviceRecord:
        chosen = choose(report.programs, options, watches, picked)
        return MachineTotals(report, chosen) if core is None else CoreTotals(chosen, core)

    identity = {"chip": report.hardware.get("neuron_device_type"), "version": report.hardware.get("neuroncore_version")}
    cores = [
        DeviceSample(identity | {"core": core}, report.users(core), scoped=partial(scoped, core))
        for core in (sorted(known) if picked is None else [picked])
    ]
    return [*cores, DeviceSample({}, machine=True, scoped=partial(scoped, None))]


def polled(clock: Clock = SYSTEM_CLOCK, period: float = PERIOD, also: Sequence[Source] = ()) -> PolledBackend:
    """Return the backend of the tool.

    Args:
        clock: Clock for ages.
        period: Seconds between two reports.
        also: Sources of metrics that the tool does not print.
    """
    metrics = [{"type": section} for section in (COUNTERS, MEMORY, EXECUTION)]
    configuration = {
        "period": f"{period:g}s",  # a duration in Go's notation
        "neuron_runtimes": [{"tag_filter": ".*", "metrics": metrics}],
        "system_metrics": [{"type": "neuron_hw_counters"}],
    }
    files = {CONFIGURATION: json.dumps(configuration)}
    command = Command(TOOL, ("-c", CONFIGURATION), directories=neuron.DIRECTORIES, install=neuron.INSTALL_TOOL)

    def connect() -> LinePoll:
        return stream(command, partial(parse, set()), interval=period, files=files, first=FIRST_REPORT)()

    return PolledBackend(
        "neuron",
        kind="trn",
        vendor="aws",
        source=TOOL,
        connect=connect,
        fields=FIELDS,
        machine=MACHINE,
        identity=IDENTITY,
        interval=period,
        also=also,
        advice=ADVICE,
        clock=clock,
    )
