"""Devices as rows of a table, in as many columns as there is room for; and as a map, where they are many."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import NamedTuple

from accelmetrics.exporters.device_table import BAR as BAR_MARKS, bar
from accelmetrics.schemas.text import GIB, cells
from accelmetrics.views.device_view import STATES, DeviceView
from accelmetrics.views.node_view import NodeView, SourceRow
from accelmetrics.views.terminal.choices import Choices
from accelmetrics.views.terminal.filters import DEVICE_FIELDS, Fields, matching, parse_filter
from accelmetrics.views.terminal.graphs import role_of, spark
from accelmetrics.views.terminal.style import Drawn, Line, Role, ScreenStyle
from accelmetrics.views.trails import Trails

BAR, LEAST_TRAIL, LEAST_NOTE, MOST_NAME = 10, 8, 9, 24
"""Columns of a bar, and of what takes as much as is left."""
NO_TITLE = ""
"""The heading of the bars."""
CELL = 5
"""Columns of a device in the map."""
SPACE = 2
"""Columns between two columns; between numbers one, where there is little room."""
NARROW = 100
WHOLE_NUMBERS = 100.0
"""GiB from which on memory is told without a decimal."""


class Column(NamedTuple):
    """A column of the table.

    Attributes:
        title: Its heading.
        width: Columns that it takes at least.
        rank: Columns of a lower rank are there first.
        cell: What a device has there, and the value that its level is of.
        right: Whether it stands at the right.
    """

    title: str
    width: int
    rank: int
    cell: Callable[[DeviceView], tuple[str, str]]
    right: bool = True


def _number(name: str, unit: str = "") -> Callable[[DeviceView], tuple[str, str]]:
    def cell(device: DeviceView) -> tuple[str, str]:
        value, old = value_of(device, name)
        return ("-" if value is None else f"{value:.0f}{unit}{'?' if old else ''}"), name

    return cell


def value_of(device: DeviceView, name: str) -> tuple[float | None, bool]:
    """Return a value that is there, or was the last before the device fell silent; and whether it is old."""
    value = device.values.get(name)
    if value is not None:
        return value, device.aged
    return device.last.get(name), True


def _memory(device: DeviceView) -> tuple[str, str]:
    used, old = value_of(device, "memory_used_bytes")
    total, _ = value_of(device, "memory_total_bytes")
    if used is None:
        return "-", "memory_percent"
    gib = used / GIB
    text = f"{gib:.1f}" if gib < WHOLE_NUMBERS else f"{gib:.0f}"
    return text + (f"/{total / GIB:.0f}" if total else "") + ("?" if old else ""), "memory_percent"


def _power(device: DeviceView) -> tuple[str, str]:
    watts, old = value_of(device, "power_watts")
    limit, _ = value_of(device, "power_limit_watts")
    if watts is None:
        return "-", "power_watts"
    return f"{watts:.0f}" + (f"/{limit:.0f}" if limit else "") + ("?" if old else ""), "power_watts"


def _utilization(device: DeviceView) -> tuple[str, str]:
    if device.silent is None and "utilization" in device.values:
        return _number("utilization", "%")(device)
    lack = device.silent or device.missing.get("utilization")
    return ("-" if lack is None else lack.word), "utilization"


def _links(device: DeviceView) -> tuple[str, str]:
    generation, lanes = device.values.get("pcie_generation"), device.values.get("pcie_lanes")
    return ("-" if lanes is None else f"{generation:.0f}x{lanes:.0f}" if generation is not None else f"x{lanes:.0f}"), "pcie_lanes"


def _ecc(device: DeviceView) -> tuple[str, str]:
    corrected, uncorrected = device.values.get("corrected_errors"), device.values.get("uncorrected_errors")
    return ("-" if corrected is None and uncorrected is None else f"{corrected or 0:.0f}/{uncorrected or 0:.0f}"), "uncorrected_errors"


def _name(device: DeviceView) -> tuple[str, str]:
    return device.name, ""


def _holders(device: DeviceView) -> tuple[str, str]:
    return ", ".join(device.holders) or "-", ""


NOTE_RANK, BAR_RANK, TRAIL_RANK, CLOCK_RANK = 3, 6, 7, 9
"""Ranks of the note, the bar of utilisation, the history and the clock; what ranks behind those leaves room for longer notes."""
COLUMNS: tuple[Column, ...] = (
    Column("NAME", 10, 12, _name, right=False),
    Column("UTIL", 5, 0, _utilization),
    Column("MEM", 5, 2, _number("memory_percent", "%")),
    Column("USED/GIB", 9, 5, _memory),
    Column("POWER/W", 9, 4, _power),
    Column("TEMP", 5, 1, _number("temperature_celsius", "C")),
    Column("MHZ", 5, CLOCK_RANK, _number("sm_clock_mhz")),
    Column("FAN", 4, 11, _number("fan_percent", "%")),
    Column("PCIE", 6, 13, _links),
    Column("ECC", 7, 14, _ecc),
    Column("XID", 4, 15, _number("last_xid")),
    Column("HELD BY", 12, 10, _holders, right=False),
)
"""In the order of the screen."""

Row = DeviceView | SourceRow
"""What has a row: a device, or a source that does not answer and that no device stands for."""


def row_name(row: Row) -> str:
    """Return what a row is chosen by."""
    return row.key if isinstance(row, DeviceView) else row.name


def shown_devices(view: NodeView, choices: Choices) -> list[Row]:
    """List the rows that are chosen to be shown, in the order that is chosen; silent sources are there always, at the end."""
    devices = list(view.devices)
    if choices.device_filter:
        conditions = parse_filter(choices.device_filter, DEVICE_FIELDS)
        devices = [device for device in devices if matching(conditions, device_fields(device))]
    names = {"util": "utilization", "mem": "memory_percent", "power": "power_watts", "temp": "temperature_celsius"}
    name = names.get(choices.device_order)
    if name is not None:
        devices.sort(
            key=lambda device: (-1 if choices.device_reverse else 1) * -device.values.get(name, -inf if not choices.device_reverse else inf)
        )
    else:
        if choices.device_order == "state":
            devices.sort(key=lambda device: STATES.index(device.state))
        if choices.device_reverse:
            devices.reverse()
    return [*devices, *view.silent]


def device_fields(device: DeviceView) -> Fields:
    """Return what a device is filtered by."""
    values = device.values
    used = values.get("memory_used_bytes")
    return {
        "device": device.key,
        "name": device.name,
        "vendor": device.identity.vendor,
        "kind": device.identity.kind,
        "state": device.state,
        "note": device.note,
        "holder": ",".join(device.holders),
        "uuid": device.identity.uuid,
        "util": values.get("utilization"),
        "gpu%": values.get("utilization"),
        "mem": None if used is None else used / GIB,
        "mem%": values.get("memory_percent"),
        "power": values.get("power_watts"),
        "temp": values.get("temperature_celsius"),
    }


class DeviceTable:
    """The table of devices: its columns are found for all rows together.

    Args:
        rows: The rows.
        trails: The history.
        choices: What is to be seen.
        width: Columns there are.
        style: What the terminal can show.
    """

    def __init__(self, rows: Sequence[Row], trails: Trails, choices: Choices, width: int, style: ScreenStyle) -> None:
        self._trails, self._choices, self._style, self._width = trails, choices, style, width
        devices = [row for row in rows if isinstance(row, DeviceView)]
        self._label = max([5, *(cells(row.label) if isinstance(row, DeviceView) else cells(row.name) for row in rows)])
        self._label = min(self._label, max(8, width // 4))
        self._space = 1 if width < NARROW else SPACE
        widths = {column.title: column.width for column in COLUMNS}
        texts: dict[str, Mapping[str, int]] = {}
        for column in COLUMNS:
            texts[column.title] = {device.key: cells(column.cell(device)[0]) for device in devices}
        for column in COLUMNS:
            longest = max(texts[column.title].values(), default=0)
            if column.title == "UTIL":
                longest = 5
            elif not column.right:
                longest = min(longest, MOST_NAME)
            widths[column.title] = max(len(column.title), longest)
        note = max([LEAST_NOTE, *(cells(row.note if isinstance(row, DeviceView) else row.detail) for row in rows)])
        absent = {
            column.title for column in COLUMNS if column.rank >= BAR_RANK and all(column.cell(device)[0] == "-" for device in devices)
        }
        wanted = sorted(
            [(column.rank, column.title, widths[column.title] + self._gap(column)) for column in COLUMNS if column.title not in absent]
            + [
                (NOTE_RANK, "NOTE", LEAST_NOTE + SPACE),
                (BAR_RANK, NO_TITLE, BAR - 1 + self._space),
                (TRAIL_RANK, "LAST", LEAST_TRAIL + SPACE),
            ]
        )
        room = width - 2 - self._label
        taken: dict[str, int] = {}
        kept = min(note, width // 4) - LEAST_NOTE + LEAST_TRAIL  # for longer notes and a longer history
        for rank, title, columns in wanted:
            if columns + (kept if rank > CLOCK_RANK else 0) > room:
                break
            taken[title] = columns
            room -= columns
        if "LAST" in taken and "NOTE" in taken:
            more = min(room, max(0, min(note, width // 3) - LEAST_NOTE))
            taken["NOTE"] += more
            longer = min(room - more, max(0, 60 - LEAST_TRAIL))
            taken["LAST"] += longer
            taken["NOTE"] += room - more - longer
        elif "NOTE" in taken:
            taken["NOTE"] += room
        self._taken = taken

    def _gap(self, column: Column) -> int:
        """Return the columns before a column."""
        return self._space if column.right else SPACE

    def heading(self, told: str = "") -> Drawn:
        """Draw the names of the columns, and which rows are seen."""
        line = Line(self._style, self._width).add("", width=2).add("DEV", "head", self._label)
        order = {"util": "UTIL", "mem": "MEM", "power": "POWER/W", "temp": "TEMP"}.get(self._choices.device_order)
        for column in COLUMNS:
            width = self._taken.get(column.title)
            if width is not None:
                line.add("", width=self._taken.get(NO_TITLE, 0) if column.title == "UTIL" else 0)
                gap = self._gap(column)
                line.add("", width=gap)
                line.add(column.title, "chosen" if column.title == order else "head", width - gap, right=column.right)
        if "LAST" in self._taken:
            title = f"LAST {self._choices.scale}"
            room = self._taken["LAST"] - SPACE
            line.add("", width=SPACE).add(title if len(title) <= room else "LAST", "head", room)
        if "NOTE" in self._taken:
            line.add("", width=SPACE).add(f"NOTE {told}".rstrip(), "head", self._taken["NOTE"] - SPACE)
        return line.parts()

    def row(self, row: Row, chosen: bool, active: bool) -> Drawn:
        """Draw a row; the chosen one of the active list is shown so."""
        line = Line(self._style, self._width)
        line.add(">" if chosen else " ", "head").add(row.mark or " ", role_of(row.state))
        if isinstance(row, SourceRow):
            line.add(row.name, role_of(row.state), self._label)
            words = f"{row.status.replace('_', ' ')}: {row.detail}" if row.detail else row.status.replace("_", " ")
            line.add("", width=SPACE).add(words, role_of(row.state))
            if row.advice:
                line.add("", width=SPACE).add(row.advice)
            return line.parts(chosen and active)
        line.add(row.label, role_of(row.state), self._label)
        if row.silent is not None and "NOTE" not in self._taken:
            return line.add("", width=1).add(row.note, role_of(row.state)).parts(chosen and active)
        self._cells(line, row)
        return line.parts(chosen and active)

    def _cells(self, line: Line, device: DeviceView) -> None:
        taken = self._taken
        value = device.values.get("utilization")
        for column in COLUMNS:
            width = taken.get(column.title)
            if width is None:
                continue
            text, name = column.cell(device)
            gap = self._gap(column)
            width -= gap
            if column.title == "UTIL":
                if value is None and NO_TITLE in taken:  # the word takes the bar's place too
                    line.add("", width=self._space).add(text, role_of(device.state), BAR - 1 + gap + width)
                    continue
                if value is not None and NO_TITLE in taken:
                    line.add("", width=self._space).add(bar(value, BAR - 1, "#." if self._style.ascii else BAR_MARKS), "ok")
                text = "-" if cells(text) > width else text
            role: Role = "dim" if name not in device.values and text != "-" and column.right else role_of(device.levels.get(name))
            line.add("", width=gap).add(text, role, width, right=column.right)
        if "LAST" in taken:
            width = taken["LAST"] - SPACE
            points = self._trails.points(device.key, "utilization", self._choices.scale, width)
            line.add("", width=SPACE).add(spark(points, 100.0, self._style), "ok", width)
        if "NOTE" in taken:
            line.add("", width=SPACE).add(device.note, role_of(device.state), taken["NOTE"] - SPACE)


def map_lines(rows: Sequence[Row], choices: Choices, width: int, across: int, style: ScreenStyle) -> list[Drawn]:
    """Draw devices as cells of a map: how busy each is, with the mark of its state.

    Args:
        rows: The rows; sources have a line each below the map.
        choices: What is to be seen.
        width: Columns there are.
        across: Devices beside each other.
        style: What the terminal can show.
    """
    devices = [row for row in rows if isinstance(row, DeviceView)]
    label = map_label(devices)
    line = Line(style, width).add("", width=label + 1)
    for number in range(across):
        line.add(str(number), "dim", CELL, right=True)
    lines = [line.parts()]
    for start in range(0, len(devices), across):
        line = Line(style, width).add(devices[start].label, "dim", label).add(" ")
        for device in devices[start : start + across]:
            value = device.values.get("utilization")
            text = f"{device.mark}{'-' if value is None else f'{value:.0f}'}" if device.state != "bad" or value is not None else "X-"
            chosen = device.key == choices.device and choices.pane == "devices"
            line.add(" ").add(text, "chosen" if chosen else "ok" if device.state == "ok" else role_of(device.state), CELL - 1, right=True)
        lines.append(line.parts())
    return lines


def map_label(devices: Sequence[DeviceView]) -> int:
    """Return the columns of the names at the left of the map."""
    return max((cells(device.label) for device in devices), default=5)


def map_across(devices: Sequence[DeviceView], width: int) -> int:
    """Return how many devices stand beside each other in the map: a power of two, at most 16."""
    room = max(1, (width - map_label(devices) - 1) // CELL)
    return next((number for number in (16, 8, 4, 2) if number <= room), 1)


def worst_lines(view: NodeView, rows: Sequence[Row], width: int, height: int, style: ScreenStyle) -> list[Drawn]:
    """Draw the rows that need a look, the worst first."""
    ranked = sorted((row for row in rows if row.state != "ok"), key=lambda row: STATES.index(row.state))
    lines = []
    for row in ranked[:height]:
        line = Line(style, width).add(row.mark, role_of(row.state), 2)
        note = row.note if isinstance(row, DeviceView) else f"{row.status.replace('_', ' ')}: {row.detail}"
        lines.append(
            line.add(row.label if isinstance(row, DeviceView) else row.name, role_of(row.state))
            .add("  ")
            .add(note, role_of(row.state))
            .parts()
        )
    if not ranked:
        lines.append(Line(style, width).add(f"all {view.totals.devices} devices are fine", "ok").parts())
    if len(ranked) > height and height:
        lines[-1] = Line(style, width).add(f"and {len(ranked) - height + 1} more that need a look", "warn").parts()
    return lines + [Line(style, width).parts() for _ in range(height - len(lines))]
