"""Typed views of a flat dict of metrics: the same numbers under checked, documented attributes.

The models are generated into ``metrics_models.py``. Both are imported when something is looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, cast

from pydantic import ValidationError

from accelmetrics.schemas import metrics_models
from accelmetrics.schemas.catalogue import resolve
from accelmetrics.schemas.catalogue.host import INSTANCES
from accelmetrics.schemas.metrics_models import DEVICE_MODELS, CommonMetrics, DeviceMetrics, HostMetrics, ProcessMetrics
from accelmetrics.schemas.view_model import Model, names_of

Values = Mapping[str, int | float]
_View = TypeVar("_View", bound=Model)


def device_metrics(kind: str, values: Values) -> DeviceMetrics:
    """View a device's values by name; a kind without rows of its own has those that all kinds may have."""
    return cast("DeviceMetrics", _view(DEVICE_MODELS.get(kind, CommonMetrics), values))


def process_metrics(values: Values) -> ProcessMetrics:
    """View what the watched process uses of a device."""
    return _view(ProcessMetrics, values)


def host_metrics(metrics: Values) -> HostMetrics:
    """View the machine's part of a whole flat dict."""
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
    return _view(HostMetrics, plain)


def _view(model: type[_View], values: Mapping[str, Any]) -> _View:
    """Make the view, validated where possible. A number beyond its bounds is shown as it stands in ``metrics``: a look must not raise."""
    try:
        return model.model_validate(values)
    except ValidationError:
        shown = {field: [values[name] for name in names_of(field, about) if name in values] for field, about in model.model_fields.items()}
        return model.model_construct(**{field: found[0] for field, found in shown.items() if found})
