"""Tokens that a command tells of, for ``accelmetrics run --tokens-from``: in what it prints, or in a file that it writes.

What it prints is read on its way: the command writes to a terminal of its own where it would have written to one, else to a pipe, and
each byte is written on at once.
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
"""The name of a group that matches a running total; any other group matches the tokens of its line."""
LINE_END = re.compile(rb"[\r\n]")
"""Progress bars end each state of a line with a carriage return."""
OUTPUT = (1, 2)
LONGEST_LINE = 1 << 16
CHUNK = 1 << 16
LOOK = 0.05
"""Seconds between two looks at signals, while output is written on after the command has ended."""


def token_pattern(text: str) -> re.Pattern[str]:
    """Parse a regular expression whose first group, or the one called ``total``, matches a number."""
    try:
        found = re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no regular expression: {error}") from None
    if not found.groups:
        raise argparse.ArgumentTypeError(f"{text!r} has no group that matches the number: write it as in 'tokens: ([0-9]+)'")
    return found


class TokenLines:
    """Finds tokens in text that arrives in pieces.

    Args:
        pattern: Matches a line and its number.
        told: Called with the tokens of each line that matches: those of the line, or what a total has grown by.

    Attributes:
        count: All of them.
    """

    def __init__(self, pattern: re.Pattern[str], told: Callable[[float], object]) -> None:
        self._pattern, self._told = pattern, told
        self._group: str | int = TOTAL if TOTAL in pattern.groupindex else 1
        self._total = self.count = 0.0

    def feed(self, before: bytes, data: bytes) -> bytes:
        """Read the lines that are complete; return what follows the last of them, which is given again with the next piece."""
        *lines, rest = LINE_END.split(before + data)
        for line in lines:
            self._read(line)
        return rest[-LONGEST_LINE:]

    def end(self, rest: bytes) -> None:
        """Read a last line that has no end."""
        self._read(rest)

    def _read(self, line: bytes) -> None:
        found = self._pattern.search(line.decode(errors="replace"))
        if found is None:
            return
        try:
            number = float((found[self._group] or "").replace(",", "").replace("_", ""))
        except ValueError:
            return
        if isfinite(number) and self._group == TOTAL:
            # One that is lower began anew.
            number, self._total = number - (self._total if number >= self._total else 0.0), number
        if isfinite(number) and number > 0:
            self.count += number
            self._told(number)


class TokenSource:
    """Where the command tells of tokens; this one is of a command that is not asked.

    Attributes:
        redirected: By descriptor of the command, the descriptor that it is to write to in place of ours.
    """

    def __init__(self) -> None:
        self.redirected: dict[int, int] = {}

    def begin(self) -> None:
        """Begin, when the command has been started."""

    def look(self) -> None:
        """Read what has come, a few times a second."""

    def finish(self, given_up: Callable[[], bool]) -> None:
        """Read the rest, when the command has ended; end early where ``given_up`` says so."""


class TokenFile(TokenSource):
    """Lines that are appended to a file, which may come later and be replaced."""

    def __init__(self, lines: TokenLines, path: str) -> None:
        super().__init__()
        self._lines, self._path = lines, Path(path)
        self._read = self._state()
        self._rest = b""

    def _state(self) -> tuple[int, int]:
        """Return the number of the file and its size."""
        try:
            found = self._path.stat()
        except OSError:
            return 0, 0
        return found.st_ino, found.st_size

    def look(self) -> None:
        """Read what was appended."""
        number, size = self._state()
        if (number, size) == self._read:
            return
        known, place = self._read
        if number != known or size < place:
            place, self._rest = 0, b""
        try:
            with self._path.open("rb") as file:
                file.seek(place)
                while data := file.read(CHUNK):
                    place += len(data)
                    self._rest = self._lines.feed(self._rest, data)
        except OSError:  # it has gone again, or may not be read
            return
        self._read = number, place

    def finish(self, given_up: Callable[[], bool]) -> None:
        """Read the rest."""
        self.look()
        self._lines.end(self._rest)


class TokenOutput(TokenSource):
    """What the command prints, on standard output and standard error as they are now; both on one terminal stay in order."""

    def __init__(self, lines: TokenLines) -> None:
        super().__init__()
        self._lines = lines
        self._copies: list[tuple[int, int]] = []  # what is read, and where it is written on
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
        """Begin to write on what is printed."""
        for number in set(self.redirected.values()):
            os.close(number)
        for source, target in self._copies:
            thread = threading.Thread(target=self._copy, args=(source, target), name="accelmetrics-output", daemon=True)
            thread.start()
            self._threads.append(thread)

    def finish(self, given_up: Callable[[], bool]) -> None:
        """Write on what the command has printed."""
        os.close(self._end)
        for thread in self._threads:
            while thread.is_alive() and not given_up():  # a terminal may be stopped, a reader slow
                thread.join(LOOK)

    def _copy(self, source: int, target: int) -> None:
        """Write on what is printed, until all have closed it; when the command has ended, until nothing is left to read."""
        rest = b""
        while source in select.select([source, self._ended], [], [])[0]:
            try:
                data = os.read(source, CHUNK)
            except OSError:  # a terminal that nobody has open
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
            except OSError:  # whoever read it has gone: the command is told so when it prints again
                break
        os.close(source)
        self._lines.end(rest)


def _terminal_like(descriptor: int) -> tuple[int, int]:
    """Open a terminal of the size of another, that passes on what is printed as it is; return its two ends."""
    source, target = pty.openpty()
    modes = termios.tcgetattr(target)
    modes[1] &= ~termios.OPOST  # the user's terminal does that
    termios.tcsetattr(target, termios.TCSANOW, modes)
    fcntl.ioctl(target, termios.TIOCSWINSZ, fcntl.ioctl(descriptor, termios.TIOCGWINSZ, bytes(8)))
    return source, target
