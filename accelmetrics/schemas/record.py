"""The record that a monitor gives to exporters at every tick: snapshot, findings, logged steps, the monitor's status."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from math import isfinite, isnan
from typing import Any, Literal, Protocol

from accelmetrics.schemas.frozen import FrozenDict
from accelmetrics.schemas.named_tuple import NamedTuple
from accelmetrics.schemas.snapshot import Device, Snapshot, rfc3339, to_text

Severity = Literal["info", "warning", "critical"]
"""``critical``: act now, data or the job may be lost. ``warning``: act this week. ``info``: for the job's owner."""
SEVERITIES: tuple[Severity, ...] = ("critical", "warning", "info")
"""All severities, the most severe first."""

NOT_LOGGED = "not_logged"
"""Reason of a training rule that cannot be evaluated because the program does not log the number it needs."""


class Finding(NamedTuple):
    """A single problem that a rule found.

    Attributes:
        rule: The rule's name.
        severity: ``critical``, ``warning`` or ``info``.
        key: The subject: a device's key, a rank, or a source; empty for the whole run. It is ``gpu.3``, ``rank 2``, ``nvidia``.
        message: The observation in words.
        value: The measured value at the time of the finding.
        threshold: The limit that the value was compared with.
        since_ns: When the condition began, in nanoseconds since 1970 (UTC).
        until_ns: When the condition ended; None while it lasts.
        advice: Advice for the user.
    """

    rule: str
    severity: Severity
    key: str
    message: str
    value: float
    threshold: float
    since_ns: int
    until_ns: int | None
    advice: str

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as in documents: ``since`` and ``until`` are RFC 3339, in UTC."""
        found = {name.removesuffix("_ns"): value for name, value in self._asdict().items()}
        return {**found, "since": rfc3339(self.since_ns), "until": None if self.until_ns is None else rfc3339(self.until_ns)}

    def __str__(self) -> str:
        return f"{self.severity} {self.rule}: {f'{self.key}: ' if self.key else ''}{self.message}"


class CannotTell(NamedTuple):
    """A rule that cannot be evaluated, and the reason. It then has no findings, although there may be a problem.

    Attributes:
        rule: The rule's name.
        keys: The devices that it cannot evaluate; empty if it can evaluate none at all.
        metric: The missing metric.
        reason: Why the metric is missing. It is a reason as in ``snapshot.unavailable``, ``not_read``, ``not_logged`` or
            ``rule_failed``.
        detail: The reason in words.
    """

    rule: str
    keys: tuple[str, ...]
    metric: str
    reason: str
    detail: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return it as in documents."""
        return {**self._asdict(), "keys": list(self.keys)}


# Not a dataclass: that loads `inspect`, which takes 1.4 MiB in every program with a monitor.
class Findings:
    """The findings of all rules at one time. Iterating gives the current ones. Immutable.

    Attributes:
        current: Conditions that last, the most severe first.
        ended: The most recent conditions that ended, oldest first; a limited number.
        cannot_tell: Rules that could not be evaluated.
    """

    __slots__ = ("cannot_tell", "current", "ended")

    def __init__(
        self, current: tuple[Finding, ...] = (), ended: tuple[Finding, ...] = (), cannot_tell: tuple[CannotTell, ...] = ()
    ) -> None:
        self.current = current
        self.ended = ended
        self.cannot_tell = cannot_tell

    def _parts(self) -> tuple[tuple[Finding, ...], tuple[Finding, ...], tuple[CannotTell, ...]]:
        return self.current, self.ended, self.cannot_tell

    def __eq__(self, other: object) -> bool:
        return self._parts() == other._parts() if isinstance(other, Findings) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._parts())

    def __repr__(self) -> str:
        return f"Findings(current={self.current!r}, ended={self.ended!r}, cannot_tell={self.cannot_tell!r})"

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.current)

    def __len__(self) -> int:
        return len(self.current)

    def to_dict(self) -> dict[str, Any]:
        """Return the findings as in documents."""
        return {name: [one.to_dict() for one in getattr(self, name)] for name in ("current", "ended", "cannot_tell")}


NO_FINDINGS = Findings()


NO_LABELS: Mapping[str, str] = FrozenDict()
LOGGED = "training."
"""Prefix of the names of the program's own numbers where they appear among keys."""
DeviceLabels = Callable[[Device], Mapping[str, str]]
"""Returns labels of a device's user (``pod``, ``namespace``, ``container``); none if unknown."""
NO_PROCESS_LABELS: Mapping[int, Mapping[str, str]] = FrozenDict()
ProcessLabels = Callable[[Snapshot, Sequence[int]], Mapping[int, Mapping[str, str]]]
"""Returns labels (``user``, ``pod``) of processes of a reading, by process id; none if unknown."""
EXPORTER_COUNTS = ("sent", "failed", "dropped", "queued")
"""Fields of :class:`ExporterStatus` that are also metrics."""


