"""The record that a monitor hands to exporters at every tick: the snapshot, findings, what the program said, how the monitor fares."""

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
"""The gravest first."""

NOT_LOGGED = "not_logged"
"""The reason of a rule about a training run that lacks what a program would log."""


class Finding(NamedTuple):
    """One thing that a rule found.

    Attributes:
        rule: The rule's name.
        severity: ``critical``, ``warning`` or ``info``.
        key: What it is about: a device's key, a rank, a source; empty for the run. It is ``gpu.3``, ``rank 2``, ``nvidia``.
        message: What was read, in words.
        value: What was measured when it was found.
        threshold: The limit that it was compared with.
        since_ns: When the condition began, in nanoseconds since 1970 (UTC).
        until_ns: When it was over; None while it lasts.
        advice: What to do.
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
        """Return it as documents have it: with ``since`` and ``until`` as RFC 3339, in UTC."""
        until = None if self.until_ns is None else rfc3339(self.until_ns)
        return {
            "rule": self.rule,
            "severity": self.severity,
            "key": self.key,
            "message": self.message,
            "value": self.value,
            "threshold": self.threshold,
            "since": rfc3339(self.since_ns),
            "until": until,
            "advice": self.advice,
        }

    def __str__(self) -> str:
        about = f"{self.key}: " if self.key else ""
        return f"{self.severity} {self.rule}: {about}{self.message}"


class CannotTell(NamedTuple):
    """What a rule cannot judge, and why: its silence says nothing.

    Attributes:
        rule: The rule's name.
        keys: The devices that it cannot judge; empty where it can judge nothing.
        metric: What it lacks.
        reason: Why that is missing. It is a reason as in ``snapshot.unavailable``, ``not_read``, ``not_logged`` or ``rule_failed``.
        detail: The same in words.
    """

    rule: str
    keys: tuple[str, ...]
    metric: str
    reason: str
    detail: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return it as documents have it."""
        return {**self._asdict(), "keys": list(self.keys)}


class Findings:
    """What rules found until one moment. Iterating gives the current ones. It does not change.

    No dataclass: every program with a monitor would load `inspect` for it, which takes 1.4 MiB.

    Attributes:
        current: What lasts, the gravest first.
        ended: What was over last, oldest first; a bounded number.
        cannot_tell: What could not be judged.
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
        """Return them as documents have them."""
        return {
            "current": [one.to_dict() for one in self.current],
            "ended": [one.to_dict() for one in self.ended],
            "cannot_tell": [one.to_dict() for one in self.cannot_tell],
        }


NO_FINDINGS = Findings()


NO_LABELS: Mapping[str, str] = FrozenDict()
LOGGED = "training."
"""What the names of the program's own numbers begin with where they stand beside keys."""
NO_DEVICE_LABELS: Mapping[str, Mapping[str, str]] = FrozenDict()
DeviceLabels = Callable[[Device], Mapping[str, str]]
"""Tells who uses a device, in labels (``pod``, ``namespace``, ``container``); none where nothing is known."""
NO_PROCESS_LABELS: Mapping[int, Mapping[str, str]] = FrozenDict()
ProcessLabels = Callable[[Snapshot, Sequence[int]], Mapping[int, Mapping[str, str]]]
"""Tells whose processes of a reading are, by their numbers, in labels (``user``, ``pod``); none where nothing is known."""
EXPORTER_COUNTS = ("sent", "failed", "dropped", "queued")
"""Fields of :class:`ExporterStatus` that are metrics too."""


StepSource = tuple[int | None, str]
"""A process of the job: its rank, None where it has none, and its machine."""


class Holder(NamedTuple):
    """A job, or a container of a pod, that a device was given to.

    Attributes:
        device: The device's key.
        kind: Which of both it is.
        labels: What it is called. They are ``scheduler``, ``job_id``, ``user``, …; or ``pod``, ``namespace``, ``container``.
    """

    device: str
    kind: Literal["job", "pod"]
    labels: Mapping[str, str]


class Holders(NamedTuple):
    """Who holds the devices of this machine: several may hold one.

    Attributes:
        found: Each with its device.
        sources: By source that was asked (``slurm``, ``dcgm``, ``kubernetes``), why its answer is missing; empty where it is there.
    """

    found: tuple[Holder, ...] = ()
    sources: Mapping[str, str] = NO_LABELS

    def of(self, device: str, kind: Literal["job", "pod"]) -> Mapping[str, str]:
        """Return the labels of the one job or pod that holds a device; none where there is none, or more than one."""
        held = [holder.labels for holder in self.found if holder.device == device and holder.kind == kind]
        return held[0] if len(held) == 1 else NO_LABELS

    def to_dict(self) -> dict[str, Any]:
        """Return them as documents have them."""
        return {"found": [{**one._asdict(), "labels": dict(one.labels)} for one in self.found], "sources": dict(self.sources)}


