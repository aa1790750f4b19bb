"""What the live view shows, drawn by rich into text; and the messages that wait until the terminal is free again."""

from __future__ import annotations

import io
import logging
import os
import textwrap
import threading
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from accelmetrics.cli.output import say
from accelmetrics.schemas.errors import MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import RenderableType

USUAL = os.terminal_size((80, 24))
KEPT = 100
"""Messages that wait; the oldest go."""
MOST_SAID, FEW_LINES = 3, 3
"""Rows that a message may have, and rows of a terminal on which it takes the keys' place."""


class Painter:
    """Draws.

    Args:
        descriptor: Of the terminal.

    Raises:
        MissingDependencyError: rich is not installed.
    """

    def __init__(self, descriptor: int) -> None:
        try:
            from rich.console import Console
        except ImportError:
            raise MissingDependencyError("rich", "rich") from None
        self._descriptor = descriptor
        self._text = io.StringIO()
        self._console = Console(file=self._text, force_terminal=True, highlight=False, markup=False, emoji=False, legacy_windows=False)

    @property
    def size(self) -> os.terminal_size:
        """Of the terminal, as it is now."""
        with suppress(OSError):
            columns, lines = os.get_terminal_size(self._descriptor)
            return os.terminal_size((columns or USUAL.columns, lines or USUAL.lines))
        return USUAL

    def paint(self, parts: Sequence[RenderableType], size: os.terminal_size) -> str:
        """The parts below each other, cut to the size."""
        self._text.seek(0)
        self._text.truncate()
        for part in parts:
            self._console.print(part, width=size.columns, overflow="ellipsis", no_wrap=True, crop=True)
        return "\n".join(self._text.getvalue().split("\n")[: size.lines])


def foot(said: str, keys: Sequence[str], size: os.terminal_size, wanted: int) -> list[str]:
    """The rows below the table: what was said, and the keys.

    Args:
        said: A message; empty: none, and an empty row where there is room for one.
        keys: The same in fewer and fewer words.
        size: Of the terminal.
        wanted: Rows that the table would take.
    """
    fitting = next((words for words in keys if len(words) <= size.columns), keys[-1])
    if not said:
        return ["", fitting] if size.lines >= wanted + 2 else [fitting]
    room = max(1, min(MOST_SAID, size.lines - wanted - 1))
    return [*_rows(said, size.columns, room), *([fitting] if size.lines > FEW_LINES else [])]


def _rows(text: str, columns: int, most: int) -> list[str]:
    """A text on at most so many rows; where it is longer its middle is left out: at the end are a file's name and a reason."""
    rows = textwrap.wrap(text, columns, break_on_hyphens=False)
    if len(rows) <= most:
        return rows
    room = columns * most
    begin, end = room // 4, room - room // 4 - 1
    text = f"{text[:begin]}…{text[len(text) - end :]}"
    return [text[start : start + columns] for start in range(0, room, columns)]


class Kept(logging.Handler):
    """Keeps messages while the screen is in use, and shows each there.

    Args:
        show: Takes a message.
    """

    def __init__(self, show: Callable[[str], None]) -> None:
        super().__init__()
        self._show = show
        self._messages: deque[str] = deque(maxlen=KEPT)
        self._guard = threading.Lock()

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one."""
        with self._guard:
            self._messages.append(self.format(record))
        self._show(record.getMessage())

    def tell(self) -> None:
        """Write those that were kept to standard error."""
        with self._guard:
            messages, self._messages = self._messages, deque(maxlen=KEPT)
        for message in messages:
            say(message)
