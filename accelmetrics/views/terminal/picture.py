"""The picture of one node: as many lines as the terminal has, none wider than it is."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from accelmetrics.schemas.text import cells
from accelmetrics.views.device_view import DeviceView
from accelmetrics.views.node_view import NodeView
from accelmetrics.views.terminal.choices import USUAL_CHOICES, Choices
from accelmetrics.views.terminal.device_rows import (
    CELL,
    DeviceTable,
    Row,
    map_across,
    map_label,
    map_lines,
    row_name,
    shown_devices,
    worst_lines,
)
from accelmetrics.views.terminal.frame import foot, head, host_line
from accelmetrics.views.terminal.graphs import LEAST_HEIGHT, GraphData, graph, points_across, rule, top_of
from accelmetrics.views.terminal.overlays import alike, detail_lines, dialog_lines, finding_line, finding_lines, help_lines, summary_lines
from accelmetrics.views.terminal.process_rows import ProcessTable, process_title, shown_processes
from accelmetrics.views.terminal.style import USUAL_STYLE, Drawn, Line, ScreenStyle, ansi, beside
from accelmetrics.views.trails import Trails, metric_row

USUAL_SIZE = os.terminal_size((80, 24))
MANY = 16
"""Devices from which on they may become a map."""
SHARE = 0.6
"""Of the rows, what a list of many devices may take before it becomes a map."""
TWO_COLUMNS = 180
"""Columns from which on many devices stand in two lists beside each other, and the details of a single one beside its graphs."""
ROOMY = 28
"""Rows of the body from which on the host has a line."""
FINDINGS = 4
"""Findings that have a line below the devices, at most."""
LEAST_WORST = 24
"""Columns that the worst devices need beside the map."""


@dataclass(frozen=True)
class Picture:
    """What stands on the screen.

    Attributes:
        lines: As many as the terminal has.
        place: Row and column, from 0, of what is chosen or typed: the terminal's own mark is left there for Braille displays.
        choices: What was chosen, made to fit what there is: what has gone is not chosen, nothing is scrolled too far.
        devices: What can be chosen among the devices, in the order of the screen: keys of devices, names of silent sources.
        processes: The numbers of the processes that can be chosen, in the order of the screen.
        nodes: The names of the nodes that can be chosen, in the order of the screen.
        across: How many devices stand beside each other in the map; 1 in a list.
        page: Rows of the active list, or of the overlay, that are seen at once.
    """

    lines: tuple[Drawn, ...]
    place: tuple[int, int]
    choices: Choices
    devices: tuple[str, ...] = ()
    processes: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    across: int = 1
    page: int = 1

    def ansi(self, style: ScreenStyle) -> list[str]:
        """Return the lines as they are written to a terminal."""
        return [ansi(line, style.colours) for line in self.lines]

    def plain(self) -> list[str]:
        """Return the lines as text alone."""
        return ["".join(text for text, _ in line) for line in self.lines]


def picture(
    view: NodeView | None,
    trails: Trails,
    choices: Choices = USUAL_CHOICES,
    size: os.terminal_size = USUAL_SIZE,
    style: ScreenStyle = USUAL_STYLE,
) -> Picture:
    """Draw a node.

    Args:
        view: The node; None before the first reading.
        trails: Its history.
        choices: What is to be seen.
        size: Of the terminal.
        style: What the terminal can show.

    Raises:
        UnknownNameError: A filter has a field that there is not.
        InvalidOptionError: A filter compares with what is no number.
    """
    width, height = size
    if view is None:
        line, column = foot(choices, "", width, style)
        lines = [Line(style, width).add("reading …").parts()]
        return Picture(filled(lines, line, size, style), (0, 0) if column is None else (height - 1, column), choices)
    body = _Body(view, trails, choices, width, max(1, height - (height > 1) - (height > 2)), style)
    top = [head(view, body.choices, width, style, not body.host)] if height > 1 else []
    line, column = foot(body.choices, body.note, width, style)
    row, at = body.place
    place = (min(height - 1, row + len(top)), min(at, width - 1)) if column is None else (height - 1, column)
    return Picture(
        filled([*top, *body.lines], line if height > 2 else None, size, style),
        place,
        body.choices,
        devices=body.names,
        processes=body.pids,
        across=body.across,
        page=body.page,
    )


def filled(lines: Sequence[Drawn], last: Drawn | None, size: os.terminal_size, style: ScreenStyle) -> tuple[Drawn, ...]:
    """Return as many lines as there are rows, the last one at the end."""
    height = max(0, size.lines - (last is not None))
    blank = [Line(style, size.columns).parts() for _ in range(height - len(lines))]
    return tuple([*lines[:height], *blank, *([] if last is None else [last])][: size.lines])


def window(number: int, chosen: int, top: int, room: int) -> int:
    """Return how many rows are scrolled away, so that the chosen one is seen and no row is left empty."""
    top = min(top, chosen)
    top = max(top, chosen - room + 1)
    return max(0, min(top, number - room))


class _Heights(NamedTuple):
    """Rows of each part of the body."""

    host: int
    devices: int
    findings: int
    graphs: int
    processes: int


class _Body:
    """The lines between the first and the last.

    Attributes:
        lines: They.
        place: Row and column of what is chosen.
        choices: What was chosen, made to fit.
        note: What is to be said at the foot.
        names: What can be chosen among the devices.
        pids: What can be chosen among the processes.
        across: Devices beside each other.
        page: Rows of the active list.
        host: Whether the host has a line among them.
    """

    def __init__(self, view: NodeView, trails: Trails, choices: Choices, width: int, height: int, style: ScreenStyle) -> None:
        self._view, self._trails, self._width, self._height, self._style = view, trails, width, height, style
        self._rows = shown_devices(view, choices)
        self._shown = shown_processes(view, choices)
        self._findings = alike(view.findings.current)
        self.names = tuple(map(row_name, self._rows))
        self.pids = tuple(process.pid for process in self._shown)
        device = choices.device if choices.device in self.names else ""
        process = choices.process if choices.process in self.pids else (self.pids[0] if self.pids else 0)
        self.choices = replace(choices, device=device, process=process)
        self.note, self.place, self.across, self.page = "", (0, 0), 1, 1
        self.lines: list[Drawn] = []
        self.host = False
        if choices.overlay:
            self._overlay()
        else:
            self._draw()
        if choices.dialog is not None:
            asked = dialog_lines(choices.dialog, width, style)[:height]
            self.lines += [Line(style, width).parts() for _ in range(height - len(self.lines))]
            self.lines = [*self.lines[: height - len(asked)], *asked]
            self.place = (max(0, height - 2), 2)

    def _overlay(self) -> None:
        view, width, style, choices = self._view, self._width, self._style, self.choices
        if choices.overlay == "help":
            lines = help_lines(choices, width, style)
        elif choices.overlay == "findings":
            lines = finding_lines(view, width, style)
        elif choices.overlay == "summary":
            lines = summary_lines(choices, width, style)
        else:
            row = next((row for row in self._rows if row_name(row) == choices.device), next(iter(self._rows), None))
            lines = [rule("no device", "escape leaves", width, style)] if row is None else detail_lines(view, row, width, style)
        top = max(0, min(choices.overlay_top, len(lines) - self._height))
        self.choices = replace(choices, overlay_top=top)
        self.lines = lines[top : top + self._height]
        self.page = self._height
        if len(lines) > self._height:
            self.note = f"{top + 1}-{top + len(self.lines)} of {len(lines)}"

    def _draw(self) -> None:
        view, width, style = self._view, self._width, self._style
        devices = [row for row in self._rows if isinstance(row, DeviceView)]
        if self.choices.device_filter:
            self.note = f"{len(devices)} of {len(view.devices)} devices: {self.choices.device_filter}"
        form = self._form(len(devices))
        if form != "map" and not self.choices.device and self.names:
            self.choices = replace(self.choices, device=self.names[0])
        across = map_across(devices, width)
        map_rows = -(-len(devices) // across) + 1
        side = width - map_label(devices) - 1 - across * CELL - 2
        wanted = {"list": len(self._rows) + 1, "two": -(-len(self._rows) // 2) + 1, "map": map_rows + (0 if side >= LEAST_WORST else 4)}[
            form
        ]
        heights = self._heights(max(wanted, 2))
        self.host = bool(heights.host)
        if self.host:
            self.lines.append(host_line(view, width, style))
        if not self._rows:
            self._no_devices(heights.devices)
        elif form == "map":
            self._map(devices, across, side, heights.devices)
        else:
            self._list(heights.devices, 2 if form == "two" else 1)
        if heights.findings:
            self.lines.append(
                rule(f"findings {len(view.findings)}", "f shows all" if len(self._findings) >= heights.findings else "", width, style)
            )
            self.lines += [finding_line(finding, width, style) for finding in self._findings[: heights.findings - 1]]
        if heights.graphs:
            self._graphs(devices, heights.graphs, form)
        if heights.processes:
            self._processes(heights.processes)

    def _form(self, devices: int) -> str:
        """Return how devices are drawn: ``list``, ``two`` lists beside each other, or ``map``."""
        if self.choices.form == "map" and devices:
            return "map"
        fits = devices + 1 <= SHARE * self._height
        if not fits and self._width >= TWO_COLUMNS and -(-devices // 2) + 1 <= (SHARE + 0.1) * self._height:
            return "two"
        return "list" if fits or devices < MANY or self.choices.form == "list" else "map"

    def _heights(self, wanted: int) -> _Heights:
        """Share the rows out: devices first, the rest among graphs and processes."""
        height, view = self._height, self._view
        host = int(height >= ROOMY)
        devices = min(wanted, height - host - (5 if height >= 12 else 0))
        rest = height - host - devices
        findings = min(FINDINGS, len(self._findings)) + 1 if self._findings and rest >= 18 else 0
        rest -= findings
        processes = min(rest, 2 + max(1, len(self._shown)), max(3, round(rest * SHARE if height < ROOMY else rest / 2)))
        if rest - processes <= LEAST_HEIGHT or not view.devices:
            processes = rest
        return _Heights(host, devices, findings, rest - processes, processes)

    def _no_devices(self, height: int) -> None:
        hidden = len(self._view.devices)
        words = f"the filter hides all {hidden} devices" if hidden else "no device was found: accelmetrics doctor says what was looked for"
        lines = [Line(self._style, self._width).add(words, "warn").parts()]
        self.lines += lines + [Line(self._style, self._width).parts() for _ in range(height - 1)]

    def _list(self, height: int, columns: int) -> None:
        """Draw the devices as rows, in one list or two."""
        headed = int(height > 2 or (height == 2 and len(self._rows) == 1))
        room = max(1, height - headed)
        chosen = self.names.index(self.choices.device) if self.choices.device in self.names else 0
        top = window(len(self._rows), chosen, self.choices.device_top, room * columns)
        rows = self._rows[top : top + room * columns]
        self.choices = replace(self.choices, device_top=top)
        active = self.choices.pane == "devices"
        width = (self._width - 2 * (columns - 1)) // columns
        told = f"{top + 1}-{top + len(rows)} of {len(self._rows)}" if len(rows) < len(self._rows) else ""
        blocks = []
        table = DeviceTable(rows, self._trails, self.choices, width, self._style)
        for start in range(0, room * columns, room):
            part: Sequence[Row] = rows[start : start + room]
            lines = [table.heading(told)] if headed else []
            lines += [table.row(row, row_name(row) == self.choices.device, active) for row in part]
            blocks.append(lines + [Line(self._style, width).parts() for _ in range(height - len(lines))])
        if active:
            self.place = (len(self.lines) + headed + (chosen - top) % room, (chosen - top) // room * (width + 2))
            self.page = room * columns
        spare = self._width - columns * width - 2 * (columns - 1)
        self.lines += [[*line, (" " * spare, "plain")] if spare else line for line in beside(blocks)]

    def _map(self, devices: Sequence[DeviceView], across: int, side: int, height: int) -> None:
        """Draw the devices as a map, with the worst beside or below it."""
        width, style = self._width, self._style
        full = map_lines(self._rows, self.choices, width if side < LEAST_WORST else width - side - 2, across, style)
        chosen = next((number for number, device in enumerate(devices) if device.key == self.choices.device), 0)
        seen = height if side >= LEAST_WORST or height <= len(full) else len(full)
        top = window(len(full) - 1, chosen // across, self.choices.device_top, seen - 1)
        self.choices = replace(self.choices, device_top=top)
        lines = [full[0], *full[top + 1 : top + seen]][:height]
        if self.choices.pane == "devices":
            label = map_label(devices)
            self.place = (len(self.lines) + 1 + chosen // across - top, label + 1 + chosen % across * CELL)
            self.page = seen - 1
        self.across = across
        if side >= LEAST_WORST:
            lines += [Line(style, width - side - 2).parts() for _ in range(height - len(lines))]
            lines = beside((lines, worst_lines(self._view, self._rows, side, height, style)))
        elif height > len(lines):
            lines += worst_lines(self._view, self._rows, width, height - len(lines), style)
        self.lines += lines

    def _graphs(self, devices: Sequence[DeviceView], height: int, form: str) -> None:
        """Draw the chosen metric, and others where there is room: of the chosen device, or of all of them."""
        view, style, choices, width = self._view, self._style, self.choices, self._width
        one = next((device for device in devices if device.key == choices.device), None)
        whole = [device for device in devices if not device.parent] or list(devices)
        together = choices.all_devices or (one is None and form == "map")
        one = one or (whole[0] if whole else None)
        if one is None:
            self.lines += [Line(style, width).parts() for _ in range(height)]
            return
        single = len(self._rows) == 1
        left = 60 if single and width >= TWO_COLUMNS else 0
        given = {*one.values, *one.metrics, *one.last}
        metrics = [choices.metric, *(name for name in self._trails.metrics if name != choices.metric and (together or name in given))]
        across = max(1, min(3, (width - left) // (40 if single else 60)))
        down = max(1, min(2, height // 10 if len(devices) > 1 else height // 7))
        across = min(across, len(metrics))
        down = min(down, -(-len(metrics) // across))
        blocks: list[list[Drawn]] = []
        for line in range(down):
            rows = height // down + (line < height % down)
            parts: list[list[Drawn]] = []
            beside_each_other = metrics[line * across : (line + 1) * across]
            gaps = 2 * (len(beside_each_other) - 1)
            room = width - gaps - (left + 2 if left else 0)
            for number, metric in enumerate(beside_each_other):
                columns = room * (number + 1) // len(beside_each_other) - room * number // len(beside_each_other)
                parts.append(self._graph(metric, whole if together else [one], together, (columns, rows)))
            blocks.append(beside(parts))
        lines = [line for block in blocks for line in block]
        if left:
            details = detail_lines(view, one, left, style)[:height]
            details += [Line(style, left).parts() for _ in range(height - len(details))]
            lines = beside((details, [_wide(line, width - left - 2) for line in lines]))
        self.lines += [_wide(line, width) for line in lines]

    def _graph(self, metric: str, devices: Sequence[DeviceView], together: bool, size: tuple[int, int]) -> list[Drawn]:
        row, scale = metric_row(self._view, metric), self.choices.scale
        columns = points_across(size[0], self._style)
        if together:
            points = self._trails.band((device.key for device in devices), metric, scale, columns)
            about = f"of {len(devices)} devices: least, median, greatest, {scale}"
        else:
            points = self._trails.points(devices[0].key, metric, scale, columns)
            about = f"{devices[0].label}, {scale}"
        return graph(GraphData(row, about, points, together), top_of(row, devices), size, self._style)

    def _processes(self, height: int) -> None:
        """Draw the processes."""
        view, width, style, choices = self._view, self._width, self._style, self.choices
        lines = [process_title(view, len(self._shown), choices, width, style)]
        if not self._shown:
            hidden = "the filter hides all of them" if view.processes else "no process uses a device"
            unlisted = [f"{key}: {why}" for key, why in view.unlisted.items()]
            words = [hidden] if view.processes or not unlisted else unlisted
            lines += [Line(style, width).add("", width=2).add(text, "dim").parts() for text in words]
        elif height > 1:
            headed = int(height > 3 or (height == 3 and len(self._shown) == 1))
            room = max(1, height - 1 - headed)
            chosen = self.pids.index(choices.process)
            top = window(len(self._shown), chosen, choices.process_top, room)
            self.choices = replace(choices, process_top=top)
            rows = self._shown[top : top + room]
            table = ProcessTable(rows, width, style)
            lines += [table.heading(choices.process_order)] if headed else []
            if choices.pane == "processes":
                self.place = (len(self.lines) + len(lines) + chosen - top, 0)
                self.page = room
            active = choices.pane == "processes"
            lines += [table.row(row, row.pid == choices.process and active, active) for row in rows]
        self.lines += lines[:height] + [Line(style, width).parts() for _ in range(height - len(lines))]


def _wide(line: Drawn, width: int) -> Drawn:
    """Return a line of graphs filled up to a width."""
    lacking = width - sum(cells(text) for text, _ in line)
    return [*line, (" " * lacking, "plain")] if lacking > 0 else line
