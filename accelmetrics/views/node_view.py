"""The view of one node at one moment: devices, processes, host, sources, findings, and a summary.

The terminal, the page and the fleet list draw only this. It is computed from a reading; no device is read here.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from functools import cache
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from accelmetrics._version import __version__
from accelmetrics.schemas.errors import ADVICE, DocumentError, Reason, Unavailable
from accelmetrics.schemas.identity import DeviceProcess
from accelmetrics.schemas.record import NOT_LOGGED, CannotTell, Finding, Findings, Holders, Record
from accelmetrics.schemas.snapshot import Snapshot, own_processes
from accelmetrics.schemas.text import STATE_MARKS, counted, duration, in_words, printable
from accelmetrics.schemas.vitals import processors, silent_sources, vitals
from accelmetrics.views.device_view import (
    STATES,
    USUAL_LEVELS,
    DeviceView,
    State,
    WarningLevels,
    device_view,
    holder_words,
    links_up,
)
from accelmetrics.visibility.processes import NOT_REPORTED, ProcessInfo, ProcessListing

if TYPE_CHECKING:
    from pydantic import ConfigDict, TypeAdapter

AGED = 2.0
"""Age in intervals from which a value counts as old."""
SHORTEST = 1.0
"""Shortest interval for that, in seconds. With a shorter one, a source that updates more slowly would always look old."""
SHORT_ID = 12
"""Digits of a container id, as in the output of the container runtimes' tools."""
ASK_DOCTOR = "run accelmetrics doctor: it reports what was found and what to do"
HOST_VALUES: Mapping[str, str] = {
    "memory_percent": "memory_percent",
    "memory_used_bytes": "memory.usedBytes",
    "memory_total_bytes": "memory.totalBytes",
    "swap_percent": "swap.used_percent",
    "load_1m": "load.1m",
    "cpu_temperature_celsius": "cpu.avg_temp",
    "cpu_power_watts": "cpu.powerWatts",
    "system_power_watts": "system.powerWatts",
    "network_sent_bytes_per_second": "network.sentBps",
    "network_received_bytes_per_second": "network.recvBps",
    "process_cpu_percent": "cpu",
    "process_memory_bytes": "proc.memory.rssBytes",
}
"""Host values of views, by name, and the metric of each."""
DISK_VALUES: Mapping[str, str] = {"disk_read_bytes_per_second": ".readBps", "disk_written_bytes_per_second": ".writeBps"}
"""Host values that are summed over disks, by name, and the suffix of each disk's metric."""
NOT_MEASURED: Mapping[int, int] = {}
LONGEST = 1000
"""Largest number of characters accepted in a text of another node."""
MOST_DEVICES = 4096
"""Largest number of devices accepted in the summary of another node."""


@dataclass(frozen=True)
class ProcessRow:
    """A process on devices. Texts are printable.

    Attributes:
        pid: Process id.
        devices: Keys of the devices that it uses.
        user: User name; empty if unknown.
        program: Program name; empty if unknown.
        command: Command line, which may contain secrets; empty if unknown.
        memory_bytes: Device memory on all its devices together; None if the driver does not report it.
        utilization: Share of compute time in percent, on the device that it uses most; None if the driver does not report it.
        cpu_percent: CPU time in percent of one CPU; None if not measured.
        seconds: Time since its start; None if unknown.
        holder: Job, pod or container that it belongs to; empty for none.
        type: ``compute``, ``graphics`` or ``compute+graphics``; empty if the driver does not report it.
        uses: By device key, the driver's entry for the process.
        why: Why user and command are unknown; empty if they are known.
        aged: Whether the values of its devices are older than two intervals.
        host_memory_bytes: Host memory in use; None if not measured.
        last_seen: For each lost device that it was on: when the device last listed it, in nanoseconds since 1970. It may have ended since.
    """

    pid: int
    devices: tuple[str, ...]
    user: str
    program: str
    command: str
    memory_bytes: int | None
    utilization: float | None
    cpu_percent: float | None
    seconds: float | None
    holder: str
    type: str
    uses: Mapping[str, DeviceProcess]
    why: str = ""
    aged: bool = False
    host_memory_bytes: int | None = None
    last_seen: Mapping[str, int] = field(default_factory=dict)

    @property
    def seen_ns(self) -> int | None:
        """When a device last listed the process, in nanoseconds since 1970; None while a device lists it."""
        return max(self.last_seen.values()) if len(self.last_seen) == len(self.uses) else None


