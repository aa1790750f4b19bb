"""Which dialects there are."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, cast

from accelmetrics.schemas.errors import UnknownNameError

if TYPE_CHECKING:
    from accelmetrics.dialects.contract import Dialect

DIALECTS = {
    "wandb": "accelmetrics.dialects.wandb:WANDB",
    "wandb-docs": "accelmetrics.dialects.wandb:WANDB_DOCS",
    "prometheus": "accelmetrics.dialects.prometheus:PROMETHEUS",
    "otel": "accelmetrics.dialects.otel:OTEL",
    "nvidia-smi": "accelmetrics.dialects.nvidia_smi:NVIDIA_SMI",
    "verl": "accelmetrics.dialects.verl:VERL",
    "training": "accelmetrics.dialects.training:Training",
    "dcgm": "accelmetrics.dialects.dcgm:DCGM",
}
"""By name, where each is found: an object, or the class of one that keeps state. ``wandb`` is what everything speaks that is
not told otherwise."""


def names() -> tuple[str, ...]:
    """All dialects by name."""
    return tuple(DIALECTS)


def dialect(name: str) -> Dialect:
    """The dialect of this name; a new object where it keeps what it saw, so that no two who ask share it.

    Raises:
        UnknownNameError: There is none.
    """
    target = DIALECTS.get(name)
    if target is None:
        raise UnknownNameError("dialect", name, DIALECTS)
    module, _, attribute = target.partition(":")
    found = getattr(importlib.import_module(module), attribute)
    return cast("Dialect", found() if isinstance(found, type) else found)
