"""Text laid out within a width, and values with their units, as people read them."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from itertools import zip_longest

from accelmetrics.schemas.text import GAP, aligned, printable


def wrapped(text: str, width: int, indent: str) -> list[str]:
    """Return a text on lines of at most so many columns, each indented; only a longer word is longer. Shown as ``printable`` has it."""
    words = printable(" ".join(text.split()))
    return textwrap.wrap(words, width, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def listing(head: Sequence[str], rows: Sequence[Sequence[str]], as_json: bool) -> str:
    """Return what there is of one sort, a line each below a heading, or a JSON array: the name, what it is, and what it needs."""
    if as_json:
        return json.dumps([dict(zip(("name", "summary", "needs"), row, strict=True)) for row in rows], indent=2, ensure_ascii=False) + "\n"
    return "\n".join(aligned([head, *rows])) + "\n"


def packed(pairs: Sequence[tuple[str, str]], width: int, indent: str) -> list[str]:
    """Return names with values, side by side as often as there is room, to be read downwards."""
    if not pairs:
        return []
    lines = aligned(pairs, numeric=True)
    room = max(map(len, lines)) + 2 * GAP
    columns = max(1, (width - len(indent) + 2 * GAP) // room)
    height = -(-len(lines) // columns)
    stacks = [lines[start : start + height] for start in range(0, len(lines), height)]
    return [(indent + "".join(cell.ljust(room) for cell in row)).rstrip() for row in zip_longest(*stacks, fillvalue="")]


def seconds(value: float | None) -> str:
    """Return a duration, short."""
    if value is None:
        return "unknown"
    return f"{value * 1000:.3g} ms" if value < 1 else f"{value:.3g} s"
