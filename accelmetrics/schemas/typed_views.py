"""Typed views of a flat dict of metrics: the same numbers as typed, documented attributes.

The models are generated into ``metrics_models``. Only models that are used are imported, on first use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, cast

from accelmetrics.schemas.metrics_models import DeviceMetrics, ProcessMetrics, device_model
from accelmetrics.schemas.view_model import Model, names_of

if TYPE_CHECKING:
    from accelmetrics.schemas.metrics_models.host import HostMetrics

Values = Mapping[str, int | float]
_View = TypeVar("_View", bound=Model)


def device_metrics(kind: str, values: Values) -> DeviceMetrics:
    """Return a device's values as a typed view. A kind without special metrics gets the metrics of all kinds."""
    return cast("DeviceMetrics", _view(device_model(kind), values))


def process_metrics(values: Values) -> ProcessMetrics:
    """Return the watched process's use of a device as a typed view."""
    return _view(ProcessMetrics, values)


def host_metrics(metrics: Values) -> HostMetrics:
    """Return the machine's part of a whole flat dict as a typed view."""
    from accelmetrics.schemas.catalogue import resolve
    from accelmetrics.schemas.catalogue.host import INSTANCES
    from accelmetrics.schemas.metrics_models import host

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
            plain[attribute] = {number: _view(getattr(host, model), values) for number, values in plain[attribute].items()}
    return _view(host.HostMetrics, plain)


def _view(model: type[_View], values: Mapping[str, Any]) -> _View:
    """Return the view of values, without validating them."""
    # Not validated, because a property must not raise: a number outside of its bounds is shown as it is in ``metrics``.
    # Also, pydantic's first validation loads 50 more modules and builds the schema, which takes half as long as importing
    # pydantic.
    shown: dict[str, Any] = {}
    for field, names, convert in _fields(model):
        for name in names:
            if name in values:
                shown[field] = convert(values[name])
                break
    return model.model_construct(**shown)


@cache
def _fields(model: type[Model]) -> list[tuple[str, list[str], Callable[[Any], Any]]]:
    """Return a model's fields, with the names that each is read under, and its conversion to a number."""
    numbers: dict[object, Callable[[Any], Any]] = {float | None: float, int | None: _whole}
    # Anything else is a dict of views.
    return [(field, names_of(field, about), numbers.get(about.annotation, dict)) for field, about in model.model_fields.items()]


def _whole(number: int | float) -> int | float:
    return int(number) if number == int(number) else number
