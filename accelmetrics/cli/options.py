"""Strict parsing of command lines, and the options that several commands share, each defined once."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable
from functools import partial
from typing import IO, Any, NoReturn

from accelmetrics.monitor import settings
from accelmetrics.monitor.settings import Option, Setting
from accelmetrics.schemas.errors import UnknownNameError, without_passwords

FlagArguments = dict[str, dict[str, Any]]
"""Keyword arguments of ``add_argument``, by the name of an option or an argument."""
Groups = dict[str, FlagArguments]
"""Options by their heading in the help. The heading of a command's own options is empty."""

PROGRAM = "accelmetrics"
DEFAULT_INTERVAL = 1.0
ANY_WIDTH = 80
"""Width of the help while options are added.

argparse makes a formatter for each option. Without a width it would load ``shutil`` to ask for the terminal's size.
"""


class UsageError(Exception):
    """Arguments that cannot be used, or exclude each other."""


def refuse(*cases: tuple[object, str]) -> None:
    """Refuse options that cannot be used together.

    Args:
        cases: A condition, and the error message if it holds.

    Raises:
        UsageError: A condition holds.
    """
    for wrong, words in cases:
        if wrong:
            raise UsageError(words)


LIST_INDENT = 6
"""Maximum indentation of an example or a row of a list in columns."""


def within(text: str, width: int) -> str:
    """Return a text of the help wrapped to a width. An example that is too wide keeps its line, and its description goes below.

    An indented line is an example or a row of a list, with two spaces between its name and its description.
    """
    import textwrap

    lines: list[str] = []
    paragraph: list[str] = []
    for line in [*text.splitlines(), ""]:
        if line and not line.startswith(" "):
            paragraph.append(line)
            continue
        if paragraph:
            fits = max(map(len, paragraph)) <= width
            lines += paragraph if fits else textwrap.wrap(" ".join(paragraph), width, break_long_words=False, break_on_hyphens=False)
            paragraph = []
        indent = len(line) - len(line.lstrip())
        if len(line) <= width:
            lines.append(line)
            continue
        if indent > LIST_INDENT:  # the end of a row of a list
            lines += textwrap.wrap(line.strip(), width, initial_indent=" " * indent, subsequent_indent=" " * indent, break_long_words=False)
            continue
        name, _, words = re.split(r"(?<=\S)( {2,})(?=\S)", line, maxsplit=1) if re.search(r"\S {2,}\S", line) else (line, "", "")
        lines += _broken(name, width)
        lines += textwrap.wrap(words, width, initial_indent=" " * 6, subsequent_indent=" " * 6, break_long_words=False)
    return "\n".join(lines[:-1])


def _broken(command: str, width: int) -> list[str]:
    """Break a long command into lines that end with a backslash, before an option or a pipe."""
    import textwrap

    lines: list[str] = []
    while len(command) > width:
        places = [found.start() for found in re.finditer(r" (?=[|>] |--)", command) if 8 <= found.start() < width - 1]
        at = max((place for place in places if not command[:place].count("'") % 2), default=-1)  # a quoted text stays whole
        if at < 0:
            return [*lines, *textwrap.wrap(command, width, subsequent_indent=" " * 6, break_long_words=False)]
        lines.append(f"{command[:at]} \\")
        command = " " * 6 + command[at + 1 :]
    return [*lines, command]


class Parser(argparse.ArgumentParser):
    """Argument parser without abbreviations, with one-line errors, and with help printed as a document."""

    @classmethod
    def for_command(cls, name: str, summary: str, examples: str) -> Parser:
        """Return a parser with a help that starts with the summary and ends with the examples."""
        return cls(
            prog=f"{PROGRAM} {name}".strip(),
            description=summary[0].upper() + summary[1:].removesuffix(".") + ".",
            epilog=f"examples:\n{examples}",
            formatter_class=partial(argparse.RawDescriptionHelpFormatter, width=ANY_WIDTH),
            allow_abbrev=False,
        )

    def format_help(self) -> str:
        """Return the help, no wider than the terminal."""
        import shutil

        self.formatter_class = argparse.RawDescriptionHelpFormatter
        width = max(40, shutil.get_terminal_size().columns)
        self.description, self.epilog = (within(text or "", width) for text in (self.description, self.epilog))
        return super().format_help()

    def format_usage(self) -> str:
        """Return the usage, no wider than the terminal."""
        self.formatter_class = argparse.RawDescriptionHelpFormatter
        return super().format_usage()

    def add_options(self, groups: Groups) -> None:
        """Add options in groups, each with its heading."""
        for title, options in groups.items():
            group = self.add_argument_group(title) if title else self
            for name, details in options.items():
                group.add_argument(name, **details)

    def parse_strictly(self, arguments: list[str]) -> argparse.Namespace:
        """Parse the arguments. An unknown option is an error that names the nearest known one."""
        options, rest = self.parse_known_args(arguments)
        for word in rest:
            if word.startswith("-"):
                known = [flag for action in self._actions for flag in action.option_strings if flag.startswith("--")]
                raise UnknownNameError("option", word.partition("=")[0], known)
            raise UsageError(f"unexpected argument {word!r}: {self.format_usage().split(maxsplit=1)[1].strip()}")
        return options

    def print_help(self, file: IO[str] | None = None) -> None:  # type: ignore[override]  # stubs ask for less than a text stream
        """Print the help as a document, so that a closed pipe or a full disk is reported as for any other document."""
        from accelmetrics.cli.output import Stdout

        del file
        with Stdout() as out:
            text = self.format_help()
            out.write(text)
            if "docs/" in text:
                from pathlib import Path

                package = Path(__file__).parents[1]  # a wheel has the pages inside the package, a checkout next to it
                pages = next((folder for folder in (package / "docs", package.parent / "docs") if folder.is_dir()), package / "docs")
                out.write(f"\nThe pages docs/….md lie in {pages}\n")

    def error(self, message: str) -> NoReturn:
        """Raise :class:`UsageError`. For a missing value the message describes the value, which argparse does not."""
        option = re.match(r"argument (\S+): expected one argument", message)
        taken = [action for action in self._actions if option and option[1] in action.option_strings]
        raise UsageError(message + "".join(f": {action.metavar or '|'.join(action.choices or ())}, {action.help}" for action in taken))


