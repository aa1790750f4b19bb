"""What all pydantic models of the package share."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Model(BaseModel):
    """Immutable, readable by field name and by alias, and not built before it is first used: building costs milliseconds."""

    model_config = ConfigDict(frozen=True, populate_by_name=True, defer_build=True, extra="ignore", allow_inf_nan=False)
