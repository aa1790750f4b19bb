"""The terminal: single keys, and something to draw on: the whole screen, or its last row beside a program that has the rest.

Nothing here knows what is drawn. What a block changes is changed back when it ends. ``curses`` and rich's live displays have the whole
screen or none of it: neither keeps one row of a terminal that another program writes to.
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
"""Reports of clicks and of the wheel, in the form that has no limit of 95 columns (SGR, 1006); and none."""
ASK_BACKGROUND = "\x1b]11;?\x1b\\"
"""Asks a terminal for the colour of its background (OSC 11). One that does not know it answers nothing."""
ENTER, LEAVE = "\x1b[?1049h", f"{NO_MOUSE}\x1b[?2026l\x1b[?25h\x1b[?1049l"
"""The other screen, and back."""
BEGIN, END = "\x1b[?2026h\x1b[?25l", "\x1b[?25h\x1b[?2026l"
"""Of a synchronised update, during which the terminal's mark does not dance about."""
EMPTY, REST_OF_LINE = "\x1b[2J", "\x1b[K"
SAVE, RESTORE = "\x1b7", "\x1b8"
"""The cursor's place and style."""
DOWN, UP = "\x1bD", "\x1b[A"
"""One row; down from the last one, everything scrolls up."""
PLAIN = "\x1b[0m"
GIVE_BACK = f"{SAVE}{PLAIN}\x1b[r\x1b[9999;1H\x1b[2K{RESTORE}"
"""All rows scroll again, and the last one is empty, whichever that is: terminals go no further than to their last row."""
FEWEST_ROWS, FEWEST_COLUMNS = 3, 20
CHUNK = 256
USUAL = os.terminal_size((80, 24))
PRINTED, MOST_PRINTED = (1, 2), 4096
"""Where other code prints, and bytes of that which are told afterwards."""
LIGHT = frozenset({"7", *map(str, range(9, 16))})
"""Numbers of 16 colours that are light as a background."""
MARK = "ACCELMETRICS_LINE"
"""Tells commands below on which terminal a line is drawn already."""


def capable(descriptor: int) -> bool:
    """Return whether it is a terminal on which the cursor can be moved."""
    return os.isatty(descriptor) and os.environ.get("TERM", "dumb") not in ("", "dumb", "unknown")


def terminal_colours(environment: Mapping[str, str]) -> Literal["true", "256", "16", "none"]:
    """Return how many colours a terminal shows, by its environment; ``NO_COLOR`` asks for none."""
    term = environment.get("TERM", "")
    if environment.get("NO_COLOR") or term.endswith(("-mono", "-m")) or term.startswith("vt"):
        return "none"
    if environment.get("COLORTERM", "") in ("truecolor", "24bit") or term.endswith("-direct"):
        return "true"
    return "256" if "256color" in term else "16"


def environment_theme(environment: Mapping[str, str]) -> Literal["dark", "light"]:
    """Return the background that a terminal says it has in ``COLORFGBG`` (``15;0``: white on black); dark without it."""
    return "light" if environment.get("COLORFGBG", "").rpartition(";")[2] in LIGHT else "dark"


def ascii_locale(environment: Mapping[str, str]) -> bool:
    """Return whether the locale is one whose letters are ASCII alone. Python writes UTF-8 there all the same (PEP 538)."""
    coerced = ("C.UTF-8", "C.utf8", "UTF-8")  # set by Python itself as LC_CTYPE
    ctype = environment.get("LC_CTYPE", "")
    named = environment.get("LC_ALL") or (ctype if ctype not in coerced else "") or environment.get("LANG") or ctype
    return named in ("C", "POSIX")


def in_foreground(descriptor: int) -> bool:
    """Return whether this process may draw on the terminal now: no other job of its session has it."""
    try:
        return os.tcgetpgrp(descriptor) == os.getpgrp()
    except OSError:  # of another session: no jobs take turns on it
        return True


