"""The table, and its place in `benchmarks/README.md`."""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Iterable
from pathlib import Path

from benchmarks.rows import Row, cell

README = Path(__file__).with_name("README.md")
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
HEAD = ("what", "measured", "reach", "stretch", "verdict", "in numbers")


def lines(rows: Iterable[Row]) -> list[str]:
    """The table in Markdown."""
    return [_line(HEAD), _line(["---"] * len(HEAD)), *map(line, rows)]


def line(row: Row) -> str:
    """One row in Markdown."""
    targets = [f"≤ {cell(number, row.unit)}" if number is not None else "" for number in (row.reach, row.stretch)]
    return _line([row.what, cell(row.measured, row.unit), *targets, row.verdict, row.note])


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def write(rows: Iterable[Row]) -> None:
    """Puts the table between the marks."""
    before, rest = README.read_text().split(BEGIN)
    _, after = rest.split(END)
    middle = "\n".join([BEGIN, "", *machine(), "", *lines(rows), "", END])
    README.write_text(before + middle + after)


def machine() -> list[str]:
    """When and on what it was measured."""
    today = datetime.datetime.now(datetime.timezone.utc).date()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    system = f"{platform.system()} {platform.machine()}, {cores} cores, Python {platform.python_version()}"
    return [f"Measured on {today} on {system}. **The devices are simulated**: H100s of `tests/simulators/nvml`, no real driver."]
