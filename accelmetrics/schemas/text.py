"""Texts made fit to be shown, within a width and without control characters; values with their units, and lengths of time."""

from __future__ import annotations

import re
import reprlib
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
LONGEST_SHOWN = 200
"""Characters of a value or a name of the program's that stand in a message."""
CALL = re.compile(r"^[a-z]\w*[A-Z]\w*: | \([A-Z]+(?:_[A-Z]+)+\)$")
"""The driver's call and its code around what it says in words: they are details."""


_shortened = reprlib.Repr()
_shortened.maxother = LONGEST_SHOWN


def shown(value: object) -> str:
    """Return the ``repr`` of a value that may be anything, without its middle where that is long; one that raises is named by its type."""
    if type(value) is str and len(value) > LONGEST_SHOWN:
        value = value[: LONGEST_SHOWN // 2] + value[-LONGEST_SHOWN // 2 :]
    return _shortened.repr_instance(value, 0)


def kind_of(value: object) -> str:
    """Return the name of a value's type, whatever attributes the value and its type have."""
    name: str = vars(type)["__name__"].__get__(type(value))
    return name[:LONGEST_SHOWN]


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


def wrapped(text: str, width: int, indent: str) -> list[str]:
    """Return a text on lines of at most so many columns, each indented; only a longer word is longer. Shown as ``printable`` has it."""
    import textwrap

    words = printable(" ".join(text.split()))
    return textwrap.wrap(words, width, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


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
    step = power(abs(value), 1024, len(PREFIXES))
    return f"{number(round(value / 1024**step, 1))} {PREFIXES[step]}{SCALED[unit]}"


def power(largest: float, base: float, most: int) -> int:
    """Return by which power of a base values up to ``largest`` are best divided, below ``most``."""
    return next((found for found in range(most - 1, 0, -1) if largest >= base**found), 0)


def number(value: float) -> str:
    """Return a number: whole ones and large ones whole, others with two places, small ones with two figures."""
    if value == int(value) or abs(value) >= 10_000:
        return f"{value:.0f}"
    return f"{value:.2g}" if abs(value) < 0.1 else f"{value:.2f}".rstrip("0").rstrip(".")


def of_limit(value: float, limit: float | None, scale: float = 1.0, digits: int = 0, limit_digits: int = 0) -> str:
    """Return a number beside its limit, where it has one, each with so many decimals: ``45.2/80``."""
    return f"{value / scale:.{digits}f}" + (f"/{limit / scale:.{limit_digits}f}" if limit else "")


def counted(number: int, what: str) -> str:
    """Return how many there are: ``1 device``, ``3 devices``."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """Return a length of time in its largest unit: ``12 s``, ``4 min``, ``3 h``, ``2 d``."""
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size or (unit == "min" and seconds >= size):
            return f"{seconds // size:.0f} {unit}"
    return f"{seconds:.0f} s"


def brief(seconds: float | None) -> str:
    """Return how long a call took: ``2.5 ms``, ``1.2 s``."""
    if seconds is None:
        return "unknown"
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


BLOCKS, BAR = "▁▂▃▄▅▆▇█", "█░"
"""Marks of values from the least to the greatest, and of a bar: what is full, what is empty."""


def block(value: float, top: float, marks: str = BLOCKS) -> str:
    """Return the mark of a value between 0 and ``top``: the first for the least, the last for the greatest."""
    return marks[min(len(marks) - 1, int(min(1.0, max(0.0, value / top)) * len(marks)))]


def bar(percent: float, columns: int, marks: str = BAR) -> str:
    """Return a share as a bar of so many columns, of two marks: what is full, and what is empty."""
    filled = round(min(max(percent, 0.0), 100.0) / 100 * columns)
    return marks[0] * filled + marks[1] * (columns - filled)
