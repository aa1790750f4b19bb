"""How pictures are drawn: colours that all eyes can tell apart, fewer of them, none; and lines of styled text of a given width."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from accelmetrics.schemas.text import cells, printable
from accelmetrics.views.device_view import State

Colours = Literal["true", "256", "16", "none"]
Role = Literal["plain", "head", "dim", "ok", "warn", "bad", "missing", "chosen", "title"]
"""What a text is for."""
# Okabe and Ito's colours: told apart by all eyes. With 16, and without any, marks and words carry what is meant, as they do with all.
_TRUE = {
    "plain": "",
    "head": "1",
    "dim": "2",
    "ok": "38;2;0;114;178",
    "warn": "38;2;230;159;0",
    "bad": "1;38;2;213;94;0",
    "missing": "2",
    "chosen": "7",
    "title": "1",
}
CODES: dict[Colours, dict[str, str]] = {
    "true": _TRUE,
    "256": {**_TRUE, "ok": "38;5;25", "warn": "38;5;178", "bad": "1;38;5;166"},
    "16": {**_TRUE, "ok": "36", "warn": "33", "bad": "1;31"},
    "none": {**_TRUE, "ok": "", "warn": "1", "bad": "1", "dim": "", "missing": ""},
}
"""What a terminal is told before a text (SGR: 1 bold, 2 dim, 7 reverse), by its colours and the role of the text."""
NUMERIC = "0123456789.,/"
AROUND = 8
"""Columns that a title has at least besides the texts at its ends."""
ASCII = {"…": "~", "°": "", "─": "-", "│": "|", "·": ".", "—": "-", "×": "x", "█": "#", "░": "."}


@dataclass(frozen=True)
class ScreenStyle:
    """What a terminal can show.

    Attributes:
        colours: ``true``: any; ``256``: the nearest of those; ``16``; ``none``: bold and reverse alone.
        ascii: Whether everything is drawn in ASCII; texts of others have a ``?`` for each other character.
        braille: Whether graphs are drawn in dots of Braille's letters, eight in a cell; else in blocks.
    """

    colours: Colours = "true"
    ascii: bool = False
    braille: bool = True

    def text(self, text: str) -> str:
        """Return a text as this terminal can show it."""
        if text.isascii():
            return text if text.isprintable() else printable(text)
        text = printable(text)
        return "".join(ASCII.get(one, one if one.isascii() else "?") for one in text) if self.ascii else text


USUAL_STYLE = ScreenStyle()


class Line:
    """One line of a picture, put together from the left; it is as wide as it is asked to be, and never wider.

    Args:
        style: Of the terminal.
        width: Columns that it may take.

    Attributes:
        left: Columns that are free.
    """

    __slots__ = ("_parts", "_style", "left")

    def __init__(self, style: ScreenStyle, width: int) -> None:
        self._style = style
        self.left = width
        self._parts: list[tuple[str, str]] = []

    def add(self, text: str, role: Role = "plain", width: int | None = None, *, right: bool = False) -> Line:
        """Add a text.

        Args:
            text: What is added; its end is left out, at the end of a word, where it has too little room.
            role: What it is for.
            width: Columns that it takes; those of the text itself, if left out.
            right: Whether it stands at the right of those.
        """
        room = self.left if width is None else min(width, self.left)
        text = shortened(self._style.text(text), room, "~" if self._style.ascii else "…")
        blank = 0 if width is None else room - cells(text)
        if right and blank:
            self._parts.append((" " * blank, "plain"))
            blank = 0
        self._parts.append((text + " " * blank, role))
        self.left -= room if width is not None else cells(text)
        return self

    def fits(self, *texts: str) -> bool:
        """Return whether there is room for these texts, one behind the other."""
        return sum(cells(self._style.text(text)) for text in texts) <= self.left

    def fill(self, with_: str = " ", role: Role = "plain") -> Line:
        """Fill what is left with one character."""
        return self.add(with_ * self.left, role) if self.left > 0 else self

    def parts(self, chosen: bool = False) -> list[tuple[str, str]]:
        """Return what it is made of, filled with spaces; in the role of what is chosen where it is."""
        self.fill()
        return [(text, "chosen" if chosen else role) for text, role in self._parts if text]


Drawn = list[tuple[str, str]]
"""A line: texts with their roles."""


def shortened(text: str, width: int, mark: str = "…") -> str:
    """Return a text with its end left out where it takes more columns; a number is never cut in half."""
    if cells(text) <= width:
        return text
    kept = text[: max(0, width - 1)]
    while cells(kept) >= max(1, width):
        kept = kept[:-1]
    if kept and kept[-1] in NUMERIC and text[len(kept)] in NUMERIC:
        kept = kept.rstrip(NUMERIC)
    return kept.rstrip() + mark if width > 0 else ""


def cut(line: Drawn, start: int, width: int) -> Drawn:
    """Return a part of a line, filled with spaces where it has fewer columns; a wide letter at an edge becomes spaces."""
    end, at = start + width, 0
    kept: Drawn = []
    for text, role in line:
        shown = ""
        for one in text:
            left, at = at, at + cells(one)
            if start <= left and at <= end:
                shown += one
            else:
                shown += " " * max(0, min(at, end) - max(left, start))
        if shown:
            kept.append((shown, role))
    return [*kept, (" " * lacking, "plain")] if (lacking := width - sum(cells(text) for text, _ in kept)) > 0 else kept


def role_of(state: State | None) -> Role:
    """Return the role of a value at a level."""
    return "plain" if state is None or state == "ok" else state


def rule(left: str, right: str, columns: int, style: ScreenStyle) -> Drawn:
    """Draw the title of a part: a line with a text at each end, the right one where there is room for both."""
    dash = "-" if style.ascii else "─"
    line = Line(style, columns).add(f"{dash}{dash} ", "dim").add(left, "title")
    right = style.text(right)
    room = columns - cells(style.text(left)) - cells(right) - AROUND + 1
    if right and room >= 1:
        return line.add(" " + dash * room, "dim").add(f" {right}", "title").add(f" {dash}", "dim").parts()
    return line.add(" ").fill(dash, "dim").parts()


def padded(lines: Sequence[Drawn], height: int, width: int) -> list[Drawn]:
    """Return so many lines: those behind are left out, and empty ones are put below."""
    return [*lines[:height], *([(" " * width, "plain")] for _ in range(height - len(lines)))]


def beside(blocks: Sequence[Sequence[Drawn]], gap: str = "  ") -> list[Drawn]:
    """Put blocks of lines of equal height beside each other."""
    lines: list[Drawn] = []
    for parts in zip(*blocks, strict=True):
        line: Drawn = []
        for number, part in enumerate(parts):
            line += [(gap, "plain")] if number else []
            line += part
        lines.append(line)
    return lines


def ansi(line: Drawn, colours: Colours) -> str:
    """Return a line as it is written to a terminal."""
    codes = CODES[colours]
    return "".join(f"\x1b[{codes[role]}m{text}\x1b[0m" if codes[role] else text for text, role in line)
