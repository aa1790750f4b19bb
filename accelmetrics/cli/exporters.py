"""``accelmetrics exporters``: where records can go."""

from __future__ import annotations

import inspect
from argparse import Namespace

from accelmetrics.backends.guard import guarded
from accelmetrics.cli import options as arguments
from accelmetrics.cli.output import Stdout
from accelmetrics.cli.text import listing
from accelmetrics.exporters import registry
from accelmetrics.schemas import plug_ins

EXAMPLES = """\
  accelmetrics exporters
  accelmetrics exporters --json | jq -r '.[].name'
  accelmetrics record --exporter jsonl:run.jsonl --exporter prometheus

What stands behind the colon, and every option: docs/exporters.md"""
OPTIONS: arguments.Groups = {"": {"--json": {"action": "store_true", "help": "print a JSON array"}}}
HEAD = ("NAME", "WHERE RECORDS GO", "NEEDS")


def run(options: Namespace, out: Stdout) -> int:
    """Print a line for each."""
    out.write(listing(HEAD, [_row(name) for name in registry.names()], options.json))
    return 0


def _row(name: str) -> tuple[str, str, str]:
    if name in registry.BUILT_IN:
        _, where, needs = registry.EXPORTERS[name]
        return name, where, needs
    loaded = guarded(registry.load, name)
    words = (inspect.getdoc(loaded.value) or "") if loaded.failure is None else loaded.failure.detail
    return name, words.partition("\n")[0], plug_ins.package(registry.GROUP, name)
