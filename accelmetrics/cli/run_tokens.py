"""Token counts in a command's output, or in a file that it writes, for ``accelmetrics run --tokens-from``.

Output is read in passing: the command writes to a pipe, or to a new terminal if our stream is one, and each byte is forwarded at once.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import re
import select
import termios
import threading
from collections.abc import Callable
from math import isfinite
from pathlib import Path

TOTAL = "total"
"""Name of the group that matches a running total. Any other group matches the number of tokens in its line."""
LINE_END = re.compile(rb"[\r\n]")
"""End of a line. Progress bars end each update with a carriage return."""
OUTPUT = (1, 2)
LONGEST_LINE = 1 << 16
CHUNK = 1 << 16
LOOK = 0.05
"""Seconds between two checks for signals, while output is forwarded after the end of the command."""


def token_pattern(text: str) -> re.Pattern[str]:
    """Parse a regular expression in which the first group, or the group named ``total``, matches a number.

    Raises:
        ArgumentTypeError: The text is no regular expression, or has no group.
    """
    try:
        found = re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no regular expression: {error}") from None
    if not found.groups:
        raise argparse.ArgumentTypeError(f"{text!r} has no group for the number: write one, as in 'tokens: ([0-9]+)'")
    return found


class TokenLines:
    """Counter of tokens in text that arrives in pieces.

    Args:
        pattern: Matches a line and its number.
        report: Called with the number of new tokens of each matching line: its number, or the growth of a running total.

    Attributes:
        count: All tokens up to now.
    """

    def __init__(self, pattern: re.Pattern[str], report: Callable[[float], object]) -> None:
        self._pattern, self._report = pattern, report
        self._group: str | int = TOTAL if TOTAL in pattern.groupindex else 1
        self._total = self.count = 0.0

    def feed(self, before: bytes, data: bytes) -> bytes:
        """Read the complete lines. Return the text after the last of them, which is to be passed as ``before`` next time."""
        *lines, rest = LINE_END.split(before + data)
        for line in lines:
            self.read(line)
        return rest[-LONGEST_LINE:]

    def read(self, line: bytes) -> None:
        """Read one line."""
        found = self._pattern.search(line.decode(errors="replace"))
        if found is None:
            return
        try:
            number = float((found[self._group] or "").replace(",", "").replace("_", ""))
        except ValueError:
            return
        if isfinite(number) and self._group == TOTAL:
            # A lower total is a new count from zero, as after a restart of the training.
            number, self._total = number - (self._total if number >= self._total else 0.0), number
        if isfinite(number) and number > 0:
            self.count += number
            self._report(number)


class TokenSource:
    """Source of a command's token counts. This base class is used without ``--tokens-from`` and reads nothing.

    Attributes:
        redirected: The descriptor that the command writes to in place of ours, by its descriptor (1 or 2).
    """

    def __init__(self) -> None:
        self.redirected: dict[int, int] = {}

    def begin(self) -> None:
        """Begin reading, after the command has started."""

    def look(self) -> None:
        """Read new text. It is called a few times a second."""

    def finish(self, given_up: Callable[[], bool]) -> None:
        """Read the rest, after the command has ended. End early if ``given_up`` returns true."""


class TokenFile(TokenSource):
    """Source that reads lines appended to a file. The file may be created later and may be replaced."""

    def __init__(self, lines: TokenLines, path: str) -> None:
        super().__init__()
        self._lines, self._path = lines, Path(path)
        self._read = self._state()  # lines of earlier runs, which are in the file already, do not count
        self._rest = b""

    def _state(self) -> tuple[int, int]:
        """Return the inode number of the file and its size; 0 and 0 without a file."""
        try:
            found = self._path.stat()
        except OSError:
            return 0, 0
        return found.st_ino, found.st_size

    def look(self) -> None:
        """Read the appended text."""
        number, size = self._state()
        if (number, size) == self._read:
            return
        known, place = self._read
        if number != known or size < place:  # replaced or truncated
            place, self._rest = 0, b""
        try:
            with self._path.open("rb") as file:
                file.seek(place)
                while data := file.read(CHUNK):
                    place += len(data)
                    self._rest = self._lines.feed(self._rest, data)
        except OSError:  # the file was deleted meanwhile, or may not be read
            return
        self._read = number, place

    def finish(self, given_up: Callable[[], bool]) -> None:
        """Read the rest, and a last line without a line end."""
        self.look()
        self._lines.read(self._rest)


class TokenOutput(TokenSource):
    """Source that reads a command's output and forwards it to our standard output and standard error.

    If both are one terminal, they share one new terminal, so that their texts stay in order.
    """

    def __init__(self, lines: TokenLines) -> None:
        super().__init__()
        self._lines = lines
        self._copies: list[tuple[int, int]] = []  # descriptor to read from, descriptor to forward to
        for number in OUTPUT:
            try:
                target = os.dup(number)
            except OSError:  # closed
                continue
            same = next((other for other in self.redirected if os.path.sameopenfile(number, other)), None)
            if same is not None:
                self.redirected[number] = self.redirected[same]
                continue
            source, self.redirected[number] = _terminal_like(number) if os.isatty(number) else os.pipe()
            self._copies.append((source, target))
        self._ended, self._end = os.pipe()
        self._threads: list[threading.Thread] = []

    def begin(self) -> None:
        """Begin to forward the output."""
        # The command alone may hold the write ends: else the read ends would never report the end of the output.
        for number in set(self.redirected.values()):
            os.close(number)
        for source, target in self._copies:
            thread = threading.Thread(target=self._copy, args=(source, target), name="accelmetrics-output", daemon=True)
            thread.start()
            self._threads.append(thread)

    def finish(self, given_up: Callable[[], bool]) -> None:
        """Forward the rest of the output."""
        os.close(self._end)
        for thread in self._threads:
            while thread.is_alive() and not given_up():  # the terminal may be stopped by Ctrl-S, or the reader slow
                thread.join(LOOK)

    def _copy(self, source: int, target: int) -> None:
        """Forward output until all writers have closed it, or until the command has ended and nothing is left to read."""
        # A background process of the command may hold its output open for long after the end of the command.
        rest = b""
        while source in select.select([source, self._ended], [], [])[0]:
            try:
                data = os.read(source, CHUNK)
            except OSError:  # Linux reports EIO for a terminal that no process has open any more
                break
            if not data:
                break
            rest = self._lines.feed(rest, data)
            try:
                while data:
                    try:
                        data = data[os.write(target, data) :]
                    except BlockingIOError:
                        select.select([], [target], [])
            except OSError:  # our reader has gone: closing the source lets the command's next write fail too
                break
        os.close(source)
        self._lines.read(rest)


def _terminal_like(descriptor: int) -> tuple[int, int]:
    """Open a pseudo-terminal with the size of another terminal, which passes output through unchanged. Return both ends."""
    source, target = pty.openpty()
    modes = termios.tcgetattr(target)
    modes[1] &= ~termios.OPOST  # the user's terminal processes the output, for example newlines
    termios.tcsetattr(target, termios.TCSANOW, modes)
    fcntl.ioctl(target, termios.TIOCSWINSZ, fcntl.ioctl(descriptor, termios.TIOCGWINSZ, bytes(8)))
    return source, target
