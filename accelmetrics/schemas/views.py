"""The typed views of a flat dict of metrics: the same numbers under checked, documented attributes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pydantic import ValidationError

from accelmetrics.schemas.catalogue import NEUTRAL_NAMES, resolve
from accelmetrics.schemas.catalogue.host import INSTANCES
from accelmetrics.schemas.metric import is_host_key
from accelmetrics.schemas.metrics_models import (
    DEVICE_MODELS,
    CpuMetrics,
    DiskMetrics,
    FilesystemMetrics,
    GpuMetrics,
    GpuProcessMetrics,
    HostMetrics,
)
from accelmetrics.schemas.models import Model

if TYPE_CHECKING:
    from accelmetrics.schemas.metrics_models import DeviceMetrics

Values = Mapping[str, int | float]
_View = TypeVar("_View", bound=Model)
_INSTANCE_MODELS: dict[str, type[Model]] = {
    "cpus": CpuMetrics,
    "filesystems": FilesystemMetrics,
    "disks": DiskMetrics,
}


def device_metrics(kind: str, values: Values) -> DeviceMetrics:
    """The view of a device's values by name. A kind without rows of its own is seen through the names GPUs have."""
    model = DEVICE_MODELS.get(kind)
    if model is None:
        values = {**values, **{name: values[spelled] for name, spelled in NEUTRAL_NAMES.items() if spelled in values}}
    return cast("DeviceMetrics", _view(model or GpuMetrics, values))


def process_metrics(values: Values) -> GpuProcessMetrics:
    """The view of what the watched process uses of a device."""
    return _view(GpuProcessMetrics, values)


def host_metrics(metrics: Values) -> HostMetrics:
    """The view of the host's part of a whole flat dict."""
    plain: dict[str, Any] = {}
    instances: dict[str, dict[Any, dict[str, int | float]]] = {}
    for key, value in metrics.items():
        if is_host_key(key):
            _place(key, value, plain, instances)
    for name, found in instances.items():
        plain[name] = {number: _view(_INSTANCE_MODELS[name], values) for number, values in found.items()}
    return _view(HostMetrics, plain)


def _place(key: str, value: int | float, plain: dict[str, Any], instances: dict[str, dict[Any, dict[str, int | float]]]) -> None:
    sighting = resolve(key)
    if sighting is None or not sighting.row.of_host:
        return
    if not sighting.instance:
        plain[sighting.row.key] = value
        return
    head, _, name = sighting.row.key.rpartition(".")
    attribute, _, number = INSTANCES[head]
    instances.setdefault(attribute, {}).setdefault(number(sighting.instance), {})[name] = value


def _view(model: type[_View], values: Mapping[str, Any]) -> _View:
    """Validated where possible. A number beyond its bounds is shown as it stands in ``metrics``: a look must not raise."""
    try:
        return model.model_validate(values)
    except ValidationError:
        return model.model_construct(**values)
