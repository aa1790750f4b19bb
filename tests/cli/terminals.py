"""A terminal for tests: a pseudo-terminal that a command is started on, and an emulator (pyte) that shows what a person would see."""

from __future__ import annotations

import copy
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any

import pyte

from tests.cli.shell import COMMAND, environment
from tests.support.waiting import HANG, wait_for

LIGHT_ROW = b"48;2;207;227;243"
"""The background of the chosen row on a light terminal."""
END = b"\0" * 8
"""Written to the terminal behind everything else; emulators show nothing for it."""


class Emulator(pyte.HistoryScreen):
    """What pyte knows, and the other screen that programs draw on which take the whole of it."""

    OTHER = 1049

    def set_mode(self, *modes: int, **options: Any) -> None:
        """Also go to the other screen."""
        if options.get("private") and self.OTHER in modes:
            self._first = copy.deepcopy((self.buffer, self.cursor))
            self.erase_in_display(2)
        super().set_mode(*modes, **options)

    def reset_mode(self, *modes: int, **options: Any) -> None:
        """Also come back from it."""
        super().reset_mode(*modes, **options)
        if options.get("private") and self.OTHER in modes:
            self.buffer, self.cursor = self._first
            self.dirty.update(range(self.lines))


class Terminal:
    """A command on a terminal of its own, whose session it leads.

    Args:
        command: What is started.
        env: Its environment, beside ``TERM``.
        rows: Of the terminal.
        columns: Of the terminal.
        streams: What stands for ``stdin``, ``stdout`` or ``stderr`` instead of the terminal.
    """

    def __init__(self, command: Sequence[str], env: Mapping[str, str], rows: int = 24, columns: int = 100, **streams: Any) -> None:
        self._ours, self._theirs = pty.openpty()
        self._screen = Emulator(columns, rows, history=2000)
        self._stream = pyte.ByteStream(self._screen)
        self._lock = threading.Lock()
        self.raw = b""
        self._set_size(rows, columns)
        self.before = self.attributes
        self.process = subprocess.Popen(
            command,
            env={"TERM": "xterm-256color", **env},
            preexec_fn=self._take,  # noqa: PLW1509 - one system call
            start_new_session=True,
            **{name: streams.get(name, self._theirs) for name in ("stdin", "stdout", "stderr")},
        )
        self._hung_up = threading.Event()
        self._ended = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _take(self) -> None:
        fcntl.ioctl(self._theirs, termios.TIOCSCTTY, 0)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.process.poll() is None:
            for wanted in (signal.SIGCONT, signal.SIGKILL):
                os.killpg(self.process.pid, wanted)
        self.process.wait(HANG)
        self.hang_up()

    def hang_up(self) -> None:
        """Let the terminal go away. Once done, doing it again changes nothing."""
        if not self._hung_up.is_set():
            self._hung_up.set()
            self._reader.join(HANG)
            os.close(self._ours)
            os.close(self._theirs)

    def _read(self) -> None:
        while not self._hung_up.is_set():
            if select.select([self._ours], [], [], 0.05)[0]:
                data = os.read(self._ours, 1 << 16)
                with self._lock:
                    self.raw += data
                    self._stream.feed(data)
                    if self.raw.endswith(END):
                        self.raw = self.raw.removesuffix(END)
                        self._ended.set()

    # What is on it.

    @property
    def attributes(self) -> list[Any]:
        """The terminal's modes, as ``stty`` shows them."""
        return termios.tcgetattr(self._theirs)

    @property
    def in_line_mode(self) -> bool:
        """Whether what is typed is read line by line, as commands read it and shells do not."""
        return bool(self.attributes[3] & termios.ICANON)

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns that programs on it are told."""
        rows, columns = struct.unpack("HHHH", fcntl.ioctl(self._theirs, termios.TIOCGWINSZ, bytes(8)))[:2]
        return rows, columns

    @property
    def lines(self) -> list[str]:
        """The screen, row by row."""
        with self._lock:
            return [line.rstrip() for line in self._screen.display]

    @property
    def text(self) -> str:
        """The screen."""
        return "\n".join(self.lines)

    @property
    def place(self) -> tuple[int, int]:
        """The row and the column of the cursor, from 0."""
        with self._lock:
            return self._screen.cursor.y, self._screen.cursor.x

    @property
    def cursor_shown(self) -> bool:
        """Whether the cursor is to be seen."""
        with self._lock:
            return not self._screen.cursor.hidden

    @property
    def everything(self) -> list[str]:
        """What has scrolled off the screen, and the screen."""
        with self._lock:
            gone = ["".join(row[column].data for column in range(self._screen.columns)).rstrip() for row in list(self._screen.history.top)]
        return gone + self.lines

    @property
    def whole_screen_scrolls(self) -> bool:
        """Whether no row is kept out."""
        with self._lock:
            margins = self._screen.margins
            return margins is None or (margins.top, margins.bottom) == (0, self._screen.lines - 1)

    def colour(self, text: str) -> str:
        """The colour in which a text stands on the screen."""
        with self._lock:
            for number, line in enumerate(self._screen.display):
                if text in line:
                    return str(self._screen.buffer[number][line.index(text)].fg)
        raise AssertionError(f"{text!r} is not on the screen")

    # What is done to it.

    def type(self, text: str, *wanted: str | Callable[[], bool]) -> None:
        """Press keys, and wait as `until` does."""
        os.write(self._ours, text.encode())
        self.until(*wanted)

    def resize(self, rows: int, columns: int) -> None:
        """Make the window another size."""
        with self._lock:
            self._screen.resize(rows, columns)
        self._set_size(rows, columns)

    def _set_size(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    # Waiting.

    def until(self, *wanted: str | Callable[[], bool]) -> None:
        """Wait until a pattern is on the screen, or something holds: for one after the other."""
        for one in wanted:
            condition = partial(self._shows, one) if isinstance(one, str) else one
            wait_for(condition, what=lambda one=one: f"for {one!r}; the screen:\n{self.text}")  # type: ignore[misc]

    def _shows(self, pattern: str) -> bool:
        return re.search(pattern, self.text, re.MULTILINE) is not None

    def end(self, keys: str = "") -> int:
        """Press keys, if any, and wait for the command's end, and for what it wrote; its exit status."""
        if keys:
            self.type(keys)
        status = self.process.wait(HANG)
        os.write(self._theirs, END)
        assert self._ended.wait(HANG)
        return status


def on_terminal(*arguments: str, rows: int = 24, columns: int = 100, env: Mapping[str, str] | None = None, **streams: Any) -> Terminal:
    """``accelmetrics`` on a terminal."""
    return Terminal([*COMMAND, *arguments], environment(**(env or {})), rows, columns, **streams)


def shell(rows: int = 24, columns: int = 100, env: Mapping[str, str] | None = None) -> Terminal:
    """A shell with job control on a terminal, in which ``am`` is the command."""
    terminal = Terminal(["bash", "--norc", "--noprofile", "-i"], environment(PS1="$ ", **(env or {})), rows, columns)
    terminal.until(r"^\$$")
    terminal.type(f'am() {{ {" ".join(COMMAND)} "$@"; }}; clear\r')
    terminal.until(lambda: terminal.lines[0] == "$")
    return terminal
