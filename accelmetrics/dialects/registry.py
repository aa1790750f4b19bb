"""Which dialects there are: the built-in ones and those that other packages register.

A third-party package registers an object under the entry-point group ``accelmetrics.dialects``, or the class of one that keeps
state: every exporter gets an object of its own of that.
"""

from __future__ import annotations

import importlib
from functools import lru_cache
from typing import TYPE_CHECKING, cast

from accelmetrics.schemas.errors import InvalidOptionError, UnknownNameError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

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
}
"""By name, where each is found. ``wandb`` is the default. Kept here so that naming one does not
pay for a scan of every installed package; a test holds it equal to the entry points."""


@lru_cache(maxsize=1)
def _plug_ins() -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points

    found = {point.name: point for point in entry_points(group=GROUP)}
    return {name: found[name] for name in sorted(found) if name not in BUILT_IN}


def names() -> tuple[str, ...]:
    """List all dialects by name."""
    return (*BUILT_IN, *_plug_ins())


def forget() -> None:
    """Look for plug-ins anew: for tests."""
    _plug_ins.cache_clear()


def dialect(wanted: str | Dialect) -> Dialect:
    """Give the dialect of a name, a new object where it keeps what it saw; one that is made already is given back.

    Raises:
        UnknownNameError: There is none.
        InvalidOptionError: It is no dialect.
    """
    found: object = wanted
    if isinstance(wanted, str):
        target = BUILT_IN.get(wanted)
        if target is not None:
            module, _, attribute = target.partition(":")
            found = getattr(importlib.import_module(module), attribute)
        elif (point := _plug_ins().get(wanted)) is not None:
            found = point.load()
        else:
            raise UnknownNameError("dialect", wanted, names())
    found = found() if isinstance(found, type) else found
    missing = [part for part in ("name", "summary", "counting", "tabular", "points", "flat", "rows") if not hasattr(found, part)]
    if missing:
        raise InvalidOptionError(f"{found!r} is no dialect: it lacks {', '.join(missing)}")
    return cast("Dialect", found)
