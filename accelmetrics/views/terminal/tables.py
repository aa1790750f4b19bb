"""Tables of devices and processes, with as many columns as fit the screen, and a map of many devices."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from accelmetrics.schemas.text import GIB, STATE_MARKS, STATE_WORDS, bar, cells, consecutive, duration, fixed, of_limit
from accelmetrics.views.device_view import STATES, DeviceView
from accelmetrics.views.node_view import NodeView, ProcessRow, SourceRow
from accelmetrics.views.terminal.choices import DEVICE_FIELDS, PROCESS_FIELDS, Choices, Fields, Pane, by_number, filtered
from accelmetrics.views.terminal.graphs import spark
from accelmetrics.views.terminal.style import Drawn, Line, Role, ScreenStyle, cut, role_of
from accelmetrics.views.trails import Trails

LEAST_BAR, LEAST_TRAIL, LEAST_NOTE, MOST_NAME = 5, 8, 9, 24
"""Smallest width of a bar, a history and a note, and largest width of a name."""
BARRED = " bar"
"""Suffix of a column's heading that names the bar in front of its numbers."""
CELL = 5
"""Width of a device in the map."""
SPACE = 2
"""Spaces between two columns. On narrow screens there is one space between numbers."""
NARROW, WIDE = 100, 160
"""Widths of the screen below which a picture is narrow, and from which it is wide."""
WHOLE_NUMBERS = 100.0
"""Memory in GiB from which it is shown without a decimal."""


@dataclass(frozen=True)
class Column:
    """A column of the table of devices.

    Attributes:
        title: Heading.
        rank: Priority. Columns with a lower rank are placed first.
        value: Name of the value that decides the colour by its warning level; empty for none.
        text: Function that returns the text of a device.
        right: Whether the text is aligned to the right.
        share: Names of the value and its limit for the bar before the text. An empty limit means a value in percent. None for no bar.
        bar_rank: Priority of the bar.
    """

    title: str
    rank: int
    value: str
    text: Callable[[DeviceView], str]
    right: bool = True
    share: tuple[str, str] | None = None
    bar_rank: int = 0


def value_of(device: DeviceView, name: str) -> tuple[float | None, bool]:
    """Return a device's value, or its last one before the device fell silent, and whether it is old."""
    value = device.values.get(name)
    if value is not None:
        return value, device.aged
    return device.last.get(name), True


def _number(device: DeviceView, name: str, unit: str = "") -> str:
    """Return a value with its unit, or ``-``. An old value ends with ``?``."""
    value, old = value_of(device, name)
    return "-" if value is None else f"{fixed(value)}{unit}{'?' if old else ''}"


def _of_limit(device: DeviceView, name: str, limit_name: str, unit: float = 1) -> str:
    """Return a value with its limit: ``45.2/80``. An old value ends with ``?``."""
    value, old = value_of(device, name)
    limit, _ = value_of(device, limit_name)
    if value is None:
        return "-"
    return of_limit(value, limit, unit, int(unit == GIB and value / unit < WHOLE_NUMBERS)) + ("?" if old else "")


def _utilization(device: DeviceView) -> str:
    """Return the utilisation, or a word that says why it is missing."""
    if device.silent is None and "utilization" in device.values:
        return _number(device, "utilization", "%")
    missing = device.silent or device.missing.get("utilization")
    return "-" if missing is None else missing.word


def _links(device: DeviceView) -> str:
    """Return generation and lanes of the PCIe link: ``5x16``."""
    generation, lanes = device.values.get("pcie_generation"), device.values.get("pcie_lanes")
    return "-" if lanes is None else f"{generation:.0f}x{lanes:.0f}" if generation is not None else f"x{lanes:.0f}"


def _ecc(device: DeviceView) -> str:
    """Return the numbers of corrected and uncorrected memory errors: ``3/0``."""
    corrected, uncorrected = device.values.get("corrected_errors"), device.values.get("uncorrected_errors")
    return "-" if corrected is None and uncorrected is None else f"{corrected or 0:.0f}/{uncorrected or 0:.0f}"


