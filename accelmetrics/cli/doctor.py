"""``accelmetrics doctor``: whether each source works, on what evidence, and what to do where it does not."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Any

from accelmetrics._version import __version__
from accelmetrics.cli import options as arguments

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from accelmetrics.cli.output import Stdout
    from accelmetrics.visibility.doctor import Diagnosis

EXAMPLES = """\
  accelmetrics doctor
  accelmetrics doctor --backends nvidia --json | jq '.backends[0].advice'
  accelmetrics doctor --strict || echo "a device is there and cannot be read"

Exit status: 0 whatever is found. With --strict, 1 when a device is there and cannot be read: one that the driver lists and
that gives nothing, or one that the bus shows and whose driver does not open."""


def configure(parser: ArgumentParser) -> None:
    """Add the options."""
    add = parser.add_argument
    add("--json", action="store_true", help="print the findings as one JSON object")
    add("--strict", action="store_true", help="exit with 1 when a device is there and cannot be read")
    arguments.add_reading(parser, "--backends", "--amd-source", "--timeout")


def run(options: Namespace, out: Stdout) -> int:
    """Print the findings."""
    from accelmetrics.visibility.doctor import diagnose

    found = diagnose(**arguments.reading(options))
    if options.json:
        import json

        out.write(json.dumps(report(found), indent=2) + "\n")
    else:
        from accelmetrics.cli.findings import render

        out.write(render(found, machine(), out.width))
    return 1 if options.strict and found.unreadable else 0


def machine() -> dict[str, str]:
    """What the findings were made with."""
    return {"version": __version__, "python": platform.python_version(), "platform": platform.platform()}


def report(found: Diagnosis) -> dict[str, Any]:
    """The findings for programs."""
    return {**machine(), **plain(found), "unreadable": found.unreadable}


def plain(record: Any) -> Any:
    """Records as dicts, all the way down."""
    if hasattr(record, "_asdict"):
        return {name: plain(value) for name, value in record._asdict().items()}
    return [plain(part) for part in record] if isinstance(record, tuple) else record
