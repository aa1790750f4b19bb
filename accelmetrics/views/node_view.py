"""What a person is shown of one node at one moment: devices, processes, the host, sources, findings, and the node in a few numbers.

The terminal, the page and the fleet's line draw this and nothing else. It is made of a reading, and reads nothing itself.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from functools import cache
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from accelmetrics._version import __version__
from accelmetrics.schemas.errors import ADVICE, DocumentError, Reason, Unavailable
from accelmetrics.schemas.identity import DeviceProcess
from accelmetrics.schemas.record import NOT_LOGGED, CannotTell, Findings, Holders, Record
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
from accelmetrics.visibility.processes import NOT_SAID, ProcessInfo, ProcessListing

if TYPE_CHECKING:
    from pydantic import ConfigDict, TypeAdapter

AGED = 2.0
"""Intervals after which a value is old."""
SHORTEST = 1.0
"""Seconds that an interval counts at least: a source has a pace of its own."""
SHORT_ID = 12
"""Digits of a container's id, as the runtimes' own tools show them."""
ASK_DOCTOR = "accelmetrics doctor says what was found and what to do"
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
"""What is shown of the host, and the metrics that it is."""
DISK_VALUES: Mapping[str, str] = {"disk_read_bytes_per_second": ".readBps", "disk_written_bytes_per_second": ".writeBps"}
"""What is shown of all disks together, and how the metrics of each end."""
NOT_MEASURED: Mapping[int, int] = {}
LONGEST = 1000
"""Characters of a text of another node."""
MOST_DEVICES = 4096


@dataclass(frozen=True)
class ProcessRow:
    """One process on devices. Texts are fit for a terminal.

    Attributes:
        pid: Its number.
        devices: The keys of the devices that it is on.
        user: Its user; empty where that is not known.
        program: The program's name; empty where that is not known.
        command: Its command line, which may hold secrets; empty where that is not known.
        memory_bytes: Device memory that it holds on all of them; None where the driver does not say.
        utilization: Of the device that it uses most, the share of the compute time, in percent; None where the driver does not say.
        cpu_percent: Processor time that it takes, in percent of one; None where that was not measured.
        seconds: For how long it has run; None where that is not known.
        holder: The job, pod or container that it belongs to; empty for none.
        type: ``compute``, ``graphics`` or ``compute+graphics``; empty when the driver does not say.
        uses: By device, what the driver says of it.
        why: Why user and command are not known; empty where they are.
        aged: Whether the devices' numbers are older than two intervals.
        host_memory_bytes: Memory of the host that it holds; None where that was not measured.
        last_seen: By lost device that it was on, when that was read last, in nanoseconds since 1970. Whether it still is cannot be known.
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
        """When it was seen last, in nanoseconds since 1970; None while a device lists it."""
        return max(self.last_seen.values()) if len(self.last_seen) == len(self.uses) else None


@dataclass(frozen=True)
class SourceRow:
    """One source that something was read from, or was to be.

    Attributes:
        name: The backend's name.
        status: How it fared, as in ``snapshot.backends``.
        source: What is read: ``nvml``; empty while nothing is open.
        detail: What was found or went wrong, in words.
        age_seconds: How old its reading is; None when there was none.
        state: How it stands.
        advice: What to do about it; empty when nothing is wrong.
        silent: Whether it does not answer and no device stands for it: it has a row among the devices.
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
        """The mark of its state."""
        return STATE_MARKS[self.state]


@dataclass(frozen=True)
class DeviceSummary:
    """One device of a node.

    Attributes:
        key: ``gpu.0``.
        state: How it stands.
        utilization: In percent; None where it does not say.
        note: The gravest thing that there is to say of it; empty for none.
        since_ns: Since when it gives nothing, in nanoseconds since 1970; None where it does, or that is not known.
    """

    __pydantic_config__: ClassVar[ConfigDict] = {"str_max_length": LONGEST, "allow_inf_nan": False}

    key: str
    state: State
    utilization: float | None = None
    note: str = ""
    since_ns: int | None = None


@dataclass(frozen=True)
class NodeSummary:
    """One node.

    Attributes:
        hostname: The machine's name.
        time_ns: When it was read, in nanoseconds since 1970.
        interval: Seconds between two readings.
        version: Of the accelmetrics that read it.
        devices: Its whole devices.
        kinds: How many of each kind.
        power_watts: What they draw together; None where none says.
        power_limit_watts: What they may draw; None where one does not say.
        utilization: Their mean, in percent; None where none says.
        lost: Devices that are lost.
        unanswered: Devices that give nothing for another reason, and should.
        hot: Devices that are hot.
        failed: Sources that do not answer.
        findings: Findings that last, by severity.
        silent: What the sources say that do not answer, in words.
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
        """The device that stands worst; None where none needs a look."""
        found = min(self.devices, key=lambda one: STATES.index(one.state), default=None)
        return None if found is None or found.state == "ok" else found

    @property
    def state(self) -> State:
        """The state of the worst device, or ``bad`` where a source does not answer."""
        if self.failed:
            return "bad"
        return "ok" if self.worst is None else self.worst.state

    @property
    def troubles(self) -> list[str]:
        """What is wrong, in words that are fit for a terminal: silent sources, the worst device, how many findings."""
        said, worst = [printable(words) for words in self.silent], self.worst
        if worst is not None:
            lasting = "" if worst.since_ns is None else f" for {duration(max(0.0, (self.time_ns - worst.since_ns) / 1e9))}"
            words = printable(worst.note)
            said.append(f"{printable(worst.key)} {words}".rstrip() + (lasting if " for " not in words else ""))
        number = sum(self.findings.values())
        return [*said, counted(number, "finding")] if number else said

    def to_dict(self) -> dict[str, Any]:
        """Return it in new plain containers, ready for ``json``."""
        document = asdict(self)
        return {**document, "devices": list(document["devices"]), "silent": list(document["silent"])}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> NodeSummary:
        """Read one that :meth:`to_dict` gave, on another machine perhaps: fields that this release does not know are passed over.

        Raises:
            DocumentError: It is not such a document; the message says where it departs.
        """
        from pydantic import ValidationError

        from accelmetrics.schemas.document import describe

        try:
            summary = _reader().validate_python(document)
        except ValidationError as error:
            raise DocumentError(f"this is no summary of a node: {describe(error)}") from error
        if len(summary.devices) > MOST_DEVICES:
            raise DocumentError(f"this is no summary of a node: it has {len(summary.devices)} devices, at most {MOST_DEVICES} are possible")
        return summary

    @classmethod
    def from_json(cls, text: str) -> NodeSummary:
        """Read one as a node answers it.

        Raises:
            DocumentError: It is not such a document.
        """
        try:
            document = json.loads(text)
        except (ValueError, RecursionError) as error:  # the second: brackets in brackets without an end
            raise DocumentError("this is no summary of a node: it is no JSON") from error
        return cls.from_dict(document)


