"""Tools that crash on one of their flags: they are asked again without it, and the cards stay.

Seen of rocm-smi 5.2.3, which aborts on ``--showsclkrange`` and ``--showmclkrange`` for some cards. Such a tool prints nothing, so the flag
is found by asking with some of them at a time. It is left out until the tool's file changes.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from accelmetrics.backends.kit import Command, Completed
from accelmetrics.schemas.errors import Reason, Unavailable

CRASHES = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)
TRACEBACK = "Traceback (most recent call last)"

Flag = tuple[str, ...]
"""A flag and what belongs to it: ``("--showmeminfo", "vram", "gtt")``."""


def is_crash(completed: Completed) -> bool:
    """Return whether a tool crashed; also where a shell in between tells the signal, or it is a Python program."""
    return any(completed.returncode in (-number, 128 + number) for number in CRASHES) or TRACEBACK in completed.stderr


class Flags:
    """What a tool is asked with.

    Args:
        command: The tool.
        prints: By flag, the places in a card's record that it gives. The first two tell whether the tool crashes whatever it is asked; the
            last two are suspected first.
        before: What stands before the flags: a subcommand.
        after: What stands after them.
        implied: Whether the tool gives all of it, and more, where it is asked with no flag.

    Attributes:
        crashing: The flags that are left out.
    """

    def __init__(
        self, command: Command, prints: Mapping[Flag, Sequence[str]], before: Flag = (), after: Flag = (), *, implied: bool = False
    ) -> None:
        self._command = command
        self._prints = prints
        self._before, self._after = before, after
        self._implied = implied
        self._tool: object = None
        self._is_searched = False
        self.crashing: tuple[Flag, ...] = ()

    def run(self, gives_cards: Callable[[Completed], bool]) -> Completed:
        """Run the tool, without the flags that crash it.

        Args:
            gives_cards: Says whether a run gave what is looked for: then nothing is wrong with it, whatever it complains about.

        Raises:
            SourceError: As :meth:`~accelmetrics.backends.kit.commands.Command.run` does.
        """
        path = self._command.find()
        try:
            status = Path(path).stat()
            tool: object = path, status.st_mtime_ns, status.st_size
        except OSError:
            tool = path
        if tool != self._tool:
            self._tool, self._is_searched, self.crashing = tool, False, ()
        flags = [flag for flag in self._prints if flag not in self.crashing]
        completed = self._ask([] if self._implied and not self.crashing else flags)
        if not is_crash(completed) or self._is_searched or gives_cards(completed):
            return completed
        # Once for each file of the tool, and not where it crashes whatever it is asked.
        self._is_searched = True
        found = [] if all(is_crash(self._ask([flag])) for flag in flags[:2]) else self._search(flags[-2:], flags[:-2])
        self.crashing = (*self.crashing, *found)
        return self._ask([flag for flag in flags if flag not in found]) if found else completed

    @property
    def missing(self) -> dict[str, Unavailable]:
        """By place, why there is nothing: the flag for it crashes the tool."""
        name = self._command.names[0]
        return {
            place: Unavailable(Reason.DRIVER_ERROR, f"{name} crashes when it is asked for {flag[0]}, and is asked without it")
            for flag in self.crashing
            for place in self._prints[flag]
        }

    def _search(self, *groups: Sequence[Flag]) -> list[Flag]:
        """Find the flags that crash the tool; none where it takes some of two groups at once."""
        found: list[Flag] = []
        for flags in groups:
            if flags and is_crash(self._ask(flags)):
                half = len(flags) // 2
                found += self._search(flags[:half], flags[half:]) if half else flags
        return found

    def _ask(self, flags: Sequence[Flag]) -> Completed:
        return self._command.run(*self._before, *(word for flag in flags for word in flag), *self._after)
