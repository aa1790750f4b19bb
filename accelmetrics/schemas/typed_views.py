"""Typed views of a flat dict of metrics: the same numbers under checked, documented attributes.

The models are generated into ``metrics_models.py``, which is imported when something is looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pydantic import AliasChoices, BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo

from accelmetrics.schemas.catalogue import resolve
from accelmetrics.schemas.catalogue.host import INSTANCES

if TYPE_CHECKING:
    from accelmetrics.schemas.metrics_models import DeviceMetrics, HostMetrics, ProcessMetrics

Values = Mapping[str, int | float]
SHOWN = 8
"""Values that a view's ``repr`` shows."""


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


_View = TypeVar("_View", bound=Model)


def device_metrics(kind: str, values: Values) -> DeviceMetrics:
    """View a device's values by name; a kind without rows of its own has those that all kinds may have."""
    from accelmetrics.schemas.metrics_models import DEVICE_MODELS, CommonMetrics

    return cast("DeviceMetrics", _view(DEVICE_MODELS.get(kind, CommonMetrics), values))


def process_metrics(values: Values) -> ProcessMetrics:
    """View what the watched process uses of a device."""
    from accelmetrics.schemas.metrics_models import ProcessMetrics

    return _view(ProcessMetrics, values)


def host_metrics(metrics: Values) -> HostMetrics:
    """View the machine's part of a whole flat dict."""
    from accelmetrics.schemas import metrics_models

    plain: dict[str, Any] = {}
    for key, value in metrics.items():
        found = resolve(key)
        if found is None or found.device:
            continue
        head, _, name = found.row.key.rpartition(".")
        if head in INSTANCES:
            attribute, model, number = INSTANCES[head]
            plain.setdefault(attribute, {}).setdefault(number(found.instance), {})[name] = value
        elif not found.instance:
            plain[found.row.key] = value
    for attribute, model, _ in INSTANCES.values():
        if attribute in plain:
            plain[attribute] = {number: _view(getattr(metrics_models, model), values) for number, values in plain[attribute].items()}
    return _view(metrics_models.HostMetrics, plain)


def _view(model: type[_View], values: Mapping[str, Any]) -> _View:
    """Make the view, validated where possible. A number beyond its bounds is shown as it stands in ``metrics``: a look must not raise."""
    try:
        return model.model_validate(values)
    except ValidationError:
        shown = {field: [values[name] for name in names_of(field, about) if name in values] for field, about in model.model_fields.items()}
        return model.model_construct(**{field: found[0] for field, found in shown.items() if found})


def names_of(field: str, about: FieldInfo) -> list[str]:
    """Return the names that an attribute is read under, the first that is there."""
    read = about.validation_alias
    return [str(name) for name in read.choices] if isinstance(read, AliasChoices) else [field if about.alias is None else about.alias]
