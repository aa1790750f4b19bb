"""Base classes of the typed views and of the parts of documents, and the types of their values."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from itertools import islice
from math import isfinite
from typing import Annotated

from pydantic import AliasChoices, BaseModel, ConfigDict, PlainValidator, StringConstraints, WithJsonSchema
from pydantic.fields import FieldInfo

from accelmetrics.schemas.text import shown

SHOWN = 8
"""Most values in a view's ``repr``."""
Key = Annotated[str, StringConstraints(min_length=1)]
_TIMESTAMP = re.compile(r"(\d{4}-\d\d-\d\d)[Tt](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(?:[Zz]|([+-]\d\d:\d\d))", re.ASCII)


def parse_timestamp(text: object) -> int:
    """Return an RFC 3339 timestamp as nanoseconds since 1970.

    Raises:
        ValueError: It is not a valid timestamp.
    """
    found = _TIMESTAMP.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise ValueError(f"{shown(text)} is not an RFC 3339 timestamp with its time zone")
    date, clock, fraction, offset = found.groups()
    try:
        moment = datetime.fromisoformat(f"{date}T{clock}{offset or '+00:00'}").astimezone(timezone.utc)
    except OverflowError:
        raise ValueError(f"{shown(text)} is outside the calendar") from None
    # The fraction is added as an integer, because `datetime` has no nanoseconds.
    return (moment - datetime(1970, 1, 1, tzinfo=timezone.utc)) // timedelta(seconds=1) * 1_000_000_000 + int(
        (fraction or "").ljust(9, "0")
    )


def _finite_number(value: object) -> int | float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{shown(value)} is not a number")
    if isinstance(value, float) and not isfinite(value):
        raise ValueError("the value is not finite")
    return value


def _logged_number(value: object) -> int | float:
    """Return a finite number, or the number that a text (``NaN``, ``Infinity``) represents."""
    return float(value) if isinstance(value, str) and value in NOT_FINITE else _finite_number(value)


NOT_FINITE = ("NaN", "Infinity", "-Infinity")
"""The texts that represent logged numbers that are not finite in documents."""
Number = Annotated[int | float, PlainValidator(_finite_number), WithJsonSchema({"type": "number"})]
LoggedNumber = Annotated[
    int | float,
    PlainValidator(_logged_number),
    WithJsonSchema({"anyOf": [{"type": "number"}, {"enum": list(NOT_FINITE)}]}),
]
"""A number that the program logged. It may be one that JSON cannot represent."""
Timestamp = Annotated[int, PlainValidator(parse_timestamp), WithJsonSchema({"type": "string", "format": "date-time"})]
"""Nanoseconds since 1970; an RFC 3339 timestamp in the document."""


class Part(BaseModel):
    """A part of a document. Values are not converted: a number in quotes is not a number."""

    model_config = ConfigDict(
        strict=True, frozen=True, defer_build=True, extra="ignore", allow_inf_nan=False, json_schema_serialization_defaults_required=True
    )


class Model(BaseModel):
    """A model that is immutable, readable by field name and by alias, and built on first use: building costs milliseconds."""

    model_config = ConfigDict(frozen=True, populate_by_name=True, defer_build=True, extra="ignore", allow_inf_nan=False)

    def __repr__(self) -> str:
        """Show the class and its first values only, since there may be hundreds."""
        fields = type(self).model_fields
        values = {name: value for name, value in self if fields[name].repr and value not in (None, {})}
        shown = [f"{name}={value!r}" for name, value in islice(values.items(), SHOWN)]
        left = len(values) - len(shown)
        return f"{type(self).__name__}({', '.join([*shown, f'… {left} more'] if left else shown)})"


def names_of(field: str, about: FieldInfo) -> list[str]:
    """Return the names that an attribute is read under; the first one present counts."""
    read = about.validation_alias
    return [str(name) for name in read.choices] if isinstance(read, AliasChoices) else [field if about.alias is None else about.alias]
