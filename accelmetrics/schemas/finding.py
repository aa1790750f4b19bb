"""What rules have found in a run: findings with their times and what to do, and what could not be judged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from accelmetrics.schemas.named_tuple import NamedTuple
from accelmetrics.schemas.snapshot import rfc3339

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
        severity: How grave it is.
        key: What it is about: a device's key (``gpu.3``), a rank of the job (``rank 2``), a source (``nvidia``); empty for the run.
        message: What was read, in words.
        value: What the rule measured when it found it.
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
        keys: The devices that it cannot judge; empty where it can judge nothing at all.
        metric: What it lacks.
        reason: Why that is missing: a reason as in ``snapshot.unavailable``, ``not_read``, ``not_logged`` or ``rule_failed``.
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
