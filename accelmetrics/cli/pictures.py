"""What the live view shows, drawn by rich into text; and the messages that wait until the terminal is free again."""

from __future__ import annotations

import io
import logging
import os
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
