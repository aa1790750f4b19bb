"""The published JSON Schema (draft 2020-12) of the ``dump --json`` document."""

from __future__ import annotations

import re
from typing import Any

from accelmetrics.schemas.catalogue import CATALOGUE, partitions_of
from accelmetrics.schemas.document import Document
from accelmetrics.schemas.metric import PARTITION, Metric
from accelmetrics.schemas.snapshot import SCHEMA_VERSION

DIALECT = "https://json-schema.org/draft/2020-12/schema"
SCHEMA_ID = f"urn:accelmetrics:dump:{SCHEMA_VERSION}"

# Graphcore's keys hold parentheses.
_SPECIAL = re.compile(r"[.()\[\]*+?|^$\\]")


def json_schema() -> dict[str, Any]:
    """The schema as plain containers, new at each call.

    Keys of the catalogue are held to its types and bounds; other keys may carry any number, for backends from elsewhere.
    """
    schema = Document.model_json_schema(mode="serialization")
    for part in ("metrics", "unavailable", "processes"):
        # Older releases of pydantic leave this out, and the published copy must not depend on the release.
        schema["properties"][part].pop("propertyNames", None)
        schema["properties"][part]["propertyNames"] = {"minLength": 1}
    metrics = schema["properties"]["metrics"]
    metrics["patternProperties"] = {
        pattern(spelling, bool(partitions_of(row))): value(row) for row in CATALOGUE for spelling in (row.key, *row.aliases)
    }
    metrics["additionalProperties"] = {"type": "number"}
    head = {"$schema": DIALECT, "$id": SCHEMA_ID, "title": "accelmetrics dump --json"}
    return {**head, **{name: part for name, part in schema.items() if name not in head}}


def pattern(template: str, partitions: bool = False) -> str:
    """The regular expression of a key template, in the part of the language that ECMA 262 and Python share.

    Args:
        template: The key.
        partitions: Whether partitions of a device have it too.
    """
    device = rf"[0-9]+(\.{PARTITION}\.[0-9]+)?" if partitions else "[0-9]+"
    text = _SPECIAL.sub(r"\\\g<0>", template).replace("{i}", device).replace("{link}", "[0-9]+")
    for placeholder in ("{path}", "{device}", "{label}"):
        text = text.replace(placeholder, ".+")
    return f"^{text}$"


def value(row: Metric) -> dict[str, Any]:
    """The schema of a metric's value."""
    schema: dict[str, Any] = {"type": "integer" if row.integer else "number"}
    for word, bound in (("minimum", row.minimum), ("maximum", row.maximum)):
        if bound is not None:
            schema[word] = int(bound) if bound == int(bound) else bound
    return {**schema, "description": row.meaning, "x-unit": row.unit, "x-kind": row.kind}
