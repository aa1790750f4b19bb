"""Which commands there are, and how each is found: the module of its name, imported when it is run."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Protocol, cast

from accelmetrics.cli.parsing import PROGRAM, Parser

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from accelmetrics.cli.output import Stdout

COMMANDS = {
    "dump": "print one reading of everything, or one every so many seconds",
    "list": "list the devices",
    "watch": "show the devices live, in place",
    "record": "watch until stopped, and hand every reading to exporters",
    "serve": "serve the readings to Prometheus and over HTTP",
    "run": "run a command, watch it, and say what it used",
    "report": "say what a recording came to",
    "allocation": "compare which devices a job's processes were given with those that they use",
    "doctor": "say of every source whether it works, and what to do where it does not",
    "metrics": "list the metrics, with their units and meanings",
    "schema": "print the JSON Schema of the document that dump --json prints",
    "completion": "print a shell's completion script",
}
"""By name, what each does."""

DESCRIPTION = "Reads every accelerator on this machine, whoever made it, and the host, under one set of keys."
EXAMPLES = """\
  accelmetrics dump                   everything there is, for people
  accelmetrics dump --json            the same as one JSON document, for programs
  accelmetrics dump --interval 5      a document a line, every five seconds
  accelmetrics doctor                 why something is missing, and what to do about it
  accelmetrics COMMAND --help         a command's options, with examples"""


class Command(Protocol):
    """What a command's module offers."""

    EXAMPLES: str
    """Shown below its help."""

    def configure(self, parser: ArgumentParser) -> None:
        """Add its options."""
        ...

    def run(self, options: Namespace, out: Stdout) -> int:
        """Do it, and say with which status to exit."""
        ...


def load(name: str) -> Command:
    """The module of a command."""
    return cast("Command", importlib.import_module(f"accelmetrics.cli.{name}"))


def root_parser(whole: bool = False) -> Parser:
    """The parser above the commands.

    Args:
        whole: Whether the commands' own options are wanted too (for completion); without, nothing of theirs is loaded.
    """
    parser = Parser.for_command("", DESCRIPTION, EXAMPLES)
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command")
    for name, summary in COMMANDS.items():
        added = commands.add_parser(name, prog=f"{PROGRAM} {name}", help=summary)
        if whole:
            load(name).configure(added)
    return parser
