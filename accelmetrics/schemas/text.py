"""Texts made fit to be shown: on one line, within a width, without control characters; and values with their units."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache

LABELS = {"1": "", "Cel": "°C", "MiBy": "MiB", "GiBy": "GiB", "us": "µs"}
"""Units that are written otherwise than the catalogue spells them."""
SCALED = {"By": "", "By/s": "/s"}
"""Units that are shown with a prefix, and what stands behind it."""
PREFIXES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
GIB, MIB = 2.0**30, 2.0**20
GAP = 2
"""Spaces between two columns."""
CALL = re.compile(r"^[a-z]\w*[A-Z]\w*: | \([A-Z]+(?:_[A-Z]+)+\)$")
"""The driver's call and its code around what it says in words: they are details."""


def printable(text: str) -> str:
    """Return a text that changes nothing about the terminal that it is shown on: what is not to be seen is a question mark."""
    return text if text.isprintable() else "".join(one if one.isprintable() else " " if one.isspace() else "?" for one in text)


def in_words(detail: str) -> str:
    """Return what a driver says without the call that said it and the code for it, fit for a terminal."""
    return CALL.sub("", printable(detail))


def cells(text: str) -> int:
    """Return the columns that a text takes: two for each wide character of East Asia, none for what is put over another one."""
    if text.isascii():
        return len(text)
    return sum(map(_columns, text))


@lru_cache(maxsize=4096)
def _columns(one: str) -> int:
    if unicodedata.combining(one) or unicodedata.category(one) in ("Mn", "Me"):
        return 0
    return 1 + (unicodedata.east_asian_width(one) in "WF")


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


def quantity(value: float, unit: str) -> str:
    """Return a value with its unit: ``300.2 W``, ``79.6 GiB``."""
    if unit not in SCALED:
        return f"{number(value)} {LABELS.get(unit, unit)}".rstrip()
    step = 0
    while abs(value) >= 1024 and step < len(PREFIXES) - 1:
        value /= 1024
        step += 1
    return f"{number(round(value, 1))} {PREFIXES[step]}{SCALED[unit]}"


def number(value: float) -> str:
    """Return a number: whole ones and large ones whole, others with two places, small ones with two figures."""
    if value == int(value) or abs(value) >= 10_000:
        return f"{value:.0f}"
    return f"{value:.2g}" if abs(value) < 0.1 else f"{value:.2f}".rstrip("0").rstrip(".")
