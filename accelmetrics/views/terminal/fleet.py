"""The terminal picture of a fleet: one line for each node, the worst first."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from accelmetrics.schemas.text import (
    STATE_MARKS,
    STATE_WORDS,
    block,
    cells,
    counted,
    duration,
    fixed,
    of_limit,
    percent,
    printable,
    watts as watts_words,
)
from accelmetrics.views.device_view import STATES, State
from accelmetrics.views.node_view import NodeAnswer
from accelmetrics.views.terminal.choices import NODE_FIELDS, USUAL_CHOICES, Choices, Fields, by_number, filtered
from accelmetrics.views.terminal.overlays import Pages, help_lines
from accelmetrics.views.terminal.picture import (
    USUAL_SIZE,
    Picture,
    Piece,
    Spot,
    filled,
    foot,
    heading_spots,
    pieces,
    scrolled,
    short_name,
    window,
)
from accelmetrics.views.terminal.style import USUAL_STYLE, Drawn, Line, ScreenStyle, role_of

CELL = 4
"""Columns of one device, if there is room to show its utilisation as a number."""
MOST_NAME = 24
"""Largest width of a node's name."""
LEAST_NOTE = 20
"""Smallest width of the note."""
UTIL, POWER = 5, 9
"""Widths of the columns of utilisation and power."""
AGED = 2.0
"""Age of an answer, in the node's intervals, from which the note shows it."""
LEAST_AGE = 5.0
"""Age in seconds below which the note never shows it. Nodes are asked in turn, so an answer may be a few seconds old."""


def fleet_picture(
    answers: Sequence[NodeAnswer],
    choices: Choices = USUAL_CHOICES,
    size: os.terminal_size = USUAL_SIZE,
    style: ScreenStyle = USUAL_STYLE,
) -> Picture:
    """Return the picture of a fleet.

    Args:
        answers: The latest answer of each node.
        choices: The user's choices.
        size: Size of the terminal.
        style: Capabilities of the terminal.
    """
    width, height = size
    shown = shown_nodes(answers, choices)
    names = tuple(answer.name for answer in shown)
    choices = replace(choices, node=choices.node if choices.node in names else next(iter(names), ""))
    room = max(1, height - (height > 1) - (height > 2))
    place, note, page = (0, 0), "", room
    spots: list[Spot] = []
    if choices.overlay in ("details", "help"):
        answer = next((answer for answer in shown if answer.name == choices.node), None)
        lines = help_lines(choices, width, style, fleet=True) if choices.overlay == "help" else node_lines(answer, width, style)
        lines, top, note = scrolled(lines, choices, room)
        choices = replace(choices, overlay_top=top)
    elif not shown:
        lines = [Line(style, width).add(f"the filter hides all {len(answers)} nodes" if answers else "no nodes", "warn").parts()]
    else:
        headed = int(room > 2)
        page = room - headed
        chosen = names.index(choices.node)
        top = window(len(shown), chosen, choices.node_top, page)
        choices = replace(choices, node_top=top)
        position = f"{top + 1}-{min(top + page, len(shown))} of {len(shown)}" if len(shown) > page else ""
        heading, rows = _node_rows(shown, slice(top, top + page), choices.node, position, width, style)
        lines = [heading] * headed + rows
        place = (headed + chosen - top, 0)
        first_row = headed + (height > 1)
        spots = [Spot(first_row + number, 0, width, "nodes", name) for number, name in enumerate(names[top : top + page])]
        if headed:
            spots += heading_spots(heading, first_row - 1, "nodes", {"name": "NODE", "util": "UTIL", "power": "kW"})
    last, column = foot(choices, note, width, style, fleet=True)
    first = [fleet_head(answers, choices, width, style)] if height > 1 else []
    where = (min(height - 1, place[0] + len(first)), 0) if column is None else (height - 1, column)
    return Picture(filled([*first, *lines], last if height > 2 else None, size), where, choices, nodes=names, page=page, spots=tuple(spots))