@dataclass(frozen=True)
class SourceRow:
    """The status of one backend.

    Attributes:
        name: Name of the backend.
        status: Result of the reading, as in ``snapshot.backends``.
        source: The open source, for example ``nvml``; empty while none is open.
        detail: What it found, or the error, in words.
        age_seconds: Age of its last reading; None if there was none.
        state: State for display.
        advice: How to fix it; empty if nothing is wrong.
        silent: Whether it does not answer and has no device in the list. It then gets a row among the devices.
    """

    name: str
    status: str
    source: str
    detail: str
    age_seconds: float | None
    state: State
    advice: str
    silent: bool

    @property
    def mark(self) -> str:
        """The one-character mark of the state."""
        return STATE_MARKS[self.state]


@dataclass(frozen=True)
class DeviceSummary:
    """A device in the summary of a node.

    Attributes:
        key: Device key: ``gpu.0``.
        state: State of the device.
        utilization: Utilisation in percent; None if missing.
        note: Its most severe note; empty for none.
        since_ns: Start of its silence, in nanoseconds since 1970; None if unknown or not silent.
    """

    __pydantic_config__: ClassVar[ConfigDict] = {"str_max_length": LONGEST, "allow_inf_nan": False}

    key: str
    state: State
    utilization: float | None = None
    note: str = ""
    since_ns: int | None = None


@dataclass(frozen=True)
class NodeSummary:
    """The summary of a node. A node of a fleet sends it as JSON.

    Attributes:
        hostname: Name of the machine.
        time_ns: Time of the reading, in nanoseconds since 1970.
        interval: Seconds between two readings.
        version: Version of accelmetrics on the node.
        devices: Whole devices, without partitions.
        kinds: Number of devices of each kind.
        power_watts: Total power; None if no device reports it.
        power_limit_watts: Sum of the power limits; None unless every device that reports its power has one.
        utilization: Mean utilisation in percent, of the devices that report it; None if none does.
        lost: Number of lost devices.
        unanswered: Number of devices that are silent for another reason but should report.
        hot: Number of devices above their temperature level.
        failed: Number of sources that do not answer.
        findings: Number of active findings, by severity.
        silent: Name, status and message of each source that does not answer and has no device in the list.
    """

    __pydantic_config__: ClassVar[ConfigDict] = {"str_max_length": LONGEST, "allow_inf_nan": False}

    hostname: str
    time_ns: int
    interval: float = 1.0
    version: str = __version__
    devices: tuple[DeviceSummary, ...] = ()
    kinds: dict[str, int] = field(default_factory=dict)
    power_watts: float | None = None
    power_limit_watts: float | None = None
    utilization: float | None = None
    lost: int = 0
    unanswered: int = 0
    hot: int = 0
    failed: int = 0
    findings: dict[str, int] = field(default_factory=dict)
    silent: tuple[str, ...] = ()

    @property
    def worst(self) -> DeviceSummary | None:
        """The device in the worst state; None if all are ``ok``."""
        found = min(self.devices, key=lambda one: STATES.index(one.state), default=None)
        return None if found is None or found.state == "ok" else found

    @property
    def state(self) -> State:
        """The state of the worst device, or ``bad`` if a source does not answer."""
        if self.failed:
            return "bad"
        return "ok" if self.worst is None else self.worst.state

    @property
    def troubles(self) -> list[str]:
        """Problems in printable words: silent sources, the worst device, the number of findings."""
        troubles, worst = [printable(words) for words in self.silent], self.worst
        if worst is not None:
            words = f"{printable(worst.key)} {printable(worst.note)}".rstrip()
            if worst.since_ns is not None and " for " not in words:
                words += f" for {duration(max(0.0, (self.time_ns - worst.since_ns) / 1e9))}"
            troubles.append(words)
        number = sum(self.findings.values())
        return [*troubles, counted(number, "finding")] if number else troubles

    def to_dict(self) -> dict[str, Any]:
        """Return the summary as a new dict, ready for ``json``."""
        return {**asdict(self), "devices": [asdict(one) for one in self.devices], "silent": list(self.silent)}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> NodeSummary:
        """Read the result of :meth:`to_dict`, possibly of another release. Unknown fields are ignored.

        Raises:
            DocumentError: The document is no valid summary. The message says where it deviates.
        """
        from pydantic import ValidationError

        from accelmetrics.schemas.document import describe

        try:
            summary = _reader().validate_python(document)
        except ValidationError as error:
            raise DocumentError(f"this is not a summary of a node: {describe(error)}") from error
        if len(summary.devices) > MOST_DEVICES:
            raise DocumentError(f"this is not a summary of a node: it has {len(summary.devices)} devices, more than {MOST_DEVICES}")
        return summary

    @classmethod
    def from_json(cls, text: str) -> NodeSummary:
        """Read a summary from JSON, as a node sends it.

        Raises:
            DocumentError: The text is no valid summary.
        """
        try:
            document = json.loads(text)
        except (ValueError, RecursionError) as error:  # RecursionError: very deeply nested brackets
            raise DocumentError("this is not a summary of a node: it is not JSON") from error
        return cls.from_dict(document)


