"""A small process beside one that changes a terminal, run as a script: it changes the terminal back when that one is killed.

Its standard input is a pipe on which it is told, each time something was changed, what would change all of it back (``marshal`` writes
it: a dict of ``text``, ``sizes`` and ``modes``, or None for nothing). The kernel closes the pipe in whatever way the other process ends;
one that has put the terminal right itself has killed this one before. Standard output is the terminal that is drawn on, standard error
the one that keys are read from.

Sizes and modes are changed back only where they are still what was told: a shell may have taken the terminal by then.
"""

import _signal as signal  # type: ignore[import-not-found]  # without its enumerations, which take as long as the interpreter
import fcntl
import marshal
import os
import select
import sys
import termios
from typing import Any

PATIENCE = 5.0
"""Seconds that a terminal which was stopped by Ctrl-S is waited for."""


def main() -> None:
    """Listen until the pipe is closed, and change the terminal back as was told last."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    undo = None
    try:
        while True:
            undo = marshal.load(sys.stdin.buffer)
    except (EOFError, ValueError, TypeError):  # it is gone, maybe in the middle of a word
        if undo is not None:
            change_back(undo)


def change_back(undo: dict[str, Any]) -> None:
    """Give the terminal its modes, its size and its screen back; a terminal that has gone needs nothing."""
    try:
        if undo["modes"] is not None:
            ours, before = undo["modes"]
            if termios.tcgetattr(2) == ours:
                termios.tcsetattr(2, termios.TCSANOW, before)
        if select.select([], [1], [], PATIENCE)[1]:
            os.write(1, undo["text"])
        if undo["sizes"] is not None:
            ours, before = undo["sizes"]
            if fcntl.ioctl(1, termios.TIOCGWINSZ, bytes(8)) == ours:
                fcntl.ioctl(1, termios.TIOCSWINSZ, before)
    except (OSError, termios.error):
        return


if __name__ == "__main__":
    main()