class NodeAnswer(NamedTuple):
    """How one node of a fleet stands.

    Attributes:
        name: What it is called.
        summary: Its numbers; None where there are none.
        failure: Why there are none, in words; empty where there are some, or none are known yet.
        age_seconds: How old what it said is; None where it said nothing.
    """

    name: str
    summary: NodeSummary | None = None
    failure: str = ""
    age_seconds: float | None = None

    @property
    def state(self) -> State:
        """The state of the node; one that does not answer is bad."""
        return "bad" if self.summary is None else self.summary.state


@cache
def _reader() -> TypeAdapter[NodeSummary]:
    from pydantic import TypeAdapter

    return TypeAdapter(NodeSummary)


WHOLE = frozenset({Reason.DEVICE_LOST, Reason.DRIVER_UNAVAILABLE, Reason.RESET_REQUIRED, Reason.NOT_IN_USE, Reason.SUSPENDED})
"""Reasons that a device has for all of its metrics."""


@dataclass(frozen=True)
class NodeView:
    """One node at one moment.

    Attributes:
        hostname: The machine's name.
        time_ns: When it was read, in nanoseconds since 1970.
        interval: Seconds between two readings.
        age_seconds: How old the reading is.
        aged: Whether that is more than two intervals.
        summary: The node in numbers. Partitions are part of their device and count nowhere.
        devices: Its devices, in the order of their keys.
        processes: The processes on them, by device and memory.
        unlisted: By device key, why its processes are not known.
        host: Numbers of the host; what is missing is absent.
        sources: What was read.
        findings: What rules find.
        absent: By backend, why nothing of its vendor is here, as `doctor` says it.
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
        """Return the device with this key; None where there is none."""
        return next((one for one in self.devices if one.key == key), None)

    @property
    def not_judged(self) -> tuple[tuple[tuple[str, ...], str], ...]:
        """The rules about devices that cannot judge them, those with one reason together, and what they lack, of which devices, and why."""
        alike: dict[tuple[tuple[str, ...], str], list[CannotTell]] = {}
        for one in self.findings.cannot_tell:
            if one.reason != NOT_LOGGED:
                alike.setdefault((one.keys, one.reason), []).append(one)
        return tuple((tuple(one.rule for one in lacks), _lack_words(lacks)) for lacks in alike.values())

    @property
    def not_logged(self) -> str:
        """Why rules about a training run judge nothing, in a sentence; empty while all of them do."""
        lacks = [one for one in self.findings.cannot_tell if one.reason == NOT_LOGGED]
        if not lacks:
            return ""
        return f"rules about a training run: {printable(', '.join(dict.fromkeys(one.detail.rpartition(': ')[2] for one in lacks)))}"

    @property
    def silent(self) -> tuple[SourceRow, ...]:
        """The sources that do not answer and that no device stands for."""
        return tuple(source for source in self.sources if source.silent)


def _lack_words(lacks: Sequence[CannotTell]) -> str:
    """Say what rules with one reason lack; of devices that give nothing at all, the reason alone."""
    first = lacks[0]
    metrics = "" if first.reason in WHOLE else ", ".join(dict.fromkeys(one.metric for one in lacks if one.metric))
    about = " of ".join(filter(None, (metrics, ", ".join(first.keys))))
    details = {in_words(one.detail) for one in lacks}
    detail = details.pop() if len(details) == 1 else ""
    why = str(first.reason).replace("_", " ") if not detail or detail.isupper() else detail  # a code alone says less than the reason
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
    """Put together what is shown of a node.

    Args:
        record: The reading, what rules find, and who holds the devices.
        processes: What the system says of the processes on the devices; without it they have numbers alone.
        cpu: By process, the processor time that it takes, in percent of one processor.
        memory: By process, the memory of the host that it holds, in bytes.
        interval: Seconds between two readings.
        now_ns: When it is looked at, in nanoseconds since 1970; when it was read, if left out.
        levels: From where on values are warnings.
        before: The view before this one: it has what a device that is silent now gave last, and since when it is silent.
    """
    snapshot, findings = record.snapshot, record.findings
    now_ns = snapshot.time_ns if now_ns is None else now_ns
    age = max(0.0, (now_ns - snapshot.time_ns) / 1e9)
    oldest = AGED * max(interval, SHORTEST)
    ages = {status.name: None if status.age_seconds is None else age + status.age_seconds for status in snapshot.backends}
    known = {} if before is None else {one.key: (before.time_ns, one) for one in before.devices}
    slots = snapshot.identities
    most: dict[str, int] = {}
    for slot in slots:
        most[slot.identity.name] = max(most.get(slot.identity.name, 0), links_up(snapshot.values_of(slot.key)))
    devices = []
    for slot, one in zip(slots, vitals(snapshot), strict=True):
        seen, read = known.get(slot.key), ages.get(slot.backend)
        same = seen if seen is not None and seen[1].identity.anchor == slot.identity.anchor else None
        old = slot.backend in ages and (age if read is None else read) > oldest
        devices.append(device_view(record, slot, one, levels, same, now_ns, (read, old), most[slot.identity.name]))
    listed = own_processes(snapshot)
    about: dict[int, ProcessInfo] = {}
    for info in () if processes is None else processes.processes:
        if info.pid not in about or info.user is None:  # a number that is not known on each of its devices may be two processes
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


def host_values(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the numbers of the host among a reading's metrics; what is missing is absent."""
    busy = processors(metrics)
    found = {} if busy is None else {"cpu_percent": busy}
    found |= {name: metrics[key] for name, key in HOST_VALUES.items() if key in metrics}
    for name, ending in DISK_VALUES.items():
        rates = [value for key, value in metrics.items() if key.startswith("disk.") and key.endswith(ending)]
        if rates:
            found[name] = sum(rates)
    return found


