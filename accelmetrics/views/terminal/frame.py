"""The first and the last lines of a picture: the node in numbers, the host, keys, and what is said or typed."""

from __future__ import annotations

import time
from typing import NamedTuple

from accelmetrics.schemas.text import GIB, cells, quantity
from accelmetrics.views.device_view import duration
from accelmetrics.views.node_view import NodeView
from accelmetrics.views.terminal.choices import KEYS, Choices
from accelmetrics.views.terminal.style import Drawn, Line, Role, ScreenStyle

SPACE = 2
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
"""What the host's line tells, in order."""


class Piece(NamedTuple):
    """A part of a line that is there as a whole or not at all.

    Attributes:
        text: The words.
        rank: Pieces of a lower rank are there first.
        role: What they are for.
    """

    text: str
    rank: int
    role: Role = "plain"


def pieces(left: list[Piece], right: list[Piece], width: int, style: ScreenStyle) -> Drawn:
    """Draw as many pieces as there is room for, some at the left, some at the right."""
    room = width + SPACE
    kept: set[int] = set()
    every = [*left, *right]
    for number in sorted(range(len(every)), key=lambda one: every[one].rank):
        columns = cells(style.text(every[number].text)) + SPACE
        if columns <= room:
            kept.add(number)
            room -= columns
    line = Line(style, width)
    for number, piece in enumerate(left):
        if number in kept:
            line.add(piece.text, piece.role).add("", width=SPACE)
    shown = [piece for number, piece in enumerate(right, len(left)) if number in kept]
    behind = sum(cells(style.text(piece.text)) for piece in shown) + SPACE * max(0, len(shown) - 1)
    line.add("", width=max(0, line.left - behind))
    for number, piece in enumerate(shown):
        line.add("", width=SPACE if number else 0).add(piece.text, piece.role)
    return line.parts()


def head(view: NodeView, choices: Choices, width: int, style: ScreenStyle, host: bool = True) -> Drawn:
    """Draw the node in numbers, those of the host among them unless it has a line of its own."""
    totals = view.totals
    left = [Piece(short_name(view.hostname, width), 0, "head")]
    left += [Piece(f"{count} {kind}", 3) for kind, count in totals.kinds.items()]
    if totals.power_watts is not None:
        left.append(Piece(power_words(totals.power_watts, totals.power_limit_watts), 5))
    if totals.utilization is not None and totals.devices > 1:
        left.append(Piece(f"util {totals.utilization:.0f}%", 7))
    left += [Piece(f"{label} {view.host[name]:.0f}%", 8) for name, label, _ in HOST[:2] if name in view.host and host]
    right = [Piece(f"X {number} {what}", 1, "bad") for number, what in ((totals.lost, "lost"), (totals.failed, "no answer")) if number]
    right += [Piece(f"! {totals.hot} hot", 6, "warn")] if totals.hot else []
    found = len(view.findings)
    grave = "bad" if totals.findings.get("critical") else "warn" if totals.findings.get("warning") else "plain"
    right += [Piece(f"! {found} finding{'' if found == 1 else 's'}", 2, grave)] if found else []  # type: ignore[arg-type]
    if choices.label:
        right.append(Piece(choices.label, 1, "title"))
    if choices.paused:
        right.append(Piece("PAUSED", 1, "chosen"))
    elif view.aged:
        right.append(Piece(f"no reading for {duration(view.age_seconds)}", 1, "bad"))
    else:
        right.append(Piece(f"{view.interval:.1f}s", 9, "dim"))
    right.append(Piece(time.strftime("%H:%M:%S", time.localtime(view.time_ns // 1_000_000_000)), 4, "dim"))
    return pieces(left, right, width, style)


def host_line(view: NodeView, width: int, style: ScreenStyle) -> Drawn:
    """Draw what the host is at."""
    told = [Piece("host", 0, "title")]
    for rank, (name, label, unit) in enumerate(HOST):
        if name == "memory_used_bytes" and name in view.host:
            total = view.host.get("memory_total_bytes")
            words = f"{view.host[name] / GIB:.1f}" + (f"/{total / GIB:.0f}" if total else "") + " GiB"
            told.append(Piece(words, rank))
        elif name in view.host:
            value = view.host[name]
            told.append(Piece(f"{label} {value:.0f}%" if unit == "%" else f"{label} {quantity(round(value, 1), unit)}", rank))
    if len(told) == 1:
        told.append(Piece("its numbers are not read", 1, "dim"))
    return pieces(told, [], width, style)


def foot(choices: Choices, note: str, width: int, style: ScreenStyle, fleet: bool = False) -> tuple[Drawn, int | None]:
    """Draw the last line; return it, and the column in which something is typed.

    Args:
        choices: What is to be seen.
        note: What is said where nothing else is, before the keys.
        width: Columns there are.
        style: What the terminal can show.
        fleet: Whether it is the picture of a fleet.
    """
    typed = choices.input
    if typed is not None:
        label = style.text(f"{typed.label}: ")
        text, before = style.text(typed.text), cells(style.text(typed.text[: typed.at]))
        problem = f"  {typed.problem}" if typed.problem else ""
        room = max(1, width - cells(label) - 1)
        while before >= room:  # the beginning goes out of sight
            before -= cells(text[:1])
            text = text[1:]
        line = Line(style, width).add(label, "title", min(cells(label), width))
        while cells(text) > line.left:
            text = text[:-1]
        return line.add(text).add(problem, "bad").parts(), min(width - 1, cells(label) + before)
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


def power_words(watts: float, limit: float | None) -> str:
    """Return what is drawn of what may be: ``4.7/5.6 kW``, ``612/700 W``."""
    if watts >= 1000 or (limit or 0.0) >= 1000:
        return f"{watts / 1000:.1f}" + (f"/{limit / 1000:.1f}" if limit else "") + " kW"
    return f"{watts:.0f}" + (f"/{limit:.0f}" if limit else "") + " W"


def short_name(hostname: str, width: int) -> str:
    """Return a machine's name without its domain where there is no room for it."""
    return hostname if cells(hostname) <= width // 3 else hostname.partition(".")[0]
