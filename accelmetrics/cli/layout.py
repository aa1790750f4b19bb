"""Text laid out within a width."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

GAP = 2
"""Spaces between two columns."""


def clipped(text: str, width: int) -> str:
    """A text on one line, its end left out where it is too long."""
    text = " ".join(text.split())
    return text if len(text) <= width else text[: max(1, width - 1)] + "…"


def wrapped(text: str, width: int, indent: str) -> list[str]:
    """A text on lines of at most so many columns, each indented; only a longer word is longer."""
    lines: list[str] = []
    line = ""
    for word in text.split():
        if line and len(indent) + len(line) + 1 + len(word) > width:
            lines.append(indent + line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    return [*lines, indent + line] if line else lines


def aligned(rows: Sequence[Sequence[str]], indent: str = "", numeric: bool = False) -> list[str]:
    """Rows with their columns below each other.

    Args:
        rows: The cells; every row has as many.
        indent: What stands before each row.
        numeric: Whether all columns but the first are flush right.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [(indent + (" " * GAP).join(_cells(row, widths, numeric))).rstrip() for row in rows]


def _cells(row: Sequence[str], widths: Sequence[int], numeric: bool) -> list[str]:
    return [
        cell.rjust(width) if numeric and place else cell.ljust(width) for place, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]


def packed(pairs: Sequence[tuple[str, str]], width: int, indent: str) -> list[str]:
    """Names with values, side by side as often as there is room, to be read downwards."""
    if not pairs:
        return []
    lines = aligned(pairs, numeric=True)
    room = max(map(len, lines)) + 2 * GAP
    columns = max(1, (width - len(indent) + 2 * GAP) // room)
    height = -(-len(lines) // columns)
    stacks = [lines[start : start + height] for start in range(0, len(lines), height)]
    return [(indent + "".join(cell.ljust(room) for cell in row)).rstrip() for row in zip_longest(*stacks, fillvalue="")]
