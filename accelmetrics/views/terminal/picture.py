"""The terminal picture of one node: exactly as many lines as the terminal has, none wider than it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from accelmetrics.schemas.record import SEVERITIES
from accelmetrics.schemas.text import SEVERITY_MARKS, cells, counted, duration, memory, percent, quantity, watts
from accelmetrics.views.device_view import DeviceView, ValueRow
from accelmetrics.views.node_view import NodeView
from accelmetrics.views.summaries import reasons
from accelmetrics.views.terminal.choices import ASCENDING, HIDDEN, KEYS, USUAL_CHOICES, Choices, Pane, order_letters
from accelmetrics.views.terminal.graphs import LEAST_HEIGHT, Series, axes_of, graph, history_graph, line_graph, points_across, top_of
from accelmetrics.views.terminal.overlays import (
    absent_lines,
    alike,
    detail_lines,
    dialog_lines,
    finding_line,
    finding_lines,
    help_lines,
    process_detail_lines,
    summary_lines,
)
from accelmetrics.views.terminal.style import SERIES, USUAL_STYLE, Drawn, Line, Role, ScreenStyle, ansi, beside, padded, rule, shares
from accelmetrics.views.terminal.tables import (
    CELL,
    DEVICE_HEADINGS,
    HEADINGS,
    SPACE,
    column_letters,
    device_lines,
    map_across,
    map_label,
    map_lines,
    process_lines,
    row_name,
    shown_devices,
    shown_processes,
    worst_lines,
)
from accelmetrics.views.trails import HOST_KEY, HOST_VALUES, OF_HOST, SPANS, TRAINING_VALUES, TrailPoint, Trails, metric_row, training_key

USUAL_SIZE = os.terminal_size((80, 24))
MANY = 16
"""Number of devices from which they may be drawn as a map."""
SHARE = 0.6
"""Largest share of the rows for a list of many devices. A longer list becomes a map."""
TWO_COLUMNS = 180
"""Screen width from which many devices form two lists side by side, and a single device has its details next to its graphs."""
ROOMY = 28
"""Rows of the body from which the host has its own line."""
LINES = 4
"""Largest number of lines in one training graph."""
ROOM = 100
"""Width from which the title of a single training graph names the time span."""
FINDINGS = 4
"""Largest number of findings below the devices."""
LEAST_WORST = 24
"""Smallest width of the list of the worst devices next to the map. If there is less room, it is below the map."""


class Spot(NamedTuple):
    """A clickable part of the screen: a row, a cell of the map, or the heading of a column.

    Attributes:
        line: Row of the screen, from 0.
        left: First column, from 0.
        right: Last column plus one.
        pane: The list that it belongs to.
        name: Device, node or process that a click selects; None for a heading.
        order: Sort order that a click on a heading selects.
    """

    line: int
    left: int
    right: int
    pane: Pane
    name: str | int | None = None
    order: str = ""


@dataclass(frozen=True)
class Picture:
    """The content of the screen.

    Attributes:
        lines: Exactly as many lines as the terminal has.
        place: Row and column of the cursor, from 0: the selected row, or the text that the user is typing. Braille displays follow it.
        choices: The user's choices, corrected to existing rows and to the possible scroll positions.
        devices: Keys of the devices and names of the silent sources that can be selected, in screen order.
        processes: Ids of the processes that can be selected, in screen order.
        nodes: Names of the nodes that can be selected, in screen order.
        across: Devices in a row of the map; 1 for a list.
        page: Number of visible rows of the active list or the overlay.
        spots: Clickable parts.
        programs: Programs with training graphs.
        times: Times of the oldest and the newest reading that graphs can show, in nanoseconds since 1970.
    """

    lines: tuple[Drawn, ...]
    place: tuple[int, int]
    choices: Choices
    devices: tuple[str, ...] = ()
    processes: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    across: int = 1
    page: int = 1
    spots: tuple[Spot, ...] = ()
    programs: tuple[str, ...] = ()
    times: tuple[int, int] = (0, 0)

    def ansi(self, style: ScreenStyle) -> list[str]:
        """Return the lines with escape sequences for a terminal."""
        return [ansi(line, style) for line in self.lines]


def picture(
    view: NodeView | None,
    trails: Trails,
    choices: Choices = USUAL_CHOICES,
    size: os.terminal_size = USUAL_SIZE,
    style: ScreenStyle = USUAL_STYLE,
) -> Picture:
    """Return the picture of a node.

    Args:
        view: The node; None before the first reading.
        trails: The history of the node.
        choices: The user's choices.
        size: Size of the terminal.
        style: Capabilities of the terminal.

    Raises:
        UnknownNameError: A filter has an unknown field.
        InvalidOptionError: A filter compares a number with a value that is no number.
    """
    width, height = size
    if view is None:
        line, column = foot(choices, "", width, style)
        lines = [Line(style, width).add("reading …").parts()]
        return Picture(filled(lines, line, size), (0, 0) if column is None else (height - 1, column), choices)
    body = _Body(view, trails, choices, width, max(1, height - (height > 1) - (height > 2)), style)
    # The host's values are in the first line only if the body has no line for them.
    top = [head(view, body.choices, width, style, not body.host)] if height > 1 else []
    line, column = foot(body.choices, body.note, width, style)
    row, at = body.place
    place = (min(height - 1, row + len(top)), min(at, width - 1)) if column is None else (height - 1, column)
    return Picture(
        filled([*top, *body.lines], line if height > 2 else None, size),
        place,
        body.choices,
        devices=body.names,
        processes=body.pids,
        across=body.across,
        page=body.page,
        spots=tuple(spot._replace(line=spot.line + len(top)) for spot in body.spots),
        programs=body.programs,
        times=(trails.oldest_ns, trails.newest_ns),
    )


def filled(lines: Sequence[Drawn], last: Drawn | None, size: os.terminal_size) -> tuple[Drawn, ...]:
    """Return exactly as many lines as the terminal has rows. ``last`` is the bottom line."""
    ends = [] if last is None else [last]
    return tuple([*padded(lines, max(0, size.lines - len(ends)), size.columns), *ends][: size.lines])


def window(number: int, chosen: int, top: int, room: int) -> int:
    """Return the number of rows to scroll away at the top.

    The selected row is visible, and no row of the screen stays empty while there are further rows.

    Args:
        number: Number of rows.
        chosen: Index of the selected row.
        top: Rows scrolled away so far. They change only if necessary.
        room: Number of rows on the screen.
    """
    top = min(top, chosen)
    top = max(top, chosen - room + 1)
    return max(0, min(top, number - room))


def scrolled(lines: list[Drawn], choices: Choices, room: int) -> tuple[list[Drawn], int, str]:
    """Return the visible lines of an overlay, the number of lines above them, and their position: ``1-20 of 64``."""
    top = max(0, min(choices.overlay_top, len(lines) - room))
    seen = lines[top : top + room]
    return seen, top, f"{top + 1}-{top + len(seen)} of {len(lines)}" if len(seen) < len(lines) else ""


class _Body:
    """The lines between the first and the last line of the screen.

    Attributes:
        lines: The lines.
        place: Row and column of the cursor.
        choices: The user's choices, corrected to existing rows.
        note: Note for the last line of the screen.
        names: Devices and silent sources that can be selected.
        pids: Processes that can be selected.
        across: Devices in a row of the map.
        page: Number of visible rows of the active list.
        host: Whether the host has its own line.
        spots: Clickable parts.
        programs: Programs with training graphs.
    """

    def __init__(self, view: NodeView, trails: Trails, choices: Choices, width: int, height: int, style: ScreenStyle) -> None:
        self._view, self._trails, self._width, self._height, self._style = view, trails, width, height, style
        self._rows = shown_devices(view, choices)
        self._shown = shown_processes(view, choices)
        self._findings = alike(view.findings.current)
        logged = trails.programs
        self.programs = tuple(logged)
        program = choices.training if choices.training in logged else next(iter(logged), "")
        self._training = (program, logged[program]) if logged and choices.training != HIDDEN else None
        self.names = tuple(map(row_name, self._rows))
        self.pids = tuple(process.pid for process in self._shown)
        self.choices = replace(
            choices,
            device=choices.device if choices.device in self.names else "",
            # An opened process stays selected when it ends.
            process=choices.process if choices.process in self.pids or choices.overlay == "process" else next(iter(self.pids), 0),
            tagged=choices.tagged.intersection(one.pid for one in view.processes),
        )
        self.note, self.place, self.across, self.page = "", (0, 0), 1, 1
        self.lines: list[Drawn] = []
        self.spots: list[Spot] = []
        self.host = False
        if choices.overlay:
            self._overlay()
        else:
            self._draw()
        if choices.until_ns and not self.note:
            self.note = "0 returns to now"
        # A question covers the bottom of the body, so that the lists above stay visible.
        if choices.dialog:
            asked = dialog_lines(choices.dialog, width, style)[:height]
            self.lines = [*padded(self.lines, height - len(asked), width), *asked]
            self.place = (max(0, height - 2), 2)

    def _overlay(self) -> None:
        """Draw the visible part of the open overlay."""
        view, width, style, choices = self._view, self._width, self._style, self.choices
        if choices.overlay == "help":
            lines = help_lines(choices, width, style)
        elif choices.overlay == "findings":
            lines = finding_lines(view, width, style)
        elif choices.overlay == "process":
            lines = process_detail_lines(view, self._trails, choices, (width, self._height), style)
        elif choices.overlay == "summary":
            lines = summary_lines(choices, width, style)
        else:
            row = next((row for row in self._rows if row_name(row) == choices.device), next(iter(self._rows), None))
            lines = absent_lines(view, width, style) if row is None else detail_lines(view, row, self._trails, choices, width, style)
        self.lines, top, self.note = scrolled(lines, choices, self._height)
        self.choices = replace(choices, overlay_top=top)
        self.page = self._height

    def _draw(self) -> None:
        """Draw the lists and graphs. Devices get their rows first; findings, graphs and processes share the rest."""
        view, width, height, style = self._view, self._width, self._height, self._style
        devices = [row for row in self._rows if isinstance(row, DeviceView)]
        if self.choices.device_filter:
            self.note = f"{len(devices)} of {len(view.devices)} devices: {self.choices.device_filter}"
        if not (view.devices or view.silent):
            self._host_alone()
            return
        mapped, columns = self._form(len(devices))
        # A list always has a selected device; in the map no selection means all devices.
        if not mapped and not self.choices.device and self.names:
            self.choices = replace(self.choices, device=self.names[0])
        across = map_across(devices, width)
        side = width - map_label(devices) - 1 - across * CELL - 2
        wanted = -(-len(self._rows) // columns) + 1
        if mapped:
            wanted = -(-len(devices) // across) + 1 + (0 if side >= LEAST_WORST else 4)
        self.host = height >= ROOMY
        listed = min(max(wanted, 2), height - self.host - (5 if height >= 12 else 0))
        rest = height - self.host - listed
        findings = min(FINDINGS, len(self._findings)) + 1 if self._findings and rest >= 18 else 0
        rest -= findings
        processes = min(rest, 2 + max(1, len(self._shown)), max(3, round(rest * SHARE if height < ROOMY else rest / 2)))
        if self._training:
            processes = min(processes, max(3, rest // 3))
        if rest - processes <= LEAST_HEIGHT or not view.devices:
            processes = rest
        if self.host:
            self.lines.append(host_line(view, width, style))
        if not self._rows:
            self.lines += padded(
                [Line(style, width).add(f"the filter hides all {len(view.devices)} devices", "warn").parts()], listed, width
            )
        elif mapped:
            self._map(devices, across, side, listed)
        else:
            self._list(listed, columns)
        if findings:
            self.lines.append(
                rule(f"findings {len(view.findings)}", "f shows all" if len(self._findings) >= findings else "", width, style)
            )
            self.lines += [finding_line(finding, width, style) for finding in self._findings[: findings - 1]]
        if rest > processes:
            self._graphs(devices, rest - processes, mapped)
        if processes:
            self._processes(processes)

    def _host_alone(self) -> None:
        """Draw a machine without accelerators: the reasons, and graphs of the host."""
        view, choices, width, height, style = self._view, self.choices, self._width, self._height, self._style
        self.host = True
        self.lines.append(host_line(view, width, style))
        why = absent_lines(view, width, style)
        room = min(len(why), max(2, height // 5))
        metrics = [row for name, row in HOST_VALUES.items() if name in view.host]
        across = min(max(1, width // 38), 3 if len(metrics) != 4 else 2)
        trained = self._training_rows(height - 1 - room)
        rest = height - 1 - room - trained
        down = min(-(-len(metrics) // across), max(0, rest // LEAST_HEIGHT))
        self.lines += why[:room]
        for line in range(down):
            shown = metrics[line * across : (line + 1) * across]
            sizes = [(columns, rest // down + (line < rest % down)) for columns in shares(width, len(shown))]
            self.lines += beside(
                [history_graph(self._trails, HOST_KEY, row, choices, size, style) for row, size in zip(shown, sizes, strict=True)]
            )
        self.lines += self._training_graphs(across, (width, trained))
        self.lines = padded(self.lines, height, width)

    def _form(self, devices: int) -> tuple[bool, int]:
        """Return whether the devices are drawn as a map, and otherwise the number of lists side by side."""
        if self.choices.form == "map" and devices:
            return True, 1
        fits = devices + 1 <= SHARE * self._height
        if not fits and self._width >= TWO_COLUMNS and -(-devices // 2) + 1 <= (SHARE + 0.1) * self._height:
            return False, 2
        return not (fits or devices < MANY or self.choices.form == "list"), 1

    def _list(self, height: int, columns: int) -> None:
        """Draw the devices as a table, or as two tables side by side."""
        headed = int(height > 2 or (height == 2 and len(self._rows) == 1))
        room = max(1, height - headed)
        chosen = self.names.index(self.choices.device) if self.choices.device in self.names else 0
        top = window(len(self._rows), chosen, self.choices.device_top, room * columns)
        rows = self._rows[top : top + room * columns]
        self.choices = replace(self.choices, device_top=top)
        width = (self._width - 2 * (columns - 1)) // columns
        position = f"{top + 1}-{top + len(rows)} of {len(self._rows)}" if len(rows) < len(self._rows) else ""
        heading, lines = device_lines(rows, self._trails, self.choices, width, self._style, position)
        blocks = [padded([heading] * headed + lines[start : start + room], height, width) for start in range(0, room * columns, room)]
        for number, name in enumerate(self.names[top : top + len(rows)]):
            left = number // room * (width + 2)
            self.spots.append(Spot(len(self.lines) + headed + number % room, left, left + width, "devices", name))
        if headed:
            self.spots += heading_spots(heading, len(self.lines), "devices", DEVICE_HEADINGS)
        if self.choices.pane == "devices":
            self.place = (len(self.lines) + headed + (chosen - top) % room, (chosen - top) // room * (width + 2))
            self.page = room * columns
        # The columns that the division leaves over stay empty at the right.
        self.lines += [[*line, (" " * (self._width - columns * (width + 2) + 2), "plain")] for line in beside(blocks)]

    def _map(self, devices: Sequence[DeviceView], across: int, side: int, height: int) -> None:
        """Draw the devices as a map, with the worst ones next to it or below it."""
        width, style = self._width, self._style
        full = map_lines(self._rows, self.choices, width if side < LEAST_WORST else width - side - 2, across, style)
        chosen = next((number for number, device in enumerate(devices) if device.key == self.choices.device), 0)
        seen = height if side >= LEAST_WORST or height <= len(full) else len(full)
        top = window(len(full) - 1, chosen // across, self.choices.device_top, seen - 1)
        self.choices = replace(self.choices, device_top=top)
        lines = [full[0], *full[top + 1 : top + seen]][:height]
        for number, device in enumerate(devices):
            line, left = number // across - top, map_label(devices) + 1 + number % across * CELL
            if 0 <= line < len(lines) - 1:
                self.spots.append(Spot(len(self.lines) + 1 + line, left, left + CELL, "devices", device.key))
        # The first line of the map is the heading, so its rows start one line below.
        if self.choices.pane == "devices":
            self.place = (len(self.lines) + 1 + chosen // across - top, map_label(devices) + 1 + chosen % across * CELL)
            self.page = seen - 1
        self.across = across
        if side >= LEAST_WORST:
            worst = padded(worst_lines(self._view, self._rows, side, height, style), height, side)
            lines = beside((padded(lines, height, width - side - 2), worst))
        elif height > len(lines):
            lines += padded(worst_lines(self._view, self._rows, width, height - len(lines), style), height - len(lines), width)
        self.lines += lines

    def _graphs(self, devices: Sequence[DeviceView], height: int, mapped: bool) -> None:
        """Draw the graph of the chosen metrics, further graphs if there is room, and the training."""
        view, style, choices, width = self._view, self._style, self.choices, self._width
        one = next((device for device in devices if device.key == choices.device), None)
        whole = [device for device in devices if not device.parent] or list(devices)
        together = choices.graphs == "band" or (one is None and mapped)
        one = one or (whole[0] if whole else None)
        if one is None:
            self.lines += padded([], height, width)
            return
        trained = self._training_rows(height)
        whole_height, height = height, height - trained
        single = len(self._rows) == 1
        left = 60 if single and width >= TWO_COLUMNS else 0
        right = width - left - 2 * (left > 0)
        given = {*one.values, *one.metrics, *one.last}
        first = tuple(dict.fromkeys((*choices.beside, choices.metric)))
        panels = [first, *((name,) for name in self._trails.metrics if name not in first and (together or name in given))]
        across = min(max(1, min(3, (width - left) // (40 if single else 60))), len(panels))
        alone = len(first) > 1  # several metrics get a row of graphs alone, because their legend is long
        grid = [panels[:1]] * alone + [panels[start : start + across] for start in range(alone, len(panels), across)]
        down = min(max(1, min(2, height // (10 if len(devices) > 1 else 7))), len(grid)) if height else 0
        lines: list[Drawn] = []
        for line, shown in enumerate(grid[:down]):
            sizes = [(columns, height // down + (line < height % down)) for columns in shares(right, len(shown))]
            lines += beside([self._graph(names, one, whole, size, together) for names, size in zip(shown, sizes, strict=True)])
        lines += self._training_graphs(across, (right, trained))
        if left:
            details = padded(detail_lines(view, one, None, choices, left, style), whole_height, left)
            lines = beside((details, padded(lines, whole_height, right)))
        self.lines += lines

    def _graph(
        self, names: Sequence[str], one: DeviceView, whole: Sequence[DeviceView], size: tuple[int, int], together: bool
    ) -> list[Drawn]:
        """Return one graph.

        Several metrics are drawn as lines for one device and the host. A single metric is drawn for one device, for the host, as lines for
        several devices, or as a band over all devices.

        Args:
            names: The metrics.
            one: The selected device.
            whole: All devices without partitions.
            size: Columns and rows.
            together: Whether a single metric is drawn as a band (minimum, median, maximum) over all devices.
        """
        view, trails, style, choices = self._view, self._trails, self._style, self.choices
        scale, seconds, until = choices.scale, SPANS[choices.scale], choices.until_ns
        rows = [metric_row(view, name) for name in names]
        row, hosts = rows[-1], [name.startswith(OF_HOST) for name in names]

        def points(row: ValueRow, device: DeviceView) -> Sequence[TrailPoint]:
            key = HOST_KEY if row.name.startswith(OF_HOST) else device.key
            return trails.points(key, row.name.removeprefix(OF_HOST), scale, wanted)

        if len(rows) > 1:
            wanted = points_across(size[0], style, axes_of([each.unit for each in rows]))
            labels = [f"host {each.label}" if of_host else each.label for each, of_host in zip(rows, hosts, strict=True)]
            drawn = [Series(label, points(each, one), each.unit, top_of(each, [one])) for label, each in zip(labels, rows, strict=True)]
            return line_graph(f"{one.label}, {choices.stretch}", drawn, row.unit, None, seconds, size, style, until)
        wanted = points_across(size[0], style)
        if choices.graphs == "lines" and len(whole) > 1 and not hosts[-1]:
            # The selected device is first, because the first line is drawn on top.
            first = [one, *(device for device in whole if device is not one)][:SERIES]
            drawn = [Series(device.label, points(row, device)) for device in first]
            return line_graph(f"{row.label}, {choices.stretch}", drawn, row.unit, top_of(row, first), seconds, size, style, until)
        band = together and not hosts[-1]
        about = f"of {len(whole)} devices: least, median, greatest" if band else HOST_KEY if hosts[-1] else one.label
        found = trails.band((device.key for device in whole), row.name, scale, wanted) if band else points(row, one)
        row = replace(row, top=top_of(row, whole if band else [one]))
        return graph(row, f"{about}, {choices.stretch}", found, size, style, band, seconds, until)

    def _training_rows(self, height: int) -> int:
        """Return the number of graph rows for the training: half, or all if two graphs do not fit; 0 without training."""
        return 0 if not self._training else height if height < 2 * LEAST_HEIGHT + 1 else (height + 1) // 2

    def _training_graphs(self, across: int, size: tuple[int, int]) -> list[Drawn]:
        """Return the training graphs, with the columns and time span of the device graphs. Findings are marked at the bottom."""
        if self._training is None or size[1] < LEAST_HEIGHT:
            return []
        trails, style, choices = self._trails, self._style, self.choices
        program, logged = self._training
        across = min(across, len(logged))
        names = logged[: LINES * across]
        # A program is named only if there are several, and without the name of this machine, which the first line shows.
        program = program.removesuffix(f" of {self._view.hostname}") if len(self.programs) > 1 else ""
        title = " ".join(filter(None, ("training", program))) + (f", {choices.stretch}" if across > 1 or size[0] >= ROOM else "")
        parts: list[list[Drawn]] = []
        for number, columns in enumerate(shares(size[0], across)):
            wanted = points_across(columns, style)
            marks = tuple(self._finding_marks(wanted).items())
            series = []
            for name in names[len(names) * number // across : len(names) * (number + 1) // across]:
                points = trails.points(training_key(self._training[0]), name, choices.scale, wanted)
                series.append(Series(TRAINING_VALUES[name].label, points, TRAINING_VALUES[name].unit, own=True, marks=marks))
            parts.append(line_graph(title, series, "1", None, SPANS[choices.scale], (columns, size[1]), style, choices.until_ns))
        return beside(parts)

    def _finding_marks(self, points: int) -> dict[int, tuple[str, Role]]:
        """Return a mark for each point of a graph at which a finding began: the more severe one if there are several."""
        found: dict[int, tuple[str, Role]] = {}
        # Critical findings come second, so that they replace warnings at the same point.
        for severity in ("warning", "critical"):
            for finding in (*self._view.findings.ended, *self._view.findings.current):
                place = self._trails.place(finding.since_ns, self.choices.scale, points)
                if finding.severity == severity and 0 <= place < points:
                    found[place] = SEVERITY_MARKS[severity], "bad" if severity == "critical" else "warn"
        return found

    def _processes(self, height: int) -> None:
        """Draw the table of processes, or the reason why it is empty."""
        view, width, style, choices = self._view, self._width, self._style, self.choices
        count = f"{len(self._shown)} of {len(view.processes)}" if len(self._shown) != len(view.processes) else str(len(self._shown))
        lines: list[Drawn] = []
        if not self._shown:
            hidden = "the filter hides all of them" if view.processes else "no process uses a device"
            # An empty list may mean that processes are unknown: then the reasons are shown, not that no process uses a device.
            unlisted = reasons(view.unlisted)
            words = [hidden] if view.processes or not unlisted else unlisted
            lines += [Line(style, width).add("", width=2).add(text, "dim").parts() for text in words]
        elif height > 1:
            headed = int(height > 3 or (height == 3 and len(self._shown) == 1))
            room = max(1, height - 1 - headed)
            chosen = self.pids.index(choices.process)
            top = window(len(self._shown), chosen, choices.process_top, room)
            heading, rows, left = process_lines(self._shown[top : top + room], choices, width, style, view.time_ns)
            choices = self.choices = replace(choices, process_top=top, process_left=left)
            begun = len(self.lines) + 1 + headed
            for number, pid in enumerate(self.pids[top : top + room]):
                self.spots.append(Spot(begun + number, 0, width, "processes", pid))
            if headed:
                self.spots += heading_spots(heading, begun - 1, "processes", HEADINGS)
            lines += [heading] * headed
            if choices.pane == "processes":
                self.place = (begun + chosen - top, 0)
                self.page = room
            lines += rows
        right = f"{len(choices.tagged)} tagged  " if choices.tagged else ""
        right += f"from column {choices.process_left + 1}  " if choices.process_left else ""
        right += f"order {HEADINGS[choices.process_order]} {direction_mark(choices.process_order, choices.process_reverse, style)}"
        right += f"  filter {choices.process_filter}" if choices.process_filter else ""
        self.lines += padded([rule(f"processes {count}", right, width, style), *lines], height, width)


def heading_spots(heading: Drawn, line: int, pane: Pane, headings: Mapping[str, str]) -> Iterator[Spot]:
    """Yield a clickable part for each heading of a sort order. ``headings`` are by sort order."""
    left = 0
    for text, _ in heading:
        right = left + cells(text)
        yield from (Spot(line, left, right, pane, order=order) for order, title in headings.items() if title == text.strip())
        left = right


def direction_mark(order: str, reverse: bool, style: ScreenStyle) -> str:
    """Return an arrow for the direction of a sort order: up if the smallest comes first."""
    up = (order in ASCENDING) != reverse
    return ("^" if up else "v") if style.ascii else ("▲" if up else "▼")


# The first and the last lines: totals of the node, the host, keys, messages and input

HOST = (
    ("cpu_percent", "cpu", "%"),
    ("memory_percent", "mem", "%"),
    ("memory_used_bytes", "used", "By"),
    ("swap_percent", "swap", "%"),
    ("load_1m", "load", "1"),
    ("cpu_temperature_celsius", "temp", "Cel"),
    ("cpu_power_watts", "cpu power", "W"),
    ("system_power_watts", "system", "W"),
    ("network_sent_bytes_per_second", "sent", "By/s"),
    ("network_received_bytes_per_second", "received", "By/s"),
    ("process_cpu_percent", "watched process cpu", "%"),
    ("process_memory_bytes", "memory", "By"),
)
"""Values in the host's line, in order: name, label, unit."""