def _summary(
    snapshot: Snapshot, interval: float, devices: Sequence[DeviceView], findings: Findings, silent: Sequence[SourceRow], failed: int
) -> NodeSummary:
    """Sum a node up."""
    whole = [one for one in devices if not one.parent]  # a partition counts where the device that it is a part of is not listed
    powered = [one.values for one in whole if "power_watts" in one.values]
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
    """Put the processes together, each once; the order is that of the devices, and on each the largest first."""
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
        why = "what the system says of it was not asked for"
        if info is not None:
            reasons = (
                printable(info.unavailable[field]) for field in ("user", "command") if info.unavailable.get(field, NOT_SAID) != NOT_SAID
            )
            why = next(reasons, "")
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
    """Add the processes that were on devices which list none now, as they were seen last.

    Args:
        rows: The processes that are listed.
        before: The view before this one.
        gone: The keys of the devices that are lost or hung.
        cpu: By process, the processor time that it takes.
        memory: By process, the memory of the host that it holds.
    """
    found = {row.pid: row for row in rows}
    for former in before.processes:
        lost = {key: use for key, use in former.uses.items() if key in gone}
        if not lost:
            continue
        seen = {key: former.last_seen.get(key, before.time_ns) for key in lost}
        row = found.get(former.pid)
        if row is None:
            mine = replace(former, devices=tuple(lost), uses=lost, aged=True, seconds=None, last_seen=seen)
            row = replace(mine, cpu_percent=cpu.get(former.pid), host_memory_bytes=memory.get(former.pid))
        else:
            row = replace(row, devices=(*row.devices, *lost), uses={**row.uses, **lost}, last_seen=seen)
        found[former.pid] = row
    return tuple(found.values())


def _holder(info: ProcessInfo | None, holders: Holders, devices: Mapping[str, DeviceProcess]) -> str:
    """Name what a process belongs to: its own job, pod or container, by the name that a holder of its device has for it."""
    held = [one for one in holders.found if one.device in devices]
    if info is not None and info.slurm_job:
        named = (holder_words(one) for one in held if one.kind == "job" and one.labels.get("job_id") == info.slurm_job)
        return next(named, printable(f"job {info.slurm_job}"))
    if info is not None and info.pod:
        pods = dict.fromkeys(holder_words(one) for one in held if one.kind == "pod")
        return next(iter(pods)) if len(pods) == 1 else printable(f"pod {info.pod}")
    if info is not None and info.container:
        return printable(f"{info.runtime or 'container'} {info.container[:SHORT_ID]}")
    return ""
