"""Texts of other programs, made fit to be shown: on one line, within a width, without control characters."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

GAP = 2
"""Spaces between two columns."""


def printable(text: str) -> str:
    """Return a text that changes nothing about the terminal that it is shown on: what is not to be seen is a question mark."""
    return text if text.isprintable() else "".join(one if one.isprintable() else " " if one.isspace() else "?" for one in text)


def cells(text: str) -> int:
    """Return the columns that a text takes: two for each wide character of East Asia, none for what is put over another one."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(one) else 1 + (unicodedata.east_asian_width(one) in "WF") for one in text)


def clipped(text: str, width: int) -> str:
    """Return a line with its end left out where it takes more columns than ``width``."""
    if cells(text) <= width:
        return text
    room = width - 1
    for end, one in enumerate(text):
        room -= cells(one)
        if room < 0:
            return text[:end] + "…"
    return text  # only marks over nothing


def aligned(rows: Sequence[Sequence[str]], indent: str = "", numeric: bool = False) -> list[str]:
    """Return rows with their columns below each other. Cells are shown as ``printable`` has them.

    Args:
        rows: The cells; every row has as many.
        indent: What stands before each row.
        numeric: Whether all columns but the first are flush right.
    """
    columns = []
    for place, found in enumerate(zip(*rows, strict=True)):
        column = list(map(printable, found))
        widest = max(map(cells, column))
        padded = ((cell, " " * (widest - cells(cell))) for cell in column)
        columns.append([space + cell if numeric and place else cell + space for cell, space in padded])
    return [(indent + (" " * GAP).join(row)).rstrip() for row in zip(*columns, strict=True)]
