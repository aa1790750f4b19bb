"""Text laid out within a width, and values with their units, as people read them."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence

from accelmetrics.schemas.text import aligned, printable


def wrapped(text: str, width: int, indent: str) -> list[str]:
    """Return a text on lines of at most so many columns, each indented; only a longer word is longer. Shown as ``printable`` has it."""
    words = printable(" ".join(text.split()))
    return textwrap.wrap(words, width, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def listing(head: Sequence[str], rows: Sequence[Sequence[str]], as_json: bool) -> str:
    """Return what there is of one sort, a line each below a heading, or a JSON array: the name, what it is, and what it needs."""
    if as_json:
        return json.dumps([dict(zip(("name", "summary", "needs"), row, strict=True)) for row in rows], indent=2, ensure_ascii=False) + "\n"
    return "\n".join(aligned([head, *rows])) + "\n"


def seconds(value: float | None) -> str:
    """Return a duration, short."""
    if value is None:
        return "unknown"
    return f"{value * 1000:.3g} ms" if value < 1 else f"{value:.3g} s"