NOTE_RANK, TRAIL_RANK, CLOCK_RANK = 3, 7, 10
"""Ranks of the note, the history and the clock. Columns with a higher rank than the history leave room for longer notes."""
COLUMNS: tuple[Column, ...] = (
    Column("NAME", 13, "", lambda device: device.name, right=False),
    Column("UTIL", 0, "utilization", _utilization, share=("utilization", ""), bar_rank=6),
    Column("MEM", 2, "memory_percent", partial(_number, name="memory_percent", unit="%"), share=("memory_percent", ""), bar_rank=8),
    Column("USED/GIB", 5, "memory_percent", partial(_of_limit, name="memory_used_bytes", limit_name="memory_total_bytes", unit=GIB)),
    Column(
        "POWER/W",
        4,
        "power_watts",
        partial(_of_limit, name="power_watts", limit_name="power_limit_watts"),
        share=("power_watts", "power_limit_watts"),
        bar_rank=9,
    ),
    Column("TEMP", 1, "temperature_celsius", partial(_number, name="temperature_celsius", unit="C")),
    Column("MHZ", CLOCK_RANK, "sm_clock_mhz", partial(_number, name="sm_clock_mhz")),
    Column("FAN", 12, "fan_percent", partial(_number, name="fan_percent", unit="%")),
    Column("PCIE", 14, "pcie_lanes", _links),
    Column("ECC", 15, "uncorrected_errors", _ecc),
    Column("XID", 16, "last_xid", partial(_number, name="last_xid")),
    Column("HELD BY", 11, "", lambda device: ", ".join(device.holders) or "-", right=False),
)
"""Columns of the table of devices, from left to right."""
DEVICE_HEADINGS = {"device": "DEV", "state": "NOTE", "util": "UTIL", "mem": "MEM", "power": "POWER/W", "temp": "TEMP"}
"""Heading of the column for each sort order of devices."""
ORDERED_BY = {"util": "utilization", "mem": "memory_percent", "power": "power_watts", "temp": "temperature_celsius"}
"""Value for each sort order by number."""

LEVEL_WORDS = {"temperature_celsius": "hot", "memory_percent": "full"}
"""Word shown after a value above its warning level, so that the warning does not depend on colours."""

Row = DeviceView | SourceRow
"""Content of a row: a device, or a source that does not answer and has no device in the list."""


def column_letters(pane: Pane) -> dict[str, str]:
    """Return the headings of columns that can be hidden, each by the first of its letters that is still free."""
    titles = [title for title in WIDTHS if title != "PID"] if pane == "processes" else [one.title for one in COLUMNS if one.title != "UTIL"]
    letters: dict[str, str] = {}
    for title in titles:
        letters[next(letter for letter in title.lower() if letter.isalpha() and letter not in letters)] = title
    return letters


def row_name(row: Row) -> str:
    """Return the name by which a row is selected: the key of a device, or the name of a source."""
    return row.key if isinstance(row, DeviceView) else row.name


def shown_devices(view: NodeView, choices: Choices) -> list[Row]:
    """Return the devices that match the user's filter, in the chosen order, and then all silent sources."""
    users: dict[str, dict[str, None]] = {}  # by device, in the order of the processes
    for process in view.processes:
        for key in process.devices:
            users.setdefault(key, {})[process.user] = None
    devices = filtered(
        view.devices,
        choices.device_filter,
        DEVICE_FIELDS,
        lambda device: {**device_fields(device), "user": ",".join(users.get(device.key, ()))},
    )
    name = ORDERED_BY.get(choices.device_order)
    if name is not None:
        return [*by_number(devices, lambda device: device.values.get(name), choices.device_reverse), *view.silent]
    if choices.device_order == "state":
        devices.sort(key=lambda device: STATES.index(device.state))
    return [*devices[:: -1 if choices.device_reverse else 1], *view.silent]