StepSource = tuple[int | None, str]
"""A process of the job: its rank (None if it has none) and its machine."""


class Holder(NamedTuple):
    """A job, or a container of a pod, that a device was allocated to.

    Attributes:
        device: The device's key.
        kind: Whether it is a job or a pod.
        labels: The labels that identify it. They are ``scheduler``, ``job_id``, ``user``, …; or ``pod``, ``namespace``,
            ``container``.
    """

    device: str
    kind: Literal["job", "pod"]
    labels: Mapping[str, str]


class Holders(NamedTuple):
    """The jobs and pods that this machine's devices are allocated to. A device can have several.

    Attributes:
        found: The allocations, each with its device.
        sources: By source asked (``slurm``, ``dcgm``, ``kubernetes``), the reason why it did not answer; empty if it did.
    """

    found: tuple[Holder, ...] = ()
    sources: Mapping[str, str] = NO_LABELS

    def of(self, device: str, kind: Literal["job", "pod"]) -> Mapping[str, str]:
        """Return the labels of the only job or pod that holds a device; none if there is no holder, or more than one."""
        held = [holder.labels for holder in self.found if holder.device == device and holder.kind == kind]
        return held[0] if len(held) == 1 else NO_LABELS

    def to_dict(self) -> dict[str, Any]:
        """Return them as in documents."""
        return {"found": [{**one._asdict(), "labels": dict(one.labels)} for one in self.found], "sources": dict(self.sources)}


NO_HOLDERS = Holders()
HoldersOf = Callable[[Snapshot], Holders]
"""Returns the holders of a reading's devices. Called at every tick, on the monitor's thread: it must not block."""


class Step(NamedTuple):
    """The numbers that the watched program logged at one time.

    Attributes:
        time_ns: When it logged them, in nanoseconds since 1970 (UTC).
        step: The program's own step number; None if it gave none.
        values: The program's numbers by name; a number that is not finite is a text in documents. They are the program's (``loss``,
            ``tokens``), and derived ones (``step_seconds``, ``tokens_per_second``, ``tokens_per_joule``); ``nonFinite`` is how many
            were not finite.
        rank: The rank of the process that logged it; None if it has none.
        node: The machine that the process ran on; empty if unknown.
    """

    time_ns: int
    step: int | None
    values: Mapping[str, int | float]
    rank: int | None = None
    node: str = ""

    @property
    def source(self) -> StepSource:
        """The process that logged it."""
        return self.rank, self.node