class Screen:
    """What stands on the whole of a terminal; of a new picture, only the lines are written that have changed.

    Everything is written at once, between the marks of a synchronised update: terminals that know those show no half of it.

    Args:
        write: Takes what is written.
    """

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._lines: Sequence[str] = ()
        self._place = (0, 0)
        self._size: os.terminal_size | None = None

    def show(self, lines: Sequence[str], place: tuple[int, int], size: os.terminal_size) -> None:
        """Show a picture; where it is what stands there, nothing is written.

        Args:
            lines: Each fits the width, and all the height.
            place: Row and column, from 0, where the terminal's own mark is left: what is chosen or typed is there, and whatever
                follows that mark (a Braille display, a magnifier) finds it.
            size: Of the terminal; after another one everything is written anew.
        """
        lines = lines[: size.lines]
        parts = []
        if size != self._size:
            parts, self._lines, self._size = [f"{PLAIN}{EMPTY}"], (), size
        for number in range(max(len(lines), len(self._lines))):
            line = lines[number].rstrip(" ") if number < len(lines) else ""
            if number >= len(self._lines) or self._lines[number] != line:
                parts.append(f"{at(number, 0)}{PLAIN}{REST_OF_LINE}{line}")  # first: behind a full line its last column would go too
        if parts or place != self._place:
            self._write(f"{BEGIN}{''.join(parts)}{PLAIN}{at(*place)}{END}")
        self._lines, self._place = tuple(lines), place

    def forget(self) -> None:
        """Write everything anew the next time: something else has written to the terminal."""
        self._size = None


def at(row: int, column: int) -> str:
    """Return what goes to a place, counted from 0."""
    return f"\x1b[{row + 1};{column + 1}H"


def screen_size(descriptor: int) -> os.terminal_size:
    """Return how many columns and lines a terminal has; the usual where it does not say."""
    with suppress(OSError):
        columns, lines = os.get_terminal_size(descriptor)
        return os.terminal_size((columns or USUAL.columns, lines or USUAL.lines))
    return USUAL


@contextmanager
def held_prints() -> Iterator[None]:
    """Keep what vendor libraries print, from C too, off the terminal while the block runs; the end of it is printed afterwards."""
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
    """Let a terminal that was stopped by Ctrl-S take what is written: what waits for that goes on."""
    with suppress(termios.error):
        if in_foreground(descriptor):  # else this would stop us
            termios.tcflow(descriptor, termios.TCOOFF)  # a program lets go what a program has stopped
            termios.tcflow(descriptor, termios.TCOON)


@contextmanager
def whole_screen(
    write: Callable[[str], None], descriptor: int, mouse: bool = False, ask_background: bool = False
) -> Iterator[tuple[Screen, Callable[[float], list[Pressed]]]]:
    """Yield the whole screen of a terminal, and a function that returns the keys pressed; none where standard input is no terminal.

    The function waits for a key, at most so many seconds. Ctrl-C and Ctrl-Z stay the signals that they are. The terminal is as it
    was when the block ends, however it ends, and also when this process is killed in it. In the background, with keys, this process is
    stopped here.

    Args:
        write: Takes what is drawn.
        descriptor: The terminal's.
        mouse: Whether the terminal is to report the mouse.
        ask_background: Whether the terminal is asked for its background: the answer comes among the keys, if there is one.
    """
    keys = descriptor_of(sys.stdin)
    keys = keys if keys is not None and os.isatty(keys) else None
    with closing(TerminalGuard(descriptor, descriptor if keys is None else keys)) as guard:
        modes = before = None
        if keys is not None:
            with suppress(termios.error):
                termios.tcdrain(keys)  # this stops a job in the background; what it finds when it goes on are the modes to return to
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
            with suppress(WriteError, BrokenPipeError):  # the terminal has gone
                write(f"{PLAIN}{EMPTY}{at(0, 0)}{LEAVE}")  # some terminals have no other screen
            if keys is not None and before is not None:
                with suppress(termios.error):
                    termios.tcsetattr(keys, termios.TCSADRAIN, before)


def no_keys(seconds: float) -> list[Pressed]:
    """Wait so many seconds: no key is ever pressed."""
    time.sleep(seconds)
    return []


