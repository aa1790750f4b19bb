"""Colours and lines of terminal pictures: palettes for colour-blind readers, and styled lines of a fixed width."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from accelmetrics.schemas.text import cells, printable
from accelmetrics.views.device_view import State

Colours = Literal["true", "256", "16", "none"]
Theme = Literal["dark", "light"]
"""Background that colours are chosen for."""
Role = Literal["plain", "head", "dim", "ok", "warn", "bad", "missing", "chosen", "title", "s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7"]
"""Purpose of a text, which decides its colour. ``s0`` to ``s7`` are the lines of a graph."""
SERIES = 8
"""Number of graph lines with different colours."""
_HEX: dict[Theme, dict[str, str]] = {
    "dark": {
        **{"plain": "e8e8e8", "dim": "a8a8a8", "ok": "56b4e9", "warn": "e69f00", "bad": "ff8a5c", "missing": "a8a8a8"},
        **{"s0": "56b4e9", "s1": "e69f00", "s2": "2fc49a", "s3": "f0e442", "s4": "dd95bf", "s5": "ff8a5c", "s6": "a5a0ff", "s7": "d0d0d0"},
    },
    "light": {
        **{"plain": "1a1a1a", "dim": "595959", "ok": "005f9e", "warn": "8a5300", "bad": "b02a00", "missing": "595959"},
        **{"s0": "005f9e", "s1": "8a5300", "s2": "00664a", "s3": "6b6000", "s4": "96306e", "s5": "b02a00", "s6": "5538a8", "s7": "444444"},
    },
}
"""RGB colours: Okabe and Ito's palette for colour-blind readers, adjusted to a contrast of at least 4.5 with the background."""
_CUBE: dict[Theme, dict[str, int]] = {
    "dark": {
        **{"plain": 254, "dim": 248, "ok": 74, "warn": 178, "bad": 209, "missing": 248},
        **{"s0": 74, "s1": 178, "s2": 42, "s3": 221, "s4": 176, "s5": 209, "s6": 147, "s7": 252},
    },
    "light": {
        **{"plain": 234, "dim": 240, "ok": 25, "warn": 94, "bad": 124, "missing": 240},
        **{"s0": 25, "s1": 94, "s2": 23, "s3": 58, "s4": 89, "s5": 124, "s6": 55, "s7": 238},
    },
}
"""The nearest of 256 colours that have the same contrast."""
_FEW: dict[Theme, dict[str, str]] = {
    "dark": {
        **{"ok": "36", "warn": "33", "bad": "1;91"},
        **{"s0": "36", "s1": "33", "s2": "32", "s3": "93", "s4": "95", "s5": "91", "s6": "96", "s7": "37"},
    },
    "light": {
        **{"ok": "34", "warn": "35", "bad": "31"},
        **{"s0": "34", "s1": "35", "s2": "31", "s3": "30", "s4": "34", "s5": "35", "s6": "31", "s7": "30"},
    },
}
"""The 16 colours that have this contrast in xterm. On a light background only four do, so graph lines repeat them."""
_CHOSEN_ROW: dict[Colours, dict[Theme, str]] = {
    "true": {"dark": "48;2;29;58;82", "light": "48;2;207;227;243"},
    "256": {"dark": "48;5;17", "light": "48;5;195"},
}
"""Backgrounds of the selected row. All text colours keep their contrast on them."""
ON_CHOSEN = "+"
"""Suffix of a role in the selected row."""