NO_HOLDERS = Holders()
HoldersOf = Callable[[Snapshot], Holders]
"""Tells who holds the devices of a reading. Called at every tick, on the monitor's thread: it must not wait."""


class Step(NamedTuple):
    """What the watched program logged at one moment.

    Attributes:
        time_ns: When, in nanoseconds since 1970 (UTC).
        step: The program's own step; None where it named none.
        values: Its numbers by name; a text in documents where it is not finite. They are the program's (``loss``, ``tokens``), and those
            derived from them (``step_seconds``, ``tokens_per_second``, ``tokens_per_joule``); ``nonFinite`` is how many were not finite.
        rank: The rank of the process that logged it; None where it has none.
        node: The machine that it ran on; empty where that is not known.
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
    """A window of the program that has begun, or ended.

    Attributes:
        name: Its name.
        begin_ns: When it began, in nanoseconds since 1970 (UTC).
        end_ns: When it ended; None while it is open.
    """

    name: str
    begin_ns: int
    end_ns: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return it as documents have it."""
        return {"name": self.name, "begin": rfc3339(self.begin_ns), "end": None if self.end_ns is None else rfc3339(self.end_ns)}


def in_json(value: float) -> float | str:
    """Return a number as JSON has it, which has none that are not finite: those are ``"NaN"``, ``"Infinity"``, ``"-Infinity"``."""
    if isinstance(value, int) or isfinite(value):
        return value
    return "NaN" if isnan(value) else "Infinity" if value > 0 else "-Infinity"


class ExporterStatus(NamedTuple):
    """How one exporter has fared since it was opened.

    Attributes:
        name: Its name, with a number behind it where a monitor has several of a kind (``jsonl``, ``jsonl-2``).
        sent: Records delivered.
        failed: Records that it could not deliver and gave up.
        dropped: Records that found its queue full: the oldest went.
        queued: Records that wait.
        error: What went wrong last, in words; empty while it delivers.
    """

    name: str
    sent: int = 0
    failed: int = 0
    dropped: int = 0
    queued: int = 0
    error: str = ""


class MonitorStatus(NamedTuple):
    """How the monitor itself has fared since it was started.

    Attributes:
        interval: Seconds between two ticks, as asked for.
        ticks: Readings taken.
        missed_ticks: Times at which a reading was due and could not be taken.
        timed_out: Readings in which some vendor call gave no answer.
        exporters: How each exporter fares.
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
    """One tick.

    Attributes:
        snapshot: What the machine said. Its metrics hold ``torch.{i}.…`` too, where the program uses PyTorch.
        labels: What tells this stream from others: the user's labels, run id, host, rank, the scheduler's job.
        steps: What the program logged since the last record.
        monitor: How the monitor fares; None for a snapshot that no monitor took, and where a recording does not say it again.
        device_labels: By device key, what an exporter's ``device_labels`` says of who uses it. They are in no document.
        findings: What rules have found until then.
        holders: The jobs and pods that devices were given to, where the monitor was told.
        windows: The program's windows with a name that ended since the last record, and those that began and are open.
    """

    snapshot: Snapshot
    labels: Mapping[str, str] = NO_LABELS
    steps: tuple[Step, ...] = ()
    monitor: MonitorStatus | None = None
    device_labels: Mapping[str, Mapping[str, str]] = NO_DEVICE_LABELS
    findings: Findings = NO_FINDINGS
    holders: Holders = NO_HOLDERS
    windows: tuple[WindowSpan, ...] = ()

    @property
    def own_steps(self) -> tuple[Step, ...]:
        """What the process that the record is of logged, and no other of its job: for sinks in which a name is one series."""
        rank, node = self.labels.get("rank", ""), self.labels.get("hostname", self.snapshot.hostname)
        return tuple(step for step in self.steps if (step.rank is None or str(step.rank) == rank) and step.node in ("", node))

    def pod_labels(self, device: str) -> Mapping[str, str]:
        """Return what an exporter's ``device_labels`` says of a device, else the one pod that holds it."""
        return self.device_labels.get(device) or self.holders.of(device, "pod")

    def to_dict(self) -> dict[str, Any]:
        """Return the snapshot's document with six more parts, each left out where there is nothing to say.

        ``labels``; ``training``: a list of ``timestamp``, ``step``, the ``rank`` and ``node`` of the process where they are known, and the
        logged numbers under ``values``; ``windows``: their ``name``, ``begin`` and ``end``; ``monitor``: flat numbers; ``findings``;
        ``holders``. Readers of snapshots pass over them.
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
        """Return what the program logged, as documents have it; a number that is not finite is a text there."""
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
        """Return the document as text on one line, as :meth:`Snapshot.to_json` writes it.

        Raises:
            DocumentError: A value is not finite, which JSON cannot hold.
        """
        return to_text(self.to_dict(), None, "record")


class Exporter(Protocol):
    """Where records go.

    All four methods are called from one thread that belongs to this exporter alone, one call at a time, under a guard:
    whatever they raise or however long they take costs neither the program nor another exporter. Records wait in a bounded
    queue meanwhile, of which the oldest go first.

    ``OSError`` (a peer that is away, a disk that is full) is taken to be passing: the record is kept and offered again, after
    a pause that grows. Any other exception gives the record up; it is counted, and told once.

    Where it has an attribute ``metrics`` that is a :class:`~accelmetrics.schemas.selection.MetricSelection`, its records have
    those metrics alone, and those that the monitor was told by choice where it is a ``default``; otherwise all.
    Where its attribute ``processes`` is true, the processes on the devices are read whichever metrics are.
    """

    name: str
    """Under which it is counted."""

    def open(self) -> None:
        """Get ready: create files, connect. Called again, after a pause, when it fails; and after ``close`` by a restart."""
        ...

    def export(self, record: Record) -> None:
        """Deliver one record, or as much of it as this kind of exporter carries."""
        ...

    def flush(self) -> None:
        """Have everything delivered that was taken."""
        ...

    def close(self) -> None:
        """Give everything back. Also called after an ``open`` that failed."""
        ...


# What programs log, by the names that they may give it

STEP_NAMES: Mapping[str, tuple[str, ...]] = {
    "epoch": ("epoch",),
    "loss": ("loss", "train_loss", "training_loss"),
    "learning_rate": ("learning_rate", "lr"),
    "grad_norm": ("grad_norm", "gradient_norm", "grad-norm", "global_grad_norm"),
    "samples_per_second": ("samples_per_second", "throughput_samples_per_sec", "throughput"),
}
"""By the name that documentation uses, all names under which a number that a program logs is known."""
EVALUATIONS = ("eval", "val", "valid", "validation", "test")
"""What stands before the names of an evaluation's numbers."""


