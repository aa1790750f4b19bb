"""What a row of the table is, how it is judged, how much is measured, and the table's place in `benchmarks/README.md`."""

from __future__ import annotations

import datetime
import os
import platform
import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

README = Path(__file__).with_name("README.md")
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
MISSED = "**missed**"
REASONS = "## Why rows missed"
REASON = re.compile(r"^- \*\*(.+?)\*\*: \S", re.MULTILINE)
"""Below the table, kept by hand: the row and why it missed."""
HEAD = ("what", "measured", "reach", "stretch", "verdict", "in numbers")


class Row(NamedTuple):
    """One measurement.

    Attributes:
        what: What was measured.
        measured: The number.
        unit: What stands behind it: `×`, ` ms`.
        reach: What it has to be at most; None for a row that only informs.
        stretch: What it would ideally be at most; None where `reach` is all there is.
        note: The absolute numbers behind it, and how far the runs lay apart.
    """

    what: str
    measured: float
    unit: str = "×"
    reach: float | None = None
    stretch: float | None = None
    note: str = ""

    @property
    def verdict(self) -> str:
        """How the number stands to its targets."""
        if self.reach is None:
            return ""
        if self.measured > self.reach:
            return MISSED
        return "stretch" if self.stretch is not None and self.measured <= self.stretch else "reached"

    @property
    def line(self) -> str:
        """The row in Markdown."""
        targets = [f"≤ {cell(number, self.unit)}" if number is not None else "" for number in (self.reach, self.stretch)]
        return _line([self.what, cell(self.measured, self.unit), *targets, self.verdict, self.note])


class Scale(NamedTuple):
    """How much is measured.

    Attributes:
        gpus: Simulated GPUs.
        processes: Fresh processes per measurement.
        readings: Readings per turn.
        turns: Turns per process.
        busy: Readings beside a busy thread.
        seconds: How long a steady pace is kept.
        rounds: How often either side keeps it.
        starts: How often a program is started.
        ticks: Ticks of a monitor between the two looks at resident memory, the first after a hundredth of them.
        history: Readings in a history that is weighed.
        records: Records that an exporter is given per turn.
        peers: Samples taken with another tool.
        many: Simulated GPUs of a large machine.
        ranks: Processes of one node that monitor it.
    """

    gpus: int = 8
    processes: int = 5
    readings: int = 100
    turns: int = 10
    busy: int = 100
    seconds: float = 8.0
    rounds: int = 3
    starts: int = 25
    ticks: int = 100_000
    history: int = 3600
    records: int = 20
    peers: int = 20
    many: int = 64
    ranks: int = 8


Targets = tuple[float | None, float | None]
"""Reach and stretch."""
NONE: Targets = (None, None)

FULL = Scale()
QUICK = Scale(processes=2, readings=50, turns=4, busy=30, seconds=4.0, rounds=1, starts=7, ticks=20_000, records=5, peers=5)
SMOKE = Scale(2, 1, 5, 1, busy=3, seconds=0.5, rounds=1, starts=1, ticks=1000, history=100, records=1, peers=1, many=4, ranks=2)


def cell(number: float, unit: str) -> str:
    """A number with so many digits as say something."""
    digits = 0 if number == int(number) and unit != "×" else 2 if abs(number) < 10 else 1
    return f"{number:.{digits}f}{unit}"


def seconds(number: float) -> str:
    """A time in the unit in which it is short to write."""
    return f"{number * 1e6:.0f} µs" if number < 1e-3 else f"{number * 1e3:.1f} ms"


def spread(what: str, found: Sequence[float], unit: str, targets: Targets, note: str) -> Row:
    """A row about several runs, each in processes of its own: their median, and between what they lay."""
    least, most = (cell(number, "×").rstrip("×") for number in (min(found), max(found)))
    apart = f"; {least}–{most}{unit} over {len(found)} runs" if len(found) > 1 else ""
    return Row(what, statistics.median(found), unit, *targets, f"{note}{apart}")


def ratio(
    what: str, pairs: Sequence[tuple[float, float]], targets: Targets = NONE, note: str = "", show: Callable[[float], str] = seconds
) -> Row:
    """A row about two things that were measured by turns: the median of their ratios."""
    ours, theirs = (statistics.median(pair[side] for pair in pairs) for side in (0, 1))
    return spread(what, [mine / other for mine, other in pairs], "×", targets, f"{show(ours)}, {show(theirs)}{note}")


def table(rows: Iterable[Row]) -> list[str]:
    """When and on what it was measured, and the rows in Markdown: those with targets first."""
    today = datetime.datetime.now(datetime.timezone.utc).date()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    system = f"{platform.system()} {platform.machine()}, {cores} cores, Python {platform.python_version()}"
    simulated = "**The devices are simulated**: H100s of `tests/simulators/nvml`, no real driver."
    ordered = sorted(rows, key=lambda row: not row.verdict)
    return [f"Measured on {today} on {system}. {simulated}", "", _line(HEAD), _line(["---"] * len(HEAD)), *(row.line for row in ordered)]


def write(rows: Iterable[Row]) -> None:
    """Put the table between the marks of the page."""
    before, rest = README.read_text().split(BEGIN)
    _, after = rest.split(END)
    README.write_text(before + "\n".join([BEGIN, "", *table(rows), "", END]) + after)


def unexplained(text: str) -> list[str]:
    """What the page's table and its reasons do not agree about: rows that missed without one, reasons of no row that missed."""
    results, _, rest = text.partition(END)
    missed = [line.split(" | ")[0].removeprefix("| ") for line in results.splitlines() if f" | {MISSED} | " in line]
    section = rest.partition(REASONS)[2].partition("\n## ")[0]
    told = REASON.findall(section)
    return [*(f"no reason: {row}" for row in missed if row not in told), *(f"not missed: {row}" for row in told if row not in missed)]


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
