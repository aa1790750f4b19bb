"""Command lines, read strictly, and the options that several commands have: each is worded once, here."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable
from typing import IO, TYPE_CHECKING, Any, NoReturn

from accelmetrics.schemas.errors import UnknownNameError

if TYPE_CHECKING:
    from pathlib import Path

Options = dict[str, dict[str, Any]]
"""By an option's name, or an argument's: what argparse is told of it."""
Groups = dict[str, Options]
"""By their heading in the help, which is empty for a command's own."""

PROGRAM = "accelmetrics"
MAX_SECONDS = 1_000_000.0
"""Eleven days: within what every platform's clocks take."""
SHORTEST_INTERVAL, LONGEST_INTERVAL = 0.01, 86_400.0
"""Seconds: what a monitor takes, which is not imported for it."""
DEFAULT_INTERVAL = 1.0
MAX_PID = 2**31 - 1

_RANGE = re.compile(r"(\d{1,4})-(\d{1,4})", re.ASCII)
_NUMBER = re.compile(r"-\d+|\d{10,}", re.ASCII)


class UsageError(Exception):
    """Arguments that cannot be used, or not together."""


class Parser(argparse.ArgumentParser):
    """Parse without abbreviations, word errors in one line, and print the help where documents go."""

    @classmethod
    def for_command(cls, name: str, summary: str, examples: str) -> Parser:
        """Make a parser whose help begins with what the command does and ends with examples."""
        return cls(
            prog=f"{PROGRAM} {name}".strip(),
            description=summary[0].upper() + summary[1:].removesuffix(".") + ".",
            epilog=f"examples:\n{examples}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def add_options(self, groups: Groups) -> None:
        """Add options under their headings."""
        for title, options in groups.items():
            group = self.add_argument_group(title) if title else self
            for name, details in options.items():
                group.add_argument(name, **details)

    def parse_strictly(self, arguments: list[str]) -> argparse.Namespace:
        """Parse; an argument that is left over is an error that lists the known ones."""
        options, rest = self.parse_known_args(arguments)
        for word in rest:
            if word.startswith("-"):
                known = [max(action.option_strings, key=len) for action in self._actions if action.option_strings]
                raise UnknownNameError("option", word.partition("=")[0], known)
            raise UsageError(f"unexpected argument {word!r}: {self.format_usage().split(maxsplit=1)[1].strip()}")
        return options

    def print_help(self, file: IO[str] | None = None) -> None:  # type: ignore[override]  # stubs ask for less than a text stream
        """Print the help as a document, so that a pipe that was closed or a full disk is told like any other."""
        from accelmetrics.cli.output import Stdout

        del file
        with Stdout() as out:
            text = self.format_help()
            out.write(text)
            if "docs/" in text:
                out.write(f"\nThe pages docs/….md lie in {documentation()}\n")

    def error(self, message: str) -> NoReturn:
        """Refuse, with a word about what the option takes where argparse gives none."""
        option = re.match(r"argument (\S+): expected one argument", message)
        taken = [action for action in self._actions if option and option[1] in action.option_strings]
        raise UsageError(message + "".join(f": {action.metavar or '|'.join(action.choices or ())}, {action.help}" for action in taken))


def documentation() -> Path:
    """Say where the pages are: in the installed package, beside the package in a checkout."""
    from pathlib import Path  # only help needs it

    package = Path(__file__).parents[1]
    return next((folder for folder in (package / "docs", package.parent / "docs") if folder.is_dir()), package / "docs")


def _number(words: str, allowed: Callable[[float], bool], kind: Callable[[str], float] = float) -> Callable[[str], Any]:
    """Make a type for numbers that an option allows."""

    def read(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not allowed(value):
            raise argparse.ArgumentTypeError(f"{text!r} must be {words}")
        return value

    return read


number = _number("a number", math.isfinite)
span = _number(f"a number of seconds from 0 to {MAX_SECONDS:,.0f}", lambda seconds: 0 <= seconds <= MAX_SECONDS)
pause = _number(f"a number of seconds above 0, and at most {MAX_SECONDS:,.0f}", lambda seconds: 0 < seconds <= MAX_SECONDS)
interval = _number(
    f"a number of seconds from {SHORTEST_INTERVAL:g} to {LONGEST_INTERVAL:,.0f}",
    lambda seconds: SHORTEST_INTERVAL <= seconds <= LONGEST_INTERVAL,
)
count = _number("a whole number above 0", lambda number: number > 0, int)
process_id = _number(f"a process id, a whole number from 1 to {MAX_PID}", lambda pid: 0 < pid <= MAX_PID, int)


def path(text: str) -> str:
    """Parse a path, which an empty text is not."""
    if not text:
        raise argparse.ArgumentTypeError("an empty path: name a file or a directory")
    return text


def backends(text: str) -> list[str]:
    """Parse names of backends, separated by commas; the registry refuses unknown ones."""
    return [name.strip() for name in text.split(",")]


def devices(text: str) -> list[int | str]:
    """Parse device numbers, ranges, keys and UUIDs, separated by commas."""
    chosen: list[int | str] = []
    for word in map(str.strip, text.split(",")):
        if found := _RANGE.fullmatch(word):
            first, last = int(found[1]), int(found[2])
            if last < first:
                raise argparse.ArgumentTypeError(f"the range {word} runs backwards: write {last}-{first}")
            chosen += range(first, last + 1)
        elif not word or _NUMBER.fullmatch(word):
            raise argparse.ArgumentTypeError(f"{word!r} is no device: write numbers, ranges, keys or UUIDs, such as 0,2-3 or gpu.1")
        else:
            chosen.append(int(word) if word.isascii() and word.isdecimal() else word)
    return list(dict.fromkeys(chosen))


def label(text: str) -> tuple[str, str]:
    """Parse a label."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is no label: write NAME=VALUE, such as team=vision")
    return name, value


EXPORTERS = "where records go, again for more: jsonl:run.jsonl, prometheus, otlp:http://host:4317, … (docs/exporters.md)"
METRICS = "metrics: core, wandb, standard, all, names, keys, patterns; excluded behind a minus: standard,-nvlink*"
VISIBLE = "only the devices that the watched process sees by its *_VISIBLE_DEVICES; with =renumber under its own numbers"


READING: Options = {
    "--backends": {"type": backends, "metavar": "LIST", "help": "sources, by name: nvidia,host; one named here is opened in any case"},
    "--metrics": {"metavar": "LIST", "help": METRICS},
    "--gpus": {"type": devices, "metavar": "LIST", "help": "devices, by number, range, key or UUID: 0,2-3"},
    "--visible": {"nargs": "?", "const": True, "default": False, "choices": ("renumber",), "help": VISIBLE},
    "--pid": {"type": process_id, "metavar": "PID", "help": "the process to watch (default: this one)"},
    "--children": {"action": "store_true", "help": "watch its descendants with it"},
    "--disk-path": {
        "type": path,
        "action": "append",
        "dest": "disk_paths",
        "metavar": "PATH",
        "help": "a mount point to report, again for more (default: /)",
    },
    "--amd-source": {"metavar": "NAME", "help": "read AMD's GPUs from this alone: sysfs, amdsmi, amd-smi or rocm-smi"},
    "--timeout": {"type": pause, "metavar": "S", "help": "seconds to wait for an answer, and for sources to open (default: 1, and 10)"},
    "--isolation": {
        "choices": ("thread", "process"),
        "default": "thread",
        "help": "where drivers are called: here, or in a child process",
    },
}
"""What is read, and how; :func:`reading` understands them."""
WATCHING: Options = {
    "--interval": {
        "type": interval,
        "default": DEFAULT_INTERVAL,
        "metavar": "S",
        "help": f"seconds between two readings (default: {DEFAULT_INTERVAL:g})",
    },
    "--label": {"type": label, "action": "append", "metavar": "NAME=VALUE", "help": "a label for every record, again for more"},
    "--log-format": {
        "choices": ("text", "json"),
        "default": "text",
        "help": "how messages are written to standard error (default: text)",
    },
}
EXPORTING: Options = {
    "--exporter": {"action": "append", "default": [], "metavar": "NAME[:TARGET]", "help": EXPORTERS},
    "--wandb-project": {"metavar": "NAME", "help": "log to Weights & Biases, into this project"},
    "--wandb-run-name": {"metavar": "NAME", "help": "the name of that run"},
}


READ = "what is read, and how"


def absent_process(options: argparse.Namespace) -> str:
    """Return what to warn of where the process to watch is not there; empty where it is, or none was named."""
    pid: int | None = getattr(options, "pid", None)
    if pid is None:
        return ""
    from accelmetrics.backends.kit.processes import is_visible

    return "" if is_visible(pid) else f"there is no process {pid}: nothing of it can be read"


def only(*names: str) -> Options:
    """Return some of the options that say what is read."""
    return {name: READING[name] for name in names}


def reading(options: argparse.Namespace) -> dict[str, Any]:
    """Return the keyword arguments of a sampler, a monitor or a diagnosis, from those of ``READING``."""
    names = ("backends", "metrics", "gpus", "visible", "pid", "children", "disk_paths", "amd_source", "isolation", "timeout")
    chosen = {name: value for name, value in vars(options).items() if name in names and value}
    if "timeout" in chosen:
        chosen["open_timeout"] = chosen["timeout"]
    return chosen
