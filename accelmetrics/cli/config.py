"""``accelmetrics config``: the value of each option, and the flag, variable or file that it comes from."""

from __future__ import annotations

import argparse
import json
import re
from typing import Any

from accelmetrics.cli import options as arguments
from accelmetrics.cli.options import UsageError
from accelmetrics.cli.output import Stdout, say
from accelmetrics.monitor import settings
from accelmetrics.monitor.settings import Option, Setting
from accelmetrics.schemas.errors import HIDDEN, UnknownNameError, without_secrets
from accelmetrics.schemas.text import fitted

HEAD = ("OPTION", "VALUE", "FROM")
EXAMPLES = """\
  accelmetrics config
      every option with its value, the source of the value, and its commands
  accelmetrics config --show serve --interval 5
      as `accelmetrics serve --interval 5` would have them
  accelmetrics config --config config.toml --json
      the same of a file, for programs; a file with a mistake is refused
  accelmetrics config --example > config.toml
      a file with every option, each behind a #

A value comes from a flag, else from a variable of the environment, else from
the configuration file, else it is the default. Secrets in the addresses of
exporters are not shown. All options, and the file: docs/configuration.md

Exit status: 0; 2 for an invalid file or variable (a line names it and the
accepted values)."""
OPTIONS: arguments.Groups = {
    "": {
        "--show": {"action": "store_true", "help": "show every option's value (the default without --example)"},
        "--example": {"action": "store_true", "help": "print a commented configuration file, with every option"},
        "--json": {"action": "store_true", "help": "print the options as one JSON object"},
        **arguments.CONFIG,
        "command": {"nargs": argparse.REMAINDER, "metavar": "COMMAND …", "help": f"one of {', '.join(settings.TAKERS)}, and its flags"},
    },
}
_SECRET_OPTION = re.compile(r"(?<=[?&])((?:headers|(?:\w*_)?(?:token|secret|password)|api_key)=)[^&]*", re.IGNORECASE)
"""An option of an exporter, in its string form, that holds a secret."""

_BARE = re.compile(r"[A-Za-z0-9_-]+")
"""A TOML key that needs no quotes."""


def run(options: argparse.Namespace, out: Stdout) -> int:
    """Print the options' values, or an example of a configuration file."""
    if options.example:
        out.write(example())
        return 0
    found = _found(options)
    unread = settings.unread_variables()
    if options.json:
        names = ("option", "value", "source", "where", "commands")
        entries = [dict(zip(names, (option.name, *hidden_setting, takers), strict=True)) for option, hidden_setting, takers in found]
        out.write(json.dumps({"options": entries, "unread_variables": unread}, indent=2 if out.terminal else None) + "\n")
        return 0
    rows: dict[str, list[tuple[str, ...]]] = {}
    for option, setting, takers in found:
        words = "all that take options" if len(takers) == len(settings.TAKERS) else ", ".join(takers)
        source = f"{setting.source} {setting.where}".strip()
        rows.setdefault(words, []).append((option.name, shown(option, setting), source))
    parts = ([f"for {words}:", *fitted([HEAD, *group], out.width, "  ")] for words, group in rows.items())
    out.write("\n\n".join(map("\n".join, parts)) + "\n")
    variables = [option.variable for option in settings.OPTIONS.values() if option.variable]
    for name in unread:
        say(f"accelmetrics config: {UnknownNameError('variable', name, variables)}".partition(" Known:")[0])
    return 0


def _found(options: argparse.Namespace) -> list[tuple[Option, Setting, list[str]]]:
    """Return each option with its setting and the commands that use this setting, with secrets hidden.

    An option has several rows if its setting differs between commands.

    Raises:
        UnknownNameError: The command takes no configuration.
        UsageError: The named command needs another system, or a flag cannot be used.
    """
    from accelmetrics.cli.main import load

    command, *words = [word for word in options.command[:1] if word != "--"] + options.command[1:] or [""]
    if command and command not in settings.TAKERS:
        raise UnknownNameError("command with a configuration", command, settings.TAKERS)
    by_taker = {}
    for taker in [command] if command else settings.TAKERS:
        parser = arguments.Parser.for_command(taker, taker, "")
        try:
            parser.add_options(load(taker).OPTIONS if taker in settings.COMMANDS else {"": arguments.CONFIG})
        except UsageError:  # the command needs another operating system: an error only if it was named
            if command:
                raise
            continue
        parsed = parser.parse_strictly(words)
        wanted = settings.taken_by(taker)
        file = settings.read_file(options.config if parsed.config is None else parsed.config)
        by_taker[taker] = settings.resolve(wanted, arguments.given(parsed, wanted), taker, file)
    rows: list[tuple[Option, Setting, list[str]]] = []
    for option in settings.OPTIONS.values():
        alike: dict[str, tuple[Option, Setting, list[str]]] = {}
        for taker in by_taker:
            if taker in option.takers:
                setting = by_taker[taker][option.name]
                # In the address of a webhook or a service everything after the scheme is secret.
                places = [f"{url.partition('://')[0]}://{HIDDEN}" for url in setting.value] if option.name == "notify" else None
                setting = setting._replace(value=hidden(setting.value) if places is None else places)
                alike.setdefault(repr(setting), (option, setting, []))[2].append(taker)
        rows += alike.values()
    return rows


def hidden(value: Any) -> Any:
    """Return a value without the secrets in it."""
    if isinstance(value, list):
        return [hidden(item) for item in value]
    if isinstance(value, dict):
        return {name: hidden(text) for name, text in value.items()}
    return _SECRET_OPTION.sub(rf"\1{HIDDEN}", without_secrets(value)) if isinstance(value, str) else value


def shown(option: Option, setting: Setting) -> str:
    """Return a setting's value in TOML. A default that is not a value is described in words, or is ``-``."""
    if setting.source == settings.DEFAULT and (option.usual or setting.value is None):
        return option.usual or "-"
    return toml(setting.value)


def toml(value: Any) -> str:
    """Return a value in TOML."""
    if isinstance(value, dict):
        pairs = ", ".join(f"{name if _BARE.fullmatch(name) else json.dumps(name)} = {toml(text)}" for name, text in value.items())
        return f"{{ {pairs} }}" if pairs else "{}"
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    # JSON's text, numbers and booleans are TOML too, and Python has no writer of TOML.
    return json.dumps(value, ensure_ascii=False)


def example() -> str:
    """Return a configuration file with every option commented out. Its value is the default, or an example if there is none."""
    *commands, last = settings.TAKERS
    lines = [
        "# Options of accelmetrics. To change an option, remove the # before it.",
        f"# Options here are for {', '.join(commands)} and {last} (Monitor.from_config), if they take them.",
        "# Options in a table, such as [serve], are for that command only, and override the options here.",
    ]
    for title, options in settings.TABLE.items():
        lines += ["", f"# {title}"]
        if not all(option.is_shared for option in options):
            lines += ["", f"[{options[0].takers[0]}]"]
        for option in options:
            default = f" (default: {option.default_words})" if option.default_words else ""
            lines += ["", f"# {option.meaning}{default}", f"# {option.name} = {toml(option.example)}"]
    return "\n".join(lines) + "\n"
