"""``accelmetrics schema``: the JSON Schema of a ``dump --json`` document, of a recording's lines, or of ``topology --json``."""

from __future__ import annotations

import json
from argparse import Namespace

from accelmetrics.cli import options as arguments
from accelmetrics.cli.output import Stdout
from accelmetrics.schemas.document import json_schema, lines_schema, topology_schema

EXAMPLES = """\
  accelmetrics schema > accelmetrics.schema.json
  accelmetrics dump --json | check-jsonschema \\
      --schemafile accelmetrics.schema.json -
  accelmetrics schema --lines > accelmetrics.lines.schema.json"""
OPTIONS: arguments.Groups = {
    "": {
        "--lines": {"action": "store_true", "help": "schema of a line of the exporter jsonl: a header or a reading"},
        "--topology": {"action": "store_true", "help": "schema of the output of topology --json"},
    },
}


def run(options: Namespace, out: Stdout) -> int:
    """Print the schema."""
    arguments.refuse((options.lines and options.topology, "--lines excludes --topology: give one of them"))
    schema = lines_schema() if options.lines else topology_schema() if options.topology else json_schema()
    out.write(json.dumps(schema, indent=2, ensure_ascii=False) + "\n")
    return 0
