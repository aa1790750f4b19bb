"""``accelmetrics dialects``: under whose names the metrics can be given."""

from __future__ import annotations

from argparse import Namespace

from accelmetrics.backends.guard import guarded
from accelmetrics.cli import options as arguments
from accelmetrics.cli.output import Stdout, listing
from accelmetrics.dialects import registry
from accelmetrics.schemas import plug_ins

EXAMPLES = """\
  accelmetrics dialects
  accelmetrics dialects --json | jq -r '.[].name'
  accelmetrics dump --keys nvidia-smi --format csv
  accelmetrics record --exporter 'prometheus?dialect=dcgm'

Which key has which name: docs/dialects.md"""
OPTIONS: arguments.Groups = {"": {"--json": {"action": "store_true", "help": "print a JSON array"}}}
HEAD = ("NAME", "WHOSE NAMES", "NEEDS")


def run(options: Namespace, out: Stdout) -> int:
    """Print a line for each."""
    out.write(listing(HEAD, [_row(name) for name in registry.names()], options.json))
    return 0


def _row(name: str) -> tuple[str, str, str]:
    made = guarded(registry.dialect, name)
    words = made.failure.detail if made.value is None and made.failure is not None else getattr(made.value, "summary", "")
    return name, words, "" if name in registry.BUILT_IN else plug_ins.package(registry.GROUP, name)