def shown_nodes(answers: Sequence[NodeAnswer], choices: Choices) -> list[NodeAnswer]:
    """Return the nodes that match the user's filter, in the chosen order."""
    found = filtered(answers, choices.node_filter, NODE_FIELDS, node_fields)
    if choices.node_order in ("util", "power", "findings"):
        return by_number(found, lambda answer: node_fields(answer)[choices.node_order], choices.node_reverse)
    if choices.node_order == "state":
        # Among nodes in the same state, the one with most findings comes first.
        found.sort(key=lambda answer: (STATES.index(answer.state), 0 if answer.summary is None else -sum(answer.summary.findings.values())))
    else:
        found.sort(key=lambda answer: answer.name)
    return found[::-1] if choices.node_reverse else found


def node_fields(answer: NodeAnswer) -> Fields:
    """Return the values of a node by which it is filtered and sorted."""
    summary, state = answer.summary, f"{STATE_WORDS[answer.state]},{answer.state}"
    if summary is None:
        return {"node": answer.name, "state": state, "note": answer.failure, **dict.fromkeys(NODE_FIELDS[4:])}
    return {
        "node": answer.name,
        "state": state,
        "kind": ",".join(summary.kinds),
        "note": node_note(answer),
        "devices": float(len(summary.devices)),
        "util": summary.utilization,
        "power": None if summary.power_watts is None else summary.power_watts / 1000,
        "lost": float(summary.lost),
        "hot": float(summary.hot),
        "findings": float(sum(summary.findings.values())),
    }


def node_note(answer: NodeAnswer) -> str:
    """Return the problems of a node in words, with the age of an old answer; empty if there are none."""
    summary = answer.summary
    if summary is None:
        return printable(answer.failure) or "no answer yet"
    age = answer.age_seconds or 0.0
    return ", ".join([*([f"{duration(age)} old"] if age > max(LEAST_AGE, AGED * summary.interval) else []), *summary.troubles])


def fleet_head(answers: Sequence[NodeAnswer], choices: Choices, width: int, style: ScreenStyle) -> Drawn:
    """Return the first line: totals of the fleet and counts of problems."""
    known = [answer.summary for answer in answers if answer.summary is not None]
    kinds: Counter[str] = Counter()
    for summary in known:
        kinds.update(summary.kinds)
    watts = [summary.power_watts for summary in known if summary.power_watts is not None]
    limits = [summary.power_limit_watts for summary in known if summary.power_watts is not None and summary.power_limit_watts is not None]
    busy = [device.utilization for summary in known for device in summary.devices if device.utilization is not None]
    left: list[Piece] = [(counted(len(answers), "node"), 0, "head")]
    left += [(f"{count} {printable(kind)}", 3, "plain") for kind, count in kinds.items()]
    left += [(watts_words(sum(watts), sum(limits) if len(limits) == len(watts) else None), 5, "plain")] if watts else []
    left += [(f"util {percent(sum(busy) / len(busy))}", 6, "plain")] if busy else []
    troubles: tuple[tuple[int, str, State], ...] = (
        (len(answers) - len(known), "no answer", "bad"),
        (sum(one.lost for one in known), "lost", "bad"),
        (sum(one.unanswered for one in known), "silent", "bad"),
        (sum(one.failed for one in known), "silent drivers", "bad"),
        (sum(one.hot for one in known), "hot", "warn"),
    )
    right: list[Piece] = [
        (f"{STATE_MARKS[state]} {number} {what}", rank, role_of(state)) for rank, (number, what, state) in enumerate(troubles, 1) if number
    ]
    if choices.paused:
        right.append(("PAUSED", 1, "chosen"))
    order = "worst first" if choices.node_order == "state" else f"by {choices.node_order}"
    right.append((order + (", reversed" if choices.node_reverse else ""), 7, "dim"))
    return pieces(left, right, width, style)


