"""The terminal: reading single keys, and drawing on the whole screen or on the last row below another program's output.

This module does not know the content of the drawing. Every block restores the terminal when it ends. ``curses`` and rich's live
displays take the whole screen: neither can keep one row of a terminal that another program writes to.
"""

from __future__ import annotations

import codecs
import fcntl
import marshal
import os
import re
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time
import tty
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any, Literal, NamedTuple

from accelmetrics.backends.kit.watchdog import script
from accelmetrics.cli.output import WriteError, descriptor_of, write_all

MOUSE, NO_MOUSE = "\x1b[?1000h\x1b[?1006h", "\x1b[?1006l\x1b[?1000l"
"""Turn reports of clicks and of the wheel on, and off. The SGR form (1006) has no limit of 95 columns."""
ASK_BACKGROUND = "\x1b]11;?\x1b\\"
"""Asks a terminal for its background colour (OSC 11). A terminal that does not know this query does not answer."""
ENTER, LEAVE = "\x1b[?1049h", f"{NO_MOUSE}\x1b[?2026l\x1b[?25h\x1b[?1049l"
"""Switch to the alternate screen, and back to the normal one with all modes that are used here turned off."""
BEGIN, END = "\x1b[?2026h\x1b[?25l", "\x1b[?25h\x1b[?2026l"
"""Begin and end a synchronised update (mode 2026). The cursor is hidden meanwhile, so that it does not jump about."""
EMPTY, REST_OF_LINE = "\x1b[2J", "\x1b[K"
SAVE, RESTORE = "\x1b7", "\x1b8"
"""Save and restore the cursor's position and style."""
DOWN, UP = "\x1bD", "\x1b[A"
"""Move the cursor by one row. Moving down from the last row scrolls everything up."""
PLAIN = "\x1b[0m"
GIVE_BACK = f"{SAVE}{PLAIN}\x1b[r\x1b[9999;1H\x1b[2K{RESTORE}"
"""Let all rows scroll again and clear the last one. Row 9999 is the last row: terminals limit a position to their size."""
FEWEST_ROWS, FEWEST_COLUMNS = 3, 20
CHUNK = 256
USUAL = os.terminal_size((80, 24))
PRINTED, MOST_PRINTED = (1, 2), 4096
"""Descriptors to which other code prints, and the maximum number of these bytes that are printed afterwards."""
LIGHT = frozenset({"7", *map(str, range(9, 16))})
"""Numbers of the 16 colours that count as a light background."""
MARK = "ACCELMETRICS_LINE"
"""Environment variable by which child processes know the terminal whose last row is in use."""


def capable(descriptor: int) -> bool:
    """Return whether a descriptor is a terminal on which the cursor can be moved."""
    return os.isatty(descriptor) and os.environ.get("TERM", "dumb") not in ("", "dumb", "unknown")


def terminal_colours(environment: Mapping[str, str]) -> Literal["true", "256", "16", "none"]:
    """Return the number of colours of a terminal, from its environment. ``NO_COLOR`` means none."""
    term = environment.get("TERM", "")
    if environment.get("NO_COLOR") or term.endswith(("-mono", "-m")) or term.startswith("vt"):
        return "none"
    if environment.get("COLORTERM", "") in ("truecolor", "24bit") or term.endswith("-direct"):
        return "true"
    return "256" if "256color" in term else "16"


def environment_theme(environment: Mapping[str, str]) -> Literal["dark", "light"]:
    """Return the terminal's background from ``COLORFGBG`` (``15;0`` is white on black); dark without this variable."""
    return "light" if environment.get("COLORFGBG", "").rpartition(";")[2] in LIGHT else "dark"


def ascii_locale(environment: Mapping[str, str]) -> bool:
    """Return whether the user's locale has only ASCII letters (``C`` or ``POSIX``)."""
    # In this locale Python sets LC_CTYPE to one of these itself and writes UTF-8 (PEP 538), so its encoding does not tell.
    coerced = ("C.UTF-8", "C.utf8", "UTF-8")
    ctype = environment.get("LC_CTYPE", "")
    named = environment.get("LC_ALL") or (ctype if ctype not in coerced else "") or environment.get("LANG") or ctype
    return named in ("C", "POSIX")


def in_foreground(descriptor: int) -> bool:
    """Return whether this process's job has the terminal, and may draw on it."""
    try:
        return os.tcgetpgrp(descriptor) == os.getpgrp()
    except OSError:  # the terminal of another session: there is no job control between it and this process
        return True


