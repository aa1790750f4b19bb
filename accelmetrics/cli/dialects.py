"""``accelmetrics dialects``: the naming schemes in which metrics can be printed and exported."""

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
    """Print one line per dialect."""
    rows = []
    for name in registry.names():
        made = guarded(registry.dialect, name)
        words = getattr(made.value, "summary", "") if made.failure is None else made.failure.detail
        rows.append((name, words, "" if name in registry.BUILT_IN else plug_ins.package(registry.GROUP, name)))
    out.write(listing(HEAD, rows, options.json, out.width))
    return 0