def node_lines(answer: NodeAnswer | None, width: int, style: ScreenStyle) -> list[Drawn]:
    """Return the details of a node: name, version, power and devices, the worst device first."""
    pages = Pages(width, style)
    if answer is None:
        pages.title("no node", "escape leaves")
        return pages.lines
    pages.title(answer.name, "escape leaves")
    pages.text(node_note(answer) or "nothing is wrong with it", role_of(answer.state))
    summary = answer.summary
    if summary is None:
        return pages.lines
    pages.text(printable(summary.hostname), name="host name")
    if summary.version:
        pages.text(printable(summary.version), name="accelmetrics")
    if summary.power_watts is not None:
        pages.text(watts_words(summary.power_watts, summary.power_limit_watts), name="power")
    pages.title(f"devices {len(summary.devices)}")
    for device in sorted(summary.devices, key=lambda one: STATES.index(one.state)):
        busy = "-" if device.utilization is None else f"{fixed(device.utilization)}%"
        line = Line(style, width).add("", width=1).add(STATE_MARKS[device.state] or " ", role_of(device.state), 1)
        line.add(printable(device.key), role_of(device.state), 12).add(busy, width=UTIL, right=True)
        pages.lines.append(line.add("  ").add(printable(device.note), role_of(device.state)).parts())
    return pages.lines


def _node_rows(
    answers: Sequence[NodeAnswer], seen: slice, chosen: str, position: str, width: int, style: ScreenStyle
) -> tuple[Drawn, list[Drawn]]:
    """Return the heading of the table of nodes, and a line for each visible node. Columns without room are left out.

    Args:
        answers: All nodes. Column widths fit all of them, so that scrolling does not change the table.
        seen: The visible nodes.
        chosen: Name of the selected node.
        position: Position of the visible nodes for the heading, for example ``1-20 of 64``.
        width: Columns of the screen.
        style: Capabilities of the terminal.
    """
    name_width = min(MOST_NAME, max(4, width // 3), max(4, *(cells(style.text(short_name(answer.name, width))) for answer in answers)))
    known = [answer.summary for answer in answers if answer.summary is not None]
    most = max((len(summary.devices) for summary in known), default=0)
    longest = max(cells(style.text(node_note(answer))) for answer in answers)
    room = width - 2 - name_width - 1 - max(LEAST_NOTE, min(longest, width // 3))
    # Every device gets a number if all fit, else one character, else nothing.
    numbered = most * CELL <= room
    devices = most * CELL if numbered else most if 0 < most <= room - UTIL - 1 else 0
    room -= devices
    util = UTIL + 1 if room >= UTIL + 1 or not devices else 0
    power = POWER + 2 if room - util >= POWER + 2 and any(summary.power_watts is not None for summary in known) else 0

    heading = Line(style, width).add("", width=2).add("NODE", "head", name_width).add(" ")
    if numbered:
        for number in range(devices // CELL):
            heading.add(str(number), "dim", CELL, right=True)
    else:
        heading.add("DEVICES" if devices >= len("DEVICES") else "", "head", devices)
    heading.add("UTIL" if util else "", "head", util, right=True).add("kW" if power else "", "head", power, right=True)
    heading.add("  ").add(f"WORST {position}".rstrip(), "head")

    lines = []
    for answer in answers[seen]:
        role, summary = role_of(answer.state), answer.summary
        line = Line(style, width).add(">" if answer.name == chosen else " ", "head").add(STATE_MARKS[answer.state] or " ", role)
        line.add(short_name(printable(answer.name), width), role, name_width).add(" ")
        if summary is not None:
            start = line.left
            for device in summary.devices if devices else ():
                mark, busy = STATE_MARKS[device.state], device.utilization
                if numbered:
                    text = (mark if device.state in ("warn", "bad") else "") + ("-" if busy is None else fixed(busy))
                    line.add(text, role_of(device.state), CELL, right=True)
                else:  # one character: the mark of its state, or a block for its utilisation
                    text = mark or "-" if device.state != "ok" or busy is None else block(busy, 100.0, style.spark)
                    line.add(text, role_of(device.state))
            line.add("", width=devices - (start - line.left))
            line.add("-" if summary.utilization is None else f"{fixed(summary.utilization)}%", "plain", util, right=True)
            watts, limit = summary.power_watts, summary.power_limit_watts
            line.add("-" if watts is None else of_limit(watts, limit, 1000, 1), "plain", power, right=True).add("  ")
        lines.append(line.add(node_note(answer), role).parts(answer.name == chosen))
    return heading.parts(), lines