@lru_cache(maxsize=1024)
def plain_name(name: str) -> str:
    """Return a logged number's name without what a tracker puts before it: ``loss`` of ``train/loss``; all of ``eval/loss``."""
    head, _, last = name.rpartition("/")
    return name if head.partition("/")[0].lower() in EVALUATIONS else last.lower()


def logged_number(values: Mapping[str, float], names: Sequence[str]) -> float | None:
    """Return the first of a step's numbers that has one of these names, whatever a tracker puts before it; None where it has none."""
    return next((value for name, value in values.items() if plain_name(name) in names), None)


def under_one_name(values: Mapping[str, float]) -> dict[str, float]:
    """Return a step's numbers under the names of documentation: ``learning_rate`` of ``lr``.

    Another name stays where the step has a different number under the name of documentation.
    """
    found = dict(values)
    for known, names in STEP_NAMES.items():
        for name in names[1:]:
            if name in found and (known not in found or found[known] == found[name]):
                found[known] = found.pop(name)
    return found


# The work that logged steps tell of, of all processes of a run together

WORK = ("tokens", "samples")
"""What is counted per second and per joule."""


class Done(NamedTuple):
    """Work that a process did.

    Attributes:
        amount: How much.
        seconds: In which time.
        paid: How much of it is of steps whose energy is known.
        joules: And that energy.
    """

    amount: float = 0.0
    seconds: float = 0.0
    paid: float = 0.0
    joules: float = 0.0


Totals = Mapping[tuple[str, StepSource], Done]
"""By kind of work and process, what was done so far."""


def add_work(totals: dict[tuple[str, StepSource], Done], step: Step) -> None:
    """Add the work of a step, if it says both how much was done and how fast.

    Each process has totals of its own: ranks work side by side, so that their rates add up and not their times.
    """
    for name in WORK:
        amount, rate, per_joule = (step.values.get(f"{name}{of}") for of in ("", "_per_second", "_per_joule"))
        if amount and rate and isfinite(amount):
            paid, joules = (amount, amount / per_joule) if per_joule else (0.0, 0.0)
            gained, done = (amount, amount / rate, paid, joules), totals.get((name, step.source), Done())
            totals[name, step.source] = Done(*map(sum, zip(done, gained, strict=True)))


def rates(after: Totals, before: Totals = {}) -> dict[str, dict[str, float | None]]:  # noqa: B006  # never changed
    """Return, by kind of work, what was done between two states of the totals; without those in which nothing was.

    ``per_second`` is the sum of what each process did in a second, ``per_joule`` is over the energy of all selected devices, and None where
    that is not known.
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
