"""What is written to a terminal: changed lines alone, at once; nothing where nothing changed."""

from __future__ import annotations

import os

import pyte

from accelmetrics.cli.terminal import BEGIN, END, Screen

SIZE = os.terminal_size((20, 4))


class Written:
    """A screen, what was written to it, and what an emulator shows of that."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.emulator = pyte.Screen(SIZE.columns, SIZE.lines)
        self._stream = pyte.Stream(self.emulator)
        self.screen = Screen(self.write)

    def write(self, text: str) -> None:
        """Take a text."""
        self.texts.append(text)
        self._stream.feed(text)

    @property
    def lines(self) -> list[str]:
        """What is seen."""
        return [line.rstrip() for line in self.emulator.display]


def test_only_lines_that_changed_are_written() -> None:
    """In one write, between the marks of a synchronised update."""
    made = Written()
    made.screen.show(["one", "two", "three"], (1, 0), SIZE)
    made.screen.show(["one", "TWO", "three"], (1, 0), SIZE)
    assert made.lines == ["one", "TWO", "three", ""]
    assert len(made.texts) == 2
    assert all(text.startswith(BEGIN) and text.endswith(END) for text in made.texts)
    assert "TWO" in made.texts[1]
    assert "one" not in made.texts[1]
    assert "three" not in made.texts[1]
    assert len(made.texts[1]) < 60


def test_nothing_is_written_where_nothing_changed() -> None:
    """Not a byte; a mark that moves is a change."""
    made = Written()
    for _ in range(3):
        made.screen.show(["one"], (0, 0), SIZE)
    assert len(made.texts) == 1
    made.screen.show(["one"], (0, 2), SIZE)
    assert (len(made.texts), made.emulator.cursor.y, made.emulator.cursor.x) == (2, 0, 2)


def test_lines_that_are_no_longer_there_are_emptied() -> None:
    """And longer ones leave no rest; a full line keeps its last column."""
    made = Written()
    made.screen.show(["x" * 20, "second line", "third"], (0, 0), SIZE)
    made.screen.show(["y" * 20, "2"], (0, 0), SIZE)
    assert made.lines == ["y" * 20, "2", "", ""]


def test_another_size_is_written_anew_and_never_too_high() -> None:
    """From an empty screen; lines that have no row are left out."""
    made = Written()
    made.screen.show(["one", "two"], (0, 0), SIZE)
    made.screen.show(["one", "two", "three", "four", "five"], (0, 0), os.terminal_size((20, 3)))
    assert made.lines == ["one", "two", "three", ""]
    assert "\x1b[2J" in made.texts[1]
    made.screen.forget()
    made.screen.show(["one", "two", "three"], (0, 0), os.terminal_size((20, 3)))
    assert "\x1b[2J" in made.texts[2]


def test_colours_end_with_their_line() -> None:
    """One that is left open does not reach the next."""
    made = Written()
    made.screen.show(["\x1b[31mred", "plain"], (0, 0), SIZE)
    assert (made.emulator.buffer[0][0].fg, made.emulator.buffer[1][0].fg) == ("red", "default")
