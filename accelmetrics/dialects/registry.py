"""The registry of dialects: the built-in ones and the ones that other packages register.

A third-party package registers an object under the entry-point group ``accelmetrics.dialects``. A dialect that keeps state registers
its class instead, and every exporter creates a separate object.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from accelmetrics.schemas import plug_ins
from accelmetrics.schemas.errors import InvalidOptionError

if TYPE_CHECKING:
    from accelmetrics.dialects.contract import Dialect

GROUP = "accelmetrics.dialects"

BUILT_IN = {
    "wandb": "accelmetrics.dialects.wandb:WANDB",
    "wandb-docs": "accelmetrics.dialects.wandb:WANDB_DOCS",
    "prometheus": "accelmetrics.dialects.prometheus:PROMETHEUS",
    "otel": "accelmetrics.dialects.otel:OTEL",
    "nvidia-smi": "accelmetrics.dialects.nvidia_smi:NVIDIA_SMI",
    "verl": "accelmetrics.dialects.training:VERL",
    "training": "accelmetrics.dialects.training:Training",
    "dcgm": "accelmetrics.dialects.dcgm:DCGM",
    "nvidia_smi": "accelmetrics.dialects.nvidia_smi:NvidiaGpuExporter",
    "nvitop": "accelmetrics.dialects.nvitop:NVITOP",
    "amd": "accelmetrics.dialects.amd:AMD",
}
"""Import path of each built-in dialect by name; ``wandb`` is the default. A test compares the table with the entry points."""


def names() -> tuple[str, ...]:
    """Return the names of all dialects."""
    return plug_ins.names(GROUP, BUILT_IN)


def dialect(wanted: str | Dialect) -> Dialect:
    """Return the dialect with this name. A dialect that keeps state is a new object. A dialect object is returned unchanged.

    Args:
        wanted: A name, ``module:attribute`` of a class or an object that is not registered, or a dialect.

    Raises:
        UnknownNameError: No dialect has this name.
        InvalidOptionError: It cannot be imported or created, or it is no dialect.
    """
    with plug_ins.load_errors("dialect", GROUP, wanted):
        found: object = wanted
        if isinstance(wanted, str):
            found = plug_ins.load("dialect", GROUP, {**BUILT_IN, wanted: wanted} if ":" in wanted else BUILT_IN, wanted)
        if isinstance(found, type):
            found = found()
    missing = [part for part in ("name", "summary", "counting", "tabular", "points", "flat", "rows") if not hasattr(found, part)]
    if missing:
        raise InvalidOptionError(f"{found!r} is not a dialect: it has no {', '.join(missing)}")
    return cast("Dialect", found)