def device_fields(device: DeviceView) -> Fields:
    """Return the values of a device by which it is filtered."""
    values = device.values
    used = values.get("memory_used_bytes")
    return {
        "device": device.key,
        "name": device.name,
        "vendor": device.identity.vendor,
        "kind": device.identity.kind,
        "state": ",".join((STATE_WORDS[device.state], device.word, device.state)),
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


def _texts(column: Column, rows: Sequence[Row], hidden: Collection[str], words: bool) -> dict[str, str]:
    """Return the texts of a column by device key.

    A value above its warning level is followed by a word, or by a mark if ``words`` is false.
    """
    marked = column.title in ("TEMP", "USED/GIB" if "MEM" in hidden else "MEM")
    texts, behind = {}, {}
    for device in (row for row in rows if isinstance(row, DeviceView)):
        state = device.levels.get(column.value) if marked else None
        texts[device.key] = column.text(device)
        behind[device.key] = "" if state is None else f" {LEVEL_WORDS[column.value]}" if words else STATE_MARKS["warn"]
    longest = max(map(len, behind.values()), default=0)  # all texts are padded, so that the numbers stay aligned
    return {key: text + behind[key].ljust(longest) for key, text in texts.items()}


def _widths(rows: Sequence[Row], texts: Mapping[str, Mapping[str, str]], width: int, space: int, hidden: Collection[str]) -> dict[str, int]:
    """Return the width of each visible column by heading, including the space before it.

    Args:
        rows: All rows of the table.
        texts: By heading, the texts of the devices.
        width: Columns of the screen.
        space: Spaces between two numbers.
        hidden: Headings of hidden columns.
    """
    devices = [row for row in rows if isinstance(row, DeviceView)]
    wanted = [(NOTE_RANK, "NOTE", LEAST_NOTE + SPACE), (TRAIL_RANK, "LAST", LEAST_TRAIL + SPACE)]
    for column in (one for one in COLUMNS if one.title not in hidden):
        found = list(texts[column.title].values())
        # The less important columns are shown only if some device has a value there.
        if column.rank >= TRAIL_RANK and all(text == "-" for text in found):
            continue
        longest = 5 if column.title == "UTIL" else max(map(cells, found), default=0)
        longest = longest if column.right else min(longest, MOST_NAME)
        wanted.append((column.rank, column.title, max(len(column.title), longest) + (space if column.right else SPACE)))
        if column.share and any(_share(device, column) is not None for device in devices):
            bar_width = LEAST_BAR + (width >= NARROW) + 4 * (width >= WIDE)
            wanted.append((column.bar_rank, column.title + BARRED, bar_width + space))
    note = max([LEAST_NOTE, *(cells(row.note if isinstance(row, DeviceView) else row.detail) for row in rows)])
    kept = min(note, width // 4) - LEAST_NOTE  # columns that longer notes get before the columns of high rank
    room = width - 2 - _label_width(rows, width)
    taken: dict[str, int] = {}
    for rank, title, columns in sorted(wanted):
        # A column of high rank is placed only if there is also room for a longer note and, after the clock, for a longer history.
        longer = (kept if rank > TRAIL_RANK else 0) + (LEAST_TRAIL if rank > CLOCK_RANK else 0)
        if columns + longer > room:
            break
        taken[title] = columns
        room -= columns
    if "LAST" in taken and "NOTE" in taken:
        more = min(room, max(0, min(note, width // 3) - LEAST_NOTE))
        longer = min(room - more, 60 - LEAST_TRAIL)
        taken["LAST"] += longer
        taken["NOTE"] += room - longer
    elif "NOTE" in taken:
        taken["NOTE"] += room
    return taken


def _share(device: DeviceView, column: Column) -> float | None:
    """Return the filled part of a bar in percent; None if the value or its limit is missing."""
    name, of = column.share or ("", "")
    value, whole = device.values.get(name), device.values.get(of) if of else 100.0
    return None if value is None or not whole else 100 * value / whole


def _label_width(rows: Sequence[Row], width: int) -> int:
    """Return the width of the names of rows: that of the longest, but at most a quarter of the screen."""
    return min(max([5, *(cells(row.label if isinstance(row, DeviceView) else row.name) for row in rows)]), max(8, width // 4))


def device_lines(
    rows: Sequence[Row], trails: Trails, choices: Choices, width: int, style: ScreenStyle, position: str = ""
) -> tuple[Drawn, list[Drawn]]:
    """Return the table of devices: heading and lines. The selected row is highlighted if the list is active.

    Args:
        rows: The rows. Column widths fit all of them.
        trails: The history of the node.
        choices: The user's choices.
        width: Columns of the screen.
        style: Capabilities of the terminal.
        position: Position of the rows in the list for the heading, for example ``1-8 of 64``.
    """
    space = 1 if width < NARROW else SPACE
    texts = {column.title: _texts(column, rows, choices.device_hidden, width >= NARROW) for column in COLUMNS}
    taken, label = _widths(rows, texts, width, space, choices.device_hidden), _label_width(rows, width)
    columns = [(column, space if column.right else SPACE) for column in COLUMNS if column.title in taken]
    heading = Line(style, width).add("", width=2).add("DEV", "head", label)
    for column, gap in columns:
        role: Role = "chosen" if column.title == DEVICE_HEADINGS[choices.device_order] else "head"
        heading.add("", width=gap + taken.get(column.title + BARRED, 0)).add(
            column.title, role, taken[column.title] - gap, right=column.right
        )
    if "LAST" in taken:
        title, room = choices.stretch if choices.until_ns else f"LAST {choices.scale}", taken["LAST"] - SPACE
        heading.add("", width=SPACE).add(title if len(title) <= room else "PAST" if choices.until_ns else "LAST", "head", room)
    if "NOTE" in taken:
        heading.add("", width=SPACE).add(f"NOTE {position}".rstrip(), "head", taken["NOTE"] - SPACE)
    lines = []
    for row in rows:
        role, chosen = role_of(row.state), row_name(row) == choices.device
        line = Line(style, width).add(">" if chosen else " ", "head").add(row.mark or " ", role)
        line.add(row.label if isinstance(row, DeviceView) else row.name, role, label)
        # A source has no values, so its message takes the whole row.
        if isinstance(row, SourceRow):
            words = f"{row.status.replace('_', ' ')}: {row.detail}" if row.detail else row.status.replace("_", " ")
            line.add("", width=SPACE).add(words, role).add("", width=SPACE if row.advice else 0).add(row.advice)
        elif row.silent is not None and "NOTE" not in taken:
            line.add("", width=1).add(row.note, role)
        else:
            for column, gap in columns:
                text = texts[column.title][row.key]
                _add_cell(line, column, row, text, (gap, taken[column.title] - gap, taken.get(column.title + BARRED, 0)), style)
            if "LAST" in taken:
                room = taken["LAST"] - SPACE
                points = trails.points(row.key, "utilization", choices.scale, room)
                line.add("", width=SPACE).add(spark(points, 100.0, style), "ok", room)
            if "NOTE" in taken:
                line.add("", width=SPACE).add(row.note, role, taken["NOTE"] - SPACE)
        lines.append(line.parts(chosen and choices.pane == "devices"))
    return heading.parts(), lines


def _add_cell(line: Line, column: Column, device: DeviceView, text: str, room: tuple[int, int, int], style: ScreenStyle) -> None:
    """Add one cell of the table of devices to a line: bar and text.

    Args:
        line: The line of the device.
        column: The column.
        device: The device.
        text: Text of the cell.
        room: Space before the text and the bar, width of the text, and width of the bar with its space (0 for no bar).
        style: Capabilities of the terminal.
    """
    (gap, width, barred), share = room, _share(device, column)
    if column.title == "UTIL" and share is None and barred:  # a word such as "timed out" needs the room of the bar too
        line.add("", width=gap).add(text, role_of(device.state), barred + width)
        return
    if share is None:
        line.add("", width=barred)
    elif barred:
        drawn, level = bar(share, barred - gap, style.bar), device.levels.get(column.value)
        full = drawn.rstrip(style.bar[1])
        line.add("", width=gap).add(full, "ok" if level is None else role_of(level)).add(drawn[len(full) :], "dim")
    text = "-" if column.title == "UTIL" and cells(text) > width else text
    old = column.value not in device.values and text != "-" and column.right
    line.add("", width=gap).add(text, "dim" if old else role_of(device.levels.get(column.value)), width, right=column.right)


# The map


def map_lines(rows: Sequence[Row], choices: Choices, width: int, across: int, style: ScreenStyle) -> list[Drawn]:
    """Return a map of devices: each cell has the utilisation and the mark of the state.

    Args:
        rows: The rows. Only devices are drawn, not sources.
        choices: The user's choices.
        width: Columns of the screen.
        across: Devices in a row of the map.
        style: Capabilities of the terminal.
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
            text = f"{device.mark}{'-' if value is None else fixed(value)}" if device.state != "bad" or value is not None else "X-"
            chosen = device.key == choices.device and choices.pane == "devices"
            line.add(" ").add(text, "chosen" if chosen else "ok" if device.state == "ok" else role_of(device.state), CELL - 1, right=True)
        lines.append(line.parts())
    return lines


def map_label(devices: Sequence[DeviceView]) -> int:
    """Return the width of the names at the left of the map."""
    return max((cells(device.label) for device in devices), default=5)


def map_across(devices: Sequence[DeviceView], width: int) -> int:
    """Return the number of devices in a row of the map: a power of two, at most 16."""
    room = max(1, (width - map_label(devices) - 1) // CELL)
    return next((number for number in (16, 8, 4, 2) if number <= room), 1)


def worst_lines(view: NodeView, rows: Sequence[Row], width: int, height: int, style: ScreenStyle) -> list[Drawn]:
    """Return a line for each row that is not ``ok``, the worst first. The last line counts the rows that do not fit."""
    ranked = sorted((row for row in rows if row.state != "ok"), key=lambda row: STATES.index(row.state))
    lines = []
    for row in ranked[:height]:
        role = role_of(row.state)
        name, note = (row.label, row.note) if isinstance(row, DeviceView) else (row.name, f"{row.status.replace('_', ' ')}: {row.detail}")
        lines.append(Line(style, width).add(row.mark, role, 2).add(name, role).add("  ").add(note, role).parts())
    if not ranked:
        lines.append(Line(style, width).add(f"all {len(view.summary.devices)} devices are fine", "ok").parts())
    if len(ranked) > height and height:
        lines[-1] = Line(style, width).add(f"and {len(ranked) - height + 1} more that need a look", "warn").parts()
    return lines


# Processes

WIDTHS = {"PID": 7, "USER": 8, "DEV": 6, "GPU%": 5, "MEM/GIB": 7, "CPU%": 5, "TIME": 8, "HELD BY": 10}
RANKS = {"PID": 0, "GPU%": 1, "MEM/GIB": 2, "DEV": 3, "USER": 4, "TIME": 6, "CPU%": 5, "HELD BY": 7}
"""Smallest width and rank of each column of processes. Columns with a lower rank are placed first; the command gets the rest."""
WORDS = ("USER", "DEV", "HELD BY")
"""Columns of text, which are aligned to the left and only as wide as their texts."""
LEAST_COMMAND = 12
"""Smallest width of the command."""
MOST = 16
"""Largest width of user, devices and holder."""
HEADINGS = {"gpu%": "GPU%", "mem": "MEM/GIB", "cpu%": "CPU%", "time": "TIME", "pid": "PID", "user": "USER", "device": "DEV"}
"""Heading of the column for each sort order of processes."""
UNKNOWN = "?"


def shown_processes(view: NodeView, choices: Choices) -> list[ProcessRow]:
    """Return the processes that match the user's filter, in the chosen order. Unknown numbers come last."""
    found = filtered(view.processes, choices.process_filter, PROCESS_FIELDS, process_fields)
    order, reverse = choices.process_order, choices.process_reverse
    if order in ("gpu%", "mem", "cpu%", "time"):
        # The sort below is stable: processes with equal numbers stay in the order of memory and process id.
        found.sort(key=lambda process: (-(process.memory_bytes or 0), process.pid))
        return by_number(found, lambda process: process_fields(process)[order], reverse)
    words = {"pid": lambda one: one.pid, "user": lambda one: (one.user == "", one.user, one.pid)}
    return sorted(found, key=words[order], reverse=reverse) if order in words else found[:: -1 if reverse else 1]


def process_fields(process: ProcessRow) -> Fields:
    """Return the values of a process by which it is filtered and sorted."""
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


def process_lines(
    rows: Sequence[ProcessRow], choices: Choices, width: int, style: ScreenStyle, now_ns: int
) -> tuple[Drawn, list[Drawn], int]:
    """Return the table of processes. The selected row is highlighted if the list is active.

    While the table is scrolled sideways, every column has its full width, and the process ids stay in place.

    Args:
        rows: The visible processes. Column widths fit all of them.
        choices: The user's choices.
        width: Columns of the screen.
        style: Capabilities of the terminal.
        now_ns: Time of the view, in nanoseconds since 1970.

    Returns:
        The heading, the lines, and the number of columns scrolled away at the left, limited to the end of the longest line.
    """
    texts = [_process_cells(row) for row in rows]
    commands = [row.command or row.program or row.why or UNKNOWN for row in rows]
    for number, row in enumerate(rows):
        if row.seen_ns is not None:
            commands[number] = f"last seen {duration((now_ns - row.seen_ns) / 1e9)} ago: {commands[number]}"
    sideways = choices.process_left > 0
    room = sys.maxsize if sideways else width - 2
    taken: dict[str, int] = {}
    for title in sorted(WIDTHS.keys() - choices.process_hidden, key=RANKS.__getitem__):
        column = [found[title] for found in texts]
        if title in ("CPU%", "TIME", "HELD BY") and all(text in ("", "-") for text in column):
            continue
        columns = min(sys.maxsize if sideways else MOST, max([len(title) if title in WORDS else WIDTHS[title], *map(cells, column)]))
        if columns + SPACE + (LEAST_COMMAND if RANKS[title] > 1 else 0) > room:
            break
        taken[title] = columns
        room -= columns + SPACE
    titles = [title for title in WIDTHS if title in taken]
    kept = 2 + taken.get("PID", 0) + SPACE
    whole = 2 + sum(taken.values()) + SPACE * len(taken) + max(map(cells, commands), default=0) if sideways else width
    left = min(choices.process_left, max(0, whole - width))

    # While the table is scrolled, the line has its full length; the mark and the process id are cut from it separately and stay in place.
    def line(mark: str, found: dict[str, str], roles: dict[str, Role], command: str, role: Role, chosen: bool = False) -> Drawn:
        drawn = Line(style, whole).add(mark, "head", 2)
        for title in titles:
            drawn.add("", width=SPACE if title != titles[0] else 0)
            drawn.add(found[title], roles.get(title, "plain"), taken[title], right=title not in WORDS)
        parts = drawn.add("", width=SPACE).add(command, role).parts(chosen)
        if not sideways:
            return parts
        return [*cut(parts, 0, kept), *cut(parts, kept + left, width - kept)]

    roles: dict[str, Role] = {title: "chosen" if title == HEADINGS[choices.process_order] else "head" for title in titles}
    heading = line("", {title: title for title in titles}, roles, "COMMAND", "head")
    lines = []
    for row, found, command in zip(rows, texts, commands, strict=True):
        chosen = choices.pane == "processes" and row.pid == choices.process
        mark = (">" if chosen else " ") + ("*" if row.pid in choices.tagged else " ")
        lines.append(line(mark, found, {}, command, "plain" if row.command else "dim", chosen))
    return heading, lines, left


def _process_cells(process: ProcessRow) -> dict[str, str]:
    """Return the texts of a process by heading. Numbers from an old reading end with ``?``."""
    old = "?" if process.aged else ""
    memory = process.memory_bytes
    return {
        "PID": str(process.pid),
        "USER": process.user or UNKNOWN,
        "DEV": words if cells(words := device_words(process.devices)) <= MOST else f"{len(process.devices)} devices",
        "GPU%": "-" if process.utilization is None else f"{fixed(process.utilization)}{old}",
        "MEM/GIB": "-" if memory is None else f"{fixed(memory / GIB, 1)}{old}",
        "CPU%": "-" if process.cpu_percent is None else fixed(process.cpu_percent),
        "TIME": "-" if process.seconds is None else duration(process.seconds),
        "HELD BY": process.holder,
    }


def device_words(keys: Sequence[str]) -> str:
    """Return device keys in short form: ``0-2,5`` if all are GPUs, else ``tpu.0,tpu.1``."""
    numbers = [key.removeprefix("gpu.") for key in keys]
    if not all(number.isdecimal() for number in numbers):
        return ",".join(key.replace(".mig.", ".") for key in keys)
    runs = consecutive(f"gpu.{number}" for number in sorted(map(int, numbers)))
    ends = ((run[0].removeprefix("gpu."), run[-1].removeprefix("gpu.")) for run in runs)
    return ",".join(first if first == last else f"{first}-{last}" for first, last in ends)
