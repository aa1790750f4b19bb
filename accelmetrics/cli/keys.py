"""Single keys from a terminal, without waiting for the end of a line and without showing them."""

from __future__ import annotations

import os
import re
import select
import sys
import termios
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import TracebackType

CHUNK = 256
ESCAPES = re.compile(rb"\x1b(\[[0-?]*[ -/]*[@-~]|O.|.)?", re.DOTALL)
"""What arrow, function and Alt keys send: none of it is a key of ours."""
LFLAG, CC = 3, 6
"""Places in what ``tcgetattr`` gives."""


class Keyboard:
    """Standard input while the block runs, if it is a terminal; else no key is ever pressed.

    Ctrl-C and Ctrl-Z stay the signals that they are. The terminal is as it was when the block ends, however it ends.
    """

    def __init__(self) -> None:
        self._descriptor = _terminal()
        self._before: list[Any] | None = None
        self._ended = False

    def __enter__(self) -> Keyboard:
        if self._descriptor is not None:
            with suppress(termios.error, OSError):
                before = termios.tcgetattr(self._descriptor)
                self._before = before
                termios.tcsetattr(self._descriptor, termios.TCSADRAIN, _key_by_key(before))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._descriptor is not None and self._before is not None:
            with suppress(termios.error, OSError):  # the terminal has gone
                termios.tcsetattr(self._descriptor, termios.TCSADRAIN, self._before)
            self._before = None

    @property
    def there(self) -> bool:
        """Whether there are keys to press."""
        return self._before is not None and not self._ended

    def pressed(self, seconds: float) -> str:
        """The keys pressed until now, in lower case; waits for one, at most so long."""
        if self._descriptor is None or not self.there:
            time.sleep(seconds)
            return ""
        try:
            if not select.select([self._descriptor], [], [], seconds)[0]:
                return ""
            data = os.read(self._descriptor, CHUNK)
        except OSError:
            data = b""
        self._ended = not data  # the terminal has gone: nothing more will come
        return ESCAPES.sub(b"", data).decode("ascii", "ignore").lower()


def _terminal() -> int | None:
    try:
        descriptor = sys.stdin.fileno()
        return descriptor if os.isatty(descriptor) else None
    except (AttributeError, OSError, ValueError):  # closed, or replaced by something that is no file
        return None


def _key_by_key(attributes: list[Any]) -> list[Any]:
    changed = [*attributes]
    changed[LFLAG] &= ~(termios.ICANON | termios.ECHO)
    changed[CC] = [*attributes[CC]]
    changed[CC][termios.VMIN], changed[CC][termios.VTIME] = 1, 0
    return changed
