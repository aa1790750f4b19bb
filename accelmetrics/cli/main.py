"""The command ``accelmetrics``: finds the command asked for, runs it, turns what went wrong into a line and a status.

Exit status: 0 done; 1 it could not be done (a file that cannot be written, a package that is missing, ``doctor --strict``
with a finding); 2 arguments that cannot be used; 130 ended by Ctrl-C; 141 whoever read the output has gone. The last two
are what a shell shows for programs that those signals end, and are reached without a word.

Nothing is imported before it is needed, and nothing is taken apart at the end: a collector may start this command once a
second.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

DONE, FAILED, MISUSED, INTERRUPTED, PIPE_CLOSED = 0, 1, 2, 130, 141
YOUNG = 50_000
"""Objects between two collections: more than starting up makes, none of which is garbage."""


def program() -> NoReturn:
    """Be the process: run its command line and end it, without waiting for a driver call that may never return."""
    try:
        gc.set_threshold(YOUNG)
        status = main()
        flushed = _flushed()
        os._exit(status or flushed)
    except KeyboardInterrupt:
        os._exit(INTERRUPTED)


def _flushed() -> int:
    """Have everything written out that was printed."""
    try:
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
    except OSError:  # nobody is left to be told
        return FAILED
    return DONE


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line.

    Args:
        argv: The arguments after the program's name; those of this process when left out.

    Returns:
        The exit status.
    """
    try:
        return _explained(list(sys.argv[1:] if argv is None else argv))
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return PIPE_CLOSED


def _explained(arguments: list[str]) -> int:
    """Run a command line; one that fails on purpose ends in one line on standard error."""
    from accelmetrics.cli.commands import COMMANDS
    from accelmetrics.cli.output import one_line
    from accelmetrics.cli.parsing import PROGRAM, Leave, UsageError
    from accelmetrics.schemas.errors import AccelMetricsError, InvalidOptionError, UnknownNameError

    program = f"{PROGRAM} {arguments[0]}" if arguments and arguments[0] in COMMANDS else PROGRAM
    try:
        return _dispatch(arguments)
    except Leave as leave:
        return leave.status
    except (UsageError, AccelMetricsError) as error:
        from accelmetrics.cli import logs

        logs.fail(program, one_line(error))
        return MISUSED if isinstance(error, (UsageError, InvalidOptionError, UnknownNameError)) else FAILED


def _dispatch(arguments: list[str]) -> int:
    from accelmetrics.cli.commands import COMMANDS, load

    if not arguments or arguments[0] not in COMMANDS:
        return _without_command(arguments)
    from accelmetrics.cli.output import Stdout
    from accelmetrics.cli.parsing import Parser

    command = load(arguments[0])
    parser = Parser.for_command(arguments[0], COMMANDS[arguments[0]], command.EXAMPLES)
    command.configure(parser)
    options = parser.parse_strictly(arguments[1:])
    with Stdout() as out:
        if "log_format" in options:
            from accelmetrics.cli import logs

            logs.begin(options)
        return command.run(options, out)


def _without_command(arguments: list[str]) -> int:
    from accelmetrics.cli.commands import COMMANDS, root_parser
    from accelmetrics.cli.output import Stdout, say
    from accelmetrics.schemas.errors import UnknownNameError

    first = arguments[0] if arguments else ""
    if not first:
        say(root_parser().format_help().rstrip())
        return MISUSED
    if first == "--version":
        from accelmetrics._version import __version__

        with Stdout() as out:
            out.write(f"accelmetrics {__version__}\n")
        return DONE
    if first in {"-h", "--help"}:
        root_parser().print_help()
        return DONE
    if first.startswith("-"):
        raise UnknownNameError("option", first, ("--help", "--version", "or a command first"))
    raise UnknownNameError("command", first, COMMANDS)
