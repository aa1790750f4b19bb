"""Text for display: safe and shortened texts, and one wording, rounding and set of units for all views.

`dump`, `watch`, the page, reports and the console lines format numbers with the functions below, so that a reading looks the same
everywhere: ``13 %``, ``61.0/79.6 GiB``, ``612/700 W``, ``64 °C``, ``2.2 h``. Ties round away from zero, as in JavaScript. Complete
listings (`dump --all`, details) keep two decimals by :func:`quantity`. The page has the same rules in
``views/page/static/numbers.js``, and a test compares the two.
"""

from __future__ import annotations

import re
import reprlib
import unicodedata
from collections.abc import Container, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import zip_longest
from math import copysign, floor, inf, nextafter

LABELS = {"1": "", "Cel": "°C", "MiBy": "MiB", "GiBy": "GiB", "us": "µs"}
"""Units that are displayed differently from the catalogue's spelling."""
SCALED = {"By": "", "By/s": "/s"}
"""Units that are displayed with a prefix, and the text after it."""
PREFIXES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
GIB, MIB = 2.0**30, 2.0**20
KILO_FROM, KWH_FROM = 10_000.0, 100_000.0
"""Values from which power (with its limit) is displayed in kW, and energy in kWh."""
GAP = 2
"""Spaces between two columns."""
LONGEST_SHOWN = 200
"""Most characters of the program's value or name in a message."""
CALL = re.compile(r"^[a-z]\w*[A-Z]\w*: | \([A-Z]+(?:_[A-Z]+)+\)$")
"""The driver's call and error code around its message in words. They belong in details only."""


_shortened = reprlib.Repr()
_shortened.maxother = LONGEST_SHOWN