class Screen:
    """The whole screen of a terminal. Only the changed lines of a new picture are written.

    A picture is one write in a synchronised update, so a terminal that knows these never shows half of it.

    Args:
        write: Writes text to the terminal.
    """

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._lines: Sequence[str] = ()
        self._place = (0, 0)
        self._size: os.terminal_size | None = None

    def show(self, lines: Sequence[str], place: tuple[int, int], size: os.terminal_size) -> None:
        """Show a picture. Nothing is written if it is already on the screen.

        Args:
            lines: The lines, each no wider than the terminal. Lines below the screen are left out.
            place: Row and column, from 0, of the cursor: the chosen row or the typed text. Braille displays and magnifiers
                follow the cursor.
            size: The terminal's size. A new size rewrites everything.
        """
        lines = lines[: size.lines]
        parts = []
        if size != self._size:
            parts, self._lines, self._size = [f"{PLAIN}{EMPTY}"], (), size
        for number in range(max(len(lines), len(self._lines))):
            line = lines[number].rstrip(" ") if number < len(lines) else ""
            if number >= len(self._lines) or self._lines[number] != line:
                # The line is cleared first: after a full line the cursor is still on its last column, which would be cleared.
                parts.append(f"{at(number, 0)}{PLAIN}{REST_OF_LINE}{line}")
        if parts or place != self._place:
            self._write(f"{BEGIN}{''.join(parts)}{PLAIN}{at(*place)}{END}")
        self._lines, self._place = tuple(lines), place

    def forget(self) -> None:
        """Rewrite everything at the next picture, after other code has written to the terminal."""
        self._size = None


def at(row: int, column: int) -> str:
    """Return the sequence that moves the cursor to a row and column, counted from 0."""
    return f"\x1b[{row + 1};{column + 1}H"


def screen_size(descriptor: int) -> os.terminal_size:
    """Return the size of a terminal; 80 columns and 24 lines where it is unknown."""
    with suppress(OSError):
        columns, lines = os.get_terminal_size(descriptor)
        return os.terminal_size((columns or USUAL.columns, lines or USUAL.lines))
    return USUAL


@contextmanager
def held_prints() -> Iterator[None]:
    """Keep prints of vendor libraries, also from C, off the terminal during the block. The last of them appear afterwards."""
    if not os.isatty(2):
        yield
        return
    kept = [os.dup(number) for number in PRINTED]
    with tempfile.TemporaryFile() as file:
        for number in PRINTED:
            os.dup2(file.fileno(), number)
        try:
            yield
        finally:
            for number, before in zip(PRINTED, kept, strict=True):
                os.dup2(before, number)
                os.close(before)
            file.seek(max(0, file.seek(0, os.SEEK_END) - MOST_PRINTED))
            with suppress(OSError):  # the terminal has gone
                write_all(2, file.read())


def let_go(descriptor: int) -> None:
    """Resume a terminal that Ctrl-S has stopped, so that a blocked write to it continues."""
    with suppress(termios.error):
        if in_foreground(descriptor):  # else tcflow stops this process with SIGTTOU
            # TCOON alone has no effect on a stop by Ctrl-S: it resumes only a terminal that a program has stopped.
            termios.tcflow(descriptor, termios.TCOOFF)
            termios.tcflow(descriptor, termios.TCOON)


@contextmanager
def whole_screen(
    write: Callable[[str], None], descriptor: int, mouse: bool = False, ask_background: bool = False
) -> Iterator[tuple[Screen, Callable[[float], list[Pressed]]]]:
    """Yield the whole screen of a terminal, and a function that waits for keys, at most a number of seconds, and returns them.

    Without a terminal at standard input there are no keys. Ctrl-C and Ctrl-Z still send their signals. The terminal is
    restored at the end of the block, and also if this process is killed in it. A background job that wants keys is
    stopped here by the system.

    Args:
        write: Writes text to the terminal.
        descriptor: The terminal's descriptor.
        mouse: Whether the terminal reports the mouse.
        ask_background: Whether to ask for the terminal's background. The answer, if any, comes with the keys.
    """
    keys = descriptor_of(sys.stdin)
    keys = keys if keys is not None and os.isatty(keys) else None
    with closing(TerminalGuard(descriptor, descriptor if keys is None else keys)) as guard:
        modes = before = None
        if keys is not None:
            with suppress(termios.error):
                # This stops a background job. The modes are read only after it continues: its shell may have changed them.
                termios.tcdrain(keys)
            before = termios.tcgetattr(keys)
        try:
            if keys is not None and before is not None:
                with suppress(termios.error):
                    tty.setcbreak(keys, termios.TCSADRAIN)
                modes = termios.tcgetattr(keys), before
            guard.expect(PLAIN + LEAVE, modes=modes)
            write(ENTER + (MOUSE if mouse and keys is not None else "") + (ASK_BACKGROUND if ask_background and keys is not None else ""))
            yield Screen(write), no_keys if keys is None else key_reader(keys)
        finally:
            with suppress(WriteError, BrokenPipeError):  # the terminal is closed
                # Cleared first: some terminals have no alternate screen.
                write(f"{PLAIN}{EMPTY}{at(0, 0)}{LEAVE}")
            if keys is not None and before is not None:
                with suppress(termios.error):
                    termios.tcsetattr(keys, termios.TCSADRAIN, before)


