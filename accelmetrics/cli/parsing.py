"""Command lines, read strictly: what cannot be used is refused in one line that says what is wrong and what is allowed."""

from __future__ import annotations

import argparse
import math
import re
from typing import IO, NoReturn

from accelmetrics.schemas.errors import UnknownNameError

PROGRAM = "accelmetrics"
MAX_SECONDS = 1_000_000.0
"""Eleven days: longer than anybody waits, and within what every platform's clocks take."""
SHORTEST_INTERVAL, LONGEST_INTERVAL = 0.01, 86_400.0
"""Seconds: what a monitor takes, which is not imported for it."""
MAX_PID = 2**31 - 1
MAX_DEVICES = 4096
"""As many as one range of ``--gpus`` may name."""

_RANGE = re.compile(r"(\d{1,9})-(\d{1,9})", re.ASCII)
_NUMBER = re.compile(r"-\d+|\d{10,}", re.ASCII)


class UsageError(Exception):
    """Arguments that cannot be used, or not together."""


class Leave(Exception):  # noqa: N818 - it ends a command that is done
    """The command line has been answered already (``--help``)."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class Parser(argparse.ArgumentParser):
    """An argument parser that never exits the process, never guesses at abbreviations, and words errors in one line."""

    @classmethod
    def for_command(cls, name: str, summary: str, examples: str) -> Parser:
        """A parser whose help begins with what the command does and ends with examples."""
        return cls(
            prog=f"{PROGRAM} {name}".strip(),
            description=summary[0].upper() + summary[1:].removesuffix(".") + ".",
            epilog=f"examples:\n{examples}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def parse_strictly(self, arguments: list[str]) -> argparse.Namespace:
        """Parse; what is left over is an error that says what there is."""
        options, rest = self.parse_known_args(arguments)
        for word in rest:
            if word.startswith("-"):
                known = [max(action.option_strings, key=len) for action in self._actions if action.option_strings]
                raise UnknownNameError("option", word.partition("=")[0], known)
            raise UsageError(f"unexpected argument {word!r}: {self.format_usage().split(maxsplit=1)[1].strip()}")
        return options

    def print_help(self, file: IO[str] | None = None) -> None:  # type: ignore[override]  # stubs ask for less than a text stream
        """Print the help where documents go."""
        from accelmetrics.cli.output import Stdout

        del file
        with Stdout() as out:
            out.write(self.format_help())

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """End this command line, not the process."""
        del message
        raise Leave(status)

    def error(self, message: str) -> NoReturn:
        """Refuse, with a word about what the option takes where argparse gives none."""
        option = re.match(r"argument (\S+): expected one argument", message)
        taken = [action for action in self._actions if option and option[1] in action.option_strings]
        raise UsageError(message + "".join(f": {action.metavar or '|'.join(action.choices or ())}, {action.help}" for action in taken))


def span(text: str) -> float:
    """Seconds, 0 among them."""
    seconds = _seconds(text)
    if not 0 <= seconds <= MAX_SECONDS:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number of seconds from 0 to {MAX_SECONDS:,.0f}")
    return seconds


def pause(text: str) -> float:
    """Seconds above 0."""
    seconds = _seconds(text)
    if not 0 < seconds <= MAX_SECONDS:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number of seconds above 0, and at most {MAX_SECONDS:,.0f}")
    return seconds


def interval(text: str) -> float:
    """Seconds from one reading of a monitor to the next."""
    seconds = _seconds(text)
    if not SHORTEST_INTERVAL <= seconds <= LONGEST_INTERVAL:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number of seconds from {SHORTEST_INTERVAL:g} to {LONGEST_INTERVAL:,.0f}")
    return seconds


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def count(text: str) -> int:
    """A whole number above 0."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number above 0")
    return number


def process_id(text: str) -> int:
    """The number of a process."""
    number = count(text)
    if number > MAX_PID:
        raise argparse.ArgumentTypeError(f"{text!r} is larger than any process id ({MAX_PID})")
    return number


def path(text: str) -> str:
    """A path, which an empty text is not."""
    if not text:
        raise argparse.ArgumentTypeError("an empty path: name a file or a directory")
    return text


def backends(text: str) -> list[str]:
    """Names, separated by commas; whether they exist is the registry's to say."""
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise argparse.ArgumentTypeError(f"{text!r} has an empty name: write names separated by commas, such as nvidia,host")
    return names


def devices(text: str) -> list[int | str]:
    """Device numbers, ranges, keys and UUIDs, separated by commas."""
    chosen: list[int | str] = []
    for word in text.split(","):
        chosen.extend(_devices(word.strip()))
    return list(dict.fromkeys(chosen))


def _devices(word: str) -> range | list[int | str]:
    found = _RANGE.fullmatch(word)
    if found:
        return _range(word, int(found[1]), int(found[2]))
    if not word or _NUMBER.fullmatch(word):
        raise argparse.ArgumentTypeError(f"{word!r} is no device: write numbers, ranges, keys or UUIDs, such as 0,2-3 or gpu.1")
    return [int(word) if word.isascii() and word.isdecimal() else word]


def _range(word: str, first: int, last: int) -> range:
    if last < first:
        raise argparse.ArgumentTypeError(f"the range {word} runs backwards: write {last}-{first}")
    if last - first >= MAX_DEVICES:
        raise argparse.ArgumentTypeError(f"the range {word} is longer than {MAX_DEVICES} devices")
    return range(first, last + 1)
