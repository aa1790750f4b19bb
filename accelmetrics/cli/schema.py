"""``accelmetrics schema``: the JSON Schema of the document that ``dump --json`` prints."""

from __future__ import annotations

import json
from argparse import Namespace

from accelmetrics.cli import options as arguments
from accelmetrics.cli.output import Stdout
from accelmetrics.schemas.document import json_schema

EXAMPLES = """\
  accelmetrics schema > accelmetrics.schema.json
  accelmetrics dump --json | check-jsonschema --schemafile accelmetrics.schema.json -"""
OPTIONS: arguments.Groups = {}


def run(_options: Namespace, out: Stdout) -> int:
    """Print the schema."""
    out.write(json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n")
    return 0