def no_keys(seconds: float) -> list[Pressed]:
    """Wait this number of seconds and return no key."""
    time.sleep(seconds)
    return []


def key_reader(descriptor: int) -> Callable[[float], list[Pressed]]:
    """Return a function that waits for keys, at most a number of seconds, and returns them.

    The terminal must already be in a mode in which each key is readable at once.
    """
    decoder = KeyDecoder()

    def pressed(seconds: float) -> list[Pressed]:
        waited = min(seconds, ESCAPE_SECONDS) if decoder.waiting else seconds
        try:
            if not select.select([descriptor], [], [], waited)[0]:
                return decoder.settle()
            data = os.read(descriptor, CHUNK)
        except OSError:
            data = b""
        # A closed terminal is always readable, so without this wait the caller's loop would spin.
        return decoder.feed(data) if data else no_keys(seconds)

    return pressed


class TerminalGuard:
    """A process that restores a terminal if this process is killed before it can (``terminal_guard.py``).

    If it cannot be started, a killed process leaves the terminal as it is, like any other program.

    Args:
        screen: Descriptor of the terminal that is drawn on.
        keys: Descriptor of the terminal that keys are read from.
    """

    def __init__(self, screen: int, keys: int) -> None:
        self._streams = screen, keys
        self._process: subprocess.Popen[bytes] | None = None

    def expect(self, text: str | None, sizes: tuple[bytes, bytes] | None = None, modes: tuple[list[Any], list[Any]] | None = None) -> None:
        """Tell the guard how to restore the terminal. It is called before each change of the terminal.

        Args:
            text: Text to write to the terminal; None if nothing has to be restored any more.
            sizes: The changed size, and the original one.
            modes: The changed modes, and the original ones.
        """
        with suppress(OSError):  # the guard cannot be started, or was killed
            if self._process is None and text is not None:
                screen, keys = self._streams
                guard = [sys.executable, "-I", "-S", *script(__package__, "terminal_guard.py")]
                self._process = subprocess.Popen(guard, stdin=subprocess.PIPE, stdout=screen, stderr=keys, start_new_session=True)
            if self._process is not None and self._process.stdin is not None:
                self._process.stdin.write(marshal.dumps(None if text is None else {"text": text.encode(), "sizes": sizes, "modes": modes}))
                self._process.stdin.flush()

    def close(self) -> None:
        """End the guard, after the terminal was restored."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()


Size = tuple[int, int, int, int]
"""Size of a terminal: rows and columns of text, then width and height of its window in pixels, which are mostly 0."""


def with_rows(size: Size, more: int) -> Size:
    """Return a size with more rows, or fewer if the number is negative. A second call with the opposite number restores it."""
    rows, columns, width, height = size
    # Flipping the lowest bit of the pixel height marks the size as set by us: a user may also make the window one row lower.
    return rows + more, columns, width, height ^ 1


class LastRow:
    """The last row of a terminal that another program writes to.

    The terminal's size is set one row lower for the program, and only the rows above scroll. Nothing is drawn while
    another job has the terminal, or if a write would block.

    Args:
        descriptor: The terminal's descriptor, open for writing; None to draw nothing.
    """

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = -1 if descriptor is None else descriptor
        self._guard = TerminalGuard(self._descriptor, self._descriptor)
        self._size: Size | None = None
        self._content: object = None
        self._usable = descriptor is not None and capable(descriptor) and os.environ.get(MARK) != terminal_number(descriptor)

    @property
    def environment(self) -> dict[str, str]:
        """Variables for a child process's environment, which tell it that the row is in use."""
        return {} if self._size is None else {MARK: terminal_number(self._descriptor)}

    def draw(self, content: object, text: Callable[[int], str]) -> None:
        """Show a content, unless it is already shown at the current size.

        Args:
            content: The content. It is compared by identity.
            text: Returns the content as text for a number of columns.
        """
        if not self._usable:
            return
        try:
            if not in_foreground(self._descriptor):
                self.release()
            elif content is self._content and self._size == read_size(self._descriptor):
                return
            # After Ctrl-S the terminal takes no text, and a write would block.
            elif select.select([], [self._descriptor], [], 0)[1] and (size := self._reserved()) is not None:
                # The last column stays empty: after a character there some terminals begin a new row.
                self._send(f"{SAVE}\x1b[{size[0] + 1};1H{PLAIN}{text(size[1] - 1)}{REST_OF_LINE}{RESTORE}")
                self._content = content
        except OSError:  # the terminal is closed
            self._usable = False

    def release(self) -> None:
        """Clear the row and return it to the terminal. The next content reserves it again."""
        reserved, self._size = self._size, None
        if reserved is None:
            return
        with suppress(OSError):
            size = read_size(self._descriptor)
            full = with_rows(reserved, 1) if size == reserved else size  # another size: the window was resized, and includes the row
            self._send(GIVE_BACK)
            if full != size:
                fcntl.ioctl(self._descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", *full))
        self._guard.expect(None)

    def close(self) -> None:
        """Clear the row and return it to the terminal for good."""
        self.release()
        self._guard.close()

    def _reserved(self) -> Size | None:
        """Reserve the row, again if the window was resized. Return the size for the program; None if the terminal is too small."""
        size = read_size(self._descriptor)
        if size == self._size:
            return size
        self._size = None
        if size[0] < FEWEST_ROWS or size[1] < FEWEST_COLUMNS:
            return None
        smaller = with_rows(size, -1)
        packed = struct.pack("HHHH", *smaller)
        self._guard.expect(GIVE_BACK, (packed, struct.pack("HHHH", *size)))
        # Down and up first: if the cursor is on the last row, this scrolls its line out of the row to be reserved.
        self._send(f"{DOWN}{UP}{SAVE}\x1b[1;{smaller[0]}r{RESTORE}")
        fcntl.ioctl(self._descriptor, termios.TIOCSWINSZ, packed)
        self._size = smaller
        return smaller

    def _send(self, text: str) -> None:
        write_all(self._descriptor, text.encode("utf-8"))


def begin_line(descriptor: int) -> None:
    """Move the cursor to the beginning of an empty line: this one, or the next one if this one has text."""
    # One line of spaces ends at the right edge of this line if the cursor was at its beginning, and else on the next line.
    with suppress(OSError):
        if capable(descriptor):
            write_all(descriptor, f"{' ' * (read_size(descriptor)[1] or USUAL.columns)}\r{REST_OF_LINE}".encode())


def terminal_number(descriptor: int) -> str:
    """Return the device number of a terminal as text."""
    return str(os.fstat(descriptor).st_rdev)


def read_size(descriptor: int) -> Size:
    """Return the size of a terminal, with pixels."""
    rows, columns, width, height = struct.unpack("HHHH", fcntl.ioctl(descriptor, termios.TIOCGWINSZ, bytes(8)))
    return rows, columns, width, height


# Typed keys by name: ``a``, ``up``, ``enter``, ``f1``. The sequences of all common terminals are known here. ``curses`` knows only the
# sequences of the terminal in ``TERM``, which over ssh and in tmux is often not the terminal that sends the keys.


class MouseReport(NamedTuple):
    """A click of the left button, or a step of the wheel.

    Attributes:
        kind: ``click``, or the direction of the wheel: ``up`` or ``down``.
        row: The row of the screen, from 0.
        column: The column, from 0.
    """

    kind: Literal["click", "up", "down"]
    row: int
    column: int


class Background(NamedTuple):
    """The colour of the terminal's background, each part from 0 to 1."""

    red: float
    green: float
    blue: float


Pressed = str | MouseReport | Background
"""The name of a key, a report of the mouse, or the terminal's answer to ``ASK_BACKGROUND``."""
ANSWER = re.compile(r"\x1b\]11;rgba?:([\da-f]{1,4})/([\da-f]{1,4})/([\da-f]{1,4})(?:/[\da-f]+)?(?:\x07|\x1b\\)", re.IGNORECASE)
REPORT = re.compile(r"\x1b\[<(\d{1,4});(\d{1,5});(\d{1,5})M")
"""A pressed button in the SGR form (1006). The report of a release ends with ``m``."""
BUTTONS: Mapping[int, Literal["click", "up", "down"]] = {0: "click", 64: "up", 65: "down"}
SHIFT_ALT_CTRL = 4 | 8 | 16
"""Bits in a button's number for these keys held down."""
ESCAPE_SECONDS = 0.15
"""Seconds to wait for the rest of a sequence. If nothing follows, an Escape character is the key."""
CONTROL = {
    **{"\r": "enter", "\n": "enter", "\t": "tab", "\x7f": "backspace", "\b": "backspace"},
    **{chr(number): f"ctrl-{chr(number + 96)}" for number in range(1, 27) if chr(number) not in "\r\n\t\b"},
}
BY_LETTER = {
    **{"A": "up", "B": "down", "C": "right", "D": "left", "H": "home", "F": "end", "Z": "backtab", "M": "enter"},
    **{"P": "f1", "Q": "f2", "R": "f3", "S": "f4"},
}
"""Keys by the last letter of ``CSI`` and ``SS3`` sequences. A keypad in application mode sends ``SS3`` too."""
BY_NUMBER = {
    **{"1": "home", "7": "home", "4": "end", "8": "end", "5": "pageup", "6": "pagedown", "2": "insert", "3": "delete"},
    **{str(code): f"f{number}" for number, code in enumerate((11, 12, 13, 14, 15, 17, 18, 19, 20, 21, 23, 24), 1)},
}
"""Keys by the number of ``CSI number ~``. rxvt and old versions of PuTTY send 7 and 8."""
KEYPAD = {**{chr(ord("p") + digit): str(digit) for digit in range(10)}, "k": "+", "m": "-", "n": ".", "o": "/", "j": "*"}
SEQUENCE = re.compile(
    r"\x1b(?:\[\[[A-E]|\[M...|\[(?!M)[0-?]*[ -/]*[@-Z\\-~]|O[0-9;]*.|\]\d[^\x07\x1b]*(?:\x07|\x1b\\)|\](?!\d)(?=.)|[^\[O\]\x1b])", re.DOTALL
)
"""A complete sequence: Linux console (``[[A`` is F1), mouse without 1006 (three letters), ``CSI``, ``SS3``, ``OSC``, or a key with Alt."""
BEGUN = re.compile(r"\x1b(?:\[\[?|\[M.{0,2}|\[[0-?]*[ -/]*|O[0-9;]*|\](?:\d[^\x07\x1b]*\x1b?)?)?$", re.DOTALL)
LINUX = {f"\x1b[[{letter}": f"f{number}" for number, letter in enumerate("ABCDE", 1)}


class KeyDecoder:
    """Decoder of bytes from a terminal into keys and mouse reports, in pieces of any size. Unknown sequences are dropped."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("ignore")
        self._rest = ""

    @property
    def waiting(self) -> bool:
        """Whether the bytes so far end within a sequence."""
        return bool(self._rest)

    def feed(self, data: bytes) -> list[Pressed]:
        """Decode bytes. Return the complete keys and reports."""
        text, self._rest = self._rest + self._decoder.decode(data), ""
        keys: list[Pressed] = []
        while text:
            if text[0] != "\x1b":
                keys.append(CONTROL.get(text[0], text[0] if text[0].isprintable() else ""))
                text = text[1:]
            elif found := SEQUENCE.match(text):
                keys.append(_pressed(found[0]))
                text = text[found.end() :]
            elif BEGUN.match(text):
                self._rest = text
                break
            else:  # no sequence continues in this way
                keys.append("escape" if text.startswith("\x1b\x1b") else "")
                text = text[1:]
        return [key for key in keys if key]

    def settle(self) -> list[Pressed]:
        """End an incomplete sequence after the wait: a lone Escape is a key, any other incomplete sequence is dropped."""
        rest, self._rest = self._rest, ""
        return ["escape"] if rest == "\x1b" else []


def _pressed(sequence: str) -> Pressed:
    """Return the meaning of a complete sequence, ignoring Shift, Alt and Ctrl. Empty for an unknown one."""
    if found := REPORT.fullmatch(sequence):
        kind = BUTTONS.get(int(found[1]) & ~SHIFT_ALT_CTRL)
        return "" if kind is None else MouseReport(kind, max(0, int(found[3]) - 1), max(0, int(found[2]) - 1))
    if found := ANSWER.fullmatch(sequence):
        return Background(*(int(part, 16) / (16 ** len(part) - 1) for part in found.groups()))
    if sequence in LINUX:
        return LINUX[sequence]
    if sequence.startswith("\x1b["):
        number, end = sequence[2:-1].partition(";")[0], sequence[-1]
        if "M" in (end, sequence[2]):  # a mouse report; ``M`` is Enter only in ``SS3 M``, from a keypad
            return ""
        return BY_NUMBER.get(number, "") if end == "~" else BY_LETTER.get(end, "")
    if sequence.startswith("\x1bO"):
        return BY_LETTER.get(sequence[-1], KEYPAD.get(sequence[-1], ""))
    return ""