def shown(value: object) -> str:
    """Return the ``repr`` of any value, with the middle of a long one left out; the type's name if ``repr`` raises."""
    if type(value) is str and len(value) > LONGEST_SHOWN:
        value = value[: LONGEST_SHOWN // 2] + value[-LONGEST_SHOWN // 2 :]
    return _shortened.repr_instance(value, 0)


def kind_of(value: object) -> str:
    """Return the name of a value's type."""
    # Not `type(value).__name__`: a metaclass may define any attribute.
    name: str = vars(type)["__name__"].__get__(type(value))
    return name[:LONGEST_SHOWN]


def printable(text: str) -> str:
    """Return a text that is safe for a terminal: each unprintable character becomes a question mark, white space a space."""
    return text if text.isprintable() else "".join(one if one.isprintable() else " " if one.isspace() else "?" for one in text)


def in_words(detail: str) -> str:
    """Return a driver's message without its call and error code, safe for a terminal."""
    return CALL.sub("", printable(detail))


def cells(text: str) -> int:
    """Return the number of terminal columns of a text: two for a wide East Asian character, none for a combining one."""
    if text.isascii():
        return len(text)
    return sum(map(_columns, text))


@lru_cache(maxsize=4096)
def _columns(one: str) -> int:
    if unicodedata.combining(one) or unicodedata.category(one) in ("Mn", "Me"):
        return 0
    return 1 + (unicodedata.east_asian_width(one) in "WF")


def clipped(text: str, width: int) -> str:
    """Return a line, cut off with ``…`` if it takes more than ``width`` columns."""
    if cells(text) <= width:
        return text
    room = width - 1
    for end, one in enumerate(text):
        room -= cells(one)
        if room < 0:
            return text[:end] + "…"
    return text  # only combining characters remained


def wrapped(text: str, width: int, indent: str, breaks: bool = False) -> list[str]:
    """Return a text as indented lines of at most ``width`` columns. A longer word is longer, or broken. See ``printable``."""
    import textwrap

    words = printable(" ".join(text.split()))
    return textwrap.wrap(words, width, initial_indent=indent, subsequent_indent=indent, break_long_words=breaks, break_on_hyphens=False)


def hanging(text: str, width: int) -> list[str]:
    """Return a list item (``- one``) as lines of at most ``width`` columns. All lines but the first are indented."""
    return [f"  {line}" if number else line for number, line in enumerate(wrapped(text, width - 2, ""))]


def aligned(rows: Sequence[Sequence[str]], indent: str = "", numeric: bool = False, left: Container[int] = (0,)) -> list[str]:
    """Return rows as lines with aligned columns. See ``printable`` for the cells.

    Args:
        rows: The cells; all rows have the same number.
        indent: A prefix of each row.
        numeric: Whether columns are right-aligned.
        left: Indices of the columns that are left-aligned all the same.
    """
    columns = []
    for place, found in enumerate(zip(*rows, strict=True)):
        column = list(map(printable, found))
        widest = max(map(cells, column))
        padded = ((cell, " " * (widest - cells(cell))) for cell in column)
        columns.append([space + cell if numeric and place not in left else cell + space for cell, space in padded])
    return [(indent + (" " * GAP).join(row)).rstrip() for row in zip(*columns, strict=True)]


def fitted(rows: Sequence[Sequence[str]], width: int, indent: str = "", unbroken: float = inf) -> list[str]:
    """Return rows as ``aligned`` does, within so many columns: the widest cells go on below.

    Args:
        rows: The cells; all rows have the same number.
        width: Columns of the screen.
        indent: A prefix of each row.
        unbroken: Columns of the longest word that is never broken.
    """
    columns = list(zip(*rows, strict=True))
    widths = [max(map(cells, column)) for column in columns]
    least = [max((min(cells(word), unbroken) for cell in column for word in cell.split()), default=0) for column in columns]
    while sum(widths) + GAP * (len(widths) - 1) + len(indent) > width:
        places = [place for place, longest in enumerate(least) if widths[place] > longest]
        if not places:
            break
        widths[max(places, key=widths.__getitem__)] -= 1
    lines: list[tuple[str, ...]] = []
    for row in rows:
        parts = (wrapped(cell, most, "", breaks=True) if cells(cell) > most else [cell] for cell, most in zip(row, widths, strict=True))
        lines += zip_longest(*parts, fillvalue="")
    return aligned(lines, indent)


# Numbers and units


def fixed(value: float, digits: int = 0) -> str:
    """Return a number with this many decimals. Ties round away from zero, as JavaScript's ``toFixed`` does."""
    if value * 2 ** (digits + 1) % 2 == 1:  # a tie: Python would round it to the even neighbour
        value = nextafter(value, copysign(inf, value))
    text = f"{value:.{digits}f}"
    return text[1:] if text[0] == "-" and not text.strip("-0.") else text


def percent(value: float) -> str:
    """Return a percentage: ``13 %`` for 12.5."""
    return f"{fixed(value)} %"


def celsius(value: float) -> str:
    """Return a temperature: ``64 °C``."""
    return f"{fixed(value)} °C"


def memory(used: float, total: float | None = None) -> str:
    """Return an amount of memory, with its total if given, in the same unit: ``61.0/79.6 GiB``."""
    step = power(max(abs(used), total or 0.0), 1024, len(PREFIXES))
    return f"{of_limit(used, total, 1024**step, 1 if step else 0)} {PREFIXES[step]}"


def watts(value: float, limit: float | None = None) -> str:
    """Return a power, with its limit if given, in the same unit: ``612/700 W``; from 10 kW on, ``9.45/43.9 kW``."""
    if max(abs(value), limit or 0.0) < KILO_FROM:
        return f"{of_limit(value, limit)} W"
    return "/".join(figures(one / 1000) for one in (value, limit or None) if one is not None) + " kW"


def energy(joules: float) -> str:
    """Return an energy: ``312 J``; from 100,000 J on, ``86.412 kWh``."""
    return f"{fixed(joules)} J" if abs(joules) < KWH_FROM else f"{fixed(joules / 3.6e6, 3)} kWh"


def quantity(value: float, unit: str) -> str:
    """Return a value with its unit, exact except for bytes: ``300.25 W``, ``79.6 GiB``, ``909 B/s``."""
    if unit not in SCALED:
        return f"{number(value)} {LABELS.get(unit, unit)}".rstrip()
    step = power(abs(value), 1024, len(PREFIXES))
    return f"{fixed(value / 1024**step, 1 if step else 0)} {PREFIXES[step]}{SCALED[unit]}"


def power(largest: float, base: float, most: int) -> int:
    """Return the exponent, below ``most``, of the power of ``base`` by which values up to ``largest`` are divided."""
    return next((found for found in range(most - 1, 0, -1) if largest >= base**found), 0)


def figures(value: float) -> str:
    """Return a number with three significant digits, or all digits before the point: ``9.45``, ``43.9``, ``1234``."""
    return fixed(value, max(0, 3 - len(f"{abs(floor(value))}")))


def number(value: float) -> str:
    """Return a number: integers and large numbers without decimals, small ones with two digits, others with two decimals."""
    if value == int(value) or abs(value) >= 10_000:
        return fixed(value)
    return f"{value:.2g}" if abs(value) < 0.1 else fixed(value, 2).rstrip("0").rstrip(".")


def of_limit(value: float, limit: float | None, scale: float = 1.0, digits: int = 0) -> str:
    """Return a number with its limit, if it has one, both with this many decimals: ``45.2/80.0``."""
    return fixed(value / scale, digits) + (f"/{fixed(limit / scale, digits)}" if limit else "")


def counted(number: int, what: str) -> str:
    """Return a count with its noun: ``1 device``, ``3 devices``."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """Return a duration, rounded down, in its largest unit: ``52 s``, ``14 min``, ``2.2 h``, ``3.5 d``."""
    if seconds < 60:
        return f"{floor(max(0.0, seconds))} s"
    if seconds < 3600:
        return f"{floor(seconds / 60)} min"
    unit, size = ("h", 3600) if seconds < 2 * 86400 else ("d", 86400)
    return f"{number(floor(seconds * 10 / size) / 10)} {unit}"


def brief(seconds: float | None) -> str:
    """Return the duration of a call: ``2.5 ms``, ``1.2 s``."""
    if seconds is None:
        return "unknown"
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


BLOCKS, BAR = "▁▂▃▄▅▆▇█", "█░"
"""Characters for values from the smallest to the largest; characters of a bar, full and empty."""


def block(value: float, top: float, marks: str = BLOCKS) -> str:
    """Return the character for a value between 0 and ``top``: the first for the smallest, the last for the largest."""
    return marks[min(len(marks) - 1, int(min(1.0, max(0.0, value / top)) * len(marks)))]


def bar(percent: float, columns: int, marks: str = BAR) -> str:
    """Return a percentage as a bar of this many columns. The two marks are for full and empty columns."""
    filled = round(min(max(percent, 0.0), 100.0) / 100 * columns)
    return marks[0] * filled + marks[1] * (columns - filled)


# Words

STATE_MARKS: Mapping[str, str] = {"ok": "", "warn": "!", "bad": "X", "missing": "-"}
STATE_WORDS: Mapping[str, str] = {"ok": "ok", "warn": "warning", "bad": "critical", "missing": "no data"}
"""Words for a device's state. A device without values shows the word of its reason instead (``schemas/errors.py``)."""
SEVERITY_MARKS: Mapping[str, str] = {"critical": "X", "warning": "!", "info": ""}
ASCII = str.maketrans({"°": "", "µ": "u", "…": "~", "–": "-", "—": "-", "│": "|", "·": "-", "²": "2", "×": "x"})
"""Replacements for characters on terminals without Unicode: ``64 °C`` is shown as ``64 C``."""


def consecutive(keys: Iterable[str]) -> list[list[str]]:
    """Return device keys in their order, in groups of consecutive numbers: ``gpu.0 gpu.1 npu.4`` are two groups. Duplicates count once."""
    runs: list[list[str]] = []
    for key in dict.fromkeys(keys):
        head, _, number = key.rpartition(".")
        before, _, last = runs[-1][-1].rpartition(".") if runs else ("", "", "")
        if number.isdecimal() and last.isdecimal() and head == before and int(number) == int(last) + 1:
            runs[-1].append(key)
        else:
            runs.append([key])
    return runs