Piece = tuple[str, int, Role]
"""A part of a line that is drawn whole or not at all: text, rank (lower ranks are placed first), role."""


def pieces(left: Sequence[Piece], right: Sequence[Piece], width: int, style: ScreenStyle) -> Drawn:
    """Return a line with as many pieces as fit, some on the left and some on the right."""
    room = width + SPACE
    kept: set[int] = set()
    every = [*left, *right]
    for number in sorted(range(len(every)), key=lambda one: every[one][1]):
        columns = cells(style.text(every[number][0])) + SPACE
        if columns <= room:
            kept.add(number)
            room -= columns
    line = Line(style, width)
    for number, (text, _, role) in enumerate(left):
        if number in kept:
            line.add(text, role).add("", width=SPACE)
    shown = [piece for number, piece in enumerate(right, len(left)) if number in kept]
    behind = sum(cells(style.text(text)) for text, _, _ in shown) + SPACE * max(0, len(shown) - 1)
    line.add("", width=max(0, line.left - behind))
    for number, (text, _, role) in enumerate(shown):
        line.add("", width=SPACE if number else 0).add(text, role)
    return line.parts()


def head(view: NodeView, choices: Choices, width: int, style: ScreenStyle, host: bool = True) -> Drawn:
    """Return the first line: totals of the node, and problems. It includes host values if the host has no separate line."""
    totals = view.summary
    left: list[Piece] = [(short_name(view.hostname, width), 0, "head")]
    left += [(f"{count} {kind}", 3, "plain") for kind, count in totals.kinds.items()]
    if totals.power_watts is not None:
        left.append((watts(totals.power_watts, totals.power_limit_watts), 5, "plain"))
    if totals.utilization is not None and len(totals.devices) > 1:
        left.append((f"util {percent(totals.utilization)}", 7, "plain"))
    left += [(f"{label} {percent(view.host[name])}", 8, "plain") for name, label, _ in HOST[:2] if name in view.host and host]
    worst_role: Role = "bad" if totals.findings.get("critical") else "warn" if totals.findings.get("warning") else "plain"
    mark = {"bad": "X ", "warn": "! "}.get(worst_role, "")
    found = ", ".join(
        counted(number, one) if one == "warning" else f"{number} {one}" for one in SEVERITIES if (number := totals.findings.get(one, 0))
    )
    troubles: tuple[tuple[int, Piece], ...] = (
        (totals.lost, (f"X {totals.lost} lost", 1, "bad")),
        (silent := totals.failed + totals.unanswered, (f"X {silent} no answer", 1, "bad")),
        (totals.hot, (f"! {totals.hot} hot", 6, "warn")),
        (len(found), (f"{mark}{found}", 2, worst_role)),
        (len(choices.label), (choices.label, 1, "title")),
    )
    right = [piece for number, piece in troubles if number]
    if choices.paused:
        right.append(("PAUSED", 1, "chosen"))
    elif view.aged:
        right.append((f"no reading for {duration(view.age_seconds)}", 1, "bad"))
    else:
        right.append((f"{view.interval:.1f}s", 9, "dim"))
    right.append((time.strftime("%H:%M:%S", time.localtime(view.time_ns // 1_000_000_000)), 4, "dim"))
    return pieces(left, right, width, style)


def host_line(view: NodeView, width: int, style: ScreenStyle) -> Drawn:
    """Return the line with the host's values."""
    values: list[Piece] = [("host", 0, "title")]
    for rank, (name, label, unit) in enumerate(HOST):
        value = view.host.get(name)
        if value is None:
            continue
        if name == "memory_used_bytes":
            words = memory(value, view.host.get("memory_total_bytes"))
        else:
            words = f"{label} {percent(value)}" if unit == "%" else f"{label} {quantity(round(value, 1), unit)}"
        values.append((words, rank, "plain"))
    return pieces(values if len(values) > 1 else [*values, ("no values are read", 1, "dim")], [], width, style)


def foot(choices: Choices, note: str, width: int, style: ScreenStyle, fleet: bool = False) -> tuple[Drawn, int | None]:
    """Return the last line, and the column of the cursor while the user is typing (else None).

    The line shows the first of these that is present: input, menu, message, and otherwise the note with the keys.

    Args:
        choices: The user's choices.
        note: Note before the keys.
        width: Columns of the screen.
        style: Capabilities of the terminal.
        fleet: Whether the picture shows a fleet.
    """
    typed = choices.input
    if typed is not None:
        label = style.text(f"{typed.label}: ")
        text, before = style.text(typed.text), cells(style.text(typed.text[: typed.at]))
        room = max(1, width - cells(label) - 1)
        while before >= room:  # scroll the text, so that the cursor stays visible
            before -= cells(text[:1])
            text = text[1:]
        line = Line(style, width).add(label, "title", min(cells(label), width))
        while cells(text) > line.left:
            text = text[:-1]
        return line.add(text).add(f"  {typed.problem}" if typed.problem else "", "bad").parts(), min(width - 1, cells(label) + before)
    if choices.menu:
        return (order_menu if choices.menu == "order" else column_menu)(choices, width, style), None
    if choices.message:
        return Line(style, width).add(choices.message, "title").parts(), None
    line = Line(style, width)
    if note:
        line.add(note, "title").add("", width=SPACE)
    for key in (key for key in KEYS if key.short and key.offered(choices, fleet)):
        if not line.fits(f"{key.keys} {key.short}"):
            break
        line.add(key.keys, "head").add(f" {key.short}", "dim").add("", width=SPACE)
    return line.parts(), None


def order_menu(choices: Choices, width: int, style: ScreenStyle) -> Drawn:
    """Return the menu of sort orders with their letters. The current order is highlighted and shows its direction."""
    line = Line(style, width).add("order: ", "title")
    now, reverse = choices.order
    for letter, order in order_letters(choices.pane).items():
        if order == now:
            line.add(f"{letter} {order}{direction_mark(order, reverse, style)}", "chosen").add("", width=SPACE)
        else:
            line.add(f"{letter} {order}").add("", width=SPACE)
    return line.add("z reverses  enter leaves", "dim").parts()


def column_menu(choices: Choices, width: int, style: ScreenStyle) -> Drawn:
    """Return the menu of columns with their letters. Visible columns are in capitals."""
    line = Line(style, width).add("columns: ", "title")
    hidden = choices.process_hidden if choices.pane == "processes" else choices.device_hidden
    for letter, title in column_letters(choices.pane).items():
        word = title.partition("/")[0]
        line.add(f"{letter} ", "head").add(word.lower() if title in hidden else word, "dim" if title in hidden else "plain").add(" ")
    return line.add(" enter leaves", "dim").parts()


def short_name(hostname: str, width: int) -> str:
    """Return a host name, without its domain if it takes more than a third of the width."""
    return hostname if cells(hostname) <= width // 3 else hostname.partition(".")[0]
