"""What a vendor's backend is made of. The documentation begins with it: ``docs/backends.md``.

- :mod:`~accelmetrics.backends.kit.fields`: which metric is read from where in a vendor's record;
- :mod:`~accelmetrics.backends.kit.polled`: backends whose source is asked for all devices at once;
- :mod:`~accelmetrics.backends.kit.commands`, :mod:`~accelmetrics.backends.kit.line_process`: commands, and those that print a stream;
- :mod:`~accelmetrics.backends.kit.system`, :mod:`~accelmetrics.backends.kit.processes`: files of the system, the hardware and the
  processes that they tell of.

Names load on first use: detection imports :mod:`~accelmetrics.backends.kit.system` alone, and none of what a reading takes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from accelmetrics.backends.kit.commands import Command, Completed
    from accelmetrics.backends.kit.fields import (
        MEMORY,
        POWER_SHARE,
        PRINTED,
        Derived,
        Field,
        Rate,
        difference,
        flat,
        is_absent,
        number,
        quoted,
        share,
        text,
        total,
        whole,
    )
    from accelmetrics.backends.kit.line_process import LineProcess, stream
    from accelmetrics.backends.kit.polled import Connect, DeviceSample, PolledBackend, PollOnce, Source
    from accelmetrics.backends.kit.system import find_hardware, find_nodes, find_pci

__all__ = [
    "MEMORY",
    "POWER_SHARE",
    "PRINTED",
    "Command",
    "Completed",
    "Connect",
    "Derived",
    "DeviceSample",
    "Field",
    "LineProcess",
    "PollOnce",
    "PolledBackend",
    "Rate",
    "Source",
    "difference",
    "find_hardware",
    "find_nodes",
    "find_pci",
    "flat",
    "is_absent",
    "number",
    "quoted",
    "share",
    "stream",
    "text",
    "total",
    "whole",
]

_HOMES = {
    "Command": "commands",
    "Completed": "commands",
    "Connect": "polled",
    "Derived": "fields",
    "DeviceSample": "polled",
    "Field": "fields",
    "LineProcess": "line_process",
    "MEMORY": "fields",
    "POWER_SHARE": "fields",
    "PRINTED": "fields",
    "PollOnce": "polled",
    "PolledBackend": "polled",
    "Rate": "fields",
    "Source": "polled",
    "difference": "fields",
    "find_hardware": "system",
    "find_nodes": "system",
    "find_pci": "system",
    "flat": "fields",
    "is_absent": "fields",
    "number": "fields",
    "quoted": "fields",
    "share": "fields",
    "stream": "line_process",
    "text": "fields",
    "total": "fields",
    "whole": "fields",
}


def __getattr__(name: str) -> object:
    """Load a public name's module on first use (PEP 562)."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value
