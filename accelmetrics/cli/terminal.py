"""The terminal: single keys, and something to draw on: the whole screen, or its last row beside a program that has the rest.

Nothing here knows what is drawn. What a block changes is changed back when it ends. ``curses`` and rich's live displays have the whole
screen or none of it: neither keeps one row of a terminal that another program writes to.
"""

from __future__ import annotations

import fcntl
import marshal
import os
import re
import select
import struct
import subprocess
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from accelmetrics.cli.output import WriteError, descriptor_of, write_all

ENTER, LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
"""The other screen, without a cursor; and back."""
HOME, REST_OF_LINE, REST_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"
SAVE, RESTORE = "\x1b7", "\x1b8"
"""The cursor's place and style."""
DOWN, UP = "\x1bD", "\x1b[A"
"""One row; down from the last one, everything scrolls up."""
PLAIN = "\x1b[0m"
GIVE_BACK = f"{SAVE}{PLAIN}\x1b[r\x1b[9999;1H\x1b[2K{RESTORE}"
"""All rows scroll again, and the last one is empty, whichever that is: terminals go no further than to their last row."""
FEWEST_ROWS, FEWEST_COLUMNS = 3, 20
CHUNK = 256
ESCAPES = re.compile(rb"\x1b(\[[0-?]*[ -/]*[@-~]|O.|.)?", re.DOTALL)
"""What arrow, function and Alt keys send: none of it is a key that is asked for."""
MARK = "ACCELMETRICS_LINE"
"""Tells commands below on which terminal a line is drawn already."""
GUARD = str(Path(__file__).with_name("terminal_guard.py"))


def capable(descriptor: int) -> bool:
    """Return whether it is a terminal on which the cursor can be moved."""
    return os.isatty(descriptor) and os.environ.get("TERM", "dumb") not in ("", "dumb", "unknown")


def in_foreground(descriptor: int) -> bool:
    """Return whether this process may draw on the terminal now: no other job of its session has it."""
    try:
        return os.tcgetpgrp(descriptor) == os.getpgrp()
    except OSError:  # of another session: no jobs take turns on it
        return True


@contextmanager
def whole_screen(write: Callable[[str], None]) -> Iterator[Callable[[str], None]]:
    """Yield a function that draws on the whole screen, in place; restore the screen afterwards.

    Args:
        write: Takes what is drawn, all at once: a picture is never seen half.
    """

    def draw(picture: str) -> None:
        lines = picture.rstrip("\n").split("\n")
        write(HOME + f"{REST_OF_LINE}\r\n".join(lines) + REST_OF_LINE + REST_OF_SCREEN)

    write(ENTER)
    try:
        yield draw
    finally:
        with suppress(WriteError, BrokenPipeError):  # the terminal has gone
            write(PLAIN + LEAVE)


def no_keys(seconds: float) -> str:
    """Wait so many seconds: no key is ever pressed."""
    time.sleep(seconds)
    return ""


@contextmanager
def keyboard() -> Iterator[Callable[[float], str]]:
    """Yield a function that returns the keys pressed, in lower case; none where standard input is no terminal.

    It waits for one, at most so many seconds. Ctrl-C and Ctrl-Z stay the signals that they
    are. The terminal is as it was when the block ends, however it ends.
    """
    descriptor = descriptor_of(sys.stdin)
    if descriptor is None or not os.isatty(descriptor):
        yield no_keys
        return

    def pressed(seconds: float) -> str:
        try:
            if not select.select([descriptor], [], [], seconds)[0]:
                return ""
            data = os.read(descriptor, CHUNK)
        except OSError:
            data = b""
        if not data:  # the terminal has gone: nothing more will come
            return no_keys(seconds)
        return ESCAPES.sub(b"", data).decode("ascii", "ignore").lower()

    before = termios.tcgetattr(descriptor)
    try:
        with suppress(termios.error):
            tty.setcbreak(descriptor, termios.TCSADRAIN)
        yield pressed
    finally:
        with suppress(termios.error):  # the terminal has gone
            termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


