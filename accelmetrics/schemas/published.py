"""Documents held to the published JSON Schema, each kind of entry once.

The validator tries hundreds of patterns on every key. A key that has carried this type of value before is therefore not held
to it again: its bounds are :mod:`~accelmetrics.schemas.validation`'s at every reading.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from accelmetrics.schemas.document import json_schema

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator

Json = dict[str, Any]
LONGEST_WORD = 24
"""Characters up to which a text is taken for a word of some list, such as a reason, and beyond for free text."""


class Published:
    """What is known of the documents so far.

    Args:
        validator: Of the schema.
    """

    def __init__(self, validator: Draft202012Validator) -> None:
        self._validator = validator
        self._met: set[Hashable] = set()

    def findings(self, document: Json) -> Iterator[str]:
        """Each broken rule of the schema, in words, as far as the document has entries that no sound one had before.

        Args:
            document: As JSON gives it back.
        """
        new, kinds = self._unmet(document)
        if kinds:
            errors = list(self._validator.iter_errors(new))
            yield from (f"the document breaks docs/schema.json at {error.json_path}: {error.message}" for error in errors)
            if not errors:
                self._met |= kinds

    def _unmet(self, document: Json) -> tuple[Json, set[Hashable]]:
        """The document without the entries that were met before, and what is new in it."""
        outline: Hashable = frozenset((name, type(value)) for name, value in document.items())
        kinds = {outline} - self._met
        new: Json = {}
        for part, value in document.items():
            entries = _entries(value)
            fresh = {place: (part, *kind) for place, kind in entries.items() if (part, *kind) not in self._met}
            kinds.update(fresh.values())
            if isinstance(value, dict):
                new[part] = {name: value[name] for name in fresh}
            elif isinstance(value, list):
                new[part] = [value[place] for place in fresh]
            else:
                new[part] = value
        return new, kinds


def _entries(value: object) -> dict[Any, tuple[Hashable, ...]]:
    """The kind of each entry of a part, by the entry's name or place."""
    if isinstance(value, dict):
        return {name: (name, _shape(entry)) for name, entry in value.items()}
    return {place: (_shape(entry),) for place, entry in enumerate(value)} if isinstance(value, list) else {"": (_shape(value),)}


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
def published() -> Published | None:
    """What this process holds its documents to; None where ``jsonschema`` is not installed."""
    try:
        from jsonschema import Draft202012Validator
    except ImportError:
        return None
    return Published(Draft202012Validator(json_schema(), format_checker=Draft202012Validator.FORMAT_CHECKER))
