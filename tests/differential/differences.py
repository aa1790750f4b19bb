"""What is known to differ, read from `docs/wandb-differences.md`, and what does differ between two streams."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.differential import machine
from tests.differential.streams import Record, Streams

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "wandb-differences.md"

ONLY_OURS, ONLY_WANDB, VALUE, AFTER_ERROR = "only accelmetrics", "only W&B", "value", "after an error"
KINDS = (ONLY_OURS, ONLY_WANDB, VALUE, AFTER_ERROR)
ALWAYS, MACHINE = "always", "some machines"

ROUNDING = 1e-12
"""Relative: W&B multiplies floats in another order."""

_ROW = re.compile(r"^\| (?P<keys>`[^|]+`) \| (?P<kind>[^|]+) \| (?P<seen>[^|]+) \| (?P<reason>[^|]+) \|$", re.MULTILINE)
_GPU_KEY = re.compile(r"gpu\.(?:process\.)?(\d+)\.")


class Row(NamedTuple):
    """A documented difference of one key.

    Attributes:
        key: The key with its placeholders.
        kind: Which kind of difference.
        seen: Whether the test sees it on every machine.
        reason: Why.
    """

    key: str
    kind: str
    seen: str
    reason: str

    def covers(self, found: Found) -> bool:
        """Whether a difference that was found is this one."""
        return self.kind == found.kind and self.names(found.key)

    def names(self, key: str) -> bool:
        """Whether a concrete key is this row's."""
        return re.fullmatch(_expression(self.key), key) is not None


class Found(NamedTuple):
    """A difference between the streams."""

    key: str
    kind: str
    words: str


def section(text: str, heading: str) -> str:
    """The part of the document below a heading, up to the next one; it is there."""
    return text.split(f"\n## {heading}\n", 1)[1].partition("\n## ")[0]


def documented(text: str) -> list[Row]:
    """The rows of the document's tables, one per key."""
    rows = []
    for match in _ROW.finditer(text):
        kind, seen, reason = (match[name].strip() for name in ("kind", "seen", "reason"))
        rows += [Row(key, kind, seen, reason) for key in re.findall(r"`([^`]+)`", match["keys"])]
    return rows


def _expression(key: str) -> str:
    """A key as a regular expression: a path may hold dots, nothing else that stands in braces does."""
    pieces = re.split(r"(\{\w+\})", key)
    return "".join(".+" if piece == "{path}" else "[^.]+" if piece.startswith("{") else re.escape(piece) for piece in pieces)


class Phase(NamedTuple):
    """One phase as both saw it: W&B's records put together, since it gives GPM in some of them only; our last one."""

    number: int
    wandb: Mapping[str, float]
    ours: Record


def phase_of(streams: Streams, number: int) -> Phase:
    """What both said during a phase."""
    marker = machine.FIRST + number
    theirs = [record.metrics for record in streams.wandb if record.metrics.get(machine.MARKER) == marker]
    ours = [record for record in streams.ours if record.metrics.get(machine.MARKER) == marker]
    assert theirs, f"W&B gave nothing in phase {number}"
    assert ours, f"accelmetrics gave nothing in phase {number}"
    merged = {key: value for metrics in theirs for key, value in metrics.items()}
    return Phase(number, merged, ours[-1])


def differences(phase: Phase, before: Mapping[str, float]) -> Iterator[Found]:
    """Every difference of one phase: in which keys there are, and in the values of the GPUs'.

    Args:
        phase: The phase.
        before: What W&B gave before anything failed.
    """
    ours = phase.ours.metrics
    for key in sorted(phase.wandb.keys() | ours.keys()):
        theirs, own = phase.wandb.get(key), ours.get(key)
        kind = _kind(key, theirs, own)
        if kind is not None:
            words = f"phase {phase.number}: W&B {theirs}, accelmetrics {phase.ours.reasons.get(key, own)}"
            yield Found(key, AFTER_ERROR if _follows_error(key, phase.number, before) else kind, words)


def _kind(key: str, theirs: float | None, own: float | None) -> str | None:
    if theirs is None or own is None:
        return ONLY_OURS if theirs is None else ONLY_WANDB
    differs = key.startswith(("gpu.", "tpu.", "trn.")) and not math.isclose(theirs, own, rel_tol=ROUNDING)
    return VALUE if differs else None


def _follows_error(key: str, number: int, before: Mapping[str, float]) -> bool:
    """Whether a difference may be what an error left behind: W&B had the key, and the GPU failed some call since."""
    match = _GPU_KEY.match(key)
    return number >= machine.FAILING and match is not None and int(match[1]) in machine.FAULTY and key in before


def unlisted(found: Sequence[Found], rows: Sequence[Row]) -> list[Found]:
    """Differences that no row explains."""
    return [one for one in found if not any(row.covers(one) for row in rows)]


def unseen(found: Sequence[Found], rows: Sequence[Row]) -> list[Row]:
    """Rows that should have been seen and were not: the difference is gone, or never was."""
    return [row for row in rows if row.seen == ALWAYS and not any(row.covers(one) for one in found)]