class TerminalGuard:
    """A process that changes a terminal back where this one is killed before it could (``terminal_guard.py``). It lives until then.

    Where none can be started the terminal stays as it was left, as any program leaves it that is killed.

    Args:
        screen: The terminal that is drawn on.
        keys: The one that keys are read from.
    """

    def __init__(self, screen: int, keys: int) -> None:
        self._streams = screen, keys
        self._process: subprocess.Popen[bytes] | None = None

    def expect(self, text: str, sizes: tuple[bytes, bytes] | None = None, modes: tuple[list[Any], list[Any]] | None = None) -> None:
        """Say what changes the terminal back: before it is changed, and again when that is another thing.

        Args:
            text: What is written to it.
            sizes: As it is, and as it was.
            modes: As they are, and as they were.
        """
        with suppress(OSError):
            if self._process is None:
                screen, keys = self._streams
                script = [sys.executable, "-I", "-S", GUARD]
                self._process = subprocess.Popen(script, stdin=subprocess.PIPE, stdout=screen, stderr=keys, start_new_session=True)
            self._tell({"text": text.encode(), "sizes": sizes, "modes": modes})

    def relax(self) -> None:
        """Say that nothing has to be changed back."""
        self._tell(None)

    def close(self) -> None:
        """End it: the terminal is as it was."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def _tell(self, what: dict[str, Any] | None) -> None:
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError):  # it was killed
                self._process.stdin.write(marshal.dumps(what))
                self._process.stdin.flush()


class Size(NamedTuple):
    """Of a terminal, as it says itself and as programs on it are told.

    Attributes:
        rows: Rows of text.
        columns: Columns of text.
        width: Of the window in pixels, mostly 0.
        height: Likewise.
    """

    rows: int
    columns: int
    width: int
    height: int

    def with_rows(self, more: int) -> Size:
        """Return the size with so many more rows, as the program beside the line is told, or as it was.

        The odd height tells it from a window that was made one row lower.
        """
        return self._replace(rows=self.rows + more, height=self.height ^ 1)

    @property
    def packed(self) -> bytes:
        """As the system has it."""
        return struct.pack("HHHH", *self)


class LastRow:
    """The last row of a terminal that another program writes to, kept out of that program's way.

    The program is told that the terminal has a row less, and the terminal scrolls only the rows above. Nothing is drawn while
    another job has the terminal, nor where writing would have to wait.

    Args:
        descriptor: Of the terminal, open for writing; None for none, and then nothing is drawn.
    """

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = -1 if descriptor is None else descriptor
        self._guard = TerminalGuard(self._descriptor, self._descriptor)
        self._told: Size | None = None
        self._content: object = None
        self._usable = descriptor is not None and capable(descriptor) and os.environ.get(MARK) != terminal_number(descriptor)

    @property
    def environment(self) -> dict[str, str]:
        """What a command below is to have in its environment: it says that the row is taken."""
        return {} if self._told is None else {MARK: terminal_number(self._descriptor)}

    def draw(self, content: object, text: Callable[[int], str]) -> None:
        """Show a content, unless it is shown already, in a window of this size.

        Args:
            content: Is recognised as an object.
            text: Words it in so many columns, of which the last is not one: behind it some terminals begin a new row.
        """
        if not self._usable:
            return
        try:
            if not in_foreground(self._descriptor):
                self.release()
            elif content is self._content and self._told == read_size(self._descriptor):
                return
            # After Ctrl-S it takes no text.
            elif select.select([], [self._descriptor], [], 0)[1] and (told := self._reserved()) is not None:
                self._send(f"{SAVE}\x1b[{told.rows + 1};1H{PLAIN}{text(told.columns - 1)}{REST_OF_LINE}{RESTORE}")
                self._content = content
        except OSError:  # the terminal has gone
            self._usable = False

    def release(self) -> None:
        """Give the row back, empty; the next text takes it again."""
        told, self._told = self._told, None
        if told is None:
            return
        with suppress(OSError):
            size = read_size(self._descriptor)
            full = told.with_rows(1) if size == told else size
            self._send(GIVE_BACK)
            if full != size:
                _write_size(self._descriptor, full)
        self._guard.relax()

    def close(self) -> None:
        """Give the row back for good."""
        self.release()
        self._guard.close()

    def _reserved(self) -> Size | None:
        """Take the row, again where the window has another size now; return the size that the program is told, None without room."""
        size = read_size(self._descriptor)
        if size == self._told:
            return size
        self._told = None
        if size.rows < FEWEST_ROWS or size.columns < FEWEST_COLUMNS:
            return None
        told = size.with_rows(-1)
        self._guard.expect(GIVE_BACK, (told.packed, size.packed))
        self._send(f"{DOWN}{UP}{SAVE}\x1b[1;{told.rows}r{RESTORE}")
        _write_size(self._descriptor, told)
        self._told = told
        return told

    def _send(self, text: str) -> None:
        write_all(self._descriptor, text.encode("utf-8"))


def begin_line(descriptor: int) -> None:
    """Go to the beginning of a line: the next one, if something stands on this one.

    Spaces for a whole line end at the right edge of this one where nothing stood on it, and else on the next one.
    """
    with suppress(OSError):
        if capable(descriptor):
            write_all(descriptor, f"{' ' * read_size(descriptor).columns}\r{REST_OF_LINE}".encode())


def terminal_number(descriptor: int) -> str:
    """Return the device number of a terminal."""
    return str(os.fstat(descriptor).st_rdev)


def read_size(descriptor: int) -> Size:
    """Return the size of the terminal."""
    rows, columns, width, height = struct.unpack("HHHH", fcntl.ioctl(descriptor, termios.TIOCGWINSZ, bytes(8)))
    return Size(rows, columns, width, height)


def _write_size(descriptor: int, size: Size) -> None:
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, size.packed)