def _codes(colours: Colours, theme: Theme) -> dict[str, str]:
    """Return the SGR codes of each role (1 is bold, 7 reverse)."""
    if colours == "true":
        rgb = {role: [int(code[at : at + 2], 16) for at in (0, 2, 4)] for role, code in _HEX[theme].items()}
        codes = {role: f"38;2;{red};{green};{blue}" for role, (red, green, blue) in rgb.items()}
    elif colours == "256":
        codes = {role: f"38;5;{number}" for role, number in _CUBE[theme].items()}
    else:
        codes = _FEW[theme] if colours == "16" else {"warn": "1", "bad": "1"}
    ink = codes.get("plain", "")  # only palettes with backgrounds for the selected row have one
    codes = {**dict.fromkeys(("plain", "dim", "missing", "ok", *(f"s{number}" for number in range(SERIES))), ""), **codes}
    if colours in _CHOSEN_ROW:
        codes["bad"] = f"1;{codes['bad']}"
    # Plain text keeps the terminal's own colour, except on the background of the selected row.
    codes |= {"plain": "", "head": "1", "title": "1", "chosen": "7"}
    row = _CHOSEN_ROW.get(colours, {}).get(theme, "7")
    inks = codes if not ink else {**codes, "plain": ink, "head": f"1;{ink}", "title": f"1;{ink}", "chosen": ink}
    return {**codes, **{f"{role}{ON_CHOSEN}": ";".join(filter(None, (code, row))) for role, code in inks.items()}}


_COLOURS: tuple[Colours, ...] = ("true", "256", "16", "none")
THEMES: tuple[Theme, ...] = ("dark", "light")
CODES = {(colours, theme): _codes(colours, theme) for colours in _COLOURS for theme in THEMES}
"""SGR codes by colours and theme, and then by the role of the text."""
BLOCKY = frozenset("▁▂▃▄▅▆▇█━─")
"""Characters that are unreadable in reverse video."""
MIDDLE = 0.18
"""Luminance of a background above which black text has more contrast than white text: ``sqrt(1.05 * 0.05) - 0.05`` with WCAG's contrast."""
NUMERIC = "0123456789.,/"
"""Characters of numbers, which are never cut in the middle."""
AROUND = 8
"""Columns that a title needs in addition to its two texts."""
# Replacements for terminals that can show only ASCII.
ASCII = {"…": "~", "°": "", "─": "-", "│": "|", "·": ".", "—": "-", "×": "x", "█": "#", "░": ".", "━": "="}
BAR, SPARK = "━─", "▁▂▃▄▅▆▇"
"""Characters of a bar (full, empty) and of a history. None is as high as the line, so that rows do not touch."""
ASCII_BAR, ASCII_SPARK = "#.", "_.-=+#"


@dataclass(frozen=True)
class ScreenStyle:
    """Capabilities of a terminal.

    Attributes:
        colours: ``true`` for 24-bit colours, ``256``, ``16``, or ``none`` for only bold and reverse.
        theme: Background of the terminal.
        ascii: Whether to draw only ASCII. Other characters in names and messages become ``?``.
        braille: Whether graphs use Braille characters, with eight dots in each cell, instead of blocks.
    """

    colours: Colours = "true"
    ascii: bool = False
    braille: bool = True
    theme: Theme = "dark"

    @property
    def bar(self) -> str:
        """The characters of a bar: full, empty."""
        return ASCII_BAR if self.ascii else BAR

    @property
    def spark(self) -> str:
        """The characters of a history on one row, from the smallest value to the largest."""
        return ASCII_SPARK if self.ascii else SPARK

    def text(self, text: str) -> str:
        """Return a text with every character replaced that this terminal cannot show."""
        if text.isascii():
            return text if text.isprintable() else printable(text)
        text = printable(text)
        return "".join(ASCII.get(one, one if one.isascii() else "?") for one in text) if self.ascii else text


USUAL_STYLE = ScreenStyle()


