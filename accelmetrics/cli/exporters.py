"""``accelmetrics exporters``: the destinations of records."""

from __future__ import annotations

import inspect
from argparse import Namespace

from accelmetrics.backends.guard import guarded
from accelmetrics.cli import options as arguments
from accelmetrics.cli.output import Stdout, listing
from accelmetrics.exporters import registry
from accelmetrics.schemas import plug_ins

EXAMPLES = """\
  accelmetrics exporters
  accelmetrics exporters --json | jq -r '.[].name'
  accelmetrics record --exporter jsonl:run.jsonl --exporter prometheus

The targets behind the colon, and every option: docs/exporters.md"""
OPTIONS: arguments.Groups = {"": {"--json": {"action": "store_true", "help": "print a JSON array"}}}
HEAD = ("NAME", "WHERE RECORDS GO", "NEEDS")


def run(options: Namespace, out: Stdout) -> int:
    """Print one line per exporter."""
    rows = [(name, where, needs) for name, (_, where, needs) in registry.EXPORTERS.items()]
    for name in registry.names()[len(rows) :]:
        loaded = guarded(registry.load, name)
        words = (inspect.getdoc(loaded.value) or "") if loaded.failure is None else loaded.failure.detail
        rows.append((name, words.partition("\n")[0], plug_ins.package(registry.GROUP, name)))
    out.write(listing(HEAD, rows, options.json, out.width))
    return 0
