"""The processes on devices as rows of a table."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from accelmetrics.schemas.text import GIB, cells
from accelmetrics.views.node_view import NodeView, ProcessRow
from accelmetrics.views.terminal.choices import Choices
from accelmetrics.views.terminal.filters import PROCESS_FIELDS, Fields, matching, parse_filter
from accelmetrics.views.terminal.graphs import rule
from accelmetrics.views.terminal.style import Drawn, Line, ScreenStyle

WIDTHS = {"PID": 7, "USER": 8, "DEV": 6, "GPU%": 5, "MEM/GIB": 7, "CPU%": 5, "TIME": 8, "HELD BY": 10}
RANKS = {"PID": 0, "GPU%": 1, "MEM/GIB": 2, "DEV": 3, "USER": 4, "TIME": 6, "CPU%": 5, "HELD BY": 7}
"""By heading, columns that each takes at least, and which are there first; the command takes what is left."""
LEAST_COMMAND = 12
MOST = 16
"""Columns of a user, of devices and of a holder, at most."""
HEADINGS = {"gpu%": "GPU%", "mem": "MEM/GIB", "cpu%": "CPU%", "time": "TIME", "pid": "PID", "user": "USER", "device": "DEV"}
UNKNOWN = "?"
SPACE = 2


def shown_processes(view: NodeView, choices: Choices) -> list[ProcessRow]:
    """List the processes that are chosen to be shown, in the order that is chosen: numbers from the largest, unknown ones last."""
    found = list(view.processes)
    if choices.process_filter:
        conditions = parse_filter(choices.process_filter, PROCESS_FIELDS)
        found = [process for process in found if matching(conditions, process_fields(process))]
    order, reverse = choices.process_order, choices.process_reverse
    if order in ("gpu%", "mem", "cpu%", "time"):
        sign = 1 if reverse else -1

        def rank(process: ProcessRow) -> tuple[float, ...]:
            values = {"gpu%": process.utilization, "mem": process.memory_bytes, "cpu%": process.cpu_percent, "time": process.seconds}
            value = values[order]
            return (inf if value is None else sign * value, -(process.memory_bytes or 0), process.pid)

        return sorted(found, key=rank)
    words = {"pid": lambda one: one.pid, "user": lambda one: (one.user == "", one.user, one.pid)}
    return sorted(found, key=words[order], reverse=reverse) if order in words else found[:: -1 if reverse else 1]


def process_fields(process: ProcessRow) -> Fields:
    """Return what a process is filtered by."""
    return {
        "pid": float(process.pid),
        "user": process.user,
        "program": process.program,
        "command": process.command,
        "device": ",".join(process.devices),
        "holder": process.holder,
        "type": process.type,
        "gpu%": process.utilization,
        "mem": None if process.memory_bytes is None else process.memory_bytes / GIB,
        "cpu%": process.cpu_percent,
        "time": process.seconds,
    }


def process_title(view: NodeView, shown: int, choices: Choices, width: int, style: ScreenStyle) -> Drawn:
    """Draw the title of the table: how many there are, their order, and which are shown."""
    number = f"{shown} of {len(view.processes)}" if shown != len(view.processes) else str(shown)
    right = f"order {HEADINGS[choices.process_order]}" + (" up" if choices.process_reverse else "")
    right += f"  filter {choices.process_filter}" if choices.process_filter else ""
    return rule(f"processes {number}", right, width, style)


class ProcessTable:
    """The table of processes: its columns are found for all rows together.

    Args:
        rows: The processes that are seen.
        width: Columns there are.
        style: What the terminal can show.
    """

    def __init__(self, rows: Sequence[ProcessRow], width: int, style: ScreenStyle) -> None:
        self._width, self._style = width, style
        self._cells = {row.pid: _cells(row) for row in rows}
        room = width - 2
        self._taken: dict[str, int] = {}
        for title in sorted(WIDTHS, key=RANKS.__getitem__):
            texts = [found[title] for found in self._cells.values()]
            if title in ("CPU%", "TIME", "HELD BY") and all(text in ("", "-") for text in texts):
                continue
            columns = min(MOST, max([WIDTHS[title] if title not in ("USER", "DEV", "HELD BY") else len(title), *map(cells, texts)]))
            if columns + SPACE + (LEAST_COMMAND if RANKS[title] > 1 else 0) > room:
                break
            self._taken[title] = columns
            room -= columns + SPACE

    def heading(self, order: str) -> Drawn:
        """Draw the names of the columns."""
        line = Line(self._style, self._width).add(" ")
        for title in WIDTHS:
            if title in self._taken:
                role = "chosen" if title == HEADINGS.get(order) else "head"
                line.add("", width=SPACE if line.left < self._width - 1 else 1)
                line.add(title, role, self._taken[title], right=_right(title))  # type: ignore[arg-type]
        return line.add("", width=SPACE).add("COMMAND", "head").parts()

    def row(self, process: ProcessRow, chosen: bool, active: bool) -> Drawn:
        """Draw a process; the chosen one of the active list is shown so."""
        found = self._cells[process.pid]
        line = Line(self._style, self._width).add(">" if chosen else " ", "head")
        for title in WIDTHS:
            if title in self._taken:
                line.add("", width=SPACE if line.left < self._width - 1 else 1)
                line.add(found[title], width=self._taken[title], right=_right(title))
        line.add("", width=SPACE).add(process.command or process.program or process.why or UNKNOWN, "plain" if process.command else "dim")
        return line.parts(chosen and active)


def _right(title: str) -> bool:
    return title not in ("USER", "DEV", "HELD BY")


def _cells(process: ProcessRow) -> dict[str, str]:
    old = "?" if process.aged else ""
    memory = process.memory_bytes
    return {
        "PID": str(process.pid),
        "USER": process.user or UNKNOWN,
        "DEV": words if cells(words := device_words(process.devices)) <= MOST else f"{len(process.devices)} devices",
        "GPU%": "-" if process.utilization is None else f"{process.utilization:.0f}{old}",
        "MEM/GIB": "-" if memory is None else f"{memory / GIB:.1f}{old}",
        "CPU%": "-" if process.cpu_percent is None else f"{process.cpu_percent:.0f}",
        "TIME": "-" if process.seconds is None else clock(process.seconds),
        "HELD BY": process.holder,
    }


def device_words(keys: Sequence[str]) -> str:
    """Name devices in short: ``0-2,5`` where all are GPUs, ``tpu.0,tpu.1`` else."""
    numbers = [key.removeprefix("gpu.") for key in keys]
    if not all(number.isdecimal() for number in numbers):
        return ",".join(key.replace(".mig.", ".") for key in keys)
    runs: list[list[int]] = []
    for number in sorted(map(int, numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def clock(seconds: float) -> str:
    """Return a length of time as a clock has it: ``02:14``, ``1:02:14``, ``3d04h``."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24}d{hours % 24:02}h"
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes:02}:{rest:02}"
