"""``accelmetrics demo``: other commands on simulated GPUs, for a machine without GPUs."""

from __future__ import annotations

import argparse

from accelmetrics.cli import main, options as arguments
from accelmetrics.cli.output import Stdout, say
from accelmetrics.monitor import settings

SHOWN = ("watch", "serve", "record")
"""Commands that the demo can run. The first one is the default."""
EXAMPLES = """\
  accelmetrics demo
      watch four simulated GPUs
  accelmetrics demo serve --ui
      the page at http://127.0.0.1:22235/
  accelmetrics demo record --exporter jsonl:run.jsonl
      a recording for `accelmetrics report run.jsonl --html run.html`
  accelmetrics demo --devices 64 watch
      more of them

The GPUs work in phases; one gets hot, one does nothing. The host's numbers are
this machine's. Real devices are not read.

Exit status: the command's; 2 for arguments that cannot be used."""
OPTIONS: arguments.Groups = {
    "": {
        "--devices": {"type": settings.count.parse, "default": 4, "metavar": "N", "help": "number of simulated GPUs (default: 4)"},
        "command": {"nargs": argparse.REMAINDER, "metavar": "COMMAND …", "help": f"one of {', '.join(SHOWN)}, with its options"},
    },
}


def run(options: argparse.Namespace, out: Stdout) -> int:
    """Run the command on simulated devices and return its exit status."""
    name, *rest = options.command or SHOWN[:1]
    arguments.refuse(
        (name not in SHOWN, f"{name!r} cannot be shown: {', '.join(SHOWN)} can"),
        (options.devices > 1024, f"--devices {options.devices}: at most 1024"),
    )
    command, chosen, _ = main.parsed(name, rest)
    elsewhere = [flag for flag in ("--replay", "--url", "--fleet") if flag in chosen.flags_given]
    elsewhere += ["FILE"] if getattr(chosen, "file", None) else []
    arguments.refuse(
        ("--backends" in chosen.flags_given, "--backends says what is read: the demo reads its own devices and the host"),
        (elsewhere, f"{', '.join(elsewhere)} reads no device: leave out `demo`"),
        (chosen.isolation == "process", "the simulated devices are in this process: leave out --isolation process"),
    )
    from accelmetrics.testing import DemoBackend

    chosen.backends = [DemoBackend(options.devices), "host"]
    say(f"accelmetrics demo: {options.devices} simulated GPUs: their numbers are invented")
    return main.run(name, command, chosen, out)
