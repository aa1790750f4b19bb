"""``accelmetrics doctor``: whether each source works, on what evidence, and what to do where it does not."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Any

from accelmetrics._version import __version__
from accelmetrics.cli import parsing

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
    add("--backends", type=parsing.backends, metavar="LIST", help="sources, by name: nvidia,host; one named here is opened in any case")
    add("--amd-source", metavar="NAME", help="read AMD's GPUs from this alone: sysfs, amdsmi, amd-smi or rocm-smi")
    add("--timeout", type=parsing.pause, metavar="S", help="seconds to wait for an answer, and for sources to open (default: 1, and 10)")


def run(options: Namespace, out: Stdout) -> int:
    """Print the findings."""
    from accelmetrics.sampling.options import DEFAULT_OPEN_TIMEOUT, DEFAULT_TIMEOUT
    from accelmetrics.visibility.doctor import diagnose

    timeout, open_timeout = options.timeout or DEFAULT_TIMEOUT, options.timeout or DEFAULT_OPEN_TIMEOUT
    found = diagnose(options.backends, timeout=timeout, open_timeout=open_timeout, amd_source=options.amd_source)
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
