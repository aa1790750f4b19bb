"""What a vendor's backend is made of. The documentation begins with it: ``docs/backends.md``.

- :mod:`~accelmetrics.backends.kit.fields`: which metric is read from where in a vendor's record;
- :mod:`~accelmetrics.backends.kit.polled`: backends whose source is asked for all devices at once;
- :mod:`~accelmetrics.backends.kit.commands`, :mod:`~accelmetrics.backends.kit.line_process`: commands, and those that print a stream;
- :mod:`~accelmetrics.backends.kit.system`, :mod:`~accelmetrics.backends.kit.processes`: files of the system, the hardware and the
  processes that they tell of.
"""

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
