"""``accelmetrics schema``: the JSON Schema of the document that ``dump --json`` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from accelmetrics.cli.output import Stdout

EXAMPLES = """\
  accelmetrics schema > accelmetrics.schema.json
  accelmetrics dump --json | check-jsonschema --schemafile accelmetrics.schema.json -"""


def configure(_parser: ArgumentParser) -> None:
    """It has no options."""


def run(_options: Namespace, out: Stdout) -> int:
    """Print it."""
    import json

    from accelmetrics.schemas.document import json_schema

    out.write(json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n")
    return 0
