"""The bases of the typed views, and of the parts of documents."""

from __future__ import annotations

from itertools import islice
from typing import Annotated

from pydantic import AliasChoices, BaseModel, ConfigDict, StringConstraints
from pydantic.fields import FieldInfo

SHOWN = 8
"""Values that a view's ``repr`` shows."""
Key = Annotated[str, StringConstraints(min_length=1)]


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