class WindowSpan(NamedTuple):
    """A window of the program that has begun or ended.

    Attributes:
        name: Its name.
        begin_ns: When it began, in nanoseconds since 1970 (UTC).
        end_ns: When it ended; None while it is open.
    """

    name: str
    begin_ns: int
    end_ns: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return it as in documents."""
        return {"name": self.name, "begin": rfc3339(self.begin_ns), "end": None if self.end_ns is None else rfc3339(self.end_ns)}


def in_json(value: float) -> float | str:
    """Return a number for JSON. A number that is not finite becomes ``"NaN"``, ``"Infinity"`` or ``"-Infinity"``."""
    if isinstance(value, int) or isfinite(value):
        return value
    return "NaN" if isnan(value) else "Infinity" if value > 0 else "-Infinity"


class ExporterStatus(NamedTuple):
    """The status of one exporter since it was opened.

    Attributes:
        name: Its name, with a number if a monitor has several of a kind (``jsonl``, ``jsonl-2``).
        sent: Records delivered.
        failed: Records given up because they could not be delivered.
        dropped: Records lost because the queue was full; the oldest are dropped first.
        queued: Records that wait.
        error: The last error in words; empty while it delivers.
    """

    name: str
    sent: int = 0
    failed: int = 0
    dropped: int = 0
    queued: int = 0
    error: str = ""


class MonitorStatus(NamedTuple):
    """The status of the monitor itself since it was started.

    Attributes:
        interval: Requested seconds between two ticks.
        ticks: Readings taken.
        missed_ticks: Readings that were due but could not be taken.
        timed_out: Readings in which a vendor call gave no answer.
        exporters: The status of each exporter.
    """

    interval: float
    ticks: int = 0
    missed_ticks: int = 0
    timed_out: int = 0
    exporters: tuple[ExporterStatus, ...] = ()

    def flat(self) -> dict[str, int | float]:
        """Return the numbers as metrics: ``monitor.ticks``, ``monitor.exporter.jsonl.dropped``."""
        return {
            "monitor.interval": self.interval,
            "monitor.ticks": self.ticks,
            "monitor.missedTicks": self.missed_ticks,
            "monitor.timedOut": self.timed_out,
            **{f"monitor.exporter.{one.name}.{count}": getattr(one, count) for one in self.exporters for count in EXPORTER_COUNTS},
        }


class Record(NamedTuple):
    """The data of one tick.

    Attributes:
        snapshot: The reading of the machine. Its metrics include ``torch.{i}.…`` if the program uses PyTorch.
        labels: The labels of this stream: the user's labels, run id, host, rank, the scheduler's job.
        steps: The steps logged since the last record.
        monitor: The monitor's status; None for a snapshot without a monitor, and if a recording does not repeat it.
        device_labels: By device key, the labels of its user from an exporter's ``device_labels``. They are not in documents.
        findings: The findings of rules until then.
        holders: The jobs and pods that devices are allocated to, if the monitor knows them.
        windows: The program's named windows that ended since the last record, and named windows that began and are open.
    """

    snapshot: Snapshot
    labels: Mapping[str, str] = NO_LABELS
    steps: tuple[Step, ...] = ()
    monitor: MonitorStatus | None = None
    device_labels: Mapping[str, Mapping[str, str]] = FrozenDict()
    findings: Findings = NO_FINDINGS
    holders: Holders = NO_HOLDERS
    windows: tuple[WindowSpan, ...] = ()

    @property
    def own_steps(self) -> tuple[Step, ...]:
        """The steps of the process that the record is of, without other processes of its job.

        They are for sinks in which a name is a single series.
        """
        rank, node = self.labels.get("rank", ""), self.labels.get("hostname", self.snapshot.hostname)
        return tuple(step for step in self.steps if (step.rank is None or str(step.rank) == rank) and step.node in ("", node))

    def pod_labels(self, device: str) -> Mapping[str, str]:
        """Return a device's labels from an exporter's ``device_labels``, else the labels of the only pod that holds it."""
        return self.device_labels.get(device) or self.holders.of(device, "pod")

    def to_dict(self) -> dict[str, Any]:
        """Return the snapshot's document with up to six more parts; parts without content are left out.

        ``labels``; ``training``: a list of ``timestamp``, ``step``, the ``rank`` and ``node`` of the process if they are known, and
        the logged numbers under ``values``; ``windows``: their ``name``, ``begin`` and ``end``; ``monitor``: flat numbers;
        ``findings``; ``holders``. Readers of snapshots ignore these parts.
        """
        beside = {
            "labels": dict(self.labels),
            "training": self.training(),
            "windows": [window.to_dict() for window in self.windows],
            "monitor": None if self.monitor is None else self.monitor.flat(),
            "findings": None if self.findings == NO_FINDINGS else self.findings.to_dict(),
            "holders": None if self.holders == NO_HOLDERS else self.holders.to_dict(),
        }
        return {**self.snapshot.to_dict(), **{name: part for name, part in beside.items() if part}}

    def training(self) -> list[dict[str, Any]]:
        """Return the logged steps as in documents, where a number that is not finite is a text."""
        return [
            {
                "timestamp": rfc3339(step.time_ns),
                "step": step.step,
                **({} if step.rank is None else {"rank": step.rank}),
                **({"node": step.node} if step.node else {}),
                "values": {name: in_json(value) for name, value in step.values.items()},
            }
            for step in self.steps
        ]

    def to_json(self) -> str:
        """Return the document as one line of text, as :meth:`Snapshot.to_json` does.

        Raises:
            DocumentError: A value is not finite, which JSON cannot represent.
        """
        return to_text(self.to_dict(), None, "record")


class Exporter(Protocol):
    """A destination of records.

    All four methods are called from a thread of this exporter, one call at a time, under a guard. Their errors and delays affect
    neither the program nor other exporters. Records wait in a queue of limited length meanwhile; the oldest are dropped first.

    An ``OSError`` (a server that is away, a full disk) counts as temporary: the record is kept and offered again after a growing
    pause. With any other exception, the record is given up and counted, and the error is reported once.

    If the exporter has an attribute ``metrics`` that is a :class:`~accelmetrics.schemas.selection.MetricSelection`, its records
    contain only these metrics, and with a ``default`` selection also the metrics that the user chose for the monitor. Without the
    attribute they contain all. If its attribute ``processes`` is true, the processes on the devices are read whichever metrics are
    selected.
    """

    name: str
    """The name for its counts."""

    def open(self) -> None:
        """Prepare: create files, connect. Called again after a pause if it fails, and after ``close`` on a restart."""
        ...

    def export(self, record: Record) -> None:
        """Deliver one record, or the part of it that this kind of exporter carries."""
        ...

    def flush(self) -> None:
        """Deliver everything accepted so far."""
        ...

    def close(self) -> None:
        """Release all resources. Also called after an ``open`` that failed."""
        ...


# Names of logged numbers

STEP_NAMES: Mapping[str, tuple[str, ...]] = {
    "epoch": ("epoch",),
    "loss": ("loss", "train_loss", "training_loss"),
    "learning_rate": ("learning_rate", "lr"),
    "grad_norm": ("grad_norm", "gradient_norm", "grad-norm", "global_grad_norm"),
    "samples_per_second": ("samples_per_second", "throughput_samples_per_sec", "throughput"),
}
"""Names under which programs log a number, by the name that the documentation uses."""


@lru_cache(maxsize=1024)
def plain_name(name: str) -> str:
    """Return a logged number's name without a tracker's prefix: ``loss`` for ``train/loss``, but ``eval/loss`` unchanged."""
    head, _, last = name.rpartition("/")
    return name if head.partition("/")[0].lower() in ("eval", "val", "valid", "validation", "test") else last.lower()


def logged_number(values: Mapping[str, float], names: Sequence[str]) -> float | None:
    """Return the first of a step's numbers with one of these names, ignoring trackers' prefixes; None if there is none."""
    return next((value for name, value in values.items() if plain_name(name) in names), None)


def under_one_name(values: Mapping[str, float]) -> dict[str, float]:
    """Return a step's numbers under the documented names: ``lr`` becomes ``learning_rate``.

    A name stays as it is if the step has a different number under the documented name.
    """
    found = dict(values)
    for known, names in STEP_NAMES.items():
        for name in names[1:]:
            if name in found and (known not in found or found[known] == found[name]):
                found[known] = found.pop(name)
    return found


# Work reported by logged steps, over all processes of a run

WORK = ("tokens", "samples")
"""Kinds of work that are counted per second and per joule."""


class Done(NamedTuple):
    """Work of one process.

    Attributes:
        amount: The amount.
        seconds: The time it took.
        paid: The part of the amount done in steps with known energy.
        joules: The energy of these steps.
    """

    amount: float = 0.0
    seconds: float = 0.0
    paid: float = 0.0
    joules: float = 0.0


COMMAND = "command"
"""The window of a command from its start to its end, in recordings of ``accelmetrics run``."""


def done_by_command(amount: float, seconds: float, watts: float) -> Done:
    """Return the work of a command that ran so many seconds on devices of this mean power; 0 where no power is known.

    All of its time counts, also that before the first step and after the last one: a user pays for it. Its energy is that of the mean
    power, because readings cover less than the time of a short command.
    """
    return Done(amount, seconds, amount if watts else 0.0, seconds * watts)


Totals = Mapping[tuple[str, StepSource], Done]
"""The work so far, by kind of work and process."""


def add_work(totals: dict[tuple[str, StepSource], Done], step: Step) -> None:
    """Add the work of a step, if it gives both the amount and the rate.

    Each process has separate totals: ranks work in parallel, so their rates are added, not their times.
    """
    for name in WORK:
        amount, rate, per_joule = (step.values.get(f"{name}{of}") for of in ("", "_per_second", "_per_joule"))
        if amount and rate and isfinite(amount):
            paid, joules = (amount, amount / per_joule) if per_joule else (0.0, 0.0)
            gained, done = (amount, amount / rate, paid, joules), totals.get((name, step.source), Done())
            totals[name, step.source] = Done(*map(sum, zip(done, gained, strict=True)))


def rates(after: Totals, before: Totals = {}) -> dict[str, dict[str, float | None]]:  # noqa: B006  # never changed
    """Return the work done between two states of the totals, by kind of work. A kind without work is left out.

    ``per_second`` is the sum of the processes' rates. ``per_joule`` is over the energy of all selected devices; None if that is
    unknown.
    """
    found: dict[str, list[Done]] = {}
    for key, done in after.items():
        gained = Done(*(now - then for now, then in zip(done, before.get(key, Done()), strict=True)))
        if gained.seconds > 0:
            found.setdefault(key[0], []).append(gained)
    sums = {name: Done(*map(sum, zip(*each, strict=True))) for name, each in found.items()}
    return {
        name: {
            "per_second": sum(done.amount / done.seconds for done in found[name]),
            "per_joule": total.paid / total.joules if total.joules > 0 else None,
        }
        for name, total in sums.items()
    }