class NodeAnswer(NamedTuple):
    """The latest answer of one node of a fleet.

    Attributes:
        name: Name of the node.
        summary: Its summary; None if there is none.
        failure: Why there is no summary, in words; empty if there is one, or before the first answer.
        age_seconds: Age of the answer; None if there is none.
    """

    name: str
    summary: NodeSummary | None = None
    failure: str = ""
    age_seconds: float | None = None

    @property
    def state(self) -> State:
        """The state of the node: ``bad`` if it does not answer."""
        return "bad" if self.summary is None else self.summary.state


@cache
def _reader() -> TypeAdapter[NodeSummary]:
    from pydantic import TypeAdapter

    return TypeAdapter(NodeSummary)


WHOLE = frozenset({Reason.DEVICE_LOST, Reason.DRIVER_UNAVAILABLE, Reason.RESET_REQUIRED, Reason.NOT_IN_USE, Reason.SUSPENDED})
"""Reasons that apply to all metrics of a device at once."""


@dataclass(frozen=True)
class NodeView:
    """A node at one moment.

    Attributes:
        hostname: Name of the machine.
        time_ns: Time of the reading, in nanoseconds since 1970.
        interval: Seconds between two readings.
        age_seconds: Age of the reading.
        aged: Whether the reading is older than two intervals.
        summary: The summary. Partitions belong to their device and are not counted.
        devices: Devices, in the order of their keys.
        processes: Processes on the devices, by device and memory.
        unlisted: By device key, why its processes are unknown.
        host: Values of the host, by name. A missing value is absent.
        sources: Status of each backend that is not absent.
        findings: Findings of rules.
        absent: By backend, why it has no device here, as in ``accelmetrics doctor``.
    """

    hostname: str
    time_ns: int
    interval: float
    age_seconds: float
    aged: bool
    summary: NodeSummary
    devices: tuple[DeviceView, ...]
    processes: tuple[ProcessRow, ...]
    unlisted: Mapping[str, str]
    host: Mapping[str, float]
    sources: tuple[SourceRow, ...]
    findings: Findings
    absent: Mapping[str, str] = field(default_factory=dict)

    def device(self, key: str) -> DeviceView | None:
        """Return the device with this key; None if there is none."""
        return next((one for one in self.devices if one.key == key), None)

    @property
    def not_judged(self) -> tuple[tuple[tuple[str, ...], str], ...]:
        """Rules that cannot judge devices, in groups with the same devices and reason.

        Each group has the names of its rules, and a text with the missing metrics, the devices and the reason.
        """
        groups: dict[tuple[tuple[str, ...], str], list[CannotTell]] = {}
        for one in self.findings.cannot_tell:
            if one.reason != NOT_LOGGED:
                groups.setdefault((one.keys, one.reason), []).append(one)
        return tuple((tuple(one.rule for one in group), _why_not_judged(group)) for group in groups.values())

    @property
    def not_logged(self) -> str:
        """Why rules about training runs cannot judge, in a sentence; empty if all can."""
        details = dict.fromkeys(one.detail.rpartition(": ")[2] for one in self.findings.cannot_tell if one.reason == NOT_LOGGED)
        return f"rules about a training run: {printable(', '.join(details))}" if details else ""

    @property
    def silent(self) -> tuple[SourceRow, ...]:
        """Sources that do not answer and have no device in the list."""
        return tuple(source for source in self.sources if source.silent)


