"""The bases of the typed views, and of the parts of documents with the types that these hold their values to."""

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
"""Values that a view's ``repr`` shows."""
Key = Annotated[str, StringConstraints(min_length=1)]
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_TIMESTAMP = re.compile(r"(\d{4})-(\d\d)-(\d\d)[Tt](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?(?:[Zz]|([+-])(\d\d):(\d\d))", re.ASCII)


def parse_timestamp(text: object) -> int:
    """Convert to nanoseconds since 1970 an RFC 3339 timestamp.

    Raises:
        ValueError: It is not one.
    """
    found = _TIMESTAMP.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise ValueError(f"{shown(text)} is not an RFC 3339 timestamp with its time zone")
    year, month, day, hour, minute, second, fraction, sign, hours, minutes = found.groups()
    moment = datetime(int(year), int(month), int(day), int(hour), int(minute), int(second), tzinfo=timezone.utc)
    if sign:
        offset = timedelta(hours=int(hours), minutes=int(minutes))
        try:
            moment = moment + offset if sign == "-" else moment - offset
        except OverflowError:
            raise ValueError(f"{shown(text)} lies outside the calendar") from None
    return (moment - _EPOCH) // timedelta(seconds=1) * 1_000_000_000 + int((fraction or "").ljust(9, "0"))


def _finite_number(value: object) -> int | float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{shown(value)} is not a number")
    if isinstance(value, float) and not isfinite(value):
        raise ValueError("the value is not finite")
    return value


def _logged_number(value: object) -> int | float:
    """Return a finite number, or the one that a text stands for."""
    return float(value) if isinstance(value, str) and value in NOT_FINITE else _finite_number(value)


NOT_FINITE = ("NaN", "Infinity", "-Infinity")
"""How documents have numbers of the program that are not finite."""
Number = Annotated[int | float, PlainValidator(_finite_number), WithJsonSchema({"type": "number"})]
LoggedNumber = Annotated[
    int | float,
    PlainValidator(_logged_number),
    WithJsonSchema({"anyOf": [{"type": "number"}, {"enum": list(NOT_FINITE)}]}),
]
"""A number that the program logged, which may be none that JSON has."""
Timestamp = Annotated[int, PlainValidator(parse_timestamp), WithJsonSchema({"type": "string", "format": "date-time"})]
"""Nanoseconds since 1970 of what is an RFC 3339 timestamp in the document."""


class Part(BaseModel):
    """A part of a document. Nothing is converted: a number in quotes is not a number."""

    model_config = ConfigDict(
        strict=True, frozen=True, defer_build=True, extra="ignore", allow_inf_nan=False, json_schema_serialization_defaults_required=True
    )


class Model(BaseModel):
    """Immutable, readable by field name and by alias, and not built before it is first used: building costs milliseconds."""

    model_config = ConfigDict(frozen=True, populate_by_name=True, defer_build=True, extra="ignore", allow_inf_nan=False)

    def __repr__(self) -> str:
        """Show the class and the first values: there may be hundreds."""
        fields = type(self).model_fields
        values = {name: value for name, value in self if fields[name].repr and value not in (None, {})}
        shown = [f"{name}={value!r}" for name, value in islice(values.items(), SHOWN)]
        left = len(values) - len(shown)
        return f"{type(self).__name__}({', '.join([*shown, f'… {left} more'] if left else shown)})"


def names_of(field: str, about: FieldInfo) -> list[str]:
    """Return the names that an attribute is read under, the first that is there."""
    read = about.validation_alias
    return [str(name) for name in read.choices] if isinstance(read, AliasChoices) else [field if about.alias is None else about.alias]
