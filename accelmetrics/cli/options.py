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
        """Return the help, with options no wider than the terminal."""
        self.formatter_class = argparse.RawDescriptionHelpFormatter
        return super().format_help()

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
        actions = [action for action in self._actions if option and option[1] in action.option_strings]
        raise UsageError(message + "".join(f": {action.metavar or '|'.join(action.choices or ())}, {action.help}" for action in actions))


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
            parsing = {"type": option.kind.parse, "metavar": metavar, "choices": option.kind.choices, "const": bare}
            parsing |= {"nargs": "?" if bare else None, "action": "append" if option.kind.collect else None}
            details |= {name: value for name, value in parsing.items() if value}
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
    from_flags = given(options, wanted)
    options.flags_given = [settings.OPTIONS[name].long_flag for name in from_flags]
    found = settings.resolve(wanted, from_flags, command, file)
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
