"""The program ``accelmetrics``: finds a command, runs it, and turns errors into one line and an exit status.

Exit status: 0 done; 1 it could not be done (a file that cannot be written, a package that is missing, ``doctor --strict``
with a finding); 2 arguments that cannot be used; 130 ended by Ctrl-C; 141 the reader of the output has gone. The last two
are what a shell shows for programs that those signals end, and nothing is printed for them.

Nothing is imported before it is needed: a collector may start this command once a second.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import ModuleType

from accelmetrics.cli.options import PROGRAM, Parser, UsageError, configure, origin
from accelmetrics.cli.output import Stdout, say
from accelmetrics.monitor.settings import Setting
from accelmetrics.schemas.errors import AccelMetricsError, InvalidOptionError, UnknownNameError, without_passwords

DONE, FAILED, MISUSED, INTERRUPTED, PIPE_CLOSED = 0, 1, 2, 130, 141

POSIX_MODULES = frozenset({"fcntl", "grp", "pwd", "resource", "termios", "tty"})
GROUPS: Mapping[str, Mapping[str, str]] = {
    "first": {
        "watch": "show the devices live, in place",
        "dump": "print one reading: a screen, all metrics, or documents",
        "run": "run a command, watch it, and print what it used",
    },
    "devices": {
        "list": "list the devices",
        "ps": "list the processes on the devices, with user, command and memory",
        "topology": "show how the devices are connected: PCIe, NVLink, XGMI, RDMA",
        "metrics": "list the metrics, with their units and meanings",
    },
    "recordings": {
        "record": "watch until stopped, and send every reading to exporters",
        "report": "summarise recordings, or compare two",
        "demo": "run watch, serve or record on simulated GPUs",
    },
    "faults": {
        "doctor": "check every source, and say how to fix it",
        "allocation": "compare the devices given to processes with the devices in use",
        "verify": "compare every value with a second source",
        "bundle": "write an archive that reproduces a fault, without names",
    },
    "clusters": {
        "serve": "serve the readings to Prometheus and over HTTP, and a page",
        "targets": "print a cluster's nodes for Prometheus' service discovery",
        "job": "record a job's devices, and summarise it at its end: for Slurm",
    },
    "settings": {
        "config": "show each option's value and its source, or print an example",
        "exporters": "list the exporters, and what each needs",
        "dialects": "list the dialects: metric names of other monitors",
        "schema": "print the JSON Schema of dump --json, or of recordings",
        "completion": "print a shell's completion script",
    },
}
"""What each command does, by the groups of the help; each is the module of its name."""
COMMANDS = {name: summary for group in GROUPS.values() for name, summary in group.items()}

DESCRIPTION = """\
Reads every accelerator on this machine, of any vendor, and the host, under one
set of keys."""
EXAMPLES = """\
  accelmetrics watch                  every device, live
  accelmetrics run -- python train.py a command, and what it used
  accelmetrics doctor                 why something is missing, and what to do

`accelmetrics COMMAND --help` has a command's options, with examples.
documentation: docs/README.md"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line. Expected errors end in one line on standard error.

    Args:
        argv: The arguments after the program's name; those of this process when left out.

    Returns:
        The exit status.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _dispatch(arguments)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return PIPE_CLOSED
    except SystemExit as done:  # how argparse ends after --help
        return int(done.code or DONE)
    except (UsageError, AccelMetricsError) as error:
        from accelmetrics.cli import monitoring

        words = without_passwords(" ".join(str(error).split()))  # one line, whatever was typed
        program = " ".join([PROGRAM, *(name for name in arguments[:1] if name in COMMANDS)])
        monitoring.tell(words, f"{program}: {words}", error=True)
        misused = isinstance(error, (UsageError, InvalidOptionError, UnknownNameError))
        return MISUSED if misused else getattr(error, "status", FAILED)  # a command that cannot be started has a shell's


def _dispatch(arguments: list[str]) -> int:
    first = arguments[0] if arguments else ""
    if first in COMMANDS:
        command, options, found = parsed(first, arguments[1:])
        with Stdout() as out:
            try:
                return run(first, command, options, out)
            except (InvalidOptionError, UnknownNameError) as error:
                raise UsageError(f"{error}{origin(str(error), found.values())}") from error
    if first and not first.startswith("-"):
        raise UnknownNameError("command", first, COMMANDS)
    parser = root_parser()
    if not parser.parse_strictly(arguments).version:
        say(parser.format_help().rstrip())
        return MISUSED
    from accelmetrics._version import __version__

    with Stdout() as out:
        out.write(f"accelmetrics {__version__}\n")
    return DONE


def parsed(name: str, arguments: list[str]) -> tuple[ModuleType, Namespace, dict[str, Setting]]:
    """Return a command's module, its options (from arguments, variables and file), and the source of each option.

    Raises:
        UsageError: The arguments cannot be used.
    """
    command = load(name)
    parser = Parser.for_command(name, COMMANDS[name], command.EXAMPLES)
    parser.add_options(command.OPTIONS)
    options = parser.parse_strictly(arguments)
    options.arguments = arguments
    return command, options, configure(name, options, command.OPTIONS)


def run(name: str, command: ModuleType, options: Namespace, out: Stdout) -> int:
    """Run a command and return its exit status. For a command that runs over time, logging is set up first."""
    if "log_format" in options:
        from accelmetrics.cli import monitoring

        monitoring.begin(options, name)
    return int(command.run(options, out))


def load(name: str) -> ModuleType:
    """Import the module of a command.

    It has ``EXAMPLES``, shown below its help, ``OPTIONS``, and ``run(options, out)``, which
    returns the exit status.

    Raises:
        UsageError: The command needs what this system does not have.
    """
    try:
        return importlib.import_module(f"accelmetrics.cli.{name}")
    except ModuleNotFoundError as error:
        if error.name not in POSIX_MODULES:
            raise
        raise UsageError(f"this command needs a POSIX system: there is no {error.name} here") from None


def root_parser(whole: bool = False) -> Parser:
    """Make the parser above the commands.

    Args:
        whole: Whether the commands' own options are wanted too (for completion); without, nothing of theirs is loaded.
    """
    parser = Parser.for_command("", DESCRIPTION, EXAMPLES)
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    # The help lists the commands in groups, above; completion takes them and their summaries from here.
    commands = parser.add_subparsers(metavar="COMMAND", dest="command", help=None if whole else argparse.SUPPRESS)
    parser.usage = f"{PROGRAM} [-h] [--version] COMMAND …"
    for title, group in GROUPS.items():
        rows = "".join(f"  {name:<12}{summary}\n" for name, summary in group.items())
        parser.description = f"{parser.description}\n\n{title}:\n{rows}".rstrip()
    for name, summary in COMMANDS.items():
        added = commands.add_parser(name, prog=f"{PROGRAM} {name}", help=summary)
        if whole:
            with suppress(UsageError):  # it needs another system
                added.add_options(load(name).OPTIONS)
    return parser