def key_reader(descriptor: int) -> Callable[[float], list[Pressed]]:
    """Return a function that waits for a key, at most so many seconds, and returns the names of those that were pressed.

    The modes of the terminal are set for that already.
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
        return decoder.feed(data) if data else no_keys(seconds)  # the terminal has gone: nothing more will come

    return pressed


class TerminalGuard:
    """A process that changes a terminal back where this one is killed before it could (``terminal_guard.py``).

    Where none can be started the terminal stays as it was left, as any program leaves it that is killed.

    Args:
        screen: The terminal that is drawn on.
        keys: The one that keys are read from.
    """

    def __init__(self, screen: int, keys: int) -> None:
        self._streams = screen, keys
        self._process: subprocess.Popen[bytes] | None = None

    def expect(self, text: str | None, sizes: tuple[bytes, bytes] | None = None, modes: tuple[list[Any], list[Any]] | None = None) -> None:
        """Say what changes the terminal back: before it is changed, and again when that is another thing.

        Args:
            text: What is written to it; None where nothing has to be changed back any more.
            sizes: As it is, and as it was.
            modes: As they are, and as they were.
        """
        with suppress(OSError):  # none can be started, or it was killed
            if self._process is None and text is not None:
                screen, keys = self._streams
                guard = [sys.executable, "-I", "-S", *script(__package__, "terminal_guard.py")]
                self._process = subprocess.Popen(guard, stdin=subprocess.PIPE, stdout=screen, stderr=keys, start_new_session=True)
            if self._process is not None and self._process.stdin is not None:
                self._process.stdin.write(marshal.dumps(None if text is None else {"text": text.encode(), "sizes": sizes, "modes": modes}))
                self._process.stdin.flush()

    def close(self) -> None:
        """End it: the terminal is as it was."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()


Size = tuple[int, int, int, int]
"""Of a terminal: rows and columns of text; width and height of its window in pixels, mostly 0."""


