"""Snapshots that tests take, held to the published JSON Schema besides what ``ACCELMETRICS_VALIDATE=1`` asks of them."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator, Mapping
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator

from accelmetrics.schemas.catalogue.host import INSTANCES
from accelmetrics.schemas.document import json_schema
from accelmetrics.schemas.errors import DocumentError
from accelmetrics.schemas.selection import ALL_METRICS, MetricSelection
from accelmetrics.schemas.snapshot import Snapshot
from accelmetrics.schemas.validation import validate
from accelmetrics.schemas.view_model import Model, names_of

LONGEST_WORD = 24
"""Characters up to which a text is taken for a word of some list, such as a reason, and beyond for free text."""


class PublishedSchema:
    """The published JSON Schema, to which each kind of entry of a document is held once.

    The validator tries hundreds of patterns on every key. A key that has carried this type of value before is therefore not held to it
    again: its bounds are held at every reading by `validate`.

    Args:
        validator: Of the schema.
    """

    def __init__(self, validator: Draft202012Validator) -> None:
        self._validator = validator
        self._met: set[Hashable] = set()

    def findings(self, document: dict[str, Any]) -> Iterator[str]:
        """Each broken rule of the schema, in words, as far as the document has entries that no sound one had before.

        Args:
            document: As JSON gives it back.
        """
        outline: Hashable = frozenset((name, type(value)) for name, value in document.items())
        kinds = {outline} - self._met
        new: dict[str, Any] = {}
        for part, value in document.items():
            shapes: dict[Any, Hashable]
            if part == "topology":  # an object with fields of its own
                shapes = {part: (part, _shape(value))}
            elif isinstance(value, dict):
                shapes = {name: (part, name, _shape(entry)) for name, entry in value.items()}
            else:
                shapes = {place: (part, _shape(entry)) for place, entry in enumerate(value if isinstance(value, list) else [value])}
            fresh = [place for place, shape in shapes.items() if shape not in self._met]
            kinds.update(shapes[place] for place in fresh)
            new[part] = value
            if part == "topology":
                continue
            if isinstance(value, dict):
                new[part] = {name: value[name] for name in fresh}
            elif isinstance(value, list):
                new[part] = [value[place] for place in fresh]
        if kinds:
            errors = list(self._validator.iter_errors(new))
            yield from (f"the document breaks docs/schema.json at {error.json_path}: {error.message}" for error in errors)
            if not errors:
                self._met |= kinds


def _shape(value: object) -> Hashable:
    """Names, types and words; of numbers and of long texts, which differ at every reading, the type and the sign."""
    if isinstance(value, Mapping):
        return frozenset((name, _shape(entry)) for name, entry in value.items())
    if isinstance(value, list):
        return frozenset(map(_shape, value))
    if isinstance(value, str):
        return value if len(value) <= LONGEST_WORD else str
    if isinstance(value, (int, float)):
        return type(value), value < 0
    return value is None


@cache
def published() -> PublishedSchema:
    """What this process holds its documents to."""
    return PublishedSchema(Draft202012Validator(json_schema(), format_checker=Draft202012Validator.FORMAT_CHECKER))


def validate_fully(snapshot: Snapshot, wanted: MetricSelection = ALL_METRICS) -> None:
    """Hold a snapshot to every rule, and then to the published schema, to what reads it back and to its typed views.

    Raises:
        DocumentError: It breaks some; the message lists all findings.
    """
    validate(snapshot, wanted)
    text = snapshot.to_json()
    found = [*view_findings(snapshot), *published().findings(json.loads(text))]
    if Snapshot.from_dict(snapshot.to_dict()) != snapshot or Snapshot.from_json(text) != snapshot:
        found.append("the document does not read back to an equal snapshot")
    if found:
        raise DocumentError("\n".join(found))


def view_findings(snapshot: Snapshot) -> Iterator[str]:
    """Check that the typed views have the same values as the flat dict."""
    for device in snapshot.devices:
        yield from _compare(device.key, device.metrics, device.values)
        part = f"{device.kind}.process.{device.index}"
        if device.process_metrics is not None:
            yield from _compare(part, device.process_metrics, snapshot.values_of(part))
    yield from _compare("the host", snapshot.host, snapshot.metrics)
    for head, (attribute, _, _) in INSTANCES.items():
        word = head.partition(".")[0]
        for instance, view in getattr(snapshot.host, attribute).items():
            start = f"{word}.{instance}."
            values = {key[len(start) :]: value for key, value in snapshot.metrics.items() if key.startswith(start)}
            yield from _compare(f"{word}.{instance}", view, values)


def _compare(what: str, view: Model, values: Mapping[str, Any]) -> Iterator[str]:
    """Compare the attributes of a view with the values. Names of plug-ins and of links have no attribute."""
    for field, about in type(view).model_fields.items():
        shown = next((values[name] for name in names_of(field, about) if name in values), None)
        if about.validation_alias is not None and shown != getattr(view, field):
            yield f"the typed view of {what} differs from metrics in {about.alias or field}"
