"""Options of a tool that crashes on one of its flags: it is run again without the flag, so that the cards stay.

rocm-smi 5.2.3 aborts on ``--showsclkrange`` and ``--showmclkrange`` for some cards. Since a tool that crashes prints nothing, the flag is
found by running the tool with different sets of flags. The flag is left out until the tool's file changes.
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
"""A flag with its arguments: ``("--showmeminfo", "vram", "gtt")``."""


def is_crash(completed: Completed) -> bool:
    """Return whether a tool crashed."""
    # A shell in between reports a signal as 128 + its number. A Python program ends with a traceback.
    return any(completed.returncode in (-number, 128 + number) for number in CRASHES) or TRACEBACK in completed.stderr


class Flags:
    """Flags with which a tool is run.

    Args:
        command: The tool.
        prints: For each flag the places of a card's record that it gives. The order matters: the first two flags show whether the tool
            crashes on any flag, and the last two are the first suspects.
        before: Arguments before the flags: a subcommand.
        after: Arguments after the flags.
        implied: Whether the tool prints everything, and more, without any flag.

    Attributes:
        crashing: Flags that are left out.
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
        """Run the tool without the flags that crash it.

        Args:
            gives_cards: Whether a run printed cards. Then it counts as successful, even with complaints.

        Raises:
            SourceError: As :meth:`~accelmetrics.backends.kit.commands.Command.run` does.
        """
        path = self._command.find()
        try:
            # An update of the tool changes its file, and may have repaired the flags.
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
        # A search costs many runs, so it is done only once for each version of the tool, and not if the tool crashes on any flag.
        self._is_searched = True
        # The last two flags are searched first, since they are the first suspects.
        found = [] if all(is_crash(self._ask([flag])) for flag in flags[:2]) else self._search(flags[-2:], flags[:-2])
        self.crashing = (*self.crashing, *found)
        return self._ask([flag for flag in flags if flag not in found]) if found else completed

    @property
    def missing(self) -> dict[str, Unavailable]:
        """Reason for each place of a flag that crashes the tool."""
        name = self._command.names[0]
        return {
            place: Unavailable(Reason.DRIVER_ERROR, f"{name} crashes when it is asked for {flag[0]}, and is asked without it")
            for flag in self.crashing
            for place in self._prints[flag]
        }

    def _search(self, *groups: Sequence[Flag]) -> list[Flag]:
        """Return the flags that crash the tool, by bisection of the groups."""
        found: list[Flag] = []
        for flags in groups:
            if flags and is_crash(self._ask(flags)):
                # If neither half crashes alone, only their combination does, and nothing is left out.
                half = len(flags) // 2
                found += self._search(flags[:half], flags[half:]) if half else flags
        return found

    def _ask(self, flags: Sequence[Flag]) -> Completed:
        return self._command.run(*self._before, *(word for flag in flags for word in flag), *self._after)