class Line:
    """A line of a picture, built from left to right. Text beyond its width is cut.

    Args:
        style: Capabilities of the terminal.
        width: Columns of the line.

    Attributes:
        left: Number of free columns.
    """

    __slots__ = ("_parts", "_style", "left")

    def __init__(self, style: ScreenStyle, width: int) -> None:
        self._style = style
        self.left = width
        self._parts: list[tuple[str, str]] = []

    def add(self, text: str, role: Role = "plain", width: int | None = None, *, right: bool = False) -> Line:
        """Add a text.

        Args:
            text: The text. If there is too little room, its end is replaced by a mark; a number is dropped rather than cut.
            role: Role of the text.
            width: Columns to fill; by default as many as the text needs.
            right: Whether the text is aligned to the right.

        Returns:
            This line, so that calls can be chained.
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
        """Return whether there is room for all these texts together."""
        return sum(cells(self._style.text(text)) for text in texts) <= self.left

    def fill(self, with_: str = " ", role: Role = "plain") -> Line:
        """Fill the free columns with one character."""
        return self.add(with_ * self.left, role) if self.left > 0 else self

    def parts(self, chosen: bool = False) -> list[tuple[str, str]]:
        """Return the texts with their roles, filled with spaces to the full width. A selected row gets its background."""
        self.fill()
        return [(text, f"{role}{ON_CHOSEN}" if chosen else role) for text, role in self._parts if text]


Drawn = list[tuple[str, str]]
"""A drawn line: its texts with their roles."""


def shortened(text: str, width: int, mark: str = "…") -> str:
    """Return a text of at most ``width`` columns. A longer text ends with the mark; a number is never cut in the middle."""
    if cells(text) <= width:
        return text
    kept = text[: max(0, width - 1)]
    while cells(kept) >= max(1, width):
        kept = kept[:-1]
    if kept and kept[-1] in NUMERIC and text[len(kept)] in NUMERIC:
        kept = kept.rstrip(NUMERIC)
    return kept.rstrip() + mark if width > 0 else ""


def cut(line: Drawn, start: int, width: int) -> Drawn:
    """Return some columns of a line, filled with spaces to the width. A wide character cut by an edge becomes spaces."""
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
    """Return the role of a text in a state; None for no state."""
    return "plain" if state is None or state == "ok" else state


def rule(left: str, right: str, columns: int, style: ScreenStyle) -> Drawn:
    """Return a title: a horizontal line with a text at each end. The right text is left out if there is no room."""
    dash = "-" if style.ascii else "─"
    line = Line(style, columns).add(f"{dash}{dash} ", "dim").add(left, "title")
    # The text is measured as it will be drawn: replaced characters may have another width.
    right = style.text(right)
    room = columns - cells(style.text(left)) - cells(right) - AROUND + 1
    if right and room >= 1:
        return line.add(" " + dash * room, "dim").add(f" {right}", "title").add(f" {dash}", "dim").parts()
    return line.add(" ").fill(dash, "dim").parts()


def padded(lines: Sequence[Drawn], height: int, width: int) -> list[Drawn]:
    """Return exactly ``height`` lines: further lines are cut, missing lines are empty."""
    return [*lines[:height], *([(" " * width, "plain")] for _ in range(height - len(lines)))]


def shares(width: int, number: int, gap: int = 2) -> list[int]:
    """Return the widths of blocks side by side that fill a width together, with a gap between two of them."""
    room = width - gap * (number - 1)
    return [room * (place + 1) // number - room * place // number for place in range(number)]


def beside(blocks: Sequence[Sequence[Drawn]], gap: str = "  ") -> list[Drawn]:
    """Return blocks of equal height side by side."""
    lines: list[Drawn] = []
    for parts in zip(*blocks, strict=True):
        line: Drawn = []
        for number, part in enumerate(parts):
            line += [(gap, "plain")] if number else []
            line += part
        lines.append(line)
    return lines


def ansi(line: Drawn, style: ScreenStyle) -> str:
    """Return a line with the escape sequences for a terminal."""
    codes = CODES[style.colours, style.theme]
    parts = []
    for text, role in line:
        # Without a background colour the selected row is in reverse video, which would spoil bars and histories.
        blocks = style.colours not in _CHOSEN_ROW and not BLOCKY.isdisjoint(text)
        code = codes[role.removesuffix(ON_CHOSEN) if blocks else role]
        parts.append(f"\x1b[{code}m{text}\x1b[0m" if code else text)
    return "".join(parts)


def theme_of(red: float, green: float, blue: float) -> Theme:
    """Return the theme with more contrast on a background, given as red, green and blue from 0 to 1."""
    # Relative luminance as in WCAG, with sRGB's curve approximated by a power of 2.2.
    light = 0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2
    return "light" if light > MIDDLE else "dark"
