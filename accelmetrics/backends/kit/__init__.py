"""What a vendor's backend is made of. The documentation begins with it: ``docs/backends.md``.

- :mod:`~accelmetrics.backends.kit.fields`: which metric is read from where in a vendor's record;
- :mod:`~accelmetrics.backends.kit.parsing`: what tools print, as records;
- :mod:`~accelmetrics.backends.kit.polled`: backends whose source is asked for all devices at once;
- :mod:`~accelmetrics.backends.kit.commands`, :mod:`~accelmetrics.backends.kit.line_process`,
  :mod:`~accelmetrics.backends.kit.sysfs`: commands, those that print a stream, and directories of files, as such sources;
- :mod:`~accelmetrics.backends.kit.system`, :mod:`~accelmetrics.backends.kit.processes`, :mod:`~accelmetrics.backends.kit.processes`: files
  of the system, and the hardware and the processes that they tell of;
- :mod:`~accelmetrics.backends.kit.sources`: backends of which one of several drivers is used.

Names load on first use: detection imports :mod:`~accelmetrics.backends.kit.system` alone, and none of what a reading takes.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from accelmetrics.backends.kit.commands import Command as Command
    from accelmetrics.backends.kit.commands import Completed as Completed
    from accelmetrics.backends.kit.fields import MEMORY as MEMORY
    from accelmetrics.backends.kit.fields import POWER_SHARE as POWER_SHARE
    from accelmetrics.backends.kit.fields import PRINTED as PRINTED
    from accelmetrics.backends.kit.fields import Derived as Derived
    from accelmetrics.backends.kit.fields import Field as Field
    from accelmetrics.backends.kit.fields import Rate as Rate
    from accelmetrics.backends.kit.fields import Record as Record
    from accelmetrics.backends.kit.fields import difference as difference
    from accelmetrics.backends.kit.fields import is_absent as is_absent
    from accelmetrics.backends.kit.fields import number as number
    from accelmetrics.backends.kit.fields import quoted as quoted
    from accelmetrics.backends.kit.fields import share as share
    from accelmetrics.backends.kit.fields import text as text
    from accelmetrics.backends.kit.fields import total as total
    from accelmetrics.backends.kit.fields import whole as whole
    from accelmetrics.backends.kit.line_process import LineProcess as LineProcess
    from accelmetrics.backends.kit.line_process import stream as stream
    from accelmetrics.backends.kit.parsing import grouped as grouped
    from accelmetrics.backends.kit.parsing import json_document as json_document
    from accelmetrics.backends.kit.parsing import json_documents as json_documents
    from accelmetrics.backends.kit.parsing import rows as rows
    from accelmetrics.backends.kit.parsing import sections as sections
    from accelmetrics.backends.kit.polled import DeviceSample as DeviceSample
    from accelmetrics.backends.kit.polled import PolledBackend as PolledBackend
    from accelmetrics.backends.kit.polled import PollOnce as PollOnce
    from accelmetrics.backends.kit.polled import Source as Source
    from accelmetrics.backends.kit.processes import NodeHolders as NodeHolders
    from accelmetrics.backends.kit.processes import descendants as descendants
    from accelmetrics.backends.kit.sources import SourcesBackend as SourcesBackend
    from accelmetrics.backends.kit.sysfs import directories as directories
    from accelmetrics.backends.kit.system import find_hardware as find_hardware

_PUBLIC = {
    "commands": "Command Completed",
    "fields": "MEMORY POWER_SHARE PRINTED Derived Field Rate Record difference is_absent number quoted share text total whole",
    "line_process": "LineProcess stream",
    "parsing": "grouped json_document json_documents rows sections",
    "polled": "DeviceSample PollOnce PolledBackend Source",
    "processes": "NodeHolders descendants",
    "sources": "SourcesBackend",
    "sysfs": "directories",
    "system": "find_hardware",
}
_HOMES = {name: module for module, names in _PUBLIC.items() for name in names.split()}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(_HOMES)
