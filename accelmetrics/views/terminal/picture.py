"""The picture of one node: as many lines as the terminal has, none wider than it is."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

from accelmetrics.views.node_view import NodeView
from accelmetrics.views.terminal.choices import USUAL_CHOICES, Choices
from accelmetrics.views.terminal.style import USUAL_STYLE, Drawn, Line, ScreenStyle, ansi
from accelmetrics.views.trails import Trails

USUAL_SIZE = os.terminal_size((80, 24))


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
    """
    width = size.columns
    lines: list[Drawn] = []
    if view is None:
        lines.append(Line(style, width).add("reading …").parts())
        return Picture(_filled(lines, size, style), (0, 0), choices)
    keys = tuple(device.key for device in view.devices)
    chosen = choices.device if choices.device in keys else (keys[0] if keys else "")
    place = (0, 0)
    lines.append(Line(style, width).add(view.hostname, "head").parts())
    for device in view.devices:
        if device.key == chosen:
            place = (len(lines), 0)
        line = Line(style, width).add(">" if device.key == chosen else " ").add(device.mark, device.state, 2).add(device.label, width=9)
        lines.append(line.add(device.note).parts(device.key == chosen))
    return Picture(
        _filled(lines, size, style),
        place,
        replace(choices, device=chosen),
        devices=keys,
        processes=tuple(process.pid for process in view.processes),
    )


def _filled(lines: Sequence[Drawn], size: os.terminal_size, style: ScreenStyle) -> tuple[Drawn, ...]:
    """Return as many lines as there are rows."""
    blank = [Line(style, size.columns).parts() for _ in range(size.lines - len(lines))]
    return tuple([*lines, *blank][: size.lines])
