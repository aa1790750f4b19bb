"""Script that restores a terminal if the process that changed it is killed. It runs as a child of that process.

Before each change the parent writes to our standard input how to restore the terminal: a dict of ``text``, ``sizes`` and ``modes``, or
None for nothing, encoded by ``marshal``. The kernel closes this pipe however the parent ends. A parent that restores the terminal
itself kills this process first. Standard output is the terminal that is drawn on, and standard error the terminal that keys are read
from.

Size and modes are restored only if they are still the changed ones: a shell may have set them meanwhile.
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
"""Seconds to wait for a terminal that Ctrl-S has stopped."""


def main() -> None:
    """Read until the pipe is closed, and restore the terminal as the last message says."""
    # A hang-up or Ctrl-C that kills the parent must not end this process before the terminal is restored.
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    undo = None
    try:
        while True:
            undo = marshal.load(sys.stdin.buffer)
    except (EOFError, ValueError, TypeError):  # the parent has ended, perhaps in the middle of a message
        if undo is not None:
            change_back(undo)


def change_back(undo: dict[str, Any]) -> None:
    """Restore the modes, the screen and the size of the terminal. A closed terminal needs nothing."""
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