def _why_not_judged(group: Sequence[CannotTell]) -> str:
    """Return metrics, devices and reason of rules that cannot judge, in words. Metrics are omitted if all are missing."""
    first = group[0]
    metrics = "" if first.reason in WHOLE else ", ".join(dict.fromkeys(one.metric for one in group if one.metric))
    about = " of ".join(filter(None, (metrics, ", ".join(first.keys))))
    details = {in_words(one.detail) for one in group}
    detail = details.pop() if len(details) == 1 else ""
    why = str(first.reason).replace("_", " ") if not detail or detail.isupper() else detail  # an error code explains less than the reason
    return printable(f"{about}: {why}" if about else why)


def node_view(
    record: Record,
    *,
    processes: ProcessListing | None = None,
    cpu: Mapping[int, float] = NOT_MEASURED,
    memory: Mapping[int, int] = NOT_MEASURED,
    interval: float = 1.0,
    now_ns: int | None = None,
    levels: WarningLevels = USUAL_LEVELS,
    before: NodeView | None = None,
) -> NodeView:
    """Return the view of a node.

    Args:
        record: The reading, with findings and allocations.
        processes: Users, commands and start times of the processes on the devices. Without it, processes have only their numbers.
        cpu: By process id, CPU time in percent of one CPU.
        memory: By process id, host memory in bytes.
        interval: Seconds between two readings.
        now_ns: Time of the view, in nanoseconds since 1970; by default the time of the reading.
        levels: Warning levels.
        before: The previous view. It provides the last values of devices that are silent now, and the start of their silence.
    """
    snapshot, findings = record.snapshot, record.findings
    now_ns = snapshot.time_ns if now_ns is None else now_ns
    age = max(0.0, (now_ns - snapshot.time_ns) / 1e9)
    oldest = AGED * max(interval, SHORTEST)
    ages = {status.name: None if status.age_seconds is None else age + status.age_seconds for status in snapshot.backends}
    known = {} if before is None else {one.key: (before.time_ns, one) for one in before.devices}
    slots = snapshot.identities
    # NVLinks are compared within a product, because products have different numbers of them.
    most: dict[str, int] = {}
    for slot in slots:
        most[slot.identity.name] = max(most.get(slot.identity.name, 0), links_up(snapshot.values_of(slot.key)))
    devices = []
    for slot, one in zip(slots, vitals(snapshot), strict=True):
        former, read = known.get(slot.key), ages.get(slot.backend)
        # A key may belong to another device now: the last values of a silent device must be its own.
        if former is not None and former[1].identity.anchor != slot.identity.anchor:
            former = None
        aged = slot.backend in ages and (age if read is None else read) > oldest
        devices.append(device_view(record, slot, one, levels, former, now_ns, (read, aged), most[slot.identity.name]))
    listed = own_processes(snapshot)
    about: dict[int, ProcessInfo] = {}
    for info in () if processes is None else processes.processes:
        if info.pid not in about or info.user is None:  # a process unknown on one device wins: the id may name two processes
            about[info.pid] = info
    silent = {status.name for status in silent_sources(snapshot)}
    sources = []
    for status in snapshot.backends:
        if status.status != "absent":
            state: State = "ok" if status.status == "ok" else "warn" if status.status == "degraded" else "bad"
            advice = "" if state == "ok" else ADVICE[Reason.TIMED_OUT] if status.status == "timed_out" else ASK_DOCTOR
            detail, quiet = printable(status.detail), status.name in silent
            sources.append(SourceRow(status.name, status.status, status.source, detail, ages[status.name], state, advice, quiet))
    shown = _processes(listed, about, record.holders, cpu, memory, now_ns, {device.key for device in devices if device.aged})
    # A lost or hung device lists no processes, but the processes may still run.
    if before is not None:
        gone = {
            one.key for one in devices if one.silent is not None and one.state == "bad" and isinstance(listed.get(one.key), Unavailable)
        }
        shown = _with_last_seen(shown, before, gone, cpu, memory)
    return NodeView(
        hostname=printable(snapshot.hostname),
        time_ns=snapshot.time_ns,
        interval=interval,
        age_seconds=age,
        aged=age > oldest,
        summary=_summary(snapshot, interval, devices, findings, [source for source in sources if source.silent], len(silent)),
        devices=tuple(devices),
        processes=shown,
        unlisted={key: printable(why.detail or str(why.reason)) for key, why in listed.items() if isinstance(why, Unavailable)},
        host=host_values(snapshot.metrics),
        sources=tuple(sources),
        findings=findings,
        absent={status.name: printable(status.detail) for status in snapshot.backends if status.status == "absent"},
    )