def with_rows(size: Size, more: int) -> Size:
    """Return the size with so many more rows, as the program beside the line is told, or as it was.

    The odd height tells it from a window that was made one row lower.
    """
    rows, columns, width, height = size
    return rows + more, columns, width, height ^ 1


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
                self._send(f"{SAVE}\x1b[{told[0] + 1};1H{PLAIN}{text(told[1] - 1)}{REST_OF_LINE}{RESTORE}")
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
            full = with_rows(told, 1) if size == told else size
            self._send(GIVE_BACK)
            if full != size:
                fcntl.ioctl(self._descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", *full))
        self._guard.expect(None)

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
        if size[0] < FEWEST_ROWS or size[1] < FEWEST_COLUMNS:
            return None
        told = with_rows(size, -1)
        packed = struct.pack("HHHH", *told)
        self._guard.expect(GIVE_BACK, (packed, struct.pack("HHHH", *size)))
        self._send(f"{DOWN}{UP}{SAVE}\x1b[1;{told[0]}r{RESTORE}")
        fcntl.ioctl(self._descriptor, termios.TIOCSWINSZ, packed)
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
            write_all(descriptor, f"{' ' * (read_size(descriptor)[1] or USUAL.columns)}\r{REST_OF_LINE}".encode())


def terminal_number(descriptor: int) -> str:
    """Return the device number of a terminal."""
    return str(os.fstat(descriptor).st_rdev)


def read_size(descriptor: int) -> Size:
    """Return the size of the terminal."""
    rows, columns, width, height = struct.unpack("HHHH", fcntl.ioctl(descriptor, termios.TIOCGWINSZ, bytes(8)))
    return rows, columns, width, height


# What is typed, as names of keys: ``a``, ``up``, ``enter``, ``f1``. The same for every terminal's way of sending them: ``curses`` knows
# the ways of the terminal that ``TERM`` names, which over ssh and in tmux is often another one than the keys come from.


class MouseReport(NamedTuple):
    """A click of the left button, or a step of the wheel.

    Attributes:
        kind: ``click``, ``up`` or ``down``: which way the wheel was turned.
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
"""A button that is pressed (SGR, 1006); a release ends with ``m``."""
BUTTONS: Mapping[int, Literal["click", "up", "down"]] = {0: "click", 64: "up", 65: "down"}
SHIFT_ALT_CTRL = 4 | 8 | 16
"""Bits of a button that is pressed together with these keys."""
ESCAPE_SECONDS = 0.15
"""For how long the rest of a sequence is waited for: what is an Escape by itself is known only then."""
CONTROL = {
    **{"\r": "enter", "\n": "enter", "\t": "tab", "\x7f": "backspace", "\b": "backspace"},
    **{chr(number): f"ctrl-{chr(number + 96)}" for number in range(1, 27) if chr(number) not in "\r\n\t\b"},
}
BY_LETTER = {
    **{"A": "up", "B": "down", "C": "right", "D": "left", "H": "home", "F": "end", "Z": "backtab", "M": "enter"},
    **{"P": "f1", "Q": "f2", "R": "f3", "S": "f4"},
}
"""Ends of ``CSI`` and of ``SS3`` sequences; a keypad in application mode sends those too."""
BY_NUMBER = {
    **{"1": "home", "7": "home", "4": "end", "8": "end", "5": "pageup", "6": "pagedown", "2": "insert", "3": "delete"},
    **{str(code): f"f{number}" for number, code in enumerate((11, 12, 13, 14, 15, 17, 18, 19, 20, 21, 23, 24), 1)},
}
"""Numbers of ``CSI number ~``; rxvt and the old PuTTY have 7 and 8."""
KEYPAD = {**{chr(ord("p") + digit): str(digit) for digit in range(10)}, "k": "+", "m": "-", "n": ".", "o": "/", "j": "*"}
SEQUENCE = re.compile(
    r"\x1b(?:\[\[[A-E]|\[M...|\[(?!M)[0-?]*[ -/]*[@-Z\\-~]|O[0-9;]*.|\]\d[^\x07\x1b]*(?:\x07|\x1b\\)|\](?!\d)(?=.)|[^\[O\]\x1b])", re.DOTALL
)
"""A whole one: of Linux' console (``[[A`` is F1), the mouse without 1006 (three letters), ``CSI``, ``SS3``, ``OSC``, a key with Alt."""
BEGUN = re.compile(r"\x1b(?:\[\[?|\[M.{0,2}|\[[0-?]*[ -/]*|O[0-9;]*|\](?:\d[^\x07\x1b]*\x1b?)?)?$", re.DOTALL)
LINUX = {f"\x1b[[{letter}": f"f{number}" for number, letter in enumerate("ABCDE", 1)}


class KeyDecoder:
    """Makes names of keys and reports of the mouse out of bytes, however those are cut into pieces. All else is left out."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("ignore")
        self._rest = ""

    @property
    def waiting(self) -> bool:
        """Whether the end of a sequence is missing."""
        return bool(self._rest)

    def feed(self, data: bytes) -> list[Pressed]:
        """Take what was typed; return the keys and reports that are complete."""
        text, self._rest = self._rest + self._decoder.decode(data), ""
        keys: list[Pressed] = []
        while text:
            if text[0] != "\x1b":
                keys.append(CONTROL.get(text[0], text[0] if text[0].isprintable() else ""))
                text = text[1:]
            elif found := SEQUENCE.match(text):
                keys.append(_report(found[0]) or _background(found[0]) or _name(found[0]))
                text = text[found.end() :]
            elif BEGUN.match(text):
                self._rest = text
                break
            else:  # something that no sequence goes on with
                keys.append("escape" if text.startswith("\x1b\x1b") else "")
                text = text[1:]
        return [key for key in keys if key]

    def settle(self) -> list[Pressed]:
        """Take it that nothing more belongs to what has come: an Escape by itself is a key, a sequence without an end is none."""
        rest, self._rest = self._rest, ""
        return ["escape"] if rest == "\x1b" else []


def _report(sequence: str) -> MouseReport | None:
    """Return the report of the mouse that a whole sequence is; None for any other one."""
    found = REPORT.fullmatch(sequence)
    kind = None if found is None else BUTTONS.get(int(found[1]) & ~SHIFT_ALT_CTRL)
    return None if found is None or kind is None else MouseReport(kind, max(0, int(found[3]) - 1), max(0, int(found[2]) - 1))


def _background(sequence: str) -> Background | None:
    """Return the background that an answer to ``ASK_BACKGROUND`` names; None for any other sequence."""
    found = ANSWER.fullmatch(sequence)
    return None if found is None else Background(*(int(part, 16) / (16 ** len(part) - 1) for part in found.groups()))


def _name(sequence: str) -> str:
    """Return the key of a whole sequence; Shift, Alt and Ctrl beside it make no difference. Empty for one that is not known."""
    if sequence in LINUX:
        return LINUX[sequence]
    if sequence.startswith("\x1b["):
        number, end = sequence[2:-1].partition(";")[0], sequence[-1]
        if "M" in (end, sequence[2]):  # a report of the mouse; a keypad's Enter is ``SS3 M``
            return ""
        return BY_NUMBER.get(number, "") if end == "~" else BY_LETTER.get(end, "")
    if sequence.startswith("\x1bO"):
        return BY_LETTER.get(sequence[-1], KEYPAD.get(sequence[-1], ""))
    return ""