_BARE: dict[str, tuple[Any, str]] = {"visible": (True, "renumber"), "share_directory": (settings.SHARED_READINGS, "DIRECTORY")}
"""Flags with an optional value: their value without one, and the placeholder in the help."""


def flags(options: Iterable[Option], command: str = "") -> FlagArguments:
    """Return the argparse definitions of options, limited to the options of a command if it is named.

    An option that is not on the command line sets nothing: :func:`configure` adds its value later.
    """
    found: FlagArguments = {}
    for option in options:
        if not option.long_flag or (command and command not in option.takers):
            continue
        default = f" (default: {option.default_words})" if option.default_words else ""
        details: dict[str, Any] = {"dest": option.name, "default": argparse.SUPPRESS, "help": option.meaning + default}
        if option.kind is settings.switch:
            details["action"] = argparse.BooleanOptionalAction
        else:
            bare, metavar = _BARE.get(option.name, (None, option.metavar))
            taken = {"type": option.kind.parse, "metavar": metavar, "choices": option.kind.choices, "const": bare}
            taken |= {"nargs": "?" if bare else None, "action": "append" if option.kind.collect else None}
            details |= {name: value for name, value in taken.items() if value}
        found[option.long_flag] = details
    return found


def configure(command: str, options: argparse.Namespace, groups: Groups) -> dict[str, Setting]:
    """Set the options without a flag, from the environment and the configuration file if the command uses them, else to their defaults.

    Reading options without any source stay unset, so that the library's own defaults apply.

    Returns:
        The value and the source of each option, by name.

    Raises:
        InvalidOptionError: A variable, the file or a value in it cannot be used.
        UnknownNameError: The file has an unknown key.
    """
    names = [details["dest"] for group in groups.values() for details in group.values() if details.get("default") is argparse.SUPPRESS]
    wanted = [settings.OPTIONS[name] for name in names]
    file = settings.read_file(options.config) if command in settings.COMMANDS else {}
    told = given(options, wanted)
    options.flags_given = [settings.OPTIONS[name].long_flag for name in told]
    found = settings.resolve(wanted, told, command, file)
    options.chosen = {name: setting.value for name, setting in found.items()}
    # Notification addresses may have a token in any part. All other addresses have passwords before an @.
    of_file = [(name, str(setting.value)) for name, setting in found.items() if setting.source == settings.FILE]
    options.secret_config = any(name == "notify" or without_passwords(value) != value for name, value in of_file)
    for name, setting in found.items():
        left = setting.source == settings.DEFAULT and settings.OPTIONS[name] in settings.READING
        setattr(options, name, None if left else setting.value)
    return found


def origin(words: str, found: Iterable[Setting]) -> str:
    """Return the source of the value that a message quotes: a variable or the configuration file; empty if it came from a flag."""
    for setting in found:
        texts = setting.value if isinstance(setting.value, list) else [setting.value]
        parts = (part for text in texts if isinstance(text, str) for part in re.split("[,:?&=]", text))
        if setting.source in (settings.FILE, settings.ENVIRONMENT) and any(f"{part!r}" in words for part in parts if part):
            return f" (from the {setting.source}, {setting.where})"
    return ""


def given(options: argparse.Namespace, wanted: Iterable[Option]) -> dict[str, Any]:
    """Return the values from flags, by option name."""
    values = ((option, getattr(options, option.name)) for option in wanted if option.name in options)
    return {option.name: option.kind.collect(value) if option.kind.collect else value for option, value in values}


READ = "what is read, and how"
READING = flags(settings.READING)
"""Options that select what is read and how, for :func:`reading`."""
CONFIG: FlagArguments = {
    "--config": {
        "type": settings.path.parse,
        "metavar": "FILE",
        "help": "take options from this file (default: $ACCELMETRICS_CONFIG, if set)",
    },
}


def watching(command: str) -> FlagArguments:
    """Return the options of a command that runs over time, including ``--config``."""
    return {**flags(settings.READINGS, command), **CONFIG}


def absent_process(options: argparse.Namespace) -> str:
    """Return a warning if the process to watch does not exist; empty if it does, or if none was named."""
    pid: int | None = getattr(options, "pid", None)
    if pid is None:
        return ""
    from accelmetrics.backends.kit.processes import is_visible, no_process

    return "" if is_visible(pid) else f"{no_process(pid)}: nothing of it can be read"


def only(*names: str) -> FlagArguments:
    """Return the named ones of the reading options."""
    return {name: READING[name] for name in names}


def reading(options: argparse.Namespace) -> dict[str, Any]:
    """Return the keyword arguments of a sampler, a monitor or a diagnosis from the parsed reading options."""
    chosen = {option.name: getattr(options, option.name, None) for option in settings.READING}
    return {name: value for name, value in chosen.items() if value}