def equal_findings(findings: Iterable[Finding]) -> list[list[Finding]]:
    """Return findings grouped by severity, rule and message, so that several devices with the same problem are reported once."""
    same: dict[tuple[str, str, str], list[Finding]] = {}
    for finding in findings:
        same.setdefault((finding.severity, finding.rule, finding.message), []).append(finding)
    return list(same.values())


def host_values(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the host values among a reading's metrics, by name. A missing value is absent."""
    busy = processors(metrics)
    found = {} if busy is None else {"cpu_percent": busy}
    found |= {name: metrics[key] for name, key in HOST_VALUES.items() if key in metrics}
    for name, ending in DISK_VALUES.items():
        rates = [value for key, value in metrics.items() if key.startswith("disk.") and key.endswith(ending)]
        if rates:  # a machine without disks has no rate, rather than 0
            found[name] = sum(rates)
    return found


def _summary(
    snapshot: Snapshot, interval: float, devices: Sequence[DeviceView], findings: Findings, silent: Sequence[SourceRow], failed: int
) -> NodeSummary:
    """Return the summary of a node."""
    whole = [one for one in devices if not one.parent]  # partitions whose device is not listed have no parent here and are counted
    powered = [one.values for one in whole if "power_watts" in one.values]
    # Without the limit of every device, a sum of limits would look too low compared with the total power.
    limits = [values["power_limit_watts"] for values in powered if "power_limit_watts" in values]
    busy = [one.values["utilization"] for one in whole if "utilization" in one.values]
    return NodeSummary(
        hostname=printable(snapshot.hostname),
        time_ns=snapshot.time_ns,
        interval=interval,
        devices=tuple(
            DeviceSummary(one.key, one.state, one.values.get("utilization"), "".join(one.notes[:1])[:LONGEST], one.silent_since_ns)
            for one in whole
        ),
        kinds=dict(Counter(one.identity.kind for one in whole)),
        power_watts=sum(values["power_watts"] for values in powered) if powered else None,
        power_limit_watts=sum(limits) if limits and len(limits) == len(powered) else None,
        utilization=sum(busy) / len(busy) if busy else None,
        lost=sum(1 for one in whole if one.silent is not None and one.silent.reason == Reason.DEVICE_LOST),
        unanswered=sum(1 for one in whole if one.silent is not None and one.state == "bad" and one.silent.reason != Reason.DEVICE_LOST),
        hot=sum(1 for one in whole if "temperature_celsius" in one.levels),
        failed=failed,
        findings=dict(Counter(one.severity for one in findings)),
        silent=tuple(printable(f"{source.name} {source.status}: {source.detail}")[:LONGEST] for source in silent),
    )


def _processes(
    listed: Mapping[str, tuple[DeviceProcess, ...] | Unavailable],
    about: Mapping[int, ProcessInfo],
    holders: Holders,
    cpu: Mapping[int, float],
    memory: Mapping[int, int],
    now_ns: int,
    aged: set[str],
) -> tuple[ProcessRow, ...]:
    """Return one row for each process, in the order of devices and then by memory, the largest first."""
    uses: dict[int, dict[str, DeviceProcess]] = {}
    for key, found in listed.items():
        if not isinstance(found, Unavailable):
            for use in sorted(found, key=lambda one: (-(one.memory_bytes or 0), one.pid)):
                uses.setdefault(use.pid, {})[key] = use
    rows = []
    for pid, on in uses.items():
        info = about.get(pid)
        started = "" if info is None else info.started or ""
        since = datetime.fromisoformat(started.replace("Z", "+00:00")).timestamp() if started else None
        held = [use.memory_bytes for use in on.values() if use.memory_bytes is not None]
        busy = [use.utilization for use in on.values() if use.utilization is not None]
        command = printable(info.command or "") if info is not None else ""
        why = "user and command were not looked up"
        if info is not None:
            reasons = (
                printable(info.unavailable[field])
                for field in ("user", "command")
                if info.unavailable.get(field, NOT_REPORTED) != NOT_REPORTED
            )
            why = next(reasons, "")
        # A process without a command line, such as a kernel thread, has its name in brackets as command.
        rows.append(
            ProcessRow(
                pid=pid,
                devices=tuple(on),
                user=printable(info.user or "") if info is not None else "",
                program=command if command.startswith("[") else PurePath(command.partition(" ")[0]).name,
                command=command,
                memory_bytes=sum(held) if held else None,
                utilization=max(busy, default=None),
                cpu_percent=cpu.get(pid),
                seconds=None if since is None else max(0.0, now_ns / 1e9 - since),
                holder=_holder(info, holders, on),
                type=next((use.type for use in on.values() if use.type), ""),
                uses=on,
                why=why,
                aged=not aged.isdisjoint(on),
                host_memory_bytes=memory.get(pid),
            )
        )
    return tuple(rows)


def _with_last_seen(
    rows: Sequence[ProcessRow], before: NodeView, gone: set[str], cpu: Mapping[int, float], memory: Mapping[int, int]
) -> tuple[ProcessRow, ...]:
    """Return the rows, with the processes that were last seen on lost or hung devices added.

    Args:
        rows: Rows of the listed processes.
        before: The previous view.
        gone: Keys of the devices that are lost or hung.
        cpu: By process id, CPU time in percent of one CPU.
        memory: By process id, host memory in bytes.
    """
    found = {row.pid: row for row in rows}
    for former in before.processes:
        lost = {key: use for key, use in former.uses.items() if key in gone}
        if not lost:
            continue
        seen = {key: former.last_seen.get(key, before.time_ns) for key in lost}
        # CPU time and host memory come from the system, so they are current if the process still runs.
        row = found.get(former.pid)
        if row is None:
            row = replace(former, devices=tuple(lost), uses=lost, aged=True, seconds=None, last_seen=seen)
            row = replace(row, cpu_percent=cpu.get(former.pid), host_memory_bytes=memory.get(former.pid))
        else:
            row = replace(row, devices=(*row.devices, *lost), uses={**row.uses, **lost}, last_seen=seen)
        found[former.pid] = row
    return tuple(found.values())


def _holder(info: ProcessInfo | None, holders: Holders, devices: Mapping[str, DeviceProcess]) -> str:
    """Return the name of the job, pod or container that a process belongs to; empty for none.

    An allocation of its device provides the name, because it also knows the user of a job and the namespace of a pod.
    """
    held = [one for one in holders.found if one.device in devices]
    if info is not None and info.slurm_job:
        named = (holder_words(one) for one in held if one.kind == "job" and one.labels.get("job_id") == info.slurm_job)
        return next(named, printable(f"job {info.slurm_job}"))
    # A device may be shared by several pods: only with a single one it is certain which pod the process belongs to.
    if info is not None and info.pod:
        pods = dict.fromkeys(holder_words(one) for one in held if one.kind == "pod")
        return next(iter(pods)) if len(pods) == 1 else printable(f"pod {info.pod}")
    if info is not None and info.container:
        return printable(f"{info.runtime or 'container'} {info.container[:SHORT_ID]}")
    return ""
